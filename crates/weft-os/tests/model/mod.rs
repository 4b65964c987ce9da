//! Runs the models of the `loom_*` tests, also those of weft-fi, each in a process of its own.
//!
//! The checker maps and unmaps a stack for every thread of every run, thousands of times a second. In a
//! process with a second thread, such as the test harness, each of these calls interrupts the other core and
//! waits for it. That took two thirds of the time.

use std::cell::Cell;
use std::process::Command;
use std::thread;

/// The environment variable of a process that runs a single test.
const ALONE: &str = "WEFT_TEST_MODEL_ALONE";

thread_local! {
    /// All models of this thread's test have passed in the other process.
    static PASSED: Cell<bool> = const { Cell::new(false) };
}

/// Checks `model` in every interleaving with at most `preemptions` preemptions.
///
/// The first model of a test runs the whole test again in the other process. A test must therefore consist of
/// its models only.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    // With one test at a time, tests run in the main thread, and there is no second thread.
    let thread = thread::current();
    match thread.name() {
        Some(test) if test != "main" && std::env::var_os(ALONE).is_none() => {
            if !PASSED.get() {
                run_alone(test);
                PASSED.set(true);
            }
        }
        _ => {
            let mut builder = loom::model::Builder::new();
            builder.preemption_bound = Some(preemptions);
            builder.check(model);
        }
    }
}

fn run_alone(test: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", test, "--include-ignored", "--test-threads=1", "--nocapture"]).env(ALONE, "");
    let output = command.output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(
        output.status.success() && out.contains(" 1 passed;"),
        "{test}, in a process of its own: {}\n{out}\n{err}",
        output.status
    );
}
