//! The report of a process: its traffic over weft in one line, printed when its last endpoint closes.
//!
//! Place in the data flow: beside it. A closing endpoint adds the counters of its engine to the sums of the process.
//! With the last open endpoint, or at the end of the process, the line is written. FI_WEFT_REPORT has two forms:
//!
//! - `1`: a line for people on standard error.
//! - `TOKEN@/proc/PID/fd/N`: a line for `weft run`, which has made a memfd of the name `weft-report-TOKEN`. The line is
//!   appended to that file. Where the link does not lead to this file, as on another host, the line goes to standard
//!   error. Launchers forward it, and `weft run` recognises it by the token.
//!
//! Messages are counted where they are sent, so that the sums of all ranks count each message once.
//!
//! Errors: a line that cannot be written is lost; nothing else is affected.

pub mod line;

use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use rustix::process::{Pid, getpid};
use weft_engine::Engine;
use weft_nic::Device;

use crate::endpoint::cell::{AnyCell, CellRef};
use crate::host::Host;
use crate::params::Params;
use line::{Line, Traffic};

/// Longest wait for a lock at the end of the program, in a signal handler for example.
const STUCK: Duration = Duration::from_millis(100);

/// The place of the report.
#[derive(Debug, PartialEq, Eq)]
enum Place<'a> {
    /// Text for people on standard error.
    People,
    /// A line for the program that has chosen the token and holds the file.
    Program { token: &'a str, file: &'a str },
}

impl<'a> Place<'a> {
    /// Parses the value of FI_WEFT_REPORT. `None`: no report.
    fn parse(value: &'a str) -> Option<Self> {
        match value.split_once('@') {
            Some((token, file)) => Some(Self::Program { token, file }),
            None if ["", "0", "n", "no", "f", "false", "off"].contains(&value.to_ascii_lowercase().as_str()) => None,
            None => Some(Self::People),
        }
    }

    fn of(params: &'a Params) -> Option<Self> {
        params.report.as_deref().and_then(Self::parse)
    }
}

/// The sums of one process.
pub(crate) struct Sums {
    /// The process of the sums. A forked child starts with its parent's, which it must not report.
    owner: Pid,
    open: Vec<Weak<dyn AnyCell>>,
    line: Line,
    /// Whether a line was written.
    reported: bool,
}

static SUMS: Mutex<Option<Sums>> = Mutex::new(None);

impl Sums {
    /// The sums of this process.
    fn ours(sums: &mut Option<Self>) -> &mut Self {
        let owner = getpid();
        match sums {
            Some(known) if known.owner == owner => {}
            _ => *sums = Some(Self { owner, open: Vec::new(), line: Line::default(), reported: false }),
        }
        match sums {
            Some(sums) => sums,
            None => unreachable!("set above"),
        }
    }

    /// Adds the counters of an endpoint.
    pub(crate) fn add<D: Device>(&mut self, engine: &mut Engine<D>, failures: u64) {
        self.line.endpoints += 1;
        self.line.failures += failures;
        for number in 0..usize::try_from(engine.report().peers).unwrap_or(usize::MAX) {
            let Some(peer) = engine.peer_report(number) else { continue };
            let sum = if peer.in_memory { &mut self.line.shm } else { &mut self.line.tcp };
            sum.add(Traffic {
                messages: peer.sent.messages.saturating_add(peer.sent.accesses),
                bytes: peer.sent.bytes.saturating_add(peer.sent.access_bytes),
            });
            self.line.unreached += u64::from(peer.calls_failed > 0 && peer.links_up == 0);
        }
    }

    fn write(&mut self, place: &Place<'_>) {
        write(place, &std::mem::take(&mut self.line).of_this_process());
        self.reported = true;
    }
}

/// An endpoint is enabled.
pub(crate) fn opened(cell: &CellRef, params: &Params) {
    if Place::of(params).is_some() {
        let mut sums = SUMS.lock();
        let sums = Sums::ours(&mut sums);
        sums.open.retain(|known| known.strong_count() > 0);
        sums.open.push(Arc::downgrade(cell));
    }
}

/// The engine of a closing endpoint has sent everything.
pub(crate) fn sent<D: Device>(engine: &mut Engine<D>, failures: u64, params: &Params) {
    if Place::of(params).is_some() {
        Sums::ours(&mut SUMS.lock()).add(engine, failures);
    }
}

/// An endpoint is closed. With the last one, the report is written.
pub(crate) fn closed(cell: &CellRef, params: &Params) {
    let Some(place) = Place::of(params) else { return };
    let mut sums = SUMS.lock();
    let sums = Sums::ours(&mut sums);
    let before = sums.open.len();
    sums.open.retain(|known| !std::ptr::addr_eq(known.as_ptr(), Arc::as_ptr(cell)));
    if sums.open.is_empty() && before > 0 {
        sums.write(&place);
    }
}

/// The host is about to unload the provider. Open endpoints are added. A program that waits for reports also gets one
/// of a process without endpoints.
pub(crate) fn at_end(host: &'static Host) {
    let Some(place) = Place::of(host.params()) else { return };
    let Some(mut sums) = SUMS.try_lock_for(STUCK) else { return };
    // A forked child has endpoints of its own, or nothing to report.
    if sums.as_ref().is_some_and(|sums| sums.owner != getpid()) {
        return;
    }
    let sums = Sums::ours(&mut sums);
    let open = std::mem::take(&mut sums.open);
    for cell in open.iter().filter_map(Weak::upgrade) {
        // A thread that ended inside the endpoint keeps its lock.
        cell.report_to(sums);
    }
    if !open.is_empty() || (!sums.reported && matches!(place, Place::Program { .. })) {
        sums.write(&place);
    }
}

/// Writes a line by one system call.
fn write(place: &Place<'_>, line: &Line) {
    let (file, text) = match place {
        Place::People => (None, format!("weft: {}\n", line.text())),
        Place::Program { token, file } => (open(file, token), format!("{token} {line}\n")),
    };
    let bytes = text.as_bytes();
    // An error cannot be reported anywhere.
    let _ = match &file {
        Some(file) => rustix::io::write(file.as_fd(), bytes).map_err(Into::into),
        None => std::io::stderr().write(bytes),
    };
}

/// Opens the file of the program that waits for reports. `None`: the link leads elsewhere.
fn open(link: &str, token: &str) -> Option<OwnedFd> {
    let expected = line::link_of(token);
    if !link.starts_with("/proc/") || std::fs::read_link(link).ok()? != Path::new(&expected) {
        return None;
    }
    rustix::fs::open(link, OFlags::WRONLY | OFlags::APPEND | OFlags::CLOEXEC, Mode::empty()).ok()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::fd::AsRawFd;

    use super::*;

    #[test]
    fn values_choose_the_place() {
        assert_eq!(Place::parse("1"), Some(Place::People));
        assert!(["", "0", "No", "off"].into_iter().all(|value| Place::parse(value).is_none()));
        let place = Place::parse("abc@/proc/7/fd/3");
        assert_eq!(place, Some(Place::Program { token: "abc", file: "/proc/7/fd/3" }));
    }

    #[test]
    fn only_the_named_memfd_is_opened() {
        let file = rustix::fs::memfd_create("weft-report-abc", rustix::fs::MemfdFlags::CLOEXEC).expect("a memfd");
        let link = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        assert!(open(&link, "abd").is_none() && open("/etc/passwd", "abc").is_none());
        let place = Place::Program { token: "abc", file: &link };
        write(&place, &Line { endpoints: 1, ..Line::default() });
        write(&place, &Line { endpoints: 2, ..Line::default() });
        let mut text = String::new();
        std::fs::File::open(&link).expect("the memfd").read_to_string(&mut text).expect("text");
        let lines: Vec<_> = text.lines().filter_map(|line| Line::parse(line.strip_prefix("abc ")?)).collect();
        assert_eq!(lines.iter().map(|line| line.endpoints).collect::<Vec<_>>(), [1, 2]);
    }
}
