//! The machine against formulas of LogGP, and the order of its events against a heap.

#![allow(clippy::unwrap_used, missing_docs)]

use weft_engine::collective::{Algorithm, Operation};
use weft_scale::profile::{Costs, Path};
use weft_scale::queue::{Buckets, Heap};
use weft_scale::schedule::{Collective, request};
use weft_scale::{Executor, Machine, Options, Outcome, Overlap};

const SEND: u64 = 300;
const RECEIVE: u64 = 500;
const LATENCY: u64 = 7_000;
const BYTE: u64 = 11;

fn costs() -> Costs {
    let far = Path { send: SEND, receive: RECEIVE, latency: LATENCY, byte: BYTE, ..Path::default() };
    Costs { ranks_per_host: 1, far, ..Costs::default() }
}

fn compiled(operation: Operation, members: u32, bytes: usize) -> Collective {
    Collective::compile(request(operation, members, bytes), None).unwrap()
}

fn run(collective: &Collective, costs: &Costs, options: Options) -> Outcome {
    Machine::new(collective, costs, options).run(|_, _| ()).unwrap()
}

#[test]
fn barriers_take_a_round_for_each_bit() {
    for members in [1_u32, 2, 3, 8, 13, 64, 1000] {
        let rounds = u64::from(members.next_power_of_two().ilog2());
        let outcome = run(&compiled(Operation::Barrier, members, 0), &costs(), Options::default());
        assert_eq!(outcome.end_ps, rounds * (SEND + LATENCY + RECEIVE), "{members} members");
        assert_eq!(outcome.messages, rounds * u64::from(members), "{members} members");
        let thrice = Options { iterations: 3, ..Options::default() };
        let outcome = run(&compiled(Operation::Barrier, members, 0), &costs(), thrice);
        assert_eq!(outcome.end_ps, 3 * rounds * (SEND + LATENCY + RECEIVE), "{members} members");
    }
}

#[test]
fn data_take_their_time() {
    let bytes = 4000;
    let way = SEND + LATENCY + BYTE * bytes as u64 + RECEIVE;
    let broadcast = |members| run(&compiled(Operation::Broadcast, members, bytes), &costs(), Options::default());
    assert_eq!(broadcast(2).end_ps, way);
    // The root sends first to rank 2, which passes the bytes on to rank 3.
    assert_eq!(broadcast(4).end_ps, 2 * way);
    // Each pair exchanges 8 bytes in both rounds. A rank continues when its own have left.
    let reduced = Costs { cpu: weft_scale::profile::Cpu { reduce_byte: 7, ..Default::default() }, ..costs() };
    let outcome = run(&compiled(Operation::AllReduce, 4, 8), &reduced, Options::default());
    assert_eq!(outcome.end_ps, 2 * (SEND + LATENCY + BYTE * 8 + RECEIVE + 7 * 8));
}

#[test]
fn a_wire_carries_one_message_at_a_time() {
    // Rank 0 sends to all others one message each, back to back.
    let bytes = 10_000;
    let collective = Collective::compile(request(Operation::Scatter, 5, bytes), Some(Algorithm::Direct)).unwrap();
    let outcome = run(&collective, &costs(), Options::default());
    assert_eq!(outcome.end_ps, SEND + 4 * BYTE * bytes as u64 + LATENCY + RECEIVE);
}

#[test]
fn queues_give_the_same_trace() {
    let mut costs = costs();
    costs.far.jitter = 3_000;
    costs.far.gap = 200;
    costs.ranks_per_host = 4;
    costs.cpu.noise_every = 40_000;
    costs.cpu.noise_lasts = 2_500;
    costs.card.service = 120;
    for (operation, bytes) in [(Operation::Barrier, 0), (Operation::AllToAll, 64), (Operation::AllReduce, 100_000)] {
        for executor in [Executor::Host, Executor::Card] {
            let collective = compiled(operation, 60, bytes);
            let options = Options { iterations: 3, executor, imbalance_ps: 5_000, ..Options::default() };
            let by_heap = Machine::with_queue(&collective, &costs, options, Heap::default()).run(|_, _| ()).unwrap();
            for width_ps in [1, 500, 1 << 20] {
                let machine = Machine::with_queue(&collective, &costs, options, Buckets::new(width_ps));
                assert_eq!(machine.run(|_, _| ()).unwrap(), by_heap, "{operation:?}, {executor:?}, {width_ps} ps");
            }
            let other = Options { seed: 2, ..options };
            assert_ne!(run(&collective, &costs, other).hash, by_heap.hash, "{operation:?}, {executor:?}");
        }
    }
}

#[test]
fn a_rank_may_be_ahead() {
    // The root of a broadcast does not wait: it starts all iterations before the first message arrives.
    let options = Options { iterations: 5, ..Options::default() };
    let outcome = run(&compiled(Operation::Broadcast, 2, 8), &costs(), options);
    assert_eq!(outcome.messages, 5);
    assert_eq!(outcome.end_ps, 4 * RECEIVE.max(SEND) + SEND + LATENCY + 8 * BYTE + RECEIVE);
}

#[test]
fn a_card_leaves_the_processor_free() {
    let mut costs = costs();
    (costs.card.post, costs.card.reap) = (1_000, 2_000);
    let collective = compiled(Operation::Barrier, 8, 0);
    let card = Options { executor: Executor::Card, ..Options::default() };
    let raw = run(&collective, &costs, card).end_ps;
    assert_eq!(raw, 1_000 + 3 * LATENCY + 2_000);
    let free = Options { overlap: Overlap::Once(3 * LATENCY), ..card };
    assert_eq!(run(&collective, &costs, free).end_ps, raw);
    let more = Options { overlap: Overlap::Once(3 * LATENCY + 1), ..card };
    assert_eq!(run(&collective, &costs, more).end_ps, raw + 1);
    // A processor that performs the steps delays all but the first message by its work.
    let host = Options { overlap: Overlap::Once(3 * LATENCY), ..Options::default() };
    assert_eq!(run(&collective, &costs, host).end_ps, 3 * (SEND + RECEIVE) + 5 * LATENCY);
    let tests = Options { overlap: Overlap::Quanta(1_000), ..card };
    let tested = run(&collective, &costs, tests);
    assert_eq!((tested.end_ps, tested.worked_ps), (raw, 3 * LATENCY));
}

#[test]
fn programs_that_do_not_fit_are_reported() {
    struct Waits;
    impl weft_scale::Programs for Waits {
        fn ranks(&self) -> u32 {
            2
        }
        fn step(&self, rank: u32, index: u32) -> Option<weft_scale::Step> {
            (rank == 1 && index == 0).then_some(weft_scale::Step::Wait { from: 0, ordinal: 0 })
        }
        fn arrival(&self, _: u32, _: u32, _: u32) -> Option<weft_scale::Arrival> {
            None
        }
        fn most_arrivals(&self) -> u32 {
            1
        }
    }
    let stuck = Machine::new(&Waits, &costs(), Options::default()).run(|_, _| ()).unwrap_err();
    assert_eq!((stuck.rank, stuck.step), (1, 0));
}
