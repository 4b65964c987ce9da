//! The endpoints and passive endpoints that make progress when an event queue is read.
//!
//! Place in the data flow: `fi_eq_read`, `fi_eq_sread`, `fi_trywait` → [`Drivers`] → engines. Connections are
//! rare, so this is simpler than [`crate::sleep::poll`]: a list behind a mutex, and sleeps divided into
//! slices.
//!
//! No wake-up is lost. A thread sleeps only if two conditions hold. All devices are parked, which fails if
//! there is an arrival. The queue is still empty after the waker was drained ([`trywait`]). Sleeps are divided
//! into slices, because polls by other threads end the parking.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weft_nic::Device;

use crate::endpoint::cell::{EndpointCell, Sleep};
use crate::sleep::poll::this_thread;
use crate::sleep::trywait::{self, List, Park, Trywait, wake_all};
use crate::sleep::wait::{Deadline, Waker, Woken};

/// Longest sleep between two rounds of progress.
const SLICE: Duration = Duration::from_millis(20);

/// An engine that generates events.
pub(crate) trait Driver: Send + Sync {
    /// Makes one round of progress. Returns 0 if nothing happened.
    fn progress(&self) -> usize;
    /// Prepares for a sleep on `waker`. `false`: there is work to do.
    fn park(&self, waker: &Waker, sleep: Sleep) -> bool;
    /// Ends a successful `park`.
    fn wake(&self, sleep: Sleep);
    /// The client is about to sleep outside weft's calls. Returns whether a progress thread makes progress
    /// meanwhile.
    fn notify_progress_thread(&self) -> bool;
}

impl<D: Device> Driver for EndpointCell<D> {
    fn progress(&self) -> usize {
        Self::progress(self, None)
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

/// The engines on which a queue makes progress.
pub(crate) struct Drivers {
    list: Mutex<Vec<DriverRef>>,
    /// The engines that `fi_trywait` has parked.
    outside: Trywait<DriverRef>,
}

impl Drivers {
    /// Creates an empty list.
    pub(super) fn new() -> Self {
        Self { list: Mutex::default(), outside: Trywait::new() }
    }

    /// Adds an engine. Sleepers do not know it yet, so the caller must notify the waker.
    pub(super) fn add(&self, driver: Arc<dyn Driver>) {
        self.list.lock().push(driver);
        self.outside.invalidate();
    }

    /// An engine may no longer be parked for the sleepers, so the caller must notify the waker.
    pub(super) fn notify(&self) {
        self.outside.invalidate();
    }

    /// Removes an engine. On return, no thread makes progress on it through this list.
    pub(crate) fn remove<D: Driver + 'static>(&self, driver: &Arc<D>) {
        let known = |other: &Arc<dyn Driver>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(driver));
        self.list.lock().retain(|other| !known(other));
        self.outside.remove(known);
    }

    /// Makes one round of progress on each engine. Returns 0 if nothing happened.
    pub(super) fn progress(&self) -> usize {
        self.outside.wake(this_thread, Sleep::Outside);
        // The thread that holds the list is making this round.
        let Some(list) = self.list.try_lock() else { return 0 };
        list.iter().map(|driver| driver.progress()).sum()
    }

    /// Sleeps once, unless there is work to do, or `arm` returns false when everything is parked.
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

    /// Implements `fi_trywait`. True: the client may sleep on the waker's descriptor until its next read.
    /// `arm` is called when everything is parked.
    pub(super) fn park_for_trywait(&self, waker: &Waker, arm: impl FnOnce() -> bool) -> bool {
        let generation = self.outside.generation();
        let parked = self.park(waker, Sleep::Outside, |driver| !driver.notify_progress_thread());
        self.outside
            .admit(this_thread(), generation, parked, waker, Sleep::Outside, || self.arm(waker, generation, arm))
    }

    /// Drains the waker before a sleep that began in `generation`, and calls `arm`. False: the thread must not
    /// sleep.
    fn arm(&self, waker: &Waker, generation: u64, arm: impl FnOnce() -> bool) -> bool {
        let empty = || {
            waker.drain();
            // The event must wake all sleepers.
            let empty = arm();
            if !empty {
                waker.notify();
            }
            empty
        };
        self.outside.arm(generation, empty, || waker.notify())
    }

    /// Parks the devices of the engines for which `wanted` returns true, all or none.
    fn park(&self, waker: &Waker, sleep: Sleep, wanted: impl Fn(&dyn Driver) -> bool) -> Option<List<DriverRef>> {
        trywait::park_all(self.list.lock().iter().filter(|driver| wanted(&***driver)), waker, sleep)
    }
}
