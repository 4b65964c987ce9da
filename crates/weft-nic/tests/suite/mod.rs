//! The device contract (`weft_engine::nic`) as tests, generic over the device.
//!
//! A device joins by implementing [`Device`] in tests/conformance.rs and adding its name to the list there.
//! The harness ([`World`]) polls all endpoints from one thread. On every sink call it checks the contract of
//! links:
//! - no call for a link that is not up,
//! - exactly one `down`,
//! - `done` exactly once, and only for accepted calls.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weft_engine::mem::{Iov, IovList, Owned};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, NicCaps, Part, Share, Sink};

pub mod bulk;
pub mod links;
pub mod messages;

/// The parts of the name of a new endpoint of this host that listens at `socket`.
pub fn parts(socket: SocketAddr) -> NameParts {
    let capability = weft_nic::handshake::random().unwrap();
    NameParts { socket, host_id: 1, ep_id: endpoint_id(&capability), capability, context: None, shm: true, tcp: true }
}

/// Maximum time for a condition to become true.
const PATIENCE: Duration = Duration::from_secs(20);

/// A device under test.
pub trait Device {
    /// The type of its endpoints.
    type Nic: Nic + Send + 'static;
    /// Makes an endpoint with the defaults (connect time-out about a second).
    fn open() -> Self::Nic;
    /// Makes an endpoint that also serves a port. Also returns its service name. `None`: the device does not
    /// support it.
    fn open_service() -> Option<(Self::Nic, EpName)>;
}

/// A buffer for a push.
pub struct Window {
    memory: Owned,
    len: usize,
    /// Number of bytes that `placed` has confirmed.
    pub placed: usize,
    /// The placed ranges: beginnings and ends.
    ranges: BTreeMap<u64, u64>,
    /// Number of messages that must arrive before the first segment.
    after: usize,
}

impl Window {
    /// A window of `len` bytes.
    pub fn new(len: usize) -> Self {
        Self::announced(len, 0)
    }

    /// A window for a push that must not arrive before `after` messages.
    pub fn announced(len: usize, after: usize) -> Self {
        Self { memory: Owned::new(vec![0xee; len]), len, placed: 0, ranges: BTreeMap::new(), after }
    }

    /// Whether none of these bytes has been placed.
    fn lacks(&self, offset: u64, len: usize) -> bool {
        let end = offset.saturating_add(len as u64);
        self.ranges.range(..end).next_back().is_none_or(|(_, &placed_until)| placed_until <= offset)
    }

    /// Whether these bytes have not been placed, and fit.
    fn awaits(&self, offset: u64, len: usize) -> bool {
        self.lacks(offset, len) && offset.checked_add(len as u64).is_some_and(|end| end <= self.len as u64)
    }

    /// Notes that bytes have been placed.
    fn note(&mut self, offset: u64, len: usize) {
        self.placed += len;
        let end = offset + len as u64;
        match self.ranges.range_mut(..=offset).next_back() {
            Some((_, placed_until)) if *placed_until == offset => *placed_until = end,
            _ if len > 0 => drop(self.ranges.insert(offset, end)),
            _ => {}
        }
    }

    /// Whether all bytes have been placed.
    pub fn full(&self) -> bool {
        self.placed == self.len
    }

    /// The content.
    pub fn bytes(&mut self) -> Vec<u8> {
        weft_engine::mem::to_vec(&[self.memory.iov()])
    }
}

/// All events of a device, by link.
#[derive(Default)]
pub struct Inbox {
    /// Links that are up.
    pub up: HashMap<LinkId, LinkUp>,
    /// Numbers of links in the order in which they came up.
    pub order: Vec<LinkId>,
    /// Links that have ended, and the reasons.
    pub down: Vec<(LinkId, LinkError)>,
    /// Messages that the test has not taken.
    pub messages: VecDeque<(LinkId, Vec<u8>)>,
    /// The number that the peer has confirmed last, by link.
    pub confirmed: HashMap<LinkId, u32>,
    /// Windows for pushes.
    pub windows: HashMap<u64, Window>,
    /// Peers may break the protocol: segments without a window are refused, as engines do, and are not the
    /// device's fault.
    pub from_anybody: bool,
    /// Finished pushes and transfers.
    pub done: HashMap<u64, Result<(), LinkError>>,
    /// Accepted pushes and transfers that are not finished.
    pending: HashMap<u64, LinkId>,
    /// Connection attempts that have not ended.
    connecting: HashSet<LinkId>,
    /// The arguments of the last `place`, until `placed`.
    piece: Option<(LinkId, u64, u64, usize)>,
}

impl Sink for Inbox {
    weft_engine::ignore_events!(peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, info: LinkUp) {
        assert_eq!(self.connecting.remove(&link), info.initiator, "{link:?} came up and is not ours");
        check_caps(&info.caps);
        assert!(info.peer.is_full());
        assert!(self.up.insert(link, info).is_none(), "{link:?} came up twice");
        self.order.push(link);
    }

    fn down(&mut self, link: LinkId, why: LinkError) {
        assert!(self.up.remove(&link).is_some() | self.connecting.remove(&link), "{link:?} ended and was not there");
        assert!(!self.pending.values().any(|of| *of == link), "{link:?} ended before its transfers");
        self.down.push((link, why));
    }

    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        assert!(self.up.contains_key(&link), "a message on {link:?}, which is not up");
        self.messages.push_back((link, bytes.to_vec()));
    }

    fn confirmed(&mut self, link: LinkId, number: u32) {
        assert!(self.up[&link].caps.confirms, "a confirmation on {link:?}");
        self.confirmed.insert(link, number);
        assert!(self.messages.len() >= number as usize, "a confirmation overtook a message");
    }

    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        assert!(self.up.contains_key(&link) && len > 0);
        assert!(self.piece.is_none(), "`placed` is missing");
        self.piece = Some((link, window, offset, len));
        let window = self.windows.get_mut(&window)?;
        if self.from_anybody && !window.awaits(offset, len) {
            return None;
        }
        assert!(window.lacks(offset, len), "bytes were placed twice");
        assert!(self.messages.len() >= window.after, "a push overtook a message");
        let whole = window.memory.iov();
        Some(weft_engine::mem::slice(&[whole], offset as usize, len))
    }

    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        let asked = self.piece.take();
        assert!(matches!(asked, Some((l, w, o, n)) if (l, w, o) == (link, window, offset) && len <= n), "{asked:?}");
        let window = self.windows.get_mut(&window);
        if let Some(window) = window.filter(|window| !self.from_anybody || window.awaits(offset, len)) {
            window.note(offset, len);
        }
    }

    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        assert_eq!(self.pending.remove(&ctx), Some(link), "`done` without an accepted call, or twice");
        self.done.insert(ctx, result);
    }
}

fn check_caps(caps: &NicCaps) {
    assert!(caps.mailbox_bytes >= 256 && caps.inline_bytes <= caps.mailbox_bytes, "{caps:?}");
    assert!(caps.eager_bytes + 128 <= caps.mailbox_bytes, "{caps:?}");
    assert!(caps.ordered || !(caps.push_follows || caps.confirms), "{caps:?}");
}

/// An endpoint and its recorded events.
pub struct Node<N> {
    pub nic: N,
    pub inbox: Inbox,
}

impl<N: Nic> Node<N> {
    pub fn new(nic: N) -> Self {
        Self { nic, inbox: Inbox::default() }
    }

    pub fn name(&self) -> EpName {
        self.nic.name()
    }

    pub fn poll(&mut self) -> usize {
        let calls = self.nic.poll(&mut self.inbox);
        assert!(self.inbox.piece.is_none(), "`placed` comes before `poll` returns");
        self.nic.flush();
        calls
    }

    pub fn connect(&mut self, peer: &EpName) -> LinkId {
        let link = self.nic.connect(peer).unwrap();
        assert!(!self.inbox.up.contains_key(&link), "{link:?} is in use");
        assert!(self.inbox.connecting.insert(link));
        link
    }

    /// Sends a message that is split into the head and two pieces of body.
    pub fn send(&mut self, link: LinkId, head: usize, bytes: &[u8]) -> Result<(), Full> {
        let mut body = Owned::new(bytes[head..].to_vec());
        let (iov, half) = (body.iov(), (bytes.len() - head) / 2);
        self.nic.send(link, &bytes[..head], &[iov.slice(0, half), iov.slice(half, usize::MAX)])
    }

    pub fn push(&mut self, link: LinkId, window: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        self.nic.push(link, window, 0, src, ctx)?;
        assert!(self.inbox.pending.insert(ctx, link).is_none());
        Ok(())
    }

    /// Reads or writes the peer's memory.
    pub fn direct(
        &mut self,
        put: bool,
        link: LinkId,
        local: &[Iov],
        remote: &[weft_engine::nic::RemoteIov],
        ctx: u64,
    ) -> Result<Option<Share>, Full> {
        let share = self.nic.copy(link, &DirectCopy { put, ..DirectCopy::get(local, remote, ctx) })?;
        assert!(self.inbox.pending.insert(ctx, link).is_none());
        Ok(share)
    }

    /// Helps with the peer's transfer.
    pub fn assist(
        &mut self,
        share: Share,
        put: bool,
        link: LinkId,
        local: &[Iov],
        remote: &[weft_engine::nic::RemoteIov],
        ctx: u64,
    ) -> Result<(), Full> {
        let part = Part::Helper(share);
        self.nic.copy(link, &DirectCopy { put, local, remote, part, ctx })?;
        assert!(self.inbox.pending.insert(ctx, link).is_none());
        Ok(())
    }

    /// Closes a link. No event of the link follows, and the memory of its transfers is free.
    pub fn close(&mut self, link: LinkId) {
        self.nic.close(link);
        self.inbox.up.remove(&link);
        self.inbox.connecting.remove(&link);
        self.inbox.pending.retain(|_, of| *of != link);
    }

    /// Removes and returns the messages of a link, in order.
    pub fn take_messages(&mut self, link: LinkId) -> Vec<Vec<u8>> {
        let (mine, others) = std::mem::take(&mut self.inbox.messages).into_iter().partition(|(of, _)| *of == link);
        self.inbox.messages = others;
        let mine: VecDeque<(LinkId, Vec<u8>)> = mine;
        mine.into_iter().map(|(_, bytes)| bytes).collect()
    }
}

/// Several endpoints in one thread.
pub struct World<N> {
    pub nodes: Vec<Node<N>>,
}

impl<N: Nic> World<N> {
    pub fn new<D: Device<Nic = N>>(nodes: usize) -> Self {
        Self { nodes: (0..nodes).map(|_| Node::new(D::open())).collect() }
    }

    /// Polls all nodes until the condition holds.
    pub fn until(&mut self, what: &str, mut condition: impl FnMut(&mut [Node<N>]) -> bool) {
        let start = Instant::now();
        while !condition(&mut self.nodes) {
            for node in &mut self.nodes {
                node.poll();
            }
            assert!(start.elapsed() < PATIENCE, "{what}: did not happen");
        }
    }

    /// Polls all nodes `rounds` times.
    pub fn rounds(&mut self, rounds: usize) {
        for _ in 0..rounds {
            for node in &mut self.nodes {
                node.poll();
            }
        }
    }

    /// Connects `from` to `to`, and returns both links. Both engines may then send.
    pub fn join(&mut self, from: usize, to: usize) -> (LinkId, LinkId) {
        let name = self.nodes[to].name();
        let seen = self.nodes[to].inbox.order.len();
        let near = self.nodes[from].connect(&name);
        self.until("connect", |nodes| {
            let far_up = nodes[to].inbox.order[seen..].iter().any(|link| from != to || *link != near);
            nodes[from].inbox.up.contains_key(&near) && far_up
        });
        let far = *self.nodes[to].inbox.order[seen..].iter().find(|link| from != to || **link != near).unwrap();
        let (near_info, far_info) = (self.nodes[from].inbox.up[&near], self.nodes[to].inbox.up[&far]);
        assert!(near_info.initiator && !far_info.initiator);
        assert!(near_info.peer.same_endpoint(&name));
        assert!(far_info.peer.same_endpoint(&self.nodes[from].name()));
        (near, far)
    }

    /// Connects two nodes. The initiator sends first, as engines do; then both may send.
    pub fn join_and_greet(&mut self, from: usize, to: usize) -> (LinkId, LinkId) {
        let (near, far) = self.join(from, to);
        self.nodes[from].send(near, 5, b"hello").unwrap();
        self.until("greeting", |nodes| nodes[to].take_messages(far) == [b"hello"]);
        (near, far)
    }
}

/// Bytes that depend on their position.
pub fn pattern(seed: u64, len: usize) -> Vec<u8> {
    (0..len as u64).map(|i| (seed.wrapping_mul(0x9e37_79b9).wrapping_add(i.wrapping_mul(131)) >> 3) as u8).collect()
}

/// A small generator of the same numbers in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }
}
