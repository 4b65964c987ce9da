//! Floating-point numbers that Rust does not have: formats of 8 and 16 bits, and C's `long double` of x86-64.
//!
//! Short formats are computed as doubles and rounded once, to nearest even. The double of a sum or product of
//! two short numbers is exact or has been rounded at bit 53. A short format keeps at most 11 bits, so the
//! second rounding changes nothing.

use std::sync::atomic::{AtomicU8, AtomicU16};

use super::number::{Native, Number};
use crate::mem::atomic::Wide;
use crate::mem::x87;

/// The layout of a short format: sign, exponent, fraction.
trait Layout: Copy {
    const EXPONENT_BITS: u32;
    const FRACTION_BITS: u32;
    /// Whether the largest exponent means infinity and NaN, as in IEEE 754. Otherwise NaN has all bits set,
    /// and there is no infinity.
    const HAS_INFINITY: bool;
}

/// FI_FLOAT16: IEEE 754 half precision.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct F16(u16);
/// FI_BFLOAT16: the upper half of a float.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct Bf16(u16);
/// FI_FLOAT8_E4M3: a format of the Open Compute Project, without infinity.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct E4m3(u8);
/// FI_FLOAT8_E5M2: a format of the Open Compute Project.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct E5m2(u8);

impl Layout for F16 {
    const EXPONENT_BITS: u32 = 5;
    const FRACTION_BITS: u32 = 10;
    const HAS_INFINITY: bool = true;
}
impl Layout for Bf16 {
    const EXPONENT_BITS: u32 = 8;
    const FRACTION_BITS: u32 = 7;
    const HAS_INFINITY: bool = true;
}
impl Layout for E4m3 {
    const EXPONENT_BITS: u32 = 4;
    const FRACTION_BITS: u32 = 3;
    const HAS_INFINITY: bool = false;
}
impl Layout for E5m2 {
    const EXPONENT_BITS: u32 = 5;
    const FRACTION_BITS: u32 = 2;
    const HAS_INFINITY: bool = true;
}

/// 2 to the power of `exponent`, which must be the exponent of a normal double.
fn power(exponent: i32) -> f64 {
    f64::from_bits(u64::from((exponent + 1023).cast_unsigned()) << 52)
}

/// The exponent of the smallest normal number.
const fn least_exponent<L: Layout>() -> i32 {
    2 - (1 << (L::EXPONENT_BITS - 1))
}

/// The value of a bit pattern.
fn widen<L: Layout>(bits: u16) -> f64 {
    let fraction = bits & ((1 << L::FRACTION_BITS) - 1);
    let exponent = bits >> L::FRACTION_BITS & ((1 << L::EXPONENT_BITS) - 1);
    let negative = bits >> (L::FRACTION_BITS + L::EXPONENT_BITS) != 0;
    let last = exponent == (1 << L::EXPONENT_BITS) - 1;
    let all = fraction == (1 << L::FRACTION_BITS) - 1;
    let size = if last && L::HAS_INFINITY {
        if fraction == 0 { f64::INFINITY } else { f64::NAN }
    } else if last && all {
        f64::NAN
    } else {
        let leading = if exponent == 0 { 0 } else { 1 << L::FRACTION_BITS };
        let scale = least_exponent::<L>() + i32::from(exponent.max(1)) - 1 - L::FRACTION_BITS.cast_signed();
        f64::from(leading | fraction) * power(scale)
    };
    if negative { -size } else { size }
}

/// The bits of the nearest value. Values that are too large become infinity, or NaN in formats without
/// infinity.
fn narrow<L: Layout>(value: f64) -> u16 {
    let sign = u16::from(value.is_sign_negative()) << (L::FRACTION_BITS + L::EXPONENT_BITS);
    let last = ((1 << L::EXPONENT_BITS) - 1) << L::FRACTION_BITS;
    let all = last | ((1 << L::FRACTION_BITS) - 1);
    // The result for values beyond the largest finite number.
    let beyond = if L::HAS_INFINITY { last } else { all };
    let size = value.abs();
    if size.is_nan() {
        return sign | if L::HAS_INFINITY { last | 1 << (L::FRACTION_BITS - 1) } else { all };
    }
    // A subnormal double is too small for every short format, and is rounded to zero.
    let exponent = i32::try_from(size.to_bits() >> 52).unwrap_or(0) - 1023;
    if exponent >= 1 << (L::EXPONENT_BITS - 1) && L::HAS_INFINITY || exponent > 1 << (L::EXPONENT_BITS - 1) {
        return sign | beyond;
    }
    let least = least_exponent::<L>();
    let exponent = exponent.max(least);
    // The size in units of the last place: at most twice the leading bit, so it is exact and small.
    let units = (size * power(L::FRACTION_BITS.cast_signed() - exponent)).round_ties_even();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small, and not negative")]
    let units = units as u32;
    // The leading bit adds one to the exponent, and a carry adds another one.
    let bits = ((exponent - least).cast_unsigned() << L::FRACTION_BITS) + units;
    sign | u16::try_from(bits).unwrap_or(u16::MAX).min(beyond)
}

macro_rules! short {
    ($($number:ident, $bits:ty, $cell:ty;)*) => {
        $(impl $number {
            fn value(self) -> f64 {
                widen::<Self>(u16::from(self.0))
            }

            fn nearest(value: f64) -> Self {
                // Truncation loses nothing: the format has no more bits.
                #[allow(clippy::cast_possible_truncation, clippy::unnecessary_cast)]
                Self(narrow::<Self>(value) as $bits)
            }
        }

        impl Number for $number {
            fn from_bytes(bytes: &[u8]) -> Self {
                Self(bytes.try_into().map_or(0, <$bits>::from_ne_bytes))
            }
            fn to_bytes(self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.0.to_ne_bytes());
            }
            fn sum(self, other: Self) -> Self {
                Self::nearest(self.value() + other.value())
            }
            fn difference(self, other: Self) -> Self {
                Self::nearest(self.value() - other.value())
            }
            fn product(self, other: Self) -> Self {
                Self::nearest(self.value() * other.value())
            }
            fn is_true(self) -> bool {
                self.value() != 0.0
            }
            fn truth(truth: bool) -> Self {
                Self::nearest(f64::from(truth))
            }
            fn equals(self, other: Self) -> bool {
                self.value() == other.value()
            }
            fn less(self, other: Self) -> bool {
                self.value() < other.value()
            }
        }

        impl Native for $number {
            type Cell = $cell;
            const IS_INTEGER: bool = false;
            fn bits(self) -> $bits {
                self.0
            }
            fn of(bits: $bits) -> Self {
                Self(bits)
            }
        })*
    };
}

short! {
    F16, u16, AtomicU16;
    Bf16, u16, AtomicU16;
    E4m3, u8, AtomicU8;
    E5m2, u8, AtomicU8;
}

/// FI_LONG_DOUBLE: sign, 15 bits of exponent, 64 bits of significand including the leading one, and 48 bits
/// of padding.
#[derive(Clone, Copy, Debug)]
#[repr(transparent)]
pub(super) struct Extended(u128);

impl Extended {
    const SIGN: u128 = 1 << 79;
    const INFINITY: u128 = 0x7fff << 64 | 1 << 63;

    const fn size(self) -> u128 {
        self.0 & (Self::SIGN - 1)
    }

    const fn is_nan(self) -> bool {
        self.size() > Self::INFINITY
    }

    /// A key that orders all numbers except NaN.
    const fn key(self) -> i128 {
        let size = self.size().cast_signed();
        if self.0 & Self::SIGN == 0 { size } else { -size }
    }
}

impl Number for Extended {
    fn from_bytes(bytes: &[u8]) -> Self {
        Self(bytes.try_into().map_or(0, u128::from_ne_bytes))
    }

    fn to_bytes(self, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.0.to_ne_bytes());
    }

    fn sum(self, other: Self) -> Self {
        Self(x87::add(self.0, other.0))
    }

    fn difference(self, other: Self) -> Self {
        Self(x87::sub(self.0, other.0))
    }

    fn product(self, other: Self) -> Self {
        Self(x87::mul(self.0, other.0))
    }

    fn is_true(self) -> bool {
        self.size() != 0
    }

    fn truth(truth: bool) -> Self {
        Self(if truth { 0x3fff << 64 | 1 << 63 } else { 0 })
    }

    fn equals(self, other: Self) -> bool {
        !self.is_nan() && !other.is_nan() && self.key() == other.key()
    }

    fn less(self, other: Self) -> bool {
        !self.is_nan() && !other.is_nan() && self.key() < other.key()
    }
}

impl Native for Extended {
    type Cell = Wide;
    const IS_INTEGER: bool = false;

    fn bits(self) -> u128 {
        self.0
    }

    fn of(bits: u128) -> Self {
        Self(bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All finite non-negative values of a format, in ascending order.
    fn values<L: Layout>() -> Vec<f64> {
        let bits = L::EXPONENT_BITS + L::FRACTION_BITS;
        (0..1u16 << bits).map(widen::<L>).filter(|x| x.is_finite()).collect()
    }

    fn check<L: Layout>(largest: f64, smallest: f64) {
        let values = values::<L>();
        assert_eq!((values[1], values.last().copied()), (smallest, Some(largest)));
        assert!(values.is_sorted_by(|a, b| a < b));
        for (n, value) in values.iter().enumerate() {
            assert_eq!(usize::from(narrow::<L>(*value)), n, "{value} comes back");
            let Some(next) = values.get(n + 1) else { continue };
            let middle = value + (next - value) / 2.0;
            let even = if n.is_multiple_of(2) { n } else { n + 1 };
            assert_eq!(usize::from(narrow::<L>(middle)), even, "the middle above {value} goes to even");
            assert_eq!(usize::from(narrow::<L>(middle.next_down())), n);
            assert_eq!(usize::from(narrow::<L>(middle.next_up())), n + 1);
            assert_eq!(widen::<L>(narrow::<L>(-value)), -value);
        }
        let step = largest - values[values.len() - 2];
        let over = widen::<L>(narrow::<L>(largest + step));
        let infinite = |x: f64| if L::HAS_INFINITY { x.is_infinite() } else { x.is_nan() };
        assert!(infinite(over), "{over}");
        assert!(infinite(widen::<L>(narrow::<L>(f64::INFINITY))) && infinite(widen::<L>(narrow::<L>(1e300))));
        assert_eq!(widen::<L>(narrow::<L>(largest + step / 4.0)), largest);
        // The middle between the largest number and the next step, which the format lacks. The largest number
        // is odd if infinity follows it, otherwise even.
        let middle = widen::<L>(narrow::<L>(largest + step / 2.0));
        assert!(if L::HAS_INFINITY { middle.is_infinite() } else { middle == largest }, "{middle}");
        assert_eq!(narrow::<L>(1e-300), 0);
        assert!(widen::<L>(narrow::<L>(f64::NAN)).is_nan());
    }

    #[test]
    fn short_formats_follow_their_standards() {
        check::<F16>(65504.0, 2f64.powi(-24));
        check::<Bf16>(f64::from(f32::from_bits(0x7f7f_0000)), 2f64.powi(-133));
        check::<E4m3>(448.0, 2f64.powi(-9));
        check::<E5m2>(57344.0, 2f64.powi(-16));
    }

    #[test]
    fn extended_numbers_are_ordered_by_value() {
        let one = Extended::truth(true);
        let zero = Extended::truth(false);
        let minus = |x: Extended| Extended(x.0 ^ Extended::SIGN);
        let nan = Extended(Extended::INFINITY | 1);
        let infinity = Extended(Extended::INFINITY);
        let order = [minus(infinity), minus(one), zero, one, infinity];
        for (n, a) in order.iter().enumerate() {
            for (m, b) in order.iter().enumerate() {
                assert_eq!((a.less(*b), a.equals(*b)), (n < m, n == m), "{n} {m}");
            }
            assert!(!a.less(nan) && !nan.less(*a) && !a.equals(nan) && !nan.equals(nan));
        }
        assert!(minus(zero).equals(zero) && !minus(zero).less(zero) && !zero.less(minus(zero)));
        assert!(nan.is_true() && minus(one).is_true() && !minus(zero).is_true());
        // The padding is ignored.
        assert!(Extended(one.0 | 1 << 100).equals(one));
    }
}
