//! `gex_System_…`: the job, and its ranks by host.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_gex::gate::Threads;

use crate::handles::{ClientHandle, export, job, put};

/// The most threads of a client.
const MAX_THREADS: u64 = 256;

static VERBOSE: AtomicBool = AtomicBool::new(false);
/// The ranks of the host, as clients see them.
static RANKS: OnceLock<Box<[u32]>> = OnceLock::new();

/// Whether errors are reported on standard error.
pub(crate) fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

fn ranks() -> &'static [u32] {
    RANKS.get_or_init(|| (0..job().ranks()).collect())
}

/// Writes the ranks of the host.
///
/// # Safety
/// The pointers are null or writable.
unsafe fn write_ranks(info: *mut *const u32, count: *mut u32, index: *mut u32) {
    // SAFETY: the caller's contract.
    unsafe { put(info, ranks().as_ptr()) };
    // SAFETY: as above.
    unsafe { put(count, job().ranks()) };
    // SAFETY: as above.
    unsafe { put(index, job().rank()) };
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
        unsafe { write_ranks(info, count, index) };
    }

    fn gex_System_QueryHostInfo(info: *mut *const u32, count: *mut u32, index: *mut u32) {
        // SAFETY: the client's pointers are null or writable.
        unsafe { write_ranks(info, count, index) };
    }

    fn gex_System_QueryMyPosition(nbrhds: *mut u32, nbrhd: *mut u32, hosts: *mut u32, host: *mut u32) {
        for (to, value) in [(nbrhds, 1), (nbrhd, 0), (hosts, 1), (host, 0)] {
            // SAFETY: the client's pointers are null or writable.
            unsafe { put(to, value) };
        }
    }

    fn gex_System_QueryMaxThreads() -> u64 {
        if job().threads() == Threads::One { 1 } else { MAX_THREADS }
    }

    fn gex_System_QueryHiddenAMConcurrencyLevel() -> c_int {
        0
    }

    fn gex_System_QueryProgressThreads(_client: ClientHandle, count: *mut c_uint, info: *mut *const c_void, _flags: u32) -> c_int {
        // SAFETY: the client's pointers are null or writable.
        unsafe { put(count, 0) };
        // SAFETY: as above.
        unsafe { put(info, std::ptr::null()) };
        0
    }

    fn gex_System_GetVerboseErrors() -> c_int {
        c_int::from(is_verbose())
    }

    fn gex_System_SetVerboseErrors(enable: c_int) {
        VERBOSE.store(enable != 0, Ordering::Relaxed);
    }
}
