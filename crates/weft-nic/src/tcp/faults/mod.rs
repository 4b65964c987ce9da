//! Random runs of TCP devices over a network that cuts, delays and breaks byte streams. The seed decides all
//! faults ([`net`]).
//!
//! A run must satisfy these rules. Every message arrives once, in order and unchanged. Every push arrives at
//! its place, and is done only then. Each end of a link is reported once. No state remains when all devices are
//! at rest.
//!
//! `cargo test -p weft-nic --lib tcp::faults` plays [`SEEDS`] runs, plain and encrypted alternately.
//! `WEFT_TCP_SEEDS=100000` plays more, `WEFT_TCP_SEED=7` plays that one. A failure prints its seed.

#![allow(clippy::expect_used, clippy::cast_possible_truncation)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::mutant::{Mutant, switch};

mod moments;
pub(crate) mod net;
mod verdict;
mod world;

/// Number of runs in an ordinary test.
const SEEDS: u64 = 400;
/// Number of runs in which each planted bug must be caught.
const MUTANT_SEEDS: u64 = 2000;

/// Plays the run of a seed. The error is the first broken rule, or the text of a panic.
fn complaint(seed: u64) -> Result<world::Report, String> {
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

/// Prints the log records of the devices and the network in a single run.
struct Teller;

impl log::Log for Teller {
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

#[test]
fn byte_streams_survive_faults() {
    let (first, count) = match number("WEFT_TCP_SEED") {
        Some(seed) => {
            log::set_logger(&Teller).expect("there is no other");
            log::set_max_level(log::LevelFilter::Trace);
            (seed, 1)
        }
        None => (0, number("WEFT_TCP_SEEDS").unwrap_or(SEEDS)),
    };
    let mut sum = world::Report::default();
    for seed in first..first + count {
        match complaint(seed) {
            Ok(report) => sum.add(&report),
            Err(why) => panic!(
                "seed {seed}: {why}\nplay it again: WEFT_TCP_SEED={seed} cargo test -p weft-nic --lib tcp::faults::byte"
            ),
        }
    }
    println!("{count} runs: {sum:?}");
    if count >= SEEDS {
        // Enough faults and traffic must have occurred.
        assert!(
            sum.breaks > count && sum.resumed > count && sum.messages > 50 * count && sum.pushes > 5 * count,
            "{sum:?}"
        );
    }
}

#[test]
fn the_same_seed_gives_the_same_run() {
    for seed in 0..20 {
        assert_eq!(complaint(seed), complaint(seed), "{seed}");
    }
}

#[test]
fn every_planted_bug_is_caught() {
    let mut alive = Vec::new();
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for mutant in Mutant::ALL {
        switch(Some(mutant));
        let caught = (0..MUTANT_SEEDS).find_map(|seed| complaint(seed).err().map(|why| (seed, why)));
        switch(None);
        match caught {
            Some((seed, why)) => println!("{mutant:?}: seed {seed}: {}", why.lines().next().unwrap_or("?")),
            None => alive.push(mutant),
        }
    }
    std::panic::set_hook(loud);
    assert!(alive.is_empty(), "not caught in {MUTANT_SEEDS} runs: {alive:?}");
}
