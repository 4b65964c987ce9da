//! The time of one operation.
//!
//! For tagged messages, messages and writes, the result is half of a round trip. Writes carry remote completion data,
//! by which the target notices them. Reads and fetch-and-adds are round trips by themselves. Each receive is posted
//! before its message can arrive.

use weft_client::Piece;

use super::super::child::RankError;
use super::super::job::Job;
use super::super::options::Op;
use super::pair::{COUNTER, DATA, OPERAND, Pair, Workload};

/// Sends whose completions may be outstanding: enough that no send has to wait for a completion.
pub(crate) const WINDOW: u32 = 16;
/// Posted receives: the one for the next message, and the one that was just posted again.
const RECEIVES: u32 = 2;

/// State of one side.
pub(crate) struct PingPong {
    op: Op,
    inject: bool,
    next_out: u32,
    pending: [bool; WINDOW as usize],
    next_in: u32,
    /// Writes with data that have arrived.
    written: u64,
    added: u64,
}

impl PingPong {
    pub(crate) fn new(job: &Job) -> Self {
        Self {
            op: job.case.op,
            inject: job.inject && !job.case.is_remote(),
            next_out: 0,
            pending: [false; WINDOW as usize],
            next_in: 0,
            written: 0,
            added: 0,
        }
    }

    /// Returns a slot whose previous operation is complete.
    #[inline]
    fn free_slot(&mut self, pair: &mut Pair) -> Result<u32, RankError> {
        let at = self.next_out;
        self.next_out = (at + 1) % WINDOW;
        if std::mem::replace(&mut self.pending[at as usize], true) {
            pair.port.finish(pair.out_slot(at))?;
        }
        Ok(pair.out_slot(at))
    }

    fn receive(&self, pair: &mut Pair, at: u32) -> Result<(), RankError> {
        let (slot, piece) = (pair.in_slot(at), pair.layout.incoming(at));
        if self.op == Op::Msg {
            pair.port.post(|ep| ep.recv(slot, piece))
        } else {
            pair.port.post(|ep| ep.tagged_recv(slot, piece, DATA, 0))
        }
    }

    #[inline]
    fn send(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        let (to, piece) = (pair.peer.address, pair.layout.outgoing(0));
        if self.inject {
            return match self.op {
                Op::Msg => pair.port.post(|ep| ep.inject(piece, to)),
                _ => pair.port.post(|ep| ep.tagged_inject(piece, to, DATA)),
            };
        }
        let slot = self.free_slot(pair)?;
        match self.op {
            Op::Msg => pair.port.post(|ep| ep.send(slot, piece, to)),
            _ => pair.port.post(|ep| ep.tagged_send(slot, piece, to, DATA)),
        }
    }

    /// Waits for a message. The caller posts its receive again after the answer.
    #[inline]
    fn arrival(&mut self, pair: &mut Pair) -> Result<u32, RankError> {
        let at = self.next_in;
        self.next_in = (at + 1) % RECEIVES;
        pair.port.finish(pair.in_slot(at))?;
        Ok(at)
    }

    #[inline]
    fn write(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        let (peer, piece) = (pair.peer, pair.layout.incoming(0));
        let slot = self.free_slot(pair)?;
        pair.port.post(|ep| ep.write_data(slot, piece, peer.address, peer.region, 1))
    }

    #[inline]
    fn await_write(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        self.written += 1;
        pair.port.await_remote(self.written)
    }

    /// Performs a read or fetch-and-add and waits for its completion.
    #[inline]
    fn fetch(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        let (peer, slot) = (pair.peer, pair.out_slot(0));
        let Piece { offset, len } = pair.layout.incoming(0);
        if self.op == Op::FetchAdd {
            self.added += 1;
            let result = pair.layout.outgoing(0).offset;
            pair.port.post(|ep| ep.fetch_add(slot, [OPERAND, result], peer.address, peer.region, COUNTER))?;
        } else {
            let into = Piece { offset: pair.layout.outgoing(0).offset, len };
            pair.port.post(|ep| ep.read(slot, into, peer.address, peer.region, offset))?;
        }
        pair.port.finish(slot)
    }

    /// Performs operations on the measuring side, and calls `each` after every one.
    #[inline]
    fn operate(&mut self, pair: &mut Pair, count: u64, mut each: impl FnMut()) -> Result<(), RankError> {
        match self.op {
            Op::Tagged | Op::Msg => {
                let mut used = None;
                for _ in 0..count {
                    self.send(pair)?;
                    if let Some(at) = used {
                        self.receive(pair, at)?;
                    }
                    used = Some(self.arrival(pair)?);
                    each();
                }
                used.map_or(Ok(()), |at| self.receive(pair, at))
            }
            Op::Write => (0..count).try_for_each(|_| {
                self.write(pair)?;
                self.await_write(pair)?;
                each();
                Ok(())
            }),
            Op::Read | Op::FetchAdd => (0..count).try_for_each(|_| {
                self.fetch(pair)?;
                each();
                Ok(())
            }),
        }
    }
}

impl Workload for PingPong {
    fn prepare(&mut self, pair: &mut Pair, _active: bool) -> Result<(), RankError> {
        pair.port.ep.store(OPERAND, 1)?;
        if matches!(self.op, Op::Tagged | Op::Msg) {
            (0..RECEIVES).try_for_each(|at| self.receive(pair, at))?;
        }
        Ok(())
    }

    fn active(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError> {
        self.operate(pair, count, || {})
    }

    fn active_each(&mut self, pair: &mut Pair, count: u64, each: &mut dyn FnMut()) -> Result<(), RankError> {
        self.operate(pair, count, each)
    }

    fn passive(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError> {
        match self.op {
            Op::Tagged | Op::Msg => (0..count).try_for_each(|_| {
                let at = self.arrival(pair)?;
                self.send(pair)?;
                self.receive(pair, at)
            }),
            Op::Write => (0..count).try_for_each(|_| {
                self.await_write(pair)?;
                self.write(pair)
            }),
            // The target only makes progress, which waiting for the next announcement does.
            Op::Read | Op::FetchAdd => Ok(()),
        }
    }

    fn verify(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        if self.op != Op::FetchAdd {
            return Ok(());
        }
        self.fetch(pair)?;
        check_sum(pair.port.ep.load(pair.layout.outgoing(0).offset)?, self.added - 1)
    }

    fn per_operation(&self, nanoseconds: f64) -> f64 {
        if matches!(self.op, Op::Read | Op::FetchAdd) { nanoseconds } else { nanoseconds / 2.0 }
    }
}

/// Checks that a counter has the number of additions of 1 as its value.
pub(crate) fn check_sum(found: u64, expected: u64) -> Result<(), RankError> {
    if found == expected {
        return Ok(());
    }
    Err(RankError::Failed(format!("{expected} additions of 1 made {found}")))
}
