//! The ends of requests, for the recording.
//!
//! Place in the data flow: [`crate::completions`] exports the calls. Each passes here before the MPI library, which
//! writes statuses that the program may not want.

use std::ffi::{c_int, c_void};

use smallvec::SmallVec;

use super::messages::status_or;
use super::{Status, around_test, is_on, with};
use crate::mpi::{Handle, UNDEFINED};

/// The requests of a call, and whether the recording needs the status of one.
struct Asked {
    handles: SmallVec<[Handle; 16]>,
    wild: bool,
    /// Bytes of a status of the MPI library.
    status_bytes: usize,
    ignored: usize,
}

fn asked(count: c_int, array: *mut c_void) -> Asked {
    let count = usize::try_from(count).unwrap_or(0);
    let read = with(|recorder| {
        let mut wild = false;
        let handles = (0..count).map(|at| {
            // SAFETY: the program passes an array of `count` requests.
            let (handle, needs) = unsafe { recorder.peek(array, at) };
            wild |= needs;
            handle
        });
        let (handles, mpi) = (handles.collect(), recorder.pmpi.mpi);
        Asked { handles, wild, status_bytes: mpi.status_bytes(), ignored: mpi.status_ignore() }
    });
    read.unwrap_or(Asked { handles: SmallVec::new(), wild: false, status_bytes: 0, ignored: 0 })
}

/// An array of statuses, of the program or in `room`.
fn statuses(asked: &Asked, given: *mut c_void, room: &mut Vec<u8>) -> *mut c_void {
    if asked.wild && given.addr() == asked.ignored {
        room.resize(asked.handles.len() * asked.status_bytes, 0);
        return room.as_mut_ptr().cast();
    }
    given
}

/// The status at a place of an array, if the MPI library has written it.
fn status_at(asked: &Asked, statuses: *mut c_void, at: usize) -> Option<*const c_void> {
    let written = statuses.addr() != asked.ignored;
    written.then(|| statuses.wrapping_byte_add(at * asked.status_bytes).cast_const())
}

/// A wait for one request, or a test of it, which has a flag.
pub(crate) fn one(
    request: *mut c_void,
    flag: Option<*mut c_void>,
    status: *mut c_void,
    library: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    if !is_on() {
        return library(status);
    }
    let (asked, mut own) = (asked(1, request), Status::default());
    let status = if asked.wild { status_or(&mut own, status) } else { status };
    around_test(
        || library(status),
        |recorder| {
            let ended = flag.is_none_or(is_set);
            if ended {
                recorder.ended(asked.handles[0], status_at(&asked, status, 0));
            }
            ended
        },
    )
}

/// A wait for all requests, or a test of them, which has a flag.
pub(crate) fn all(
    count: c_int,
    requests: *mut c_void,
    flag: Option<*mut c_void>,
    given: *mut c_void,
    library: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    if !is_on() {
        return library(given);
    }
    let (asked, mut room) = (asked(count, requests), Vec::new());
    let statuses = statuses(&asked, given, &mut room);
    around_test(
        || library(statuses),
        |recorder| {
            let ended = flag.is_none_or(is_set);
            if ended {
                for (at, handle) in asked.handles.iter().enumerate() {
                    recorder.ended(*handle, status_at(&asked, statuses, at));
                }
            }
            ended
        },
    )
}

/// A wait for one of several requests, or a test of them. `found` is the place of the number of the one that has
/// ended.
pub(crate) fn any(
    count: c_int,
    requests: *mut c_void,
    found: *mut c_void,
    flag: Option<*mut c_void>,
    status: *mut c_void,
    library: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    if !is_on() {
        return library(status);
    }
    let (asked, mut own) = (asked(count, requests), Status::default());
    let status = if asked.wild { status_or(&mut own, status) } else { status };
    around_test(
        || library(status),
        |recorder| {
            // SAFETY: the program's places for both numbers, which the MPI library has written.
            let index = unsafe { found.cast::<c_int>().read() };
            let ended = flag.is_none_or(is_set) && index != UNDEFINED;
            let handle = usize::try_from(index).ok().and_then(|index| asked.handles.get(index));
            if let (true, Some(handle)) = (ended, handle) {
                recorder.ended(*handle, status_at(&asked, status, 0));
            }
            ended
        },
    )
}

/// A wait for some of several requests, or a test of them.
pub(crate) fn some(
    count: c_int,
    requests: *mut c_void,
    found: *mut c_void,
    indices: *mut c_void,
    given: *mut c_void,
    library: impl FnOnce(*mut c_void) -> c_int,
) -> c_int {
    if !is_on() {
        return library(given);
    }
    let (asked, mut room) = (asked(count, requests), Vec::new());
    let statuses = statuses(&asked, given, &mut room);
    around_test(
        || library(statuses),
        |recorder| {
            // SAFETY: the program's place for the number, which the MPI library has written.
            let ended = unsafe { found.cast::<c_int>().read() };
            for at in 0..usize::try_from(ended).unwrap_or(0).min(asked.handles.len()) {
                // SAFETY: the program's array has room for the numbers of all requests.
                let index = unsafe { indices.cast::<c_int>().wrapping_add(at).read() };
                if let Some(handle) = usize::try_from(index).ok().and_then(|index| asked.handles.get(index)) {
                    recorder.ended(*handle, status_at(&asked, statuses, at));
                }
            }
            ended > 0
        },
    )
}

fn is_set(flag: *mut c_void) -> bool {
    // SAFETY: the program's place for a truth value, which the MPI library has written.
    unsafe { flag.cast::<c_int>().read() != 0 }
}
