//! Driving endpoints from the queues and counters that are read, and sleeping until there is something to read.
//!
//! Place in the data flow: `fi_cq_read`, `fi_cq_sread`, `fi_cntr_read` and `fi_cntr_wait` → [`Sources`] → the
//! engines of the bound endpoints. The order of rest is: spin a little, yield, then park the devices and sleep.
//! Yielding comes early, since with more ranks than cores the peer may be waiting for this very core.
//!
//! A non-blocking reader that finds nothing for long yields as well, and naps, briefly and woken by its
//! devices, once others have used its core while it polled: then there are more threads than cores, and the
//! one it waits for needs one. A thread that reads several queues in turn does not nap on one of them, deaf
//! to the others ([`presence`]).
//!
//! No wake-up is lost: a sleeper first arms its queue or counter, finding it still empty under the same lock
//! (or in the same total order of atomics) in which others fill it, and parks each endpoint's devices, which
//! refuse if something has arrived. Whoever changes what a sleeper has parked, or adds to it, calls it
//! ([`Sources::notify`]). Sleeps are cut in slices all the same: time-outs inside the engine are noticed, and a
//! sleeper takes over when another thread, whose polls have ended the parking meanwhile, goes away.

mod presence;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use rustix::time::ClockId;

use crate::abi::errno::Errno;
use crate::domain::Domain;
use crate::endpoint::cell::{CellRef, EndpointCell, Sleep};
use crate::sleep::lock::Guarded;
use crate::sleep::poll::presence::Presence;
pub(crate) use crate::sleep::poll::presence::this_thread;
use crate::sleep::progress::AutoProgress;
use crate::sleep::trywait::{self, List, Park, Trywait, wake_all};
use crate::sleep::wait::{Deadline, Waker, Woken};

/// Longest sleep between looks at the engines.
pub(crate) const SLICE: Duration = Duration::from_millis(100);
/// The same while another thread polls an endpoint that we sleep on.
const BUSY_SLICE: Duration = Duration::from_millis(2);
/// Fruitless rounds before the first yield: some 10 µs.
pub(crate) const SPINS: u32 = 200;
/// A blocking call in which every round brings something about, but not what it waits for, looks at the clock
/// at every so-manieth.
pub(crate) const ROUNDS_PER_CLOCK: u32 = 64;
/// Further fruitless rounds, each with a yield, before a blocking call sleeps.
pub(crate) const YIELDS: u32 = 20;
/// A non-blocking reader that found nothing for `SPINS` reads yields at every so-manieth read from then on.
const READS_PER_YIELD: u32 = 32;
/// A poller whose core others have used for so long between two yields has competitors. Less is noise: the ticks of
/// the system and of our own progress thread take some 5 µs each.
const CROWDED: Duration = Duration::from_micros(100);
/// Then so many of the following yields are naps. A thread that sleeps and is woken by its peer gets a core sooner
/// than one that keeps asking for it, and does not take one from the peer meanwhile; `sched_yield` alone does not
/// help, since the scheduler lets a thread that has time left go on.
const NAPS: u32 = 64;
/// Longest nap: the client may have more to poll than our queues.
const NAP: Duration = Duration::from_micros(200);

/// What a thread knows of its competitors for a core.
#[derive(Clone, Copy, Default)]
struct Crowd {
    /// How many of the next yields shall be naps.
    naps: u32,
    /// Time that this thread had spent without a core at the last yield.
    waited: Duration,
}

thread_local! {
    static CROWD: Cell<Crowd> = Cell::default();
}

/// Time that this thread has spent without a core, from an arbitrary zero.
fn without_core() -> Duration {
    let time = |clock| {
        let at = rustix::time::clock_gettime(clock);
        Duration::new(u64::try_from(at.tv_sec).unwrap_or(0), u32::try_from(at.tv_nsec).unwrap_or(0))
    };
    time(ClockId::Monotonic).saturating_sub(time(ClockId::ThreadCPUTime))
}

/// The endpoints that a queue or a counter drives.
pub(crate) struct Sources {
    list: Guarded<Vec<CellRef>>,
    /// Who reads here, and how long in vain.
    presence: Arc<Presence>,
    /// What `fi_trywait` has parked: nothing, with automatic progress.
    outside: Trywait<CellRef>,
    /// The thread that progresses the endpoints while the client does not, with automatic progress.
    auto: Option<Arc<AutoProgress>>,
}

impl Park for CellRef {
    type Waker = Waker;
    type Sleep = Sleep;

    fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        EndpointCell::park(self, waker, sleep)
    }

    fn wake(&self, sleep: Sleep) {
        EndpointCell::wake(self, sleep);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

impl Domain {
    /// For a new queue or counter of this domain.
    pub(crate) fn new_sources(&self) -> Sources {
        // SAFETY: what the client promised when it opened the domain: calls on a queue or counter are serialized with
        // those on everything bound to it.
        let list = unsafe { Guarded::new(self.callers(), self.meter(), Vec::new()) };
        Sources { list, presence: Presence::enter(), outside: Trywait::new(), auto: self.auto_progress().cloned() }
    }
}

impl Sources {
    /// Drives one more endpoint (once, however often it is bound). A control call.
    pub(crate) fn add(&self, cell: &CellRef) {
        let mut list = self.list.intrude();
        if !list.iter().any(|known| Arc::ptr_eq(known, cell)) {
            list.push(Arc::clone(cell));
            self.presence.drives(Arc::as_ptr(cell).addr());
        }
    }

    /// Forgets an endpoint. A control call.
    pub(crate) fn remove(&self, cell: &CellRef) {
        self.list.intrude().retain(|known| !Arc::ptr_eq(known, cell));
        self.presence.drives_no_more(Arc::as_ptr(cell).addr());
        self.outside.remove(|known| Arc::ptr_eq(known, cell));
    }

    /// Whoever sleeps, or is about to, has to look for itself: an endpoint of these has changed in a way that
    /// it did not expect, and may not be parked for it.
    #[cold]
    pub(crate) fn notify(&self, waker: Option<&Waker>) {
        self.outside.invalidate();
        waker.inspect(|waker| waker.notify());
    }

    /// One round of progress on every endpoint. Returns 0 when nothing happened.
    #[inline(never)] // One function, with all that a fruitless round takes in line.
    pub(crate) fn progress(&self) -> usize {
        self.outside.wake(this_thread, Sleep::Outside);
        // Another thread that holds the list is progressing just these endpoints.
        let Some(list) = self.list.try_lock() else { return 0 };
        list.iter().map(|cell| cell.progress()).sum()
    }

    /// Notes that a non-blocking read found nothing after a round in which `done` things happened, and lets others run
    /// if nothing has happened for a while. `waker` is where the reader may nap.
    #[inline]
    pub(crate) fn read_nothing<'a>(&self, done: usize, waker: impl FnOnce() -> Option<&'a Waker>) {
        let idle = self.presence.read_in_vain(done);
        if idle >= SPINS && idle.is_multiple_of(READS_PER_YIELD) {
            self.rest(idle < SPINS + READS_PER_YIELD, waker());
        }
    }

    /// Notes that a read found something.
    #[inline]
    pub(crate) fn read_something(&self) {
        self.presence.read_well();
    }

    /// Lets others run. `first`: the thread may have slept elsewhere since the last rest.
    #[cold]
    fn rest(&self, first: bool, waker: Option<&Waker>) {
        let mut crowd = CROWD.get();
        if let Some(waker) = waker.filter(|_| crowd.naps > 0 && self.presence.is_all_that_is_read())
            && let Some(parked) = self.park(waker, Sleep::Inside)
        {
            waker.nap(NAP);
            wake_all(&parked, Sleep::Inside);
            CROWD.set(Crowd { naps: crowd.naps - 1, waited: without_core() });
            return;
        }
        if first {
            crowd.waited = without_core();
        }
        std::thread::yield_now();
        let waited = without_core();
        if waited.saturating_sub(crowd.waited) > CROWDED {
            crowd.naps = NAPS;
        }
        CROWD.set(Crowd { waited, ..crowd });
    }

    /// Parks the devices of every endpoint, all or none.
    fn park(&self, waker: &Waker, sleep: Sleep) -> Option<List<CellRef>> {
        trywait::park_all(self.list.lock().iter(), waker, sleep)
    }

    /// For `fi_trywait`: Ok when the client may block on the waker's descriptor until it reads again.
    pub(crate) fn trywait(&self, what: &impl Waitable, waker: &Waker) -> Result<(), Errno> {
        if what.ready() || (self.progress() > 0 && what.ready()) {
            return Err(Errno::AGAIN);
        }
        let park = || if self.auto.is_some() { Some(List::new()) } else { self.park(waker, Sleep::Outside) };
        if !self.outside.trywait(this_thread(), park, waker, Sleep::Outside, || what.arm(), || waker.notify()) {
            return Err(Errno::AGAIN);
        }
        self.auto.as_ref().inspect(|auto| auto.notify_client_parked());
        Ok(())
    }

    /// For a sleeper with a threshold of its own ([`Trywait::arm_threshold`]).
    pub(crate) fn arm_threshold(&self, waker: Option<&Waker>, arm: impl FnOnce(), ready: impl Fn() -> bool) -> bool {
        let (drain, notify) =
            (|| _ = waker.inspect(|waker| waker.drain()), || _ = waker.inspect(|waker| waker.notify()));
        let sleeps = self.outside.arm_threshold(drain, arm, &ready, notify);
        if !sleeps && !ready() {
            yield_to_notified();
        }
        sleeps
    }

    /// Whether there may be threads that sleep outside, see [`Trywait::has_sleepers`].
    pub(crate) fn has_outside_sleepers(&self) -> bool {
        self.outside.has_sleepers()
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.presence.leave();
    }
}

/// A thread cannot sleep, since the bell is left ringing for others: lets these run, so that they hear it.
pub(crate) fn yield_to_notified() {
    std::thread::sleep(NAP);
}

/// Rounds of progress that any thread has made on these endpoints.
fn rounds(parked: &[CellRef]) -> u64 {
    parked.iter().fold(0, |sum, cell| sum.wrapping_add(cell.activity().0))
}

/// Something a thread may wait for.
pub(crate) trait Waitable {
    /// Whose progress brings it about.
    fn sources(&self) -> &Sources;
    /// One round. Returns 0 when nothing happened.
    fn progress(&self) -> usize {
        self.sources().progress()
    }
    /// Where to sleep; `None`: only spin and yield.
    fn waker(&self) -> Option<&Waker>;
    /// Whether the wait is over.
    fn ready(&self) -> bool;
    /// Whether somebody asked the waiter to return empty-handed; clears the request.
    fn take_interrupt(&self) -> bool;
    /// Asks for the waker to be rung once, when ready; earlier rings are taken back. False: it is ready by now.
    fn arm(&self) -> bool;
}

/// How a wait ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// It is ready.
    Ready,
    /// The time is up.
    TimedOut,
    /// Somebody, or a signal, asked to return.
    Interrupted,
}

/// Waits, with progress, until `what` is ready.
pub(crate) fn wait(what: &impl Waitable, deadline: Deadline) -> Waited {
    let (mut fruitless, mut fruitful) = (0, 0_u32);
    let mut slice = SLICE;
    loop {
        if what.ready() {
            return Waited::Ready;
        }
        if what.take_interrupt() {
            return Waited::Interrupted;
        }
        let moved = what.progress() > 0;
        (fruitless, fruitful) = if moved { (0, fruitful.wrapping_add(1)) } else { (fruitless + 1, fruitful) };
        // The clock is not read for each of the spins.
        let look = if moved { fruitful.is_multiple_of(ROUNDS_PER_CLOCK) } else { fruitless == 1 || fruitless > SPINS };
        if look && deadline.over() {
            return if what.ready() { Waited::Ready } else { Waited::TimedOut };
        }
        match what.waker() {
            _ if moved => {}
            _ if fruitless <= SPINS => std::hint::spin_loop(),
            Some(waker) if fruitless > SPINS + YIELDS => {
                if sleep(what, waker, deadline, &mut slice) == Woken::Signal {
                    return if what.ready() { Waited::Ready } else { Waited::Interrupted };
                }
                // What woke us is looked at above; if it was nothing, go back to sleep soon.
                fruitless = SPINS;
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// Parks and sleeps once, unless there turns out to be something to do.
fn sleep(what: &impl Waitable, waker: &Waker, deadline: Deadline, slice: &mut Duration) -> Woken {
    let sources = what.sources();
    let generation = sources.outside.generation();
    let Some(parked) = sources.park(waker, Sleep::Inside) else { return Woken::Event };
    let before = rounds(&parked);
    let outside = &sources.outside;
    let for_others = if sources.auto.is_some() { &[] } else { &*parked };
    let woken = if outside.park_for_sleepers(for_others, waker, Sleep::Outside)
        && outside.arm(generation, || what.arm(), || waker.notify())
    {
        waker.sleep(Some(deadline.left().map_or(*slice, |left| left.min(*slice))))
    } else {
        Woken::Event
    };
    // Another thread's poll has ended the devices' parking: they will not wake us when that thread goes away.
    *slice = if rounds(&parked) == before { SLICE } else { BUSY_SLICE };
    wake_all(&parked, Sleep::Inside);
    woken
}
