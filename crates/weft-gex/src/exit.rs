//! The end of a job.
//!
//! Place in the data flow: `gasnet_exit`, exit(3), a return from main and fatal signals come here, from any thread and
//! also from signal handlers and handlers of messages. No function here takes a lock that such a caller could hold.
//!
//! ```text
//! a rank ends: note the code on the board, note the stage, write streams out
//!    forked ranks:   leave; the supervisor ends the others (spawn/fork.rs)
//!    launched ranks: wait for the others, ask them (SIGQUIT), kill them, report to the launcher, leave
//!                    other hosts: a fence of the launcher with a time limit; a message; the launcher's abort
//! ```
//!
//! The other ranks have a short grace to call exit themselves, because most programs end in all ranks at about the same
//! time. Ranks that do not end by SIGQUIT are killed after `GASNET_EXITTIMEOUT` seconds.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

use weft_engine::nic::Nic as _;

use crate::am;
use crate::board::{Board, Stage};
use crate::env;
use crate::job::Job;
use crate::meet::RankEngine;
use crate::os;
use crate::platform;
use crate::spawn::Launcher;

/// The time for ranks to end after SIGQUIT, unless `GASNET_EXITTIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The time for messages to leave a process that ends.
const FLUSH: Duration = Duration::from_millis(500);

/// Signals that end a process, and end its job.
const FATAL: [i32; 9] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGABRT,
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGPIPE,
];

static LIMIT: OnceLock<Duration> = OnceLock::new();

/// The time that ranks have to end by themselves after the first one has ended.
#[must_use]
pub fn grace(ranks: u32) -> Duration {
    Duration::from_millis(250 + 5 * u64::from(ranks))
}

/// The time that ranks have to end after the request.
#[must_use]
pub fn timeout() -> Duration {
    *LIMIT.get_or_init(|| match env::seconds("GASNET_EXITTIMEOUT") {
        Ok(Some(seconds)) => Duration::from_secs_f64(seconds.min(1e6)),
        _ => TIMEOUT,
    })
}

/// Installs the handlers by which exit(3) and signals end the job.
pub(crate) fn install() {
    let _ = timeout();
    // Other ranks may end the job while the client does not poll.
    os::catch(libc::SIGQUIT, on_quit);
    if !matches!(env::yes("GASNET_CATCH_EXIT"), Ok(Some(false))) {
        os::at_exit(on_exit);
        FATAL.iter().for_each(|&signal| os::catch(signal, on_fatal));
    }
}

/// The state in which a process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum From {
    /// Outside signal handlers: streams can be written out.
    Call,
    /// In a signal handler.
    Signal,
}

/// Ends the job with a code.
pub fn exit(code: i32) -> ! {
    match Job::get() {
        Some(job) => end(job, code, From::Call),
        None => {
            os::flush_streams();
            os::end_now(code)
        }
    }
}

/// Ends the job because a call cannot be performed. The text names the cause and the remedy.
#[cold]
pub fn fatal(text: std::fmt::Arguments<'_>) -> ! {
    match Job::get() {
        Some(job) => os::say(format!("weft-gex: rank {}: {text}\n", job.rank()).as_bytes()),
        None => os::say(format!("weft-gex: {text}\n").as_bytes()),
    }
    exit(1)
}

/// Ends the job with a message: the cause, and after a semicolon the remedy.
#[macro_export]
macro_rules! fatal {
    ($($text:tt)*) => { $crate::exit::fatal(format_args!($($text)*)) };
}

/// Ends this rank because another one has ended the job.
#[cold]
pub(crate) fn follow(job: &Job) -> ! {
    end(job, job.board().exit_code().unwrap_or(1), From::Call)
}

fn end(job: &Job, code: i32, from: From) -> ! {
    if !job.begin_end() {
        // The first call ends the process.
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let board = job.board();
    board.end_job(code);
    if from == From::Call {
        os::flush_streams();
    }
    if from == From::Call && !job.places().all_near() {
        flush(job);
    }
    board.set_exiting(job.rank());
    if job.is_launched() {
        end_launched(job, board, code);
    }
    platform::end(code)
}

/// Ends the other ranks of a job that a launcher has started, and reports to it.
fn end_launched(job: &Job, board: &Board, code: i32) {
    // The launcher waits in vain for a rank that has failed.
    let meets = job.places().host().count > 1 && !job.failures().any();
    let spans = job.places().host().count > 1;
    let mut left = others_leave(job, grace(board.ranks()));
    if meets {
        // The launcher knows whether the ranks of all hosts are about to end.
        job.with_launcher(Launcher::arrive);
        left = left && has_passed(job, grace(board.ranks()));
    }
    if !left {
        board.set_ending();
        signal_others(job, libc::SIGQUIT);
        if spans {
            job.places().leaders().filter(|&rank| rank != job.rank()).for_each(|rank| am::send_end(job, rank, code));
            flush(job);
        }
        left = others_leave(job, timeout());
        if !left {
            signal_others(job, libc::SIGKILL);
        }
        left = left && spans && (!meets || has_passed(job, timeout()));
    }
    if left {
        // A code other than 0 is reported by the exit status.
        job.with_launcher(Launcher::finalize);
        return;
    }
    let code = board.exit_code().unwrap_or(code);
    job.with_launcher(|launcher| launcher.abort(code));
}

fn has_passed(job: &Job, limit: Duration) -> bool {
    let mut passed = false;
    job.with_launcher(|launcher| passed = launcher.has_passed(limit));
    passed
}

/// Waits until messages that have been sent have left this process, for a short time at most.
fn flush(job: &Job) {
    let deadline = platform::now() + FLUSH;
    let is_done = |engine: &mut RankEngine| {
        engine.nic_mut().flush();
        engine.nic().drained()
    };
    while job.try_with_engine(is_done) == Some(false) && platform::now() < deadline {
        platform::sleep(Duration::from_micros(200));
    }
}

/// Waits until all other ranks are about to end.
fn others_leave(job: &Job, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    loop {
        let board = job.board();
        let is_left =
            |rank: u32| board.stage(rank) != Stage::Up || board.process(rank).is_some_and(|pid| !os::exists(pid));
        if (0..board.ranks()).filter(|&rank| rank != job.rank()).all(is_left) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn signal_others(job: &Job, signal: i32) {
    let board = job.board();
    for rank in (0..board.ranks()).filter(|&rank| rank != job.rank()) {
        if let Some(pid) = board.process(rank).filter(|_| board.stage(rank) == Stage::Up) {
            os::kill(pid, signal);
        }
    }
}

extern "C" fn on_exit(code: i32, _: *mut libc::c_void) {
    if let Some(job) = Job::get().filter(|job| job.is_here()) {
        end(job, code, From::Call);
    }
}

extern "C" fn on_quit(signal: i32) {
    let Some(job) = Job::get().filter(|job| job.is_here()) else { return os::raise_default(signal) };
    if job.has_begun_end() {
        return;
    }
    end(job, job.board().exit_code().unwrap_or(128 + signal), From::Signal)
}

extern "C" fn on_fatal(signal: i32) {
    if let Some(job) = Job::get().filter(|job| job.is_here()) {
        let goes_on = job.board().is_tolerant(job.rank());
        // Only the cause is reported, not what it brings about in other ranks.
        if job.board().exit_code().is_none() {
            let mut text = [0; 96];
            let rest = if goes_on { "others may go on" } else { "the job ends" };
            let used = line(&mut text, job.rank(), signal, rest);
            os::say(&text[..used]);
        }
        if goes_on {
            return os::raise_default(signal);
        }
        // The client's handler of SIGQUIT may clean up, and end the job with a code of its own.
        if os::has_client_handler(libc::SIGQUIT, on_quit) {
            os::raise(libc::SIGQUIT);
        }
        job.board().end_job(128 + signal);
        job.board().set_exiting(job.rank());
    }
    // The status of the process tells the cause, and the system may write a core file.
    os::raise_default(signal);
}

/// Writes the message of a fatal signal without the heap. Returns its length.
fn line(text: &mut [u8], rank: u32, signal: i32, outcome: &str) -> usize {
    use std::io::Write as _;
    let room = text.len();
    let mut rest = text;
    let _ = writeln!(rest, "weft-gex: rank {rank}: ended by signal {signal}; {outcome}");
    room - rest.len()
}
