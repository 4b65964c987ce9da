//! Deferred work: every type of operation, its start and its completion, in both progress models.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::time::Duration;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close, control};
use crate::rig::{Amo, Cntr, MODELS, Request, Rig, Work, queue};
use crate::side::{Args, Outcome, PATIENCE, Scene, Side, is_all, long_bytes, memory, pattern, scenes, until};

const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
const SCENES: &[Scene] = &[
    ("every type", every_type),
    ("atomics", atomics),
    ("completions on request", completions_on_request),
    ("order", order),
    ("reached already", reached_already),
    ("its own counter", its_own_counter),
    ("one counter for both", one_counter_for_both),
    ("errors count", errors_count),
    ("failures are reported", failures_are_reported),
    ("cancelled before", cancelled_before),
    ("cancelled after", cancelled_after),
    ("flushed", flushed),
    ("bad requests", bad_requests),
    ("full queues", full_queues),
    ("the other queue", the_other_queue),
    ("closing objects", closing_objects),
    ("regions", regions),
    ("many threads", many_threads),
    ("a sleeping client", a_sleeping_client),
];

pub(crate) fn all(lib: &Lib) {
    scenes(lib, SCENES);
}

/// Runs a scene in both progress models.
fn both(lib: &Lib, scene: fn(&Rig<'_>)) {
    for model in MODELS {
        scene(&Rig::new(lib, model));
    }
}

fn place(memory: &[u8], key: u64) -> fi_rma_iov {
    fi_rma_iov { addr: 0, len: memory.len(), key }
}

/// Asserts that neither endpoint reports a completion.
#[track_caller]
fn silence(rig: &Rig<'_>) {
    rig.a.nothing(&[&rig.b]);
    rig.b.nothing(&[&rig.a]);
}

/// Each type except atomics starts at the threshold, not before, and raises its counter by one. It makes no
/// other report, and raises no bound counter of the endpoint.
fn every_type(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        for len in [100, 30_000] {
            let [trigger, done, counted] = [(); 3].map(|()| rig.cntr(a));
            let (received, far) = (rig.cntr(b), rig.cntr(b));
            // Messages go both ways, so that sends and receives are deferred on one side.
            let (out, window) = (pattern(len), memory(2 * len));
            let [sent, tsent, got, tgot, read] = [(); 5].map(|()| memory(len));
            let mr = b.register(window, REMOTE, 9);
            window[len..].copy_from_slice(out);
            let (upper, lower) = (fi_rma_iov { addr: len as u64, len, key: 9 }, fi_rma_iov { addr: 0, len, key: 9 });
            let at = |n| queue(a, trigger, 3, Some(done), n);
            let _requests = [
                at(Work::Recv(got)),
                at(Work::TaggedRecv(tgot, 5)),
                at(Work::Send(out, rig.to_b)),
                at(Work::TaggedSend(out, rig.to_b, 7)),
                at(Work::Write(out, rig.to_b, lower)),
                at(Work::Read(read, rig.to_b, upper)),
            ];
            let _counted = queue(a, trigger, 3, None, Work::Set(counted, 40));
            let _added = queue(a, trigger, 3, None, Work::Add(counted, 2));
            // The other side's work is deferred, too, by a counter that has reached the threshold.
            far.add(1);
            for work in [Work::Recv(sent), Work::TaggedRecv(tsent, 7)] {
                queue(b, far, 1, Some(received), work);
            }
            for work in [Work::Send(out, rig.to_a), Work::TaggedSend(out, rig.to_a, 5)] {
                queue(b, far, 1, Some(received), work);
            }
            trigger.add(2);
            silence(rig);
            assert_eq!((done.read(), counted.read()), (0, 0), "the counter is below the threshold");
            trigger.add(1);
            done.reaches(6, &rig.sides());
            received.reaches(4, &rig.sides());
            assert_eq!(counted.read(), 42);
            assert_eq!([sent, tsent, got, tgot, read], [(); 5].map(|()| &*out), "{len} bytes");
            assert!(&window[..len] == out);
            silence(rig);
            assert_eq!((done.errors(), received.errors()), (0, 0));
            assert_eq!(close(mr), 0);
        }
    });
}

/// The three atomic types.
fn atomics(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let (trigger, done) = (rig.cntr(a), rig.cntr(a));
        let numbers = |list: [u64; 3]| list.to_vec().leak();
        let window = memory(24);
        let mr = b.register(window, REMOTE, 5);
        let there = || window.chunks(8).map(|eight| u64::from_ne_bytes(eight.try_into().unwrap())).collect::<Vec<_>>();
        let amo = |kind, op, operands, compare, result| {
            Work::Atomic(Amo { kind, op, operands, compare, result, dest: rig.to_b, addr: 0, key: 5 })
        };
        let none = || numbers([0; 3]);
        let (fetched, swapped) = (none(), none());
        queue(a, trigger, 1, Some(done), amo(FI_OP_ATOMIC, FI_SUM, numbers([1, 2, 3]), none(), none()));
        queue(a, trigger, 2, Some(done), amo(FI_OP_FETCH_ATOMIC, FI_SUM, numbers([10, 20, 30]), none(), fetched));
        let (wanted, new) = (numbers([11, 0, 33]), numbers([7, 8, 9]));
        queue(a, trigger, 3, Some(done), amo(FI_OP_COMPARE_ATOMIC, FI_CSWAP, new, wanted, swapped));
        silence(rig);
        assert_eq!(there(), [0, 0, 0]);
        trigger.add(1);
        done.reaches(1, &rig.sides());
        assert_eq!(there(), [1, 2, 3]);
        trigger.add(2);
        done.reaches(3, &rig.sides());
        assert_eq!(there(), [7, 22, 9]);
        assert_eq!((&*fetched, &*swapped), (&[1, 2, 3][..], &[11, 22, 33][..]));
        silence(rig);
        assert_eq!(done.errors(), 0);
        // A request that no call would accept is refused at once.
        let mut request = Request::new(trigger, 1, Some(done));
        let bad = amo(FI_OP_FETCH_ATOMIC, 99, numbers([1; 3]), none(), none());
        assert_eq!(request.queue(a, &bad), -FI_EOPNOTSUPP);
        let bad = amo(FI_OP_ATOMIC, FI_CSWAP, numbers([1; 3]), none(), none());
        assert_eq!(request.queue(a, &bad), -FI_EOPNOTSUPP);
        request.flags = FI_INJECT;
        assert_eq!(request.queue(a, &amo(FI_OP_ATOMIC, FI_SUM, none(), none(), none())), -FI_EINVAL);
        assert_eq!(close(mr), 0);
    });
}

/// Work with FI_COMPLETION is also reported in the endpoint's queue, as other operations are.
fn completions_on_request(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let [trigger, done, sends] = [(); 3].map(|()| rig.cntr(a));
        assert_eq!(bind(a.ep, sends.0, FI_SEND), 0);
        let target = memory(64);
        b.trecv(target, 0x70);
        let mut request = Request { flags: FI_COMPLETION, context: 0x71, ..Request::new(trigger, 1, Some(done)) };
        assert_eq!(request.queue(a, &Work::TaggedSend(pattern(64), rig.to_b, Args::new(&mut [], 0).tag)), 0);
        trigger.add(1);
        let entry = a.next(&[b]).done();
        assert_eq!((entry.op_context as usize, entry.flags), (0x71, FI_SEND | FI_TAGGED));
        assert_eq!(b.next(&[a]).done().len, 64);
        done.reaches(1, &[a]);
        sends.reaches(1, &[a]);
        // Work without FI_COMPLETION is not reported there.
        b.trecv(target, 0x72);
        queue(a, trigger, 1, Some(done), Work::TaggedSend(target, rig.to_b, Args::new(&mut [], 0).tag));
        assert_eq!(b.next(&[a]).done().op_context as usize, 0x72);
        done.reaches(2, &[a]);
        assert_eq!(sends.read(), 1);
        silence(rig);
    });
}

/// Work starts by threshold however far the counter jumps, and in the order of submission for equal
/// thresholds.
fn order(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let [trigger, done] = [(); 2].map(|()| rig.cntr(a));
        let thresholds = [5_u64, 1, 4, 2, 3, 1, 5, 9, 2];
        let names: Vec<&mut [u8]> = (0..9_u8).map(|n| vec![n; 3].leak()).collect();
        let mut expected: Vec<u8> = (0..9).filter(|&n| thresholds[n as usize] <= 8).collect();
        expected.sort_by_key(|&n| thresholds[n as usize]);
        for (&threshold, name) in thresholds.iter().zip(names) {
            queue(a, trigger, threshold, Some(done), Work::Send(name, rig.to_b));
        }
        trigger.set(8);
        let target = memory(3);
        for name in expected {
            b.start("fi_recv", &Args::new(target, 0), &[a]);
            b.next(&[a]).done();
            assert_eq!(target[0], name);
        }
        done.reaches(8, &[a]);
        // Thresholds have more than 32 bits.
        let counted = rig.cntr(a);
        for threshold in [1 << 33, (1 << 32) + 9] {
            queue(a, trigger, threshold, None, Work::Add(counted, threshold));
        }
        trigger.set((1 << 32) + 8);
        assert_eq!((done.read(), counted.read()), (9, 0));
        trigger.set(1 << 40);
        counted.reaches((1 << 32) + 9 + (1 << 33), &[a]);
    });
}

fn reached_already(lib: &Lib) {
    both(lib, |rig| {
        let (trigger, counted) = (rig.cntr(&rig.a), rig.cntr(&rig.a));
        queue(&rig.a, trigger, 0, None, Work::Add(counted, 1));
        assert_eq!(counted.read(), 1, "a threshold of 0 is always reached");
        trigger.add(7);
        queue(&rig.a, trigger, 7, None, Work::Add(counted, 1));
        assert_eq!(counted.read(), 2);
        let mut later = queue(&rig.a, trigger, 8, None, Work::Add(counted, 1));
        assert_eq!(counted.read(), 2);
        assert_eq!(later.control(&rig.a, FI_CANCEL_WORK), 0);
        // Work that was triggered when it was queued stays triggered, whatever the counter does later.
        trigger.set(0);
        assert_eq!(counted.read(), 2);
    });
}

/// Work may operate on the counter that triggers it.
fn its_own_counter(lib: &Lib) {
    both(lib, |rig| {
        let (trigger, done) = (rig.cntr(&rig.a), rig.cntr(&rig.a));
        for threshold in 1..=200 {
            queue(&rig.a, trigger, threshold, None, Work::Add(trigger, 1));
        }
        queue(&rig.a, trigger, 201, None, Work::Set(trigger, 1000));
        queue(&rig.a, trigger, 1000, None, Work::Set(done, 1));
        trigger.add(1);
        trigger.reaches(1000, &[]);
        done.reaches(1, &[]);
    });
}

/// Each send's completion triggers the next one.
fn one_counter_for_both(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let (chain, received) = (rig.cntr(a), rig.cntr(b));
        assert_eq!(bind(b.ep, received.0, FI_RECV), 0);
        let target = memory(64);
        for _ in 0..20 {
            b.start("fi_recv", &Args::new(target, 0), &[a]);
        }
        for threshold in 1..=20 {
            queue(a, chain, threshold, Some(chain), Work::Send(pattern(64), rig.to_b));
        }
        silence(rig);
        chain.add(1);
        chain.reaches(21, &rig.sides());
        received.reaches(20, &rig.sides());
        for _ in 0..20 {
            b.next(&[a]).done();
        }
        silence(rig);
    });
}

/// Thresholds are compared with the sum of successes and errors.
fn errors_count(lib: &Lib) {
    both(lib, |rig| {
        let (trigger, counted) = (rig.cntr(&rig.a), rig.cntr(&rig.a));
        queue(&rig.a, trigger, 3, None, Work::Add(counted, 1));
        trigger.fail(1);
        trigger.add(1);
        assert_eq!(counted.read(), 0);
        trigger.fail(1);
        assert_eq!(counted.read(), 1, "one success and two errors");
        queue(&rig.a, trigger, 3, None, Work::Add(counted, 1));
        assert_eq!(counted.read(), 2);
        queue(&rig.a, trigger, 9, None, Work::Add(counted, 1));
        trigger.set(7);
        assert_eq!((counted.read(), trigger.read(), trigger.errors()), (3, 7, 2));
    });
}

/// Failed work raises the error count of its counter, and of work that waits for that counter. An error entry
/// is written on request, or if the work has no counter.
fn failures_are_reported(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let [trigger, done, counted] = [(); 3].map(|()| rig.cntr(a));
        trigger.add(1);
        let nowhere = fi_rma_iov { addr: 0, len: 8, key: 0xbad };
        queue(a, done, 1, None, Work::Add(counted, 1));
        queue(a, trigger, 1, Some(done), Work::Write(pattern(8), rig.to_b, nowhere));
        counted.reaches(1, &rig.sides());
        assert_eq!((done.read(), done.errors()), (0, 1));
        silence(rig);
        let mut request = Request { flags: FI_COMPLETION, ..Request::new(trigger, 1, Some(done)) };
        assert_eq!(request.queue(a, &Work::Read(memory(8), rig.to_b, nowhere)), 0);
        let failed = a.next(&[b]).failed();
        assert_eq!((failed.op_context as usize, failed.err), (0xdef, FI_EKEYREJECTED as c_int));
        assert_eq!((done.read(), done.errors()), (0, 2));
        queue(a, trigger, 1, None, Work::Write(pattern(8), rig.to_b, nowhere));
        assert_eq!(a.next(&[b]).failed().err, FI_EKEYREJECTED as c_int, "no counter would report it");
        silence(rig);
    });
}

fn cancelled_before(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let [trigger, done, counted] = [(); 3].map(|()| rig.cntr(a));
        let target = memory(8);
        b.start("fi_recv", &Args::new(target, 0), &[a]);
        let mut send = queue(a, trigger, 1, Some(done), Work::Send(pattern(8), rig.to_b));
        let mut twice = queue(a, trigger, 2, None, Work::Add(counted, 1));
        assert_eq!(twice.queue(a, &Work::Add(counted, 10)), 0, "one structure may serve for several requests");
        let _stays = queue(a, trigger, 1, None, Work::Add(counted, 100));
        assert_eq!(send.control(a, FI_CANCEL_WORK), 0);
        assert_eq!(send.control(a, FI_CANCEL_WORK), -FI_ENOENT, "once");
        assert_eq!(twice.control(a, FI_CANCEL_WORK), 0);
        trigger.add(5);
        assert_eq!(counted.read(), 100);
        silence(rig);
        assert!(is_all(target, 0) && (done.read(), done.errors()) == (0, 0));
        assert_eq!(b.run("fi_recv", &Args::new(memory(8), 0)), 0);
    });
}

/// Cancels started work. An unmatched receive is taken back. A pending operation is waited for, for a bounded
/// time.
fn cancelled_after(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let [trigger, done] = [(); 2].map(|()| rig.cntr(a));
        trigger.add(1);
        let target = memory(64);
        let mut recv = queue(a, trigger, 1, Some(done), Work::TaggedRecv(target, 5));
        assert_eq!(recv.control(a, FI_CANCEL_WORK), 0);
        assert_eq!(recv.control(a, FI_CANCEL_WORK), -FI_ENOENT);
        b.start("fi_tsend", &Args { tag: 5, ..Args::new(pattern(64), rig.to_a) }, &[a]);
        b.next(&[a]).done();
        silence(rig);
        assert!(is_all(target, 0), "the buffer of a cancelled receive was written");
        assert_eq!((done.read(), done.errors()), (0, 0));
        a.start("fi_trecv", &Args { tag: 5, ..Args::new(target, 0) }, &[b]);
        a.next(&[b]).done();
        // A long send without a receive cannot be taken back.
        let len = long_bytes();
        let mut send = queue(a, trigger, 1, Some(done), Work::TaggedSend(pattern(len), rig.to_b, 6));
        silence(rig);
        assert_eq!(send.control(a, FI_CANCEL_WORK), -FI_EBUSY);
        let long = memory(len);
        b.start("fi_trecv", &Args { tag: 6, ..Args::new(long, 0) }, &[a]);
        b.next(&[a]).done();
        done.reaches(1, &rig.sides());
        assert_eq!(send.control(a, FI_CANCEL_WORK), -FI_ENOENT, "the work has ended");
    });
}

fn flushed(lib: &Lib) {
    both(lib, |rig| {
        let [one, two, counted] = [(); 3].map(|()| rig.cntr(&rig.a));
        let domain = rig.a.opened.domain;
        for amount in [1, 10] {
            queue(&rig.a, one, 1, None, Work::Add(counted, amount));
            queue(&rig.a, two, 1, None, Work::Add(counted, 100 * amount));
        }
        assert_eq!(control(domain, FI_FLUSH_WORK, one.0.cast()), 0);
        one.add(1);
        assert_eq!(counted.read(), 0);
        two.add(1);
        assert_eq!(counted.read(), 1100);
        queue(&rig.a, one, 2, None, Work::Add(counted, 1));
        queue(&rig.a, two, 2, None, Work::Send(memory(8), rig.to_b));
        assert_eq!(control(domain, FI_FLUSH_WORK, null_mut()), 0);
        assert_eq!(control(domain, FI_FLUSH_WORK, null_mut()), 0, "no work is left");
        one.add(1);
        two.add(1);
        silence(rig);
        assert_eq!(counted.read(), 1100);
    });
}

/// Requests that are refused have no side effect.
fn bad_requests(lib: &Lib) {
    let rig = Rig::new(lib, FI_PROGRESS_MANUAL);
    let (a, b) = (&rig.a, &rig.b);
    let (trigger, done, foreign) = (rig.cntr(a), rig.cntr(a), rig.cntr(b));
    let (to_b, buf) = (rig.to_b, memory(64));
    let nothing = Cntr(null_mut());
    let wrong = Cntr(a.cq.cast());
    let refused = |request: &mut Request, work: Work, errno: c_int| {
        assert_eq!(request.queue(a, &work), -errno);
    };
    let new = || Request::new(trigger, 1, Some(done));
    let with = |flags| Request { flags, ..new() };
    for (cntr, errno) in [(nothing, FI_EINVAL), (wrong, FI_EINVAL), (foreign, FI_EDOMAIN as c_int)] {
        refused(&mut Request::new(cntr, 1, Some(done)), Work::Send(buf, to_b), errno);
        refused(&mut Request::new(trigger, 1, None), Work::Add(cntr, 1), errno);
        if cntr != nothing {
            refused(&mut Request::new(trigger, 1, Some(cntr)), Work::Send(buf, to_b), errno);
        }
    }
    refused(&mut new(), Work::Add(trigger, 1), FI_EINVAL);
    refused(&mut new(), Work::Set(trigger, 1), FI_EINVAL);
    refused(&mut with(FI_INJECT), Work::Send(buf, to_b), FI_EINVAL);
    refused(&mut with(1 << 63), Work::Send(buf, to_b), FI_EINVAL);
    refused(&mut with(FI_INJECT), Work::Write(buf, to_b, place(&[0; 64], 1)), FI_EINVAL);
    for flags in [FI_PEEK, FI_PEEK | FI_CLAIM, FI_CLAIM, FI_MULTI_RECV] {
        refused(&mut with(flags), Work::Recv(buf), FI_ENOSYS);
    }
    refused(&mut with(FI_COMMIT_COMPLETE), Work::Send(buf, to_b), FI_EOPNOTSUPP);
    refused(&mut new(), Work::Send(buf, to_b + 1000), FI_EINVAL);
    refused(&mut new(), Work::Write(buf, to_b, place(&[0; 63], 1)), FI_EINVAL);
    // Unknown types, and null structures.
    let mut request = new();
    for (kind, errno) in [(99, FI_ENOSYS), (FI_OP_SEND, FI_EINVAL), (FI_OP_READ, FI_EINVAL), (FI_OP_TRECV, FI_EINVAL)] {
        request.raw.op_type = kind;
        assert_eq!(request.control(a, FI_QUEUE_WORK), -errno, "type {kind}");
    }
    request.raw.op_type = FI_OP_CNTR_ADD;
    request.raw.completion_cntr = null_mut();
    assert_eq!(request.control(a, FI_QUEUE_WORK), -FI_EINVAL);
    for command in [FI_QUEUE_WORK, FI_CANCEL_WORK] {
        assert_eq!(control(a.opened.domain, command, null_mut()), -FI_EINVAL);
    }
    assert_eq!(request.control(a, FI_CANCEL_WORK), -FI_ENOENT);
    assert_eq!(control(a.opened.domain, FI_FLUSH_WORK, a.cq.cast()), -FI_EINVAL);
    assert_eq!(control(a.opened.domain, FI_FLUSH_WORK, foreign.0.cast()), -(FI_EDOMAIN as c_int));
    // Endpoints of another domain, endpoints that are not enabled, and endpoints that lack the capability.
    assert_eq!(new().queue(b, &Work::Send(buf, to_b)), -(FI_EDOMAIN as c_int));
    let other = a.another_ep();
    let mut ep = other;
    let queue_on = |ep: *mut fid_ep| {
        let mut op = fi_op_msg { ep, msg: unsafe { std::mem::zeroed() }, flags: 0 };
        let mut request = new();
        request.raw.op_type = FI_OP_RECV;
        request.raw.op.msg = &mut op;
        request.control(a, FI_QUEUE_WORK)
    };
    assert_eq!(queue_on(ep), -(FI_EOPBADSTATE as c_int));
    assert_eq!(queue_on(null_mut()), -FI_EINVAL);
    assert_eq!(queue_on(a.cq.cast()), -FI_EINVAL);
    assert_eq!(close(other), 0);
    let caps = a.info.get().caps;
    a.info.get().caps = FI_MSG;
    ep = a.another_ep();
    a.info.get().caps = caps;
    assert_eq!(queue_on(ep), -FI_EOPNOTSUPP);
    assert_eq!(close(ep), 0);
    trigger.add(1);
    silence(&rig);
    assert_eq!((done.read(), done.errors()), (0, 0));
    // A domain that was not opened for it.
    let plain = Side::with(lib, 0, |hints| hints.get().caps = FI_MSG);
    assert_eq!(control(plain.opened.domain, FI_FLUSH_WORK, null_mut()), -FI_ENOSYS);
}

/// Triggered operations that find the queues of the endpoint full wait in their order.
fn full_queues(lib: &Lib) {
    const COUNT: u64 = 200;
    for (model, peeks) in [(FI_PROGRESS_MANUAL, false), (FI_PROGRESS_MANUAL, true), (FI_PROGRESS_AUTO, false)] {
        let rig = Rig::with(lib, model, 4);
        let (a, b) = (&rig.a, &rig.b);
        let (trigger, done, received) = (rig.cntr(a), rig.cntr(a), rig.cntr(b));
        let far = rig.cntr(b);
        let target = memory(8 * COUNT as usize);
        for (n, place) in target.chunks_mut(8).enumerate() {
            wait_for_receivers(&rig, trigger, done, n as u64 + 1..n as u64 + 2);
            queue(b, far, 1, Some(received), Work::Recv(place));
        }
        trigger.add(1);
        silence(&rig);
        far.add(1);
        if model == FI_PROGRESS_AUTO {
            // The client makes no call.
            let end = std::time::Instant::now() + PATIENCE;
            while !target.chunks(8).all(|place| unsafe { place.as_ptr().read_volatile() } != 0) {
                assert!(std::time::Instant::now() < end, "the operations that wait for room are forgotten");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        if peeks {
            // The queue is never empty when it is read, so the peek makes all the progress.
            until(|| {
                a.start("fi_trecvmsg", &Args { flags: FI_PEEK, ..Args::new(&mut [], 0) }, &[]);
                assert_eq!(a.poll().map(|outcome| outcome.failed().err), Some(FI_ENOMSG));
                b.progress();
                (received.read() == COUNT).then_some(())
            });
        }
        done.reaches(COUNT, &rig.sides());
        received.reaches(COUNT, &rig.sides());
        for (n, place) in target.chunks(8).enumerate() {
            assert_eq!(place, (n as u64 + 1).to_le_bytes());
        }
    }
}

/// Queues sends of these numbers, each of which waits for its receiver.
fn wait_for_receivers(rig: &Rig<'_>, trigger: Cntr, done: Cntr, numbers: std::ops::Range<u64>) {
    for number in numbers {
        let mut request = Request { flags: FI_DELIVERY_COMPLETE, ..Request::new(trigger, 1, Some(done)) };
        assert_eq!(request.queue(&rig.a, &Work::Send(number.to_le_bytes().to_vec().leak(), rig.to_b)), 0);
    }
}

/// A receive finds its queue full and makes room in the transmit queue. Operations that wait there go on.
fn the_other_queue(lib: &Lib) {
    let rig = Rig::with(lib, FI_PROGRESS_MANUAL, 4);
    let (a, b) = (&rig.a, &rig.b);
    let (trigger, done, received) = (rig.cntr(a), rig.cntr(a), rig.cntr(b));
    wait_for_receivers(&rig, trigger, done, 0..8);
    trigger.add(1);
    silence(&rig);
    let deferred = |count| {
        for _ in 0..count {
            queue(b, received, 0, Some(received), Work::Recv(memory(8)));
        }
    };
    deferred(4);
    received.reaches(4, &[]);
    // The acknowledgements of the receiver arrive during this time.
    std::thread::sleep(Duration::from_millis(20));
    for _ in 0..4 {
        assert_eq!(a.run("fi_recv", &Args::new(memory(8), 0)), 0);
    }
    queue(a, trigger, 1, None, Work::Recv(memory(8)));
    assert_eq!(a.tx_left(), 4, "the attempt found all acknowledgements");
    deferred(4);
    for _ in 0..20 {
        rig.sides().iter().for_each(|side| side.progress());
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(received.read(), 8);
    done.reaches(8, &rig.sides());
}

/// A counter stays open while work refers to it. Closing an endpoint cancels its work.
fn closing_objects(lib: &Lib) {
    for model in MODELS {
        let mut rig = Rig::new(lib, model);
        let [trigger, done, counted] = [(); 3].map(|()| rig.cntr(&rig.a));
        queue(&rig.a, trigger, 1, Some(done), Work::Send(memory(8), rig.to_b));
        for cntr in [trigger, done] {
            assert_eq!(close(cntr.0), -FI_EBUSY);
        }
        let mut add = queue(&rig.a, trigger, 1, None, Work::Add(counted, 1));
        assert_eq!(close(counted.0), -FI_EBUSY);
        rig.a.close_ep();
        trigger.add(1);
        assert_eq!((done.read(), done.errors(), counted.read()), (0, 0, 1));
        assert_eq!(add.control(&rig.a, FI_CANCEL_WORK), -FI_ENOENT);
        let mut late = queue(&rig.a, trigger, 2, None, Work::Add(counted, 1));
        assert_eq!(close(trigger.0), -FI_EBUSY);
        assert_eq!(late.control(&rig.a, FI_CANCEL_WORK), 0);
        // The rig closes the other endpoint and all counters, which must succeed.
    }
}

/// A peer's access to a region raises its counter, which starts the answer.
fn regions(lib: &Lib) {
    both(lib, |rig| {
        let (a, b) = (&rig.a, &rig.b);
        let (written, answered, got) = (rig.cntr(b), rig.cntr(b), rig.cntr(a));
        assert_eq!(bind(a.ep, got.0, FI_RECV), 0);
        let (window, target) = (memory(64), memory(64));
        let mr = b.register(window, REMOTE, 3);
        assert_eq!(bind(mr, written.0, FI_REMOTE_WRITE), 0);
        queue(b, written, 2, Some(answered), Work::Send(pattern(64), rig.to_a));
        a.start("fi_recv", &Args::new(target, 0), &[b]);
        let write = Args { key: 3, ..Args::new(memory(64), rig.to_b) };
        a.start("fi_write", &write, &[b]);
        a.next(&[b]).done();
        written.reaches(1, &rig.sides());
        assert_eq!(got.read(), 0);
        a.start("fi_write", &write, &[b]);
        let outcomes = [a.next(&[b]), a.next(&[b])].map(Outcome::done);
        assert!(outcomes.iter().any(|entry| entry.flags & FI_RECV != 0));
        got.reaches(1, &rig.sides());
        answered.reaches(1, &rig.sides());
        assert_eq!(target, pattern(64));
        assert_eq!(close(mr), 0);
    });
}

/// Threads raise one counter while another thread queues work that it triggers. Each work starts exactly
/// once.
fn many_threads(lib: &Lib) {
    const ADDS: u64 = 1000;
    const THREADS: u64 = 3;
    both(lib, |rig| {
        let (trigger, counted, woken) = (rig.cntr(&rig.a), rig.cntr(&rig.a), rig.cntr(&rig.a));
        let domain = Cntr(rig.a.opened.domain.cast());
        let queue_all = move || {
            // The closure captures the whole wrapper, since only the wrapper may change threads.
            let (domain, counted) = (domain, counted);
            for threshold in 1..=ADDS * THREADS {
                let mut request = Request::new(trigger, threshold, None);
                let mut op = fi_op_cntr { cntr: counted.0, value: 1 };
                request.raw.op_type = FI_OP_CNTR_ADD;
                request.raw.op.cntr = &mut op;
                assert_eq!(control(domain.0, FI_QUEUE_WORK, (&raw mut *request.raw).cast()), 0);
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(move || (0..ADDS).for_each(|_| trigger.add(1)));
            }
            scope.spawn(move || assert_eq!(woken.wait(1, PATIENCE), 0));
            scope.spawn(queue_all);
            // The last work wakes a thread that sleeps on a counter that only work raises.
            queue(&rig.a, counted, ADDS * THREADS, None, Work::Add(woken, 1));
        });
        assert_eq!((trigger.read(), counted.read(), woken.read()), (ADDS * THREADS, ADDS * THREADS, 1));
    });
}

/// With automatic progress an echo needs no call of its client: a receive, and a send on its completion,
/// repeatedly.
fn a_sleeping_client(lib: &Lib) {
    const ROUNDS: u64 = 50;
    let rig = Rig::new(lib, FI_PROGRESS_AUTO);
    let (a, b) = (&rig.a, &rig.b);
    let (came, gone) = (rig.cntr(b), rig.cntr(b));
    for round in 1..=ROUNDS {
        let shared = memory(3000);
        b.start("fi_recv", &Args::new(shared, 0), &[]);
        // The endpoint raises the counter of receives, which starts the answer.
        queue(b, came, round, Some(gone), Work::Send(shared, rig.to_a));
    }
    assert_eq!(bind(b.ep, came.0, FI_RECV), 0);
    let (out, back) = (pattern(3000), memory(3000));
    for _ in 0..ROUNDS {
        a.start("fi_recv", &Args::new(back, 0), &[]);
        a.start("fi_send", &Args::new(out, rig.to_b), &[]);
        let mut entries = 0;
        // Only this side makes calls.
        until(|| {
            if let Some(outcome) = a.poll() {
                outcome.done();
                entries += 1;
            }
            (entries == 2).then_some(())
        });
        assert!(back == out);
        back.fill(0);
    }
    gone.reaches(ROUNDS, &[b]);
}
