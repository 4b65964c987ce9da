//! The guarantees of the TCP device alone, and of both devices together. conformance.rs checks the contract that all
//! devices share. The tests use loopback only, and every wait is bounded.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, missing_docs, dead_code)]

#[path = "../suite/mod.rs"]
mod suite;

mod both;
mod chains;
mod economy;
mod encrypted;
mod flood;
mod fuzz;
mod hostile;
mod links;
mod rails;
mod raw;
mod resume;
mod transfers;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use suite::{Node, World};
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::Nic;
use weft_nic::handshake::{Key, Role};
use weft_nic::{Tcp, TcpConfig};

/// Short time limits, so that no test waits long.
fn config() -> TcpConfig {
    TcpConfig::default().with(|config| {
        config.connect_timeout_ms = 1000;
        config.answer_timeout_ms = 1000;
        config.connect_retry_ms = 100;
    })
}

fn parts(ip: &str) -> NameParts {
    suite::parts(SocketAddr::new(ip.parse().unwrap(), 0))
}

fn open(config: &TcpConfig) -> Tcp {
    Tcp::new(config, &parts("127.0.0.1")).unwrap()
}

/// A number of endpoints with one configuration.
fn world(config: &TcpConfig, nodes: usize) -> World<Tcp> {
    World { nodes: (0..nodes).map(|_| Node::new(open(config))).collect() }
}

/// An endpoint's name with another socket, as if the endpoint listened there.
fn moved(name: &EpName, socket: SocketAddr) -> EpName {
    EpName::full(&NameParts {
        socket,
        host_id: name.host_id(),
        ep_id: name.ep_id(),
        capability: name.capability(),
        context: None,
        shm: name.shm(),
        tcp: name.tcp(),
    })
}

/// Polls all endpoints until a thread that acts as a peer has finished.
fn while_running<N: Nic, T>(world: &mut World<N>, thread: std::thread::JoinHandle<T>) -> T {
    world.until("the other thread", |_| thread.is_finished());
    thread.join().unwrap()
}

/// Asks for a further connection of a link, of the kind that a flag names, under a key. Returns the connection and the
/// status of the verdict; `None`: there was none.
fn ask<N: Nic>(world: &mut World<N>, flag: u8, session: u64, key: &Key, number: u8) -> (TcpStream, Option<u8>) {
    let peer = world.nodes[0].name();
    let (mut hello, key) = (raw::hello_again(session, &peer.ep_id()), key.clone());
    hello[9] |= flag;
    let thread = std::thread::spawn(move || {
        let mut stream = raw::dial(peer.socket());
        stream.write_all(&hello).unwrap();
        let mut answer = [0; raw::ANSWER];
        stream.read_exact(&mut answer).unwrap();
        if answer[9] != 0 {
            return (stream, None);
        }
        let mut sealed = [0; 16];
        sealed[0] = number;
        let proof = key.proof(Role::Initiator, &[&hello, &answer[..raw::PROOF_AT], &sealed]);
        stream.write_all(&[&sealed[..], &proof].concat()).unwrap();
        let mut verdict = [9; 16];
        let heard = stream.read_exact(&mut verdict).is_ok();
        (stream, heard.then_some(verdict[0]))
    });
    while_running(world, thread)
}
