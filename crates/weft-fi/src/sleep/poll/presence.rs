//! Who reads a queue or counter: so that a thread which reads several in turn is not deaf to the others while
//! it naps on one.
//!
//! Place in the data flow: each read leaves its thread's mark ([`Presence::read_well`],
//! [`Presence::read_in_vain`]), two instructions; before a nap the thread looks whether its mark is anywhere
//! else ([`Presence::is_all_that_is_read`]). A nap ends when the devices of the queue's endpoints stir, so
//! other queues of the same endpoints do not count.
//!
//! Marks are hints: one that is lost, or left by a thread that has ended, costs one nap too many or too few.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use parking_lot::Mutex;
use smallvec::SmallVec;

/// All queues and counters of the process.
static PRESENT: Mutex<Vec<Arc<Presence>>> = Mutex::new(Vec::new());
/// No thread.
const NOBODY: usize = 0;

/// What others may know of a queue or counter.
#[derive(Default)]
pub(super) struct Presence {
    /// Reads in a row that found nothing.
    idle: AtomicU32,
    /// The thread that has read last, unless that was asked for since.
    reader: AtomicUsize,
    /// The endpoints that reads drive, by address. Locked after `PRESENT`.
    cells: Mutex<SmallVec<[usize; 4]>>,
}

impl Presence {
    /// Of a new queue or counter.
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
    pub(super) fn drives(&self, cell: usize) {
        self.cells.lock().push(cell);
    }

    /// Reads drive one less.
    pub(super) fn drives_no_more(&self, cell: usize) {
        self.cells.lock().retain(|known| *known != cell);
    }

    /// A read has found something.
    #[inline]
    pub(super) fn read_well(&self) {
        self.reader.store(this_thread(), Ordering::Relaxed);
        self.idle.store(0, Ordering::Relaxed);
    }

    /// A read has found nothing after a round in which `done` things happened. Returns how often that has
    /// been so in a row.
    #[inline]
    pub(super) fn read_in_vain(&self, done: usize) -> u32 {
        self.reader.store(this_thread(), Ordering::Relaxed);
        let idle = if done > 0 { 0 } else { self.idle.load(Ordering::Relaxed).wrapping_add(1) };
        self.idle.store(idle, Ordering::Relaxed);
        idle
    }

    /// Whether this thread has read nothing since it last asked but what the devices of these endpoints fill.
    #[cold]
    pub(super) fn is_all_that_is_read(self: &Arc<Self>) -> bool {
        let mine = self.cells.lock().clone();
        let me = this_thread();
        let mut alone = true;
        for other in PRESENT.lock().iter().filter(|other| !Arc::ptr_eq(other, self)) {
            if other.reader.load(Ordering::Relaxed) == me {
                other.reader.store(NOBODY, Ordering::Relaxed);
                alone &= other.cells.lock().iter().all(|cell| mine.contains(cell));
            }
        }
        alone
    }
}

/// A number of this thread's that no other living thread has: its thread pointer, which takes one
/// instruction. (A variable of the thread's takes a call in a library that is loaded late.)
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
        // SAFETY: reads the register that holds the thread pointer.
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
    fn threads_have_numbers_of_their_own() {
        let mine = this_thread();
        let other = std::thread::spawn(this_thread).join().unwrap_or(mine);
        assert!(mine != other && mine == this_thread() && other != NOBODY);
    }

    #[test]
    fn a_thread_knows_what_else_it_reads() {
        let [a, b, other_of_a] = [(); 3].map(|()| Presence::enter());
        for (presence, cell) in [(&a, 1), (&b, 2), (&other_of_a, 1)] {
            presence.drives(cell);
        }
        a.read_in_vain(0);
        assert!(a.is_all_that_is_read());
        // Another queue of the same endpoint is served by the same devices.
        other_of_a.read_in_vain(0);
        assert!(a.is_all_that_is_read());
        for read in [Presence::read_well as fn(&Presence), |b| assert_eq!(b.read_in_vain(1), 0)] {
            read(&b);
            assert!(!a.is_all_that_is_read());
            assert!(a.is_all_that_is_read(), "it was read before the last rest, and not since");
            let elsewhere = Arc::clone(&b);
            assert!(std::thread::spawn(move || read(&elsewhere)).join().is_ok());
            assert!(a.is_all_that_is_read(), "by somebody else");
        }
        a.read_in_vain(0);
        assert!(!b.is_all_that_is_read());
        // An endpoint that both drive, and one that only the other does.
        b.read_well();
        a.drives(2);
        assert!(a.is_all_that_is_read());
        b.read_well();
        a.drives_no_more(2);
        assert!(!a.is_all_that_is_read());
        b.read_well();
        b.leave();
        assert!(a.is_all_that_is_read(), "a closed queue is read by nobody");
        a.leave();
        other_of_a.leave();
    }

    #[test]
    fn reads_in_vain_are_counted_in_a_row() {
        let presence = Presence::default();
        assert_eq!([0, 0, 3, 0].map(|done| presence.read_in_vain(done)), [1, 2, 0, 1]);
        presence.read_well();
        assert_eq!(presence.read_in_vain(0), 1);
    }
}
