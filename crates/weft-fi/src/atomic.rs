//! Atomics (fi_atomic(3)): not offered yet.
//!
//! Place in the data flow: every slot is filled, since clients call them without looking. The queries say that no
//! operation is supported on any type, which is what clients probe before they use one.

use weft_fi_sys as sys;

use crate::errno::Errno;
use crate::noop;

/// The operations.
pub(crate) static OPS: sys::fi_ops_atomic = sys::fi_ops_atomic {
    writevalid: Some(not_valid),
    readwritevalid: Some(not_valid),
    compwritevalid: Some(not_valid),
    ..noop::ATOMIC
};

/// No atomic operation is supported.
unsafe extern "C" fn not_valid(
    _ep: *mut sys::fid_ep,
    _datatype: sys::fi_datatype,
    _op: sys::fi_op,
    count: *mut usize,
) -> libc::c_int {
    // SAFETY: null, or the client's place for the count.
    if let Some(count) = unsafe { count.as_mut() } {
        *count = 0;
    }
    Errno::OPNOTSUPP.code()
}
