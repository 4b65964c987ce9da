//! Atomic operations (fi_atomic(3)): the queries, and the way from translated arguments to an operation of
//! the endpoint.
//!
//! Place in the data flow: [`crate::abi::transfer`] → here → [`Ep::start_atomic`] → `Engine::atomic`.
//!
//! The table that executes operations decides which are valid ([`weft_engine::amo`]). This file narrows them to those
//! of the client's API version. Errors: -FI_EOPNOTSUPP for operations that the table does not have and for tagged
//! targets, -FI_EINVAL for counts that are 0 or differ, -FI_EMSGSIZE for more bytes than [`MAX_ATOMIC_BYTES`] or than
//! the inject size.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;

use smallvec::SmallVec;
use weft_engine::MAX_ATOMIC_BYTES;
use weft_engine::amo::{Amo, Form, Op, Type};
use weft_engine::api::{OpFlags, RmaIov};
use weft_engine::mem::{Iov, total_len};
use weft_fi_sys as sys;
use weft_fi_sys::v2;
use weft_nic::Device;

use crate::abi::args::{Pieces, RemotePieces, piece};
use crate::abi::errno::Errno;
use crate::abi::object;
use crate::abi::rma::Target;
use crate::abi::transfer::Destination;
use crate::domain::Domain;
use crate::endpoint::flags::{self, Mode};
use crate::endpoint::{Atomic, Ep};

/// The API version that introduced a type.
pub(crate) const fn type_since(ty: Type) -> u32 {
    match ty {
        Type::Int128 | Type::Uint128 => sys::version(1, 13),
        Type::Float16 | Type::Bfloat16 | Type::Float8E4m3 | Type::Float8E5m2 => sys::version(2, 1),
        _ => 0,
    }
}

/// The API version that introduced an operation.
const fn op_since(op: Op) -> u32 {
    match op {
        Op::Diff => sys::version(2, 1),
        _ => 0,
    }
}

// The table of operations uses libfabric's numbers.
const _: () = {
    assert!(Type::LongDoubleComplex as u32 == sys::FI_LONG_DOUBLE_COMPLEX && Type::Uint64 as u32 == sys::FI_UINT64);
    assert!(Type::Uint128 as u32 == sys::FI_UINT128 && Type::Float8E5m2 as u32 == v2::FI_FLOAT8_E5M2);
    assert!(Op::Min as u32 == sys::FI_MIN && Op::Bxor as u32 == sys::FI_BXOR && Op::Read as u32 == sys::FI_ATOMIC_READ);
    assert!(Op::Cswap as u32 == sys::FI_CSWAP && Op::Mswap as u32 == sys::FI_MSWAP && Op::Diff as u32 == v2::FI_DIFF);
};

/// The operation with these numbers, if this API version has it.
#[inline]
fn amo(api: u32, form: Form, datatype: sys::fi_datatype, op: sys::fi_op) -> Result<Amo, Errno> {
    let ty = Type::from_number(datatype).filter(|&ty| api >= type_since(ty));
    let op = Op::from_number(op).filter(|&op| api >= op_since(op));
    let (Some(ty), Some(op)) = (ty, op) else { return Err(Errno::OPNOTSUPP) };
    Amo::new(form, ty, op).ok_or(Errno::OPNOTSUPP)
}

/// Most numbers in one call.
const fn most(amo: Amo) -> usize {
    MAX_ATOMIC_BYTES / amo.ty().size()
}

// ---- queries ---------------------------------------------------------------------------------

/// Checks an operation, and writes the most numbers of a call: the three `fi_…atomicvalid`.
///
/// # Safety
/// `fid` is the client's endpoint, `count` null or its place for the count.
unsafe fn valid<D: Device>(
    form: Form,
    fid: *mut sys::fid_ep,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    count: *mut usize,
) -> c_int {
    object::guard("fi_atomicvalid", || {
        // SAFETY: the caller's promise.
        let ep = unsafe { object::borrow::<Ep<D>>(fid) }?;
        let found = amo(ep.domain().api_version(), form, datatype, op);
        if let Some(count) = NonNull::new(count) {
            // SAFETY: the caller's promise.
            unsafe { count.write(found.map_or(0, most)) };
        }
        found.map(|_| 0)
    })
}

pub(super) unsafe extern "C" fn writevalid<D: Device>(
    ep: *mut sys::fid_ep,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the client's endpoint and place.
    unsafe { valid::<D>(Form::Base, ep, datatype, op, count) }
}

pub(super) unsafe extern "C" fn readwritevalid<D: Device>(
    ep: *mut sys::fid_ep,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the client's endpoint and place.
    unsafe { valid::<D>(Form::Fetch, ep, datatype, op, count) }
}

pub(super) unsafe extern "C" fn compwritevalid<D: Device>(
    ep: *mut sys::fid_ep,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    count: *mut usize,
) -> c_int {
    // SAFETY: the client's endpoint and place.
    unsafe { valid::<D>(Form::Compare, ep, datatype, op, count) }
}

/// Checks an operation, and describes its numbers: `fi_query_atomic`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut sys::fid_domain,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    attr: *mut sys::fi_atomic_attr,
    flags: u64,
) -> c_int {
    object::guard("fi_query_atomic", || {
        // SAFETY: the client's domain.
        let domain = unsafe { object::borrow::<Domain>(domain) }?;
        let attr = NonNull::new(attr).ok_or(Errno::INVAL)?;
        let none = sys::fi_atomic_attr { count: 0, size: 0 };
        // SAFETY: the client's place for the answer.
        unsafe { attr.write(none) };
        let form = match flags & !sys::FI_TAGGED {
            0 => Form::Base,
            sys::FI_FETCH_ATOMIC => Form::Fetch,
            sys::FI_COMPARE_ATOMIC => Form::Compare,
            _ => return Err(Errno::BADFLAGS),
        };
        if flags & sys::FI_TAGGED != 0 {
            return Err(Errno::OPNOTSUPP);
        }
        let amo = amo(domain.api_version(), form, datatype, op)?;
        // SAFETY: the client's place for the answer.
        unsafe { attr.write(sys::fi_atomic_attr { count: most(amo), size: amo.ty().size() }) };
        Ok(0)
    })
}

// ---- arguments -------------------------------------------------------------------------------

/// Translates a buffer of `count` numbers.
///
/// # Safety
/// Until the operation completes, the buffer is valid for `count` numbers, as [`Iov::new`] demands.
#[inline]
unsafe fn numbers(amo: Amo, buf: *const c_void, count: usize) -> Result<Iov, Errno> {
    let bytes = count.checked_mul(amo.ty().size()).ok_or(Errno::MSGSIZE)?;
    // SAFETY: the caller's promise.
    unsafe { piece(buf, bytes) }
}

/// Translates a vector of buffers of numbers.
///
/// # Safety
/// `ioc` has `count` entries, each of which is valid as for [`numbers`].
unsafe fn vector(amo: Amo, ioc: *const sys::fi_ioc, count: usize, limit: usize) -> Result<Pieces, Errno> {
    if count == 0 {
        return Ok(Pieces::new());
    }
    if count > limit || ioc.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(ioc, count) };
    let mut pieces = Pieces::new();
    let mut left = isize::MAX.cast_unsigned();
    for entry in entries {
        // SAFETY: the caller's promise.
        let piece = unsafe { numbers(amo, entry.addr, entry.count) }?;
        left = left.checked_sub(piece.len()).ok_or(Errno::MSGSIZE)?;
        pieces.push(piece);
    }
    Ok(pieces)
}

/// Translates a vector of numbers in the target's memory.
///
/// # Safety
/// `ioc` has `count` entries.
unsafe fn remote_vector(
    amo: Amo,
    ioc: *const sys::fi_rma_ioc,
    count: usize,
    limit: usize,
) -> Result<RemotePieces, Errno> {
    if count == 0 || count > limit || ioc.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(ioc, count) };
    let size = amo.ty().size() as u64;
    let remote = |entry: &sys::fi_rma_ioc| {
        let len = (entry.count as u64).checked_mul(size).ok_or(Errno::MSGSIZE)?;
        Ok(RmaIov { addr: entry.addr, len, key: entry.key })
    };
    entries.iter().map(remote).collect()
}

/// The local memory of a call.
#[derive(Default)]
pub(super) struct Local {
    /// The operands.
    iov: SmallVec<[Iov; 4]>,
    /// The values to compare with.
    compare: SmallVec<[Iov; 4]>,
    /// The places for the target's values before the operation.
    result: SmallVec<[Iov; 4]>,
}

impl Local {
    /// The operands, the values to compare with, and the places of the results.
    #[inline]
    pub(super) fn pieces(&self) -> [&[Iov]; 3] {
        [&self.iov, &self.compare, &self.result]
    }
}

/// Starts an operation on one remote piece, with the endpoint's defaults.
#[inline]
pub(super) fn start<D: Device>(
    ep: &Ep<D>,
    amo: Amo,
    pieces: [&[Iov]; 3],
    target: Target,
    context: *mut c_void,
) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops -= OpFlags::DATA;
    start_as(ep, amo, pieces, target, context, mode, ep.tx_entry(mode))
}

/// Starts an operation that makes no queue entry. Its buffer is free on return.
#[inline]
pub(super) fn inject<D: Device>(ep: &Ep<D>, amo: Amo, iov: Iov, target: Target) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops |= OpFlags::INJECT;
    mode.ops -= OpFlags::DATA;
    start_as(ep, amo, [&[iov], &[], &[]], target, ep.context(), mode, false)
}

#[inline]
fn start_as<D: Device>(
    ep: &Ep<D>,
    amo: Amo,
    [iov, compare, result]: [&[Iov]; 3],
    target: Target,
    context: *mut c_void,
    mode: Mode<OpFlags>,
    entry: bool,
) -> isize {
    let remote = [target.remote(total_len(if amo.sources() > 0 { iov } else { result }))];
    let dest = target.dest;
    ep.start_atomic(&Atomic { amo, iov, compare, result, dest, remote: &remote, data: 0, context, mode, entry })
}

/// The vectors of a call, as `(first, count)`: operands, values to compare with, results.
pub(super) type Vectors = [(*const sys::fi_ioc, usize); 3];

/// Translates the vectors that the operation needs.
///
/// # Safety
/// Each vector that the operation needs has `count` entries, which are valid as for [`numbers`].
unsafe fn local<D: Device>(ep: &Ep<D>, amo: Amo, [iov, compare, result]: Vectors) -> Result<Local, Errno> {
    let limit = ep.limits().iov;
    let mut local = Local::default();
    if amo.sources() > 0 {
        // SAFETY: the caller's promise.
        local.iov = unsafe { vector(amo, iov.0, iov.1, limit) }?;
    }
    if amo.sources() > 1 {
        // SAFETY: the caller's promise.
        local.compare = unsafe { vector(amo, compare.0, compare.1, limit) }?;
    }
    if amo.fetches() {
        // SAFETY: the caller's promise.
        local.result = unsafe { vector(amo, result.0, result.1, limit) }?;
    }
    Ok(local)
}

/// The operation of a call with vectors, and the vectors that it needs.
///
/// # Safety
/// As for [`local`].
#[inline]
pub(super) unsafe fn vectors<D: Device>(
    ep: &Ep<D>,
    form: Form,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    vectors: Vectors,
) -> Result<(Amo, Local), Errno> {
    let amo = amo(ep.domain().api_version(), form, datatype, op)?;
    // SAFETY: the caller's promise.
    Ok((amo, unsafe { local(ep, amo, vectors) }?))
}

/// The operation of a call that fetches nothing, and its operands.
///
/// # Safety
/// As for [`numbers`].
#[inline]
pub(super) unsafe fn operand<D: Device>(
    ep: &Ep<D>,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    buf: *const c_void,
    count: usize,
) -> Result<(Amo, Iov), Errno> {
    let amo = amo(ep.domain().api_version(), Form::Base, datatype, op)?;
    // SAFETY: the caller's promise.
    Ok((amo, unsafe { numbers(amo, buf, count) }?))
}

/// The operation of a call that fetches, its operands, and the place of the results.
///
/// # Safety
/// As for [`numbers`], for each buffer.
#[inline]
pub(super) unsafe fn fetch<D: Device>(
    ep: &Ep<D>,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    buf: *const c_void,
    result: *mut c_void,
    count: usize,
) -> Result<(Amo, Iov, Iov), Errno> {
    let amo = amo(ep.domain().api_version(), Form::Fetch, datatype, op)?;
    // A read has no operands, whatever its buffer is.
    let operands = if amo.sources() == 0 { 0 } else { count };
    // SAFETY: the caller's promise.
    let iov = unsafe { numbers(amo, buf, operands) }?;
    // SAFETY: the caller's promise.
    Ok((amo, iov, unsafe { numbers(amo, result, count) }?))
}

/// The operation of a call that compares, its operands, the values to compare with, and the place of the results.
///
/// # Safety
/// As for [`numbers`], for each buffer.
#[inline]
pub(super) unsafe fn compare<D: Device>(
    ep: &Ep<D>,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    buf: *const c_void,
    compare: *const c_void,
    result: *mut c_void,
    count: usize,
) -> Result<(Amo, Iov, Iov, Iov), Errno> {
    let amo = amo(ep.domain().api_version(), Form::Compare, datatype, op)?;
    // SAFETY: the caller's promise.
    let iov = unsafe { numbers(amo, buf, count) }?;
    // SAFETY: the caller's promise.
    let compare = unsafe { numbers(amo, compare, count) }?;
    // SAFETY: the caller's promise.
    Ok((amo, iov, compare, unsafe { numbers(amo, result, count) }?))
}

/// Starts the operation that a structure describes, with the vectors for comparison and results.
///
/// # Safety
/// `msg` is null or points to a structure as fi_atomic(3) defines it. Its vectors and `more` are as for [`local`].
pub(super) unsafe fn described<D: Device, T: Destination>(
    ep: &Ep<D>,
    form: Form,
    msg: *const sys::fi_msg_atomic,
    more: [(*const sys::fi_ioc, usize); 2],
    flags: u64,
) -> Result<isize, Errno> {
    // SAFETY: the caller's promise.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVAL)?;
    let mode = mode_of(flags)?;
    let start = |atomic: Atomic<'_>| ep.start_atomic(&Atomic { dest: T::of(atomic.dest), ..atomic });
    // SAFETY: the caller's promise.
    unsafe { with_msg(ep, form, msg, more, mode, ep.tx_entry(mode), start) }
}

/// The mode of a call with flags.
pub(crate) fn mode_of(flags: u64) -> Result<Mode<OpFlags>, Errno> {
    if flags & sys::FI_TAGGED != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    flags::transmit(flags)
}

/// Passes the operation that a structure describes to `start`.
///
/// # Safety
/// The vectors of `msg` and the given ones are as for [`local`].
pub(crate) unsafe fn with_msg<D: Device, R>(
    ep: &Ep<D>,
    form: Form,
    msg: &sys::fi_msg_atomic,
    [compare, result]: [(*const sys::fi_ioc, usize); 2],
    mode: Mode<OpFlags>,
    entry: bool,
    start: impl FnOnce(Atomic<'_>) -> R,
) -> Result<R, Errno> {
    let amo = amo(ep.domain().api_version(), form, msg.datatype, msg.op)?;
    // SAFETY: the caller's promise.
    let local = unsafe { local(ep, amo, [(msg.msg_iov, msg.iov_count), compare, result]) }?;
    // SAFETY: the caller's promise.
    let remote = unsafe { remote_vector(amo, msg.rma_iov, msg.rma_iov_count, ep.limits().rma_iov) }?;
    Ok(start(Atomic {
        amo,
        iov: &local.iov,
        compare: &local.compare,
        result: &local.result,
        dest: msg.addr,
        remote: &remote,
        data: msg.data,
        context: msg.context,
        mode,
        entry,
    }))
}

/// An absent vector.
pub(crate) const NOTHING: (*const sys::fi_ioc, usize) = (std::ptr::null(), 0);

#[cfg(test)]
mod tests {
    use super::*;

    const V1_5: u32 = sys::version(1, 5);

    #[test]
    fn each_api_version_has_its_own_operations() {
        let has = |api, ty, op| amo(api, Form::Fetch, ty, op).is_ok();
        assert!(has(V1_5, sys::FI_UINT64, sys::FI_SUM) && has(0, sys::FI_INT8, sys::FI_ATOMIC_READ));
        assert!(!has(sys::version(1, 12), sys::FI_INT128, sys::FI_SUM));
        assert!(has(sys::version(1, 13), sys::FI_INT128, sys::FI_SUM));
        assert!(!has(v2::V2_0, v2::FI_FLOAT16, sys::FI_SUM) && !has(v2::V2_0, sys::FI_INT8, v2::FI_DIFF));
        assert!(has(sys::version(2, 1), v2::FI_FLOAT16, sys::FI_SUM));
        assert!(has(sys::version(2, 1), sys::FI_INT8, v2::FI_DIFF));
        for nothing in [20, 255, sys::FI_VOID, u32::MAX] {
            assert!(!has(u32::MAX, nothing, sys::FI_SUM) && !has(u32::MAX, sys::FI_INT8, nothing), "{nothing}");
        }
    }

    #[test]
    fn more_numbers_than_memory_has_are_refused() {
        let amo = amo(V1_5, Form::Base, sys::FI_UINT64, sys::FI_SUM).unwrap_or_else(|_| unreachable!("valid"));
        let somewhere = std::ptr::dangling::<u64>().cast();
        for count in [usize::MAX, usize::MAX / 8 + 2, isize::MAX.cast_unsigned() / 8 + 1] {
            // SAFETY: the memory is never accessed.
            assert_eq!(unsafe { numbers(amo, somewhere, count) }, Err(Errno::MSGSIZE), "{count}");
            let ioc = [sys::fi_ioc { addr: somewhere.cast_mut(), count }];
            // SAFETY: the vector has one entry, whose memory is never accessed.
            assert_eq!(unsafe { vector(amo, ioc.as_ptr(), 1, 8) }.err(), Some(Errno::MSGSIZE));
        }
        let remote = [sys::fi_rma_ioc { addr: 0, count: usize::MAX, key: 0 }];
        // SAFETY: the vector has one entry.
        assert_eq!(unsafe { remote_vector(amo, remote.as_ptr(), 1, 8) }.err(), Some(Errno::MSGSIZE));
        // SAFETY: the vector has no entries.
        assert_eq!(unsafe { remote_vector(amo, remote.as_ptr(), 0, 8) }.err(), Some(Errno::INVAL));
        assert_eq!(most(amo), 1 << 17);
    }
}
