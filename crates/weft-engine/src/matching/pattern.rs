//! Source and tag of a receive or a message as one number with a mask.
//!
//! Place in the data flow: the key type of the indexes of [`super::queue`]. The tag is the upper half of the
//! number, the source's address the lower half. A message cares for every bit; a receive cares for all bits
//! but those it ignores. The two match if they agree in every bit that both care for.

use crate::api::{ADDR_NONE, Addr};

/// A value and its mask. Bits of `value` outside `care` are 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pattern {
    pub(crate) value: u128,
    pub(crate) care: u128,
}

impl Pattern {
    /// The pattern of a message. A message from an unknown address matches no receive that names a source.
    #[inline]
    pub(crate) fn message(src: Addr, tag: u64) -> Self {
        Self { value: u128::from(tag) << 64 | u128::from(src), care: u128::MAX }
    }

    /// The pattern of a receive; `src` = `ADDR_NONE` accepts any source.
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
