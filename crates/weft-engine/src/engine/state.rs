//! The engine's state, and what arrives from the device ([`Sink`]).
//!
//! Place in the data flow: `Nic::poll` → here → `msg`/`rma` (what the message means) → completions, or
//! deferred work that [`crate::Engine::progress`] sends after the poll. Nothing here calls the device: it is
//! borrowed while it polls.

use std::collections::VecDeque;
use std::sync::Arc;

use slab::Slab;

use crate::api::{ADDR_NONE, Addr, Completion, Config, Fault, Kind, OpFlags};
use crate::bugs::planted;
use crate::engine::claims::AddressQuery;
use crate::engine::connection::Connection;
use crate::engine::ids::PeerId;
use crate::engine::links::{LinkState, Links};
use crate::engine::ops::{DeviceContext, MultiRecv, Phase, RecvInfo, Transfer, TransferKind, Transfers, TxOp};
use crate::engine::peer::{PathFlags, Peer, PeerExtra, UNMATCHED_LIMIT, request_limit};
use crate::engine::peers::Peers;
use crate::engine::registrations::{Holder, Registrations};
use crate::engine::remote_events::MultipartOp;
use crate::engine::rma::Regions;
use crate::engine::send::EAGER_COST;
use crate::engine::shared_recv::Pool;
use crate::engine::strangers::Strangers;
use crate::list::List;
use crate::matching::{Body, Matcher, Unexpected};
use crate::mem::{self, IovList, Owned};
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, LinkUp, Sink};
use crate::wire::{self, Head, Reader, kind};

/// The peer did something that the protocol forbids: its link is closed.
#[derive(Debug)]
pub(crate) struct Violation;

/// Longest run of messages that may wait for one that they overtook.
const REORDER_LIMIT: u32 = 4096;

pub(crate) struct State {
    pub(crate) config: Config,
    pub(crate) me: EpName,
    pub(crate) peers: Peers,
    pub(crate) strangers: Strangers,
    pub(crate) links: Links,
    /// Addresses of which it is being found out who lives there.
    pub(crate) address_queries: Vec<AddressQuery>,
    pub(crate) ops: List<TxOp>,
    /// Private copies of operations that have failed, which the device reads until the link is closed.
    pub(crate) lingering_copies: Vec<(LinkId, Owned)>,
    /// Requests without an answer that may be under way to each peer.
    pub(crate) request_limit: u32,
    /// Receives are posted the short way while fewer than so many are.
    pub(crate) fast_receives: usize,
    pub(crate) transfers: Transfers,
    /// What is registered for them, where a device demands that.
    pub(crate) registrations: Option<Box<Registrations>>,
    pub(crate) multi_recvs: Slab<MultiRecv>,
    pub(crate) tagged: Matcher,
    pub(crate) untagged: Matcher,
    /// Receives that other engines draw from, too, and what is added to their contexts' `user`.
    pub(crate) pool: Option<(Arc<Pool>, u64)>,
    /// Messages may take receives from there.
    pub(crate) draws_from_pool: bool,
    /// The multi-receives that were taken from there by what `completions` calls POOLED, in the same order.
    pub(crate) pooled_releases: VecDeque<u32>,
    pub(crate) regions: Regions,
    /// Peers' operations of several parts that have begun.
    pub(crate) parts: Slab<MultipartOp>,
    /// Bulk data was handed to the device since the last poll.
    pub(crate) bulk_started: bool,
    pub(crate) completions: Vec<Completion>,
    pub(crate) min_multi_recv: usize,
    pub(crate) remote_events: bool,
    /// Messages of strangers are reported as such.
    pub(crate) source_errors: bool,
    /// Messages of strangers do not take the fast path: they are reported, or the book may have them meanwhile.
    pub(crate) checks_strangers: bool,
    pub(crate) connection: Connection,
    /// Datagrams.
    pub(crate) dropped: u64,
}

impl State {
    pub(crate) fn new(config: Config, me: EpName) -> Self {
        Self {
            me,
            peers: Peers::new(),
            strangers: Strangers::default(),
            links: Links::default(),
            address_queries: Vec::new(),
            ops: List::default(),
            lingering_copies: Vec::new(),
            request_limit: request_limit(config.tx_depth),
            fast_receives: config.rx_depth,
            transfers: Transfers::default(),
            registrations: None,
            multi_recvs: Slab::new(),
            tagged: Matcher::new(config.matching),
            untagged: Matcher::new(config.matching),
            pool: None,
            pooled_releases: VecDeque::new(),
            draws_from_pool: false,
            regions: Regions::new(config.probe),
            parts: Slab::new(),
            bulk_started: false,
            completions: Vec::with_capacity(64),
            min_multi_recv: 64,
            remote_events: false,
            source_errors: false,
            checks_strangers: false,
            connection: Connection::new(config.role),
            dropped: 0,
            config,
        }
    }

    // ---- ends --------------------------------------------------------------------------------

    /// The peer has gone, in whatever way, or is out of reach: everything that depends on it fails, receives
    /// that name it as their only source included, and the connection is as new.
    pub(crate) fn fail_peer(&mut self, peer_id: PeerId, why: LinkError) {
        self.follow_book();
        let addr = self.peers[peer_id].addr;
        self.reset_peer(peer_id, why);
        let reported = addr != ADDR_NONE && !self.is_unreliable() && !self.has_link_to(addr);
        if planted!(Bug::DeathUnreported, reported, false) {
            self.fail_directed_receives(addr, Fault::Link(why));
        }
    }

    /// The same, but for receives: this side may be the one that goes.
    pub(crate) fn reset_peer(&mut self, peer_id: PeerId, why: LinkError) {
        let fault = Fault::Link(why);
        self.close_links(peer_id);
        let peer = &mut self.peers[peer_id];
        let name = peer.name;
        let (addr, active, call) = (peer.addr, peer.active, peer.call);
        let (link, in_use) = (peer.link(), peer.is_in_use());
        self.peers.note_sweepable(addr == ADDR_NONE);
        let parts = self.peers.drop_queues(peer_id).and_then(|queues| queues.parts);
        let peer = &mut self.peers[peer_id];
        let counters = peer.take_counters();
        let (left, came) = (peer.unreceived(), peer.rendezvous_waiting() > 0);
        let stake = peer.extra.as_ref().map(|extra| extra.stake).unwrap_or_default();
        *peer = Peer::new(name);
        peer.rx_used = left;
        *peer.extra() = PeerExtra { counters, stake, ..PeerExtra::default() };
        peer.addr = addr;
        peer.active = active;
        peer.call = call;
        let dead: Vec<u32> = self.ops.iter().filter(|(_, op)| op.peer == peer_id).map(|(i, _)| i).collect();
        if dead.is_empty() && !in_use {
            self.peers[peer_id].connect_failure = Some(why);
        }
        for index in dead.into_iter().skip(planted!(Bug::DeathForgotten, 0, 1)) {
            // The device lets go of the memory before `down`, or within `close`, which follows the poll: the
            // client learns of the end, and registrations end, behind that.
            if let Some(registrations) = &mut self.registrations {
                registrations.release_op(index);
            }
            let lost = self.is_unreliable();
            self.dropped += u64::from(lost);
            if let Some(mut op) = self.ops.remove(index) {
                if (op.pushing > 0 || op.assisting > 0)
                    && let (Some(link), Some(copy)) = (link, op.owned.take())
                {
                    self.lingering_copies.push((link, copy));
                }
                let fails = planted!(Bug::LossReported, !lost, true);
                complete_op(&mut self.completions, &op, fails.then(|| op.fault.unwrap_or(fault)));
            }
        }
        for token in self.transfers.tokens(|x| x.peer == peer_id) {
            if let Some(x) = self.transfers.remove(token) {
                self.release_transfer(token);
                self.abandon_transfer(x, link, fault);
            }
        }
        if let Some(parts) = parts {
            self.abort_multipart(parts);
        }
        if planted!(Bug::OrphanOvertakes, left > 0 || came, false) {
            self.orphan_unexpected(peer_id, why);
        }
        // What an inject is still to be told is told by way of the address.
        if self.peers[peer_id].connect_failure.is_none() {
            self.drop_routes(peer_id);
        }
        self.release_service_address(peer_id);
        self.account(peer_id);
        self.connection_lost(peer_id, why);
    }

    /// `link`: over which the device may still be storing bytes, until it is closed.
    fn abandon_transfer(&mut self, x: Transfer, link: Option<LinkId>, fault: Fault) {
        if let Some(staged) = x.staged {
            let peer = &mut self.peers[x.peer];
            peer.rx_used = peer.rx_used.saturating_sub(x.expect + EAGER_COST);
            let placed = usize::try_from(x.placed).unwrap_or(usize::MAX);
            mem::scatter(&staged.into, 0, &mem::to_vec(&mem::slice(&x.iov, 0, placed)));
            self.lingering_copies.extend(link.map(|link| (link, staged.bytes)));
        }
        match x.kind {
            TransferKind::Recv { info, .. } => {
                // What was pushed has come from the front; of what a device fetches nobody knows which bytes are there.
                let stored = usize::try_from(x.placed).unwrap_or(usize::MAX).min(info.stored);
                self.complete_recv(&RecvInfo { stored, ..info }, ADDR_NONE, Some(fault));
            }
            TransferKind::Write { key, parts, .. } | TransferKind::Serve { key, parts, .. } => {
                self.regions.release(key);
                self.part_failed(parts);
            }
            TransferKind::ReadHome { .. } | TransferKind::Prefetch { .. } => {}
        }
    }

    /// Messages that came whole can still be received, but nobody waits for their acknowledgement; their
    /// share of the window stays theirs. Of others the payload stayed with the dead. They keep their places,
    /// or what came behind them would be taken for them: receives that match them fail. A peer that has left
    /// very many of those, in life after life, has no place for more. A stranger has none: any process could
    /// fail receives that are meant for others.
    fn orphan_unexpected(&mut self, peer_id: PeerId, why: LinkError) {
        let lost = |m: &&Unexpected| m.peer == peer_id && matches!(m.body, Body::Lost { .. });
        let unexpected = [&self.tagged, &self.untagged].map(|matcher| matcher.unexpected.iter().map(|(_, m)| m));
        let most = if self.is_stranger(peer_id) { 0 } else { UNMATCHED_LIMIT };
        let mut places = most.saturating_sub(unexpected.into_iter().flatten().filter(lost).count());
        for matcher in [&mut self.tagged, &mut self.untagged] {
            let theirs: Vec<u32> =
                matcher.unexpected.iter().filter(|(_, m)| m.peer == peer_id && !m.orphan).map(|(key, _)| key).collect();
            for key in theirs {
                let Some(message) = matcher.unexpected.get_mut(key) else { continue };
                message.orphan = true;
                match &mut message.body {
                    Body::Eager { ack, .. } => *ack = None,
                    Body::Rendezvous { len, .. } | Body::Prefetch { len, .. }
                        if message.claimed.is_some() || planted!(Bug::LostPassedOver, places > 0, false) =>
                    {
                        places = places.saturating_sub(1);
                        message.body = Body::Lost { why, len: *len };
                    }
                    Body::Rendezvous { .. } | Body::Prefetch { .. } => {
                        matcher.unexpected.remove(key);
                    }
                    Body::Lost { .. } => {}
                }
            }
        }
    }

    /// Whether there is a link to that address: of several contexts of one endpoint, or after another
    /// endpoint has taken the place of one.
    fn has_link_to(&self, addr: Addr) -> bool {
        let up = |peer: &Peer| peer.addr == addr && peer.is_in_use();
        self.peers.as_slice().iter().any(up)
    }

    /// A receive that names the dead as its only source would wait for ever.
    fn fail_directed_receives(&mut self, addr: Addr, fault: Fault) {
        for tagged in [true, false] {
            let matcher = if tagged { &mut self.tagged } else { &mut self.untagged };
            let gone: Vec<u32> = matcher.posted.iter().filter(|(_, p)| p.src == addr).map(|(key, _)| key).collect();
            for key in gone {
                self.end_posted(tagged, key, fault);
            }
        }
    }

    /// The device does not touch the memory of a transfer any more.
    pub(crate) fn release_transfer(&mut self, token: u64) {
        if let Some(registrations) = &mut self.registrations {
            registrations.release(Holder::Transfer(token));
        }
    }

    // ---- completions -------------------------------------------------------------------------

    /// Ends the operation if neither the peer nor the device still works on it.
    pub(crate) fn finish_op(&mut self, index: u32) {
        let Some(op) = self.ops.get(index) else { return };
        let peer_id = op.peer;
        let pushing = planted!(Bug::PushStillReads, op.pushing > 0, false);
        if op.pending > 0 || pushing || op.assisting > 0 || !op.all_sent() {
            // A part that waits for the others may have its turn now.
            if !self.peers[peer_id].tx_is_empty() {
                self.peers.activate(peer_id);
            }
            return;
        }
        let (parts, access, unmatched) = (op.parts(), op.kind != Kind::Send, op.awaits_match());
        complete_op(&mut self.completions, op, op.fault);
        self.ops.drop_item(index);
        if let Some(registrations) = &mut self.registrations {
            registrations.release_op(index);
        }
        let peer = &mut self.peers[peer_id];
        peer.outstanding = peer.outstanding.saturating_sub(parts);
        peer.unmatched = peer.unmatched.saturating_sub(u32::from(unmatched));
        if access && let Some(extra) = &mut peer.extra {
            extra.accesses = extra.accesses.saturating_sub(parts);
        }
        if !peer.tx_is_empty() {
            self.peers.activate(peer_id);
        }
    }

    /// The operation if it is one of this peer's; anything else is a violation.
    pub(crate) fn op_of(&mut self, peer_id: PeerId, index: u32) -> Result<&mut TxOp, Violation> {
        self.ops.get_mut(index).filter(|op| op.peer == peer_id).ok_or(Violation)
    }

    // ---- messages ----------------------------------------------------------------------------

    #[inline(never)]
    fn dispatch(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), Violation> {
        let Some((state, peer)) = self.links.lookup(link) else { return Ok(()) };
        if state == LinkState::Free {
            // The engine has let go of the link; the device hears of it after this poll. Whatever comes, it
            // is not closed twice.
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
                _ => Err(Violation),
            };
        }
        let peer_id = match (state, peer) {
            (LinkState::Carrying, Some(peer_id)) => peer_id,
            // An unknown kind is not kept. It may stand for OPEN_OK, after which nothing else would arrive.
            (LinkState::Opening, _) if head.kind <= wire::LAST_KIND && self.links.keep_early(link, bytes) => {
                return Ok(());
            }
            _ => return Err(Violation),
        };
        let peer = &mut self.peers[peer_id];
        if peer.queues.as_ref().is_some_and(|queues| queues.is_too_much()) {
            return Err(Violation);
        }
        let seq = head.seq.get();
        if seq == peer.rx_seq {
            peer.rx_seq = seq.wrapping_add(1);
            self.on_sequenced(peer_id, head, r)?;
            if self.peers[peer_id].queues.as_ref().is_some_and(|queues| !queues.early.is_empty()) {
                return self.drain_early(peer_id);
            }
            return Ok(());
        }
        self.keep_early(peer_id, seq, bytes)
    }

    #[cold]
    fn keep_early(&mut self, peer_id: PeerId, seq: u32, bytes: &[u8]) -> Result<(), Violation> {
        let peer = &mut self.peers[peer_id];
        if peer.caps.flags.contains(PathFlags::ORDERED) {
            return Err(Violation);
        }
        let ahead = seq.wrapping_sub(peer.rx_seq);
        if ahead < REORDER_LIMIT {
            self.peers.queues(peer_id).early.insert(seq, bytes.to_vec());
            Ok(())
        } else if peer.rx_seq.wrapping_sub(seq) < REORDER_LIMIT {
            // A duplicate of a message that was taken before is ignored.
            planted!(Bug::DuplicateTaken, Ok(()), self.take_again(peer_id, bytes))
        } else {
            Err(Violation)
        }
    }

    /// Only the planted bug `DuplicateTaken` does this.
    fn take_again(&mut self, peer_id: PeerId, bytes: &[u8]) -> Result<(), Violation> {
        let mut r = Reader(bytes);
        let head: Head = r.take().ok_or(Violation)?;
        self.on_sequenced(peer_id, head, r)
    }

    #[cold]
    fn drain_early(&mut self, peer_id: PeerId) -> Result<(), Violation> {
        loop {
            let peer = &mut self.peers[peer_id];
            let early = peer.queues.as_mut().map(|queues| &mut queues.early);
            let Some(bytes) = early.and_then(|early| early.remove(&peer.rx_seq)) else { return Ok(()) };
            peer.rx_seq = peer.rx_seq.wrapping_add(1);
            let mut r = Reader(&bytes);
            let head: Head = r.take().ok_or(Violation)?;
            self.on_sequenced(peer_id, head, r)?;
        }
    }

    /// One message of the connection's stream, in order.
    fn on_sequenced(&mut self, peer_id: PeerId, head: Head, r: Reader<'_>) -> Result<(), Violation> {
        match head.kind {
            kind::EAGER => self.on_eager(peer_id, head.flags, r),
            kind::RTS => self.on_rts(peer_id, head.flags, r),
            kind::CTS => self.on_cts(peer_id, r),
            kind::FIN => self.on_fin(peer_id, r),
            kind::ACK => self.on_ack(peer_id, head.flags, r),
            kind::CREDIT => self.on_credit(peer_id, r),
            kind::WRITE => self.on_write(peer_id, head.flags, r),
            kind::WRITE_RTS => self.on_write_rts(peer_id, head.flags, r),
            kind::READ => self.on_read(peer_id, head.flags, r, false),
            kind::READ_BULK => self.on_read(peer_id, head.flags, r, true),
            kind::READ_DATA => self.on_read_data(peer_id, r),
            kind::ASSIST => self.on_assist(peer_id, r),
            kind::ATOMIC => self.on_atomic(peer_id, head, r),
            kind::RESULTS => self.on_results(peer_id, r),
            _ => Err(Violation),
        }
    }

    /// Closes the link of a peer that broke the protocol.
    fn violated(&mut self, link: LinkId) {
        self.link_lost(link, LinkError::Protocol);
        self.links.queue_close(link);
    }

    // ---- device results ----------------------------------------------------------------------

    fn push_done(&mut self, index: u32, result: Result<(), LinkError>) {
        let Some(op) = self.ops.get_mut(index) else { return };
        op.pushing = op.pushing.saturating_sub(1);
        if let Err(why) = result {
            op.fault.get_or_insert(Fault::Link(why));
            op.pending = 0;
        } else if op.kind == Kind::Send && op.phase == Phase::Pushing(false) {
            op.pending = 0;
        }
        self.finish_op(index);
    }
}

/// Reports the end of one of our sends, reads or writes.
#[inline]
fn complete_op(completions: &mut Vec<Completion>, op: &TxOp, fault: Option<Fault>) {
    if fault.is_none() && planted!(Bug::QuietReported, op.flags.contains(OpFlags::QUIET), false) {
        return;
    }
    completions.push(Completion {
        kind: op.kind,
        ctx: op.ctx,
        flags: op.flags,
        len: usize::try_from(op.len).unwrap_or(usize::MAX),
        buf: 0,
        tag: op.tag,
        data: op.data,
        src: ADDR_NONE,
        fault,
    });
}

impl Sink for State {
    fn up(&mut self, link: LinkId, up: LinkUp) {
        self.link_up(link, up);
    }

    fn down(&mut self, link: LinkId, why: LinkError) {
        self.link_lost(link, why);
        // The device has ended the link itself: it must not be told to close a number that it may reuse.
        self.links.drop_work(link);
        self.lingering_copies.retain(|(other, _)| *other != link);
    }

    #[inline(never)]
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        if !self.receive_eager_fast(link, bytes) && self.dispatch(link, bytes).is_err() {
            self.violated(link);
        }
    }

    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        // The engine may have forgotten the link. The device learns of it after this poll; it is not closed twice.
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
            Some(peer_id) => Some(self.peers[peer_id].name),
            None => self.links.pending_peer(link),
        }
    }

    fn holds_more(&mut self, link: LinkId) {
        let Some(peer_id) = self.links.carried_by(link) else { return };
        if self.is_stranger(peer_id) {
            self.peers.activate(peer_id);
        }
    }

    fn spare_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        let link = self.dispensable_link(candidates)?;
        self.down(link, LinkError::Resources);
        Some(link)
    }

    fn done(&mut self, _link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        match DeviceContext::of(ctx) {
            DeviceContext::Push(op) => self.push_done(op, result),
            DeviceContext::Assist(op) => self.assist_done(op),
            DeviceContext::Transfer(token) => self.transfer_done(token, result),
        }
    }
}
