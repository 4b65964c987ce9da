//! The hosts of ranks: boards in their memory, and processors that ranks share.
//!
//! Place in the data flow: [`super::Machine`] calls for ranks that meet on a board, and passes the processors of a host
//! on from rank to rank.
//!
//! Invariant: a processor belongs to one rank at a time. A rank that finds nothing looks once more at a cost, and
//! passes the processor on to the next rank, as a program does that yields between its looks.

use std::ops::Range;

use rustc_hash::FxHashMap;

use crate::profile::Costs;

/// A place where ranks meet: the host, the iteration, and the number among the meetings of the iteration.
type Place = (u32, u32, u32);

/// Ranks that have arrived at a place.
#[derive(Debug, Default)]
struct Meeting {
    arrived: Vec<u32>,
    /// When the counter can take the next arrival.
    free: u64,
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
}

impl Hosts {
    pub(super) fn new(costs: &Costs, ranks: u32) -> Self {
        let together = costs.ranks_per_host.min(ranks);
        let shared = costs.processors.filter(|processors| *processors < together);
        // The line of a rank that has run on the same processor is there already.
        let line = costs.collective.line;
        let line = shared.map_or(line, |processors| line * u64::from(processors - 1) / u64::from(processors));
        Self { ranks, ranks_per_host: costs.ranks_per_host, shared, line, meetings: FxHashMap::default() }
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

    /// The ranks that get the processor behind this one, in their order. The last one is this rank itself.
    pub(super) fn behind(&self, rank: u32) -> impl Iterator<Item = u32> + use<> {
        let (host, step) = (self.of_host(rank), self.shared.unwrap_or(u32::MAX));
        let first = host.start + (rank - host.start) % step;
        let after = (rank.saturating_add(step)..host.end).step_by(step as usize);
        after.chain((first..=rank).step_by(step as usize))
    }

    /// A rank arrives. Returns when the counter has it, and all ranks if it is the last one of `members`.
    pub(super) fn arrive(&mut self, now: u64, rank: u32, (iteration, number, members): Place) -> (u64, Vec<u32>) {
        let place = (rank / self.ranks_per_host, iteration, number);
        let meeting = self.meetings.entry(place).or_default();
        meeting.arrived.push(rank);
        meeting.free = meeting.free.max(now) + self.line;
        let free = meeting.free;
        let is_full = meeting.arrived.len() >= members as usize;
        let all = if is_full { self.meetings.remove(&place).unwrap_or_default().arrived } else { Vec::new() };
        (free, all)
    }
}
