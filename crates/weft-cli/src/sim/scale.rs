//! `weft sim scale`: a collective of many ranks, or a figure of a source paper, on the machine of a profile.
//!
//! Place in the data flow: compiles the schedules with the provider's compiler, runs weft-scale's machine, and prints.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::{Args, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use nix::sys::resource::{UsageWho, getrusage};
use serde::Serialize;
use weft_engine::collective::Operation;
use weft_scale::board::OnBoard;
use weft_scale::figure::{Comparison, Effort, Figure, Line, figure, names};
use weft_scale::{Collective, Executor, Machine, Options, Profile, schedule};

use super::draw::{Titles, svg};
use super::profile;
use crate::render::{self, Text, table};

/// The most ranks of a simulation.
const MOST_RANKS: u32 = 1 << 20;

/// Predicts the time of a collective of up to 1,048,576 ranks on the machine of a profile, or a figure of a paper.
///
/// Each rank performs the schedule that the provider compiles for it. Messages cost what the profile says; no data are
/// moved. The same arguments give the same trace, whose hash is printed.
#[derive(Args)]
pub(crate) struct ScaleOptions {
    /// The machine: a known profile, or the path of a file.
    #[arg(long, default_value = "ethernet-100g")]
    profile: String,
    /// Numbers of ranks, separated by commas, each from 1 to 1048576.
    #[arg(long, default_value = "64", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_RANKS)))]
    ranks: Vec<u32>,
    /// The collective.
    #[arg(long, value_enum, default_value_t = Coll::Barrier)]
    coll: Coll,
    /// Bytes of one block.
    #[arg(long, default_value_t = 8)]
    bytes: usize,
    /// The part of a host that performs the steps.
    #[arg(long, value_enum, default_value_t = By::Host)]
    by: By,
    /// How often the collective is performed.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    iterations: u32,
    /// The seed of random delays.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Figures of the source papers in place of a collective, separated by commas. `weft sim profile` lists them.
    #[arg(long, value_delimiter = ',', value_name = "NAMES", conflicts_with_all = ["ranks", "coll", "bytes", "by"])]
    figure: Vec<String>,
    /// Draw the result into this file.
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A collective on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Coll {
    Barrier,
    Broadcast,
    Alltoall,
    Allreduce,
    Allgather,
    ReduceScatter,
    Reduce,
    Scatter,
    Gather,
}

impl Coll {
    const fn operation(self) -> Operation {
        match self {
            Self::Barrier => Operation::Barrier,
            Self::Broadcast => Operation::Broadcast,
            Self::Alltoall => Operation::AllToAll,
            Self::Allreduce => Operation::AllReduce,
            Self::Allgather => Operation::AllGather,
            Self::ReduceScatter => Operation::ReduceScatter,
            Self::Reduce => Operation::Reduce,
            Self::Scatter => Operation::Scatter,
            Self::Gather => Operation::Gather,
        }
    }
}

/// An executor on the command line.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum By {
    /// The processor of each rank.
    Host,
    /// The network card.
    Card,
}

/// The result for one number of ranks.
#[derive(Debug, Serialize)]
struct Row {
    ranks: u32,
    /// The time of an iteration, until the last rank has ended.
    time_us: f64,
    messages: u64,
    events: u64,
    /// Real time, for the schedules and for the events.
    compile_s: f64,
    run_s: f64,
    bytes_per_rank: u64,
    /// Schedules that differ by more than the ranks that they name.
    schedules: usize,
    trace_hash: String,
}

/// The results of one command.
#[derive(Debug, Serialize)]
struct Rows {
    profile: String,
    collective: String,
    bytes: usize,
    by: String,
    seed: u64,
    rows: Vec<Row>,
}

impl Text for Rows {
    fn text(&self) -> String {
        let size = if self.collective == "barrier" { String::new() } else { format!(" of {} bytes", self.bytes) };
        let head = format!("{}{size} on {}, by the {}, seed {}\n", self.collective, self.profile, self.by, self.seed);
        let heads = ["ranks", "µs", "messages", "events", "events/s", "real s", "B/rank", "schedules", "trace hash"];
        let rows = self.rows.iter().map(|row| {
            [
                row.ranks.to_string(),
                format!("{:.3}", row.time_us),
                row.messages.to_string(),
                row.events.to_string(),
                render::number(float(row.events) / row.run_s.max(1e-9)),
                format!("{:.2} + {:.2}", row.compile_s, row.run_s),
                row.bytes_per_rank.to_string(),
                row.schedules.to_string(),
                row.trace_hash.clone(),
            ]
        });
        head + &table(heads, rows)
    }
}

/// A counter as a number; counters stay far below 2^53.
#[allow(clippy::cast_precision_loss)]
const fn float(value: u64) -> f64 {
    value as f64
}

/// Runs the command. The inner error is one of the arguments.
pub(super) fn run(options: &ScaleOptions, out: &mut impl Write) -> io::Result<Result<(), String>> {
    let profile = match profile(&options.profile) {
        Ok(profile) => profile,
        Err(why) => return Ok(Err(why)),
    };
    if !options.figure.is_empty() {
        return figures(options, &profile, out);
    }
    let mut rows = Vec::new();
    for &ranks in &options.ranks {
        match measure(options, &profile, ranks) {
            Ok(row) => rows.push(row),
            Err(why) => return Ok(Err(format!("{ranks} ranks: {why}"))),
        }
    }
    let rows = Rows {
        profile: profile.name.clone(),
        collective: format!("{:?}", options.coll).to_lowercase(),
        bytes: options.bytes,
        by: if options.executor() == Executor::Card { "card" } else { "host" }.to_owned(),
        seed: options.seed,
        rows,
    };
    if let Some(file) = &options.svg {
        let points = rows.rows.iter().map(|row| (f64::from(row.ranks), row.time_us)).collect();
        let title = format!("{} on {}", rows.collective, rows.profile);
        let titles = Titles { title: &title, x: "ranks", y: "µs" };
        if let Err(why) = write_svg(file, titles, &[Line { name: rows.collective.clone(), points }])? {
            return Ok(Err(why));
        }
    }
    render::print(out, &rows, options.json)?;
    Ok(Ok(()))
}

impl ScaleOptions {
    const fn executor(&self) -> Executor {
        match self.by {
            By::Host => Executor::Host,
            By::Card => Executor::Card,
        }
    }
}

/// Simulates one number of ranks.
fn measure(options: &ScaleOptions, profile: &Profile, ranks: u32) -> Result<Row, String> {
    let kib = || getrusage(UsageWho::RUSAGE_SELF).map_or(0, |usage| u64::try_from(usage.max_rss()).unwrap_or(0));
    let before_kib = kib();
    let start = Instant::now();
    let request = schedule::request(options.coll.operation(), ranks, options.bytes);
    let collective = Collective::compile(request, None).map_err(|error| format!("{error}: take fewer ranks"))?;
    let compile_s = start.elapsed().as_secs_f64();
    if options.executor() == Executor::Card {
        let entries = profile.costs.card.entries.unwrap_or(u64::MAX);
        if collective.most_tasks() as u64 > entries {
            let tasks = collective.most_tasks();
            return Err(format!("the card holds {entries} tasks, and the schedule has {tasks}: take --by host"));
        }
    }
    let bar = ProgressBar::new(collective.messages() * u64::from(options.iterations));
    let style = ProgressStyle::with_template("{bar:30} {percent} % of messages, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let (seed, iterations, executor) = (options.seed, options.iterations, options.executor());
    let conditions = Options { seed, iterations, executor, ..Options::default() };
    let start = Instant::now();
    let progress = |events, _| bar.set_position(events);
    let outcome = match OnBoard::new(request, &profile.costs).filter(|_| executor == Executor::Host) {
        Some(board) => Machine::new(&board, &profile.costs, conditions).run(progress),
        None => Machine::new(&collective, &profile.costs, conditions).run(progress),
    };
    let outcome = outcome.map_err(|stuck| stuck.to_string())?;
    bar.finish_and_clear();
    Ok(Row {
        ranks,
        time_us: float(outcome.end_ps) / 1e6 / f64::from(options.iterations),
        messages: outcome.messages,
        events: outcome.events,
        compile_s,
        run_s: start.elapsed().as_secs_f64(),
        bytes_per_rank: kib().saturating_sub(before_kib) * 1024 / u64::from(ranks),
        schedules: collective.distinct(),
        trace_hash: format!("{:016x}", outcome.hash),
    })
}

/// Draws into a file.
fn write_svg(file: &Path, titles: Titles<'_>, lines: &[Line]) -> io::Result<Result<(), String>> {
    Ok(match svg(titles, lines) {
        Ok(text) => {
            std::fs::write(file, text)?;
            Ok(())
        }
        Err(why) => Err(why),
    })
}

/// Figures on the command line.
#[derive(Serialize)]
struct Figures(Vec<Figure>);

impl Text for Figures {
    fn text(&self) -> String {
        self.0.iter().map(figure_text).collect::<Vec<_>>().join("\n")
    }
}

/// A figure as tables.
fn figure_text(figure: &Figure) -> String {
    let mut text = format!("{} ({}, {})\n", figure.title, figure.source, figure.profile);
    if let Some(first) = figure.lines.first() {
        let x = |point: &(f64, f64)| format!("{}", point.0);
        let heads: Vec<String> = [figure.x.to_owned()].into_iter().chain(first.points.iter().map(x)).collect();
        let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
        let rows = figure.lines.iter().map(|line| {
            [line.name.clone()].into_iter().chain(line.points.iter().map(|point| format!("{:.2}", point.1)))
        });
        text += &render::table_of(&heads, rows);
    }
    for line in &figure.text {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "  {line}");
    }
    text + &compared_text(figure.compared.iter().map(|compared| (figure, compared)))
}

/// Published numbers beside ours.
pub(super) fn compared_text<'a>(rows: impl Iterator<Item = (&'a Figure, &'a Comparison)>) -> String {
    let heads = ["figure", "quantity", "published", "ours", "unit", "residual", "label", "agrees"];
    let rows = rows.map(|(figure, compared)| {
        [
            format!("{} {}", figure.profile, figure.name),
            compared.what.clone(),
            compared.published.clone(),
            compared.ours_text(),
            compared.unit.to_owned(),
            compared.residual().map_or_else(String::new, |percent| format!("{percent:+.1} %")),
            compared.label.word().to_owned(),
            if compared.agrees() { "yes" } else { "NO" }.to_owned(),
        ]
    });
    table(heads, rows)
}

fn figures(options: &ScaleOptions, profile: &Profile, out: &mut impl Write) -> io::Result<Result<(), String>> {
    let mut made = Vec::new();
    for name in &options.figure {
        let Some(figure) = figure(profile, name, Effort::Full) else {
            let known: Vec<&str> = names().filter(|(of, _)| *of == profile.name).map(|(_, name)| name).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            return Ok(Err(format!("no figure `{name}` of {}: there is {known}", profile.name)));
        };
        made.push(figure);
    }
    if let (Some(file), [figure, ..]) = (&options.svg, &made[..]) {
        let titles = Titles { title: figure.title, x: figure.x, y: figure.y };
        if let Err(why) = write_svg(file, titles, &figure.lines)? {
            return Ok(Err(why));
        }
    }
    render::print(out, &Figures(made), options.json)?;
    Ok(Ok(()))
}
