//! The pauses of a rank that waits.
//!
//! Place in the data flow: every blocking call polls, and pauses by [`Pause`] while nothing happens. The steps: poll
//! again at once, yield the processor, sleep on the device. A message ends the sleep at once. A change in shared
//! memory is seen at its end, so sleeps are short, unless the rank that makes the change wakes the sleepers
//! ([`until_woken`]). Where ranks outnumber processors, the steps before the yield are short. So they are while more
//! threads of a rank wait than it has processors: the thread that could end their wait needs one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::failure;
use crate::job::Job;
use crate::platform;

/// Polls before the first yield, where each rank has a processor. The system may nevertheless run two ranks on one, and
/// then each waits for the yield of the other.
const SPINS: u32 = 4_000;
/// Polls before the first yield, where ranks share processors.
const SPINS_SHARED: u32 = 20;
/// Yields before the first sleep, where each rank has a processor.
const YIELDS: u32 = 4_000;
/// Yields before the first sleep, where ranks share processors.
const YIELDS_SHARED: u32 = 1000;
/// Polls before the first yield, and yields before the first sleep, where messages come by TCP. A poll is a system call
/// then, so that a yield adds little to it, and a message ends a sleep at once.
const FAR: [u32; 2] = [20, 200];
/// Yields before the first sleep, where messages come by TCP and ranks share processors.
const YIELDS_FAR_SHARED: u32 = 20;
/// The shortest sleep, in microseconds.
const SLEEP_US: u64 = 50;
/// The longest sleep without a wake-up.
pub(crate) const LONGEST_NAP: Duration = Duration::from_millis(1);
/// The longest sleep of a rank that will be woken.
const LONG_SLEEP: Duration = Duration::from_millis(20);
/// Idle polls after which a thread counts as waiting.
const CROWD_POLLS: u32 = 64;
/// Pauses before a look for ranks that have failed.
const LOOK_PAUSES: u32 = 256;

/// The method of waiting (`gasnet_set_waitmode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Never sleep.
    Spin,
    /// Sleep after a short time.
    Block,
    /// Sleep after a longer time.
    SpinBlock,
}

impl Mode {
    /// All methods, in the order of their numbers.
    pub const ALL: [Self; 3] = [Self::Spin, Self::Block, Self::SpinBlock];
}

/// The limits of a rank's pauses.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    spins: u32,
    yields: u32,
    sleeps: bool,
}

impl Limits {
    /// Limits for a mode, where `ranks` run on a host with that number of processors. `far`: there are other hosts.
    #[must_use]
    pub fn new(mode: Mode, ranks: u32, processors: usize, far: bool) -> Self {
        let shared = ranks as usize > processors;
        let (spins, yields) = match (shared, far) {
            (true, true) => (SPINS_SHARED, YIELDS_FAR_SHARED),
            (true, false) => (SPINS_SHARED, YIELDS_SHARED),
            (false, true) => (FAR[0], FAR[1]),
            (false, false) => (SPINS, YIELDS),
        };
        match mode {
            Mode::Spin => Self { spins, yields, sleeps: false },
            Mode::Block => Self { spins: SPINS_SHARED, yields: YIELDS_SHARED.min(yields), sleeps: true },
            Mode::SpinBlock => Self { spins, yields, sleeps: true },
        }
    }

    /// The limits while threads wait that share processors.
    #[must_use]
    pub fn crowded(self) -> Self {
        Self { spins: self.spins.min(SPINS_SHARED), yields: self.yields.min(YIELDS_SHARED), ..self }
    }

    /// Where the next pause is after `idle` pauses.
    #[must_use]
    pub fn step(&self, idle: u32) -> Step {
        if idle < self.spins {
            Step::Poll
        } else if idle < self.spins + self.yields || !self.sleeps {
            Step::Yield
        } else {
            let longer = (idle - self.spins - self.yields).min(16);
            Step::Sleep(Duration::from_micros(SLEEP_US << longer.min(10)).min(LONGEST_NAP))
        }
    }
}

/// One pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No pause.
    Poll,
    /// The processor goes to another thread.
    Yield,
    /// A sleep of at most this time.
    Sleep(Duration),
}

/// The pauses of one wait.
pub struct Pause {
    idle: u32,
    waiting: Option<Waiting>,
}

/// The threads of a rank that wait.
#[derive(Debug)]
pub(crate) struct Crowd {
    count: AtomicU32,
    /// The processors of the rank.
    processors: u32,
}

impl Crowd {
    /// No thread waits yet.
    pub(crate) fn new(processors: u32) -> Self {
        Self { count: AtomicU32::new(0), processors: processors.max(1) }
    }

    /// Whether the threads that wait have no processor each.
    #[inline(always)]
    pub(crate) fn is_dense(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.processors
    }
}

/// A thread that counts as waiting.
struct Waiting(&'static Crowd);

impl Waiting {
    fn begin() -> Option<Self> {
        let crowd = Job::get()?.crowd();
        crowd.count.fetch_add(1, Ordering::Relaxed);
        Some(Self(crowd))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Pause {
    /// The pauses of a new wait.
    #[must_use]
    pub fn new() -> Self {
        Self::after(0)
    }

    /// The pauses after a number of them.
    #[must_use]
    pub fn after(idle: u32) -> Self {
        Self { idle, waiting: None }
    }

    /// The number of pauses.
    #[must_use]
    pub fn idle(&self) -> u32 {
        self.idle
    }

    /// Polls once; pauses if nothing has happened.
    pub fn step(&mut self, job: &Job) {
        self.after_poll(job, job.poll_waiting(self.idle));
    }

    /// As [`Self::step`], for an endpoint.
    pub fn step_by(&mut self, job: &Job, endpoint: u16) {
        self.after_poll(job, job.poll_by(endpoint));
    }

    #[inline(always)]
    fn after_poll(&mut self, job: &Job, events: usize) {
        if events > 0 {
            self.idle = 0;
            return;
        }
        if self.idle >= CROWD_POLLS && self.waiting.is_none() {
            self.waiting = Waiting::begin();
        }
        match job.wait_limits().step(self.idle) {
            Step::Poll => {}
            Step::Yield => platform::rest(),
            Step::Sleep(time) => job.sleep(time),
        }
        self.idle = self.idle.saturating_add(1);
        if self.idle.is_multiple_of(LOOK_PAUSES) {
            failure::look_around(job);
        }
    }
}

impl Default for Pause {
    fn default() -> Self {
        Self::new()
    }
}

/// Polls until the condition holds.
#[inline(always)]
pub fn until(job: &Job, mut done: impl FnMut() -> bool) {
    if !done() {
        pause_until(job, &mut done, false);
    }
}

/// Polls until the condition holds. The rank that makes it true calls [`wake`] for this one.
#[inline(always)]
pub fn until_woken(job: &Job, mut done: impl FnMut() -> bool) {
    if !done() {
        pause_until(job, &mut done, true);
    }
}

#[inline(never)]
fn pause_until(job: &Job, done: &mut dyn FnMut() -> bool, woken: bool) {
    let mut pause = Pause::new();
    while !done() {
        let sleeps = woken && matches!(job.wait_limits().step(pause.idle), Step::Sleep(_));
        if !sleeps || job.poll() > 0 {
            pause.step(job);
            continue;
        }
        job.board().set_asleep(job.rank(), true);
        // The condition is asked no more after it held: it may take the outcome.
        let is_done = done();
        if !is_done {
            job.sleep(LONG_SLEEP);
        }
        job.board().set_asleep(job.rank(), false);
        failure::look_around(job);
        if is_done {
            return;
        }
    }
}

/// Wakes the ranks of a list that sleep.
#[inline(always)]
pub fn wake(job: &Job, ranks: impl Iterator<Item = u32>) {
    if job.board().has_sleepers() {
        wake_each(job, ranks);
    }
}

#[cold]
fn wake_each(job: &Job, ranks: impl Iterator<Item = u32>) {
    for rank in ranks.filter(|&rank| rank != job.rank() && job.board().is_asleep(rank)) {
        crate::am::wake(job, rank);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_become_longer() {
        let limits = Limits::new(Mode::SpinBlock, 4, 2, false);
        assert_eq!(limits.step(0), Step::Poll);
        assert_eq!(limits.step(SPINS_SHARED), Step::Yield);
        let first = SPINS_SHARED + YIELDS_SHARED;
        assert_eq!(limits.step(first), Step::Sleep(Duration::from_micros(50)));
        assert_eq!(limits.step(u32::MAX), Step::Sleep(Duration::from_micros(1000)));
        assert_eq!(Limits::new(Mode::Spin, 4, 2, false).step(u32::MAX), Step::Yield);
        let alone = Limits::new(Mode::SpinBlock, 2, 2, false);
        assert_eq!([0, SPINS - 1, SPINS].map(|idle| alone.step(idle)), [Step::Poll, Step::Poll, Step::Yield]);
        assert_eq!(Limits::new(Mode::SpinBlock, 2, 2, true).step(FAR[0]), Step::Yield);
        assert_eq!(alone.crowded().step(SPINS_SHARED), Step::Yield);
        assert!(matches!(alone.crowded().step(SPINS_SHARED + YIELDS_SHARED), Step::Sleep(_)));
    }

    #[test]
    fn threads_that_share_processors_are_a_crowd() {
        let crowd: &Crowd = Box::leak(Box::new(Crowd::new(1)));
        let one = || {
            crowd.count.fetch_add(1, Ordering::Relaxed);
            Waiting(crowd)
        };
        let (first, second) = (one(), one());
        assert!(crowd.is_dense());
        drop(first);
        assert!(!crowd.is_dense());
        drop(second);
        assert!(!Crowd::new(0).is_dense());
    }
}
