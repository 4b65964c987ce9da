//! The pauses of a consumer that keeps up with a streaming producer.
//!
//! Place in the data flow: `Link::poll` asks here before it takes a record that has arrived, and reports the records
//! that it took. `Link::send` reports answers.
//!
//! A consumer that takes each record at once reads, and prefetches, lines that the producer is about to write. Each
//! write must then fetch its line back from the consumer's core. So after a few records without an answer, the
//! consumer leaves the ring alone for a moment, and then takes many records together. Writes of 8 bytes, in millions
//! per second, without pauses and with them: 6.5 and 23 between far cores, 23.6 and 27 between near ones.
//!
//! A pause that gains too few records is wasted, because the producer is slow for other reasons. Then there is none for
//! a while, which doubles with each further waste. An answer ends a pause: its receiver may send the next record at
//! once. A confirmation is no answer, because a stream of writes is confirmed all the time. A producer that waits for
//! each confirmation costs the consumer pauses that are wasted, and therefore soon rare.

/// Length of a pause in cycles of the processor's clock, about 0.6 µs.
const PAUSE_CYCLES: u32 = 2000;
/// Number of finds without an answer that make a stream.
const STREAM_FINDS: i16 = 4;
/// Minimum number of records that a pause must gain.
const GAIN_RECORDS: usize = 4;
/// Number of finds without pauses after a pause that gained less. It doubles this many times.
const PENALTY_FINDS: i16 = 64;
const DOUBLINGS: u8 = 7;

/// The state of a pause.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Pause {
    /// There is none.
    #[default]
    None,
    /// The consumer leaves the ring alone.
    Begun,
    /// It has ended, and nothing was found since.
    Over,
}

/// The state of one ring's consumer.
#[derive(Default)]
pub(super) struct Lag {
    /// Number of finds without an answer; below 0 after a wasted pause.
    finds: i16,
    /// Number of wasted pauses in succession, up to [`DOUBLINGS`].
    wasted: u8,
    pause: Pause,
    /// The beginning of the pause, by the low bits of the processor's clock.
    since: u32,
}

impl Lag {
    /// Whether the consumer leaves the ring alone now. `cycles` reads the processor's clock.
    #[inline(always)]
    pub(super) fn pauses(&mut self, cycles: impl FnOnce() -> u64) -> bool {
        self.pause == Pause::Begun && self.goes_on(low_bits(cycles()))
    }

    #[inline(never)]
    fn goes_on(&mut self, now: u32) -> bool {
        let goes_on = now.wrapping_sub(self.since) < PAUSE_CYCLES;
        if !goes_on {
            self.pause = Pause::Over;
        }
        goes_on
    }

    /// Notes that this side has sent a message, or that a record was long: its lines take longer to copy than to fetch.
    #[inline(always)]
    pub(super) fn reset(&mut self) {
        (self.finds, self.pause) = (0, Pause::None);
    }

    /// Notes that the consumer has taken many records, and more are there.
    #[inline(always)]
    pub(super) fn lags(&mut self) {
        if self.pause != Pause::None {
            (self.pause, self.wasted) = (Pause::None, 0);
        }
    }

    /// Notes that the consumer has taken `records`, and that no more are there.
    #[inline(always)]
    pub(super) fn caught_up(&mut self, records: usize, cycles: impl FnOnce() -> u64) {
        if self.pause != Pause::None {
            self.end(records);
        }
        self.finds += 1;
        if self.finds >= STREAM_FINDS {
            self.begin(cycles());
        }
    }

    /// Ends a pause that has gained `records`.
    #[inline(never)]
    fn end(&mut self, records: usize) {
        self.pause = Pause::None;
        if records < GAIN_RECORDS {
            self.finds = STREAM_FINDS - (PENALTY_FINDS << self.wasted) - 1;
            self.wasted = (self.wasted + 1).min(DOUBLINGS);
        } else {
            self.wasted = 0;
        }
    }

    #[inline(never)]
    fn begin(&mut self, now: u64) {
        self.finds = STREAM_FINDS;
        // Processors without such a clock report 0.
        if now != 0 {
            (self.pause, self.since) = (Pause::Begun, low_bits(now));
        }
    }
}

/// The low bits of a running number, of which only short distances matter.
#[allow(clippy::cast_possible_truncation)]
#[inline(always)]
pub(super) fn low_bits(number: u64) -> u32 {
    number as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets the consumer find `records` at time `now`. Returns whether it then pauses.
    fn find(lag: &mut Lag, records: usize, now: u64) -> bool {
        lag.caught_up(records, || now);
        lag.pauses(|| now)
    }

    /// A consumer that has just begun a pause at time 1000.
    fn pausing() -> Lag {
        let mut lag = Lag::default();
        assert!((1..STREAM_FINDS).all(|_| !find(&mut lag, 1, 1000)));
        assert!(find(&mut lag, 1, 1000));
        lag
    }

    #[test]
    fn a_pause_ends() {
        let mut lag = pausing();
        assert!(lag.pauses(|| 1000 + u64::from(PAUSE_CYCLES) - 1));
        assert!(!lag.pauses(|| 1000 + u64::from(PAUSE_CYCLES)));
        assert!(!lag.pauses(|| 1000), "it is over");
        assert!(find(&mut lag, GAIN_RECORDS, 5000), "and was worth it");
        lag.reset();
        assert!(!lag.pauses(|| 5000), "an answer ends it");
    }

    #[test]
    fn wasted_pauses_become_rare() {
        let (mut lag, mut now) = (pausing(), 1000);
        let mut next = |records| {
            now += 8000;
            assert!(!lag.pauses(|| now), "the last pause has ended");
            let first = i16::from(find(&mut lag, records, now));
            if first > 0 { first } else { (2..).find(|_| find(&mut lag, 1, now)).unwrap_or(0) }
        };
        assert_eq!([1, 1, 1, GAIN_RECORDS, 1].map(&mut next), [65, 129, 257, 1, 65], "finds until the next pause");
        for _ in 0..10 {
            next(1);
        }
        assert_eq!(next(1), (PENALTY_FINDS << DOUBLINGS) + 1);
    }

    #[test]
    fn a_pause_that_gains_a_whole_portion_is_not_wasted() {
        let mut lag = pausing();
        assert!(!lag.pauses(|| 9000));
        lag.lags();
        assert!(find(&mut lag, 1, 9000));
    }

    #[test]
    fn records_that_are_answered_are_no_stream() {
        let mut lag = Lag::default();
        for _ in 0..20 {
            assert!(!find(&mut lag, 1, 1000));
            lag.reset();
        }
    }

    #[test]
    fn a_processor_without_a_clock_never_pauses() {
        let mut lag = Lag::default();
        assert!((0..200).all(|_| !find(&mut lag, 1, 0)));
    }
}
