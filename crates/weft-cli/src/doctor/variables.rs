//! Checks that the variables FI_WEFT_* that are set exist and leave a path enabled.

use weft_fi::params::{JobKey, Params, TABLE};

use super::Finding;

const PREFIX: &str = "FI_WEFT_";

/// Runs all checks of this area. `names`: the names of all environment variables.
pub(super) fn examine(names: impl Iterator<Item = String>, params: &Params) -> Vec<Finding> {
    let mut set: Vec<String> = names.filter(|name| name.starts_with(PREFIX)).collect();
    set.sort();
    let mut findings: Vec<Finding> = set.iter().filter_map(|name| unknown(name)).collect();
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

/// Reports a variable that does not exist. weft itself would silently ignore the misspelling.
fn unknown(name: &str) -> Option<Finding> {
    let tail = name.strip_prefix(PREFIX)?;
    if TABLE.iter().any(|param| param.name == tail) {
        return None;
    }
    let nearest = TABLE.iter().map(|param| param.name).min_by_key(|known| distance(tail, known))?;
    let remedy = if distance(tail, nearest) <= 3 {
        format!("perhaps {PREFIX}{nearest} is meant")
    } else {
        "`weft info --params` lists the existing variables".to_owned()
    };
    Some(Finding::degraded(name, "weft has no such variable and ignores it", remedy))
}

/// The Levenshtein distance: the number of letters to insert, delete or change.
fn distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut row: Vec<usize> = (0..=right.len()).collect();
    for (i, a) in left.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in right.iter().enumerate() {
            let change = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[right.len()]
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    fn run(names: &[&str], params: &Params) -> Vec<Finding> {
        examine(names.iter().map(|name| (*name).to_owned()), params)
    }

    #[test]
    fn a_misspelled_variable_gets_a_suggestion() {
        let findings = run(&["HOME", "FI_WEFT_IFCE", "FI_WEFT_SHM"], &Params::default());
        assert_eq!(findings.len(), 1);
        assert_eq!(findings[0].state, State::Degraded);
        assert!(findings[0].remedy.contains("FI_WEFT_IFACE"), "{findings:?}");
        let far = run(&["FI_WEFT_COMPLETELY_DIFFERENT"], &Params::default());
        assert!(far[0].remedy.contains("--params"));
    }

    #[test]
    fn disabling_every_path_is_bad() {
        let findings = run(&["FI_WEFT_SHM", "FI_WEFT_TCP"], &Params { shm: false, tcp: false, ..Params::default() });
        assert!(findings.iter().any(|finding| finding.state == State::Bad));
        assert!(run(&[], &Params::default()).iter().all(|finding| finding.state == State::Good));
    }

    #[test]
    fn an_empty_job_key_is_bad() {
        let findings = run(&["FI_WEFT_JOB_KEY"], &Params { job_key: JobKey::Empty, ..Params::default() });
        assert!(findings[0].state == State::Bad && findings[0].remedy.contains("unset"), "{findings:?}");
    }

    #[test]
    fn edit_distances_are_counted() {
        assert_eq!(distance("IFCE", "IFACE"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
