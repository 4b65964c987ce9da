//! The line that a process reports, for the writer and for `weft run`.
//!
//! Place in the data flow: [`super::record`] writes lines; `weft run` parses them. A line is a list of `name=value`
//! words and ends with the word `.`, so that a truncated line is recognised. Readers skip unknown names. A line has the
//! counters of the process so far, so a later line of a process replaces the earlier ones.

use std::fmt::{self, Write as _};

use weft_observe::identity::Identity;

/// Messages and remote accesses, counted at their sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Messages, and remote accesses counted by parts.
    pub messages: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Traffic {
    /// Adds other traffic.
    pub fn add(&mut self, other: Self) {
        self.messages = self.messages.saturating_add(other.messages);
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// The counters of one process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Endpoints that were opened.
    pub endpoints: u64,
    /// Endpoints that are open.
    pub open: u64,
    /// Traffic over shared memory.
    pub shm: Traffic,
    /// Traffic over TCP.
    pub tcp: Traffic,
    /// Failed operations.
    pub failures: u64,
    /// Peers to which no link could be made.
    pub unreached: u64,
    /// Faults that only the user can remedy, which weft has printed.
    pub errors: u64,
    /// Collectives that the profiling library has run.
    pub collectives: u64,
    /// Collectives that the profiling library has left to the MPI library.
    pub left_collectives: u64,
    /// 1: the profiling library completes node communicators.
    pub completes_nodes: u64,
    /// Node communicators that stayed smaller than their host in spite of that.
    pub small_nodes: u64,
}

/// The number of counters.
pub const COUNTERS: usize = 13;
/// The place of [`Counts::errors`] among them.
pub(super) const ERRORS: usize = 8;

impl Counts {
    /// The counters by their names, in the order in which records have them.
    fn words(&mut self) -> [(&'static str, &mut u64); COUNTERS] {
        [
            ("endpoints", &mut self.endpoints),
            ("open", &mut self.open),
            ("shm_messages", &mut self.shm.messages),
            ("shm_bytes", &mut self.shm.bytes),
            ("tcp_messages", &mut self.tcp.messages),
            ("tcp_bytes", &mut self.tcp.bytes),
            ("failures", &mut self.failures),
            ("unreached", &mut self.unreached),
            ("errors", &mut self.errors),
            ("collectives", &mut self.collectives),
            ("left_collectives", &mut self.left_collectives),
            ("completes_nodes", &mut self.completes_nodes),
            ("small_nodes", &mut self.small_nodes),
        ]
    }

    /// The counters in their order.
    #[must_use]
    pub fn to_array(mut self) -> [u64; COUNTERS] {
        self.words().map(|(_, word)| *word)
    }

    /// The inverse of [`Counts::to_array`].
    #[must_use]
    pub fn of_array(words: [u64; COUNTERS]) -> Self {
        let mut counts = Self::default();
        for ((_, place), word) in counts.words().into_iter().zip(words) {
            *place = word;
        }
        counts
    }

    /// Whether anything was sent.
    #[must_use]
    pub fn carried(&self) -> bool {
        self.shm.messages > 0 || self.tcp.messages > 0 || self.collectives > 0
    }

    /// Adds the counters of another process.
    pub fn add(&mut self, mut other: Self) {
        for ((_, sum), (_, word)) in self.words().into_iter().zip(other.words()) {
            *sum = sum.saturating_add(*word);
        }
    }

    /// The traffic and the errors in words. `is_least`: more may have been sent since the counters were published.
    #[must_use]
    pub fn traffic(&self, is_least: bool) -> String {
        let least = if is_least { "at least " } else { "" };
        let path = |name: &str, traffic: &Traffic| match traffic.messages {
            0 => format!("nothing by {name}"),
            count => format!("{least}{} ({}) by {name}", counted(count, "message"), bytes(traffic.bytes)),
        };
        let mut text = format!("{}, {}", path("shm", &self.shm), path("TCP", &self.tcp));
        // Writing to a string cannot fail.
        let _ = match (self.failures, self.unreached) {
            (0, 0) => write!(text, ", no errors"),
            (failures, 0) => write!(text, ", {}", counted(failures, "failed operation")),
            (0, peers) => write!(text, ", {} not reached", counted(peers, "peer")),
            (failures, peers) => {
                write!(text, ", {}, {} not reached", counted(failures, "failed operation"), counted(peers, "peer"))
            }
        };
        text
    }
}

/// The report of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// Rank, number of ranks, job and host.
    pub identity: Identity,
    /// The process id, in the process's own namespace.
    pub pid: u64,
    /// The time of the process's first report. It tells two programs apart that one process has executed.
    pub since_ns: u64,
    /// The counters, of the process so far.
    pub counts: Counts,
    /// The first fault that weft has found. Lines on standard error lack it.
    pub fault: String,
}

/// The target of the link in /proc that leads to the memfd of a token.
#[must_use]
pub fn link_of(token: &str) -> String {
    format!("/memfd:weft-report-{token} (deleted)")
}

impl Line {
    /// Parses a line. `None`: the line is truncated, or is no report.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let words = text.trim_end().strip_suffix(" .")?;
        let mut line = Self::default();
        for word in words.split(' ') {
            let (name, value) = word.split_once('=')?;
            match name {
                "host" => value.clone_into(&mut line.identity.host),
                "job" => value.clone_into(&mut line.identity.job),
                "rank" => line.identity.rank = Some(value.parse().ok()?),
                "size" => line.identity.size = Some(value.parse().ok()?),
                "spawned" => line.identity.spawned = value == "1",
                "pid" => line.pid = value.parse().ok()?,
                "since" => line.since_ns = value.parse().ok()?,
                _ => {
                    for (known, place) in line.counts.words() {
                        if known == name {
                            *place = value.parse().ok()?;
                        }
                    }
                }
            }
        }
        Some(line)
    }

    /// The line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let rank = match (self.identity.rank, self.identity.size) {
            (Some(rank), Some(size)) => format!("rank {rank} of {size}, "),
            (Some(rank), None) => format!("rank {rank}, "),
            _ => String::new(),
        };
        format!("{rank}process {} on {} sent {}", self.pid, self.identity.host, self.counts.traffic(false))
    }
}

impl fmt::Display for Line {
    /// Writes the line for programs, without the end of line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Identity { rank, size, host, job, spawned } = &self.identity;
        write!(f, "host={host} job={job}")?;
        for (name, value) in [("rank", *rank), ("size", *size), ("spawned", spawned.then_some(1))] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        write!(f, " pid={} since={}", self.pid, self.since_ns)?;
        // Zeros are omitted, which keeps the line short.
        for (name, value) in { self.counts }.words().into_iter().filter(|(_, value)| **value > 0) {
            write!(f, " {name}={value}")?;
        }
        write!(f, " .")
    }
}

/// A number in groups of three digits.
#[must_use]
pub fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A number with the plural of its noun, in groups of three digits.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    format!("{} {noun}{}", grouped(count), if count == 1 { "" } else { "s" })
}

/// A number of bytes with three digits and a binary prefix.
#[must_use]
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if count < 1024 {
        return format!("{count} B");
    }
    // Three digits are shown.
    #[allow(clippy::cast_precision_loss)]
    let mut value = count as f64 / 1024.0;
    let mut units = UNITS.iter();
    let mut unit = units.next();
    while value >= 1023.5 {
        value /= 1024.0;
        unit = units.next();
    }
    let decimals = usize::from(value < 99.95) + usize::from(value < 9.995);
    format!("{value:.decimals$} {}", unit.copied().unwrap_or("EiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line() -> Line {
        let counts = Counts {
            endpoints: 2,
            shm: Traffic { messages: 1_234_567, bytes: 5 << 20 },
            tcp: Traffic { messages: 1, bytes: 9 },
            ..Counts::default()
        };
        let identity = Identity {
            rank: Some(3),
            size: Some(4),
            host: "node7".to_owned(),
            job: "node1:4711/0".to_owned(),
            spawned: true,
        };
        Line { identity, pid: 41, since_ns: 77, counts, fault: String::new() }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let counts = Counts { failures: 7, unreached: 8, errors: 9, collectives: 10, ..line().counts };
        let line = Line { counts, ..line() };
        assert_eq!(Line::parse(&line.to_string()), Some(line.clone()));
        assert_eq!(Line::parse(&format!("{} future=x .", line.to_string().trim_end_matches(" ."))), Some(line.clone()));
        let unranked = Line { identity: Identity { host: "h".to_owned(), ..Identity::default() }, ..line };
        assert_eq!(Line::parse(&unranked.to_string()), Some(unranked));
    }

    #[test]
    fn truncated_lines_are_refused() {
        let text = line().to_string();
        assert!((0..text.len()).all(|len| Line::parse(&text[..len]).is_none()));
    }

    #[test]
    fn traffic_is_told_in_words() {
        assert_eq!(
            line().text(),
            "rank 3 of 4, process 41 on node7 sent 1,234,567 messages (5.00 MiB) by shm, 1 message (9 B) by TCP, no \
             errors"
        );
        let quiet = Counts { failures: 1, unreached: 2, ..Counts::default() };
        assert_eq!(quiet.traffic(true), "nothing by shm, nothing by TCP, 1 failed operation, 2 peers not reached");
        assert!(line().counts.traffic(true).starts_with("at least 1,234,567 messages"));
    }

    #[test]
    fn sums_have_the_counters_of_all_lines() {
        let mut sum = Counts::default();
        sum.add(line().counts);
        sum.add(line().counts);
        assert_eq!((sum.shm.messages, sum.tcp.bytes, sum.endpoints), (2_469_134, 18, 4));
        assert!(sum.carried() && !Counts::default().carried());
        assert_eq!(Counts::of_array(sum.to_array()), sum);
        assert_eq!(Counts::default().words()[ERRORS].0, "errors");
    }

    #[test]
    fn bytes_have_three_digits() {
        let shown = [0, 1023, 1024, 10_240, 1_048_575, 1 << 20, 123 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "10.0 KiB", "1.00 MiB", "1.00 MiB", "123 GiB", "16.0 EiB"]);
    }
}
