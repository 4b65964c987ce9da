//! A test of the oracle: random runs must find every bug that is planted in the engine, by turns ordinary runs and
//! runs of collectives. Tests of `active.rs` and `mapped.rs` find those in active messages and mapped memory, which
//! random runs do not have.
//! `cargo test -p weft-sim --features mutants --test planted` runs it. With `WEFT_PLANTED=NAME` only the bug of that
//! name is planted. docs/testing.md names the check that catches each bug.
#![cfg(feature = "mutants")]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "active.rs"]
mod active;
#[path = "mapped.rs"]
mod mapped;

use std::sync::Mutex;

use weft_engine::bugs::{Bug, activate};
use weft_sim::Plan;
use weft_sim::run::run;

/// Number of runs within which each bug must be found.
const SEEDS: u64 = 400;

/// The first complaint about a run. A panic is also a complaint.
fn complaint(plan: &Plan) -> Option<String> {
    match std::panic::catch_unwind(|| run(plan)) {
        Ok(report) => report.wrong.first().cloned(),
        Err(panic) => Some(format!("panicked: {:?}", panic.downcast_ref::<String>())),
    }
}

/// Returns the first complaint about a bug, and the test or seed that made it. The bug is active in this thread only.
fn caught(bug: Bug) -> Option<String> {
    activate(Some(bug));
    let is_active = format!("{bug:?}").starts_with("Active");
    let scenarios = if is_active { &active::SCENARIOS[..] } else { &mapped::SCENARIOS[..] };
    let caught = (scenarios.iter())
        .find_map(|scenario| std::panic::catch_unwind(scenario).err())
        .map(|panic| format!("a scenario: {:?}", panic.downcast_ref::<String>()))
        .or_else(|| {
            (0..SEEDS).find_map(|seed| {
                let plans = [Plan::draw(seed), Plan::collectives(seed)];
                plans.iter().find_map(complaint).map(|why| format!("seed {seed}: {why}"))
            })
        });
    activate(None);
    caught
}

#[test]
fn every_planted_bug_is_caught() {
    let only = std::env::var("WEFT_PLANTED").ok();
    let chosen = Bug::ALL.iter().filter(|bug| only.as_ref().is_none_or(|only| *only == format!("{bug:?}")));
    let bugs = Mutex::new(chosen.copied());
    let alive = Mutex::new(Vec::new());
    let work = || {
        // The lock is released before the runs.
        while let Some(bug) = { bugs.lock().unwrap().next() } {
            match caught(bug) {
                Some(why) => println!("{bug:?}: {}", why.lines().next().unwrap_or("?")),
                None => alive.lock().unwrap().push(bug),
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    let alive = alive.into_inner().unwrap();
    assert!(alive.is_empty(), "not caught in {SEEDS} runs: {alive:?}");
}

#[test]
fn without_a_bug_there_is_no_complaint() {
    for seed in 0..40 {
        assert_eq!(complaint(&Plan::draw(seed)), None, "seed {seed}");
        assert_eq!(complaint(&Plan::collectives(seed)), None, "collectives, seed {seed}");
    }
}
