//! A client with operations in progress, and a peer with arbitrary behaviour. The peer uses valid and invalid
//! operation numbers and windows, and makes requests of its own. Another peer, the bystander, has operations
//! with the client at the same time.
//!
//! Properties:
//! - Memory is not touched after the client was told that it is free, neither by a push nor by a device.
//! - Each operation ends exactly once. The peer's messages never end an operation with the bystander.
//! - Nothing is left when the links have ended.

use weft_engine::Engine;
use weft_engine::amo::{Amo, Form, Op, Type};
use weft_engine::api::{
    ADDR_NONE, Access, AtomicOp, Config, Context, Kind, OpFlags, RecvFlags, RecvOp, Region, RmaIov, RmaOp, SendOp,
};
use weft_engine::mem::{self, Iov, IovList, Owned};
use weft_engine::nic::{LinkError, LinkId, NicCaps};
use weft_fuzz::{Reader, fuzz};

use crate::scripted::{CAPS, Case, Event, ScriptedDevice, pair, u32_at, u64_at, words};

/// Lengths of operations and of pushes: within messages, beyond them, and in between.
const LENGTHS: [usize; 8] = [0, 8, 104, 300, 384, 392, 600, 1000];
/// The bystander's link and address.
const BYSTANDER: (u32, u64) = (1000, 1);

/// An operation of the client.
struct Mine {
    memory: Owned,
    aside: bool,
    /// The memory's content when the operation ended.
    end: Option<Vec<u8>>,
}

struct World {
    case: Case,
    ops: Vec<Mine>,
    region: Owned,
    /// Whether the region is registered with the engine.
    offered: bool,
    links: u32,
    steps: u8,
    /// Kinds of the completions so far, successful and failed.
    seen: u64,
}

fn overlaps(a: &Iov, b: &Iov) -> bool {
    a.addr() < b.addr() + b.len() as u64 && b.addr() < a.addr() + a.len() as u64
}

impl World {
    fn new(options: u8) -> Self {
        let caps = NicCaps {
            get: options & 1 != 0,
            put: options & 2 != 0,
            ordered: options & 4 == 0,
            push_follows: options & 12 == 0,
            mailbox_bytes: 512,
            eager_bytes: 300,
            ..CAPS
        };
        let config = Config { window_bytes: 4000, tx_depth: 16, rx_depth: 8, ..Config::default() };
        let case = Case::new(caps, config);
        let region = Owned::new(vec![0xa5; LENGTHS[7]]);
        let mut world = Self { case, ops: Vec::new(), region, offered: false, links: 0, steps: 0, seen: 0 };
        world.offer();
        world.case.connect(BYSTANDER.0, 3);
        for kind in [0, 1, 2] {
            world.begin(kind, 2, BYSTANDER.1);
        }
        world.connect();
        world
    }

    fn connect(&mut self) {
        self.case.connect(self.links, 2);
        self.links += 1;
    }

    fn offer(&mut self) {
        let access = Access { read: true, write: true };
        let iov = IovList::from_slice(&[self.region.iov()]);
        let region = Region { key: 7, iov, base: 0, access, user: 0, events: true, mapping: None };
        self.offered |= self.case.engine.add_region(region).is_ok();
    }

    /// Removes the client's region.
    fn withdraw(&mut self) {
        // Transfers in progress end when the device is polled.
        self.case.engine.nic_mut().hurry = true;
        self.case.engine.remove_region(7);
        self.case.engine.nic_mut().hurry = false;
        self.offered = false;
        let iov = self.region.iov();
        self.idle(iov, "a region");
    }

    /// Asserts that the device does not use the memory.
    fn idle(&self, iov: Iov, whose: &str) {
        let busy = self.case.engine.nic().busy.iter().any(|busy| busy.local.iter().any(|piece| overlaps(piece, &iov)));
        assert!(!busy, "the device still uses the memory of {whose}");
    }

    /// Starts an operation of the client.
    fn begin(&mut self, kind: u8, len: u8, dest: u64) {
        let len = LENGTHS[usize::from(len) % LENGTHS.len()];
        let mut memory = Owned::new(vec![self.steps; len]);
        let (iov, ctx) = ([memory.iov()], Context { ptr: self.ops.len() + 1, user: 0 });
        // Some operations have two parts: a short one, and the remainder.
        let short = if kind & 64 == 0 { 0 } else { len.min(104) as u64 };
        let part = |addr, len| RmaIov { addr, len, key: 7 };
        let remote = [part(0, short), part(short, len as u64 - short)];
        let remote = &remote[usize::from(short == 0)..];
        let flags = if kind & 128 == 0 { OpFlags::DELIVERY } else { OpFlags::empty() };
        let rma = RmaOp { dest, iov: &iov, remote, data: 1, ctx, flags };
        let engine = &mut self.case.engine;
        let mut atomic = |form, op| {
            let amo = Amo::new(form, Type::Uint64, op).unwrap();
            engine.atomic(&AtomicOp { dest, amo, iov: &iov, compare: &[], result: &iov, remote, data: 1, ctx, flags })
        };
        let posted = match kind % 8 {
            2 | 3 => self.case.engine.read(&rma),
            1 => self.case.engine.write(&rma),
            0 => self.case.engine.send(&SendOp { dest, iov: &iov, tag: 0, data: 0, ctx, flags }),
            4 => atomic(Form::Fetch, Op::Sum),
            5 => atomic(Form::Base, Op::Sum),
            _ => {
                let recv = RecvOp { src: ADDR_NONE, iov: &iov, tag: 0, ignore: 0, ctx, flags: RecvFlags::empty() };
                self.case.engine.recv(&recv)
            }
        };
        if posted.is_ok() {
            self.ops.push(Mine { memory, aside: dest == BYSTANDER.1, end: None });
        }
    }

    /// The peer answers one of the client's messages, correctly if `wrong` is 0.
    fn answer(&mut self, which: u8, form: u8, wrong: u8) {
        let sent = &self.case.engine.nic().sent;
        let heard = sent.iter().filter(|(link, bytes)| *link == self.case.link && bytes[0] >= 8).collect::<Vec<_>>();
        let Some((_, to)) = heard.len().checked_sub(1 + usize::from(which)).and_then(|at| heard.get(at)) else {
            return;
        };
        let kind = to[0];
        let at = if kind == 8 { 8 + 8 * u32::from(to[1] & 3).count_ones() as usize } else { 8 };
        let (op, part) = (u64::from(u32_at(to, at)), u64::from(u32_at(to, 12)));
        let (len, window) = match kind {
            9 => (u64_at(to, 32), 0),
            10 => (u64_at(to, 24), u64_at(to, 16)),
            20 => (to.len() as u64 - 32, 0),
            _ => (u64_at(to, 40), u64_at(to, 48)),
        };
        let mut pieces = [op, part, len, window, 0];
        if wrong != 0 {
            let piece = usize::from(wrong) % 5;
            let by = [1, u64::MAX, 2, 8, 1 << 32, 1 << 63][usize::from(wrong) / 5 % 6];
            pieces[piece] = pieces[piece].wrapping_add(by);
        }
        let [op, part, len, window, status] = pieces;
        let bytes = vec![self.steps; usize::try_from(len).unwrap_or(usize::MAX).min(480)];
        let named = words(&[pair(op & u64::from(u32::MAX), part)]);
        let form = if form == 0 { u8::MAX } else { form % 8 };
        match (form, kind) {
            (1, _) | (u8::MAX, 9) => self.case.say(10, 0, &[named, words(&[1 << 40, len])].concat()),
            (2, _) => self.case.say(11, 0, &words(&[pair(op & u64::from(u32::MAX), status), part])),
            (3, _) => self.case.say(11, 0, &words(&[pair(op & u64::from(u32::MAX), status), window])),
            (4, _) | (u8::MAX, 16) => self.case.say(18, 0, &[named, bytes].concat()),
            (5, _) | (u8::MAX, 10 | 17) => {
                let len = usize::try_from(len).unwrap_or(usize::MAX).min(LENGTHS[7]);
                self.push(window, 0, len);
            }
            (6, _) | (u8::MAX, 20) if to[1] & 8 != 0 || form == 6 => self.case.say(21, 0, &[named, bytes].concat()),
            (7, _) => {
                let piece = [u64::from(self.steps) << 12, len];
                self.case.say(19, 0, &[named, words(&[pair(1, 1), len]), words(&piece)].concat());
            }
            _ => self.case.say(12, 1, &words(&[op])[..4]),
        }
    }

    /// The peer pushes bytes. Devices do not pass on empty pushes.
    fn push(&mut self, window: u64, offset: u64, len: usize) {
        if len > 0 {
            self.case.push(window, offset, &vec![self.steps ^ 0x5a; len]);
        }
    }

    /// The peer sends a request.
    fn request(&mut self, kind: u8, len: u8, detail: u8) {
        let len = LENGTHS[usize::from(len) % LENGTHS.len()] as u64;
        let direct = u64::from(detail & 1);
        let piece = words(&[1 << 20, len]);
        let piece = if direct == 1 { &piece[..] } else { &[] };
        let more = if detail & 2 != 0 { 16 } else { 0 };
        let op = pair(u64::from(detail >> 4), 0);
        let announced = if detail & 4 != 0 && direct == 0 { 1 << 63 | u64::from(detail >> 5) } else { 0 };
        let bytes = || vec![self.steps; usize::try_from(len).unwrap().min(400)];
        match kind % 8 {
            0 => self.case.say(8, 0, &bytes()),
            1 => self.case.say(
                9,
                if detail & 4 != 0 { 4 | 128 } else { 4 },
                &[&words(&[pair(1, direct), 0, 0, len]), piece].concat(),
            ),
            2 => self.case.say(14, more, &[words(&[op, 7, 0, 0]), bytes()].concat()),
            3 => self.case.say(15, more, &[&words(&[op, 7, 0, 0, len, announced, direct]), piece].concat()),
            4 => self.case.say(16, more, &words(&[op, 7, 0, len])),
            5 => self.case.say(17, more, &[&words(&[op, 7, 0, 0, len, 1 << 40, direct]), piece].concat()),
            // FI_ATOMIC_READ of 8-byte numbers.
            6 => self.case.say_as([20, 8 | more, 0, 10], &words(&[op, 7, 0, len])),
            _ => self.case.say(13, 0, &words(&[len])),
        }
    }

    /// Takes the client's completions, and checks them.
    fn hear(&mut self, over: bool) {
        for done in self.case.done() {
            self.seen |= 1 << (2 * (done.kind as u64) + u64::from(done.fault.is_some()));
            if matches!(done.kind, Kind::RemoteWrite | Kind::RemoteRead) || done.ctx.ptr == 0 {
                continue;
            }
            let op = &mut self.ops[done.ctx.ptr - 1];
            assert!(op.end.is_none(), "{done:?}: the operation ended twice");
            assert!(over || !op.aside, "{done:?}: the bystander has sent nothing");
            let iov = op.memory.iov();
            op.end = Some(mem::to_vec(&[iov]));
            self.idle(iov, "a client");
        }
        for op in &mut self.ops {
            if let Some(end) = &op.end {
                assert!(*end == mem::to_vec(&[op.memory.iov()]), "written after the end of the operation");
            }
        }
    }

    fn step(&mut self, input: &mut Reader<'_>) {
        let [what, a, b, c] = [input.byte(), input.byte(), input.byte(), input.byte()];
        self.steps = self.steps.wrapping_add(1);
        match what % 8 {
            0 => self.begin(a, b, 0),
            1..=3 => self.answer(a % 8, b, c),
            4 => self.request(a, b, c),
            5 => {
                let generation = u64::from(a % 16) + 1;
                let window =
                    if a & 128 == 0 { generation << 32 | u64::from(c % 8) } else { 1 << 63 | u64::from(c % 8) };
                let offset = if c & 64 == 0 { 0 } else { 100 };
                self.push(window, offset, LENGTHS[usize::from(b) % LENGTHS.len()]);
            }
            6 => match a % 5 {
                0 | 1 => self.case.tell(Event::Done(Ok(()))),
                2 => self.case.tell(Event::Done(Err(LinkError::Access))),
                3 => {
                    let nic: &mut ScriptedDevice = self.case.engine.nic_mut();
                    (nic.room, nic.depth) = if b % 2 == 0 { (usize::MAX, 64) } else { (usize::from(c % 4), 1) };
                }
                _ if self.offered => self.withdraw(),
                _ => self.offer(),
            },
            _ => {
                if a % 2 == 0 {
                    self.case.tell(Event::Down(self.case.link));
                }
                if !self.case.engine.nic().open.contains(&self.case.link) {
                    self.connect();
                }
            }
        }
        self.case.run();
    }

    /// Ends the links, and with them all operations.
    fn end(mut self) -> u64 {
        self.case.engine.nic_mut().room = usize::MAX;
        self.case.tell(Event::Down(self.case.link));
        self.hear(false);
        self.case.tell(Event::Down(LinkId(BYSTANDER.0)));
        for ptr in 1..=self.ops.len() {
            self.case.engine.cancel(ptr);
        }
        self.hear(true);
        assert!(self.ops.iter().all(|op| op.end.is_some()), "an operation has not ended");
        let engine: &mut Engine<ScriptedDevice> = &mut self.case.engine;
        assert!(engine.at_rest() && engine.posted_receives() == 0, "the engine is not at rest");
        assert!(engine.unexpected_messages() <= 4000 / 64, "the messages exceed a window");
        engine.shutdown();
        self.seen
    }
}

#[test]
fn answers() {
    let seeds = [
        // Reads of all kinds, and their answers.
        vec![0, 0, 2, 6, 0, 1, 0, 0, 0, 0, 2, 2, 0, 1, 0, 0, 0, 0, 66, 6, 0, 1, 0, 0, 0, 1, 1, 0, 0],
        vec![0, 0, 2, 6, 0, 0, 2, 6, 0, 1, 1, 3, 4, 1, 0, 0, 0, 0, 2, 2, 0, 1, 0, 2, 4, 0, 2, 6, 0, 1, 0, 5, 0],
        // Writes and sends that the peer requests and acknowledges.
        vec![8, 0, 1, 6, 0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 6, 0, 1, 0, 0, 0, 6, 0, 0, 0, 0, 1, 2, 0, 1, 0, 0, 0],
        // Atomics.
        vec![0, 0, 4, 1, 0, 1, 0, 0, 0, 0, 5, 2, 0, 1, 0, 0, 0, 4, 6, 6, 0],
        // Messages and remote accesses of the peer, by device and by push.
        vec![3, 0, 6, 6, 0, 4, 1, 6, 1, 6, 0, 0, 0, 4, 5, 6, 1, 6, 0, 0, 0, 4, 3, 6, 1, 6, 2, 0, 0],
        vec![8, 0, 6, 6, 0, 4, 1, 6, 0, 1, 0, 0, 0, 4, 5, 6, 0, 6, 4, 0, 0, 7, 0, 0, 0, 4, 0, 2, 0, 0, 6, 2, 0],
        vec![0, 4, 3, 6, 4, 5, 128, 6, 0, 4, 4, 2, 0, 6, 4, 0, 0],
    ];
    fuzz("answers", &seeds, |input| {
        let mut input = Reader(input);
        let mut world = World::new(input.byte());
        for _ in 0..64 {
            if input.is_empty() {
                break;
            }
            world.step(&mut input);
            world.hear(false);
        }
        world.end()
    });
}
