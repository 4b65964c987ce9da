//! Random workloads on random fabrics, judged by the oracle. A failure names its seed; `WEFT_SIM_SEED=<seed>` replays it,
//! and shows the end of its trace. `WEFT_SIM_SEEDS=<n>` runs that many seeds of each scenario.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use weft_sim::workload::{Report, Scenario, run};

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// Runs the scenario with many seeds, or with the one that the environment names.
fn seeds(test: &str, scenario: Scenario, count: u64) -> Vec<Report> {
    let one = variable("WEFT_SIM_SEED");
    let count = variable("WEFT_SIM_SEEDS").unwrap_or(count);
    let range = one.map_or(0..count, |seed| seed..seed + 1);
    let mut reports = Vec::new();
    let mut failures = Vec::new();
    for seed in range {
        let outcome = std::panic::catch_unwind(|| run(seed, scenario));
        match outcome {
            Ok(report) if report.wrong.is_empty() => reports.push(report),
            Ok(report) => failures.push((seed, report.wrong.join("\n"), report.detail)),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_default();
                failures.push((seed, format!("panicked: {text}"), String::new()));
            }
        }
    }
    if let Some((seed, wrong, detail)) = failures.first() {
        let line =
            |(seed, wrong, _): &(u64, String, String)| format!("  {seed}: {}", wrong.lines().next().unwrap_or("?"));
        let all = failures.iter().map(line).collect::<Vec<_>>().join("\n");
        // The trace is long: it is shown when one seed is replayed.
        let detail = if one.is_some() { detail.as_str() } else { detail.lines().next().unwrap_or_default() };
        panic!(
            "{} of the seeds fail, each with its first complaint:\n{all}\nseed {seed}:\n{wrong}\n{detail}\nreplay: WEFT_SIM_SEED={seed} cargo test -p weft-sim --test workload {test}",
            failures.len()
        );
    }
    reports
}

#[test]
fn lossless() {
    let reports = seeds("lossless", Scenario::Lossless, 300);
    if reports.len() < 300 {
        return; // fewer seeds were asked for than the figures below are meant for
    }
    // The runs must really have been through all that they are there for.
    let total = |count: fn(&Report) -> u64| reports.iter().map(count).sum::<u64>();
    assert!(total(|r| r.accepted as u64) > 10_000);
    assert!(total(|r| r.refused as u64) > 1000, "back-pressure");
    assert!(total(|r| r.stats.full) > 10_000, "full devices");
    assert!(total(|r| r.stats.overtakes) > 1000, "reordering");
    assert!(total(|r| r.stats.gets) > 100 && total(|r| r.stats.puts) > 100 && total(|r| r.stats.pushes) > 1000);
    assert!(total(|r| r.stats.assists) > 100);
    assert!(total(|r| r.stats.registrations) > 1000);
}

#[test]
fn connect_failures() {
    seeds("connect_failures", Scenario::ConnectFailures, 100);
}

#[test]
fn breaks() {
    seeds("breaks", Scenario::Breaks, 100);
}

#[test]
fn death() {
    seeds("death", Scenario::Death, 100);
}

#[test]
fn departure() {
    seeds("departure", Scenario::Departure, 100);
}

#[test]
fn the_same_seed_gives_the_same_trace() {
    let mut hashes = Vec::new();
    for seed in 0..20 {
        let [first, second] = [0, 1].map(|_| run(seed, Scenario::Lossless).hash);
        assert_eq!(first, second, "seed {seed}");
        hashes.push(first);
    }
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), 20);
}
