//! `Gauge`: the two values of a counter, and who wants to hear of them.
//!
//! Place in the data flow: completions raise it by [`Gauge::add`], which takes no lock; threads that sleep in
//! `fi_cntr_wait` and programs that wait ([`weft_engine::program`]) arm it. It is a file of its own so that a
//! model checker can try every interleaving (`tests/loom_trigger.rs`).
//!
//! Nothing is lost: whoever waits writes `watch_at` and then reads the values; whoever raises a value writes
//! it and then reads `watch_at`; all of it sequentially consistent, so that at least one of the two sees the
//! other (`ordered` marks these places for the checker, which knows sequential consistency only of fences; it
//! is nothing otherwise). A raise that reaches `watch_at` takes all wishes at once ([`Gauge::due`]); those
//! that are not fulfilled yet are renewed by the waiters. Being called needlessly must therefore harm nobody.
//! A value is seen before its raiser has called the programs that wait for it, so whoever sets a lower one
//! calls them first.

use super::sync::{AtomicBool, AtomicU64, Ordering, ordered};

/// Threshold of nobody.
const NOBODY: u64 = u64::MAX;

/// A 64-bit success count and a 64-bit error count.
pub(crate) struct Gauge {
    value: AtomicU64,
    errors: AtomicU64,
    /// The lowest value at which somebody wants to be called. While it is set, a change of the errors calls as well.
    watch_at: AtomicU64,
    /// A thread sleeps.
    sleeping: AtomicBool,
    /// A program waits.
    programs: AtomicBool,
}

/// Who is to be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    /// Threads that sleep.
    pub(crate) sleepers: bool,
    /// Programs that wait.
    pub(crate) programs: bool,
}

impl Gauge {
    /// Both values 0, nobody waits.
    pub(crate) fn new() -> Self {
        Self {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            watch_at: AtomicU64::new(NOBODY),
            sleeping: AtomicBool::new(false),
            programs: AtomicBool::new(false),
        }
    }

    /// Successes.
    #[inline]
    pub(crate) fn value(&self) -> u64 {
        self.value.load(Ordering::SeqCst)
    }

    /// Failures.
    #[inline]
    pub(crate) fn errors(&self) -> u64 {
        self.errors.load(Ordering::SeqCst)
    }

    /// More successes. True: somebody waits for that, call [`Gauge::due`].
    #[inline]
    #[must_use]
    pub(crate) fn add(&self, amount: u64) -> bool {
        let value = self.value.fetch_add(amount, Ordering::SeqCst).wrapping_add(amount);
        ordered();
        value >= self.watch_at.load(Ordering::SeqCst)
    }

    /// Another number of successes. `look` calls the programs that wait, if it is a lower one. True: as for
    /// [`Gauge::add`]; a lower one calls everybody, since who waits for the next change wishes for more than
    /// the old number.
    #[must_use]
    pub(crate) fn set(&self, value: u64, look: impl FnMut()) -> bool {
        let lower = value < self.replace(&self.value, value, look);
        ordered();
        let watch_at = self.watch_at.load(Ordering::SeqCst);
        value >= watch_at || lower && watch_at != NOBODY
    }

    /// More failures. True: as for [`Gauge::add`].
    #[must_use]
    pub(crate) fn add_errors(&self, amount: u64) -> bool {
        self.errors.fetch_add(amount, Ordering::SeqCst);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NOBODY
    }

    /// Another number of failures. `look` and true: as for [`Gauge::set`].
    #[must_use]
    pub(crate) fn set_errors(&self, value: u64, look: impl FnMut()) -> bool {
        self.replace(&self.errors, value, look);
        ordered();
        self.watch_at.load(Ordering::SeqCst) != NOBODY
    }

    /// Puts `value` in the place of a number, and returns that, which programs were called for if it was higher.
    fn replace(&self, number: &AtomicU64, value: u64, mut look: impl FnMut()) -> u64 {
        let mut old = number.load(Ordering::SeqCst);
        loop {
            if value < old && self.programs.load(Ordering::SeqCst) {
                look();
            }
            match number.compare_exchange(old, value, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(old) => return old,
                // It was raised meanwhile, perhaps to what somebody waits for.
                Err(now) => old = now,
            }
        }
    }

    /// Takes all wishes: the caller calls those whom the answer names, and they wish again for what they still want.
    #[must_use]
    pub(crate) fn due(&self) -> Due {
        self.watch_at.swap(NOBODY, Ordering::SeqCst);
        Due { sleepers: self.sleeping.swap(false, Ordering::SeqCst), programs: self.programs.load(Ordering::SeqCst) }
    }

    /// A thread is about to sleep until the value is so high or the errors change; it looks once more before it does.
    pub(crate) fn arm_sleeper(&self, at: u64) {
        self.sleeping.swap(true, Ordering::SeqCst);
        self.watch_at.fetch_min(at.min(NOBODY - 1), Ordering::SeqCst);
        ordered();
    }

    /// A program waits until successes and failures together are so many. Returns both, as they are after arming.
    pub(crate) fn arm_programs(&self, at: u64) -> (u64, u64) {
        self.programs.swap(true, Ordering::SeqCst);
        let mut errors = self.errors();
        loop {
            self.watch_at.fetch_min(at.saturating_sub(errors).min(NOBODY - 1), Ordering::SeqCst);
            ordered();
            // Failures that came before the arming was seen have brought the value closer that must be reached.
            let now = self.errors();
            if now == errors {
                return (self.value(), now);
            }
            errors = now;
        }
    }

    /// No program waits any more.
    pub(crate) fn disarm_programs(&self) {
        self.programs.store(false, Ordering::SeqCst);
    }
}
