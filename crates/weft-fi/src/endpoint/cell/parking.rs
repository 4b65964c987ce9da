//! Sleep and wake of an endpoint: its devices are parked for threads that sleep, and the threads woken.
//!
//! Place in the data flow: [`crate::sleep::poll`] → [`EndpointCell::park`], [`EndpointCell::wake`]; the progress
//! thread → [`State::park_listener`].

use std::os::fd::BorrowedFd;
use std::sync::atomic::Ordering;

use weft_nic::Device;

use super::{EndpointCell, State};
use crate::observe::publish::BEFORE_SLEEP;
use crate::sleep::wait::Waker;

/// Rounds of the client after which it takes over from a progress thread that has been of no use meanwhile: more than a
/// blocking call makes before it sleeps.
const UNAIDED_ROUNDS: u32 = 256;

/// Where a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In one of our blocking calls, in slices.
    Inside,
    /// In a system call of its own, after `fi_trywait`.
    Outside,
}

impl EndpointCell {
    /// The client has made a round although others rely on the devices' parking.
    #[cold]
    pub(super) fn progress_beside_sleepers(&self, state: &mut State) {
        state.unaided = state.unaided.saturating_add(1);
        if state.auto_listens && state.unaided > UNAIDED_ROUNDS && state.sleeping == 0 {
            // From now on the thread looks after us in ticks.
            state.end_listening();
            self.dismissed.store(true, Ordering::Relaxed);
            self.auto.as_ref().inspect(|auto| auto.notify());
        }
        if state.external > 0 {
            state.park_again();
        } else if state.auto_asleep {
            let _ = self.ensure_sleepers_wake(state);
        }
    }

    /// The client leaves an endpoint on which another thread sleeps, having started something: sees to it
    /// that this goes on, if the devices will not wake that thread by themselves for what there is to do.
    /// True: programs can go on.
    #[inline(always)]
    pub(in crate::endpoint) fn ensure_wake_up(&self, state: &mut State) -> bool {
        state.relied_on && self.ensure_sleepers_wake(state)
    }

    #[cold]
    fn ensure_sleepers_wake(&self, state: &mut State) -> bool {
        let Some(engine) = &state.engine else { return false };
        if state.auto_asleep {
            if engine.has_work() || !engine.nic().is_armed() {
                self.notify_listener(state);
            }
        } else if state.external == 0 {
            // A thread in one of our calls looks for itself now and then; what only waits for the peer has
            // time until then.
            if !engine.nic().is_idle() {
                state.routes.notify();
            }
        } else if engine.has_work() || !engine.nic().is_idle() {
            state.park_again();
            return state.programs_due;
        }
        false
    }

    /// Calls the progress thread, if it sleeps.
    pub(in crate::endpoint) fn notify_listener(&self, state: &mut State) {
        if std::mem::take(&mut state.auto_asleep) {
            state.note_sleepers();
            self.auto.as_ref().inspect(|auto| auto.notify());
        }
    }

    /// After a control call: whoever sleeps looks for itself, since there may be completions that were not
    /// delivered, room for what is stalled, and the devices' parking may have ended.
    pub(in crate::endpoint) fn notify_sleepers(&self, state: &mut State) {
        state.programs_due |= state.stalled;
        if state.external > 0 || state.sleeping > 0 {
            state.routes.notify();
        }
        self.notify_listener(state);
    }

    /// For the progress thread: whether the client has taken over.
    pub(crate) fn take_dismissal(&self) -> bool {
        self.dismissed.load(Ordering::Relaxed) && self.dismissed.swap(false, Ordering::Relaxed)
    }

    /// Prepares for sleep by an application thread: nothing left to do, and the devices will wake whoever
    /// watches them. False: there was something to do, look again. Balanced by [`EndpointCell::wake`].
    pub(crate) fn park(&self, waker: &Waker, sleep: Sleep) -> bool {
        self.sleepers.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state.lock();
        let parked = state.park(waker, sleep);
        if parked {
            self.publish(&mut state, BEFORE_SLEEP);
        } else if state.external > 0 {
            state.park_again();
        } else if state.auto_asleep {
            // The look may have taken off what was to wake it.
            let _ = self.ensure_sleepers_wake(&mut state);
        }
        drop(state);
        if !parked {
            self.sleepers.fetch_sub(1, Ordering::Relaxed);
        }
        parked
    }

    /// Ends what a successful [`EndpointCell::park`] began.
    pub(crate) fn wake(&self, sleep: Sleep) {
        self.state.lock().wake(sleep);
        self.sleepers.fetch_sub(1, Ordering::Relaxed);
    }

    /// The client is about to sleep where we cannot see it: whether the progress thread takes over.
    pub(crate) fn notify_progress_thread(&self) -> bool {
        self.auto.as_ref().inspect(|auto| auto.notify_client_parked()).is_some()
    }
}

impl State {
    /// Somebody has made a round although threads of the client rely on the devices' parking, and may now go away.
    #[cold]
    pub(super) fn park_again(&mut self) {
        if !(self.progress_until_idle() && self.park_devices()) {
            // Too much is going on to park: let the sleepers come and look.
            self.routes.notify();
        }
    }

    /// See [`EndpointCell::park`].
    fn park(&mut self, waker: &Waker, sleep: Sleep) -> bool {
        // Nothing will come to the devices on account of what is to be attended to.
        if !(self.listen(waker) && !self.programs_due && self.park_devices()) {
            return false;
        }
        match sleep {
            Sleep::Inside => self.sleeping += 1,
            Sleep::Outside => self.external += 1,
        }
        self.relied_on = true;
        true
    }

    /// After somebody has woken up.
    fn note_sleepers(&mut self) {
        self.relied_on = self.auto_asleep || self.sleeping > 0 || self.external > 0;
    }

    fn wake(&mut self, sleep: Sleep) {
        let count = match sleep {
            Sleep::Inside => &mut self.sleeping,
            Sleep::Outside => &mut self.external,
        };
        debug_assert!(*count > 0);
        *count = count.saturating_sub(1);
        self.note_sleepers();
        // Devices that somebody else still sleeps on stay parked until the next poll.
        if self.sleeping == 0 && self.external == 0 && !self.auto_listens {
            self.wake_devices();
        }
    }

    /// Brings the endpoint to rest, with its devices listened to by `waker` once they are parked. False:
    /// something is going on.
    fn listen(&mut self, waker: &Waker) -> bool {
        if !self.progress_until_idle() {
            return false;
        }
        // Without a descriptor the sleeper would hear nothing.
        self.wait_fd().is_none_or(|fd| waker.watch(fd).is_ok())
    }

    fn park_devices(&mut self) -> bool {
        self.engine.as_mut().is_none_or(|engine| engine.nic_mut().park())
    }

    fn wake_devices(&mut self) {
        if let Some(engine) = &mut self.engine {
            engine.nic_mut().wake();
        }
    }

    /// Whether a thread of the client sleeps in our calls, relying on the devices' parking, which a poll would end.
    pub(crate) fn has_inside_sleepers(&self) -> bool {
        self.sleeping > 0
    }

    /// For the progress thread: goes to sleep on these devices, if there is nothing to do.
    pub(crate) fn park_listener(&mut self, waker: &Waker) -> bool {
        if !(self.listen(waker) && self.engine.as_mut().is_none_or(|engine| engine.nic_mut().arm())) {
            return false;
        }
        (self.auto_asleep, self.relied_on) = (true, true);
        if !std::mem::replace(&mut self.auto_listens, true) {
            self.unaided = 0;
        }
        true
    }

    /// For the progress thread: it is awake; if it slept, the devices know why it does not any more.
    pub(crate) fn wake_listener(&mut self) {
        if std::mem::take(&mut self.auto_asleep) {
            self.note_sleepers();
            if let Some(engine) = &mut self.engine {
                engine.nic_mut().wake_listener();
            }
        }
    }

    /// For the progress thread: has been of use.
    pub(crate) fn aided(&mut self) {
        self.unaided = 0;
    }

    /// The progress thread listens no more.
    pub(crate) fn end_listening(&mut self) {
        self.auto_asleep = false;
        self.note_sleepers();
        if std::mem::take(&mut self.auto_listens) && self.sleeping == 0 && self.external == 0 {
            self.wake_devices();
        }
    }

    /// What to poll while the devices sleep.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.engine.as_ref().map(|engine| engine.nic().wait_fd())
    }
}
