//! Devices close all their descriptors. The test is a program of its own, because it counts the descriptors
//! of the process.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, missing_docs, dead_code)]

mod suite;

use std::time::{Duration, Instant};

use suite::{Node, World};
use weft_engine::nic::Nic;
use weft_nic::{Config, Devices};

/// Number of open descriptors of this process.
fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn open(shm: bool) -> Node<Devices> {
    let config = Config { shm, listen: Some("127.0.0.1:0".parse().unwrap()), ..Config::default() };
    Node::new(Devices::new(&config).unwrap())
}

/// Two hundred links at one endpoint carry traffic, and are closed from either side.
fn many_links(shm: bool) {
    let mut world = World { nodes: (0..5).map(|_| open(shm)).collect::<Vec<_>>() };
    let at_rest = descriptors();
    let mut pairs = Vec::new();
    for n in 0..200 {
        let from = 1 + n % 4;
        let (near, far) = world.join_and_greet(from, 0);
        pairs.push((from, near, far));
    }
    for round in 0..5u8 {
        for &(from, near, _) in &pairs {
            world.nodes[from].send(near, 1, &[round; 100]).unwrap();
        }
        world.until("all", |nodes| nodes[0].inbox.messages.len() == pairs.len());
        for &(_, _, far) in &pairs {
            assert_eq!(world.nodes[0].take_messages(far), [vec![round; 100]]);
        }
    }
    for (n, &(from, near, far)) in pairs.iter().enumerate() {
        if n % 2 == 0 {
            world.nodes[from].close(near);
        } else {
            world.nodes[0].close(far);
        }
    }
    world.until("all ended", |nodes| nodes.iter().all(|node| node.inbox.up.is_empty()));
    world.until("all drained", |nodes| nodes.iter().all(|node| node.nic.drained()));
    // Closed links linger until the other side has closed them, too.
    let patience = Instant::now() + Duration::from_secs(10);
    while descriptors() > at_rest && Instant::now() < patience {
        world.rounds(10);
    }
    assert_eq!(descriptors(), at_rest, "after closing all links (shm {shm})");
}

/// Devices are dropped with open links and with connection attempts in progress.
fn dropped_in_use() {
    let mut world = World { nodes: vec![open(true), open(true), open(false)] };
    world.join_and_greet(0, 1);
    world.join_and_greet(0, 2);
    world.join_and_greet(1, 1);
    let gone = open(true).nic.name();
    world.nodes[0].connect(&gone);
}

#[test]
fn every_descriptor_is_given_back() {
    let before = descriptors();
    for shm in [false, true] {
        many_links(shm);
        assert_eq!(descriptors(), before, "after dropping all devices (shm {shm})");
    }
    for _ in 0..3 {
        dropped_in_use();
    }
    assert_eq!(descriptors(), before, "after dropping devices in use");
}
