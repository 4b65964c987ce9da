//! What has passed between an endpoint and its peers, in numbers, for whoever looks from outside.
//!
//! Place in the data flow: beside it. Whoever sends or takes a message adds to plain numbers in its
//! connection (`Peer`), beside what it changes anyhow: two instructions. They have few bytes; before they are
//! too large they are moved to the peer's `PeerCounters`. There also stand remote accesses and what is rare, in
//! memory that a peer has not with whom there were but messages.
//!
//! Invariant: what a peer says can make numbers wrong, never more than that.

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

/// One direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flow {
    /// Messages of clients, of any length.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
    /// How many of them went by rendezvous.
    pub rendezvous: u64,
    /// Remote accesses (reads, writes, atomics, by their parts), counted in the direction of the request.
    pub accesses: u64,
    /// The bytes that they are about.
    pub access_bytes: u64,
}

/// A direction.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Direction {
    /// From us to the peer.
    Sent,
    /// From the peer to us.
    Received,
}

/// What becomes of a message that finds no receive when it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WaitEvent {
    /// It begins to wait.
    Begun,
    /// A receive has taken it.
    Over,
}

/// What is counted for one peer besides: one that is idle, or has had messages only, has none.
#[derive(Debug, Default)]
pub(crate) struct PeerCounters {
    /// What has passed, but for the messages that are still counted in [`Peer`].
    flows: [Flow; 2],
    /// Messages received that had to wait, and those that a receive has taken after that.
    waited: [u64; 2],
    /// Short messages that went by rendezvous because the peer's window was used up.
    pub(crate) stalls: u64,
    /// How often what was to be sent found no room in the device.
    pub(crate) retries: u64,
    /// Links that have ended, and attempts to make one that failed.
    links_ended: u64,
    calls_failed: u64,
}

impl Peer {
    /// Where to count what is rare.
    #[inline(always)]
    pub(crate) fn counters(&mut self) -> &mut PeerCounters {
        &mut self.extra().counters
    }

    /// Another message. `cost`: its bytes and [`EAGER_COST`], which is at hand where windows are reckoned with.
    #[inline(always)]
    pub(crate) fn count_message(&mut self, direction: Direction, cost: u64) {
        self.messages[direction as usize] = self.messages[direction as usize].wrapping_add(1);
        self.costs[direction as usize] = self.costs[direction as usize].wrapping_add(cost);
    }

    /// Another message, which goes by rendezvous.
    pub(crate) fn count_rendezvous(&mut self, direction: Direction, bytes: u64) {
        self.count_message(direction, bytes.wrapping_add(EAGER_COST));
        self.rendezvous[direction as usize] += 1;
        if self.rendezvous[direction as usize] == u8::MAX {
            self.fold_counters();
        }
    }

    /// A message that was counted as received begins to wait for a receive, or has been taken by one after
    /// that. Those that never waited are the rest: so nobody counts them.
    pub(crate) fn count_unexpected(&mut self, what: WaitEvent) {
        self.waited[what as usize] += 1;
        if self.waited[what as usize] == u8::MAX {
            self.fold_counters();
        }
    }

    /// Another access, or a part of one.
    #[inline(always)]
    pub(crate) fn count_access(&mut self, direction: Direction, bytes: u64) {
        let flow = &mut self.counters().flows[direction as usize];
        flow.accesses += 1;
        flow.access_bytes = flow.access_bytes.wrapping_add(bytes);
    }

    /// What was sent, and received.
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

    /// Messages received that had to wait, and those that a receive has taken after that.
    fn waited(&self) -> [u64; 2] {
        let mut waited = self.extra.as_ref().map_or_else(Default::default, |extra| extra.counters.waited);
        for (sum, count) in waited.iter_mut().zip(self.waited) {
            *sum += u64::from(count);
        }
        waited
    }

    /// Moves what the paths have counted to the tally.
    #[cold]
    fn fold_counters(&mut self) {
        let (flows, waited) = (self.flows(), self.waited());
        let counters = self.counters();
        (counters.flows, counters.waited) = (flows, waited);
        (self.messages, self.costs, self.rendezvous, self.waited) = ([0; 2], [0; 2], [0; 2], [0; 2]);
    }

    /// Moves it before it is too large. (Nobody sends 2³¹ messages between two rounds of progress.)
    fn fold_large_counters(&mut self) {
        if self.messages.into_iter().any(|count| count >= 1 << 31) {
            self.fold_counters();
        }
    }

    /// The connection's link, or an attempt to make one, has ended: what must be known of it.
    pub(crate) fn take_counters(&mut self) -> PeerCounters {
        self.fold_counters();
        let (carried, called) = match self.state {
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
/// How far a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkStatus {
    /// There is no link.
    Idle,
    /// One is being made.
    Connecting,
    /// There is one.
    Up(LinkId),
}

/// What an engine tells of one peer.
#[derive(Clone, Copy, Debug)]
pub struct PeerReport {
    /// The peer.
    pub name: EpName,
    /// In the address vector.
    pub addr: Addr,
    /// The connection.
    pub state: LinkStatus,
    /// From us to the peer.
    pub sent: Flow,
    /// From the peer to us.
    pub received: Flow,
    /// Messages received whose receive was posted already when they came.
    pub matched_on_arrival: u64,
    /// Messages received that had to wait, and that a receive has taken since.
    pub matched_on_posting: u64,
    /// Short messages that went by rendezvous because the peer's window was used up.
    pub stalls: u64,
    /// How often what was to be sent found no room in the device.
    pub retries: u64,
    /// Operations that wait to be sent.
    pub waiting: u64,
    /// Operations that were sent and are not complete; of those in parts, the parts.
    pub outstanding: u64,
    /// Links that have come up.
    pub links_up: u64,
    /// Links that have ended.
    pub links_down: u64,
    /// Attempts to make one that failed.
    pub calls_failed: u64,
}

/// What an engine tells of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Numbers of peers that are in use or were ([`Engine::peer_report`]).
    pub peers: u64,
    /// Operations under way.
    pub operations: u64,
    /// Receives that are posted.
    pub posted: u64,
    /// Messages that wait for a receive.
    pub unexpected: u64,
    /// Most that ever did, in one queue.
    pub unexpected_most: u64,
    /// Messages that came before their receive, so far.
    pub unexpected_total: u64,
    /// Datagrams that were dropped before they left.
    pub dropped: u64,
    /// The registration cache, where there is one.
    pub cache: mrcache::Counts,
}

impl<N: Nic> Engine<N> {
    /// What happens, in numbers.
    pub fn report(&self) -> Report {
        let State { peers, ops, tagged, untagged, registrations, dropped, .. } = &self.state;
        let count = |count: usize| count as u64;
        Report {
            peers: count(peers.len()),
            operations: count(ops.len()),
            posted: count(self.posted_receives()),
            unexpected: count(self.unexpected_messages()),
            unexpected_most: count(tagged.most_unexpected.max(untagged.most_unexpected)),
            unexpected_total: tagged.kept + untagged.kept,
            dropped: *dropped,
            cache: registrations.as_ref().map(|registrations| registrations.cache.counts()).unwrap_or_default(),
        }
    }

    /// The same of the peer with that number (they count from 0 on, in the order in which they were met; a stranger
    /// that went may have left its number to another one).
    pub fn peer_report(&mut self, number: usize) -> Option<PeerReport> {
        let peer = self.state.peers.get_mut(PeerId::new(number)).filter(|peer| peer.state != PeerState::Vacant)?;
        peer.fold_large_counters();
        let [sent, received] = peer.flows();
        let [waited, taken] = peer.waited();
        let (stalls, retries, links_down, calls_failed) = peer.extra.as_ref().map_or((0, 0, 0, 0), |extra| {
            let PeerCounters { stalls, retries, links_ended, calls_failed, .. } = extra.counters;
            (stalls, retries, links_ended, calls_failed)
        });
        let state = match peer.state {
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
    fn what_no_longer_fits_is_not_lost() {
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
    fn numbers_are_moved_before_they_begin_again() {
        let mut peer = peer();
        for _ in 0..5 {
            peer.messages[Direction::Sent as usize] += 1 << 31;
            peer.fold_large_counters();
        }
        assert_eq!(peer.flows()[Direction::Sent as usize].messages, 5 << 31);
    }

    #[test]
    fn what_was_counted_outlives_links() {
        let mut peer = peer();
        peer.count_message(Direction::Sent, 9 + EAGER_COST);
        peer.state = PeerState::Connecting(LinkId(1));
        let counters = peer.take_counters();
        let [sent, _] = counters.flows;
        assert_eq!((sent.messages, sent.bytes, counters.calls_failed, counters.links_ended), (1, 9, 1, 0));
    }
}
