//! The rule for names of tests: a subject that has a name, then a verb.
//!
//! Pronouns in place of a subject can be counted. Tests are functions behind `#[test]` in Rust, and functions
//! whose name begins with `test_` in Python.

use std::sync::LazyLock;

use regex::Regex;

use super::files::File;
use super::{Counts, Rule};

static TEST: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?m)^ *#\[test\](?:\s*#\[[^\n]*\])*\s*fn (\w+)|^(?:async )?def (test_\w+)"));
static PRONOUN: LazyLock<Regex> =
    LazyLock::new(|| pattern("(?:^|_)(?:who|whom|whoever|what|whatever|nobody|somebody|everybody|anybody)(?:_|$)"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

pub(super) fn check(files: &[File], counts: &mut Counts) {
    for file in files.iter().filter(|file| file.is("rs") || file.is("py")) {
        for found in TEST.captures_iter(&file.text) {
            counts.look(Rule::TestNames, 1);
            let Some(name) = found.get(1).or(found.get(2)) else { continue };
            if PRONOUN.is_match(name.as_str()) {
                let line = file.text[..name.start()].matches('\n').count() + 1;
                counts.find(Rule::TestNames, &file.path, line, name.as_str());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        let mut counts = Counts::default();
        check(&[File { path: path.into(), text: text.to_owned() }], &mut counts);
        let findings = counts.0.get(&Rule::TestNames).map(|count| &count.findings[..]).unwrap_or_default();
        findings.iter().map(|finding| format!("{}:{}", finding.line, finding.text)).collect()
    }

    #[test]
    fn pronouns_are_found_in_names_of_tests_only() {
        let rust = "fn as_nobody() {}\n    #[test]\n    #[should_panic(expected = \"x\")]\n    fn who_calls_waits() {}\n#[test]\nfn a_whole() {}\n";
        assert_eq!(findings("a.rs", rust), ["4:who_calls_waits"]);
        assert_eq!(
            findings("a.py", "def what():\n    pass\ndef test_what_waits():\n    pass\n"),
            ["3:test_what_waits"]
        );
    }
}
