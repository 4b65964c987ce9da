//! The C entry points of data transfers: one table for messages, tagged messages, remote memory access and atomics.
//!
//! Place in the data flow: a client calls a slot of an endpoint's operation tables → a function of this table → one of
//! [`message`], [`rma`] and [`mod@atomic`], which builds the operation → [`Ep`], which starts it.
//!
//! Each row of the table names the C arguments, the translation of the client's memory, and the operation. There are
//! three shapes of arguments: one buffer (`fi_send`), a vector of buffers (`fi_sendv`), and a structure with flags
//! (`fi_sendmsg`). A function whose memory cannot be translated returns the negative error and starts nothing.
//!
//! Functions with a parameter `T` exist twice. Connectionless endpoints use the address that the client names
//! ([`Named`]). For an endpoint with one peer (FI_EP_MSG) every address means that peer ([`Peer`]). Receives
//! exist once, because they ignore the source by default.
//!
//! These functions are on the small-message path. They allocate nothing, do not check the class of the
//! endpoint, and have no unwind guard. A panic aborts the process, since unwinding does not leave an `extern
//! "C"` function.

pub(crate) mod recorded;

use std::ffi::c_void;

use weft_engine::PEER;
use weft_engine::amo::Form;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::args::{iovs, piece, recv_iovs, recv_piece};
use crate::abi::atomic::{self, NOTHING};
use crate::abi::message;
use crate::abi::rma::{self, Target};
use crate::endpoint::{Ep, ep};

/// The destination of an operation, given the address that the client names.
pub(crate) trait Destination {
    fn of(named: Addr) -> Addr;
}

/// Connectionless endpoints: the address that the client names.
pub(crate) enum Named {}

impl Destination for Named {
    #[inline(always)]
    fn of(named: Addr) -> Addr {
        named
    }
}

/// Endpoints with one peer: that peer.
pub(crate) enum Peer {}

impl Destination for Peer {
    #[inline(always)]
    fn of(_named: Addr) -> Addr {
        PEER
    }
}

/// Declares entry points: `name(ep, arguments) iov = translation => operation`.
macro_rules! entry_points {
    ($(
        $name:ident $(<$dest:ident>)? ($ep:ident, $($arg:ident: $ty:ty),*)
            $memory:pat = $translation:expr => $start:expr;
    )*) => {
        $(
            unsafe extern "C" fn $name<D: Device $(, $dest: Destination)?>(
                fid: *mut sys::fid_ep, $($arg: $ty),*
            ) -> isize {
                // SAFETY: the client's endpoint.
                let $ep = unsafe { ep::<D>(fid) };
                // SAFETY: the client's buffers, vectors and structures, which have the lengths that it names. The
                // buffers are left to the operation until it completes. Those of injects are copied at once.
                match unsafe { $translation } {
                    Ok($memory) => $start,
                    Err(errno) => errno.size(),
                }
            }
        )*
    };
}

type Addr = sys::fi_addr_t;
type Buf = *const c_void;
type MutBuf = *mut c_void;
type Desc = *mut c_void;
type Descs = *mut *mut c_void;
type Iovs = *const libc::iovec;
type Iocs = *const sys::fi_ioc;
type MutIocs = *mut sys::fi_ioc;
type Datatype = sys::fi_datatype;
type Op = sys::fi_op;
type Context = *mut c_void;

// fi_msg(3)
entry_points! {
    send<T>(ep, buf: Buf, len: usize, _desc: Desc, dest: Addr, context: Context)
        iov = piece(buf, len) => message::send(ep, &[iov], T::of(dest), None, None, context);
    senddata<T>(ep, buf: Buf, len: usize, _desc: Desc, data: u64, dest: Addr, context: Context)
        iov = piece(buf, len) => message::send(ep, &[iov], T::of(dest), None, Some(data), context);
    sendv<T>(ep, iov: Iovs, _desc: Descs, count: usize, dest: Addr, context: Context)
        iov = iovs(iov, count, ep.limits().iov) => message::send(ep, &iov, T::of(dest), None, None, context);
    sendmsg<T>(ep, msg: *const sys::fi_msg, flags: u64)
        result = message::send_described::<D, T, _>(ep, msg, flags) => result;
    inject<T>(ep, buf: Buf, len: usize, dest: Addr)
        iov = piece(buf, len) => message::inject(ep, &[iov], T::of(dest), None, None);
    injectdata<T>(ep, buf: Buf, len: usize, data: u64, dest: Addr)
        iov = piece(buf, len) => message::inject(ep, &[iov], T::of(dest), None, Some(data));
    recv(ep, buf: MutBuf, len: usize, _desc: Desc, src: Addr, context: Context)
        iov = recv_piece(buf, len) => message::recv(ep, &[iov], src, context);
    recvv(ep, iov: Iovs, _desc: Descs, count: usize, src: Addr, context: Context)
        iov = recv_iovs(iov, count, ep.limits().iov) => message::recv(ep, &iov, src, context);
    recvmsg(ep, msg: *const sys::fi_msg, flags: u64)
        result = message::recv_described(ep, msg, flags) => result;
}

// fi_tagged(3)
entry_points! {
    tsend<T>(ep, buf: Buf, len: usize, _desc: Desc, dest: Addr, tag: u64, context: Context)
        iov = piece(buf, len) => message::send(ep, &[iov], T::of(dest), Some(tag), None, context);
    tsenddata<T>(ep, buf: Buf, len: usize, _desc: Desc, data: u64, dest: Addr, tag: u64, context: Context)
        iov = piece(buf, len) => message::send(ep, &[iov], T::of(dest), Some(tag), Some(data), context);
    tsendv<T>(ep, iov: Iovs, _desc: Descs, count: usize, dest: Addr, tag: u64, context: Context)
        iov = iovs(iov, count, ep.limits().iov) => message::send(ep, &iov, T::of(dest), Some(tag), None, context);
    tsendmsg<T>(ep, msg: *const sys::fi_msg_tagged, flags: u64)
        result = message::send_described::<D, T, _>(ep, msg, flags) => result;
    tinject<T>(ep, buf: Buf, len: usize, dest: Addr, tag: u64)
        iov = piece(buf, len) => message::inject(ep, &[iov], T::of(dest), Some(tag), None);
    tinjectdata<T>(ep, buf: Buf, len: usize, data: u64, dest: Addr, tag: u64)
        iov = piece(buf, len) => message::inject(ep, &[iov], T::of(dest), Some(tag), Some(data));
    trecv(ep, buf: MutBuf, len: usize, _desc: Desc, src: Addr, tag: u64, ignore: u64, context: Context)
        iov = recv_piece(buf, len) => message::recv_tagged(ep, &[iov], src, tag, ignore, context);
    trecvv(ep, iov: Iovs, _desc: Descs, count: usize, src: Addr, tag: u64, ignore: u64, context: Context)
        iov = recv_iovs(iov, count, ep.limits().iov) => message::recv_tagged(ep, &iov, src, tag, ignore, context);
    trecvmsg(ep, msg: *const sys::fi_msg_tagged, flags: u64)
        result = message::recv_described(ep, msg, flags) => result;
}

// fi_rma(3)
entry_points! {
    read<T>(ep, buf: MutBuf, len: usize, _desc: Desc, dest: Addr, addr: u64, key: u64, context: Context)
        iov = piece(buf, len) => rma::read(ep, &[iov], Target { dest: T::of(dest), addr, key }, context);
    readv<T>(ep, iov: Iovs, _desc: Descs, count: usize, dest: Addr, addr: u64, key: u64, context: Context)
        iov = iovs(iov, count, ep.limits().iov)
            => rma::read(ep, &iov, Target { dest: T::of(dest), addr, key }, context);
    readmsg<T>(ep, msg: *const sys::fi_msg_rma, flags: u64)
        result = rma::described::<D, T>(ep, msg, flags, Ep::start_read) => result;
    write<T>(ep, buf: Buf, len: usize, _desc: Desc, dest: Addr, addr: u64, key: u64, context: Context)
        iov = piece(buf, len) => rma::write(ep, &[iov], Target { dest: T::of(dest), addr, key }, None, context);
    writev<T>(ep, iov: Iovs, _desc: Descs, count: usize, dest: Addr, addr: u64, key: u64, context: Context)
        iov = iovs(iov, count, ep.limits().iov)
            => rma::write(ep, &iov, Target { dest: T::of(dest), addr, key }, None, context);
    writedata<T>(ep, buf: Buf, len: usize, _desc: Desc, data: u64, dest: Addr, addr: u64, key: u64, context: Context)
        iov = piece(buf, len) => rma::write(ep, &[iov], Target { dest: T::of(dest), addr, key }, Some(data), context);
    writemsg<T>(ep, msg: *const sys::fi_msg_rma, flags: u64)
        result = rma::described::<D, T>(ep, msg, flags, Ep::start_write) => result;
    inject_write<T>(ep, buf: Buf, len: usize, dest: Addr, addr: u64, key: u64)
        iov = piece(buf, len) => rma::inject(ep, &[iov], Target { dest: T::of(dest), addr, key }, None);
    inject_writedata<T>(ep, buf: Buf, len: usize, data: u64, dest: Addr, addr: u64, key: u64)
        iov = piece(buf, len) => rma::inject(ep, &[iov], Target { dest: T::of(dest), addr, key }, Some(data));
}

// fi_atomic(3)
entry_points! {
    atomic<T>(
        ep, buf: Buf, count: usize, _desc: Desc, dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, iov) = atomic::operand(ep, ty, op, buf, count)
            => atomic::start(ep, amo, [&[iov], &[], &[]], Target { dest: T::of(dest), addr, key }, context);
    atomicv<T>(
        ep, iov: Iocs, _desc: Descs, count: usize,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, local) = atomic::vectors(ep, Form::Base, ty, op, [(iov, count), NOTHING, NOTHING])
            => atomic::start(ep, amo, local.pieces(), Target { dest: T::of(dest), addr, key }, context);
    atomicmsg<T>(ep, msg: *const sys::fi_msg_atomic, flags: u64)
        result = atomic::described::<D, T>(ep, Form::Base, msg, [NOTHING, NOTHING], flags) => result;
    inject_atomic<T>(ep, buf: Buf, count: usize, dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op)
        (amo, iov) = atomic::operand(ep, ty, op, buf, count)
            => atomic::inject(ep, amo, iov, Target { dest: T::of(dest), addr, key });
    fetch_atomic<T>(
        ep, buf: Buf, count: usize, _desc: Desc, result: MutBuf, _result_desc: Desc,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, iov, result) = atomic::fetch(ep, ty, op, buf, result, count)
            => atomic::start(ep, amo, [&[iov], &[], &[result]], Target { dest: T::of(dest), addr, key }, context);
    fetch_atomicv<T>(
        ep, iov: Iocs, _desc: Descs, count: usize, result: MutIocs, _result_desc: Descs, result_count: usize,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, local) = atomic::vectors(ep, Form::Fetch, ty, op, [(iov, count), NOTHING, (result, result_count)])
            => atomic::start(ep, amo, local.pieces(), Target { dest: T::of(dest), addr, key }, context);
    fetch_atomicmsg<T>(
        ep, msg: *const sys::fi_msg_atomic, result: MutIocs, _result_desc: Descs, result_count: usize, flags: u64
    )
        result = atomic::described::<D, T>(ep, Form::Fetch, msg, [NOTHING, (result, result_count)], flags) => result;
    compare_atomic<T>(
        ep, buf: Buf, count: usize, _desc: Desc, compare: Buf, _compare_desc: Desc, result: MutBuf, _result_desc: Desc,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, iov, compare, result) = atomic::compare(ep, ty, op, buf, compare, result, count)
            => atomic::start(
                ep, amo, [&[iov], &[compare], &[result]], Target { dest: T::of(dest), addr, key }, context
            );
    compare_atomicv<T>(
        ep, iov: Iocs, _desc: Descs, count: usize, compare: Iocs, _compare_desc: Descs, compare_count: usize,
        result: MutIocs, _result_desc: Descs, result_count: usize,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        (amo, local) = atomic::vectors(
            ep, Form::Compare, ty, op, [(iov, count), (compare, compare_count), (result, result_count)]
        ) => atomic::start(ep, amo, local.pieces(), Target { dest: T::of(dest), addr, key }, context);
    compare_atomicmsg<T>(
        ep, msg: *const sys::fi_msg_atomic, compare: Iocs, _compare_desc: Descs, compare_count: usize,
        result: MutIocs, _result_desc: Descs, result_count: usize, flags: u64
    )
        result = atomic::described::<D, T>(
            ep, Form::Compare, msg, [(compare, compare_count), (result, result_count)], flags
        ) => result;
}

/// The operations on messages.
pub(crate) const fn msg_ops<D: Device, T: Destination>() -> sys::fi_ops_msg {
    sys::fi_ops_msg {
        size: size_of::<sys::fi_ops_msg>(),
        recv: Some(recv::<D>),
        recvv: Some(recvv::<D>),
        recvmsg: Some(recvmsg::<D>),
        send: Some(send::<D, T>),
        sendv: Some(sendv::<D, T>),
        sendmsg: Some(sendmsg::<D, T>),
        inject: Some(inject::<D, T>),
        senddata: Some(senddata::<D, T>),
        injectdata: Some(injectdata::<D, T>),
    }
}

/// The operations on tagged messages.
pub(crate) const fn tagged_ops<D: Device, T: Destination>() -> sys::fi_ops_tagged {
    sys::fi_ops_tagged {
        size: size_of::<sys::fi_ops_tagged>(),
        recv: Some(trecv::<D>),
        recvv: Some(trecvv::<D>),
        recvmsg: Some(trecvmsg::<D>),
        send: Some(tsend::<D, T>),
        sendv: Some(tsendv::<D, T>),
        sendmsg: Some(tsendmsg::<D, T>),
        inject: Some(tinject::<D, T>),
        senddata: Some(tsenddata::<D, T>),
        injectdata: Some(tinjectdata::<D, T>),
    }
}

/// The operations on remote memory.
pub(crate) const fn rma_ops<D: Device, T: Destination>() -> sys::fi_ops_rma {
    sys::fi_ops_rma {
        size: size_of::<sys::fi_ops_rma>(),
        read: Some(read::<D, T>),
        readv: Some(readv::<D, T>),
        readmsg: Some(readmsg::<D, T>),
        write: Some(write::<D, T>),
        writev: Some(writev::<D, T>),
        writemsg: Some(writemsg::<D, T>),
        inject: Some(inject_write::<D, T>),
        writedata: Some(writedata::<D, T>),
        injectdata: Some(inject_writedata::<D, T>),
    }
}

/// The atomic operations, and the queries for them.
pub(crate) const fn atomic_ops<D: Device, T: Destination>() -> sys::fi_ops_atomic {
    sys::fi_ops_atomic {
        size: size_of::<sys::fi_ops_atomic>(),
        write: Some(atomic::<D, T>),
        writev: Some(atomicv::<D, T>),
        writemsg: Some(atomicmsg::<D, T>),
        inject: Some(inject_atomic::<D, T>),
        readwrite: Some(fetch_atomic::<D, T>),
        readwritev: Some(fetch_atomicv::<D, T>),
        readwritemsg: Some(fetch_atomicmsg::<D, T>),
        compwrite: Some(compare_atomic::<D, T>),
        compwritev: Some(compare_atomicv::<D, T>),
        compwritemsg: Some(compare_atomicmsg::<D, T>),
        writevalid: Some(atomic::writevalid::<D>),
        readwritevalid: Some(atomic::readwritevalid::<D>),
        compwritevalid: Some(atomic::compwritevalid::<D>),
    }
}
