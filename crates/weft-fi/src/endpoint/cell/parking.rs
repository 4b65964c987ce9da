//! Sleep and wake of an endpoint: its devices are parked while threads sleep, and the threads are woken.
//!
//! Place in the data flow: [`crate::sleep::poll`] → [`EndpointCell::park`], [`EndpointCell::wake`]; the progress
//! thread → [`State::park_listener`]; data path and control calls → [`EndpointCell::ensure_wake_up`],
//! [`EndpointCell::notify_sleepers`].
//!
//! Three kinds of sleeper rely on parked devices: threads in our blocking calls, threads outside after
//! `fi_trywait`, and the progress thread. A poll by another thread ends the parking, except the one made for the
//! progress thread (`arm`). Each round and each started operation therefore checks whether a sleeper needs a wake.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_nic::Device;

use super::{EndpointCell, State};
use crate::observe::publish::BEFORE_SLEEP;
use crate::sleep::wait::Waker;

/// Rounds of the client without help from the progress thread after which that thread steps back. A blocking
/// call makes fewer rounds before it sleeps.
const UNAIDED_ROUNDS: u32 = 256;

/// Where a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In one of our blocking calls, in slices.
    Inside,
    /// In a system call of its own, after `fi_trywait`.
    Outside,
}

/// The progress thread as seen by one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Listener {
    /// The thread does not watch the devices.
    #[default]
    Away,
    /// The thread watches the devices and is awake, or was woken.
    Awake,
    /// The thread watches the devices and sleeps until they or [`EndpointCell::notify_listener`] wake it.
    Asleep,
}

/// The threads that sleep on an endpoint with its devices parked.
#[derive(Default)]
pub(super) struct Sleepers {
    /// Number of threads that sleep in our calls.
    inside: u32,
    /// Number of the client's wait objects that rely on parked devices after `fi_trywait`. The threads sleep
    /// outside our calls, for an unbounded time.
    outside: u32,
    listener: Listener,
    /// Whether any thread sleeps: a copy of the fields above for the data path.
    any: bool,
    /// Rounds that the client has made since the progress thread last helped.
    unaided_rounds: u32,
}

impl Sleepers {
    /// Whether a round of the client needs [`EndpointCell::progress_beside_sleepers`].
    #[inline(always)]
    pub(super) fn concern_rounds(&self) -> bool {
        self.listener != Listener::Away || self.outside > 0
    }

    /// Whether any thread sleeps.
    #[inline(always)]
    pub(super) fn any(&self) -> bool {
        self.any
    }

    /// Whether threads sleep outside our calls.
    pub(super) fn any_outside(&self) -> bool {
        self.outside > 0
    }

    fn any_of_client(&self) -> bool {
        self.inside > 0 || self.outside > 0
    }

    fn count(&mut self, sleep: Sleep) -> &mut u32 {
        match sleep {
            Sleep::Inside => &mut self.inside,
            Sleep::Outside => &mut self.outside,
        }
    }

    fn add(&mut self, sleep: Sleep) {
        *self.count(sleep) += 1;
        self.any = true;
    }

    fn remove(&mut self, sleep: Sleep) {
        let count = self.count(sleep);
        debug_assert!(*count > 0);
        *count = count.saturating_sub(1);
        self.update();
    }

    /// Notes that the progress thread was woken. Returns whether it slept.
    fn wake_listener(&mut self) -> bool {
        let slept = self.listener == Listener::Asleep;
        if slept {
            self.set_listener(Listener::Awake);
        }
        slept
    }

    /// Returns the state before.
    fn set_listener(&mut self, state: Listener) -> Listener {
        let before = std::mem::replace(&mut self.listener, state);
        self.update();
        before
    }

    fn update(&mut self) {
        self.any = self.listener == Listener::Asleep || self.any_of_client();
    }
}

impl EndpointCell {
    /// Prepares for sleep by a thread of the client. On `true` the endpoint is idle and its devices wake `waker`;
    /// [`EndpointCell::wake`] must follow. On `false` there was work to do, and the caller looks again.
    pub(crate) fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        self.sleeping_threads.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let parked = state.park(waker, sleep);
        if parked {
            self.publish(&mut state, BEFORE_SLEEP);
        } else if state.sleepers.any_outside() {
            state.repark();
        } else if state.sleepers.listener == Listener::Asleep {
            // The attempt may have consumed the event that would have woken the progress thread.
            let _ = self.ensure_sleepers_wake(&mut state);
        }
        drop(state);
        if !parked {
            self.sleeping_threads.fetch_sub(1, Ordering::Relaxed);
        }
        parked
    }

    /// Ends the sleep that a successful [`EndpointCell::park`] began.
    pub(crate) fn wake(&self, sleep: Sleep) {
        self.state.lock().wake(sleep);
        self.sleeping_threads.fetch_sub(1, Ordering::Relaxed);
    }

    /// Has the progress thread progress the endpoint without waiting for a tick, since the client is about to
    /// sleep outside our calls. Returns whether there is a progress thread.
    pub(crate) fn notify_progress_thread(&self) -> bool {
        self.progress_thread.as_ref().inspect(|thread| thread.notify_client_parked()).is_some()
    }

    /// Returns whether the client has asked the progress thread to step back, and clears the request.
    pub(crate) fn take_step_back(&self) -> bool {
        self.step_back.load(Ordering::Relaxed) && self.step_back.swap(false, Ordering::Relaxed)
    }

    /// The client has made a round while threads rely on parked devices.
    #[cold]
    pub(super) fn progress_beside_sleepers(&self, state: &mut State) {
        let sleepers = &mut state.sleepers;
        sleepers.unaided_rounds = sleepers.unaided_rounds.saturating_add(1);
        let watched = sleepers.listener != Listener::Away;
        if watched && sleepers.unaided_rounds > UNAIDED_ROUNDS && sleepers.inside == 0 {
            // From now on the thread looks at the endpoint once per tick.
            state.end_listening();
            self.step_back.store(true, Ordering::Relaxed);
            self.progress_thread.as_ref().inspect(|thread| thread.notify());
        }
        if state.sleepers.any_outside() {
            state.repark();
        } else if state.sleepers.listener == Listener::Asleep {
            let _ = self.ensure_sleepers_wake(state);
        }
    }

    /// The client leaves the endpoint after it has started an operation. Wakes sleepers, or parks the devices
    /// again, if the devices would not wake them for the work that is pending. Returns whether programs can go on.
    #[inline(always)]
    pub(in crate::endpoint) fn ensure_wake_up(&self, state: &mut State) -> bool {
        state.sleepers.any && self.ensure_sleepers_wake(state)
    }

    #[cold]
    fn ensure_sleepers_wake(&self, state: &mut State) -> bool {
        let Some(engine) = &state.engine else { return false };
        if state.sleepers.listener == Listener::Asleep {
            if engine.has_work() || !engine.nic().is_armed() {
                self.notify_listener(state);
            }
        } else if !state.sleepers.any_outside() {
            // A thread in one of our calls looks for itself after each slice. Work that only waits for the peer
            // can wait as long.
            if !engine.nic().is_idle() {
                state.routes.notify();
            }
        } else if engine.has_work() || !engine.nic().is_idle() {
            state.repark();
            return state.programs_due;
        }
        false
    }

    /// Wakes the progress thread, if it sleeps.
    pub(in crate::endpoint) fn notify_listener(&self, state: &mut State) {
        if state.sleepers.wake_listener() {
            self.progress_thread.as_ref().inspect(|thread| thread.notify());
        }
    }

    /// Wakes all sleepers after a control call. The call may have left completions undelivered, made room for
    /// stalled programs, or ended the devices' parking.
    pub(in crate::endpoint) fn notify_sleepers(&self, state: &mut State) {
        state.programs_due |= state.programs_stalled;
        if state.sleepers.any_of_client() {
            state.routes.notify();
        }
        self.notify_listener(state);
    }
}

impl State {
    fn park(&mut self, waker: &Waker, sleep: Sleep) -> bool {
        // The devices do not wake anyone for programs that are due.
        if !(self.watch_idle(waker) && !self.programs_due && self.park_devices()) {
            return false;
        }
        self.sleepers.add(sleep);
        true
    }

    fn wake(&mut self, sleep: Sleep) {
        self.sleepers.remove(sleep);
        // Devices with another sleeper stay parked until the next poll.
        if !self.sleepers.any_of_client() && self.sleepers.listener == Listener::Away {
            self.wake_devices();
        }
    }

    /// Parks the devices again after a round that was made while threads of the client rely on the parking. The
    /// caller may leave for an unbounded time.
    #[cold]
    pub(super) fn repark(&mut self) {
        if !(self.progress_until_idle() && self.park_devices()) {
            // The endpoint is too busy to park: the sleepers must look for themselves.
            self.routes.notify();
        }
    }

    /// Parks the devices for the progress thread, which sleeps from now on. On `false` there was work to do.
    pub(crate) fn park_listener(&mut self, waker: &Waker) -> bool {
        if !(self.watch_idle(waker) && self.engine.as_mut().is_none_or(|engine| engine.nic_mut().arm())) {
            return false;
        }
        if self.sleepers.set_listener(Listener::Asleep) == Listener::Away {
            self.sleepers.unaided_rounds = 0;
        }
        true
    }

    /// The progress thread is awake. If it slept, the devices are told.
    pub(crate) fn wake_listener(&mut self) {
        if self.sleepers.wake_listener()
            && let Some(engine) = &mut self.engine
        {
            engine.nic_mut().wake_listener();
        }
    }

    /// The progress thread has helped: it found work that the client had not done.
    pub(crate) fn progress_thread_helped(&mut self) {
        self.sleepers.unaided_rounds = 0;
    }

    /// The progress thread no longer watches the devices.
    pub(crate) fn end_listening(&mut self) {
        let before = self.sleepers.set_listener(Listener::Away);
        if before != Listener::Away && !self.sleepers.any_of_client() {
            self.wake_devices();
        }
    }

    /// Whether a thread sleeps in our calls. A poll would end the parking that it relies on.
    pub(crate) fn has_inside_sleepers(&self) -> bool {
        self.sleepers.inside > 0
    }

    /// The descriptor that becomes readable when parked devices have work.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref().map(|engine| engine.nic().wait_fd())
    }

    /// Makes rounds until the endpoint is idle, and has `waker` watch its devices. Returns `false` if there was
    /// work, or if the system refuses to watch: a sleeper without the descriptor would not be woken.
    fn watch_idle(&mut self, waker: &Waker) -> bool {
        self.progress_until_idle() && self.wait_fd().is_none_or(|fd| waker.watch(fd).is_ok())
    }

    fn park_devices(&mut self) -> bool {
        self.engine.as_mut().is_none_or(|engine| engine.nic_mut().park())
    }

    fn wake_devices(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.nic_mut().wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_of_any_kind_is_noted_until_it_wakes() {
        let mut sleepers = Sleepers::default();
        sleepers.add(Sleep::Inside);
        sleepers.add(Sleep::Outside);
        sleepers.remove(Sleep::Inside);
        assert!(sleepers.any() && sleepers.any_outside());
        sleepers.remove(Sleep::Outside);
        assert!(!sleepers.any() && !sleepers.concern_rounds());
        assert_eq!(sleepers.set_listener(Listener::Asleep), Listener::Away);
        assert!(sleepers.any() && sleepers.concern_rounds());
        assert!(sleepers.wake_listener() && !sleepers.wake_listener());
        assert!(!sleepers.any() && sleepers.concern_rounds());
    }
}
