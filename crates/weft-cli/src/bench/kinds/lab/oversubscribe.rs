//! Collective operations of more ranks than there are cores, over tagged messages.
//!
//! - A *barrier* by dissemination: in step k each rank sends to the rank 2^k after it and receives from the rank 2^k
//!   before it.
//! - An *all-reduce* of 8 bytes by recursive doubling. A rank beyond the largest power of two first sends its number to
//!   a partner, from which it later receives the result. Every result is checked.
//!
//! Rank 0 measures, and announces the number of operations of each batch to the others.

use std::time::{Duration, Instant};

use weft_client::Piece;

use crate::bench::child::{RankError, Session};
use crate::bench::job::Hello;
use crate::bench::kinds::measures;
use crate::bench::plan::Variant;
use crate::bench::port::{Peer, Port, open_domain};
use crate::bench::timing;

/// Steps of one operation: 16 steps for up to 2^16 ranks, and two to fold the ranks beyond a power of two.
const STEPS: u32 = 18;
const FOLD: u32 = 16;
const UNFOLD: u32 = 17;
/// The tag of step 0; the tags of the other steps follow.
const STEP_TAG: u64 = 64;
const BATCH_TAG: u64 = 5;
const BATCH_OUT: u32 = 2 * STEPS;
const BATCH_IN: u32 = 2 * STEPS + 1;
const SLOTS: u32 = 2 * STEPS + 2;

/// Each slot has a cache line of its own.
const fn piece(slot: u32) -> Piece {
    Piece { offset: slot as usize * 64, len: 8 }
}

/// The measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    let domain = open_domain(job)?;
    let mut port = Port::open(&domain, SLOTS as usize * 64, SLOTS, job.ranks, job.wait)?;
    let mut hello = Hello::default();
    port.add_to(&mut hello);
    let hellos = session.exchange(hello)?;
    let peers: Result<Vec<Peer>, RankError> = hellos.iter().map(|hello| port.insert_peer(hello, 0)).collect();
    let mut group = Group { port, peers: peers?, rank: job.rank, pending: [false; SLOTS as usize] };
    let barrier = job.case.variant == Variant::Barrier;
    if job.rank == 0 {
        let sample = Duration::from_millis(job.sample_ms as u64);
        let nanoseconds = timing::nanoseconds(sample, |count| {
            group.announce(count)?;
            let start = Instant::now();
            group.operate(barrier, count)?;
            Ok::<_, RankError>(start.elapsed())
        })?;
        group.announce(0)?;
        session.result(measures(job.case.kind, job.case.size, nanoseconds));
    } else {
        loop {
            match group.next_batch()? {
                0 => break,
                count => group.operate(barrier, count)?,
            }
        }
    }
    session.linger(1, || group.port.linger())
}

struct Group {
    port: Port,
    peers: Vec<Peer>,
    rank: usize,
    pending: [bool; SLOTS as usize],
}

impl Group {
    fn send(&mut self, slot: u32, to: usize, tag: u64, value: u64) -> Result<(), RankError> {
        if std::mem::replace(&mut self.pending[slot as usize], true) {
            self.port.finish(slot)?;
        }
        let address = self.peers[to].address;
        self.port.ep.store(piece(slot).offset, value)?;
        self.port.post(|ep| ep.tagged_send(slot, piece(slot), address, tag))
    }

    /// Posts the receive of a step. In each step, one rank only may send to this one.
    fn post_receive(&mut self, step: u32) -> Result<(), RankError> {
        let slot = STEPS + step;
        self.port.post(|ep| ep.tagged_recv(slot, piece(slot), STEP_TAG + u64::from(step), 0))
    }

    fn await_value(&mut self, step: u32) -> Result<u64, RankError> {
        self.port.finish(STEPS + step)?;
        Ok(self.port.ep.load(piece(STEPS + step).offset)?)
    }

    fn send_value(&mut self, step: u32, to: usize, value: u64) -> Result<(), RankError> {
        self.send(step, to, STEP_TAG + u64::from(step), value)
    }

    fn announce(&mut self, count: u64) -> Result<(), RankError> {
        (1..self.peers.len()).try_for_each(|to| self.send(BATCH_OUT, to, BATCH_TAG, count))
    }

    fn next_batch(&mut self) -> Result<u64, RankError> {
        self.port.post(|ep| ep.tagged_recv(BATCH_IN, piece(BATCH_IN), BATCH_TAG, 0))?;
        self.port.finish(BATCH_IN)?;
        Ok(self.port.ep.load(piece(BATCH_IN).offset)?)
    }

    fn operate(&mut self, barrier: bool, count: u64) -> Result<(), RankError> {
        let ranks = self.peers.len() as u64;
        for round in 0..count {
            if barrier {
                self.barrier()?;
                continue;
            }
            let sum = self.allreduce(self.rank as u64 + round)?;
            let expected = ranks * (ranks - 1) / 2 + ranks * round;
            if sum != expected {
                return Err(RankError::Failed(format!("the sum over {ranks} ranks is {sum} instead of {expected}")));
            }
        }
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), RankError> {
        let ranks = self.peers.len();
        for step in (0..FOLD).take_while(|step| 1 << step < ranks) {
            self.post_receive(step)?;
            self.send_value(step, (self.rank + (1 << step)) % ranks, 0)?;
            self.await_value(step)?;
        }
        Ok(())
    }

    fn allreduce(&mut self, mut value: u64) -> Result<u64, RankError> {
        let ranks = self.peers.len();
        let power = 1 << ranks.ilog2();
        if self.rank >= power {
            self.post_receive(UNFOLD)?;
            self.send_value(FOLD, self.rank - power, value)?;
            return self.await_value(UNFOLD);
        }
        if self.rank + power < ranks {
            self.post_receive(FOLD)?;
            value += self.await_value(FOLD)?;
        }
        for step in (0..FOLD).take_while(|step| 1 << step < power) {
            self.post_receive(step)?;
            self.send_value(step, self.rank ^ (1 << step), value)?;
            value += self.await_value(step)?;
        }
        if self.rank + power < ranks {
            self.send_value(UNFOLD, self.rank + power, value)?;
        }
        Ok(value)
    }
}
