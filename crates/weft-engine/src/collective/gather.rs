//! Collectives that move blocks without arithmetic: allgather, gather and scatter.
//!
//! Place in the data flow: called by [`super::compile_as`]. The trees use ranks relative to the root, which is 0.

use super::broadcast::children;
use super::builder::Builder;
use super::{Algorithm, Request, Span};

/// The schedule of an allgather.
pub(super) fn all_gather(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Ring => ring(builder),
        _ => bruck(builder),
    }
}

/// The schedule of a gather.
pub(super) fn gather(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Direct => gather_direct(builder),
        _ => gather_tree(builder),
    }
}

/// The schedule of a scatter.
pub(super) fn scatter(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::Direct => scatter_direct(builder),
        _ => scatter_tree(builder),
    }
}

/// Each member passes on the block that it received last.
fn ring(builder: &mut Builder) {
    let request = builder.request();
    let (rank, members, block) = (request.rank, request.members, request.block());
    let input = builder.input(block);
    let result = builder.result(request.blocks());
    let slot = |place: u32| result.part(place as usize * block, block);
    builder.copy(input, slot(rank));
    let (next, before) = ((rank + 1) % members, (rank + members - 1) % members);
    for step in 0..members - 1 {
        let arrival = builder.receive(before, slot((rank + members - step - 1) % members));
        _ = builder.send(next, slot((rank + members - step) % members));
        builder.wait(arrival);
    }
}

/// In round k each member sends all it holds, up to 2^k blocks, to the one 2^k ranks below. The blocks are
/// collected in the order of the distance from the own rank and put into rank order at the end.
fn bruck(builder: &mut Builder) {
    let request = builder.request();
    let (rank, members, block) = (request.rank, request.members, request.block());
    let input = builder.input(block);
    let result = builder.result(request.blocks());
    let gathered = builder.scratch(request.blocks());
    builder.copy(input, gathered.part(0, block));
    let mut held = 1;
    while held < members {
        let more = held.min(members - held);
        let (to, from) = ((rank + members - held) % members, (rank + held) % members);
        let arrival = builder.receive(from, gathered.part(held as usize * block, more as usize * block));
        _ = builder.send(to, gathered.part(0, more as usize * block));
        builder.wait(arrival);
        held += more;
    }
    rotate(builder, gathered, result, rank as usize * block);
}

/// Copies `from` so that its first byte comes to lie at `at`, and the rest around the end.
fn rotate(builder: &mut Builder, from: Span, into: Span, at: usize) {
    let head = from.len - at;
    builder.copy(from.part(0, head), into.part(at, head));
    builder.copy(from.part(head, at), into.part(0, at));
}

/// The members of the subtree below a relative rank, itself included.
fn subtree(relative: u32, members: u32) -> u32 {
    let span = if relative == 0 { members } else { 1 << relative.trailing_zeros() };
    span.min(members - relative)
}

/// A binomial tree: each member collects the blocks of its subtree in scratch memory and passes them on.
fn gather_tree(builder: &mut Builder) {
    let request = builder.request();
    let (relative, members, block) = (request.relative(), request.members, request.block());
    let size = subtree(relative, members);
    if size == 1 {
        let input = Span { buffer: super::Buffer::Input, offset: 0, len: block };
        if relative > 0 {
            _ = builder.send(request.absolute(relative & (relative - 1)), input);
        } else {
            builder.load_input(builder.result(block));
        }
        return;
    }
    let gathered = builder.scratch(size as usize * block);
    builder.load_input(gathered.part(0, block));
    let arrivals: Vec<_> = children(relative, members)
        .map(|child| {
            let room = gathered.part((child - relative) as usize * block, subtree(child, members) as usize * block);
            builder.receive(request.absolute(child), room)
        })
        .collect();
    for arrival in arrivals {
        builder.wait(arrival);
    }
    if relative > 0 {
        _ = builder.send(request.absolute(relative & (relative - 1)), gathered);
    } else {
        let result = builder.result(request.blocks());
        rotate(builder, gathered, result, request.root as usize * block);
    }
}

/// The root receives each block into its place.
fn gather_direct(builder: &mut Builder) {
    let request = builder.request();
    let block = request.block();
    let input = builder.input(block);
    if request.rank != request.root {
        _ = builder.send(request.root, input);
        return;
    }
    let result = builder.result(request.blocks());
    let slot = |place: u32| result.part(place as usize * block, block);
    for from in others(&request) {
        _ = builder.receive(from, slot(from));
    }
    builder.copy(input, slot(request.rank));
}

/// A binomial tree: each member receives the blocks of its subtree and passes on those of its children.
fn scatter_tree(builder: &mut Builder) {
    let request = builder.request();
    let (relative, members, block) = (request.relative(), request.members, request.block());
    let size = subtree(relative, members) as usize * block;
    let result = builder.result(block);
    let blocks = if relative == 0 {
        let input = Span { buffer: super::Buffer::Input, offset: 0, len: size };
        let ordered = builder.scratch(size);
        let head = request.root as usize * block;
        builder.copy(input.part(head, size - head), ordered.part(0, size - head));
        builder.copy(input.part(0, head), ordered.part(size - head, head));
        ordered
    } else {
        let room = if size == block { result } else { builder.scratch(size) };
        let arrival = builder.receive(request.absolute(relative & (relative - 1)), room);
        builder.wait(arrival);
        room
    };
    for child in children(relative, members) {
        let part = blocks.part((child - relative) as usize * block, subtree(child, members) as usize * block);
        _ = builder.send(request.absolute(child), part);
    }
    builder.copy(blocks.part(0, block), result);
}

/// The root sends each block from its place.
fn scatter_direct(builder: &mut Builder) {
    let request = builder.request();
    let block = request.block();
    let result = builder.result(block);
    if request.rank != request.root {
        let arrival = builder.receive(request.root, result);
        builder.wait(arrival);
        return;
    }
    let input = builder.input(request.blocks());
    let slot = |place: u32| input.part(place as usize * block, block);
    for to in others(&request) {
        _ = builder.send(to, slot(to));
    }
    builder.copy(slot(request.rank), result);
}

/// The other members, beginning behind this one.
fn others(request: &Request) -> impl Iterator<Item = u32> + use<> {
    let (rank, members) = (request.rank, request.members);
    (1..members).map(move |distance| (rank + distance) % members)
}
