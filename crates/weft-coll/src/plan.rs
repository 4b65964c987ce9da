//! The decision about one call: whether weft runs it, and with which buffers.
//!
//! Place in the data flow: [`decide`] turns a [`Call`] of the program into a [`Shape`], or leaves it to the MPI
//! library. `uneven.rs` has the calls with a count for each member.
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

use smallvec::smallvec;
use weft_client::Operation;
use weft_fi_sys::{FI_NOOP, FI_UINT8};

use crate::errors::Cause;
use crate::fold::{self, Fold, Kind, Operands};
use crate::mpi::{Abi, Handle};
use crate::pmpi::Pmpi;
use crate::shape::{Piece, Shape, Side, Way};
use crate::types::Types;

/// The most bytes of a buffer. Longer ones are left to the MPI library.
pub(crate) const MAX_BYTES: usize = 1 << 30;

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

/// The members whose values a scan combines for member r.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    /// Members 0 to r.
    Inclusive,
    /// Members 0 to r − 1. Member 0 gets no result.
    Exclusive,
}

/// A count and a displacement for each member, as the program passes them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lengths {
    pub(crate) counts: *const c_int,
    /// In elements. Null: each block follows the one before.
    pub(crate) displacements: *const c_int,
}

impl Lengths {
    pub(crate) const NONE: Self = Self { counts: std::ptr::null(), displacements: std::ptr::null() };
}

/// The operation of a call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Function {
    /// A collective of blocks of one length.
    Even(Operation),
    /// One of blocks with a length for each member, on the sides that have such.
    Uneven { operation: Operation, sent: Lengths, received: Lengths },
    /// A scan.
    Scan(Prefix),
}

/// The arguments of a collective, as the program passed them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    pub(crate) function: Function,
    /// The name of the function of MPI.
    pub(crate) name: &'static str,
    pub(crate) send: Buffer,
    pub(crate) recv: Buffer,
    pub(crate) op: Handle,
    pub(crate) root: c_int,
    pub(crate) comm: Handle,
}

impl Call {
    /// A call without buffers and root.
    pub(crate) const fn new(function: Function, comm: Handle) -> Self {
        Self { function, name: "", send: Buffer::NONE, recv: Buffer::NONE, op: 0, root: 0, comm }
    }

    /// A call without buffers and root of a collective of blocks of one length.
    pub(crate) const fn even(operation: Operation, comm: Handle) -> Self {
        Self::new(Function::Even(operation), comm)
    }
}

/// The caller's place in a communicator.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) rank: usize,
    pub(crate) size: usize,
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
    /// Whether the program's types exist until the operation is complete.
    pub(crate) waits: bool,
}

/// Decides about a call.
pub(crate) fn decide(call: &Call, context: &Context<'_>) -> Decision {
    let root = usize::try_from(call.root).ok().filter(|&root| root < context.member.size);
    let Some(root) = root else { return Decision::Library };
    let operation = match call.function {
        Function::Even(operation) => operation,
        // The buffers are those of an allreduce.
        Function::Scan(_) => Operation::AllReduce,
        Function::Uneven { operation, sent, received } => {
            return context.uneven(call, operation, root, [sent, received]);
        }
    };
    match context.check(call, operation, context.member.rank == root) {
        Err(Some(cause)) => Decision::Refused(cause),
        Err(None) => Decision::Library,
        Ok(()) => context.shape(call, operation, root).map_or(Decision::Library, Decision::Weft),
    }
}

/// Bytes of all blocks. `None` for empty blocks, and for buffers that are too long.
fn within_limits(block: usize, blocks: usize) -> Option<usize> {
    block.checked_mul(blocks).filter(|bytes| (1..=MAX_BYTES).contains(bytes))
}

impl Context<'_> {
    /// The operation that weft runs for a call, or `None` if the MPI library does.
    fn shape(&self, call: &Call, operation: Operation, root: usize) -> Option<Shape> {
        if let Function::Scan(prefix) = call.function {
            return self.scan(call, prefix);
        }
        match operation {
            Operation::Barrier => {
                let way = Way::moves(Operation::Barrier, 0, 0);
                Some(Shape { way, input: Side::None, result: Side::None, bytes: 0, wrong: None })
            }
            Operation::AllReduce | Operation::Reduce | Operation::ReduceScatter => {
                self.reduction(call, operation, root)
            }
            _ => self.movement(call, operation, root),
        }
    }

    /// Whether the arguments are valid. An error without a cause is one that the MPI library finds, too.
    fn check(&self, call: &Call, operation: Operation, is_root: bool) -> Result<(), Option<Cause>> {
        for buffer in self.buffers(call, operation, is_root).into_iter().flatten() {
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
        let left = self.pmpi.mpi.abi() == Abi::OpenMpi && operation == Operation::Reduce;
        if (left || self.refuses_aliases) && self.is_aliased(call, operation, is_root) {
            return Err((!left).then_some(Cause::Aliased));
        }
        Ok(())
    }

    /// The buffers that this member must pass.
    fn buffers<'a>(&self, call: &'a Call, operation: Operation, is_root: bool) -> [Option<&'a Buffer>; 2] {
        let (send, recv) = (&call.send, &call.recv);
        let unless_in_place = |buffer: &'a Buffer, allowed: bool| {
            if allowed && self.is_in_place(buffer) { None } else { Some(buffer) }
        };
        // The first member of an exclusive scan gets no result.
        if let (Function::Scan(Prefix::Exclusive), 0) = (call.function, self.member.rank) {
            return [unless_in_place(send, true), None];
        }
        match operation {
            Operation::Barrier => [None, None],
            Operation::Broadcast => [None, Some(recv)],
            Operation::Reduce | Operation::Gather => [unless_in_place(send, is_root), is_root.then_some(recv)],
            Operation::Scatter => [is_root.then_some(send), unless_in_place(recv, is_root)],
            _ => [unless_in_place(send, true), Some(recv)],
        }
    }

    /// Whether this member's block lies at the same address in both buffers, by the rules of MPICH.
    fn is_aliased(&self, call: &Call, operation: Operation, is_root: bool) -> bool {
        let (send, recv) = (&call.send, &call.recv);
        let alike = send.count == recv.count && send.datatype == recv.datatype;
        if !alike || send.count <= 0 || self.is_in_place(send) || self.is_in_place(recv) {
            return false;
        }
        let own = |buffer: &Buffer| {
            let block = self.bytes(buffer).unwrap_or(0);
            buffer.at.wrapping_byte_add(self.member.rank.wrapping_mul(block))
        };
        match operation {
            Operation::Barrier | Operation::Broadcast => false,
            Operation::AllReduce | Operation::ReduceScatter | Operation::AllToAll => send.at == recv.at,
            Operation::Reduce => is_root && send.at == recv.at,
            Operation::AllGather => send.at == own(recv),
            Operation::Gather => is_root && send.at == own(recv),
            Operation::Scatter => is_root && recv.at == own(send),
        }
    }

    pub(crate) fn is_in_place(&self, buffer: &Buffer) -> bool {
        buffer.at.addr() == self.pmpi.mpi.in_place()
    }

    fn reduction(&self, call: &Call, operation: Operation, root: usize) -> Option<Shape> {
        let members = self.member.size;
        let datatype = self.pmpi.mpi.handle(call.recv.datatype);
        let Some((datatype, op, size)) = self.types.reduction(datatype, self.pmpi.mpi.handle(call.op)) else {
            return self.folded(call, operation, root);
        };
        let count = usize::try_from(call.recv.count).ok()?;
        let blocks = if operation == Operation::ReduceScatter { members } else { 1 };
        let bytes = within_limits(count.checked_mul(size)?, blocks)?;
        let has_result = operation != Operation::Reduce || self.member.rank == root;
        let result = if has_result { Side::Plain(call.recv.at) } else { Side::None };
        let way = Way::Even { operation, root, count, datatype, op, sends_result: false };
        Some(Shape { way, input: Side::Plain(self.operand(call)), result, bytes, wrong: None })
    }

    /// The memory of this member's operand.
    pub(crate) fn operand(&self, call: &Call) -> *mut c_void {
        if self.is_in_place(&call.send) { call.recv.at } else { call.send.at }
    }

    /// A reduction whose contributions the MPI library combines. `None`: it runs the call itself.
    fn folded(&self, call: &Call, operation: Operation, root: usize) -> Option<Shape> {
        let members = self.member.size;
        let operands = self.operands(call, usize::try_from(call.recv.count).ok()?)?;
        let block = operands.count.checked_mul(operands.size)?;
        let bytes = within_limits(block, members)?;
        let (moves, blocks) = match operation {
            Operation::Reduce => (Operation::Gather, 1),
            Operation::ReduceScatter => (Operation::AllToAll, members),
            _ => (Operation::AllGather, 1),
        };
        // Of a reduce-scatter each member combines its own part only.
        if operation != Operation::ReduceScatter && bytes > fold::MAX_BYTES {
            return None;
        }
        let has_result = operation != Operation::Reduce || self.member.rank == root;
        let result = if has_result { Fold::new(operands, members, members).side() } else { Side::None };
        let input = self.packed(self.operand(call), operands.count * blocks, &operands);
        Some(Shape { way: Way::moves(moves, root, block), input, result, bytes, wrong: None })
    }

    fn scan(&self, call: &Call, prefix: Prefix) -> Option<Shape> {
        let Member { rank, size: members } = self.member;
        let operands = self.operands(call, usize::try_from(call.recv.count).ok()?)?;
        let block = operands.count.checked_mul(operands.size)?;
        let bytes = within_limits(block, members).filter(|&bytes| bytes <= fold::MAX_BYTES)?;
        let combined = match prefix {
            Prefix::Inclusive => rank + 1,
            Prefix::Exclusive => rank,
        };
        let input = self.packed(self.operand(call), operands.count, &operands);
        let result = Fold::new(operands, members, combined).side();
        Some(Shape { way: Way::moves(Operation::AllGather, 0, block), input, result, bytes, wrong: None })
    }

    /// The arguments of a reduction by the MPI library. `None`: it refuses them, or runs the call itself.
    pub(crate) fn operands(&self, call: &Call, count: usize) -> Option<Operands> {
        let (datatype, op) = (self.pmpi.mpi.handle(call.recv.datatype), self.pmpi.mpi.handle(call.op));
        if !self.types.is_sound(datatype, op) {
            return None;
        }
        let (kind, size) = match self.types.plain(datatype) {
            Some(size) => (Kind::Plain, size),
            None if self.types.is_pair(datatype) => (Kind::Predefined, self.pmpi.type_size(datatype)?),
            None => (Kind::Derived { waits: self.waits }, self.derived_size(datatype)?),
        };
        let has_gaps = kind != Kind::Plain;
        if has_gaps && count > 0 && self.pmpi.true_span(datatype, count).is_none() {
            return None;
        }
        Some(Operands { at: call.recv.at, count, size, datatype, op, kind })
    }

    /// Elements of a reduction as the input of an operation.
    pub(crate) fn packed(&self, at: *mut c_void, count: usize, operands: &Operands) -> Side {
        let Operands { size, datatype, kind, .. } = *operands;
        match kind {
            Kind::Plain => Side::Plain(at),
            Kind::Predefined | Kind::Derived { .. } => {
                Side::Derived { pieces: smallvec![Piece { at, count, bytes: count * size }], datatype }
            }
        }
    }

    fn movement(&self, call: &Call, operation: Operation, root: usize) -> Option<Shape> {
        let Member { rank, size } = self.member;
        let (send, recv) = (&call.send, &call.recv);
        let is_root = rank == root;
        let in_place = self.is_in_place(send);
        let from_recv = match operation {
            Operation::Broadcast => true,
            Operation::Scatter => !is_root,
            _ => in_place,
        };
        let block = self.bytes(if from_recv { recv } else { send })?;
        let has_both = match operation {
            Operation::Broadcast => false,
            Operation::Gather => is_root && !in_place,
            Operation::Scatter => is_root && !self.is_in_place(recv),
            _ => !in_place,
        };
        let received = if has_both { self.bytes(recv)? } else { block };
        let bytes = within_limits(block, if operation == Operation::Broadcast { 1 } else { size })?;
        let whole = |buffer| self.side(buffer, 0, size, block);
        let single = |buffer| self.side(buffer, 0, 1, block);
        // In place, the own block lies in the result.
        let own = || if in_place { self.side(recv, rank, 1, block) } else { single(send) };
        let (input, result) = match operation {
            Operation::Broadcast => (Side::None, single(recv)?),
            Operation::AllGather => (own()?, whole(recv)?),
            Operation::AllToAll => (whole(if in_place { recv } else { send })?, whole(recv)?),
            Operation::Gather => (own()?, if is_root { whole(recv)? } else { Side::None }),
            Operation::Scatter if !is_root => (Side::None, single(recv)?),
            Operation::Scatter if self.is_in_place(recv) => (whole(send)?, Side::Unwanted(block)),
            Operation::Scatter => (whole(send)?, single(recv)?),
            _ => return None,
        };
        let sends_result = operation == Operation::Broadcast && is_root;
        let way = Way::Even { operation, root, count: block, datatype: FI_UINT8, op: FI_NOOP, sends_result };
        if received == block {
            return Some(Shape { way, input, result, bytes, wrong: None });
        }
        let unwanted = Side::Unwanted(if operation == Operation::Scatter { block } else { bytes });
        let wrong = Some(Cause::OtherLength { sent: block, received });
        Some(Shape { way, input, result: unwanted, bytes, wrong })
    }

    /// Bytes of a buffer's elements.
    fn bytes(&self, buffer: &Buffer) -> Option<usize> {
        let datatype = self.pmpi.mpi.handle(buffer.datatype);
        let size = self.types.plain(datatype).or_else(|| self.derived_size(datatype))?;
        usize::try_from(buffer.count).ok()?.checked_mul(size)
    }

    /// Bytes of one element of a type that is not predefined. `None`: it cannot be used, which the MPI library says.
    pub(crate) fn derived_size(&self, datatype: Handle) -> Option<usize> {
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
        Some(Side::Derived { pieces: smallvec![Piece { at, count: count * blocks, bytes: block * blocks }], datatype })
    }
}
