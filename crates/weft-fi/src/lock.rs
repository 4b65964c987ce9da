//! `Guarded<T>`: the one lock of an endpoint or a queue, which vanishes where the threading level lets it.
//!
//! Place in the data flow: every data-path call of weft-fi enters an endpoint's engine, and every completion
//! a queue's ring, through a `Guarded`. This file is the only place where that exclusion is `unsafe`.
//!
//! Two kinds, chosen when the cell is made:
//! - *shared* (FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT, or automatic progress): an ordinary mutex.
//! - *owned* (FI_THREAD_DOMAIN, FI_THREAD_COMPLETION with manual progress): the client promises that data-path calls
//!   are serialized (fi_domain(3), "Multi-threading Support"), so [`Guarded::lock`] takes no atomic
//!   read-modify-write: it sets a flag, looks at another, and is in. Control calls (address vectors, memory
//!   registration, close) remain thread safe by the same man page; they come in by [`Guarded::intrude`], which takes
//!   the mutex, announces itself, makes every other thread execute a memory barrier (membarrier(2), so that the
//!   owner needs none), and waits until the owner is out. Where the kernel refuses membarrier, an owned cell is made
//!   shared.
//!
//! Invariants: at most one guard exists at a time; neither method may be called while the same thread holds a guard
//! of the same cell. Lock order of the crate: a poll list, then an endpoint's engine, then a queue's ring; rings are
//! leaves.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use parking_lot::lock_api::RawMutex as _;
use rustix::thread::{MembarrierCommand, membarrier};

/// Who calls the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Any thread at any time.
    Any,
    /// One thread at a time: the client serializes.
    One,
}

/// A value behind a lock that costs what the threading level demands.
pub(crate) struct Guarded<T> {
    /// Whether `lock` relies on the client's serialization.
    owned: bool,
    /// Owned: a data-path caller is inside, or tries to be.
    inside: AtomicBool,
    /// Owned: an intruder is inside, or waits.
    intruder: AtomicBool,
    mutex: parking_lot::RawMutex,
    value: UnsafeCell<T>,
}

// SAFETY: access to `value` is exclusive (see `lock`, `intrude`), so sharing the cell hands the value from
// thread to thread, which `T: Send` permits.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Exclusive access, until dropped.
pub(crate) struct Guard<'a, T> {
    cell: &'a Guarded<T>,
    held: Held,
}

/// By what right a guard exists, and so what its end must undo.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// `inside` is set.
    Flag,
    /// The mutex is ours.
    Mutex,
    /// The mutex is ours and `intruder` is set.
    Intruder,
}

impl<T> Guarded<T> {
    /// A cell that any thread may enter.
    pub(crate) fn shared(value: T) -> Self {
        Self {
            owned: false,
            inside: AtomicBool::new(false),
            intruder: AtomicBool::new(false),
            mutex: parking_lot::RawMutex::INIT,
            value: UnsafeCell::new(value),
        }
    }

    /// A cell for the given callers.
    ///
    /// # Safety
    /// With [`Callers::One`], calls of [`Guarded::lock`] and the lives of the guards they return must not overlap
    /// between threads, and must be ordered by happens-before: what the client promised by its threading level.
    pub(crate) unsafe fn new(callers: Callers, value: T) -> Self {
        let mut cell = Self::shared(value);
        cell.owned = callers == Callers::One && can_intrude();
        cell
    }

    /// Enters from the data path.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.owned {
            debug_assert!(!self.inside.load(Ordering::Relaxed), "the threading level promised serialized calls");
            self.inside.store(true, Ordering::Relaxed);
            // Orders the store before the load below as far as the compiler goes; the processor's part is
            // done by the intruder's membarrier.
            compiler_fence(Ordering::SeqCst);
            if self.intruder.load(Ordering::Acquire) {
                return self.lock_after_intruder();
            }
            return Guard { cell: self, held: Held::Flag };
        }
        self.mutex.lock();
        Guard { cell: self, held: Held::Mutex }
    }

    /// The owner met an intruder: it steps out and queues up.
    #[cold]
    fn lock_after_intruder(&self) -> Guard<'_, T> {
        self.inside.store(false, Ordering::Release);
        self.mutex.lock();
        Guard { cell: self, held: Held::Mutex }
    }

    /// Enters from a control call or another thread of ours, whatever the client promised.
    pub(crate) fn intrude(&self) -> Guard<'_, T> {
        self.mutex.lock();
        if !self.owned {
            return Guard { cell: self, held: Held::Mutex };
        }
        self.intruder.store(true, Ordering::Relaxed);
        // Registered in `can_intrude`; cannot fail then. The flag store above and the load below must not be
        // exchanged by the compiler; the system call is a barrier for it as well.
        let barrier = membarrier(MembarrierCommand::PrivateExpedited);
        debug_assert!(barrier.is_ok());
        let mut rounds = 0_u32;
        while self.inside.load(Ordering::Acquire) {
            rounds += 1;
            if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
        }
        Guard { cell: self, held: Held::Intruder }
    }

    /// Like [`Guarded::lock`], but gives up where it would wait for another data-path caller.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.owned {
            return Some(self.lock());
        }
        self.mutex.try_lock().then(|| Guard { cell: self, held: Held::Mutex })
    }

    /// Like [`Guarded::try_lock`] for our own threads, which no threading level covers: only for shared cells.
    pub(crate) fn try_lock_shared(&self) -> Option<Guard<'_, T>> {
        debug_assert!(!self.owned, "only a shared cell is entered by our own threads");
        (!self.owned).then(|| self.try_lock()).flatten()
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;
    #[inline]
    fn deref(&self) -> &T {
        // SAFETY: while this guard lives no other exists. `Mutex` and `Intruder` guards hold the mutex. A `Flag`
        // guard excludes other `lock` callers by the promise of `new`, and intruders because either the intruder's
        // membarrier came after our store to `inside`, which it then waits for, or before our load of `intruder`,
        // which then sent us to the mutex.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`; `&mut self` makes the borrow unique.
        unsafe { &mut *self.cell.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    #[inline]
    fn drop(&mut self) {
        if self.held == Held::Flag {
            self.cell.inside.store(false, Ordering::Release);
            return;
        }
        if self.held == Held::Intruder {
            self.cell.intruder.store(false, Ordering::Release);
        }
        // SAFETY: this guard was made with the mutex locked and has not unlocked it.
        unsafe { self.cell.mutex.unlock() };
    }
}

/// Whether this process may make other threads execute barriers; registers for it on first use.
fn can_intrude() -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `lockers` threads of data-path calls and two intruders raise one plain integer; none may be lost.
    fn hammer(cell: &Guarded<u64>, lockers: u32) {
        const LOCKS: u64 = 200_000;
        const INTRUSIONS: u64 = 500;
        std::thread::scope(|scope| {
            for _ in 0..lockers {
                scope.spawn(|| {
                    for _ in 0..LOCKS {
                        *cell.lock() += 1;
                    }
                });
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..INTRUSIONS {
                        *cell.intrude() += 1;
                    }
                });
            }
        });
        assert_eq!(*cell.intrude(), u64::from(lockers) * LOCKS + 2 * INTRUSIONS);
    }

    #[test]
    fn an_owner_and_intruders_exclude_each_other() {
        // SAFETY: exactly one thread calls `lock`.
        let cell = unsafe { Guarded::new(Callers::One, 0) };
        hammer(&cell, 1);
    }

    #[test]
    fn shared_callers_exclude_each_other() {
        hammer(&Guarded::shared(0), 2);
    }

    #[test]
    fn a_held_cell_is_not_entered_by_trying() {
        let cell = Guarded::shared(7);
        let guard = cell.lock();
        assert!(cell.try_lock_shared().is_none());
        drop(guard);
        assert_eq!(cell.try_lock_shared().map(|guard| *guard), Some(7));
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "serialized calls")]
    fn a_broken_promise_is_noticed_in_debug_builds() {
        // SAFETY: one thread; the overlap is the point of the test and ends in the panic before any access.
        let cell = unsafe { Guarded::new(Callers::One, 0) };
        assert!(cell.owned, "without membarrier every cell is shared, which relies on no serialized calls");
        let _outer = cell.lock();
        let _inner = cell.lock();
    }
}
