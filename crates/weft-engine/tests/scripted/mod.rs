//! A device whose peers follow the script of a test: messages, pushes, links that come and go, and ends of
//! transfers. It records the engine's calls and the memory that it may still access.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)] // Each test compiles its own copy and uses part of it.

use std::collections::VecDeque;
use std::sync::Arc;

use weft_engine::Engine;
use weft_engine::api::{Addr, AddressBook, Completion, Config};
use weft_engine::board::Board;
use weft_engine::mem::{self, Iov, IovList};
use weft_engine::name::{EpName, NameParts, endpoint_id};
use weft_engine::nic::{
    Chaining, DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, NicCaps, Notice, Registrar, Share, Sink,
};

/// The name of an endpoint. A greater byte gives a greater name, at the same host and port.
pub fn name(byte: u8) -> EpName {
    EpName::full(&parts(byte))
}

pub fn parts(byte: u8) -> NameParts {
    let capability = [byte; 16];
    NameParts {
        socket: "10.0.0.1:7".parse().unwrap(),
        host_id: 5,
        ep_id: endpoint_id(&capability),
        capability,
        context: None,
        shm: true,
        tcp: true,
    }
}

/// Capabilities of a device that preserves order and can neither get nor put.
pub const CAPS: NicCaps = NicCaps {
    device: "scripted",
    mailbox_bytes: 4096,
    inline_bytes: 64,
    eager_bytes: 2048,
    get: false,
    put: false,
    ordered: true,
    push_follows: false,
    survives: false,
    confirms: false,
    maps: false,
    pushes: false,
    registered: false,
};

/// The number of the first link that the engine makes to a socket.
pub const FIRST_PROBE: u32 = 500;

/// An event that the device reports to the engine.
pub enum Event {
    Up {
        link: LinkId,
        peer: EpName,
        initiator: bool,
    },
    Down(LinkId),
    /// An attempt gets no connection.
    Hindered(LinkId),
    /// The peer has closed the link in an orderly way.
    Closed(LinkId),
    Message(LinkId, Vec<u8>),
    /// The peer confirms this number of executed messages.
    Confirmed(LinkId, u32),
    Push {
        link: LinkId,
        window: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    /// The peer passes a board under a key.
    Board(LinkId, u64, Option<Board>),
    /// The oldest transfer in progress ends.
    Done(Result<(), LinkError>),
    /// No event of the device; the test inspects its state during a poll.
    Look(Box<dyn FnOnce()>),
}

/// A transfer that the device has accepted.
pub struct Busy {
    pub link: LinkId,
    pub ctx: u64,
    pub local: IovList,
    /// Whether the transfer writes `local`, and does not read it.
    pub writes: bool,
}

pub struct ScriptedDevice {
    pub caps: NicCaps,
    pub events: VecDeque<Event>,
    /// Messages that the engine has sent.
    pub sent: Vec<(LinkId, Vec<u8>)>,
    /// The numbers of executed messages that the engine has confirmed, and of messages sent before each.
    pub confirmed: Vec<(u32, usize)>,
    /// Number of further messages that the device accepts.
    pub room: usize,
    /// Transfers in progress, of which the device accepts `depth` at a time.
    pub busy: VecDeque<Busy>,
    pub depth: usize,
    /// Links that are up or being made, and links that the engine has closed.
    pub open: Vec<LinkId>,
    pub closed: Vec<LinkId>,
    /// Acts of the engine that a device logs.
    pub notices: Vec<Notice>,
    /// Number of the next link that the engine makes.
    pub dials: Option<u32>,
    /// The endpoint that answers at a socket, where that differs. Links to sockets have numbers of their own,
    /// from [`FIRST_PROBE`] on.
    pub lives: Option<EpName>,
    pub probes: u32,
    /// Whether one poll reports all events.
    pub burst: bool,
    /// Whether a poll without events ends a transfer or, if there is none, a link.
    pub hurry: bool,
}

impl ScriptedDevice {
    pub fn new(caps: NicCaps) -> Self {
        Self {
            caps,
            events: VecDeque::new(),
            sent: Vec::new(),
            confirmed: Vec::new(),
            room: usize::MAX,
            busy: VecDeque::new(),
            depth: 64,
            open: Vec::new(),
            closed: Vec::new(),
            notices: Vec::new(),
            dials: None,
            lives: None,
            probes: 0,
            burst: false,
            hurry: false,
        }
    }

    fn take(&mut self, link: LinkId, local: &[Iov], ctx: u64, writes: bool) -> Result<(), Full> {
        assert!(self.open.contains(&link), "a transfer on a link that is not open");
        if self.busy.len() >= self.depth {
            return Err(Full);
        }
        self.busy.push_back(Busy { link, ctx, local: local.into(), writes });
        Ok(())
    }

    fn leave(&mut self, link: LinkId) {
        self.open.retain(|other| *other != link);
        self.busy.retain(|busy| busy.link != link);
    }
}

impl Registrar for ScriptedDevice {}

impl Chaining for ScriptedDevice {}

impl Nic for ScriptedDevice {
    weft_engine::decline!(held_bytes, boards);

    fn name(&self) -> EpName {
        name(1)
    }
    fn connect(&mut self, to: &EpName) -> Result<LinkId, LinkError> {
        if let (None, Some(peer), false) = (self.dials, self.lives, to.is_full()) {
            let link = LinkId(FIRST_PROBE + self.probes);
            self.probes += 1;
            self.open.push(link);
            self.events.push_back(Event::Up { link, peer, initiator: true });
            return Ok(link);
        }
        let link = LinkId(self.dials.ok_or(LinkError::Unreachable)?);
        self.dials = Some(link.0 + 1);
        self.open.push(link);
        Ok(link)
    }
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        assert!(self.open.contains(&link), "a message on a link that is not open");
        self.room = self.room.checked_sub(1).ok_or(Full)?;
        let mut bytes = head.to_vec();
        bytes.extend(mem::to_vec(body));
        assert!(
            bytes.len() <= self.caps.mailbox_bytes,
            "{} bytes in a mailbox of {}",
            bytes.len(),
            self.caps.mailbox_bytes
        );
        self.sent.push((link, bytes));
        Ok(())
    }
    fn confirm(&mut self, link: LinkId, number: u32) {
        assert!(self.open.contains(&link) && self.caps.confirms, "a confirmation that the device does not offer");
        self.confirmed.push((number, self.sent.len()));
    }
    fn push(&mut self, link: LinkId, _: u64, _: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        self.take(link, src, ctx, false)
    }
    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        self.take(link, copy.local, copy.ctx, !copy.put).map(|()| None)
    }
    fn flush(&mut self) {}
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if self.hurry && self.events.is_empty() {
            let end = if self.busy.is_empty() {
                self.open.last().copied().map(Event::Down)
            } else {
                Some(Event::Done(Ok(())))
            };
            self.events.extend(end);
        }
        let events = if self.burst { self.events.len() } else { self.events.len().min(1) };
        for event in self.events.drain(..events).collect::<Vec<_>>() {
            self.bring(event, sink);
        }
        events
    }
    fn close(&mut self, link: LinkId) {
        assert!(self.open.contains(&link), "a link is closed that is not open");
        self.closed.push(link);
        self.leave(link);
    }
    fn notice(&mut self, _: &EpName, notice: Notice) {
        self.notices.push(notice);
    }
    fn drained(&self) -> bool {
        true
    }
}

impl ScriptedDevice {
    fn bring<S: Sink>(&mut self, event: Event, sink: &mut S) {
        match event {
            Event::Up { link, peer, initiator } => {
                if !initiator {
                    self.open.push(link);
                }
                sink.up(link, LinkUp { peer, initiator, caps: self.caps });
            }
            Event::Down(link) if self.open.contains(&link) => {
                for busy in self.busy.iter().filter(|busy| busy.link == link) {
                    sink.done(link, busy.ctx, Err(LinkError::Gone));
                }
                self.leave(link);
                sink.down(link, LinkError::Gone);
            }
            Event::Hindered(link) if self.open.contains(&link) => sink.hindered(link),
            Event::Closed(link) if self.open.contains(&link) => {
                self.leave(link);
                sink.down(link, LinkError::Closed);
            }
            Event::Message(link, bytes) if self.open.contains(&link) => sink.message(link, &bytes),
            Event::Confirmed(link, number) if self.open.contains(&link) => sink.confirmed(link, number),
            Event::Push { link, window, offset, bytes } if self.open.contains(&link) => {
                let placed = sink.place(link, window, offset, bytes.len());
                mem::scatter(placed.as_deref().unwrap_or_default(), 0, &bytes);
                sink.placed(link, window, offset, bytes.len());
            }
            Event::Board(link, key, board) if self.open.contains(&link) => sink.board(link, key, board),
            Event::Done(result) => {
                let Some(busy) = self.busy.pop_front() else { return };
                if busy.writes && result.is_ok() {
                    mem::scatter(&busy.local, 0, &vec![0x3c; mem::total_len(&busy.local)]);
                }
                sink.done(busy.link, busy.ctx, result);
            }
            Event::Look(look) => look(),
            // The engine has closed the link; the event is dropped.
            _ => {}
        }
    }
}

/// An address book in which the name with byte 2 has address 0, and so on.
#[derive(Debug)]
pub struct Known;

impl AddressBook for Known {
    fn name(&self, addr: Addr) -> Option<EpName> {
        (addr < 8).then(|| name(u8::try_from(addr).unwrap() + 2))
    }
    fn addr(&self, wanted: &EpName) -> Option<Addr> {
        (0..8).find(|addr| self.name(*addr).unwrap().same_endpoint(wanted))
    }
}

/// An engine and the state of its scripted peers.
pub struct Case {
    pub engine: Engine<ScriptedDevice>,
    /// Number of messages sent on the link that was made last.
    pub seq: u32,
    pub link: LinkId,
}

impl Case {
    pub fn new(caps: NicCaps, config: Config) -> Self {
        let mut engine = Engine::new(config, ScriptedDevice::new(caps));
        engine.bind_book(Arc::new(Known));
        Self { engine, seq: 0, link: LinkId(u32::MAX) }
    }

    /// The peer whose name has the byte `byte` makes a link and grants a window of 1 MiB.
    pub fn connect(&mut self, link: u32, byte: u8) {
        self.connect_as(link, name(byte));
    }

    /// The peer makes a link. It also answers at the socket where it claims to listen.
    pub fn connect_as(&mut self, link: u32, peer: EpName) {
        self.engine.nic_mut().lives = Some(peer);
        self.call_as(link, peer);
    }

    /// The peer makes a link. Another endpoint may answer at the socket where it claims to listen.
    pub fn call_as(&mut self, link: u32, peer: EpName) {
        let link = LinkId(link);
        self.tell(Event::Up { link, peer, initiator: false });
        self.tell(Event::Message(link, open(0)));
        (self.link, self.seq) = (link, 0);
    }

    pub fn tell(&mut self, event: Event) {
        self.engine.nic_mut().events.push_back(event);
        self.run();
    }

    pub fn run(&mut self) {
        while self.engine.progress() > 0 {}
    }

    /// The peer sends a message on the link that was made last.
    pub fn say(&mut self, kind: u8, flags: u8, body: &[u8]) {
        self.say_as([kind, flags, 0, 0], body);
    }

    pub fn say_as(&mut self, head: [u8; 4], body: &[u8]) {
        let bytes = [&head[..], &self.seq.to_le_bytes(), body].concat();
        self.seq += 1;
        self.tell(Event::Message(self.link, bytes));
    }

    pub fn push(&mut self, window: u64, offset: u64, bytes: &[u8]) {
        self.tell(Event::Push { link: self.link, window, offset, bytes: bytes.to_vec() });
    }

    /// The engine's last message of a kind.
    pub fn sent(&self, kind: u8) -> Vec<u8> {
        let sent = &self.engine.nic().sent;
        sent.iter().rfind(|(_, bytes)| bytes[0] == kind).map(|(_, bytes)| bytes.clone()).unwrap()
    }

    pub fn done(&mut self) -> Vec<Completion> {
        self.engine.completions().drain(..).collect()
    }

    /// Whether the engine has closed the link that was made last.
    pub fn is_cut(&self) -> bool {
        self.engine.nic().closed.contains(&self.link)
    }
}

/// The version of the messages (docs/protocol.md).
pub const PROTOCOL_VERSION: u64 = 3;

/// An OPEN (0) or OPEN_OK (1) message.
pub fn open(kind: u8) -> Vec<u8> {
    words(&[u64::from(kind), PROTOCOL_VERSION, 1 << 20])
}

pub fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Two 32-bit numbers in a word, such as an operation and its part.
pub fn pair(first: u64, second: u64) -> u64 {
    first | second << 32
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()))
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()))
}
