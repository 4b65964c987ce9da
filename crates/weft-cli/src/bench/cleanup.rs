//! Removal of files that measured processes leave behind, and handling of interruptions.
//!
//! libfabric's shm and sm2 keep files in /dev/shm. The files remain when a process is killed or crashes, and
//! later runs of sm2 then fail. This module removes files of these providers that were created during this run
//! and that no process maps any longer.
//!
//! SIGINT and SIGTERM are blocked and handled by a thread of their own. It ends the running processes, removes
//! the files, and exits.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, kill_process};

const DIRECTORY: &str = "/dev/shm";
/// The prefix of libfabric's file names.
const PREFIX: &str = "fi_";
/// Time that processes have to end after SIGTERM.
const GRACE: Duration = Duration::from_secs(2);
/// The file through which sm2's processes find each other.
const SM2: &str = "/dev/shm/fi_sm2_mmaps";

/// The files that existed before the run.
static BEFORE: OnceLock<BTreeSet<OsString>> = OnceLock::new();
/// Running processes.
static LIVE: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// Set when no further process may be started.
static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Starts the handling of signals. Must be called once, before any measurement and before other threads exist.
pub(crate) fn begin() {
    BEFORE.get_or_init(files);
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGINT);
    signals.add(NixSignal::SIGTERM);
    // Children inherit the mask; `in_child` clears it.
    if signals.thread_block().is_err() {
        return;
    }
    std::thread::spawn(move || {
        let Ok(signal) = signals.wait() else { return };
        INTERRUPTED.store(true, Ordering::SeqCst);
        end_all();
        files_left();
        eprintln!("\nweft bench: interrupted");
        // The status by which shells report a command that ended by this signal.
        std::process::exit(128 + signal as i32);
    });
}

/// Restores normal signal handling. A child must call this first.
pub(crate) fn in_child() {
    // Otherwise the child would end only by SIGKILL, which the parent sends after a grace period.
    let _ = SigSet::all().thread_unblock();
}

/// Called before a process is started. After an interruption it blocks until the program ends.
pub(crate) fn starting() {
    while INTERRUPTED.load(Ordering::SeqCst) {
        std::thread::park();
    }
}

/// Records that a process was started.
pub(crate) fn started(pid: Option<Pid>) {
    live().extend(pid);
}

/// Records that a process has ended.
pub(crate) fn ended(pid: Option<Pid>) {
    live().retain(|live| Some(*live) != pid);
}

fn live() -> std::sync::MutexGuard<'static, Vec<Pid>> {
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn end_all() {
    let signal_all = |signal| {
        for pid in live().iter() {
            // A process that has already gone needs no signal.
            let _ = kill_process(*pid, signal);
        }
    };
    signal_all(Signal::TERM);
    let step = Duration::from_millis(10);
    for _ in 0..GRACE.as_millis() / step.as_millis() {
        if live().is_empty() {
            return;
        }
        std::thread::sleep(step);
    }
    signal_all(Signal::KILL);
}

/// Removes files that measured processes have left.
pub(crate) fn files_left() {
    let Some(before) = BEFORE.get() else { return };
    let new: Vec<OsString> = files().difference(before).cloned().collect();
    if new.is_empty() {
        return;
    }
    let mapped = mapped();
    for name in new {
        let path = Path::new(DIRECTORY).join(name);
        // The file may belong to an unrelated job that has started meanwhile.
        if !mapped.contains(path.as_os_str()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// A hint for failures of this provider.
pub(crate) fn hint(provider: &str) -> &'static str {
    let stale =
        BEFORE.get().is_some_and(|before| before.iter().any(|name| Path::new(DIRECTORY).join(name) == Path::new(SM2)));
    if provider == "sm2" && stale { " (/dev/shm/fi_sm2_mmaps may be left from a crash: remove it)" } else { "" }
}

/// The existing files of libfabric's providers.
fn files() -> BTreeSet<OsString> {
    let entries = std::fs::read_dir(DIRECTORY).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).filter(|name| name.to_string_lossy().starts_with(PREFIX)).collect()
}

/// The files below [`DIRECTORY`] that any inspectable process has mapped.
fn mapped() -> BTreeSet<OsString> {
    let mut found = BTreeSet::new();
    for process in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let maps = std::fs::read_to_string(process.path().join("maps")).unwrap_or_default();
        found.extend(maps.lines().filter_map(|line| line.find(DIRECTORY).map(|at| OsString::from(&line[at..]))));
    }
    found
}
