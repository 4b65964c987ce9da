//! The engine's state, which receives the events of the device ([`Sink`]).
//!
//! Place in the data flow: `Nic::poll` → here → `send.rs`, `recv.rs`, `rma.rs`, `atomic.rs` (the meaning of a
//! message) → completions, or deferred work that [`crate::Engine::progress`] sends after the poll. Nothing here
//! calls the device, which is borrowed while it polls.

use smallvec::SmallVec;

use crate::api::EAGER_COST;
use crate::api::{ADDR_NONE, Addr, Completion, Fault, Kind, OpFlags};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::links::LinkState;
use crate::engine::ops::{Phase, Transfer, TransferKind, TxOp};
use crate::engine::peer::{PathFlags, Peer, Quota, UNMATCHED_LIMIT};
use crate::engine::registrations::Holder;
use crate::ids::{DeviceContext, OpId, PeerId, TransferId};
use crate::mapped::PeerRegion;
use crate::matching::{Body, Space, Unexpected};
use crate::mem::{self, IovList};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, LinkUp, Sink};
use crate::wire::{self, Head, Reader, kind};

/// The peer has violated the protocol. Its link is closed.
#[derive(Debug)]
pub(crate) struct Violation;

/// Limit of the distance by which a message may overtake others.
const REORDER_LIMIT: u32 = 4096;

impl State {
    // ---- ends --------------------------------------------------------------------------------

    /// Fails a peer that has ended or is unreachable. All operations with it fail, including receives that name
    /// it as their only source. The peer's state is reset.
    pub(crate) fn fail_peer(&mut self, peer_id: PeerId, why: LinkError) {
        self.follow_book();
        let addr = self.peers[peer_id].addr();
        self.reset_peer(peer_id, why);
        self.active_lost(peer_id, addr, why);
        let reported = addr != ADDR_NONE && !self.is_unreliable() && !self.has_link_to(addr);
        if planted!(Bug::DeathUnreported, reported, false) {
            self.fail_directed_receives(addr, Fault::Link(why));
        }
    }

    /// Resets a peer and fails all operations with it except receives. The reason may also be the end of this
    /// endpoint.
    pub(crate) fn reset_peer(&mut self, peer_id: PeerId, why: LinkError) {
        let fault = Fault::Link(why);
        self.close_links(peer_id);
        self.prompts.forget(peer_id);
        let peer = &self.peers[peer_id];
        let (link, in_use) = (peer.link(), peer.is_in_use());
        let parts = self.peers.drop_queues(peer_id).and_then(|queues| queues.parts());
        let peer = &mut self.peers[peer_id];
        let announced = peer.taken(Quota::Announced);
        peer.reset();
        let dead = self.outgoing.ops_of(peer);
        if dead.is_empty() && !in_use {
            self.peers[peer_id].set_connect_failure(why);
        }
        if planted!(Bug::OrphanOvertakes, self.peers[peer_id].rx_used() > 0 || announced > 0, false) {
            self.orphan_unexpected(peer_id, why, announced);
        }
        // The end of an operation may fail a group. Its messages of the lost link must not be acknowledged to the next.
        self.collective_peer_lost(peer_id, why, in_use);
        for index in dead.into_iter().skip(planted!(Bug::DeathForgotten, 0, 1)) {
            // The device stops using the memory before `down`, or within `close`, which follows the poll. The
            // client learns of the failure, and registrations end, after that.
            if let Some(registrations) = &mut self.registrations {
                registrations.release_op(index);
            }
            let lost = self.is_unreliable();
            self.dropped += u64::from(lost);
            if let Some(mut op) = self.outgoing.remove(&mut self.peers[peer_id], index) {
                if op.is_moving()
                    && let (Some(link), Some(copy)) = (link, op.take_copy())
                {
                    self.outgoing.linger(link, copy);
                }
                if op.kind() == Kind::Collective {
                    self.end_transfer(op.ctx(), Some(op.fault().unwrap_or(fault)));
                    continue;
                }
                let fails = planted!(Bug::LossReported, !lost, true);
                complete_op(&mut self.completions, &op, fails.then(|| op.fault().unwrap_or(fault)));
            }
        }
        for token in self.outgoing.transfers_of(&self.peers[peer_id]) {
            if let Some(x) = self.outgoing.end(&mut self.peers, token) {
                self.release_transfer(token);
                self.abandon_transfer(x, link, fault);
            }
        }
        if let Some(parts) = parts {
            self.abort_multipart(parts);
        }
        let peer = &self.peers[peer_id];
        self.peers.note_sweepable(peer.addr() == ADDR_NONE && peer.rx_used() == 0);
        // A refused inject is reported by way of the address, so its route stays.
        if self.peers[peer_id].connect_failure().is_none() {
            self.drop_routes(peer_id);
        }
        self.release_service_address(peer_id);
        self.account(peer_id);
        self.connection_lost(peer_id, why);
    }

    /// Ends a transfer with an error. Until `link` is closed, the device may still store bytes for it.
    fn abandon_transfer(&mut self, mut x: Transfer, link: Option<LinkId>, fault: Fault) {
        if let Some((memory, into)) = x.take_staged().map(|staged| staged.into_parts()) {
            let peer = &mut self.peers[x.peer()];
            peer.free_window(x.expect() + EAGER_COST);
            let placed = usize::try_from(x.placed()).unwrap_or(usize::MAX);
            mem::scatter(&into, 0, &mem::to_vec(&mem::slice(x.iov(), 0, placed)));
            if let Some(link) = link {
                self.outgoing.linger(link, memory);
            }
        }
        match x.kind() {
            TransferKind::Recv { info, .. } => {
                // A device that has several connections places pushed bytes in any order. The position of bytes that a
                // device fetches is unknown.
                let placed = usize::try_from(x.placed()).unwrap_or(usize::MAX);
                self.complete_recv(&info.with_stored(placed), ADDR_NONE, Some(fault));
            }
            TransferKind::Write { key, parts, .. } | TransferKind::Serve { key, parts, .. } => {
                self.target.regions().release(key);
                self.part_failed(parts);
            }
            TransferKind::ReadHome { .. } | TransferKind::Prefetch { .. } => {}
        }
    }

    /// Handles the unexpected messages of a peer that has failed. Whole messages can still be received; their
    /// acknowledgements are dropped, and they keep their share of the window. The payload of other messages is
    /// lost. These keep their places, because otherwise later messages would match in their stead. Receives
    /// that match them fail.
    ///
    /// The number of such places is limited per peer, over all its links. A stranger has none: otherwise any
    /// process could fail receives meant for others.
    fn orphan_unexpected(&mut self, peer_id: PeerId, why: LinkError, announced: u32) {
        let messages = self.messages_of(peer_id, announced);
        let stranger = self.is_stranger(peer_id);
        let mut places = if stranger { 0 } else { UNMATCHED_LIMIT };
        let mut left = SmallVec::new();
        for (space, key) in messages {
            let matcher = self.incoming.matcher_mut(space);
            let Some(message) = matcher.unexpected_mut().get_mut(key) else {
                cannot_happen!("a message that was found waits");
                continue;
            };
            if stranger && space == Space::Group {
                // Its join cannot succeed any more.
                self.drop_orphan(peer_id, space, key);
                continue;
            }
            if matches!(message.body(), Body::Lost { .. }) {
                places = places.saturating_sub(1);
            } else if let Some(len) = message.orphan() {
                if message.is_claimed() || planted!(Bug::LostPassedOver, places > 0, false) {
                    places = places.saturating_sub(1);
                    message.set_body(Body::Lost { why, len });
                    self.leftovers.set_lost(true);
                } else {
                    matcher.unexpected_mut().remove(key);
                    continue;
                }
            }
            if space != Space::Group {
                left.push((space, key));
            }
        }
        self.note_leftovers(peer_id, left);
    }

    /// Drops a message that a departed peer has left.
    pub(crate) fn drop_orphan(&mut self, peer_id: PeerId, space: Space, key: u32) {
        let message = self.incoming.matcher_mut(space).unexpected_mut().remove(key);
        if let Some(Body::Eager { bytes, .. }) = message.map(Unexpected::into_body) {
            self.eager_taken(peer_id, bytes.len(), true);
        }
    }

    /// Whether a link leads to that address: for another context of the same endpoint, or for another endpoint
    /// that has taken its place.
    fn has_link_to(&self, addr: Addr) -> bool {
        let up = |peer: &Peer| peer.addr() == addr && peer.is_in_use();
        self.peers.as_slice().iter().any(up)
    }

    /// Ends the receives that name the failed peer as their only source, since they would wait indefinitely.
    fn fail_directed_receives(&mut self, addr: Addr, fault: Fault) {
        for space in Space::OF_CLIENT {
            let matcher = self.incoming.matcher_mut(space);
            let gone: Vec<u32> = matcher.posted().iter().filter(|(_, p)| p.src == addr).map(|(key, _)| key).collect();
            for key in gone {
                self.end_posted(space, key, fault);
            }
        }
    }

    /// Ends the registrations of a transfer whose memory the device no longer uses.
    pub(crate) fn release_transfer(&mut self, token: TransferId) {
        if let Some(registrations) = &mut self.registrations {
            registrations.release(Holder::Transfer(token));
        }
    }

    // ---- completions -------------------------------------------------------------------------

    /// Completes an operation if neither the peer nor the device still works on it.
    pub(crate) fn finish_op(&mut self, index: OpId) {
        let Some(op) = self.outgoing.op(index) else { return cannot_happen!("an operation ends once") };
        let peer_id = op.peer();
        if op.is_under_way() {
            // A part that waited for others may be sent now.
            if !self.peers[peer_id].tx_is_empty() {
                self.peers.activate(peer_id);
            }
            return;
        }
        let (parts, access, unmatched) = (op.parts(), !op.is_message(), op.is_unmatched());
        if op.kind() == Kind::Collective {
            let (ctx, fault) = (op.ctx(), op.fault());
            self.end_transfer(ctx, fault);
        } else {
            complete_op(&mut self.completions, op, op.fault());
        }
        if let Some(registrations) = &mut self.registrations {
            registrations.release_op(index);
        }
        let peer = &mut self.peers[peer_id];
        self.outgoing.drop_op(peer, index);
        peer.give_back(Quota::Ops, parts);
        if unmatched {
            peer.give_back(Quota::Unmatched, 1);
        }
        if access {
            peer.give_back(Quota::Accesses, parts);
        }
        if !peer.tx_is_empty() {
            self.peers.activate(peer_id);
        }
    }

    /// Returns an operation of this peer. Any other number is a violation.
    pub(crate) fn op_of(&mut self, peer_id: PeerId, index: OpId) -> Result<&mut TxOp, Violation> {
        self.outgoing.op_mut(index).filter(|op| op.peer() == peer_id).ok_or(Violation)
    }

    // ---- messages ----------------------------------------------------------------------------

    #[inline(never)]
    pub(crate) fn dispatch(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), Violation> {
        let Some((state, peer)) = self.links.lookup(link) else { return Ok(()) };
        if state == LinkState::Free {
            // The engine has dropped the link, and the device learns it after this poll. A violation here must
            // not close the link twice.
            return Ok(());
        }
        let mut r = Reader(bytes);
        let head: Head = r.take().ok_or(Violation)?;
        if head.kind < wire::FIRST_SEQUENCED {
            return match head.kind {
                kind::OPEN => self.on_open(link, r),
                kind::OPEN_OK => self.on_open_ok(link, r),
                kind::OPEN_DUP => self.on_open_dup(link),
                kind::CALL => self.on_call(link, r),
                kind::ACCEPT => self.on_accept(link, r),
                kind::REJECT => self.on_reject(link, &r),
                kind::REFUSED => self.on_refused(link, r),
                kind::CALL_BACK => self.on_call_back(link, r),
                _ => Err(Violation),
            };
        }
        let peer_id = match (state, peer) {
            (LinkState::Carrying, Some(peer_id)) => peer_id,
            // A message of an unknown kind is not kept. It may stand for OPEN_OK, after which nothing else
            // would arrive.
            (LinkState::Opening, _) if head.kind <= wire::LAST_KIND && self.links.keep_early(link, bytes) => {
                return Ok(());
            }
            _ => return Err(Violation),
        };
        let peer = &mut self.peers[peer_id];
        if peer.queues().is_some_and(|queues| queues.is_too_much()) {
            return Err(Violation);
        }
        let seq = head.seq.get();
        if seq == peer.rx_seq() {
            peer.message_taken();
            self.on_sequenced(peer_id, head, r)?;
            if self.peers[peer_id].queues().is_some_and(|queues| queues.has_early()) {
                return self.drain_early(peer_id);
            }
            return Ok(());
        }
        self.keep_early(peer_id, seq, bytes)
    }

    #[cold]
    fn keep_early(&mut self, peer_id: PeerId, seq: u32, bytes: &[u8]) -> Result<(), Violation> {
        let peer = &mut self.peers[peer_id];
        if peer.has(PathFlags::ORDERED) {
            return Err(Violation);
        }
        let ahead = seq.wrapping_sub(peer.rx_seq());
        if ahead < REORDER_LIMIT {
            self.peers.queues(peer_id).keep_early(seq, bytes.to_vec());
            Ok(())
        } else if peer.rx_seq().wrapping_sub(seq) < REORDER_LIMIT {
            // A duplicate of a message that was taken before is ignored.
            planted!(Bug::DuplicateTaken, Ok(()), self.take_again(peer_id, bytes))
        } else {
            Err(Violation)
        }
    }

    /// The behaviour of the planted bug `DuplicateTaken`: a duplicate is handled again.
    fn take_again(&mut self, peer_id: PeerId, bytes: &[u8]) -> Result<(), Violation> {
        let mut r = Reader(bytes);
        let head: Head = r.take().ok_or(Violation)?;
        self.on_sequenced(peer_id, head, r)
    }

    #[cold]
    fn drain_early(&mut self, peer_id: PeerId) -> Result<(), Violation> {
        loop {
            let peer = &mut self.peers[peer_id];
            let seq = peer.rx_seq();
            let Some(bytes) = peer.queues_mut().and_then(|queues| queues.take_early(seq)) else { return Ok(()) };
            peer.message_taken();
            let mut r = Reader(&bytes);
            let head: Head = r.take().ok_or(Violation)?;
            self.on_sequenced(peer_id, head, r)?;
        }
    }

    /// Handles one message of the peer's stream, in order.
    fn on_sequenced(&mut self, peer_id: PeerId, head: Head, r: Reader<'_>) -> Result<(), Violation> {
        match head.kind {
            kind::EAGER => self.on_eager(peer_id, head.flags, r),
            kind::RTS => self.on_rts(peer_id, head.flags, r),
            kind::CTS => self.on_cts(peer_id, head.flags, r),
            kind::FIN => self.on_fin(peer_id, r),
            kind::ACK => self.on_ack(peer_id, head.flags, r),
            kind::CREDIT => self.on_credit(peer_id, r),
            kind::WRITE => self.on_write(peer_id, head.flags, r),
            kind::WRITE_RTS => self.on_write_rts(peer_id, head.flags, r),
            kind::READ => self.on_read(peer_id, head.flags, r),
            kind::READ_BULK => self.on_read_bulk(peer_id, head.flags, r),
            kind::READ_DATA => self.on_read_data(peer_id, r),
            kind::ASSIST => self.on_assist(peer_id, r),
            kind::ATOMIC => self.on_atomic(peer_id, head, r),
            kind::RESULTS => self.on_results(peer_id, r),
            kind::MAP_OFFER => self.on_map_offer(peer_id),
            kind::MAP_ASK => self.on_map_ask(peer_id, r),
            kind::MAP_NAME => self.on_map_name(peer_id, r),
            kind::PLACED => self.on_placed(peer_id, r),
            kind::ACTIVE => self.on_other_active(peer_id, head, &r),
            kind::ACTIVE_CREDIT => self.on_active_credit(peer_id, head),
            _ => Err(Violation),
        }
    }

    /// Closes the link of a peer that broke the protocol.
    fn violated(&mut self, link: LinkId) {
        self.link_lost(link, LinkError::Protocol);
        self.links.queue_close(link);
    }

    // ---- device results ----------------------------------------------------------------------

    /// Whether an operation uses a link. A link that was given up reports the ends of its work until it is closed.
    /// Another operation may have the number by then.
    fn uses(&self, index: OpId, link: LinkId) -> bool {
        let carried = self.links.lookup(link).and_then(|(_, peer_id)| peer_id);
        carried.is_some_and(|peer_id| self.outgoing.op(index).is_none_or(|op| op.peer() == peer_id))
    }

    pub(super) fn push_done(&mut self, index: OpId, result: Result<(), LinkError>) {
        let Some(op) = self.outgoing.op_mut(index) else {
            return cannot_happen!("an operation lasts until the device has pushed its bytes");
        };
        op.push_ends();
        if let Err(why) = result {
            op.fail(Fault::Link(why));
            op.await_nothing();
        } else if op.phase() == Some(Phase::Pushing(false)) {
            op.await_nothing();
        }
        self.finish_op(index);
    }
}

/// Adds the completion of a send, read or write.
#[inline]
fn complete_op(completions: &mut Vec<Completion>, op: &TxOp, fault: Option<Fault>) {
    if fault.is_none() && planted!(Bug::QuietReported, op.flags().contains(OpFlags::QUIET), false) {
        return;
    }
    completions.push(op.completion(fault));
}

impl Sink for State {
    fn up(&mut self, link: LinkId, up: LinkUp) {
        self.link_up(link, up);
    }

    fn down(&mut self, link: LinkId, why: LinkError) {
        self.link_lost(link, why);
        // The device has ended the link itself. The engine must not close a number that the device may reuse.
        self.links.drop_work(link);
        self.outgoing.free_lingering(|other| other == link);
    }

    #[inline(never)]
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        if self.receive_eager_fast(link, bytes) {
            return;
        }
        let taken = match bytes.first() {
            Some(&kind::ACTIVE) => self.receive_active(link, bytes),
            _ => self.dispatch(link, bytes),
        };
        if taken.is_err() {
            self.violated(link);
        }
    }

    fn confirmed(&mut self, link: LinkId, number: u32) {
        if let Some(peer_id) = self.links.carried_by(link)
            && self.requests_confirmed(peer_id, number).is_err()
        {
            self.violated(link);
        }
    }

    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        // The engine may have dropped the link. The device learns it after this poll, and the link is not
        // closed twice.
        let (state, peer) = self.links.lookup(link)?;
        if state == LinkState::Free {
            return None;
        }
        match peer.ok_or(Violation).and_then(|peer_id| self.room_for(peer_id, window, offset, len)) {
            Ok(memory) => memory,
            Err(Violation) => {
                self.violated(link);
                None
            }
        }
    }

    fn placed(&mut self, link: LinkId, window: u64, _offset: u64, len: usize) {
        if let Some((_, Some(peer_id))) = self.links.lookup(link) {
            self.push_placed(peer_id, window, len);
        }
    }

    fn peer(&self, link: LinkId) -> Option<EpName> {
        match self.links.lookup(link)?.1 {
            Some(peer_id) => Some(self.peers[peer_id].name()),
            None => self.links.pending_peer(link),
        }
    }

    fn holds_more(&mut self, link: LinkId) {
        let Some(peer_id) = self.links.carried_by(link) else { return };
        if self.is_stranger(peer_id) {
            self.peers.activate(peer_id);
        }
    }

    fn board(&mut self, link: LinkId, key: u64, board: Option<crate::board::Board>) {
        if self.board_passed(link, key, board).is_err() {
            self.violated(link);
        }
    }

    fn region(&mut self, link: LinkId, key: u64, region: Option<PeerRegion>) {
        if self.region_passed(link, key, region).is_err() {
            self.violated(link);
        }
    }

    fn hindered(&mut self, link: LinkId) {
        self.ask_for_call(link);
    }

    fn spare_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        let link = self.dispensable_link(candidates)?;
        self.down(link, LinkError::Resources);
        Some(link)
    }

    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        match DeviceContext::from_number(ctx) {
            Some(DeviceContext::Push(op)) if self.uses(op, link) => self.push_done(op, result),
            Some(DeviceContext::Assist(op)) if self.uses(op, link) => self.assist_done(op),
            Some(DeviceContext::Transfer(token)) => self.transfer_done(token, result),
            Some(DeviceContext::Push(_) | DeviceContext::Assist(_)) => {}
            None => cannot_happen!("a device returns the numbers that it was given"),
        }
    }
}
