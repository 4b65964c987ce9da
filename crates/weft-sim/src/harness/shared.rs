//! Receives that the endpoints of a process share: mirrors weft-fi's use of the engine's pool
//! (`endpoint/shared.rs`).

use std::sync::Arc;

use weft_engine::Pool;
use weft_engine::api::{Error, RecvFlags, RecvOp};

use crate::harness::Harness;
use crate::oracle::{Op, context};

impl Harness {
    /// The live endpoints of a rank's process.
    fn siblings(&self, rank: usize) -> Vec<usize> {
        self.cluster.process(rank).into_iter().filter(|rank| self.cluster.is_alive(*rank)).collect()
    }

    /// Posts a receive for all endpoints of a rank's process, or a peek, claim or discard.
    pub(super) fn post_shared(&mut self, pool: &Arc<Pool>, rank: usize, op: &RecvOp<'_>) -> Result<(), Error> {
        let siblings = self.siblings(rank);
        if op.flags.intersects(RecvFlags::LOOKS) {
            return self.look(&siblings, op);
        }
        if !pool.post(op)? {
            return Ok(());
        }
        // Other endpoints make progress meanwhile.
        if op.ctx.ptr.is_multiple_of(3) {
            for rank in siblings.iter().rev().take(op.ctx.ptr % 4) {
                self.cluster.engine(*rank).map(|engine| engine.progress());
                self.note_early(*rank);
            }
        }
        let mut waiting = false;
        for rank in siblings {
            if let Some(engine) = self.cluster.engine(rank) {
                engine.feed(op);
                waiting |= engine.unexpected_messages() > 0;
            }
            self.note_early(rank);
        }
        if waiting {
            pool.await_more();
        }
        Ok(())
    }

    /// Keeps the batch that an endpoint completed within a call before that of the next endpoint.
    fn note_early(&mut self, rank: usize) {
        let batch = self.cluster.take_completions(rank);
        self.early.push((rank, batch));
    }

    /// The first endpoint with a matching message answers; if there is none, the last one reports that.
    fn look(&mut self, siblings: &[usize], op: &RecvOp<'_>) -> Result<(), Error> {
        let mut chosen = *siblings.last().ok_or(Error::Invalid)?;
        for rank in siblings {
            let Some(engine) = self.cluster.engine(*rank) else { continue };
            engine.progress();
            let found = engine.has_message_for(op);
            self.note_early(*rank);
            if found {
                chosen = *rank;
                break;
            }
        }
        self.cluster.engine(chosen).ok_or(Error::Invalid)?.recv(op)
    }

    /// Cancels a receive; one of the endpoints reports it.
    pub(super) fn cancel_shared(&mut self, pool: &Arc<Pool>, rank: usize, op: Op) -> bool {
        let ptr = context(op).ptr;
        let first = self.siblings(rank).first().copied();
        match first.and_then(|rank| self.cluster.engine(rank)) {
            Some(engine) => engine.cancel_pooled(ptr),
            None => pool.cancel(ptr),
        }
    }

    /// After a receive was posted or canceled, absorbs the completions of a rank and of the endpoints that
    /// share its receives.
    pub(super) fn absorb_shared(&mut self, rank: usize) {
        if self.cluster.pool(rank).is_none() {
            return self.absorb(rank);
        }
        // All endpoints took part: one may already have answered a message of another.
        for rank in self.siblings(rank) {
            self.absorb_batch(rank);
        }
        self.oracle.batch_ended();
    }

    /// Makes clients read completions of shared multi-receives: in order for each endpoint, in any order among
    /// endpoints. With `all`, all clients read; otherwise some do.
    pub(super) fn read_some(&mut self, all: bool) {
        self.turns += 1;
        let bits = self.turns.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 8;
        for rank in self.oracle.unread() {
            if all || bits >> rank & 3 == 0 {
                self.read_next(rank);
            }
        }
    }

    /// Makes a rank's client read all completions that the rank has reported.
    pub(super) fn read_next(&mut self, rank: usize) {
        if !self.cluster.is_alive(rank) {
            return self.oracle.forget_unread(rank);
        }
        while let Some(mut flags) = self.oracle.next_unread(rank) {
            self.cluster.read_next(rank, &mut flags);
            if let Some(buffer) = self.oracle.seen(rank, flags) {
                self.cluster.fabric().free(buffer);
            }
        }
    }

    /// Reports receives that are still posted in pools although nothing is pending.
    pub(super) fn pool_leaks(&self) -> Vec<String> {
        let depth = self.cluster.engine_config().rx_depth;
        let left = |rank: &usize| self.cluster.pool(*rank).map_or(0, |pool| depth - pool.free());
        let live_ranks = self.cluster.live_ranks().into_iter().filter(|rank| left(rank) > 0);
        live_ranks.map(|rank| format!("rank {rank} at the end: {} receives posted in its pool", left(&rank))).collect()
    }
}
