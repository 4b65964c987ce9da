//! One run: a workload on a simulated fabric, the disasters that strike it, and the verdict.
//!
//! Place in the data flow: [`run`] takes a [`Plan`], draws fabric, engines and operations from its seed,
//! drives the [`Harness`], and returns the failures found. The same plan gives the same trace hash.
//!
//! A run has two phases. In the first, ranks work while the plan's hazards strike: they issue bursts of
//! operations, with pauses of up to seconds in which they compute. In the second all faults are off and
//! everything must converge: accepted operations end, sent messages arrive, ranks reach each other, and no
//! state remains.

use crate::cluster::Cluster;
use crate::collectives;
use crate::config::FabricConfig;
use crate::endpoints::{Endpoints, processes};
use crate::harness::{Harness, ProgramStats};
use crate::hazard::Hazard;
pub(crate) use crate::oracle::DEATH_BOUND_NS;
use crate::plan::{Acts, Plan};
use crate::rng::{Entity, Stream};
use crate::stats::Stats;
use crate::workload::{ENDS, Workload, endpoints_config, engine_config};

/// Virtual time between the two sides of a half-open link learning of its end.
pub(crate) const HALF_OPEN_NS: u64 = 500_000_000;
/// Longest pause of a rank.
const MAX_PAUSE_NS: u64 = 300_000_000;

/// The outcome of a run.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Every failure found.
    pub wrong: Vec<String>,
    /// The trace's hash.
    pub hash: u128,
    /// Counters of the fabric.
    pub stats: Stats,
    /// Counters of programs.
    pub programs: ProgramStats,
    /// Ends of connections by outcome: made, declined, failed, ended.
    pub connections: [u64; 4],
    /// Operations accepted.
    pub accepted: usize,
    /// Operations refused with `Again`.
    pub refused: usize,
    /// Datagrams between live ranks with unbroken links that have not arrived.
    pub lost: u64,
    /// Virtual time.
    pub virtual_ns: u64,
    /// Turns of the cluster.
    pub turns: u64,
    /// The end of the trace and the configuration, for a failure's report.
    pub detail: String,
}

/// A hazard that strikes at a step of the workload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Disaster {
    pub(crate) step: usize,
    pub(crate) hazard: Hazard,
    pub(crate) a: usize,
    pub(crate) b: usize,
    /// The length in bytes for garbage, the duration in nanoseconds for a pause.
    pub(crate) amount: u64,
}

/// Plays one run.
#[must_use]
pub fn run(plan: &Plan) -> Report {
    if plan.acts == Acts::COLLECTIVES {
        return collectives::run(plan, None);
    }
    run_with(plan, |_| {})
}

/// Plays one run of collectives whose devices have chains, which are cut at a permille of the frames.
#[must_use]
pub fn run_chained(plan: &Plan, cut_permille: u32) -> Report {
    collectives::run(plan, Some(cut_permille))
}

/// Plays one run after `prepare` has changed its harness.
#[must_use]
pub fn run_with(plan: &Plan, prepare: impl FnOnce(&mut Harness)) -> Report {
    let fabric = FabricConfig::draw(plan.seed, plan.hazards);
    let mut rng = Stream::new(plan.seed, Entity::Test(usize::MAX >> 8));
    let mut engine = engine_config(&mut rng, plan.hazards.has(Hazard::Starvation));
    endpoints_config(plan, &fabric, &mut engine);
    let minutes = usize::try_from(plan.millis.div_ceil(60_000)).unwrap_or(usize::MAX);
    let steps = rng.between(10, 100).saturating_mul(minutes);
    let disasters = disasters(plan, steps);
    let detail = format!("{plan}\n{fabric:?}\n{engine:?}\n{disasters:?}\n");
    let restarts = disasters.iter().filter(|disaster| disaster.hazard == Hazard::Restart);
    // A process restarts with all of its endpoints.
    let mut processes = processes(plan);
    let mut successors = Vec::new();
    for disaster in restarts {
        let first = processes.len();
        let again = (0..plan.ranks).filter(|rank| processes[*rank] == processes[disaster.a]).collect::<Vec<_>>();
        processes.resize(first + again.len(), first);
        successors.extend(again);
    }
    let connected = plan.endpoints == Endpoints::Msg;
    let scalable = plan.endpoints == Endpoints::Scalable;
    let contexts = if scalable { &processes[..] } else { &[] };
    let mut cluster = if connected {
        Cluster::connected(fabric.clone(), engine, plan.ranks, &successors, ENDS)
    } else {
        Cluster::with_successors(fabric.clone(), engine, plan.ranks, &successors, contexts)
    };
    if plan.endpoints == Endpoints::Shared {
        cluster.share_receives(processes);
    }
    cluster.set_slow(plan.hazards.has(Hazard::Slow));
    let mut workload = Workload::new(Harness::of(cluster), plan, &fabric, engine);
    prepare(workload.harness());
    let mut run = Run { rng, deaths: Vec::new(), next_successor: plan.ranks };
    run.play(&mut workload, plan, steps, &disasters);
    let wrong = workload.harness().finish();
    let fabric = workload.harness().cluster().fabric().clone();
    Report {
        wrong,
        programs: workload.harness().program_stats(),
        connections: workload.harness().oracle().connection_counts(),
        hash: fabric.trace_hash(),
        stats: fabric.stats(),
        accepted: workload.accepted,
        refused: workload.refused,
        lost: workload.harness().lost(),
        virtual_ns: fabric.now_ns(),
        turns: workload.harness().turns(),
        detail: detail + &fabric.trace_tail(),
    }
}

/// Whether a hazard strikes a process rather than its links.
const fn strikes_processes(hazard: Hazard) -> bool {
    matches!(hazard, Hazard::Restart | Hazard::Death | Hazard::Departure)
}

/// Draws the disasters of a run. Each hazard draws from its own stream.
pub(crate) fn disasters(plan: &Plan, steps: usize) -> Vec<Disaster> {
    let mut all: Vec<Disaster> = Vec::new();
    let processes = processes(plan);
    for hazard in plan.hazards.iter() {
        let most = match hazard {
            Hazard::Reset | Hazard::Truncate => 8,
            Hazard::HalfOpen | Hazard::Slow => 4,
            Hazard::Restart => 2,
            Hazard::Death | Hazard::Departure => 1,
            _ => continue,
        };
        // This stream differs from the one that the fabric's configuration draws for the same hazard.
        let mut rng = Stream::new(plan.seed, Entity::Hazard(Hazard::ALL.len() + hazard as usize));
        for _ in 0..rng.between(1, most) {
            let (step, a, b) = (rng.index(steps), rng.index(plan.ranks), rng.index(plan.ranks));
            let amount = if hazard == Hazard::Slow { rng.below(MAX_PAUSE_NS) } else { rng.below(16) };
            let again = |other: &Disaster| other.hazard == Hazard::Restart && processes[other.a] == processes[a];
            if hazard != Hazard::Restart || !all.iter().any(again) {
                all.push(Disaster { step, hazard, a, b, amount });
            }
        }
    }
    all.sort_by_key(|disaster| disaster.step);
    all
}

struct Run {
    rng: Stream,
    /// Dead ranks, each with the next time at which the oracle looks for operations still waiting for it.
    deaths: Vec<(usize, u64)>,
    /// The rank that the next restart starts.
    next_successor: usize,
}

impl Run {
    fn play(&mut self, workload: &mut Workload, plan: &Plan, steps: usize, disasters: &[Disaster]) {
        let end_ns = plan.millis.saturating_mul(1_000_000);
        // One pause in ten is long; together the pauses take the whole duration.
        let long_ns = end_ns / (steps as u64) * 10;
        for step in 0..steps {
            for disaster in disasters.iter().filter(|disaster| disaster.step == step) {
                self.strike(workload, *disaster);
            }
            workload.step();
            for _ in 0..self.rng.index(6) {
                self.turn(workload.harness());
            }
            let pause_ns = match self.rng.index(20) {
                0..12 => 0,
                12..15 => self.rng.below(10_000),
                15..18 => self.rng.below(1_000_000),
                _ => self.rng.below(2 * long_ns),
            };
            let until_ns = workload.harness().cluster().fabric().now_ns() + pause_ns;
            self.compute(workload.harness(), until_ns);
            if workload.harness().cluster().fabric().now_ns() >= end_ns {
                break;
            }
        }
        self.compute(workload.harness(), end_ns);
        // The ranks that died last still get their full time to be noticed.
        if let Some(until_ns) = self.deaths.iter().map(|(_, by_ns)| *by_ns).max() {
            self.compute(workload.harness(), until_ns);
        }
    }

    /// Advances time to `until_ns` without new operations; pending ones continue.
    fn compute(&mut self, harness: &mut Harness, until_ns: u64) {
        let now_ns = harness.cluster().fabric().now_ns();
        if now_ns >= until_ns {
            return;
        }
        harness.cluster().fabric().tick_in(until_ns - now_ns);
        while harness.cluster().fabric().now_ns() < until_ns {
            self.turn(harness);
        }
    }

    fn turn(&mut self, harness: &mut Harness) {
        harness.turn();
        let now_ns = harness.cluster().fabric().now_ns();
        for (rank, by_ns) in &mut self.deaths {
            if now_ns >= *by_ns {
                harness.judge_death(*rank);
                // Operations started later must end, too.
                *by_ns = now_ns + DEATH_BOUND_NS;
            }
        }
    }

    fn strike(&mut self, workload: &mut Workload, disaster: Disaster) {
        let Disaster { mut a, mut b, amount, .. } = disaster;
        let process = workload.harness().cluster().process(a);
        if workload.harness().cluster().has_connections() && !strikes_processes(disaster.hazard) {
            // Links exist between the two ends of a connection, and between callers and listeners.
            let Some(pair) = workload.linked(a, b + usize::try_from(amount).unwrap_or(0)) else { return };
            (a, b) = pair;
        }
        let harness = workload.harness();
        match disaster.hazard {
            Hazard::Reset => harness.break_links(a, b, 0),
            Hazard::HalfOpen => harness.break_links(a, b, HALF_OPEN_NS),
            Hazard::Truncate => harness.garble(a, b, usize::try_from(amount).unwrap_or(0)),
            Hazard::Slow => harness.cluster().pause(a, amount),
            Hazard::Restart => {
                for rank in &process {
                    if harness.cluster().is_alive(*rank) {
                        harness.kill(*rank);
                    }
                }
                for rank in process {
                    self.next_successor += usize::from(workload.restart(rank, self.next_successor));
                    self.note_death(workload.harness(), rank);
                }
            }
            Hazard::Death | Hazard::Departure if !harness.cluster().is_alive(a) => {}
            Hazard::Death => {
                for rank in harness.cluster().process(a) {
                    if harness.cluster().is_alive(rank) {
                        harness.kill(rank);
                        self.note_death(harness, rank);
                    }
                }
            }
            Hazard::Departure => {
                harness.leave(a);
                self.note_death(harness, a);
            }
            _ => {}
        }
    }

    fn note_death(&mut self, harness: &mut Harness, rank: usize) {
        let by_ns = harness.cluster().fabric().now_ns() + DEATH_BOUND_NS;
        self.deaths.push((rank, by_ns));
    }
}
