//! The queued work of a peer, and the pool of queues.
//!
//! Place in the data flow: operations wait here until the link is up and the device accepts them. Messages from the
//! peer add answers and bulk data, which progress sends. The pool lends queues to a peer while it has queued work.

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use super::{DEFERRED_LIMIT, PROMPT_REPLY_BYTES, Peer, REPLY_WINDOW_BYTES, REQUEST_LIMIT, UNMATCHED_LIMIT, reply_cost};
use crate::broken::less;
use crate::bugs::planted;
use crate::engine::atomic::FetchResults;
use crate::engine::state::Violation;
use crate::ids::{OpId, TransferId, is_before};
use crate::mem::{self, IovList, Owned};
use crate::nic::{LinkId, RemoteIov, Share};
use crate::wire::Op;

/// Number of peers that keep their queues when no work is queued, and limit of unused queues that are kept for
/// others.
const KEPT_QUEUES: usize = 8;

/// Number of elements up to which a queue's memory is kept.
const KEPT_ELEMENTS: usize = 64;

/// Work that arrived messages have caused, in their order.
pub(crate) enum Deferred {
    /// A complete message without its number. Answers to reads of at most [`PROMPT_REPLY_BYTES`] bytes are
    /// stored inline.
    Message(SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]>),
    /// READ_DATA from a region, or from a copy, which `iov` then describes.
    Reply { op: Op, key: u64, iov: IovList, copy: Option<Owned> },
    /// A message of a collective, by its operation number. It may overtake the messages of the client.
    Collective(OpId),
    /// The answer to the question for the region of a key.
    Region(u64),
}

/// Bulk data for the device. It waits separately from messages, because the device accepts a limited amount at
/// a time.
pub(crate) enum BulkOp {
    /// Fetches or serves a transfer.
    Transfer(TransferId),
    /// Requests the bytes of a transfer, for a matched receive or ahead of one.
    RequestPush(TransferId),
    /// Fetches the bytes of a transfer into a matched receive.
    Fetch(TransferId),
    /// Pushes a part of an operation of this engine into the peer's window.
    Push { op: OpId, part: u32, window: u64, len: u64, place: Option<u64> },
    /// Helps the peer to move a part of an operation of this engine: the first `len` bytes, from or to `far`.
    Assist { op: OpId, part: u32, share: Share, len: u64, far: Vec<RemoteIov> },
}

bitflags::bitflags! {
    /// Kinds of queued work to send.
    #[derive(Clone, Copy)]
    pub(crate) struct QueueKinds: u8 {
        const DEFERRED = 1;
        const ACKS = 1 << 1;
        const RESULTS = 1 << 2;
        const BULK = 1 << 3;
        const TX = 1 << 4;
    }
}

impl BulkOp {
    /// Whether a receive of this side's client has caused the work, in contrast to requests of the peer.
    fn is_matched(&self) -> bool {
        matches!(self, Self::RequestPush(_) | Self::Fetch(_))
    }
}

/// Queued work of a peer.
#[derive(Default)]
pub(crate) struct PeerQueues {
    /// Operations, by number.
    tx: VecDeque<OpId>,
    deferred: VecDeque<Deferred>,
    /// Whether answers to the peer's reads are queued that might have to be copied if the peer changes memory,
    /// and the bytes of those that were copied.
    replies: bool,
    copied: u32,
    bulk: VecDeque<BulkOp>,
    /// Number of entries of `bulk` for receives of this side's client. The others are for requests of
    /// the peer.
    matched: usize,
    /// Successful operations of the peer that must be acknowledged.
    acks: Vec<u32>,
    /// Whether the executed messages of the peer must be confirmed after `deferred` has left.
    confirmation_due: bool,
    /// Requests that the peer confirms by position, oldest first: the number of the message, and the operation.
    unconfirmed: VecDeque<(u32, OpId)>,
    /// Results of the peer's atomics.
    results: Option<Box<FetchResults>>,
    /// Windows that the peer has announced and not filled, oldest first: the number of the announcement and its
    /// transfer.
    announced: VecDeque<(u32, TransferId)>,
    /// The peer's unfinished operation of several parts ([`crate::engine::remote_events`]).
    parts: Option<u32>,
    /// The peer's own attempt, kept until this side's has succeeded or failed.
    standby: Option<LinkId>,
    /// Messages on an unordered link that arrived before earlier ones.
    early: BTreeMap<u32, Vec<u8>>,
}

impl PeerQueues {
    /// The kinds of work that wait to be sent.
    #[inline]
    pub(crate) fn kinds(&self) -> QueueKinds {
        let mut kinds = QueueKinds::empty();
        kinds.set(QueueKinds::DEFERRED, !self.deferred.is_empty());
        kinds.set(QueueKinds::ACKS, !self.acks.is_empty() || self.confirmation_due);
        kinds.set(QueueKinds::RESULTS, self.results.as_ref().is_some_and(|results| results.wait()));
        kinds.set(QueueKinds::BULK, !self.bulk.is_empty());
        kinds.set(QueueKinds::TX, !self.tx.is_empty());
        kinds
    }

    // ---- operations --------------------------------------------------------------------------

    #[inline]
    pub(crate) fn push_op(&mut self, op: OpId) {
        self.tx.push_back(op);
    }

    #[inline]
    pub(crate) fn first_op(&self) -> Option<OpId> {
        self.tx.front().copied()
    }

    pub(crate) fn second_op(&self) -> Option<OpId> {
        self.tx.get(1).copied()
    }

    #[inline]
    pub(crate) fn pop_op(&mut self) {
        self.tx.pop_front();
    }

    /// Exchanges the first two operations, for the planted bug `OrderSwapped`.
    pub(crate) fn swap_ops(&mut self) {
        self.tx.swap(0, 1);
    }

    /// Number of queued operations.
    #[inline]
    pub(crate) fn ops(&self) -> usize {
        self.tx.len()
    }

    pub(crate) fn into_ops(self) -> VecDeque<OpId> {
        self.tx
    }

    // ---- answers -----------------------------------------------------------------------------

    /// Queues a message, or an answer to a read.
    #[inline]
    pub(crate) fn push_deferred(&mut self, work: Deferred) {
        if let Deferred::Reply { iov, copy: None, .. } = &work {
            self.replies |= reply_cost(mem::total_len(iov) as u64) > 0;
        }
        self.deferred.push_back(work);
    }

    #[inline]
    pub(crate) fn pop_deferred(&mut self) -> Option<Deferred> {
        self.deferred.pop_front()
    }

    /// Puts work back that the device did not accept.
    pub(crate) fn retry_deferred(&mut self, work: Deferred) {
        self.deferred.push_front(work);
    }

    pub(crate) fn deferred_mut(&mut self) -> impl Iterator<Item = &mut Deferred> {
        self.deferred.iter_mut()
    }

    /// Notes that an answer of `len` bytes has left whose bytes were copied.
    pub(crate) fn copy_sent(&mut self, len: u64) {
        self.copied = less!(self.copied, reply_cost(len), "a reply is copied before it leaves");
    }

    /// Whether answers are queued that must be copied before memory changes.
    #[inline]
    pub(crate) fn has_replies(&self) -> bool {
        self.replies
    }

    #[inline]
    pub(crate) fn push_ack(&mut self, op: u32) {
        self.acks.push(op);
    }

    #[inline]
    pub(crate) fn acks(&self) -> &[u32] {
        &self.acks
    }

    /// Removes the first `sent` acknowledgements, which have left.
    #[inline]
    pub(crate) fn acks_sent(&mut self, sent: usize) {
        self.acks.drain(..sent);
    }

    /// Whether messages wait to be sent before a confirmation.
    #[inline]
    pub(crate) fn has_deferred(&self) -> bool {
        !self.deferred.is_empty()
    }

    #[inline]
    pub(crate) fn is_confirmation_due(&self) -> bool {
        self.confirmation_due
    }

    #[inline]
    pub(crate) fn set_confirmation_due(&mut self, due: bool) {
        self.confirmation_due = due;
    }

    /// Notes that the peer will confirm message `number`, a request of an operation.
    #[inline]
    pub(crate) fn await_confirmation(&mut self, number: u32, op: OpId) {
        self.unconfirmed.push_back((number, op));
    }

    /// Takes the oldest request, if its message precedes message `number`.
    #[inline]
    pub(crate) fn take_confirmed(&mut self, number: u32) -> Option<OpId> {
        let (message, op) = *self.unconfirmed.front()?;
        let reached = planted!(Bug::ConfirmedEarly, is_before(message, number), true);
        if reached { self.unconfirmed.pop_front().map(|_| op) } else { None }
    }

    pub(crate) fn results(&self) -> Option<&FetchResults> {
        self.results.as_deref()
    }

    pub(crate) fn results_mut(&mut self) -> Option<&mut FetchResults> {
        self.results.as_deref_mut()
    }

    /// The results of the peer's atomics, to which the caller adds one.
    pub(crate) fn new_results(&mut self) -> &mut FetchResults {
        self.results.get_or_insert_default()
    }

    // ---- bulk data ---------------------------------------------------------------------------

    pub(crate) fn push_bulk(&mut self, work: BulkOp) {
        self.matched += usize::from(work.is_matched());
        self.bulk.push_back(work);
    }

    pub(crate) fn pop_bulk(&mut self) -> Option<BulkOp> {
        let work = self.bulk.pop_front()?;
        self.matched -= usize::from(work.is_matched());
        Some(work)
    }

    /// Puts work back that the device did not accept.
    pub(crate) fn retry_bulk(&mut self, work: BulkOp) {
        self.matched += usize::from(work.is_matched());
        self.bulk.push_front(work);
    }

    #[inline]
    pub(crate) fn has_bulk(&self) -> bool {
        !self.bulk.is_empty()
    }

    // ---- state -------------------------------------------------------------------------------

    #[inline]
    pub(crate) fn parts(&self) -> Option<u32> {
        self.parts
    }

    /// Sets the unfinished operation. Returns the former one.
    #[inline]
    pub(crate) fn set_parts(&mut self, parts: Option<u32>) -> Option<u32> {
        std::mem::replace(&mut self.parts, parts)
    }

    pub(crate) fn standby(&self) -> Option<LinkId> {
        self.standby
    }

    /// Sets the peer's own attempt. Returns the former one.
    pub(crate) fn set_standby(&mut self, standby: Option<LinkId>) -> Option<LinkId> {
        std::mem::replace(&mut self.standby, standby)
    }

    /// Keeps a message that has arrived before earlier ones.
    pub(crate) fn keep_early(&mut self, seq: u32, bytes: Vec<u8>) {
        self.early.insert(seq, bytes);
    }

    pub(crate) fn take_early(&mut self, seq: u32) -> Option<Vec<u8>> {
        self.early.remove(&seq)
    }

    #[inline]
    pub(crate) fn has_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Whether the queues allow the fast path for the next message.
    #[inline]
    pub(crate) fn are_quiet(&self) -> bool {
        self.early.is_empty() && self.deferred.len() <= DEFERRED_LIMIT
    }

    /// Bytes of the queued work.
    pub(crate) fn held_bytes(&self) -> u64 {
        let queues = self.deferred.len() * size_of::<Deferred>() + self.bulk.len() * size_of::<BulkOp>();
        let answers = self.acks.len() * size_of::<u32>() + self.results.as_ref().map_or(0, |results| results.cost());
        (queues + answers) as u64 + u64::from(self.copied)
    }

    /// Whether work waits to be sent.
    #[inline]
    pub(crate) fn to_send(&self) -> bool {
        !(self.tx.is_empty() && self.deferred.is_empty() && self.bulk.is_empty() && self.acks.is_empty())
            || self.confirmation_due
            || self.results.as_ref().is_some_and(|results| results.wait())
    }

    /// Copies the bytes of queued answers, because the peer is about to change memory. Returns false if the
    /// copies exceed the limit for one peer.
    #[cold]
    pub(crate) fn keep_replies(&mut self) -> bool {
        self.replies = false;
        for work in self.deferred.iter_mut().rev() {
            let Deferred::Reply { iov, copy, .. } = work else { continue };
            let cost = reply_cost(mem::total_len(iov) as u64);
            if copy.is_some() {
                // All answers before it have been copied, too.
                break;
            } else if cost > 0 {
                let mut owned = Owned::new(mem::to_vec(iov));
                *iov = smallvec::smallvec![owned.iov()];
                *copy = Some(owned);
                self.copied = self.copied.saturating_add(cost);
            }
        }
        self.copied <= REPLY_WINDOW_BYTES
    }

    /// Whether the peer has requested more than it may before it takes the answers. Work of this side's
    /// receives does not count, except for acknowledgements: each message may have one.
    #[inline]
    pub(crate) fn is_too_much(&self) -> bool {
        self.deferred.len() > DEFERRED_LIMIT
            || self.bulk.len() - self.matched > DEFERRED_LIMIT
            || self.acks.len() > REQUEST_LIMIT + UNMATCHED_LIMIT
    }

    // ---- windows that the peer has announced ---------------------------------------------------

    /// Opens the window that message `seq` announces.
    pub(crate) fn open_announced(&mut self, seq: u32, transfer: TransferId) -> Result<(), Violation> {
        self.announced.push_back((seq, transfer));
        if self.announced.len() > REQUEST_LIMIT { Err(Violation) } else { Ok(()) }
    }

    /// The transfer of an open window.
    pub(crate) fn announced(&self, seq: u32) -> Option<TransferId> {
        self.announced.iter().find(|(announcement, _)| *announcement == seq).map(|(_, transfer)| *transfer)
    }

    pub(crate) fn close_announced(&mut self, seq: u32) {
        if let Some(place) = self.announced.iter().position(|(announcement, _)| *announcement == seq) {
            self.announced.remove(place);
        }
    }

    /// Forgets the windows and confirmations of an earlier link.
    pub(crate) fn forget_link(&mut self) {
        self.announced.clear();
        self.unconfirmed.clear();
        self.confirmation_due = false;
    }

    /// Whether no work of any kind is queued.
    pub(crate) fn is_empty(&self) -> bool {
        let expects_none = self.parts.is_none() && self.standby.is_none() && self.announced.is_empty();
        !self.to_send() && expects_none && self.early.is_empty() && self.unconfirmed.is_empty()
    }

    /// Whether the memory of the empty queues is worth keeping for another peer.
    fn is_small(&self) -> bool {
        let numbers = self.acks.capacity().max(self.announced.capacity()).max(self.unconfirmed.capacity());
        self.tx.capacity().max(self.deferred.capacity()).max(self.bulk.capacity()).max(numbers) <= KEPT_ELEMENTS
    }
}

/// The queues that are lent to peers.
#[derive(Default)]
pub(crate) struct QueuePool {
    lent: usize,
    #[allow(clippy::vec_box)] // They are lent as they are.
    spare: Vec<Box<PeerQueues>>,
}

impl Peer {
    /// The peer's queues. The pool lends some if the peer has none.
    #[inline]
    pub(crate) fn lend_queues(&mut self, pool: &mut QueuePool) -> &mut PeerQueues {
        self.queues.get_or_insert_with(|| pool.lend())
    }

    /// Removes the queues with their entries.
    pub(crate) fn drop_queues(&mut self, pool: &mut QueuePool) -> Option<Box<PeerQueues>> {
        let queues = self.queues.take();
        pool.lent -= usize::from(queues.is_some());
        queues
    }
}

impl QueuePool {
    /// Lends queues to a peer.
    #[cold]
    fn lend(&mut self) -> Box<PeerQueues> {
        self.lent += 1;
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back a peer's queues if they are empty and many are lent. The caller has found that no work waits
    /// to be sent.
    #[inline]
    pub(crate) fn take_back(&mut self, peer: &mut Peer) {
        if self.lent > KEPT_QUEUES {
            self.take_back_now(peer);
        }
    }

    #[inline(never)]
    fn take_back_now(&mut self, peer: &mut Peer) {
        if let Some(queues) = peer.queues.take_if(|queues| queues.is_empty()) {
            self.lent -= 1;
            if queues.is_small() && self.spare.len() < KEPT_QUEUES {
                self.spare.push(queues);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::ORDERED_RMA_BYTES;

    #[test]
    fn answers_are_copied_once_and_within_a_bound() {
        let mut memory = Owned::new(vec![7; ORDERED_RMA_BYTES]);
        let iov = IovList::from_slice(&[memory.iov()]);
        let reply = || {
            let op = Op { op: 0.into(), part: 0.into() };
            Deferred::Reply { op, key: 1, iov: iov.clone(), copy: None }
        };
        let mut queues = PeerQueues::default();
        queues.deferred.extend((0..REPLY_WINDOW_BYTES as usize / ORDERED_RMA_BYTES).map(|_| reply()));
        for _ in 0..2 {
            assert!(queues.keep_replies());
            assert_eq!(queues.copied, REPLY_WINDOW_BYTES);
        }
        queues.deferred.push_back(reply());
        assert!(!queues.keep_replies(), "more than a peer may ask for");
    }
}
