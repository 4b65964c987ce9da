//! [`Engine`]: the state machine of one endpoint.
//!
//! Place in the data flow: weft-fi starts an operation (`send.rs`, `recv.rs`, `rma.rs`, `atomic.rs`) or calls
//! [`Engine::progress`], and then drains [`Engine::completions`]. The engine calls its device. While the device
//! polls, it calls the engine's [`State`](crate::engine::state). Messages that result are sent here afterwards.
//!
//! Invariants: the engine does no I/O, reads no clock, starts no thread, and iterates nothing in hash order. An
//! error return has no side effect. The completion of an operation is the operation's last effect.

mod am;
mod atomic;
mod call_back;
mod claims;
mod collective_op;
mod collectives;
mod connection;
mod datagram;
mod direct;
mod immediate;
mod leftovers;
mod links;
mod ops;
mod own;
mod partition;
mod peer;
mod peers;
mod prefetch;
mod probe;
mod receives;
mod recv;
mod regions;
mod registrations;
mod remote_events;
mod rma;
mod send;
mod shared_recv;
mod state;
pub mod stats;
mod strangers;
mod transfer;
pub mod waits;

pub(crate) use atomic::MAX_ATOMIC_BYTES;
pub use collective_op::{CollectiveOp, Custom, CustomFn, Elements, GroupId};
pub use collectives::Performed;
pub use connection::{ConnEvent, MAX_CONN_DATA, PEER};
pub use shared_recv::{Pool, PooledReleases, ReleaseGuard};

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::{ADDR_NONE, Addr, Book, Completion, Config, Context, Error, Fault, Kind, OpFlags};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::am::Active;
use crate::engine::call_back::CallBacks;
use crate::engine::claims::AddressQuery;
use crate::engine::collectives::Collectives;
use crate::engine::connection::Connection;
use crate::engine::immediate::ImmediateReplies;
use crate::engine::leftovers::Leftovers;
use crate::engine::links::Links;
use crate::engine::ops::{Outgoing, TxOp};
use crate::engine::peer::{Deferred, PROMPT_REPLY_BYTES, Peer, PeerState, QueueKinds, Quota, request_limit};
use crate::engine::peers::Peers;
use crate::engine::receives::Incoming;
use crate::engine::registrations::Registrations;
use crate::engine::remote_events::Target;
use crate::engine::strangers::Strangers;
use crate::ids::{self, PeerId};
use crate::mem::{self, Iov};
use crate::mrcache::{Limits, MrCache};
use crate::name::EpName;
use crate::nic::{Full, Nic};
use crate::wire::{Short, kind};

/// The state of an engine, apart from its device. Each part has methods of its own; messages and operations that need
/// several parts are methods of this type, in the files of this folder.
pub(crate) struct State {
    config: Config,
    me: EpName,
    peers: Peers,
    strangers: Strangers,
    leftovers: Leftovers,
    links: Links,
    /// Pending queries for the endpoints at addresses.
    address_queries: Vec<AddressQuery>,
    call_backs: CallBacks,
    outgoing: Outgoing,
    incoming: Incoming,
    target: Target,
    /// Short answers to requests of the poll that is under way.
    prompts: ImmediateReplies,
    /// Registrations of transfers and operations, if the device demands them.
    registrations: Option<Box<Registrations>>,
    /// The device has accepted bulk data since the last poll.
    bulk_started: bool,
    completions: Vec<Completion>,
    /// Messages of strangers are reported as such.
    source_errors: bool,
    /// Messages of strangers do not take the fast path, because they are reported or the book may have changed.
    checks_strangers: bool,
    connection: Connection,
    /// The handler of active messages and their credits. `None`: the engine takes none.
    active: Option<Box<Active>>,
    /// The groups. `None` before the first group or the first message for a group.
    collectives: Option<Box<Collectives>>,
    /// Number of dropped datagrams.
    dropped: u64,
    /// Results of the atomic under way in mapped memory, kept to reuse the buffer.
    results: Vec<u8>,
    /// Accesses in mapped memory since [`Engine::take_round_due`] returned true.
    direct_accesses: u32,
}

impl State {
    fn new(config: Config, me: EpName) -> Self {
        Self {
            me,
            peers: Peers::new(),
            strangers: Strangers::default(),
            leftovers: Leftovers::default(),
            links: Links::default(),
            address_queries: Vec::new(),
            call_backs: CallBacks::default(),
            incoming: Incoming::new(&config),
            target: Target::new(config.probe),
            prompts: ImmediateReplies::default(),
            outgoing: Outgoing::new(request_limit(config.tx_depth)),
            registrations: None,
            bulk_started: false,
            completions: Vec::with_capacity(64),
            source_errors: false,
            checks_strangers: false,
            connection: Connection::new(config.role),
            active: None,
            collectives: None,
            dropped: 0,
            results: Vec::new(),
            direct_accesses: 0,
            config,
        }
    }
}

/// The engine of one endpoint.
pub struct Engine<N: Nic> {
    nic: N,
    state: State,
    /// An empty list, kept to reuse its memory.
    round: Vec<PeerId>,
}

/// The names of an engine's peers, by number.
#[derive(Clone, Copy)]
pub struct PeerNames<'a>(&'a Peers);

impl PeerNames<'_> {
    /// The name of the peer whose number is in a `Fault::Stranger`.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<EpName> {
        self.0.as_slice().get(number as usize).map(|peer| peer.name())
    }
}

/// Result of an attempt to send a queued operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// The operation has left the TX queue.
    Sent,
    /// The device is full, or the operation must wait for others.
    Blocked,
}

impl<N: Nic> Engine<N> {
    /// Makes an engine over `nic`, with an empty address book.
    pub fn new(config: Config, nic: N) -> Self {
        let state = Self::new_state(config, &nic);
        Self { nic, state, round: Vec::new() }
    }

    /// Makes an engine on the heap, for callers with little stack: an engine takes some kilobytes.
    pub fn boxed(config: Config, nic: Box<N>) -> Box<Self> {
        let state = Self::boxed_state(config, &nic);
        Self::assemble(nic, state)
    }

    #[inline(never)] // Its frame ends before that of `assemble` begins.
    fn boxed_state(config: Config, nic: &N) -> Box<State> {
        Box::new(Self::new_state(config, nic))
    }

    #[inline(never)] // See `boxed_state`.
    #[expect(clippy::boxed_local, reason = "the parts must not lie in the caller's frame")]
    fn assemble(nic: Box<N>, state: Box<State>) -> Box<Self> {
        Box::new(Self { nic: *nic, state: *state, round: Vec::new() })
    }

    fn new_state(config: Config, nic: &N) -> State {
        let mut state = State::new(config, nic.name());
        if N::REGISTERS {
            state.registrations =
                nic.demands().map(|demands| Box::new(Registrations::new(MrCache::new(demands, config.mr_cache))));
        }
        state
    }

    /// The device.
    pub fn nic(&self) -> &N {
        &self.nic
    }

    /// The device, for functions that only this device has (parking, statistics).
    pub fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// The endpoint's name.
    pub fn name(&self) -> EpName {
        self.state.me
    }

    /// Whether another endpoint of this host is linked. Messages inside the host then pass through this engine.
    #[must_use]
    pub fn has_near_peer(&self) -> bool {
        let me = &self.state.me;
        let is_near = |peer: &Peer| {
            let name = peer.name();
            peer.is_in_use() && name.host_id() == me.host_id() && !name.same_endpoint(me)
        };
        me.host_id() != 0 && self.state.peers.iter().any(|(_, peer)| is_near(peer))
    }

    /// Whether a tagged receive is posted or an operation is not complete. Other receives may be posted for messages
    /// that a client does not expect.
    #[must_use]
    pub fn is_waiting(&self) -> bool {
        self.state.incoming.matcher(crate::matching::Space::Tagged).posted().len() > 0 || self.state.outgoing.len() > 0
    }

    /// Sets the address book.
    pub fn bind_book(&mut self, book: Book) {
        let shared = self.state.peers.bind_book(book);
        self.state.checks_strangers = shared || self.state.source_errors;
        if shared {
            // Each receive must first apply the changes that other processes have made to the book.
            self.state.incoming.close_fast_path();
        }
    }

    /// Notes that the book has gained `addr`. A peer that is connected as a stranger gets this address.
    pub fn address_added(&mut self, addr: Addr, name: &EpName) {
        self.state.address_added(addr, name);
    }

    /// Notes that the book has lost `addr`. Sends to it fail, and receives from it match no longer.
    pub fn address_removed(&mut self, addr: Addr) {
        self.state.addresses_removed(&[addr]);
    }

    /// Sets the number of bytes below which the rest of a multi-receive buffer is released
    /// (FI_OPT_MIN_MULTI_RECV).
    pub fn set_min_multi_recv(&mut self, bytes: usize) {
        self.state.incoming.receives().set_min_multi_recv(bytes);
    }

    /// Sets whether all accesses of peers are reported. Otherwise only those to regions with `events` are.
    pub fn set_remote_events(&mut self, on: bool) {
        self.state.target.report_all(on);
    }

    /// Sets whether a message of a source in no address vector is reported by `Fault::Stranger`
    /// (FI_SOURCE_ERR).
    pub fn set_source_errors(&mut self, on: bool) {
        self.state.source_errors = on;
        self.state.checks_strangers = on || self.state.peers.shares_book();
    }

    /// The registration cache, if the device demands registration.
    pub fn mr_cache(&mut self) -> Option<&mut MrCache> {
        self.state.registrations.as_mut().map(|registrations| registrations.cache_mut())
    }

    /// Sets new limits for the registration cache. They hold when this returns, except for registrations in
    /// use.
    pub fn limit_mr_cache(&mut self, limits: Limits) {
        if let Some(registrations) = &mut self.state.registrations {
            registrations.cache_mut().set_limits(limits);
        }
        self.settle();
    }

    /// The completions, the names of the peers that they mention, and the releases of pooled completions, which
    /// must be asked before delivery.
    #[inline]
    pub fn outcome(&mut self) -> (&mut Vec<Completion>, PeerNames<'_>, PooledReleases<'_>) {
        let State { completions, peers, incoming, .. } = &mut self.state;
        (completions, PeerNames(peers), incoming.releases())
    }

    /// The completions in order. The caller drains them after every call into the engine.
    #[inline]
    pub fn completions(&mut self) -> &mut Vec<Completion> {
        &mut self.state.completions
    }

    /// Number of operations to any one peer that can be accepted before `Again`.
    pub fn tx_free(&self) -> usize {
        let longest = self.state.peers.as_slice().iter().map(Peer::queued).max().unwrap_or(0);
        self.state.config.tx_depth.saturating_sub(longest)
    }

    /// Number of accepted operations that are not complete.
    pub fn incomplete(&self) -> usize {
        self.state.outgoing.len()
    }

    /// Number of receives of either kind that can be posted before `Again`.
    pub fn rx_free(&self) -> usize {
        let longest = self.state.incoming.most_posted();
        self.state.config.rx_depth.saturating_sub(longest)
    }

    /// The two windows of eager bytes with the peer at `addr`, if it is connected: the bytes that may still be sent
    /// there, and the bytes that the peer has used here. Returned bytes do not count as used.
    pub fn window(&self, addr: Addr) -> Option<(u64, u64)> {
        let peer = self.state.peers.get(self.state.peers.known(addr)?)?;
        peer.link().map(|_| (peer.tx_credit(), peer.rx_used()))
    }

    /// Number of posted receives, tagged and untagged.
    pub fn posted_receives(&self) -> usize {
        self.state.incoming.posted()
    }

    /// Number of unexpected messages, tagged and untagged.
    pub fn unexpected_messages(&self) -> usize {
        self.state.incoming.unexpected()
    }

    /// Whether every accepted send, read and write has completed and left. fi_close waits for this, within a
    /// limit.
    pub fn quiescent(&self) -> bool {
        self.state.outgoing.len() == 0
            && !self.state.links.has_work()
            && self.state.peers.as_slice().iter().all(|peer| !peer.has_work())
            && self.nic.drained()
    }

    /// Whether the engine is idle, including transfers of peers (a leak check for tests).
    pub fn at_rest(&self) -> bool {
        self.quiescent()
            && !self.state.outgoing.has_transfers()
            && self.state.target.is_idle()
            && self.state.registrations.as_ref().is_none_or(|registrations| registrations.is_idle())
    }

    /// Whether a round of progress could move something before the device delivers anything.
    pub fn has_work(&self) -> bool {
        self.state.peers.has_active() || self.state.links.has_work()
    }

    /// Closes the links of all peers, and accepts no more. After this, call only `progress` until
    /// `nic().drained()`, and then drop the engine.
    pub fn shutdown(&mut self) {
        self.state.links.refuse_more();
        for peer_id in self.state.peers.ids() {
            if !matches!(self.state.peers[peer_id].state(), PeerState::Idle | PeerState::Vacant) {
                self.state.reset_peer(peer_id, crate::nic::LinkError::Closed);
            }
        }
        self.state.cancel_queries();
        self.close_pending_calls();
        self.run_links();
        self.settle();
        self.nic.flush();
    }

    /// Makes one round of progress: RX, deferred work, TX. Returns the number of events, 0 if nothing happened.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        let mut events = self.poll_nic();
        if self.state.links.is_due() {
            events += self.run_due();
        }
        if self.state.peers.has_active() {
            events += self.run_active();
            if std::mem::take(&mut self.state.bulk_started) {
                events += self.progress_bulk();
            }
        }
        self.settle();
        self.nic.flush();
        events
    }

    /// Moves bulk operations that the device has just accepted, in the same round.
    #[inline(never)] // A second copy of the poll would be in each caller.
    fn progress_bulk(&mut self) -> usize {
        let mut events = self.poll_nic();
        if self.state.links.has_work() {
            // Links that end are closed before the memory of their transfers is released.
            events += usize::from(self.run_links());
        }
        events + self.run_active()
    }

    /// Polls the device, and sends the answers that cannot wait.
    #[inline(always)]
    fn poll_nic(&mut self) -> usize {
        let events = self.nic.poll(&mut self.state);
        if events == 0 || self.state.prompts.is_empty() { events } else { events + self.send_prompts() }
    }

    /// Deregisters unused memory, before the client learns that its operations are complete.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if N::REGISTERS
            && let Some(registrations) = &mut self.state.registrations
        {
            registrations.cache_mut().settle(&mut self.nic);
        }
    }

    // ---- accepting ---------------------------------------------------------------------------

    /// Queues an operation that needs more than one step. `make` builds it in its place. The caller then calls
    /// [`Self::run_peer`].
    ///
    /// An operation has a place in its peer's TX queue until it has left. Progress alone therefore frees
    /// places, and one peer takes none of another's. An operation that has left keeps its [`TxOp`], however
    /// long the peer's client takes.
    #[inline(always)] // Otherwise the operation would be copied.
    pub(crate) fn enqueue(&mut self, peer_id: PeerId, kind: Kind, make: impl FnOnce() -> TxOp) -> Result<(), Error> {
        let full = self.state.peers[peer_id].queued() >= self.state.config.tx_depth;
        if full && planted!(Bug::AgainWithEffect, true, kind != Kind::Send) {
            return Err(Error::Again);
        }
        let index = self.state.outgoing.push(&mut self.state.peers[peer_id], make);
        self.state.peers.queues(peer_id).push_op(index);
        planted!(Bug::AgainWithEffect, Ok(()), if full { Err(Error::Again) } else { Ok(()) })
    }

    /// Answers an inject that must leave at once ([`OpFlags::must_leave`]) and cannot: `Again`, after a link to
    /// the peer was started. If the peer turned out to be unreachable, the inject is accepted and fails.
    #[cold]
    pub(crate) fn inject_must_wait(
        &mut self,
        peer_id: PeerId,
        kind: Kind,
        ctx: Context,
        flags: OpFlags,
    ) -> Result<(), Error> {
        let peer = &mut self.state.peers[peer_id];
        if let Some(why) = peer.take_connect_failure() {
            self.state.drop_routes(peer_id);
            self.state.release_service_address(peer_id);
            self.state.completions.push(Completion::failed(kind, ctx, flags.into(), Fault::Link(why)));
            return Ok(());
        }
        if peer.state() == PeerState::Idle {
            self.dial(peer_id);
        }
        Err(Error::Again)
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Sends deferred work and queued operations of every peer that has some. Returns the number of peers for
    /// which something moved.
    pub(crate) fn run_active(&mut self) -> usize {
        if !self.state.peers.has_active() {
            return 0;
        }
        let mut round = self.state.peers.take_active(std::mem::take(&mut self.round));
        let mut moved = 0;
        for &peer_id in &round {
            self.state.peers[peer_id].set_active(false);
            moved += usize::from(self.run_peer(peer_id));
        }
        if self.state.strangers_exceed() {
            self.shed_strangers();
        }
        round.clear();
        self.round = round;
        moved
    }

    /// Works off the queues of one peer. Work that the device does not accept stays, and the peer stays on the
    /// active list. Returns whether anything moved.
    ///
    /// Functions with large buffers are not inlined here: otherwise all their buffers would be on the client's
    /// stack at once.
    pub(crate) fn run_peer(&mut self, peer_id: PeerId) -> bool {
        let moved = self.run_queues(peer_id) || self.dial_for_receives(peer_id);
        if self.state.peers[peer_id].addr() == ADDR_NONE {
            self.account_device(peer_id);
        }
        moved
    }

    fn run_queues(&mut self, peer_id: PeerId) -> bool {
        let peer = &self.state.peers[peer_id];
        let Some(queues) = peer.queues() else { return false };
        let kinds = queues.kinds();
        if kinds.is_empty() {
            self.state.peers.return_queues(peer_id);
            return false;
        }
        match peer.state() {
            PeerState::Idle => {
                self.dial(peer_id);
                true
            }
            PeerState::Connecting(_) | PeerState::Greeting(_) | PeerState::Vacant => false,
            PeerState::Up(_) => {
                let mut moved = kinds.contains(QueueKinds::DEFERRED) && self.run_deferred(peer_id);
                moved |= kinds.contains(QueueKinds::ACKS) && self.run_acks(peer_id);
                moved |= kinds.contains(QueueKinds::RESULTS) && self.run_results(peer_id);
                moved |= kinds.contains(QueueKinds::BULK) && self.run_bulk(peer_id);
                moved |= kinds.contains(QueueKinds::TX) && self.run_tx(peer_id);
                if self.state.peers[peer_id].has_work() {
                    self.state.peers.activate(peer_id);
                } else {
                    self.state.peers.return_queues(peer_id);
                }
                moved
            }
        }
    }

    pub(crate) fn dial(&mut self, peer_id: PeerId) {
        let name = self.state.peers[peer_id].name();
        match self.nic.connect(&name) {
            Ok(link) => {
                self.state.links.dialing(link, peer_id);
                self.state.peers[peer_id].set_state(PeerState::Connecting(link));
            }
            Err(why) => self.state.fail_peer(peer_id, why),
        }
    }

    #[inline(never)]
    fn run_deferred(&mut self, peer_id: PeerId) -> bool {
        let mut moved = false;
        while let Some(mut work) = self.state.peers.queues(peer_id).pop_deferred() {
            if self.run_work(peer_id, &mut work).is_err() {
                self.state.peers.queues(peer_id).retry_deferred(work);
                break;
            }
            moved = true;
        }
        moved
    }

    fn run_work(&mut self, peer_id: PeerId, work: &mut Deferred) -> Result<(), Full> {
        match work {
            Deferred::Collective(index) => self.send_queued_collective(peer_id, *index),
            Deferred::Region(key) => self.answer_question(peer_id, *key),
            Deferred::Message(bytes) => self.send_numbered(peer_id, bytes, &[]),
            Deferred::Reply { op, iov, copy, .. } => {
                let mut w = Short::new(kind::READ_DATA, 0);
                w.put(op);
                self.send_sequenced(peer_id, w.bytes(), iov)?;
                if copy.is_some() {
                    self.state.peers.queues(peer_id).copy_sent(mem::total_len(iov) as u64);
                }
                Ok(())
            }
        }
    }

    /// Sends a message of the peer's stream under its next number.
    pub(crate) fn send_sequenced(&mut self, peer_id: PeerId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let mut bytes: SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]> = SmallVec::from_slice(head);
        self.send_numbered(peer_id, &mut bytes, body)
    }

    /// [`Self::send_sequenced`] of a message that is numbered in its place.
    fn send_numbered(&mut self, peer_id: PeerId, head: &mut [u8], body: &[Iov]) -> Result<(), Full> {
        let peer = &mut self.state.peers[peer_id];
        let Some(link) = peer.link() else {
            cannot_happen!("deferred work is done on a link that is up");
            return Ok(());
        };
        crate::wire::number(head, peer.tx_seq());
        self.nic.send(link, head, body)?;
        peer.message_sent();
        Ok(())
    }

    fn run_acks(&mut self, peer_id: PeerId) -> bool {
        /// Number of operation numbers in one ACK. It must fit one byte, and the message the smallest mailbox.
        const BATCH: usize = 48;
        let peer = &mut self.state.peers[peer_id];
        let (Some(link), Some(queues)) = (peer.link(), peer.queues()) else { return false };
        let confirmation_due = queues.is_confirmation_due();
        let (mut sent, mut messages) = (0, 0);
        for batch in queues.acks().chunks(BATCH) {
            let mut w =
                crate::wire::Writer::<{ 8 + BATCH * 4 }>::new(kind::ACK, u8::try_from(batch.len()).unwrap_or(0));
            for op in batch {
                w.put(&U32::new(*op));
            }
            if self.nic.send(link, w.with_seq(peer.tx_seq().wrapping_add(messages)), &[]).is_err() {
                break;
            }
            messages += 1;
            sent += batch.len();
        }
        peer.messages_sent(messages);
        if let Some(queues) = peer.queues_mut() {
            queues.acks_sent(sent);
        }
        (confirmation_due && self.confirm_executed(peer_id)) || sent > 0
    }

    fn run_tx(&mut self, peer_id: PeerId) -> bool {
        let mut moved = false;
        loop {
            planted!(Bug::OrderSwapped, self.state.swap_queued(peer_id));
            let peer = &self.state.peers[peer_id];
            let Some(index) = peer.queues().and_then(|queues| queues.first_op()) else { return moved };
            let Some(op) = self.state.outgoing.op(index) else {
                cannot_happen!("a queued operation is in the table");
                self.state.peers.queues(peer_id).pop_op();
                continue;
            };
            let fresh = op.next_part() == 0;
            if fresh && planted!(Bug::FenceIgnored, peer.holds_back(op.flags()), false) {
                return moved;
            }
            let started = if op.is_message() { self.start_send(index) } else { self.start_rma(index) };
            if started == Started::Blocked {
                self.state.peers[peer_id].count_retry();
                return moved;
            }
            moved = true;
            self.state.peers.queues(peer_id).pop_op();
            self.state.op_sent(peer_id, index);
        }
    }
}

impl State {
    /// Counts the requests of an operation that has left, and ends the operation if it awaits no answer.
    #[inline(always)]
    pub(crate) fn op_sent(&mut self, peer_id: PeerId, index: ids::OpId) {
        let Some(op) = self.outgoing.op(index) else {
            return cannot_happen!("an operation that has left is in the table");
        };
        let peer = &mut self.peers[peer_id];
        peer.take(Quota::Ops, op.parts());
        if op.is_unmatched() {
            peer.take(Quota::Unmatched, 1);
        }
        if !op.is_message() {
            peer.take(Quota::Accesses, op.parts());
        }
        if !op.is_under_way() {
            self.finish_op(index);
        } else if !peer.tx_is_empty() {
            self.peers.activate(peer_id);
        }
    }

    /// The behaviour of the planted bug `OrderSwapped`: the first two queued operations are exchanged.
    fn swap_queued(&mut self, peer_id: PeerId) {
        let Self { peers, outgoing, .. } = self;
        if let Some(queues) = peers[peer_id].queues_mut()
            && queues.second_op().is_some()
            && queues.first_op().and_then(|op| outgoing.op(op)).is_some_and(|op| op.next_part() == 0)
        {
            queues.swap_ops();
        }
    }
}
