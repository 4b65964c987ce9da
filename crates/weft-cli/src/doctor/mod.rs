//! `weft doctor`: finds conditions that keep weft from working, or from working well, and names cause and remedy.
//!
//! Each area is one file of checks that return [`Finding`]s. This file runs all of them and shows the result. An
//! inconclusive check yields a note, never "good".

mod libfabrics;
mod loading;
mod path;
mod system;
mod trace;
mod variables;

use std::ffi::OsString;

use serde::Serialize;
use weft_fi::params::Params;

use crate::render::{self, Text};

/// The state of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// No problem.
    Good,
    /// Information without a required action.
    Note,
    /// weft works, but slower or not everywhere.
    Degraded,
    /// weft does not work, or is not used.
    Bad,
}

/// The result of one check.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Finding {
    what: String,
    state: Outcome,
    /// The observation, with the cause of a problem.
    detail: String,
    /// The remedy; empty if there is no problem.
    remedy: String,
}

impl Finding {
    fn new(what: impl Into<String>, state: Outcome, detail: impl Into<String>) -> Self {
        Self { what: what.into(), state, detail: detail.into(), remedy: String::new() }
    }

    fn good(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(what, Outcome::Good, detail)
    }

    fn note(what: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::new(what, Outcome::Note, detail)
    }

    fn degraded(what: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..Self::new(what, Outcome::Degraded, detail) }
    }

    fn bad(what: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { remedy: remedy.into(), ..Self::new(what, Outcome::Bad, detail) }
    }
}

/// The results of all checks.
#[derive(Serialize)]
pub(crate) struct Report {
    works: bool,
    findings: Vec<Finding>,
}

impl Report {
    /// Whether no finding keeps weft from working.
    pub(crate) const fn works(&self) -> bool {
        self.works
    }
}

/// Runs all checks. `command`: a launcher with a program, which is started once; empty for none. `to`: a host that runs
/// `weft bench serve`, to which the path is examined.
pub(crate) fn examine(command: &[OsString], to: Option<&str>) -> Report {
    let env = |name: &str| std::env::var(name).ok();
    let (params, problems) = Params::of_environment();
    let (mut findings, provider) = loading::examine(&env);
    findings.extend(libfabrics::examine(command, provider.as_deref()));
    let names = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let processors = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let processors = processors.lines().filter(|line| line.starts_with("cpu")).count().saturating_sub(1).max(1);
    findings.extend(variables::examine(names, &params, &problems, processors));
    findings.extend(system::examine(&params));
    findings.extend(to.into_iter().flat_map(|to| path::examine(to, &params)));
    findings.extend(trace::examine(command));
    Report { works: findings.iter().all(|finding| finding.state != Outcome::Bad), findings }
}

impl Text for Report {
    fn text(&self) -> String {
        let rows = self.findings.iter().map(|finding| {
            let state = match finding.state {
                Outcome::Good => "good",
                Outcome::Note => "note",
                Outcome::Degraded => "DEGRADED",
                Outcome::Bad => "BAD",
            };
            let remedy = if finding.remedy.is_empty() { String::new() } else { format!("\n→ {}", finding.remedy) };
            [state.to_owned(), finding.what.clone(), format!("{}{remedy}", finding.detail)]
        });
        let table = render::table(["state", "what", "finding and remedy (→)"], rows);
        let count = |state| self.findings.iter().filter(|finding| finding.state == state).count();
        let verdict = match (count(Outcome::Bad), count(Outcome::Degraded)) {
            (0, 0) => "weft works here.".to_owned(),
            (0, degraded) => format!("weft works here; {degraded} finding(s) could be better."),
            (bad, _) => format!("weft does not work here: {bad} cause(s) above."),
        };
        format!("{table}\n{verdict}\n")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_problem_has_a_remedy() {
        let report = examine(&[], None);
        for finding in &report.findings {
            let wrong = matches!(finding.state, Outcome::Bad | Outcome::Degraded);
            assert_eq!(wrong, !finding.remedy.is_empty(), "{finding:?}");
            assert!(!finding.detail.is_empty(), "{finding:?}");
        }
        assert_eq!(report.works(), !report.findings.iter().any(|finding| finding.state == Outcome::Bad));
    }

    #[test]
    fn the_verdict_follows_the_worst_finding() {
        let report = |findings: Vec<Finding>| Report { works: false, findings }.text();
        assert!(report(vec![Finding::good("a", "b")]).contains("weft works here."));
        assert!(report(vec![Finding::degraded("a", "b", "c")]).contains("could be better"));
        let text = report(vec![Finding::degraded("a", "b", "c"), Finding::bad("d", "e", "mend it")]);
        assert!(text.contains("does not work") && text.contains("→ mend it"), "{text}");
    }
}
