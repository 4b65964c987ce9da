//! Remote memory access (fi_rma(3)): from translated arguments to an operation of the endpoint.
//!
//! Place in the data flow: [`crate::abi::transfer`] → here → [`Ep::start_write`] → `Engine::write`, or
//! [`Ep::start_read`] → `Engine::read`. Calls without flags use the endpoint's defaults.

use std::ffi::c_void;

use weft_engine::api::{OpFlags, RmaIov};
use weft_engine::mem::{Iov, total_len};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::args::{iovs, remote_iovs};
use crate::abi::errno::Errno;
use crate::abi::transfer::Destination;
use crate::endpoint::flags;
use crate::endpoint::{Ep, Rma};

/// The remote memory of a call without a structure: one piece, as long as the local pieces together.
#[derive(Clone, Copy)]
pub(super) struct Target {
    pub(super) dest: sys::fi_addr_t,
    pub(super) addr: u64,
    pub(super) key: u64,
}

impl Target {
    /// The `len` bytes from the address on.
    #[inline]
    pub(super) fn remote(self, len: usize) -> RmaIov {
        RmaIov { addr: self.addr, len: len as u64, key: self.key }
    }
}

/// Starts a write, which carries `data` for the peer's completion.
#[inline]
pub(super) fn write<D: Device>(
    ep: &Ep<D>,
    iov: &[Iov],
    target: Target,
    data: Option<u64>,
    context: *mut c_void,
) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops.set(OpFlags::DATA, data.is_some());
    let remote = [target.remote(total_len(iov))];
    let data = data.unwrap_or(0);
    ep.start_write(&Rma { iov, dest: target.dest, remote: &remote, data, context, mode, entry: ep.tx_entry(mode) })
}

/// Starts a write that makes no queue entry. Its buffers are free on return.
#[inline]
pub(super) fn inject<D: Device>(ep: &Ep<D>, iov: &[Iov], target: Target, data: Option<u64>) -> isize {
    let mut mode = ep.tx_mode();
    mode.ops |= OpFlags::INJECT;
    mode.ops.set(OpFlags::DATA, data.is_some());
    let remote = [target.remote(total_len(iov))];
    let data = data.unwrap_or(0);
    ep.start_write(&Rma { iov, dest: target.dest, remote: &remote, data, context: ep.context(), mode, entry: false })
}

/// Starts a read.
#[inline]
pub(super) fn read<D: Device>(ep: &Ep<D>, iov: &[Iov], target: Target, context: *mut c_void) -> isize {
    let mode = ep.tx_mode();
    let remote = [target.remote(total_len(iov))];
    ep.start_read(&Rma { iov, dest: target.dest, remote: &remote, data: 0, context, mode, entry: ep.tx_entry(mode) })
}

/// Starts, by `start`, the operation that a structure describes.
///
/// # Safety
/// `msg` is null or points to a structure as fi_rma(3) defines it. The buffers are left to the operation until it
/// completes.
pub(super) unsafe fn described<D: Device, T: Destination>(
    ep: &Ep<D>,
    msg: *const sys::fi_msg_rma,
    flags: u64,
    start: fn(&Ep<D>, &Rma<'_>) -> isize,
) -> Result<isize, Errno> {
    // SAFETY: the caller's promise.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVAL)?;
    let mode = flags::transmit(flags)?;
    // SAFETY: the caller's promise.
    let iov = unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
    // SAFETY: the caller's promise.
    let remote = unsafe { remote_iovs(msg.rma_iov, msg.rma_iov_count, ep.limits().rma_iov) }?;
    let &sys::fi_msg_rma { addr, data, context, .. } = msg;
    let rma = Rma { iov: &iov, dest: T::of(addr), remote: &remote, data, context, mode, entry: ep.tx_entry(mode) };
    Ok(start(ep, &rma))
}
