//! One collective call: its arguments, the data of every member, and the results that must follow.
//!
//! Place in the data flow: [`super`] draws calls and compares the results of the engines with [`Call::expected`].
//! The data is a function of the call, the member and the position, so no member's data is kept.
//!
//! The reference is the declared tree ([`tree::fold`]) over the numbers of all members, with the engine's
//! arithmetic for two numbers and none of its schedules.

use std::cell::OnceCell;
use std::fmt;

use weft_engine::Elements;
use weft_engine::amo::{Class, OPS, Op, Reduction, TYPES, Type, TypeRow};
use weft_engine::collective::{Operation, Order, tree};
use weft_engine::mem::{Owned, to_vec};

use crate::rng::Stream;

/// Bytes that all blocks of a call may have together, so that runs stay short.
const CALL_BYTES: usize = 1 << 19;

/// A collective that every member of a group calls.
pub(super) struct Call {
    pub(super) operation: Operation,
    pub(super) root: usize,
    /// Elements in one block.
    pub(super) count: usize,
    pub(super) elements: Elements,
    pub(super) members: usize,
    /// The type of the numbers; for bytes a type that has no meaning.
    row: TypeRow,
    /// Distinguishes the data of this call from that of others.
    salt: u64,
    /// The reduction of all blocks, once a member needs it.
    reduced: OnceCell<Vec<u8>>,
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, root, count, elements, members, .. } = self;
        write!(f, "{operation:?} of {count} {elements:?} from {root}, {members} members")
    }
}

/// Mixes the bits of a number (the finalizer of SplitMix64).
const fn mix(mut bits: u64) -> u64 {
    bits = (bits ^ bits >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    bits = (bits ^ bits >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    bits ^ bits >> 31
}

/// Every reduction of every type.
fn reductions() -> Vec<(TypeRow, Reduction)> {
    let of = |row: &TypeRow| {
        let row = *row;
        OPS.iter().filter_map(move |op| Some((row, Reduction::new(row.ty, op.op)?)))
    };
    TYPES.iter().flat_map(of).collect()
}

impl Call {
    /// Draws a call in a group of `members`.
    pub(super) fn draw(rng: &mut Stream, members: usize) -> Self {
        let operation = *rng.pick(&Operation::ALL);
        Self::of(rng, operation, members)
    }

    /// Draws the arguments of an operation.
    pub(super) fn of(rng: &mut Stream, operation: Operation, members: usize) -> Self {
        let root = if operation.is_rooted() { rng.index(members) } else { 0 };
        let (row, elements) = if operation.reduces() {
            // Half of the reductions are those of doubles, whose sums show the order of the operands.
            let all = reductions();
            let double = |op| (TYPES[Type::Double as usize], Reduction::new(Type::Double, op));
            let common = *rng.pick(&[double(Op::Sum), double(Op::Min), double(Op::Max)]);
            let (row, reduction) = match common {
                (row, Some(reduction)) if rng.chance(500) => (row, reduction),
                _ => *rng.pick(&all),
            };
            (row, Elements::Numbers(reduction))
        } else {
            (TYPES[0], Elements::Bytes(*rng.pick(&[1, 3, 8, 16, 100])))
        };
        let most = (CALL_BYTES / (members * members * elements.size())).max(1);
        let count = match rng.index(10) {
            0 => 0,
            1..7 => rng.between(1, 40),
            7 | 8 => rng.between(40, 1000),
            _ => rng.between(1000, 10_000),
        };
        let count = if operation == Operation::Barrier { 0 } else { count.min(most) };
        Self { operation, root, count, elements, members, row, salt: rng.bits(), reduced: OnceCell::new() }
    }

    /// Bytes of one block.
    pub(super) const fn block(&self) -> usize {
        self.count * self.elements.size()
    }

    /// Bytes of a member's input and result.
    pub(super) fn sizes(&self, place: usize) -> (usize, usize) {
        let (one, all) = (self.block(), self.block() * self.members);
        let at_root = |bytes| if place == self.root { bytes } else { 0 };
        match self.operation {
            Operation::Barrier => (0, 0),
            Operation::Broadcast => (0, one),
            Operation::AllToAll => (all, all),
            Operation::AllReduce => (one, one),
            Operation::AllGather => (one, all),
            Operation::ReduceScatter => (all, one),
            Operation::Reduce => (one, at_root(one)),
            Operation::Scatter => (at_root(all), one),
            Operation::Gather => (one, at_root(all)),
        }
    }

    /// Whether a member's success proves that all members have started.
    pub(super) const fn synchronizes(&self) -> bool {
        matches!(self.operation, Operation::Barrier)
    }

    /// Whether a member gives the engine one buffer for input and result.
    pub(super) fn is_in_place(&self, place: usize) -> bool {
        let (input, result) = self.sizes(place);
        input > 0 && result > 0 && mix(self.salt ^ place as u64).is_multiple_of(6)
    }

    /// The block that a member contributes for the member at `to`, or its only one, which is that for 0.
    pub(super) fn data(&self, from: usize, to: usize) -> Vec<u8> {
        let size = self.elements.size();
        let mut bytes = Vec::with_capacity(self.block());
        for at in 0..self.count {
            let seed = self.salt ^ mix((from as u64) << 48 | (to as u64) << 32 | at as u64);
            match self.elements {
                Elements::Bytes(_) | Elements::Custom(_) => push_bits(&mut bytes, mix(seed), size),
                Elements::Numbers(_) => push_number(&mut bytes, self.row, seed),
            }
        }
        bytes
    }

    /// The bytes of a member's input.
    pub(super) fn input(&self, place: usize) -> Vec<u8> {
        let blocks = self.sizes(place).0.checked_div(self.block()).unwrap_or(0);
        (0..blocks).flat_map(|to| self.data(place, to)).collect()
    }

    /// The bytes of the result of the member at `place`.
    pub(super) fn expected(&self, place: usize) -> Vec<u8> {
        let all = || 0..self.members;
        match self.operation {
            Operation::Barrier => Vec::new(),
            Operation::Broadcast => self.data(self.root, 0),
            Operation::AllToAll => all().flat_map(|from| self.data(from, place)).collect(),
            Operation::AllReduce => self.reduced(1).to_vec(),
            Operation::Reduce if place == self.root => self.reduced(1).to_vec(),
            Operation::ReduceScatter => {
                let from = place * self.block();
                self.reduced(self.members)[from..from + self.block()].to_vec()
            }
            Operation::AllGather => all().flat_map(|from| self.data(from, 0)).collect(),
            Operation::Gather if place == self.root => all().flat_map(|from| self.data(from, 0)).collect(),
            Operation::Scatter => self.data(self.root, place),
            Operation::Reduce | Operation::Gather => Vec::new(),
        }
    }

    /// The reduction of the first `blocks` blocks of all members.
    fn reduced(&self, blocks: usize) -> &[u8] {
        self.reduced.get_or_init(|| {
            let Elements::Numbers(reduction) = self.elements else { return Vec::new() };
            let block = |from, to| Owned::new(self.data(from, to));
            let combine = |mut low: Owned, mut high: Owned| {
                reduction.combine(&high.iov(), &low.iov(), Order::IntoFirst);
                low
            };
            let fold = |to| tree::fold((0..self.members).map(|from| block(from, to)).collect(), combine);
            (0..blocks).filter_map(fold).flat_map(|mut sum| to_vec(&[sum.iov()])).collect()
        })
    }
}

/// Appends `size` bytes that follow from `seed`.
fn push_bits(bytes: &mut Vec<u8>, seed: u64, size: usize) {
    let words = (0..).map(|n: u64| mix(seed.wrapping_add(n.wrapping_mul(0x9E37_79B9_7F4A_7C15))));
    bytes.extend(words.flat_map(u64::to_ne_bytes).take(size));
}

/// Appends a number of this type. Zeros of both signs are frequent, because their minimum shows the order of the
/// operands. There are no infinities and NaNs: the bits of a NaN depend on the compiler's order of operands.
fn push_number(bytes: &mut Vec<u8>, row: TypeRow, seed: u64) {
    match row.class {
        Class::Integer if mix(!seed).is_multiple_of(4) => bytes.extend(std::iter::repeat_n(0, row.size)),
        Class::Integer => push_bits(bytes, seed, row.size),
        Class::Real => push_real(bytes, row.ty, mix(seed)),
        Class::Complex => {
            let part = match row.ty {
                Type::FloatComplex => Type::Float,
                Type::DoubleComplex => Type::Double,
                _ => Type::LongDouble,
            };
            push_real(bytes, part, mix(seed));
            push_real(bytes, part, mix(seed.rotate_left(32)));
        }
    }
}

/// Appends a real number below 2 in size.
#[expect(clippy::cast_possible_truncation, reason = "the other bits are not used")]
fn push_real(bytes: &mut Vec<u8>, ty: Type, bits: u64) {
    let (negative, zero) = (bits & 1 == 1, bits & 6 == 0);
    let fraction = bits >> 12;
    let [short, byte] = [fraction as u16 & 0x3FFF, fraction as u16 & 0x3F];
    match ty {
        Type::Float => {
            let size = f32::from_bits(0x3F80_0000 | fraction as u32 & 0x007F_FFFF);
            let size = if zero { 0.0 } else { size };
            bytes.extend((if negative { -size } else { size }).to_ne_bytes());
        }
        Type::Double => {
            let size = f64::from_bits(0x3FF0_0000_0000_0000 | fraction);
            let size = if zero { 0.0 } else { size };
            bytes.extend((if negative { -size } else { size }).to_ne_bytes());
        }
        // x87's format: a fraction with its leading bit, then sign and exponent, then padding.
        Type::LongDouble => {
            let (fraction, exponent) = if zero { (0, 0) } else { (1 << 63 | bits >> 1, 0x3FFF) };
            let sign = if negative { 0x8000_u16 } else { 0 };
            bytes.extend(fraction.to_ne_bytes());
            bytes.extend((sign | exponent).to_ne_bytes());
            bytes.extend([0; 6]);
        }
        // A clear highest bit of the exponent keeps the number finite.
        Type::Float16 | Type::Bfloat16 => {
            let size = if zero { 0 } else { short };
            bytes.extend((size | if negative { 0x8000 } else { 0 }).to_ne_bytes());
        }
        _ => {
            let size = if zero { 0 } else { byte };
            bytes.push((size | if negative { 0x80 } else { 0 }) as u8);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Entity;

    #[test]
    fn data_has_the_sizes_of_its_buffers() {
        let mut rng = Stream::new(1, Entity::Test(70));
        for operation in Operation::ALL {
            for members in 1..6 {
                let call = Call::of(&mut rng, operation, members);
                for place in 0..members {
                    let (input, result) = call.sizes(place);
                    assert_eq!((call.input(place).len(), call.expected(place).len()), (input, result), "{call:?}");
                }
            }
        }
    }

    #[test]
    fn sums_follow_the_tree() {
        let mut rng = Stream::new(2, Entity::Test(70));
        let reduction = Reduction::new(Type::Double, Op::Sum);
        let call = Call::of(&mut rng, Operation::AllReduce, 6);
        let elements = reduction.map_or(Elements::Bytes(8), Elements::Numbers);
        let call = Call { elements, row: TYPES[Type::Double as usize], count: 3, reduced: OnceCell::new(), ..call };
        let number = |from| {
            let data = call.data(from, 0);
            data.first_chunk().map_or(f64::NAN, |bytes| f64::from_ne_bytes(*bytes))
        };
        let n: Vec<f64> = (0..6).map(number).collect();
        // Members 4 and 5 are folded into 0 and 1, then pairs by bit 0, then by bit 1.
        let sum = ((n[0] + n[4]) + (n[1] + n[5])) + (n[2] + n[3]);
        assert_eq!(call.expected(0).first_chunk(), Some(&sum.to_ne_bytes()));
    }
}
