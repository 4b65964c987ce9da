//! The reports of a job's processes.
//!
//! Place in the data flow: `weft_fi::observe::report` in each rank → records in a memfd of this process, or lines in
//! the standard error that the launcher forwards → here → `jobs.rs`. Records are read when the job has ended. They have
//! the last counters of processes that were killed.
//!
//! Trust: the reports come from the user's own processes. Text that only resembles a report is passed on as it is. The
//! token is random, so programs do not print it by chance.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::process::ChildStderr;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use weft_fi::observe::report::line::Line;
use weft_fi::observe::report::record;

use crate::foreign::shown;

/// Time for the output of processes that outlive the launcher.
const LAST_OUTPUT: Duration = Duration::from_secs(1);
/// Longest line that may be a report.
const LINE_BYTES: usize = 4096;

/// Gathers the reports of one job.
pub(crate) struct Collector {
    token: String,
    file: File,
    /// Reports from standard error.
    forwarded: Arc<Mutex<Vec<Line>>>,
}

impl Collector {
    /// Makes the memfd.
    pub(crate) fn new() -> io::Result<Self> {
        let random = weft_nic::handshake::random().map_err(|error| io::Error::other(error.to_string()))?;
        let token = format!("weft-{:016x}", u64::from_ne_bytes(random));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create(format!("weft-report-{token}"), flags)?;
        // Processes map their records only if these cannot vanish.
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK)?;
        Ok(Self { token, file: file.into(), forwarded: Arc::default() })
    }

    /// The value of FI_WEFT_REPORT for the ranks.
    pub(crate) fn value(&self) -> String {
        format!("{}@/proc/{}/fd/{}", self.token, std::process::id(), self.file.as_raw_fd())
    }

    /// Passes the launcher's standard error on, without reports.
    pub(crate) fn filter(&self, pipe: ChildStderr) -> Filter {
        let (token, forwarded) = (self.token.clone(), Arc::clone(&self.forwarded));
        let (end, ended) = channel();
        std::thread::spawn(move || {
            let mut separator = Separator::new(token);
            pass_on(pipe, &mut separator, &forwarded);
            // The receiver may have given up.
            let _ = end.send(());
        });
        Filter(ended)
    }

    /// The last reports of all processes so far.
    pub(crate) fn reports(&self) -> Vec<Line> {
        let forwarded = self.forwarded.lock().unwrap_or_else(PoisonError::into_inner);
        last(record::read(&self.file, &self.token).into_iter().chain(forwarded.iter().cloned()).map(fit))
    }
}

/// A report whose text can be shown.
fn fit(report: Line) -> Line {
    let Line { mut identity, fault, .. } = report;
    for text in [&mut identity.host, &mut identity.job] {
        *text = shown(text);
    }
    Line { identity, fault: shown(&fault), ..report }
}

/// The last report of each program. Ranks in process namespaces of their own may have equal process ids.
fn last(reports: impl Iterator<Item = Line>) -> Vec<Line> {
    let mut last: Vec<Line> = Vec::new();
    for report in reports {
        let is_same = |known: &&mut Line| {
            (known.pid, known.since_ns, &known.identity) == (report.pid, report.since_ns, &report.identity)
        };
        match last.iter_mut().find(is_same) {
            Some(known) => *known = report,
            None => last.push(report),
        }
    }
    last
}

/// The thread that passes standard error on.
pub(crate) struct Filter(Receiver<()>);

impl Filter {
    /// Waits until all output was passed on. A process that outlives the launcher keeps the pipe open, so the wait is
    /// bounded.
    pub(crate) fn finish(self) {
        // The output of such a process is passed on until this program ends.
        let _ = self.0.recv_timeout(LAST_OUTPUT);
    }
}

fn pass_on(mut pipe: ChildStderr, separator: &mut Separator, forwarded: &Mutex<Vec<Line>>) {
    let mut bytes = [0; 16 << 10];
    let mut output = Vec::new();
    loop {
        let len = match pipe.read(&mut bytes) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => 0,
        };
        output.clear();
        if len == 0 {
            separator.end(&mut output);
        } else {
            let reports = separator.take(&bytes[..len], &mut output);
            forwarded.lock().unwrap_or_else(PoisonError::into_inner).extend(reports);
        }
        // The job goes on when our own standard error is closed.
        let _ = io::stderr().write_all(&output);
        if len == 0 {
            return;
        }
    }
}

/// Separates reports from other text, which it keeps in order and delays only where it may be part of a report.
struct Separator {
    token: String,
    /// Bytes of a line that may contain a report.
    kept: Vec<u8>,
}

impl Separator {
    const fn new(token: String) -> Self {
        Self { token, kept: Vec::new() }
    }

    /// Takes arrived bytes, appends those of other text to `output`, and returns the reports.
    fn take(&mut self, bytes: &[u8], output: &mut Vec<u8>) -> Vec<Line> {
        self.kept.extend_from_slice(bytes);
        let mut reports = Vec::new();
        let kept = std::mem::take(&mut self.kept);
        let mut rest = &kept[..];
        while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
            let (line, after) = rest.split_at(end + 1);
            match self.report(line) {
                Some((before, report)) => {
                    output.extend_from_slice(before);
                    reports.push(report);
                }
                None => output.extend_from_slice(line),
            }
            rest = after;
        }
        // A launcher writes a line in pieces only if it is long, but a pipe may split it anywhere.
        if self.may_become_report(rest) {
            rest.clone_into(&mut self.kept);
        } else {
            output.extend_from_slice(rest);
        }
        reports
    }

    /// The report in a line, and the text before it that is not the launcher's own mark, such as `[1]` or `0:`.
    fn report<'a>(&self, line: &'a [u8]) -> Option<(&'a [u8], Line)> {
        let at = memchr::memmem::find(line, self.token.as_bytes())?;
        let text = std::str::from_utf8(&line[at + self.token.len()..]).ok()?;
        let report = Line::parse(text.trim())?;
        let before = &line[..at];
        Some((if is_mark(before) { &[] } else { before }, report))
    }

    /// Whether the beginning of a line contains the token, ends in a part of it, or is a launcher's mark. Hydra writes
    /// its mark before it writes the line.
    fn may_become_report(&self, line: &[u8]) -> bool {
        let token = self.token.as_bytes();
        line.len() < LINE_BYTES
            && (memchr::memmem::find(line, token).is_some()
                || (line.ends_with(b" ") && is_mark(line))
                || (1..token.len()).any(|len| line.ends_with(&token[..len])))
    }

    /// No more bytes arrive.
    fn end(&mut self, output: &mut Vec<u8>) {
        output.append(&mut self.kept);
    }
}

/// Whether a launcher has put this text before a rank's line: `[1] `, `[1,0]<stderr>: `, `0: `.
fn is_mark(text: &[u8]) -> bool {
    let text = String::from_utf8_lossy(text);
    let text = text.trim();
    let numbered = !text.is_empty() && text.trim_end_matches(':').chars().all(|char| char.is_ascii_digit());
    text.is_empty() || numbered || (text.starts_with('[') && text.ends_with([']', ':']))
}

#[cfg(test)]
mod tests {
    use weft_fi::observe::report::line::Counts;
    use weft_observe::identity::Identity;

    use super::*;

    const TOKEN: &str = "weft-0123";

    fn report(rank: u64) -> Line {
        let identity = Identity { host: "h".to_owned(), rank: Some(rank), ..Identity::default() };
        Line { identity, pid: rank, ..Line::default() }
    }

    #[test]
    fn reports_are_separated_at_any_split() {
        let text = format!("hello\n{TOKEN} {}\n[1] {TOKEN} {}\npart{TOKEN} {}\nend", report(0), report(1), report(2));
        for split in 0..text.len() {
            let mut separator = Separator::new(TOKEN.to_owned());
            let mut output = Vec::new();
            let mut reports = separator.take(&text.as_bytes()[..split], &mut output);
            reports.extend(separator.take(&text.as_bytes()[split..], &mut output));
            separator.end(&mut output);
            assert_eq!(reports, [report(0), report(1), report(2)], "split at {split}");
            // A mark that was split is passed on as a whole or in part.
            let output = String::from_utf8_lossy(&output);
            let parts = ["hello\npartend", "hello\n[1] partend", "hello\n[1partend", "hello\n[1]partend"];
            assert!(parts.contains(&&*output), "split at {split}: {output:?}");
        }
    }

    #[test]
    fn other_text_is_not_delayed() {
        let mut separator = Separator::new(TOKEN.to_owned());
        let mut output = Vec::new();
        assert!(separator.take(b"password: ", &mut output).is_empty());
        assert_eq!(output, b"password: ");
        let broken = format!("{TOKEN} host=h pid=\n");
        separator.take(broken.as_bytes(), &mut output);
        assert!(output.ends_with(broken.as_bytes()));
    }

    #[test]
    fn a_later_report_of_a_program_replaces_the_earlier_one() {
        let of = |rank, since_ns, endpoints| Line {
            since_ns,
            counts: Counts { endpoints, ..Counts::default() },
            ..report(rank)
        };
        // The process of rank 1 executes another program.
        let reports = last([of(1, 1, 1), of(2, 1, 5), of(1, 1, 2), of(1, 9, 7)].into_iter());
        assert_eq!(reports.iter().map(|line| line.counts.endpoints).collect::<Vec<_>>(), [2, 5, 7]);
    }

    #[test]
    fn ranks_with_equal_process_ids_are_told_apart() {
        let of_rank = |rank| Line { pid: 2, ..report(rank) };
        assert_eq!(last([of_rank(0), of_rank(1)].into_iter()).len(), 2);
    }

    #[test]
    fn marks_of_launchers_are_known() {
        assert!([&b"[1] "[..], b"[1,0]<stderr>: ", b"0: ", b"", b"[node1:00001] "].into_iter().all(is_mark));
        assert!(![&b"step 1 "[..], b"x"].into_iter().any(is_mark));
    }
}
