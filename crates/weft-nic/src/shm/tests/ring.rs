//! A ring compared with a queue under random operations, and a ring with a hostile peer.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use weft_engine::mem::Owned;
use weft_engine::nic::LinkError;

use crate::shm::lines::Lines;
use crate::shm::ring::{Distance, MAILBOX_BYTES, MIN_LINES, PIECE_BYTES, Record, Rx, Tx};
use crate::shm::segment::{Mapping, Role, segment_bytes};

/// An operation on the ring and on the queue.
#[derive(Clone, Debug)]
enum Op {
    /// Sends a message whose bytes derive from `fill`, `head` of them in the head.
    Send { head: usize, body: usize, fill: u8 },
    /// Sends a message whose words look like headers of the next lap.
    SendForged { lines: usize, ahead: u64 },
    /// Sends a piece of a push.
    Push { len: usize, fill: u8 },
    /// Takes up to this number of records.
    Take(usize),
    /// Publishes the consumer's position.
    Release,
    /// Releases memory, as after a quiet time.
    Trim,
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (0usize..100, 0usize..200, any::<u8>()).prop_map(|(head, body, fill)| Op::Send { head, body, fill }),
        2 => (0usize..100, 0usize..=MAILBOX_BYTES - 100, any::<u8>()).prop_map(|(head, body, fill)| Op::Send { head, body, fill }),
        2 => (1usize..500, 0u64..5000).prop_map(|(lines, ahead)| Op::SendForged { lines, ahead }),
        2 => (1usize..=PIECE_BYTES, any::<u8>()).prop_map(|(len, fill)| Op::Push { len, fill }),
        5 => (1usize..20).prop_map(Op::Take),
        2 => Just(Op::Release),
        1 => Just(Op::Trim),
    ]
}

#[derive(Debug, PartialEq, Eq)]
enum Expected {
    Message(Vec<u8>),
    Push(u64, u64, Vec<u8>),
}

struct Pair {
    tx: Tx,
    rx: Rx,
    queue: VecDeque<Expected>,
    sent: u64,
    refused: u64,
    /// The mappings that contain the ring.
    _maps: [Mapping; 2],
    file: OwnedFd,
}

impl Pair {
    fn new(lines: u32) -> Self {
        let (fd, map) = Mapping::create(c"weft-test", segment_bytes(lines)).unwrap();
        let maps = [map, Mapping::adopt(fd.as_fd(), segment_bytes(lines)).unwrap()];
        // SAFETY: the pair keeps the mapping.
        let near = unsafe { Lines::new(&maps[0], Role::Initiator, lines) };
        // SAFETY: the pair keeps the mapping.
        let far = unsafe { Lines::new(&maps[1], Role::Initiator, lines) };
        let tx = Tx::new(near, Role::Initiator).unwrap();
        let rx = Rx::new(far, Role::Acceptor).unwrap();
        Self { tx, rx, queue: VecDeque::new(), sent: 0, refused: 0, _maps: maps, file: fd }
    }

    /// Number of pages that the ring occupies.
    fn pages(&self) -> i64 {
        rustix::fs::fstat(&self.file).unwrap().st_blocks * 512 / rustix::param::page_size() as i64
    }

    /// Sends messages of `len` bytes, each of which is taken at once.
    fn exchange(&mut self, count: usize, len: usize) {
        for n in 0..count {
            self.send(&[n as u8], vec![n as u8; len]);
            assert!(self.take());
            self.rx.release();
        }
    }

    fn send(&mut self, head: &[u8], body: Vec<u8>) {
        let expected = [head, &body[..]].concat();
        let at = body.len() / 3;
        let mut body = Owned::new(body);
        let pieces = [body.iov().slice(0, at), body.iov().slice(at, usize::MAX)];
        self.note(|tx| tx.send(head, &pieces).is_ok(), Expected::Message(expected));
    }

    fn note(&mut self, attempt: impl FnOnce(&mut Tx) -> bool, expected: Expected) {
        if attempt(&mut self.tx) {
            self.sent += 1;
            self.queue.push_back(expected);
        } else {
            self.refused += 1;
            assert!(!self.queue.is_empty() || self.tx.broken().is_none());
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Send { head, body, fill } => {
                let head: Vec<u8> = (0..head).map(|i| fill.wrapping_add(i as u8)).collect();
                self.send(&head, (0..body).map(|i| fill.wrapping_mul(3).wrapping_add(i as u8)).collect());
            }
            Op::SendForged { lines, ahead } => {
                // Every aligned word of the payload is a plausible header of a later record.
                let word = |i: usize| (1u64 << 56 | 8 << 32) + self.sent + ahead + i as u64 / 8;
                let bytes = (0..lines * 8 - 1).flat_map(|i| word(i).to_ne_bytes()).collect();
                self.send(&[], bytes);
            }
            Op::Push { len, fill } => {
                let mut data = Owned::new((0..len).map(|i| fill.wrapping_add(i as u8)).collect());
                let (window, offset, iov) = (self.sent, self.sent * 7, [data.iov()]);
                let expected = Expected::Push(window, offset, weft_engine::mem::to_vec(&iov));
                self.note(|tx| tx.push(window, offset, &iov, len).is_ok(), expected);
            }
            Op::Take(records) => {
                for _ in 0..records {
                    if !self.take() {
                        assert!(self.queue.is_empty(), "the ring is empty, the queue is not");
                        break;
                    }
                }
            }
            Op::Release => self.rx.release(),
            Op::Trim => self.tx.trim(),
        }
    }

    fn take(&mut self) -> bool {
        let Some((record, need)) = self.rx.peek().unwrap() else { return false };
        let found = match record {
            Record::Message(bytes) => Expected::Message(bytes.to_vec()),
            Record::Push { window, offset, data } => Expected::Push(window, offset, data.to_vec()),
        };
        self.rx.advance(need);
        assert_eq!(Some(found), self.queue.pop_front());
        true
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_ring_is_a_queue(ops in prop::collection::vec(op(), 1..600), double in any::<bool>()) {
        let mut pair = Pair::new(if double { 2 * MIN_LINES } else { MIN_LINES });
        for op in &ops {
            pair.apply(op);
        }
        while pair.take() {}
        prop_assert!(pair.queue.is_empty());
        pair.rx.release();
        // An empty ring always accepts the longest message, so no sender waits indefinitely.
        pair.send(&[], vec![7; MAILBOX_BYTES]);
        prop_assert_eq!(pair.queue.len(), 1);
        prop_assert!(pair.take());
    }
}

/// The payload consists of the stamps that the next lap expects.
#[test]
fn payload_is_not_mistaken_for_a_header() {
    let mut pair = Pair::new(MIN_LINES);
    // Each message takes 100 lines. In lap n, every line of its payload contains the header that lap n+1
    // expects there.
    for round in 0..400u64 {
        let at = pair.tx_position();
        let lap = u64::from(MIN_LINES);
        let words = (1..100 * 8).map(|i| 1 << 56 | 8 << 32 | ((at + lap + i / 8) & 0xffff_ffff));
        let bytes = words.flat_map(u64::to_ne_bytes).collect();
        pair.send(&[], bytes);
        assert!(pair.take(), "round {round}");
        assert!(!pair.take());
        // Short messages shift the beginnings of records over the forged words.
        for _ in 0..round % 7 {
            pair.send(b"short", Vec::new());
            assert!(pair.take());
            assert!(!pair.take());
        }
        pair.rx.release();
    }
    assert_eq!(pair.refused, 0);
}

impl Pair {
    fn tx_position(&self) -> u64 {
        self.tx.position()
    }
}

#[test]
fn a_full_ring_refuses_and_recovers() {
    let mut pair = Pair::new(MIN_LINES);
    while pair.refused == 0 {
        pair.send(&[1; 32], Vec::new());
    }
    // All lines except the reserved ones accepted a message.
    assert!(pair.sent > u64::from(MIN_LINES) - 4, "{}", pair.sent);
    assert!(!pair.tx.has_space(8));
    for _ in 0..200 {
        assert!(pair.take());
    }
    pair.rx.release();
    assert!(pair.tx.has_space(8));
    while pair.take() {}
}

/// A pair that talks little keeps the first page of the ring. One that was busy gives the other pages back.
#[test]
fn a_quiet_ring_occupies_one_page() {
    let mut pair = Pair::new(2 * MIN_LINES);
    // Beside the ring, the consumer's position occupies a page.
    pair.exchange(20, 8);
    assert_eq!(pair.pages(), 2);
    pair.exchange(3000, 1000);
    let busy = pair.pages();
    assert!(busy > 32, "{busy} pages: the ring of a busy pair is large");
    pair.send(&[], vec![7; 1000]);
    pair.tx.trim();
    assert_eq!(pair.pages(), busy, "a record has not been taken");
    assert!(pair.take());
    pair.rx.release();
    pair.tx.trim();
    // The end of the lap is written in the page of the next record.
    assert!(pair.pages() <= 3, "{} pages", pair.pages());
    pair.exchange(10, 1000);
    pair.tx.trim();
    assert!(pair.pages() <= 3, "{} pages", pair.pages());
    pair.exchange(2, MAILBOX_BYTES - 1);
    pair.exchange(3000, 1000);
    assert!(pair.pages() > 32, "{} pages", pair.pages());
}

#[test]
fn a_push_leaves_room_for_messages() {
    let mut pair = Pair::new(MIN_LINES);
    while pair.refused == 0 {
        pair.apply(&Op::Push { len: PIECE_BYTES, fill: 3 });
    }
    assert!(!pair.tx.has_push_space());
    pair.refused = 0;
    pair.send(&[], vec![5; 16 * 1024]);
    assert_eq!(pair.refused, 0);
    while pair.take() {}
}

/// Random words in the ring and in the control words cause no panic and no access outside the ring, and end
/// the link.
#[test]
fn a_hostile_peer_ends_its_link_only() {
    let lines = MIN_LINES;
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut violations = 0;
    for _ in 0..300 {
        let (fd, map) = Mapping::create(c"weft-test", segment_bytes(lines)).unwrap();
        let hostile = Mapping::adopt(fd.as_fd(), segment_bytes(lines)).unwrap();
        // SAFETY: the mapping outlives both ends.
        let [outgoing, incoming] =
            [Role::Acceptor, Role::Initiator].map(|writer| unsafe { Lines::new(&map, writer, lines) });
        let mut tx = Tx::new(outgoing, Role::Acceptor).unwrap();
        let mut rx = Rx::new(incoming, Role::Acceptor).unwrap();
        let mut position = 0u64;
        for _ in 0..400 {
            // A header with a valid stamp, so that the consumer checks its other fields.
            let word = random() << 32 | (position & 0xffff_ffff);
            let word = if random() % 2 == 0 { word & !(0xfc << 56) } else { word };
            let at = Mapping::ring_offset(Role::Initiator, lines) + (position as usize % lines as usize) * 64;
            poke(&hostile, at, word);
            if random() % 8 == 0 {
                poke(&hostile, 0, random() >> (random() % 64));
            }
            match rx.peek() {
                Ok(None) => {}
                Ok(Some((Record::Message(data) | Record::Push { data, .. }, need))) => {
                    std::hint::black_box(data.iter().map(|&b| usize::from(b)).sum::<usize>());
                    rx.advance(need);
                }
                Err(why) => {
                    assert_eq!(why, LinkError::Protocol);
                    violations += 1;
                    break;
                }
            }
            position = rx.position();
            let _ = tx.send(&[9; 40], &[]);
            let _ = tx.has_push_space();
        }
        if let Some(why) = tx.broken() {
            assert_eq!(why, LinkError::Protocol);
        }
    }
    assert!(violations > 50, "{violations}");
}

/// Records that are written past the caches, with all alignments of source and target, in one piece and in
/// several.
#[test]
fn records_past_the_caches_arrive() {
    for far in [false, true] {
        let mut pair = Pair::new(MIN_LINES);
        let cycles = if far { 500 } else { 130 };
        (0..10).for_each(|_| pair.tx.distance.note(cycles));
        for (skip, len) in (0..130).zip([1400, 1500, 1535, 1536, 2000, 8100, 8192, 16_000, 32_768].into_iter().cycle())
        {
            let source: Vec<u8> = (0..skip + len).map(|i| (i * 7 + i / 253) as u8).collect();
            let mut body = Owned::new(source.clone());
            let head = &source[..skip];
            for cut in [0, len / 3, len - 1] {
                let whole = body.iov().slice(skip, usize::MAX);
                let pieces = [whole.slice(0, cut), whole.slice(cut, usize::MAX)];
                let expected = Expected::Message([head, &source[skip..]].concat());
                pair.note(|tx| tx.send(head, &pieces).is_ok(), expected);
                assert!(pair.take());
                pair.rx.release();
            }
        }
        assert_eq!(pair.refused, 0);
    }
}

#[test]
fn most_measurements_decide_the_distance() {
    let mut distance = Distance::default();
    let near = distance.stream_lines();
    (0..100).for_each(|_| distance.note(60));
    assert_eq!(distance.stream_lines(), near, "a line of the own cache says nothing");
    distance.note(400);
    let far = distance.stream_lines();
    assert!(far < near);
    (0..100).for_each(|_| distance.note(400));
    (0..3).for_each(|_| distance.note(130));
    assert_eq!(distance.stream_lines(), far, "single answers do not turn it");
    (0..3).for_each(|_| distance.note(130));
    assert_eq!(distance.stream_lines(), near);
}

/// Writes a word of a mapping.
pub(super) fn poke(map: &Mapping, offset: usize, to: u64) {
    word(map, offset).store(to, Ordering::Relaxed);
}

/// A word of a mapping.
pub(super) fn word(map: &Mapping, offset: usize) -> &AtomicU64 {
    assert!(offset + 8 <= map.len() && offset.is_multiple_of(8));
    let at = map.base().as_ptr().wrapping_add(offset).cast::<AtomicU64>();
    // SAFETY: the word lies inside the mapping and is aligned, as checked above.
    unsafe { &*at }
}
