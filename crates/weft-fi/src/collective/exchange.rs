//! The extension `weft_collective` (`fi_open_ops` of an endpoint; fi_weft(7), "EXTENSIONS"): an exchange of blocks of
//! different lengths among the members of a group, and collectives that may end inside the call. libfabric has neither.
//!
//! Place in the data flow: [`exchange`] translates its arguments to an [`Exchange`] → `Ep::start_exchange`.
//! [`perform`] translates them to a [`Call`] → `Ep::perform_collective`.
//!
//! Errors: -FI_EINVAL for a group that does not exist, for missing buffers, and for lists that are not as long as the
//! group; -FI_EOPBADSTATE before the join is complete; -FI_EMSGSIZE for blocks behind the end of memory.

use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use weft_engine::collective::Extent;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object;
use crate::collective::{group, ops};
use crate::endpoint::{Call, Exchange, ep};

/// The name of the extension.
pub(crate) const NAME: &CStr = c"weft_collective";

/// `struct weft_block`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Block {
    offset: usize,
    len: usize,
}

/// `struct weft_collective_ops`.
#[repr(C)]
struct Ops {
    /// The size of this table in bytes.
    size: usize,
    exchange: ExchangeFn,
    perform: PerformFn,
}

/// `struct weft_collective_call`.
#[repr(C)]
struct Arguments {
    collective: sys::fi_collective_op,
    datatype: sys::fi_datatype,
    op: sys::fi_op,
    looks: u32,
    input: *const c_void,
    result: *mut c_void,
    count: usize,
    root: sys::fi_addr_t,
}

/// The type of [`perform`].
type PerformFn = unsafe extern "C" fn(*mut sys::fid_ep, sys::fi_addr_t, *const Arguments, *mut c_void) -> isize;

/// The type of [`exchange`].
type ExchangeFn = unsafe extern "C" fn(
    *mut sys::fid_ep,
    sys::fi_addr_t,
    *const c_void,
    *const Block,
    *mut c_void,
    *const Block,
    usize,
    *mut c_void,
) -> isize;

/// The table, as `fi_open_ops` returns it.
pub(crate) fn ops<D: Device>() -> *mut c_void {
    object::table(const { &Ops { size: size_of::<Ops>(), exchange: exchange::<D>, perform: perform::<D> } }).cast()
}

/// A list of the client.
///
/// # Safety
/// `blocks` is null, or has that many entries.
unsafe fn list(blocks: *const Block, members: usize) -> Result<Vec<Extent>, Errno> {
    let first = NonNull::new(blocks.cast_mut()).ok_or(Errno::INVAL)?;
    // SAFETY: by the caller's promise.
    let blocks = unsafe { std::slice::from_raw_parts(first.as_ptr(), members) };
    Ok(blocks.iter().map(|block| Extent::new(block.offset, block.len)).collect())
}

/// Starts an exchange: block i of `given` reaches member i, and block i of `taken` is that of member i.
unsafe extern "C" fn exchange<D: Device>(
    fid: *mut sys::fid_ep,
    coll_addr: sys::fi_addr_t,
    input: *const c_void,
    given: *const Block,
    result: *mut c_void,
    taken: *const Block,
    members: usize,
    context: *mut c_void,
) -> isize {
    object::guard_size("weft_collective.exchange", || {
        // SAFETY: the client's endpoint.
        let ep = unsafe { ep::<D>(fid) };
        let group = group::named(coll_addr)?;
        // SAFETY: the client's lists, which have an entry for each member.
        let [given, taken] = [given, taken].map(|blocks| unsafe { list(blocks, members) });
        let exchange = Exchange { input, given: given?, result, taken: taken?, context };
        // SAFETY: the client leaves the blocks to the operation until it completes.
        Ok(unsafe { ep.start_exchange(group, &exchange) })
    })
}

/// Performs a collective, which ends inside the call if it can: the call then returns 1, and no queue gets an entry.
/// Returns 0 if it has started.
unsafe extern "C" fn perform<D: Device>(
    fid: *mut sys::fid_ep,
    coll_addr: sys::fi_addr_t,
    arguments: *const Arguments,
    context: *mut c_void,
) -> isize {
    object::guard_size("weft_collective.perform", || {
        // SAFETY: the client's endpoint.
        let ep = unsafe { ep::<D>(fid) };
        // SAFETY: null, or the client's arguments.
        let arguments = unsafe { arguments.as_ref() }.ok_or(Errno::INVAL)?;
        let Arguments { collective, datatype, op, looks, input, result, count, root } = *arguments;
        let operation = ops::operation(collective).ok_or(Errno::OPNOTSUPP)?;
        let call =
            Call { input, result, count, root_addr: root, datatype, op, ..Call::new(operation, coll_addr, context) };
        let elements = ops::elements(ep.domain(), operation, datatype, op)?;
        let group = group::named(coll_addr)?;
        // SAFETY: the client leaves the buffers to the operation until it completes.
        Ok(unsafe { ep.perform_collective(group, elements, &call, looks) })
    })
}
