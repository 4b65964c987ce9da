//! The results of simulated runs, for people and for programs.

use std::fmt::Write as _;

use serde::Serialize;
use weft_sim::run::Report;

use crate::render::Text;

/// A run that failed.
#[derive(Debug, Serialize)]
pub(crate) struct Failure {
    /// The failures found.
    pub(crate) wrong: Vec<String>,
    /// The command that plays the run again.
    pub(crate) command: String,
    /// The hash of the trace; empty after a panic.
    pub(crate) trace_hash: String,
    /// The command that plays a smaller failing run.
    pub(crate) smaller: Option<String>,
    /// The failures of the smaller run.
    pub(crate) smaller_wrong: Vec<String>,
    /// The smaller run's fabric, engine and disasters, and the end of its trace.
    pub(crate) detail: String,
}

/// The sums over all runs.
#[derive(Debug, Default, Serialize)]
pub(crate) struct Summary {
    pub(crate) runs: u64,
    pub(crate) failed: usize,
    /// Accepted operations, each of which was checked.
    pub(crate) operations: u64,
    /// Operations that were refused with -FI_EAGAIN.
    pub(crate) refused: u64,
    /// Messages that the devices delivered.
    pub(crate) messages: u64,
    /// Pieces of pushes, and gets and puts.
    pub(crate) transfers: u64,
    /// Links that ended under their users.
    pub(crate) links_lost: u64,
    pub(crate) virtual_s: f64,
    /// Virtual time that passed in steps of more than a millisecond without events.
    pub(crate) still_s: f64,
    pub(crate) real_s: f64,
    /// The hash of the trace; of several runs, the exclusive or of their hashes.
    pub(crate) trace_hash: String,
    #[serde(skip)]
    hash: u128,
    pub(crate) failures: Vec<Failure>,
    /// The commands that play the remaining failed runs again; these were not examined.
    pub(crate) others: Vec<String>,
}

impl Summary {
    /// Adds the result of a run.
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
            "{:.1} virtual hours in {:.1} s: {ratio:.0} to 1; {still:.1} % of that time passed without events for a millisecond or more \
             (ranks computed, timeouts ran)",
            self.virtual_s / 3600.0,
            self.real_s
        );
        text
    }
}
