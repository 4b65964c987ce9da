//! On any device, reads, writes and atomics of one peer take effect in the order in which they were started,
//! up to the promised length.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::cast_possible_truncation)]

use std::sync::Arc;

use weft_engine::amo::{Amo, Form, Op as AmoOp, Type};
use weft_engine::api::{Access, AtomicOp, Config, Context, Error, OpFlags, Region, RmaIov, RmaOp};
use weft_engine::mem::IovList;
use weft_sim::rng::{Entity, Stream};
use weft_sim::workload::engine_config;
use weft_sim::{Cluster, FabricConfig, SimMemory, Turn};

/// Posts random concurrent operations on the same few bytes, and compares with a model that executes them one
/// after the other.
fn check_overlapping(seed: u64) {
    let mut rng = Stream::new(seed, Entity::Test(0));
    let config = Config { tx_depth: 4096, inject_bytes: 4096, ..engine_config(&mut rng, true) };
    let mut swarm = FabricConfig::swarm(seed);
    swarm.caps.maps = true;
    let len = weft_engine::ordered_rma_bytes(swarm.caps.mailbox_bytes);
    let mut cluster = Cluster::new(swarm, config, 2);
    let fabric = cluster.fabric().clone();
    let memory = fabric.alloc(1, len);
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    let mapping = seed.is_multiple_of(2).then(|| Arc::new(SimMemory::new(memory.iov())) as _);
    let region = Region { key: 1, iov, base: 0, access, user: 0, events: false, mapping };
    cluster.engine(1).unwrap().add_region(region).unwrap();
    let dest = cluster.addr(0, 1);
    let mut model = vec![0u8; len];
    let mut reads = Vec::new();
    for n in 0..60 {
        let offset = rng.index(len);
        let portion = rng.between(0, len - offset);
        let buffer = fabric.alloc(0, portion);
        let ctx = Context { ptr: n, user: 0 };
        let mut flags = OpFlags::empty();
        flags.set(OpFlags::INJECT, portion <= config.inject_bytes && rng.chance(300));
        flags.set(OpFlags::QUIET, rng.chance(300));
        flags.set(OpFlags::DELIVERY, rng.chance(300));
        let remote = [RmaIov { addr: offset as u64, len: portion as u64, key: 1 }];
        let op = RmaOp { dest, iov: &[buffer.iov()], remote: &remote, data: 0, ctx, flags };
        if portion > 0 && rng.chance(200) {
            let amo = Amo::new(Form::Base, Type::Uint8, AmoOp::Sum).unwrap();
            let bytes = rng.bytes(portion);
            buffer.write(&bytes);
            for (old, add) in model[offset..].iter_mut().zip(&bytes) {
                *old = old.wrapping_add(*add);
            }
            let (iov, flags) = (&[buffer.iov()][..], OpFlags::empty());
            let op = AtomicOp { amo, dest, iov, compare: &[], result: &[], remote: &remote, data: 0, ctx, flags };
            cluster.engine(0).unwrap().atomic(&op).unwrap();
        } else if rng.chance(500) {
            let bytes = rng.bytes(portion);
            buffer.write(&bytes);
            model[offset..offset + portion].copy_from_slice(&bytes);
            // An inject without a completion is accepted only when it can leave.
            while let Err(error) = cluster.engine(0).unwrap().write(&op) {
                assert!(error == Error::Again, "{error:?}");
                cluster.turn(|_, _| ());
            }
        } else {
            cluster.engine(0).unwrap().read(&RmaOp { flags: OpFlags::empty(), ..op }).unwrap();
            reads.push((n, buffer, model[offset..offset + portion].to_vec()));
        }
        // Often, several operations reach the target at once.
        for _ in 0..if rng.chance(300) { rng.index(8) } else { 0 } {
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
        assert!(buffer.bytes() == expected, "seed {seed}: operation {n} read older or newer bytes");
    }
    assert!(memory.bytes() == model, "seed {seed}: the last write does not stand");
}

/// More answers and refusals are due than may be pending. All operations end, and a write does not change the
/// result of an earlier read.
#[test]
fn answers_find_room_again() {
    const READS: usize = 700;
    let mut config = FabricConfig::new(1);
    config.caps.mailbox_bytes = 16 << 10;
    let len = weft_engine::ordered_rma_bytes(config.caps.mailbox_bytes);
    let engine = Config { tx_depth: 4 * READS, ..engine_config(&mut Stream::new(1, Entity::Test(0)), true) };
    let mut cluster = Cluster::new(config, engine, 2);
    let fabric = cluster.fabric().clone();
    let memory = fabric.alloc(1, len);
    memory.write(&vec![1; len]);
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    cluster
        .engine(1)
        .unwrap()
        .add_region(Region { key: 1, iov, base: 0, access, user: 0, events: false, mapping: None })
        .unwrap();
    let dest = cluster.addr(0, 1);
    let buffers: Vec<_> = (0..=2 * READS).map(|_| fabric.alloc(0, len)).collect();
    for (n, buffer) in buffers.iter().enumerate() {
        let remote = [RmaIov { addr: 0, len: len as u64, key: if n < READS { 9 } else { 1 } }];
        let (iov, ctx) = ([buffer.iov()], Context { ptr: n, user: 0 });
        let op = RmaOp { dest, iov: &iov, remote: &remote, data: 0, ctx, flags: OpFlags::empty() };
        let engine = cluster.engine(0).unwrap();
        if n == 2 * READS {
            buffer.write(&vec![2; len]);
            engine.write(&op).unwrap();
        } else {
            engine.read(&op).unwrap();
        }
    }
    let (mut idle, mut done) = (0, Vec::new());
    while idle < 3 {
        let turn = cluster.turn(|cluster, rank| done.append(&mut cluster.take_completions(rank)));
        idle = if turn == Turn::Idle { idle + 1 } else { 0 };
    }
    assert_eq!(done.len(), 2 * READS + 1);
    assert_eq!(done.iter().filter(|c| c.fault.is_some()).count(), READS);
    assert!(buffers[READS..2 * READS].iter().all(|buffer| buffer.bytes() == vec![1; len]));
    assert!(memory.bytes() == vec![2; len]);
}

#[test]
fn operations_take_effect_in_order() {
    let one = std::env::var("WEFT_SIM_SEED").ok().map(|seed| seed.parse::<u64>().expect("a number"));
    for seed in one.map_or(0..300, |seed| seed..seed + 1) {
        check_overlapping(seed);
    }
}
