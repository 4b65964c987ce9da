//! Rules for commits: the length of their subjects, and their size in changed lines. Merges and moves are not counted.

use super::files::git;
use super::{Counts, Rule};

/// The longest subject, in characters.
const SUBJECT: usize = 60;
/// The largest commit, in added and deleted lines.
const LINES: usize = 300;

pub(super) fn check(range: &str, counts: &mut Counts) -> anyhow::Result<()> {
    let log = git(&["log", "--no-merges", "--find-renames", "--numstat", "--format=%x00%h %s", range])?;
    for commit in log.split('\0').filter(|commit| !commit.is_empty()) {
        let (head, files) = commit.split_once('\n').unwrap_or((commit, ""));
        let (hash, subject) = head.split_once(' ').unwrap_or((head, ""));
        let lines = changed_lines(files);
        for rule in [Rule::CommitSubjects, Rule::CommitSize] {
            counts.look(rule, 1);
        }
        if subject.chars().count() > SUBJECT {
            counts.find(Rule::CommitSubjects, hash, 0, subject);
        }
        if lines > LINES {
            counts.find(Rule::CommitSize, hash, 0, format!("{lines} lines: {subject}"));
        }
    }
    Ok(())
}

/// Adds up the lines of `git log --numstat`. Binary files have dashes in place of numbers.
fn changed_lines(numstat: &str) -> usize {
    let numbers = numstat.lines().flat_map(|line| line.split('\t').take(2));
    numbers.filter_map(|number| number.parse::<usize>().ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binary_files_have_no_lines() {
        assert_eq!(changed_lines("\n3\t4\ta.rs\n-\t-\tb.bin\n"), 7);
    }
}
