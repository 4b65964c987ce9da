//! The receive queue of a shared receive context, from which several engines take receives.
//!
//! Place in the data flow: `Engine::bind_pool` gives an engine a pool beside its own queue of receives. A
//! message that matches no receive of the engine takes the oldest matching one of the pool
//! (`State::receive_for`), or waits in its engine. [`Pool::post`] tells its caller whether messages may wait in
//! engines. If so, the caller has each engine check ([`Engine::feed`]).
//!
//! Invariants:
//! - An engine takes the pool's lock while the engine is in use, and holds it for one access. The layer above
//!   holds it while it delivers pooled completions, until the client can see them ([`PooledReleases`]).
//! - No message waits for long beside a receive that it matches. [`Pool::post`] makes the receive visible
//!   before the engines are fed, and an engine checks the pool before it keeps a message. One of the two
//!   therefore sees the other.
//! - An engine gives a receive to a new message only if no waiting message matches that receive. It takes
//!   exactly the receive that it found, or searches again.
//! - A post and the feeding after it are one step: callers hold a lock around both.
//! - A multi-receive stays in the pool while it has room, whichever engines fill it. A message leaves it only
//!   when the client can see the completion. Completions of several engines become visible in any order, and
//!   the last one releases the buffer.

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
    /// Only the receives of either matcher are used: messages wait in the engines.
    tagged: Matcher,
    untagged: Matcher,
    multi_recvs: Slab<MultiRecv>,
    min_multi_recv: usize,
    depth: usize,
    /// Messages that matched no receive of the pool may wait in engines.
    awaited: bool,
}

impl PoolState {
    fn matcher(&mut self, tagged: bool) -> &mut Matcher {
        if tagged { &mut self.tagged } else { &mut self.untagged }
    }
}

impl Pool {
    /// An empty queue for `depth` receives of either kind. A multi-receive is released when fewer than
    /// `min_multi_recv` bytes are left in it.
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

    /// Sets the number of remaining bytes below which a multi-receive is released. It applies to every
    /// multi-receive of the pool.
    pub fn set_min_multi_recv(&self, bytes: usize) {
        self.state().min_multi_recv = bytes;
    }

    /// Number of receives of either kind that can still be posted.
    pub fn free(&self) -> usize {
        let state = self.state();
        state.depth.saturating_sub(state.tagged.posted.len().max(state.untagged.posted.len()))
    }

    /// Posts a receive, single or multi. Returns true if every engine must be fed. If messages remain in an
    /// engine after that, call [`Pool::await_more`].
    ///
    /// Errors: `Again` if the queue is full.
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

    /// Notes that messages which matched no receive here remain in an engine.
    pub fn await_more(&self) {
        self.state().awaited = true;
    }

    /// Cancels the oldest receive with this context pointer, without a completion. It is for pools without an
    /// engine that could report one ([`Engine::cancel_pooled`]). Returns whether there was one.
    pub fn cancel(&self, ctx_ptr: usize) -> bool {
        let canceled = self.take_out(ctx_ptr);
        if let Some((_, Some(number))) = canceled {
            recv::leave_multi_recv(&mut self.state().multi_recvs, number);
        }
        canceled.is_some()
    }

    /// Removes the oldest receive with this context pointer. Returns its completion, and the number of a
    /// multi-receive, which must be left when the completion is delivered.
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

    /// Returns the criteria of the oldest receive that matches such a message. None: the message must wait, and
    /// the next post reports that messages wait.
    pub(crate) fn find(&self, tagged: bool, src: Addr, tag: u64) -> Option<Wanted> {
        let mut state = self.state();
        let matcher = state.matcher(tagged);
        let found = matcher.arrived(src, tag).and_then(|key| Some(matcher.posted.get(key)?.wants()));
        state.awaited |= planted!(Bug::PoolOverlooked, found.is_none(), false);
        found
    }

    /// Takes memory for such a message from the oldest matching receive, if its criteria are `found`.
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

/// Deliveries into multi-receives of the pool, in the order of their completions (`OpFlags::POOLED`).
pub struct PooledReleases<'a> {
    pool: Option<&'a (Arc<Pool>, u64)>,
    numbers: &'a mut VecDeque<u32>,
}

impl<'a> PooledReleases<'a> {
    pub(crate) const fn new(pool: Option<&'a (Arc<Pool>, u64)>, numbers: &'a mut VecDeque<u32>) -> Self {
        Self { pool, numbers }
    }

    /// Whether no completion is pooled.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Sets or clears MULTI of the next pooled completion. The client must be able to see the completion before
    /// the returned guard is dropped.
    #[cold]
    pub fn next(&mut self, flags: &mut OpFlags) -> Option<ReleaseGuard<'a>> {
        let (mut state, number) = (self.pool?.0.state(), self.numbers.pop_front()?);
        flags.set(OpFlags::MULTI, recv::leave_multi_recv(&mut state.multi_recvs, number));
        Some(ReleaseGuard(state))
    }
}

/// While this guard exists, no other delivery leaves a multi-receive of the pool.
pub struct ReleaseGuard<'a>(#[allow(dead_code, reason = "held")] MutexGuard<'a, PoolState>);

impl<N: Nic> Engine<N> {
    /// Lets messages take receives from this pool from now on. `user` is added to the `user` of their contexts.
    pub fn bind_pool(&mut self, pool: Arc<Pool>, user: u64) {
        self.state.pool = Some((pool, user));
        self.state.draws_from_pool = true;
    }

    /// Stops messages from taking receives of the pool. Transfers into receives already taken continue.
    pub fn leave_pool(&mut self) {
        self.state.draws_from_pool = false;
    }

    /// Gives a receive that was posted to the pool to messages that wait here. Returns whether any message has
    /// been received, including messages of a peer whose address became known meanwhile.
    pub fn feed(&mut self, op: &RecvOp<'_>) -> bool {
        let waiting = self.unexpected_messages();
        self.state.follow_book();
        self.state.feed(op.flags.contains(OpFlags::TAGGED), recv::wanted(op));
        // An answer to a rendezvous, or an acknowledgement, may have become due.
        if self.state.peers.has_active() {
            self.run_active();
        }
        self.unexpected_messages() < waiting
    }

    /// Cancels a receive of the pool, and adds its completion here. Returns whether there was one.
    pub fn cancel_pooled(&mut self, ctx_ptr: usize) -> bool {
        let Some((completion, number)) = self.state.pool.as_ref().and_then(|(pool, _)| pool.take_out(ctx_ptr)) else {
            return false;
        };
        self.state.pooled_releases.extend(number);
        self.state.completions.push(completion);
        true
    }

    /// Whether a waiting message matches such a receive, or was reserved by its context.
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
    /// Ends a delivery into a multi-receive. Returns MULTI if the buffer is released, POOLED if only its
    /// delivery will tell.
    pub(crate) fn end_delivery(&mut self, number: u32) -> OpFlags {
        if let Some(pooled) = number.checked_sub(POOLED) {
            planted!(Bug::PoolReleasedEarly, return self.release_pooled(pooled));
            self.pooled_releases.push_back(pooled);
            return OpFlags::POOLED;
        }
        if recv::leave_multi_recv(&mut self.multi_recvs, number) { OpFlags::MULTI } else { OpFlags::empty() }
    }

    /// The behaviour of the planted bug `PoolReleasedEarly`: the buffer is released before the client sees the
    /// completion.
    fn release_pooled(&self, pooled: u32) -> OpFlags {
        let last =
            self.pool.as_ref().is_some_and(|(pool, _)| recv::leave_multi_recv(&mut pool.state().multi_recvs, pooled));
        if last { OpFlags::MULTI } else { OpFlags::empty() }
    }

    /// Takes memory for a message of `len` bytes from the pool. None: the message must wait.
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
                // The engine has not been fed with that receive yet. Waiting messages are older than the new
                // one.
                self.feed(tagged, wanted);
            } else if let Some((iov, mut info)) = pool.take(wanted, tagged, src, tag, data, len) {
                info.ctx.user |= user;
                return Some((iov, info));
            }
            // Otherwise another engine has taken the receive meanwhile, and a waiting message may match the
            // next one.
        }
    }

    /// The waiting message `key` matches receives of the pool from now on, because its source became known.
    pub(crate) fn draw_for_waiting(&mut self, tagged: bool, key: u32) {
        while self.matcher(tagged).unexpected.get(key).is_some() && self.feed_one(tagged, key) {}
    }

    /// Gives receives of the pool to waiting messages that meet these criteria.
    fn feed(&mut self, tagged: bool, wanted: Wanted) {
        while let Some(key) = self.find_unexpected(tagged, wanted)
            && self.feed_one(tagged, key)
        {}
    }

    /// Gives a receive of the pool to the waiting message `key`, or to one that precedes it. Returns false if
    /// there is none.
    ///
    /// The oldest receive that matches the message may also match an older message. For that message in turn
    /// there may be an older receive. Other engines take receives meanwhile. The engine therefore takes only
    /// the receive that it found, for the message that it found.
    fn feed_one(&mut self, tagged: bool, mut key: u32) -> bool {
        let Some((pool, user)) = self.pool.as_ref() else { return false };
        let (pool, user) = (Arc::clone(pool), *user);
        loop {
            let Some(message) = self.matcher(tagged).unexpected.get(key) else { return false };
            let (peer_id, tag, data, len) = (message.peer, message.tag, message.data, message.len());
            let src = self.peers[peer_id].addr();
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

    /// Between the search and the removal another engine takes the receive. A receive is posted then that a
    /// waiting message may match.
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
