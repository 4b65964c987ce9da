//! The rules by which a reader that finds nothing yields its core, or naps.
//!
//! Place in the data flow: a fruitless read ([`crate::sleep::poll`]) → a rule → the reads before the next yield or nap.
//! Pure, as [`super`].

use std::time::Duration;

/// Fruitless rounds before the first yield, which take about 10 µs.
pub(crate) const SPINS: u32 = 200;
/// Reads between two yields of a non-blocking reader that has found nothing in the last `SPINS` reads.
const READS_PER_YIELD: u32 = 32;
/// Time without a core, between two yields, that shows that other threads compete for the core. Ticks of the system and
/// of weft's progress thread take about 5 µs each.
const CONTENDED: Duration = Duration::from_micros(100);
/// Number of yields that are replaced by naps once there is competition. A thread that sleeps and is woken by its peer
/// gets a core sooner than a thread that polls, and leaves its core to the peer meanwhile. `sched_yield` alone does not
/// help: the scheduler lets a thread run on that has time left.
const NAPS: u32 = 64;
/// Fruitless reads before a nap, as long as naps end because something has arrived. Where threads compete for cores, a
/// poll costs its peer the core, and MPICH lets other threads run after each poll.
const READS_BEFORE_NAP: u32 = 2;
/// Successive empty reads after which the reader naps no more: it then has napped about 64 times without an event.
const MOST_IDLE: u32 = SPINS + 64 * READS_PER_YIELD;

/// Whether a reader yields or naps after that many successive empty reads. `patience`: the fewest such reads.
#[inline(always)]
pub(crate) fn is_impatient(idle: u32, patience: u32) -> bool {
    idle >= patience && (idle < SPINS || idle.is_multiple_of(READS_PER_YIELD))
}

/// A thread's record of competition for its core.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Contention {
    /// Number of the next yields that are naps.
    naps: u32,
    /// Time that this thread had spent without a core, at the last yield.
    waited: Duration,
}

impl Contention {
    /// Whether the next yield is a nap.
    pub(crate) fn wants_nap(&self, idle: u32) -> bool {
        self.naps > 0 && idle < MOST_IDLE
    }

    /// The record after a nap, and the reader's patience. `waited`: the time without a core. A nap without an event may
    /// have missed one of another library of the client.
    pub(crate) fn after_nap(self, has_event: bool, waited: Duration) -> (Self, u32) {
        let patience = if has_event && self.naps > 1 { READS_BEFORE_NAP } else { SPINS };
        (Self { naps: self.naps.saturating_sub(1), waited }, patience)
    }

    /// Whether a yield starts a new measurement: since the last one the thread may have slept elsewhere.
    pub(crate) fn restarts(idle: u32) -> bool {
        idle < SPINS + READS_PER_YIELD
    }

    /// The record before a yield that starts a new measurement.
    pub(crate) fn restarted(self, waited: Duration) -> Self {
        Self { waited, ..self }
    }

    /// The record after a yield. `is_near`: whether a peer on this host may need the core.
    pub(crate) fn after_yield(self, waited: Duration, is_near: impl FnOnce() -> bool) -> Self {
        let contended = waited.saturating_sub(self.waited) > CONTENDED && is_near();
        Self { naps: if contended { NAPS } else { self.naps }, waited }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reader_is_impatient_at_fixed_reads() {
        let reads = |patience| (0..=264).filter(move |&idle| is_impatient(idle, patience)).collect::<Vec<_>>();
        assert_eq!(reads(SPINS), [224, 256]);
        assert_eq!(reads(READS_BEFORE_NAP)[..3], [2, 3, 4]);
        assert!([(201, true), (231, true), (232, false)].iter().all(|&(idle, is)| Contention::restarts(idle) == is));
    }

    #[test]
    fn every_row_of_the_table() {
        let us = Duration::from_micros;
        let contention = |naps, waited_us| Contention { naps, waited: us(waited_us) };
        let naps = [
            (contention(64, 0), true, contention(63, 7), READS_BEFORE_NAP),
            (contention(64, 0), false, contention(63, 7), SPINS),
            (contention(1, 0), true, contention(0, 7), SPINS),
        ];
        for (before, has_event, after, patience) in naps {
            assert_eq!(before.after_nap(has_event, us(7)), (after, patience), "{before:?}");
        }
        let yields = [
            (contention(0, 50), 150, true, contention(0, 150)),
            (contention(0, 50), 151, true, contention(64, 151)),
            (contention(0, 50), 151, false, contention(0, 151)),
            (contention(9, 50), 151, true, contention(64, 151)),
            (contention(9, 50), 60, true, contention(9, 60)),
        ];
        for (before, waited, is_near, after) in yields {
            assert_eq!(before.after_yield(us(waited), || is_near), after, "{before:?}");
        }
        for (before, idle, wants) in [
            (contention(0, 0), 2, false),
            (contention(1, 0), 2, true),
            (contention(1, 0), MOST_IDLE - 1, true),
            (contention(1, 0), MOST_IDLE, false),
        ] {
            assert_eq!(before.wants_nap(idle), wants, "{before:?}, {idle}");
        }
    }
}
