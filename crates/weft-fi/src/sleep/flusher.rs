//! The flusher: a thread that writes kept messages when their client makes no more calls.
//!
//! Place in the data flow: TCP gathers short messages that follow one another. It writes them together, at the next
//! round of progress at the latest. A client whose sends are complete need not make such a round: it may compute, or
//! wait by other means for the effect of its message. The device therefore notes that it keeps messages
//! ([`weft_nic::Unsent`]). This thread, one for the process, checks after each [`TICK`] whether a message was added. If
//! not, it enters the endpoint like a control call and has the device write.
//!
//! The first kept message starts the thread. The thread sleeps while no message is kept, and ends when the
//! last endpoint is closed. It makes no progress: arrivals wait for the client's next call. If the system
//! refuses the thread, devices keep nothing, and write each message at once. The start is tried again after
//! [`RETRY`].
//!
//! A forked child gets a flusher of its own with its first endpoint. Another thread of the parent may have held the
//! locks of the parent's flusher at the fork, and they stay locked in the child.
//!
//! Order of locks: the members, then an endpoint's engine, then the handle.

mod thread_state;

use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::process::{Pid, getpid};
use weft_nic::Unsent;
use weft_os::Worker;

use crate::endpoint::cell::CellRef;
use crate::sleep::flusher::thread_state::ThreadState;

/// The interval between two looks at the endpoints. A kept message waits for one to two ticks. The ticks take less than
/// 1 % of a core.
const TICK: Duration = Duration::from_millis(1);
/// Longest wait for a lock at the end of the program. A round of the thread takes much less.
const STUCK: Duration = Duration::from_millis(100);
/// Ticks without a kept message before the thread parks. Each tick interrupts a client that polls. After
/// 20 quiet ticks instead of 2, the 99th percentile of half round trips of 8 B was 15 µs instead of 12.
const QUIET_TICKS: u32 = 2;
/// The time between two attempts to start a thread that the system refuses.
const RETRY: Duration = Duration::from_millis(100);

/// The process's flusher, or its parent's until it has one. Never freed.
static FLUSHER: AtomicPtr<Flusher> = AtomicPtr::new(ptr::null_mut());

/// The primitives of `thread_state`, which the model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU8, Ordering, fence};
}

struct Flusher {
    owner: Pid,
    /// The endpoints that the thread looks at.
    members: Mutex<Vec<Member>>,
    /// The last in the order of locks: taken under engines' locks.
    handle: Mutex<Handle>,
    state: ThreadState,
}

/// The thread, or the time of its last refusal.
#[derive(Default)]
struct Handle {
    thread: Option<Worker>,
    refused: Option<Instant>,
}

struct Member {
    cell: CellRef,
    unsent: Arc<Unsent>,
    /// The device's note at the last look.
    seen: Option<u32>,
}

/// Adds an enabled endpoint, if its device may keep messages.
pub(crate) fn join(cell: &CellRef) {
    if let Some(unsent) = cell.unsent() {
        Flusher::ours().members.lock().push(Member { cell: Arc::clone(cell), unsent, seen: None });
    }
}

/// Removes an endpoint, after the last send of its engine. On return the thread does not use the endpoint any more, and
/// has ended if it was the last endpoint.
pub(crate) fn leave(cell: &CellRef) {
    let Some(flusher) = Flusher::found() else { return };
    let mut members = flusher.members.lock();
    members.retain(|member| !Arc::ptr_eq(&member.cell, cell));
    if members.is_empty() {
        flusher.end(&members, &mut flusher.handle.lock());
    }
}

/// Ends the thread at the end of the program, although there may be endpoints. Leaves a thread that is stuck.
pub(crate) fn stop() {
    // The caller may be in a signal handler, which has interrupted the holder of these locks.
    if let Some(flusher) = Flusher::found()
        && let Some(members) = flusher.members.try_lock_for(STUCK)
        && let Some(mut handle) = flusher.handle.try_lock_for(STUCK)
    {
        flusher.end(&members, &mut handle);
    }
}

/// A device keeps a message after it has kept none ([`Unsent::new`]). Returns whether the thread will write it.
pub(crate) fn notify() -> bool {
    // The owner is not checked here: the flusher is this process's if the device's endpoint has joined.
    match Flusher::known() {
        Some(flusher) => flusher.state.notify(|| Flusher::ours().wake()),
        None => Flusher::ours().wake(),
    }
}

impl Flusher {
    /// The flusher of this process, or of a parent.
    #[inline]
    fn known() -> Option<&'static Self> {
        // SAFETY: the pointer is null, or points to a flusher, which is never freed.
        unsafe { FLUSHER.load(Ordering::Acquire).as_ref() }
    }

    /// The flusher of this process, if there is one.
    fn found() -> Option<&'static Self> {
        Self::known().filter(|flusher| flusher.owner == getpid())
    }

    /// The flusher of this process, which is made if necessary. A parent's flusher is leaked: dropping its
    /// endpoints would close them.
    fn ours() -> &'static Self {
        loop {
            let known = FLUSHER.load(Ordering::Acquire);
            if let Some(found) = Self::found() {
                return found;
            }
            let new = Box::into_raw(Box::new(Self::new()));
            if FLUSHER.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: the box was made above and not published: another thread was faster.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn new() -> Self {
        Self { owner: getpid(), members: Mutex::default(), handle: Mutex::default(), state: ThreadState::new() }
    }

    /// Ends the thread. The caller holds the members, so the thread is in no engine, whose holder may wait for the
    /// handle.
    fn end(&self, _members: &[Member], handle: &mut Handle) {
        if let Some(thread) = handle.thread.take() {
            self.state.end();
            thread.unpark();
            thread.join();
            self.state.ended();
        }
    }

    /// Wakes the thread, or starts it. Returns whether it exists.
    #[cold]
    fn wake(&'static self) -> bool {
        let mut handle = self.handle.lock();
        if let Some(thread) = &handle.thread {
            thread.unpark();
            return true;
        }
        if handle.refused.is_some_and(|at| at.elapsed() < RETRY) {
            return false;
        }
        match Worker::spawn("weft-flusher", || self.run()) {
            Ok(thread) => {
                *handle = Handle { thread: Some(thread), refused: None };
                self.state.started();
                true
            }
            Err(error) => {
                if handle.refused.replace(Instant::now()).is_none() {
                    log::warn!("no thread for messages that TCP gathers: each message is written at once: {error}");
                }
                false
            }
        }
    }

    fn run(&self) {
        let mut quiet = 0;
        while !self.state.is_ending() {
            std::thread::park_timeout(TICK);
            // A thread that closes the last endpoint holds the members, and waits for this thread.
            let Some(mut members) = self.members.try_lock() else { continue };
            quiet = if look(&mut members) { 0 } else { quiet + 1 };
            if quiet < QUIET_TICKS {
                continue;
            }
            quiet = 0;
            self.state.park(move || members.iter().any(|member| member.unsent.kept().is_some()));
            self.state.sleep(std::thread::park);
        }
    }
}

/// Looks at every endpoint once. Returns whether any device keeps messages.
fn look(members: &mut [Member]) -> bool {
    let mut busy = false;
    for member in members {
        let kept = member.unsent.kept();
        busy |= kept.is_some();
        // While messages are added, the client is active and writes them itself.
        if std::mem::replace(&mut member.seen, kept) == kept && kept.is_some() {
            member.cell.drain(&member.unsent);
        }
    }
    busy
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Forks while the flusher's thread exists and another thread holds a lock, taken by `hold`. Returns the
    /// exit status of a child that calls `does`.
    fn child_beside_holder<L>(hold: impl FnOnce() -> L + Send + 'static, does: fn()) -> i32 {
        let (ready, is_ready) = mpsc::channel();
        let (over, is_over) = mpsc::channel::<()>();
        Flusher::ours().wake();
        let holder = std::thread::spawn(move || {
            let _held = hold();
            assert!(ready.send(()).is_ok() && is_over.recv().is_ok());
        });
        assert!(is_ready.recv().is_ok());
        // SAFETY: the child takes no lock that another thread of its parent may hold, except those under test.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: the signal has no handler, and ends the child.
            unsafe { libc::alarm(5) };
            does();
            // SAFETY: the child ends here.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: the pointer is valid for a write.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(over.send(()).is_ok() && holder.join().is_ok());
        status
    }

    /// The flusher's thread was active when the client forked, or another thread was about to wake it. Neither a child
    /// that opens an endpoint nor one that ends waits for the locks that these threads hold.
    #[test]
    fn a_child_does_not_wait_for_its_parents_thread() {
        let opens = || {
            drop(Flusher::ours().members.lock());
            drop(Flusher::ours().handle.lock());
        };
        for does in [opens, stop] {
            assert_eq!(child_beside_holder(|| Flusher::ours().members.lock(), does), 0);
            assert_eq!(child_beside_holder(|| Flusher::ours().handle.lock(), does), 0);
        }
        let flusher = Flusher::ours();
        flusher.end(&flusher.members.lock(), &mut flusher.handle.lock());
    }
}
