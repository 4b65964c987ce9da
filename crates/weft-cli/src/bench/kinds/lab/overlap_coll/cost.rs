//! CPU time and context switches of this process.

use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::time::TimeVal;
use rustix::thread::gettid;

use super::super::super::collective::cpu_time;

/// Figures since the start of the process.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cost {
    /// CPU time of all threads.
    pub(super) process: Duration,
    /// The system's part, in the precision of the kernel's accounting.
    pub(super) system: Duration,
    /// CPU time of all threads but this one: the provider's.
    pub(super) agent: Duration,
    /// Context switches of all threads.
    pub(super) switches: f64,
}

impl Cost {
    /// The figures now.
    pub(super) fn now() -> Self {
        let mut cost = Self { process: cpu_time(), agent: other_threads(), ..Self::default() };
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            cost.system = duration(usage.system_time());
            cost.switches = (usage.voluntary_context_switches() + usage.involuntary_context_switches()) as f64;
        }
        cost
    }

    /// The figures since `earlier`.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            process: self.process.saturating_sub(earlier.process),
            system: self.system.saturating_sub(earlier.system),
            agent: self.agent.saturating_sub(earlier.agent),
            switches: self.switches - earlier.switches,
        }
    }
}

fn duration(time: TimeVal) -> Duration {
    let micros = time.tv_sec().saturating_mul(1_000_000).saturating_add(time.tv_usec());
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// The CPU time of the other threads, from the scheduler's statistics; 0 where the kernel has none.
fn other_threads() -> Duration {
    let own = gettid().as_raw_nonzero().get().to_string();
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let others = tasks.filter(|task| task.file_name().to_str() != Some(own.as_str()));
    let times = others.filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(times.sum())
}
