//! Limits of the memory and links of all strangers together: peers in no address vector, under any number of
//! names.
//!
//! Place in the data flow: [`crate::engine::links`] asks for the window of a new link. [`crate::engine::recv`]
//! returns windows and keeps announcements, and [`crate::engine`] works off queues. Afterwards each calls
//! [`State::account`] for the peer. A device that is short of descriptors asks for a link that can end
//! ([`crate::nic::Sink::spare_link`]).
//!
//! Windows: a stranger is granted a small window at first, and a larger one each time it has used the window,
//! while the budget lasts. When others need the budget, its window shrinks again. The rest of the usual window
//! is *withheld*: it counts as used (`Peer::rx_used`), so the code for messages does not distinguish strangers.
//! Half of the budget is divided evenly, so that every stranger can send short messages. The other half goes to
//! peers that come first or send much. One peer gets at most an eighth of its unused part.
//!
//! All other state (announcements, answers that the peer does not take, buffers of the device) has a second
//! budget of the same size. Beyond it, the stranger that holds most loses its link.
//!
//! Invariant: [`Strangers`] has the sums of the stakes of all peers. Units: bytes.

use crate::api::ADDR_NONE;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::peer::{PeerState, Quota};
use crate::ids::PeerId;
use crate::nic::{LinkError, LinkId, Nic, Notice, Sink};
use crate::wire::{Refusal, refused};

/// The first window is at most this fraction of the budget.
const FIRST_PART: u64 = 1024;
/// One peer has at most this fraction of the unused budget.
const PEER_PART: u64 = 8;
/// When this fraction of the budget has become free, windows that were reduced are enlarged.
const FREED_PART: u64 = 64;
/// If there are too many strangers, idle ones lose their links, at most this fraction of the limit at a time.
const EVICTED_PART: usize = 256;
/// A peer is idle if its link carried no message during this number of calls by others. Its first message may
/// still be on its way.
const IDLE_CALLS: u32 = 64;
/// Approximate memory of an announcement.
const ANNOUNCEMENT_BYTES: u64 = 192;
/// Approximate memory of a long write whose bytes have not all arrived.
const WRITE_BYTES: u64 = 256;

/// Memory that one stranger occupies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stake {
    /// The window for messages beyond the even share.
    window: u64,
    /// All other state.
    kept: u64,
}

impl Strangers {
    /// The sum of all stakes, computed anew.
    pub(crate) fn total(&self) -> Stake {
        self.total
    }
}

/// The use of memory and the activity of one stranger.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    stake: Stake,
    /// Bytes that the device held for the peer at the last check.
    device_bytes: u64,
    /// Number of messages in both directions at the last check of the link's idleness.
    activity: u32,
    /// [`Strangers::crowded`] at the last check that found new messages.
    quiet_since: u32,
    /// The number of the peer's last departure with messages left here ([`crate::engine::leftovers`]).
    departure: u64,
}

impl Watch {
    /// The state after the peer's link has ended. The sums still contain the stake.
    pub(crate) fn after_reset(&self) -> Self {
        Self { stake: self.stake, ..Self::default() }
    }

    pub(crate) fn departure(&self) -> u64 {
        self.departure
    }

    pub(crate) fn depart(&mut self, number: u64) {
        self.departure = number;
    }
}

/// The sums over all strangers.
#[derive(Debug, Default)]
pub(crate) struct Strangers {
    total: Stake,
    /// Bytes of windows that have become free since other windows were last enlarged.
    freed: u64,
    /// The position at which the search for an idle peer continues.
    hand: usize,
    /// Number of calls that came while the number of strangers was at its limit.
    crowded: u32,
}

impl State {
    fn budget(&self) -> u64 {
        self.config.stranger_bytes as u64
    }

    /// The window that every stranger can have.
    fn even_share(&self) -> u64 {
        (self.budget() / 2 / self.config.max_strangers.max(1) as u64).min(self.config.window_bytes as u64)
    }

    /// The largest window that this stranger can have now.
    fn max_window(&self, peer_id: PeerId) -> u64 {
        let own = self.peers[peer_id].watch().map_or(0, |watch| watch.stake.window);
        let left = (self.budget() / 2).saturating_sub(self.strangers.total.window.saturating_sub(own));
        (self.even_share() + left / PEER_PART).min(self.config.window_bytes as u64)
    }

    fn first_window(&self) -> u64 {
        (self.budget() / FIRST_PART).max(self.even_share())
    }

    /// Bytes of the usual window that are withheld when a link comes up.
    pub(crate) fn withheld_at_first(&self, peer_id: PeerId) -> u64 {
        // A link in use has been granted its window.
        if !self.is_stranger(peer_id) || self.peers[peer_id].is_in_use() {
            return 0;
        }
        let most = self.max_window(peer_id).min(self.first_window());
        (self.config.window_bytes as u64).saturating_sub(most.max(self.peers[peer_id].rx_used()))
    }

    /// Notes that the peer of a new link was granted its window without the `withheld` bytes.
    pub(crate) fn begin_stake(&mut self, peer_id: PeerId, withheld: u64) {
        let peer = &mut self.peers[peer_id];
        if withheld > 0 {
            let owed = peer.credit_owed().saturating_sub(withheld);
            peer.withhold(withheld, owed);
        }
        if peer.watch().is_some() {
            // The peer does not count as idle before two checks.
            peer.watch_mut().activity = u32::MAX;
        }
        self.account(peer_id);
    }

    /// Takes the bytes of a window that are returned now. The window of a stranger grows or shrinks at this
    /// point.
    pub(crate) fn take_owed(&mut self, peer_id: PeerId) -> u64 {
        if !self.is_stranger(peer_id) {
            let peer = &mut self.peers[peer_id];
            return peer.take_credit();
        }
        let (max_window, first) = (self.max_window(peer_id), self.first_window());
        let peer = &mut self.peers[peer_id];
        let (withheld, owed) = (peer.withheld(), peer.owed());
        let window = (self.config.window_bytes as u64).saturating_sub(withheld);
        let wanted = max_window.min((2 * window).max(first));
        let (withheld, given) = if wanted > window {
            let more = withheld.min(wanted - window);
            (withheld - more, owed + more)
        } else {
            let less = owed.min(window - wanted);
            (withheld + less, owed - less)
        };
        peer.withhold(withheld, 0);
        peer.free_window(given);
        self.account(peer_id);
        given
    }

    /// Grants the usual window to a peer that is in an address vector now.
    pub(crate) fn end_stake(&mut self, peer_id: PeerId) {
        let peer = &mut self.peers[peer_id];
        let (withheld, owed) = (peer.withheld(), peer.owed());
        if withheld > 0 {
            peer.withhold(0, owed + withheld);
            if peer.is_in_use() && peer.credit_owed() >= self.config.window_quarter() {
                self.send_window(peer_id);
            }
        }
        self.account(peer_id);
    }

    /// Updates the sums after the stake of a peer, or its place in an address vector, has changed.
    pub(crate) fn account(&mut self, peer_id: PeerId) {
        let now = self.stake(peer_id);
        let peer = &mut self.peers[peer_id];
        let before = peer.watch().map_or_else(Stake::default, |watch| watch.stake);
        if now == before {
            return;
        }
        peer.watch_mut().stake = now;
        let Strangers { total, freed, .. } = &mut self.strangers;
        total.window = total.window - before.window + now.window;
        total.kept = total.kept - before.kept + now.kept;
        *freed += before.window.saturating_sub(now.window);
        if *freed > 0 && *freed >= self.config.stranger_bytes as u64 / FREED_PART {
            *freed = 0;
            self.enlarge_windows();
        }
    }

    fn stake(&self, peer_id: PeerId) -> Stake {
        let peer = &self.peers[peer_id];
        if peer.state() == PeerState::Vacant || !self.is_stranger(peer_id) {
            return Stake::default();
        }
        let window = if peer.is_in_use() {
            (self.config.window_bytes as u64).saturating_sub(peer.withheld())
        } else {
            peer.rx_used()
        };
        let queues = peer.queues().map_or(0, |queues| queues.held_bytes());
        let (writing, device) = (peer.taken(Quota::Writing), peer.watch().map_or(0, |watch| watch.device_bytes));
        let kept = u64::from(peer.taken(Quota::Announced)) * ANNOUNCEMENT_BYTES + u64::from(writing) * WRITE_BYTES;
        let kept = kept + self.collectives.as_deref().map_or(0, |groups| groups.early_bytes(peer_id));
        Stake { window: window.saturating_sub(self.even_share()), kept: kept + queues + device }
    }

    /// The sum of all stakes, computed anew.
    pub(crate) fn all_stakes(&self) -> Stake {
        let stakes = self.peers.as_slice().iter().filter_map(|peer| peer.watch()).map(|watch| watch.stake);
        stakes.fold(Stake::default(), |sum, one| Stake { window: sum.window + one.window, kept: sum.kept + one.kept })
    }

    #[cold]
    fn enlarge_windows(&mut self) {
        for peer_id in self.peers.ids() {
            let peer = &self.peers[peer_id];
            let window = (self.config.window_bytes as u64).saturating_sub(peer.withheld());
            if peer.withheld() > 0 && peer.is_in_use() && self.max_window(peer_id) > window {
                self.send_window(peer_id);
            }
        }
    }

    /// Whether strangers exceed their budget, apart from windows.
    #[inline]
    pub(crate) fn strangers_exceed(&self) -> bool {
        self.strangers.total.kept > self.config.stranger_bytes as u64
    }

    /// Ends the links of the longest idle strangers, because the number of strangers is at its limit.
    #[cold]
    pub(crate) fn evict_strangers(&mut self) {
        self.strangers.crowded = self.strangers.crowded.wrapping_add(1);
        for _ in 0..=self.config.max_strangers / EVICTED_PART {
            let Some(link) = self.find_idle_link(IDLE_CALLS, |state, peer_id, _| !state.is_busy(peer_id)) else {
                return;
            };
            self.turn_away(link, LinkError::Evicted);
        }
    }

    /// Finds a stranger's link that was idle for about the longest time among those that `wanted` accepts. A
    /// link is passed over if it carried a message since the last search, or during the last `calls` calls by
    /// others.
    fn find_idle_link(&mut self, calls: u32, wanted: impl Fn(&Self, PeerId, LinkId) -> bool) -> Option<LinkId> {
        for _ in 0..2 * self.peers.len() {
            let hand = self.strangers.hand % self.peers.len();
            self.strangers.hand = hand + 1;
            let peer_id = PeerId::new(hand);
            let peer = &mut self.peers[peer_id];
            let (PeerState::Up(link) | PeerState::Greeting(link)) = peer.state() else { continue };
            if peer.addr() != ADDR_NONE {
                continue;
            }
            let activity = peer.rx_seq().wrapping_add(peer.tx_seq());
            let watch = peer.watch_mut();
            if std::mem::replace(&mut watch.activity, activity) != activity {
                watch.quiet_since = self.strangers.crowded;
                continue;
            }
            if self.strangers.crowded.wrapping_sub(watch.quiet_since) >= calls && wanted(self, peer_id, link) {
                return Some(link);
            }
        }
        None
    }

    /// Whether an operation, transfer or message of the peer is pending.
    fn is_busy(&self, peer_id: PeerId) -> bool {
        let peer = &self.peers[peer_id];
        let waits = peer.taken(Quota::Announced) > 0 || peer.unreceived() > 0;
        waits
            || peer.taken(Quota::Ops) > 0
            || peer.queues().is_some_and(|queues| !queues.is_empty())
            || !peer.transfers().is_empty()
    }

    /// Finds a link that can end so that an expected peer gets its descriptor: one without a message so far, or
    /// otherwise a stranger's.
    pub(crate) fn dispensable_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        let Self { links, peers, .. } = self;
        // A peer that claims an address keeps its link longer than one that claims none.
        let silent = links
            .take_silent(candidates, &|name| peers.book().addr(name).is_none())
            .or_else(|| links.take_silent(candidates, &|name| peers.addr_of(name) == ADDR_NONE));
        if silent.is_some() || !self.has_addresses() {
            return silent;
        }
        self.find_idle_link(0, |_, _, link| candidates(link))
    }
}

impl<N: Nic> Engine<N> {
    /// Updates the sums after the state of a stranger in the device or the queues has changed.
    #[cold]
    pub(crate) fn account_device(&mut self, peer_id: PeerId) {
        let peer = &self.state.peers[peer_id];
        let device_bytes = peer.link().map_or(0, |link| self.nic.held_bytes(link) as u64);
        if device_bytes > 0 || peer.watch().is_some() {
            self.state.peers[peer_id].watch_mut().device_bytes = device_bytes;
        }
        self.state.account(peer_id);
    }

    /// Ends the links of the strangers that hold most, because strangers exceed their budget.
    #[cold]
    pub(crate) fn shed_strangers(&mut self) {
        let peer_ids = self.state.peers.ids();
        // Devices do not report that they hold less.
        for peer_id in peer_ids.clone() {
            if self.state.peers[peer_id].addr() == ADDR_NONE {
                self.account_device(peer_id);
            }
        }
        while self.state.strangers_exceed() {
            let kept = |peer_id: &PeerId| self.state.peers[*peer_id].watch().map_or(0, |watch| watch.stake.kept);
            let (Some(largest), before) = (peer_ids.clone().max_by_key(kept), self.state.strangers.total.kept) else {
                return;
            };
            let state = self.state.peers[largest].state();
            let (PeerState::Up(link) | PeerState::Greeting(link)) = state else { return };
            // Nothing may be sent on a link that the peer made before the peer has sent a message.
            let has_spoken = matches!(state, PeerState::Up(_));
            if let Some(peer) = self.state.peer(link) {
                self.state.links.notice(&peer, Notice::Refuses(LinkError::Evicted));
            }
            self.state.down(link, LinkError::Resources);
            if has_spoken {
                let refusal = refused(self.state.config.protocol_version, Refusal::Evicted);
                let _ = self.nic.send(link, refusal.bytes(), &[]);
            }
            self.nic.discard(link);
            if self.state.strangers.total.kept >= before {
                return;
            }
        }
    }
}
