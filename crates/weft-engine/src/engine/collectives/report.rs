//! Reports of the collectives under way, for statistics, and the member that failed ones name.
//!
//! Place in the data flow: beside it. weft-fi asks for the reports when it publishes counters. They are derived from
//! the state of the operations, so that the operations themselves count nothing.

use super::boards::BoardRun;
use super::{ActiveRun, Collectives, Group, Purpose};
use crate::api::Context;
use crate::collective::{Buffer, Operation, Request};
use crate::engine::{Engine, GroupId};
use crate::ids;
use crate::nic::{ChainId, Nic};

/// The oldest operation under way of one group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GroupReport {
    /// This endpoint's number of the group.
    pub number: u32,
    /// This endpoint's rank.
    pub rank: u32,
    /// The number of members.
    pub members: u32,
    /// Operations under way, a join included.
    pub under_way: u64,
    /// The oldest of these operations. `None`: the group is being joined (sequence 0), or the schedule is the client's.
    pub operation: Option<Operation>,
    /// The number of that operation in its group, in the order of the calls.
    pub sequence: u64,
    /// Bytes of a block of that operation.
    pub block_bytes: u64,
    /// Number of members from which this one now waits for a part. Parts may come from further members later.
    pub awaited: u32,
    /// A bit for each of these members whose rank is below 64.
    pub awaited_ranks: u64,
}

impl GroupReport {
    fn awaits(&mut self, rank: u32) {
        self.awaited += 1;
        self.awaited_ranks |= 1_u64.checked_shl(rank).unwrap_or(0);
    }
}

impl Group {
    /// The data of a failed completion: the rank of the first member that was lost, plus 1. 0: none is known.
    pub(super) fn first_lost(&self) -> u64 {
        self.lost.first().map_or(0, |(rank, _)| u64::from(*rank) + 1)
    }
}

impl<N: Nic> Engine<N> {
    /// Fills `reports` with those of groups that have operations under way, up to the length of the slice. Returns the
    /// number of such groups, and of operations under way in all of them.
    pub fn group_reports(&self, reports: &mut [GroupReport]) -> (u64, u64) {
        let Some(collectives) = self.state.collectives.as_deref() else { return (0, 0) };
        let busy = || collectives.groups.iter().filter(|(_, group)| group.runs > 0);
        for (report, (id, group)) in reports.iter_mut().zip(busy()) {
            *report = collectives.report(id, group, |chain| self.nic.chain_arrivals(chain));
        }
        (busy().count() as u64, busy().map(|(_, group)| group.runs as u64).sum())
    }
}

impl<N: Nic> Engine<N> {
    /// Whether the collective with this context may still read what its member gives. `None`: there is none under way.
    pub fn reads_source(&self, ctx: Context) -> Option<bool> {
        let collectives = self.state.collectives.as_deref()?;
        if collectives.postponed.iter().any(|op| op.options().0 == ctx) {
            return Some(true);
        }
        if let Some(run) = collectives.on_boards.iter().find(|run| run.ctx() == ctx) {
            return Some(run.is_outside());
        }
        let mut runs = collectives.runs.iter().map(|(_, run)| run);
        let run = runs.find(|run| matches!(run.purpose, Purpose::Operation { .. }) && run.ctx == ctx)?;
        // The root's block of a broadcast is in its result.
        let broadcasts = |request: &Request| request.operation == Operation::Broadcast && request.rank == request.root;
        let buffer = if run.request.as_ref().is_some_and(broadcasts) { Buffer::Result } else { Buffer::Input };
        Some(run.run.uses(buffer))
    }
}

impl Collectives {
    fn report(&self, id: GroupId, group: &Group, arrivals: impl Fn(ChainId) -> u64) -> GroupReport {
        let mut report = GroupReport {
            number: group.number,
            rank: group.rank,
            members: ids::number(group.members.len()),
            under_way: group.runs as u64,
            ..GroupReport::default()
        };
        let on_board = self.on_boards.iter().find(|run| run.group() == id);
        let runs = self.runs.iter().map(|(_, run)| run).filter(|run| run.group == id);
        let by_messages = runs.min_by_key(|run| run.sequence());
        match (on_board, by_messages) {
            (Some(run), exchange) => {
                report.operation = Some(run.request().operation);
                (report.sequence, report.block_bytes) = (run.turn(), run.request().block() as u64);
                run.awaited(group).for_each(|rank| report.awaits(rank));
                if let Some(exchange) = exchange.filter(|run| matches!(run.purpose, Purpose::Exchange { .. })) {
                    group.awaited_on_chain(exchange, arrivals).into_iter().for_each(|rank| report.awaits(rank));
                    exchange.run.awaited().for_each(|host| report.awaits(group.leader_of(host)));
                }
            }
            (None, Some(run)) => {
                if let Purpose::Operation { sequence } = run.purpose {
                    report.operation = run.request.map(|request| request.operation);
                    report.sequence = sequence;
                    report.block_bytes = run.request.map_or(0, |request| request.block() as u64);
                }
                group.awaited_on_chain(run, arrivals).into_iter().for_each(|rank| report.awaits(rank));
                run.run.awaited().for_each(|rank| report.awaits(rank));
            }
            (None, None) => {}
        }
        report
    }
}

impl ActiveRun {
    /// The place of the run among those of its group.
    pub(super) const fn sequence(&self) -> u64 {
        match self.purpose {
            Purpose::Operation { sequence } | Purpose::Exchange { sequence, .. } => sequence,
            Purpose::Join { .. } | Purpose::Vote { .. } => 0,
        }
    }
}

impl BoardRun {
    /// The ranks of the members on this host that have not arrived, of those that have a part in the operation.
    fn awaited(&self, group: &Group) -> impl Iterator<Item = u32> {
        let host = group.host.as_deref();
        host.into_iter().flat_map(|host| host.missing(self))
    }
}
