//! The moments at which operations complete and are counted: completion levels as distinct moments, remote
//! events once for each operation, and the remaining room.

use std::ffi::c_void;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::rig::{Cntr, Rig};
use crate::side::{Args, Side, call, copies_alone, err, introduce, memory, pair, pattern, scenes, until, works};

/// Lengths of messages inside a header, in a message, and beside it.
const LENGTHS: [usize; 3] = [0, 100, 200_000];
const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("moments", moments),
            ("default_levels", default_levels),
            ("inject_frees_its_buffer", inject_frees_its_buffer),
            ("injects_leave", injects_leave),
            ("sends_after_accesses", sends_after_accesses),
            ("remote_events", remote_events),
            ("remote_data", remote_data),
            ("counters_before_and_after_enable", counters_before_and_after_enable),
            ("room", room),
        ],
    );
}

fn tcp() -> bool {
    std::env::var("FI_WEFT_SHM").is_ok_and(|value| value == "0")
}

/// With FI_ORDER_SAW or all orders, a send follows earlier writes of any length. It does not wait for earlier
/// sends, which may be received later. Writes do not wait for sends either.
fn sends_after_accesses(lib: &Lib) {
    for order in [FI_ORDER_SAW, FI_ORDER_STRICT] {
        for len in LENGTHS {
            let open = || Side::with(lib, 0, |hints| hints.tx().msg_order = order);
            let (a, b, to_b, _) = introduce(open(), open());
            works(&a, &b, to_b);
            let (source, target) = (pattern(len), memory(len));
            let written = memory(LENGTHS[2]);
            let region = b.register(written, FI_REMOTE_WRITE, 4);
            let tagged = |tag: u64, bytes: &mut [u8]| Args { tag, ..Args::new(bytes, to_b) };
            let late = Args { flags: FI_DELIVERY_COMPLETE, context: 1, ..tagged(1, source) };
            a.start("fi_tsendmsg", &late, &[]);
            a.start("fi_write", &Args { key: 4, context: 2, ..Args::new(pattern(LENGTHS[2]), to_b) }, &[]);
            a.start("fi_tsend", &Args { context: 3, ..tagged(2, pattern(8)) }, &[]);
            b.start("fi_trecv", &Args { tag: 2, ..Args::new(memory(8), 0) }, &[]);
            b.next(&[&a]).done();
            assert!(written == pattern(LENGTHS[2]), "{order:x}: the send has overtaken a write");
            b.start("fi_trecv", &Args { tag: 1, ..Args::new(target, 0) }, &[]);
            b.next(&[&a]).done();
            assert!(target == source);
            let mut contexts: Vec<_> = (0..3).map(|_| a.next(&[&b]).done().op_context as usize).collect();
            contexts.sort_unstable();
            assert_eq!(contexts, [1, 2, 3]);
            assert_eq!(close(region), 0);
        }
    }
}

/// Whether the send with this context completes without progress of the peer.
fn alone(side: &Side<'_>, context: usize) -> bool {
    (0..300).any(|_| side.poll().is_some_and(|outcome| outcome.done().op_context as usize == context))
}

/// Inject complete: the buffer is free. Transmit complete: the peer's endpoint has the message, whatever
/// happens to the sender; over shared memory this is immediate. Delivery and match complete: a receive has
/// taken the message.
fn moments(lib: &Lib) {
    for name in ["fi_sendmsg", "fi_tsendmsg"] {
        for len in LENGTHS {
            let (a, b, to_b, _) = pair(lib);
            works(&a, &b, to_b);
            let source = pattern(len);
            let (sooner, short) = (!tcp(), len < 1000);
            // The bytes of a long message follow it, unless the receiver fetches them.
            let comes = short || !copies_alone();
            for (n, (flags, left, arrived)) in [
                (FI_INJECT_COMPLETE, short, comes),
                (FI_TRANSMIT_COMPLETE, short && sooner, short || comes && sooner),
                (FI_DELIVERY_COMPLETE, false, false),
                (FI_MATCH_COMPLETE, false, false),
            ]
            .into_iter()
            .enumerate()
            {
                let what = format!("{name} of {len} bytes, level {n}");
                let context = 0x100 + n;
                a.start(name, &Args { flags, context, ..Args::new(source, to_b) }, &[]);
                let mut done = alone(&a, context);
                assert_eq!(done, left, "{what}: completion without the peer");
                for _ in 0..200 {
                    b.progress();
                    done |= a.poll().is_some_and(|outcome| outcome.done().op_context as usize == context);
                }
                assert_eq!(done, arrived, "{what}: completion on arrival");
                let (target, recv) = (memory(len), if name == "fi_sendmsg" { "fi_recv" } else { "fi_trecv" });
                b.start(recv, &Args { context: 0x200, ..Args::new(target, 0) }, &[]);
                assert_eq!(b.next(&[&a]).done().op_context as usize, 0x200, "{what}");
                if !done {
                    assert_eq!(a.next(&[&b]).done().op_context as usize, context, "{what}");
                }
                assert_eq!(target, source, "{what}");
                a.nothing(&[&b]);
            }
        }
    }
}

/// Calls without flags use the endpoint's default level.
fn default_levels(lib: &Lib) {
    for (flags, left) in [(0, true), (FI_TRANSMIT_COMPLETE, !tcp()), (FI_DELIVERY_COMPLETE, false)] {
        let open = || Side::with(lib, 0, |hints| hints.tx().op_flags = flags);
        let (a, b, to_b, _) = introduce(open(), open());
        works(&a, &b, to_b);
        a.start("fi_tsend", &Args { context: 0x31, ..Args::new(pattern(64), to_b) }, &[]);
        let done = alone(&a, 0x31);
        assert_eq!(done, left, "{flags:#x}");
        b.trecv(memory(64), 0x32);
        assert_eq!(b.next(&[&a]).done().op_context as usize, 0x32);
        if !done {
            assert_eq!(a.next(&[&b]).done().op_context as usize, 0x31);
        }
        // fi_inject has no completion, so no level applies.
        a.start("fi_tinject", &Args::new(pattern(64), to_b), &[]);
        b.trecv(memory(64), 0x33);
        assert_eq!(b.next(&[&a]).done().op_context as usize, 0x33);
        a.nothing(&[&b]);
    }
}

/// The client overwrites the buffer when the call returns, also while the message waits for its connection.
fn inject_frees_its_buffer(lib: &Lib) {
    for len in [1, 64, 4096] {
        let (a, b, to_b, _) = pair(lib);
        let target = memory(3 * len);
        for (n, piece) in target.chunks_mut(len).enumerate() {
            let buf = memory(len);
            buf.fill(n as u8 + 1);
            // The first message has no connection yet.
            a.start("fi_tsendmsg", &Args { flags: FI_INJECT, context: 0x41, ..Args::new(buf, to_b) }, &[]);
            buf.fill(0xee);
            if n == 0 {
                b.trecv(piece, 0x42);
                assert_eq!(b.next(&[&a]).done().op_context as usize, 0x42);
            } else {
                b.progress();
                b.trecv(piece, 0x42);
                assert_eq!(b.next(&[&a]).done().op_context as usize, 0x42);
            }
            assert_eq!(a.next(&[&b]).done().op_context as usize, 0x41);
        }
        for (n, piece) in target.chunks(len).enumerate() {
            assert!(piece.iter().all(|&byte| usize::from(byte) == n + 1), "message {n} of {len} bytes");
        }
    }
}

/// An accepted call without a context needs no more progress of its endpoint, even if counters report it. The
/// client may wait for the effect elsewhere.
fn injects_leave(lib: &Lib) {
    for counted in [false, true] {
        let (a, b, to_b, _) = pair(lib);
        let counter = a.opened.cntr();
        if counted {
            assert_eq!(bind(a.ep, counter, FI_SEND | FI_WRITE), 0);
        }
        let (source, target) = (pattern(64), memory(64));
        let mr = b.register(target, REMOTE, 7);
        for name in ["fi_inject_write", "fi_tinject"] {
            let args = Args { key: 7, ..Args::new(source, to_b) };
            let mut refused = 0;
            until(|| match unsafe { (call(name).run)(a.ep, &args) } {
                0 => Some(()),
                error => {
                    assert_eq!(error, err(FI_EAGAIN), "{name}");
                    refused += 1;
                    b.progress();
                    None
                }
            });
            assert_eq!(refused > 0, name == "fi_inject_write", "only the first function has no connection");
        }
        let received = memory(64);
        b.trecv(received, 0x43);
        // A socket may take more than one round.
        let helpers: &[&Side<'_>] = if tcp() { &[&a] } else { &[] };
        assert_eq!(b.next(helpers).done().op_context as usize, 0x43, "counted: {counted}");
        assert!(target == source && received == source);
        assert_eq!(close(mr), 0);
        let (mut a, b) = (a, b);
        a.close_ep();
        assert_eq!(close(counter), 0);
        drop(b);
    }
}

/// Starts an RMA operation on several remote pieces, of one or several regions.
fn multi(side: &Side<'_>, write: bool, local: &mut [u8], remote: &[fi_rma_iov], dest: u64, data: Option<u64>) {
    let iov = libc::iovec { iov_base: local.as_mut_ptr().cast(), iov_len: local.len() };
    let mut msg: fi_msg_rma = unsafe { std::mem::zeroed() };
    (msg.msg_iov, msg.iov_count) = (&raw const iov, 1);
    (msg.rma_iov, msg.rma_iov_count) = (remote.as_ptr(), remote.len());
    (msg.addr, msg.context, msg.data) = (dest, 0x51 as *mut c_void, data.unwrap_or(0));
    let flags = if data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    let ops = unsafe { &*(*side.ep).rma };
    let call = if write { ops.writemsg.unwrap() } else { ops.readmsg.unwrap() };
    assert_eq!(unsafe { call(side.ep, &raw const msg, flags) }, 0);
}

/// Counters of an endpoint and of regions rise by one for each operation, whatever the number and lengths of
/// its pieces.
fn remote_events(lib: &Lib) {
    let rig = Rig::new(lib, FI_PROGRESS_MANUAL);
    let (a, b) = (&rig.a, &rig.b);
    let [writes, reads, of_one, of_two] = [(); 4].map(|()| rig.cntr(b));
    assert_eq!(bind(b.ep, writes.0, FI_REMOTE_WRITE), 0);
    assert_eq!(bind(b.ep, reads.0, FI_REMOTE_READ), 0);
    let [one, two] = [1, 2].map(|key| b.register(memory(1 << 20), REMOTE, key));
    assert_eq!(bind(one, of_one.0, REMOTE), 0);
    assert_eq!(bind(two, of_two.0, REMOTE), 0);
    works(a, b, rig.to_b);
    let piece = |key, at, len| fi_rma_iov { addr: at, len, key };
    // The lengths of the pieces, and the region of each.
    let cases: &[&[(usize, u64)]] = &[
        &[(8, 1)],
        &[(8, 1), (16, 1)],
        &[(8, 1), (100_000, 1), (8, 1)],
        &[(100_000, 1), (70_000, 2)],
        &[(8, 2), (8, 1), (100_000, 2), (8, 1)],
        &[(100_000, 2), (8, 2), (100_000, 2), (8, 2), (9, 2), (10, 2), (11, 2), (12, 2)],
    ];
    let (mut done, mut ones, mut twos) = (0, 0, 0);
    for pieces in cases.iter().cycle().take(4 * cases.len()) {
        for write in [true, false] {
            let mut at = 0;
            let mut place = |&(len, key): &(usize, u64)| {
                at += 110_000;
                piece(key, at, len)
            };
            let remote: Vec<_> = pieces.iter().map(&mut place).collect();
            let total = pieces.iter().map(|(len, _)| len).sum();
            multi(a, write, pattern(total), &remote, rig.to_b, None);
            assert_eq!(a.next(&[b]).done().op_context as usize, 0x51);
            ones += u64::from(pieces.iter().any(|(_, key)| *key == 1));
            twos += u64::from(pieces.iter().any(|(_, key)| *key == 2));
        }
        done += 1;
        // The target learns that its answer to a read was taken by an acknowledgement.
        let counted = || [writes, reads, of_one, of_two].map(Cntr::read);
        for _ in 0..1000 {
            if counted() == [done, done, ones, twos] {
                break;
            }
            a.progress();
            b.progress();
        }
        assert_eq!(counted(), [done, done, ones, twos], "after {pieces:?}");
    }
    // An operation with a refused piece is not counted, and does not disturb the next one.
    for refused in [[(7, 8), (1, 8)], [(1, 8), (7, 8)], [(1, 100_000), (7, 100_000)]] {
        let remote = refused.map(|(key, len)| piece(key, 0, len));
        multi(a, true, pattern(2 * refused[0].1), &remote, rig.to_b, None);
        assert_ne!(a.next(&[b]).failed().err, 0);
        multi(a, true, pattern(24), &[piece(1, 0, 8), piece(1, 8, 16)], rig.to_b, None);
        assert_eq!(a.next(&[b]).done().op_context as usize, 0x51);
        (done, ones) = (done + 1, ones + 1);
        assert_eq!([writes, of_one].map(Cntr::read), [done, ones], "after {refused:?}");
    }
    assert_eq!([writes, reads, of_one, of_two].map(Cntr::errors), [0; 4]);
    for mr in [one, two] {
        assert_eq!(close(mr), 0);
    }
}

/// The data of a write to several pieces arrives once, after all bytes, with the total length.
fn remote_data(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let there = memory(1 << 20);
    let watched = crate::side::Watched::new(there);
    let mr = b.register(there, REMOTE, 1);
    works(&a, &b, to_b);
    for (n, lens) in [[8, 16, 24], [100_000, 8, 100_000], [8, 100_000, 9]].into_iter().enumerate() {
        watched.bytes().fill(0);
        let remote = [0, 1, 2].map(|i| fi_rma_iov { addr: 200_000 * i as u64, len: lens[i], key: 1 });
        let total = lens.iter().sum();
        let source = pattern(total);
        multi(&a, true, source, &remote, to_b, Some(n as u64 + 1));
        let entry = b.next(&[&a]).done();
        let stored: Vec<u8> =
            [0, 1, 2].into_iter().flat_map(|i| watched.bytes()[200_000 * i..][..lens[i]].to_vec()).collect();
        assert_eq!(stored, *source, "{lens:?}: the data arrived before all bytes");
        assert_eq!((entry.data, entry.len, entry.op_context as usize), (n as u64 + 1, total, 0), "{lens:?}");
        assert_eq!(entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
        assert_eq!(a.next(&[&b]).done().op_context as usize, 0x51);
        b.nothing(&[&a]);
    }
    assert_eq!(close(mr), 0);
}

/// Each counter counts only the operations of its flag, whether it was bound before or after fi_enable.
fn counters_before_and_after_enable(lib: &Lib) {
    for late in [false, true] {
        let (a, b) = (Side::unbound(lib, 0, |_| ()), Side::new(lib));
        let enable = |side: &Side<'_>| {
            assert_eq!(bind(side.ep, side.av, 0), 0);
            assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(side.enable(), 0);
        };
        if late {
            enable(&a);
        }
        let classes = [FI_SEND, FI_RECV, FI_READ, FI_WRITE, FI_REMOTE_READ, FI_REMOTE_WRITE];
        let counters = classes.map(|class| {
            let cntr = a.opened.cntr();
            assert_eq!(bind(a.ep, cntr, class), 0, "{class:#x}");
            Cntr(cntr)
        });
        if !late {
            enable(&a);
        }
        let (a, b, to_b, to_a) = introduce(a, b);
        let [at_a, at_b] = [&a, &b].map(|side| side.register(memory(64), REMOTE, 9));
        let args = |dest| Args { key: 9, ..Args::new(pattern(32), dest) };
        for n in 1..=3 {
            works(&a, &b, to_b);
            works(&b, &a, to_a);
            for name in ["fi_write", "fi_read"] {
                a.start(name, &args(to_b), &[&b]);
                a.next(&[&b]).done();
                b.start(name, &args(to_a), &[&a]);
                b.next(&[&a]).done();
            }
            assert_eq!(counters.map(Cntr::read), [n; 6], "late: {late}");
        }
        assert_eq!(counters.map(Cntr::errors), [0; 6]);
        let delivered = FI_DELIVERY_COMPLETE | FI_COMPLETION;
        a.start("fi_writemsg", &Args { key: 10, flags: delivered, ..args(to_b) }, &[&b]);
        a.next(&[&b]).failed();
        assert_eq!(counters.map(Cntr::errors), [0, 0, 0, 1, 0, 0]);
        assert_eq!(counters.map(Cntr::read), [3; 6], "a failure does not count as a success");
        for mr in [at_a, at_b] {
            assert_eq!(close(mr), 0);
        }
        let mut a = a;
        a.close_ep();
        for cntr in counters {
            assert_eq!(close(cntr.0), 0);
        }
    }
}

/// `fi_rx_size_left` and `fi_tx_size_left` promise no more than the room that exists.
fn room(lib: &Lib) {
    let open = || Side::with(lib, 0, |hints| (hints.rx().size, hints.tx().size) = (8, 8));
    let (a, b, to_b, _) = introduce(open(), open());
    let rx_left = || unsafe { (*(*b.ep).ops).rx_size_left.unwrap()(b.ep) };
    assert_eq!((rx_left(), a.tx_left()), (8, 8));
    let post = |name, context| b.run(name, &Args { context, ..Args::new(memory(8), 0) });
    for n in 0..8 {
        assert_eq!(post("fi_trecv", n), 0);
        assert_eq!(rx_left(), 7 - n as isize);
    }
    assert_eq!(post("fi_trecv", 9), err(FI_EAGAIN));
    // Untagged receives have a queue of their own. The number is the smaller room of the two queues, so it
    // stays 0.
    for n in 0..8 {
        assert_eq!(post("fi_recv", 16 + n), 0);
    }
    assert_eq!((post("fi_recv", 9), rx_left()), (err(FI_EAGAIN), 0));
    for n in 0..8 {
        assert_eq!(b.cancel(n), 0);
        assert_eq!(b.poll().unwrap().failed().err, FI_ECANCELED);
    }
    assert_eq!(rx_left(), 0, "the untagged queue is still full");
    for n in 0..8 {
        assert_eq!(b.cancel(16 + n), 0);
        assert_eq!(b.poll().unwrap().failed().err, FI_ECANCELED);
    }
    assert_eq!(rx_left(), 8);
    // Operations that cannot leave yet occupy room.
    for n in 0..8 {
        a.start("fi_tsendmsg", &Args { flags: FI_DELIVERY_COMPLETE, context: n, ..Args::new(pattern(8), to_b) }, &[]);
        assert_eq!(a.tx_left(), 7 - n as isize);
    }
    assert_eq!(a.run("fi_tsend", &Args::new(pattern(8), to_b)), err(FI_EAGAIN));
    for n in 0..8 {
        b.trecv(memory(8), 0x60);
        assert_eq!(b.next(&[&a]).done().op_context as usize, 0x60);
        assert_eq!(a.next(&[&b]).done().op_context as usize, n);
    }
    assert_eq!(a.tx_left(), 8);
}
