//! Operations of endpoints with one peer (FI_EP_MSG): those of [`crate::abi::msg`] and its like, for which every
//! destination that a client names is that peer.
//!
//! Place in the data flow: an endpoint's tables are chosen when it is opened, so that the calls of
//! connectionless endpoints know nothing of this. Receives are the same: they ignore the source by default.

use std::ffi::c_void;

use weft_engine::PEER;
use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::{atomic, msg, rma, tagged};

/// Functions whose destination is an argument: what stands before and behind it, and the table whose slot of
/// that name they call.
macro_rules! by_argument {
    ($($name:ident = $table:path[$slot:ident]($($before:ident: $first:ty),*; $($after:ident: $then:ty),*);)*) => {
        $(
            unsafe extern "C" fn $name(
                ep: *mut sys::fid_ep,
                $($before: $first,)*
                _dest: sys::fi_addr_t,
                $($after: $then,)*
            ) -> isize {
                let Some(operation) = $table.$slot else { return Errno::NOSYS.size() };
                // SAFETY: the client's arguments, passed on.
                unsafe { operation(ep, $($before,)* PEER, $($after,)*) }
            }
        )*
    };
}

/// Functions whose destination is in a structure, and what follows that before the flags.
macro_rules! by_structure {
    ($($name:ident = $table:path[$slot:ident]($message:ident; $($after:ident: $then:ty),*);)*) => {
        $(
            unsafe extern "C" fn $name(
                ep: *mut sys::fid_ep,
                message: *const sys::$message,
                $($after: $then,)*
                flags: u64,
            ) -> isize {
                let Some(operation) = $table.$slot else { return Errno::NOSYS.size() };
                // SAFETY: null, or the client's message descriptor.
                let Some(message) = (unsafe { message.as_ref() }) else { return Errno::INVAL.size() };
                let message = sys::$message { addr: PEER, ..*message };
                // SAFETY: the client's arguments, passed on.
                unsafe { operation(ep, &raw const message, $($after,)* flags) }
            }
        )*
    };
}

type Context = *mut c_void;
type Buffer = *const c_void;
type Place = *mut c_void;
type Desc = *mut c_void;
type Descs = *mut *mut c_void;
type Vector = *const libc::iovec;
type Numbers = *const sys::fi_ioc;
type Results = *mut sys::fi_ioc;
type Datatype = sys::fi_datatype;
type Op = sys::fi_op;

by_argument! {
    send = msg::OPS[send](buf: Buffer, len: usize, desc: Desc; context: Context);
    sendv = msg::OPS[sendv](iov: Vector, desc: Descs, count: usize; context: Context);
    senddata = msg::OPS[senddata](buf: Buffer, len: usize, desc: Desc, data: u64; context: Context);
    inject = msg::OPS[inject](buf: Buffer, len: usize; );
    injectdata = msg::OPS[injectdata](buf: Buffer, len: usize, data: u64; );

    tsend = tagged::OPS[send](buf: Buffer, len: usize, desc: Desc; tag: u64, context: Context);
    tsendv = tagged::OPS[sendv](iov: Vector, desc: Descs, count: usize; tag: u64, context: Context);
    tsenddata = tagged::OPS[senddata](buf: Buffer, len: usize, desc: Desc, data: u64; tag: u64, context: Context);
    tinject = tagged::OPS[inject](buf: Buffer, len: usize; tag: u64);
    tinjectdata = tagged::OPS[injectdata](buf: Buffer, len: usize, data: u64; tag: u64);

    read = rma::OPS[read](buf: Place, len: usize, desc: Desc; addr: u64, key: u64, context: Context);
    readv = rma::OPS[readv](iov: Vector, desc: Descs, count: usize; addr: u64, key: u64, context: Context);
    write = rma::OPS[write](buf: Buffer, len: usize, desc: Desc; addr: u64, key: u64, context: Context);
    writev = rma::OPS[writev](iov: Vector, desc: Descs, count: usize; addr: u64, key: u64, context: Context);
    writedata = rma::OPS[writedata](buf: Buffer, len: usize, desc: Desc, data: u64; addr: u64, key: u64, context: Context);
    inject_write = rma::OPS[inject](buf: Buffer, len: usize; addr: u64, key: u64);
    inject_writedata = rma::OPS[injectdata](buf: Buffer, len: usize, data: u64; addr: u64, key: u64);

    atomic = atomic::OPS[write](buf: Buffer, count: usize, desc: Desc; addr: u64, key: u64, ty: Datatype, op: Op, context: Context);
    atomicv = atomic::OPS[writev](iov: Numbers, desc: Descs, count: usize; addr: u64, key: u64, ty: Datatype, op: Op, context: Context);
    inject_atomic = atomic::OPS[inject](buf: Buffer, count: usize; addr: u64, key: u64, ty: Datatype, op: Op);
    fetch_atomic = atomic::OPS[readwrite](
        buf: Buffer, count: usize, desc: Desc, result: Place, result_desc: Desc;
        addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    );
    fetch_atomicv = atomic::OPS[readwritev](
        iov: Numbers, desc: Descs, count: usize, resultv: Results, result_desc: Descs, result_count: usize;
        addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    );
    compare_atomic = atomic::OPS[compwrite](
        buf: Buffer, count: usize, desc: Desc, compare: Buffer, compare_desc: Desc, result: Place, result_desc: Desc;
        addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    );
    compare_atomicv = atomic::OPS[compwritev](
        iov: Numbers, desc: Descs, count: usize, comparev: Numbers, compare_desc: Descs, compare_count: usize,
        resultv: Results, result_desc: Descs, result_count: usize;
        addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    );
}

by_structure! {
    sendmsg = msg::OPS[sendmsg](fi_msg; );
    tsendmsg = tagged::OPS[sendmsg](fi_msg_tagged; );
    readmsg = rma::OPS[readmsg](fi_msg_rma; );
    writemsg = rma::OPS[writemsg](fi_msg_rma; );
    atomicmsg = atomic::OPS[writemsg](fi_msg_atomic; );
    fetch_atomicmsg = atomic::OPS[readwritemsg](fi_msg_atomic; resultv: Results, result_desc: Descs, result_count: usize);
    compare_atomicmsg = atomic::OPS[compwritemsg](
        fi_msg_atomic;
        comparev: Numbers, compare_desc: Descs, compare_count: usize, resultv: Results, result_desc: Descs, result_count: usize
    );
}

/// Messages.
pub(super) const MSG: sys::fi_ops_msg = sys::fi_ops_msg {
    send: Some(send),
    sendv: Some(sendv),
    sendmsg: Some(sendmsg),
    inject: Some(inject),
    senddata: Some(senddata),
    injectdata: Some(injectdata),
    ..msg::OPS
};

/// Tagged messages.
pub(super) const TAGGED: sys::fi_ops_tagged = sys::fi_ops_tagged {
    send: Some(tsend),
    sendv: Some(tsendv),
    sendmsg: Some(tsendmsg),
    inject: Some(tinject),
    senddata: Some(tsenddata),
    injectdata: Some(tinjectdata),
    ..tagged::OPS
};

/// Remote memory access.
pub(super) static RMA: sys::fi_ops_rma = sys::fi_ops_rma {
    size: size_of::<sys::fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject_write),
    writedata: Some(writedata),
    injectdata: Some(inject_writedata),
};

/// Atomics.
pub(super) static ATOMIC: sys::fi_ops_atomic = sys::fi_ops_atomic {
    write: Some(atomic),
    writev: Some(atomicv),
    writemsg: Some(atomicmsg),
    inject: Some(inject_atomic),
    readwrite: Some(fetch_atomic),
    readwritev: Some(fetch_atomicv),
    readwritemsg: Some(fetch_atomicmsg),
    compwrite: Some(compare_atomic),
    compwritev: Some(compare_atomicv),
    compwritemsg: Some(compare_atomicmsg),
    ..atomic::OPS
};
