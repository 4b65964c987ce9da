//! An operation that waits for its trigger, with vectors of its own, and how it starts.
//!
//! Place in the data flow: made from the same arguments as a call into the engine would get ([`Op::send`],
//! …), kept in a program, and started by [`EndpointCell::start`] as the client's call would have been. What the
//! engine would refuse is refused when the operation is submitted ([`EndpointCell::admit`]); what only turns out
//! later becomes a failed completion.

use smallvec::SmallVec;
use weft_engine::amo::Amo;
use weft_engine::api::{
    ADDR_NONE, Addr, AtomicOp, Completion, Context, Error, Fault, Kind, OpFlags, RecvOp, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{self, IovList};

use crate::abi::object::Hold;
use crate::cntr::Cntr;
use crate::endpoint::cell::{EndpointCell, Eng};

/// What an engine's call takes.
pub(crate) struct Op {
    /// Not one of the remote events.
    kind: Kind,
    /// The target, or the source of a receive.
    peer: Addr,
    iov: IovList,
    remote: SmallVec<[RmaIov; 1]>,
    /// What atomic operations have besides.
    atomic: Option<Box<AtomicPart>>,
    tag: u64,
    ignore: u64,
    data: u64,
    /// Comes back with the completion.
    pub(crate) ctx: Context,
    /// Behaviour.
    pub(crate) flags: OpFlags,
}

struct AtomicPart {
    amo: Amo,
    compare: IovList,
    result: IovList,
}

/// What deferred work does when its operation has completed.
pub(crate) struct Report {
    /// Address of the client's `fi_deferred_work`.
    pub(crate) work: usize,
    /// The counter to raise.
    pub(crate) completion: Option<Hold<Cntr>>,
    /// It also completes as an operation of the endpoint (FI_COMPLETION).
    pub(crate) entry: bool,
    /// It was cancelled: its end is of no interest.
    pub(crate) cancelled: bool,
}

impl Op {
    /// A send.
    pub(crate) fn send(op: &SendOp<'_>) -> Self {
        Self {
            kind: Kind::Send,
            peer: op.dest,
            iov: op.iov.into(),
            remote: SmallVec::new(),
            atomic: None,
            tag: op.tag,
            ignore: 0,
            data: op.data,
            ctx: op.ctx,
            flags: op.flags,
        }
    }

    /// A receive.
    pub(crate) fn recv(op: &RecvOp<'_>) -> Self {
        Self {
            kind: Kind::Recv,
            peer: op.src,
            iov: op.iov.into(),
            remote: SmallVec::new(),
            atomic: None,
            tag: op.tag,
            ignore: op.ignore,
            data: 0,
            ctx: op.ctx,
            flags: op.flags,
        }
    }

    /// An RMA write.
    pub(crate) fn write(op: &RmaOp<'_>) -> Self {
        Self::rma(op, Kind::Write)
    }

    /// An RMA read.
    pub(crate) fn read(op: &RmaOp<'_>) -> Self {
        Self::rma(op, Kind::Read)
    }

    fn rma(op: &RmaOp<'_>, kind: Kind) -> Self {
        Self {
            kind,
            peer: op.dest,
            iov: op.iov.into(),
            remote: op.remote.into(),
            atomic: None,
            tag: 0,
            ignore: 0,
            data: op.data,
            ctx: op.ctx,
            flags: op.flags,
        }
    }

    /// An atomic operation.
    pub(crate) fn atomic(op: &AtomicOp<'_>) -> Self {
        Self {
            kind: if op.amo.fetches() { Kind::FetchAtomic } else { Kind::Atomic },
            peer: op.dest,
            iov: op.iov.into(),
            remote: op.remote.into(),
            atomic: Some(Box::new(AtomicPart { amo: op.amo, compare: op.compare.into(), result: op.result.into() })),
            tag: 0,
            ignore: 0,
            data: op.data,
            ctx: op.ctx,
            flags: op.flags,
        }
    }

    /// The same, but for some flags.
    pub(crate) fn without(mut self, flags: OpFlags) -> Self {
        self.flags -= flags;
        self
    }

    /// Whether it is a receive.
    pub(crate) fn receives(&self) -> bool {
        self.kind == Kind::Recv
    }

    /// The queue of the endpoint that it needs room in.
    pub(crate) fn lane(&self, cell: &EndpointCell) -> u64 {
        let [transmit, receive] = cell.lanes();
        if self.receives() { receive } else { transmit }
    }

    /// The completion of one that ends with a fault before the engine has seen it.
    pub(crate) fn ended(&self, fault: Fault) -> Completion {
        Completion {
            kind: self.kind,
            ctx: self.ctx,
            flags: self.flags,
            len: 0,
            buf: 0,
            tag: self.tag,
            data: 0,
            src: ADDR_NONE,
            fault: Some(fault),
        }
    }

    fn as_send(&self) -> SendOp<'_> {
        SendOp { dest: self.peer, iov: &self.iov, tag: self.tag, data: self.data, ctx: self.ctx, flags: self.flags }
    }

    fn as_recv(&self) -> RecvOp<'_> {
        RecvOp { src: self.peer, iov: &self.iov, tag: self.tag, ignore: self.ignore, ctx: self.ctx, flags: self.flags }
    }

    fn as_rma(&self) -> RmaOp<'_> {
        RmaOp {
            dest: self.peer,
            iov: &self.iov,
            remote: &self.remote,
            data: self.data,
            ctx: self.ctx,
            flags: self.flags,
        }
    }

    fn as_atomic<'a>(&'a self, part: &'a AtomicPart) -> AtomicOp<'a> {
        AtomicOp {
            dest: self.peer,
            amo: part.amo,
            iov: &self.iov,
            compare: &part.compare,
            result: &part.result,
            remote: &self.remote,
            data: self.data,
            ctx: self.ctx,
            flags: self.flags,
        }
    }

    /// Whether the engine would take it, as far as that can be told now.
    pub(crate) fn admit(&self, engine: &mut Eng) -> Result<(), Error> {
        match (self.kind, &self.atomic) {
            (_, Some(part)) => engine.check_atomic(&self.as_atomic(part)),
            (Kind::Send, None) => engine.check_send(self.peer, mem::total_len(&self.iov)),
            (Kind::Recv, None) => Ok(()),
            _ => engine.check_rma(&self.as_rma()),
        }
    }

    /// Hands it to the engine.
    pub(crate) fn start(&self, engine: &mut Eng) -> Result<(), Error> {
        match (self.kind, &self.atomic) {
            (_, Some(part)) => engine.atomic(&self.as_atomic(part)),
            (Kind::Send, None) => engine.send(&self.as_send()),
            (Kind::Recv, None) => engine.recv(&self.as_recv()),
            (Kind::Write, None) => engine.write(&self.as_rma()),
            _ => engine.read(&self.as_rma()),
        }
    }
}
