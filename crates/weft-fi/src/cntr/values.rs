//! `CounterValues`: the two values of a counter, and the threshold at which waiters are notified.
//!
//! Place in the data flow: completions raise a value by [`CounterValues::add`], which takes no lock. Threads that
//! sleep in `fi_cntr_wait` and waiting programs ([`weft_engine::program`]) arm the threshold. The file is
//! separate so that a model checker can try every interleaving (`tests/loom_trigger.rs`).
//!
//! No change is lost. A waiter writes `watch_at` and then reads the values. A raiser writes a value and then
//! reads `watch_at`. All accesses are sequentially consistent, so at least one of the two sees the other.
//! (`ordered` marks these places for the checker, which knows sequential consistency only of fences; it is
//! empty otherwise.) A raise that reaches `watch_at` clears the threshold for all waiters at once
//! ([`CounterValues::due`]). Waiters whose condition does not hold yet arm it again. A notification without need must
//! therefore be harmless. A value may be seen before its raiser has notified the waiting programs. A caller
//! that sets a lower value therefore notifies them first.

use super::sync::{AtomicBool, AtomicU64, Ordering, ordered};

/// The threshold if there is no waiter.
const NO_WAITER: u64 = u64::MAX;

/// A 64-bit success count and a 64-bit error count.
pub(crate) struct CounterValues {
    value: AtomicU64,
    errors: AtomicU64,
    /// The lowest value at which a waiter must be notified. While it is set, changes of the errors notify as
    /// well.
    watch_at: AtomicU64,
    /// Whether a thread sleeps.
    sleeping: AtomicBool,
    /// Whether a program waits.
    programs: AtomicBool,
}

/// The waiters to notify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// The sleeping threads.
    pub(crate) sleepers: bool,
    /// The waiting programs.
    pub(crate) programs: bool,
}

impl CounterValues {
    /// Creates the values of a counter: both 0, without waiters.
    pub(crate) fn new() -> Self {
        Self {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            watch_at: AtomicU64::new(NO_WAITER),
            sleeping: AtomicBool::new(false),
            programs: AtomicBool::new(false),
        }
    }

    /// The number of successes.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// The number of failures.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// Adds successes. True: a waiter's threshold is reached, and the caller must call [`CounterValues::due`].
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, amount: u64) -> bool {
        let value = self.value.fetch_add(amount, Ordering::SeqCst).wrapping_add(amount);
        ordered();
        value >= self.watch_at.load(Ordering::SeqCst)
    }

    /// Sets the number of successes. If the new number is lower, `notify_programs` notifies the waiting programs first.
    /// True: as for [`CounterValues::add`]. A lower number notifies all waiters, because those that wait for the next
    /// change have a threshold above the old number.
    #[must_use]
    pub(crate) fn set(&self, value: u64, notify_programs: impl FnMut()) -> bool {
        let lower = value < self.replace(&self.value, value, notify_programs);
        ordered();
        let watch_at = self.watch_at.load(Ordering::SeqCst);
        value >= watch_at || lower && watch_at != NO_WAITER
    }

    /// Adds failures. True: as for [`CounterValues::add`].
    #[must_use]
    pub(crate) fn add_errors(&self, amount: u64) -> bool {
        self.errors.fetch_add(amount, Ordering::SeqCst);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NO_WAITER
    }

    /// Sets the number of failures. `notify_programs` and the result are as for [`CounterValues::set`].
    #[must_use]
    pub(crate) fn set_errors(&self, value: u64, notify_programs: impl FnMut()) -> bool {
        self.replace(&self.errors, value, notify_programs);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NO_WAITER
    }

    /// Replaces `number` by `value` and returns the old value. If the new value is lower, `notify_programs`
    /// has notified the programs.
    fn replace(&self, number: &AtomicU64, value: u64, mut notify_programs: impl FnMut()) -> u64 {
        let mut old = number.load(Ordering::SeqCst);
        loop {
            if value < old && self.programs.load(Ordering::SeqCst) {
                notify_programs();
            }
            match number.compare_exchange(old, value, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) => return old,
                // The number was raised meanwhile, possibly to a program's threshold.
                Err(now) => old = now,
            }
        }
    }

    /// Clears the threshold. The caller notifies the returned waiters, which arm again if their condition
    /// does not hold.
    #[must_use]
    pub(crate) fn due(&self) -> Due {
        self.watch_at.swap(NO_WAITER, Ordering::SeqCst);
        Due { sleepers: self.sleeping.swap(false, Ordering::SeqCst), programs: self.programs.load(Ordering::SeqCst) }
    }

    /// Arms for a thread that sleeps until the value reaches `at` or the errors change. The thread checks
    /// once more before it sleeps.
    pub(crate) fn arm_sleeper(&self, at: u64) {
        self.sleeping.swap(true, Ordering::SeqCst);
        self.watch_at.fetch_min(at.min(NO_WAITER - 1), Ordering::SeqCst);
        ordered();
    }

    /// Arms for a program that waits until successes and failures together reach `at`. Returns both numbers
    /// as of after arming.
    pub(crate) fn arm_programs(&self, at: u64) -> (u64, u64) {
        self.programs.swap(true, Ordering::SeqCst);
        let mut errors = self.errors();
        loop {
            self.watch_at.fetch_min(at.saturating_sub(errors).min(NO_WAITER - 1), Ordering::SeqCst);
            ordered();
            // Failures counted before the arming took effect lower the number of successes that is still
            // needed.
            let now = self.errors();
            if now == errors {
                return (self.value(), now);
            }
            errors = now;
        }
    }

    /// Records that no program waits any more.
    pub(crate) fn disarm_programs(&self) {
        self.programs.store(false, Ordering::SeqCst);
    }
}
