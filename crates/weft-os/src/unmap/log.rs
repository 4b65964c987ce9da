//! The ring of reports, from the thread that reads them to the readers, without a lock.
//!
//! Place in the data flow: the thread of `unmap.rs` → [`Log`] → [`super::UnmapWatch::unmapped`]. The ring is
//! a file of its own so that a model checker can try every interleaving (`tests/loom_unmap.rs`).
//!
//! The size is fixed. A reader whose next report was overwritten assumes that everything was unmapped. A
//! report is in the ring before a caller can depend on it. The thread raises `begun` before it reads from the
//! kernel, after which the unmapping call may return, and readers wait until `done` has followed.

use weft_engine::nic::Span;

use super::CAPACITY;
use super::sync::{AtomicU64, Ordering, yield_now};

/// The report for a reader whose next report was overwritten.
pub(super) const ALL_MEMORY: Span = Span { start: 0, len: u64::MAX };

/// All reports of the process, of which the newest [`CAPACITY`] are stored.
pub(super) struct Log {
    begun: AtomicU64,
    done: AtomicU64,
    count: AtomicU64,
    spans: [[AtomicU64; 2]; CAPACITY],
}

impl Log {
    pub(super) fn new() -> Self {
        let spans = std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]);
        Self { begun: AtomicU64::new(0), done: AtomicU64::new(0), count: AtomicU64::new(0), spans }
    }

    /// Calls `ask`, which reads from the kernel and writes the reports. Only the thread calls this.
    pub(super) fn round(&self, ask: impl FnOnce()) {
        let begun = self.begun.load(Ordering::Relaxed) + 1;
        self.begun.store(begun, Ordering::SeqCst);
        ask();
        self.done.store(begun, Ordering::SeqCst);
    }

    /// Appends a report. Called within a round.
    pub(super) fn write(&self, span: Span) {
        let count = self.count.load(Ordering::Relaxed);
        let [start, len] = &self.spans[slot(count)];
        start.store(span.start, Ordering::SeqCst);
        len.store(span.len, Ordering::SeqCst);
        self.count.store(count + 1, Ordering::SeqCst);
    }

    /// The number of reports written so far.
    pub(super) fn count(&self) -> u64 {
        self.count.load(Ordering::SeqCst)
    }

    /// The report at position `read`, which is advanced.
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
        // At this distance the thread may already be overwriting the slot.
        if count - *read >= CAPACITY as u64 {
            *read = count;
            return Some(ALL_MEMORY);
        }
        *read += 1;
        Some(span)
    }
}

/// The slot of report number `count`.
fn slot(count: u64) -> usize {
    usize::try_from(count % CAPACITY as u64).unwrap_or(0)
}
