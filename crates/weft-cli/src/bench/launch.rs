//! The parent's side of a measurement: starts the ranks, distributes their addresses, and collects their results. No
//! rank remains after it, also in case of an error.
//!
//! A deadline bounds the time of the whole measurement. Ranks get SIGTERM first, upon which libfabric's shm provider
//! removes its files in /dev/shm, and SIGKILL if they do not end. If this process dies, the system sends the ranks a
//! signal (see `child`).

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::cleanup;
use super::job::{Hello, Job, MARK, Measure, Outcome, Task, ToParent};
use super::places::Host;
use super::plan::Variant;
use super::subject::Subject;

/// Time that a rank has to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// Bytes kept from the end of a rank's standard error.
const KEPT_BYTES: usize = 4096;

/// An event of a rank's output.
enum Event {
    Message(ToParent),
    /// The output ended.
    Closed,
}

/// One rank. Dropping it ends the process.
struct Rank {
    process: Child,
    stdin: Option<ChildStdin>,
    complaints: Arc<Mutex<Vec<u8>>>,
}

/// Makes one measurement.
pub(crate) fn run(job: &Job, subject: &Subject, host: &Host) -> Outcome {
    let deadline = Instant::now() + Duration::from_secs(job.timeout_s as u64);
    let (events, inbox) = channel();
    let mut ranks = Vec::new();
    for number in 0..job.ranks {
        match Rank::start(&job.of_rank(number), subject, host, number, events.clone()) {
            Ok(rank) => ranks.push(rank),
            Err(error) => return Outcome::Failed(format!("cannot start a process: {error}")),
        }
    }
    let outcome = conduct(&mut ranks, &inbox, deadline);
    if let Outcome::Measured(_) = outcome {
        // The ranks end when their input closes. They may need time to remove files.
        ranks.iter_mut().for_each(|rank| rank.stdin = None);
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

/// Sends the addresses of all ranks to each rank. A rank that cannot be written to has ended; its output shows that.
fn distribute(ranks: &mut [Rank], hellos: &[Option<Hello>]) {
    let Ok(line) = serde_json::to_string(hellos) else { return };
    for rank in ranks {
        if let Some(stdin) = &mut rank.stdin {
            let _ = writeln!(stdin, "{line}").and_then(|()| stdin.flush());
        }
    }
}

impl Rank {
    fn start(
        job: &Job,
        subject: &Subject,
        host: &Host,
        number: usize,
        events: Sender<(usize, Event)>,
    ) -> std::io::Result<Self> {
        let task = serde_json::to_string(&Task::Rank(job.clone()))?;
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
        let complaints = Arc::new(Mutex::new(Vec::new()));
        if let Some(stdout) = process.stdout.take() {
            std::thread::spawn(move || listen(BufReader::new(stdout), number, &events));
        }
        if let Some(stderr) = process.stderr.take() {
            let kept = Arc::clone(&complaints);
            std::thread::spawn(move || keep_end(stderr, &kept));
        }
        Ok(Self { stdin: process.stdin.take(), process, complaints })
    }

    /// Waits for the end of the process, at most until `end`.
    fn await_end(&mut self, end: Instant) {
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
        let kept = self.complaints.lock().map(|kept| String::from_utf8_lossy(&kept).into_owned()).unwrap_or_default();
        match kept.trim().lines().last() {
            Some(last) => format!("{how}: {last}"),
            None => how,
        }
    }
}

impl Drop for Rank {
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

/// Reads to the end and keeps only the last bytes.
fn keep_end(mut from: impl Read, kept: &Mutex<Vec<u8>>) {
    let mut buffer = [0; 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer) {
        if let Ok(mut kept) = kept.lock() {
            kept.extend_from_slice(&buffer[..count]);
            let surplus = kept.len().saturating_sub(KEPT_BYTES);
            kept.drain(..surplus);
        }
    }
}
