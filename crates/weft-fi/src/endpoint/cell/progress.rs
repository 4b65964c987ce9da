//! Progress of an endpoint: rounds of its engine, the programs that they release, and statistics.
//!
//! Place in the data flow: a queue or counter that is read → [`EndpointCell::progress`]; the progress thread →
//! [`EndpointCell::try_visit`], [`State::round`].

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::{EndpointCell, State};
use crate::observe::publish::{CellCounters, INTERVAL, ROUNDS_PER_CHECK};
use crate::sleep::lock::Guard;
use crate::sleep::wait::Waker;

const _: () = assert!(ROUNDS_PER_CHECK.is_multiple_of(ROUNDS_PER_CPU));

/// Rounds after which a caller that wants the endpoint idle gives up for this time.
const SETTLE_ROUNDS: u32 = 64;

/// So many rounds of the client lie between two looks at what changes slowly. [`ROUNDS_PER_CHECK`] is a multiple.
const ROUNDS_PER_CPU: u64 = 64;

impl EndpointCell {
    /// Lets others see what has happened, where that is due. Runs the domain's programs, once out of the
    /// engine, and lets those try again that waited for room in it.
    #[cold]
    pub(crate) fn run_programs(&self, mut state: impl DerefMut<Target = State>) {
        state.programs_due = false;
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
            state.look_due = polls.is_multiple_of(ROUNDS_PER_CHECK);
            state.programs_due |= state.look_due;
        }
        let done = state.round();
        if state.auto_listens || state.external > 0 {
            self.progress_beside_sleepers(&mut state);
        }
        if state.programs_due {
            self.run_programs(state);
        }
        done
    }

    /// Lets others see what has happened, if that was not done within the interval.
    pub(crate) fn publish(&self, state: &mut State, interval: Duration) {
        let State { engine: Some(engine), routes, publisher: Some(publisher), .. } = state else { return };
        publisher.publish_if_due(engine, interval, || CellCounters {
            rounds: self.polls.load(Ordering::Relaxed),
            sleepers: self.sleepers.load(Ordering::Relaxed).into(),
            lock_waits: self.state.waits(),
            failures: routes.failures.get(),
            again: routes.again.get(),
        });
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
        visit.end_listening();
        if let Some(fd) = visit.wait_fd() {
            waker.unwatch(fd);
        }
        for cq in [&visit.routes.tx, &visit.routes.rx].into_iter().flatten() {
            cq.end_visits();
        }
        drop(visit);
        self.state.end_visits();
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
        let Self { engine: Some(engine), routes, programs_due, stalled, .. } = self else { return 0 };
        if routes.flooded() {
            return 0;
        }
        let done = engine.progress();
        if routes.deliver(engine) || (*stalled && done > 0) {
            *programs_due = true;
        }
        done
    }

    /// Progresses until nothing happens, within a bound; whether that was reached without anything happening at all.
    pub(crate) fn progress_until_idle(&mut self) -> bool {
        let mut rounds = 0;
        while rounds < SETTLE_ROUNDS && self.round() > 0 {
            rounds += 1;
        }
        rounds == 0
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
            fired |= self.programs_due;
        }
        fired
    }
}

/// The processor that runs this thread.
fn this_cpu() -> u32 {
    // SAFETY: no arguments.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(u32::MAX)
}
