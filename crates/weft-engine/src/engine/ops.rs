//! The state of operations that did not finish within their call, and of bulk data on its way.
//!
//! Place in the data flow: `Engine::send`, `write` and `read` make a [`TxOp`] if the fast path does not finish
//! the operation. Acknowledgements name it by its number. A [`Transfer`] is bulk data on its way into or out of
//! this side's memory, for a peer's operation. Devices and peers name it by its token. The token contains a
//! generation, so that a late or forged token finds no transfer.

use slab::Slab;
use smallvec::SmallVec;

use crate::amo::Amo;
use crate::api::{Context, Fault, Kind, OpFlags, RmaIov};
use crate::engine::ids::PeerId;
use crate::mem::{IovList, Owned};
use crate::nic::RemoteIov;
use crate::wire::Op;

/// The progress of a send. RMA operations count their parts instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the TX queue. Also the phase of an RMA operation, whose parts are counted in `pending`.
    Queued,
    /// Sent eagerly. The peer will acknowledge the delivery.
    AwaitAck,
    /// RTS was sent. The peer will answer CTS, or FIN if it has fetched the data or wants none.
    AwaitCts,
    /// Being pushed after CTS. `true`: a FIN must follow.
    Pushing(bool),
    /// An atomic operation, whose parts are counted as well. With `sources`, `iov` holds the operands and the
    /// values to compare with before the memory for results. Each array is as long as the operation.
    Atomic { amo: Amo, sources: bool },
}

/// An accepted operation that is not complete.
pub(crate) struct TxOp {
    pub(crate) kind: Kind,
    pub(crate) peer: PeerId,
    pub(crate) ctx: Context,
    pub(crate) flags: OpFlags,
    pub(crate) iov: IovList,
    /// The private copy that `iov` describes, for an inject that had to wait.
    pub(crate) owned: Option<Owned>,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) len: u64,
    pub(crate) remote: SmallVec<[RmaIov; 1]>,
    pub(crate) phase: Phase,
    /// RMA: number of parts that were sent, which is the index of the next one.
    pub(crate) next_part: u32,
    /// RMA: number of parts that were sent and not acknowledged.
    pub(crate) pending: u32,
    /// Number of pushes that the device still performs. For a read, of the target's pushes that have not all
    /// arrived. The memory is in use until they end.
    pub(crate) pushing: u32,
    /// Number of parts that the device helps the peer to move. The memory is in use until they end.
    pub(crate) assisting: u32,
    pub(crate) fault: Option<Fault>,
}

impl TxOp {
    /// Whether no part waits in the TX queue.
    pub(crate) fn all_sent(&self) -> bool {
        match self.kind {
            Kind::Send => self.phase != Phase::Queued,
            _ => self.next_part as usize >= self.remote.len(),
        }
    }

    /// Whether this is a send that has left and waits for the peer's client.
    #[inline]
    pub(crate) fn awaits_match(&self) -> bool {
        match self.phase {
            Phase::AwaitCts | Phase::Pushing(_) => true,
            Phase::AwaitAck => self.flags.contains(OpFlags::DELIVERY),
            Phase::Queued | Phase::Atomic { .. } => false,
        }
    }

    /// Number of requests that the operation takes, after all of it is sent.
    #[inline]
    pub(crate) fn parts(&self) -> u32 {
        self.next_part.max(1)
    }

    /// Whether the peer may be moving bulk data of this part.
    pub(crate) fn awaits(&self, part: u32) -> bool {
        match self.kind {
            Kind::Send => self.phase == Phase::AwaitCts,
            Kind::Atomic | Kind::FetchAtomic => false,
            _ => part < self.next_part && self.pending > 0,
        }
    }

    /// The length of a part of a read, if the target may answer it by a message.
    pub(crate) fn answerable(&self, part: u32) -> Option<u64> {
        // Parts that are pushed end when their windows are full. Only the other parts can be answered.
        let awaited = self.kind == Kind::Read && part < self.next_part && self.pending > self.pushing;
        self.remote.get(part as usize).filter(|_| awaited).map(|remote| remote.len)
    }

    /// Offset in bytes of a part in the local memory.
    pub(crate) fn part_offset(&self, part: u32) -> u64 {
        self.remote.iter().take(part as usize).map(|r| r.len).sum()
    }
}

/// The contents of a receive's completion, when its data has arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvInfo {
    pub(crate) ctx: Context,
    pub(crate) flags: OpFlags,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) buf: usize,
    pub(crate) stored: usize,
    /// Number of bytes that did not fit.
    pub(crate) excess: usize,
    /// Part of the buffer is missing memory, so the bytes did not fit.
    pub(crate) missing: bool,
    pub(crate) multi: Option<u32>,
}

/// The purpose of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferKind {
    /// Into a matched receive, from the peer's send `op`, which expects a FIN if `ack`.
    Recv { info: RecvInfo, op: u32, ack: bool },
    /// Into memory of the engine, for the unexpected message `key`. The bytes come from the peer's send `op`,
    /// which expects an acknowledgement of the delivery if `ack`.
    Prefetch { tagged: bool, key: u32, op: u32, ack: bool },
    /// Into a region, from the peer's write. `parts` is the number of its operation of several parts
    /// ([`crate::engine::remote_events`]).
    Write { op: Op, key: u64, data: Option<u64>, parts: Option<u32> },
    /// Into the buffer of our own read: its operation number.
    ReadHome { op: u32 },
    /// Out of a region, for the peer's read: by put, or by push into `window`.
    Serve { op: Op, key: u64, window: u64, put: bool, parts: Option<u32> },
}

/// Memory of the engine that a transfer fills before its bytes are copied to a receive.
pub(crate) struct Staged {
    pub(crate) bytes: Owned,
    /// The receive's buffer. Empty until a receive has matched.
    pub(crate) into: IovList,
}

/// Bulk data on its way.
pub(crate) struct Transfer {
    generation: u32,
    pub(crate) peer: PeerId,
    pub(crate) kind: TransferKind,
    pub(crate) iov: IovList,
    pub(crate) remote: Vec<RemoteIov>,
    pub(crate) expect: u64,
    pub(crate) placed: u64,
    /// The memory of the engine that `iov` describes, if it is such.
    pub(crate) staged: Option<Box<Staged>>,
    /// The window by which the peer may push the bytes; 0: it may not, because a device of ours moves them.
    window: u64,
}

impl Transfer {
    /// Whether bytes for `window` may be stored, or counted.
    pub(crate) fn takes(&self, window: u64) -> bool {
        self.window == window
    }
}

/// All transfers of an endpoint.
#[derive(Default)]
pub(crate) struct Transfers {
    slab: Slab<Transfer>,
    generation: u32,
}

impl Transfers {
    /// Enters a transfer and returns its token. Bit 63 is never set: see [`push_ctx`]; it exceeds any number
    /// of 32 bits.
    pub(crate) fn insert(
        &mut self,
        peer: PeerId,
        kind: TransferKind,
        iov: IovList,
        remote: Vec<RemoteIov>,
        expect: u64,
    ) -> u64 {
        self.generation = self.generation % 0x7fff_ffff + 1;
        let generation = self.generation;
        let index = self.slab.insert(Transfer {
            generation,
            peer,
            kind,
            iov,
            remote,
            expect,
            placed: 0,
            staged: None,
            window: 0,
        });
        u64::from(generation) << 32 | index as u64
    }

    pub(crate) fn get_mut(&mut self, token: u64) -> Option<&mut Transfer> {
        let (index, generation) = split(token);
        self.slab.get_mut(index).filter(|x| x.generation == generation)
    }

    /// Gives a transfer the memory that its pieces describe.
    pub(crate) fn stage(&mut self, token: u64, staged: Staged) {
        if let Some(x) = self.get_mut(token) {
            x.staged = Some(Box::new(staged));
        }
    }

    /// The peer is told, or has said itself, by which window it may push.
    pub(crate) fn open(&mut self, token: u64, window: u64) {
        if let Some(x) = self.get_mut(token) {
            x.window = window;
        }
    }

    pub(crate) fn remove(&mut self, token: u64) -> Option<Transfer> {
        self.get_mut(token)?;
        self.slab.try_remove(split(token).0)
    }

    /// Tokens of the transfers that `wanted` accepts, oldest slot first.
    pub(crate) fn tokens(&self, wanted: impl Fn(&Transfer) -> bool) -> Vec<u64> {
        self.slab
            .iter()
            .filter(|(_, x)| wanted(x))
            .map(|(index, x)| u64::from(x.generation) << 32 | index as u64)
            .collect()
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Transfer> {
        self.slab.iter().map(|(_, transfer)| transfer)
    }

    pub(crate) fn len(&self) -> usize {
        self.slab.len()
    }
}

fn split(token: u64) -> (usize, u32) {
    (usize::try_from(token & 0xffff_ffff).unwrap_or(usize::MAX), u32::try_from(token >> 32).unwrap_or(u32::MAX))
}

/// The device context of a push that our operation `op` makes; bit 63 tells it from a transfer's token.
pub(crate) fn push_ctx(op: u32) -> u64 {
    1 << 63 | u64::from(op)
}

/// The device context of our help with the peer's transfer for our operation `op`.
pub(crate) fn assist_ctx(op: u32) -> u64 {
    1 << 62 | push_ctx(op)
}

/// What a device context stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceContext {
    /// A transfer, by its token.
    Transfer(u64),
    /// A push for our operation.
    Push(u32),
    /// Help with our operation.
    Assist(u32),
}

impl DeviceContext {
    pub(crate) fn of(ctx: u64) -> Self {
        let op = u32::try_from(ctx & 0xffff_ffff).unwrap_or(u32::MAX);
        match ctx >> 62 {
            3 => Self::Assist(op),
            2 => Self::Push(op),
            _ => Self::Transfer(ctx),
        }
    }
}

/// The state of a multi-receive buffer.
pub(crate) struct MultiRecv {
    pub(crate) used: usize,
    /// Number of messages that are still arriving in it.
    pub(crate) inflight: u32,
    /// The buffer is no longer posted.
    pub(crate) retired: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_token_finds_nothing() {
        let mut transfers = Transfers::default();
        let kind = TransferKind::ReadHome { op: 1 };
        let first = transfers.insert(PeerId::new(0), kind, IovList::new(), Vec::new(), 1);
        assert!(transfers.remove(first).is_some());
        let second = transfers.insert(PeerId::new(0), kind, IovList::new(), Vec::new(), 1);
        assert_eq!(first & 0xffff_ffff, second & 0xffff_ffff);
        assert!(transfers.get_mut(first).is_none() && transfers.get_mut(second).is_some());
        assert_eq!(DeviceContext::of(second), DeviceContext::Transfer(second));
        assert_eq!(DeviceContext::of(push_ctx(7)), DeviceContext::Push(7));
        assert_eq!(DeviceContext::of(assist_ctx(7)), DeviceContext::Assist(7));
    }
}
