//! The cell of a [`Guarded`]: its states, and the order of the accesses that decide which thread enters.
//!
//! Place in the data flow: [`super`] describes the protocol. The cell is a file of its own so that a model checker can
//! try every interleaving (`tests/loom_lock.rs`). The checker replaces the primitives in `super::sync`.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use super::sync::{AtomicBool, Mutex, Ordering, can_intrude, heavy_fence, light_fence, pause};
use super::{Callers, Meter, is_ours};

/// A value behind a lock, whose cost depends on the threading level.
pub(crate) struct Guarded<T> {
    /// Whether `lock` relies on the client's serialization.
    pub(super) owned: bool,
    /// Owned cells: a data-path caller is inside, or about to enter.
    inside: AtomicBool,
    /// Owned cells: data-path callers must take the mutex, because an intruder is inside or waits, or the cell is open.
    intruder: AtomicBool,
    /// Owned cells: visits have not ended. Written with the mutex held.
    open: AtomicBool,
    mutex: Mutex,
    pub(super) meter: Arc<Meter>,
    value: UnsafeCell<T>,
}

// SAFETY: guards give exclusive access to `value` (see `Guard::deref`). Threads that share the cell thus pass the value
// from one to another, which `T: Send` permits.
unsafe impl<T: Send> Sync for Guarded<T> {}

/// Exclusive access, until dropped.
pub(crate) struct Guard<'a, T> {
    cell: &'a Guarded<T>,
    pub(super) held: Held,
}

/// The way by which a guard was obtained, which its drop undoes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Held {
    /// `inside` is set.
    Flag,
    /// The mutex is locked.
    Mutex,
    /// The mutex is locked and `intruder` is set.
    Intruder,
}

impl<T> Guarded<T> {
    /// A cell for these callers. `meter` counts their waits.
    ///
    /// # Safety
    /// With [`Callers::One`], calls of [`Guarded::lock`] and the lifetimes of their guards must not overlap between
    /// threads, and must be ordered by happens-before. The client promises this by its threading level.
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
            debug_assert!(!is_ours(), "a thread of weft must visit");
            self.inside.store(true, Ordering::Relaxed);
            // Orders the store before the load below for the compiler. The intruder's membarrier orders them for the
            // processor.
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

    /// Leaves the cell to an intruder, and takes the mutex. The function returns no guard, so that the
    /// compiler knows how each guard of [`Guarded::lock`] was obtained.
    #[cold]
    fn step_out(&self) {
        self.inside.store(false, Ordering::Release);
        self.queue_up();
    }

    /// Number of callers that had to wait at one of the domain's locks.
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

    /// Enters from a control call, which the client's promise does not cover.
    pub(crate) fn intrude(&self) -> Guard<'_, T> {
        self.queue_up();
        if !self.owned || self.open.load(Ordering::Relaxed) {
            return Guard { cell: self, held: Held::Mutex };
        }
        self.announce();
        self.await_owner();
        Guard { cell: self, held: Held::Intruder }
    }

    /// Enters from a thread of weft, and leaves the cell open for more visits.
    pub(crate) fn visit(&self) -> Guard<'_, T> {
        self.queue_up();
        if self.owned && !self.open.load(Ordering::Relaxed) {
            self.announce();
            self.await_owner();
            self.open.store(true, Ordering::Relaxed);
        }
        Guard { cell: self, held: Held::Mutex }
    }

    /// Enters like [`Guarded::visit`], unless it would have to wait.
    pub(crate) fn try_visit(&self) -> Option<Guard<'_, T>> {
        if !self.mutex.try_lock() {
            return None;
        }
        if self.owned && !self.open.load(Ordering::Relaxed) {
            // A visible owner saves the cost of the barrier.
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

    /// Ends the visits for some time: the owner need not take the mutex any more.
    pub(crate) fn end_visits(&self) {
        self.queue_up();
        let held = if self.open.swap(false, Ordering::Relaxed) { Held::Intruder } else { Held::Mutex };
        drop(Guard { cell: self, held });
    }

    /// Announces an intruder that holds the mutex. An owner that comes later takes the mutex. An owner that is inside
    /// has set `inside` before this function returns.
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

    /// Enters like [`Guarded::lock`], unless it would have to wait for another data-path caller.
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
        // SAFETY: no other guard exists at the same time. `Mutex` and `Intruder` guards hold the mutex. The promise of
        // `new` excludes other `lock` callers beside a `Flag` guard. An intruder is excluded because of its membarrier.
        // Either the barrier came after this thread's store to `inside`: then the intruder waits for it. Or the barrier
        // came before this thread's load of `intruder`: then this thread took the mutex.
        unsafe { &*self.cell.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: no other guard exists, as in `deref`, and `&mut self` makes the borrow unique.
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
        // SAFETY: this guard holds the mutex.
        unsafe { self.cell.mutex.unlock() };
    }
}
