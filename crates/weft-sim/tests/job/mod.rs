//! Whole engines that perform the schedules of collectives, for several tests.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use weft_engine::api::{Completion, Config, Context, Kind, OpFlags, RecvFlags, RecvOp, SendOp};
use weft_engine::collective::{Next, Operation, Request, Run, Task, compile};
use weft_engine::mem::Iov;
use weft_scale::schedule::request;
use weft_sim::{Buffer, Cluster, FabricConfig, Turn};

/// Ranks that perform one schedule each by tagged messages. Copies and reductions take no time and are left out.
pub(crate) struct Job {
    pub(crate) cluster: Cluster,
    runs: Vec<Run>,
    /// By rank: memory for all messages.
    memory: Vec<Buffer>,
    /// Completions of one rank, empty between uses.
    ended: Vec<Completion>,
}

impl Job {
    pub(crate) fn new(fabric: FabricConfig, ranks: usize, operation: Operation, bytes: usize) -> Self {
        let whole = request(operation, u32::try_from(ranks).unwrap(), bytes);
        let request = |rank: usize| Request { rank: u32::try_from(rank).unwrap(), ..whole };
        let runs = (0..ranks).map(|rank| Run::new(Arc::new(compile(&request(rank)).unwrap()))).collect();
        let mut cluster = Cluster::new(fabric, Config::default(), ranks);
        cluster.set_slow(false);
        cluster.set_turn_ns(0);
        let longest = if bytes > 0 { bytes * ranks } else { 0 };
        let memory = (0..ranks).map(|rank| cluster.fabric().alloc(rank, longest)).collect();
        Self { cluster, runs, memory, ended: Vec::new() }
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
    pub(crate) fn perform(&mut self) -> u64 {
        let began_ns = self.cluster.fabric().now_ns();
        let Self { cluster, runs, memory, ended } = self;
        let mut open = runs.len();
        for (rank, run) in runs.iter_mut().enumerate() {
            run.restart();
            Self::walk(cluster, run, &memory[rank], rank);
        }
        while open > 0 {
            let turn = cluster.turn(|cluster, rank| {
                cluster.swap_completions(rank, ended);
                for completion in ended.iter() {
                    assert!(completion.fault.is_none() && matches!(completion.kind, Kind::Send | Kind::Recv));
                    runs[rank].complete(u32::try_from(completion.ctx.ptr).unwrap());
                }
                if !ended.is_empty() {
                    Self::walk(cluster, &mut runs[rank], &memory[rank], rank);
                    open -= usize::from(runs[rank].next_task() == Next::Done);
                }
                ended.clear();
            });
            assert!(turn != Turn::Idle || open == 0, "{open} ranks do not end");
        }
        cluster.fabric().now_ns() - began_ns
    }
}
