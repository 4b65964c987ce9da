//! The state of operations that did not finish within their call, and of bulk data on its way.
//!
//! Place in the data flow: `Engine::send`, `write` and `read` make a [`TxOp`] if the fast path does not finish
//! the operation. Acknowledgements name it by its number. A [`Transfer`] is bulk data on its way into or out of
//! this side's memory, for a peer's operation. Devices and peers name it by its [`TransferId`].

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::amo::Amo;
use crate::api::{Context, Fault, Kind, OpFlags, RmaIov};
use crate::engine::groups::Groups;
use crate::engine::ids::{OpId, PeerId, TransferId, WindowId};
use crate::engine::peer::Peer;
use crate::engine::peers::Peers;
use crate::engine::receives::RecvInfo;
use crate::mem::{IovList, Owned};
use crate::nic::{LinkId, RemoteIov};
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
    /// A tagged send without data that has not left.
    pub(crate) fn send(peer: PeerId, ctx: Context, flags: OpFlags, iov: IovList, tag: u64) -> Self {
        Self {
            kind: Kind::Send,
            peer,
            ctx,
            flags,
            len: crate::mem::total_len(&iov) as u64,
            iov,
            owned: None,
            tag,
            data: 0,
            remote: SmallVec::new(),
            phase: Phase::Queued,
            next_part: 0,
            pending: 0,
            pushing: 0,
            assisting: 0,
            fault: None,
        }
    }

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
    /// Into the buffer of this side's read, by its operation number.
    ReadHome { op: OpId },
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
    generation: NonZeroU32,
    pub(crate) peer: PeerId,
    pub(crate) kind: TransferKind,
    pub(crate) iov: IovList,
    pub(crate) remote: Box<[RemoteIov]>,
    pub(crate) expect: u64,
    pub(crate) placed: u64,
    /// The memory of the engine that `iov` describes, if any.
    pub(crate) staged: Option<Box<Staged>>,
    /// The window by which the peer may push the bytes, as in messages. 0: a device of this side moves them.
    window: u64,
}

impl Transfer {
    pub(crate) fn new(peer: PeerId, kind: TransferKind, iov: IovList, remote: Vec<RemoteIov>, expect: u64) -> Self {
        Self {
            generation: NonZeroU32::MIN,
            peer,
            kind,
            iov,
            remote: remote.into_boxed_slice(),
            expect,
            placed: 0,
            staged: None,
            window: 0,
        }
    }

    /// Whether bytes for `window` belong to this transfer.
    pub(crate) fn takes(&self, window: WindowId) -> bool {
        self.window == window.to_wire()
    }
}

/// Operations and transfers of an endpoint, grouped by peer.
pub(crate) struct Outgoing {
    ops: Groups<TxOp>,
    transfers: Groups<Transfer>,
    generation: u32,
    /// Private copies of operations that have failed. The device reads them until their link is closed.
    lingering: Vec<(LinkId, Owned)>,
    /// Limit of unanswered requests to each peer.
    request_limit: u32,
}

impl Outgoing {
    /// `request_limit` is the limit of unanswered requests to each peer.
    pub(crate) fn new(request_limit: u32) -> Self {
        Self {
            ops: Groups::default(),
            transfers: Groups::default(),
            generation: 0,
            lingering: Vec::new(),
            request_limit,
        }
    }

    // ---- operations --------------------------------------------------------------------------

    /// The number of the next operation.
    #[inline(always)]
    pub(crate) fn next_op(&self) -> OpId {
        OpId::new(self.ops.next_key())
    }

    #[inline(always)]
    pub(crate) fn push(&mut self, peer: &mut Peer, make: impl FnOnce() -> TxOp) -> OpId {
        OpId::new(self.ops.push(peer.ops_mut(), make))
    }

    #[inline(always)]
    pub(crate) fn op(&self, id: OpId) -> Option<&TxOp> {
        self.ops.get(id.get())
    }

    #[inline(always)]
    pub(crate) fn op_mut(&mut self, id: OpId) -> Option<&mut TxOp> {
        self.ops.get_mut(id.get())
    }

    pub(crate) fn remove(&mut self, peer: &mut Peer, id: OpId) -> Option<TxOp> {
        self.ops.remove(peer.ops_mut(), id.get())
    }

    /// Drops an operation that the caller has already read.
    #[inline(always)]
    pub(crate) fn drop_op(&mut self, peer: &mut Peer, id: OpId) {
        self.ops.drop_item(peer.ops_mut(), id.get());
    }

    /// A peer's operations, oldest first.
    pub(crate) fn ops_of(&self, peer: &Peer) -> Vec<OpId> {
        let mut ids: Vec<_> = self.ops.iter(peer.ops()).map(|(key, _)| OpId::new(key)).collect();
        ids.reverse();
        ids
    }

    /// Moves an operation to another peer. It keeps its number.
    pub(crate) fn move_op(&mut self, id: OpId, peers: &mut Peers, to: PeerId) {
        let Some(from) = self.op(id).map(|op| op.peer) else { return };
        if let Some(op) = self.remove(&mut peers[from], id) {
            let moved = self.push(&mut peers[to], || TxOp { peer: to, ..op });
            debug_assert_eq!(moved, id, "the free place is taken at once");
        }
    }

    /// Number of operations that are not complete.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.ops.len()
    }

    /// Limit of unanswered requests to each peer.
    #[inline(always)]
    pub(crate) fn request_limit(&self) -> u32 {
        self.request_limit
    }

    // ---- transfers ---------------------------------------------------------------------------

    /// Adds a transfer.
    pub(crate) fn start(&mut self, peer: &mut Peer, transfer: Transfer) -> TransferId {
        self.generation = self.generation % 0x7fff_ffff + 1;
        let generation = NonZeroU32::MIN.saturating_add(self.generation - 1);
        let slot = self.transfers.push(peer.transfers_mut(), || Transfer { generation, ..transfer });
        TransferId { slot, generation }
    }

    pub(crate) fn transfer(&mut self, id: TransferId) -> Option<&mut Transfer> {
        self.transfers.get_mut(id.slot).filter(|transfer| transfer.generation == id.generation)
    }

    /// Gives a transfer the memory that its pieces describe.
    pub(crate) fn stage(&mut self, id: TransferId, staged: Staged) {
        if let Some(transfer) = self.transfer(id) {
            transfer.staged = Some(Box::new(staged));
        }
    }

    /// Sets the window by which the peer may push the bytes.
    pub(crate) fn open(&mut self, id: TransferId, window: WindowId) {
        if let Some(transfer) = self.transfer(id) {
            transfer.window = window.to_wire();
        }
    }

    /// Removes a transfer.
    pub(crate) fn end(&mut self, peers: &mut Peers, id: TransferId) -> Option<Transfer> {
        let peer = self.transfer(id)?.peer;
        self.transfers.remove(peers[peer].transfers_mut(), id.slot)
    }

    /// A peer's transfers in the order of their slots.
    pub(crate) fn transfers_of(&self, peer: &Peer) -> Vec<TransferId> {
        let ids = self.transfers.iter(peer.transfers());
        let mut ids: Vec<_> = ids.map(|(slot, x)| TransferId { slot, generation: x.generation }).collect();
        ids.sort_unstable();
        ids
    }

    /// Transfers that `wanted` accepts, in the order of their slots.
    pub(crate) fn transfers_where(&self, wanted: impl Fn(&Transfer) -> bool) -> Vec<TransferId> {
        let all = self.transfers.iter_all().filter(|(_, x)| wanted(x));
        all.map(|(slot, x)| TransferId { slot, generation: x.generation }).collect()
    }

    pub(crate) fn has_transfers(&self) -> bool {
        self.transfers.len() > 0
    }

    // ---- memory of failed operations ---------------------------------------------------------

    /// Keeps the memory of a failed operation until a link is closed.
    pub(crate) fn linger(&mut self, link: LinkId, memory: Owned) {
        self.lingering.push((link, memory));
    }

    /// Frees the memory that was kept for the links that `closed` accepts.
    #[inline]
    pub(crate) fn free_lingering(&mut self, closed: impl Fn(LinkId) -> bool) {
        self.lingering.retain(|(link, _)| !closed(*link));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::EpName;

    #[test]
    fn a_stale_number_finds_no_transfer() {
        let mut peers = Peers::new();
        let id = peers.named(&EpName::service(([127, 0, 0, 1], 1).into()));
        let mut outgoing = Outgoing::new(1);
        let transfer = || {
            let kind = TransferKind::ReadHome { op: OpId::new(1) };
            Transfer::new(id, kind, IovList::new(), Vec::new(), 1)
        };
        let first = outgoing.start(&mut peers[id], transfer());
        assert!(outgoing.end(&mut peers, first).is_some());
        let second = outgoing.start(&mut peers[id], transfer());
        assert_eq!(first.slot, second.slot);
        assert!(outgoing.transfer(first).is_none() && outgoing.transfer(second).is_some());
        assert_eq!(outgoing.transfers_of(&peers[id]), [second]);
    }
}
