//! The Unimem paper by whole engines: copies, latency and bandwidth, and its future work.
//!
//! Place in the data flow: `weft sim paper` prints these figures after those of weft-scale, with which they compare.

use weft_scale::figure::{Comparison, Effort, Figure, Label, Line, figure as over_costs};
use weft_scale::profile::Profile;

use super::{Pair, Switches};
use crate::card::{Moved, Movement, Place};

const PAPER: &str = "Kim et al., 2018";
const MODEL: &str = "weft's engine over a simulated card: announcements in mailbox messages of 192 bits, DMA between \
                     special memory, bounce buffers for other memory, and registration before the first DMA to a block. \
                     A message layer receives into buffers of its own. The costs are those of the profile.";
/// The longest message.
const LONGEST: usize = 4 << 20;
/// The length of the message whose movements are shown.
const SHOWN: usize = 1000;

const PRESENT: [(&str, Switches); 3] = [
    ("4 copies, no registration cache", Switches::FIRST),
    ("4 copies", Switches::CACHED),
    ("3 copies", Switches::MEASURED),
];
const PLANNED: [(&str, Switches); 4] = [
    ("3 copies", Switches::MEASURED),
    ("eager", Switches::EAGER),
    ("direct DMA", Switches::DIRECT),
    ("native RMA", Switches::RMA),
];

fn word(place: Place) -> &'static str {
    match place {
        Place::Ordinary => "ordinary memory",
        Place::Bounce => "a bounce buffer",
        Place::Special => "special memory",
    }
}

/// An act in words.
fn sentence(moved: &Moved) -> String {
    let side = if moved.ep == 0 { "sender" } else { "receiver" };
    match moved.what {
        Movement::Register => format!("{side}: registers a block of the receiver"),
        Movement::Copy(from, to) => format!("{side}: copies from {} to {}", word(from), word(to)),
        Movement::Dma(from, to) => format!("{side}: DMA from {} to {}", word(from), word(to)),
    }
}

/// Movements that are no registrations.
fn copies(moved: &[Moved]) -> usize {
    moved.iter().filter(|moved| moved.what != Movement::Register).count()
}

fn figure(name: &'static str, title: &'static str) -> Figure {
    Figure {
        profile: "unimem",
        name,
        title,
        source: PAPER,
        model: MODEL,
        x: "bytes",
        y: "µs",
        lines: Vec::new(),
        text: Vec::new(),
        compared: Vec::new(),
    }
}

fn lines(profile: &Profile, versions: &[(&str, Switches)], sizes: &[u32]) -> Vec<Line> {
    let line = |&(name, switches): &(&str, Switches)| {
        let longest = sizes.iter().max().copied().unwrap_or(0);
        let mut pair = Pair::new(&profile.costs, switches, longest as usize);
        let sizes = sizes.iter().filter(|&&bytes| switches.shows(bytes as usize));
        Line::new(name, sizes.map(|&bytes| (f64::from(bytes), pair.one_way_us(bytes as usize))).collect())
    };
    versions.iter().map(line).collect()
}

/// The greatest difference of our lines from those of the same names over costs, in percent.
fn apart(profile: &Profile, name: &str, effort: Effort, ours: &[Line]) -> f64 {
    let theirs = over_costs(profile, name, effort).map_or_else(Vec::new, |figure| figure.lines);
    let pairs =
        ours.iter().flat_map(|line| theirs.iter().filter(|other| other.name == line.name).map(move |o| (line, o)));
    let differences = pairs.flat_map(|(line, other)| {
        line.points.iter().map(|&(x, y)| (y / other.at(x) - 1.0) * 100.0).filter(|percent| percent.is_finite())
    });
    differences.fold(0.0, |most: f64, percent| most.max(percent.abs()))
}

/// Copies, registrations, latency and bandwidth of the versions that the paper has.
fn present(profile: &Profile, effort: Effort) -> Figure {
    let sizes: &[u32] = if effort == Effort::Short { &[0] } else { &[0, 64, 256, 1024, 4096] };
    let lines = lines(profile, &PRESENT, sizes);
    let moved = PRESENT.map(|(_, switches)| {
        let mut pair = Pair::new(&profile.costs, switches, SHOWN);
        pair.movements(SHOWN)
    });
    let mut text = Vec::new();
    for ((name, _), moved) in PRESENT.iter().zip(&moved) {
        text.push(format!("{name}:"));
        text.extend(moved.iter().map(|moved| format!("  {}", sentence(moved))));
    }
    let peak = Pair::new(&profile.costs, Switches::MEASURED, LONGEST).mb_per_s(LONGEST);
    let at = |version: usize| lines[version].at(0.0);
    let counts = [4, 4, 3] == moved.each_ref().map(|moved| copies(moved));
    let registers = [1, 0, 0] == moved.each_ref().map(|moved| moved.len() - copies(moved));
    let difference = apart(profile, "latency", effort, &lines);
    Figure {
        compared: vec![
            Comparison::number("whole engines: 0 bytes, 4 copies", "µs", 23.41, 10.0, at(1), Label::Fit),
            Comparison::number("whole engines: 0 bytes, 3 copies", "µs", 14.47, 10.0, at(2), Label::Fit),
            Comparison::number("whole engines: peak, 3 copies", "MB/s", 360.59, 10.0, peak, Label::Fit),
            Comparison::range("saved by the registration cache", "µs", (10.0, 11.0), at(0) - at(1), Label::Exact),
            Comparison::statement("4 copies, then 3, in the trace", counts, Label::Exact),
            Comparison::statement("no repeated registration in the trace", registers, Label::Exact),
            Comparison::range("engines and costs alone differ by", "%", (0.0, 5.0), difference, Label::Exact),
        ],
        lines,
        text,
        ..figure("copies", "Whole engines: copies and latency")
    }
}

/// The paper's future work.
fn planned(profile: &Profile, effort: Effort) -> Figure {
    let sizes: &[u32] = if effort == Effort::Short { &[0, 64] } else { &[0, 64, 1 << 10, 1 << 14, 1 << 18] };
    let lines = lines(profile, &PLANNED, sizes);
    let small = Pair::new(&profile.costs, Switches::MAILBOX, 8).one_way_us(8);
    let device = small - super::us((profile.costs.far.send + profile.costs.far.receive) / 1000);
    let bandwidth = |switches| Pair::new(&profile.costs, switches, LONGEST).mb_per_s(LONGEST);
    let (direct, rma) = (bandwidth(Switches::DIRECT), bandwidth(Switches::RMA));
    let write = Pair::new(&profile.costs, Switches::RMA, LONGEST).write_us(64 << 10);
    let at = |version: usize, bytes: f64| lines[version].at(bytes);
    let difference = apart(profile, "future", effort, &lines);
    Figure {
        text: vec![
            format!("8 bytes inside one mailbox message: {small:.2} µs, of which {device:.2} µs are the device's"),
            format!("eager into posted buffers, 0 bytes: {:.2} µs", at(1, 0.0)),
            "(The engine copies an eager message out of the card's buffer, once more than the costs alone have it.)"
                .to_owned(),
            format!("DMA between user buffers in special memory: {:.2} µs for 64 bytes, {direct:.0} MB/s", at(2, 64.0)),
            format!("native RMA, read by the receiver's card: {:.2} µs for 64 bytes, {rma:.0} MB/s", at(3, 64.0)),
            format!("native RMA, a write of 64 KiB: {write:.1} µs until the writer knows of its end"),
        ],
        compared: vec![
            Comparison::range(
                "the device's part of 8 bytes in the mailbox",
                "µs",
                (0.0, 1.0),
                device,
                Label::Predicted,
            ),
            Comparison::range("DMA between user buffers", "MB/s", (900.0, 1100.0), direct, Label::Predicted),
            Comparison::range("messages by native RMA", "MB/s", (900.0, 1100.0), rma, Label::Predicted),
            Comparison::statement(
                "mailbox, then eager, is faster than 3 copies",
                small < at(1, 0.0) && at(1, 0.0) < at(0, 0.0),
                Label::Predicted,
            ),
            Comparison::range("engines and costs alone differ by", "%", (0.0, 15.0), difference, Label::Exact),
        ],
        lines,
        ..figure("engines-future", "Whole engines: the future work")
    }
}

/// The figures of the paper by whole engines, with the costs of this profile.
#[must_use]
pub fn figures(profile: &Profile, effort: Effort) -> Vec<Figure> {
    vec![present(profile, effort), planned(profile, effort)]
}
