//! Draws the results: a panel for each operation and metric, a line for each subject.

use plotters::prelude::*;

use super::options::{Kind, Options, size_text, size_title};
use super::rows::Row;
use super::table::value_text;

const WIDTH: u32 = 900;
const PANEL_HEIGHT: u32 = 420;
/// Room for the names of the lines, at the right of a panel.
const LEGEND_WIDTH: i32 = 200;
/// Height of a name in the legend.
const LEGEND_STEP: i32 = 20;
/// The colour of floors, which names and marks distinguish.
const GREY: RGBColor = RGBColor(150, 150, 150);
/// Colours that people with impaired colour vision can distinguish.
const COLOURS: &[RGBColor] = &[
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The horizontal axis of a panel.
#[derive(Clone, Copy, PartialEq)]
enum Axis {
    Size,
    Threads,
    Count,
    /// The work of a collective's overlap, in percent of its time.
    Work,
}

/// The share of work in the name of a quantity "at N %".
fn work_percent(metric: &str) -> Option<usize> {
    metric.strip_prefix("at ")?.strip_suffix(" %")?.parse().ok()
}

impl Axis {
    /// The quantity that varies among the rows.
    fn of(rows: &[&Row]) -> Self {
        let varies = |key: fn(&Row) -> usize| rows.iter().any(|row| key(row) != key(rows[0]));
        match () {
            () if work_percent(&rows[0].metric).is_some() => Self::Work,
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
            Self::Work => work_percent(&row.metric).unwrap_or(0),
        }
    }

    fn title(self, row: &Row) -> &'static str {
        match self {
            Self::Size => "message size in bytes",
            Self::Threads => "threads",
            Self::Work => "work in percent of the raw time",
            Self::Count => row.case.count().map_or("", |(name, _)| name),
        }
    }
}

/// Draws the rows as SVG.
pub(crate) fn svg(options: &Options, rows: &[Row]) -> String {
    let panels = panels(rows);
    let mut text = String::new();
    if draw(&mut text, &format!("{:?}", options.kind).to_lowercase(), &panels).is_err() {
        // Drawing into a string fails only for charts without extent, for which an empty drawing suffices.
        text = "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"1\" height=\"1\"></svg>\n".to_owned();
    }
    text
}

/// Groups the rows with values by operation and metric.
fn panels(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut panels: Vec<(String, Vec<&Row>)> = Vec::new();
    for row in rows.iter().filter(|row| row.median.is_some_and(|median| median > 0.0)) {
        // Sizes and numbers of members vary together, so each size has a panel.
        let title = match row.case.kind {
            Kind::OverlapColl => match overlap_title(row) {
                Some(title) => title,
                None => continue,
            },
            Kind::Collective if !matches!(row.metric.as_str(), "latency" | "rate") => continue,
            Kind::Collective => format!("{} {}: {}", row.case.op_name(), size_title(row.case.size), row.metric),
            _ => format!("{}: {}", row.case.op_name(), row.metric),
        };
        match panels.iter_mut().find(|panel| panel.0 == title) {
            Some(panel) => panel.1.push(row),
            None => panels.push((title, vec![row])),
        }
    }
    panels
}

/// The panel of a row of the overlap of collectives, in the form of the paper's figures: time, both availabilities by
/// the number of members, and the time by the amount of work.
fn overlap_title(row: &Row) -> Option<String> {
    let case = &row.case;
    let operation = format!("{} {}, wire {} µs", row.case.op_name(), size_title(case.size), case.wire_us);
    Some(match row.metric.as_str() {
        "raw" => format!("{operation}: time of start and wait"),
        "method 1" => format!("{operation}: CPU available, work in slices with tests"),
        "method 2" => format!("{operation}: CPU available, work in one piece"),
        metric if work_percent(metric).is_some() => {
            format!("{operation}, {} members: time by work in one piece", case.number)
        }
        _ => return None,
    })
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

fn draw(text: &mut String, kind: &str, panels: &[(String, Vec<&Row>)]) -> Drawn {
    let count = panels.len().max(1);
    let height = PANEL_HEIGHT * u32::try_from(count)?;
    let root = SVGBackend::with_string(text, (WIDTH, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let names = names(panels.iter().flat_map(|panel| panel.1.iter().copied()));
    for ((title, rows), area) in panels.iter().zip(root.split_evenly((count, 1))) {
        panel(&area, &format!("{kind}, {title}"), rows, &names)?;
    }
    root.present()?;
    Ok(())
}

/// Lists each subject once, so that it has the same colour in all panels.
fn names<'a>(rows: impl Iterator<Item = &'a Row>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    for row in rows {
        if !names.contains(&row.subject.name.as_str()) {
            names.push(&row.subject.name);
        }
    }
    names
}

type Area<'a> = DrawingArea<SVGBackend<'a>, plotters::coord::Shift>;

fn panel(area: &Area<'_>, title: &str, rows: &[&Row], names: &[&str]) -> Drawn {
    let axis = Axis::of(rows);
    // A logarithmic axis has no 0; it is drawn at one half.
    let x = |row: &Row| (axis.value(row) as f64).max(0.5);
    let xs = range(rows.iter().map(|row| x(row)));
    let ys = range(rows.iter().flat_map(|row| row.values.iter().copied()));
    let mut chart = ChartBuilder::on(area)
        .caption(title, ("sans-serif", 20))
        .margin(12)
        .margin_right(LEGEND_WIDTH)
        .x_label_area_size(44)
        .y_label_area_size(80)
        .build_cartesian_2d((xs.0..xs.1).log_scale().base(2.0), (ys.0..ys.1).log_scale())?;
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
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    let mut legend_y = 48;
    for (index, name) in names.iter().enumerate() {
        let mine: Vec<&&Row> = rows.iter().filter(|row| row.subject.name == *name).collect();
        let Some(first) = mine.first() else { continue };
        let (colour, width, mark) =
            if first.subject.floor.is_some() { (GREY, 1, 2) } else { (COLOURS[index % COLOURS.len()], 2, 4) };
        let style = colour.stroke_width(width);
        let mut points: Vec<(f64, f64)> = mine.iter().filter_map(|row| Some((x(row), row.median?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let start = points.first().copied();
        chart.draw_series(LineSeries::new(points, style).point_size(mark))?;
        if let (Some(start), true) = (start, first.subject.floor.is_some()) {
            // The name of a floor is drawn at its line, not in the legend.
            let label = name.trim_start_matches("floor ").to_owned();
            chart.draw_series([Text::new(label, start, ("sans-serif", 12).into_font().color(&GREY))])?;
            continue;
        }
        let left = i32::try_from(WIDTH)? - LEGEND_WIDTH + 12;
        area.draw(&PathElement::new([(left, legend_y), (left + 20, legend_y)], style))?;
        area.draw(&Text::new((*name).to_owned(), (left + 26, legend_y - 6), ("sans-serif", 13)))?;
        legend_y += LEGEND_STEP;
    }
    Ok(())
}

/// The range of an axis, a little larger than that of the values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let all: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let (least, most) = super::stats::spread(&all).unwrap_or((1.0, 1.0));
    (least / 1.3, most * 1.3)
}
