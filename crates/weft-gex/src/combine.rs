//! The operations of reductions.
//!
//! Place in the data flow: weft-gex-c makes a [`Combine`] of a call's arguments. `coll` combines the contributions of
//! members in shared memory by it; `group` passes it to the engine. The arithmetic is the engine's.

use weft_engine::amo::{self, Reduction};
use weft_engine::collective::Order;
use weft_engine::{Custom, Elements};

use crate::barrier;
use crate::invoke::{self, ReduceFn};
use crate::memory;

/// The types of numbers, by the bit of the API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// Signed, 32 bits.
    I32,
    /// Unsigned, 32 bits.
    U32,
    /// Signed, 64 bits.
    I64,
    /// Unsigned, 64 bits.
    U64,
    /// Floating point, 32 bits.
    Float,
    /// Floating point, 64 bits.
    Double,
}

impl Type {
    /// The type with a bit number.
    #[must_use]
    pub fn from_bit(bit: u32) -> Option<Self> {
        [Self::I32, Self::U32, Self::I64, Self::U64, Self::Float, Self::Double].get(bit as usize).copied()
    }

    /// Bytes of a number.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::U32 | Self::Float => 4,
            Self::I64 | Self::U64 | Self::Double => 8,
        }
    }

    /// The type as the engine knows it.
    pub(crate) fn engine(self) -> amo::Type {
        match self {
            Self::I32 => amo::Type::Int32,
            Self::U32 => amo::Type::Uint32,
            Self::I64 => amo::Type::Int64,
            Self::U64 => amo::Type::Uint64,
            Self::Float => amo::Type::Float,
            Self::Double => amo::Type::Double,
        }
    }
}

/// The function of a client that combines elements.
#[derive(Clone, Copy, Debug)]
pub struct User {
    /// The function.
    pub function: ReduceFn,
    /// The address of the client's data, which is only passed back.
    pub cdata: usize,
    /// Bytes of an element.
    pub bytes: usize,
    /// Whether operands may be combined in any order.
    pub commutes: bool,
}

/// The operation of a reduction.
#[derive(Clone, Copy, Debug)]
pub enum Combine {
    /// One of the API.
    Known(Reduction),
    /// The client's function.
    User(User),
    /// The ids of named barriers.
    Ids,
}

impl Combine {
    /// The operation with the bit number of the API. `None`: it is no reduction of that type.
    #[must_use]
    pub fn known(ty: Type, bit: u32) -> Option<Self> {
        use amo::Op;
        let all: [Option<Op>; 8] = [
            Some(Op::Band),
            Some(Op::Bor),
            Some(Op::Bxor),
            Some(Op::Sum),
            // A difference has no order of operands in which all members agree.
            None,
            Some(Op::Prod),
            Some(Op::Min),
            Some(Op::Max),
        ];
        let op = all.get(bit as usize).copied().flatten()?;
        Reduction::new(ty.engine(), op).map(Self::Known)
    }

    /// Bytes of an element.
    #[must_use]
    pub fn element_bytes(&self) -> usize {
        self.elements().size()
    }

    /// Whether operands may be combined in any order.
    pub(crate) fn commutes(&self) -> bool {
        !matches!(self, Self::User(User { commutes: false, .. }))
    }

    /// The elements as the engine combines them.
    pub(crate) fn elements(&self) -> Elements {
        match self {
            Self::Known(reduction) => Elements::Numbers(*reduction),
            Self::User(user) => Elements::Custom(invoke::custom(user)),
            Self::Ids => Elements::Custom(Custom::new(8, barrier::join_ids, [0; 2])),
        }
    }

    /// Combines two operands of one length. The right one becomes the result.
    pub(crate) fn apply(&self, left: &[u8], right: &mut [u8]) {
        debug_assert_eq!(left.len(), right.len());
        let (left, right) = (memory::iov_of(left), memory::iov_of_mut(right));
        match self.elements() {
            Elements::Numbers(reduction) => reduction.combine(&left, &right, Order::FromFirst),
            Elements::Custom(custom) => custom.combine(&left, &right, Order::FromFirst),
            Elements::Bytes(_) => debug_assert!(false, "operations have elements"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<const N: usize>(ty: Type, op: u32, left: [u8; N], right: [u8; N]) -> [u8; N] {
        let mut result = right;
        Combine::known(ty, op).expect("an operation").apply(&left, &mut result);
        result
    }

    #[test]
    fn each_type_has_its_own_order() {
        let (small, large) = ((-1_i32).to_ne_bytes(), 5_i32.to_ne_bytes());
        assert_eq!(of(Type::I32, 7, small, large), large);
        assert_eq!(of(Type::U32, 7, small, large), small);
        assert_eq!(of(Type::I32, 6, small, large), small);
        assert_eq!(of(Type::Float, 5, 1.5_f32.to_ne_bytes(), 2_f32.to_ne_bytes()), 3_f32.to_ne_bytes());
        assert_eq!(of(Type::U64, 3, u64::MAX.to_ne_bytes(), 2_u64.to_ne_bytes()), 1_u64.to_ne_bytes());
        assert!(Combine::known(Type::Double, 1).is_none() && Combine::known(Type::U32, 1).is_some());
        assert!((8..32).chain([4]).all(|bit| Combine::known(Type::I32, bit).is_none()));
    }
}
