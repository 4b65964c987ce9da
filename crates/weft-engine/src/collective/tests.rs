//! Runs the schedules of all members against each other, with messages delivered in random order.

#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::sync::Arc;

use super::tree::fold;
use super::{
    Algorithm, Buffer, Extent, MAX_TASKS, Next, Operation, Order, Overlap, Prefix, Refusal, Request, Run, Schedule,
    Span, Task, compile, compile_as, compile_ordered, compile_scan, compile_uneven,
};

const ELEMENT: usize = 8;
/// A value that no schedule may write, behind each buffer.
const CANARY: u64 = 0xC0DE_C0DE_C0DE_C0DE;

const ALGORITHMS: [Algorithm; 9] = [
    Algorithm::Dissemination,
    Algorithm::RecursiveDoubling,
    Algorithm::Halving,
    Algorithm::Binomial,
    Algorithm::Pipeline,
    Algorithm::ScatterRing,
    Algorithm::Bruck,
    Algorithm::Ring,
    Algorithm::Direct,
];

/// An operation that neither commutes nor associates: its result shows the whole tree.
fn combine(first: u64, second: u64) -> u64 {
    first.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(23) ^ second.wrapping_mul(0xD6E8_FEB8_6659_FD93)
}

fn input(rank: u32, element: usize) -> u64 {
    (u64::from(rank) << 32) | element as u64
}

/// A generator of numbers that are the same in every run.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// One member: its run and its memory, in elements.
struct Member {
    run: Run,
    input: Vec<u64>,
    /// Empty if input and result are one and the same memory.
    result: Vec<u64>,
    scratch: Vec<u64>,
    in_place: bool,
    combine: fn(u64, u64) -> u64,
    /// Receives that have been started, by sender and number.
    expected: HashMap<(u32, u32), (u32, Span)>,
}

impl Member {
    fn memory(&mut self, buffer: Buffer) -> &mut Vec<u64> {
        match buffer {
            Buffer::Input => &mut self.input,
            Buffer::Result if self.in_place => &mut self.input,
            Buffer::Result => &mut self.result,
            Buffer::Scratch => &mut self.scratch,
        }
    }

    fn read(&mut self, at: Span) -> Vec<u64> {
        self.memory(at.buffer)[at.offset / ELEMENT..(at.offset + at.len) / ELEMENT].to_vec()
    }

    fn write(&mut self, at: Span, data: &[u64]) {
        assert_eq!(at.len, data.len() * ELEMENT, "a message has the length of its room");
        self.memory(at.buffer)[at.offset / ELEMENT..(at.offset + at.len) / ELEMENT].copy_from_slice(data);
    }
}

/// A message under way. It is read when it is delivered, as a zero-copy transport would.
struct Message {
    from: u32,
    to: u32,
    number: u32,
    at: Span,
    task: u32,
}

fn sizes(operation: Operation, members: usize) -> (usize, usize) {
    match operation {
        Operation::Barrier => (0, 0),
        Operation::Broadcast => (0, 1),
        Operation::AllToAll => (members, members),
        Operation::AllReduce | Operation::Reduce => (1, 1),
        Operation::AllGather | Operation::Gather => (1, members),
        Operation::ReduceScatter | Operation::Scatter => (members, 1),
    }
}

fn member(request: Request, algorithm: Option<Algorithm>) -> Member {
    let schedule = algorithm.map_or_else(|| compile(&request), |algorithm| compile_as(&request, algorithm)).unwrap();
    member_with(request, schedule, combine)
}

fn member_with(request: Request, schedule: Schedule, combine: fn(u64, u64) -> u64) -> Member {
    let (inputs, results) = sizes(request.operation, request.members as usize);
    let in_place = request.overlap == Overlap::Same;
    let mut memory: Vec<u64> = (0..inputs * request.count).map(|element| input(request.rank, element)).collect();
    let mut result = vec![0; results * request.count];
    if request.operation == Operation::Broadcast && request.rank == request.root {
        result = (0..request.count).map(|element| input(request.root, element)).collect();
    }
    if in_place && memory.len() < result.len() {
        memory.resize(result.len(), 0);
    }
    memory.push(CANARY);
    result.push(CANARY);
    let mut scratch = vec![0; schedule.scratch() / ELEMENT];
    scratch.push(CANARY);
    let run = Run::new(Arc::new(schedule));
    Member { run, input: memory, result, scratch, in_place, combine, expected: HashMap::new() }
}

/// Performs tasks of one member until it blocks. Returns whether it is done.
fn step(members: &mut [Member], rank: usize, under_way: &mut Vec<Message>) -> bool {
    let one = &mut members[rank];
    loop {
        match one.run.next_task() {
            Next::Blocked => return false,
            Next::Done => return true,
            Next::Perform(task, Task::Send { to, number, at }) => {
                one.run.started();
                under_way.push(Message { from: u32::try_from(rank).unwrap(), to, number, at, task });
            }
            Next::Perform(task, Task::Receive { from, number, at }) => {
                one.run.started();
                assert!(one.expected.insert((from, number), (task, at)).is_none(), "a number is used once");
            }
            Next::Perform(_, Task::Reduce { from, into, order }) => {
                let (other, own) = (one.read(from), one.read(into));
                let both = own.iter().zip(&other);
                let sum: Vec<u64> = match order {
                    Order::IntoFirst => both.map(|(&own, &other)| (one.combine)(own, other)).collect(),
                    Order::FromFirst => both.map(|(&own, &other)| (one.combine)(other, own)).collect(),
                };
                one.write(into, &sum);
                one.run.performed();
            }
            Next::Perform(_, Task::Copy { from, into }) => {
                let data = one.read(from);
                one.write(into, &data);
                one.run.performed();
            }
            Next::Perform(_, Task::Wait { .. }) => unreachable!("a run passes waits itself"),
        }
    }
}

/// Runs one collective at all members to its end.
fn run(requests: &[Request], algorithm: Option<Algorithm>, seed: u64) -> Vec<Member> {
    run_members(requests.iter().map(|&request| member(request, algorithm)).collect(), seed)
}

/// Runs the schedules of all members to their ends.
fn run_members(mut members: Vec<Member>, seed: u64) -> Vec<Member> {
    let mut numbers = Numbers(seed | 1);
    let mut under_way: Vec<Message> = Vec::new();
    let mut waiting: Vec<usize> = (0..members.len()).collect();
    let mut idle = 0;
    while !waiting.is_empty() || !under_way.is_empty() {
        idle += 1;
        assert!(idle < 1_000_000, "the members wait for each other");
        if !waiting.is_empty() {
            let chosen = numbers.below(waiting.len());
            if step(&mut members, waiting[chosen], &mut under_way) {
                waiting.swap_remove(chosen);
            }
        }
        if !under_way.is_empty() {
            let chosen = numbers.below(under_way.len());
            let Message { from, to, number, .. } = under_way[chosen];
            if let Some((task, room)) = members[to as usize].expected.remove(&(from, number)) {
                let message = under_way.swap_remove(chosen);
                let data = members[from as usize].read(message.at);
                members[to as usize].write(room, &data);
                members[to as usize].run.complete(task);
                members[from as usize].run.complete(message.task);
            }
        }
    }
    for one in &members {
        assert!(one.expected.is_empty(), "every receive had its message");
        assert_eq!(one.input.last(), Some(&CANARY), "nothing was written behind the input");
        assert_eq!(one.result.last(), Some(&CANARY), "nothing was written behind the result");
        assert_eq!(one.scratch.last(), Some(&CANARY), "nothing was written behind the scratch memory");
    }
    members
}

/// The result that a member must have, or `None` where it has none.
fn expected(request: &Request) -> Option<Vec<u64>> {
    let Request { operation, rank, members, root, count, .. } = *request;
    let tree = |element: usize| {
        let values: Vec<u64> = (0..members).map(|rank| input(rank, element)).collect();
        fold(values, combine).unwrap()
    };
    let block = |from: u32, place: u32| (0..count).map(move |element| input(from, place as usize * count + element));
    match operation {
        Operation::Barrier => Some(Vec::new()),
        Operation::Broadcast => Some(block(root, 0).collect()),
        Operation::AllToAll => Some((0..members).flat_map(|from| block(from, rank)).collect()),
        Operation::AllReduce => Some((0..count).map(tree).collect()),
        Operation::AllGather => Some((0..members).flat_map(|from| block(from, 0)).collect()),
        Operation::ReduceScatter => Some((0..count).map(|element| tree(rank as usize * count + element)).collect()),
        Operation::Reduce => (rank == root).then(|| (0..count).map(tree).collect()),
        Operation::Scatter => Some(block(root, rank).collect()),
        Operation::Gather => (rank == root).then(|| (0..members).flat_map(|from| block(from, 0)).collect()),
    }
}

fn requests(operation: Operation, members: u32, root: u32, count: usize, overlap: Overlap) -> Vec<Request> {
    (0..members).map(|rank| Request { operation, rank, members, root, count, element: ELEMENT, overlap }).collect()
}

fn check(operation: Operation, members: u32, root: u32, count: usize, overlap: Overlap, by: Option<Algorithm>) {
    let requests = requests(operation, members, root, count, overlap);
    let seed = u64::from(members) << 32 | u64::from(root) << 16 | count as u64;
    for (one, request) in run(&requests, by, seed).iter_mut().zip(&requests) {
        let Some(wanted) = expected(request) else { continue };
        let has = one.memory(Buffer::Result)[..wanted.len()].to_vec();
        assert_eq!(has, wanted, "{request:?} by {by:?}");
    }
}

fn roots(operation: Operation, members: u32) -> Vec<u32> {
    if operation.is_rooted() { (0..members).collect() } else { vec![0] }
}

#[test]
fn every_operation_gives_the_declared_result_for_every_member_count() {
    for operation in Operation::ALL {
        for members in (1..=17).chain([33]) {
            for root in roots(operation, members) {
                for count in [0, 1, 3, 40] {
                    check(operation, members, root, count, Overlap::None, None);
                }
            }
        }
    }
}

#[test]
fn every_algorithm_gives_the_same_result() {
    for operation in Operation::ALL {
        for algorithm in ALGORITHMS {
            for members in [1, 2, 3, 4, 5, 7, 8, 13, 16, 17] {
                for root in [0, members / 2, members - 1] {
                    for count in [1, 5, 64] {
                        check(operation, members, root, count, Overlap::None, Some(algorithm));
                    }
                }
            }
        }
    }
}

#[test]
fn long_buffers_are_split_into_segments_and_blocks() {
    for (operation, count) in [
        (Operation::Broadcast, 5_000),
        (Operation::Broadcast, 70_001),
        (Operation::AllReduce, 1_003),
        (Operation::Reduce, 1_003),
        (Operation::AllGather, 3_001),
        (Operation::Gather, 3_001),
        (Operation::Scatter, 3_001),
    ] {
        for members in [2, 3, 6, 9] {
            for root in roots(operation, members) {
                check(operation, members, root, count, Overlap::None, None);
            }
        }
    }
}

#[test]
fn the_input_and_the_result_may_be_one_buffer() {
    for operation in Operation::ALL {
        if operation == Operation::Broadcast {
            continue; // It has no input.
        }
        for algorithm in [None].into_iter().chain(ALGORITHMS.map(Some)) {
            for members in [1, 2, 3, 4, 6, 9] {
                for root in [0, members - 1] {
                    check(operation, members, root, 7, Overlap::Same, algorithm);
                }
            }
        }
    }
}

#[test]
fn no_member_leaves_a_barrier_before_all_have_entered() {
    for algorithm in [Algorithm::Dissemination, Algorithm::RecursiveDoubling] {
        for late in 0..9_u32 {
            let requests = requests(Operation::Barrier, 9, 0, 0, Overlap::None);
            let mut members: Vec<Member> = requests.iter().map(|&request| member(request, Some(algorithm))).collect();
            let mut under_way = Vec::new();
            for _ in 0..100 {
                for rank in (0..9).filter(|&rank| rank != late as usize) {
                    assert!(!step(&mut members, rank, &mut under_way), "{rank} left before {late} entered");
                }
                under_way.retain(|message: &Message| {
                    let Some((task, _)) = members[message.to as usize].expected.remove(&(message.from, message.number))
                    else {
                        return true;
                    };
                    members[message.to as usize].run.complete(task);
                    members[message.from as usize].run.complete(message.task);
                    false
                });
            }
        }
    }
}

/// Tables I to IV of the CORE-Direct paper: the barrier of four members by recursive doubling.
#[test]
fn the_barrier_of_four_has_the_papers_program() {
    let partners = |rank: u32| -> Vec<u32> {
        let requests = requests(Operation::Barrier, 4, 0, 0, Overlap::None);
        let schedule = compile_as(&requests[rank as usize], Algorithm::RecursiveDoubling).unwrap();
        let sends = schedule.tasks().iter().filter_map(|task| match task {
            Task::Send { to, .. } => Some(*to),
            _ => None,
        });
        sends.collect()
    };
    assert_eq!([0, 1, 2, 3].map(partners), [[1, 2], [0, 3], [3, 0], [2, 1]]);
}

#[test]
fn a_barrier_by_dissemination_has_logarithmically_many_rounds() {
    for (members, rounds) in [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (1024, 10), (1_000_000, 20)] {
        let request = Request {
            operation: Operation::Barrier,
            rank: members - 1,
            members,
            root: 0,
            count: 0,
            element: 1,
            overlap: Overlap::None,
        };
        let schedule = compile(&request).unwrap();
        assert_eq!(schedule.tasks().len(), 3 * rounds, "{members} members");
    }
}

#[test]
fn a_schedule_beyond_the_limit_is_refused() {
    let members = u32::try_from(MAX_TASKS).unwrap();
    let request = Request {
        operation: Operation::AllToAll,
        rank: 0,
        members,
        root: 0,
        count: 1000,
        element: ELEMENT,
        overlap: Overlap::None,
    };
    assert_eq!(compile(&request), Err(Refusal::TooManyTasks));
    assert_eq!(compile(&Request { rank: members, ..request }), Err(Refusal::NoSuchRank));
    assert_eq!(compile(&Request { count: usize::MAX / 2, ..request }), Err(Refusal::TooLong));
}

#[test]
fn the_tree_folds_extra_members_first() {
    let values: Vec<String> = (0..6).map(|rank| rank.to_string()).collect();
    let folded = fold(values, |first, second| format!("({first}{second})")).unwrap();
    assert_eq!(folded, "(((04)(15))(23))");
}

#[test]
fn a_run_can_be_restarted() {
    let requests = requests(Operation::Barrier, 1, 0, 0, Overlap::None);
    let mut run = Run::new(Arc::new(compile(&requests[0]).unwrap()));
    assert_eq!(run.next_task(), Next::Done);
    run.restart();
    assert_eq!(run.next_task(), Next::Done);
    assert_eq!(run.under_way(), 0);
}

/// The composition of two functions x ↦ a·x + b: it associates, and does not commute.
fn compose(first: u64, second: u64) -> u64 {
    let parts = |word: u64| [word, word >> 32].map(|half| u32::try_from(half & 0xffff_ffff).unwrap());
    let ([a, b], [c, d]) = (parts(first), parts(second));
    u64::from(a.wrapping_mul(c)) | u64::from(a.wrapping_mul(d).wrapping_add(b)) << 32
}

/// The sequential reduction of the inputs of some members.
fn sequential(ranks: std::ops::Range<u32>, element: usize) -> u64 {
    ranks.map(|rank| odd(rank, element)).reduce(compose).unwrap_or(0)
}

/// An input whose multiplier is odd, so that no part of the result is lost.
fn odd(rank: u32, element: usize) -> u64 {
    input(rank, element).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1
}

#[test]
fn operations_that_do_not_commute_have_the_sequential_result() {
    for members in (1..=9).chain([13, 16]) {
        for (overlap, count) in [(Overlap::None, 1), (Overlap::None, 40), (Overlap::Same, 7)] {
            for (operation, prefix) in [
                (Operation::AllReduce, None),
                (Operation::Reduce, None),
                (Operation::ReduceScatter, None),
                (Operation::AllReduce, Some(Prefix::Inclusive)),
                (Operation::AllReduce, Some(Prefix::Exclusive)),
            ] {
                for root in roots(operation, members) {
                    let requests = requests(operation, members, root, count, overlap);
                    let make = |request: &Request| {
                        let schedule = prefix
                            .map_or_else(|| compile_ordered(request), |prefix| compile_scan(request, prefix))
                            .unwrap();
                        let mut one = member_with(*request, schedule, compose);
                        let len = one.input.len() - 1;
                        let filled =
                            if overlap == Overlap::Same { sizes(operation, members as usize).0 * count } else { len };
                        (0..filled).for_each(|at| one.input[at] = odd(request.rank, at));
                        one
                    };
                    let mut all = run_members(requests.iter().map(make).collect(), u64::from(members) << 8 | 77);
                    for (one, request) in all.iter_mut().zip(&requests) {
                        let (first, end) = match (operation, prefix) {
                            (Operation::Reduce, _) if request.rank != root => continue,
                            (_, Some(Prefix::Inclusive)) => (0, request.rank + 1),
                            (_, Some(Prefix::Exclusive)) if request.rank == 0 => continue,
                            (_, Some(Prefix::Exclusive)) => (0, request.rank),
                            _ => (0, members),
                        };
                        let own = if operation == Operation::ReduceScatter { request.rank as usize * count } else { 0 };
                        let wanted: Vec<u64> = (0..count).map(|at| sequential(first..end, own + at)).collect();
                        assert_eq!(one.memory(Buffer::Result)[..count], wanted, "{request:?} {prefix:?}");
                    }
                }
            }
        }
    }
}

#[test]
fn blocks_of_different_lengths_reach_their_members() {
    let elements = |from: u32, to: u32| ((from * 3 + to * 5) % 4) as usize;
    for members in [1_u32, 2, 3, 9, 40] {
        let list = |len: &dyn Fn(u32) -> usize| -> Vec<Extent> {
            let mut at = 0;
            let one = (0..members).map(|other| {
                let len = len(other) * ELEMENT;
                at += len + ELEMENT;
                Extent::new(at - len, len)
            });
            one.collect()
        };
        let lists: Vec<_> =
            (0..members).map(|me| (list(&|other| elements(me, other)), list(&|other| elements(other, me)))).collect();
        let make = |me: u32| {
            let (given, taken) = &lists[me as usize];
            let count = 5 * members as usize;
            let overlap = Overlap::None;
            let request =
                Request { operation: Operation::Barrier, rank: me, members, root: 0, count, element: 8, overlap };
            let mut one = member_with(request, compile_uneven(me, given, taken, overlap).unwrap(), combine);
            one.input = (0..count).map(|at| input(me, at)).chain([CANARY]).collect();
            one.result = (0..count).map(|_| 0).chain([CANARY]).collect();
            one
        };
        for (me, mut one) in (0..members).zip(run_members((0..members).map(make).collect(), 5)) {
            for (from, at) in (0..members).zip(&lists[me as usize].1) {
                let given = lists[from as usize].0[me as usize];
                let wanted: Vec<u64> =
                    (0..at.bytes() / ELEMENT).map(|e| input(from, given.offset() / ELEMENT + e)).collect();
                assert_eq!(one.read(Span { buffer: Buffer::Result, offset: at.offset(), len: at.bytes() }), wanted);
            }
        }
    }
    let short = [Extent::new(0, 8)];
    assert_eq!(compile_uneven(0, &short, &[Extent::default()], Overlap::None), Err(Refusal::NoSuchRank));
    assert_eq!(compile_uneven(0, &[Extent::new(usize::MAX, 8)], &short, Overlap::None), Err(Refusal::TooLong));
}
