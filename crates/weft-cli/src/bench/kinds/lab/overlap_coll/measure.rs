//! Rank 0: the measurements, and their evaluation.
//!
//! All figures come from the same loop. A time is the second-best of several short batches: on a shared machine other
//! programs prolong most of them. *raw* is the time of an iteration without work, measured first and last (the lesser
//! counts, because a cold base would flatter everything else).
//!
//! - *method 1*: the share of work in the time of an operation, if the work is done in slices with tests between them.
//!   The slices have the length that leaves the most, of those that prolong the operation by at most 5 %.
//! - *method 2*: the longest piece of work, of 10, 20, … 100 % of raw, that prolongs an iteration by at most 5 %. All
//!   shorter pieces must do so, too.
//! - *OSU*: `100 - 100 (overall - work) / raw`, not below 0. *IMB*: `100 (raw + work - overall) / min(raw, work)`,
//!   from 0 to 100. Both with work of 100 %.
//! - *CPU*: CPU time of an operation that ends during the work (150 % of raw): that of the process less that of the
//!   work. *agent* is the part of the provider's threads, *system* that of the kernel, as far as it counts it.
//! - *bound*: `1 - CPU / raw`. On a machine whose only free core also moves the data, no availability can exceed it.

use std::time::Duration;

use super::super::super::collective::crew::Crew;
use super::cost::Cost;
use super::iterations::{Batch, Member, Method};
use crate::bench::child::RankError;
use crate::bench::job::{Job, Measure, PER_OPERATION};
use crate::bench::options::Progress;
use crate::bench::port::Port;
use crate::bench::timing;

/// Shares of raw by which one piece of work lasts, in percent.
const SHARES: [u64; 10] = [10, 20, 30, 40, 50, 60, 70, 80, 90, 100];
/// Work during which an operation ends, in percent of raw.
const LONG: u64 = 150;
/// Slices of work in the time of an operation.
const SLICES: [u64; 3] = [10, 20, 50];
/// The prolongation that counts as none.
const TOLERANCE: f64 = 1.05;
/// Batches of one point. The second-best counts.
const BATCHES: usize = 9;
/// Batches for the CPU time. The median counts.
const COST_BATCHES: u64 = 3;

/// The other members.
pub(super) enum Others<'a> {
    /// Processes that compute, too.
    Crew(&'a mut Crew),
    /// A process that goes on by itself.
    Wire(&'a mut Port),
}

impl Others<'_> {
    /// Has all members make a batch.
    fn iterate(&mut self, member: &mut Member, count: u64, method: Method) -> Result<Batch, RankError> {
        match self {
            Self::Wire(port) => member.iterate(port, count, method),
            Self::Crew(crew) => {
                let [number, nanoseconds] = method.words();
                crew.order([count, number, nanoseconds, 0])?;
                let batch = member.iterate(&mut crew.port, count, method)?;
                crew.reports()?;
                Ok(batch)
            }
        }
    }
}

/// Times of one iteration, in nanoseconds.
#[derive(Clone, Copy, Default)]
struct Point {
    all: f64,
    post: f64,
    work: f64,
}

/// Makes all measurements. If there are more members than cores, shares of time mean nothing and are left out.
pub(super) fn all(job: &Job, others: &mut Others<'_>, member: &mut Member) -> Result<Vec<Measure>, RankError> {
    let sample = Duration::from_millis(job.sample_ms as u64);
    let mut bench = Bench::new(others, member, sample)?;
    let first = bench.point(Method::Whole(0))?.all;
    let share = |percent: u64| nanoseconds(first * percent as f64 / 100.0);
    let mut points = Vec::new();
    for percent in SHARES {
        points.push(bench.point(Method::Whole(share(percent)))?);
    }
    let slices: Vec<Point> = SLICES
        .iter()
        .map(|&slices| bench.point(Method::Slices(nanoseconds(first / slices as f64))))
        .collect::<Result<_, _>>()?;
    let (cost, cpu) = bench.cost(Method::Whole(share(LONG)))?;
    let base = bench.point(Method::Whole(0))?;
    let raw = first.min(base.all);
    let figures = Figures { raw, points, slices };
    // A member that makes progress only in its calls waits in a loop after the work.
    let spins = job.progress == Some(Progress::Manual);
    let mut result = vec![
        Measure::new("raw", raw, "ns"),
        Measure::new("at 80 %", figures.total(80), "×"),
        Measure::new("at 100 %", figures.total(100), "×"),
    ];
    if !job.crowded {
        let (method_1, duration) = figures.method_1();
        let method_2 = figures.method_2();
        result.extend([
            Measure::new("method 1", method_1, "%"),
            Measure::new("method 2", method_2, "%"),
            Measure::new("OSU", figures.osu(), "%"),
            Measure::new("IMB", figures.imb(), "%"),
            Measure::new("bound", (100.0 - 100.0 * cpu / raw).max(0.0), "%"),
            Measure::new("merit 1", method_1 / (duration / 1e3), "%/µs"),
            Measure::new("merit 2", method_2 / (raw / 1e3), "%/µs"),
        ]);
    }
    let per_iteration = |time: Duration| time.as_secs_f64() * 1e9;
    result.extend([
        Measure::new(if spins { "CPU with waiting" } else { "CPU" }, cpu, "ns"),
        Measure::new("agent", per_iteration(cost.agent), "ns"),
        Measure::new("system", per_iteration(cost.system), "ns"),
        Measure::new("switches", cost.switches, PER_OPERATION),
        Measure::new("post", base.post, "ns"),
    ]);
    if job.case.wire_us > 0 {
        // The steps that the wire has held back.
        result.push(Measure::new("raw in wires", raw / 1e3 / job.case.wire_us as f64, "×"));
    }
    let curve = SHARES.iter().filter(|percent| ![80, 100].contains(*percent));
    result.extend(curve.map(|&percent| Measure::new(&format!("at {percent} %"), figures.total(percent), "×")));
    Ok(result)
}

/// Iterations of a batch. A provider that adapts to the client's habit needs several of them.
// The quotients are positive and far below 2^53.
#[allow(clippy::cast_possible_truncation)]
fn count_in(time: Duration, each_ns: f64) -> u64 {
    ((time.as_secs_f64() * 1e9 / each_ns) as u64).max(16)
}

#[allow(clippy::cast_possible_truncation)]
fn nanoseconds(value: f64) -> u64 {
    (value.round() as u64).max(1)
}

struct Bench<'a, 'b> {
    others: &'a mut Others<'b>,
    member: &'a mut Member,
    /// Iterations of a short batch, and of one whose CPU time is measured.
    counts: [u64; 2],
}

impl<'a, 'b> Bench<'a, 'b> {
    /// Warms up, and determines the length of batches.
    fn new(others: &'a mut Others<'b>, member: &'a mut Member, sample: Duration) -> Result<Self, RankError> {
        let batches = timing::batches(sample, |count| {
            let all = others.iterate(member, count, Method::Whole(0))?.all;
            Ok::<_, RankError>(timing::Took { all, counts: all })
        })?;
        let raw = batches.into_iter().fold(f64::MAX, f64::min).max(1.0);
        Ok(Self { others, member, counts: [count_in(sample / 100, raw), count_in(sample / 5, raw)] })
    }

    /// The times of an iteration in the second-best batch.
    fn point(&mut self, method: Method) -> Result<Point, RankError> {
        let [count, _] = self.counts;
        let mut all = Vec::new();
        for _ in 0..BATCHES {
            let batch = self.others.iterate(self.member, count, method)?;
            let each = |time: Duration| time.as_secs_f64() * 1e9 / count as f64;
            all.push(Point { all: each(batch.all), post: each(batch.post), work: each(batch.work) });
        }
        all.sort_by(|one, other| one.all.total_cmp(&other.all));
        Ok(all[1])
    }

    /// The cost of an iteration, and its CPU time in nanoseconds without the work.
    fn cost(&mut self, method: Method) -> Result<(Cost, f64), RankError> {
        let [_, count] = self.counts;
        let mut all = Vec::new();
        for _ in 0..COST_BATCHES {
            // The clock of a shared core drifts by more than an operation costs.
            let work = self.member.work_alone(count, method);
            let before = Cost::now();
            self.others.iterate(self.member, count, method)?;
            let cost = Cost::now().since(before);
            let cpu = cost.process.saturating_sub(work).as_secs_f64() * 1e9 / count as f64;
            let each = |time: Duration| time.div_f64(count as f64);
            let (process, system, agent) = (each(cost.process), each(cost.system), each(cost.agent));
            all.push((Cost { process, system, agent, switches: cost.switches / count as f64 }, cpu));
        }
        all.sort_by(|one, other| one.1.total_cmp(&other.1));
        Ok(all[all.len() / 2])
    }
}

/// The measured points of a run.
struct Figures {
    raw: f64,
    /// By the share of work, as [`SHARES`].
    points: Vec<Point>,
    slices: Vec<Point>,
}

impl Figures {
    fn whole(&self, percent: u64) -> Point {
        let place = SHARES.iter().position(|&share| share == percent);
        place.and_then(|place| self.points.get(place)).copied().unwrap_or_default()
    }

    /// An iteration's time with this share of work, as a multiple of that without.
    fn total(&self, percent: u64) -> f64 {
        self.whole(percent).all / self.raw
    }

    /// The availability by slices in percent, and the time of the operation.
    fn method_1(&self) -> (f64, f64) {
        let good = self.slices.iter().filter(|point| point.all <= self.raw * TOLERANCE);
        let shares = good.map(|point| (100.0 * point.work / point.all, point.all));
        shares.max_by(|one, other| one.0.total_cmp(&other.0)).unwrap_or((0.0, self.raw))
    }

    /// The availability by one piece of work, in percent.
    fn method_2(&self) -> f64 {
        let good = SHARES.iter().take_while(|&&percent| self.total(percent) <= TOLERANCE);
        good.last().map_or(0.0, |&percent| percent as f64)
    }

    fn osu(&self) -> f64 {
        let Point { all, work, .. } = self.whole(100);
        (100.0 - 100.0 * (all - work) / self.raw).max(0.0)
    }

    fn imb(&self) -> f64 {
        let Point { all, work, .. } = self.whole(100);
        (100.0 * (self.raw + work - all) / self.raw.min(work).max(1.0)).clamp(0.0, 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(all: [f64; 10]) -> Figures {
        let point = |(at, all): (usize, f64)| Point { all, post: 1.0, work: 10.0 * (at + 1) as f64 };
        Figures { raw: 100.0, points: all.into_iter().enumerate().map(point).collect(), slices: Vec::new() }
    }

    #[test]
    fn method_2_ends_at_the_first_prolongation() {
        let mut all = [100.0; 10];
        all[6] = 106.0;
        assert_eq!(figures(all).method_2(), 60.0);
        assert_eq!(figures([105.0; 10]).method_2(), 100.0);
        assert_eq!(figures([110.0; 10]).method_2(), 0.0);
    }

    #[test]
    fn formulas_agree_for_full_and_no_overlap() {
        let full = figures([100.0; 10]);
        assert_eq!((full.osu(), full.imb()), (100.0, 100.0));
        let none = figures([200.0; 10]);
        assert_eq!((none.osu(), none.imb()), (0.0, 0.0));
        assert_eq!(figures([300.0; 10]).osu(), 0.0);
    }

    #[test]
    fn slices_that_prolong_the_operation_do_not_count() {
        let point = |all, work| Point { all, post: 0.0, work };
        let slices = vec![point(120.0, 110.0), point(104.0, 52.0), point(101.0, 20.0)];
        let figures = Figures { slices, ..figures([100.0; 10]) };
        assert_eq!(figures.method_1(), (50.0, 104.0));
        assert_eq!(Figures { slices: Vec::new(), ..figures }.method_1(), (0.0, 100.0));
    }
}
