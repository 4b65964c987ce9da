//! The model of what waits for counters: lists that are searched, and rules; nothing of how
//! `weft_engine::program` does it.
//!
//! The harness tells of every change of a counter that is a client's or an act's own, of every program, of
//! every act that begins and ends; what completions change the oracle sees for itself. Checked at once:
//! counters have the values that were counted; who goes on goes on when a threshold is reached and not
//! before, by threshold and then by submission; acts begin in the order in which programs came to them, each
//! once; one that found its queue full keeps its place among those that need the same queue; whoever is
//! cancelled, failed or poisoned begins nothing more; and after each step nothing waits that need not.
//!
//! Of barriers, which are made of programs, it is checked that none is left before the last has entered.

use std::collections::BTreeSet;

use weft_engine::api::{Completion, Fault, Kind};
use weft_engine::program::{End, Level};

use super::{Op, Oracle, Record};

/// The counters of a rank that its endpoint raises: for operations that it starts, for its receives, for what
/// others do to its memory.
pub(crate) const SENT: usize = 0;
pub(crate) const RECEIVED: usize = 1;
pub(crate) const REMOTE: usize = 2;

/// What happens to a counter.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    /// So many successes more.
    Add(u64),
    /// So many errors more.
    AddErrors(u64),
    /// So many successes from now on.
    Set(u64),
    /// So many errors from now on.
    SetErrors(u64),
}

/// A task as the model knows it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// For a counter to reach a threshold; whether its errors end the program.
    Wait { counter: usize, threshold: u64, strict: bool },
    /// Something that needs room in a queue, by its lane.
    Act { lane: u64 },
}

/// By what a program is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// Its number at its rank.
    pub program: usize,
    /// The counter that it waits for first.
    pub counter: Option<usize>,
    /// The barrier that it is part of.
    pub barrier: Option<usize>,
}

/// How an act ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Done,
    Again,
    Failed,
}

/// A program: its steps, and how many of them are behind it.
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

/// What one rank has waiting.
#[derive(Debug, Default)]
pub(crate) struct Model {
    levels: Vec<Level>,
    /// At a wait, in no order.
    waiting: Vec<ModelProgram>,
    /// At an act, in the order in which they came to it.
    ready: Vec<ModelProgram>,
    /// The one whose act is out.
    out: Option<ModelProgram>,
    /// Lanes whose first act found no room and has not been retried.
    blocked: Vec<u64>,
    /// An act has found no room: until all are performed only the order within lanes is certain.
    disturbed: bool,
    /// Those that have ended, and of which the machine has not said so.
    ended: Vec<(Origin, End)>,
    /// How many tasks there may be.
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

    /// Brings a program to its next act or to where it must wait.
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

    /// Which of those at an act may begin it now.
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
        let mut gone = Vec::new();
        for list in [&mut self.waiting, &mut self.ready] {
            gone.extend(list.extract_if(.., |plain| wanted(&plain.origin)));
        }
        for plain in &gone {
            // Whoever comes next need not wait behind one that has gone.
            self.blocked.retain(|lane| Some(*lane) != plain.lane());
            self.ended.push((plain.origin, End::Cancelled));
        }
        gone.len()
    }
}

/// A barrier.
#[derive(Debug)]
struct Gate {
    members: Vec<usize>,
    entered: BTreeSet<usize>,
    left: BTreeSet<usize>,
    /// Of an allreduce: what its tree adds up to.
    sum: Option<f64>,
}

/// Everything that waits for counters.
#[derive(Debug, Default)]
pub(crate) struct Deferred {
    /// By rank.
    models: Vec<Option<Model>>,
    /// Which counter an operation, or access to a region, raises where it is not one of the endpoint's.
    ops: std::collections::BTreeMap<Op, usize>,
    regions: std::collections::BTreeMap<u64, usize>,
    gates: Vec<Gate>,
    /// How many programs ended how.
    pub(crate) ends: [usize; 4],
}

impl Oracle {
    fn model_of(&mut self, rank: usize) -> Option<&mut Model> {
        self.deferred.models.get_mut(rank).and_then(Option::as_mut)
    }

    /// From now on a rank may have so many tasks waiting.
    pub(crate) fn allow_programs(&mut self, rank: usize, limit: usize) {
        if self.deferred.models.len() <= rank {
            self.deferred.models.resize_with(rank + 1, || None);
        }
        self.deferred.models[rank] = Some(Model { limit, ..Model::default() });
    }

    /// A rank has gone, with all that waited there.
    pub(crate) fn drop_programs(&mut self, rank: usize) {
        if let Some(model) = self.deferred.models.get_mut(rank) {
            *model = None;
        }
    }

    /// An operation raises this counter instead of the endpoint's; with `None`, the endpoint's after all.
    pub(crate) fn count_at(&mut self, op: Op, counter: Option<usize>) {
        match counter {
            Some(counter) => drop(self.deferred.ops.insert(op, counter)),
            None => drop(self.deferred.ops.remove(&op)),
        }
    }

    /// Access to a region raises this counter, too.
    pub(crate) fn count_region_at(&mut self, region: u64, counter: usize) {
        self.deferred.regions.insert(region, counter);
    }

    /// A completion has come that raises counters.
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

    /// A counter of a rank has changed.
    pub(crate) fn changed(&mut self, rank: usize, counter: usize, change: Change) {
        if let Some(model) = self.model_of(rank) {
            model.change(counter, change);
        }
    }

    /// A counter is read.
    pub(crate) fn level_read(&mut self, rank: usize, counter: usize, read: Level) {
        let Some(counted) = self.model_of(rank).map(|model| *model.level(counter)) else { return };
        if counted != read {
            self.complain(format!("rank {rank}: counter {counter} is {read:?}, and {counted:?} was counted"));
        }
    }

    /// How many tasks more a rank may have waiting.
    pub(crate) fn tasks_left(&self, rank: usize) -> usize {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return 0 };
        model.limit.saturating_sub(model.all_programs().map(|plain| plain.steps.len()).sum())
    }

    /// A program was submitted.
    pub(crate) fn submitted(&mut self, rank: usize, origin: Origin, steps: Vec<Step>, accepted: bool) {
        let fits = steps.len() <= self.tasks_left(rank);
        if fits != accepted {
            self.complain(format!(
                "rank {rank}: {origin:?} of {} tasks: accepted {accepted}, fits {fits}",
                steps.len()
            ));
        }
        if let Some(model) = self.model_of(rank).filter(|_| accepted) {
            model.advance(ModelProgram { origin, steps, at: 0 });
        }
    }

    /// The task of a program is about to begin.
    pub(crate) fn act_begins(&mut self, rank: usize, program: usize, at: usize) {
        if let Some(Err(wrong)) = self.model_of(rank).map(|model| model.begin(program, at)) {
            self.complain(format!("rank {rank}: {wrong}"));
            // What follows would follow from this.
            self.drop_programs(rank);
        }
    }

    /// It has ended.
    pub(crate) fn act_ended(&mut self, rank: usize, outcome: Outcome) {
        if let Some(model) = self.model_of(rank) {
            model.end(outcome);
        }
    }

    /// Acts that found no room may try again.
    pub(crate) fn retried(&mut self, rank: usize) {
        if let Some(model) = self.model_of(rank) {
            model.blocked.clear();
        }
    }

    /// Programs were cancelled, and the machine says how many.
    pub(crate) fn programs_cancelled(&mut self, rank: usize, wanted: impl Fn(&Origin) -> bool, said: usize) {
        let Some(count) = self.model_of(rank).map(|model| model.cancel(&wanted)) else { return };
        if count != said {
            self.complain(format!("rank {rank}: {said} programs were cancelled, and there were {count}"));
        }
    }

    /// Programs have ended, says the machine, and it has nothing more to do.
    pub(crate) fn programs_idle(&mut self, rank: usize, ends: &[(Origin, End)]) {
        for (_, end) in ends {
            self.deferred.ends[*end as usize] += 1;
        }
        let Some(model) = self.model_of(rank) else { return };
        let mut wrong = Vec::new();
        for end in ends {
            match model.ended.iter().position(|expected| expected == end) {
                Some(n) => drop(model.ended.swap_remove(n)),
                None => wrong.push(format!("{:?} ended: {:?}, and should not", end.0, end.1)),
            }
        }
        wrong.extend(model.ended.drain(..).map(|(origin, end)| format!("{origin:?} should have ended: {end:?}")));
        let forgotten = model.runnable().map(|n| format!("an act is forgotten: {:?}", model.ready[n]));
        wrong.extend(forgotten);
        if !wrong.is_empty() {
            self.complain(format!("rank {rank}: {}", wrong.join("; ")));
            self.drop_programs(rank);
        }
    }

    /// What the programs of a rank that are no barrier's still need to go on: counters, and by how much.
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

    /// The programs of a rank that are no barrier's and have not ended.
    pub(crate) fn programs_of(&self, rank: usize) -> Vec<usize> {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return Vec::new() };
        let own = model.all_programs().filter(|plain| plain.origin.barrier.is_none());
        own.map(|plain| plain.origin.program).collect()
    }

    /// What has not ended at a rank.
    pub(crate) fn unfinished_programs(&self, rank: usize) -> Vec<String> {
        let Some(Some(model)) = self.deferred.models.get(rank) else { return Vec::new() };
        model.all_programs().map(|plain| format!("rank {rank}: a program has not ended: {plain:?}")).collect()
    }

    // ---- barriers ----------------------------------------------------------------------------

    /// A new barrier of these ranks; its number.
    pub(crate) fn gate(&mut self, members: Vec<usize>, numbers: Option<Vec<f64>>) -> usize {
        let sum = numbers.map(|numbers| tree_sum(&numbers));
        self.deferred.gates.push(Gate { members, entered: BTreeSet::new(), left: BTreeSet::new(), sum });
        self.deferred.gates.len() - 1
    }

    /// Numbers for so many members of an allreduce. Of very different magnitudes: in another order their sum
    /// is another.
    pub(crate) fn operands(&self, members: usize) -> Vec<f64> {
        let gate = self.deferred.gates.len();
        let number = |n: usize| {
            let bits = ((gate * 64 + n + 1) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            let scale = i32::try_from(bits >> 32 & 31).unwrap_or(0);
            f64::from(u32::try_from(bits >> 40).unwrap_or(1)) / 3.0 * 2_f64.powi(2 * scale)
        };
        (0..members).map(number).collect()
    }

    /// A rank leaves an allreduce with this sum.
    pub(crate) fn summed(&mut self, gate: usize, rank: usize, sum: f64) {
        let expected = self.deferred.gates[gate].sum;
        if let Some(expected) = expected.filter(|expected| expected.to_bits() != sum.to_bits()) {
            self.complain(format!(
                "rank {rank} leaves allreduce {gate} with {sum:e}, and its tree adds up to {expected:e}"
            ));
        }
    }

    /// The immediate data of what a rank has received under a tag that nobody else uses.
    pub(crate) fn received_under(&self, rank: usize, tag: u64) -> Option<u64> {
        self.wanted_by(rank).find_map(|(_, record)| match record {
            Record::Recv(recv) if recv.want.tag == Some((tag, 0)) => recv.got.first()?.data,
            _ => None,
        })
    }

    /// A rank enters a barrier.
    pub(crate) fn gate_entered(&mut self, gate: usize, rank: usize) {
        self.deferred.gates[gate].entered.insert(rank);
    }

    /// A rank leaves a barrier: all must have entered.
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

/// The sum of an allreduce, by what is declared of its tree: member 2^k m, m odd, adds to its number the sums
/// of the members 2^k m + 2^j, j from 0 to k - 1, in this order; member 0 those of all powers of two.
fn tree_sum(numbers: &[f64]) -> f64 {
    let mut sums = numbers.to_vec();
    // All trees of 2 members, then of 4, and so on: at each step a member takes in one child.
    let mut width = 1;
    while width < sums.len() {
        for root in (0..sums.len() - width).step_by(2 * width) {
            sums[root] += sums[root + width];
        }
        width *= 2;
    }
    sums.first().copied().unwrap_or(0.0)
}
