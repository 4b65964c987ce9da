//! Virtual connections: one per peer, opened on first use.
//!
//! Place in the data flow: an operation finds its [`Peer`] by address, waits in its TX queue until the link is
//! up and the device takes it; messages find it by link. The GNI paper (§III) names the three queues and
//! their order: RX (here: `Nic::poll`), deferred work (what RX caused), TX. A queue is worked off until it is
//! empty or the device is full, and a stall in one never blocks another.
//!
//! Cost: an idle connection is this struct (at most [`PEER_BYTES_BUDGET`] bytes). What waits at a connection is
//! apart ([`PeerQueues`]): lent by the engine while anything waits, and taken back then, but for the few
//! connections that had it first ([`QueuePool`]).

use std::collections::{BTreeMap, VecDeque};

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr, OpFlags};
use crate::engine::atomic::FetchResults;
use crate::engine::prefetch::ShortAnnouncement;
use crate::engine::stats::PeerCounters;
use crate::engine::strangers::Stake;
use crate::engine::transfer::Announced;
use crate::mem::{self, IovList, Owned};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, NicCaps, RemoteIov, Share};
use crate::wire::Op;

/// What an idle peer may cost in the engine, in bytes. (weft-nic's tests hold what it costs altogether.)
pub(crate) const PEER_BYTES_BUDGET: usize = 192;

/// RMA operations up to so many bytes travel within messages where those have the room, and take effect in
/// the order of the messages, whatever the eager threshold is (`max_order_{raw,war,waw}_size` of libfabric).
pub(crate) const ORDERED_RMA_BYTES: usize = 32 << 10;

/// The answer to a read of up to so many bytes is made when the read is taken. A longer one gathers its bytes
/// when it leaves, unless the peer changes memory before.
pub(crate) const PROMPT_REPLY_BYTES: usize = 128;

/// Answers to reads of one peer, of those that may have to be copied, that may be under way.
pub(crate) const REPLY_WINDOW_BYTES: u32 = 4 << 20;

/// What the answer to a read of `len` bytes may cost of that window.
pub(crate) fn reply_cost(len: u64) -> u32 {
    let ordered = len > PROMPT_REPLY_BYTES as u64 && len <= ORDERED_RMA_BYTES as u64;
    u32::try_from(len).ok().filter(|_| ordered).unwrap_or(0)
}

/// Requests without an answer that one peer may have under way and that the target's engine answers by
/// itself: parts of remote accesses, and messages whose arrival is acknowledged. More is a breach of the
/// protocol (docs/protocol.md).
pub(crate) const REQUEST_LIMIT: usize = 1 << 17;

/// Messages of one peer that may wait for the target's client: announced by RTS, or eager with an
/// acknowledgement of the delivery. The receiver keeps a descriptor of each. Only matching frees these
/// places, so the limit exceeds what programs have under way.
pub(crate) const UNMATCHED_LIMIT: usize = 1 << 20;

/// Requests without an answer that an engine allows itself per peer, whatever small transmit queue its client
/// has asked for.
const FEWEST_REQUESTS: usize = 64;

/// Answers to the peer's requests that may wait to be sent, and transfers that its requests have led to.
pub(crate) const DEFERRED_LIMIT: usize = 2 * REQUEST_LIMIT;

/// Connections that keep their queues when nothing waits, and queues that are kept for others.
const KEPT_QUEUES: usize = 8;

/// Elements up to which a queue's memory is kept.
const KEPT_ELEMENTS: usize = 64;

/// Room that a mailbox leaves for the longest header.
pub(crate) const HEADER_BYTES: usize = 128;

/// Sends that need more than to leave.
const SLOW_SENDS: OpFlags =
    OpFlags::DELIVERY.union(OpFlags::FENCE).union(OpFlags::AFTER_ACCESSES).union(OpFlags::TRIGGER);

/// How far along a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerState {
    /// No link, none under way.
    Idle,
    /// Our own attempt is under way on this link.
    Connecting(LinkId),
    /// The peer's link, taken into use: the OPEN_OK that must precede everything else has not left yet.
    Greeting(LinkId),
    /// Usable.
    Up(LinkId),
    /// There is no peer: this was the connection of a stranger that went, and its number is free.
    Vacant,
}

/// Work that an arrival has caused, in the order in which it arose.
pub(crate) enum Deferred {
    /// A finished message without its number; in-line up to the answer to a read of [`PROMPT_REPLY_BYTES`].
    Message(SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]>),
    /// READ_DATA out of a region, or out of a copy, which `iov` describes then.
    Reply { op: Op, key: u64, iov: IovList, copy: Option<Owned> },
}

/// Bulk data to be handed to the device. It waits apart from messages, because the device takes only so much at a time.
pub(crate) enum BulkOp {
    /// Fetch or serve a transfer: its token.
    Transfer(u64),
    /// Ask for the bytes of a transfer into a matched receive, or ahead of one: its token.
    RequestPush(u64),
    /// Fetch the bytes of a transfer into a matched receive: its token.
    Fetch(u64),
    /// Push a part of our operation into the peer's window.
    Push { op: u32, part: u32, window: u64, len: u64 },
    /// Help the peer to move a part of our operation: the first `len` bytes, from or to `far`.
    Assist { op: u32, part: u32, share: Share, len: u64, far: Vec<RemoteIov> },
}

/// What a sender waits for beyond the leaving of its message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing (FI_INJECT_COMPLETE).
    Nothing,
    /// That the peer's engine has it (FI_TRANSMIT_COMPLETE).
    Arrived,
    /// That it is in the receiver's buffer, or thrown away (FI_DELIVERY_COMPLETE).
    Received,
}

bitflags::bitflags! {
    /// What [`NicCaps`] says of the same names.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PathFlags: u8 {
        const GET = 1;
        const PUT = 1 << 1;
        const ORDERED = 1 << 2;
        /// Only where messages are ordered.
        const PUSH_FOLLOWS = 1 << 3;
        /// What has left is as good as arrived (FI_TRANSMIT_COMPLETE needs no answer).
        const SURVIVES = 1 << 4;
        /// Gets and puts reach only registered memory.
        const REGISTERED = 1 << 5;
    }
}

/// What a connection's device can do, as far as every message needs it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathCaps {
    /// Longest message that goes eagerly.
    pub(crate) eager_bytes: u32,
    /// Longest part of a read or write that does.
    pub(crate) rma_bytes: u32,
    pub(crate) mailbox_bytes: u32,
    pub(crate) flags: PathFlags,
    /// Sends with any of these do not take the fast path.
    pub(crate) slow_sends: OpFlags,
}

impl PathCaps {
    /// What the peer must say before a send of this level is complete.
    pub(crate) fn answer_to(&self, flags: OpFlags) -> Answer {
        if flags.contains(OpFlags::DELIVERY) {
            Answer::Received
        } else if flags.contains(OpFlags::TRANSMIT) && !self.flags.contains(PathFlags::SURVIVES) {
            Answer::Arrived
        } else {
            Answer::Nothing
        }
    }

    /// `eager` overrides the device's own switch; both leave room for the longest header.
    pub(crate) fn new(caps: &NicCaps, eager: Option<usize>) -> Self {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let room = caps.mailbox_bytes.saturating_sub(HEADER_BYTES);
        let eager = eager.unwrap_or(caps.eager_bytes);
        let mut flags = PathFlags::empty();
        flags.set(PathFlags::GET, caps.get);
        flags.set(PathFlags::PUT, caps.put);
        flags.set(PathFlags::ORDERED, caps.ordered);
        flags.set(PathFlags::PUSH_FOLLOWS, caps.push_follows && caps.ordered);
        flags.set(PathFlags::SURVIVES, caps.survives);
        flags.set(PathFlags::REGISTERED, caps.registered);
        Self {
            eager_bytes: clamp(eager.min(room)),
            rma_bytes: clamp(eager.max(ORDERED_RMA_BYTES).min(room)),
            mailbox_bytes: clamp(caps.mailbox_bytes),
            flags,
            slow_sends: if caps.survives { SLOW_SENDS } else { SLOW_SENDS.union(OpFlags::TRANSMIT) },
        }
    }
}

/// One peer.
pub(crate) struct Peer {
    pub(crate) name: EpName,
    /// Where the address book has it, `ADDR_NONE` for a stranger.
    pub(crate) addr: Addr,
    pub(crate) state: PeerState,
    pub(crate) caps: PathCaps,
    /// In the list of connections with work.
    pub(crate) active: bool,
    /// Why the last attempt to connect failed, if it was made for an inject that is not ours yet: the next
    /// one fails of it.
    pub(crate) connect_failure: Option<LinkError>,
    /// How often we were told that the peer still holds an earlier link.
    pub(crate) redials: u16,
    /// The peer's latest call that has come ([`wire::Open::call`](crate::wire::Open)).
    pub(crate) call: u32,
    /// Number of the next message to send, and of the next to take.
    pub(crate) tx_seq: u32,
    pub(crate) rx_seq: u32,
    /// What was sent and received, for who looks from outside ([`crate::engine::stats`]).
    pub(crate) costs: [u64; 2],
    pub(crate) messages: [u32; 2],
    pub(crate) rendezvous: [u8; 2],
    /// Of the messages received, those that had to wait for a receive, and those of them that one has taken.
    pub(crate) waited: [u8; 2],
    /// Eager bytes that we may still send.
    pub(crate) tx_credit: u64,
    /// Eager bytes that the peer has used and not been given back, be it over an earlier link, or that are
    /// withheld from it: without a link, those of messages that wait.
    pub(crate) rx_used: u64,
    /// Eager bytes to give back, and a quarter of what is withheld: a smaller window is given back in quarters, too.
    pub(crate) credit_owed: u64,
    /// Operations that have left the TX queue and are not complete; as many as they have parts.
    pub(crate) outstanding: u32,
    /// Sends among them that wait for the peer's client ([`UNMATCHED_LIMIT`]).
    pub(crate) unmatched: u32,
    /// Queued work, if any (`Peers::queues`).
    pub(crate) queues: Option<Box<PeerQueues>>,
    /// What more there is, if the peer has had more than a few messages ([`Peer::extra`]).
    pub(crate) extra: Option<Box<PeerExtra>>,
}

/// What a connection has that one does not need which is idle, or has had only a few messages: the state of
/// remote accesses, and counts.
#[derive(Default)]
pub(crate) struct PeerExtra {
    /// Remote accesses among the outstanding operations, by parts.
    pub(crate) accesses: u32,
    /// Unexpected messages whose payload waits at the peer.
    pub(crate) rendezvous_waiting: u32,
    /// Writes and atomics sent whose success nobody waits for: so many failures of nameless operations may be reported.
    pub(crate) quiet_writes: u64,
    /// Results of our atomics that are under way, in bytes with their names.
    pub(crate) fetching: u32,
    /// Answers to our reads that are under way and may have to be copied, in bytes.
    pub(crate) reading: u32,
    /// Long writes of the peer whose bytes are not all here.
    pub(crate) writing: usize,
    /// The other end of the link, if the peer is this engine itself.
    pub(crate) own_end: Option<LinkId>,
    /// Pushes that we have announced on this link, and the peer's.
    pub(crate) announcing: u64,
    pub(crate) announced: Announced,
    /// Short messages of the peer that it has announced and that no receive has taken, oldest first.
    #[allow(clippy::box_collection)] // Most peers have none.
    pub(crate) announcements: Option<Box<VecDeque<ShortAnnouncement>>>,
    pub(crate) counters: PeerCounters,
    /// Of a peer in no address vector ([`crate::engine::strangers`]): what is withheld of its window, and what it
    /// holds altogether.
    pub(crate) withheld: u64,
    pub(crate) stake: Stake,
    /// Bytes that the device held for it at the last look.
    pub(crate) device_bytes: u64,
    /// The messages in both directions when that was looked at last.
    pub(crate) activity: u32,
    /// How many calls had come to a crowd then, if they were others than before.
    pub(crate) quiet_since: u32,
}

#[cold]
#[inline(never)]
fn new_extra() -> Box<PeerExtra> {
    Box::default()
}

bitflags::bitflags! {
    /// Queues in which something waits to be sent.
    #[derive(Clone, Copy)]
    pub(crate) struct QueueKinds: u8 {
        const DEFERRED = 1;
        const ACKS = 1 << 1;
        const RESULTS = 1 << 2;
        const BULK = 1 << 3;
        const TX = 1 << 4;
    }
}

/// What waits at a connection.
#[derive(Default)]
pub(crate) struct PeerQueues {
    /// Operations, by number.
    pub(crate) tx: VecDeque<u32>,
    pub(crate) deferred: VecDeque<Deferred>,
    /// Answers to the peer's reads among it would perhaps have to be copied if the peer changed memory now;
    /// the bytes of those that were.
    pub(crate) replies: bool,
    pub(crate) copied: u32,
    pub(crate) bulk: VecDeque<BulkOp>,
    /// Entries of `bulk` that receives of our client have led to, and no request of the peer's.
    pub(crate) matched: usize,
    /// Operations of the peer that have ended well and must be told so.
    pub(crate) acks: Vec<u32>,
    /// What the peer's atomics have fetched.
    pub(crate) results: Option<Box<FetchResults>>,
    /// The peer's operation of which more parts follow ([`crate::engine::remote_events`]).
    pub(crate) parts: Option<u32>,
    /// The peer's own attempt, kept until ours has succeeded or failed.
    pub(crate) standby: Option<LinkId>,
    /// Messages that overtook others on an unordered link.
    pub(crate) early: BTreeMap<u32, Vec<u8>>,
}

impl PeerQueues {
    /// What waits to be sent.
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

    /// Whether anything waits to be sent.
    #[inline]
    fn to_send(&self) -> bool {
        !(self.tx.is_empty() && self.deferred.is_empty() && self.bulk.is_empty() && self.acks.is_empty())
            || self.results.as_ref().is_some_and(|results| results.wait())
    }

    /// The peer changes memory: answers that have not left keep what they were to say. False: more than the
    /// peer may ask for.
    #[cold]
    pub(crate) fn keep_replies(&mut self) -> bool {
        self.replies = false;
        for work in self.deferred.iter_mut().rev() {
            let Deferred::Reply { iov, copy, .. } = work else { continue };
            let cost = reply_cost(mem::total_len(iov) as u64);
            if copy.is_some() {
                // And so are all before it.
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

    /// Whether the peer has asked for more than it may before it takes the answers. What our client's
    /// receives have led to does not count, but for acknowledgements, of which each message may have one
    /// besides.
    #[inline]
    pub(crate) fn is_too_much(&self) -> bool {
        self.deferred.len() > DEFERRED_LIMIT
            || self.bulk.len() - self.matched > DEFERRED_LIMIT
            || self.acks.len() > REQUEST_LIMIT + UNMATCHED_LIMIT
    }

    /// Whether nothing at all waits.
    pub(crate) fn is_empty(&self) -> bool {
        !self.to_send() && self.parts.is_none() && self.standby.is_none() && self.early.is_empty()
    }

    /// Whether its memory, when nothing waits, is worth keeping for another connection.
    fn is_small(&self) -> bool {
        self.tx.capacity().max(self.deferred.capacity()).max(self.bulk.capacity()).max(self.acks.capacity())
            <= KEPT_ELEMENTS
    }
}

/// Queues that are lent to connections.
#[derive(Default)]
pub(crate) struct QueuePool {
    lent: usize,
    #[allow(clippy::vec_box)] // They are lent as they are.
    spare: Vec<Box<PeerQueues>>,
}

impl QueuePool {
    /// Queues for a connection that has none.
    #[cold]
    pub(crate) fn lend(&mut self) -> Box<PeerQueues> {
        self.lent += 1;
        self.spare.pop().unwrap_or_default()
    }

    /// Takes back the queues of a connection at which nothing is to be sent, if many are lent and nothing
    /// else waits there.
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

    /// A connection's queues are gone.
    pub(crate) fn lost(&mut self) {
        self.lent -= 1;
    }
}

const _: () = assert!(size_of::<Peer>() <= PEER_BYTES_BUDGET);

/// Requests without an answer per peer, for a transmit queue of `tx_depth` operations.
pub(crate) fn request_limit(tx_depth: usize) -> u32 {
    u32::try_from(tx_depth.clamp(FEWEST_REQUESTS, REQUEST_LIMIT)).unwrap_or(u32::MAX)
}

impl Peer {
    pub(crate) fn new(name: EpName) -> Self {
        Self {
            name,
            addr: ADDR_NONE,
            state: PeerState::Idle,
            caps: PathCaps {
                eager_bytes: 0,
                rma_bytes: 0,
                mailbox_bytes: 0,
                flags: PathFlags::ORDERED,
                slow_sends: SLOW_SENDS,
            },
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
            unmatched: 0,
            queues: None,
            extra: None,
        }
    }

    /// Fresh numbering and fresh windows, for a link that is (or soon will be) usable. `used`: what the peer
    /// has not been granted of its own, which is what waited here when that was said.
    pub(crate) fn open(&mut self, state: PeerState, caps: PathCaps, window_bytes: u64, used: u64) {
        self.state = state;
        self.caps = caps;
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

    /// What more there is, from now on.
    #[inline(always)]
    pub(crate) fn extra(&mut self) -> &mut PeerExtra {
        self.extra.get_or_insert_with(new_extra)
    }

    /// Bytes of results that are under way.
    #[inline]
    pub(crate) fn fetching(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.fetching)
    }

    /// Bytes of answers that are under way.
    #[inline]
    pub(crate) fn reading(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.reading)
    }

    /// The name of the next window that we announce.
    pub(crate) fn announcing(&self) -> u64 {
        Announced::name(self.extra.as_ref().map_or(0, |extra| extra.announcing))
    }

    /// The link over which to send, when up.
    #[inline]
    pub(crate) fn link(&self) -> Option<LinkId> {
        match self.state {
            PeerState::Up(link) => Some(link),
            _ => None,
        }
    }

    /// Whether a link carries its messages.
    pub(crate) fn is_in_use(&self) -> bool {
        matches!(self.state, PeerState::Greeting(_) | PeerState::Up(_))
    }

    /// Whether no operation waits for others to leave first.
    #[inline]
    pub(crate) fn tx_is_empty(&self) -> bool {
        self.queues.as_ref().is_none_or(|queues| queues.tx.is_empty())
    }

    /// Whether a message with this number is the next of an undisturbed stream.
    #[inline]
    pub(crate) fn is_next(&self, seq: u32) -> bool {
        seq == self.rx_seq
            && self
                .queues
                .as_ref()
                .is_none_or(|queues| queues.early.is_empty() && queues.deferred.len() <= DEFERRED_LIMIT)
    }

    /// Whether this is the connection of a stranger with whom nothing is under way.
    pub(crate) fn is_sweepable(&self) -> bool {
        let idle = self.state == PeerState::Idle && self.queues.is_none() && self.outstanding == 0;
        self.addr == ADDR_NONE && idle
    }

    /// Whether an operation with these flags must wait for others that have left.
    #[inline]
    pub(crate) fn holds_back(&self, flags: OpFlags) -> bool {
        flags.contains(OpFlags::FENCE) && self.outstanding > 0
            || flags.contains(OpFlags::AFTER_ACCESSES) && self.extra.as_ref().is_some_and(|extra| extra.accesses > 0)
    }

    /// Unexpected messages whose payload waits at the peer.
    pub(crate) fn rendezvous_waiting(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.rendezvous_waiting)
    }

    /// Whether one more request may leave that the peer's engine answers by itself, besides `pending` of an
    /// operation that has not left altogether. `limit`: see [`request_limit`].
    #[inline]
    pub(crate) fn may_ask(&self, pending: u32, limit: u32) -> bool {
        (self.outstanding - self.unmatched).saturating_add(pending) < limit
    }

    /// Whether one more message may leave that waits for the peer's client.
    #[inline]
    pub(crate) fn may_announce(&self) -> bool {
        (self.unmatched as usize) < UNMATCHED_LIMIT
    }

    /// Operations that wait to leave.
    #[inline]
    pub(crate) fn queued(&self) -> usize {
        self.queues.as_ref().map_or(0, |queues| queues.tx.len())
    }

    /// Whether anything waits to be sent.
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
