//! The ring and the doorbell page of the shared-memory device under a model checker, which tries every
//! interleaving (up to a bound of preemptions) and every value that a load may return under the C11 memory model.
//!
//! The files under test are included as they ship; only the memory below them is exchanged: atomics of the checker's, and
//! cells that report a data race. The asymmetric fence is modelled by what it stands for, a full fence on both sides.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::arc_with_non_send_sync)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::sync::atomic::{AtomicU32, Ordering, fence};

/// What the files under test import from their neighbours.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering, fence};
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
    //! A ring's memory for the checker: header words are atomics, everything else must not race.

    use std::sync::Arc;

    use loom::cell::UnsafeCell;
    use weft_engine::mem::{self, Iov};

    use super::segment::{LINE_BYTES, Role};
    use super::sync::{AtomicU64, Ordering};

    struct Line {
        word: AtomicU64,
        rest: UnsafeCell<[u8; 56]>,
    }

    #[derive(Clone)]
    pub(super) struct Lines(Arc<(Vec<Line>, [AtomicU64; 2])>);

    impl Lines {
        pub(super) fn new(count: usize) -> Self {
            let line = || Line { word: AtomicU64::new(0), rest: UnsafeCell::new([0; 56]) };
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

        pub(super) fn word(&self, at: u64, skip: usize) -> &AtomicU64 {
            assert_eq!(skip, 0, "pushes are not modelled");
            &self.line(at, 0).word
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
                    // SAFETY: the checker reports it if anything else has access.
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
                    // SAFETY: the checker reports it if anybody writes.
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

use page::{Bed, Page};
use ring::{Record, Rx, Tx};

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

/// Sends messages of these lengths through a ring of `lines` lines, and takes them.
fn ring_model(lines: usize, lengths: &'static [usize]) {
    check(move || {
        let lines = lines::Lines::new(lines);
        let mut tx = Tx::new(lines.clone(), segment::Role::Initiator).unwrap();
        let mut rx = Rx::new(lines, segment::Role::Acceptor).unwrap();
        let producer = loom::thread::spawn(move || {
            for (n, &len) in lengths.iter().enumerate() {
                let bytes = vec![n as u8 + 1; len];
                while tx.send(&bytes, &[]).is_err() {
                    assert!(tx.broken().is_none());
                    loom::thread::yield_now();
                }
            }
        });
        for (n, &len) in lengths.iter().enumerate() {
            let need = loop {
                if let Some(bytes) = rx.peek_line() {
                    assert_eq!(bytes, vec![n as u8 + 1; len]);
                    break 1;
                }
                if let Some((record, need)) = rx.peek().unwrap() {
                    let Record::Message(bytes) = record else { unreachable!() };
                    assert_eq!(bytes, vec![n as u8 + 1; len]);
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
    ring_model(4, &[1, 2, 1, 2, 1]);
}

#[test]
fn long_messages_pass_a_ring_and_its_end() {
    ring_model(8, &[1, 60, 1, 60, 60]);
}

/// One consumer's round of listening: takes the bits, then looks at the cells.
fn listen(page: &Page, cells: &[AtomicU32]) -> u32 {
    if !page.rung() {
        return 0;
    }
    let mut summary = page.take_summary();
    while summary != 0 {
        let _ = page.take_word(summary.trailing_zeros());
        summary &= summary - 1;
    }
    cells.iter().map(|cell| cell.load(Ordering::Acquire)).sum()
}

/// One producer's end of a doorbell. `wakes`: bytes on the consumer's sockets.
struct Ringer {
    page: Arc<Page>,
    bed: Arc<Bed>,
    wakes: Arc<AtomicU32>,
    ended: u64,
}

impl Ringer {
    fn ring(&mut self, slot: u32) {
        self.page.ring(slot);
        if let Some(sleep) = self.bed.to_end(self.ended) {
            self.wakes.fetch_add(1, Ordering::AcqRel);
            self.ended = sleep;
        }
    }
}

/// The consumer's end.
struct Door {
    page: Arc<Page>,
    bed: Arc<Bed>,
    wakes: Arc<AtomicU32>,
}

impl Door {
    fn new() -> Self {
        Self { page: Arc::new(Page::new()), bed: Arc::new(Bed::new()), wakes: Arc::new(AtomicU32::new(0)) }
    }

    fn ringer(&self) -> Ringer {
        Ringer { page: self.page.clone(), bed: self.bed.clone(), wakes: self.wakes.clone(), ended: 0 }
    }

    fn park(&self, number: u64) -> bool {
        self.bed.park(number, &self.page)
    }

    /// Takes wake-ups off the sockets. (`Shm::hear`.)
    fn hear(&self) {
        // A system call, on either side.
        if self.wakes.swap(0, Ordering::AcqRel) > 0 {
            self.bed.unpark();
        }
    }

    /// Whether a sleep ends at once.
    fn called(&self) -> bool {
        self.wakes.load(Ordering::Relaxed) > 0
    }
}

/// What two producers have published was seen by the consumer's round, or the page says that there is something.
#[test]
fn bits_and_summary_lose_nothing() {
    for slots in [[5, 5], [5, 6], [5, 70]] {
        check(move || {
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
            assert!(seen == 2 || page.rung());
            // And what it says is true: the next round sees all.
            assert!(seen == 2 || listen(&page, &cells[..]) == 2);
        });
    }
}

/// A consumer that parks is woken by whoever publishes, once by each.
#[test]
fn a_sleeper_is_woken() {
    for slots in [[5, 5], [5, 70]] {
        check(move || {
            let door = Door::new();
            let producers = [0, 1].map(|n: usize| {
                let mut ringer = door.ringer();
                loom::thread::spawn(move || ringer.ring(slots[n]))
            });
            let asleep = door.park(1);
            for producer in producers {
                producer.join().unwrap();
            }
            assert!(door.wakes.load(Ordering::Relaxed) <= 2);
            assert!(!asleep || door.called(), "asleep, and nobody rings");
        });
    }
}

/// One producer's wake-up does not arrive (its link was closed a moment ago): it takes nothing away from the other's.
#[test]
fn a_wake_up_that_fails_leaves_the_others() {
    check(|| {
        let door = Door::new();
        let mut failing = door.ringer();
        failing.wakes = Arc::new(AtomicU32::new(0));
        let producers = [failing, door.ringer()].map(|mut ringer| loom::thread::spawn(move || ringer.ring(5)));
        let asleep = door.park(1);
        for producer in producers {
            producer.join().unwrap();
        }
        assert!(!asleep || door.called(), "asleep, and nobody rings");
    });
}

/// A device that is held: peers have known since an earlier fence that its rings are not looked at. A poll takes what there is, and
/// the announcement to sleep is made again without such a fence. (`Shm::hold`.)
#[test]
fn holding_anew_loses_nothing() {
    check(|| {
        let door = Door::new();
        let ring = Arc::new([AtomicU32::new(0)]);
        assert!(door.park(1));
        let producer = {
            let (mut ringer, ring) = (door.ringer(), ring.clone());
            loom::thread::spawn(move || {
                for n in 1..3 {
                    ring[0].store(n, Ordering::Release);
                    ringer.ring(7);
                }
            })
        };
        // A poll of the client's.
        let mut seen = listen(&door.page, &ring[..]);
        door.hear();
        // Before it leaves it asks whether the sleeper will be woken for what comes from now on; if not, it calls it.
        let mut asleep = door.bed.parked();
        if !asleep {
            asleep = door.park(2);
            seen = ring[0].load(Ordering::Acquire);
            door.hear();
            asleep = asleep && !door.page.rung() && (door.bed.parked() || door.park(3));
        }
        producer.join().unwrap();
        assert!(!asleep || seen == 2 || door.called(), "asleep with something untaken, and nobody rings");
        // And it will be woken for what comes later.
        let called = door.called();
        door.ringer().ring(7);
        assert!(!asleep || called || door.called());
    });
}

/// The whole way to sleep: stop polling the ring, announce, fence, look once more. (`Shm::park`, `Link::announce`.)
#[test]
fn going_cold_and_to_sleep_loses_nothing() {
    check(|| {
        let door = Door::new();
        let (ring, polled) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(1)));
        let producer = {
            let (mut ringer, ring, polled) = (door.ringer(), ring.clone(), polled.clone());
            loom::thread::spawn(move || {
                for n in 1..3 {
                    ring.store(n, Ordering::Release);
                    fence(Ordering::SeqCst);
                    if polled.load(Ordering::Relaxed) == 0 {
                        ringer.ring(7);
                    }
                }
            })
        };
        polled.store(0, Ordering::Relaxed);
        let announced = door.park(1);
        fence(Ordering::SeqCst);
        let seen = ring.load(Ordering::Acquire);
        let asleep = announced && seen == 0;
        producer.join().unwrap();
        assert!(!asleep || door.called(), "asleep, and nobody rings");
        // Awake: everything was seen at the last look, or the bit is there.
        assert!(asleep || seen == 2 || door.page.rung());
    });
}
