//! Sending messages, tagged and untagged: eager and rendezvous protocols, acknowledgements.
//!
//! Place in the data flow: `Engine::send` → (fast path) `Nic::send`, or TX queue → [`Engine::start_send`] → EAGER or
//! RTS → CTS/push or the peer's get → ACK/FIN → completion. [`crate::engine::recv`] is the receiving side.
//!
//! Flow control: a peer may have `window_bytes` of eager payload (plus [`EAGER_COST`] per message) waiting here
//! without a matching receive. A sender without window uses rendezvous whatever the length. Memory here is
//! therefore bounded, and later messages can pass earlier ones that no receive has matched. Windows are
//! returned in quarters.

use smallvec::SmallVec;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

use crate::api::{Addr, Completion, CompletionFlags, EAGER_COST, Error, Fault, Kind, OpFlags, Role, SendOp};
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::ops::{Phase, TxOp};
use crate::engine::peer::{Answer, Direction, PathFlags};
use crate::engine::registrations::Holder;
use crate::engine::rma::READ;
use crate::engine::state::Violation;
use crate::engine::transfer::{reachable, wire_iov};
use crate::engine::{Engine, Started};
use crate::ids::{OpId, PeerId, is_before};
use crate::mem::{self, Iov, IovList, Owned};
use crate::nic::{Full, LinkId, Nic};
use crate::wire::{
    self, F_ACK, F_ARRIVAL, F_COLLECTIVE, F_DATA, F_FOLLOWS, F_TAGGED, Fin, LONG_ROOM, Reader, Rts, SHORT_ROOM, Short,
    Status, Writer, kind,
};

/// The header of an eager message: [`crate::wire::Head`], followed by tag, data and the operation to
/// acknowledge, if the message has them. It consists of words of eight bytes, because it is built for every
/// short message.
struct EagerHead {
    words: [U64; 4],
    count: usize,
}

impl EagerHead {
    #[inline(always)]
    fn new(flags: OpFlags, tag: u64, data: u64, ack: Option<(u32, u8)>, seq: u32) -> Self {
        let (mut bits, mut count) = (0, 1);
        let mut words = [U64::ZERO; 4];
        if flags.contains(OpFlags::TAGGED) {
            bits |= F_TAGGED;
            words[1] = tag.into();
            count = 2;
        }
        if flags.contains(OpFlags::DATA) {
            bits |= F_DATA;
            words[count] = data.into();
            count += 1;
        }
        if let Some((op, when)) = ack {
            bits |= when;
            words[count & 3] = u64::from(op).into();
            count += 1;
        }
        words[0] = (u64::from(kind::EAGER) | u64::from(bits) << 8 | u64::from(seq) << 32).into();
        Self { words, count }
    }

    /// Marks the message as one of a collective.
    fn mark_collective(&mut self) {
        self.words[0].as_mut_bytes()[1] |= F_COLLECTIVE;
    }

    #[inline(always)]
    fn bytes(&self) -> &[u8] {
        self.words[..self.count.min(4)].as_bytes()
    }
}

impl<N: Nic> Engine<N> {
    /// Starts a send of any form: plain, tagged, with data, injected. It completes at once if possible.
    ///
    /// Errors: `Again` if the TX queue is full, and for an inject without a queue entry that cannot leave yet;
    /// `NoSuchAddress`, `TooLong`.
    #[inline]
    pub fn send(&mut self, op: &SendOp<'_>) -> Result<(), Error> {
        if !self.send_now(op) {
            return self.send_later(op);
        }
        if !op.flags.contains(OpFlags::QUIET) {
            self.state.complete_send(op, mem::total_len(op.iov));
        }
        Ok(())
    }

    /// The fast path of [`Engine::send`]. Returns true if the message has left and its send is complete; there
    /// is no [`Completion`]. Returns false if it has done nothing; the caller then calls
    /// [`Engine::send_later`].
    #[inline(always)]
    pub fn send_now(&mut self, op: &SendOp<'_>) -> bool {
        let len = if let [one] = op.iov { one.len() } else { mem::total_len(op.iov) };
        let Some(peer_id) = self.state.peers.known(op.dest) else { return false };
        let Some(peer) = self.state.peers.get_mut(peer_id) else { return false };
        let cost = len as u64 + EAGER_COST;
        let Some(link) = peer.link() else { return false };
        if !peer.tx_is_empty()
            || len > peer.eager_bytes() as usize
            || cost > peer.tx_credit()
            || op.flags.intersects(peer.slow_sends())
            || (op.flags.contains(OpFlags::INJECT) && len > self.state.config.inject_bytes)
        {
            return false;
        }
        let head = EagerHead::new(op.flags, op.tag, op.data, None, peer.tx_seq());
        if self.nic.send(link, head.bytes(), op.iov).is_err() {
            return false;
        }
        peer.message_sent();
        peer.use_credit(cost);
        peer.count_message(Direction::Sent, cost);
        true
    }

    /// The slow path of [`Engine::send`], with the same errors.
    #[cold]
    pub fn send_later(&mut self, op: &SendOp<'_>) -> Result<(), Error> {
        if self.state.is_unreliable() {
            return self.send_datagram(op);
        }
        let len = mem::total_len(op.iov);
        if op.flags.contains(OpFlags::INJECT) && len > self.state.config.inject_bytes {
            return Err(Error::TooLong);
        }
        let peer_id = self.state.peer_for(op.dest)?;
        let peer = &self.state.peers[peer_id];
        if op.flags.contains(OpFlags::AFTER_ACCESSES) && peer.tx_is_empty() && !peer.holds_back(OpFlags::AFTER_ACCESSES)
        {
            return self.send(&SendOp { flags: op.flags - OpFlags::AFTER_ACCESSES, ..*op });
        }
        // A message that is too long for the device, or lacks window, uses rendezvous, which needs progress on
        // both sides in any case.
        let eager = len <= peer.eager_bytes() as usize && len as u64 + EAGER_COST <= peer.tx_credit();
        let wants_room = peer.link().is_none() || eager;
        let unanswered = !op.flags.intersects(OpFlags::DELIVERY | OpFlags::TRANSMIT | OpFlags::FENCE);
        if op.flags.must_leave() && wants_room && unanswered {
            return self.inject_must_wait(peer_id, Kind::Send, op.ctx, op.flags);
        }
        self.enqueue_send(op, peer_id, len)?;
        self.run_peer(peer_id);
        Ok(())
    }

    /// Checks a send of `len` bytes to `dest` apart from queue space. Errors: `NoSuchAddress`, `TooLong`.
    pub fn check_send(&mut self, dest: Addr, len: usize) -> Result<(), Error> {
        self.state.peer_for(dest)?;
        if len as u64 > self.state.config.max_msg_bytes { Err(Error::TooLong) } else { Ok(()) }
    }

    #[inline(never)] // Its vectors would be on the stack below `run_peer`.
    pub(crate) fn enqueue_send(&mut self, op: &SendOp<'_>, peer_id: PeerId, len: usize) -> Result<(), Error> {
        if len as u64 > self.state.config.max_msg_bytes {
            return Err(Error::TooLong);
        }
        let memory = retain_memory(op.iov, op.flags);
        self.enqueue(peer_id, Kind::Send, || TxOp::queued_send(op, peer_id, memory, len))
    }

    /// Sends a message of a collective.
    #[inline(never)] // See `run_peer`.
    pub(crate) fn send_queued_collective(&mut self, peer_id: PeerId, index: OpId) -> Result<(), Full> {
        match self.start_send(index) {
            Started::Blocked => Err(Full),
            Started::Sent => {
                self.state.op_sent(peer_id, index);
                Ok(())
            }
        }
    }

    /// Sends the message of the operation at the front of the TX queue.
    #[inline(always)] // The data path has one call.
    pub(crate) fn start_send(&mut self, index: OpId) -> Started {
        let limit = self.state.outgoing.request_limit();
        let Some(op) = self.state.outgoing.queued(index) else { return Started::Sent };
        let peer = &mut self.state.peers[op.peer()];
        let cost = op.len() + EAGER_COST;
        let ack = match peer.answer_to(op.flags()) {
            Answer::Nothing => None,
            Answer::Arrived => Some((index.get(), F_ACK | F_ARRIVAL)),
            Answer::Received => Some((index.get(), F_ACK)),
        };
        let eager = op.len() <= u64::from(peer.eager_bytes()) && cost <= peer.tx_credit();
        let unmatched = !eager || op.flags().contains(OpFlags::DELIVERY);
        let allowed = if op.kind() == Kind::Collective {
            true // Their number is limited where they are started.
        } else if unmatched {
            peer.may_announce()
        } else {
            peer.may_ask(0, limit)
        };
        let Some(link) = peer.link().filter(|_| allowed) else { return Started::Blocked };
        if eager {
            let mut head = EagerHead::new(op.flags(), op.tag(), op.data(), ack, peer.tx_seq());
            if op.kind() == Kind::Collective {
                head.mark_collective();
            }
            if self.nic.send(link, head.bytes(), op.iov()).is_err() {
                return Started::Blocked;
            }
            peer.use_credit(cost);
            peer.count_message(Direction::Sent, cost);
            op.message_left(Phase::AwaitAck, u32::from(ack.is_some()), unmatched);
        } else if self.state.config.role == Role::Datagrams {
            return State::drop_datagram(op, &mut self.state.dropped);
        } else {
            let holder = Holder::Part { op: index, part: 0 };
            let (peer_id, len) = (op.peer(), op.len());
            let follows = peer.has(PathFlags::PUSH_FOLLOWS) && cost <= peer.tx_credit() && op.kind() == Kind::Send;
            // A message of a collective is pushed on request: the window of eager bytes is the client's.
            let pushed = peer.pushes(len) && (follows || op.kind() == Kind::Collective);
            let source = if pushed || !peer.can_map() { None } else { self.state.target.key_of(op.iov(), READ) };
            let direct = !pushed
                && (source.is_some()
                    || reachable(&mut self.nic, &mut self.state.registrations, peer, holder, op.iov()));
            if !direct && follows {
                return self.send_followed(index, peer_id, link, ack.is_some());
            }
            let (mailbox_bytes, seq) = (peer.mailbox_bytes() as usize, peer.tx_seq());
            let room = direct.then_some(mailbox_bytes);
            let sent = match op.iov().len() {
                0 | 1 => self.nic.send(link, rts_head::<SHORT_ROOM>(index, op, ack.is_some(), room).with_seq(seq), &[]),
                _ => send_long_rts(&mut self.nic, link, index, op, ack.is_some(), room, seq),
            };
            if sent.is_err() {
                return Started::Blocked;
            }
            op.message_left(Phase::AwaitCts, 1, unmatched);
            if len <= u64::from(peer.eager_bytes()) {
                peer.count_stall();
            }
            peer.count_rendezvous(Direction::Sent, len);
            if let Some(key) = source.filter(|key| peer.regions().is_unnamed(*key)) {
                peer.message_sent();
                self.state.name_region(peer_id, key);
                return Started::Sent;
            }
        }
        peer.message_sent();
        Started::Sent
    }
}

impl<N: Nic> Engine<N> {
    /// Sends a long message as an announcement with the bytes behind it, for which the peer's window has room. No copy
    /// is made here, and none at the peer if a receive waits there. The end of the push frees the bytes, and does not
    /// show that they have arrived: higher levels need an answer.
    #[inline(never)] // See `run_peer`.
    fn send_followed(&mut self, index: OpId, peer_id: PeerId, link: LinkId, ack: bool) -> Started {
        let Some(op) = self.state.outgoing.queued(index) else { return Started::Sent };
        let (len, iov) = (op.len(), IovList::from_slice(op.iov()));
        let mut head = rts_head::<SHORT_ROOM>(index, op, ack, None);
        head.add_flags(F_FOLLOWS);
        let seq = self.state.peers[peer_id].tx_seq();
        if self.announce_push(link, peer_id, (index, 0), head.with_seq(seq), &iov).is_err() {
            return Started::Blocked;
        }
        if let Some(op) = self.state.outgoing.op_mut(index) {
            op.message_left(Phase::Pushing(ack), 1, ack);
        }
        let peer = &mut self.state.peers[peer_id];
        planted!(Bug::FollowedUncharged, peer.use_credit(len + EAGER_COST), ());
        peer.count_rendezvous(Direction::Sent, len);
        peer.message_sent();
        Started::Sent
    }
}

#[inline(never)] // The header may be long, and is on the client's stack.
fn send_long_rts<N: Nic>(
    nic: &mut N,
    link: LinkId,
    index: OpId,
    op: &TxOp,
    ack: bool,
    room: Option<usize>,
    seq: u32,
) -> Result<(), Full> {
    nic.send(link, rts_head::<LONG_ROOM>(index, op, ack, room).with_seq(seq), &[])
}

/// The memory of an operation that must wait: its own pieces, or a private copy for an inject.
pub(crate) fn retain_memory(iov: &[Iov], flags: OpFlags) -> (IovList, Option<Owned>) {
    if planted!(Bug::InjectNotCopied, !flags.contains(OpFlags::INJECT), true) {
        return (SmallVec::from_slice(iov), None);
    }
    let mut owned = Owned::new(mem::to_vec(iov));
    (smallvec::smallvec![owned.iov()], Some(owned))
}

/// Builds the head of an RTS. `ack`: the sender requests an answer when all is received, which also implies the
/// arrival. `room`: the length of a message, if the peer may access this side's memory.
fn rts_head<const ROOM: usize>(index: OpId, op: &TxOp, ack: bool, room: Option<usize>) -> Writer<ROOM> {
    let mut bits = 0;
    bits |= if op.flags().contains(OpFlags::TAGGED) { F_TAGGED } else { 0 };
    bits |= if op.flags().contains(OpFlags::DATA) { F_DATA } else { 0 };
    bits |= if op.kind() == Kind::Collective { F_COLLECTIVE } else { 0 };
    bits |= if ack { F_ACK } else { 0 };
    let source = room.map_or_else(SmallVec::new, |mailbox_bytes| wire_iov(op.iov(), mailbox_bytes));
    let mut w = Writer::new(kind::RTS, bits);
    w.put(&Rts {
        op: index.get().into(),
        iov_count: u32::try_from(source.len()).unwrap_or(0).into(),
        tag: op.tag().into(),
        data: op.data().into(),
        len: op.len().into(),
    });
    for piece in &source {
        w.put(piece);
    }
    w
}

impl State {
    #[inline]
    pub(crate) fn complete_send(&mut self, op: &SendOp<'_>, len: usize) {
        self.completions.push(Completion {
            len,
            tag: op.tag,
            data: op.data,
            ..Completion::new(Kind::Send, op.ctx, op.flags.into())
        });
    }

    /// Queues a FIN, which reports the end of the peer's operation. `window` is that of [`Fin`].
    pub(crate) fn queue_fin(&mut self, peer_id: PeerId, op: u32, status: Status, window: u64) {
        let mut w = Short::new(kind::FIN, 0);
        w.put(&Fin { op: op.into(), status: status.to_wire().into(), window: window.into() });
        self.peers.defer_message(peer_id, &w);
    }

    /// Queues an acknowledgement of the peer's operation. One message carries several of them.
    #[inline]
    pub(crate) fn queue_ack(&mut self, peer_id: PeerId, op: u32) {
        self.peers.queues(peer_id).push_ack(op);
        self.peers.activate(peer_id);
    }

    pub(crate) fn on_fin(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let fin: Fin = r.take().ok_or(Violation)?;
        let status = Status::from_wire(fin.status.get()).ok_or(Violation)?;
        if fin.op.get() == wire::NO_OP {
            self.peers[peer_id].nameless_failed()?;
            self.nameless_fault(status);
            return Ok(());
        }
        self.op_ended(peer_id, OpId::new(fin.op.get()), fin.window.get(), status)
    }

    pub(crate) fn on_ack(&mut self, peer_id: PeerId, count: u8, mut r: Reader<'_>) -> Result<(), Violation> {
        for _ in 0..count {
            let op: U32 = r.take().ok_or(Violation)?;
            self.op_ended(peer_id, OpId::new(op.get()), 0, Status::Ok)?;
        }
        Ok(())
    }

    fn op_ended(&mut self, peer_id: PeerId, index: OpId, window: u64, status: Status) -> Result<(), Violation> {
        let confirms = self.peers[peer_id].has(PathFlags::CONFIRMS);
        let op = self.op_of(peer_id, index)?;
        if op.pending() == 0 {
            return Err(Violation);
        }
        if op.kind() == Kind::FetchAtomic {
            return self.fetch_refused(peer_id, index, window, status);
        }
        if op.kind() == Kind::Read {
            return self.read_ended(peer_id, index, window, status);
        }
        if let Some(fault) = status.fault() {
            op.fail(fault);
        }
        let confirmed = match op.kind() {
            Kind::Write => window == wire::CONFIRMED_FIN,
            kind => kind == Kind::Atomic && status != Status::Ok,
        };
        if confirmed && confirms {
            // The confirmation follows.
            return Ok(());
        }
        op.answered();
        self.finish_op(index);
        Ok(())
    }

    /// Notes that the peer has executed, or refused, all messages before message `number`.
    pub(crate) fn requests_confirmed(&mut self, peer_id: PeerId, number: u32) -> Result<(), Violation> {
        let peer = &self.peers[peer_id];
        if !peer.has(PathFlags::CONFIRMS) || is_before(peer.tx_seq(), number) {
            return Err(Violation);
        }
        while let Some(index) = self.peers[peer_id].queues_mut().and_then(|queues| queues.take_confirmed(number)) {
            let op = self.op_of(peer_id, index)?;
            if op.pending() == 0 || !matches!(op.kind(), Kind::Write | Kind::Atomic) {
                return Err(Violation);
            }
            op.answered();
            self.finish_op(index);
        }
        self.peers.return_queues(peer_id);
        Ok(())
    }

    /// Reports that an unacknowledged operation failed at the target.
    fn nameless_fault(&mut self, status: Status) {
        self.completions.push(Completion::failed(
            Kind::Write,
            crate::api::Context::default(),
            CompletionFlags::empty(),
            status.fault().unwrap_or(Fault::Revoked),
        ));
    }

    pub(crate) fn on_credit(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let bytes: U64 = r.take().ok_or(Violation)?;
        let peer = &mut self.peers[peer_id];
        peer.add_credit(bytes.get())?;
        Ok(())
    }
}

impl Status {
    pub(crate) fn fault(self) -> Option<Fault> {
        match self {
            Self::Ok => None,
            Self::BadKey => Some(Fault::BadKey),
            Self::BadRange => Some(Fault::BadRange),
            Self::Revoked => Some(Fault::Revoked),
            Self::NoMemory => Some(Fault::NoMemory),
        }
    }
}
