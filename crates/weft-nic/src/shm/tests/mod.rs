//! Tests of the rings and of the whole device that inspect its state, fork, or sleep. The contract that it
//! shares with other devices is tested by tests/conformance.rs.
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

/// Records the events of a device.
#[derive(Default)]
struct Inbox {
    up: Vec<(LinkId, LinkUp)>,
    down: Vec<(LinkId, LinkError)>,
    messages: Vec<(LinkId, Vec<u8>)>,
    done: Vec<(u64, Result<(), LinkError>)>,
    placed: usize,
    /// Memory for the bytes of pushes. Bytes that it has no room for are dropped.
    window: Option<Iov>,
    /// The segment of a push for which `place` was called last.
    asked: Option<(LinkId, u64, u64, usize)>,
    confirmed: u32,
}

impl Sink for Inbox {
    weft_engine::ignore_events!(peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, info: LinkUp) {
        self.up.push((link, info));
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        self.down.push((link, why));
    }
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.messages.push((link, bytes.to_vec()));
    }
    fn confirmed(&mut self, _: LinkId, number: u32) {
        self.confirmed = number;
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

/// An endpoint and its recorded events.
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

/// The segment that a node shares with the peer of a link that is up.
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
