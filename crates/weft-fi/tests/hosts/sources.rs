//! Sources of messages: directed receives that must name their source, errors for unknown sources, tagged
//! multi-receives, and receives whose sender has left.

use std::ffi::c_void;
use std::ptr::null_mut;

use weft_fi_sys::v2;
use weft_fi_sys::*;

use crate::client::{Info, Lib, close};
use crate::side::{
    Args, Outcome, Side, copies_alone, err, error_with_room, fabric_err, introduce, is_all, long_bytes, memory,
    pattern, scenes, set_min_multi_recv, until, works,
};
use crate::side::{Watched, pair};

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("capabilities", capabilities),
            ("exact", exact),
            ("strangers", strangers),
            ("strangers_uncounted", strangers_uncounted),
            ("tagged_multi", tagged_multi),
            ("untagged_multi", untagged_multi),
            ("cut", cut),
            ("user_ids", user_ids),
        ],
    );
}

/// Whether the host has the capability bits of 2.0.
fn new_bits(lib: &Lib) -> bool {
    lib.newest() >= v2::V2_0
}

fn with_caps<'a>(lib: &'a Lib, caps: u64) -> Side<'a> {
    Side::with(lib, 0, |hints| hints.get().caps = caps)
}

/// Each bit is granted on request and refused before its version. A bit that was not requested has no effect.
fn capabilities(lib: &Lib) {
    let ask = |caps| {
        let hints = lib.allocinfo();
        hints.get().caps = caps;
        lib.ask(lib.newest(), Some(&hints)).map(|info: Info<'_>| (info.get().caps, info.rx().caps))
    };
    let (caps, rx) = ask(FI_MSG | FI_SOURCE | FI_SOURCE_ERR).unwrap();
    assert_eq!((caps & FI_SOURCE_ERR, rx & FI_SOURCE_ERR), (FI_SOURCE_ERR, FI_SOURCE_ERR));
    assert_eq!(ask(FI_MSG | FI_SOURCE).unwrap().0 & FI_SOURCE_ERR, 0);
    for bit in [v2::FI_TAGGED_MULTI_RECV, v2::FI_EXACT_DIRECTED_RECV, v2::FI_TAGGED_DIRECTED_RECV] {
        let answer = ask(FI_TAGGED | bit);
        if new_bits(lib) {
            let (caps, rx) = answer.unwrap();
            assert_eq!((caps & bit, rx & bit), (bit, bit), "{bit:#x}");
        } else {
            assert_eq!(answer.err(), Some(FI_ENODATA), "{bit:#x}, which had another meaning");
        }
    }
    if new_bits(lib) {
        assert_eq!(ask(FI_TAGGED).unwrap().0 & v2::FI_EXACT_DIRECTED_RECV, 0);
        assert_eq!(ask(FI_MSG).unwrap().0 & v2::FI_TAGGED_MULTI_RECV, 0, "there are no tagged receives");
    }
}

fn recv_from(side: &Side<'_>, tagged: bool, buf: &mut [u8], source: u64, context: usize) -> isize {
    let (ptr, len, context) = (buf.as_mut_ptr().cast(), buf.len(), context as *mut c_void);
    unsafe {
        if tagged {
            (*(*side.ep).tagged).recv.unwrap()(side.ep, ptr, len, null_mut(), source, 0x7a6, 0, context)
        } else {
            (*(*side.ep).msg).recv.unwrap()(side.ep, ptr, len, null_mut(), source, context)
        }
    }
}

/// FI_AV_USER_ID: completions report sources by the client's numbers, or none if the client has set none.
/// Operations name peers by the usual addresses.
fn user_ids(lib: &Lib) {
    if lib.newest() < version(1, 20) {
        return;
    }
    let caps = FI_MSG | FI_TAGGED | FI_SOURCE | FI_DIRECTED_RECV | FI_AV_USER_ID;
    let hints = lib.allocinfo();
    (hints.get().caps, hints.domain().caps) = (caps, FI_AV_USER_ID);
    let info = lib.ask(lib.newest(), Some(&hints)).unwrap();
    assert_eq!((info.get().caps & FI_AV_USER_ID, info.domain().caps & FI_AV_USER_ID), (FI_AV_USER_ID, FI_AV_USER_ID));
    let mut b = Side::unbound_for(lib, info);
    let set = |av: *mut fid_av, addr, id, flags| unsafe {
        let ops: *const v2::fi_ops_av_1_20 = (*av).ops.cast();
        (*ops).set_user_id.unwrap()(av, addr, id, flags)
    };
    assert_eq!(set(b.av, 0, 1, 0), -FI_EINVAL, "a vector without user ids");
    assert_eq!(close(b.av), 0);
    b.av = b.opened.av(|attr| attr.flags = FI_AV_USER_ID).unwrap();
    let b = b.bound();
    let a = Side::new(lib);
    let to_b = a.insert(&b.name());
    // The address of a must not be 0, so that its user id is not mistaken for it.
    b.insert(&Side::new(lib).name());
    let to_a = b.insert(&a.name());
    assert_eq!(set(b.av, to_a + 1, 5, 0), -FI_EINVAL, "no such address");
    assert_eq!(set(b.av, to_a, 5, 1), -FI_EBADFLAGS.cast_signed());
    let source_is = |id: u64| {
        // The receive or the message comes first. A receive that names its source uses the address.
        for (early, from) in [(true, FI_ADDR_UNSPEC), (false, to_a), (true, to_a)] {
            let target = memory(8);
            let post = |target: &mut [u8]| assert_eq!(recv_from(&b, true, target, from, 1), 0);
            if early {
                post(target);
            }
            a.tsend(pattern(8), to_b, 2);
            a.next(&[&b]).done();
            if !early {
                post(target);
            }
            let readfrom = unsafe { (*(*b.cq).ops).readfrom.unwrap() };
            let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
            let mut source = 0;
            until(|| {
                a.progress();
                (unsafe { readfrom(b.cq, (&raw mut entry).cast(), 1, &mut source) } == 1).then_some(())
            });
            assert_eq!((entry.op_context as usize, source), (1, id), "early: {early}, from {from:#x}");
        }
    };
    source_is(FI_ADDR_NOTAVAIL);
    assert_eq!(set(b.av, to_a, 0x1234_5678_9abc, 0), 0);
    source_is(0x1234_5678_9abc);
    assert_eq!(set(b.av, to_a, 7, 0), 0);
    source_is(7);
}

/// FI_EXACT_DIRECTED_RECV, alone and as a modifier: a receive must name its source, and matches only that
/// source.
fn exact(lib: &Lib) {
    if !new_bits(lib) {
        return;
    }
    let kinds = FI_MSG | FI_TAGGED;
    for (extra, untagged) in [(0, true), (FI_DIRECTED_RECV, true), (v2::FI_TAGGED_DIRECTED_RECV, false)] {
        let open = || with_caps(lib, kinds | extra | v2::FI_EXACT_DIRECTED_RECV);
        let (a, b, to_b, to_a) = introduce(open(), open());
        let third = open();
        let to_third = b.insert(&third.name());
        let third_to_b = third.insert(&b.name());
        for tagged in [true, false] {
            let directed = tagged || untagged;
            let send = if tagged { "fi_tsend" } else { "fi_send" };
            let anyone = recv_from(&b, tagged, memory(8), FI_ADDR_UNSPEC, 1);
            assert_eq!(anyone, if directed { err(FI_EINVAL) } else { 0 }, "{extra:#x}, tagged: {tagged}");
            if !directed {
                assert_eq!(b.cancel(1), 0);
                b.poll().unwrap().failed();
                continue;
            }
            // The first receive is for the third side, whose message comes last.
            let (from_third, from_a) = (memory(8), memory(8));
            let (by_a, by_third) = (&mut [0xaa; 8], &mut [0x33; 8]);
            assert_eq!(recv_from(&b, tagged, from_third, to_third, 2), 0);
            assert_eq!(recv_from(&b, tagged, from_a, to_a, 3), 0);
            a.start(send, &Args::new(by_a, to_b), &[&b]);
            assert_eq!(b.next(&[&a]).done().op_context as usize, 3);
            third.start(send, &Args::new(by_third, third_to_b), &[&b]);
            assert_eq!(b.next(&[&third]).done().op_context as usize, 2);
            assert_eq!((from_a[0], from_third[0]), (0xaa, 0x33));
            a.next(&[&b]).done();
            third.next(&[&b]).done();
        }
    }
}

/// Waits until the next entry is an error, without reading it.
fn error_is_next(side: &Side<'_>, other: &Side<'_>) {
    let read = unsafe { (*(*side.cq).ops).read.unwrap() };
    until(|| {
        other.progress();
        let mut entry: fi_cq_tagged_entry = unsafe { std::mem::zeroed() };
        match unsafe { read(side.cq, (&raw mut entry).cast(), 1) } {
            result if result == fabric_err(FI_EAVAIL) => Some(()),
            result => {
                assert_eq!(result, err(FI_EAGAIN), "a stranger's message must be an error entry");
                None
            }
        }
    });
}

/// FI_SOURCE_ERR: a stranger's message is received and reported with the stranger's address, which the client
/// can insert unchanged.
fn strangers(lib: &Lib) {
    let extra = FI_SOURCE | FI_SOURCE_ERR;
    for tagged in [true, false] {
        for len in [0, 40, 100_000] {
            for (early, room) in [(true, 32), (false, 0), (true, 10)] {
                let b = with_caps(lib, FI_MSG | FI_TAGGED | extra);
                let a = Side::new(lib);
                let to_b = a.insert(&b.name());
                let (source, target) = (pattern(len), memory(len));
                let (send, recv) = if tagged { ("fi_tsenddata", "fi_trecv") } else { ("fi_senddata", "fi_recv") };
                let post = |target: &mut [u8]| b.start(recv, &Args { context: 0x21, ..Args::new(target, 0) }, &[]);
                if early {
                    post(target);
                }
                a.start(send, &Args::new(source, to_b), &[&b]);
                for _ in 0..100 {
                    a.progress();
                    b.progress();
                }
                if !early {
                    post(target);
                }
                error_is_next(&b, &a);
                let mut lent = vec![0; room];
                let failed = error_with_room(b.cq, &mut lent);
                let entry = failed.base;
                let what = format!("tagged: {tagged}, {len} bytes, room for {room}");
                assert_eq!(entry.err, FI_EADDRNOTAVAIL, "{what}");
                assert_eq!((entry.op_context as usize, entry.len, entry.olen), (0x21, len, 0), "{what}");
                assert_eq!((entry.data, entry.tag), (0xda7a, if tagged { 0x7a6 } else { 0 }), "{what}");
                let kind = if tagged { FI_TAGGED } else { FI_MSG };
                assert_eq!(entry.flags, FI_RECV | kind | FI_REMOTE_CQ_DATA, "{what}");
                assert_eq!(target, source, "{what}");
                let name = a.name();
                if room == 0 {
                    // The data stays in the provider's buffer until the next read.
                    let data = unsafe { std::slice::from_raw_parts(entry.err_data.cast::<u8>(), entry.err_data_size) };
                    assert_eq!(data, name, "{what}");
                    b.insert(data);
                } else {
                    assert_eq!(
                        (entry.err_data.cast_const().cast(), entry.err_data_size),
                        (lent.as_ptr(), room),
                        "{what}"
                    );
                    assert_eq!(lent, name[..room], "{what}");
                    if room == 32 {
                        b.insert(&lent);
                    }
                }
                // Once inserted, the peer's messages complete as all others.
                if room != 10 {
                    a.next(&[&b]).done();
                    works(&a, &b, to_b);
                }
            }
        }
    }
}

/// A stranger's message counts as received. With selective completion it is reported only on request.
fn strangers_uncounted(lib: &Lib) {
    let b = Side::unbound(lib, 0, |hints| hints.get().caps = FI_TAGGED | FI_SOURCE | FI_SOURCE_ERR);
    let cntr = b.opened.cntr();
    assert_eq!(crate::client::bind(b.ep, b.av, 0), 0);
    assert_eq!(crate::client::bind(b.ep, b.cq, FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION), 0);
    assert_eq!(crate::client::bind(b.ep, cntr, FI_RECV), 0);
    assert_eq!(b.enable(), 0);
    let a = Side::new(lib);
    let to_b = a.insert(&b.name());
    let cntr = crate::rig::Cntr(cntr);
    for (n, flags) in [0, FI_COMPLETION].into_iter().enumerate() {
        b.start("fi_trecvmsg", &Args { flags, ..Args::new(memory(8), 0) }, &[]);
        a.start("fi_tsend", &Args::new(pattern(8), to_b), &[&b]);
        cntr.reaches(n as u64 + 1, &[&a, &b]);
        assert_eq!(cntr.errors(), 0);
        match b.poll() {
            None => assert_eq!(flags, 0),
            Some(Outcome::Failed(entry)) => assert_eq!((entry.err, flags), (FI_EADDRNOTAVAIL, FI_COMPLETION)),
            Some(Outcome::Done(entry)) => panic!("{entry:?}"),
        }
    }
    let mut b = b;
    b.close_ep();
    assert_eq!(crate::client::close(cntr.0), 0);
}

/// A tagged multi-receive takes messages of its tag only, until too little room is left.
fn tagged_multi(lib: &Lib) {
    let caps = FI_TAGGED | FI_MULTI_RECV | if new_bits(lib) { v2::FI_TAGGED_MULTI_RECV } else { 0 };
    let (a, b, to_b, _) = introduce(with_caps(lib, caps), with_caps(lib, caps));
    works(&a, &b, to_b);
    set_min_multi_recv(b.ep, 500);
    let buf = memory(4000);
    let begin = buf.as_ptr() as usize;
    b.start("fi_trecvmsg", &Args { flags: FI_MULTI_RECV, context: 0x71, ..Args::new(buf, 0) }, &[]);
    let send = |len: usize, tag| {
        a.start("fi_tsend", &Args { tag, ..Args::new(&mut pattern(len)[..], to_b) }, &[&b]);
        a.next(&[&b]).done();
    };
    let mut used = 0;
    for len in [1000, 0, 1500, 1] {
        send(9, 0x999);
        send(len, 0x7a6);
        let entry = b.next(&[&a]).done();
        assert_eq!((entry.op_context as usize, entry.len, entry.tag), (0x71, len, 0x7a6));
        assert_eq!(entry.flags, FI_RECV | FI_TAGGED, "{} bytes are left", 4000 - used - len);
        assert_eq!(entry.buf as usize, begin + used);
        used += len;
    }
    send(1000, 0x7a6);
    let entry = b.next(&[&a]).done();
    assert_eq!(entry.flags, FI_RECV | FI_TAGGED | FI_MULTI_RECV, "499 bytes are left");
    b.nothing(&[&a]);
}

/// FI_MULTI_RECV as a default flag applies to untagged receives, and to tagged ones with
/// FI_TAGGED_MULTI_RECV.
fn untagged_multi(lib: &Lib) {
    for api in [lib.newest().min(version(1, 17)), lib.newest()] {
        let hints = lib.allocinfo();
        hints.get().caps = FI_MSG | FI_TAGGED;
        hints.rx().op_flags = FI_MULTI_RECV;
        let b = Side::opened(lib, 0, lib.ask(api, Some(&hints)).unwrap());
        let (a, b, to_b, _) = introduce(Side::new(lib), b);
        for recv in ["fi_trecv", "fi_trecvv", "fi_recv", "fi_recvv"] {
            let tagged = recv.contains("_t");
            let send = if tagged { "fi_tsend" } else { "fi_send" };
            let several = !tagged || api >= v2::V2_0;
            // After two messages too little room is left.
            let (buf, next) = (memory(250), memory(100));
            b.start(recv, &Args { context: 0x71, ..Args::new(buf, 0) }, &[]);
            for _ in 0..2 {
                a.start(send, &Args::new(pattern(100), to_b), &[&b]);
                a.next(&[&b]).done();
            }
            assert_eq!(b.next(&[&a]).done().op_context as usize, 0x71, "{recv}");
            if !several {
                b.nothing(&[&a]);
                assert!(buf[..100] == *pattern(100) && is_all(&buf[100..], 0), "{recv}: the buffer is released");
                b.start("fi_trecvmsg", &Args { context: 0x72, ..Args::new(next, 0) }, &[]);
            }
            let entry = b.next(&[&a]).done();
            let (context, flag) = if several { (0x71, FI_MULTI_RECV) } else { (0x72, 0) };
            assert_eq!((entry.op_context as usize, entry.flags & FI_MULTI_RECV), (context, flag), "{recv}");
            let target = if several { &buf[100..200] } else { &next[..] };
            assert_eq!(target, pattern(100), "{recv}");
        }
    }
}

/// The sender of a long message closes its endpoint. The receive reports the received length, not the
/// announced one.
fn cut(lib: &Lib) {
    if copies_alone() {
        return;
    }
    let (mut a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let len = long_bytes();
    let target = memory(len);
    let watched = Watched::new(target);
    b.trecv(target, 0x81);
    a.start("fi_tsend", &Args::new(pattern(len), to_b), &[]);
    until(|| {
        a.progress();
        b.progress();
        watched.begun().then_some(())
    });
    watched.assert_incomplete();
    a.close_ep();
    let entry = b.next(&[]).failed();
    assert_eq!(entry.op_context as usize, 0x81);
    let stored = watched.bytes();
    let come = stored.iter().position(|&byte| byte == 0).unwrap_or(len);
    assert!(come > 0 && come < len, "{come}");
    assert_eq!((entry.len, entry.olen), (come, 0), "of {len}");
}
