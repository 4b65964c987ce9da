//! Time and rate of fi_collective's operations. Each rank is a member of one group.
//!
//! Rank 0 announces batches (`crew`). All members report their times, and the slowest member counts. Three kinds of
//! batches:
//! - *latency*: one operation after the other. Operations after which a member may run ahead of the others (broadcast,
//!   reduce, scatter, gather) are followed by a barrier, whose time does not count.
//! - *each*: likewise, where each operation is timed, for the 99th percentile.
//! - *rate*: a window of operations is started, then awaited.
//!
//! Every result is checked (`buffers`); a wrong one ends the measurement.

pub(super) mod buffers;
pub(super) mod crew;

use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use weft_client::{Group, Numbers, Operation, Piece};

use crate::bench::child::{RankError, Session};
use crate::bench::job::{Job, Measure};
use crate::bench::kinds::count;
use crate::bench::options::Coll;
use crate::bench::plan::Variant;
use crate::bench::{stats, timing};
use buffers::Buffers;
use crew::{Crew, Words};

/// Fewest and most operations that are timed one by one.
const TIMED: [f64; 2] = [200.0, 100_000.0];

/// A kind of batch.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    Latency,
    Each,
    Rate,
}

/// A member's times of a batch, in nanoseconds per operation.
#[derive(Clone, Copy, Default)]
struct Times {
    mean: f64,
    cpu: f64,
    p99: f64,
}

impl Times {
    /// The times in a message.
    fn words(self) -> Words {
        [self.mean, self.cpu, self.p99, 0.0].map(f64::to_bits)
    }

    fn from_words(words: Words) -> Self {
        let [mean, cpu, p99, _] = words.map(f64::from_bits);
        Self { mean, cpu, p99 }
    }
}

/// The measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let job = &session.job;
    let coll = operation(job)?;
    let window = count(job.window)?;
    let place = [job.rank, job.ranks];
    let buffers = Buffers::new(coll.operation(), job.case.size, place, Crew::data_at(job.ranks), window);
    let mut crew = Crew::open(session, buffers.places() + 1, buffers.bytes())?;
    crew.port.ep.collective_offered(coll.operation(), job.ranks)?;
    let group = crew.join()?;
    let mut member = Member { crew, coll, buffers, group, batch: 0, operations: 0 };
    if job.rank == 0 {
        let result = member.lead(Duration::from_millis(job.sample_ms as u64))?;
        member.crew.order([0; 4])?;
        session.result(result);
    } else {
        member.follow()?;
    }
    session.linger(1, || member.crew.port.linger())
}

/// The operation of a case.
pub(super) fn operation(job: &Job) -> Result<Coll, RankError> {
    match job.case.variant {
        Variant::Collective(coll) => Ok(coll),
        _ => Err(RankError::Failed("the case has no collective operation".to_owned())),
    }
}

/// One member.
struct Member {
    crew: Crew,
    coll: Coll,
    buffers: Buffers,
    group: Group,
    /// Batches so far.
    batch: u64,
    /// Operations so far.
    operations: u64,
}

impl Member {
    /// Rank 0 measures.
    fn lead(&mut self, sample: Duration) -> Result<Vec<Measure>, RankError> {
        let mut cpu = Vec::new();
        let latencies = timing::batches(sample, |count| {
            let (took, all) = self.direct(Mode::Latency, count)?;
            cpu.push(stats::mean(all.iter().map(|times| times.cpu)));
            Ok::<_, RankError>(took)
        })?;
        let cpu = &cpu[cpu.len() - latencies.len()..];
        let latency = stats::median(&latencies).unwrap_or_default();
        // The number is within the limits.
        #[allow(clippy::cast_possible_truncation)]
        let timed = (sample.as_secs_f64() * 1e9 / latency.max(1.0)).clamp(TIMED[0], TIMED[1]) as u64;
        let (_, all) = self.direct(Mode::Each, timed)?;
        let p99 = all.iter().map(|times| times.p99).fold(0.0, f64::max);
        let rates = timing::batches(sample, |count| self.direct(Mode::Rate, count).map(|(took, _)| took))?;
        Ok(vec![
            Measure::new("latency", latency, "ns"),
            Measure::new("min", latencies.iter().copied().fold(f64::MAX, f64::min), "ns"),
            Measure::new("p99", p99, "ns"),
            Measure::new("CPU", stats::median(cpu).unwrap_or_default(), "ns"),
            Measure::new("rate", 1e3 / stats::median(&rates).unwrap_or(f64::MAX), "Mop/s"),
        ])
    }

    /// Rank 0 lets all members perform a batch. The time of the slowest member counts.
    fn direct(&mut self, mode: Mode, count: u64) -> Result<(timing::Took, Vec<Times>), RankError> {
        let start = Instant::now();
        self.crew.order([count, mode as u64, 0, 0])?;
        let mut all = vec![self.perform(mode, count)?];
        all.extend(self.crew.reports()?.into_iter().map(Times::from_words));
        let slowest = all.iter().map(|times| times.mean).fold(0.0, f64::max);
        let counts = Duration::from_secs_f64(slowest * count as f64 / 1e9);
        Ok((timing::Took { all: start.elapsed(), counts }, all))
    }

    /// Another rank performs batches until one is empty.
    fn follow(&mut self) -> Result<(), RankError> {
        loop {
            let [count, mode, ..] = self.crew.next_order()?;
            let mode = match mode {
                _ if count == 0 => return Ok(()),
                mode if mode == Mode::Latency as u64 => Mode::Latency,
                mode if mode == Mode::Each as u64 => Mode::Each,
                _ => Mode::Rate,
            };
            let times = self.perform(mode, count)?;
            self.crew.report(times.words())?;
        }
    }

    /// Performs this member's part of a batch.
    fn perform(&mut self, mode: Mode, count: u64) -> Result<Times, RankError> {
        let batch = self.batch;
        self.batch += 1;
        self.buffers.fill(&mut self.crew.port.ep, batch)?;
        let (cpu, start) = (cpu_time(), Instant::now());
        let mut times = Times::default();
        let (counted, places) = match mode {
            Mode::Rate => (None, self.windows(count)?),
            Mode::Each => {
                let mut each = self.one_by_one(count)?;
                each.sort_by(f64::total_cmp);
                times.p99 = each[each.len() * 99 / 100];
                (None, 1)
            }
            Mode::Latency if self.coll.synchronizes() => {
                (0..count).try_for_each(|_| self.operate().map(|_| ()))?;
                (None, 1)
            }
            Mode::Latency => (Some(self.one_by_one(count)?.iter().sum::<f64>()), 1),
        };
        let all = start.elapsed().as_secs_f64() * 1e9;
        times.mean = counted.unwrap_or(all) / count as f64;
        times.cpu = (cpu_time() - cpu).as_secs_f64() * 1e9 / count as f64;
        for place in 0..places {
            self.buffers.check_batch(&self.crew.port.ep, place, batch)?;
        }
        Ok(times)
    }

    /// Starts the next operation at a place.
    #[inline]
    fn start(&mut self, place: u32) -> Result<(), RankError> {
        self.buffers.stamp(&mut self.crew.port.ep, place, self.operations)?;
        self.operations += 1;
        let (slot, group, numbers) = (self.crew.first_slot() + place, &self.group, self.buffers.numbers(place));
        self.crew.port.post(|ep| ep.start_numbers(slot, group, &numbers))
    }

    /// Waits for the operation of this number at a place.
    #[inline]
    fn finish(&mut self, place: u32, number: u64) -> Result<(), RankError> {
        self.crew.port.finish(self.crew.first_slot() + place)?;
        self.buffers.check_stamp(&self.crew.port.ep, place, number)
    }

    #[inline]
    fn operate(&mut self) -> Result<(), RankError> {
        self.start(0)?;
        self.finish(0, self.operations - 1)
    }

    /// Performs operations, each with a barrier behind it unless it synchronizes. Returns the time of each.
    fn one_by_one(&mut self, count: u64) -> Result<Vec<f64>, RankError> {
        let slot = self.crew.first_slot() + self.buffers.places();
        let none = Piece { offset: 0, len: 0 };
        let barrier = Numbers { operation: Operation::Barrier, count: 0, root: 0, input: none, result: none };
        let mut each = Vec::new();
        for _ in 0..count {
            let start = Instant::now();
            self.operate()?;
            each.push(start.elapsed().as_secs_f64() * 1e9);
            if !self.coll.synchronizes() {
                let group = &self.group;
                self.crew.port.post(|ep| ep.start_numbers(slot, group, &barrier))?;
                self.crew.port.finish(slot)?;
            }
        }
        Ok(each)
    }

    /// Performs operations in windows. Returns the number of places in use.
    fn windows(&mut self, count: u64) -> Result<u32, RankError> {
        let most = self.buffers.places().min(u32::try_from(count).unwrap_or(u32::MAX));
        let mut left = count;
        while left > 0 {
            let window = most.min(u32::try_from(left).unwrap_or(u32::MAX));
            let first = self.operations;
            (0..window).try_for_each(|place| self.start(place))?;
            (0..window).try_for_each(|place| self.finish(place, first + u64::from(place)))?;
            left -= u64::from(window);
        }
        Ok(most)
    }
}

/// The CPU time of this process.
pub(super) fn cpu_time() -> Duration {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}
