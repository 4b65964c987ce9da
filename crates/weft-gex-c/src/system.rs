//! `gex_System_…`: the job, and its ranks by host.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use weft_gex::attend::{self, Attendant};
use weft_gex::gate::Threads;
use weft_gex::invoke::FailureFn;
use weft_gex::places::Group;

use crate::handles::{ClientHandle, OK, export, job, put};

/// The most threads of a client.
const MAX_THREADS: u64 = 256;

/// `gex_ProgressThreadInfo_t`.
#[repr(C)]
struct ProgressThread {
    device_list: *const c_char,
    roles: c_uint,
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

// SAFETY: the pointers lead to constants, or are null.
unsafe impl Sync for ProgressThread {}

/// The thread receives.
const ROLE_RCV: c_uint = 1;
/// The thread that a client with GEX_FLAG_DEFER_THREADS runs.
static RCV_THREAD: ProgressThread = ProgressThread {
    device_list: c"shm,tcp".as_ptr(),
    roles: ROLE_RCV,
    function: serve_peers,
    argument: std::ptr::null_mut(),
};

/// Serves peers until the job ends.
extern "C" fn serve_peers(_: *mut c_void) -> *mut c_void {
    attend::run(job());
    std::ptr::null_mut()
}

static VERBOSE: AtomicBool = AtomicBool::new(false);
/// Whether errors are reported on standard error.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// Writes the ranks of a group. `gex_RankInfo_t` is one rank.
///
/// # Safety
/// The pointers are null or writable.
unsafe fn write_ranks(group: Group<'static>, info: *mut *const u32, count: *mut u32, index: *mut u32) {
    // SAFETY: the caller's contract.
    unsafe { put(info, group.members.as_ptr()) };
    let members = u32::try_from(group.members.len()).unwrap_or(u32::MAX);
    // SAFETY: as above.
    unsafe { put(count, members) };
    // SAFETY: as above.
    unsafe { put(index, group.index) };
}

export! {
    fn gex_System_QueryJobRank() -> u32 {
        job().rank()
    }

    fn gex_System_QueryJobSize() -> u32 {
        job().ranks()
    }

    fn gex_System_QueryNbrhdInfo(info: *mut *const u32, count: *mut u32, index: *mut u32) {
        // SAFETY: the client's pointers are null or writable.
        unsafe { write_ranks(job().places().nbrhd(), info, count, index) };
    }

    fn gex_System_QueryHostInfo(info: *mut *const u32, count: *mut u32, index: *mut u32) {
        // SAFETY: the client's pointers are null or writable.
        unsafe { write_ranks(job().places().host(), info, count, index) };
    }

    fn gex_System_QueryMyPosition(nbrhds: *mut u32, nbrhd: *mut u32, hosts: *mut u32, host: *mut u32) {
        let (near, here) = (job().places().nbrhd(), job().places().host());
        for (to, value) in [(nbrhds, near.count), (nbrhd, near.number), (hosts, here.count), (host, here.number)] {
            // SAFETY: the client's pointers are null or writable.
            unsafe { put(to, value) };
        }
    }

    fn gex_System_QueryMaxThreads() -> u64 {
        if job().threads() == Threads::One { 1 } else { MAX_THREADS }
    }

    fn gex_System_QueryHiddenAMConcurrencyLevel() -> c_int {
        c_int::from(job().attendant() != Attendant::None)
    }

    fn gex_System_QueryProgressThreads(_client: ClientHandle, count: *mut c_uint, info: *mut *const c_void, _flags: u32) -> c_int {
        let is_clients = job().attendant() == Attendant::Clients;
        let threads: *const ProgressThread = if is_clients { &RCV_THREAD } else { std::ptr::null() };
        // SAFETY: the client's pointers are null or writable.
        unsafe { put(count, c_uint::from(is_clients)) };
        // SAFETY: as above.
        unsafe { put(info, threads.cast()) };
        OK
    }

    fn gexw_System_SetFailureHandler(handler: Option<FailureFn>) {
        job().failures().set_handler(job(), handler);
    }

    fn gexw_System_HasFailed(rank: u32) -> c_int {
        c_int::from(job().failures().has_lost(rank))
    }

    fn gex_System_GetVerboseErrors() -> c_int {
        c_int::from(is_verbose())
    }

    fn gex_System_SetVerboseErrors(enable: c_int) {
        VERBOSE.store(enable != 0, Ordering::Relaxed);
    }
}
