//! What brings about the events of connections: the endpoints and passive endpoints that reading an event queue drives.
//!
//! Place in the data flow: `fi_eq_read`, `fi_eq_sread`, `fi_trywait` → [`Drivers`] → engines. Connections are
//! made seldom, so there is none of the economy of [`crate::sleep::poll`]: a list behind a mutex, and a sleep that
//! is cut in slices.
//!
//! No wake-up is lost: who sleeps has first parked all devices, which refuse if something has come, and found
//! the queue still empty after it has hushed the bell ([`tried`]). The slices are for others, whose polls end
//! the parking.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::endpoint::cell::{EndpointCell, Sleep};
use crate::sleep::poll::this_thread;
use crate::sleep::trywait::{self, List, Rest, Tried, unpark};
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
    fn unpark(&self, sleep: Sleep);
    /// The client is about to sleep where we cannot see it: whether a thread of ours makes progress meanwhile.
    fn is_relieved(&self) -> bool;
}

impl Driver for EndpointCell {
    fn progress(&self) -> usize {
        Self::progress(self)
    }

    fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        Self::park(self, waker, sleep)
    }

    fn unpark(&self, sleep: Sleep) {
        Self::unpark(self, sleep);
    }

    fn is_relieved(&self) -> bool {
        Self::is_relieved(self)
    }
}

type DriverRef = Arc<dyn Driver>;

impl Rest for DriverRef {
    type Waker = Waker;
    type Sleep = Sleep;

    fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        Driver::park(&**self, waker, sleep)
    }

    fn unpark(&self, sleep: Sleep) {
        Driver::unpark(&**self, sleep);
    }

    fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(self, other)
    }
}

/// The engines that one queue drives.
pub(crate) struct Drivers {
    list: Mutex<Vec<DriverRef>>,
    /// What `fi_trywait` has parked.
    tried: Tried<DriverRef>,
}

impl Drivers {
    /// None.
    pub(super) fn new() -> Self {
        Self { list: Mutex::default(), tried: Tried::new() }
    }

    /// One more. A sleeper does not know it yet: the bell is to be rung.
    pub(super) fn add(&self, driver: Arc<dyn Driver>) {
        self.list.lock().push(driver);
        self.tried.call();
    }

    /// One of them may not be parked any more for those who sleep: the bell is to be rung.
    pub(super) fn call(&self) {
        self.tried.call();
    }

    /// One less. On return nobody is at work on it from here.
    pub(crate) fn remove<D: Driver + 'static>(&self, driver: &Arc<D>) {
        let known = |other: &Arc<dyn Driver>| std::ptr::addr_eq(Arc::as_ptr(other), Arc::as_ptr(driver));
        self.list.lock().retain(|other| !known(other));
        self.tried.forget(known);
    }

    /// One round of each. Returns 0 when nothing happened.
    pub(super) fn progress(&self) -> usize {
        self.tried.read(this_thread, Sleep::Outside);
        // Another thread that holds the list is doing just this.
        let Some(list) = self.list.try_lock() else { return 0 };
        list.iter().map(|driver| driver.progress()).sum()
    }

    /// Sleeps once, unless there is something to do, or `arm` says no when everything is parked.
    pub(super) fn sleep(&self, waker: &Waker, deadline: &Deadline, arm: impl FnOnce() -> bool) -> Woken {
        let calls = self.tried.calls();
        let Some(parked) = self.park(waker, Sleep::Inside, |_| true) else { return Woken::Event };
        let for_others = parked.iter().filter(|driver| !driver.is_relieved()).cloned().collect::<List<_>>();
        let woken = if self.tried.share(&for_others, waker, Sleep::Outside) && self.arm(waker, calls, arm) {
            let slice = deadline.left().map_or(SLICE, |left| left.min(SLICE));
            waker.sleep(if parked.is_empty() { deadline.left() } else { Some(slice) })
        } else {
            Woken::Event
        };
        unpark(&parked, Sleep::Inside);
        woken
    }

    /// For `fi_trywait`: the client may sleep on the waker's descriptor until it reads again, if `arm` says
    /// so when everything is parked.
    pub(super) fn may_sleep(&self, waker: &Waker, arm: impl FnOnce() -> bool) -> bool {
        let calls = self.tried.calls();
        let parked = self.park(waker, Sleep::Outside, |driver| !driver.is_relieved());
        self.tried.may_sleep(this_thread(), calls, parked, waker, Sleep::Outside, || self.arm(waker, calls, arm))
    }

    /// Takes back the ring, for a sleep before which there had been so many calls.
    fn arm(&self, waker: &Waker, calls: u64, arm: impl FnOnce() -> bool) -> bool {
        let empty = || {
            waker.hush();
            // What has come is for all who sleep.
            let empty = arm();
            if !empty {
                waker.ring();
            }
            empty
        };
        self.tried.arm(calls, empty, || waker.ring())
    }

    /// Parks the devices of those that are `wanted`, all or none.
    fn park(&self, waker: &Waker, sleep: Sleep, wanted: impl Fn(&dyn Driver) -> bool) -> Option<List<DriverRef>> {
        trywait::park(self.list.lock().iter().filter(|driver| wanted(&***driver)), waker, sleep)
    }
}
