//! The collectives of MPI that this library exports.
//!
//! Place in the data flow: each function describes its arguments as a [`Call`] and offers it to [`crate::run`]. The MPI
//! library gets the calls that weft does not run.

use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

use weft_client::Operation;

use crate::exports::{export, export_large};
use crate::plan::{Buffer, Call};
use crate::record;
use crate::run::{blocking, nonblocking};

/// A buffer from three arguments, whose count has one of two types.
#[allow(clippy::cast_lossless, clippy::useless_conversion)]
fn buffer(at: *mut c_void, count: impl Into<i64>, datatype: usize) -> Buffer {
    Buffer { at, count: count.into(), datatype }
}

fn run(call: &Call, library: impl FnOnce() -> c_int) -> c_int {
    record::around(|| blocking(call).unwrap_or_else(library), |recorder| recorder.collective(call, null_mut()))
}

fn begin(call: &Call, request: *mut c_void, library: impl FnOnce() -> c_int) -> c_int {
    record::around(|| nonblocking(call, request).unwrap_or_else(library), |recorder| recorder.collective(call, request))
}

/// Defines the blocking and the non-blocking function of an operation.
macro_rules! pair {
    ($blocking:ident $nonblocking:ident ($($argument:ident: $kind:ident),*) $call:expr) => {
        export! { [c_int] $blocking($($argument: $kind),*) |library| run(&$call, library) }
        export! {
            [c_int] $nonblocking($($argument: $kind,)* request: pointer)
            |library| begin(&$call, request, library)
        }
    };
}

/// Defines the same functions with large counts.
macro_rules! large_pair {
    ($blocking:ident $nonblocking:ident $small:ident $small_nb:ident ($($argument:ident: $kind:ident),*) $call:expr) => {
        export_large! {
            $small $blocking($($argument: $kind),*) |library| run(&$call, library)
        }
        export_large! {
            $small_nb $nonblocking($($argument: $kind,)* request: pointer)
            |library| begin(&$call, request, library)
        }
    };
}

/// Defines the functions of an operation for both types of counts.
macro_rules! operations {
    ($($blocking:ident $nonblocking:ident $blocking_c:ident $nonblocking_c:ident $arguments:tt $call:expr;)*) => { $(
        pair! { $blocking $nonblocking $arguments $call }
        large_pair! { $blocking_c $nonblocking_c $blocking $nonblocking $arguments $call }
    )* };
}

pair! { MPI_Barrier MPI_Ibarrier (comm: handle) Call::new(Operation::Barrier, comm) }

operations! {
    MPI_Bcast MPI_Ibcast MPI_Bcast_c MPI_Ibcast_c
        (at: pointer, count: count, datatype: handle, root: int, comm: handle)
        Call { recv: buffer(at, count, datatype), root, ..Call::new(Operation::Broadcast, comm) };
    MPI_Allreduce MPI_Iallreduce MPI_Allreduce_c MPI_Iallreduce_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..Call::new(Operation::AllReduce, comm)
        };
    MPI_Reduce MPI_Ireduce MPI_Reduce_c MPI_Ireduce_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, root: int, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            root,
            ..Call::new(Operation::Reduce, comm)
        };
    MPI_Reduce_scatter_block MPI_Ireduce_scatter_block MPI_Reduce_scatter_block_c MPI_Ireduce_scatter_block_c
        (from: pointer, into: pointer, count: count, datatype: handle, op: handle, comm: handle)
        Call {
            send: buffer(from, count, datatype),
            recv: buffer(into, count, datatype),
            op,
            ..Call::new(Operation::ReduceScatter, comm)
        };
    MPI_Allgather MPI_Iallgather MPI_Allgather_c MPI_Iallgather_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            ..Call::new(Operation::AllGather, comm)
        };
    MPI_Alltoall MPI_Ialltoall MPI_Alltoall_c MPI_Ialltoall_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            ..Call::new(Operation::AllToAll, comm)
        };
    MPI_Gather MPI_Igather MPI_Gather_c MPI_Igather_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, root: int,
            comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            root,
            ..Call::new(Operation::Gather, comm)
        };
    MPI_Scatter MPI_Iscatter MPI_Scatter_c MPI_Iscatter_c
        (from: pointer, sent: count, sent_type: handle, into: pointer, count: count, datatype: handle, root: int,
            comm: handle)
        Call {
            send: buffer(from, sent, sent_type),
            recv: buffer(into, count, datatype),
            root,
            ..Call::new(Operation::Scatter, comm)
        };
}
