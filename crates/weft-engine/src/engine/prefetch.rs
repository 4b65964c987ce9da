//! Prefetching of short messages: messages that were announced because the window was full are fetched before a
//! receive matches them.
//!
//! Place in the data flow: [`crate::engine::recv`] notes each short announcement that matches no receive.
//! When receives have taken waiting messages, their share of the window goes to the oldest announcements
//! first. The peer is then asked to push the bytes of these into memory of the engine. A late receiver thus
//! finds the next messages in its own memory, without a round trip.
//!
//! Invariants: requested bytes are charged to the window like eager ones, so memory stays bounded by
//! `window_bytes`. A receive that matches meanwhile gets the bytes when they have arrived. If a device of this
//! side fetches announced bytes, nothing is prefetched, because a fetch takes no round trip.

use std::collections::VecDeque;

use crate::api::EAGER_COST;
use crate::broken::cannot_happen;
use crate::engine::State;
use crate::engine::ops::{Staged, Transfer, TransferKind};
use crate::engine::peer::{BulkOp, Quota};
use crate::engine::receives::RecvInfo;
use crate::ids::{PeerId, TransferId};
use crate::matching::{Body, Matcher, Space};
use crate::mem::{IovList, Owned};

/// Number of ended announcements up to which the list is not searched for them.
const STALE_LIMIT: usize = 64;

/// An announced short message that waits for a receive. If a receive has taken it meanwhile, its place holds
/// another message or none.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShortAnnouncement {
    space: Space,
    /// The message's key in the queue of unexpected messages.
    key: u32,
    /// The peer's operation.
    op: u32,
}

impl ShortAnnouncement {
    /// The message `key` of the unexpected queue, from the peer's operation `op`.
    pub(crate) fn new(space: Space, key: u32, op: u32) -> Self {
        Self { space, key, op }
    }

    /// The length of the message, and whether its delivery must be acknowledged. `None`: it waits no longer.
    fn pending(self, matcher: &Matcher, peer_id: PeerId) -> Option<(u64, bool)> {
        let message =
            matcher.unexpected().get(self.key).filter(|message| message.peer() == peer_id && !message.is_orphan())?;
        match *message.body() {
            Body::Rendezvous { op, len, ack, .. } if op == self.op => Some((len, ack)),
            _ => None,
        }
    }
}

impl State {
    /// Notes an announced short message that waits for a receive. Its bytes are requested when the window has
    /// room.
    pub(crate) fn note_announcement(&mut self, peer_id: PeerId, announcement: ShortAnnouncement) {
        let Self { incoming, peers, .. } = self;
        let peer = &mut peers[peer_id];
        let most = 2 * peer.taken(Quota::Announced) as usize + STALE_LIMIT;
        let list = peer.new_announcements();
        list.push_back(announcement);
        if list.len() > most {
            list.retain(|a| a.pending(incoming.matcher(a.space), peer_id).is_some());
        }
        self.prefetch(peer_id);
    }

    /// Requests the oldest announced messages, for which returned parts of the window have room.
    pub(crate) fn prefetch(&mut self, peer_id: PeerId) {
        while let Some(announcement) = self.announcements(peer_id).and_then(|list| list.front().copied()) {
            let matcher = self.incoming.matcher(announcement.space);
            if let Some((len, ack)) = announcement.pending(matcher, peer_id) {
                let peer = &mut self.peers[peer_id];
                if peer.owed() < len + EAGER_COST {
                    return;
                }
                peer.reuse_credit(len + EAGER_COST);
                self.request_prefetch(peer_id, announcement, len, ack);
            }
            if let Some(list) = self.announcements(peer_id) {
                list.pop_front();
            }
        }
        self.peers[peer_id].drop_announcements();
    }

    fn announcements(&mut self, peer_id: PeerId) -> Option<&mut VecDeque<ShortAnnouncement>> {
        self.peers[peer_id].announcements()
    }

    fn request_prefetch(&mut self, peer_id: PeerId, announcement: ShortAnnouncement, len: u64, ack: bool) {
        let token = self.start_prefetch(peer_id, announcement, len, ack);
        self.peers.defer_matched(peer_id, BulkOp::RequestPush(token));
    }

    /// Starts the transfer of a waiting message into memory of the engine. Its length is charged to the window.
    pub(crate) fn start_prefetch(
        &mut self,
        peer_id: PeerId,
        announcement: ShortAnnouncement,
        len: u64,
        ack: bool,
    ) -> TransferId {
        let ShortAnnouncement { space, key, op } = announcement;
        let token = self.start_staged(peer_id, TransferKind::Prefetch { space, key, op, ack }, len, None);
        if let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().get_mut(key) {
            message.set_body(Body::Prefetch { token, len });
        }
        token
    }

    /// Starts a transfer of `len` bytes into memory of the engine, which are copied to `target` when they are there.
    pub(crate) fn start_staged(
        &mut self,
        peer_id: PeerId,
        kind: TransferKind,
        len: u64,
        target: Option<IovList>,
    ) -> TransferId {
        let mut memory = Owned::new(vec![0; usize::try_from(len).unwrap_or(0)]);
        let whole = IovList::from_slice(&[memory.iov()]);
        let token = self.outgoing.start(&mut self.peers[peer_id], Transfer::new(peer_id, kind, whole, Vec::new(), len));
        let mut staged = Staged::new(memory);
        if let Some(target) = target {
            staged.set_target(target);
        }
        self.outgoing.stage(token, staged);
        token
    }

    /// A receive has taken a message whose bytes are on their way. They are copied to the receive when they
    /// have arrived.
    pub(crate) fn redirect_prefetch(&mut self, token: TransferId, iov: IovList, info: RecvInfo) {
        let Some(x) = self.outgoing.transfer(token) else {
            return cannot_happen!("a message names a transfer that is under way");
        };
        let TransferKind::Prefetch { op, ack, .. } = x.kind() else {
            return cannot_happen!("a message names the transfer of its bytes");
        };
        x.set_kind(TransferKind::Recv { info, op, ack });
        if let Some(staged) = x.staged_mut() {
            staged.set_target(iov);
        }
    }

    /// Notes that the bytes of a prefetched message have arrived. From now on it waits like an eager one,
    /// unless it was dropped meanwhile.
    pub(crate) fn prefetch_arrived(
        &mut self,
        peer_id: PeerId,
        token: TransferId,
        what: TransferKind,
        staged: Option<Box<Staged>>,
    ) {
        let (TransferKind::Prefetch { space, key, op, ack }, Some(staged)) = (what, staged) else {
            return cannot_happen!("the bytes of a waiting message are staged");
        };
        let bytes = staged.into_parts().0.into_bytes();
        let asked = |body: &Body| matches!(body, Body::Prefetch { token: of, .. } if *of == token);
        let matcher = self.incoming.matcher_mut(space);
        if let Some(message) = matcher.unexpected_mut().get_mut(key).filter(|message| asked(message.body())) {
            message.set_body(Body::Eager { bytes: bytes.into_boxed_slice(), ack: ack.then_some(op) });
            self.announcement_taken(peer_id);
            return;
        }
        self.return_window(peer_id, bytes.len());
        if ack {
            self.queue_ack(peer_id, op);
        }
    }
}
