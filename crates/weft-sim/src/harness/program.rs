//! Programs under observation: what each rank has waiting for counters.
//!
//! Place in the data flow: as weft-fi does it. Completions raise counters while an engine is called or
//! progressed; a raise that somebody waits for has the machine look; acts are performed when the engine has
//! been left, by the same calls as the client's own operations; one that is refused is tried again after a
//! round of progress that has moved something. The counters are those that ship (weft-fi's `cntr/gauge.rs`),
//! and so is the machine. The oracle is told of everything, and begins and ends each act in its own model.

#[path = "../../../weft-fi/src/cntr/gauge.rs"]
#[allow(dead_code)]
mod gauge;

use std::collections::BTreeMap;
use std::rc::Rc;

use weft_engine::api::{Completion, Error, Fault, Kind, OpFlags};
use weft_engine::program::{Counter, End, Errors, FREE_LANE, Level, Program, Programs, Task as Step};

use self::gauge::Gauge;
use super::{Atomic, Harness, Recv, Rma, Send};
use crate::cluster::{Cluster, Turn};
use crate::oracle::program::{Change, Origin, Outcome, RECEIVED, REMOTE, SENT, Step as Known};
use crate::oracle::{Op, Oracle};
use crate::trace::TraceEvent;

/// Lanes: what needs room for operations, and for receives.
const TRANSMIT_LANE: u64 = 0;
const RECEIVE_LANE: u64 = 1;
/// Counters that each rank has from the start: its endpoint's and free ones.
pub const RANK_COUNTERS: usize = 6;
/// The first of them that only programs and their submitter raise.
pub const FREE_COUNTER: usize = 3;

/// What `gauge` is made of.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// Sequentially consistent accesses are ordered without it.
    pub(super) fn ordered() {}
}

/// A counter.
#[derive(Clone)]
struct Handle {
    id: u64,
    gauge: Rc<Gauge>,
}

impl Counter for Handle {
    fn id(&self) -> u64 {
        self.id
    }

    fn arm(&self, at: u64) -> Level {
        let (successes, errors) = self.gauge.arm_programs(at);
        Level { successes, errors }
    }

    fn disarm(&self) {
        self.gauge.disarm_programs();
    }
}

/// Something to do.
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
    /// It cannot be started.
    Fail,
    /// The rank leaves a barrier.
    Leave(usize),
    /// Of an allreduce: what the rank knows of the sum goes to another, under a tag.
    SendPartial(usize, usize, u64),
    /// Of an allreduce: the rank adds what it has received under a tag to its number, or has it in the place of that.
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

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Task {
    /// Until a counter has reached a threshold.
    Wait(usize, u64, Errors),
    /// Something to do; the operation raises this counter instead of the endpoint's.
    Do(Job, Option<usize>),
}

/// An act of the machine.
struct Due {
    program: usize,
    at: usize,
    job: Job,
    counts: Option<usize>,
}

/// What became of programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProgramStats {
    /// Acts begun, and those of them that found no room.
    pub acts: u64,
    /// See `acts`.
    pub stalled: u64,
    /// How programs ended: done, failed, poisoned, cancelled.
    pub ends: [usize; 4],
    /// How often a rank left a barrier.
    pub left: u64,
}

/// What one rank has waiting.
pub(super) struct Queue {
    programs: Programs<Handle, Due, Origin>,
    counters: Vec<Handle>,
    /// Which counters operations and regions raise, where they are not the endpoint's.
    of_op: BTreeMap<Op, usize>,
    of_region: BTreeMap<u64, usize>,
    submitted: usize,
    /// The machine is to be run.
    due: bool,
    /// An act is out: whoever sets others free leaves them to its performer.
    running: bool,
    /// An act found no room.
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
        self.counters.push(Handle { id: id as u64, gauge: Rc::new(Gauge::new()) });
        id
    }

    fn level(&self, counter: usize) -> Level {
        let gauge = &self.counters[counter].gauge;
        Level { successes: gauge.value(), errors: gauge.errors() }
    }

    fn change(&mut self, counter: usize, change: Change) {
        let Handle { id, gauge } = &self.counters[counter];
        let look = || self.programs.look(*id);
        let watched = match change {
            Change::Add(more) => gauge.add(more),
            Change::AddErrors(more) => gauge.add_errors(more),
            Change::Set(value) => gauge.set(value, look),
            Change::SetErrors(value) => gauge.set_errors(value, look),
        };
        if watched && gauge.due().programs {
            self.programs.look(*id);
        }
        self.due |= !self.programs.is_empty();
    }

    /// Raises what a completion raises.
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

    /// After a round of progress that has moved something there may be room.
    pub(super) fn progressed(&mut self, cluster: &Cluster, rank: usize, oracle: &mut Oracle) {
        if self.stalled && cluster.needs_progress(rank) {
            oracle.retried(rank);
            self.retry();
        }
    }
}

impl Harness {
    /// From now on the rank may have programs, of so many tasks at a time.
    pub fn allow_programs(&mut self, rank: usize, limit: usize) {
        self.queues[rank] = Some(Queue::new(limit));
        self.oracle.allow_programs(rank, limit);
    }

    /// What became of programs so far.
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

    /// Whether nothing waits at the rank.
    pub(super) fn programs_over(&self, rank: usize) -> bool {
        self.queues.get(rank).and_then(Option::as_ref).is_none_or(|queue| queue.programs.is_empty())
    }

    /// Whether an act waits for room.
    pub(super) fn programs_stalled(&self, rank: usize) -> bool {
        self.queues.get(rank).and_then(Option::as_ref).is_some_and(|queue| queue.stalled)
    }

    /// One more counter of the rank.
    pub(super) fn new_counter(&mut self, rank: usize) -> usize {
        self.queue(rank).map_or(0, Queue::new_counter)
    }

    /// Access to a window raises a counter of its rank.
    pub(super) fn count_window_at(&mut self, rank: usize, window: usize, counter: usize) {
        self.oracle.count_region_at(window as u64, counter);
        if let Some(queue) = self.queue(rank) {
            queue.of_region.insert(window as u64, counter);
        }
    }

    /// What a counter says.
    #[must_use]
    pub fn level(&self, rank: usize, counter: usize) -> Level {
        let queue = self.queues.get(rank).and_then(Option::as_ref);
        queue.map_or(Level::default(), |queue| queue.level(counter))
    }

    /// The client changes a counter.
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

    /// Submits a program, of a barrier or of none; `Error::Again` if too much waits already.
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

    /// Cancels programs; none of them does anything from then on. Returns how many there were.
    pub fn cancel_programs(&mut self, rank: usize, wanted: impl Fn(&Origin) -> bool) -> usize {
        let Some(queue) = self.queue(rank) else { return 0 };
        let count = queue.programs.cancel(&wanted).count;
        queue.due = true;
        self.oracle.programs_cancelled(rank, wanted, count);
        self.run_programs(rank);
        count
    }

    /// Performs what a rank can perform; returns how much that was.
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

    /// Does something, as the client would.
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
        // The number is nobody's.
        self.queue(rank).map(|queue| queue.of_op.remove(&op));
        self.oracle.count_at(op, None);
        result.map(drop)
    }

    /// The operation that is started next raises this counter.
    fn count_next_at(&mut self, rank: usize, counter: Option<usize>) {
        let op = self.oracle.next();
        self.oracle.count_at(op, counter);
        if let (Some(queue), Some(counter)) = (self.queue(rank), counter) {
            queue.of_op.insert(op, counter);
        }
    }

    /// After a turn: what it set free is performed; and where nothing moves any more, what found no room tries again.
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

/// What a deferred operation cannot be: its buffer would be the client's again before anybody has looked at it.
pub(crate) fn deferrable(flags: OpFlags, counts: Option<usize>) -> OpFlags {
    let flags = flags - OpFlags::INJECT;
    // Its end is of interest to the counter.
    if counts.is_some() { flags - OpFlags::QUIET } else { flags }
}
