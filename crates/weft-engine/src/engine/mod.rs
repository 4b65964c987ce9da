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
pub(crate) use peer::{HEADER_BYTES, ORDERED_RMA_BYTES};
pub use probe::Probe;
pub(crate) use send::EAGER_COST;
pub use shared_recv::{Leaving, Left, Pool};

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::{ADDR_NONE, Addr, Book, Completion, Config, Context, Error, Fault, Kind, OpFlags};
use crate::bugs::planted;
use crate::engine::links::{LinkState, LinkWork};
use crate::engine::ops::TxOp;
use crate::engine::peer::{Deferred, Kinds, PROMPT_REPLY_BYTES, Vc, VcState, reply_cost};
use crate::engine::registrations::Held;
use crate::engine::state::Core;
use crate::mem::{self, Iov};
use crate::mrcache::{Limits, MrCache};
use crate::name::EpName;
use crate::nic::{Full, Nic};
use crate::wire::{Short, kind};

/// One endpoint.
pub struct Engine<N: Nic> {
    pub(crate) nic: N,
    pub(crate) core: Core,
    /// Kept to reuse its allocation.
    round: Vec<u32>,
}

/// The peers of an engine, by number.
#[derive(Clone, Copy)]
pub struct Peers<'a>(&'a [Vc]);

impl Peers<'_> {
    /// The name of the peer that a `Fault::Stranger` tells of.
    #[must_use]
    pub fn name(&self, number: u32) -> Option<EpName> {
        self.0.get(number as usize).map(|vc| vc.name)
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
        let core = Self::new_core(config, &nic);
        Self { nic, core, round: Vec::new() }
    }

    /// As [`Self::new`], for callers with little stack: an endpoint takes some kilobytes.
    pub fn boxed(config: Config, nic: Box<N>) -> Box<Self> {
        let core = Self::new_core(config, &nic);
        Box::new(Self { nic: *nic, core, round: Vec::new() })
    }

    fn new_core(config: Config, nic: &N) -> Core {
        let mut core = Core::new(config, nic.name());
        if N::REGISTERS {
            core.held = nic.demands().map(|demands| Box::new(Held::new(MrCache::new(demands, config.mr_cache))));
        }
        core
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
        self.core.me
    }

    /// Where to look addresses up from now on.
    pub fn bind_book(&mut self, book: Book) {
        self.core.followed = book.changes();
        if self.core.followed.is_some() {
            // Each receive is to see first what others have done to the book.
            self.core.fast_receives = 0;
        }
        self.core.book = book;
    }

    /// The book has gained `addr`: a peer that connected earlier as a stranger becomes known as `addr`.
    pub fn address_added(&mut self, addr: Addr, name: &EpName) {
        self.core.address_added(addr, name);
    }

    /// The book has lost `addr`: receives from there do not match any more, sends fail.
    pub fn address_removed(&mut self, addr: Addr) {
        self.core.addresses_removed(&[addr]);
    }

    /// A multi-receive buffer is released when fewer than so many bytes are left (FI_OPT_MIN_MULTI_RECV).
    pub fn set_min_multi_recv(&mut self, bytes: usize) {
        self.core.min_multi_recv = bytes;
    }

    /// Whether every access of a peer to any region is reported, not only those of regions with `events`.
    pub fn set_remote_events(&mut self, on: bool) {
        self.core.remote_events = on;
    }

    /// Whether a message whose source is in no address vector is reported by `Fault::Stranger` (FI_SOURCE_ERR).
    pub fn set_source_errors(&mut self, on: bool) {
        self.core.source_errors = on;
    }

    /// The registration cache, where the device demands registration.
    pub fn mr_cache(&mut self) -> Option<&mut MrCache> {
        self.core.held.as_mut().map(|held| &mut held.cache)
    }

    /// New limits for the registration cache, which hold when this returns, but for what is in use.
    pub fn limit_mr_cache(&mut self, limits: Limits) {
        if let Some(held) = &mut self.core.held {
            held.cache.set_limits(limits);
        }
        self.settle();
    }

    /// The completions, the names of the peers that they tell of, and what those that are POOLED have to ask
    /// before they are handed on.
    #[inline]
    pub fn outcome(&mut self) -> (&mut Vec<Completion>, Peers<'_>, Leaving<'_>) {
        let Core { completions, vcs, pool, leaving, .. } = &mut self.core;
        (completions, Peers(vcs), Leaving::new(pool.as_ref(), leaving))
    }

    /// What has completed, in order; the caller drains it after every call into the engine.
    #[inline]
    pub fn completions(&mut self) -> &mut Vec<Completion> {
        &mut self.core.completions
    }

    /// How many more operations may be accepted before `Again`, wherever they go.
    pub fn tx_free(&self) -> usize {
        let longest = self.core.vcs.iter().map(Vc::queued).max().unwrap_or(0);
        self.core.config.tx_depth.saturating_sub(longest)
    }

    /// Operations that have been accepted and are not complete.
    pub fn incomplete(&self) -> usize {
        self.core.ops.len()
    }

    /// How many more receives of either kind may be posted before `Again`.
    pub fn rx_free(&self) -> usize {
        let longest = self.core.tagged.posted.len().max(self.core.untagged.posted.len());
        self.core.config.rx_depth.saturating_sub(longest)
    }

    /// The windows of eager bytes shared with the peer at `addr`, while it is connected: what may still be
    /// sent there, and what it has used here and not been given back.
    pub fn window(&self, addr: Addr) -> Option<(u64, u64)> {
        let vc = self.core.vcs.get(self.core.known_vc(addr)? as usize)?;
        vc.link().map(|_| (vc.tx_credit, vc.rx_used))
    }

    /// How many receives are posted (tagged and untagged).
    pub fn posted_receives(&self) -> usize {
        self.core.tagged.posted.len() + self.core.untagged.posted.len()
    }

    /// How many messages wait unmatched (tagged and untagged).
    pub fn unexpected_messages(&self) -> usize {
        self.core.tagged.unexpected.len() + self.core.untagged.unexpected.len()
    }

    /// Whether every accepted send, read and write has completed and left (what fi_close waits for, within a bound).
    pub fn quiescent(&self) -> bool {
        self.core.ops.is_empty()
            && self.core.link_work.is_empty()
            && self.core.vcs.iter().all(|vc| !vc.has_work())
            && self.nic.drained()
    }

    /// Whether nothing at all is under way, transfers of peers included (a leak check for tests).
    pub fn at_rest(&self) -> bool {
        self.quiescent()
            && self.core.xfers.len() == 0
            && self.core.parts.iter().all(|(_, parts)| parts.rest())
            && self.core.held.as_ref().is_none_or(|held| held.rest())
    }

    /// Whether a round of progress could move something on before the device brings anything.
    pub fn has_work(&self) -> bool {
        !(self.core.active.is_empty() && self.core.link_work.is_empty())
    }

    /// Says goodbye to all peers. After this only `progress` until `nic().drained()`, then drop.
    pub fn shutdown(&mut self) {
        for vci in 0..self.core.vcs.len() {
            let vci = u32::try_from(vci).unwrap_or(u32::MAX);
            if !matches!(self.core.vcs[vci as usize].state, VcState::Idle | VcState::Vacant) {
                self.core.vc_end(vci, crate::nic::LinkError::Closed);
            }
        }
        self.core.ask_no_more();
        self.hang_up();
        self.run_links();
        self.settle();
        self.nic.flush();
    }

    /// One round of progress: RX, deferred work, TX. Returns 0 when nothing happened.
    #[inline(always)]
    pub fn progress(&mut self) -> usize {
        let mut events = self.nic.poll(&mut self.core);
        if !self.core.link_work.is_empty() {
            events += usize::from(self.run_links());
        }
        if !self.core.active.is_empty() {
            events += self.run_active();
            // What has just been handed to the device as bulk need not wait until somebody asks again.
            if std::mem::take(&mut self.core.hauled) {
                events += self.nic.poll(&mut self.core);
                if !self.core.link_work.is_empty() {
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
            && let Some(held) = &mut self.core.held
        {
            held.cache.settle(&mut self.nic);
        }
    }

    // ---- accepting ---------------------------------------------------------------------------

    /// Accepts an operation that needs more than one step. [`Self::run_vc`], which follows, takes the first:
    /// called from here it would have the operation's copy below it on the client's stack.
    ///
    /// A place in the TX queue is an operation's until it has left. So progress alone frees places, and one
    /// peer takes none of another's. An operation that has left keeps its [`TxOp`], however long the peer's
    /// client lets it wait.
    #[inline(always)] // Or else the operation is copied once more.
    pub(crate) fn enqueue(&mut self, op: TxOp) -> Result<(), Error> {
        let full = self.core.vcs[op.vc as usize].queued() >= self.core.config.tx_depth;
        if full && planted!(Bug::AgainWithEffect, true, op.kind != Kind::Send) {
            return Err(Error::Again);
        }
        let vci = op.vc;
        let index = self.core.ops.push(|| op);
        self.core.waiting(vci).tx.push_back(index);
        planted!(Bug::AgainWithEffect, Ok(()), if full { Err(Error::Again) } else { Ok(()) })
    }

    /// Here is an inject that must leave ([`OpFlags::must_leave`]) and cannot now: `Again`, and the way is
    /// made free. If the peer turned out to be out of reach, the inject is accepted and fails.
    #[cold]
    pub(crate) fn not_yet(&mut self, vci: u32, kind: Kind, ctx: Context, flags: OpFlags) -> Result<(), Error> {
        let vc = &mut self.core.vcs[vci as usize];
        if let Some(why) = vc.refused.take() {
            self.core.forget_way(vci);
            self.core.leave_service(vci);
            self.core.completions.push(Completion {
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
        if vc.state == VcState::Idle {
            self.dial(vci);
        }
        Err(Error::Again)
    }

    // ---- sending -----------------------------------------------------------------------------

    /// Messages of links themselves, and closes. Returns whether any left.
    pub(crate) fn run_links(&mut self) -> bool {
        self.run_asks();
        let mut work = std::mem::take(&mut self.core.link_work);
        let before = work.len();
        let nic = &mut self.nic;
        let mut stuck: SmallVec<[crate::nic::LinkId; 4]> = SmallVec::new();
        let mut said: SmallVec<[crate::nic::LinkId; 4]> = SmallVec::new();
        work.retain(|w: &LinkWork| {
            if w.link == LinkWork::ASK.link {
                return false;
            }
            if stuck.contains(&w.link) {
                return true;
            }
            let sent = w.message.as_ref().is_none_or(|m| nic.send(w.link, m, &[]).is_ok());
            if !sent {
                stuck.push(w.link);
                return true;
            }
            if w.close {
                nic.close(w.link);
            } else {
                said.push(w.link);
            }
            false
        });
        let moved = work.len() < before;
        for link in said {
            self.core.link_said(link);
        }
        // Closing makes no work; still, nothing may be lost if that ever changes.
        work.append(&mut self.core.link_work);
        self.core.lingering.retain(|(link, _)| work.iter().any(|w| w.link == *link));
        self.core.link_work = work;
        moved
    }

    /// Deferred work and TX of every connection that has some. Returns how many connections had.
    pub(crate) fn run_active(&mut self) -> usize {
        if self.core.active.is_empty() {
            return 0;
        }
        let mut round = std::mem::replace(&mut self.core.active, std::mem::take(&mut self.round));
        let mut moved = 0;
        for &vci in &round {
            self.core.vcs[vci as usize].active = false;
            moved += usize::from(self.run_vc(vci));
        }
        if self.core.strangers_exceed() {
            self.relieve();
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
    pub(crate) fn run_vc(&mut self, vci: u32) -> bool {
        let moved = self.run_queues(vci);
        if self.core.vcs[vci as usize].addr == ADDR_NONE {
            self.weigh(vci);
        }
        moved
    }

    fn run_queues(&mut self, vci: u32) -> bool {
        let vc = &self.core.vcs[vci as usize];
        let Some(waiting) = vc.waiting.as_ref() else { return false };
        let kinds = waiting.kinds();
        if kinds.is_empty() {
            self.core.queues.take_back(&mut self.core.vcs[vci as usize]);
            return false;
        }
        match vc.state {
            VcState::Idle => {
                self.dial(vci);
                true
            }
            VcState::Connecting(_) | VcState::Greeting(_) | VcState::Vacant => false,
            VcState::Up(_) => {
                let mut moved = kinds.contains(Kinds::DEFERRED) && self.run_deferred(vci);
                moved |= kinds.contains(Kinds::ACKS) && self.run_acks(vci);
                moved |= kinds.contains(Kinds::RESULTS) && self.run_results(vci);
                moved |= kinds.contains(Kinds::BULK) && self.run_bulk(vci);
                moved |= kinds.contains(Kinds::TX) && self.run_tx(vci);
                if self.core.vcs[vci as usize].has_work() {
                    self.core.activate(vci);
                } else {
                    self.core.queues.take_back(&mut self.core.vcs[vci as usize]);
                }
                moved
            }
        }
    }

    pub(crate) fn dial(&mut self, vci: u32) {
        let name = self.core.vcs[vci as usize].name;
        match self.nic.connect(&name) {
            Ok(link) => {
                let slot = self.core.link_mut(link);
                slot.state = LinkState::Dialing;
                slot.vc = vci;
                slot.rising = None;
                self.core.vcs[vci as usize].state = VcState::Connecting(link);
            }
            Err(why) => self.core.vc_fail(vci, why),
        }
    }

    #[inline(never)]
    fn run_deferred(&mut self, vci: u32) -> bool {
        let mut moved = false;
        while let Some(work) = self.core.waiting(vci).deferred.pop_front() {
            if self.run_work(vci, &work).is_err() {
                self.core.waiting(vci).deferred.push_front(work);
                break;
            }
            moved = true;
        }
        moved
    }

    fn run_work(&mut self, vci: u32, work: &Deferred) -> Result<(), Full> {
        match work {
            Deferred::Message(bytes) => self.numbered(vci, bytes, &[]),
            Deferred::Reply { op, iov, copy, .. } => {
                let mut w = Short::new(kind::READ_DATA, 0);
                w.put(op);
                self.numbered(vci, w.bytes(), iov)?;
                if copy.is_some() {
                    let copied = &mut self.core.waiting(vci).copied;
                    *copied = copied.saturating_sub(reply_cost(mem::total_len(iov) as u64));
                }
                Ok(())
            }
        }
    }

    /// Sends a message of the connection's stream under its next number.
    pub(crate) fn numbered(&mut self, vci: u32, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let vc = &mut self.core.vcs[vci as usize];
        let Some(link) = vc.link() else { return Ok(()) };
        let mut bytes: SmallVec<[u8; 16 + PROMPT_REPLY_BYTES]> = SmallVec::from_slice(head);
        crate::wire::number(&mut bytes, vc.tx_seq);
        self.nic.send(link, &bytes, body)?;
        vc.tx_seq = vc.tx_seq.wrapping_add(1);
        Ok(())
    }

    fn run_acks(&mut self, vci: u32) -> bool {
        /// Operation numbers in one ACK: the count must fit one byte, the message the smallest mailbox.
        const BATCH: usize = 48;
        let vc = &mut self.core.vcs[vci as usize];
        let (Some(link), Some(waiting)) = (vc.link(), vc.waiting.as_mut()) else { return false };
        let mut sent = 0;
        for batch in waiting.acks.chunks(BATCH) {
            let mut w =
                crate::wire::Writer::<{ 8 + BATCH * 4 }>::new(kind::ACK, u8::try_from(batch.len()).unwrap_or(0));
            for op in batch {
                w.put(&U32::new(*op));
            }
            if self.nic.send(link, w.with_seq(vc.tx_seq), &[]).is_err() {
                break;
            }
            vc.tx_seq = vc.tx_seq.wrapping_add(1);
            sent += batch.len();
        }
        waiting.acks.drain(..sent);
        sent > 0
    }

    fn run_tx(&mut self, vci: u32) -> bool {
        let mut moved = false;
        loop {
            planted!(Bug::OrderSwapped, self.core.swap_queued(vci));
            let vc = &self.core.vcs[vci as usize];
            let Some(&index) = vc.waiting.as_ref().and_then(|waiting| waiting.tx.front()) else { return moved };
            let Some(op) = self.core.ops.get(index) else {
                self.core.waiting(vci).tx.pop_front();
                continue;
            };
            let fresh = op.next_part == 0;
            if fresh && planted!(Bug::FenceIgnored, vc.holds_back(op.flags), false) {
                return moved;
            }
            let started = if op.kind == Kind::Send { self.start_send(index) } else { self.start_rma(index) };
            if started == Started::Blocked {
                self.core.vcs[vci as usize].tally().retries += 1;
                return moved;
            }
            moved = true;
            self.core.waiting(vci).tx.pop_front();
            let what = |op: &TxOp| (op.parts(), op.kind != Kind::Send, op.awaits_match());
            let (parts, access, unmatched) = self.core.ops.get(index).map_or((1, false, false), what);
            let vc = &mut self.core.vcs[vci as usize];
            vc.outstanding = vc.outstanding.saturating_add(parts);
            vc.unmatched += u32::from(unmatched);
            if access {
                let more = vc.more();
                more.accesses = more.accesses.saturating_add(parts);
            }
            self.core.finish_op(index);
        }
    }
}

impl Core {
    /// Only the planted bug `OrderSwapped` does this: the second queued operation changes places with the first.
    fn swap_queued(&mut self, vci: u32) {
        let Self { vcs, ops, .. } = self;
        if let Some(waiting) = vcs[vci as usize].waiting.as_mut()
            && waiting.tx.len() > 1
            && ops.get(waiting.tx[0]).is_some_and(|op| op.next_part == 0)
        {
            waiting.tx.swap(0, 1);
        }
    }
}
