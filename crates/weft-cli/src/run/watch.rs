//! The starts of jobs, seen from outside while a command runs.
//!
//! Place in the data flow: `/proc` → here → `jobs.rs`. A job whose ranks do not load weft reports nothing, so its ranks
//! are looked for below the launchers that the command starts. A look reads the names of the few processes above the
//! launchers. A job that ends between two looks is not seen; nothing is concluded from that.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use weft_observe::identity::{Identity, Status};

use crate::stat::is_launcher;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(25);
/// Most processes that a look examines.
const PROCESSES_MOST: usize = 256;

/// A thread that looks for jobs.
pub(super) struct Watch {
    stop: Sender<()>,
    thread: JoinHandle<Vec<Identity>>,
}

impl Watch {
    /// Watches the descendants of a process.
    pub(super) fn start(root: u32) -> Self {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || {
            let mut looks = Looks::default();
            while stopped.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
                looks.look(root);
            }
            looks.seen
        });
        Self { stop, thread }
    }

    /// One rank of each job that was seen.
    pub(super) fn finish(self) -> Vec<Identity> {
        // The thread may have ended.
        let _ = self.stop.send(());
        self.thread.join().unwrap_or_default()
    }
}

#[derive(Default)]
struct Looks {
    /// Launchers whose ranks were seen.
    known: HashSet<u32>,
    seen: Vec<Identity>,
}

impl Looks {
    fn look(&mut self, root: u32) {
        let mut pending = vec![root];
        let mut examined = 0;
        while let Some(pid) = pending.pop().filter(|_| examined < PROCESSES_MOST) {
            examined += 1;
            let Some(Status { name, .. }) = Status::of(pid).filter(|_| !self.known.contains(&pid)) else { continue };
            if !is_launcher(&name) {
                pending.extend(children(pid));
            } else if let Some(rank) = rank_below(pid) {
                self.known.insert(pid);
                self.seen.push(rank);
            }
        }
    }
}

/// The identity of the nearest rank below a launcher.
fn rank_below(launcher: u32) -> Option<Identity> {
    let mut level = children(launcher);
    let mut examined = 0;
    while !level.is_empty() && examined < PROCESSES_MOST {
        examined += level.len();
        let ranked = |pid: &u32| Identity::of(*pid).filter(|identity| identity.rank.is_some());
        if let Some(rank) = level.iter().find_map(ranked) {
            return Some(rank);
        }
        level = level.into_iter().flat_map(children).collect();
    }
    None
}

/// The children of a process, of all its threads.
fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(PathBuf::from(format!("/proc/{pid}/task"))).into_iter().flatten().flatten();
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    lists.flat_map(|list| list.split_whitespace().filter_map(|pid| pid.parse().ok()).collect::<Vec<_>>()).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn ranks_below_a_process_are_found() {
        let mut shell = Command::new("sh")
            .args(["-c", "PMI_RANK=1 PMI_SIZE=3 sleep 20 & wait"])
            .stdin(Stdio::null())
            .spawn()
            .expect("a shell");
        let find = || {
            std::thread::sleep(Duration::from_millis(10));
            rank_below(shell.id())
        };
        let found = (0..500).find_map(|_| find()).expect("the rank");
        assert_eq!((found.rank, found.size), (Some(1), Some(3)));
        let rank = children(shell.id());
        assert!(rank.len() == 1 && children(std::process::id()).contains(&shell.id()));
        for pid in rank.into_iter().chain([shell.id()]) {
            let pid = nix::unistd::Pid::from_raw(i32::try_from(pid).expect("a process id"));
            nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL).expect("it runs");
        }
        shell.wait().expect("it has ended");
    }
}
