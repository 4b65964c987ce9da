//! Complex numbers, with the real part first, as in C and Fortran.
//!
//! The product is the textbook formula. The rules of C's Annex G, which recover infinities from NaNs, are not
//! applied.

use std::sync::atomic::AtomicU64;

use super::float::Extended;
use super::number::{Native, Number};
use crate::mem::atomic::Wide;

/// A complex number.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C)]
pub(super) struct Complex<T> {
    re: T,
    im: T,
}

impl<T: Number> Number for Complex<T> {
    fn from_bytes(bytes: &[u8]) -> Self {
        let (re, im) = bytes.split_at(bytes.len() / 2);
        Self { re: T::from_bytes(re), im: T::from_bytes(im) }
    }

    fn to_bytes(self, bytes: &mut [u8]) {
        let (re, im) = bytes.split_at_mut(bytes.len() / 2);
        self.re.to_bytes(re);
        self.im.to_bytes(im);
    }

    fn sum(self, other: Self) -> Self {
        Self { re: self.re.sum(other.re), im: self.im.sum(other.im) }
    }

    fn difference(self, other: Self) -> Self {
        Self { re: self.re.difference(other.re), im: self.im.difference(other.im) }
    }

    fn product(self, other: Self) -> Self {
        Self {
            re: self.re.product(other.re).difference(self.im.product(other.im)),
            im: self.re.product(other.im).sum(self.im.product(other.re)),
        }
    }

    fn is_true(self) -> bool {
        self.re.is_true() || self.im.is_true()
    }

    fn truth(truth: bool) -> Self {
        Self { re: T::truth(truth), im: T::truth(false) }
    }

    fn equals(self, other: Self) -> bool {
        self.re.equals(other.re) && self.im.equals(other.im)
    }
}

impl Native for Complex<f32> {
    type Cell = AtomicU64;
    const IS_INTEGER: bool = false;

    fn bits(self) -> u64 {
        let mut bytes = [0; 8];
        self.to_bytes(&mut bytes);
        u64::from_ne_bytes(bytes)
    }

    fn of(bits: u64) -> Self {
        Self::from_bytes(&bits.to_ne_bytes())
    }
}

impl Native for Complex<f64> {
    type Cell = Wide;
    const IS_INTEGER: bool = false;

    fn bits(self) -> u128 {
        let mut bytes = [0; 16];
        self.to_bytes(&mut bytes);
        u128::from_ne_bytes(bytes)
    }

    fn of(bits: u128) -> Self {
        Self::from_bytes(&bits.to_ne_bytes())
    }
}

// This type is too long for any instruction. It determines `LARGEST_BYTES`.
const _: () = assert!(size_of::<Complex<Extended>>() == super::LARGEST_BYTES);
