//! `Parking`: the threads that sleep on one endpoint and rely on its parked devices.
//!
//! Place in the data flow: the lock of the endpoint guards one `Parking`. `endpoint/cell/parking.rs` changes
//! it together with the devices. The diagram of its states is in [`crate::sleep`].
//!
//! Invariant: the devices are parked when a thread of the client starts to sleep, and armed when the progress thread
//! does. A round of progress ends the parking. The caller of that round parks the devices again, or notifies the
//! sleepers.

use std::time::Instant;

pub(crate) use crate::sleep::policy::client::{Effect, Listener};
use crate::sleep::policy::client::{Event, Habits, policy};

/// Where a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In a blocking call of weft, in slices.
    Inside,
    /// In a system call of its own, after `fi_trywait`, for an unbounded time.
    Outside,
}

/// The threads that sleep on one endpoint.
#[derive(Default)]
pub(crate) struct Parking {
    listener: Listener,
    /// Number of threads in [`Sleep::Inside`].
    inside: u32,
    /// Number of threads in [`Sleep::Outside`].
    outside: u32,
    /// Whether any thread sleeps. This flag and the next follow from the fields above, for the data path.
    any: bool,
    /// Whether the listener is present, a thread sleeps outside, or a collective is timed.
    concerns_rounds: bool,
    habits: Habits,
    /// The start of a timed collective, until the client's next round.
    started: Option<Instant>,
}

impl Parking {
    /// Whether any thread sleeps.
    #[inline(always)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.any
    }

    /// Whether a round of the client concerns the listener, threads outside, or a timed collective.
    #[inline(always)]
    pub(crate) fn concerns_rounds(&self) -> bool {
        self.concerns_rounds
    }

    /// Whether the progress thread sleeps here.
    pub(crate) fn is_listener_parked(&self) -> bool {
        self.listener == Listener::Parked
    }

    /// Whether a thread sleeps in a blocking call.
    pub(crate) fn has_inside(&self) -> bool {
        self.inside > 0
    }

    /// Whether a thread sleeps after `fi_trywait`.
    pub(crate) fn has_outside(&self) -> bool {
        self.outside > 0
    }

    /// Whether a thread of the client sleeps.
    pub(crate) fn has_client(&self) -> bool {
        self.inside > 0 || self.outside > 0
    }

    /// A thread of the client sleeps. The caller has parked the devices.
    pub(crate) fn park(&mut self, sleep: Sleep) {
        *self.count(sleep) += 1;
        self.update();
    }

    /// A thread of the client is awake. Returns whether it was the last reason for parked devices: then the caller
    /// wakes them.
    pub(crate) fn wake(&mut self, sleep: Sleep) -> bool {
        let count = self.count(sleep);
        debug_assert!(*count > 0);
        *count = count.saturating_sub(1);
        self.update();
        !self.has_client() && self.listener == Listener::Absent
    }

    /// The progress thread sleeps. The caller has armed the devices. Returns whether the thread may be muted.
    pub(crate) fn park_listener(&mut self) -> bool {
        let joins = self.listener == Listener::Absent;
        self.listener = Listener::Parked;
        let effect = self.note(Event::ListenerParks { joins });
        self.update();
        effect == Effect::Tick
    }

    /// The client leaves. Returns whether the listener was muted: then the caller unmutes it.
    pub(crate) fn unmute(&mut self) -> bool {
        self.note(Event::ClientLeaves) == Effect::Unmute
    }

    /// Whether the devices do not wake the listener.
    pub(crate) fn is_muted(&self) -> bool {
        self.habits.is_muted()
    }

    /// Whether the client computes after it has started a collective.
    pub(crate) fn client_leaves(&self) -> bool {
        self.habits.leaves()
    }

    /// The progress thread is awake, or the caller notifies it. Returns whether it was parked.
    pub(crate) fn wake_listener(&mut self) -> bool {
        let parked = self.is_listener_parked();
        if parked {
            self.listener = Listener::Awake;
            self.update();
        }
        parked
    }

    /// The progress thread no longer watches the devices. Returns whether it was the last reason for parked devices:
    /// then the caller wakes them.
    pub(crate) fn remove_listener(&mut self) -> bool {
        let before = std::mem::take(&mut self.listener);
        self.note(Event::ListenerLeaves);
        self.update();
        before != Listener::Absent && !self.has_client()
    }

    /// Counts a round of the client. The result is [`Effect::StepBack`], [`Effect::Mute`], or nothing.
    pub(crate) fn count_round(&mut self) -> Effect {
        let away = self.started.take().map(|started| started.elapsed());
        let effect = self.note(Event::Round { away, listener: self.listener, sleeps_inside: self.inside > 0 });
        if away.is_some() {
            self.update();
        }
        effect
    }

    /// The client has started a collective. Returns whether it was away after earlier ones, and the progress thread is
    /// absent.
    pub(crate) fn collective_started(&mut self) -> bool {
        if self.note(Event::Collective) == Effect::Time {
            self.started = Some(Instant::now());
        }
        self.update();
        self.client_leaves() && !self.has_listener()
    }

    /// Whether the progress thread watches the devices.
    pub(crate) fn has_listener(&self) -> bool {
        self.listener != Listener::Absent
    }

    /// The progress thread has helped: it found work that the client had not done.
    pub(crate) fn listener_helped(&mut self) {
        self.note(Event::ListenerHelped);
    }

    fn note(&mut self, event: Event) -> Effect {
        let (habits, effect) = policy(self.habits, event);
        self.habits = habits;
        effect
    }

    fn count(&mut self, sleep: Sleep) -> &mut u32 {
        match sleep {
            Sleep::Inside => &mut self.inside,
            Sleep::Outside => &mut self.outside,
        }
    }

    fn update(&mut self) {
        self.any = self.is_listener_parked() || self.has_client();
        self.concerns_rounds = self.listener != Listener::Absent || self.outside > 0 || self.started.is_some();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::time::Duration;

    use super::*;
    use crate::sleep::policy::client::{AWAY, STARTS_PER_TIMING, STAYS, UNAIDED_ROUNDS};

    #[test]
    fn the_listener_moves_between_its_states() {
        let mut parking = Parking::default();
        assert!(!parking.wake_listener() && !parking.remove_listener(), "an absent listener has nothing to end");
        parking.park_listener();
        assert!(parking.has_sleepers() && parking.concerns_rounds());
        assert!(parking.wake_listener() && !parking.wake_listener(), "it is notified once");
        assert_eq!(parking.listener, Listener::Awake);
        assert!(!parking.has_sleepers() && parking.concerns_rounds());
        parking.park_listener();
        assert!(parking.remove_listener() && !parking.has_sleepers() && !parking.concerns_rounds());
    }

    #[test]
    fn the_last_sleeper_wakes_the_devices() {
        let mut parking = Parking::default();
        parking.park(Sleep::Inside);
        parking.park(Sleep::Outside);
        parking.park_listener();
        assert!(!parking.wake(Sleep::Inside) && !parking.has_inside() && parking.has_outside());
        assert!(!parking.remove_listener() && parking.has_sleepers());
        assert!(parking.wake(Sleep::Outside) && !parking.has_sleepers());
    }

    #[test]
    fn a_listener_that_does_not_help_must_step_back() {
        let mut parking = Parking::default();
        parking.park_listener();
        assert!((0..UNAIDED_ROUNDS).all(|_| parking.count_round() == Effect::None));
        parking.listener_helped();
        assert!((0..UNAIDED_ROUNDS).all(|_| parking.count_round() == Effect::None));
        parking.park(Sleep::Inside);
        assert!(parking.count_round() == Effect::None, "a thread in a blocking call relies on the devices");
        parking.wake(Sleep::Inside);
        assert!(parking.count_round() == Effect::StepBack);
    }

    /// Starts a collective, and makes a round after some time. Returns whether the progress thread was to be notified,
    /// and the effect of the round.
    fn start_and_poll(parking: &mut Parking, after: Duration) -> (bool, Effect) {
        let notify = parking.collective_started();
        if let Some(started) = &mut parking.started {
            *started = started.checked_sub(after).unwrap();
        }
        (notify, parking.count_round())
    }

    #[test]
    fn a_client_that_computes_hands_over() {
        let mut parking = Parking::default();
        let (stays, leaves) = (Duration::ZERO, 2 * AWAY);
        assert!((0..16).all(|_| start_and_poll(&mut parking, stays) == (false, Effect::None)));
        let until = (0..=STARTS_PER_TIMING).find(|_| start_and_poll(&mut parking, leaves).0);
        assert_eq!(until, Some(STARTS_PER_TIMING), "the next start after a timed one");
        assert!(parking.park_listener() && !parking.is_muted());
        assert_eq!(start_and_poll(&mut parking, leaves), (false, Effect::Mute));
        assert!(parking.count_round() == Effect::None && parking.is_muted());
        assert!(parking.unmute() && !parking.unmute());
        assert_eq!(start_and_poll(&mut parking, stays), (false, Effect::Mute), "one short absence");
        assert!(parking.park_listener() && !parking.is_muted());
        assert!(!parking.park_listener(), "no collective was started since");
        assert_eq!(start_and_poll(&mut parking, leaves), (false, Effect::None), "the thread sleeps for long");
        parking.remove_listener();
        let notified = (0..16).filter(|_| start_and_poll(&mut parking, stays).0).count();
        assert_eq!(notified, STAYS as usize, "a client that stays needs no thread");
    }
}
