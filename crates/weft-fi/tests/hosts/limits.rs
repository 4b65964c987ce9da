//! Limits. Full queues return -FI_EAGAIN without a side effect (fi_domain(3), "Resource Management").
//! Messages longer than their buffer are truncated and reported, cancelled receives complete, and impossible
//! sizes are refused.

use std::ffi::c_int;

use weft_fi_sys::*;

use crate::client::{Lib, close};
use crate::open;
use crate::side::{
    Args, CALLS, Form, Outcome, Side, Watched, err, introduce, is_all, memory, pair, pattern, scenes,
    set_min_multi_recv, until, works,
};

/// A length at which messages wait for their receiver on every device.
const LONG_BYTES: usize = 100_000;
/// The size of the queues under test.
const DEPTH: usize = 8;

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("full_transmit_queue", full_transmit_queue),
            ("messages_without_receives", messages_without_receives),
            ("full_receive_queue", full_receive_queue),
            ("overrun", overrun),
            ("multi_receives_over_a_full_queue", multi_receives_over_a_full_queue),
            ("truncation", truncation),
            ("receives_without_memory", receives_without_memory),
            ("cancel", cancel),
            ("impossible_sizes", impossible_sizes),
        ],
    );
}

/// Operations that cannot leave fill the transmit queue of their peer. An operation that does not fit has no
/// effect.
fn full_transmit_queue(lib: &Lib) {
    let a = Side::with(lib, 0, |hints| hints.tx().size = DEPTH);
    assert_eq!(a.info.tx().size, DEPTH);
    // No operation leaves before the peer makes progress, because that takes a connection.
    let (a, b, to_b, _) = introduce(a, Side::new(lib));
    assert_eq!(a.tx_left(), DEPTH as isize);
    for at in 0..DEPTH {
        let source = pattern(LONG_BYTES + at);
        source[0] = at as u8;
        assert_eq!(a.run("fi_tsend", &Args { context: at, ..Args::new(source, to_b) }), 0, "operation {at}");
    }
    assert_eq!(a.tx_left(), 0);
    let buf = memory(LONG_BYTES);
    for call in CALLS.iter().filter(|call| !call.recv && call.form != Form::Inject) {
        let args = Args { context: 0xbad, ..Args::new(buf, to_b) };
        for _ in 0..3 {
            assert_eq!(unsafe { (call.run)(a.ep, &args) }, err(FI_EAGAIN), "{}", call.name);
        }
    }
    assert_eq!(a.tx_left(), 0);
    take_in_order(&a, &b, DEPTH);
    assert_eq!(a.tx_left(), DEPTH as isize);
    works(&a, &b, to_b);
}

/// Messages that wait for receives of the peer occupy no queue entry, so a client may start many sends before
/// its receives.
fn messages_without_receives(lib: &Lib) {
    const MESSAGES: usize = 8 * DEPTH;
    let a = Side::with(lib, 0, |hints| hints.tx().size = DEPTH);
    let (a, b, to_b, _) = introduce(a, Side::new(lib));
    works(&a, &b, to_b);
    for at in 0..MESSAGES {
        let source = pattern(LONG_BYTES + at);
        source[0] = at as u8;
        let flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
        a.start("fi_tsendmsg", &Args { context: at, flags, ..Args::new(source, to_b) }, &[&b]);
    }
    a.nothing(&[&b]);
    b.nothing(&[&a]);
    assert_eq!(a.tx_left(), DEPTH as isize);
    take_in_order(&a, &b, MESSAGES);
    works(&a, &b, to_b);
}

/// A receive with a null pointer and a length takes an empty message. A longer message ends the receive with
/// an error and has no other effect.
fn receives_without_memory(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let send = |recv: &str, len| {
        let send = if recv.starts_with("fi_t") { "fi_tsend" } else { "fi_send" };
        a.start(send, &Args { context: 0xa1, ..Args::new(pattern(len), to_b) }, &[&b]);
    };
    let post = |recv: &str, args: Args| assert_eq!(b.run(recv, &Args { context: 0xb1, ..args }), 0, "{recv}");
    let nowhere = Args { buf: std::ptr::null_mut(), len: 2 * LONG_BYTES, ..Args::new(memory(0), 0) };
    let check = |what: &str, outcome: Outcome, len, fits| {
        assert_eq!(outcome.context(), 0xb1, "{what}");
        if fits {
            assert_eq!(outcome.done().len, len, "{what}");
        } else {
            let entry = outcome.failed();
            assert_eq!((entry.err, entry.flags & FI_RECV), (FI_EFAULT, FI_RECV), "{what}");
        }
        a.next(&[&b]).done();
    };
    for recv in CALLS.iter().filter(|call| call.recv).map(|call| call.name) {
        for (len, first) in [(0, true), (0, false), (8, true), (8, false), (LONG_BYTES, true), (LONG_BYTES, false)] {
            if first {
                post(recv, nowhere);
            }
            send(recv, len);
            if !first {
                // On most devices the message has arrived before the receive is posted.
                for _ in 0..20 {
                    a.progress();
                    b.progress();
                }
                post(recv, nowhere);
            }
            check(&format!("{recv} of {len} bytes, posted first: {first}"), b.next(&[&a]), len, len == 0);
        }
    }
    // The message fits in the piece before the null pointer, or it does not. It never reaches the piece
    // behind.
    let (front, back) = (memory(8), memory(LONG_BYTES));
    let piece = |buf: *mut u8, iov_len| libc::iovec { iov_base: buf.cast(), iov_len };
    let vector = [piece(front.as_mut_ptr(), 8), piece(std::ptr::null_mut(), 8), piece(back.as_mut_ptr(), LONG_BYTES)];
    for recv in ["fi_recvv", "fi_trecvv", "fi_recvmsg", "fi_trecvmsg"] {
        for len in [8, 9, 100, LONG_BYTES] {
            post(recv, Args { vector: Some((vector.as_ptr(), 3)), ..nowhere });
            send(recv, len);
            check(&format!("{recv} of {len} bytes into pieces"), b.next(&[&a]), len, len == 8);
        }
    }
    assert!(is_all(back, 0), "bytes behind the null pointer were written");
    // The error releases a multi-receive.
    post("fi_recvmsg", Args { flags: FI_MULTI_RECV, ..nowhere });
    send("fi_recv", 8);
    let entry = b.next(&[&a]).failed();
    assert_eq!((entry.err, entry.flags & FI_MULTI_RECV), (FI_EFAULT, FI_MULTI_RECV));
    a.next(&[&b]).done();
    b.nothing(&[&a]);
    works(&a, &b, to_b);
}

/// Receives `count` messages. The first byte, and the length beyond [`LONG_BYTES`], give the number of the
/// message.
fn take_in_order(a: &Side<'_>, b: &Side<'_>, count: usize) {
    let mut targets: Vec<_> = (0..count).map(|_| memory(LONG_BYTES + count)).collect();
    for (at, target) in targets.iter_mut().enumerate() {
        b.trecv(target, 0x100 + at);
    }
    let mut sent: Vec<usize> = Vec::new();
    for (at, target) in targets.iter().enumerate() {
        let entry = until(|| {
            sent.extend(a.poll().map(|outcome| outcome.done().op_context as usize));
            b.poll()
        });
        assert_eq!((entry.done().op_context as usize, entry.done().len), (0x100 + at, LONG_BYTES + at));
        assert_eq!(target[0], at as u8, "messages arrive in the order of the sends");
    }
    while sent.len() < count {
        sent.push(a.next(&[b]).done().op_context as usize);
    }
    sent.sort_unstable();
    assert_eq!(sent, (0..count).collect::<Vec<_>>());
    a.nothing(&[b]);
    b.nothing(&[a]);
}

/// Receives beyond the size are refused, with separate limits for tagged and untagged receives.
fn full_receive_queue(lib: &Lib) {
    let b = Side::with(lib, 0, |hints| hints.rx().size = DEPTH);
    assert_eq!(b.info.rx().size, DEPTH);
    let (a, b, to_b, _) = introduce(Side::new(lib), b);
    for (family, send) in [("fi_recv", "fi_send"), ("fi_trecv", "fi_tsend")] {
        let mut targets: Vec<_> = (0..DEPTH).map(|_| memory(8)).collect();
        for (at, target) in targets.iter_mut().enumerate() {
            assert_eq!(b.run(family, &Args { context: at, ..Args::new(target, 0) }), 0, "{family} {at}");
        }
        let spare = memory(8);
        for call in CALLS.iter().filter(|call| call.recv && call.name.starts_with(family)) {
            let args = Args { context: 0xbad, ..Args::new(spare, 0) };
            assert_eq!(unsafe { (call.run)(b.ep, &args) }, err(FI_EAGAIN), "{}", call.name);
        }
        assert_eq!(b.cancel(0xbad), err(FI_ENOENT), "a refused receive cannot be cancelled");
        let source = pattern(8);
        for at in 0..DEPTH {
            source[0] = at as u8;
            a.start(send, &Args { context: 0xa0, ..Args::new(source, to_b) }, &[]);
            assert_eq!(b.next(&[&a]).done().op_context as usize, at);
            a.next(&[&b]).done();
            if at == 0 {
                // There is room for one receive.
                assert_eq!(b.run(family, &Args { context: DEPTH, ..Args::new(memory(8), 0) }), 0);
                assert_eq!(b.run(family, &Args { context: 0xbad, ..Args::new(spare, 0) }), err(FI_EAGAIN));
            }
        }
        assert!(targets.iter().enumerate().all(|(at, target)| target[0] == at as u8));
        assert_eq!(b.cancel(DEPTH), 0);
        assert_eq!(b.next(&[&a]).failed().err, FI_ECANCELED);
        assert_eq!(spare, memory(8));
    }
}

/// The client does not read a queue. New operations are refused. Accepted operations and unsolicited events
/// are all reported, in order.
fn overrun(lib: &Lib) {
    const SIZE: usize = 4;
    const SENT: usize = 64;
    let (a, b, to_b, _) = introduce(Side::with(lib, SIZE, |_| ()), Side::with(lib, SIZE, |_| ()));
    works(&a, &b, to_b);
    // The receiver accepted these receives while the queue was empty, so it must report all of them.
    for at in 0..SENT {
        b.trecv(memory(8), at);
    }
    let mut accepted = 0;
    let buf = pattern(8);
    while accepted < SENT {
        match a.run("fi_tsend", &Args { context: accepted, ..Args::new(buf, to_b) }) {
            0 => accepted += 1,
            again => {
                assert_eq!(again, err(FI_EAGAIN));
                assert!(accepted >= SIZE, "{accepted} operations do not overrun {SIZE} entries");
                break;
            }
        }
    }
    assert!(accepted < SENT, "a queue of {SIZE} accepts any number of operations");
    let refused = |side: &Side<'_>, calls: fn(&&crate::side::Call) -> bool| {
        for call in CALLS.iter().filter(calls) {
            let args = Args { context: 0xbad, ..Args::new(memory(8), to_b) };
            assert_eq!(unsafe { (call.run)(side.ep, &args) }, err(FI_EAGAIN), "{}", call.name);
        }
    };
    refused(&a, |call| !call.recv);
    for at in 0..SENT {
        if at >= accepted {
            a.start("fi_tsend", &Args { context: at, ..Args::new(buf, to_b) }, &[]);
        }
        // The sends complete in order. The receiver makes progress, but does not read.
        assert_eq!(a.next(&[&b]).done().op_context as usize, at);
    }
    a.nothing(&[&b]);
    refused(&b, |_| true);
    for at in 0..SENT {
        assert_eq!(b.next(&[]).done().op_context as usize, at);
    }
    b.nothing(&[&a]);
    unsolicited(&a, &b, to_b);
    works(&a, &b, to_b);
}

/// Peers' writes with data are reported however full the queue is.
fn unsolicited(a: &Side<'_>, b: &Side<'_>, to_b: u64) {
    const WRITES: u64 = 300;
    let mr = b.register(memory(8), FI_REMOTE_WRITE, 3);
    let (buf, context) = (pattern(8), std::ptr::null_mut());
    let write = unsafe { (*(*a.ep).rma).writedata.unwrap() };
    for data in 0..WRITES {
        let no = std::ptr::null_mut();
        assert_eq!(unsafe { write(a.ep, buf.as_ptr().cast(), 8, no, data, to_b, 0, 3, context) }, 0);
        a.next(&[b]).done();
    }
    for data in 0..WRITES {
        let entry = b.next(&[]).done();
        assert_eq!((entry.flags & FI_REMOTE_CQ_DATA, entry.data), (FI_REMOTE_CQ_DATA, data));
    }
    b.nothing(&[a]);
    assert_eq!(close(mr), 0);
}

/// A client whose buffer is full posts the next one while it reads (GASNet does, and treats a refusal as an
/// error). The post is accepted, although the queue holds more entries than its size.
fn multi_receives_over_a_full_queue(lib: &Lib) {
    const SENT: usize = 20;
    let (a, b, to_b, _) = introduce(Side::new(lib), Side::with(lib, DEPTH, |_| ()));
    works(&a, &b, to_b);
    set_min_multi_recv(b.ep, 8);
    for context in 1..=2 {
        let args = Args { flags: FI_MULTI_RECV, context, ..Args::new(memory(8 * SENT), 0) };
        assert_eq!(b.run("fi_recvmsg", &args), 0, "buffer {context}");
        for _ in 0..SENT {
            let sent = Args { flags: FI_COMPLETION | FI_DELIVERY_COMPLETE, ..Args::new(pattern(8), to_b) };
            a.start("fi_sendmsg", &sent, &[]);
            a.next(&[&b]).done();
        }
        assert_eq!(b.run("fi_recvmsg", &Args { flags: 0, ..args }), err(FI_EAGAIN), "this receive is for one message");
    }
    for at in 0..2 * SENT {
        let entry = b.next(&[]).done();
        let last = at % SENT == SENT - 1;
        assert_eq!(
            (entry.op_context as usize, entry.flags & FI_MULTI_RECV != 0),
            (1 + at / SENT, last),
            "message {at}"
        );
    }
    b.nothing(&[&a]);
    works(&a, &b, to_b);
}

/// fi_cq(3): FI_ETRUNC, the received bytes in `len`, the others in `olen`, and no byte behind the buffer.
fn truncation(lib: &Lib) {
    const GUARD: usize = 64;
    let (a, b, to_b, _) = pair(lib);
    let lengths = [(64, 16), (1, 0), (5000, 4999), (LONG_BYTES, 4096), (LONG_BYTES, 0), (1 << 20, LONG_BYTES)];
    for (sent, room) in lengths {
        for (send, recv, family) in [("fi_tsenddata", "fi_trecv", FI_TAGGED), ("fi_senddata", "fi_recv", FI_MSG)] {
            for expected in [true, false] {
                let what = format!("{sent} bytes into {room} by {recv}, expected: {expected}");
                let (source, whole) = (pattern(sent), memory(room + GUARD));
                let (target, guard) = whole.split_at_mut(room);
                let post = |target: &mut [u8]| b.start(recv, &Args { context: 0xb, ..Args::new(target, 0) }, &[]);
                let start = |source: &mut [u8]| a.start(send, &Args { context: 0xa, ..Args::new(source, to_b) }, &[]);
                if expected {
                    post(target);
                    start(source);
                } else {
                    start(source);
                    (0..100).for_each(|_| [&a, &b].iter().for_each(|side| side.progress()));
                    post(target);
                }
                let failed = b.next(&[&a]).failed();
                assert_eq!((failed.err as u32, failed.op_context as usize), (FI_ETRUNC, 0xb), "{what}");
                assert_eq!((failed.len, failed.olen), (room, sent - room), "{what}");
                assert_eq!(failed.flags & (FI_RECV | family), FI_RECV | family, "{what}");
                assert_eq!((failed.flags & FI_REMOTE_CQ_DATA, failed.data), (FI_REMOTE_CQ_DATA, 0xda7a), "{what}");
                if family == FI_TAGGED {
                    assert_eq!(failed.tag, Args::new(&mut [], 0).tag, "{what}");
                }
                assert_eq!(a.next(&[&b]).done().op_context as usize, 0xa, "{what}");
                assert_eq!(*target, source[..room], "{what}");
                assert!(is_all(guard, 0), "{what}: written beyond the buffer");
            }
        }
    }
    pieces(&a, &b, to_b);
    a.nothing(&[&b]);
    b.nothing(&[&a]);
    works(&a, &b, to_b);
}

/// A buffer of pieces with a gap between them.
fn pieces(a: &Side<'_>, b: &Side<'_>, to_b: u64) {
    for sent in [100, LONG_BYTES] {
        let (source, target) = (pattern(sent), memory(100));
        let base = target.as_mut_ptr();
        let piece = |at: usize, iov_len| libc::iovec { iov_base: base.wrapping_add(at).cast(), iov_len };
        let vector = [piece(0, 10), piece(20, 0), piece(50, 30)];
        let args = Args { vector: Some((vector.as_ptr(), 3)), ..Args::new(&mut [], 0) };
        b.start("fi_trecvv", &args, &[]);
        a.tsend(source, to_b, 1);
        let failed = b.next(&[a]).failed();
        assert_eq!((failed.err as u32, failed.len, failed.olen), (FI_ETRUNC, 40, sent - 40));
        a.next(&[b]).done();
        assert_eq!((&target[..10], &target[50..80]), (&source[..10], &source[10..40]));
        assert!(target[10..50].iter().chain(&target[80..]).all(|&byte| byte == 0));
    }
}

/// fi_endpoint(3), fi_cancel: a pending receive ends once, as cancelled. Other receives are not found.
fn cancel(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    assert_eq!(b.cancel(0x1), err(FI_ENOENT), "there is no receive");
    let (first, second) = (memory(8), memory(8));
    b.trecv(first, 0x1);
    b.trecv(second, 0x1);
    assert_eq!(b.cancel(0x2), err(FI_ENOENT));
    b.nothing(&[&a]);
    assert_eq!(b.cancel(0x1), 0);
    let cancelled = b.next(&[&a]).failed();
    assert_eq!((cancelled.err, cancelled.op_context as usize), (FI_ECANCELED, 0x1));
    b.nothing(&[&a]);
    // The other receive takes the message. The client may use the memory of the cancelled one.
    a.tsend(pattern(8), to_b, 0xa);
    assert_eq!(b.next(&[&a]).done().op_context as usize, 0x1);
    a.next(&[&b]).done();
    assert_eq!((first, second), (memory(8), pattern(8)));
    assert_eq!(b.cancel(0x1), err(FI_ENOENT), "both receives have ended");
    // A receive whose message is arriving cannot be cancelled any more.
    const BYTES: usize = 8 << 20;
    let (source, target) = (pattern(BYTES), memory(BYTES));
    let begun = Watched::new(target);
    b.trecv(target, 0x3);
    a.tsend(source, to_b, 0xa);
    assert_eq!(a.cancel(0xa), err(FI_ENOENT), "sends are not cancelled");
    until(|| {
        a.progress();
        b.progress();
        begun.begun().then_some(())
    });
    begun.assert_incomplete();
    assert_eq!(b.cancel(0x3), err(FI_ENOENT));
    assert_eq!(b.next(&[&a]).done().op_context as usize, 0x3);
    a.next(&[&b]).done();
    assert_eq!(target, source);
}

/// Attributes that a client changed after fi_getinfo returned them, and impossible queue sizes.
fn impossible_sizes(lib: &Lib) {
    let side = Side::new(lib);
    let info = side.info.raw;
    let fresh = || lib.ask(lib.newest(), None).unwrap();
    let refused = |what: &str, info: *mut fi_info| {
        let ep: Result<*mut fid_ep, c_int> = open!(side.opened.domain, endpoint, info);
        assert_eq!(ep, Err(FI_EINVAL), "{what}");
    };
    type Change = (&'static str, fn(&mut fi_info));
    let changes: [Change; 9] = unsafe {
        [
            ("transmit queue", |info| (*info.tx_attr).size = usize::MAX),
            ("receive queue", |info| (*info.rx_attr).size = usize::MAX),
            ("transmit queue just too long", |info| (*info.tx_attr).size = (1 << 20) + 1),
            ("inject", |info| (*info.tx_attr).inject_size = usize::MAX),
            ("transmit pieces", |info| (*info.tx_attr).iov_limit = 9),
            ("remote pieces", |info| (*info.tx_attr).rma_iov_limit = 9),
            ("receive pieces", |info| (*info.rx_attr).iov_limit = 9),
            ("message", |info| (*info.ep_attr).max_msg_size = usize::MAX),
            ("default flags", |info| (*info.tx_attr).op_flags = FI_PEEK),
        ]
    };
    for (what, change) in changes {
        let changed = fresh();
        change(changed.get());
        refused(what, changed.raw);
    }
    let ep: *mut fid_ep = open!(side.opened.domain, endpoint, info).expect("attributes as fi_getinfo returned them");
    assert_eq!(close(ep), 0);
    let mut attr: fi_cq_attr = unsafe { std::mem::zeroed() };
    for size in [usize::MAX, 1 << 40] {
        attr.size = size;
        let cq: Result<*mut fid_cq, c_int> = open!(side.opened.domain, cq_open, &mut attr);
        assert_eq!(cq, Err(FI_ENOMEM), "a queue of {size:#x} entries");
    }
    // The number of addresses is only a hint.
    let av = side.opened.av(|attr| attr.count = usize::MAX).unwrap();
    assert_eq!(close(av), 0);
    attr.size = 0;
    attr.format = 99;
    let cq: Result<*mut fid_cq, c_int> = open!(side.opened.domain, cq_open, &mut attr);
    assert_eq!(cq, Err(FI_EINVAL), "an unknown format");
    assert!(side.poll().map(|outcome: Outcome| outcome.context()).is_none());
}
