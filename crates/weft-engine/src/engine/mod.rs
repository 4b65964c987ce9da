//! [`Engine`]: one endpoint, one state machine.
//!
//! Place in the data flow: weft-fi calls an operation (`send`, `recv`, `write`, `read`: files `msg` and
//! `rma`) or [`Engine::progress`], then drains [`Engine::completions`]. The engine calls its device, the
//! device calls the engine's core ([`crate::engine::state`]) while it polls, and what the core wants sent is sent here
//! afterwards.
//!
//! Invariants: no I/O, no clock, no thread, nothing iterated in hash order; every error return is without
//! side effect; the completion of an operation is the last thing that happens to it.

mod atomic;
mod claims;
mod connection;
mod datagram;
mod ids;
mod links;
mod ops;
mod peer;
mod peers;
mod prefetch;
mod probe;
mod recv;
mod registrations;
mod remote_events;
mod rma;
mod send;
mod shared_recv;
mod state;
pub mod stats;
mod strangers;
mod transfer;

pub(crate) use atomic::MAX_ATOMIC_BYTES;
pub use connection::{ConnEvent, MAX_CONN_DATA, PEER, Role};
pub(crate) use ids::PeerId;
pub(crate) use peer::{HEADER_BYTES, ORDERED_RMA_BYTES};
pub use probe::Probe;
pub(crate) use send::EAGER_COST;
pub use shared_recv::{Pool, PooledReleases, ReleaseGuard};

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::{ADDR_NONE, Addr, Book, Completion, Config, Context, Error, Fault, Kind, OpFlags};
use crate::bugs::planted;
use crate::engine::ops::TxOp;
use crate::engine::peer::{Deferred, PROMPT_REPLY_BYTES, Peer, PeerState, QueueKinds, reply_cost};
use crate::engine::peers::Peers;
use crate::engine::registrations::Registrations;
use crate::engine::state::State;
use crate::mem::{self, Iov};
use crate::mrcache::{Limits, MrCache};
use crate::name::EpName;
use crate::nic::{Full, Nic};
use crate::wire::{Short, kind};

/// One endpoint.
pub struct Engine<N: Nic> {
    pub(crate) nic: N,
    pub(crate) state: State,
    /// Kept to reuse its allocation.
    round: Vec<PeerId>,
}

/// The peers of an engine, by number.
#[derive(Clone, Copy)]
pub struct PeerNames<'a>(&'a Peers);

impl PeerNames<'_> {
    /// The name of the peer that a `Fault::Stranger` tells of.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<EpName> {
        self.0.as_slice().get(number as usize).map(|peer| peer.name)
    }
}

/// Whether an operation has left the TX queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Started {
    /// It has.
    Sent,
    /// The device is full, or something else must happen first.
    Blocked,
}

impl<N: Nic> Engine<N> {
    /// An endpoint over `nic`, with an empty address book.
    pub fn new(config: Config, nic: N) -> Self {
        let state = Self::new_state(config, &nic);
        Self { nic, state, round: Vec::new() }
    }

    /// As [`Self::new`], for callers with little stack: an endpoint takes some kilobytes.
    pub fn boxed(config: Config, nic: Box<N>) -> Box<Self> {
        let state = Self::new_state(config, &nic);
        Box::new(Self { nic: *nic, state, round: Vec::new() })
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

    /// The device, for what is particular to it (parking, statistics).
    pub fn nic_mut(&mut self) -> &mut N {
        &mut self.nic
    }

    /// The endpoint's name.
    pub fn name(&self) -> EpName {
        self.state.me
    }

    /// Where to look addresses up from now on.
    pub fn bind_book(&mut self, book: Book) {
        let shared = self.state.peers.bind_book(book);
        self.state.checks_strangers = shared || self.state.source_errors;
        if shared {
            // Each receive must first apply the changes that other processes have made to the book.
            self.state.fast_receives = 0;
        }
    }

    /// The book has gained `addr`: a peer that connected earlier as a stranger becomes known as `addr`.
    pub fn address_added(&mut self, addr: Addr, name: &EpName) {
        self.state.address_added(addr, name);
    }

    /// The book has lost `addr`: receives from there do not match any more, sends fail.
    pub fn address_removed(&mut self, addr: Addr) {
        self.state.addresses_removed(&[addr]);
    }

    /// A multi-receive buffer is released when fewer than so many bytes are left (FI_OPT_MIN_MULTI_RECV).
    pub fn set_min_multi_recv(&mut self, bytes: usize) {
        self.state.min_multi_recv = bytes;
    }

    /// Whether every access of a peer to any region is reported, not only those of regions with `events`.
    pub fn set_remote_events(&mut self, on: bool) {
        self.state.remote_events = on;
    }

    /// Whether a message whose source is in no address vector is reported by `Fault::Stranger` (FI_SOURCE_ERR).
    pub fn set_source_errors(&mut self, on: bool) {
        self.state.source_errors = on;
        self.state.checks_strangers = on || self.state.peers.shares_book();
    }

    /// The registration cache, where the device demands registration.
    pub fn mr_cache(&mut self) -> Option<&mut MrCache> {
        self.state.registrations.as_mut().map(|registrations| &mut registrations.cache)
    }

    /// New limits for the registration cache, which hold when this returns, but for what is in use.
    pub fn limit_mr_cache(&mut self, limits: Limits) {
        if let Some(registrations) = &mut self.state.registrations {
            registrations.cache.set_limits(limits);
        }
        self.settle();
    }

    /// The completions, the names of the peers that they tell of, and what those that are POOLED have to ask
    /// before they are handed on.
    #[inline]
    pub fn outcome(&mut self) -> (&mut Vec<Completion>, PeerNames<'_>, PooledReleases<'_>) {
        let State { completions, peers, pool, pooled_releases, .. } = &mut self.state;
        (completions, PeerNames(peers), PooledReleases::new(pool.as_ref(), pooled_releases))
    }

    /// What has completed, in order; the caller drains it after every call into the engine.
    #[inline]
    pub fn completions(&mut self) -> &mut Vec<Completion> {
        &mut self.state.completions
    }

    /// How many more operations may be accepted before `Again`, wherever they go.
    pub fn tx_free(&self) -> usize {
        let longest = self.state.peers.as_slice().iter().map(Peer::queued).max().unwrap_or(0);
        self.state.config.tx_depth.saturating_sub(longest)
    }

    /// Operations that have been accepted and are not complete.
    pub fn incomplete(&self) -> usize {
        self.state.ops.len()
    }

    /// How many more receives of either kind may be posted before `Again`.
    pub fn rx_free(&self) -> usize {
        let longest = self.state.tagged.posted.len().max(self.state.untagged.posted.len());
        self.state.config.rx_depth.saturating_sub(longest)
    }

    /// The windows of eager bytes shared with the peer at `addr`, while it is connected: what may still be
    /// sent there, and what it has used here and not been given back.
    pub fn window(&self, addr: Addr) -> Option<(u64, u64)> {
        let peer = self.state.peers.get(self.state.peers.known(addr)?)?;
        peer.link().map(|_| (peer.tx_credit, peer.rx_used))
    }

    /// How many receives are posted (tagged and untagged).
    pub fn posted_receives(&self) -> usize {
        self.state.tagged.posted.len() + self.state.untagged.posted.len()
    }

    /// How many messages wait unmatched (tagged and untagged).
    pub fn unexpected_messages(&self) -> usize {
        self.state.tagged.unexpected.len() + self.state.untagged.unexpected.len()
    }

    /// Whether every accepted send, read and write has completed and left (what fi_close waits for, within a bound).
    pub fn quiescent(&self) -> bool {
        self.state.ops.is_empty()
            && !self.state.links.has_work()
            && self.state.peers.as_slice().iter().all(|peer| !peer.has_work())
            && self.nic.drained()
    }

    /// Whether nothing at all is under way, transfers of peers included (a leak check for tests).
    pub fn at_rest(&self) -> bool {
        self.quiescent()
            && self.state.transfers.len() == 0
            && self.state.parts.iter().all(|(_, parts)| parts.is_idle())
            && self.state.registrations.as_ref().is_none_or(|registrations| registrations.is_idle())
    }

    /// Whether a round of progress could move something on before the device brings anything.
    pub fn has_work(&self) -> bool {
        self.state.peers.has_active() || self.state.links.has_work()
    }

    /// Says goodbye to all peers. After this only `progress` until `nic().drained()`, then drop.
    pub fn shutdown(&mut self) {
        for peer_id in self.state.peers.ids() {
            if !matches!(self.state.peers[peer_id].state, PeerState::Idle | PeerState::Vacant) {
                self.state.reset_peer(peer_id, crate::nic::LinkError::Closed);
            }
        }
        self.state.cancel_queries();
        self.close_pending_calls();
        self.run_links();
        self.settle();
        self.nic.flush();
    }

    /// One round of progress: RX, deferred work, TX. Returns 0 when nothing happened.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        let mut events = self.nic.poll(&mut self.state);
        if self.state.links.has_work() {
            events += usize::from(self.run_links());
        }
        if self.state.peers.has_active() {
            events += self.run_active();
            // What has just been handed to the device as bulk need not wait until somebody asks again.
            if std::mem::take(&mut self.state.bulk_started) {
                events += self.nic.poll(&mut self.state);
                if self.state.links.has_work() {
                    // Links that end are closed before the memory of their transfers is let go.
                    events += usize::from(self.run_links());
                }
                events += self.run_active();
            }
        }
        self.settle();
        self.nic.flush();
        events
    }

    /// Memory that nobody uses any more is deregistered before the client hears of it.
    #[inline(always)]
    pub(crate) fn settle(&mut self) {
        if N::REGISTERS
            && let Some(registrations) = &mut self.state.registrations
        {
            registrations.cache.settle(&mut self.nic);
        }
    }

    // ---- accepting ---------------------------------------------------------------------------

    /// Accepts an operation that needs more than one step. [`Self::run_peer`], which follows, takes the first:
    /// called from here it would have the operation's copy below it on the client's stack.
    ///
    /// A place in the TX queue is an operation's until it has left. So progress alone frees places, and one
    /// peer takes none of another's. An operation that has left keeps its [`TxOp`], however long the peer's
    /// client lets it wait.
    #[inline(always)] // Or else the operation is copied once more.
    pub(crate) fn enqueue(&mut self, op: TxOp) -> Result<(), Error> {
        let full = self.state.peers[op.peer].queued() >= self.state.config.tx_depth;
        if full && planted!(Bug::AgainWithEffect, true, op.kind != Kind::Send) {
            return Err(Error::Again);
        }
        let peer_id = op.peer;
        let index = self.state.ops.push(|| op);
        self.state.peers.queues(peer_id).tx.push_back(index);
        planted!(Bug::AgainWithEffect, Ok(()), if full { Err(Error::Again) } else { Ok(()) })
    }

    /// Here is an inject that must leave ([`OpFlags::must_leave`]) and cannot now: `Again`, and the way is
    /// made free. If the peer turned out to be out of reach, the inject is accepted and fails.
    #[cold]
    pub(crate) fn inject_must_wait(
        &mut self,
        peer_id: PeerId,
        kind: Kind,
        ctx: Context,
        flags: OpFlags,
    ) -> Result<(), Error> {
        let peer = &mut self.state.peers[peer_id];
        if let Some(why) = peer.connect_failure.take() {
            self.state.drop_routes(peer_id);
            self.state.release_service_address(peer_id);
            self.state.completions.push(Completion {
                kind,
                ctx,
                flags,
                len: 0,
                buf: 0,
                tag: 0,
                data: 0,
                src: ADDR_NONE,
                fault: Some(Fault::Link(why)),
            });
            return Ok(());
        }
        if peer.state == PeerState::Idle {
            self.dial(peer_id);
        }
        Err(Error::Again)
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Deferred work and TX of every connection that has some. Returns how many connections had.
    pub(crate) fn run_active(&mut self) -> usize {
        if !self.state.peers.has_active() {
            return 0;
        }
        let mut round = self.state.peers.take_active(std::mem::take(&mut self.round));
        let mut moved = 0;
        for &peer_id in &round {
            self.state.peers[peer_id].active = false;
            moved += usize::from(self.run_peer(peer_id));
        }
        if self.state.strangers_exceed() {
            self.shed_strangers();
        }
        round.clear();
        self.round = round;
        moved
    }

    /// Works off the queues of one connection; what the device does not take now stays on the active list.
    /// Returns whether anything moved.
    ///
    /// Functions with large buffers are not in line here: the buffers of all of them would be on the client's
    /// stack at once.
    pub(crate) fn run_peer(&mut self, peer_id: PeerId) -> bool {
        let moved = self.run_queues(peer_id);
        if self.state.peers[peer_id].addr == ADDR_NONE {
            self.account_device(peer_id);
        }
        moved
    }

    fn run_queues(&mut self, peer_id: PeerId) -> bool {
        let peer = &self.state.peers[peer_id];
        let Some(queues) = peer.queues.as_ref() else { return false };
        let kinds = queues.kinds();
        if kinds.is_empty() {
            self.state.peers.return_queues(peer_id);
            return false;
        }
        match peer.state {
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
        let name = self.state.peers[peer_id].name;
        match self.nic.connect(&name) {
            Ok(link) => {
                self.state.links.dialing(link, peer_id);
                self.state.peers[peer_id].state = PeerState::Connecting(link);
            }
            Err(why) => self.state.fail_peer(peer_id, why),
        }
    }

    #[inline(never)]
    fn run_deferred(&mut self, peer_id: PeerId) -> bool {
        let mut moved = false;
        while let Some(work) = self.state.peers.queues(peer_id).deferred.pop_front() {
            if self.run_work(peer_id, &work).is_err() {
                self.state.peers.queues(peer_id).deferred.push_front(work);
                break;
            }
            moved = true;
        }
        moved
    }

    fn run_work(&mut self, peer_id: PeerId, work: &Deferred) -> Result<(), Full> {
        match work {
            Deferred::Message(bytes) => self.send_sequenced(peer_id, bytes, &[]),
            Deferred::Reply { op, iov, copy, .. } => {
                let mut w = Short::new(kind::READ_DATA, 0);
                w.put(op);
                self.send_sequenced(peer_id, w.bytes(), iov)?;
                if copy.is_some() {
                    let copied = &mut self.state.peers.queues(peer_id).copied;
                    *copied = copied.saturating_sub(reply_cost(mem::total_len(iov) as u64));
                }
                Ok(())
            }
        }
    }

    /// Sends a message of the connection's stream under its next number.
    pub(crate) fn send_sequenced(&mut self, peer_id: PeerId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let peer = &mut self.state.peers[peer_id];
        let Some(link) = peer.link() else { return Ok(()) };
        let mut bytes: SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]> = SmallVec::from_slice(head);
        crate::wire::number(&mut bytes, peer.tx_seq);
        self.nic.send(link, &bytes, body)?;
        peer.tx_seq = peer.tx_seq.wrapping_add(1);
        Ok(())
    }

    fn run_acks(&mut self, peer_id: PeerId) -> bool {
        /// Operation numbers in one ACK: the count must fit one byte, the message the smallest mailbox.
        const BATCH: usize = 48;
        let peer = &mut self.state.peers[peer_id];
        let (Some(link), Some(queues)) = (peer.link(), peer.queues.as_mut()) else { return false };
        let mut sent = 0;
        for batch in queues.acks.chunks(BATCH) {
            let mut w =
                crate::wire::Writer::<{ 8 + BATCH * 4 }>::new(kind::ACK, u8::try_from(batch.len()).unwrap_or(0));
            for op in batch {
                w.put(&U32::new(*op));
            }
            if self.nic.send(link, w.with_seq(peer.tx_seq), &[]).is_err() {
                break;
            }
            peer.tx_seq = peer.tx_seq.wrapping_add(1);
            sent += batch.len();
        }
        queues.acks.drain(..sent);
        sent > 0
    }

    fn run_tx(&mut self, peer_id: PeerId) -> bool {
        let mut moved = false;
        loop {
            planted!(Bug::OrderSwapped, self.state.swap_queued(peer_id));
            let peer = &self.state.peers[peer_id];
            let Some(&index) = peer.queues.as_ref().and_then(|queues| queues.tx.front()) else { return moved };
            let Some(op) = self.state.ops.get(index) else {
                self.state.peers.queues(peer_id).tx.pop_front();
                continue;
            };
            let fresh = op.next_part == 0;
            if fresh && planted!(Bug::FenceIgnored, peer.holds_back(op.flags), false) {
                return moved;
            }
            let started = if op.kind == Kind::Send { self.start_send(index) } else { self.start_rma(index) };
            if started == Started::Blocked {
                self.state.peers[peer_id].counters().retries += 1;
                return moved;
            }
            moved = true;
            self.state.peers.queues(peer_id).tx.pop_front();
            let what = |op: &TxOp| (op.parts(), op.kind != Kind::Send, op.awaits_match());
            let (parts, access, unmatched) = self.state.ops.get(index).map_or((1, false, false), what);
            let peer = &mut self.state.peers[peer_id];
            peer.outstanding = peer.outstanding.saturating_add(parts);
            peer.unmatched += u32::from(unmatched);
            if access {
                let extra = peer.extra();
                extra.accesses = extra.accesses.saturating_add(parts);
            }
            self.state.finish_op(index);
        }
    }
}

impl State {
    /// Only the planted bug `OrderSwapped` does this: the second queued operation changes places with the first.
    fn swap_queued(&mut self, peer_id: PeerId) {
        let Self { peers, ops, .. } = self;
        if let Some(queues) = peers[peer_id].queues.as_mut()
            && queues.tx.len() > 1
            && ops.get(queues.tx[0]).is_some_and(|op| op.next_part == 0)
        {
            queues.tx.swap(0, 1);
        }
    }
}
