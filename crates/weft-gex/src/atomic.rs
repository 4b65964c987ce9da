//! Atomic operations on memory that ranks share, by the processor's own instructions.
//!
//! Place in the data flow: weft-gex-c passes the operations of atomic domains. An operation is performed when the call
//! returns. Numbers travel as their bits, in the low part of a word.
//!
//! Floating-point numbers are compared and swapped by their bits; their other operations repeat until no other update
//! has come between.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::combine::Type;

/// An operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Bits of both.
    And,
    /// Bits of either.
    Or,
    /// Bits of one.
    Xor,
    /// The sum.
    Add,
    /// The difference.
    Sub,
    /// The product.
    Mult,
    /// The lesser one.
    Min,
    /// The greater one.
    Max,
    /// One more.
    Inc,
    /// One less.
    Dec,
    /// The first operand.
    Set,
    /// The second operand, if the first one is there.
    Cas,
    /// The present value.
    Get,
}

/// The distance of the fetching form of an operation, in bits.
const FETCHING: u32 = 15;
const GET: u32 = 1 << 27;

impl Op {
    /// The operation with a code, and whether it returns the earlier value.
    #[inline(always)]
    #[must_use]
    pub fn from_code(code: u32) -> Option<(Self, bool)> {
        const ALL: [Op; 12] = [
            Op::And,
            Op::Or,
            Op::Xor,
            Op::Add,
            Op::Sub,
            Op::Mult,
            Op::Min,
            Op::Max,
            Op::Inc,
            Op::Dec,
            Op::Set,
            Op::Cas,
        ];
        if code == GET {
            return Some((Self::Get, true));
        }
        let bit = code.trailing_zeros();
        let (at, fetches) = if bit >= FETCHING { (bit - FETCHING, true) } else { (bit, false) };
        (code.is_power_of_two()).then(|| ALL.get(at as usize).map(|op| (*op, fetches))).flatten()
    }

    /// Whether the operation is defined for a type.
    #[must_use]
    pub fn fits(self, ty: Type) -> bool {
        !(matches!(ty, Type::Float | Type::Double) && matches!(self, Self::And | Self::Or | Self::Xor))
    }
}

/// The operands of an operation, as bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Operands {
    /// The first.
    pub first: u64,
    /// The second, of [`Op::Cas`].
    pub second: u64,
}

macro_rules! integer {
    ($ty:ty, $bits:ty, $signed:ty, $word:expr, $op:expr, $a:expr, $b:expr) => {{
        let (word, a, b) = ($word, $a as $bits, $b as $bits);
        let repeat = |change: fn($ty, $ty) -> $ty| {
            let change = |now: $bits| Some(change(now as $ty, a as $ty) as $bits);
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).unwrap_or_else(|now| now)
        };
        let old = match $op {
            Op::And => word.fetch_and(a, Ordering::AcqRel),
            Op::Or => word.fetch_or(a, Ordering::AcqRel),
            Op::Xor => word.fetch_xor(a, Ordering::AcqRel),
            Op::Add => word.fetch_add(a, Ordering::AcqRel),
            Op::Sub => word.fetch_sub(a, Ordering::AcqRel),
            Op::Inc => word.fetch_add(1, Ordering::AcqRel),
            Op::Dec => word.fetch_sub(1, Ordering::AcqRel),
            Op::Mult => repeat(<$ty>::wrapping_mul),
            Op::Min => repeat(Ord::min),
            Op::Max => repeat(Ord::max),
            Op::Set => word.swap(a, Ordering::AcqRel),
            Op::Cas => word.compare_exchange(a, b, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|now| now),
            Op::Get => word.load(Ordering::Acquire),
        };
        u64::from(old)
    }};
}

macro_rules! float {
    ($ty:ty, $bits:ty, $word:expr, $op:expr, $a:expr, $b:expr) => {{
        let (word, a, b) = ($word, $a as $bits, $b as $bits);
        let operand = <$ty>::from_bits(a);
        let repeat = |change: fn($ty, $ty) -> $ty| {
            let change = |now: $bits| Some(change(<$ty>::from_bits(now), operand).to_bits());
            word.fetch_update(Ordering::AcqRel, Ordering::Acquire, change).unwrap_or_else(|now| now)
        };
        let old = match $op {
            Op::Add => repeat(|now, operand| now + operand),
            Op::Sub => repeat(|now, operand| now - operand),
            Op::Mult => repeat(|now, operand| now * operand),
            Op::Inc => repeat(|now, _| now + 1.0),
            Op::Dec => repeat(|now, _| now - 1.0),
            Op::Min => repeat(<$ty>::min),
            Op::Max => repeat(<$ty>::max),
            Op::Set => word.swap(a, Ordering::AcqRel),
            Op::Cas => word.compare_exchange(a, b, Ordering::AcqRel, Ordering::Acquire).unwrap_or_else(|now| now),
            Op::Get | Op::And | Op::Or | Op::Xor => word.load(Ordering::Acquire),
        };
        u64::from(old)
    }};
}

/// Performs an operation on a number of 32 bits. Returns the earlier value.
#[inline(always)]
#[expect(clippy::cast_possible_truncation, reason = "the numbers are in the low halves")]
#[must_use]
pub fn perform_32(word: &AtomicU32, ty: Type, op: Op, operands: Operands) -> u64 {
    let Operands { first, second } = operands;
    match ty {
        Type::I32 => integer!(i32, u32, i32, word, op, first, second),
        Type::Float => float!(f32, u32, word, op, first, second),
        _ => integer!(u32, u32, i32, word, op, first, second),
    }
}

/// Performs an operation on a number of 64 bits. Returns the earlier value.
#[inline(always)]
#[must_use]
pub fn perform_64(word: &AtomicU64, ty: Type, op: Op, operands: Operands) -> u64 {
    let Operands { first, second } = operands;
    match ty {
        Type::I64 => integer!(i64, u64, i64, word, op, first, second),
        Type::Double => float!(f64, u64, word, op, first, second),
        _ => integer!(u64, u64, i64, word, op, first, second),
    }
}

/// Performs an operation on a number at a checked address of this process. Returns the earlier value; `None` if the
/// number is not aligned.
#[inline(always)]
#[must_use]
pub fn perform(addr: usize, ty: Type, op: Op, operands: Operands) -> Option<u64> {
    if !addr.is_multiple_of(ty.bytes()) {
        return None;
    }
    Some(match ty.bytes() {
        4 => perform_32(crate::memory::word_32(addr), ty, op, operands),
        _ => perform_64(crate::memory::word_64(addr), ty, op, operands),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn both(first: u64, second: u64) -> Operands {
        Operands { first, second }
    }

    #[test]
    fn codes_have_fetching_forms() {
        assert_eq!(Op::from_code(1 << 3), Some((Op::Add, false)));
        assert_eq!(Op::from_code(1 << 18), Some((Op::Add, true)));
        assert_eq!(Op::from_code(1 << 11), Some((Op::Cas, false)));
        assert_eq!(Op::from_code(1 << 26), Some((Op::Cas, true)));
        assert_eq!(Op::from_code(1 << 27), Some((Op::Get, true)));
        for code in [0, 3, 1 << 12, 1 << 14, 1 << 30] {
            assert_eq!(Op::from_code(code), None, "{code:#x}");
        }
    }

    #[test]
    fn integers_keep_their_sign() {
        let minus = |number: i32| u64::from(number.cast_unsigned());
        let word = AtomicU32::new((-4_i32).cast_unsigned());
        assert_eq!(perform_32(&word, Type::I32, Op::Max, both(minus(-2), 0)), minus(-4));
        assert_eq!(perform_32(&word, Type::I32, Op::Mult, both(minus(-3), 0)), minus(-2));
        assert_eq!(perform_32(&word, Type::I32, Op::Dec, both(0, 0)), 6);
        assert_eq!(perform_32(&word, Type::U32, Op::Min, both(2, 0)), 5);
        assert_eq!(perform_32(&word, Type::U32, Op::Cas, both(2, 9)), 2);
        assert_eq!(perform_32(&word, Type::U32, Op::Cas, both(2, 8)), 9);
        assert_eq!(perform_32(&word, Type::U32, Op::Get, both(0, 0)), 9);
        let word = AtomicU64::new(5);
        assert_eq!(perform_64(&word, Type::I64, Op::Min, both(u64::MAX, 0)), 5);
        assert_eq!(perform_64(&word, Type::U64, Op::Max, both(7, 0)), u64::MAX);
    }

    #[test]
    fn floating_point_has_its_arithmetic() {
        let word = AtomicU64::new(1.5_f64.to_bits());
        let of = |number: f64| both(number.to_bits(), 0);
        assert_eq!(perform_64(&word, Type::Double, Op::Add, of(2.0)), 1.5_f64.to_bits());
        assert_eq!(perform_64(&word, Type::Double, Op::Mult, of(-2.0)), 3.5_f64.to_bits());
        assert_eq!(perform_64(&word, Type::Double, Op::Max, of(1.0)), (-7.0_f64).to_bits());
        assert_eq!(perform_64(&word, Type::Double, Op::Inc, of(0.0)), 1.0_f64.to_bits());
        let word = AtomicU32::new(2.0_f32.to_bits());
        let swap = both(u64::from(2.0_f32.to_bits()), u64::from(0.5_f32.to_bits()));
        assert_eq!(perform_32(&word, Type::Float, Op::Cas, swap), u64::from(2.0_f32.to_bits()));
        assert_eq!(perform_32(&word, Type::Float, Op::Get, swap), u64::from(0.5_f32.to_bits()));
    }
}
