//! The number of a link's connections for long pushes, by the rate that they are measured to carry.
//!
//! Place in the data flow: [`super::upkeep`] samples the connections of a link while it has long pushes, and does what
//! [`Growth::sample`] advises. Pure computation: the caller reads clocks and counters.
//!
//! Networks of clouds limit the rate of a flow, and virtual cards report no speed. The number of connections is
//! therefore doubled as long as their sum gains. A step without gain is undone, and the number stays.
//!
//! Invariants: time counts only while bytes are unacknowledged, so pauses of the client change nothing. The number
//! never exceeds [`RAILS_MAX`], and changes a bounded number of times in the life of a link.

use super::RAILS_MAX;

/// The busy time in microseconds of one measurement.
const WINDOW_US: u64 = 100_000;
/// Measurements with the same number of connections. The best one counts, because other programs disturb single ones.
const ROUNDS: u32 = 2;
/// The gain in percent for which twice the connections are kept.
const GAIN_PERCENT: u64 = 140;
/// Samples after which connections that have not come up are given up.
const PATIENCE: u32 = 60;

/// The traffic of a link's connections so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    /// Bytes that the peer's host has acknowledged, on all connections.
    pub(super) bytes: u64,
    /// The longest time in microseconds for which one of them had unacknowledged bytes.
    pub(super) busy_us: u64,
    /// The number of connections for long pushes that are up.
    pub(super) up: usize,
    /// Pushes that began before these were up still take the first connection.
    pub(super) early: bool,
}

/// Advice to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Nothing changes.
    Wait,
    /// This number of connections is wanted from now on, and more samples.
    Grow(usize),
    /// This number of connections is wanted from now on. No more samples are needed.
    Settle(usize),
}

/// The search for the number of connections.
#[derive(Clone, Debug)]
pub(super) struct Growth {
    /// The number of connections under trial.
    count: usize,
    /// The number before, and its rate. `None`: the first number is being measured.
    before: Option<(usize, u64)>,
    /// The counters at the beginning of the measurement.
    from: Option<Carried>,
    /// Measurements with this number so far. The first one after a change is not counted, while the new connections
    /// find their rate.
    rounds: u32,
    warming: bool,
    /// The best rate of this number in bytes per second.
    best: u64,
    /// Samples in which connections were missing.
    missing: u32,
}

impl Growth {
    /// A search that begins with this number of connections.
    pub(super) fn new(count: usize) -> Self {
        Self { count, before: None, from: None, rounds: 0, warming: true, best: 0, missing: 0 }
    }

    /// The rate of the number that counts now, in bytes per second.
    pub(super) fn rate(&self) -> u64 {
        self.best.max(self.before.map_or(0, |(_, rate)| rate))
    }

    /// Takes the counters of the connections.
    pub(super) fn sample(&mut self, now: Carried) -> Advice {
        // One connection is the first one of the link.
        if self.count > 1 && now.up >= self.count && now.early {
            self.from = None;
            return Advice::Wait;
        }
        if self.count > 1 && now.up < self.count {
            self.from = None;
            self.missing += 1;
            return if self.missing > PATIENCE { self.settle() } else { Advice::Wait };
        }
        let Some(from) = self.from.filter(|from| now.bytes >= from.bytes && now.busy_us >= from.busy_us) else {
            // The first sample, or a connection was replaced.
            self.from = Some(now);
            return Advice::Wait;
        };
        let busy_us = now.busy_us - from.busy_us;
        if busy_us < WINDOW_US {
            return Advice::Wait;
        }
        self.from = Some(now);
        if std::mem::take(&mut self.warming) {
            return Advice::Wait;
        }
        self.best = self.best.max((now.bytes - from.bytes).saturating_mul(1_000_000) / busy_us);
        self.rounds += 1;
        if self.rounds < ROUNDS { Advice::Wait } else { self.judge() }
    }

    /// Decides after the measurements with one number.
    fn judge(&mut self) -> Advice {
        let gains = |rate: u64| self.best.saturating_mul(100) > rate.saturating_mul(GAIN_PERCENT);
        let gains = self.before.is_none_or(|(_, rate)| gains(rate));
        if !gains || self.count >= RAILS_MAX {
            return if gains { Advice::Settle(self.count) } else { self.settle() };
        }
        self.before = Some((self.count, self.best));
        self.count = (2 * self.count).min(RAILS_MAX);
        (self.from, self.rounds, self.warming, self.best, self.missing) = (None, 0, true, 0, 0);
        Advice::Grow(self.count)
    }

    /// Undoes the last step.
    fn settle(&self) -> Advice {
        Advice::Settle(self.before.map_or(self.count, |(count, _)| count))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a search over a network that carries `rate(n)` bytes per second over n connections. Returns the number of
    /// connections in the end, and the busy time in milliseconds.
    fn search(first: usize, rate: impl Fn(usize) -> u64) -> (usize, u64) {
        let mut growth = Growth::new(first);
        let (mut now, mut count) = (Carried { up: first, ..Carried::default() }, first);
        for ms in 0.. {
            match growth.sample(now) {
                Advice::Wait => {}
                Advice::Grow(more) => count = more,
                Advice::Settle(last) => return (last, ms),
            }
            now.up = count;
            now.bytes += rate(count) / 1000;
            now.busy_us += 1000;
        }
        unreachable!("the number of changes is bounded")
    }

    #[test]
    fn the_number_follows_the_limit_of_a_flow() {
        let capped = |n: usize| 5_000_000 * n as u64;
        assert_eq!(search(1, capped).0, 8);
        assert_eq!(search(1, |n| capped(n.min(4))).0, 4);
        assert_eq!(search(2, |n| capped(n.min(4))).0, 4);
        let (count, ms) = search(1, |n| capped(n.min(4)));
        assert!(count == 4 && ms < 1500, "{ms} ms");
    }

    #[test]
    fn without_a_gain_the_number_stays() {
        assert_eq!(search(1, |_| 100_000_000).0, 1);
        assert_eq!(search(1, |_| 0).0, 1);
        assert_eq!(search(4, |_| 100_000_000).0, 4);
        // A small gain is noise.
        assert_eq!(search(1, |n| 100_000_000 + 10_000_000 * n as u64).0, 1);
        assert_eq!(search(8, |_| 1_000_000).0, 8);
    }

    #[test]
    fn connections_that_do_not_come_up_are_given_up() {
        let mut growth = Growth::new(1);
        let mut now = Carried { up: 0, ..Carried::default() };
        let last = (0..10_000).find_map(|_| {
            (now.bytes, now.busy_us) = (now.bytes + 1000, now.busy_us + 10_000);
            match growth.sample(now) {
                Advice::Settle(last) => Some(last),
                _ => None,
            }
        });
        assert_eq!(last, Some(1));
    }

    #[test]
    fn pushes_on_the_first_connection_are_awaited() {
        let mut growth = Growth::new(4);
        let mut now = Carried { up: 4, early: true, ..Carried::default() };
        for _ in 0..1000 {
            (now.bytes, now.busy_us) = (now.bytes + 1000, now.busy_us + 10_000);
            assert_eq!(growth.sample(now), Advice::Wait);
        }
    }

    #[test]
    fn a_replaced_connection_begins_the_measurement_anew() {
        let mut growth = Growth::new(1);
        for bytes in [1_000_000, 5, 1_000_000, 0] {
            assert_eq!(growth.sample(Carried { bytes, busy_us: 10, ..Carried::default() }), Advice::Wait);
        }
    }
}
