//! The collectives of MPI that this library exports.
//!
//! Place in the data flow: each function describes its arguments as a [`Call`] and offers it to [`crate::run`]. The MPI
//! library gets the calls that weft does not run.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_client::Operation;

use crate::exports::{export, export_large};
use crate::plan::{Buffer, Call, Function, Lengths, Prefix};
use crate::record;
use crate::run::{blocking, nonblocking, persistent};

/// A buffer from three arguments, whose count has one of two types.
#[allow(clippy::cast_lossless, clippy::useless_conversion)]
fn buffer(at: *mut c_void, count: impl Into<i64>, datatype: usize) -> Buffer {
    Buffer { at, count: count.into(), datatype }
}

/// The counts and displacements of a side.
fn lengths(counts: *mut c_void, displacements: *mut c_void) -> Lengths {
    Lengths { counts: counts.cast_const().cast(), displacements: displacements.cast_const().cast() }
}

/// A call of a collective with a count for each member.
fn uneven(operation: Operation, sent: Lengths, received: Lengths, comm: usize) -> Call {
    Call::new(Function::Uneven { operation, sent, received }, comm)
}

/// A call of a scan.
fn scan(prefix: Prefix, comm: usize) -> Call {
    Call::new(Function::Scan(prefix), comm)
}

fn run(call: &Call, library: impl FnOnce() -> c_int) -> c_int {
    record::around(|| blocking(call).unwrap_or_else(library), |recorder| recorder.collective(call, null_mut()))
}

fn begin(call: &Call, request: *mut c_void, library: impl FnOnce() -> c_int) -> c_int {
    record::around(|| nonblocking(call, request).unwrap_or_else(library), |recorder| recorder.collective(call, request))
}

fn prepare(call: &Call, request: *mut c_void, library: impl FnOnce() -> c_int) -> c_int {
    let make = || persistent(call, request).unwrap_or_else(library);
    record::around(make, |recorder| recorder.keep_collective(call, request))
}

/// Defines the blocking, the non-blocking and the persistent function of operations.
macro_rules! forms {
    ($($blocking:ident $nonblocking:ident $init:ident $arguments:tt $call:expr;)*) => {
        $( forms! { @one $blocking $nonblocking $init $arguments $call } )*
    };
    (@one $blocking:ident $nonblocking:ident $init:ident ($($argument:ident: $kind:ident),*) $call:expr) => {
        export! {
            [c_int] $blocking($($argument: $kind),*)
            |library| run(&Call { name: stringify!($blocking), ..$call }, library)
        }
        export! {
            [c_int] $nonblocking($($argument: $kind,)* request: pointer)
            |library| begin(&Call { name: stringify!($nonblocking), ..$call }, request, library)
        }
        export! {
            [c_int] $init($($argument: $kind,)* info: handle, request: pointer)
            |library| prepare(&Call { name: stringify!($init), ..$call }, request, library)
        }
    };
}

/// Defines the same functions with large counts. Errors name the functions without.
macro_rules! large_forms {
    (
        $blocking:ident $nonblocking:ident $init:ident $small:ident $small_nb:ident $small_init:ident
        ($($argument:ident: $kind:ident),*) $call:expr
    ) => {
        export_large! {
            $small $blocking($($argument: $kind),*)
            |library| run(&Call { name: stringify!($small), ..$call }, library)
        }
        export_large! {
            $small_nb $nonblocking($($argument: $kind,)* request: pointer)
            |library| begin(&Call { name: stringify!($small_nb), ..$call }, request, library)
        }
        export_large! {
            $small_init $init($($argument: $kind,)* info: handle, request: pointer)
            |library| prepare(&Call { name: stringify!($small_init), ..$call }, request, library)
        }
    };
}

/// Defines the functions of operations for both types of counts.
macro_rules! operations {
    ($(
        $blocking:ident $nonblocking:ident $init:ident $blocking_c:ident $nonblocking_c:ident $init_c:ident
        $arguments:tt $call:expr;
    )*) => { $(
        forms! { @one $blocking $nonblocking $init $arguments $call }
        large_forms! { $blocking_c $nonblocking_c $init_c $blocking $nonblocking $init $arguments $call }
    )* };
}

forms! {
    MPI_Barrier MPI_Ibarrier MPI_Barrier_init (comm: handle) Call::even(Operation::Barrier, comm);
    MPI_Reduce_scatter MPI_Ireduce_scatter MPI_Reduce_scatter_init
        (from: pointer, into: pointer, counts: pointer, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, 0, datatype),
            recv: buffer(into, 0, datatype),
            op,
            ..uneven(Operation::ReduceScatter, Lengths::NONE, lengths(counts, null_mut()), comm)
        };
    MPI_Allgatherv MPI_Iallgatherv MPI_Allgatherv_init
        (from: pointer, sent: int, sent_type: handle, into: pointer, counts: pointer, places: pointer, datatype: handle,
            comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, 0, datatype),
            ..uneven(Operation::AllGather, Lengths::NONE, lengths(counts, places), comm)
        };
    MPI_Gatherv MPI_Igatherv MPI_Gatherv_init
        (from: pointer, sent: int, sent_type: handle, into: pointer, counts: pointer, places: pointer, datatype: handle,
            root: int, comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, 0, datatype),
            root,
            ..uneven(Operation::Gather, Lengths::NONE, lengths(counts, places), comm)
        };
    MPI_Scatterv MPI_Iscatterv MPI_Scatterv_init
        (from: pointer, counts: pointer, places: pointer, sent_type: handle, into: pointer, count: int, datatype: handle,
            root: int, comm: handle)
        Call {
            send: buffer(from, 0, sent_type),
            recv: buffer(into, count, datatype),
            root,
            ..uneven(Operation::Scatter, lengths(counts, places), Lengths::NONE, comm)
        };
    MPI_Alltoallv MPI_Ialltoallv MPI_Alltoallv_init
        (from: pointer, sent: pointer, sent_places: pointer, sent_type: handle, into: pointer, counts: pointer,
            places: pointer, datatype: handle, comm: handle)
        Call {
            send: buffer(from, 0, sent_type),
            recv: buffer(into, 0, datatype),
            ..uneven(Operation::AllToAll, lengths(sent, sent_places), lengths(counts, places), comm)
        };
}

operations! {
    MPI_Bcast MPI_Ibcast MPI_Bcast_init MPI_Bcast_c MPI_Ibcast_c MPI_Bcast_init_c
        (at: pointer, count: count, datatype: handle, root: int, comm: handle)
        Call { recv: buffer(at, count, datatype), root, ..Call::even(Operation::Broadcast, comm) };
    MPI_Allreduce MPI_Iallreduce MPI_Allreduce_init MPI_Allreduce_c MPI_Iallreduce_c MPI_Allreduce_init_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..Call::even(Operation::AllReduce, comm)
        };
    MPI_Reduce MPI_Ireduce MPI_Reduce_init MPI_Reduce_c MPI_Ireduce_c MPI_Reduce_init_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, root: int, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            root,
            ..Call::even(Operation::Reduce, comm)
        };
    MPI_Reduce_scatter_block MPI_Ireduce_scatter_block MPI_Reduce_scatter_block_init MPI_Reduce_scatter_block_c MPI_Ireduce_scatter_block_c MPI_Reduce_scatter_block_init_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..Call::even(Operation::ReduceScatter, comm)
        };
    MPI_Allgather MPI_Iallgather MPI_Allgather_init MPI_Allgather_c MPI_Iallgather_c MPI_Allgather_init_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            ..Call::even(Operation::AllGather, comm)
        };
    MPI_Alltoall MPI_Ialltoall MPI_Alltoall_init MPI_Alltoall_c MPI_Ialltoall_c MPI_Alltoall_init_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            ..Call::even(Operation::AllToAll, comm)
        };
    MPI_Gather MPI_Igather MPI_Gather_init MPI_Gather_c MPI_Igather_c MPI_Gather_init_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, root: int,
            comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            root,
            ..Call::even(Operation::Gather, comm)
        };
    MPI_Scatter MPI_Iscatter MPI_Scatter_init MPI_Scatter_c MPI_Iscatter_c MPI_Scatter_init_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, root: int,
            comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            root,
            ..Call::even(Operation::Scatter, comm)
        };
    MPI_Scan MPI_Iscan MPI_Scan_init MPI_Scan_c MPI_Iscan_c MPI_Scan_init_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..scan(Prefix::Inclusive, comm)
        };
    MPI_Exscan MPI_Iexscan MPI_Exscan_init MPI_Exscan_c MPI_Iexscan_c MPI_Exscan_init_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..scan(Prefix::Exclusive, comm)
        };
}
