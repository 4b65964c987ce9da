//! Programs: tasks in order, which wait for counters instead of for a caller.
//!
//! Place in the data flow: what is to happen later, without its client, is written as a [`Program`] and
//! submitted to [`Programs`]. FI_TRIGGER and FI_QUEUE_WORK compile to one wait and one act each; longer
//! programs are made of the same two tasks. What an act is (a send, a receive, a counter to raise, …) only
//! the layer above knows: it asks for [`Programs::next_act`], performs it, and says how that went.
//!
//! Order. Programs that wait for the same counter go on in the order of their thresholds, however far the
//! counter jumps, and at equal thresholds in the order of submission. Programs that can go on take turns, in
//! the order in which they became able to. An act that finds its queue full ([`Programs::again`]) keeps its
//! place: later acts of the same *lane* (one direction of one endpoint) wait behind it, those of other lanes
//! pass.
//!
//! Counters are raised by others, at any time and without this machine's lock. A counter is *armed* with the
//! lowest threshold that somebody waits for, and whoever raises it that far calls [`Programs::look`];
//! [`Counter::arm`] says how none is lost. An armed counter that nobody waits for any more costs one needless
//! look.
//!
//! Invariants: one act at a time is out; its program is ended by [`Programs::done`], [`Programs::again`] or
//! [`Programs::fail`]. Programs are numbered in the order of submission, no number is used twice, and nothing
//! is iterated in hash order. No task is performed twice, and none before those in front of it.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::bugs::planted;

/// What a counter says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// Operations that ended well.
    pub successes: u64,
    /// Operations that failed.
    pub errors: u64,
}

impl Level {
    /// Both together: what libfabric compares with a threshold.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.successes.saturating_add(self.errors)
    }
}

/// A counter that programs wait for: a handle, which keeps it alive.
pub trait Counter {
    /// Tells counters apart.
    fn id(&self) -> u64;

    /// From now on, whoever makes the total reach `at`, or changes the error count, must call
    /// [`Programs::look`]; until then nobody needs to. Returns the level. The level is read after the arming
    /// has become visible to those who raise the counter, and they look whether it is armed after they have
    /// raised it: so a change is seen by one side or the other.
    fn arm(&self, at: u64) -> Level;

    /// Nobody waits any more.
    fn disarm(&self);
}

/// What errors do to a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Errors {
    /// They count like successes (fi_trigger(3)).
    Count,
    /// A program that still waits when there is one is ended: what it waits for will not come, or is not what
    /// it should be.
    Poison,
}

/// One step of a program.
#[derive(Clone, Debug)]
pub enum Task<C, A> {
    /// Go on when the counter has reached the threshold.
    Wait {
        /// For which counter.
        counter: C,
        /// For which value.
        threshold: u64,
        /// What errors do.
        errors: Errors,
    },
    /// Do something.
    Act {
        /// In which order: acts of the same lane do not overtake each other.
        lane: u64,
        /// What.
        act: A,
    },
}

/// The lane of acts that never find a queue full.
pub const FREE_LANE: u64 = u64::MAX;

/// Tasks to be performed in order, and what the submitter wants to know them by.
#[derive(Clone, Debug)]
pub struct Program<C, A, M> {
    /// The last one first.
    tasks: SmallVec<[Task<C, A>; 2]>,
    origin: M,
}

impl<C, A, M> Program<C, A, M> {
    /// These tasks, the first one first.
    pub fn new(origin: M, tasks: impl IntoIterator<Item = Task<C, A>>) -> Self {
        let mut tasks: SmallVec<[Task<C, A>; 2]> = tasks.into_iter().collect();
        tasks.reverse();
        Self { tasks, origin }
    }
}

/// There are as many tasks as there may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue is full")]
pub struct Full;

/// How a program ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Every task was performed.
    Done,
    /// An act failed; those behind it were not performed.
    Failed,
    /// A counter that it waited for has errors.
    Poisoned,
    /// Cancelled.
    Cancelled,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished<C, A, M> {
    /// As it was submitted.
    pub origin: M,
    /// How.
    pub end: End,
    /// The tasks that were not performed, the last one first.
    pub left: SmallVec<[Task<C, A>; 2]>,
}

struct Entry<C, A, M> {
    tasks: SmallVec<[Task<C, A>; 2]>,
    /// How many there were.
    size: usize,
    origin: M,
    /// In the queue of which counter it is, under which threshold; else it is at an act.
    waiting: Option<(u64, u64)>,
}

/// Those who wait for one counter.
struct Waits<C> {
    counter: C,
    /// By threshold, then number.
    queue: BTreeMap<(u64, u64), Errors>,
    /// How many of them errors poison.
    delicate: usize,
}

/// Acts that found their queue full, and those behind them.
#[derive(Default)]
struct Lane {
    queue: VecDeque<u64>,
    /// Whether its turn to try again is in the ready queue.
    due: bool,
}

enum Turn {
    Program(u64),
    Lane(u64),
}

struct Running {
    program: u64,
    lane: u64,
    /// Somebody asked to retry the lane meanwhile.
    retry: bool,
    cancelled: bool,
}

/// Every program of one queue: see the module.
pub struct Programs<C, A, M> {
    all: BTreeMap<u64, Entry<C, A, M>>,
    waits: BTreeMap<u64, Waits<C>>,
    /// Numbers of programs that have gone since are skipped.
    ready: VecDeque<Turn>,
    /// Never iterated.
    lanes: FxHashMap<u64, Lane>,
    running: Option<Running>,
    finished: Vec<Finished<C, A, M>>,
    /// By number: those that were cancelled while an act was out that was not performed.
    withdrawn: BTreeMap<u64, Finished<C, A, M>>,
    submitted: u64,
    /// Tasks of all programs, as they were submitted.
    tasks: usize,
    limit: usize,
}

impl<C: Counter, A, M> Programs<C, A, M> {
    /// No programs; at most `limit` tasks at a time.
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

    /// Takes a whole program, or none of it.
    ///
    /// # Errors
    /// There are too many tasks.
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

    /// A counter may have reached what programs wait for.
    pub fn look(&mut self, counter: u64) {
        let mut moving = VecDeque::new();
        self.release(counter, &mut moving);
        self.go_on(moving);
    }

    /// The next act to perform, which is out from then on; `None` while another is out, or none can be performed.
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

    /// The act is performed: its program goes on.
    pub fn done(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.resume_lane(running.lane);
        if running.cancelled { self.finish(running.program, End::Cancelled) } else { self.advance(running.program) }
    }

    /// The act could not be performed yet. It is due again when somebody calls [`Programs::retry`]; or, if it
    /// was cancelled meanwhile, it is among what is left of its program ([`Programs::take_withdrawn`]).
    pub fn again(&mut self, act: A) {
        let Some(running) = self.running.take() else { return };
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

    /// The act failed: its program ends.
    pub fn fail(&mut self) {
        let Some(running) = self.running.take() else { return };
        self.resume_lane(running.lane);
        self.finish(running.program, End::Failed);
    }

    /// Acts of this lane may find room now.
    pub fn retry(&mut self, lane: u64) {
        match &mut self.running {
            Some(running) if running.lane == lane => running.retry = true,
            _ => self.resume_lane(lane),
        }
    }

    /// Ends every program that is `wanted`. One whose act is out ends with it: its number is returned.
    /// Whether that act was performed the caller learns by [`Programs::take_withdrawn`], once it is out no
    /// more.
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

    /// Whether no act is out and one can be performed (or turns out to be gone).
    #[must_use]
    pub fn is_due(&self) -> bool {
        self.running.is_none() && !self.ready.is_empty()
    }

    /// Programs that have not ended.
    #[must_use]
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Those that have ended since the last call, in that order, but for those that [`Programs::take_withdrawn`] gives.
    pub fn take_finished(&mut self) -> Vec<Finished<C, A, M>> {
        std::mem::take(&mut self.finished)
    }

    /// What is left of a program that was cancelled while its act was out, if that act came back: it is for
    /// who has cancelled it.
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

    /// The first act of a lane that was stalled. While it is out, the lane stays: those that become ready
    /// queue up behind.
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
            // What stalled became ready before all that is ready now.
            self.ready.push_front(Turn::Lane(lane));
        }
    }

    fn advance(&mut self, number: u64) {
        self.go_on(VecDeque::from([number]));
    }

    /// Brings each to its next act or to a counter that it must wait for, which may set others free.
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
                    // A program that need not wait goes on before the next one.
                    while let Some(number) = freed.pop_back() {
                        moving.push_front(number);
                    }
                }
            }
        }
    }

    /// Sets free, in order, those whose counter has come so far, and arms it for the rest.
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
            // Once nobody is set free, those who are left wait for more than the level that was seen after
            // arming. If the first has just gone, the counter is not armed for the next yet.
            if waits.queue.len() == before && waits.queue.first_key_value().is_some_and(|(key, _)| key.0 == lowest) {
                return;
            }
        }
    }

    /// Ends those who do not stand errors and have not been reached by the successes.
    fn poison(&mut self, counter: u64, successes: u64) {
        let Some(waits) = self.waits.get_mut(&counter) else { return };
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

    /// Takes a program that is about to end out of what it waits in; the ready queue and lanes skip it by themselves.
    fn leave(&mut self, number: u64) {
        let Some(entry) = self.all.get(&number) else { return };
        match (entry.waiting, entry.tasks.last()) {
            (Some((counter, threshold)), _) => self.leave_counter(number, counter, threshold),
            // Whoever comes next must not wait behind one that has gone.
            (_, Some(&Task::Act { lane, .. })) => planted!(Bug::CancelBlocks, self.resume_lane(lane), ()),
            _ => {}
        }
    }

    fn leave_counter(&mut self, number: u64, counter: u64, threshold: u64) {
        let Some(waits) = self.waits.get_mut(&counter) else { return };
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

/// What was cancelled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancelled {
    /// Programs that have ended.
    pub count: usize,
    /// The program whose act was out, if it was wanted: it ends with that act.
    pub running: Option<u64>,
}
