//! Figures 3 to 7 and tables I to IV of the CORE-Direct paper, and what it says in words.
//!
//! Place in the data flow: see [`super`]. Ranks are spread over eight nodes, as in the paper.

use weft_engine::collective::{Algorithm, Operation, Overlap as Buffers, Request, Task, compile_as};

use super::{Comparison, Effort, Figure, Label, Line, us};
use crate::machine::{Executor, Machine, Options, Outcome, Overlap};
use crate::profile::Costs;
use crate::schedule::{Collective, request};

const NODES: u32 = 8;
const PAPER: &str = "Graham et al., 2010";
const MODEL: &str = "Recursive doubling by the provider's compiler. A card handles the messages of its ranks one after \
                     the other. Contexts of queues that exceed its memory are fetched from the host, as are receive \
                     entries.";

/// One of the compared implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Method {
    name: &'static str,
    executor: Executor,
    /// Messages take a receive entry (send/receive semantics), and none with RDMA.
    entries: bool,
    /// Connections to all ranks exist, not only to the partners.
    dense: bool,
}

const MQ_RDMA: Method = Method { name: "MQ-RDMA", executor: Executor::Card, entries: false, dense: false };
const MQ_SEND: Method = Method { name: "MQ-send", entries: true, ..MQ_RDMA };
const MQ_SEND_DENSE: Method = Method { name: "MQ-send, dense", dense: true, ..MQ_SEND };
const MQ_RDMA_DENSE: Method = Method { name: "MQ-RDMA, dense", dense: true, ..MQ_RDMA };
const PTP_RDMA: Method = Method { name: "PTP-RDMA", executor: Executor::Host, entries: false, dense: false };
const PTP_SEND: Method = Method { name: "PTP-send/recv", entries: true, ..PTP_RDMA };
const FOUR: [Method; 4] = [MQ_RDMA, MQ_SEND, PTP_RDMA, PTP_SEND];

impl Method {
    /// Contexts in use on one card: a queue pair for each peer, and a completion queue for each unless memory is
    /// polled; a management queue with its completion queue for each rank.
    fn contexts(self, ranks: u32, communicators: u32) -> u64 {
        let peers = if self.dense { ranks - 1 } else { ranks.next_power_of_two().ilog2() };
        let queues = if self.executor == Executor::Card || self.entries { 2 * peers } else { peers };
        let managed = if self.executor == Executor::Card { 2 } else { 0 };
        u64::from((queues + managed) * ranks.div_ceil(NODES) * communicators)
    }
}

/// A measurement: an operation of all ranks by one method.
#[derive(Clone, Copy, Debug)]
struct Loop {
    method: Method,
    ranks: u32,
    operation: Operation,
    bytes: usize,
    communicators: u32,
    options: Options,
}

impl Loop {
    fn barrier(method: Method, ranks: u32, effort: Effort) -> Self {
        let iterations = if effort == Effort::Short { 20 } else { 200 };
        let options = Options { iterations, ..Options::default() };
        Self { method, ranks, operation: Operation::Barrier, bytes: 0, communicators: 1, options }
    }

    fn run(self, costs: &Costs) -> Outcome {
        let costs = Costs { ranks_per_host: self.ranks.div_ceil(NODES), ..costs.clone() };
        let options = Options {
            executor: self.method.executor,
            contexts: self.method.contexts(self.ranks, self.communicators),
            fetches_entries: self.method.entries,
            ..self.options
        };
        let barrier = (self.operation == Operation::Barrier).then_some(Algorithm::RecursiveDoubling);
        let request = request(self.operation, self.ranks, self.bytes);
        let outcome = Collective::compile(request, barrier)
            .ok()
            .and_then(|collective| Machine::new(&collective, &costs, options).run(|_, _| ()).ok());
        // Schedules of the compiler fit together, and these are short.
        outcome.unwrap_or_else(|| unreachable!("{self:?} has no schedule"))
    }

    fn with(self, overlap: Overlap) -> Self {
        Self { options: Options { overlap, ..self.options }, ..self }
    }

    /// Microseconds for each operation.
    fn raw(self, costs: &Costs) -> f64 {
        us(self.run(costs).rank_0_ps)
    }

    /// Method 1: the most work between tests that does not prolong the operation, in percent of its time.
    fn by_quanta(self, costs: &Costs) -> f64 {
        let raw = self.raw(costs);
        let mut best: f64 = 0.0;
        for quantum_ps in [50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 4_000_000] {
            let outcome = self.with(Overlap::Quanta(quantum_ps)).run(costs);
            let each = us(outcome.rank_0_ps);
            if each <= raw * PROLONGED {
                let worked = us(outcome.worked_ps) / f64::from(self.options.iterations);
                best = best.max(100.0 * worked / each);
            }
        }
        best
    }

    /// The time of all operations with one work loop, whose length is in tenths of the raw time.
    fn once_ps(self, costs: &Costs, raw_ps: u64, tenths: u32) -> u64 {
        let work = raw_ps / u64::from(self.options.iterations) * u64::from(tenths) / 10;
        self.with(Overlap::Once(work)).run(costs).end_ps
    }

    /// Method 2: the longest work loop, in steps of 10 % of the raw time, that does not prolong the operation. A time
    /// that repeated raw measurements reach, too, is not prolonged.
    fn by_once(self, costs: &Costs) -> f64 {
        let again = |seed| Self { options: Options { seed, ..self.options }, ..self };
        let longest_ps = (1..=REPEATED).map(|seed| again(seed).run(costs).end_ps).max().unwrap_or(0);
        let limit_ps = longest_ps + longest_ps / UNSEEN;
        let raw_ps = self.run(costs).end_ps;
        let free = (1_u32..=10).rfind(|tenths| self.once_ps(costs, raw_ps, *tenths) <= limit_ps);
        f64::from(free.unwrap_or(0) * 10)
    }

    /// The percentage by which a work loop prolongs the operation. Its length is in tenths of the raw time.
    fn prolonged(self, costs: &Costs, tenths: u32) -> f64 {
        let raw_ps = self.run(costs).end_ps;
        (us(self.once_ps(costs, raw_ps, tenths)) / us(raw_ps) - 1.0) * 100.0
    }
}

/// The factor by which tests may prolong an operation (method 1).
const PROLONGED: f64 = 1.05;
/// Raw measurements, each with draws of its own, whose spread is that of the operation (method 2).
const REPEATED: u64 = 5;
/// The part of a time that a measurement does not see (method 2).
const UNSEEN: u64 = 1000;

fn counts(effort: Effort) -> &'static [u32] {
    if effort == Effort::Short { &[8, 64] } else { &[8, 16, 32, 64] }
}

/// A line over the numbers of ranks.
fn line(method: Method, effort: Effort, y: impl Fn(Loop) -> f64) -> Line {
    let points = counts(effort).iter().map(|&ranks| {
        let measured = Loop::barrier(method, ranks, effort);
        (f64::from(ranks), y(measured))
    });
    Line::new(method.name, points.collect())
}

fn figure(name: &'static str, title: &'static str, y: &'static str) -> Figure {
    Figure {
        profile: "connectx2",
        name,
        title,
        source: PAPER,
        model: MODEL,
        x: "ranks on 8 nodes",
        y,
        lines: Vec::new(),
        text: Vec::new(),
        compared: Vec::new(),
    }
}

/// Figure 3: the time of an offloaded barrier by connections and message semantics.
pub(super) fn connections(costs: &Costs, effort: Effort) -> Figure {
    let methods = [MQ_SEND_DENSE, MQ_RDMA_DENSE, MQ_SEND, MQ_RDMA];
    let lines = methods.map(|method| line(method, effort, |measured| measured.raw(costs)));
    let (dense, sparse) = (lines[0].at(64.0), lines[3].at(64.0));
    let step_alone = (lines[3].at(8.0) - us(costs.card.post + costs.card.reap)) / 3.0;
    let at = lines.each_ref().map(|line| line.at(64.0));
    let shorter = at[0] > at[1] && at[0] > at[2] && at[1] > at[3] && at[2] > at[3];
    Figure {
        compared: vec![
            Comparison::number("barrier of 64, sparse, RDMA", "µs", 32.0, 5.0, sparse, Label::Fit),
            Comparison::number("barrier of 64, dense, send", "µs", 54.0, 5.0, dense, Label::Fit),
            Comparison::statement("each change shortens the barrier of 64", shorter, Label::Predicted),
            Comparison::range("a step alone on a card (8 ranks, input)", "µs", (1.5, 1.9), step_alone, Label::Exact),
        ],
        lines: lines.into(),
        ..figure("3", "Figure 3: offloaded barrier by kind of connections", "µs for each barrier")
    }
}

/// Figure 4: the time of the barrier by all methods.
pub(super) fn blocking(costs: &Costs, effort: Effort) -> Figure {
    let lines = FOUR.map(|method| line(method, effort, |measured| measured.raw(costs)));
    let at = |ranks: f64| lines.each_ref().map(|line| line.at(ranks));
    let (few, many) = (at(8.0), at(64.0));
    Figure {
        compared: vec![
            Comparison::statement(
                "offloaded RDMA is the fastest at 8",
                few[0] < few[2] && few[0] < few[3],
                Label::Predicted,
            ),
            Comparison::statement("CPU-progressed RDMA is faster at 64", many[2] < many[0], Label::Predicted),
        ],
        lines: lines.into(),
        ..figure("4", "Figure 4: barrier", "µs for each barrier")
    }
}

/// Figure 5: the time of the non-blocking barrier.
pub(super) fn nonblocking(costs: &Costs, effort: Effort) -> Figure {
    // One test between start and wait distinguishes it from the blocking one.
    let nonblocking = [MQ_RDMA, MQ_SEND]
        .map(|method| line(method, effort, |measured| measured.with(Overlap::Once(costs.cpu.test)).raw(costs)));
    let blocking = Loop::barrier(MQ_RDMA, 64, effort).raw(costs);
    let ratio = nonblocking[0].at(64.0) / blocking;
    Figure {
        compared: vec![Comparison::range(
            "non-blocking to blocking barrier of 64, offloaded",
            "×",
            (0.95, 1.05),
            ratio,
            Label::Predicted,
        )],
        lines: nonblocking.into(),
        ..figure(
            "5",
            "Figure 5: non-blocking barrier (offloaded; the paper calls its CPU rows anomalous)",
            "µs for each barrier",
        )
    }
}

/// Figure 6: the processor's share by work in small quanta.
pub(super) fn quanta(costs: &Costs, effort: Effort) -> Figure {
    let lines = FOUR.map(|method| line(method, effort, |measured| measured.by_quanta(costs)));
    let spread = |ranks: f64| {
        let at = lines.each_ref().map(|line| line.at(ranks));
        at.iter().fold(f64::MIN, |a, &b| a.max(b)) - at.iter().fold(f64::MAX, |a, &b| a.min(b))
    };
    Figure {
        compared: vec![
            Comparison::range("available at 8, offloaded", "%", (30.0, 45.0), lines[0].at(8.0), Label::Predicted),
            Comparison::about("available at 64, offloaded", 90.0, 10.0, lines[0].at(64.0), Label::Fit),
            Comparison::range("spread of all methods at 64", "points", (0.0, 20.0), spread(64.0), Label::Predicted),
        ],
        lines: lines.into(),
        ..figure("6", "Figure 6: processor available, work and tests in turn", "% of the barrier's time")
    }
}

/// Figure 7: the processor's share by one work loop.
pub(super) fn once(costs: &Costs, effort: Effort) -> Figure {
    let lines = FOUR.map(|method| line(method, effort, |measured| measured.by_once(costs)));
    let grows = lines[0].at(64.0) >= lines[0].at(8.0);
    let prolonged = |tenths| Loop::barrier(MQ_RDMA, 64, effort).prolonged(costs, tenths);
    Figure {
        text: vec![format!(
            "64 ranks, offloaded: 80 % of work prolongs the barrier by {:.2} %, 90 % by {:.2} %",
            prolonged(8),
            prolonged(9)
        )],
        compared: vec![
            Comparison::about("free at 64, offloaded", 80.0, 10.0, lines[0].at(64.0), Label::Predicted),
            Comparison::range("free at 64, CPU-progressed", "%", (f64::MIN, 30.0), lines[2].at(64.0), Label::Predicted),
            Comparison::statement("the offloaded share grows with the ranks", grows, Label::Predicted),
        ],
        lines: lines.into(),
        ..figure("7", "Figure 7: processor available, one work loop", "% of the barrier's time")
    }
}

fn four(rank: u32) -> Vec<Task> {
    let barrier = Request {
        operation: Operation::Barrier,
        rank,
        members: 4,
        root: 0,
        count: 0,
        element: 1,
        overlap: Buffers::None,
    };
    compile_as(&barrier, Algorithm::RecursiveDoubling).map_or_else(|_| Vec::new(), |schedule| schedule.tasks().to_vec())
}

/// The work requests of a schedule, in the words of table II.
fn requests(tasks: &[Task]) -> Vec<String> {
    let request = |task: &Task| match *task {
        Task::Send { to, .. } => Some(format!("send to {to}")),
        Task::Wait { task } => match tasks.get(task as usize)? {
            Task::Receive { from, .. } => Some(format!("recv wait from {from}")),
            _ => None,
        },
        _ => None,
    };
    tasks.iter().filter_map(request).collect()
}

/// Tables I to IV: the tasks of four ranks.
pub(super) fn tables(costs: &Costs, _: Effort) -> Figure {
    let lists: Vec<Vec<String>> = (0..4).map(|rank| requests(&four(rank))).collect();
    let published = |rank: u32| {
        let exchanges = [rank ^ 1, rank ^ 2];
        exchanges.map(|peer| [format!("send to {peer}"), format!("recv wait from {peer}")]).concat()
    };
    let equal = (0_u32..).zip(&lists).all(|(rank, list)| *list == published(rank));
    let text = (0..4).map(|row| {
        let cells: Vec<String> =
            lists.iter().map(|list| format!("{:<18}", list.get(row).map_or("", String::as_str))).collect();
        cells.concat().trim_end().to_owned()
    });
    let entries = costs.card.entries.unwrap_or(0);
    let long = Collective::compile(request(Operation::AllGather, 8192, 64), Some(Algorithm::Ring));
    let refused = long.is_err() && entries == weft_engine::collective::MAX_TASKS as u64;
    Figure {
        text: text.collect(),
        compared: vec![
            Comparison::statement(
                "the lists of table II (I, III and IV are the same sends and waits)",
                equal,
                Label::Exact,
            ),
            Comparison::statement("a list of more than about 16 Ki entries is refused", refused, Label::Exact),
        ],
        ..figure("tables", "Tables I to IV: work requests of four ranks", "")
    }
}

/// The paper in words: interruptions of processors.
pub(super) fn noise(costs: &Costs, effort: Effort) -> Figure {
    let lasting = |method: Method, lasts_us: u32| {
        let noise = 1_000_000 * u64::from(lasts_us);
        let cpu = crate::profile::Cpu { noise_every: 200_000_000, noise_lasts: noise, ..costs.cpu.clone() };
        let measured = Loop::barrier(method, 64, effort);
        measured.with(Overlap::Once(25_000_000)).raw(&Costs { cpu, ..costs.clone() })
    };
    let durations: &[u32] = if effort == Effort::Short { &[0, 10] } else { &[0, 2, 5, 10, 20] };
    let lines = [MQ_RDMA, PTP_RDMA].map(|method| {
        Line::new(method.name, durations.iter().map(|&lasts| (f64::from(lasts), lasting(method, lasts))).collect())
    });
    let added = |line: &Line| line.at(10.0) - line.at(0.0);
    let absorbed = added(&lines[0]) < 0.75 * added(&lines[1]);
    Figure {
        x: "µs of an interruption, one in 200 µs",
        compared: vec![Comparison::statement(
            "offload reduces what interruptions of 10 µs add",
            absorbed,
            Label::Modelled,
        )],
        lines: lines.into(),
        ..figure("noise", "System noise: 25 µs of work during each barrier of 64", "µs for each iteration")
    }
}

/// The paper in words: ranks with unequal load.
pub(super) fn imbalance(costs: &Costs, effort: Effort) -> Figure {
    let unequal = |method: Method, most_us: u32| {
        let measured = Loop::barrier(method, 64, effort).with(Overlap::Once(60_000_000));
        let options = Options { imbalance_ps: u64::from(most_us) * 1_000_000, ..measured.options };
        Loop { options, ..measured }.raw(costs)
    };
    let most: &[u32] = if effort == Effort::Short { &[0, 20] } else { &[0, 5, 10, 20, 40] };
    let lines = [MQ_RDMA, PTP_RDMA]
        .map(|method| Line::new(method.name, most.iter().map(|&us| (f64::from(us), unequal(method, us))).collect()));
    let added = |line: &Line| line.at(20.0) - line.at(0.0);
    let hidden = added(&lines[0]) < 0.75 * added(&lines[1]);
    let what = "offload reduces what an imbalance of 20 µs adds";
    Figure {
        x: "µs of unequal work before the barrier, at most",
        compared: vec![Comparison::statement(what, hidden, Label::Modelled)],
        lines: lines.into(),
        ..figure("imbalance", "Load imbalance: 60 µs of work during each barrier of 64", "µs for each iteration")
    }
}

/// The paper in words: many communicators.
pub(super) fn communicators(costs: &Costs, effort: Effort) -> Figure {
    let numbers: &[u32] = if effort == Effort::Short { &[1, 16] } else { &[1, 2, 4, 8, 16, 32, 64] };
    let lines = [(MQ_RDMA, 16), (MQ_RDMA, 64), (PTP_RDMA, 64)].map(|(method, ranks)| {
        let at = |&communicators| {
            let measured = Loop { communicators, ..Loop::barrier(method, ranks, effort) };
            (f64::from(communicators), measured.raw(costs))
        };
        Line::new(&format!("{} of {ranks}", method.name), numbers.iter().map(at).collect())
    });
    let slower = lines[1].at(16.0) > 1.2 * lines[1].at(1.0);
    Figure {
        x: "communicators in use",
        compared: vec![Comparison::statement(
            "many communicators make the offloaded barrier slower",
            slower,
            Label::Modelled,
        )],
        lines: lines.into(),
        ..figure("communicators", "Communicators in use, and the contexts that a card holds", "µs for each barrier")
    }
}

/// The paper's future work: overlap with data and reductions.
pub(super) fn data(costs: &Costs, effort: Effort) -> Figure {
    let sizes: &[u32] =
        if effort == Effort::Short { &[8, 65_536] } else { &[8, 64, 512, 4096, 32_768, 65_536, 262_144] };
    let operations =
        [("broadcast", Operation::Broadcast), ("allreduce", Operation::AllReduce), ("alltoall", Operation::AllToAll)];
    let mut lines = Vec::new();
    for (method, by) in [(MQ_RDMA, "card"), (PTP_RDMA, "CPU")] {
        for (name, operation) in operations {
            let at = |&bytes: &u32| {
                let barrier = Loop::barrier(method, 64, effort);
                let options = Options { iterations: 1, ..barrier.options };
                let measured = Loop { operation, bytes: bytes as usize, options, ..barrier };
                (f64::from(bytes), measured.by_once(costs))
            };
            lines.push(Line::new(&format!("{name}, {by}"), sizes.iter().map(at).collect()));
        }
    }
    let more = (0..3).all(|place| lines[place].at(65_536.0) > lines[place + 3].at(65_536.0));
    Figure {
        x: "bytes",
        compared: vec![Comparison::statement("offload leaves more of the processor at 64 KiB", more, Label::Predicted)],
        lines,
        ..figure(
            "data",
            "Future work: one work loop beside collectives with data, 64 ranks",
            "% of the operation's time",
        )
    }
}
