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

/// Time without an event after which a reader naps although its core is free.
const QUIET: Duration = Duration::from_millis(5);
/// A nap's share of the time since the last event.
const NAP_SHARE: u32 = 16;
/// Processor time between two reads up to which a thread is said to wait and to do nothing else. The loops of MPI
/// libraries take a half to one microsecond.
const WAITING: Duration = Duration::from_micros(2);
/// Processor time of a nap itself, and of the cold caches behind it.
const WAKING: Duration = Duration::from_micros(40);
/// Successive times that a thread used more, after which it is said to compute. An interrupt may be the cause of one.
const COMPUTES: u32 = 3;
/// Reads between two naps.
pub(crate) const READS_PER_NAP: u32 = 4;
/// The number of reads that follow a nap, less those after which a reader naps again.
pub(crate) const SKIPPED_READS: u32 = READS_PER_YIELD - READS_PER_NAP;

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

/// The clocks of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clocks {
    /// The monotonic clock.
    now: Duration,
    /// The processor time that the thread has used.
    used: Duration,
}

impl Clocks {
    /// The clocks, each as it is read by `read`.
    pub(crate) fn read(read: impl Fn(rustix::time::ClockId) -> Duration) -> Self {
        use rustix::time::ClockId;
        Self { now: read(ClockId::Monotonic), used: read(ClockId::ThreadCPUTime) }
    }

    /// Time that the thread has spent without a core, from an arbitrary zero.
    pub(crate) fn without_core(self) -> Duration {
        self.now.saturating_sub(self.used)
    }
}

/// A thread's record of a wait in which it does nothing but read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Lull {
    /// The start of the wait.
    since: Duration,
    /// The clocks and the number of empty reads at the last yield or nap.
    last: Clocks,
    idle: u32,
    /// Successive times that the thread used more processor time than for its reads.
    computed: u32,
}

impl Lull {
    /// The record at a yield or before a nap. A thread that computes between its reads starts anew.
    pub(crate) fn observed(self, idle: u32, clocks: Clocks) -> Self {
        let reads = idle.wrapping_sub(self.idle);
        let computes = clocks.used.saturating_sub(self.last.used) > WAITING * reads.min(READS_PER_YIELD) + WAKING;
        let computed = if computes { self.computed + 1 } else { 0 };
        let starts = !(1..=READS_PER_YIELD).contains(&reads) || computed >= COMPUTES;
        let (since, computed) = if starts { (clocks.now, 0) } else { (self.since, computed) };
        Self { since, last: clocks, idle, computed }
    }

    /// The length of the next nap. `None`: the wait is too short for one.
    pub(crate) fn nap(&self, longest: Duration) -> Option<Duration> {
        let quiet = self.last.now.saturating_sub(self.since);
        (quiet >= QUIET && !longest.is_zero()).then(|| longest.min(quiet / NAP_SHARE))
    }

    /// The record after a nap. `idle`: the number of empty reads from then on.
    pub(crate) fn after_nap(self, has_event: bool, idle: u32, clocks: Clocks) -> Self {
        Self { since: if has_event { clocks.now } else { self.since }, last: clocks, idle, ..self }
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

    #[test]
    fn a_thread_that_only_reads_naps_after_a_while() {
        let us = Duration::from_micros;
        let clocks = |now_us, used_us| Clocks { now: us(now_us), used: us(used_us) };
        let longest = us(1000);
        let start = Lull::default().observed(224, clocks(1000, 100));
        assert_eq!((start.since, start.nap(longest)), (us(1000), None));
        let waits = start.observed(256, clocks(6000, 200));
        assert_eq!(
            (waits.nap(longest), waits.nap(us(100)), waits.nap(us(0))),
            (Some(us(5000) / 16), Some(us(100)), None)
        );
        assert_eq!(waits.observed(288, clocks(60_000, 300)).nap(longest), Some(longest));
        // Between the reads it has computed, for the third time, or there was an event.
        let computes = |lull: Lull, time: u64| {
            let idle = 256 + 32 * u32::try_from(time).unwrap_or_default();
            lull.observed(idle, clocks(6000 + 100 * time, 200 + 105 * time))
        };
        let once = computes(waits, 1);
        assert!(once.nap(longest).is_some());
        assert_eq!(computes(computes(once, 2), 3).nap(longest), None);
        assert_eq!(
            once.observed(320, clocks(6200, 310)),
            Lull { since: us(1000), last: clocks(6200, 310), idle: 320, computed: 0 }
        );
        assert_eq!(waits.observed(224, clocks(6100, 210)).nap(longest), None);
        let [quiet, woken] = [false, true].map(|event| waits.after_nap(event, 284, clocks(7000, 210)));
        assert_eq!(quiet.observed(288, clocks(7010, 215)).nap(longest), Some(us(6010) / 16));
        assert_eq!(woken.observed(288, clocks(7010, 215)).nap(longest), None);
        // A nap counts for the next four reads only.
        assert_eq!(quiet.observed(288, clocks(7010, 210 + 49)).computed, 1);
    }
}
