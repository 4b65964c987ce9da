//! The counters of a board's bank in a model checker, which tries all interleavings (up to a limit of preemptions) and
//! all values that a load may return under the C11 memory model.
//!
//! `bank.rs` is included as it ships. Two members use one bank for two operations, one after the other. The slots and
//! the result belong to the checker, which reports an access that is not ordered after the previous one. Each member
//! must find the contributions of its own turn: a bank is not used again while a member still reads it.
#![allow(clippy::arc_with_non_send_sync, clippy::unwrap_used, unsafe_code)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU64, Ordering};

#[path = "../src/board/bank.rs"]
mod bank;
#[path = "../../weft-os/tests/model/mod.rs"]
mod model;

use bank::Bank;

/// Imports of the file under test from its neighbour.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
}

const MEMBERS: usize = 2;

/// A bank with one slot for each member.
struct Shared {
    arrived: AtomicU64,
    released: AtomicU64,
    departed: AtomicU64,
    slots: [UnsafeCell<u64>; MEMBERS],
    result: UnsafeCell<u64>,
    combined: AtomicU64,
}

impl Shared {
    fn new() -> Self {
        Self {
            arrived: AtomicU64::new(0),
            released: AtomicU64::new(0),
            departed: AtomicU64::new(0),
            slots: std::array::from_fn(|_| UnsafeCell::new(0)),
            result: UnsafeCell::new(0),
            combined: AtomicU64::new(0),
        }
    }

    /// The bank in its lap, which is also the turn: there is one bank.
    fn bank(&self, turn: u64) -> Bank<'_> {
        Bank {
            arrived: &self.arrived,
            released: &self.released,
            departed: &self.departed,
            members: MEMBERS as u64,
            turn,
            lap: turn,
        }
    }

    /// One member's part in an operation: contribute, combine if it is the last one, take the result.
    fn take_part(&self, place: usize, turn: u64) {
        let bank = self.bank(turn);
        while !bank.is_free() {
            loom::thread::yield_now();
        }
        self.slots[place].with_mut(|slot| write(slot, part(place, turn)));
        if bank.arrive() {
            let sum = (0..MEMBERS).map(|place| self.slots[place].with(read)).sum();
            self.result.with_mut(|result| write(result, sum));
            self.combined.fetch_add(1, Ordering::Relaxed);
            bank.release();
        }
        while !bank.is_released() {
            loom::thread::yield_now();
        }
        assert_eq!(self.result.with(read), part(0, turn) + part(1, turn), "the result of this turn");
        assert_eq!(self.slots[1 - place].with(read), part(1 - place, turn), "the slot of this turn");
        bank.depart();
    }
}

const fn part(place: usize, turn: u64) -> u64 {
    1 + place as u64 + 10 * turn
}

fn write(to: *mut u64, value: u64) {
    // SAFETY: the cell is alive, and the checker reports any access beside this one.
    unsafe { to.write(value) };
}

fn read(from: *const u64) -> u64 {
    // SAFETY: the cell is alive, and the checker reports any write beside this read.
    unsafe { from.read() }
}

#[test]
fn members_find_the_contributions_of_their_turn() {
    model::check(3, || {
        let shared = Arc::new(Shared::new());
        let other = Arc::clone(&shared);
        let thread = loom::thread::spawn(move || (0..2).for_each(|turn| other.take_part(1, turn)));
        (0..2).for_each(|turn| shared.take_part(0, turn));
        assert!(thread.join().is_ok(), "the other member ends");
        assert_eq!(shared.combined.load(Ordering::Relaxed), 2, "one member combines each turn");
    });
}
