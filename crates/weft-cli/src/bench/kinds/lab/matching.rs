//! The cost of a match against the depth of the queue that is searched.
//!
//! Rank 0 has a number of posted receives, or of unexpected messages, that match nothing. Behind them are the matching
//! ones. *Posted*: rank 0 posts [`BURST`] matching receives and requests as many messages from rank 1. The result is
//! the time until all have arrived. *Unexpected*: rank 1 sends as many messages, then an acknowledgement. Rank 0 then
//! posts the receives. The result is the time until all are complete. In the wildcard variants, all receives ignore
//! the [`IGNORED`] bits of the tag, also the receives that match nothing.

use std::time::{Duration, Instant};

use weft_client::Piece;

use crate::bench::child::{RankError, Session};
use crate::bench::kinds::count;
use crate::bench::kinds::pair::{Pair, Room, Workload, measure_pairs};
use crate::bench::plan::Variant;

/// Messages matched at a time.
const BURST: u32 = 32;
/// Time limit for the arrival of unexpected messages. A provider that stops reading when it has many of them exceeds
/// it.
const PATIENCE: Duration = Duration::from_secs(3);
/// Bits that wildcards ignore.
const IGNORED: u64 = 0xffff;
/// The tag of matching messages, and a tag that differs from it in ignored bits only.
const MATCHING: u64 = 9 << 16;
const SENT: u64 = MATCHING | 7;

/// The tag of the `at`th receive or message that matches nothing.
const fn other(at: u32) -> u64 {
    (1000 + at as u64) << 16
}

/// The measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let case = &session.job.case;
    let depth = count(case.number)?;
    let (posted, wildcard) = match case.variant {
        Variant::PostedExact => (true, false),
        Variant::PostedWildcard => (true, true),
        Variant::UnexpectedExact => (false, false),
        _ => (false, true),
    };
    let room = Room { window: BURST, lasting: if posted { depth } else { 1 } };
    let finished = measure_pairs(session, room, &|| Matching {
        depth,
        posted,
        wildcard,
        pending: [false; BURST as usize],
        took: None,
    });
    match finished {
        Err(RankError::Stuck) => Err(RankError::NotOffered(format!("its queue does not hold {depth} entries"))),
        other => other,
    }
}

struct Matching {
    depth: u32,
    posted: bool,
    wildcard: bool,
    pending: [bool; BURST as usize],
    /// The measured part of a batch's time.
    took: Option<Duration>,
}

impl Matching {
    fn ignore(&self) -> u64 {
        if self.wildcard { IGNORED } else { 0 }
    }

    fn receive(&self, pair: &mut Pair, at: u32) -> Result<(), RankError> {
        let (slot, piece) = (pair.in_slot(at), pair.layout.incoming(at));
        let tag = if self.wildcard { MATCHING } else { SENT };
        pair.port.post(|ep| ep.tagged_recv(slot, piece, tag, self.ignore()))
    }

    fn receive_all(&self, pair: &mut Pair) -> Result<(), RankError> {
        (0..BURST).try_for_each(|at| self.receive(pair, at))
    }

    fn await_all(pair: &mut Pair) -> Result<(), RankError> {
        (0..BURST).try_for_each(|at| pair.port.finish(pair.in_slot(at)))
    }

    fn send_all(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        let to = pair.peer.address;
        for at in 0..BURST {
            let (slot, piece) = (pair.out_slot(at), pair.layout.outgoing(at));
            if std::mem::replace(&mut self.pending[at as usize], true) {
                pair.port.finish(slot)?;
            }
            pair.port.post(|ep| ep.tagged_send(slot, piece, to, SENT))?;
        }
        Ok(())
    }

    /// Posts the receives that match nothing.
    fn fill_posted(&self, pair: &mut Pair) -> Result<(), RankError> {
        let piece = Piece { offset: pair.layout.incoming(0).offset, len: 8 };
        (0..self.depth).try_for_each(|at| {
            let slot = pair.lasting_slot(at);
            pair.port.post(|ep| ep.tagged_recv(slot, piece, other(at), self.ignore()))
        })
    }

    /// Sends the unexpected messages. A message is complete when the peer has it.
    fn fill_unexpected(&self, pair: &mut Pair) -> Result<(), RankError> {
        let (to, slot) = (pair.peer.address, pair.lasting_slot(0));
        let piece = Piece { offset: pair.layout.outgoing(0).offset, len: 8 };
        (0..self.depth).try_for_each(|at| {
            pair.port.post(|ep| ep.tagged_send(slot, piece, to, other(at)))?;
            pair.port.finish(slot)
        })
    }
}

impl Workload for Matching {
    fn prepare(&mut self, pair: &mut Pair, active: bool) -> Result<(), RankError> {
        match (self.posted, active) {
            (true, true) => self.fill_posted(pair),
            (true, false) => Ok(()),
            // The acknowledgement is sent after the unexpected messages, so it arrives after them.
            (false, true) => {
                pair.expect_ack()?;
                pair.await_ack_for(PATIENCE)
            }
            (false, false) => {
                self.fill_unexpected(pair)?;
                pair.acknowledge()
            }
        }
    }

    fn active(&mut self, pair: &mut Pair, bursts: u64) -> Result<(), RankError> {
        let mut took = Duration::ZERO;
        for _ in 0..bursts {
            if self.posted {
                self.receive_all(pair)?;
                let start = Instant::now();
                pair.acknowledge()?;
                Self::await_all(pair)?;
                took += start.elapsed();
            } else {
                pair.expect_ack()?;
                pair.acknowledge()?;
                pair.await_ack_for(PATIENCE)?;
                let start = Instant::now();
                self.receive_all(pair)?;
                Self::await_all(pair)?;
                took += start.elapsed();
            }
        }
        self.took = Some(took);
        Ok(())
    }

    fn passive(&mut self, pair: &mut Pair, bursts: u64) -> Result<(), RankError> {
        for _ in 0..bursts {
            pair.expect_ack()?;
            pair.await_ack()?;
            self.send_all(pair)?;
            if !self.posted {
                pair.acknowledge()?;
            }
        }
        Ok(())
    }

    fn own_time(&mut self) -> Option<Duration> {
        self.took.take()
    }

    fn per_operation(&self, nanoseconds: f64) -> f64 {
        nanoseconds / f64::from(BURST)
    }
}
