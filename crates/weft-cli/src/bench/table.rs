//! Prints the results as a table for people.

use super::job::{COUNT, PER_OPERATION};
use super::options::{Kind, Options};
use super::remote::Control;
use super::rows::{PERCENTILES, Row, less_is_better};
use super::{Prepared, cores, stats};
use crate::render;

/// Formats heading, table, notes and caption.
pub(crate) fn text(options: &Options, prepared: &Prepared, rows: &[Row]) -> String {
    let notes = notes(rows);
    let listed: Vec<String> = notes.iter().enumerate().map(|(at, note)| format!("[{}] {note}\n", at + 1)).collect();
    let columns = options.kind.columns();
    let table = if columns.is_empty() { one_by_one(rows, &notes) } else { side_by_side(rows, columns, &notes) };
    format!("{}\n{table}\n{}{}", heading(options, prepared), listed.concat(), caption(rows))
}

/// A table with a line for each quantity.
fn one_by_one(rows: &[Row], notes: &[&str]) -> String {
    let mut last = String::new();
    let with_times = rows.iter().any(|row| row.times.is_some());
    let lines = rows.iter().map(|row| {
        // The title of consecutive rows is printed once.
        let title = title(rows, row);
        let what = if title == last { String::new() } else { title.clone() };
        last = title;
        line(row, what, notes, with_times)
    });
    let shares = PERCENTILES.iter().filter(|_| with_times).map(|(_, name, _)| *name);
    let heads = ["what", "provider", "median", "min … max"].into_iter().chain(shares);
    render::table_of(&heads.chain(["to best peer", "to floor"]).collect::<Vec<_>>(), lines)
}

/// A table with a line for each case and subject, and the quantities as columns. The ratio is that of the first.
fn side_by_side(rows: &[Row], columns: &[&str], notes: &[&str]) -> String {
    let same = |one: &&Row, other: &Row| one.case == other.case && one.subject == other.subject;
    let mut lines: Vec<Vec<String>> = Vec::new();
    let mut last = String::new();
    for (index, row) in rows.iter().enumerate() {
        if rows[..index].iter().any(|before| same(&before, row)) {
            continue;
        }
        let title = row.case.title();
        let what = if title == last { String::new() } else { title.clone() };
        last = title;
        let mine: Vec<&Row> = rows.iter().filter(|other| same(other, row)).collect();
        let mut line = vec![what, row.subject.name.clone()];
        for (at, column) in columns.iter().enumerate() {
            let found = mine.iter().find(|row| row.metric == *column);
            line.push(match found.and_then(|row| Some((row, row.median?))) {
                Some((row, value)) => value_text(value, &row.unit) + &mark(row, if at == 0 { notes } else { &[] }),
                None if at == 0 => row.status.name().to_owned() + &mark(row, notes),
                None => String::new(),
            });
        }
        line.push(ratio_text(mine[0].to_best_peer));
        lines.push(line);
    }
    let heads: Vec<&str> = ["what", "provider"].iter().chain(columns).chain(&["to best peer"]).copied().collect();
    render::table_of(&heads, lines)
}

/// The reference to a row's note.
fn mark(row: &Row, notes: &[&str]) -> String {
    notes.iter().position(|note| *note == row.note).map(|at| format!(" [{}]", at + 1)).unwrap_or_default()
}

fn ratio_text(ratio: Option<f64>) -> String {
    ratio.map(|ratio| format!("{ratio:.2}")).unwrap_or_default()
}

/// The notes of all rows, each once.
fn notes(rows: &[Row]) -> Vec<&str> {
    let mut notes: Vec<&str> = Vec::new();
    for row in rows.iter().filter(|row| !row.note.is_empty()) {
        if !notes.contains(&row.note.as_str()) {
            notes.push(&row.note);
        }
    }
    notes
}

/// The title of a row: its case, with the metric if there are several.
fn title(rows: &[Row], row: &Row) -> String {
    let mut metrics: Vec<&str> = Vec::new();
    for other in rows.iter().filter(|other| other.case == row.case && !other.metric.is_empty()) {
        if !metrics.contains(&other.metric.as_str()) {
            metrics.push(&other.metric);
        }
    }
    match metrics.as_slice() {
        [] | [_] => row.case.title(),
        [first, ..] => {
            let metric = if row.metric.is_empty() { first } else { row.metric.as_str() };
            format!("{}: {metric}", row.case.title())
        }
    }
}

fn heading(options: &Options, Prepared { host, cores, control, .. }: &Prepared) -> String {
    let what = match options.kind {
        Kind::Pingpong => {
            "time of one operation: half of a round trip (tagged, msg, write), or all of it (read, fetch-add)"
        }
        Kind::Bandwidth => "bandwidth in one direction, with a window of pending operations",
        Kind::Rate => "operations per second, with a window of pending operations per thread",
        Kind::Overlap => "cost of a transfer to the core that computes meanwhile",
        Kind::Peers => "time of a message, half of a round trip, beside connected idle peers",
        Kind::Match => "time per message that is matched behind others in a queue",
        Kind::Oversubscribe => "time of a collective operation",
        Kind::Counter => "fetch-and-adds per second of processes that add to one number, one addition after the other",
        Kind::Memory => "memory and time per peer or address",
        Kind::OverlapColl => {
            "overlap of collectives with computing. raw: time without work; at N %: time with work of N % of raw, as a \
             multiple of raw;\nbound: 1 - CPU / raw, which no availability can exceed on a core that also moves the data; \
             CPU, agent, system: per operation beside the work"
        }
        Kind::Collective => "time and rate of collective operations (fi_collective), every result checked",
    };
    let ours = host.provider_dir.as_ref().map(|dir| format!("\nweft from {}", dir.display())).unwrap_or_default();
    let between = control.as_ref().map(|Control { name, welcome, .. }| {
        let (major, minor) = welcome.libfabric;
        format!("\nto {name} ({}, libfabric {major}.{minor} there)", welcome.host)
    });
    let between = between.unwrap_or_default();
    format!(
        "{what}\nlibfabric {}.{} ({}), cores {}, {} rounds of {} ms{ours}{between}\n",
        host.version.0,
        host.version.1,
        host.library.display(),
        cores::list(cores),
        options.rounds,
        options.sample_ms
    )
}

fn line(row: &Row, what: String, notes: &[&str], with_times: bool) -> Vec<String> {
    let median = match row.median {
        Some(median) => value_text(median, &row.unit),
        None => row.status.name().to_owned(),
    };
    let spread = stats::spread(&row.values).filter(|_| row.values.len() > 1);
    let spread =
        spread.map(|(least, most)| format!("{} … {}", value_text(least, &row.unit), value_text(most, &row.unit)));
    let mut line = vec![what, row.subject.name.clone(), median + &mark(row, notes), spread.unwrap_or_default()];
    if with_times {
        let percentiles = row.percentiles();
        let text = |at: usize| percentiles.map(|times| value_text(times[at] as f64, "ns")).unwrap_or_default();
        line.extend((0..PERCENTILES.len()).map(text));
    }
    line.extend([row.to_best_peer, row.to_floor].map(ratio_text));
    line
}

fn caption(rows: &[Row]) -> String {
    let times = rows.iter().any(|row| less_is_better(&row.unit));
    let formula = if times { "the other's value / this one's" } else { "this value / the other's" };
    let percentiles = if rows.iter().any(|row| row.times.is_some()) {
        "p50, p99, p99.9: the time within which this share of single operations ended, in all rounds. Each includes one \
         reading of the clock.\n"
    } else {
        ""
    };
    format!(
        "{percentiles}to best peer: {formula}, where the other is the best other provider. Above 1, this row is the better one.\n\
         to floor: likewise. 1 is the machine's own time without any library (see docs/benchmarking.md).\n"
    )
}

/// Formats a value with its unit, in three digits.
pub(crate) fn value_text(value: f64, unit: &str) -> String {
    let scaled = |steps: &[(f64, &str)]| {
        let &(divisor, unit) = steps.iter().find(|step| value >= step.0).or(steps.last()).unwrap_or(&(1.0, ""));
        digits(value / divisor, unit)
    };
    match unit {
        "ns" => scaled(&[(1e9, "s"), (1e6, "ms"), (1e3, "µs"), (1.0, "ns")]),
        "MB/s" => scaled(&[(1e3, "GB/s"), (1.0, "MB/s")]),
        "×" | PER_OPERATION => format!("{value:.2}"),
        "Mop/s" => scaled(&[(1.0, "Mop/s"), (1e-3, "kop/s")]),
        COUNT => format!("{value:.0} {unit}"),
        "B" => scaled(&[(1048576.0, "MiB"), (1024.0, "KiB"), (1.0, "B")]),
        other => digits(value, other),
    }
}

fn digits(value: f64, unit: &str) -> String {
    match value.abs() {
        large if large >= 99.95 => format!("{value:.0} {unit}"),
        middle if middle >= 9.995 => format!("{value:.1} {unit}"),
        _ => format!("{value:.2} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_three_digits_and_a_unit() {
        for (value, unit, text) in [
            (834.2, "ns", "834 ns"),
            (1234.0, "ns", "1.23 µs"),
            (0.4, "ns", "0.40 ns"),
            (25_600_000.0, "ns", "25.6 ms"),
            (12_345.0, "MB/s", "12.3 GB/s"),
            (0.25, "Mop/s", "250 kop/s"),
            (2048.0, "B", "2.00 KiB"),
            (97.0, "%", "97.0 %"),
            (0.0, COUNT, "0 times"),
        ] {
            assert_eq!(value_text(value, unit), text);
        }
    }
}
