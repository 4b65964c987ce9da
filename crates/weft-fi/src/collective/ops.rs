//! The C functions of collective operations, and `fi_query_collective` (fi_collective(3)).
//!
//! Place in the data flow: each function translates its arguments to a [`Call`] → [`Ep::start_collective`]. The man
//! page leaves two points open; fi_weft(7) documents the choices made here. A root that is less than the number of
//! members is a rank, otherwise an address. The count of a reduce-scatter is that of the result.
//!
//! Errors: -FI_EINVAL for a group or root that does not exist and for missing buffers, -FI_EOPNOTSUPP for types and
//! operations that reductions do not have, -FI_EOPBADSTATE before the join is complete, -FI_EMSGSIZE for buffers that
//! are too long.

use std::ffi::{c_int, c_void};

use weft_engine::Elements;
use weft_engine::amo::{Op, Reduction, Type};
use weft_engine::api::OpFlags;
use weft_engine::collective::Operation;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::{atomic, object};
use crate::collective::group;
use crate::domain::Domain;
use crate::endpoint::flags::{self, Mode};
use crate::endpoint::{Call, Ep, ep};
use crate::info::offer::MAX_MSG_BYTES;

impl<D: Device> Ep<D> {
    /// The collective operations.
    pub(crate) const COLLECTIVE_OPS: &sys::fi_ops_collective = &sys::fi_ops_collective {
        size: size_of::<sys::fi_ops_collective>(),
        barrier: Some(barrier::<D>),
        broadcast: Some(broadcast::<D>),
        alltoall: Some(alltoall::<D>),
        allreduce: Some(allreduce::<D>),
        allgather: Some(allgather::<D>),
        reduce_scatter: Some(reduce_scatter::<D>),
        reduce: Some(reduce::<D>),
        scatter: Some(scatter::<D>),
        gather: Some(gather::<D>),
        barrier2: Some(barrier2::<D>),
        ..crate::abi::noop::COLLECTIVE
    };
}

/// Starts a collective.
///
/// # Safety
/// `fid` is the client's endpoint. The buffers are as the operation and the count say, and left to weft until the
/// operation completes.
unsafe fn start<D: Device>(
    fid: *mut sys::fid_ep,
    call: &Call,
    mode: impl FnOnce(&Ep<D>) -> Result<Mode<OpFlags>, Errno>,
) -> isize {
    object::guard_size("fi_collective", || {
        // SAFETY: the client's endpoint.
        let ep = unsafe { ep::<D>(fid) };
        let mode = mode(ep)?;
        let elements = elements(ep.domain(), call.operation, call.datatype, call.op)?;
        let group = group::named(call.coll_addr)?;
        // SAFETY: by the caller's promise.
        Ok(unsafe { ep.start_collective(group, elements, call, mode) })
    })
}

/// The elements of an operation's blocks, if the operation has such.
pub(super) fn elements(
    domain: &Domain,
    operation: Operation,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
) -> Result<Elements, Errno> {
    if operation == Operation::Barrier {
        return Ok(Elements::Bytes(1));
    }
    let ty = Type::from_number(datatype).filter(|&ty| domain.api_version() >= atomic::type_since(ty));
    let ty = ty.filter(|ty| ty.row().here).ok_or(Errno::OPNOTSUPP)?;
    if !operation.reduces() {
        return Ok(Elements::Bytes(ty.size()));
    }
    let reduction = Op::from_number(op).and_then(|op| Reduction::new(ty, op));
    reduction.map(Elements::Numbers).ok_or(Errno::OPNOTSUPP)
}

/// The flags of a call that has no argument for them.
#[allow(clippy::unnecessary_wraps)] // One shape with `flags::transmit`.
fn default_mode<D: Device>(ep: &Ep<D>) -> Result<Mode<OpFlags>, Errno> {
    Ok(ep.tx_mode())
}

unsafe extern "C" fn barrier<D: Device>(
    fid: *mut sys::fid_ep,
    coll_addr: sys::fi_addr_t,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    unsafe { start::<D>(fid, &Call::new(Operation::Barrier, coll_addr, context), default_mode) }
}

unsafe extern "C" fn barrier2<D: Device>(
    fid: *mut sys::fid_ep,
    coll_addr: sys::fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> isize {
    // SAFETY: the client's endpoint.
    unsafe { start::<D>(fid, &Call::new(Operation::Barrier, coll_addr, context), |_| flags::transmit(flags)) }
}

unsafe extern "C" fn broadcast<D: Device>(
    fid: *mut sys::fid_ep,
    buf: *mut c_void,
    count: usize,
    _desc: *mut c_void,
    coll_addr: sys::fi_addr_t,
    root_addr: sys::fi_addr_t,
    datatype: sys::fi_datatype,
    flags: u64,
    context: *mut c_void,
) -> isize {
    let call = Call { result: buf, count, root_addr, datatype, ..Call::new(Operation::Broadcast, coll_addr, context) };
    // SAFETY: the client's endpoint and buffer.
    unsafe { start::<D>(fid, &call, |_| flags::transmit(flags)) }
}

/// The operations whose C functions have an input and a result. The brackets name the arguments that not all of them
/// have: the root, and the arithmetic operation.
macro_rules! with_input {
    ($($name:ident $operation:ident [$($root:ident)?] [$($op:ident)?];)*) => {
        $(unsafe extern "C" fn $name<D: Device>(
            fid: *mut sys::fid_ep,
            buf: *const c_void,
            count: usize,
            _desc: *mut c_void,
            result: *mut c_void,
            _result_desc: *mut c_void,
            coll_addr: sys::fi_addr_t,
            $($root: sys::fi_addr_t,)?
            datatype: sys::fi_datatype,
            $($op: sys::fi_op,)?
            flags: u64,
            context: *mut c_void,
        ) -> isize {
            let none = Call::new(Operation::$operation, coll_addr, context);
            let call = Call { input: buf, result, count, datatype, $($root,)? $($op,)? ..none };
            // SAFETY: the client's endpoint and buffers.
            unsafe { start::<D>(fid, &call, |_| flags::transmit(flags)) }
        })*
    };
}

with_input! {
    alltoall AllToAll [] [];
    allreduce AllReduce [] [op];
    allgather AllGather [] [];
    reduce_scatter ReduceScatter [] [op];
    reduce Reduce [root_addr] [op];
    scatter Scatter [root_addr] [];
    gather Gather [root_addr] [];
}

/// The operation with libfabric's number.
pub(super) const fn operation(coll: sys::fi_collective_op) -> Option<Operation> {
    Some(match coll {
        sys::FI_BARRIER => Operation::Barrier,
        sys::FI_BROADCAST => Operation::Broadcast,
        sys::FI_ALLTOALL => Operation::AllToAll,
        sys::FI_ALLREDUCE => Operation::AllReduce,
        sys::FI_ALLGATHER => Operation::AllGather,
        sys::FI_REDUCE_SCATTER => Operation::ReduceScatter,
        sys::FI_REDUCE => Operation::Reduce,
        sys::FI_SCATTER => Operation::Scatter,
        sys::FI_GATHER => Operation::Gather,
        _ => return None,
    })
}

/// `fi_query_collective`.
pub(crate) unsafe extern "C" fn query(
    domain: *mut sys::fid_domain,
    coll: sys::fi_collective_op,
    attr: *mut sys::fi_collective_attr,
    flags: u64,
) -> c_int {
    object::guard("fi_query_collective", || {
        // SAFETY: the client's domain.
        let domain = unsafe { object::borrow::<Domain>(domain) }?;
        // SAFETY: null, or the client's attributes, which the answer replaces.
        let attr = unsafe { attr.as_mut() }.ok_or(Errno::INVAL)?;
        if flags != 0 {
            return Err(Errno::BADFLAGS);
        }
        if attr.mode != 0 {
            return Err(Errno::INVAL);
        }
        let operation = operation(coll).ok_or(Errno::OPNOTSUPP)?;
        let size = elements(domain, operation, attr.datatype, attr.op)?.size();
        let barrier = operation == Operation::Barrier;
        let count = if barrier { 0 } else { MAX_MSG_BYTES / size };
        attr.datatype_attr = sys::fi_atomic_attr { count, size: if barrier { 0 } else { size } };
        attr.max_members = MAX_MEMBERS;
        Ok(0)
    })
}

/// The most members of a group. A member's part in an alltoall has four tasks per member.
const MAX_MEMBERS: usize = weft_engine::collective::MAX_TASKS / 4;
