//! Long writes and messages whose bytes follow the announcement at once, on devices that keep pushes in order with
//! messages.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use weft_engine::api::{Access, Config, Fault, OpFlags};
use weft_engine::mem::IovList;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Nic, Sink};
use weft_sim::{Buffer, Cluster, FabricConfig, Fate, Harness, Recv, Rma, Send, SimNic};

const LEN: usize = 20_000;
const WRITE_RTS: u8 = 15;

/// A device that can neither get nor put.
fn fabric(seed: u64, follows: bool) -> FabricConfig {
    let mut config = FabricConfig::new(seed);
    (config.caps.get, config.caps.put, config.caps.push_follows) = (false, false, follows);
    (config.segment_bytes, config.jitter_ns) = (700, 3000);
    config
}

/// Counts the messages on the wire by their kind.
fn count_kinds(harness: &mut Harness) -> Rc<RefCell<BTreeMap<u8, usize>>> {
    let kinds = Rc::new(RefCell::new(BTreeMap::new()));
    let log = Rc::clone(&kinds);
    harness.cluster().fabric().set_interceptor(Box::new(move |_, _, whole, bytes| {
        if whole {
            *log.borrow_mut().entry(bytes[0]).or_insert(0) += 1;
        }
        Fate::Deliver
    }));
    kinds
}

#[test]
fn write_bytes_need_no_answer_where_pushes_follow() {
    const CTS: u8 = 10;
    for follows in [false, true] {
        let mut harness = Harness::new(fabric(1, follows), Config::default(), 2);
        let window = harness.add_window(1, 8 * LEN, Access { read: true, write: true }, true).unwrap();
        let kinds = count_kinds(&mut harness);
        for n in 0..4 {
            let rma = Rma { offset: 2 * n * LEN, remote: vec![LEN, LEN], data: Some(n as u64), ..Rma::default() };
            harness.write(0, window, &rma).unwrap();
        }
        harness.drive().unwrap();
        assert_eq!(harness.finish(), Vec::<String>::new());
        let kinds = kinds.borrow();
        assert_eq!(kinds[&WRITE_RTS], 8);
        assert_eq!(kinds.get(&CTS).copied().unwrap_or(0), if follows { 0 } else { 8 });
    }
}

/// The bytes of long messages follow their announcements as far as the window has room: into receives that wait, into
/// shorter ones, and into the engine's memory. No order of arrivals loses a byte or a part of the window.
#[test]
fn message_bytes_need_no_answer_where_pushes_follow() {
    const RTS: u8 = 9;
    const CTS: u8 = 10;
    for seed in 0..40 {
        let roomy = seed % 2 == 0;
        let window_bytes = if roomy { 1 << 20 } else { 2 * LEN };
        let config = Config { window_bytes, ..Config::default() };
        let mut harness = Harness::new(fabric(seed, true), config, 2);
        let kinds = count_kinds(&mut harness);
        for n in 0..8 {
            // A receive of full length, a shorter one, none yet.
            let len = [Some(LEN), Some(LEN / 3), None][n % 3];
            if let Some(len) = len {
                harness.recv(1, &Recv { tag: Some((n as u64, 0)), len, ..Recv::default() }).unwrap();
            }
        }
        for n in 0..8 {
            let flags = if n % 4 == 3 { OpFlags::DELIVERY } else { OpFlags::empty() };
            harness.send(0, 1, &Send { tag: Some(n as u64), len: LEN, flags, ..Send::default() }).unwrap();
            if n % 3 == 0 {
                harness.turn();
            }
        }
        for n in [2, 5] {
            harness.turn();
            harness.recv(1, &Recv { tag: Some((n, 0)), len: LEN, ..Recv::default() }).unwrap();
        }
        harness.drive().unwrap();
        assert_eq!(harness.finish(), Vec::<String>::new(), "seed {seed}");
        let kinds = kinds.borrow();
        assert_eq!(kinds[&RTS], 8);
        assert_eq!(kinds.contains_key(&CTS), !roomy, "seed {seed}");
    }
}

/// The bytes of a refused write are already on their way when the refusal is sent. They change no memory, and
/// later operations are not affected.
#[test]
fn refused_write_bytes_are_discarded() {
    for seed in 0..50 {
        let mut harness = Harness::new(fabric(seed, true), Config { tx_depth: 64, ..Config::default() }, 2);
        let window = harness.add_window(1, 20 * LEN, Access { read: true, write: true }, true).unwrap();
        let mut ops = Vec::new();
        for n in 0..20 {
            let provoke = [None, Some(Fault::BadKey), None, Some(Fault::BadRange), Some(Fault::BadKey)][n % 5];
            let rma = Rma { offset: n * LEN, remote: vec![LEN], provoke, ..Rma::default() };
            ops.push((harness.write(0, window, &rma).unwrap(), provoke));
            if n % 3 == 0 {
                harness.turn();
            }
        }
        harness.drive().unwrap();
        for (op, provoke) in ops {
            assert_eq!(harness.oracle().fault(op), provoke, "seed {seed}");
        }
        assert_eq!(harness.finish(), Vec::<String>::new(), "seed {seed}");
    }
}

/// An impostor's links.
#[derive(Default)]
struct Links {
    up: Option<LinkId>,
    opened: bool,
    down: Option<LinkError>,
    fins: usize,
}

impl Sink for Links {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
    fn up(&mut self, link: LinkId, _: LinkUp) {
        self.up = Some(link);
    }
    fn down(&mut self, _: LinkId, why: LinkError) {
        self.down = Some(why);
    }
    fn message(&mut self, _: LinkId, bytes: &[u8]) {
        self.opened |= bytes[0] == 1;
        self.fins += usize::from(bytes[0] == 11);
    }
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

/// A peer of rank 0 whose protocol messages the test writes itself.
struct Impostor {
    cluster: Cluster,
    nic: SimNic,
    links: Links,
    memory: Buffer,
    seq: u32,
}

impl Impostor {
    fn new(follows: bool) -> Self {
        let (mut cluster, mut nics) = Cluster::with_impostors(fabric(1, follows), Config::default(), 1, 1);
        let victim = cluster.engine(0).unwrap().name();
        let mut nic = nics.remove(0);
        nic.connect(&victim).unwrap();
        let memory = cluster.fabric().alloc(1, LEN);
        let mut this = Self { cluster, nic, links: Links::default(), memory, seq: 0 };
        this.run();
        let mut open = vec![0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0];
        open.extend((1_u64 << 20).to_le_bytes());
        this.nic.send(this.links.up.unwrap(), &open, &[]).unwrap();
        this.run();
        assert!(this.links.opened);
        this
    }

    fn run(&mut self) {
        for _ in 0..2000 {
            self.nic.poll(&mut self.links);
            self.nic.flush();
            self.cluster.turn(|_, _| ());
        }
    }

    /// Announces a write of `len` bytes to a key that does not exist.
    fn announce(&mut self, window: u64, len: u64) {
        let mut bytes = vec![WRITE_RTS, 0, 0, 0];
        bytes.extend([self.seq, 7, 0].map(u32::to_le_bytes).concat());
        bytes.extend([99, 0, 0, len, window, 0].map(u64::to_le_bytes).concat());
        self.nic.send(self.links.up.unwrap(), &bytes, &[]).unwrap();
        self.seq += 1;
        self.run();
    }

    fn push(&mut self, window: u64) {
        let link = self.links.up.unwrap();
        self.nic.push(link, window, 0, &[self.memory.iov()], 0).unwrap();
        self.run();
    }
}

#[test]
fn windows_that_are_not_announced_in_order_end_the_link() {
    let named = |n: u64| 1 << 63 | n;
    let announce = |window: u64, len: u64| move |peer: &mut Impostor| peer.announce(window, len);
    let push = |window: u64| move |peer: &mut Impostor| peer.push(window);
    type Step = Box<dyn Fn(&mut Impostor)>;
    let all: [(&str, bool, Vec<Step>, bool); 8] = [
        ("in order", true, vec![Box::new(announce(named(0), 9)), Box::new(announce(named(1), LEN as u64))], true),
        ("bytes for what is over", true, vec![Box::new(announce(named(0), 9)), Box::new(push(named(0)))], true),
        ("bytes for a transfer that is not", true, vec![Box::new(push(77))], false),
        ("bytes ahead", true, vec![Box::new(push(named(0)))], false),
        ("a window ahead", true, vec![Box::new(announce(named(1), 9))], false),
        ("a window again", true, vec![Box::new(announce(named(0), 9)), Box::new(announce(named(0), 9))], false),
        ("no bytes", true, vec![Box::new(announce(named(0), 0))], false),
        ("on a device without order", false, vec![Box::new(announce(named(0), 9))], false),
    ];
    for (what, follows, steps, is_alive) in all {
        let mut peer = Impostor::new(follows);
        steps.iter().for_each(|step| step(&mut peer));
        assert_eq!(peer.links.down.is_none(), is_alive, "{what}");
        assert_eq!(peer.cluster.fabric().violations(), Vec::<String>::new());
        if is_alive && peer.seq > 0 {
            assert_eq!(peer.links.fins, peer.seq as usize, "{what}: refused each");
        }
    }
}
