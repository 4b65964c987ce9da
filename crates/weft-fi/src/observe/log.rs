//! Log lines: the macros of the `log` crate call the host's `fi_log`.
//!
//! Place in the data flow: all of weft logs through `log::warn!` and its siblings. Inside a host the lines
//! obey FI_LOG_LEVEL, FI_LOG_PROV and FI_LOG_SUBSYS like those of every provider. `error` and `warn` map to
//! libfabric's warn level; `info`, `debug` and `trace` map to the levels of the same names. The module path
//! of the log call determines the subsystem.
//!
//! Errors are faults that only the user can remedy, in the configuration or in weft itself. Where the host does not
//! print them, they go to standard error, each once.
//!
//! The function that detects an error logs it; its callers do not. `fi_log` may change `errno`, so it is
//! restored.

use std::ffi::{CString, c_int};
use std::io::Write as _;

use log::{Level, LevelFilter, Log, Metadata, Record};
use parking_lot::Mutex;
use weft_fi_sys as sys;

use crate::abi::errno;
use crate::host::{self, Host};
use crate::observe::report;

/// Most errors that a process prints on standard error.
const CAUSES_MOST: usize = 8;

/// The backend. It has no state: a line goes to the host that the thread currently serves.
struct HostLog;

/// Installs the backend; repeated calls have no effect.
pub(crate) fn install() {
    // This fails only if a logger is already installed, ours or that of a program that links weft as a
    // library. Both are valid.
    let _ = log::set_logger(&HostLog);
    refresh();
}

/// Sets the level to the finest one that a host prints, so that other macros cost one comparison. Hosts read
/// the environment after they have registered us, so every `fi_getinfo` repeats this.
pub(crate) fn refresh() {
    let printed = [
        (LevelFilter::Trace, sys::FI_LOG_TRACE),
        (LevelFilter::Debug, sys::FI_LOG_DEBUG),
        (LevelFilter::Info, sys::FI_LOG_INFO),
        (LevelFilter::Warn, sys::FI_LOG_WARN),
    ];
    let any =
        |level| host::attached().any(|host| (0..sys::FI_LOG_SUBSYS_MAX).any(|subsys| host.log_enabled(level, subsys)));
    let most = printed.into_iter().find(|&(_, level)| any(level));
    log::set_max_level(most.map_or(LevelFilter::Error, |(filter, _)| filter));
}

const fn level_of(level: Level) -> sys::fi_log_level {
    match level {
        Level::Error | Level::Warn => sys::FI_LOG_WARN,
        Level::Info => sys::FI_LOG_INFO,
        Level::Debug => sys::FI_LOG_DEBUG,
        Level::Trace => sys::FI_LOG_TRACE,
    }
}

/// libfabric's subsystem for a module path.
fn subsys_of(target: &str) -> sys::fi_log_subsys {
    let mut parts = target.split("::");
    let krate = parts.next().unwrap_or_default();
    let mut module = parts.next().unwrap_or_default();
    if matches!(module, "abi" | "observe" | "sleep") {
        module = parts.next().unwrap_or_default();
    }
    match (krate, module) {
        ("weft_fi", "fabric" | "info") => sys::FI_LOG_FABRIC,
        ("weft_fi", "domain") => sys::FI_LOG_DOMAIN,
        ("weft_fi", "av") => sys::FI_LOG_AV,
        ("weft_fi", "cq") => sys::FI_LOG_CQ,
        ("weft_fi", "cntr") => sys::FI_LOG_CNTR,
        ("weft_fi", "eq") => sys::FI_LOG_EQ,
        ("weft_fi", "mr") => sys::FI_LOG_MR,
        ("weft_fi", "endpoint" | "cm") => sys::FI_LOG_EP_CTRL,
        ("weft_fi", "msg" | "tagged" | "rma" | "atomic" | "collective" | "progress")
        | ("weft_nic" | "weft_os" | "weft_engine", _) => sys::FI_LOG_EP_DATA,
        _ => sys::FI_LOG_CORE,
    }
}

impl Log for HostLog {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() == Level::Error || printing_host(metadata).is_some()
    }

    fn log(&self, record: &Record<'_>) {
        if record.level() == Level::Error {
            report::faulty(&record.args().to_string());
        }
        match printing_host(record.metadata()) {
            Some(host) => print(host, record),
            None if record.level() == Level::Error => print_once(record),
            None => {}
        }
    }

    fn flush(&self) {}
}

/// The host of this thread, if it prints such lines.
fn printing_host(metadata: &Metadata<'_>) -> Option<&'static Host> {
    host::current().filter(|host| host.log_enabled(level_of(metadata.level()), subsys_of(metadata.target())))
}

/// Prints an error on standard error, unless another one has had the same cause. A fault that all ranks of a host have
/// in common is printed by the first of them.
#[cold]
fn print_once(record: &Record<'_>) {
    static CAUSES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    if record.target() != weft_nic::PEER_ERRORS && !weft_observe::identity::is_first_of_host() {
        return;
    }
    let text = record.args().to_string();
    // The call or the peer stands before the cause.
    let cause = text.split_once(": ").map_or(&*text, |(_, cause)| cause);
    let mut causes = CAUSES.lock();
    if causes.len() < CAUSES_MOST && !causes.iter().any(|known| known == cause) {
        causes.push(cause.to_owned());
        // In one write: other processes of the job print to the same file.
        let line = format!("weft: {text}\n");
        errno::kept(|| _ = std::io::stderr().write_all(line.as_bytes()));
    }
}

fn print(host: &Host, record: &Record<'_>) {
    let text = CString::new(record.args().to_string().replace('\0', " ")).unwrap_or_default();
    let module = record.module_path().unwrap_or_default();
    let function = CString::new(module.rsplit("::").next().unwrap_or_default()).unwrap_or_default();
    let line = record.line().and_then(|line| c_int::try_from(line).ok()).unwrap_or(0);
    let (level, subsys) = (level_of(record.level()), subsys_of(record.target()));
    errno::kept(|| host.log(level, subsys, &function, line, &text));
}

/// Logs a warning to a host that does not get the provider.
pub(crate) fn warn_host(host: &Host, text: &str) {
    let text = CString::new(text).unwrap_or_default();
    errno::kept(|| host.log(sys::FI_LOG_WARN, sys::FI_LOG_CORE, c"fi_prov_ini", 0, &text));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Collects the Rust files below a folder.
    fn sources(dir: &std::path::Path, found: &mut Vec<std::path::PathBuf>) {
        for entry in std::fs::read_dir(dir).expect("a folder of sources").flatten() {
            let path = entry.path();
            if path.is_dir() {
                sources(&path, found);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }

    /// A warning states the event, the reason, and after a semicolon the remedy; or it ends with the text of
    /// an error that contains them.
    #[test]
    fn warnings_name_a_remedy() {
        let mut files = Vec::new();
        for dir in ["src", "../weft-nic/src", "../weft-os/src", "../weft-engine/src"] {
            sources(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(dir), &mut files);
        }
        let mut warnings = 0;
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a source");
            for call in text.split("log::").skip(1) {
                let Some(rest) = call.strip_prefix("warn!(").or_else(|| call.strip_prefix("error!(")) else { continue };
                let end = [");\n", "),\n"].iter().filter_map(|end| rest.find(end)).min();
                let words = &rest[..end.unwrap_or(rest.len())];
                let whole =
                    ["; ", "{why}", ": {error}\"", "remedy(", "LinkError::"].iter().any(|mark| words.contains(mark));
                assert!(whole, "{}: no remedy: {words}", file.display());
                warnings += 1;
            }
        }
        assert!(warnings > 15, "only {warnings} warnings were found");
    }

    #[test]
    fn modules_have_their_subsystems() {
        assert_eq!(subsys_of("weft_fi::av"), sys::FI_LOG_AV);
        assert_eq!(subsys_of("weft_fi::info::check"), sys::FI_LOG_FABRIC);
        assert_eq!(subsys_of("weft_fi::endpoint::cell"), sys::FI_LOG_EP_CTRL);
        assert_eq!(subsys_of("weft_fi::sleep::progress"), sys::FI_LOG_EP_DATA);
        assert_eq!(subsys_of("weft_nic::tcp"), sys::FI_LOG_EP_DATA);
        assert_eq!(subsys_of("weft_fi"), sys::FI_LOG_CORE);
        assert_eq!(subsys_of("elsewhere::av"), sys::FI_LOG_CORE);
    }
}
