//! Receives that several engines draw from: the receive queue of a shared receive context.
//!
//! Place in the data flow: `Engine::bind_pool` gives an engine a pool besides its own queue of receives. A
//! message that finds none in the engine's own takes the oldest that accepts it here (`State::receive_for`),
//! or waits in its engine. Who posts here asks [`Pool::post`] whether engines may have such messages, and has
//! each of them look ([`Engine::feed`]).
//!
//! Invariants: an engine takes the pool's lock while it is entered, and holds it for a look; who hands
//! completions on, until they are where the client sees them. A message that waits is older than a receive
//! that it accepts only as long as nobody has looked: [`Pool::post`] makes the receive visible before engines
//! are asked to feed, and an engine looks here before it keeps a message, so one of the two sees the other.
//! An engine gives a receive to what comes only when nothing that waits is accepted by that one: it takes the
//! one that it has found, or looks again. Posting and the feeding after it are one step among those who post:
//! they have a lock around both. A multi-receive stays here while it has room, whichever engines fill it. A
//! message leaves it only when the client can see its completion ([`PooledReleases`]): those of several engines
//! become visible in any order, and the last of them says that the buffer is the client's again.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slab::Slab;

use crate::api::{ADDR_NONE, Addr, Completion, Error, Fault, Kind, Matching, OpFlags, RecvOp};
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::ops::{MultiRecv, RecvInfo};
use crate::engine::recv;
use crate::engine::state::State;
use crate::matching::{Matcher, Wanted};
use crate::mem::IovList;
use crate::nic::Nic;

/// Marks the number of a multi-receive as the pool's.
const POOLED: u32 = 1 << 31;

/// A queue of receives without an endpoint.
pub struct Pool(Mutex<PoolState>);

struct PoolState {
    /// Of either matcher only the receives are used: messages wait in the engines.
    tagged: Matcher,
    untagged: Matcher,
    multi_recvs: Slab<MultiRecv>,
    min_multi_recv: usize,
    depth: usize,
    /// Engines may have messages that found nothing here.
    awaited: bool,
}

impl PoolState {
    fn matcher(&mut self, tagged: bool) -> &mut Matcher {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

impl Pool {
    /// An empty queue for `depth` receives of either kind, of which a multi-receive is released when fewer
    /// than `min_multi_recv` bytes are left of it.
    #[must_use]
    pub fn new(matching: Matching, depth: usize, min_multi_recv: usize) -> Self {
        Self(Mutex::new(PoolState {
            tagged: Matcher::new(matching),
            untagged: Matcher::new(matching),
            multi_recvs: Slab::new(),
            min_multi_recv,
            depth,
            awaited: false,
        }))
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// See [`Pool::new`].
    pub fn set_min_multi_recv(&self, bytes: usize) {
        self.state().min_multi_recv = bytes;
    }

    /// How many more receives of either kind may be posted.
    pub fn free(&self) -> usize {
        let state = self.state();
        state.depth.saturating_sub(state.tagged.posted.len().max(state.untagged.posted.len()))
    }

    /// Posts a receive, single or multi. True: every engine must be asked to feed, and if one of them says
    /// that messages still wait there, [`Pool::await_more`] called.
    ///
    /// Errors: `Again` when the queue is full.
    pub fn post(&self, op: &RecvOp<'_>) -> Result<bool, Error> {
        let tagged = op.flags.contains(OpFlags::TAGGED);
        let mut state = self.state();
        if state.matcher(tagged).posted.len() >= state.depth {
            return Err(Error::Again);
        }
        let multi = op.flags.contains(OpFlags::MULTI);
        let buffer = multi.then(|| state.multi_recvs.insert(MultiRecv { used: 0, inflight: 0, retired: false }));
        let wanted = recv::wanted(op);
        state.matcher(tagged).post_pieces(wanted, op.iov, op.ctx, buffer);
        Ok(std::mem::take(&mut state.awaited))
    }

    /// Some engine still has messages that found nothing here.
    pub fn await_more(&self) {
        self.state().awaited = true;
    }

    /// Takes the oldest receive with this context pointer out, where no engine is that could report it
    /// ([`Engine::cancel_pooled`]).
    pub fn cancel(&self, ctx_ptr: usize) -> bool {
        let canceled = self.take_out(ctx_ptr);
        if let Some((_, Some(number))) = canceled {
            recv::leave_multi_recv(&mut self.state().multi_recvs, number);
        }
        canceled.is_some()
    }

    /// Takes the oldest receive with this context pointer out. If it is a multi-receive, its number: the
    /// completion must leave it.
    fn take_out(&self, ctx_ptr: usize) -> Option<(Completion, Option<u32>)> {
        let mut state = self.state();
        let (tagged, key) =
            [true, false].into_iter().find_map(|tagged| Some((tagged, state.matcher(tagged).find_posted(ctx_ptr)?)))?;
        let matcher = state.matcher(tagged);
        let posted = planted!(Bug::PoolCancelLeaves, matcher.take_posted(key), matcher.posted.get(key).copied())?;
        let mut flags = if tagged { OpFlags::TAGGED } else { OpFlags::empty() };
        let number = posted.multi.filter(|number| state.multi_recvs.contains(*number as usize));
        if let Some(multi) = number.and_then(|number| state.multi_recvs.get_mut(number as usize)) {
            multi.retired = true;
            multi.inflight += 1;
            flags |= OpFlags::POOLED;
        }
        let completion = Completion {
            kind: Kind::Recv,
            ctx: posted.ctx,
            flags,
            len: 0,
            buf: 0,
            tag: posted.tag,
            data: 0,
            src: ADDR_NONE,
            fault: Some(Fault::Canceled),
        };
        Some((completion, number))
    }

    /// What the oldest receive wants that accepts such a message. None: the message must wait, and the next
    /// receive will be told of it.
    pub(crate) fn find(&self, tagged: bool, src: Addr, tag: u64) -> Option<Wanted> {
        let mut state = self.state();
        let matcher = state.matcher(tagged);
        let found = matcher.arrived(src, tag).and_then(|key| Some(matcher.posted.get(key)?.wants()));
        state.awaited |= planted!(Bug::PoolOverlooked, found.is_none(), false);
        found
    }

    /// Takes the memory for such a message from the oldest receive that accepts it, if that is one that wants
    /// what was `found`.
    pub(crate) fn take(
        &self,
        found: Wanted,
        tagged: bool,
        src: Addr,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> Option<(IovList, RecvInfo)> {
        let state = &mut *self.state();
        let key = state.matcher(tagged).arrived(src, tag)?;
        if state.matcher(tagged).posted.get(key).is_none_or(|posted| posted.wants() != found) {
            return None;
        }
        let left = planted!(Bug::PoolTakenTwice, None, state.matcher(tagged).posted.get(key).copied());
        let matcher = if tagged { &mut state.tagged } else { &mut state.untagged };
        let (iov, mut info) =
            recv::take_buffer(matcher, &mut state.multi_recvs, state.min_multi_recv, tagged, key, tag, data, len);
        info.multi = info.multi.map(|number| number | POOLED);
        planted!(Bug::PoolTakenTwice, left.filter(|posted| posted.multi.is_none()).map(|posted| matcher.post(posted)));
        Some((iov, info))
    }
}

/// What engines have received into multi-receives of their pool, in the order of the completions that say so
/// (`OpFlags::POOLED`).
pub struct PooledReleases<'a> {
    pool: Option<&'a (Arc<Pool>, u64)>,
    numbers: &'a mut VecDeque<u32>,
}

impl<'a> PooledReleases<'a> {
    pub(crate) const fn new(pool: Option<&'a (Arc<Pool>, u64)>, numbers: &'a mut VecDeque<u32>) -> Self {
        Self { pool, numbers }
    }

    /// None of the completions is such.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// The client is about to see the next of these completions: sets or clears its MULTI. The client must be
    /// able to see it before what is returned is dropped.
    #[cold]
    pub fn next(&mut self, flags: &mut OpFlags) -> Option<ReleaseGuard<'a>> {
        let (mut state, number) = (self.pool?.0.state(), self.numbers.pop_front()?);
        flags.set(OpFlags::MULTI, recv::leave_multi_recv(&mut state.multi_recvs, number));
        Some(ReleaseGuard(state))
    }
}

/// Nobody else leaves a multi-receive of the pool meanwhile.
pub struct ReleaseGuard<'a>(#[allow(dead_code, reason = "held")] MutexGuard<'a, PoolState>);

impl<N: Nic> Engine<N> {
    /// Messages may take receives from this pool from now on. `user` is added to their contexts' `user`.
    pub fn bind_pool(&mut self, pool: Arc<Pool>, user: u64) {
        self.state.pool = Some((pool, user));
        self.state.draws_from_pool = true;
    }

    /// No more messages take receives from the pool; those that are on their way into one still arrive.
    pub fn leave_pool(&mut self) {
        self.state.draws_from_pool = false;
    }

    /// A receive was posted to the pool: messages that it accepts and that wait here take from there. Whether
    /// any message has been received, also since somebody turned out to be at an address.
    pub fn feed(&mut self, op: &RecvOp<'_>) -> bool {
        let waiting = self.unexpected_messages();
        self.state.follow_book();
        self.state.feed(op.flags.contains(OpFlags::TAGGED), recv::wanted(op));
        // A rendezvous or an acknowledgement may have become due.
        if self.state.peers.has_active() {
            self.run_active();
        }
        self.unexpected_messages() < waiting
    }

    /// Cancels a receive of the pool and reports that here; whether there was one.
    pub fn cancel_pooled(&mut self, ctx_ptr: usize) -> bool {
        let Some((completion, number)) = self.state.pool.as_ref().and_then(|(pool, _)| pool.take_out(ctx_ptr)) else {
            return false;
        };
        self.state.pooled_releases.extend(number);
        self.state.completions.push(completion);
        true
    }

    /// Whether a message waits here that such a receive accepts, or that it has claimed.
    pub fn has_message_for(&mut self, op: &RecvOp<'_>) -> bool {
        self.state.follow_book();
        let tagged = op.flags.contains(OpFlags::TAGGED);
        if op.flags.contains(OpFlags::CLAIM) && !op.flags.contains(OpFlags::PEEK) {
            return self.state.matcher(tagged).has_claim(op.ctx.ptr);
        }
        self.state.find_unexpected(tagged, recv::wanted(op)).is_some()
    }
}

impl State {
    /// A message has been received into a multi-receive; whether the buffer is the client's, as far as that
    /// is known now.
    pub(crate) fn end_delivery(&mut self, number: u32) -> OpFlags {
        if let Some(pooled) = number.checked_sub(POOLED) {
            planted!(Bug::PoolReleasedEarly, return self.release_pooled(pooled));
            self.pooled_releases.push_back(pooled);
            return OpFlags::POOLED;
        }
        if recv::leave_multi_recv(&mut self.multi_recvs, number) { OpFlags::MULTI } else { OpFlags::empty() }
    }

    /// Only the planted bug `PoolReleasedEarly` does this.
    fn release_pooled(&self, pooled: u32) -> OpFlags {
        let last =
            self.pool.as_ref().is_some_and(|(pool, _)| recv::leave_multi_recv(&mut pool.state().multi_recvs, pooled));
        if last { OpFlags::MULTI } else { OpFlags::empty() }
    }

    /// The memory for a message of `len` bytes from the pool. None: it must wait.
    #[cold]
    pub(crate) fn draw(
        &mut self,
        tagged: bool,
        src: Addr,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> Option<(IovList, RecvInfo)> {
        let (pool, user) = self.pool.as_ref()?;
        let (pool, user) = (Arc::clone(pool), *user);
        loop {
            let wanted = pool.find(tagged, src, tag)?;
            if planted!(Bug::PoolOvertaken, self.find_unexpected(tagged, wanted).is_some(), false) {
                // Who posted that receive has not been here yet: what waits is older than what comes.
                self.feed(tagged, wanted);
            } else if let Some((iov, mut info)) = pool.take(wanted, tagged, src, tag, data, len) {
                info.ctx.user |= user;
                return Some((iov, info));
            }
            // Or else another engine has taken that receive meanwhile, and for the next one something else may wait.
        }
    }

    /// The message that waits as `key` has come to be accepted by receives of the pool.
    pub(crate) fn draw_for_waiting(&mut self, tagged: bool, key: u32) {
        while self.matcher(tagged).unexpected.get(key).is_some() && self.feed_one(tagged, key) {}
    }

    /// Messages that wait here and are `wanted` take receives from the pool.
    fn feed(&mut self, tagged: bool, wanted: Wanted) {
        while let Some(key) = self.find_unexpected(tagged, wanted)
            && self.feed_one(tagged, key)
        {}
    }

    /// The message that waits as `key`, or one whose turn is before, takes a receive of the pool. False:
    /// there is none for it.
    ///
    /// The oldest receive that accepts the message may be for an older one, and for that one in turn there
    /// may be an older receive. Other engines take receives meanwhile: nothing is taken but the receive that
    /// was found, for the message that was found.
    fn feed_one(&mut self, tagged: bool, mut key: u32) -> bool {
        let Some((pool, user)) = self.pool.as_ref() else { return false };
        let (pool, user) = (Arc::clone(pool), *user);
        loop {
            let Some(message) = self.matcher(tagged).unexpected.get(key) else { return false };
            let (peer_id, tag, data, len) = (message.peer, message.tag, message.data, message.len());
            let src = self.peers[peer_id].addr;
            let Some(wanted) = pool.find(tagged, src, tag) else { return false };
            match self.find_unexpected(tagged, wanted) {
                None => return false,
                Some(older) if older != key => key = older,
                Some(_) => {
                    let Some((iov, mut info)) = pool.take(wanted, tagged, src, tag, data, len) else { continue };
                    info.ctx.user |= user;
                    let Some(message) = self.matcher(tagged).unexpected.remove(key) else { return false };
                    self.deliver_unexpected(message, iov, info);
                    return true;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::api::Context;

    /// Between the look for what waits and the taking, another engine takes the receive, and one is posted
    /// for which something may wait.
    #[test]
    fn no_receive_is_taken_but_the_one_that_was_found() {
        let pool = Pool::new(Matching::default(), 8, 64);
        let post = |ptr, tag, ignore| {
            let (ctx, flags) = (Context { ptr, user: 0 }, OpFlags::TAGGED);
            pool.post(&RecvOp { src: ADDR_NONE, iov: &[], tag, ignore, ctx, flags }).unwrap();
        };
        let find = || pool.find(true, 0, 2).unwrap();
        let take = |found| pool.take(found, true, 0, 2, None, 0).map(|(_, info)| info.ctx.ptr);
        post(1, 2, 0);
        let found = find();
        post(2, 0, u64::MAX);
        assert_eq!(take(find()), Some(1), "by another engine");
        assert_eq!(take(found), None);
        assert_eq!(take(find()), Some(2));
    }
}
