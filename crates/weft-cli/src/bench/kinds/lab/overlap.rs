//! The cost of a transfer to the core that computes meanwhile.
//!
//! Rank 0 posts a send (or a receive, and requests the message), computes, and waits. Two methods evaluate the same
//! iterations:
//! - *message overhead* (Sandia MPI Micro-Benchmarks): the work lasts longer than the transfer. Overhead is the time of
//!   the iteration beyond that of the work alone. Availability is the share of the transfer's own time that is not
//!   overhead.
//! - *post–work–wait* (COMB): the times of posting and waiting, and the work's share of the iteration.
//!
//! Nothing is called during the work, so only the provider's threads or the system can make progress then.

use std::hint::black_box;
use std::time::{Duration, Instant};

use crate::bench::child::{RankError, Session};
use crate::bench::job::Measure;
use crate::bench::kinds::pair::{DATA, Pair, Room, Workload, open};
use crate::bench::plan::Variant;
use crate::bench::{stats, timing};

/// Duration of the work, as a multiple of the transfer's. One side alone, or one thread, may need some three times as
/// long for a transfer as two idle sides together.
const STRETCH: f64 = 4.0;
/// Steps of work from which the length of a step is determined.
const STEPS: u64 = 100_000;

/// The measurement.
pub(crate) fn run(session: &mut Session) -> Result<(), RankError> {
    let (mut pairs, _) = open(session, Room { window: 1, lasting: 0 })?;
    let job = &session.job;
    let [pair] = pairs.as_mut_slice() else { return Err(RankError::Failed("one thread is enough".to_owned())) };
    let mut workload = Overlap { sending: job.case.variant == Variant::Sender, ..Overlap::default() };
    workload.prepare(pair, job.rank == 0)?;
    if job.rank == 0 {
        let sample = Duration::from_millis(job.sample_ms as u64);
        let result = measure(pair, &mut workload, sample)?;
        pair.announce(0)?;
        session.result(result);
    } else {
        pair.serve(&mut workload)?;
    }
    session.finish(|| pair.port.linger())
}

fn measure(pair: &mut Pair, workload: &mut Overlap, sample: Duration) -> Result<Vec<Measure>, RankError> {
    let transfer = pair.measure(workload, sample)?;
    let alone = |steps: u64| {
        timing::nanoseconds(sample / 4, |count| {
            let start = Instant::now();
            (0..count).for_each(|_| work(steps));
            Ok::<_, RankError>(start.elapsed())
        })
    };
    let step = alone(STEPS)? / STEPS as f64;
    // The number of steps is positive and far below 2^53.
    #[allow(clippy::cast_possible_truncation)]
    let steps = (transfer * STRETCH / step).ceil() as u64;
    let work_alone = alone(steps)?;
    workload.steps = steps;
    workload.phases.clear();
    let iteration = pair.measure(workload, sample)?;
    let phase = |which: fn(&Phases) -> f64| {
        let all: Vec<f64> = workload.phases.iter().map(which).collect();
        stats::median(&all).unwrap_or_default()
    };
    let overhead = (iteration - work_alone).max(0.0);
    let percent = |share: f64| (share * 100.0).clamp(0.0, 100.0);
    Ok(vec![
        Measure::new("transfer alone", transfer, "ns"),
        Measure::new("overhead", overhead, "ns"),
        Measure::new("availability", percent(1.0 - overhead / transfer), "%"),
        Measure::new("post", phase(|batch| batch.post_ns), "ns"),
        Measure::new("wait", phase(|batch| batch.wait_ns), "ns"),
        Measure::new("post-work-wait availability", percent(work_alone / iteration), "%"),
    ])
}

/// Computes for `steps` steps.
pub(super) fn work(steps: u64) {
    let mut value = black_box(1_u64);
    for _ in 0..steps {
        value = black_box(value.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(7));
    }
    black_box(value);
}

/// The phases of an iteration: means over a batch.
struct Phases {
    post_ns: f64,
    wait_ns: f64,
}

#[derive(Default)]
struct Overlap {
    sending: bool,
    steps: u64,
    took: Option<Duration>,
    phases: Vec<Phases>,
    pending: bool,
}

impl Overlap {
    fn receive(pair: &mut Pair) -> Result<(), RankError> {
        let (slot, piece) = (pair.in_slot(0), pair.layout.incoming(0));
        pair.port.post(|ep| ep.tagged_recv(slot, piece, DATA, 0))
    }

    fn send(&mut self, pair: &mut Pair) -> Result<(), RankError> {
        let (slot, piece, to) = (pair.out_slot(0), pair.layout.outgoing(0), pair.peer.address);
        if std::mem::replace(&mut self.pending, true) {
            pair.port.finish(slot)?;
        }
        pair.port.post(|ep| ep.tagged_send(slot, piece, to, DATA))
    }

    /// Makes one iteration. Returns its start, and the ends of posting, working and waiting.
    fn iteration(&mut self, pair: &mut Pair) -> Result<[Instant; 4], RankError> {
        if self.sending {
            pair.expect_ack()?;
        }
        let start = Instant::now();
        let slot = if self.sending {
            self.send(pair)?;
            pair.out_slot(0)
        } else {
            Self::receive(pair)?;
            pair.acknowledge()?;
            pair.in_slot(0)
        };
        let posted = Instant::now();
        work(self.steps);
        let worked = Instant::now();
        pair.port.finish(slot)?;
        let over = Instant::now();
        if self.sending {
            self.pending = false;
            pair.await_ack()?;
        }
        Ok([start, posted, worked, over])
    }
}

impl Workload for Overlap {
    fn prepare(&mut self, pair: &mut Pair, active: bool) -> Result<(), RankError> {
        if self.sending && !active { Self::receive(pair) } else { Ok(()) }
    }

    fn active(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError> {
        let (mut took, mut post, mut wait) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        for _ in 0..count {
            let [start, posted, worked, over] = self.iteration(pair)?;
            took += over - start;
            post += posted - start;
            wait += over - worked;
        }
        self.took = Some(took);
        let mean = |total: Duration| total.as_secs_f64() * 1e9 / count as f64;
        self.phases.push(Phases { post_ns: mean(post), wait_ns: mean(wait) });
        Ok(())
    }

    fn passive(&mut self, pair: &mut Pair, count: u64) -> Result<(), RankError> {
        for _ in 0..count {
            if self.sending {
                pair.port.finish(pair.in_slot(0))?;
                Self::receive(pair)?;
                pair.acknowledge()?;
            } else {
                pair.expect_ack()?;
                pair.await_ack()?;
                self.send(pair)?;
            }
        }
        Ok(())
    }

    fn own_time(&mut self) -> Option<Duration> {
        self.took.take()
    }

    fn per_operation(&self, nanoseconds: f64) -> f64 {
        nanoseconds
    }
}
