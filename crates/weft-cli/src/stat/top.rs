//! `weft top`: a table of this user's processes that use weft, with their rates since the previous table.
//!
//! Place in the data flow: as for `weft stat`. Rates are differences between two publications, divided by the time
//! between them. A computing process publishes nothing, so its rates are 0 and its age grows.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;

use console::Term;
use weft_fi::observe::publish::layout::{Endpoint, Peer};

use super::find::{self, Process, Published};
use crate::render;

/// Sums over peers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sums {
    sent: f64,
    received: f64,
    accesses: f64,
    bytes: f64,
}

impl Sums {
    /// The rates of an endpoint between two looks, per second.
    fn rates(before: &Published, after: &Published) -> Self {
        let ns = after.endpoint.published_ns.saturating_sub(before.endpoint.published_ns);
        if ns == 0 {
            return Self::default();
        }
        let mut sums = Self::default();
        for (number, peer) in after.peers.iter().enumerate() {
            let earlier = before.peers.get(number).copied().unwrap_or_default();
            let seconds = Duration::from_nanos(ns).as_secs_f64();
            // Counts stay far below 2⁵³.
            #[allow(clippy::cast_precision_loss)]
            let rate = |count: fn(&Peer) -> u64| count(peer).saturating_sub(count(&earlier)) as f64 / seconds;
            sums.sent += rate(|peer| peer.messages_sent);
            sums.received += rate(|peer| peer.messages_received);
            sums.accesses += rate(|peer| peer.accesses_sent) + rate(|peer| peer.accesses_received);
            sums.bytes += rate(|peer| peer.bytes_sent)
                + rate(|peer| peer.bytes_received)
                + rate(|peer| peer.access_bytes_sent)
                + rate(|peer| peer.access_bytes_received);
        }
        sums
    }

    fn add(&mut self, other: Self) {
        self.sent += other.sent;
        self.received += other.received;
        self.accesses += other.accesses;
        self.bytes += other.bytes;
    }
}

const HEADS: [&str; 13] = [
    "pid", "links", "sent/s", "recv/s", "access/s", "bytes/s", "posted", "unexp", "waiting", "stalls", "failed", "age",
    "command",
];

/// The row of one process.
fn row(before: Option<&Process>, after: &Process) -> [String; 13] {
    // Many endpoints may be opened within one tick of the clock, so the time alone does not identify them.
    let identity = |published: &Published| {
        let Endpoint { opened_ns, ip_high, ip_low, port, id, .. } = published.endpoint;
        (opened_ns, ip_high, ip_low, port, id)
    };
    let mut sums = Sums::default();
    for published in &after.endpoints {
        let same = |other: &&Published| identity(other) == identity(published);
        if let Some(earlier) = before.and_then(|before| before.endpoints.iter().find(same)) {
            sums.add(Sums::rates(earlier, published));
        }
    }
    let of_endpoints = |count: fn(&Endpoint) -> u64| {
        after.endpoints.iter().map(|published| count(&published.endpoint)).fold(0, u64::saturating_add)
    };
    let peers = || after.endpoints.iter().flat_map(|published| &published.peers);
    let of_peers = |count: fn(&Peer) -> u64| peers().map(count).fold(0, u64::saturating_add);
    let oldest = after.endpoints.iter().map(|published| published.age).max().unwrap_or_default();
    [
        after.pid.to_string(),
        peers().filter(|peer| peer.state == 2).count().to_string(),
        scaled(sums.sent),
        scaled(sums.received),
        scaled(sums.accesses),
        scaled(sums.bytes),
        of_endpoints(|endpoint| endpoint.posted).to_string(),
        of_endpoints(|endpoint| endpoint.unexpected).to_string(),
        of_peers(|peer| peer.waiting.saturating_add(peer.outstanding)).to_string(),
        of_peers(|peer| peer.stalls).to_string(),
        of_endpoints(|endpoint| endpoint.failures).to_string(),
        format!("{:.1} s", oldest.as_secs_f64()),
        after.command.chars().take(40).collect(),
    ]
}

/// Formats a number with three digits and an SI prefix.
fn scaled(value: f64) -> String {
    let mut value = value;
    for prefix in ["", " k", " M", " G"] {
        if value < 999.5 {
            let digits = if value == 0.0 || (prefix.is_empty() && value >= 9.95) || value >= 99.5 {
                0
            } else {
                usize::from(value < 9.95) + 1
            };
            return format!("{value:.digits$}{prefix}");
        }
        value /= 1000.0;
    }
    format!("{value:.0} T")
}

fn table(before: &BTreeMap<u32, Process>, after: &BTreeMap<u32, Process>) -> String {
    if after.is_empty() {
        return "no process of this user has an open weft endpoint\n".to_owned();
    }
    render::table(HEADS, after.values().map(|process| row(before.get(&process.pid), process))) + &collectives(after)
}

/// The collectives under way of all processes; empty without any.
fn collectives(processes: &BTreeMap<u32, Process>) -> String {
    let published = processes.values().flat_map(|process| process.endpoints.iter().map(|at| (process.pid, at)));
    let rows = published.flat_map(|(pid, at)| at.groups.iter().map(move |group| (pid, at, group)));
    let rows: Vec<Vec<String>> = rows
        .map(|(pid, at, group)| std::iter::once(pid.to_string()).chain(super::group_cells(at, group)).collect())
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    let heads: Vec<&str> = std::iter::once("pid").chain(super::GROUP_HEADS).collect();
    "\n".to_owned() + &render::table_of(&heads, rows)
}

fn look() -> io::Result<BTreeMap<u32, Process>> {
    Ok(find::all()?.into_iter().map(|process| (process.pid, process)).collect())
}

/// Shows the table once, or repeatedly until a signal ends the program.
pub(crate) fn run(interval: Duration, once: bool, out: &mut impl Write) -> io::Result<ExitCode> {
    let term = Term::stdout();
    let mut before = look()?;
    loop {
        std::thread::sleep(interval);
        let after = look()?;
        let text = table(&before, &after);
        if once {
            out.write_all(text.as_bytes())?;
            return Ok(ExitCode::SUCCESS);
        }
        if term.is_term() {
            term.clear_screen()?;
        }
        out.write_all(text.as_bytes())?;
        out.flush()?;
        before = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(published_ns: u64, messages_sent: u64) -> Published {
        Published {
            endpoint: Endpoint { published_ns, opened_ns: 1, ..Endpoint::default() },
            age: Duration::from_millis(20),
            peers: vec![Peer { messages_sent, bytes_sent: 8 * messages_sent, state: 2, ..Peer::default() }],
            groups: Vec::new(),
        }
    }

    #[test]
    fn rates_cover_the_time_between_publications() {
        let process = |published| Process {
            pid: 3,
            command: "x".repeat(100),
            version: String::new(),
            endpoints: vec![published],
        };
        let (before, after) = (process(published(1_000_000_000, 100)), process(published(3_000_000_000, 3100)));
        let shown = row(Some(&before), &after);
        assert_eq!(shown[..6], ["3", "1", "1.50 k", "0", "0", "12.0 k"].map(str::to_owned));
        assert_eq!(shown[12].len(), 40);
        // A process without a new publication, and a process that is new.
        assert_eq!(row(Some(&after), &after)[2], "0");
        assert_eq!(row(None, &after)[2], "0");
    }

    #[test]
    fn endpoints_opened_in_one_tick_have_separate_rates() {
        let process = |published_ns, counts: [u64; 3]| {
            let endpoints = (1..).zip(counts).map(|(number, count)| {
                let Published { endpoint, age, peers, groups } = published(published_ns, count);
                // By port, by address, by identifier.
                let endpoint = match number {
                    1 => Endpoint { port: 1, ..endpoint },
                    2 => Endpoint { ip_low: 1, ..endpoint },
                    _ => Endpoint { id: 1, ..endpoint },
                };
                Published { endpoint, age, peers, groups }
            });
            Process { pid: 3, command: String::new(), version: String::new(), endpoints: endpoints.collect() }
        };
        let before = process(1_000_000_000, [1000, 100, 0]);
        assert_eq!(row(Some(&before), &process(2_000_000_000, [1010, 110, 10]))[2], "30");
    }

    #[test]
    fn collectives_under_way_name_the_awaited_ranks() {
        use weft_fi::observe::publish::layout::Group;
        let (number, members) = (2, 80);
        let group = Group { number, rank: 1, members, under_way: 3, operation: 1, ..Group::default() };
        let groups = vec![Group { sequence: 17, awaited: 2, awaited_ranks: 0b1001, ..group }];
        let endpoints = vec![Published { groups, ..published(5_000_000_000, 0) }];
        let process = Process { pid: 3, command: String::new(), version: String::new(), endpoints };
        let text = collectives(&BTreeMap::from([(3, process.clone())]));
        assert!(["1 of 80", "barrier", "17", "0, 3", "5.0 s"].iter().all(|word| text.contains(word)), "{text}");
        let idle = Process { endpoints: vec![published(0, 0)], ..process };
        assert_eq!(collectives(&BTreeMap::from([(3, idle)])), "");
    }

    #[test]
    fn numbers_are_shown_with_three_digits() {
        let shown = [0.0, 1.0, 15.2, 999.0, 999.6, 12_340.0, 9_999_999.0, 3.2e9, 5e15].map(scaled);
        assert_eq!(shown, ["0", "1.00", "15", "999", "1.00 k", "12.3 k", "10.0 M", "3.20 G", "5000 T"]);
    }
}
