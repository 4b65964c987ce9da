//! Long messages from and to memory that the other side maps. The receiver takes them without the sender and without a
//! system call, or the sender puts them in their place.

use weft_fi_sys::*;

use super::{Block, KEY, maps};
use crate::client::{Lib, close};
use crate::side::{Args, Side, copies_alone, memory, pair, scenes, works};

/// Longer than any message that is pushed at once, and than what the rings hold.
const BYTES: usize = 4 << 20;

pub(super) fn all(lib: &Lib) {
    scenes(lib, &[("sources", sources), ("the end of a source", the_end_of_a_source), ("targets", targets)]);
}

/// Sends the whole memory to a receive, and returns the received bytes.
#[track_caller]
fn send(a: &Side<'_>, b: &Side<'_>, to_b: u64, source: &mut [u8], alone: bool) {
    let target = memory(source.len());
    b.trecv(target, 1);
    a.tsend(source, to_b, 2);
    // The announcement may have to wait for the answer to an earlier message.
    let sender: &[&Side<'_>] = if alone { &[] } else { &[a] };
    b.next(sender).done();
    a.next(&[b]).done();
    assert!(*target == *source);
}

/// Lets questions and answers about regions arrive.
fn take_turns(sides: &[&Side<'_>]) {
    (0..100).for_each(|_| sides.iter().for_each(|side| side.progress()));
}

fn sources(lib: &Lib) {
    // Memory that peers may only write is no source for them.
    for access in [FI_REMOTE_READ, FI_REMOTE_READ | FI_REMOTE_WRITE, FI_REMOTE_WRITE] {
        let (a, b, to_b, _) = pair(lib);
        works(&a, &b, to_b);
        let block = Block::new(&a, BYTES).unwrap();
        let source = block.bytes();
        let region = a.register(source, access, KEY);
        source.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 251) as u8);
        // The first message names the region, for which the receiver then asks.
        for _ in 0..2 {
            send(&a, &b, to_b, source, false);
            take_turns(&[&a, &b]);
        }
        let alone = copies_alone() || maps() && access & FI_REMOTE_READ != 0;
        send(&a, &b, to_b, &mut source[8..BYTES - 100], alone);
        // A short receive takes a part.
        let target = memory(1 << 20);
        b.trecv(target, 1);
        a.tsend(source, to_b, 2);
        assert_eq!(b.next(&[&a]).failed().err.unsigned_abs(), FI_ETRUNC);
        a.next(&[&b]).done();
        assert!(*target == source[..1 << 20]);
        assert_eq!(close(region), 0);
    }
}

/// The region ends while a message from it waits for a receive. The message arrives nevertheless.
fn the_end_of_a_source(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let block = Block::new(&a, BYTES).unwrap();
    let source = block.bytes();
    let mut region = a.register(source, FI_REMOTE_READ, KEY);
    source.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at % 241) as u8);
    for _ in 0..3 {
        send(&a, &b, to_b, source, false);
        take_turns(&[&a, &b]);
        let target = memory(BYTES);
        a.start("fi_tsend", &Args { context: 2, ..Args::new(source, to_b) }, &[]);
        take_turns(&[&a, &b]);
        assert_eq!(close(region), 0);
        b.trecv(target, 1);
        b.next(&[&a]).done();
        a.next(&[&b]).done();
        assert!(*target == *source);
        region = a.register(source, FI_REMOTE_READ, KEY);
    }
    assert_eq!(close(region), 0);
}

/// Receives in memory that the sender maps, whole and in parts, before and after the region's end.
fn targets(lib: &Lib) {
    for access in [FI_REMOTE_WRITE, FI_REMOTE_READ | FI_REMOTE_WRITE, FI_REMOTE_READ] {
        let (a, b, to_b, _) = pair(lib);
        works(&a, &b, to_b);
        let block = Block::new(&b, BYTES).unwrap();
        let target = block.bytes();
        let region = b.register(target, access, KEY);
        let source = memory(BYTES);
        let mut send = |round: u8, target: &mut [u8]| {
            source.fill(round);
            b.trecv(target, 1);
            a.tsend(&mut source[..target.len()], to_b, 2);
            b.next(&[&a]).done();
            a.next(&[&b]).done();
            assert!(target.iter().all(|byte| *byte == round), "round {round} with access {access}");
            // The first message names the region, for which the sender then asks.
            take_turns(&[&a, &b]);
        };
        (1..4).for_each(|round| send(round, target));
        send(4, &mut target[8..BYTES - 100]);
        assert!(target[..8].iter().all(|byte| *byte == 3) && target[BYTES - 100..].iter().all(|byte| *byte == 3));
        assert_eq!(close(region), 0);
        send(5, target);
    }
}
