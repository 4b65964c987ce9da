//! The sleeps of a rank that waits for a collective for some milliseconds.
//!
//! Place in the data flow: [`crate::run::Runtime::wait`] polls the provider, and lets the MPI library make
//! progress from time to time. After a while without an event it sleeps on the endpoint's descriptor between its polls
//! ([`Lull`]). The provider ends the sleep; the MPI library's work waits for its end. A sleep therefore lasts at most a
//! sixteenth of the wait, and at most FI_WEFT_NAP_US. The rank sleeps no more for a
//! while when the library's queue has had events.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Time without an event before the first sleep.
const QUIET: Duration = Duration::from_millis(5);
/// A sleep's share of the time since the last event.
const SHARE: u32 = 16;
/// The variable of the longest sleep, in microseconds, its default, and its limit.
const LONGEST: (&str, u64, u64) = ("FI_WEFT_NAP_US", 2000, 100_000);

/// The longest sleep.
fn longest() -> Duration {
    static LIMIT: OnceLock<Duration> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let (name, default, most) = LONGEST;
        let set = std::env::var(name).ok().and_then(|value| value.trim().parse().ok());
        Duration::from_micros(set.unwrap_or(default).min(most))
    })
}

/// One wait.
#[derive(Debug, Default)]
pub(crate) struct Lull {
    /// The first look since the last event.
    since: Option<Instant>,
    /// Reads in vain of the provider's queues by this thread, at the last look.
    reads: u64,
}

impl Lull {
    /// There was an event.
    pub(crate) fn end(&mut self) {
        self.since = None;
    }

    /// The length of a sleep now. `reads` tells the number of successive reads in vain of the queues that this thread
    /// reads. If it has not grown since the last look, there was an event in one of them.
    pub(crate) fn sleep(&mut self, now: Instant, reads: impl FnOnce() -> u64) -> Option<Duration> {
        let quiet = now.duration_since(*self.since.get_or_insert(now));
        if quiet < QUIET || longest().is_zero() {
            return None;
        }
        let reads = reads();
        if std::mem::replace(&mut self.reads, reads) >= reads {
            self.since = Some(now);
            return None;
        }
        Some(longest().min(quiet / SHARE))
    }
}

/// Sleeps until the descriptor is readable, for a limited time.
pub(crate) fn wait_for(descriptor: c_int, longest: Duration) {
    let mut one = libc::pollfd { fd: descriptor, events: libc::POLLIN, revents: 0 };
    let most = libc::timespec { tv_sec: 0, tv_nsec: longest.subsec_nanos().into() };
    // SAFETY: the structures are locals. The endpoint is open, since its close waits for this thread.
    unsafe { libc::ppoll(&raw mut one, 1, &raw const most, std::ptr::null()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeps_grow_with_the_wait_and_end_with_events() {
        let mut lull = Lull::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(lull.sleep(at(0), || 100), None);
        assert_eq!(lull.sleep(at(4), || 110), None);
        assert_eq!(lull.sleep(at(8), || 120), Some(Duration::from_micros(500)));
        assert_eq!(lull.sleep(at(200), || 121), Some(longest()));
        // An event in another queue of the thread, then an event here.
        assert_eq!(lull.sleep(at(201), || 2), None);
        assert_eq!(lull.sleep(at(203), || 3), None);
        assert!(lull.sleep(at(207), || 4).is_some());
        lull.end();
        assert_eq!(lull.sleep(at(300), || 5), None);
    }
}
