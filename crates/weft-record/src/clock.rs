//! The time of a process: which part of it is computation.
//!
//! Place in the data flow: each recorded call reports its begin and its end here. The [`crate::Writer`] takes the
//! computation in front of each event.
//!
//! Threads need no lock. Where two threads are in calls at a time, the computation between them is taken as that of
//! one process, and a part of it may be lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_os::clock::ticks;

use crate::SPIN_TICKS;

/// The clock of a process. It has ticks of the processor, whose duration the writer notes.
#[derive(Debug, Default)]
pub struct Clock {
    /// When the last call returned.
    left: AtomicU64,
    /// Computation that no event has in front of it yet.
    gap: AtomicU64,
    /// The last call was a test that found nothing.
    spins: AtomicBool,
}

impl Clock {
    /// A clock that has to be started.
    #[must_use]
    pub const fn new() -> Self {
        Self { left: AtomicU64::new(0), gap: AtomicU64::new(0), spins: AtomicBool::new(false) }
    }

    /// The process begins. Returns the time.
    pub(crate) fn start(&self) -> u64 {
        let now = ticks();
        self.leave_at(now, false);
        self.gap.store(0, Ordering::Relaxed);
        now
    }

    /// A call begins.
    #[inline]
    pub fn enter(&self) {
        self.enter_at(ticks());
    }

    #[inline]
    fn enter_at(&self, now: u64) {
        let passed = now.saturating_sub(self.left.load(Ordering::Relaxed));
        if passed >= SPIN_TICKS || !self.spins.load(Ordering::Relaxed) {
            self.gap.store(self.gap.load(Ordering::Relaxed) + passed, Ordering::Relaxed);
        }
    }

    /// A call returns.
    #[inline]
    pub fn leave(&self) {
        self.leave_at(ticks(), false);
    }

    /// A test returns that has found nothing.
    #[inline]
    pub fn leave_empty(&self) {
        self.leave_at(ticks(), true);
    }

    #[inline]
    fn leave_at(&self, now: u64, spins: bool) {
        self.left.store(now, Ordering::Relaxed);
        self.spins.store(spins, Ordering::Relaxed);
    }

    /// Takes the computation for an event.
    #[inline]
    pub(crate) fn take_gap(&self) -> u64 {
        let gap = self.gap.load(Ordering::Relaxed);
        self.gap.store(0, Ordering::Relaxed);
        gap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loops_that_wait_are_no_computation() {
        let clock = Clock::new();
        clock.enter_at(500);
        clock.leave_at(600, true);
        clock.enter_at(650);
        clock.leave_at(700, true);
        clock.enter_at(700 + SPIN_TICKS);
        assert_eq!(clock.take_gap(), 500 + SPIN_TICKS, "a loop that waits, and work between two tests");
        assert_eq!(clock.take_gap(), 0);
    }
}
