//! The model of deferred work: lists that are searched, and rules. It shares no code with
//! `weft_engine::program`.
//!
//! The harness reports every counter change by a client or an act, every program, and every act that begins
//! or ends; the oracle sees the counter changes by completions itself. The model checks at once that:
//! - counters have the counted values;
//! - a program advances when its threshold is reached and not before, by threshold and then by submission;
//! - acts begin in the order in which programs reached them, each once;
//! - an act that found its queue full keeps its place among those that need the same queue;
//! - a cancelled, failed or poisoned program begins no further act;
//! - after each step no program waits without need.
//!
//! For barriers, which are made of programs, the model checks that no rank leaves before the last one has
//! entered.

use std::collections::BTreeSet;

use weft_engine::api::{Completion, Fault, Kind};
use weft_engine::program::{End, Level};

use super::{Op, Oracle, Record};

/// The counters of a rank that its endpoint raises: for its own operations, for its receives, and for
/// accesses of others to its memory.
pub(crate) const SENT: usize = 0;
pub(crate) const RECEIVED: usize = 1;
pub(crate) const REMOTE: usize = 2;

/// A change of a counter.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// Adds successes.
    Add(u64),
    /// Adds errors.
    AddErrors(u64),
    /// Sets the successes.
    Set(u64),
    /// Sets the errors.
    SetErrors(u64),
}

/// A task in the model.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// Waits for a counter to reach a threshold; `strict`: errors of the counter end the program.
    Wait { counter: usize, threshold: u64, strict: bool },
    /// Performs an act that needs room in the queue of a lane.
    Act { lane: u64 },
}

/// Identifies a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its number at its rank.
    pub program: usize,
    /// The first counter that it waits for.
    pub counter: Option<usize>,
    /// The barrier that it belongs to.
    pub barrier: Option<usize>,
}

/// How an act ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Again,
    Failed,
}

/// A program: its steps, and how many of them are done.
#[derive(Debug)]
struct ModelProgram {
    origin: Origin,
    steps: Vec<Step>,
    at: usize,
}

impl ModelProgram {
    fn lane(&self) -> Option<u64> {
        match self.steps.get(self.at) {
            Some(Step::Act { lane }) => Some(*lane),
            _ => None,
        }
    }
}

/// The deferred work of one rank.
#[derive(Debug, Default)]
pub(crate) struct Model {
    levels: Vec<Level>,
    /// Programs at a wait, in no order.
    waiting: Vec<ModelProgram>,
    /// Programs at an act, in the order in which they reached it.
    ready: Vec<ModelProgram>,
    /// The program whose act is being performed.
    out: Option<ModelProgram>,
    /// Lanes whose first act found no room and has not been retried.
    blocked: Vec<u64>,
    /// Set when an act has found no room: until all acts are performed only the order within lanes is
    /// certain.
    disturbed: bool,
    /// Programs that have ended while the machine has not reported it.
    ended: Vec<(Origin, End)>,
    /// Limit on the number of tasks.
    limit: usize,
}

impl Model {
    fn level(&mut self, counter: usize) -> &mut Level {
        if self.levels.len() <= counter {
            self.levels.resize(counter + 1, Level::default());
        }
        &mut self.levels[counter]
    }

    fn all_programs(&self) -> impl Iterator<Item = &ModelProgram> {
        self.waiting.iter().chain(&self.ready).chain(&self.out)
    }

    fn change(&mut self, counter: usize, change: Change) {
        let level = self.level(counter);
        match change {
            Change::Add(more) => level.successes += more,
            Change::AddErrors(more) => level.errors += more,
            Change::Set(value) => level.successes = value,
            Change::SetErrors(value) => level.errors = value,
        }
        let at_counter = |plain: &ModelProgram| match plain.steps[plain.at] {
            Step::Wait { counter: waited, threshold, .. } if waited == counter => Some(threshold),
            _ => None,
        };
        let mut concerned = Vec::new();
        let mut n = 0;
        while n < self.waiting.len() {
            match at_counter(&self.waiting[n]) {
                Some(threshold) => concerned.push((threshold, self.waiting.swap_remove(n))),
                None => n += 1,
            }
        }
        concerned.sort_unstable_by_key(|(threshold, plain)| (*threshold, plain.origin.program));
        for (_, plain) in concerned {
            self.advance(plain);
        }
    }

    /// Advances a program to its next act or to the next wait that holds it.
    fn advance(&mut self, mut plain: ModelProgram) {
        loop {
            match plain.steps.get(plain.at) {
                None => return self.ended.push((plain.origin, End::Done)),
                Some(Step::Act { .. }) => return self.ready.push(plain),
                Some(&Step::Wait { counter, threshold, strict }) => {
                    let level = *self.level(counter);
                    let counted = if strict { level.successes } else { level.successes + level.errors };
                    if counted < threshold {
                        if strict && level.errors > 0 {
                            return self.ended.push((plain.origin, End::Poisoned));
                        }
                        return self.waiting.push(plain);
                    }
                    plain.at += 1;
                }
            }
        }
    }

    /// The programs at an act that may begin it now.
    fn runnable(&self) -> impl Iterator<Item = usize> {
        let free = |at: &usize| {
            let lane = self.ready[*at].lane();
            let stuck = lane.is_some_and(|lane| self.blocked.contains(&lane));
            !stuck && self.ready[..*at].iter().all(|before| before.lane() != lane)
        };
        (0..self.ready.len()).filter(free)
    }

    fn begin(&mut self, program: usize, at: usize) -> Result<(), String> {
        let runnable = self.runnable().find(|n| !self.disturbed || self.ready[*n].origin.program == program);
        let Some(n) = runnable.filter(|n| (self.ready[*n].origin.program, self.ready[*n].at) == (program, at)) else {
            let next = runnable.map(|n| (self.ready[n].origin, self.ready[n].at));
            let where_is = self.all_programs().find(|plain| plain.origin.program == program);
            return Err(format!(
                "program {program} begins its task {at} out of turn; next is {next:?}, and this one {where_is:?}"
            ));
        };
        self.out = Some(self.ready.remove(n));
        Ok(())
    }

    fn end(&mut self, outcome: Outcome) {
        let Some(mut plain) = self.out.take() else { return };
        match outcome {
            Outcome::Done => {
                plain.at += 1;
                self.advance(plain);
            }
            Outcome::Again => {
                self.disturbed = true;
                self.blocked.extend(plain.lane());
                self.ready.insert(0, plain);
            }
            Outcome::Failed => self.ended.push((plain.origin, End::Failed)),
        }
        self.disturbed &= !self.ready.is_empty();
    }

    fn cancel(&mut self, wanted: &impl Fn(&Origin) -> bool) -> usize {
        let mut removed = Vec::new();
        for list in [&mut self.waiting, &mut self.ready] {
            removed.extend(list.extract_if(.., |plain| wanted(&plain.origin)));
        }
        for plain in &removed {
            // The next program of the lane need not wait behind a cancelled one.
            self.blocked.retain(|lane| Some(*lane) != plain.lane());
            self.ended.push((plain.origin, End::Cancelled));
        }
        removed.len()
    }
}

/// A barrier.
#[derive(Debug)]
struct Gate {
    members: Vec<usize>,
    entered: BTreeSet<usize>,
    left: BTreeSet<usize>,
    /// The sum of the tree in an allreduce.
    sum: Option<f64>,
}

/// The deferred work of all ranks.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// By rank: its model, if it may have programs.
    models: Vec<Option<Model>>,
    /// The counters that operations and regions raise instead of the endpoint's.
    ops: std::collections::BTreeMap<Op, usize>,
    regions: std::collections::BTreeMap<u64, usize>,
    gates: Vec<Gate>,
    /// Programs by end.
    pub(crate) ends: [usize; 4],
}

impl Oracle {
    fn model_of(&mut self, rank: usize) -> Option<&mut Model> {
        self.deferred.models.get_mut(rank).and_then(Option::as_mut)
    }

    /// Allows a rank to have up to `limit` tasks waiting.
    pub(crate) fn allow_programs(&mut self, rank: usize, limit: usize) {
        if self.deferred.models.len() <= rank {
            self.deferred.models.resize_with(rank + 1, || None);
        }
        self.deferred.models[rank] = Some(Model { limit, ..Model::default() });
    }

    /// Removes the model of a rank that has died or exited.
    pub(crate) fn drop_programs(&mut self, rank: usize) {
        if let Some(model) = self.deferred.models.get_mut(rank) {
            *model = None;
        }
    }

    /// Makes an operation raise this counter instead of the endpoint's; with `None`, the endpoint's again.
    pub(crate) fn count_at(&mut self, op: Op, counter: Option<usize>) {
        match counter {
            Some(counter) => drop(self.deferred.ops.insert(op, counter)),
            None => drop(self.deferred.ops.remove(&op)),
        }
    }

    /// Makes access to a region raise this counter too.
    pub(crate) fn count_region_at(&mut self, region: u64, counter: usize) {
        self.deferred.regions.insert(region, counter);
    }

    /// Counts a completion that raises counters.
    pub(super) fn count(&mut self, rank: usize, c: &Completion) {
        if self.model_of(rank).is_none() || c.fault == Some(Fault::NoMessage) {
            return;
        }
        let change = if c.fault.is_some() { Change::AddErrors(1) } else { Change::Add(1) };
        if matches!(c.kind, Kind::RemoteRead | Kind::RemoteWrite) {
            self.changed(rank, REMOTE, change);
            if let Some(counter) = self.deferred.regions.get(&c.ctx.user).copied() {
                self.changed(rank, counter, change);
            }
            return;
        }
        let receives = matches!(self.record(c.ctx.ptr), Record::Recv(_) | Record::Peek(_));
        let own = if receives { RECEIVED } else { SENT };
        let counter = self.deferred.ops.get(&c.ctx.ptr).copied().unwrap_or(own);
        self.changed(rank, counter, change);
    }

    /// Records the change of a rank's counter.
    pub(crate) fn changed(&mut self, rank: usize, counter: usize, change: Change) {
        if let Some(model) = self.model_of(rank) {
            model.change(counter, change);
        }
    }

    /// Checks the value read from a counter.
    pub(crate) fn level_read(&mut self, rank: usize, counter: usize, read: Level) {
        let Some(counted) = self.model_of(rank).map(|model| *model.level(counter)) else { return };
        if counted != read {
            self.complain(format!("rank {rank}: counter {counter} is {read:?}, and {counted:?} was counted"));
        }
    }

    /// Number of further tasks that a rank may submit.
    pub(crate) fn tasks_left(&self, rank: usize) -> usize {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return 0 };
        model.limit.saturating_sub(model.all_programs().map(|plain| plain.steps.len()).sum())
    }

    /// Checks the submission of a program.
    pub(crate) fn submitted(&mut self, rank: usize, origin: Origin, steps: Vec<Step>, accepted: bool) {
        let fits = steps.len() <= self.tasks_left(rank);
        if fits != accepted {
            self.complain(format!(
                "rank {rank}: {origin:?} of {} tasks: accepted: {accepted}, fits: {fits}",
                steps.len()
            ));
        }
        if let Some(model) = self.model_of(rank).filter(|_| accepted) {
            model.advance(ModelProgram { origin, steps, at: 0 });
        }
    }

    /// Checks that a program may begin its task.
    pub(crate) fn act_begins(&mut self, rank: usize, program: usize, at: usize) {
        if let Some(Err(wrong)) = self.model_of(rank).map(|model| model.begin(program, at)) {
            self.complain(format!("rank {rank}: {wrong}"));
            // Later complaints would only follow from this one.
            self.drop_programs(rank);
        }
    }

    /// Records the end of the act that is being performed.
    pub(crate) fn act_ended(&mut self, rank: usize, outcome: Outcome) {
        if let Some(model) = self.model_of(rank) {
            model.end(outcome);
        }
    }

    /// Records that stalled acts may try again.
    pub(crate) fn retried(&mut self, rank: usize) {
        if let Some(model) = self.model_of(rank) {
            model.blocked.clear();
        }
    }

    /// Cancels programs in the model, and compares their number with the machine's.
    pub(crate) fn programs_cancelled(&mut self, rank: usize, wanted: impl Fn(&Origin) -> bool, reported: usize) {
        let Some(count) = self.model_of(rank).map(|model| model.cancel(&wanted)) else { return };
        if count != reported {
            self.complain(format!("rank {rank}: {reported} programs were cancelled instead of {count}"));
        }
    }

    /// Compares the ends that the machine reports when it has nothing more to do.
    pub(crate) fn programs_idle(&mut self, rank: usize, ends: &[(Origin, End)]) {
        for (_, end) in ends {
            self.deferred.ends[*end as usize] += 1;
        }
        let Some(model) = self.model_of(rank) else { return };
        let mut wrong = Vec::new();
        for end in ends {
            match model.ended.iter().position(|expected| expected == end) {
                Some(n) => drop(model.ended.swap_remove(n)),
                None => wrong.push(format!("{:?} ended unexpectedly: {:?}", end.0, end.1)),
            }
        }
        wrong.extend(model.ended.drain(..).map(|(origin, end)| format!("{origin:?} should have ended: {end:?}")));
        let forgotten = model.runnable().map(|n| format!("an act was not begun: {:?}", model.ready[n]));
        wrong.extend(forgotten);
        if !wrong.is_empty() {
            self.complain(format!("rank {rank}: {}", wrong.join("; ")));
            self.drop_programs(rank);
        }
    }

    /// Counters that the programs of a rank outside barriers still wait for, with the missing amounts.
    pub(crate) fn missing(&self, rank: usize) -> Vec<(usize, u64)> {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return Vec::new() };
        let mut out = Vec::new();
        for plain in model.waiting.iter().filter(|plain| plain.origin.barrier.is_none()) {
            let Some(&Step::Wait { counter, threshold, strict }) = plain.steps.get(plain.at) else { continue };
            let level = model.levels.get(counter).copied().unwrap_or_default();
            let counted = if strict { level.successes } else { level.successes + level.errors };
            out.push((counter, threshold - counted));
        }
        out
    }

    /// The unfinished programs of a rank outside barriers.
    pub(crate) fn programs_of(&self, rank: usize) -> Vec<usize> {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return Vec::new() };
        let own = model.all_programs().filter(|plain| plain.origin.barrier.is_none());
        own.map(|plain| plain.origin.program).collect()
    }

    /// The unfinished programs of a rank.
    pub(crate) fn unfinished_programs(&self, rank: usize) -> Vec<String> {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return Vec::new() };
        model.all_programs().map(|plain| format!("rank {rank}: a program has not ended: {plain:?}")).collect()
    }

    // ---- barriers ----------------------------------------------------------------------------

    /// Adds a barrier of these ranks and returns its number.
    pub(crate) fn gate(&mut self, members: Vec<usize>, numbers: Option<Vec<f64>>) -> usize {
        let sum = numbers.map(|numbers| tree_sum(&numbers));
        self.deferred.gates.push(Gate { members, entered: BTreeSet::new(), left: BTreeSet::new(), sum });
        self.deferred.gates.len() - 1
    }

    /// Numbers for the members of an allreduce. Their magnitudes differ widely, so the sum depends on the
    /// order.
    pub(crate) fn operands(&self, members: usize) -> Vec<f64> {
        let gate = self.deferred.gates.len();
        let number = |n: usize| {
            let bits = ((gate * 64 + n + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let scale = i32::try_from(bits >> 32 & 31).unwrap_or(0);
            f64::from(u32::try_from(bits >> 40).unwrap_or(1)) / 3.0 * 2_f64.powi(2 * scale)
        };
        (0..members).map(number).collect()
    }

    /// Checks the sum with which a rank leaves an allreduce.
    pub(crate) fn summed(&mut self, gate: usize, rank: usize, sum: f64) {
        let expected = self.deferred.gates[gate].sum;
        if let Some(expected) = expected.filter(|expected| expected.to_bits() != sum.to_bits()) {
            self.complain(format!(
                "rank {rank} leaves allreduce {gate} with {sum:e}, but its tree adds up to {expected:e}"
            ));
        }
    }

    /// The immediate data that a rank received under a tag of a barrier.
    pub(crate) fn received_under(&self, rank: usize, tag: u64) -> Option<u64> {
        self.wanted_by(rank).find_map(|(_, record)| match record {
            Record::Recv(recv) if recv.want.tag == Some((tag, 0)) => recv.got.first()?.data,
            _ => None,
        })
    }

    /// Records that a rank enters a barrier.
    pub(crate) fn gate_entered(&mut self, gate: usize, rank: usize) {
        self.deferred.gates[gate].entered.insert(rank);
    }

    /// Checks that a rank leaves a barrier only after all ranks have entered.
    pub(crate) fn gate_left(&mut self, gate: usize, rank: usize) {
        let Gate { members, entered, left, .. } = &mut self.deferred.gates[gate];
        let twice = !left.insert(rank);
        let missing = members.iter().find(|member| !entered.contains(member)).copied();
        if twice {
            self.complain(format!("rank {rank} leaves barrier {gate} twice"));
        }
        if let Some(missing) = missing {
            self.complain(format!("rank {rank} leaves barrier {gate} before rank {missing} has entered"));
        }
    }

    /// Members that have not left a barrier.
    pub(crate) fn gate_holds(&self, gate: usize) -> Vec<usize> {
        let Gate { members, left, .. } = &self.deferred.gates[gate];
        members.iter().filter(|member| !left.contains(member)).copied().collect()
    }
}

/// The sum of an allreduce by the definition of its tree: member 2^k m, m odd, adds to its number the sums of
/// the members 2^k m + 2^j, j from 0 to k - 1, in this order. Member 0 adds those of all powers of two.
fn tree_sum(numbers: &[f64]) -> f64 {
    let mut sums = numbers.to_vec();
    // All trees of 2 members, then of 4, and so on: at each step a member adds one child.
    let mut width = 1;
    while width < sums.len() {
        for root in (0..sums.len() - width).step_by(2 * width) {
            sums[root] += sums[root + width];
        }
        width *= 2;
    }
    sums.first().copied().unwrap_or(0.0)
}
