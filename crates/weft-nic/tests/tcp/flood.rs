//! Strangers that flood the port: descriptors and memory stay bounded, and peers still get links.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketType};
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_nic::TcpConfig;

use super::{config, open, parts, raw, while_running, world};

/// A connection from one of the host's many loopback addresses.
pub fn dial_from(from: u8, to: SocketAddr) -> TcpStream {
    let socket = rustix::net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    rustix::net::bind(&socket, &SocketAddr::from((Ipv4Addr::new(127, 0, 9, from), 0))).unwrap();
    rustix::net::connect(&socket, &to).unwrap();
    socket.into()
}

fn patient() -> TcpConfig {
    config().with(|config| {
        config.connect_timeout_ms = 8000;
        config.answer_timeout_ms = 8000;
    })
}

/// All connections have one source: no peer waits for a stranger's grace period.
#[test]
fn silent_connections_of_one_source_are_bounded_and_delay_no_peer() {
    let mut world = world(&TcpConfig { half_open: 16, ..patient() }, 2);
    let target = world.nodes[0].name();
    let silent: Vec<_> = (0..300).map(|_| dial_from(1, target.socket())).collect();
    let start = Instant::now();
    world.join_and_greet(1, 0);
    assert!(start.elapsed() < Duration::from_secs(1), "{:?}", start.elapsed());
    world.rounds(5000);
    assert!(world.nodes[0].nic.stats().half_open <= 16);
    drop(silent);
}

/// Connections with valid hellos from many sources: the grace periods bound the places that they take.
#[test]
fn connections_of_many_sources_are_bounded() {
    let mut world = world(&TcpConfig { half_open: 16, ..patient() }, 2);
    let target = world.nodes[0].name();
    let silent: Vec<_> = (0..100).map(|n| dial_from(n + 1, target.socket())).collect();
    world.rounds(2000);
    assert_eq!(world.nodes[0].nic.stats().half_open, 16);
    let start = Instant::now();
    world.join_and_greet(1, 0);
    assert!(start.elapsed() < Duration::from_secs(8));
    drop(silent);
}

/// A hello that arrives one byte at a time holds a place only until another connection needs it.
#[test]
fn slow_hellos_are_cut_off() {
    let settings = TcpConfig { half_open: 8, ..patient() }.with(|config| config.connect_timeout_ms = 500);
    let mut world = world(&settings, 2);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let me = EpName::full(&parts("127.0.0.1"));
        let mut slow: Vec<_> = (0..8).map(|n| dial_from(n + 1, target.socket())).collect();
        let hello = raw::hello(&me, &target);
        let mut cut = 0;
        for byte in hello {
            for stream in &mut slow {
                cut += usize::from(stream.write_all(&[byte]).is_err());
            }
            thread::sleep(Duration::from_millis(10));
        }
        cut
    });
    let cut = while_running(&mut world, thread);
    assert!(cut > 0, "the deadline holds for the whole hello, not for each byte");
    assert_eq!(world.nodes[0].nic.stats().half_open, 0);
    world.join_and_greet(1, 0);
}

/// Ten thousand connections arrive in turn. The stranger keeps the last 300 open, which is more than the endpoint does.
/// Meanwhile the endpoint keeps few of them, carries messages between peers, and accepts a new one.
#[test]
fn ten_thousand_connections_cost_few_descriptors() {
    const CONNECTIONS: usize = 10_000;
    const OPEN: usize = 300;
    let mut world = world(&patient(), 3);
    let (link, _) = world.join_and_greet(1, 0);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        // The connections take descriptors of this process, too; like a scanner, their maker closes them again.
        let mut open = std::collections::VecDeque::new();
        for n in 0..CONNECTIONS {
            let mut stream = dial_from((n % 4) as u8 + 1, target.socket());
            if n % 3 == 0 {
                let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n");
            }
            open.push_back(stream);
            if open.len() > OPEN {
                open.pop_front();
            }
        }
    });
    let (mut most, mut sent, mut heard) = (0, 0, 0);
    while !thread.is_finished() {
        if sent == heard && world.nodes[1].send(link, 2, b"among strangers").is_ok() {
            sent += 1;
        }
        world.rounds(1);
        heard += world.nodes[0].inbox.messages.drain(..).count();
        most = most.max(world.nodes[0].nic.stats().half_open);
    }
    thread.join().unwrap();
    assert!(most <= TcpConfig::default().half_open, "{most}");
    assert!(heard > 100, "{heard} messages during the flood");
    let start = Instant::now();
    world.join_and_greet(2, 0);
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
    world.until("the strangers' end", |nodes| nodes[0].nic.stats().half_open == 0);
    assert_eq!(world.nodes[0].nic.stats().links, 2);
}

/// The acceptor hangs up on a fresh connection, because it had to make room. The initiator notices later. It dials
/// again as long as it has tries, not only while refused connections are tried again.
#[test]
fn a_connection_that_had_to_make_room_is_made_again() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let mut node = super::Node::new(open(&patient().with(|config| config.connect_retry_ms = 1)));
    let peer = super::moved(&EpName::full(&parts("127.0.0.1")), listener.local_addr().unwrap());
    let link = node.connect(&peer);
    listener.set_nonblocking(true).unwrap();
    let start = Instant::now();
    let mut cut = 0;
    while cut < 4 {
        assert!(start.elapsed() < Duration::from_secs(10));
        if let Ok((stream, _)) = listener.accept() {
            // The reset reaches the initiator before its next poll.
            rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).unwrap();
            drop(stream);
            cut += 1;
            thread::sleep(Duration::from_millis(20));
        }
        node.poll();
        assert!(node.inbox.down.is_empty(), "{:?} after {cut}", node.inbox.down);
    }
    drop(listener);
    let mut world = super::World { nodes: vec![node] };
    world.until("the end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Refused)]);
}

/// The connections send a hello without a finish, and end at once.
#[test]
fn a_peer_that_says_hello_and_hangs_up_leaves_nothing() {
    let mut world = world(&patient(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let me = EpName::full(&parts("127.0.0.1"));
        for n in 0..200 {
            let mut stream = raw::dial(target.socket());
            stream.write_all(&raw::hello(&me, &target)).unwrap();
            if n % 2 == 0 {
                let mut answer = [0; raw::ANSWER];
                stream.read_exact(&mut answer).unwrap();
            }
        }
    });
    while_running(&mut world, thread);
    // The last connections may still be in the listener's queue.
    world.until("their end", |nodes| nodes[0].nic.stats().refused >= 200 && nodes[0].nic.stats().half_open == 0);
    assert_eq!(world.nodes[0].nic.stats().refused, 200);
}
