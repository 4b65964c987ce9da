//! The shape of a call: what the members of a group must agree upon.
//!
//! Place in the data flow: each member writes the shape of its call into its slot ([`super::HostBoard::arrive`]). A
//! member whose shape is another one than that of the rest gets no result, and its memory is not touched.
//!
//! A shape is one word, so that it is read as a whole. Bits 0 to 7 have the operation, from 1 on: no shape is 0. Bits 8
//! to 15 have the arithmetic, bits 16 to 31 the root, and bits 32 to 63 the bytes of a block.

/// The shape of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape(u64);

impl Shape {
    /// The shape of an operation, which has a number from 1 on, on blocks of this length. It holds the low bits of
    /// numbers that are too large.
    pub(crate) const fn new(operation: u8, arithmetic: u8, block: usize, root: u32) -> Self {
        let root = (root as u64 & 0xffff) << 16;
        Self(operation as u64 | (arithmetic as u64) << 8 | root | (block as u64) << 32)
    }

    /// The shape in this word.
    pub(crate) const fn of_word(word: u64) -> Self {
        Self(word)
    }

    /// The shape as a word.
    pub(crate) const fn word(self) -> u64 {
        self.0
    }

    /// Bytes of a block.
    pub(crate) const fn block(self) -> u64 {
        self.0 >> 32
    }

    /// A number whose sums tell whether members have the same shape, except by chance.
    pub(crate) const fn digest(self) -> u64 {
        let mixed = (self.0 ^ self.0 >> 29).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed ^ mixed >> 32).wrapping_mul(0xbf58_476d_1ce4_e5b9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_makes_another_shape() {
        let first = Shape::new(1, 2, 40, 3);
        let others =
            [Shape::new(2, 2, 40, 3), Shape::new(1, 3, 40, 3), Shape::new(1, 2, 80, 3), Shape::new(1, 2, 40, 4)];
        assert!(others.iter().all(|other| *other != first && other.digest() != first.digest()));
        assert_eq!(first.block(), 40);
    }

    #[test]
    fn sums_of_two_other_shapes_do_not_pass_for_one() {
        let digest = |bytes| Shape::new(4, 0, bytes, 0).digest();
        assert_ne!(digest(10).wrapping_add(digest(30)), digest(20).wrapping_mul(2));
    }
}
