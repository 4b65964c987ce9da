//! What a receive or a message says of source and tag, as one number of which bits may not matter.
//!
//! Place in the data flow: the common language of the indexes of [`super::queue`]. The tag has the upper
//! half, the source's address the lower one. A message cares for every bit, a receive for all but those it
//! ignores; the two match where they agree in every bit that both care for.

use crate::api::{ADDR_NONE, Addr};

/// See the module. Bits of `value` outside `care` are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) value: u128,
    pub(crate) care: u128,
}

impl Pattern {
    /// A message's. One from an address that is not known matches no receive that names a source.
    #[inline]
    pub(crate) fn message(src: Addr, tag: u64) -> Self {
        Self { value: u128::from(tag) << 64 | u128::from(src), care: u128::MAX }
    }

    /// A receive's; from anyone if `src` is `ADDR_NONE`.
    #[inline]
    pub(crate) fn receive(src: Addr, tag: u64, ignore: u64) -> Self {
        let source = if src == ADDR_NONE { 0 } else { u64::MAX };
        let care = u128::from(!ignore) << 64 | u128::from(source);
        Self { value: Self::message(src, tag).value & care, care }
    }

    /// Whether the two match.
    #[cfg(test)]
    pub(crate) fn meets(&self, other: &Self) -> bool {
        (self.value ^ other.value) & self.care & other.care == 0
    }
}
