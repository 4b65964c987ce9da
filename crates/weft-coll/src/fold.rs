//! Results that the MPI library combines: those of operations that the provider does not have.
//!
//! Place in the data flow: the provider brings the contributions of all members ([`crate::shape`]), and
//! `MPI_Reduce_local` combines them in the order of ranks. That serves operations of the program, `MPI_MINLOC` and
//! `MPI_MAXLOC`, and the operations of scans. The functions of the program therefore run in its own thread, and in its
//! calls of MPI.
//!
//! A program may free an operation whose call is under way (MPI 4.1, 6.9.5). [`free`] puts that off while operations of
//! the program are in use.

use std::ffi::{c_int, c_void};

use parking_lot::Mutex;

use crate::exports::export;
use crate::mpi::{Handle, SUCCESS, loaded, pmpi};
use crate::pmpi::Pmpi;
use crate::run::runtime;
use crate::shape::{Scratch, Side};

/// The most bytes of all contributions to a reduction that each member combines by itself.
pub(crate) const MAX_BYTES: usize = 256 * 1024;

/// A result that is combined from contributions.
#[derive(Clone, Debug)]
pub(crate) struct Fold {
    /// Contributions that arrive.
    arriving: usize,
    /// The first of them that are combined.
    combined: usize,
    /// Bytes of one, packed.
    bytes: usize,
    at: *mut c_void,
    /// Elements of one.
    count: usize,
    datatype: Handle,
    op: Handle,
    kind: Kind,
    /// Of an operation that is under way.
    _held: Option<InUse>,
}

/// The elements' type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Its elements are packed as they are.
    Plain,
    /// A predefined one with gaps, whose handle is always valid.
    Predefined,
    /// One of the program. The operation is given a handle of this library's own if the call does not wait.
    Derived { waits: bool },
}

/// The arguments of a reduction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operands {
    pub(crate) at: *mut c_void,
    pub(crate) count: usize,
    /// Bytes of one element, packed.
    pub(crate) size: usize,
    pub(crate) datatype: Handle,
    pub(crate) op: Handle,
    pub(crate) kind: Kind,
}

impl Fold {
    /// The result of the first `combined` of `arriving` contributions.
    pub(crate) const fn new(operands: Operands, arriving: usize, combined: usize) -> Self {
        let Operands { at, count, size, datatype, op, kind } = operands;
        Self { arriving, combined, bytes: count * size, at, count, datatype, op, kind, _held: None }
    }

    /// As a side of an operation. Nothing may be wanted.
    pub(crate) fn side(self) -> Side {
        if self.combined == 0 || self.count == 0 { Side::Unwanted(self.bytes()) } else { Side::Folded(self) }
    }

    /// Bytes of all contributions.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes * self.arriving
    }

    /// The handle of the program's type, if it is one.
    pub(crate) fn datatype(&mut self) -> Option<&mut Handle> {
        matches!(self.kind, Kind::Derived { .. }).then_some(&mut self.datatype)
    }

    /// The fold of an operation that starts.
    pub(crate) fn begin(&self, pmpi: &Pmpi) -> Option<Self> {
        let datatype = match self.kind {
            Kind::Derived { waits: false } => pmpi.duplicate_type(self.datatype)?,
            _ => self.datatype,
        };
        Some(Self { datatype, _held: Some(InUse::new()), ..self.clone() })
    }

    /// Combines the contributions in `arrived`, and moves the result to the program's memory.
    pub(crate) fn finish(self, pmpi: &Pmpi, comm: Handle, arrived: &mut Scratch, success: bool) -> bool {
        let done = success
            && match self.kind {
                Kind::Plain => self.combine_plain(pmpi, arrived),
                Kind::Predefined | Kind::Derived { .. } => self.combine_unpacked(pmpi, comm, arrived).is_some(),
            };
        if self.kind == (Kind::Derived { waits: false }) {
            pmpi.free_type(self.datatype);
        }
        done
    }

    fn combine_plain(&self, pmpi: &Pmpi, arrived: &mut Scratch) -> bool {
        let first = arrived.start();
        let slot = |place: usize| first.wrapping_byte_add(place * self.bytes);
        let combined = (1..self.combined)
            .all(|place| pmpi.reduce_local(slot(place - 1), slot(place), self.count, self.datatype, self.op));
        if combined {
            let result = &arrived.bytes()[(self.combined - 1) * self.bytes..][..self.bytes];
            // SAFETY: the program's buffer has room for the result, and is not part of the scratch memory.
            unsafe { self.at.cast::<u8>().copy_from_nonoverlapping(result.as_ptr(), result.len()) };
        }
        combined
    }

    /// Elements with gaps, which the operation expects. The gaps of the program's result stay as they are.
    fn combine_unpacked(&self, pmpi: &Pmpi, comm: Handle, arrived: &mut Scratch) -> Option<()> {
        let Self { count, datatype, op, .. } = *self;
        let (lower, length) = pmpi.true_span(datatype, count)?;
        let mut both = [Scratch::new(length), Scratch::new(length)];
        // The elements begin where their type's lowest byte is at the start of the memory.
        let starts =
            both.each_mut().map(|memory| memory.start().wrapping_byte_offset(lower.checked_neg().unwrap_or(0)));
        let contribution = |arrived: &Scratch, place: usize, into: *mut c_void| {
            let packed = &arrived.bytes()[place * self.bytes..][..self.bytes];
            pmpi.unpack(packed, into, count, datatype, comm).then_some(())
        };
        contribution(arrived, 0, starts[0])?;
        for place in 1..self.combined {
            let (from, into) = (starts[(place - 1) % 2], starts[place % 2]);
            contribution(arrived, place, into)?;
            pmpi.reduce_local(from, into, count, datatype, op).then_some(())?;
        }
        let last = starts[(self.combined - 1) % 2];
        let packed = &mut arrived.bytes_mut()[..self.bytes];
        pmpi.pack(last, count, datatype, packed, comm).then_some(())?;
        pmpi.unpack(packed, self.at, count, datatype, comm).then_some(())
    }
}

/// Operations of the program in use, and those that it has freed meanwhile.
struct Operations {
    uses: usize,
    freed: Vec<Handle>,
}

static OPERATIONS: Mutex<Operations> = Mutex::new(Operations { uses: 0, freed: Vec::new() });

/// A use of operations of the program. Those that it frees exist until the last use has ended.
#[derive(Debug)]
pub(crate) struct InUse;

impl InUse {
    pub(crate) fn new() -> Self {
        OPERATIONS.lock().uses += 1;
        Self
    }
}

impl Clone for InUse {
    fn clone(&self) -> Self {
        Self::new()
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut operations = OPERATIONS.lock();
        operations.uses -= 1;
        let freed = if operations.uses == 0 { std::mem::take(&mut operations.freed) } else { Vec::new() };
        drop(operations);
        for mut op in freed {
            pmpi!("PMPI_Op_free", &raw mut op => *mut Handle);
        }
    }
}

/// Frees an operation of the program, at once or later. `None`: the MPI library does.
fn free(op: *mut c_void) -> Option<c_int> {
    let (runtime, mpi) = (runtime()?, loaded()?);
    if op.is_null() {
        return None;
    }
    // SAFETY: the program's handle.
    let handle = mpi.handle(unsafe { mpi.read(op, 0) });
    let mut operations = OPERATIONS.lock();
    if operations.uses == 0 || runtime.types.is_predefined_op(handle) {
        return None;
    }
    operations.freed.push(handle);
    // SAFETY: the program's place for the handle.
    unsafe { mpi.write(op, runtime.pmpi.constants.no_op) };
    Some(SUCCESS)
}

export! { [c_int] MPI_Op_free(op: pointer) |library| free(op).unwrap_or_else(library) }
