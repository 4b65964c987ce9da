//! Chaining: connections on which the kernel performs steps. What a peer may do to them, and that links are unaffected.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Instant;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_engine::name::EpName;
use weft_engine::nic::{ChainEnd, ChainId, ChainState, ChainStep, Chaining, LinkId};
use weft_nic::handshake::Key;
use weft_nic::{Config, Device, Devices, Uring};

use super::suite::{Node, World};
use super::{parts, raw};

/// The flag of a hello for a chain.
const CHAIN: u8 = 32;

fn devices(uring: Uring) -> Node<Devices> {
    let iface = Some("127.0.0.1".to_owned());
    Node::new(Devices::new(&Config { shm: false, uring, iface, ..Config::default() }).unwrap())
}

/// The executors of this system.
fn executors() -> &'static [Uring] {
    if kernel_has_chains() { &[Uring::Yes, Uring::Polled] } else { &[Uring::Polled] }
}

/// Whether this system performs chains.
fn kernel_has_chains() -> bool {
    let offered = devices(Uring::Yes).nic.offers_chains(true);
    if !offered {
        eprintln!("polled chains only: the system refuses io_uring");
    }
    offered
}

/// Sends a frame, then awaits one.
fn steps(sent: u64, awaited: u64) -> [ChainStep; 2] {
    [ChainStep { end: 0, sends: true, tag: sent }, ChainStep { end: 0, sends: false, tag: awaited }]
}

fn frame(tag: u64) -> Vec<u8> {
    [&b"weft-chn"[..], &tag.to_le_bytes()].concat()
}

/// An endpoint, and a link that a raw peer has made to it: the peer's connection, the number and key of the session,
/// and the endpoint's number of the link.
fn linked(uring: Uring) -> (World<Devices>, TcpStream, u64, Key, LinkId) {
    let mut world = World { nodes: vec![devices(uring)] };
    let visit = raw::Visit { me: EpName::full(&parts("127.0.0.1")), target: world.nodes[0].name() };
    let joined = super::while_running(&mut world, std::thread::spawn(move || visit.join()));
    let link = *world.nodes[0].inbox.up.keys().next().unwrap();
    (world, joined.stream, joined.number, joined.key, link)
}

/// A chain of the endpoint with the raw peer, ready, and the peer's connection.
fn chained(uring: Uring) -> (World<Devices>, TcpStream, TcpStream, ChainId) {
    let (mut world, stream, number, key, link) = linked(uring);
    let id = world.nodes[0].nic.open_chain(&[ChainEnd { link, ours: 5, theirs: 6 }]).unwrap();
    let (chain, verdict) = super::ask(&mut world, CHAIN, number, &key, 5);
    assert_eq!(verdict, Some(0));
    wait(&mut world, id, ChainState::Ready);
    (world, stream, chain, id)
}

fn wait(world: &mut World<Devices>, id: ChainId, wanted: ChainState) {
    world.until("the state of a chain", |nodes| {
        let state = nodes[0].nic.poll_chain(id);
        assert!(state == wanted || state == ChainState::Busy, "{state:?}");
        state == wanted
    });
}

/// Each of two endpoints starts its steps in turn. Neither ends before both have started.
#[test]
fn steps_end_when_both_have_started() {
    for &one in executors() {
        executors().iter().for_each(|&other| both_start(one, other));
    }
}

fn both_start(one: Uring, other: Uring) {
    let mut world = World { nodes: vec![devices(one), devices(other)] };
    let (near, far) = world.join_and_greet(0, 1);
    let mut ids = [(0, near), (1, far)].map(|(node, link)| {
        let end = ChainEnd { link, ours: 70 + node, theirs: 71 - node };
        world.nodes[node as usize].nic.open_chain(&[end]).unwrap()
    });
    world.until("chains", |nodes| (0..2).all(|at| nodes[at].nic.poll_chain(ids[at]) == ChainState::Ready));
    for turn in 1..200 {
        let first = usize::from(turn % 3 == 0);
        assert!(world.nodes[first].nic.start_chain(ids[first], &steps(turn, turn)));
        world.rounds(5);
        assert_eq!(world.nodes[first].nic.poll_chain(ids[first]), ChainState::Busy);
        assert_eq!(world.nodes[first].nic.chain_arrivals(ids[first]), 0);
        assert!(world.nodes[1 - first].nic.start_chain(ids[1 - first], &steps(turn, turn)));
        world.until("the ends", |nodes| (0..2).all(|at| nodes[at].nic.poll_chain(ids[at]) == ChainState::Ready));
        assert!((0..2).all(|at| world.nodes[at].nic.chain_arrivals(ids[at]) == 2));
    }
    assert_eq!(world.nodes[0].nic.close_chain(ids[0]), 2);
    // The other side finds the end with its next steps.
    assert!(world.nodes[1].nic.start_chain(ids[1], &steps(200, 200)));
    ids.swap(0, 1);
    world.nodes.swap(0, 1);
    wait(&mut world, ids[0], ChainState::Broken);
    assert_eq!(world.nodes[0].nic.close_chain(ids[0]), 0);
}

#[test]
fn a_chain_needs_the_sessions_key() {
    let (mut world, _stream, number, key, _) = linked(Uring::Polled);
    let (_, unknown) = super::ask(&mut world, CHAIN, number ^ 1, &key, 5);
    assert_eq!(unknown, None, "there is no such session");
    let (_, denied) = super::ask(&mut world, CHAIN, number, &Key::new(&[1; 16], None), 5);
    assert_eq!(denied, Some(3));
    let (_, both) = super::ask(&mut world, CHAIN | 16, number, &key, 5);
    assert_eq!(both, None, "a connection has one purpose");
    let (_, early) = super::ask(&mut world, CHAIN, number, &key, 5);
    assert_eq!(early, Some(0), "the endpoint may join later");
    let (mut off, _stream, number, key, _) = linked(Uring::No);
    let (_, refused) = super::ask(&mut off, CHAIN, number, &key, 5);
    assert_eq!(refused, None, "the endpoint takes no part in chains");
}

/// Anything but the awaited frame breaks the chain. The link carries messages afterwards.
#[test]
fn unexpected_bytes_break_the_chain_alone() {
    let wrong: [(&[u8], bool); 5] =
        [(&frame(3), false), (&[0xff; 16], false), (&[0; 16], false), (&frame(2)[..9], true), (&[], true)];
    for ((bytes, hangs_up), &uring) in wrong.into_iter().flat_map(|case| executors().iter().map(move |it| (case, it))) {
        let (mut world, mut stream, mut chain, id) = chained(uring);
        assert!(world.nodes[0].nic.start_chain(id, &steps(1, 2)));
        let mut sent = [0; 16];
        chain.read_exact(&mut sent).unwrap();
        assert_eq!(sent[..], frame(1));
        chain.write_all(bytes).unwrap();
        if hangs_up {
            drop(chain);
        }
        wait(&mut world, id, ChainState::Broken);
        assert!(!world.nodes[0].nic.start_chain(id, &steps(3, 4)), "a broken chain is not used again");
        assert_eq!(world.nodes[0].nic.close_chain(id), 0);
        stream.write_all(&raw::frame(1, b"a message")).unwrap();
        world.until("a message", |nodes| !nodes[0].inbox.messages.is_empty());
    }
}

/// Breaking a chain ends its steps. Frames that have arrived count.
#[test]
fn frames_that_have_arrived_outlive_their_chain() {
    executors().iter().for_each(|&uring| frames_outlive_the_chain(uring));
}

fn frames_outlive_the_chain(uring: Uring) {
    let (mut world, _stream, mut chain, id) = chained(uring);
    let awaits = |tag| ChainStep { end: 0, sends: false, tag };
    assert!(world.nodes[0].nic.start_chain(id, &[awaits(1), awaits(2), awaits(3)]));
    chain.write_all(&[frame(1), frame(2)].concat()).unwrap();
    world.until("two frames", |nodes| {
        assert_eq!(nodes[0].nic.poll_chain(id), ChainState::Busy);
        nodes[0].nic.chain_arrivals(id) == 0b011
    });
    world.nodes[0].nic.break_chain(id);
    wait(&mut world, id, ChainState::Broken);
    assert_eq!(world.nodes[0].nic.close_chain(id), 0b011);
    // An endpoint may close while steps are under way.
    let (mut world, _stream, _chain, id) = chained(uring);
    assert!(world.nodes[0].nic.start_chain(id, &steps(1, 2)));
    let start = Instant::now();
    drop(world);
    assert!(start.elapsed().as_millis() < 200, "{:?}", start.elapsed());
}

/// A caller may sleep until the frame arrives that a polled chain awaits.
#[test]
fn a_frame_wakes_a_sleeper() {
    let (mut world, _stream, mut chain, id) = chained(Uring::Polled);
    assert!(world.nodes[0].nic.start_chain(id, &steps(1, 2)));
    assert_eq!(world.nodes[0].nic.poll_chain(id), ChainState::Busy);
    assert!(!world.nodes[0].nic.has_ended_chain(id));
    let sleep = |world: &mut World<Devices>, limit_ms: i64| {
        world.until("an idle device", |nodes| nodes[0].nic.park());
        let limit = Timespec { tv_sec: 0, tv_nsec: limit_ms * 1_000_000 };
        let fd = world.nodes[0].nic.wait_fd();
        let woken = poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&limit)).unwrap();
        world.nodes[0].nic.wake();
        woken == 1
    };
    assert!(!sleep(&mut world, 20));
    chain.write_all(&frame(2)).unwrap();
    assert!(sleep(&mut world, 900));
    assert_eq!(world.nodes[0].nic.poll_chain(id), ChainState::Ready);
}
