//! Automatic progress: one thread per domain that does what the client's threads do not.
//!
//! Place in the data flow: made by the domain when FI_PROGRESS_AUTO is in force; endpoints join at enable and leave
//! at close. For each endpoint the thread is in one of two modes.
//!
//! - *Listening*: it sleeps on the devices' wait descriptors, which are armed (see
//!   `Device::arm`), and progresses the endpoint when they stir. The client may come and go meanwhile: its
//!   reads take what there is, and only call the thread when something has stirred that it did not wait for.
//! - *Stepped back*: the client polls, and pays nothing for having a thread. The thread neither touches the
//!   endpoint nor listens to its devices, and only looks after each [`TICK`] whether the client is still
//!   there; after some, less often.
//!
//! A client that makes `UNAIDED_ROUNDS` (`endpoint/cell/parking.rs`) rounds of progress without the thread's
//! having been of use takes over; the thread steps back. It listens again when a tick passes without a round,
//! or when it finds the client away at a tick: no round within [`QUIET`], and no lock held. (That is tried
//! only where the client runs on another processor.) So a client that computes for 20 µs between posting and
//! waiting, and never is away for a whole tick, is relieved as well. Where such a time of listening turns out
//! to be of no use, the next is tried after twice as many ticks. A client that is about to sleep outside our
//! calls says so ([`AutoProgress::notify_client_parked`]).
//!
//! The thread never spins for longer than FI_WEFT_PROGRESS_SPIN_US after work. It runs where the thread ran
//! that enabled the first endpoint, or on the processors that FI_WEFT_PROGRESS_AFFINITY names.
//!
//! Invariants: an endpoint is entered only by trying, so no call of the client ever waits for a whole round of
//! this thread more than once; after [`AutoProgress::leave`] the thread holds no reference; after
//! [`AutoProgress::stop`] it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::thread::{CpuSet, sched_setaffinity};
use weft_os::Worker;

use crate::abi::errno::{self, Errno};
use crate::endpoint::cell::CellRef;
use crate::host::{self, Host};
use crate::observe::publish::{BEFORE_SLEEP, INTERVAL};
use crate::sleep::lock;
use crate::sleep::wait::Waker;

/// How often an endpoint that the client progresses is looked at.
const TICK: Duration = Duration::from_millis(1);
/// The same, once the client was there at so many looks in a row: each takes some 10 µs from it if it shares
/// our processor.
const STEADY_TICK: Duration = Duration::from_millis(4);
const STEADY_LOOKS: u32 = 50;
/// How often one is looked at on which a thread of the client sleeps.
const SLEEPER_TICK: Duration = Duration::from_millis(10);
/// Looks without work or sleep after which the thread contents itself with ticks.
const RESTLESS_LOOKS: u32 = 100;
/// A client that makes no round for so long, and is in none, has gone to compute.
const QUIET: Duration = Duration::from_micros(5);
/// Most ticks between two times of listening that are of no use.
const MOST_PATIENCE: u32 = 256;
/// Rests between two looks at what the client writes, and must fetch back after each look.
const RESTS: u32 = 16;
/// So often in a row the thread is woken beside a client that sleeps in our calls, and is woken as well,
/// before it leaves it alone.
const NEEDLESS_WAKES: u32 = 16;
/// Rounds with work between two looks at whether something is to be published.
const ROUNDS_PER_PUBLISHING: u64 = 64;
/// Longest sleep: time-outs inside the engine are noticed within it.
const SLICE: Duration = Duration::from_millis(100);

/// A round of the thread, and what it waits for, is over long before.
const STUCK: Duration = Duration::from_secs(1);

/// The thread of one domain.
pub(crate) struct AutoProgress {
    waker: Waker,
    spin: Duration,
    /// Where the thread may run, if not where the client's does that starts it.
    processors: Option<CpuSet>,
    members: Mutex<Vec<Member>>,
    /// Rounds in which the thread found something to do.
    rounds: AtomicU64,
    /// The client said that it will not progress by itself for a while.
    client_parked: AtomicBool,
    stop: AtomicBool,
    /// The host of the domain.
    host: Option<&'static Host>,
    thread: Mutex<Option<Worker>>,
}

/// An endpoint, and what the thread knows of it.
struct Member {
    cell: CellRef,
    /// Application rounds at the last look.
    seen: u64,
    /// Looks in a row at which the client was there, since the thread has stepped back.
    present: u32,
    mode: Mode,
    /// When the thread last found something to do here.
    worked: Option<Instant>,
    /// The thread has done something: the client's rounds and waits at that time, to find out whether it was there.
    did: Option<(u64, u64)>,
    /// How often in a row the endpoint would not let us sleep without having anything to do.
    restless: u32,
    /// Times in a row that the thread was woken together with a client that slept in our calls.
    needless_wakes: u32,
    patience: Patience,
}

/// The thread's part in the progress of one endpoint.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    /// The client progresses the endpoint and pays nothing for the thread.
    SteppedBack,
    /// The thread has entered the endpoint and found a sleeper of the client there. The client's locks are
    /// expensive until the next look, at which the thread steps back.
    Visited,
    /// The thread progresses the endpoint and sleeps on its devices.
    Listening {
        /// The thread has found something to do while the client was away.
        useful: bool,
    },
}

/// Ticks between two attempts to listen, twice as many after each that was of no use.
#[derive(Default)]
struct Patience {
    /// Ticks until the next attempt.
    left: u32,
    /// Ticks before the last attempt.
    last: u32,
}

impl Patience {
    /// Counts a tick. True: it is too early for an attempt.
    fn waits(&mut self) -> bool {
        let waits = self.left > 0;
        self.left -= u32::from(waits);
        waits
    }

    /// An attempt has ended.
    fn restart(&mut self, useful: bool) {
        self.last = if useful { 0 } else { (2 * self.last).clamp(1, MOST_PATIENCE) };
        self.left = self.last;
    }
}

/// How soon the thread must look again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Now,
    Tick,
    SteadyTick,
    SleeperTick,
    WhenWoken,
}

impl AutoProgress {
    /// Ready to start; the thread itself begins with the first endpoint. After work it polls on for `spin` before it
    /// sleeps. `affinity` lists the processors that it may run on.
    pub(crate) fn new(spin: Duration, affinity: Option<&str>) -> Result<Arc<Self>, Errno> {
        let processors = affinity.map(|list| {
            let set = processors(list);
            if set.is_none() {
                log::warn!(
                    "FI_WEFT_PROGRESS_AFFINITY={list} is no list of processors, ignoring it; name them by numbers and ranges, such as 1,4-7"
                );
            }
            set
        });
        Ok(Arc::new(Self {
            waker: Waker::new().map_err(|error| errno::told("fi_domain", &error))?,
            spin,
            processors: processors.flatten(),
            members: Mutex::new(Vec::new()),
            rounds: AtomicU64::new(0),
            client_parked: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            host: host::current(),
            thread: Mutex::new(None),
        }))
    }

    /// Whether the domain is one of that host.
    pub(crate) fn is_of(&self, host: Option<&Host>) -> bool {
        self.host.map(std::ptr::from_ref) == host.map(std::ptr::from_ref)
    }

    /// Takes care of an endpoint from now on; starts the thread if it is the first.
    pub(crate) fn join(self: &Arc<Self>, cell: &CellRef) -> Result<(), Errno> {
        self.start()?;
        self.members.lock().push(Member::new(cell));
        self.waker.notify();
        Ok(())
    }

    /// Forgets an endpoint; on return the thread does not look at it any more.
    pub(crate) fn leave(&self, cell: &CellRef) {
        let mut members = self.members.lock();
        if let Some(at) = members.iter().position(|member| Arc::ptr_eq(&member.cell, cell)) {
            let mut member = members.swap_remove(at);
            member.step_back(&self.waker);
        }
    }

    /// The client is about to sleep where we cannot see it: progress everything at once, without waiting for a tick.
    pub(crate) fn notify_client_parked(&self) {
        self.client_parked.store(true, Ordering::Release);
        self.waker.notify();
    }

    /// Ends the thread's sleep.
    pub(crate) fn notify(&self) {
        self.waker.notify();
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.end();
        let thread = self.thread.lock().take();
        thread.into_iter().for_each(Worker::join);
    }

    /// The same at the end of the program, which a handler of a signal may have brought about, or a forked
    /// child: if the thread waits for the call that was interrupted, it does so for ever, and who was
    /// starting the thread may never go on.
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
            *thread = Some(started.map_err(|error| errno::told("fi_enable", &error.into()))?);
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
                "the progress thread cannot run where FI_WEFT_PROGRESS_AFFINITY says: {errno}; name processors that this process may use"
            );
        }
        // Rings that arrive from here on are about things that the coming look may miss.
        self.waker.drain();
        while !self.stop.load(Ordering::Acquire) {
            let client_parked = self.client_parked.swap(false, Ordering::AcqRel);
            let time = match self.look(client_parked) {
                Next::Now => {
                    std::thread::yield_now();
                    continue;
                }
                Next::Tick => TICK,
                Next::SteadyTick => STEADY_TICK,
                Next::SleeperTick => SLEEPER_TICK,
                Next::WhenWoken => SLICE,
            };
            self.waker.sleep(Some(time));
            self.waker.drain();
        }
        // Endpoints that are still open, at the end of the program, are not waited for: a call may have been
        // interrupted in them for ever.
    }

    /// Looks at every endpoint once.
    fn look(&self, client_parked: bool) -> Next {
        let mut members = self.members.lock();
        members.iter_mut().map(|member| member.look(self, client_parked)).min().unwrap_or(Next::WhenWoken)
    }

    /// Rounds in which the thread found something to do.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Member {
    fn new(cell: &CellRef) -> Self {
        Self {
            cell: Arc::clone(cell),
            seen: 0,
            present: 0,
            mode: Mode::SteppedBack,
            worked: None,
            did: None,
            restless: 0,
            needless_wakes: 0,
            patience: Patience::default(),
        }
    }

    fn look(&mut self, auto: &AutoProgress, client_parked: bool) -> Next {
        let (rounds, sleeper) = self.cell.activity();
        let moved = std::mem::replace(&mut self.seen, rounds) != rounds;
        if self.is_listening() {
            return if self.cell.take_step_back() { self.part(auto) } else { self.serve(auto, sleeper) };
        }
        if !sleeper && (client_parked || !moved || self.finds_client_away()) {
            return self.serve(auto, sleeper);
        }
        self.step_back(&auto.waker);
        self.present = if sleeper { 0 } else { self.present.saturating_add(1) };
        match (sleeper, self.present > STEADY_LOOKS) {
            (true, _) => Next::SleeperTick,
            (_, true) => Next::SteadyTick,
            _ => Next::Tick,
        }
    }

    /// Whether the client, which was there since the last tick, is not there now; looked at only as often as
    /// that paid lately.
    fn finds_client_away(&mut self) -> bool {
        if self.patience.waits() {
            return false;
        }
        // The silence of a client whose core we have taken tells nothing.
        if !self.cell.runs_on_other_cpu() {
            return false;
        }
        let still = |seen| self.cell.activity() == (seen, false);
        let start = Instant::now();
        while start.elapsed() < QUIET {
            if !still(self.seen) {
                return false;
            }
            (0..RESTS).for_each(|_| std::hint::spin_loop());
        }
        true
    }

    /// Ends a time of listening.
    fn part(&mut self, auto: &AutoProgress) -> Next {
        self.patience.restart(self.mode == Mode::Listening { useful: true });
        self.worked = None;
        self.did = None;
        self.step_back(&auto.waker);
        self.seen = self.cell.activity().0;
        Next::Tick
    }

    /// Does the work of an endpoint that nobody else attends to, and listens to its devices from then on.
    fn serve(&mut self, auto: &AutoProgress, sleeper: bool) -> Next {
        let Some(mut state) = self.cell.try_visit() else {
            // A call of the client is inside: it is at work after all, or else will soon be out.
            return if self.is_listening() { Next::Now } else { Next::Tick };
        };
        if !self.is_listening() {
            self.mode = Mode::Visited;
            if state.has_inside_sleepers() {
                return Next::Tick;
            }
            self.mode = Mode::Listening { useful: false };
            self.present = 0;
            self.cell.take_step_back();
        }
        if self.did.take() == Some((self.seen, self.cell.lock_waits())) && !sleeper {
            // What was done then was done while the client was away.
            state.listener_helped();
            self.mode = Mode::Listening { useful: true };
            self.needless_wakes = 0;
        }
        state.wake_listener();
        let before = self.cell.activity().0;
        let moved = !state.progress_until_idle();
        let programs_due = state.programs_due();
        if moved || programs_due {
            self.did = Some((before, self.cell.lock_waits()));
            if auto.rounds.fetch_add(1, Ordering::Relaxed).is_multiple_of(ROUNDS_PER_PUBLISHING) {
                self.cell.publish(&mut state, INTERVAL);
            }
            if programs_due {
                // Operations were triggered, or wait for room that there may be now.
                self.cell.run_programs(state);
            }
            self.worked = Some(Instant::now());
            return Next::Now;
        }
        if self.worked.is_some_and(|at| at.elapsed() < auto.spin) {
            return Next::Now;
        }
        self.worked = None;
        self.needless_wakes += u32::from(sleeper);
        if state.park_listener(&auto.waker) {
            self.cell.publish(&mut state, BEFORE_SLEEP);
            self.restless = 0;
            // The devices have just been told to wake whoever sleeps, so the client will be woken without us as well.
            if self.needless_wakes > NEEDLESS_WAKES {
                self.needless_wakes = 0;
                drop(state);
                return self.part(auto);
            }
            return Next::WhenWoken;
        }
        // Something has come meanwhile, or the system refuses to watch the devices.
        self.restless += 1;
        if self.restless < RESTLESS_LOOKS { Next::Now } else { Next::Tick }
    }

    fn is_listening(&self) -> bool {
        matches!(self.mode, Mode::Listening { .. })
    }

    /// Leaves the endpoint to the client.
    fn step_back(&mut self, waker: &Waker) {
        if std::mem::replace(&mut self.mode, Mode::SteppedBack) != Mode::SteppedBack {
            self.cell.end_visits(waker);
        }
    }
}

/// The processors of a list such as `1,4-7`.
fn processors(list: &str) -> Option<CpuSet> {
    let mut set = CpuSet::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        (first..=last).for_each(|processor| set.set(processor));
    }
    Some(set)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_soonest_need_decides() {
        assert!(Next::Now < Next::Tick);
        assert!(
            Next::Tick < Next::SteadyTick
                && Next::SteadyTick < Next::SleeperTick
                && Next::SleeperTick < Next::WhenWoken
        );
    }

    #[test]
    fn lists_of_processors_are_read() {
        let set =
            |list| processors(list).map(|set| (0..CpuSet::MAX_CPU).filter(|&n| set.is_set(n)).collect::<Vec<_>>());
        assert_eq!(set("3"), Some(vec![3]));
        assert_eq!(set("1, 4-6,5"), Some(vec![1, 4, 5, 6]));
        for list in ["", "x", "1,", "5-4", "-1", "0-99999999"] {
            assert_eq!(set(list), None, "{list:?}");
        }
    }

    #[test]
    fn the_thread_starts_once_and_is_gone_after_stop() {
        let auto = AutoProgress::new(Duration::ZERO, None).unwrap();
        auto.start().unwrap();
        auto.start().unwrap();
        assert_eq!(Arc::strong_count(&auto), 2, "one reference is the thread's");
        auto.stop();
        assert_eq!(Arc::strong_count(&auto), 1);
        auto.stop();
    }
}
