//! Persistent requests, for the recording: each start is an operation as that of a non-blocking call.
//!
//! Place in the data flow: the calls that make requests are exported here, and for collectives in
//! [`crate::collectives`]. [`crate::persistent`] exports those that start and free them.

use std::ffi::{c_int, c_void};

use smallvec::SmallVec;
use weft_record::Event;

use super::messages::message;
use super::{Message, Open, Recorder, around, is_on, with};
use crate::exports::{export, export_large};
use crate::mpi::Handle;
use crate::plan::Call;

/// The operation of a persistent request.
pub(super) struct Kept {
    events: SmallVec<[Event; 1]>,
    /// The communicator of a receive of any source or tag.
    wild: Option<Handle>,
}

impl Recorder {
    fn keep(&mut self, at: *mut c_void, kept: Kept) {
        let handle = self.handle_at(at, 0);
        self.kept.insert(handle, kept);
    }

    fn keep_send(&mut self, message: Message, request: *mut c_void) {
        let events = self.send_event(message).into_iter().collect();
        self.keep(request, Kept { events, wild: None });
    }

    fn keep_receive(&mut self, message: Message, request: *mut c_void) {
        let wild = self.wild(message);
        let events = self.receive_event(message, message.peer, message.tag).into_iter().collect();
        self.keep(request, Kept { events, wild });
    }

    /// A persistent collective is made.
    pub(crate) fn keep_collective(&mut self, call: &Call, request: *mut c_void) {
        let events = self.collective_events(call).into_iter().collect();
        self.keep(request, Kept { events, wild: None });
    }

    /// Requests of this array are started.
    pub(crate) fn started(&mut self, requests: *mut c_void, count: c_int) {
        for at in 0..usize::try_from(count).unwrap_or(0) {
            let handle = self.handle_at(requests, at);
            let Some(kept) = self.kept.remove(&handle) else { continue };
            let id = self.next_id();
            self.requests.insert(handle, Open { id, wild: kept.wild });
            self.add_all(&kept.events, id);
            self.kept.insert(handle, kept);
        }
    }

    /// A request is freed, whose handle may be used again.
    fn forget_request(&mut self, request: *mut c_void) {
        let handle = self.handle_at(request, 0);
        self.kept.remove(&handle);
        self.requests.remove(&handle);
    }
}

/// Passes the start of requests on.
pub(crate) fn around_start(requests: *mut c_void, count: c_int, call: impl FnOnce() -> c_int) -> c_int {
    around(call, |recorder| recorder.started(requests, count))
}

/// A request is about to be freed.
pub(crate) fn freed(request: *mut c_void) {
    if is_on() {
        with(|recorder| recorder.forget_request(request));
    }
}

/// Defines the calls that make requests of messages, with both types of counts.
macro_rules! requests {
    ($($name:ident $name_c:ident $keep:ident;)*) => { $(
        export! {
            [c_int] $name(
                at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, request: pointer
            )
            |library| around(library, |recorder| {
                recorder.$keep(message(count, datatype, peer, comm, tag), request);
            })
        }
        export_large! {
            $name $name_c(
                at: pointer, count: count, datatype: handle, peer: int, tag: int, comm: handle, request: pointer
            )
            |library| around(library, |recorder| {
                recorder.$keep(message(count, datatype, peer, comm, tag), request);
            })
        }
    )* };
}

requests! {
    MPI_Send_init MPI_Send_init_c keep_send;
    MPI_Ssend_init MPI_Ssend_init_c keep_send;
    MPI_Rsend_init MPI_Rsend_init_c keep_send;
    MPI_Bsend_init MPI_Bsend_init_c keep_send;
    MPI_Recv_init MPI_Recv_init_c keep_receive;
}
