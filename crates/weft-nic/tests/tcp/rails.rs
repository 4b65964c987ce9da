//! Rails: further connections of a link for its long pushes. conformance.rs checks that links with rails keep the
//! contract, and `tcp/faults` that they survive all faults of a network.

use std::io::{Read, Write};
use std::net::TcpStream;

use weft_engine::mem::Owned;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId};
use weft_nic::handshake::Key;
use weft_nic::{Tcp, TcpConfig};

use super::resume::far_world;
use super::suite::{Window, World, pattern};
use super::{config, parts, raw};

const LONG: usize = 400_000;

fn striped() -> TcpConfig {
    TcpConfig { streams: 3, stripe_bytes: 20_000, ..config() }
}

/// Pushes a number of times from each side, until all pushes are done.
fn push_both_ways(world: &mut World<Tcp>, links: [LinkId; 2], times: u64) {
    let mut memory = Owned::new(pattern(3, LONG));
    for turn in 0..times {
        for (node, &link) in links.iter().enumerate() {
            world.nodes[1 - node].inbox.windows.insert(turn, Window::new(LONG));
            world.until("room", |nodes| nodes[node].push(link, turn, &[memory.iov()], turn).is_ok());
        }
        world.until("pushes", |nodes| nodes.iter().all(|node| node.inbox.done.contains_key(&turn)));
        for node in &mut world.nodes {
            assert_eq!(node.inbox.done.remove(&turn), Some(Ok(())));
            assert!(node.inbox.windows.remove(&turn).unwrap().bytes() == pattern(3, LONG), "turn {turn}");
        }
    }
}

/// Long pushes of both sides take the rails, which one side has dialled. An idle link has none, and they end with the
/// link.
#[test]
fn rails_carry_long_pushes() {
    let mut world = far_world(&striped());
    let (near, far) = world.join_and_greet(0, 1);
    assert_eq!(world.nodes[0].nic.stats().rails, 0);
    push_both_ways(&mut world, [near, far], 1);
    world.until("rails", |nodes| nodes.iter().all(|node| node.nic.stats().rails == 3));
    push_both_ways(&mut world, [near, far], 10);
    for node in &world.nodes {
        let stats = node.nic.stats();
        assert!(stats.rail_bytes > 15 * LONG as u64, "{stats:?}");
        assert_eq!((stats.rails, stats.rails_up, stats.rails_lost, stats.links), (3, 3, 0, 1));
    }
    world.nodes[0].close(near);
    world.until("the end", |nodes| nodes[1].inbox.down == [(far, LinkError::Closed)]);
    assert!(world.nodes.iter().all(|node| node.nic.stats().rails == 0));
}

/// A peer that wants no rails accepts those of the other side. Between endpoints of one host there are none unless
/// asked for.
#[test]
fn one_side_may_dial_alone() {
    let mut world = far_world(&striped());
    world.nodes.truncate(1);
    world.nodes.extend(far_world(&TcpConfig { streams: 1, ..striped() }).nodes.drain(1..));
    let (near, far) = world.join_and_greet(0, 1);
    push_both_ways(&mut world, [near, far], 1);
    world.until("rails", |nodes| nodes.iter().all(|node| node.nic.stats().rails == 3));

    for (within, rails) in [(false, 0), (true, 3)] {
        let config = TcpConfig { streams_within_host: within, ..striped() };
        let mut world = super::world(&config, 2);
        let (near, far) = world.join_and_greet(0, 1);
        push_both_ways(&mut world, [near, far], 3);
        world.until("rails", |nodes| nodes.iter().all(|node| node.nic.stats().rails == rails));
    }
}

/// Asks for a rail under a key. Returns the connection and the status of the verdict; `None`: there was none.
fn ask(world: &mut World<Tcp>, session: u64, key: &Key, ordinal: u8) -> (TcpStream, Option<u8>) {
    super::ask(world, 16, session, key, ordinal)
}

/// A segment of a rail.
fn segment(number: u64, after: u64, offset: u64, payload: &[u8]) -> Vec<u8> {
    let words = [number, after, 7, offset].map(u64::to_le_bytes).concat();
    raw::frame(5, &[&words[..], payload].concat())
}

/// An endpoint, and a link that a raw peer has made to it: the peer's connection, and the number and key of the
/// session.
fn linked() -> (World<Tcp>, TcpStream, u64, Key) {
    let mut world = super::world(&config(), 1);
    let visit = raw::Visit { me: EpName::full(&parts("127.0.0.1")), target: world.nodes[0].name() };
    let joined = super::while_running(&mut world, std::thread::spawn(move || visit.join()));
    (world, joined.stream, joined.number, joined.key)
}

#[test]
fn a_rail_needs_the_sessions_key() {
    let (mut world, _stream, number, key) = linked();
    let (_, unknown) = ask(&mut world, number ^ 1, &key, 0);
    assert_eq!(unknown, None, "there is no such session");
    let (_, denied) = ask(&mut world, number, &Key::new(&[1; 16], None), 0);
    assert_eq!((denied, world.nodes[0].nic.stats().denied), (Some(3), 1));
    let (_, beyond) = ask(&mut world, number, &key, 8);
    assert_eq!(beyond, Some(3), "a side has eight rails at most");
    assert_eq!(world.nodes[0].nic.stats().rails, 0);
    let (_first, accepted) = ask(&mut world, number, &key, 7);
    assert_eq!(accepted, Some(0));
    // A rail of the same number replaces the first one.
    let (_second, accepted) = ask(&mut world, number, &key, 7);
    assert_eq!((accepted, world.nodes[0].nic.stats().rails), (Some(0), 1));
}

/// A segment waits for the messages that go before it. A repeated segment is placed once, whatever has arrived of it.
#[test]
fn segments_wait_and_are_placed_once() {
    let (mut world, mut stream, number, key) = linked();
    world.nodes[0].inbox.windows.insert(7, Window::announced(100, 1));
    let (mut first, _) = ask(&mut world, number, &key, 0);
    let (mut second, _) = ask(&mut world, number, &key, 1);
    let payload = pattern(5, 100);
    let message = raw::frame(1, b"announcement");
    let after = message.len() as u64;
    // The first rail carries a part of the segment, and the second one all of it.
    first.write_all(&segment(0, after, 0, &payload)[..90]).unwrap();
    world.rounds(300);
    assert_eq!(world.nodes[0].inbox.windows[&7].placed, 0, "the message has not come");
    stream.write_all(&message).unwrap();
    world.until("a part", |nodes| nodes[0].inbox.windows[&7].placed == 50);
    second.write_all(&segment(0, after, 0, &payload)).unwrap();
    world.until("all", |nodes| nodes[0].inbox.windows[&7].full());
    first.write_all(&segment(0, after, 0, &payload)[90..]).unwrap();
    first.write_all(&segment(0, after, 0, &payload)).unwrap();
    world.rounds(300);
    assert!(world.nodes[0].inbox.windows.get_mut(&7).unwrap().bytes() == payload);
    let mut receipt = [0; 24];
    second.read_exact(&mut receipt).unwrap();
    assert_eq!((receipt[4], receipt[8], &receipt[9..]), (6, 1, &[0; 15][..]));
}

/// Frames on a rail that break a rule end the link.
#[test]
fn breaches_on_a_rail_end_the_link() {
    let receipt = |low: u64, bits: u64| raw::frame(6, &[low.to_le_bytes(), bits.to_le_bytes()].concat());
    let breaches = [
        segment(64, 0, 0, b"beyond the span"),
        segment(0, 0, u64::MAX, b"beyond all windows"),
        segment(0, 0, 0, b""),
        receipt(1, 0),
        receipt(0, 1),
        raw::frame(1, b"a message"),
        raw::frame(3, b""),
        vec![0xff; 40],
    ];
    for (case, bytes) in breaches.iter().enumerate() {
        let (mut world, _stream, number, key) = linked();
        let (mut rail, _) = ask(&mut world, number, &key, 0);
        rail.write_all(bytes).unwrap();
        world.until("the end", |nodes| !nodes[0].inbox.down.is_empty());
        assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Protocol, "{case}");
        assert_eq!(world.nodes[0].nic.stats().rails, 0);
    }
}
