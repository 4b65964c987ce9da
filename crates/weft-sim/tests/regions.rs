//! Removal of a region while peers access it. After the call returns nothing touches the memory, and no peer
//! waits indefinitely.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::sync::Arc;

use weft_engine::api::{Access, Config, Context, Error, OpFlags, Region, RmaIov, RmaOp};
use weft_engine::mem::IovList;
use weft_sim::{Cluster, FabricConfig, SimMemory, Turn};

const LEN: usize = 50_000;

/// Rank 0 reads from or writes to rank 1's region, which is removed after `turns`. Returns whether the
/// operation succeeded.
fn remove_after(turns: usize, write: bool, mut config: FabricConfig, stuck: bool) -> bool {
    // A poll takes time; otherwise a rank that waits inside a call would wait indefinitely.
    (config.poll_ns, config.ps_per_byte, config.segment_bytes) = (if stuck { 0 } else { 20 }, 1000, 1000);
    let config_maps = config.caps.maps;
    let mut cluster = Cluster::new(config, Config::default(), 2);
    let fabric = cluster.fabric().clone();
    let (local, memory) = (fabric.alloc(0, LEN), fabric.alloc(1, LEN));
    let access = Access { read: true, write: true };
    let iov = IovList::from_slice(&[memory.iov()]);
    let mapping = config_maps.then(|| Arc::new(SimMemory::new(memory.iov())) as _);
    let region = Region { key: 7, iov, base: 0, access, user: 0, events: false, mapping };
    cluster.engine(1).unwrap().add_region(region.clone()).unwrap();
    assert_eq!(cluster.engine(1).unwrap().add_region(region), Err(Error::KeyInUse));
    let dest = cluster.addr(0, 1);
    let (ctx, flags) = (Context { ptr: 1, user: 2 }, OpFlags::empty());
    let remote = [RmaIov { addr: 0, len: LEN as u64, key: 7 }];
    let op = RmaOp { dest, iov: &[local.iov()], remote: &remote, data: 0, ctx, flags };
    let engine = cluster.engine(0).unwrap();
    if write {
        engine.write(&op).unwrap()
    } else {
        engine.read(&op).unwrap()
    }
    let mut ends = Vec::new();
    for _ in 0..turns {
        cluster
            .turn(|cluster, rank| ends.extend((rank == 0).then(|| cluster.take_completions(0)).into_iter().flatten()));
    }
    cluster.engine(1).unwrap().remove_region(7);
    fabric.free(memory);
    for _ in 0..100_000 {
        let turn = cluster
            .turn(|cluster, rank| ends.extend((rank == 0).then(|| cluster.take_completions(0)).into_iter().flatten()));
        if turn == Turn::Idle {
            break;
        }
    }
    fabric.free(local);
    while fabric.advance() {}
    assert_eq!(fabric.violations(), Vec::<String>::new(), "after {turns} turns");
    let [end] = ends[..] else { panic!("after {turns} turns: {} completions", ends.len()) };
    assert_eq!(end.ctx, ctx);
    for rank in 0..2 {
        assert!(cluster.engine(rank).unwrap().at_rest(), "after {turns} turns: rank {rank} is not at rest");
    }
    end.fault.is_none()
}

#[test]
fn a_region_can_be_removed_at_any_moment() {
    let devices =
        [(false, false, false), (false, false, true), (true, false, false), (false, true, false), (true, true, false)];
    for (get, put, follows) in devices {
        for write in [false, true] {
            for stuck in [false, true] {
                let mut outcomes = Vec::new();
                for turns in (0..200).step_by(if stuck { 25 } else { 3 }) {
                    let mut config = FabricConfig::new(turns as u64);
                    (config.caps.get, config.caps.put, config.caps.push_follows) = (get, put, follows);
                    config.caps.maps = turns % 2 == 0;
                    outcomes.push(remove_after(turns, write, config, stuck));
                }
                assert!(
                    outcomes.contains(&false),
                    "get {get}, put {put}, follows {follows}, write {write}: never too early"
                );
                assert!(
                    outcomes.contains(&true),
                    "get {get}, put {put}, follows {follows}, write {write}: never in time"
                );
            }
        }
    }
}
