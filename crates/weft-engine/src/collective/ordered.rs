//! Reductions that combine only neighbours in rank order, for operations that do not commute.
//!
//! Place in the data flow: clients of the engine compile these schedules, and pass them to `Engine::start_schedule`.
//!
//! Every value that is combined stands for a run of consecutive ranks. The left operand is that of the lower ranks, so
//! that the result is the one of a sequential reduction, if the operation associates.

use super::builder::Builder;
use super::{Operation, Refusal, Request, Schedule, Span};

/// The values that member r receives in a scan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    /// Those of members 0 to r.
    Inclusive,
    /// Those of members 0 to r − 1. Member 0 gets no result.
    Exclusive,
}

/// The schedule of an allreduce, reduce or reduce-scatter that combines neighbours.
///
/// # Errors
/// As [`super::compile`]; `NoSuchRank` also for other operations.
pub fn compile_ordered(request: &Request) -> Result<Schedule, Refusal> {
    request.check()?;
    let mut builder = Builder::new(*request);
    match request.operation {
        _ if request.count == 0 => {}
        Operation::AllReduce => all_reduce(&mut builder),
        Operation::Reduce => reduce(&mut builder),
        Operation::ReduceScatter => reduce_scatter(&mut builder),
        _ => return Err(Refusal::NoSuchRank),
    }
    builder.finish()
}

/// The schedule of a scan. Input and result hold one block, as in an allreduce.
///
/// # Errors
/// As [`super::compile`].
pub fn compile_scan(request: &Request, prefix: Prefix) -> Result<Schedule, Refusal> {
    request.check()?;
    let mut builder = Builder::new(*request);
    if request.count > 0 {
        scan(&mut builder, prefix);
    }
    builder.finish()
}

/// A binomial tree whose subtrees are runs of ranks. It ends at member 0, with the result in `sum`.
fn climb(builder: &mut Builder, sum: Span) {
    let Request { rank, members, .. } = builder.request();
    let other = builder.scratch(sum.len);
    builder.load_input(sum);
    for distance in distances(members) {
        if rank & distance != 0 {
            let departure = builder.send(rank - distance, sum);
            return builder.wait(departure);
        }
        if distance < members - rank {
            let arrival = builder.receive(rank + distance, other);
            builder.wait(arrival);
            builder.reduce(other, sum, false);
        }
    }
}

/// 1, 2, 4, … below the number of members.
fn distances(members: u32) -> impl DoubleEndedIterator<Item = u32> + Clone {
    (0..32).map(|bit| 1_u32 << bit).take(members.next_power_of_two().trailing_zeros() as usize)
}

fn all_reduce(builder: &mut Builder) {
    let Request { rank, members, .. } = builder.request();
    let result = builder.result(builder.request().block());
    climb(builder, result);
    if rank > 0 {
        let arrival = builder.receive(rank & (rank - 1), result);
        builder.wait(arrival);
    }
    for child in super::broadcast::children(rank, members) {
        _ = builder.send(child, result);
    }
}

fn reduce(builder: &mut Builder) {
    let request = builder.request();
    let block = request.block();
    let is_root = request.rank == request.root;
    let sum = if is_root { builder.result(block) } else { builder.scratch(block) };
    climb(builder, sum);
    if request.root != 0 && request.rank == 0 {
        _ = builder.send(request.root, sum);
    } else if request.root != 0 && is_root {
        let arrival = builder.receive(0, sum);
        builder.wait(arrival);
    }
}

/// Every member receives its block of all inputs, and folds them from the right.
fn reduce_scatter(builder: &mut Builder) {
    let request = builder.request();
    let Request { rank, members, .. } = request;
    let block = request.block();
    let input = builder.input(request.blocks());
    let all = builder.scratch(request.blocks());
    let slot = |rank: u32| all.part(rank as usize * block, block);
    let own = |rank: u32| input.part(rank as usize * block, block);
    builder.copy(own(rank), slot(rank));
    let mut arrivals = Vec::new();
    for distance in 1..members {
        let (to, from) = ((rank + distance) % members, (rank + members - distance) % members);
        arrivals.push(builder.receive(from, slot(from)));
        _ = builder.send(to, own(to));
    }
    for arrival in arrivals {
        builder.wait(arrival);
    }
    let last = slot(members - 1);
    for lower in (0..members - 1).rev() {
        builder.reduce(slot(lower), last, true);
    }
    let result = builder.result(block);
    builder.copy(last, result);
}

/// In the round of distance d each member passes what it has, the values of d consecutive ranks, d ranks up.
fn scan(builder: &mut Builder, prefix: Prefix) {
    let request = builder.request();
    let Request { rank, members, .. } = request;
    let block = request.block();
    let result = builder.result(block);
    let (sum, other) = (builder.scratch(block), builder.scratch(block));
    let input = Span { buffer: super::Buffer::Input, offset: 0, len: block };
    builder.copy(input, sum);
    let mut has_result = false;
    for distance in distances(members) {
        let departure = (distance < members - rank).then(|| builder.send(rank + distance, sum));
        let arrival = (distance <= rank).then(|| builder.receive(rank - distance, other));
        // The sum changes only after it has left.
        for transfer in departure.into_iter().chain(arrival) {
            builder.wait(transfer);
        }
        if arrival.is_none() {
            continue;
        }
        builder.reduce(other, sum, true);
        if prefix == Prefix::Exclusive {
            if has_result {
                builder.reduce(other, result, true)
            } else {
                builder.copy(other, result)
            }
            has_result = true;
        }
    }
    if prefix == Prefix::Inclusive {
        builder.copy(sum, result);
    }
}
