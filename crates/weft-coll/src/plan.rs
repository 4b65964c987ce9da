//! The decision about one call: whether weft runs it, and with which buffers.
//!
//! Place in the data flow: [`decide`] turns a [`Call`] of the program into a [`Shape`], or leaves it to the MPI
//! library. [`Shape::prepare`] packs the data of derived types and gives the arguments of the provider's call.
//!
//! Invariant: the members of a communicator decide alike. They may name different datatypes with the same signature, so
//! a decision about moved data depends on the number of bytes only. Reductions have the same datatype, count and
//! operation everywhere.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_client::{Collective, Operation};
use weft_fi_sys::{FI_NOOP, FI_UINT8, fi_datatype, fi_op};

use crate::mpi::Handle;
use crate::pmpi::Pmpi;
use crate::types::Types;

/// The most bytes of a buffer. Longer ones are left to the MPI library.
const MAX_BYTES: usize = 1 << 30;

/// A buffer of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Buffer {
    pub(crate) at: *mut c_void,
    pub(crate) count: i64,
    pub(crate) datatype: Handle,
}

impl Buffer {
    pub(crate) const NONE: Self = Self { at: null_mut(), count: 0, datatype: 0 };
}

/// The arguments of a collective, as the program passed them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) operation: Operation,
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    pub(crate) op: Handle,
    pub(crate) root: c_int,
    pub(crate) comm: Handle,
}

impl Call {
    /// A call without buffers and root.
    pub(crate) const fn new(operation: Operation, comm: Handle) -> Self {
        Self { operation, send: Buffer::NONE, recv: Buffer::NONE, op: 0, root: 0, comm }
    }
}

/// The caller's place in a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) size: usize,
}

/// One side of an operation at this member.
#[derive(Clone, Copy, Debug)]
enum Side {
    /// The member has no such buffer.
    None,
    /// The program's memory, as it is.
    Plain(*mut c_void),
    /// Elements of a derived type, which are packed or unpacked.
    Derived { at: *mut c_void, count: usize, datatype: Handle, bytes: usize },
    /// A result that is not wanted, of this many bytes.
    Unwanted(usize),
}

/// An operation that weft runs.
#[derive(Debug)]
pub(crate) struct Shape {
    operation: Operation,
    root: usize,
    count: usize,
    datatype: fi_datatype,
    op: fi_op,
    input: Side,
    result: Side,
    /// Whether the result is also this member's input (the root of a broadcast).
    sends_result: bool,
    /// Bytes of the longest buffer at any member.
    bytes: usize,
}

/// The facts besides the call on which a decision depends.
pub(crate) struct Context<'a> {
    pub(crate) pmpi: &'a Pmpi,
    pub(crate) types: &'a Types,
    pub(crate) member: Member,
}

/// The operation that weft runs for this call, or `None` if the MPI library does.
pub(crate) fn decide(call: &Call, context: &Context<'_>) -> Option<Shape> {
    let Member { size, .. } = context.member;
    let root = usize::try_from(call.root).ok().filter(|&root| root < size)?;
    let none = Shape {
        operation: call.operation,
        root,
        count: 0,
        datatype: FI_UINT8,
        op: FI_NOOP,
        input: Side::None,
        result: Side::None,
        sends_result: false,
        bytes: 0,
    };
    match call.operation {
        Operation::Barrier => Some(none),
        Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => context.reduction(call, none),
        _ => context.movement(call, none),
    }
}

/// Bytes of all blocks. `None` for empty blocks, and for buffers that are too long.
fn within_limits(block: usize, blocks: usize) -> Option<usize> {
    block.checked_mul(blocks).filter(|bytes| (1..=MAX_BYTES).contains(bytes))
}

impl Context<'_> {
    fn is_in_place(&self, buffer: &Buffer) -> bool {
        buffer.at.addr() == self.pmpi.mpi.in_place()
    }

    fn reduction(&self, call: &Call, none: Shape) -> Option<Shape> {
        let members = self.member.size;
        let datatype = self.pmpi.mpi.handle(call.recv.datatype);
        let (datatype, op, size) = self.types.reduction(datatype, self.pmpi.mpi.handle(call.op))?;
        let count = usize::try_from(call.recv.count).ok()?;
        let blocks = if call.operation == Operation::ReduceScatter { members } else { 1 };
        let bytes = within_limits(count.checked_mul(size)?, blocks)?;
        let input = if self.is_in_place(&call.send) { call.recv.at } else { call.send.at };
        let has_result = call.operation != Operation::Reduce || self.member.rank == none.root;
        let result = if has_result { Side::Plain(call.recv.at) } else { Side::None };
        Some(Shape { count, datatype, op, input: Side::Plain(input), result, bytes, ..none })
    }

    fn movement(&self, call: &Call, none: Shape) -> Option<Shape> {
        let Member { rank, size } = self.member;
        let (send, recv) = (&call.send, &call.recv);
        let is_root = rank == none.root;
        let in_place = self.is_in_place(send);
        let from_recv = match call.operation {
            Operation::Broadcast => true,
            Operation::Scatter => !is_root,
            _ => in_place,
        };
        let block = self.bytes(if from_recv { recv } else { send })?;
        let bytes = within_limits(block, if call.operation == Operation::Broadcast { 1 } else { size })?;
        let whole = |buffer| self.side(buffer, 0, size, block);
        let single = |buffer| self.side(buffer, 0, 1, block);
        // In place, the own block lies in the result.
        let own = || if in_place { self.side(recv, rank, 1, block) } else { single(send) };
        let (input, result) = match call.operation {
            Operation::Broadcast => (Side::None, single(recv)?),
            Operation::AllGather => (own()?, whole(recv)?),
            Operation::AllToAll => (whole(if in_place { recv } else { send })?, whole(recv)?),
            Operation::Gather => (own()?, if is_root { whole(recv)? } else { Side::None }),
            Operation::Scatter if !is_root => (Side::None, single(recv)?),
            Operation::Scatter if self.is_in_place(recv) => (whole(send)?, Side::Unwanted(block)),
            Operation::Scatter => (whole(send)?, single(recv)?),
            _ => return None,
        };
        let sends_result = call.operation == Operation::Broadcast && is_root;
        Some(Shape { count: block, input, result, sends_result, bytes, ..none })
    }

    /// Bytes of a buffer's elements.
    fn bytes(&self, buffer: &Buffer) -> Option<usize> {
        let datatype = self.pmpi.mpi.handle(buffer.datatype);
        let size = self.types.plain(datatype).or_else(|| self.pmpi.type_size(datatype))?;
        usize::try_from(buffer.count).ok()?.checked_mul(size)
    }

    /// `blocks` blocks of a buffer, after the first `skipped` ones.
    fn side(&self, buffer: &Buffer, skipped: usize, blocks: usize, block: usize) -> Option<Side> {
        let datatype = self.pmpi.mpi.handle(buffer.datatype);
        if self.types.plain(datatype).is_some() {
            return Some(Side::Plain(buffer.at.wrapping_byte_add(skipped * block)));
        }
        let count = usize::try_from(buffer.count).ok()?;
        let extent = if skipped == 0 { 0 } else { self.pmpi.type_extent(datatype)? };
        let skipped = isize::try_from(skipped * count).ok()?.checked_mul(extent)?;
        let at = buffer.at.wrapping_byte_offset(skipped);
        Some(Side::Derived { at, count: count * blocks, datatype, bytes: block * blocks })
    }
}

/// Memory of an operation besides the program's, and the end of its way.
#[derive(Default)]
pub(crate) struct Staged {
    /// Packed input. The provider reads it until the operation is complete.
    _input: Vec<u8>,
    result: Vec<u8>,
    unpack: Option<Unpack>,
}

/// Elements that the result is unpacked into.
struct Unpack {
    at: *mut c_void,
    count: usize,
    /// This library's own handle of the type.
    datatype: Handle,
}

impl Staged {
    /// Moves the result to the program's memory, if the operation succeeded. Returns whether all went well.
    pub(crate) fn finish(self, pmpi: &Pmpi, comm: Handle, success: bool) -> bool {
        let Some(Unpack { at, count, datatype }) = self.unpack else { return success };
        let done = success && pmpi.unpack(&self.result, at, count, datatype, comm);
        pmpi.free_type(datatype);
        done
    }
}

impl Shape {
    /// Bytes of the longest buffer at any member.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// The arguments of the provider's call. `None`: the MPI library could not pack the data. `comm` is any
    /// communicator, which packing needs.
    pub(crate) fn prepare(&self, pmpi: &Pmpi, comm: Handle) -> Option<(Collective, Staged)> {
        let mut staged = Staged::default();
        let pack = |side: &Side| match *side {
            Side::Derived { at, count, datatype, bytes } => {
                let mut packed = vec![0; bytes];
                pmpi.pack(at, count, datatype, &mut packed, comm).then_some(packed)
            }
            _ => Some(Vec::new()),
        };
        let input = match self.input {
            Side::Plain(at) => at,
            Side::Derived { .. } => {
                staged._input = pack(&self.input)?;
                staged._input.as_mut_ptr().cast()
            }
            Side::None | Side::Unwanted(_) => null_mut(),
        };
        let result = match self.result {
            Side::None => null_mut(),
            Side::Plain(at) => at,
            Side::Derived { .. } if self.sends_result => {
                staged.result = pack(&self.result)?;
                staged.result.as_mut_ptr().cast()
            }
            Side::Derived { at, count, datatype, bytes } => {
                staged.result = vec![0; bytes];
                staged.unpack = Some(Unpack { at, count, datatype: pmpi.duplicate_type(datatype)? });
                staged.result.as_mut_ptr().cast()
            }
            Side::Unwanted(bytes) => {
                staged.result = vec![0; bytes];
                staged.result.as_mut_ptr().cast()
            }
        };
        let Self { operation, count, datatype, op, .. } = *self;
        let call = Collective { operation, input, result, count, root: self.root as u64, datatype, op };
        Some((call, staged))
    }
}
