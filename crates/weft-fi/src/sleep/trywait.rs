//! `Trywait`: what a successful `fi_trywait` leaves behind until the thread reads again: parked devices, for a
//! sleep that we cannot see.
//!
//! Place in the data flow: [`crate::sleep::poll`] and [`crate::eq`] → here → `park` and `unpark` of endpoints. It is
//! a file of its own so that a model checker can try the interleavings (`tests/loom_trywait.rs`).
//!
//! No wake-up is lost: the client sleeps only after the devices were parked, which refuse if something has
//! come, and the queue was armed after that and found empty. Who polls an endpoint that is parked for others
//! parks it again. Only a read by the thread that asked ends the parking: another thread may read the same
//! queue and go away, while the sleeper still relies on it.
//!
//! Where an endpoint joins, the bell is rung for those who have not parked it ([`Trywait::invalidate`]). Whoever
//! takes that ring back, to sleep as well, may have woken nobody else by then: so everything that it has
//! parked is parked for the other sleepers first.
//!
//! A counter's bell rings for all who sleep, but not all of them wait for the same value: whoever goes on
//! waiting leaves it ringing until those who sleep outside have come back ([`Trywait::arm_threshold`]), or have had
//! [`PATIENCE`] to. (A client may ask in one thread and sleep in another, so some never come back.)

use std::time::Duration;

use smallvec::SmallVec;

use super::sync::{AtomicBool, AtomicU64, Instant, Mutex, Ordering};

/// So long a bell is left ringing for threads that were called: longer than a thread that is woken waits for a core.
const PATIENCE: Duration = Duration::from_millis(100);

/// Endpoints that were parked.
pub(crate) type List<C> = SmallVec<[C; 4]>;

/// Something whose devices can be parked.
pub(crate) trait Park {
    /// Where the sleeper sleeps.
    type Waker;
    /// How it sleeps.
    type Sleep: Copy;

    /// Prepares for sleep; `false`: there is something to do.
    fn park(&self, waker: &Self::Waker, sleep: Self::Sleep) -> bool;
    /// Ends what a successful `park` began.
    fn wake(&self, sleep: Self::Sleep);
    /// Whether both are one.
    fn is(&self, other: &Self) -> bool;
}

/// Parks all or none.
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

/// Ends the parking that [`park_all`] began.
pub(crate) fn wake_all<C: Park>(parked: &[C], sleep: C::Sleep) {
    for member in parked {
        member.wake(sleep);
    }
}

/// A thread was told that it may sleep.
struct Sleeper<C> {
    thread: usize,
    /// What is parked for it.
    parked: List<C>,
    /// The calls before it asked.
    generation: u64,
    /// When it was first seen that it has been called since.
    notified_at: Option<Instant>,
}

type Sleepers<C> = SmallVec<[Sleeper<C>; 1]>;

/// What is parked for threads of the client that sleep where we cannot see them.
pub(crate) struct Trywait<C> {
    /// Whether there is any. A reader that sees it late has asked for nothing itself.
    any: AtomicBool,
    sleepers: Mutex<Sleepers<C>>,
    /// How often sleepers were told to look for themselves.
    generation: AtomicU64,
}

impl<C: Park + Clone> Trywait<C> {
    pub(crate) fn new() -> Self {
        Self { any: AtomicBool::new(false), sleepers: Mutex::new(SmallVec::new()), generation: AtomicU64::new(0) }
    }

    /// Whoever sleeps, or is about to, has to look for itself, and the bell is to be rung: an endpoint has
    /// joined, or changed in a way that a sleeper did not expect, and may not be parked for it.
    #[cold]
    pub(crate) fn invalidate(&self) {
        self.generation.fetch_add(1, Ordering::Release);
    }

    /// To be asked before anything is parked for a sleep ([`Trywait::arm`]).
    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// `fi_trywait`: parks by `park` what the client drives, and arms what is waited for. True: the thread
    /// may sleep until it reads.
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

    /// For a sleeper with a wish of its own: takes earlier rings back by `drain`, and makes the wish. False:
    /// not to be slept, since it is `ready`, or a ring was meant for somebody who may not have heard it yet.
    /// Then the bell is rung again.
    pub(crate) fn arm_threshold(
        &self,
        drain: impl FnOnce(),
        arm: impl FnOnce(),
        ready: impl FnOnce() -> bool,
        notify: impl FnOnce(),
    ) -> bool {
        drain();
        arm();
        // Whoever was called is seen to be, if the drain has taken its ring back. What has come is for all who sleep.
        let sleeps = !ready() && !self.awaits_notified();
        if !sleeps {
            notify();
        }
        sleeps
    }

    /// Whether a thread that sleeps outside was called, and has not come back yet.
    fn awaits_notified(&self) -> bool {
        let mut sleepers = self.sleepers.lock();
        let generation = self.generation();
        let mut awaits = false;
        for sleeper in sleepers.iter_mut().filter(|sleeper| sleeper.generation != generation) {
            awaits |= sleeper.notified_at.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
        }
        awaits
    }

    /// Whether there may be threads that sleep outside. Whoever arms after such a thread, by the same lock,
    /// is told of it.
    pub(crate) fn has_sleepers(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    /// Whether the thread may sleep. [`park_all`] has `parked` all members since `generation` was read, and the
    /// queue, which is armed only then, is still empty.
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
        // Seen by whoever arms after this thread, before this one has looked whether it was called.
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

    /// Before a thread that has `parked` these for a sleep inside takes back the ring: parks them for those
    /// who sleep outside, too. False: there is something to do.
    pub(crate) fn park_for_sleepers(&self, parked: &[C], waker: &C::Waker, sleep: C::Sleep) -> bool {
        share(&mut self.sleepers.lock(), parked, waker, sleep)
    }

    /// A thread reads.
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

    /// Something is closed.
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
