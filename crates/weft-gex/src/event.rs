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

/// The event of operations: 0 if it is free, and otherwise one more than the number of operations under way. The
/// alignment keeps the low bits of its address free.
#[repr(align(16))]
pub struct Slot(AtomicU32);

const FREE_SLOT: u32 = 0;
const COMPLETE: u32 = 1;

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
            let batch: Box<[Self]> = (0..BATCH).map(|_| Self(AtomicU32::new(FREE_SLOT))).collect();
            free.extend(Box::leak(batch).iter());
        }
        let Some(slot) = free.pop() else { unreachable!("a batch was made") };
        slot.0.store(COMPLETE + 1, Ordering::Relaxed);
        slot
    }

    /// Notes that one more operation is under way.
    pub fn add(&self) {
        debug_assert_ne!(self.state(), State::Free);
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that an operation is complete.
    pub fn complete(&self) {
        debug_assert_eq!(self.state(), State::Pending);
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The state of the operations.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> State {
        match self.0.load(Ordering::Acquire) {
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

    /// Gives the slot back if the operations are complete. Returns whether they were.
    #[inline]
    pub fn test(&'static self) -> bool {
        match self.state() {
            State::Complete => {
                self.0.store(FREE_SLOT, Ordering::Relaxed);
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
        Box::leak(Box::new(Self(std::array::from_fn(|_| Slot(AtomicU32::new(COMPLETE))))))
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
