//! The latency and bandwidth of the Unimem paper, and its future work.
//!
//! Place in the data flow: see [`super`]. The same protocols run over the simulated card with whole engines in
//! weft-sim.

use super::{Comparison, Effort, Figure, Label, Line, axis, end_ps, mb_per_s, us};
use crate::profile::Costs;
use crate::script::Script;

const PAPER: &str = "Kim et al., 2018";
const MODEL: &str = "Each message is announced through the mailbox (RTS, CTS), copied to special memory, moved by DMA, \
                     reported through the mailbox, and copied out. One message is under way at a time.";
/// The message layer's header, which travels with the data.
const HEADER: u64 = 64;

/// A protocol for one message, present or planned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    /// The first version: the data also go through a buffer of the message layer, and the target is registered anew if
    /// there is no cache.
    FourCopies { cache: bool },
    /// With that buffer in special memory.
    ThreeCopies,
    /// Into buffers that the receiver has posted, without RTS and CTS.
    Eager,
    /// Inside one mailbox message.
    Mailbox,
    /// Between user buffers in special memory.
    Direct,
    /// The three copies, on parts of the data at the same time.
    Pipelined,
}

impl Protocol {
    const fn announces(self) -> bool {
        !matches!(self, Self::Eager | Self::Mailbox)
    }

    const fn copies(self) -> bool {
        !matches!(self, Self::Direct | Self::Mailbox)
    }

    /// Passes one message from one rank to the other.
    fn pass(self, script: &mut Script, costs: &Costs, (from, to): (u32, u32), bytes: u64) {
        let control = costs.card.mailbox.unwrap_or(0);
        if self == Self::Mailbox {
            return script.pass(from, to, control);
        }
        if self.announces() {
            script.pass(from, to, control);
            if self == (Self::FourCopies { cache: false }) {
                script.compute(to, costs.card.register);
            }
            script.pass(to, from, control);
        }
        let part = if self == Self::Pipelined { PART } else { bytes.max(1) };
        let mut arrivals = Vec::new();
        for start in (0..bytes.max(1)).step_by(usize::try_from(part).unwrap_or(usize::MAX)) {
            let len = part.min(bytes.saturating_sub(start));
            if self.copies() {
                script.copy(from, len);
            }
            _ = script.send(from, to, len + HEADER);
            if self != Self::Pipelined {
                script.push(from, crate::step::Step::Drain);
            }
            arrivals.push((script.send(from, to, control), len));
        }
        for (arrival, len) in arrivals {
            script.wait(arrival);
            if let Self::FourCopies { .. } = self {
                script.compute(to, costs.cpu.stage);
                script.copy(to, len);
            }
            if self.copies() {
                script.copy(to, len);
            }
        }
    }

    /// Microseconds of one way.
    fn latency(self, costs: &Costs, bytes: u64) -> f64 {
        let mut script = Script::new(2);
        self.pass(&mut script, costs, (0, 1), bytes);
        us(end_ps(&script, costs))
    }

    /// MB/s of one message after the other.
    fn bandwidth(self, costs: &Costs, bytes: u64) -> f64 {
        let mut script = Script::new(2);
        for _ in 0..MESSAGES {
            self.pass(&mut script, costs, (0, 1), bytes);
            script.pass(1, 0, costs.card.mailbox.unwrap_or(0));
        }
        mb_per_s(bytes * MESSAGES, end_ps(&script, costs))
    }
}

/// Messages of one measurement of the bandwidth.
const MESSAGES: u64 = 8;
/// The part of a pipelined message.
const PART: u64 = 64 << 10;
/// The longest message of the benchmark.
const LONGEST: u64 = 4 << 20;

fn lines(protocols: &[(&str, Protocol)], sizes: &[u64], y: impl Fn(Protocol, u64) -> f64) -> Vec<Line> {
    let line = |&(name, protocol): &(&str, Protocol)| {
        Line::new(name, sizes.iter().map(|&bytes| (axis(bytes), y(protocol, bytes))).collect())
    };
    protocols.iter().map(line).collect()
}

fn figure(name: &'static str, title: &'static str, y: &'static str) -> Figure {
    Figure {
        profile: "unimem",
        name,
        title,
        source: PAPER,
        model: MODEL,
        x: "bytes",
        y,
        lines: Vec::new(),
        text: Vec::new(),
        compared: Vec::new(),
    }
}

const BEFORE: (&str, Protocol) = ("4 copies", Protocol::FourCopies { cache: true });
const AFTER: (&str, Protocol) = ("3 copies", Protocol::ThreeCopies);

/// Figure 1, left: latency.
pub(super) fn latency(costs: &Costs, effort: Effort) -> Figure {
    let sizes: &[u64] = if effort == Effort::Short { &[0] } else { &[0, 64, 256, 1024, 4096] };
    let first = ("4 copies, no registration cache", Protocol::FourCopies { cache: false });
    let lines = lines(&[first, BEFORE, AFTER], sizes, |protocol, bytes| protocol.latency(costs, bytes));
    let saved = lines[0].at(0.0) - lines[1].at(0.0);
    Figure {
        compared: vec![
            Comparison::number("0 bytes, 4 copies", "µs", 23.41, 10.0, lines[1].at(0.0), Label::Fit),
            Comparison::number("0 bytes, 3 copies", "µs", 14.47, 10.0, lines[2].at(0.0), Label::Fit),
            Comparison::range("saved by the registration cache", "µs", (10.0, 11.0), saved, Label::Exact),
        ],
        lines,
        ..figure("latency", "Figure 1, left: latency", "µs")
    }
}

/// Figure 1, right: bandwidth.
pub(super) fn bandwidth(costs: &Costs, effort: Effort) -> Figure {
    let sizes: &[u64] = if effort == Effort::Short {
        &[LONGEST]
    } else {
        &[1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, LONGEST]
    };
    let lines = lines(&[BEFORE, AFTER], sizes, |protocol, bytes| protocol.bandwidth(costs, bytes));
    let peak = lines[1].at(axis(LONGEST));
    Figure {
        compared: vec![Comparison::number("peak, 3 copies", "MB/s", 360.59, 10.0, peak, Label::Fit)],
        lines,
        ..figure("bandwidth", "Figure 1, right: bandwidth", "MB/s")
    }
}

/// The paper's future work.
pub(super) fn future(costs: &Costs, effort: Effort) -> Figure {
    let sizes: &[u64] =
        if effort == Effort::Short { &[0, LONGEST] } else { &[0, 64, 1 << 10, 1 << 14, 1 << 18, LONGEST] };
    let protocols =
        [AFTER, ("eager", Protocol::Eager), ("pipelined", Protocol::Pipelined), ("direct DMA", Protocol::Direct)];
    let lines = lines(&protocols, sizes, |protocol, bytes| protocol.latency(costs, bytes));
    let small = Protocol::Mailbox.latency(costs, 0);
    let eager = lines[1].at(0.0);
    let (pipelined, direct) =
        (Protocol::Pipelined.bandwidth(costs, LONGEST), Protocol::Direct.bandwidth(costs, LONGEST));
    let device = small - us(costs.far.send + costs.far.receive);
    Figure {
        text: vec![
            format!("a message inside the mailbox: {small:.2} µs, of which {device:.2} µs are the device's"),
            format!("eager into posted buffers, 0 bytes: {eager:.2} µs"),
            format!("parts of {} KiB in a pipeline: {pipelined:.0} MB/s", PART >> 10),
            format!("DMA between user buffers: {direct:.0} MB/s"),
        ],
        compared: vec![
            Comparison::range(
                "the device's part of a message in the mailbox",
                "µs",
                (0.0, 1.0),
                device,
                Label::Predicted,
            ),
            Comparison::range("DMA between user buffers", "MB/s", (900.0, 1100.0), direct, Label::Predicted),
            Comparison::statement(
                "each planned change is faster",
                small < eager && eager < lines[0].at(0.0),
                Label::Predicted,
            ),
        ],
        lines,
        ..figure("future", "Future work: small messages in the mailbox, eager messages, direct DMA", "µs")
    }
}
