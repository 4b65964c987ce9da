//! Connection management (fi_cm(3)): the C functions of active endpoints, of which connectionless ones have
//! only those for their names.
//!
//! Place in the data flow: `fi_getname` after enable gives what peers insert into their address vectors;
//! `fi_setname` before enable chooses the local address. The rest is [`crate::endpoint::connection`]'s; what
//! passive endpoints have is in [`crate::pep`]. Joining answers -FI_ENOSYS.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::noop;
use crate::abi::object;
use crate::endpoint::Ep;

/// The operations of an endpoint with connections.
pub(crate) static CONNECTED: sys::fi_ops_cm = sys::fi_ops_cm {
    getpeer: Some(getpeer),
    connect: Some(connect),
    accept: Some(accept),
    shutdown: Some(shutdown),
    ..OPS
};

/// The operations of one without.
pub(crate) const OPS: sys::fi_ops_cm = sys::fi_ops_cm { setname: Some(setname), getname: Some(getname), ..noop::CM };

unsafe extern "C" fn getname(fid: *mut sys::fid, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getname", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        let name = ep.own_address()?;
        // SAFETY: the client's buffer and its length.
        unsafe { copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setname(fid: *mut sys::fid, addr: *mut c_void, len: usize) -> c_int {
    object::guard("fi_setname", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's address of that length.
        let bytes = unsafe { bytes_of(addr, len) }?;
        ep.set_local_address(bytes).map(|()| 0)
    })
}

unsafe extern "C" fn getpeer(ep: *mut sys::fid_ep, addr: *mut c_void, len: *mut usize) -> c_int {
    object::guard("fi_getpeer", || {
        // SAFETY: an endpoint of the client.
        let name = unsafe { object::borrow::<Ep>(ep) }?.peer_address()?;
        // SAFETY: the client's buffer and its length.
        unsafe { copy_out(&name, addr, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn connect(
    ep: *mut sys::fid_ep,
    addr: *const c_void,
    param: *const c_void,
    paramlen: usize,
) -> c_int {
    object::guard("fi_connect", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(ep) }?;
        let addr = NonNull::new(addr.cast_mut().cast::<u8>()).ok_or(Errno::INVAL)?;
        // SAFETY: the client's address in the endpoint's format.
        let peer = unsafe { ep.format().decode_at(addr.as_ptr()) }?;
        // SAFETY: the client's data.
        ep.connect(&peer, unsafe { data(param, paramlen) }?).map(|()| 0)
    })
}

unsafe extern "C" fn accept(ep: *mut sys::fid_ep, param: *const c_void, paramlen: usize) -> c_int {
    object::guard("fi_accept", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(ep) }?;
        // SAFETY: the client's data.
        ep.accept(unsafe { data(param, paramlen) }?).map(|()| 0)
    })
}

unsafe extern "C" fn shutdown(ep: *mut sys::fid_ep, flags: u64) -> c_int {
    object::guard("fi_shutdown", || {
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        // SAFETY: an endpoint of the client.
        unsafe { object::borrow::<Ep>(ep) }?.disconnect().map(|()| 0)
    })
}

/// What a client wants to tell its peer.
///
/// # Safety
/// `param` is null or valid for `len` bytes for as long as the call takes.
pub(crate) unsafe fn data<'a>(param: *const c_void, len: usize) -> Result<&'a [u8], Errno> {
    if len > weft_engine::MAX_CONN_DATA || (param.is_null() && len > 0) {
        return Err(Errno::INVAL);
    }
    // SAFETY: by the caller's promise.
    Ok(if len == 0 { &[] } else { unsafe { std::slice::from_raw_parts(param.cast(), len) } })
}

/// A client's address.
///
/// # Safety
/// `addr` is null or valid for `len` bytes during the call.
pub(crate) unsafe fn bytes_of<'a>(addr: *mut c_void, len: usize) -> Result<&'a [u8], Errno> {
    let addr = NonNull::new(addr.cast::<u8>()).ok_or(Errno::INVAL)?;
    // SAFETY: the caller's promise.
    Ok(unsafe { std::slice::from_raw_parts(addr.as_ptr(), len) })
}

/// Copies what fits and says how much there is: -FI_ETOOSMALL when not all of it fitted.
///
/// # Safety
/// `len` is null or says how many bytes `to` is writable for; `to` may be null if that is none.
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
    fn names_are_asked_for_in_two_steps() {
        let mut len = 0;
        // SAFETY: no buffer, no bytes.
        assert_eq!(unsafe { copy_out(b"name", std::ptr::null_mut(), &raw mut len) }, Err(Errno::TOOSMALL));
        assert_eq!(len, 4);
        let mut buffer = [0_u8; 6];
        len = 6;
        // SAFETY: six bytes.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), &raw mut len) }, Ok(()));
        assert_eq!((len, &buffer), (4, b"name\0\0"));
    }

    #[test]
    fn a_short_buffer_gets_what_fits() {
        let mut buffer = [0_u8; 2];
        let mut len = 2;
        // SAFETY: two bytes.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), &raw mut len) }, Err(Errno::TOOSMALL));
        assert_eq!((len, &buffer), (4, b"na"));
        // SAFETY: refused.
        assert_eq!(unsafe { copy_out(b"name", buffer.as_mut_ptr().cast(), std::ptr::null_mut()) }, Err(Errno::INVAL));
    }
}
