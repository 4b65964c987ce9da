//! System calls: the number that a send, a flush, and an idle poll make.

use std::io::Write;
use std::thread;
use std::time::Instant;

use weft_engine::name::EpName;
use weft_engine::nic::{LinkId, Nic};
use weft_nic::Tcp;

use super::suite::{Node, parts};
use super::{config, raw, world};

fn send(node: &mut Node<Tcp>, link: LinkId, n: u32) {
    node.send(link, 4, &n.to_le_bytes()).unwrap();
}

/// The first message is sent immediately, and the rest of the burst together. The next flush has nothing to send.
#[test]
fn a_burst_costs_two_calls() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    let sender = &mut world.nodes[0];
    sender.nic.flush();
    let before = sender.nic.stats().send_calls;
    send(sender, near, 0);
    assert_eq!(sender.nic.stats().send_calls - before, 1);
    for n in 1..50 {
        send(sender, near, n);
    }
    assert_eq!(sender.nic.stats().send_calls - before, 1, "followers are gathered");
    sender.nic.flush();
    assert_eq!(sender.nic.stats().send_calls - before, 2);
    sender.nic.flush();
    assert_eq!(sender.nic.stats().send_calls - before, 2, "nothing is left");
    let receives = world.nodes[1].nic.stats().receive_calls;
    let mut got = Vec::new();
    world.until("all", |nodes| {
        got.extend(nodes[1].take_messages(far));
        got.len() == 50
    });
    assert!(got.iter().zip(0u32..).all(|(bytes, n)| bytes[..] == n.to_le_bytes()));
    // Two segments arrived; each may have been polled once in vain.
    assert!(world.nodes[1].nic.stats().receive_calls - receives <= 4);
}

/// A long message leaves immediately with the messages gathered before it, and is not copied.
#[test]
fn long_messages_leave_immediately_in_order() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    let sender = &mut world.nodes[0];
    sender.nic.flush();
    let before = sender.nic.stats().send_calls;
    for n in 0..4 {
        send(sender, near, n);
    }
    sender.send(near, 40, &[9; 20_000]).unwrap();
    assert_eq!(sender.nic.stats().send_calls - before, 2);
    assert_eq!(sender.nic.describe(near).unwrap().queued_bytes, 0);
    let mut got = Vec::new();
    world.until("all", |nodes| {
        got.extend(nodes[1].take_messages(far));
        got.len() == 5
    });
    assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), [4, 4, 4, 4, 20_000]);
}

/// Long messages that follow one another are gathered until one call is worth its cost.
#[test]
fn a_stream_of_long_messages_takes_few_calls() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    let sender = &mut world.nodes[0];
    sender.nic.flush();
    let before = sender.nic.stats().send_calls;
    for _ in 0..9 {
        sender.send(near, 40, &[9; 16 * 1024]).unwrap();
    }
    // The first message alone, then four at a time.
    assert_eq!(sender.nic.stats().send_calls - before, 3);
    let mut got = 0;
    world.until("all", |nodes| {
        got += nodes[1].take_messages(far).len();
        got == 9
    });
}

/// Without links, the device rarely polls the kernel.
#[test]
fn an_endpoint_without_links_rarely_polls_the_kernel() {
    let mut world = world(&config(), 1);
    world.rounds(100);
    let before = world.nodes[0].nic.stats();
    world.rounds(64_000);
    let asked = world.nodes[0].nic.stats().wait_calls - before.wait_calls;
    // The interval is 64 polls at first and 2048 in the end, plus one poll per tick of the coarse clock (at least a
    // millisecond).
    assert!((25..1000).contains(&asked), "{asked}");
    assert_eq!(world.nodes[0].nic.stats().receive_calls, before.receive_calls);
}

/// While shared memory delivers and TCP does not, system calls become rare. Traffic makes every poll real again.
#[test]
fn quiet_links_beside_a_busy_device_cost_little() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    let calls = |node: &Node<Tcp>| node.nic.stats().wait_calls + node.nic.stats().receive_calls;
    for _ in 0..2000 {
        world.nodes[1].nic.other_device_delivered();
        world.nodes[1].poll();
    }
    let before = calls(&world.nodes[1]);
    for _ in 0..32_000 {
        world.nodes[1].nic.other_device_delivered();
        world.nodes[1].poll();
    }
    let asked = calls(&world.nodes[1]) - before;
    assert!(asked < 4000, "{asked} system calls in 32000 polls");
    send(&mut world.nodes[0], near, 1);
    world.until("message", |nodes| !nodes[1].take_messages(far).is_empty());
    let before = calls(&world.nodes[1]);
    for _ in 0..1000 {
        world.nodes[1].poll();
    }
    assert!(calls(&world.nodes[1]) - before >= 1000, "every poll is real again");
}

/// Idle links cost a poll nothing.
#[test]
fn idle_links_cost_a_poll_nothing() {
    let mut world = world(&config(), 3);
    for _ in 0..100 {
        world.join_and_greet(1, 0);
    }
    let (near, far) = world.join_and_greet(2, 0);
    let turn = |world: &mut super::World<Tcp>, n: u32| {
        send(&mut world.nodes[2], near, n);
        world.until("message", |nodes| !nodes[0].take_messages(far).is_empty());
    };
    for n in 0..200 {
        turn(&mut world, n);
    }
    let before = world.nodes[0].nic.stats();
    for n in 0..200 {
        turn(&mut world, n);
    }
    let after = world.nodes[0].nic.stats();
    let polls_at_most = 200 * 20;
    let calls = after.receive_calls + after.wait_calls - before.receive_calls - before.wait_calls;
    assert!(calls < polls_at_most, "{calls} system calls for 200 messages beside 100 idle links");
}

/// A stranger that connects, breaks the protocol and returns does not make every poll of two other peers poll all
/// sockets.
#[test]
fn a_returning_stranger_costs_other_links_little() {
    const STRIKES: u64 = 50;
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    for n in 0..100 {
        send(&mut world.nodes[0], near, n);
        world.until("message", |nodes| !nodes[1].take_messages(far).is_empty());
    }
    let target = world.nodes[1].name();
    let attacker = thread::spawn(move || {
        for _ in 0..STRIKES {
            let mut stream = raw::join(&EpName::full(&parts(([127, 0, 0, 1], 9).into())), &target);
            stream.write_all(&raw::frame(9, b"of no kind")).unwrap();
        }
    });
    let (before, start, mut polls) = (world.nodes[1].nic.stats().wait_calls, Instant::now(), 0);
    while !attacker.is_finished() {
        if polls % 16 == 0 {
            send(&mut world.nodes[0], near, 7);
        }
        world.nodes[0].poll();
        world.nodes[1].poll();
        polls += 1;
    }
    attacker.join().unwrap();
    let asked = world.nodes[1].nic.stats().wait_calls - before;
    // One poll in eight, one per tick of the coarse clock (at least a millisecond), and the polls for each end of a
    // link.
    let most = polls / 8 + u64::try_from(start.elapsed().as_millis()).unwrap() + 2 * STRIKES;
    assert!(asked <= most, "{asked} times of {polls} polls, not {most}");
}
