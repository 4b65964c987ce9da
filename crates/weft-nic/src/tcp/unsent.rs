//! A device's note of accepted messages that it has not handed to the kernel.
//!
//! Place in the data flow: `Tcp::send` notes here that it defers bytes. The device's owner gives the [`Unsent`] to a
//! thread that writes the bytes even if the client, whose sends are complete, does not poll again
//! ([`super::Tcp::drain`]).
//!
//! Protocol: only the holder of the device calls [`Unsent::note`] and [`Unsent::clear`], and `clear` only after no
//! message is deferred. Between the two calls the flag is set. The thread behind `notify` must announce its sleep
//! before it checks the flag, with a fence between. `note` first sets the flag and then notifies, with a fence between.
//! weft-fi's `tests/loom_flusher.rs` tries the interleavings.

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The flag of one device.
#[derive(Debug)]
pub struct Unsent {
    kept: AtomicBool,
    times: AtomicU32,
    notify: fn() -> bool,
}

impl Unsent {
    /// `notify` is called for the first deferred message after none was deferred; it must be quick. It returns whether
    /// the message will be written; `false` means that no thread can do so.
    #[must_use]
    pub fn new(notify: fn() -> bool) -> Self {
        Self { kept: AtomicBool::new(false), times: AtomicU32::new(0), notify }
    }

    /// Notes a deferred message. `false`: the device must write it immediately.
    #[inline]
    pub(super) fn note(&self) -> bool {
        // Only the holder of the device writes these fields.
        self.times.store(self.times.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.kept.load(Ordering::Relaxed) {
            self.kept.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !(self.notify)() {
                // The next message notifies again.
                self.clear();
                return false;
            }
        }
        true
    }

    /// Notes that no message is deferred. Only the holder of the device may call this.
    pub fn clear(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }

    /// A number that changes with every deferred message; `None` if no message is deferred.
    #[must_use]
    pub fn kept(&self) -> Option<u32> {
        self.kept.load(Ordering::Relaxed).then(|| self.times.load(Ordering::Relaxed))
    }
}
