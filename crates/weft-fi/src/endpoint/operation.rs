//! Translates the client's operations into the engine's.
//!
//! Place in the data flow: the entry points of data transfers ([`crate::abi::transfer`]) read the client's
//! arguments and call [`Ep::start_send`], [`Ep::post_recv`], [`Ep::start_write`], [`Ep::start_read`] or
//! [`Ep::start_atomic`], which enter the cell.

use std::ffi::c_void;
use std::sync::atomic::Ordering;

use weft_engine::amo::Amo;
use weft_engine::api::{ADDR_NONE, AtomicOp, Context, OpFlags, RecvFlags, RecvOp, RmaIov, RmaOp, SendOp};
use weft_engine::mem::Iov;
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::endpoint::Ep;
use crate::endpoint::flags::Mode;
use crate::endpoint::kind::Sources;
use crate::endpoint::route::{Class, User};
use crate::trigger::op::Op;

/// A send, with translated arguments.
pub(crate) struct Send<'a> {
    pub(crate) iov: &'a [Iov],
    pub(crate) dest: sys::fi_addr_t,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode<OpFlags>,
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
    pub(crate) mode: Mode<RecvFlags>,
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
    pub(crate) mode: Mode<OpFlags>,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

/// An atomic operation. Local memory that it does not need is ignored.
pub(crate) struct Atomic<'a> {
    pub(crate) amo: Amo,
    pub(crate) iov: &'a [Iov],
    pub(crate) compare: &'a [Iov],
    pub(crate) result: &'a [Iov],
    pub(crate) dest: sys::fi_addr_t,
    pub(crate) remote: &'a [RmaIov],
    pub(crate) data: u64,
    pub(crate) context: *mut c_void,
    pub(crate) mode: Mode<OpFlags>,
    /// Whether a success makes a queue entry.
    pub(crate) entry: bool,
}

impl<D: Device> Ep<D> {
    /// The flags for the report of a success: by a queue entry, by a counter only, or not at all.
    #[inline(always)]
    pub(super) fn completion_policy(&self, entry: bool, class: Class) -> OpFlags {
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

    /// The engine's operation of a send.
    #[inline(always)]
    pub(crate) fn send_op<'a>(&self, send: &Send<'a>) -> SendOp<'a> {
        let mut flags = send.mode.ops | self.send_order;
        flags |= self.completion_policy(send.entry, Class::Send);
        if flags.contains(OpFlags::INJECT | OpFlags::QUIET) {
            // The client can observe no completion level: the completion is not reported, and the buffer is
            // free already.
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

    /// Posts a receive, or peeks at, claims or discards a message.
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

    /// The engine's operation of a receive. Fails if the receive must name a source and does not
    /// (FI_EXACT_DIRECTED_RECV).
    #[inline]
    pub(crate) fn checked_recv_op<'a>(&self, recv: &Recv<'a>) -> Result<RecvOp<'a>, Errno> {
        let Sources { exact, .. } = self.sources;
        if recv.src == ADDR_NONE {
            if exact && self.sources.honoured(recv.mode.ops.contains(RecvFlags::TAGGED)) {
                return Err(Errno::INVAL);
            }
            return Ok(self.recv_op(recv));
        }
        // Messages of a scalable endpoint do not come from one of its receive contexts.
        let mask = self.origin().endpoint_mask.load(Ordering::Relaxed);
        Ok(self.recv_op(&Recv { src: recv.src & mask, ..*recv }))
    }

    /// The engine's operation of a receive, without a check of its source.
    #[inline(always)]
    fn recv_op<'a>(&self, recv: &Recv<'a>) -> RecvOp<'a> {
        let flags = recv.mode.ops;
        let tagged = flags.contains(RecvFlags::TAGGED);
        let family = if tagged { sys::FI_TAGGED } else { sys::FI_MSG };
        let mut user = User::new(sys::FI_RECV | family, recv.entry);
        if flags.contains(RecvFlags::PEEK) {
            // A peek is reported by an entry only, and is not counted: it receives nothing.
            user = User::new(sys::FI_RECV | family, true).uncounted();
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
    ///
    /// Always inlined, like the other starts, so that the arguments stay in registers. Otherwise they would be stored
    /// by words and loaded by pairs. Such a load has to wait until all earlier stores have left the processor,
    /// including those to a peer's ring.
    #[inline(always)]
    pub(crate) fn start_write(&self, rma: &Rma<'_>) -> isize {
        let op = self.write_op(rma);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::write(&op));
        }
        self.cell.submit_tx(|engine| engine.write(&op))
    }

    /// The engine's operation of a write.
    #[inline(always)]
    pub(crate) fn write_op<'a>(&self, rma: &Rma<'a>) -> RmaOp<'a> {
        self.rma_op(rma, rma.mode.ops, Class::Write, sys::FI_RMA | sys::FI_WRITE)
    }

    /// Starts an RMA read.
    #[inline(always)]
    pub(crate) fn start_read(&self, rma: &Rma<'_>) -> isize {
        let op = self.read_op(rma);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::read(&op));
        }
        self.cell.submit_tx(|engine| engine.read(&op))
    }

    /// The engine's operation of a read.
    #[inline(always)]
    pub(crate) fn read_op<'a>(&self, rma: &Rma<'a>) -> RmaOp<'a> {
        // A read completes when its data has arrived, for every completion level, and carries no data of its own.
        let flags = rma.mode.ops & (OpFlags::FENCE | OpFlags::TRIGGER);
        self.rma_op(rma, flags, Class::Read, sys::FI_RMA | sys::FI_READ)
    }

    /// Starts an atomic operation.
    #[inline(always)]
    pub(crate) fn start_atomic(&self, atomic: &Atomic<'_>) -> isize {
        let op = self.atomic_op(atomic);
        if op.flags.contains(OpFlags::TRIGGER) {
            return self.cell.trigger(Op::atomic(&op));
        }
        self.cell.submit_tx(|engine| engine.atomic(&op))
    }

    /// The engine's operation of an atomic.
    #[inline(always)]
    pub(crate) fn atomic_op<'a>(&self, atomic: &Atomic<'a>) -> AtomicOp<'a> {
        let mut flags = atomic.mode.ops;
        let (class, completion) = if atomic.amo.fetches() {
            // It completes when its results have arrived, for every completion level.
            flags -= OpFlags::DELIVERY | OpFlags::TRANSMIT;
            (Class::Read, sys::FI_ATOMIC | sys::FI_READ)
        } else {
            (Class::Write, sys::FI_ATOMIC | sys::FI_WRITE)
        };
        flags |= self.completion_policy(atomic.entry, class);
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

    #[inline(always)]
    fn rma_op<'a>(&self, rma: &Rma<'a>, mut flags: OpFlags, class: Class, completion: u64) -> RmaOp<'a> {
        flags |= self.completion_policy(rma.entry, class);
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
