//! The reader of each queue or counter: a thread that reads several in turn must not nap on one and miss the others.
//!
//! Place in the data flow: each read leaves a mark of its thread ([`Presence::note_read`],
//! [`Presence::note_empty_read`]), at the cost of two instructions. Before a nap the thread checks whether other queues
//! carry its mark ([`Presence::reader_reads_nothing_else`]). The devices of the queue's endpoints end the nap, so other
//! queues of the same endpoints do not count.
//!
//! Marks are hints. A mark that is lost, or that a thread has left before it ended, costs one nap too many or too few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// All queues and counters of the process.
static PRESENT: Mutex<Vec<Arc<Presence>>> = Mutex::new(Vec::new());
/// No thread.
const NO_THREAD: usize = 0;

/// The public record of a queue or counter.
#[derive(Default)]
pub(super) struct Presence {
    /// Number of successive reads that found nothing.
    idle: AtomicU32,
    /// The thread of the last read that found nothing, until a check takes the mark.
    reader: AtomicUsize,
    /// The thread of the last read that found something, until a check takes the mark.
    taker: AtomicUsize,
    /// The addresses of the endpoints that reads drive. Locked after `PRESENT`.
    cells: Mutex<SmallVec<[usize; 4]>>,
}

impl Presence {
    /// Registers a new queue or counter.
    pub(super) fn enter() -> Arc<Self> {
        let presence = Arc::new(Self::default());
        PRESENT.lock().push(Arc::clone(&presence));
        presence
    }

    /// The queue or counter is closed.
    pub(super) fn leave(self: &Arc<Self>) {
        PRESENT.lock().retain(|known| !Arc::ptr_eq(known, self));
    }

    /// Reads drive one more endpoint.
    pub(super) fn add_endpoint(&self, cell: usize) {
        self.cells.lock().push(cell);
    }

    /// Reads drive one endpoint less.
    pub(super) fn remove_endpoint(&self, cell: usize) {
        self.cells.lock().retain(|known| *known != cell);
    }

    /// A read has found something.
    #[inline]
    pub(super) fn note_read(&self) {
        self.taker.store(this_thread(), Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
    }

    /// A read has found nothing after a round of progress that returned `done`. Returns the number of
    /// successive reads without an entry or progress.
    #[inline]
    pub(super) fn note_empty_read(&self, done: usize) -> u32 {
        self.reader.store(this_thread(), Ordering::Relaxed);
        let idle = if done > 0 { 0 } else { self.idle.load(Ordering::Relaxed).wrapping_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
        idle
    }

    /// Counts a number of reads that were not made.
    pub(super) fn skip_reads(&self, reads: u32) -> u32 {
        let idle = self.idle.load(Ordering::Relaxed).wrapping_add(reads);
        self.idle.store(idle, Ordering::Relaxed);
        idle
    }

    /// Whether the last entry was taken by another thread. That thread may need what a sleep of this one would hold.
    pub(super) fn is_shared(&self) -> bool {
        ![NO_THREAD, this_thread()].contains(&self.taker.load(Ordering::Relaxed))
    }

    /// Whether this thread finds something in another queue or counter.
    pub(super) fn reader_is_busy_elsewhere(self: &Arc<Self>) -> bool {
        let me = this_thread();
        let is_busy = |other: &Self| {
            other.reader.load(Ordering::Relaxed) == me && other.idle.load(Ordering::Relaxed) < super::SPINS
        };
        PRESENT.lock().iter().any(|other| !Arc::ptr_eq(other, self) && is_busy(other))
    }

    /// Whether this thread, since its last check, has read no queue or counter of other endpoints.
    #[cold]
    pub(super) fn reader_reads_nothing_else(self: &Arc<Self>) -> bool {
        let mine = self.cells.lock().clone();
        let me = this_thread();
        let mut alone = true;
        for other in PRESENT.lock().iter().filter(|other| !Arc::ptr_eq(other, self)) {
            let marks = [&other.reader, &other.taker].map(|mark| mark.load(Ordering::Relaxed) == me);
            if marks[0] || marks[1] {
                other.reader.store(NO_THREAD, Ordering::Relaxed);
                other.taker.store(NO_THREAD, Ordering::Relaxed);
                alone &= other.cells.lock().iter().all(|cell| mine.contains(cell));
            }
        }
        alone
    }
}

/// The number of successive reads in vain of the queues and counters that this thread reads: the least of them.
pub(crate) fn idle_reads() -> u64 {
    let me = this_thread();
    let present = PRESENT.lock();
    let mine =
        present.iter().filter(|one| [&one.reader, &one.taker].iter().any(|mark| mark.load(Ordering::Relaxed) == me));
    mine.map(|one| one.idle.load(Ordering::Relaxed).into()).min().unwrap_or(0)
}

/// The thread pointer, a number that is unique among existing threads. Reading it takes one instruction. A thread-local
/// variable takes a call in a library that is loaded at run time.
#[inline(always)]
pub(crate) fn this_thread() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        let pointer;
        // SAFETY: on x86-64 Linux the first word of a thread's control block, at fs:0, is the block's own
        // address (ELF TLS, variant II).
        unsafe {
            std::arch::asm!("mov {}, fs:[0]", out(reg) pointer, options(pure, readonly, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(target_arch = "aarch64")]
    {
        let pointer;
        // SAFETY: the instruction only reads the register that holds the thread pointer.
        unsafe {
            std::arch::asm!("mrs {}, tpidr_el0", out(reg) pointer, options(pure, nomem, nostack, preserves_flags));
        }
        pointer
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        thread_local!(static HERE: u8 = const { 0 });
        HERE.with(|here| std::ptr::from_ref(here).addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thread_has_its_own_number() {
        let mine = this_thread();
        let other = std::thread::spawn(this_thread).join().unwrap_or(mine);
        assert!(mine != other && mine == this_thread() && other != NO_THREAD);
    }

    #[test]
    fn a_thread_finds_the_other_queues_that_it_reads() {
        let [a, b, other_of_a] = [(); 3].map(|()| Presence::enter());
        for (presence, cell) in [(&a, 1), (&b, 2), (&other_of_a, 1)] {
            presence.add_endpoint(cell);
        }
        a.note_empty_read(0);
        assert!(a.reader_reads_nothing_else());
        // Another queue of the same endpoint is served by the same devices.
        other_of_a.note_empty_read(0);
        assert!(a.reader_reads_nothing_else());
        for read in [Presence::note_read as fn(&Presence), |b| assert_eq!(b.note_empty_read(1), 0)] {
            read(&b);
            assert!(!a.reader_reads_nothing_else());
            assert!(a.reader_reads_nothing_else(), "it was not read since the last check");
            let elsewhere = Arc::clone(&b);
            assert!(std::thread::spawn(move || read(&elsewhere)).join().is_ok());
            assert!(a.reader_reads_nothing_else(), "another thread has read it");
        }
        a.note_empty_read(0);
        assert!(!b.reader_reads_nothing_else());
        // Both drive one endpoint, and only the other drives a second one.
        b.note_read();
        a.add_endpoint(2);
        assert!(a.reader_reads_nothing_else());
        b.note_read();
        a.remove_endpoint(2);
        assert!(!a.reader_reads_nothing_else());
        b.note_read();
        b.leave();
        assert!(a.reader_reads_nothing_else(), "a closed queue has no reader");
        a.leave();
        other_of_a.leave();
    }

    #[test]
    fn another_reader_and_another_queue_are_noticed() {
        let [a, b] = [(); 2].map(|()| Presence::enter());
        assert!(!a.is_shared());
        a.note_read();
        assert!(!a.is_shared());
        let there = Arc::clone(&a);
        assert!(std::thread::spawn(move || there.note_read()).join().is_ok());
        assert!(a.is_shared());
        b.note_empty_read(0);
        assert!(a.reader_is_busy_elsewhere() && !b.reader_is_busy_elsewhere());
        assert_eq!(idle_reads(), 1);
        assert_eq!(b.skip_reads(super::super::SPINS), 1 + super::super::SPINS);
        assert!(!a.reader_is_busy_elsewhere());
        a.leave();
        b.leave();
    }

    #[test]
    fn successive_empty_reads_are_counted() {
        let presence = Presence::default();
        assert_eq!([0, 0, 3, 0].map(|done| presence.note_empty_read(done)), [1, 2, 0, 1]);
        presence.note_read();
        assert_eq!(presence.note_empty_read(0), 1);
    }
}
