//! A thread that hands on what clients have sent when they do not come back.
//!
//! Place in the data flow: TCP gathers short messages that follow one another and writes them together, at
//! the next round of progress at the latest. A client whose sends are complete owes us no such round: it may
//! go and compute, or wait by means of its own for what its message brings about. So the device says that it
//! keeps something ([`weft_nic::Unsent`]), and this thread, one for the process, looks after a [`TICK`]
//! whether anything was added; if not, it enters the endpoint like a control call, and has the device write.
//!
//! It is started by the first message that is kept, sleeps while there is none, and is gone when the last
//! endpoint is closed. It makes no progress: what arrives stays where it is until the client asks. Where the
//! system refuses the thread, devices keep nothing: each message is written at once. The thread is tried
//! again after [`RETRY`].
//!
//! A forked child has a flusher of its own from its first endpoint on: whatever of its parent's somebody held
//! at that moment stays held for ever.
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

/// A message waits for one to two of these. A thread that wakes so often takes less than a hundredth of a core.
const TICK: Duration = Duration::from_millis(1);
/// A round of the thread is over long before.
const STUCK: Duration = Duration::from_millis(100);
/// Ticks without anything kept before the thread sleeps until it is called.
const QUIET_TICKS: u32 = 20;
/// A thread that was refused is not asked for again before.
const RETRY: Duration = Duration::from_millis(100);

/// The process's own, or its parent's as long as it has none. Never freed.
static FLUSHER: AtomicPtr<Flusher> = AtomicPtr::new(ptr::null_mut());

/// What the file that the model checker tries imports from here.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU8, Ordering, fence};
}

struct Flusher {
    owner: Pid,
    /// The endpoints that are looked after.
    members: Mutex<Vec<Member>>,
    /// A leaf: taken under engines' locks.
    handle: Mutex<Handle>,
    state: ThreadState,
}

/// The thread, or when it was refused last.
#[derive(Default)]
struct Handle {
    thread: Option<Worker>,
    refused: Option<Instant>,
}

struct Member {
    cell: CellRef,
    unsent: Arc<Unsent>,
    /// What the device said at the last look.
    seen: Option<u32>,
}

/// An endpoint is ready: it is looked after from now on.
pub(crate) fn join(cell: &CellRef) {
    if let Some(unsent) = cell.unsent() {
        Flusher::ours().members.lock().push(Member { cell: Arc::clone(cell), unsent, seen: None });
    }
}

/// After the endpoint's engine has sent its last. On return the thread does not look at the endpoint any
/// more, and is gone if it was the last.
pub(crate) fn leave(cell: &CellRef) {
    let Some(flusher) = Flusher::found() else { return };
    let mut members = flusher.members.lock();
    members.retain(|member| !Arc::ptr_eq(&member.cell, cell));
    if members.is_empty() {
        flusher.end(&members, &mut flusher.handle.lock());
    }
}

/// At the end of the program: ends the thread, although there may be endpoints, unless it is stuck.
pub(crate) fn stop() {
    // In a handler of a signal, whoever holds these may never go on.
    if let Some(flusher) = Flusher::found()
        && let Some(members) = flusher.members.try_lock_for(STUCK)
        && let Some(mut handle) = flusher.handle.try_lock_for(STUCK)
    {
        flusher.end(&members, &mut handle);
    }
}

/// A device keeps something after it has kept nothing ([`Unsent::new`]). Returns whether the thread will write it.
pub(crate) fn notify() -> bool {
    // The owner is not checked here: the flusher is ours if the device's endpoint has joined.
    match Flusher::known() {
        Some(flusher) => flusher.state.notify(|| Flusher::ours().wake()),
        None => Flusher::ours().wake(),
    }
}

impl Flusher {
    /// This process's, or a parent's.
    #[inline]
    fn known() -> Option<&'static Self> {
        // SAFETY: null, or a flusher, which is never freed.
        unsafe { FLUSHER.load(Ordering::Acquire).as_ref() }
    }

    /// This process's, if it has one.
    fn found() -> Option<&'static Self> {
        Self::known().filter(|flusher| flusher.owner == getpid())
    }

    /// This process's. A parent's is left as it is: to let go of its endpoints would be to close them.
    fn ours() -> &'static Self {
        loop {
            let known = FLUSHER.load(Ordering::Acquire);
            if let Some(found) = Self::found() {
                return found;
            }
            let new = Box::into_raw(Box::new(Self::new()));
            if FLUSHER.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire).is_err() {
                // SAFETY: made above, and known to nobody: another thread was faster.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    fn new() -> Self {
        Self { owner: getpid(), members: Mutex::default(), handle: Mutex::default(), state: ThreadState::new() }
    }

    /// Whoever holds the members knows that the thread is in no engine, whose holder may wait for the handle.
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
                    log::warn!(
                        "no thread for messages that TCP gathers, each of which is written at once instead: {error}"
                    );
                }
                false
            }
        }
    }

    fn run(&self) {
        let mut quiet = 0;
        while !self.state.is_ending() {
            std::thread::park_timeout(TICK);
            // Whoever closes the last endpoint waits for us and holds this.
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

/// Looks at every endpoint once. Returns whether anything is kept.
fn look(members: &mut [Member]) -> bool {
    let mut busy = false;
    for member in members {
        let kept = member.unsent.kept();
        busy |= kept.is_some();
        // What grows will be written by whoever adds to it.
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

    /// Forks while a thread of ours is there and another one of the client's has locked something. Returns
    /// how a child has ended that does this.
    fn child_beside_holder<L>(hold: impl FnOnce() -> L + Send + 'static, does: fn()) -> i32 {
        let (ready, is_ready) = mpsc::channel();
        let (over, is_over) = mpsc::channel::<()>();
        Flusher::ours().wake();
        let holder = std::thread::spawn(move || {
            let _held = hold();
            assert!(ready.send(()).is_ok() && is_over.recv().is_ok());
        });
        assert!(is_ready.recv().is_ok());
        // SAFETY: the child calls nothing that another thread of its parent may hold, but for what is tried here.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: no handler: it ends the child.
            unsafe { libc::alarm(5) };
            does();
            // SAFETY: the child's end.
            unsafe { libc::_exit(0) };
        }
        let mut status = -1;
        // SAFETY: the child's status is the caller's.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(over.send(()).is_ok() && holder.join().is_ok());
        status
    }

    /// The thread was at work when the client forked, or somebody was about to wake it: the child, which goes
    /// on to open an endpoint, waits for neither. Nor does one that ends.
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
