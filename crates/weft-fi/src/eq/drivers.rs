//! The endpoints and passive endpoints that make progress when an event queue is read.
//!
//! Place in the data flow: `fi_eq_read`, `fi_eq_sread`, `fi_trywait` → [`Drivers`] → engines. Connections are
//! made seldom, so there is none of the economy of [`crate::sleep::poll`]: a list behind a mutex, and a sleep that
//! is cut in slices.
//!
//! No wake-up is lost. A thread sleeps only after all devices were parked, which fails if there is an arrival,
//! and after the queue was still empty once the bell was drained ([`trywait`]). Sleeps are cut in slices because
//! polls of other threads end the parking.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::endpoint::cell::{EndpointCell, Sleep};
use crate::sleep::poll::this_thread;
use crate::sleep::trywait::{self, List, Park, Trywait, wake_all};
use crate::sleep::wait::{Deadline, Waker, Woken};

/// Longest sleep between looks at the engines.
const SLICE: Duration = Duration::from_millis(20);

/// An engine that makes events.
pub(crate) trait Driver: Send + Sync {
    /// One round. Returns 0 when nothing happened.
    fn progress(&self) -> usize;
    /// Prepares for sleep on `waker`; `false`: there is something to do.
    fn park(&self, waker: &Waker, sleep: Sleep) -> bool;
    /// Ends what a successful `park` began.
    fn wake(&self, sleep: Sleep);
    /// The client is about to sleep where we cannot see it: whether a thread of ours makes progress meanwhile.
    fn notify_progress_thread(&self) -> bool;
}

impl Driver for EndpointCell {
    fn progress(&self) -> usize {
        Self::progress(self)
    }

    fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        Self::park(self, waker, sleep)
    }

    fn wake(&self, sleep: Sleep) {
        Self::wake(self, sleep);
    }

    fn notify_progress_thread(&self) -> bool {
        Self::notify_progress_thread(self)
    }
}

type DriverRef = Arc<dyn Driver>;

impl Park for DriverRef {
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

/// The engines that one queue drives.
pub(crate) struct Drivers {
    list: Mutex<Vec<DriverRef>>,
    /// What `fi_trywait` has parked.
    outside: Trywait<DriverRef>,
}

impl Drivers {
    /// None.
    pub(super) fn new() -> Self {
        Self { list: Mutex::default(), outside: Trywait::new() }
    }

    /// One more. A sleeper does not know it yet: the bell is to be rung.
    pub(super) fn add(&self, driver: Arc<dyn Driver>) {
        self.list.lock().push(driver);
        self.outside.invalidate();
    }

    /// One of them may not be parked any more for those who sleep: the bell is to be rung.
    pub(super) fn notify(&self) {
        self.outside.invalidate();
    }

    /// One less. On return nobody is at work on it from here.
    pub(crate) fn remove<D: Driver + 'static>(&self, driver: &Arc<D>) {
        let known = |other: &Arc<dyn Driver>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(driver));
        self.list.lock().retain(|other| !known(other));
        self.outside.remove(known);
    }

    /// One round of each. Returns 0 when nothing happened.
    pub(super) fn progress(&self) -> usize {
        self.outside.wake(this_thread, Sleep::Outside);
        // Another thread that holds the list is doing just this.
        let Some(list) = self.list.try_lock() else { return 0 };
        list.iter().map(|driver| driver.progress()).sum()
    }

    /// Sleeps once, unless there is something to do, or `arm` says no when everything is parked.
    pub(super) fn sleep(&self, waker: &Waker, deadline: &Deadline, arm: impl FnOnce() -> bool) -> Woken {
        let generation = self.outside.generation();
        let Some(parked) = self.park(waker, Sleep::Inside, |_| true) else { return Woken::Event };
        let for_others = parked.iter().filter(|driver| !driver.notify_progress_thread()).cloned().collect::<List<_>>();
        let woken =
            if self.outside.park_for_sleepers(&for_others, waker, Sleep::Outside) && self.arm(waker, generation, arm) {
                let slice = deadline.left().map_or(SLICE, |left| left.min(SLICE));
                waker.sleep(if parked.is_empty() { deadline.left() } else { Some(slice) })
            } else {
                Woken::Event
            };
        wake_all(&parked, Sleep::Inside);
        woken
    }

    /// For `fi_trywait`: the client may sleep on the waker's descriptor until it reads again, if `arm` says
    /// so when everything is parked.
    pub(super) fn park_for_trywait(&self, waker: &Waker, arm: impl FnOnce() -> bool) -> bool {
        let generation = self.outside.generation();
        let parked = self.park(waker, Sleep::Outside, |driver| !driver.notify_progress_thread());
        self.outside
            .admit(this_thread(), generation, parked, waker, Sleep::Outside, || self.arm(waker, generation, arm))
    }

    /// Takes back the ring, for a sleep before which there had been so many calls.
    fn arm(&self, waker: &Waker, generation: u64, arm: impl FnOnce() -> bool) -> bool {
        let empty = || {
            waker.drain();
            // What has come is for all who sleep.
            let empty = arm();
            if !empty {
                waker.notify();
            }
            empty
        };
        self.outside.arm(generation, empty, || waker.notify())
    }

    /// Parks the devices of those that are `wanted`, all or none.
    fn park(&self, waker: &Waker, sleep: Sleep, wanted: impl Fn(&dyn Driver) -> bool) -> Option<List<DriverRef>> {
        trywait::park_all(self.list.lock().iter().filter(|driver| wanted(&***driver)), waker, sleep)
    }
}
