//! The start by forks: this process becomes the supervisor of its children, which are the ranks.
//!
//! Place in the data flow: `spawn` calls [`start`] before the job has threads. Each child returns as a rank. The
//! supervisor never returns: it waits for the ranks, passes signals on, and ends with the job's code.
//!
//! A supervisor beside all ranks, instead of rank 0, ends the job whatever a rank does: the kernel reports the death of
//! each rank to it, and kills the ranks if it dies itself. It uses no memory but what it had before the start.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::process::{WaitOptions, waitpid};

use crate::board::{Board, Stage};
use crate::error::Error;
use crate::exit;
use crate::os;

/// Signals that the supervisor passes on to the ranks.
const PASSED: [i32; 6] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];

/// Forks the ranks. Returns in each of them, with its number.
///
/// # Errors
/// The system refuses memory or processes.
pub fn start(ranks: u32) -> Result<(u32, Board), Error> {
    let board = Board::create(ranks)?;
    // Otherwise each rank would write what is buffered now.
    os::flush_streams();
    let mut signals = PASSED.to_vec();
    signals.push(libc::SIGCHLD);
    let blocked = os::Blocked::new(&signals);
    let supervisor = std::process::id();
    let mut children = Vec::with_capacity(ranks as usize);
    for rank in 0..ranks {
        match os::fork() {
            Ok(None) => {
                os::die_with(supervisor);
                blocked.restore();
                board.set_up(rank, std::process::id());
                return Ok((rank, board));
            }
            Ok(Some(pid)) => children.push(Child { rank, pid, left: false, lost: false }),
            Err(error) => {
                children.iter().for_each(|child| os::kill(child.pid, libc::SIGKILL));
                return Err(weft_os::SystemError::of("fork")(error).into());
            }
        }
    }
    let supervisor = Supervisor { board: Arc::new(board), children, end: None, first_loss: 0 };
    os::end_now(supervisor.run(&blocked))
}

struct Child {
    rank: u32,
    pid: u32,
    left: bool,
    /// It has failed, and the others go on.
    lost: bool,
}

/// The steps of a job's end.
struct End {
    /// When the ranks that remain get SIGQUIT.
    ask: Instant,
    asked: bool,
    /// When they are killed.
    kill: Instant,
}

struct Supervisor {
    board: Arc<Board>,
    children: Vec<Child>,
    end: Option<End>,
    /// The code of the job if all ranks fail.
    first_loss: i32,
}

impl Supervisor {
    /// Waits for all ranks. Returns the code of the job.
    fn run(mut self, signals: &os::Blocked) -> i32 {
        loop {
            self.reap();
            if self.children.iter().all(|child| child.left) {
                return self.board.exit_code().unwrap_or(self.first_loss);
            }
            self.end_others();
            let pause_ms = if self.end.is_some() { 5 } else { 1000 };
            // The terminal sends its signals to the ranks, too. Of its own end only the leader of the session
            // learns.
            let is_for_ranks =
                |signal, by_kernel: bool| signal != libc::SIGCHLD && (!by_kernel || signal == libc::SIGHUP);
            match signals.wait_ms(pause_ms) {
                Some(arrived) if is_for_ranks(arrived.signal, arrived.by_kernel) => self.pass(arrived.signal),
                _ => {}
            }
        }
    }

    fn remaining(&self) -> impl Iterator<Item = &Child> {
        self.children.iter().filter(|child| !child.left)
    }

    fn pass(&self, signal: i32) {
        self.remaining().for_each(|child| os::kill(child.pid, signal));
    }

    /// Takes the status of ranks that have ended.
    fn reap(&mut self) {
        // Ranks that have set a handler go on without those that fail.
        let bears = self.remaining().all(|child| self.board.is_tolerant(child.rank));
        for child in self.children.iter_mut().filter(|child| !child.left) {
            let pid = rustix::process::Pid::from_raw(child.pid.cast_signed());
            let Ok(Some((_, status))) = waitpid(pid, WaitOptions::NOHANG) else { continue };
            child.left = true;
            let exited = self.board.stage(child.rank) == Stage::Exiting;
            let ends = self.board.exit_code().is_some() && !self.board.is_lost(child.rank);
            if bears && !exited && !ends {
                let code = status.terminating_signal().map(|signal| 128 + signal).or(status.exit_status());
                self.first_loss = if self.first_loss == 0 { code.unwrap_or(1) } else { self.first_loss };
                child.lost = true;
                self.board.set_lost(child.rank);
                continue;
            }
            if let Some(signal) = status.terminating_signal() {
                // A rank that could has reported the signal itself, and other ranks follow the first.
                if self.board.exit_code().is_none() {
                    report(child.rank, signal);
                }
                self.board.end_job(128 + signal);
            } else {
                // A rank that has called exit has noted its code. Others have ended by other means.
                let code = status.exit_status().unwrap_or(1);
                if !exited || code != 0 {
                    self.board.end_job(code);
                }
            }
        }
    }

    /// Ends the ranks that remain when the job ends: first by request, then by force.
    fn end_others(&mut self) {
        if self.end.is_none()
            && (self.board.exit_code().is_some() || self.children.iter().any(|child| child.left && !child.lost))
        {
            let now = Instant::now();
            let ask = now + exit::grace(self.board.ranks());
            self.end = Some(End { ask, asked: false, kill: ask + exit::timeout() });
        }
        let Some(end) = &mut self.end else { return };
        let now = Instant::now();
        if !end.asked && now >= end.ask {
            end.asked = true;
            self.board.end_job(0);
            self.board.set_ending();
            for child in self.children.iter().filter(|child| !child.left) {
                if self.board.stage(child.rank) != Stage::Exiting {
                    os::kill(child.pid, libc::SIGQUIT);
                }
            }
        } else if now >= end.kill {
            end.kill = now + Duration::from_secs(1);
            self.pass(libc::SIGKILL);
        }
    }
}

fn report(rank: u32, signal: i32) {
    let text = format!("weft-gex: rank {rank} was ended by signal {signal}; the job ends\n");
    os::say(text.as_bytes());
}
