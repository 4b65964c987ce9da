//! Automatic progress: one thread per domain that makes progress while the client's threads make none.
//!
//! Place in the data flow: a domain with FI_PROGRESS_AUTO makes the thread. Endpoints join at enable and
//! leave at close. For each endpoint the thread is in one of two modes.
//!
//! - *Listening*: the thread sleeps on the wait descriptors of the armed devices (`Device::arm`), and progresses the
//!   endpoint after their events. The client may make rounds meanwhile. It notifies the thread only of work that the
//!   devices do not report.
//! - *Stepped back*: the client polls, and pays nothing for the thread. The thread neither enters the endpoint nor
//!   watches its devices. After each tick (1 ms) it checks whether the client is still active, and later less often.
//!
//! The thread steps back after `UNAIDED_ROUNDS` (`policy/client.rs`) rounds of the client in which it did not
//! help. It listens again if the client makes no round for a tick. It also does if a client on another
//! processor is found away at a tick: the client makes no round for [`QUIET`], and holds no lock. Thus the
//! thread also serves a client that computes for a short time between a post and a wait, and is never away
//! for a whole tick. If the thread did not help while it listened, it waits for twice as many ticks before
//! the next attempt. A client that is about to sleep outside calls of weft notifies the thread
//! ([`AutoProgress::notify_client_parked`]).
//!
//! A client that computes after it has started a collective between hosts leaves its later steps to the thread: the
//! start notifies the thread if the client was away after earlier ones. From then on the thread listens. When the
//! client comes back and polls for the end, the devices do not wake the thread: it is *muted* until the client starts
//! the next operation, or until a tick.
//!
//! If both run on one processor, the thread interrupts such a client for each step, and parks as soon as it is idle. A
//! yield would cost it the processor for the client's time slice. If the client was interrupted in a call, the thread
//! sleeps for a moment. Clients within a host are not interrupted: the transfers of both sides would wait for each
//! other.
//!
//! The thread spins after work for at most FI_WEFT_PROGRESS_SPIN_US. It runs on the processors that
//! FI_WEFT_PROGRESS_AFFINITY names. Without that variable it inherits the affinity of the thread that enabled the first
//! endpoint.
//!
//! Invariants: the thread only tries to enter an endpoint, so no call of the client waits for a whole round
//! of the thread more than once. After [`AutoProgress::leave`] the thread holds no reference to the endpoint.
//! After [`AutoProgress::stop`] the thread has ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};
use weft_nic::Device;
use weft_os::Worker;

use crate::abi::errno::{self, Errno};
use crate::endpoint::cell::{AnyCell, CellRef, CellState, EndpointCell};
use crate::host::{self, Host};
use crate::sleep::lock;
use crate::sleep::policy::{Act, Found, Next, Observation, Pause, Record, policy};
use crate::sleep::wait::Waker;
use weft_observe::{BEFORE_SLEEP, INTERVAL};

/// A client that makes no round for this time, and holds no lock, is away.
const QUIET: Duration = Duration::from_micros(5);
/// Spin hints between two reads of the client's counters. Each read takes their cache line from the client.
const SPIN_HINTS: u32 = 16;
/// Rounds with work between two checks whether statistics must be published.
const ROUNDS_PER_PUBLISHING: u64 = 64;
/// Longest wait for the thread at the end of the program. A round of the thread takes much less.
const STUCK: Duration = Duration::from_secs(1);

/// The thread of one domain.
pub(crate) struct AutoProgress {
    waker: Waker,
    spin: Duration,
    /// The processors on which the thread may run, if they differ from those of the thread that starts it.
    processors: Option<CpuSet>,
    members: Mutex<Vec<Member>>,
    /// Number of rounds in which the thread found work.
    rounds: AtomicU64,
    /// A thread of the client is about to sleep outside calls of weft.
    client_parked: AtomicBool,
    stop: AtomicBool,
    /// The host of the domain.
    host: Option<&'static Host>,
    thread: Mutex<Option<Worker>>,
}

/// An endpoint, and the thread's record of it.
pub(crate) struct Member {
    cell: CellRef,
    /// The client's rounds at the last look.
    seen: u64,
    /// Whether the client had made a round between the last two looks.
    moved: bool,
    /// Whether the client leaves its collectives to the thread.
    handed_over: bool,
    record: Record,
    /// The time at which the thread last found work here.
    worked: Option<Instant>,
    /// The client's rounds and lock waits when the thread last did work. If they are the same at the next look, the
    /// client was away.
    did: Option<(u64, u64)>,
}

impl AutoProgress {
    /// Prepares the thread, which the first endpoint starts. After work it polls for `spin` before it sleeps.
    /// `processors`: those on which it may run.
    pub(crate) fn new(spin: Duration, processors: Option<CpuSet>) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            waker: Waker::new().map_err(|error| errno::log_error("fi_domain", &error))?,
            spin,
            processors,
            members: Mutex::new(Vec::new()),
            rounds: AtomicU64::new(0),
            client_parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            host: host::current(),
            thread: Mutex::new(None),
        }))
    }

    /// Whether the domain belongs to that host.
    pub(crate) fn is_of(&self, host: Option<&Host>) -> bool {
        self.host.map(std::ptr::from_ref) == host.map(std::ptr::from_ref)
    }

    /// Adds an endpoint. The first one starts the thread.
    pub(crate) fn join(self: &Arc<Self>, cell: &CellRef) -> Result<(), Errno> {
        self.start()?;
        self.members.lock().push(Member::new(cell));
        self.waker.notify();
        Ok(())
    }

    /// Removes an endpoint. On return the thread does not use it any more.
    pub(crate) fn leave(&self, cell: &CellRef) {
        let mut members = self.members.lock();
        if let Some(at) = members.iter().position(|member| Arc::ptr_eq(&member.cell, cell)) {
            let member = members.swap_remove(at);
            if !member.record.is_stepped_back() {
                member.cell.end_visits(&self.waker);
            }
        }
    }

    /// A thread of the client is about to sleep outside calls of weft. The progress thread serves all
    /// endpoints at once, without waiting for a tick.
    pub(crate) fn notify_client_parked(&self) {
        self.client_parked.store(true, Ordering::Release);
        self.waker.notify();
    }

    /// The waker on which the thread sleeps.
    pub(crate) fn waker(&self) -> &Waker {
        &self.waker
    }

    /// Wakes the thread.
    pub(crate) fn notify(&self) {
        self.waker.notify();
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.end();
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(Worker::join);
    }

    /// Ends the thread at the end of the program or of a forked child, and waits for a limited time. The
    /// caller may be in a signal handler. The interrupted call may hold a lock for which the thread waits, or
    /// may be starting the thread.
    pub(crate) fn stop_at_end(&self) {
        self.end();
        let thread = self.thread.try_lock_for(STUCK).and_then(|mut thread| thread.take());
        thread.into_iter().for_each(|thread| thread.join_within(STUCK));
    }

    fn end(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.notify();
    }

    fn start(self: &Arc<Self>) -> Result<(), Errno> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            self.stop.store(false, Ordering::Release);
            let this = Arc::clone(self);
            let started = Worker::spawn("weft-progress", move || this.run());
            *thread = Some(started.map_err(|error| errno::log_error("fi_enable", &error.into()))?);
        }
        Ok(())
    }

    fn run(&self) {
        lock::visit_only();
        host::enter(self.host);
        if let Some(set) = &self.processors
            && let Err(errno) = sched_setaffinity(None, set)
        {
            log::warn!(
                "the progress thread cannot run on the processors of FI_WEFT_PROGRESS_AFFINITY: {errno}; name processors that this process may use"
            );
        }
        // Later notifications concern events that the next look may miss.
        self.waker.drain();
        while !self.stop.load(Ordering::Acquire) {
            let client_parked = self.client_parked.swap(false, Ordering::AcqRel);
            match self.look(client_parked).pause() {
                Pause::Yield => std::thread::yield_now(),
                Pause::Fixed(time) => std::thread::sleep(time),
                Pause::Sleep(time) => {
                    self.waker.sleep(Some(time));
                    self.waker.drain();
                }
            }
        }
        // Endpoints may still be open at the end of the program. The thread does not wait for them, because an
        // interrupted call may hold their locks indefinitely.
    }

    /// Looks at every endpoint once.
    fn look(&self, client_parked: bool) -> Next {
        let mut members = self.members.lock();
        members.iter_mut().map(|member| member.look(self, client_parked)).min().unwrap_or(Next::WhenWoken)
    }

    /// Number of rounds in which the thread found work.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Member {
    fn new(cell: &CellRef) -> Self {
        Self {
            cell: Arc::clone(cell),
            seen: 0,
            moved: false,
            handed_over: false,
            record: Record::default(),
            worked: None,
            did: None,
        }
    }

    fn look(&mut self, auto: &AutoProgress, client_parked: bool) -> Next {
        let (rounds, sleeper) = self.cell.activity();
        self.moved = std::mem::replace(&mut self.seen, rounds) != rounds;
        let dismissed = self.record.is_listening() && self.cell.take_step_back();
        let look = Observation::Look { moved: self.moved, sleeper, parked: client_parked, dismissed };
        self.observe(look, auto, sleeper)
    }

    /// Does what the policy says about an observation. `sleeper`: a thread of the client sleeps.
    fn observe(&mut self, observation: Observation, auto: &AutoProgress, sleeper: bool) -> Next {
        match self.decide(observation) {
            Act::Watch => {
                let away = self.finds_client_away();
                self.observe(Observation::Watched { away }, auto, sleeper)
            }
            Act::Enter => Arc::clone(&self.cell).serve(self, auto, sleeper),
            Act::StepBack(next) => {
                self.cell.end_visits(&auto.waker);
                next
            }
            Act::StopListening(next) => {
                self.worked = None;
                self.did = None;
                self.cell.end_visits(&auto.waker);
                self.seen = self.cell.activity().0;
                next
            }
            Act::Look(next) => next,
            act @ (Act::Work | Act::Park { .. }) => {
                debug_assert!(false, "{act:?} outside of an endpoint");
                Next::Tick
            }
        }
    }

    fn decide(&mut self, observation: Observation) -> Act {
        let (record, act) = policy(self.record, observation);
        self.record = record;
        act
    }

    /// Whether the client, which was active since the last tick, is away now.
    fn finds_client_away(&mut self) -> bool {
        // A client on this processor makes no rounds while this thread runs.
        if self.cell.shares_cpu() != Some(false) {
            return false;
        }
        let still = |seen| self.cell.activity() == (seen, false);
        let start = Instant::now();
        while start.elapsed() < QUIET {
            if !still(self.seen) {
                return false;
            }
            (0..SPIN_HINTS).for_each(|_| std::hint::spin_loop());
        }
        true
    }

    /// Does the work of an endpoint whose client is away, and listens to its devices from then on. `cell` is that of
    /// this member.
    pub(crate) fn serve<D: Device>(&mut self, cell: &EndpointCell<D>, auto: &AutoProgress, sleeper: bool) -> Next {
        let Some(mut state) = cell.try_visit() else {
            return self.observe(Observation::Locked { interrupts: self.interrupts() }, auto, sleeper);
        };
        let listened = self.record.is_listening();
        // The thread did work while the client was away.
        let helped = self.did.take() == Some((self.seen, cell.lock_waits())) && !sleeper;
        let entered = Observation::Entered { sleeps_inside: state.has_inside_sleepers(), helped };
        if let Act::Look(next) = self.decide(entered) {
            return next;
        }
        if !listened {
            cell.take_step_back();
        }
        if helped {
            state.listener_helped();
        }
        let handed_over = state.client_leaves();
        if std::mem::replace(&mut self.handed_over, handed_over) != handed_over {
            weft_os::set_short_time_slice(handed_over);
        }
        state.wake_listener();
        let interrupts = self.interrupts();
        let found = self.work(cell, auto, &mut state, interrupts);
        if found == Found::Programs {
            // Operations were triggered, or there may be room for stalled ones.
            cell.run_programs(state);
            return self.observe(Observation::Rounds { found, interrupts: self.interrupts(), sleeper }, auto, sleeper);
        }
        let attempts = match self.decide(Observation::Rounds { found, interrupts, sleeper }) {
            Act::Park { attempts } => attempts,
            Act::Look(next) => return next,
            act => {
                debug_assert!(false, "{act:?} after rounds");
                return Next::Tick;
            }
        };
        self.worked = None;
        let time = (0..attempts).find_map(|_| state.park_listener(&auto.waker));
        if time.is_some() {
            cell.publish(&mut state, BEFORE_SLEEP);
        }
        drop(state);
        self.observe(Observation::Parking { time, interrupts: self.interrupts() }, auto, sleeper)
    }

    /// Makes rounds of progress.
    fn work<D: Device>(
        &mut self,
        cell: &EndpointCell<D>,
        auto: &AutoProgress,
        state: &mut CellState<D>,
        interrupts: bool,
    ) -> Found {
        let before = cell.activity().0;
        let moved = !state.progress_until_idle();
        let programs_due = state.programs_due();
        if !moved && !programs_due {
            let spins = !interrupts && self.worked.is_some_and(|at| at.elapsed() < auto.spin);
            return if spins { Found::WorkBefore } else { Found::Nothing };
        }
        // A client on this processor makes no round while this thread runs. If it made one shortly before, it would
        // have found the work itself.
        self.did = (!interrupts || !self.moved).then(|| (before, cell.lock_waits()));
        if auto.rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(ROUNDS_PER_PUBLISHING) {
            cell.publish(state, INTERVAL);
        }
        self.worked = Some(Instant::now());
        if programs_due { Found::Programs } else { Found::Work }
    }

    /// Whether the thread interrupts the client's work for the steps of collectives.
    fn interrupts(&self) -> bool {
        self.handed_over && self.cell.shares_cpu() == Some(true)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_thread_starts_once_and_ends_at_stop() {
        let auto = AutoProgress::new(Duration::ZERO, None).unwrap();
        auto.start().unwrap();
        auto.start().unwrap();
        assert_eq!(Arc::strong_count(&auto), 2, "one reference is the thread's");
        auto.stop();
        assert_eq!(Arc::strong_count(&auto), 1);
        auto.stop();
    }
}
