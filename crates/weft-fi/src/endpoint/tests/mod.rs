//! Endpoints over the real devices, inside one process, through the tables that a client calls.

#![allow(clippy::unwrap_used, clippy::multiple_unsafe_ops_per_block, clippy::undocumented_unsafe_blocks)]

mod blocking;
mod members;
mod side;

use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use weft_fi_sys as sys;

use crate::abi::object;
use crate::endpoint::Ep;
use side::{Options, Side, both, close, nothing, of, ok, pair, pattern, until, until_error, zeroed};

fn exchange(options: Options) {
    let (a, b, to_b, to_a) = pair(options);
    for (round, len) in [0, 1, 56, 57, 4096, 20_000, 300_000, 3_000_000].into_iter().enumerate() {
        let data = pattern(len);
        let mut buffer = vec![0; len];
        let tag = 0x1000 + round as u64;
        // The message is expected in every other round.
        if round % 2 == 0 {
            assert_eq!(b.trecv(&mut buffer, u64::MAX, tag, 0, 0xb), 0);
        }
        assert_eq!(a.tsend(&data, to_b, tag, 0xa), 0);
        if round % 2 == 1 {
            for _ in 0..100 {
                let _ = (a.cq_read(0), b.cq_read(0));
            }
            assert_eq!(b.trecv(&mut buffer, to_a, tag & !0xff, 0xff, 0xb), 0);
        }
        let (sent, (received, src)) = both(&a, &b);
        assert_eq!(sent.op_context as usize, 0xa);
        assert_eq!(sent.flags, sys::FI_SEND | sys::FI_TAGGED);
        assert_eq!((received.op_context as usize, received.len, received.tag), (0xb, len, tag));
        assert_eq!(received.flags, sys::FI_RECV | sys::FI_TAGGED);
        assert_eq!(src, to_a);
        assert!(buffer == data, "{len} bytes arrived changed");
    }
}

#[test]
fn tagged_messages_of_every_protocol_arrive() {
    exchange(Options::default());
}

#[test]
fn tagged_messages_arrive_with_shared_locks() {
    exchange(Options { threading: sys::FI_THREAD_SAFE, ..Options::default() });
}

#[test]
fn tagged_messages_arrive_with_a_progress_thread() {
    exchange(Options { progress: sys::FI_PROGRESS_AUTO, ..Options::default() });
}

#[test]
fn tagged_messages_arrive_with_delivery_complete() {
    exchange(Options { tx_flags: sys::FI_DELIVERY_COMPLETE, ..Options::default() });
}

#[test]
fn sends_carry_data_and_injects_make_no_entry() {
    let (a, b, to_b, _) = pair(Options::default());
    let mut buffer = [0_u8; 8];
    assert_eq!(b.recv(&mut buffer, 1), 0);
    let send = unsafe { (*(*a.ep).msg).senddata.unwrap() };
    assert_eq!(unsafe { send(a.ep, b"data".as_ptr().cast(), 4, null_mut(), 0xdada, to_b, 2 as *mut c_void) }, 0);
    let (sent, (received, _)) = both(&a, &b);
    assert_eq!(sent.flags, sys::FI_SEND | sys::FI_MSG);
    assert_eq!(received.flags, sys::FI_RECV | sys::FI_MSG | sys::FI_REMOTE_CQ_DATA);
    assert_eq!((received.data, received.len), (0xdada, 4));
    assert_eq!(b.recv(&mut buffer, 3), 0);
    assert_eq!(a.inject(b"inject", to_b), 0);
    let (received, _) = of(&b, &a);
    assert_eq!((received.op_context as usize, received.len), (3, 6));
    assert_eq!(&buffer[..6], b"inject");
    nothing(&a, &b);
    assert_eq!(a.inject(&[0; 1 << 20], to_b), -90, "too long to inject");
    assert_eq!(a.inject(b"x", u64::MAX), -22, "no address");
    assert_eq!(a.inject(b"x", 77), -22, "not in the vector");
}

#[test]
fn selective_completion_reports_requested_entries_only() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, rx_selective: true, ..Options::default() });
    let mut buffer = [0_u8; 8];
    assert_eq!(b.trecv(&mut buffer, u64::MAX, 1, 0, 1), 0);
    assert_eq!(a.tsend(b"quiet", to_b, 1, 1), 0);
    let iov = libc::iovec { iov_base: b"loud".as_ptr().cast_mut().cast(), iov_len: 4 };
    let mut msg: sys::fi_msg_tagged = zeroed();
    msg.msg_iov = &raw const iov;
    msg.iov_count = 1;
    msg.addr = to_b;
    msg.tag = 2;
    msg.context = 9 as *mut c_void;
    let sendmsg = unsafe { (*(*a.ep).tagged).sendmsg.unwrap() };
    let mut second = [0_u8; 8];
    assert_eq!(b.trecvmsg(2, 4, sys::FI_COMPLETION, &mut second), 0);
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, sys::FI_COMPLETION) }, 0);
    let (sent, (received, _)) = both(&a, &b);
    assert_eq!((sent.op_context as usize, received.op_context as usize), (9, 4));
    assert_eq!((&buffer[..5], &second[..4]), (&b"quiet"[..], &b"loud"[..]));
    nothing(&a, &b);
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, sys::FI_COMMIT_COMPLETE) }, -95);
    msg.iov_count = 9;
    assert_eq!(unsafe { sendmsg(a.ep, &raw const msg, 0) }, -22, "more pieces than the limit");
}

/// Entries leave in the order of the messages, whether a read takes them directly or from the queue.
#[test]
fn short_reads_keep_the_order_of_entries() {
    const FAILS: usize = 3;
    let (a, b, to_b, _) = pair(Options { tx_selective: true, ..Options::default() });
    let mut buffers = [[0_u8; 8]; 8];
    for round in 0..20 {
        for (tag, buffer) in buffers.iter_mut().enumerate() {
            let len = if tag == FAILS { 2 } else { 8 };
            assert_eq!(b.trecv(&mut buffer[..len], u64::MAX, tag as u64, 0, tag), 0);
        }
        for tag in 0..buffers.len() as u64 {
            until(|| match a.tsend(b"four", to_b, tag, 0) {
                0 => Some(()),
                _ => a.cq_read(0).err().and(None),
            });
        }
        let mut order = Vec::new();
        until(|| {
            let _ = a.cq_read(0);
            match b.cq_read(1 + round % 3) {
                Ok(entries) => order.extend(entries.iter().map(|(entry, _)| (entry.op_context as usize, true))),
                Err(-259) => order.push((b.error().base.op_context as usize, false)),
                Err(error) => assert_eq!(error, -11),
            }
            (order.len() == buffers.len()).then_some(())
        });
        let expected: Vec<_> = (0..buffers.len()).map(|tag| (tag, tag != FAILS)).collect();
        assert_eq!(order, expected);
    }
}

#[test]
fn failures_make_error_entries() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, rx_selective: true, ..Options::default() });
    let mut small = [0_u8; 4];
    assert_eq!(b.trecv(&mut small, u64::MAX, 5, 0, 0x51), 0);
    assert_eq!(a.tsend(b"longer than four", to_b, 5, 0x52), 0);
    let truncated = until_error(&b, &a).base;
    assert_eq!((truncated.err, truncated.op_context as usize, truncated.tag), (265, 0x51, 5));
    assert_eq!((truncated.len, truncated.olen), (4, 12));
    assert_eq!(truncated.flags & (sys::FI_RECV | sys::FI_TAGGED), sys::FI_RECV | sys::FI_TAGGED);
    let strerror = unsafe { (*(*b.cq).ops).strerror.unwrap() };
    let mut text = [0_i8; 16];
    let whole = unsafe { strerror(b.cq, truncated.prov_errno, null(), text.as_mut_ptr().cast(), text.len()) };
    assert!(unsafe { std::ffi::CStr::from_ptr(whole) }.to_str().unwrap().contains("longer"));
    assert_eq!(text[15], 0);

    assert_eq!(b.trecv(&mut small, u64::MAX, 6, 0, 0x61), 0);
    let cancel = unsafe { (*(*b.ep).ops).cancel.unwrap() };
    assert_eq!(unsafe { cancel(b.fid(), 0x61 as *mut c_void) }, 0);
    let cancelled = until_error(&b, &a).base;
    assert_eq!((cancelled.err, cancelled.op_context as usize), (125, 0x61));
    assert_eq!(unsafe { cancel(b.fid(), 0x61 as *mut c_void) }, -2, "gone");

    assert_eq!(b.trecvmsg(7, 0x71, sys::FI_PEEK, &mut small), 0);
    let missed = until_error(&b, &a).base;
    assert_eq!((missed.err, missed.op_context as usize), (42, 0x71));
}

#[test]
fn peeked_messages_are_claimed_or_discarded() {
    let (a, b, to_b, to_a) = pair(Options::default());
    let mut buffer = [0_u8; 16];
    for tag in [1, 2, 3] {
        assert_eq!(a.tsend(b"message", to_b, tag, 0), 0);
        of(&a, &b);
    }
    let peek = |tag, ctx, flags| {
        // The message may still be on its way.
        until(|| {
            let _ = a.cq_read(0);
            assert_eq!(b.trecvmsg(tag, ctx, sys::FI_PEEK | flags, &mut []), 0);
            match b.cq_read(1) {
                Ok(entries) => entries.first().copied(),
                Err(error) => {
                    assert!(error == -11 || error == -259);
                    if error == -259 {
                        assert_eq!(b.error().base.err, 42);
                    }
                    None
                }
            }
        })
    };
    let (seen, src) = peek(2, 0x20, sys::FI_CLAIM);
    assert_eq!((seen.len, seen.tag, seen.op_context as usize, src), (7, 2, 0x20, to_a));
    assert_eq!(b.trecvmsg(2, 0x20, sys::FI_CLAIM, &mut buffer), 0);
    let (claimed, _) = until(|| b.poll());
    assert_eq!((claimed.len, claimed.op_context as usize, &buffer[..7]), (7, 0x20, &b"message"[..]));
    peek(1, 0x10, sys::FI_DISCARD);
    assert_eq!(b.trecvmsg(1, 0x11, sys::FI_PEEK, &mut []), 0);
    assert_eq!(until_error(&b, &a).base.err, 42, "discarded");
    peek(3, 0x30, sys::FI_CLAIM);
    assert_eq!(b.trecvmsg(3, 0x30, sys::FI_CLAIM | sys::FI_DISCARD, &mut []), 0);
    until(|| b.poll());
    assert_eq!(b.trecvmsg(3, 0x99, sys::FI_CLAIM, &mut buffer), -22, "nothing claimed under this context");
}

#[test]
fn a_multi_receive_is_released_once() {
    let (a, b, to_b, _) = pair(Options { rx_selective: true, ..Options::default() });
    let minimum = 100_usize;
    let setopt = unsafe { (*(*b.ep).ops).setopt.unwrap() };
    let name = sys::FI_OPT_MIN_MULTI_RECV.cast_signed();
    ok(unsafe { setopt(b.fid(), 0, name, (&raw const minimum).cast(), 8) });
    let mut buffer = vec![0_u8; 250];
    let iov = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: 250 };
    let mut msg: sys::fi_msg = zeroed();
    msg.msg_iov = &raw const iov;
    msg.iov_count = 1;
    msg.addr = u64::MAX;
    msg.context = 0x3 as *mut c_void;
    let recvmsg = unsafe { (*(*b.ep).msg).recvmsg.unwrap() };
    assert_eq!(unsafe { recvmsg(b.ep, &raw const msg, sys::FI_MULTI_RECV | sys::FI_COMPLETION) }, 0);
    let mut offset = 0;
    for (len, released) in [(60, false), (80, false), (40, true)] {
        a.inject_to(&pattern(len), to_b, &b);
        let (entry, _) = of(&b, &a);
        assert_eq!((entry.len, entry.buf as usize), (len, buffer.as_ptr() as usize + offset));
        assert_eq!(entry.flags & sys::FI_MULTI_RECV != 0, released);
        assert_eq!(&buffer[offset..offset + len], pattern(len));
        offset += len;
    }
    // The messages are not reported. The release of the buffer is.
    assert_eq!(unsafe { recvmsg(b.ep, &raw const msg, sys::FI_MULTI_RECV) }, 0);
    for _ in 0..2 {
        assert_eq!(a.inject(&pattern(80), to_b), 0);
    }
    let (entry, _) = of(&b, &a);
    assert_ne!(entry.flags & sys::FI_MULTI_RECV, 0);
    nothing(&a, &b);
}

fn value(cntr: *mut sys::fid_cntr) -> (u64, u64) {
    let ops = unsafe { &*(*cntr).ops };
    unsafe { ((ops.read.unwrap())(cntr), (ops.readerr.unwrap())(cntr)) }
}

#[test]
fn rma_is_reported_counted_and_refused() {
    let (a, b, to_b, _) = pair(Options::default());
    let (writes, reads, remote_writes, remote_reads, region) =
        (a.counter(), a.counter(), b.counter(), b.counter(), b.counter());
    // Counters are bound after enable, as Sandia OpenSHMEM does.
    ok(a.bind(writes.cast(), sys::FI_WRITE));
    ok(a.bind(reads.cast(), sys::FI_READ));
    assert_eq!(a.bind(reads.cast(), sys::FI_READ), -22, "bound already");
    ok(b.bind(remote_writes.cast(), sys::FI_REMOTE_WRITE));
    ok(b.bind(remote_reads.cast(), sys::FI_REMOTE_READ));
    let mut memory = vec![0_u8; 1 << 20];
    // A key that has the bits by which weft marks the `user` words of operations.
    let key = 0x8000_0000_0000_0081;
    let access = sys::FI_REMOTE_READ | sys::FI_REMOTE_WRITE;
    let mr = b.register(&mut memory, access, key);
    ok(unsafe { ((*(*mr.cast::<sys::fid>()).ops).bind.unwrap())(mr.cast(), region.cast(), sys::FI_REMOTE_WRITE) });
    let rma = unsafe { &*(*a.ep).rma };
    for (round, len) in [8_usize, 5000, 1 << 19].into_iter().enumerate() {
        let data = pattern(len);
        let sent = unsafe {
            (rma.writedata.unwrap())(
                a.ep,
                data.as_ptr().cast(),
                len,
                null_mut(),
                0xcafe,
                to_b,
                16,
                key,
                0x11 as *mut c_void,
            )
        };
        assert_eq!(sent, 0);
        let (write, (remote, _)) = both(&a, &b);
        assert_eq!((write.op_context as usize, write.flags), (0x11, sys::FI_RMA | sys::FI_WRITE));
        assert_eq!(remote.flags, sys::FI_RMA | sys::FI_REMOTE_WRITE | sys::FI_REMOTE_CQ_DATA);
        assert_eq!((remote.op_context as usize, remote.data, remote.len), (0, 0xcafe, len));
        assert!(memory[16..16 + len] == data);
        let mut back = vec![0_u8; len];
        let read = unsafe {
            (rma.read.unwrap())(a.ep, back.as_mut_ptr().cast(), len, null_mut(), to_b, 16, key, 0x2 as *mut c_void)
        };
        assert_eq!(read, 0);
        let (entry, _) = of(&a, &b);
        assert_eq!((entry.op_context as usize, entry.flags), (2, sys::FI_RMA | sys::FI_READ));
        assert!(back == data);
        let done = round as u64 + 1;
        assert_eq!((value(writes), value(reads)), ((done, 0), (done, 0)));
        until(|| (value(remote_writes).0 == done && value(remote_reads).0 == done).then_some(()));
        assert_eq!(value(region), (done, 0));
    }
    for (len, key) in [(8, 99), (2 << 20, key)] {
        let data = vec![1_u8; len];
        let sent = unsafe {
            (rma.write.unwrap())(a.ep, data.as_ptr().cast(), len, null_mut(), to_b, 0, key, 0x9 as *mut c_void)
        };
        assert_eq!(sent, 0);
        let refused = until_error(&a, &b).base;
        assert_eq!((refused.op_context as usize, refused.err), (9, if key == 99 { 129 } else { 13 }));
    }
    assert_eq!(value(writes), (3, 2));
    assert_eq!(close(region), -16, "bound to a region");
    ok(close(mr));
}

#[test]
fn counters_count_each_message_once() {
    let options = Options { tx_selective: true, rx_selective: true, ..Options::default() };
    let (a, b) = (Side::open_disabled(options), Side::open(options));
    let (sends, recvs) = (a.counter(), b.counter());
    ok(a.bind(a.av.cast(), 0));
    ok(a.bind_cq(a.cq, sys::FI_TRANSMIT | sys::FI_RECV | sys::FI_SELECTIVE_COMPLETION));
    ok(a.bind(sends.cast(), sys::FI_SEND));
    ok(a.enable());
    ok(b.bind(recvs.cast(), sys::FI_RECV));
    let to_b = a.insert(&b);
    let mut buffers = [[0_u8; 8]; 10];
    for (at, buffer) in buffers.iter_mut().enumerate() {
        assert_eq!(b.recv(buffer, at), 0);
    }
    for at in 0..10 {
        if at % 2 == 0 {
            a.inject_to(b"inject", to_b, &b);
        } else {
            let send = unsafe { (*(*a.ep).msg).send.unwrap() };
            assert_eq!(unsafe { send(a.ep, b"send".as_ptr().cast(), 4, null_mut(), to_b, null_mut()) }, 0);
        }
    }
    until(|| ((value(sends), value(recvs)) == ((10, 0), (10, 0))).then_some(()));
    nothing(&a, &b);
    assert_eq!((value(sends), value(recvs)), ((10, 0), (10, 0)));
    assert_eq!(close(sends), -16, "the endpoint is open");
    let ops = unsafe { &*(*sends).ops };
    unsafe {
        ok((ops.set.unwrap())(sends, 5));
        ok((ops.add.unwrap())(sends, 7));
        ok((ops.seterr.unwrap())(sends, 1));
        ok((ops.adderr.unwrap())(sends, 2));
        assert_eq!(value(sends), (12, 3));
        assert_eq!((ops.wait.unwrap())(sends, 12, 0), 0);
        assert_eq!((ops.wait.unwrap())(sends, 13, 20), -110, "timed out");
    }
}

#[test]
fn the_state_of_an_endpoint_is_checked() {
    let side = Side::open_disabled(Options::default());
    assert_eq!(side.inject(b"x", 0), -258, "not enabled");
    assert_eq!(side.enable(), -267, "no address vector");
    ok(side.bind(side.av.cast(), 0));
    assert_eq!(side.bind(side.av.cast(), 0), -22, "bound already");
    assert_eq!(side.enable(), -263, "no queue");
    assert_eq!(side.bind_cq(side.cq, 0), -22);
    assert_eq!(side.bind_cq(side.cq, 1 << 60), -260);
    ok(side.bind_cq(side.cq, sys::FI_RECV));
    assert_eq!(side.enable(), -263, "no queue for sends");
    assert_eq!(side.bind_cq(side.cq, sys::FI_TRANSMIT | sys::FI_RECV), -22, "bound already");
    ok(side.bind_cq(side.cq, sys::FI_TRANSMIT));
    assert_eq!(close(side.cq), -16, "bound");
    ok(side.enable());
    assert_eq!(side.enable(), -258);
    assert_eq!(side.bind(side.fid(), 0), -22, "an endpoint cannot be bound");
    let atomic = unsafe { &*(*side.ep).atomic };
    let mut count = 0;
    ok(unsafe { (atomic.writevalid.unwrap())(side.ep, 0, 0, &raw mut count) });
    assert_ne!(count, 0, "capabilities do not restrict the operations that it starts");
    assert_eq!(unsafe { ((*(*side.ep).cm).connect.unwrap())(side.ep, null(), null(), 0) }, -38);
    let getopt = unsafe { (*(*side.ep).ops).getopt.unwrap() };
    let (mut number, mut len) = (0_usize, 4_usize);
    assert_eq!(unsafe { getopt(side.fid(), 0, 0, (&raw mut number).cast(), &raw mut len) }, -257);
    assert_eq!(len, 8);
    ok(unsafe { getopt(side.fid(), 0, 0, (&raw mut number).cast(), &raw mut len) });
    assert_eq!(number, 64);
    assert_eq!(unsafe { getopt(side.fid(), 0, 4711, (&raw mut number).cast(), &raw mut len) }, -92);
}

#[test]
fn an_alias_has_flags_of_its_own() {
    let (a, b, to_b, _) = pair(Options { tx_selective: true, ..Options::default() });
    let mut handle: *mut sys::fid = null_mut();
    let mut request: sys::fi_alias = zeroed();
    request.fid = &raw mut handle;
    request.flags = sys::FI_TRANSMIT | sys::FI_COMPLETION;
    ok(a.control(sys::FI_ALIAS, (&raw mut request).cast()));
    let alias: *mut sys::fid_ep = handle.cast();
    let mut buffer = [0_u8; 4];
    for ctx in [1, 2] {
        assert_eq!(b.recv(&mut buffer, ctx), 0);
    }
    let send = unsafe { (*(*a.ep).msg).send.unwrap() };
    for (ep, ctx) in [(a.ep, 1), (alias, 2)] {
        assert_eq!(unsafe { send(ep, b"x".as_ptr().cast(), 1, null_mut(), to_b, ctx as *mut c_void) }, 0);
    }
    let (sent, _) = both(&a, &b);
    assert_eq!(sent.op_context as usize, 2, "only the alias asks for completions");
    until(|| b.poll());
    let mut flags = sys::FI_TRANSMIT;
    ok(a.control(sys::FI_GETOPSFLAG, (&raw mut flags).cast()));
    assert_eq!(flags, 0);
    assert_eq!(close(a.ep), -16, "an alias is open");
    ok(close(alias));
}

/// A context of a scalable endpoint is opened repeatedly. The context beside it keeps no queues and counters of earlier
/// ones.
#[test]
fn a_reopened_context_leaves_no_drivers_behind() {
    let side = Side::open_disabled(Options::default());
    let mut ep_attr: sys::fi_ep_attr = zeroed();
    ep_attr.type_ = sys::FI_EP_RDM;
    let mut info: sys::fi_info = zeroed();
    (info.caps, info.ep_attr) = (side::ALL_CAPS, &raw mut ep_attr);
    let (mut sep, mut receiver) = (null_mut(), null_mut());
    let enable = |ep: *mut sys::fid_ep| unsafe {
        ((*(*ep).fid.ops).control.unwrap())(ep.cast(), sys::FI_ENABLE.cast_signed(), null_mut())
    };
    let bind = |ep: *mut sys::fid_ep, what: *mut sys::fid, flags| unsafe {
        ((*(*ep).fid.ops).bind.unwrap())(ep.cast(), what, flags)
    };
    let mut cq_attr: sys::fi_cq_attr = zeroed();
    let mut cntr_attr: sys::fi_cntr_attr = zeroed();
    unsafe {
        let ops = &*(*side.domain).ops;
        ok((ops.scalable_ep.unwrap())(side.domain, &raw mut info, &raw mut sep, null_mut()));
        ok(bind(sep, side.av.cast(), 0));
        ok(((*(*sep).ops).rx_ctx.unwrap())(sep, 0, null_mut(), &raw mut receiver, null_mut()));
        ok(bind(receiver, side.cq.cast(), sys::FI_RECV));
        ok(enable(receiver));
        for _ in 0..20 {
            let (mut sender, mut cq, mut cntr) = (null_mut(), null_mut(), null_mut());
            ok((ops.cq_open.unwrap())(side.domain, &raw mut cq_attr, &raw mut cq, null_mut()));
            ok((ops.cntr_open.unwrap())(side.domain, &raw mut cntr_attr, &raw mut cntr, null_mut()));
            ok(((*(*sep).ops).tx_ctx.unwrap())(sep, 0, null_mut(), &raw mut sender, null_mut()));
            ok(bind(sender, cq.cast(), sys::FI_TRANSMIT));
            ok(bind(sender, cntr.cast(), sys::FI_SEND));
            ok(enable(sender));
            // The context is enabled already.
            ok(bind(sender, cntr.cast(), sys::FI_READ));
            for result in [close(sender), close(cq), close(cntr)] {
                ok(result);
            }
        }
        let known = {
            let routes = &object::borrow::<Ep<weft_nic::Devices>>(receiver).unwrap().cell().control().routes;
            routes.driving()
        };
        assert_eq!(known, (1, 1), "queues and counters of the last one");
        ok(close(receiver));
        ok(close(sep));
    }
}

#[test]
fn a_full_queue_refuses_more_and_loses_nothing() {
    let (a, b, to_b, _) = pair(Options { cq_size: 4, ..Options::default() });
    let mut buffers = vec![[0_u8; 8]; 65];
    for buffer in &mut buffers {
        assert_eq!(b.recv(buffer, 0), 0, "nothing has completed yet");
    }
    let send = unsafe { (*(*a.ep).msg).send.unwrap() };
    let start = || unsafe { send(a.ep, b"x".as_ptr().cast(), 1, null_mut(), to_b, null_mut()) };
    // Once connected, sends complete at once.
    assert_eq!(start(), 0);
    both(&a, &b);
    let mut accepted = 0;
    while start() == 0 {
        accepted += 1;
        assert!(accepted < 64, "a queue of 4 entries accepts any number");
    }
    assert!(accepted >= 4);
    assert_eq!(start(), -11);
    for side in [&a, &b] {
        let mut got = 0;
        until(|| {
            got += side.cq_read(3).map_or(0, |entries| entries.len());
            (got == accepted).then_some(())
        });
        nothing_at(side);
    }
    assert_eq!(start(), 0, "there is room again");
}

fn nothing_at(side: &Side) {
    for _ in 0..1000 {
        assert!(side.poll().is_none());
    }
}

#[test]
fn injected_messages_leave_before_close_returns() {
    for _ in 0..20 {
        let (mut a, b, to_b, _) = pair(Options::default());
        std::thread::scope(|scope| {
            let receiver = scope.spawn(|| {
                let mut buffers = [[0_u8; 8]; 16];
                for (at, buffer) in buffers.iter_mut().enumerate() {
                    assert_eq!(b.recv(buffer, at), 0);
                }
                for _ in 0..16 {
                    until(|| b.poll());
                }
            });
            for _ in 0..16 {
                until(|| (a.inject(b"last", to_b) == 0).then_some(()));
            }
            ok(close(a.ep));
            a.ep = null_mut();
            receiver.join().unwrap();
        });
    }
}

#[test]
fn two_endpoints_share_a_queue() {
    let (a, b, to_b, _) = pair(Options::default());
    // A third endpoint, of b's domain and queue.
    let options = Options::default();
    let mut c = Side::open_disabled(options);
    let (spare_ep, spare_cq) = (c.ep, c.cq);
    let mut other = b.another_endpoint(options);
    std::mem::swap(&mut c.ep, &mut other);
    ok(c.bind(b.av.cast(), 0));
    ok(c.bind_cq(b.cq, sys::FI_TRANSMIT | sys::FI_RECV));
    ok(c.enable());
    let to_c = a.insert(&c);
    let mut buffers = [[0_u8; 8]; 2];
    assert_eq!(b.recv(&mut buffers[0], 0xb), 0);
    assert_eq!(c.recv(&mut buffers[1], 0xc), 0);
    a.inject_to(b"to b", to_b, &b);
    a.inject_to(b"to c", to_c, &b);
    let mut contexts = [of(&b, &a).0.op_context as usize, of(&b, &a).0.op_context as usize];
    contexts.sort_unstable();
    assert_eq!(contexts, [0xb, 0xc]);
    assert_eq!((&buffers[0][..4], &buffers[1][..4]), (&b"to b"[..], &b"to c"[..]));
    ok(close(c.ep));
    // The queue still serves the other endpoint.
    assert_eq!(b.recv(&mut buffers[0], 0xb2), 0);
    assert_eq!(a.inject(b"again", to_b), 0);
    assert_eq!(of(&b, &a).0.op_context as usize, 0xb2);
    (c.ep, c.cq) = (spare_ep, spare_cq);
}

#[test]
fn control_calls_come_from_any_thread() {
    // The data path is serialized and takes no lock. Calls for registration and address vectors are not serialized.
    let (a, b, to_b, _) = pair(Options { threading: sys::FI_THREAD_COMPLETION, ..Options::default() });
    let rounds = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut memory = vec![0_u8; 4096];
            while !stop.load(Ordering::Relaxed) {
                let key = rounds.fetch_add(1, Ordering::Relaxed);
                ok(close(a.register(&mut memory, sys::FI_REMOTE_WRITE, key)));
                assert_ne!(a.insert(&b), u64::MAX);
            }
        });
        let mut tag = 0_u64;
        while tag < 3000 || rounds.load(Ordering::Relaxed) < 100 {
            tag += 1;
            let mut buffer = [0_u8; 8];
            let data = tag.to_ne_bytes();
            assert_eq!(b.trecv(&mut buffer, u64::MAX, tag, 0, 1), 0);
            assert_eq!(a.tsend(&data, to_b, tag, 2), 0);
            both(&a, &b);
            assert_eq!(buffer, data);
        }
        stop.store(true, Ordering::Relaxed);
    });
}
