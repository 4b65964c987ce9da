//! Fuzz targets of the engine: addresses and names from clients and peers, and messages of an arbitrary peer.
#![allow(clippy::unwrap_used)]

#[path = "fuzz/answers.rs"]
mod answers;
mod scripted;

use std::collections::VecDeque;

use weft_engine::Engine;
use weft_engine::api::{ADDR_NONE, Access, Config, Context, RecvFlags, RecvOp, Region};
use weft_engine::mem::{self, Iov, Owned};
use weft_engine::name::{EpName, NameParts, address_bytes, endpoint_id};
use weft_engine::nic::{
    Chaining, DirectCopy, Full, LinkError, LinkId, LinkUp, Nic, NicCaps, Part, Registrar, Share, Sink,
};
use weft_fuzz::{Reader, fuzz, hash};

use scripted::name;

/// Bytes that are a valid address or name convert to the same bytes again. Other bytes are refused.
#[test]
fn addresses() {
    let context = EpName::full(&NameParts {
        socket: "[2001:db8::7]:65535".parse().unwrap(),
        host_id: 1,
        ep_id: endpoint_id(&[1; 16]),
        capability: [1; 16],
        context: Some(0),
        shm: true,
        tcp: true,
    });
    let service = EpName::service("10.0.0.1:7".parse().unwrap());
    let names = [name(1), context, service];
    let mut seeds: Vec<Vec<u8>> = names.iter().map(|name| name.to_address().to_vec()).collect();
    seeds.extend(names.iter().map(|name| name.as_bytes().to_vec()));
    fuzz("addresses", &seeds, |input| {
        let mut outcome = 0;
        if let Some(head) = input.first_chunk::<2>() {
            outcome |= address_bytes(*head) as u64;
        }
        for (bit, parsed) in [(8, EpName::from_address(input)), (16, EpName::parse(input))] {
            let Ok(name) = parsed else { continue };
            outcome |= (1 + u64::from(name.as_bytes()[1])) << bit;
            assert!(name.same_endpoint(&name) && name.base().base() == name.base());
            let _ = (name.socket(), name.context_index(), name.is_genuine(), name.context(63), name.context(255));
            if bit == 8 {
                assert_eq!(EpName::from_address(&name.to_address()), Ok(name), "an address round-trips");
            } else {
                assert_eq!(name.as_bytes(), input);
            }
        }
        outcome
    });
}

/// A device with one peer, whose messages are all queued at the start.
struct ScriptedDevice {
    caps: NicCaps,
    up: bool,
    events: VecDeque<Event>,
    /// Kinds of the engine's answers.
    answers: u64,
    down: bool,
}

enum Event {
    Message(Vec<u8>),
    Push { window: u64, offset: u64, bytes: Vec<u8> },
    Confirmed(u32),
}

const LINK: LinkId = LinkId(0);

impl Registrar for ScriptedDevice {}

impl Chaining for ScriptedDevice {}

impl Nic for ScriptedDevice {
    weft_engine::decline!(confirm, held_bytes, boards, notice);

    fn name(&self) -> EpName {
        name(1)
    }
    fn connect(&mut self, _: &EpName) -> Result<LinkId, LinkError> {
        Err(LinkError::Unreachable)
    }
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        assert!(link == LINK && !self.down && head.len() + mem::total_len(body) <= self.caps.mailbox_bytes);
        self.answers |= 1 << (head[0] & 31);
        Ok(())
    }
    fn push(&mut self, link: LinkId, _: u64, _: u64, src: &[Iov], _: u64) -> Result<(), Full> {
        assert!(link == LINK && !self.down);
        // Reading all of it proves that the memory belongs to the client.
        self.answers |= 1 << (32 + (mem::to_vec(src).len() & 7));
        Err(Full)
    }
    fn copy(&mut self, _: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        self.answers |= match (copy.part, copy.put) {
            (Part::Owner(_), false) => 1 << (40 + (mem::total_len(copy.local) & 7)),
            (Part::Owner(_), true) => 1 << (48 + (mem::to_vec(copy.local).len() & 7)),
            (Part::Helper(_), _) => 0,
        };
        Err(Full)
    }
    fn flush(&mut self) {}
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if self.down {
            return 0;
        }
        if !std::mem::replace(&mut self.up, true) {
            sink.up(LINK, LinkUp { peer: name(2), initiator: false, caps: self.caps });
            return 1;
        }
        match self.events.pop_front() {
            Some(Event::Message(bytes)) => sink.message(LINK, &bytes),
            Some(Event::Confirmed(number)) => sink.confirmed(LINK, number),
            Some(Event::Push { window, offset, bytes }) => {
                let placed = sink.place(LINK, window, offset, bytes.len());
                mem::scatter(placed.as_deref().unwrap_or_default(), 0, &bytes);
                sink.placed(LINK, window, offset, bytes.len());
            }
            None => {
                self.down = true;
                sink.down(LINK, LinkError::Gone);
            }
        }
        1
    }
    fn close(&mut self, link: LinkId) {
        assert!(link == LINK && self.up);
        self.down = true;
    }
    fn drained(&self) -> bool {
        true
    }
}

/// Bytes around the offered memory, which must not change.
const GUARD: usize = 64;

/// Memory with guards before and behind it.
fn guarded(len: usize) -> (Owned, Iov) {
    let mut owned = Owned::new(vec![0xa5; len + 2 * GUARD]);
    let iov = owned.iov().slice(GUARD, len);
    (owned, iov)
}

fn check(owned: &mut Owned) {
    let bytes = mem::to_vec(&[owned.iov()]);
    let (front, back) = (&bytes[..GUARD], &bytes[bytes.len() - GUARD..]);
    assert!(front.iter().chain(back).all(|&byte| byte == 0xa5), "written beyond the offered memory");
}

/// A seed: OPEN, then messages with these heads and bodies.
fn story(messages: &[(u8, u8, &[u64])]) -> Vec<u8> {
    let mut out = vec![0];
    let mut add = |bytes: &[u8]| {
        out.push(0);
        out.extend(u16::try_from(bytes.len()).unwrap().to_le_bytes());
        out.extend(bytes);
    };
    add(&[0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0]);
    for (seq, (kind, flags, words)) in (0_u32..).zip(messages) {
        let mut bytes = vec![*kind, *flags, 0, 0];
        bytes.extend(seq.to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        add(&bytes);
    }
    out
}

/// Seeds: messages of an open connection.
fn seeds() -> [Vec<u8>; 6] {
    const SEVEN: u64 = 7;
    [
        story(&[(8, 0, &[1, 2]), (8, 1, &[5, 1, 2]), (8, 5, &[5, 3, 1])]),
        story(&[(9, 4, &[1, 0, 0, 100]), (9, 128, &[2, 0, 0, 100]), (13, 0, &[64]), (11, 0, &[1, 0])]),
        story(&[(14, 0, &[1, SEVEN, 8, 0, 77]), (16, 0, &[2, SEVEN, 0, 8]), (14, 16, &[3, SEVEN, 8, 0, 77])]),
        story(&[(15, 0, &[1, SEVEN, 0, 0, 16, 1 << 63, 0]), (17, 0, &[1, SEVEN, 0, 0, 8, 1, 1, 4096, 8])]),
        story(&[
            (20, 8, &[1, SEVEN, 0, 5]),
            (20, 0, &[2, SEVEN, 8, 6, 7]),
            (21, 0, &[1, 8]),
            (19, 0, &[1, 2, 8, 1, 8]),
        ]),
        story(&[(12, 1, &[1]), (10, 0, &[1, 2, 3]), (18, 0, &[1, 2, 3])]),
    ]
}

/// Reads a device's capabilities and the events that it delivers.
fn scripted(input: &mut Reader<'_>) -> ScriptedDevice {
    let options = input.byte();
    let caps = NicCaps {
        device: "scripted",
        mailbox_bytes: 4096,
        inline_bytes: 64,
        eager_bytes: 2048,
        get: options & 1 != 0,
        put: options & 2 != 0,
        ordered: options & 4 == 0,
        push_follows: options & 12 == 0,
        survives: false,
        confirms: options & 20 == 0,
        maps: options & 40 == 0,
        pushes: options & 32 != 0,
        registered: false,
    };
    let mut events = VecDeque::new();
    while !input.is_empty() && events.len() < 64 {
        let kind = input.byte();
        let len = usize::from(u16::from_le_bytes([input.byte(), input.byte()])) % 4097;
        events.push_back(if kind & 3 == 3 {
            let (window, offset) = (input.word(), input.word());
            let bytes = input.bytes(len).to_vec();
            // A device passes on only pieces that have bytes and that end below 2^64.
            if bytes.is_empty() || offset.checked_add(bytes.len() as u64).is_none() {
                continue;
            }
            Event::Push { window, offset, bytes }
        } else if kind & 3 == 2 {
            Event::Confirmed(u32::try_from(len).unwrap())
        } else {
            Event::Message(input.bytes(len).to_vec())
        });
    }
    ScriptedDevice { caps, up: false, events, answers: 0, down: false }
}

/// Arbitrary messages cause no panic, touch no byte outside the offered memory, and leave no operation when
/// the link has ended.
#[test]
fn messages() {
    fuzz("messages", &seeds(), |input| {
        let nic = scripted(&mut Reader(input));
        let mut engine = Engine::new(Config { window_bytes: 64 * 1024, ..Config::default() }, nic);
        // The region is longer than a request may fetch.
        let (mut region, reachable) = guarded(8192);
        let (mut secret, unreadable) = guarded(256);
        let access = |read, write| Access { read, write };
        for (key, iov, access) in [(7, reachable, access(true, true)), (9, unreadable, access(false, false))] {
            engine
                .add_region(Region {
                    key,
                    iov: [iov].into_iter().collect(),
                    base: 0,
                    access,
                    user: key,
                    events: true,
                    mapping: None,
                })
                .unwrap();
        }
        let mut buffers: Vec<(Owned, Iov)> = (0..3).map(|n| guarded(1 << (4 * n))).collect();
        for (n, (_, iov)) in buffers.iter().enumerate() {
            let flags = if n == 1 { RecvFlags::TAGGED } else { RecvFlags::empty() };
            let ctx = Context { ptr: n + 1, user: 0 };
            engine.recv(&RecvOp { src: ADDR_NONE, iov: &[*iov], tag: 5, ignore: 0, ctx, flags }).unwrap();
        }
        for _ in 0..80 {
            engine.progress();
        }
        assert!(engine.nic().down, "the link has ended, or the engine has closed it");
        let mut seen: Vec<u8> = engine.nic().answers.to_le_bytes().to_vec();
        for completion in engine.completions().drain(..) {
            seen.push(completion.kind as u8);
            seen.push(u8::from(completion.fault.is_some()));
        }
        engine.shutdown();
        drop(engine);
        check(&mut region);
        check(&mut secret);
        assert!(mem::to_vec(&[unreadable]).iter().all(|&byte| byte == 0xa5));
        buffers.iter_mut().for_each(|(owned, _)| check(owned));
        hash(&seen)
    });
}
