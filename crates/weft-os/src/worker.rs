//! `Worker`: a thread of ours, which whoever has started it ends and waits for.
//!
//! Place in the data flow: who closes what strangers have sent, who is told what the client unmaps, and in
//! weft-fi the progress thread, the flusher and the helpers of condition variables are such threads.
//!
//! Signals are the client's: its handlers do not run here. A child that the client forks has the structures,
//! but no such thread: there nobody waits for it.

use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, getpid};

use crate::SystemError;

/// Between two looks whether a thread has ended that is not waited for without limit.
const PAUSE: Duration = Duration::from_micros(100);

/// A thread of this process, or of the one that has forked it.
pub struct Worker {
    handle: JoinHandle<()>,
    owner: Pid,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// Of pthread_create(3): the process may have no more threads, or no memory for their stacks.
    pub fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<Self, SystemError> {
        let body = || {
            block_signals();
            run();
        };
        let handle = Builder::new().name(name.into()).spawn(body).map_err(SystemError::of("pthread_create"))?;
        Ok(Self { handle, owner: getpid() })
    }

    /// Ends its `std::thread::park`.
    pub fn unpark(&self) {
        self.handle.thread().unpark();
    }

    /// Whether this process has the thread.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.owner == getpid()
    }

    /// Waits for its end, which it has been told of, but not for longer than that: then it is left alone.
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

    /// Waits for its end, which it has been told of.
    pub fn join(self) {
        if !self.is_ours() {
            // Even to let go of the handle would touch what the system keeps of a thread that never was.
            std::mem::forget(self.handle);
            return;
        }
        let name = self.handle.thread().name().unwrap_or_default().to_owned();
        if self.handle.join().is_err() {
            log::error!(
                "the thread {name} has ended by a panic, which is a fault of weft; please report what was printed"
            );
        }
    }
}

/// None runs on this thread from now on.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: an initialised set; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}
