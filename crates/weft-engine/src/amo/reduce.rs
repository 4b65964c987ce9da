//! Reductions: two arrays become one, number by number, without atomic instructions.
//!
//! Place in the data flow: collectives combine their blocks with [`Reduction::combine`]. The arithmetic is that
//! of the atomic operations ([`super::result`]), so both give the same bits.

use super::complex::Complex;
use super::float::{Bf16, E4m3, E5m2, Extended, F16};
use super::number::Number;
use super::{Form, Op, Type, result};
use crate::collective::Order;
use crate::mem::Iov;

/// Bytes that are combined at a time, a multiple of every type's size. Both operands fit the first-level cache.
const CHUNK_BYTES: usize = 1024;
/// The longest array with copies of their own, which cost less to clear.
const SHORT_BYTES: usize = 64;

/// A valid combination of type and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Reduction {
    ty: Type,
    op: Op,
}

impl Reduction {
    /// `None`: the operation is no reduction, or the type does not have it.
    #[must_use]
    pub fn new(ty: Type, op: Op) -> Option<Self> {
        let associates = matches!(
            op,
            Op::Min | Op::Max | Op::Sum | Op::Prod | Op::Lor | Op::Land | Op::Bor | Op::Band | Op::Lxor | Op::Bxor
        );
        let valid = associates && super::Amo::new(Form::Base, ty, op).is_some();
        valid.then_some(Self { ty, op })
    }

    /// A number of its own for each combination, except 0.
    pub(crate) const fn number(self) -> u8 {
        (self.ty as u8).wrapping_mul(32).wrapping_add(self.op as u8).wrapping_add(1)
    }

    /// Bytes of one number.
    #[must_use]
    pub const fn element_bytes(self) -> usize {
        self.ty.size()
    }

    /// Combines the numbers of `from` and `into`, and stores the results in `into`. Numbers need no alignment; a
    /// partial number at the end is ignored.
    pub fn combine(self, from: &Iov, into: &Iov, order: Order) {
        let combine = match self.ty {
            Type::Int8 => chunks::<i8>,
            Type::Uint8 => chunks::<u8>,
            Type::Int16 => chunks::<i16>,
            Type::Uint16 => chunks::<u16>,
            Type::Int32 => chunks::<i32>,
            Type::Uint32 => chunks::<u32>,
            Type::Int64 => chunks::<i64>,
            Type::Uint64 => chunks::<u64>,
            Type::Int128 => chunks::<i128>,
            Type::Uint128 => chunks::<u128>,
            Type::Float => chunks::<f32>,
            Type::Double => chunks::<f64>,
            Type::Float16 => chunks::<F16>,
            Type::Bfloat16 => chunks::<Bf16>,
            Type::Float8E4m3 => chunks::<E4m3>,
            Type::Float8E5m2 => chunks::<E5m2>,
            Type::LongDouble => chunks::<Extended>,
            Type::FloatComplex => chunks::<Complex<f32>>,
            Type::DoubleComplex => chunks::<Complex<f64>>,
            Type::LongDoubleComplex => chunks::<Complex<Extended>>,
        };
        if into.len() <= SHORT_BYTES {
            combine(self.op, from, into, order, &mut [[0; SHORT_BYTES]; 3].each_mut().map(|bytes| &mut bytes[..]));
        } else {
            combine(self.op, from, into, order, &mut [[0; CHUNK_BYTES]; 3].each_mut().map(|bytes| &mut bytes[..]));
        }
    }
}

/// Combines both arrays, a chunk at a time: client memory is copied and never viewed as a slice. `copies` is memory for
/// the chunks of both, and for the result.
fn chunks<T: Number>(op: Op, from: &Iov, into: &Iov, order: Order, copies: &mut [&mut [u8]; 3]) {
    let [theirs, mine, combined] = copies;
    let chunk = combined.len();
    for at in (0..into.len()).step_by(chunk) {
        let (source, target) = (from.slice(at, chunk), into.slice(at, chunk));
        let len = source.read(theirs).min(target.read(mine));
        let len = len - len % size_of::<T>();
        // The order is chosen outside of the loops, which have one copy for both.
        let (first, second) = match order {
            Order::IntoFirst => (&mine[..len], &theirs[..len]),
            Order::FromFirst => (&theirs[..len], &mine[..len]),
        };
        let into = &mut combined[..len];
        // The operation is chosen outside of the loop, so that the loop can be vectorized.
        match op {
            Op::Sum => each::<T>(first, second, into, T::sum),
            Op::Prod => each::<T>(first, second, into, T::product),
            Op::Bor => each::<T>(first, second, into, T::or),
            Op::Band => each::<T>(first, second, into, T::and),
            Op::Bxor => each::<T>(first, second, into, T::xor),
            _ => each::<T>(first, second, into, |first, second| {
                result(op, first, second, T::truth(false)).unwrap_or(first)
            }),
        }
        target.write(into);
    }
}

#[inline]
fn each<T: Number>(first: &[u8], second: &[u8], into: &mut [u8], combine: impl Fn(T, T) -> T) {
    let numbers = first.chunks_exact(size_of::<T>()).zip(second.chunks_exact(size_of::<T>()));
    for ((first, second), into) in numbers.zip(into.chunks_exact_mut(size_of::<T>())) {
        combine(T::from_bytes(first), T::from_bytes(second)).to_bytes(into);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::amo::{Amo, OPS, TYPES};
    use crate::mem::Owned;

    fn pattern(len: usize, seed: u8) -> Vec<u8> {
        // Small exponents keep floating-point numbers finite.
        (0..len).map(|at| u8::try_from(at % 61).unwrap().wrapping_mul(seed) & 0x3F).collect()
    }

    #[test]
    fn reductions_agree_with_atomic_operations() {
        for ty in TYPES.iter().filter(|row| row.here).map(|row| row.ty) {
            for op in OPS.iter().map(|row| row.op) {
                let Some(reduction) = Reduction::new(ty, op) else { continue };
                let len = 3 * CHUNK_BYTES + 5 * ty.size();
                let (mut from, mut into) = (Owned::new(pattern(len, 7)), Owned::new(pattern(len, 13)));
                let mut target = Owned::new(pattern(len, 13));
                reduction.combine(&from.iov(), &into.iov(), Order::IntoFirst);
                Amo::new(Form::Base, ty, op).unwrap().execute(&[target.iov()], &pattern(len, 7), None);
                assert!(into.into_bytes() == target.into_bytes(), "{ty:?} {op:?}");
            }
        }
    }

    #[test]
    fn the_order_of_the_operands_is_kept() {
        // With operands that are equal and differ in their sign, the minimum is the first one.
        let minimum = Reduction::new(Type::Double, Op::Min).unwrap();
        for (order, expected) in [(Order::IntoFirst, 0.0_f64), (Order::FromFirst, -0.0)] {
            let mut from = Owned::new((-0.0_f64).to_ne_bytes().to_vec());
            let mut into = Owned::new(0.0_f64.to_ne_bytes().to_vec());
            minimum.combine(&from.iov(), &into.iov(), order);
            assert_eq!(into.into_bytes(), expected.to_ne_bytes());
        }
    }

    #[test]
    fn operations_that_are_no_reductions_are_refused() {
        for op in [Op::Read, Op::Write, Op::Cswap, Op::Mswap, Op::Diff] {
            assert_eq!(Reduction::new(Type::Int64, op), None);
        }
        assert_eq!(Reduction::new(Type::Double, Op::Bor), None);
        assert_eq!(Reduction::new(Type::FloatComplex, Op::Min), None);
    }
}
