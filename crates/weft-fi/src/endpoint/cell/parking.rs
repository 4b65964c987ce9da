//! Sleep and wake of an endpoint: its devices are parked while threads sleep, and the threads are woken.
//!
//! Place in the data flow: [`crate::sleep::poll`] → [`EndpointCell::park`], [`EndpointCell::wake`]; the progress
//! thread → [`CellState::park_listener`]; data path and control calls → [`EndpointCell::ensure_wake_up`],
//! [`EndpointCell::notify_sleepers`].
//!
//! [`crate::sleep`] describes the sleepers and their states. Two kinds of threads of the client rely on
//! parked devices: threads in blocking calls, and threads outside after `fi_trywait`. The progress thread
//! relies on armed devices. A poll by another thread ends the parking, and leaves armed devices armed. Each
//! round and each started operation therefore checks whether a sleeper needs a notification.

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_nic::Device;

use super::{CellState, EndpointCell, Sleep};
use crate::sleep::parking::Effect;
use crate::sleep::policy::Next;
use crate::sleep::wait::Waker;
use weft_observe::BEFORE_SLEEP;

impl<D: Device> EndpointCell<D> {
    /// Prepares for sleep by a thread of the client. On `true` the endpoint is idle and its devices wake `waker`;
    /// [`EndpointCell::wake`] must follow. On `false` there was work to do, and the caller looks again.
    pub(crate) fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        self.sleeping_threads.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let parked = state.park(waker, sleep);
        if parked {
            self.publish(&mut state, BEFORE_SLEEP);
        } else if state.parking.has_outside() {
            state.park_again();
        } else if state.parking.is_listener_parked() {
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

    /// Has the progress thread progress the endpoint without waiting for a tick: a thread of the client is
    /// about to sleep outside calls of weft. Returns whether there is a progress thread.
    pub(crate) fn notify_progress_thread(&self) -> bool {
        self.progress_thread.as_ref().inspect(|thread| thread.notify_client_parked()).is_some()
    }

    /// The client has made a round while threads rely on parked devices.
    #[cold]
    pub(super) fn progress_beside_sleepers(&self, state: &mut CellState<D>) {
        match (state.parking.count_round(), &self.progress_thread) {
            (Effect::StepBack, thread) => {
                // From now on the thread looks at the endpoint once per tick.
                state.remove_listener();
                self.step_back.store(true, Ordering::Relaxed);
                thread.as_ref().inspect(|thread| thread.notify());
            }
            (Effect::Mute, Some(thread)) => _ = state.wait_fd().inspect(|fd| thread.waker().mute(*fd)),
            _ => {}
        }
        if state.parking.has_outside() {
            state.park_again();
        } else if state.parking.is_listener_parked() && !state.parking.is_muted() {
            let _ = self.ensure_sleepers_wake(state);
        }
    }

    /// The client leaves the endpoint after it has started an operation. Wakes sleepers, or parks the devices
    /// again, if the devices would not wake them for the work that is pending. Returns whether programs can continue.
    #[inline(always)]
    pub(in crate::endpoint) fn ensure_wake_up(&self, state: &mut CellState<D>) -> bool {
        state.parking.has_sleepers() && self.ensure_sleepers_wake(state)
    }

    #[cold]
    fn ensure_sleepers_wake(&self, state: &mut CellState<D>) -> bool {
        if let Some(thread) = &self.progress_thread {
            state.unmute(thread.waker());
        }
        let Some(engine) = &state.engine else { return false };
        if state.parking.is_listener_parked() {
            if engine.has_work() || !engine.nic().is_armed() {
                self.notify_listener(state);
            }
        } else if !state.parking.has_outside() {
            // A thread in a blocking call makes a round after each slice. Work that only waits for the peer can wait as
            // long.
            if !engine.nic().is_idle() {
                state.routes.notify();
            }
        } else if engine.has_work() || !engine.nic().is_idle() {
            state.park_again();
            return state.programs_due;
        }
        false
    }

    /// Notifies the progress thread, if it sleeps.
    pub(in crate::endpoint) fn notify_listener(&self, state: &mut CellState<D>) {
        if state.parking.wake_listener() {
            self.progress_thread.as_ref().inspect(|thread| thread.notify());
        }
    }

    /// Notifies all sleepers after a control call. The call may have left completions undelivered, made room for
    /// stalled programs, or ended the devices' parking.
    pub(in crate::endpoint) fn notify_sleepers(&self, state: &mut CellState<D>) {
        state.programs_due |= state.programs_stalled;
        if state.parking.has_client() {
            state.routes.notify();
        }
        self.notify_listener(state);
    }
}

impl<D: Device> CellState<D> {
    fn park(&mut self, waker: &Waker, sleep: Sleep) -> bool {
        // The devices do not wake a sleeper for programs that are due.
        if !(self.watch_idle(waker) && !self.programs_due && self.park_devices()) {
            return false;
        }
        self.parking.park(sleep);
        true
    }

    fn wake(&mut self, sleep: Sleep) {
        // Devices with another sleeper stay parked until the next poll.
        if self.parking.wake(sleep) {
            self.wake_devices();
        }
    }

    /// Parks the devices again after a round that was made while threads of the client rely on the parking. The
    /// caller may leave for an unbounded time.
    #[cold]
    pub(super) fn park_again(&mut self) {
        if !(self.progress_until_idle() && self.park_devices()) {
            // The endpoint is too busy to park. The sleepers wake and make rounds themselves.
            self.routes.notify();
        }
    }

    /// Arms the devices for the progress thread, which sleeps from now on. Returns the time of its next look, or `None`
    /// if there was work to do.
    pub(crate) fn park_listener(&mut self, waker: &Waker) -> Option<Next> {
        // The thread watches the devices as long as it listens.
        let idle = if self.parking.has_listener() { self.progress_until_idle() } else { self.watch_idle(waker) };
        if !(idle && self.announce_sleep(Device::arm)) {
            return None;
        }
        self.unmute(waker);
        // A muted thread notices at a tick that the client has left.
        Some(if self.parking.park_listener() { Next::Tick } else { Next::WhenWoken })
    }

    /// Has the devices wake the progress thread again, if it was muted.
    fn unmute(&mut self, waker: &Waker) {
        if self.parking.unmute()
            && let Some(fd) = self.wait_fd()
        {
            waker.unmute(fd);
        }
    }

    /// The progress thread is awake. If it was parked, the devices note that it will poll.
    pub(crate) fn wake_listener(&mut self) {
        if self.parking.wake_listener()
            && let Some(engine) = &mut self.engine
        {
            engine.nic_mut().wake_listener();
        }
    }

    /// The progress thread has helped: it found work that the client had not done.
    pub(crate) fn listener_helped(&mut self) {
        self.parking.listener_helped();
    }

    /// Whether the client computes after it has started a collective.
    pub(crate) fn client_leaves(&self) -> bool {
        self.parking.client_leaves()
    }

    /// The progress thread no longer watches the devices.
    pub(crate) fn remove_listener(&mut self) {
        if self.parking.remove_listener() {
            self.wake_devices();
        }
    }

    /// Whether a thread sleeps in a blocking call. A poll would end the parking on which it relies.
    pub(crate) fn has_inside_sleepers(&self) -> bool {
        self.parking.has_inside()
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
        self.announce_sleep(Device::park)
    }

    /// Parks or arms the devices. The boards of groups are checked afterwards: a member that changed one earlier could
    /// not see the sleep, and sent no wake-up.
    fn announce_sleep(&mut self, announce: fn(&mut D) -> bool) -> bool {
        let Some(engine) = &mut self.engine else { return true };
        if !announce(engine.nic_mut()) {
            return false;
        }
        if engine.boards_ready() {
            engine.nic_mut().wake();
            return false;
        }
        true
    }

    fn wake_devices(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.nic_mut().wake();
        }
    }
}
