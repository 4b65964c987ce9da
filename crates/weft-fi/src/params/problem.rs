//! Variables that cannot be used as they are set: bad values, numbers beyond their limits, and unknown names.
//!
//! Place in the data flow: found while the variables are read, and reported once by the provider, by `weft doctor`, and
//! by `weft info --params`. The provider logs a warning for each. A warning is invisible at the default log level, so
//! the provider also prints them on standard error, once in a job: in the process of rank 0, or without ranks.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_fi_sys::{FI_LOG_CORE, FI_LOG_WARN};

use super::{Param, TABLE};
use crate::host::Host;
use weft_observe::identity::Identity;

const PREFIX: &str = "FI_WEFT_";
/// Variables of libweft-coll.so and of the simulated provider, without the prefix.
const OTHERS: &[&str] = &["COLL", "COLL_REPORT", "LIBFABRIC", "RECORD", "SIM"];

/// A variable that cannot be used as it is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    variable: String,
    detail: String,
    remedy: String,
    instead: String,
}

impl Problem {
    /// The value does not parse.
    pub(super) fn unparsed(param: &Param, text: &str) -> Self {
        let default = if param.default.is_empty() { "none" } else { param.default };
        Self {
            variable: format!("{PREFIX}{}", param.name),
            detail: format!("={text} is not understood, so the default ({default}) is used"),
            remedy: format!("set it to {}", understood(param)),
            instead: String::new(),
        }
    }

    /// The number is beyond a limit.
    pub(super) fn beyond(param: &Param, text: &str, limit: u64) -> Self {
        Self {
            variable: format!("{PREFIX}{}", param.name),
            detail: format!("={text} is out of its limits, so {limit} is used"),
            remedy: format!("set it to {}", understood(param)),
            instead: limit.to_string(),
        }
    }

    /// The name of the variable.
    #[must_use]
    pub fn variable(&self) -> &str {
        &self.variable
    }

    /// The observation and its effect, to be read after the name.
    #[must_use]
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// The remedy.
    #[must_use]
    pub fn remedy(&self) -> &str {
        &self.remedy
    }

    /// The text of the value that is used; empty for the default.
    pub(super) fn instead(&self) -> &str {
        &self.instead
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}; {}", self.variable, self.detail, self.remedy)
    }
}

/// The valid values of a variable, in words.
fn understood(param: &Param) -> String {
    match (param.unit, param.limits) {
        ("yes/no", _) => "yes or no".to_owned(),
        ("list", _) => "numbers and ranges, such as 1,4-7".to_owned(),
        (_, Some((least, most))) => format!("a number from {least} to {most}, which may end in K, M or G"),
        ("bytes" | "count" | "ms" | "µs", None) => "a number from 0 on, which may end in K, M or G".to_owned(),
        _ => "one of the values that fi_weft(7) names".to_owned(),
    }
}

/// The names of all environment variables that are valid text.
pub(super) fn environment_names() -> impl Iterator<Item = String> {
    std::env::vars_os().filter_map(|(name, _)| name.into_string().ok())
}

/// The names with weft's prefix that no part of weft knows.
pub(super) fn unknown(names: impl Iterator<Item = String>) -> Vec<Problem> {
    let mut problems: Vec<Problem> = names.filter_map(|name| unknown_name(&name)).collect();
    problems.sort_by(|one, other| one.variable.cmp(&other.variable));
    problems
}

fn unknown_name(name: &str) -> Option<Problem> {
    let tail = name.strip_prefix(PREFIX)?;
    let mut known = TABLE.iter().map(|param| param.name).chain(OTHERS.iter().copied());
    if known.clone().any(|known| known == tail) {
        return None;
    }
    let nearest = known.by_ref().min_by_key(|known| distance(tail, known))?;
    let remedy = if distance(tail, nearest) <= 3 {
        format!("perhaps {PREFIX}{nearest} is meant")
    } else {
        "`weft info --params` lists the existing variables".to_owned()
    };
    Some(Problem {
        variable: name.to_owned(),
        detail: " is no variable of weft and is ignored".to_owned(),
        remedy,
        instead: String::new(),
    })
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

/// Logs the problems, and prints them on standard error if the log does not go there.
pub(super) fn warn(problems: &[Problem], host: &Host) {
    static PRINTED: AtomicBool = AtomicBool::new(false);
    for Problem { variable, detail, remedy, .. } in problems {
        log::warn!("{variable}{detail}; {remedy}");
    }
    if problems.is_empty() || host.log_enabled(FI_LOG_WARN, FI_LOG_CORE) || PRINTED.swap(true, Ordering::Relaxed) {
        return;
    }
    // All ranks have the same variables, as a rule.
    if matches!(Identity::of_this_process().rank, None | Some(0)) {
        problems.iter().for_each(|problem| eprintln!("weft: {problem}"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(names: &[&str]) -> Vec<Problem> {
        unknown(names.iter().map(|name| (*name).to_owned()))
    }

    #[test]
    fn a_misspelled_variable_gets_a_suggestion() {
        let problems = run(&["HOME", "FI_WEFT_IFCE", "FI_WEFT_SHM", "FI_WEFT_COLL"]);
        assert_eq!(problems.len(), 1);
        assert!(problems[0].remedy.contains("FI_WEFT_IFACE"), "{problems:?}");
        assert!(run(&["FI_WEFT_COMPLETELY_DIFFERENT"])[0].remedy.contains("--params"));
    }

    #[test]
    fn edit_distances_are_counted() {
        assert_eq!(distance("IFCE", "IFACE"), 1);
        assert_eq!(distance("", "abc"), 3);
        assert_eq!(distance("kitten", "sitting"), 3);
    }
}
