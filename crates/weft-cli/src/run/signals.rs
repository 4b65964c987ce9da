//! The signals of a job: those that this process gets and the launcher must get as well.
//!
//! Place in the data flow: beside it. The launcher runs in this process's group, so that the terminal treats both as
//! one job: its signals reach the launcher without help, and both stop and continue together. Signals that another
//! process has sent to this process alone are passed on. So is a hang-up, which the kernel sends to the session leader
//! alone. This process outlives the launcher, whose end it reports. If it is killed, the kernel ends the launcher
//! (`weft_os::end_with_parent`), or `guard.rs` does.

use std::io;

use nix::sys::signal::{SigSet, Signal, kill, raise};
use nix::sys::signalfd::SignalFd;
use nix::unistd::Pid;

/// Signals that are passed on.
const PASSED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// The passed signals, which are blocked in all threads. A process inherits the mask, so the launcher must be started
/// before.
pub(crate) struct Signals(SignalFd);

impl Signals {
    /// Blocks the signals in this thread, and in those that it starts. Signals that this process was told to ignore
    /// (nohup, background jobs of scripts) stay ignored, as the launcher ignores them.
    pub(crate) fn block() -> io::Result<Self> {
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let passed = PASSED.into_iter().filter(|signal| ignored & 1 << (*signal as u32 - 1) == 0);
        let set: SigSet = passed.collect();
        set.thread_block()?;
        Ok(Self(SignalFd::new(&set)?))
    }

    /// Passes signals on to the launcher, in a thread of its own.
    pub(crate) fn forward_to(self, pid: u32) {
        let Ok(pid) = i32::try_from(pid) else { return };
        std::thread::spawn(move || {
            while let Ok(Some(info)) = self.0.read_signal() {
                let signal = i32::try_from(info.ssi_signo).ok().and_then(|number| Signal::try_from(number).ok());
                let Some(signal) = signal else { continue };
                // Codes of signals that processes send are not positive.
                if info.ssi_code <= 0 || signal == Signal::SIGHUP {
                    // The launcher may have ended.
                    let _ = kill(Pid::from_raw(pid), signal);
                }
                if signal == Signal::SIGTSTP {
                    stop();
                }
            }
        });
    }
}

/// Stops this process as SIGTSTP does by default, until SIGCONT.
fn stop() {
    let set = SigSet::from(Signal::SIGTSTP);
    // An error means that this process does not stop with the launcher.
    let _ = set.thread_unblock().and_then(|()| raise(Signal::SIGTSTP)).and_then(|()| set.thread_block());
}

/// The ignored signals of `/proc/self/status`; the lowest bit is signal 1.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read() {
        assert_eq!(ignored("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\nSigCgt:\t0\n"), 0x1001);
        assert_eq!(ignored(""), 0);
    }
}
