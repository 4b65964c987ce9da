//! Links: how they are made and how they end.

use weft_engine::nic::{LinkError, Nic};

use super::{Device, World};

pub fn links_carry_names<D: Device>() {
    let mut world = World::new::<D>(2);
    world.join_and_greet(0, 1);
    world.join_and_greet(1, 0);
}

pub fn connects_to_itself<D: Device>() {
    let mut world = World::new::<D>(1);
    let (near, far) = world.join(0, 0);
    assert_ne!(near, far);
    world.nodes[0].send(near, 4, b"ping").unwrap();
    world.until("own message", |nodes| nodes[0].take_messages(far) == [b"ping"]);
    world.nodes[0].send(far, 4, b"pong").unwrap();
    world.until("own answer", |nodes| nodes[0].take_messages(near) == [b"pong"]);
    world.nodes[0].close(near);
    world.until("own end", |nodes| nodes[0].inbox.down == [(far, LinkError::Closed)]);
}

pub fn both_sides_connect_at_once<D: Device>() {
    let mut world = World::new::<D>(2);
    let names = [world.nodes[0].name(), world.nodes[1].name()];
    world.nodes[0].connect(&names[1]);
    world.nodes[1].connect(&names[0]);
    world.until("two links each", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 2));
    for node in &world.nodes {
        assert_eq!(node.inbox.up.values().filter(|info| info.initiator).count(), 1);
    }
}

pub fn a_service_name_reaches<D: Device>() {
    let Some((nic, service)) = D::open_service() else { return };
    let mut world = World::new::<D>(1);
    world.nodes.push(super::Node::new(nic));
    let link = world.nodes[0].connect(&service);
    world.until("service", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
    let full = world.nodes[1].name();
    assert_eq!(world.nodes[0].inbox.up[&link].peer.as_bytes(), full.as_bytes(), "the full name is told");
    world.join_and_greet(0, 1);
}

pub fn a_missing_endpoint_refuses_connections<D: Device>() {
    let mut world = World::new::<D>(1);
    let gone = D::open();
    let name = gone.name();
    drop(gone);
    let link = world.nodes[0].connect(&name);
    world.until("refusal", |nodes| !nodes[0].inbox.down.is_empty());
    let (of, why) = world.nodes[0].inbox.down[0];
    assert_eq!(of, link);
    assert!(matches!(why, LinkError::Refused | LinkError::Timeout), "{why:?}");
}

pub fn a_wrong_capability_is_denied<D: Device>() {
    let mut world = World::new::<D>(2);
    let mut bytes = *world.nodes[1].name().as_bytes();
    bytes[63] ^= 1;
    let forged = weft_engine::name::EpName::parse(&bytes).unwrap();
    world.nodes[0].connect(&forged);
    world.until("denial", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Denied);
    world.rounds(200);
    assert!(world.nodes[1].inbox.up.is_empty() && world.nodes[1].inbox.down.is_empty());
}

/// The peer does not poll: the attempt ends within the time-out. An endpoint that was dropped meanwhile is
/// gone.
pub fn a_silent_peer_times_out<D: Device>() {
    let mut world = World::new::<D>(1);
    let silent = D::open();
    let link = world.nodes[0].connect(&silent.name());
    world.until("time-out", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Timeout)]);
}

pub fn close_delivers_sent_messages<D: Device>() {
    for drop_instead in [false, true] {
        let mut world = World::new::<D>(2);
        let (near, far) = world.join_and_greet(0, 1);
        let mut sent = 0u32;
        while sent < 500 && world.nodes[0].send(near, 4, &[&sent.to_be_bytes()[..], &[7; 100]].concat()).is_ok() {
            sent += 1;
        }
        assert!(sent > 0);
        if drop_instead {
            // A device may be dropped once it is drained.
            world.until("drained", |nodes| nodes[0].nic.drained());
            drop(world.nodes.remove(0));
        } else {
            world.nodes[0].close(near);
        }
        world.until("end", |nodes| !nodes.last().unwrap().inbox.down.is_empty());
        let other = world.nodes.last_mut().unwrap();
        assert_eq!(other.inbox.down, [(far, LinkError::Closed)]);
        let got = other.take_messages(far);
        assert_eq!(got.len(), sent as usize);
        assert!(got.iter().zip(0u32..).all(|(bytes, n)| bytes[..4] == n.to_be_bytes()));
    }
}

pub fn numbers_are_used_again<D: Device>() {
    let mut world = World::new::<D>(2);
    let mut highest = 0;
    for round in 0..40 {
        let (near, far) = world.join_and_greet(0, 1);
        highest = highest.max(near.0).max(far.0);
        let (closer, other) = if round % 2 == 0 { (0, 1) } else { (1, 0) };
        let (mine, theirs) = if round % 2 == 0 { (near, far) } else { (far, near) };
        world.nodes[closer].close(mine);
        world.until("end", |nodes| nodes[other].inbox.down.pop().is_some_and(|(link, _)| link == theirs));
    }
    assert!(highest < 8, "numbers are dense: {highest}");
}

/// Closing before the link is up leaves no state on either side.
pub fn an_attempt_can_be_closed<D: Device>() {
    let mut world = World::new::<D>(2);
    let name = world.nodes[1].name();
    for rounds in [0, 1, 2, 5] {
        let link = world.nodes[0].connect(&name);
        world.rounds(rounds);
        world.nodes[0].close(link);
        world.rounds(2000);
        assert!(world.nodes[0].inbox.up.is_empty());
    }
    world.until("all ends", |nodes| nodes[1].inbox.up.is_empty());
    world.join_and_greet(0, 1);
}

pub fn one_endpoint_has_many_peers<D: Device>() {
    let mut world = World::new::<D>(25);
    let links: Vec<_> = (1..25).map(|peer| world.join_and_greet(0, peer)).collect();
    for round in 0u8..20 {
        for &(near, _) in &links {
            world.nodes[0].send(near, 2, &[round, near.0 as u8]).unwrap();
        }
        for (peer, &(_, far)) in links.iter().enumerate() {
            let near = links[peer].0;
            world.until("each peer receives", |nodes| nodes[peer + 1].take_messages(far) == [[round, near.0 as u8]]);
            world.nodes[peer + 1].send(far, 1, &[round]).unwrap();
        }
        for &(near, _) in &links {
            world.until("each answer", |nodes| nodes[0].take_messages(near) == [[round]]);
        }
    }
    // All peers hang up at once.
    world.nodes.truncate(1);
    world.until("all ends", |nodes| nodes[0].inbox.down.len() == 24);
}
