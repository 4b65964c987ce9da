//! Numbers by which the engine's tables name their entries: one type for each table.
//!
//! Place in the data flow: messages and links carry these numbers where they would otherwise carry references. A type
//! indexes its own table only.

use std::num::NonZeroU32;

/// The number of a table's entry.
///
/// # Panics
///
/// If the table has 2³² - 1 entries or more, which memory does not allow.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn number(place: usize) -> u32 {
    assert!(place < u32::MAX as usize, "a table has fewer than 2^32 - 1 entries");
    place as u32
}

/// A peer of an engine. One that was forgotten leaves its number to another peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId(NonZeroU32);

impl PeerId {
    /// The peer at a place of the table, from 0 on.
    #[inline]
    pub(crate) const fn new(place: usize) -> Self {
        // The number is stored plus one, so that an `Option` takes four bytes. The sum never is 0.
        Self(NonZeroU32::MIN.saturating_add(number(place)))
    }

    /// The peer's place in the table.
    #[inline(always)]
    pub(crate) const fn place(self) -> usize {
        self.0.get() as usize - 1
    }

    /// The number by which clients name the peer: [`crate::PeerNames::name`].
    pub(crate) const fn number(self) -> u32 {
        self.0.get() - 1
    }
}
