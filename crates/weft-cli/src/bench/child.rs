//! A child process: one rank of a measurement, or a probe.
//!
//! The process ends with its parent: the system sends it SIGTERM then. In addition, a thread kills the process
//! some time after its deadline.

use std::io::{BufRead, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Signal, getpid, getppid, kill_process, set_parent_process_death_signal};
use weft_client::Library;

use super::job::{Hello, Job, MARK, Measure, Task, ToParent};
use super::{cleanup, cores, kinds};

/// The reason why a rank cannot continue.
#[derive(Debug)]
pub(crate) enum RankError {
    /// The provider lacks a needed capability.
    NotOffered(String),
    /// The measurement failed.
    Failed(String),
    /// An operation could not be posted for a long time.
    Stuck,
}

impl From<weft_client::Error> for RankError {
    fn from(error: weft_client::Error) -> Self {
        if error.is_not_offered() { Self::NotOffered(error.to_string()) } else { Self::Failed(error.to_string()) }
    }
}

impl From<std::io::Error> for RankError {
    fn from(error: std::io::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The main function of a child process. `task` is its argument.
pub(crate) fn run(task: &str) -> ExitCode {
    cleanup::in_child();
    let last = match serde_json::from_str(task) {
        Err(error) => ToParent::Failed(format!("this command is internal to `weft bench`: {error}")),
        Ok(Task::Probe(path)) => match probe(&path) {
            Ok(library) => {
                report(&library);
                return ExitCode::SUCCESS;
            }
            Err(error) => ToParent::Failed(error.to_string()),
        },
        Ok(Task::Rank(job)) => match rank(*job) {
            Ok(()) => return ExitCode::SUCCESS,
            Err(RankError::NotOffered(why)) => ToParent::NotOffered(why),
            Err(RankError::Failed(why)) => ToParent::Failed(why),
            Err(RankError::Stuck) => ToParent::Failed("an operation could not be posted for a long time".to_owned()),
        },
    };
    report(&last);
    ExitCode::FAILURE
}

/// Writes a line to the parent. Errors are ignored: this process ends with its parent.
fn report(message: &ToParent) {
    if let Ok(line) = serde_json::to_string(message) {
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{MARK}{line}").and_then(|()| out.flush());
    }
}

fn probe(path: &Path) -> Result<ToParent, weft_client::Error> {
    let library = Library::load(path)?;
    let (major, minor) = library.version();
    Ok(ToParent::Library(major, minor, library.providers()?))
}

fn rank(job: Job) -> Result<(), RankError> {
    die_with_parent(&job).map_err(RankError::Failed)?;
    cores::pin(&job.others_cores).map_err(RankError::Failed)?;
    kinds::run(&mut Session { job })
}

fn die_with_parent(job: &Job) -> Result<(), String> {
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(|error| error.to_string())?;
    let parent = getppid().map(|pid| pid.as_raw_nonzero().get().unsigned_abs());
    if parent != Some(job.parent) {
        return Err("the parent is gone".to_owned());
    }
    let limit = Duration::from_secs(job.timeout_s as u64 + 10);
    std::thread::spawn(move || {
        std::thread::sleep(limit);
        let _ = kill_process(getpid(), Signal::KILL);
    });
    Ok(())
}

/// A rank's exchange of messages with its parent.
pub(crate) struct Session {
    pub(crate) job: Job,
}

impl Session {
    /// Called when the provider has started its threads. From then on this thread runs on the cores for threads that
    /// call the provider.
    pub(crate) fn opened(&self) -> Result<(), RankError> {
        let Job { cores, others_cores, .. } = &self.job;
        if cores == others_cores { Ok(()) } else { cores::pin(cores).map_err(RankError::Failed) }
    }

    /// Sends this rank's addresses to the parent, and waits for the addresses of all ranks.
    pub(crate) fn exchange(&self, mut hello: Hello) -> Result<Vec<Hello>, RankError> {
        hello.pid = std::process::id();
        report(&ToParent::Hello(hello));
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        let hellos: Option<Vec<Option<Hello>>> = serde_json::from_str(&line).ok();
        let hellos = hellos.and_then(|all| all.into_iter().collect::<Option<Vec<_>>>());
        hellos.ok_or_else(|| RankError::Failed("the parent sent no addresses".to_owned()))
    }

    /// Sends the measured values to the parent.
    pub(crate) fn result(&self, measures: Vec<Measure>) {
        report(&ToParent::Result(measures));
    }

    /// Reports that this rank is finished, and makes progress until all ranks are.
    pub(crate) fn finish(&self, progress: impl FnMut() -> Result<(), RankError>) -> Result<(), RankError> {
        self.linger(0, progress)
    }

    /// Does the same as [`Session::finish`], but sleeps `pause_ms` between two calls of `progress`, so that the other
    /// ranks are less disturbed.
    pub(crate) fn linger(
        &self,
        pause_ms: i64,
        mut progress: impl FnMut() -> Result<(), RankError>,
    ) -> Result<(), RankError> {
        report(&ToParent::Done);
        let stdin = std::io::stdin();
        let mut alive = true;
        loop {
            // Some providers report the exit of a peer as an error, which no longer matters here.
            alive = alive && progress().is_ok();
            let pause_ms = if alive { pause_ms } else { 50 };
            let pause = Timespec { tv_sec: pause_ms / 1000, tv_nsec: pause_ms % 1000 * 1_000_000 };
            if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&pause)).is_ok_and(|ready| ready > 0) {
                return Ok(());
            }
        }
    }
}

/// Writes bytes in hexadecimal.
pub(crate) fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reads bytes in hexadecimal.
pub(crate) fn from_hex(text: &str) -> Result<Vec<u8>, RankError> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let byte = |pair: &[u8]| Some(digit(*pair.first()?)? << 4 | digit(*pair.get(1)?)?);
    let bytes: Option<Vec<u8>> = text.as_bytes().chunks(2).map(byte).collect();
    bytes.ok_or_else(|| RankError::Failed("an address that is not hexadecimal".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_survive_as_text() {
        let bytes: Vec<u8> = (0..=255).collect();
        assert_eq!(from_hex(&to_hex(&bytes)).expect("well-formed"), bytes);
        assert!(from_hex("0").is_err() && from_hex("xy").is_err());
    }
}
