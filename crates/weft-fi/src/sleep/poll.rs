//! Reads of queues and counters drive the bound endpoints, and blocking reads sleep until there is an entry.
//!
//! Place in the data flow: `fi_cq_read`, `fi_cq_sread`, `fi_cntr_read` and `fi_cntr_wait` → [`Sources`] → the
//! engines of the bound endpoints. A blocking call first spins, then yields, then parks the devices and sleeps. It
//! yields early: if there are more ranks than cores, the peer may be waiting for the caller's core.
//!
//! A non-blocking reader that finds nothing for a while yields as well. If other threads have used its core meanwhile,
//! there are more threads than cores, and the peer may lack one. The reader then naps: it sleeps for a short time, and
//! its devices wake it.
//!
//! A reader that waits for some milliseconds and does nothing else naps as well, although its core is free. It uses a
//! few per cent of the core from then on. A nap lasts at most a sixteenth of the wait, and at most FI_WEFT_NAP_US.
//! Between two naps the client gets control a few times.
//!
//! A nap delays events that weft does not know. A client reads weft's queue in turn with other sources, and MPI
//! libraries with shared memory of their own are such clients. These rules recognise them, the first three where
//! threads compete for cores:
//! - A client naps only if weft links it with another endpoint of its host. Otherwise its messages inside the host take
//!   another way, and peers of other hosts do not need its core.
//! - A thread that reads several queues in turn does not nap on one of them ([`presence`]).
//! - A reader naps a limited number of times between two events of weft ([`crate::sleep::policy::reader`]).
//! - In a long wait the number has no limit. A reader then naps only if a tagged receive is posted or an operation is
//!   under way; if it uses little processor time between its reads; if no other thread takes entries; and if weft
//!   carries the messages inside the host, by what the launcher tells ([`Carrier`]) or by the first rule.
//!
//! No wake-up is lost. A sleeper parks the devices of each endpoint, which fails if something has arrived. It then arms
//! its queue or counter. Arming finds the queue empty under the lock (or in the total order of atomics) in which other
//! threads fill it. A thread that changes or adds an endpoint notifies the sleepers ([`Sources::notify`]).
//!
//! Sleeps are divided into slices for two reasons. Time-outs inside the engine are noticed. And a poll of
//! another thread ends the parking: if that thread stops polling, the sleeper takes over after its slice.

mod presence;

use std::cell::Cell;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rustix::time::ClockId;
use weft_nic::Device;
use weft_observe::identity::Carrier;

use crate::abi::errno::Errno;
use crate::cq::Reading;
use crate::domain::Domain;
use crate::endpoint::cell::{CellRef, DrivenCells, Sleep};
use crate::eq::drivers::Driver;
use crate::sleep::lock::Guarded;
use crate::sleep::policy::reader::{Clocks, Contention, Lull, SKIPPED_READS, SPINS, is_impatient};
use crate::sleep::poll::presence::Presence;
pub(crate) use crate::sleep::poll::presence::{idle_reads, this_thread};
use crate::sleep::progress::AutoProgress;
use crate::sleep::trywait::{self, List, Park, Trywait, wake_all};
use crate::sleep::wait::{Deadline, Waker, Woken};

/// Longest sleep between two rounds of progress.
pub(crate) const SLICE: Duration = Duration::from_millis(100);
/// Longest sleep while another thread polls one of the endpoints.
const BUSY_SLICE: Duration = Duration::from_millis(2);
/// Rounds between two checks of the deadline, while rounds make progress without ending the wait.
pub(crate) const ROUNDS_PER_CLOCK: u32 = 64;
/// Further fruitless rounds, each with a yield, before a blocking call sleeps.
pub(crate) const YIELDS: u32 = 20;
/// Longest nap where threads compete for cores. The client may poll other things besides weft's queues.
const NAP: Duration = Duration::from_micros(200);

/// The naps on a domain's queues and counters.
#[derive(Debug, Default)]
pub(crate) struct Naps {
    all: AtomicU64,
    fruitless: AtomicU64,
}

impl Naps {
    /// Number of naps.
    pub(crate) fn all(&self) -> u64 {
        self.all.load(Ordering::Relaxed)
    }

    /// Number of those that ended without an event.
    pub(crate) fn fruitless(&self) -> u64 {
        self.fruitless.load(Ordering::Relaxed)
    }

    fn count(&self, has_event: bool) {
        self.all.fetch_add(1, Ordering::Relaxed);
        self.fruitless.fetch_add(u64::from(!has_event), Ordering::Relaxed);
    }
}

thread_local! {
    static CONTENTION: Cell<Contention> = Cell::default();
    static LULL: Cell<Lull> = Cell::default();
}

/// The clocks of this thread.
fn clocks() -> Clocks {
    let time = |clock: ClockId| {
        let at = rustix::time::clock_gettime(clock);
        Duration::new(u64::try_from(at.tv_sec).unwrap_or(0), u32::try_from(at.tv_nsec).unwrap_or(0))
    };
    Clocks::read(time)
}

/// The library that carries the messages between the ranks of this host.
fn carrier() -> Carrier {
    static KNOWN: OnceLock<Carrier> = OnceLock::new();
    *KNOWN.get_or_init(Carrier::of_this_process)
}

/// The endpoints that a queue or a counter drives.
pub(crate) struct Sources {
    list: Guarded<DrivenCells>,
    /// The thread that reads here, and the number of its empty reads.
    presence: Arc<Presence>,
    /// Number of successive empty reads before the next yield or nap: `SPINS` or `READS_BEFORE_NAP`.
    patience: AtomicU32,
    naps: Arc<Naps>,
    /// Longest nap (FI_WEFT_NAP_US).
    longest_nap: Duration,
    /// The endpoints that `fi_trywait` has parked. None with automatic progress.
    outside: Trywait<CellRef>,
    /// The domain's progress thread, with automatic progress.
    auto: Option<Arc<AutoProgress>>,
}

impl Park for CellRef {
    type Waker = Waker;
    type Sleep = Sleep;

    fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        Driver::park(&**self, waker, sleep)
    }

    fn wake(&self, sleep: Sleep) {
        Driver::wake(&**self, sleep);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

impl Domain {
    /// The sources of a new queue or counter of this domain.
    pub(crate) fn new_sources(&self) -> Sources {
        // SAFETY: by the threading level the client serializes calls on a queue or counter with calls on all objects
        // bound to it.
        let list = unsafe { Guarded::new(self.callers(), self.meter(), DrivenCells::default()) };
        let patience = AtomicU32::new(SPINS);
        Sources {
            list,
            presence: Presence::enter(),
            patience,
            naps: Arc::clone(self.naps()),
            longest_nap: self.longest_nap(),
            outside: Trywait::new(),
            auto: self.auto_progress().cloned(),
        }
    }
}

impl Sources {
    /// Drives one more endpoint, once for any number of bindings. A control call.
    pub(crate) fn add(&self, cell: CellRef) {
        let address = Arc::as_ptr(&cell).addr();
        if self.list.intrude().add(cell) {
            self.presence.add_endpoint(address);
        }
    }

    /// Removes an endpoint. A control call.
    pub(crate) fn remove(&self, cell: &CellRef) {
        self.list.intrude().remove(cell);
        self.presence.remove_endpoint(Arc::as_ptr(cell).addr());
        self.outside.remove(|known| Arc::ptr_eq(known, cell));
    }

    /// Wakes the threads that sleep here or are about to, so that they look again. An endpoint has joined or changed,
    /// and may not be parked for them.
    #[cold]
    pub(crate) fn notify(&self, waker: Option<&Waker>) {
        self.outside.invalidate();
        waker.inspect(|waker| waker.notify());
    }

    /// Makes one round of progress on every endpoint. Returns 0 when nothing happened.
    pub(crate) fn progress(&self) -> usize {
        self.outside.wake(this_thread, Sleep::Outside);
        // A thread that holds the list progresses the same endpoints.
        let Some(list) = self.list.try_lock() else { return 0 };
        list.iter().map(|cell| cell.progress()).sum()
    }

    /// As [`Self::progress`], for endpoints on devices of type `D`. The read of an empty queue takes its entries
    /// directly.
    ///
    /// # Safety
    /// The domain was opened by the functions for `D`.
    #[inline(never)] // One function, into which the whole of a fruitless round is inlined.
    pub(crate) unsafe fn progress_on<D: Device>(&self, mut reading: Option<&mut Reading<'_>>) -> usize {
        self.outside.wake(this_thread, Sleep::Outside);
        let Some(list) = self.list.try_lock() else { return 0 };
        // SAFETY: the endpoints of the domain are on devices of that type, by the caller's promise.
        unsafe { list.on_device::<D>() }.map(|cell| cell.progress(reading.as_deref_mut())).sum()
    }

    /// Notes that a non-blocking read found nothing after a round of progress that returned `done`. Lets
    /// other threads run if nothing has happened for a while. The reader may nap on `waker`. Returns whether an event
    /// has ended a nap, so that another round finds it.
    #[inline]
    pub(crate) fn note_empty_read<'a>(&self, done: usize, waker: impl FnOnce() -> Option<&'a Waker>) -> bool {
        let idle = self.presence.note_empty_read(done);
        is_impatient(idle, self.patience.load(Ordering::Relaxed)) && self.yield_or_nap(idle, waker())
    }

    /// Notes that a read found something.
    #[inline]
    pub(crate) fn note_read(&self) {
        self.presence.note_read();
    }

    /// Lets other threads run. `idle`: successive reads without an entry or progress. Returns whether an event
    /// has ended a nap.
    #[cold]
    fn yield_or_nap(&self, idle: u32, waker: Option<&Waker>) -> bool {
        let mut contention = CONTENTION.get();
        let clocks = clocks();
        let lull = LULL.get().observed(idle, clocks);
        LULL.set(lull);
        if let Some(waker) = waker.filter(|_| !self.longest_nap.is_zero()) {
            if contention.wants_nap(idle)
                && self.presence.reader_reads_nothing_else()
                && let Some(has_event) = self.nap(waker, NAP.min(self.longest_nap))
            {
                let (contention, patience) = contention.after_nap(has_event, self::clocks().without_core());
                self.patience.store(patience, Ordering::Relaxed);
                CONTENTION.set(contention);
                return has_event;
            }
            if let Some(time) = lull.nap(self.longest_nap)
                && self.reader_only_waits()
                && let Some(has_event) = self.nap(waker, time)
            {
                let idle = if has_event { idle } else { self.presence.skip_reads(SKIPPED_READS) };
                LULL.set(lull.after_nap(has_event, idle, self::clocks()));
                return has_event;
            }
        }
        self.patience.store(SPINS, Ordering::Relaxed);
        if Contention::restarts(idle) {
            contention = contention.restarted(clocks.without_core());
        }
        std::thread::yield_now();
        let is_near = || self.list.lock().iter().any(|cell| cell.has_near_peer());
        CONTENTION.set(contention.after_yield(self::clocks().without_core(), is_near));
        false
    }

    /// Sleeps on the devices once. Returns whether an event ended the sleep, or `None` if there was something to do.
    fn nap(&self, waker: &Waker, time: Duration) -> Option<bool> {
        let parked = self.park(waker, Sleep::Inside)?;
        let has_event = waker.nap(time);
        wake_all(&parked, Sleep::Inside);
        self.naps.count(has_event);
        Some(has_event)
    }

    /// Whether this thread, which has found nothing for a while, waits for messages or accesses of weft, and for
    /// nothing else that is known.
    fn reader_only_waits(&self) -> bool {
        if self.presence.is_shared()
            || self.presence.reader_is_busy_elsewhere()
            || !self.presence.reader_reads_nothing_else()
        {
            return false;
        }
        let list = self.list.lock();
        let carrier = carrier();
        carrier != Carrier::Library
            && list.iter().any(|cell| cell.is_waiting())
            && (carrier == Carrier::Weft || list.iter().any(|cell| cell.has_near_peer()))
    }

    /// Parks the devices of all endpoints, or of none.
    fn park(&self, waker: &Waker, sleep: Sleep) -> Option<List<CellRef>> {
        trywait::park_all(self.list.lock().iter(), waker, sleep)
    }

    /// `fi_trywait`. On success the client may block on the waker's descriptor until it reads again.
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

    /// Arms a counter for a sleeper with a threshold of its own ([`Trywait::arm_threshold`]).
    pub(crate) fn arm_threshold(&self, waker: Option<&Waker>, arm: impl FnOnce(), ready: impl Fn() -> bool) -> bool {
        let (drain, notify) =
            (|| _ = waker.inspect(|waker| waker.drain()), || _ = waker.inspect(|waker| waker.notify()));
        let sleeps = self.outside.arm_threshold(drain, arm, &ready, notify);
        if !sleeps && !ready() {
            yield_to_notified();
        }
        sleeps
    }

    /// Whether threads may sleep outside ([`Trywait::has_sleepers`]).
    pub(crate) fn has_outside_sleepers(&self) -> bool {
        self.outside.has_sleepers()
    }
}

impl Drop for Sources {
    fn drop(&mut self) {
        self.presence.leave();
    }
}

/// Lets notified threads run. The caller cannot sleep, because the bell stays set until these threads have read it.
pub(crate) fn yield_to_notified() {
    std::thread::sleep(NAP);
}

/// Number of rounds of progress that threads have made on these endpoints.
fn rounds(parked: &[CellRef]) -> u64 {
    parked.iter().fold(0, |sum, cell| sum.wrapping_add(cell.activity().0))
}

/// An object on which a thread may wait.
pub(crate) trait Waitable {
    /// The endpoints whose progress ends the wait.
    fn sources(&self) -> &Sources;
    /// Makes one round of progress. Returns 0 when nothing happened.
    fn progress(&self) -> usize {
        self.sources().progress()
    }
    /// The waker to sleep on. With `None` the wait only spins and yields.
    fn waker(&self) -> Option<&Waker>;
    /// Whether the wait is over.
    fn ready(&self) -> bool;
    /// Takes a request that the waiter return without an entry. Returns whether there was one.
    fn take_interrupt(&self) -> bool;
    /// Has the waker notified once, when the object is ready, and drains earlier notifications. Returns `false` if the
    /// object is ready already.
    fn arm(&self) -> bool;
}

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The object is ready.
    Ready,
    /// The time is up.
    TimedOut,
    /// Another thread or a signal interrupted the wait.
    Interrupted,
}

/// Makes progress until `what` is ready, and sleeps in between.
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
                // The next round looks at the cause of the wake-up. If there was none, the thread sleeps again soon.
                fruitless = SPINS;
            }
            _ => std::thread::yield_now(),
        }
    }
}

/// Parks the devices and sleeps once, unless there is something to do.
fn sleep(what: &impl Waitable, waker: &Waker, deadline: Deadline, slice: &mut Duration) -> Woken {
    let sources = what.sources();
    let generation = sources.outside.generation();
    let Some(parked) = sources.park(waker, Sleep::Inside) else { return Woken::Event };
    let before = rounds(&parked);
    let outside = &sources.outside;
    let for_sleepers = if sources.auto.is_some() { &[] } else { &*parked };
    let woken = if outside.park_for_sleepers(for_sleepers, waker, Sleep::Outside)
        && outside.arm(generation, || what.arm(), || waker.notify())
    {
        waker.sleep(Some(deadline.left().map_or(*slice, |left| left.min(*slice))))
    } else {
        Woken::Event
    };
    // If another thread has polled, the devices are no longer parked, and would not wake this thread after that thread
    // stops polling.
    *slice = if rounds(&parked) == before { SLICE } else { BUSY_SLICE };
    wake_all(&parked, Sleep::Inside);
    woken
}
