//! Devices over a simulated network that cuts, delays and breaks their byte streams as a seed determines ([`net`]).
//!
//! The runs check that every message arrives once, in order and byte for byte. Every push arrives in its place, and is
//! done after that. Each end is reported once, and no state is left at rest.
//!
//! `cargo test -p weft-nic --lib tcp::faults` makes [`SEEDS`] runs without and with rails, plain and encrypted in turn.
//! `WEFT_TCP_SEEDS=100000` makes more, and `WEFT_TCP_SEED=7` makes one of them. A failure prints its seed.

#![allow(clippy::expect_used, clippy::cast_possible_truncation)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bugs::{Bug, activate};

use world::RAILS;

mod moments;
pub(crate) mod net;
mod verdict;
mod world;

/// The number of runs in an ordinary test.
const SEEDS: u64 = 400;
/// Limit of runs until a planted bug must be caught.
const BUG_SEEDS: u64 = 2000;

/// Makes a run. An error is a violation or a panic.
fn checked_run(seed: u64) -> Result<world::Report, String> {
    let outcome = catch_unwind(AssertUnwindSafe(|| world::run(seed)));
    net::install(None);
    outcome.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(format!(
            "panicked: {}",
            text.or_else(|| panic.downcast_ref::<&str>().map(|&text| text.into())).unwrap_or_default()
        ))
    })
}

/// Prints the log of the devices and the network in a single run.
struct Printer;

impl log::Log for Printer {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }
    fn log(&self, record: &log::Record<'_>) {
        println!("{}", record.args());
    }
    fn flush(&self) {}
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Makes runs of which none may fail. Returns the sum of their reports.
fn run_all(first: u64, count: u64) -> world::Report {
    let mut sum = world::Report::default();
    for seed in first..first + count {
        match checked_run(seed) {
            Ok(report) => sum.add(&report),
            Err(why) => panic!(
                "seed {seed}: {why}\nrun it again: WEFT_TCP_SEED={seed} cargo test -p weft-nic --lib tcp::faults::byte"
            ),
        }
    }
    println!("{count} runs: {sum:?}");
    sum
}

#[test]
fn byte_streams_survive_all_faults() {
    let (first, count) = match number("WEFT_TCP_SEED") {
        Some(seed) => {
            log::set_logger(&Printer).expect("there is no other logger");
            log::set_max_level(log::LevelFilter::Trace);
            (seed, 1)
        }
        None => (0, number("WEFT_TCP_SEEDS").unwrap_or(SEEDS)),
    };
    let sum = run_all(first, count);
    if count >= SEEDS {
        // The runs must have exercised breaks and resumptions.
        assert!(
            sum.breaks > count && sum.resumed > count && sum.messages > 50 * count && sum.pushes > 5 * count,
            "{sum:?}"
        );
    }
}

/// The same with rails: each byte of a push is placed once, and after the messages before it, whatever happens to the
/// connections.
#[test]
fn rails_survive_all_faults() {
    let (first, count) = match number("WEFT_TCP_SEED") {
        Some(seed) => (seed, 1),
        None => (RAILS, number("WEFT_TCP_SEEDS").unwrap_or(SEEDS / 2)),
    };
    let sum = run_all(first, count);
    if count >= SEEDS / 2 {
        // The runs must have exercised rails that fail and are replaced.
        assert!(sum.rails > 2 * count && 2 * sum.rails_lost > count && sum.rail_bytes > 20_000 * count, "{sum:?}");
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in (0..20).chain(RAILS..RAILS + 20) {
        assert_eq!(checked_run(seed), checked_run(seed), "{seed}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let mut alive = Vec::new();
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for &bug in Bug::ALL {
        activate(Some(bug));
        let mut seeds = (0..BUG_SEEDS).flat_map(|seed| [seed, RAILS + seed]);
        let caught = seeds.find_map(|seed| checked_run(seed).err().map(|why| (seed, why)));
        activate(None);
        match caught {
            Some((seed, why)) => println!("{bug:?}: seed {seed}: {}", why.lines().next().unwrap_or("?")),
            None => alive.push(bug),
        }
    }
    std::panic::set_hook(loud);
    assert!(alive.is_empty(), "not caught in {BUG_SEEDS} runs: {alive:?}");
}
