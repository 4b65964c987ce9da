//! `Signal`: what `fi_cq_signal` leaves for one reader, and how readers that go to sleep see it.
//!
//! Place in the data flow: `fi_cq_signal` → [`Signal::give`] → the blocking read or `fi_trywait` that arms
//! the queue ([`Signal::arm`]). It is a file of its own so that a model checker can try the interleavings
//! (`tests/loom_trywait.rs`).
//!
//! No signal is slept over: it is given before the bell is rung, and looked for after earlier rings were taken back.

use super::sync::{AtomicBool, Ordering};

/// Whether somebody has signaled, and no reader has seen it yet.
pub(crate) struct Signal(AtomicBool);

impl Signal {
    /// Nobody has.
    pub(crate) fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Signals, and rings the bell by `ring`.
    pub(crate) fn give(&self, ring: impl FnOnce()) {
        self.0.store(true, Ordering::Release);
        ring();
    }

    /// Whether somebody has signaled.
    #[inline]
    pub(crate) fn is_given(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }

    /// The same, of which the caller is the one that sees it.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        self.is_given() && self.0.swap(false, Ordering::AcqRel)
    }

    /// For a reader that is about to sleep: takes earlier rings back by `hush`, and makes its `wish`. False:
    /// somebody has signaled.
    pub(crate) fn arm(&self, hush: impl FnOnce(), wish: impl FnOnce(), ring: impl FnOnce()) -> bool {
        hush();
        wish();
        // A signal that was given before the hush must not be slept over, nor any other call that the hush
        // took back with it.
        let given = self.is_given();
        if given {
            ring();
        }
        !given
    }
}
