//! Several engines on one fabric, progressed in an order that the seed determines.
//!
//! Place in the data flow: a test calls the engines' operations and [`Cluster::turn`]; completions collect
//! here until they are taken. [`Harness`](crate::Harness) does the same and also checks the results.
//!
//! Invariants: one turn progresses every live engine at most once; virtual time jumps to the next event only
//! when a turn has moved nothing. An engine has no clock. A turn therefore skips an engine if its last round
//! moved nothing and met no full device, and neither a caller nor its device has anything new for it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use weft_engine::api::{ADDR_NONE, Addr, AddressBook, Completion, CompletionFlags, Config};
use weft_engine::name::{EpName, Identity};
use weft_engine::{ConnEvent, Engine, PEER, Pool, Role};

use crate::config::FabricConfig;
use crate::fabric::Fabric;
use crate::nic::SimNic;
use crate::rng::{Entity, Stream};

/// Remaining bytes below which a shared multi-receive is released, unless a rank asks for another value.
const MIN_MULTI_RECV_BYTES: usize = 64;

/// Virtual duration of a turn in which something moved.
const TURN_NS: u64 = 10;

/// Position of a scalable endpoint's context number in an address.
const CONTEXT_SHIFT: u32 = 56;

/// The effect of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// Something moved.
    Moved,
    /// Nothing moved, and time advanced to the next event.
    Advanced,
    /// Nothing moved and no event is left.
    Idle,
}

/// The names of all ranks, in the order of ranks. No address book holds a rank that has not started.
#[derive(Debug)]
struct Roster {
    names: Vec<EpName>,
    /// By rank: the rank whose address it is known under, itself or its scalable endpoint's first context.
    known_as: Vec<usize>,
    known: Vec<AtomicBool>,
    /// The ranks that have a name with this identity, or whose service name has it, in order.
    by_name: BTreeMap<Identity, Vec<usize>>,
    by_service: BTreeMap<Identity, Vec<usize>>,
}

impl Roster {
    fn new(names: Vec<EpName>, known_as: Vec<usize>) -> Self {
        let known = names.iter().map(|_| AtomicBool::new(false)).collect();
        let (mut by_name, mut by_service) = (BTreeMap::<_, Vec<_>>::new(), BTreeMap::<_, Vec<_>>::new());
        for (rank, name) in names.iter().enumerate() {
            by_name.entry(name.identity()).or_default().push(rank);
            by_service.entry(name.socket_identity()).or_default().push(rank);
        }
        Self { names, known_as, known, by_name, by_service }
    }

    /// The first rank with this name that has started.
    fn rank(&self, name: &EpName) -> Option<usize> {
        let first = |ranks: &BTreeMap<Identity, Vec<usize>>| {
            let mut ranks = ranks.get(&name.identity())?.iter().copied();
            ranks.find(|rank| self.known[*rank].load(Relaxed))
        };
        first(&self.by_name).or_else(|| first(&self.by_service))
    }
}

/// A rank's address book: the ranks' names, rotated, so that no two ranks agree on an address.
#[derive(Debug)]
struct Names {
    all: Arc<Roster>,
    rotation: usize,
}

impl AddressBook for Names {
    fn name(&self, addr: Addr) -> Option<EpName> {
        let count = self.all.names.len();
        let (index, context) = (addr & ((1 << CONTEXT_SHIFT) - 1), addr >> CONTEXT_SHIFT);
        let index = usize::try_from(index).ok().filter(|index| *index < count)?;
        let rank = (index + self.rotation) % count;
        let name = self.all.known[rank].load(Relaxed).then(|| self.all.names[rank])?;
        name.context(u8::try_from(context).ok()?)
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        // The name may belong to a context of a scalable endpoint; the base name identifies the endpoint.
        let (rank, count) = (self.all.rank(&name.base())?, self.all.names.len());
        Some(((rank + count - self.rotation) % count) as Addr)
    }
}

struct Node {
    engine: Engine<SimNic>,
    /// Since its last round a caller used the engine, or that round moved something or met a full device.
    /// Another round may therefore move something.
    touched: bool,
    /// Whether the cluster's list `agenda` has this rank.
    listed: bool,
    schedule: Stream,
    /// Turns out of 1000 in which a slow rank takes part.
    turn_permille: u32,
    /// A paused rank takes part in no turn before this time.
    paused_until_ns: u64,
    /// Connection events that have not been taken.
    events: VecDeque<ConnEvent>,
}

/// The lists of a turn, empty between turns: their memory is used again.
#[derive(Default)]
struct Round {
    candidates: Vec<usize>,
    order: Vec<(u64, usize)>,
    slow: Vec<(u64, usize)>,
}

/// Several engines on one fabric.
pub struct Cluster {
    fabric: Fabric,
    config: Config,
    roster: Arc<Roster>,
    nodes: Vec<Option<Node>>,
    /// Virtual duration of a turn in which something moved.
    turn_ns: u64,
    /// Every rank that is touched, and possibly others: a turn looks at these and at those whose device has work.
    agenda: Vec<usize>,
    round: Round,
    places: Vec<usize>,
    /// By rank: its process, given by the process's first rank.
    processes: Vec<usize>,
    /// By process: the receives that its endpoints share.
    pools: BTreeMap<usize, Arc<Pool>>,
    /// By rank: the other end of its connection. Empty without connections.
    partners: Vec<Option<usize>>,
    /// Whether ranks may be slow.
    slow: bool,
    /// Polling takes time, so no engine is skipped.
    all_poll: bool,
}

impl Cluster {
    /// `ranks` engines that all know each other.
    #[must_use]
    pub fn new(fabric: FabricConfig, engine: Config, ranks: usize) -> Self {
        Self::with_impostors(fabric, engine, ranks, 0).0
    }

    /// Makes `ranks` engines, followed by `impostors` ranks that the others know. An impostor has only a
    /// device, which the test drives.
    #[must_use]
    pub fn with_impostors(fabric: FabricConfig, engine: Config, ranks: usize, impostors: usize) -> (Self, Vec<SimNic>) {
        let mut cluster = Self::of(fabric, engine, ranks, &vec![None; impostors], &[]);
        let nics = (ranks..ranks + impostors).map(|rank| {
            cluster.roster.known[rank].store(true, Relaxed);
            cluster.fabric.start(rank)
        });
        let nics = nics.collect();
        cluster.slow = true;
        (cluster, nics)
    }

    /// Makes `ranks` engines, followed by one rank for each of `successors`. A successor starts with
    /// [`Cluster::restart`], at the address of the rank named there. If `contexts` is not empty, all ranks
    /// are contexts of scalable endpoints: it gives, by rank, the endpoint's first context.
    #[must_use]
    pub fn with_successors(
        fabric: FabricConfig,
        engine: Config,
        ranks: usize,
        successors: &[usize],
        contexts: &[usize],
    ) -> Self {
        let places = successors.iter().map(|rank| Some(*rank)).collect::<Vec<_>>();
        Self::of(fabric, engine, ranks, &places, contexts)
    }

    fn of(fabric: FabricConfig, config: Config, ranks: usize, places: &[Option<usize>], contexts: &[usize]) -> Self {
        let all_poll = fabric.poll_ns > 0;
        let fabric = Fabric::new(fabric);
        let total = ranks + places.len();
        for rank in 0..total {
            // Endpoint numbers equal rank numbers.
            let _ = fabric.reserve(rank.checked_sub(ranks).and_then(|n| places[n]));
        }
        fabric.scale(contexts);
        let names = (0..total).map(|rank| fabric.name(rank)).collect();
        let known_as: Vec<usize> = (0..total).map(|rank| contexts.get(rank).copied().unwrap_or(rank)).collect();
        let processes = known_as.clone();
        let roster = Arc::new(Roster::new(names, known_as));
        let nodes = (0..total).map(|_| None).collect();
        let places = (0..total).map(|rank| rank.checked_sub(ranks).and_then(|n| places[n]).unwrap_or(rank)).collect();
        let pools = BTreeMap::new();
        let mut cluster = Self {
            fabric,
            config,
            roster,
            nodes,
            turn_ns: TURN_NS,
            agenda: Vec::new(),
            round: Round::default(),
            places,
            processes,
            pools,
            partners: Vec::new(),
            slow: true,
            all_poll,
        };
        for rank in 0..ranks {
            cluster.roster.known[rank].store(true, Relaxed);
        }
        for rank in 0..ranks {
            cluster.begin(rank);
        }
        cluster
    }

    /// Makes one listener per process, then the listeners that take over their places, then `ends` ends of
    /// connections. The latter start with [`Cluster::open`].
    pub(crate) fn connected(
        fabric: FabricConfig,
        engine: Config,
        processes: usize,
        successors: &[usize],
        ends: usize,
    ) -> Self {
        let mut places = successors.iter().map(|rank| Some(*rank)).collect::<Vec<_>>();
        places.resize(places.len() + ends, None);
        let mut cluster = Self::of(fabric, engine, processes, &places, &[]);
        for (n, process) in successors.iter().enumerate() {
            cluster.processes[processes + n] = *process;
        }
        cluster.partners = vec![None; cluster.nodes.len()];
        cluster
    }

    /// Starts an end of a connection in `process`. If the connection is made, its other end is `peer`.
    pub(crate) fn open(&mut self, rank: usize, process: usize, peer: usize) {
        self.processes[rank] = process;
        self.partners[rank] = Some(peer);
        self.begin_as(rank, Role::Active);
    }

    /// The other end of this end's connection.
    pub(crate) fn partner(&self, rank: usize) -> Option<usize> {
        self.partners.get(rank).copied().flatten()
    }

    /// Whether the ranks are connected endpoints.
    pub(crate) fn has_connections(&self) -> bool {
        !self.partners.is_empty()
    }

    /// Whether the rank is a listener.
    pub(crate) fn listens(&self, rank: usize) -> bool {
        self.has_connections() && self.partner(rank).is_none()
    }

    /// The next connection event of a rank.
    pub(crate) fn connection_event(&mut self, rank: usize) -> Option<ConnEvent> {
        let node = self.nodes.get_mut(rank)?.as_mut()?;
        node.events.extend(node.engine.take_connection_events());
        node.events.pop_front()
    }

    fn begin(&mut self, rank: usize) {
        self.begin_as(rank, self.config.role);
    }

    fn begin_as(&mut self, rank: usize, role: Role) {
        let mut engine = Engine::new(Config { role, ..self.config }, self.fabric.start(rank));
        if matches!(role, Role::Connectionless | Role::Datagrams) {
            self.bind_shared(rank, &mut engine);
        }
        let mut schedule = Stream::new(self.fabric.seed(), Entity::Schedule(rank));
        let turn_permille = if schedule.chance(250) { 200 } else { 1000 };
        let (touched, listed, paused_until_ns, events) = (true, true, 0, VecDeque::new());
        self.agenda.push(rank);
        self.nodes[rank] = Some(Node { engine, touched, listed, schedule, turn_permille, paused_until_ns, events });
    }

    /// Binds the address book and the pool that the endpoints of a process share.
    fn bind_shared(&self, rank: usize, engine: &mut Engine<SimNic>) {
        let process = self.processes[rank];
        engine.bind_book(Arc::new(Names { all: Arc::clone(&self.roster), rotation: process }));
        if let Some(pool) = self.pools.get(&process) {
            engine.bind_pool(Arc::clone(pool), 0);
        }
    }

    /// Groups the ranks into processes (by rank, the process's first rank) whose endpoints share their
    /// receives. Must be called before any operation.
    pub(crate) fn share_receives(&mut self, processes: Vec<usize>) {
        self.fabric.share_memory(processes.clone());
        for process in &processes {
            let pool = || Arc::new(Pool::new(self.config.matching, self.config.rx_depth, MIN_MULTI_RECV_BYTES));
            self.pools.entry(*process).or_insert_with(pool);
        }
        self.processes = processes;
        for rank in self.live_ranks() {
            if let Some(mut node) = self.nodes[rank].take() {
                self.bind_shared(rank, &mut node.engine);
                self.nodes[rank] = Some(node);
            }
        }
    }

    /// The rank whose address this rank is known under: itself, or its scalable endpoint's first context.
    pub(crate) fn known_as(&self, rank: usize) -> usize {
        self.roster.known_as[rank]
    }

    /// By rank, the rank whose address it is known under.
    pub(crate) fn sources(&self) -> Vec<usize> {
        self.roster.known_as.clone()
    }

    /// By rank, the receiving rank, if ranks share their receives.
    pub(crate) fn receivers(&self) -> Vec<usize> {
        if self.pools.is_empty() { Vec::new() } else { self.processes.clone() }
    }

    /// The receives that a rank shares with others.
    pub(crate) fn pool(&self, rank: usize) -> Option<Arc<Pool>> {
        self.pools.get(self.processes.get(rank)?).map(Arc::clone)
    }

    /// All past, present and future endpoints of a rank's process.
    #[must_use]
    pub fn process(&self, rank: usize) -> Vec<usize> {
        (0..self.processes.len()).filter(|other| self.processes[*other] == self.processes[rank]).collect()
    }

    /// Starts a rank at the place of another one, which must have exited. All address books contain it from
    /// then on.
    pub fn restart(&mut self, rank: usize) {
        self.roster.known[rank].store(true, Relaxed);
        let name = self.roster.names[rank];
        // Address books contain the endpoint's first context for all of its contexts.
        let by_name = self.known_as(rank) == rank && !self.has_connections();
        let others = if by_name { self.live_ranks() } else { Vec::new() };
        for other in others {
            let addr = self.addr(other, rank);
            if let Some(engine) = self.engine(other) {
                engine.address_added(addr, &name);
            }
        }
        self.fabric.count(|stats| stats.restarts += 1);
        self.begin(rank);
    }

    /// The rank whose address this rank has: itself, or its predecessor.
    #[must_use]
    pub fn place(&self, rank: usize) -> usize {
        self.places.get(rank).copied().unwrap_or(rank)
    }

    /// Sets whether ranks may be slow. By default a quarter of them are.
    pub fn set_slow(&mut self, slow: bool) {
        self.slow = slow;
    }

    /// Sets the virtual duration of a turn in which something moved. With 0, processors cost no time: all times follow
    /// from the fabric. The ranks must then end their calls by themselves.
    pub fn set_turn_ns(&mut self, ns: u64) {
        self.turn_ns = ns;
    }

    /// Pauses a rank: it makes no progress for `ns`.
    pub fn pause(&mut self, rank: usize, ns: u64) {
        let until_ns = self.fabric.now_ns() + ns;
        self.fabric.tick_in(ns);
        if let Some(Some(node)) = self.nodes.get_mut(rank) {
            node.paused_until_ns = until_ns;
        }
    }

    /// Whether the rank is paused.
    #[must_use]
    pub fn is_paused(&self, rank: usize) -> bool {
        let now_ns = self.fabric.now_ns();
        self.nodes.get(rank).and_then(Option::as_ref).is_some_and(|node| node.paused_until_ns > now_ns)
    }

    /// Whether the rank's last round moved something or met a full device, or a caller has used its engine
    /// since.
    #[must_use]
    pub fn needs_progress(&self, rank: usize) -> bool {
        self.nodes.get(rank).and_then(Option::as_ref).is_some_and(|node| node.touched)
    }

    /// The fabric.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        &self.fabric
    }

    /// The configuration of the engines.
    #[must_use]
    pub fn engine_config(&self) -> &Config {
        &self.config
    }

    /// Number of ranks, including those that have not started.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.nodes.len()
    }

    /// Whether a rank is alive.
    #[must_use]
    pub fn is_alive(&self, rank: usize) -> bool {
        self.nodes.get(rank).is_some_and(Option::is_some)
    }

    /// The ranks that are alive.
    #[must_use]
    pub fn live_ranks(&self) -> Vec<usize> {
        (0..self.nodes.len()).filter(|rank| self.is_alive(*rank)).collect()
    }

    /// The address of rank `peer` in the address book of rank `rank`.
    #[must_use]
    pub fn addr(&self, rank: usize, peer: usize) -> Addr {
        if self.partner(rank).is_some() {
            return PEER;
        }
        let first = self.known_as(peer);
        let index = (first + self.nodes.len() - self.processes[rank]) % self.nodes.len();
        (((peer - first) << CONTEXT_SHIFT) | index) as Addr
    }

    /// The rank behind an address of rank `rank`.
    #[must_use]
    pub fn rank_of(&self, rank: usize, addr: Addr) -> Option<usize> {
        if let Some(partner) = self.partner(rank) {
            // Completions of a connected endpoint carry no source.
            return (addr == ADDR_NONE).then_some(partner);
        }
        let index = usize::try_from(addr).ok().filter(|index| *index < self.nodes.len())?;
        Some((index + self.processes[rank]) % self.nodes.len())
    }

    /// The engine of a rank that is alive.
    pub fn engine(&mut self, rank: usize) -> Option<&mut Engine<SimNic>> {
        let node = self.nodes.get_mut(rank)?.as_mut()?;
        node.touched = true;
        if !std::mem::replace(&mut node.listed, true) {
            self.agenda.push(rank);
        }
        Some(&mut node.engine)
    }

    /// Takes the completions of a rank. The client has not read the POOLED ones among them (`read_next`).
    pub fn take_completions(&mut self, rank: usize) -> Vec<Completion> {
        let Some(node) = self.nodes.get_mut(rank).and_then(Option::as_mut) else { return Vec::new() };
        std::mem::take(node.engine.completions())
    }

    /// Takes the completions of a rank into an empty list, whose memory the engine uses for further ones.
    pub fn swap_completions(&mut self, rank: usize, list: &mut Vec<Completion>) {
        debug_assert!(list.is_empty(), "completions would be lost");
        if let Some(node) = self.nodes.get_mut(rank).and_then(Option::as_mut) {
            std::mem::swap(node.engine.completions(), list);
        }
    }

    /// The rank's client reads the next completion with these flags. The MULTI flag tells it whether a shared
    /// multi-receive is released.
    pub(crate) fn read_next(&mut self, rank: usize, flags: &mut CompletionFlags) {
        if let Some(node) = self.nodes.get_mut(rank).and_then(Option::as_mut)
            && flags.contains(CompletionFlags::POOLED)
        {
            drop(node.engine.outcome().2.next(flags));
        }
    }

    /// The rank's host is lost: its engine is dropped, and its pending messages and transfers are cut off.
    pub fn kill(&mut self, rank: usize) {
        self.fabric.kill(rank);
        if let Some(node) = self.nodes.get_mut(rank) {
            *node = None;
        }
    }

    /// The rank's process exits in order: it shuts down, drains, and ends.
    pub fn leave(&mut self, rank: usize) {
        self.shut_down(rank);
        if let Some(node) = self.nodes.get_mut(rank) {
            *node = None;
        }
    }

    /// The rank closes its endpoint; its pending operations fail.
    pub(crate) fn shut_down(&mut self, rank: usize) {
        if let Some(engine) = self.engine(rank) {
            engine.leave_pool();
            engine.shutdown();
        }
    }

    /// Lists the ranks that may have work, each once. The list of touched ones is empty afterwards.
    fn candidates(&mut self, list: &mut Vec<usize>) {
        let Self { fabric, nodes, agenda, .. } = self;
        if self.all_poll {
            agenda.clear();
            agenda.extend(0..nodes.len());
            nodes.iter_mut().flatten().for_each(|node| node.listed = true);
        }
        fabric.each_with_work(|rank, _| {
            // The device of an impostor has no engine.
            if let Some(Some(node)) = nodes.get_mut(rank)
                && !std::mem::replace(&mut node.listed, true)
            {
                agenda.push(rank);
            }
        });
        std::mem::swap(agenda, list);
        list.retain(|rank| nodes[*rank].as_mut().is_some_and(|node| std::mem::replace(&mut node.listed, false)));
    }

    /// Divides the ranks with work into those that take part in this turn, in the order of their draws, and the slow
    /// ones.
    fn draw(&mut self, round: &mut Round) {
        let now_ns = self.fabric.now_ns();
        let mut still = 0;
        self.candidates(&mut round.candidates);
        for rank in round.candidates.drain(..) {
            let Some(node) = &mut self.nodes[rank] else { continue };
            if !(node.touched || self.all_poll || self.fabric.has_work(rank)) {
                continue;
            }
            let place = node.schedule.bits();
            let takes_part = node.turn_permille == 1000 || node.schedule.chance(node.turn_permille);
            let takes_part = takes_part || !self.slow;
            // Until its round has shown otherwise, the rank stays a candidate.
            if node.touched && !std::mem::replace(&mut node.listed, true) {
                self.agenda.push(rank);
            }
            if node.paused_until_ns > now_ns {
                still += 1;
                continue;
            }
            if takes_part { round.order.push((place, rank)) } else { round.slow.push((place, rank)) }
        }
        self.fabric.count(|stats| stats.pauses += still + round.slow.len() as u64);
        round.order.sort_unstable();
        round.slow.sort_unstable_by_key(|(_, rank)| *rank);
    }

    /// Gives one progress round to every live engine that may have work, in an order drawn from their own
    /// random streams. Slow engines skip some turns. Calls `each` after each engine. If nothing moved, time
    /// advances. The cost does not depend on the number of engines without work.
    pub fn turn(&mut self, mut each: impl FnMut(&mut Self, usize)) -> Turn {
        let full_before = self.fabric.full();
        let now_ns = self.fabric.now_ns();
        let mut round = std::mem::take(&mut self.round);
        self.draw(&mut round);
        let mut moved = self.progress(&round.order, &mut each);
        if moved == 0 && !round.slow.is_empty() {
            // Time may only advance if the slow engines have nothing to do either.
            moved = self.progress(&round.slow, &mut each);
        }
        round.order.clear();
        round.slow.clear();
        self.round = round;
        if moved > 0 {
            self.fabric.pass(self.turn_ns);
            return Turn::Moved;
        }
        let mut is_awake = false;
        self.fabric.each_with_work(|rank, endpoint| {
            let node = self.nodes.get(rank).and_then(Option::as_ref);
            is_awake |= endpoint.has_arrivals() && node.is_some_and(|node| node.paused_until_ns <= now_ns);
        });
        if is_awake {
            // A device delivered nothing although it has arrivals, or arrivals came during this turn
            // (registering memory lets time pass). The device is polled again at once.
            self.fabric.pass(TURN_NS);
            return Turn::Advanced;
        }
        let retry = self.fabric.waiting() || self.fabric.full() > full_before;
        if self.fabric.advance() || retry { Turn::Advanced } else { Turn::Idle }
    }

    fn progress(&mut self, order: &[(u64, usize)], each: &mut impl FnMut(&mut Self, usize)) -> usize {
        let mut moved = 0;
        for (_, rank) in order {
            let full_before = self.fabric.full();
            let Some(Some(Node { engine, touched, listed, .. })) = self.nodes.get_mut(*rank) else { continue };
            let here = engine.progress() + engine.completions().len();
            *touched = here > 0 || self.fabric.full() > full_before;
            if *touched && !std::mem::replace(listed, true) {
                self.agenda.push(*rank);
            }
            moved += here;
            each(self, *rank);
        }
        moved
    }
}
