//! Events of operations that do not complete in their call.
//!
//! Place in the data flow: an accepted operation takes a [`Slot`], whose address is the client's event, and completes
//! it while a rank polls. Between the ranks of a neighbourhood, accesses complete in their calls and need none.
//!
//! A slot counts operations, so that an event may stand for several: the pieces of an access, or the accesses of a
//! region. It belongs to the client from the start until a test or wait finds it complete. Any thread may test it, but
//! one event is tested by one thread at a time.
//!
//! Operations without an event of their own are counted in the slots of their thread ([`Implicit`]).

use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;

use crate::after;

/// The state of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The slot is free.
    Free,
    /// The operation is under way.
    Pending,
    /// It is complete.
    Complete,
}

/// The event of operations. The alignment keeps the low bits of its address free.
#[repr(align(16))]
pub struct Slot {
    /// 0 if it is free, and otherwise one more than the number of operations under way, with flags.
    word: AtomicU32,
    /// The rank that performs the only operation in the order of its link, plus 1; 0: it has no such place in an order.
    turn: AtomicU32,
}

const FREE_SLOT: u32 = 0;
const COMPLETE: u32 = 1;
/// An operation has failed, or was cancelled.
const FAILED: u32 = 1 << 31;
/// Operations wait for the event ([`crate::after`]). It is not complete before they know.
const AWAITED: u32 = 1 << 30;

/// Slots that are free.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());
/// Slots that are made at a time.
const BATCH: usize = 64;

impl Slot {
    /// Takes a slot for a new operation.
    pub fn take() -> &'static Self {
        let mut free = FREE.lock();
        if free.is_empty() {
            // Slots are never freed, so that an event of the client never dangles.
            let batch: Box<[Self]> = (0..BATCH).map(|_| Self::new(FREE_SLOT)).collect();
            free.extend(Box::leak(batch).iter());
        }
        let Some(slot) = free.pop() else { unreachable!("a batch was made") };
        slot.turn.store(0, Ordering::Relaxed);
        slot.word.store(COMPLETE + 1, Ordering::Relaxed);
        slot
    }

    const fn new(word: u32) -> Self {
        Self { word: AtomicU32::new(word), turn: AtomicU32::new(0) }
    }

    /// Notes that one more operation is under way.
    pub fn add(&self) {
        debug_assert_ne!(self.state(), State::Free);
        self.word.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an operation is complete.
    pub fn complete(&self) {
        debug_assert_eq!(self.state(), State::Pending);
        let before = self.word.fetch_sub(1, Ordering::Release);
        if before & AWAITED != 0 && before & !(FAILED | AWAITED) == COMPLETE + 1 {
            after::release(self);
        }
    }

    /// Notes that an operation has failed. It is complete then.
    pub fn fail(&self) {
        self.word.fetch_or(FAILED, Ordering::Relaxed);
        self.complete();
    }

    /// Whether one of the operations has failed so far.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.word.load(Ordering::Acquire) & FAILED != 0
    }

    /// Notes that operations wait for the event. Returns false if it is complete.
    pub(crate) fn set_awaited(&self) -> bool {
        let change = |word: u32| (word & !FAILED != COMPLETE).then_some(word | AWAITED);
        self.word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).is_ok()
    }

    /// Notes that the operations that wait for the event know of its end.
    pub(crate) fn clear_awaited(&self) {
        self.word.fetch_and(!AWAITED, Ordering::Release);
    }

    /// Notes that the only operation is performed by a rank in the order of its link.
    pub fn set_turn(&self, rank: u32) {
        self.turn.store(rank + 1, Ordering::Relaxed);
    }

    /// The rank that performs the only operation before what is started later.
    pub(crate) fn turn(&self) -> Option<u32> {
        self.turn.load(Ordering::Relaxed).checked_sub(1)
    }

    /// The state of the operations.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> State {
        match self.word.load(Ordering::Acquire) & !FAILED {
            FREE_SLOT => State::Free,
            COMPLETE => State::Complete,
            _ => State::Pending,
        }
    }

    /// Whether all operations are complete.
    #[inline(always)]
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.state() == State::Complete
    }

    /// Whether no operation is under way, be the slot free or not.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.state() != State::Pending
    }

    /// Gives the slot back if the operations are complete. Returns whether they were.
    #[inline]
    pub fn test(&'static self) -> bool {
        match self.state() {
            State::Complete => {
                self.word.store(FREE_SLOT, Ordering::Relaxed);
                FREE.lock().push(self);
                true
            }
            State::Pending => false,
            State::Free => {
                crate::fatal!("an event was tested after it was found complete; overwrite it with GEX_EVENT_INVALID")
            }
        }
    }
}

/// The kind of an operation that a thread counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Category {
    /// A get.
    Get,
    /// A put, and its local completion.
    Put,
    /// An atomic operation that reads and writes.
    Update,
}

/// The operations of a thread that have no event of their own. It is never freed, because operations may outlast their
/// thread.
pub struct Implicit([Slot; 3]);

impl Implicit {
    /// Counters of a new thread.
    #[must_use]
    pub fn leak() -> &'static Self {
        Box::leak(Box::new(Self(std::array::from_fn(|_| Slot::new(COMPLETE)))))
    }

    /// The counter of a category.
    #[must_use]
    pub fn of(&'static self, category: Category) -> &'static Slot {
        &self.0[category as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_used_again() {
        let slots: Vec<_> = (0..BATCH + 1).map(|_| Slot::take()).collect();
        assert!(slots.iter().all(|slot| slot.state() == State::Pending && !slot.test()));
        slots.iter().for_each(|slot| slot.complete());
        assert!(slots.iter().all(|slot| slot.test()));
        assert!(slots.iter().all(|slot| slot.state() == State::Free));
    }

    #[test]
    fn a_failure_is_seen_until_the_slot_is_used_again() {
        let slot = Slot::take();
        slot.add();
        slot.fail();
        assert!(slot.has_failed() && !slot.is_complete());
        slot.complete();
        assert!(slot.has_failed() && slot.is_complete() && !slot.set_awaited() && slot.test());
        assert!((0..2 * BATCH).map(|_| Slot::take()).all(|slot| !slot.has_failed()));
    }

    #[test]
    fn a_slot_counts_operations() {
        let slot = Slot::take();
        slot.add();
        slot.complete();
        assert!(!slot.test());
        slot.complete();
        assert!(slot.test());
        let counters = Implicit::leak();
        let puts = counters.of(Category::Put);
        puts.add();
        assert!(!puts.is_complete() && counters.of(Category::Get).is_complete());
        puts.complete();
        assert!(puts.is_complete());
    }
}
