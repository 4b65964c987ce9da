//! An operation that waits for its trigger, with its own copies of the vectors.
//!
//! Place in the data flow: an [`Op`] is made from the arguments of an engine's call ([`Op::send`], …) and
//! kept in a program. `EndpointCell::start` starts it like a call of the client. Errors that the engine can
//! detect early are returned when the operation is submitted (`EndpointCell::admit`). Later errors become
//! failed completions.

use smallvec::SmallVec;
use weft_engine::Engine;
use weft_engine::amo::Amo;
use weft_engine::api::{
    Addr, AtomicOp, Completion, Context, Error, Fault, Kind, OpFlags, RecvFlags, RecvOp, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{self, IovList};
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::cntr::Cntr;

/// The arguments of an engine's call.
pub(crate) struct Op {
    /// The target of the operation, or the source of a receive.
    peer: Addr,
    iov: IovList,
    /// Returned with the completion.
    pub(crate) ctx: Context,
    call: Call,
}

/// The call, with the arguments that others do not have.
enum Call {
    Send { tag: u64, data: u64, flags: OpFlags },
    Recv { tag: u64, ignore: u64, flags: RecvFlags },
    Write(Remote),
    Read(Remote),
    Atomic(Box<AtomicPart>),
}

struct Remote {
    iov: SmallVec<[RmaIov; 1]>,
    data: u64,
    flags: OpFlags,
}

struct AtomicPart {
    amo: Amo,
    compare: IovList,
    result: IovList,
    remote: Remote,
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
        let call = Call::Send { tag: op.tag, data: op.data, flags: op.flags };
        Self { peer: op.dest, iov: op.iov.into(), ctx: op.ctx, call }
    }

    /// Copies the arguments of a receive.
    pub(crate) fn recv(op: &RecvOp<'_>) -> Self {
        let call = Call::Recv { tag: op.tag, ignore: op.ignore, flags: op.flags };
        Self { peer: op.src, iov: op.iov.into(), ctx: op.ctx, call }
    }

    /// Copies the arguments of an RMA write.
    pub(crate) fn write(op: &RmaOp<'_>) -> Self {
        Self::rma(op, Call::Write)
    }

    /// Copies the arguments of an RMA read.
    pub(crate) fn read(op: &RmaOp<'_>) -> Self {
        Self::rma(op, Call::Read)
    }

    fn rma(op: &RmaOp<'_>, call: fn(Remote) -> Call) -> Self {
        let call = call(Remote { iov: op.remote.into(), data: op.data, flags: op.flags });
        Self { peer: op.dest, iov: op.iov.into(), ctx: op.ctx, call }
    }

    /// Copies the arguments of an atomic operation.
    pub(crate) fn atomic(op: &AtomicOp<'_>) -> Self {
        let remote = Remote { iov: op.remote.into(), data: op.data, flags: op.flags };
        let part = AtomicPart { amo: op.amo, compare: op.compare.into(), result: op.result.into(), remote };
        Self { peer: op.dest, iov: op.iov.into(), ctx: op.ctx, call: Call::Atomic(Box::new(part)) }
    }

    /// The flags of an operation that transmits.
    fn tx_flags(&mut self) -> Option<&mut OpFlags> {
        match &mut self.call {
            Call::Send { flags, .. } => Some(flags),
            Call::Recv { .. } => None,
            Call::Write(remote) | Call::Read(remote) => Some(&mut remote.flags),
            Call::Atomic(part) => Some(&mut part.remote.flags),
        }
    }

    /// The operation to start when its trigger has fired. Fails if the operation cannot be deferred.
    pub(super) fn triggered(mut self) -> Result<Self, Errno> {
        if let Call::Recv { flags, .. } = &mut self.call {
            if flags.intersects(RecvFlags::LOOKS) {
                return Err(Errno::NOSYS);
            }
            *flags -= RecvFlags::TRIGGER;
        }
        if let Some(flags) = self.tx_flags() {
            if flags.contains(OpFlags::INJECT) {
                // The client may reuse the buffer after the call, but it would be read later.
                return Err(Errno::INVAL);
            }
            *flags -= OpFlags::TRIGGER;
        }
        Ok(self)
    }

    /// The operation with a completion in any case.
    pub(super) fn reported(mut self) -> Self {
        if let Some(flags) = self.tx_flags() {
            *flags -= OpFlags::QUIET | OpFlags::COUNTED;
        }
        self
    }

    /// Whether the operation is a receive.
    pub(crate) fn receives(&self) -> bool {
        matches!(self.call, Call::Recv { .. })
    }

    /// The lane, of those of its endpoint, in which the operation needs room.
    pub(crate) fn lane(&self, [transmit, receive]: [u64; 2]) -> u64 {
        if self.receives() { receive } else { transmit }
    }

    /// The completion of an operation that fails before the engine has seen it.
    pub(crate) fn ended(&self, fault: Fault) -> Completion {
        let (kind, flags) = match &self.call {
            Call::Send { flags, .. } => (Kind::Send, (*flags).into()),
            Call::Recv { flags, .. } => (Kind::Recv, (*flags).into()),
            Call::Write(remote) => (Kind::Write, remote.flags.into()),
            Call::Read(remote) => (Kind::Read, remote.flags.into()),
            Call::Atomic(part) if part.amo.fetches() => (Kind::FetchAtomic, part.remote.flags.into()),
            Call::Atomic(part) => (Kind::Atomic, part.remote.flags.into()),
        };
        let tag = match self.call {
            Call::Send { tag, .. } | Call::Recv { tag, .. } => tag,
            _ => 0,
        };
        Completion { tag, ..Completion::failed(kind, self.ctx, flags, fault) }
    }

    fn as_rma<'a>(&'a self, remote: &'a Remote) -> RmaOp<'a> {
        let &Remote { ref iov, data, flags } = remote;
        RmaOp { dest: self.peer, iov: &self.iov, remote: iov, data, ctx: self.ctx, flags }
    }

    fn as_atomic<'a>(&'a self, part: &'a AtomicPart) -> AtomicOp<'a> {
        AtomicOp {
            dest: self.peer,
            amo: part.amo,
            iov: &self.iov,
            compare: &part.compare,
            result: &part.result,
            remote: &part.remote.iov,
            data: part.remote.data,
            ctx: self.ctx,
            flags: part.remote.flags,
        }
    }

    /// Checks whether the engine would accept the operation, as far as that is known now.
    pub(crate) fn admit<D: Device>(&self, engine: &mut Engine<D>) -> Result<(), Error> {
        match &self.call {
            Call::Send { .. } => engine.check_send(self.peer, mem::total_len(&self.iov)),
            Call::Recv { .. } => Ok(()),
            Call::Write(remote) | Call::Read(remote) => engine.check_rma(&self.as_rma(remote)),
            Call::Atomic(part) => engine.check_atomic(&self.as_atomic(part)),
        }
    }

    /// Passes the operation to the engine.
    pub(crate) fn start<D: Device>(&self, engine: &mut Engine<D>) -> Result<(), Error> {
        let &Self { peer, ref iov, ctx, ref call } = self;
        match *call {
            Call::Send { tag, data, flags } => engine.send(&SendOp { dest: peer, iov, tag, data, ctx, flags }),
            Call::Recv { tag, ignore, flags } => engine.recv(&RecvOp { src: peer, iov, tag, ignore, ctx, flags }),
            Call::Write(ref remote) => engine.write(&self.as_rma(remote)),
            Call::Read(ref remote) => engine.read(&self.as_rma(remote)),
            Call::Atomic(ref part) => engine.atomic(&self.as_atomic(part)),
        }
    }
}
