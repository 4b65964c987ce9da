//! `Signal`: what `fi_cq_signal` leaves for one reader, and how readers that go to sleep see it.
//!
//! Place in the data flow: `fi_cq_signal` → [`Signal::raise`] → the blocking read or `fi_trywait` that arms
//! the queue ([`Signal::arm`]). It is a file of its own so that a model checker can try the interleavings
//! (`tests/loom_trywait.rs`).
//!
//! No signal is slept over: it is raised before the bell is rung, and looked for after earlier rings were taken back.

use super::sync::{AtomicBool, Ordering};

/// Whether somebody has signaled, and no reader has seen it yet.
pub(crate) struct Signal(AtomicBool);

impl Signal {
    /// Nobody has.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Signals, and rings the bell by `notify`.
    pub(crate) fn raise(&self, notify: impl FnOnce()) {
        self.0.store(true, Ordering::Release);
        notify();
    }

    /// Whether somebody has signaled.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The same, of which the caller is the one that sees it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.is_raised() && self.0.swap(false, Ordering::AcqRel)
    }

    /// Prepares a reader's sleep: `drain` takes earlier notifications back, `arm` sets the reader's threshold.
    /// False: there is a signal, and the reader must not sleep.
    pub(crate) fn arm(&self, drain: impl FnOnce(), arm: impl FnOnce(), notify: impl FnOnce()) -> bool {
        drain();
        arm();
        // A signal that was raised before the drain must not be slept over, nor any other call that the drain
        // took back with it.
        let raised = self.is_raised();
        if raised {
            notify();
        }
        !raised
    }
}
