//! A child process that does not outlive its parent.
//!
//! Place in the data flow: beside it. `weft run` starts launchers this way: if it is killed, its job ends.
//!
//! Source: PR_SET_PDEATHSIG(2const). The signal is tied to the thread that starts the child, so that thread must not
//! end before the process.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::io::Errno;
use rustix::process::{Signal, getpid, getppid, set_parent_process_death_signal};

/// Lets the kernel send the child a signal when this thread ends, which should be the main one.
pub fn end_with_parent(command: &mut Command, signal: Signal) {
    let parent = getpid();
    let tie = move || -> io::Result<()> {
        set_parent_process_death_signal(Some(signal))?;
        // The parent may have ended before.
        if getppid() == Some(parent) { Ok(()) } else { Err(Errno::SRCH.into()) }
    };
    // SAFETY: after fork(2) the closure makes two system calls, and touches no lock and no heap.
    unsafe { command.pre_exec(tie) };
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_child_ends_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("60").stdout(Stdio::null());
            end_with_parent(&mut command, Signal::KILL);
            command.spawn().expect("sleep is installed")
        };
        let mut child = std::thread::spawn(start).join().expect("the thread has ended");
        let status = child.wait().expect("the child has ended");
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(9));
    }
}
