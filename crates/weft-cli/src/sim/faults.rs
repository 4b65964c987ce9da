//! `weft-lab sim faults`: the shipped engine on a simulated fabric in virtual time.
//!
//! Place in the data flow: plays [`Plan`]s of weft-sim, one for each seed, on several threads. Each run is
//! single-threaded and depends on its plan only. A failing run is reduced, and printed with the command that plays it
//! again.

mod report;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::panic::{self, AssertUnwindSafe};
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use weft_sim::run::{Report, run as play_run};
use weft_sim::shrink::shrink;
use weft_sim::{Acts, Endpoints, Hazards, Plan};

use crate::render;
use report::{Failure, Summary};

/// Runs that the shrinker may play for one failure.
const SHRINK_PLAYS: usize = 400;
/// Number of failures that are reduced and shown. For the others only the commands that play them again are printed.
const SHOWN: usize = 5;
/// Number of failures after which no further run is started.
const ENOUGH: usize = 100;
/// Seconds after which a run is reported while it continues, as it may never end.
const LONG_S: u64 = 60;

/// Runs random workloads under random faults and checks all results.
///
/// The engine is the shipped one; the fabric below it is simulated, and time is virtual. Each run draws a
/// fabric, a workload and a random subset of the faults from its seed. In the end all faults stop, and
/// everything must converge. A model checks every completion, every byte and the order. The same arguments give
/// the same run on every machine.
///
/// The exit status is 1 if a run failed.
#[derive(Args)]
pub(crate) struct FaultOptions {
    /// The first seed.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Number of runs, with successive seeds.
    #[arg(long, default_value_t = 1, value_name = "COUNT")]
    seeds: u64,
    /// Number of ranks, 2 to 32 [default: drawn from each seed]
    #[arg(long)]
    ranks: Option<usize>,
    /// Duration of the work of ranks in each run, in virtual minutes.
    #[arg(long, default_value_t = 1.0)]
    minutes: f64,
    /// Faults, separated by commas (drop, reset, …), or `all` or `none` [default: a random subset for each seed]
    #[arg(long, value_name = "FAULTS")]
    faults: Option<Hazards>,
    /// Kind of endpoints: rdm, dgram, shared, scalable, msg [default: drawn from each seed, mostly rdm]
    #[arg(long, value_name = "KIND")]
    endpoints: Option<Endpoints>,
    /// Maximum number of operations in each run.
    #[arg(long)]
    ops: Option<usize>,
    /// Kinds of operations: send, recv, peek, cancel, write, read, atomic, program [default: all of them]; or
    /// collective alone
    #[arg(long = "do", value_name = "KINDS")]
    acts: Option<Acts>,
    /// Number of concurrent runs [default: the number of processors]
    #[arg(long, short)]
    jobs: Option<usize>,
    /// Print failures without searching for smaller ones.
    #[arg(long)]
    no_shrink: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

impl FaultOptions {
    fn plan(&self, seed: u64) -> Result<Plan, String> {
        let collectives = self.acts == Some(Acts::COLLECTIVES);
        let drawn = if collectives { Plan::collectives(seed) } else { Plan::draw(seed) };
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

/// Runs the command. The exit status is 2 for invalid arguments.
pub(crate) fn run(options: &FaultOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    if let Err(why) = options.plan(options.seed) {
        eprintln!("weft-lab sim: {why}");
        return Ok(ExitCode::from(2));
    }
    let summary = faults(options, &play_run);
    let failed = !summary.failures.is_empty();
    render::print(out, &summary, options.json)?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Plays a plan.
type Play<'a> = &'a (dyn Fn(&Plan) -> Report + Sync);

/// Plays one run. A panic counts as a failure. A long run is reported while it continues.
fn attempt(play: Play<'_>, plan: &Plan) -> Result<Report, String> {
    let (over, end) = mpsc::channel::<()>();
    let command = again(plan);
    // An endless loop inside one call can be neither counted nor stopped.
    std::thread::spawn(move || {
        if end.recv_timeout(Duration::from_secs(LONG_S)) == Err(RecvTimeoutError::Timeout) {
            eprintln!("still running after {LONG_S} s: {command}");
        }
    });
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| play(plan))).map_err(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        format!("panicked: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?"))
    });
    drop(over);
    outcome
}

/// Plays one run and returns its failures, its number of operations, and the hash and the end of its trace.
fn complaints(play: Play<'_>, plan: &Plan) -> (Vec<String>, usize, String, String) {
    match attempt(play, plan) {
        Ok(report) => (report.wrong, report.accepted + report.refused, format!("{:032x}", report.hash), report.detail),
        Err(panic) => (vec![panic], usize::MAX >> 1, String::new(), String::new()),
    }
}

fn faults(options: &FaultOptions, play: Play<'_>) -> Summary {
    let start = Instant::now();
    let bar = ProgressBar::new(options.seeds);
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} runs, {msg} failed, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_message("0");
    // Panics are reported below, with the command that plays the run again.
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
                    let outcome = attempt(play, &plan);
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
                    enough.store(failed.len() >= ENOUGH, Relaxed);
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
        summary.failures.push(examine(play, plan, options.no_shrink));
    }
    summary.others = failed.values().skip(SHOWN).map(again).collect();
    panic::set_hook(hook);
    summary
}

/// The command that plays the run again.
fn again(plan: &Plan) -> String {
    format!("weft-lab sim faults {plan}")
}

fn examine(play: Play<'_>, plan: &Plan, whole: bool) -> Failure {
    let (wrong, ops, trace_hash, detail) = complaints(play, plan);
    let fails = |plan: &Plan| !complaints(play, plan).0.is_empty();
    let small = if whole { *plan } else { shrink(*plan, ops, SHRINK_PLAYS, fails) };
    let (shorter, detail) = if small == *plan {
        (wrong.clone(), detail)
    } else {
        let (shorter, _, _, detail) = complaints(play, &small);
        (shorter, detail)
    };
    Failure {
        wrong,
        command: again(plan),
        trace_hash,
        smaller: (small != *plan).then(|| again(&small)),
        smaller_wrong: shorter,
        detail,
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use weft_sim::run::run_with;

    use super::*;
    use crate::Cli;

    /// A run that loses one completion after the first few.
    fn loses_one(plan: &Plan) -> Report {
        run_with(plan, |harness| {
            let mut wait = 5;
            harness.set_tamper(Box::new(move |_, batch| {
                if wait == 0 && batch.iter().any(|c| c.fault.is_none()) {
                    batch.pop();
                    wait = usize::MAX;
                }
                wait = wait.saturating_sub(1);
            }));
        })
    }

    /// Parses the options of a command line.
    fn parsed(command: &str) -> FaultOptions {
        match Cli::try_parse_from(command.split_whitespace()) {
            Ok(Cli { command: crate::Command::Sim(crate::sim::Command::Faults(options)) }) => options,
            Ok(_) => panic!("another command: {command}"),
            Err(error) => panic!("{command}: {error}"),
        }
    }

    /// The texts after `word` in the lines that begin with it.
    fn after<'a>(text: &'a str, word: &str) -> Vec<&'a str> {
        text.lines().filter_map(|line| line.strip_prefix(word)).map(str::trim).collect()
    }

    #[test]
    fn the_printed_command_reproduces_the_failure() {
        // A run may not need the completion that it loses.
        let seeds = 3 * SHOWN;
        let summary = faults(&parsed(&format!("weft sim faults --seed 1 --seeds {seeds} --jobs 2")), &loses_one);
        let text = render::Text::text(&summary);
        let (commands, traces) = (after(&text, "again:"), after(&text, "trace:"));
        assert!(summary.failed > SHOWN, "{text}");
        assert_eq!((commands.len(), traces.len()), (summary.failed, SHOWN), "{text}");
        assert!(!after(&text, "smaller:").is_empty(), "{text}");
        for (n, command) in commands.iter().enumerate() {
            let again = faults(&FaultOptions { no_shrink: true, ..parsed(command) }, &loses_one);
            assert_eq!(again.failed, 1, "{command}");
            if let Some(first) = summary.failures.get(n) {
                let [failure] = &again.failures[..] else { panic!("{} failures", again.failures.len()) };
                assert_eq!((&failure.wrong, &failure.trace_hash[..]), (&first.wrong, traces[n]), "{command}");
                assert_eq!(again.trace_hash, traces[n], "{command}");
            }
        }
        for (command, failure) in
            after(&text, "smaller:").iter().zip(summary.failures.iter().filter(|f| f.smaller.is_some()))
        {
            let again = faults(&FaultOptions { no_shrink: true, ..parsed(command) }, &loses_one);
            assert_eq!(again.failures[0].wrong, failure.smaller_wrong, "{command}");
        }
    }

    #[test]
    fn an_endless_run_is_a_failure_with_a_command() {
        let short = |plan: &Plan| run_with(plan, |harness| harness.limit_turns(100));
        let summary = faults(&parsed("weft sim faults --seed 3 --no-shrink"), &short);
        let [failure] = &summary.failures[..] else { panic!("{} failures", summary.failures.len()) };
        assert!(failure.wrong[0].contains("no end after 100 turns"), "{:?}", failure.wrong);
        assert!(failure.command.starts_with("weft-lab sim faults --seed 3 "), "{}", failure.command);
    }
}
