//! The growth of tables that have one row for each peer.
//!
//! A full `Vec` doubles its capacity, so on average a third of it is unused, and at worst half. For tables of
//! peers, this would be a large part of the memory of a peer. These tables grow by a sixteenth instead. They
//! are copied more often, a cost that the set-up of a peer's connection hides.

/// Makes room for at least `more` rows. A table that must grow gets spare rows.
#[inline]
pub fn reserve<T>(table: &mut Vec<T>, more: usize) {
    if table.capacity() - table.len() < more {
        table.reserve_exact(more.max(growth(table.len())));
    }
}

/// The number of rows by which a full table of `rows` rows grows.
#[must_use]
pub const fn growth(rows: usize) -> usize {
    if rows < 8 * 16 { 8 } else { rows / 16 }
}
