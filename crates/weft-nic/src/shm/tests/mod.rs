//! Tests of the rings and of the whole device, as far as they need to look inside, to fork, or to sleep; the contract
//! that it shares with the other devices is tested by tests/conformance.rs.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod death;
mod foreign;
mod fuzz;
mod hostile;
mod many;
mod raw;
mod ring;
mod share;
mod sleep;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_engine::mem::{Iov, IovList};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};

use super::segment::Mapping;
use super::{Shm, ShmConfig, Slot};

/// What a device has told.
#[derive(Default)]
struct Inbox {
    up: Vec<(LinkId, LinkUp)>,
    down: Vec<(LinkId, LinkError)>,
    messages: Vec<(LinkId, Vec<u8>)>,
    done: Vec<(u64, Result<(), LinkError>)>,
    placed: usize,
    /// Where bytes of pushes go, if they have room there; else nowhere.
    window: Option<Iov>,
    /// The bytes for which a place was asked.
    asked: Option<(LinkId, u64, u64, usize)>,
}

impl Sink for Inbox {
    fn up(&mut self, link: LinkId, info: LinkUp) {
        self.up.push((link, info));
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        self.down.push((link, why));
    }
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.messages.push((link, bytes.to_vec()));
    }
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        self.asked = Some((link, window, offset, len));
        let to = self.window?.slice(usize::try_from(offset).ok()?, len);
        (to.len() == len).then(|| [to].as_slice().into())
    }
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        assert_eq!(self.asked.take(), Some((link, window, offset, len)));
        self.placed += len;
    }
    fn done(&mut self, _: LinkId, ctx: u64, result: Result<(), LinkError>) {
        self.done.push((ctx, result));
    }
}

/// An endpoint and its inbox.
struct Node {
    nic: Shm,
    inbox: Inbox,
}

impl Node {
    fn new(config: &ShmConfig) -> Self {
        Self { nic: Shm::new(config, name()).unwrap(), inbox: Inbox::default() }
    }

    fn poll(&mut self) -> usize {
        self.nic.poll(&mut self.inbox)
    }
}

/// A name with a random id and capability.
fn name() -> EpName {
    EpName::full(&name_parts())
}

fn name_parts() -> NameParts {
    let capability = crate::handshake::random().unwrap();
    NameParts {
        socket: SocketAddr::from(([127, 0, 0, 1], 0)),
        host_id: 1,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: true,
        tcp: false,
    }
}

/// Polls the nodes until the condition holds.
fn until(what: &str, nodes: &mut [&mut Node], mut condition: impl FnMut(&mut [&mut Node]) -> bool) {
    let start = Instant::now();
    while !condition(nodes) {
        for node in &mut *nodes {
            node.poll();
        }
        assert!(start.elapsed() < Duration::from_secs(20), "{what}: did not happen");
    }
}

/// What a node shares with the peer of a link that is up.
fn segment(node: &Node, link: LinkId) -> &Mapping {
    match &node.nic.links[link.0 as usize] {
        Slot::Up(link) => link.segment(),
        _ => panic!("the link is not up"),
    }
}

/// Connects two nodes of one thread.
fn join(a: &mut Node, b: &mut Node) -> (LinkId, LinkId) {
    let near = a.nic.connect(&b.nic.name()).unwrap();
    let before = b.inbox.up.len();
    until("connect", &mut [a, b], |nodes| {
        nodes[0].inbox.up.iter().any(|(link, _)| *link == near) && nodes[1].inbox.up.len() > before
    });
    (near, b.inbox.up[before].0)
}
