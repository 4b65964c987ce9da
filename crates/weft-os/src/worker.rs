//! `Worker`: a thread of weft, which its creator stops and joins.
//!
//! Place in the data flow: none; these threads carry no messages. They close descriptors that unknown peers sent,
//! and read reports of unmapped memory. In weft-fi they are the progress thread, the flusher, and the helpers of
//! condition variables.
//!
//! Signals are blocked on these threads, so the client's handlers do not run there. A forked child has a copy
//! of the structure but not the thread, so it does not join.

use std::num::NonZeroU64;
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid, getpriority_process};
use rustix::thread::set_current_timer_slack;

use crate::SystemError;

/// The interval between two checks in a join with a time limit.
const PAUSE: Duration = Duration::from_micros(100);
/// The shortest time slice that the scheduler grants, in nanoseconds.
const SLICE_NS: u64 = 100_000;
/// The time by which the system may prolong a sleep, in nanoseconds.
const TIMER_SLACK_NS: u64 = 1000;

/// A thread of this process, or of the parent from which this process was forked.
pub struct Worker {
    handle: JoinHandle<()>,
    owner: Pid,
}

impl Worker {
    /// Starts a thread that calls `run`.
    ///
    /// # Errors
    /// [`SystemError`] of pthread_create(3): the process may start no more threads, or has no memory for
    /// their stacks.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self, SystemError> {
        let body = || {
            block_signals();
            run();
        };
        let handle = Builder::new().name(name.into()).spawn(body).map_err(SystemError::of("pthread_create"))?;
        Ok(Self { handle, owner: getpid() })
    }

    /// Wakes the thread from `std::thread::park`.
    pub fn unpark(&self) {
        self.handle.thread().unpark();
    }

    /// Whether the thread belongs to this process.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.owner == getpid()
    }

    /// Joins the thread, which was already told to stop, for at most `time`; then leaves it running.
    pub fn join_within(self, time: Duration) {
        let end = Instant::now() + time;
        while self.is_ours() && !self.handle.is_finished() {
            if Instant::now() > end {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        self.join();
    }

    /// Joins the thread, which was already told to stop.
    pub fn join(self) {
        if !self.is_ours() {
            // Dropping the handle would detach a thread that does not exist in this process.
            std::mem::forget(self.handle);
            return;
        }
        let name = self.handle.thread().name().unwrap_or_default().to_owned();
        if self.handle.join().is_err() {
            log::error!(
                "the thread {name} has panicked, which is a bug in weft; please report the messages on standard error"
            );
        }
    }
}

/// Chooses whether the system runs the calling thread soon after its wake-ups, beside a thread of the same processor
/// that computes. The thread gets a short time slice: with EEVDF (Linux 6.12) a thread that wakes interrupts one with a
/// longer slice. Its sleeps end in time. Has no effect where the system refuses it.
pub fn set_short_time_slice(soon: bool) {
    // 0 stands for the system's own values.
    let (slice_ns, slack_ns) = if soon { (SLICE_NS, TIMER_SLACK_NS) } else { (0, 0) };
    let attributes = libc::sched_attr {
        size: u32::try_from(size_of::<libc::sched_attr>()).unwrap_or(0),
        sched_policy: 0,
        sched_flags: libc::SCHED_FLAG_KEEP_POLICY.cast_unsigned().into(),
        sched_nice: getpriority_process(None).unwrap_or(0),
        sched_priority: 0,
        sched_runtime: slice_ns,
        sched_deadline: 0,
        sched_period: 0,
    };
    // SAFETY: the system reads the structure, whose size it gets. Thread 0 is the caller.
    let _ = unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    let _ = set_current_timer_slack(NonZeroU64::new(slack_ns));
}

/// Blocks all signals on the calling thread.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: the set is initialised, and the old mask is not requested.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
