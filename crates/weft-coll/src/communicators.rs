//! The functions of MPI that make communicators and end with a blocking collective among the new members.
//!
//! Place in the data flow: after the MPI library has made the communicator, its members agree on a group
//! ([`crate::groups`]), so that the first non-blocking collective finds it. Communicators that are made otherwise get
//! theirs at their first blocking collective.

use std::ffi::{c_int, c_void};

use crate::exports::export;
use crate::mpi::SUCCESS;
use crate::record;
use crate::run::runtime;

/// Makes the group of a new communicator. Returns `code`, the result of the call that made it.
pub(crate) fn made(code: c_int, new: *mut c_void) -> c_int {
    if code == SUCCESS && record::is_on() {
        record::with(|recorder| recorder.made_at(new));
    }
    if let (SUCCESS, Some(runtime)) = (code, runtime()) {
        // SAFETY: the library has written the program's handle.
        let comm = unsafe { runtime.pmpi.mpi.read(new, 0) };
        if comm != runtime.pmpi.constants.no_communicator {
            runtime.communicator(comm, true);
        }
    }
    code
}

export! { [c_int] MPI_Comm_dup(comm: handle, new: pointer) |library| made(library(), new) }
export! { [c_int] MPI_Comm_dup_with_info(comm: handle, info: handle, new: pointer) |library| made(library(), new) }
export! { [c_int] MPI_Comm_split(comm: handle, color: int, key: int, new: pointer) |library| made(library(), new) }
export! { [c_int] MPI_Comm_create(comm: handle, group: handle, new: pointer) |library| made(library(), new) }
export! {
    [c_int] MPI_Comm_create_group(comm: handle, group: handle, tag: int, new: pointer) |library| made(library(), new)
}
export! {
    [c_int] MPI_Cart_create(comm: handle, dimensions: int, lengths: pointer, periods: pointer, reorder: int, new: pointer)
    |library| made(library(), new)
}
export! { [c_int] MPI_Cart_sub(comm: handle, kept: pointer, new: pointer) |library| made(library(), new) }
