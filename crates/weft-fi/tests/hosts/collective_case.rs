//! One collective operation at all members of a group: its data, its call, and the check of its result.
//!
//! Results must have the bits of the tree that every reduction follows (`weft_engine::collective::tree`). Sums of
//! 64-bit integers are computed without weft's arithmetic. No byte may be written behind a buffer.

use std::ffi::c_void;
use std::ptr::null_mut;

use weft_engine::amo::{Class, Op, Reduction, Type};
use weft_engine::collective::{Order, tree};
use weft_engine::mem::Owned;
use weft_fi_sys::*;

use crate::collectives::{Group, Member};
use crate::side::until;

/// Operations that differ in their arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum What {
    Barrier,
    Broadcast,
    AllToAll,
    AllReduce,
    AllGather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

pub(crate) const EVERY: [What; 9] = [
    What::Barrier,
    What::Broadcast,
    What::AllToAll,
    What::AllReduce,
    What::AllGather,
    What::ReduceScatter,
    What::Reduce,
    What::Scatter,
    What::Gather,
];

/// One operation of a group.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) what: What,
    root: usize,
    count: usize,
    /// Distinguishes the data of operations.
    seed: u64,
    ty: Type,
    op: Op,
}

/// Behind each buffer. No operation may change it.
const CANARY: [u8; 8] = [0xca; 8];

impl Case {
    /// An operation on 64-bit integers. Reductions add.
    pub(crate) const fn new(what: What, root: usize, count: usize, seed: u64) -> Self {
        Self { what, root, count, seed, ty: Type::Uint64, op: Op::Sum }
    }

    /// The same operation on other numbers.
    pub(crate) const fn on(self, ty: Type, op: Op) -> Self {
        Self { ty, op, ..self }
    }

    /// Numbers of a rank. Those with a fraction are in [1, 2), so that no sum or product overflows in a few steps, and
    /// most sums are rounded.
    fn numbers(&self, rank: usize, elements: std::ops::Range<usize>) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(elements.len() * self.ty.size());
        for element in elements {
            let bits = self.seed << 40 ^ (rank as u64) << 20 ^ element as u64;
            // A few low bits reach every position.
            let mixed = bits.wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let parts = if self.ty.row().class == Class::Complex { 2 } else { 1 };
            for part in 0..parts {
                append_number(&mut bytes, self.ty, mixed.rotate_left(8 * part));
            }
        }
        bytes
    }

    /// Elements of a rank's input and result.
    fn sizes(&self, rank: usize, ranks: usize) -> (usize, usize) {
        let (one, all) = (self.count, self.count * ranks);
        let at_root = |count| if rank == self.root { count } else { 0 };
        match self.what {
            What::Barrier => (0, 0),
            What::Broadcast => (0, one),
            What::AllToAll => (all, all),
            What::AllReduce => (one, one),
            What::AllGather => (one, all),
            What::ReduceScatter => (all, one),
            What::Reduce => (one, at_root(one)),
            What::Scatter => (at_root(all), one),
            What::Gather => (one, at_root(all)),
        }
    }

    /// The block of the input of `from` with that number.
    fn block(&self, from: usize, number: usize) -> Vec<u8> {
        self.numbers(from, number * self.count..(number + 1) * self.count)
    }

    /// The blocks with that number, reduced by the tree.
    fn reduced(&self, ranks: usize, number: usize) -> Vec<u8> {
        if (self.ty, self.op) == (Type::Uint64, Op::Sum) {
            return self.sums(ranks, number);
        }
        let reduction = Reduction::new(self.ty, self.op).unwrap();
        let blocks = (0..ranks).map(|from| self.block(from, number)).collect();
        let reduced = tree::fold(blocks, |first, second| {
            let mut bytes = first.clone();
            let (mut into, mut from) = (Owned::new(first), Owned::new(second));
            reduction.combine(&from.iov(), &into.iov(), Order::IntoFirst);
            into.iov().read(&mut bytes);
            bytes
        });
        reduced.unwrap()
    }

    /// The sums of the blocks with that number.
    fn sums(&self, ranks: usize, number: usize) -> Vec<u8> {
        let mut sums = vec![0_u64; self.count];
        for from in 0..ranks {
            for (sum, bytes) in sums.iter_mut().zip(self.block(from, number).chunks_exact(8)) {
                *sum = sum.wrapping_add(u64::from_ne_bytes(bytes.try_into().unwrap()));
            }
        }
        sums.into_iter().flat_map(u64::to_ne_bytes).collect()
    }

    fn expected(&self, rank: usize, ranks: usize) -> Vec<u8> {
        match self.what {
            What::Barrier => Vec::new(),
            What::Broadcast => self.block(self.root, 0),
            What::AllToAll => (0..ranks).flat_map(|from| self.block(from, rank)).collect(),
            What::AllReduce => self.reduced(ranks, 0),
            What::AllGather => (0..ranks).flat_map(|from| self.block(from, 0)).collect(),
            What::ReduceScatter => self.reduced(ranks, rank),
            What::Scatter => self.block(self.root, rank),
            What::Reduce if rank == self.root => self.reduced(ranks, 0),
            What::Gather if rank == self.root => (0..ranks).flat_map(|from| self.block(from, 0)).collect(),
            What::Reduce | What::Gather => Vec::new(),
        }
    }
}

/// Appends a number (or a part of a complex one) that is made from random bits.
fn append_number(bytes: &mut Vec<u8>, ty: Type, bits: u64) {
    let low = |count: u32| bits >> (64 - count);
    let float = match ty {
        Type::Float8E4m3 => Some((0x38 | low(3), 1)),
        Type::Float8E5m2 => Some((0x3c | low(2), 1)),
        Type::Float16 => Some((0x3c00 | low(10), 2)),
        Type::Bfloat16 => Some((0x3f80 | low(7), 2)),
        Type::Float | Type::FloatComplex => Some((0x3f80_0000 | low(23), 4)),
        Type::Double | Type::DoubleComplex => Some((0x3ff0_0000_0000_0000 | low(52), 8)),
        _ => None,
    };
    match (float, ty) {
        (Some((pattern, size)), _) => bytes.extend(&pattern.to_le_bytes()[..size]),
        // 64 bits with an explicit leading one, the exponent, and padding.
        (None, Type::LongDouble | Type::LongDoubleComplex) => {
            bytes.extend((bits | 1 << 63).to_le_bytes());
            bytes.extend(0x3fff_u64.to_le_bytes());
        }
        (None, _) => {
            let wide = u128::from(bits) << 64 | u128::from(bits.rotate_left(32));
            bytes.extend(&wide.to_be_bytes()[..ty.size()]);
        }
    }
}

/// A rank's part in an operation. Its memory is leaked, as everywhere in these tests.
pub(crate) struct Part {
    case: Case,
    rank: usize,
    ranks: usize,
    input: &'static mut [u8],
    result: &'static mut [u8],
}

/// Memory with these bytes, then the canary. It has the alignment of every type.
fn buffer(bytes: &[u8]) -> &'static mut [u8] {
    let len = bytes.len() + CANARY.len();
    let memory = vec![0_u128; len.div_ceil(16)].leak();
    let memory = unsafe { std::slice::from_raw_parts_mut(memory.as_mut_ptr().cast::<u8>(), len) };
    memory[..bytes.len()].copy_from_slice(bytes);
    memory[bytes.len()..].copy_from_slice(&CANARY);
    memory
}

impl Part {
    pub(crate) fn new(case: Case, rank: usize, ranks: usize) -> Self {
        let (inputs, results) = case.sizes(rank, ranks);
        let sends_result = case.what == What::Broadcast && rank == case.root;
        let empty = || vec![0; results * case.ty.size()];
        let result = if sends_result { case.numbers(rank, 0..results) } else { empty() };
        Self { case, rank, ranks, input: buffer(&case.numbers(rank, 0..inputs)), result: buffer(&result) }
    }

    /// Starts the operation; the context is the address of the result.
    pub(crate) fn start(&mut self, ep: *mut fid_ep, group: u64, root: u64) -> isize {
        let (buf, result): (*mut c_void, *mut c_void) =
            (self.input.as_mut_ptr().cast(), self.result.as_mut_ptr().cast());
        let (count, no, ty, op) = (self.case.count, null_mut(), self.case.ty as u32, self.case.op as u32);
        let ops = unsafe { &*(*ep).collective };
        let context = self.context() as *mut c_void;
        unsafe {
            match self.case.what {
                What::Barrier => ops.barrier.unwrap()(ep, group, context),
                What::Broadcast => ops.broadcast.unwrap()(ep, result, count, no, group, root, ty, 0, context),
                What::AllToAll => ops.alltoall.unwrap()(ep, buf, count, no, result, no, group, ty, 0, context),
                What::AllGather => ops.allgather.unwrap()(ep, buf, count, no, result, no, group, ty, 0, context),
                What::AllReduce => ops.allreduce.unwrap()(ep, buf, count, no, result, no, group, ty, op, 0, context),
                What::ReduceScatter => {
                    ops.reduce_scatter.unwrap()(ep, buf, count, no, result, no, group, ty, op, 0, context)
                }
                What::Reduce => ops.reduce.unwrap()(ep, buf, count, no, result, no, group, root, ty, op, 0, context),
                What::Scatter => ops.scatter.unwrap()(ep, buf, count, no, result, no, group, root, ty, 0, context),
                What::Gather => ops.gather.unwrap()(ep, buf, count, no, result, no, group, root, ty, 0, context),
            }
        }
    }

    fn context(&self) -> usize {
        self.result.as_ptr().addr()
    }

    fn check(&self) {
        let expected = self.case.expected(self.rank, self.ranks);
        assert_eq!(&self.result[..expected.len()], expected, "{:?} at rank {}", self.case, self.rank);
        assert!(self.result.ends_with(&CANARY), "{:?}: nothing is written behind the result", self.case);
        assert!(self.input.ends_with(&CANARY), "{:?}: nothing is written behind the input", self.case);
    }
}

/// Runs operations at all members of a group at the same time. Roots are ranks, or addresses if `by_address`.
pub(crate) fn run(members: &[Member<'_>], list: &[usize], groups: &[Group], cases: &[Case], by_address: bool) {
    let mut parts: Vec<Vec<Part>> =
        (0..list.len()).map(|rank| cases.iter().map(|&case| Part::new(case, rank, list.len())).collect()).collect();
    for ((rank, parts), group) in parts.iter_mut().enumerate().zip(groups) {
        let member = &members[list[rank]];
        for part in parts {
            let address = member.addrs[list[part.case.root]];
            let root = if by_address { address } else { part.case.root as u64 };
            assert_eq!(part.start(member.side.ep, group.addr(), root), 0, "{:?}", part.case);
        }
    }
    let mut left = list.len() * cases.len();
    until(|| {
        for (rank, parts) in parts.iter().enumerate() {
            while let Some(outcome) = members[list[rank]].side.poll() {
                let entry = outcome.done();
                assert_eq!((entry.flags, entry.len), (FI_COLLECTIVE, 0));
                let part = parts.iter().find(|part| part.context() == entry.op_context.addr());
                part.expect("the context of an operation").check();
                left -= 1;
            }
        }
        (left == 0).then_some(())
    });
}
