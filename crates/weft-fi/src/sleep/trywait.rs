//! `Trywait`: the endpoints that a successful `fi_trywait` has parked, until the thread reads again.
//!
//! Place in the data flow: [`crate::sleep::poll`] and [`crate::eq`] → here → `park` and `wake` of endpoints. The
//! protocol is a file of its own so that a model checker can try the interleavings (`tests/loom_trywait.rs`).
//!
//! The client sleeps in a system call of its own, which weft does not see. No wake-up is lost:
//!
//! - The client sleeps only after the devices were parked, which fails if something has arrived. After that the queue
//!   was armed and found empty.
//! - A thread that polls an endpoint on which others sleep parks it again.
//! - Only a read by the thread that called `fi_trywait` ends the parking. Another thread may read the same queue and
//!   stop, while the sleeper still relies on the parking.
//! - When an endpoint joins, the sleepers, which have not parked it, are notified ([`Trywait::invalidate`]).
//!   A thread that drains this notification, to sleep as well, may do so before a sleeper has woken. It
//!   therefore first parks its own endpoints for the other sleepers.
//! - A counter's bell wakes all sleepers, which may wait for different values. A thread that continues to
//!   wait leaves the bell set until the outside sleepers have returned ([`Trywait::arm_threshold`]), or had
//!   [`PATIENCE`] to do so. A client may call `fi_trywait` in one thread and sleep in another, so some
//!   sleepers never return.

use std::time::Duration;

use smallvec::SmallVec;

use super::sync::{AtomicBool, AtomicU64, Instant, Mutex, Ordering};

/// The time for which a bell stays set for notified threads. It exceeds the time that a woken thread waits for a core.
const PATIENCE: Duration = Duration::from_millis(100);

/// Parked endpoints.
pub(crate) type List<C> = SmallVec<[C; 4]>;

/// An object whose devices can be parked.
pub(crate) trait Park {
    /// The waker on which the thread sleeps.
    type Waker;
    /// The kind of sleep.
    type Sleep: Copy;

    /// Parks the devices for a sleep. Returns `false` if there is something to do.
    fn park(&self, waker: &Self::Waker, sleep: Self::Sleep) -> bool;
    /// Ends the sleep that a successful `park` began.
    fn wake(&self, sleep: Self::Sleep);
    /// Whether both are the same object.
    fn is(&self, other: &Self) -> bool;
}

/// Parks all members, or none.
pub(crate) fn park_all<'a, C: Park + Clone + 'a>(
    list: impl Iterator<Item = &'a C>,
    waker: &C::Waker,
    sleep: C::Sleep,
) -> Option<List<C>> {
    let mut parked = List::new();
    for member in list {
        if !member.park(waker, sleep) {
            wake_all(&parked, sleep);
            return None;
        }
        parked.push(member.clone());
    }
    Some(parked)
}

/// Ends the sleep that [`park_all`] began.
pub(crate) fn wake_all<C: Park>(parked: &[C], sleep: C::Sleep) {
    for member in parked {
        member.wake(sleep);
    }
}

/// A thread that may sleep after `fi_trywait`.
struct Sleeper<C> {
    thread: usize,
    /// The endpoints that are parked for it.
    parked: List<C>,
    /// The generation when it called `fi_trywait`.
    generation: u64,
    /// When another thread first found that it was notified since.
    notified_at: Option<Instant>,
}

type Sleepers<C> = SmallVec<[Sleeper<C>; 1]>;

/// The outside sleepers of one queue, counter or event queue.
pub(crate) struct Trywait<C> {
    /// Whether there is a sleeper. A reader that sees a stale value has not called `fi_trywait` itself.
    any: AtomicBool,
    sleepers: Mutex<Sleepers<C>>,
    /// Number of notifications to all sleepers.
    generation: AtomicU64,
}

impl<C: Park + Clone> Trywait<C> {
    pub(crate) fn new() -> Self {
        Self { any: AtomicBool::new(false), sleepers: Mutex::new(SmallVec::new()), generation: AtomicU64::new(0) }
    }

    /// Makes threads look again that sleep here or are about to sleep. An endpoint has joined or changed, and may not
    /// be parked for them. The caller notifies the bell afterwards.
    #[cold]
    pub(crate) fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// The current generation. It is read before anything is parked for a sleep ([`Trywait::arm`]).
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// `fi_trywait`: parks the client's endpoints by `park`, and arms the queue or counter by `arm`. Returns
    /// whether the thread may sleep until it reads.
    pub(crate) fn trywait(
        &self,
        thread: usize,
        park: impl FnOnce() -> Option<List<C>>,
        waker: &C::Waker,
        sleep: C::Sleep,
        arm: impl FnOnce() -> bool,
        notify: impl FnOnce(),
    ) -> bool {
        let generation = self.generation();
        self.admit(thread, generation, park(), waker, sleep, || self.arm(generation, arm, notify))
    }

    /// Arms the wait object for a sleep that began in `generation`. False: the thread must not sleep. If the
    /// generation has changed since, the drain may have taken back a notification for other sleepers, so the bell
    /// is notified again.
    pub(crate) fn arm(&self, generation: u64, arm: impl FnOnce() -> bool, notify: impl FnOnce()) -> bool {
        if !arm() {
            return false;
        }
        let same = self.generation() == generation;
        if !same {
            notify();
        }
        same
    }

    /// Arms a counter for a sleeper with a threshold of its own, after a drain of the bell. Returns whether the thread
    /// may sleep. It may not if the counter is `ready`, or if the drained notification was meant for a thread that may
    /// not have read it yet: then the bell is notified again.
    pub(crate) fn arm_threshold(
        &self,
        drain: impl FnOnce(),
        arm: impl FnOnce(),
        ready: impl FnOnce() -> bool,
        notify: impl FnOnce(),
    ) -> bool {
        drain();
        arm();
        // If the drain has taken another thread's notification, that thread's generation is seen to be old. An event is
        // for all sleepers.
        let sleeps = !ready() && !self.awaits_notified();
        if !sleeps {
            notify();
        }
        sleeps
    }

    /// Whether an outside sleeper was notified and has not returned yet.
    fn awaits_notified(&self) -> bool {
        let mut sleepers = self.sleepers.lock();
        let generation = self.generation();
        let mut awaits = false;
        for sleeper in sleepers.iter_mut().filter(|sleeper| sleeper.generation != generation) {
            awaits |= sleeper.notified_at.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
        }
        awaits
    }

    /// Whether threads may sleep outside. The result includes every sleeper that has armed before the caller, under the
    /// same lock.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether the thread may sleep: [`park_all`] has `parked` all members since `generation` was read, and the queue,
    /// which is armed after that, is still empty.
    pub(crate) fn admit(
        &self,
        thread: usize,
        generation: u64,
        parked: Option<List<C>>,
        waker: &C::Waker,
        sleep: C::Sleep,
        arm: impl FnOnce() -> bool,
    ) -> bool {
        let Some(parked) = parked else { return false };
        // Threads that arm later see this sleeper, even before it checks its generation.
        let (before, shared) = {
            let mut sleepers = self.sleepers.lock();
            let before = take(&mut sleepers, thread);
            let shared = share(&mut sleepers, &parked, waker, sleep);
            sleepers.push(Sleeper { thread, parked, generation, notified_at: None });
            self.any.store(true, Ordering::Relaxed);
            (before, shared)
        };
        before.inspect(|gone| wake_all(gone, sleep));
        let armed = shared && arm();
        if !armed {
            self.wake_thread(thread, sleep);
        }
        armed
    }

    /// Parks the endpoints of an inside sleeper for the outside sleepers as well, before the thread drains the bell.
    /// Returns `false` if there is something to do.
    pub(crate) fn park_for_sleepers(&self, parked: &[C], waker: &C::Waker, sleep: C::Sleep) -> bool {
        share(&mut self.sleepers.lock(), parked, waker, sleep)
    }

    /// A thread reads, which ends its sleep.
    #[inline]
    pub(crate) fn wake(&self, thread: impl FnOnce() -> usize, sleep: C::Sleep) {
        if self.any.load(Ordering::Relaxed) {
            self.wake_thread(thread(), sleep);
        }
    }

    #[cold]
    fn wake_thread(&self, thread: usize, sleep: C::Sleep) {
        let gone = {
            let mut sleepers = self.sleepers.lock();
            let gone = take(&mut sleepers, thread);
            self.any.store(!sleepers.is_empty(), Ordering::Relaxed);
            gone
        };
        gone.inspect(|gone| wake_all(gone, sleep));
    }

    /// Removes closed endpoints.
    pub(crate) fn remove(&self, gone: impl Fn(&C) -> bool) {
        for sleeper in self.sleepers.lock().iter_mut() {
            sleeper.parked.retain(|member| !gone(member));
        }
    }
}

fn share<C: Park + Clone>(sleepers: &mut Sleepers<C>, parked: &[C], waker: &C::Waker, sleep: C::Sleep) -> bool {
    sleepers.iter_mut().all(|Sleeper { parked: theirs, .. }| {
        parked.iter().all(|member| {
            if theirs.iter().any(|known| known.is(member)) {
                return true;
            }
            let parks = member.park(waker, sleep);
            if parks {
                theirs.push(member.clone());
            }
            parks
        })
    })
}

fn take<C>(sleepers: &mut Sleepers<C>, thread: usize) -> Option<List<C>> {
    let at = sleepers.iter().position(|sleeper| sleeper.thread == thread)?;
    Some(sleepers.swap_remove(at).parked)
}
