//! `weft sim replay` and `weft sim tune`: recorded jobs on the machine of a profile.
//!
//! Place in the data flow: reads the files that FI_WEFT_RECORD has made, or a text of GOAL, and prints what weft-scale
//! predicts.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use weft_record::{Omitted, Recording};
use weft_replay::tune::{rank, settings};
use weft_replay::{Job, build, goal};
use weft_scale::profile::Costs;
use weft_scale::{Machine, Options, Profile, Programs};

use super::profile;
use crate::render::{self, Text, table};

/// Predicts how long a recorded job takes on the machine of a profile.
///
/// A job is recorded with FI_WEFT_RECORD=FILE. With libweft-coll.so in LD_PRELOAD (`weft run --collectives` sets it),
/// rank R writes its MPI calls to FILE.R. Otherwise the provider writes the operations of each process to FILE.fi.PID.
/// Messages, waits and collectives are simulated at the costs of the profile; computation between the calls keeps its
/// time.
///
/// A text in the format GOAL (of LogGOPSim and ATLAHS) is read as well.
#[derive(Args)]
pub(crate) struct ReplayOptions {
    /// The files of all ranks, or FILE as it was given to FI_WEFT_RECORD, or one text in the format GOAL.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The machine: a known profile, or the path of a file.
    #[arg(long, default_value = "ethernet-100g")]
    profile: String,
    /// The factor by which the machine's processors compute faster.
    #[arg(long, default_value_t = 1.0)]
    faster: f64,
    /// Write the job to this file in the format GOAL.
    #[arg(long, value_name = "FILE")]
    goal: Option<PathBuf>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Ranks settings for a recorded job: algorithms of its collectives, thresholds, networks and streams.
///
/// Each setting is simulated alone, with all others as they are. The fastest comes first. The last column has the
/// variables that select it. No variable selects an algorithm.
#[derive(Args)]
pub(crate) struct TuneOptions {
    /// The files of all ranks, or FILE as it was given to FI_WEFT_RECORD.
    #[arg(required = true)]
    files: Vec<PathBuf>,
    /// The machine: a known profile, or the path of a file.
    #[arg(long, default_value = "ethernet-100g")]
    profile: String,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// The files of the ranks: where only FILE was named, `FILE.0`, `FILE.1` and so on, or all `FILE.fi.PID`.
fn files(named: &[PathBuf]) -> Vec<PathBuf> {
    let [one] = named else { return named.to_vec() };
    if one.exists() {
        return named.to_vec();
    }
    let of_rank = |rank: usize| {
        let mut name = one.clone().into_os_string();
        name.push(format!(".{rank}"));
        PathBuf::from(name)
    };
    let mut found: Vec<PathBuf> = (0..).map(of_rank).take_while(|path| path.exists()).collect();
    if found.is_empty() {
        found = of_processes(one);
    }
    if found.is_empty() { named.to_vec() } else { found }
}

/// The files that the provider has written.
fn of_processes(file: &Path) -> Vec<PathBuf> {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let start = format!("{name}.fi.");
    let folder = file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_one =
        |path: &PathBuf| path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.starts_with(&start));
    let mut found: Vec<PathBuf> = entries.filter(is_one).collect();
    found.sort();
    found
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("{} cannot be read: {error}", path.display()))
}

fn recordings(named: &[PathBuf]) -> Result<Vec<Recording>, String> {
    let recording = |path: &PathBuf| {
        let bytes = read(path)?;
        Recording::read(&bytes).map_err(|error| format!("{}: {error}", path.display()))
    };
    let found = files(named);
    if let [one] = found.as_slice()
        && !one.exists()
    {
        return Err(format!(
            "there is no {0}, {0}.0 or {0}.fi.PID: no process has used weft with FI_WEFT_RECORD set. The MPI library may \
             carry messages within a host itself",
            one.display()
        ));
    }
    found.iter().map(recording).collect()
}

/// The job of the files, at `faster` times the speed of computation.
fn job(named: &[PathBuf], faster: f64, costs: &Costs) -> Result<Job, String> {
    if let [one] = named
        && one.exists()
    {
        let bytes = read(one)?;
        if let Some(text) = str::from_utf8(&bytes).ok().filter(|text| goal::is_one(text)) {
            return goal::read(text).map_err(|error| format!("{}: {error}", one.display()));
        }
    }
    let mut recordings = recordings(named)?;
    if !(faster.is_finite() && faster > 0.0) {
        return Err("--faster needs a number above 0".to_owned());
    }
    for (gap_ns, _) in recordings.iter_mut().flat_map(|recording| &mut recording.events) {
        #[allow(clippy::cast_precision_loss, clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let scaled = (*gap_ns as f64 / faster).round() as u64; // Times of jobs stay far below 2⁵³ ns.
        *gap_ns = scaled;
    }
    build(&recordings, costs, &|_, _, _| None).map_err(|error| error.to_string())
}

#[allow(clippy::cast_precision_loss)] // Times of jobs stay far below 2⁵³ ps.
fn seconds(ps: u64) -> f64 {
    ps as f64 / 1e12
}

/// The prediction for a job.
#[derive(Serialize)]
struct Prediction {
    profile: String,
    ranks: u32,
    messages: u64,
    events: u64,
    /// The predicted duration, the longest computation of a rank, and the recorded duration.
    predicted_s: f64,
    computed_s: f64,
    recorded_s: Option<f64>,
    /// Receives and sends without a partner, which are left out.
    unmatched: usize,
    /// Calls that are not recorded.
    windows: usize,
    scans: usize,
    hash: String,
}

impl Text for Prediction {
    fn text(&self) -> String {
        let mut rows = vec![
            ["profile".to_owned(), self.profile.clone()],
            ["ranks".to_owned(), self.ranks.to_string()],
            ["messages".to_owned(), self.messages.to_string()],
            ["predicted time".to_owned(), time(self.predicted_s)],
            ["longest computation of a rank".to_owned(), time(self.computed_s)],
        ];
        if let Some(recorded_s) = self.recorded_s {
            rows.push(["recorded time".to_owned(), time(recorded_s)]);
        }
        let mut text = table(["job", ""], rows);
        if self.unmatched > 0 {
            text += &format!(
                "{} messages have no partner and are left out: a process was killed, or uses calls that are not \
                 recorded.\n",
                self.unmatched
            );
        }
        if self.windows > 0 {
            text +=
                &format!("Accesses to {} windows are not recorded: their time counts as computation.\n", self.windows);
        }
        if self.scans > 0 {
            text += &format!("{} scans are left out with their time.\n", self.scans);
        }
        text + &format!("trace hash {}\n", self.hash)
    }
}

/// A time with three digits.
fn time(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.3} s"),
        s if s >= 1e-3 => format!("{:.3} ms", s * 1e3),
        s => format!("{:.3} µs", s * 1e6),
    }
}

fn predict(options: &ReplayOptions) -> Result<(Prediction, Profile), String> {
    let profile = profile(&options.profile)?;
    let job = job(&options.files, options.faster, &profile.costs)?;
    let outcome = Machine::new(&job, &profile.costs, Options::default()).run(|_, _| ());
    let outcome = outcome.map_err(|error| error.to_string())?;
    let omitted = |call| job.omitted().get(&call).copied().unwrap_or(0);
    #[allow(clippy::cast_precision_loss)] // Times of jobs stay far below 2⁵³ ns.
    let prediction = Prediction {
        profile: profile.name.clone(),
        ranks: job.ranks(),
        messages: outcome.messages,
        events: outcome.events,
        predicted_s: seconds(outcome.end_ps),
        computed_s: seconds((0..job.ranks()).map(|rank| job.computed_ps(rank)).max().unwrap_or(0)),
        recorded_s: job.recorded_ns().map(|ns| ns as f64 / 1e9),
        unmatched: job.unmatched(),
        windows: omitted(Omitted::Window),
        scans: omitted(Omitted::Scan),
        hash: format!("{:016x}", outcome.hash),
    };
    Ok((prediction, profile))
}

/// Writes the job as GOAL, which has no boards: collectives are messages there.
fn export(options: &ReplayOptions, mut costs: Costs, path: &Path) -> Result<(), String> {
    costs.collective.board = None;
    let job = job(&options.files, options.faster, &costs)?;
    fs::write(path, goal::write(&job, &costs)).map_err(|error| format!("{} cannot be written: {error}", path.display()))
}

/// Runs `weft sim replay`.
pub(super) fn run(options: &ReplayOptions, out: &mut impl Write) -> io::Result<Result<(), String>> {
    let (prediction, profile) = match predict(options) {
        Ok(all) => all,
        Err(why) => return Ok(Err(why)),
    };
    if let Some(path) = &options.goal
        && let Err(why) = export(options, profile.costs, path)
    {
        return Ok(Err(why));
    }
    render::print(out, &prediction, options.json)?;
    Ok(Ok(()))
}

/// The settings of a job, ranked.
#[derive(Serialize)]
struct Ranking {
    profile: String,
    settings: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    setting: String,
    /// The variables that select it. `None`: no variable does.
    variables: Option<String>,
    predicted_s: f64,
    /// The change against the present settings, in percent.
    change_percent: f64,
}

impl Text for Ranking {
    fn text(&self) -> String {
        let heads = ["setting", "predicted time", "change", "variables"];
        let row = |row: &Row| {
            let variables = row.variables.clone().unwrap_or_else(|| "none selects it".to_owned());
            [row.setting.clone(), time(row.predicted_s), format!("{:+.1} %", row.change_percent), variables]
        };
        table(heads, self.settings.iter().map(row))
    }
}

fn ranking(options: &TuneOptions) -> Result<Ranking, String> {
    let profile = profile(&options.profile)?;
    let recordings = recordings(&options.files)?;
    let settings = settings(&recordings, &profile.costs);
    let rated = rank(&recordings, &profile.costs, &settings).map_err(|error| error.to_string())?;
    let present = rated.iter().find(|one| Some(&one.setting) == settings.first()).map_or(0, |one| one.end_ps);
    let rows = rated.iter().map(|one| Row {
        setting: one.setting.to_string(),
        variables: one.setting.variables(),
        predicted_s: seconds(one.end_ps),
        change_percent: (seconds(one.end_ps) / seconds(present.max(1)) - 1.0) * 100.0,
    });
    Ok(Ranking { profile: profile.name, settings: rows.collect() })
}

/// Runs `weft sim tune`.
pub(super) fn tune(options: &TuneOptions, out: &mut impl Write) -> io::Result<Result<(), String>> {
    match ranking(options) {
        Ok(ranking) => render::print(out, &ranking, options.json).map(Ok),
        Err(why) => Ok(Err(why)),
    }
}
