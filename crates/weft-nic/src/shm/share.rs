//! Transfers that both sides of a link copy at once: who copies which bytes.
//!
//! Place in the data flow: `Shm::get`/`put` open a [`Slot`] in the pair's segment for a long transfer; the peer's
//! `Shm::assist` joins it. `transfer.rs` copies what [`Slot::claim`] has claimed.
//!
//! The owner (who called `get` or `put`) claims units from the front, the helper from the back, with one
//! compare-and-swap on one word, until nothing is left between them. So each side gets as much as it has time for, a
//! helper that never comes costs nothing, and the two touch different pages and cache lines:
//! ```text
//!  63      48 47      24 23       0
//!  | lap    | back     | front    |    claim word: units claimed by helper and owner; lap 0: closed
//! ```
//! The helper adds what it has copied to the second word. The owner is done when all is claimed, its own part
//! is copied, and the helper's count equals the helper's claim.
//!
//! The lap tells one use of the slot from the next, so that a helper that comes late finds nothing to claim.
//!
//! Trust: the peer may write anything. The owner trusts only its own account of the front: a claim word in
//! which the front is not what we left there, or units overlap, is a violation. What a peer claims and does
//! not copy, or counts wrongly, damages its own transfer. The helper copies between the memory that its own
//! engine named and addresses that the kernel checks, whatever the words say.
//!
//! The atomics come from `super::sync`, so that a model checker can put its own there (`tests/loom_share.rs`).

use super::sync::{AtomicU64, Ordering};

/// Slots of one side of a link: transfers that it may share at a time.
pub(super) const SLOTS: u32 = 8;
/// Shortest transfer that is shared, in bytes. Below it the request costs more than the help brings.
pub(super) const SHARE_BYTES: usize = 40 * 1024;
/// Smallest unit in bytes; longer transfers have larger ones, so that the counts fit.
const UNIT_BYTES: u64 = 4096;
pub(super) const COUNT_BITS: u32 = 24;
pub(super) const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
/// Least that is claimed at a time, while there is that much: a system call must pay.
const LEAST_BYTES: u64 = 16 * 1024;
/// Most that is claimed at a time.
const MOST_BYTES: u64 = 256 * 1024;
/// In the helper's count: it could not copy what it had claimed.
const FAILED: u64 = 1 << 63;

/// One shared transfer, in the segment. All zero at the start.
#[repr(C, align(128))]
pub(super) struct Slot {
    claim: AtomicU64,
    /// The owner waits for the count while the helper may still look at the claims.
    _apart: [u64; 7],
    /// Units that the helper has copied.
    helped: AtomicU64,
}

/// Which end of a transfer a side takes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The owner's.
    Front,
    /// The helper's.
    Back,
}

/// How a transfer is cut into units; the same on both sides.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cut {
    total_bytes: u64,
    unit_bytes: u64,
}

/// What a try to claim brought.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Claim {
    /// These bytes are ours to copy, and so many units.
    Bytes { offset: usize, len: usize, units: u64 },
    /// Nothing is left (or, for a helper, the transfer has ended).
    Nothing,
    /// The peer wrote nonsense.
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

    /// How much to take when `left` units are left and `taken` are already ours. The first portion is a
    /// little more than half of the whole: the owner begins first, and then neither side needs a second one.
    /// Later ones shrink, so that both end together.
    fn portion(self, left: u64, taken: u64) -> u64 {
        let ideal = if taken == 0 { (9 * self.units()).div_ceil(16) } else { left / 2 };
        let units = |bytes: u64| (bytes / self.unit_bytes).max(1);
        ideal.clamp(units(LEAST_BYTES), units(MOST_BYTES)).min(left)
    }

    pub(super) fn bytes(self, first: u64, units: u64) -> Claim {
        // Within the transfer's length, which was a usize.
        let offset = first * self.unit_bytes;
        let len = (units * self.unit_bytes).min(self.total_bytes - offset);
        let narrow = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Claim::Bytes { offset: narrow(offset), len: narrow(len), units }
    }
}

impl Slot {
    /// A slot outside shared memory that has this claim word, for tests and the model checker.
    #[cfg(test)]
    pub(super) fn new(word: u64) -> Self {
        Self { claim: AtomicU64::new(word), _apart: [0; 7], helped: AtomicU64::new(0) }
    }

    /// Owner: begins lap `lap` (1 to 65535).
    pub(super) fn open(&self, lap: u64) {
        self.helped.store(0, Ordering::Relaxed);
        self.claim.store(lap << 48, Ordering::Release);
    }

    /// Owner: nobody claims any more. Returns the units that the helper had claimed.
    pub(super) fn close(&self, lap: u64) -> u64 {
        let word = self.claim.swap(0, Ordering::AcqRel);
        if word >> 48 == lap { word >> COUNT_BITS & COUNT_MASK } else { 0 }
    }

    /// Helper: has copied `units`, or (`None`) could not copy what it has claimed.
    pub(super) fn helped(&self, units: Option<u64>) {
        match units {
            Some(units) => self.helped.fetch_add(units, Ordering::Release),
            None => self.helped.fetch_or(FAILED, Ordering::Release),
        };
    }

    /// Owner: how many units the helper has copied; `None`: it could not.
    pub(super) fn help(&self) -> Option<u64> {
        let helped = self.helped.load(Ordering::Acquire);
        (helped & FAILED == 0).then_some(helped)
    }

    /// Whether the helper would find something to claim.
    pub(super) fn wants_help(&self, lap: u64, cut: Cut) -> bool {
        let word = self.claim.load(Ordering::Relaxed);
        word >> 48 == lap && (word & COUNT_MASK) + (word >> COUNT_BITS & COUNT_MASK) < cut.units()
    }

    /// Claims for one side. `taken`: the units that this side has claimed so far.
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
