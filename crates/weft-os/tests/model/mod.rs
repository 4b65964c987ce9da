//! Where the `loom_*` tests, weft-fi's too, check their models: each in a process of its own.
//!
//! The checker maps and unmaps a stack for every thread of every run, thousands of times a second. In a
//! process with a second thread, as the test harness is, each of these calls interrupts the other core and
//! waits for the other thread's; that took two thirds of the time.

use std::cell::Cell;
use std::process::Command;
use std::thread;

/// Set in the process that has only one test to run.
const ALONE: &str = "WEFT_TEST_MODEL_ALONE";

thread_local! {
    /// The test that this thread runs has passed, all its models, in the other process.
    static PASSED: Cell<bool> = const { Cell::new(false) };
}

/// Checks `model` in every interleaving with at most that many preemptions.
///
/// The first of a test's models has the whole test run again, in the other process. A test is therefore
/// nothing but its models.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    // With one test at a time they run in the main thread, and there is no other.
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
