//! The record of a process: its counters, in a place that survives it.
//!
//! Place in the data flow: each endpoint adds the growth of its counters (`Part` in `report.rs`); `weft run` reads the
//! records ([`read`]). On its host a record is a piece of a memfd that `weft run` has made. The process appends the
//! piece and maps it, so that it changes the counters without a system call, and the last values remain however the
//! process ends. Elsewhere the counters are the process's own, and lines on standard error have them: one when the
//! first endpoint opens, further ones at growing intervals while the counters change, and one at the end. Launchers
//! forward the lines.
//!
//! Trust: readers bound what they read, and take the counters for numbers only.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags};
use rustix::fs::{Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Pid, getpid};
use rustix::time::Timespec;
use weft_os::memfile::{self, Counters};

use super::line::{self, COUNTERS, Counts, ERRORS, Line};
use super::{Profiling, STUCK};
use weft_observe::identity::Identity;
use weft_observe::now_ns;

/// Bytes of a record in the memfd: a line of text with the process's identity, the counters, and the text of a fault.
pub const RECORD_BYTES: usize = 1024;
/// Offset of the counters, little-endian words.
const COUNTERS_AT: usize = 512;
/// Words of the text behind the counters.
const FAULT_WORDS: usize = (RECORD_BYTES - COUNTERS_AT) / 8 - COUNTERS;
/// Most records that a reader takes.
const RECORDS_MOST: usize = 1 << 16;
/// Their bytes.
const BYTES_MOST: u64 = (RECORDS_MOST * RECORD_BYTES) as u64;
/// The first interval between two lines on standard error. It doubles with each line.
const FIRST_INTERVAL_NS: u64 = 100_000_000;
/// The longest interval.
const LAST_INTERVAL_NS: u64 = 10_000_000_000;

/// The place of the report.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Text for people on standard error.
    People,
    /// A record, or lines, for the program that has chosen the token and holds the file.
    Program { token: String, file: String },
}

impl Place {
    /// Parses the value of FI_WEFT_REPORT. `None`: no report.
    pub(super) fn parse(value: &str) -> Option<Self> {
        match value.split_once('@') {
            Some((token, file)) => Some(Self::Program { token: token.to_owned(), file: file.to_owned() }),
            None if ["", "0", "n", "no", "f", "false", "off"].contains(&value.to_ascii_lowercase().as_str()) => None,
            None => Some(Self::People),
        }
    }
}

/// The counters of a record.
enum Memory {
    /// In the memfd of the program that reads them.
    Shared(Counters),
    Own([AtomicU64; COUNTERS]),
}

/// The lines of a process whose record has no other reader.
#[derive(Debug, Default)]
struct Lines {
    due_ns: u64,
    interval_ns: u64,
    /// The counters of the last line. `None`: no line was written.
    written: Option<Counts>,
}

/// The record of this process.
pub(super) struct Record {
    /// A forked child has its parent's record, too, and must not change it.
    owner: Pid,
    place: Place,
    /// The identity, without counters.
    line: Line,
    memory: Memory,
    lines: Mutex<Lines>,
    /// The counters of the profiling library, if it was preloaded.
    profiling: Option<Profiling>,
}

impl Record {
    /// A record in the given place.
    pub(super) fn new(place: Place) -> Self {
        let line = Line {
            identity: Identity::of_this_process(),
            pid: std::process::id().into(),
            since_ns: now_ns(),
            ..Line::default()
        };
        let shared = match &place {
            Place::Program { token, file } => claim(file, token, &line),
            Place::People => None,
        };
        let memory = shared.map_or_else(|| Memory::Own(std::array::from_fn(|_| AtomicU64::new(0))), Memory::Shared);
        let profiling = Profiling::find();
        Self { owner: getpid(), place, line, memory, lines: Mutex::default(), profiling }
    }

    /// Whether this process made the record.
    pub(super) fn is_ours(&self) -> bool {
        getpid() == self.owner
    }

    fn counters(&self) -> &[AtomicU64] {
        match &self.memory {
            Memory::Shared(words) => &words.get()[..COUNTERS],
            Memory::Own(counters) => counters,
        }
    }

    /// Notes a fault. The text of the first one is for the reader.
    pub(super) fn note_fault(&self, text: &str) {
        let before = self.counters()[ERRORS].fetch_add(1, Ordering::Relaxed);
        if let (0, Memory::Shared(words)) = (before, &self.memory) {
            let mut bytes = [0; FAULT_WORDS * 8];
            let len = text.len().min(bytes.len());
            bytes[..len].copy_from_slice(&text.as_bytes()[..len]);
            for (word, bytes) in words.get()[COUNTERS..].iter().zip(bytes.as_chunks().0) {
                word.store(u64::from_le_bytes(*bytes), Ordering::Relaxed);
            }
        }
    }

    /// Adds the difference of two states of an endpoint's counters. Some may have become less.
    pub(super) fn add(&self, before: Counts, after: Counts) {
        for ((counter, before), after) in self.counters().iter().zip(before.to_array()).zip(after.to_array()) {
            if after != before {
                counter.fetch_add(after.wrapping_sub(before), Ordering::Relaxed);
            }
        }
        if let Some(profiling) = &self.profiling {
            let [collectives, left_collectives, completes_nodes, small_nodes] = profiling.read();
            let counts = Counts { collectives, left_collectives, completes_nodes, small_nodes, ..Counts::default() };
            for (counter, count) in self.counters().iter().zip(counts.to_array()).filter(|(_, count)| *count > 0) {
                counter.store(count, Ordering::Relaxed);
            }
        }
    }

    /// The present counters.
    fn counts(&self) -> Counts {
        let mut words = [0; COUNTERS];
        for (word, counter) in words.iter_mut().zip(self.counters()) {
            *word = counter.load(Ordering::Relaxed);
        }
        Counts::of_array(words)
    }

    /// The token, if lines on standard error are the only way to the reader.
    fn token_of_lines(&self) -> Option<&str> {
        match (&self.place, &self.memory) {
            (Place::Program { token, .. }, Memory::Own(_)) => Some(token),
            _ => None,
        }
    }

    /// Writes a line on standard error, if the last one is long ago and the counters have changed.
    pub(super) fn forward_if_due(&self, now_ns: u64) {
        let Some(token) = self.token_of_lines() else { return };
        let Some(mut lines) = self.lines.try_lock() else { return };
        let counts = self.counts();
        // A full pipe would stop the client.
        if now_ns < lines.due_ns || lines.written == Some(counts) || !stderr_has_room() {
            return;
        }
        lines.interval_ns = (2 * lines.interval_ns).clamp(FIRST_INTERVAL_NS, LAST_INTERVAL_NS);
        lines.due_ns = now_ns + lines.interval_ns;
        lines.written = Some(counts);
        self.write_line(token, counts);
    }

    /// The last open endpoint is closed, or the program ends: writes the line, except where a record suffices.
    /// `used`: there was an endpoint since the last line.
    pub(super) fn finish(&self, used: bool) {
        let counts = self.counts();
        if let Some(token) = self.token_of_lines() {
            let Some(mut lines) = self.lines.try_lock_for(STUCK) else { return };
            if lines.written.replace(counts) != Some(counts) {
                self.write_line(token, counts);
            }
        } else if self.place == Place::People && used {
            // The next endpoints have a line of their own.
            self.counters().iter().for_each(|counter| counter.store(0, Ordering::Relaxed));
            write_stderr(&format!("weft: {}\n", Line { counts, ..self.line.clone() }.text()));
        }
    }

    fn write_line(&self, token: &str, counts: Counts) {
        write_stderr(&format!("{token} {}\n", Line { counts, ..self.line.clone() }));
    }
}

/// Writes a text by one system call. An error cannot be reported anywhere.
fn write_stderr(text: &str) {
    let _ = std::io::stderr().write(text.as_bytes());
}

fn stderr_has_room() -> bool {
    let stderr = std::io::stderr();
    let mut fds = [PollFd::new(&stderr, PollFlags::OUT)];
    rustix::event::poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready == 1)
}

/// Appends a record to the memfd of the program that waits for it. `None`: the link leads elsewhere, as on another
/// host.
fn claim(link: &str, token: &str, line: &Line) -> Option<Counters> {
    if !link.starts_with("/proc/") || std::fs::read_link(link).ok()? != Path::new(&line::link_of(token)) {
        return None;
    }
    append(link, token, line).inspect_err(|error| log::info!("no record for `weft run`: {error}")).ok()
}

fn append(link: &str, token: &str, line: &Line) -> Result<Counters, Errno> {
    let flags = OFlags::RDWR | OFlags::APPEND | OFlags::CLOEXEC;
    let file = rustix::fs::open(link, flags, Mode::empty())?;
    let mut bytes = [0; RECORD_BYTES];
    let text = format!("{token} {line}\n");
    bytes[..COUNTERS_AT].get_mut(..text.len()).ok_or(Errno::NAMETOOLONG)?.copy_from_slice(text.as_bytes());
    let len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(u64::MAX);
    // Other processes append, too.
    memfile::check_size_limit(BYTES_MOST)?;
    if len >= BYTES_MOST || rustix::io::write(&file, &bytes)? != RECORD_BYTES {
        return Err(Errno::NOSPC);
    }
    // A write that appends leaves the offset behind its bytes.
    let end = rustix::fs::seek(&file, SeekFrom::Current(0))?;
    Counters::map(&file, end - RECORD_BYTES as u64 + COUNTERS_AT as u64, COUNTERS + FAULT_WORDS)
}

/// The records in a memfd.
#[must_use]
pub fn read(file: &File, token: &str) -> Vec<Line> {
    use std::os::unix::fs::FileExt;
    let mut bytes = [0; RECORD_BYTES];
    let records = (0..RECORDS_MOST).map_while(|number| {
        file.read_exact_at(&mut bytes, (number * RECORD_BYTES) as u64).ok()?;
        Some(parse(&bytes, token))
    });
    records.flatten().collect()
}

fn parse(bytes: &[u8; RECORD_BYTES], token: &str) -> Option<Line> {
    let text = String::from_utf8_lossy(&bytes[..COUNTERS_AT]);
    let line = Line::parse(text.lines().next()?.strip_prefix(token)?.trim_start())?;
    let mut words = [0; COUNTERS];
    for (word, bytes) in words.iter_mut().zip(bytes[COUNTERS_AT..].as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let fault = String::from_utf8_lossy(&bytes[COUNTERS_AT + COUNTERS * 8..]);
    let fault = fault.trim_end_matches(['\0', '\u{fffd}']).replace(char::is_control, " ");
    Some(Line { counts: Counts::of_array(words), fault, ..line })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsRawFd;

    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn memfd(token: &str) -> (File, String) {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create(format!("weft-report-{token}"), flags).unwrap());
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        (file, link)
    }

    fn place(token: &str, file: &str) -> Place {
        Place::Program { token: token.to_owned(), file: file.to_owned() }
    }

    #[test]
    fn values_choose_the_place() {
        assert_eq!(Place::parse("1"), Some(Place::People));
        assert!(["", "0", "No", "off"].into_iter().all(|value| Place::parse(value).is_none()));
        assert_eq!(Place::parse("abc@/proc/7/fd/3"), Some(place("abc", "/proc/7/fd/3")));
    }

    #[test]
    fn only_the_named_memfd_is_opened() {
        let (_file, link) = memfd("abc");
        let line = Line::default();
        assert!(claim(&link, "abd", &line).is_none() && claim("/etc/passwd", "abc", &line).is_none());
        assert!(claim(&link, "abc", &line).is_some());
    }

    #[test]
    fn the_reader_sees_the_present_counters_of_all_records() {
        let (file, link) = memfd("abc");
        let records = [0, 1].map(|_| Record::new(place("abc", &link)));
        let first = Counts { endpoints: 1, failures: 3, unreached: 1, ..Counts::default() };
        records[0].add(Counts::default(), first);
        records[0].add(first, Counts { unreached: 0, failures: 5, ..first });
        records[1].add(Counts::default(), first);
        let counts: Vec<_> = read(&file, "abc").iter().map(|line| line.counts).collect();
        assert_eq!(counts, [Counts { unreached: 0, failures: 5, ..first }, first]);
        assert!(read(&file, "abd").is_empty());
        drop(records);
        assert_eq!(read(&file, "abc").len(), 2, "records survive their processes");
    }

    #[test]
    fn the_first_fault_is_kept_for_the_reader() {
        let (file, link) = memfd("abc");
        let record = Record::new(place("abc", &link));
        record.note_fault("no interface eth7; set FI_WEFT_IFACE");
        record.note_fault("another one");
        let lines = read(&file, "abc");
        assert_eq!((lines[0].fault.as_str(), lines[0].counts.errors), ("no interface eth7; set FI_WEFT_IFACE", 2));
        let long = Record::new(place("abc", &link));
        long.note_fault(&"µ".repeat(1000));
        let fault = read(&file, "abc").remove(1).fault;
        assert!(fault.len() > 400 && fault.chars().all(|char| char == 'µ'), "{fault}");
    }

    #[test]
    fn a_broken_file_is_read_without_harm() {
        use std::os::unix::fs::FileExt;
        let (file, link) = memfd("abc");
        let record = Record::new(place("abc", &link));
        file.write_all_at(&[0xff; RECORD_BYTES + 10], RECORD_BYTES as u64).unwrap();
        file.write_all_at(b"abc host=", 3 * RECORD_BYTES as u64).unwrap();
        assert_eq!(read(&file, "abc").len(), 1);
        drop(record);
    }
}
