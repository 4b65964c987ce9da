//! `weft sim`: the shipped engine on a simulated fabric, in virtual time.
//!
//! Place in the data flow: plays [`Plan`]s of weft-sim, one for each seed, on some threads; each run is single-threaded and depends on
//! nothing but its plan. What fails is cut down and printed with the command that plays it again.

mod report;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use weft_sim::run::{Report, run as play};
use weft_sim::shrink::shrink;
use weft_sim::{Acts, Endpoints, Hazards, Plan};

use crate::render;
use report::{Failure, Summary};

/// Runs that a shrinker may make of one failure.
const SHRINK_PLAYS: usize = 400;
/// So many failures are cut down and shown.
const SHOWN: usize = 5;

/// What to simulate.
#[derive(Subcommand)]
pub(crate) enum Command {
    Faults(FaultOptions),
}

/// Runs random workloads under random faults and checks everything that comes of them.
///
/// The engine is the one that ships; the fabric below it is simulated, and time is virtual. Each run draws a fabric, a workload and a
/// random subset of the faults from its seed. Then all faults stop, and everything must converge. Every completion, every byte and
/// the order of all is checked against a model. The same arguments give the same run on every machine.
///
/// Exit status 1 if a run failed.
#[derive(Args)]
pub(crate) struct FaultOptions {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many runs, with successive seeds.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    seeds: u64,
    /// How many ranks, 2 to 32; without it, as each seed has it.
    #[arg(long)]
    ranks: Option<usize>,
    /// How long ranks work in each run, in virtual minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Which faults, with commas between (drop, reset, …), `all` or `none`; without it, a random subset for each seed.
    #[arg(long, value_name = "FAULTS")]
    faults: Option<Hazards>,
    /// Of what kind endpoints are: rdm, dgram, shared, scalable, msg; without it, as each seed has it (two in three: rdm).
    #[arg(long, value_name = "KIND")]
    endpoints: Option<Endpoints>,
    /// Only so many operations of each run.
    #[arg(long)]
    ops: Option<usize>,
    /// Only these kinds of operations: send, recv, peek, cancel, write, read, atomic, program.
    #[arg(long = "do", value_name = "KINDS")]
    acts: Option<Acts>,
    /// How many runs at a time; without it, as many as there are processors.
    #[arg(long, short)]
    jobs: Option<usize>,
    /// Print failures as they are, without looking for smaller ones.
    #[arg(long)]
    no_shrink: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl FaultOptions {
    fn plan(&self, seed: u64) -> Result<Plan, String> {
        let drawn = Plan::draw(seed);
        if !(self.minutes > 0.0 && self.minutes <= 100_000.0) {
            return Err(format!("--minutes {}: a run takes more than 0 and at most 100000 minutes", self.minutes));
        }
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // In range, and rounded.
        let millis = (self.minutes * 60_000.0).round().max(1.0) as u64;
        let plan = Plan {
            seed,
            millis,
            ranks: self.ranks.unwrap_or(drawn.ranks),
            ops: self.ops.unwrap_or(drawn.ops),
            hazards: self.faults.unwrap_or(drawn.hazards),
            acts: self.acts.unwrap_or(drawn.acts),
            endpoints: self.endpoints.unwrap_or(drawn.endpoints),
        };
        plan.check().map(|()| plan)
    }

    fn jobs(&self) -> usize {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        self.jobs.unwrap_or(cores).max(1)
    }
}

/// Runs the command. Exit status 2 for arguments that make no sense.
pub(crate) fn run(command: &Command, out: &mut impl Write) -> io::Result<ExitCode> {
    let Command::Faults(options) = command;
    if let Err(why) = options.plan(options.seed) {
        eprintln!("weft sim: {why}");
        return Ok(ExitCode::from(2));
    }
    let summary = faults(options);
    let failed = !summary.failures.is_empty();
    render::print(out, &summary, options.json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// One run, whose panic is a failure like others.
fn attempt(plan: &Plan) -> Result<Report, String> {
    panic::catch_unwind(AssertUnwindSafe(|| play(plan))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?"))
    })
}

/// What is wrong with a run, and how many operations it had.
fn complaints(plan: &Plan) -> (Vec<String>, usize, String) {
    match attempt(plan) {
        Ok(report) => (report.wrong, report.accepted + report.refused, report.detail),
        Err(panic) => (vec![panic], usize::MAX >> 1, String::new()),
    }
}

fn faults(options: &FaultOptions) -> Summary {
    let start = Instant::now();
    let bar = ProgressBar::new(options.seeds);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg} failed, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message("0");
    // A run that panics is reported below, with the command that plays it again.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let next = AtomicU64::new(0);
    let enough = AtomicBool::new(false);
    let summary = Mutex::new(Summary::default());
    let failed = Mutex::new(BTreeMap::new());
    std::thread::scope(|scope| {
        for _ in 0..options.jobs() {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Relaxed);
                    if n >= options.seeds || enough.load(Relaxed) {
                        return;
                    }
                    let Ok(plan) = options.plan(options.seed.wrapping_add(n)) else { return };
                    let outcome = attempt(&plan);
                    let (Ok(mut summary), Ok(mut failed)) = (summary.lock(), failed.lock()) else { return };
                    summary.runs += 1;
                    match outcome {
                        Ok(report) => {
                            summary.add(&report);
                            if !report.wrong.is_empty() {
                                failed.insert(plan.seed, plan);
                            }
                        }
                        Err(_) => drop(failed.insert(plan.seed, plan)),
                    }
                    bar.set_message(failed.len().to_string());
                    bar.inc(1);
                    enough.store(failed.len() >= 100, Relaxed);
                }
            });
        }
    });
    bar.finish_and_clear();
    let mut summary = summary.into_inner().unwrap_or_default();
    summary.real_s = start.elapsed().as_secs_f64();
    let failed = failed.into_inner().unwrap_or_default();
    summary.failed = failed.len();
    for plan in failed.values().take(SHOWN) {
        summary.failures.push(examine(plan, options.no_shrink));
    }
    panic::set_hook(hook);
    summary
}

fn examine(plan: &Plan, whole: bool) -> Failure {
    let (wrong, ops, detail) = complaints(plan);
    let small = if whole { *plan } else { shrink(*plan, ops, SHRINK_PLAYS, |plan| !complaints(plan).0.is_empty()) };
    let (shorter, _, detail) = if small == *plan { (wrong.clone(), ops, detail) } else { complaints(&small) };
    Failure {
        wrong,
        command: format!("weft sim faults {plan}"),
        smaller: (small != *plan).then(|| format!("weft sim faults {small}")),
        smaller_wrong: shorter,
        detail,
    }
}
