//! An end is reported after everything that arrived before it: on the connection itself, and on others that report to
//! the same queues.

use std::time::Duration;

use weft_fi_sys::*;

use super::ends::{End, Event, Listener, accept, connected};
use crate::client::{Lib, bind, close};
use crate::open;
use crate::side::{Args, call, err, memory, pattern, scenes};

pub(super) fn all(lib: &Lib) {
    scenes(lib, &[("late receives", late_receives), ("siblings", siblings)]);
}

/// A receive that is posted after the end is accepted. It takes a message that arrived before, or it is cancelled, in
/// the order of the entries that wait.
fn late_receives(lib: &Lib) {
    let listener = Listener::new(lib);
    let (a, b) = connected(&listener);
    let target = memory(8);
    let mr = b.side.register(target, FI_REMOTE_WRITE, 7);
    let addr = if b.side.info.domain().mr_mode & FI_MR_VIRT_ADDR != 0 { target.as_ptr() as u64 } else { 0 };
    let write = Args { key: 7, addr, context: 1, ..Args::new(pattern(8), 0) };
    a.side.start("fi_writedata", &write, &[&b.side]);
    assert_eq!(a.next(&b).done().op_context as usize, 1);
    a.side.start("fi_inject", &Args::new(pattern(8), 0), &[&b.side]);
    // The server has not read of the write when it learns of the end.
    assert_eq!(a.shutdown(), 0);
    assert_eq!(b.eq.next(&[a.eq]), Event::Shutdown { ep: b.fid() });
    let received = memory(8);
    assert_eq!(b.side.run("fi_recv", &Args { context: 2, ..Args::new(received, 0) }), 0);
    for (call, context) in [("fi_recv", 3), ("fi_trecv", 4), ("fi_recvv", 5)] {
        assert_eq!(b.side.run(call, &Args { context, ..Args::new(memory(8), 0) }), 0, "{call}");
    }
    assert_eq!(b.side.run("fi_recvmsg", &Args { context: 6, flags: FI_MULTI_RECV, ..Args::new(memory(64), 0) }), 0);
    let written = b.side.next(&[]).done();
    assert_eq!((written.flags & FI_REMOTE_CQ_DATA, written.data), (FI_REMOTE_CQ_DATA, 0xda7a));
    assert_eq!(b.side.next(&[]).done().op_context as usize, 2);
    assert_eq!((&*target, &*received), (&*pattern(8), &*pattern(8)));
    for context in 3..=6 {
        let failed = b.side.next(&[]).failed();
        assert_eq!((failed.op_context as usize, failed.err), (context, FI_ECANCELED));
    }
    // A client that posts receives until its queue is full comes to an end.
    let posted = (0..1_000_000).take_while(|_| b.side.run("fi_recv", &Args::new(memory(0), 0)) == 0).count();
    assert!((1..100_000).contains(&posted), "{posted}");
    for _ in 0..posted {
        assert_eq!(b.side.next(&[]).failed().err, FI_ECANCELED);
    }
    assert_eq!(b.side.run("fi_send", &Args::new(memory(8), 0)), err(FI_ENOTCONN));
    assert_eq!(close(mr), 0);
}

/// A server has two connections that report to the same queues. The message of one arrives before the other ends.
fn siblings(lib: &Lib) {
    for (last_ends, by_events) in [(false, false), (true, false), (false, true), (true, true)] {
        let listener = Listener::new(lib);
        let (a, first) = connected(&listener);
        let b = End::new(lib);
        assert_eq!(b.connect(&listener.name(), &[]), 0);
        let (info, _) = listener.called(&b);
        let other = open!(first.side.opened.domain, endpoint, info).unwrap();
        drop(lib.own(info));
        assert_eq!((bind(other, first.side.cq, FI_TRANSMIT | FI_RECV), bind(other, first.eq.0, 0)), (0, 0));
        assert_eq!(accept(other, &[]), 0);
        assert_eq!(b.eq.next(&[first.eq]), Event::Connected { ep: b.fid(), data: Vec::new() });
        assert_eq!(first.eq.next(&[b.eq]), Event::Connected { ep: other as usize, data: Vec::new() });
        let (talks, ends, at_talker, at_end) =
            if last_ends { (&a, &b, first.side.ep, other) } else { (&b, &a, other, first.side.ep) };
        for (ep, context) in [(at_talker, 1), (at_end, 2)] {
            let args = Args { context, ..Args::new(memory(8), 0) };
            assert_eq!(unsafe { (call("fi_recv").run)(ep, &args) }, 0);
        }
        talks.side.start("fi_send", &Args { context: 3, ..Args::new(pattern(8), 0) }, &[]);
        talks.side.progress();
        assert_eq!(ends.shutdown(), 0);
        // Over TCP both arrive within this time.
        std::thread::sleep(Duration::from_millis(30));
        let shutdown = Some(Event::Shutdown { ep: at_end as usize });
        let event = by_events.then(|| first.eq.next(&[]));
        assert_eq!(first.side.next(&[]).done().op_context as usize, 1, "{last_ends} {by_events}");
        let failed = first.side.next(&[]).failed();
        assert_eq!((failed.op_context as usize, failed.err), (2, FI_ECANCELED));
        assert_eq!(event.or_else(|| first.eq.poll()), shutdown);
        assert_eq!(close(other), 0);
    }
}
