//! Counters of a peer's traffic.
//!
//! Place in the data flow: the code that sends or takes a message increments small counters in its [`Peer`]. Before
//! they overflow they are added to [`PeerCounters`], which peers with few messages do not have.
//! [`crate::engine::stats`] reports both.

use super::{PathFlags, Peer, PeerState};
use crate::api::EAGER_COST;
use crate::engine::direct::MappedCounts;
use crate::engine::stats::Flow;

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
    stalls: u64,
    /// Number of attempts to send for which the device had no room.
    retries: u64,
    /// Number of links that have ended, and of failed attempts to make one.
    links_ended: u64,
    calls_failed: u64,
    /// Whether the last link that has ended was in shared memory.
    in_memory: bool,
}

impl Peer {
    /// Counts a short message that was sent by rendezvous because the peer's window was used up.
    pub(crate) fn count_stall(&mut self) {
        self.counters().stalls += 1;
    }

    /// Counts an attempt to send for which the device had no room.
    pub(crate) fn count_retry(&mut self) {
        self.counters().retries += 1;
    }

    /// Stalls, retries, links that have ended, and attempts that have failed.
    pub(crate) fn rare_events(&self) -> [u64; 4] {
        self.extra.as_ref().map_or_else(Default::default, |extra| {
            let PeerCounters { stalls, retries, links_ended, calls_failed, .. } = extra.counters;
            [stalls, retries, links_ended, calls_failed]
        })
    }

    /// Counts of mapped memory.
    pub(crate) fn mapped_counts(&self) -> MappedCounts {
        let regions = self.extra.as_ref().and_then(|extra| extra.regions.as_ref());
        regions.map(|regions| regions.counts()).unwrap_or_default()
    }

    #[inline(always)]
    fn counters(&mut self) -> &mut PeerCounters {
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
    pub(crate) fn flows(&self) -> [Flow; 2] {
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
    pub(crate) fn waited(&self) -> [u64; 2] {
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
    pub(crate) fn fold_large_counters(&mut self) {
        if self.messages.into_iter().any(|count| count >= 1 << 31) {
            self.fold_counters();
        }
    }

    /// Whether the link is in memory that the peer shares. Without a link, whether the last one was.
    pub(crate) fn is_in_memory(&self) -> bool {
        match self.state() {
            PeerState::Greeting(_) | PeerState::Up(_) => self.has(PathFlags::SURVIVES),
            _ => self.extra.as_ref().is_some_and(|extra| extra.counters.in_memory),
        }
    }

    /// Takes the counters of a peer whose link, or attempt to make one, has ended.
    pub(crate) fn take_counters(&mut self) -> PeerCounters {
        self.fold_counters();
        let in_memory = self.is_in_memory();
        let (carried, called) = match self.state() {
            PeerState::Idle | PeerState::Vacant => (false, false),
            PeerState::Connecting(_) => (false, true),
            PeerState::Greeting(_) | PeerState::Up(_) => (true, false),
        };
        let counters = self.counters();
        counters.links_ended += u64::from(carried);
        counters.calls_failed += u64::from(called);
        counters.in_memory = in_memory;
        std::mem::take(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::EpName;
    use crate::nic::LinkId;

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

    #[test]
    fn a_peer_remembers_that_its_last_link_was_in_memory() {
        let mut peer = peer();
        assert!(!peer.is_in_memory());
        peer.set_state(PeerState::Up(LinkId(1)));
        peer.path = PathFlags::SURVIVES;
        assert!(peer.is_in_memory());
        peer.reset();
        assert!(peer.is_in_memory());
        peer.set_state(PeerState::Up(LinkId(2)));
        peer.path = PathFlags::ORDERED;
        assert!(!peer.is_in_memory());
        peer.reset();
        assert!(!peer.is_in_memory());
    }
}
