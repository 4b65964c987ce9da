//! Prints a value as text for people or as JSON for programs.

use std::io::{self, Write};
use std::ops::Range;

use comfy_table::{ContentArrangement, Table, TableComponent, presets};
use serde::Serialize;

/// A value that can be shown to people.
pub(crate) trait Text {
    /// The text, ending in a newline.
    fn text(&self) -> String;
}

/// Number of columns above which a table is wider.
const MANY_COLUMNS: usize = 10;
/// Number of columns above which a table is a little wider.
const SOME_COLUMNS: usize = 6;

/// Prints a value in either form.
pub(crate) fn print(out: &mut impl Write, value: &(impl Text + Serialize), json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, value)?;
        return writeln!(out);
    }
    out.write_all(value.text().as_bytes())
}

/// Formats a number with three digits and an SI prefix: `3.40 M`.
pub(crate) fn number(value: f64) -> String {
    quantity(value, "")
}

/// Formats a number of bytes with three digits and an SI prefix: `1.20 GB`.
pub(crate) fn bytes(value: f64) -> String {
    quantity(value, "B")
}

/// Formats a counter as [`number`] does. Counters stay far below 2⁵³.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn count(value: u64) -> String {
    number(value as f64)
}

/// Formats a counter of bytes as [`bytes`] does.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn byte_count(value: u64) -> String {
    bytes(value as f64)
}

fn quantity(value: f64, unit: &str) -> String {
    let mut value = value;
    for prefix in ["", "k", "M", "G", "T", "P"] {
        if value < 999.5 {
            let whole = prefix.is_empty() && (unit == "B" || value.fract() == 0.0 || value >= 9.95);
            let digits = if whole || value >= 99.5 { 0 } else { usize::from(value < 9.95) + 1 };
            return format!("{value:.digits$} {prefix}{unit}").trim_end().to_owned();
        }
        value /= 1000.0;
    }
    format!("{value:.0} E{unit}")
}

/// Formats a table with heads, as wide as the terminal. If the output is no terminal, it is 120 columns wide, and up to
/// 170 with many columns.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    table_of(&heads, rows)
}

/// Formats a table as [`table`] does, with a number of columns that is known at run time only.
pub(crate) fn table_of(heads: &[&str], rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>) -> String {
    let mut table = empty_table(heads.len());
    table.set_header(heads.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    format!("{table}\n")
}

/// Formats a table that has one line for each row in any width. Columns that do not fit follow in further tables, which
/// repeat the first column.
pub(crate) fn split_table(heads: &[&str], rows: &[Vec<String>]) -> String {
    let width = empty_table(heads.len()).width().map_or(usize::MAX, usize::from);
    let parts = split(heads, rows, width);
    let tables = parts.into_iter().map(|part| {
        let columns = || std::iter::once(0).chain(part.clone());
        let heads: Vec<&str> = columns().map(|column| heads[column]).collect();
        table_of(&heads, rows.iter().map(|row| columns().map(|column| row[column].clone()).collect::<Vec<_>>()))
    });
    tables.collect::<Vec<_>>().join("\n")
}

/// The columns besides the first one for each table of [`split_table`].
fn split(heads: &[&str], rows: &[Vec<String>], width: usize) -> Vec<Range<usize>> {
    // A blank stands on each side of a text.
    let column = |at: usize| {
        let texts = rows.iter().map(|row| row[at].as_str()).chain([heads[at]]);
        texts.map(console::measure_text_width).max().unwrap_or(0) + 2
    };
    let mut parts: Vec<Range<usize>> = Vec::new();
    let mut used = usize::MAX;
    for at in 1..heads.len() {
        let wanted = column(at);
        match parts.last_mut().filter(|_| used.saturating_add(wanted) <= width) {
            Some(part) => {
                part.end = at + 1;
                used += wanted;
            }
            None => {
                parts.push(at..at + 1);
                used = column(0) + wanted;
            }
        }
    }
    parts
}

/// A table without rows, in the style and the width of all tables.
fn empty_table(columns: usize) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    for line in [
        TableComponent::HorizontalLines,
        TableComponent::MiddleIntersections,
        TableComponent::TopBorder,
        TableComponent::TopBorderIntersections,
        TableComponent::BottomBorder,
        TableComponent::BottomBorderIntersections,
    ] {
        table.remove_style(line);
    }
    if table.width().is_none() {
        let width = match columns {
            many if many > MANY_COLUMNS => 170,
            some if some > SOME_COLUMNS => 150,
            _ => 120,
        };
        table.set_width(width);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_shown_with_three_digits() {
        let shown = [0.0, 1.0, 1.5, 15.2, 999.0, 999.6, 12_340.0, 9_999_999.0, 3.2e9, 5e15].map(number);
        assert_eq!(shown, ["0", "1", "1.50", "15", "999", "1.00 k", "12.3 k", "10.0 M", "3.20 G", "5.00 P"]);
        assert_eq!([7, 1200, 1_234_567_890].map(byte_count), ["7 B", "1.20 kB", "1.23 GB"]);
        assert_eq!(count(u64::MAX), "18 E");
    }

    #[test]
    fn columns_that_do_not_fit_follow_in_further_tables() {
        let heads = ["peer", "messages", "bytes", "stalls"];
        let rows = [["rank 1, node7", "12.3 k / 4", "1.00 MB / 0 B", "7"].map(str::to_owned).to_vec()];
        assert_eq!(split(&heads, &rows, 80), std::slice::from_ref(&(1..4)));
        assert_eq!(split(&heads, &rows, 42), [1..3, 3..4]);
        assert_eq!(split(&heads, &rows, 30), [1..2, 2..3, 3..4]);
        assert_eq!(split(&heads, &rows, 1), [1..2, 2..3, 3..4]);
        let text = split_table(&heads, &rows);
        assert!(text.lines().all(|line| line.chars().count() <= 150), "{text}");
    }
}
