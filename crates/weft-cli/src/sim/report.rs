//! What came of the runs, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;
use weft_sim::run::Report;

use crate::render::Text;

/// A run that failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    /// What was wrong.
    pub(crate) wrong: Vec<String>,
    /// What plays it again, and the hash of its trace (none of a panic).
    pub(crate) command: String,
    /// See `command`.
    pub(crate) trace_hash: String,
    /// What plays a smaller run that fails.
    pub(crate) smaller: Option<String>,
    /// What was wrong with that one.
    pub(crate) smaller_wrong: Vec<String>,
    /// The smaller run's fabric, engine and disasters, and the end of its trace.
    pub(crate) detail: String,
}

/// What all runs together did.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: u64,
    pub(crate) failed: usize,
    /// Operations accepted, each of which was checked.
    pub(crate) operations: u64,
    /// Operations refused with -FI_EAGAIN.
    pub(crate) refused: u64,
    /// Messages that the devices handed over.
    pub(crate) messages: u64,
    /// Pieces of pushes, and gets and puts.
    pub(crate) transfers: u64,
    /// Links that ended under their users.
    pub(crate) links_lost: u64,
    pub(crate) virtual_s: f64,
    /// Of that, in steps of more than a millisecond in which nothing happened.
    pub(crate) still_s: f64,
    pub(crate) real_s: f64,
    /// Of all traces: of one run its own, of several their sum by exclusive or.
    pub(crate) trace_hash: String,
    #[serde(skip)]
    hash: u128,
    pub(crate) failures: Vec<Failure>,
    /// What plays the other runs again that failed, which were neither cut down nor looked into.
    pub(crate) others: Vec<String>,
}

impl Summary {
    /// One more run.
    #[allow(clippy::cast_precision_loss)]
    pub(crate) fn add(&mut self, report: &Report) {
        let stats = &report.stats;
        self.operations += report.accepted as u64;
        self.refused += report.refused as u64;
        self.messages += stats.messages;
        self.transfers += stats.segments + stats.gets + stats.puts;
        self.links_lost += stats.downs;
        self.virtual_s += report.virtual_ns as f64 / 1e9;
        self.still_s += stats.idle_ns as f64 / 1e9;
        self.hash ^= report.hash;
        self.trace_hash = format!("{:032x}", self.hash);
    }
}

impl Text for Summary {
    #[allow(clippy::cast_precision_loss)]
    fn text(&self) -> String {
        let mut text = String::new();
        for failure in &self.failures {
            let _ = writeln!(text, "{}", failure.wrong.join("\n"));
            let _ = writeln!(text, "again:   {}", failure.command);
            let _ = writeln!(text, "trace:   {}", failure.trace_hash);
            if let Some(smaller) = &failure.smaller {
                let _ = writeln!(text, "smaller: {smaller}\n{}", failure.smaller_wrong.join("\n"));
            }
            if self.runs == 1 {
                let _ = writeln!(text, "{}", failure.detail);
            }
            text.push('\n');
        }
        for other in &self.others {
            let _ = writeln!(text, "again:   {other}");
        }
        let (ratio, still) = (self.virtual_s / self.real_s.max(1e-9), 100.0 * self.still_s / self.virtual_s.max(1e-9));
        let per_s = self.operations as f64 / self.real_s.max(1e-9);
        let _ = writeln!(text, "{} runs, {} failed; trace {}", self.runs, self.failed, self.trace_hash);
        let _ = writeln!(
            text,
            "{} operations checked ({per_s:.0} a second), {} refused for want of room; {} messages, {} bulk transfers, {} links lost",
            self.operations, self.refused, self.messages, self.transfers, self.links_lost
        );
        let _ = writeln!(
            text,
            "{:.1} virtual hours in {:.1} s: {ratio:.0} to 1; in {still:.1} % of that time nothing happened for a millisecond or more \
             (ranks computed, time-outs ran)",
            self.virtual_s / 3600.0,
            self.real_s
        );
        text
    }
}
