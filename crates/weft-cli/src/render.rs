//! Prints a value as text for people or as JSON for programs.

use std::io::{self, Write};

use comfy_table::{ContentArrangement, Table, TableComponent, presets};
use serde::Serialize;

/// A value that can be shown to people.
pub(crate) trait Text {
    /// The text, ending in a newline.
    fn text(&self) -> String;
}

/// Prints a value in either form.
pub(crate) fn print(out: &mut impl Write, value: &(impl Text + Serialize), json: bool) -> io::Result<()> {
    if json {
        serde_json::to_writer_pretty(&mut *out, value)?;
        return writeln!(out);
    }
    out.write_all(value.text().as_bytes())
}

/// Formats a table with heads, as wide as the terminal, or 120 columns if the output is no terminal.
pub(crate) fn table<const N: usize>(heads: [&str; N], rows: impl IntoIterator<Item = [String; N]>) -> String {
    table_of(&heads, rows)
}

/// Formats a table as [`table`] does, with a number of columns that is known at run time only.
pub(crate) fn table_of(heads: &[&str], rows: impl IntoIterator<Item = impl IntoIterator<Item = String>>) -> String {
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
        table.set_width(120);
    }
    table.set_header(heads.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    format!("{table}\n")
}
