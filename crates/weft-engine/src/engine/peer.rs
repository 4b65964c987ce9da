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

mod counters;
mod path;
mod queues;
mod quotas;
mod window;

pub(crate) use counters::{Direction, WaitEvent};
use path::PathCaps;
pub(crate) use path::{Answer, PathFlags};
pub(crate) use queues::{BulkOp, Deferred, PeerQueues, QueueKinds, QueuePool};
pub(crate) use quotas::Quota;

use std::collections::VecDeque;

use crate::api::{ADDR_NONE, Addr, OpFlags};
use crate::engine::direct::PeerRegions;
use crate::engine::partition::Partition;
use crate::engine::prefetch::ShortAnnouncement;
use crate::engine::state::Violation;
use crate::engine::strangers::Watch;
use crate::ids::{TransferId, WindowId};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, NicCaps, Sharing};
use crate::wire::ORDERED_RMA_BYTES;

/// Limit in bytes of an idle peer's cost in the engine. weft-nic's tests limit the cost with the devices.
pub(crate) const PEER_BYTES_BUDGET: usize = 192;

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

/// Number of unanswered requests per peer that an engine may always have, even with a short transmit queue.
const FEWEST_REQUESTS: usize = 64;

/// Limit of waiting answers to the peer's requests, and of transfers that its requests have started.
pub(crate) const DEFERRED_LIMIT: usize = 2 * REQUEST_LIMIT;

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

/// The kind of a [`PeerState`]. Kind and link are stored apart, which takes less room in a [`Peer`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting,
    Greeting,
    Up,
    Vacant,
}

bitflags::bitflags! {
    #[derive(Clone, Copy)]
    struct PeerMarks: u8 {
        /// The peer is in the list of peers with work.
        const ACTIVE = 1;
        /// The peer is this endpoint itself.
        const OWN = 1 << 1;
        /// Regions can be mapped over the link.
        const CAN_MAP = 1 << 2;
        /// The peer has regions that this endpoint maps.
        const MAPS = 1 << 3;
    }
}

/// One peer.
pub(crate) struct Peer {
    name: EpName,
    /// Address in the book, `ADDR_NONE` for a stranger.
    addr: Addr,
    /// The state, without its link.
    phase: Phase,
    /// The link of the state.
    link: LinkId,
    caps: PathCaps,
    path: PathFlags,
    /// Marks: the list of peers with work, the peer itself, and mappings.
    marks: PeerMarks,
    /// Reason why the last attempt to connect failed, if it was made for an inject that was not accepted. The
    /// next inject fails with it.
    connect_failure: Option<LinkError>,
    /// Number of refusals by the peer because it still has an earlier link.
    redials: u16,
    /// Number of the latest call from the peer ([`wire::Open::call`](crate::wire::Open)).
    call: u32,
    /// Numbers of the next message to send, and of the next expected message.
    tx_seq: u32,
    rx_seq: u32,
    /// Counters of sent and received messages, for statistics ([`crate::engine::stats`]).
    costs: [u64; 2],
    messages: [u32; 2],
    rendezvous: [u8; 2],
    /// Received messages that waited for a receive, and those of them that a receive has taken.
    waited: [u8; 2],
    /// Eager bytes that this side may still send.
    tx_credit: u64,
    /// Eager bytes that the peer has used and that were not returned, also over an earlier link, or that are
    /// withheld from it. Without a link, those of waiting messages.
    rx_used: u64,
    /// Eager bytes to return, and a quarter of the withheld ones, so that a smaller window is returned in
    /// quarters, too.
    credit_owed: u64,
    /// Number of operations that have left the TX queue and are not complete, counted by parts.
    outstanding: u32,
    /// Operations to the peer that are not complete ([`crate::engine::ops::Outgoing`]).
    ops: Partition,
    /// Transfers of bulk data for the peer.
    transfers: Partition,
    /// Queued work, if any (`Peers::queues`).
    queues: Option<Box<PeerQueues>>,
    /// Further state, if the peer has exchanged more than a few messages ([`Peer::extra`]).
    extra: Option<Box<PeerExtra>>,
}

/// State that idle peers and peers with few messages do not need: remote accesses and counters.
#[derive(Default)]
pub(crate) struct PeerExtra {
    /// Number of sent writes and atomics without an acknowledgement of success. The peer may report at most
    /// this number of failures of unnamed operations.
    nameless: u64,
    counts: quotas::Counts,
    /// The other end of the link, if this engine is its own peer.
    own_end: Option<LinkId>,
    /// Mapped regions.
    regions: Option<Box<PeerRegions>>,
    /// Short messages that the peer has announced and no receive has taken, oldest first.
    #[allow(clippy::box_collection)] // Most peers have none.
    announcements: Option<Box<VecDeque<ShortAnnouncement>>>,
    counters: counters::PeerCounters,
    /// For a peer in no address vector ([`crate::engine::strangers`]): the bytes withheld of its window, and
    /// the memory that it occupies altogether.
    withheld: u64,
    watch: Watch,
}

#[cold]
#[inline(never)]
fn new_extra() -> Box<PeerExtra> {
    Box::default()
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
            caps: PathCaps::NONE,
            path: PathFlags::ORDERED,
            marks: PeerMarks::empty(),
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
            ops: Partition::EMPTY,
            transfers: Partition::EMPTY,
            queues: None,
            extra: None,
        }
    }

    /// Resets the peer to the state before its first link. Operations, transfers and counters stay. The part of the
    /// window that unreceived messages use stays as well.
    pub(crate) fn reset(&mut self) {
        let counters = self.take_counters();
        let watch = self.watch().map(Watch::after_reset).unwrap_or_default();
        *self = Self {
            addr: self.addr,
            marks: self.marks & (PeerMarks::ACTIVE | PeerMarks::OWN),
            call: self.call,
            ops: self.ops,
            transfers: self.transfers,
            rx_used: self.unreceived(),
            extra: Some(Box::new(PeerExtra { counters, watch, ..PeerExtra::default() })),
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
        self.marks.set(PeerMarks::CAN_MAP, caps.maps && !self.is_own());
        self.marks.remove(PeerMarks::MAPS);
        self.connect_failure = None;
        self.redials = 0;
        self.tx_seq = 0;
        self.rx_seq = 0;
        self.tx_credit = window_bytes;
        self.credit_owed = used.saturating_sub(self.rx_used);
        self.rx_used = used;
        if let Some(queues) = &mut self.queues {
            queues.forget_link();
        }
    }

    /// The further state, which is allocated at first use.
    #[inline(always)]
    fn extra(&mut self) -> &mut PeerExtra {
        self.extra.get_or_insert_with(new_extra)
    }

    // ---- identity ----------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn name(&self) -> EpName {
        self.name
    }

    /// Gives the peer its full name. Its calls under the former name do not count.
    pub(crate) fn rename(&mut self, name: EpName) {
        self.name = name;
        self.call = 0;
    }

    /// Whether the peer is this endpoint itself.
    #[inline(always)]
    pub(crate) fn is_own(&self) -> bool {
        self.marks.contains(PeerMarks::OWN)
    }

    /// Notes whether the peer is this endpoint itself.
    pub(crate) fn set_own(&mut self, own: bool) {
        self.marks.set(PeerMarks::OWN, own);
    }

    /// Whether accesses may be performed without a message: the peer is this endpoint itself, or has regions that are
    /// mapped.
    #[inline(always)]
    pub(crate) fn is_at_hand(&self) -> bool {
        self.marks.intersects(PeerMarks::OWN.union(PeerMarks::MAPS))
    }

    /// Whether the peer has regions that are mapped.
    #[inline(always)]
    pub(crate) fn has_mapped_regions(&self) -> bool {
        self.marks.contains(PeerMarks::MAPS)
    }

    /// Whether regions can be mapped over the link.
    pub(crate) fn can_map(&self) -> bool {
        self.marks.contains(PeerMarks::CAN_MAP) && self.is_in_use()
    }

    /// Notes that the peer has regions that this endpoint maps.
    pub(crate) fn maps_regions(&mut self) {
        self.marks.insert(PeerMarks::MAPS);
    }

    /// The peer's mapped regions.
    #[inline]
    pub(crate) fn regions(&mut self) -> &mut PeerRegions {
        self.extra().regions.get_or_insert_default()
    }

    /// Whether remote accesses are not complete.
    #[inline]
    pub(crate) fn has_accesses(&self) -> bool {
        self.taken(Quota::Accesses) > 0
    }

    /// Address in the book, `ADDR_NONE` for a stranger.
    #[inline(always)]
    pub(crate) fn addr(&self) -> Addr {
        self.addr
    }

    pub(crate) fn set_addr(&mut self, addr: Addr) {
        self.addr = addr;
    }

    // ---- the link ----------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn eager_bytes(&self) -> u32 {
        self.caps.eager_bytes()
    }

    #[inline(always)]
    pub(crate) fn rma_bytes(&self) -> u32 {
        self.caps.rma_bytes()
    }

    #[inline(always)]
    pub(crate) fn mailbox_bytes(&self) -> u32 {
        self.caps.mailbox_bytes()
    }

    /// Sends with any of these flags do not take the fast path.
    #[inline(always)]
    pub(crate) fn slow_sends(&self) -> OpFlags {
        self.caps.slow_sends()
    }

    /// Whether the link's device has one of these properties.
    #[inline]
    pub(crate) fn has(&self, property: PathFlags) -> bool {
        self.path.intersects(property)
    }

    #[inline]
    pub(crate) fn path(&self) -> PathFlags {
        self.path
    }

    /// Notes that the link's device lacks a property that it has announced.
    pub(crate) fn lose(&mut self, property: PathFlags) {
        self.path.remove(property);
    }

    /// Whether `len` bytes are pushed although the device could get or put them.
    pub(crate) fn pushes(&self, len: u64) -> bool {
        self.path.pushes(len)
    }

    /// The answer that completes a send of this level.
    pub(crate) fn answer_to(&self, flags: OpFlags) -> Answer {
        self.path.answer_to(flags)
    }

    /// Whether a short write of this level is complete when it has left.
    #[inline]
    pub(crate) fn leaves(&self, flags: OpFlags) -> bool {
        // An access in mapped memory would overtake it.
        self.path.leaves(flags) && !self.marks.contains(PeerMarks::MAPS)
    }

    /// Notes whether the peer is in the list of peers with work. Returns the former value.
    #[inline(always)]
    pub(crate) fn set_active(&mut self, active: bool) -> bool {
        let before = self.marks.contains(PeerMarks::ACTIVE);
        self.marks.set(PeerMarks::ACTIVE, active);
        before
    }

    #[inline]
    pub(crate) fn connect_failure(&self) -> Option<LinkError> {
        self.connect_failure
    }

    pub(crate) fn set_connect_failure(&mut self, why: LinkError) {
        self.connect_failure = Some(why);
    }

    pub(crate) fn take_connect_failure(&mut self) -> Option<LinkError> {
        self.connect_failure.take()
    }

    pub(crate) fn redials(&self) -> u16 {
        self.redials
    }

    pub(crate) fn count_redial(&mut self) {
        self.redials += 1;
    }

    #[inline]
    pub(crate) fn call(&self) -> u32 {
        self.call
    }

    pub(crate) fn set_call(&mut self, call: u32) {
        self.call = call;
    }

    /// The other end of the link, if this engine is its own peer.
    pub(crate) fn own_end(&self) -> Option<LinkId> {
        self.extra.as_ref().and_then(|extra| extra.own_end)
    }

    pub(crate) fn set_own_end(&mut self, link: LinkId) {
        self.extra().own_end = Some(link);
    }

    // ---- messages ----------------------------------------------------------------------------

    /// Number of the next message to send.
    #[inline(always)]
    pub(crate) fn tx_seq(&self) -> u32 {
        self.tx_seq
    }

    #[inline(always)]
    pub(crate) fn message_sent(&mut self) {
        self.tx_seq = self.tx_seq.wrapping_add(1);
    }

    #[inline]
    pub(crate) fn messages_sent(&mut self, messages: u32) {
        self.tx_seq = self.tx_seq.wrapping_add(messages);
    }

    /// Number of the next expected message.
    #[inline(always)]
    pub(crate) fn rx_seq(&self) -> u32 {
        self.rx_seq
    }

    #[inline(always)]
    pub(crate) fn message_taken(&mut self) {
        self.rx_seq = self.rx_seq.wrapping_add(1);
    }

    /// The number of the message under way, which was taken last.
    pub(crate) fn last_taken(&self) -> u32 {
        self.rx_seq.wrapping_sub(1)
    }

    /// The queued work, if any. [`Peers::queues`](crate::engine::peers::Peers::queues) lends queues for new work.
    #[inline(always)]
    pub(crate) fn queues(&self) -> Option<&PeerQueues> {
        self.queues.as_deref()
    }

    #[inline(always)]
    pub(crate) fn queues_mut(&mut self) -> Option<&mut PeerQueues> {
        self.queues.as_deref_mut()
    }

    // ---- operations --------------------------------------------------------------------------

    /// Operations to the peer that are not complete.
    #[inline(always)]
    pub(crate) fn ops(&self) -> Partition {
        self.ops
    }

    #[inline(always)]
    pub(crate) fn ops_mut(&mut self) -> &mut Partition {
        &mut self.ops
    }

    /// Transfers of bulk data.
    pub(crate) fn transfers(&self) -> Partition {
        self.transfers
    }

    pub(crate) fn transfers_mut(&mut self) -> &mut Partition {
        &mut self.transfers
    }

    /// Whether the peer is asked to help with a transfer. A peer that may have messages of this side to fetch is not:
    /// if both sides help each other, each byte costs more than if each side copies its own.
    pub(crate) fn sharing(&self) -> Sharing {
        if self.taken(Quota::Unmatched) > 0 { Sharing::Alone } else { Sharing::Allowed }
    }

    /// Notes that a write or atomic has left whose success the peer does not acknowledge.
    #[inline(always)]
    pub(crate) fn begin_nameless(&mut self) {
        self.extra().nameless += 1;
    }

    /// Notes that the peer has reported the failure of an unacknowledged operation.
    pub(crate) fn nameless_failed(&mut self) -> Result<(), Violation> {
        let extra = self.extra.as_mut().ok_or(Violation)?;
        extra.nameless = extra.nameless.checked_sub(1).ok_or(Violation)?;
        Ok(())
    }

    // ---- requests of the peer ----------------------------------------------------------------

    /// Short messages that the peer has announced and no receive has taken, oldest first.
    pub(crate) fn announcements(&mut self) -> Option<&mut VecDeque<ShortAnnouncement>> {
        self.extra.as_mut()?.announcements.as_deref_mut()
    }

    pub(crate) fn new_announcements(&mut self) -> &mut VecDeque<ShortAnnouncement> {
        self.extra().announcements.get_or_insert_default()
    }

    pub(crate) fn drop_announcements(&mut self) {
        if let Some(extra) = &mut self.extra {
            extra.announcements = None;
        }
    }

    /// The transfer of the window that message `seq` of the peer has announced. `None`: the bytes are discarded. Bytes
    /// before their announcement are a violation.
    pub(crate) fn announced_window(&self, seq: u32) -> Result<Option<TransferId>, Violation> {
        if self.last_taken().wrapping_sub(seq) > u32::MAX / 2 {
            return Err(Violation);
        }
        Ok(self.queues().and_then(|queues| queues.announced(seq)))
    }

    // ---- strangers ---------------------------------------------------------------------------

    /// State of a peer in no address vector, if there is any.
    pub(crate) fn watch(&self) -> Option<&Watch> {
        self.extra.as_ref().map(|extra| &extra.watch)
    }

    pub(crate) fn watch_mut(&mut self) -> &mut Watch {
        &mut self.extra().watch
    }

    // ---- limits ------------------------------------------------------------------------------

    /// The window that the next message to the peer announces.
    pub(crate) fn announcing(&self) -> u64 {
        WindowId::Announced(self.tx_seq).to_wire()
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
        self.queues.as_ref().is_none_or(|queues| queues.ops() == 0)
    }

    /// Whether a message with this number is the next one, and can be handled on the fast path.
    #[inline]
    pub(crate) fn is_next(&self, seq: u32) -> bool {
        seq == self.rx_seq && self.queues.as_ref().is_none_or(|queues| queues.are_quiet())
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
            || flags.contains(OpFlags::AFTER_ACCESSES) && self.taken(Quota::Accesses) > 0
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
        (self.outstanding - self.taken(Quota::Unmatched)).saturating_add(pending) < limit
    }

    /// Whether another message may leave that waits for the peer's client.
    #[inline]
    pub(crate) fn may_announce(&self) -> bool {
        (self.taken(Quota::Unmatched) as usize) < UNMATCHED_LIMIT - COLLECTIVE_SENDS
    }

    /// Number of operations in the TX queue.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.ops())
    }

    /// Whether work waits to be sent.
    #[inline]
    pub(crate) fn has_work(&self) -> bool {
        self.queues.as_ref().is_some_and(|queues| queues.to_send())
    }
}
