//! Deferred work alone: barriers of every size, and the oracle's complaint about a barrier that releases a
//! member too early.
#![allow(clippy::unwrap_used)]

use weft_engine::api::{Config, OpFlags};
use weft_engine::program::Errors;
use weft_sim::oracle::Change;
use weft_sim::{FREE_COUNTER, FabricConfig, Harness, Job, Signals, Task};

fn ranks(seed: u64, count: usize) -> Harness {
    let mut harness = Harness::new(FabricConfig::new(seed), Config::default(), count);
    for rank in 0..count {
        harness.allow_programs(rank, 120);
    }
    harness
}

#[test]
fn barriers_of_every_size_release_all_members() {
    for count in 1..=9 {
        for write in [false, true] {
            let mut harness = ranks(count as u64, count);
            let n = harness.open_barrier(Signals { write, sum: false, len: 8, flags: OpFlags::empty() }).unwrap();
            for rank in 0..count {
                assert_eq!(harness.program_stats().left, 0, "{count} ranks: no exit before the last entry");
                harness.post_barrier(n, rank, rank % 2 == 1).unwrap();
                harness.drive().unwrap();
                harness.enter_barrier(n, rank);
                harness.drive().unwrap();
            }
            assert_eq!(harness.program_stats().left, count as u64);
            assert_eq!(harness.finish(), [""; 0]);
        }
    }
}

#[test]
fn an_early_exit_from_a_barrier_is_noticed() {
    let mut harness = ranks(1, 2);
    let n = harness.open_barrier(Signals { write: false, sum: false, len: 8, flags: OpFlags::empty() }).unwrap();
    harness.post_barrier(n, 0, true).unwrap();
    harness.enter_barrier(n, 0);
    harness.submit(0, vec![Task::Do(Job::Leave(n), None)], None).unwrap();
    assert!(harness.oracle().complaints()[0].contains("before rank 1 has entered"));
}

#[test]
fn sums_follow_their_tree() {
    for count in 1..=17 {
        let mut harness = ranks(count as u64, count);
        let n = harness.open_barrier(Signals { write: false, sum: true, len: 8, flags: OpFlags::empty() }).unwrap();
        for rank in (0..count).rev() {
            assert_eq!(harness.program_stats().left, 0, "{count} ranks: no exit before the last entry");
            harness.post_barrier(n, rank, false).unwrap();
            harness.drive().unwrap();
            harness.enter_barrier(n, rank);
            harness.drive().unwrap();
        }
        assert_eq!(harness.program_stats().left, count as u64);
        assert_eq!(harness.finish(), [""; 0]);
    }
}

#[test]
fn a_sum_in_another_order_is_noticed() {
    let mut harness = ranks(1, 3);
    let n = harness.open_barrier(Signals { write: false, sum: true, len: 8, flags: OpFlags::empty() }).unwrap();
    harness.post_barrier(n, 0, false).unwrap();
    harness.enter_barrier(n, 0);
    harness.submit(0, vec![Task::Do(Job::Leave(n), None)], None).unwrap();
    assert!(harness.oracle().complaints().iter().any(|wrong| wrong.contains("its tree adds up to")));
}

#[test]
fn a_dead_member_blocks_the_barrier() {
    for write in [false, true] {
        let mut harness = ranks(2, 4);
        let n = harness.open_barrier(Signals { write, sum: false, len: 8, flags: OpFlags::empty() }).unwrap();
        harness.kill(3);
        for rank in 0..3 {
            harness.post_barrier(n, rank, false).unwrap();
            harness.enter_barrier(n, rank);
        }
        harness.drive().unwrap();
        assert_eq!(harness.finish(), [""; 0]);
        assert_eq!(harness.program_stats().left, 0);
        let [.., poisoned, cancelled] = harness.program_stats().ends;
        assert!(poisoned > 0, "a failed signal to the dead member poisons its program");
        assert!(cancelled > 0, "programs that wait for the dead member are cancelled");
    }
}

#[test]
fn programs_chain_counters() {
    let mut harness = ranks(3, 1);
    let wait = |counter, threshold| Task::Wait(counter, threshold, Errors::Count);
    let add = |counter| Task::Do(Job::Change(counter, Change::Add(1)), None);
    harness.submit(0, vec![wait(FREE_COUNTER, 2), add(FREE_COUNTER + 1)], None).unwrap();
    harness
        .submit(
            0,
            vec![wait(FREE_COUNTER + 1, 1), add(FREE_COUNTER), wait(FREE_COUNTER, 3), Task::Do(Job::Fail, None)],
            None,
        )
        .unwrap();
    harness.change(0, FREE_COUNTER, Change::Add(1));
    assert_eq!(harness.level(0, FREE_COUNTER + 1).total(), 0);
    harness.change(0, FREE_COUNTER, Change::AddErrors(1));
    assert_eq!(harness.level(0, FREE_COUNTER).total(), 3);
    assert_eq!(harness.program_stats().ends, [1, 1, 0, 0]);
    assert_eq!(harness.finish(), [""; 0]);
}
