//! Endpoints (fi_endpoint(3)): the handle that a client holds, and the operations on it.
//!
//! Place in the data flow: `fi_endpoint` makes an [`Ep`]; `fi_ep_bind` and `fi_enable` ([`setup`]) give its
//! `cell::EndpointCell` an engine and routes; the operation files ([`crate::msg`], [`crate::tagged`],
//! [`crate::rma`], …) translate calls and come back here to [`Ep::start_send`], [`Ep::post_recv`],
//! [`Ep::start_write`], [`Ep::start_read`], [`Ep::start_atomic`], which enter the cell.
//!
//! An alias (`fi_ep_alias`) is a second handle on the same cell, and on what is set up before enable, with
//! default flags of its own.
//!
//! Invariants: the hot fields stand first, next to the `fid`. What changes after creation and is read on the data path
//! is atomic; the client serializes such changes with its operations anyway (fi_endpoint.h).

pub(crate) mod args;
mod bind;
pub(crate) mod cell;
pub(crate) mod close;
pub(crate) mod connection;
pub(crate) mod deferred;
pub(crate) mod flags;
mod kind;
mod matching;
pub(crate) mod options;
mod peer;
mod registration;
pub(crate) mod route;
pub(crate) mod scalable;
pub(crate) mod setup;
pub(crate) mod shared;
mod tables;
#[cfg(test)]
mod tests;

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use weft_engine::amo::Amo;
use weft_engine::api::{ADDR_NONE, AtomicOp, Context, OpFlags, RecvOp, RmaIov, RmaOp, SendOp};
use weft_engine::mem::Iov;
use weft_fi_sys as sys;

use crate::domain::Domain;
use crate::endpoint::cell::CellRef;
use crate::endpoint::flags::{Defaults, Mode};
use crate::endpoint::kind::{Kind, Sources};
use crate::endpoint::route::{Class, User};
use crate::endpoint::scalable::Place;
use crate::endpoint::setup::Setup;
use crate::errno::Errno;
use crate::info::EpType;
use crate::info::hints::Hints;
use crate::noop;
use crate::object::{self, Head, Hold, Object, Uses};
use crate::trigger::op::Op;
use crate::{cm, collective};

/// Bounds of one endpoint, from the attributes with which it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Pieces of a local vector.
    pub(crate) iov: usize,
    /// Pieces of a remote vector.
    pub(crate) rma_iov: usize,
    /// Longest inject in bytes.
    pub(crate) inject_bytes: usize,
    /// Longest message in bytes.
    pub(crate) max_msg_bytes: usize,
    /// Transmit operations to each peer that may wait to leave.
    pub(crate) tx_depth: usize,
    /// Posted receives.
    pub(crate) rx_depth: usize,
}

impl Limits {
    /// Receives of one kind (tagged or not) that may be posted, as far as no shorter queue was asked for.
    /// Only messages free their places, so a client that has not limited itself gets more room than programs
    /// use.
    pub(crate) fn receives(&self) -> usize {
        const LONG_QUEUE: usize = 1 << 16;
        const MANY: usize = 1 << 20;
        if self.rx_depth < LONG_QUEUE { self.rx_depth } else { self.rx_depth.max(MANY) }
    }
}

/// A client's handle on an endpoint, or on a context that is used like one.
#[repr(C)]
pub(crate) struct Ep {
    head: Head<sys::fid_ep>,
    cell: CellRef,
    tx: Defaults,
    rx: Defaults,
    /// What sends do for the order that was promised ([`order::AFTER_ACCESSES`](crate::info::order::AFTER_ACCESSES)).
    send_order: OpFlags,
    limits: Limits,
    /// What receives do with the source that they name.
    sources: Sources,
    /// The client's context of the endpoint, for errors of operations that have none.
    context: usize,
    kind: Kind,
    /// Where it belongs, if it is a context of a scalable endpoint. An alias has its origin's.
    place: Option<Place>,
    /// The bits of an address that say which endpoint is meant, once the address vector is known. An alias
    /// has its origin's.
    endpoint_mask: AtomicU64,
    /// The type and the capabilities it was opened with.
    ty: EpType,
    caps: u64,
    /// Aliases share it.
    setup: Arc<Mutex<Setup>>,
    uses: Uses,
    /// What an alias is an alias of.
    parent: Option<Hold<Ep>>,
    /// Last, so that everything above is gone when the domain may go.
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` (an `UnsafeCell`) of the fid, whose class is set in `head_of`.
unsafe impl Object for Ep {
    type Fid = sys::fid_ep;
    const CLASSES: &'static [u32] =
        &[sys::FI_CLASS_EP, sys::FI_CLASS_SRX_CTX, sys::FI_CLASS_TX_CTX, sys::FI_CLASS_RX_CTX];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        if self.parent.is_none() && self.kind != Kind::Shared {
            self.shut();
        }
        Ok(())
    }

    /// Drops the devices if no thread was at work in them at the fork. Shared memory and sockets remain the parent's.
    fn abandon(&self) {
        if let Some(mut state) = self.cell.try_visit().filter(|_| self.parent.is_none()) {
            state.engine = None;
        }
    }
}

/// A send, as the message files hand it over.
pub(crate) struct Send<'a> {
    pub(crate) iov: &'a [Iov],
    pub(crate) dest: sys::fi_addr_t,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

/// A receive.
#[derive(Clone, Copy)]
pub(crate) struct Recv<'a> {
    pub(crate) iov: &'a [Iov],
    pub(crate) src: sys::fi_addr_t,
    pub(crate) tag: u64,
    pub(crate) ignore: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

/// An RMA read or write.
pub(crate) struct Rma<'a> {
    pub(crate) iov: &'a [Iov],
    pub(crate) dest: sys::fi_addr_t,
    pub(crate) remote: &'a [RmaIov],
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

/// An atomic operation. What it does not need of its local memory is not looked at.
pub(crate) struct Atomic<'a> {
    pub(crate) amo: Amo,
    pub(crate) iov: &'a [Iov],
    pub(crate) compare: &'a [Iov],
    pub(crate) result: &'a [Iov],
    pub(crate) dest: sys::fi_addr_t,
    pub(crate) remote: &'a [RmaIov],
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

/// The endpoint behind the client's pointer, on the data path: no check, as in every provider.
///
/// # Safety
/// `fid` came from this file and is not closed.
#[inline]
pub(crate) unsafe fn ep<'a>(fid: *mut sys::fid_ep) -> &'a Ep {
    // SAFETY: only objects of this type carry the operations that call this.
    unsafe { &*fid.cast::<Ep>() }
}

impl Ep {
    /// The part that outlives the handle.
    pub(crate) const fn cell(&self) -> &CellRef {
        &self.cell
    }

    /// What an alias is an alias of, or the endpoint itself.
    pub(crate) fn origin(&self) -> &Self {
        self.parent.as_deref().unwrap_or(self)
    }

    /// Where it belongs, if it is a context of a scalable endpoint.
    fn place(&self) -> Option<&Place> {
        self.origin().place.as_ref()
    }

    /// The domain.
    pub(crate) const fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }

    /// The default behaviour of transmit operations.
    #[inline]
    pub(crate) fn tx_mode(&self) -> Mode {
        self.tx.mode()
    }

    /// The default behaviour of receives.
    #[inline]
    pub(crate) fn rx_mode(&self) -> Mode {
        self.rx.mode()
    }

    /// The same of tagged receives.
    #[inline]
    pub(crate) fn tagged_rx_mode(&self) -> Mode {
        self.rx.tagged()
    }

    /// Whether a transmit operation of this mode makes a queue entry when it succeeds.
    #[inline]
    pub(crate) fn tx_entry(&self, mode: Mode) -> bool {
        mode.completion || !self.cell.bound.tx_selective()
    }

    /// Whether a receive of this mode makes a queue entry when it succeeds.
    #[inline]
    pub(crate) fn rx_entry(&self, mode: Mode) -> bool {
        mode.completion || !self.cell.bound.rx_selective()
    }

    /// Bounds.
    #[inline]
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The context of operations that have none.
    #[inline]
    pub(crate) fn context(&self) -> *mut c_void {
        self.context as *mut c_void
    }

    /// Who learns of the success of a transmit operation: whoever reads the queue, a counter, or nobody.
    #[inline(always)]
    fn told(&self, entry: bool, class: Class) -> OpFlags {
        match entry {
            true => OpFlags::empty(),
            false if self.cell.bound.counts(class) => OpFlags::COUNTED,
            false => OpFlags::QUIET,
        }
    }

    /// Starts a send.
    #[inline(always)]
    pub(crate) fn start_send(&self, send: &Send<'_>) -> isize {
        self.cell.submit_send(self.send_op(send))
    }

    /// A send as the engine takes it.
    #[inline(always)]
    pub(crate) fn send_op<'a>(&self, send: &Send<'a>) -> SendOp<'a> {
        let mut flags = send.mode.ops | self.send_order;
        flags |= self.told(send.entry, Class::Send);
        if flags.contains(OpFlags::INJECT | OpFlags::QUIET) {
            // Nobody learns when it is done, and its buffer is free already: no completion level can be observed.
            flags -= OpFlags::DELIVERY | OpFlags::TRANSMIT;
        }
        let family = if flags.contains(OpFlags::TAGGED) { sys::FI_TAGGED } else { sys::FI_MSG };
        SendOp {
            dest: send.dest,
            iov: send.iov,
            tag: send.tag,
            data: send.data,
            ctx: Context { ptr: send.context.addr(), user: User::new(sys::FI_SEND | family, send.entry).word() },
            flags,
        }
    }

    /// Posts a receive, or peeks, claims, discards.
    #[inline(always)]
    pub(crate) fn post_recv(&self, recv: &Recv<'_>) -> isize {
        if self.sources.checked {
            return self.post_checked(recv);
        }
        self.cell.submit_recv(self.recv_op(recv))
    }

    #[inline(never)]
    fn post_checked(&self, recv: &Recv<'_>) -> isize {
        self.checked_recv_op(recv).map_or_else(Errno::size, |op| self.cell.submit_recv(op))
    }

    /// A receive as the engine takes it, if it names a source where that is asked of it (FI_EXACT_DIRECTED_RECV).
    #[inline]
    pub(crate) fn checked_recv_op<'a>(&self, recv: &Recv<'a>) -> Result<RecvOp<'a>, Errno> {
        let Sources { exact, .. } = self.sources;
        if recv.src == ADDR_NONE {
            if exact && self.sources.honoured(recv.mode.ops.contains(OpFlags::TAGGED)) {
                return Err(Errno::INVAL);
            }
            return Ok(self.recv_op(recv));
        }
        // What comes from a scalable endpoint does not come from one of its receive contexts.
        let mask = self.origin().endpoint_mask.load(Ordering::Relaxed);
        Ok(self.recv_op(&Recv { src: recv.src & mask, ..*recv }))
    }

    /// A receive as the engine takes it, of whose source nothing is asked.
    #[inline(always)]
    fn recv_op<'a>(&self, recv: &Recv<'a>) -> RecvOp<'a> {
        let mut flags = recv.mode.ops;
        let tagged = flags.contains(OpFlags::TAGGED);
        let family = if tagged { sys::FI_TAGGED } else { sys::FI_MSG };
        let mut user = User::new(sys::FI_RECV | family, recv.entry);
        if flags.contains(OpFlags::PEEK) {
            // What a peek found is only ever reported by an entry, and it has received nothing.
            user = User::new(sys::FI_RECV | family, true).uncounted();
        } else if !recv.entry && !self.cell.bound.counts(Class::Recv) && !flags.contains(OpFlags::MULTI) {
            flags |= OpFlags::QUIET;
        }
        RecvOp {
            src: if self.sources.honoured(tagged) { recv.src } else { ADDR_NONE },
            iov: recv.iov,
            tag: recv.tag,
            ignore: recv.ignore,
            ctx: Context { ptr: recv.context.addr(), user: user.word() },
            flags,
        }
    }

    /// Starts an RMA write.
    #[inline]
    pub(crate) fn start_write(&self, rma: &Rma<'_>) -> isize {
        let op = self.write_op(rma);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::write(&op));
        }
        self.cell.submit_tx(|engine| engine.write(&op))
    }

    /// A write as the engine takes it.
    #[inline]
    pub(crate) fn write_op<'a>(&self, rma: &Rma<'a>) -> RmaOp<'a> {
        self.rma_op(rma, rma.mode.ops, Class::Write, sys::FI_RMA | sys::FI_WRITE)
    }

    /// Starts an RMA read.
    #[inline]
    pub(crate) fn start_read(&self, rma: &Rma<'_>) -> isize {
        let op = self.read_op(rma);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::read(&op));
        }
        self.cell.submit_tx(|engine| engine.read(&op))
    }

    /// A read as the engine takes it.
    #[inline]
    pub(crate) fn read_op<'a>(&self, rma: &Rma<'a>) -> RmaOp<'a> {
        // A read completes with its data, whatever level is asked for, and carries none of its own.
        let flags = rma.mode.ops & (OpFlags::FENCE | OpFlags::TRIGGER);
        self.rma_op(rma, flags, Class::Read, sys::FI_RMA | sys::FI_READ)
    }

    /// Starts an atomic operation.
    #[inline]
    pub(crate) fn start_atomic(&self, atomic: &Atomic<'_>) -> isize {
        let op = self.atomic_op(atomic);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::atomic(&op));
        }
        self.cell.submit_tx(|engine| engine.atomic(&op))
    }

    /// An atomic operation as the engine takes it.
    #[inline]
    pub(crate) fn atomic_op<'a>(&self, atomic: &Atomic<'a>) -> AtomicOp<'a> {
        let mut flags = atomic.mode.ops;
        let (class, completion) = if atomic.amo.fetches() {
            // It completes with what it fetched, whatever level is asked for.
            flags -= OpFlags::DELIVERY | OpFlags::TRANSMIT;
            (Class::Read, sys::FI_ATOMIC | sys::FI_READ)
        } else {
            (Class::Write, sys::FI_ATOMIC | sys::FI_WRITE)
        };
        flags |= self.told(atomic.entry, class);
        AtomicOp {
            dest: atomic.dest,
            amo: atomic.amo,
            iov: atomic.iov,
            compare: atomic.compare,
            result: atomic.result,
            remote: atomic.remote,
            data: atomic.data,
            ctx: Context { ptr: atomic.context.addr(), user: User::new(completion, atomic.entry).word() },
            flags,
        }
    }

    #[inline]
    fn rma_op<'a>(&self, rma: &Rma<'a>, mut flags: OpFlags, class: Class, completion: u64) -> RmaOp<'a> {
        flags |= self.told(rma.entry, class);
        let user = User::new(completion, rma.entry).word();
        RmaOp {
            dest: rma.dest,
            iov: rma.iov,
            remote: rma.remote,
            data: rma.data,
            ctx: Context { ptr: rma.context.addr(), user },
            flags,
        }
    }
}

/// The C structure of a handle: functions that its type and its kind do not have answer -FI_ENOSYS.
fn head_of(kind: Kind, ty: EpType, context: *mut c_void) -> sys::fid_ep {
    sys::fid_ep {
        fid: object::new_fid(kind.class(), context, &FID_OPS),
        ops: object::table(&EP_OPS.base),
        cm: object::table(if ty == EpType::Msg { &cm::CONNECTED } else { &cm::OPS }),
        msg: object::table(tables::msg(ty, kind)),
        rma: object::table(tables::rma(ty, kind)),
        tagged: object::table(tables::tagged(ty, kind)),
        atomic: object::table(tables::atomic(ty, kind)),
        collective: object::table(&collective::OPS),
    }
}

/// Opens an endpoint: `fi_endpoint`.
pub(crate) unsafe extern "C" fn open(
    domain: *mut sys::fid_domain,
    info: *mut sys::fi_info,
    out: *mut *mut sys::fid_ep,
    context: *mut c_void,
) -> c_int {
    object::guard("fi_endpoint", || {
        let place = object::place(out)?;
        // SAFETY: the client's domain.
        let domain = unsafe { Hold::<Domain>::of(domain) }?;
        // SAFETY: null, or the client's fi_info, which the host allocated.
        let info = unsafe { Hints::read(info) }?.ok_or(Errno::INVAL)?;
        let endpoint = setup::open(domain, &info, Kind::Whole, None, context)?;
        // SAFETY: the client's place for the new pointer.
        Ok(unsafe { object::give(endpoint, place) })
    })
}

static FID_OPS: sys::fi_ops =
    sys::fi_ops { close: Some(close), bind: Some(bind), control: Some(control), ops_open: Some(ops_open), ..noop::FID };

/// The operations, with the slot that later versions of libfabric call without looking whether it is there.
#[repr(C)]
struct EpOps {
    base: sys::fi_ops_ep,
    export_xpu: unsafe extern "C" fn(*mut sys::fid_ep, u64, *mut c_void) -> c_int,
}

static EP_OPS: EpOps = EpOps {
    base: sys::fi_ops_ep {
        size: size_of::<EpOps>(),
        cancel: Some(cancel),
        getopt: Some(getopt),
        setopt: Some(setopt),
        rx_size_left: Some(rx_size_left),
        tx_size_left: Some(tx_size_left),
        ..noop::EP
    },
    export_xpu,
};

unsafe extern "C" fn close(fid: *mut sys::fid) -> c_int {
    object::guard("fi_close(ep)", || {
        // SAFETY: the client closes its endpoint.
        unsafe { object::close::<Ep>(fid) }.map(|()| 0)
    })
}

const EXTENSIONS: &[object::Extension] = &[(matching::NAME, matching::ops), (registration::NAME, registration::ops)];

unsafe extern "C" fn ops_open(
    fid: *mut sys::fid,
    name: *const c_char,
    flags: u64,
    ops: *mut *mut c_void,
    _context: *mut c_void,
) -> c_int {
    object::guard("fi_open_ops(ep)", || {
        // SAFETY: the client's endpoint.
        unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's string and place.
        unsafe { object::open_ops(name, flags, ops, EXTENSIONS) }
    })
}

unsafe extern "C" fn bind(fid: *mut sys::fid, what: *mut sys::fid, flags: u64) -> c_int {
    object::guard("fi_ep_bind", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: another object of the client.
        unsafe { ep.bind(what, flags) }.map(|()| 0)
    })
}

unsafe extern "C" fn control(fid: *mut sys::fid, command: c_int, arg: *mut c_void) -> c_int {
    object::guard("fi_control(ep)", || {
        // SAFETY: an endpoint of the client, of which an alias may hold a reference.
        let ep = unsafe { object::share_fid::<Ep>(fid) }?;
        // SAFETY: the client's argument for this command.
        unsafe { ep.control(command.cast_unsigned(), arg) }.map(|()| 0)
    })
}

unsafe extern "C" fn cancel(fid: *mut sys::fid, context: *mut c_void) -> isize {
    // SAFETY: the client's endpoint.
    unsafe { ep(fid.cast()) }.cell.cancel(context.addr())
}

unsafe extern "C" fn getopt(
    fid: *mut sys::fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    object::guard("fi_getopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's buffer and its length.
        unsafe { ep.get_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn setopt(fid: *mut sys::fid, level: c_int, name: c_int, value: *const c_void, len: usize) -> c_int {
    object::guard("fi_setopt", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow_fid::<Ep>(fid) }?;
        // SAFETY: the client's value of that length.
        unsafe { ep.set_option(level, name, value, len) }.map(|()| 0)
    })
}

unsafe extern "C" fn rx_size_left(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_rx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(fid) }?;
        if let Some(shared) = ep.receives() {
            return Ok(shared.pool.free().cast_signed());
        }
        let state = ep.cell.state();
        let engine = state.engine.as_ref().ok_or(Errno::OPBADSTATE)?;
        // Tagged and untagged receives have a queue of that depth each. Whether multi-receives are refused,
        // too, is another question.
        let left = if state.routes.rx_full() { 0 } else { engine.rx_free() };
        Ok(left.cast_signed())
    })
}

unsafe extern "C" fn tx_size_left(fid: *mut sys::fid_ep) -> isize {
    object::guard_size("fi_tx_size_left", || {
        // SAFETY: an endpoint of the client.
        let ep = unsafe { object::borrow::<Ep>(fid) }?;
        let state = ep.cell.state();
        let engine = state.engine.as_ref().ok_or(Errno::OPBADSTATE)?;
        let left = if state.routes.tx_full() { 0 } else { engine.tx_free() };
        Ok(left.cast_signed())
    })
}

unsafe extern "C" fn export_xpu(_ep: *mut sys::fid_ep, _flags: u64, _xpu: *mut c_void) -> c_int {
    Errno::NOSYS.code()
}
