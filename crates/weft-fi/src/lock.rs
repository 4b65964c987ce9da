//! `Guarded<T>`: the one lock of an endpoint or a queue, which vanishes where the threading level lets it.
//!
//! Place in the data flow: every data-path call of weft-fi enters an endpoint's engine, and every completion
//! a queue's ring, through a `Guarded`. This file is the only place where that exclusion is `unsafe`.
//!
//! Two kinds, chosen when the cell is made:
//! - *shared* (FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT): an ordinary mutex.
//! - *owned* (FI_THREAD_DOMAIN, FI_THREAD_COMPLETION): the client promises that data-path calls
//!   are serialized (fi_domain(3), "Multi-threading Support"), so [`Guarded::lock`] takes no atomic
//!   read-modify-write: it sets a flag, looks at another, and is in. Who is not covered by the promise announces itself by the
//!   other flag, makes every other thread execute a memory barrier (membarrier(2), so that the owner needs none), and waits until
//!   the owner is out. Where the kernel refuses membarrier, an owned cell is made shared.
//!
//! Not covered are control calls (address vectors, memory registration, close), which remain thread safe by the same man page and
//! come in by [`Guarded::intrude`], and the progress thread. That one comes often or not at all, so its first
//! [`Guarded::visit`] leaves the cell *open*: everybody goes by the mutex, as in a shared cell, until [`Guarded::end_visits`].
//! A client that progresses by itself therefore pays nothing for having such a thread.
//!
//! Invariants: at most one guard exists at a time; no method may be called while the same thread holds a guard
//! of the same cell. Lock order of the crate: a poll list, then an endpoint's engine, then a queue's ring; rings are
//! leaves. [`Meter`] counts the callers that had to wait, which costs the others nothing.

use std::cell::{Cell, UnsafeCell};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, compiler_fence};
use std::sync::{Arc, OnceLock};

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

thread_local! {
    /// Whether this is a thread of ours, which no threading level covers.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

/// This thread is ours: it may enter by visiting only, which debug builds make sure of.
pub(crate) fn visit_only() {
    OURS.set(true);
}

/// How often somebody had to wait for another thread at one of a domain's locks.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    /// So far.
    pub(crate) fn waits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A value behind a lock that costs what the threading level demands.
pub(crate) struct Guarded<T> {
    /// Whether `lock` relies on the client's serialization.
    owned: bool,
    /// Owned: a data-path caller is inside, or tries to be.
    inside: AtomicBool,
    /// Owned: the mutex counts, because an intruder is inside, or waits, or the cell is open.
    intruder: AtomicBool,
    /// Owned: visits have not ended. Written with the mutex held.
    open: AtomicBool,
    mutex: parking_lot::RawMutex,
    meter: Arc<Meter>,
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
            mutex: parking_lot::RawMutex::INIT,
            meter: Arc::clone(meter),
            value: UnsafeCell::new(value),
        }
    }

    /// Enters from the data path.
    #[inline]
    pub(crate) fn lock(&self) -> Guard<'_, T> {
        if self.owned {
            debug_assert!(!self.inside.load(Ordering::Relaxed), "the threading level promised serialized calls");
            debug_assert!(!OURS.get(), "a thread of ours must visit");
            self.inside.store(true, Ordering::Relaxed);
            // Orders the store before the load below as far as the compiler goes; the processor's part is
            // done by the intruder's membarrier.
            compiler_fence(Ordering::SeqCst);
            if self.intruder.load(Ordering::Acquire) {
                return self.lock_after_intruder();
            }
            return Guard { cell: self, held: Held::Flag };
        }
        self.queue_up();
        Guard { cell: self, held: Held::Mutex }
    }

    /// The owner met an intruder: it steps out and queues up.
    #[cold]
    fn lock_after_intruder(&self) -> Guard<'_, T> {
        self.inside.store(false, Ordering::Release);
        self.queue_up();
        Guard { cell: self, held: Held::Mutex }
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
        // Registered in `can_intrude`; cannot fail then. The flag store above and the load below must not be
        // exchanged by the compiler; the system call is a barrier for it as well.
        let barrier = membarrier(MembarrierCommand::PrivateExpedited);
        debug_assert!(barrier.is_ok());
    }

    fn await_owner(&self) {
        let mut rounds = 0_u32;
        while self.inside.load(Ordering::Acquire) {
            if rounds == 0 {
                self.meter.count();
            }
            rounds += 1;
            if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
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

    fn shared<T>(value: T) -> Guarded<T> {
        // SAFETY: nothing is promised.
        unsafe { Guarded::new(Callers::Any, &Arc::default(), value) }
    }

    /// # Safety
    /// As [`Guarded::new`] with [`Callers::One`].
    unsafe fn owned<T>(value: T) -> Guarded<T> {
        // SAFETY: the caller's promise.
        unsafe { Guarded::new(Callers::One, &Arc::default(), value) }
    }

    const LOCKS: u64 = 200_000;
    const INTRUSIONS: u64 = 500;

    /// `lockers` threads of data-path calls, two intruders and a visitor raise one plain integer; none may be lost.
    fn hammer(cell: &Guarded<u64>, lockers: u32) {
        let mut visits = 0;
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
            for turn in 0..20 * INTRUSIONS {
                let guard = if turn % 8 == 3 { Some(cell.visit()) } else { cell.try_visit() };
                if let Some(mut value) = guard {
                    *value += 1;
                    visits += 1;
                }
                if turn % 20 == 19 {
                    cell.end_visits();
                }
            }
        });
        assert_eq!(*cell.intrude(), u64::from(lockers) * LOCKS + 2 * INTRUSIONS + visits);
    }

    #[test]
    fn an_owner_intruders_and_a_visitor_exclude_each_other() {
        // SAFETY: exactly one thread calls `lock`.
        hammer(&unsafe { owned(0) }, 1);
    }

    #[test]
    fn shared_callers_exclude_each_other() {
        hammer(&shared(0), 2);
    }

    #[test]
    fn a_held_cell_is_not_entered_by_trying() {
        let cell = shared(7);
        let guard = cell.lock();
        assert!(cell.try_visit().is_none() && cell.try_lock().is_none());
        drop(guard);
        assert_eq!(cell.try_visit().map(|guard| *guard), Some(7));
        // SAFETY: one thread.
        let cell = unsafe { owned(7) };
        let guard = cell.lock();
        assert!(cell.try_visit().is_none());
        drop(guard);
        assert_eq!(*cell.lock(), 7);
    }

    #[test]
    fn an_owner_goes_by_the_mutex_while_visits_last() {
        // SAFETY: one thread.
        let cell = unsafe { owned(()) };
        let held = |expected| assert!(cell.lock().held == expected);
        if !cell.owned {
            return;
        }
        held(Held::Flag);
        drop(cell.try_visit());
        held(Held::Mutex);
        drop(cell.intrude());
        held(Held::Mutex);
        cell.end_visits();
        held(Held::Flag);
        drop(cell.intrude());
        cell.end_visits();
        held(Held::Flag);
    }

    #[test]
    fn only_who_waits_is_counted() {
        let cell = shared(0);
        *cell.lock() += 1;
        drop(cell.intrude());
        drop(cell.try_visit());
        cell.end_visits();
        assert_eq!(cell.meter.waits(), 0);
        std::thread::scope(|scope| {
            let guard = cell.lock();
            let waiter = scope.spawn(|| drop(cell.lock()));
            while cell.meter.waits() == 0 {
                std::thread::yield_now();
            }
            drop(guard);
            assert!(waiter.join().is_ok());
        });
        assert_eq!(cell.meter.waits(), 1);
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "serialized calls")]
    fn a_broken_promise_is_noticed_in_debug_builds() {
        // SAFETY: one thread; the overlap is the point of the test and ends in the panic before any access.
        let cell = unsafe { owned(0) };
        assert!(cell.owned, "without membarrier every cell is shared, which relies on no serialized calls");
        let _outer = cell.lock();
        let _inner = cell.lock();
    }
}
