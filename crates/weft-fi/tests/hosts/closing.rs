//! Endpoints that are closed with pending operations. fi_close(3) returns 0 in bounded time and returns all
//! buffers to the client. Peers with pending operations at the endpoint get errors.
//!
//! In most scenes one thread drives both sides, so the other side makes no progress during the close. The
//! close then runs into FI_WEFT_CLOSE_TIMEOUT_MS, which these tests set to a fraction of a second.

use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::rig::Cntr;
use crate::side::{
    Args, Outcome, Side, Watched, copies_alone, err, introduce, is_all, long_bytes, memory, pair, pattern, scenes,
    until, works,
};

/// The time limit of a close: the tests' close timeout for each of its two steps, with a wide margin.
const CLOSE_LIMIT: Duration = Duration::from_secs(3);
/// The errors of a transfer whose other end was closed. A stream that ends inside a message was not closed in order.
const CUT_OFF: [i32; 2] = [FI_ESHUTDOWN, FI_ECONNRESET];

/// Closes the endpoint, which must succeed in time.
#[track_caller]
fn close_in_time(side: &mut Side<'_>) {
    let begin = Instant::now();
    side.close_ep();
    assert!(begin.elapsed() < CLOSE_LIMIT, "fi_close took {:?}", begin.elapsed());
}

/// Drives both sides until the first byte has arrived. The rest must still be missing.
#[track_caller]
fn half_way(target: Watched, sides: [&Side<'_>; 2]) {
    until(|| {
        sides.iter().for_each(|side| side.progress());
        target.begun().then_some(())
    });
    target.assert_incomplete();
}

/// Checks the end of an operation whose other end was closed meanwhile. It fails, or it succeeds if the
/// closing side could finish it alone by reading or writing the peer's memory.
#[track_caller]
fn ended(outcome: Outcome, finished: bool) {
    match outcome {
        Outcome::Failed(entry) => assert!(CUT_OFF.contains(&entry.err), "error {}", entry.err),
        Outcome::Done(entry) => assert!(finished && copies_alone(), "{entry:?}"),
    }
}

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("with_work", with_work),
            ("sender_of_a_transfer", sender_of_a_transfer),
            ("receiver_of_a_transfer", receiver_of_a_transfer),
            ("ends_of_rma", ends_of_rma),
            ("arrived_messages", arrived_messages),
            ("closed_source", closed_source),
            ("closed_source_at_a_socket", closed_source_at_a_socket),
            ("absent_peer", absent_peer),
            ("regions_during_a_close", regions_during_a_close),
        ],
    );
}

/// All kinds of pending operations, at an endpoint whose peer makes no progress.
fn with_work(lib: &Lib) {
    let (mut a, b, to_b, to_a) = pair(lib);
    works(&a, &b, to_b);
    let mr = b.register(memory(long_bytes()), FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
    let [send, tsend, write, read] = [(); 4].map(|()| pattern(long_bytes()));
    let mut watched = Vec::new();
    for (name, buffer) in [("fi_send", send), ("fi_tsend", tsend), ("fi_write", write), ("fi_read", read)] {
        watched.push(Watched::new(buffer));
        a.start(name, &Args { key: 1, ..Args::new(buffer, to_b) }, &[]);
    }
    for _ in 0..5 {
        a.start("fi_recv", &Args::new(memory(64), 0), &[]);
        a.start("fi_trecv", &Args::new(memory(64), 0), &[]);
    }
    a.start("fi_recvmsg", &Args { flags: FI_MULTI_RECV, ..Args::new(memory(4096), 0) }, &[]);
    assert!(a.poll().is_none(), "all operations are pending");
    close_in_time(&mut a);
    // The buffers are the client's again: the provider neither reads nor writes them any more.
    watched.iter().for_each(|buffer| buffer.bytes().fill(0));
    // The completions of the endpoint were discarded.
    assert!(a.poll().is_none());
    // The announced message is gone with the endpoint. The receive that matches it fails.
    b.nothing(&[]);
    let late = memory(long_bytes());
    b.trecv(late, 7);
    let failed = b.next(&[]).failed();
    assert!(CUT_OFF.contains(&failed.err) && failed.op_context as usize == 7, "error {}", failed.err);
    assert!(is_all(late, 0));
    // No other message is left.
    b.trecv(late, 8);
    b.nothing(&[]);
    assert_eq!(b.cancel(8), 0);
    assert_eq!(b.next(&[]).failed().err, FI_ECANCELED);
    assert!(watched.iter().all(|buffer| is_all(buffer.bytes(), 0)), "a buffer was used after the close");
    assert_eq!(close(mr), 0);
    // Each send to a closed endpoint fails in bounded time.
    for context in [1, 2] {
        b.start("fi_tsend", &Args { context, ..Args::new(pattern(8), to_a) }, &[]);
        let failed = b.next(&[]).failed();
        assert_eq!((failed.err, failed.op_context as usize), (FI_ECONNREFUSED, context));
    }
    let c = Side::new(lib);
    let to_c = b.insert(&c.name());
    works(&b, &c, to_c);
}

/// A peer closes its endpoint. A receive that names it as its only source ends. A receive from any source
/// stays.
fn closed_source(lib: &Lib) {
    let (a, mut b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    a.trecv_from(memory(8), to_b, 1);
    a.trecv(memory(8), 2);
    a.nothing(&[]);
    close_in_time(&mut b);
    let failed = a.next(&[]).failed();
    assert_eq!((failed.err, failed.op_context as usize), (FI_ESHUTDOWN, 1));
    a.nothing(&[]);
    assert_eq!(a.cancel(2), 0);
    assert_eq!(a.next(&[]).failed().err, FI_ECANCELED);
}

/// The peers know each other by host and port only, and the peer has connected. The receive ends, because an
/// own connection to that address has reached the same peer.
fn closed_source_at_a_socket(lib: &Lib) {
    let side = || Side::with(lib, 0, |hints| hints.get().addr_format = FI_SOCKADDR_IN);
    let (a, mut b) = (side(), side());
    let (to_b, to_a) = (a.insert(&b.name()), b.insert(&a.name()));
    let target = memory(8);
    a.trecv_from(target, to_b, 1);
    b.tsend(pattern(8), to_a, 2);
    assert_eq!(a.next(&[&b]).done().op_context as usize, 1);
    assert_eq!(b.next(&[&a]).done().op_context as usize, 2);
    assert_eq!(*target, *pattern(8));
    a.trecv_from(memory(8), to_b, 3);
    a.nothing(&[&b]);
    close_in_time(&mut b);
    let failed = a.next(&[]).failed();
    assert_eq!((failed.err, failed.op_context as usize), (FI_ESHUTDOWN, 3));
}

/// One thread closes an endpoint, which takes time. Another thread closes a region and its counter. Peers
/// cannot access the region afterwards, although the endpoint serves them until its end.
fn regions_during_a_close(lib: &Lib) {
    const KEY: u64 = 1;
    for _ in 0..3 {
        let (a, mut b, to_b, to_a) = pair(lib);
        works(&a, &b, to_b);
        works(&b, &a, to_a);
        let (target, written) = (memory(8), Cntr(b.opened.cntr()));
        let region = b.register(target, FI_REMOTE_WRITE, KEY);
        assert_eq!(bind(region, written.0, FI_REMOTE_WRITE), 0);
        let write = Args { key: KEY, ..Args::new(pattern(8), to_b) };
        a.start("fi_write", &write, &[&b]);
        a.next(&[&b]).done();
        // The peer does not receive the message.
        b.start("fi_tsend", &Args::new(pattern(long_bytes()), to_a), &[]);
        let ep = std::mem::replace(&mut b.ep, std::ptr::null_mut()) as usize;
        let closing = std::thread::spawn(move || close(ep as *mut fid_ep));
        std::thread::sleep(Duration::from_millis(10));
        assert_eq!([close(region), close(written.0)], [0; 2]);
        target.fill(0);
        let delivered = Args { flags: FI_DELIVERY_COMPLETE | FI_COMPLETION, ..write };
        a.start("fi_writemsg", &delivered, &[]);
        let outcome = a.next(&[]);
        assert_eq!(closing.join().unwrap(), 0);
        assert!(is_all(target, 0), "the memory of a closed region was written");
        outcome.failed();
    }
}

/// The sender closes while its message is being received, and reuses the memory.
fn sender_of_a_transfer(lib: &Lib) {
    let (mut a, b, to_b, _) = pair(lib);
    let (source, target) = (pattern(long_bytes()), memory(long_bytes()));
    let (given, taken) = (Watched::new(source), Watched::new(target));
    b.trecv(target, 0xb);
    a.tsend(source, to_b, 0xa);
    half_way(taken, [&a, &b]);
    close_in_time(&mut a);
    given.bytes().fill(0xee);
    let failed = b.next(&[]).failed();
    assert_eq!(failed.op_context as usize, 0xb);
    assert!(CUT_OFF.contains(&failed.err), "error {}", failed.err);
    b.nothing(&[]);
    let c = Side::new(lib);
    let to_b = c.insert(&b.name());
    works(&c, &b, to_b);
}

/// The receiver closes while the message is being sent.
fn receiver_of_a_transfer(lib: &Lib) {
    let (a, mut b, to_b, _) = pair(lib);
    let (source, target) = (pattern(long_bytes()), memory(long_bytes()));
    let taken = Watched::new(target);
    b.trecv(target, 0xb);
    a.tsend(source, to_b, 0xa);
    // One more message, for which there is no receive.
    a.tsend(pattern(long_bytes()), to_b, 0xaa);
    half_way(taken, [&a, &b]);
    close_in_time(&mut b);
    let finished = *taken.bytes() == *pattern(long_bytes());
    taken.bytes().fill(0xee);
    let mut outcomes = [a.next(&[]), a.next(&[])];
    outcomes.sort_by_key(Outcome::context);
    assert_eq!(outcomes.map(|outcome| outcome.context()), [0xa, 0xaa]);
    ended(outcomes[0], finished);
    ended(outcomes[1], false);
    a.nothing(&[]);
    assert!(is_all(taken.bytes(), 0xee), "a buffer was written after the close");
    let c = Side::new(lib);
    let to_c = a.insert(&c.name());
    works(&a, &c, to_c);
}

/// The target of RMA closes its endpoint in the middle, or the initiator does. Both sides may copy if the
/// region has one piece. Otherwise the target copies alone.
fn ends_of_rma(lib: &Lib) {
    for (name, write) in [("fi_write", true), ("fi_read", false)] {
        for pieces in [1, 3] {
            for target_closes in [true, false] {
                end_of_rma(lib, name, write, pieces, target_closes);
            }
        }
    }
}

fn end_of_rma(lib: &Lib, name: &str, write: bool, pieces: usize, target_closes: bool) {
    let (mut a, mut b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
    let (full, empty) = (pattern(long_bytes()), memory(long_bytes()));
    let (local, remote) = if write { (full, empty) } else { (empty, full) };
    let (initiating, targeted) = (Watched::new(local), Watched::new(remote));
    let written = if write { targeted } else { initiating };
    let mr = b.register_pieces(remote, pieces, FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
    a.start(name, &Args { key: 1, context: 0xa, ..Args::new(local, to_b) }, &[]);
    half_way(written, [&a, &b]);
    let (stays, given_back) = if target_closes {
        close_in_time(&mut b);
        assert_eq!(close(mr), 0);
        (&a, targeted)
    } else {
        close_in_time(&mut a);
        (&b, initiating)
    };
    let finished = *written.bytes() == *pattern(long_bytes());
    given_back.bytes().fill(0xee);
    if target_closes {
        let outcome = stays.next(&[]);
        assert_eq!(outcome.context(), 0xa);
        ended(outcome, finished);
    }
    stays.nothing(&[]);
    assert!(is_all(given_back.bytes(), 0xee), "{name} of {pieces} pieces: used after the close");
    let c = Side::new(lib);
    let to_c = stays.insert(&c.name());
    works(stays, &c, to_c);
    if !target_closes {
        b.close_ep();
        assert_eq!(close(mr), 0);
    }
}

/// Messages that have arrived completely can still be received. Unread completions are discarded with their
/// queue.
fn arrived_messages(lib: &Lib) {
    const WORDS: usize = 20;
    let (mut a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    for at in 0..WORDS {
        let word = pattern(at + 1);
        a.start("fi_tinject", &Args::new(word, to_b), &[]);
        a.tsend(word, to_b, at);
    }
    close_in_time(&mut a);
    for at in 0..2 * WORDS {
        let target = memory(64);
        b.trecv(target, at);
        let entry = b.next(&[]).done();
        assert_eq!((entry.op_context as usize, entry.len), (at, at / 2 + 1));
        assert_eq!(target[..entry.len], *pattern(entry.len));
    }
    // The queue of `a` is closed with the unread completions of its sends.
    assert_eq!(b.cancel(0), err(FI_ENOENT));
}

/// Closing does not wait longer for a peer that never existed than for any other peer.
fn absent_peer(lib: &Lib) {
    let mut a = Side::with(lib, 0, |hints| hints.get().addr_format = FI_SOCKADDR_IN);
    // No process listens on this reserved, privileged port.
    let absent = a.insert(&[2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    a.tsend(pattern(8), absent, 1);
    a.tsend(pattern(long_bytes()), absent, 2);
    close_in_time(&mut a);
    let mut a = Side::with(lib, 0, |hints| hints.get().addr_format = FI_SOCKADDR_IN);
    let absent = a.insert(&[2, 0, 0, 1, 127, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
    a.tsend(pattern(8), absent, 1);
    assert_eq!(a.next(&[]).failed().err, FI_ECONNREFUSED);
    close_in_time(&mut a);
}
