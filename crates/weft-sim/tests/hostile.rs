//! Peers that break the protocol. No message makes an engine panic, touches memory that was not offered, or
//! makes a peer wait indefinitely. The traffic of other peers is not affected.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_engine::am::{ActiveHandler, ActiveHead, Answer};
use weft_engine::amo::{Amo, Form, Op as AmoOp, Type};
use weft_engine::api::{
    Access, Addr, AtomicOp, Completion, Config, Context, Fault, Kind, OpFlags, RecvFlags, RecvOp, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::IovList;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_sim::rng::{Entity, Stream};
use weft_sim::{Buffer, Cluster, FabricConfig, Fate, Harness, Recv, Send, SimNic};

/// Answers requests with their bytes.
struct Echo;

impl ActiveHandler for Echo {
    fn arrived(&mut self, _source: Addr, reply: bool, head: &[u8], body: &[u8], answer: &mut Answer<'_>) {
        if !reply && body.len().is_multiple_of(2) && body.len() <= answer.limit() {
            answer.put(&mut ActiveHead::new(head), body);
        }
    }

    fn lost(&mut self, _source: Addr, _why: LinkError) {}
}

/// Contexts of operations that the oracle does not observe begin here.
const UNWATCHED: usize = 1 << 40;
const VICTIMS: usize = 2;

/// A link as the attacker knows it.
#[derive(Clone, Copy, Default)]
struct Link {
    initiator: bool,
    /// A message has arrived, so an acceptor may send.
    spoken_to: bool,
    /// OPEN or OPEN_OK has been sent.
    opened: bool,
    /// The handshake is over.
    carrying: bool,
    seq: u32,
    /// Pushes announced.
    announced: u64,
}

/// An attacker's view: its links, the numbers that it has seen, and the last messages.
#[derive(Default)]
struct Spy {
    links: BTreeMap<LinkId, Link>,
    numbers: Vec<u64>,
    seen: Vec<(LinkId, Vec<u8>)>,
    /// Number of messages that the victims have sent, by kind. It shows how deep the attack gets.
    kinds: BTreeMap<u8, usize>,
}

impl Sink for Spy {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, info: LinkUp) {
        self.links.insert(link, Link { initiator: info.initiator, ..Link::default() });
    }
    fn down(&mut self, link: LinkId, _why: LinkError) {
        self.links.remove(&link);
    }
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        if let Some(state) = self.links.get_mut(&link) {
            state.spoken_to = true;
            state.carrying |= bytes[0] == 1;
        }
        for word in bytes.chunks_exact(4).take(20) {
            self.numbers.push(u64::from(u32::from_le_bytes(word.try_into().unwrap())));
        }
        for word in bytes.chunks_exact(8).take(10) {
            self.numbers.push(u64::from_le_bytes(word.try_into().unwrap()));
        }
        self.numbers.drain(..self.numbers.len().saturating_sub(200));
        *self.kinds.entry(bytes[0]).or_insert(0) += 1;
        self.seen.push((link, bytes.to_vec()));
        self.seen.drain(..self.seen.len().saturating_sub(20));
    }
    fn place(&mut self, _: LinkId, window: u64, _: u64, _: usize) -> Option<IovList> {
        self.numbers.push(window);
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes(b.try_into().unwrap()))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).map_or(0, |b| u64::from_le_bytes(b.try_into().unwrap()))
}

struct Attacker {
    nic: SimNic,
    spy: Spy,
    rng: Stream,
    memory: Buffer,
    keys: Vec<u64>,
    mailbox_bytes: usize,
    /// Pushes may follow their announcement.
    follows: bool,
}

impl Attacker {
    fn number(&mut self) -> u64 {
        match self.rng.index(10) {
            0..5 if !self.spy.numbers.is_empty() => *self.rng.pick(&self.spy.numbers),
            5 | 6 => self.rng.below(8),
            7 => *self.rng.pick(&[u64::MAX, u64::from(u32::MAX), 1 << 63, 1 << 32, i64::MAX as u64]),
            8 if !self.keys.is_empty() => *self.rng.pick(&self.keys),
            _ => self.rng.bits(),
        }
    }

    /// Mostly `right`, sometimes another number.
    fn nearly(&mut self, right: u64) -> u64 {
        match self.rng.index(20) {
            0 => self.number(),
            1 => right.wrapping_add(1),
            _ => right,
        }
    }

    fn nearly32(&mut self, right: u32) -> u32 {
        self.nearly(u64::from(right)) as u32
    }

    /// A message of the connection's stream for which no victim has asked.
    fn request(&mut self, link: LinkId) -> Vec<u8> {
        let kind = *self.rng.pick(&[8, 8, 9, 9, 13, 14, 15, 16, 17, 20, 20, 21, 26, 26, 26, 27]);
        let flags = self.rng.below(8) as u8;
        let mut out = vec![kind, flags, 0, 0, 0, 0, 0, 0];
        let len = self.rng.below(500);
        let op = self.rng.below(100) as u32;
        let announces = kind == 15 && self.rng.chance(if self.follows { 800 } else { 20 });
        let pieces = if announces { self.nearly(0).min(3) as usize } else { self.rng.index(3) };
        let key = if self.rng.chance(800) { *self.rng.pick(&self.keys) } else { self.number() };
        match kind {
            8 => {
                let words = u32::from(flags).count_ones() as usize;
                (0..words).for_each(|_| out.extend(self.number().to_le_bytes()));
                let len = self.rng.index(300);
                out.extend(self.rng.bytes(len));
            }
            9 => {
                out.extend([self.nearly32(op), self.nearly32(pieces as u32)].map(u32::to_le_bytes).concat());
                out.extend([self.number(), self.number(), self.nearly(len)].map(u64::to_le_bytes).concat());
                self.addresses(&mut out, pieces, len);
            }
            13 => out.extend(self.nearly(1000).to_le_bytes()),
            20 => {
                // Any type and any operation. The regions allow reads only, so half of the operations are reads.
                let op_type = self.rng.below(22) as u8;
                let what = if self.rng.chance(500) { 10 } else { self.rng.below(22) as u8 };
                out[1] = self.rng.below(16) as u8;
                out[2..4].copy_from_slice(&[op_type, what]);
                out.extend([self.nearly32(op), self.nearly32(0)].map(u32::to_le_bytes).concat());
                let addr = self.rng.below(5000);
                out.extend([key, self.nearly(addr)].map(u64::to_le_bytes).concat());
                if out[1] & 2 != 0 {
                    out.extend(self.number().to_le_bytes());
                }
                if what == 10 {
                    out.extend(self.nearly(32).to_le_bytes());
                } else {
                    let len = 32 * self.rng.index(8);
                    out.extend(self.rng.bytes(len));
                }
            }
            21 => {
                for _ in 0..self.rng.index(4) {
                    out.extend([self.nearly32(op), self.nearly32(0)].map(u32::to_le_bytes).concat());
                    let len = self.nearly(8).min(100) as usize;
                    out.extend(self.rng.bytes(len));
                }
            }
            26 | 27 => self.active(&mut out),
            _ => {
                out.extend([self.nearly32(op), self.nearly32(0)].map(u32::to_le_bytes).concat());
                let addr = self.rng.below(6000);
                out.extend([key, self.nearly(addr), self.number()].map(u64::to_le_bytes).concat());
                if kind == 14 {
                    let len = self.rng.index(300);
                    out.extend(self.rng.bytes(len));
                } else {
                    let window = match kind {
                        15 if announces => self.announce(link),
                        15 => 0,
                        _ => self.number(),
                    };
                    out.extend([self.nearly(len), window].map(u64::to_le_bytes).concat());
                    out.extend([self.nearly32(pieces as u32), 0].map(u32::to_le_bytes).concat());
                    self.addresses(&mut out, pieces, len);
                }
            }
        }
        out
    }

    /// An active message, or credit for active messages.
    fn active(&mut self, out: &mut Vec<u8>) {
        let (head_len, len) = (self.rng.index(20), self.rng.index(2500));
        out[1] = (self.nearly(head_len as u64) as u8) | (out[1] << 7);
        out[2..4].copy_from_slice(&(self.nearly(0) as u16).to_le_bytes());
        out.extend(self.rng.bytes(head_len + len));
    }

    /// Mostly the name of the link's next window.
    fn announce(&mut self, link: LinkId) -> u64 {
        let state = self.spy.links.get_mut(&link).unwrap();
        let count = state.announced;
        state.announced += 1;
        self.nearly(1 << 63 | count)
    }

    /// Pushes bytes for a window that was announced, will be announced, or does not exist.
    fn follow(&mut self, link: LinkId) {
        let count = self.spy.links.get(&link).map_or(0, |state| state.announced);
        let back = self.rng.below(count.min(5) + 1).max(u64::from(self.rng.chance(950)));
        let window = self.nearly(1 << 63 | count.wrapping_sub(back) & (u64::MAX >> 1));
        let (len, offset) = (self.rng.index(500), self.nearly(0));
        let _ = self.nic.push(link, window, offset, &[self.memory.iov().slice(0, len)], 0);
    }

    /// Appends pieces of memory with `len` bytes in all. Half of the addresses are arbitrary numbers.
    fn addresses(&mut self, out: &mut Vec<u8>, pieces: usize, mut len: u64) {
        for n in 0..pieces {
            let part = if n + 1 == pieces { len } else { self.rng.below(len + 1) };
            len -= part;
            let addr = if self.rng.chance(500) { self.memory.iov().addr() } else { self.number() };
            out.extend([addr, self.nearly(part)].map(u64::to_le_bytes).concat());
        }
    }

    /// A nearly correct answer to a message of a victim. The answer to some kinds is a push, which this sends.
    fn answer(&mut self, link: LinkId, to: &[u8]) -> Option<Vec<u8>> {
        let (kind, flags) = (to[0], to[1]);
        let (op, part) = (u32_at(to, 8), u32_at(to, 12));
        let op = self.nearly32(op);
        let mut out = vec![0; 8];
        let fin = self.rng.chance(200);
        let status = self.rng.below(5) as u32;
        match kind {
            9 | 15 if !fin => {
                out[0] = 10;
                let (part, len) = if kind == 9 { (0, u64_at(to, 32)) } else { (part, u64_at(to, 40)) };
                out.extend([op, self.nearly32(part)].map(u32::to_le_bytes).concat());
                out.extend([self.number(), self.nearly(len)].map(u64::to_le_bytes).concat());
            }
            8 if flags & 4 != 0 => {
                let at = 8 + 8 * (usize::from(flags & 1) + usize::from(flags >> 1 & 1));
                (out[0], out[1]) = (12, self.nearly(1) as u8);
                out.extend(self.nearly32(u32_at(to, at)).to_le_bytes());
            }
            14 if !fin => {
                (out[0], out[1]) = (12, self.nearly(1) as u8);
                out.extend(op.to_le_bytes());
            }
            16 if !fin => {
                out[0] = 18;
                let len = self.nearly(u64_at(to, 40)).min(1500) as usize;
                out.extend([op, self.nearly32(part)].map(u32::to_le_bytes).concat());
                out.extend(self.rng.bytes(len));
            }
            20 if flags & 8 != 0 && !fin => {
                out[0] = 21;
                let len = if to[3] == 10 { u64_at(to, 32) } else { to.len().saturating_sub(32) as u64 };
                let len = self.nearly(len).min(1500) as usize;
                out.extend([op, self.nearly32(part)].map(u32::to_le_bytes).concat());
                out.extend(self.rng.bytes(len));
            }
            20 if flags & 8 == 0 && !fin => {
                (out[0], out[1]) = (12, self.nearly(1) as u8);
                out.extend(op.to_le_bytes());
            }
            10 | 17 if !fin => {
                let (window, len) =
                    if kind == 10 { (u64_at(to, 16), u64_at(to, 24)) } else { (u64_at(to, 48), u64_at(to, 40)) };
                let (window, offset) = (self.nearly(window), self.nearly(0));
                let len = self.nearly(len).min(500) as usize;
                let _ = self.nic.push(link, window, offset, &[self.memory.iov().slice(0, len)], 0);
                return None;
            }
            9 | 14..=17 | 20 => {
                out[0] = 11;
                out.extend([op, status].map(u32::to_le_bytes).concat());
                let window = match kind {
                    17 => u64_at(to, 48),
                    20 => part.into(),
                    _ => 0,
                };
                out.extend(self.nearly(window).to_le_bytes());
            }
            _ => return None,
        }
        Some(out)
    }

    fn message(&mut self, link: LinkId) -> Option<Vec<u8>> {
        let open = self.spy.seen.iter().position(|(l, _)| *l == link);
        match self.rng.index(40) {
            0 => {
                let len = self.rng.index(200);
                Some(self.rng.bytes(len))
            }
            1 => {
                let mut copy = self.spy.seen.last()?.1.clone();
                let at = self.rng.index(copy.len());
                copy[at] ^= 1 << self.rng.index(8);
                Some(copy)
            }
            2 if self.follows => {
                self.follow(link);
                None
            }
            2..14 => Some(self.request(link)),
            _ => {
                let (_, to) = self.spy.seen.remove(open?);
                self.answer(link, &to)
            }
        }
    }

    fn act(&mut self, victims: &[weft_engine::name::EpName]) {
        self.nic.poll(&mut self.spy);
        if self.spy.links.len() < 2 || self.rng.chance(10) {
            let victim = *self.rng.pick(victims);
            self.nic.connect(&victim).unwrap();
        }
        let links = self.spy.links.iter().map(|(link, state)| (*link, *state)).collect::<Vec<_>>();
        for (link, mut state) in links {
            if !state.initiator && !state.spoken_to {
                continue;
            }
            if self.rng.chance(3) {
                self.nic.close(link);
                self.spy.links.remove(&link);
                continue;
            }
            if !state.opened || self.rng.chance(3) {
                let kind = if self.rng.chance(20) { self.rng.below(3) as u8 } else { u8::from(!state.initiator) };
                let version = u64::from(Config::default().protocol_version);
                let mut open = vec![kind, 0, 0, 0, 0, 0, 0, 0, self.nearly(version) as u8, 0, 0, 0, 0, 0, 0, 0];
                open.extend(self.nearly(1 << 20).to_le_bytes());
                state.opened |= self.nic.send(link, &open, &[]).is_ok();
                state.carrying |= state.opened && !state.initiator;
            } else if (state.carrying || self.rng.chance(3))
                && let Some(mut bytes) = self.message(link)
            {
                if bytes.len() >= 8 && self.rng.chance(995) {
                    bytes[4..8].copy_from_slice(&state.seq.to_le_bytes());
                }
                bytes.truncate(self.mailbox_bytes);
                if self.nic.send(link, &bytes, &[]).is_ok() {
                    state.seq = state.seq.wrapping_add(1);
                }
                state.announced = self.spy.links.get(&link).map_or(0, |state| state.announced);
            }
            self.spy.links.insert(link, state);
        }
        self.nic.flush();
    }
}

/// Traffic between the victims, which the oracle observes.
fn post_watched(h: &mut Harness, rng: &mut Stream) {
    let (a, b) = if rng.chance(500) { (0, 1) } else { (1, 0) };
    let len = rng.index(5000);
    if h.send(a, b, &Send { tag: Some(5), len, ..Send::default() }).is_ok() {
        let recv = Recv { src: Some(a), tag: Some((5, 0)), len: 5000, ..Recv::default() };
        while h.recv(b, &recv).is_err() {
            h.turn();
        }
    }
}

/// Posts an operation of a victim towards the attacker. It may succeed or fail, but must end exactly once.
fn post_unwatched(h: &mut Harness, rng: &mut Stream, victim: usize, op: usize) -> bool {
    let fabric = h.cluster().fabric().clone();
    let len = rng.index(6000);
    let buffer = fabric.alloc(victim, len);
    let iov = [buffer.iov()];
    let dest = h.cluster().addr(victim, VICTIMS);
    let ctx = Context { ptr: UNWATCHED + op, user: 0 };
    let flags = if rng.chance(500) { OpFlags::DELIVERY } else { OpFlags::empty() };
    let remote = [RmaIov { addr: rng.below(100), len: len as u64, key: rng.below(3) }];
    let rma = RmaOp { dest, iov: &iov, remote: &remote, data: 1, ctx, flags };
    let engine = h.cluster().engine(victim).unwrap();
    let amo = |form, op| Amo::new(form, Type::Uint32, op).unwrap();
    let whole = len / 4 * 4;
    let numbers = [buffer.part(0, whole).iov()];
    let target = [RmaIov { len: whole as u64, ..remote[0] }];
    let atomic = |amo: Amo| AtomicOp {
        dest,
        amo,
        iov: &numbers,
        compare: &[],
        result: &numbers,
        remote: &target,
        data: 1,
        ctx,
        flags,
    };
    let posted = match rng.index(8) {
        5 => engine.atomic(&atomic(amo(Form::Base, AmoOp::Sum))),
        6 => engine.atomic(&atomic(amo(Form::Fetch, AmoOp::Sum))),
        7 => engine.atomic(&atomic(amo(Form::Fetch, AmoOp::Read))),
        0 | 1 => engine.send(&SendOp { dest, iov: &iov, tag: 1, data: 0, ctx, flags: flags | OpFlags::TAGGED }),
        2 => engine.write(&rma),
        3 => engine.read(&rma),
        _ => {
            let flags = if rng.chance(500) { RecvFlags::TAGGED } else { RecvFlags::empty() };
            engine.recv(&RecvOp { src: dest, iov: &iov, tag: 0, ignore: u64::MAX, ctx, flags })
        }
    };
    posted.is_ok()
}

fn attack(seed: u64) -> BTreeMap<u8, usize> {
    let mut config = FabricConfig::swarm(seed);
    config.segment_bytes = config.segment_bytes.max(200);
    let (mailbox_bytes, follows) = (config.caps.mailbox_bytes, config.caps.push_follows);
    let engine = Config { window_bytes: 20_000, tx_depth: 64, rx_depth: 64, active_window: 8, ..Config::default() };
    let (mut cluster, mut nics) = Cluster::with_impostors(config, engine, VICTIMS, 1);
    for victim in 0..VICTIMS {
        cluster.engine(victim).unwrap().set_active_handler(Box::new(Echo));
    }
    let mut h = Harness::of(cluster);
    let ended = Rc::new(RefCell::new(BTreeMap::<usize, usize>::new()));
    let log = Rc::clone(&ended);
    h.set_tamper(Box::new(move |_, batch: &mut Vec<Completion>| {
        batch.retain(|c| {
            if c.ctx.ptr >= UNWATCHED {
                *log.borrow_mut().entry(c.ctx.ptr - UNWATCHED).or_insert(0) += 1;
            }
            // Refusals of writes without a completion carry no context, and any peer may read.
            let foreign = c.ctx.ptr >= UNWATCHED || c.ctx == Context::default() || c.kind == Kind::RemoteRead;
            !foreign
        });
    }));
    let mut keys = Vec::new();
    for victim in 0..VICTIMS {
        let window = h.add_window(victim, 5000, Access { read: true, write: false }, false).unwrap();
        keys.push(h.windows()[window].key);
    }
    let before = h.windows().iter().map(|w| w.memory.bytes()).collect::<Vec<_>>();
    let fabric = h.cluster().fabric().clone();
    let victims = (0..VICTIMS).map(|v| h.cluster().engine(v).unwrap().name()).collect::<Vec<_>>();
    let memory = fabric.alloc(VICTIMS, 500);
    let (rng, mut mine) = (Stream::new(seed, Entity::Test(1)), Stream::new(seed, Entity::Test(2)));
    let mut attacker = Attacker { nic: nics.remove(0), spy: Spy::default(), rng, memory, keys, mailbox_bytes, follows };
    let mut posted = Vec::new();
    for op in 0..200 {
        for _ in 0..4 {
            attacker.act(&victims);
            h.turn();
        }
        post_watched(&mut h, &mut mine);
        let victim = mine.index(VICTIMS);
        if post_unwatched(&mut h, &mut mine, victim, op) {
            posted.push((victim, op));
        }
        h.absorb(victim);
    }
    let kinds = std::mem::take(&mut attacker.spy.kinds);
    drop(attacker);
    h.drive().unwrap_or_else(|error| panic!("seed {seed}: {error}"));
    for (victim, op) in posted {
        h.cluster().engine(victim).unwrap().cancel(UNWATCHED + op);
        h.absorb(victim);
        let times = ended.borrow().get(&op).copied().unwrap_or(0);
        assert_eq!(times, 1, "seed {seed}: operation {op} of {victim} towards the attacker ended {times} times");
    }
    let wrong = h.judge();
    assert!(wrong.is_empty(), "seed {seed}: {}", wrong.join("\n"));
    let after = h.windows().iter().map(|w| w.memory.bytes()).collect::<Vec<_>>();
    assert!(before == after, "seed {seed}: a region was changed without the right to");
    kinds
}

#[test]
fn a_hostile_peer_does_no_harm() {
    if let Ok(seed) = std::env::var("WEFT_SIM_SEED") {
        attack(seed.parse().expect("a number"));
        return;
    }
    let count = std::env::var("WEFT_SIM_SEEDS").map_or(2400, |n| n.parse().expect("a number"));
    let mut kinds = BTreeMap::new();
    for seed in 0..count {
        let outcome = std::panic::catch_unwind(|| attack(seed));
        let Ok(of_seed) = outcome else { panic!("replay: WEFT_SIM_SEED={seed} cargo test -p weft-sim --test hostile") };
        for (kind, n) in of_seed {
            *kinds.entry(kind).or_insert(0) += n;
        }
    }
    // The attack proves something only if the victims sent every kind of answer.
    for kind in [0, 1, 8, 9, 10, 11, 12, 14, 15, 16, 17, 18, 20, 21, 26, 27] {
        let n = kinds.get(&kind).copied().unwrap_or(0);
        assert!(n > 0 || count < 100, "no victim ever sent a message of kind {kind}: {kinds:?}");
    }
}

/// On links without order, other messages may arrive before OPEN_OK. The engine must not keep garbage in its
/// place as such a message.
#[test]
fn garbage_in_place_of_open_ok_ends_the_link() {
    for (ordered, len) in [true, false].into_iter().flat_map(|ordered| (0..=24).map(move |len| (ordered, len))) {
        let mut config = FabricConfig::new(1);
        config.caps.ordered = ordered;
        config.caps.push_follows = ordered;
        let mut h = Harness::new(config, Config::default(), 2);
        h.oracle_mut().garbled(0, 1);
        let mut spoilt = false;
        h.cluster().fabric().set_interceptor(Box::new(move |_, _, whole, bytes| {
            if whole && bytes[0] == 1 && !std::mem::replace(&mut spoilt, true) {
                bytes.truncate(len);
                bytes.iter_mut().take(1).for_each(|kind| *kind = 0xEE);
            }
            Fate::Deliver
        }));
        let op = h.send(0, 1, &Send { len: 8, ..Send::default() }).unwrap();
        h.drive().unwrap();
        assert_eq!(h.oracle().fault(op), Some(Fault::Link(LinkError::Protocol)), "{len} bytes, ordered: {ordered}");
        // This also checks that the two ranks can communicate again.
        assert_eq!(h.finish(), Vec::<String>::new(), "{len} bytes, ordered: {ordered}");
    }
}
