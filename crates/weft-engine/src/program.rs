//! Programs: sequences of tasks that wait for counters instead of for a call of the client.
//!
//! Place in the data flow: operations that start later without a call are written as a [`Program`] and
//! submitted to [`Programs`]. FI_TRIGGER and FI_QUEUE_WORK compile to one wait and one act each; longer
//! programs consist of the same two tasks. Only the layer above knows the meaning of an act (a send, a
//! receive, a counter to raise, …). It calls [`Programs::next_act`], performs the act, and reports the
//! result.
//!
//! Order:
//! - Programs that wait for the same counter continue in the order of their thresholds, however far the
//!   counter jumps. Programs with equal thresholds continue in the order of submission.
//! - Ready programs take turns, in the order in which they became ready.
//! - An act that finds its queue full ([`Programs::again`]) keeps its place. Later acts of the same *lane*
//!   (one direction of one endpoint) wait behind it; acts of other lanes pass it.
//!
//! Counters are raised by other threads at any time, without the lock of this machine. A counter is *armed*
//! with the lowest threshold that a program waits for. The thread that raises it to that value calls
//! [`Programs::look`]. [`Counter::arm`] describes why no raise is lost. A counter that stays armed after its
//! last program has left costs one unnecessary look.
//!
//! Invariants:
//! - At most one act at a time is out. [`Programs::done`], [`Programs::again`] or [`Programs::fail`] returns
//!   it.
//! - Programs are numbered in the order of submission, and no number is reused. Nothing is iterated in hash
//!   order.
//! - A task is performed at most once, and after all tasks before it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::broken::cannot_happen;
use crate::bugs::planted;

/// The value of a counter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Number of successful operations.
    pub successes: u64,
    /// Number of failed operations.
    pub errors: u64,
}

impl Level {
    /// The sum of both, which libfabric compares with thresholds.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.successes.saturating_add(self.errors)
    }
}

/// A counter that programs wait for. The value is a handle that keeps the counter alive.
pub trait Counter {
    /// The identity of the counter.
    fn id(&self) -> u64;

    /// Arms the counter and returns its level. From now on, the thread that makes the total reach `at`, or
    /// changes the error count, must call [`Programs::look`].
    ///
    /// The level is read after the arming has become visible to threads that raise the counter. These threads
    /// check for the arming after they have raised the counter. At least one side therefore sees each change.
    fn arm(&self, at: u64) -> Level;

    /// Disarms the counter, for which no program waits any longer.
    fn disarm(&self);
}

/// The effect of errors on a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// Errors count like successes (fi_trigger(3)).
    Count,
    /// An error ends the program if it still waits, because the successes that it waits for may never come.
    Poison,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Task<C, A> {
    /// Continues when the counter has reached the threshold.
    Wait {
        /// The counter.
        counter: C,
        /// The threshold for the counter's total.
        threshold: u64,
        /// The effect of errors.
        errors: Errors,
    },
    /// Performs an act.
    Act {
        /// Acts of the same lane do not overtake each other.
        lane: u64,
        /// The act, whose meaning the layer above knows.
        act: A,
    },
}

/// The lane of acts that never find a queue full.
pub const FREE_LANE: u64 = u64::MAX;

/// A sequence of tasks, and the submitter's identification of it.
#[derive(Clone, Debug)]
pub struct Program<C, A, M> {
    /// The tasks, last one first.
    tasks: SmallVec<[Task<C, A>; 2]>,
    origin: M,
}

impl<C, A, M> Program<C, A, M> {
    /// Makes a program of these tasks, which are in order.
    pub fn new(origin: M, tasks: impl IntoIterator<Item = Task<C, A>>) -> Self {
        let mut tasks: SmallVec<[Task<C, A>; 2]> = tasks.into_iter().collect();
        tasks.reverse();
        Self { tasks, origin }
    }
}

/// The queue has the maximum number of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

/// The way in which a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// All tasks were performed.
    Done,
    /// An act failed. The tasks after it were not performed.
    Failed,
    /// A counter that the program waited for has errors.
    Poisoned,
    /// The program was cancelled.
    Cancelled,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished<C, A, M> {
    /// The identification that the submitter gave.
    pub origin: M,
    /// The way in which the program ended.
    pub end: End,
    /// The tasks that were not performed, last one first.
    pub left: SmallVec<[Task<C, A>; 2]>,
}

struct Entry<C, A, M> {
    tasks: SmallVec<[Task<C, A>; 2]>,
    /// Number of tasks at submission.
    size: usize,
    origin: M,
    /// The counter and threshold for which the program waits. `None`: the program is at an act.
    waiting: Option<(u64, u64)>,
}

/// The programs that wait for one counter.
struct Waits<C> {
    counter: C,
    /// The waiting programs, by threshold and then by number.
    queue: BTreeMap<(u64, u64), Errors>,
    /// Number of waiting programs that an error ends.
    delicate: usize,
}

/// The acts that found their queue full, and the acts behind them.
#[derive(Default)]
struct Lane {
    queue: VecDeque<u64>,
    /// Whether the ready queue has an entry to retry this lane.
    due: bool,
}

enum Turn {
    Program(u64),
    Lane(u64),
}

struct Running {
    program: u64,
    lane: u64,
    /// Whether a retry of the lane was requested meanwhile.
    retry: bool,
    cancelled: bool,
}

/// All programs of one queue. The module's documentation describes the rules.
pub struct Programs<C, A, M> {
    all: BTreeMap<u64, Entry<C, A, M>>,
    waits: BTreeMap<u64, Waits<C>>,
    /// May contain programs that have ended; they are skipped.
    ready: VecDeque<Turn>,
    /// Never iterated, because it has hash order.
    lanes: FxHashMap<u64, Lane>,
    running: Option<Running>,
    finished: Vec<Finished<C, A, M>>,
    /// Programs by number that were cancelled while an act was out, and whose act was then not performed.
    withdrawn: BTreeMap<u64, Finished<C, A, M>>,
    submitted: u64,
    /// Number of tasks of all programs, as submitted.
    tasks: usize,
    limit: usize,
}

impl<C: Counter, A, M> Programs<C, A, M> {
    /// Makes a queue without programs, for at most `limit` tasks at a time.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            all: BTreeMap::new(),
            waits: BTreeMap::new(),
            ready: VecDeque::new(),
            lanes: FxHashMap::default(),
            running: None,
            finished: Vec::new(),
            withdrawn: BTreeMap::new(),
            submitted: 0,
            tasks: 0,
            limit,
        }
    }

    /// Submits a whole program, or nothing on an error.
    ///
    /// # Errors
    /// The queue has no room for the program's tasks.
    pub fn submit(&mut self, program: Program<C, A, M>) -> Result<(), Full> {
        let size = program.tasks.len();
        if size > self.limit - self.tasks {
            return Err(Full);
        }
        self.tasks += size;
        let number = self.submitted;
        self.submitted += 1;
        let Program { tasks, origin } = program;
        self.all.insert(number, Entry { tasks, size, origin, waiting: None });
        self.advance(number);
        Ok(())
    }

    /// Releases programs whose thresholds the counter may have reached.
    pub fn look(&mut self, counter: u64) {
        let mut moving = VecDeque::new();
        self.release(counter, &mut moving);
        self.go_on(moving);
    }

    /// The next act to perform, which is out from then on. `None`: another act is out, or no act is ready.
    pub fn next_act(&mut self) -> Option<A> {
        if self.running.is_some() {
            return None;
        }
        loop {
            match self.ready.pop_front()? {
                Turn::Program(number) => {
                    let Some(entry) = self.all.get_mut(&number) else { continue };
                    let Some(Task::Act { lane, .. }) = entry.tasks.last() else { continue };
                    let stalled = self.lanes.get_mut(lane);
                    if let Some(stalled) = planted!(Bug::LaneOvertaken, stalled, None) {
                        stalled.queue.push_back(number);
                    } else if let Some(act) = self.take_act(number) {
                        return Some(act);
                    }
                }
                Turn::Lane(lane) => {
                    if let Some(act) = self.resume(lane) {
                        return Some(act);
                    }
                }
            }
        }
    }

    /// Reports that the act was performed. Its program continues.
    pub fn done(&mut self) {
        let Some(running) = self.running.take() else { return cannot_happen!("an act is under way when it is done") };
        self.resume_lane(running.lane);
        if running.cancelled { self.finish(running.program, End::Cancelled) } else { self.advance(running.program) }
    }

    /// Returns an act that could not be performed yet. It becomes ready again with [`Programs::retry`]. If
    /// its program was cancelled meanwhile, [`Programs::take_withdrawn`] returns the program with this act.
    pub fn again(&mut self, act: A) {
        let Some(running) = self.running.take() else {
            return cannot_happen!("an act is under way when it is returned");
        };
        planted!(
            Bug::ActLost,
            if !running.cancelled {
                return self.finish(running.program, End::Done);
            }
        );
        if let Some(entry) = self.all.get_mut(&running.program) {
            entry.tasks.push(Task::Act { lane: running.lane, act });
        }
        if running.cancelled {
            self.resume_lane(running.lane);
            let ended = self.end(running.program, End::Cancelled);
            self.withdrawn.extend(ended.map(|ended| (running.program, ended)));
            return;
        }
        self.lanes.entry(running.lane).or_default().queue.push_front(running.program);
        if running.retry {
            self.resume_lane(running.lane);
        }
    }

    /// Reports that the act failed. Its program ends.
    pub fn fail(&mut self) {
        let Some(running) = self.running.take() else { return cannot_happen!("an act is under way when it fails") };
        self.resume_lane(running.lane);
        self.finish(running.program, End::Failed);
    }

    /// Reports that acts of this lane may find room now.
    pub fn retry(&mut self, lane: u64) {
        match &mut self.running {
            Some(running) if running.lane == lane => running.retry = true,
            _ => self.resume_lane(lane),
        }
    }

    /// Cancels all programs that `wanted` accepts. If the act of such a program is out, the program ends with
    /// the act, and its number is returned. When the act is no longer out, [`Programs::take_withdrawn`] tells
    /// whether it was performed.
    pub fn cancel(&mut self, mut wanted: impl FnMut(&M) -> bool) -> Cancelled {
        let numbers: Vec<u64> =
            self.all.iter().filter(|(_, entry)| wanted(&entry.origin)).map(|(&number, _)| number).collect();
        let mut cancelled = Cancelled { count: numbers.len(), running: None };
        for number in numbers {
            match &mut self.running {
                Some(running) if running.program == number => {
                    running.cancelled = true;
                    cancelled.running = Some(number);
                    cancelled.count -= 1;
                }
                _ => {
                    planted!(Bug::CancelledStarts, continue);
                    self.leave(number);
                    self.finish(number, End::Cancelled);
                }
            }
        }
        cancelled
    }

    /// Whether the act of this program is out.
    #[must_use]
    pub fn is_running(&self, program: u64) -> bool {
        self.running.as_ref().is_some_and(|running| running.program == program)
    }

    /// Whether no act is out and the ready queue has entries. An entry may turn out to have ended.
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.running.is_none() && !self.ready.is_empty()
    }

    /// Number of programs that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether all programs have ended.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The programs that have ended since the last call, in that order, without those that
    /// [`Programs::take_withdrawn`] returns.
    pub fn take_finished(&mut self) -> Vec<Finished<C, A, M>> {
        std::mem::take(&mut self.finished)
    }

    /// A program that was cancelled while its act was out, if the act was then returned unperformed. The
    /// caller of `cancel` takes it.
    pub fn take_withdrawn(&mut self, program: u64) -> Option<Finished<C, A, M>> {
        self.withdrawn.remove(&program)
    }

    // ---- inside ------------------------------------------------------------------------------

    fn take_act(&mut self, number: u64) -> Option<A> {
        let entry = self.all.get_mut(&number)?;
        let Some(Task::Act { lane, act }) = entry.tasks.pop() else { return None };
        self.running = Some(Running { program: number, lane, retry: false, cancelled: false });
        Some(act)
    }

    /// Takes the first act of a stalled lane. The lane stays stalled while that act is out; acts that become
    /// ready queue up behind it.
    fn resume(&mut self, lane: u64) -> Option<A> {
        loop {
            let stalled = self.lanes.get_mut(&lane)?;
            stalled.due = false;
            let Some(number) = stalled.queue.pop_front() else {
                self.lanes.remove(&lane);
                return None;
            };
            if let Some(act) = self.take_act(number) {
                return Some(act);
            }
        }
    }

    fn resume_lane(&mut self, lane: u64) {
        if let Some(stalled) = self.lanes.get_mut(&lane)
            && !std::mem::replace(&mut stalled.due, true)
        {
            // Stalled acts became ready before all programs in the ready queue.
            self.ready.push_front(Turn::Lane(lane));
        }
    }

    fn advance(&mut self, number: u64) {
        self.go_on(VecDeque::from([number]));
    }

    /// Moves each program to its next act or to a counter for which it must wait. A move may release other
    /// programs.
    fn go_on(&mut self, mut moving: VecDeque<u64>) {
        while let Some(number) = moving.pop_front() {
            let Some(entry) = self.all.get_mut(&number) else { continue };
            entry.waiting = None;
            match entry.tasks.pop() {
                None => self.finish(number, End::Done),
                Some(act @ Task::Act { .. }) => {
                    entry.tasks.push(act);
                    self.ready.push_back(Turn::Program(number));
                }
                Some(Task::Wait { counter, threshold, errors }) => {
                    let id = counter.id();
                    entry.waiting = Some((id, threshold));
                    let waits = self.waits.entry(id).or_insert(Waits { counter, queue: BTreeMap::new(), delicate: 0 });
                    waits.queue.insert((threshold, number), errors);
                    waits.delicate += usize::from(errors == Errors::Poison);
                    let mut freed = VecDeque::new();
                    self.release(id, &mut freed);
                    // A program that need not wait continues before the next program.
                    while let Some(number) = freed.pop_back() {
                        moving.push_front(number);
                    }
                }
            }
        }
    }

    /// Releases in order the programs whose thresholds the counter has reached, and arms the counter for the
    /// rest.
    fn release(&mut self, counter: u64, moving: &mut VecDeque<u64>) {
        loop {
            let Some(waits) = self.waits.get_mut(&counter) else { return };
            let Some((&(lowest, _), _)) = waits.queue.first_key_value() else {
                waits.counter.disarm();
                self.waits.remove(&counter);
                return;
            };
            let level = waits.counter.arm(planted!(Bug::ArmedLate, lowest, lowest.saturating_add(1)));
            let level = planted!(Bug::ErrorsUncounted, level, Level { errors: 0, ..level });
            let reached = planted!(Bug::ThresholdEarly, level.total(), level.total().saturating_add(1));
            if planted!(Bug::PoisonForgotten, level.errors > 0 && waits.delicate > 0, false) {
                self.poison(counter, level.successes);
            }
            let Some(waits) = self.waits.get_mut(&counter) else { return };
            let before = waits.queue.len();
            while let Some(first) = waits.queue.first_entry().filter(|first| first.key().0 <= reached) {
                let ((_, number), errors) = first.remove_entry();
                waits.delicate -= usize::from(errors == Errors::Poison);
                planted!(Bug::ThresholdsUnordered, moving.push_back(number), moving.push_front(number));
                planted!(Bug::ThresholdTwice, moving.push_back(number));
            }
            // If this round released no program, the rest waits for more than the level that was read after
            // arming. If the first program has just left, the counter is not armed for the next one yet.
            if waits.queue.len() == before && waits.queue.first_key_value().is_some_and(|(key, _)| key.0 == lowest) {
                return;
            }
        }
    }

    /// Ends programs that errors end and whose thresholds the successes have not reached.
    fn poison(&mut self, counter: u64, successes: u64) {
        let Some(waits) = self.waits.get_mut(&counter) else {
            return cannot_happen!("a counter that is poisoned has waiting programs");
        };
        let lost: Vec<(u64, u64)> = waits
            .queue
            .range((successes.saturating_add(1), 0)..)
            .filter(|(_, errors)| **errors == Errors::Poison)
            .map(|(&key, _)| key)
            .collect();
        for key in &lost {
            waits.queue.remove(key);
        }
        waits.delicate -= lost.len();
        for (_, number) in lost {
            self.finish(number, End::Poisoned);
        }
    }

    /// Removes a program that is about to end from its counter or lane. The ready queue and the lanes skip
    /// ended programs by themselves.
    fn leave(&mut self, number: u64) {
        let Some(entry) = self.all.get(&number) else { return };
        match (entry.waiting, entry.tasks.last()) {
            (Some((counter, threshold)), _) => self.leave_counter(number, counter, threshold),
            // The next act of the lane must not wait behind a program that has ended.
            (_, Some(&Task::Act { lane, .. })) => planted!(Bug::CancelBlocks, self.resume_lane(lane), ()),
            _ => {}
        }
    }

    fn leave_counter(&mut self, number: u64, counter: u64, threshold: u64) {
        let Some(waits) = self.waits.get_mut(&counter) else {
            return cannot_happen!("the counter of a waiting program has waiting programs");
        };
        if waits.queue.remove(&(threshold, number)) == Some(Errors::Poison) {
            waits.delicate -= 1;
        }
        if waits.queue.is_empty() {
            waits.counter.disarm();
            self.waits.remove(&counter);
        }
    }

    fn finish(&mut self, number: u64, end: End) {
        let ended = self.end(number, end);
        self.finished.extend(ended);
    }

    fn end(&mut self, number: u64, end: End) -> Option<Finished<C, A, M>> {
        let Entry { tasks, size, origin, .. } = self.all.remove(&number)?;
        self.tasks -= size;
        Some(Finished { origin, end, left: tasks })
    }
}

/// The result of a cancellation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Number of programs that have ended.
    pub count: usize,
    /// The program whose act is out, if it was wanted. It ends with that act.
    pub running: Option<u64>,
}
