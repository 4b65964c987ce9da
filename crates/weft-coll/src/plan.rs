//! The decision about one call: whether weft runs it, and with which buffers.
//!
//! Place in the data flow: [`decide`] turns a [`Call`] of the program into a [`Shape`], or leaves it to the MPI
//! library. [`Shape::prepare`] packs the data of derived types and gives the arguments of the provider's call.
//!
//! Invariant: the members of a communicator decide alike. They may name different datatypes with the same signature, so
//! a decision about moved data depends on the number of bytes only. Reductions have the same datatype, count and
//! operation everywhere.
//!
//! Wrong calls are found before anything is sent. The MPI library gets those that it certainly refuses itself, so that
//! the error is its own. This library refuses those that an MPI library would run or crash in. A member whose two sides
//! have different lengths takes part all the same, without a result: the others do not see its error, and the
//! operations of the group stay in step.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_client::{Collective, Operation};
use weft_fi_sys::{FI_NOOP, FI_UINT8, fi_datatype, fi_op};

use crate::errors::Cause;
use crate::mpi::{Abi, Handle};
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
    /// The member's own error, in spite of which it takes part.
    wrong: Option<Cause>,
}

/// The treatment of a call.
pub(crate) enum Decision {
    /// The MPI library runs the call, or refuses it.
    Library,
    /// Weft runs it.
    Weft(Shape),
    /// The call is wrong.
    Refused(Cause),
}

/// The facts besides the call on which a decision depends.
pub(crate) struct Context<'a> {
    pub(crate) pmpi: &'a Pmpi,
    pub(crate) types: &'a Types,
    pub(crate) member: Member,
    /// A communicator on which errors do not end the program.
    pub(crate) own: Handle,
    /// Whether the MPI library refuses two buffers that are the same.
    pub(crate) refuses_aliases: bool,
}

/// Decides about a call.
pub(crate) fn decide(call: &Call, context: &Context<'_>) -> Decision {
    let root = usize::try_from(call.root).ok().filter(|&root| root < context.member.size);
    let Some(root) = root else { return Decision::Library };
    match context.check(call, context.member.rank == root) {
        Err(Some(cause)) => Decision::Refused(cause),
        Err(None) => Decision::Library,
        Ok(()) => context.shape(call, root).map_or(Decision::Library, Decision::Weft),
    }
}

/// Bytes of all blocks. `None` for empty blocks, and for buffers that are too long.
fn within_limits(block: usize, blocks: usize) -> Option<usize> {
    block.checked_mul(blocks).filter(|bytes| (1..=MAX_BYTES).contains(bytes))
}

impl Context<'_> {
    /// The operation that weft runs for a call, or `None` if the MPI library does.
    fn shape(&self, call: &Call, root: usize) -> Option<Shape> {
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
            wrong: None,
        };
        match call.operation {
            Operation::Barrier => Some(none),
            Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => self.reduction(call, none),
            _ => self.movement(call, none),
        }
    }

    /// Whether the arguments are valid. An error without a cause is one that the MPI library finds, too.
    fn check(&self, call: &Call, is_root: bool) -> Result<(), Option<Cause>> {
        for buffer in self.buffers(call, is_root).into_iter().flatten() {
            if self.is_in_place(buffer) {
                let finds_all = self.pmpi.mpi.abi() == Abi::OpenMpi;
                return Err((!finds_all).then_some(Cause::InPlace));
            }
            if buffer.count < 0 {
                return Err(Some(Cause::Count(buffer.count)));
            }
            // With types of the program's own, a null pointer may be MPI_BOTTOM.
            let is_plain = || self.types.plain(self.pmpi.mpi.handle(buffer.datatype)).is_some();
            if buffer.at.is_null() && buffer.count > 0 && is_plain() {
                return Err(Some(Cause::NoBuffer));
            }
        }
        // Open MPI checks its reductions to a root alone.
        let left = self.pmpi.mpi.abi() == Abi::OpenMpi && call.operation == Operation::Reduce;
        if (left || self.refuses_aliases) && self.is_aliased(call, is_root) {
            return Err((!left).then_some(Cause::Aliased));
        }
        Ok(())
    }

    /// The buffers that this member must pass.
    fn buffers<'a>(&self, call: &'a Call, is_root: bool) -> [Option<&'a Buffer>; 2] {
        let (send, recv) = (&call.send, &call.recv);
        let unless_in_place = |buffer: &'a Buffer, allowed: bool| {
            if allowed && self.is_in_place(buffer) { None } else { Some(buffer) }
        };
        match call.operation {
            Operation::Barrier => [None, None],
            Operation::Broadcast => [None, Some(recv)],
            Operation::Reduce | Operation::Gather => [unless_in_place(send, is_root), is_root.then_some(recv)],
            Operation::Scatter => [is_root.then_some(send), unless_in_place(recv, is_root)],
            _ => [unless_in_place(send, true), Some(recv)],
        }
    }

    /// Whether this member's block lies at the same address in both buffers, by the rules of MPICH.
    fn is_aliased(&self, call: &Call, is_root: bool) -> bool {
        let (send, recv) = (&call.send, &call.recv);
        let alike = send.count == recv.count && send.datatype == recv.datatype;
        if !alike || send.count <= 0 || self.is_in_place(send) || self.is_in_place(recv) {
            return false;
        }
        let own = |buffer: &Buffer| {
            let block = self.bytes(buffer).unwrap_or(0);
            buffer.at.wrapping_byte_add(self.member.rank.wrapping_mul(block))
        };
        match call.operation {
            Operation::Barrier | Operation::Broadcast => false,
            Operation::AllReduce | Operation::ReduceScatter | Operation::AllToAll => send.at == recv.at,
            Operation::Reduce => is_root && send.at == recv.at,
            Operation::AllGather => send.at == own(recv),
            Operation::Gather => is_root && send.at == own(recv),
            Operation::Scatter => is_root && recv.at == own(send),
        }
    }

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
        let has_both = match call.operation {
            Operation::Broadcast => false,
            Operation::Gather => is_root && !in_place,
            Operation::Scatter => is_root && !self.is_in_place(recv),
            _ => !in_place,
        };
        let received = if has_both { self.bytes(recv)? } else { block };
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
        let shape = Shape { count: block, input, result, sends_result, bytes, ..none };
        if received == block {
            return Some(shape);
        }
        let unwanted = if call.operation == Operation::Scatter { block } else { bytes };
        let wrong = Some(Cause::OtherLength { sent: block, received });
        Some(Shape { result: Side::Unwanted(unwanted), wrong, ..shape })
    }

    /// Bytes of a buffer's elements.
    fn bytes(&self, buffer: &Buffer) -> Option<usize> {
        let datatype = self.pmpi.mpi.handle(buffer.datatype);
        let size = self.types.plain(datatype).or_else(|| self.derived_size(datatype))?;
        usize::try_from(buffer.count).ok()?.checked_mul(size)
    }

    /// Bytes of one element of a type that is not predefined. `None`: it cannot be used, which the MPI library says.
    fn derived_size(&self, datatype: Handle) -> Option<usize> {
        let usable = datatype != self.pmpi.constants.no_type && self.pmpi.is_committed(datatype, self.own);
        if usable { self.pmpi.type_size(datatype) } else { None }
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

    /// The member's own error, in spite of which it takes part.
    pub(crate) fn take_wrong(&mut self) -> Option<Cause> {
        self.wrong.take()
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
