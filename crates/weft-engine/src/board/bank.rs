//! The counters of one bank of a board: arrivals, departures, and the release of the result.
//!
//! Place in the data flow: [`super::HostBoard`] runs each collective of a group in one of its banks.
//!
//! A bank serves one operation (*turn*) after another; the number of turns that it has served before is its *lap*.
//! All counters only grow, so that no member resets a word that another member polls.
//!
//! ```text
//! enter   departed = members × lap     all members have left the bank's previous turn
//! arrive  arrived + 1                  the contribution is in place; the last member combines and releases
//! release released = turn + 1          the results are in place
//! depart  departed + 1                 this member needs nothing of the turn any more
//! ```
//!
//! The atomics come from `super::sync`, so that a model checker can replace them (`tests/loom_board.rs`).

use super::sync::{AtomicU64, Ordering};

/// One bank in one turn.
#[derive(Clone, Copy)]
pub(super) struct Bank<'a> {
    pub(super) arrived: &'a AtomicU64,
    pub(super) released: &'a AtomicU64,
    pub(super) departed: &'a AtomicU64,
    pub(super) members: u64,
    pub(super) turn: u64,
    pub(super) lap: u64,
}

impl Bank<'_> {
    /// Whether all members have left the bank's previous turn.
    pub(super) fn is_free(&self) -> bool {
        self.departed.load(Ordering::Acquire) >= self.members.wrapping_mul(self.lap)
    }

    /// Reports that this member's contribution is in place. Returns whether all others were there before.
    pub(super) fn arrive(&self) -> bool {
        self.arrived.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == self.all()
    }

    /// Whether all members have arrived.
    pub(super) fn is_full(&self) -> bool {
        self.arrived.load(Ordering::Acquire) >= self.all()
    }

    /// Lets all members take the result.
    pub(super) fn release(&self) {
        self.released.store(self.turn + 1, Ordering::Release);
    }

    /// Whether the result may be taken.
    pub(super) fn is_released(&self) -> bool {
        self.released.load(Ordering::Acquire) > self.turn
    }

    /// Reports that this member needs nothing of the turn any more. Returns whether it was the last one.
    pub(super) fn depart(&self) -> bool {
        self.departed.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == self.all()
    }

    fn all(&self) -> u64 {
        self.members.wrapping_mul(self.lap + 1)
    }
}
