//! Turns samples into rows: medians, spreads, and ratios to the best peer and to the floor.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

use super::job::{COUNT, Measure, Outcome, PER_OPERATION};
use super::kinds::floor;
use super::options::{Kind, Progress};
use super::places::Host;
use super::plan::Case;
use super::remote::Control;
use super::stats;
use super::subject::{Floor, Subject};

/// The outcomes of all rounds of one case over one subject.
#[derive(Default)]
pub(crate) struct Samples {
    measures: Vec<Vec<Measure>>,
    not_offered: Option<String>,
    failures: usize,
    timed_out: bool,
    complaint: String,
}

impl Samples {
    /// Whether a further round is useful.
    pub(crate) fn wants_more(&self, patience: usize) -> bool {
        self.not_offered.is_none() && self.failures < patience
    }

    /// Adds one round's outcome.
    pub(crate) fn add(&mut self, outcome: Outcome) {
        match outcome {
            Outcome::Measured(measures) => self.measures.push(measures),
            Outcome::NotOffered(why) => self.not_offered = Some(why),
            Outcome::Failed(why) => {
                self.failures += 1;
                self.complaint = why;
            }
            Outcome::TimedOut => {
                self.failures += 1;
                self.timed_out = true;
            }
        }
    }

    fn status(&self) -> Status {
        match () {
            () if !self.measures.is_empty() => Status::Ok,
            () if self.not_offered.is_some() => Status::NotOffered,
            () if self.complaint.is_empty() => Status::TimedOut,
            () => Status::Failed,
        }
    }

    /// The remark for the reader of the numbers.
    fn note(&self) -> String {
        let why = self.not_offered.clone().unwrap_or_else(|| self.complaint.clone());
        match self.status() {
            Status::Ok if self.failures == 0 => why,
            Status::Ok if self.timed_out => format!("{} timed out {why}", self.failures).trim().to_owned(),
            Status::Ok => format!("{} failed: {why}", self.failures),
            _ => why,
        }
    }
}

/// Whether there are numbers, or the reason why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Ok,
    NotOffered,
    TimedOut,
    Failed,
}

impl Status {
    /// The name, as printed and in JSON.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotOffered => "not offered",
            Self::TimedOut => "timed out",
            Self::Failed => "failed",
        }
    }
}

/// One line of the result.
pub(crate) struct Row {
    pub(crate) case: Case,
    pub(crate) subject: Subject,
    /// The measured quantity; empty if nothing was measured.
    pub(crate) metric: String,
    pub(crate) unit: String,
    /// One value for each round that succeeded.
    pub(crate) values: Vec<f64>,
    /// The times of single operations in all rounds, in nanoseconds.
    pub(crate) times: Option<Histogram<u64>>,
    pub(crate) median: Option<f64>,
    pub(crate) status: Status,
    pub(crate) note: String,
    /// Ratio to the best of the other providers; above 1, this row is better.
    pub(crate) to_best_peer: Option<f64>,
    /// Ratio to the floor; 1 is the optimum.
    pub(crate) to_floor: Option<f64>,
}

/// The shares of operations whose longest time is shown, with their names, and those in JSON.
pub(crate) const PERCENTILES: [(f64, &str, &str); 3] =
    [(0.5, "p50", "p50"), (0.99, "p99", "p99"), (0.999, "p99.9", "p99_9")];

impl Row {
    /// The longest time of each share in [`PERCENTILES`], in nanoseconds.
    pub(crate) fn percentiles(&self) -> Option<[u64; 3]> {
        self.times.as_ref().map(|times| PERCENTILES.map(|(share, ..)| times.value_at_quantile(share)))
    }
}

/// Whether smaller values of this unit are better.
pub(crate) fn less_is_better(unit: &str) -> bool {
    matches!(unit, "ns" | "B" | "×" | PER_OPERATION | COUNT)
}

/// The factor by which one value is better than another; `None` if either is 0.
fn times_better(unit: &str, this: f64, other: f64) -> Option<f64> {
    let ratio = if less_is_better(unit) { other / this } else { this / other };
    (this > 0.0 && other > 0.0).then_some(ratio)
}

/// Makes all rows, in the order of cases and subjects.
pub(crate) fn make(cases: &[Case], subjects: &[Subject], samples: &BTreeMap<(usize, usize), Samples>) -> Vec<Row> {
    let mut rows: Vec<Row> = Vec::new();
    for (index, case) in cases.iter().enumerate() {
        let mine = samples.range((index, 0)..(index + 1, 0));
        let mut of_case: Vec<Row> =
            mine.flat_map(|((_, subject), samples)| of_samples(case, &subjects[*subject], samples)).collect();
        // Rows are grouped by metric. Rows without a value stand with the first metric.
        let metrics: Vec<String> =
            of_case.iter().map(|row| row.metric.clone()).filter(|name| !name.is_empty()).collect();
        of_case.sort_by_key(|row| metrics.iter().position(|name| *name == row.metric).unwrap_or_default());
        rows.extend(of_case);
    }
    for index in 0..rows.len() {
        rows[index].to_best_peer = to_best_peer(&rows, &rows[index]);
        rows[index].to_floor = to_floor(&rows, &rows[index]);
    }
    rows
}

/// Makes a row for each measured quantity, or one that states why there is none.
fn of_samples(case: &Case, subject: &Subject, samples: &Samples) -> Vec<Row> {
    let row = |metric: &str, unit: &str, values: Vec<f64>| Row {
        case: case.clone(),
        subject: subject.clone(),
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        times: times(samples, metric),
        median: stats::median(&values),
        values,
        status: samples.status(),
        note: samples.note(),
        to_best_peer: None,
        to_floor: None,
    };
    let Some(first) = samples.measures.first() else { return vec![row("", "", Vec::new())] };
    first
        .iter()
        .map(|Measure { metric, unit, .. }| {
            let all = samples.measures.iter().flatten().filter(|measure| measure.metric == *metric);
            row(metric, unit, all.map(|measure| measure.value).collect())
        })
        .collect()
}

/// Joins the times of single operations of all rounds.
fn times(samples: &Samples, metric: &str) -> Option<Histogram<u64>> {
    let mut all = Histogram::new(3).ok()?;
    let measures = samples.measures.iter().flatten().filter(|measure| measure.metric == metric);
    for &(time, count) in measures.flat_map(|measure| &measure.times) {
        // The histogram grows with its values.
        let _ = all.record_n(time, count);
    }
    (!all.is_empty()).then_some(all)
}

fn to_best_peer(rows: &[Row], row: &Row) -> Option<f64> {
    if row.subject.floor.is_some() {
        return None;
    }
    let peers = rows.iter().filter(|other| {
        other.case == row.case
            && other.metric == row.metric
            && other.subject.floor.is_none()
            && other.subject.provider != row.subject.provider
    });
    let this = row.median?;
    // The best peer is the one with the smallest ratio.
    peers.filter_map(|peer| times_better(&row.unit, this, peer.median?)).min_by(f64::total_cmp)
}

fn to_floor(rows: &[Row], row: &Row) -> Option<f64> {
    let subject = &row.subject;
    if subject.floor.is_some() {
        return None;
    }
    let any_size = |floor| matches!(floor, Floor::CacheLine | Floor::Ring | Floor::Futex);
    let median = |floor: Floor| {
        let same =
            |other: &&Row| other.subject.floor == Some(floor) && (any_size(floor) || other.case.size == row.case.size);
        rows.iter().find(same)?.median
    };
    match row.unit.as_str() {
        // The optimum leaves all of the time for computing.
        "%" => return row.median.map(|percent| percent / 100.0),
        COUNT | PER_OPERATION | "×" => return None,
        _ => {}
    }
    // The ring passes numbers of 8 bytes only.
    if matches!(row.case.kind, Kind::Rate | Kind::Match) && row.case.size > 8 {
        return None;
    }
    let bound = floor::bound(row.case.kind, row.case.op, row.case.threads, subject.by_sockets(), median)?;
    times_better(&row.unit, row.median?, bound)
}

/// Formats the rows as JSON: an array with one object per line.
pub(crate) fn json(rows: &[Row], host: &Host, control: Option<&Control>) -> String {
    let (major, minor) = host.version;
    let line = |row: &Row| {
        let mut object = object(row);
        object["libfabric"] = json!(format!("{major}.{minor}"));
        if let Some(control) = control {
            object["to"] = json!(control.name);
        }
        format!("  {object}")
    };
    let lines: Vec<String> = rows.iter().map(line).collect();
    format!("[\n{}\n]\n", lines.join(",\n"))
}

fn object(row: &Row) -> Value {
    let spread = stats::spread(&row.values);
    let mut object = json!({
        "kind": row.case.kind,
        "op": row.case.op_name(),
        "size": row.case.size,
        "threads": row.case.threads,
        "provider": row.subject.name,
        "progress": row.subject.progress.map(Progress::name),
        "floor": row.subject.floor.is_some(),
        "metric": row.metric,
        "median": row.median,
        "unit": row.unit,
        "rounds": row.values.len(),
        "min": spread.map(|spread| spread.0),
        "max": spread.map(|spread| spread.1),
        "samples": row.values,
        "to_best_peer": row.to_best_peer,
        "to_floor": row.to_floor,
        "status": row.status.name(),
        "note": row.note,
    });
    if let Some((name, number)) = row.case.count() {
        object[name] = json!(number);
    }
    if row.case.kind == Kind::Pingpong {
        let percentiles = row.percentiles();
        for (at, (_, _, name)) in PERCENTILES.iter().enumerate() {
            object[*name] = json!(percentiles.map(|percentiles| percentiles[at]));
        }
    }
    if row.case.kind == Kind::OverlapColl {
        object["wire_us"] = json!(row.case.wire_us);
    }
    object
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(name: &str) -> Subject {
        name.parse().expect("well-formed")
    }

    /// Makes rows of one case from subjects with their values.
    fn rows(kind: Kind, unit: &str, all: &[(Subject, &[f64])]) -> Vec<Row> {
        let subjects: Vec<Subject> = all.iter().map(|(subject, _)| subject.clone()).collect();
        let mut samples: BTreeMap<(usize, usize), Samples> = BTreeMap::new();
        for (index, (_, values)) in all.iter().enumerate() {
            let gathered = samples.entry((0, index)).or_default();
            for value in *values {
                gathered.add(Outcome::Measured(vec![Measure::new("latency", *value, unit)]));
            }
            if values.is_empty() {
                gathered.add(Outcome::NotOffered("no such thing".to_owned()));
            }
        }
        make(&[Case::plain(kind)], &subjects, &samples)
    }

    #[test]
    fn a_ratio_above_one_is_better_for_every_unit() {
        let all: [(Subject, &[f64]); 4] = [
            (subject("weft"), &[300.0, 200.0, 200.0]),
            (subject("shm"), &[400.0]),
            (subject("tcp"), &[8000.0]),
            (subject("sm2"), &[]),
        ];
        let times = rows(Kind::Pingpong, "ns", &all);
        assert_eq!(times[0].to_best_peer, Some(2.0));
        assert_eq!(times[1].to_best_peer, Some(0.5));
        assert_eq!((times[3].to_best_peer, times[3].status), (None, Status::NotOffered));
        let rates = rows(Kind::Rate, "Mop/s", &all);
        assert_eq!(rates[0].to_best_peer, Some(200.0 / 8000.0));
        assert_eq!(rates[2].to_best_peer, Some(20.0));
    }

    #[test]
    fn a_provider_is_no_peer_of_itself() {
        let all: [(Subject, &[f64]); 2] = [(subject("weft"), &[200.0]), (subject("weft:FI_WEFT_SHM=0"), &[9000.0])];
        assert!(rows(Kind::Pingpong, "ns", &all).iter().all(|row| row.to_best_peer.is_none()));
    }

    #[test]
    fn a_floor_adds_up_its_parts() {
        let all: [(Subject, &[f64]); 3] = [
            (subject("weft"), &[200.0]),
            (Subject::floor(Floor::CacheLine), &[90.0]),
            (Subject::floor(Floor::Memcpy), &[10.0]),
        ];
        let rows = rows(Kind::Pingpong, "ns", &all);
        assert_eq!(rows[0].to_floor, Some(0.5));
        assert_eq!(rows[1].to_floor, None);
    }

    #[test]
    fn the_floor_of_a_share_is_the_whole() {
        let all: [(Subject, &[f64]); 1] = [(subject("weft"), &[90.0])];
        assert_eq!(rows(Kind::Overlap, "%", &all)[0].to_floor, Some(0.9));
    }

    #[test]
    fn percentiles_are_those_of_all_rounds() {
        let mut samples = Samples::default();
        for times in [vec![(100, 980)], vec![(200, 15), (5000, 5)]] {
            samples.add(Outcome::Measured(vec![Measure { times, ..Measure::new("latency", 100.0, "ns") }]));
        }
        let rows = make(&[Case::plain(Kind::Pingpong)], &[subject("weft")], &BTreeMap::from([((0, 0), samples)]));
        let [half, most, nearly_all] = rows[0].percentiles().expect("times");
        // Values have three digits.
        assert_eq!((half, most), (100, 200));
        assert!((5000..5005).contains(&nearly_all), "{nearly_all}");
        let parsed: Value = serde_json::from_str(&json(&rows, &Host::for_tests(), None)).expect("JSON");
        assert_eq!((&parsed[0]["p50"], &parsed[0]["p99"]), (&json!(100), &json!(200)));
    }

    #[test]
    fn json_has_one_object_per_row() {
        let all: [(Subject, &[f64]); 2] = [(subject("weft"), &[1.0, 3.0]), (subject("shm"), &[])];
        let parsed: Value =
            serde_json::from_str(&json(&rows(Kind::Pingpong, "ns", &all), &Host::for_tests(), None)).expect("JSON");
        let weft = &parsed[0];
        for key in ["kind", "op", "size", "threads", "provider", "median", "unit", "rounds"] {
            assert!(!weft[key].is_null(), "{key}");
        }
        assert_eq!((&weft["median"], &weft["rounds"], &weft["kind"]), (&json!(2.0), &json!(2), &json!("pingpong")));
        assert_eq!(weft["libfabric"], json!("2.5"));
        assert_eq!((&parsed[1]["status"], &parsed[1]["median"]), (&json!("not offered"), &Value::Null));
    }
}
