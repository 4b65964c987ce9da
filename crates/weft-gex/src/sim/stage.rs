//! The turns of simulated ranks, their ends, and the supervisor of their job.
//!
//! Place in the data flow: `sim` starts a run here. Ranks come here when they rest or end.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, OnceLock};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_engine::bugs;
use weft_sim::rng::{Entity, Stream};
use weft_sim_device::World;

use super::{Outcome, Plan};
use crate::board::{Board, Stage};
use crate::exit;
use crate::job::Job;

/// Virtual time of a turn.
const TURN_NS: u64 = 200;
/// Virtual time that passes when all ranks rest and the fabric has nothing to bring.
const IDLE_NS: u64 = 1_000_000;
/// The most turns of a run.
const MOST_TURNS: u64 = 20_000_000;
/// The turn of the thread that has started the run.
const OWNER: usize = usize::MAX;
/// The exit code of a process that was killed.
const KILLED: i32 = 137;
/// Bytes of a rank's stack.
const STACK_BYTES: usize = 1 << 20;

/// The end of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The run has ended before it.
    Running,
    /// Its program has returned.
    Returned,
    /// Its process has ended with a code.
    Exited(i32),
    /// It was killed.
    Killed,
}

type Program = Arc<dyn Fn(&'static Job) + Send + Sync>;

struct Run {
    world: World,
    board: Board,
    limit_ns: u64,
    /// The number of the rank whose thread runs.
    turn: AtomicUsize,
    owner: Thread,
    threads: OnceLock<Vec<Thread>>,
    state: Mutex<State>,
}

struct State {
    ends: Vec<End>,
    rng: Stream,
    /// Turns since a device had arrivals.
    idle: usize,
    turns: u64,
    complaint: Option<String>,
    supervisor: Option<Deadlines>,
}

/// The steps of a job's end, in virtual time.
struct Deadlines {
    ask_ns: u64,
    asked: bool,
    kill_ns: u64,
}

thread_local! {
    /// The run and the number of the rank of this thread.
    static SELF: Cell<Option<(&'static Run, usize)>> = const { Cell::new(None) };
    static JOB: Cell<Option<&'static Job>> = const { Cell::new(None) };
}

fn here() -> (&'static Run, usize) {
    match SELF.get() {
        Some(here) => here,
        None => panic!("the thread is no rank of a simulated run"),
    }
}

/// The job of the rank that runs.
pub(crate) fn job() -> Option<&'static Job> {
    JOB.get()
}

/// Keeps the job of a rank. It is that of this thread.
pub(crate) fn keep(job: Job) -> &'static Job {
    let job: &Job = Box::leak(Box::new(job));
    JOB.set(Some(job));
    job
}

/// The virtual time.
pub(crate) fn now() -> Instant {
    static ZERO: LazyLock<Instant> = LazyLock::new(Instant::now);
    *ZERO + Duration::from_nanos(now_ns())
}

/// The virtual time in nanoseconds.
#[must_use]
pub fn now_ns() -> u64 {
    here().0.world.with(weft_sim::Fabric::now_ns)
}

/// Lets other ranks run. The calling one goes on at its next turn.
pub fn rest() {
    let (run, rank) = here();
    run.pass(rank);
    run.wait_for(rank);
}

/// Ends the process of the calling rank.
pub(crate) fn end(code: i32) -> ! {
    let (run, rank) = here();
    // Messages of the process are on their way.
    run.world.with(|fabric| fabric.depart(rank));
    run.stop(rank, End::Exited(code))
}

/// Ends the calling rank as SIGKILL does.
pub fn die() -> ! {
    let (run, rank) = here();
    run.world.with(|fabric| fabric.kill(rank));
    run.note_loss(&mut run.state.lock(), rank);
    run.stop(rank, End::Killed)
}

/// Ends another rank as SIGKILL does.
pub fn kill(rank: u32) {
    let (run, own) = here();
    debug_assert_ne!(rank as usize, own, "die() is for this rank");
    run.kill(&mut run.state.lock(), rank as usize);
}

/// Ends the run because something is wrong. The calling rank goes on until it rests.
pub fn complain(text: String) {
    here().0.state.lock().complaint.get_or_insert(text);
}

/// Plays a run.
pub(super) fn play(plan: &Plan, world: World, board: Board, jobs: Vec<Job>, program: Program) -> Outcome {
    let ranks = jobs.len();
    let state = State {
        ends: vec![End::Running; ranks],
        rng: Stream::new(plan.fabric.seed, Entity::Schedule(0)),
        idle: 0,
        turns: 0,
        complaint: None,
        supervisor: None,
    };
    let run: &Run = Box::leak(Box::new(Run {
        world,
        board,
        limit_ns: u64::try_from(plan.limit.as_nanos()).unwrap_or(u64::MAX),
        turn: AtomicUsize::new(OWNER),
        owner: thread::current(),
        threads: OnceLock::new(),
        state: Mutex::new(state),
    }));
    let start = |(rank, job): (usize, Job)| {
        let (program, bug) = (Arc::clone(&program), plan.bug);
        let body = move || {
            bugs::activate(bug);
            run.live(rank, job, &program);
        };
        match thread::Builder::new().name(format!("rank {rank}")).stack_size(STACK_BYTES).spawn(body) {
            Ok(thread) => thread.thread().clone(),
            Err(error) => panic!("a thread cannot be started: {error}"),
        }
    };
    let threads = jobs.into_iter().enumerate().map(start).collect();
    let _ = run.threads.set(threads);
    run.hand_over(&mut run.state.lock());
    run.wait_for(OWNER);
    let state = run.state.lock();
    let broken = run.world.with(|fabric| fabric.violations().into_iter().next());
    let time = Duration::from_nanos(run.world.with(weft_sim::Fabric::now_ns));
    let complaint = state.complaint.clone().or(broken);
    Outcome { ends: state.ends.clone(), complaint, turns: state.turns, time }
}

impl Run {
    /// The life of a rank's thread.
    fn live(&'static self, rank: usize, job: Job, program: &Program) {
        self.wait_for(rank);
        SELF.set(Some((self, rank)));
        let job = keep(job);
        job.settle();
        let died = catch_unwind(AssertUnwindSafe(|| program(job))).err();
        let mut state = self.state.lock();
        if let Some(panic) = died {
            let text = panic.downcast_ref::<String>().cloned();
            let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
            state.complaint.get_or_insert(format!("rank {rank} has panicked: {}", text.unwrap_or_default()));
        }
        state.ends[rank] = End::Returned;
        self.hand_over(&mut state);
    }

    fn wait_for(&self, rank: usize) {
        while self.turn.load(Ordering::Acquire) != rank {
            thread::park();
        }
    }

    /// Ends the thread of a rank, which never goes on.
    fn stop(&self, rank: usize, end: End) -> ! {
        let mut state = self.state.lock();
        state.ends[rank] = end;
        self.world.abandon();
        self.hand_over(&mut state);
        drop(state);
        loop {
            thread::park();
        }
    }

    /// The end of a rank's turn.
    fn pass(&self, rank: usize) {
        let mut state = self.state.lock();
        debug_assert_eq!(state.ends[rank], End::Running);
        state.turns += 1;
        self.let_time_pass(&mut state);
        self.supervise(&mut state);
        let now_ns = self.world.with(weft_sim::Fabric::now_ns);
        if now_ns > self.limit_ns || state.turns > MOST_TURNS {
            let text = format!("the run stands still after {} turns and {now_ns} ns", state.turns);
            state.complaint.get_or_insert(text);
        }
        self.hand_over(&mut state);
    }

    /// Gives the turn to a rank, or back to the owner of the run.
    fn hand_over(&self, state: &mut State) {
        let running: Vec<usize> = (0..state.ends.len()).filter(|&rank| state.ends[rank] == End::Running).collect();
        if running.is_empty() || state.complaint.is_some() {
            self.turn.store(OWNER, Ordering::Release);
            return self.owner.unpark();
        }
        let next = *state.rng.pick(&running);
        self.turn.store(next, Ordering::Release);
        if let Some(threads) = self.threads.get() {
            threads[next].unpark();
        }
    }

    fn let_time_pass(&self, state: &mut State) {
        let running = state.ends.iter().filter(|end| **end == End::Running).count();
        self.world.with(|fabric| {
            fabric.pass(TURN_NS);
            let busy = (0..state.ends.len()).any(|rank| state.ends[rank] == End::Running && fabric.has_arrivals(rank));
            state.idle = if busy { 0 } else { state.idle + 1 };
            if state.idle > 2 * running {
                state.idle = 0;
                if !fabric.advance() {
                    fabric.pass(IDLE_NS);
                }
            }
        });
    }

    fn kill(&self, state: &mut State, rank: usize) {
        if state.ends[rank] == End::Running {
            self.world.with(|fabric| fabric.kill(rank));
            state.ends[rank] = End::Killed;
            self.note_loss(state, rank);
        }
    }

    /// The supervisor learns that a rank has died.
    fn note_loss(&self, state: &mut State, rank: usize) {
        let number = |rank: usize| u32::try_from(rank).unwrap_or(u32::MAX);
        let others = (0..state.ends.len()).filter(|&other| other != rank && state.ends[other] == End::Running);
        let bear = others.map(number).all(|other| self.board.is_tolerant(other));
        let exited = self.board.stage(number(rank)) == Stage::Exiting || self.board.exit_code().is_some();
        if bear && !exited {
            self.board.set_lost(number(rank));
        } else {
            self.board.end_job(KILLED);
        }
    }

    /// Ends the ranks that are left when the job ends: first by request, then by force.
    fn supervise(&self, state: &mut State) {
        let now_ns = self.world.with(weft_sim::Fabric::now_ns);
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        if state.supervisor.is_none() {
            if self.board.exit_code().is_none() {
                return;
            }
            let ask_ns = now_ns + nanos(exit::grace(self.board.ranks()));
            state.supervisor = Some(Deadlines { ask_ns, asked: false, kill_ns: ask_ns + nanos(exit::timeout()) });
        }
        let Some(deadlines) = &mut state.supervisor else { return };
        if !deadlines.asked && now_ns >= deadlines.ask_ns {
            deadlines.asked = true;
            self.board.set_ending();
        } else if now_ns >= deadlines.kill_ns {
            (0..state.ends.len()).for_each(|rank| self.kill(state, rank));
        }
    }
}
