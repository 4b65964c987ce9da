//! Simulated runs of active messages: weft-gex, from its C interface down, over simulated devices in virtual time.
//!
//! `cargo test -p weft-gex-c --features sim --test sim` runs them. docs/testing.md says what they cover.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod client;
mod messages;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use messages::{Events, Oracle, Quiet, ask_to_exit, exchange, set_up};
use weft_gex::job::Job;
use weft_gex::sim::{self, Bug, End, Entity, FabricConfig, Hazard, Hazards, Outcome, Plan, Stream};

use crate::client::*;

/// A plan whose devices are without faults, or often full and late, or also lose packets and reorder messages.
fn plan(seed: u64, ranks: u32, window: u16) -> Plan {
    let hazards: Hazards = match seed % 3 {
        0 => Hazards::NONE,
        1 => [Hazard::Full, Hazard::Partial, Hazard::Delay].into_iter().collect(),
        _ => [Hazard::Full, Hazard::Drop, Hazard::Reorder, Hazard::Duplicate].into_iter().collect(),
    };
    let fabric = if seed.is_multiple_of(3) { FabricConfig::new(seed) } else { FabricConfig::draw(seed, hazards) };
    Plan { fabric, window, ..Plan::new(seed, ranks) }
}

#[track_caller]
fn fine(outcome: &Outcome, what: &str) {
    assert_eq!(outcome.complaint, None, "{what}: {outcome:?}");
}

/// Runs an exchange of requests and replies.
fn run_exchange(plan: &Plan, requests: usize) -> (Outcome, &'static Oracle) {
    let (oracle, seed) = (Oracle::new(plan.ranks, plan.window), plan.fabric.seed);
    let outcome = sim::run(plan, move |job| {
        set_up(job, oracle, false);
        exchange(job, oracle, seed, requests, &Quiet);
    });
    (outcome, oracle)
}

/// All ranks send more than they may before the others handle it. Replies flow nevertheless.
#[test]
fn credits_run_out_both_ways() {
    for seed in 0..60 {
        let window = [2, 3, 8, 64][seed as usize % 4];
        let ranks = 2 + (seed as u32 / 4) % 3;
        let mut plan = plan(seed, ranks, window);
        plan.near = if seed % 8 == 7 { ranks } else { 1 };
        let (outcome, oracle) = run_exchange(&plan, 300);
        fine(&outcome, &format!("seed {seed}, window {window}, {ranks} ranks"));
        assert_eq!(outcome.ends, vec![End::Returned; ranks as usize]);
        // Other devices have less room than the windows.
        if window <= 8 && seed.is_multiple_of(3) {
            assert_eq!(oracle.least_peak(), window.into(), "seed {seed}: the window was never in use as a whole");
        }
    }
}

/// Kills rank 1 at the moment at which a rank is about to commit its `nth` prepared message.
struct Death {
    oracle: &'static Oracle,
    nth: usize,
    count: AtomicUsize,
    own: bool,
}

impl Events for Death {
    fn between(&self, rank: u32, to: u32, _: u32) {
        if self.count.fetch_add(1, Ordering::Relaxed) < self.nth || self.count.load(Ordering::Relaxed) > 1 << 20 {
            return;
        }
        match (rank, to) {
            // The rank itself dies with a message prepared.
            (1, _) if self.own => {
                self.count.store(2 << 20, Ordering::Relaxed);
                self.oracle.note_death(1);
                sim::die();
            }
            (0 | 2, 1) if !self.own => {
                self.count.store(2 << 20, Ordering::Relaxed);
                self.oracle.note_death(1);
                sim::kill(1);
            }
            _ => {}
        }
    }
}

fn run_death(plan: &Plan, own: bool, tolerant: bool) -> (Outcome, &'static Oracle) {
    let (oracle, seed) = (Oracle::new(plan.ranks, plan.window), plan.fabric.seed);
    let events: &Death =
        Box::leak(Box::new(Death { oracle, nth: 10 + seed as usize * 7 % 90, count: AtomicUsize::new(0), own }));
    let outcome = sim::run(plan, move |job| {
        set_up(job, oracle, tolerant);
        exchange(job, oracle, seed, 300, events);
    });
    (outcome, oracle)
}

/// A rank dies while others have prepared messages to it, or it has. The others go on without it, and all messages
/// among them arrive.
#[test]
fn a_peer_dies_between_prepare_and_commit() {
    for seed in 100..140 {
        let mut plan = plan(seed, 3, [2, 8, 64][seed as usize / 3 % 3]);
        plan.near = if seed % 5 == 0 { 3 } else { 1 };
        let (outcome, oracle) = run_death(&plan, seed % 4 == 3, true);
        fine(&outcome, &format!("seed {seed}"));
        assert_eq!(outcome.ends, [End::Returned, End::Killed, End::Returned], "seed {seed}");
        assert_eq!(oracle.told(), 2, "seed {seed}: each rank that is left learns of the death once");
    }
}

/// A rank dies, and the others have no handler for failures: the job ends, soon and with the code of the death.
#[test]
fn a_death_ends_the_job() {
    for seed in 200..212 {
        let (outcome, _) = run_death(&plan(seed, 3, 8), seed % 2 == 0, false);
        fine(&outcome, &format!("seed {seed}"));
        assert_eq!(outcome.ends, [End::Exited(137), End::Killed, End::Exited(137)], "seed {seed}");
        assert!(outcome.time < Duration::from_secs(2), "seed {seed}: {:?}", outcome.time);
    }
}

/// A rank ends the job in a handler, while the others send and wait for credit.
#[test]
fn exit_in_a_handler() {
    struct Exit {
        nth: u32,
    }
    impl Events for Exit {
        fn after(&self, rank: u32, id: u32) {
            if (rank, id) == (0, self.nth) {
                ask_to_exit(1, 7);
            }
        }
    }
    for seed in 300..340 {
        let ranks = 2 + seed as u32 / 9 % 3;
        let mut plan = plan(seed, ranks, [2, 8, 64][seed as usize / 3 % 3]);
        plan.near = if seed % 4 == 0 { ranks } else { 1 };
        let (oracle, nth) = (Oracle::new(ranks, plan.window), 5 + seed as u32 % 40);
        let outcome = sim::run(&plan, move |job| {
            set_up(job, oracle, false);
            exchange(job, oracle, seed, 2000, &Exit { nth });
        });
        fine(&outcome, &format!("seed {seed}"));
        assert_eq!(outcome.ends, vec![End::Exited(7); ranks as usize], "seed {seed}");
        assert!(outcome.time < Duration::from_secs(4), "seed {seed}: {:?}", outcome.time);
    }
}

/// Bytes of a rank's segment in runs of vector accesses.
const SEGMENT: usize = 1 << 19;

/// Puts strided pieces into the segment of the next rank, and gets them back, by shapes that the seed draws.
fn put_and_get_strided(job: &'static Job, seed: u64) {
    let (tm, me) = (gex_weft_tm0(), job.rank() as usize);
    assert_eq!(gex_Segment_Attach(null_mut(), tm, SEGMENT), 0);
    let next = (job.rank() + 1) % job.ranks();
    let base = job.segment_base(weft_gex::table::Location::new(next, 0)).unwrap();
    let mut rng = Stream::new(seed, Entity::Workload(me));
    for round in 0..12 {
        let (len, rows) = (rng.between(1, 1100), rng.between(1, 8));
        let gap = rng.between(0, 40);
        let columns = rng.between(1, SEGMENT / (rows * (len + gap)));
        let counts = [columns.min(20), rows];
        let total = counts[0] * rows * len;
        let mut data: Vec<u8> = (0..total).map(|at| (at * 7 + round + me) as u8).collect();
        let near = [len as isize, (len * counts[0]) as isize];
        let step = (len + gap) as isize;
        // The rows go down, so their first one is the highest.
        let far = [step, -step * counts[0] as isize];
        let there = std::ptr::with_exposed_provenance_mut(base + (rows - 1) * (len + gap) * counts[0]);
        let source = data.as_mut_ptr().cast();
        let [far, near] = [far.as_ptr(), near.as_ptr()];
        assert_eq!(gex_VIS_StridedPutBlocking(tm, next, there, far, source, near, len, counts.as_ptr(), 2, 0), 0);
        let mut back = vec![0_u8; total];
        let dest = back.as_mut_ptr().cast();
        assert_eq!(gex_VIS_StridedGetBlocking(tm, dest, near, next, there, far, len, counts.as_ptr(), 2, 0), 0);
        if back != data {
            sim::complain(format!("{rows} rows of {columns} pieces of {len} bytes have changed on the way"));
        }
        sim::rest();
    }
    job.world().pass_barrier(job);
}

#[test]
fn vector_accesses_keep_their_bytes() {
    for seed in 400..420 {
        let mut plan = plan(seed, 2 + seed as u32 % 2, [64, 1024][seed as usize % 2]);
        // A packet that is lost costs 200 ms and more, and each message may lose some.
        plan.limit = Duration::from_secs(900);
        let outcome = sim::run(&plan, move |job| put_and_get_strided(job, seed));
        fine(&outcome, &format!("seed {seed}"));
    }
}

const OPERATIONS: usize = 1_000_000;

/// Starts a million puts and gets before it tests the event of one.
fn start_a_million(job: &'static Job, pending: &AtomicUsize) {
    let bytes = (OPERATIONS * 4).next_multiple_of(4096);
    assert_eq!(gex_Segment_Attach(null_mut(), gex_weft_tm0(), bytes), 0);
    let base = |rank| job.segment_base(weft_gex::table::Location::new(rank, 0)).unwrap();
    let at = |addr: usize| -> *mut c_void { std::ptr::with_exposed_provenance_mut(addr) };
    let (tm, half) = (gex_weft_tm0(), OPERATIONS / 2);
    if job.rank() == 1 {
        // Rank 0 reads the words of the second half, and writes those of the first half.
        let own = bytes_of(at(base(1)), bytes);
        for word in half..OPERATIONS {
            own[4 * word..4 * word + 4].copy_from_slice(&(word as u32).to_le_bytes());
        }
    }
    job.world().pass_barrier(job);
    if job.rank() == 0 {
        let mut got = vec![0_u32; half];
        let start = |n: usize| {
            let there = at(base(1) + 4 * n);
            match got.get_mut(n.wrapping_sub(half)) {
                Some(place) => gex_RMA_GetNB(tm, std::ptr::from_mut(place).cast(), 1, there, 4, 0),
                None => gex_RMA_PutNB(tm, 1, there, std::ptr::from_ref(&(n as u32)).cast(), 4, NOW, 0),
            }
        };
        // Puts and gets by turns.
        let mut events: Vec<_> = (0..half).flat_map(|n| [n, half + n]).map(start).collect();
        pending.store(events.iter().filter(|event| !event.is_null()).count(), Ordering::Relaxed);
        // The order of the tests differs from that of the starts.
        events.reverse();
        let (mut tested, mut waited) = (0, 0);
        for event in events {
            if tested % 3 == 0 && gex_Event_Test(event) == 0 {
                tested += 1;
                continue;
            }
            (tested, waited) = (tested + 1, waited + 1);
            gex_Event_Wait(event);
        }
        assert!(waited > half);
        assert!((half..OPERATIONS).zip(&got).all(|(n, word)| n as u32 == *word), "a get has brought another word");
    }
    job.world().pass_barrier(job);
    if job.rank() == 1 {
        let own = bytes_of(at(base(1)), bytes);
        let word = |n: usize| u32::from_le_bytes(own[4 * n..4 * n + 4].try_into().unwrap());
        assert!((0..half).all(|n| word(n) as usize == n), "a put has written another word");
    }
}

#[test]
fn a_million_operations_are_under_way() {
    let mut plan = Plan { limit: Duration::from_secs(600), ..Plan::new(5, 2) };
    (plan.fabric.queue_depth, plan.fabric.poll_budget) = (4096, 256);
    let pending: &AtomicUsize = Box::leak(Box::default());
    let outcome = sim::run(&plan, move |job| start_a_million(job, pending));
    fine(&outcome, "two ranks");
    assert_eq!(outcome.ends, [End::Returned; 2]);
    assert_eq!(pending.load(Ordering::Relaxed), OPERATIONS, "events that were not complete at once");
}

/// Bugs that are planted in the engine. The runs must find each of them.
#[test]
fn planted_bugs_are_found() {
    let bugs = [Bug::ActiveCreditLost, Bug::ActiveCreditTwice, Bug::ActiveReplyDropped, Bug::ActiveDeathTakesReplies];
    for bug in bugs {
        let complaint = (0..20).find_map(|seed| {
            let planted = |seed, ranks| Plan { bug: Some(bug), limit: Duration::from_secs(3), ..plan(seed, ranks, 8) };
            let exchange = run_exchange(&planted(seed, 2), 300).0.complaint;
            exchange.or_else(|| run_death(&planted(100 + seed, 3), false, true).0.complaint)
        });
        match complaint {
            Some(why) => println!("{bug:?}: {}", why.lines().next().unwrap_or("?")),
            None => panic!("{bug:?} was not found"),
        }
    }
}
