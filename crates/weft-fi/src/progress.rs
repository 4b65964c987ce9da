//! Automatic progress: one thread per domain that does what the client's threads do not.
//!
//! Place in the data flow: made by the domain when FI_PROGRESS_AUTO is in force; endpoints join at enable and leave
//! at close. The thread sleeps on the devices' wait descriptors, parked, and progresses an endpoint when they stir.
//!
//! It steps back while a thread of the client is at work on an endpoint: as long as the endpoint's count of
//! application rounds moves (or a client's thread sleeps on it, which will wake by itself), the thread neither
//! touches the endpoint nor listens to its devices, and only looks again after a tick. So it costs an active client
//! two loads a millisecond and never the endpoint's lock; a client that goes away to compute is relieved within two
//! ticks; a client that is about to sleep outside our calls says so ([`AutoProgress::take_over`]).
//!
//! Invariants: an endpoint is entered only by `try_lock`, so no call of the client ever waits for a whole round of
//! this thread more than once; after [`AutoProgress::leave`] the thread holds no reference; after
//! [`AutoProgress::stop`] it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::endpoint::core::CoreRef;
use crate::errno::Errno;
use crate::wait::Waker;

/// How often an endpoint that the client progresses is looked at.
const TICK: Duration = Duration::from_millis(1);
/// How often one is looked at on which a thread of the client sleeps.
const SLEEPER_TICK: Duration = Duration::from_millis(10);
/// Looks without work or sleep after which the thread contents itself with ticks.
const RESTLESS_LOOKS: u32 = 100;
/// Longest sleep: time-outs inside the engine are noticed within it.
const SLICE: Duration = Duration::from_millis(100);

/// The thread of one domain.
pub(crate) struct AutoProgress {
    waker: Waker,
    spin: Duration,
    members: Mutex<Vec<Member>>,
    /// The client said that it will not progress by itself for a while.
    relieve: AtomicBool,
    stop: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// An endpoint, and what the thread knows of it.
struct Member {
    core: CoreRef,
    /// Application rounds at the last look.
    seen: u64,
    /// Whether our waker watches its devices.
    listening: bool,
    /// When the thread last found something to do here.
    worked: Option<Instant>,
    /// How often in a row the endpoint would not let us sleep without having anything to do.
    restless: u32,
}

/// How soon the thread must look again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Now,
    Tick,
    SleeperTick,
    WhenWoken,
}

impl AutoProgress {
    /// Ready to start; the thread itself begins with the first endpoint. After work it polls on for `spin` before it
    /// sleeps.
    pub(crate) fn new(spin: Duration) -> Result<Arc<Self>, Errno> {
        Ok(Arc::new(Self {
            waker: Waker::new()?,
            spin,
            members: Mutex::new(Vec::new()),
            relieve: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
        }))
    }

    /// Takes care of an endpoint from now on; starts the thread if it is the first.
    pub(crate) fn join(self: &Arc<Self>, core: &CoreRef) -> Result<(), Errno> {
        self.start()?;
        self.members.lock().push(Member {
            core: Arc::clone(core),
            seen: 0,
            listening: false,
            worked: None,
            restless: 0,
        });
        self.waker.ring();
        Ok(())
    }

    /// Forgets an endpoint; on return the thread does not look at it any more.
    pub(crate) fn leave(&self, core: &CoreRef) {
        let mut members = self.members.lock();
        if let Some(at) = members.iter().position(|member| Arc::ptr_eq(&member.core, core)) {
            let mut member = members.swap_remove(at);
            member.release(&self.waker);
        }
    }

    /// The client is about to sleep where we cannot see it: progress everything at once, without waiting for a tick.
    pub(crate) fn take_over(&self) {
        self.relieve.store(true, Ordering::Release);
        self.waker.ring();
    }

    /// Ends the thread's sleep.
    pub(crate) fn wake(&self) {
        self.waker.ring();
    }

    /// Ends the thread and waits for its end.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.waker.ring();
        let thread = self.thread.lock().take();
        if let Some(thread) = thread
            && thread.join().is_err()
        {
            log::error!("the progress thread ended by a panic");
        }
    }

    fn start(self: &Arc<Self>) -> Result<(), Errno> {
        let mut thread = self.thread.lock();
        if thread.is_none() {
            self.stop.store(false, Ordering::Release);
            let this = Arc::clone(self);
            let handle = std::thread::Builder::new().name("weft-progress".into()).spawn(move || this.run())?;
            *thread = Some(handle);
        }
        Ok(())
    }

    fn run(&self) {
        block_signals();
        while !self.stop.load(Ordering::Acquire) {
            // Rings that arrive from here on are about things that the coming look may miss.
            self.waker.hush();
            let relieve = self.relieve.swap(false, Ordering::AcqRel);
            let next = self.look(relieve);
            let time = match next {
                Next::Now => {
                    std::thread::yield_now();
                    continue;
                }
                Next::Tick => TICK,
                Next::SleeperTick => SLEEPER_TICK,
                Next::WhenWoken => SLICE,
            };
            self.waker.sleep(Some(time));
        }
        for member in self.members.lock().iter_mut() {
            member.release(&self.waker);
        }
    }

    /// Looks at every endpoint once.
    fn look(&self, relieve: bool) -> Next {
        let mut members = self.members.lock();
        members.iter_mut().map(|member| member.look(&self.waker, self.spin, relieve)).min().unwrap_or(Next::WhenWoken)
    }
}

impl Member {
    fn look(&mut self, waker: &Waker, spin: Duration, relieve: bool) -> Next {
        let (rounds, sleeper) = self.core.activity();
        let active = rounds != self.seen && !relieve;
        self.seen = rounds;
        if active || sleeper {
            self.release(waker);
            return if active { Next::Tick } else { Next::SleeperTick };
        }
        self.serve(waker, spin)
    }

    /// Does the work of an endpoint that nobody else attends to, and goes on listening to its devices.
    fn serve(&mut self, waker: &Waker, spin: Duration) -> Next {
        let Some(mut state) = self.core.try_state() else {
            // A call of the client is inside: it is at work after all.
            return Next::Tick;
        };
        state.auto_awake();
        if !state.settle() {
            self.worked = Some(Instant::now());
            return Next::Now;
        }
        if self.worked.is_some_and(|at| at.elapsed() < spin) {
            return Next::Now;
        }
        self.worked = None;
        if state.auto_listen(waker) {
            self.listening = true;
            self.restless = 0;
            return Next::WhenWoken;
        }
        // Something has come meanwhile, or the system refuses to watch the devices.
        self.restless += 1;
        if self.restless < RESTLESS_LOOKS { Next::Now } else { Next::Tick }
    }

    /// Stops listening.
    fn release(&mut self, waker: &Waker) {
        if std::mem::take(&mut self.listening) {
            let mut state = self.core.state();
            state.auto_awake();
            if let Some(fd) = state.wait_fd() {
                waker.unwatch(fd);
            }
        }
    }
}

/// Signals are the client's: its handlers must not run on a thread that it does not know.
fn block_signals() {
    let mut all = std::mem::MaybeUninit::uninit();
    // SAFETY: initialises the set.
    unsafe { libc::sigfillset(all.as_mut_ptr()) };
    // SAFETY: an initialised set; the old mask is not wanted.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_soonest_need_decides() {
        assert!(Next::Now < Next::Tick && Next::Tick < Next::SleeperTick && Next::SleeperTick < Next::WhenWoken);
    }

    #[test]
    fn the_thread_starts_once_and_is_gone_after_stop() {
        let auto = AutoProgress::new(Duration::ZERO).unwrap();
        auto.start().unwrap();
        auto.start().unwrap();
        assert_eq!(Arc::strong_count(&auto), 2, "one reference is the thread's");
        auto.stop();
        assert_eq!(Arc::strong_count(&auto), 1);
        auto.stop();
    }
}
