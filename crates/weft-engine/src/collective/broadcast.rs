//! Broadcasts: a binomial tree, a binary tree that forwards segments, and scatter with a ring.
//!
//! Place in the data flow: called by [`super::compile_as`]. Ranks here are relative to the root, which is 0.

use super::builder::Builder;
use super::{Algorithm, Span};

/// The length of a segment, in bytes. Memory and links work on different segments at the same time.
const SEGMENT: usize = 16 << 10;

/// The schedule of a broadcast.
pub(super) fn emit(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Pipeline => pipeline(builder),
        Algorithm::ScatterRing => scatter_ring(builder),
        _ => binomial(builder),
    }
}

fn binomial(builder: &mut Builder) {
    let request = builder.request();
    let (relative, members) = (request.relative(), request.members);
    let data = builder.result(request.block());
    if relative > 0 {
        let parent = relative & (relative - 1);
        let arrival = builder.receive(request.absolute(parent), data);
        builder.wait(arrival);
    }
    for child in children(relative, members) {
        _ = builder.send(request.absolute(child), data);
    }
}

/// The children of a member in the binomial tree over relative ranks, the one with the largest subtree first.
pub(super) fn children(relative: u32, members: u32) -> impl Iterator<Item = u32> {
    let below = if relative == 0 { 32 } else { relative.trailing_zeros() };
    (0..below)
        .rev()
        .filter_map(move |bit| relative.checked_add(1_u32.checked_shl(bit)?))
        .filter(move |&child| child < members)
}

/// A binary tree: member i receives from (i − 1) / 2 and forwards each segment as soon as it has arrived.
fn pipeline(builder: &mut Builder) {
    let request = builder.request();
    let (relative, members) = (request.relative(), request.members);
    let data = builder.result(request.block());
    // Long data get longer segments, so that the schedule stays within its limit.
    let segment = SEGMENT.max(data.len.div_ceil(512));
    let segments: Vec<Span> =
        (0..data.len).step_by(segment).map(|at| data.part(at, segment.min(data.len - at))).collect();
    let parent = relative.checked_sub(1).map(|below| request.absolute(below / 2));
    let arrivals: Vec<_> =
        parent.map_or_else(Vec::new, |parent| segments.iter().map(|&at| builder.receive(parent, at)).collect());
    let forward = [2 * u64::from(relative) + 1, 2 * u64::from(relative) + 2];
    for (number, &at) in segments.iter().enumerate() {
        if let Some(&arrival) = arrivals.get(number) {
            builder.wait(arrival);
        }
        for child in forward.into_iter().filter_map(|child| u32::try_from(child).ok()).filter(|&c| c < members) {
            _ = builder.send(request.absolute(child), at);
        }
    }
}

/// The root scatters one block per member by a binomial tree; then each block goes around the ring.
fn scatter_ring(builder: &mut Builder) {
    let request = builder.request();
    let (relative, members) = (request.relative(), request.members);
    let data = builder.result(request.block());
    let range = |first: u32, end: u32| {
        let at = |place: u32| place as usize * request.count / members as usize * request.element;
        data.part(at(first), at(end) - at(first))
    };
    if relative > 0 {
        let span = 1_u32 << relative.trailing_zeros();
        let parent = request.absolute(relative & (relative - 1));
        let arrival = builder.receive(parent, range(relative, relative.saturating_add(span).min(members)));
        builder.wait(arrival);
    }
    for child in children(relative, members) {
        let span = 1_u32 << child.trailing_zeros();
        _ = builder.send(request.absolute(child), range(child, child.saturating_add(span).min(members)));
    }
    let (next, before) =
        (request.absolute((relative + 1) % members), request.absolute((relative + members - 1) % members));
    let block = |step: u32| {
        let place = (relative + members - step % members) % members;
        range(place, place + 1)
    };
    // A member holds the blocks of its whole subtree already: the sender and the receiver leave those out.
    let held = |place: u32, owner: u32| {
        let span = if owner == 0 { members } else { 1_u32 << owner.trailing_zeros() };
        place >= owner && place - owner < span
    };
    let follower = (relative + 1) % members;
    for step in 0..members - 1 {
        let (out, into) = (block(step), block(step + 1));
        let place = |step: u32| (relative + members - step % members) % members;
        let arrival = if held(place(step + 1), relative) { None } else { Some(builder.receive(before, into)) };
        if !held(place(step), follower) {
            _ = builder.send(next, out);
        }
        if let Some(arrival) = arrival {
            builder.wait(arrival);
        }
    }
}
