//! The decision about calls with a count for each member (MPI_Allgatherv, ...).
//!
//! Place in the data flow: as [`crate::plan`]. Such a call is an exchange of the provider: each member gives a block to
//! each member, and takes one of each. Blocks of length 0 are no messages.
//!
//! Invariant: the members decide alike, though most of them know the counts of their own blocks only. A decision
//! depends on counts in a reduce-scatter alone, whose members all pass the same.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use smallvec::SmallVec;
use weft_client::{Extent, Operation};

use crate::errors::Cause;
use crate::fold::Fold;
use crate::mpi::{Abi, Handle};
use crate::plan::{Buffer, Call, Context, Decision, Function, Lengths, MAX_BYTES, Member, decide};
use crate::shape::{Piece, Shape, Side, Way};

/// The reason for which there is no exchange. An error without a cause is one that the MPI library finds, too.
type Refusal = Option<Cause>;

/// The blocks of one side: one for each member, or one for all.
struct Blocks {
    pieces: SmallVec<[Piece; 8]>,
    datatype: Handle,
}

const NO_BLOCK: Piece = Piece { at: null_mut(), count: 0, bytes: 0 };

impl Context<'_> {
    /// Decides about a call with a count for each member.
    pub(crate) fn uneven(&self, call: &Call, operation: Operation, root: usize, lengths: [Lengths; 2]) -> Decision {
        let [sent, received] = lengths;
        if operation == Operation::ReduceScatter {
            return self.reduce_scatter(call, received);
        }
        match self.exchange(call, operation, root, sent, received) {
            Ok(shape) => Decision::Weft(shape),
            Err(Some(cause)) => Decision::Refused(cause),
            Err(None) => Decision::Library,
        }
    }

    fn exchange(
        &self,
        call: &Call,
        operation: Operation,
        root: usize,
        sent: Lengths,
        received: Lengths,
    ) -> Result<Shape, Refusal> {
        let Member { rank, size: members } = self.member;
        let (is_root, in_place) = (rank == root, self.is_in_place(&call.send));
        let none = |datatype| Blocks { pieces: SmallVec::from_elem(NO_BLOCK, members), datatype };
        // A block that stays where it is.
        let without = |mut blocks: Blocks, place: usize| {
            blocks.pieces[place] = NO_BLOCK;
            blocks
        };
        let with = |mut blocks: Blocks, place: usize, block: Piece| {
            blocks.pieces[place] = block;
            blocks
        };
        let (given, taken) = match operation {
            Operation::AllGather => {
                let taken = self.blocks(&call.recv, received)?;
                let own = if in_place { taken.pieces[rank] } else { self.block(&call.send)? };
                let datatype = if in_place { call.recv.datatype } else { call.send.datatype };
                (Blocks { pieces: smallvec::smallvec![own], datatype }, taken)
            }
            Operation::Gather if is_root && in_place => {
                (none(call.recv.datatype), without(self.blocks(&call.recv, received)?, rank))
            }
            Operation::Gather => {
                let given = with(none(call.send.datatype), root, self.block(&call.send)?);
                (given, if is_root { self.blocks(&call.recv, received)? } else { none(call.send.datatype) })
            }
            Operation::Scatter if is_root && self.is_in_place(&call.recv) => {
                (without(self.blocks(&call.send, sent)?, rank), none(call.send.datatype))
            }
            Operation::Scatter => {
                let taken = with(none(call.recv.datatype), root, self.block(&call.recv)?);
                (if is_root { self.blocks(&call.send, sent)? } else { none(call.recv.datatype) }, taken)
            }
            _ if in_place => (self.blocks(&call.recv, received)?, self.blocks(&call.recv, received)?),
            _ => (self.blocks(&call.send, sent)?, self.blocks(&call.recv, received)?),
        };
        let copies_first = operation == Operation::AllToAll && in_place;
        Ok(self.shape_of_exchange(given, taken, copies_first))
    }

    fn shape_of_exchange(&self, mut given: Blocks, mut taken: Blocks, copies_first: bool) -> Shape {
        let Member { rank, size: members } = self.member;
        let own = if given.pieces.len() == 1 { 0 } else { rank };
        let [sent, received] = [given.pieces[own].bytes, taken.pieces[rank].bytes];
        let wrong = (sent != received).then_some(Cause::OtherLength { sent, received });
        if wrong.is_some() {
            // The others get their blocks all the same.
            if given.pieces.len() == 1 {
                given.pieces = SmallVec::from_elem(given.pieces[0], members);
            }
            (given.pieces[rank], taken.pieces[rank]) = (NO_BLOCK, NO_BLOCK);
        }
        let bytes = taken.bytes().max(given.bytes());
        let (input, mut extents) =
            if copies_first { given.packed(self) } else { given.plain(self).unwrap_or_else(|| given.packed(self)) };
        if extents.len() == 1 {
            extents = vec![extents[0]; members].into();
        }
        let (result, taken) = if wrong.is_some() {
            let (_, extents) = taken.packed(self);
            (Side::Unwanted(taken.bytes()), extents)
        } else {
            taken.plain(self).unwrap_or_else(|| taken.packed(self))
        };
        Shape { way: Way::Uneven { given: extents, taken }, input, result, bytes, wrong }
    }

    /// A reduce-scatter: each member receives its part of all inputs, and combines them.
    fn reduce_scatter(&self, call: &Call, received: Lengths) -> Decision {
        let Member { rank, size: members } = self.member;
        let Ok(counts) = self.counts(received) else { return Decision::Library };
        if let Some(&negative) = counts.iter().find(|&&count| count < 0) {
            return Decision::Refused(Cause::Count(negative.into()));
        }
        let (datatype, op) = (self.pmpi.mpi.handle(call.recv.datatype), self.pmpi.mpi.handle(call.op));
        if counts.iter().all(|&count| count == counts[0]) && self.types.reduction(datatype, op).is_some() {
            let [send, recv] = [call.send, call.recv].map(|buffer| Buffer { count: counts[0].into(), ..buffer });
            return decide(&Call { function: Function::Even(Operation::ReduceScatter), send, recv, ..*call }, self);
        }
        let counts: SmallVec<[usize; 8]> = counts.iter().filter_map(|&count| usize::try_from(count).ok()).collect();
        let Some(operands) = self.operands(call, counts[rank]) else { return Decision::Library };
        let total: usize = counts.iter().sum();
        let Some(bytes) = total.checked_mul(operands.size).filter(|bytes| (1..=MAX_BYTES).contains(bytes)) else {
            return Decision::Library;
        };
        if self.is_in_place(&call.recv) {
            return if self.pmpi.mpi.abi() == Abi::OpenMpi {
                Decision::Library
            } else {
                Decision::Refused(Cause::InPlace)
            };
        }
        let at = self.operand(call);
        if operands.kind == crate::fold::Kind::Plain && (at.is_null() || call.recv.at.is_null() && counts[rank] > 0) {
            return Decision::Refused(Cause::NoBuffer);
        }
        let mut offset = 0;
        let given = counts.iter().map(|count| {
            let len = count * operands.size;
            offset += len;
            Extent { offset: offset - len, len }
        });
        let own = counts[rank] * operands.size;
        let way = Way::Uneven {
            given: given.collect(),
            taken: (0..members).map(|member| Extent { offset: member * own, len: own }).collect(),
        };
        let input = self.packed(at, total, &operands);
        let result = Fold::new(operands, members, members).side();
        Decision::Weft(Shape { way, input, result, bytes, wrong: None })
    }

    /// The program's counts.
    fn counts(&self, lengths: Lengths) -> Result<&[c_int], Refusal> {
        if lengths.counts.is_null() {
            return Err(None);
        }
        // SAFETY: the program passes a count for each member.
        Ok(unsafe { std::slice::from_raw_parts(lengths.counts, self.member.size) })
    }

    /// The block of a buffer that is one.
    fn block(&self, buffer: &Buffer) -> Result<Piece, Refusal> {
        let (size, _) = self.element(buffer)?;
        self.piece(buffer.at, buffer.count, size, buffer.datatype)
    }

    /// The blocks of a buffer, one for each member.
    fn blocks(&self, buffer: &Buffer, lengths: Lengths) -> Result<Blocks, Refusal> {
        let (size, extent) = self.element(buffer)?;
        let counts = self.counts(lengths)?;
        if lengths.displacements.is_null() {
            return Err(None);
        }
        // SAFETY: the program passes a displacement for each member.
        let displacements = unsafe { std::slice::from_raw_parts(lengths.displacements, counts.len()) };
        let pieces = counts.iter().zip(displacements).map(|(&count, &displacement)| {
            let at = buffer.at.wrapping_byte_offset((displacement as isize).wrapping_mul(extent));
            self.piece(at, count.into(), size, buffer.datatype)
        });
        let pieces: Result<_, Refusal> = pieces.collect();
        let blocks = Blocks { pieces: pieces?, datatype: buffer.datatype };
        // A displacement may lead away from a null pointer of the program's, but only where it has elements.
        let is_missing = buffer.at.is_null() && blocks.bytes() > 0 && self.is_plain(buffer.datatype);
        if is_missing { Err(Some(Cause::NoBuffer)) } else { Ok(blocks) }
    }

    fn piece(&self, at: *mut c_void, count: i64, size: usize, datatype: Handle) -> Result<Piece, Refusal> {
        let count = usize::try_from(count).map_err(|_| Some(Cause::Count(count)))?;
        if at.is_null() && count > 0 && self.is_plain(datatype) {
            return Err(Some(Cause::NoBuffer));
        }
        Ok(Piece { at, count, bytes: count.checked_mul(size).ok_or(None)? })
    }

    fn is_plain(&self, datatype: Handle) -> bool {
        self.types.plain(self.pmpi.mpi.handle(datatype)).is_some()
    }

    /// Bytes of an element, and from one element to the next.
    fn element(&self, buffer: &Buffer) -> Result<(usize, isize), Refusal> {
        if self.is_in_place(buffer) {
            let finds_all = self.pmpi.mpi.abi() == Abi::OpenMpi;
            return Err((!finds_all).then_some(Cause::InPlace));
        }
        let datatype = self.pmpi.mpi.handle(buffer.datatype);
        if let Some(size) = self.types.plain(datatype) {
            return Ok((size, size.cast_signed()));
        }
        let size = self.derived_size(datatype).ok_or(None)?;
        Ok((size, self.pmpi.type_extent(datatype).ok_or(None)?))
    }
}

impl Blocks {
    fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.bytes).sum()
    }

    /// The blocks as they are, if their type has no gaps.
    fn plain(&self, context: &Context<'_>) -> Option<(Side, Box<[Extent]>)> {
        let filled = || self.pieces.iter().filter(|piece| piece.bytes > 0);
        let Some(first) = filled().map(|piece| piece.at).min() else {
            return Some((Side::None, vec![Extent::default(); self.pieces.len()].into()));
        };
        context.is_plain(self.datatype).then_some(())?;
        let extent = |piece: &Piece| match piece.bytes {
            0 => Extent::default(),
            len => Extent { offset: piece.at.addr() - first.addr(), len },
        };
        Some((Side::Plain(first), self.pieces.iter().map(extent).collect()))
    }

    /// The blocks one behind the other.
    fn packed(&self, context: &Context<'_>) -> (Side, Box<[Extent]>) {
        let mut end = 0;
        let extent = |piece: &Piece| {
            end += piece.bytes;
            Extent { offset: end - piece.bytes, len: piece.bytes }
        };
        let extents = self.pieces.iter().map(extent).collect();
        let pieces = self.pieces.iter().filter(|piece| piece.bytes > 0).copied().collect();
        (Side::Derived { pieces, datatype: context.pmpi.mpi.handle(self.datatype) }, extents)
    }
}
