//! Draws the lines of a simulation as SVG.
//!
//! Place in the data flow: `scale --svg` draws one result, `paper` each figure.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, ValueFormatter};
use plotters::prelude::*;
use weft_scale::figure::Line;

const SIZE: (u32, u32) = (760, 340);
/// Room for the legend at the right.
const LEGEND: i32 = 210;
/// The name under which the font is known to the drawing library.
const FONT: &str = "sans-serif";
/// The ratio of an axis's ends from which on it is logarithmic.
const WIDE: f64 = 30.0;
/// Colours of lines, which people with impaired colour vision can distinguish.
pub(crate) const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The titles of a drawing.
#[derive(Clone, Copy)]
pub(crate) struct Titles<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) y: &'a str,
}

type Drawn = Result<(), Box<dyn std::error::Error>>;

/// The text of an SVG file. Charts without extent cannot be drawn.
pub(crate) fn svg(titles: Titles<'_>, lines: &[Line]) -> Result<String, String> {
    // Without a font, the drawing library estimates the widths of texts.
    #[cfg(feature = "lab")]
    plotters::style::register_font(FONT, plotters::style::FontStyle::Normal, epaint_default_fonts::UBUNTU_LIGHT)
        .map_err(|_| "the font cannot be used".to_owned())?;
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    draw(&area, titles, lines).map_err(|error| format!("{} cannot be drawn: {error}", titles.title))?;
    drop(area);
    Ok(text)
}

/// The least and the greatest of positive values.
fn ends(values: impl Iterator<Item = f64> + Clone) -> (f64, f64) {
    let positive = values.filter(|value| *value > 0.0);
    let (least, most) = positive.fold((f64::MAX, f64::MIN), |(a, b), value| (a.min(value), b.max(value)));
    if least > most { (1.0, 1.0) } else { (least, most) }
}

fn draw(area: &DrawingArea<SVGBackend<'_>, Shift>, titles: Titles<'_>, lines: &[Line]) -> Drawn {
    area.fill(&WHITE)?;
    let points = || lines.iter().flat_map(|line| line.points.iter().copied());
    let (xs, ys) = (ends(points().map(|point| point.0)), ends(points().map(|point| point.1)));
    // A logarithmic axis has no 0; it is drawn at half of the next value.
    let wide_x = xs.1 / xs.0 > WIDE;
    let wide_y = ys.1 / ys.0 > WIDE && points().all(|point| point.1 > 0.0);
    let log_x = (xs.0 / 2.0..xs.1 * 1.2).log_scale().base(2.0);
    let log_y = (ys.0 / 1.5..ys.1 * 1.5).log_scale();
    let (flat_x, flat_y) = (0.0..xs.1 * 1.05, 0.0..ys.1 * 1.1);
    let least_x = if wide_x { xs.0 / 2.0 } else { 0.0 };
    match (wide_x, wide_y) {
        (true, true) => chart(area, titles, lines, least_x, (log_x, log_y)),
        (true, false) => chart(area, titles, lines, least_x, (log_x, flat_y)),
        (false, true) => chart(area, titles, lines, least_x, (flat_x, log_y)),
        (false, false) => chart(area, titles, lines, least_x, (flat_x, flat_y)),
    }
}

fn chart<X, Y>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    titles: Titles<'_>,
    lines: &[Line],
    least_x: f64,
    axes: (X, Y),
) -> Drawn
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: ValueFormatter<f64> + plotters::coord::ranged1d::Ranged<ValueType = f64>,
    Y::CoordDescType: ValueFormatter<f64> + plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    let mut chart = ChartBuilder::on(area)
        .caption(titles.title, (FONT, 16))
        .margin(8)
        .margin_right(LEGEND)
        .x_label_area_size(38)
        .y_label_area_size(64)
        .build_cartesian_2d(axes.0, axes.1)?;
    chart
        .configure_mesh()
        .x_desc(titles.x)
        .y_desc(titles.y)
        .x_labels(8)
        .y_labels(8)
        .label_style((FONT, 12))
        .axis_desc_style((FONT, 13))
        .x_label_formatter(&label)
        .y_label_formatter(&label)
        .light_line_style(WHITE)
        .bold_line_style(RGBColor(225, 225, 225))
        .draw()?;
    for ((place, line), colour) in (0..).zip(lines).zip(COLOURS.iter().cycle()) {
        let points = line.points.iter().map(|&(x, y)| (x.max(least_x), y));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)).point_size(3))?;
        let (left, y) = (i32::try_from(SIZE.0)? - LEGEND + 10, 44 + place * 18);
        area.draw(&PathElement::new([(left, y), (left + 22, y)], colour.stroke_width(2)))?;
        area.draw(&Text::new(line.name.clone(), (left + 28, y - 6), (FONT, 12)))?;
    }
    area.present()?;
    Ok(())
}

/// A number on an axis: whole, with a prefix above 10,000, and with digits below 10.
fn label(value: &f64) -> String {
    match *value {
        value if value >= 1_048_576.0 && value % 1_048_576.0 == 0.0 => format!("{} Mi", value / 1_048_576.0),
        value if value >= 10_000.0 && value % 1024.0 == 0.0 => format!("{} Ki", value / 1024.0),
        value if value >= 10.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_axes_can_be_drawn() {
        let titles = Titles { title: "time", x: "ranks", y: "µs" };
        for (xs, ys) in [([1.0, 2.0], [3.0, 4.0]), ([0.0, 4096.0], [0.0, 90.0]), ([8.0, 1e6], [0.5, 5e3])] {
            let points = xs.into_iter().zip(ys).collect();
            let text = svg(titles, &[Line { name: "barrier".to_owned(), points }]);
            assert!(text.is_ok_and(|text| text.starts_with("<svg") && text.contains("barrier")));
        }
        assert!(svg(titles, &[]).is_ok());
    }
}
