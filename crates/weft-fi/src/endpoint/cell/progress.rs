//! Progress of an endpoint: rounds of its engine, the programs that they release, and statistics.
//!
//! Place in the data flow: a queue or counter that is read → [`EndpointCell::progress`]; the progress thread →
//! [`EndpointCell::try_visit`], [`CellState::progress_until_idle`]. Both end with [`EndpointCell::run_programs`]
//! where programs are due.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_nic::Device;

use super::{AnyCell, CellState, EndpointCell};
use crate::cq::Reading;
use crate::endpoint::connection::Reports;
use crate::sleep::lock::Guard;
use crate::sleep::wait::Waker;
use weft_observe::{Counters, INTERVAL, ROUNDS_PER_CHECK};

/// Most rounds in a search for an idle endpoint. An endpoint that still has work then counts as busy.
const IDLE_ROUNDS: u32 = 64;

/// Rounds of the client between two updates of the processor's number.
const ROUNDS_PER_CPU: u64 = 64;

const _: () = assert!(ROUNDS_PER_CHECK.is_multiple_of(ROUNDS_PER_CPU));

impl<D: Device> EndpointCell<D> {
    /// Makes one round of progress for a thread of the client, in a read of a queue or otherwise. Returns 0 when
    /// nothing happened.
    #[inline(always)]
    pub(crate) fn progress(&self, reading: Option<&mut Reading<'_>>) -> usize {
        let mut state = self.state.lock();
        // Written under the lock only.
        let rounds = self.rounds.load(Ordering::Relaxed).wrapping_add(1);
        self.rounds.store(rounds, Ordering::Relaxed);
        if rounds.is_multiple_of(ROUNDS_PER_CPU) {
            self.update_cpu(&mut state, rounds);
        }
        let done = state.round(reading);
        if state.parking.concerns_rounds() {
            self.progress_beside_sleepers(&mut state);
        }
        if state.programs_due {
            self.run_programs(state);
        }
        done
    }

    /// Updates the processor's number, and schedules the next look at the clock for statistics.
    #[cold]
    #[inline(never)]
    fn update_cpu(&self, state: &mut CellState<D>, rounds: u64) {
        // Only the progress thread reads the number.
        if self.progress_thread.is_some() {
            self.cpu.store(this_cpu(), Ordering::Relaxed);
        }
        state.publish_due = rounds.is_multiple_of(ROUNDS_PER_CHECK);
        state.programs_due |= state.publish_due;
    }

    /// Runs the domain's programs outside the engine, and retries those that are stalled on this endpoint.
    /// Publishes the endpoint's statistics first, if that is due. Reports the end of the connection, if it is held.
    #[cold]
    pub(crate) fn run_programs(&self, mut state: impl DerefMut<Target = CellState<D>>) {
        state.programs_due = false;
        state.programs_stalled = false;
        if std::mem::take(&mut state.publish_due) {
            self.publish(&mut state, INTERVAL);
        }
        let ends = state.holds_end();
        drop(state);
        if ends {
            self.settle_siblings();
        }
        self.work.retry(self.lanes());
        self.work.run();
    }

    /// Has the other connections of the domain report what has arrived. Then this one may report its end. The caller
    /// is outside all endpoints.
    #[cold]
    pub(in crate::endpoint) fn settle_siblings(&self) {
        let Some(siblings) = self.control().routes.reports().map(Reports::siblings) else { return };
        siblings.settle_others(self.id());
        let mut state = self.control();
        state.routes.reports().inspect(|reports| reports.allow_end());
        state.deliver();
        self.notify_sleepers(&mut state);
    }

    /// Takes and reports everything that has arrived, except the end of the connection.
    #[cold]
    pub(super) fn settle(&self) {
        let mut state = self.control();
        state.progress_until_idle();
        if state.parking.concerns_rounds() {
            self.progress_beside_sleepers(&mut state);
        }
        self.notify_sleepers(&mut state);
    }

    /// Publishes the endpoint's statistics, unless that was done within `interval`.
    pub(crate) fn publish(&self, state: &mut CellState<D>, interval: Duration) {
        let CellState { engine: Some(engine), routes, publisher: Some(publisher), .. } = state else { return };
        publisher.publish_if_due(engine, interval, || Counters {
            rounds: self.rounds.load(Ordering::Relaxed),
            sleepers: self.sleeping_threads.load(Ordering::Relaxed).into(),
            lock_waits: self.state.waits(),
            failures: routes.failures(),
            again: routes.refusals(),
        });
    }

    /// The state for the progress thread, unless a thread of the client is inside. Threads of the client take the
    /// mutex from then on, until [`EndpointCell::end_visits`].
    pub(crate) fn try_visit(&self) -> Option<Visit<'_, D>> {
        self.state.try_visit().map(Visit::new)
    }

    /// Ends the progress thread's visits for some time: it no longer watches the devices, and the client's locks
    /// become cheap again.
    pub(super) fn end_visits(&self, waker: &Waker) {
        let mut visit = Visit::new(self.state.visit());
        visit.remove_listener();
        if let Some(fd) = visit.wait_fd() {
            waker.unwatch(fd);
        }
        visit.routes.end_visits();
        drop(visit);
        self.state.end_visits();
    }
}

/// The state while the progress thread works on it: the queues' rings admit that thread meanwhile.
pub(crate) struct Visit<'a, D: Device>(Guard<'a, CellState<D>>);

impl<'a, D: Device> Visit<'a, D> {
    fn new(mut state: Guard<'a, CellState<D>>) -> Self {
        state.routes.visited = true;
        Self(state)
    }
}

impl<D: Device> Deref for Visit<'_, D> {
    type Target = CellState<D>;
    fn deref(&self) -> &CellState<D> {
        &self.0
    }
}

impl<D: Device> DerefMut for Visit<'_, D> {
    fn deref_mut(&mut self) -> &mut CellState<D> {
        &mut self.0
    }
}

impl<D: Device> Drop for Visit<'_, D> {
    fn drop(&mut self) {
        self.0.routes.visited = false;
    }
}

impl<D: Device> CellState<D> {
    /// Makes one round of progress and delivers its completions, some of them directly to a read.
    #[inline(always)]
    pub(super) fn round(&mut self, reading: Option<&mut Reading<'_>>) -> usize {
        let Self { engine: Some(engine), routes, programs_due, programs_stalled, .. } = self else { return 0 };
        if routes.flooded() {
            return 0;
        }
        let done = engine.progress();
        if routes.deliver(engine, reading) || (*programs_stalled && done > 0) {
            *programs_due = true;
        }
        done
    }

    /// Makes rounds until one finds nothing to do, or their bound is reached. Returns whether the first one found
    /// nothing.
    pub(crate) fn progress_until_idle(&mut self) -> bool {
        let mut rounds = 0;
        while rounds < IDLE_ROUNDS && self.round(None) > 0 {
            rounds += 1;
        }
        rounds == 0
    }

    /// Whether the end of the connection waits for the other connections.
    fn holds_end(&self) -> bool {
        self.engine.as_ref().is_some_and(|engine| self.routes.holds_end(engine))
    }

    /// Whether programs, or statistics, are due to be handled by [`EndpointCell::run_programs`].
    pub(crate) fn programs_due(&self) -> bool {
        self.programs_due
    }

    /// Makes a round of progress for an operation that found its queue full. Returns whether programs can continue,
    /// including those that are stalled for the same reason.
    #[cold]
    pub(super) fn make_room(&mut self) -> bool {
        let Self { engine: Some(engine), routes, programs_stalled, .. } = self else { return false };
        let moved = engine.progress() > 0;
        let mut released = routes.deliver(engine, None) || (moved && *programs_stalled);
        if self.parking.has_outside() {
            self.park_again();
            released |= self.programs_due;
        }
        released
    }
}

/// The processor that runs this thread, or `u32::MAX` if the system does not report it.
pub(super) fn this_cpu() -> u32 {
    // SAFETY: the function takes no arguments and returns an integer.
    u32::try_from(unsafe { libc::sched_getcpu() }).unwrap_or(u32::MAX)
}
