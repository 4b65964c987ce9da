//! `Guarded<T>`: the lock of an endpoint or a queue, which is elided where the threading level permits it.
//!
//! Place in the data flow: every data-path call of weft-fi enters an endpoint's engine through a `Guarded`, and every
//! completion a queue's ring. Only this file and [`cell`] implement that exclusion by `unsafe` code. A model checker
//! tries its interleavings (`tests/loom_lock.rs`).
//!
//! There are two kinds of cells, chosen when the cell is made:
//! - *shared* (FI_THREAD_SAFE, FI_THREAD_FID, FI_THREAD_ENDPOINT): an ordinary mutex.
//! - *owned* (FI_THREAD_DOMAIN, FI_THREAD_COMPLETION): the client promises to serialize data-path calls (fi_domain(3),
//!   "Multi-threading Support"). [`Guarded::lock`] therefore needs no atomic read-modify-write: it sets one flag and
//!   reads another. A thread that the promise does not cover sets the other flag. It then makes every other thread
//!   execute a memory barrier (membarrier(2)), so that the owner needs none, and waits until the owner has left. If
//!   the kernel refuses membarrier, the cell is made shared.
//!
//! The promise does not cover control calls (address vectors, memory registration, close), which remain thread safe by
//! the same man page. They enter by [`Guarded::intrude`]. Nor does it cover the progress thread. That thread comes
//! often or not at all, so its first [`Guarded::visit`] leaves the cell *open*: all threads take the mutex, as in a
//! shared cell, until [`Guarded::end_visits`]. A client that makes progress by itself therefore pays nothing for the
//! progress thread.
//!
//! Invariants: at most one guard exists at a time. A thread that holds a guard calls no method of the same cell. Lock
//! order of the crate: a poll list, an endpoint's engine, a pool of shared receives, a queue's ring. [`Meter`] counts
//! the callers that had to wait, at no cost for the others.

mod cell;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

pub(crate) use crate::sleep::lock::cell::{Guard, Guarded};

/// The threads that call the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Callers {
    /// Any thread at any time.
    Any,
    /// One thread at a time: the client serializes the calls.
    One,
}

thread_local! {
    /// Whether weft has started this thread, which no threading level covers.
    static OURS: Cell<bool> = const { Cell::new(false) };
}

fn is_ours() -> bool {
    OURS.get()
}

/// Declares the calling thread as weft's own. It may enter cells only by visits, as debug builds check.
pub(crate) fn visit_only() {
    OURS.set(true);
}

/// Number of callers that had to wait for another thread at one of a domain's locks.
#[derive(Debug, Default)]
pub(crate) struct Meter(AtomicU64);

impl Meter {
    /// The number so far.
    pub(crate) fn waits(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The primitives of `cell`, which the model checker replaces.
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
        /// The caller holds the lock.
        #[inline(always)]
        pub(super) unsafe fn unlock(&self) {
            // SAFETY: the caller's promise.
            unsafe { self.0.unlock() };
        }
    }

    /// Orders the owner's accesses for the compiler. [`heavy_fence`] orders them for the processor.
    #[inline(always)]
    pub(super) fn light_fence() {
        compiler_fence(Ordering::SeqCst);
    }

    /// Makes every thread of the process execute a barrier, including the caller. The system call is a barrier for the
    /// compiler as well.
    pub(super) fn heavy_fence() {
        // The call cannot fail after the registration in `can_intrude`.
        let barrier = membarrier(MembarrierCommand::PrivateExpedited);
        debug_assert!(barrier.is_ok());
    }

    /// Whether this process may make other threads execute barriers. The first call registers the process.
    pub(super) fn can_intrude() -> bool {
        static REGISTERED: OnceLock<bool> = OnceLock::new();
        *REGISTERED.get_or_init(|| membarrier(MembarrierCommand::RegisterPrivateExpedited).is_ok())
    }

    /// Waits for a moment until the owner may have left. `rounds`: the number of this wait, from 1.
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
        // SAFETY: `Callers::Any` demands no promise.
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

    /// `lockers` threads of data-path calls, two intruders and a visitor increment a plain integer. No increment is
    /// lost.
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
        // SAFETY: only one thread calls `lock`.
        hammer(&unsafe { owned(0) }, 1);
    }

    #[test]
    fn shared_callers_exclude_each_other() {
        hammer(&shared(0), 2);
    }

    #[test]
    fn a_try_does_not_enter_a_held_cell() {
        let cell = shared(7);
        let guard = cell.lock();
        assert!(cell.try_visit().is_none() && cell.try_lock().is_none());
        drop(guard);
        assert_eq!(cell.try_visit().map(|guard| *guard), Some(7));
        // SAFETY: there is one thread.
        let cell = unsafe { owned(7) };
        let guard = cell.lock();
        assert!(cell.try_visit().is_none());
        drop(guard);
        assert_eq!(*cell.lock(), 7);
    }

    #[test]
    fn an_owner_takes_the_mutex_until_visits_end() {
        // SAFETY: there is one thread.
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
    fn only_waiting_callers_are_counted() {
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
    fn debug_builds_detect_a_broken_promise() {
        // SAFETY: there is one thread. The overlap is the subject of the test, and panics before any access.
        let cell = unsafe { owned(0) };
        assert!(cell.owned, "without membarrier every cell is shared, which relies on no serialized calls");
        let _outer = cell.lock();
        let _inner = cell.lock();
    }
}
