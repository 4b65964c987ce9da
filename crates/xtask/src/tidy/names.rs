//! The rule for names in documents: a test or function that a document names exists.
//!
//! A name is a code span that is an identifier of at least three words, with or without a path before it. Shorter
//! identifiers, and those with libfabric's prefix, may come from elsewhere. A name exists if the code of a checked-in
//! file contains it; comments do not count. The changelog may name things of the past, so it is left out.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use pulldown_cmark::{Event, Parser};
use regex::Regex;

use super::files::File;
use super::{Counts, Rule};

static NAME: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(?:\w+::)*([a-z][a-z0-9]*(?:_[a-z0-9]+){2,})$"));
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b[a-z][a-z0-9]*(?:_[a-z0-9]+){2,}\b"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

pub(super) fn check(files: &[File], counts: &mut Counts) {
    counts.look(Rule::Names, 0);
    let known = identifiers(files);
    for file in files.iter().filter(|file| file.is("md") && file.path != Path::new("CHANGELOG.md")) {
        for (event, range) in Parser::new(&file.text).into_offset_iter() {
            let Event::Code(span) = event else { continue };
            let Some(name) = NAME.captures(&span).and_then(|found| found.get(1)) else { continue };
            if !name.as_str().starts_with("fi_") && !known.contains(name.as_str()) {
                let line = file.text[..range.start].matches('\n').count() + 1;
                counts.find(Rule::Names, &file.path, line, &*span);
            }
        }
    }
}

/// The identifiers of at least three words in the code of all files but documents.
fn identifiers(files: &[File]) -> HashSet<&str> {
    let is_code = |line: &&str| !line.trim_start().starts_with(['/', '#', '*']);
    let sources = files.iter().filter(|file| !file.is("md"));
    let lines = sources.flat_map(|file| file.text.lines().filter(is_code));
    lines.flat_map(|line| IDENTIFIER.find_iter(line)).map(|found| found.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_must_occur_in_code() {
        let source = "fn a_ring_is_full() {}\n// an_old_name_stays here\n";
        let document = "`a_ring_is_full`, `tests::a_ring_is_full`, `an_old_name_stays`, `fi_av_insert`, `two_words`\n";
        let file = |path: &str, text: &str| File { path: path.into(), text: text.to_owned() };
        let mut counts = Counts::default();
        check(&[file("a.rs", source), file("docs/a.md", document)], &mut counts);
        let found: Vec<_> = counts.0[&Rule::Names].findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(found, ["an_old_name_stays"]);
    }
}
