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
//! A client may also come and go much faster: post, compute for 20 µs, wait, and so on. For it the thread now and then
//! stays *close*: for [`CLOSE`] it looks again and again without sleeping, and does the client's work whenever the client has made
//! no round for [`QUIET`]. Where that is of use it goes on; where it is not it tries ever more rarely. It needs a core
//! that nobody else wants, so it stays close only after it saw the client make rounds while it was itself on a core, and ends
//! that as soon as it loses its core.
//!
//! Invariants: an endpoint is entered only by trying, so no call of the client ever waits for a whole round of
//! this thread more than once; after [`AutoProgress::leave`] the thread holds no reference; after
//! [`AutoProgress::stop`] it is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::endpoint::core::CoreRef;
use crate::errno::Errno;
use crate::lock;
use crate::wait::Waker;

/// How often an endpoint that the client progresses is looked at.
const TICK: Duration = Duration::from_millis(1);
/// How often one is looked at on which a thread of the client sleeps.
const SLEEPER_TICK: Duration = Duration::from_millis(10);
/// Looks without work or sleep after which the thread contents itself with ticks.
const RESTLESS_LOOKS: u32 = 100;
/// How long the thread stays close to a client without being of use.
const CLOSE: Duration = Duration::from_micros(100);
/// A client that has made no round for so long has gone to compute.
const QUIET: Duration = Duration::from_micros(2);
/// A thread that stays close looks about every microsecond. When more than this has passed, somebody else had its core.
const CROWDED: Duration = Duration::from_micros(50);
/// Most ticks between two times of staying close that are of no use.
const MOST_PATIENCE: u32 = 256;
/// Rests between two looks of a thread that stays close: what it looks at is written by the client, at a price.
const RESTS: u32 = 16;
/// Longest sleep: time-outs inside the engine are noticed within it.
const SLICE: Duration = Duration::from_millis(100);

/// The thread of one domain.
pub(crate) struct AutoProgress {
    waker: Waker,
    spin: Duration,
    members: Mutex<Vec<Member>>,
    /// Rounds in which the thread found something to do.
    rounds: AtomicU64,
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
    /// The thread has been inside: the client's locks are dear, and our waker may watch the devices.
    visited: bool,
    /// When the thread last found something to do here.
    worked: Option<Instant>,
    /// How often in a row the endpoint would not let us sleep without having anything to do.
    restless: u32,
    /// What staying close has shown so far.
    close: Option<Close>,
    /// Ticks until staying close is tried again, and how many there were before the last time.
    patience: u32,
    last_patience: u32,
}

/// A time of staying close.
struct Close {
    /// It ends then, unless it is of use before.
    until: Instant,
    looked: Instant,
    /// When the client made its last round, or we began.
    quiet_since: Instant,
    /// The client made a round while we were on a core: it has another one.
    apart: bool,
    /// We did something for it.
    useful: bool,
}

/// How soon the thread must look again.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Next {
    Close,
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
            rounds: AtomicU64::new(0),
            relieve: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            thread: Mutex::new(None),
        }))
    }

    /// Takes care of an endpoint from now on; starts the thread if it is the first.
    pub(crate) fn join(self: &Arc<Self>, core: &CoreRef) -> Result<(), Errno> {
        self.start()?;
        self.members.lock().push(Member::new(core));
        self.waker.ring();
        Ok(())
    }

    /// Forgets an endpoint; on return the thread does not look at it any more.
    pub(crate) fn leave(&self, core: &CoreRef) {
        let mut members = self.members.lock();
        if let Some(at) = members.iter().position(|member| Arc::ptr_eq(&member.core, core)) {
            let mut member = members.swap_remove(at);
            member.step_back(&self.waker);
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
        lock::visit_only();
        // Rings that arrive from here on are about things that the coming look may miss.
        self.waker.hush();
        while !self.stop.load(Ordering::Acquire) {
            let relieve = self.relieve.swap(false, Ordering::AcqRel);
            let time = match self.look(relieve) {
                Next::Close => {
                    (0..RESTS).for_each(|_| std::hint::spin_loop());
                    std::thread::yield_now();
                    continue;
                }
                Next::Now => {
                    std::thread::yield_now();
                    continue;
                }
                Next::Tick => TICK,
                Next::SleeperTick => SLEEPER_TICK,
                Next::WhenWoken => SLICE,
            };
            self.waker.sleep(Some(time));
            self.waker.hush();
        }
        for member in self.members.lock().iter_mut() {
            member.step_back(&self.waker);
        }
    }

    /// Looks at every endpoint once.
    fn look(&self, relieve: bool) -> Next {
        let mut members = self.members.lock();
        members.iter_mut().map(|member| member.look(self, relieve)).min().unwrap_or(Next::WhenWoken)
    }

    /// Rounds in which the thread found something to do.
    pub(crate) fn rounds(&self) -> u64 {
        self.rounds.load(Ordering::Relaxed)
    }
}

impl Member {
    fn new(core: &CoreRef) -> Self {
        Self {
            core: Arc::clone(core),
            seen: 0,
            visited: false,
            worked: None,
            restless: 0,
            close: None,
            patience: 0,
            last_patience: 1,
        }
    }

    fn look(&mut self, auto: &AutoProgress, relieve: bool) -> Next {
        let (rounds, sleeper) = self.core.activity();
        let moved = rounds != self.seen;
        self.seen = rounds;
        if sleeper {
            self.close = None;
            self.step_back(&auto.waker);
            return Next::SleeperTick;
        }
        if relieve {
            self.close = None;
        }
        match self.close.take() {
            Some(close) => self.stay_close(close, moved, auto),
            None if moved && !relieve => self.come_close(auto),
            None => self.serve(auto),
        }
    }

    /// The client has made rounds since the last tick.
    fn come_close(&mut self, auto: &AutoProgress) -> Next {
        if self.patience > 0 || has_one_core() {
            self.patience = self.patience.saturating_sub(1);
            self.step_back(&auto.waker);
            return Next::Tick;
        }
        // Locks may stay as they are, but what comes must not wake us: the client may be there first.
        self.step_back(&auto.waker);
        let now = Instant::now();
        self.close = Some(Close { until: now + CLOSE, looked: now, quiet_since: now, apart: false, useful: false });
        Next::Close
    }

    fn stay_close(&mut self, mut close: Close, moved: bool, auto: &AutoProgress) -> Next {
        let now = Instant::now();
        if now - close.looked > CROWDED {
            return self.part(false, auto);
        }
        close.looked = now;
        if moved {
            close.apart = true;
            close.quiet_since = now;
        } else if close.apart && now - close.quiet_since > QUIET {
            match self.help(auto) {
                None => close.quiet_since = now,
                Some(false) => {}
                Some(true) => {
                    close.useful = true;
                    close.looked = Instant::now();
                    close.until = close.looked + CLOSE;
                }
            }
        }
        if now <= close.until {
            self.close = Some(close);
            return Next::Close;
        }
        // A client that was quiet for that long has gone for longer.
        let gone = now - close.quiet_since >= CLOSE;
        let next = self.part(close.useful, auto);
        if gone { self.serve(auto) } else { next }
    }

    /// Ends a time of staying close.
    fn part(&mut self, useful: bool, auto: &AutoProgress) -> Next {
        self.last_patience = if useful { 1 } else { (2 * self.last_patience).min(MOST_PATIENCE) };
        self.patience = self.last_patience - 1;
        self.step_back(&auto.waker);
        Next::Tick
    }

    /// A round for a client that is not there for the moment. Whether there was something to do; `None`: it is there.
    fn help(&mut self, auto: &AutoProgress) -> Option<bool> {
        let mut state = self.core.try_visit()?;
        self.visited = true;
        if state.is_slept_on() {
            return None;
        }
        let did = !state.settle();
        if state.attend {
            self.core.attend(state);
        }
        if did {
            auto.rounds.fetch_add(1, Ordering::Relaxed);
        }
        Some(did)
    }

    /// Does the work of an endpoint that nobody else attends to, and goes on listening to its devices.
    fn serve(&mut self, auto: &AutoProgress) -> Next {
        let Some(mut state) = self.core.try_visit() else {
            // A call of the client is inside: it is at work after all.
            return Next::Tick;
        };
        self.visited = true;
        if state.is_slept_on() {
            return Next::Tick;
        }
        state.auto_awake();
        let moved = !state.settle();
        if state.attend {
            // Operations were triggered, or wait for room that there may be now.
            self.core.attend(state);
            auto.rounds.fetch_add(1, Ordering::Relaxed);
            self.worked = Some(Instant::now());
            return Next::Now;
        }
        if moved {
            auto.rounds.fetch_add(1, Ordering::Relaxed);
            self.worked = Some(Instant::now());
            return Next::Now;
        }
        if self.worked.is_some_and(|at| at.elapsed() < auto.spin) {
            return Next::Now;
        }
        self.worked = None;
        if state.auto_listen(&auto.waker) {
            self.restless = 0;
            return Next::WhenWoken;
        }
        // Something has come meanwhile, or the system refuses to watch the devices.
        self.restless += 1;
        if self.restless < RESTLESS_LOOKS { Next::Now } else { Next::Tick }
    }

    /// Leaves the endpoint to the client.
    fn step_back(&mut self, waker: &Waker) {
        if std::mem::take(&mut self.visited) {
            self.core.end_visits(waker);
        }
    }
}

/// Whether this thread runs where nothing else can run at the same time as it, and so not the client either.
fn has_one_core() -> bool {
    rustix::thread::sched_getaffinity(None).is_ok_and(|set| set.count() == 1)
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
        assert!(Next::Close < Next::Now && Next::Now < Next::Tick);
        assert!(Next::Tick < Next::SleeperTick && Next::SleeperTick < Next::WhenWoken);
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
