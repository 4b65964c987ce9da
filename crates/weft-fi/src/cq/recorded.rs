//! Reads of a queue that is recorded (`FI_WEFT_RECORD`).
//!
//! Place in the data flow: the functions of such a queue take entries in the longest format and report them to
//! [`crate::record`]. They then write them in the client's format.
//!
//! Invariant: the queue's own format is [`Format::Tagged`].

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;

use weft_fi_sys as sys;
use weft_nic::Device;

use super::ring::{Entry, Format, ReadBuffer};
use super::{Cq, queue};
use crate::record;

/// Entries of one read, at most.
const MOST: usize = 64;

/// The functions of a queue whose endpoints are on devices of type `D`.
pub(super) const fn base<D: Device>() -> sys::fi_ops_cq {
    sys::fi_ops_cq {
        read: Some(read::<D>),
        readfrom: Some(readfrom::<D>),
        sread: Some(sread::<D>),
        sreadfrom: Some(sreadfrom::<D>),
        ..super::base::<D>()
    }
}

/// The client's buffers.
struct Buffers {
    out: *mut c_void,
    count: usize,
    src: *mut sys::fi_addr_t,
}

impl Cq {
    /// Reads entries by `read`, reports them, and writes them in the client's format.
    ///
    /// # Safety
    /// The buffers are the client's.
    unsafe fn read_recorded(
        &self,
        client: &Buffers,
        read: impl FnOnce(*mut c_void, usize, *mut sys::fi_addr_t) -> isize,
    ) -> isize {
        debug_assert!(self.format == Format::Tagged, "a recorded queue has all fields");
        record::entering();
        let mut taken = [const { MaybeUninit::<sys::fi_cq_tagged_entry>::uninit() }; MOST];
        let mut from = [const { MaybeUninit::<sys::fi_addr_t>::uninit() }; MOST];
        let result = read(taken.as_mut_ptr().cast(), client.count.min(MOST), from.as_mut_ptr().cast());
        let found = usize::try_from(result).unwrap_or(0);
        if found == 0 {
            record::has_read_nothing();
            return result;
        }
        // SAFETY: the caller's promise. There are at most as many entries as the client has room for.
        let mut buffer = unsafe { ReadBuffer::new(self.shown, client.out.cast(), found, client.src) };
        let entries = taken.iter().zip(from).take(found).map(|(taken, src)| {
            // SAFETY: the read has written this entry.
            let taken = unsafe { taken.assume_init_ref() };
            // SAFETY: the read has written the address of this entry.
            let src = unsafe { src.assume_init() };
            Entry {
                context: taken.op_context.addr(),
                flags: taken.flags,
                len: taken.len,
                buf: taken.buf.addr(),
                data: taken.data,
                tag: taken.tag,
                src,
                failed: false,
            }
        });
        record::has_read(entries.inspect(|entry| buffer.put(*entry)));
        result
    }
}

unsafe extern "C" fn read<D: Device>(cq: *mut sys::fid_cq, out: *mut c_void, count: usize) -> isize {
    // SAFETY: the client's queue and buffer.
    unsafe { readfrom::<D>(cq, out, count, std::ptr::null_mut()) }
}

unsafe extern "C" fn readfrom<D: Device>(
    cq: *mut sys::fid_cq,
    out: *mut c_void,
    count: usize,
    src: *mut sys::fi_addr_t,
) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the buffers of `read_recorded` have room for the entries that it asks for.
    let read = |out, count, src| unsafe { cq.read_some::<D>(out, count, src) };
    // SAFETY: the client's buffers for `count` entries and addresses.
    unsafe { cq.read_recorded(&Buffers { out, count, src }, read) }
}

unsafe extern "C" fn sread<D: Device>(
    cq: *mut sys::fid_cq,
    out: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: the client's queue and buffer.
    unsafe { sreadfrom::<D>(cq, out, count, std::ptr::null_mut(), cond, timeout) }
}

unsafe extern "C" fn sreadfrom<D: Device>(
    cq: *mut sys::fid_cq,
    out: *mut c_void,
    count: usize,
    src: *mut sys::fi_addr_t,
    cond: *const c_void,
    timeout: c_int,
) -> isize {
    // SAFETY: a live queue of the client.
    let cq = unsafe { queue(cq) };
    // SAFETY: the buffers of `read_recorded` have room for the entries that it asks for.
    let read = |out, count, src| unsafe { cq.read_blocking::<D>(out, count, src, cond, timeout) };
    // SAFETY: the client's buffers for `count` entries and addresses.
    unsafe { cq.read_recorded(&Buffers { out, count, src }, read) }
}
