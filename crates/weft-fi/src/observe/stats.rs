//! `fi_open_ops(domain, "weft_stats", …)`: internal counters for clients (fi_weft(7), "EXTENSIONS").
//!
//! Place in the data flow: beside it. The counters are kept elsewhere, on slow paths.
//!
//! The structures only grow at their ends, and a client passes the length of [`Stats`] that it knows.

use std::ffi::{c_int, c_void};

use weft_fi_sys as sys;

use crate::abi::object;
use crate::domain::Domain;
use crate::sleep::poll;

/// The name of the extension.
pub(crate) const NAME: &std::ffi::CStr = c"weft_stats";

/// `struct weft_stats`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    /// The number of calls that waited at a lock for another thread.
    lock_waits: u64,
    /// The number of rounds in which the progress thread found work.
    thread_rounds: u64,
    /// The number of datagrams dropped before they left.
    datagrams_dropped: u64,
    /// The number of short sleeps in reads that do not block.
    naps: u64,
    /// The number of those that ended without an event.
    fruitless_naps: u64,
    /// The number of successive reads in vain of the queues and counters that the calling thread reads, in any domain:
    /// the least of them.
    idle_reads: u64,
}

/// `struct weft_stats_ops`.
#[repr(C)]
struct Ops {
    /// The size of this table in bytes.
    size: usize,
    read: unsafe extern "C" fn(*mut sys::fid_domain, *mut Stats, usize) -> c_int,
}

static OPS: Ops = Ops { size: size_of::<Ops>(), read };

/// The operation table, as `fi_open_ops` returns it.
pub(crate) fn ops() -> *mut c_void {
    object::table(&OPS).cast()
}

/// Copies the first `len` bytes of the counters. Bytes beyond the counters are set to zero.
unsafe extern "C" fn read(domain: *mut sys::fid_domain, out: *mut Stats, len: usize) -> c_int {
    object::guard("weft_stats", || {
        // SAFETY: a domain of the client.
        let domain = unsafe { object::borrow::<Domain>(domain) }?;
        let stats = Stats {
            lock_waits: domain.meter().waits(),
            thread_rounds: domain.auto_progress().map_or(0, |auto| auto.rounds()),
            datagrams_dropped: domain.dropped(),
            naps: domain.naps().all(),
            fruitless_naps: domain.naps().fruitless(),
            idle_reads: poll::idle_reads(),
        };
        // SAFETY: the client's buffer has `len` bytes.
        unsafe { object::give_known(&stats, out, len) }
    })
}
