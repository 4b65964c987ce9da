//! Peers: the engine's state for another endpoint, created at first use.
//!
//! Place in the data flow: an operation finds its [`Peer`] by address. It waits in the peer's TX queue until the
//! link is up and the device accepts it. Messages find the peer by link. The GNI paper (§III) names the
//! three queues and their order: RX (here: `Nic::poll`), deferred work (which RX caused), TX. A queue is worked
//! off until it is empty or the device is full. A stall in one queue never blocks another.
//!
//! Cost: an idle peer is this struct (at most [`PEER_BYTES_BUDGET`] bytes). Its queues are separate
//! ([`PeerQueues`]). The engine lends them to a peer while it has queued work, and lets a few peers keep them
//! ([`QueuePool`]).

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr, OpFlags};
use crate::engine::atomic::FetchResults;
use crate::engine::groups::Group;
use crate::engine::ids::{OpId, TransferId, WindowId};
use crate::engine::prefetch::ShortAnnouncement;
use crate::engine::stats::PeerCounters;
use crate::engine::strangers::Stake;
use crate::engine::transfer::Announced;
use crate::mem::{self, IovList, Owned};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, NicCaps, RemoteIov, Share};
use crate::wire::Op;

/// Limit in bytes of an idle peer's cost in the engine. weft-nic's tests limit the cost with the devices.
pub(crate) const PEER_BYTES_BUDGET: usize = 192;

/// RMA operations up to this length in bytes travel within messages that have the room. They take effect in the
/// order of the messages, whatever the eager threshold is (`max_order_{raw,war,waw}_size` of libfabric).
pub(crate) const ORDERED_RMA_BYTES: usize = 32 << 10;

/// The answer to a read of at most this length in bytes is made when the read arrives. The bytes of a longer
/// answer are gathered when it leaves, or before the peer changes memory.
pub(crate) const PROMPT_REPLY_BYTES: usize = 128;

/// Limit of bytes in pending answers to one peer's reads, counting only answers that may have to be copied.
pub(crate) const REPLY_WINDOW_BYTES: u32 = 4 << 20;

/// The cost of the answer to a read of `len` bytes, within that limit.
pub(crate) fn reply_cost(len: u64) -> u32 {
    let ordered = len > PROMPT_REPLY_BYTES as u64 && len <= ORDERED_RMA_BYTES as u64;
    u32::try_from(len).ok().filter(|_| ordered).unwrap_or(0)
}

/// Limit of unanswered requests of one peer that the target's engine answers by itself: parts of remote
/// accesses, and messages whose arrival is acknowledged. More violate the protocol (docs/protocol.md).
pub(crate) const REQUEST_LIMIT: usize = 1 << 17;

/// Limit of messages of one peer that wait for the target's client: announced by RTS, or eager with an
/// acknowledgement of the delivery. The receiver keeps a descriptor of each. Only matching frees these places,
/// so the limit exceeds the needs of programs.
pub(crate) const UNMATCHED_LIMIT: usize = 1 << 20;

/// Places below [`UNMATCHED_LIMIT`] that are left to collectives, so that messages which wait for the peer's client
/// never hold back a collective.
pub(crate) const COLLECTIVE_SENDS: usize = 1 << 17;

/// Number of unanswered requests per peer that an engine may always have, however small its client's transmit
/// queue is.
const FEWEST_REQUESTS: usize = 64;

/// Limit of answers to the peer's requests that wait to be sent, and of transfers that its requests have
/// started.
pub(crate) const DEFERRED_LIMIT: usize = 2 * REQUEST_LIMIT;

/// Number of peers that keep their queues when no work is queued, and limit of unused queues that are kept for
/// others.
const KEPT_QUEUES: usize = 8;

/// Number of elements up to which a queue's memory is kept.
const KEPT_ELEMENTS: usize = 64;

/// Bytes of a mailbox that are reserved for the longest header.
pub(crate) const HEADER_BYTES: usize = 128;

/// Sends with one of these flags need more than one step.
const SLOW_SENDS: OpFlags =
    OpFlags::DELIVERY.union(OpFlags::FENCE).union(OpFlags::AFTER_ACCESSES).union(OpFlags::TRIGGER);

/// State of the link to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// There is no link and no attempt.
    Idle,
    /// This side's attempt is pending on this link.
    Connecting(LinkId),
    /// The peer's link has been adopted. The OPEN_OK that must precede all other messages has not left yet.
    Greeting(LinkId),
    /// The link carries messages.
    Up(LinkId),
    /// There is no peer: a stranger had this number and has left, and the number is free.
    Vacant,
}

/// [`PeerState`] without the links: both together take more room in a [`Peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting,
    Greeting,
    Up,
    Vacant,
}

/// Work that arrived messages have caused, in their order.
pub(crate) enum Deferred {
    /// A complete message without its number. Answers to reads of at most [`PROMPT_REPLY_BYTES`] bytes are
    /// stored inline.
    Message(SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]>),
    /// READ_DATA from a region, or from a copy, which `iov` then describes.
    Reply { op: Op, key: u64, iov: IovList, copy: Option<Owned> },
    /// Our message of a collective: its operation number. It passes the messages of the client.
    Collective(OpId),
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
    Push { op: OpId, part: u32, window: u64, len: u64 },
    /// Helps the peer to move a part of an operation of this engine: the first `len` bytes, from or to `far`.
    Assist { op: OpId, part: u32, share: Share, len: u64, far: Vec<RemoteIov> },
}

/// The answer that completes a send, after the message has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None (FI_INJECT_COMPLETE).
    Nothing,
    /// The peer's engine has the message (FI_TRANSMIT_COMPLETE).
    Arrived,
    /// The message is in the receiver's buffer, or was dropped (FI_DELIVERY_COMPLETE).
    Received,
}

bitflags::bitflags! {
    /// The properties of the same names in [`NicCaps`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PathFlags: u8 {
        const GET = 1;
        const PUT = 1 << 1;
        const ORDERED = 1 << 2;
        /// Set only if messages are ordered.
        const PUSH_FOLLOWS = 1 << 3;
        /// A message that has left counts as arrived (FI_TRANSMIT_COMPLETE needs no answer).
        const SURVIVES = 1 << 4;
        /// Gets and puts reach only registered memory.
        const REGISTERED = 1 << 5;
    }
}

/// The properties of a peer's device that every message needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathCaps {
    /// Length limit of an eager message's payload.
    pub(crate) eager_bytes: u32,
    /// Length limit of a read's or write's part that travels within a message.
    pub(crate) rma_bytes: u32,
    pub(crate) mailbox_bytes: u32,
    /// Sends with any of these do not take the fast path.
    pub(crate) slow_sends: OpFlags,
}

impl PathFlags {
    /// The answer that completes a send of this level.
    pub(crate) fn answer_to(self, flags: OpFlags) -> Answer {
        if flags.contains(OpFlags::DELIVERY) {
            Answer::Received
        } else if flags.contains(OpFlags::TRANSMIT) && !self.contains(Self::SURVIVES) {
            Answer::Arrived
        } else {
            Answer::Nothing
        }
    }

    fn new(caps: &NicCaps) -> Self {
        let mut flags = Self::empty();
        flags.set(Self::GET, caps.get);
        flags.set(Self::PUT, caps.put);
        flags.set(Self::ORDERED, caps.ordered);
        flags.set(Self::PUSH_FOLLOWS, caps.push_follows && caps.ordered);
        flags.set(Self::SURVIVES, caps.survives);
        flags.set(Self::REGISTERED, caps.registered);
        flags
    }
}

impl PathCaps {
    /// `eager` overrides the device's own threshold. Both leave room for the longest header.
    fn new(caps: &NicCaps, eager: Option<usize>) -> Self {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let room = caps.mailbox_bytes.saturating_sub(HEADER_BYTES);
        let eager = eager.unwrap_or(caps.eager_bytes);
        Self {
            eager_bytes: clamp(eager.min(room)),
            rma_bytes: clamp(eager.max(ORDERED_RMA_BYTES).min(room)),
            mailbox_bytes: clamp(caps.mailbox_bytes),
            slow_sends: if caps.survives { SLOW_SENDS } else { SLOW_SENDS.union(OpFlags::TRANSMIT) },
        }
    }
}

/// One peer.
pub(crate) struct Peer {
    pub(crate) name: EpName,
    /// Address in the book, `ADDR_NONE` for a stranger.
    pub(crate) addr: Addr,
    /// The state, without its link.
    phase: Phase,
    /// The link of the state.
    link: LinkId,
    pub(crate) caps: PathCaps,
    pub(crate) path: PathFlags,
    /// Whether the peer is in the list of peers with work.
    pub(crate) active: bool,
    /// Reason why the last attempt to connect failed, if it was made for an inject that was not accepted. The
    /// next inject fails with it.
    pub(crate) connect_failure: Option<LinkError>,
    /// Number of refusals by the peer because it still has an earlier link.
    pub(crate) redials: u16,
    /// Number of the latest call from the peer ([`wire::Open::call`](crate::wire::Open)).
    pub(crate) call: u32,
    /// Numbers of the next message to send, and of the next expected message.
    pub(crate) tx_seq: u32,
    pub(crate) rx_seq: u32,
    /// Counters of sent and received messages, for statistics ([`crate::engine::stats`]).
    pub(crate) costs: [u64; 2],
    pub(crate) messages: [u32; 2],
    pub(crate) rendezvous: [u8; 2],
    /// Received messages that waited for a receive, and those of them that a receive has taken.
    pub(crate) waited: [u8; 2],
    /// Eager bytes that this side may still send.
    pub(crate) tx_credit: u64,
    /// Eager bytes that the peer has used and that were not returned, also over an earlier link, or that are
    /// withheld from it. Without a link, those of waiting messages.
    pub(crate) rx_used: u64,
    /// Eager bytes to return, and a quarter of the withheld ones, so that a smaller window is returned in
    /// quarters, too.
    pub(crate) credit_owed: u64,
    /// Number of operations that have left the TX queue and are not complete, counted by parts.
    pub(crate) outstanding: u32,
    /// Operations to the peer that are not complete ([`crate::engine::ops::Outgoing`]).
    pub(crate) ops: Group,
    /// Transfers of bulk data for the peer.
    pub(crate) transfers: Group,
    /// Queued work, if any (`Peers::queues`).
    pub(crate) queues: Option<Box<PeerQueues>>,
    /// Further state, if the peer has exchanged more than a few messages ([`Peer::extra`]).
    pub(crate) extra: Option<Box<PeerExtra>>,
}

/// State that idle peers and peers with few messages do not need: remote accesses and counters.
#[derive(Default)]
pub(crate) struct PeerExtra {
    /// Sends among the outstanding operations that wait for the peer's client ([`UNMATCHED_LIMIT`]).
    pub(crate) unmatched: u32,
    /// Number of remote accesses among the outstanding operations, counted by parts.
    pub(crate) accesses: u32,
    /// Number of unexpected messages whose payload waits at the peer.
    pub(crate) rendezvous_waiting: u32,
    /// Number of sent writes and atomics without an acknowledgement of success. The peer may report at most
    /// this number of failures of unnamed operations.
    pub(crate) quiet_writes: u64,
    /// Bytes of pending results of this side's atomics, with their names.
    pub(crate) fetching: u32,
    /// Bytes of pending answers to this side's reads that may have to be copied.
    pub(crate) reading: u32,
    /// Number of the peer's long writes whose bytes have not all arrived.
    pub(crate) writing: usize,
    /// The other end of the link, if this engine is its own peer.
    pub(crate) own_end: Option<LinkId>,
    /// Pushes that this side has announced on the link, and those of the peer.
    pub(crate) announcing: u64,
    pub(crate) announced: Announced,
    /// Short messages that the peer has announced and no receive has taken, oldest first.
    #[allow(clippy::box_collection)] // Most peers have none.
    pub(crate) announcements: Option<Box<VecDeque<ShortAnnouncement>>>,
    pub(crate) counters: PeerCounters,
    /// For a peer in no address vector ([`crate::engine::strangers`]): the bytes withheld of its window, and
    /// the memory that it occupies altogether.
    pub(crate) withheld: u64,
    pub(crate) stake: Stake,
    /// Bytes that the device held for the peer at the last check.
    pub(crate) device_bytes: u64,
    /// Number of messages in both directions at the last check of its idleness.
    pub(crate) activity: u32,
    /// Count of crowded calls (`Strangers::crowded`) at the last check that found new messages.
    pub(crate) quiet_since: u32,
}

#[cold]
#[inline(never)]
fn new_extra() -> Box<PeerExtra> {
    Box::default()
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

/// Queued work of a peer.
#[derive(Default)]
pub(crate) struct PeerQueues {
    /// Operations, by number.
    pub(crate) tx: VecDeque<OpId>,
    pub(crate) deferred: VecDeque<Deferred>,
    /// Whether answers to the peer's reads are queued that might have to be copied if the peer changes memory,
    /// and the bytes of those that were copied.
    pub(crate) replies: bool,
    pub(crate) copied: u32,
    pub(crate) bulk: VecDeque<BulkOp>,
    /// Number of entries of `bulk` that receives of this side's client have caused, in contrast to requests of
    /// the peer.
    pub(crate) matched: usize,
    /// Successful operations of the peer that must be acknowledged.
    pub(crate) acks: Vec<u32>,
    /// Results of the peer's atomics.
    pub(crate) results: Option<Box<FetchResults>>,
    /// The peer's unfinished operation of several parts ([`crate::engine::remote_events`]).
    pub(crate) parts: Option<u32>,
    /// The peer's own attempt, kept until this side's has succeeded or failed.
    pub(crate) standby: Option<LinkId>,
    /// Messages on an unordered link that arrived before earlier ones.
    pub(crate) early: BTreeMap<u32, Vec<u8>>,
}

impl PeerQueues {
    /// The kinds of work that wait to be sent.
    #[inline]
    pub(crate) fn kinds(&self) -> QueueKinds {
        let mut kinds = QueueKinds::empty();
        kinds.set(QueueKinds::DEFERRED, !self.deferred.is_empty());
        kinds.set(QueueKinds::ACKS, !self.acks.is_empty());
        kinds.set(QueueKinds::RESULTS, self.results.as_ref().is_some_and(|results| results.wait()));
        kinds.set(QueueKinds::BULK, !self.bulk.is_empty());
        kinds.set(QueueKinds::TX, !self.tx.is_empty());
        kinds
    }

    /// Whether work waits to be sent.
    #[inline]
    fn to_send(&self) -> bool {
        !(self.tx.is_empty() && self.deferred.is_empty() && self.bulk.is_empty() && self.acks.is_empty())
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

    /// Whether no work of any kind is queued.
    pub(crate) fn is_empty(&self) -> bool {
        !self.to_send() && self.parts.is_none() && self.standby.is_none() && self.early.is_empty()
    }

    /// Whether the memory of the empty queues is worth keeping for another peer.
    fn is_small(&self) -> bool {
        self.tx.capacity().max(self.deferred.capacity()).max(self.bulk.capacity()).max(self.acks.capacity())
            <= KEPT_ELEMENTS
    }
}

/// The queues that are lent to peers.
#[derive(Default)]
pub(crate) struct QueuePool {
    lent: usize,
    #[allow(clippy::vec_box)] // They are lent as they are.
    spare: Vec<Box<PeerQueues>>,
}

impl QueuePool {
    /// Lends queues to a peer.
    #[cold]
    pub(crate) fn lend(&mut self) -> Box<PeerQueues> {
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
            if let Some(extra) = &mut peer.extra {
                extra.announced.shrink();
            }
            if queues.is_small() && self.spare.len() < KEPT_QUEUES {
                self.spare.push(queues);
            }
        }
    }

    /// Notes that a peer's queues were dropped.
    pub(crate) fn lost(&mut self) {
        self.lent -= 1;
    }
}

const _: () = assert!(size_of::<Peer>() <= PEER_BYTES_BUDGET);

/// Limit of unanswered requests per peer, for a transmit queue of `tx_depth` operations.
pub(crate) fn request_limit(tx_depth: usize) -> u32 {
    u32::try_from(tx_depth.clamp(FEWEST_REQUESTS, REQUEST_LIMIT)).unwrap_or(u32::MAX)
}

impl Peer {
    pub(crate) fn new(name: EpName) -> Self {
        Self {
            name,
            addr: ADDR_NONE,
            phase: Phase::Idle,
            link: LinkId(u32::MAX),
            caps: PathCaps { eager_bytes: 0, rma_bytes: 0, mailbox_bytes: 0, slow_sends: SLOW_SENDS },
            path: PathFlags::ORDERED,
            active: false,
            connect_failure: None,
            redials: 0,
            call: 0,
            tx_seq: 0,
            rx_seq: 0,
            costs: [0; 2],
            messages: [0; 2],
            rendezvous: [0; 2],
            waited: [0; 2],
            tx_credit: 0,
            rx_used: 0,
            credit_owed: 0,
            outstanding: 0,
            ops: Group::EMPTY,
            transfers: Group::EMPTY,
            queues: None,
            extra: None,
        }
    }

    /// Returns to the state before the first link. Operations, transfers and counters stay, and so does the part of the
    /// window that unreceived messages use.
    pub(crate) fn reset(&mut self) {
        let counters = self.take_counters();
        let stake = self.extra.as_ref().map(|extra| extra.stake).unwrap_or_default();
        *self = Self {
            addr: self.addr,
            active: self.active,
            call: self.call,
            ops: self.ops,
            transfers: self.transfers,
            rx_used: self.unreceived(),
            extra: Some(Box::new(PeerExtra { counters, stake, ..PeerExtra::default() })),
            ..Self::new(self.name)
        };
    }

    /// Starts a stream of messages and fresh windows on a new link. `used`: the part of the peer's window that
    /// was not granted, because messages waited here when the window was announced.
    pub(crate) fn open(
        &mut self,
        state: PeerState,
        caps: &NicCaps,
        eager: Option<usize>,
        window_bytes: u64,
        used: u64,
    ) {
        self.set_state(state);
        self.caps = PathCaps::new(caps, eager);
        self.path = PathFlags::new(caps);
        self.connect_failure = None;
        self.redials = 0;
        self.tx_seq = 0;
        self.rx_seq = 0;
        self.tx_credit = window_bytes;
        self.credit_owed = used.saturating_sub(self.rx_used);
        self.rx_used = used;
        if let Some(extra) = &mut self.extra {
            extra.announcing = 0;
            extra.announced = Announced::default();
        }
    }

    /// The further state, which is allocated at first use.
    #[inline(always)]
    pub(crate) fn extra(&mut self) -> &mut PeerExtra {
        self.extra.get_or_insert_with(new_extra)
    }

    /// Bytes of pending results.
    #[inline]
    pub(crate) fn fetching(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.fetching)
    }

    /// Bytes of pending answers.
    #[inline]
    pub(crate) fn reading(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.reading)
    }

    /// The name of the next window that this side announces.
    pub(crate) fn announcing(&self) -> u64 {
        WindowId::Announced(self.extra.as_ref().map_or(0, |extra| extra.announcing)).to_wire()
    }

    /// The progress of the peer's link.
    #[inline]
    pub(crate) fn state(&self) -> PeerState {
        match self.phase {
            Phase::Idle => PeerState::Idle,
            Phase::Connecting => PeerState::Connecting(self.link),
            Phase::Greeting => PeerState::Greeting(self.link),
            Phase::Up => PeerState::Up(self.link),
            Phase::Vacant => PeerState::Vacant,
        }
    }

    pub(crate) fn set_state(&mut self, state: PeerState) {
        let none = LinkId(u32::MAX);
        (self.phase, self.link) = match state {
            PeerState::Idle => (Phase::Idle, none),
            PeerState::Connecting(link) => (Phase::Connecting, link),
            PeerState::Greeting(link) => (Phase::Greeting, link),
            PeerState::Up(link) => (Phase::Up, link),
            PeerState::Vacant => (Phase::Vacant, none),
        };
    }

    /// The link that carries operations, if it is up.
    #[inline(always)]
    pub(crate) fn link(&self) -> Option<LinkId> {
        (self.phase == Phase::Up).then_some(self.link)
    }

    /// Whether a link carries the peer's messages.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.state(), PeerState::Greeting(_) | PeerState::Up(_))
    }

    /// Whether no operation waits in the TX queue.
    #[inline]
    pub(crate) fn tx_is_empty(&self) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.tx.is_empty())
    }

    /// Whether a message with this number is the next one, and can be handled on the fast path.
    #[inline]
    pub(crate) fn is_next(&self, seq: u32) -> bool {
        seq == self.rx_seq
            && self
                .queues
                .as_ref()
                .is_none_or(|queues| queues.early.is_empty() && queues.deferred.len() <= DEFERRED_LIMIT)
    }

    /// Whether this peer is a stranger without pending work.
    pub(crate) fn is_sweepable(&self) -> bool {
        let idle = self.state() == PeerState::Idle && self.queues.is_none() && self.outstanding == 0;
        self.addr == ADDR_NONE && idle
    }

    /// Whether an operation with these flags must wait for operations that have left.
    #[inline]
    pub(crate) fn holds_back(&self, flags: OpFlags) -> bool {
        flags.contains(OpFlags::FENCE) && self.outstanding > 0
            || flags.contains(OpFlags::AFTER_ACCESSES) && self.extra.as_ref().is_some_and(|extra| extra.accesses > 0)
    }

    /// Number of unexpected messages whose payload waits at the peer.
    pub(crate) fn rendezvous_waiting(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.rendezvous_waiting)
    }

    /// Whether another request may leave that the peer's engine answers by itself. `pending` counts the
    /// requests of an operation that has left in part. `limit` comes from [`request_limit`].
    #[inline]
    pub(crate) fn may_ask(&self, pending: u32, limit: u32) -> bool {
        self.outstanding.saturating_add(pending) < limit || self.may_ask_beside_unmatched(pending, limit)
    }

    /// Sends that wait for the peer's client do not count as requests.
    #[cold]
    fn may_ask_beside_unmatched(&self, pending: u32, limit: u32) -> bool {
        (self.outstanding - self.unmatched()).saturating_add(pending) < limit
    }

    fn unmatched(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.unmatched)
    }

    /// Whether another message may leave that waits for the peer's client.
    #[inline]
    pub(crate) fn may_announce(&self) -> bool {
        (self.unmatched() as usize) < UNMATCHED_LIMIT - COLLECTIVE_SENDS
    }

    /// Number of operations in the TX queue.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.tx.len())
    }

    /// Whether work waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| queues.to_send())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
