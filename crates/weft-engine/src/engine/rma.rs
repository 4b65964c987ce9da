//! Remote memory access: reads and writes of registered regions, executed by the target's engine.
//!
//! Place in the data flow, at the initiator: `Engine::write`/`read` → parts (one per remote piece) → WRITE,
//! WRITE_RTS, READ or READ_BULK → ACK, FIN, READ_DATA, or bytes in a window → completion. At the target, every
//! request is checked against [`Regions`](crate::engine::regions::Regions) (key, access, range) before a byte moves.
//!
//! A write is complete when the target has stored it, so delivery complete costs nothing extra. A short one whose
//! client names inject or transmit complete is complete when it has left. The target executes a short write when it
//! takes it, before all later messages. Immediate data travels with the last part. The target reports it when all parts
//! are stored ([`crate::engine::remote_events`]). A write to this endpoint itself sends nothing
//! ([`crate::engine::own`]).

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::{Access, Completion, Error, Fault, Kind, OpFlags, Region, RmaIov, RmaOp};
use crate::broken::cannot_happen;
use crate::engine::State;
use crate::engine::ops::{Transfer, TransferKind, TxOp};
use crate::engine::peer::{
    BulkOp, Deferred, Direction, PROMPT_REPLY_BYTES, PathFlags, Quota, REPLY_WINDOW_BYTES, REQUEST_LIMIT, reply_cost,
};
use crate::engine::registrations::Holder;
use crate::engine::remote_events::RemoteAccess;
use crate::engine::send::retain_memory;
use crate::engine::state::Violation;
use crate::engine::transfer::{reachable, wire_iov};
use crate::engine::{Engine, Started};
use crate::ids::{OpId, PeerId, TransferId, WindowId};
use crate::mem::{self, IovList};
use crate::nic::{Full, LinkError, LinkId, Nic, RemoteIov};
use crate::wire::{self, Bulk, F_DATA, F_MORE, HEADER_BYTES, Long, Op, Reader, RmaHead, Short, Status, Writer, kind};

/// The rights that a write and a read need.
pub(crate) const WRITE: Access = Access { read: false, write: true };
pub(crate) const READ: Access = Access { read: true, write: false };

/// Size of a READ.
const READ_ROOM: usize = size_of::<wire::Head>() + size_of::<RmaHead>();

impl<N: Nic> Engine<N> {
    /// Lets peers access `region`. Errors: `KeyInUse`.
    pub fn add_region(&mut self, region: Region) -> Result<(), Error> {
        let can_be_mapped = region.mapping.is_some() && self.state.config.offers_regions;
        if !self.state.target.regions().insert(region) {
            return Err(Error::KeyInUse);
        }
        if can_be_mapped {
            self.state.offer_regions();
        }
        Ok(())
    }

    /// Stops access of peers to a region. On return its memory is no longer used: pending transfers have ended,
    /// or the links of those that took too long were closed.
    pub fn remove_region(&mut self, key: u64) {
        /// Rounds of progress that pending transfers get: about a tenth of a second.
        const PATIENCE_ROUNDS: u32 = 100_000;
        let Some(region) = self.state.target.regions().remove(key) else { return };
        self.state.revoke_replies(key);
        for _ in 0..PATIENCE_ROUNDS {
            if !self.state.target.regions().is_busy(key) {
                break;
            }
            self.progress();
        }
        let uses = |x: &Transfer| match x.kind() {
            TransferKind::Write { key: k, .. } | TransferKind::Serve { key: k, .. } => k == key,
            _ => false,
        };
        for token in self.state.outgoing.transfers_where(uses) {
            if let Some(peer_id) = self.state.outgoing.transfer(token).map(|x| x.peer()) {
                self.state.fail_peer(peer_id, LinkError::Access);
            }
        }
        if let Some(mapping) = &region.mapping {
            mapping.revoke();
        }
        self.run_links();
        self.settle();
        self.state.target.regions().forget(key);
    }

    /// Lets each access to a region be reported. Peers therefore cannot map it any longer.
    pub fn watch_region(&mut self, key: u64) {
        if let Some(mapping) = self.state.target.regions().take_mapping(key) {
            mapping.revoke();
        }
    }

    /// Starts an RMA write. Errors: `Again` (as for a send), `NoSuchAddress`, `TooLong`, `Invalid` (lengths
    /// differ).
    pub fn write(&mut self, op: &RmaOp<'_>) -> Result<(), Error> {
        let (peer_id, len) = self.measure_rma(op)?;
        if self.state.peers[peer_id].is_at_hand() && self.write_at_hand(op, peer_id, len) {
            return Ok(());
        }
        if self.write_now(op, peer_id, len) {
            return Ok(());
        }
        if op.flags.must_leave() && op.remote.len() == 1 && !op.flags.contains(OpFlags::FENCE) {
            let peer = &self.state.peers[peer_id];
            if peer.link().is_none() || len <= u64::from(peer.rma_bytes()) {
                return self.inject_must_wait(peer_id, Kind::Write, op.ctx, op.flags);
            }
        }
        self.enqueue_rma(op, Kind::Write, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }

    /// Performs a write without a message. Returns false if it needs one.
    fn write_at_hand(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        match self.state.peers[peer_id].is_own() {
            true => self.write_own(op, peer_id, len),
            false => self.write_mapped(op, peer_id, len),
        }
    }

    /// The fast path of [`Engine::write`]: one piece that is sent eagerly, with no operation queued before it.
    /// Returns true if its bytes have left. Unless the write is then complete, the state for its acknowledgement is
    /// kept. Returns false if it has done nothing.
    fn write_now(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let [remote] = op.remote else { return false };
        let state = &mut self.state;
        let peer = &mut state.peers[peer_id];
        let Some(link) = peer.link() else { return false };
        let nameless = peer.leaves(op.flags);
        if !peer.tx_is_empty()
            || len > u64::from(peer.rma_bytes())
            || op.flags.contains(OpFlags::FENCE)
            || !(nameless || peer.may_ask(0, state.outgoing.request_limit()))
        {
            return false;
        }
        let number = if nameless { wire::NO_OP } else { state.outgoing.next_op().get() };
        if self
            .nic
            .send(
                link,
                write_head(number, 0, part_flags(op.flags, true), op.data, remote).with_seq(peer.tx_seq()),
                op.iov,
            )
            .is_err()
        {
            return false;
        }
        peer.message_sent();
        peer.count_access(Direction::Sent, len);
        if nameless {
            peer.begin_nameless();
            state.complete_write(op, len, None);
            return true;
        }
        let seq = peer.tx_seq().wrapping_sub(1);
        peer.take(Quota::Ops, 1);
        peer.take(Quota::Accesses, 1);
        let index = state.outgoing.push(peer, || TxOp::sent_write(op, peer_id, len));
        state.peers.await_confirmation(peer_id, seq, index);
        true
    }

    /// Starts an RMA read. Errors: `Again`, `NoSuchAddress`, `TooLong`, `Invalid` (lengths differ).
    pub fn read(&mut self, op: &RmaOp<'_>) -> Result<(), Error> {
        let (peer_id, len) = self.measure_rma(op)?;
        if self.state.peers[peer_id].has_mapped_regions() && self.read_mapped(op, peer_id, len) {
            return Ok(());
        }
        if self.read_now(op, peer_id, len) {
            return Ok(());
        }
        self.enqueue_rma(op, Kind::Read, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }

    /// The fast path of [`Engine::read`]: one piece whose bytes the answer carries, with no operation queued before it.
    /// Returns false if it has done nothing.
    fn read_now(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let [remote] = op.remote else { return false };
        let state = &mut self.state;
        let peer = &mut state.peers[peer_id];
        let Some(link) = peer.link() else { return false };
        let cost = reply_cost(len);
        if !peer.tx_is_empty()
            || len > u64::from(peer.rma_bytes())
            || op.flags.contains(OpFlags::FENCE)
            || !peer.may_ask(0, state.outgoing.request_limit())
            || peer.taken(Quota::Reading) + cost > REPLY_WINDOW_BYTES
        {
            return false;
        }
        let index = state.outgoing.next_op().get();
        if self.nic.send(link, read_head(index, 0, 0, remote).with_seq(peer.tx_seq()), &[]).is_err() {
            return false;
        }
        peer.message_sent();
        peer.count_access(Direction::Sent, len);
        peer.take(Quota::Reading, cost);
        peer.take(Quota::Ops, 1);
        peer.take(Quota::Accesses, 1);
        state.outgoing.push(peer, || TxOp::sent_read(op, peer_id, len));
        true
    }

    /// Checks a read or write apart from queue space. Errors: `NoSuchAddress`, `TooLong`, `Invalid`.
    pub fn check_rma(&mut self, op: &RmaOp<'_>) -> Result<(), Error> {
        self.measure_rma(op).map(|_| ())
    }

    /// Checks an operation. Returns its peer and its length in bytes.
    fn measure_rma(&mut self, op: &RmaOp<'_>) -> Result<(PeerId, u64), Error> {
        let len = mem::total_len(op.iov) as u64;
        let remote = op.remote.iter().try_fold(0u64, |sum, r| sum.checked_add(r.len)).ok_or(Error::Invalid)?;
        if len != remote || op.remote.is_empty() {
            return Err(Error::Invalid);
        }
        let inject_limit = self.state.config.inject_bytes as u64;
        if len > self.state.config.max_msg_bytes || (op.flags.contains(OpFlags::INJECT) && len > inject_limit) {
            return Err(Error::TooLong);
        }
        Ok((self.state.peer_for(op.dest)?, len))
    }

    #[inline(never)] // Its vectors would be on the stack below `run_peer`.
    fn enqueue_rma(&mut self, op: &RmaOp<'_>, kind: Kind, peer_id: PeerId, len: u64) -> Result<(), Error> {
        if kind == Kind::Read {
            let iov = SmallVec::from_slice(op.iov);
            return self.enqueue(peer_id, kind, || TxOp::queued_read(op, peer_id, iov, len));
        }
        let memory = retain_memory(op.iov, op.flags);
        self.enqueue(peer_id, kind, || TxOp::queued_write(op, peer_id, memory, len))
    }

    /// Sends parts of the read, write or atomic at the front of the TX queue, as many as can be sent now.
    pub(crate) fn start_rma(&mut self, index: OpId) -> Started {
        loop {
            let limit = self.state.outgoing.request_limit();
            let Some(op) = self.state.outgoing.queued(index) else { return Started::Sent };
            if op.fault().is_some() {
                op.skip_parts();
            }
            if op.unsent() == 0 {
                return Started::Sent;
            }
            if !self.state.peers[op.peer()].may_ask(op.pending(), limit) {
                return Started::Blocked;
            }
            let last = op.unsent() == 1;
            let started = match op.kind() {
                Kind::Write => self.start_write(index, last),
                Kind::Read => self.start_read(index, last),
                _ => self.start_atomic(index),
            };
            if started == Started::Blocked {
                return Started::Blocked;
            }
            if let Some(op) = self.state.outgoing.op_mut(index) {
                op.part_left();
                let (peer_id, len) =
                    (op.peer(), op.remote().get(op.next_part() as usize - 1).map_or(0, |part| part.len));
                let peer = &mut self.state.peers[peer_id];
                peer.message_sent();
                peer.count_access(Direction::Sent, len);
            }
        }
    }

    fn start_write(&mut self, index: OpId, last: bool) -> Started {
        let Some(op) = self.state.outgoing.queued(index) else { return Started::Blocked };
        let peer = &self.state.peers[op.peer()];
        let (Some(link), Some(remote)) = (peer.link(), op.remote().get(op.next_part() as usize)) else {
            return Started::Blocked;
        };
        let part = op.next_part();
        let iov = part_iov(op, part, remote.len);
        let bits = part_flags(op.flags(), last);
        let sent = if remote.len <= u64::from(peer.rma_bytes()) {
            let (peer_id, seq) = (op.peer(), peer.tx_seq());
            let mut head = write_head(index.get(), part, bits, op.data(), remote);
            let sent = self.nic.send(link, head.with_seq(seq), &iov);
            if sent.is_ok() {
                self.state.peers.await_confirmation(peer_id, seq, index);
            }
            sent
        } else {
            let holder = Holder::Part { op: index, part };
            let direct =
                !peer.pushes(remote.len) && reachable(&mut self.nic, &mut self.state.registrations, peer, holder, &iov);
            let source = if direct { wire_iov(&iov, peer.mailbox_bytes() as usize) } else { SmallVec::new() };
            let follows = source.is_empty() && peer.has(PathFlags::PUSH_FOLLOWS);
            let head = rma_head(index.get(), part, op.data(), remote);
            let (peer_id, seq, window) = (op.peer(), peer.tx_seq(), peer.announcing());
            if follows {
                let mut w = Short::new(kind::WRITE_RTS, bits);
                w.put(&head);
                put_bulk(&mut w, remote.len, window, &[]);
                self.announce_push(link, peer_id, (index, part), w.with_seq(seq), &iov)
            } else {
                announce(&mut self.nic, link, kind::WRITE_RTS, bits, &head, (remote.len, 0, &source), seq)
            }
        };
        if sent.is_ok() { Started::Sent } else { Started::Blocked }
    }

    #[inline(never)] // For the reason given at `run_peer`.
    fn start_read(&mut self, index: OpId, last: bool) -> Started {
        let Some(op) = self.state.outgoing.queued(index) else { return Started::Blocked };
        let peer_id = op.peer();
        let peer = &self.state.peers[peer_id];
        let (Some(link), Some(remote)) = (peer.link(), op.remote().get(op.next_part() as usize)) else {
            return Started::Blocked;
        };
        let (part, seq, bits) = (op.next_part(), peer.tx_seq(), part_flags(OpFlags::empty(), last));
        if remote.len <= u64::from(peer.rma_bytes()) {
            let cost = reply_cost(remote.len);
            if peer.taken(Quota::Reading) + cost > REPLY_WINDOW_BYTES {
                return Started::Blocked;
            }
            if self.nic.send(link, read_head(index.get(), part, bits, remote).with_seq(seq), &[]).is_err() {
                return Started::Blocked;
            }
            self.state.peers[peer_id].take(Quota::Reading, cost);
            return Started::Sent;
        }
        let iov = part_iov(op, part, remote.len);
        let holder = Holder::Part { op: index, part };
        let direct =
            !peer.pushes(remote.len) && reachable(&mut self.nic, &mut self.state.registrations, peer, holder, &iov);
        let home = if direct { wire_iov(&iov, peer.mailbox_bytes() as usize) } else { SmallVec::new() };
        let len = remote.len;
        let head = rma_head(index.get(), part, 0, remote);
        let token = self.state.outgoing.start(
            &mut self.state.peers[peer_id],
            Transfer::new(peer_id, TransferKind::ReadHome { op: index }, iov, Vec::new(), len),
        );
        self.state.outgoing.open(token, WindowId::Transfer(token));
        if announce(&mut self.nic, link, kind::READ_BULK, bits, &head, (len, token.to_wire(), &home), seq).is_err() {
            self.state.outgoing.end(&mut self.state.peers, token);
            return Started::Blocked;
        }
        if let Some(op) = self.state.outgoing.op_mut(index) {
            op.push_begins();
        }
        Started::Sent
    }
}

fn rma_head(op: u32, part: u32, data: u64, remote: &RmaIov) -> RmaHead {
    RmaHead {
        op: Op { op: op.into(), part: part.into() },
        key: remote.key.into(),
        addr: remote.addr.into(),
        data: data.into(),
    }
}

/// The flags of a part: the last one carries the data, the others state that more follow.
#[inline]
fn part_flags(flags: OpFlags, last: bool) -> u8 {
    match last {
        false => F_MORE,
        true if flags.contains(OpFlags::DATA) => F_DATA,
        true => 0,
    }
}

fn write_head(op: u32, part: u32, bits: u8, data: u64, remote: &RmaIov) -> Short {
    let mut w = Short::new(kind::WRITE, bits);
    w.put(&rma_head(op, part, data, remote));
    w
}

/// READ: its length takes the place of the data, so that the message fits one cache line of a ring.
fn read_head(op: u32, part: u32, bits: u8, remote: &RmaIov) -> Writer<READ_ROOM> {
    let mut w = Writer::new(kind::READ, bits);
    w.put(&rma_head(op, part, remote.len, remote));
    w
}

/// Announces bulk data: its length, the window, and the pieces of memory.
#[inline(never)] // The header may be long, and is on the client's stack.
fn announce<N: Nic>(
    nic: &mut N,
    link: LinkId,
    kind: u8,
    bits: u8,
    head: &RmaHead,
    (len, window, iov): (u64, u64, &[wire::WireIov]),
    seq: u32,
) -> Result<(), Full> {
    let mut w = Long::new(kind, bits);
    w.put(head);
    put_bulk(&mut w, len, window, iov);
    nic.send(link, w.with_seq(seq), &[])
}

fn put_bulk<const ROOM: usize>(w: &mut Writer<ROOM>, len: u64, window: u64, iov: &[wire::WireIov]) {
    let count = u32::try_from(iov.len()).unwrap_or(0);
    w.put(&Bulk { len: len.into(), window: window.into(), iov_count: count.into(), reserved: U32::ZERO });
    for piece in iov {
        w.put(piece);
    }
}

/// The local memory of a part. A send has one part, which begins at 0.
pub(crate) fn part_iov(op: &TxOp, part: u32, len: u64) -> IovList {
    let offset = usize::try_from(op.part_offset(part)).unwrap_or(usize::MAX);
    mem::slice(op.iov(), offset, usize::try_from(len).unwrap_or(usize::MAX))
}

impl State {
    // ---- at the target -----------------------------------------------------------------------

    #[inline]
    pub(crate) fn on_write(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let head: RmaHead = r.take().ok_or(Violation)?;
        let payload = r.rest();
        let op = head.op.op.get();
        self.memory_changes(peer_id)?;
        let parts = self.part_begins(peer_id, head.op, flags & F_MORE != 0);
        match self.target.regions().check(head.key.get(), head.addr.get(), payload.len() as u64, WRITE) {
            Ok(iov) => {
                self.peers[peer_id].count_access(Direction::Received, payload.len() as u64);
                mem::scatter(&iov, 0, payload);
                let data = (flags & F_DATA != 0).then_some(head.data.get());
                self.part_done(peer_id, parts, &RemoteAccess::write(head.key.get(), data, payload.len()));
                self.request_executed(peer_id, op);
            }
            Err(status) => {
                self.part_failed(parts);
                self.queue_fin(peer_id, op, status, wire::CONFIRMED_FIN);
                self.request_taken(peer_id, op);
            }
        }
        Ok(())
    }

    /// Acknowledges a short write, or an atomic without a result, unless its number is [`wire::NO_OP`].
    #[inline]
    pub(crate) fn request_executed(&mut self, peer_id: PeerId, op: u32) {
        if self.peers[peer_id].has(PathFlags::CONFIRMS) {
            self.request_taken(peer_id, op);
        } else if op != wire::NO_OP {
            self.queue_ack(peer_id, op);
        }
    }

    /// Notes that such a request was executed, or refused by FIN. A confirmation by position includes both.
    #[inline]
    pub(crate) fn request_taken(&mut self, peer_id: PeerId, op: u32) {
        if op != wire::NO_OP && self.peers[peer_id].has(PathFlags::CONFIRMS) {
            self.prompts.confirm(peer_id);
        }
    }

    #[inline(never)] // Its list of addresses would be on the stack below every message.
    pub(crate) fn on_write_rts(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let head: RmaHead = r.take().ok_or(Violation)?;
        let (bulk, source) = take_bulk(&mut r)?;
        let (key, len) = (head.key.get(), bulk.len.get());
        self.peers[peer_id].count_access(Direction::Received, len);
        let peer = &mut self.peers[peer_id];
        let follows = bulk.window.get() != 0;
        let next = WindowId::Announced(peer.last_taken());
        if follows
            && (!peer.has(PathFlags::PUSH_FOLLOWS)
                || bulk.window.get() != next.to_wire()
                || !source.is_empty()
                || len == 0)
        {
            return Err(Violation);
        }
        let direct = peer.has(PathFlags::GET) && !source.is_empty();
        let parts = self.part_begins(peer_id, head.op, flags & F_MORE != 0);
        match self.target.regions().check(key, head.addr.get(), len, WRITE) {
            Ok(iov) => {
                let data = (flags & F_DATA != 0).then_some(head.data.get());
                self.target.regions().acquire(key);
                let kind = TransferKind::Write { op: head.op, key, data, parts };
                let token =
                    self.outgoing.start(&mut self.peers[peer_id], Transfer::new(peer_id, kind, iov, source, len));
                if self.peers[peer_id].take(Quota::Writing, 1) as usize > REQUEST_LIMIT {
                    return Err(Violation);
                }
                if follows {
                    self.open_announced(peer_id, token)?;
                } else if direct {
                    self.peers.defer_bulk(peer_id, BulkOp::Transfer(token));
                } else {
                    self.queue_cts(peer_id, head.op, token, len);
                }
            }
            Err(status) => {
                self.part_failed(parts);
                self.queue_fin(peer_id, head.op.op.get(), status, 0);
            }
        }
        Ok(())
    }

    pub(crate) fn on_read(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let head: RmaHead = r.take().ok_or(Violation)?;
        let (key, len) = (head.key.get(), head.data.get());
        self.peers[peer_id].count_access(Direction::Received, len);
        if len.saturating_add(HEADER_BYTES as u64) > u64::from(self.peers[peer_id].mailbox_bytes()) {
            return Err(Violation);
        }
        let parts = self.part_begins(peer_id, head.op, flags & F_MORE != 0);
        match self.target.regions().check(key, head.addr.get(), len, READ) {
            Ok(iov) => {
                self.part_done(peer_id, parts, &RemoteAccess::read(key, mem::total_len(&iov)));
                self.reply(peer_id, head.op, key, iov);
            }
            Err(status) => {
                self.part_failed(parts);
                self.queue_fin(peer_id, head.op.op.get(), status, head.op.part.get().into());
            }
        }
        Ok(())
    }

    #[inline(never)] // Its list of addresses would be on the stack below every message.
    pub(crate) fn on_read_bulk(&mut self, peer_id: PeerId, flags: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        let head: RmaHead = r.take().ok_or(Violation)?;
        let (bulk, home) = take_bulk(&mut r)?;
        let (key, len, window) = (head.key.get(), bulk.len.get(), bulk.window.get());
        self.peers[peer_id].count_access(Direction::Received, len);
        let parts = self.part_begins(peer_id, head.op, flags & F_MORE != 0);
        match self.target.regions().check(key, head.addr.get(), len, READ) {
            Ok(iov) => {
                let put = self.peers[peer_id].has(PathFlags::PUT) && !home.is_empty();
                self.target.regions().acquire(key);
                let kind = TransferKind::Serve { op: head.op, key, window, put, parts };
                let token = self.outgoing.start(&mut self.peers[peer_id], Transfer::new(peer_id, kind, iov, home, len));
                self.peers.defer_bulk(peer_id, BulkOp::Transfer(token));
            }
            Err(status) => {
                self.part_failed(parts);
                self.queue_fin(peer_id, head.op.op.get(), status, window);
            }
        }
        Ok(())
    }

    /// Answers a read. The bytes of a short answer are copied now. Those of a longer one are read when it
    /// leaves, or before the same peer changes memory.
    fn reply(&mut self, peer_id: PeerId, op: Op, key: u64, iov: IovList) {
        let len = mem::total_len(&iov);
        if self.may_prompt(peer_id, len) {
            let message = self.prompts.begin(peer_id, kind::READ_DATA, op);
            let start = message.len();
            message.resize(start + len, 0);
            mem::gather(&iov, &mut message[start..]);
            return;
        }
        if len > PROMPT_REPLY_BYTES {
            return self.peers.defer(peer_id, Deferred::Reply { op, key, iov, copy: None });
        }
        let mut w = wire::Writer::<{ 16 + PROMPT_REPLY_BYTES }>::new(kind::READ_DATA, 0);
        w.put(&op);
        w.gather(&iov);
        self.peers.defer_message(peer_id, &w);
    }

    /// Replaces pending answers from a region that is being removed by refusals.
    fn revoke_replies(&mut self, gone: u64) {
        for queues in self.peers.iter_mut().filter_map(|(_, peer)| peer.queues_mut()) {
            for work in queues.deferred_mut() {
                if let Deferred::Reply { op, key, copy: None, .. } = work
                    && *key == gone
                {
                    let mut w = Short::new(kind::FIN, 0);
                    let status = Status::BadKey.to_wire().into();
                    w.put(&wire::Fin { op: op.op, status, window: u64::from(op.part.get()).into() });
                    *work = Deferred::Message(SmallVec::from_slice(w.bytes()));
                }
            }
        }
    }

    /// Prepares for a request of the peer that changes memory, which its earlier reads may cover.
    #[inline]
    pub(crate) fn memory_changes(&mut self, peer_id: PeerId) -> Result<(), Violation> {
        if let Some(queues) = self.peers[peer_id].queues_mut()
            && queues.has_replies()
            && !queues.keep_replies()
        {
            return Err(Violation);
        }
        Ok(())
    }

    /// Notes that a part of a read was answered, or was refused and had no window.
    pub(crate) fn part_read(&mut self, peer_id: PeerId, len: u64) -> Result<(), Violation> {
        self.peers[peer_id].answered(Quota::Reading, reply_cost(len))
    }

    /// Notes that all bytes of a long write are stored.
    pub(crate) fn write_arrived(&mut self, peer_id: PeerId, what: TransferKind, len: u64) {
        let TransferKind::Write { op, key, data, parts } = what else {
            return cannot_happen!("the transfer of a write is one");
        };
        self.peers[peer_id].give_back(Quota::Writing, 1);
        self.part_done(peer_id, parts, &RemoteAccess::write(key, data, usize::try_from(len).unwrap_or(usize::MAX)));
        self.target.regions().release(key);
        self.queue_ack(peer_id, op.op.get());
    }

    /// Notes that all bytes of a long read have been moved.
    pub(crate) fn read_served(&mut self, peer_id: PeerId, what: TransferKind, len: u64) {
        let TransferKind::Serve { op, key, window, put, parts } = what else {
            return cannot_happen!("the transfer that serves a read is one");
        };
        self.part_done(peer_id, parts, &RemoteAccess::read(key, usize::try_from(len).unwrap_or(usize::MAX)));
        self.target.regions().release(key);
        if put {
            self.queue_fin(peer_id, op.op.get(), Status::Ok, window);
        }
    }

    // ---- at the initiator --------------------------------------------------------------------

    /// Completes a write for which no state is kept.
    #[inline]
    pub(crate) fn complete_write(&mut self, op: &RmaOp<'_>, len: u64, fault: Option<Fault>) {
        if fault.is_some() || !op.flags.contains(OpFlags::QUIET) {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let done = Completion::new(Kind::Write, op.ctx, op.flags.into());
            self.completions.push(Completion { len, data: op.data, fault, ..done });
        }
    }

    pub(crate) fn on_read_data(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let id: Op = r.take().ok_or(Violation)?;
        let payload = r.rest();
        let (index, part) = (id.op.get(), id.part.get());
        let index = OpId::new(index);
        let op = self.op_of(peer_id, index)?;
        if op.answerable(part) != Some(payload.len() as u64) {
            return Err(Violation);
        }
        mem::scatter(&part_iov(op, part, payload.len() as u64), 0, payload);
        op.answered();
        self.part_read(peer_id, payload.len() as u64)?;
        self.finish_op(index);
        Ok(())
    }

    /// Notes that a part of a read was refused, or that the target's device has put the bytes of a long part. A
    /// short part has no window and is named by its number. The numbers of transfers are larger.
    pub(crate) fn read_ended(
        &mut self,
        peer_id: PeerId,
        index: OpId,
        window: u64,
        status: Status,
    ) -> Result<(), Violation> {
        let op = self.outgoing.op_mut(index).ok_or(Violation)?;
        if let Ok(part) = u32::try_from(window) {
            let len = op.answerable(part).filter(|_| status != Status::Ok).ok_or(Violation)?;
            op.answered();
            self.part_read(peer_id, len)?;
        } else {
            let home = |x: &&mut Transfer| {
                x.peer() == peer_id && matches!(x.kind(), TransferKind::ReadHome { op } if op == index)
            };
            let id = TransferId::from_wire(window).ok_or(Violation)?;
            self.outgoing.transfer(id).filter(home).ok_or(Violation)?;
            self.outgoing.end(&mut self.peers, id);
            if let Some(op) = self.outgoing.op_mut(index) {
                op.answered();
                op.push_ends();
            }
        }
        if let (Some(op), Some(fault)) = (self.outgoing.op_mut(index), status.fault()) {
            op.fail(fault);
        }
        self.finish_op(index);
        Ok(())
    }
}

fn take_bulk(r: &mut Reader<'_>) -> Result<(Bulk, Vec<RemoteIov>), Violation> {
    let bulk: Bulk = r.take().ok_or(Violation)?;
    let iov = r.take_iov(bulk.iov_count.get()).ok_or(Violation)?;
    let described = wire::described_bytes(&iov);
    if !iov.is_empty() && described != Some(bulk.len.get()) {
        return Err(Violation);
    }
    Ok((bulk, iov))
}
