//! The parent's side of a measurement: starts the ranks, distributes their addresses, and collects their results. No
//! rank remains after it, also in case of an error.
//!
//! A rank is a process of this host ([`LocalRank`]), or of a server on another host ([`RemoteRank`]).
//!
//! A deadline bounds the time of the whole measurement. Ranks get SIGTERM first, upon which libfabric's shm provider
//! removes its files in /dev/shm, and SIGKILL if they do not end. If this process dies, the system sends the ranks a
//! signal (see `child`).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::Builder;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cleanup;
use super::job::{Hello, Job, MARK, Measure, Outcome, Task, ToParent};
use super::places::Host;
use super::plan::Variant;
use super::remote::{Control, RemoteRank};
use super::subject::Subject;
use crate::foreign::shown;

/// Time that a rank has to end after SIGTERM.
pub(super) const GRACE: Duration = Duration::from_secs(2);
/// Bytes kept from the end of a rank's standard error.
const KEPT_BYTES: usize = 4096;

/// An event of a rank's output.
pub(super) enum Event {
    Message(ToParent),
    /// The output ended.
    Closed,
}

/// One rank. Dropping it ends its process.
enum Rank {
    Local(LocalRank),
    Remote(RemoteRank),
}

/// Makes one measurement. With `control`, all ranks but the first are on that server.
pub(crate) fn run(job: &Job, subject: &Subject, host: &Host, control: Option<&Control>) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(job.timeout_s as u64);
    let (events, inbox) = channel();
    let mut ranks = Vec::new();
    for number in 0..job.ranks {
        match Rank::start(&job.of_rank(number), subject, host, control, events.clone()) {
            Ok(rank) => ranks.push(rank),
            Err(error) => return Outcome::Failed(error),
        }
    }
    let outcome = conduct(&mut ranks, &inbox, deadline);
    if let Outcome::Measured(_) = outcome {
        // The ranks end when their input closes. They may need time to remove files.
        ranks.iter_mut().for_each(Rank::close);
        let end = Instant::now() + GRACE;
        ranks.iter_mut().for_each(|rank| rank.await_end(end));
    }
    drop(ranks);
    cleanup::files_left();
    match outcome {
        Outcome::Failed(why) => Outcome::Failed(why + cleanup::hint(&subject.provider)),
        other => other,
    }
}

/// Conducts a measurement to its end.
fn conduct(ranks: &mut [Rank], inbox: &Receiver<(usize, Event)>, deadline: Instant) -> Outcome {
    let mut hellos: Vec<Option<Hello>> = vec![None; ranks.len()];
    let mut measures: Vec<Measure> = Vec::new();
    let mut done = 0;
    while done < ranks.len() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok((rank, event)) = inbox.recv_timeout(left) else { return Outcome::TimedOut };
        match event {
            Event::Message(ToParent::Hello(hello)) => {
                hellos[rank] = Some(hello);
                if hellos.iter().all(Option::is_some) {
                    distribute(ranks, &hellos);
                }
            }
            Event::Message(ToParent::Result(result)) => measures.extend(result),
            Event::Message(ToParent::Done) => done += 1,
            Event::Message(ToParent::NotOffered(why)) => return Outcome::NotOffered(why),
            Event::Message(ToParent::Failed(why)) => {
                return gave_up(inbox).unwrap_or_else(|| Outcome::Failed(format!("rank {rank}: {why}")));
            }
            Event::Message(ToParent::Library(..)) => {}
            Event::Closed => return Outcome::Failed(format!("rank {rank} {}", ranks[rank].last_words())),
        }
    }
    if measures.is_empty() { Outcome::Failed("nothing was measured".to_owned()) } else { Outcome::Measured(measures) }
}

/// Waits a moment after the failure of a rank. Its cause may be the exit of another rank that reports an operation
/// that is not offered.
fn gave_up(inbox: &Receiver<(usize, Event)>) -> Option<Outcome> {
    let end = Instant::now() + Duration::from_millis(500);
    while let Ok((_, event)) = inbox.recv_timeout(end.saturating_duration_since(Instant::now())) {
        if let Event::Message(ToParent::NotOffered(why)) = event {
            return Some(Outcome::NotOffered(why));
        }
    }
    None
}

/// Sends the addresses of all ranks to each rank.
fn distribute(ranks: &mut [Rank], hellos: &[Option<Hello>]) {
    let Ok(line) = serde_json::to_string(hellos) else { return };
    for rank in ranks {
        match rank {
            Rank::Local(rank) => rank.tell(&line),
            Rank::Remote(rank) => rank.tell(&line),
        }
    }
}

impl Rank {
    fn start(
        job: &Job,
        subject: &Subject,
        host: &Host,
        control: Option<&Control>,
        events: Sender<(usize, Event)>,
    ) -> Result<Self, String> {
        match control.filter(|_| job.rank > 0) {
            Some(control) => {
                let started = control.start(job, &subject.env, events);
                started.map(Self::Remote).map_err(|error| format!("the connection to {} broke: {error}", control.name))
            }
            None => {
                let started = LocalRank::start(job, subject, host, events);
                started.map(Self::Local).map_err(|error| format!("cannot start a process: {error}"))
            }
        }
    }

    /// Closes the rank's input, upon which it ends.
    fn close(&mut self) {
        match self {
            Self::Local(rank) => rank.close(),
            Self::Remote(rank) => rank.close(),
        }
    }

    /// Waits for the end of the process, at most until `end`.
    fn await_end(&mut self, end: Instant) {
        match self {
            Self::Local(rank) => rank.await_end(end),
            Self::Remote(rank) => rank.await_end(end),
        }
    }

    /// Describes how the process ended.
    fn last_words(&mut self) -> String {
        match self {
            Self::Local(rank) => rank.last_words(),
            Self::Remote(rank) => rank.last_words(),
        }
    }
}

/// The end of a process's standard error.
#[derive(Clone, Default)]
pub(super) struct Complaints(Arc<Mutex<Vec<u8>>>);

impl Complaints {
    /// The last line.
    pub(super) fn last(&self) -> Option<String> {
        let kept = self.0.lock().map(|kept| String::from_utf8_lossy(&kept).into_owned()).unwrap_or_default();
        kept.trim().lines().last().map(shown)
    }

    /// Reads to the end and keeps only the last bytes.
    fn keep_end_of(&self, mut from: impl Read) {
        let mut buffer = [0; 1024];
        while let Ok(count @ 1..) = from.read(&mut buffer) {
            if let Ok(mut kept) = self.0.lock() {
                kept.extend_from_slice(&buffer[..count]);
                let surplus = kept.len().saturating_sub(KEPT_BYTES);
                kept.drain(..surplus);
            }
        }
    }
}

/// A process of this host. Dropping it ends the process.
pub(super) struct LocalRank {
    process: Child,
    stdin: Option<ChildStdin>,
    complaints: Complaints,
}

impl LocalRank {
    /// Starts the process.
    pub(super) fn start(
        job: &Job,
        subject: &Subject,
        host: &Host,
        events: Sender<(usize, Event)>,
    ) -> std::io::Result<Self> {
        let number = job.rank;
        let task = serde_json::to_string(&Task::Rank(Box::new(job.clone())))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["bench-child", &task]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        host.prepare(&mut command, subject);
        command.envs(job.variables().iter().copied());
        if job.case.variant == Variant::IdlePeer {
            // The freed blocks that glibc keeps for the thread would count as in use. They are some 40 KiB, which few
            // peers would share.
            command.env("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0");
        }
        cleanup::starting();
        let mut process = command.spawn()?;
        cleanup::started(pid(&process));
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        // If a thread cannot be started, dropping the rank ends the process.
        let rank = Self { stdin: process.stdin.take(), process, complaints: Complaints::default() };
        if let Some(stdout) = stdout {
            Builder::new().spawn(move || listen(BufReader::new(stdout), number, &events))?;
        }
        if let Some(stderr) = stderr {
            let complaints = rank.complaints();
            Builder::new().spawn(move || complaints.keep_end_of(stderr))?;
        }
        Ok(rank)
    }

    /// The end of its standard error.
    pub(super) fn complaints(&self) -> Complaints {
        self.complaints.clone()
    }

    /// Writes a line to its standard input. A process that cannot be written to has ended; its output shows that.
    pub(super) fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }

    /// Closes its standard input, upon which it ends.
    pub(super) fn close(&mut self) {
        self.stdin = None;
    }

    /// Waits for the end of the process, at most until `end`.
    pub(super) fn await_end(&mut self, end: Instant) {
        while matches!(self.process.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Describes how the process ended, with the last line of its standard error.
    fn last_words(&mut self) -> String {
        self.await_end(Instant::now() + GRACE);
        let how = match self.process.try_wait() {
            Ok(Some(status)) => format!("ended early ({status})"),
            _ => "closed its output".to_owned(),
        };
        match self.complaints.last() {
            Some(last) => format!("{how}: {last}"),
            None => how,
        }
    }
}

impl Drop for LocalRank {
    fn drop(&mut self) {
        self.stdin = None;
        if let (Ok(None), Some(pid)) = (self.process.try_wait(), pid(&self.process)) {
            let _ = kill_process(pid, Signal::TERM);
            self.await_end(Instant::now() + GRACE);
        }
        if let Ok(None) = self.process.try_wait() {
            let _ = self.process.kill();
        }
        let _ = self.process.wait();
        cleanup::ended(pid(&self.process));
    }
}

fn pid(process: &Child) -> Option<Pid> {
    i32::try_from(process.id()).ok().and_then(Pid::from_raw)
}

/// Passes a rank's messages on.
fn listen(output: impl BufRead, rank: usize, events: &Sender<(usize, Event)>) {
    for line in output.lines() {
        let Ok(line) = line else { break };
        let message = line.strip_prefix(MARK).and_then(|text| serde_json::from_str(text).ok());
        if let Some(message) = message
            && events.send((rank, Event::Message(message))).is_err()
        {
            return;
        }
    }
    // The receiver is gone when the measurement is over.
    let _ = events.send((rank, Event::Closed));
}
