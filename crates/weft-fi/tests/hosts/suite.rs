//! The conformance suite: every operation in every form, on every path, under both progress models, at every length at
//! which a protocol changes, in all combinations of two of everything else.
//!
//! [`table`] makes the cases: it lists the operations and the axes, and chooses values. [`world`] opens what
//! a case needs (two endpoints, queues of one format, counters, regions). [`transfer`] performs a case and
//! looks at all that it may have changed: every byte of source and target and around them, the completion
//! entries at both ends, every counter.
//!
//! What is no single transfer stands beside that, over the same operations and lengths: [`receives`] (peek,
//! claim, discard, multi-receive, cancel), [`streams`] (many under way, fences, an overrun receiver),
//! [`gating`] (every function against every combination of capabilities). The atomics' values are in
//! `atomics`, misuse in `misuse`, completion levels in `levels`.
//!
//! The full product of the axes would be some 10^13 cases. Operation × length × progress model is complete;
//! to that the other axes are dealt so that every two values of two axes meet for every operation
//! ([`table::deal`], the method of Cohen et al., "The AETG System", IEEE TSE 23(7), 1997). The choice is the
//! same in every run.
//!
//! Paths are shared memory with and without cross-memory attach, TCP, and simulated devices (`weft-fi-sim`):
//! out of order, without get and put, with the smallest queues and mailboxes, always full. Those have virtual
//! time, which passes when somebody polls: manual progress only.
//!
//! A case that fails tells its name; `WEFT_SUITE_CASE` set to (a part of) it has only such cases run.

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

/// Says which case it was when a check fails.
struct Telling<'a>(&'a Case);

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed: WEFT_SUITE_CASE={} {:?}", self.0.name(), self.0);
        }
    }
}

/// Receives that are more than a buffer for a message, many transfers at once, and what endpoints have by
/// their capabilities.
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

/// Transfers of every kind.
pub(crate) fn transfers(lib: &Lib) {
    run(lib, false);
}

/// The same over connections, which nobody has with himself.
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
        // Virtual time goes on where somebody polls.
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
            let _telling = Telling(case);
            transfer::perform(&world, case);
        }
        world.close();
    }
    let seconds = start.elapsed().as_secs_f32();
    println!("cases: {} of {all} transfers ({} pairs of values), {seconds:.1} s", cases.len(), Axis::pairs());
}
