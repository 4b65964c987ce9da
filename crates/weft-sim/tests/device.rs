//! The simulated device on its own: links, order, back-pressure, transfers, ends, determinism.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::collections::BTreeMap;

use proptest::prelude::*;
use weft_engine::mem::IovList;
use weft_engine::nic::{DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, RemoteIov, Sink};
use weft_sim::rng::{Entity, Stream};
use weft_sim::{Buffer, Fabric, FabricConfig, Faults, SimNic};

/// An event that a device delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Up { link: LinkId, initiator: bool },
    Down { link: LinkId, why: LinkError },
    Message { link: LinkId, bytes: Vec<u8> },
    Placed { link: LinkId, window: u64, offset: u64, len: usize },
    Done { link: LinkId, ctx: u64, result: Result<(), LinkError> },
}

/// A sink that records every call and places pushes into one buffer per window.
#[derive(Default)]
struct Notes {
    seen: Vec<Seen>,
    windows: BTreeMap<u64, Buffer>,
    asked: Option<(u64, u64, usize)>,
}

impl Sink for Notes {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, info: LinkUp) {
        self.seen.push(Seen::Up { link, initiator: info.initiator });
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        self.seen.push(Seen::Down { link, why });
    }
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.seen.push(Seen::Message { link, bytes: bytes.to_vec() });
    }
    fn place(&mut self, _link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        assert!(self.asked.is_none(), "place twice without placed");
        self.asked = Some((window, offset, len));
        let buffer = self.windows.get(&window)?;
        Some(IovList::from_slice(&[buffer.iov().slice(offset as usize, len)]))
    }
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        let (asked_window, asked_offset, asked_len) = self.asked.take().expect("placed without place");
        assert_eq!((window, offset), (asked_window, asked_offset));
        assert!(len <= asked_len);
        self.seen.push(Seen::Placed { link, window, offset, len });
    }
    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        self.seen.push(Seen::Done { link, ctx, result });
    }
}

/// Devices with their notes, progressed together.
struct Bench {
    fabric: Fabric,
    nics: Vec<Option<SimNic>>,
    notes: Vec<Notes>,
}

impl Bench {
    fn new(config: FabricConfig, endpoints: usize) -> Self {
        let fabric = Fabric::new(config);
        let nics = (0..endpoints).map(|_| Some(fabric.nic())).collect();
        Self { fabric, nics, notes: (0..endpoints).map(|_| Notes::default()).collect() }
    }

    fn nic(&mut self, ep: usize) -> &mut SimNic {
        self.nics[ep].as_mut().unwrap()
    }

    /// Polls every device once.
    fn poll(&mut self) -> usize {
        let both = self.nics.iter_mut().zip(&mut self.notes);
        both.filter_map(|(nic, notes)| nic.as_mut().map(|nic| (nic, notes)))
            .map(|(nic, notes)| {
                let calls = nic.poll(notes);
                nic.flush();
                calls
            })
            .sum()
    }

    /// Polls and advances time until nothing is pending.
    fn drive(&mut self) {
        for _ in 0..1_000_000 {
            if self.poll() == 0 && !self.fabric.waiting() && !self.fabric.advance() {
                assert_eq!(self.fabric.violations(), Vec::<String>::new());
                return;
            }
        }
        panic!("does not become idle");
    }

    /// Makes a link from `a` to `b` over which `b` may send, too.
    fn link(&mut self, a: usize, b: usize) -> (LinkId, LinkId) {
        let peer = self.nic(b).name();
        let before = self.notes[b].seen.len();
        let ours = self.nic(a).connect(&peer).unwrap();
        self.drive();
        while self.nic(a).send(ours, b"hello", &[]) == Err(Full) {
            self.poll();
        }
        self.drive();
        let theirs = self.notes[b].seen[before..].iter().find_map(|seen| match seen {
            Seen::Up { link, initiator: false } => Some(*link),
            _ => None,
        });
        for notes in &mut self.notes {
            notes.seen.clear();
        }
        (ours, theirs.unwrap())
    }

    fn messages(&self, ep: usize) -> Vec<Vec<u8>> {
        let bytes = |seen: &Seen| match seen {
            Seen::Message { bytes, .. } => Some(bytes.clone()),
            _ => None,
        };
        self.notes[ep].seen.iter().filter_map(bytes).collect()
    }

    fn dones(&self, ep: usize) -> Vec<(u64, Result<(), LinkError>)> {
        let done = |seen: &Seen| match seen {
            Seen::Done { ctx, result, .. } => Some((*ctx, *result)),
            _ => None,
        };
        self.notes[ep].seen.iter().filter_map(done).collect()
    }

    fn downs(&self, ep: usize) -> Vec<LinkError> {
        let down = |seen: &Seen| match seen {
            Seen::Down { why, .. } => Some(*why),
            _ => None,
        };
        self.notes[ep].seen.iter().filter_map(down).collect()
    }
}

#[test]
fn a_link_comes_up_on_both_sides_and_carries_messages_both_ways() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    let peer = bench.nic(1).name();
    let ours = bench.nic(0).connect(&peer).unwrap();
    assert_eq!(bench.poll(), 0, "nothing happens at once");
    bench.drive();
    assert_eq!(bench.notes[0].seen, [Seen::Up { link: ours, initiator: true }]);
    let [Seen::Up { link: theirs, initiator: false }] = bench.notes[1].seen[..] else {
        panic!("no up at the acceptor")
    };
    let body = bench.fabric.alloc(0, 8);
    body.write(b"abcdefgh");
    bench.nic(0).send(ours, b"head", &body.pieces(&[3])).unwrap();
    body.fill(0);
    bench.drive();
    assert_eq!(bench.messages(1), [b"headabcdefgh".to_vec()], "copied when send returned");
    bench.nic(1).send(theirs, b"back", &[]).unwrap();
    bench.drive();
    assert_eq!(bench.messages(0), [b"back".to_vec()]);
    assert!(bench.nic(0).drained());
}

#[test]
fn time_is_latency_plus_bytes() {
    let mut config = FabricConfig::new(1);
    (config.latency_ns, config.ps_per_byte) = (700, 1000);
    let mut bench = Bench::new(config, 2);
    let (ours, _) = bench.link(0, 1);
    let start_ns = bench.fabric.now_ns();
    bench.nic(0).send(ours, &[1; 300], &[]).unwrap();
    bench.drive();
    assert_eq!(bench.fabric.now_ns() - start_ns, 1000);
}

#[test]
fn an_acceptor_that_speaks_first_breaks_the_contract() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    let peer = bench.nic(1).name();
    bench.nic(0).connect(&peer).unwrap();
    bench.drive();
    bench.nic(1).send(LinkId(0), b"x", &[]).unwrap();
    assert!(bench.fabric.contract_broken());
}

#[test]
fn misuse_is_recorded_as_a_violation() {
    let cases: [fn(&mut Bench, LinkId); 5] = [
        |bench, _| {
            let _ = bench.nic(0).send(LinkId(9), b"x", &[]);
        },
        |bench, link| {
            let _ = bench.nic(0).send(link, &[0; 5000], &[]);
        },
        |bench, _| bench.nic(0).close(LinkId(9)),
        |bench, link| {
            let _ = bench.nic(0).copy(link, &DirectCopy::get(&[], &[RemoteIov { addr: 0, len: 1 }], 0));
        },
        |bench, _| {
            let peer = bench.nic(1).name();
            let early = bench.nic(0).connect(&peer).unwrap();
            let _ = bench.nic(0).push(early, 0, 0, &[], 0);
        },
    ];
    for (n, case) in cases.iter().enumerate() {
        let mut bench = Bench::new(FabricConfig::new(1), 2);
        let (ours, _) = bench.link(0, 1);
        case(&mut bench, ours);
        assert!(bench.fabric.contract_broken(), "case {n} went unnoticed");
    }
}

#[test]
fn simultaneous_and_self_connects_give_two_separate_links() {
    let mut bench = Bench::new(FabricConfig::new(3), 2);
    let names = [bench.nic(0).name(), bench.nic(1).name()];
    bench.nic(0).connect(&names[1]).unwrap();
    bench.nic(1).connect(&names[0]).unwrap();
    bench.drive();
    assert_eq!((bench.fabric.links(0), bench.fabric.links(1)), (2, 2));
    let own = bench.nic(0).connect(&names[0]).unwrap();
    bench.drive();
    assert_eq!(bench.fabric.links(0), 4);
    bench.nic(0).send(own, b"to myself", &[]).unwrap();
    bench.drive();
    assert_eq!(bench.messages(0), [b"to myself".to_vec()]);
}

#[test]
fn a_full_queue_has_room_after_the_peer_polled() {
    let mut config = FabricConfig::new(1);
    config.queue_depth = 3;
    let mut bench = Bench::new(config, 2);
    let (ours, _) = bench.link(0, 1);
    for n in 0..3 {
        bench.nic(0).send(ours, &[n], &[]).unwrap();
    }
    assert_eq!(bench.nic(0).send(ours, &[3], &[]), Err(Full));
    bench.fabric.advance();
    assert_eq!(bench.nic(0).send(ours, &[3], &[]), Err(Full), "arrived, but not taken");
    bench.drive();
    bench.nic(0).send(ours, &[3], &[]).unwrap();
    bench.drive();
    assert_eq!(bench.messages(1), [[0], [1], [2], [3]]);
}

#[test]
fn gathered_messages_wait_for_flush() {
    let mut config = FabricConfig::new(1);
    config.faults.gather_permille = 1000;
    let mut bench = Bench::new(config, 2);
    let (ours, _) = bench.link(0, 1);
    bench.nic(0).send(ours, b"a", &[]).unwrap();
    bench.nic(0).send(ours, b"b", &[]).unwrap();
    assert!(!bench.nic(0).drained());
    assert!(!bench.fabric.advance(), "nothing has left");
    bench.nic(0).flush();
    assert!(bench.nic(0).drained());
    bench.drive();
    assert_eq!(bench.messages(1), [b"a", b"b"]);
}

#[test]
fn push_get_and_put_move_the_bytes_and_report_once() {
    for seed in 0..50 {
        let mut config = FabricConfig::new(seed);
        (config.segment_bytes, config.jitter_ns) = (100, 3000);
        config.faults.short_place_permille = 400;
        let mut bench = Bench::new(config, 2);
        let (ours, _) = bench.link(0, 1);
        let mut rng = Stream::new(seed, Entity::Test(0));
        for len in [0, 1, 99, 100, 101, 1234] {
            let (local, remote) = (bench.fabric.alloc(0, len), bench.fabric.alloc(1, len));
            let there = [RemoteIov { addr: remote.iov().addr(), len: len as u64 }];
            let bytes = rng.bytes(len);
            local.write(&bytes);
            bench.nic(0).copy(ours, &DirectCopy::put(&local.pieces(&[len / 3]), &there, 1)).unwrap();
            bench.drive();
            assert_eq!(remote.bytes(), bytes);
            local.fill(0);
            bench.nic(0).copy(ours, &DirectCopy::get(&local.pieces(&[len / 4, len / 4]), &there, 2)).unwrap();
            bench.drive();
            assert_eq!(local.bytes(), bytes);
            let window = bench.fabric.alloc(1, len + 7);
            bench.notes[1].windows.insert(5, window);
            bench.nic(0).push(ours, 5, 7, &[local.iov()], 3).unwrap();
            bench.drive();
            assert_eq!(window.bytes()[7..], bytes);
            assert_eq!(bench.dones(0), [(1, Ok(())), (2, Ok(())), (3, Ok(()))]);
            bench.notes[0].seen.clear();
        }
        assert_eq!(bench.fabric.transfers(), 0);
    }
}

/// Where the device promises it, a push arrives after all messages that were sent before it. This includes
/// gathered messages.
#[test]
fn a_push_follows_the_messages_before_it() {
    let mut overtaken = 0;
    for seed in 0..200 {
        let mut config = FabricConfig::new(seed);
        (config.jitter_ns, config.segment_bytes, config.caps.push_follows) = (5000, 40, seed % 2 == 0);
        config.faults = Faults { stall_permille: 200, stall_ns: 5000, gather_permille: 300, ..Faults::default() };
        let mut bench = Bench::new(config, 2);
        let (ours, _) = bench.link(0, 1);
        let source = bench.fabric.alloc(0, 100);
        for n in 0..8 {
            bench.nic(0).send(ours, &[n], &[]).unwrap();
            bench.nic(0).push(ours, u64::from(n), 0, &[source.iov()], u64::from(n)).unwrap();
            bench.fabric.pass(seed * 7);
        }
        bench.drive();
        let mut announced = 0;
        let mut early = false;
        for seen in &bench.notes[1].seen {
            match seen {
                Seen::Message { bytes, .. } => announced = u64::from(bytes[0]) + 1,
                Seen::Placed { window, .. } => early |= *window >= announced,
                _ => {}
            }
        }
        assert!(!early || seed % 2 == 1, "seed {seed}");
        overtaken += usize::from(early);
    }
    assert!(overtaken > 20, "without the promise, pushes overtake: {overtaken}");
}

#[test]
fn a_get_outside_the_peers_buffers_fails_with_access() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    let (ours, _) = bench.link(0, 1);
    let (local, remote) = (bench.fabric.alloc(0, 100), bench.fabric.alloc(1, 100));
    let there = [RemoteIov { addr: remote.iov().addr() + 1, len: 100 }];
    bench.nic(0).copy(ours, &DirectCopy::get(&[local.iov()], &there, 1)).unwrap();
    bench.nic(0).copy(ours, &DirectCopy::put(&[local.iov()], &there, 2)).unwrap();
    bench.drive();
    let mut dones = bench.dones(0);
    dones.sort_by_key(|done| done.0);
    assert_eq!(dones, [(1, Err(LinkError::Access)), (2, Err(LinkError::Access))]);
}

#[test]
fn a_transfer_reads_memory_when_it_leaves_not_when_it_is_accepted() {
    let mut config = FabricConfig::new(1);
    (config.segment_bytes, config.ps_per_byte) = (10, 1_000_000);
    let mut bench = Bench::new(config, 2);
    let (ours, _) = bench.link(0, 1);
    let (source, window) = (bench.fabric.alloc(0, 40), bench.fabric.alloc(1, 40));
    bench.notes[1].windows.insert(1, window);
    source.fill(1);
    bench.nic(0).push(ours, 1, 0, &[source.iov()], 1).unwrap();
    bench.fabric.advance();
    source.fill(2);
    bench.drive();
    let bytes = window.bytes();
    assert_eq!((bytes[0], bytes[39]), (1, 2));
}

#[test]
fn close_delivers_sent_messages_and_ends_the_peers_link_once() {
    for seed in 0..100 {
        let mut config = FabricConfig::new(seed);
        (config.caps.ordered, config.caps.push_follows) = (seed % 2 == 0, false);
        config.jitter_ns = 5000;
        config.faults = Faults { reorder_permille: 500, reorder_ns: 50_000, gather_permille: 500, ..Faults::default() };
        let mut bench = Bench::new(config, 2);
        let (ours, theirs) = bench.link(0, 1);
        for n in 0..20 {
            bench.nic(0).send(ours, &[n], &[]).unwrap();
            bench.nic(1).send(theirs, &[n], &[]).unwrap();
        }
        bench.nic(0).close(ours);
        bench.drive();
        assert_eq!(bench.messages(1).len(), 20);
        assert_eq!(bench.notes[1].seen.last(), Some(&Seen::Down { link: theirs, why: LinkError::Closed }));
        assert_eq!(bench.notes[0].seen, [], "silent after close");
        assert_eq!((bench.fabric.links(0), bench.fabric.links(1)), (0, 0));
    }
}

#[test]
fn closing_before_the_link_is_up_leaves_nothing_behind() {
    for wait_ns in (0..60_000).step_by(1000) {
        let mut bench = Bench::new(FabricConfig::new(wait_ns), 2);
        let peer = bench.nic(1).name();
        let ours = bench.nic(0).connect(&peer).unwrap();
        bench.fabric.pass(wait_ns);
        bench.nic(0).close(ours);
        bench.drive();
        assert_eq!((bench.fabric.links(0), bench.fabric.links(1)), (0, 0));
        assert_eq!(bench.notes[0].seen, []);
        let up = bench.notes[1].seen.len();
        assert!(up == 0 || up == 2, "up and down, or neither: {:?}", bench.notes[1].seen);
    }
}

#[test]
fn connecting_to_a_missing_endpoint_ends_in_one_down() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    let peer = bench.nic(1).name();
    bench.nics[1] = None;
    let dead = bench.nic(0).connect(&peer).unwrap();
    let stranger = {
        let mut bytes = *peer.as_bytes();
        bytes[40] ^= 1;
        weft_engine::name::EpName::parse(&bytes).unwrap()
    };
    bench.nic(0).connect(&stranger).unwrap();
    bench.drive();
    assert_eq!(bench.downs(0).len(), 2);
    assert_eq!(bench.notes[0].seen.len(), 2, "no up");
    let again = bench.nic(0).connect(&peer).unwrap();
    assert_eq!(again, dead, "numbers are dense and used again");
}

#[test]
fn death_delivers_a_prefix_and_fails_pending_transfers() {
    let mut cut = 0;
    for seed in 0..200 {
        let mut config = FabricConfig::new(seed);
        (config.jitter_ns, config.segment_bytes, config.ps_per_byte) = (2000, 64, 10_000);
        let mut bench = Bench::new(config, 3);
        let (ours, theirs) = bench.link(0, 1);
        bench.link(0, 2);
        let local = bench.fabric.alloc(0, 4096);
        let remote = bench.fabric.alloc(1, 4096);
        let there = [RemoteIov { addr: remote.iov().addr(), len: 4096 }];
        for n in 0..20 {
            bench.nic(1).send(theirs, &[n; 20], &[]).unwrap();
        }
        bench.nic(0).copy(ours, &DirectCopy::get(&[local.iov()], &there, 1)).unwrap();
        bench.nic(0).copy(ours, &DirectCopy::put(&[local.iov()], &there, 2)).unwrap();
        bench.nic(0).push(ours, 1, 0, &[local.iov()], 3).unwrap();
        bench.fabric.pass(seed * 20);
        bench.fabric.kill(1);
        bench.nics[1] = None;
        bench.drive();
        let got = bench.messages(0);
        assert_eq!(got, (0..got.len() as u8).map(|n| vec![n; 20]).collect::<Vec<_>>(), "a prefix, in order");
        cut += usize::from(got.len() < 20);
        let mut dones = bench.dones(0);
        dones.sort_by_key(|done| done.0);
        assert_eq!(dones.iter().map(|done| done.0).collect::<Vec<_>>(), [1, 2, 3]);
        assert_eq!(bench.downs(0), [LinkError::Gone]);
        assert!(matches!(bench.notes[0].seen.last(), Some(Seen::Down { .. })), "done comes before down");
        assert_eq!(bench.fabric.links(0), 1, "the link to the third endpoint stays up");
        assert!(bench.nic(0).drained());
    }
    assert!(cut > 20, "only {cut} of 200 runs lost messages");
}

#[test]
fn an_orderly_exit_delivers_everything() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    let (ours, _) = bench.link(0, 1);
    for n in 0..10 {
        bench.nic(0).send(ours, &[n], &[]).unwrap();
    }
    bench.nics[0] = None;
    bench.drive();
    assert_eq!(bench.messages(1).len(), 10);
    assert_eq!(bench.downs(1), [LinkError::Gone]);
}

#[test]
fn a_reset_is_seen_by_both_sides() {
    let mut bench = Bench::new(FabricConfig::new(1), 2);
    bench.link(0, 1);
    assert_eq!(bench.fabric.break_links(0, 1, 0), 1);
    bench.drive();
    assert_eq!((bench.downs(0), bench.downs(1)), (vec![LinkError::Gone], vec![LinkError::Gone]));
    assert_eq!((bench.fabric.links(0), bench.fabric.links(1)), (0, 0));
}

/// Sends random traffic along a ring of devices. Returns, by endpoint, the messages that it must get.
fn traffic(config: FabricConfig, endpoints: usize, busy: usize) -> (Bench, Vec<Vec<Vec<u8>>>) {
    let seed = config.seed;
    let mut bench = Bench::new(config, endpoints);
    let mut links = BTreeMap::new();
    for a in 0..endpoints {
        let b = (a + 1) % endpoints;
        let peer = bench.nic(b).name();
        links.insert((a, b), bench.nic(a).connect(&peer).unwrap());
    }
    bench.drive();
    let mut sent = vec![Vec::new(); endpoints];
    let mut rngs = (0..busy).map(|n| Stream::new(seed, Entity::Workload(n))).collect::<Vec<_>>();
    for n in 0_u32..200 {
        for (a, rng) in rngs.iter_mut().enumerate() {
            let b = (a + 1) % endpoints;
            let mut bytes = n.to_be_bytes().to_vec();
            let len = rng.index(200);
            bytes.extend(rng.bytes(len));
            if bench.nics[a].as_mut().unwrap().send(links[&(a, b)], &bytes, &[]).is_ok() {
                sent[b].push(bytes);
            }
        }
        bench.poll();
        bench.fabric.pass(50);
    }
    bench.drive();
    (bench, sent)
}

#[test]
fn ordered_fabrics_keep_order_and_unordered_ones_do_not() {
    let mut overtaken = 0;
    for seed in 0..200 {
        let config = FabricConfig::swarm(seed);
        let ordered = config.caps.ordered;
        let (bench, sent) = traffic(config, 3, 3);
        for (ep, sent) in sent.iter().enumerate() {
            let mut got = bench.messages(ep);
            if ordered {
                assert_eq!(&got, sent, "seed {seed}");
            } else {
                overtaken += usize::from(&got != sent);
                got.sort();
                let mut sent = sent.clone();
                sent.sort();
                assert_eq!(got, sent, "seed {seed}: exactly once");
            }
        }
    }
    assert!(overtaken > 50, "unordered fabrics reordered only {overtaken} streams");
}

#[test]
fn the_same_seed_gives_the_same_trace_and_another_seed_another() {
    let mut hashes = Vec::new();
    for seed in 0..40 {
        let (first, _) = traffic(FabricConfig::swarm(seed), 3, 3);
        let (second, _) = traffic(FabricConfig::swarm(seed), 3, 3);
        assert_eq!(first.fabric.trace_hash(), second.fabric.trace_hash(), "seed {seed}");
        hashes.push(first.fabric.trace_hash());
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 40);
}

#[test]
fn an_added_endpoint_does_not_change_other_streams() {
    // Records the events at endpoint 1 and their times, with or without traffic between two further endpoints.
    let fates = |seed: u64, others: bool| {
        let mut config = FabricConfig::swarm(seed);
        (config.jitter_ns, config.connect_ns, config.faults.connect_slow_permille) = (5000, 1000, 0);
        let mut bench = Bench::new(config, if others { 4 } else { 2 });
        let names = bench.nics.iter().flatten().map(Nic::name).collect::<Vec<_>>();
        let other = others.then(|| bench.nic(2).connect(&names[3]).unwrap());
        let ours = bench.nic(0).connect(&names[1]).unwrap();
        let mut times = Vec::new();
        for n in 0_u32..6000 {
            if n > 3000 {
                let _ = bench.nic(0).send(ours, &n.to_be_bytes(), &[]);
                let _ = other.map(|other| bench.nic(2).send(other, &[1; 200], &[]));
            }
            bench.poll();
            bench.fabric.pass(100);
            times.push(bench.notes[1].seen.len());
        }
        (times, std::mem::take(&mut bench.notes[1].seen))
    };
    for seed in 0..20 {
        let alone = fates(seed, false);
        assert!(alone.1.len() > 4, "seed {seed}: only {} events", alone.1.len());
        assert_eq!(alone, fates(seed, true), "seed {seed}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any mixture of pushes arrives whole, with each byte once and one `done` for each push. Segment sizes
    /// and faults make no difference.
    #[test]
    fn pushes_arrive_whole(seed in 0_u64..1_000_000, lens in prop::collection::vec(0_usize..3000, 1..8)) {
        let mut config = FabricConfig::swarm(seed);
        config.segment_bytes = 16 + (seed % 500) as usize;
        let mut bench = Bench::new(config, 2);
        let (ours, _) = bench.link(0, 1);
        let mut rng = Stream::new(seed, Entity::Test(1));
        let mut expected = Vec::new();
        for (n, len) in lens.iter().enumerate() {
            let (source, window) = (bench.fabric.alloc(0, *len), bench.fabric.alloc(1, *len));
            let bytes = rng.bytes(*len);
            source.write(&bytes);
            bench.notes[1].windows.insert(n as u64, window);
            while bench.nic(0).push(ours, n as u64, 0, &source.pieces(&[len / 2]), n as u64) == Err(Full) {
                bench.poll();
                bench.fabric.advance();
            }
            expected.push((window, bytes));
        }
        bench.drive();
        for (window, bytes) in expected {
            prop_assert_eq!(window.bytes(), bytes);
        }
        let mut dones = bench.dones(0);
        dones.sort_by_key(|done| done.0);
        prop_assert_eq!(dones, (0..lens.len() as u64).map(|ctx| (ctx, Ok(()))).collect::<Vec<_>>());
        let mut next = BTreeMap::new();
        for seen in &bench.notes[1].seen {
            if let Seen::Placed { window, offset, len, .. } = seen {
                let at = next.entry(*window).or_insert(0);
                prop_assert_eq!(*at, *offset, "segments of one push in order, without gaps");
                *at += *len as u64;
            }
        }
    }
}
