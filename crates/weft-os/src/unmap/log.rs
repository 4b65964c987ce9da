//! The reports of what was unmapped, from the thread that reads them to whoever asks, without a lock.
//!
//! Place in the data flow: the thread of `unmap.rs` → [`Log`] → [`super::UnmapWatch::unmapped`]. It is a file
//! of its own so that a model checker can try every interleaving (`tests/loom_unmap.rs`).
//!
//! A ring of fixed size; who has not read a report before it is overwritten takes it that everything was
//! unmapped. A report is in the ring before anybody can rely on it: `begun` is raised before the system is
//! asked for reports, whereupon the unmapping call may return, and readers wait until `done` has followed.

use weft_engine::nic::Span;

use super::KEPT;
use super::sync::{AtomicU64, Ordering, yield_now};

/// What a reader hears who was too slow.
pub(super) const EVERYTHING: Span = Span { start: 0, len: u64::MAX };

/// The reports of the process so far.
pub(super) struct Log {
    begun: AtomicU64,
    done: AtomicU64,
    count: AtomicU64,
    spans: [[AtomicU64; 2]; KEPT],
}

impl Log {
    pub(super) fn new() -> Self {
        let spans = std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]);
        Self { begun: AtomicU64::new(0), done: AtomicU64::new(0), count: AtomicU64::new(0), spans }
    }

    /// Only the thread asks the system for reports, in here, and writes them.
    pub(super) fn round(&self, ask: impl FnOnce()) {
        let begun = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(begun, Ordering::SeqCst);
        ask();
        self.done.store(begun, Ordering::SeqCst);
    }

    /// Within a round.
    pub(super) fn write(&self, span: Span) {
        let count = self.count.load(Ordering::Relaxed);
        let [start, len] = &self.spans[slot(count)];
        start.store(span.start, Ordering::SeqCst);
        len.store(span.len, Ordering::SeqCst);
        self.count.store(count + 1, Ordering::SeqCst);
    }

    /// How many there were so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The next report behind `read` of them.
    pub(super) fn next(&self, read: &mut u64) -> Option<Span> {
        let begun = self.begun.load(Ordering::SeqCst);
        while self.done.load(Ordering::SeqCst) < begun {
            yield_now();
        }
        if *read == self.count.load(Ordering::SeqCst) {
            return None;
        }
        let [start, len] = &self.spans[slot(*read)];
        let span = Span { start: start.load(Ordering::SeqCst), len: len.load(Ordering::SeqCst) };
        let count = self.count.load(Ordering::SeqCst);
        // The slot is written anew while the count is so far ahead, or further.
        if count - *read >= KEPT as u64 {
            *read = count;
            return Some(EVERYTHING);
        }
        *read += 1;
        Some(span)
    }
}

/// Where report number `count` stands.
fn slot(count: u64) -> usize {
    usize::try_from(count % KEPT as u64).unwrap_or(0)
}
