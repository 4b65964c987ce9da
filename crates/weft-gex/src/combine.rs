//! Element-wise operations on bytes, for reductions.
//!
//! Place in the data flow: `coll` combines the contributions of members. The left operand comes first; the right one is
//! replaced by the result.

/// The types of elements, by the bit of the API.
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

    /// Bytes of an element.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::I32 | Self::U32 | Self::Float => 4,
            Self::I64 | Self::U64 | Self::Double => 8,
        }
    }
}

/// The operations, by the bit of the API.
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
}

impl Op {
    /// The operation with a bit number.
    #[must_use]
    pub fn from_bit(bit: u32) -> Option<Self> {
        let all = [Self::And, Self::Or, Self::Xor, Self::Add, Self::Sub, Self::Mult, Self::Min, Self::Max];
        all.get(bit as usize).copied()
    }

    /// Whether the operation is defined for a type.
    #[must_use]
    pub fn fits(self, ty: Type) -> bool {
        !(matches!(ty, Type::Float | Type::Double) && matches!(self, Self::And | Self::Or | Self::Xor))
    }
}

fn each<const N: usize>(left: &[u8], right: &mut [u8], combine: impl Fn([u8; N], [u8; N]) -> [u8; N]) {
    let (left, _) = left.as_chunks::<N>();
    let (right, _) = right.as_chunks_mut::<N>();
    for (left, right) in left.iter().zip(right) {
        *right = combine(*left, *right);
    }
}

macro_rules! integers {
    ($ty:ty, $op:expr, $left:expr, $right:expr) => {{
        let mut with = |combine: fn($ty, $ty) -> $ty| {
            each($left, $right, |a, b| combine(<$ty>::from_ne_bytes(a), <$ty>::from_ne_bytes(b)).to_ne_bytes());
        };
        match $op {
            Op::And => with(|a, b| a & b),
            Op::Or => with(|a, b| a | b),
            Op::Xor => with(|a, b| a ^ b),
            Op::Add => with(<$ty>::wrapping_add),
            Op::Sub => with(<$ty>::wrapping_sub),
            Op::Mult => with(<$ty>::wrapping_mul),
            Op::Min => with(Ord::min),
            Op::Max => with(Ord::max),
        }
    }};
}

macro_rules! floats {
    ($ty:ty, $op:expr, $left:expr, $right:expr) => {{
        let mut with = |combine: fn($ty, $ty) -> $ty| {
            each($left, $right, |a, b| combine(<$ty>::from_ne_bytes(a), <$ty>::from_ne_bytes(b)).to_ne_bytes());
        };
        match $op {
            Op::Add => with(|a, b| a + b),
            Op::Sub => with(|a, b| a - b),
            Op::Mult => with(|a, b| a * b),
            Op::Min => with(<$ty>::min),
            Op::Max => with(<$ty>::max),
            Op::And | Op::Or | Op::Xor => debug_assert!(false, "{:?} of floating point", $op),
        }
    }};
}

/// Combines the elements of two operands of the same length. The right one becomes the result.
pub fn combine(ty: Type, op: Op, left: &[u8], right: &mut [u8]) {
    debug_assert_eq!(left.len(), right.len());
    match ty {
        Type::I32 => integers!(i32, op, left, right),
        Type::U32 => integers!(u32, op, left, right),
        Type::I64 => integers!(i64, op, left, right),
        Type::U64 => integers!(u64, op, left, right),
        Type::Float => floats!(f32, op, left, right),
        Type::Double => floats!(f64, op, left, right),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of<const N: usize>(ty: Type, op: Op, left: [u8; N], right: [u8; N]) -> [u8; N] {
        let mut result = right;
        combine(ty, op, &left, &mut result);
        result
    }

    #[test]
    fn each_type_has_its_own_order() {
        let (small, large) = ((-1_i32).to_ne_bytes(), 5_i32.to_ne_bytes());
        assert_eq!(of(Type::I32, Op::Max, small, large), large);
        assert_eq!(of(Type::U32, Op::Max, small, large), small);
        assert_eq!(of(Type::I32, Op::Sub, small, large), (-6_i32).to_ne_bytes());
        let pair = |a: f32, b: f32| -> Vec<u8> { [a, b].iter().flat_map(|v| v.to_ne_bytes()).collect() };
        let mut right = pair(2.0, -3.0);
        combine(Type::Float, Op::Mult, &pair(1.5, 2.0), &mut right);
        assert_eq!(right, pair(3.0, -6.0));
        assert_eq!(of(Type::U64, Op::Add, u64::MAX.to_ne_bytes(), 2_u64.to_ne_bytes()), 1_u64.to_ne_bytes());
        assert!(!Op::Or.fits(Type::Double) && Op::Or.fits(Type::U32));
    }
}
