//! Rules for comments: words, widths, and the heading of each Rust file.
//!
//! Only lines that contain nothing but a comment are checked; comments behind code are short. Words are counted in Rust
//! files only, since the limits are shares of Rust's comment lines.

use std::sync::LazyLock;

use regex::Regex;

use super::files::File;
use super::{Counts, Rule};

/// The widest comment line, in columns.
const WIDTH: usize = 120;
/// The longest file, in lines.
const FILE_LINES: usize = 800;

/// Sentences that begin with a pronoun in place of a noun.
pub(super) static PRONOUNS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(^|[.!?:] )(Who|Whoever|What|Whatever|Whom|Whose)\b"));
/// Persons in place of threads, peers and queues.
pub(super) static PERSONS: LazyLock<Regex> =
    LazyLock::new(|| pattern(r"(?i)\b(nobody|somebody|everybody|anybody|whoever)\b"));
static QUANTITIES: LazyLock<Regex> = LazyLock::new(|| pattern(r"(?i)\bso (many|often|long)\b"));
static POINTERS: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(The same\b[^.]*\.?|(See|As) \[?`[^`]*`\]?\.)$"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

/// The text of a line that contains only a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim())
}

pub(super) fn check(files: &[File], counts: &mut Counts) {
    for rule in [Rule::CommentWidth, Rule::FileLength, Rule::Headers, Rule::Quantities, Rule::Pointers] {
        counts.look(rule, 0);
    }
    for file in files.iter().filter(|file| file.is("rs")) {
        check_rust(file, counts);
    }
    for file in files.iter().filter(|file| file.is("py") || file.is("sh") || file.is("toml") || file.is("c")) {
        let is_comment = |line: &str| line.trim_start().starts_with(['#', '*']) || comment(line).is_some();
        for (number, line) in (1..).zip(file.text.lines()) {
            if is_comment(line) && line.chars().count() > WIDTH {
                counts.find(Rule::CommentWidth, &file.path, number, line);
            }
        }
        check_length(file, counts);
    }
}

fn check_length(file: &File, counts: &mut Counts) {
    let lines = file.text.lines().count();
    if lines > FILE_LINES {
        counts.find(Rule::FileLength, &file.path, 0, format!("{lines} lines"));
    }
}

fn check_rust(file: &File, counts: &mut Counts) {
    check_length(file, counts);
    if !file.text.starts_with("//!") {
        counts.find(Rule::Headers, &file.path, 1, "no heading");
    }
    let lines: Vec<&str> = file.text.lines().collect();
    for (at, line) in lines.iter().enumerate() {
        let Some(text) = comment(line) else { continue };
        let number = at + 1;
        for rule in [Rule::Pronouns, Rule::Persons] {
            counts.look(rule, 1);
        }
        if line.chars().count() > WIDTH {
            counts.find(Rule::CommentWidth, &file.path, number, *line);
        }
        for (rule, pattern) in
            [(Rule::Pronouns, &*PRONOUNS), (Rule::Persons, &*PERSONS), (Rule::Quantities, &*QUANTITIES)]
        {
            if pattern.is_match(text) {
                counts.find(rule, &file.path, number, text);
            }
        }
        let is_doc = |line: &&str| line.trim_start().starts_with("///");
        let alone = is_doc(line) && ![at.wrapping_sub(1), number].iter().any(|&at| lines.get(at).is_some_and(is_doc));
        if alone && POINTERS.is_match(text) {
            counts.find(Rule::Pointers, &file.path, number, text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(text: &str) -> Vec<(Rule, usize)> {
        let mut counts = Counts::default();
        check(&[File { path: "a.rs".into(), text: text.to_owned() }], &mut counts);
        counts
            .0
            .into_iter()
            .filter(|(_, count)| count.figure() > 0)
            .map(|(rule, count)| (rule, count.figure()))
            .collect()
    }

    #[test]
    fn plain_sentences_pass() {
        assert_eq!(figures("//! A ring.\n\n/// The peer writes what it has read.\nfn f() {}\n"), []);
    }

    #[test]
    fn each_rule_finds_its_words() {
        assert_eq!(
            figures("//! Heading.\n// Who calls is known.\n// It waits. What arrives is kept.\n"),
            [(Rule::Pronouns, 2)]
        );
        assert_eq!(figures("//! Heading.\n// If nobody reads, the ring is full.\n"), [(Rule::Persons, 1)]);
        assert_eq!(figures("//! Heading.\n/// Sends so many bytes.\n"), [(Rule::Quantities, 1)]);
        assert_eq!(
            figures("//! Heading.\n/// See [`run`].\nfn f() {}\n/// The same for reads.\n"),
            [(Rule::Pointers, 2)]
        );
        assert_eq!(figures("//! Heading.\n/// See [`run`].\n/// Then it ends.\n"), []);
        assert_eq!(figures("fn f() {}\n"), [(Rule::Headers, 1)]);
        assert_eq!(figures(&format!("//! {}\n", "a ".repeat(60))), [(Rule::CommentWidth, 1)]);
        assert_eq!(figures(&format!("//! a\n{}", "\n".repeat(800))), [(Rule::FileLength, 1)]);
    }
}
