//! The schedules of a collective as steps, for any number of ranks.
//!
//! Place in the data flow: each rank's schedule comes from `weft_engine::collective::compile`, the compiler of the
//! provider, and is used as it is. A million of them would need gigabytes. Ranks whose schedules differ only in the
//! ranks that they name share one: a partner is kept as its distance from the own rank, or as the bits in which the
//! two differ. [`Collective::compile`] compiles every rank and compares, so sharing loses nothing.

use std::thread;

use rustc_hash::FxHashMap;
use weft_engine::collective::{Algorithm, Operation, Overlap, Refusal, Request, Schedule, Task, compile_as, select};

use crate::step::{Arrival, Programs, Step};

/// Ranks whose schedules are compared before the relation to partners is chosen.
const SAMPLE: u32 = 64;

/// How the partners of a rank are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Relation {
    /// The distance upwards, around the end.
    Distance,
    /// The bits that differ.
    Bits,
}

impl Relation {
    const fn of(self, (rank, partner): (u32, u32), members: u32) -> u32 {
        match self {
            Self::Distance if partner >= rank => partner - rank,
            Self::Distance => partner + (members - rank),
            Self::Bits => partner ^ rank,
        }
    }

    const fn partner(self, (rank, relative): (u32, u32), members: u32) -> u32 {
        match self {
            Self::Distance if relative < members - rank => rank + relative,
            Self::Distance => relative - (members - rank),
            Self::Bits => rank ^ relative,
        }
    }
}

/// Steps that ranks share. Partners are relative.
#[derive(Debug, PartialEq, Eq)]
struct Shared {
    steps: Vec<Step>,
    /// The sender and the number of each arrival, in the order of ordinals.
    arrivals: Vec<(u32, u32, u64)>,
    /// The place in `arrivals` by sender and number.
    index: FxHashMap<(u32, u32), u32>,
}

/// One collective of all ranks: the programs of a simulation.
#[derive(Debug)]
pub struct Collective {
    request: Request,
    relation: Relation,
    shared: Vec<Shared>,
    /// The number of each rank's steps in `shared`.
    of_rank: Vec<u32>,
    most_arrivals: u32,
    most_tasks: usize,
}

/// A collective without buffers or a root: the operation of all members at a size.
#[must_use]
pub const fn request(operation: Operation, members: u32, bytes: usize) -> Request {
    let element = if operation.reduces() && bytes.is_multiple_of(8) { 8 } else { 1 };
    Request { operation, rank: 0, members, root: 0, count: bytes / element, element, overlap: Overlap::None }
}

impl Collective {
    /// Compiles the schedules of all ranks. The request's rank is ignored. Without an algorithm, the size selects it as
    /// in the provider.
    ///
    /// # Errors
    /// The compiler refuses the request.
    pub fn compile(request: Request, algorithm: Option<Algorithm>) -> Result<Self, Refusal> {
        let algorithm = algorithm.unwrap_or_else(|| select(&request));
        let schedule = |rank| compile_as(&Request { rank, ..request }, algorithm);
        let relation = relation(request.members, schedule)?;
        let cores = u32::try_from(thread::available_parallelism().map_or(1, usize::from)).unwrap_or(1);
        let part = request.members.div_ceil(cores).max(1);
        let parts = thread::scope(|scope| {
            let starts = (0..request.members).step_by(part as usize);
            let threads: Vec<_> = starts
                .map(|start| {
                    let ranks = start..start.saturating_add(part).min(request.members);
                    scope.spawn(move || Interned::new(ranks, relation, request.members, schedule))
                })
                .collect();
            threads.into_iter().map(|part| part.join().unwrap_or(Err(Refusal::TooLong))).collect::<Vec<_>>()
        });
        let mut whole = Interned::default();
        for part in parts {
            whole.append(part?);
        }
        let Interned { shared, of_rank, most_tasks, .. } = whole;
        let most_arrivals = shared.iter().map(|shared| shared.arrivals.len()).max().unwrap_or(0);
        let most_arrivals = u32::try_from(most_arrivals).unwrap_or(u32::MAX);
        Ok(Self { request, relation, shared, of_rank, most_arrivals, most_tasks })
    }

    /// How many schedules differ by more than the ranks that they name.
    #[must_use]
    pub const fn distinct(&self) -> usize {
        self.shared.len()
    }

    /// The tasks of the longest schedule, as the compiler counts them.
    #[must_use]
    pub const fn most_tasks(&self) -> usize {
        self.most_tasks
    }

    /// How many messages all ranks send together.
    #[must_use]
    pub fn messages(&self) -> u64 {
        let sends =
            |shared: &Shared| shared.steps.iter().filter(|step| matches!(step, Step::Send { .. })).count() as u64;
        let of_shared: Vec<u64> = self.shared.iter().map(sends).collect();
        self.of_rank.iter().map(|&number| of_shared[number as usize]).sum()
    }

    #[inline]
    fn shared(&self, rank: u32) -> Option<&Shared> {
        match self.shared.as_slice() {
            // All ranks share one schedule. The list of all ranks would not fit into the processor's cache.
            [only] => Some(only),
            all => all.get(*self.of_rank.get(rank as usize)? as usize),
        }
    }

    fn partner(&self, ends: (u32, u32)) -> u32 {
        self.relation.partner(ends, self.request.members)
    }
}

impl Programs for Collective {
    fn ranks(&self) -> u32 {
        self.request.members
    }

    fn step(&self, rank: u32, index: u32) -> Option<Step> {
        let step = *self.shared(rank)?.steps.get(index as usize)?;
        Some(match step {
            Step::Send { to, number, bytes } => Step::Send { to: self.partner((rank, to)), number, bytes },
            Step::Wait { from, ordinal } => Step::Wait { from: self.partner((rank, from)), ordinal },
            other => other,
        })
    }

    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival> {
        let relative = self.relation.of((rank, from), self.request.members);
        let shared = self.shared(rank)?;
        let ordinal = *shared.index.get(&(relative, number))?;
        let &(_, _, bytes) = shared.arrivals.get(ordinal as usize)?;
        Some(Arrival { ordinal, bytes })
    }

    fn most_arrivals(&self) -> u32 {
        self.most_arrivals
    }
}

/// The relation by which more of the first ranks share their steps.
fn relation(members: u32, schedule: impl Fn(u32) -> Result<Schedule, Refusal> + Copy) -> Result<Relation, Refusal> {
    let ranks = 0..SAMPLE.min(members);
    let distance = Interned::new(ranks.clone(), Relation::Distance, members, schedule)?.shared.len();
    let bits = Interned::new(ranks, Relation::Bits, members, schedule)?.shared.len();
    Ok(if bits < distance { Relation::Bits } else { Relation::Distance })
}

/// Schedules of a range of ranks, each kept once.
#[derive(Debug, Default)]
struct Interned {
    shared: Vec<Shared>,
    numbers: FxHashMap<Vec<Step>, Vec<u32>>,
    of_rank: Vec<u32>,
    most_tasks: usize,
}

impl Interned {
    fn new(
        ranks: std::ops::Range<u32>,
        relation: Relation,
        members: u32,
        schedule: impl Fn(u32) -> Result<Schedule, Refusal>,
    ) -> Result<Self, Refusal> {
        let mut interned = Self::default();
        for rank in ranks {
            let schedule = schedule(rank)?;
            interned.most_tasks = interned.most_tasks.max(schedule.tasks().len());
            let (steps, arrivals) = steps(&schedule, |partner| relation.of((rank, partner), members));
            let number = interned.number(steps, arrivals);
            interned.of_rank.push(number);
        }
        Ok(interned)
    }

    /// The number of these steps, which are added if they are new.
    fn number(&mut self, steps: Vec<Step>, arrivals: Vec<(u32, u32, u64)>) -> u32 {
        // Equal steps may belong to different senders.
        let known = self.numbers.get(&steps).into_iter().flatten();
        for &number in known {
            if self.shared[number as usize].arrivals == arrivals {
                return number;
            }
        }
        let number = u32::try_from(self.shared.len()).unwrap_or(u32::MAX);
        self.numbers.entry(steps.clone()).or_default().push(number);
        let index = arrivals.iter().zip(0..).map(|(&(from, count, _), ordinal)| ((from, count), ordinal)).collect();
        self.shared.push(Shared { steps, arrivals, index });
        number
    }

    /// Adds the schedules of the ranks that follow.
    fn append(&mut self, other: Self) {
        let numbers: Vec<u32> =
            other.shared.into_iter().map(|shared| self.number(shared.steps, shared.arrivals)).collect();
        self.of_rank.extend(other.of_rank.into_iter().map(|number| numbers[number as usize]));
        self.most_tasks = self.most_tasks.max(other.most_tasks);
    }
}

/// The steps of a schedule and its arrivals. Posting a receive is no step: it takes place before the message comes.
fn steps(schedule: &Schedule, relative: impl Fn(u32) -> u32) -> (Vec<Step>, Vec<(u32, u32, u64)>) {
    let (mut steps, mut arrivals, mut ordinals) = (vec![Step::Call], Vec::new(), FxHashMap::default());
    let mut awaited = Vec::new();
    let mut pending = false;
    for (task, index) in schedule.tasks().iter().zip(0_u32..) {
        match *task {
            Task::Send { to, number, at } => {
                pending |= at.len > 0;
                steps.push(Step::Send { to: relative(to), number, bytes: at.len as u64 });
            }
            Task::Receive { from, number, at } => {
                ordinals.insert(index, arrivals.len());
                awaited.push(false);
                arrivals.push((relative(from), number, at.len as u64));
            }
            Task::Wait { task } => match ordinals.get(&task) {
                Some(&ordinal) => {
                    awaited[ordinal] = true;
                    steps.push(wait(&arrivals, ordinal));
                }
                None if pending => {
                    pending = false;
                    steps.push(Step::Drain);
                }
                None => {}
            },
            Task::Reduce { from, .. } => steps.push(Step::Reduce { bytes: from.len as u64 }),
            Task::Copy { from, .. } => steps.push(Step::Copy { bytes: from.len as u64 }),
        }
    }
    // A schedule is complete when all its transfers are.
    let open = awaited.iter().enumerate().filter(|(_, awaited)| !**awaited);
    steps.extend(open.map(|(ordinal, _)| wait(&arrivals, ordinal)));
    if pending {
        steps.push(Step::Drain);
    }
    (steps, arrivals)
}

fn wait(arrivals: &[(u32, u32, u64)], ordinal: usize) -> Step {
    Step::Wait { from: arrivals[ordinal].0, ordinal: u32::try_from(ordinal).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// The steps that a rank has by the compiler alone.
    fn expected(request: &Request, rank: u32) -> (Vec<Step>, Vec<(u32, u32, u64)>) {
        let schedule = compile_as(&Request { rank, ..*request }, select(request)).unwrap();
        steps(&schedule, |partner| partner)
    }

    #[test]
    fn shared_steps_are_those_of_the_compiler() {
        for operation in Operation::ALL {
            for (members, bytes) in [(1, 8), (2, 8), (7, 64), (16, 100_000), (33, 8), (48, 4096)] {
                let request = request(operation, members, bytes);
                let collective = Collective::compile(request, None).unwrap();
                for rank in 0..members {
                    let (steps, arrivals) = expected(&request, rank);
                    let ours: Vec<Step> = (0..).map_while(|index| collective.step(rank, index)).collect();
                    assert_eq!(ours, steps, "{operation:?} of {members}, rank {rank}");
                    for (ordinal, &(from, number, bytes)) in (0..).zip(&arrivals) {
                        assert_eq!(collective.arrival(rank, from, number), Some(Arrival { ordinal, bytes }));
                    }
                }
            }
        }
    }

    #[test]
    fn many_ranks_share_few_schedules() {
        let distinct = |operation, members| {
            Collective::compile(request(operation, members, 8), None).map(|collective| collective.distinct())
        };
        assert_eq!(distinct(Operation::Barrier, 3000), Ok(1));
        assert_eq!(distinct(Operation::AllReduce, 4096), Ok(1));
        assert_eq!(distinct(Operation::AllReduce, 3000), Ok(3));
        assert!(distinct(Operation::Broadcast, 4096).unwrap() <= 13);
    }

    #[test]
    fn long_schedules_are_refused() {
        let refused = Collective::compile(request(Operation::AllGather, 8192, 64), None);
        assert_eq!(refused.err(), Some(Refusal::TooManyTasks));
    }
}
