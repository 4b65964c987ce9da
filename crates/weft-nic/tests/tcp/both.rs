//! Both devices of an endpoint: the choice between shared memory and TCP for each peer, and the change from one to the
//! other.

use std::net::SocketAddr;
use std::time::Duration;

use weft_engine::mem::Owned;
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::{Layer, LinkError, LinkId, Nic, Versions};
use weft_nic::{Config, Device, Devices, NicError};

use super::suite::{Node, Window, World, pattern};

fn config() -> Config {
    Config {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        connect_timeout_ms: 1000,
        answer_timeout_ms: 1000,
        connect_retry_ms: 100,
        ..Config::default()
    }
}

fn world(configs: &[Config]) -> World<Devices> {
    World { nodes: configs.iter().map(|config| Node::new(Devices::new(config).unwrap())).collect() }
}

/// The device of a link at both ends.
fn devices(world: &World<Devices>, near: (usize, LinkId), far: (usize, LinkId)) -> [&'static str; 2] {
    [near, far].map(|(node, link)| world.nodes[node].inbox.up[&link].caps.device)
}

#[test]
fn neighbours_use_shared_memory() {
    let mut world = world(&[config(), config()]);
    let (near, far) = world.join_and_greet(0, 1);
    assert_eq!(devices(&world, (0, near), (1, far)), ["shm", "shm"]);
    assert_eq!(world.nodes[0].nic.device_of(near), Some("shm"));
    assert_eq!(world.nodes[0].nic.stats().fallbacks, 0);
    assert_eq!(world.nodes[0].nic.stats().tcp.unwrap().links, 0);
}

#[test]
fn one_side_without_shared_memory_means_tcp() {
    for (mine, theirs) in [(true, false), (false, true), (false, false)] {
        let mut world = world(&[Config { shm: mine, ..config() }, Config { shm: theirs, ..config() }]);
        for (from, to) in [(0, 1), (1, 0)] {
            let (near, far) = world.join_and_greet(from, to);
            assert_eq!(devices(&world, (from, near), (to, far)), ["tcp", "tcp"]);
        }
        assert!(world.nodes[0].nic.describe(LinkId(0)).unwrap().tcp.unwrap().remote.is_some());
    }
}

#[test]
fn one_side_without_tcp_means_shared_memory() {
    let mut world = world(&[Config { tcp: false, ..config() }, config()]);
    let (near, far) = world.join_and_greet(0, 1);
    assert_eq!(devices(&world, (0, near), (1, far)), ["shm", "shm"]);
    let (near, far) = world.join_and_greet(1, 0);
    assert_eq!(devices(&world, (1, near), (0, far)), ["shm", "shm"]);
}

/// The attempt over shared memory is refused, because the peer's host identity is accidentally that of this host. TCP
/// takes over under the same link number, without a `down`.
#[test]
fn tcp_takes_over_when_shared_memory_fails() {
    let mut world = world(&[config(), Config { shm: false, ..config() }]);
    let theirs = world.nodes[1].name();
    let claims_shm = EpName::full(&NameParts {
        socket: theirs.socket(),
        host_id: theirs.host_id(),
        ep_id: theirs.ep_id(),
        capability: theirs.capability(),
        context: None,
        shm: true,
        tcp: true,
    });
    assert_eq!(claims_shm.host_id(), world.nodes[0].name().host_id());
    let near = world.nodes[0].connect(&claims_shm);
    world.until("up", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
    assert!(world.nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.up[&near].caps.device, "tcp");
    let info = world.nodes[0].nic.describe(near).unwrap();
    assert_eq!((info.device, info.up, info.initiator), (Some("tcp"), true, true));
    assert_eq!(info.shm_failed, Some(LinkError::Refused));
    assert_eq!(world.nodes[0].nic.stats().fallbacks, 1);
    world.nodes[0].send(near, 5, b"hello").unwrap();
    world.until("hello", |nodes| nodes[1].inbox.messages.pop_front().is_some());
}

/// Both devices fail: the link ends once, with TCP's error.
#[test]
fn when_both_fail_the_reason_is_that_of_tcp() {
    let mut world = world(&[config(), config()]);
    let gone = world.nodes.pop().unwrap().name();
    let link = world.nodes[0].connect(&gone);
    world.until("down", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Refused)]);
    assert_eq!(world.nodes[0].nic.stats().fallbacks, 1);
    assert!(world.nodes[0].nic.describe(link).is_none());
}

/// An attempt that changes the device can be closed at any moment.
#[test]
fn an_attempt_is_closed_silently_during_a_fallback() {
    let mut world = world(&[config()]);
    let gone = Devices::new(&config()).unwrap().name();
    for polls in 0..40 {
        let link = world.nodes[0].connect(&gone);
        for _ in 0..polls {
            if world.nodes[0].inbox.down.is_empty() {
                world.nodes[0].poll();
            }
        }
        world.nodes[0].close(link);
        world.nodes[0].inbox.down.clear();
    }
    world.rounds(200);
    assert!(world.nodes[0].inbox.down.is_empty() && world.nodes[0].inbox.up.is_empty());
}

/// Without a common device the attempt fails at once.
#[test]
fn peers_without_a_common_device_are_unreachable() {
    let mut world = world(&[Config { shm: false, ..config() }, Config { tcp: false, ..config() }]);
    let theirs = world.nodes[1].name();
    assert_eq!(world.nodes[0].nic.connect(&theirs), Err(LinkError::Unreachable));
    assert!(matches!(Devices::new(&Config { shm: false, tcp: false, ..config() }), Err(NicError::NoDevice)));
}

/// A service name of this host is reached over shared memory, and over TCP if shared memory is disabled on either side.
#[test]
fn services_of_this_host_are_reached_either_way() {
    for (mine, theirs, device) in [(true, true, "shm"), (true, false, "tcp"), (false, true, "tcp")] {
        let mut world = world(&[Config { shm: mine, ..config() }, Config { shm: theirs, open: true, ..config() }]);
        let service = EpName::service(world.nodes[1].nic.socket());
        let near = world.nodes[0].connect(&service);
        world.until("up", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
        assert_eq!(world.nodes[0].inbox.up[&near].caps.device, device);
        assert_eq!(world.nodes[0].inbox.up[&near].peer, world.nodes[1].name());
    }
}

/// Two endpoints of one host have the same port on different addresses. One of them serves it over shared memory.
#[test]
fn a_port_that_is_served_twice_still_works() {
    let first = Devices::new(&Config { open: true, ..config() }).unwrap();
    let port = first.socket().port();
    let listen = Some(SocketAddr::from(([127, 0, 0, 2], port)));
    let Ok(second) = Devices::new(&Config { open: true, listen, ..config() }) else { return };
    let mut world = World { nodes: vec![Node::new(first), Node::new(second)] };
    world.join_and_greet(0, 1);
    world.join_and_greet(1, 0);
}

/// One endpoint carries a push and messages over each device at the same time.
#[test]
fn both_devices_carry_traffic_together() {
    let mut world = world(&[config(), config(), Config { shm: false, ..config() }]);
    let size = 5_000_000;
    let mut memory = Owned::new(pattern(9, size));
    for to in [1, 2] {
        let (near, _) = world.join_and_greet(0, to);
        world.nodes[to].inbox.windows.insert(1, Window::new(size));
        world.nodes[0].push(near, 1, &[memory.iov()], to as u64).unwrap();
    }
    world.until("both", |nodes| {
        nodes[0].inbox.done.len() == 2 && [1, 2].iter().all(|&to| nodes[to].inbox.windows[&1].placed == size)
    });
    for to in [1, 2] {
        assert!(world.nodes[to].inbox.windows.get_mut(&1).unwrap().bytes() == pattern(9, size));
    }
    let order: Vec<_> = world.nodes[0].inbox.up.values().map(|info| info.caps.device).collect();
    assert!(order.contains(&"shm") && order.contains(&"tcp"));
}

/// One descriptor reports events of both devices.
#[test]
fn one_sleep_covers_both_devices() {
    let mut world = world(&[config(), config(), Config { shm: false, ..config() }]);
    let links: Vec<_> = [1, 2].into_iter().map(|from| (from, world.join_and_greet(from, 0).0)).collect();
    for (from, near) in links {
        world.rounds(600);
        assert!(!world.nodes[0].nic.wait(Some(Duration::from_millis(30))).unwrap(), "nothing to do");
        world.nodes[from].send(near, 3, b"you").unwrap();
        assert!(world.nodes[0].nic.wait(Some(Duration::from_secs(5))).unwrap());
        world.until("message", |nodes| nodes[0].inbox.messages.pop_front().is_some());
    }
}

/// Two versions of weft do not connect. Both sides say which version each speaks, over both devices.
#[test]
fn two_versions_of_weft_are_named() {
    super::hostile::collect_warnings();
    for (shm, layer, versions) in [(true, Layer::Shm, [3, 40]), (false, Layer::Tcp, [2, 39])] {
        let of_version = |later_version| Config { shm, tcp: !shm, later_version, ..config() };
        let mut world = world(&[of_version(0), of_version(37)]);
        for (from, to) in [(0, 1), (1, 0)] {
            let there = world.nodes[to].name();
            let link = world.nodes[from].connect(&there);
            world.until("the refusal", |nodes| !nodes[from].inbox.down.is_empty());
            let seen = Versions { layer, ours: versions[from], theirs: versions[to] };
            assert_eq!(world.nodes[from].inbox.down.pop(), Some((link, LinkError::Version(seen))));
        }
        for [ours, theirs] in [versions, [versions[1], versions[0]]] {
            let said = format!("speaks version {theirs} of {layer}, and this process version {ours}");
            // The caller has said so, and the called endpoint.
            assert!(super::hostile::warnings(&said) >= 2, "{said}");
        }
    }
    // Where both are in use, the detour over TCP is said to be one.
    let mut world = world(&[config(), Config { later_version: 37, ..config() }]);
    let there = world.nodes[1].name();
    world.nodes[0].connect(&there);
    world.until("the refusal", |nodes| !nodes[0].inbox.down.is_empty());
    assert!(super::hostile::warnings("using TCP: the peer speaks version 40") > 0);
}
