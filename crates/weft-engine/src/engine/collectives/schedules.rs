//! Collectives by schedules of the client.
//!
//! Place in the data flow: a client that needs an operation which [`Operation`](crate::collective::Operation) does not
//! have compiles its schedule itself ([`compile_ordered`](crate::collective::compile_ordered) and others). It
//! runs like those of the engine.

use std::sync::Arc;

use super::{ActiveRun, Group, GroupId, RUN_LIMIT};
use crate::api::{Context, Error, OpFlags};
use crate::collective::{Buffer, Extent, Overlap, Run, Schedule, Span, Task, compile_uneven};
use crate::engine::Engine;
use crate::engine::collective_op::CollectiveOp;
use crate::mem::Owned;
use crate::nic::Nic;

/// An operation that waits for the join of its group.
pub(super) enum Postponed {
    Call(CollectiveOp),
    Schedule(CollectiveOp, Arc<Schedule>),
}

impl Postponed {
    pub(super) const fn group(&self) -> GroupId {
        match self {
            Self::Call(op) | Self::Schedule(op, _) => op.group,
        }
    }

    pub(super) const fn options(&self) -> (Context, OpFlags) {
        match self {
            Self::Call(op) | Self::Schedule(op, _) => (op.ctx, op.flags),
        }
    }
}

impl<N: Nic> Engine<N> {
    /// Starts a collective by a schedule of the client, which fits those of the other members. Its completion has kind
    /// `Collective`. The operation, the root and the count of `op` have no meaning.
    ///
    /// Errors: those of [`Engine::start_collective`]; `Invalid` also if the schedule uses members that the group does
    /// not have, or memory outside of the buffers.
    pub fn start_schedule(&mut self, op: &CollectiveOp, schedule: &Arc<Schedule>) -> Result<(), Error> {
        let collectives = self.state.collectives();
        if collectives.under_way() >= RUN_LIMIT {
            return Err(Error::Again);
        }
        let group = collectives.groups.get_mut(op.group).ok_or(Error::NoSuchAddress)?;
        if !group.admits(op, schedule) {
            return Err(Error::Invalid);
        }
        if group.joined {
            return self.begin_schedule(op, schedule);
        }
        if !group.is_keyed || group.failed.is_some() {
            return Err(Error::NotConnected);
        }
        group.runs += 1;
        collectives.postponed.push(Postponed::Schedule(*op, Arc::clone(schedule)));
        Ok(())
    }

    /// Starts an exchange of blocks of different lengths ([`compile_uneven`]): one for each member, and one of each.
    ///
    /// Errors: those of [`Engine::start_schedule`]; `Invalid` also if the lists do not fit the group.
    pub fn start_uneven(&mut self, op: &CollectiveOp, given: &[Extent], taken: &[Extent]) -> Result<(), Error> {
        let group = self.state.collectives().groups.get(op.group).ok_or(Error::NoSuchAddress)?;
        if given.len() != group.members.len() {
            return Err(Error::Invalid);
        }
        let overlap = Overlap::of(&op.input, &op.result);
        let schedule = compile_uneven(group.rank, given, taken, overlap).map_err(|_| Error::Invalid)?;
        self.start_schedule(op, &Arc::new(schedule))
    }

    pub(super) fn begin_schedule(&mut self, op: &CollectiveOp, schedule: &Arc<Schedule>) -> Result<(), Error> {
        let group = self.state.collectives().groups.get_mut(op.group).ok_or(Error::NoSuchAddress)?;
        let sequence = group.take_sequence();
        let scratch = Owned::new(vec![0; schedule.scratch()]);
        self.start_run(ActiveRun::of_client(op, sequence, None, Run::new(Arc::clone(schedule)), scratch));
        Ok(())
    }
}

impl Group {
    /// Whether all tasks of a schedule have members of this group, and memory of the operation.
    fn admits(&self, op: &CollectiveOp, schedule: &Schedule) -> bool {
        let fits = |at: &Span| {
            let len = match at.buffer {
                Buffer::Input => op.input.len(),
                Buffer::Result => op.result.len(),
                Buffer::Scratch => schedule.scratch(),
            };
            at.offset.checked_add(at.len).is_some_and(|end| end <= len)
        };
        let knows = |rank: u32| (rank as usize) < self.members.len() && rank != self.rank;
        schedule.tasks().iter().all(|task| match task {
            Task::Send { to: other, at, .. } | Task::Receive { from: other, at, .. } => knows(*other) && fits(at),
            Task::Reduce { from, into, .. } => op.elements.reduces() && fits(from) && fits(into),
            Task::Copy { from, into } => fits(from) && fits(into),
            Task::Wait { .. } => true,
        })
    }
}
