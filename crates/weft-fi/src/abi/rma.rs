//! Remote memory access (fi_rma(3)): the C functions; the engine does the rest.
//!
//! Place in the data flow: `fi_write` → [`Ep::start_write`] → `Engine::write`; `fi_read` → [`Ep::start_read`] →
//! `Engine::read`. See [`crate::abi::msg`] for what holds on this path.

use std::ffi::c_void;

use weft_engine::api::{OpFlags, RmaIov};
use weft_engine::mem::{Iov, total_len};
use weft_fi_sys as sys;

use crate::abi::args::{iovs, piece, remote_iovs};
use crate::abi::errno::Errno;
use crate::endpoint::flags::{self, Mode};
use crate::endpoint::{Ep, Rma, ep};

/// The operations.
pub(crate) static OPS: sys::fi_ops_rma = sys::fi_ops_rma {
    size: size_of::<sys::fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

/// Where at the target.
#[derive(Clone, Copy)]
struct Target {
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
}

impl Target {
    /// As many bytes from there as the local pieces have.
    #[inline]
    fn remote(self, iov: &[Iov]) -> RmaIov {
        RmaIov { addr: self.addr, len: total_len(iov) as u64, key: self.key }
    }
}

#[inline]
fn write_plain(ep: &Ep, iov: &[Iov], target: Target, data: Option<u64>, context: *mut c_void) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops.set(OpFlags::DATA, data.is_some());
    let remote = [target.remote(iov)];
    let data = data.unwrap_or(0);
    ep.start_write(&Rma { iov, dest: target.dest, remote: &remote, data, context, mode, entry: ep.tx_entry(mode) })
}

#[inline]
fn inject_plain(ep: &Ep, iov: &[Iov], target: Target, data: Option<u64>) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops |= OpFlags::INJECT;
    mode.ops.set(OpFlags::DATA, data.is_some());
    let remote = [target.remote(iov)];
    let data = data.unwrap_or(0);
    ep.start_write(&Rma { iov, dest: target.dest, remote: &remote, data, context: ep.context(), mode, entry: false })
}

#[inline]
fn read_plain(ep: &Ep, iov: &[Iov], target: Target, context: *mut c_void) -> isize {
    let mode = ep.tx_mode();
    let remote = [target.remote(iov)];
    ep.start_read(&Rma { iov, dest: target.dest, remote: &remote, data: 0, context, mode, entry: ep.tx_entry(mode) })
}

/// `fi_readmsg` and `fi_writemsg` up to the call into the endpoint.
///
/// # Safety
/// `msg` is the client's descriptor, whose vectors and buffers are as fi_rma(3) says.
unsafe fn with_msg(ep: &Ep, msg: *const sys::fi_msg_rma, flags: u64, start: fn(&Ep, &Rma<'_>) -> isize) -> isize {
    // SAFETY: null, or the client's descriptor.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Errno::INVAL.size() };
    // SAFETY: the caller's promise.
    match unsafe { parse_msg(ep, msg, flags) } {
        Ok((mode, iov, remote)) => start(
            ep,
            &Rma {
                iov: &iov,
                dest: msg.addr,
                remote: &remote,
                data: msg.data,
                context: msg.context,
                mode,
                entry: ep.tx_entry(mode),
            },
        ),
        Err(errno) => errno.size(),
    }
}

type Parsed = (Mode, crate::abi::args::Pieces, crate::abi::args::RemotePieces);

/// Checks a descriptor.
///
/// # Safety
/// The vectors have the lengths that `msg` says, and the buffers are left to us until the completion.
unsafe fn parse_msg(ep: &Ep, msg: &sys::fi_msg_rma, flags: u64) -> Result<Parsed, Errno> {
    let mode = flags::transmit(flags)?;
    // SAFETY: the caller's promise.
    let iov = unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
    // SAFETY: the caller's promise.
    let remote = unsafe { remote_iovs(msg.rma_iov, msg.rma_iov_count, ep.limits().rma_iov) }?;
    Ok((mode, iov, remote))
}

unsafe extern "C" fn read(
    fid: *mut sys::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { piece(buf, len) } {
        Ok(iov) => read_plain(ep, &[iov], Target { dest, addr, key }, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn readv(
    fid: *mut sys::fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { iovs(iov, count, ep.limits().iov) } {
        Ok(iov) => read_plain(ep, &iov, Target { dest, addr, key }, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn readmsg(fid: *mut sys::fid_ep, msg: *const sys::fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's descriptor.
    unsafe { with_msg(ep, msg, flags, Ep::start_read) }
}

unsafe extern "C" fn write(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { piece(buf, len) } {
        Ok(iov) => write_plain(ep, &[iov], Target { dest, addr, key }, None, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn writev(
    fid: *mut sys::fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { iovs(iov, count, ep.limits().iov) } {
        Ok(iov) => write_plain(ep, &iov, Target { dest, addr, key }, None, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn writemsg(fid: *mut sys::fid_ep, msg: *const sys::fi_msg_rma, flags: u64) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's descriptor.
    unsafe { with_msg(ep, msg, flags, Ep::start_write) }
}

unsafe extern "C" fn inject(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, which the engine copies before it returns.
    match unsafe { piece(buf, len) } {
        Ok(iov) => inject_plain(ep, &[iov], Target { dest, addr, key }, None),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn writedata(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { piece(buf, len) } {
        Ok(iov) => write_plain(ep, &[iov], Target { dest, addr, key }, Some(data), context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn injectdata(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: sys::fi_addr_t,
    addr: u64,
    key: u64,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, which the engine copies before it returns.
    match unsafe { piece(buf, len) } {
        Ok(iov) => inject_plain(ep, &[iov], Target { dest, addr, key }, Some(data)),
        Err(errno) => errno.size(),
    }
}
