//! Clocks. A tick is a nanosecond of the monotonic clock.

use std::ffi::c_int;
use std::time::{Duration, SystemTime};

/// The monotonic clock in nanoseconds.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_ticks_now() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call writes the structure.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

const CALLS: u32 = 1000;

/// The smallest difference between two readings, in microseconds.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_tick_granularityus() -> f64 {
    let mut smallest_ns = u64::MAX;
    let mut last_ns = gasnett_ticks_now();
    for _ in 0..CALLS {
        let now_ns = gasnett_ticks_now();
        if now_ns > last_ns {
            smallest_ns = smallest_ns.min(now_ns - last_ns);
        }
        last_ns = now_ns;
    }
    Duration::from_nanos(smallest_ns).as_secs_f64() * 1e6
}

/// The duration of one reading, in microseconds.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_tick_overheadus() -> f64 {
    let start_ns = gasnett_ticks_now();
    for _ in 1..CALLS {
        std::hint::black_box(gasnett_ticks_now());
    }
    let spent = Duration::from_nanos(gasnett_ticks_now() - start_ns);
    spent.as_secs_f64() * 1e6 / f64::from(CALLS)
}

/// The time of day in microseconds since 1970.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_gettimeofday_us() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}

/// Sleeps for the whole duration, also if signals arrive. Returns 0.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_nsleep(nanoseconds: u64) -> c_int {
    std::thread::sleep(Duration::from_nanos(nanoseconds));
    0
}
