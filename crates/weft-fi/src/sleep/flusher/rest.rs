//! `Rest`: whether the flusher sleeps until it is called, and how it is called.
//!
//! Place in the data flow: `note` of a [`weft_nic::Unsent`] → [`super::call`] → here; the thread's loop. It
//! is a file of its own so that a model checker can try every interleaving with that note
//! (`tests/loom_flusher.rs`).
//!
//! No call is lost: the thread says that it sleeps, fences, and looks whether anything is kept; whoever keeps
//! something says so, fences, and looks whether the thread sleeps. A caller relies on the thread only once
//! the thread exists: a start that another caller has begun may fail.

use super::sync::{AtomicBool, Ordering, fence};

/// The thread's rest.
pub(super) struct Rest {
    /// The thread exists, and is not to end before the last endpoint is closed.
    exists: AtomicBool,
    /// It waits to be called.
    asleep: AtomicBool,
    stop: AtomicBool,
}

impl Rest {
    /// Before there is a thread.
    pub(super) fn new() -> Self {
        Self { exists: AtomicBool::new(false), asleep: AtomicBool::new(false), stop: AtomicBool::new(false) }
    }

    /// Something is kept. Returns whether the thread will write it. `wake` wakes the thread, or starts it
    /// where there is none, one caller at a time, and returns whether it exists then.
    pub(super) fn call(&self, wake: impl FnOnce() -> bool) -> bool {
        let sleeps = self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel);
        if sleeps || !self.exists.load(Ordering::Acquire) { wake() } else { true }
    }

    /// The thread was started.
    pub(super) fn has_begun(&self) {
        self.exists.store(true, Ordering::Release);
    }

    /// The thread is to end, once it is woken.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// It has.
    pub(super) fn has_ended(&self) {
        self.stop.store(false, Ordering::Release);
        self.exists.store(false, Ordering::Release);
    }

    /// Thread: whether it is to end.
    pub(super) fn ends(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Thread: wants to sleep, unless something is `kept`. [`Rest::sleep`] follows.
    pub(super) fn lie_down(&self, kept: impl FnOnce() -> bool) {
        self.asleep.store(true, Ordering::Relaxed);
        // Either the device's holder sees that we sleep, or we see what it keeps.
        fence(Ordering::SeqCst);
        if kept() {
            self.asleep.store(false, Ordering::Relaxed);
        }
    }

    /// Thread: sleeps by `park` until it is called or to end.
    pub(super) fn sleep(&self, park: impl Fn()) {
        while self.asleep.load(Ordering::Acquire) && !self.ends() {
            park();
        }
    }
}
