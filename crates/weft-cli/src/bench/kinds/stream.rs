//! Bandwidth and rate: many pending operations in one direction.
//!
//! Messages are sent in windows. The receiver posts each receive again at once, and acknowledges a window when all of
//! it has arrived; the sender waits for that. For remote operations the window slides: a further operation is posted as
//! soon as one of the window is complete.

use weft_client::Piece;

use super::super::child::RankError;
use super::super::job::Job;
use super::super::options::Op;
use super::pair::{COUNTER, DATA, OPERAND, Pair, Workload};
use super::pingpong::check_sum;

/// State of one side. A batch counts windows.
pub(crate) struct Stream {
    op: Op,
    window: u32,
    inject: bool,
    pending: Vec<bool>,
    added: u64,
}

impl Stream {
    pub(crate) fn new(job: &Job, window: u32) -> Self {
        Self {
            op: job.case.op,
            window,
            inject: job.inject && !job.case.is_remote(),
            pending: vec![false; window as usize],
            added: 0,
        }
    }

    fn receive(&self, pair: &mut Pair, at: u32) -> Result<(), RankError> {
        let (slot, piece) = (pair.in_slot(at), pair.layout.incoming(at));
        if self.op == Op::Msg {
            pair.port.post(|ep| ep.recv(slot, piece))
        } else {
            pair.port.post(|ep| ep.tagged_recv(slot, piece, DATA, 0))
        }
    }

    /// Posts the `at`th operation of a window.
    #[inline]
    fn post(&mut self, pair: &mut Pair, at: u32) -> Result<(), RankError> {
        let (peer, slot) = (pair.peer, pair.out_slot(at));
        let (piece, target) = (pair.layout.outgoing(at), pair.layout.incoming(at).offset);
        if self.inject {
            return match self.op {
                Op::Msg => pair.port.post(|ep| ep.inject(piece, peer.address)),
                _ => pair.port.post(|ep| ep.tagged_inject(piece, peer.address, DATA)),
            };
        }
        if std::mem::replace(&mut self.pending[at as usize], true) {
            pair.port.finish(slot)?;
        }
        match self.op {
            Op::Tagged => pair.port.post(|ep| ep.tagged_send(slot, piece, peer.address, DATA)),
            Op::Msg => pair.port.post(|ep| ep.send(slot, piece, peer.address)),
            Op::Write => pair.port.post(|ep| ep.write(slot, piece, peer.address, peer.region, target)),
            Op::Read => pair.port.post(|ep| ep.read(slot, piece, peer.address, peer.region, target)),
            Op::FetchAdd => {
                self.added += 1;
                let numbers = [OPERAND, piece.offset];
                pair.port.post(|ep| ep.fetch_add(slot, numbers, peer.address, peer.region, COUNTER))
            }
        }
    }

    /// Waits for all pending operations.
    fn drain(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        for at in 0..self.window {
            if std::mem::take(&mut self.pending[at as usize]) {
                pair.port.finish(pair.out_slot(at))?;
            }
        }
        Ok(())
    }

    const fn is_remote(&self) -> bool {
        matches!(self.op, Op::Write | Op::Read | Op::FetchAdd)
    }
}

impl Workload for Stream {
    fn prepare(&mut self, pair: &mut Pair, active: bool) -> Result<(), RankError> {
        pair.port.ep.store(OPERAND, 1)?;
        if !active && !self.is_remote() {
            (0..self.window).try_for_each(|at| self.receive(pair, at))?;
        }
        Ok(())
    }

    fn active(&mut self, pair: &mut Pair, windows: u64) -> Result<(), RankError> {
        for _ in 0..windows {
            if !self.is_remote() {
                pair.expect_ack()?;
            }
            (0..self.window).try_for_each(|at| self.post(pair, at))?;
            if !self.is_remote() {
                pair.await_ack()?;
            }
        }
        if self.is_remote() { self.drain(pair) } else { Ok(()) }
    }

    fn passive(&mut self, pair: &mut Pair, windows: u64) -> Result<(), RankError> {
        if self.is_remote() {
            // The target only makes progress, which waiting for the next announcement does.
            return Ok(());
        }
        for _ in 0..windows {
            for at in 0..self.window {
                pair.port.finish(pair.in_slot(at))?;
                self.receive(pair, at)?;
            }
            pair.acknowledge()?;
        }
        Ok(())
    }

    fn verify(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        if self.op != Op::FetchAdd {
            return Ok(());
        }
        self.post(pair, 0)?;
        self.drain(pair)?;
        let Piece { offset, .. } = pair.layout.outgoing(0);
        check_sum(pair.port.ep.load(offset)?, self.added - 1)
    }

    fn per_operation(&self, nanoseconds: f64) -> f64 {
        nanoseconds / f64::from(self.window)
    }
}
