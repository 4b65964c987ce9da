//! Events of operations that do not complete in their call.
//!
//! Place in the data flow: an accepted operation takes a [`Slot`], whose address is the client's event. Polls of the
//! rank complete it. Between the ranks of a host, accesses complete in their calls and need none.
//!
//! A slot belongs to the client from the start of the operation until a test or wait finds it complete. Any thread may
//! test it, but one event is tested by one thread at a time.

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

/// The event of an operation. The alignment keeps the low bits of its address free.
#[repr(align(16))]
pub struct Slot(AtomicU32);

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
            let batch: Box<[Self]> = (0..BATCH).map(|_| Self(AtomicU32::new(0))).collect();
            free.extend(Box::leak(batch).iter());
        }
        let Some(slot) = free.pop() else { unreachable!("a batch was made") };
        slot.0.store(1, Ordering::Relaxed);
        slot
    }

    /// Notes that the operation is complete.
    pub fn complete(&self) {
        debug_assert_eq!(self.state(), State::Pending);
        self.0.store(2, Ordering::Release);
    }

    /// The state of the operation.
    #[inline(always)]
    #[must_use]
    pub fn state(&self) -> State {
        match self.0.load(Ordering::Acquire) {
            0 => State::Free,
            1 => State::Pending,
            _ => State::Complete,
        }
    }

    /// Gives the slot back if the operation is complete. Returns whether it was.
    #[inline]
    pub fn test(&'static self) -> bool {
        match self.state() {
            State::Complete => {
                self.0.store(0, Ordering::Relaxed);
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
}
