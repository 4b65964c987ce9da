//! The figures of the source papers, from the models.
//!
//! Place in the data flow: each figure runs programs in a [`crate::Machine`] with the costs of the profile that it
//! names. `weft sim scale --figure` prints one, `weft sim paper` all of them.
//!
//! Invariant: a number of ours is the result of a run. Published numbers are used for the comparison only. A value of a
//! profile that was fitted to one of them says so, and the comparison with that number has the label *fit*.
//!
//! Sources: Graham et al., "Overlapping Computation and Communication: Barrier Algorithms and ConnectX-2 CORE-Direct
//! Capabilities", 2010; Pritchard et al., "The GNI Provider Layer for OFI libfabric", 2016; "GASNet-EX at Lawrence
//! Berkeley National Lab", 2018; Kim et al., "Toward Developing a Unimem OFI Provider for MPI Support", 2018.

mod aries;
mod connectx2;
mod unimem;

use serde::Serialize;

use crate::machine::{Machine, Options};
use crate::profile::{Costs, Profile, ProfileError};
use crate::script::Script;

/// The origin of a number of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Label {
    /// A cost was chosen so that this number comes out.
    Fit,
    /// It follows from costs that were measured, published, or fitted to other numbers.
    Predicted,
    /// It follows from a model with assumed costs: the shape counts.
    Modelled,
    /// It is a limit or a pattern, not a measurement.
    Exact,
}

impl Label {
    /// The word in tables.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Fit => "fit",
            Self::Predicted => "predicted",
            Self::Modelled => "modelled",
            Self::Exact => "exact",
        }
    }
}

/// A published number or statement, and ours.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The quantity.
    pub what: String,
    /// The unit; empty for a statement.
    pub unit: &'static str,
    /// The published text.
    pub published: String,
    /// The published number, if there is one.
    pub value: Option<f64>,
    /// Our number; for a statement 1 if it holds and 0 if not.
    pub ours: f64,
    /// The least number of ours that agrees.
    pub least: f64,
    /// The greatest number of ours that agrees.
    pub most: f64,
    /// Where our number comes from.
    pub label: Label,
}

impl Comparison {
    /// A number with a tolerance in percent.
    #[must_use]
    pub fn number(what: &str, unit: &'static str, value: f64, percent: f64, ours: f64, label: Label) -> Self {
        let room = value * percent / 100.0;
        Self {
            what: what.to_owned(),
            unit,
            published: format!("{value}"),
            value: Some(value),
            ours,
            least: value - room,
            most: value + room,
            label,
        }
    }

    /// A number of percent that the text gives roughly, with a tolerance in points.
    fn about(what: &str, value: f64, points: f64, ours: f64, label: Label) -> Self {
        let (least, most) = (value - points, value + points);
        let published = format!("about {value}");
        Self { what: what.to_owned(), unit: "%", published, value: Some(value), ours, least, most, label }
    }

    /// A range in which our number lies.
    #[must_use]
    pub fn range(what: &str, unit: &'static str, (least, most): (f64, f64), ours: f64, label: Label) -> Self {
        let published = if least > f64::MIN { format!("{least} to {most}") } else { format!("at most {most}") };
        Self { what: what.to_owned(), unit, published, value: None, ours, least, most, label }
    }

    /// A statement.
    #[must_use]
    pub fn statement(what: &str, holds: bool, label: Label) -> Self {
        let ours = if holds { 1.0 } else { 0.0 };
        let published = "yes".to_owned();
        Self { what: what.to_owned(), unit: "", published, value: None, ours, least: 1.0, most: 1.0, label }
    }

    /// Whether our number agrees.
    #[must_use]
    pub fn agrees(&self) -> bool {
        (self.least..=self.most).contains(&self.ours)
    }

    /// Our number, with three digits, or the truth of a statement.
    #[must_use]
    pub fn ours_text(&self) -> String {
        match self.unit {
            "" if self.ours > 0.5 => "yes".to_owned(),
            "" => "no".to_owned(),
            _ if self.ours >= 100.0 => format!("{:.1}", self.ours),
            _ => format!("{:.2}", self.ours),
        }
    }

    /// The difference from the published number in percent.
    #[must_use]
    pub fn residual(&self) -> Option<f64> {
        self.value.map(|value| (self.ours / value - 1.0) * 100.0)
    }
}

/// A line of a plot.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Line {
    /// The legend.
    pub name: String,
    /// The points, by x.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    /// A line through points.
    #[must_use]
    pub fn new(name: &str, points: Vec<(f64, f64)>) -> Self {
        Self { name: name.to_owned(), points }
    }

    /// The value at an x of the line; no number if it has no such point.
    #[must_use]
    pub fn at(&self, x: f64) -> f64 {
        self.points.iter().find(|point| (point.0 - x).abs() < f64::EPSILON).map_or(f64::NAN, |point| point.1)
    }
}

/// A figure or table of a paper, by our models.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// The profile whose costs it uses.
    pub profile: &'static str,
    /// The name for `--figure`.
    pub name: &'static str,
    /// The title.
    pub title: &'static str,
    /// The place in the literature.
    pub source: &'static str,
    /// The model in a few sentences.
    pub model: &'static str,
    /// The title of the horizontal axis.
    pub x: &'static str,
    /// The title of the vertical axis.
    pub y: &'static str,
    /// The lines of the plot; none for a table.
    pub lines: Vec<Line>,
    /// Lines of text, for what is no plot.
    pub text: Vec<String>,
    /// Published numbers and ours.
    pub compared: Vec<Comparison>,
}

/// How long a figure may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// A few points, for tests.
    Short,
    /// All points.
    Full,
}

/// Makes a figure from the costs of its profile.
type Make = fn(&Costs, Effort) -> Figure;

/// All figures, with their profiles and names.
const FIGURES: &[(&str, &str, Make)] = &[
    ("connectx2", "3", connectx2::connections),
    ("connectx2", "4", connectx2::blocking),
    ("connectx2", "5", connectx2::nonblocking),
    ("connectx2", "6", connectx2::quanta),
    ("connectx2", "7", connectx2::once),
    ("connectx2", "tables", connectx2::tables),
    ("connectx2", "noise", connectx2::noise),
    ("connectx2", "imbalance", connectx2::imbalance),
    ("connectx2", "communicators", connectx2::communicators),
    ("connectx2", "data", connectx2::data),
    ("aries", "gni-4", aries::threads),
    ("aries", "gni-5", aries::writes),
    ("aries", "gni-6", aries::latency),
    ("aries", "gni-7", aries::bandwidth),
    ("aries", "gni-9", aries::rate),
    ("aries", "gni-10", aries::overlap),
    ("aries", "fadd", aries::fetch_add),
    ("unimem", "latency", unimem::latency),
    ("unimem", "bandwidth", unimem::bandwidth),
    ("unimem", "future", unimem::future),
];

/// The profiles and names of all figures.
pub fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    FIGURES.iter().map(|&(profile, name, _)| (profile, name))
}

/// A figure, from the costs of this profile. `None`: the profile has no figure of this name.
#[must_use]
pub fn figure(profile: &Profile, name: &str, effort: Effort) -> Option<Figure> {
    let &(_, _, make) = FIGURES.iter().find(|(of, known, _)| *of == profile.name && *known == name)?;
    Some(make(&profile.costs, effort))
}

/// All figures, in the order of the papers.
///
/// # Errors
/// A profile cannot be read.
pub fn all(effort: Effort, mut progress: impl FnMut(usize, usize)) -> Result<Vec<Figure>, ProfileError> {
    let mut figures = Vec::new();
    for (number, &(profile, _, make)) in FIGURES.iter().enumerate() {
        figures.push(make(&Profile::named(profile)?.costs, effort));
        progress(number + 1, FIGURES.len());
    }
    Ok(figures)
}

/// The time at which a script ends, in picoseconds.
fn end_ps(script: &Script, costs: &Costs) -> u64 {
    // Scripts of this module match their messages.
    Machine::new(script, costs, Options::default()).run(|_, _| ()).map_or(0, |outcome| outcome.end_ps)
}

/// Bytes in picoseconds as MB/s.
#[allow(clippy::cast_precision_loss)] // Below 2^53.
fn mb_per_s(bytes: u64, ps: u64) -> f64 {
    bytes as f64 / (ps as f64 / 1e6)
}

/// A number of bytes on an axis.
#[allow(clippy::cast_precision_loss)] // Below 2^53.
const fn axis(bytes: u64) -> f64 {
    bytes as f64
}

/// Picoseconds as microseconds.
#[allow(clippy::cast_precision_loss)] // Below 2^53.
fn us(ps: u64) -> f64 {
    ps as f64 / 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn published_numbers_come_out() {
        let figures = all(Effort::Short, |_, _| ()).unwrap();
        let wrong: Vec<String> = figures
            .iter()
            .flat_map(|figure| figure.compared.iter().map(move |compared| (figure, compared)))
            .filter(|(_, compared)| !compared.agrees())
            .map(|(figure, compared)| {
                let ours = compared.ours_text();
                format!("{} {}: {}: {ours}, {}", figure.profile, figure.name, compared.what, compared.published)
            })
            .collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
