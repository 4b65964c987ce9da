//! The simulated fabric: endpoints, wires between them, and virtual time.
//!
//! Place in the data flow: [`Fabric`] is the handle that tests hold; [`SimNic`] is the device that an engine
//! holds; both share one [`FabricState`]. A due event changes the state at once (a transfer's step) or enters an
//! endpoint's inbox, from which that endpoint's `poll` takes it.
//!
//! Invariants: single-threaded; only [`Fabric::advance`] and [`Fabric::pass`] move time; no iteration follows
//! hash order; every random draw comes from the stream of the entity concerned.

use std::cell::{RefCell, RefMut};
use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr};
use std::rc::Rc;

use weft_engine::mem::Iov;
use weft_engine::name::{EpName, Identity, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, RemoteIov};

use crate::card::Cards;
use crate::chain::Chains;
use crate::config::{FabricConfig, Faults};
use crate::endpoint::Endpoint;
use crate::event::{Agenda, Event};
use crate::memory::Memory;
use crate::nic::SimNic;
use crate::rng::{Entity, Stream};
use crate::stats::Stats;
use crate::trace::{Trace, TraceEvent};
use crate::transfer::SimTransfer;
use crate::wire::{End, EndId, Phase, Side, Wire};

/// The acceptor of a connection to an unknown name.
const NO_ENDPOINT: usize = (1 << 20) - 1;
/// Time until a device that has refused a request by chance is asked again at the latest.
const FULL_NS: u64 = 100_000;
/// The largest memory of a message that is kept for further ones.
const MAX_SPARE_BYTES: usize = 64 << 10;

/// The outcome of an intercepted message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// The message is delivered, changed or not.
    Deliver,
    /// The message is lost.
    Lose,
    /// The message is delivered twice.
    Double,
}

/// Intercepts traffic: gets the source endpoint, the destination endpoint, whether the bytes are a message
/// (or else a piece of a push), and the bytes.
pub type Intercept = Box<dyn FnMut(usize, usize, bool, &mut Vec<u8>) -> Fate>;

/// Changes traffic outside the device contract: it plays a hostile peer, or proves that the oracle notices.
pub(crate) struct Interceptor(pub(crate) Intercept);

impl std::fmt::Debug for Interceptor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Interceptor")
    }
}

#[derive(Debug)]
pub(crate) struct FabricState {
    pub(crate) config: FabricConfig,
    pub(crate) now_ns: u64,
    pub(crate) agenda: Agenda,
    pub(crate) endpoints: Vec<Endpoint>,
    /// Endpoints whose device may have something new ([`FabricState::stir`]).
    pub(crate) stirred: Vec<usize>,
    pub(crate) wires: Vec<Wire>,
    directory: BTreeMap<Identity, usize>,
    connections: BTreeMap<(usize, usize), usize>,
    pub(crate) transfers: BTreeMap<u64, SimTransfer>,
    pub(crate) next_transfer: u64,
    pub(crate) chains: Chains,
    pub(crate) cards: Cards,
    pub(crate) memory: Memory,
    pub(crate) trace: Trace,
    pub(crate) stats: Stats,
    violations: Vec<String>,
    pub(crate) interceptor: Option<Interceptor>,
    /// Memory of messages that have been delivered, for further ones.
    spare: Vec<Vec<u8>>,
}

impl FabricState {
    fn new(mut config: FabricConfig) -> Self {
        config.caps.registered = config.registration.is_some();
        Self {
            chains: Chains::new(config.seed),
            config,
            now_ns: 0,
            agenda: Agenda::default(),
            endpoints: Vec::new(),
            stirred: Vec::new(),
            wires: Vec::new(),
            directory: BTreeMap::new(),
            connections: BTreeMap::new(),
            transfers: BTreeMap::new(),
            next_transfer: 0,
            cards: Cards::default(),
            memory: Memory::default(),
            trace: Trace::default(),
            stats: Stats::default(),
            violations: Vec::new(),
            interceptor: None,
            spare: Vec::new(),
        }
    }

    pub(crate) fn end(&mut self, id: EndId) -> &mut End {
        &mut self.wires[id.wire].ends[id.side.index()]
    }

    /// All wires from one endpoint to another, with the first endpoint's end and the other one.
    fn ends_between(&self, ep: usize, to: usize) -> impl Iterator<Item = (&Wire, &End, &End)> {
        let ends = self.endpoints[ep].ends.iter().map(|id| {
            let wire = &self.wires[id.wire];
            (wire, &wire.ends[id.side.index()], &wire.ends[id.other().side.index()])
        });
        ends.filter(move |(_, _, other)| other.ep == to)
    }

    /// Memory for a message of `len` bytes, which are 0.
    pub(crate) fn blank(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.resize(len, 0);
        bytes
    }

    /// Keeps the memory of a message that has been delivered, unless it is large.
    pub(crate) fn recycle(&mut self, mut bytes: Vec<u8>) {
        bytes.clear();
        if bytes.capacity() <= MAX_SPARE_BYTES {
            self.spare.push(bytes);
        }
    }

    /// Records that the user of a device broke the contract.
    pub(crate) fn violation(&mut self, ep: usize, text: &str) {
        self.violations.push(format!("{} ns, endpoint {ep}: {text}", self.now_ns));
    }

    pub(crate) fn record(&mut self, event: TraceEvent, ep: usize, a: u64, b: u64, bytes: &[u8]) {
        self.trace.record(self.now_ns, event, ep, a, b, bytes);
    }

    /// Adds an endpoint, at the address of another one (`place`) or at its own. It is dormant until it is
    /// activated.
    fn add_endpoint(&mut self, place: Option<usize>) -> usize {
        let ep = self.endpoints.len();
        let mut rng = Stream::new(self.config.seed, Entity::Endpoint(ep));
        let place = place.unwrap_or(ep);
        let port = u16::try_from(place % 60_000).unwrap_or(0) + 1000;
        let octet = u8::try_from(place / 60_000).unwrap_or(0);
        let mut capability = [0; 16];
        capability.copy_from_slice(&rng.bytes(16));
        let name = EpName::full(&NameParts {
            socket: SocketAddr::from((Ipv4Addr::new(10, 0, octet, 1), port)),
            host_id: 1 + (ep / self.config.per_host) as u64,
            ep_id: endpoint_id(&capability),
            capability,
            context: None,
            shm: true,
            tcp: true,
        });
        self.directory.insert(name.identity(), ep);
        self.endpoints.push(Endpoint::new(ep, name, rng, self.config.card.as_ref()));
        ep
    }

    /// Makes endpoints that have not started the contexts of scalable ones. `first` gives, by endpoint, its
    /// first context.
    fn scale(&mut self, first: &[usize]) {
        for (ep, first) in first.iter().enumerate() {
            let name = self.endpoints[ep].name;
            let parts = |capability: [u8; 16]| NameParts {
                socket: name.socket(),
                host_id: name.host_id(),
                ep_id: endpoint_id(&capability),
                capability,
                context: u8::try_from(ep - first).ok(),
                shm: name.shm(),
                tcp: name.tcp(),
            };
            let name = EpName::full(&parts(self.endpoints[*first].name.capability()));
            self.directory.insert(name.identity(), ep);
            self.endpoints[ep].name = name;
        }
    }

    fn activate(&mut self, ep: usize) {
        let name = self.endpoints[ep].name;
        self.endpoints[ep].alive = true;
        self.directory.insert(name.socket_identity(), ep);
    }

    /// Assigns the lowest free link number of an endpoint to `id`.
    pub(crate) fn number_link(&mut self, ep: usize, id: EndId) -> LinkId {
        let links = &mut self.endpoints[ep].links;
        let free = links.iter().position(Option::is_none).unwrap_or(links.len());
        if free == links.len() {
            links.push(None);
        }
        links[free] = Some(id);
        let link = LinkId(u32::try_from(free).unwrap_or(u32::MAX));
        self.end(id).link = Some(link);
        link
    }

    /// Frees an end's link number.
    pub(crate) fn free_link(&mut self, id: EndId) {
        let end = self.end(id);
        end.phase = Phase::Closed;
        let (ep, link) = (end.ep, end.link.take());
        if let Some(LinkId(n)) = link
            && let Some(slot) = self.endpoints[ep].links.get_mut(n as usize)
        {
            *slot = None;
        }
    }

    /// The end behind a link number of an endpoint.
    pub(crate) fn lookup(&self, ep: usize, link: LinkId) -> Option<EndId> {
        self.endpoints[ep].links.get(link.0 as usize).copied().flatten()
    }

    /// Starts a connection from `ep` to `peer`.
    pub(crate) fn connect(&mut self, ep: usize, peer: &EpName) -> LinkId {
        let target = self.directory.get(&peer.identity()).copied();
        let to = target.unwrap_or(NO_ENDPOINT);
        let nth = self.connections.entry((ep, to)).or_insert(0);
        let entity = |side: Side| Entity::Wire { from: ep, to, nth: *nth, side: side.index() };
        let seed = self.config.seed;
        let mut ends = [End::new(ep, entity(Side::Initiator), seed), End::new(to, entity(Side::Acceptor), seed)];
        *nth += 1;
        if target.is_none() {
            ends[1].phase = Phase::Closed;
        }
        let wire = self.wires.len();
        self.wires.push(Wire { ends, withdrawn: false, request_arrived: false, cut: false, broken: false });
        let id = EndId { wire, side: Side::Initiator };
        self.endpoints[ep].ends.push(id);
        if let Some(acceptor) = target {
            self.endpoints[acceptor].ends.push(id.other());
        }
        let link = self.number_link(ep, id);
        self.record(TraceEvent::Connect, ep, to as u64, u64::from(link.0), &[]);
        self.decide_connection(id);
        link
    }

    /// Decides the outcome of a connection attempt.
    fn decide_connection(&mut self, id: EndId) {
        let Self { config, wires, stats, .. } = self;
        let end = &mut wires[id.wire].ends[id.side.index()];
        let faults = &config.faults;
        let mut after_ns = config.connect_ns + end.flight_ns(config);
        if end.rng.chance(faults.connect_slow_permille) {
            after_ns = (after_ns * 100).min(config.connect_timeout_ns);
            stats.stalls += 1;
        }
        let event = if end.rng.chance(faults.connect_fail_permille) {
            let why = *end.rng.pick(&[LinkError::Refused, LinkError::Timeout, LinkError::Unreachable]);
            stats.refusals += 1;
            if why == LinkError::Timeout {
                after_ns = config.connect_timeout_ns;
            }
            Event::Down { to: id, why }
        } else {
            Event::ConnectRequest { wire: id.wire }
        };
        self.agenda.schedule(self.now_ns + after_ns, event);
    }

    /// Handles a connection request that has reached its target.
    fn connect_request(&mut self, wire: usize) {
        let initiator = EndId { wire, side: Side::Initiator };
        let acceptor = initiator.other();
        if self.wires[wire].withdrawn || !self.end(initiator).alive() {
            return;
        }
        let now_ns = self.now_ns;
        let target = self.end(acceptor).ep;
        let listens = self.endpoints.get(target).is_some_and(|endpoint| endpoint.alive);
        let at_address = self.endpoints.get(target).and_then(|e| self.directory.get(&e.name.socket_identity()));
        let taken = at_address.is_some_and(|other| *other != target && self.endpoints[*other].alive);
        let Self { config, wires, agenda, .. } = self;
        let [ours, theirs] = &mut wires[wire].ends;
        let back_ns = now_ns + theirs.flight_ns(config);
        if !listens {
            // A dead host does not answer. The host of a dead process refuses, and a successor at its address
            // does not have its capability.
            let silent = ours.rng.chance(300);
            let (at_ns, why) = if taken {
                (back_ns, LinkError::Denied)
            } else if silent {
                (now_ns + config.connect_timeout_ns, LinkError::Timeout)
            } else {
                (back_ns, LinkError::Refused)
            };
            agenda.schedule(at_ns, Event::Down { to: initiator, why });
            return;
        }
        wires[wire].request_arrived = true;
        let [ours, theirs] = &mut wires[wire].ends;
        // Either end may learn first; messages to an end wait until it knows of the link.
        let accepted_ns = now_ns + ours.rng.below(2 * config.latency_ns + 1);
        ours.not_before_ns = accepted_ns;
        theirs.not_before_ns = back_ns;
        agenda.schedule(accepted_ns, Event::Up { to: acceptor });
        agenda.schedule(back_ns, Event::Up { to: initiator });
    }

    /// Sends a message on its way.
    pub(crate) fn depart(&mut self, from: EndId, bytes: Vec<u8>) {
        if let Some(card) = self.config.card {
            return self.post(&card, from, bytes);
        }
        let Self { config, wires, agenda, now_ns, stats, .. } = self;
        let end = &mut wires[from.wire].ends[from.side.index()];
        let before_ns = end.end_arrival_ns(config, *now_ns);
        let at_ns = end.arrival_ns(config, *now_ns, bytes.len());
        stats.overtakes += u64::from(at_ns < before_ns && !config.caps.ordered);
        // The two ends meet through the first message of a direction.
        let first = !std::mem::replace(&mut end.has_spoken, true);
        if !config.caps.ordered && !first && end.rng.chance(config.faults.double_permille) {
            let again_ns = at_ns + end.rng.below(config.faults.reorder_ns + 1);
            end.in_flight += 1;
            stats.doubles += 1;
            agenda.schedule(again_ns, Event::Message { to: from.other(), bytes: bytes.clone() });
        }
        agenda.schedule(at_ns, Event::Message { to: from.other(), bytes });
    }

    /// Sends an event that is no message to the other end of a link.
    pub(crate) fn notify(&mut self, from: EndId, event: Event) {
        let Self { config, wires, agenda, now_ns, .. } = self;
        let end = &mut wires[from.wire].ends[from.side.index()];
        agenda.schedule(end.arrival_ns(config, *now_ns, 1), event);
    }

    /// Sends everything that waits for `flush`.
    pub(crate) fn flush(&mut self, ep: usize) {
        for id in std::mem::take(&mut self.endpoints[ep].dirty) {
            for bytes in std::mem::take(&mut self.end(id).gathered) {
                self.depart(id, bytes);
            }
        }
    }

    /// Advances time by `ns`.
    pub(crate) fn advance_by(&mut self, ns: u64) {
        self.now_ns += ns;
        self.run_due_events();
    }

    /// Whether a device refuses a request although it has room. Time does not advance far before the next try.
    pub(crate) fn is_full_by_chance(&mut self, id: EndId) -> bool {
        let permille = self.config.faults.full_permille;
        let full = self.end(id).rng.chance(permille);
        if full {
            self.agenda.schedule(self.now_ns + FULL_NS, Event::Tick);
        }
        full
    }

    /// Runs all events that are due.
    pub(crate) fn run_due_events(&mut self) {
        while let Some(event) = self.agenda.due(self.now_ns) {
            self.handle(event);
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Tick => {}
            Event::ConnectRequest { wire } => self.connect_request(wire),
            Event::Step { transfer } => self.step(transfer),
            Event::Mailbox { to, bytes } => self.take_mail(to, bytes),
            Event::Piece { piece } => self.move_piece(piece),
            Event::Land { transfer, offset, bytes } => {
                self.land(transfer, offset, &bytes);
                self.recycle(bytes);
            }
            Event::Up { to }
            | Event::Message { to, .. }
            | Event::Segment { to, .. }
            | Event::Question { to, .. }
            | Event::Confirm { to, .. }
            | Event::Board { to, .. }
            | Event::Region { to, .. }
            | Event::WakeUp { to } => self.arrive(to, event),
            Event::Chain { ep } => {
                self.run_chains_of(ep);
                if self.endpoints[ep].alive {
                    self.hand(ep, event);
                }
            }
            Event::Down { to, why } => {
                let now_ns = self.now_ns;
                let end = self.end(to);
                if end.taken_ns > now_ns {
                    // The processor takes earlier messages first.
                    let at_ns = end.taken_ns;
                    self.agenda.schedule(at_ns, event);
                } else if end.alive() {
                    end.ending = Some(why);
                    self.arrive(to, event);
                }
            }
            Event::Finish { transfer, .. } => {
                if let Some(owner) = self.transfers.get(&transfer).map(|t| t.end) {
                    let ep = self.end(owner).ep;
                    self.hand(ep, event);
                }
            }
        }
    }

    pub(crate) fn arrive(&mut self, to: EndId, event: Event) {
        let end = self.end(to);
        let ep = end.ep;
        if end.phase != Phase::Closed && self.endpoints[ep].alive {
            self.hand(ep, event);
        }
    }

    /// Ends a link from one side. The other side learns of it after all earlier messages, or at a random
    /// moment if the end is abrupt.
    pub(crate) fn hang_up(&mut self, id: EndId, why: LinkError, abrupt: bool) {
        let Self { config, wires, agenda, now_ns, .. } = self;
        let wire = &mut wires[id.wire];
        let end = &mut wire.ends[id.side.index()];
        if !wire.request_arrived {
            // The other side does not know this link yet; a pending request will find it withdrawn.
            wire.withdrawn |= id.side == Side::Initiator;
            return;
        }
        let at_ns = if abrupt {
            let notice_ns = 1 + 2 * (config.latency_ns + config.jitter_ns);
            (*now_ns + end.rng.below(notice_ns)).max(end.not_before_ns)
        } else {
            end.end_arrival_ns(config, *now_ns)
        };
        end.close_seen_ns = at_ns;
        agenda.schedule(at_ns, Event::Down { to: id.other(), why });
    }

    /// Ends an endpoint's process. After an orderly exit its sent messages still arrive. After an abrupt one,
    /// unsent messages are lost, and those in flight are cut off at a random moment.
    pub(crate) fn leave(&mut self, ep: usize, abrupt: bool) {
        if !self.endpoints[ep].alive {
            return;
        }
        self.record(TraceEvent::Exit, ep, u64::from(abrupt), 0, &[]);
        if abrupt {
            self.stats.deaths += 1;
        } else {
            self.stats.departures += 1;
            self.flush(ep);
        }
        self.drop_transfers_of(ep);
        self.drop_chains_of(ep);
        for at in 0..self.endpoints[ep].ends.len() {
            let id = self.endpoints[ep].ends[at];
            let was_open = self.end(id).phase != Phase::Closed;
            self.free_link(id);
            self.end(id).gathered.clear();
            if was_open {
                self.hang_up(id, LinkError::Gone, abrupt);
            }
        }
        let endpoint = &mut self.endpoints[ep];
        endpoint.alive = false;
        endpoint.inbox.clear();
        endpoint.dirty.clear();
    }

    /// The next message from `a` to `b` arrives as garbage of `bytes` bytes.
    fn garble(&mut self, a: usize, b: usize, bytes: usize) {
        for wire in &mut self.wires {
            for side in [0, 1] {
                if (wire.ends[side].ep, wire.ends[1 - side].ep) == (a, b) && wire.ends[1 - side].phase == Phase::Up {
                    wire.ends[1 - side].garbled = Some(bytes);
                }
            }
        }
    }

    /// Breaks every link between two endpoints. Both sides see a reset at different times: `b` sees it
    /// `later_ns` later.
    fn break_links(&mut self, a: usize, b: usize, later_ns: u64) -> usize {
        let mut broken = 0;
        for wire in 0..self.wires.len() {
            let [x, y] = &self.wires[wire].ends;
            let between = (x.ep, y.ep) == (a, b) || (x.ep, y.ep) == (b, a);
            if !between || x.phase != Phase::Up || y.phase != Phase::Up {
                continue;
            }
            broken += 1;
            self.wires[wire].broken = true;
            self.stats.resets += 1;
            self.stats.half_open += u64::from(later_ns > 0);
            for side in [Side::Initiator, Side::Acceptor] {
                let to = EndId { wire, side };
                let wait_ns = 2 * (self.config.latency_ns + self.config.jitter_ns) + 1;
                let later_ns = if self.end(to).ep == b { later_ns } else { 0 };
                let at_ns = self.now_ns + later_ns + self.end(to).rng.below(wait_ns);
                self.agenda.schedule(at_ns, Event::Down { to, why: LinkError::Gone });
            }
        }
        broken
    }
}

/// A handle to a simulated fabric. Clones share the fabric.
#[derive(Clone, Debug)]
pub struct Fabric(Rc<RefCell<FabricState>>);

impl Fabric {
    /// A fabric without endpoints.
    #[must_use]
    pub fn new(config: FabricConfig) -> Self {
        Self(Rc::new(RefCell::new(FabricState::new(config))))
    }

    pub(crate) fn state(&self) -> RefMut<'_, FabricState> {
        self.0.borrow_mut()
    }

    /// Makes a new endpoint's device. Endpoints are numbered from 0 in the order of these calls. Dropping the
    /// device is the orderly exit of its process.
    #[must_use]
    pub fn nic(&self) -> SimNic {
        let ep = self.reserve(None);
        self.start(ep)
    }

    /// Reserves the number and name of an endpoint that starts later. With `place`, it gets that endpoint's
    /// address; that endpoint must have exited by then.
    #[must_use]
    pub fn reserve(&self, place: Option<usize>) -> usize {
        self.0.borrow_mut().add_endpoint(place)
    }

    /// Makes reserved endpoints the contexts of scalable ones. `first` gives, by endpoint, its first context.
    pub(crate) fn scale(&self, first: &[usize]) {
        self.0.borrow_mut().scale(first);
    }

    /// Starts a reserved endpoint and returns its device.
    #[must_use]
    pub fn start(&self, ep: usize) -> SimNic {
        self.0.borrow_mut().activate(ep);
        SimNic::new(Rc::clone(&self.0), ep)
    }

    /// The name of an endpoint.
    #[must_use]
    pub fn name(&self, ep: usize) -> EpName {
        self.0.borrow().endpoints[ep].name
    }

    /// Sets a resolver for clients that bring their own memory; it replaces the run's buffers in the lookup
    /// of remote memory.
    pub fn set_resolver(&self, resolver: fn(RemoteIov) -> Iov) {
        self.0.borrow_mut().memory.resolver = Some(resolver);
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> FabricConfig {
        self.0.borrow().config.clone()
    }

    /// The seed.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.0.borrow().config.seed
    }

    /// Changes the faults, e.g. to none for a phase in which everything must converge.
    pub fn set_faults(&self, faults: Faults) {
        self.0.borrow_mut().config.faults = faults;
    }

    /// Switches all faults off.
    pub fn heal(&self) {
        let mut state = self.0.borrow_mut();
        state.config.faults = Faults::default();
        for wire in &mut state.wires {
            wire.ends.iter_mut().for_each(|end| end.garbled = None);
        }
    }

    /// Virtual time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.0.borrow().now_ns
    }

    /// Advances to the time of the next event and runs it; false if there is none.
    pub fn advance(&self) -> bool {
        let mut state = self.0.borrow_mut();
        let Some(next_ns) = state.agenda.next_ns() else { return false };
        let step_ns = next_ns.saturating_sub(state.now_ns);
        state.stats.idle_ns += if step_ns > 1_000_000 { step_ns } else { 0 };
        state.now_ns = state.now_ns.max(next_ns);
        state.run_due_events();
        true
    }

    /// Advances time by `ns`.
    pub fn pass(&self, ns: u64) {
        self.0.borrow_mut().advance_by(ns);
    }

    /// Makes `advance` stop after `ns` at the latest, so that a test can act then.
    pub fn tick_in(&self, ns: u64) {
        let mut state = self.0.borrow_mut();
        let at_ns = state.now_ns + ns;
        state.agenda.schedule(at_ns, Event::Tick);
    }

    /// Whether any inbox holds something for a `poll`.
    #[must_use]
    pub fn waiting(&self) -> bool {
        self.0.borrow().has_arrivals()
    }

    /// Whether the inbox of an endpoint holds something for its `poll`.
    #[must_use]
    pub fn has_arrivals(&self, ep: usize) -> bool {
        self.0.borrow().endpoints.get(ep).is_some_and(Endpoint::has_arrivals)
    }

    /// Whether a round of progress could find something new in the endpoint's device.
    #[must_use]
    pub(crate) fn has_work(&self, ep: usize) -> bool {
        self.0.borrow().endpoints[ep].has_work()
    }

    /// Calls `each` for the endpoints in whose device a round of progress could find something new.
    pub(crate) fn each_with_work(&self, mut each: impl FnMut(usize, &Endpoint)) {
        let mut state = self.0.borrow_mut();
        state.prune();
        state.stirred.iter().for_each(|ep| each(*ep, &state.endpoints[*ep]));
    }

    /// Ends an endpoint abruptly, as the loss of its host does. The caller should drop its engine too.
    pub fn kill(&self, ep: usize) {
        self.0.borrow_mut().leave(ep, true);
    }

    /// Ends an endpoint in order, as the exit of its process does. The caller should use its engine no more.
    pub fn depart(&self, ep: usize) {
        self.0.borrow_mut().leave(ep, false);
    }

    /// Breaks the links between two endpoints, which stay alive; returns the number of links. `b` learns of
    /// it `later_ns` later; its messages are lost until then.
    pub fn break_links(&self, a: usize, b: usize, later_ns: u64) -> usize {
        self.0.borrow_mut().break_links(a, b, later_ns)
    }

    /// Whether `ep` has a link to `to` on which `to` has sent a message and which `to` has not closed.
    pub(crate) fn is_linked(&self, ep: usize, to: usize) -> bool {
        let state = self.0.borrow();
        state.ends_between(ep, to).any(|(_, end, other)| {
            let spoke = end.phase == Phase::Up && end.spoken_to && end.alive();
            spoke && other.phase != Phase::Closed
        })
    }

    /// The time at which endpoint `to` has seen the end of every link that `ep` closed. The end follows all
    /// sent messages, so resent packets beneath the device delay it.
    pub(crate) fn close_seen_ns(&self, ep: usize, to: usize) -> u64 {
        let state = self.0.borrow();
        state.ends_between(ep, to).map(|(_, end, _)| end.close_seen_ns).max().unwrap_or(0)
    }

    /// Whether a link between two endpoints is broken and one of them has not learned of it.
    pub(crate) fn is_breaking(&self, a: usize, b: usize) -> bool {
        let state = self.0.borrow();
        state.ends_between(a, b).any(|(wire, ..)| wire.is_breaking())
    }

    /// The next message from `a` to `b` on a link that is up arrives as garbage of `bytes` bytes.
    pub fn garble(&self, a: usize, b: usize, bytes: usize) {
        self.0.borrow_mut().garble(a, b, bytes);
    }

    /// Passes everything that is delivered from now on through `intercept`.
    pub fn set_interceptor(&self, intercept: Intercept) {
        self.0.borrow_mut().interceptor = Some(Interceptor(intercept));
    }

    /// Breaches of the device contract, and writes to memory that must not be written.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut state = self.0.borrow_mut();
        let mut all = state.violations.clone();
        all.extend(state.memory.damage());
        all
    }

    /// Whether the contract has been broken. Does not search memory.
    #[must_use]
    pub fn contract_broken(&self) -> bool {
        !self.0.borrow().violations.is_empty()
    }

    /// Number of links of an endpoint.
    #[must_use]
    pub fn links(&self, ep: usize) -> usize {
        self.0.borrow().endpoints[ep].links.iter().flatten().count()
    }

    /// Number of transfers not reported finished.
    #[must_use]
    pub fn transfers(&self) -> usize {
        self.0.borrow().transfers.len()
    }

    /// The counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let state = self.0.borrow();
        let ends = || state.wires.iter().flat_map(|wire| &wire.ends);
        let (resends, stalls) = (ends().map(|end| end.resends).sum(), ends().map(|end| end.stalls).sum::<u64>());
        Stats { resends, stalls: state.stats.stalls + stalls, ..state.stats }
    }

    /// Number of `Full` answers of all devices.
    #[must_use]
    pub(crate) fn full(&self) -> u64 {
        self.0.borrow().stats.full
    }

    /// Updates a counter.
    pub(crate) fn count(&self, what: impl FnOnce(&mut Stats)) {
        what(&mut self.0.borrow_mut().stats);
    }

    /// Adds a record to the trace.
    pub fn record(&self, event: TraceEvent, ep: usize, a: u64, b: u64, bytes: &[u8]) {
        self.0.borrow_mut().record(event, ep, a, b, bytes);
    }

    /// The hash of the trace so far.
    #[must_use]
    pub fn trace_hash(&self) -> u128 {
        self.0.borrow().trace.hash()
    }

    /// The last records of the trace, for a failure's report.
    #[must_use]
    pub fn trace_tail(&self) -> String {
        self.0.borrow().trace.tail()
    }
}
