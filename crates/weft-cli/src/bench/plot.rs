//! Draws the results: a panel for each operation and metric, a line for each subject, and a panel for the times of
//! single operations. The same panels become SVG or PNG.

use std::io;
use std::path::Path;

use hdrhistogram::Histogram;
use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::{FontStyle, register_font};

use super::options::{Kind, Options, size_text, size_title};
use super::rows::{Row, less_is_better};
use super::table::value_text;
use crate::sim::draw::COLOURS;

const WIDTH: u32 = 1000;
const PANEL_HEIGHT: u32 = 420;
/// Most pixels of a picture's height, which bounds its memory. A longer one is refused.
const HEIGHT_MOST: u32 = 30_000;
/// Height of a name in the legend.
const LEGEND_STEP: i32 = 20;
/// Length of the sample of a line in the legend.
const SAMPLE: i32 = 26;
/// Bins of times within a factor of ten.
const BINS_PER_DECADE: f64 = 20.0;
/// The smallest share of operations that is drawn, in percent.
const LEAST_SHARE: f64 = 1e-3;
/// Most labels of an axis, so that they do not overlap.
const LABELS: usize = 10;
/// The name under which the font is known to the drawing library.
const FONT: &str = "sans-serif";
/// The colour of floors, which their dashes distinguish.
const GREY: RGBColor = RGBColor(120, 120, 120);
/// Dash and gap of floors' lines.
const DASHES: &[(i32, i32)] = &[(2, 3), (7, 3), (12, 5), (3, 8)];
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

/// Checks that the ending of a file's name is that of a supported format.
pub(crate) fn check_format(file: &Path) -> Result<(), String> {
    match extension(file).as_str() {
        "svg" | "png" => Ok(()),
        _ => Err(format!("{}: --plot takes a name that ends in .svg or .png", file.display())),
    }
}

fn extension(file: &Path) -> String {
    file.extension().unwrap_or_default().to_string_lossy().to_ascii_lowercase()
}

/// Draws the rows into a file.
pub(crate) fn write(file: &Path, options: &Options, rows: &[Row]) -> io::Result<()> {
    let panels = panels(rows);
    let count = u32::try_from(panels.len().max(1)).unwrap_or(u32::MAX);
    let height = PANEL_HEIGHT.saturating_mul(count);
    if height > HEIGHT_MOST {
        return Err(io::Error::other(format!(
            "{count} panels are too many; measure fewer sizes or operations at once"
        )));
    }
    // A chart is drawn into memory, which fails only for charts without extent.
    let failed = |error: Box<dyn std::error::Error>| io::Error::other(format!("cannot be drawn: {error}"));
    register_font(FONT, FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| io::Error::other("the font cannot be used"))?;
    let kind = format!("{:?}", options.kind).to_lowercase();
    if extension(file) == "png" {
        let mut pixels = vec![0; WIDTH as usize * height as usize * 3];
        let root = BitMapBackend::with_buffer(&mut pixels, (WIDTH, height)).into_drawing_area();
        draw(&root, &kind, &panels).map_err(failed)?;
        drop(root);
        return write_png(file, &pixels, height);
    }
    let mut text = String::new();
    let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
    draw(&root, &kind, &panels).map_err(failed)?;
    drop(root);
    std::fs::write(file, text)
}

fn write_png(file: &Path, pixels: &[u8], height: u32) -> io::Result<()> {
    let mut encoder = png::Encoder::new(io::BufWriter::new(std::fs::File::create(file)?), WIDTH, height);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(pixels)?;
    writer.finish().map_err(Into::into)
}

/// The content of a panel.
#[derive(Clone, Copy, PartialEq)]
enum Content {
    /// Medians over an axis.
    Medians,
    /// The distribution of single operations' times.
    Times,
}

/// A panel: its content, title and rows.
type Panel<'a> = (Content, String, Vec<&'a Row>);

/// Groups the rows with values by operation and metric.
fn panels(rows: &[Row]) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel<'_>> = Vec::new();
    let mut add =
        |content, title: String, row| match panels.iter_mut().find(|panel| (panel.0, &panel.1) == (content, &title)) {
            Some(panel) => panel.2.push(row),
            None => panels.push((content, title, vec![row])),
        };
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
        add(Content::Medians, title, row);
    }
    for row in rows.iter().filter(|row| row.times.is_some()) {
        add(Content::Times, format!("{}: times of single operations", row.case.title()), row);
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

fn draw<D: DrawingBackend>(root: &DrawingArea<D, Shift>, kind: &str, panels: &[Panel<'_>]) -> Drawn
where
    D::ErrorType: 'static,
{
    root.fill(&WHITE)?;
    let names = names(panels.iter().flat_map(|panel| panel.2.iter().copied()));
    for ((content, title, rows), area) in panels.iter().zip(root.split_evenly((panels.len().max(1), 1))) {
        let title = format!("{kind}, {title}");
        match content {
            Content::Medians => medians(&area, &title, rows, &names)?,
            Content::Times => times(&area, &title, rows, &names)?,
        }
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

/// The look of a subject's line.
#[derive(Clone, Copy)]
enum Look {
    Provider(RGBColor),
    /// The line of a floor, with dash and gap.
    Floor(i32, i32),
}

impl Look {
    /// The look of the subject at this place in the list of names.
    fn of(index: usize, row: &Row) -> Self {
        if row.subject.floor.is_some() {
            let (dash, gap) = DASHES[index % DASHES.len()];
            return Self::Floor(dash, gap);
        }
        Self::Provider(COLOURS[index % COLOURS.len()])
    }
}

/// Width of the legend, in which the longest name has room.
fn legend_width(names: &[&str]) -> i32 {
    let letters = names.iter().map(|name| name.chars().count()).max().unwrap_or(0);
    SAMPLE + 34 + 8 * i32::try_from(letters).unwrap_or(0)
}

/// Draws a name and a sample of its line into the legend at the right of a panel.
fn legend<D: DrawingBackend>(area: &DrawingArea<D, Shift>, place: i32, look: Look, name: &str, width: i32) -> Drawn
where
    D::ErrorType: 'static,
{
    let (left, y) = (i32::try_from(WIDTH)? - width + 12, 52 + place * LEGEND_STEP);
    let ends = [(left, y), (left + SAMPLE, y)];
    match look {
        Look::Provider(colour) => area.draw(&PathElement::new(ends, colour.stroke_width(2)))?,
        Look::Floor(dash, gap) => area.draw(&DashedPathElement::new(ends, dash, gap, GREY.stroke_width(1)))?,
    }
    area.draw(&Text::new(name.to_owned(), (left + SAMPLE + 8, y - 7), (FONT, 14)))?;
    Ok(())
}

/// A chart with its title, and room for the axes and for a legend of this width.
fn framed<'a, 'b, D: DrawingBackend>(
    area: &'a DrawingArea<D, Shift>,
    title: &str,
    legend: i32,
) -> ChartBuilder<'a, 'b, D> {
    let mut chart = ChartBuilder::on(area);
    chart.caption(title, (FONT, 20)).margin(12).margin_right(legend).x_label_area_size(48).y_label_area_size(96);
    chart
}

/// Draws the median of each case.
fn medians<D: DrawingBackend>(area: &DrawingArea<D, Shift>, title: &str, rows: &[&Row], names: &[&str]) -> Drawn
where
    D::ErrorType: 'static,
{
    let axis = Axis::of(rows);
    // A logarithmic axis has no 0; it is drawn at one half.
    let x = |row: &Row| (axis.value(row) as f64).max(0.5);
    let xs = range(rows.iter().map(|row| x(row)));
    let ys = range(rows.iter().flat_map(|row| row.values.iter().copied()));
    let width = legend_width(names);
    let mut chart =
        framed(area, title, width).build_cartesian_2d((xs.0..xs.1).log_scale().base(2.0), (ys.0..ys.1).log_scale())?;
    let unit = rows[0].unit.clone();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // Sizes are far below 2^53.
    let x_text = |x: &f64| match axis {
        Axis::Size => size_text(x.round() as usize),
        _ => format!("{}", if *x < 1.0 { 0.0 } else { x.round() }),
    };
    let better = if less_is_better(&unit) { "lower" } else { "higher" };
    chart
        .configure_mesh()
        .x_desc(axis.title(rows[0]))
        .y_desc(format!("{} ({better} is better)", rows[0].metric))
        .x_labels(LABELS)
        .y_labels(LABELS)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 15))
        .x_label_formatter(&x_text)
        .y_label_formatter(&|y| value_text(*y, &unit))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    let mut place = 0;
    for (index, name) in names.iter().enumerate() {
        let mine: Vec<&&Row> = rows.iter().filter(|row| row.subject.name == *name).collect();
        let Some(first) = mine.first() else { continue };
        let look = Look::of(index, first);
        let mut points: Vec<(f64, f64)> = mine.iter().filter_map(|row| Some((x(row), row.median?))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        match look {
            Look::Provider(colour) => {
                chart.draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(4))?;
            }
            Look::Floor(dash, gap) => {
                // A floor of one size is only a point.
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 2, GREY)))?;
                chart.draw_series(DashedLineSeries::new(points, dash, gap, GREY.stroke_width(1)))?;
            }
        }
        legend(area, place, look, name, width)?;
        place += 1;
    }
    Ok(())
}

/// Draws the share of operations in each bin of times, as steps.
fn times<D: DrawingBackend>(area: &DrawingArea<D, Shift>, title: &str, rows: &[&Row], names: &[&str]) -> Drawn
where
    D::ErrorType: 'static,
{
    let binned: Vec<(&Row, Vec<(f64, f64)>)> =
        rows.iter().filter_map(|row| Some((*row, bins(row.times.as_ref()?)))).collect();
    let xs = range(binned.iter().flat_map(|(_, steps)| steps.iter().map(|step| step.0)));
    let width = legend_width(names);
    let mut chart =
        framed(area, title, width).build_cartesian_2d((xs.0..xs.1).log_scale(), (LEAST_SHARE..100.0).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("time of one operation")
        .y_desc(format!("operations in each of {BINS_PER_DECADE} bins per factor of ten"))
        .x_labels(LABELS)
        .y_labels(LABELS)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 15))
        .x_label_formatter(&|x| value_text(*x, "ns"))
        .y_label_formatter(&|y| format!("{y} %"))
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    let mut place = 0;
    for (index, name) in names.iter().enumerate() {
        let Some((row, steps)) = binned.iter().find(|(row, _)| row.subject.name == *name) else { continue };
        if let look @ Look::Provider(colour) = Look::of(index, row) {
            chart.draw_series(LineSeries::new(steps.iter().copied(), colour.stroke_width(2)))?;
            legend(area, place, look, name, width)?;
            place += 1;
        }
    }
    Ok(())
}

/// The corners of the steps that a distribution forms: times, and shares in percent.
fn bins(times: &Histogram<u64>) -> Vec<(f64, f64)> {
    let edge = |bin: f64| 10_f64.powf(bin / BINS_PER_DECADE);
    let bin = |time: u64| (time.max(1) as f64).log10() * BINS_PER_DECADE;
    let mut steps = Vec::new();
    let (mut at, last) = (bin(times.min()).floor(), bin(times.max()).floor());
    steps.push((edge(at), LEAST_SHARE));
    while at <= last {
        let within = times.iter_recorded().map(|step| (step.value_iterated_to(), step.count_at_value()));
        #[allow(clippy::float_cmp)] // Both are whole numbers.
        let count: u64 = within.filter(|(time, _)| bin(*time).floor() == at).map(|(_, count)| count).sum();
        let share = (count as f64 / times.len() as f64 * 100.0).max(LEAST_SHARE);
        steps.extend([(edge(at), share), (edge(at + 1.0), share)]);
        at += 1.0;
    }
    steps.push((edge(at), LEAST_SHARE));
    steps
}

/// The range of an axis, a little larger than that of the values.
fn range(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let all: Vec<f64> = values.filter(|value| *value > 0.0).collect();
    let (least, most) = super::stats::spread(&all).unwrap_or((1.0, 1.0));
    (least / 1.3, most * 1.3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_have_all_operations() {
        let mut times = Histogram::new(3).expect("valid");
        for time in [100_u64, 101, 102, 150, 9000] {
            times.record(time).expect("it grows");
        }
        let steps = bins(&times);
        // Each share has two corners. The two ends are at the bottom.
        let shares: f64 =
            steps[1..steps.len() - 1].iter().step_by(2).map(|step| step.1).filter(|share| *share > 1.0).sum();
        assert!((shares - 100.0).abs() < 1e-6, "{steps:?}");
        assert!(steps[0].0 <= 100.0 && steps[steps.len() - 1].0 >= 9000.0);
    }

    #[test]
    fn the_ending_decides_the_format() {
        assert!(check_format(Path::new("x.PNG")).is_ok() && check_format(Path::new("x.svg")).is_ok());
        assert!(check_format(Path::new("x.pdf")).is_err_and(|error| error.contains(".png")));
        assert!(check_format(Path::new("svg")).is_err());
    }
}
