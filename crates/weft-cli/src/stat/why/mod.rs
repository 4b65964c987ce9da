//! `weft why`: for which ranks the ranks of a running job wait, and the cause.
//!
//! Place in the data flow: two looks at the pages of all processes (`find.rs`) → the ranks of each job
//! (`rank.rs`) → the findings (`verdict.rs`) → text or JSON. The processes are neither stopped nor asked:
//! they publish what is pending ten times a second.

mod rank;
mod tag;
mod verdict;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};

use super::find::{self, Process};
use super::sample::Look;
use crate::render;
use rank::{Call, Rank, State, Target, call_words};
use verdict::Finding;

/// Time between the two looks. A process that calls weft publishes at least three times meanwhile.
const INTERVAL: Duration = Duration::from_millis(350);
/// Most calls of a rank that the text shows.
const CALLS_SHOWN: usize = 4;

/// Tells for which ranks the ranks of a running job wait, and names deadlocks, near misses, and ranks that compute, are
/// stopped, or have ended. Nothing is stopped, and nothing must be prepared. Seen are the ranks on this host.
#[derive(Args)]
pub(crate) struct Options {
    /// The job: the process id of its launcher or of a rank, or a part of its name in `weft top`. Default: all jobs of
    /// this user.
    job: Option<String>,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// A job, seen from here.
pub(super) struct Job {
    name: String,
    size: Option<u64>,
    ranks: Vec<Rank>,
    findings: Vec<Finding>,
}

/// A rank in `weft top`.
pub(super) struct JobLine {
    pub(super) pid: Option<u32>,
    pub(super) rank: Option<u64>,
    pub(super) state: &'static str,
    pub(super) since_s: f64,
    /// The kind of the first finding that names the rank.
    pub(super) found: &'static str,
    /// Its oldest call.
    pub(super) call: String,
}

/// Runs `weft why`.
pub(crate) fn run(options: &Options, out: &mut impl Write) -> io::Result<ExitCode> {
    let before = Look::now()?;
    std::thread::sleep(INTERVAL);
    let after = Look::now()?;
    let jobs = jobs(&before, &after, options.job.as_deref());
    if jobs.is_empty() {
        return Err(io::Error::other(match &options.job {
            Some(job) => format!(
                "no process of this user with an open weft endpoint belongs to {job:?}; `weft top --once` lists the jobs"
            ),
            None => "no process of this user has an open weft endpoint".to_owned(),
        }));
    }
    if options.json {
        let jobs: Vec<Value> = jobs.iter().map(Job::json).collect();
        serde_json::to_writer_pretty(&mut *out, &json!({ "jobs": jobs }))?;
        writeln!(out)?;
    } else {
        let texts: Vec<String> = jobs.iter().map(Job::text).collect();
        out.write_all(texts.join("\n").as_bytes())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The jobs of the processes in a look, or those that `wanted` names.
pub(super) fn jobs(before: &Look, after: &Look, wanted: Option<&str>) -> Vec<Job> {
    let names = after.names();
    let mut jobs: BTreeMap<&str, Vec<&Process>> = BTreeMap::new();
    // Processes that have ended since the first look are still of interest.
    let gone = before.0.iter().filter(|(pid, _)| !after.0.contains_key(pid)).map(|(_, process)| process);
    for process in after.0.values().chain(gone) {
        jobs.entry(&process.job).or_default().push(process);
    }
    let is_wanted = |name: &str, processes: &[&Process]| {
        wanted.is_none_or(|wanted| {
            let is_pid = |process: &&Process| wanted == process.pid.to_string();
            name.split_whitespace().any(|word| word == wanted) || name == wanted || processes.iter().any(is_pid)
        })
    };
    jobs.into_iter()
        .filter(|(name, processes)| is_wanted(name, processes))
        .map(|(name, processes)| {
            let ranks = rank::ranks(&before.0, &processes, &names, find::process_state);
            let findings = verdict::findings(&ranks);
            let size = processes.iter().filter_map(|process| process.size).max();
            Job { name: name.to_owned(), size, ranks, findings }
        })
        .collect()
}

impl Job {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// The lines for `weft top`.
    pub(super) fn lines(&self) -> impl Iterator<Item = JobLine> {
        self.ranks.iter().enumerate().map(|(place, rank)| {
            let call = rank.calls.first();
            JobLine {
                pid: rank.pid,
                rank: rank.number,
                state: rank.state.name(),
                since_s: call.map_or(rank.age, |call| call.since).as_secs_f64(),
                found: self
                    .findings
                    .iter()
                    .find(|finding| finding.ranks.contains(&place))
                    .map_or("", |found| found.kind),
                call: call.map_or_else(String::new, |call| call_words(call, &self.ranks, rank.library)),
            }
        })
    }

    fn text(&self) -> String {
        let mut text = format!("job {}: {} of this host", self.name, count(self.ranks.len()));
        if let Some(size) = self.size.filter(|size| *size > self.ranks.len() as u64) {
            // Writing to a string cannot fail.
            let _ = write!(text, ", of {size}; run the command on the other hosts as well");
        }
        text.push('\n');
        for finding in &self.findings {
            let _ = writeln!(text, "\n{}", finding.text);
            finding.details.iter().for_each(|line| _ = writeln!(text, "  {line}"));
        }
        if self.findings.is_empty() {
            text += "\nno rank waits for one that cannot act\n";
        }
        text.push('\n');
        text += &render::table(["rank", "pid", "host", "state", "since", "call"], self.rows());
        text
    }

    fn rows(&self) -> Vec<[String; 6]> {
        let mut rows = Vec::new();
        for rank in &self.ranks {
            let waits = rank.calls.iter().map(|call| (call, call_words(call, &self.ranks, rank.library)));
            let queued = rank.messages.iter().map(|call| (call, call_words(call, &self.ranks, rank.library)));
            let mut lines: Vec<(String, String)> = waits
                .chain(queued)
                .map(|(call, words)| (format!("{:.1} s", call.since.as_secs_f64()), words))
                .collect();
            let more = lines.len().saturating_sub(CALLS_SHOWN);
            lines.truncate(CALLS_SHOWN);
            if more > 0 {
                lines.push((String::new(), format!("and {more} more")));
            }
            if lines.is_empty() {
                let since = if rank.state == State::Computes {
                    format!("{:.1} s", rank.age.as_secs_f64())
                } else {
                    String::new()
                };
                lines.push((since, String::new()));
            }
            let first = [
                rank.number.map_or_else(String::new, |number| number.to_string()),
                rank.pid.map_or_else(String::new, |pid| pid.to_string()),
                rank.host.clone(),
                rank.state.name().to_owned(),
            ];
            for (place, (since, words)) in lines.into_iter().enumerate() {
                let [number, pid, host, state] = if place == 0 { first.clone() } else { Default::default() };
                rows.push([number, pid, host, state, since, words]);
            }
        }
        rows
    }

    fn json(&self) -> Value {
        let ranks: Vec<Value> = self.ranks.iter().map(|rank| self.rank_json(rank)).collect();
        let findings: Vec<Value> = self
            .findings
            .iter()
            .map(|finding| {
                let numbers: Vec<_> = finding.ranks.iter().map(|place| self.ranks[*place].number).collect();
                json!({ "kind": finding.kind, "ranks": numbers, "text": finding.text, "details": finding.details })
            })
            .collect();
        json!({ "job": self.name, "size": self.size, "ranks": ranks, "findings": findings })
    }

    fn rank_json(&self, rank: &Rank) -> Value {
        let calls = |calls: &[Call]| calls.iter().map(|call| self.call_json(rank, call)).collect::<Vec<_>>();
        json!({
            "rank": rank.number,
            "pid": rank.pid,
            "host": rank.host,
            "state": rank.state.name(),
            "age_s": rank.age.as_secs_f64(),
            "calls": calls(&rank.calls),
            "messages": calls(&rank.messages),
        })
    }

    fn call_json(&self, rank: &Rank, call: &Call) -> Value {
        let number = |place: &usize| self.ranks.get(*place).and_then(|rank| rank.number);
        let peers: Option<Vec<Option<u64>>> = match &call.target {
            Target::Rank(place) => Some(vec![number(place)]),
            Target::Ranks(places) => Some(places.iter().map(number).collect()),
            Target::Any | Target::Unseen(_) => None,
        };
        let parts = call.tag.and_then(|(tag, _)| rank.library.parts(tag));
        json!({
            "kind": call.kind,
            "peers": peers,
            "any": call.target == Target::Any,
            "tag_bits": call.tag.map(|(tag, _)| format!("{tag:#018x}")),
            "ignored_bits": call.tag.map(|(_, ignored)| format!("{ignored:#018x}")),
            "tag": parts.map(|parts| parts.tag),
            "communicator": parts.map(|parts| parts.communicator),
            "bytes": call.bytes,
            "since_s": call.since.as_secs_f64(),
            "text": call_words(call, &self.ranks, rank.library),
        })
    }
}

fn count(ranks: usize) -> String {
    if ranks == 1 { "1 rank".to_owned() } else { format!("{ranks} ranks") }
}
