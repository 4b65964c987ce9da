//! The rule for names in documents: a test or function that a document names exists.
//!
//! Two kinds of code spans are names. One is an identifier in a list after a span with the name of a source file; a
//! function of that name must exist. The other is an identifier with a path before it, or of at least three words; the
//! code of a file must contain it. Comments do not count, nor does the changelog, which may name removed items.
//! Identifiers with libfabric's prefix may come from its headers.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use pulldown_cmark::{Event, Parser};
use regex::Regex;

use super::files::File;
use super::{Counts, Rule};

static FILE: LazyLock<Regex> = LazyLock::new(|| pattern(r"^[\w/]+\.(?:rs|py)$"));
static NAME: LazyLock<Regex> = LazyLock::new(|| pattern(r"^(?:\w+::)*([a-z][a-z0-9]*(?:_[a-z0-9]+)*)$"));
static IDENTIFIER: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b[a-z][a-z0-9_]*\b"));
static FUNCTION: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b(?:fn|def) ([a-z_0-9]+)"));

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a constant pattern")
}

pub(super) fn check(files: &[File], counts: &mut Counts) {
    counts.look(Rule::Names, 0);
    let code = Code::of(files);
    for file in files.iter().filter(|file| file.is("md") && file.path != Path::new("CHANGELOG.md")) {
        // The end of the preceding span, if that names a file or a function of one.
        let mut list_end = None;
        for (event, range) in Parser::new(&file.text).into_offset_iter() {
            let Event::Code(span) = event else { continue };
            let is_listed = list_end.is_some_and(|end: usize| {
                file.text[end..range.start].chars().all(|char| char.is_whitespace() || "(,".contains(char))
            });
            list_end = (is_listed || FILE.is_match(&span)).then_some(range.end);
            let Some(name) = NAME.captures(&span).and_then(|found| found.get(1)) else { continue };
            let name = name.as_str();
            let is_checked = span.contains("::") || name.matches('_').count() >= 2 && !name.starts_with("fi_");
            let exists = code.functions.contains(name) || !is_listed && code.identifiers.contains(name);
            if (is_listed || is_checked) && !exists {
                let line = file.text[..range.start].matches('\n').count() + 1;
                counts.find(Rule::Names, &file.path, line, &*span);
            }
        }
    }
}

/// The names in the code of all files but documents.
struct Code<'a> {
    functions: HashSet<&'a str>,
    identifiers: HashSet<&'a str>,
}

impl<'a> Code<'a> {
    fn of(files: &'a [File]) -> Self {
        let is_code = |line: &&str| !line.trim_start().starts_with(['/', '#', '*']);
        let mut code = Self { functions: HashSet::new(), identifiers: HashSet::new() };
        for line in files.iter().filter(|file| !file.is("md")).flat_map(|file| file.text.lines().filter(is_code)) {
            code.functions
                .extend(FUNCTION.captures_iter(line).filter_map(|found| found.get(1)).map(|name| name.as_str()));
            code.identifiers.extend(IDENTIFIER.find_iter(line).map(|found| found.as_str()));
        }
        code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(source: &str, document: &str) -> Vec<String> {
        let file = |path: &str, text: &str| File { path: path.into(), text: text.to_owned() };
        let mut counts = Counts::default();
        check(&[file("a.rs", source), file("docs/a.md", document)], &mut counts);
        counts.0[&Rule::Names].findings.iter().map(|finding| finding.text.clone()).collect()
    }

    #[test]
    fn long_names_must_occur_in_code() {
        let source = "fn a_ring_is_full() {}\n// an_old_name_stays here\n";
        let document = "`a_ring_is_full`, `tests::a_ring_is_full`, `an_old_name_stays`, `fi_av_insert`, `two_words`\n";
        assert_eq!(findings(source, document), ["an_old_name_stays"]);
    }

    #[test]
    fn names_after_a_file_must_be_functions() {
        let source = "fn fills() { let empties_soon = 1; }\n";
        assert_eq!(findings(source, "`a.rs` `fills`; `empties`; `b/a.rs` (`fills`, `empties`)\n"), ["empties"]);
        assert_eq!(findings(source, "| `a.rs`\n  `empties_soon` |\n"), ["empties_soon"]);
    }
}
