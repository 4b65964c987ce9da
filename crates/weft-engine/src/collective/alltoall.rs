//! Alltoall: Bruck's algorithm for short blocks, one message for each pair otherwise.
//!
//! Place in the data flow: called by [`super::compile_as`].

use super::builder::Builder;
use super::{Algorithm, Span};

/// Pairs of messages under way at a time, so that a member does not flood the others.
const WINDOW: usize = 32;

/// The schedule of an alltoall.
pub(super) fn emit(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Bruck => bruck(builder),
        _ => direct(builder),
    }
}

fn direct(builder: &mut Builder) {
    let request = builder.request();
    let block = request.block();
    let input = builder.input(request.blocks());
    let result = builder.result(request.blocks());
    let slot = |place: u32| place as usize * block;
    exchange(builder, |to| input.part(slot(to), block), |from| result.part(slot(from), block));
}

/// Sends block `given(m)` to each member m, and receives block `taken(m)` from it.
///
/// Member r sends to r + 1, r + 2, … and receives from r − 1, r − 2, …. No two members therefore send to the same
/// one in the same step.
pub(super) fn exchange(builder: &mut Builder, given: impl Fn(u32) -> Span, taken: impl Fn(u32) -> Span) {
    let (rank, members) = (builder.request().rank, builder.request().members);
    builder.copy(given(rank), taken(rank));
    let mut started = Vec::new();
    for distance in 1..members {
        if let Some(oldest) = started.len().checked_sub(WINDOW) {
            let (arrival, departure) = started[oldest];
            builder.wait(arrival);
            builder.wait(departure);
        }
        let (to, from) = ((rank + distance) % members, (rank + members - distance) % members);
        let arrival = builder.receive(from, taken(from));
        let departure = builder.send(to, given(to));
        started.push((arrival, departure));
    }
}

/// Blocks are kept by their distance to the destination. In the round of bit k, those with bit k set go 2^k ranks
/// up, packed into one message.
fn bruck(builder: &mut Builder) {
    let request = builder.request();
    let (rank, members, block) = (request.rank, request.members, request.block());
    let input = builder.input(request.blocks());
    let result = builder.result(request.blocks());
    let held = builder.scratch(request.blocks());
    let packed = builder.scratch(request.blocks());
    let arrived = builder.scratch(request.blocks());
    let slot = |place: u32| place as usize * block;
    for distance in 0..members {
        let to = (rank + distance) % members;
        builder.copy(input.part(slot(to), block), held.part(slot(distance), block));
    }
    let mut bit = 1;
    while bit < members {
        let moving: Vec<u32> = (0..members).filter(|distance| distance & bit != 0).collect();
        for (place, &distance) in (0..).zip(&moving) {
            builder.copy(held.part(slot(distance), block), packed.part(slot(place), block));
        }
        let len = moving.len() * block;
        let (to, from) = ((rank + bit) % members, (rank + members - bit) % members);
        builder.exchange(to, packed.part(0, len), from, arrived.part(0, len));
        for (place, &distance) in (0..).zip(&moving) {
            builder.copy(arrived.part(slot(place), block), held.part(slot(distance), block));
        }
        bit *= 2;
    }
    for distance in 0..members {
        let from = (rank + members - distance) % members;
        builder.copy(held.part(slot(distance), block), result.part(slot(from), block));
    }
}
