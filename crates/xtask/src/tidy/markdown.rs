//! Rules for Markdown: widths, the shape of tables, the length of sentences, words, and links.
//!
//! Sentences of paragraphs and list items are measured. A code span counts as one word. Headings, tables, code blocks
//! and the changelog are left out.

use std::collections::{HashMap, HashSet};
use std::path::{Component, Path, PathBuf};

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use super::comments::{PERSONS, PRONOUNS};
use super::files::{File, root};
use super::{Counts, Rule};

/// The widest line, in columns.
const WIDTH: usize = 160;
/// The longest sentence, in words.
const WORDS: usize = 35;

pub(super) fn check(files: &[File], counts: &mut Counts) {
    for rule in [Rule::MarkdownWidth, Rule::TableShape, Rule::Links] {
        counts.look(rule, 0);
    }
    let documents: Vec<&File> = files.iter().filter(|file| file.is("md")).collect();
    let headings: HashMap<PathBuf, HashSet<String>> =
        documents.iter().map(|file| (file.path.clone(), anchors(&file.text))).collect();
    let mut lengths = Vec::new();
    for file in documents {
        check_widths(file, counts);
        check_tables(file, counts);
        check_links(file, &headings, counts);
        if file.path != Path::new("CHANGELOG.md") {
            check_sentences(file, &mut lengths, counts);
        }
    }
    lengths.sort_unstable();
    counts.set_figure(Rule::MedianSentence, lengths.get(lengths.len() / 2).copied().unwrap_or(0));
}

fn check_widths(file: &File, counts: &mut Counts) {
    let mut in_code = false;
    for (number, line) in (1..).zip(file.text.lines()) {
        in_code ^= line.trim_start().starts_with("```");
        if !in_code && !line.trim_start().starts_with('|') && line.chars().count() > WIDTH {
            counts.find(Rule::MarkdownWidth, &file.path, number, line);
        }
    }
}

/// Checks the rows of tables. A row behind an empty line begins a table of its own, which lacks a head.
fn check_tables(file: &File, counts: &mut Counts) {
    let (mut in_code, mut table) = (false, Vec::new());
    for (number, line) in (1..).zip(file.text.lines().chain([""])) {
        in_code ^= line.trim_start().starts_with("```");
        if !in_code && line.trim_start().starts_with('|') {
            table.push((number, line.trim()));
            continue;
        }
        let cells = |row: &str| row.replace("\\|", "").matches('|').count();
        let is_rule = |row: &str| row.chars().all(|char| "|-: ".contains(char));
        let headed = table.get(1).is_some_and(|(_, row)| is_rule(row));
        let all = table.first().map_or(0, |(_, row)| cells(row));
        for (number, row) in table.drain(..) {
            if !headed || !row.ends_with('|') || cells(row) != all {
                counts.find(Rule::TableShape, &file.path, number, row);
            }
        }
    }
}

/// The texts of paragraphs and list items, each with its first line. A list item with a paragraph inside is one block.
fn blocks(text: &str) -> Vec<(usize, String)> {
    let mut blocks: Vec<(usize, String)> = Vec::new();
    let mut skipped = 0_usize;
    let line_of = |at: usize| text[..at].matches('\n').count() + 1;
    for (event, range) in Parser::new_ext(text, Options::ENABLE_TABLES).into_offset_iter() {
        match event {
            Event::Start(Tag::CodeBlock(_) | Tag::Table(_) | Tag::Heading { .. } | Tag::HtmlBlock) => skipped += 1,
            Event::End(TagEnd::CodeBlock | TagEnd::Table | TagEnd::Heading(_) | TagEnd::HtmlBlock) => skipped -= 1,
            Event::Start(Tag::Paragraph | Tag::Item) => blocks.push((line_of(range.start), String::new())),
            Event::Text(text) if skipped == 0 => {
                blocks.last_mut().into_iter().for_each(|(_, block)| block.push_str(&text))
            }
            // A code span counts as one word.
            Event::Code(_) if skipped == 0 => {
                blocks.last_mut().into_iter().for_each(|(_, block)| block.push_str("code"))
            }
            Event::SoftBreak | Event::HardBreak => blocks.last_mut().into_iter().for_each(|(_, block)| block.push(' ')),
            _ => {}
        }
    }
    blocks.retain(|(_, block)| !block.trim().is_empty());
    blocks
}

/// Cuts a block after full stops that a space follows. A closing bracket belongs to the sentence before it.
fn sentences(block: &str) -> Vec<&str> {
    let (mut found, mut start) = (Vec::new(), 0);
    for (at, _) in block.match_indices(['.', '!', '?']) {
        let mut end = at + 1;
        end += usize::from(block[end..].starts_with(')'));
        let ends = block[end..].is_empty() || block[end..].starts_with(' ');
        if ends && !block[..at].ends_with("e.g") && !block[..at].ends_with("i.e") {
            found.push(block[start..end].trim());
            start = end;
        }
    }
    found.push(block[start..].trim());
    found.retain(|sentence| sentence.chars().any(char::is_alphanumeric));
    found
}

fn check_sentences(file: &File, lengths: &mut Vec<usize>, counts: &mut Counts) {
    for (line, block) in blocks(&file.text) {
        for sentence in sentences(&block) {
            let words = sentence.split_whitespace().filter(|word| word.chars().any(char::is_alphanumeric)).count();
            lengths.push(words);
            for rule in [Rule::LongSentences, Rule::MarkdownWords] {
                counts.look(rule, 1);
            }
            if words > WORDS {
                counts.find(Rule::LongSentences, &file.path, line, format!("{words} words: {sentence}"));
            }
            if PRONOUNS.is_match(sentence) || PERSONS.is_match(sentence) {
                counts.find(Rule::MarkdownWords, &file.path, line, sentence);
            }
        }
    }
}

/// The link anchors of headings, by GitHub's rules.
fn anchors(text: &str) -> HashSet<String> {
    let (mut anchors, mut heading) = (HashSet::new(), None::<String>);
    for event in Parser::new(text) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::Text(text) | Event::Code(text) => heading.iter_mut().for_each(|heading| heading.push_str(&text)),
            Event::End(TagEnd::Heading(_)) => {
                let kept = |char: &char| char.is_alphanumeric() || matches!(char, ' ' | '-' | '_');
                let name: String = heading.take().unwrap_or_default().to_lowercase().chars().filter(kept).collect();
                anchors.insert(name.replace(' ', "-"));
            }
            _ => {}
        }
    }
    anchors
}

/// Resolves `..` and `.` in a path.
fn tidy_path(path: &Path) -> PathBuf {
    let mut tidy = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(tidy.pop()),
            Component::CurDir => {}
            _ => tidy.push(part),
        }
    }
    tidy
}

fn check_links(file: &File, headings: &HashMap<PathBuf, HashSet<String>>, counts: &mut Counts) {
    for (event, range) in Parser::new(&file.text).into_offset_iter() {
        let Event::Start(Tag::Link { dest_url: target, .. } | Tag::Image { dest_url: target, .. }) = event else {
            continue;
        };
        if target.contains("://") || target.starts_with("mailto:") {
            continue;
        }
        let (name, anchor) = target.split_once('#').map_or((&*target, None), |(name, anchor)| (name, Some(anchor)));
        let path = match name {
            "" => file.path.clone(),
            name => tidy_path(&file.path.parent().unwrap_or(Path::new("")).join(name)),
        };
        let leads = root().join(&path).exists()
            && anchor.is_none_or(|anchor| headings.get(&path).is_none_or(|anchors| anchors.contains(anchor)));
        if !leads {
            let line = file.text[..range.start].matches('\n').count() + 1;
            counts.find(Rule::Links, &file.path, line, &*target);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_full_stops() {
        assert_eq!(
            sentences("It works, e.g. here. Version 1.2 too. (Yes.) No"),
            ["It works, e.g. here.", "Version 1.2 too.", "(Yes.)", "No"]
        );
    }

    #[test]
    fn code_tables_and_headings_are_no_sentences() {
        let text = "# Heading\n\nOne `a b c` more.\n\n```\ncode\n```\n\n| a | b |\n|---|---|\n| c | d |\n\n- item\n  goes on\n";
        assert_eq!(blocks(text), [(3, "One code more.".to_owned()), (13, "item goes on".to_owned())]);
    }

    #[test]
    fn rows_of_tables_have_the_shape_of_their_head() {
        let text = "| a | b |\n|---|---|\n| `x\\|y` | c |\n| a |\n| a | b\n\n| stray | row |\n\n```\n| code\n```\n";
        let file = File { path: "README.md".into(), text: text.to_owned() };
        let mut counts = Counts::default();
        check(&[file], &mut counts);
        let found: Vec<_> = counts.0[&Rule::TableShape].findings.iter().map(|finding| finding.line).collect();
        assert_eq!(found, [4, 5, 7]);
    }

    #[test]
    fn headings_have_anchors() {
        assert!(anchors("## When it does not work: `weft`\n").contains("when-it-does-not-work-weft"));
    }

    #[test]
    fn links_are_followed() {
        let text = "# Top\n[a](#top) [b](#none) [c](Cargo.toml) [d](docs/none.md) [e](https://example.org)\n";
        let file = File { path: "README.md".into(), text: text.to_owned() };
        let mut counts = Counts::default();
        check(&[file], &mut counts);
        let found: Vec<_> = counts.0[&Rule::Links].findings.iter().map(|finding| finding.text.as_str()).collect();
        assert_eq!(found, ["#none", "docs/none.md"]);
    }
}
