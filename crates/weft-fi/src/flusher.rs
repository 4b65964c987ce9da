//! A thread that hands on what clients have sent when they do not come back.
//!
//! Place in the data flow: TCP gathers short messages that follow one another and writes them together, at the next round of
//! progress at the latest. A client whose sends are complete owes us no such round: it may go and compute, or wait by
//! means of its own for what its message brings about. So the device says that it keeps something
//! ([`weft_nic::Unsent`]), and this thread, one for the process, looks after a [`TICK`] whether anything was added; if not, it
//! enters the endpoint like a control call, and has the device write.
//!
//! It is started by the first message that is kept, sleeps while there is none, and is gone when the last endpoint is closed. It makes no
//! progress: what arrives stays where it is until the client asks.
//!
//! Order of locks: the members, then an endpoint's engine, then the handle.

mod rest;

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_nic::{Unsent, Worker};

use crate::endpoint::core::CoreRef;
use crate::flusher::rest::Rest;
use crate::flusher::sync::AtomicBool;

/// A message waits for one to two of these. A thread that wakes so often takes less than a hundredth of a core.
const TICK: Duration = Duration::from_millis(1);
/// A round of the thread is over long before.
const STUCK: Duration = Duration::from_millis(100);
/// Ticks without anything kept before the thread sleeps until it is called.
const QUIET_TICKS: u32 = 20;

static FLUSHER: Flusher = Flusher {
    members: Mutex::new(&FIRST),
    handle: Mutex::new(None),
    rest: Rest { asleep: AtomicBool::new(true), stop: AtomicBool::new(false) },
};

/// The endpoints of the process that has loaded us.
static FIRST: Members = Mutex::new(Vec::new());

/// What the file that the model checker tries imports from here.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering, fence};
}

type Members = Mutex<Vec<Member>>;

struct Flusher {
    /// The endpoints that are looked after. A forked child has others than its parent, whose thread may have held theirs at that moment: so this
    /// lock, which says where they are, is never taken by the thread. A leaf.
    members: Mutex<&'static Members>,
    /// A leaf: taken under engines' locks.
    handle: Mutex<Option<Worker>>,
    rest: Rest,
}

struct Member {
    core: CoreRef,
    unsent: Arc<Unsent>,
    /// What the device said at the last look.
    seen: Option<u32>,
}

/// An endpoint is ready: it is looked after from now on.
pub(crate) fn join(core: &CoreRef) {
    let unsent = core.control().engine.as_ref().and_then(|engine| engine.nic().unsent().cloned());
    if let Some(unsent) = unsent {
        FLUSHER.forget_parents();
        FLUSHER.members().lock().push(Member { core: Arc::clone(core), unsent, seen: None });
    }
}

/// After the endpoint's engine has sent its last. On return the thread does not look at the endpoint any more, and is gone if it was the last.
pub(crate) fn leave(core: &CoreRef) {
    let mut members = FLUSHER.members().lock();
    members.retain(|member| !Arc::ptr_eq(&member.core, core));
    if members.is_empty() {
        FLUSHER.end(&members, &mut FLUSHER.handle.lock());
    }
}

/// At the end of the program: ends the thread, although there may be endpoints, unless it is stuck.
pub(crate) fn stop() {
    // In a forked child, or in a handler of a signal, whoever holds these may never go on.
    let members = FLUSHER.members.try_lock_for(STUCK).map(|members| *members);
    if let Some(members) = members.and_then(|members| members.try_lock_for(STUCK))
        && let Some(mut handle) = FLUSHER.handle.try_lock_for(STUCK)
    {
        FLUSHER.end(&members, &mut handle);
    }
}

/// A device keeps something after it has kept nothing ([`Unsent::new`]).
pub(crate) fn call() {
    if FLUSHER.rest.is_called() {
        FLUSHER.wake();
    }
}

impl Flusher {
    fn members(&self) -> &'static Members {
        *self.members.lock()
    }

    /// Whoever holds the members knows that the thread is in no engine, whose holder may wait for the handle.
    fn end(&self, _members: &[Member], handle: &mut Option<Worker>) {
        if let Some(thread) = handle.take() {
            self.rest.end();
            thread.unpark();
            thread.join();
            self.rest.has_ended();
        }
    }

    /// A child that was forked has neither the thread nor the endpoints of its parent.
    fn forget_parents(&self) {
        let mut handle = self.handle.lock();
        if handle.as_ref().is_some_and(|thread| !thread.is_ours()) {
            handle.take().into_iter().for_each(Worker::join);
            self.rest.is_nobody();
            // To let go of its parent's would be to close them, and they may stay locked for ever.
            *self.members.lock() = Box::leak(Box::default());
        }
    }

    #[cold]
    fn wake(&'static self) {
        let mut handle = self.handle.lock();
        if let Some(thread) = &*handle {
            thread.unpark();
            return;
        }
        let members = self.members();
        match Worker::spawn("weft-flusher", || self.run(members)) {
            Ok(thread) => *handle = Some(thread),
            Err(error) => {
                self.rest.is_nobody();
                log::warn!(
                    "no thread can be started ({error}): messages over TCP may wait until the next call of libfabric; raise \
                     the limit of threads (ulimit -u, pids.max)"
                );
            }
        }
    }

    fn run(&self, members: &Members) {
        let mut quiet = 0;
        while !self.rest.ends() {
            std::thread::park_timeout(TICK);
            // Whoever closes the last endpoint waits for us and holds this.
            let Some(mut members) = members.try_lock() else { continue };
            quiet = if look(&mut members) { 0 } else { quiet + 1 };
            if quiet < QUIET_TICKS {
                continue;
            }
            quiet = 0;
            self.rest.lie_down(move || members.iter().any(|member| member.unsent.kept().is_some()));
            self.rest.sleep(std::thread::park);
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
        if std::mem::replace(&mut member.seen, kept) == kept
            && kept.is_some()
            && let Some(engine) = &mut member.core.control().engine
            && engine.nic().is_ours()
            && engine.nic_mut().drain()
        {
            member.unsent.clear();
        }
    }
    busy
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Forks while a thread of ours is there and another one of the client's has locked something. Returns how a child has ended that does this.
    fn child_beside_holder<L>(hold: impl FnOnce() -> L + Send + 'static, does: fn()) -> i32 {
        let (ready, is_ready) = mpsc::channel();
        let (over, is_over) = mpsc::channel::<()>();
        FLUSHER.wake();
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

    /// The thread was at work when the client forked: the child, which goes on to open an endpoint, does not wait for it. Nor does one that
    /// ends, not even for whoever was about to wake the thread.
    #[test]
    fn a_child_does_not_wait_for_its_parents_thread() {
        let opens = || {
            FLUSHER.forget_parents();
            drop(FLUSHER.members().lock());
        };
        assert_eq!(child_beside_holder(|| FLUSHER.members().lock(), opens), 0);
        assert_eq!(child_beside_holder(|| FLUSHER.members().lock(), stop), 0);
        assert_eq!(child_beside_holder(|| FLUSHER.handle.lock(), stop), 0);
        FLUSHER.end(&FLUSHER.members().lock(), &mut FLUSHER.handle.lock());
    }
}
