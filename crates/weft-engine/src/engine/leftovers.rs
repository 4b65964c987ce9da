//! Messages that departed peers have left here, in the order of the departures.
//!
//! Place in the data flow: when a link ends, [`crate::engine::state`] lists the messages of its peer that a receive can
//! still take ([`State::orphan_unexpected`]). [`crate::engine::peers`] asks for a place if there are too many
//! strangers, or too many endpoints that used one socket after the other. The peer that departed first then loses its
//! messages.
//!
//! Invariants: a list names messages of its peer only, or places that are free or used again. At most one list of a
//! peer counts, the latest. The number of lists is at most a few times that of the peers.

use std::collections::VecDeque;

use smallvec::SmallVec;

use crate::api::ADDR_NONE;
use crate::api::EAGER_COST;
use crate::engine::State;
use crate::engine::peer::{Peer, PeerState};
use crate::ids::PeerId;
use crate::matching::{Body, Space, Unexpected};
use crate::nic::Notice;

/// Lists are searched for outdated ones when their number has doubled, and not below this number.
const FEW: usize = 64;

/// Debug builds compare the result of a search with all waiting messages, if there are at most as many.
const CHECKED: usize = 1000;

/// A waiting message: its kind, and its key in the matcher of that kind.
pub(crate) type Waiting = (Space, u32);

/// The messages of one departed peer.
#[derive(Debug)]
struct List {
    peer: PeerId,
    /// The number of the departure.
    departure: u64,
    messages: SmallVec<[Waiting; 1]>,
}

/// The messages of all departed peers, the earliest departure first.
#[derive(Debug, Default)]
pub(crate) struct Leftovers {
    lists: VecDeque<List>,
    departures: u64,
    /// Number of lists after the last search for outdated ones.
    counted: usize,
    /// Whether any message may be there whose payload is lost.
    lost: bool,
}

impl Leftovers {
    /// Whether any message may be there whose payload is lost. Such messages take no part of a window.
    pub(crate) fn may_have_lost(&self) -> bool {
        self.lost
    }

    pub(crate) fn set_lost(&mut self, any: bool) {
        self.lost = any;
    }
}

impl State {
    /// The waiting messages of a peer, oldest first in each matcher. `announced` of them wait at the peer.
    ///
    /// The newest messages are looked at first, and the search ends when all have been found. Other peers determine how
    /// many messages are there.
    pub(crate) fn messages_of(&self, peer_id: PeerId, announced: u32) -> SmallVec<[Waiting; 1]> {
        let (mut bytes, mut announced) = (self.peers[peer_id].rx_used(), announced);
        let mut found = SmallVec::new();
        for space in Space::ALL {
            let from = found.len();
            for (key, message) in self.incoming.matcher(space).unexpected().iter_back() {
                if bytes == 0 && announced == 0 && !self.leftovers.lost {
                    break;
                }
                if message.peer() != peer_id {
                    continue;
                }
                match message.body() {
                    Body::Eager { .. } => bytes = bytes.saturating_sub(message.len() + EAGER_COST),
                    Body::Rendezvous { .. } | Body::Prefetch { .. } => announced = announced.saturating_sub(1),
                    Body::Lost { .. } => {}
                }
                found.push((space, key));
            }
            found[from..].reverse();
        }
        let of_kind = |space| self.incoming.matcher(space).unexpected().iter();
        let all = || Space::ALL.into_iter().flat_map(of_kind).filter(|(_, one)| one.peer() == peer_id).count();
        debug_assert!(self.incoming.unexpected() > CHECKED || found.len() == all(), "{peer_id:?}");
        found
    }

    /// Notes the messages that a departed peer has left, if others may need its place.
    pub(crate) fn note_leftovers(&mut self, peer_id: PeerId, messages: SmallVec<[Waiting; 1]>) {
        let addr = self.peers[peer_id].addr();
        if messages.is_empty() || !(addr == ADDR_NONE || self.peers.is_service(addr)) {
            return;
        }
        if self.leftovers.lists.len() >= 2 * self.leftovers.counted.max(FEW) {
            let mut lists = std::mem::take(&mut self.leftovers.lists);
            lists.retain(|list| self.counts(list));
            self.leftovers.counted = lists.len();
            self.leftovers.lists = lists;
        }
        self.leftovers.departures += 1;
        let departure = self.leftovers.departures;
        self.peers[peer_id].watch_mut().depart(departure);
        self.leftovers.lists.push_back(List { peer: peer_id, departure, messages });
    }

    /// Notes the messages of a departed peer whose address was removed.
    pub(crate) fn note_removed(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        if peer.state() != PeerState::Idle || peer.addr() != ADDR_NONE {
            return;
        }
        self.drop_all_early(peer_id);
        if self.peers[peer_id].rx_used() > 0 || self.leftovers.lost {
            let messages = self.messages_of(peer_id, 0);
            self.note_leftovers(peer_id, messages);
        }
    }

    /// Whether the peer of a list has not come back since, and some of its messages wait.
    fn counts(&self, list: &List) -> bool {
        let peer = &self.peers[list.peer];
        let departed =
            peer.state() == PeerState::Idle && peer.watch().is_some_and(|watch| watch.departure() == list.departure);
        departed && list.messages.iter().any(|waiting| self.is_left(list.peer, *waiting))
    }

    /// Whether a message of a departed peer waits, and no peek has claimed it.
    fn is_left(&self, peer_id: PeerId, (space, key): Waiting) -> bool {
        let theirs = |message: &Unexpected| message.peer() == peer_id && message.is_orphan() && !message.is_claimed();
        self.incoming.matcher(space).unexpected().get(key).is_some_and(theirs)
    }

    /// Drops the messages of the peer that departed first among those that `wanted` accepts. Returns whether there is
    /// one.
    #[cold]
    pub(crate) fn forget_first_departed(&mut self, wanted: impl Fn(&Peer) -> bool) -> bool {
        let first = |list: &List| wanted(&self.peers[list.peer]) && self.counts(list);
        let Some(list) = self.leftovers.lists.iter().position(first) else { return false };
        let Some(List { peer: peer_id, messages, .. }) = self.leftovers.lists.remove(list) else { return false };
        for waiting in messages {
            if !self.is_left(peer_id, waiting) {
                continue;
            }
            let (space, key) = waiting;
            self.drop_orphan(peer_id, space, key);
        }
        self.peers.note_sweepable(true);
        let name = self.peers[peer_id].name();
        self.links.notice(&name, Notice::Forgets);
        self.release_service_address(peer_id);
        true
    }
}
