//! `Gauge`: the two values of a counter, and the threshold at which waiters are notified.
//!
//! Place in the data flow: completions raise a value by [`Gauge::add`], which takes no lock. Threads that
//! sleep in `fi_cntr_wait` and waiting programs ([`weft_engine::program`]) arm the gauge. It is a file of its
//! own so that a model checker can try every interleaving (`tests/loom_trigger.rs`).
//!
//! No change is lost. A waiter writes `watch_at` and then reads the values. A raiser writes a value and then
//! reads `watch_at`. All accesses are sequentially consistent, so at least one of the two sees the other.
//! (`ordered` marks these places for the checker, which knows sequential consistency only of fences; it is
//! empty otherwise.) A raise that reaches `watch_at` clears the threshold for all waiters at once
//! ([`Gauge::due`]). Waiters whose condition does not hold yet arm it again. A notification without need must
//! therefore be harmless. A value may be seen before its raiser has notified the waiting programs. A caller
//! that sets a lower value therefore notifies them first.

use super::sync::{AtomicBool, AtomicU64, Ordering, ordered};

/// The threshold if there is no waiter.
const NOBODY: u64 = u64::MAX;

/// A 64-bit success count and a 64-bit error count.
pub(crate) struct Gauge {
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

impl Gauge {
    /// Creates a gauge with both values 0 and no waiters.
    pub(crate) fn new() -> Self {
        Self {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            watch_at: AtomicU64::new(NOBODY),
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

    /// Adds successes. True: a waiter's threshold is reached, and the caller must call [`Gauge::due`].
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, amount: u64) -> bool {
        let value = self.value.fetch_add(amount, Ordering::SeqCst).wrapping_add(amount);
        ordered();
        value >= self.watch_at.load(Ordering::SeqCst)
    }

    /// Sets the number of successes. If the new number is lower, `look` notifies the waiting programs first.
    /// True: as for [`Gauge::add`]. A lower number notifies all waiters, because those that wait for the next
    /// change have a threshold above the old number.
    #[must_use]
    pub(crate) fn set(&self, value: u64, look: impl FnMut()) -> bool {
        let lower = value < self.replace(&self.value, value, look);
        ordered();
        let watch_at = self.watch_at.load(Ordering::SeqCst);
        value >= watch_at || lower && watch_at != NOBODY
    }

    /// Adds failures. True: as for [`Gauge::add`].
    #[must_use]
    pub(crate) fn add_errors(&self, amount: u64) -> bool {
        self.errors.fetch_add(amount, Ordering::SeqCst);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NOBODY
    }

    /// Sets the number of failures. `look` and the result are as for [`Gauge::set`].
    #[must_use]
    pub(crate) fn set_errors(&self, value: u64, look: impl FnMut()) -> bool {
        self.replace(&self.errors, value, look);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NOBODY
    }

    /// Replaces `number` by `value` and returns the old value. If the new value is lower, `look` has notified
    /// the programs.
    fn replace(&self, number: &AtomicU64, value: u64, mut look: impl FnMut()) -> u64 {
        let mut old = number.load(Ordering::SeqCst);
        loop {
            if value < old && self.programs.load(Ordering::SeqCst) {
                look();
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
        self.watch_at.swap(NOBODY, Ordering::SeqCst);
        Due { sleepers: self.sleeping.swap(false, Ordering::SeqCst), programs: self.programs.load(Ordering::SeqCst) }
    }

    /// Arms for a thread that sleeps until the value reaches `at` or the errors change. The thread checks
    /// once more before it sleeps.
    pub(crate) fn arm_sleeper(&self, at: u64) {
        self.sleeping.swap(true, Ordering::SeqCst);
        self.watch_at.fetch_min(at.min(NOBODY - 1), Ordering::SeqCst);
        ordered();
    }

    /// Arms for a program that waits until successes and failures together reach `at`. Returns both numbers
    /// as of after arming.
    pub(crate) fn arm_programs(&self, at: u64) -> (u64, u64) {
        self.programs.swap(true, Ordering::SeqCst);
        let mut errors = self.errors();
        loop {
            self.watch_at.fetch_min(at.saturating_sub(errors).min(NOBODY - 1), Ordering::SeqCst);
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
