//! `Rest`: whether the flusher sleeps until it is called, and how it is called.
//!
//! Place in the data flow: `note` of a [`weft_nic::Unsent`] → [`super::call`] → here; the thread's loop. It is a file of its own so that a
//! model checker can try every interleaving with that note (`tests/loom_flusher.rs`).
//!
//! No call is lost: the thread says that it sleeps, fences, and looks whether anything is kept; whoever keeps something says so, fences, and
//! looks whether the thread sleeps.

use super::sync::{AtomicBool, Ordering, fence};

/// The thread's rest. At the start there is no thread: `asleep`, and not to `stop`.
pub(super) struct Rest {
    /// There is no thread, or it waits to be called.
    pub(super) asleep: AtomicBool,
    pub(super) stop: AtomicBool,
}

impl Rest {
    /// Something is kept. True: the caller is the one to wake the thread, or to start it.
    pub(super) fn is_called(&self) -> bool {
        self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::AcqRel)
    }

    /// There is no thread: whoever calls next starts one.
    pub(super) fn is_nobody(&self) {
        self.asleep.store(true, Ordering::Release);
    }

    /// The thread is to end, once it is woken.
    pub(super) fn end(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// It has.
    pub(super) fn has_ended(&self) {
        self.stop.store(false, Ordering::Release);
        self.is_nobody();
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
