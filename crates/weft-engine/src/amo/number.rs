//! The operations that atomic operations need of a number, for the integers and floating-point numbers of
//! Rust.

use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

use crate::mem::atomic::{Cell, Wide};

/// A number of one of the [`super::TYPES`], whose size is that of the type. Operations that the table
/// excludes for the class are never called: the order of complex numbers, and the bits of anything but
/// integers.
pub(super) trait Number: Copy {
    /// Converts `size_of::<Self>()` bytes in the host's order. Any other number of bytes gives zero.
    fn from_bytes(bytes: &[u8]) -> Self;
    /// Writes `size_of::<Self>()` bytes.
    fn to_bytes(self, bytes: &mut [u8]);
    /// Addition.
    fn sum(self, other: Self) -> Self;
    /// Subtraction.
    fn difference(self, other: Self) -> Self;
    /// Multiplication.
    fn product(self, other: Self) -> Self;
    /// Whether the number is not zero.
    fn is_true(self) -> bool;
    /// One for true, zero for false.
    fn truth(truth: bool) -> Self;
    /// Equality of values.
    fn equals(self, other: Self) -> bool;
    /// Whether this number is less than the other one.
    fn less(self, _other: Self) -> bool {
        false
    }
    /// Bitwise and.
    fn and(self, _other: Self) -> Self {
        self
    }
    /// Bitwise or.
    fn or(self, _other: Self) -> Self {
        self
    }
    /// Bitwise exclusive or.
    fn xor(self, _other: Self) -> Self {
        self
    }
    /// Bitwise complement.
    fn not(self) -> Self {
        self
    }
}

/// A number for which the CPU may have atomic instructions.
pub(super) trait Native: Number {
    /// Memory for one number.
    type Cell: Cell;
    /// Whether the sum of two numbers is the sum of their bits.
    const IS_INTEGER: bool;
    /// The value in the cell that represents this number.
    fn bits(self) -> <Self::Cell as Cell>::Bits;
    /// The number that a value in a cell represents.
    fn of(bits: <Self::Cell as Cell>::Bits) -> Self;
}

/// The two conversions between a number and its bytes.
macro_rules! bytes {
    ($number:ty) => {
        #[inline]
        fn from_bytes(bytes: &[u8]) -> Self {
            bytes.try_into().map_or(Self::truth(false), <$number>::from_ne_bytes)
        }
        #[inline]
        fn to_bytes(self, bytes: &mut [u8]) {
            bytes.copy_from_slice(&self.to_ne_bytes());
        }
    };
}

macro_rules! integer {
    ($($number:ty, $bits:ty, $cell:ty;)*) => {
        $(impl Number for $number {
            bytes!($number);
            #[inline]
            fn sum(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline]
            fn difference(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }
            #[inline]
            fn product(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline]
            fn is_true(self) -> bool {
                self != 0
            }
            #[inline]
            fn truth(truth: bool) -> Self {
                Self::from(truth)
            }
            #[inline]
            fn equals(self, other: Self) -> bool {
                self == other
            }
            #[inline]
            fn less(self, other: Self) -> bool {
                self < other
            }
            #[inline]
            fn and(self, other: Self) -> Self {
                self & other
            }
            #[inline]
            fn or(self, other: Self) -> Self {
                self | other
            }
            #[inline]
            fn xor(self, other: Self) -> Self {
                self ^ other
            }
            #[inline]
            fn not(self) -> Self {
                !self
            }
        }

        impl Native for $number {
            type Cell = $cell;
            const IS_INTEGER: bool = true;
            #[inline]
            fn bits(self) -> $bits {
                <$bits>::from_ne_bytes(self.to_ne_bytes())
            }
            #[inline]
            fn of(bits: $bits) -> Self {
                Self::from_ne_bytes(bits.to_ne_bytes())
            }
        })*
    };
}

integer! {
    i8, u8, AtomicU8;
    u8, u8, AtomicU8;
    i16, u16, AtomicU16;
    u16, u16, AtomicU16;
    i32, u32, AtomicU32;
    u32, u32, AtomicU32;
    i64, u64, AtomicU64;
    u64, u64, AtomicU64;
    i128, u128, Wide;
    u128, u128, Wide;
}

macro_rules! float {
    ($($number:ty, $bits:ty, $cell:ty;)*) => {
        $(impl Number for $number {
            bytes!($number);
            fn sum(self, other: Self) -> Self {
                self + other
            }
            fn difference(self, other: Self) -> Self {
                self - other
            }
            fn product(self, other: Self) -> Self {
                self * other
            }
            fn is_true(self) -> bool {
                self != 0.0
            }
            fn truth(truth: bool) -> Self {
                Self::from(truth)
            }
            fn equals(self, other: Self) -> bool {
                self == other
            }
            fn less(self, other: Self) -> bool {
                self < other
            }
        }

        impl Native for $number {
            type Cell = $cell;
            const IS_INTEGER: bool = false;
            fn bits(self) -> $bits {
                self.to_bits()
            }
            fn of(bits: $bits) -> Self {
                Self::from_bits(bits)
            }
        })*
    };
}

float! {
    f32, u32, AtomicU32;
    f64, u64, AtomicU64;
}
