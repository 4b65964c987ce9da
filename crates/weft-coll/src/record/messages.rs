//! The calls of MPI that send and receive messages. They are exported for the recording alone.

use std::ffi::{c_int, c_void};
use std::ptr::{null, null_mut};

use super::{Message, Recorder, Status, around, is_on, with};
use crate::exports::{export, export_large};
use crate::mpi::{Handle, pmpi};

#[allow(clippy::cast_lossless, clippy::useless_conversion)]
pub(super) fn message(count: impl Into<i64>, datatype: Handle, peer: c_int, comm: Handle, tag: c_int) -> Message {
    Message { count: count.into(), datatype, peer, tag, comm }
}

/// Defines the calls that send, with both types of counts.
macro_rules! sends {
    ($($blocking:ident $blocking_c:ident;)* | $($nonblocking:ident $nonblocking_c:ident;)*) => {
        $(
            export! {
                [c_int] $blocking(at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle)
                |library| around(library, |recorder| {
                    recorder.send(message(count, datatype, peer, comm, tag), null_mut());
                })
            }
            export_large! {
                $blocking $blocking_c(at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle)
                |library| around(library, |recorder| {
                    recorder.send(message(count, datatype, peer, comm, tag), null_mut());
                })
            }
        )*
        $(
            export! {
                [c_int] $nonblocking(
                    at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, request: pointer
                )
                |library| around(library, |recorder| {
                    recorder.send(message(count, datatype, peer, comm, tag), request);
                })
            }
            export_large! {
                $nonblocking $nonblocking_c(
                    at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, request: pointer
                )
                |library| around(library, |recorder| {
                    recorder.send(message(count, datatype, peer, comm, tag), request);
                })
            }
        )*
    };
}

sends! {
    MPI_Send MPI_Send_c;
    MPI_Ssend MPI_Ssend_c;
    MPI_Rsend MPI_Rsend_c;
    MPI_Bsend MPI_Bsend_c;
    |
    MPI_Isend MPI_Isend_c;
    MPI_Issend MPI_Issend_c;
    MPI_Irsend MPI_Irsend_c;
    MPI_Ibsend MPI_Ibsend_c;
}

/// A status for a call whose program wants none: the recording needs it.
pub(super) fn status_or(own: &mut Status, status: *mut c_void) -> *mut c_void {
    let ignored = with(|recorder| status.addr() == recorder.pmpi.mpi.status_ignore()).unwrap_or(false);
    if ignored { own.as_mut_ptr().cast() } else { status }
}

/// A blocking receive, with a status.
fn receive(message: Message, status: *mut c_void, library: impl FnOnce(*mut c_void) -> c_int) -> c_int {
    let mut own = Status::default();
    let status = status_or(&mut own, status);
    around(|| library(status), |recorder| recorder.receive(message, null_mut(), status))
}

macro_rules! receives {
    ($([$count:ty] $export:ident $($small:ident)? => $name:ident $nonblocking:ident $($small_nb:ident)?;)*) => { $(
        $export! {
            $($small)? $name(
                at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, status: pointer
            )
            |library| if is_on() {
                receive(message(count, datatype, peer, comm, tag), status, |status| pmpi!(
                    concat!("P", stringify!($name)),
                    at => *mut c_void, count => $count, datatype => Handle, peer => c_int, tag => c_int,
                    comm => Handle, status => *mut c_void,
                ))
            } else {
                library()
            }
        }
        $export! {
            $($small_nb)? $nonblocking(
                at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, request: pointer
            )
            |library| around(library, |recorder| {
                recorder.receive(message(count, datatype, peer, comm, tag), request, null());
            })
        }
    )* };
}

macro_rules! export_small {
    ($($rest:tt)*) => { export! { [c_int] $($rest)* } };
}

receives! {
    [c_int] export_small => MPI_Recv MPI_Irecv;
    [i64] export_large MPI_Recv => MPI_Recv_c MPI_Irecv_c MPI_Irecv;
}

/// A send and a receive in one call: the receive is awaited last.
fn exchanged(recorder: &mut Recorder, send: Message, receive: Message, status: *const c_void) {
    recorder.send(send, null_mut());
    recorder.receive(receive, null_mut(), status);
}

export! {
    [c_int] MPI_Sendrecv(
        from: pointer, sent: count, sent_type: handle, to: int, sent_tag: int,
        into: pointer, count: count, datatype: handle, source: int, tag: int, comm: handle, status: pointer
    )
    |library| if is_on() {
        let mut own = Status::default();
        let status = status_or(&mut own, status);
        let call = || pmpi!(
            "PMPI_Sendrecv",
            from => *mut c_void, sent => c_int, sent_type => Handle, to => c_int, sent_tag => c_int,
            into => *mut c_void, count => c_int, datatype => Handle, source => c_int, tag => c_int,
            comm => Handle, status => *mut c_void,
        );
        around(call, |recorder| {
            let sent = message(sent, sent_type, to, comm, sent_tag);
            exchanged(recorder, sent, message(count, datatype, source, comm, tag), status);
        })
    } else {
        library()
    }
}
export! {
    [c_int] MPI_Sendrecv_replace(
        at: pointer, count: count, datatype: handle, to: int, sent_tag: int, source: int, tag: int, comm: handle,
        status: pointer
    )
    |library| if is_on() {
        let mut own = Status::default();
        let status = status_or(&mut own, status);
        let call = || pmpi!(
            "PMPI_Sendrecv_replace",
            at => *mut c_void, count => c_int, datatype => Handle, to => c_int, sent_tag => c_int,
            source => c_int, tag => c_int, comm => Handle, status => *mut c_void,
        );
        around(call, |recorder| {
            let sent = message(count, datatype, to, comm, sent_tag);
            exchanged(recorder, sent, message(count, datatype, source, comm, tag), status);
        })
    } else {
        library()
    }
}
// The accesses of a window are not recorded, which the recording says.
export! {
    [c_int] MPI_Win_create(base: pointer, bytes: pointer, unit: int, info: handle, comm: handle, window: pointer)
    |library| around(library, Recorder::window)
}
export! {
    [c_int] MPI_Win_allocate(bytes: pointer, unit: int, info: handle, comm: handle, base: pointer, window: pointer)
    |library| around(library, Recorder::window)
}
export! {
    [c_int] MPI_Win_create_dynamic(info: handle, comm: handle, window: pointer)
    |library| around(library, Recorder::window)
}
// The time of a probe is no computation.
export! {
    [c_int] MPI_Probe(source: int, tag: int, comm: handle, status: pointer)
    |library| around(library, |_| ())
}
export! {
    [c_int] MPI_Comm_free(comm: pointer)
    |library| {
        with(|recorder| {
            // SAFETY: the program's place of the handle.
            let handle = unsafe { recorder.pmpi.mpi.read(comm, 0) };
            recorder.forget(handle);
        });
        library()
    }
}
export! {
    [c_int] MPI_Type_free(datatype: pointer)
    |library| {
        with(|recorder| {
            // SAFETY: the program's place of the handle.
            let handle = unsafe { recorder.pmpi.mpi.read(datatype, 0) };
            recorder.forget_type(handle);
        });
        library()
    }
}
