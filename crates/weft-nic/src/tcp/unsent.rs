//! What a device tells of messages that it has taken and not handed to the kernel yet.
//!
//! Place in the data flow: `Tcp::send` notes here that it keeps bytes; whoever owns the device hands a [`Unsent`] to
//! somebody who sees to it that they leave even if the client, whose sends are complete, does not come back
//! ([`super::Tcp::drain`]).
//!
//! Protocol: [`Unsent::note`] comes from whoever holds the device, [`Unsent::clear`] as well, after it has
//! seen that nothing is kept. Between the two, the flag is set. The caller of `calls` that is about to sleep
//! must first say so and then look at the flag, with a fence between; `note` sets the flag and calls then, in
//! this order. (weft-fi's `tests/loom_flusher.rs` tries the interleavings.)

use super::sync::{AtomicBool, AtomicU32, Ordering, fence};

/// The flag of one device.
#[derive(Debug)]
pub struct Unsent {
    kept: AtomicBool,
    times: AtomicU32,
    calls: fn() -> bool,
}

impl Unsent {
    /// `calls` is called when there is something, after there was nothing: it must be quick. It returns
    /// whether the message will be written; `false`: there is no thread that could.
    #[must_use]
    pub fn new(calls: fn() -> bool) -> Self {
        Self { kept: AtomicBool::new(false), times: AtomicU32::new(0), calls }
    }

    /// A message is kept. `false`: the device must write it itself, now.
    #[inline]
    pub(super) fn note(&self) -> bool {
        // Only the holder of the device writes these.
        self.times.store(self.times.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        if !self.kept.load(Ordering::Relaxed) {
            self.kept.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if !(self.calls)() {
                // The next message asks again.
                self.clear();
                return false;
            }
        }
        true
    }

    /// Nothing is kept any more. Only for the holder of the device.
    pub fn clear(&self) {
        self.kept.store(false, Ordering::Relaxed);
    }

    /// If something may be kept: a number that changes with every message that was.
    #[must_use]
    pub fn kept(&self) -> Option<u32> {
        self.kept.load(Ordering::Relaxed).then(|| self.times.load(Ordering::Relaxed))
    }
}
