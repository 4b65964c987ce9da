//! A system that makes no reports of what is unmapped is no error, and the log tells of it. A program of its own: it gives up descriptors for good.
#![allow(clippy::unwrap_used)]

use std::sync::Mutex;

use rustix::process::{Resource, Rlimit, setrlimit};
use weft_nic::UnmapWatch;

static SAID: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Said;

impl log::Log for Said {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        SAID.lock().unwrap().push((record.level(), record.args().to_string()));
    }

    fn flush(&self) {}
}

#[test]
fn who_may_not_observe_hears_why_in_the_log() {
    log::set_logger(&Said).unwrap();
    log::set_max_level(log::LevelFilter::Info);
    // No descriptor can be opened any more, as in a container that forbids the call.
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), maximum: Some(0) }).unwrap();
    assert!(UnmapWatch::new().is_none());
    let said = SAID.lock().unwrap();
    let [(level, text)] = said.as_slice() else { panic!("{said:?}") };
    assert_eq!(*level, log::Level::Warn);
    assert!(text.contains("userfaultfd") && text.contains("no lazy deregistration"), "{text}");
}
