//! Programs under observation: the deferred work of each rank.
//!
//! Place in the data flow: the same as in weft-fi. Completions raise counters while an engine is called or
//! progressed; a raise that reaches an awaited threshold makes the machine look. Acts are performed after the
//! engine has been left, by the same calls as the client's own operations. A refused act is retried after a
//! round of progress that has moved something. The counters (weft-fi's `cntr/values.rs`) and the machine are
//! those that ship. The oracle gets every event, and begins and ends each act in its own model.

#[path = "../../../weft-fi/src/cntr/values.rs"]
#[allow(dead_code)]
mod values;

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_engine::api::{Completion, Error, Fault, Kind, OpFlags};
use weft_engine::program::{Counter, End, Errors, FREE_LANE, Level, Program, Programs, Task as Step};

use self::values::CounterValues;
use super::{Atomic, Harness, Recv, Rma, Send};
use crate::cluster::{Cluster, Turn};
use crate::oracle::program::{Change, Origin, Outcome, RECEIVED, REMOTE, SENT, Step as Known};
use crate::oracle::{Op, Oracle};
use crate::trace::TraceEvent;

/// Lanes: acts that need room for operations, and acts that need room for receives.
const TRANSMIT_LANE: u64 = 0;
const RECEIVE_LANE: u64 = 1;
/// Counters that each rank has from the start: its endpoint's and the free ones.
pub const RANK_COUNTERS: usize = 6;
/// The first counter that only programs and their submitter raise.
pub const FREE_COUNTER: usize = 3;

/// The primitives that `values` imports.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// A no-op: sequentially consistent accesses are ordered without it.
    pub(super) fn ordered() {}
}

/// A handle to a counter.
#[derive(Clone)]
struct Handle {
    id: u64,
    values: Rc<CounterValues>,
}

impl Counter for Handle {
    fn id(&self) -> u64 {
        self.id
    }

    fn arm(&self, at: u64) -> Level {
        let (successes, errors) = self.values.arm_programs(at);
        Level { successes, errors }
    }

    fn disarm(&self) {
        self.values.disarm_programs();
    }
}

/// The work of an act.
#[derive(Clone, Debug)]
pub enum Job {
    /// A message to a rank.
    Send(usize, Send),
    /// A receive.
    Recv(Recv),
    /// A write to a window.
    Write(usize, Rma),
    /// A read from a window.
    Read(usize, Rma),
    /// An atomic operation in a window.
    Atomic(usize, Box<Atomic>),
    /// A change of a counter.
    Change(usize, Change),
    /// An act that cannot be started.
    Fail,
    /// The rank leaves a barrier.
    Leave(usize),
    /// Sends the rank's partial sum of an allreduce to another rank, under a tag.
    SendPartial(usize, usize, u64),
    /// Takes the number received under a tag in an allreduce: adds it to the rank's own, or replaces that.
    ReceivePartial(usize, u64, bool),
}

impl Job {
    fn lane(&self) -> u64 {
        match self {
            Self::Send(..) | Self::Write(..) | Self::Read(..) | Self::Atomic(..) | Self::SendPartial(..) => {
                TRANSMIT_LANE
            }
            Self::Recv(_) => RECEIVE_LANE,
            Self::Change(..) | Self::Fail | Self::Leave(_) | Self::ReceivePartial(..) => FREE_LANE,
        }
    }
}

/// A task of a program.
#[derive(Clone, Debug)]
pub enum Task {
    /// Waits until a counter has reached a threshold.
    Wait(usize, u64, Errors),
    /// Performs a job; the operation raises this counter instead of the endpoint's.
    Do(Job, Option<usize>),
}

/// An act that the machine has released.
struct Due {
    program: usize,
    at: usize,
    job: Job,
    counts: Option<usize>,
}

/// Counters of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Acts begun, including those that found no room.
    pub acts: u64,
    /// Acts that found no room.
    pub stalled: u64,
    /// Programs by end: done, failed, poisoned, cancelled.
    pub ends: [usize; 4],
    /// Exits of ranks from barriers.
    pub left: u64,
}

/// The deferred work of one rank.
pub(super) struct Queue {
    programs: Programs<Handle, Due, Origin>,
    counters: Vec<Handle>,
    /// The counters that operations and regions raise where they are not the endpoint's.
    of_op: BTreeMap<Op, usize>,
    of_region: BTreeMap<u64, usize>,
    submitted: usize,
    /// The machine must run.
    due: bool,
    /// An act is being performed; its performer also runs the acts that become ready meanwhile.
    running: bool,
    /// An act has found no room.
    stalled: bool,
}

impl Queue {
    fn new(limit: usize) -> Self {
        let mut queue = Self {
            programs: Programs::new(limit),
            counters: Vec::new(),
            of_op: BTreeMap::new(),
            of_region: BTreeMap::new(),
            submitted: 0,
            due: false,
            running: false,
            stalled: false,
        };
        for _ in 0..RANK_COUNTERS {
            queue.new_counter();
        }
        queue
    }

    fn new_counter(&mut self) -> usize {
        let id = self.counters.len();
        self.counters.push(Handle { id: id as u64, values: Rc::new(CounterValues::new()) });
        id
    }

    fn level(&self, counter: usize) -> Level {
        let values = &self.counters[counter].values;
        Level { successes: values.value(), errors: values.errors() }
    }

    fn change(&mut self, counter: usize, change: Change) {
        let Handle { id, values } = &self.counters[counter];
        let look = || self.programs.look(*id);
        let watched = match change {
            Change::Add(more) => values.add(more),
            Change::AddErrors(more) => values.add_errors(more),
            Change::Set(value) => values.set(value, look),
            Change::SetErrors(value) => values.set_errors(value, look),
        };
        if watched && values.due().programs {
            self.programs.look(*id);
        }
        self.due |= !self.programs.is_empty();
    }

    /// Raises the counters of a completion.
    pub(super) fn completed(&mut self, rank: usize, c: &Completion, oracle: &mut Oracle) {
        if c.fault == Some(Fault::NoMessage) {
            return;
        }
        let change = if c.fault.is_some() { Change::AddErrors(1) } else { Change::Add(1) };
        let bound = self.of_op.get(&c.ctx.ptr).copied();
        let (counter, besides) = match c.kind {
            Kind::RemoteRead | Kind::RemoteWrite => (REMOTE, self.of_region.get(&c.ctx.user).copied()),
            Kind::Recv => (bound.unwrap_or(RECEIVED), None),
            _ => (bound.unwrap_or(SENT), None),
        };
        for counter in [Some(counter), besides].into_iter().flatten() {
            self.change(counter, change);
            oracle.level_read(rank, counter, self.level(counter));
        }
    }

    fn retry(&mut self) {
        self.stalled = false;
        self.programs.retry(TRANSMIT_LANE);
        self.programs.retry(RECEIVE_LANE);
        self.due = true;
    }

    /// Retries stalled acts after a round of progress that has moved something: there may be room.
    pub(super) fn progressed(&mut self, cluster: &Cluster, rank: usize, oracle: &mut Oracle) {
        if self.stalled && cluster.needs_progress(rank) {
            oracle.retried(rank);
            self.retry();
        }
    }
}

impl Harness {
    /// Allows the rank to have programs of up to `limit` tasks in all.
    pub fn allow_programs(&mut self, rank: usize, limit: usize) {
        self.queues[rank] = Some(Queue::new(limit));
        self.oracle.allow_programs(rank, limit);
    }

    /// Counters of all programs so far.
    #[must_use]
    pub fn program_stats(&self) -> ProgramStats {
        ProgramStats { ends: self.oracle.deferred.ends, ..self.program_stats }
    }

    fn queue(&mut self, rank: usize) -> Option<&mut Queue> {
        self.queues.get_mut(rank)?.as_mut()
    }

    /// Whether the rank may have programs.
    pub(super) fn has_programs(&self, rank: usize) -> bool {
        self.queues.get(rank).is_some_and(Option::is_some)
    }

    /// Whether the rank has no programs left.
    pub(super) fn programs_over(&self, rank: usize) -> bool {
        self.queues.get(rank).and_then(Option::as_ref).is_none_or(|queue| queue.programs.is_empty())
    }

    /// Whether an act waits for room.
    pub(super) fn programs_stalled(&self, rank: usize) -> bool {
        self.queues.get(rank).and_then(Option::as_ref).is_some_and(|queue| queue.stalled)
    }

    /// Adds a counter to the rank.
    pub(super) fn new_counter(&mut self, rank: usize) -> usize {
        self.queue(rank).map_or(0, Queue::new_counter)
    }

    /// Makes access to a window raise a counter of its rank.
    pub(super) fn count_window_at(&mut self, rank: usize, window: usize, counter: usize) {
        self.oracle.count_region_at(window as u64, counter);
        if let Some(queue) = self.queue(rank) {
            queue.of_region.insert(window as u64, counter);
        }
    }

    /// Reads a counter.
    #[must_use]
    pub fn level(&self, rank: usize, counter: usize) -> Level {
        let queue = self.queues.get(rank).and_then(Option::as_ref);
        queue.map_or(Level::default(), |queue| queue.level(counter))
    }

    /// Changes a counter on behalf of the client.
    pub fn change(&mut self, rank: usize, counter: usize, change: Change) {
        self.change_counter(rank, counter, change);
        self.run_programs(rank);
    }

    fn change_counter(&mut self, rank: usize, counter: usize, change: Change) {
        self.oracle.changed(rank, counter, change);
        let Self { queues, oracle, .. } = self;
        if let Some(queue) = &mut queues[rank] {
            queue.change(counter, change);
            oracle.level_read(rank, counter, queue.level(counter));
        }
    }

    /// Submits a program, optionally as part of a barrier; `Error::Again` if too many tasks are waiting.
    pub fn submit(&mut self, rank: usize, tasks: Vec<Task>, barrier: Option<usize>) -> Result<(), Error> {
        let Some(queue) = self.queues.get_mut(rank).and_then(Option::as_mut) else { return Err(Error::Invalid) };
        let program = queue.submitted;
        let counter = tasks.iter().find_map(|task| match task {
            Task::Wait(counter, ..) => Some(*counter),
            Task::Do(..) => None,
        });
        let origin = Origin { program, counter, barrier };
        let known = tasks.iter().map(|task| match task {
            Task::Wait(counter, threshold, errors) => {
                Known::Wait { counter: *counter, threshold: *threshold, strict: *errors == Errors::Poison }
            }
            Task::Do(job, _) => Known::Act { lane: job.lane() },
        });
        let known = known.collect();
        let steps = tasks.into_iter().enumerate().map(|(at, task)| match task {
            Task::Wait(counter, threshold, errors) => {
                Step::Wait { counter: queue.counters[counter].clone(), threshold, errors }
            }
            Task::Do(job, counts) => Step::Act { lane: job.lane(), act: Due { program, at, job, counts } },
        });
        let accepted = queue.programs.submit(Program::new(origin, steps)).is_ok();
        queue.submitted += usize::from(accepted);
        queue.due = true;
        self.oracle.submitted(rank, origin, known, accepted);
        self.run_programs(rank);
        if accepted { Ok(()) } else { Err(Error::Again) }
    }

    /// Cancels programs, which start nothing from then on. Returns their number.
    pub fn cancel_programs(&mut self, rank: usize, wanted: impl Fn(&Origin) -> bool) -> usize {
        let Some(queue) = self.queue(rank) else { return 0 };
        let count = queue.programs.cancel(&wanted).count;
        queue.due = true;
        self.oracle.programs_cancelled(rank, wanted, count);
        self.run_programs(rank);
        count
    }

    /// Performs the acts of a rank that are ready; returns their number.
    pub(super) fn run_programs(&mut self, rank: usize) -> usize {
        let mut performed = 0;
        let Some(queue) = self.queue(rank).filter(|queue| queue.due && !queue.running) else { return 0 };
        queue.due = false;
        while let Some(due) = self.queue(rank).and_then(|queue| queue.programs.next_act()) {
            self.set_running(rank, true);
            self.oracle.act_begins(rank, due.program, due.at);
            let result = self.perform(rank, &due);
            let outcome = match result {
                Ok(()) => Outcome::Done,
                Err(Error::Again) => Outcome::Again,
                Err(_) => Outcome::Failed,
            };
            let line = [outcome as u8];
            self.cluster.fabric().record(TraceEvent::Act, rank, due.program as u64, due.at as u64, &line);
            self.program_stats.acts += 1;
            self.program_stats.stalled += u64::from(outcome == Outcome::Again);
            performed += usize::from(outcome != Outcome::Again);
            self.oracle.act_ended(rank, outcome);
            self.set_running(rank, false);
            let Some(queue) = self.queue(rank) else { break };
            match outcome {
                Outcome::Done => queue.programs.done(),
                Outcome::Again => {
                    queue.stalled = true;
                    queue.programs.again(due);
                }
                Outcome::Failed => queue.programs.fail(),
            }
        }
        if let Some(queue) = self.queue(rank) {
            let ends = queue.programs.take_finished();
            let ends = ends.into_iter().map(|finished| (finished.origin, finished.end)).collect::<Vec<(_, End)>>();
            self.oracle.programs_idle(rank, &ends);
        }
        performed
    }

    fn set_running(&mut self, rank: usize, running: bool) {
        if let Some(queue) = self.queue(rank) {
            queue.running = running;
        }
    }

    /// Performs a job, as the client would.
    fn perform(&mut self, rank: usize, due: &Due) -> Result<(), Error> {
        if due.job.lane() != FREE_LANE {
            self.count_next_at(rank, due.counts);
        }
        let op = self.oracle.next();
        let result = match &due.job {
            Job::Send(dest, send) => self.send(rank, *dest, send),
            Job::Recv(recv) => self.recv(rank, recv),
            Job::Write(window, rma) => self.write(rank, *window, rma),
            Job::Read(window, rma) => self.read(rank, *window, rma),
            Job::Atomic(window, atomic) => self.atomic(rank, *window, atomic),
            Job::Change(counter, change) => {
                self.change_counter(rank, *counter, *change);
                Ok(op)
            }
            Job::Fail => return Err(Error::Invalid),
            Job::SendPartial(barrier, to, tag) => self.send_partial(*barrier, rank, *to, *tag),
            Job::ReceivePartial(barrier, tag, adds) => self.receive_partial(*barrier, rank, *tag, *adds).map(|()| op),
            Job::Leave(barrier) => {
                self.leave_barrier(*barrier, rank);
                Ok(op)
            }
        };
        match result {
            Ok(_) => return Ok(()),
            Err(Error::Again) => {}
            Err(error) => self.oracle.complain(format!("rank {rank}: a deferred operation was refused: {error}")),
        }
        // The operation was refused, so its number is unused.
        self.queue(rank).map(|queue| queue.of_op.remove(&op));
        self.oracle.count_at(op, None);
        result.map(drop)
    }

    /// Makes the next operation raise this counter.
    fn count_next_at(&mut self, rank: usize, counter: Option<usize>) {
        let op = self.oracle.next();
        self.oracle.count_at(op, counter);
        if let (Some(queue), Some(counter)) = (self.queue(rank), counter) {
            queue.of_op.insert(op, counter);
        }
    }

    /// After a turn, performs the acts that became ready. If nothing moves any more, stalled acts are
    /// retried.
    pub(super) fn run_all(&mut self, turn: Turn) -> Turn {
        let mut performed = 0;
        for rank in 0..self.queues.len() {
            if turn == Turn::Idle && self.programs_stalled(rank) {
                self.oracle.retried(rank);
                self.queue(rank).map(Queue::retry);
            }
            performed += self.run_programs(rank);
        }
        if performed > 0 { Turn::Moved } else { turn }
    }
}

/// Removes flags that deferred work cannot have: an inject's buffer would be reused before the act is
/// performed.
pub(crate) fn deferrable(flags: OpFlags, counts: Option<usize>) -> OpFlags {
    let flags = flags - OpFlags::INJECT;
    // The counter counts the completion.
    if counts.is_some() { flags - OpFlags::QUIET } else { flags }
}
