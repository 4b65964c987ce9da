//! `weft bench`: measures weft and other providers by the same code, in one run, beside the machine's floors.
//!
//! Place in the data flow: a libfabric client. [`run`] (this process) plans the measurements, has each made by fresh
//! child processes (`launch`, `child`), and prints the results (`table`, `rows`, `plot`). A measurement is a *case*
//! (kind, operation, size, …) over a *subject* (a provider or a floor). Cases are repeated in rounds, and in each round
//! every subject has a turn, so that disturbances of the machine affect all subjects alike. docs/benchmarking.md
//! describes how each number is obtained.
//!
//! `weft-lab` has more kinds than `weft`, and the drawings (feature `lab`). The types know all kinds.
//!
//! - `options`: the command line. `subject`: providers with variables, and floors. `plan`: the cases of a run.
//! - `places`: the paths of libfabrics and of the provider. `cores`: the placement of ranks and threads.
//! - `job`: the messages between parent and child. `launch`: the parent's side. `child`: the child's side.
//! - `port`: an endpoint with its completions. `timing`: batches and samples. `kinds`: the measurements.
//! - `remote`, `serve`: both ends of the control connection of a measurement between two hosts.
//! - `flows`: plain connections between two hosts, for `weft doctor --to`.
//! - `gex`: `weft bench gex`, which runs a program of its own.
//! - `cleanup`: leftover files and interruptions. `stats`, `rows`: medians, ratios, JSON. `table`, `plot`: the output.

mod child;
mod cleanup;
mod cores;
pub(crate) mod flows;
mod gex;
mod job;
mod kinds;
mod launch;
mod options;
mod places;
mod plan;
#[cfg(feature = "lab")]
mod plot;
mod port;
pub(crate) mod remote;
mod rows;
mod serve;
mod stats;
mod subject;
mod table;
mod timing;

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};

pub(crate) use child::run as run_child;
use job::{Job, Outcome};
use options::Options;
pub(crate) use places::{libfabrics, probe_with};
use plan::Case;
use remote::Control;
use rows::{Row, Samples};
use subject::Subject;

/// Failures after which a case over a subject is given up.
const PATIENCE: usize = 2;

/// The command line: the options of a measurement, or a subcommand.
#[derive(Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct Command {
    #[command(subcommand)]
    action: Option<Action>,
    #[command(flatten)]
    options: Option<Options>,
    /// They are no part of `Options`: clap does not look into parts for whether any option was given.
    #[cfg(feature = "lab")]
    #[command(flatten)]
    lab: options::LabOptions,
}

#[derive(Subcommand)]
enum Action {
    Serve(serve::ServeOptions),
    Gex(gex::GexOptions),
}

/// Runs the command.
pub(crate) fn run(command: &Command, out: &mut impl Write) -> io::Result<ExitCode> {
    match command {
        Command { action: Some(Action::Serve(options)), .. } => serve::run(options, out),
        Command { action: Some(Action::Gex(options)), .. } => gex::run(options, out),
        #[cfg(feature = "lab")]
        Command { options: Some(options), lab, .. } => bench(&options.clone().with(lab.clone()), out),
        #[cfg(not(feature = "lab"))]
        Command { options: Some(options), .. } => bench(options, out),
        // The parser demands one of both.
        Command { .. } => Ok(ExitCode::from(2)),
    }
}

/// Plans, measures, prints. The exit status is 1 if nothing could be measured.
fn bench(options: &Options, out: &mut impl Write) -> io::Result<ExitCode> {
    match prepare(options) {
        Err(complaint) => {
            eprintln!("weft bench: {complaint}");
            Ok(ExitCode::from(2))
        }
        Ok(prepared) => {
            let rows = measure(options, &prepared);
            print(options, &prepared, &rows, out)?;
            Ok(if rows.iter().any(|row| row.median.is_some()) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
    }
}

/// The preparation of a run.
struct Prepared {
    host: places::Host,
    subjects: Vec<Subject>,
    cases: Vec<Case>,
    cores: Vec<usize>,
    /// The server on the other host.
    control: Option<Control>,
}

fn prepare(options: &Options) -> Result<Prepared, String> {
    let cores = cores::choose(&options.cores)?;
    let mut subjects = Vec::new();
    for text in options.providers() {
        let subject = Subject { between_hosts: options.to.is_some(), ..text.parse()? };
        for subject in subject.with_progress(options.progress()) {
            if !subjects.contains(&subject) {
                subjects.push(subject);
            }
        }
    }
    let cases = plan::cases(options)?;
    for file in [&options.json, &options.lab.plot].into_iter().flatten() {
        writable(file)?;
    }
    #[cfg(feature = "lab")]
    options.lab.plot.as_deref().map_or(Ok(()), plot::check_format)?;
    let host = places::Host::find(options.libfabric.as_deref(), &subjects)?;
    subjects.extend(kinds::floor::subjects(options.kind, options.to.is_some()));
    let control = options.to.as_deref().map(Control::connect).transpose()?;
    Ok(Prepared { host, subjects, cases, cores, control })
}

/// Checks before the measurements that a file can be written after them.
fn writable(file: &Path) -> Result<(), String> {
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if parent.is_dir() {
        return Ok(());
    }
    Err(format!("{}: there is no directory {}; create it, or name another file", file.display(), parent.display()))
}

/// Makes all measurements, in rounds.
fn measure(options: &Options, prepared: &Prepared) -> Vec<Row> {
    let Prepared { host, subjects, cases, cores, control } = prepared;
    cleanup::begin();
    let mut turns: Vec<(usize, usize)> = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        turns.extend((0..subjects.len()).filter(|&at| case.suits(&subjects[at])).map(|subject| (index, subject)));
    }
    let bar = progress_bar(turns.len() * options.rounds);
    let mut samples: BTreeMap<(usize, usize), Samples> = BTreeMap::new();
    for round in 0..options.rounds {
        for index in 0..cases.len() {
            let mut order: Vec<_> = turns.iter().filter(|turn| turn.0 == index).copied().collect();
            if round % 2 == 1 {
                order.reverse();
            }
            for turn in order {
                let (case, subject) = (&cases[turn.0], &subjects[turn.1]);
                let gathered = samples.entry(turn).or_default();
                bar.set_message(format!("{} over {}", case.title(), subject.name));
                if gathered.wants_more(PATIENCE) {
                    let outcome = match host.refuses(subject) {
                        Some(why) => Outcome::NotOffered(why),
                        None => {
                            let job = Job::new(options, case, subject, host, cores);
                            launch::run(&job, subject, host, control.as_ref())
                        }
                    };
                    gathered.add(outcome);
                }
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    rows::make(cases, subjects, &samples)
}

/// A progress bar on standard error, if that is a terminal. It is drawn between measurements, never during one.
fn progress_bar(turns: usize) -> ProgressBar {
    let bar = ProgressBar::new(turns as u64);
    if let Ok(style) = ProgressStyle::with_template("{bar:30} {pos}/{len} {eta:>4} {msg}") {
        bar.set_style(style);
    }
    bar
}

fn print(options: &Options, prepared: &Prepared, rows: &[Row], out: &mut impl Write) -> io::Result<()> {
    let about = |file: &Path, error: io::Error| io::Error::other(format!("{}: {error}", file.display()));
    if let Some(file) = &options.json {
        std::fs::write(file, rows::json(rows, &prepared.host, prepared.control.as_ref()))
            .map_err(|error| about(file, error))?;
    }
    #[cfg(feature = "lab")]
    if let Some(file) = &options.lab.plot {
        plot::write(file, options, rows).map_err(|error| about(file, error))?;
    }
    out.write_all(table::text(options, prepared, rows).as_bytes())
}
