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

use crate::api::{ADDR_NONE, Addr, Completion, CompletionFlags, Error, Fault, Matching, RecvFlags, RecvOp};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::receives::{self, BufferId, Receiver, Receives, RecvInfo};
use crate::matching::{Space, Wanted};
use crate::mem::IovList;
use crate::nic::Nic;

/// A queue of receives without an endpoint.
pub struct Pool(Mutex<PoolState>);

struct PoolState {
    /// Only the receives are used: messages wait in the engines.
    receives: Receives,
    depth: usize,
    /// Messages that matched no receive of the pool may wait in engines.
    awaited: bool,
}

impl Pool {
    /// An empty queue for `depth` receives of either kind. A multi-receive is released when fewer than
    /// `min_multi_recv` bytes are left in it.
    #[must_use]
    pub fn new(matching: Matching, depth: usize, min_multi_recv: usize) -> Self {
        Self(Mutex::new(PoolState { receives: Receives::new(matching, min_multi_recv), depth, awaited: false }))
    }

    fn state(&self) -> MutexGuard<'_, PoolState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets the number of remaining bytes below which a multi-receive is released. It applies to every
    /// multi-receive of the pool.
    pub fn set_min_multi_recv(&self, bytes: usize) {
        self.state().receives.set_min_multi_recv(bytes);
    }

    /// Number of receives of either kind that can still be posted.
    pub fn free(&self) -> usize {
        let state = self.state();
        state.depth.saturating_sub(state.receives.most_posted())
    }

    /// Posts a receive, single or multi. Returns true if every engine must be fed. If messages remain in an
    /// engine after that, call [`Pool::await_more`].
    ///
    /// Errors: `Again` if the queue is full.
    pub fn post(&self, op: &RecvOp<'_>) -> Result<bool, Error> {
        let space = receives::space_of(op.flags);
        let mut state = self.state();
        if state.receives.matcher_mut(space).posted().len() >= state.depth {
            return Err(Error::Again);
        }
        state.receives.post(op);
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
            self.state().receives.leave(number);
        }
        canceled.is_some()
    }

    /// Removes the oldest receive with this context pointer. Returns its completion, and the number of a
    /// multi-receive, which must be left when the completion is delivered.
    fn take_out(&self, ctx_ptr: usize) -> Option<(Completion, Option<u32>)> {
        let mut state = self.state();
        let (space, key) = Space::OF_CLIENT
            .into_iter()
            .find_map(|space| Some((space, state.receives.matcher_mut(space).find_posted(ctx_ptr)?)))?;
        let matcher = state.receives.matcher_mut(space);
        let posted = planted!(Bug::PoolCancelLeaves, matcher.take_posted(key), matcher.posted().get(key).copied())?;
        let info = state.receives.retire(space, &posted);
        let mut completion = info.completion(ADDR_NONE, Some(Fault::Canceled));
        let Receiver::Multi(BufferId::Own(number) | BufferId::Pooled(number)) = info.receiver() else {
            return Some((completion, None));
        };
        completion.flags |= CompletionFlags::POOLED;
        Some((completion, Some(number)))
    }

    /// Returns the criteria of the oldest receive that matches such a message. None: the message must wait, and
    /// the next post reports that messages wait.
    pub(crate) fn find(&self, space: Space, src: Addr, tag: u64) -> Option<Wanted> {
        let mut state = self.state();
        let matcher = state.receives.matcher_mut(space);
        let found = matcher.arrived(src, tag).and_then(|key| Some(matcher.posted().get(key)?.wants()));
        state.awaited |= planted!(Bug::PoolOverlooked, found.is_none(), false);
        found
    }

    /// Takes memory for such a message from the oldest matching receive, if its criteria are `found`.
    pub(crate) fn take(
        &self,
        found: Wanted,
        space: Space,
        src: Addr,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> Option<(IovList, RecvInfo)> {
        let state = &mut *self.state();
        let key = state.receives.matcher_mut(space).arrived(src, tag)?;
        if state.receives.matcher_mut(space).posted().get(key).is_none_or(|posted| posted.wants() != found) {
            return None;
        }
        let left = planted!(Bug::PoolTakenTwice, None, state.receives.matcher_mut(space).posted().get(key).copied());
        let (iov, info) = state.receives.take(space, key, tag, data, len);
        let again = left.filter(|posted| posted.multi.is_none());
        planted!(Bug::PoolTakenTwice, again.map(|posted| state.receives.matcher_mut(space).post(posted)));
        Some((iov, info))
    }
}

/// Deliveries into multi-receives of the pool, in the order of their completions (`CompletionFlags::POOLED`).
pub struct PooledReleases<'a> {
    pool: Option<&'a (Arc<Pool>, u64)>,
    numbers: &'a mut VecDeque<u32>,
}

impl<'a> PooledReleases<'a> {
    #[inline(always)]
    pub(crate) const fn new(pool: Option<&'a (Arc<Pool>, u64)>, numbers: &'a mut VecDeque<u32>) -> Self {
        Self { pool, numbers }
    }

    /// Whether no completion is pooled.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.numbers.is_empty()
    }

    /// Sets or clears RELEASED of the next pooled completion. The client must be able to see the completion before
    /// the returned guard is dropped.
    #[cold]
    pub fn next(&mut self, flags: &mut CompletionFlags) -> Option<ReleaseGuard<'a>> {
        let (mut state, number) = (self.pool?.0.state(), self.numbers.pop_front()?);
        flags.set(CompletionFlags::RELEASED, state.receives.leave(number));
        Some(ReleaseGuard(state))
    }
}

/// While this guard exists, no other delivery leaves a multi-receive of the pool.
pub struct ReleaseGuard<'a>(#[allow(dead_code, reason = "held")] MutexGuard<'a, PoolState>);

impl<N: Nic> Engine<N> {
    /// Lets messages take receives from this pool from now on. `user` is added to the `user` of their contexts.
    pub fn bind_pool(&mut self, pool: Arc<Pool>, user: u64) {
        self.state.incoming.bind_pool(pool, user);
    }

    /// Stops messages from taking receives of the pool. Transfers into receives already taken continue.
    pub fn leave_pool(&mut self) {
        self.state.incoming.leave_pool();
    }

    /// Gives a receive that was posted to the pool to messages that wait here. Returns whether any message has
    /// been received, including messages of a peer whose address became known meanwhile.
    pub fn feed(&mut self, op: &RecvOp<'_>) -> bool {
        let waiting = self.unexpected_messages();
        self.state.follow_book();
        self.state.feed(receives::space_of(op.flags), receives::wanted(op));
        // An answer to a rendezvous, or an acknowledgement, may have become due.
        if self.state.peers.has_active() {
            self.run_active();
        }
        self.unexpected_messages() < waiting
    }

    /// Cancels a receive of the pool, and adds its completion here. Returns whether there was one.
    pub fn cancel_pooled(&mut self, ctx_ptr: usize) -> bool {
        let Some((completion, number)) = self.state.incoming.pool().and_then(|(pool, _)| pool.take_out(ctx_ptr)) else {
            return false;
        };
        if let Some(number) = number {
            self.state.incoming.push_release(number);
        }
        self.state.completions.push(completion);
        true
    }

    /// Whether a waiting message matches such a receive, or was reserved by its context.
    pub fn has_message_for(&mut self, op: &RecvOp<'_>) -> bool {
        self.state.follow_book();
        let space = receives::space_of(op.flags);
        if op.flags.contains(RecvFlags::CLAIM) && !op.flags.contains(RecvFlags::PEEK) {
            return self.state.incoming.matcher_mut(space).has_claim(op.ctx.ptr);
        }
        self.state.find_unexpected(space, receives::wanted(op)).is_some()
    }
}

impl State {
    /// Ends a delivery into a multi-receive. Returns RELEASED if the buffer is released, POOLED if only its
    /// delivery will tell.
    pub(crate) fn end_delivery(&mut self, buffer: BufferId) -> CompletionFlags {
        match buffer {
            BufferId::Own(number) if self.incoming.receives().leave(number) => CompletionFlags::RELEASED,
            BufferId::Own(_) => CompletionFlags::empty(),
            BufferId::Pooled(number) => {
                planted!(Bug::PoolReleasedEarly, return self.release_pooled(number));
                self.incoming.push_release(number);
                CompletionFlags::POOLED
            }
        }
    }

    /// The behaviour of the planted bug `PoolReleasedEarly`: the buffer is released before the client sees the
    /// completion.
    fn release_pooled(&self, number: u32) -> CompletionFlags {
        let last = self.incoming.pool().is_some_and(|(pool, _)| pool.state().receives.leave(number));
        if last { CompletionFlags::RELEASED } else { CompletionFlags::empty() }
    }

    /// Takes memory for a message of `len` bytes from the pool. None: the message must wait.
    #[cold]
    pub(crate) fn draw(
        &mut self,
        space: Space,
        src: Addr,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> Option<(IovList, RecvInfo)> {
        let (pool, user) = self.incoming.pool()?;
        let (pool, user) = (Arc::clone(pool), *user);
        loop {
            let wanted = pool.find(space, src, tag)?;
            if planted!(Bug::PoolOvertaken, self.find_unexpected(space, wanted).is_some(), false) {
                // The engine has not been fed with that receive yet. Waiting messages are older than the new
                // one.
                self.feed(space, wanted);
            } else if let Some((iov, info)) = pool.take(wanted, space, src, tag, data, len) {
                return Some((iov, info.pooled(user)));
            }
            // Otherwise another engine has taken the receive meanwhile, and a waiting message may match the
            // next one.
        }
    }

    /// The waiting message `key` matches receives of the pool from now on, because its source became known.
    pub(crate) fn draw_for_waiting(&mut self, space: Space, key: u32) {
        while self.incoming.matcher_mut(space).unexpected().get(key).is_some() && self.feed_one(space, key) {}
    }

    /// Gives receives of the pool to waiting messages that meet these criteria.
    fn feed(&mut self, space: Space, wanted: Wanted) {
        while let Some(key) = self.find_unexpected(space, wanted)
            && self.feed_one(space, key)
        {}
    }

    /// Gives a receive of the pool to the waiting message `key`, or to one that precedes it. Returns false if
    /// there is none.
    ///
    /// The oldest receive that matches the message may also match an older message. For that message in turn
    /// there may be an older receive. Other engines take receives meanwhile. The engine therefore takes only
    /// the receive that it found, for the message that it found.
    fn feed_one(&mut self, space: Space, mut key: u32) -> bool {
        let Some((pool, user)) = self.incoming.pool() else {
            cannot_happen!("an engine that feeds a pool has one");
            return false;
        };
        let (pool, user) = (Arc::clone(pool), *user);
        loop {
            let Some(message) = self.incoming.matcher_mut(space).unexpected().get(key) else {
                cannot_happen!("a message that was found waits");
                return false;
            };
            let (peer_id, tag, data, len) = (message.peer(), message.tag(), message.data(), message.len());
            let src = self.peers[peer_id].addr();
            let Some(wanted) = pool.find(space, src, tag) else { return false };
            match self.find_unexpected(space, wanted) {
                None => return false,
                Some(older) if older != key => key = older,
                Some(_) => {
                    let Some((iov, info)) = pool.take(wanted, space, src, tag, data, len) else { continue };
                    let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().remove(key) else {
                        cannot_happen!("a message that was found waits");
                        return false;
                    };
                    self.deliver_unexpected(message, iov, info.pooled(user));
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
            let (ctx, flags) = (Context { ptr, user: 0 }, RecvFlags::TAGGED);
            pool.post(&RecvOp { src: ADDR_NONE, iov: &[], tag, ignore, ctx, flags }).unwrap();
        };
        let find = || pool.find(Space::Tagged, 0, 2).unwrap();
        let take = |found| pool.take(found, Space::Tagged, 0, 2, None, 0).map(|(_, info)| info.context().ptr);
        post(1, 2, 0);
        let found = find();
        post(2, 0, u64::MAX);
        assert_eq!(take(find()), Some(1), "by another engine");
        assert_eq!(take(found), None);
        assert_eq!(take(find()), Some(2));
    }
}
