//! Atomic operations on numbers (fi_atomic(3)). One table defines the valid operations and their execution.
//!
//! Place in the data flow: weft-fi and the engine turn the request of a call or a message into an [`Amo`].
//! This fails for operations outside the table. The target's engine calls [`Amo::execute`] on its region. The
//! documentation prints [`OPS`] and [`TYPES`].
//!
//! Each number is replaced in one step, by CPU instructions where its length and alignment allow
//! (`mem::atomic`). An array is not replaced in one step. Numbers have the byte order of the host, which is
//! the same at both ends. Integers wrap around. Unordered numbers (NaN) compare as in C: they are never a
//! minimum or a maximum, and never equal.

mod complex;
mod float;
mod number;
mod reduce;

pub use reduce::Reduction;

use crate::mem::atomic::{Cell, locked};
use crate::mem::{self, Iov};
use complex::Complex;
use float::{Bf16, E4m3, E5m2, Extended, F16};
use number::{Native, Number};

/// The type of the numbers at the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it, and `TYPES` in full")]
pub enum Type {
    Int8,
    Uint8,
    Int16,
    Uint16,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float,
    Double,
    FloatComplex,
    DoubleComplex,
    LongDouble,
    LongDoubleComplex,
    Int128,
    Uint128,
    Float16,
    Bfloat16,
    Float8E4m3,
    Float8E5m2,
}

/// The operation on the numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "the names say it, and `OPS` in full")]
pub enum Op {
    Min,
    Max,
    Sum,
    Prod,
    Lor,
    Land,
    Bor,
    Band,
    Lxor,
    Bxor,
    Read,
    Write,
    Cswap,
    CswapNe,
    CswapLe,
    CswapLt,
    CswapGe,
    CswapGt,
    Mswap,
    Diff,
}

/// The kind of a number type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Has bitwise operations and an order.
    Integer,
    /// Has an order, but no bitwise operations.
    Real,
    /// Has neither.
    Complex,
}

/// A row of [`TYPES`].
#[derive(Clone, Copy, Debug)]
pub struct TypeRow {
    /// The type. Its number is the index of the row.
    pub ty: Type,
    /// The name in libfabric, without `FI_`.
    pub name: &'static str,
    /// The size in bytes.
    pub size: usize,
    /// The kind of number.
    pub class: Class,
    /// Whether C on this CPU has the type in the format that is computed here.
    pub here: bool,
}

/// A row of [`OPS`].
#[derive(Clone, Copy, Debug)]
pub struct OpRow {
    /// The operation. Its number is the index of the row.
    pub op: Op,
    /// The name in libfabric, without `FI_`.
    pub name: &'static str,
    /// The forms of the operation.
    pub forms: &'static [Form],
    /// The kinds of number that it accepts.
    pub on: &'static [Class],
}

/// The data that an operation sends to the target and gets back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Sends operands; gets nothing back.
    Base,
    /// Sends operands (none for a read); gets the previous values back.
    Fetch,
    /// Sends operands and values to compare with; gets the previous values back.
    Compare,
}

const fn ty(ty: Type, name: &'static str, size: usize, class: Class) -> TypeRow {
    TypeRow { ty, name, size, class, here: true }
}

const fn x87(ty: Type, name: &'static str, size: usize, class: Class) -> TypeRow {
    TypeRow { ty, name, size, class, here: cfg!(target_arch = "x86_64") }
}

const fn op(op: Op, name: &'static str, forms: &'static [Form], on: &'static [Class]) -> OpRow {
    OpRow { op, name, forms, on }
}

const UPDATE: &[Form] = &[Form::Base, Form::Fetch];
const FETCH: &[Form] = &[Form::Fetch];
const COMPARE: &[Form] = &[Form::Compare];
const INTEGERS: &[Class] = &[Class::Integer];
const ORDERED: &[Class] = &[Class::Integer, Class::Real];
const ALL: &[Class] = &[Class::Integer, Class::Real, Class::Complex];

/// All types, by number.
pub const TYPES: [TypeRow; 20] = [
    ty(Type::Int8, "INT8", 1, Class::Integer),
    ty(Type::Uint8, "UINT8", 1, Class::Integer),
    ty(Type::Int16, "INT16", 2, Class::Integer),
    ty(Type::Uint16, "UINT16", 2, Class::Integer),
    ty(Type::Int32, "INT32", 4, Class::Integer),
    ty(Type::Uint32, "UINT32", 4, Class::Integer),
    ty(Type::Int64, "INT64", 8, Class::Integer),
    ty(Type::Uint64, "UINT64", 8, Class::Integer),
    ty(Type::Float, "FLOAT", 4, Class::Real),
    ty(Type::Double, "DOUBLE", 8, Class::Real),
    ty(Type::FloatComplex, "FLOAT_COMPLEX", 8, Class::Complex),
    ty(Type::DoubleComplex, "DOUBLE_COMPLEX", 16, Class::Complex),
    x87(Type::LongDouble, "LONG_DOUBLE", 16, Class::Real),
    x87(Type::LongDoubleComplex, "LONG_DOUBLE_COMPLEX", 32, Class::Complex),
    ty(Type::Int128, "INT128", 16, Class::Integer),
    ty(Type::Uint128, "UINT128", 16, Class::Integer),
    ty(Type::Float16, "FLOAT16", 2, Class::Real),
    ty(Type::Bfloat16, "BFLOAT16", 2, Class::Real),
    ty(Type::Float8E4m3, "FLOAT8_E4M3", 1, Class::Real),
    ty(Type::Float8E5m2, "FLOAT8_E5M2", 1, Class::Real),
];

/// All operations, by number.
pub const OPS: [OpRow; 20] = [
    op(Op::Min, "MIN", UPDATE, ORDERED),
    op(Op::Max, "MAX", UPDATE, ORDERED),
    op(Op::Sum, "SUM", UPDATE, ALL),
    op(Op::Prod, "PROD", UPDATE, ALL),
    op(Op::Lor, "LOR", UPDATE, ALL),
    op(Op::Land, "LAND", UPDATE, ALL),
    op(Op::Bor, "BOR", UPDATE, INTEGERS),
    op(Op::Band, "BAND", UPDATE, INTEGERS),
    op(Op::Lxor, "LXOR", UPDATE, ALL),
    op(Op::Bxor, "BXOR", UPDATE, INTEGERS),
    op(Op::Read, "ATOMIC_READ", FETCH, ALL),
    op(Op::Write, "ATOMIC_WRITE", UPDATE, ALL),
    op(Op::Cswap, "CSWAP", COMPARE, ALL),
    op(Op::CswapNe, "CSWAP_NE", COMPARE, ALL),
    op(Op::CswapLe, "CSWAP_LE", COMPARE, ORDERED),
    op(Op::CswapLt, "CSWAP_LT", COMPARE, ORDERED),
    op(Op::CswapGe, "CSWAP_GE", COMPARE, ORDERED),
    op(Op::CswapGt, "CSWAP_GT", COMPARE, ORDERED),
    op(Op::Mswap, "MSWAP", COMPARE, INTEGERS),
    op(Op::Diff, "DIFF", UPDATE, ALL),
];

const _: () = {
    let mut n = 0;
    while n < TYPES.len() {
        assert!(TYPES[n].ty as usize == n);
        n += 1;
    }
    n = 0;
    while n < OPS.len() {
        assert!(OPS[n].op as usize == n);
        n += 1;
    }
};

/// The size of the largest type in bytes.
pub const LARGEST_BYTES: usize = 32;

impl Type {
    /// The type with this number.
    #[inline]
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        TYPES.get(number as usize).map(|row| row.ty)
    }

    /// The row of the type.
    #[inline]
    #[must_use]
    pub const fn row(self) -> &'static TypeRow {
        &TYPES[self as usize]
    }

    /// The size in bytes.
    #[inline]
    #[must_use]
    pub const fn size(self) -> usize {
        self.row().size
    }
}

impl Op {
    /// The operation with this number.
    #[inline]
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        OPS.get(number as usize).map(|row| row.op)
    }

    /// The row of the operation.
    #[inline]
    #[must_use]
    pub const fn row(self) -> &'static OpRow {
        &OPS[self as usize]
    }
}

/// A valid combination of form, type and operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amo {
    ty: Type,
    op: Op,
    form: Form,
}

impl Amo {
    /// `None`: the table has no such operation.
    #[inline]
    #[must_use]
    pub fn new(form: Form, ty: Type, op: Op) -> Option<Self> {
        let (type_row, op_row) = (ty.row(), op.row());
        let valid = type_row.here && op_row.forms.contains(&form) && op_row.on.contains(&type_row.class);
        valid.then_some(Self { ty, op, form })
    }

    /// The type.
    #[inline]
    #[must_use]
    pub const fn ty(self) -> Type {
        self.ty
    }

    /// The operation.
    #[inline]
    #[must_use]
    pub const fn op(self) -> Op {
        self.op
    }

    /// The form.
    #[inline]
    #[must_use]
    pub const fn form(self) -> Form {
        self.form
    }

    /// Whether the previous values are returned to the initiator.
    #[inline]
    #[must_use]
    pub const fn fetches(self) -> bool {
        !matches!(self.form, Form::Base)
    }

    /// Whether the operation may change the target's memory.
    #[inline]
    #[must_use]
    pub const fn changes(self) -> bool {
        !matches!(self.op, Op::Read)
    }

    /// The number of arrays that are sent to the target: operands, and values to compare with.
    #[inline]
    #[must_use]
    pub const fn sources(self) -> usize {
        match (self.op, self.form) {
            (Op::Read, _) => 0,
            (_, Form::Compare) => 2,
            _ => 1,
        }
    }

    /// Performs the operation on each number of `target`, and appends the previous values to `results`, if
    /// any.
    ///
    /// `sources` has as many arrays as [`Amo::sources`] says: operands, then values to compare with. Each
    /// array is as long as `target`, which must be a whole number of numbers. A partial number at the end is
    /// ignored.
    #[inline(never)] // All types and operations in one place: each further copy takes 50 KB.
    pub fn execute(self, target: &[Iov], sources: &[u8], results: Option<&mut Vec<u8>>) {
        match self.ty {
            Type::Int8 => native::<i8>(self.op, target, sources, results),
            Type::Uint8 => native::<u8>(self.op, target, sources, results),
            Type::Int16 => native::<i16>(self.op, target, sources, results),
            Type::Uint16 => native::<u16>(self.op, target, sources, results),
            Type::Int32 => native::<i32>(self.op, target, sources, results),
            Type::Uint32 => native::<u32>(self.op, target, sources, results),
            Type::Int64 => native::<i64>(self.op, target, sources, results),
            Type::Uint64 => native::<u64>(self.op, target, sources, results),
            Type::Int128 => native::<i128>(self.op, target, sources, results),
            Type::Uint128 => native::<u128>(self.op, target, sources, results),
            Type::Float => native::<f32>(self.op, target, sources, results),
            Type::Double => native::<f64>(self.op, target, sources, results),
            Type::Float16 => native::<F16>(self.op, target, sources, results),
            Type::Bfloat16 => native::<Bf16>(self.op, target, sources, results),
            Type::Float8E4m3 => native::<E4m3>(self.op, target, sources, results),
            Type::Float8E5m2 => native::<E5m2>(self.op, target, sources, results),
            Type::LongDouble => native::<Extended>(self.op, target, sources, results),
            Type::FloatComplex => native::<Complex<f32>>(self.op, target, sources, results),
            Type::DoubleComplex => native::<Complex<f64>>(self.op, target, sources, results),
            Type::LongDoubleComplex => unaligned::<Complex<Extended>>(self.op, target, sources, results),
        }
    }
}

/// The value that `op` gives to a number with the value `old`; `None`: the number is unchanged.
#[inline]
fn result<T: Number>(op: Op, old: T, operand: T, compare: T) -> Option<T> {
    match op {
        Op::Min => operand.less(old).then_some(operand),
        Op::Max => old.less(operand).then_some(operand),
        Op::Sum => Some(old.sum(operand)),
        Op::Diff => Some(old.difference(operand)),
        Op::Prod => Some(old.product(operand)),
        Op::Lor => Some(T::truth(old.is_true() || operand.is_true())),
        Op::Land => Some(T::truth(old.is_true() && operand.is_true())),
        Op::Lxor => Some(T::truth(old.is_true() != operand.is_true())),
        Op::Bor => Some(old.or(operand)),
        Op::Band => Some(old.and(operand)),
        Op::Bxor => Some(old.xor(operand)),
        Op::Read => None,
        Op::Write => Some(operand),
        Op::Cswap => compare.equals(old).then_some(operand),
        Op::CswapNe => (!compare.equals(old)).then_some(operand),
        Op::CswapLe => (compare.less(old) || compare.equals(old)).then_some(operand),
        Op::CswapLt => compare.less(old).then_some(operand),
        Op::CswapGe => (old.less(compare) || old.equals(compare)).then_some(operand),
        Op::CswapGt => old.less(compare).then_some(operand),
        Op::Mswap => Some(operand.and(compare).or(old.and(compare.not()))),
    }
}

/// The numbers of an operation's sources, in order, followed by zeros.
struct Sources<'a> {
    operands: &'a [u8],
    compares: &'a [u8],
}

impl<'a> Sources<'a> {
    fn new(sources: &'a [u8], target_bytes: usize) -> Self {
        let (operands, compares) = sources.split_at(sources.len().min(target_bytes));
        Self { operands, compares }
    }

    #[inline]
    fn next<T: Number>(&mut self) -> (T, T) {
        (take(&mut self.operands), take(&mut self.compares))
    }
}

#[inline]
fn take<T: Number>(bytes: &mut &[u8]) -> T {
    match bytes.split_at_checked(size_of::<T>()) {
        Some((number, rest)) => {
            *bytes = rest;
            T::from_bytes(number)
        }
        None => T::truth(false),
    }
}

/// Updates one number by CPU instructions.
#[inline]
fn on_cell<T: Native>(op: Op, cell: &T::Cell, operand: T, compare: T) -> T {
    let old = match op {
        Op::Read => cell.load(),
        Op::Write => cell.swap(operand.bits()),
        Op::Sum if T::IS_INTEGER => cell.add(operand.bits()),
        Op::Band => cell.and(operand.bits()),
        Op::Bor => cell.or(operand.bits()),
        Op::Bxor => cell.xor(operand.bits()),
        _ => cell.update(|old| result(op, T::of(old), operand, compare).map(T::bits)),
    };
    T::of(old)
}

/// Updates one number for which the CPU has no instructions. It may lie in several pieces.
fn on_bytes<T: Number>(op: Op, number: &[Iov], operand: T, compare: T) -> T {
    let mut bytes = [0; LARGEST_BYTES];
    let bytes = &mut bytes[..size_of::<T>()];
    let first = number.first().copied().unwrap_or(Iov::EMPTY);
    locked(&first, || {
        mem::gather(number, bytes);
        let old = T::from_bytes(bytes);
        if let Some(new) = result(op, old, operand, compare) {
            new.to_bytes(bytes);
            mem::scatter(number, 0, bytes);
        }
        old
    })
}

#[inline]
fn keep<T: Number>(results: &mut Option<&mut Vec<u8>>, old: T) {
    if let Some(results) = results {
        let at = results.len();
        results.resize(at + size_of::<T>(), 0);
        old.to_bytes(&mut results[at..]);
    }
}

/// Updates an array of a type for which the CPU may have instructions. They are used for each aligned number.
fn native<T: Native>(op: Op, target: &[Iov], sources: &[u8], mut results: Option<&mut Vec<u8>>) {
    let mut sources = Sources::new(sources, mem::total_len(target));
    if let [piece] = target
        && let Some(cells) = T::Cell::cells(piece)
    {
        for cell in cells {
            let (operand, compare) = sources.next::<T>();
            keep(&mut results, on_cell(op, cell, operand, compare));
        }
        return;
    }
    each_number(target, size_of::<T>(), &mut |number| {
        let (operand, compare) = sources.next::<T>();
        let cell = match number {
            [piece] => T::Cell::cells(piece).and_then(<[_]>::first),
            _ => None,
        };
        let old = match cell {
            Some(cell) => on_cell(op, cell, operand, compare),
            None => on_bytes(op, number, operand, compare),
        };
        keep(&mut results, old);
    });
}

/// Updates an array of a type for which the CPU has no instructions.
fn unaligned<T: Number>(op: Op, target: &[Iov], sources: &[u8], mut results: Option<&mut Vec<u8>>) {
    let mut sources = Sources::new(sources, mem::total_len(target));
    each_number(target, size_of::<T>(), &mut |number| {
        let (operand, compare) = sources.next::<T>();
        keep(&mut results, on_bytes(op, number, operand, compare));
    });
}

/// Calls `each` with the memory of each number of an array that may lie in several pieces. One copy serves all types.
fn each_number(target: &[Iov], size: usize, each: &mut dyn FnMut(&[Iov])) {
    let mut pieces = target.iter().copied();
    let mut piece = Iov::EMPTY;
    loop {
        while piece.len() >= size {
            each(&[piece.slice(0, size)]);
            piece = piece.slice(size, usize::MAX);
        }
        // The rest of the piece is the beginning of a number, unless it is empty.
        let mut parts = mem::IovList::new();
        let mut missing = size;
        while missing > 0 {
            if piece.is_empty() {
                let Some(next) = pieces.next() else { return };
                piece = next;
                if missing == size && piece.len() >= size {
                    break;
                }
            }
            let part = piece.slice(0, missing);
            missing -= part.len();
            piece = piece.slice(part.len(), usize::MAX);
            if !part.is_empty() {
                parts.push(part);
            }
        }
        if missing == 0 {
            each(&parts);
        }
    }
}

#[cfg(test)]
mod tests;
