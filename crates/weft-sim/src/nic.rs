//! [`SimNic`]: one endpoint's device on a simulated fabric, behind the engine's device trait.
//!
//! Place in the data flow: `Engine` → `SimNic` → fabric → `SimNic::poll` → `Sink`. The device checks its user
//! against the contract in `weft_engine::nic`. A breach is recorded as a violation
//! ([`Fabric::violations`](crate::Fabric::violations)) and otherwise ignored.
//!
//! Invariant: no borrow of the fabric's state is held while a sink is called.

use std::any::Any;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use weft_engine::board::{Board, SharedWords};
use weft_engine::mapped::{Guard, Mappable, PeerRegion, RegionOffer};
use weft_engine::mem::{self, Iov};
use weft_engine::name::EpName;
use weft_engine::nic::{
    ChainEnd, ChainId, ChainState, ChainStep, Chaining, DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, Notice, Part,
    Share, Sink,
};

use crate::card::Question;
use crate::event::Event;
use crate::fabric::{FabricState, Fate};
use crate::trace::TraceEvent;
use crate::transfer::Kind;
use crate::wire::{EndId, Phase, Side};

/// The device of one endpoint.
#[derive(Debug)]
pub struct SimNic {
    pub(crate) state: Rc<RefCell<FabricState>>,
    pub(crate) ep: usize,
    pub(crate) notices: Vec<Notice>,
}

/// Bytes of the fixed head of every engine message.
const HEAD_BYTES: usize = 8;
/// Kinds of message in which the client's bytes follow the head: cut there, such a message is only shorter.
const OPEN_ENDED: [u8; 2] = [5, 8];

/// Turns a message into garbage and keeps fewer bytes than it has. The result is of a kind that no message
/// has, or is `only_cut`.
fn corrupt(bytes: &mut Vec<u8>, keep: usize, only_cut: bool) {
    let open_ended = bytes.first().is_some_and(|kind| OPEN_ENDED.contains(kind));
    let keep = if only_cut && open_ended { keep % HEAD_BYTES } else { keep };
    bytes.truncate(keep.min(bytes.len().saturating_sub(1)));
    if !only_cut {
        bytes.iter_mut().take(1).for_each(|kind| *kind = 0xEE);
    }
}

/// An arrival that `poll` delivers without a borrow of the fabric's state.
enum Handover {
    Nothing,
    Up(LinkId, LinkUp),
    Message(LinkId, Vec<u8>),
    Confirm(LinkId, u32),
    Question(LinkId, Question),
    Segment { link: LinkId, window: u64, offset: u64, bytes: Vec<u8>, short_permille: u32 },
    Down { link: LinkId, why: LinkError, dones: Vec<(u64, Result<(), LinkError>)> },
    Done(LinkId, u64, Result<(), LinkError>),
    Board(LinkId, u64, Option<Board>),
    Region(LinkId, u64, Option<PeerRegion>),
}

/// A board in the memory of the simulation.
struct SimWords(Vec<AtomicU64>);

impl SharedWords for SimWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// Memory that simulated peers may map.
#[derive(Debug)]
pub struct SimMemory {
    memory: Mutex<Iov>,
    guards: Mutex<Vec<Guard>>,
}

impl Mappable for SimMemory {
    fn revoke(&self) {
        let guards = self.guards.lock().map(|mut guards| std::mem::take(&mut *guards)).unwrap_or_default();
        guards.iter().for_each(Guard::revoke);
        // All endpoints have one thread.
        assert!(guards.iter().all(Guard::is_idle), "an access is under way");
    }
}

impl SimMemory {
    /// Lets peers map this memory, which stays as long as a region has it.
    #[must_use]
    pub fn new(memory: Iov) -> Self {
        Self { memory: Mutex::new(memory), guards: Mutex::default() }
    }

    /// A guard of a peer's access, and the region for the peer.
    fn share(offer: &RegionOffer<'_>) -> Option<(Guard, PeerRegion)> {
        let this = (offer.memory() as &dyn Any).downcast_ref::<Self>()?;
        let guard = Guard::new(Arc::new(SimWords(vec![AtomicU64::new(0)])))?;
        this.guards.lock().ok()?.push(guard.clone());
        let memory = *this.memory.lock().ok()?;
        let region = PeerRegion::of_memory(memory, guard.clone(), offer.span(), offer.access())?;
        Some((guard, region))
    }
}

impl SimNic {
    /// The acts of the engine that a device logs.
    #[must_use]
    pub fn notices(&self) -> &[Notice] {
        &self.notices
    }

    pub(crate) fn new(state: Rc<RefCell<FabricState>>, ep: usize) -> Self {
        Self { state, ep, notices: Vec::new() }
    }

    /// The endpoint's number in its fabric.
    #[must_use]
    pub fn endpoint(&self) -> usize {
        self.ep
    }

    fn deliver<S: Sink>(&self, sink: &mut S, handover: Handover) -> usize {
        match handover {
            Handover::Nothing => 0,
            Handover::Up(link, info) => {
                sink.up(link, info);
                1
            }
            Handover::Message(link, bytes) => {
                sink.message(link, &bytes);
                self.state.borrow_mut().recycle(bytes);
                1
            }
            Handover::Confirm(link, number) => {
                sink.confirmed(link, number);
                1
            }
            Handover::Question(link, Question { piece, window, offset, len }) => {
                let memory = sink.place(link, window, offset, len);
                sink.placed(link, window, offset, 0);
                self.state.borrow_mut().answer(piece, memory.as_deref());
                2
            }
            Handover::Segment { link, window, offset, bytes, short_permille } => {
                let has_work = self.deliver_segment(sink, link, window, offset, &bytes, short_permille);
                self.state.borrow_mut().recycle(bytes);
                has_work
            }
            Handover::Down { link, why, dones } => {
                let has_work = 1 + dones.len();
                for (ctx, result) in dones {
                    sink.done(link, ctx, result);
                }
                sink.down(link, why);
                has_work
            }
            Handover::Board(link, key, board) => {
                sink.board(link, key, board);
                1
            }
            Handover::Region(link, key, region) => {
                sink.region(link, key, region);
                1
            }
            Handover::Done(link, ctx, result) => {
                sink.done(link, ctx, result);
                1
            }
        }
    }

    fn deliver_segment<S: Sink>(
        &self,
        sink: &mut S,
        link: LinkId,
        window: u64,
        offset: u64,
        bytes: &[u8],
        short_permille: u32,
    ) -> usize {
        let (mut at, mut has_work) = (0, 0);
        while at < bytes.len() {
            let left = bytes.len() - at;
            let here = offset.wrapping_add(at as u64);
            let portion = {
                let mut state = self.state.borrow_mut();
                let rng = &mut state.endpoints[self.ep].rng;
                let portion = if rng.chance(short_permille) { rng.between(0, left) } else { left };
                state.stats.partial += u64::from(portion < left);
                portion
            };
            if let Some(iov) = sink.place(link, window, here, left) {
                mem::scatter(&iov, 0, bytes.get(at..at + portion).unwrap_or_default());
            }
            sink.placed(link, window, here, portion);
            at += portion;
            has_work += 2;
        }
        has_work
    }
}

impl Drop for SimNic {
    fn drop(&mut self) {
        // The state may be borrowed while a panic unwinds; the exit is skipped then.
        if let Ok(mut state) = self.state.try_borrow_mut() {
            state.leave(self.ep, false);
        }
    }
}

impl Chaining for SimNic {
    fn offers_chains(&mut self, _try_it: bool) -> bool {
        self.state.borrow().config.chains.is_some()
    }

    fn open_chain(&mut self, ends: &[ChainEnd]) -> Option<ChainId> {
        self.state.borrow_mut().open_chain(self.ep, ends)
    }

    fn start_chain(&mut self, chain: ChainId, steps: &[ChainStep]) -> bool {
        self.state.borrow_mut().start_chain(chain, steps)
    }

    fn poll_chain(&mut self, chain: ChainId) -> ChainState {
        self.state.borrow_mut().poll_chain(chain)
    }

    fn chain_arrivals(&self, chain: ChainId) -> u64 {
        self.state.borrow().chain_arrivals(chain)
    }

    fn break_chain(&mut self, chain: ChainId) {
        self.state.borrow_mut().break_chain(chain);
    }

    fn close_chain(&mut self, chain: ChainId) -> u64 {
        self.state.borrow_mut().close_chain(chain)
    }
}

impl Nic for SimNic {
    weft_engine::decline!(held_bytes);

    fn name(&self) -> EpName {
        self.state.borrow().endpoints[self.ep].name
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        Ok(self.state.borrow_mut().connect(self.ep, peer))
    }

    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.usable(self.ep, link) else { return Ok(()) };
        let len = head.len() + mem::total_len(body);
        if len > state.config.caps.mailbox_bytes {
            state.violation(self.ep, "a message longer than the mailbox");
        }
        let (depth, faults) = (state.config.queue_depth, state.config.faults);
        if state.end(id).in_flight >= depth || state.is_full_by_chance(id) {
            state.stats.full += 1;
            return Err(Full);
        }
        let mut bytes = state.blank(len);
        let end = state.end(id);
        end.in_flight += 1;
        let (front, back) = bytes.split_at_mut(head.len());
        front.copy_from_slice(head);
        mem::gather(body, back);
        let gather = !end.gathered.is_empty() || end.rng.chance(faults.gather_permille);
        if gather {
            end.gathered.push(bytes);
            let first = end.gathered.len() == 1;
            state.stats.partial += 1;
            if first {
                state.endpoints[self.ep].dirty.push(id);
                state.stir(self.ep);
            }
        } else {
            state.depart(id, bytes);
        }
        state.record(TraceEvent::Send, self.ep, u64::from(link.0), len as u64, &[]);
        Ok(())
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        self.state.borrow_mut().start(self.ep, link, Kind::Push { window, offset }, src, ctx).map(|_| ())
    }

    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        let &DirectCopy { put, local, part, ctx, .. } = copy;
        let (remote, mut state) = (copy.remote.to_vec(), self.state.borrow_mut());
        match part {
            Part::Owner(sharing) => {
                let kind = if put { Kind::Put { remote } } else { Kind::Get { remote } };
                state.start_shared(self.ep, link, kind, local, sharing, ctx)
            }
            Part::Helper(share) => {
                let kind = Kind::Assist { of: u64::from(share.0), put, remote };
                state.start(self.ep, link, kind, local, ctx).map(|_| None)
            }
        }
    }

    fn confirm(&mut self, link: LinkId, number: u32) {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.usable(self.ep, link) else { return };
        if !state.config.caps.confirms {
            state.violation(self.ep, "a confirmation that the device does not offer");
        }
        for bytes in std::mem::take(&mut state.end(id).gathered) {
            state.depart(id, bytes);
        }
        state.notify(id, Event::Confirm { to: id.other(), number });
    }

    fn flush(&mut self) {
        self.state.borrow_mut().flush(self.ep);
    }

    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        let budget = {
            let mut state = self.state.borrow_mut();
            state.now_ns += state.config.poll_ns;
            state.run_due_events();
            if state.endpoints[self.ep].inbox.is_empty() {
                return 0;
            }
            let (most, idle) = (state.config.poll_budget, state.config.faults.idle_poll_permille);
            let rng = &mut state.endpoints[self.ep].rng;
            let budget = if rng.chance(idle) { 0 } else { rng.between(1, most) };
            state.stats.partial += u64::from(budget == 0);
            budget
        };
        let mut has_work = 0;
        for _ in 0..budget {
            let next = self.state.borrow_mut().take(self.ep);
            let Some(handover) = next else { break };
            has_work += self.deliver(sink, handover);
        }
        has_work
    }

    fn close(&mut self, link: LinkId) {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.lookup(self.ep, link) else {
            state.violation(self.ep, "close of a link that does not exist");
            return;
        };
        state.record(TraceEvent::Close, self.ep, u64::from(link.0), 0, &[]);
        for bytes in std::mem::take(&mut state.end(id).gathered) {
            state.depart(id, bytes);
        }
        // This device releases the memory at once, so no `done` follows.
        for number in state.transfers_of(id) {
            state.forget(number);
        }
        // The peer's pending transfers stop: the memory belongs to our user again.
        state.wires[id.wire].cut = true;
        let was_ending = state.end(id).ending.is_some();
        state.free_link(id);
        if !was_ending {
            state.hang_up(id, LinkError::Closed, false);
        }
    }

    fn make_board(&mut self, bytes: usize) -> Option<Board> {
        let words = || (0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect();
        self.state.borrow().config.boards.then(|| Arc::new(SimWords(words())) as Board)
    }

    fn shares_boards(&self, link: LinkId) -> bool {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.lookup(self.ep, link) else { return false };
        let peer = state.end(id.other()).ep;
        let host = |ep: usize| state.endpoints[ep].name.host_id();
        state.config.boards && host(self.ep) == host(peer)
    }

    fn share_board(&mut self, link: LinkId, key: u64, board: Option<&Board>) -> Result<(), Full> {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.lookup(self.ep, link) else { return Ok(()) };
        if state.is_full_by_chance(id) {
            return Err(Full);
        }
        state.notify(id, Event::Board { to: id.other(), key, board: board.cloned() });
        Ok(())
    }

    fn share_region(&mut self, link: LinkId, key: u64, offer: Option<RegionOffer<'_>>) -> Result<Option<Guard>, Full> {
        let mut state = self.state.borrow_mut();
        let Some(id) = state.lookup(self.ep, link) else { return Ok(None) };
        if !state.config.caps.maps {
            state.violation(self.ep, "a region that the device cannot pass");
        }
        if state.is_full_by_chance(id) {
            return Err(Full);
        }
        let shared = offer.and_then(|offer| SimMemory::share(&offer));
        let (guard, region) = shared.map_or((None, None), |(guard, region)| (Some(guard), Some(region)));
        state.notify(id, Event::Region { to: id.other(), key, region });
        Ok(guard)
    }

    fn wake_peer(&mut self, link: LinkId) {
        let mut state = self.state.borrow_mut();
        if let Some(id) = state.lookup(self.ep, link) {
            state.notify(id, Event::WakeUp { to: id.other() });
        }
    }

    fn notice(&mut self, _: &EpName, notice: Notice) {
        self.notices.push(notice);
    }

    fn drained(&self) -> bool {
        let state = self.state.borrow();
        let endpoint = &state.endpoints[self.ep];
        let gathered = endpoint.dirty.iter().any(|id| !state.wires[id.wire].ends[id.side.index()].gathered.is_empty());
        endpoint.busy == 0 && !gathered
    }
}

impl FabricState {
    /// Takes the next arrival from an endpoint's inbox.
    fn take(&mut self, ep: usize) -> Option<Handover> {
        let event = self.endpoints[ep].inbox.pop_front()?;
        Some(match event {
            Event::Up { to } => self.take_up(to),
            Event::Message { to, bytes } => self.take_message(to, bytes),
            Event::Segment { to, window, offset, bytes } => self.take_segment(to, window, offset, bytes),
            Event::Question { to, question } => match self.link_of(to) {
                Some(link) => Handover::Question(link, question),
                None => Handover::Nothing,
            },
            Event::Confirm { to, number } => match self.link_of(to) {
                Some(link) => Handover::Confirm(link, number),
                None => Handover::Nothing,
            },
            Event::Region { to, key, region } => match self.link_of(to) {
                Some(link) => Handover::Region(link, key, region),
                None => Handover::Nothing,
            },
            Event::Board { to, key, board } => match self.link_of(to) {
                Some(link) => Handover::Board(link, key, board),
                None => Handover::Nothing,
            },
            Event::Down { to, why } => self.take_down(to, why),
            Event::Finish { transfer, result } => self.take_finish(ep, transfer, result),
            Event::WakeUp { .. } | Event::Chain { .. } => Handover::Nothing,
            Event::ConnectRequest { .. } | Event::Step { .. } | Event::Land { .. } | Event::Tick => Handover::Nothing,
            Event::Mailbox { .. } | Event::Piece { .. } => Handover::Nothing,
        })
    }

    /// The number of a link that is up.
    fn link_of(&mut self, end: EndId) -> Option<LinkId> {
        let end = self.end(end);
        end.link.filter(|_| end.phase == Phase::Up)
    }

    fn take_up(&mut self, to: EndId) -> Handover {
        let end = self.end(to);
        if end.phase != Phase::Waiting {
            return Handover::Nothing;
        }
        end.phase = Phase::Up;
        let (ep, link) = (end.ep, end.link);
        let peer_ep = self.end(to.other()).ep;
        let link = link.unwrap_or_else(|| self.number_link(ep, to));
        let info = LinkUp {
            peer: self.endpoints[peer_ep].name,
            initiator: to.side == Side::Initiator,
            caps: self.config.caps,
        };
        self.stats.ups += 1;
        self.record(TraceEvent::Up, ep, u64::from(link.0), peer_ep as u64, &[]);
        Handover::Up(link, info)
    }

    fn take_message(&mut self, to: EndId, mut bytes: Vec<u8>) -> Handover {
        let from = self.end(to.other());
        from.in_flight = from.in_flight.saturating_sub(1);
        let end = self.end(to);
        let (ep, phase) = (end.ep, end.phase);
        let Some(link) = end.link.filter(|_| phase == Phase::Up) else { return Handover::Nothing };
        end.spoken_to = true;
        if let Some(keep) = end.garbled.take() {
            self.wires[to.wire].broken = true;
            self.stats.garbled += 1;
            let only_cut = self.stats.garbled.is_multiple_of(2);
            self.stats.cut += u64::from(only_cut);
            corrupt(&mut bytes, keep, only_cut);
        }
        match self.intercept(to, true, &mut bytes) {
            Fate::Deliver => {}
            Fate::Lose => return Handover::Nothing,
            Fate::Double => {
                self.end(to.other()).in_flight += 1;
                self.endpoints[ep].inbox.push_front(Event::Message { to, bytes: bytes.clone() });
                self.stir(ep);
            }
        }
        self.stats.messages += 1;
        self.record(TraceEvent::Message, ep, u64::from(link.0), bytes.len() as u64, &[]);
        Handover::Message(link, bytes)
    }

    fn take_segment(&mut self, to: EndId, window: u64, offset: u64, mut bytes: Vec<u8>) -> Handover {
        let end = self.end(to);
        let (ep, phase) = (end.ep, end.phase);
        let Some(link) = end.link.filter(|_| phase == Phase::Up) else { return Handover::Nothing };
        if self.intercept(to, false, &mut bytes) == Fate::Lose {
            return Handover::Nothing;
        }
        self.stats.segments += 1;
        self.record(TraceEvent::Segment, ep, u64::from(link.0), offset, &bytes);
        let short_permille = self.config.faults.short_place_permille;
        Handover::Segment { link, window, offset, bytes, short_permille }
    }

    fn intercept(&mut self, to: EndId, whole: bool, bytes: &mut Vec<u8>) -> Fate {
        let (from, at) = (self.end(to.other()).ep, self.end(to).ep);
        self.interceptor.as_mut().map_or(Fate::Deliver, |interceptor| (interceptor.0)(from, at, whole, bytes))
    }

    fn take_down(&mut self, to: EndId, why: LinkError) -> Handover {
        let end = self.end(to);
        let ep = end.ep;
        let Some(link) = end.link else { return Handover::Nothing };
        if end.phase == Phase::Closed {
            return Handover::Nothing;
        }
        end.gathered.clear();
        // After `down`, the user may rely on the peer not reaching its memory any more.
        self.wires[to.wire].cut = true;
        for number in self.transfers_of(to.other()) {
            self.stop(number, why);
        }
        let ended = self.transfers_of(to).into_iter().filter_map(|number| self.forget(number));
        let dones = ended.map(|transfer| (transfer.ctx, transfer.result.unwrap_or(Err(why)))).collect();
        self.free_link(to);
        self.stats.downs += 1;
        self.record(TraceEvent::Down, ep, u64::from(link.0), why.number().into(), &[]);
        Handover::Down { link, why, dones }
    }

    fn take_finish(&mut self, ep: usize, number: u64, result: Result<(), LinkError>) -> Handover {
        let Some(transfer) = self.forget(number) else { return Handover::Nothing };
        let mut bytes = Vec::new();
        if matches!(transfer.kind, Kind::Get { .. }) && result.is_ok() {
            bytes = mem::to_vec(&transfer.local);
        }
        self.record(TraceEvent::Done, ep, u64::from(transfer.link.0), u64::from(result.is_err()), &bytes);
        Handover::Done(transfer.link, transfer.ctx, result)
    }
}
