//! Devices over a network that cuts, delays and breaks their byte streams as a seed says ([`net`]), and what
//! must hold all the same: every message once, in order and byte for byte; every push in its place, and done
//! when it is there; each end told once; nothing left over at rest.
//!
//! `cargo test -p weft-nic --lib tcp::faults` plays [`SEEDS`] runs, plain and encrypted by turns;
//! `WEFT_TCP_SEEDS=100000` more, `WEFT_TCP_SEED=7` one of them. A failure prints its seed.

#![allow(clippy::expect_used, clippy::cast_possible_truncation)]

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::bugs::{Bug, activate};

mod moments;
pub(crate) mod net;
mod verdict;
mod world;

/// Runs of an ordinary test.
const SEEDS: u64 = 400;
/// So many a planted bug may survive.
const MUTANT_SEEDS: u64 = 2000;

/// What is wrong with a run, if anything is; a panic is, too.
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

/// Tells what the devices and the network of a single run log.
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
fn byte_streams_survive_what_befalls_them() {
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
        // What shall be tried has been tried.
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
    for &bug in Bug::ALL {
        activate(Some(bug));
        let caught = (0..MUTANT_SEEDS).find_map(|seed| complaint(seed).err().map(|why| (seed, why)));
        activate(None);
        match caught {
            Some((seed, why)) => println!("{bug:?}: seed {seed}: {}", why.lines().next().unwrap_or("?")),
            None => alive.push(bug),
        }
    }
    std::panic::set_hook(loud);
    assert!(alive.is_empty(), "not caught in {MUTANT_SEEDS} runs: {alive:?}");
}
