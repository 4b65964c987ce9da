//! Messages and notices of failures that peers have sent for joins that have not begun here.
//!
//! Place in the data flow: messages without a receive wait in the matcher. Those of strangers are noted here, too
//! ([`State::note_early`]), and `failure.rs` keeps notices for unknown groups. The join takes both.
//! [`crate::engine::strangers`] counts the memory of strangers here.
//!
//! A peer in no address vector may become a member, as long as it is connected: the client may insert its address
//! before it joins. When such a peer has left, no join of its can succeed, so everything of its is dropped at once.
//!
//! Invariant: everything is found by its peer. The number of other peers, and of their messages, makes no difference.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::{Collectives, State, Tag};
use crate::api::Fault;
use crate::engine::collective_op::GroupId;
use crate::ids::PeerId;
use crate::matching::Space;
use crate::nic::LinkError;

/// Notices of one peer that are kept for later joins. The oldest are dropped.
const NOTICES: usize = 64;
/// Approximate memory of the first notice of a peer, and of each.
const PEER_BYTES: u64 = 128;
const NOTICE_BYTES: u64 = 16;

/// Messages and notices for later joins, by peer.
#[derive(Default)]
pub(super) struct Early {
    by_peer: FxHashMap<PeerId, OfPeer>,
}

#[derive(Default)]
struct OfPeer {
    /// The tags of joins whose failure the peer has reported.
    notices: VecDeque<Tag>,
    /// The tags of messages that a stranger has sent. Some may have been taken.
    messages: Vec<Tag>,
}

impl Early {
    /// The peers of which anything is kept.
    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.by_peer.keys().copied()
    }

    fn keep_notice(&mut self, peer_id: PeerId, tag: Tag) {
        let notices = &mut self.by_peer.entry(peer_id).or_default().notices;
        if notices.contains(&tag) {
            return;
        }
        if notices.len() >= NOTICES {
            notices.pop_front();
        }
        notices.push_back(tag);
    }

    /// Whether the peer has reported the failure of this join.
    pub(super) fn has_notice(&self, peer_id: PeerId, tag: Tag) -> bool {
        self.by_peer.get(&peer_id).is_some_and(|of_peer| of_peer.notices.contains(&tag))
    }

    /// Takes a peer's notice. Returns whether there was one.
    fn take_notice(&mut self, peer_id: PeerId, tag: Tag) -> bool {
        let Some(of_peer) = self.by_peer.get_mut(&peer_id) else { return false };
        let before = of_peer.notices.len();
        of_peer.notices.retain(|one| *one != tag);
        let taken = of_peer.notices.len() < before;
        if of_peer.notices.is_empty() && of_peer.messages.is_empty() {
            self.by_peer.remove(&peer_id);
        }
        taken
    }
}

impl Collectives {
    /// Approximate memory of a peer's notices. Its messages are counted by its window, or as announcements.
    pub(crate) fn early_bytes(&self, peer_id: PeerId) -> u64 {
        let of_peer = self.early.by_peer.get(&peer_id);
        of_peer.map_or(0, |of_peer| PEER_BYTES + of_peer.notices.len() as u64 * NOTICE_BYTES)
    }
}

impl State {
    /// Notes a message that is about to be kept, if a stranger has sent it.
    pub(super) fn note_early(&mut self, peer_id: PeerId, tag: Tag) {
        if self.is_stranger(peer_id) {
            self.collectives().early.by_peer.entry(peer_id).or_default().messages.push(tag);
            self.account_early(peer_id);
        }
    }

    /// Keeps the notice of a peer for a group whose join has not begun here. The peer's messages of that join are
    /// discarded: the join will fail, and the peer would wait for their acknowledgements.
    pub(super) fn keep_notice(&mut self, peer_id: PeerId, tag: Tag) {
        self.collectives().early.keep_notice(peer_id, tag);
        self.discard_arrived(|peer, arrived| peer == peer_id && arrived.with_number(0) == tag);
        if self.is_stranger(peer_id) {
            self.account_early(peer_id);
        }
    }

    fn account_early(&mut self, peer_id: PeerId) {
        self.account(peer_id);
        if self.strangers_exceed() {
            self.peers.activate(peer_id);
        }
    }

    /// The join of a group begins. Members may have reported its failure already.
    pub(super) fn take_early_notices(&mut self, id: GroupId, tag: Tag) {
        let Some(collectives) = self.collectives.as_deref_mut() else { return };
        if collectives.early.by_peer.is_empty() {
            return;
        }
        let members = Arc::clone(&collectives.groups[id].members);
        for &addr in members.iter() {
            // A member that was never a peer has sent nothing.
            let Some(peer_id) = self.member_peer(addr) else { continue };
            if self.collectives().early.take_notice(peer_id, tag) {
                self.on_notice(id, peer_id);
            }
        }
    }

    /// Handles the failure of a peer: receives from it fail. `linked`: a link has ended, which the peer learns as well.
    pub(crate) fn collective_peer_lost(&mut self, peer_id: PeerId, why: LinkError, linked: bool) {
        if self.is_stranger(peer_id) {
            self.drop_early(peer_id);
        }
        self.fail_receives(|posted| posted.src == peer_id.as_source(), Fault::Link(why));
        self.lose_peer(peer_id, why, linked);
    }

    /// Drops everything that a stranger has sent for later joins.
    fn drop_early(&mut self, peer_id: PeerId) {
        let of_peer =
            self.collectives.as_deref_mut().and_then(|collectives| collectives.early.by_peer.remove(&peer_id));
        for tag in of_peer.map(|of_peer| of_peer.messages).unwrap_or_default() {
            if let Some(key) = self.find_arrived(peer_id, tag) {
                self.drop_orphan(peer_id, Space::Group, key);
            }
        }
        self.account(peer_id);
    }

    /// Drops everything that a departed peer whose address was removed has sent for later joins.
    pub(crate) fn drop_all_early(&mut self, peer_id: PeerId) {
        let Some(collectives) = self.collectives.as_deref_mut() else { return };
        let theirs = self.incoming.matcher(Space::Group).unexpected().iter().map(|(_, message)| message);
        let theirs = theirs.filter(|message| message.peer() == peer_id);
        let theirs = theirs.map(|message| Tag::from_wire(message.tag())).collect();
        collectives.early.by_peer.entry(peer_id).or_default().messages = theirs;
        self.drop_early(peer_id);
    }

    /// Drops everything that departed strangers have sent for later joins. They were in an address vector when they
    /// left.
    pub(crate) fn drop_early_of_departed(&mut self) {
        let Some(collectives) = self.collectives.as_deref() else { return };
        let departed = |peer: &PeerId| self.peers[*peer].is_sweepable();
        let mut theirs: Vec<PeerId> = collectives.early.peers().filter(departed).collect();
        theirs.sort_unstable(); // Nothing happens in hash order.
        for peer_id in theirs {
            self.drop_early(peer_id);
        }
    }
}
