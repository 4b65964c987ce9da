//! The conformance suite. It tests every operation in every form, on every path, under both progress models,
//! at every length at which a protocol changes. All pairs of values of the other parameters are covered.
//!
//! [`table`] makes the cases: it lists the operations and the axes, and chooses values. [`world`] opens the
//! objects of a case: two endpoints, queues of one format, counters, and regions. [`transfer`] performs a
//! case. It checks every byte of source, target and their margins, the completion entries at both ends, and
//! every counter.
//!
//! Other modules test more than single transfers, with the same operations and lengths. [`receives`] tests
//! peek, claim, discard, multi-receive and cancel. [`streams`] tests many pending transfers, fences, and an
//! overrun receiver. [`gating`] tests every function with every combination of capabilities. The values of
//! atomics are tested in `atomics`, misuse in `misuse`, and completion levels in `levels`.
//!
//! The full product of the axes has too many cases. The product of operation, length and progress model is
//! complete. [`table::deal`] chooses the values of the other axes. Every two values of two axes meet for every
//! operation (Cohen et al., "The AETG System", IEEE TSE 23(7), 1997). The choice is the same in every run.
//!
//! The paths are shared memory with and without cross-memory attach, TCP, and simulated devices
//! (`weft-fi-sim`). Those are unordered, without get and put, with the smallest queues and mailboxes, or
//! always full. Simulated devices have virtual time, which advances when a thread polls. They need manual
//! progress.
//!
//! A failing case prints its name. `WEFT_SUITE_CASE` restricts a run to the cases that contain its value.

mod gating;
mod memory;
mod receives;
mod streams;
mod table;
mod transfer;
mod world;

use std::time::Instant;

use crate::client::Lib;
use table::{Axis, Case};
use world::{Setup, World};

/// Prints the case when a check fails.
struct PrintOnFailure<'a>(&'a Case);

impl Drop for PrintOnFailure<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: WEFT_SUITE_CASE={} {:?}", self.0.name(), self.0);
        }
    }
}

/// Special receives, streams of transfers, and calls by capability.
pub(crate) fn others(lib: &Lib) {
    let start = Instant::now();
    let limits = table::Limits::of(lib);
    let receives = receives::receives(lib, &limits);
    let transfers = streams::streams(lib, &limits);
    let messages = streams::overrun(lib, &limits);
    let calls = gating::gating(lib);
    let seconds = start.elapsed().as_secs_f32();
    println!(
        "cases: {receives} receives, {transfers} transfers in streams, {messages} messages to an overrun receiver, \
         {calls} calls by capability, {seconds:.1} s"
    );
}

/// Single transfers of every kind.
pub(crate) fn transfers(lib: &Lib) {
    run(lib, false);
}

/// Single transfers over connections. An endpoint cannot be connected to itself.
pub(crate) fn connections(lib: &Lib) {
    run(lib, true);
}

fn run(lib: &Lib, connected: bool) {
    let start = Instant::now();
    let limits = table::Limits::of(lib);
    let wanted = std::env::var("WEFT_SUITE_CASE").unwrap_or_default();
    let mut cases: Vec<Case> = table::operations().iter().flat_map(|op| table::deal(op, &limits)).collect();
    let all = cases.len();
    if std::env::var_os(crate::SIM).is_some() {
        // Virtual time advances only when a thread polls.
        cases.retain(|case| !case.auto);
    }
    cases.retain(|case| case.name().contains(&wanted) && (!connected || case.get(Axis::Direction) < 2));
    let memory = memory::Memory::new(limits.longest);
    let mut setups: Vec<Setup> = cases.iter().map(Setup::of).collect();
    setups.sort_unstable();
    setups.dedup();
    for setup in setups {
        let world = if connected { World::connected(lib, setup, &memory) } else { World::new(lib, setup, &memory) };
        for case in cases.iter().filter(|case| Setup::of(case) == setup) {
            let _print = PrintOnFailure(case);
            transfer::perform(&world, case);
        }
        world.close();
    }
    let seconds = start.elapsed().as_secs_f32();
    println!("cases: {} of {all} transfers ({} pairs of values), {seconds:.1} s", cases.len(), Axis::pairs());
}
