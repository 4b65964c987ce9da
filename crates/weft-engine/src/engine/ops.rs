//! The state of operations that did not finish within their call, and of bulk data that is arriving.
//!
//! Place in the data flow: `Engine::send`/`write`/`read` make a [`TxOp`] when the fast path does not finish
//! the operation; acknowledgements name it by its number. An [`Transfer`] is bulk data on its way into or out of
//! our memory on behalf of a peer's operation; devices and peers name it by its token, which carries a
//! generation, so that a late or forged name finds nothing.

use slab::Slab;
use smallvec::SmallVec;

use crate::amo::Amo;
use crate::api::{Context, Fault, Kind, OpFlags, RmaIov};
use crate::engine::ids::PeerId;
use crate::mem::{IovList, Owned};
use crate::nic::RemoteIov;
use crate::wire::Op;

/// How far a send is; RMA counts its parts instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the TX queue (or an RMA operation, whose parts are counted in `pending`).
    Queued,
    /// Sent eagerly; the peer will acknowledge the delivery.
    AwaitAck,
    /// RTS sent: the peer will answer CTS or, having fetched the data or wanting none, FIN.
    AwaitCts,
    /// Being pushed after CTS; `true`: a FIN must follow.
    Pushing(bool),
    /// An atomic operation, whose parts are counted, too. `sources`: the operands and the values to compare
    /// with stand in `iov` before the place for the results, each array as long as the operation.
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
    /// RMA: the first part that has not been sent.
    pub(crate) next_part: u32,
    /// RMA: parts sent and not acknowledged.
    pub(crate) pending: u32,
    /// Pushes that the device still works on, of a read those of the target that have not all come: the
    /// memory is not free before they end.
    pub(crate) pushing: u32,
    /// The same for parts that the device helps the peer to move.
    pub(crate) assisting: u32,
    pub(crate) fault: Option<Fault>,
}

impl TxOp {
    /// Whether nothing of it waits in the TX queue.
    pub(crate) fn all_sent(&self) -> bool {
        match self.kind {
            Kind::Send => self.phase != Phase::Queued,
            _ => self.next_part as usize >= self.remote.len(),
        }
    }

    /// Whether it is a send that has left and waits for the peer's client.
    #[inline]
    pub(crate) fn awaits_match(&self) -> bool {
        match self.phase {
            Phase::AwaitCts | Phase::Pushing(_) => true,
            Phase::AwaitAck => self.flags.contains(OpFlags::DELIVERY),
            Phase::Queued | Phase::Atomic { .. } => false,
        }
    }

    /// How many requests it has taken, when all of it is sent.
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
        // As many parts as are to be pushed end when their windows are full, and not before.
        let awaited = self.kind == Kind::Read && part < self.next_part && self.pending > self.pushing;
        self.remote.get(part as usize).filter(|_| awaited).map(|remote| remote.len)
    }

    /// Where in the local memory part `part` begins, in bytes.
    pub(crate) fn part_offset(&self, part: u32) -> u64 {
        self.remote.iter().take(part as usize).map(|r| r.len).sum()
    }
}

/// What a receive will report when its data is here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecvInfo {
    pub(crate) ctx: Context,
    pub(crate) flags: OpFlags,
    pub(crate) tag: u64,
    pub(crate) data: u64,
    pub(crate) buf: usize,
    pub(crate) stored: usize,
    /// Bytes that did not fit.
    pub(crate) excess: usize,
    /// They did not fit because part of the buffer is no memory.
    pub(crate) missing: bool,
    pub(crate) multi: Option<u32>,
}

/// On whose behalf bulk data moves.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferKind {
    /// Into a matched receive, from the peer's send `op`, which wants a FIN if `ack`.
    Recv { info: RecvInfo, op: u32, ack: bool },
    /// Into memory of the engine, for the message with this number in the queue of unexpected ones; from the
    /// peer's send `op`, which wants an acknowledgement of the delivery if `ack`.
    Prefetch { tagged: bool, key: u32, op: u32, ack: bool },
    /// Into a region, from the peer's write. `parts`: which of several it is one of ([`crate::engine::remote_events`]).
    Write { op: Op, key: u64, data: Option<u64>, parts: Option<u32> },
    /// Into the buffer of our own read: its operation number.
    ReadHome { op: u32 },
    /// Out of a region, for the peer's read: by put, or by push into `window`.
    Serve { op: Op, key: u64, window: u64, put: bool, parts: Option<u32> },
}

/// Memory of the engine that a transfer fills before its bytes go to a receive.
pub(crate) struct Staged {
    pub(crate) bytes: Owned,
    /// The receive's buffer; empty while none has matched.
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

/// A multi-receive buffer: where the next message goes, and whether it may be given back.
pub(crate) struct MultiRecv {
    pub(crate) used: usize,
    /// Messages that are still arriving in it.
    pub(crate) inflight: u32,
    /// No longer posted.
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
