//! Many ranks: whole engines perform the schedules of collectives, and the cost of an event does not grow with the
//! number of ranks. The variable WEFT_SIM_RANKS gives the barrier another number of ranks.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;

use weft_engine::api::{Config, Context, Kind, OpFlags, RecvFlags, RecvOp, SendOp};
use weft_engine::collective::{Next, Operation, Request, Run, Task, compile};
use weft_engine::mem::Iov;
use weft_scale::profile::{Costs, Path};
use weft_scale::schedule::request;
use weft_scale::{Collective, Machine, Options};
use weft_sim::{Buffer, Cluster, FabricConfig, Turn};

/// Ranks that perform one schedule each by tagged messages. Copies and reductions take no time and are left out.
struct Job {
    cluster: Cluster,
    runs: Vec<Run>,
    /// By rank: memory for all messages.
    memory: Vec<Buffer>,
}

impl Job {
    fn new(fabric: FabricConfig, ranks: usize, operation: Operation, bytes: usize) -> Self {
        let whole = request(operation, u32::try_from(ranks).unwrap(), bytes);
        let request = |rank: usize| Request { rank: u32::try_from(rank).unwrap(), ..whole };
        let runs = (0..ranks).map(|rank| Run::new(Arc::new(compile(&request(rank)).unwrap()))).collect();
        let mut cluster = Cluster::new(fabric, Config::default(), ranks);
        cluster.set_slow(false);
        cluster.set_turn_ns(0);
        let longest = if bytes > 0 { bytes * ranks } else { 0 };
        let memory = (0..ranks).map(|rank| cluster.fabric().alloc(rank, longest)).collect();
        Self { cluster, runs, memory }
    }

    /// Performs a rank's tasks as far as possible.
    fn walk(cluster: &mut Cluster, run: &mut Run, memory: &Buffer, rank: usize) {
        while let Next::Perform(index, task) = run.next_task() {
            let (peer, number, len) = match task {
                Task::Send { to, number, at } => (to, number, at.len),
                Task::Receive { from, number, at } => (from, number, at.len),
                Task::Reduce { .. } | Task::Copy { .. } | Task::Wait { .. } => {
                    run.performed();
                    continue;
                }
            };
            let part = if len > 0 { memory.part(0, len).iov() } else { Iov::EMPTY };
            let (ctx, iov) = (Context { ptr: index as usize, user: 0 }, &[part][..]);
            let (addr, tag) = (cluster.addr(rank, peer as usize), u64::from(number));
            let engine = cluster.engine(rank).unwrap();
            if matches!(task, Task::Send { .. }) {
                engine.send(&SendOp { dest: addr, iov, tag, data: 0, ctx, flags: OpFlags::TAGGED }).unwrap();
            } else {
                let flags = RecvFlags::TAGGED;
                engine.recv(&RecvOp { src: addr, iov, tag, ignore: 0, ctx, flags }).unwrap();
            }
            run.started();
        }
    }

    /// All ranks perform their schedules. Returns the virtual duration.
    fn perform(&mut self) -> u64 {
        let began_ns = self.cluster.fabric().now_ns();
        let Self { cluster, runs, memory } = self;
        let mut open = runs.len();
        for (rank, run) in runs.iter_mut().enumerate() {
            run.restart();
            Self::walk(cluster, run, &memory[rank], rank);
        }
        while open > 0 {
            let turn = cluster.turn(|cluster, rank| {
                let ended = cluster.take_completions(rank);
                for completion in &ended {
                    assert!(completion.fault.is_none() && matches!(completion.kind, Kind::Send | Kind::Recv));
                    runs[rank].complete(u32::try_from(completion.ctx.ptr).unwrap());
                }
                if !ended.is_empty() {
                    Self::walk(cluster, &mut runs[rank], &memory[rank], rank);
                    open -= usize::from(runs[rank].next_task() == Next::Done);
                }
            });
            assert!(turn != Turn::Idle || open == 0, "{open} ranks do not end");
        }
        cluster.fabric().now_ns() - began_ns
    }
}

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
