//! Bulk data of sends, writes and reads: the bytes that move separately from the message that announces them.
//!
//! Place in the data flow: `recv.rs` and `rma.rs` make a transfer ([`crate::engine::ops::Transfer`]) and queue
//! it. This file gives it to the device as a get, a put or a push. The device's report ends the transfer here,
//! and the operation with it.
//!
//! Two sides copy faster than one. If the device offers a [`Share`] of a get or put, the peer is asked to
//! ASSIST. Its device then moves a part of the same bytes at the same time. The side that fetches or serves
//! remains responsible: it alone knows when all bytes have moved, and sends FIN. An operation ends when FIN has
//! arrived and its own device no longer uses its memory. A peer that may be fetching from this side is not asked.
//!
//! If a device pushes in order with messages (`push_follows`), the bytes of a long write or message follow their
//! announcement at once ([`WindowId::Announced`]). The target drops those of a write that it refuses. Those of a
//! message are charged to the eager window, because they may have to wait for a receive.

use smallvec::SmallVec;
use zerocopy::little_endian::{U32, U64};

use crate::api::{Fault, Kind};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::ops::{Phase, TransferKind};
use crate::engine::peer::{Answer, BulkOp, PathFlags, Peer};
use crate::engine::registrations::{Holder, Registrations};
use crate::engine::rma::part_iov;
use crate::engine::state::Violation;
use crate::ids::{DeviceContext, OpId, PeerId, TransferId, WindowId};
use crate::mem::{self, Iov, IovList};
use crate::nic::{DirectCopy, Full, LinkError, LinkId, Nic, Part, RemoteIov, Share};
use crate::wire::{self, Assist, Cts, F_PLACE, Op, Reader, Short, WireIov, kind};

/// Limit of memory pieces for which help is requested, so that the message stays short.
const ASSIST_PIECES: usize = 2;

fn describable(iov: &[Iov], mailbox_bytes: usize) -> bool {
    iov.len() <= wire::MAX_REMOTE_IOV && 72 + iov.len() * size_of::<WireIov>() <= mailbox_bytes
}

/// Whether memory of this side is announced to a peer's device. The device can reach it, a message can describe
/// it, and it is registered if necessary. It stays registered until `holder` has ended.
pub(crate) fn reachable<N: Nic>(
    nic: &mut N,
    registrations: &mut Option<Box<Registrations>>,
    peer: &Peer,
    holder: Holder,
    iov: &[Iov],
) -> bool {
    if !peer.has(PathFlags::GET.union(PathFlags::PUT)) {
        return false;
    }
    if !N::REGISTERS || !peer.has(PathFlags::REGISTERED) {
        return true;
    }
    describable(iov, peer.mailbox_bytes() as usize)
        && registrations.as_mut().is_some_and(|registrations| registrations.register(nic, holder, iov))
}

/// Memory of this side for the peer's device. Empty (not directly reachable) if the list is too long for a
/// message.
pub(crate) fn wire_iov(iov: &[Iov], mailbox_bytes: usize) -> SmallVec<[WireIov; 2]> {
    if !describable(iov, mailbox_bytes) {
        return SmallVec::new();
    }
    iov.iter().map(|i| WireIov { addr: i.addr().into(), len: (i.len() as u64).into() }).collect()
}

/// `place`: the address of the memory, if the peer may copy the bytes there.
fn cts_message(op: Op, window: TransferId, len: u64, place: Option<u64>) -> Short {
    let mut w = Short::new(kind::CTS, if place.is_some() { F_PLACE } else { 0 });
    w.put(&Cts { op, window: window.to_wire().into(), len: len.into() });
    place.into_iter().for_each(|address| w.put(&U64::new(address)));
    w
}

impl<N: Nic> Engine<N> {
    /// Gives queued bulk operations to the device, until it is full. Returns whether it accepted any.
    #[inline(never)] // For the reason given at `run_peer`.
    pub(crate) fn run_bulk(&mut self, peer_id: PeerId) -> bool {
        let mut moved = false;
        while let Some(work) = self.state.peers.queues(peer_id).pop_bulk() {
            let taken = match &work {
                BulkOp::Transfer(token) | BulkOp::Fetch(token) => self.run_transfer(peer_id, *token),
                BulkOp::RequestPush(token) => self.run_push_request(peer_id, *token),
                BulkOp::Push { op, part, window, len, place } => {
                    self.run_push(peer_id, (*op, *part), *window, *len, *place)
                }
                BulkOp::Assist { op, part, share, len, far } => self.run_assist(peer_id, *op, *part, *share, *len, far),
            };
            if taken.is_err() {
                self.state.peers.queues(peer_id).retry_bulk(work);
                break;
            }
            moved = true;
            self.state.bulk_started |= !matches!(work, BulkOp::RequestPush(_));
        }
        moved
    }

    /// Asks the peer to push the bytes of a message.
    fn run_push_request(&mut self, peer_id: PeerId, token: TransferId) -> Result<(), Full> {
        let Some(x) = self.state.outgoing.transfer(token) else {
            cannot_happen!("a transfer lasts until the peer has pushed its bytes");
            return Ok(());
        };
        let (TransferKind::Recv { op, .. } | TransferKind::Prefetch { op, .. }) = x.kind() else {
            cannot_happen!("pushes that are requested are those of messages");
            return Ok(());
        };
        let len = x.expect();
        let place = self.state.mapped_place(peer_id, token);
        let request = cts_message(Op { op: op.into(), part: 0.into() }, token, len, place);
        self.send_sequenced(peer_id, request.bytes(), &[])?;
        self.state.outgoing.open(token, WindowId::Transfer(token));
        Ok(())
    }

    fn run_transfer(&mut self, peer_id: PeerId, token: TransferId) -> Result<(), Full> {
        let Some(link) = self.state.peers[peer_id].link() else {
            cannot_happen!("deferred work is done on a link that is up");
            return Ok(());
        };
        if self.state.peers[peer_id].has_mapped_regions() && self.receive_mapped(peer_id, token) {
            return Ok(());
        }
        if N::REGISTERS
            && self.state.peers[peer_id].has(PathFlags::REGISTERED)
            && !self.register_transfer(token)
            && self.state.by_push(token)
        {
            return Ok(());
        }
        let context = DeviceContext::Transfer(token).to_number();
        let sharing = self.state.peers[peer_id].sharing();
        let Some(x) = self.state.outgoing.transfer(token) else {
            cannot_happen!("a transfer that waits for the device is in the table");
            return Ok(());
        };
        let (put, op) = match x.kind() {
            TransferKind::Recv { op, .. } => (false, Op { op: op.into(), part: 0.into() }),
            TransferKind::Write { op, .. } => (false, op),
            TransferKind::Serve { put: true, op, .. } => (true, op),
            TransferKind::Serve { window, .. } => return self.nic.push(link, window, 0, x.iov(), context),
            TransferKind::ReadHome { .. } | TransferKind::Prefetch { .. } => return Ok(()),
        };
        let part = Part::Owner(sharing);
        let copy = DirectCopy { put, local: x.iov(), remote: x.remote(), part, ctx: context };
        if let Some(share) = self.nic.copy(link, &copy)? {
            self.ask_to_assist(peer_id, token, share, op);
        }
        Ok(())
    }

    /// Registers this side's memory of a transfer, if the device accesses it. Returns false if that fails.
    fn register_transfer(&mut self, token: TransferId) -> bool {
        let (Some(x), Some(registrations)) = (self.state.outgoing.transfer(token), &mut self.state.registrations)
        else {
            return true;
        };
        match x.kind() {
            TransferKind::Recv { .. } | TransferKind::Write { .. } | TransferKind::Serve { put: true, .. } => {
                registrations.register(&mut self.nic, Holder::Transfer(token), x.iov())
            }
            TransferKind::Serve { .. } | TransferKind::ReadHome { .. } | TransferKind::Prefetch { .. } => true,
        }
    }

    /// Asks the peer to help with a transfer. A request that cannot leave now, or would be long, is omitted.
    fn ask_to_assist(&mut self, peer_id: PeerId, token: TransferId, share: Share, op: Op) {
        let Some(x) = self.state.outgoing.transfer(token) else {
            return cannot_happen!("a transfer that was started is in the table");
        };
        if x.iov().len() > ASSIST_PIECES {
            return;
        }
        let pieces = wire_iov(x.iov(), self.state.peers[peer_id].mailbox_bytes() as usize);
        let mut w = Short::new(kind::ASSIST, 0);
        let iov_count = U32::new(u32::try_from(pieces.len()).unwrap_or(0));
        w.put(&Assist { op, share: share.0.into(), iov_count, len: x.expect().into() });
        for piece in &pieces {
            w.put(piece);
        }
        let _ = self.send_sequenced(peer_id, w.bytes(), &[]);
    }

    fn run_assist(
        &mut self,
        peer_id: PeerId,
        index: OpId,
        part: u32,
        share: Share,
        len: u64,
        far: &[RemoteIov],
    ) -> Result<(), Full> {
        let Some(link) = self.state.peers[peer_id].link() else { return Ok(()) };
        // If the operation has ended meanwhile, the peer has moved all bytes by itself.
        let Some(op) = self.state.outgoing.op_mut(index).filter(|op| op.peer() == peer_id && op.awaits(part)) else {
            return Ok(());
        };
        let iov = part_iov(op, part, len);
        // The receive may be shorter than the send, and want only a part of its bytes.
        if mem::total_len(&iov) as u64 != len {
            return Ok(());
        }
        // The peer knows only registered memory. A request for other memory is ignored.
        if N::REGISTERS
            && self
                .state
                .registrations
                .as_ref()
                .is_some_and(|registrations| !registrations.is_registered(Holder::Part { op: index, part }))
        {
            return Ok(());
        }
        let (put, ctx) = (op.kind() != Kind::Read, DeviceContext::Assist(index).to_number());
        self.nic.copy(link, &DirectCopy { put, local: &iov, remote: far, part: Part::Helper(share), ctx })?;
        op.assist_begins();
        Ok(())
    }

    fn run_push(
        &mut self,
        peer_id: PeerId,
        (index, part): (OpId, u32),
        window: u64,
        len: u64,
        place: Option<u64>,
    ) -> Result<(), Full> {
        let Some(link) = self.state.peers[peer_id].link() else { return Ok(()) };
        let Some(op) = self.state.outgoing.op(index).filter(|op| op.peer() == peer_id) else { return Ok(()) };
        let iov = part_iov(op, part, len);
        if let Some(address) = place
            && self.send_mapped(peer_id, index, window, address, &iov)?
        {
            return Ok(());
        }
        self.nic.push(link, window, 0, &iov, DeviceContext::Push(index).to_number())?;
        planted!(Bug::PushStillReads, self.state.finish_early(index));
        Ok(())
    }
}

impl State {
    /// The behaviour of the planted bug `PushStillReads`: the operation ends while the device still pushes.
    fn finish_early(&mut self, index: OpId) {
        if let Some(op) = self.outgoing.op_mut(index) {
            op.await_nothing();
            self.finish_op(index);
        }
    }
}

impl<N: Nic> Engine<N> {
    /// Sends the announcement `head` of a part, and pushes the part's bytes behind it.
    pub(crate) fn announce_push(
        &mut self,
        link: LinkId,
        peer_id: PeerId,
        (index, part): (OpId, u32),
        head: &[u8],
        iov: &[Iov],
    ) -> Result<(), Full> {
        let peer = &mut self.state.peers[peer_id];
        let window = peer.announcing();
        let pushed = if peer.queues().is_some_and(|queues| queues.has_bulk()) {
            self.nic.send(link, head, &[])?;
            false
        } else {
            self.nic.announce(link, head, window, iov, DeviceContext::Push(index).to_number())?
        };
        if let Some(op) = self.state.outgoing.op_mut(index) {
            op.push_begins();
        }
        if !pushed {
            let len = mem::total_len(iov) as u64;
            self.state.peers.defer_bulk(peer_id, BulkOp::Push { op: index, part, window, len, place: None });
        }
        Ok(())
    }
}

impl State {
    /// The transfer to which bytes for `window` belong. `None`: the bytes belong to a refused write and must be
    /// dropped. All bytes for a window that this side has named arrive before its transfer ends. Other bytes
    /// are therefore a violation: the window was never named, or it is full, or a device of this side moves the
    /// bytes.
    fn pushed_into(&mut self, peer_id: PeerId, window: WindowId) -> Result<Option<TransferId>, Violation> {
        let token = match window {
            WindowId::Transfer(id) => Some(id),
            WindowId::Announced(seq) => self.peers[peer_id].announced_window(seq)?,
        };
        let Some(token) = token else { return Ok(None) };
        let takes = self.outgoing.transfer(token).is_some_and(|x| x.peer() == peer_id && x.takes(window));
        if takes { Ok(Some(token)) } else { Err(Violation) }
    }

    /// The memory for pushed bytes. `None`: they must be dropped.
    pub(crate) fn room_for(
        &mut self,
        peer_id: PeerId,
        window: u64,
        offset: u64,
        len: usize,
    ) -> Result<Option<IovList>, Violation> {
        let window = WindowId::from_wire(window).ok_or(Violation)?;
        let Some(token) = self.pushed_into(peer_id, window)? else { return Ok(None) };
        let Some(transfer) = self.outgoing.transfer(token) else { return Ok(None) };
        let end = offset.checked_add(len as u64).ok_or(Violation)?;
        let start = usize::try_from(offset).map_err(|_| Violation)?;
        if end <= transfer.expect() { Ok(Some(mem::slice(transfer.iov(), start, len))) } else { Err(Violation) }
    }

    /// Notes that bytes of a push have been stored or dropped.
    pub(crate) fn push_placed(&mut self, peer_id: PeerId, window: u64, len: usize) {
        let Some(window) = WindowId::from_wire(window) else { return };
        let Ok(Some(token)) = self.pushed_into(peer_id, window) else { return };
        let Some(transfer) = self.outgoing.transfer(token) else { return };
        transfer.bytes_placed(len as u64);
        if transfer.placed() < transfer.expect() {
            return;
        }
        self.transfer_arrived(token);
        if let WindowId::Announced(seq) = window {
            self.peers.close_announced(peer_id, seq);
        }
    }

    /// The peer has copied the bytes of a message to the place that CTS named.
    #[cold]
    pub(crate) fn on_placed(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let window: U64 = r.take().ok_or(Violation)?;
        let id = WindowId::from_wire(window.get()).ok_or(Violation)?;
        let token = self.pushed_into(peer_id, id)?.ok_or(Violation)?;
        let transfer = self.outgoing.transfer(token).ok_or(Violation)?;
        let is_message = matches!((id, transfer.kind()), (WindowId::Transfer(_), TransferKind::Recv { .. }));
        if !is_message || transfer.placed() > 0 {
            return Err(Violation);
        }
        let len = usize::try_from(transfer.expect()).map_err(|_| Violation)?;
        self.push_placed(peer_id, window.get(), len);
        Ok(())
    }

    /// Asks the peer to push the bytes of a transfer.
    pub(crate) fn queue_cts(&mut self, peer_id: PeerId, op: Op, transfer: TransferId, len: u64) {
        self.outgoing.open(transfer, WindowId::Transfer(transfer));
        self.peers.defer_message(peer_id, &cts_message(op, transfer, len, None));
    }

    pub(crate) fn on_cts(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let cts: Cts = r.take().ok_or(Violation)?;
        let place = if flags & F_PLACE != 0 { Some(r.take::<U64>().ok_or(Violation)?.get()) } else { None };
        let (index, part, len) = (OpId::new(cts.op.op.get()), cts.op.part.get(), cts.len.get());
        let path = self.peers[peer_id].path();
        let op = self.op_of(peer_id, index)?;
        match op.kind() {
            Kind::Send | Kind::Collective if op.phase() == Some(Phase::AwaitCts) && len <= op.len() => {
                op.push_requested(path.answer_to(op.flags()) != Answer::Nothing);
            }
            Kind::Write => {
                let sent = part < op.next_part() && op.pushing() < op.next_part();
                if !sent || op.remote().get(part as usize).is_none_or(|r| r.len != len) {
                    return Err(Violation);
                }
            }
            _ => return Err(Violation),
        }
        op.push_begins();
        self.peers.defer_bulk(peer_id, BulkOp::Push { op: index, part, window: cts.window.get(), len, place });
        Ok(())
    }

    /// Handles ASSIST: the peer asks for help with an operation of this side. The operation may have ended
    /// meanwhile, if the peer's device failed and its push overtook this message. Another operation may then
    /// have its number. The share has ended as well, so the help has no effect.
    pub(crate) fn on_assist(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let request: Assist = r.take().ok_or(Violation)?;
        let far = r.take_iov(request.iov_count.get()).ok_or(Violation)?;
        let described = wire::described_bytes(&far);
        let (index, part, len) = (OpId::new(request.op.op.get()), request.op.part.get(), request.len.get());
        if described != Some(len) {
            return Err(Violation);
        }
        let path = self.peers[peer_id].path();
        if let Ok(op) = self.op_of(peer_id, index)
            && op.awaits(part)
            && path.contains(if op.kind() == Kind::Read { PathFlags::GET } else { PathFlags::PUT })
        {
            self.peers
                .defer_bulk(peer_id, BulkOp::Assist { op: index, part, share: Share(request.share.get()), len, far });
        }
        Ok(())
    }

    /// Notes that the device no longer uses the memory of an operation that it helped to move.
    pub(crate) fn assist_done(&mut self, index: OpId) {
        let Some(op) = self.outgoing.op_mut(index) else {
            return cannot_happen!("an operation lasts until the device has moved its bytes");
        };
        op.assist_ends();
        self.finish_op(index);
    }

    /// Ends a transfer whose pushed bytes have all arrived.
    pub(crate) fn transfer_arrived(&mut self, token: TransferId) {
        let Some(mut x) = self.outgoing.end(&mut self.peers, token) else { return };
        match x.kind() {
            TransferKind::Recv { info, op, ack } => {
                if let Some(staged) = x.take_staged() {
                    let (memory, into) = staged.into_parts();
                    let bytes = memory.into_bytes();
                    mem::scatter(&into, 0, bytes.get(..info.stored()).unwrap_or(&bytes));
                    self.return_window(x.peer(), bytes.len());
                }
                self.received(&info, x.peer());
                if ack {
                    self.queue_ack(x.peer(), op);
                }
            }
            TransferKind::Prefetch { .. } => self.prefetch_arrived(x.peer(), token, x.kind(), x.take_staged()),
            TransferKind::Write { .. } => self.write_arrived(x.peer(), x.kind(), x.expect()),
            TransferKind::ReadHome { op } => {
                if let Ok(mine) = self.op_of(x.peer(), op) {
                    mine.answered();
                    mine.push_ends();
                    self.finish_op(op);
                }
            }
            // A peer cannot push into memory that is being read.
            TransferKind::Serve { .. } => {}
        }
    }

    /// Changes a transfer to a push through the device's own memory, because the device cannot reach the memory
    /// of one side. Returns true if the peer has been asked to push. Returns false if this side pushes, when
    /// the transfer is given to the device again.
    pub(crate) fn by_push(&mut self, token: TransferId) -> bool {
        // The device may have been full when the memory was registered for it.
        self.release_transfer(token);
        let Some(x) = self.outgoing.transfer(token) else {
            cannot_happen!("a transfer that waits for the device is in the table");
            return true;
        };
        let (peer_id, expect) = (x.peer(), x.expect());
        match x.kind() {
            TransferKind::Recv { op, .. } => {
                self.queue_cts(peer_id, Op { op: op.into(), part: 0.into() }, token, expect);
            }
            TransferKind::Write { op, .. } => self.queue_cts(peer_id, op, token, expect),
            TransferKind::Serve { op, key, window, parts, .. } => {
                x.set_kind(TransferKind::Serve { op, key, window, put: false, parts });
                return false;
            }
            TransferKind::ReadHome { .. } | TransferKind::Prefetch { .. } => {}
        }
        true
    }

    /// Handles the end of a get, a put, or a push that serves a read.
    pub(crate) fn transfer_done(&mut self, token: TransferId, result: Result<(), LinkError>) {
        self.release_transfer(token);
        // A link that was given up reports the ends of its transfers, which have failed, until it is closed.
        let Some(x) = self.outgoing.transfer(token) else { return };
        let (peer_id, what, expect) = (x.peer(), x.kind(), x.expect());
        match (result, what) {
            (Ok(()), TransferKind::Recv { info, op, .. }) => {
                self.outgoing.end(&mut self.peers, token);
                self.received(&info, peer_id);
                self.queue_ack(peer_id, op);
            }
            (Ok(()), TransferKind::Write { .. }) => {
                self.outgoing.end(&mut self.peers, token);
                self.write_arrived(peer_id, what, expect);
            }
            (Ok(()), TransferKind::Serve { .. }) => {
                self.outgoing.end(&mut self.peers, token);
                self.read_served(peer_id, what, expect);
            }
            // The receive has no writable memory. A push would fail as well.
            (Err(LinkError::Access), TransferKind::Recv { info, op, .. }) if self.target.is_no_memory(x.iov()) => {
                self.outgoing.end(&mut self.peers, token);
                let src = self.peers[peer_id].addr();
                self.complete_recv(&info.with_stored(0), src, Some(Fault::NoMemory));
                self.queue_ack(peer_id, op);
            }
            // Direct access failed although it was probed. Further bytes travel through the device's own
            // memory.
            (Err(LinkError::Access), TransferKind::Recv { .. } | TransferKind::Write { .. }) => {
                self.peers[peer_id].lose(PathFlags::GET);
                self.by_push(token);
            }
            (Err(LinkError::Access), TransferKind::Serve { put: true, .. }) => {
                self.peers[peer_id].lose(PathFlags::PUT);
                self.by_push(token);
                self.peers.defer_bulk(peer_id, BulkOp::Transfer(token));
            }
            // The link is about to end, and `down` cleans up.
            (_, _) => {}
        }
    }
}
