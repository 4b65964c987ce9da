//! An independent simulator as the oracle: LogGOPSim gives jobs of ours, in the format GOAL, the same duration.
//!
//! LogGOPSim is no part of this project. With its directory in WEFT_LOGGOPSIM (the one with the programs `LogGOPSim`
//! and `txt2bin`), this test runs it; without, it does nothing.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use weft_engine::collective::Operation;
use weft_record::{Event, Recording, Source};
use weft_replay::{Job, build, goal};
use weft_scale::profile::{Costs, Path as Way};
use weft_scale::{Machine, Options};

/// The parameters of both simulators, in nanoseconds: L, o, g, and G.
///
/// The processor's part is short, since the models differ in it. In LogGOPSim a message that arrives interrupts the
/// receiver, for o and for its bytes. In weft-scale the receiver pays o when it waits; the device carries the bytes.
const PARAMETERS: [u64; 4] = [5000, 50, 20, 1];

fn costs() -> Costs {
    let [latency, overhead, gap, byte] = PARAMETERS.map(|ns| ns * 1000);
    let far = Way { send: overhead, receive: overhead, latency, gap, byte, ..Way::default() };
    Costs { ranks_per_host: 1, far, ..Costs::default() }
}

/// Ranks that compute for different times, perform a collective, send around a ring, and perform it again.
fn job(operation: usize, ranks: u32, bytes: u64) -> Job {
    let operation = u32::try_from(operation).unwrap();
    let collective = Event::Collective { operation, id: 0, bytes, context: 0, root: ranks / 3 };
    let recording = |rank: u32| {
        let send = Event::Send { to: (rank + 1) % ranks, id: 0, bytes: bytes + 1, context: 0, tag: 1 };
        let receive = Event::Receive { from: (rank + ranks - 1) % ranks, id: 0, bytes, context: 0, tag: 1 };
        let work_ns = u64::from(rank * 7919 % 4001);
        let events = vec![(work_ns, collective), (4001 - work_ns, send), (0, receive), (0, collective)];
        let (contexts, names) = (BTreeMap::from([(0, (0..ranks).collect())]), BTreeMap::new());
        Recording {
            source: Source::Mpi,
            rank,
            ranks,
            events,
            contexts,
            names,
            omitted: BTreeMap::new(),
            lasted_ns: None,
        }
    };
    build(&(0..ranks).map(recording).collect::<Vec<_>>(), &Costs::default(), &|_, _, _| None).unwrap()
}

/// The duration by LogGOPSim.
fn by_loggopsim(directory: &Path, text: &str) -> u64 {
    let at = std::env::temp_dir().join(format!("weft-goal-{}", std::process::id()));
    std::fs::create_dir_all(&at).unwrap();
    let [source, binary] = ["job.goal", "job.bin"].map(|name| at.join(name));
    std::fs::write(&source, text).unwrap();
    let converted = Command::new(directory.join("txt2bin")).arg("-i").arg(&source).arg("-o").arg(&binary).output();
    assert!(converted.as_ref().unwrap().status.success(), "{converted:?}");
    let mut command = Command::new(directory.join("LogGOPSim"));
    command.arg("-f").arg(&binary).args(["-S", "100000000"]);
    for (name, ns) in ["-L", "-o", "-g", "-G"].iter().zip(PARAMETERS) {
        command.arg(name).arg(ns.to_string());
    }
    let output = String::from_utf8(command.output().unwrap().stdout).unwrap();
    std::fs::remove_dir_all(&at).unwrap();
    // One line for each rank, or one for all.
    let ends = output.lines().filter(|line| line.starts_with("Host ") || line.starts_with("Maximum finishing time"));
    let ends = ends.filter_map(|line| line.split_once(": ")?.1.split(' ').next()?.parse::<u64>().ok());
    ends.max().unwrap_or_else(|| panic!("no end in: {output}"))
}

#[test]
fn an_independent_simulator_gives_the_same_durations() {
    let Some(directory) = std::env::var_os("WEFT_LOGGOPSIM") else { return };
    let sizes = [(8, 8), (13, 30), (32, 16)];
    let programs =
        (0..Operation::ALL.len()).flat_map(|operation| sizes.map(|(ranks, bytes)| (operation, ranks, bytes)));
    let mut wrong = Vec::new();
    for (operation, ranks, bytes) in programs.take(20) {
        let job = job(operation, ranks, bytes);
        let ours = Machine::new(&job, &costs(), Options::default()).run(|_, _| ()).unwrap().end_ps / 1000;
        let theirs = by_loggopsim(Path::new(&directory), &goal::write(&job, &costs()));
        let name = Operation::ALL[operation];
        println!("{name:?} of {ranks} ranks, {bytes} B: {ours} ns here, {theirs} ns by LogGOPSim");
        if ours.abs_diff(theirs) * 100 > theirs {
            wrong.push((name, ranks, bytes, ours, theirs));
        }
    }
    assert!(wrong.is_empty(), "more than 1 % apart: {wrong:?}");
}
