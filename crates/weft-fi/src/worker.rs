//! `Worker`: a thread of ours, which whoever has started it ends and waits for.
//!
//! Place in the data flow: the progress thread ([`crate::progress`]), the flusher ([`crate::flusher`]) and the helpers of condition
//! variables ([`crate::wait`]) are such threads.
//!
//! Signals are the client's: its handlers do not run here. A child that the client forks has the structures, but no such thread: there
//! nobody waits for it.

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::process::{Pid, getpid};
use weft_nic::signals;

/// A thread of this process, or of the one that has forked it.
pub(crate) struct Worker {
    handle: JoinHandle<()>,
    owner: Pid,
}

impl Worker {
    /// Starts it.
    pub(crate) fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<Self> {
        let handle = Builder::new().name(name.into()).spawn(|| {
            signals::block();
            run();
        })?;
        Ok(Self { handle, owner: getpid() })
    }

    /// Ends its `std::thread::park`.
    pub(crate) fn unpark(&self) {
        self.handle.thread().unpark();
    }

    /// Waits for its end, which it has been told of.
    pub(crate) fn join(self) {
        if self.owner != getpid() {
            // Even to let go of the handle would touch what the system keeps of a thread that never was.
            std::mem::forget(self.handle);
            return;
        }
        let name = self.handle.thread().name().unwrap_or_default().to_owned();
        if self.handle.join().is_err() {
            log::error!(
                "the thread {name} has ended by a panic, which is a fault of weft: please report what was printed"
            );
        }
    }
}
