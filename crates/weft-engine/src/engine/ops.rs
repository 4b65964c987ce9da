//! The state of operations that did not finish within their call, and of bulk data on its way.
//!
//! Place in the data flow: `Engine::send`, `write` and `read` make a [`TxOp`] if the fast path does not finish
//! the operation. Acknowledgements name it by its number. A [`Transfer`] is bulk data on its way into or out of
//! this side's memory, for a peer's operation. Devices and peers name it by its [`TransferId`].

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::amo::Amo;
use crate::api::{AtomicOp, Completion, Context, Fault, Kind, OpFlags, RmaIov, RmaOp, SendOp};
use crate::broken::{cannot_happen, less};
use crate::bugs::planted;
use crate::engine::partition::PartitionedTable;
use crate::engine::peer::Peer;
use crate::engine::peers::Peers;
use crate::engine::receives::RecvInfo;
use crate::ids::{OpId, PeerId, TransferId, WindowId};
use crate::matching::Space;
use crate::mem::{IovList, Owned};
use crate::nic::{LinkId, RemoteIov};
use crate::wire::Op;

/// The progress of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// In the TX queue.
    Queued,
    /// Sent eagerly. The peer will acknowledge the delivery.
    AwaitAck,
    /// RTS was sent. The peer will answer CTS, or FIN if it has fetched the data or wants none.
    AwaitCts,
    /// Being pushed after CTS. `true`: a FIN must follow.
    Pushing(bool),
}

/// The kind of an operation, with the state that other kinds do not have.
enum Action {
    Send(Message),
    /// A message of a collective. The context names its step.
    Collective(Message),
    Write,
    Read,
    /// With `sources`, the local memory has the operands and the values to compare with before the memory for
    /// results. Each array is as long as the operation.
    Atomic {
        amo: Amo,
        sources: bool,
    },
}

struct Message {
    tag: u64,
    phase: Phase,
    /// The message has left and waits for the peer's client.
    unmatched: bool,
}

impl Message {
    #[inline(always)]
    const fn queued(tag: u64) -> Self {
        Self { tag, phase: Phase::Queued, unmatched: false }
    }
}

/// An accepted operation that is not complete.
pub(crate) struct TxOp {
    action: Action,
    peer: PeerId,
    ctx: Context,
    flags: OpFlags,
    iov: IovList,
    /// The private copy that `iov` describes, for an inject that had to wait.
    owned: Option<Owned>,
    /// The remote memory of each part of an access. Empty for a write whose only part has left.
    remote: SmallVec<[RmaIov; 1]>,
    data: u64,
    len: u64,
    /// Number of parts that were sent, which is the index of the next one. A message is one part.
    sent: u32,
    /// Number of parts that have not left.
    unsent: u32,
    /// Number of parts that were sent and await an answer.
    pending: u32,
    /// Number of pushes that the device still performs. For a read, of the target's pushes that have not all
    /// arrived. The memory is in use until they end.
    pushing: u32,
    /// Number of parts that the device helps the peer to move. The memory is in use until they end.
    assisting: u32,
    fault: Option<Fault>,
}

impl TxOp {
    #[inline(always)]
    fn new(action: Action, peer: PeerId, ctx: Context, flags: OpFlags) -> Self {
        Self {
            action,
            peer,
            ctx,
            flags,
            iov: IovList::new(),
            owned: None,
            remote: SmallVec::new(),
            data: 0,
            len: 0,
            sent: 0,
            unsent: 1,
            pending: 0,
            pushing: 0,
            assisting: 0,
            fault: None,
        }
    }

    /// A message of a collective that has not left. `ctx` names its step.
    pub(crate) fn collective(peer: PeerId, ctx: Context, flags: OpFlags, iov: IovList, tag: u64) -> Self {
        let len = crate::mem::total_len(&iov) as u64;
        Self { len, iov, ..Self::new(Action::Collective(Message::queued(tag)), peer, ctx, flags) }
    }

    /// A send that has not left. `memory`: its pieces, and the private copy that they describe, if any.
    #[inline(always)]
    pub(crate) fn queued_send(op: &SendOp<'_>, peer: PeerId, memory: (IovList, Option<Owned>), len: usize) -> Self {
        let (iov, owned) = memory;
        let action = Action::Send(Message::queued(op.tag));
        Self { iov, owned, data: op.data, len: len as u64, ..Self::new(action, peer, op.ctx, op.flags) }
    }

    /// A write whose only part has left.
    #[inline(always)]
    pub(crate) fn sent_write(op: &RmaOp<'_>, peer: PeerId, len: u64) -> Self {
        let queued = Self::new(Action::Write, peer, op.ctx, op.flags);
        Self { data: op.data, len, sent: 1, unsent: 0, pending: 1, ..queued }
    }

    /// A write that has not left. `memory` is as for [`Self::queued_send`].
    #[inline(always)]
    pub(crate) fn queued_write(op: &RmaOp<'_>, peer: PeerId, memory: (IovList, Option<Owned>), len: u64) -> Self {
        Self::queued_access(Action::Write, op, peer, memory, len)
    }

    /// A read whose only part has left.
    #[inline(always)]
    pub(crate) fn sent_read(op: &RmaOp<'_>, peer: PeerId, len: u64) -> Self {
        let queued = Self::queued_read(op, peer, SmallVec::from_slice(op.iov), len);
        Self { sent: 1, unsent: 0, pending: 1, ..queued }
    }

    /// A read that has not left.
    #[inline(always)]
    pub(crate) fn queued_read(op: &RmaOp<'_>, peer: PeerId, iov: IovList, len: u64) -> Self {
        Self::queued_access(Action::Read, op, peer, (iov, None), len)
    }

    #[inline(always)]
    fn queued_access(
        action: Action,
        op: &RmaOp<'_>,
        peer: PeerId,
        (iov, owned): (IovList, Option<Owned>),
        len: u64,
    ) -> Self {
        let (remote, unsent) = (SmallVec::from_slice(op.remote), crate::ids::number(op.remote.len()));
        Self { iov, owned, remote, data: op.data, len, unsent, ..Self::new(action, peer, op.ctx, op.flags) }
    }

    /// An atomic whose only part has left. `iov`: the memory for results.
    #[inline(always)]
    pub(crate) fn sent_atomic(op: &AtomicOp<'_>, peer: PeerId, iov: IovList, len: u64) -> Self {
        // The part may be refused, and its length is the cost to return.
        let action = Action::Atomic { amo: op.amo, sources: false };
        let remote = SmallVec::from_slice(op.remote);
        Self {
            iov,
            remote,
            data: op.data,
            len,
            sent: 1,
            unsent: 0,
            pending: 1,
            ..Self::new(action, peer, op.ctx, op.flags)
        }
    }

    /// An atomic that has not left. `memory` is as for [`Self::queued_send`]: the sources, then the memory for results.
    #[inline(always)]
    pub(crate) fn queued_atomic(op: &AtomicOp<'_>, peer: PeerId, memory: (IovList, Option<Owned>), len: u64) -> Self {
        let (iov, owned) = memory;
        let action = Action::Atomic { amo: op.amo, sources: true };
        let (remote, unsent) = (SmallVec::from_slice(op.remote), crate::ids::number(op.remote.len()));
        Self { iov, owned, remote, data: op.data, len, unsent, ..Self::new(action, peer, op.ctx, op.flags) }
    }

    // ---- the operation -----------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn kind(&self) -> Kind {
        match &self.action {
            Action::Send(_) => Kind::Send,
            Action::Collective(_) => Kind::Collective,
            Action::Write => Kind::Write,
            Action::Read => Kind::Read,
            Action::Atomic { amo, .. } if amo.fetches() => Kind::FetchAtomic,
            Action::Atomic { .. } => Kind::Atomic,
        }
    }

    #[inline(always)]
    fn message(&self) -> Option<&Message> {
        match &self.action {
            Action::Send(message) | Action::Collective(message) => Some(message),
            Action::Write | Action::Read | Action::Atomic { .. } => None,
        }
    }

    #[inline(always)]
    fn message_mut(&mut self) -> Option<&mut Message> {
        match &mut self.action {
            Action::Send(message) | Action::Collective(message) => Some(message),
            Action::Write | Action::Read | Action::Atomic { .. } => None,
        }
    }

    #[inline(always)]
    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    #[inline(always)]
    pub(crate) fn ctx(&self) -> Context {
        self.ctx
    }

    #[inline(always)]
    pub(crate) fn flags(&self) -> OpFlags {
        self.flags
    }

    /// The local memory.
    #[inline(always)]
    pub(crate) fn iov(&self) -> &IovList {
        &self.iov
    }

    /// The tag of a message.
    #[inline(always)]
    pub(crate) fn tag(&self) -> u64 {
        self.message().map_or(0, |message| message.tag)
    }

    #[inline(always)]
    pub(crate) fn data(&self) -> u64 {
        self.data
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The operation of an atomic.
    pub(crate) fn amo(&self) -> Option<Amo> {
        if let Action::Atomic { amo, .. } = self.action { Some(amo) } else { None }
    }

    /// The remote memory of each part.
    #[inline(always)]
    pub(crate) fn remote(&self) -> &[RmaIov] {
        &self.remote
    }

    /// Divides the remote memory of an atomic into parts, before the first one leaves.
    pub(crate) fn divide(&mut self, split: impl FnOnce(&mut SmallVec<[RmaIov; 1]>)) {
        split(&mut self.remote);
        self.unsent = crate::ids::number(self.remote.len());
    }

    /// The private copy of the local memory, if there is one.
    pub(crate) fn take_copy(&mut self) -> Option<Owned> {
        self.owned.take()
    }

    /// The completion, with `fault` or success.
    #[inline(always)]
    pub(crate) fn completion(&self, fault: Option<Fault>) -> Completion {
        Completion {
            len: usize::try_from(self.len).unwrap_or(usize::MAX),
            tag: self.tag(),
            data: self.data,
            fault,
            ..Completion::new(self.kind(), self.ctx, self.flags.into())
        }
    }

    // ---- progress ----------------------------------------------------------------------------

    /// The phase of a message.
    #[inline(always)]
    pub(crate) fn phase(&self) -> Option<Phase> {
        self.message().map(|message| message.phase)
    }

    /// Notes that a message has left. `answers` is the number of answers that it waits for. `unmatched`: the peer's
    /// client must act first.
    #[inline(always)]
    pub(crate) fn message_left(&mut self, phase: Phase, answers: u32, unmatched: bool) {
        if let Some(message) = self.message_mut() {
            (message.phase, message.unmatched) = (phase, unmatched);
        }
        (self.sent, self.unsent, self.pending) = (1, 0, answers);
    }

    /// Notes that the peer has named a window for the bytes of a message. A FIN follows if `answered`.
    pub(crate) fn push_requested(&mut self, answered: bool) {
        if let Some(message) = self.message_mut() {
            message.phase = Phase::Pushing(answered);
        }
    }

    /// Number of parts that were sent, which is the index of the next one.
    #[inline(always)]
    pub(crate) fn next_part(&self) -> u32 {
        self.sent
    }

    /// Number of parts that have not left.
    #[inline(always)]
    pub(crate) fn unsent(&self) -> u32 {
        self.unsent
    }

    /// Notes that the next part has left.
    #[inline(always)]
    pub(crate) fn part_left(&mut self) {
        self.sent += 1;
        self.unsent -= 1;
        self.pending += 1;
    }

    /// Drops the parts that have not left.
    pub(crate) fn skip_parts(&mut self) {
        self.sent += std::mem::take(&mut self.unsent);
    }

    #[inline(always)]
    pub(crate) fn pending(&self) -> u32 {
        self.pending
    }

    /// Notes that an answer has arrived.
    #[inline(always)]
    pub(crate) fn answered(&mut self) {
        self.pending = less!(self.pending, 1, "an operation gets as many answers as it awaits");
    }

    /// Stops waiting for answers.
    pub(crate) fn await_nothing(&mut self) {
        self.pending = 0;
    }

    #[inline(always)]
    pub(crate) fn pushing(&self) -> u32 {
        self.pushing
    }

    #[inline(always)]
    pub(crate) fn push_begins(&mut self) {
        self.pushing += 1;
    }

    #[inline(always)]
    pub(crate) fn push_ends(&mut self) {
        self.pushing = less!(self.pushing, 1, "a push begins before it ends");
    }

    pub(crate) fn assist_begins(&mut self) {
        self.assisting += 1;
    }

    pub(crate) fn assist_ends(&mut self) {
        self.assisting = less!(self.assisting, 1, "help begins before it ends");
    }

    /// Whether the device uses the memory for a push or to help the peer.
    #[inline(always)]
    pub(crate) fn is_moving(&self) -> bool {
        self.pushing > 0 || self.assisting > 0
    }

    #[inline(always)]
    pub(crate) fn fault(&self) -> Option<Fault> {
        self.fault
    }

    /// Notes an error. The operation reports its first one.
    #[inline(always)]
    pub(crate) fn fail(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }

    /// Whether this is a message of the client or of a collective, and no access to remote memory.
    #[inline(always)]
    pub(crate) fn is_message(&self) -> bool {
        self.message().is_some()
    }

    /// Whether this is a message that has left and waits for the peer's client.
    #[inline(always)]
    pub(crate) fn is_unmatched(&self) -> bool {
        self.message().is_some_and(|message| message.unmatched)
    }

    /// Whether the peer or the device still works on the operation, or part of it has not left.
    #[inline]
    pub(crate) fn is_under_way(&self) -> bool {
        let pushing = planted!(Bug::PushStillReads, self.pushing > 0, false);
        self.pending > 0 || pushing || self.assisting > 0 || self.unsent > 0
    }

    /// Number of requests that the operation takes, after all of it is sent.
    #[inline]
    pub(crate) fn parts(&self) -> u32 {
        self.sent.max(1)
    }

    /// Whether the peer may be moving bulk data of this part.
    pub(crate) fn awaits(&self, part: u32) -> bool {
        match &self.action {
            Action::Send(message) | Action::Collective(message) => message.phase == Phase::AwaitCts,
            Action::Write | Action::Read => part < self.sent && self.pending > 0,
            Action::Atomic { .. } => false,
        }
    }

    /// The length of a part of a read, if the target may answer it by a message.
    pub(crate) fn answerable(&self, part: u32) -> Option<u64> {
        // Parts that are pushed end when their windows are full. Only the other parts can be answered.
        let awaited = matches!(self.action, Action::Read) && part < self.sent && self.pending > self.pushing;
        self.remote.get(part as usize).filter(|_| awaited).map(|remote| remote.len)
    }

    /// Offset in bytes of a part in the local memory.
    pub(crate) fn part_offset(&self, part: u32) -> u64 {
        self.remote.iter().take(part as usize).map(|r| r.len).sum()
    }

    /// The memory of a part in one of the operation's arrays: its sources, followed by the results.
    pub(crate) fn atomic_piece(&self, array: usize, part: u32) -> IovList {
        let clamp = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
        let len = self.remote.get(part as usize).map_or(0, |remote| remote.len);
        let offset = (array as u64).saturating_mul(self.len).saturating_add(self.part_offset(part));
        crate::mem::slice(&self.iov, clamp(offset), clamp(len))
    }

    /// The memory for the results of a part, and their cost, if the part was sent and fetches.
    #[inline]
    pub(crate) fn awaited_results(&self, part: u32) -> Option<(IovList, u32)> {
        let Action::Atomic { amo, sources } = self.action else { return None };
        if !amo.fetches() || part >= self.sent || self.pending == 0 {
            return None;
        }
        let cost = super::atomic::fetch_cost(amo, self.remote.get(part as usize)?.len);
        let home = if !sources && self.remote.len() == 1 {
            self.iov.clone()
        } else {
            self.atomic_piece(if sources { amo.sources() } else { 0 }, part)
        };
        Some((home, cost))
    }
}

/// The purpose of a transfer.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TransferKind {
    /// Into a matched receive, from the peer's send `op`, which expects a FIN if `ack`.
    Recv { info: RecvInfo, op: u32, ack: bool },
    /// Into memory of the engine, for the unexpected message `key`. The bytes come from the peer's send `op`,
    /// which expects an acknowledgement of the delivery if `ack`.
    Prefetch { space: Space, key: u32, op: u32, ack: bool },
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
    bytes: Owned,
    /// The receive's buffer. Empty until a receive has matched.
    into: IovList,
}

impl Staged {
    /// Memory for a message that no receive has matched yet.
    pub(crate) fn new(bytes: Owned) -> Self {
        Self { bytes, into: IovList::new() }
    }

    /// Sets the buffer of the receive that has matched. The bytes are copied there when they have arrived.
    pub(crate) fn set_target(&mut self, into: IovList) {
        self.into = into;
    }

    /// The memory, and the buffer of the receive.
    pub(crate) fn into_parts(self) -> (Owned, IovList) {
        (self.bytes, self.into)
    }
}

/// Bulk data on its way.
pub(crate) struct Transfer {
    generation: NonZeroU32,
    peer: PeerId,
    kind: TransferKind,
    iov: IovList,
    remote: Box<[RemoteIov]>,
    expect: u64,
    placed: u64,
    /// The memory of the engine that `iov` describes, if any.
    staged: Option<Box<Staged>>,
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

    pub(crate) fn peer(&self) -> PeerId {
        self.peer
    }

    pub(crate) fn kind(&self) -> TransferKind {
        self.kind
    }

    pub(crate) fn set_kind(&mut self, kind: TransferKind) {
        self.kind = kind;
    }

    /// The local memory.
    pub(crate) fn iov(&self) -> &IovList {
        &self.iov
    }

    /// The peer's memory, if the device can access it.
    pub(crate) fn remote(&self) -> &[RemoteIov] {
        &self.remote
    }

    /// The length in bytes.
    pub(crate) fn expect(&self) -> u64 {
        self.expect
    }

    /// Number of pushed bytes that have arrived.
    pub(crate) fn placed(&self) -> u64 {
        self.placed
    }

    pub(crate) fn bytes_placed(&mut self, bytes: u64) {
        self.placed = self.placed.saturating_add(bytes);
    }

    pub(crate) fn staged_mut(&mut self) -> Option<&mut Staged> {
        self.staged.as_deref_mut()
    }

    pub(crate) fn take_staged(&mut self) -> Option<Box<Staged>> {
        self.staged.take()
    }

    /// Whether bytes for `window` belong to this transfer.
    pub(crate) fn takes(&self, window: WindowId) -> bool {
        self.window == window.to_wire()
    }
}

/// Operations and transfers of an endpoint, grouped by peer.
pub(crate) struct Outgoing {
    ops: PartitionedTable<TxOp>,
    transfers: PartitionedTable<Transfer>,
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
            ops: PartitionedTable::default(),
            transfers: PartitionedTable::default(),
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

    /// An operation that a peer's TX queue names, which is in the table until it has left the queue.
    #[inline(always)]
    pub(crate) fn queued(&mut self, id: OpId) -> Option<&mut TxOp> {
        let op = self.op_mut(id);
        if op.is_none() {
            cannot_happen!("a queued operation is in the table");
        }
        op
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
        let Some(from) = self.op(id).map(|op| op.peer) else {
            return cannot_happen!("an operation that moves is in the table");
        };
        if let Some(op) = self.remove(&mut peers[from], id) {
            let moved = self.push(&mut peers[to], || TxOp { peer: to, ..op });
            debug_assert_eq!(moved, id, "the free place is taken at once");
        }
    }

    /// All operations, by their numbers.
    pub(crate) fn all_ops(&self) -> impl Iterator<Item = (u32, &TxOp)> {
        self.ops.iter_all()
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
        TransferId::new(slot, generation)
    }

    pub(crate) fn transfer(&mut self, id: TransferId) -> Option<&mut Transfer> {
        self.transfers.get_mut(id.slot()).filter(|transfer| transfer.generation == id.generation())
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
        self.transfers.remove(peers[peer].transfers_mut(), id.slot())
    }

    /// A peer's transfers in the order of their slots.
    pub(crate) fn transfers_of(&self, peer: &Peer) -> Vec<TransferId> {
        let ids = self.transfers.iter(peer.transfers());
        let mut ids: Vec<_> = ids.map(|(slot, x)| TransferId::new(slot, x.generation)).collect();
        ids.sort_unstable();
        ids
    }

    /// Transfers that `wanted` accepts, in the order of their slots.
    pub(crate) fn transfers_where(&self, wanted: impl Fn(&Transfer) -> bool) -> Vec<TransferId> {
        let all = self.transfers.iter_all().filter(|(_, x)| wanted(x));
        all.map(|(slot, x)| TransferId::new(slot, x.generation)).collect()
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
        assert_eq!(first.slot(), second.slot());
        assert!(outgoing.transfer(first).is_none() && outgoing.transfer(second).is_some());
        assert_eq!(outgoing.transfers_of(&peers[id]), [second]);
    }
}
