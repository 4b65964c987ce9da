//! The word by which the owner of a region revokes a peer's access to it.
//!
//! Place in the data flow: [`super::Guard`], for the peer and for the owner. `tests/loom_guard.rs` tries the
//! interleavings of both.
//!
//! Invariant: once the owner has revoked the word and then found it idle, all accesses that the peer has performed are
//! visible to the owner, and no further one begins.

use super::sync::{AtomicU64, Ordering};

/// The flag of a revoked word. The other bits count the accesses under way.
const REVOKED: u64 = 1 << 63;

/// Counts an access of the peer before it begins. False: the owner has revoked the word.
#[inline]
pub(super) fn enter(word: &AtomicU64) -> bool {
    if word.fetch_add(1, Ordering::AcqRel) & REVOKED == 0 {
        return true;
    }
    word.fetch_sub(1, Ordering::AcqRel);
    false
}

/// Notes that an access has ended.
#[inline]
pub(super) fn leave(word: &AtomicU64) {
    word.fetch_sub(1, Ordering::Release);
}

/// Revokes the word.
pub(super) fn revoke(word: &AtomicU64) {
    word.fetch_or(REVOKED, Ordering::AcqRel);
}

pub(super) fn is_revoked(word: &AtomicU64) -> bool {
    word.load(Ordering::Acquire) & REVOKED != 0
}

/// Whether no access is under way.
pub(super) fn is_idle(word: &AtomicU64) -> bool {
    word.load(Ordering::Acquire) & !REVOKED == 0
}
