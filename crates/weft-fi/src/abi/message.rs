//! Messages and tagged messages (fi_msg(3), fi_tagged(3)): from translated arguments to an operation of the endpoint.
//!
//! Place in the data flow: [`crate::abi::transfer`] → here → [`Ep::start_send`] → `Engine::send`, or
//! [`Ep::post_recv`] → `Engine::recv`. Calls without flags use the endpoint's defaults. Calls with flags use
//! nothing of the defaults.

use std::ffi::c_void;

use weft_engine::api::{OpFlags, RecvFlags};
use weft_engine::mem::Iov;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::args::{iovs, recv_iovs};
use crate::abi::errno::Errno;
use crate::abi::transfer::Destination;
use crate::endpoint::flags::{self, Mode};
use crate::endpoint::{Ep, Recv, Send};

/// The message structure of a call with flags.
pub(super) trait Message {
    /// Whether the message is tagged.
    const TAGGED: bool;

    /// The fields as those of a tagged message.
    fn tagged(&self) -> sys::fi_msg_tagged;
}

impl Message for sys::fi_msg {
    const TAGGED: bool = false;

    #[inline]
    fn tagged(&self) -> sys::fi_msg_tagged {
        let Self { msg_iov, desc, iov_count, addr, context, data } = *self;
        sys::fi_msg_tagged { msg_iov, desc, iov_count, addr, tag: 0, ignore: 0, context, data }
    }
}

impl Message for sys::fi_msg_tagged {
    const TAGGED: bool = true;

    #[inline]
    fn tagged(&self) -> sys::fi_msg_tagged {
        *self
    }
}

/// The endpoint's default mode for a send, or for a tagged one.
#[inline(always)]
fn tx_mode<D: Device>(ep: &Ep<D>, tagged: bool, data: bool) -> Mode<OpFlags> {
    let mut mode = ep.tx_mode();
    if tagged {
        mode.ops |= OpFlags::TAGGED;
    }
    mode.ops.set(OpFlags::DATA, data);
    mode
}

/// Starts a send, which is tagged if it has a `tag`, and carries `data` for the peer's completion.
#[inline(always)]
pub(super) fn send<D: Device>(
    ep: &Ep<D>,
    iov: &[Iov],
    dest: sys::fi_addr_t,
    tag: Option<u64>,
    data: Option<u64>,
    context: *mut c_void,
) -> isize {
    let mode = tx_mode(ep, tag.is_some(), data.is_some());
    let (tag, data) = (tag.unwrap_or(0), data.unwrap_or(0));
    ep.start_send(&Send { iov, dest, tag, data, context, mode, entry: ep.tx_entry(mode) })
}

/// Starts a send that makes no queue entry. Its buffers are free on return.
#[inline(always)]
pub(super) fn inject<D: Device>(
    ep: &Ep<D>,
    iov: &[Iov],
    dest: sys::fi_addr_t,
    tag: Option<u64>,
    data: Option<u64>,
) -> isize {
    let mut mode = tx_mode(ep, tag.is_some(), data.is_some());
    mode.ops |= OpFlags::INJECT;
    let (tag, data) = (tag.unwrap_or(0), data.unwrap_or(0));
    ep.start_send(&Send { iov, dest, tag, data, context: ep.context(), mode, entry: false })
}

/// Starts the send that a structure describes.
///
/// # Safety
/// `msg` is null or points to a structure as fi_msg(3) and fi_tagged(3) define it. The buffers are left to
/// the operation until it completes.
#[inline]
pub(super) unsafe fn send_described<D: Device, T: Destination, M: Message>(
    ep: &Ep<D>,
    msg: *const M,
    flags: u64,
) -> Result<isize, Errno> {
    let mut mode = flags::transmit(flags)?;
    mode.ops.set(OpFlags::TAGGED, M::TAGGED);
    // SAFETY: the caller's promise.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVAL)?.tagged();
    // SAFETY: the caller's promise.
    let iov = unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
    let sys::fi_msg_tagged { addr, tag, data, context, .. } = msg;
    Ok(ep.start_send(&Send { iov: &iov, dest: T::of(addr), tag, data, context, mode, entry: ep.tx_entry(mode) }))
}

/// Posts a receive.
#[inline(always)]
pub(super) fn recv<D: Device>(ep: &Ep<D>, iov: &[Iov], src: sys::fi_addr_t, context: *mut c_void) -> isize {
    let mode = ep.rx_mode();
    ep.post_recv(&Recv { iov, src, tag: 0, ignore: 0, context, mode, entry: ep.rx_entry(mode) })
}

/// Posts a tagged receive, which matches the tag in the bits that `ignore` has not set.
#[inline(always)]
pub(super) fn recv_tagged<D: Device>(
    ep: &Ep<D>,
    iov: &[Iov],
    src: sys::fi_addr_t,
    tag: u64,
    ignore: u64,
    context: *mut c_void,
) -> isize {
    let mut mode = ep.tagged_rx_mode();
    mode.ops |= RecvFlags::TAGGED;
    ep.post_recv(&Recv { iov, src, tag, ignore, context, mode, entry: ep.rx_entry(mode) })
}

/// Posts the receive that a structure describes, or peeks, claims or discards a message.
///
/// # Safety
/// As for [`send_described`].
#[inline]
pub(super) unsafe fn recv_described<D: Device, M: Message>(
    ep: &Ep<D>,
    msg: *const M,
    flags: u64,
) -> Result<isize, Errno> {
    let mut mode = flags::receive(flags)?;
    mode.ops.set(RecvFlags::TAGGED, M::TAGGED);
    // SAFETY: the caller's promise.
    let msg = unsafe { msg.as_ref() }.ok_or(Errno::INVAL)?.tagged();
    // A message that is discarded or only found needs no buffer.
    let count = if mode.ops.intersects(RecvFlags::PEEK | RecvFlags::DISCARD) { 0 } else { msg.iov_count };
    // SAFETY: the caller's promise.
    let iov = unsafe { recv_iovs(msg.msg_iov, count, ep.limits().iov) }?;
    let sys::fi_msg_tagged { addr, tag, ignore, context, .. } = msg;
    Ok(ep.post_recv(&Recv { iov: &iov, src: addr, tag, ignore, context, mode, entry: ep.rx_entry(mode) }))
}
