//! `weft sim profile --measure` and `--check`: the profiles `shm` and `tcp` of this machine, from `weft bench`, both as
//! one profile `machine`, and predictions beside measured times.
//!
//! Place in the data flow: starts this command again as `weft bench`, and turns its results into the costs of a
//! profile, or compares them with the predictions of [`latency_ps`].
//!
//! Messages cost what ping-pongs cost. Three costs of each profile are fitted to barriers: the layer of collectives to
//! that of two ranks, and the turns of ranks that share processors to two of more ranks than processors. All
//! other times are predictions.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use clap::Args;
use serde::{Deserialize, Serialize};
use weft_engine::collective::Operation;
use weft_scale::Profile;
use weft_scale::latency::{fit, latency_ps};
use weft_scale::profile::Costs;

use crate::render::{Text, table};

/// A way between the processes of this machine.
#[derive(Clone, Copy)]
struct Way {
    /// The name of the profile.
    name: &'static str,
    /// The provider whose results it holds.
    provider: &'static str,
    about: &'static str,
}

const WAYS: [Way; 2] = [
    Way { name: "shm", provider: "weft", about: "weft between processes of this machine, over shared memory" },
    Way { name: "tcp", provider: "weft:FI_WEFT_SHM=0", about: "weft between processes of this machine, over TCP" },
];
/// The floor of a message: the time of a cache line.
const LINE: &str = "floor cache-line";
const SHORT: u64 = 8;
const MEDIUM: u64 = 64 << 10;
const LONG: u64 = 1 << 20;
/// The collectives that are compared, by their names in `weft bench`.
const COLLECTIVES: [(&str, Operation); 4] = [
    ("barrier", Operation::Barrier),
    ("allreduce", Operation::AllReduce),
    ("broadcast", Operation::Broadcast),
    ("alltoall", Operation::AllToAll),
];
/// A row of `weft bench --json`.
#[derive(Deserialize)]
struct Row {
    provider: String,
    op: String,
    size: u64,
    members: Option<u32>,
    metric: String,
    median: Option<f64>,
    min: Option<f64>,
    p50: Option<f64>,
}

/// How measurements are made.
#[derive(Args, Clone, Debug)]
pub(super) struct Effort {
    /// Numbers of ranks to compare, separated by commas.
    #[arg(long, default_value = "2,4,8,16", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(2..=64))]
    ranks: Vec<u32>,
    /// Shortest duration of one measurement, in milliseconds.
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    sample_ms: u32,
    /// Number of rounds; each result is the median over them.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Results of `weft bench pingpong` and `weft bench collective` (`--json`) to use in place of measurements.
    #[arg(long, value_name = "FILES", value_delimiter = ',')]
    results: Vec<PathBuf>,
    /// The libfabric to load [default: the newest one found].
    #[arg(long, value_name = "PATH")]
    libfabric: Option<PathBuf>,
}

/// Runs one kind of `weft bench`, and reads its results.
fn bench(folder: &Path, arguments: &[&str], effort: &Effort) -> io::Result<Vec<Row>> {
    if !effort.results.is_empty() {
        let rows = effort.results.iter().map(|file| Ok(serde_json::from_slice::<Vec<Row>>(&std::fs::read(file)?)?));
        return Ok(rows.collect::<io::Result<Vec<_>>>()?.into_iter().flatten().collect());
    }
    let file = folder.join("measured.json");
    let providers = WAYS.map(|way| way.provider).join(",");
    let status = Command::new(std::env::current_exe()?)
        .arg("bench")
        .args(arguments)
        .args(["--providers", &providers, "--sample-ms", &effort.sample_ms.to_string()])
        .args(["--rounds", &effort.rounds.to_string(), "--json"])
        .arg(&file)
        .args(effort.libfabric.iter().flat_map(|path| [OsStr::new("--libfabric"), path.as_os_str()]))
        .stdout(Stdio::null())
        .status()?;
    if !status.success() {
        return Err(io::Error::other(format!("weft bench {} failed ({status}): see its message", arguments.join(" "))));
    }
    let rows = serde_json::from_slice(&std::fs::read(&file)?)?;
    std::fs::remove_file(&file)?;
    Ok(rows)
}

fn no_result(of: &str) -> io::Error {
    io::Error::other(format!("weft bench has no result of {of}: see `weft doctor`"))
}

/// Measured times in nanoseconds.
struct Times {
    short: f64,
    medium: f64,
    long: f64,
    line: f64,
    /// Barriers of two ranks, and of [`FITTED`] times as many as there are processors.
    barriers: [f64; 3],
}

impl Times {
    /// The costs of messages.
    fn path(&self) -> String {
        let Self { short, medium, long, line, .. } = *self;
        #[allow(clippy::cast_precision_loss)] // Below 2^53.
        let byte = ((long - medium) / (LONG - MEDIUM) as f64).max(0.0) * 1e3;
        let latency = line.min(short / 3.0).max(0.001);
        let each = (short - latency) / 2.0;
        format!(
            "send = {{ is = \"{each:.3} ns\", source = \"half of {short:.0} ns for 8 bytes (weft bench pingpong), less latency\" }}\n\
             receive = {{ is = \"{each:.3} ns\", source = \"as send\" }}\n\
             latency = {{ is = \"{latency:.3} ns\", source = \"a cache line: processors perform the rest in their calls\" }}\n\
             byte = {{ is = \"{byte:.1} ps/B\", source = \"measured: {medium:.0} ns for 64 KiB, {long:.0} ns for 1 MiB (weft bench pingpong)\" }}\n\
             least_byte = {{ is = \"{byte:.1} ps/B\", source = \"processors move the bytes: streams do not help\" }}\n"
        )
    }
}

/// The part of a profile that is not fitted, with the costs of messages on both ways.
fn text((name, about): (&str, &str), near: &Times, far: &Times, processors: u32) -> String {
    format!(
        "name = \"{name}\"\nabout = \"{about}\"\n\n[machine]\n\
         ranks_per_host = {{ is = \"64\", source = \"all ranks of a job on this machine\" }}\n\
         processors = {{ is = \"{processors}\", source = \"this machine\" }}\n\n\
         [near]\n{}\n[far]\n{}\n\
         [cpu]\ncopy_byte = {{ is = \"100 ps/B\", source = \"assumed: 10 GB/s\" }}\n\
         reduce_byte = {{ is = \"200 ps/B\", source = \"assumed: 5 GB/s\" }}\n\n\
         [collective]\nline = {{ is = \"{:.3} ns\", source = \"measured (weft bench pingpong, {LINE})\" }}\n",
        near.path(),
        far.path(),
        near.line,
    )
}

/// Ranks for each processor in the barriers to which the costs of shared processors are fitted.
const FITTED: [u32; 2] = [2, 8];

/// The rank numbers of the barriers to which costs are fitted.
fn fitted(processors: u32) -> [u32; 3] {
    let [few, many] = FITTED.map(|each| each.saturating_mul(processors).clamp(2 * each, 64));
    [2, few, many]
}

/// The name of a cost, and the function that sets it.
type Cost = (&'static str, fn(&mut Costs, u64));

/// The cost of the layer.
fn layer(way: Way) -> Cost {
    if way.name == "shm" {
        ("board", |costs, ps| costs.collective.board = Some(ps))
    } else {
        ("call", |costs, ps| costs.collective.call = ps)
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Times are positive and far below 2^53 ps.
fn picoseconds(ns: f64) -> u64 {
    (ns * 1e3).round() as u64
}

#[allow(clippy::cast_precision_loss)] // Times are far below 2^53 ps.
fn nanoseconds(ps: u64) -> f64 {
    ps as f64 / 1e3
}

/// The lines of costs that are fitted, and the text of the profile of a way.
fn profile(way: Way, times: &Times, processors: u32) -> io::Result<(Vec<String>, String)> {
    let mut text = text((way.name, way.about), times, times, processors);
    let parsed = |text: &str| Profile::parse(text).map(|profile| profile.costs).map_err(io::Error::other);
    let costs: [Cost; 3] = [
        layer(way),
        ("turn", |costs, ps| costs.collective.turn = ps),
        ("refill", |costs, ps| costs.collective.refill = ps),
    ];
    // With many processors no more ranks are measured than for the turn.
    let [_, few, many] = fitted(processors);
    let count = if many > few { 3 } else { 2 };
    let mut lines = Vec::new();
    for (((name, set), ranks), measured) in costs.into_iter().zip(fitted(processors)).zip(times.barriers).take(count) {
        let ps = fit(&parsed(&text)?, set, (Operation::Barrier, ranks, 0), picoseconds(measured));
        let ns = nanoseconds(ps.map_err(io::Error::other)?);
        let line = format!(
            "{name} = {{ is = \"{ns:.3} ns\", source = \"weft bench collective\", fit = \"barrier of {ranks} ranks: {measured:.0} ns\" }}\n"
        );
        text += &line;
        lines.push(line);
    }
    Ok((lines, text))
}

/// Both ways in one profile, for jobs that may use either.
fn both([shm, tcp]: [(&Times, &[String]); 2], processors: u32) -> String {
    let mut text = text(("machine", "weft between processes of this machine"), shm.0, tcp.0, processors);
    // The layer over messages is that of TCP, and turns are those of shared memory.
    text.extend(tcp.1.iter().take(1).chain(shm.1).map(String::as_str));
    text
}

fn processors() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
}

/// Measures, and writes `shm.toml`, `tcp.toml` and `machine.toml` into a folder. Returns their paths.
pub(super) fn measure(folder: &Path, effort: &Effort) -> io::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(folder)?;
    let processors = processors();
    let sizes = format!("{SHORT},{MEDIUM},{LONG}");
    let pairs = bench(folder, &["pingpong", "--sizes", &sizes], effort)?;
    let members = fitted(processors).map(|ranks| ranks.to_string()).join(",");
    let groups = bench(folder, &["collective", "--coll", "barrier", "--sizes", "8", "--members", &members], effort)?;
    let mut texts = Vec::new();
    let mut ways = Vec::new();
    for way in WAYS {
        // The median of single operations: a preempted one does not change it.
        let time = |bytes| {
            let row = pairs.iter().find(|row| (row.provider.as_str(), row.size) == (way.provider, bytes));
            row.and_then(|row| row.p50).ok_or_else(|| no_result(way.provider))
        };
        let line = pairs.iter().find(|row| row.provider == LINE).and_then(|row| row.median);
        let barrier = |ranks| {
            let mut rows = groups.iter().filter_map(|row| measured(row, way, "barrier", ranks));
            rows.next().ok_or_else(|| no_result(way.provider))
        };
        let [two, few, many] = fitted(processors);
        let times = Times {
            short: time(SHORT)?,
            medium: time(MEDIUM)?,
            long: time(LONG)?,
            line: line.ok_or_else(|| no_result(LINE))?,
            barriers: [barrier(two)?, barrier(few)?, barrier(many)?],
        };
        let (lines, text) = profile(way, &times, processors)?;
        texts.push((way.name, text));
        ways.push((times, lines));
    }
    if let [(shm, board), (tcp, call)] = ways.as_slice() {
        texts.push(("machine", both([(shm, board), (tcp, call)], processors)));
    }
    let write = |(name, text): &(&str, String)| {
        let file = folder.join(format!("{name}.toml"));
        std::fs::write(&file, text).map(|()| file)
    };
    texts.iter().map(write).collect()
}

/// The time of a collective, if the row has it: that of the fastest batch. Other programs and the scheduler disturb
/// most batches of many ranks.
fn measured(row: &Row, way: Way, coll: &str, ranks: u32) -> Option<f64> {
    let is_it = row.provider == way.provider && row.op == coll && row.members == Some(ranks) && row.metric == "min";
    row.min.filter(|_| is_it)
}

/// A predicted time beside the measured one.
#[derive(Debug, Serialize)]
pub(super) struct Compared {
    profile: &'static str,
    collective: &'static str,
    ranks: u32,
    /// Whether a cost of the profile was fitted to this time.
    fitted: bool,
    predicted_us: f64,
    measured_us: f64,
    residual_percent: f64,
}

/// All comparisons.
#[derive(Debug, Serialize)]
pub(super) struct Comparison {
    rows: Vec<Compared>,
    /// Predictions, and those within 15 % of the measured time.
    predictions: usize,
    within_15_percent: usize,
}

impl Text for Comparison {
    fn text(&self) -> String {
        let heads = ["profile", "collective", "ranks", "label", "predicted µs", "measured µs", "residual"];
        let rows = self.rows.iter().map(|row| {
            [
                row.profile.to_owned(),
                row.collective.to_owned(),
                row.ranks.to_string(),
                if row.fitted { "fitted" } else { "predicted" }.to_owned(),
                format!("{:.2}", row.predicted_us),
                format!("{:.2}", row.measured_us),
                format!("{:+.1} %", row.residual_percent),
            ]
        });
        let (within, all) = (self.within_15_percent, self.predictions);
        format!("{}{within} of {all} predictions are within 15 % of the measured time.\n", table(heads, rows))
    }
}

/// Measures collectives of this machine, and compares them with the predictions of the profiles in a folder.
pub(super) fn check(folder: &Path, effort: &Effort) -> io::Result<Comparison> {
    let names = COLLECTIVES.map(|(name, _)| name).join(",");
    let ranks = effort.ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let arguments = ["collective", "--coll", &names, "--sizes", "8", "--members", &ranks];
    let rows = bench(folder, &arguments, effort)?;
    compare(folder, &rows, &effort.ranks)
}

fn compare(folder: &Path, rows: &[Row], ranks: &[u32]) -> io::Result<Comparison> {
    let mut all = Vec::new();
    for way in WAYS {
        let file = folder.join(format!("{}.toml", way.name));
        let text = std::fs::read_to_string(&file).map_err(|error| {
            io::Error::other(format!("{} cannot be read ({error}): make it by --measure", file.display()))
        })?;
        let costs = Profile::parse(&text).map_err(io::Error::other)?.costs;
        let fitted = fitted(costs.processors.unwrap_or(u32::MAX));
        let pairs = COLLECTIVES.into_iter().flat_map(|coll| ranks.iter().map(move |ranks| (coll, *ranks)));
        for ((name, operation), ranks) in pairs {
            let measured = rows.iter().find_map(|row| measured(row, way, name, ranks));
            let measured =
                measured.ok_or_else(|| no_result(&format!("{name} of {ranks} ranks by {}", way.provider)))?;
            let bytes = if operation == Operation::Barrier { 0 } else { usize::try_from(SHORT).unwrap_or(usize::MAX) };
            let predicted = latency_ps(&costs, operation, ranks, bytes).map_err(io::Error::other)?;
            let predicted = nanoseconds(predicted);
            all.push(Compared {
                profile: way.name,
                collective: name,
                ranks,
                fitted: operation == Operation::Barrier && fitted.contains(&ranks),
                predicted_us: predicted / 1e3,
                measured_us: measured / 1e3,
                residual_percent: (predicted / measured - 1.0) * 100.0,
            });
        }
    }
    let predictions = || all.iter().filter(|row| !row.fitted);
    let within_15_percent = predictions().filter(|row| row.residual_percent.abs() <= 15.0).count();
    Ok(Comparison { predictions: predictions().count(), within_15_percent, rows: all })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Costs that are like those of a machine with two processors.
    fn costs(way: Way, times: &Times) -> Costs {
        Profile::parse(&profile(way, times, 2).unwrap().1).unwrap().costs
    }

    fn time_ns(costs: &Costs, operation: Operation, ranks: u32, bytes: u64) -> f64 {
        nanoseconds(latency_ps(costs, operation, ranks, usize::try_from(bytes).unwrap()).unwrap())
    }

    #[test]
    fn measured_and_fitted_costs_are_kept() {
        let times = Times {
            short: 6200.0,
            medium: 20_000.0,
            long: 336_000.0,
            line: 100.0,
            barriers: [9_000.0, 60_000.0, 700_000.0],
        };
        let costs = costs(WAYS[1], &times);
        let close = |one: f64, other: f64| (one / other - 1.0).abs() < 0.02;
        assert!(close(time_ns(&costs, Operation::Barrier, 2, 0), 9_000.0));
        assert!(close(time_ns(&costs, Operation::Barrier, 4, 0), 60_000.0));
        assert!(close(time_ns(&costs, Operation::Barrier, 16, 0), 700_000.0));
        let broadcast = |bytes| time_ns(&costs, Operation::Broadcast, 2, bytes);
        assert!(close(broadcast(LONG) - broadcast(MEDIUM), 316_000.0), "{}", broadcast(LONG) - broadcast(MEDIUM));
    }

    #[test]
    fn barriers_on_boards_are_fitted() {
        let times =
            Times { short: 235.0, medium: 7_000.0, long: 70_000.0, line: 70.0, barriers: [400.0, 4_000.0, 34_000.0] };
        let costs = costs(WAYS[0], &times);
        assert!((time_ns(&costs, Operation::Barrier, 2, 0) - 400.0).abs() < 10.0);
        assert!((time_ns(&costs, Operation::Barrier, 4, 0) - 4_000.0).abs() < 100.0);
        assert!((time_ns(&costs, Operation::Barrier, 16, 0) - 34_000.0).abs() < 700.0);
        let [call, board] = ["call", "board"].map(|name| [format!("{name} = {{ is = \"1 ns\", source = \"\" }}\n")]);
        let machine = Profile::parse(&both([(&times, &board), (&times, &call)], 2)).unwrap().costs;
        assert_eq!((machine.collective.call, machine.collective.board), (1000, Some(1000)));
        // The others wait for the root alone.
        assert!(time_ns(&costs, Operation::Broadcast, 16, 8) < 24_000.0);
    }
}
