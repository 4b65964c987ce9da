//! A process that ends Open MPI's launcher if `weft run` is killed.
//!
//! Place in the data flow: beside it. Open MPI's ranks are children of the launcher, which ends them on SIGTERM. The
//! kernel's own signal for the death of a parent does not serve: each thread of the parent sends one, and the launcher
//! exits at the second SIGTERM without its ranks.

use std::io::{self, PipeWriter, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// The time before the signal. If this process has led the terminal's session, the kernel has sent the launcher SIGHUP,
/// and a second signal would make it exit without its ranks.
const BEFORE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// The time that the launcher has to end its ranks before it is killed.
const PATIENCE: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };

/// The guard of a launcher.
pub(super) struct Guard {
    process: Child,
    /// The guard acts if this end of its pipe closes before a byte was written.
    pipe: PipeWriter,
}

impl Guard {
    /// Starts the guard of a launcher, which has this process id. It is in a process group of its own, so that signals
    /// of the terminal do not end it.
    pub(super) fn start(launcher: u32) -> io::Result<Self> {
        let (reader, pipe) = io::pipe()?;
        let mut command = Command::new("/proc/self/exe");
        command.arg0("weft").arg("run-guard").arg(launcher.to_string()).process_group(0);
        let process = command.stdin(reader).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
        Ok(Self { process, pipe })
    }

    /// The launcher has ended.
    pub(super) fn finish(mut self) {
        // An error means that the guard has ended.
        let _ = self.pipe.write_all(&[0]);
        let _ = self.process.wait();
    }
}

/// The main function of the guard.
pub(crate) fn run(launcher: i32) -> io::Result<ExitCode> {
    let no_process = || io::Error::new(io::ErrorKind::InvalidInput, "this command is internal to `weft run`");
    let launcher = pidfd_open(Pid::from_raw(launcher).ok_or_else(no_process)?, PidfdFlags::empty())?;
    if io::stdin().read(&mut [0])? > 0 {
        return Ok(ExitCode::SUCCESS);
    }
    for (time, signal) in [(BEFORE, Signal::TERM), (PATIENCE, Signal::KILL)] {
        if poll(&mut [PollFd::new(&launcher, PollFlags::IN)], Some(&time))? > 0 {
            break;
        }
        // The launcher may end at any time.
        let _ = pidfd_send_signal(&launcher, signal);
    }
    Ok(ExitCode::SUCCESS)
}
