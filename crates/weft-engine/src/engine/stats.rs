//! Counters of the traffic between an endpoint and its peers, for statistics.
//!
//! Place in the data flow: the code that sends or takes a message increments small counters in its `Peer`.
//! They are next to fields that it changes in any case. Before they overflow they are added to the peer's
//! `PeerCounters`. Remote accesses and rare events are counted there directly. A peer with only few messages
//! has no such memory.
//!
//! Invariant: a peer's messages can make counters wrong, and have no other effect through them.

use std::mem::take;

use crate::api::Addr;
use crate::engine::Engine;
use crate::engine::ids::PeerId;
use crate::engine::peer::{Peer, PeerState};
use crate::engine::send::EAGER_COST;
use crate::engine::state::State;
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

/// The direction of traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// From this engine to the peer.
    Sent,
    /// From the peer to this engine.
    Received,
}

/// An event of an unexpected message.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitEvent {
    /// The message begins to wait.
    Begun,
    /// A receive has taken the message.
    Over,
}

/// Further counters of one peer. Peers that are idle, or have exchanged only messages, have none.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    /// Traffic, except for messages that are still counted in [`Peer`].
    flows: [Flow; 2],
    /// Number of received messages that had to wait, and of those that a receive has taken afterwards.
    waited: [u64; 2],
    /// Number of short messages that were sent by rendezvous because the peer's window was used up.
    pub(crate) stalls: u64,
    /// Number of attempts to send for which the device had no room.
    pub(crate) retries: u64,
    /// Number of links that have ended, and of failed attempts to make one.
    links_ended: u64,
    calls_failed: u64,
}

impl Peer {
    /// The counters of rare events.
    #[inline(always)]
    pub(crate) fn counters(&mut self) -> &mut PeerCounters {
        &mut self.extra().counters
    }

    /// Counts a message. `cost` is its bytes plus [`EAGER_COST`], which callers know from the window.
    #[inline(always)]
    pub(crate) fn count_message(&mut self, direction: Direction, cost: u64) {
        self.messages[direction as usize] = self.messages[direction as usize].wrapping_add(1);
        self.costs[direction as usize] = self.costs[direction as usize].wrapping_add(cost);
    }

    /// Counts a message that uses rendezvous.
    pub(crate) fn count_rendezvous(&mut self, direction: Direction, bytes: u64) {
        self.count_message(direction, bytes.wrapping_add(EAGER_COST));
        self.rendezvous[direction as usize] += 1;
        if self.rendezvous[direction as usize] == u8::MAX {
            self.fold_counters();
        }
    }

    /// Counts an event of an unexpected message. All other received messages found their receive at once, so
    /// these need no counter.
    pub(crate) fn count_unexpected(&mut self, what: WaitEvent) {
        self.waited[what as usize] += 1;
        if self.waited[what as usize] == u8::MAX {
            self.fold_counters();
        }
    }

    /// Counts an access, or a part of one.
    #[inline(always)]
    pub(crate) fn count_access(&mut self, direction: Direction, bytes: u64) {
        let flow = &mut self.counters().flows[direction as usize];
        flow.accesses += 1;
        flow.access_bytes = flow.access_bytes.wrapping_add(bytes);
    }

    /// The traffic of both directions.
    fn flows(&self) -> [Flow; 2] {
        let mut flows = self.extra.as_ref().map_or_else(Default::default, |extra| extra.counters.flows);
        for (direction, flow) in flows.iter_mut().enumerate() {
            let messages = u64::from(self.messages[direction]);
            flow.messages += messages;
            flow.bytes = flow.bytes.wrapping_add(self.costs[direction].wrapping_sub(messages * EAGER_COST));
            flow.rendezvous += u64::from(self.rendezvous[direction]);
        }
        flows
    }

    /// Number of received messages that had to wait, and of those that a receive has taken afterwards.
    fn waited(&self) -> [u64; 2] {
        let mut waited = self.extra.as_ref().map_or_else(Default::default, |extra| extra.counters.waited);
        for (sum, count) in waited.iter_mut().zip(self.waited) {
            *sum += u64::from(count);
        }
        waited
    }

    /// Adds the small counters to [`PeerCounters`].
    #[cold]
    fn fold_counters(&mut self) {
        let (flows, waited) = (self.flows(), self.waited());
        let counters = self.counters();
        (counters.flows, counters.waited) = (flows, waited);
        (self.messages, self.costs, self.rendezvous, self.waited) = ([0; 2], [0; 2], [0; 2], [0; 2]);
    }

    /// Adds the small counters before they overflow. Fewer than 2³¹ messages are sent between two rounds of
    /// progress.
    fn fold_large_counters(&mut self) {
        if self.messages.into_iter().any(|count| count >= 1 << 31) {
            self.fold_counters();
        }
    }

    /// Takes the counters of a peer whose link, or attempt to make one, has ended.
    pub(crate) fn take_counters(&mut self) -> PeerCounters {
        self.fold_counters();
        let (carried, called) = match self.state() {
            PeerState::Idle | PeerState::Vacant => (false, false),
            PeerState::Connecting(_) => (false, true),
            PeerState::Greeting(_) | PeerState::Up(_) => (true, false),
        };
        let counters = self.counters();
        counters.links_ended += u64::from(carried);
        counters.calls_failed += u64::from(called);
        take(counters)
    }
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
}

/// Statistics of an engine.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Upper limit of the numbers of peers ([`Engine::peer_report`]).
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
        let State { peers, outgoing, tagged, untagged, registrations, dropped, .. } = &self.state;
        let count = |count: usize| count as u64;
        Report {
            peers: count(peers.len()),
            operations: count(outgoing.len()),
            posted: count(self.posted_receives()),
            unexpected: count(self.unexpected_messages()),
            unexpected_most: count(tagged.most_unexpected.max(untagged.most_unexpected)),
            unexpected_total: tagged.kept + untagged.kept,
            dropped: *dropped,
            cache: registrations.as_ref().map(|registrations| registrations.cache.counts()).unwrap_or_default(),
        }
    }

    /// The statistics of one peer. Peers are numbered from 0 in the order of their first use. A stranger that
    /// left may have left its number to another peer. `None`: no peer has the number.
    pub fn peer_report(&mut self, number: usize) -> Option<PeerReport> {
        let peer = self.state.peers.get_mut(PeerId::new(number)).filter(|peer| peer.state() != PeerState::Vacant)?;
        peer.fold_large_counters();
        let [sent, received] = peer.flows();
        let [waited, taken] = peer.waited();
        let (stalls, retries, links_down, calls_failed) = peer.extra.as_ref().map_or((0, 0, 0, 0), |extra| {
            let PeerCounters { stalls, retries, links_ended, calls_failed, .. } = extra.counters;
            (stalls, retries, links_ended, calls_failed)
        });
        let state = match peer.state() {
            PeerState::Idle | PeerState::Vacant => LinkStatus::Idle,
            PeerState::Connecting(_) => LinkStatus::Connecting,
            PeerState::Greeting(link) | PeerState::Up(link) => LinkStatus::Up(link),
        };
        Some(PeerReport {
            name: peer.name,
            addr: peer.addr,
            state,
            sent,
            received,
            matched_on_arrival: received.messages.saturating_sub(waited),
            matched_on_posting: taken,
            stalls,
            retries,
            waiting: peer.queues.as_ref().map_or(0, |queues| queues.tx.len()) as u64,
            outstanding: peer.outstanding.into(),
            links_up: links_down + u64::from(matches!(state, LinkStatus::Up(_))),
            links_down,
            calls_failed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        Peer::new(EpName::service(([127, 0, 0, 1], 1).into()))
    }

    #[test]
    fn counters_that_overflow_are_folded() {
        let mut peer = peer();
        for _ in 0..100_000 {
            peer.count_rendezvous(Direction::Sent, 5 << 30);
            peer.count_access(Direction::Received, 3 << 40);
            peer.count_unexpected(WaitEvent::Begun);
        }
        peer.count_unexpected(WaitEvent::Over);
        peer.count_message(Direction::Received, 8 + EAGER_COST);
        let [sent, received] = peer.flows();
        assert_eq!((sent.messages, sent.rendezvous, sent.bytes), (100_000, 100_000, 500_000 << 30));
        assert_eq!((received.messages, received.rendezvous, received.bytes), (1, 0, 8));
        assert_eq!((received.accesses, received.access_bytes, sent.accesses), (100_000, 300_000 << 40, 0));
        assert_eq!(peer.waited(), [100_000, 1]);
    }

    #[test]
    fn large_counters_are_folded_before_they_wrap() {
        let mut peer = peer();
        for _ in 0..5 {
            peer.messages[Direction::Sent as usize] += 1 << 31;
            peer.fold_large_counters();
        }
        assert_eq!(peer.flows()[Direction::Sent as usize].messages, 5 << 31);
    }

    #[test]
    fn counters_outlive_links() {
        let mut peer = peer();
        peer.count_message(Direction::Sent, 9 + EAGER_COST);
        peer.set_state(PeerState::Connecting(LinkId(1)));
        let counters = peer.take_counters();
        let [sent, _] = counters.flows;
        assert_eq!((sent.messages, sent.bytes, counters.calls_failed, counters.links_ended), (1, 9, 1, 0));
    }
}
