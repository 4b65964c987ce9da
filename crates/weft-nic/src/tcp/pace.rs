//! The rate of system calls in polls.
//!
//! Place in the data flow: the poll of [`super::Tcp`] checks [`Pace::due`] before it makes a system call. An endpoint
//! polls both its devices, and a system call costs several times as much as a poll of shared memory.
//!
//! - While shared memory delivers and TCP does not, the interval between two real polls doubles, up to [`MAX_INTERVAL`]
//!   calls. It returns to 1 as soon as TCP sends or receives.
//! - Without any connection, the listener is polled every [`IDLE_INTERVAL`] calls. Each fruitless poll doubles the
//!   interval, up to [`MAX_IDLE_INTERVAL`].
//! - A tick of the coarse clock (1 to 10 ms) makes the next poll real, so that a caller that polls rarely does not wait
//!   for the end of the interval. The clock is read only in every [`CALLS_PER_LOOK`]th call, and not if shared memory
//!   delivered, because reading it is expensive compared to a message over shared memory.
//!
//! Pure arithmetic: time is passed in.

/// The longest interval in calls with connections.
const MAX_INTERVAL: u32 = 32;
/// The first interval in calls without connections.
const IDLE_INTERVAL: u32 = 64;
/// The longest interval in calls without connections. A message that arrives over shared memory during a system call
/// waits until the call returns.
const MAX_IDLE_INTERVAL: u32 = 2048;
/// The interval between two reads of the clock in calls.
const CALLS_PER_LOOK: u32 = 8;
/// The number of fruitful polls of the other device, without one of TCP between them, that double the interval.
const PATIENCE: u32 = 16;

/// The rate of one device.
#[derive(Debug)]
pub(super) struct Pace {
    interval: u32,
    /// The interval while there are no connections.
    idle_interval: u32,
    /// Calls until the next real poll.
    left: u32,
    /// Calls until the next one that reads the clock.
    look_in: u32,
    /// Fruitful polls of the other device since the last one of TCP.
    other_polls: u32,
    /// The other device delivered something in this round.
    other_now: bool,
    last_tick_ms: u64,
}

impl Pace {
    pub(super) fn new() -> Self {
        Self {
            interval: 1,
            idle_interval: IDLE_INTERVAL,
            left: 0,
            look_in: 0,
            other_polls: 0,
            other_now: false,
            last_tick_ms: 0,
        }
    }

    /// Whether this call can be skipped without reading the clock.
    #[inline]
    pub(super) fn pass(&mut self) -> bool {
        let delivered = std::mem::take(&mut self.other_now);
        let passed = self.left > 1 && (delivered || self.look_in > 0);
        if passed {
            self.skip(1);
        }
        passed
    }

    /// Number of next calls that need not be real, even if the clock has advanced meanwhile.
    pub(super) fn quiet_calls(&self) -> u32 {
        self.left.saturating_sub(1)
    }

    /// Counts calls that were not made, at most [`Self::quiet_calls`].
    #[inline(always)]
    pub(super) fn skip(&mut self, calls: u32) {
        self.left -= calls;
        self.look_in = self.look_in.saturating_sub(calls);
    }

    /// Whether this call must be a real poll. `busy`: there are connections.
    #[inline]
    pub(super) fn due(&mut self, busy: bool, now_ms: u64) -> bool {
        self.left = self.left.saturating_sub(1);
        self.look_in = CALLS_PER_LOOK - 1;
        if self.left > 0 && now_ms == self.last_tick_ms {
            return false;
        }
        self.last_tick_ms = now_ms;
        self.left = self.interval;
        if !busy {
            self.left = self.idle_interval;
            self.idle_interval = (self.idle_interval * 2).min(MAX_IDLE_INTERVAL);
        }
        true
    }

    /// Makes the next call real, because something was sent or received, or may have happened.
    #[inline]
    pub(super) fn wake(&mut self) {
        self.interval = 1;
        self.idle_interval = IDLE_INTERVAL;
        self.left = 0;
        self.other_polls = 0;
    }

    /// Notes that the other device delivered something.
    #[inline]
    pub(super) fn other_device_delivered(&mut self) {
        self.other_now = true;
        self.other_polls += 1;
        if self.other_polls >= PATIENCE {
            self.other_polls = 0;
            self.interval = (self.interval * 2).min(MAX_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real_polls(pace: &mut Pace, busy: bool, calls: u32, now_ms: u64) -> usize {
        (0..calls).filter(|_| pace.due(busy, now_ms)).count()
    }

    #[test]
    fn every_poll_is_real_until_the_other_device_is_busy() {
        let mut pace = Pace::new();
        assert_eq!(real_polls(&mut pace, true, 100, 0), 100);
        for _ in 0..PATIENCE * 10 {
            pace.other_device_delivered();
        }
        let polls = real_polls(&mut pace, true, 320, 0);
        assert!((10..=11).contains(&polls), "{polls}");
        pace.wake();
        assert_eq!(real_polls(&mut pace, true, 100, 0), 100);
    }

    #[test]
    fn fruitful_rounds_elsewhere_are_counted_without_the_clock() {
        let mut pace = Pace::new();
        for _ in 0..PATIENCE * 10 {
            pace.other_device_delivered();
        }
        assert!(pace.due(true, 1));
        let mut passed = 0;
        loop {
            pace.other_device_delivered();
            if !pace.pass() {
                break;
            }
            passed += 1;
        }
        assert_eq!(passed, MAX_INTERVAL - 1);
        assert!(pace.due(true, 1));
        let passed = (0..CALLS_PER_LOOK).take_while(|_| pace.pass()).count();
        assert_eq!(passed, CALLS_PER_LOOK as usize - 1, "the clock is read in the next round");
        assert!(!pace.due(true, 1));
        assert!(pace.pass(), "the clock was read in the previous round");
    }

    #[test]
    fn a_tick_makes_the_poll_real() {
        let mut pace = Pace::new();
        assert_eq!(real_polls(&mut pace, false, 64 + 128 + 1, 5), 3);
        assert!(!pace.due(false, 5));
        assert!(pace.due(false, 9));
        assert!((10..=14).contains(&real_polls(&mut pace, false, 10 * MAX_IDLE_INTERVAL, 9)));
        pace.wake();
        assert!(pace.due(false, 9));
        assert_eq!(real_polls(&mut pace, false, IDLE_INTERVAL, 9), 1);
    }
}
