//! An endpoint without descriptors hangs up on those who call, who call again and then give up: nobody waits for as long as for a
//! silent host. A program of its own: the limit holds for the whole process.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, unreachable_pub, missing_docs, dead_code)]

#[path = "suite/mod.rs"]
mod suite;

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use suite::{Node, World};
use weft_engine::nic::LinkError;
use weft_nic::{Tcp, TcpConfig};

fn node() -> Node<Tcp> {
    let name = suite::parts(SocketAddr::new([127, 0, 0, 1].into(), 0));
    Node::new(Tcp::new(&TcpConfig::default(), &name).unwrap())
}

/// Sees to it that exactly `count` descriptors are free; what is returned holds the others.
fn leave(count: u64) -> Vec<OwnedFd> {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let highest: i32 =
        open.map(|entry| entry.unwrap().file_name().into_string().unwrap().parse().unwrap()).max().unwrap();
    let mut filling: Vec<OwnedFd> = Vec::new();
    while filling.last().is_none_or(|fd| fd.as_raw_fd() < highest) {
        filling.push(std::fs::File::open("/dev/null").unwrap().into());
    }
    let next = u64::try_from(filling.last().unwrap().as_raw_fd()).unwrap() + 1;
    let few = Rlimit { current: Some(next + count), maximum: getrlimit(Resource::Nofile).maximum };
    setrlimit(Resource::Nofile, few).unwrap();
    filling
}

#[test]
fn who_calls_an_endpoint_without_descriptors_learns_it() {
    let before = getrlimit(Resource::Nofile);
    let mut world = World { nodes: vec![node(), node()] };
    let target = world.nodes[0].name();
    // The caller's socket.
    let filling = leave(1);
    let link = world.nodes[1].connect(&target);
    world.until("the end", |nodes| !nodes[1].inbox.down.is_empty());
    assert_eq!(world.nodes[1].inbox.down, [(link, LinkError::PeerResources)]);
    // For a while only: calls are repeated.
    let link = world.nodes[1].connect(&target);
    for _ in 0..20 {
        world.rounds(100);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(world.nodes[1].inbox.down.len(), 1);
    setrlimit(Resource::Nofile, before).unwrap();
    world.until("the link", |nodes| nodes[1].inbox.up.contains_key(&link));
    drop(filling);
    assert!(world.nodes[0].nic.stats().half_open == 0);
}
