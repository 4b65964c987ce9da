//! The C entry points of endpoints that are recorded (`FI_WEFT_RECORD`): each calls the ordinary one and reports it.
//!
//! Place in the data flow: as [`super`]. [`crate::record`] writes the file. The tables serve connectionless endpoints;
//! receives are reported when their entries are read, so their functions are the ordinary ones.

use weft_engine::amo::Type;
use weft_fi_sys as sys;
use weft_nic::Device;

use super::{
    Addr, Buf, Context, Datatype, Desc, Descs, Iocs, Iovs, MutBuf, MutIocs, Named, Op, atomic_ops, msg_ops, rma_ops,
    tagged_ops,
};
use crate::record::{self, Operation, Started};

/// The peer, length and context of an operation.
type Parts = (Addr, usize, Context);

/// The length of a vector of the client.
///
/// # Safety
/// `iov` has `count` pieces, or `count` is 0.
unsafe fn iov_bytes(iov: Iovs, count: usize) -> usize {
    if count == 0 {
        // The vector may be null.
        return 0;
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { std::slice::from_raw_parts(iov, count) };
    pieces.iter().map(|piece| piece.iov_len).sum()
}

/// The length of a vector of atomic operands.
///
/// # Safety
/// As for [`iov_bytes`].
unsafe fn ioc_bytes(ioc: Iocs, count: usize, ty: Datatype) -> usize {
    if count == 0 {
        // The vector may be null.
        return 0;
    }
    // SAFETY: the caller's promise.
    let pieces = unsafe { std::slice::from_raw_parts(ioc, count) };
    pieces.iter().map(|piece| piece.count).sum::<usize>() * size_of_type(ty)
}

fn size_of_type(ty: Datatype) -> usize {
    Type::from_number(ty).map_or(1, Type::size)
}

/// The parts of an atomic operation without a result.
///
/// # Safety
/// The structure is the client's.
unsafe fn adding(msg: *const sys::fi_msg_atomic) -> Parts {
    // SAFETY: the caller's promise.
    let msg = unsafe { &*msg };
    // SAFETY: the caller's promise.
    let bytes = unsafe { ioc_bytes(msg.msg_iov, msg.iov_count, msg.datatype) };
    (msg.addr, bytes, msg.context)
}

/// The parts of an atomic operation with a result.
///
/// # Safety
/// The structure and the vector are the client's.
unsafe fn fetching(msg: *const sys::fi_msg_atomic, result: MutIocs, count: usize) -> Parts {
    // SAFETY: the caller's promise.
    let msg = unsafe { &*msg };
    // SAFETY: the caller's promise.
    let bytes = unsafe { ioc_bytes(result, count, msg.datatype) };
    (msg.addr, bytes, msg.context)
}

/// Reads the client's vectors and structures. The call has succeeded, so they are sound.
macro_rules! sound {
    ($read:expr) => {{
        // SAFETY: the ordinary function has accepted the same pointers and counts.
        unsafe { $read }
    }};
}

/// The parts of a structure with a vector of buffers.
macro_rules! described {
    ($msg:ident) => {{
        let msg = sound!(&*$msg);
        (msg.addr, sound!(iov_bytes(msg.msg_iov, msg.iov_count)), msg.context)
    }};
}

/// Declares entry points: `name(arguments) => kind, parts`. The operation is described only if the call has succeeded.
macro_rules! recorded {
    ($($name:ident($($arg:ident: $ty:ty),*) => $kind:expr, $parts:expr;)*) => {
        $(
            unsafe extern "C" fn $name<D: Device>(fid: *mut sys::fid_ep, $($arg: $ty),*) -> isize {
                record::around(
                    // SAFETY: the client's arguments, as it has passed them.
                    || unsafe { super::$name::<D, Named>(fid, $($arg),*) },
                    || {
                        let (to, bytes, context): Parts = $parts;
                        Operation { kind: $kind, to, bytes, context: context.addr() }
                    },
                )
            }
        )*
    };
}

/// Operations without a context make no entry.
const NONE: Context = std::ptr::null_mut();

recorded! {
    send(buf: Buf, len: usize, desc: Desc, dest: Addr, context: Context)
        => Started::Send(None), (dest, len, context);
    senddata(buf: Buf, len: usize, desc: Desc, data: u64, dest: Addr, context: Context)
        => Started::Send(None), (dest, len, context);
    sendv(iov: Iovs, desc: Descs, count: usize, dest: Addr, context: Context)
        => Started::Send(None), (dest, sound!(iov_bytes(iov, count)), context);
    sendmsg(msg: *const sys::fi_msg, flags: u64)
        => Started::Send(None), described!(msg);
    inject(buf: Buf, len: usize, dest: Addr) => Started::Send(None), (dest, len, NONE);
    injectdata(buf: Buf, len: usize, data: u64, dest: Addr) => Started::Send(None), (dest, len, NONE);

    tsend(buf: Buf, len: usize, desc: Desc, dest: Addr, tag: u64, context: Context)
        => Started::Send(Some(tag)), (dest, len, context);
    tsenddata(buf: Buf, len: usize, desc: Desc, data: u64, dest: Addr, tag: u64, context: Context)
        => Started::Send(Some(tag)), (dest, len, context);
    tsendv(iov: Iovs, desc: Descs, count: usize, dest: Addr, tag: u64, context: Context)
        => Started::Send(Some(tag)), (dest, sound!(iov_bytes(iov, count)), context);
    tsendmsg(msg: *const sys::fi_msg_tagged, flags: u64)
        => Started::Send(Some(sound!((*msg).tag))), described!(msg);
    tinject(buf: Buf, len: usize, dest: Addr, tag: u64) => Started::Send(Some(tag)), (dest, len, NONE);
    tinjectdata(buf: Buf, len: usize, data: u64, dest: Addr, tag: u64) => Started::Send(Some(tag)), (dest, len, NONE);

    read(buf: MutBuf, len: usize, desc: Desc, dest: Addr, addr: u64, key: u64, context: Context)
        => Started::Read, (dest, len, context);
    readv(iov: Iovs, desc: Descs, count: usize, dest: Addr, addr: u64, key: u64, context: Context)
        => Started::Read, (dest, sound!(iov_bytes(iov, count)), context);
    readmsg(msg: *const sys::fi_msg_rma, flags: u64)
        => Started::Read, described!(msg);
    write(buf: Buf, len: usize, desc: Desc, dest: Addr, addr: u64, key: u64, context: Context)
        => Started::Write, (dest, len, context);
    writev(iov: Iovs, desc: Descs, count: usize, dest: Addr, addr: u64, key: u64, context: Context)
        => Started::Write, (dest, sound!(iov_bytes(iov, count)), context);
    writedata(buf: Buf, len: usize, desc: Desc, data: u64, dest: Addr, addr: u64, key: u64, context: Context)
        => Started::Write, (dest, len, context);
    writemsg(msg: *const sys::fi_msg_rma, flags: u64)
        => Started::Write, described!(msg);
    inject_write(buf: Buf, len: usize, dest: Addr, addr: u64, key: u64) => Started::Write, (dest, len, NONE);
    inject_writedata(buf: Buf, len: usize, data: u64, dest: Addr, addr: u64, key: u64)
        => Started::Write, (dest, len, NONE);

    atomic(buf: Buf, count: usize, desc: Desc, dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context)
        => Started::Write, (dest, count * size_of_type(ty), context);
    atomicv(
        iov: Iocs, desc: Descs, count: usize, dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        => Started::Write, (dest, sound!(ioc_bytes(iov, count, ty)), context);
    atomicmsg(msg: *const sys::fi_msg_atomic, flags: u64)
        => Started::Write, sound!(adding(msg));
    inject_atomic(buf: Buf, count: usize, dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op)
        => Started::Write, (dest, count * size_of_type(ty), NONE);
    fetch_atomic(
        buf: Buf, count: usize, desc: Desc, result: MutBuf, result_desc: Desc,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        => Started::Read, (dest, count * size_of_type(ty), context);
    fetch_atomicv(
        iov: Iocs, desc: Descs, count: usize, result: MutIocs, result_desc: Descs, result_count: usize,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        => Started::Read, (dest, sound!(ioc_bytes(result, result_count, ty)), context);
    fetch_atomicmsg(
        msg: *const sys::fi_msg_atomic, result: MutIocs, result_desc: Descs, result_count: usize, flags: u64
    )
        => Started::Read, sound!(fetching(msg, result, result_count));
    compare_atomic(
        buf: Buf, count: usize, desc: Desc, compare: Buf, compare_desc: Desc, result: MutBuf, result_desc: Desc,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        => Started::Read, (dest, count * size_of_type(ty), context);
    compare_atomicv(
        iov: Iocs, desc: Descs, count: usize, compare: Iocs, compare_desc: Descs, compare_count: usize,
        result: MutIocs, result_desc: Descs, result_count: usize,
        dest: Addr, addr: u64, key: u64, ty: Datatype, op: Op, context: Context
    )
        => Started::Read, (dest, sound!(ioc_bytes(result, result_count, ty)), context);
    compare_atomicmsg(
        msg: *const sys::fi_msg_atomic, compare: Iocs, compare_desc: Descs, compare_count: usize,
        result: MutIocs, result_desc: Descs, result_count: usize, flags: u64
    )
        => Started::Read, sound!(fetching(msg, result, result_count));
}

/// The operations on messages.
pub(crate) const fn msg<D: Device>() -> sys::fi_ops_msg {
    sys::fi_ops_msg {
        send: Some(send::<D>),
        sendv: Some(sendv::<D>),
        sendmsg: Some(sendmsg::<D>),
        inject: Some(inject::<D>),
        senddata: Some(senddata::<D>),
        injectdata: Some(injectdata::<D>),
        ..msg_ops::<D, Named>()
    }
}

/// The operations on tagged messages.
pub(crate) const fn tagged<D: Device>() -> sys::fi_ops_tagged {
    sys::fi_ops_tagged {
        send: Some(tsend::<D>),
        sendv: Some(tsendv::<D>),
        sendmsg: Some(tsendmsg::<D>),
        inject: Some(tinject::<D>),
        senddata: Some(tsenddata::<D>),
        injectdata: Some(tinjectdata::<D>),
        ..tagged_ops::<D, Named>()
    }
}

/// The operations on remote memory.
pub(crate) const fn rma<D: Device>() -> sys::fi_ops_rma {
    sys::fi_ops_rma {
        read: Some(read::<D>),
        readv: Some(readv::<D>),
        readmsg: Some(readmsg::<D>),
        write: Some(write::<D>),
        writev: Some(writev::<D>),
        writemsg: Some(writemsg::<D>),
        inject: Some(inject_write::<D>),
        writedata: Some(writedata::<D>),
        injectdata: Some(inject_writedata::<D>),
        ..rma_ops::<D, Named>()
    }
}

/// The atomic operations.
pub(crate) const fn atomic_table<D: Device>() -> sys::fi_ops_atomic {
    sys::fi_ops_atomic {
        write: Some(atomic::<D>),
        writev: Some(atomicv::<D>),
        writemsg: Some(atomicmsg::<D>),
        inject: Some(inject_atomic::<D>),
        readwrite: Some(fetch_atomic::<D>),
        readwritev: Some(fetch_atomicv::<D>),
        readwritemsg: Some(fetch_atomicmsg::<D>),
        compwrite: Some(compare_atomic::<D>),
        compwritev: Some(compare_atomicv::<D>),
        compwritemsg: Some(compare_atomicmsg::<D>),
        ..atomic_ops::<D, Named>()
    }
}
