//! A lock around the state that polls use: the engine of a rank, and its collectives under way.
//!
//! Place in the data flow: polls and injections pass here to the engine, and polls to `team` and `coll`. In a job with
//! one thread a flag takes the place of the lock. Handlers of messages run under the lock; a call from one that needs
//! the engine is refused, as the rules of handlers say, and does not wait for itself.

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use parking_lot::RawMutex;
use parking_lot::lock_api::RawMutex as _;

/// Whether a job's processes have one thread or several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Threads {
    /// One (SEQ).
    One,
    /// Several (PAR).
    Many,
}

/// A value that one thread uses at a time.
pub struct Gate<T> {
    threads: Threads,
    lock: RawMutex,
    /// The number of the thread that is inside, for [`Threads::Many`]; otherwise 1 if the thread is inside.
    inside: AtomicU64,
    value: UnsafeCell<T>,
}

// SAFETY: the value is used by one thread at a time: under the lock, or in a process with one thread, as the client
// promises by its mode (SEQ).
unsafe impl<T: Send> Sync for Gate<T> {}

/// A number of this thread, other than 0.
#[inline(always)]
fn thread() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local!(static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed));
    NUMBER.try_with(|number| *number).unwrap_or(u64::MAX)
}

/// The reason why the value cannot be used now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Another thread uses it.
    Busy,
    /// This thread uses it: the call comes from a handler.
    Inside,
}

impl<T> Gate<T> {
    /// A gate for a job with one or several threads.
    pub fn new(threads: Threads, value: T) -> Self {
        Self { threads, lock: RawMutex::INIT, inside: AtomicU64::new(0), value: UnsafeCell::new(value) }
    }

    /// Uses the value if no other thread does.
    ///
    /// # Errors
    /// See [`Refused`].
    #[inline(always)]
    pub fn try_with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        if self.threads == Threads::Many && !self.lock.try_lock() {
            return Err(if self.inside.load(Ordering::Relaxed) == thread() { Refused::Inside } else { Refused::Busy });
        }
        self.enter(work)
    }

    /// Uses the value, after other threads.
    ///
    /// # Errors
    /// [`Refused::Inside`].
    #[inline(always)]
    pub fn with<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        if self.threads == Threads::Many && !self.lock.try_lock() {
            if self.inside.load(Ordering::Relaxed) == thread() {
                return Err(Refused::Inside);
            }
            self.lock.lock();
        }
        self.enter(work)
    }

    /// The lock is held, or there is one thread.
    #[inline(always)]
    fn enter<R>(&self, work: impl FnOnce(&mut T) -> R) -> Result<R, Refused> {
        match self.threads {
            Threads::One if self.inside.load(Ordering::Relaxed) != 0 => return Err(Refused::Inside),
            Threads::One => self.inside.store(1, Ordering::Relaxed),
            Threads::Many => self.inside.store(thread(), Ordering::Relaxed),
        }
        let leave = Leave(self);
        // SAFETY: the lock is held, or the process has one thread, which is not inside already.
        let value = unsafe { &mut *leave.0.value.get() };
        Ok(work(value))
    }
}

/// Opens the gate again, also when the work panics.
struct Leave<'a, T>(&'a Gate<T>);

impl<T> Drop for Leave<'_, T> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.inside.store(0, Ordering::Relaxed);
        if self.0.threads == Threads::Many {
            // SAFETY: `enter` is called with the lock held, and its guard is dropped once.
            unsafe { self.0.lock.unlock() };
        }
    }
}

/// A place for an object that lives until the place is cleared.
pub struct Shelf<T>(AtomicPtr<T>);

impl<T> Shelf<T> {
    /// An empty place.
    #[must_use]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Puts an object there.
    pub fn set(&self, object: &'static T) {
        self.0.store(std::ptr::from_ref(object).cast_mut(), Ordering::Release);
    }

    /// Empties the place.
    pub fn clear(&self) {
        self.0.store(std::ptr::null_mut(), Ordering::Release);
    }

    /// The object.
    #[inline(always)]
    #[must_use]
    pub fn get(&self) -> Option<&'static T> {
        // SAFETY: the pointer is null, or that of an object which `set` got as living for ever. The code that frees it
        // clears the place first, and the client uses it no more.
        unsafe { self.0.load(Ordering::Acquire).as_ref() }
    }
}

impl<T> Default for Shelf<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_from_inside_is_refused() {
        for threads in [Threads::One, Threads::Many] {
            let gate = Gate::new(threads, 1);
            let inner = gate.with(|_| (gate.with(|_| ()), gate.try_with(|_| ())));
            assert_eq!(inner, Ok((Err(Refused::Inside), Err(Refused::Inside))));
            assert_eq!(gate.try_with(|value| *value), Ok(1));
        }
    }

    #[test]
    fn another_thread_is_busy() {
        let gate = Gate::new(Threads::Many, 0);
        let _ = gate.with(|_| {
            std::thread::scope(|scope| {
                let other = scope.spawn(|| gate.try_with(|_| ()));
                assert_eq!(other.join().expect("no panic"), Err(Refused::Busy));
            });
        });
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| assert_eq!(gate.with(|value| *value += 1), Ok(()))));
            }
        });
        assert_eq!(gate.with(|value| *value), Ok(4000));
    }
}
