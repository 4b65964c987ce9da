//! Receiving messages of all kinds: posting, matching, delivery.
//!
//! Place in the data flow: `Engine::recv` posts a receive, or finds its message in the unexpected queue. EAGER
//! and RTS messages arrive through [`State`] and are matched. An eager payload is copied. A rendezvous payload
//! is fetched by a get of this side, or pushed by the sender after a CTS. The completion is the last effect. A
//! message that matches no receive waits in the unexpected queue. [`crate::engine::send`] is the sending side.

use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};

use crate::api::EAGER_COST;
use crate::api::{ADDR_NONE, Addr, Completion, CompletionFlags, Context, Error, Fault, Kind, RecvFlags, RecvOp};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::collectives::Reception;
use crate::engine::ops::{Transfer, TransferKind};
use crate::engine::peer::{BulkOp, PathFlags, Quota, UNMATCHED_LIMIT};
use crate::engine::peer::{Direction, WaitEvent};
use crate::engine::prefetch::ShortAnnouncement;
use crate::engine::receives::{self, Receiver, RecvInfo};
use crate::engine::state::Violation;
use crate::ids::{PeerId, TransferId, WindowId};
use crate::matching::{Body, Space, Unexpected, Wanted};
use crate::mem::{self, Iov, IovList};
use crate::nic::{LinkId, Nic, RemoteIov};
use crate::wire::{self, F_ACK, F_ARRIVAL, F_DATA, F_FOLLOWS, F_TAGGED, Reader, Rts, Short, kind};

/// Number of memory pieces that the descriptor of every announced message may have.
const SHORT_LIST: usize = 2;

/// Limit of announced messages of one peer that wait with longer lists of pieces.
const LONG_LISTS: usize = 1 << 14;

impl<N: Nic> Engine<N> {
    /// The fast path of [`Engine::recv`]: posts a plain receive into `piece`, the only piece of `op`, if no
    /// message waits. Returns false if it has done nothing.
    #[inline(always)]
    pub fn post_now(&mut self, op: &RecvOp<'_>, piece: Iov) -> bool {
        let other = RecvFlags::LOOKS | RecvFlags::MULTI | RecvFlags::TRIGGER;
        !op.flags.intersects(other) && self.state.incoming.post_fast(op, piece)
    }

    /// Posts a receive, or peeks, claims or discards (fi_tagged(3)). It completes at once if the message is
    /// already here.
    ///
    /// Errors: `Again` if the RX queue is full, `NothingClaimed`.
    pub fn recv(&mut self, op: &RecvOp<'_>) -> Result<(), Error> {
        if let [piece] = op.iov
            && self.post_now(op, *piece)
        {
            return Ok(());
        }
        self.state.follow_book();
        let space = receives::space_of(op.flags);
        let result = if op.flags.contains(RecvFlags::PEEK) {
            // A client that peeks repeatedly reads the misses from the queue without progress, so a peek makes
            // progress itself.
            self.progress();
            self.state.peek(op, space);
            Ok(())
        } else if op.flags.contains(RecvFlags::CLAIM) {
            self.state.take_claimed(op, space)
        } else {
            self.state.post(op, space)
        };
        // An answer to a rendezvous, or an acknowledgement, may have become due.
        if self.state.peers.has_active() {
            self.run_active();
        }
        result
    }

    /// Cancels the oldest posted receive with this context pointer. Returns true if there was one; its
    /// completion with `Fault::Canceled` follows. Sends cannot be cancelled.
    pub fn cancel(&mut self, ctx_ptr: usize) -> bool {
        for space in Space::OF_CLIENT {
            if let Some(key) = self.state.incoming.matcher_mut(space).find_posted(ctx_ptr) {
                self.state.end_posted(space, key, Fault::Canceled);
                return true;
            }
        }
        false
    }

    /// Cancels every posted receive whose context `wanted` accepts.
    pub fn cancel_where(&mut self, mut wanted: impl FnMut(Context) -> bool) {
        for space in Space::OF_CLIENT {
            while let Some(key) = self.state.incoming.matcher_mut(space).find_posted_where(&mut wanted) {
                self.state.end_posted(space, key, Fault::Canceled);
            }
        }
    }
}

impl State {
    pub(crate) fn find_unexpected(&mut self, space: Space, wanted: Wanted) -> Option<u32> {
        if self.incoming.matcher_mut(space).unexpected().len() == 0 {
            return None;
        }
        let Self { incoming, peers, .. } = self;
        let addr_of = |id: PeerId| match space {
            Space::Group => id.as_source(),
            Space::Msg | Space::Tagged => peers.get(id).map_or(ADDR_NONE, |peer| peer.addr()),
        };
        incoming.matcher_mut(space).find_unexpected(wanted, addr_of)
    }

    fn post(&mut self, op: &RecvOp<'_>, space: Space) -> Result<(), Error> {
        if self.incoming.matcher_mut(space).posted().len() >= self.config.rx_depth {
            return Err(Error::Again);
        }
        let wanted = receives::wanted(op);
        let multi = op.flags.contains(RecvFlags::MULTI);
        let searches = planted!(Bug::UnexpectedOverlooked, !multi, !multi && op.tag != 1);
        if searches && let Some(key) = self.find_unexpected(space, wanted) {
            self.take_unexpected(space, key, op);
            return Ok(());
        }
        let posted = self.incoming.receives().post(op);
        // A multi-receive takes waiting messages while it has room.
        while multi && self.incoming.matcher_mut(space).posted_mut().get_mut(posted).is_some() {
            let Some(key) = self.find_unexpected(space, wanted) else { break };
            let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().remove(key) else {
                cannot_happen!("a message that was found waits");
                break;
            };
            let (iov, info) =
                self.incoming.receives().take(space, posted, message.tag(), message.data(), message.len());
            self.deliver_unexpected(message, iov, info);
        }
        if self.connection.has_ended() {
            // Every message of the connection has arrived. A client that posts the next receive before it has read
            // of the end learns of it from this one.
            self.end_all_posted(space, Fault::Canceled);
        }
        Ok(())
    }

    /// Ends every posted receive of a kind without a message.
    pub(crate) fn end_all_posted(&mut self, space: Space, fault: Fault) {
        while let Some(key) = self.incoming.matcher_mut(space).find_posted_where(|_| true) {
            self.end_posted(space, key, fault);
        }
    }

    pub(crate) fn take_unexpected(&mut self, space: Space, key: u32, op: &RecvOp<'_>) {
        let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().remove(key) else {
            return cannot_happen!("a message that was found waits");
        };
        let iov = SmallVec::from_slice(op.iov);
        let mut info = RecvInfo::new(op.ctx, (op.flags & RecvFlags::TAGGED).into(), message.tag(), message.data());
        info.fit(&iov, message.len());
        self.deliver_unexpected(message, iov, info);
    }

    pub(crate) fn deliver_unexpected(&mut self, message: Unexpected, iov: IovList, mut info: RecvInfo) {
        let (peer_id, orphan) = (message.peer(), message.is_orphan());
        if !matches!(message.body(), Body::Lost { .. }) {
            self.peers[peer_id].count_unexpected(WaitEvent::Over);
        }
        match message.into_body() {
            Body::Eager { bytes, ack } => {
                mem::scatter(&iov, 0, &bytes);
                if planted!(Bug::CollectiveCreditLost, true, info.receiver() != Receiver::Collective) {
                    self.eager_taken(peer_id, bytes.len(), orphan);
                }
                self.received(&info, peer_id);
                if let Some(op) = ack {
                    self.queue_ack(peer_id, op);
                }
            }
            Body::Rendezvous { op, source, ack, .. } => {
                self.announcement_taken(peer_id);
                self.start_rendezvous(peer_id, iov, info, op, source, ack);
            }
            Body::Prefetch { token, .. } => {
                self.announcement_taken(peer_id);
                self.redirect_prefetch(token, iov, info);
            }
            Body::Lost { why, .. } => {
                self.peers.note_sweepable(true);
                info = info.with_stored(0);
                let src = self.peers[peer_id].addr();
                self.complete_recv(&info, src, Some(Fault::Link(why)));
            }
        }
        if orphan {
            self.release_service_address(peer_id);
        }
    }

    fn peek(&mut self, op: &RecvOp<'_>, space: Space) {
        let found = self.find_unexpected(space, receives::wanted(op));
        let mut completion = Completion {
            tag: op.tag,
            fault: Some(Fault::NoMessage),
            ..Completion::new(Kind::Recv, op.ctx, op.flags.into())
        };
        if let Some(key) = found {
            let claim = op.flags.contains(RecvFlags::CLAIM);
            if let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().get_mut(key) {
                completion.fault = None;
                completion.len = usize::try_from(message.len()).unwrap_or(usize::MAX);
                completion.tag = message.tag();
                completion.data = message.data().unwrap_or(0);
                completion.flags.set(CompletionFlags::DATA, message.data().is_some());
                let peer_id = message.peer();
                completion.src = self.peers[peer_id].addr();
            }
            if planted!(Bug::ClaimForgotten, claim, false) {
                self.incoming.matcher_mut(space).claim(key, op.ctx.ptr);
            }
            if planted!(Bug::PeekTakes, op.flags.contains(RecvFlags::DISCARD), true) {
                self.discard(space, key);
            }
        }
        self.completions.push(completion);
    }

    fn take_claimed(&mut self, op: &RecvOp<'_>, space: Space) -> Result<(), Error> {
        let key = self.incoming.matcher_mut(space).take_claim(op.ctx.ptr).ok_or(Error::NothingClaimed)?;
        if !op.flags.contains(RecvFlags::DISCARD) {
            self.take_unexpected(space, key, op);
            return Ok(());
        }
        let src = self.discard(space, key);
        self.completions.push(Completion { tag: op.tag, src, ..Completion::new(Kind::Recv, op.ctx, op.flags.into()) });
        Ok(())
    }

    /// Drops a message as if it had been received. Returns its source.
    pub(crate) fn discard(&mut self, space: Space, key: u32) -> Addr {
        let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().remove(key) else {
            cannot_happen!("a message that was found waits");
            return ADDR_NONE;
        };
        let (peer_id, orphan) = (message.peer(), message.is_orphan());
        let src = self.peers[peer_id].addr();
        match message.into_body() {
            Body::Eager { bytes, ack } => {
                self.eager_taken(peer_id, bytes.len(), orphan);
                if let Some(op) = ack {
                    self.queue_ack(peer_id, op);
                }
            }
            Body::Rendezvous { op, .. } => {
                self.announcement_taken(peer_id);
                self.queue_ack(peer_id, op);
            }
            // The bytes are dropped when they have arrived, and acknowledged then.
            Body::Prefetch { .. } => self.announcement_taken(peer_id),
            Body::Lost { .. } => self.peers.note_sweepable(true),
        }
        if orphan {
            self.release_service_address(peer_id);
        }
        src
    }

    /// Ends a posted receive without a message.
    pub(crate) fn end_posted(&mut self, space: Space, key: u32, fault: Fault) {
        let matcher = self.incoming.matcher_mut(space);
        let posted = planted!(Bug::CancelLeaves, matcher.take_posted(key), matcher.posted().get(key).copied());
        let Some(posted) = posted else { return cannot_happen!("a receive that ends is posted") };
        let info = self.incoming.receives().retire(space, &posted);
        self.complete_recv(&info, ADDR_NONE, Some(fault));
    }

    /// Takes memory for a message of `len` bytes from a receive of this engine or of the pool. None: the
    /// message must wait.
    #[inline]
    fn receive_for(
        &mut self,
        space: Space,
        src: Addr,
        tag: u64,
        data: Option<u64>,
        len: u64,
    ) -> Option<(IovList, RecvInfo)> {
        match self.incoming.matcher_mut(space).arrived(src, tag) {
            Some(key) => Some(self.incoming.receives().take(space, key, tag, data, len)),
            None if self.incoming.draws() && space != Space::Group => self.draw(space, src, tag, data, len),
            None => None,
        }
    }

    /// The source by which receives name a message's sender, after changes of the book were applied.
    #[inline]
    fn source_of(&mut self, space: Space, peer_id: PeerId) -> Addr {
        self.follow_book();
        if space == Space::Group { peer_id.as_source() } else { self.peers[peer_id].addr() }
    }

    /// Gives waiting messages of a peer to receives that name its address, which has become known.
    #[cold]
    pub(crate) fn match_again(&mut self, peer_id: PeerId) {
        for space in Space::OF_CLIENT {
            let theirs = |message: &Unexpected| message.peer() == peer_id && !message.is_claimed();
            let keys: Vec<u32> = self
                .incoming
                .matcher_mut(space)
                .unexpected()
                .iter()
                .filter_map(|(key, message)| theirs(message).then_some(key))
                .collect();
            for key in keys {
                let (src, Some(message)) =
                    (self.peers[peer_id].addr(), self.incoming.matcher_mut(space).unexpected().get(key))
                else {
                    continue;
                };
                let (tag, data, len) = (message.tag(), message.data(), message.len());
                if let Some(posted) = self.incoming.matcher_mut(space).arrived(src, tag) {
                    let (iov, info) = self.incoming.receives().take(space, posted, tag, data, len);
                    if let Some(message) = self.incoming.matcher_mut(space).unexpected_mut().remove(key) {
                        self.deliver_unexpected(message, iov, info);
                    }
                } else if self.incoming.draws() {
                    self.draw_for_waiting(space, key);
                }
            }
        }
    }

    /// Adds the completion of a received message.
    #[inline]
    pub(crate) fn received(&mut self, info: &RecvInfo, peer_id: PeerId) {
        let src = self.peers[peer_id].addr();
        // A truncated message is reported as such, even if its source is a stranger.
        let stranger = src == ADDR_NONE && self.source_errors && info.is_whole();
        self.complete_recv(info, src, stranger.then(|| Fault::Stranger(peer_id.number())));
    }

    /// Adds the completion of a receive, with its message or an error.
    #[inline]
    pub(crate) fn complete_recv(&mut self, info: &RecvInfo, src: Addr, fault: Option<Fault>) {
        let mut completion = info.completion(src, fault);
        match info.receiver() {
            Receiver::Single => {}
            Receiver::Multi(buffer) => completion.flags |= self.end_delivery(buffer),
            Receiver::Collective => {
                let fault = completion.fault.filter(|fault| !matches!(fault, Fault::Stranger(_)));
                return self.end_transfer(completion.ctx, fault);
            }
        }
        self.completions.push(completion);
    }

    // ---- arrivals ----------------------------------------------------------------------------

    /// The fast path of [`crate::nic::Sink::message`]: an eager message that is the next one of its peer and needs
    /// no acknowledgement. It must fit the single piece of a posted plain receive. Returns true if it was
    /// received, and false if this did nothing.
    #[inline(always)]
    pub(crate) fn receive_eager_fast(&mut self, link: LinkId, bytes: &[u8]) -> bool {
        let Some((head, mut rest)) = bytes.split_first_chunk::<8>() else { return false };
        let [what, flags, _, _, seq @ ..] = *head;
        let Some(peer_id) = self.links.carried_by(link) else { return false };
        let Some(peer) = self.peers.get_mut(peer_id) else { return false };
        if what != kind::EAGER || flags & !(F_TAGGED | F_DATA) != 0 || !peer.is_next(u32::from_le_bytes(seq)) {
            return false;
        }
        let (mut tag, mut data) = (0, 0);
        if flags & F_TAGGED != 0 {
            let Some((word, others)) = rest.split_first_chunk::<8>() else { return false };
            (tag, rest) = (u64::from_le_bytes(*word), others);
        }
        if flags & F_DATA != 0 {
            let Some((word, others)) = rest.split_first_chunk::<8>() else { return false };
            (data, rest) = (u64::from_le_bytes(*word), others);
        }
        let cost = rest.len() as u64 + EAGER_COST;
        let matcher = self.incoming.matcher_mut(Space::of_client(flags & F_TAGGED != 0));
        let src = peer.addr();
        let Some(key) = matcher.arrived(src, tag) else { return false };
        let Some(posted) = matcher.posted().get(key) else { return false };
        if posted.multi.is_some()
            || posted.pieces.is_some()
            || posted.piece.len() < rest.len()
            || peer.rx_used() + cost > self.config.window_bytes as u64
            || (src == ADDR_NONE && self.checks_strangers)
        {
            return false;
        }
        posted.piece.write(rest);
        let mut told_flags = CompletionFlags::empty();
        told_flags.set(CompletionFlags::TAGGED, flags & F_TAGGED != 0);
        told_flags.set(CompletionFlags::DATA, flags & F_DATA != 0);
        self.completions.push(Completion {
            len: rest.len(),
            buf: posted.piece.as_ptr() as usize,
            data,
            tag,
            src,
            ..Completion::new(Kind::Recv, posted.ctx, told_flags)
        });
        matcher.posted_mut().drop_item(key);
        peer.message_taken();
        peer.use_window(cost);
        peer.count_message(Direction::Received, cost);
        peer.owe_credit(cost);
        if peer.credit_owed() >= self.config.window_quarter() {
            self.reuse_window(peer_id);
        }
        true
    }

    /// Handles EAGER.
    pub(crate) fn on_eager(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let space = Space::of_head(flags);
        if space == Space::Group && flags & F_ACK != 0 {
            return Err(Violation);
        }
        let tag = if space == Space::Msg { 0 } else { r.take::<U64>().ok_or(Violation)?.get() };
        let data = if flags & F_DATA != 0 { Some(r.take::<U64>().ok_or(Violation)?.get()) } else { None };
        let mut ack = if flags & F_ACK != 0 { Some(r.take::<[U32; 2]>().ok_or(Violation)?[0].get()) } else { None };
        if planted!(Bug::AckBeforeMatch, flags & F_ARRIVAL != 0, true)
            && let Some(op) = ack.take()
        {
            self.queue_ack(peer_id, op);
        }
        let payload = r.rest();
        self.admit_eager(peer_id, payload.len())?;
        let src = self.source_of(space, peer_id);
        let Some((iov, info)) = self.receive_for(space, src, tag, data, payload.len() as u64) else {
            if space == Space::Group && self.reception(peer_id, tag)? == Reception::Discarded {
                self.return_window(peer_id, payload.len());
                return self.discarded(peer_id, tag);
            }
            let body = Body::Eager { bytes: Box::from(payload), ack };
            let message = Unexpected::new(peer_id, tag, data, body);
            self.keep_unexpected(space, message, src);
            return Ok(());
        };
        self.return_window(peer_id, payload.len());
        mem::scatter(&iov, 0, payload);
        self.received(&info, peer_id);
        if let Some(op) = ack {
            self.queue_ack(peer_id, op);
        }
        Ok(())
    }

    /// Charges an eager message to the peer's window. A message beyond the window is a violation.
    #[inline]
    pub(crate) fn admit_eager(&mut self, peer_id: PeerId, payload_bytes: usize) -> Result<(), Violation> {
        let cost = self.charge_window(peer_id, payload_bytes as u64)?;
        self.peers[peer_id].count_message(Direction::Received, cost);
        Ok(())
    }

    /// Charges a payload to the peer's window. Returns its cost.
    #[inline(always)]
    fn charge_window(&mut self, peer_id: PeerId, payload_bytes: u64) -> Result<u64, Violation> {
        let window = self.config.window_bytes as u64;
        let peer = &mut self.peers[peer_id];
        let cost = payload_bytes.checked_add(EAGER_COST).ok_or(Violation)?;
        if peer.rx_used().checked_add(cost).is_none_or(|used| used > window) {
            return Err(Violation);
        }
        peer.use_window(cost);
        Ok(cost)
    }

    pub(crate) fn on_rts(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let rts: Rts = r.take().ok_or(Violation)?;
        let mut source = r.take_iov(rts.iov_count.get()).ok_or(Violation)?;
        let len = rts.len.get();
        let described = wire::described_bytes(&source);
        if !source.is_empty() && described != Some(len) {
            return Err(Violation);
        }
        if !self.peers[peer_id].has(PathFlags::GET) && !self.maps_source(peer_id, &source) {
            source = Vec::new();
        }
        let space = Space::of_head(flags);
        let tag = if space == Space::Msg { 0 } else { rts.tag.get() };
        let data = planted!(Bug::DataDropped, flags & F_DATA != 0, false).then_some(rts.data.get());
        let (op, ack) = (rts.op.get(), flags & F_ACK != 0);
        let peer = &mut self.peers[peer_id];
        peer.count_rendezvous(Direction::Received, len);
        let src = self.source_of(space, peer_id);
        if flags & F_FOLLOWS != 0 {
            if space == Space::Group
                || !self.peers[peer_id].has(PathFlags::PUSH_FOLLOWS)
                || !source.is_empty()
                || len == 0
            {
                return Err(Violation);
            }
            self.charge_window(peer_id, len)?;
            let token = match self.receive_for(space, src, tag, data, len) {
                Some((iov, info)) => self.receive_followed(peer_id, iov, info, (op, ack), len),
                None => {
                    self.admit_announcement(peer_id, &mut source)?;
                    let message =
                        Unexpected::new(peer_id, tag, data, Body::Rendezvous { op, len, source: Vec::new(), ack });
                    let key = self.keep_unexpected(space, message, src);
                    self.start_prefetch(peer_id, ShortAnnouncement::new(space, key, op), len, ack)
                }
            };
            return self.open_announced(peer_id, token);
        }
        if let Some((iov, info)) = self.receive_for(space, src, tag, data, len) {
            self.start_rendezvous(peer_id, iov, info, op, source, ack);
            return Ok(());
        }
        if space == Space::Group && self.reception(peer_id, tag)? == Reception::Discarded {
            self.queue_ack(peer_id, op);
            return self.discarded(peer_id, tag);
        }
        self.admit_announcement(peer_id, &mut source)?;
        let ahead = space != Space::Group
            && source.is_empty()
            && len > 0
            && len <= u64::from(self.peers[peer_id].eager_bytes());
        let body = Body::Rendezvous { op, len, source, ack };
        let message = Unexpected::new(peer_id, tag, data, body);
        let key = self.keep_unexpected(space, message, src);
        if ahead {
            self.note_announcement(peer_id, ShortAnnouncement::new(space, key, op));
        }
        Ok(())
    }

    /// Starts the transfer of a followed message for a receive. Its bytes go into the receive's buffer directly, unless
    /// that is shorter.
    fn receive_followed(
        &mut self,
        peer_id: PeerId,
        iov: IovList,
        info: RecvInfo,
        (op, ack): (u32, bool),
        len: u64,
    ) -> TransferId {
        let bytes = usize::try_from(len).unwrap_or(usize::MAX);
        let kind = TransferKind::Recv { info, op, ack };
        if info.stored() == bytes {
            self.return_window(peer_id, bytes);
            let iov = mem::slice(&iov, 0, bytes);
            return self.outgoing.start(&mut self.peers[peer_id], Transfer::new(peer_id, kind, iov, Vec::new(), len));
        }
        self.start_staged(peer_id, kind, len, Some(iov))
    }

    /// Opens the window that the message under way announces, for a transfer.
    pub(crate) fn open_announced(&mut self, peer_id: PeerId, token: TransferId) -> Result<(), Violation> {
        let seq = self.peers[peer_id].last_taken();
        self.outgoing.open(token, WindowId::Announced(seq));
        self.peers.queues(peer_id).open_announced(seq, token)
    }

    /// Counts an announced message against the limits of its peer, and shortens its descriptor if many wait.
    pub(crate) fn admit_announcement(&mut self, peer_id: PeerId, source: &mut Vec<RemoteIov>) -> Result<(), Violation> {
        let peer = &mut self.peers[peer_id];
        let announced = peer.take(Quota::Announced, 1) as usize;
        if announced > UNMATCHED_LIMIT {
            return Err(Violation);
        }
        if source.len() > SHORT_LIST && announced > LONG_LISTS {
            // The peer is asked to push these bytes.
            *source = Vec::new();
        }
        if peer.addr() == ADDR_NONE {
            self.account(peer_id);
            if self.strangers_exceed() {
                self.peers.activate(peer_id);
            }
        }
        Ok(())
    }

    /// Notes that an announced message that waited here was taken.
    pub(crate) fn announcement_taken(&mut self, peer_id: PeerId) {
        let peer = &mut self.peers[peer_id];
        peer.give_back(Quota::Announced, 1);
        if peer.addr() == ADDR_NONE {
            self.account(peer_id);
        }
    }

    /// Keeps a message that matched no receive.
    fn keep_unexpected(&mut self, space: Space, message: Unexpected, src: Addr) -> u32 {
        self.peers[message.peer()].count_unexpected(WaitEvent::Begun);
        self.incoming.matcher_mut(space).keep(message, src)
    }

    /// Fetches the payload of a matched message, or requests it.
    pub(crate) fn start_rendezvous(
        &mut self,
        peer_id: PeerId,
        iov: IovList,
        info: RecvInfo,
        op: u32,
        mut source: Vec<RemoteIov>,
        ack: bool,
    ) {
        if info.stored() == 0 {
            self.received(&info, peer_id);
            return self.queue_ack(peer_id, op);
        }
        let want = info.stored() as u64;
        let want = planted!(Bug::RendezvousShort, want, want - u64::from(want > 1));
        truncate_remote(&mut source, want);
        let direct = !source.is_empty();
        let iov = mem::slice(&iov, 0, usize::try_from(want).unwrap_or(info.stored()));
        let token = self.outgoing.start(
            &mut self.peers[peer_id],
            Transfer::new(peer_id, TransferKind::Recv { info, op, ack }, iov, source, want),
        );
        self.peers.defer_matched(peer_id, if direct { BulkOp::Fetch(token) } else { BulkOp::RequestPush(token) });
    }

    /// Notes that a message that waited here was taken. If it came over an earlier link, its share of the
    /// window belongs to the next link.
    pub(crate) fn eager_taken(&mut self, peer_id: PeerId, payload_bytes: usize, orphan: bool) {
        self.peers.note_sweepable(orphan);
        let peer = &mut self.peers[peer_id];
        if peer.is_in_use() {
            self.return_window(peer_id, payload_bytes);
        } else {
            peer.free_window(payload_bytes as u64 + EAGER_COST);
            self.account(peer_id);
        }
    }

    /// Returns the share of an eager message's payload in the window, in portions.
    #[inline(always)]
    pub(crate) fn return_window(&mut self, peer_id: PeerId, payload_bytes: usize) {
        let peer = &mut self.peers[peer_id];
        peer.owe_credit(payload_bytes as u64 + EAGER_COST);
        planted!(Bug::CreditTwice, peer.owe_credit(EAGER_COST));
        if peer.credit_owed() >= self.config.window_quarter() {
            self.reuse_window(peer_id);
        }
    }

    /// Uses a free portion of the window: first for messages that were announced because the window was full.
    /// The rest is returned to the peer.
    #[cold]
    fn reuse_window(&mut self, peer_id: PeerId) {
        self.prefetch(peer_id);
        if self.peers[peer_id].credit_owed() >= self.config.window_quarter() {
            self.send_window(peer_id);
        }
    }

    #[cold]
    pub(crate) fn send_window(&mut self, peer_id: PeerId) {
        let owed = self.take_owed(peer_id);
        if owed == 0 {
            return;
        }
        let mut w = Short::new(kind::CREDIT, 0);
        w.put(&U64::new(planted!(Bug::CreditLost, owed, owed - EAGER_COST.min(owed))));
        self.peers.defer_message(peer_id, &w);
    }
}

/// Cuts a list of remote pieces to `want` bytes.
fn truncate_remote(pieces: &mut Vec<RemoteIov>, mut want: u64) {
    for piece in pieces.iter_mut() {
        piece.len = piece.len.min(want);
        want -= piece.len;
    }
    pieces.retain(|piece| piece.len > 0);
}
