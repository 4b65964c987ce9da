//! The simulation: ranks perform their steps at the costs of a profile.
//!
//! Place in the data flow: takes steps from a [`Programs`], costs from a [`Costs`], and keeps due events in a
//! [`Queue`]. `machine/device.rs` has the network cards, `machine/host.rs` boards and processors that
//! ranks share.
//!
//! The model is LogGP (Alexandrov et al., 1995): a message takes the sender's processor for `o`, its device for `g` or
//! for its bytes at `G`, then `L`, then the receiver's processor for `o`. Further costs are those of the profile:
//! bulk engines, cards that perform schedules, contexts that they do not hold, interruptions, and late messages. A
//! message that is announced first takes one more exchange of short messages.
//!
//! Invariants:
//! - Events happen in the order of (time, insertion). Nothing depends on the order of a hash table.
//! - A rank performs its steps ahead of the time of events, until one depends on a message, or on a device that ranks
//!   share. Such a device is therefore used in the order of time.
//! - The state of a rank in a collective without data is at most 40 bytes, and a bit for each arrival.

mod device;
mod host;

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::profile::{Costs, Path};
use crate::queue::{Buckets, Event, Queue};
use crate::random::{Stream, below};
use crate::step::{Arrival, Programs, Step, Unit};
use device::Devices;
use host::Hosts;

/// Events between two reports of the progress.
const REPORT_EVERY: u64 = 1 << 18;

/// Turns in a row without a step after which no message is under way that a rank waits for.
const MOST_IDLE_TURNS: u64 = 1 << 24;
/// The shortest turn of a rank that finds nothing.
const LEAST_TURN_PS: u64 = 10_000;

/// The part of a host that performs the steps of a collective.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Executor {
    /// The processor of the rank, in the calls of its program.
    #[default]
    Host,
    /// The network card, which gets the whole schedule at once.
    Card,
}

/// Work that a rank does while a collective is under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overlap {
    /// None: the rank waits.
    #[default]
    None,
    /// The rank starts the collective, works for this long, and waits.
    Once(u64),
    /// The rank alternates between work of this duration and a test, until the collective has ended.
    Quanta(u64),
}

/// The conditions of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The seed of all random draws.
    pub seed: u64,
    /// How often each rank performs its program.
    pub iterations: u32,
    /// The part of a host that performs the steps.
    pub executor: Executor,
    /// Work while the collective is under way.
    pub overlap: Overlap,
    /// The most work before each iteration, chosen at random for each rank: the imbalance of load.
    pub imbalance_ps: u64,
    /// Contexts of queues in use on each card.
    pub contexts: u64,
    /// Whether a card fetches an entry for each message that it receives.
    pub fetches_entries: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            seed: 1,
            iterations: 1,
            executor: Executor::Host,
            overlap: Overlap::None,
            imbalance_ps: 0,
            contexts: 0,
            fetches_entries: false,
        }
    }
}

/// The result of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// The time at which the last rank ended.
    pub end_ps: u64,
    /// The time of rank 0 for each iteration, as the source papers report it.
    pub rank_0_ps: u64,
    /// The mean time at which ranks ended.
    pub mean_ps: u64,
    /// Work of rank 0 while collectives were under way ([`Overlap::Quanta`]).
    pub worked_ps: u64,
    /// The longest time of a rank between its marks ([`Step::Mark`]).
    pub marked_ps: u64,
    /// Events that happened.
    pub events: u64,
    /// Messages that were sent.
    pub messages: u64,
    /// A hash over all events in their order.
    pub hash: u64,
}

/// A rank waits for a message that is never sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("rank {rank} waits at step {step} for a message that is never sent: the programs do not fit together")]
pub struct Stuck {
    /// The rank.
    pub rank: u32,
    /// The index of its step.
    pub step: u32,
}

/// The kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A rank continues.
    Resume,
    /// The last byte of a message is at the device.
    Arrive,
    /// A message has passed the device.
    Deliver,
    /// A request to read memory is at the device that answers it.
    Read,
    /// A request for an atomic operation is at the device that answers it.
    Atomic,
    /// A request is at the processor that answers it by a handler.
    Handle,
    /// A rank arrives on the board of its host.
    Meet,
    /// A rank gets the processor that it shares.
    Turn,
}

impl Kind {
    const ALL: [Self; 8] =
        [Self::Resume, Self::Arrive, Self::Deliver, Self::Read, Self::Atomic, Self::Handle, Self::Meet, Self::Turn];

    fn label(self, iteration: u32) -> u32 {
        (iteration << 3) | self as u32
    }

    fn of(label: u32) -> Self {
        Self::ALL.get((label & 7) as usize).copied().unwrap_or(Self::Resume)
    }
}

/// The state of a rank.
#[derive(Clone, Copy, Debug, Default)]
struct Rank {
    /// Where its processor, or the card in its place, stands in time.
    local: u64,
    /// The index of the next step.
    next: u32,
    iteration: u32,
    /// Messages that it has sent: numbers its draws.
    sent: u32,
    /// It has begun with its program.
    begun: bool,
    /// The processor's part of the next step has been paid.
    paid: bool,
    /// The work that [`Overlap::Once`] asks for is done.
    worked: bool,
}

/// The processor of a rank whose schedule is performed by the card, or that alternates between work and tests.
#[derive(Clone, Copy, Debug, Default)]
struct Processor {
    /// When it is free again.
    ready: u64,
    /// Work beside collectives.
    worked: u64,
}

/// The clock of a rank between its marks.
#[derive(Clone, Copy, Debug, Default)]
struct Clock {
    since: Option<u64>,
    sum: u64,
}

/// Whether a rank performs its next step now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Goes,
    Stays,
}

/// A simulation of all ranks.
#[derive(Debug)]
pub struct Machine<'a, P, Q = Buckets> {
    programs: &'a P,
    costs: &'a Costs,
    options: Options,
    queue: Q,
    now: u64,
    ranks: Vec<Rank>,
    processors: Vec<Processor>,
    /// One bit for each arrival of the current iteration, `words` words for each rank.
    arrived: Vec<u64>,
    words: usize,
    /// Arrivals of later iterations: (iteration, ordinal) by rank.
    early: FxHashMap<u32, Vec<(u32, u32)>>,
    devices: Devices,
    hosts: Hosts,
    /// By rank, if there are marks.
    clocks: Vec<Clock>,
    /// Turns without a step since the last other event.
    idle_turns: u64,
    ended: u32,
    messages: u64,
    events: u64,
    hash: u64,
}

impl<'a, P: Programs> Machine<'a, P> {
    /// A simulation at its start, with the queue that suits many ranks.
    #[must_use]
    pub fn new(programs: &'a P, costs: &'a Costs, options: Options) -> Self {
        // Many ranks have many events at about the same time. Short buckets are sorted faster.
        let parts = u64::from(programs.ranks() / 64).clamp(16, 256);
        let width_ps = (costs.far.latency / parts).clamp(1, 1 << 20);
        Self::with_queue(programs, costs, options, Buckets::new(width_ps))
    }
}

impl<'a, P: Programs, Q: Queue> Machine<'a, P, Q> {
    /// A simulation at its start, with a queue of the caller's.
    #[must_use]
    pub fn with_queue(programs: &'a P, costs: &'a Costs, options: Options, queue: Q) -> Self {
        let ranks = programs.ranks() as usize;
        let words = (programs.most_arrivals() as usize).div_ceil(64).max(1);
        let apart = options.executor == Executor::Card || matches!(options.overlap, Overlap::Quanta(_));
        Self {
            programs,
            costs,
            options,
            queue,
            now: 0,
            ranks: vec![Rank::default(); ranks],
            processors: vec![Processor::default(); if apart { ranks } else { 0 }],
            arrived: vec![0; ranks * words],
            words,
            early: FxHashMap::default(),
            devices: Devices::new(costs, &options, programs.ranks()),
            hosts: Hosts::new(costs, programs.ranks(), options.seed),
            clocks: Vec::new(),
            idle_turns: 0,
            ended: 0,
            messages: 0,
            events: 0,
            hash: 0,
        }
    }

    /// Runs to the end. `progress` gets the number of events and of ended ranks from time to time.
    ///
    /// # Errors
    /// A rank waits for a message that is never sent.
    pub fn run(mut self, mut progress: impl FnMut(u64, u32)) -> Result<Outcome, Stuck> {
        if self.options.iterations == 0 {
            self.ended = self.programs.ranks();
        } else {
            for rank in 0..self.programs.ranks() {
                self.begin(rank);
                let time_ps = self.ranks[rank as usize].local;
                let kind = if self.hosts.are_shared() { Kind::Turn } else { Kind::Resume };
                if self.hosts.is_first(rank) {
                    self.queue.push(Event { time_ps, rank, from: rank, number: 0, label: kind.label(0) });
                }
            }
        }
        while let Some(event) = self.queue.pop() {
            debug_assert!(event.time_ps >= self.now, "time does not go back");
            self.now = event.time_ps;
            self.record(&event);
            match Kind::of(event.label) {
                Kind::Resume => self.advance(event.rank),
                Kind::Arrive | Kind::Deliver => self.arrive(event),
                Kind::Read => self.answer(event, Unit::Memory),
                Kind::Atomic => self.answer(event, Unit::Atomic),
                Kind::Handle => self.answer(event, Unit::Handler),
                Kind::Meet => self.meet(event),
                Kind::Turn => self.turn(event),
            }
            if self.events.is_multiple_of(REPORT_EVERY) {
                progress(self.events, self.ended);
            }
        }
        self.outcome()
    }

    fn record(&mut self, event: &Event) {
        self.events += 1;
        let place = (u64::from(event.rank) << 32) | u64::from(event.from);
        let message = (u64::from(event.number) << 32) | u64::from(event.label);
        for word in [event.time_ps, place, message] {
            self.hash = (self.hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
    }

    fn outcome(self) -> Result<Outcome, Stuck> {
        let iterations = self.options.iterations;
        if let Some((rank, at)) = (0_u32..).zip(&self.ranks).find(|(_, rank)| rank.iteration < iterations) {
            return Err(Stuck { rank, step: at.next });
        }
        let ends = || self.ranks.iter().map(|rank| rank.local);
        let count = u64::from(self.programs.ranks()).max(1);
        Ok(Outcome {
            end_ps: ends().max().unwrap_or(0),
            rank_0_ps: ends().next().unwrap_or(0) / u64::from(iterations.max(1)),
            mean_ps: u64::try_from(ends().map(u128::from).sum::<u128>() / u128::from(count)).unwrap_or(u64::MAX),
            marked_ps: self.clocks.iter().map(|clock| clock.sum).max().unwrap_or(0),
            worked_ps: self.processors.first().map_or(0, |processor| processor.worked),
            events: self.events,
            messages: self.messages,
            hash: self.hash,
        })
    }

    /// The end of work that a processor begins at a time, with the interruptions in between.
    fn busy(&self, from: u64, rank: u32, work: u64) -> u64 {
        let (every, lasts) = (self.costs.cpu.noise_every, self.costs.cpu.noise_lasts);
        let mut end = from + work;
        if every == 0 || lasts == 0 {
            return end;
        }
        let mut number = (from / every).saturating_sub(1);
        loop {
            let at = number * every + below(every, Stream::Noise, self.options.seed, rank, number);
            if at + lasts > from && at < end {
                end += (at + lasts - from).min(lasts);
            }
            number += 1;
            if number * every >= end {
                return end;
            }
        }
    }

    /// The end of a step's work, if the processor performs the steps.
    fn busy_if_host(&self, from: u64, rank: u32, work: u64) -> u64 {
        if self.options.executor == Executor::Host { self.busy(from, rank, work) } else { from }
    }

    /// Begins an iteration: the imbalance, and the part of the processor where the card performs the steps.
    fn begin(&mut self, rank: u32) {
        let state = self.ranks[rank as usize];
        let late = below(self.options.imbalance_ps, Stream::Skew, self.options.seed, rank, state.iteration.into());
        let mut local = if late > 0 { self.busy(state.local, rank, late) } else { state.local };
        if self.options.executor == Executor::Card {
            local = self.busy(local, rank, self.costs.card.post);
            let work = if let Overlap::Once(work) = self.options.overlap { work } else { 0 };
            self.processors[rank as usize].ready = self.busy(local, rank, self.costs.card.posting + work);
        }
        self.ranks[rank as usize].local = local;
    }

    /// Performs the steps of a rank until one depends on an event.
    fn advance(&mut self, rank: u32) {
        let mut state = self.ranks[rank as usize];
        state.begun = true;
        loop {
            let turn = match self.programs.step(rank, state.next) {
                None => self.end(rank, &mut state),
                Some(step) => self.perform(rank, &mut state, step),
            };
            if turn == Turn::Stays {
                break;
            }
        }
        self.ranks[rank as usize] = state;
    }

    /// Performs one step.
    fn perform(&mut self, rank: u32, state: &mut Rank, step: Step) -> Turn {
        let turn = match step {
            Step::Send { to, number, bytes } => self.send(rank, state, (to, number), bytes),
            Step::Ask { to, number, unit } => self.ask(rank, state, (to, number), unit),
            Step::Wait { from, ordinal } => self.wait(rank, state, (from, ordinal)),
            Step::Meet { number, .. } => {
                state.local = self.busy_if_host(state.local, rank, self.costs.collective.board.unwrap_or(0));
                let label = Kind::Meet.label(state.iteration);
                self.queue.push(Event { time_ps: state.local, rank, from: rank, number, label });
                Turn::Goes
            }
            Step::Mark => {
                self.mark_time(rank, state.local);
                Turn::Goes
            }
            _ => {
                state.local = self.alone(rank, state.local, step);
                Turn::Goes
            }
        };
        if turn == Turn::Goes {
            state.next += 1;
        }
        turn
    }

    /// The end of a step that needs no other rank.
    fn alone(&self, rank: u32, from: u64, step: Step) -> u64 {
        let (cpu, by_host) = (&self.costs.cpu, self.options.executor == Executor::Host);
        match step {
            Step::Drain => from.max(self.devices.drained(rank)),
            Step::Compute { ps } => self.busy(from, rank, ps),
            Step::Copy { bytes } => self.busy_if_host(from, rank, cpu.copy_byte * bytes),
            Step::Reduce { bytes } if by_host => self.busy(from, rank, cpu.reduce_byte * bytes),
            Step::Reduce { bytes } => from + self.costs.card.reduce_byte * bytes,
            Step::Call => self.busy_if_host(from, rank, self.costs.collective.call),
            Step::Slots { count } => self.busy_if_host(from, rank, u64::from(count) * self.hosts.line()),
            Step::Send { .. } | Step::Ask { .. } | Step::Wait { .. } | Step::Meet { .. } | Step::Mark => from,
        }
    }

    /// Starts or stops the clock of a rank.
    fn mark_time(&mut self, rank: u32, local: u64) {
        self.clocks.resize(self.ranks.len(), Clock::default());
        let clock = &mut self.clocks[rank as usize];
        match clock.since.take() {
            Some(since) => clock.sum += local - since,
            None => clock.since = Some(local),
        }
    }

    /// A rank arrives on the board of its host. The last one reads the slots of the others, if it combines them, and
    /// lets all go on. A source lets them go on at once.
    fn meet(&mut self, event: Event) {
        let meeting = self.programs.meeting(event.rank, event.number);
        debug_assert!(meeting.is_some(), "rank {} does not meet at {}", event.rank, event.number);
        let Some(meeting) = meeting else { return };
        let iteration = event.label >> 3;
        let arrived = self.hosts.arrive(event.time_ps, event.rank, (iteration, event.number), meeting);
        let combined = arrived.at + u64::from(meeting.combines) * self.hosts.line();
        if self.hosts.are_shared() {
            // Its own accesses are work of its processor: the last rank goes on without another turn.
            let local = &mut self.ranks[event.rank as usize].local;
            *local = (*local).max(if arrived.released.is_empty() { arrived.at } else { combined });
        }
        for rank in arrived.released {
            let time_ps = if rank == event.rank { combined } else { combined + self.hosts.line() };
            self.queue.push(Event { time_ps, rank, from: rank, label: Kind::Arrive.label(iteration), ..event });
        }
    }

    /// A rank has its processor. It keeps it while it has work, and passes it on when it finds nothing.
    fn turn(&mut self, event: Event) {
        let rank = event.rank;
        let state = &mut self.ranks[rank as usize];
        let before = (state.iteration, state.next);
        state.local = state.local.max(self.now);
        self.advance(rank);
        let state = self.ranks[rank as usize];
        self.idle_turns = if before == (state.iteration, state.next) { self.idle_turns + 1 } else { 0 };
        let (ranks, iterations) = (&self.ranks, self.options.iterations);
        let runs = |rank: u32| ranks[rank as usize].iteration < iterations;
        // It looks again when its work is done: a message may have arrived meanwhile.
        let (time_ps, next) = if state.local > self.now && runs(rank) {
            (state.local, Some(rank))
        } else {
            let next = self.hosts.next(rank, runs);
            (state.local + self.hosts.turn(rank).max(LEAST_TURN_PS), next)
        };
        if let Some(rank) = next.filter(|_| self.idle_turns < MOST_IDLE_TURNS) {
            self.queue.push(Event { time_ps, rank, from: rank, ..event });
        }
    }

    /// The end of the program, and the next iteration.
    fn end(&mut self, rank: u32, state: &mut Rank) -> Turn {
        if state.iteration >= self.options.iterations {
            return Turn::Stays;
        }
        self.work_once(rank, state);
        if self.options.executor == Executor::Card {
            let mut processor = self.processors[rank as usize];
            let mut free = processor.ready;
            if let Overlap::Quanta(work) = self.options.overlap {
                let rounds = self.rounds(&(free..state.local), work);
                free += rounds * (work + self.costs.cpu.test);
                processor.worked += rounds * work;
                self.processors[rank as usize] = processor;
            }
            state.local = self.busy(free.max(state.local), rank, self.costs.card.reap);
        }
        let (local, iteration, sent) = (state.local, state.iteration + 1, state.sent);
        *state = Rank { local, iteration, sent, begun: true, ..Rank::default() };
        if state.iteration == self.options.iterations {
            self.ended += 1;
            return Turn::Stays;
        }
        let bits = rank as usize * self.words;
        self.arrived[bits..bits + self.words].fill(0);
        self.take_early(rank, state);
        self.ranks[rank as usize] = *state;
        self.begin(rank);
        *state = self.ranks[rank as usize];
        Turn::Goes
    }

    /// Rounds of work and test until a time of waiting has passed.
    const fn rounds(&self, waits: &Range<u64>, work: u64) -> u64 {
        let round = work + self.costs.cpu.test;
        if round == 0 { 0 } else { waits.end.saturating_sub(waits.start).div_ceil(round) }
    }

    fn path(&self, (rank, other): (u32, u32)) -> &'a Path {
        let per_host = self.costs.ranks_per_host;
        match &self.costs.near {
            Some(near) if rank / per_host == other / per_host => near,
            _ => &self.costs.far,
        }
    }

    fn is_near(&self, path: &Path) -> bool {
        self.costs.near.as_ref().is_some_and(|near| std::ptr::eq(near, path))
    }

    /// Pays for a message. [`Turn::Stays`]: its device is shared, and its time has not come.
    fn pay(&mut self, rank: u32, state: &mut Rank, path: &Path, bytes: u64) -> Turn {
        if !state.paid {
            let by_cpu = if path.is_bulk(bytes) { 0 } else { path.cpu_byte * bytes };
            state.local = self.busy_if_host(state.local, rank, path.send + by_cpu);
            state.paid = true;
            if self.devices.are_shared() && state.local > self.now && !self.is_near(path) {
                let label = Kind::Resume.label(state.iteration);
                self.queue.push(Event { time_ps: state.local, rank, from: rank, number: 0, label });
                return Turn::Stays;
            }
        }
        state.paid = false;
        state.sent += 1;
        self.messages += 1;
        Turn::Goes
    }

    fn send(&mut self, rank: u32, state: &mut Rank, (to, number): (u32, u32), bytes: u64) -> Turn {
        let path = self.path((rank, to));
        if self.pay(rank, state, path, bytes) == Turn::Stays {
            return Turn::Stays;
        }
        let left = if self.is_near(path) {
            state.local
        } else {
            self.devices.send(rank, state.local, path, bytes, state.sent)
        };
        let announced = path.rendezvous_from.is_some_and(|from| bytes >= from);
        let exchange = if announced { 2 * path.latency + path.send + path.receive } else { 0 };
        let late = below(path.jitter, Stream::Jitter, self.options.seed, rank, state.sent.into());
        let time_ps = left + exchange + path.latency + path.byte * bytes + late;
        self.queue.push(Event { time_ps, rank: to, from: rank, number, label: Kind::Arrive.label(state.iteration) });
        Turn::Goes
    }

    fn ask(&mut self, rank: u32, state: &mut Rank, (to, number): (u32, u32), unit: Unit) -> Turn {
        let path = self.path((rank, to));
        if self.pay(rank, state, path, 0) == Turn::Stays {
            return Turn::Stays;
        }
        let left = self.devices.send(rank, state.local, path, 0, state.sent);
        let late = below(path.jitter, Stream::Jitter, self.options.seed, rank, state.sent.into());
        let kind = match unit {
            Unit::Memory => Kind::Read,
            Unit::Atomic => Kind::Atomic,
            Unit::Handler => Kind::Handle,
        };
        let (time_ps, label) = (left + path.latency + late, kind.label(state.iteration));
        self.queue.push(Event { time_ps, rank: to, from: rank, number, label });
        Turn::Goes
    }

    /// A unit of this rank answers a request of `event.from`.
    fn answer(&mut self, event: Event, unit: Unit) {
        let path = self.path((event.rank, event.from));
        let asked = self.programs.arrival(event.from, event.rank, event.number);
        let bytes = asked.map_or(0, |arrival| arrival.bytes);
        let left = match unit {
            Unit::Memory => self.devices.send(event.rank, event.time_ps, path, bytes, event.number),
            Unit::Atomic => self.devices.atomic(event.time_ps, event.rank, self.costs.card.atomic),
            Unit::Handler => {
                let cpu = &self.costs.cpu;
                let work = path.receive + cpu.layer + cpu.handler + cpu.layer + path.send;
                self.devices.atomic(event.time_ps, event.rank, work)
            }
        };
        let time_ps = left + path.latency + path.byte * bytes;
        let label = Kind::Arrive.label(event.label >> 3);
        self.queue.push(Event { time_ps, rank: event.from, from: event.rank, number: event.number, label });
    }

    fn arrive(&mut self, event: Event) {
        let arrival = self.programs.arrival(event.rank, event.from, event.number);
        debug_assert!(arrival.is_some(), "rank {} expects no message of {}", event.rank, event.from);
        // A message that no program names is dropped; its sender goes on.
        let Some(Arrival { ordinal, bytes }) = arrival else { return };
        let path = self.path((event.rank, event.from));
        let passed =
            Kind::of(event.label) == Kind::Deliver || self.is_near(path) || self.devices.are_passed(path, bytes);
        if !passed {
            let time_ps = self.devices.receive(event.rank, self.now, path, bytes, event.number);
            if time_ps > self.now {
                self.queue.push(Event { time_ps, label: Kind::Deliver.label(event.label >> 3), ..event });
                return;
            }
        }
        self.deliver(event, ordinal);
    }

    fn deliver(&mut self, event: Event, ordinal: u32) {
        let (rank, iteration) = (event.rank, event.label >> 3);
        let mut state = self.ranks[rank as usize];
        if iteration < state.iteration {
            // The rank left a board before the others: it takes nothing from there.
            return;
        }
        if iteration != state.iteration {
            self.early.entry(rank).or_default().push((iteration, ordinal));
            return;
        }
        self.mark((rank, ordinal));
        if self.hosts.are_shared() {
            // The rank looks when it has its processor.
            return;
        }
        let waits = self.programs.step(rank, state.next) == Some(Step::Wait { from: event.from, ordinal });
        if !waits || !state.begun {
            return;
        }
        if let (Overlap::Quanta(work), Executor::Host) = (self.options.overlap, self.options.executor) {
            let rounds = self.rounds(&(state.local..self.now), work);
            state.local += rounds * (work + self.costs.cpu.test);
            self.processors[rank as usize].worked += rounds * work;
        }
        state.local = state.local.max(self.now);
        self.ranks[rank as usize] = state;
        self.advance(rank);
    }

    fn mark(&mut self, (rank, ordinal): (u32, u32)) {
        self.arrived[rank as usize * self.words + ordinal as usize / 64] |= 1 << (ordinal % 64);
    }

    fn take_early(&mut self, rank: u32, state: &Rank) {
        let Some(waiting) = self.early.get_mut(&rank) else { return };
        let due: Vec<u32> =
            waiting.iter().filter(|(of, _)| *of == state.iteration).map(|(_, ordinal)| *ordinal).collect();
        waiting.retain(|(of, _)| *of != state.iteration);
        for ordinal in due {
            self.mark((rank, ordinal));
        }
    }

    /// The work beside a collective that the processor performs: before the first wait.
    fn work_once(&self, rank: u32, state: &mut Rank) {
        if let (Overlap::Once(work), Executor::Host, false) =
            (self.options.overlap, self.options.executor, state.worked)
        {
            state.worked = true;
            state.local = self.busy(state.local, rank, work);
        }
    }

    fn wait(&mut self, rank: u32, state: &mut Rank, (from, ordinal): (u32, u32)) -> Turn {
        self.work_once(rank, state);
        let word = self.arrived[rank as usize * self.words + ordinal as usize / 64];
        if word & (1 << (ordinal % 64)) == 0 {
            return Turn::Stays;
        }
        state.local = match self.options.executor {
            // Its own arrival is that of all on the board.
            Executor::Host if from == rank => state.local,
            Executor::Host => {
                let work = self.path((rank, from)).receive + self.costs.collective.step;
                self.busy(state.local, rank, work)
            }
            Executor::Card => state.local + self.costs.card.step,
        };
        Turn::Goes
    }
}
