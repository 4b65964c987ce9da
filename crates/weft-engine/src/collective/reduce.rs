//! Reductions: allreduce, reduce and reduce-scatter, all along the tree of [`super::tree`].
//!
//! Place in the data flow: called by [`super::compile_as`].
//!
//! Members from the largest power of two on are *extra*. They send their input to a core member first. If they
//! have a result, they receive it last.

use super::builder::Builder;
use super::tree::{core_members, pairs};
use super::{Algorithm, Request, Span};

/// The schedule of an allreduce.
pub(super) fn all_reduce(builder: &mut Builder, algorithm: Algorithm) {
    let result = builder.result(builder.request().block());
    match algorithm {
        Algorithm::Halving => {
            let Some(group) = enter(builder, result) else { return leave(builder, result) };
            let kept = halve(builder, group, result);
            join(builder, group, result, &kept);
        }
        _ => {
            let Some(group) = enter(builder, result) else { return leave(builder, result) };
            double(builder, group, result);
        }
    }
    leave(builder, result);
}

/// The schedule of a reduce.
pub(super) fn reduce(builder: &mut Builder, algorithm: Algorithm) {
    let request = builder.request();
    let block = request.block();
    let is_root = request.rank == request.root;
    let sum = if is_root { builder.result(block) } else { builder.scratch(block) };
    // An extra root receives the result from its core member.
    let core = core_members(request.members);
    let target = if request.root < core { request.root } else { request.root - core };
    if let Some(group) = enter(builder, sum) {
        match algorithm {
            Algorithm::Halving => {
                let kept = halve(builder, group, sum);
                collect(builder, group, sum, &kept, target);
            }
            _ => climb(builder, group, sum, target),
        }
        if request.rank == target && target != request.root {
            _ = builder.send(request.root, sum);
        }
    } else if is_root {
        let arrival = builder.receive(target, sum);
        builder.wait(arrival);
    }
}

/// The schedule of a reduce-scatter.
pub(super) fn reduce_scatter(builder: &mut Builder, algorithm: Algorithm) {
    let request = builder.request();
    match algorithm {
        Algorithm::Direct => exchange_and_fold(builder, &request),
        _ => {
            let sum = builder.scratch(request.blocks());
            if let Some(group) = enter(builder, sum) {
                double(builder, group, sum);
            }
            leave(builder, sum);
            let own = sum.part(request.rank as usize * request.block(), request.block());
            let result = builder.result(request.block());
            builder.copy(own, result);
        }
    }
}

/// The members that take part in the rounds: their number is a power of two.
#[derive(Clone, Copy)]
struct Core {
    rank: u32,
    members: u32,
    /// Bytes of one element: ranges are split between elements.
    element: usize,
}

impl Core {
    fn bits(self) -> impl DoubleEndedIterator<Item = u32> {
        0..self.members.ilog2()
    }

    /// The partner in the round of this bit, and whether that is the lower rank.
    const fn partner(self, bit: u32) -> (u32, bool) {
        let partner = self.rank ^ (1 << bit);
        (partner, partner < self.rank)
    }
}

/// Loads the input into `sum` and folds the extra member's in. Extra members send theirs and get `None`.
fn enter(builder: &mut Builder, sum: Span) -> Option<Core> {
    let Request { rank, members, element, .. } = builder.request();
    let core = core_members(members);
    builder.load_input(sum);
    if rank >= core {
        let departure = builder.send(rank - core, sum);
        builder.wait(departure);
        return None;
    }
    if rank + core < members {
        let other = builder.scratch(sum.len);
        let arrival = builder.receive(rank + core, other);
        builder.wait(arrival);
        builder.reduce(other, sum, false);
    }
    Some(Core { rank, members: core, element })
}

/// Hands the result to the extra member, or receives it as one.
fn leave(builder: &mut Builder, sum: Span) {
    let Request { rank, members, .. } = builder.request();
    let core = core_members(members);
    if rank >= core {
        let arrival = builder.receive(rank - core, sum);
        builder.wait(arrival);
    } else if rank + core < members {
        _ = builder.send(rank + core, sum);
    }
}

/// Recursive doubling: both partners of each round exchange and combine the whole range.
fn double(builder: &mut Builder, group: Core, sum: Span) {
    let other = builder.scratch(sum.len);
    for bit in group.bits() {
        let (partner, is_lower) = group.partner(bit);
        builder.exchange(partner, sum, partner, other);
        builder.reduce(other, sum, is_lower);
    }
}

/// A binomial tree that ends at `target`. In each round only the members that agree with `target` in all earlier
/// bits take part. Of each pair, the member that agrees in the next bit receives.
fn climb(builder: &mut Builder, group: Core, sum: Span, target: u32) {
    let other = builder.scratch(sum.len);
    for bit in group.bits() {
        let (partner, is_lower) = group.partner(bit);
        if (group.rank ^ target) & (1 << bit) != 0 {
            _ = builder.send(partner, sum);
            return;
        }
        let arrival = builder.receive(partner, other);
        builder.wait(arrival);
        builder.reduce(other, sum, is_lower);
    }
}

/// Reduce-scatter by halving, bit 0 first: each round keeps the half of the range that belongs to the own bit.
/// Returns the ranges before each round and the last one.
fn halve(builder: &mut Builder, group: Core, sum: Span) -> Vec<Span> {
    let mut kept = vec![sum];
    let mut range = sum;
    let other = builder.scratch(sum.len);
    for bit in group.bits() {
        let (partner, is_lower) = group.partner(bit);
        let (low, high) = split(range, group.element);
        let (keep, give) = if is_lower { (high, low) } else { (low, high) };
        let room = other.part(keep.offset - sum.offset, keep.len);
        builder.exchange(partner, give, partner, room);
        builder.reduce(room, keep, is_lower);
        range = keep;
        kept.push(range);
    }
    kept
}

/// The reverse of [`halve`]: partners exchange what they hold until each holds the whole range.
fn join(builder: &mut Builder, group: Core, sum: Span, kept: &[Span]) {
    for bit in group.bits().rev() {
        let (whole, own) = (kept[bit as usize], kept[bit as usize + 1]);
        let (partner, is_lower) = group.partner(bit);
        let (low, high) = split(whole, group.element);
        let theirs = if is_lower { low } else { high };
        debug_assert!(own.offset >= sum.offset, "ranges lie in the sum");
        builder.exchange(partner, own, partner, theirs);
    }
}

/// The reverse of [`halve`] along a tree that ends at `target`.
fn collect(builder: &mut Builder, group: Core, sum: Span, kept: &[Span], target: u32) {
    for bit in group.bits().rev() {
        let (whole, own) = (kept[bit as usize], kept[bit as usize + 1]);
        let (partner, is_lower) = group.partner(bit);
        // A member that differs from the target in a higher bit has already passed its range on.
        if (group.rank ^ target) & (1 << bit) != 0 {
            _ = builder.send(partner, own);
            return;
        }
        let (low, high) = split(whole, group.element);
        let theirs = if is_lower { low } else { high };
        debug_assert!(theirs.offset >= sum.offset, "ranges lie in the sum");
        let arrival = builder.receive(partner, theirs);
        builder.wait(arrival);
    }
}

/// Both halves of a range, split between two elements.
const fn split(range: Span, element: usize) -> (Span, Span) {
    let middle = range.len / element / 2 * element;
    (range.part(0, middle), range.part(middle, range.len - middle))
}

/// Every member receives its block of all inputs and folds them along the tree.
fn exchange_and_fold(builder: &mut Builder, request: &Request) {
    let (block, members) = (request.block(), request.members);
    let input = builder.input(request.blocks());
    let all = builder.scratch(request.blocks());
    let slot = |rank: u32| all.part(rank as usize * block, block);
    builder.copy(input.part(request.rank as usize * block, block), slot(request.rank));
    let mut arrivals = Vec::new();
    for distance in 1..members {
        let (to, from) = ((request.rank + distance) % members, (request.rank + members - distance) % members);
        arrivals.push(builder.receive(from, slot(from)));
        _ = builder.send(to, input.part(to as usize * block, block));
    }
    for arrival in arrivals {
        builder.wait(arrival);
    }
    for (low, high) in pairs(members) {
        builder.reduce(slot(high), slot(low), false);
    }
    let result = builder.result(block);
    builder.copy(slot(0), result);
}
