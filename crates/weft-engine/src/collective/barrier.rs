//! Barriers: empty messages in logarithmically many rounds.
//!
//! Place in the data flow: called by [`super::compile_as`].

use super::builder::Builder;
use super::tree::core_members;
use super::{Algorithm, Buffer, Span};

const NOTHING: Span = Span { buffer: Buffer::Scratch, offset: 0, len: 0 };

/// The schedule of a barrier.
pub(super) fn emit(builder: &mut Builder, algorithm: Algorithm) {
    match algorithm {
        Algorithm::RecursiveDoubling => recursive_doubling(builder),
        _ => dissemination(builder),
    }
}

/// In round k each member signals the one 2^k ranks above and waits for the one 2^k ranks below.
fn dissemination(builder: &mut Builder) {
    let request = builder.request();
    let (rank, members) = (u64::from(request.rank), u64::from(request.members));
    let distances = || std::iter::successors(Some(1), |distance| Some(distance * 2)).take_while(|&d| d < members);
    let place = |at: u64| u32::try_from(at % members).unwrap_or(0);
    let arrivals: Vec<_> =
        distances().map(|distance| builder.expect(place(rank + members - distance), NOTHING)).collect();
    for (distance, arrival) in distances().zip(arrivals) {
        _ = builder.signal(place(rank + distance), NOTHING);
        builder.wait(arrival);
    }
}

/// Pairs by rank bits; a member beyond the largest power of two signals its partner first and is released last.
fn recursive_doubling(builder: &mut Builder) {
    let request = builder.request();
    let (rank, core) = (request.rank, core_members(request.members));
    if rank >= core {
        let released = builder.expect(rank - core, NOTHING);
        _ = builder.signal(rank - core, NOTHING);
        builder.wait(released);
        return;
    }
    let extra = Some(rank + core).filter(|&extra| extra < request.members);
    let entered = extra.map(|extra| builder.expect(extra, NOTHING));
    let partners = || (0..core.ilog2()).map(|bit| rank ^ (1 << bit));
    let arrivals: Vec<_> = partners().map(|partner| builder.expect(partner, NOTHING)).collect();
    if let Some(entered) = entered {
        builder.wait(entered);
    }
    for (partner, arrival) in partners().zip(arrivals) {
        _ = builder.signal(partner, NOTHING);
        builder.wait(arrival);
    }
    if let Some(extra) = extra {
        _ = builder.signal(extra, NOTHING);
    }
}
