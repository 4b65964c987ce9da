//! Checks that the variables FI_WEFT_* that are set exist, have usable values, and leave a path enabled.
//!
//! The provider's own table judges names and values (`weft_fi::params::problem`).

use weft_fi::params::problem::Problem;
use weft_fi::params::{JobKey, Params};

use super::Finding;

const PREFIX: &str = "FI_WEFT_";

/// Runs all checks of this area. `names`: the names of all environment variables. `processors`: how many there are.
pub(super) fn examine(
    names: impl Iterator<Item = String>,
    params: &Params,
    problems: &[Problem],
    processors: usize,
) -> Vec<Finding> {
    let mut set: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    set.sort();
    let wrong =
        |problem: &Problem| Finding::degraded(problem.variable(), problem.detail().trim_start(), problem.remedy());
    let mut findings: Vec<Finding> = problems.iter().map(wrong).collect();
    if let Some(named) = &params.progress_affinity {
        let missing = (processors..rustix::thread::CpuSet::MAX_CPU).find(|number| named.is_set(*number));
        findings.extend(missing.map(|number| {
            Finding::degraded(
                "FI_WEFT_PROGRESS_AFFINITY",
                format!("names processor {number}, and this machine has {processors}, counted from 0"),
                "name existing processors, or unset it",
            )
        }));
    }
    if !params.shm && !params.tcp {
        findings.push(Finding::bad(
            "FI_WEFT_SHM, FI_WEFT_TCP",
            "both are no: no path to any peer is left",
            "unset one of them",
        ));
    }
    if params.job_key == JobKey::Empty {
        findings.push(Finding::bad(
            "FI_WEFT_JOB_KEY",
            "is set but empty: opening a domain fails",
            "set it to the secret that all processes of the job share, or unset it",
        ));
    }
    if findings.is_empty() {
        let detail = if set.is_empty() { "none is set: the defaults hold".to_owned() } else { set.join(", ") };
        findings.push(Finding::good("variables FI_WEFT_*", detail));
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    fn run(names: &[&str], params: &Params) -> Vec<Finding> {
        examine(names.iter().map(|name| (*name).to_owned()), params, &[], 4)
    }

    #[test]
    fn processors_that_do_not_exist_are_named() {
        let mut named = rustix::thread::CpuSet::new();
        named.set(99);
        let params = Params { progress_affinity: Some(named), ..Params::default() };
        let findings = run(&["FI_WEFT_PROGRESS_AFFINITY"], &params);
        assert!(findings[0].state == Outcome::Degraded && findings[0].detail.contains("processor 99"), "{findings:?}");
    }

    #[test]
    fn disabling_every_path_is_bad() {
        let findings = run(&["FI_WEFT_SHM", "FI_WEFT_TCP"], &Params { shm: false, tcp: false, ..Params::default() });
        assert!(findings.iter().any(|finding| finding.state == Outcome::Bad));
        assert!(run(&[], &Params::default()).iter().all(|finding| finding.state == Outcome::Good));
    }

    #[test]
    fn an_empty_job_key_is_bad() {
        let findings = run(&["FI_WEFT_JOB_KEY"], &Params { job_key: JobKey::Empty, ..Params::default() });
        assert!(findings[0].state == Outcome::Bad && findings[0].remedy.contains("unset"), "{findings:?}");
    }
}
