//! `weft info --params`: the table of variables with the present values, as a file for the shell.
//!
//! Place in the data flow: the provider's table and the environment → here → a file that `.` of a shell reads, or
//! that a user edits first. Each variable has its description as a comment. Variables that are not set are commented
//! out, and left out if no device of weft uses them.

use std::fmt::Write as _;

use serde::Serialize;
use weft_fi::params::problem::Problem;
use weft_fi::params::{Params, TABLE};

use crate::render::Text;

/// Width of comments.
const WIDTH: usize = 100;
/// The variable whose value is a secret. The output is pasted into reports.
const SECRET: &str = "JOB_KEY";

/// The table of variables, with the values that are set.
#[derive(Serialize)]
#[serde(transparent)]
pub(crate) struct ParamList(Vec<ParamFact>);

#[derive(Serialize)]
struct ParamFact {
    /// Without the prefix FI_WEFT_.
    name: &'static str,
    default: &'static str,
    unit: &'static str,
    /// The smallest and the largest number.
    limits: Option<(u64, u64)>,
    /// The value in the environment, if set.
    set: Option<String>,
    /// The reason why the value is not used as it is.
    problem: Option<String>,
    help: &'static str,
}

/// Reads the table.
pub(crate) fn params() -> ParamList {
    let (_, problems) = Params::of_environment();
    list(|name| std::env::var(name).ok(), &problems)
}

fn list(env: impl Fn(&str) -> Option<String>, problems: &[Problem]) -> ParamList {
    let facts = TABLE.iter().filter_map(|param| {
        let variable = format!("FI_WEFT_{}", param.name);
        let set = env(&variable).map(|text| if param.name == SECRET { "(set)".to_owned() } else { text });
        if param.is_of_registration() && set.is_none() {
            return None;
        }
        let problem = problems.iter().find(|problem| problem.variable() == variable).map(ToString::to_string);
        Some(ParamFact {
            name: param.name,
            default: param.default,
            unit: param.unit,
            limits: param.limits,
            set,
            problem,
            help: param.help,
        })
    });
    ParamList(facts.collect())
}

/// Quotes a value for the shell.
fn quoted(value: &str) -> String {
    format!("'{}'", value.replace('\'', "'\\''"))
}

/// Appends a comment, broken into lines.
fn comment(text: &mut String, comment: &str) {
    let mut line = "#".to_owned();
    for word in comment.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{line}");
            line = "#".to_owned();
        }
        line += " ";
        line += word;
    }
    let _ = writeln!(text, "{line}");
}

impl Text for ParamList {
    fn text(&self) -> String {
        let mut text = format!(
            "# Variables of weft {}. Lines with `export` are set; `. FILE` in a shell sets them again.\n",
            env!("CARGO_PKG_VERSION")
        );
        for param in &self.0 {
            let limits = param.limits.map(|(least, most)| format!(", {least} to {most}")).unwrap_or_default();
            text.push('\n');
            comment(&mut text, &format!("{} [{}{limits}]", param.help, param.unit));
            param.problem.iter().for_each(|problem| comment(&mut text, problem));
            let name = format!("FI_WEFT_{}", param.name);
            let _ = match &param.set {
                Some(_) if param.name == SECRET => writeln!(text, "# {name} is set; its value is a secret"),
                Some(value) => writeln!(text, "export {name}={}", quoted(value)),
                None if param.default.is_empty() => writeln!(text, "#export {name}="),
                None => writeln!(text, "#export {name}={}", quoted(param.default)),
            };
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_with_an_effect_is_listed() {
        let text = list(|_| None, &[]).text();
        assert!(TABLE.iter().all(|param| text.contains(param.name) != param.is_of_registration()), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 2 * WIDTH), "{text}");
        let text = list(|name| (name == "FI_WEFT_MR_CACHE").then(|| "no".to_owned()), &[]).text();
        assert!(text.contains("export FI_WEFT_MR_CACHE='no'") && !text.contains("MR_CACHE_BYTES"), "{text}");
    }

    #[test]
    fn a_shell_reads_the_values_back() {
        let set = |name: &str| match name {
            "FI_WEFT_IFACE" => Some("it's $HOME `x`".to_owned()),
            "FI_WEFT_TX_SIZE" => Some("2K".to_owned()),
            "FI_WEFT_JOB_KEY" => Some("secret".to_owned()),
            _ => None,
        };
        let script = list(set, &[]).text() + "env | grep ^FI_WEFT_ | sort";
        assert!(!script.contains("=secret") && !script.contains("'secret'"), "{script}");
        let mut shell = std::process::Command::new("sh");
        shell.args(["-e", "-c", &script]).env_clear().env("PATH", "/usr/bin:/bin");
        let output = shell.output().expect("a shell");
        let output = String::from_utf8_lossy(&output.stdout);
        assert_eq!(output.lines().collect::<Vec<_>>(), ["FI_WEFT_IFACE=it's $HOME `x`", "FI_WEFT_TX_SIZE=2K"]);
    }
}
