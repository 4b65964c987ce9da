//! How tables grow that have a row for each peer.
//!
//! A vector that has no room doubles, so that a third of it is unused on the average and half of it at times:
//! with tables of peers that would be much of what a peer costs. These grow by a sixteenth; who adds a peer
//! copies some ten kilobytes more, which making its connection hides.

/// Makes room for `more` rows, and for some that may follow.
#[inline]
pub fn reserve<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact(more.max(growth(table.len())));
    }
}

/// By how many rows a full table of so many grows.
#[must_use]
pub const fn growth(rows: usize) -> usize {
    if rows < 8 * 16 { 8 } else { rows / 16 }
}
