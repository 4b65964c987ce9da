//! The extension `weft_mr_cache` (`fi_open_ops`): the limits and counters of one endpoint's registration cache
//! (fi_weft(7), "EXTENSIONS").
//!
//! Place in the data flow: control calls on an enabled endpoint. The variables FI_WEFT_MR_CACHE* set the
//! initial limits. If the device demands no registration, there is no cache to limit.
//!
//! Later versions only append to the structures. A client passes the length of the part that it knows.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use weft_engine::mrcache;
use weft_fi_sys as sys;
use weft_nic::Device;

use super::Ep;
use crate::abi::errno::Errno;
use crate::abi::object;

/// The name of the extension.
pub(super) const NAME: &std::ffi::CStr = c"weft_mr_cache";

/// `struct weft_mr_cache_limits`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    on: u64,
    entries: u64,
    bytes: u64,
    stale_entries: u64,
    stale_bytes: u64,
}

impl From<mrcache::Limits> for Limits {
    fn from(limits: mrcache::Limits) -> Self {
        Self {
            on: u64::from(limits.on),
            entries: limits.entries as u64,
            bytes: limits.bytes,
            stale_entries: limits.stale_entries as u64,
            stale_bytes: limits.stale_bytes,
        }
    }
}

impl From<Limits> for mrcache::Limits {
    fn from(limits: Limits) -> Self {
        let count = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        Self {
            on: limits.on != 0,
            entries: count(limits.entries),
            bytes: limits.bytes,
            stale_entries: count(limits.stale_entries),
            stale_bytes: limits.stale_bytes,
        }
    }
}

/// `struct weft_mr_cache_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    hits: u64,
    misses: u64,
    refusals: u64,
    coalesced: u64,
    evictions: u64,
    unmapped: u64,
    unwatched: u64,
    entries: u64,
    bytes: u64,
    stale: u64,
    stale_bytes: u64,
}

impl From<mrcache::Counts> for Counts {
    fn from(counts: mrcache::Counts) -> Self {
        let mrcache::Counts {
            hits,
            misses,
            refusals,
            coalesced,
            evictions,
            unmapped,
            unwatched,
            entries,
            bytes,
            stale,
            stale_bytes,
        } = counts;
        Self { hits, misses, refusals, coalesced, evictions, unmapped, unwatched, entries, bytes, stale, stale_bytes }
    }
}

/// `struct weft_mr_cache_ops`.
#[repr(C)]
struct Ops {
    /// The size of this table in bytes.
    size: usize,
    set: unsafe extern "C" fn(*mut sys::fid_ep, *const Limits, usize) -> c_int,
    get: unsafe extern "C" fn(*mut sys::fid_ep, *mut Limits, usize) -> c_int,
    read: unsafe extern "C" fn(*mut sys::fid_ep, *mut Counts, usize) -> c_int,
}

/// The table, as `fi_open_ops` returns it.
pub(super) fn ops<D: Device>() -> *mut c_void {
    object::table(const { &Ops { size: size_of::<Ops>(), set: set::<D>, get: get::<D>, read: read::<D> } }).cast()
}

/// Sets new limits. Limits beyond `len` stay as they are.
unsafe extern "C" fn set<D: Device>(ep: *mut sys::fid_ep, limits: *const Limits, len: usize) -> c_int {
    object::guard("weft_mr_cache.set", || {
        let limits = NonNull::new(limits.cast_mut()).ok_or(Errno::INVAL)?;
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let mut state = ep.cell.control();
        let engine = state.engine.as_mut().ok_or(Errno::OPBADSTATE)?;
        let mut new = Limits::from(engine.mr_cache().ok_or(Errno::OPNOTSUPP)?.limits());
        let known = len.min(size_of::<Limits>());
        let to: *mut u8 = (&raw mut new).cast();
        // SAFETY: the client's structure has `len` bytes and `new` at least `known`. Any bytes are valid numbers.
        unsafe { std::ptr::copy_nonoverlapping(limits.as_ptr().cast::<u8>(), to, known) };
        engine.limit_mr_cache(new.into());
        Ok(0)
    })
}

/// Returns the current limits.
unsafe extern "C" fn get<D: Device>(ep: *mut sys::fid_ep, limits: *mut Limits, len: usize) -> c_int {
    object::guard("weft_mr_cache.get", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let mut state = ep.cell.control();
        let engine = state.engine.as_mut().ok_or(Errno::OPBADSTATE)?;
        let now = Limits::from(engine.mr_cache().ok_or(Errno::OPNOTSUPP)?.limits());
        // SAFETY: the client's place has `len` bytes.
        unsafe { object::give_known(&now, limits, len) }
    })
}

/// Returns the counters, which are zero if there is no cache.
unsafe extern "C" fn read<D: Device>(ep: *mut sys::fid_ep, counts: *mut Counts, len: usize) -> c_int {
    object::guard("weft_mr_cache.read", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let mut state = ep.cell.control();
        let engine = state.engine.as_mut().ok_or(Errno::OPBADSTATE)?;
        let now = engine.mr_cache().map(|cache| Counts::from(cache.counts())).unwrap_or_default();
        // SAFETY: the client's place has `len` bytes.
        unsafe { object::give_known(&now, counts, len) }
    })
}
