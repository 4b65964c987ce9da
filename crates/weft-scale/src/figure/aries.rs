//! Figures of the GNI provider's paper and of GASNet-EX on Aries.
//!
//! Place in the data flow: see [`super`]. The pictures are not in the texts; where the text has no number, the shape
//! that it describes is compared.

use super::{Comparison, Effort, Figure, Label, Line, axis, end_ps, mb_per_s, us};
use crate::profile::{Costs, Path};
use crate::script::Script;
use crate::step::{Step, Unit};

const GNI: &str = "Pritchard et al., 2016";
const GASNET: &str = "GASNet-EX at LBNL, 2018";
/// The length of a control message.
const CONTROL: u64 = 64;
/// Messages that are under way at a time in the bandwidth benchmarks.
const WINDOW: usize = 64;
/// The longest message that the native library moves by pipelined gets.
const PIPELINED_TO: u64 = 128 << 10;
/// Gets of the native library that are under way at a time.
const GETS: usize = 4;
/// The shortest message that the native libraries do not send eagerly.
const NATIVE_EAGER: u64 = 8 << 10;
/// The longest message that is injected.
const INJECT: u64 = 64;
/// Cores of a socket.
const SOCKET: u32 = 12;

/// Each rank on a host of its own.
fn apart(costs: &Costs) -> Costs {
    Costs { ranks_per_host: 1, near: None, ..costs.clone() }
}

fn figure(name: &'static str, title: &'static str, source: &'static str, axes: [&'static str; 2]) -> Figure {
    let [x, y] = axes;
    Figure {
        profile: "aries",
        name,
        title,
        source,
        model: "",
        x,
        y,
        lines: Vec::new(),
        text: Vec::new(),
        compared: Vec::new(),
    }
}

fn sizes(effort: Effort, short: &'static [u64], full: &'static [u64]) -> &'static [u64] {
    if effort == Effort::Short { short } else { full }
}

fn kib(bytes: Option<u64>) -> f64 {
    axis(bytes.unwrap_or(0)) / 1024.0
}

fn by_size(name: &str, sizes: &[u64], y: impl Fn(u64) -> f64) -> Line {
    Line::new(name, sizes.iter().map(|&bytes| (axis(bytes), y(bytes))).collect())
}

/// GNI figure 4: latency of tagged messages by threads, each with a partner on the other host.
pub(super) fn threads(costs: &Costs, effort: Effort) -> Figure {
    let counts: &[u32] = if effort == Effort::Short { &[1, 12, 24] } else { &[1, 2, 4, 8, 12, 16, 20, 24] };
    let latency = |threads: u32| {
        let mut script = Script::new(2 * threads as usize);
        for thread in 0..threads {
            let detour = if thread >= SOCKET { costs.cpu.far_socket } else { 0 };
            for _ in 0..10 {
                for (from, to) in [(thread, thread + threads), (thread + threads, thread)] {
                    script.compute(from, costs.cpu.layer + detour);
                    script.pass(from, to, 8);
                    script.compute(to, costs.cpu.layer + detour);
                }
            }
        }
        us(end_ps(&script, &Costs { ranks_per_host: threads, near: None, ..costs.clone() })) / 20.0
    };
    let line = Line::new("8 bytes", counts.iter().map(|&threads| (f64::from(threads), latency(threads))).collect());
    let (one, socket, all) = (line.at(1.0), line.at(12.0), line.at(24.0));
    Figure {
        model: "Threads share a device that takes one message at a time. Those of the second socket make a detour.",
        compared: vec![
            Comparison::statement("small growth within a socket", socket >= one && socket < 1.2 * one, Label::Modelled),
            Comparison::statement("a jump beyond a socket", all - socket > 3.0 * (socket - one), Label::Modelled),
        ],
        lines: vec![line],
        ..figure("gni-4", "GNI figure 4: latency by threads", GNI, ["threads", "µs"])
    }
}

/// GNI figure 5: bandwidth of writes by threads.
pub(super) fn writes(costs: &Costs, effort: Effort) -> Figure {
    let all = [64, 256, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15, 1 << 16];
    let sizes: &[u64] = if effort == Effort::Short { &[64, 1 << 12, 1 << 14] } else { &all };
    let far = Path { bulk_from: costs.far.rma_bulk_from, ..costs.far.clone() };
    let bandwidth = |threads: u32, bytes: u64| {
        let mut script = Script::new(2 * threads as usize);
        for thread in 0..threads {
            for _ in 0..WINDOW {
                let detour = if thread >= SOCKET { costs.cpu.far_socket } else { 0 };
                script.compute(thread, costs.cpu.layer + detour);
                _ = script.send(thread, thread + threads, bytes);
            }
        }
        let costs = Costs { ranks_per_host: threads, near: None, far: far.clone(), ..costs.clone() };
        // The last write has ended when its bytes have arrived.
        for thread in 0..threads {
            script.push(thread, Step::Drain);
        }
        mb_per_s(u64::from(threads) * WINDOW as u64 * bytes, end_ps(&script, &costs))
    };
    let counts: &[u32] = if effort == Effort::Short { &[1, 24] } else { &[1, 4, 16, 24] };
    let lines: Vec<Line> = counts
        .iter()
        .map(|&threads| by_size(&format!("{threads} threads"), sizes, |bytes| bandwidth(threads, bytes)))
        .collect();
    let growth = |bytes: f64| lines[lines.len() - 1].at(bytes) / lines[0].at(bytes);
    Figure {
        model: "Below 8 KiB the processor of each thread writes to the window (FMA). From there on the channels of the \
                bulk engine (BTE) move the data.",
        compared: vec![
            Comparison::number("switch of RMA", "KiB", 8.0, 0.0, kib(costs.far.rma_bulk_from), Label::Exact),
            Comparison::statement("24 threads write short data faster than one", growth(64.0) > 3.0, Label::Modelled),
            Comparison::statement("they do not from 16 KiB on", growth(16_384.0) < 1.25, Label::Modelled),
        ],
        lines,
        ..figure("gni-5", "GNI figure 5: bandwidth of writes by threads", GNI, ["bytes", "MB/s"])
    }
}

/// GNI figure 6: latency of MPI messages.
pub(super) fn latency(costs: &Costs, effort: Effort) -> Figure {
    let sizes = sizes(effort, &[8], &[8, 64, 256, 1 << 10, 1 << 12, 1 << 13]);
    let costs = apart(costs);
    let line = |name: &str, layer: u64| {
        by_size(name, sizes, |bytes| {
            let mut script = Script::new(2);
            script.compute(0, layer);
            script.pass(0, 1, bytes);
            script.compute(1, layer);
            us(end_ps(&script, &costs))
        })
    };
    // In Open MPI, half of the provider's work takes the place of the native path's.
    let lines = vec![
        line("native", 0),
        line("Open MPI, OFI MTL", costs.cpu.layer / 2),
        line("MPICH, OFI netmod", costs.cpu.layer),
    ];
    let over = |line: &Line| (line.at(8.0) - lines[0].at(8.0)) * 1e3;
    Figure {
        model: "The provider allocates a request and writes a completion entry for each message, at each end.",
        compared: vec![
            Comparison::number("OFI netmod over native", "ns", 400.0, 10.0, over(&lines[2]), Label::Fit),
            Comparison::number("OFI MTL over native", "ns", 200.0, 10.0, over(&lines[1]), Label::Fit),
        ],
        lines,
        ..figure("gni-6", "GNI figure 6: latency of MPI messages", GNI, ["bytes", "µs"])
    }
}

/// The ways in which MPI libraries move long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Library {
    /// The GNI provider: eager below its switch, then one get after the other by its progress thread.
    Provider,
    /// The native library: eager below 8 KiB, then pipelined gets, and single gets for long messages.
    Native,
}

/// MB/s of a window of messages.
fn stream(library: Library, costs: &Costs, bytes: u64, both_ways: bool) -> f64 {
    let (layer, eager) = match library {
        Library::Provider => (costs.cpu.layer, costs.far.bulk_from.unwrap_or(0)),
        Library::Native => (0, NATIVE_EAGER),
    };
    let at_a_time = if library == Library::Native && bytes <= PIPELINED_TO { GETS } else { 1 };
    let mut script = Script::new(4);
    let ways: &[(u32, u32)] = if both_ways { &[(0, 1), (3, 2)] } else { &[(0, 1)] };
    for &(from, to) in ways {
        let messages: Vec<_> = (0..WINDOW)
            .map(|_| {
                script.compute(from, layer);
                script.send(from, to, if bytes < eager { bytes } else { CONTROL })
            })
            .collect();
        let mut gets = std::collections::VecDeque::new();
        for message in messages {
            script.wait(message);
            script.compute(to, layer);
            if bytes >= eager {
                gets.push_back(script.ask(to, from, bytes, Unit::Memory));
            }
            if gets.len() >= at_a_time
                && let Some(get) = gets.pop_front()
            {
                script.wait(get);
                script.pass(to, from, CONTROL);
            }
        }
        for get in gets {
            script.wait(get);
            script.pass(to, from, CONTROL);
        }
    }
    // Ranks 0 and 2 are on one host, 1 and 3 on the other: each way has processors of its own.
    let costs = Costs { ranks_per_host: 1, near: None, ..costs.clone() };
    mb_per_s(WINDOW as u64 * bytes * ways.len() as u64, end_ps(&script, &costs))
}

/// GNI figures 7 and 8: bandwidth of MPI messages, one way and both ways.
pub(super) fn bandwidth(costs: &Costs, effort: Effort) -> Figure {
    let sizes = sizes(
        effort,
        &[16 << 10, 64 << 10, 128 << 10, 256 << 10],
        &[1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 1 << 20, 4 << 20],
    );
    let line = |name: &str, library, both| by_size(name, sizes, |bytes| stream(library, costs, bytes, both));
    let lines = vec![
        line("native", Library::Native, false),
        line("OFI", Library::Provider, false),
        line("native, both ways", Library::Native, true),
        line("OFI, both ways", Library::Provider, true),
    ];
    let ratio = |kib: u32| lines[1].at(f64::from(kib << 10)) / lines[0].at(f64::from(kib << 10));
    let dip = [16, 64, 128].into_iter().all(|kib| ratio(kib) < 0.95);
    Figure {
        model: "Below the switch messages are eager. Above it the provider's progress thread gets one message after \
                the other. The native library has several gets under way up to 128 KiB.",
        compared: vec![
            Comparison::number("switch of messages", "KiB", 16.0, 0.0, kib(costs.far.bulk_from), Label::Exact),
            Comparison::statement("rendezvous loses to pipelined gets at 16, 64 and 128 KiB", dip, Label::Modelled),
            Comparison::range(
                "OFI to native at 256 KiB: the dip has ended",
                "×",
                (0.95, 1.05),
                ratio(256),
                Label::Modelled,
            ),
        ],
        lines,
        ..figure("gni-7", "GNI figures 7 and 8: bandwidth of MPI messages", GNI, ["bytes", "MB/s"])
    }
}

/// GNI figure 9: rate of short messages.
pub(super) fn rate(costs: &Costs, effort: Effort) -> Figure {
    let sizes = sizes(effort, &[64, 128, 8 << 10], &[8, 64, 128, 512, 1 << 10, 4 << 10, 8 << 10]);
    let costs = apart(costs);
    let line = |name: &str, layer: u64| {
        by_size(name, sizes, |bytes| {
            let mut script = Script::new(2);
            for _ in 0..WINDOW {
                // An injected message needs no entry.
                script.compute(0, if bytes <= INJECT { 0 } else { layer });
                _ = script.send(0, 1, bytes);
            }
            axis(WINDOW as u64) / us(end_ps(&script, &costs))
        })
    };
    let lines = vec![line("native", 0), line("OFI", costs.cpu.layer)];
    let lost = |bytes: f64| 1.0 - lines[1].at(bytes) / lines[0].at(bytes);
    Figure {
        model: "The sender alone. Messages above 64 bytes take a request and a completion entry.",
        compared: vec![
            Comparison::statement(
                "OFI loses little up to 64 bytes, much at 128",
                lost(64.0) < 0.05 && lost(128.0) > 0.2,
                Label::Modelled,
            ),
            Comparison::statement(
                "the difference shrinks above 1 KiB",
                lost(8192.0) < lost(128.0) / 1.5,
                Label::Modelled,
            ),
        ],
        lines,
        ..figure("gni-9", "GNI figure 9: rate of messages", GNI, ["bytes", "million messages/s"])
    }
}

/// One message of the overlap benchmark: the time at which both sides have ended, with work at one of them.
fn exchange(costs: &Costs, bytes: u64, agent: bool, worker: u32, work: u64) -> u64 {
    // Rank 0 sends. Ranks 2 and 3 are a host: the receiver and its progress thread.
    let (sender, receiver, thread) = (0, 2, 3);
    let mut script = Script::new(4);
    let eager = bytes < costs.far.bulk_from.unwrap_or(0);
    let announcement =
        script.send(sender, if agent && !eager { thread } else { receiver }, if eager { bytes } else { CONTROL });
    if worker == receiver {
        script.compute(receiver, work);
    }
    if eager {
        script.wait(announcement);
        script.compute(receiver, costs.cpu.layer);
        script.copy(receiver, bytes);
    } else {
        let mover = if agent { thread } else { receiver };
        script.wait(announcement);
        let get = script.ask(mover, sender, bytes, Unit::Memory);
        script.wait(get);
        let end = script.send(mover, sender, CONTROL);
        if agent {
            script.pass(thread, receiver, 0);
        }
        if worker == sender {
            script.compute(sender, work);
        }
        script.wait(end);
    }
    if eager && worker == sender {
        script.compute(sender, work);
    }
    end_ps(&script, &Costs { ranks_per_host: 2, ..costs.clone() })
}

/// The most work in percent of the time without work that does not prolong an exchange.
fn available(costs: &Costs, bytes: u64, agent: bool, worker: u32) -> f64 {
    let base = exchange(costs, bytes, agent, worker, 0);
    let free = (0..=20_u64)
        .rfind(|twentieths| exchange(costs, bytes, agent, worker, base * twentieths / 20) <= base + base / 20);
    axis(free.unwrap_or(0)) * 5.0
}

/// GNI figure 10: overlap by the Sandia benchmark.
pub(super) fn overlap(costs: &Costs, effort: Effort) -> Figure {
    let sizes = sizes(
        effort,
        &[8 << 10, 16 << 10, 1 << 20],
        &[1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 256 << 10, 1 << 20],
    );
    let line = |name: &str, agent, worker| by_size(name, sizes, |bytes| available(costs, bytes, agent, worker));
    let lines = vec![
        line("sender, OFI", true, 0),
        line("receiver, OFI", true, 2),
        line("sender, without a thread", false, 0),
        line("receiver, without a thread", false, 2),
    ];
    let long = |line: &Line| {
        line.points.iter().filter(|point| point.0 >= 16_384.0).map(|point| point.1).fold(f64::MAX, f64::min)
    };
    let without = lines[3].at(axis(1 << 20));
    let (before, after) = (lines[1].at(8192.0), lines[1].at(16_384.0));
    Figure {
        model: "The receiver gets long messages: by its progress thread, or when it waits.",
        compared: vec![
            Comparison::range("sender from 16 KiB on, least", "%", (75.0, 100.0), long(&lines[0]), Label::Predicted),
            Comparison::range("receiver from 16 KiB on, least", "%", (75.0, 100.0), long(&lines[1]), Label::Predicted),
            Comparison::statement("the receiver's share jumps at 16 KiB", after >= before + 10.0, Label::Predicted),
            Comparison::range(
                "receiver without a progress thread, 1 MiB",
                "%",
                (f64::MIN, 30.0),
                without,
                Label::Predicted,
            ),
        ],
        lines,
        ..figure(
            "gni-10",
            "GNI figure 10: processor available during a message",
            GNI,
            ["bytes", "% of the message's time"],
        )
    }
}

/// The end of fetch-adds of a number of processes on one counter.
fn fetch_adds(costs: &Costs, unit: Unit, processes: u32, each: usize) -> u64 {
    // The counter's owner is alone on the first host.
    let first = costs.ranks_per_host;
    let mut costs = Costs { near: None, ..costs.clone() };
    if costs.cpu.peers.is_some_and(|peers| peers < u64::from(processes)) {
        let misses = u64::from(processes) - costs.cpu.peers.unwrap_or(0);
        costs.cpu.handler += costs.cpu.peer_miss * misses / u64::from(processes);
    }
    let mut script = Script::new((first + processes) as usize);
    for rank in first..first + processes {
        let mut answers = Vec::new();
        let layer = if unit == Unit::Handler { costs.cpu.layer } else { 0 };
        for _ in 0..each {
            script.compute(rank, layer);
            answers.push(script.ask(rank, 0, 8, unit));
        }
        for answer in answers {
            script.wait(answer);
            script.compute(rank, layer);
        }
    }
    end_ps(&script, &costs)
}

/// GASNet-EX: latency and throughput of fetch-add.
pub(super) fn fetch_add(costs: &Costs, effort: Effort) -> Figure {
    let processes: &[u32] =
        if effort == Effort::Short { &[1, 64, 512, 2048] } else { &[1, 4, 16, 64, 256, 512, 1024, 2048, 4096, 8192] };
    let line = |name: &str, unit: Unit| {
        let rate = |&count: &u32| (f64::from(count), f64::from(count) * 16.0 / us(fetch_adds(costs, unit, count, 16)));
        Line::new(name, processes.iter().map(rate).collect())
    };
    let lines = vec![line("device", Unit::Atomic), line("active messages", Unit::Handler)];
    let latency = |unit| us(fetch_adds(costs, unit, 1, 1));
    let last = f64::from(processes.last().copied().unwrap_or(1));
    let flat = lines[0].at(last) / lines[0].at(512.0);
    let fell = lines[1].at(last) < 0.95 * lines[1].at(64.0);
    Figure {
        model: "By the device: its atomic unit answers. By active messages: the processor of the counter's owner does, \
                and its caches do not hold the buffers of all peers.",
        compared: vec![
            Comparison::number("latency by the device", "µs", 2.8, 10.0, latency(Unit::Atomic), Label::Fit),
            Comparison::number("latency by active messages", "µs", 4.9, 10.0, latency(Unit::Handler), Label::Predicted),
            Comparison::range("device, most processes to 512", "×", (0.9, 1.1), flat, Label::Modelled),
            Comparison::statement("active messages lose throughput under contention", fell, Label::Modelled),
        ],
        lines,
        ..figure(
            "fadd",
            "GASNet-EX: fetch-add of a central counter, 64 processes a node",
            GASNET,
            ["processes", "million/s"],
        )
    }
}
