//! The deferred work queue (fi_trigger(3)): FI_QUEUE_WORK, FI_CANCEL_WORK, FI_FLUSH_WORK.
//!
//! Place in the data flow: `fi_control(domain)` → this file → a program of the domain's queue. The client may
//! reuse its structures as soon as the call returns.
//!
//! With manual progress, reading a counter makes progress only on bound endpoints. A counter that only work
//! raises, or that work waits for, has none. Reading it therefore makes progress on all endpoints of the
//! domain ([`Domain::drive`]), because any of them may contribute to its value.
//!
//! Cancelling ends work that has not started, and receives that are not matched. It waits for operations
//! under way. On return the client may reuse its buffers, or the result is -FI_EBUSY.
//!
//! Errors: -FI_ENOSYS for kinds of work that weft does not implement, and if the domain was opened without
//! FI_TRIGGER; -FI_EOPNOTSUPP if the endpoint was opened without FI_TRIGGER; -FI_EINVAL for contradictory
//! arguments, including FI_INJECT; -FI_EDOMAIN for objects of another domain; -FI_EAGAIN if too many programs
//! wait; and the errors of the operation's own call.

use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_engine::amo::Form;
use weft_engine::api::{OpFlags, RecvFlags};
use weft_engine::program::FREE_LANE;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::args::{iovs, recv_iovs, remote_iovs};
use crate::abi::atomic::{NOTHING, with_msg};
use crate::abi::errno::Errno;
use crate::abi::object::{self, Hold};
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::endpoint::cell::deferred::Standing;
use crate::endpoint::cell::{AnyCell, CellRef};
use crate::endpoint::flags::{self, Mode};
use crate::endpoint::{Ep, Recv, Rma, Send};
use crate::trigger::op::{Op, Report};
use crate::trigger::{Act, Origin, Start};

/// Checks that a client's pointer is not null.
fn required<T>(pointer: *mut T) -> Result<NonNull<T>, Errno> {
    NonNull::new(pointer).ok_or(Errno::INVAL)
}

/// The mode of a deferred operation that transmits. FI_TRIGGER has no further meaning here.
fn tx_mode(flags: u64, translate: fn(u64) -> Result<Mode<OpFlags>, Errno>) -> Result<Mode<OpFlags>, Errno> {
    let mode = translate(flags & !sys::FI_TRIGGER)?;
    if mode.ops.contains(OpFlags::INJECT) { Err(Errno::INVAL) } else { Ok(mode) }
}

/// The mode of a deferred receive. The result of one with certain flags is an entry, or several entries, so it cannot
/// be deferred.
fn rx_mode(flags: u64) -> Result<Mode<RecvFlags>, Errno> {
    let mode = flags::receive(flags & !sys::FI_TRIGGER)?;
    if mode.ops.intersects(RecvFlags::LOOKS | RecvFlags::MULTI) { Err(Errno::NOSYS) } else { Ok(mode) }
}

impl Domain {
    /// Implements FI_QUEUE_WORK.
    ///
    /// # Safety
    /// `work` is the client's request, and its pointers are valid as fi_trigger(3) requires.
    pub(super) unsafe fn queue_work<D: Device>(&self, work: NonNull<sys::fi_deferred_work>) -> Result<(), Errno> {
        // SAFETY: the client's request.
        let request = unsafe { work.read() };
        // SAFETY: the client's counter.
        let trigger = unsafe { self.counter(request.triggering_cntr) }?;
        let completion = match NonNull::new(request.completion_cntr) {
            // SAFETY: the client's counter.
            Some(cntr) => Some(unsafe { self.counter(cntr.as_ptr()) }?),
            None => None,
        };
        let mut origin = Origin { work: work.as_ptr().addr(), cell: 0, context: 0, counter: trigger.id() };
        let (lane, act) = match request.op_type {
            sys::FI_OP_CNTR_SET | sys::FI_OP_CNTR_ADD => {
                if completion.is_some() {
                    return Err(Errno::INVAL);
                }
                // SAFETY: the field for this type.
                let op = required(unsafe { request.op.cntr })?;
                // SAFETY: the client's structure.
                let sys::fi_op_cntr { cntr, value } = unsafe { op.read() };
                // SAFETY: the client's counter.
                let target = unsafe { self.counter(cntr) }?;
                self.drive(&target);
                let set = request.op_type == sys::FI_OP_CNTR_SET;
                (FREE_LANE, if set { Act::Set(target, value) } else { Act::Add(target, value) })
            }
            _ => {
                // SAFETY: the caller's promise.
                let (ep, op, entry) = unsafe { self.operation::<D>(&request) }?;
                let cell = ep.cell();
                cell.admit(&op)?;
                (origin.cell, origin.context) = (cell.id(), op.ctx.ptr);
                if let Some(completion) = &completion {
                    self.drive(completion);
                }
                let report = Report { work: origin.work, completion, entry, cancelled: false };
                let lane = op.lane(cell.lanes());
                (lane, Act::Start(Box::new(Start { cell: Arc::clone(cell) as CellRef, op, report: Some(report) })))
            }
        };
        self.drive(&trigger);
        self.work().submit(origin, trigger, request.threshold, lane, act)
    }

    /// Returns a counter of this domain.
    ///
    /// # Safety
    /// `cntr` is null or an object of the client.
    unsafe fn counter(&self, cntr: *mut sys::fid_cntr) -> Result<Hold<Cntr>, Errno> {
        // SAFETY: the caller's promise.
        let cntr = unsafe { Hold::<Cntr>::of(cntr) }?;
        if std::ptr::eq::<Self>(&**cntr.domain(), self) { Ok(cntr) } else { Err(Errno::DOMAIN) }
    }

    /// Returns an endpoint of this domain that was opened with FI_TRIGGER.
    ///
    /// # Safety
    /// `ep` is null or an object of the client.
    unsafe fn endpoint<'a, D: Device>(&self, ep: *mut sys::fid_ep) -> Result<&'a Ep<D>, Errno> {
        // SAFETY: the caller's promise.
        let ep = unsafe { object::borrow::<Ep<D>>(ep) }?;
        if !std::ptr::eq::<Self>(&**ep.domain(), self) {
            return Err(Errno::DOMAIN);
        }
        if ep.cell().triggers() { Ok(ep) } else { Err(Errno::OPNOTSUPP) }
    }

    /// The operation of a request, its endpoint, and whether it also completes at the endpoint.
    ///
    /// # Safety
    /// As for [`Domain::queue_work`].
    unsafe fn operation<'a, D: Device>(&self, request: &sys::fi_deferred_work) -> Result<Parsed<'a, D>, Errno> {
        let (ep, op, completion) = match request.op_type {
            // SAFETY: the caller's promise.
            sys::FI_OP_RECV | sys::FI_OP_SEND => unsafe { self.plain(request) }?,
            // SAFETY: the caller's promise.
            sys::FI_OP_TRECV | sys::FI_OP_TSEND => unsafe { self.tagged(request) }?,
            // SAFETY: the caller's promise.
            sys::FI_OP_READ | sys::FI_OP_WRITE => unsafe { self.access(request) }?,
            sys::FI_OP_ATOMIC | sys::FI_OP_FETCH_ATOMIC | sys::FI_OP_COMPARE_ATOMIC => {
                // SAFETY: the caller's promise.
                unsafe { self.atomic(request) }?
            }
            _ => return Err(Errno::NOSYS),
        };
        // The end of the operation is always needed: for the counter, and for a cancellation.
        Ok((ep, op.reported(), completion))
    }

    /// Parses FI_OP_RECV and FI_OP_SEND.
    ///
    /// # Safety
    /// As for [`Domain::queue_work`].
    unsafe fn plain<'a, D: Device>(&self, request: &sys::fi_deferred_work) -> Result<Parsed<'a, D>, Errno> {
        // SAFETY: the field for these types.
        let op = required(unsafe { request.op.msg })?;
        // SAFETY: the client's structure.
        let sys::fi_op_msg { ep, msg, flags } = unsafe { op.read() };
        let sys::fi_msg { msg_iov, desc, iov_count, addr, context, data } = msg;
        let tagged = sys::fi_msg_tagged { msg_iov, desc, iov_count, addr, tag: 0, ignore: 0, context, data };
        // SAFETY: the client's endpoint.
        let ep = unsafe { self.endpoint(ep) }?;
        // SAFETY: the client's vector and buffers.
        unsafe { message(ep, &tagged, flags, false, request.op_type == sys::FI_OP_SEND) }
    }

    /// Parses FI_OP_TRECV and FI_OP_TSEND.
    ///
    /// # Safety
    /// As for [`Domain::queue_work`].
    unsafe fn tagged<'a, D: Device>(&self, request: &sys::fi_deferred_work) -> Result<Parsed<'a, D>, Errno> {
        // SAFETY: the field for these types.
        let op = required(unsafe { request.op.tagged })?;
        // SAFETY: the client's structure.
        let sys::fi_op_tagged { ep, msg, flags } = unsafe { op.read() };
        // SAFETY: the client's endpoint.
        let ep = unsafe { self.endpoint(ep) }?;
        // SAFETY: the client's vector and buffers.
        unsafe { message(ep, &msg, flags, true, request.op_type == sys::FI_OP_TSEND) }
    }

    /// Parses FI_OP_READ and FI_OP_WRITE.
    ///
    /// # Safety
    /// As for [`Domain::queue_work`].
    unsafe fn access<'a, D: Device>(&self, request: &sys::fi_deferred_work) -> Result<Parsed<'a, D>, Errno> {
        // SAFETY: the field for these types.
        let op = required(unsafe { request.op.rma })?;
        // SAFETY: the client's structure.
        let sys::fi_op_rma { ep, msg, flags } = unsafe { op.read() };
        // SAFETY: the client's endpoint.
        let ep = unsafe { self.endpoint(ep) }?;
        // SAFETY: the client's vectors and buffers.
        unsafe { access(ep, &msg, flags, request.op_type == sys::FI_OP_WRITE) }
    }

    /// Parses FI_OP_ATOMIC, FI_OP_FETCH_ATOMIC and FI_OP_COMPARE_ATOMIC.
    ///
    /// # Safety
    /// As for [`Domain::queue_work`].
    unsafe fn atomic<'a, D: Device>(&self, request: &sys::fi_deferred_work) -> Result<Parsed<'a, D>, Errno> {
        let (ep, msg, flags, form, vectors) = match request.op_type {
            sys::FI_OP_ATOMIC => {
                // SAFETY: the field for this type.
                let op = required(unsafe { request.op.atomic })?;
                // SAFETY: the client's structure.
                let sys::fi_op_atomic { ep, msg, flags } = unsafe { op.read() };
                (ep, msg, flags, Form::Base, [NOTHING; 2])
            }
            sys::FI_OP_FETCH_ATOMIC => {
                // SAFETY: the field for this type.
                let op = required(unsafe { request.op.fetch_atomic })?;
                // SAFETY: the client's structure.
                let sys::fi_op_fetch_atomic { ep, msg, fetch, flags } = unsafe { op.read() };
                (ep, msg, flags, Form::Fetch, [NOTHING, (fetch.msg_iov.cast_const(), fetch.iov_count)])
            }
            _ => {
                // SAFETY: the field for the third type.
                let op = required(unsafe { request.op.compare_atomic })?;
                // SAFETY: the client's structure.
                let sys::fi_op_compare_atomic { ep, msg, fetch, compare, flags } = unsafe { op.read() };
                let fetched = (fetch.msg_iov.cast_const(), fetch.iov_count);
                (ep, msg, flags, Form::Compare, [(compare.msg_iov, compare.iov_count), fetched])
            }
        };
        // SAFETY: the client's endpoint.
        let ep = unsafe { self.endpoint(ep) }?;
        // SAFETY: the client's vectors and buffers.
        unsafe { atomic(ep, form, &msg, vectors, flags) }
    }

    /// Implements FI_CANCEL_WORK, by the address of the request. Returns -FI_ENOENT if there is no such work,
    /// or it is complete.
    pub(super) fn cancel_work(&self, work: usize) -> Result<(), Errno> {
        let ended = self.work().0.cancel(|origin| origin.work == work);
        let mut found = !ended.is_empty();
        drop(ended);
        self.work().run();
        let end = Instant::now() + Duration::from_millis(self.params().close_timeout_ms);
        for cell in self.cells() {
            loop {
                let standing = cell.cancel_work(work);
                found |= standing != Standing::Unknown;
                if standing != Standing::UnderWay {
                    break;
                }
                // The operation is under way: wait for its end.
                if cell.progress() == 0 {
                    if Instant::now() >= end {
                        return Err(Errno::BUSY);
                    }
                    std::thread::yield_now();
                }
            }
        }
        if found { Ok(()) } else { Err(Errno::NOENT) }
    }

    /// Implements FI_FLUSH_WORK: ends all work that has not started, or only the work that waits for `cntr`.
    ///
    /// # Safety
    /// `cntr` is null or an object of the client.
    pub(super) unsafe fn flush_work(&self, cntr: *mut sys::fid_cntr) -> Result<(), Errno> {
        let only = match NonNull::new(cntr) {
            // SAFETY: the caller's promise.
            Some(cntr) => Some(unsafe { self.counter(cntr.as_ptr()) }?.id()),
            None => None,
        };
        drop(self.work().0.cancel(|origin| origin.work != 0 && only.is_none_or(|id| origin.counter == id)));
        self.work().run();
        Ok(())
    }
}

type Parsed<'a, D> = (&'a Ep<D>, Op, bool);

/// Makes a send or a receive.
///
/// # Safety
/// The vector has the length given in `msg`, and its buffers belong to the operation until it completes.
unsafe fn message<'a, D: Device>(
    ep: &'a Ep<D>,
    msg: &sys::fi_msg_tagged,
    flags: u64,
    tagged: bool,
    send: bool,
) -> Result<Parsed<'a, D>, Errno> {
    let sys::fi_msg_tagged { addr, tag, ignore, context, data, .. } = *msg;
    if send {
        let mut mode = tx_mode(flags, flags::transmit)?;
        mode.ops.set(OpFlags::TAGGED, tagged);
        // SAFETY: the caller's promise.
        let iov = unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
        let entry = mode.completion;
        let op = ep.send_op(&Send { iov: &iov, dest: addr, tag, data, context, mode, entry });
        return Ok((ep, Op::send(&op), entry));
    }
    let mut mode = rx_mode(flags)?;
    mode.ops.set(RecvFlags::TAGGED, tagged);
    // SAFETY: the caller's promise.
    let iov = unsafe { recv_iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
    let entry = mode.completion;
    let op = ep.checked_recv_op(&Recv { iov: &iov, src: addr, tag, ignore, context, mode, entry })?;
    Ok((ep, Op::recv(&op), entry))
}

/// Makes an RMA write or read.
///
/// # Safety
/// The vectors have the lengths given in `msg`, and the buffers belong to the operation until it completes.
unsafe fn access<'a, D: Device>(
    ep: &'a Ep<D>,
    msg: &sys::fi_msg_rma,
    flags: u64,
    write: bool,
) -> Result<Parsed<'a, D>, Errno> {
    let mode = tx_mode(flags, flags::transmit)?;
    // SAFETY: the caller's promise.
    let iov = unsafe { iovs(msg.msg_iov, msg.iov_count, ep.limits().iov) }?;
    // SAFETY: the caller's promise.
    let remote = unsafe { remote_iovs(msg.rma_iov, msg.rma_iov_count, ep.limits().rma_iov) }?;
    let entry = mode.completion;
    let &sys::fi_msg_rma { addr: dest, context, data, .. } = msg;
    let rma = Rma { iov: &iov, dest, remote: &remote, data, context, mode, entry };
    let op = if write { Op::write(&ep.write_op(&rma)) } else { Op::read(&ep.read_op(&rma)) };
    Ok((ep, op, entry))
}

/// Makes an atomic operation.
///
/// # Safety
/// The vectors have the given lengths, and the buffers belong to the operation until it completes.
unsafe fn atomic<'a, D: Device>(
    ep: &'a Ep<D>,
    form: Form,
    msg: &sys::fi_msg_atomic,
    vectors: [(*const sys::fi_ioc, usize); 2],
    flags: u64,
) -> Result<Parsed<'a, D>, Errno> {
    let mode = tx_mode(flags, crate::abi::atomic::mode_of)?;
    let entry = mode.completion;
    // SAFETY: the caller's promise.
    let op = unsafe { with_msg(ep, form, msg, vectors, mode, entry, |atomic| Op::atomic(&ep.atomic_op(&atomic))) }?;
    Ok((ep, op, entry))
}
