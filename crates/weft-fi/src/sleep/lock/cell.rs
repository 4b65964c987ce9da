//! The cell: who may enter when, and the order of the accesses that decide it.
//!
//! Place in the data flow: [`super`] says what it is for. It is a file of its own so that a model checker can
//! try every interleaving (`tests/loom_lock.rs`); the primitives that the checker exchanges come from
//! `super::sync`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::sync::{AtomicBool, Mutex, Ordering, can_intrude, heavy_fence, light_fence, pause};
use super::{Callers, Meter, is_ours};

/// A value behind a lock that costs what the threading level demands.
pub(crate) struct Guarded<T> {
    /// Whether `lock` relies on the client's serialization.
    pub(super) owned: bool,
    /// Owned: a data-path caller is inside, or tries to be.
    inside: AtomicBool,
    /// Owned: the mutex counts, because an intruder is inside, or waits, or the cell is open.
    intruder: AtomicBool,
    /// Owned: visits have not ended. Written with the mutex held.
    open: AtomicBool,
    mutex: Mutex,
    pub(super) meter: Arc<Meter>,
    value: UnsafeCell<T>,
}

// SAFETY: access to `value` is exclusive (see `lock`, `intrude`), so sharing the cell hands the value from
// thread to thread, which `T: Send` permits.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Exclusive access, until dropped.
pub(crate) struct Guard<'a, T> {
    cell: &'a Guarded<T>,
    pub(super) held: Held,
}

/// By what right a guard exists, and so what its end must undo.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// `inside` is set.
    Flag,
    /// The mutex is ours.
    Mutex,
    /// The mutex is ours and `intruder` is set.
    Intruder,
}

impl<T> Guarded<T> {
    /// A cell for the given callers, whose waits are counted by `meter`.
    ///
    /// # Safety
    /// With [`Callers::One`], calls of [`Guarded::lock`] and the lives of the guards they return must not overlap
    /// between threads, and must be ordered by happens-before: what the client promised by its threading level.
    pub(crate) unsafe fn new(callers: Callers, meter: &Arc<Meter>, value: T) -> Self {
        Self {
            owned: callers == Callers::One && can_intrude(),
            inside: AtomicBool::new(false),
            intruder: AtomicBool::new(false),
            open: AtomicBool::new(false),
            mutex: Mutex::new(),
            meter: Arc::clone(meter),
            value: UnsafeCell::new(value),
        }
    }

    /// Enters from the data path.
    #[inline(always)]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.owned {
            debug_assert!(!self.inside.load(Ordering::Relaxed), "the threading level promised serialized calls");
            debug_assert!(!is_ours(), "a thread of ours must visit");
            self.inside.store(true, Ordering::Relaxed);
            // Orders the store before the load below as far as the compiler goes; the processor's part is
            // done by the intruder's membarrier.
            light_fence();
            if self.intruder.load(Ordering::Acquire) {
                self.step_out();
                return Guard { cell: self, held: Held::Mutex };
            }
            return Guard { cell: self, held: Held::Flag };
        }
        self.queue_up();
        Guard { cell: self, held: Held::Mutex }
    }

    /// The owner met an intruder: it steps out and queues up. (It returns nothing, so that the compiler knows
    /// of every guard of [`Guarded::lock`] what its end must undo.)
    #[cold]
    fn step_out(&self) {
        self.inside.store(false, Ordering::Release);
        self.queue_up();
    }

    /// How often a caller had to wait at one of the domain's locks.
    pub(crate) fn waits(&self) -> u64 {
        self.meter.waits()
    }

    /// Takes the mutex.
    #[inline]
    fn queue_up(&self) {
        if !self.mutex.try_lock() {
            self.wait();
        }
    }

    #[cold]
    fn wait(&self) {
        self.meter.count();
        self.mutex.lock();
    }

    /// Enters from a control call, whatever the client promised.
    pub(crate) fn intrude(&self) -> Guard<'_, T> {
        self.queue_up();
        if !self.owned || self.open.load(Ordering::Relaxed) {
            return Guard { cell: self, held: Held::Mutex };
        }
        self.announce();
        self.await_owner();
        Guard { cell: self, held: Held::Intruder }
    }

    /// Enters from a thread of ours, and leaves the cell open for more visits.
    pub(crate) fn visit(&self) -> Guard<'_, T> {
        self.queue_up();
        if self.owned && !self.open.load(Ordering::Relaxed) {
            self.announce();
            self.await_owner();
            self.open.store(true, Ordering::Relaxed);
        }
        Guard { cell: self, held: Held::Mutex }
    }

    /// Like [`Guarded::visit`], but gives up where it would wait.
    pub(crate) fn try_visit(&self) -> Option<Guard<'_, T>> {
        if !self.mutex.try_lock() {
            return None;
        }
        if self.owned && !self.open.load(Ordering::Relaxed) {
            // An owner that is seen without the barrier is not worth it.
            if self.inside.load(Ordering::Relaxed) {
                drop(Guard { cell: self, held: Held::Mutex });
                return None;
            }
            self.announce();
            if self.inside.load(Ordering::Acquire) {
                drop(Guard { cell: self, held: Held::Intruder });
                return None;
            }
            self.open.store(true, Ordering::Relaxed);
        }
        Some(Guard { cell: self, held: Held::Mutex })
    }

    /// The thread that visited will not come for a while: the owner need not take the mutex any more.
    pub(crate) fn end_visits(&self) {
        self.queue_up();
        let held = if self.open.swap(false, Ordering::Relaxed) { Held::Intruder } else { Held::Mutex };
        drop(Guard { cell: self, held });
    }

    /// With the mutex held: the owner that comes from now on will queue up, and one that is inside has said so.
    fn announce(&self) {
        self.intruder.store(true, Ordering::Relaxed);
        heavy_fence();
    }

    fn await_owner(&self) {
        let mut rounds = 0_u32;
        while self.inside.load(Ordering::Acquire) {
            if rounds == 0 {
                self.meter.count();
            }
            rounds += 1;
            pause(rounds);
        }
    }

    /// Like [`Guarded::lock`], but gives up where it would wait for another data-path caller.
    #[inline]
    pub(crate) fn try_lock(&self) -> Option<Guard<'_, T>> {
        if self.owned {
            return Some(self.lock());
        }
        if self.mutex.try_lock() { Some(Guard { cell: self, held: Held::Mutex }) } else { self.given_up() }
    }

    #[cold]
    fn given_up(&self) -> Option<Guard<'_, T>> {
        self.meter.count();
        None
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
    #[inline(always)]
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
