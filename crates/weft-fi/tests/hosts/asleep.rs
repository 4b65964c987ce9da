//! Automatic progress for a target that never calls libfabric. It accepts connections, answers remote access,
//! atomics and rendezvous in both directions, and starts deferred work. One more scene tests a sender with
//! manual progress that makes no call after its sends have completed.
//!
//! Both ends are in this process. Between [`nap`] and the end of a scene only the initiator's objects are
//! called.

use std::ptr::null_mut;
use std::time::Duration;

use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::rig::{Cntr, Rig, Work, queue};
use crate::side::{Args, Side, Watched, introduce, memory, pattern, scenes, until, works};

const REMOTE: u64 = FI_REMOTE_READ | FI_REMOTE_WRITE;
const KEY: u64 = 5;
/// Lengths in a message, beside it, and above the length that a device takes at once.
const LENGTHS: [usize; 3] = [64, 50_000, 3 << 20];

pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("remote_access", remote_access),
            ("atomic_operations", atomic_operations),
            ("messages_to_a_sleeper", messages_to_a_sleeper),
            ("messages_of_a_sleeper", messages_of_a_sleeper),
            ("triggered_answers", triggered_answers),
            ("many_sleepers", many_sleepers),
            ("a_sender_that_stops", a_sender_that_stops),
        ],
    );
}

/// Sleeps until the progress threads sleep.
fn nap() {
    std::thread::sleep(Duration::from_millis(30));
}

/// An initiator with manual progress and a target with automatic progress at a threading level, not yet
/// connected.
fn couple<'a>(lib: &'a Lib, threading: fi_threading) -> (Side<'a>, Side<'a>, u64, u64) {
    let target = Side::with(lib, 0, |hints| {
        hints.domain().threading = threading;
        hints.domain().data_progress = FI_PROGRESS_AUTO;
        hints.domain().control_progress = FI_PROGRESS_AUTO;
    });
    introduce(Side::new(lib), target)
}

/// Runs a scene at levels with and without locks.
fn levels(lib: &Lib, scene: fn(&Side<'_>, &Side<'_>, u64, u64)) {
    for threading in [FI_THREAD_SAFE, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION] {
        let (a, b, to_b, to_a) = couple(lib, threading);
        scene(&a, &b, to_b, to_a);
    }
}

/// Writes and reads of every length. The first one has to connect.
fn remote_access(lib: &Lib) {
    levels(lib, |a, b, to_b, _| {
        let window = memory(LENGTHS[2]);
        let watched = Watched::new(window);
        let mr = b.register(window, REMOTE, KEY);
        nap();
        for len in LENGTHS {
            let (source, home) = (pattern(len), memory(len));
            let args = |buf: &mut [u8]| Args { key: KEY, ..Args::new(buf, to_b) };
            a.start("fi_write", &args(source), &[]);
            assert_eq!(a.next(&[]).done().op_context as usize, 0xc0, "{len}");
            assert_eq!(watched.bytes()[..len], *source, "{len}");
            nap();
            a.start("fi_read", &args(home), &[]);
            assert_eq!(a.next(&[]).done().op_context as usize, 0xc0, "{len}");
            assert_eq!(home, source, "{len}");
            nap();
        }
        assert_eq!(close(mr), 0);
    });
}

/// One number, which fits in a message, and an array, which needs several messages.
fn atomic_operations(lib: &Lib) {
    levels(lib, |a, b, to_b, _| {
        let count = 2000;
        let mr = b.register(memory(8 * count), REMOTE, KEY);
        let ones = 1_u64.to_ne_bytes().repeat(count).leak();
        let result = memory(8 * count);
        let fetch = unsafe { (*(*a.ep).atomic).readwrite.unwrap() };
        for (n, count) in [1, count, 1, count].into_iter().enumerate() {
            nap();
            until(|| {
                let (operands, results) = (ones.as_ptr().cast(), result.as_mut_ptr().cast());
                let none = null_mut();
                let posted =
                    unsafe { fetch(a.ep, operands, count, none, results, none, to_b, 0, KEY, FI_UINT64, FI_SUM, none) };
                a.progress();
                (posted == 0).then_some(())
            });
            a.next(&[]).done();
            assert_eq!(result[..8], (n as u64).to_ne_bytes());
            let last = &result[8 * (count - 1)..8 * count];
            assert_eq!(last, if count == 1 { n } else { n / 2 }.to_ne_bytes());
        }
        assert_eq!(close(mr), 0);
    });
}

/// The target has posted its receives. The sender learns only that they have matched.
fn messages_to_a_sleeper(lib: &Lib) {
    levels(lib, |a, b, to_b, _| {
        let targets = LENGTHS.map(memory).map(|target| {
            let watched = Watched::new(target);
            b.trecv(target, 0x91);
            watched
        });
        for (len, target) in LENGTHS.into_iter().zip(targets) {
            nap();
            let source = pattern(len);
            let flags = FI_DELIVERY_COMPLETE | FI_COMPLETION;
            a.start("fi_tsendmsg", &Args { flags, context: 0x92, ..Args::new(source, to_b) }, &[]);
            assert_eq!(a.next(&[]).done().op_context as usize, 0x92);
            assert_eq!(target.bytes(), source, "{len} bytes after delivery");
        }
        for len in LENGTHS {
            let entry = until(|| b.poll()).done();
            assert_eq!((entry.op_context as usize, entry.len), (0x91, len));
        }
    });
}

/// The target has started its sends before it sleeps. The initiator receives them one by one.
fn messages_of_a_sleeper(lib: &Lib) {
    levels(lib, |a, b, _, to_a| {
        for len in LENGTHS {
            b.start("fi_tsend", &Args { context: 0x93, ..Args::new(pattern(len), to_a) }, &[]);
        }
        for len in LENGTHS {
            nap();
            let target = memory(len);
            a.trecv(target, 0x94);
            assert_eq!(a.next(&[]).done().len, len);
            assert_eq!(target, pattern(len));
        }
        for _ in LENGTHS {
            assert_eq!(until(|| b.poll()).done().op_context as usize, 0x93);
        }
    });
}

/// A write, an atomic and a message each trigger an answer.
fn triggered_answers(lib: &Lib) {
    for len in LENGTHS {
        let rig = Rig::new(lib, FI_PROGRESS_AUTO);
        let (a, b) = (&rig.a, &rig.b);
        let [written, received, sent] = [(); 3].map(|()| rig.cntr(b));
        let mr = b.register(memory(len), REMOTE, KEY);
        assert_eq!(bind(mr, written.0, FI_REMOTE_WRITE), 0);
        let answers = [pattern(len), pattern(len)];
        let home = memory(len);
        let target = memory(len);
        let mut requests = vec![queue(b, written, 0, Some(received), Work::TaggedRecv(target, 0x700))];
        for (n, (cntr, answer)) in [written, received].into_iter().zip(answers).enumerate() {
            requests.push(queue(b, cntr, 1, Some(sent), Work::TaggedSend(answer, rig.to_a, 0x7a6 + n as u64)));
        }
        nap();
        a.trecv(home, 0x95);
        a.start("fi_write", &Args { key: KEY, context: 0x96, ..Args::new(pattern(len), rig.to_b) }, &[]);
        let mut seen = [a.next(&[]).done().op_context as usize, a.next(&[]).done().op_context as usize];
        seen.sort_unstable();
        assert_eq!(seen, [0x95, 0x96]);
        assert_eq!(home, pattern(len), "{len}");
        nap();
        let again = memory(len);
        a.start("fi_trecv", &Args { tag: 0x7a7, context: 0x97, ..Args::new(again, 0) }, &[]);
        a.start("fi_tsend", &Args { tag: 0x700, context: 0x98, ..Args::new(pattern(len), rig.to_b) }, &[]);
        let mut seen = [a.next(&[]).done().op_context as usize, a.next(&[]).done().op_context as usize];
        seen.sort_unstable();
        assert_eq!(seen, [0x97, 0x98]);
        assert_eq!(again, pattern(len), "{len}");
        until(|| (sent.read() == 2).then_some(()));
        assert_eq!([written, received, sent].map(Cntr::errors), [0; 3]);
        assert_eq!(close(mr), 0);
    }
}

/// One thread makes progress for several endpoints of one domain.
fn many_sleepers(lib: &Lib) {
    let (a, b, _, _) = couple(lib, FI_THREAD_SAFE);
    let window = memory(8 * 64);
    let watched = Watched::new(window);
    let mr = b.register(window, REMOTE, KEY);
    let others: Vec<_> = (0..7)
        .map(|_| {
            let ep = b.another_ep();
            assert_eq!(bind(ep, b.av, 0), 0);
            assert_eq!(bind(ep, b.cq, FI_TRANSMIT | FI_RECV), 0);
            assert_eq!(crate::client::control(ep, FI_ENABLE, null_mut()), 0);
            ep
        })
        .collect();
    let names: Vec<_> = others.iter().map(|&ep| crate::side::name_of(ep)).chain([b.name()]).collect();
    let dests: Vec<_> = names.iter().map(|name| a.insert(name)).collect();
    for round in 1..=5_u8 {
        nap();
        for (n, &dest) in dests.iter().enumerate() {
            let source = vec![round + n as u8; 64].leak();
            let (addr, flags) = (64 * n as u64, FI_DELIVERY_COMPLETE | FI_COMPLETION);
            a.start("fi_writemsg", &Args { key: KEY, addr, flags, ..Args::new(source, dest) }, &[]);
        }
        for _ in &dests {
            a.next(&[]).done();
        }
        for (n, place) in watched.bytes().chunks(64).enumerate() {
            assert!(place.iter().all(|&byte| byte == round + n as u8), "{n} in round {round}");
        }
    }
    assert_eq!(close(mr), 0);
    for ep in others {
        assert_eq!(close(ep), 0);
    }
}

/// With manual progress, messages arrive although the sender makes no call after it has read its last
/// completion, or after an inject.
fn a_sender_that_stops(lib: &Lib) {
    const MESSAGES: usize = 20;
    for threading in [FI_THREAD_SAFE, FI_THREAD_DOMAIN, FI_THREAD_COMPLETION] {
        let open = || Side::with(lib, 0, |hints| hints.domain().threading = threading);
        let (a, b, to_b, _) = introduce(open(), open());
        works(&a, &b, to_b);
        for (len, inject) in [(8, false), (8, true), (1000, false), (1000, true), (5000, false)] {
            let received: Vec<&mut [u8]> = (0..MESSAGES).map(|_| memory(len)).collect();
            let contexts: Vec<usize> =
                received.into_iter().enumerate().map(|(n, buf)| (b.trecv(buf, n), n).1).collect();
            for n in 0..MESSAGES {
                if inject {
                    let args = Args::new(pattern(len), to_b);
                    until(|| (a.run("fi_tinject", &args) == 0).then_some(()));
                } else {
                    a.tsend(pattern(len), to_b, n);
                }
            }
            for n in 0..MESSAGES * usize::from(!inject) {
                assert_eq!(a.next(&[]).context(), n, "{len}");
            }
            for n in contexts {
                assert_eq!(b.next(&[]).context(), n, "{len}, injected: {inject}");
            }
        }
    }
}
