//! The required results of operations, one rule per test, on every kind of device. Devices have get, put,
//! both or neither; they are ordered or not; their pushes follow the messages before them or not; half of
//! them are often full. The oracle judges every run in addition to the test's own assertions.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use weft_engine::api::{Access, Config, Error, Fault, OpFlags, RecvFlags};
use weft_engine::nic::LinkError;
use weft_sim::oracle::{Op, Record};
use weft_sim::{FabricConfig, Faults, Harness, Recv, Rma, Send};

const EAGER_BYTES: usize = 1000;

/// One fabric of each kind.
fn fabrics() -> Vec<FabricConfig> {
    let mut all = Vec::new();
    // On the last two, which are ordered and have neither get nor put, pushes follow messages.
    for kind in (0..16_u32).chain([16, 24]) {
        let bit = |n: u32| kind >> n & 1 == 1;
        let mut config = FabricConfig::new(u64::from(kind) + 1);
        (config.caps.get, config.caps.put, config.caps.ordered) = (bit(0), bit(1), !bit(2));
        config.caps.push_follows = bit(4);
        (config.caps.mailbox_bytes, config.caps.eager_bytes, config.segment_bytes) = (2048, EAGER_BYTES, 700);
        if bit(2) {
            config.faults = Faults { reorder_permille: 600, reorder_ns: 30_000, ..config.faults };
        }
        if bit(3) {
            config.queue_depth = 2;
            config.faults =
                Faults { full_permille: 400, gather_permille: 400, short_place_permille: 300, ..config.faults };
        }
        all.push(config);
    }
    all
}

/// Runs a test on every kind of fabric with `ranks` engines. The oracle judges each run.
fn everywhere(ranks: usize, engine: Config, test: impl Fn(&mut Harness)) {
    for fabric in fabrics() {
        let name = format!("{fabric:?}");
        let mut harness = Harness::new(fabric, engine, ranks);
        test(&mut harness);
        let wrong = harness.finish();
        assert!(wrong.is_empty(), "{}\non {name}\n{}", wrong.join("\n"), harness.cluster().fabric().trace_tail());
    }
}

/// Lengths around every change of protocol.
fn lens() -> Vec<usize> {
    let switches = [64, EAGER_BYTES, 1920, 2048, 4096, 700, 1400];
    let mut lens = vec![0, 1, 7, 8, 50_000];
    lens.extend(switches.iter().flat_map(|n| [n - 1, *n, n + 1]));
    lens
}

fn both() -> [Option<u64>; 2] {
    [None, Some(0xABCD_EF01_2345_6789)]
}

fn any(tagged: bool, len: usize) -> Recv {
    Recv { tag: tagged.then_some((0, u64::MAX)), len, ..Recv::default() }
}

fn exact(tag: u64, len: usize) -> Recv {
    Recv { tag: Some((tag, 0)), len, ..Recv::default() }
}

fn got_lens(harness: &Harness, op: Op) -> Vec<usize> {
    let Record::Recv(recv) = harness.oracle().record(op) else { panic!("not a receive") };
    recv.got.iter().map(|got| got.len).collect()
}

#[test]
fn sends_of_every_form_and_length_arrive() {
    everywhere(2, Config { inject_bytes: 1 << 20, ..Config::default() }, |h| {
        for (n, len) in lens().into_iter().enumerate() {
            for tag in both() {
                for data in both() {
                    for flags in [OpFlags::empty(), OpFlags::INJECT, OpFlags::DELIVERY, OpFlags::TRANSMIT] {
                        let send = Send { tag, data, len, flags, pieces: vec![len / 3] };
                        if n % 2 == 0 {
                            h.recv(1, &any(tag.is_some(), len)).unwrap();
                            h.send(0, 1, &send).unwrap();
                        } else {
                            h.send(0, 1, &send).unwrap();
                            h.turn();
                            h.recv(1, &any(tag.is_some(), len)).unwrap();
                        }
                    }
                }
            }
            h.drive().unwrap();
        }
    });
}

#[test]
fn quiet_sends_report_nothing() {
    everywhere(2, Config::default(), |h| {
        for len in [0, 100, 5000] {
            h.recv(1, &any(false, len)).unwrap();
            let op = h.send(0, 1, &Send { len, flags: OpFlags::QUIET, ..Send::default() }).unwrap();
            h.drive().unwrap();
            assert!(!h.oracle().ended(op));
        }
    });
}

/// The caller of an inject may wait for its effect outside of weft and make no progress meanwhile.
#[test]
fn an_accepted_inject_without_completion_has_left() {
    for mut fabric in fabrics() {
        fabric.faults.gather_permille = 0;
        fabric.poll_ns = 100;
        let mut h = Harness::new(fabric, Config::default(), 2);
        let window = h.add_window(1, 100, Access { read: true, write: true }, true).unwrap();
        let op = h.recv(1, &any(false, 100)).unwrap();
        let flags = OpFlags::INJECT | OpFlags::QUIET;
        assert_eq!(h.send(0, 1, &Send { len: 64, flags, ..Send::default() }), Err(Error::Again), "no link yet");
        while h.send(0, 1, &Send { len: 64, flags, ..Send::default() }) == Err(Error::Again) {
            h.turn();
        }
        while h.write(0, window, &Rma { remote: vec![32], flags, ..Rma::default() }) == Err(Error::Again) {
            h.turn();
        }
        for _ in 0..100_000 {
            h.cluster().engine(1).unwrap().progress();
            h.absorb(1);
        }
        assert_eq!(got_lens(&h, op), [64]);
        let wrong = h.finish();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// The first inject to a missing peer is refused and starts a connection attempt. A later inject reports that
/// attempt's failure.
#[test]
fn an_inject_to_a_missing_peer_fails_and_the_next_one_retries() {
    for mut fabric in fabrics() {
        fabric.faults.connect_fail_permille = 1000;
        let mut h = Harness::new(fabric, Config::default(), 2);
        let send = Send { len: 64, flags: OpFlags::INJECT | OpFlags::QUIET, ..Send::default() };
        for _ in 0..2 {
            assert_eq!(h.send(0, 1, &send), Err(Error::Again));
            let mut turns = 0;
            let op = loop {
                match h.send(0, 1, &send) {
                    Ok(op) => break op,
                    Err(error) => assert_eq!(error, Error::Again),
                }
                h.turn();
                turns += 1;
                assert!(turns < 100_000, "neither connected nor refused");
            };
            h.absorb(0);
            assert!(h.oracle().fault(op).is_some());
        }
    }
}

#[test]
fn an_inject_longer_than_the_limit_is_refused_without_a_trace() {
    everywhere(2, Config { inject_bytes: 100, ..Config::default() }, |h| {
        let inject = |len| Send { len, flags: OpFlags::INJECT, ..Send::default() };
        assert_eq!(h.send(0, 1, &inject(101)), Err(Error::TooLong));
        h.send(0, 1, &inject(100)).unwrap();
        let op = h.recv(1, &any(false, 200)).unwrap();
        h.drive().unwrap();
        assert_eq!(got_lens(h, op), [100]);
    });
}

#[test]
fn a_delivery_complete_send_waits_for_its_receive_and_a_plain_small_one_does_not() {
    everywhere(2, Config::default(), |h| {
        for len in [8, 5000] {
            let plain = h.send(0, 1, &Send { len: 8, ..Send::default() }).unwrap();
            let sure = h.send(0, 1, &Send { len, flags: OpFlags::DELIVERY, ..Send::default() }).unwrap();
            h.drive().unwrap();
            assert!(h.oracle().ended(plain) && !h.oracle().ended(sure));
            for _ in 0..2 {
                h.recv(1, &any(false, len)).unwrap();
            }
            h.drive().unwrap();
            assert!(h.oracle().ended(sure));
        }
    });
}

#[test]
fn matching_by_tag_mask_and_source_takes_the_oldest() {
    everywhere(3, Config::default(), |h| {
        let from_two = h.recv(0, &Recv { src: Some(2), len: 8, tag: Some((5, 0)), ..Recv::default() }).unwrap();
        let masked = h.recv(0, &Recv { len: 8, tag: Some((0xF0, 0x0F)), ..Recv::default() }).unwrap();
        let wild = h.recv(0, &any(true, 8)).unwrap();
        h.send(1, 0, &Send { tag: Some(5), len: 8, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert_eq!([from_two, masked, wild].map(|op| h.oracle().ended(op)), [false, false, true]);
        h.send(1, 0, &Send { tag: Some(0xF7), len: 8, ..Send::default() }).unwrap();
        h.send(2, 0, &Send { tag: Some(5), len: 8, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert_eq!([from_two, masked].map(|op| h.oracle().ended(op)), [true, true]);
    });
}

#[test]
fn messages_of_one_peer_keep_their_order_across_protocols() {
    everywhere(2, Config { window_bytes: 4000, ..Config::default() }, |h| {
        for len in [8, 3000, 9, 20_000, 1000, 1001, 8, 8] {
            h.send(0, 1, &Send { tag: Some(1), len, ..Send::default() }).unwrap();
        }
        h.drive().unwrap();
        let ops = (0..8).map(|_| h.recv(1, &exact(1, 20_000)).unwrap()).collect::<Vec<_>>();
        h.drive().unwrap();
        let lens = ops.iter().flat_map(|op| got_lens(h, *op)).collect::<Vec<_>>();
        assert_eq!(lens, [8, 3000, 9, 20_000, 1000, 1001, 8, 8]);
    });
}

#[test]
fn truncation_stores_a_prefix_and_reports_the_excess() {
    everywhere(2, Config::default(), |h| {
        for (len, room) in [(100, 99), (100, 0), (5000, 4999), (5000, 10), (5000, 0), (1001, 1000)] {
            for early in [false, true] {
                let receive = |h: &mut Harness| h.recv(1, &any(false, room)).unwrap();
                let first = early.then(|| receive(h));
                let send = h.send(0, 1, &Send { len, ..Send::default() }).unwrap();
                h.drive().unwrap();
                let op = first.unwrap_or_else(|| receive(h));
                h.drive().unwrap();
                let Record::Recv(recv) = h.oracle().record(op) else { panic!() };
                assert_eq!((recv.got[0].len, recv.got[0].full_len), (room, len));
                assert!(h.oracle().ended(send) && h.oracle().fault(send).is_none(), "the sender is not to blame");
            }
        }
    });
}

#[test]
fn cancel_ends_a_receive_once_and_spares_matched_ones() {
    everywhere(2, Config::default(), |h| {
        let first = h.recv(1, &exact(1, 10_000)).unwrap();
        let second = h.recv(1, &exact(2, 10_000)).unwrap();
        assert!(h.cancel(first));
        assert_eq!(h.oracle().fault(first), Some(Fault::Canceled));
        assert!(!h.cancel(first));
        h.send(0, 1, &Send { tag: Some(2), len: 10_000, ..Send::default() }).unwrap();
        h.send(0, 1, &Send { tag: Some(1), len: 10_000, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert!(!h.cancel(second));
        assert_eq!(got_lens(h, second), [10_000]);
    });
}

#[test]
fn a_multi_receive_takes_messages_until_too_little_is_left() {
    everywhere(2, Config::default(), |h| {
        h.cluster().engine(1).unwrap().set_min_multi_recv(500);
        for unexpected in [false, true] {
            let post = |h: &mut Harness| h.recv(1, &Recv { len: 4000, multi: true, ..Recv::default() }).unwrap();
            let early = (!unexpected).then(|| post(h));
            for len in [1000, 0, 1500, 1] {
                h.send(0, 1, &Send { len, ..Send::default() }).unwrap();
            }
            h.drive().unwrap();
            let op = early.unwrap_or_else(|| post(h));
            h.drive().unwrap();
            assert_eq!(got_lens(h, op).iter().sum::<usize>(), 2501);
            assert!(!h.oracle().ended(op), "1499 bytes are left");
            h.send(0, 1, &Send { len: 1000, ..Send::default() }).unwrap();
            h.drive().unwrap();
            assert!(h.oracle().ended(op), "499 bytes are left");
        }
    });
}

#[test]
fn a_canceled_multi_receive_returns_its_buffer() {
    everywhere(2, Config::default(), |h| {
        let op = h.recv(1, &Recv { len: 4000, multi: true, ..Recv::default() }).unwrap();
        h.send(0, 1, &Send { len: 1500, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert!(h.cancel(op));
        assert!(h.oracle().ended(op));
    });
}

#[test]
fn a_peek_looks_claims_and_discards() {
    everywhere(2, Config::default(), |h| {
        for len in [0, 100, 5000] {
            let found = |h: &Harness, op| match h.oracle().record(op) {
                Record::Peek(peek) => peek.found.clone().expect("completes at once"),
                _ => panic!("not a peek"),
            };
            let nothing = h.peek(1, &exact(7, 0), RecvFlags::empty()).unwrap();
            assert!(found(h, nothing).is_none());
            for tag in [7, 7, 8] {
                h.send(0, 1, &Send { tag: Some(tag), data: Some(tag), len: len + 8, ..Send::default() }).unwrap();
            }
            h.drive().unwrap();
            let look = h.peek(1, &exact(8, 0), RecvFlags::empty()).unwrap();
            let seen = found(h, look).expect("there is one");
            assert_eq!((seen.full_len, seen.data, seen.src), (len + 8, Some(8), Some(0)));
            let claim = h.peek(1, &any(true, 0), RecvFlags::CLAIM).unwrap();
            assert!(found(h, claim).is_some());
            let second = h.recv(1, &exact(7, len + 8)).unwrap();
            h.drive().unwrap();
            assert!(h.oracle().ended(second), "the claimed message matches no other receive");
            h.peek(1, &exact(8, 0), RecvFlags::DISCARD).unwrap();
            let gone = h.peek(1, &exact(8, 0), RecvFlags::empty()).unwrap();
            assert!(found(h, gone).is_none());
            h.claim(claim, Some(len + 8)).unwrap();
            assert_eq!(h.claim(nothing, Some(8)), Err(Error::NothingClaimed));
            h.drive().unwrap();
            assert_eq!(got_lens(h, claim), [len + 8]);
        }
    });
}

#[test]
fn a_claimed_message_can_be_discarded() {
    everywhere(2, Config::default(), |h| {
        for len in [8, 5000] {
            let sent = h.send(0, 1, &Send { tag: Some(1), len, flags: OpFlags::DELIVERY, ..Send::default() }).unwrap();
            h.drive().unwrap();
            let claim = h.peek(1, &exact(1, 0), RecvFlags::CLAIM).unwrap();
            h.claim(claim, None).unwrap();
            h.drive().unwrap();
            assert!(h.oracle().ended(claim) && h.oracle().ended(sent));
        }
    });
}

#[test]
fn an_endpoint_can_send_to_itself() {
    everywhere(1, Config::default(), |h| {
        for len in lens() {
            for flags in [OpFlags::empty(), OpFlags::DELIVERY] {
                h.send(0, 0, &Send { tag: Some(3), len, flags, ..Send::default() }).unwrap();
                let op = h.recv(0, &Recv { src: Some(0), ..exact(3, len) }).unwrap();
                h.drive().unwrap();
                assert_eq!(got_lens(h, op), [len]);
            }
        }
        let window = h.add_window(0, 9000, Access { read: true, write: true }, true).unwrap();
        let op = h.write(0, window, &Rma { remote: vec![4000], data: Some(9), ..Rma::default() }).unwrap();
        assert!(h.oracle().ended(op), "a write to oneself is done when the call returns");
        h.read(0, window, &Rma { offset: 4000, remote: vec![5000], ..Rma::default() }).unwrap();
        h.drive().unwrap();
    });
}

#[test]
fn both_sides_connect_at_once() {
    everywhere(4, Config::default(), |h| {
        for a in 0..4 {
            for b in 0..4 {
                h.send(a, b, &Send { len: 100, tag: Some(a as u64), ..Send::default() }).unwrap();
                h.recv(a, &exact(b as u64, 100)).unwrap();
            }
        }
        h.drive().unwrap();
        for rank in 0..4 {
            let links = h.cluster().fabric().links(rank);
            assert_eq!(links, 5, "one link per peer and two to itself, the others closed again");
        }
    });
}

#[test]
fn an_unreceived_flood_is_bounded_and_arrives_later() {
    let window_bytes = 10_000;
    everywhere(2, Config { window_bytes, ..Config::default() }, |h| {
        for n in 0..300 {
            h.send(0, 1, &Send { tag: Some(n), len: 500, ..Send::default() }).unwrap();
        }
        h.drive().unwrap();
        assert!(h.cluster().engine(1).unwrap().unexpected_messages() == 300, "all have asked");
        let eager = window_bytes / (500 + 64);
        assert!(h.cluster().engine(0).unwrap().incomplete() >= 300 - eager, "most wait at the sender");
        for n in (0..300).rev() {
            h.recv(1, &exact(n, 500)).unwrap();
        }
        h.drive().unwrap();
        assert!(h.cluster().engine(0).unwrap().at_rest());
    });
}

#[test]
fn a_full_transmit_queue_returns_again_without_a_trace() {
    everywhere(2, Config { tx_depth: 3, ..Config::default() }, |h| {
        let big = Send { len: 5000, ..Send::default() };
        for _ in 0..3 {
            h.send(0, 1, &big).unwrap();
        }
        assert_eq!(h.send(0, 1, &big), Err(Error::Again));
        h.recv(1, &any(false, 5000)).unwrap();
        h.drive().unwrap();
        h.send(0, 1, &big).unwrap();
    });
}

/// Sends that wait for the peer's client occupy no queue entries, with any protocol. Both ranks start all of
/// their sends before any receive.
#[test]
fn both_ranks_may_start_all_sends_before_any_receive() {
    const SENDS: usize = 120;
    everywhere(2, Config { tx_depth: 4, window_bytes: 3000, ..Config::default() }, |h| {
        let plain = |n: usize| [OpFlags::empty(), OpFlags::DELIVERY, OpFlags::INJECT, OpFlags::TRANSMIT][n % 4];
        let lens = [0, 8, 500, EAGER_BYTES, 3000];
        for n in 0..SENDS {
            for (rank, peer) in [(0, 1), (1, 0)] {
                let send = Send { tag: Some(n as u64), len: lens[n % 5], flags: plain(n), ..Send::default() };
                let mut turns = 0;
                while h.send(rank, peer, &send) == Err(Error::Again) {
                    h.turn();
                    turns += 1;
                    assert!(turns < 10_000, "send {n} of rank {rank} waits for a receive");
                }
            }
        }
        // Receives half of them in the order of sending, the others in reverse order.
        for n in (0..SENDS / 2).chain((SENDS / 2..SENDS).rev()) {
            for rank in [0, 1] {
                h.recv(rank, &Recv { tag: Some((n as u64, 0)), len: 3000, ..Recv::default() }).unwrap();
            }
        }
        h.drive().unwrap();
        for rank in [0, 1] {
            let engine = h.cluster().engine(rank).unwrap();
            assert_eq!((engine.unexpected_messages(), engine.posted_receives()), (0, 0));
            assert!(engine.at_rest());
        }
    });
}

/// A receiver that takes one announced message after another waits for much less than a round trip for each.
#[test]
fn a_late_receiver_waits_for_few_round_trips() {
    const SENDS: u64 = 200;
    const LATENCY_NS: u64 = 100_000;
    let mut fabric = FabricConfig::new(1);
    (fabric.caps.get, fabric.caps.put, fabric.latency_ns) = (false, false, LATENCY_NS);
    let mut h = Harness::new(fabric, Config { window_bytes: 20_000, ..Config::default() }, 2);
    for n in 0..SENDS {
        h.send(0, 1, &Send { tag: Some(n), len: 500, ..Send::default() }).unwrap();
    }
    h.drive().unwrap();
    let start = h.cluster().fabric().now_ns();
    for n in 0..SENDS {
        let op = h.recv(1, &exact(n, 500)).unwrap();
        h.drive_until(|oracle| oracle.ended(op)).unwrap();
    }
    let round_trips = (h.cluster().fabric().now_ns() - start) / (2 * LATENCY_NS);
    assert!(round_trips < SENDS / 5, "{round_trips} round trips for {SENDS} messages");
}

/// Short messages that were announced for want of window are fetched ahead of their receives. At any moment
/// of the fetch, a message may be received, claimed, discarded, or lost with its sender.
#[test]
fn announced_messages_are_fetched_ahead_of_their_receives() {
    const SENDS: usize = 60;
    for pause in [0, 1, 3, 10, 1000] {
        for dies in [false, true] {
            everywhere(2, Config { window_bytes: 3000, ..Config::default() }, |h| {
                for n in 0..SENDS {
                    let flags = if n % 3 == 0 { OpFlags::DELIVERY } else { OpFlags::empty() };
                    h.send(0, 1, &Send { tag: Some(n as u64), len: 300 + n, flags, ..Send::default() }).unwrap();
                }
                h.drive().unwrap();
                for n in 0..SENDS / 2 {
                    let of = |len| Recv { tag: Some((n as u64, 0)), len, ..Recv::default() };
                    match n % 5 {
                        3 => drop(h.peek(1, &of(0), RecvFlags::DISCARD).unwrap()),
                        4 => {
                            let op = h.peek(1, &of(0), RecvFlags::CLAIM).unwrap();
                            h.absorb(1);
                            h.claim(op, Some(1000)).unwrap();
                        }
                        // Every other message is longer than its buffer.
                        _ => drop(h.recv(1, &of(if n % 2 == 0 { 1000 } else { 100 })).unwrap()),
                    }
                    for _ in 0..pause.min(3) {
                        h.turn();
                    }
                }
                for _ in 0..pause {
                    h.turn();
                }
                if dies {
                    h.kill(0);
                }
                for n in SENDS / 2..SENDS {
                    h.recv(1, &Recv { tag: Some((n as u64, 0)), len: 1000, ..Recv::default() }).unwrap();
                }
                h.drive().unwrap();
                assert!(h.cluster().engine(1).unwrap().at_rest());
                assert_eq!(h.cluster().engine(1).unwrap().unexpected_messages(), 0);
            });
        }
    }
}

#[test]
fn a_full_receive_queue_returns_again() {
    everywhere(2, Config { rx_depth: 2, ..Config::default() }, |h| {
        let ops = [(); 2].map(|()| h.recv(1, &any(false, 8)).unwrap());
        assert_eq!(h.recv(1, &any(false, 8)), Err(Error::Again));
        h.recv(1, &any(true, 8)).unwrap();
        assert!(h.cancel(ops[0]));
        h.recv(1, &any(false, 8)).unwrap();
    });
}

#[test]
fn writes_and_reads_of_every_length_and_shape_succeed() {
    everywhere(3, Config { inject_bytes: 1 << 20, ..Config::default() }, |h| {
        let access = Access { read: true, write: true };
        let windows = [false, true].map(|events| h.add_window(1, 500_000, access, events).unwrap());
        let (mut at, mut writes) = (0, 1_000_000);
        for len in lens() {
            for flags in [OpFlags::empty(), OpFlags::INJECT, OpFlags::DELIVERY] {
                for window in windows {
                    let shape = Rma { flags, pieces: vec![len / 2], ..Rma::default() };
                    h.write(0, window, &Rma { offset: at, remote: vec![len], ..shape.clone() }).unwrap();
                    writes += 1;
                    let data = Some(writes);
                    h.drive().unwrap();
                    h.read(2, window, &Rma { offset: at, remote: vec![len / 3, len - len / 3], ..shape.clone() })
                        .unwrap();
                    if len < 5000 {
                        at += len;
                        let cut = vec![len / 5, len - len / 5];
                        h.write(2, window, &Rma { offset: at, remote: cut, data, ..shape }).unwrap();
                    }
                    h.drive().unwrap();
                }
                at += len;
            }
        }
    });
}

#[test]
fn the_target_refuses_wrong_keys_ranges_and_access() {
    everywhere(2, Config::default(), |h| {
        let read_only = h.add_window(1, 10_000, Access { read: true, write: false }, true).unwrap();
        let write_only = h.add_window(1, 10_000, Access { read: false, write: true }, true).unwrap();
        let open = h.add_window(1, 10_000, Access { read: true, write: true }, true).unwrap();
        for len in [0, 8, 5000] {
            for flags in [OpFlags::empty(), OpFlags::DELIVERY] {
                for provoke in [Some(Fault::BadKey), Some(Fault::BadRange), None] {
                    let rma = Rma { remote: vec![len, 8], flags, provoke, ..Rma::default() };
                    let (w, r) = if provoke.is_some() { (open, open) } else { (read_only, write_only) };
                    let ops = [h.write(0, w, &rma).unwrap(), h.read(0, r, &rma).unwrap()];
                    h.drive().unwrap();
                    let fault = Some(provoke.unwrap_or(Fault::BadKey));
                    assert_eq!(ops.map(|op| h.oracle().fault(op)), [fault, fault]);
                }
            }
        }
    });
}

#[test]
fn a_removed_region_is_unreachable_and_frees_its_key() {
    everywhere(2, Config::default(), |h| {
        let access = Access { read: true, write: true };
        let window = h.add_window(1, 10_000, access, false).unwrap();
        h.write(0, window, &Rma { remote: vec![5000], ..Rma::default() }).unwrap();
        h.drive().unwrap();
        h.remove_window(window);
        for len in [8, 5000] {
            let rma = Rma { offset: 5000, remote: vec![len], provoke: Some(Fault::BadKey), ..Rma::default() };
            h.write(0, window, &rma).unwrap();
            h.read(0, window, &rma).unwrap();
        }
        h.drive().unwrap();
    });
}

#[test]
fn a_fence_waits_for_earlier_operations() {
    everywhere(2, Config::default(), |h| {
        let window = h.add_window(1, 60_000, Access { read: true, write: true }, false).unwrap();
        let mut at = 0;
        for len in [8, 900, 5000, 20_000] {
            let write = h.write(0, window, &Rma { offset: at, remote: vec![len], ..Rma::default() }).unwrap();
            let fence = Rma { offset: 50_000, remote: vec![8], flags: OpFlags::FENCE, ..Rma::default() };
            let read = h.read(0, window, &fence).unwrap();
            h.drive_until(|oracle| oracle.ended(read)).unwrap();
            assert!(h.oracle().ended(write), "{len}: the fenced read overtook the write");
            at += len;
        }
    });
}

/// A send after accesses waits for the accesses only. It does not wait for a message that has no receive yet.
#[test]
fn a_send_after_accesses_waits_for_no_send() {
    everywhere(2, Config::default(), |h| {
        let window = h.add_window(1, 60_000, Access { read: true, write: true }, false).unwrap();
        let mut offset = 0;
        for (n, len) in [8, 900, 5000, 20_000].into_iter().enumerate() {
            let n = n as u64;
            h.send(0, 1, &Send { tag: Some(2 * n), len, flags: OpFlags::DELIVERY, ..Send::default() }).unwrap();
            let write = h.write(0, window, &Rma { offset, remote: vec![len], ..Rma::default() }).unwrap();
            offset += len;
            let flags = OpFlags::AFTER_ACCESSES;
            let follows = h.send(0, 1, &Send { tag: Some(2 * n + 1), len: 8, flags, ..Send::default() }).unwrap();
            let receive = |tag| Recv { tag: Some((tag, 0)), len: 20_000, ..Recv::default() };
            let asked = h.recv(1, &receive(2 * n + 1)).unwrap();
            h.drive_until(|oracle| oracle.ended(asked)).unwrap();
            assert!(h.oracle().ended(asked), "{len}: the send waits for a message without a receive");
            h.drive_until(|oracle| oracle.ended(follows)).unwrap();
            assert!(h.oracle().ended(write), "{len}: the send has overtaken a write");
            h.recv(1, &receive(2 * n)).unwrap();
            h.drive().unwrap();
        }
    });
}

#[test]
fn a_dead_peers_operations_fail_and_others_continue() {
    everywhere(3, Config::default(), |h| {
        let window = h.add_window(2, 10_000, Access { read: true, write: true }, false).unwrap();
        for len in [8, 5000] {
            h.send(0, 2, &Send { len, ..Send::default() }).unwrap();
            h.recv(2, &any(false, 10_000)).unwrap();
        }
        h.drive().unwrap();
        // A send that need not arrive may have left before the death.
        let big = Send { tag: Some(1), len: 9000, flags: OpFlags::DELIVERY, ..Send::default() };
        let big = h.send(0, 2, &big).unwrap();
        let read = h.read(0, window, &Rma { remote: vec![9000], ..Rma::default() }).unwrap();
        let directed = h.recv(0, &Recv { src: Some(2), len: 100, ..Recv::default() }).unwrap();
        let open = h.recv(0, &any(false, 100)).unwrap();
        h.turn();
        h.kill(2);
        h.drive().unwrap();
        for op in [big, read, directed] {
            assert!(matches!(h.oracle().fault(op), Some(Fault::Link(LinkError::Gone))), "{:?}", h.oracle().record(op));
        }
        let late = h.send(0, 2, &Send { len: 8, ..Send::default() }).unwrap();
        h.drive().unwrap();
        let why = h.oracle().fault(late);
        assert!(matches!(why, Some(Fault::Link(LinkError::Refused | LinkError::Timeout))), "{why:?}");
        h.send(1, 0, &Send { len: 50, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert_eq!(got_lens(h, open), [50]);
    });
}

#[test]
fn a_pair_reconnects_after_a_reset() {
    everywhere(2, Config { window_bytes: 2000, ..Config::default() }, |h| {
        for round in 0..10 {
            for (a, b) in [(0, 1), (1, 0)] {
                for _ in 0..4 {
                    h.send(a, b, &Send { tag: Some(round), len: 300, ..Send::default() }).unwrap();
                    h.send(a, b, &Send { tag: Some(round), len: 3000, flags: OpFlags::DELIVERY, ..Send::default() })
                        .unwrap();
                }
            }
            if round % 2 == 0 {
                h.drive().unwrap();
            } else {
                for _ in 0..round {
                    h.turn();
                }
            }
            h.break_links(0, 1, 0);
            h.drive().unwrap();
        }
        let last = h.send(0, 1, &Send { tag: Some(99), len: 3000, ..Send::default() }).unwrap();
        let op = h.recv(1, &exact(99, 3000)).unwrap();
        h.drive().unwrap();
        assert!(h.oracle().fault(last).is_none());
        assert_eq!(got_lens(h, op), [3000]);
    });
}

#[test]
fn failed_direct_access_falls_back_to_messages() {
    for mut fabric in fabrics() {
        fabric.faults.access_fail_permille = 1000;
        let mut h = Harness::new(fabric, Config::default(), 2);
        let window = h.add_window(1, 20_000, Access { read: true, write: true }, true).unwrap();
        for n in 0..3 {
            h.send(0, 1, &Send { len: 5000, ..Send::default() }).unwrap();
            h.recv(1, &any(false, 5000)).unwrap();
            h.write(0, window, &Rma { offset: n * 5000, remote: vec![5000], ..Rma::default() }).unwrap();
            h.read(0, window, &Rma { offset: 15_000, remote: vec![5000], ..Rma::default() }).unwrap();
        }
        h.drive().unwrap();
        let wrong = h.finish();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}

/// Two ranks that send to each other are both busy. If only one sends, the other one helps.
#[test]
fn a_peer_that_fetches_is_not_asked_to_help() {
    for senders in [vec![0], vec![0, 1]] {
        let mut fabric = FabricConfig::new(1);
        (fabric.share_permille, fabric.caps.push_follows) = (1000, false);
        let mut h = Harness::new(fabric, Config::default(), 2);
        h.recv(1, &any(false, 8)).unwrap();
        h.send(0, 1, &Send { len: 8, ..Send::default() }).unwrap();
        h.drive().unwrap();
        for &from in &senders {
            h.recv(1 - from, &any(false, 100_000)).unwrap();
            h.send(from, 1 - from, &Send { len: 100_000, ..Send::default() }).unwrap();
        }
        h.drive().unwrap();
        let stats = h.cluster().fabric().stats();
        assert_eq!((stats.gets, stats.assists > 0), (senders.len() as u64, senders.len() == 1));
        assert!(h.finish().is_empty());
    }
}

#[test]
fn a_departing_rank_delivers_its_sends() {
    everywhere(2, Config::default(), |h| {
        let ops = [8, 900].map(|len| {
            h.send(0, 1, &Send { len, ..Send::default() }).unwrap();
            h.recv(1, &any(false, len)).unwrap()
        });
        h.drive_until(|oracle| oracle.pending(|rank| rank == 0).is_empty()).unwrap();
        h.leave(0);
        h.drive().unwrap();
        assert!(ops.iter().all(|op| h.oracle().ended(*op)));
    });
}
