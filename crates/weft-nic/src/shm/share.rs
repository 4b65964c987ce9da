//! Long transfers by address that both sides of a link copy at once: the division of the bytes between them.
//!
//! Place in the data flow: `Shm::get`/`put` open a [`Slot`] in the pair's segment for a long transfer, and
//! the peer's `Shm::assist` joins it. `transfer.rs` copies the bytes that [`Slot::claim`] has claimed.
//!
//! The owner is the side that called `get` or `put`; the other side is the helper. The owner claims units
//! from the front, the helper from the back, by compare-and-swap on one word, until all units are claimed.
//! Each side thus copies as much as it has time for, and a helper that never comes costs nothing. The two
//! sides touch different pages and cache lines:
//! ```text
//!  63      48 47      24 23       0
//!  | lap    | back     | front    |    claim word: units claimed by helper and owner; lap 0: closed
//! ```
//! The helper adds the units that it has copied to the second word. The transfer is complete when all units
//! are claimed, the owner has copied its units, and the helper's count equals the helper's claim.
//!
//! The lap distinguishes successive uses of the slot, so that a late helper finds nothing to claim.
//!
//! Trust: the peer may write anything. The owner trusts only its own record of the front. A claim word with
//! another front, or with overlapping claims, is a violation. A peer that claims units without copying them,
//! or counts them wrongly, damages its own transfer. The helper copies only between memory that
//! its own engine named and addresses that the kernel checks, whatever the words are.
//!
//! The atomics come from `super::sync`, so that a model checker can replace them (`tests/loom_share.rs`).

use super::sync::{AtomicU64, Ordering};

/// Slots of one side of a link, which is the number of transfers that it may share at a time.
pub(super) const SLOTS: u32 = 8;
/// Length in bytes of the shortest transfer that is shared. For shorter ones the request costs more than the
/// help saves.
pub(super) const SHARE_BYTES: usize = 40 * 1024;
/// Smallest unit in bytes. Long transfers have larger units, so that the counts fit their bits.
const UNIT_BYTES: u64 = 4096;
pub(super) const COUNT_BITS: u32 = 24;
pub(super) const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// Minimum number of bytes claimed at a time, if they remain: a system call must pay off.
const LEAST_BYTES: u64 = 16 * 1024;
/// Maximum number of bytes claimed at a time.
const MOST_BYTES: u64 = 256 * 1024;
/// Flag in the helper's count: the helper failed to copy claimed units.
const FAILED: u64 = 1 << 63;

/// One shared transfer, in the segment. Initially all zero.
#[repr(C, align(128))]
pub(super) struct Slot {
    claim: AtomicU64,
    /// Keeps the two words on different cache lines: the owner polls the count while the helper may still
    /// read the claims.
    _apart: [u64; 7],
    /// Number of units that the helper has copied.
    helped: AtomicU64,
}

/// The end of a transfer from which a side claims units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The owner's end.
    Front,
    /// The helper's end.
    Back,
}

/// The division of a transfer into units, which is equal on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    total_bytes: u64,
    unit_bytes: u64,
}

/// The result of an attempt to claim.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// The caller must copy these bytes, which are `units` units.
    Bytes { offset: usize, len: usize, units: u64 },
    /// All units are claimed or, for a helper, the transfer has ended.
    Nothing,
    /// The peer wrote an invalid word.
    Nonsense,
}

impl Cut {
    pub(super) fn new(total_bytes: usize) -> Self {
        let total_bytes = total_bytes as u64;
        let mut unit_bytes = UNIT_BYTES;
        while total_bytes.div_ceil(unit_bytes) > COUNT_MASK {
            unit_bytes *= 2;
        }
        Self { total_bytes, unit_bytes }
    }

    pub(super) fn units(self) -> u64 {
        self.total_bytes.div_ceil(self.unit_bytes)
    }

    /// The number of units to claim when `left` units remain and the side has claimed `taken`. The first
    /// claim is slightly more than half of the transfer: the owner starts first, and then neither side needs
    /// a second claim. Later claims shrink, so that both sides finish together.
    fn portion(self, left: u64, taken: u64) -> u64 {
        let ideal = if taken == 0 { (9 * self.units()).div_ceil(16) } else { left / 2 };
        let units = |bytes: u64| (bytes / self.unit_bytes).max(1);
        ideal.clamp(units(LEAST_BYTES), units(MOST_BYTES)).min(left)
    }

    pub(super) fn bytes(self, first: u64, units: u64) -> Claim {
        // The offset lies within the length of the transfer, which was a usize.
        let offset = first * self.unit_bytes;
        let len = (units * self.unit_bytes).min(self.total_bytes - offset);
        let narrow = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Claim::Bytes { offset: narrow(offset), len: narrow(len), units }
    }
}

impl Slot {
    /// A slot outside shared memory with this claim word, for tests and the model checker.
    #[cfg(test)]
    pub(super) fn new(word: u64) -> Self {
        Self { claim: AtomicU64::new(word), _apart: [0; 7], helped: AtomicU64::new(0) }
    }

    /// Owner: starts the use `lap` (1 to 65535) of the slot.
    pub(super) fn open(&self, lap: u64) {
        self.helped.store(0, Ordering::Relaxed);
        self.claim.store(lap << 48, Ordering::Release);
    }

    /// Owner: ends the use of the slot, after which all claims fail. Returns the number of units that the
    /// helper has claimed.
    pub(super) fn close(&self, lap: u64) -> u64 {
        let word = self.claim.swap(0, Ordering::AcqRel);
        if word >> 48 == lap { word >> COUNT_BITS & COUNT_MASK } else { 0 }
    }

    /// Helper: reports `units` copied units, or (`None`) a failure to copy claimed units.
    pub(super) fn helped(&self, units: Option<u64>) {
        match units {
            Some(units) => self.helped.fetch_add(units, Ordering::Release),
            None => self.helped.fetch_or(FAILED, Ordering::Release),
        };
    }

    /// Owner: number of units that the helper has copied. `None`: the helper has failed.
    pub(super) fn help(&self) -> Option<u64> {
        let helped = self.helped.load(Ordering::Acquire);
        (helped & FAILED == 0).then_some(helped)
    }

    /// Whether a helper would find unclaimed units.
    pub(super) fn wants_help(&self, lap: u64, cut: Cut) -> bool {
        let word = self.claim.load(Ordering::Relaxed);
        word >> 48 == lap && (word & COUNT_MASK) + (word >> COUNT_BITS & COUNT_MASK) < cut.units()
    }

    /// Claims units for one side, which has claimed `taken` units so far.
    pub(super) fn claim(&self, lap: u64, cut: Cut, end: End, taken: u64) -> Claim {
        let mut word = self.claim.load(Ordering::Acquire);
        loop {
            let (front, back) = (word & COUNT_MASK, word >> COUNT_BITS & COUNT_MASK);
            let mine = if end == End::Front { front } else { back };
            if lap == 0 || word >> 48 != lap {
                return if end == End::Front { Claim::Nonsense } else { Claim::Nothing };
            }
            let Some(left) = cut.units().checked_sub(front + back) else { return Claim::Nonsense };
            if mine != taken {
                return Claim::Nonsense;
            }
            if left == 0 {
                return Claim::Nothing;
            }
            let portion = cut.portion(left, taken);
            debug_assert!(portion <= left);
            let step = if end == End::Front { portion } else { portion << COUNT_BITS };
            match self.claim.compare_exchange_weak(word, word + step, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => {
                    let first = if end == End::Front { front } else { cut.units() - back - portion };
                    return cut.bytes(first, portion);
                }
                Err(now) => word = now,
            }
        }
    }
}
