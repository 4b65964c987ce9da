//! `Parking`: the threads that sleep on one endpoint and rely on its parked devices.
//!
//! Place in the data flow: the lock of the endpoint guards one `Parking`. `endpoint/cell/parking.rs` changes
//! it together with the devices. The diagram of its states is in [`crate::sleep`].
//!
//! Invariant: the devices are parked when a thread of the client starts to sleep, and armed when the progress thread
//! does. A round of progress ends the parking. The caller of that round parks the devices again, or notifies the
//! sleepers.

/// Rounds of the client without help from the progress thread after which that thread steps back. A blocking call
/// makes fewer rounds before it sleeps.
const UNAIDED_ROUNDS: u32 = 256;

/// Where a thread of the client sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sleep {
    /// In a blocking call of weft, in slices.
    Inside,
    /// In a system call of its own, after `fi_trywait`, for an unbounded time.
    Outside,
}

/// The progress thread's part in one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Listener {
    /// The thread does not watch the devices: the client makes progress.
    #[default]
    Absent,
    /// The thread watches the devices and is awake, or was woken.
    Awake,
    /// The thread watches the devices and sleeps until they or the client wake it.
    Parked,
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
    /// Whether the listener is present, or a thread sleeps outside.
    concerns_rounds: bool,
    /// Rounds that the client has made since the progress thread last helped.
    unaided_rounds: u32,
}

impl Parking {
    /// Whether any thread sleeps.
    #[inline(always)]
    pub(crate) fn has_sleepers(&self) -> bool {
        self.any
    }

    /// Whether a round of the client concerns the listener or threads outside.
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

    /// The progress thread sleeps. The caller has armed the devices.
    pub(crate) fn park_listener(&mut self) {
        if self.listener == Listener::Absent {
            self.unaided_rounds = 0;
        }
        self.listener = Listener::Parked;
        self.update();
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
        self.update();
        before != Listener::Absent && !self.has_client()
    }

    /// Counts a round of the client. Returns whether the progress thread has not helped for long and must step back.
    pub(crate) fn count_round(&mut self) -> bool {
        self.unaided_rounds = self.unaided_rounds.saturating_add(1);
        self.listener != Listener::Absent && self.unaided_rounds > UNAIDED_ROUNDS && self.inside == 0
    }

    /// The progress thread has helped: it found work that the client had not done.
    pub(crate) fn listener_helped(&mut self) {
        self.unaided_rounds = 0;
    }

    fn count(&mut self, sleep: Sleep) -> &mut u32 {
        match sleep {
            Sleep::Inside => &mut self.inside,
            Sleep::Outside => &mut self.outside,
        }
    }

    fn update(&mut self) {
        self.any = self.is_listener_parked() || self.has_client();
        self.concerns_rounds = self.listener != Listener::Absent || self.outside > 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!((0..UNAIDED_ROUNDS).all(|_| !parking.count_round()));
        parking.listener_helped();
        assert!((0..UNAIDED_ROUNDS).all(|_| !parking.count_round()));
        parking.park(Sleep::Inside);
        assert!(!parking.count_round(), "a thread in a blocking call relies on the devices");
        parking.wake(Sleep::Inside);
        assert!(parking.count_round());
    }
}
