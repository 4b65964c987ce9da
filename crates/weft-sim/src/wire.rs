//! One connection between two endpoints, with the state of both of its ends and directions.
//!
//! Place in the data flow: the fabric's state owns wires. An endpoint knows its end of a wire as a link.
//! Invariant: an end passes through its phases once, in their order; after `Closed` nothing is delivered for
//! it.

use weft_engine::nic::{LinkError, LinkId};

use crate::config::FabricConfig;
use crate::rng::{Entity, Stream};

/// Time after which an unanswered packet is sent again; it doubles each time (TCP's minimum on Linux).
const RESEND_NS: u64 = 200_000_000;
/// Longest time between two attempts.
const MAX_RESEND_NS: u64 = 8 * RESEND_NS;

/// One of the two ends of a wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Side {
    /// The end that called `connect`.
    Initiator,
    /// The end that was connected to.
    Acceptor,
}

impl Side {
    pub(crate) const fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }

    pub(crate) const fn index(self) -> usize {
        match self {
            Self::Initiator => 0,
            Self::Acceptor => 1,
        }
    }
}

/// Identifies one end of one wire: the wire's number in the fabric, and the side.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct EndId {
    pub(crate) wire: usize,
    pub(crate) side: Side,
}

impl EndId {
    pub(crate) const fn other(self) -> Self {
        Self { wire: self.wire, side: self.side.other() }
    }
}

/// The phase of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not up yet.
    Waiting,
    /// `up` was called.
    Up,
    /// `down` or `close` was called, or the endpoint has died or exited.
    Closed,
}

/// One end of a wire and the direction that leads away from it.
#[derive(Debug)]
pub(crate) struct End {
    /// The endpoint.
    pub(crate) ep: usize,
    /// The endpoint's number for this link while it has one.
    pub(crate) link: Option<LinkId>,
    pub(crate) phase: Phase,
    /// A `down` is decided but not delivered yet: nothing moves any more.
    pub(crate) ending: Option<LinkError>,
    /// A message of the peer has been delivered: an acceptor may send from now on.
    pub(crate) spoken_to: bool,
    /// Messages sent from here that the peer has not taken yet.
    pub(crate) in_flight: usize,
    /// Set once a message has left this end.
    pub(crate) has_spoken: bool,
    /// The next message to this end is delivered as garbage of this length.
    pub(crate) garbled: Option<usize>,
    /// Packets from here that were sent again, and messages that stalled.
    pub(crate) resends: u64,
    pub(crate) stalls: u64,
    /// Messages that wait for `flush`.
    pub(crate) gathered: Vec<Vec<u8>>,
    /// Transfers that this end has started and that have not been reported finished.
    pub(crate) transfers: usize,
    /// The time at which the next byte can leave.
    free_at_ns: u64,
    /// The time of the last piece of a push that this end has sent or received: pieces follow one another.
    piece_ns: u64,
    /// The arrival time of the last message to leave from here.
    last_arrival_ns: u64,
    /// Nothing arrives at the peer before this time, at which it knows of the link.
    pub(crate) not_before_ns: u64,
    /// The time at which the peer learns that this end was closed.
    pub(crate) close_seen_ns: u64,
    /// The time at which this side's processor has taken the last message from a card.
    pub(crate) taken_ns: u64,
    /// The stream for delays and faults of this direction.
    pub(crate) rng: Stream,
}

impl End {
    pub(crate) fn new(ep: usize, entity: Entity, seed: u64) -> Self {
        Self {
            ep,
            link: None,
            phase: Phase::Waiting,
            ending: None,
            spoken_to: false,
            in_flight: 0,
            has_spoken: false,
            garbled: None,
            resends: 0,
            stalls: 0,
            gathered: Vec::new(),
            transfers: 0,
            free_at_ns: 0,
            piece_ns: 0,
            last_arrival_ns: 0,
            not_before_ns: 0,
            close_seen_ns: 0,
            taken_ns: 0,
            rng: Stream::new(seed, entity),
        }
    }

    /// Whether bytes can still move through this end.
    pub(crate) fn alive(&self) -> bool {
        self.phase != Phase::Closed && self.ending.is_none()
    }

    /// The time at which `len` bytes that leave now are on the wire. Packets beneath the device may be sent
    /// again, which delays everything behind them.
    pub(crate) fn depart(&mut self, config: &FabricConfig, now_ns: u64, len: usize) -> u64 {
        self.free_at_ns = self.free_at_ns.max(now_ns) + len as u64 * config.ps_per_byte / 1000;
        let mut timeout_ns = RESEND_NS;
        while timeout_ns < MAX_RESEND_NS && self.rng.chance(config.faults.resend_permille) {
            self.free_at_ns += timeout_ns;
            timeout_ns *= 2;
            self.resends += 1;
        }
        self.free_at_ns
    }

    /// The time at which a piece of a push passes this end: not before the one that passed it last.
    pub(crate) fn pass_piece(&mut self, at_ns: u64) -> u64 {
        self.piece_ns = self.piece_ns.max(at_ns);
        self.piece_ns
    }

    /// Time of flight of a message that leaves now.
    pub(crate) fn flight_ns(&mut self, config: &FabricConfig) -> u64 {
        config.latency_ns + self.rng.below(config.jitter_ns + 1)
    }

    /// The arrival time of a message of `len` bytes that leaves now, in order or not.
    pub(crate) fn arrival_ns(&mut self, config: &FabricConfig, now_ns: u64, len: usize) -> u64 {
        let left_ns = self.depart(config, now_ns, len);
        self.arrives_ns(config, left_ns)
    }

    /// The arrival time of a message whose last byte leaves at `left_ns`, in order or not.
    pub(crate) fn arrives_ns(&mut self, config: &FabricConfig, left_ns: u64) -> u64 {
        let faults = &config.faults;
        let mut at_ns = left_ns + self.flight_ns(config);
        if self.rng.chance(faults.stall_permille) {
            at_ns += self.rng.below(faults.stall_ns + 1);
            self.stalls += 1;
        }
        if config.caps.ordered {
            at_ns = at_ns.max(self.last_arrival_ns);
        } else if self.rng.chance(faults.reorder_permille) {
            at_ns += self.rng.below(faults.reorder_ns + 1);
        }
        at_ns = at_ns.max(self.not_before_ns);
        self.last_arrival_ns = self.last_arrival_ns.max(at_ns);
        at_ns
    }

    /// The arrival time of the last message to leave so far.
    pub(crate) fn last_arrival_ns(&self) -> u64 {
        self.last_arrival_ns
    }

    /// The arrival time of an orderly end that leaves now: after every message.
    pub(crate) fn end_arrival_ns(&mut self, config: &FabricConfig, now_ns: u64) -> u64 {
        let at_ns = self.depart(config, now_ns, 0) + self.flight_ns(config);
        at_ns.max(self.last_arrival_ns).max(self.not_before_ns)
    }
}

/// A connection.
#[derive(Debug)]
pub(crate) struct Wire {
    pub(crate) ends: [End; 2],
    /// The initiator closed it before the acceptor knew of it.
    pub(crate) withdrawn: bool,
    /// The request has reached the acceptor, which knows of the link or soon will.
    pub(crate) request_arrived: bool,
    /// One end has closed the wire or learned that it is broken: no transfer moves any more.
    pub(crate) cut: bool,
    /// The wire is breaking: it was reset, or carried garbage.
    pub(crate) broken: bool,
}

impl Wire {
    /// Whether the wire is or will be broken and one of its ends has not learned of it.
    pub(crate) fn is_breaking(&self) -> bool {
        let broken = self.broken || self.ends.iter().any(|end| end.garbled.is_some());
        broken && self.ends.iter().any(|end| end.phase != Phase::Closed)
    }
}
