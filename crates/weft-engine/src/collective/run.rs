//! One collective under way: how far its schedule has been performed.
//!
//! Place in the data flow: an executor asks [`Run::next_task`] for a task, performs it, and reports with
//! [`Run::started`], [`Run::performed`] and [`Run::complete`]. A run does no I/O.
//!
//! Invariants: a run is reused by [`Run::restart`] without an allocation; a transfer is complete at most once.

use std::sync::Arc;

use super::{Buffer, Schedule, Span, Task};
use crate::broken::less;
use crate::bugs::planted;

/// The next step of an executor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// This task, at this index, must be performed.
    Perform(u32, Task),
    /// A transfer must become complete first.
    Blocked,
    /// All tasks are performed and all transfers are complete.
    Done,
}

/// The state of one collective at one member.
#[derive(Debug)]
pub struct Run {
    schedule: Arc<Schedule>,
    /// The index of the next task.
    next: usize,
    /// Transfers that have been started and are not complete.
    under_way: u32,
    /// One bit per task: its transfer is complete.
    complete: Vec<u64>,
}

impl Run {
    /// A run at the first task.
    #[must_use]
    pub fn new(schedule: Arc<Schedule>) -> Self {
        let complete = vec![0; schedule.tasks().len().div_ceil(64)];
        Self { schedule, next: 0, under_way: 0, complete }
    }

    /// Begins again at the first task, with the same memory.
    pub fn restart(&mut self) {
        self.next = 0;
        self.under_way = 0;
        self.complete.fill(0);
    }

    /// The schedule that is run.
    #[must_use]
    pub fn schedule(&self) -> &Arc<Schedule> {
        &self.schedule
    }

    /// The task to perform next. `Wait` tasks are passed here and never returned.
    pub fn next_task(&mut self) -> Next {
        loop {
            match self.schedule.tasks().get(self.next) {
                Some(&Task::Wait { task }) if self.is_complete(task) => self.next += 1,
                Some(Task::Wait { .. }) => return Next::Blocked,
                Some(&task) => return Next::Perform(u32::try_from(self.next).unwrap_or(u32::MAX), task),
                None if planted!(Bug::CollectiveEndsEarly, self.under_way == 0, true) => return Next::Done,
                None => return Next::Blocked,
            }
        }
    }

    /// The transfer of the next task has been started; [`Run::complete`] follows.
    pub fn started(&mut self) {
        self.under_way += 1;
        self.next += 1;
    }

    /// The next task, a copy or a reduction, has been performed.
    pub fn performed(&mut self) {
        self.next += 1;
    }

    /// The transfer that the task at this index started is complete.
    pub fn complete(&mut self, task: u32) {
        let (word, bit) = (task as usize / 64, 1 << (task % 64));
        if let Some(word) = self.complete.get_mut(word)
            && *word & bit == 0
        {
            *word |= bit;
            self.under_way = less!(self.under_way, 1, "a task starts before it ends");
        }
    }

    /// Transfers that have been started and are not complete.
    #[must_use]
    pub const fn under_way(&self) -> u32 {
        self.under_way
    }

    /// The transfers that are not complete, whether they have been started or not.
    pub fn open_transfers(&self) -> impl Iterator<Item = Task> {
        let tasks = self.schedule.tasks().iter().enumerate();
        let is_transfer = |task: &Task| matches!(task, Task::Send { .. } | Task::Receive { .. });
        let open = tasks.filter(move |(index, task)| {
            is_transfer(task) && !self.is_complete(u32::try_from(*index).unwrap_or(u32::MAX))
        });
        open.map(|(_, task)| *task)
    }

    /// The ranks of the members whose messages have not arrived, of the receives started so far.
    pub fn awaited(&self) -> impl Iterator<Item = u32> {
        let started = self.schedule.tasks().iter().take(self.next).enumerate();
        started.filter_map(|(index, task)| match *task {
            Task::Receive { from, .. } if !self.is_complete(u32::try_from(index).unwrap_or(u32::MAX)) => Some(from),
            _ => None,
        })
    }

    /// Whether tasks that are not performed, or whose transfers are not complete, use a buffer.
    #[must_use]
    pub fn uses(&self, buffer: Buffer) -> bool {
        let within = |at: &Span| at.buffer == buffer;
        self.schedule.tasks().iter().enumerate().any(|(index, task)| match task {
            Task::Send { at, .. } | Task::Receive { at, .. } => {
                within(at) && !self.is_complete(u32::try_from(index).unwrap_or(u32::MAX))
            }
            Task::Reduce { from, into, .. } | Task::Copy { from, into } => {
                index >= self.next && (within(from) || within(into))
            }
            Task::Wait { .. } => false,
        })
    }

    fn is_complete(&self, task: u32) -> bool {
        self.complete.get(task as usize / 64).is_some_and(|word| word & (1 << (task % 64)) != 0)
    }
}
