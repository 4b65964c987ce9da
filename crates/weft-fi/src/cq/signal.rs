//! `Signal`: the state that `fi_cq_signal` sets for one reader, and the check by readers that go to sleep.
//!
//! Place in the data flow: `fi_cq_signal` → [`Signal::raise`] → the blocking read or `fi_trywait` that arms
//! the queue ([`Signal::arm`]). The signal is a file of its own so that a model checker can try the
//! interleavings (`tests/loom_trywait.rs`).
//!
//! No signal is lost during a sleep. The signal is set before the notification is sent. A reader checks it
//! after it has drained earlier notifications.

use super::sync::{AtomicBool, Ordering};

/// True from a signal until a reader takes it.
pub(crate) struct Signal(AtomicBool);

impl Signal {
    /// Creates a signal that is not raised.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Raises the signal, and notifies sleepers by `notify`.
    pub(crate) fn raise(&self, notify: impl FnOnce()) {
        self.0.store(true, Ordering::Release);
        notify();
    }

    /// Whether the signal is raised.
    #[inline]
    pub(crate) fn is_raised(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// Takes the signal. Of several concurrent readers, one gets true.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.is_raised() && self.0.swap(false, Ordering::AcqRel)
    }

    /// Prepares a reader's sleep: `drain` discards earlier notifications, and `arm` sets the reader's
    /// threshold. False: the signal is raised, and the reader must not sleep.
    pub(crate) fn arm(&self, drain: impl FnOnce(), arm: impl FnOnce(), notify: impl FnOnce()) -> bool {
        drain();
        arm();
        // A signal raised before the drain must not be lost. `notify` also replaces other notifications that
        // the drain discarded.
        let raised = self.is_raised();
        if raised {
            notify();
        }
        !raised
    }
}
