//! The rules by which the client's rounds dismiss or mute the progress thread.
//!
//! Place in the data flow: calls of the client under the endpoint's lock ([`crate::sleep::parking`]) → [`policy`] → the
//! caller's act on the progress thread. Pure, as [`super`].

use std::time::Duration;

/// Rounds of the client without help from the progress thread after which that thread steps back. A blocking call
/// makes fewer rounds before it sleeps.
pub(crate) const UNAIDED_ROUNDS: u32 = 256;
/// The same for a client that computes after it has started a collective. It polls for the rest of each collective, and
/// the thread is muted meanwhile.
const UNAIDED_ROUNDS_OF_COLLECTIVES: u32 = 16_384;
/// A client that makes no round for this time after it has started a collective is away.
pub(crate) const AWAY: Duration = Duration::from_micros(20);
/// Collectives between two that are timed, while the client stays.
pub(crate) const STARTS_PER_TIMING: u32 = 4;
/// Successive timed collectives for which a client must stay before it counts as one that stays.
pub(crate) const STAYS: u32 = 4;

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

/// The client's habits at one endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Habits {
    /// Rounds that the client has made since the progress thread last helped.
    unaided_rounds: u32,
    /// Number of collectives started.
    starts: u32,
    /// Number of collectives started when the progress thread parked last.
    starts_at_park: u32,
    /// Number of further timed collectives for which a client that was away must stay. 0: it stays.
    stays_left: u32,
    mute: Mute,
}

impl Habits {
    /// Whether the devices do not wake the listener.
    pub(crate) fn is_muted(&self) -> bool {
        self.mute == Mute::Muted
    }

    /// Whether the client computes after it has started a collective.
    pub(crate) fn leaves(&self) -> bool {
        self.stays_left > 0
    }
}

/// An event at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The client has made a round. `away`: the time since it started a timed collective, if this is its first round
    /// since. `sleeps_inside`: another thread sleeps in a blocking call.
    Round { away: Option<Duration>, listener: Listener, sleeps_inside: bool },
    /// The client has started a collective.
    Collective,
    /// The client leaves the endpoint after a call.
    ClientLeaves,
    /// The progress thread sleeps on the devices. `joins`: it has not watched them before.
    ListenerParks { joins: bool },
    /// The progress thread found work that the client had not done.
    ListenerHelped,
    /// The progress thread no longer watches the devices.
    ListenerLeaves,
}

/// A consequence of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    /// The progress thread has not helped for long and must step back.
    StepBack,
    /// The caller mutes the listener.
    Mute,
    /// The caller unmutes the listener.
    Unmute,
    /// The caller notes the time.
    Time,
    /// The listener looks again after a tick. It may be muted until then.
    Tick,
}

/// The effect of an event, and the client's habits after it.
pub(crate) fn policy(mut habits: Habits, event: Event) -> (Habits, Effect) {
    let effect = match event {
        Event::Round { away, listener, sleeps_inside } => habits.round(away, listener, sleeps_inside),
        Event::Collective => {
            habits.starts = habits.starts.wrapping_add(1);
            let timed = habits.leaves() || habits.starts.is_multiple_of(STARTS_PER_TIMING);
            if timed { Effect::Time } else { Effect::None }
        }
        Event::ClientLeaves if habits.mute == Mute::Muted => {
            habits.mute = Mute::Possible;
            Effect::Unmute
        }
        Event::ClientLeaves => Effect::None,
        Event::ListenerParks { joins } => {
            if joins {
                habits.unaided_rounds = 0;
            }
            let before = std::mem::replace(&mut habits.starts_at_park, habits.starts);
            let mutable = habits.leaves() && before != habits.starts;
            habits.mute = if mutable { Mute::Possible } else { Mute::Impossible };
            if mutable { Effect::Tick } else { Effect::None }
        }
        Event::ListenerHelped => {
            habits.unaided_rounds = 0;
            Effect::None
        }
        Event::ListenerLeaves => {
            habits.mute = Mute::Impossible;
            Effect::None
        }
    };
    (habits, effect)
}

impl Habits {
    fn round(&mut self, away: Option<Duration>, listener: Listener, sleeps_inside: bool) -> Effect {
        self.unaided_rounds = self.unaided_rounds.saturating_add(1);
        if let Some(away) = away {
            self.stays_left = if away > AWAY { STAYS } else { self.stays_left.saturating_sub(1) };
        }
        let most = if self.leaves() { UNAIDED_ROUNDS_OF_COLLECTIVES } else { UNAIDED_ROUNDS };
        if listener != Listener::Absent && self.unaided_rounds > most && !sleeps_inside {
            return Effect::StepBack;
        }
        if away.is_some() && listener == Listener::Parked && self.leaves() && self.mute == Mute::Possible {
            self.mute = Mute::Muted;
            return Effect::Mute;
        }
        Effect::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(away_us: Option<u64>, listener: Listener) -> Event {
        Event::Round { away: away_us.map(Duration::from_micros), listener, sleeps_inside: false }
    }

    #[test]
    fn every_row_of_the_table() {
        use Listener::{Absent, Awake, Parked};
        let new = Habits::default();
        let rounds = |unaided_rounds| Habits { unaided_rounds, ..new };
        let leaves = |stays_left| Habits { stays_left, ..new };
        let muting = |unaided_rounds, stays_left, mute| Habits { unaided_rounds, stays_left, mute, ..new };
        let starts =
            |starts, starts_at_park, stays_left, mute| Habits { starts, starts_at_park, stays_left, mute, ..new };
        let (parks, joins) = (Event::ListenerParks { joins: false }, Event::ListenerParks { joins: true });
        let beside = |away| Event::Round { away, listener: Parked, sleeps_inside: true };
        let table = [
            // Rounds without help.
            (rounds(255), round(None, Parked), rounds(256), Effect::None),
            (rounds(256), round(None, Parked), rounds(257), Effect::StepBack),
            (rounds(256), round(None, Awake), rounds(257), Effect::StepBack),
            (rounds(256), round(None, Absent), rounds(257), Effect::None),
            (rounds(256), beside(None), rounds(257), Effect::None),
            (rounds(u32::MAX), round(None, Absent), rounds(u32::MAX), Effect::None),
            (muting(16_383, 1, Mute::Muted), round(None, Parked), muting(16_384, 1, Mute::Muted), Effect::None),
            (muting(16_384, 1, Mute::Muted), round(None, Parked), muting(16_385, 1, Mute::Muted), Effect::StepBack),
            (rounds(300), Event::ListenerHelped, new, Effect::None),
            (rounds(300), joins, new, Effect::None),
            (rounds(300), parks, rounds(300), Effect::None),
            // Timed collectives.
            (starts(2, 0, 0, Mute::Impossible), Event::Collective, starts(3, 0, 0, Mute::Impossible), Effect::None),
            (starts(3, 0, 0, Mute::Impossible), Event::Collective, starts(4, 0, 0, Mute::Impossible), Effect::Time),
            (starts(4, 0, 1, Mute::Impossible), Event::Collective, starts(5, 0, 1, Mute::Impossible), Effect::Time),
            (new, round(Some(20), Absent), rounds(1), Effect::None),
            (new, round(Some(21), Absent), muting(1, 4, Mute::Impossible), Effect::None),
            (leaves(4), round(Some(0), Absent), muting(1, 3, Mute::Impossible), Effect::None),
            (leaves(1), round(Some(0), Absent), rounds(1), Effect::None),
            // The muted listener.
            (starts(2, 1, 4, Mute::Impossible), parks, starts(2, 2, 4, Mute::Possible), Effect::Tick),
            (starts(2, 2, 4, Mute::Possible), parks, starts(2, 2, 4, Mute::Impossible), Effect::None),
            (starts(2, 1, 0, Mute::Impossible), parks, starts(2, 2, 0, Mute::Impossible), Effect::None),
            (muting(0, 4, Mute::Possible), round(Some(21), Parked), muting(1, 4, Mute::Muted), Effect::Mute),
            (muting(0, 4, Mute::Possible), round(None, Parked), muting(1, 4, Mute::Possible), Effect::None),
            (muting(0, 4, Mute::Possible), round(Some(21), Awake), muting(1, 4, Mute::Possible), Effect::None),
            (muting(0, 1, Mute::Possible), round(Some(0), Parked), muting(1, 0, Mute::Possible), Effect::None),
            (muting(0, 4, Mute::Impossible), round(Some(21), Parked), muting(1, 4, Mute::Impossible), Effect::None),
            (muting(0, 4, Mute::Muted), Event::ClientLeaves, muting(0, 4, Mute::Possible), Effect::Unmute),
            (muting(0, 4, Mute::Possible), Event::ClientLeaves, muting(0, 4, Mute::Possible), Effect::None),
            (muting(0, 4, Mute::Muted), Event::ListenerLeaves, leaves(4), Effect::None),
        ];
        for (row, (habits, event, after, effect)) in table.into_iter().enumerate() {
            assert_eq!(policy(habits, event), (after, effect), "row {row}: {habits:?}, {event:?}");
        }
    }
}
