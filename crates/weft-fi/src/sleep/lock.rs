//! `Guarded<T>`: the one lock of an endpoint or a queue, which vanishes where the threading level lets it.
//!
//! Place in the data flow: every data-path call of weft-fi enters an endpoint's engine, and every completion
//! a queue's ring, through a `Guarded`. This file and [`cell`] are the only place where that exclusion is
//! `unsafe`; a model checker tries its interleavings (`tests/loom_lock.rs`).
//!
//! Two kinds, chosen when the cell is made:
//! - *shared* (FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT): an ordinary mutex.
//! - *owned* (FI_THREAD_DOMAIN, FI_THREAD_COMPLETION): the client promises that data-path calls are
//!   serialized (fi_domain(3), "Multi-threading Support"), so [`Guarded::lock`] takes no atomic
//!   read-modify-write: it sets a flag, looks at another, and is in. Who is not covered by the promise
//!   announces itself by the other flag, makes every other thread execute a memory barrier (membarrier(2), so
//!   that the owner needs none), and waits until the owner is out. Where the kernel refuses membarrier, an
//!   owned cell is made shared.
//!
//! Not covered are control calls (address vectors, memory registration, close), which remain thread safe by
//! the same man page and come in by [`Guarded::intrude`], and the progress thread. That one comes often or
//! not at all, so its first [`Guarded::visit`] leaves the cell *open*: everybody goes by the mutex, as in a
//! shared cell, until [`Guarded::end_visits`]. A client that progresses by itself therefore pays nothing for
//! having such a thread.
//!
//! Invariants: at most one guard exists at a time; no method may be called while the same thread holds a
//! guard of the same cell. Lock order of the crate: a poll list, then an endpoint's engine, then a pool of
//! shared receives, then a queue's ring; rings are leaves. [`Meter`] counts the callers that had to wait,
//! which costs the others nothing.

mod cell;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::sleep::lock::cell::{Guard, Guarded};

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

fn is_ours() -> bool {
    OURS.get()
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

/// What `cell` is made of.
mod sync {
    use std::sync::OnceLock;
    use std::sync::atomic::compiler_fence;
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};

    use parking_lot::lock_api::RawMutex as _;
    use rustix::thread::{MembarrierCommand, membarrier};

    /// A mutex without a value.
    pub(super) struct Mutex(parking_lot::RawMutex);

    impl Mutex {
        pub(super) const fn new() -> Self {
            Self(parking_lot::RawMutex::INIT)
        }

        #[inline(always)]
        pub(super) fn try_lock(&self) -> bool {
            self.0.try_lock()
        }

        #[inline(always)]
        pub(super) fn lock(&self) {
            self.0.lock();
        }

        /// # Safety
        /// The caller has locked it and not unlocked it.
        #[inline(always)]
        pub(super) unsafe fn unlock(&self) {
            // SAFETY: the caller's promise.
            unsafe { self.0.unlock() };
        }
    }

    /// Orders the owner's accesses as far as the compiler goes; the processor's part is done by [`heavy_fence`].
    #[inline(always)]
    pub(super) fn light_fence() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes every thread of the process execute a barrier, this one included. The system call is a barrier
    /// for the compiler, too.
    pub(super) fn heavy_fence() {
        // Registered in `can_intrude`; cannot fail then.
        let barrier = membarrier(MembarrierCommand::PrivateExpedited);
        debug_assert!(barrier.is_ok());
    }

    /// Whether this process may make other threads execute barriers; registers for it on first use.
    pub(super) fn can_intrude() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    /// Waits a little for the owner to leave, for the so-manieth time.
    pub(super) fn pause(rounds: u32) {
        if rounds < 64 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::cell::Held;
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
