//! Atomic operations on peers' memory, executed by the target's engine.
//!
//! Place in the data flow, initiating: [`Engine::atomic`] → parts (one per remote piece, or more if that is
//! long) → ATOMIC → ACK, FIN or RESULTS → completion. At the target: every request is checked against the
//! regions and executed at its place in the stream of messages. Atomics of one peer therefore take effect in the
//! order in which they were started, whatever their length, and later messages see their effects. Fetched values
//! are gathered per peer and leave in as few messages as possible.
//!
//! Flow control. Fetched values wait at the target until the peer's device has room. A peer may have
//! [`FETCH_WINDOW_BYTES`] of them under way; a request beyond that ends its link.
//!
//! An inject that fetches nothing and needs no completion is not acknowledged. A failure is still reported.

use std::collections::VecDeque;

use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U64;

use crate::amo::{self, Amo, Form, LARGEST_BYTES};
use crate::api::{Access, AtomicOp, CompletionFlags, Error, Kind, OpFlags, RmaIov};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::ops::TxOp;
use crate::engine::peer::{Direction, Peer, Quota};
use crate::engine::remote_events::RemoteAccess;
use crate::engine::send::retain_memory;
use crate::engine::state::Violation;
use crate::engine::{Engine, Started};
use crate::ids::{OpId, PeerId};
use crate::mem::{self, Iov, IovList};
use crate::nic::Nic;
use crate::wire::{self, AtomicHead, F_DATA, F_FETCH, F_MORE, Head, NO_OP, Op, Reader, Status, kind};

/// Longest atomic operation, in bytes at the target.
pub(crate) const MAX_ATOMIC_BYTES: usize = 1 << 20;
/// Limit of bytes at the target for one message, so that other messages do not wait long.
const PART_BYTES: usize = 4096;
/// The cost of a result in the window beside its bytes: the operation's name.
const RESULT_HEAD_BYTES: usize = size_of::<Op>();
/// Limit of pending results of one peer, in bytes.
const FETCH_WINDOW_BYTES: u32 = 256 << 10;
/// Length of head, names, data, and the length of a read.
const REQUEST_HEAD_BYTES: usize = size_of::<Head>() + size_of::<AtomicHead>() + 16;

// A part of any type fits the smallest mailbox (256 bytes, see `PathCaps`), and its result fits the window.
const _: () = {
    assert!((256 - REQUEST_HEAD_BYTES) / 2 >= LARGEST_BYTES);
    assert!(PART_BYTES.is_multiple_of(LARGEST_BYTES) && PART_BYTES < FETCH_WINDOW_BYTES as usize / 2);
};

/// Results that wait to be sent.
#[derive(Default)]
pub(crate) struct FetchResults {
    /// Full messages without their numbers, oldest first.
    full: VecDeque<Vec<u8>>,
    /// The message to which results are added. Empty, or longer than its head.
    open: Vec<u8>,
    /// The cost of all results in the window.
    cost: usize,
}

impl FetchResults {
    /// The cost of the results in the window, in bytes.
    pub(crate) fn cost(&self) -> usize {
        self.cost
    }

    /// Whether results wait.
    pub(crate) fn wait(&self) -> bool {
        self.cost > 0
    }

    /// Begins a result of `len` bytes. Returns the buffer, to whose end the bytes must be appended. `room`: the
    /// length of a message.
    fn begin(&mut self, id: Op, len: usize, room: usize) -> &mut Vec<u8> {
        let cost = RESULT_HEAD_BYTES + len;
        if !self.open.is_empty() && self.open.len() + cost > room {
            self.full.push_back(std::mem::take(&mut self.open));
        }
        if self.open.is_empty() {
            self.open.extend_from_slice(Head::new(kind::RESULTS, 0).as_bytes());
        }
        self.open.extend_from_slice(id.as_bytes());
        self.cost += cost;
        &mut self.open
    }

    /// The next message to send.
    fn first(&mut self) -> Option<&mut Vec<u8>> {
        match self.full.front_mut() {
            Some(message) => Some(message),
            None => Some(&mut self.open).filter(|open| !open.is_empty()),
        }
    }

    /// Notes that the first message has left.
    fn sent(&mut self) {
        let bytes = match self.full.pop_front() {
            Some(message) => message.len(),
            None => {
                let bytes = self.open.len();
                self.open.clear();
                bytes
            }
        };
        self.cost = self.cost.saturating_sub(bytes - size_of::<Head>());
    }
}

/// The head of a request, in words of eight bytes: head, operation and part, key, address, the data if any, and
/// the length of a read.
struct RequestHead {
    words: [U64; 6],
    count: usize,
}

impl RequestHead {
    #[inline]
    fn new(amo: Amo, id: Op, remote: &RmaIov, data: Option<u64>, more: bool, seq: u32) -> Self {
        let mut bits = if data.is_some() { F_DATA } else { 0 };
        bits |= if amo.form() == Form::Fetch { F_FETCH } else { 0 };
        bits |= if more { F_MORE } else { 0 };
        let what = u64::from(amo.ty() as u8) << 16 | u64::from(amo.op() as u8) << 24;
        let head = u64::from(kind::ATOMIC) | u64::from(bits) << 8 | what | u64::from(seq) << 32;
        let id = u64::from(id.op.get()) | u64::from(id.part.get()) << 32;
        let mut words = [head.into(), id.into(), remote.key.into(), remote.addr.into(), U64::ZERO, U64::ZERO];
        let mut count = 4;
        for extra in [data, (amo.sources() == 0).then_some(remote.len)].into_iter().flatten() {
            words[count] = extra.into();
            count += 1;
        }
        Self { words, count }
    }

    #[inline]
    fn bytes(&self) -> &[u8] {
        self.words[..self.count].as_bytes()
    }
}

/// Limit of bytes at the target for one message.
fn part_limit(amo: Amo, mailbox_bytes: u32) -> usize {
    let room = (mailbox_bytes as usize - REQUEST_HEAD_BYTES) / amo.sources().max(1);
    let room = room.min(PART_BYTES);
    room - room % LARGEST_BYTES
}

/// The cost of a part in the window of results.
pub(crate) fn fetch_cost(amo: Amo, len: u64) -> u32 {
    if amo.fetches() { u32::try_from(len.saturating_add(RESULT_HEAD_BYTES as u64)).unwrap_or(u32::MAX / 2) } else { 0 }
}

impl<N: Nic> Engine<N> {
    /// Starts an atomic operation of any form.
    ///
    /// Errors: `Again` (as for a send), `NoSuchAddress`, `TooLong`, `Invalid` (no number, lengths that differ,
    /// or a length that is not a whole number of numbers).
    pub fn atomic(&mut self, op: &AtomicOp<'_>) -> Result<(), Error> {
        let len = self.measure_atomic(op)?;
        let peer_id = self.state.peer_for(op.dest)?;
        if self.state.peers[peer_id].has_mapped_regions() && self.atomic_mapped(op, peer_id, len) {
            return Ok(());
        }
        let must_leave = op.flags.must_leave() && op.amo.form() == Form::Base;
        // An access in mapped memory would overtake an atomic whose end is not awaited.
        let unwatched =
            op.flags.is_unwatched() && op.amo.form() == Form::Base && !self.state.peers[peer_id].has_mapped_regions();
        if let [remote] = op.remote
            && !op.flags.contains(OpFlags::FENCE)
        {
            if self.atomic_now(op, peer_id, remote, unwatched) {
                return Ok(());
            }
            let peer = &self.state.peers[peer_id];
            if must_leave && (peer.link().is_none() || len <= part_limit(op.amo, peer.mailbox_bytes()) as u64) {
                return self.inject_must_wait(peer_id, Kind::Atomic, op.ctx, op.flags);
            }
        }
        self.enqueue_atomic(op, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }

    /// Checks an atomic operation apart from queue space. Errors: `NoSuchAddress`, `TooLong`, `Invalid`.
    pub fn check_atomic(&mut self, op: &AtomicOp<'_>) -> Result<(), Error> {
        self.measure_atomic(op)?;
        self.state.peer_for(op.dest).map(|_| ())
    }

    /// Checks the lengths. Returns the number of bytes at the target.
    fn measure_atomic(&self, op: &AtomicOp<'_>) -> Result<u64, Error> {
        let size = op.amo.ty().size() as u64;
        let mut len = 0u64;
        for remote in op.remote {
            if remote.len == 0 || !remote.len.is_multiple_of(size) {
                return Err(Error::Invalid);
            }
            len = len.saturating_add(remote.len);
        }
        let sources = op.amo.sources();
        let expect = |given: &[Iov], wanted: bool| !wanted || mem::total_len(given) as u64 == len;
        if len == 0
            || !expect(op.iov, sources > 0)
            || !expect(op.compare, sources > 1)
            || !expect(op.result, op.amo.fetches())
        {
            return Err(Error::Invalid);
        }
        let inject_bytes = self.state.config.inject_bytes as u64;
        if len > MAX_ATOMIC_BYTES as u64 || (op.flags.contains(OpFlags::INJECT) && len > inject_bytes && sources > 0) {
            return Err(Error::TooLong);
        }
        Ok(len)
    }

    /// The fast path: sends the only part if no operation is queued. Returns false if it has done nothing.
    #[inline]
    fn atomic_now(&mut self, op: &AtomicOp<'_>, peer_id: PeerId, remote: &RmaIov, unwatched: bool) -> bool {
        let peer = &mut self.state.peers[peer_id];
        let Some(link) = peer.link() else { return false };
        let cost = fetch_cost(op.amo, remote.len);
        if !peer.tx_is_empty()
            || remote.len > part_limit(op.amo, peer.mailbox_bytes()) as u64
            || peer.taken(Quota::Fetching) + cost > FETCH_WINDOW_BYTES
            || !(unwatched || peer.may_ask(0, self.state.outgoing.request_limit()))
        {
            return false;
        }
        let index = if unwatched { NO_OP } else { self.state.outgoing.next_op().get() };
        let data = op.flags.contains(OpFlags::DATA).then_some(op.data);
        let id = Op { op: index.into(), part: 0.into() };
        let request = RequestHead::new(op.amo, id, remote, data, false, peer.tx_seq());
        let sent = if op.amo.sources() > 1 {
            let body: SmallVec<[Iov; 4]> = op.iov.iter().chain(op.compare).copied().collect();
            self.nic.send(link, request.bytes(), &body)
        } else {
            self.nic.send(link, request.bytes(), if op.amo.sources() == 0 { &[] } else { op.iov })
        };
        if sent.is_err() {
            return false;
        }
        peer.message_sent();
        peer.count_access(Direction::Sent, remote.len);
        if unwatched {
            peer.begin_nameless();
            return true;
        }
        peer.take(Quota::Fetching, cost);
        peer.take(Quota::Ops, 1);
        peer.take(Quota::Accesses, 1);
        let iov = if op.amo.fetches() { SmallVec::from_slice(op.result) } else { IovList::new() };
        let seq = peer.tx_seq().wrapping_sub(1);
        let index = self.state.outgoing.push(peer, || TxOp::sent_atomic(op, peer_id, iov, remote.len));
        if !op.amo.fetches() {
            self.state.peers.await_confirmation(peer_id, seq, index);
        }
        true
    }

    /// Queues an operation that needs more than one step.
    #[cold]
    #[inline(never)] // Its vectors would be on the stack below `run_peer`.
    fn enqueue_atomic(&mut self, op: &AtomicOp<'_>, peer_id: PeerId, len: u64) -> Result<(), Error> {
        let mut sources = IovList::new();
        for source in [op.iov, op.compare].into_iter().take(op.amo.sources()) {
            sources.extend_from_slice(source);
        }
        let (mut iov, owned) = retain_memory(&sources, op.flags);
        if op.amo.fetches() {
            iov.extend_from_slice(op.result);
        }
        self.enqueue(peer_id, Kind::Atomic, || TxOp::queued_atomic(op, peer_id, (iov, owned), len))
    }

    /// Sends the next part of the operation at the front of the TX queue.
    #[inline(never)] // For the reason given at `run_peer`.
    pub(crate) fn start_atomic(&mut self, index: OpId) -> Started {
        let Some(op) = self.state.outgoing.queued(index) else { return Started::Blocked };
        let Some(amo) = op.amo() else {
            cannot_happen!("an atomic has an operation");
            return Started::Blocked;
        };
        let peer = &mut self.state.peers[op.peer()];
        let limit = part_limit(amo, peer.mailbox_bytes()) as u64;
        if op.next_part() == 0 {
            op.divide(|remote| split(remote, limit));
        }
        let (Some(link), Some(remote)) = (peer.link(), op.remote().get(op.next_part() as usize)) else {
            return Started::Blocked;
        };
        let cost = fetch_cost(amo, remote.len);
        if peer.taken(Quota::Fetching) + cost > FETCH_WINDOW_BYTES {
            return Started::Blocked;
        }
        let mut body = IovList::new();
        for source in 0..amo.sources() {
            body.extend(op.atomic_piece(source, op.next_part()));
        }
        let next = op.remote().get(op.next_part() as usize + 1);
        let more = next.is_some();
        let data = (next.is_none() && op.flags().contains(OpFlags::DATA)).then_some(op.data());
        let id = Op { op: index.get().into(), part: op.next_part().into() };
        let request = RequestHead::new(amo, id, remote, data, more, peer.tx_seq());
        if self.nic.send(link, request.bytes(), &body).is_err() {
            return Started::Blocked;
        }
        let (seq, peer_id) = (peer.tx_seq(), op.peer());
        peer.take(Quota::Fetching, cost);
        if !amo.fetches() {
            self.state.peers.await_confirmation(peer_id, seq, index);
        }
        Started::Sent
    }

    /// Sends the results of a peer's operations, until the device is full. Returns whether it sent any.
    #[inline(never)] // For the reason given at `run_peer`.
    pub(crate) fn run_results(&mut self, peer_id: PeerId) -> bool {
        let peer = &mut self.state.peers[peer_id];
        let (Some(link), first) = (peer.link(), peer.tx_seq()) else { return false };
        let Some(results) = peer.queues_mut().and_then(|queues| queues.results_mut()) else { return false };
        let mut sent = 0;
        while let Some(message) = results.first() {
            wire::number(message, first.wrapping_add(sent));
            if self.nic.send(link, message, &[]).is_err() {
                break;
            }
            results.sent();
            sent += 1;
        }
        peer.messages_sent(sent);
        sent > 0
    }
}

/// Divides remote pieces into parts that fit the link's messages.
fn split(remote: &mut SmallVec<[RmaIov; 1]>, limit: u64) {
    if limit == 0 || remote.iter().all(|piece| piece.len <= limit) {
        return;
    }
    for RmaIov { addr, len, key } in std::mem::take(remote) {
        let mut done = 0;
        while done < len {
            let part = limit.min(len - done);
            remote.push(RmaIov { addr: addr.wrapping_add(done), len: part, key });
            done += part;
        }
    }
}

/// A request that was decoded and checked.
struct AtomicRequest<'a> {
    amo: Amo,
    id: Op,
    key: u64,
    addr: u64,
    data: Option<u64>,
    /// More parts follow.
    more: bool,
    /// Bytes at the target.
    len: usize,
    sources: &'a [u8],
}

impl<'a> AtomicRequest<'a> {
    fn read(head: Head, mut r: Reader<'a>) -> Option<Self> {
        let [ty, op] = head.detail;
        let (ty, op) = (amo::Type::from_number(ty.into())?, amo::Op::from_number(op.into())?);
        let form = match (head.flags & F_FETCH != 0, op.row().forms) {
            (false, [Form::Compare]) => Form::Compare,
            (true, _) => Form::Fetch,
            (false, _) => Form::Base,
        };
        let amo = Amo::new(form, ty, op)?;
        let AtomicHead { op: id, key, addr } = r.take()?;
        let data = if head.flags & F_DATA != 0 { Some(r.take::<U64>()?.get()) } else { None };
        let len = match amo.sources() {
            0 => usize::try_from(r.take::<U64>()?.get()).ok()?,
            arrays => r.rest().len() / arrays,
        };
        let sources = r.rest();
        let whole =
            len > 0 && len <= PART_BYTES && len.is_multiple_of(ty.size()) && sources.len() == len * amo.sources();
        // An operation that fetches must have a number, because its result is awaited.
        let named = id.op.get() != NO_OP || form == Form::Base;
        let more = head.flags & F_MORE != 0;
        (whole && named).then_some(Self { more, amo, id, key: key.get(), addr: addr.get(), data, len, sources })
    }
}

impl State {
    // ---- at the target -----------------------------------------------------------------------

    pub(crate) fn on_atomic(&mut self, peer_id: PeerId, head: Head, r: Reader<'_>) -> Result<(), Violation> {
        let request = AtomicRequest::read(head, r).ok_or(Violation)?;
        let AtomicRequest { amo, id, key, len, .. } = request;
        self.peers[peer_id].count_access(Direction::Received, len as u64);
        if amo.fetches() && !self.may_fetch(peer_id, len) {
            return Err(Violation);
        }
        if amo.changes() {
            self.memory_changes(peer_id)?;
        }
        let need = Access { read: amo.fetches(), write: amo.changes() };
        let parts = self.part_begins(peer_id, id, request.more);
        let target = match self.target.regions().check(key, request.addr, len as u64, need) {
            Ok(target) => target,
            Err(status) => {
                self.part_failed(parts);
                self.queue_fin(peer_id, id.op.get(), status, id.part.get().into());
                if !amo.fetches() {
                    self.request_taken(peer_id, id.op.get());
                }
                return Ok(());
            }
        };
        let mut family = CompletionFlags::ATOMIC;
        let kind = if amo.fetches() {
            family.set(CompletionFlags::CHANGES, amo.changes());
            if self.may_prompt(peer_id, len) {
                amo.execute(&target, request.sources, Some(self.prompts.begin(peer_id, kind::RESULTS, id)));
            } else {
                let room = part_room(&self.peers[peer_id]);
                let results = self.peers.queues(peer_id).new_results();
                amo.execute(&target, request.sources, Some(results.begin(id, len, room)));
                self.peers.activate(peer_id);
            }
            Kind::RemoteRead
        } else {
            amo.execute(&target, request.sources, None);
            planted!(Bug::AtomicTwice, amo.execute(&target, request.sources, None));
            self.request_executed(peer_id, id.op.get());
            Kind::RemoteWrite
        };
        self.part_done(peer_id, parts, &RemoteAccess::atomic(kind, family, key, request.data, len));
        Ok(())
    }

    /// Whether the result of a request has room in a message, and in the window of results.
    fn may_fetch(&self, peer_id: PeerId, len: usize) -> bool {
        let peer = &self.peers[peer_id];
        let results = peer.queues().and_then(|queues| queues.results());
        let cost = RESULT_HEAD_BYTES + len;
        results.map_or(0, |results| results.cost) + cost <= FETCH_WINDOW_BYTES as usize
            && size_of::<Head>() + cost <= part_room(peer)
    }

    // ---- at the initiator --------------------------------------------------------------------

    pub(crate) fn on_results(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        // There is at least one result.
        loop {
            let id: Op = r.take().ok_or(Violation)?;
            let index = OpId::new(id.op.get());
            let op = self.op_of(peer_id, index)?;
            let (home, cost) = op.awaited_results(id.part.get()).ok_or(Violation)?;
            let payload = r.take_bytes(cost as usize - RESULT_HEAD_BYTES).ok_or(Violation)?;
            mem::scatter(&home, 0, payload);
            op.answered();
            self.peers[peer_id].answered(Quota::Fetching, cost)?;
            self.finish_op(index);
            if r.rest().is_empty() {
                return Ok(());
            }
        }
    }

    /// Notes that a part that fetches was refused. It cannot succeed without results.
    pub(crate) fn fetch_refused(
        &mut self,
        peer_id: PeerId,
        index: OpId,
        part: u64,
        status: Status,
    ) -> Result<(), Violation> {
        let part = u32::try_from(part).map_err(|_| Violation)?;
        let fault = status.fault().ok_or(Violation)?;
        let op = self.op_of(peer_id, index)?;
        let (_, cost) = op.awaited_results(part).ok_or(Violation)?;
        op.fail(fault);
        op.answered();
        self.peers[peer_id].answered(Quota::Fetching, cost)?;
        self.finish_op(index);
        Ok(())
    }
}

/// Length of a message of results. The result of the longest part fits.
fn part_room(peer: &Peer) -> usize {
    (peer.mailbox_bytes() as usize).min(size_of::<Head>() + RESULT_HEAD_BYTES + PART_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_share_messages_and_are_charged() {
        let mut results = FetchResults::default();
        let id = |n: u32| Op { op: n.into(), part: 0.into() };
        assert!(!results.wait() && results.first().is_none());
        for n in 0..3 {
            results.begin(id(n), 8, 40).extend_from_slice(&[7; 8]);
        }
        // Two results fit a message of 40 bytes beside its head.
        let mut lens = Vec::new();
        while let Some(message) = results.first() {
            lens.push(message.len());
            assert!(message.starts_with(&[kind::RESULTS, 0]));
            results.sent();
        }
        assert_eq!((lens, results.cost), (vec![8 + 32, 8 + 16], 0));
        assert!(!results.wait());
    }

    #[test]
    fn parts_fit_every_mailbox() {
        for ty in amo::TYPES {
            for op in amo::OPS {
                for form in op.forms {
                    let Some(amo) = Amo::new(*form, ty.ty, op.op) else { continue };
                    for mailbox in [256, 300, 4096, 1 << 20] {
                        let limit = part_limit(amo, mailbox);
                        assert!(limit >= ty.size && limit.is_multiple_of(ty.size) && limit <= PART_BYTES);
                        assert!(REQUEST_HEAD_BYTES + limit * amo.sources() <= mailbox as usize);
                        assert!(size_of::<Head>() + RESULT_HEAD_BYTES + limit <= mailbox as usize);
                    }
                }
            }
        }
    }
}
