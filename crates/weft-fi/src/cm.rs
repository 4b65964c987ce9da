//! Connection management (fi_cm(3)): the C functions of active endpoints. Connectionless endpoints have only
//! the functions for their names.
//!
//! Place in the data flow: after enable, `fi_getname` returns the address that peers insert into their
//! address vectors. Before enable, `fi_setname` chooses the local address. [`crate::endpoint::connection`]
//! implements the remaining calls; [`crate::pep`] has those of passive endpoints. Joins of
//! collective groups are in [`crate::collective::group`]; joins of multicast groups return -FI_ENOSYS.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object;
use crate::collective::group;
use crate::endpoint::Ep;

impl<D: Device> Ep<D> {
    /// The operations of a connected endpoint.
    pub(crate) const CONNECTED_CM_OPS: &sys::fi_ops_cm = &sys::fi_ops_cm {
        join: noop::CM.join,
        getpeer: Some(getpeer::<D>),
        connect: Some(connect::<D>),
        accept: Some(accept::<D>),
        shutdown: Some(shutdown::<D>),
        ..*Self::CM_OPS
    };

    /// The operations of a connectionless endpoint.
    pub(crate) const CM_OPS: &sys::fi_ops_cm = &sys::fi_ops_cm {
        setname: Some(setname::<D>),
        getname: Some(getname::<D>),
        join: Some(group::join::<D>),
        ..noop::CM
    };
}

unsafe extern "C" fn getname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getname", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        let name = ep.own_address()?;
        // SAFETY: the client's buffer and its length.
        unsafe { copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setname<D: Device>(fid: *mut sys::fid, addr: *mut c_void, len: usize) -> c_int {
    object::guard("fi_setname", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep<D>>(fid) }?;
        // SAFETY: the client's address of that length.
        let bytes = unsafe { bytes_of(addr, len) }?;
        ep.set_local_address(bytes).map(|()| 0)
    })
}

unsafe extern "C" fn getpeer<D: Device>(ep: *mut sys::fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getpeer", || {
        // SAFETY: an endpoint of the client.
        let name = unsafe { object::borrow::<Ep<D>>(ep) }?.peer_address()?;
        // SAFETY: the client's buffer and its length.
        unsafe { copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn connect<D: Device>(
    ep: *mut sys::fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    object::guard("fi_connect", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        let addr = NonNull::new(addr.cast_mut().cast::<u8>()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's address in the endpoint's format.
        let peer = unsafe { ep.format().decode_at(addr.as_ptr()) }?;
        // SAFETY: the client's data.
        ep.connect(&peer, unsafe { data(param, paramlen) }?).map(|()| 0)
    })
}

unsafe extern "C" fn accept<D: Device>(ep: *mut sys::fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    object::guard("fi_accept", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        // SAFETY: the client's data.
        ep.accept(unsafe { data(param, paramlen) }?).map(|()| 0)
    })
}

unsafe extern "C" fn shutdown<D: Device>(ep: *mut sys::fid_ep, flags: u64) -> c_int {
    object::guard("fi_shutdown", || {
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an endpoint of the client.
        unsafe { object::borrow::<Ep<D>>(ep) }?.disconnect().map(|()| 0)
    })
}

/// The client's data for its peer.
///
/// # Safety
/// `param` is null or valid for `len` bytes during the call.
pub(crate) unsafe fn data<'a>(param: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if len > weft_engine::MAX_CONN_DATA || (param.is_null() && len > 0) {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(param.cast(), len) } })
}

/// The bytes of a client's address.
///
/// # Safety
/// `addr` is null or valid for `len` bytes during the call.
pub(crate) unsafe fn bytes_of<'a>(addr: *mut c_void, len: usize) -> Result<&'a [u8], Errno> {
    let addr = NonNull::new(addr.cast::<u8>()).ok_or(Errno::INVAL)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(addr.as_ptr(), len) })
}

/// Copies as many bytes as fit and sets `len` to the full length. Returns -FI_ETOOSMALL if the bytes did not
/// all fit.
///
/// # Safety
/// `len` is null, or holds the number of bytes that may be written to `to`; `to` may be null if that is 0.
pub(crate) unsafe fn copy_out(bytes: &[u8], to: *mut c_void, len: *mut usize) -> Result<(), Errno> {
    let len = NonNull::new(len).ok_or(Errno::INVAL)?;
    // SAFETY: the caller's promise.
    let room = if to.is_null() { 0 } else { unsafe { len.read() } };
    // SAFETY: the caller's promise.
    unsafe { len.write(bytes.len()) };
    let fits = bytes.len().min(room);
    if fits > 0 {
        // SAFETY: `to` has `room >= fits` bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.cast(), fits) };
    }
    if fits < bytes.len() { Err(Errno::TOOSMALL) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_buffer_gets_the_length() {
        let mut len = 0;
        // SAFETY: the buffer is null, so nothing is written to it.
        assert_eq!(unsafe { copy_out(b"name", std::ptr::null_mut(), &raw mut len) }, Err(Errno::TOOSMALL));
        assert_eq!(len, 4);
        let mut buffer = [0_u8; 6];
        len = 6;
        // SAFETY: the buffer has six bytes.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), &raw mut len) }, Ok(()));
        assert_eq!((len, &buffer), (4, b"name\0\0"));
    }

    #[test]
    fn a_short_buffer_is_filled_up() {
        let mut buffer = [0_u8; 2];
        let mut len = 2;
        // SAFETY: the buffer has two bytes.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), &raw mut len) }, Err(Errno::TOOSMALL));
        assert_eq!((len, &buffer), (4, b"na"));
        // SAFETY: a null length is refused.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), std::ptr::null_mut()) }, Err(Errno::INVAL));
    }
}
