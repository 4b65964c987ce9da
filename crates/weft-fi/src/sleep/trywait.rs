//! `Tried`: what a successful `fi_trywait` leaves behind until the thread reads again: parked devices, for a
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
//! Where an endpoint joins, the bell is rung for those who have not parked it ([`Tried::call`]). Whoever
//! takes that ring back, to sleep as well, may have woken nobody else by then: so everything that it has
//! parked is parked for the other sleepers first.
//!
//! A counter's bell rings for all who sleep, but not all of them wait for the same value: whoever goes on
//! waiting leaves it ringing until those who sleep outside have come back ([`Tried::take_back`]), or have had
//! [`PATIENCE`] to. (A client may ask in one thread and sleep in another, so some never come back.)

use std::time::Duration;

use smallvec::SmallVec;

use super::sync::{AtomicBool, AtomicU64, Instant, Mutex, Ordering};

/// So long a bell is left ringing for threads that were called: longer than a thread that is woken waits for a core.
const PATIENCE: Duration = Duration::from_millis(100);

/// Endpoints that were parked.
pub(crate) type List<C> = SmallVec<[C; 4]>;

/// Something whose devices can be parked.
pub(crate) trait Rest {
    /// Where the sleeper sleeps.
    type Waker;
    /// How it sleeps.
    type Sleep: Copy;

    /// Prepares for sleep; `false`: there is something to do.
    fn park(&self, waker: &Self::Waker, sleep: Self::Sleep) -> bool;
    /// Ends what a successful `park` began.
    fn unpark(&self, sleep: Self::Sleep);
    /// Whether both are one.
    fn is(&self, other: &Self) -> bool;
}

/// Parks all or none.
pub(crate) fn park<'a, C: Rest + Clone + 'a>(
    list: impl Iterator<Item = &'a C>,
    waker: &C::Waker,
    sleep: C::Sleep,
) -> Option<List<C>> {
    let mut parked = List::new();
    for member in list {
        if !member.park(waker, sleep) {
            unpark(&parked, sleep);
            return None;
        }
        parked.push(member.clone());
    }
    Some(parked)
}

/// Ends what [`park`] began.
pub(crate) fn unpark<C: Rest>(parked: &[C], sleep: C::Sleep) {
    for member in parked {
        member.unpark(sleep);
    }
}

/// A thread was told that it may sleep.
struct Promise<C> {
    thread: usize,
    /// What is parked for it.
    parked: List<C>,
    /// The calls before it asked.
    calls: u64,
    /// When it was first seen that it has been called since.
    called: Option<Instant>,
}

type Promises<C> = SmallVec<[Promise<C>; 1]>;

/// What is parked for threads of the client that sleep where we cannot see them.
pub(crate) struct Tried<C> {
    /// Whether there is any. A reader that sees it late has asked for nothing itself.
    some: AtomicBool,
    promises: Mutex<Promises<C>>,
    /// How often sleepers were told to look for themselves.
    calls: AtomicU64,
}

impl<C: Rest + Clone> Tried<C> {
    pub(crate) fn new() -> Self {
        Self { some: AtomicBool::new(false), promises: Mutex::new(SmallVec::new()), calls: AtomicU64::new(0) }
    }

    /// Whoever sleeps, or is about to, has to look for itself, and the bell is to be rung: an endpoint has
    /// joined, or changed in a way that a sleeper did not expect, and may not be parked for it.
    #[cold]
    pub(crate) fn call(&self) {
        self.calls.fetch_add(1, Ordering::Release);
    }

    /// To be asked before anything is parked for a sleep ([`Tried::arm`]).
    pub(crate) fn calls(&self) -> u64 {
        self.calls.load(Ordering::Acquire)
    }

    /// `fi_trywait`: parks by `park` what the client drives, and arms what is waited for. True: the thread
    /// may sleep until it reads.
    pub(crate) fn ask(
        &self,
        thread: usize,
        park: impl FnOnce() -> Option<List<C>>,
        waker: &C::Waker,
        sleep: C::Sleep,
        arm: impl FnOnce() -> bool,
        ring: impl FnOnce(),
    ) -> bool {
        let calls = self.calls();
        self.may_sleep(thread, calls, park(), waker, sleep, || self.arm(calls, arm, ring))
    }

    /// Arms what is waited for, for a sleep before which there had been so many `calls`. False: not to be
    /// slept. If there was a call since, the ring may have been taken back that was meant for others who
    /// sleep: the bell is rung again.
    pub(crate) fn arm(&self, calls: u64, arm: impl FnOnce() -> bool, ring: impl FnOnce()) -> bool {
        if !arm() {
            return false;
        }
        let same = self.calls() == calls;
        if !same {
            ring();
        }
        same
    }

    /// For a sleeper with a wish of its own: takes earlier rings back by `hush`, and makes the wish. False:
    /// not to be slept, since it is `ready`, or a ring was meant for somebody who may not have heard it yet.
    /// Then the bell is rung again.
    pub(crate) fn take_back(
        &self,
        hush: impl FnOnce(),
        wish: impl FnOnce(),
        ready: impl FnOnce() -> bool,
        ring: impl FnOnce(),
    ) -> bool {
        hush();
        wish();
        // Whoever was called is seen to be, if the hush has taken its ring back. What has come is for all who sleep.
        let sleeps = !ready() && !self.awaits();
        if !sleeps {
            ring();
        }
        sleeps
    }

    /// Whether a thread that sleeps outside was called, and has not come back yet.
    fn awaits(&self) -> bool {
        let mut promises = self.promises.lock();
        let calls = self.calls();
        let mut awaits = false;
        for promise in promises.iter_mut().filter(|promise| promise.calls != calls) {
            awaits |= promise.called.get_or_insert_with(Instant::now).elapsed() < PATIENCE;
        }
        awaits
    }

    /// Whether there may be threads that sleep outside. Whoever arms after such a thread, by the same lock,
    /// is told of it.
    pub(crate) fn has_promised(&self) -> bool {
        self.some.load(Ordering::Relaxed)
    }

    /// Whether the thread may sleep: all are `parked` ([`park`]) after there had been so many `calls`, and
    /// the queue, which is armed only then, is still empty.
    pub(crate) fn may_sleep(
        &self,
        thread: usize,
        calls: u64,
        parked: Option<List<C>>,
        waker: &C::Waker,
        sleep: C::Sleep,
        arm: impl FnOnce() -> bool,
    ) -> bool {
        let Some(parked) = parked else { return false };
        // Seen by whoever arms after this thread, before this one has looked whether it was called.
        let (before, shared) = {
            let mut promises = self.promises.lock();
            let before = take(&mut promises, thread);
            let shared = share(&mut promises, &parked, waker, sleep);
            promises.push(Promise { thread, parked, calls, called: None });
            self.some.store(true, Ordering::Relaxed);
            (before, shared)
        };
        before.inspect(|gone| unpark(gone, sleep));
        let armed = shared && arm();
        if !armed {
            self.is_back(thread, sleep);
        }
        armed
    }

    /// Before a thread that has `parked` these for a sleep inside takes back the ring: parks them for those
    /// who sleep outside, too. False: there is something to do.
    pub(crate) fn share(&self, parked: &[C], waker: &C::Waker, sleep: C::Sleep) -> bool {
        share(&mut self.promises.lock(), parked, waker, sleep)
    }

    /// A thread reads.
    #[inline]
    pub(crate) fn read(&self, thread: impl FnOnce() -> usize, sleep: C::Sleep) {
        if self.some.load(Ordering::Relaxed) {
            self.is_back(thread(), sleep);
        }
    }

    #[cold]
    fn is_back(&self, thread: usize, sleep: C::Sleep) {
        let gone = {
            let mut promises = self.promises.lock();
            let gone = take(&mut promises, thread);
            self.some.store(!promises.is_empty(), Ordering::Relaxed);
            gone
        };
        gone.inspect(|gone| unpark(gone, sleep));
    }

    /// Something is closed.
    pub(crate) fn forget(&self, gone: impl Fn(&C) -> bool) {
        for promise in self.promises.lock().iter_mut() {
            promise.parked.retain(|member| !gone(member));
        }
    }
}

fn share<C: Rest + Clone>(promises: &mut Promises<C>, parked: &[C], waker: &C::Waker, sleep: C::Sleep) -> bool {
    promises.iter_mut().all(|Promise { parked: theirs, .. }| {
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

fn take<C>(promises: &mut Promises<C>, thread: usize) -> Option<List<C>> {
    let at = promises.iter().position(|promise| promise.thread == thread)?;
    Some(promises.swap_remove(at).parked)
}
