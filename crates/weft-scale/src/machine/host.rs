//! The hosts of ranks: boards in their memory, and processors that ranks share.
//!
//! Place in the data flow: [`super::Machine`] calls for ranks that meet on a board, and passes the processors of a host
//! on from rank to rank.
//!
//! Invariant: a processor belongs to one rank at a time. A rank that finds nothing passes it on to another one at a
//! cost, as a program does that yields between its looks. Each rank gets one turn in a cycle. The order of a cycle is
//! drawn, since that of a scheduler has nothing to do with the numbers of ranks.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::profile::Costs;
use crate::random::{Stream, below};
use crate::step::Meeting as Gathering;

/// A place where ranks meet: the host, the iteration, and the number among the meetings of the iteration.
type Place = (u32, u32, u32);

/// Ranks that have arrived at a place.
#[derive(Debug, Default)]
struct Meeting {
    arrived: u32,
    /// Those that wait.
    waiting: Vec<u32>,
    /// The source has arrived.
    is_open: bool,
    /// When the counter can take the next arrival.
    free: u64,
}

/// The result of an arrival.
pub(super) struct Arrived {
    /// When the counter has it.
    pub(super) at: u64,
    /// The ranks that go on.
    pub(super) released: Vec<u32>,
}

/// The hosts.
#[derive(Debug)]
pub(super) struct Hosts {
    ranks: u32,
    ranks_per_host: u32,
    /// Processors of a host, if its ranks share them.
    shared: Option<u32>,
    /// The time for a cache line of another rank.
    line: u64,
    meetings: FxHashMap<Place, Meeting>,
    /// By processor that ranks share: those that are due in its cycle.
    due: FxHashMap<(u32, u32), Vec<u32>>,
    /// Numbers drawn.
    drawn: u64,
    seed: u64,
    turn: u64,
}

impl Hosts {
    pub(super) fn new(costs: &Costs, ranks: u32, seed: u64) -> Self {
        let together = costs.ranks_per_host.min(ranks);
        let shared = costs.processors.filter(|processors| *processors < together);
        // The line of a rank that has run on the same processor is there already.
        let line = costs.collective.line;
        let line = shared.map_or(line, |processors| line * u64::from(processors - 1) / u64::from(processors));
        // A rank finds its lines again, except for those that the ranks before it have displaced.
        let further = shared.map_or(0, |processors| u64::from(together.div_ceil(processors).saturating_sub(2)));
        Self {
            ranks,
            ranks_per_host: costs.ranks_per_host,
            shared,
            line,
            meetings: FxHashMap::default(),
            due: FxHashMap::default(),
            drawn: 0,
            seed,
            turn: costs.collective.turn + further * costs.collective.refill,
        }
    }

    pub(super) const fn are_shared(&self) -> bool {
        self.shared.is_some()
    }

    /// The time for a cache line of another rank.
    pub(super) const fn line(&self) -> u64 {
        self.line
    }

    fn of_host(&self, rank: u32) -> Range<u32> {
        let first = rank - rank % self.ranks_per_host;
        first..first.saturating_add(self.ranks_per_host).min(self.ranks)
    }

    /// Whether the rank is the first one of its processor.
    pub(super) fn is_first(&self, rank: u32) -> bool {
        self.shared.is_none_or(|processors| rank - self.of_host(rank).start < processors)
    }

    /// The rank that gets the processor of this one, among those that run. A rank that is alone gets it again.
    pub(super) fn next(&mut self, rank: u32, runs: impl Fn(u32) -> bool) -> Option<u32> {
        let (host, step) = (self.of_host(rank), self.shared?);
        let place = (rank - host.start) % step;
        let number = self.drawn();
        let (seed, due) = (self.seed, self.due.entry((host.start, place)).or_default());
        due.retain(|other| runs(*other) && *other != rank);
        if due.is_empty() {
            due.extend((host.start + place..host.end).step_by(step as usize).filter(|other| runs(*other)));
            if due.len() > 1 {
                due.retain(|other| *other != rank);
            }
        }
        let drawn = below(due.len() as u64, Stream::Turn, seed, rank, number);
        (!due.is_empty()).then(|| due.swap_remove(usize::try_from(drawn).unwrap_or(0)))
    }

    /// The duration of a turn without work: between half and one and a half of the cost. Equal ones would keep
    /// processors in step.
    pub(super) fn turn(&mut self, rank: u32) -> u64 {
        let number = self.drawn();
        self.turn / 2 + below(self.turn, Stream::Turn, self.seed, rank, number)
    }

    /// The number of a draw.
    const fn drawn(&mut self) -> u64 {
        self.drawn += 1;
        self.drawn
    }

    /// A rank arrives. Returns when the counter has it, and the ranks that it lets go on.
    pub(super) fn arrive(&mut self, now: u64, rank: u32, (iteration, number): (u32, u32), of: Gathering) -> Arrived {
        let place = (rank / self.ranks_per_host, iteration, number);
        let meeting = self.meetings.entry(place).or_default();
        meeting.waiting.push(rank);
        meeting.arrived += 1;
        meeting.is_open |= of.source == Some(rank);
        meeting.free = meeting.free.max(now) + self.line;
        let (at, is_full) = (meeting.free, meeting.arrived >= of.members);
        let released = if is_full || meeting.is_open { std::mem::take(&mut meeting.waiting) } else { Vec::new() };
        if is_full {
            self.meetings.remove(&place);
        }
        Arrived { at, released }
    }
}
