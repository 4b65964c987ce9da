//! The beginning and the end of links: refusals, time-outs, many at once, IPv6, sleeping, descriptors.

use std::io::Read;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, Nic as _};
use weft_nic::{Tcp, TcpConfig};

use super::suite::{Node, World};
use super::{config, moved, open, parts, raw, world};

/// The error with which the only link ended.
fn the_end(world: &mut World<Tcp>) -> LinkError {
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    world.nodes[0].inbox.down[0].1
}

#[test]
fn refusals_are_tried_again_for_a_while() {
    let mut world = world(&config().with(|config| config.connect_retry_ms = 300), 1);
    let nobody = moved(&EpName::full(&parts("127.0.0.1")), free_socket());
    let start = Instant::now();
    world.nodes[0].connect(&nobody);
    assert_eq!(the_end(&mut world), LinkError::Refused);
    let took = start.elapsed();
    assert!((Duration::from_millis(100)..Duration::from_secs(3)).contains(&took), "{took:?}");
}

/// The peer begins to listen only after the first attempts.
#[test]
fn a_late_listener_is_reached() {
    let mut world = world(
        &config().with(|config| {
            config.connect_retry_ms = 3000;
            config.connect_timeout_ms = 5000;
        }),
        1,
    );
    let socket = free_socket();
    let late = EpName::service(socket);
    world.nodes[0].connect(&late);
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(150) {
        world.nodes[0].poll();
    }
    let bind = TcpConfig { bind: Some(socket), ..config() }.with(|config| config.open = true);
    world.nodes.push(Node::new(open(&bind)));
    world.until("both up", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
}

/// The kernel accepts the connection, but no process answers.
#[test]
fn the_wait_for_an_answer_ends_as_configured() {
    let mut world = world(
        &config().with(|config| {
            config.connect_timeout_ms = 200;
            config.answer_timeout_ms = 600;
        }),
        1,
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let socket = listener.local_addr().unwrap();
    for (name, least_ms) in [(EpName::service(socket), 200), (moved(&EpName::full(&parts("127.0.0.1")), socket), 600)] {
        let start = Instant::now();
        let link = world.nodes[0].connect(&name);
        world.until("time-out", |nodes| nodes[0].inbox.down.last().is_some_and(|&(of, _)| of == link));
        assert_eq!(world.nodes[0].inbox.down.pop().unwrap().1, LinkError::Timeout);
        let took = start.elapsed();
        assert!(took >= Duration::from_millis(least_ms - 20) && took < Duration::from_secs(4), "{took:?}");
    }
}

/// The listener's queue is full, so that the kernel does not connect.
#[test]
fn a_full_queue_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let socket = listener.local_addr().unwrap();
    let _fill: Vec<_> =
        (0..3).map(|_| std::net::TcpStream::connect_timeout(&socket, Duration::from_millis(100))).collect();
    let mut world = world(&config().with(|config| config.connect_timeout_ms = 300), 1);
    world.nodes[0].connect(&EpName::service(socket));
    assert_eq!(the_end(&mut world), LinkError::Timeout);
}

/// An acceptor that hangs up during the handshake, because it had to make room, is dialled again.
#[test]
fn a_dropped_handshake_is_repeated() {
    let mut world = world(&config().with(|config| config.connect_timeout_ms = 5000), 2);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let front = listener.local_addr().unwrap();
    let back = world.nodes[1].nic.local_addr();
    let peer = moved(&world.nodes[1].name(), front);
    world.nodes[0].connect(&peer);
    // The thread drops two connections, and then relays between the two endpoints.
    let thread = thread::spawn(move || {
        for _ in 0..2 {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; raw::HELLO]).unwrap();
        }
        let (stream, _) = listener.accept().unwrap();
        relay(stream, raw::dial(back));
    });
    world.until("both up", |nodes| nodes.iter().all(|node| node.inbox.up.len() == 1));
    world.nodes.clear();
    thread.join().unwrap();
}

/// Carries bytes in both directions until both sides have closed.
fn relay(near: std::net::TcpStream, far: std::net::TcpStream) {
    let (mut near_in, mut far_in) = (near.try_clone().unwrap(), far.try_clone().unwrap());
    let (mut near_out, mut far_out) = (near, far);
    let there = thread::spawn(move || {
        let _ = std::io::copy(&mut near_in, &mut far_out);
        let _ = far_out.shutdown(std::net::Shutdown::Both);
    });
    let _ = std::io::copy(&mut far_in, &mut near_out);
    let _ = near_out.shutdown(std::net::Shutdown::Both);
    there.join().unwrap();
}

/// The process with the address has ended, and another endpoint listens there now.
#[test]
fn a_stale_name_is_refused() {
    let mut world = world(&config(), 2);
    let stale = moved(&EpName::full(&parts("127.0.0.1")), world.nodes[1].nic.local_addr());
    world.nodes[0].connect(&stale);
    assert_eq!(the_end(&mut world), LinkError::Refused);
}

#[test]
fn a_host_without_route_is_unreachable() {
    // The prefix 2001:db8::/32 is reserved for documentation (RFC 3849), so no route leads there.
    let mut world = world(&config(), 1);
    world.nodes[0].connect(&EpName::service("[2001:db8:ffff::1]:9".parse().unwrap()));
    let why = the_end(&mut world);
    assert!(matches!(why, LinkError::Unreachable | LinkError::Timeout), "{why:?}");
}

#[test]
fn ipv6_works() {
    let nodes = || (0..2).map(|_| Tcp::new(&config(), &parts("::1")));
    if nodes().any(|tcp| tcp.is_err()) {
        // This host has no IPv6.
        return;
    }
    let mut world = World { nodes: nodes().map(|tcp| Node::new(tcp.unwrap())).collect::<Vec<_>>() };
    assert!(world.nodes[0].nic.local_addr().is_ipv6());
    world.join_and_greet(0, 1);
}

#[test]
fn an_address_that_is_taken_is_named() {
    let first = open(&TcpConfig { bind: Some("127.0.0.1:0".parse().unwrap()), ..config() });
    let bind = Some(first.local_addr());
    let error = Tcp::new(&TcpConfig { bind, ..config() }, &parts("127.0.0.1")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(&first.local_addr().to_string()) && text.contains("another program"), "{text}");
    assert_eq!(error.raw_os_error(), libc::EADDRINUSE);
}

/// A sleeping thread is woken by a connection, by a message, and in time for its timers.
#[test]
fn sleeping_ends_when_there_is_something_to_do() {
    let mut world = world(&config().with(|config| config.connect_timeout_ms = 300), 2);
    let sleeper = world.nodes[0].name();
    rest(&mut world.nodes[0]);
    assert!(!sleep(&mut world.nodes[0], 50), "nothing to do");
    // A connection.
    let near = world.nodes[1].connect(&sleeper);
    assert!(is_woken_by(&mut world, 0, 1));
    world.until("up", |nodes| nodes[1].inbox.up.contains_key(&near));
    world.nodes[1].send(near, 5, b"hello").unwrap();
    world.until("hello", |nodes| nodes[0].inbox.messages.pop_front().is_some());
    // A message.
    rest(&mut world.nodes[0]);
    world.nodes[1].send(near, 5, b"wake up").unwrap();
    assert!(sleep(&mut world.nodes[0], 5000));
    world.until("message", |nodes| nodes[0].inbox.messages.pop_front().is_some());
    // A time-out.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    world.nodes[0].connect(&EpName::service(silent.local_addr().unwrap()));
    let start = Instant::now();
    while world.nodes[0].inbox.down.is_empty() {
        rest(&mut world.nodes[0]);
        sleep(&mut world.nodes[0], 5000);
        world.nodes[0].poll();
        assert!(start.elapsed() < Duration::from_secs(3));
    }
    assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Timeout);
}

/// Polls until no more events occur.
fn rest(node: &mut Node<Tcp>) {
    for _ in 0..200 {
        node.poll();
    }
}

/// Sleeps. Returns whether an event ended the sleep.
fn sleep(node: &mut Node<Tcp>, at_most_ms: i64) -> bool {
    if !node.nic.park() {
        return true;
    }
    let timeout = Timespec { tv_sec: at_most_ms / 1000, tv_nsec: at_most_ms % 1000 * 1_000_000 };
    let woken = poll(&mut [PollFd::new(&node.nic.wait_fd(), PollFlags::IN)], Some(&timeout)).unwrap() > 0;
    node.nic.wake();
    woken
}

/// One endpoint sleeps while the other is polled. Returns whether the sleeper was woken.
fn is_woken_by(world: &mut World<Tcp>, sleeper: usize, other: usize) -> bool {
    assert!(world.nodes[sleeper].nic.park());
    let start = Instant::now();
    let mut woken = false;
    while !woken && start.elapsed() < Duration::from_secs(5) {
        world.nodes[other].poll();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        woken = poll(&mut [PollFd::new(&world.nodes[sleeper].nic.wait_fd(), PollFlags::IN)], Some(&none)).unwrap() > 0;
    }
    world.nodes[sleeper].nic.wake();
    woken
}

/// `describe` shows the addresses and the queues of a link.
#[test]
fn links_can_be_described() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    let (mine, theirs) = (world.nodes[0].nic.describe(near).unwrap(), world.nodes[1].nic.describe(far).unwrap());
    assert_eq!((mine.local, mine.remote), (theirs.remote, theirs.local));
    assert_eq!(mine.remote, Some(world.nodes[1].nic.local_addr()));
    assert_eq!((mine.queued_bytes, mine.pushes), (0, 0));
}

fn free_socket() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// The link of a killed peer ends as `Gone`, after whole messages only.
#[test]
fn a_killed_process_is_gone() {
    let mut world = world(&config().with(|config| config.connect_timeout_ms = 3000), 1);
    let me = world.nodes[0].name();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "links::child_that_streams", "--ignored", "--nocapture"])
        .env("WEFT_TEST_PEER", hex(me.as_bytes()))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    world.until("messages", |nodes| nodes[0].inbox.messages.len() > 100);
    child.kill().unwrap();
    child.wait().unwrap();
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Gone);
    for (_, bytes) in &world.nodes[0].inbox.messages {
        assert_eq!(bytes.len(), 5000, "only whole messages");
    }
}

/// The helper process that `a_killed_process_is_gone` kills.
#[test]
#[ignore = "a helper process of another test"]
fn child_that_streams() {
    let Ok(text) = std::env::var("WEFT_TEST_PEER") else { return };
    let bytes: Vec<u8> = (0..64).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).unwrap()).collect();
    let peer = EpName::parse(&bytes).unwrap();
    let mut world = world(&config(), 1);
    let link = world.nodes[0].connect(&peer);
    world.until("up", |nodes| nodes[0].inbox.up.contains_key(&link));
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(20) {
        let _ = world.nodes[0].send(link, 100, &[3; 5000]);
        world.nodes[0].poll();
    }
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// A closed link is drained when its bytes have arrived. The end of the connection need not be acknowledged. The system
/// of a computing peer does that 40 ms late.
#[test]
fn a_closed_link_does_not_wait_for_a_peer_that_computes() {
    let mut took = Duration::MAX;
    for _ in 0..5 {
        let mut world = world(&config(), 2);
        let (near, far) = world.join_and_greet(0, 1);
        thread::sleep(Duration::from_millis(50));
        world.nodes[0].send(near, 4, b"a last word").unwrap();
        world.until("message", |nodes| !nodes[1].inbox.messages.is_empty());
        assert_eq!(world.nodes[1].take_messages(far).len(), 1);
        thread::sleep(Duration::from_millis(50));
        let start = Instant::now();
        world.nodes[0].close(near);
        while !world.nodes[0].nic.drained() {
            world.nodes[0].poll();
        }
        took = took.min(start.elapsed());
        world.until("end", |nodes| !nodes[1].inbox.down.is_empty());
        assert_eq!(world.nodes[1].inbox.down[0].1, LinkError::Closed);
        if took < Duration::from_millis(30) {
            return;
        }
    }
    panic!("drained after {took:?} at best");
}

/// A name has two addresses. The first refuses, has no route, or belongs to another endpoint.
#[test]
fn a_second_address_is_dialled_if_the_first_fails() {
    let at = |ip: &str| Tcp::new(&config(), &parts(ip)).unwrap();
    let mut world = World { nodes: vec![Node::new(at("127.0.0.1")), Node::new(at("127.0.0.2"))] };
    let name = world.nodes[1].name();
    let (port, second) = (name.socket().port(), Ipv4Addr::new(127, 0, 0, 2));
    let other = SocketAddr::new([127, 0, 0, 1].into(), port);
    for (first, other_listens) in [("127.0.0.1", false), ("255.255.255.255", false), ("127.0.0.1", true)] {
        let settings = TcpConfig { bind: Some(other), ..config() };
        let impostor = other_listens.then(|| Tcp::new(&settings, &parts("127.0.0.1")).unwrap());
        world.nodes.truncate(2);
        world.nodes.extend(impostor.map(Node::new));
        let peer = moved(&name, SocketAddr::new(first.parse().unwrap(), port)).with_second(second);
        let link = world.nodes[0].connect(&peer);
        world.until("up", |nodes| nodes[0].inbox.up.contains_key(&link));
        world.nodes[0].close(link);
        world.rounds(20);
    }
    // Neither works. The attempt ends as with one address.
    world.nodes.truncate(1);
    for first in ["127.0.0.1", "255.255.255.255"] {
        let peer = moved(&name, SocketAddr::new(first.parse().unwrap(), port)).with_second(second);
        let (link, start) = (world.nodes[0].connect(&peer), Instant::now());
        world.until("end", |nodes| nodes[0].inbox.down.iter().any(|(ended, _)| *ended == link));
        assert_eq!(world.nodes[0].inbox.down.last(), Some(&(link, LinkError::Refused)));
        assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
    }
}
