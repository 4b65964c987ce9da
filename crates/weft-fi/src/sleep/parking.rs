//! `Parking`: the threads that sleep on one endpoint and rely on its parked devices.
//!
//! Place in the data flow: the lock of the endpoint guards one `Parking`. `endpoint/cell/parking.rs` changes
//! it together with the devices. The diagram of its states is in [`crate::sleep`].
//!
//! Invariant: the devices are parked when a thread of the client starts to sleep, and armed when the progress thread
//! does. A round of progress ends the parking. The caller of that round parks the devices again, or notifies the
//! sleepers.

use std::time::{Duration, Instant};

/// Rounds of the client without help from the progress thread after which that thread steps back. A blocking call
/// makes fewer rounds before it sleeps.
const UNAIDED_ROUNDS: u32 = 256;
/// The same for a client that computes after it has started a collective. It polls for the rest of each collective, and
/// the thread is muted meanwhile.
const UNAIDED_ROUNDS_OF_COLLECTIVES: u32 = 16_384;
/// A client that makes no round for this time after it has started a collective is away.
const AWAY: Duration = Duration::from_micros(20);
/// Collectives between two that are timed, while the client stays.
const STARTS_PER_TIMING: u32 = 4;
/// Successive timed collectives for which a client must stay before it counts as one that stays.
const STAYS: u32 = 4;

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
    /// Whether the listener is present, a thread sleeps outside, or a collective is timed.
    concerns_rounds: bool,
    /// Rounds that the client has made since the progress thread last helped.
    unaided_rounds: u32,
    collectives: Collectives,
    mute: Mute,
}

/// Whether the devices wake the parked listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Mute {
    /// They do. The listener sleeps for long.
    #[default]
    Impossible,
    /// They do. The listener sleeps until the next tick.
    Possible,
    /// They do not, because the client polls for the end of a collective.
    Muted,
}

/// A consequence of a round of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RoundEffect {
    None,
    /// The progress thread has not helped for long and must step back.
    StepBack,
    /// The caller mutes the listener.
    Mute,
}

/// The client's habit after it has started a collective.
#[derive(Default)]
struct Collectives {
    /// The start of a timed collective, until the client's next round.
    started: Option<Instant>,
    /// Number of collectives started.
    starts: u32,
    /// The same when the progress thread parked last.
    starts_at_park: u32,
    /// Timed starts after which the client must stay until it counts as one that stays. Not 0: it leaves.
    leaves: u32,
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
        if self.listener == Listener::Absent {
            self.unaided_rounds = 0;
        }
        self.listener = Listener::Parked;
        let before = std::mem::replace(&mut self.collectives.starts_at_park, self.collectives.starts);
        let mutable = self.client_leaves() && before != self.collectives.starts;
        self.mute = if mutable { Mute::Possible } else { Mute::Impossible };
        self.update();
        mutable
    }

    /// The client leaves. Returns whether the listener was muted: then the caller unmutes it.
    pub(crate) fn unmute(&mut self) -> bool {
        let muted = self.is_muted();
        if muted {
            self.mute = Mute::Possible;
        }
        muted
    }

    /// Whether the devices do not wake the listener.
    pub(crate) fn is_muted(&self) -> bool {
        self.mute == Mute::Muted
    }

    /// Whether the client computes after it has started a collective.
    pub(crate) fn client_leaves(&self) -> bool {
        self.collectives.leaves > 0
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
        self.mute = Mute::Impossible;
        self.update();
        before != Listener::Absent && !self.has_client()
    }

    /// Counts a round of the client.
    pub(crate) fn count_round(&mut self) -> RoundEffect {
        self.unaided_rounds = self.unaided_rounds.saturating_add(1);
        let returns = self.collectives.started.take();
        if let Some(started) = returns {
            let leaves = &mut self.collectives.leaves;
            *leaves = if started.elapsed() > AWAY { STAYS } else { leaves.saturating_sub(1) };
            self.update();
        }
        let most = if self.client_leaves() { UNAIDED_ROUNDS_OF_COLLECTIVES } else { UNAIDED_ROUNDS };
        if self.has_listener() && self.unaided_rounds > most && self.inside == 0 {
            return RoundEffect::StepBack;
        }
        if returns.is_some() && self.is_listener_parked() && self.client_leaves() && self.mute == Mute::Possible {
            self.mute = Mute::Muted;
            return RoundEffect::Mute;
        }
        RoundEffect::None
    }

    /// The client has started a collective. Returns whether it was away after earlier ones, and the progress thread is
    /// absent.
    pub(crate) fn collective_started(&mut self) -> bool {
        let Collectives { started, starts, leaves, .. } = &mut self.collectives;
        *starts = starts.wrapping_add(1);
        if *leaves > 0 || starts.is_multiple_of(STARTS_PER_TIMING) {
            *started = Some(Instant::now());
        }
        let leaves = *leaves > 0;
        self.update();
        leaves && !self.has_listener()
    }

    /// Whether the progress thread watches the devices.
    pub(crate) fn has_listener(&self) -> bool {
        self.listener != Listener::Absent
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
        self.concerns_rounds =
            self.listener != Listener::Absent || self.outside > 0 || self.collectives.started.is_some();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
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
        assert!((0..UNAIDED_ROUNDS).all(|_| parking.count_round() == RoundEffect::None));
        parking.listener_helped();
        assert!((0..UNAIDED_ROUNDS).all(|_| parking.count_round() == RoundEffect::None));
        parking.park(Sleep::Inside);
        assert!(parking.count_round() == RoundEffect::None, "a thread in a blocking call relies on the devices");
        parking.wake(Sleep::Inside);
        assert!(parking.count_round() == RoundEffect::StepBack);
    }

    /// Starts a collective, and makes a round after some time. Returns whether the progress thread was to be notified,
    /// and the effect of the round.
    fn start_and_poll(parking: &mut Parking, after: Duration) -> (bool, RoundEffect) {
        let notify = parking.collective_started();
        if let Some(started) = &mut parking.collectives.started {
            *started = started.checked_sub(after).unwrap();
        }
        (notify, parking.count_round())
    }

    #[test]
    fn a_client_that_computes_hands_over() {
        let mut parking = Parking::default();
        let (stays, leaves) = (Duration::ZERO, 2 * AWAY);
        assert!((0..16).all(|_| start_and_poll(&mut parking, stays) == (false, RoundEffect::None)));
        let until = (0..=STARTS_PER_TIMING).find(|_| start_and_poll(&mut parking, leaves).0);
        assert_eq!(until, Some(STARTS_PER_TIMING), "the next start after a timed one");
        assert!(parking.park_listener() && !parking.is_muted());
        assert_eq!(start_and_poll(&mut parking, leaves), (false, RoundEffect::Mute));
        assert!(parking.count_round() == RoundEffect::None && parking.is_muted());
        assert!(parking.unmute() && !parking.unmute());
        assert_eq!(start_and_poll(&mut parking, stays), (false, RoundEffect::Mute), "one short absence");
        assert!(parking.park_listener() && !parking.is_muted());
        assert!(!parking.park_listener(), "no collective was started since");
        assert_eq!(start_and_poll(&mut parking, leaves), (false, RoundEffect::None), "the thread sleeps for long");
        parking.remove_listener();
        let notified = (0..16).filter(|_| start_and_poll(&mut parking, stays).0).count();
        assert_eq!(notified, STAYS as usize, "a client that stays needs no thread");
    }
}
