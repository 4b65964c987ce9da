//! One member's part in an operation that weft runs: its buffers, the provider's call, and the end of the result's way.
//!
//! Place in the data flow: [`crate::plan`] and [`crate::uneven`] make a [`Shape`] of a call. [`Shape::prepare`] packs
//! the data of derived types and gives the arguments of the provider's call. [`Staged::finish`] moves the result into
//! the program's memory: as it is, unpacked, or combined by the MPI library ([`crate::fold`]).

use std::ffi::c_void;
use std::ptr::null_mut;

use smallvec::SmallVec;
use weft_client::{Collective, Exchange, Extent, Operation};
use weft_fi_sys::{FI_NOOP, FI_UINT8, fi_datatype, fi_op};

use crate::errors::Cause;
use crate::fold::Fold;
use crate::mpi::Handle;
use crate::pmpi::Pmpi;

/// Elements of a derived type that are packed into one run of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) at: *mut c_void,
    pub(crate) count: usize,
    /// Bytes of the packed elements.
    pub(crate) bytes: usize,
}

/// One side of an operation at this member.
#[derive(Clone, Debug)]
pub(crate) enum Side {
    /// The member has no such buffer.
    None,
    /// The program's memory, as it is.
    Plain(*mut c_void),
    /// Elements of a derived type, which are packed one piece behind the other, or unpacked.
    Derived { pieces: SmallVec<[Piece; 1]>, datatype: Handle },
    /// A result that is not wanted, of this many bytes.
    Unwanted(usize),
    /// A result that is combined from the contributions of several members.
    Folded(Fold),
}

/// The provider's operation.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    /// A collective of blocks of one length.
    Even {
        operation: Operation,
        root: usize,
        count: usize,
        datatype: fi_datatype,
        op: fi_op,
        /// Whether the result is also this member's input (the root of a broadcast).
        sends_result: bool,
    },
    /// Blocks of different lengths: one for each member, and one of each.
    Uneven { given: Box<[Extent]>, taken: Box<[Extent]> },
}

impl Way {
    /// An operation that moves blocks of this many bytes.
    pub(crate) const fn moves(operation: Operation, root: usize, bytes: usize) -> Self {
        Self::Even { operation, root, count: bytes, datatype: FI_UINT8, op: FI_NOOP, sends_result: false }
    }
}

/// An operation that weft runs.
#[derive(Debug)]
pub(crate) struct Shape {
    pub(crate) way: Way,
    pub(crate) input: Side,
    pub(crate) result: Side,
    /// Bytes of the longest buffer at any member, as far as this one knows.
    pub(crate) bytes: usize,
    /// The member's own error, in spite of which it takes part.
    pub(crate) wrong: Option<Cause>,
}

/// The arguments of the provider's call.
pub(crate) enum Transfer {
    Even(Collective),
    Uneven(Exchange),
}

/// Memory besides the program's, aligned for elements of every type.
#[derive(Default)]
pub(crate) struct Scratch {
    words: Vec<u128>,
    len: usize,
}

impl Scratch {
    pub(crate) fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    pub(crate) const fn bytes(&self) -> &[u8] {
        // SAFETY: the words have as many bytes, and any bytes are valid.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }

    pub(crate) const fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the reference is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }

    pub(crate) const fn start(&mut self) -> *mut c_void {
        self.words.as_mut_ptr().cast()
    }
}

/// Memory of an operation besides the program's, and the end of its way.
#[derive(Default)]
pub(crate) struct Staged {
    /// Packed input. The provider reads it until the operation is complete.
    _input: Scratch,
    result: Scratch,
    end: End,
}

/// The way of a result from its scratch memory to the program's.
#[derive(Default)]
enum End {
    /// It is there, or is not wanted.
    #[default]
    None,
    /// Elements that it is unpacked into. The handle of the type is this library's own.
    Unpack { pieces: SmallVec<[Piece; 1]>, datatype: Handle },
    /// Contributions that are combined.
    Fold(Fold),
}

impl Staged {
    /// Moves the result to the program's memory, if the operation succeeded. Returns whether all went well.
    pub(crate) fn finish(mut self, pmpi: &Pmpi, comm: Handle, success: bool) -> bool {
        match self.end {
            End::None => success,
            End::Unpack { pieces, datatype } => {
                let mut rest = self.result.bytes();
                let done = success
                    && pieces.iter().all(|piece| {
                        let (packed, behind) = rest.split_at(piece.bytes);
                        rest = behind;
                        pmpi.unpack(packed, piece.at, piece.count, datatype, comm)
                    });
                pmpi.free_type(datatype);
                done
            }
            End::Fold(fold) => fold.finish(pmpi, comm, &mut self.result, success),
        }
    }
}

/// Packs elements. `None`: the MPI library could not.
fn pack(pmpi: &Pmpi, comm: Handle, pieces: &[Piece], datatype: Handle) -> Option<Scratch> {
    let mut packed = Scratch::new(pieces.iter().map(|piece| piece.bytes).sum());
    let mut rest = packed.bytes_mut();
    for piece in pieces {
        let (into, behind) = rest.split_at_mut(piece.bytes);
        rest = behind;
        if !pmpi.pack(piece.at, piece.count, datatype, into, comm) {
            return None;
        }
    }
    Some(packed)
}

impl Shape {
    /// Takes the member's own error, in spite of which it takes part.
    pub(crate) fn wrong(&self) -> Option<Cause> {
        self.wrong.clone()
    }

    /// The provider's call, if the program's memory serves as it is.
    pub(crate) fn plain(&self) -> Option<Collective> {
        let memory = |side: &Side| match side {
            Side::None => Some(null_mut()),
            Side::Plain(at) => Some(*at),
            Side::Derived { .. } | Side::Unwanted(_) | Side::Folded(_) => None,
        };
        let (input, result) = (memory(&self.input)?, memory(&self.result)?);
        let Way::Even { operation, root, count, datatype, op, .. } = self.way else { return None };
        Some(Collective { operation, input, result, count, root: root as u64, datatype, op })
    }

    /// The arguments of the provider's call. `None`: the MPI library could not pack the data. `comm` is any
    /// communicator, which packing needs.
    pub(crate) fn prepare(&self, pmpi: &Pmpi, comm: Handle) -> Option<(Transfer, Staged)> {
        let mut staged = Staged::default();
        let input = match &self.input {
            Side::Plain(at) => *at,
            Side::Derived { pieces, datatype } => {
                staged._input = pack(pmpi, comm, pieces, *datatype)?;
                staged._input.start()
            }
            Side::None | Side::Unwanted(_) | Side::Folded(_) => null_mut(),
        };
        let result = match &self.result {
            Side::None => null_mut(),
            Side::Plain(at) => *at,
            Side::Derived { pieces, datatype } if self.sends_result() => {
                staged.result = pack(pmpi, comm, pieces, *datatype)?;
                staged.result.start()
            }
            Side::Derived { pieces, datatype } => {
                staged.result = Scratch::new(pieces.iter().map(|piece| piece.bytes).sum());
                staged.end = End::Unpack { pieces: pieces.clone(), datatype: pmpi.duplicate_type(*datatype)? };
                staged.result.start()
            }
            Side::Unwanted(bytes) => {
                staged.result = Scratch::new(*bytes);
                staged.result.start()
            }
            Side::Folded(fold) => {
                staged.result = Scratch::new(fold.bytes());
                staged.end = End::Fold(fold.begin(pmpi)?);
                staged.result.start()
            }
        };
        let transfer = match &self.way {
            Way::Even { operation, root, count, datatype, op, .. } => Transfer::Even(Collective {
                operation: *operation,
                input,
                result,
                count: *count,
                root: *root as u64,
                datatype: *datatype,
                op: *op,
            }),
            Way::Uneven { given, taken } => {
                Transfer::Uneven(Exchange { input, given: given.clone(), result, taken: taken.clone() })
            }
        };
        Some((transfer, staged))
    }

    /// The handles of the program's types that the operation uses.
    pub(crate) fn datatypes(&mut self) -> impl Iterator<Item = &mut Handle> {
        [&mut self.input, &mut self.result].into_iter().filter_map(|side| match side {
            Side::Derived { datatype, .. } => Some(datatype),
            Side::Folded(fold) => fold.datatype(),
            Side::None | Side::Plain(_) | Side::Unwanted(_) => None,
        })
    }

    const fn sends_result(&self) -> bool {
        matches!(self.way, Way::Even { sends_result: true, .. })
    }
}
