//! The interface of a rank to the system: its device, the time, pauses, and the end of its process.
//!
//! Place in the data flow: the rest of the crate comes here for them, so that simulated runs can put others in their
//! place (`sim`).

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use weft_nic::Device as _;
use weft_observe::Page;

use crate::env;
use crate::error::Error;
use crate::job::Job;
use crate::os;

/// The device below the engine.
pub(crate) type RankDevice = weft_nic::Devices;

static JOB: OnceLock<Job> = OnceLock::new();

/// The job of the rank that runs; `None` before its start.
#[inline(always)]
pub(crate) fn job() -> Option<&'static Job> {
    JOB.get()
}

/// Keeps the job of the rank.
pub(crate) fn keep(job: Job) -> &'static Job {
    JOB.get_or_init(|| job)
}

/// The longest message in bytes that every link carries.
#[inline(always)]
pub(crate) fn least_mailbox_bytes() -> usize {
    RankDevice::least_mailbox_bytes()
}

/// The page that shows the counters of a rank. `None`: `FI_WEFT_STATS=no`, or the system refuses it.
pub(crate) fn page(rank: u32, ranks: u32) -> Result<Option<Page>, Error> {
    let wanted = env::yes("FI_WEFT_STATS")?.unwrap_or(true);
    Ok(if wanted { Page::new(Some((rank.into(), ranks.into()))) } else { None })
}

/// The time.
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// Gives the processor to another thread.
pub(crate) fn rest() {
    std::thread::yield_now();
}

/// Sleeps for a time.
pub(crate) fn sleep(time: Duration) {
    std::thread::sleep(time);
}

/// Ends the process of the rank at once.
pub(crate) fn end(code: i32) -> ! {
    os::end_now(code)
}
