//! `weft sim paper`: all figures of the source papers, ours beside the published values.
//!
//! Place in the data flow: runs the figures of weft-scale and weft-sim, and writes a table, one HTML page, or the
//! document docs/papers.md with its plots.

use std::fmt::Write as _;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use indicatif::ProgressBar;
use serde::Serialize;
use weft_scale::Profile;
use weft_scale::figure::{Comparison, Effort, Figure, Label, all};

use super::draw::{Titles, svg};
use super::scale::compared_text;
use crate::render::{self, Text};

/// Reproduces the figures of the source papers by simulation, ours beside the published values.
///
/// Each value has a label. `fit`: a cost was chosen so that the value comes out. `predicted`: the value follows.
/// `modelled`: the value follows from assumed costs, so its shape counts. `exact`: a limit or a pattern.
///
/// The exit status is 1 if a value disagrees.
#[derive(Args)]
pub(crate) struct PaperOptions {
    /// Write a report with all plots, one HTML page, to this file.
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// Write papers.md, and its plots into the folder plots, to this folder.
    #[arg(long, value_name = "FOLDER")]
    docs: Option<PathBuf>,
    /// Simulate a few points of each figure only.
    #[arg(long)]
    short: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// All figures, and the numbers of values by label.
#[derive(Serialize)]
struct Report {
    fitted: usize,
    predicted: usize,
    modelled: usize,
    exact: usize,
    disagreeing: usize,
    figures: Vec<Figure>,
}

impl Report {
    fn new(figures: Vec<Figure>) -> Self {
        let values = || figures.iter().flat_map(|figure| &figure.compared);
        let count = |label| values().filter(|value| value.label == label).count();
        let (fitted, predicted) = (count(Label::Fit), count(Label::Predicted));
        let (modelled, exact) = (count(Label::Modelled), count(Label::Exact));
        let disagreeing = values().filter(|value| !value.agrees()).count();
        Self { fitted, predicted, modelled, exact, disagreeing, figures }
    }

    fn rows(&self) -> impl Iterator<Item = (&Figure, &Comparison)> {
        self.figures.iter().flat_map(|figure| figure.compared.iter().map(move |compared| (figure, compared)))
    }

    fn summary(&self) -> String {
        let Self { fitted, predicted, modelled, exact, disagreeing, .. } = self;
        format!(
            "{fitted} values fitted, {predicted} predicted, {modelled} modelled, {exact} exact; {disagreeing} disagree."
        )
    }
}

impl Text for Report {
    fn text(&self) -> String {
        format!("{}{}\n", compared_text(self.rows()), self.summary())
    }
}

/// Runs the command.
pub(super) fn run(options: &PaperOptions, out: &mut impl Write) -> io::Result<ExitCode> {
    let bar = ProgressBar::new(0);
    let effort = if options.short { Effort::Short } else { Effort::Full };
    let figures = figures(effort, |done, of| {
        bar.set_length(of as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    let report = Report::new(figures?);
    if let Some(file) = &options.html {
        std::fs::write(file, html(&report).map_err(io::Error::other)?)?;
    }
    if let Some(folder) = &options.docs {
        write_docs(folder, &report)?;
    }
    render::print(out, &report, options.json)?;
    Ok(if report.disagreeing == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// All figures: by costs, then by whole engines.
fn figures(effort: Effort, progress: impl FnMut(usize, usize)) -> io::Result<Vec<Figure>> {
    let mut figures = all(effort, progress).map_err(io::Error::other)?;
    let unimem = Profile::named("unimem").map_err(io::Error::other)?;
    figures.extend(weft_sim::unimem::figures(&unimem, effort));
    Ok(figures)
}

fn drawing(figure: &Figure) -> Result<Option<String>, String> {
    let titles = Titles { title: figure.title, x: figure.x, y: figure.y };
    if figure.lines.is_empty() { Ok(None) } else { svg(titles, &figure.lines).map(Some) }
}

/// The cells of a row: quantity, published, ours, residual, label, agreement.
fn cells(compared: &Comparison) -> [String; 6] {
    let unit = if compared.unit.is_empty() { String::new() } else { format!(" {}", compared.unit) };
    [
        compared.what.clone(),
        format!("{}{unit}", compared.published),
        format!("{}{unit}", compared.ours_text()),
        compared.residual().map_or_else(String::new, |percent| format!("{percent:+.1} %")),
        compared.label.word().to_owned(),
        if compared.agrees() { "yes" } else { "no" }.to_owned(),
    ]
}

const HEADS: [&str; 6] = ["quantity", "published", "ours", "residual", "label", "agrees"];
const LABELS: &str = "Each value has a label. *Fit*: a cost was chosen so that the value comes out. *Predicted*: the value \
                      follows from measured, published or otherwise fitted costs. *Modelled*: the value follows from \
                      assumed costs, so its shape counts. *Exact*: a limit or a pattern.";

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The report as one page without references to other files.
fn html(report: &Report) -> Result<String, String> {
    let mut text = String::from(
        "<!DOCTYPE html><html lang=\"en\"><meta charset=\"utf-8\"><title>weft: figures of the source papers</title>\
         <style>body{font:15px sans-serif;max-width:1000px;margin:2em auto;padding:0 1em}table{border-collapse:collapse}\
         td,th{padding:2px 10px;border-bottom:1px solid #ccc;text-align:left}pre{background:#f4f4f4;padding:8px}\
         .no{color:#c00;font-weight:bold}</style><h1>Figures of the source papers</h1>",
    );
    // Writing to a string cannot fail.
    let _ = write!(text, "<p>{}</p><p>{}</p>", LABELS.replace('*', ""), report.summary());
    for figure in &report.figures {
        let _ = write!(text, "<h2>{}</h2><p>{}. Profile {}.</p>", escape(figure.title), figure.source, figure.profile);
        let _ = write!(text, "<p>{}</p>", escape(figure.model));
        if let Some(drawn) = drawing(figure)? {
            text += &drawn;
        }
        if !figure.text.is_empty() {
            let _ = write!(text, "<pre>{}</pre>", escape(&figure.text.join("\n")));
        }
        let row = |cells: &[String], tag: &str| {
            let cells: String = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect();
            format!("<tr>{cells}</tr>")
        };
        text += "<table>";
        text += &row(&HEADS.map(str::to_owned), "th");
        for compared in &figure.compared {
            text += &row(&cells(compared), "td");
        }
        text += "</table>";
    }
    text += "<h2>Costs</h2>";
    for profile in Profile::all() {
        let _ = write!(text, "<h3>{}</h3><p>{}</p><table>", profile.name, escape(&profile.about));
        for value in &profile.values {
            let fit = value.fit.as_ref().map_or_else(String::new, |fit| format!(" <b>Fit</b> to {}.", escape(fit)));
            let _ = write!(text, "<tr><td>{}<td>{}<td>{}.{fit}", value.name, value.is, escape(&value.source));
        }
        text += "</table>";
    }
    Ok(text + "</html>\n")
}

/// Writes the document and its plots.
fn write_docs(folder: &Path, report: &Report) -> io::Result<()> {
    let plots = folder.join("plots");
    std::fs::create_dir_all(&plots)?;
    let mut text = format!(
        "# Figures of the source papers\n\n`weft sim paper --docs docs` makes this page and its plots by simulation. No \
         number of ours is measured.\n`weft sim profile NAME` prints the costs, with the source of each.\n\n{}\n\n{}\n\n\
         | paper | figure | quantity | published | ours | residual | label | agrees |\n|---|---|---|---|---|---|---|---|\n",
        wrap(LABELS),
        report.summary()
    );
    for (figure, compared) in report.rows() {
        let _ = writeln!(text, "| {} | {} | {} |", figure.source, figure.name, cells(compared).join(" | "));
    }
    for figure in &report.figures {
        let _ = write!(text, "\n## {}\n\n{}. Profile `{}`.\n", figure.title, figure.source, figure.profile);
        if !figure.model.is_empty() {
            let _ = writeln!(text, "{}", wrap(figure.model));
        }
        if let Some(drawn) = drawing(figure).map_err(io::Error::other)? {
            let name = format!("paper-{}-{}.svg", figure.profile, figure.name);
            std::fs::write(plots.join(&name), drawn)?;
            let _ = write!(text, "\n![{}](plots/{name})\n", figure.title);
        }
        if !figure.text.is_empty() {
            let _ = write!(text, "\n```text\n{}\n```\n", figure.text.join("\n"));
        }
    }
    std::fs::write(folder.join("papers.md"), text)
}

/// Breaks a paragraph into lines of at most 120 columns.
fn wrap(text: &str) -> String {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.chars().count() + word.chars().count() < 120 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_report_is_one_page_with_all_values() {
        let report = Report::new(figures(Effort::Short, |_, _| ()).unwrap());
        assert_eq!(report.disagreeing, 0, "{}", report.text());
        assert!(report.fitted > 0 && report.predicted > report.fitted);
        let page = html(&report).unwrap();
        assert!(!page.contains("http://") || page.matches("http://").all(|_| page.contains("http://www.w3.org")));
        for (figure, compared) in report.rows() {
            assert!(page.contains(&escape(&compared.what)), "{}", compared.what);
            assert!(page.contains(&escape(figure.title)), "{}", figure.title);
        }
    }

    #[test]
    fn paragraphs_are_broken() {
        let text = "word ".repeat(100);
        assert!(wrap(&text).lines().all(|line| line.len() <= 120));
        assert_eq!(wrap(&text).split_whitespace().count(), 100);
    }
}
