//! Short reads and writes of one peer take effect in the order in which they were started, on any device.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use weft_engine::ORDERED_RMA_BYTES;
use weft_engine::api::{Access, Config, Context, Error, OpFlags, Region, RmaIov, RmaOp};
use weft_engine::mem::IovList;
use weft_sim::rng::{Entity, Stream};
use weft_sim::workload::engine_config;
use weft_sim::{Cluster, FabricConfig, Turn};

/// Random reads and writes of the same few bytes, all under way at once, against a model that executes them one by one.
fn overlapping(seed: u64) {
    let mut rng = Stream::new(seed, Entity::Test(0));
    let config = Config { tx_depth: 4096, inject_bytes: 4096, ..engine_config(&mut rng) };
    let mut cluster = Cluster::new(FabricConfig::swarm(seed), config, 2);
    let fabric = cluster.fabric().clone();
    let len = ORDERED_RMA_BYTES;
    let memory = fabric.alloc(1, len);
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    cluster.engine(1).unwrap().add_region(Region { key: 1, iov, base: 0, access, user: 0, events: false }).unwrap();
    let dest = cluster.addr(0, 1);
    let mut model = vec![0; len];
    let mut reads = Vec::new();
    for n in 0..60 {
        let offset = rng.index(len);
        let portion = rng.between(0, len - offset);
        let buffer = fabric.alloc(0, portion);
        let ctx = Context { ptr: n, user: 0 };
        let mut flags = OpFlags::empty();
        flags.set(OpFlags::INJECT, rng.chance(300));
        flags.set(OpFlags::QUIET, rng.chance(300));
        flags.set(OpFlags::DELIVERY, rng.chance(300));
        let remote = [RmaIov { addr: offset as u64, len: portion as u64, key: 1 }];
        let op = RmaOp { dest, iov: &[buffer.iov()], remote: &remote, data: 0, ctx, flags };
        if rng.chance(500) {
            let bytes = rng.bytes(portion);
            buffer.write(&bytes);
            model[offset..offset + portion].copy_from_slice(&bytes);
            // An inject of which nobody is told is accepted only when it can leave.
            while cluster.engine(0).unwrap().write(&op) == Err(Error::Again) {
                cluster.turn(|_, _| ());
            }
        } else {
            cluster.engine(0).unwrap().read(&RmaOp { flags: OpFlags::empty(), ..op }).unwrap();
            reads.push((n, buffer, model[offset..offset + portion].to_vec()));
        }
        for _ in 0..rng.index(3) {
            cluster.turn(|_, _| ());
        }
    }
    let (mut idle, mut done) = (0, Vec::new());
    for _ in 0..200_000 {
        let turn = cluster.turn(|cluster, rank| done.append(&mut cluster.take_completions(rank)));
        idle = if turn == Turn::Idle { idle + 1 } else { 0 };
        if idle > 2 {
            break;
        }
    }
    let faults = done.iter().filter_map(|c| c.fault).collect::<Vec<_>>();
    assert!(faults.is_empty() && idle > 2, "seed {seed}: {faults:?}");
    for (n, buffer, expected) in reads {
        assert!(buffer.bytes() == expected, "seed {seed}: operation {n} read something older or newer");
    }
    assert!(memory.bytes() == model, "seed {seed}: the last write does not stand");
}

#[test]
fn short_reads_and_writes_take_effect_in_order() {
    let one = std::env::var("WEFT_SIM_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    for seed in one.map_or(0..300, |seed| seed..seed + 1) {
        overlapping(seed);
    }
}
