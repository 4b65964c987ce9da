//! The part of an endpoint that outlives its handle: the engine, its lock, and what is bound to it.
//!
//! Place in the data flow: operations enter through [`EndpointCell::submit_tx`] and
//! [`EndpointCell::submit_recv`], queues and counters that are read drive [`EndpointCell::progress`], memory
//! regions and address vectors reach every endpoint of their domain through the control calls at the end.
//! Queues, counters and the progress thread hold an `EndpointCell` by `Arc`; the client holds handles
//! ([`crate::endpoint::Ep`]), of which aliases share one cell.
//!
//! Invariants: one engine, one lock. Whoever called into the engine delivers its completions before leaving,
//! except control calls: they leave them to the next round of progress, so that a queue's ring is only
//! entered by those whom the threading level covers, and by the progress thread ([`Visit`]), which the rings
//! know. Whoever delivers runs, once it has left, the programs that were set free by it ([`crate::trigger`]),
//! or leaves that to the next round by [`State::attend`]. The same goes for programs that are
//! [`State::stalled`]: any call into the engine in which it may make progress may have made the room that
//! they wait for, and no later round need find anything.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use weft_engine::Engine;
use weft_engine::api::{Access, Addr, Book, Error, OpFlags, RecvOp, Region, SendOp};
use weft_engine::name::EpName;

use crate::Devices;
use crate::domain::Domain;
use crate::endpoint::route::{Bound, RegionCounters, Routes};
use crate::endpoint::shared::Receives;
use crate::errno::Errno;
use crate::observe::publish::{Around, BEFORE_SLEEP, INTERVAL, Publisher, ROUNDS_PER_LOOK};
use crate::sleep::lock::{Callers, Guard, Guarded};
use crate::sleep::progress::AutoProgress;
use crate::sleep::wait::Waker;
use crate::trigger::WorkQueue;
use crate::trigger::op::Op;

/// The engine over the real devices.
pub(crate) type Eng = Engine<Devices>;

const _: () = assert!(ROUNDS_PER_LOOK.is_multiple_of(ROUNDS_PER_CPU));

/// Rounds after which a caller that wants the endpoint idle gives up for this time.
const SETTLE_ROUNDS: u32 = 64;

/// Rounds of the client after which it takes over from a progress thread that has been of no use meanwhile: more than a
/// blocking call makes before it sleeps.
pub(crate) const UNAIDED_ROUNDS: u32 = 256;

/// So many rounds of the client lie between two looks at what changes slowly. [`ROUNDS_PER_LOOK`] is a multiple.
const ROUNDS_PER_CPU: u64 = 64;

/// An endpoint as queues, counters and regions see it.
pub(crate) struct EndpointCell {
    state: Guarded<State>,
    /// What the data path looks at first.
    pub(crate) bound: Bound,
    /// Rounds of progress that application threads have made, for others to see whether somebody is at work.
    polls: AtomicU64,
    /// The processor on which they were made lately.
    cpu: AtomicU32,
    /// Application threads that sleep on this endpoint and will progress it when they wake.
    sleepers: AtomicU32,
    /// The progress thread, if there is one.
    auto: Option<Arc<AutoProgress>>,
    /// The client has taken over, and the progress thread has not seen it yet.
    dismissed: AtomicBool,
    /// What waits in the domain for counters.
    work: Arc<WorkQueue>,
    /// Whether operations of this endpoint may be among it (FI_TRIGGER).
    triggers: bool,
    /// What peers may do here at all, whatever a region permits (FI_REMOTE_READ, FI_REMOTE_WRITE).
    open_to: Access,
    /// In the place of an engine: the receives of a shared context.
    shared: Option<Receives>,
    /// What peers had to know besides the name (fi_endpoint(3), "auth_key").
    pub(crate) auth_key: Option<Vec<u8>>,
}

/// Where a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In one of our blocking calls, in slices.
    Inside,
    /// In a system call of its own, after `fi_trywait`.
    Outside,
}

/// What the lock guards.
pub(crate) struct State {
    /// `None` before enable and after close. Boxed, so that it is not moved on the stacks of clients.
    pub(crate) engine: Option<Box<Eng>>,
    /// What is bound.
    pub(crate) routes: Routes,
    /// How many threads sleep in our calls with these devices parked.
    sleeping: u32,
    /// How many wait objects of clients rely on the devices being parked (`fi_trywait`): those sleep where we cannot
    /// see them, for as long as they like.
    external: u32,
    /// The progress thread listens to these devices, which are parked until it or the client ends that.
    auto_listens: bool,
    /// It sleeps, and was not called yet.
    auto_asleep: bool,
    /// Any of these sleeps.
    relied_on: bool,
    /// Rounds that the client has made since the progress thread was of use.
    unaided: u32,
    /// Programs were set free in here, or may go on: whoever finds this set runs them, once out of the engine.
    pub(crate) attend: bool,
    /// Programs wait for room in this engine.
    pub(crate) stalled: bool,
    /// Lets others see what happens here.
    pub(super) publisher: Option<Box<Publisher>>,
    /// It may be time to publish.
    look_due: bool,
}

impl EndpointCell {
    /// A cell without an engine.
    ///
    /// # Safety
    /// With [`Callers::One`], every call below that is not named a control call or a visit comes from threads that the
    /// client serializes, as [`Guarded::new`] demands.
    pub(crate) unsafe fn new(
        domain: &Domain,
        callers: Callers,
        triggers: bool,
        open_to: Access,
        routes: Routes,
        shared: Option<Receives>,
    ) -> Self {
        let state = State {
            engine: None,
            routes,
            sleeping: 0,
            external: 0,
            auto_listens: false,
            auto_asleep: false,
            relied_on: false,
            unaided: 0,
            attend: false,
            stalled: false,
            publisher: None,
            look_due: false,
        };
        Self {
            // SAFETY: the caller's promise.
            state: unsafe { Guarded::new(callers, domain.meter(), state) },
            bound: Bound::default(),
            polls: AtomicU64::new(0),
            cpu: AtomicU32::new(u32::MAX),
            sleepers: AtomicU32::new(0),
            auto: domain.auto_progress().cloned(),
            dismissed: AtomicBool::new(false),
            work: Arc::clone(domain.work()),
            triggers,
            open_to,
            shared,
            auth_key: None,
        }
    }

    /// Starts a transmit operation; returns what the C function returns.
    #[inline]
    pub(crate) fn submit_tx(&self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(_), routes, .. } = &*state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        let (result, fired) = state.submit(start);
        self.leave(state, fired);
        result
    }

    /// Starts a send; returns what the C function returns.
    ///
    /// This and [`EndpointCell::submit_recv`] are in line, and what does not go at once is handed on by value: so an
    /// operation that does is never put together in memory.
    #[inline(always)]
    pub(crate) fn submit_send(self: &Arc<Self>, op: SendOp<'_>) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, .. } = &mut *state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        if !engine.send_now(&op) {
            return self.send_later(state, op);
        }
        let fired = routes.sent(&op);
        // It may have been gathered with others, for the next round of progress.
        self.leave(state, fired);
        0
    }

    #[cold]
    #[inline(never)]
    fn send_later(self: &Arc<Self>, mut state: Guard<'_, State>, op: SendOp<'_>) -> isize {
        if op.flags.contains(OpFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::send(&op));
        }
        let (result, fired) = state.submit(|engine| engine.send_later(&op));
        self.leave(state, fired);
        result
    }

    /// Posts a receive; returns what the C function returns.
    #[inline(always)]
    pub(crate) fn submit_recv(self: &Arc<Self>, op: RecvOp<'_>) -> isize {
        // Looked up before the lock, so that it need not come from memory.
        let piece = if let [one] = op.iov { Some(*one) } else { None };
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, .. } = &mut *state else { return self.post_shared(op) };
        match &routes.rx {
            Some(cq) if !cq.is_full() => {}
            // It takes what waits for a buffer anyhow, and clients that post the next one while they read may
            // take no refusal (GASNet).
            Some(cq) if op.flags.contains(OpFlags::MULTI) && !cq.is_flooded() => {}
            Some(_) => return Errno::AGAIN.size(),
            // It could not complete anywhere (fi_endpoint(3): -FI_ENOCQ).
            None => return Errno::NOCQ.size(),
        }
        match piece {
            Some(piece) if engine.post_now(&op, piece) => 0,
            _ => self.post_later(state, op),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_later(self: &Arc<Self>, mut state: Guard<'_, State>, op: RecvOp<'_>) -> isize {
        if op.flags.contains(OpFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::recv(&op));
        }
        let (result, fired) = state.submit(|engine| engine.recv(&op));
        // A peek is a round of progress, and there are clients that make no other.
        let fired = fired || state.attend || state.stalled;
        self.leave(state, fired);
        result
    }

    /// Ends a call that has started something. `fired`: programs can go on.
    #[inline(always)]
    fn leave(&self, state: impl DerefMut<Target = State>, fired: bool) {
        if state.relied_on {
            self.leave_sleeper(state, fired);
        } else if fired {
            self.attend(state);
        }
    }

    /// The same where another thread sleeps on the endpoint.
    #[cold]
    #[inline(never)]
    fn leave_sleeper(&self, mut state: impl DerefMut<Target = State>, fired: bool) {
        if self.call_listener(&mut state) || fired {
            self.attend(state);
        }
    }

    /// Cancels a receive, or an operation that waits for its trigger.
    pub(crate) fn cancel(&self, context: usize) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, attend, stalled, .. } = &mut *state else {
            return self.cancel_shared(context);
        };
        if engine.cancel(context) {
            *attend |= routes.deliver(engine) || *stalled;
        } else {
            drop(state);
            let waiting = self.work.cancel_operation(self, context);
            state = self.state.lock();
            let State { engine: Some(engine), routes, attend, stalled, .. } = &mut *state else {
                return Errno::NOENT.size();
            };
            match waiting {
                Some(waiting) => engine.completions().push(waiting),
                // It may be a receive that was being started.
                None if self.triggers && engine.cancel(context) => {}
                None => return Errno::NOENT.size(),
            }
            *attend |= routes.deliver(engine) || *stalled;
        }
        if state.attend {
            self.attend(state);
        }
        0
    }

    /// What waits in the domain.
    pub(super) fn work(&self) -> &WorkQueue {
        &self.work
    }

    /// The receives of a shared context, which has no engine.
    pub(super) fn shared(&self) -> Option<&Receives> {
        self.shared.as_ref()
    }

    /// Whether operations may wait for triggers.
    pub(crate) fn triggers(&self) -> bool {
        self.triggers
    }

    /// Lets others see what has happened, where that is due. Runs the domain's programs, once out of the
    /// engine, and lets those try again that waited for room in it.
    #[cold]
    pub(crate) fn attend(&self, mut state: impl DerefMut<Target = State>) {
        state.attend = false;
        state.stalled = false;
        if std::mem::take(&mut state.look_due) {
            self.publish(&mut state, INTERVAL);
        }
        drop(state);
        self.work.retry(self);
        self.work.run();
    }

    /// One round of progress by an application thread. Returns 0 when nothing happened.
    #[inline(always)]
    pub(crate) fn progress(&self) -> usize {
        let mut state = self.state.lock();
        // Written under the lock only.
        let polls = self.polls.load(Ordering::Relaxed).wrapping_add(1);
        self.polls.store(polls, Ordering::Relaxed);
        if polls.is_multiple_of(ROUNDS_PER_CPU) {
            // Only the progress thread asks.
            if self.auto.is_some() {
                self.cpu.store(this_cpu(), Ordering::Relaxed);
            }
            state.look_due = polls.is_multiple_of(ROUNDS_PER_LOOK);
            state.attend |= state.look_due;
        }
        let done = state.round();
        if state.auto_listens || state.external > 0 {
            self.beside_listeners(&mut state);
        }
        if state.attend {
            self.attend(state);
        }
        done
    }

    /// Lets others see what has happened, if that was not done within the interval.
    pub(crate) fn publish(&self, state: &mut State, interval: Duration) {
        let State { engine: Some(engine), routes, publisher: Some(publisher), .. } = state else { return };
        publisher.look(engine, interval, || Around {
            rounds: self.polls.load(Ordering::Relaxed),
            sleepers: self.sleepers.load(Ordering::Relaxed).into(),
            lock_waits: self.state.waits(),
            failures: routes.failures.get(),
            again: routes.again.get(),
        });
    }

    /// The client has made a round although others rely on the devices' parking.
    #[cold]
    fn beside_listeners(&self, state: &mut State) {
        state.unaided = state.unaided.saturating_add(1);
        if state.auto_listens && state.unaided > UNAIDED_ROUNDS && state.sleeping == 0 {
            // From now on the thread looks after us in ticks.
            state.auto_awake();
            self.dismissed.store(true, Ordering::Relaxed);
            self.auto.as_ref().inspect(|auto| auto.wake());
        }
        if state.external > 0 {
            state.park_again();
        } else if state.auto_asleep {
            let _ = self.call_if_deaf(state);
        }
    }

    /// The client leaves an endpoint on which another thread sleeps, having started something: sees to it
    /// that this goes on, if the devices will not wake that thread by themselves for what there is to do.
    /// True: programs can go on.
    #[inline(always)]
    pub(super) fn call_listener(&self, state: &mut State) -> bool {
        state.relied_on && self.call_if_deaf(state)
    }

    #[cold]
    fn call_if_deaf(&self, state: &mut State) -> bool {
        let Some(engine) = &state.engine else { return false };
        if state.auto_asleep {
            if engine.has_work() || !engine.nic().listens() {
                self.call_auto(state);
            }
        } else if state.external == 0 {
            // A thread in one of our calls looks for itself now and then; what only waits for the peer has
            // time until then.
            if !engine.nic().idles() {
                state.routes.ring();
            }
        } else if engine.has_work() || !engine.nic().idles() {
            state.park_again();
            return state.attend;
        }
        false
    }

    /// Calls the progress thread, if it sleeps.
    pub(super) fn call_auto(&self, state: &mut State) {
        if std::mem::take(&mut state.auto_asleep) {
            state.note_sleepers();
            self.auto.as_ref().inspect(|auto| auto.wake());
        }
    }

    /// After a control call: whoever sleeps looks for itself, since there may be completions that were not
    /// delivered, room for what is stalled, and the devices' parking may have ended.
    pub(super) fn call_sleepers(&self, state: &mut State) {
        state.attend |= state.stalled;
        if state.external > 0 || state.sleeping > 0 {
            state.routes.ring();
        }
        self.call_auto(state);
    }

    /// For the progress thread: whether the client has taken over.
    pub(crate) fn take_dismissal(&self) -> bool {
        self.dismissed.load(Ordering::Relaxed) && self.dismissed.swap(false, Ordering::Relaxed)
    }

    /// Prepares for sleep by an application thread: nothing left to do, and the devices will wake whoever
    /// watches them. False: there was something to do, look again. Balanced by [`EndpointCell::unpark`].
    pub(crate) fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let parked = state.park(waker, sleep);
        if parked {
            self.publish(&mut state, BEFORE_SLEEP);
        } else if state.external > 0 {
            state.park_again();
        } else if state.auto_asleep {
            // The look may have taken off what was to wake it.
            let _ = self.call_if_deaf(&mut state);
        }
        drop(state);
        if !parked {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        parked
    }

    /// Ends what a successful [`EndpointCell::park`] began.
    pub(crate) fn unpark(&self, sleep: Sleep) {
        self.state.lock().unpark(sleep);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// Whether the application's rounds were made on another processor than the caller's, as far as that is known.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let cpu = self.cpu.load(Ordering::Relaxed);
        cpu != u32::MAX && cpu != this_cpu()
    }

    /// How often a call had to wait at a lock of the domain.
    pub(crate) fn waits(&self) -> u64 {
        self.state.waits()
    }

    /// What application threads are doing here: rounds of progress so far, and whether one sleeps on it.
    pub(crate) fn activity(&self) -> (u64, bool) {
        (self.polls.load(Ordering::Relaxed), self.sleepers.load(Ordering::Relaxed) > 0)
    }

    /// The state for the progress thread, unless an application thread is inside. Until [`EndpointCell::end_visits`]
    /// application threads take the lock for real.
    pub(crate) fn try_visit(&self) -> Option<Visit<'_>> {
        self.state.try_visit().map(Visit::new)
    }

    /// The progress thread will not come for a while. It stops listening, and locks become cheap again.
    pub(crate) fn end_visits(&self, waker: &Waker) {
        let mut visit = Visit::new(self.state.visit());
        visit.auto_awake();
        if let Some(fd) = visit.wait_fd() {
            waker.unwatch(fd);
        }
        for cq in [&visit.routes.tx, &visit.routes.rx].into_iter().flatten() {
            cq.end_visits();
        }
        drop(visit);
        self.state.end_visits();
    }

    /// The client is about to sleep where we cannot see it: whether the progress thread takes over.
    pub(crate) fn is_relieved(&self) -> bool {
        self.auto.as_ref().inspect(|auto| auto.take_over()).is_some()
    }

    /// The state for a call that the client serializes with data-path calls: bind, enable, options.
    pub(crate) fn state(&self) -> Guard<'_, State> {
        self.state.lock()
    }

    /// The state for a control call, which may come from any thread at any time.
    pub(crate) fn control(&self) -> Guard<'_, State> {
        self.state.intrude()
    }

    /// The endpoint's name, once enabled. A control call.
    pub(crate) fn name(&self) -> Option<EpName> {
        self.state.intrude().engine.as_deref().map(Engine::name)
    }

    /// The address vector has gained addresses. A control call.
    pub(crate) fn addresses_added(&self, fresh: &[(Addr, EpName)]) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            fresh.iter().for_each(|(addr, name)| engine.address_added(*addr, name));
            self.call_sleepers(&mut state);
        }
    }

    /// The address vector has lost an address. A control call.
    pub(crate) fn address_removed(&self, addr: Addr) {
        let mut state = self.state.intrude();
        if let Some(engine) = &mut state.engine {
            engine.address_removed(addr);
            self.call_sleepers(&mut state);
        }
    }

    /// The domain has a new region, whose `user` word must be its key. A control call.
    pub(crate) fn add_region(&self, mut region: Region) -> Result<(), Error> {
        debug_assert_eq!(region.user, region.key);
        region.access.read &= self.open_to.read;
        region.access.write &= self.open_to.write;
        match &mut self.state.intrude().engine {
            Some(engine) => engine.add_region(region),
            None => Ok(()),
        }
    }

    /// The region's counters have changed. Reading them drives this endpoint from now on. A control call.
    pub(crate) fn set_region_counters(self: &Arc<Self>, key: u64, counters: RegionCounters) {
        for cntr in [&counters.write, &counters.read].into_iter().flatten() {
            cntr.sources().add(self);
            cntr.ring();
        }
        self.state.intrude().routes.set_region_counters(key, counters);
    }

    /// The domain has lost a region: on return nothing touches its memory any more. A control call.
    pub(crate) fn remove_region(&self, key: u64) {
        let mut state = self.state.intrude();
        state.routes.regions.remove(&key);
        let State { engine: Some(engine), .. } = &mut *state else { return };
        engine.remove_region(key);
        self.call_sleepers(&mut state);
    }
}

/// The state while the progress thread is at work on it.
pub(crate) struct Visit<'a>(Guard<'a, State>);

impl<'a> Visit<'a> {
    fn new(mut state: Guard<'a, State>) -> Self {
        state.routes.visited = true;
        Self(state)
    }
}

impl Deref for Visit<'_> {
    type Target = State;
    fn deref(&self) -> &State {
        &self.0
    }
}

impl DerefMut for Visit<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.0
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.routes.visited = false;
    }
}

impl State {
    /// One round of progress, with delivery.
    #[inline(always)]
    pub(crate) fn round(&mut self) -> usize {
        let Self { engine: Some(engine), routes, attend, stalled, .. } = self else { return 0 };
        if routes.flooded() {
            return 0;
        }
        let done = engine.progress();
        if routes.deliver(engine) || (*stalled && done > 0) {
            *attend = true;
        }
        done
    }

    /// Progresses until nothing happens, within a bound; whether that was reached without anything happening at all.
    pub(crate) fn settle(&mut self) -> bool {
        let mut rounds = 0;
        while rounds < SETTLE_ROUNDS && self.round() > 0 {
            rounds += 1;
        }
        rounds == 0
    }

    /// Starts an operation; a full queue is given one round of progress to drain. Returns what the C function
    /// returns, and whether programs can go on.
    #[inline]
    fn submit(&mut self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> (isize, bool) {
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        if result == Err(Error::Again) {
            return self.submit_again(start);
        }
        let fired = routes.deliver(engine);
        (returned(routes, result), fired)
    }

    #[cold]
    fn submit_again(&mut self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> (isize, bool) {
        let room = self.make_room();
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        let fired = routes.deliver(engine);
        (returned(routes, result), room || fired)
    }

    /// A round of progress, in which there may become room. True: programs can go on, among them those that
    /// are stalled for want of it.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let Self { engine: Some(engine), routes, stalled, .. } = self else { return false };
        let moved = engine.progress() > 0;
        let mut fired = routes.deliver(engine) || (moved && *stalled);
        if self.external > 0 {
            self.park_again();
            fired |= self.attend;
        }
        fired
    }

    /// Somebody has made a round although threads of the client rely on the devices' parking, and may now go away.
    #[cold]
    fn park_again(&mut self) {
        if !(self.settle() && self.park_devices()) {
            // Too much is going on to park: let the sleepers come and look.
            self.routes.ring();
        }
    }

    /// See [`EndpointCell::park`].
    fn park(&mut self, waker: &Waker, sleep: Sleep) -> bool {
        // Nothing will come to the devices on account of what is to be attended to.
        if !(self.listen(waker) && !self.attend && self.park_devices()) {
            return false;
        }
        match sleep {
            Sleep::Inside => self.sleeping += 1,
            Sleep::Outside => self.external += 1,
        }
        self.relied_on = true;
        true
    }

    /// After somebody has woken up.
    fn note_sleepers(&mut self) {
        self.relied_on = self.auto_asleep || self.sleeping > 0 || self.external > 0;
    }

    fn unpark(&mut self, sleep: Sleep) {
        let count = match sleep {
            Sleep::Inside => &mut self.sleeping,
            Sleep::Outside => &mut self.external,
        };
        debug_assert!(*count > 0);
        *count = count.saturating_sub(1);
        self.note_sleepers();
        // Devices that somebody else still sleeps on stay parked until the next poll.
        if self.sleeping == 0 && self.external == 0 && !self.auto_listens {
            self.wake_devices();
        }
    }

    /// Brings the endpoint to rest, with its devices listened to by `waker` once they are parked. False:
    /// something is going on.
    fn listen(&mut self, waker: &Waker) -> bool {
        if !self.settle() {
            return false;
        }
        // Without a descriptor the sleeper would hear nothing.
        self.wait_fd().is_none_or(|fd| waker.watch(fd).is_ok())
    }

    fn park_devices(&mut self) -> bool {
        self.engine.as_mut().is_none_or(|engine| engine.nic_mut().park())
    }

    fn wake_devices(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.nic_mut().unpark();
        }
    }

    /// Whether a thread of the client sleeps in our calls, relying on the devices' parking, which a poll would end.
    pub(crate) fn is_slept_on(&self) -> bool {
        self.sleeping > 0
    }

    /// For the progress thread: goes to sleep on these devices, if there is nothing to do.
    pub(crate) fn auto_listen(&mut self, waker: &Waker) -> bool {
        if !(self.listen(waker) && self.engine.as_mut().is_none_or(|engine| engine.nic_mut().hold())) {
            return false;
        }
        (self.auto_asleep, self.relied_on) = (true, true);
        if !std::mem::replace(&mut self.auto_listens, true) {
            self.unaided = 0;
        }
        true
    }

    /// For the progress thread: it is awake; if it slept, the devices know why it does not any more.
    pub(crate) fn auto_rouse(&mut self) {
        if std::mem::take(&mut self.auto_asleep) {
            self.note_sleepers();
            if let Some(engine) = &mut self.engine {
                engine.nic_mut().rouse();
            }
        }
    }

    /// For the progress thread: has been of use.
    pub(crate) fn aided(&mut self) {
        self.unaided = 0;
    }

    /// The progress thread listens no more.
    pub(crate) fn auto_awake(&mut self) {
        self.auto_asleep = false;
        self.note_sleepers();
        if std::mem::take(&mut self.auto_listens) && self.sleeping == 0 && self.external == 0 {
            self.wake_devices();
        }
    }

    /// What to poll while the devices sleep.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref().map(|engine| engine.nic().wait_fd())
    }

    /// Installs the engine that enable has made.
    pub(crate) fn install(&mut self, mut engine: Box<Eng>, book: Book, publisher: Option<Box<Publisher>>) {
        engine.bind_book(book);
        self.engine = Some(engine);
        self.publisher = publisher;
    }
}

/// What the C function returns.
#[inline]
fn returned(routes: &Routes, result: Result<(), Error>) -> isize {
    match result {
        Ok(()) => 0,
        Err(error) => refused(routes, error),
    }
}

/// The same of an operation that was not started.
#[cold]
fn refused(routes: &Routes, error: Error) -> isize {
    if error == Error::Again {
        routes.again.update(|again| again + 1);
    }
    Errno::from(error).size()
}

/// The processor that runs this thread.
fn this_cpu() -> u32 {
    // SAFETY: no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(u32::MAX)
}

/// Shared ownership of a cell.
pub(crate) type CellRef = Arc<EndpointCell>;
