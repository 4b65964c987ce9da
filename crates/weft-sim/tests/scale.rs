//! Many ranks: whole engines perform the schedules of collectives, and the cost of an event does not grow with the
//! number of ranks. The variable WEFT_SIM_RANKS gives the barrier another number of ranks.
#![allow(clippy::unwrap_used)]

mod job;

use std::time::Instant;

use job::Job;
use weft_engine::collective::Operation;
use weft_scale::profile::{Costs, Path};
use weft_scale::schedule::request;
use weft_scale::{Collective, Machine, Options};
use weft_sim::FabricConfig;

/// The first barrier connects all pairs of ranks that exchange messages.
#[test]
fn many_whole_engines_end_a_barrier() {
    let ranks = std::env::var("WEFT_SIM_RANKS").map_or(4096, |ranks| ranks.parse().unwrap());
    let began = Instant::now();
    let fabric = FabricConfig { latency_ns: 1500, jitter_ns: 300, ..FabricConfig::new(1) };
    let mut job = Job::new(fabric, ranks, Operation::Barrier, 0);
    let [(first_ns, first), (second_ns, second)] = [(); 2].map(|()| (job.perform(), began.elapsed()));
    println!("{ranks} ranks: {first_ns} ns and {second_ns} ns, simulated in {first:?} and {:?}", second - first);
    let rounds = u64::from(ranks.next_power_of_two().ilog2());
    assert!(second_ns >= rounds * 1500 && second_ns <= rounds * 1900, "{second_ns} ns");
    let violations = job.cluster.fabric().violations();
    assert!(violations.is_empty(), "{violations:?}");
}

/// The virtual duration of a collective over costs (level two of the simulation).
fn over_costs(costs: &Costs, operation: Operation, ranks: u32, bytes: usize) -> u64 {
    let collective = Collective::compile(request(operation, ranks, bytes), None).unwrap();
    Machine::new(&collective, costs, Options::default()).run(|_, _| ()).unwrap().end_ps
}

/// Whole engines and schedules over costs give the same times, once the connections are made, as no credit stalls.
///
/// They are equal to the nanosecond where a rank sends one message at a time. Several messages at once share a rank's
/// device over costs, while each link of the simulated fabric has its own. They then agree within 1 %.
#[test]
fn both_levels_of_the_simulation_agree() {
    let fabric = || FabricConfig { latency_ns: 1500, ps_per_byte: 1000, ..FabricConfig::new(1) };
    let again = |ranks, operation, bytes| {
        let mut job = Job::new(fabric(), ranks, operation, bytes);
        job.perform();
        job.perform()
    };
    // The bytes of a message beside its payload.
    let head_ns = again(2, Operation::Barrier, 0) - fabric().latency_ns;
    assert!((8..64).contains(&head_ns), "{head_ns} bytes");
    let latency = (fabric().latency_ns + head_ns) * 1000;
    let costs = Costs { ranks_per_host: 1, far: Path { latency, byte: 1000, ..Path::default() }, ..Costs::default() };
    for ranks in [64, 256, 1024] {
        for (operation, bytes, equal) in [
            (Operation::Barrier, 0, true),
            (Operation::AllReduce, 8, true),
            (Operation::Broadcast, 8, false),
            (Operation::Reduce, 8, false),
        ] {
            let engines_ps = again(ranks, operation, bytes) * 1000;
            let costs_ps = over_costs(&costs, operation, u32::try_from(ranks).unwrap(), bytes);
            let apart = engines_ps.abs_diff(costs_ps);
            let allowed = if equal { 0 } else { engines_ps / 100 };
            assert!(apart <= allowed, "{operation:?} of {ranks}: {engines_ps} ps by engines, {costs_ps} ps over costs");
        }
    }
}
