//! The result as a drawing: a panel for each operation and metric, a line for each subject.

use plotters::prelude::*;

use super::options::{Options, size_text};
use super::rows::Row;
use super::table::value_text;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 420;
/// Told apart by people who see few colours.
const COLOURS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// What runs along the bottom of a panel.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Size,
    Threads,
    Count,
}

impl Axis {
    /// What varies among the rows.
    fn of(rows: &[&Row]) -> Self {
        let varies = |key: fn(&Row) -> usize| rows.iter().any(|row| key(row) != key(rows[0]));
        match () {
            () if varies(|row| row.case.size) => Self::Size,
            () if varies(|row| row.case.threads) => Self::Threads,
            () if varies(|row| row.case.number) => Self::Count,
            () => Self::Size,
        }
    }

    fn value(self, row: &Row) -> usize {
        match self {
            Self::Size => row.case.size,
            Self::Threads => row.case.threads,
            Self::Count => row.case.number,
        }
    }

    fn title(self, row: &Row) -> &'static str {
        match self {
            Self::Size => "message size in bytes",
            Self::Threads => "threads",
            Self::Count => row.case.count().map_or("", |(name, _)| name),
        }
    }
}

/// The drawing.
pub(crate) fn svg(options: &Options, rows: &[Row]) -> String {
    let panels = panels(rows);
    let mut text = String::new();
    if draw(&mut text, &format!("{:?}", options.kind).to_lowercase(), &panels).is_err() {
        // Drawing into a string fails only for charts without extent; an empty drawing says as much.
        text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1\" height=\"1\"></svg>\n".to_owned();
    }
    text
}

/// Rows with values, by operation and metric.
fn panels(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut panels: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.median.is_some_and(|median| median > 0.0)) {
        let title = format!("{} {}", row.case.op_name(), row.metric);
        match panels.iter_mut().find(|panel| panel.0 == title) {
            Some(panel) => panel.1.push(row),
            None => panels.push((title, vec![row])),
        }
    }
    panels
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(text: &mut String, kind: &str, panels: &[(String, Vec<&Row>)]) -> Drawn {
    let count = panels.len().max(1);
    let height = PANEL_HEIGHT * u32::try_from(count)?;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    for ((title, rows), area) in panels.iter().zip(root.split_evenly((count, 1))) {
        panel(&area, &format!("{kind} {title}"), rows)?;
    }
    root.present()?;
    Ok(())
}

fn panel(area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>, title: &str, rows: &[&Row]) -> Drawn {
    let axis = Axis::of(rows);
    // A logarithmic axis has no 0; what counts from 0 begins at a half.
    let x = |row: &Row| (axis.value(row) as f64).max(0.5);
    let xs = range(rows.iter().map(|row| x(row)));
    let ys = range(rows.iter().flat_map(|row| row.values.iter().copied()));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(90)
        .right_y_label_area_size(8)
        .build_cartesian_2d((xs.0..xs.1).log_scale(), (ys.0..ys.1).log_scale())?;
    let unit = rows[0].unit.clone();
    #[allow(clippy::cast_possible_truncation)] // Sizes are far below 2^53.
    let x_text = |x: &f64| match axis {
        Axis::Size => size_text(x.round() as usize),
        _ => format!("{}", if *x < 1.0 { 0.0 } else { x.round() }),
    };
    chart
        .configure_mesh()
        .x_desc(axis.title(rows[0]))
        .x_label_formatter(&x_text)
        .y_label_formatter(&|y| value_text(*y, &unit))
        .light_line_style(RGBColor(240, 240, 240))
        .draw()?;
    let mut names: Vec<&str> = rows.iter().map(|row| row.subject.name.as_str()).collect();
    names.dedup();
    let mut seen = Vec::new();
    names.retain(|name| {
        !seen.contains(name) && {
            seen.push(name);
            true
        }
    });
    for (index, name) in names.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let mine = || rows.iter().filter(|row| row.subject.name == *name);
        let floor = mine().any(|row| row.subject.floor.is_some());
        let style = colour.stroke_width(if floor { 1 } else { 2 });
        let mut points: Vec<(f64, f64)> = mine().filter_map(|row| Some((x(row), row.median?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        chart
            .draw_series(LineSeries::new(points.clone(), style).point_size(if floor { 2 } else { 4 }))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], style));
    }
    chart
        .configure_series_labels()
        .background_style(WHITE.mix(0.8))
        .border_style(RGBColor(200, 200, 200))
        .position(SeriesLabelPosition::UpperLeft)
        .draw()?;
    Ok(())
}

/// From a little below the least to a little above the greatest.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let all: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let (least, most) = super::stats::spread(&all).unwrap_or((1.0, 1.0));
    (least / 1.3, most * 1.3)
}
