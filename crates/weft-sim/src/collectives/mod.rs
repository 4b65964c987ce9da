//! Runs of collectives: random operations in overlapping groups, under every hazard, with all results checked.
//!
//! Place in the data flow: [`run`](crate::run::run) plays a plan here if its only kind of operation is `collective`.
//! The ranks follow one *script* of joins, calls and leaves, each at its own pace. A rank therefore is many calls
//! ahead of another one, and dozens are under way. [`call`] has the data of a call and the results that must follow.
//!
//! The rules for each member's part of a call:
//! - It succeeds with the bytes of the declared tree, and no byte behind the result is written.
//! - It fails only if a member of the group has died, or a link between two members has broken.
//! - It ends: [`DEATH_BOUND_NS`] after a death at the latest, if all living members have called. (Where packets are
//!   lost and sent again, transfers alone may take longer.)
//! - It ends as long after a part of any member of the group has failed, whether all members have called or not. In
//!   every second run, ranks whose part has failed call nothing more in that group, as programs do.
//! - No member leaves a barrier before all have entered it.

mod call;

use weft_engine::api::{Completion, CompletionFlags, Context, Error, Kind, OpFlags};
use weft_engine::collective::Operation;
use weft_engine::mem::Iov;
use weft_engine::{CollectiveOp, GroupId, Performed};

use crate::cluster::{Cluster, Turn};
use crate::config::FabricConfig;
use crate::harness::Harness;
use crate::hazard::Hazard;
use crate::memory::Buffer;
use crate::plan::Plan;
use crate::rng::{Entity, Stream};
use crate::run::{DEATH_BOUND_NS, Disaster, HALF_OPEN_NS, Report, disasters};
use crate::trace::TraceEvent;
use crate::workload::engine_config;
use call::Call;

/// Bytes behind each result that no operation may write.
const TAIL_BYTES: usize = 24;
/// The content of results and tails before an operation.
const CANARY: u8 = 0xC7;
/// Turns after which a run counts as endless.
const MAX_TURNS: usize = 1_000_000;
/// Groups that have not ended, at most.
const MAX_GROUPS: usize = 6;
/// Complaints that are kept.
const MAX_COMPLAINTS: usize = 5;

/// How far a member is with a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Membership {
    Outside,
    Joining(GroupId),
    Joined(GroupId),
    /// The join has failed.
    Refused,
    /// A call has failed, and the member makes no further ones.
    GivenUp(GroupId),
}

/// A group of ranks.
#[derive(Debug)]
struct Group {
    /// Ranks in the order of their ranks in the group.
    members: Vec<usize>,
    /// All members know the group by a key, and call before the join is complete.
    keyed: bool,
    /// By place.
    memberships: Vec<Membership>,
    /// Since when parts may fail: a member has died, a link between two members has broken, or a join has failed.
    disturbed_ns: Option<u64>,
    /// When the first part of a member failed.
    failed_ns: Option<u64>,
    /// When the last member began to join.
    begun_ns: u64,
}

impl Group {
    fn place(&self, rank: usize) -> Option<usize> {
        self.members.iter().position(|&member| member == rank)
    }

    /// Whether each living member's part has begun, or never will: its join has failed.
    fn all_began(&self, alive: impl Fn(usize) -> bool, began: impl Fn(usize) -> bool) -> bool {
        let places = (0..self.members.len()).filter(|&place| alive(self.members[place]));
        let never = |place: usize| matches!(self.memberships[place], Membership::Refused | Membership::GivenUp(_));
        places.into_iter().all(|place| began(place) || never(place))
    }
}

/// A step of the script.
#[derive(Clone, Copy, Debug)]
enum Item {
    Join(usize),
    Call(usize),
    Leave(usize),
}

/// A call, and how far its members are with it.
#[derive(Debug)]
struct Record {
    call: Call,
    group: usize,
    /// By place: whether the member has called.
    started: Vec<bool>,
    /// By place: whether the member's part has ended.
    ended: Vec<bool>,
    /// When the last living member called.
    started_ns: u64,
}

/// A member's part in a join or call that is under way. The context of its completion is its number.
#[derive(Debug)]
struct Part {
    rank: usize,
    group: usize,
    place: usize,
    started_ns: u64,
    /// The call and its buffers; `None`: a join.
    call: Option<(usize, Buffer, Option<Buffer>)>,
}

struct Play {
    harness: Harness,
    rng: Stream,
    groups: Vec<Group>,
    script: Vec<Item>,
    /// By rank: the next item.
    cursors: Vec<usize>,
    records: Vec<Record>,
    parts: Vec<Option<Part>>,
    wrong: Vec<String>,
    /// Items that the script may still have.
    budget: usize,
    accepted: usize,
    refused: usize,
    /// Pairs with broken links, which disturb groups that begin before both ends know.
    breaking: Vec<(usize, usize)>,
    /// The devices have chains; every second call is then a barrier.
    chained: bool,
    /// Connection attempts may fail.
    refuses: bool,
    /// Members make no further calls in a group after a failure.
    gives_up: bool,
    /// Packets are lost and sent again, so that transfers may take seconds.
    resends: bool,
    next_successor: usize,
    /// Draws the groups that have the members of an earlier one, and those with a key.
    kinds: Stream,
}

/// Plays one run. `chains`: see [`FabricConfig::chains`].
pub(crate) fn run(plan: &Plan, chains: Option<u32>) -> Report {
    let mut rng = Stream::new(plan.seed, Entity::Test(usize::MAX >> 9));
    let mut config = FabricConfig::draw(plan.seed, plan.hazards);
    config.boards = rng.chance(500);
    config.chains = chains;
    config.per_host = *rng.pick(&[1, 2, 3, plan.ranks]);
    let engine = engine_config(&mut rng, plan.hazards.has(Hazard::Starvation));
    let steps = rng.between(5, 30);
    let disasters = disasters(plan, steps);
    let detail = format!("{plan}\n{config:?}\n{engine:?}\n{disasters:?}\n");
    let restarts = disasters.iter().filter(|disaster| disaster.hazard == Hazard::Restart);
    let successors: Vec<usize> = restarts.map(|disaster| disaster.a).collect();
    let mut cluster = Cluster::with_successors(config, engine, plan.ranks, &successors, &[]);
    cluster.set_slow(plan.hazards.has(Hazard::Slow));
    let ranks = cluster.ranks();
    let mut play = Play {
        harness: Harness::of(cluster),
        rng,
        groups: Vec::new(),
        script: Vec::new(),
        cursors: vec![0; ranks],
        records: Vec::new(),
        parts: Vec::new(),
        wrong: Vec::new(),
        budget: plan.ops,
        accepted: 0,
        refused: 0,
        breaking: Vec::new(),
        chained: chains.is_some(),
        refuses: plan.hazards.has(Hazard::Refuse),
        gives_up: Stream::new(plan.seed, Entity::Test(usize::MAX >> 11)).chance(500),
        resends: plan.hazards.has(Hazard::Drop) || plan.hazards.has(Hazard::Corrupt),
        next_successor: plan.ranks,
        kinds: Stream::new(plan.seed, Entity::Test(usize::MAX >> 12)),
    };
    play.work(plan, steps, &disasters);
    play.finish();
    let fabric = play.harness.cluster().fabric().clone();
    Report {
        wrong: play.wrong,
        hash: fabric.trace_hash(),
        stats: fabric.stats(),
        accepted: play.accepted,
        refused: play.refused,
        virtual_ns: fabric.now_ns(),
        detail: detail + &fabric.trace_tail(),
        ..Report::default()
    }
}

impl Play {
    fn cluster(&mut self) -> &mut Cluster {
        self.harness.cluster()
    }

    fn now_ns(&mut self) -> u64 {
        self.cluster().fabric().now_ns()
    }

    fn complain(&mut self, what: String) {
        if self.wrong.len() < MAX_COMPLAINTS {
            self.wrong.push(what);
        }
    }

    // ---- the course of a run -----------------------------------------------------------------

    fn work(&mut self, plan: &Plan, steps: usize, disasters: &[Disaster]) {
        let end_ns = plan.millis.saturating_mul(1_000_000);
        for step in 0..steps {
            for disaster in disasters.iter().filter(|disaster| disaster.step == step) {
                self.strike(disaster);
            }
            self.extend_script();
            for _ in 0..self.rng.between(1, 30) {
                self.step_ranks(700);
                self.turn();
            }
            let pause_ns = match self.rng.index(20) {
                0..12 => 0,
                12..15 => self.rng.below(10_000),
                15..18 => self.rng.below(1_000_000),
                _ => self.rng.below(end_ns / steps as u64 * 10),
            };
            let until_ns = self.now_ns() + pause_ns;
            self.pass_until(until_ns.min(end_ns));
        }
    }

    /// Advances time; the ranks follow the script.
    fn pass_until(&mut self, until_ns: u64) {
        let now_ns = self.now_ns();
        if now_ns >= until_ns {
            return;
        }
        self.cluster().fabric().tick_in(until_ns - now_ns);
        while self.now_ns() < until_ns {
            self.step_ranks(300);
            self.turn();
        }
    }

    /// One turn of the cluster.
    fn turn(&mut self) -> Turn {
        let mut done = Vec::new();
        let turn = self.cluster().turn(|cluster, rank| {
            done.extend(cluster.take_completions(rank).into_iter().map(|completion| (rank, completion)));
        });
        for (rank, completion) in done {
            self.completed(rank, &completion);
        }
        let now_ns = self.now_ns();
        let breaking = std::mem::take(&mut self.breaking);
        let fabric = self.cluster().fabric().clone();
        self.breaking = breaking.into_iter().filter(|&(a, b)| fabric.is_breaking(a, b)).collect();
        self.judge_deaths(now_ns);
        turn
    }

    /// Takes the completions that calls have left.
    fn collect(&mut self, rank: usize) {
        for completion in self.cluster().take_completions(rank) {
            self.completed(rank, &completion);
        }
    }

    /// Parts that wait for a dead member must end in time.
    fn judge_deaths(&mut self, now_ns: u64) {
        if self.resends {
            return;
        }
        let is_due = |since_ns: u64, group: &Group| {
            group.disturbed_ns.is_some_and(|disturbed_ns| now_ns > disturbed_ns.max(since_ns) + DEATH_BOUND_NS)
        };
        let alive = |rank: usize| self.harness.cluster_ref().is_alive(rank);
        let mut late = Vec::new();
        for record in &self.records {
            let group = &self.groups[record.group];
            if is_due(record.started_ns, group) && group.all_began(alive, |place| record.started[place]) {
                let waits = |&place: &usize| record.started[place] && !record.ended[place];
                let place = (0..group.members.len()).find(|place| waits(place) && alive(group.members[*place]));
                late.extend(
                    place
                        .map(|place| format!("rank {}: no end in time: {record:?} in {group:?}", group.members[place])),
                );
            }
        }
        for group in self.groups.iter().filter(|group| is_due(group.begun_ns, group)) {
            let has = |place: usize, joining: bool| match group.memberships[place] {
                Membership::Outside => false,
                Membership::Joining(_) => true,
                _ => !joining,
            };
            if group.all_began(alive, |place| has(place, false)) {
                let place = (0..group.members.len()).find(|&place| has(place, true) && alive(group.members[place]));
                late.extend(place.map(|place| format!("rank {}: no join in time: {group:?}", group.members[place])));
            }
        }
        for part in self.parts.iter().flatten().filter(|part| alive(part.rank)) {
            let group = &self.groups[part.group];
            if group.failed_ns.is_some_and(|failed_ns| now_ns > failed_ns.max(part.started_ns) + DEATH_BOUND_NS) {
                late.push(format!(
                    "rank {}: the group's failure ends no part in time: {part:?} in {group:?}",
                    part.rank
                ));
            }
        }
        // A part that is late stays late in the turns that follow.
        if self.wrong.is_empty() {
            late.into_iter().for_each(|late| self.complain(late));
        }
    }

    fn finish(&mut self) {
        self.cluster().fabric().heal();
        self.refuses = false;
        self.drain();
        let live_ranks = self.cluster().live_ranks();
        if !live_ranks.is_empty() {
            self.prove(live_ranks);
        }
        for part in self.parts.iter().flatten().filter(|part| self.harness.cluster_ref().is_alive(part.rank)) {
            let Part { rank, group, call, .. } = part;
            let group = &self.groups[*group];
            if self.wrong.len() < MAX_COMPLAINTS {
                let record = call.as_ref().map(|(number, ..)| &self.records[*number]);
                self.wrong.push(format!("rank {rank}: never ended: {record:?} in {group:?}"));
            }
        }
        let leaks = self.harness.leaks();
        leaks.into_iter().for_each(|leak| self.complain(leak));
        self.check_windows();
        let violations = self.cluster().fabric().violations();
        violations.into_iter().for_each(|violation| self.complain(violation));
    }

    /// With nothing pending, a receiver has given back all of a window but a portion, which is a quarter.
    fn check_windows(&mut self) {
        let window_bytes = self.cluster().engine_config().window_bytes as u64;
        let live_ranks = self.cluster().live_ranks();
        for (a, b) in live_ranks.iter().flat_map(|a| live_ranks.iter().map(move |b| (*a, *b))) {
            let addr = self.cluster().addr(b, a);
            let window = self.cluster().engine(b).and_then(|engine| engine.window(addr));
            if let Some((_, used)) = window.filter(|(_, used)| *used > window_bytes / 4) {
                self.complain(format!("rank {b} keeps {used} of {window_bytes} bytes of its window for rank {a}"));
            }
        }
    }

    /// New groups work, whatever has happened to others.
    fn prove(&mut self, live_ranks: Vec<usize>) {
        let members = self.shuffled(live_ranks);
        self.budget = usize::MAX;
        self.found(members);
        let group = self.groups.len() - 1;
        for operation in Operation::ALL {
            let call = Call::of(&mut self.rng, operation, self.groups[group].members.len());
            self.add_call(group, call);
        }
        self.drain();
    }

    /// Lets all ranks finish the script.
    fn drain(&mut self) {
        let mut idle = 0;
        for _ in 0..MAX_TURNS {
            let moved = self.step_ranks(1000);
            idle = if self.turn() == Turn::Idle && !moved { idle + 1 } else { 0 };
            if idle > 2 {
                return;
            }
        }
        self.complain(format!("no end after {MAX_TURNS} turns"));
    }

    // ---- hazards -----------------------------------------------------------------------------

    fn strike(&mut self, disaster: &Disaster) {
        let &Disaster { hazard, a, b, amount, .. } = disaster;
        match hazard {
            Hazard::Reset | Hazard::HalfOpen if a != b => {
                let later_ns = if hazard == Hazard::HalfOpen { HALF_OPEN_NS } else { 0 };
                self.cluster().fabric().break_links(a, b, later_ns);
                self.breaks(a, b);
            }
            Hazard::Truncate if a != b => {
                self.cluster().fabric().garble(a, b, usize::try_from(amount).unwrap_or(0));
                self.breaks(a, b);
            }
            Hazard::Slow => self.cluster().pause(a, amount),
            Hazard::Restart if self.cluster().is_alive(a) => {
                self.dies(a);
                self.cluster().kill(a);
                let successor = self.next_successor;
                self.next_successor += 1;
                self.cluster().restart(successor);
                self.cursors[successor] = self.script.len();
            }
            Hazard::Death if self.cluster().is_alive(a) => {
                self.dies(a);
                self.cluster().kill(a);
            }
            Hazard::Departure if self.cluster().is_alive(a) => {
                self.dies(a);
                self.cluster().leave(a);
            }
            _ => {}
        }
    }

    /// Parts of groups with both ranks may fail.
    fn breaks(&mut self, a: usize, b: usize) {
        let now_ns = self.now_ns();
        self.breaking.push((a, b));
        for group in &mut self.groups {
            if group.place(a).is_some() && group.place(b).is_some() {
                group.disturbed_ns = Some(now_ns);
            }
        }
    }

    /// Parts of groups with the rank may fail.
    fn dies(&mut self, rank: usize) {
        let now_ns = self.now_ns();
        for group in self.groups.iter_mut().filter(|group| group.place(rank).is_some()) {
            group.disturbed_ns = Some(now_ns);
        }
        for part in &mut self.parts {
            if part.as_ref().is_some_and(|part| part.rank == rank) {
                *part = None;
            }
        }
    }

    // ---- the script --------------------------------------------------------------------------

    fn shuffled(&mut self, mut ranks: Vec<usize>) -> Vec<usize> {
        for at in (1..ranks.len()).rev() {
            ranks.swap(at, self.rng.index(at + 1));
        }
        ranks
    }

    /// Founds a group.
    fn found(&mut self, members: Vec<usize>) {
        let touches = |&(a, b): &(usize, usize)| members.contains(&a) && members.contains(&b);
        let disturbed = self.refuses || self.breaking.iter().any(touches);
        let now_ns = self.now_ns();
        let (keyed, memberships) = (self.kinds.chance(400), vec![Membership::Outside; members.len()]);
        self.groups.push(Group {
            members,
            keyed,
            memberships,
            disturbed_ns: disturbed.then_some(now_ns),
            failed_ns: None,
            begun_ns: now_ns,
        });
        self.add(Item::Join(self.groups.len() - 1));
    }

    fn add(&mut self, item: Item) {
        if self.budget > 0 {
            self.budget = self.budget.saturating_sub(1);
            self.script.push(item);
        }
    }

    fn add_call(&mut self, group: usize, call: Call) {
        if self.budget > 0 {
            let members = self.groups[group].members.len();
            let (started, ended) = (vec![false; members], vec![false; members]);
            self.records.push(Record { call, group, started, ended, started_ns: 0 });
            self.add(Item::Call(self.records.len() - 1));
        }
    }

    /// Groups that no item has left.
    fn open_groups(&self) -> Vec<usize> {
        let left = |group: &usize| self.script.iter().any(|item| matches!(item, Item::Leave(left) if left == group));
        (0..self.groups.len()).filter(|group| !left(group)).collect()
    }

    /// Adds some joins, calls and leaves.
    fn extend_script(&mut self) {
        if self.cluster().live_ranks().is_empty() {
            return;
        }
        let open = self.open_groups();
        if open.is_empty() || (open.len() < MAX_GROUPS && self.rng.chance(250)) {
            let live_ranks = self.cluster().live_ranks();
            let all = self.shuffled(live_ranks);
            let size = if self.rng.chance(400) { all.len() } else { self.rng.between(1, all.len()) };
            let again = self.groups.last().map(|group| group.members.clone()).filter(|_| self.kinds.chance(400));
            let again = again.filter(|members| members.iter().all(|member| all.contains(member)));
            self.found(again.unwrap_or_else(|| all.into_iter().take(size).collect()));
        }
        let open = self.open_groups();
        for _ in 0..self.rng.index(12) {
            let group = *self.rng.pick(&open);
            let members = self.groups[group].members.len();
            let is_barrier = self.chained && self.rng.chance(500);
            let call = match is_barrier {
                true => Call::of(&mut self.rng, Operation::Barrier, members),
                false => Call::draw(&mut self.rng, members),
            };
            self.add_call(group, call);
        }
        if open.len() > 1 && self.rng.chance(100) {
            let group = *self.rng.pick(&open);
            self.add(Item::Leave(group));
        }
    }

    /// Each rank performs some items of the script, with a probability. Returns whether any has.
    fn step_ranks(&mut self, permille: u32) -> bool {
        let mut moved = false;
        for rank in self.cluster().live_ranks() {
            if self.cluster().is_paused(rank) || !self.rng.chance(permille) {
                continue;
            }
            for _ in 0..self.rng.between(1, 6) {
                let Some(&item) = self.script.get(self.cursors[rank]) else { break };
                if !self.perform(rank, item) {
                    break;
                }
                self.cursors[rank] += 1;
                moved = true;
            }
            self.collect(rank);
        }
        moved
    }

    /// Performs a rank's part of an item. Returns false if it must wait.
    fn perform(&mut self, rank: usize, item: Item) -> bool {
        let group = match item {
            Item::Join(group) | Item::Leave(group) => group,
            Item::Call(call) => self.records[call].group,
        };
        let Some(place) = self.groups[group].place(rank) else { return true };
        match (item, self.groups[group].memberships[place]) {
            (Item::Join(_), _) => self.join(rank, group, place),
            (Item::Call(call), Membership::Joining(id)) if self.groups[group].keyed => {
                self.start(rank, call, place, id)
            }
            (_, Membership::Joining(_)) => false,
            (Item::Call(call), Membership::Joined(id)) => self.start(rank, call, place, id),
            (Item::Leave(_), Membership::Joined(id) | Membership::GivenUp(id)) => {
                let left = self.cluster().engine(rank).map(|engine| engine.leave_group(id));
                left != Some(Err(Error::Again))
            }
            (Item::Call(_), Membership::GivenUp(_)) => true,
            (Item::Call(_) | Item::Leave(_), Membership::Outside | Membership::Refused) => true,
        }
    }

    fn accepts<T>(&mut self, rank: usize, token: usize, outcome: Result<T, Error>) -> Option<T> {
        let accepted = u8::from(outcome.is_ok());
        self.cluster().fabric().record(TraceEvent::Post, rank, token as u64, 0, &[accepted]);
        match outcome {
            Ok(value) => {
                self.accepted += 1;
                return Some(value);
            }
            Err(Error::Again) => self.refused += 1,
            Err(error) => self.complain(format!("rank {rank}: refused: {error}")),
        }
        None
    }

    fn join(&mut self, rank: usize, group: usize, place: usize) -> bool {
        let members = self.groups[group].members.clone();
        let addrs: Vec<u64> = members.iter().map(|&member| self.cluster().addr(rank, member)).collect();
        let (token, started_ns, keyed) = (self.parts.len(), self.now_ns(), self.groups[group].keyed);
        self.parts.push(Some(Part { rank, group, place, started_ns, call: None }));
        let Some(engine) = self.cluster().engine(rank) else { return true };
        let outcome = match keyed {
            true => engine.join_keyed_group(&addrs, &(group as u64).to_le_bytes(), context(token)),
            false => engine.join_group(&addrs, context(token)),
        };
        match self.accepts(rank, token, outcome) {
            Some(id) => {
                self.groups[group].memberships[place] = Membership::Joining(id);
                self.groups[group].begun_ns = self.now_ns();
            }
            None => self.parts[token] = None,
        }
        self.parts[token].is_some()
    }

    /// Starts a member's part of a call.
    fn start(&mut self, rank: usize, number: usize, place: usize, id: GroupId) -> bool {
        let fabric = self.cluster().fabric().clone();
        let call = &self.records[number].call;
        let (input_bytes, result_bytes) = call.sizes(place);
        let mut filled = call.input(place);
        let in_place = call.is_in_place(place);
        let mut initial = vec![CANARY; result_bytes + TAIL_BYTES];
        if call.operation == Operation::Broadcast && place == call.root {
            initial[..result_bytes].copy_from_slice(&call.data(place, 0));
        }
        if in_place {
            initial.resize(input_bytes.max(result_bytes) + TAIL_BYTES, CANARY);
            initial[..input_bytes].copy_from_slice(&filled);
            filled.clear();
        }
        let result = fabric.alloc_of(rank, initial.len(), |memory| memory.extend_from_slice(&initial));
        let input =
            (!in_place).then(|| fabric.alloc_of(rank, filled.len(), |memory| memory.extend_from_slice(&filled)));
        let cut = |buffer: Buffer, len| if len == 0 { Iov::EMPTY } else { buffer.part(0, len).iov() };
        let token = self.parts.len();
        let op = CollectiveOp {
            group: id,
            operation: call.operation,
            root: u32::try_from(call.root).unwrap_or(0),
            count: call.count,
            elements: call.elements,
            input: cut(input.unwrap_or(result), input_bytes),
            result: cut(result, result_bytes),
            ctx: context(token),
            flags: OpFlags::empty(),
        };
        let Some(engine) = self.cluster().engine(rank) else { return true };
        // Each second call may end inside.
        let performed = if token.is_multiple_of(2) {
            engine.perform_collective(&op, u32::try_from(token % 5).unwrap_or(0))
        } else {
            Ok(Performed::Refused)
        };
        let outcome = match performed {
            Ok(Performed::Refused) => engine.start_collective(&op),
            _ => performed.map(|_| ()),
        };
        let group = self.records[number].group;
        if outcome == Err(Error::NotConnected) && self.groups[group].memberships[place] == Membership::Joining(id) {
            // The join has failed, and its completion will be taken next.
            input.into_iter().chain([result]).for_each(|buffer| fabric.free(buffer));
            return false;
        }
        if self.accepts(rank, token, outcome).is_none() {
            input.into_iter().chain([result]).for_each(|buffer| fabric.free(buffer));
            return false;
        }
        let started_ns = fabric.now_ns();
        self.parts.push(Some(Part { rank, group, place, started_ns, call: Some((number, result, input)) }));
        self.records[number].started[place] = true;
        self.records[number].started_ns = fabric.now_ns();
        if performed == Ok(Performed::Ended) {
            self.completed(rank, &Completion::new(Kind::Collective, context(token), CompletionFlags::empty()));
        }
        true
    }

    // ---- completions -------------------------------------------------------------------------

    fn completed(&mut self, rank: usize, completion: &Completion) {
        let token = completion.ctx.ptr;
        let failed = completion.fault.is_some();
        let now_ns = self.now_ns();
        self.cluster().fabric().record(TraceEvent::Complete, rank, token as u64, 0, &[u8::from(failed)]);
        let part = self.parts.get_mut(token).and_then(Option::take);
        let Some(part) = part.filter(|part| part.rank == rank && completion.ctx == context(token)) else {
            return self.complain(format!("rank {rank}: completion of no part that is under way: {completion:?}"));
        };
        if failed && self.groups[part.group].disturbed_ns.is_none() && !self.refuses {
            self.complain(format!("rank {rank}: failed without a fault: {completion:?}, {part:?}"));
        }
        let Part { group, place, call, .. } = part;
        if failed {
            self.groups[group].failed_ns.get_or_insert(now_ns);
            let membership = &mut self.groups[group].memberships[place];
            if let (true, Membership::Joined(id)) = (self.gives_up, *membership) {
                *membership = Membership::GivenUp(id);
            }
        }
        match (completion.kind, call) {
            (Kind::Joined, None) => {
                let membership = &mut self.groups[group].memberships[place];
                *membership = match *membership {
                    Membership::Joining(id) if !failed => Membership::Joined(id),
                    _ => Membership::Refused,
                };
                if failed {
                    self.groups[group].disturbed_ns = Some(now_ns);
                }
            }
            (Kind::Collective, Some((number, result, input))) => {
                self.records[number].ended[place] = true;
                if let Some(wrong) = self.check(number, place, (result, input), failed) {
                    let record = &self.records[number];
                    let what = format!("rank {rank}, place {place}: {wrong}: {record:?} in {:?}", self.groups[group]);
                    self.complain(what);
                }
                let fabric = self.cluster().fabric().clone();
                input.into_iter().chain([result]).for_each(|buffer| fabric.free(buffer));
            }
            _ => self.complain(format!("rank {rank}: completion of another kind: {completion:?}")),
        }
    }

    /// The mistake in the buffers of a part that has ended, if there is one.
    fn check(
        &self,
        number: usize,
        place: usize,
        (result, input): (Buffer, Option<Buffer>),
        failed: bool,
    ) -> Option<&'static str> {
        let Record { call, started, .. } = &self.records[number];
        let bytes = result.bytes();
        let (input_bytes, result_bytes) = call.sizes(place);
        let whole = if input.is_some() { result_bytes } else { input_bytes.max(result_bytes) };
        if bytes.get(whole..).is_none_or(|tail| tail.iter().any(|&byte| byte != CANARY)) {
            return Some("bytes behind the result were written");
        }
        if input.is_some_and(|input| input.bytes() != call.input(place)) {
            return Some("the input was written");
        }
        if failed {
            return None;
        }
        if call.synchronizes() && started.contains(&false) {
            return Some("left before all had entered");
        }
        (bytes[..result_bytes] != call.expected(place)).then_some("wrong result")
    }
}

/// The context of a part.
const fn context(token: usize) -> Context {
    Context { ptr: token, user: !(token as u64) }
}
