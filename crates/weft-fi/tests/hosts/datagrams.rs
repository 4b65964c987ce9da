//! Datagrams (FI_EP_DGRAM). They arrive whole, once and in order, or not at all, and the sender never waits
//! for them.

use std::ffi::{c_int, c_void};
use std::time::{Duration, Instant};

use weft_fi_sys::*;

use crate::client::{Info, Lib};
use crate::side::{Args, Outcome, PATIENCE, Side, err, introduce, memory, pattern, scenes};

/// The longest datagram in bytes.
const MOST: usize = 16 << 10;

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("offers", offers),
            ("pairs", pairs),
            ("a receiver without receives", receiver_without_receives),
            ("absent peers", absent_peers),
            ("refusals", refusals),
        ],
    );
}

pub(crate) fn tight(lib: &Lib) {
    scenes(lib, &[("a small window", small_window)]);
}

fn as_datagram(hints: &Info<'_>) {
    hints.ep().type_ = FI_EP_DGRAM;
}

fn side(lib: &Lib) -> Side<'_> {
    Side::with(lib, 0, as_datagram)
}

/// The number of dropped datagrams in the domain's statistics.
fn dropped(side: &Side<'_>) -> u64 {
    #[repr(C)]
    struct Ops {
        size: usize,
        read: unsafe extern "C" fn(*mut fid_domain, *mut [u64; 3], usize) -> c_int,
    }
    let domain = side.opened.domain;
    let mut ops: *mut c_void = std::ptr::null_mut();
    let mut stats = [0; 3];
    unsafe {
        let open = (*(*domain).fid.ops).ops_open.unwrap();
        assert_eq!(open(domain.cast(), c"weft_stats".as_ptr(), 0, &mut ops, std::ptr::null_mut()), 0);
        assert_eq!(((*ops.cast::<Ops>()).read)(domain, &mut stats, size_of_val(&stats)), 0);
    }
    stats[2]
}

/// Only a client that requests the type gets it, without capabilities that datagrams cannot have.
fn offers(lib: &Lib) {
    for api in lib.versions() {
        let hints = lib.allocinfo();
        as_datagram(&hints);
        let info = lib.ask(api, Some(&hints)).unwrap();
        assert_eq!((info.ep().type_, info.ep().max_msg_size), (FI_EP_DGRAM, MOST));
        assert!(info.tx().inject_size <= MOST);
        let lacking = FI_TAGGED | FI_RMA | FI_ATOMIC | FI_FENCE | FI_TRIGGER | FI_RMA_EVENT;
        assert_eq!(info.get().caps & lacking, 0);
        for caps in [FI_TAGGED, FI_RMA, FI_ATOMIC, FI_MSG | FI_FENCE, FI_MSG | FI_TRIGGER] {
            hints.get().caps = caps;
            assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA), "{caps:#x}");
        }
        hints.get().caps = FI_MSG;
        for flags in [FI_DELIVERY_COMPLETE, FI_MATCH_COMPLETE] {
            hints.tx().op_flags = flags;
            assert_eq!(lib.ask(api, Some(&hints)).err(), Some(FI_ENODATA), "{flags:#x}");
        }
    }
}

/// All datagrams arrive between two endpoints that receive, and at the sender itself. The first ones wait for
/// the link.
fn pairs(lib: &Lib) {
    let (a, b, to_b, to_a) = introduce(side(lib), side(lib));
    let own = a.insert(&a.name());
    for (from, to, dest) in [(&a, &b, to_b), (&b, &a, to_a), (&a, &a, own)] {
        for (at, len) in [0, 1, 64, 4096, 9000, MOST].into_iter().enumerate() {
            for call in ["fi_send", "fi_senddata", "fi_sendv", "fi_sendmsg", "fi_inject", "fi_injectdata"] {
                if len > 4096 && call.starts_with("fi_inject") {
                    continue;
                }
                let (source, target) = (pattern(len), memory(len));
                to.start("fi_recv", &Args { context: 100 + at, ..Args::new(target, 0) }, &[]);
                from.start(call, &Args { context: at, ..Args::new(source, dest) }, &[]);
                let mut expected = if call.starts_with("fi_inject") { vec![100 + at] } else { vec![at, 100 + at] };
                while !expected.is_empty() {
                    let side = if std::ptr::eq(from, to) || expected[0] >= 100 { to } else { from };
                    let entry = side.next(&[from, to]).done();
                    let found = expected.iter().position(|&context| context == entry.op_context as usize).unwrap();
                    if expected.remove(found) >= 100 {
                        assert_eq!(entry.len, len);
                        assert_eq!(entry.data, if call.ends_with("data") { 0xda7a } else { 0 });
                    }
                }
                assert!(target == source, "{call} of {len}");
            }
        }
    }
    assert_eq!((dropped(&a), dropped(&b)), (0, 0));
}

/// A receiver that posts no receives limits no other endpoint. Sends succeed. Datagrams for which it has no
/// room are dropped and counted.
fn receiver_without_receives(lib: &Lib) {
    let (a, b, to_b, to_a) = introduce(side(lib), side(lib));
    let source = pattern(4000);
    let mut sent = 0_u32;
    let start = Instant::now();
    while sent < 6000 {
        source[..4].copy_from_slice(&sent.to_ne_bytes());
        // The receiver makes progress now and then, but its client posts no receive.
        assert_eq!(a.run("fi_inject", &Args::new(source, to_b)), 0, "{sent}");
        sent += 1;
        a.progress();
        if sent.is_multiple_of(10) {
            b.progress();
        }
    }
    assert!(start.elapsed() < PATIENCE / 2);
    let mut waiting = 0;
    while waiting < 300 {
        b.progress();
        waiting = if a.poll().is_some() { 0 } else { waiting + 1 };
    }
    assert!(dropped(&a) > 1000, "only {} were dropped", dropped(&a));
    // The receiver still gets datagrams of others, and has kept the first ones in order.
    let target = memory(4000);
    let (mut received, mut last) = (0_u64, None);
    loop {
        b.start("fi_recv", &Args { context: 2, ..Args::new(target, 0) }, &[]);
        let end = Instant::now() + Duration::from_millis(200);
        let outcome = loop {
            a.progress();
            if let Some(outcome) = b.poll() {
                break Some(outcome);
            }
            if Instant::now() > end {
                break None;
            }
        };
        let Some(Outcome::Done(_)) = outcome else { break };
        let number = u32::from_ne_bytes(target[..4].try_into().unwrap());
        assert!(last.is_none_or(|last| last < number), "{number} after {last:?}");
        (received, last) = (received + 1, Some(number));
    }
    assert_eq!(received + dropped(&a), u64::from(sent), "each datagram was received or counted");
    // The remaining receive takes the next datagram, for which there is room again.
    a.start("fi_inject", &Args::new(pattern(8), to_b), &[]);
    assert_eq!(b.next(&[&a]).done().len, 8);
    b.start("fi_inject", &Args::new(pattern(8), to_a), &[]);
}

/// The longest datagram fits in any window while no other one waits, whatever was received before.
fn small_window(lib: &Lib) {
    let (a, b, to_b, _) = introduce(side(lib), side(lib));
    for (context, len) in [1000, 1000, 1000, 1000, MOST, MOST, 3000, 1350, MOST].into_iter().enumerate() {
        let (source, target) = (pattern(len), memory(len));
        b.start("fi_recv", &Args { context, ..Args::new(target, 0) }, &[]);
        a.start("fi_send", &Args::new(source, to_b), &[]);
        a.next(&[&b]).done();
        assert_eq!(dropped(&a), 0, "datagram {context} of {len} bytes");
        assert_eq!(b.next(&[&a]).done().op_context as usize, context);
        assert!(target == source);
        // The returned credit of the window arrives.
        a.nothing(&[&b]);
    }
}

/// An absent peer, or one that leaves, costs the sender only its datagrams.
fn absent_peers(lib: &Lib) {
    let (a, mut b, to_b, _) = introduce(side(lib), side(lib));
    let c = side(lib);
    let to_c = a.insert(&c.name());
    let target = memory(100);
    for context in [1, 2] {
        b.start("fi_recv", &Args { context, ..Args::new(target, 0) }, &[]);
    }
    a.start("fi_inject", &Args::new(pattern(100), to_b), &[]);
    assert_eq!(b.next(&[&a]).done().op_context as usize, 1);
    b.close_ep();
    // A datagram that leaves before the end is noticed is lost without being counted.
    a.nothing(&[&c]);
    let before = dropped(&a);
    for context in 0..600 {
        assert_eq!(a.run("fi_send", &Args { context, ..Args::new(pattern(100), to_b) }), 0, "{context}");
    }
    c.start("fi_recv", &Args { context: 3, ..Args::new(target, 0) }, &[]);
    a.start("fi_send", &Args { context: 1000, ..Args::new(pattern(100), to_c) }, &[]);
    assert_eq!(c.next(&[&a]).done().op_context as usize, 3);
    let mut ended: Vec<_> = (0..601).map(|_| a.next(&[&c]).done().op_context as usize).collect();
    ended.sort_unstable();
    assert_eq!(ended, (0..600).chain([1000]).collect::<Vec<_>>(), "each completed once, without an error");
    assert_eq!(dropped(&a) - before, 600);
    assert_eq!(dropped(&c), 0);
}

/// Requests that datagrams cannot serve.
fn refusals(lib: &Lib) {
    let (a, b, to_b, _) = introduce(side(lib), side(lib));
    let long = pattern(MOST + 1);
    for call in ["fi_send", "fi_sendv", "fi_senddata", "fi_inject"] {
        assert_eq!(a.run(call, &Args::new(long, to_b)), err(FI_EMSGSIZE), "{call}");
    }
    assert_eq!(a.run("fi_send", &Args::new(long, 77)), err(FI_EMSGSIZE));
    assert_eq!(a.run("fi_send", &Args::new(&mut long[..8], 77)), err(FI_EINVAL));
    for flags in [FI_DELIVERY_COMPLETE, FI_FENCE] {
        assert_eq!(a.run("fi_sendmsg", &Args { flags, ..Args::new(&mut long[..8], to_b) }), err(FI_EINVAL));
    }
    for call in ["fi_tsend", "fi_trecv", "fi_write", "fi_read"] {
        assert_eq!(a.run(call, &Args::new(&mut long[..8], to_b)), err(FI_ENOSYS), "{call}");
    }
    assert_eq!(dropped(&a), 0);
    // A datagram longer than its receive is truncated, as any message.
    b.start("fi_recv", &Args { context: 1, ..Args::new(memory(10), 0) }, &[]);
    a.start("fi_inject", &Args::new(pattern(30), to_b), &[]);
    let failed = b.next(&[&a]).failed();
    assert_eq!((failed.err as u32, failed.olen, failed.op_context as usize), (FI_ETRUNC, 20, 1));
}
