//! The completion calls of MPI, for libraries that do not poll generalized requests (Open MPI), and probes.
//!
//! Place in the data flow: each function first makes progress, or waits for this library's requests, and then calls the
//! MPI library, which finds them complete. In libraries that poll themselves (MPICH, Intel MPI) and in programs without
//! such requests, the call goes on at once. No library polls persistent collectives ([`crate::persistent`]).
//!
//! Probes first let the MPI library take what has arrived with a collective ([`Runtime::take_arrived`]).

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::exports::export;
use crate::mpi::{SUCCESS, pmpi};
use crate::record::ends;
use crate::run::{Op, Runtime, runtime};

/// The runtime, if there are requests of this library that the MPI library does not poll.
fn polling() -> Option<&'static Runtime> {
    runtime().filter(|runtime| runtime.requests.load(Ordering::Acquire) > 0)
}

/// This library's operations among the program's requests.
fn operations(runtime: &Runtime, count: c_int, array: *mut c_void) -> Vec<Arc<Op>> {
    let state = runtime.state.lock();
    let places = 0..usize::try_from(count).unwrap_or(0);
    let handle = |place| {
        // SAFETY: the program passes an array of `count` requests.
        unsafe { runtime.pmpi.mpi.read(array, place) }
    };
    places.filter_map(|place| state.requests.get(&handle(place)).cloned()).collect()
}

/// Waits for this library's requests among those of the program.
fn wait_for_all(count: c_int, array: *mut c_void) {
    let Some(runtime) = polling() else { return };
    for op in operations(runtime, count, array) {
        runtime.wait(|| op.is_complete());
    }
}

/// Makes progress, in every library: MPI_Request_get_status of MPICH 4.0 does not poll.
fn make_progress() {
    if let Some(runtime) = runtime() {
        runtime.progress();
    }
}

/// Repeats `test` until it returns an error or finds something complete, if the array has requests of this library.
/// `None`: it has none.
fn repeat(count: c_int, array: *mut c_void, mut test: impl FnMut() -> (c_int, bool)) -> Option<c_int> {
    let runtime = polling()?;
    if operations(runtime, count, array).is_empty() {
        return None;
    }
    let mut result = SUCCESS;
    runtime.wait(|| {
        let (code, found) = test();
        result = code;
        code != SUCCESS || found
    });
    Some(result)
}

/// The result of a completion call for these requests. A persistent collective among them may have failed.
fn ended(count: c_int, array: *mut c_void, code: c_int) -> c_int {
    let Some(runtime) = runtime() else { return code };
    let places = 0..usize::try_from(count).unwrap_or(0);
    let handles = places.map(|place| {
        // SAFETY: the program passes an array of `count` requests.
        unsafe { runtime.pmpi.mpi.read(array, place) }
    });
    runtime.with_failures(code, handles)
}

fn test_any(count: c_int, requests: *mut c_void, index: *mut c_void, flag: *mut c_void, status: *mut c_void) -> c_int {
    pmpi!(
        "PMPI_Testany",
        count => c_int,
        requests => *mut c_void,
        index => *mut c_void,
        flag => *mut c_void,
        status => *mut c_void,
    )
}

/// Calls a function of the MPI library for some of several requests.
macro_rules! some {
    ($name:literal $count:ident $requests:ident $found:ident $indices:ident $statuses:ident) => {
        pmpi!(
            $name,
            $count => c_int,
            $requests => *mut c_void,
            $found => *mut c_void,
            $indices => *mut c_void,
            $statuses => *mut c_void,
        )
    };
}

export! {
    [c_int] MPI_Wait(request: pointer, status: pointer)
    |_library| ended(1, request, ends::one(request, None, status, |status| {
        wait_for_all(1, request);
        pmpi!("PMPI_Wait", request => *mut c_void, status => *mut c_void)
    }))
}
export! {
    [c_int] MPI_Waitall(count: int, requests: pointer, statuses: pointer)
    |_library| ended(count, requests, ends::all(count, requests, None, statuses, |statuses| {
        wait_for_all(count, requests);
        pmpi!("PMPI_Waitall", count => c_int, requests => *mut c_void, statuses => *mut c_void)
    }))
}
export! {
    [c_int] MPI_Waitany(count: int, requests: pointer, index: pointer, status: pointer)
    |_library| ended(count, requests, ends::any(count, requests, index, None, status, |status| {
        let test = || {
            let mut flag: c_int = 0;
            let code = test_any(count, requests, index, (&raw mut flag).cast(), status);
            (code, flag != 0)
        };
        repeat(count, requests, test).unwrap_or_else(|| pmpi!(
            "PMPI_Waitany",
            count => c_int,
            requests => *mut c_void,
            index => *mut c_void,
            status => *mut c_void,
        ))
    }))
}
export! {
    [c_int] MPI_Waitsome(count: int, requests: pointer, found: pointer, indices: pointer, statuses: pointer)
    |_library| ended(count, requests, ends::some(count, requests, found, indices, statuses, |statuses| {
        let test = || {
            let code = some!("PMPI_Testsome" count requests found indices statuses);
            // SAFETY: the program's place for the number.
            let found = unsafe { found.cast::<c_int>().read() };
            (code, found != 0)
        };
        let wait = || some!("PMPI_Waitsome" count requests found indices statuses);
        repeat(count, requests, test).unwrap_or_else(wait)
    }))
}
export! {
    [c_int] MPI_Test(request: pointer, flag: pointer, status: pointer)
    |_library| ended(1, request, ends::one(request, Some(flag), status, |status| {
        make_progress();
        pmpi!("PMPI_Test", request => *mut c_void, flag => *mut c_void, status => *mut c_void)
    }))
}
export! {
    [c_int] MPI_Testall(count: int, requests: pointer, flag: pointer, statuses: pointer)
    |_library| ended(count, requests, ends::all(count, requests, Some(flag), statuses, |statuses| {
        make_progress();
        pmpi!(
            "PMPI_Testall",
            count => c_int,
            requests => *mut c_void,
            flag => *mut c_void,
            statuses => *mut c_void,
        )
    }))
}
export! {
    [c_int] MPI_Testany(count: int, requests: pointer, index: pointer, flag: pointer, status: pointer)
    |_library| ended(count, requests, ends::any(count, requests, index, Some(flag), status, |status| {
        make_progress();
        test_any(count, requests, index, flag, status)
    }))
}
export! {
    [c_int] MPI_Testsome(count: int, requests: pointer, found: pointer, indices: pointer, statuses: pointer)
    |_library| ended(count, requests, ends::some(count, requests, found, indices, statuses, |statuses| {
        make_progress();
        some!("PMPI_Testsome" count requests found indices statuses)
    }))
}
export! {
    [c_int] MPI_Request_get_status(request: handle, flag: pointer, status: pointer)
    |library| { make_progress(); library() }
}

/// Lets a probe find what was sent before a collective that has ended.
fn take_arrived() {
    if let Some(runtime) = runtime() {
        runtime.take_arrived();
    }
}

export! {
    [c_int] MPI_Iprobe(source: int, tag: int, comm: handle, flag: pointer, status: pointer)
    |library| { take_arrived(); library() }
}
export! {
    [c_int] MPI_Improbe(source: int, tag: int, comm: handle, flag: pointer, message: pointer, status: pointer)
    |library| { take_arrived(); library() }
}
export! {
    [c_int] MPI_Win_test(window: handle, flag: pointer)
    |library| { take_arrived(); library() }
}
