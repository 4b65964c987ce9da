//! The line that a process reports, for the writer and for `weft run`.
//!
//! Place in the data flow: [`super`] writes lines; `weft run` parses and adds them. A line is a list of `name=value`
//! words and ends with the word `.`, so that a truncated line is recognised. Readers skip unknown names.

use std::fmt::{self, Write as _};

use crate::observe::identity::Identity;

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

/// The report of one process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The name of the host.
    pub host: String,
    /// The process id, in the process's own namespace.
    pub pid: u64,
    /// The rank and the number of ranks, if the launcher has told them.
    pub rank: Option<u64>,
    /// The number of ranks.
    pub size: Option<u64>,
    /// Endpoints that were opened.
    pub endpoints: u64,
    /// Traffic over shared memory.
    pub shm: Traffic,
    /// Traffic over TCP.
    pub tcp: Traffic,
    /// Failed operations.
    pub failures: u64,
    /// Peers to which no link could be made.
    pub unreached: u64,
}

/// The target of the link in /proc that leads to the memfd of a token.
#[must_use]
pub fn link_of(token: &str) -> String {
    format!("/memfd:weft-report-{token} (deleted)")
}

impl Line {
    /// The line with host, process and rank of this process.
    #[must_use]
    pub(super) fn of_this_process(mut self) -> Self {
        let process = Identity::of_this_process();
        (self.rank, self.size) = (process.rank, process.size);
        self.pid = std::process::id().into();
        self.host = process.host;
        self
    }

    /// The numbers by their names.
    fn words(&mut self) -> [(&'static str, &mut u64); 8] {
        [
            ("pid", &mut self.pid),
            ("endpoints", &mut self.endpoints),
            ("shm_messages", &mut self.shm.messages),
            ("shm_bytes", &mut self.shm.bytes),
            ("tcp_messages", &mut self.tcp.messages),
            ("tcp_bytes", &mut self.tcp.bytes),
            ("failures", &mut self.failures),
            ("unreached", &mut self.unreached),
        ]
    }

    /// Parses a line. `None`: the line is truncated, or is no report.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let words = text.trim_end().strip_suffix(" .")?;
        let mut line = Self::default();
        for word in words.split(' ') {
            let (name, value) = word.split_once('=')?;
            match name {
                "host" => value.clone_into(&mut line.host),
                "rank" => line.rank = Some(value.parse().ok()?),
                "size" => line.size = Some(value.parse().ok()?),
                _ => {
                    for (known, place) in line.words() {
                        if known == name {
                            *place = value.parse().ok()?;
                        }
                    }
                }
            }
        }
        Some(line)
    }

    /// Whether anything was sent.
    #[must_use]
    pub fn carried(&self) -> bool {
        self.shm.messages > 0 || self.tcp.messages > 0
    }

    /// Adds the counters of another line.
    pub fn add(&mut self, other: &Self) {
        self.shm.add(other.shm);
        self.tcp.add(other.tcp);
        self.endpoints = self.endpoints.saturating_add(other.endpoints);
        self.failures = self.failures.saturating_add(other.failures);
        self.unreached = self.unreached.saturating_add(other.unreached);
    }

    /// The traffic and the errors in words.
    #[must_use]
    pub fn traffic(&self) -> String {
        let path = |name: &str, traffic: &Traffic| match traffic.messages {
            0 => format!("nothing by {name}"),
            count => format!("{} ({}) by {name}", counted(count, "message"), bytes(traffic.bytes)),
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

    /// The line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let rank = match (self.rank, self.size) {
            (Some(rank), Some(size)) => format!("rank {rank} of {size}, "),
            (Some(rank), None) => format!("rank {rank}, "),
            _ => String::new(),
        };
        format!("{rank}process {} on {} sent {}", self.pid, self.host, self.traffic())
    }
}

impl fmt::Display for Line {
    /// Writes the line for programs, without the end of line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "host={}", self.host)?;
        for (name, value) in [("rank", self.rank), ("size", self.size)] {
            if let Some(value) = value {
                write!(f, " {name}={value}")?;
            }
        }
        for (name, value) in self.clone().words() {
            write!(f, " {name}={value}")?;
        }
        write!(f, " .")
    }
}

/// A number with the plural of its noun, in groups of three digits.
#[must_use]
pub fn counted(count: u64, noun: &str) -> String {
    let digits = count.to_string();
    let mut grouped = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    format!("{grouped} {noun}{}", if count == 1 { "" } else { "s" })
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
        Line {
            host: "node7".to_owned(),
            pid: 41,
            rank: Some(3),
            size: Some(4),
            endpoints: 2,
            shm: Traffic { messages: 1_234_567, bytes: 5 << 20 },
            tcp: Traffic { messages: 1, bytes: 9 },
            failures: 0,
            unreached: 0,
        }
    }

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let line = Line { failures: 7, unreached: 8, ..line() };
        assert_eq!(Line::parse(&line.to_string()), Some(line.clone()));
        assert_eq!(Line::parse(&format!("{} future=x .", line.to_string().trim_end_matches(" ."))), Some(line.clone()));
        let unranked = Line { rank: None, size: None, ..line };
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
        let quiet = Line { pid: 5, host: "h".to_owned(), failures: 1, unreached: 2, ..Line::default() };
        assert_eq!(
            quiet.text(),
            "process 5 on h sent nothing by shm, nothing by TCP, 1 failed operation, 2 peers not reached"
        );
    }

    #[test]
    fn sums_have_the_counters_of_all_lines() {
        let mut sum = Line::default();
        sum.add(&line());
        sum.add(&line());
        assert_eq!((sum.shm.messages, sum.tcp.bytes, sum.endpoints), (2_469_134, 18, 4));
        assert!(sum.carried() && !Line::default().carried());
    }

    #[test]
    fn bytes_have_three_digits() {
        let shown = [0, 1023, 1024, 10_240, 1_048_575, 1 << 20, 123 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.00 KiB", "10.0 KiB", "1.00 MiB", "1.00 MiB", "123 GiB", "16.0 EiB"]);
    }
}
