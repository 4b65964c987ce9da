//! One connection between two endpoints, with the state of both of its ends and directions.
//!
//! Place in the data flow: owned by the fabric's state. An end is what one endpoint knows as a link.
//! Invariant: an end passes through its phases once, in their order; after `Closed` nothing is handed over for it.

use weft_engine::nic::{LinkError, LinkId};

use crate::config::FabricConfig;
use crate::rng::{Entity, Stream};

/// After how long a packet without answer is sent again; doubles each time (TCP's least on Linux).
const RESEND_NS: u64 = 200_000_000;
/// No longer than that.
const MAX_RESEND_NS: u64 = 8 * RESEND_NS;

/// Which end of a wire.
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

/// One end of one wire: the wire's number in the fabric, and which end.
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

/// How far an end has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Not up yet.
    Waiting,
    /// `up` was called.
    Up,
    /// `down` was called, or `close`, or the endpoint is no more.
    Closed,
}

/// One end of a wire and the direction that leads away from it.
#[derive(Debug)]
pub(crate) struct End {
    /// The endpoint.
    pub(crate) ep: usize,
    /// Its number for this link while it has one.
    pub(crate) link: Option<LinkId>,
    pub(crate) phase: Phase,
    /// A `down` has been decided and waits to be handed over: nothing moves any more.
    pub(crate) ending: Option<LinkError>,
    /// A message of the peer has been handed over: an acceptor may send from now on.
    pub(crate) spoken_to: bool,
    /// Messages sent from here that the peer has not taken yet.
    pub(crate) in_flight: usize,
    /// Something has left from here.
    pub(crate) has_spoken: bool,
    /// The next message that this end is handed is nonsense: it keeps so many bytes.
    pub(crate) garbled: Option<usize>,
    /// How often a packet from here was sent again, and how often a message stalled.
    pub(crate) resends: u64,
    pub(crate) stalls: u64,
    /// Messages that wait for `flush`.
    pub(crate) gathered: Vec<Vec<u8>>,
    /// Transfers that this end has started and that are not reported finished.
    pub(crate) transfers: usize,
    /// When the next byte can leave.
    free_at_ns: u64,
    /// When this side's processor can copy the next byte of a push.
    copier_free_at_ns: u64,
    /// When the last message to leave from here arrives.
    last_arrival_ns: u64,
    /// Nothing arrives at the peer before it knows of the link.
    pub(crate) not_before_ns: u64,
    /// When the peer hears, or heard, that this end was closed.
    pub(crate) close_seen_ns: u64,
    /// Decides delays and faults of this direction.
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
            copier_free_at_ns: 0,
            last_arrival_ns: 0,
            not_before_ns: 0,
            close_seen_ns: 0,
            rng: Stream::new(seed, entity),
        }
    }

    /// Whether bytes can still move through this end.
    pub(crate) fn alive(&self) -> bool {
        self.phase != Phase::Closed && self.ending.is_none()
    }

    /// When `len` bytes that leave now have left: beneath the device they may have to be sent again, and what
    /// is behind them waits.
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

    /// When `len` bytes that are here now have been copied into or out of the device's memory.
    pub(crate) fn copy(&mut self, config: &FabricConfig, now_ns: u64, len: usize) -> u64 {
        self.copier_free_at_ns = self.copier_free_at_ns.max(now_ns) + len as u64 * config.copy_ps_per_byte / 1000;
        self.copier_free_at_ns
    }

    /// Time of flight of something that leaves now.
    pub(crate) fn flight_ns(&mut self, config: &FabricConfig) -> u64 {
        config.latency_ns + self.rng.below(config.jitter_ns + 1)
    }

    /// When a message of `len` bytes that leaves now arrives: in order, or not.
    pub(crate) fn arrival_ns(&mut self, config: &FabricConfig, now_ns: u64, len: usize) -> u64 {
        let faults = &config.faults;
        let mut at_ns = self.depart(config, now_ns, len) + self.flight_ns(config);
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

    /// When the last message to leave so far arrives.
    pub(crate) fn last_arrival_ns(&self) -> u64 {
        self.last_arrival_ns
    }

    /// When an orderly end that leaves now arrives: after every message.
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
    /// One end has closed it, or has been told that it is broken: no transfer moves any more.
    pub(crate) cut: bool,
    /// It breaks: it was reset, or something on it was nonsense.
    pub(crate) broken: bool,
}

impl Wire {
    /// Whether it breaks, or will, and one of its ends has not learned of it.
    pub(crate) fn is_breaking(&self) -> bool {
        let broken = self.broken || self.ends.iter().any(|end| end.garbled.is_some());
        broken && self.ends.iter().any(|end| end.phase != Phase::Closed)
    }
}
