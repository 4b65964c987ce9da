//! A system that refuses reports of unmapped memory causes a log message and no error. This test has a
//! process of its own: it gives up descriptors permanently.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation, clippy::cast_sign_loss, dead_code)]

#[path = "seccomp/mod.rs"]
mod seccomp;

use std::sync::Mutex;

use rustix::process::{Resource, Rlimit, setrlimit};
use weft_os::UnmapWatch;

static LINES: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Capture;

impl log::Log for Capture {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        LINES.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

/// The log line for a process in which unmapping cannot be observed.
fn refusal() -> String {
    assert!(UnmapWatch::new().is_none());
    let lines = std::mem::take(&mut *LINES.lock().unwrap());
    let [(log::Level::Warn, text)] = lines.as_slice() else { panic!("{lines:?}") };
    text.clone()
}

#[test]
fn the_log_names_the_refused_helper() {
    log::set_logger(&Capture).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    // The message names the helper that is missing.
    let refused = |calls: &'static [(libc::c_long, i32)]| {
        std::thread::spawn(move || {
            if calls.is_empty() {
                seccomp::refuse_threads()
            } else {
                seccomp::refuse(calls)
            }
            refusal()
        })
    };
    let text = refused(&[]).join().unwrap();
    assert!(text.contains("pthread_create") && text.contains("ulimit -u") && !text.contains("userfaultfd"), "{text}");
    let text = refused(&[(libc::SYS_eventfd2, libc::EPERM)]).join().unwrap();
    assert!(text.contains("eventfd") && text.contains("sandbox") && !text.contains("userfaultfd"), "{text}");
    let text = refused(&[(libc::SYS_userfaultfd, libc::EPERM)]).join().unwrap();
    assert!(text.contains("userfaultfd") && text.contains("vm.unprivileged_userfaultfd"), "{text}");
    // From here on no descriptor can be opened.
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    let text = refusal();
    assert!(text.contains("userfaultfd") && text.contains("no lazy deregistration"), "{text}");
    assert!(text.contains("ulimit -n"), "{text}");
}
