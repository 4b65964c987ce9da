//! Tagged messages (fi_tagged(3)): the C functions; the engine matches.
//!
//! Place in the data flow: `fi_tsend` → [`Ep::start_send`] → `Engine::send`; `fi_trecv` → [`Ep::post_recv`] →
//! `Engine::recv`. See [`crate::abi::msg`], of which this is the tagged twin, for what holds on this path.

use std::ffi::c_void;

use weft_engine::api::OpFlags;
use weft_engine::mem::Iov;
use weft_fi_sys as sys;

use crate::abi::args::{iovs, piece, recv_iovs, recv_piece};
use crate::abi::errno::Errno;
use crate::endpoint::flags;
use crate::endpoint::{Ep, Recv, Send, ep};

/// The operations.
pub(crate) const OPS: sys::fi_ops_tagged = sys::fi_ops_tagged {
    size: size_of::<sys::fi_ops_tagged>(),
    recv: Some(recv),
    recvv: Some(recvv),
    recvmsg: Some(recvmsg),
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
};

/// A plain send with the endpoint's default flags.
#[inline(always)]
fn send_plain(ep: &Ep, iov: &[Iov], dest: sys::fi_addr_t, tag: u64, data: Option<u64>, context: *mut c_void) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops |= OpFlags::TAGGED;
    mode.ops.set(OpFlags::DATA, data.is_some());
    ep.start_send(&Send { iov, dest, tag, data: data.unwrap_or(0), context, mode, entry: ep.tx_entry(mode) })
}

#[inline(always)]
fn inject_plain(ep: &Ep, iov: &[Iov], dest: sys::fi_addr_t, tag: u64, data: Option<u64>) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops |= OpFlags::TAGGED | OpFlags::INJECT;
    mode.ops.set(OpFlags::DATA, data.is_some());
    ep.start_send(&Send { iov, dest, tag, data: data.unwrap_or(0), context: ep.context(), mode, entry: false })
}

unsafe extern "C" fn send(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    dest: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { piece(buf, len) } {
        Ok(iov) => send_plain(ep, &[iov], dest, tag, None, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn senddata(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    _desc: *mut c_void,
    data: u64,
    dest: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { piece(buf, len) } {
        Ok(iov) => send_plain(ep, &[iov], dest, tag, Some(data), context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn sendv(
    fid: *mut sys::fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    dest: sys::fi_addr_t,
    tag: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { iovs(iov, count, ep.limits().iov) } {
        Ok(iov) => send_plain(ep, &iov, dest, tag, None, context),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn sendmsg(fid: *mut sys::fid_ep, msg: *const sys::fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    let mut mode = match flags::transmit(flags) {
        Ok(mode) => mode,
        Err(errno) => return errno.size(),
    };
    mode.ops |= OpFlags::TAGGED;
    // SAFETY: null, or the client's message descriptor.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Errno::INVAL.size() };
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) } {
        Ok(iov) => ep.start_send(&Send {
            iov: &iov,
            dest: msg.addr,
            tag: msg.tag,
            data: msg.data,
            context: msg.context,
            mode,
            entry: ep.tx_entry(mode),
        }),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn inject(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    dest: sys::fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, which the engine copies before it returns.
    match unsafe { piece(buf, len) } {
        Ok(iov) => inject_plain(ep, &[iov], dest, tag, None),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn injectdata(
    fid: *mut sys::fid_ep,
    buf: *const c_void,
    len: usize,
    data: u64,
    dest: sys::fi_addr_t,
    tag: u64,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    // SAFETY: the client's buffer, which the engine copies before it returns.
    match unsafe { piece(buf, len) } {
        Ok(iov) => inject_plain(ep, &[iov], dest, tag, Some(data)),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn recv(
    fid: *mut sys::fid_ep,
    buf: *mut c_void,
    len: usize,
    _desc: *mut c_void,
    src: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    let mut mode = ep.tagged_rx_mode();
    mode.ops |= OpFlags::TAGGED;
    // SAFETY: the client's buffer, left to us until the completion.
    match unsafe { recv_piece(buf, len) } {
        Ok(iov) => ep.post_recv(&Recv { iov: &[iov], src, tag, ignore, context, mode, entry: ep.rx_entry(mode) }),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn recvv(
    fid: *mut sys::fid_ep,
    iov: *const libc::iovec,
    _desc: *mut *mut c_void,
    count: usize,
    src: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    let mut mode = ep.tagged_rx_mode();
    mode.ops |= OpFlags::TAGGED;
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { recv_iovs(iov, count, ep.limits().iov) } {
        Ok(iov) => ep.post_recv(&Recv { iov: &iov, src, tag, ignore, context, mode, entry: ep.rx_entry(mode) }),
        Err(errno) => errno.size(),
    }
}

unsafe extern "C" fn recvmsg(fid: *mut sys::fid_ep, msg: *const sys::fi_msg_tagged, flags: u64) -> isize {
    // SAFETY: the client's endpoint.
    let ep = unsafe { ep(fid) };
    let mut mode = match flags::receive(flags) {
        Ok(mode) => mode,
        Err(errno) => return errno.size(),
    };
    mode.ops |= OpFlags::TAGGED;
    // SAFETY: null, or the client's message descriptor.
    let Some(msg) = (unsafe { msg.as_ref() }) else { return Errno::INVAL.size() };
    // What is thrown away or only looked at needs no buffer.
    let count = if mode.ops.intersects(OpFlags::PEEK | OpFlags::DISCARD) { 0 } else { msg.iov_count };
    // SAFETY: the client's vector and buffers, the latter left to us until the completion.
    match unsafe { recv_iovs(msg.msg_iov, count, ep.limits().iov) } {
        Ok(iov) => ep.post_recv(&Recv {
            iov: &iov,
            src: msg.addr,
            tag: msg.tag,
            ignore: msg.ignore,
            context: msg.context,
            mode,
            entry: ep.rx_entry(mode),
        }),
        Err(errno) => errno.size(),
    }
}
