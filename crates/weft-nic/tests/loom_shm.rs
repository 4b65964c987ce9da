//! The ring, the doorbell page and the sleep protocol of the shared-memory device in a model checker. It
//! tries all interleavings (up to a limit of preemptions) and all values that a load may return under the C11
//! memory model.
//!
//! The files under test are included as they ship. Only the memory below them is replaced, by atomics of the
//! checker and by cells that report data races. The asymmetric fence is modelled by its guarantee alone. Of a
//! light fence and a heavy one, either comes first. The thread of the second then sees all writes before the
//! first. Other fences do not take part.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::arc_with_non_send_sync)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::cell::Cell;
use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering, fence};
use loom::sync::{Condvar, Mutex};
use weft_engine::mem::Owned;

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// Imports of the files under test from their neighbours.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    loom::lazy_static! {
        static ref ASYMMETRIC: AtomicU64 = AtomicU64::new(0);
    }

    pub(super) fn light_fence() {
        ASYMMETRIC.fetch_add(1, Ordering::AcqRel);
    }

    pub(super) fn heavy_fence() {
        ASYMMETRIC.fetch_add(1, Ordering::AcqRel);
    }
}

mod segment {
    pub(super) const LINE_BYTES: usize = 64;

    #[derive(Clone, Copy, PartialEq, Eq)]
    pub(super) enum Role {
        Initiator,
        Acceptor,
    }

    impl Role {
        pub(super) fn other(self) -> Self {
            if self == Self::Initiator { Self::Acceptor } else { Self::Initiator }
        }
    }
}

mod lines {
    //! The memory of a ring for the checker: header words are atomics, and all other bytes must not race.

    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use weft_engine::mem::{self, Iov};

    use super::segment::{LINE_BYTES, Role};
    use super::sync::{AtomicU64, Ordering};

    /// Small, so that a ring of eight lines must grow.
    pub(super) const FIRST_LINES: u64 = 4;

    struct Line {
        word: AtomicU64,
        rest: UnsafeCell<[u8; 56]>,
        /// Window and offset of a push. Bytes of other records at this place are in `rest`.
        push: [AtomicU64; 2],
    }

    #[derive(Clone)]
    pub(super) struct Lines(Arc<(Vec<Line>, [AtomicU64; 2])>);

    impl Lines {
        pub(super) fn new(count: usize) -> Self {
            let words = || std::array::from_fn(|_| AtomicU64::new(0));
            let line = || Line { word: AtomicU64::new(0), rest: UnsafeCell::new([0; 56]), push: words() };
            Self(Arc::new(((0..count).map(|_| line()).collect(), [AtomicU64::new(0), AtomicU64::new(0)])))
        }

        pub(super) fn count(&self) -> u64 {
            self.0.0.len() as u64
        }

        pub(super) fn index(&self, at: u64) -> u64 {
            at % self.count()
        }

        pub(super) fn populate(&self, _from: u64, _to: u64) -> std::io::Result<()> {
            Ok(())
        }

        pub(super) fn release(&self, from: u64, to: u64) {
            for line in &self.0.0[from as usize..to as usize] {
                line.word.store(0, Ordering::Relaxed);
            }
        }

        pub(super) fn word(&self, at: u64, skip: usize) -> &AtomicU64 {
            let line = self.line(at, 0);
            if skip == 0 { &line.word } else { &line.push[skip / 8 - 1] }
        }

        pub(super) fn consumed(&self, role: Role) -> &AtomicU64 {
            &self.0.1[role as usize]
        }

        pub(super) fn consumed_timed(&self, role: Role) -> (u64, u64) {
            (self.consumed(role).load(Ordering::Acquire), 0)
        }

        pub(super) fn write(&self, at: u64, skip: usize, bytes: &[u8]) {
            for (n, &byte) in bytes.iter().enumerate() {
                let (line, offset) = (self.line(at, skip + n), (skip + n) % LINE_BYTES);
                if offset >= 8 {
                    // SAFETY: the checker reports a concurrent access.
                    line.rest.with_mut(|rest| unsafe { (*rest)[offset - 8] = byte });
                } else {
                    let mut word = line.word.load(Ordering::Relaxed).to_ne_bytes();
                    word[offset] = byte;
                    line.word.store(u64::from_ne_bytes(word), Ordering::Relaxed);
                }
            }
        }

        pub(super) fn write_iov(&self, at: u64, skip: usize, piece: &Iov, _streaming: bool) {
            self.write(at, skip, &mem::to_vec(&[*piece]));
        }

        pub(super) fn write_line(&self, at: u64, head: &[u8], piece: &Iov) {
            self.write(at, 8, head);
            self.write_iov(at, 8 + head.len(), piece, false);
        }

        pub(super) fn read(&self, at: u64, skip: usize, len: usize) -> &[u8] {
            let byte = |n: usize| {
                let (line, offset) = (self.line(at, n), n % LINE_BYTES);
                if offset >= 8 {
                    // SAFETY: the checker reports a concurrent write.
                    line.rest.with(|rest| unsafe { (*rest)[offset - 8] })
                } else {
                    line.word.load(Ordering::Relaxed).to_ne_bytes()[offset]
                }
            };
            (skip..skip + len).map(byte).collect::<Vec<u8>>().leak()
        }

        pub(super) fn read_line(&self, at: u64, len: usize) -> &[u8] {
            self.read(at, 8, len)
        }

        pub(super) fn prefetch(&self, _at: u64) {}
        pub(super) fn prefetch_write(&self, _at: u64) {}

        fn line(&self, at: u64, byte: usize) -> &Line {
            &self.0.0[self.index(at) as usize + byte / LINE_BYTES]
        }
    }
}

#[path = "../src/shm/page.rs"]
mod page;
#[path = "../src/shm/ring.rs"]
mod ring;
#[path = "../src/shm/sleep_protocol.rs"]
mod sleep_protocol;

use page::{Page, SleepPage};
use ring::{Next, Record, Rx, Tx};
use sleep_protocol::{SleepLevel, Sleeper};

/// A record that is sent through a ring, with its length in bytes.
#[derive(Clone, Copy)]
enum Sent {
    Message(usize),
    Push(usize),
}

use Sent::{Message, Push};

/// Sends these records through a ring of `lines` lines, and receives them.
fn ring_model(lines: usize, records: &'static [Sent]) {
    check(3, move || {
        let (mut tx, mut rx) = ring(lines);
        let producer = loom::thread::spawn(move || {
            for (n, &sent) in records.iter().enumerate() {
                let (fill, number) = (n as u8 + 1, n as u64 + 1);
                while match sent {
                    Message(len) => tx.send(&vec![fill; len], &[]),
                    Push(len) => {
                        let mut from = Owned::new(vec![fill; len]);
                        tx.push(number, 2 * number, &[from.iov()], len)
                    }
                }
                .is_err()
                {
                    assert!(tx.broken().is_none());
                    loom::thread::yield_now();
                }
            }
        });
        for (n, &sent) in records.iter().enumerate() {
            let (fill, number) = (n as u8 + 1, n as u64 + 1);
            let need = loop {
                if let Next::Line(bytes) = rx.peek_line() {
                    assert!(matches!(sent, Message(len) if bytes == vec![fill; len]));
                    break 1;
                }
                if let Some((record, need)) = rx.peek().unwrap() {
                    match (record, sent) {
                        (Record::Message(bytes), Message(len)) => assert_eq!(bytes, vec![fill; len]),
                        (Record::Push { window, offset, data }, Push(len)) => {
                            assert_eq!((window, offset, data), (number, 2 * number, &vec![fill; len][..]));
                        }
                        _ => panic!("another record"),
                    }
                    break need;
                }
                loom::thread::yield_now();
            };
            rx.advance(need);
            rx.release();
        }
        producer.join().unwrap();
    });
}

#[test]
fn short_messages_pass_a_ring_and_its_end() {
    ring_model(4, &[Message(1), Message(2), Message(1), Message(2), Message(1), Message(2)]);
}

/// Four of the eight lines are in use at the start.
#[test]
fn long_messages_pass_a_ring_that_grows_and_its_end() {
    ring_model(8, &[Message(1), Message(60), Message(1), Message(60), Message(60)]);
}

#[test]
fn pushes_pass_a_ring_that_grows_and_its_end() {
    ring_model(8, &[Push(1), Message(1), Push(9), Push(2)]);
}

/// A consumer's poll: takes the bits, then reads the cells. Returns the sum of the cells.
fn listen(page: &Page, cells: &[AtomicU32]) -> u32 {
    if !page.is_rung() {
        return 0;
    }
    let mut summary = page.take_summary();
    while summary != 0 {
        let _ = page.take_word(summary.trailing_zeros());
        summary &= summary - 1;
    }
    cells.iter().map(|cell| cell.load(Ordering::Acquire)).sum()
}

/// A producer's end of a doorbell.
struct Ringer {
    page: Arc<Page>,
    sleep_page: Arc<SleepPage>,
    wakes: Arc<Socket>,
    ended: Cell<u64>,
}

impl Ringer {
    /// Models `Bell::ring`.
    fn ring(&self, slot: u32) {
        self.sleep_page.ring(&self.page, slot, &self.ended, || self.wakes.send());
    }
}

/// The number of wake-up bytes on the consumer's sockets.
#[derive(Default)]
struct Socket {
    bytes: Mutex<u32>,
    came: Condvar,
}

impl Socket {
    fn send(&self) {
        *self.bytes.lock().unwrap() += 1;
        self.came.notify_all();
    }

    /// Sleeps until a byte arrives.
    fn wait(&self) {
        let mut bytes = self.bytes.lock().unwrap();
        while *bytes == 0 {
            bytes = self.came.wait(bytes).unwrap();
        }
    }

    fn take(&self) -> u32 {
        std::mem::take(&mut *self.bytes.lock().unwrap())
    }

    fn bytes(&self) -> u32 {
        *self.bytes.lock().unwrap()
    }
}

/// The consumer's end.
struct Door {
    page: Arc<Page>,
    sleep_page: Arc<SleepPage>,
    wakes: Arc<Socket>,
    sleeps: u64,
}

impl Door {
    fn new() -> Self {
        Self { page: Arc::new(Page::new()), sleep_page: Arc::new(SleepPage::new()), wakes: Arc::default(), sleeps: 0 }
    }

    fn ringer(&self) -> Ringer {
        Ringer {
            page: self.page.clone(),
            sleep_page: self.sleep_page.clone(),
            wakes: self.wakes.clone(),
            ended: Cell::new(0),
        }
    }

    fn park(&mut self) -> bool {
        self.sleeps += 1;
        self.sleep_page.park(self.sleeps, &self.page)
    }

    /// Models `Shm::read_wake_ups`.
    fn read_wake_ups(&self) {
        if self.wakes.take() > 0 {
            self.sleep_page.wake();
        }
    }

    /// Whether a sleep ends at once.
    fn is_called(&self) -> bool {
        self.wakes.bytes() > 0
    }
}

/// The consumer's poll has seen the publications of both producers, or the page reports more.
#[test]
fn bits_and_summary_lose_nothing() {
    for slots in [[5, 5], [5, 6], [5, 70]] {
        check(3, move || {
            let page = Arc::new(Page::new());
            let cells = Arc::new([AtomicU32::new(0), AtomicU32::new(0)]);
            let producers = [0, 1].map(|n| {
                let (page, cells) = (Arc::clone(&page), Arc::clone(&cells));
                loom::thread::spawn(move || {
                    cells[n].store(1, Ordering::Release);
                    page.ring(slots[n]);
                })
            });
            let seen = listen(&page, &cells[..]);
            for producer in producers {
                producer.join().unwrap();
            }
            assert!(seen == 2 || page.is_rung());
            // The report is true: the next poll sees all.
            assert!(seen == 2 || listen(&page, &cells[..]) == 2);
        });
    }
}

/// A parked consumer is woken by the producers, at most once by each.
#[test]
fn a_sleeper_is_woken() {
    for slots in [[5, 5], [5, 70]] {
        check(3, move || {
            let mut door = Door::new();
            let producers = [0, 1].map(|n: usize| {
                let ringer = door.ringer();
                loom::thread::spawn(move || ringer.ring(slots[n]))
            });
            let asleep = door.park();
            for producer in producers {
                producer.join().unwrap();
            }
            assert!(door.wakes.bytes() <= 2);
            assert!(!asleep || door.is_called(), "asleep without a wake-up");
        });
    }
}

/// One producer's wake-up does not arrive, because its link was just closed. The other's wake-up still
/// arrives.
#[test]
fn a_wake_up_that_fails_leaves_the_others() {
    check(3, || {
        let mut door = Door::new();
        let mut failing = door.ringer();
        failing.wakes = Arc::default();
        let producers = [failing, door.ringer()].map(|ringer| loom::thread::spawn(move || ringer.ring(5)));
        let asleep = door.park();
        for producer in producers {
            producer.join().unwrap();
        }
        assert!(!asleep || door.is_called(), "asleep without a wake-up");
    });
}

/// The words by which one side of a link informs the other.
#[derive(Default)]
struct Side {
    polled: AtomicU32,
    wants_space: AtomicU32,
    /// The word of the other side: the number of messages that it has sent and confirmed.
    confirmed: AtomicU32,
}

/// A device with one link: an end of each of its two rings.
struct Device {
    door: Door,
    sleep_level: SleepLevel,
    side: Arc<Side>,
    /// The link is hot.
    hot: bool,
    rx: Rx,
    tx: Tx,
    /// A send found no room.
    waiting: bool,
    taken: Vec<u8>,
    confirmed: u32,
}

/// The slot of the link.
const SLOT: u32 = 7;

/// A ring of `lines` lines.
fn ring(lines: usize) -> (Tx, Rx) {
    let lines = lines::Lines::new(lines);
    (Tx::new(lines.clone(), segment::Role::Initiator).unwrap(), Rx::new(lines, segment::Role::Acceptor).unwrap())
}

impl Device {
    /// Makes a device with rings of four lines, and the other side's ends of the rings.
    fn new() -> (Self, Tx, Rx) {
        let ((far, rx), (tx, other)) = (ring(4), ring(4));
        let side = Arc::new(Side { polled: AtomicU32::new(1), ..Side::default() });
        let device = Self {
            door: Door::new(),
            sleep_level: SleepLevel::Awake,
            side,
            hot: true,
            rx,
            tx,
            waiting: false,
            taken: Vec::new(),
            confirmed: 0,
        };
        (device, far, other)
    }

    /// Models `Link::send` and `Shm::refused`.
    fn send(&mut self, byte: u8) -> bool {
        let sent = self.tx.send(&[byte], &[]).is_ok();
        self.waiting |= !sent;
        sent
    }

    /// Models `Link::poll`, without the report of released space.
    fn poll_link(&mut self) {
        let confirmed = self.side.confirmed.load(Ordering::Acquire);
        while let Next::Line(bytes) = self.rx.peek_line() {
            self.taken.extend_from_slice(bytes);
            self.rx.advance(1);
        }
        self.confirmed = confirmed;
        assert!(self.taken.len() >= confirmed as usize, "a confirmation overtook a message");
    }

    /// Models `Link::ready`.
    fn ready(&self) -> bool {
        self.rx.ready() || self.side.confirmed.load(Ordering::Relaxed) != self.confirmed
    }

    /// Models `Shm::poll`, with a check of the sockets.
    fn poll(&mut self) {
        if self.sleep_level == SleepLevel::Parked {
            sleep_protocol::wake(self);
        }
        if self.hot {
            self.poll_link();
        }
        if self.door.page.is_rung() {
            let mut summary = self.door.page.take_summary();
            while summary != 0 {
                let word = summary.trailing_zeros();
                summary &= summary - 1;
                if self.door.page.take_word(word) & 1 << (SLOT % 64) != 0 {
                    self.poll_link();
                }
            }
        }
        self.door.read_wake_ups();
    }

    /// Models `Shm::arm`.
    fn arm(&mut self) -> bool {
        let parked = sleep_protocol::park(self);
        if parked {
            self.sleep_level = SleepLevel::Armed;
        }
        parked
    }

    /// Sleeps, if parking succeeds.
    fn sleep(&mut self) {
        if sleep_protocol::park(self) {
            self.door.wakes.wait();
        }
    }
}

impl Sleeper for Device {
    fn sleep_level(&mut self) -> &mut SleepLevel {
        &mut self.sleep_level
    }

    fn is_rung(&self) -> bool {
        self.door.page.is_rung()
    }

    fn park_door(&mut self) -> bool {
        self.door.park()
    }

    fn is_door_parked(&self) -> bool {
        self.door.sleep_page.is_parked()
    }

    fn wake_door(&self) {
        self.door.sleep_page.wake();
    }

    fn set_hot_polled(&self, polled: bool) {
        if self.hot {
            sleep_protocol::set(&self.side.polled, polled);
        }
    }

    fn set_waiting_wants(&self, wants: bool) {
        if self.waiting {
            sleep_protocol::set(&self.side.wants_space, wants);
        }
    }

    fn may_wait_for_space(&self) -> bool {
        self.waiting
    }

    fn fence(&self) -> bool {
        // The first fence is for peers that fence, the second for the others (`Barriers::fence`).
        fence(Ordering::SeqCst);
        sync::heavy_fence();
        true
    }

    fn has_work(&mut self) -> bool {
        if self.hot && self.ready() {
            return true;
        }
        let freed = self.waiting && self.tx.has_space(1);
        if freed {
            self.waiting = false;
            sleep_protocol::set(&self.side.wants_space, false);
        }
        // The check of the sockets takes wake-ups off them.
        let called = self.door.is_called();
        self.door.read_wake_ups();
        freed || called
    }

    fn check_sockets_soon(&mut self) {}
}

/// The other side of a device's link: sends `messages` messages, and rings if the device does not check the
/// ring. Models `Link::notify_peer`.
fn sends(mut tx: Tx, device: &Device, messages: u8, must_fence: bool) -> loom::thread::JoinHandle<()> {
    let (ringer, side) = (device.door.ringer(), Arc::clone(&device.side));
    loom::thread::spawn(move || {
        for n in 0..messages {
            tx.send(&[n], &[]).unwrap();
            if !sleep_protocol::is_set(&side.polled, must_fence) {
                ringer.ring(SLOT);
            }
        }
    })
}

/// The other side of a device's link: takes `messages` messages, and reports space. Models `Link::poll`.
fn takes(mut rx: Rx, device: &Device, messages: u8, must_fence: bool) -> loom::thread::JoinHandle<()> {
    let (ringer, side) = (device.door.ringer(), Arc::clone(&device.side));
    loom::thread::spawn(move || {
        for n in 0..messages {
            assert!(matches!(rx.peek_line(), Next::Line(line) if line == [n]));
            rx.advance(1);
            rx.release();
            if rx.take_released() && sleep_protocol::is_set(&side.wants_space, must_fence) {
                ringer.ring(SLOT);
            }
        }
    })
}

/// Runs a model with a peer that needs no fence of its own, and with one that does.
fn check_fences(model: impl Fn(bool) + Sync + Send + 'static) {
    let model = Arc::new(model);
    for must_fence in [false, true] {
        let model = Arc::clone(&model);
        check(3, move || model(must_fence));
    }
}

/// A device that polls and sleeps in turn gets all messages. The checker reports a lost wake-up as a
/// deadlock.
#[test]
fn a_device_that_sleeps_loses_nothing() {
    check_fences(|must_fence| {
        let (mut device, tx, _rx) = Device::new();
        let producer = sends(tx, &device, 2, must_fence);
        while device.taken.len() < 2 {
            device.sleep();
            device.poll();
        }
        producer.join().unwrap();
        assert_eq!(device.taken, [0, 1]);
    });
}

/// A device that sleeps gets the confirmation, after the messages that were sent before it. Models `Link::confirm`.
#[test]
fn a_device_that_sleeps_loses_no_confirmation() {
    check_fences(|must_fence| {
        let (mut device, mut tx, _rx) = Device::new();
        let (ringer, side) = (device.door.ringer(), Arc::clone(&device.side));
        let peer = loom::thread::spawn(move || {
            tx.send(&[0], &[]).unwrap();
            side.confirmed.store(1, Ordering::Release);
            if !sleep_protocol::is_set(&side.polled, must_fence) {
                ringer.ring(SLOT);
            }
        });
        while device.confirmed == 0 {
            device.sleep();
            device.poll();
        }
        peer.join().unwrap();
    });
}

/// A device that makes its link cold gets all messages. Models `Shm::make_hot_room`.
#[test]
fn a_link_that_becomes_cold_loses_no_record() {
    check_fences(|must_fence| {
        let (mut device, tx, _rx) = Device::new();
        let producer = sends(tx, &device, 2, must_fence);
        assert!(sleep_protocol::stop_polling(&device.side.polled, true, || device.fence()));
        device.hot = false;
        device.poll_link();
        while device.taken.len() < 2 {
            device.sleep();
            device.poll();
        }
        producer.join().unwrap();
    });
}

/// An armed device: peers have known since an earlier fence that its rings are not checked. A poll takes
/// messages, and the sleep is announced again without such a fence.
#[test]
fn a_rearmed_device_loses_no_wake_up() {
    check_fences(|must_fence| {
        let (mut device, tx, _rx) = Device::new();
        assert!(device.arm());
        let producer = sends(tx, &device, 2, must_fence);
        // A poll of the client. Afterwards the client checks whether the sleeper will be woken for later
        // messages (`Shm::is_armed`). If not, it arms the device again or wakes the sleeper.
        device.poll();
        let asleep = device.door.sleep_page.is_parked() || device.arm();
        producer.join().unwrap();
        assert!(
            !asleep || device.taken.len() == 2 || device.door.is_called(),
            "asleep with an untaken message, without a wake-up"
        );
        // The sleeper will also be woken for later messages.
        let called = device.door.is_called();
        device.door.ringer().ring(SLOT);
        assert!(!asleep || called || device.door.is_called());
    });
}

/// Sends into a full ring, and sleeps until there is room.
fn waits_for_space(before: fn(&mut Device)) {
    check_fences(move |must_fence| {
        let (mut device, _tx, rx) = Device::new();
        before(&mut device);
        assert!((0..3).all(|byte| device.send(byte)) && !device.send(3));
        let consumer = takes(rx, &device, 3, must_fence);
        while !device.send(3) {
            device.sleep();
            device.poll();
        }
        consumer.join().unwrap();
    });
}

#[test]
fn a_parked_device_does_not_sleep_for_available_space() {
    waits_for_space(|_| ());
}

#[test]
fn an_armed_device_does_not_sleep_for_available_space() {
    waits_for_space(|device| assert!(device.arm()));
}
