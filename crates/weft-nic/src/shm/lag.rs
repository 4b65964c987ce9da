//! The pauses of a consumer that keeps up with a streaming producer.
//!
//! Place in the data flow: `Shm::poll_published` asks here before it looks at a ring. `Link` reports the records that
//! it took and sent.
//!
//! A consumer that takes each record at once reads, and prefetches, lines that the producer is about to write. Each
//! write must then fetch its line back from the consumer's core. So after a few records without an answer, the
//! consumer leaves the ring alone for a moment, and then takes many records together. Writes of 8 bytes between far
//! cores, in millions per second: 6.5 without pauses, 16 with them.
//!
//! A pause that gains too few records is wasted, because the producer is slow for other reasons. Then there is none for
//! a while. An answer ends a pause: its receiver may send the next record at once.

/// Length of a pause in cycles of the processor's clock, about 0.6 µs.
const PAUSE_CYCLES: u32 = 2000;
/// Number of finds without an answer that make a stream.
const STREAM_FINDS: i8 = 4;
/// Maximum number of polls between two finds of a stream.
const GAP_POLLS: u32 = 16;
/// Minimum number of records that a pause must gain.
const GAIN_RECORDS: usize = 4;
/// Number of finds without pauses after a pause that gained less.
const PENALTY_FINDS: i8 = 64;

/// The state of one ring's consumer.
#[derive(Default)]
pub(super) struct Lag {
    /// Number of finds without an answer; below 0 after a wasted pause.
    finds: i8,
    /// Whether a pause is in progress.
    pauses: bool,
    /// Whether the last find ended a pause.
    paused: bool,
    /// The beginning of the pause, by the low bits of the processor's clock.
    since: u32,
}

impl Lag {
    /// Whether the consumer leaves the ring alone now. `cycles` reads the processor's clock.
    #[inline(always)]
    pub(super) fn pauses(&mut self, cycles: impl FnOnce() -> u64) -> bool {
        if self.pauses && low_bits(cycles()).wrapping_sub(self.since) >= PAUSE_CYCLES {
            self.pauses = false;
            self.paused = true;
        }
        self.pauses
    }

    /// Notes that this side has sent something.
    #[inline(always)]
    pub(super) fn answered(&mut self) {
        (self.finds, self.pauses, self.paused) = (0, false, false);
    }

    /// Notes that the consumer has taken `records`, and all that were there if `drained`. 0: some of them were long, and
    /// their lines take longer to copy than to fetch. `gap`: number of polls since the last find.
    #[inline]
    pub(super) fn found(&mut self, records: usize, drained: bool, gap: u32, cycles: impl FnOnce() -> u64) {
        let paused = std::mem::take(&mut self.paused);
        if paused && (1..GAIN_RECORDS).contains(&records) {
            self.finds = STREAM_FINDS - PENALTY_FINDS;
        } else if records == 0 || (!paused && gap > GAP_POLLS) {
            self.finds = self.finds.min(0);
        } else if self.finds < STREAM_FINDS {
            self.finds += 1;
        }
        if drained && self.finds == STREAM_FINDS {
            // Processors without such a clock report 0.
            let now = cycles();
            (self.pauses, self.since) = (now != 0, low_bits(now));
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
    fn find(lag: &mut Lag, records: usize, gap: u32, now: u64) -> bool {
        lag.found(records, true, gap, || now);
        lag.pauses(|| now)
    }

    /// A consumer that has just begun a pause at time 1000.
    fn pausing() -> Lag {
        let mut lag = Lag::default();
        assert!((0..3).all(|_| !find(&mut lag, 1, 3, 1000)));
        assert!(find(&mut lag, 1, 3, 1000));
        lag
    }

    #[test]
    fn a_pause_ends() {
        let mut lag = pausing();
        assert!(lag.pauses(|| 1000 + u64::from(PAUSE_CYCLES) - 1));
        assert!(!lag.pauses(|| 1000 + u64::from(PAUSE_CYCLES)));
        assert!(!lag.pauses(|| 1000), "it is over");
        assert!(find(&mut lag, GAIN_RECORDS, 30, 5000), "and was worth it");
        lag.answered();
        assert!(!lag.pauses(|| 5000), "an answer ends it");
    }

    #[test]
    fn a_wasted_pause_is_not_repeated_soon() {
        let mut lag = pausing();
        assert!(!lag.pauses(|| 9000));
        let finds = (1..).find(|_| find(&mut lag, 1, 3, 9000)).unwrap_or(0);
        assert_eq!(finds, 1 + i32::from(PENALTY_FINDS));
    }

    #[test]
    fn answers_gaps_and_long_records_are_no_stream() {
        let mut lag = Lag::default();
        for _ in 0..20 {
            assert!(!find(&mut lag, 1, GAP_POLLS + 1, 1000));
        }
        for _ in 0..20 {
            assert!(!find(&mut lag, 0, 1, 1000));
        }
        for _ in 0..20 {
            assert!(!find(&mut lag, 1, 1, 1000));
            lag.answered();
        }
    }

    #[test]
    fn a_processor_without_a_clock_never_pauses() {
        let mut lag = Lag::default();
        assert!((0..20).all(|_| !find(&mut lag, 1, 3, 0)));
    }
}
