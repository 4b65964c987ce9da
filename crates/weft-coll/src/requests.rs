//! Requests of non-blocking collectives: generalized requests of the MPI library (MPI 4.1, 13.2).
//!
//! Place in the data flow: [`open`] makes the request, [`crate::run`] completes it. MPICH and Intel MPI offer requests
//! that the library polls in its completion calls (`MPIX_Grequest_start`). In Open MPI the completion calls pass
//! through [`crate::completions`], which polls.
//!
//! Each request owns one count of its operation's [`Arc`], which [`free`] gives back.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::mpi::{Abi, Handle, SUCCESS, Symbol, UNDEFINED, pmpi};
use crate::pmpi::Pmpi;
use crate::run::{Op, Runtime, runtime};

type Query = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Free = unsafe extern "C" fn(*mut c_void) -> c_int;
type Cancel = unsafe extern "C" fn(*mut c_void, c_int) -> c_int;
type Poll = unsafe extern "C" fn(*mut c_void, *mut c_void) -> c_int;
type Wait = unsafe extern "C" fn(c_int, *mut *mut c_void, f64, *mut c_void) -> c_int;

/// Whether the MPI library polls requests itself.
fn are_polled(runtime: &Runtime) -> bool {
    static START: Symbol = Symbol::new("MPIX_Grequest_start\0");
    runtime.pmpi.mpi.abi() == Abi::Mpich && START.find().is_some()
}

/// Makes the request of an operation.
pub(crate) fn open(runtime: &Runtime, op: &Arc<Op>) -> Option<Handle> {
    let extra = Arc::into_raw(Arc::clone(op)).cast_mut().cast::<c_void>();
    let mut request: Handle = 0;
    let polled = are_polled(runtime);
    let code = if polled {
        pmpi!(
            "MPIX_Grequest_start",
            query as Query => Query,
            free as Free => Free,
            cancel as Cancel => Cancel,
            poll as Poll => Poll,
            wait as Wait => Wait,
            extra => *mut c_void,
            &raw mut request => *mut Handle,
        )
    } else {
        pmpi!(
            "PMPI_Grequest_start",
            query as Query => Query,
            free as Free => Free,
            cancel as Cancel => Cancel,
            extra => *mut c_void,
            &raw mut request => *mut Handle,
        )
    };
    if code != SUCCESS {
        // SAFETY: the library has not taken the count.
        drop(unsafe { Arc::from_raw(extra.cast_const().cast::<Op>()) });
        return None;
    }
    let request = runtime.pmpi.mpi.handle(request);
    op.set_request(request);
    if !polled {
        runtime.requests.fetch_add(1, Ordering::AcqRel);
        runtime.state.lock().requests.insert(request, Arc::clone(op));
    }
    Some(request)
}

/// A request that stays incomplete. The question for its state lets the MPI library make all of its progress.
/// `MPI_Iprobe` does not: MPICH advances its own non-blocking collectives in one of 256 such calls.
pub(crate) struct Idle(Handle);

impl Idle {
    /// Makes the request.
    pub(crate) fn open(pmpi: &Pmpi) -> Option<Self> {
        let mut request: Handle = 0;
        let code = pmpi!(
            "PMPI_Grequest_start",
            query_idle as Query => Query,
            free_idle as Free => Free,
            cancel as Cancel => Cancel,
            std::ptr::null_mut() => *mut c_void,
            &raw mut request => *mut Handle,
        );
        (code == SUCCESS).then(|| Self(pmpi.mpi.handle(request)))
    }

    /// Lets the MPI library make progress.
    pub(crate) fn progress(&self, pmpi: &Pmpi) {
        let mut flag: c_int = 0;
        pmpi!(
            "PMPI_Request_get_status",
            self.0 => Handle,
            &raw mut flag => *mut c_int,
            pmpi.mpi.status_ignore() => usize,
        );
        debug_assert_eq!(flag, 0, "the request is complete after its last use only");
    }

    /// Ends the request.
    pub(crate) fn close(&self, pmpi: &Pmpi) {
        let mut request = self.0;
        pmpi!("PMPI_Grequest_complete", request => Handle);
        pmpi!("PMPI_Wait", &raw mut request => *mut Handle, pmpi.mpi.status_ignore() => usize);
    }
}

/// Nothing reads the status of [`Idle`].
unsafe extern "C" fn query_idle(_extra: *mut c_void, _status: *mut c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn free_idle(_extra: *mut c_void) -> c_int {
    SUCCESS
}

/// The operation of a request.
///
/// # Safety
/// `extra` is the pointer that [`open`] gave to the library, whose request has not been freed.
unsafe fn operation<'a>(extra: *mut c_void) -> &'a Op {
    // SAFETY: by the caller's promise.
    unsafe { &*extra.cast_const().cast::<Op>() }
}

/// Fills in the status of a complete request.
unsafe extern "C" fn query(extra: *mut c_void, status: *mut c_void) -> c_int {
    // SAFETY: the library passes the pointer of a request.
    let op = unsafe { operation(extra) };
    let Some(runtime) = runtime() else { return SUCCESS };
    let pmpi = &runtime.pmpi;
    if status.addr() != pmpi.mpi.status_ignore() && !status.is_null() {
        for field in pmpi.mpi.status_fields() {
            // SAFETY: a status has these fields.
            unsafe { status.wrapping_byte_add(field).cast::<c_int>().write(UNDEFINED) };
        }
        pmpi.clear_status(status);
    }
    op.code(runtime)
}

unsafe extern "C" fn free(extra: *mut c_void) -> c_int {
    // SAFETY: the library gives up the pointer of a request.
    let op = unsafe { Arc::from_raw(extra.cast_const().cast::<Op>()) };
    if let Some(runtime) = runtime() {
        let mut state = runtime.state.lock();
        let request = op.request();
        if state.requests.get(&request).is_some_and(|known| Arc::ptr_eq(known, &op)) {
            state.requests.remove(&request);
            runtime.requests.fetch_sub(1, Ordering::AcqRel);
        }
    }
    SUCCESS
}

/// Collectives cannot be cancelled.
unsafe extern "C" fn cancel(_extra: *mut c_void, _complete: c_int) -> c_int {
    SUCCESS
}

/// Makes progress, also that of the MPI library: MPICH's `MPI_Wait` calls this function alone until the request is
/// complete. `status` may be `MPI_STATUS_IGNORE`.
unsafe extern "C" fn poll(_extra: *mut c_void, _status: *mut c_void) -> c_int {
    if let Some(runtime) = runtime() {
        runtime.poll();
    }
    SUCCESS
}

/// Waits for all of `count` requests.
unsafe extern "C" fn wait(count: c_int, extras: *mut *mut c_void, _timeout: f64, _status: *mut c_void) -> c_int {
    let Some(runtime) = runtime() else { return SUCCESS };
    for index in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the library passes the pointers of that many requests.
        let extra = unsafe { extras.wrapping_add(index).read() };
        // SAFETY: as above.
        let op = unsafe { operation(extra) };
        runtime.wait(|| op.is_complete());
    }
    SUCCESS
}
