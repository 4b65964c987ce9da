//! `cargo xtask tidy`: the countable style rules.
//!
//! Place in the data flow: `make check-tidy` runs it. [`files`] lists the checked-in files, and the other modules turn
//! them into [`Finding`]s. This file compares the number of findings for each [`Rule`] with its limit. A relative limit
//! is a share of `total`, for example of all comment lines.
//!
//! `--report` prints the figures alone and always succeeds; `--list RULE` prints every finding of one rule.

mod comments;
mod commits;
mod fields;
mod files;
mod markdown;
mod names;
mod test_names;

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::bail;

/// Number of findings printed for a broken rule.
const SHOWN: usize = 10;

/// Options of `cargo xtask tidy`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Print the figures and succeed in any case.
    #[arg(long)]
    report: bool,
    /// Print every finding of one rule.
    #[arg(long, value_enum, value_name = "RULE")]
    list: Option<Rule>,
    /// Also check the commits of a range, for example `origin/main..HEAD`.
    #[arg(long, value_name = "RANGE")]
    commits: Option<String>,
}

/// The rules, in the order of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Rule {
    /// Sentences of comments that begin with a pronoun such as "Who" or "What".
    Pronouns,
    /// Comment lines that speak of persons where threads, peers or queues are meant.
    Persons,
    /// Vague quantities ("so" with many, often or long) in place of a number.
    Quantities,
    /// Documentation comments that only refer to another item: "The same …", "See `x`."
    Pointers,
    /// Comment lines wider than 120 columns.
    CommentWidth,
    /// Markdown lines wider than 160 columns, outside tables and code.
    MarkdownWidth,
    /// Markdown sentences of more than 35 words.
    LongSentences,
    /// The median length of Markdown sentences, in words.
    MedianSentence,
    /// Markdown sentences that break the rules for pronouns or persons.
    MarkdownWords,
    /// Lines of Markdown tables without a head above, without a bar at the end, or with other cells than the head.
    TableShape,
    /// Files of more than 800 lines.
    FileLength,
    /// Rust files that do not open with `//!`.
    Headers,
    /// Relative links in Markdown to files or headings that do not exist.
    Links,
    /// Names of tests and functions in Markdown that no source file contains.
    Names,
    /// Names of tests with a pronoun such as "who" or "what" in place of a subject.
    TestNames,
    /// Fields of the engine's structs that are visible outside their module.
    OpenFields,
    /// Fields of structs in the other crates that are visible outside their module.
    OpenFieldsElsewhere,
    /// Functions with two adjacent parameters of the same type of integers.
    AdjacentIntegers,
    /// Commit subjects of more than 60 characters.
    CommitSubjects,
    /// Commits of more than 300 changed lines.
    CommitSize,
}

/// The limit of a rule.
enum Limit {
    Count(usize),
    /// Share of `total`, in thousandths.
    PerMille(usize),
}

impl Rule {
    fn limit(self) -> Limit {
        match self {
            Self::Pronouns => Limit::PerMille(3),
            Self::Persons => Limit::PerMille(2),
            Self::Pointers => Limit::Count(5),
            Self::LongSentences => Limit::PerMille(50),
            Self::MedianSentence => Limit::Count(18),
            Self::MarkdownWords => Limit::PerMille(3),
            Self::OpenFields => Limit::PerMille(350),
            Self::OpenFieldsElsewhere => Limit::PerMille(405),
            Self::AdjacentIntegers => Limit::PerMille(40),
            Self::CommitSubjects | Self::CommitSize => Limit::PerMille(100),
            Self::Quantities
            | Self::CommentWidth
            | Self::MarkdownWidth
            | Self::TableShape
            | Self::FileLength
            | Self::Headers
            | Self::Links
            | Self::Names
            | Self::TestNames => Limit::Count(0),
        }
    }
}

/// A violation of a rule.
pub(crate) struct Finding {
    /// The file, relative to the repository, or the short hash of a commit.
    place: PathBuf,
    /// The line, counted from 1; 0 for the whole file.
    line: usize,
    text: String,
}

/// The outcome of one rule.
#[derive(Default)]
struct Count {
    findings: Vec<Finding>,
    /// The compared figure, if it is not the number of findings.
    figure: Option<usize>,
    /// Number of checked items, for relative limits.
    total: usize,
}

impl Count {
    fn figure(&self) -> usize {
        self.figure.unwrap_or(self.findings.len())
    }

    fn holds(&self, limit: &Limit) -> bool {
        match limit {
            Limit::Count(most) => self.figure() <= *most,
            Limit::PerMille(most) => self.figure() * 1000 <= self.total * most,
        }
    }
}

/// The outcome of all rules.
#[derive(Default)]
pub(crate) struct Counts(BTreeMap<Rule, Count>);

impl Counts {
    /// Records a violation of a rule.
    fn find(&mut self, rule: Rule, place: impl Into<PathBuf>, line: usize, text: impl Into<String>) {
        let finding = Finding { place: place.into(), line, text: text.into() };
        self.0.entry(rule).or_default().findings.push(finding);
    }

    /// Adds to the number of checked items of a rule.
    fn look(&mut self, rule: Rule, items: usize) {
        self.0.entry(rule).or_default().total += items;
    }

    fn set_figure(&mut self, rule: Rule, figure: usize) {
        self.0.entry(rule).or_default().figure = Some(figure);
    }
}

/// Runs the task.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let files = files::checked_in()?;
    let mut counts = Counts::default();
    comments::check(&files, &mut counts);
    markdown::check(&files, &mut counts);
    names::check(&files, &mut counts);
    test_names::check(&files, &mut counts);
    fields::check(&files, &mut counts)?;
    if let Some(range) = &args.commits {
        commits::check(range, &mut counts)?;
    }
    if let Some(rule) = args.list {
        counts.0.get(&rule).iter().for_each(|count| list(&count.findings, usize::MAX));
        return Ok(());
    }
    let mut broken = 0;
    for (rule, count) in &counts.0 {
        let holds = count.holds(&rule.limit());
        print_figure(*rule, count, holds);
        if !holds {
            broken += 1;
            if !args.report {
                list(&count.findings, SHOWN);
            }
        }
    }
    if broken > 0 && !args.report {
        bail!("{broken} style rules are broken: `cargo xtask tidy --list RULE` prints every place of one");
    }
    Ok(())
}

fn print_figure(rule: Rule, count: &Count, holds: bool) {
    let name = clap::ValueEnum::to_possible_value(&rule).map(|value| value.get_name().to_owned()).unwrap_or_default();
    let mark = if holds { "ok    " } else { "BROKEN" };
    let (figure, total) = (count.figure(), count.total);
    match rule.limit() {
        Limit::Count(most) => println!("{mark} {name:20} {figure:6}            limit {most}"),
        Limit::PerMille(most) => {
            let [share, most] = [tenths(figure * 1000, total), tenths(most, 1)];
            println!("{mark} {name:20} {figure:6} = {share:>6} %  limit {most} % of {total}");
        }
    }
}

/// Formats thousandths as per cent with one decimal place.
fn tenths(thousandths: usize, total: usize) -> String {
    let tenths = thousandths / total.max(1);
    format!("{}.{}", tenths / 10, tenths % 10)
}

fn list(findings: &[Finding], most: usize) {
    for Finding { place, line, text } in findings.iter().take(most) {
        println!("    {}:{line}: {}", place.display(), text.trim());
    }
    if findings.len() > most {
        println!("    … and {} more", findings.len() - most);
    }
}
