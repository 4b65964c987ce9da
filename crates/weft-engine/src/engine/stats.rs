//! Counters of the traffic between an endpoint and its peers, for statistics.
//!
//! Place in the data flow: the code that sends or takes a message increments small counters in its `Peer`.
//! They are next to fields that it changes in any case. Before they overflow they are added to the peer's
//! `PeerCounters`. Remote accesses and rare events are counted there directly. A peer with only few messages
//! has no such memory.
//!
//! Invariant: a peer's messages can make counters wrong, and have no other effect through them.

use crate::api::Addr;
use crate::engine::Engine;
use crate::engine::State;
pub use crate::engine::collectives::GroupReport;
pub use crate::engine::direct::MappedCounts;
use crate::engine::peer::{PeerState, Quota};
use crate::ids::PeerId;
use crate::matching::Space;
use crate::mrcache;
use crate::name::EpName;
use crate::nic::{LinkId, Nic};

/// Traffic in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Number of clients' messages, of any length.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Number of these messages that were sent by rendezvous.
    pub rendezvous: u64,
    /// Number of remote accesses (reads, writes, atomics, counted by parts), in the direction of the request.
    pub accesses: u64,
    /// Bytes of these accesses.
    pub access_bytes: u64,
}

/// The state of a peer's link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// There is no link.
    Idle,
    /// A link is being made.
    Connecting,
    /// There is a link.
    Up(LinkId),
}

/// Statistics of one peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerReport {
    /// The peer's name.
    pub name: EpName,
    /// The peer's address in the address vector.
    pub addr: Addr,
    /// The state of the link.
    pub state: LinkStatus,
    /// Whether the link is in memory that the peer shares. Without a link, whether the last one was.
    pub in_memory: bool,
    /// Traffic from this engine to the peer.
    pub sent: Flow,
    /// Traffic from the peer to this engine.
    pub received: Flow,
    /// Number of received messages for which a receive was already posted.
    pub matched_on_arrival: u64,
    /// Number of received messages that had to wait, and that a receive has taken since.
    pub matched_on_posting: u64,
    /// Number of short messages that were sent by rendezvous because the peer's window was used up.
    pub stalls: u64,
    /// Number of attempts to send for which the device had no room.
    pub retries: u64,
    /// Number of operations that wait to be sent.
    pub waiting: u64,
    /// Number of operations that were sent and are not complete, counted by parts.
    pub outstanding: u64,
    /// Number of links that have come up.
    pub links_up: u64,
    /// Number of links that have ended.
    pub links_down: u64,
    /// Number of failed attempts to make a link.
    pub calls_failed: u64,
    /// Mapped memory.
    pub mapped: MappedCounts,
}

/// Statistics of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Upper limit of the numbers of peers ([`Engine::peer_count`]).
    pub peers: u64,
    /// Number of operations that are not complete.
    pub operations: u64,
    /// Number of posted receives.
    pub posted: u64,
    /// Number of messages that wait for a receive.
    pub unexpected: u64,
    /// Greatest number of messages that ever waited in one queue.
    pub unexpected_most: u64,
    /// Number of messages so far that arrived before their receive.
    pub unexpected_total: u64,
    /// Number of datagrams that were dropped before they left.
    pub dropped: u64,
    /// Counters of the registration cache, if there is one.
    pub cache: mrcache::Counts,
}

impl<N: Nic> Engine<N> {
    /// The engine's statistics.
    pub fn report(&self) -> Report {
        let State { peers, outgoing, incoming, registrations, dropped, .. } = &self.state;
        let [tagged, untagged] = Space::OF_CLIENT.map(|space| incoming.matcher(space));
        let count = |count: usize| count as u64;
        Report {
            peers: count(peers.len()),
            operations: count(outgoing.len()),
            posted: count(self.posted_receives()),
            unexpected: count(self.unexpected_messages()),
            unexpected_most: count(tagged.most_unexpected().max(untagged.most_unexpected())),
            unexpected_total: tagged.kept() + untagged.kept(),
            dropped: *dropped,
            cache: registrations.as_ref().map(|registrations| registrations.cache().counts()).unwrap_or_default(),
        }
    }

    /// Upper limit of the numbers of peers.
    pub fn peer_count(&self) -> usize {
        self.state.peers.len()
    }

    /// The statistics of one peer. Peers are numbered from 0 in the order of their first use. A stranger that
    /// left may have left its number to another peer. `None`: no peer has the number.
    pub fn peer_report(&mut self, number: usize) -> Option<PeerReport> {
        let peer = self.state.peers.get_mut(PeerId::new(number)).filter(|peer| peer.state() != PeerState::Vacant)?;
        peer.fold_large_counters();
        let [sent, received] = peer.flows();
        let [waited, taken] = peer.waited();
        let [stalls, retries, links_down, calls_failed] = peer.rare_events();
        let state = match peer.state() {
            PeerState::Idle | PeerState::Vacant => LinkStatus::Idle,
            PeerState::Connecting(_) => LinkStatus::Connecting,
            PeerState::Greeting(link) | PeerState::Up(link) => LinkStatus::Up(link),
        };
        Some(PeerReport {
            name: peer.name(),
            addr: peer.addr(),
            state,
            in_memory: peer.is_in_memory(),
            sent,
            received,
            matched_on_arrival: received.messages.saturating_sub(waited),
            matched_on_posting: taken,
            stalls,
            retries,
            waiting: peer.queues().map_or(0, |queues| queues.ops()) as u64,
            outstanding: peer.taken(Quota::Ops).into(),
            links_up: links_down + u64::from(matches!(state, LinkStatus::Up(_))),
            links_down,
            calls_failed,
            mapped: peer.mapped_counts(),
        })
    }
}
