//! One member's iterations: it starts an operation, computes, and waits.
//!
//! The work consists of steps whose CPU time is determined once. A member that is interrupted therefore computes as
//! much as without the interruption.

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weft_client::Group;

use super::super::super::collective::buffers::Buffers;
use super::super::overlap::work;
use crate::bench::child::RankError;
use crate::bench::port::Port;

/// Steps of work from which the CPU time of a step is determined.
const STEPS: u64 = 20_000;
/// Attempts to determine it; the least counts.
const TRIES: usize = 20;

/// The work of an iteration.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Method {
    /// Work of this many nanoseconds in one piece, then waiting (method 2).
    Whole(u64),
    /// Work in pieces of this many nanoseconds, each followed by a test, until the operation is complete (method 1).
    Slices(u64),
}

impl Method {
    pub(super) const fn words(self) -> [u64; 2] {
        match self {
            Self::Whole(nanoseconds) => [0, nanoseconds],
            Self::Slices(nanoseconds) => [1, nanoseconds],
        }
    }

    pub(super) const fn from_words(method: u64, nanoseconds: u64) -> Self {
        if method == 0 { Self::Whole(nanoseconds) } else { Self::Slices(nanoseconds) }
    }
}

/// The times of a batch, for all its iterations together.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Batch {
    pub(super) all: Duration,
    /// The starting calls.
    pub(super) post: Duration,
    /// CPU time of the work.
    pub(super) work: Duration,
}

/// One member of the group.
pub(super) struct Member {
    buffers: Buffers,
    group: Group,
    slot: u32,
    /// Steps of work in a nanosecond of CPU time.
    steps_per_ns: f64,
    batches: u64,
    operations: u64,
}

impl Member {
    pub(super) fn new(buffers: Buffers, group: Group, slot: u32) -> Result<Self, RankError> {
        let time_of = || {
            let start = thread_time();
            work(STEPS);
            (thread_time() - start).as_secs_f64() * 1e9
        };
        let least = (0..TRIES).map(|_| time_of()).fold(f64::MAX, f64::min);
        if least <= 0.0 {
            return Err(RankError::Failed("the CPU clock of this thread stands still".to_owned()));
        }
        Ok(Self { buffers, group, slot, steps_per_ns: STEPS as f64 / least, batches: 0, operations: 0 })
    }

    /// Makes `count` iterations and checks their results.
    pub(super) fn iterate(&mut self, port: &mut Port, count: u64, method: Method) -> Result<Batch, RankError> {
        let batch = self.batches;
        self.batches += 1;
        self.buffers.fill(&mut port.ep, batch)?;
        let steps = self.steps(method);
        let mut result = Batch::default();
        let mut pieces = 0;
        // The other members have had time for their first steps. An operation without work brings all into step.
        self.start(port)?;
        port.finish(self.slot)?;
        let start = Instant::now();
        for _ in 0..count {
            result.post += self.start(port)?;
            match method {
                Method::Whole(0) => port.finish(self.slot)?,
                Method::Whole(_) => {
                    work(steps);
                    pieces += 1;
                    port.finish(self.slot)?;
                }
                Method::Slices(_) => loop {
                    work(steps);
                    pieces += 1;
                    port.poll()?;
                    if port.take(self.slot) {
                        break;
                    }
                },
            }
            self.buffers.check_stamp(&port.ep, 0, self.operations - 1)?;
        }
        result.all = start.elapsed();
        result.work = Duration::from_secs_f64(steps as f64 * f64::from(pieces) / self.steps_per_ns / 1e9);
        self.buffers.check_batch(&port.ep, 0, batch)?;
        Ok(result)
    }

    /// The CPU time of the work of `count` iterations in one piece each, measured without operations.
    pub(super) fn work_alone(&self, count: u64, method: Method) -> Duration {
        let (steps, start) = (self.steps(method), thread_time());
        (0..count).for_each(|_| work(steps));
        thread_time() - start
    }

    /// Steps of one piece of work.
    fn steps(&self, method: Method) -> u64 {
        let (Method::Whole(nanoseconds) | Method::Slices(nanoseconds)) = method;
        // The product is positive and far below 2^53.
        #[allow(clippy::cast_possible_truncation)]
        let steps = (nanoseconds as f64 * self.steps_per_ns).round() as u64;
        steps
    }

    /// Starts the next operation. Returns the time of the call.
    pub(super) fn start(&mut self, port: &mut Port) -> Result<Duration, RankError> {
        self.buffers.stamp(&mut port.ep, 0, self.operations)?;
        self.operations += 1;
        let (slot, group, numbers) = (self.slot, &self.group, self.buffers.numbers(0));
        let before = Instant::now();
        port.post(|ep| ep.start_numbers(slot, group, &numbers))?;
        Ok(before.elapsed())
    }

    /// Whether the operation is complete. Checks its first elements then.
    pub(super) fn take(&mut self, port: &mut Port) -> Result<bool, RankError> {
        if !port.take(self.slot) {
            return Ok(false);
        }
        self.buffers.check_stamp(&port.ep, 0, self.operations - 1)?;
        Ok(true)
    }
}

/// The CPU time of this thread.
fn thread_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
