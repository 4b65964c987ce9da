//! An operation that waits for its trigger, with its own copies of the vectors.
//!
//! Place in the data flow: an [`Op`] is made from the arguments of an engine's call ([`Op::send`], …) and
//! kept in a program. [`EndpointCell::start`] starts it like a call of the client. Errors that the engine can
//! detect early are returned when the operation is submitted ([`EndpointCell::admit`]). Later errors become
//! failed completions.

use smallvec::SmallVec;
use weft_engine::amo::Amo;
use weft_engine::api::{
    ADDR_NONE, Addr, AtomicOp, Completion, Context, Error, Fault, Kind, OpFlags, RecvOp, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{self, IovList};

use crate::abi::object::Hold;
use crate::cntr::Cntr;
use crate::endpoint::cell::{EndpointCell, Eng};

/// The arguments of an engine's call.
pub(crate) struct Op {
    /// Any kind except remote events.
    kind: Kind,
    /// The target of the operation, or the source of a receive.
    peer: Addr,
    iov: IovList,
    remote: SmallVec<[RmaIov; 1]>,
    /// The additional arguments of atomic operations.
    atomic: Option<Box<AtomicPart>>,
    tag: u64,
    ignore: u64,
    data: u64,
    /// Returned with the completion.
    pub(crate) ctx: Context,
    /// The flags of the operation.
    pub(crate) flags: OpFlags,
}

struct AtomicPart {
    amo: Amo,
    compare: IovList,
    result: IovList,
}

/// The effects of deferred work when its operation has completed.
pub(crate) struct Report {
    /// The address of the client's `fi_deferred_work`.
    pub(crate) work: usize,
    /// The counter to raise.
    pub(crate) completion: Option<Hold<Cntr>>,
    /// Whether the work also completes as an operation of the endpoint (FI_COMPLETION).
    pub(crate) entry: bool,
    /// Whether the work was cancelled, so that its completion has no effect.
    pub(crate) cancelled: bool,
}

impl Op {
    /// Copies the arguments of a send.
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

    /// Copies the arguments of a receive.
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

    /// Copies the arguments of an RMA write.
    pub(crate) fn write(op: &RmaOp<'_>) -> Self {
        Self::rma(op, Kind::Write)
    }

    /// Copies the arguments of an RMA read.
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

    /// Copies the arguments of an atomic operation.
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

    /// Removes flags from the operation.
    pub(crate) fn without(mut self, flags: OpFlags) -> Self {
        self.flags -= flags;
        self
    }

    /// Whether the operation is a receive.
    pub(crate) fn receives(&self) -> bool {
        self.kind == Kind::Recv
    }

    /// The lane of the endpoint's queue in which the operation needs room.
    pub(crate) fn lane(&self, cell: &EndpointCell) -> u64 {
        let [transmit, receive] = cell.lanes();
        if self.receives() { receive } else { transmit }
    }

    /// The completion of an operation that fails before the engine has seen it.
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

    /// Checks whether the engine would accept the operation, as far as that is known now.
    pub(crate) fn admit(&self, engine: &mut Eng) -> Result<(), Error> {
        match (self.kind, &self.atomic) {
            (_, Some(part)) => engine.check_atomic(&self.as_atomic(part)),
            (Kind::Send, None) => engine.check_send(self.peer, mem::total_len(&self.iov)),
            (Kind::Recv, None) => Ok(()),
            _ => engine.check_rma(&self.as_rma()),
        }
    }

    /// Passes the operation to the engine.
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
