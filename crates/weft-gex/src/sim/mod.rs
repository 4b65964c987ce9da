//! Simulated runs: the ranks of a job as threads of one process, over a simulated fabric in virtual time.
//!
//! Place in the data flow: only tests compile this (feature `sim`). The ranks run the code of real jobs, from the C
//! interface down to the engine. Below it are simulated devices. [`run`] starts the ranks; `stage` has their turns.
//!
//! One thread runs at a time. A rank that rests passes the turn to one that the seed draws, so the same plan gives the
//! same run. Ranks rest while they wait, and where their program says so ([`rest`]).
//!
//! A rank that ends its process inside a handler has frames of C on its stack, which must not unwind. Its thread
//! therefore stops for ever. Its memory and its thread stay until the test process ends.
//!
//! The supervisor of forked ranks (`spawn/fork.rs`) is modelled: it notes deaths on the board, asks the ranks that are
//! left to end, and kills them after a time. The signals that it sends are not.

mod stage;

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use weft_engine::Engine;
use weft_engine::api::Config;
pub use weft_engine::bugs::Bug;
use weft_observe::Page;
pub use weft_sim::rng::{Entity, Stream};
pub use weft_sim::{FabricConfig, Hazard, Hazards};
use weft_sim_device::{Clock, SimDevice, World};

use crate::attend::Attendant;
use crate::board::Board;
use crate::endpoint::Client;
use crate::error::Error;
use crate::gate::Threads;
use crate::group::Seat;
use crate::job::{self, Job, Parts};
use crate::meet::{self, Met, Reach};
use crate::memory::JobFile;
use crate::places::Places;

pub use stage::{End, complain, die, kill, now_ns, rest};
pub(crate) use stage::{end, job, keep, now};

/// The device below the engine.
pub(crate) type RankDevice = SimDevice;

/// The least length of messages that fabrics of these runs carry.
const MAILBOX_BYTES: usize = 1024;

/// A run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The fabric, with the seed and the faults.
    pub fabric: FabricConfig,
    /// The number of ranks.
    pub ranks: u32,
    /// The most ranks of a neighbourhood.
    pub near: u32,
    /// The window of active requests.
    pub window: u16,
    /// A bug that is planted in the engines.
    pub bug: Option<Bug>,
    /// The virtual time after which the run stands still.
    pub limit: Duration,
}

impl Plan {
    /// A run of ranks in neighbourhoods of their own, over a fabric without faults.
    #[must_use]
    pub fn new(seed: u64, ranks: u32) -> Self {
        let limit = Duration::from_secs(60);
        Self { fabric: FabricConfig::new(seed), ranks, near: 1, window: 64, bug: None, limit }
    }
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The end of each rank.
    pub ends: Vec<End>,
    /// The first complaint about the run.
    pub complaint: Option<String>,
    /// The number of turns.
    pub turns: u64,
    /// The duration in virtual time.
    pub time: Duration,
}

/// One run of this process at a time. The tables of accesses under way (`pack`, `outside`, `after`) belong to the
/// process: the death of a rank in one run would end the accesses to the rank of that number in another one.
static RUN: Mutex<()> = Mutex::new(());

/// Runs a program in all ranks, after the runs of other threads.
///
/// # Panics
/// The system refuses memory or threads.
pub fn run(plan: &Plan, program: impl Fn(&'static Job) + Send + Sync + 'static) -> Outcome {
    let _run = RUN.lock();
    // The descriptors of earlier runs of this process stay open.
    weft_os::descriptors::allow_raising();
    weft_os::descriptors::make_room();
    let mut fabric = plan.fabric.clone();
    fabric.caps.mailbox_bytes = fabric.caps.mailbox_bytes.max(MAILBOX_BYTES);
    let world = World::new(fabric, Clock::Owner);
    match seat_all(plan, &world) {
        Ok((board, jobs)) => stage::play(plan, world, board, jobs, Arc::new(program)),
        Err(error) => panic!("the ranks of a simulated run cannot be made: {error}"),
    }
}

/// Makes the ranks' views of their job.
fn seat_all(plan: &Plan, world: &World) -> Result<(Board, Vec<Job>), Error> {
    let board = Board::create(plan.ranks)?;
    let ends: Vec<usize> = world.with(|fabric| (0..plan.ranks).map(|_| fabric.reserve(None)).collect());
    let names = world.with(|fabric| ends.iter().map(|&end| fabric.name(end)).collect::<Vec<_>>());
    let mut jobs = Vec::new();
    for (rank, &end) in (0..).zip(&ends) {
        let device = world.device(Some(end), false)?;
        let config = Config { active_window: plan.window, ..meet::engine_config() };
        let engine = Engine::boxed(config, device);
        let engines = meet::bind(engine, names.clone(), board.key(), Reach::Host);
        let file = board.file().fd().try_clone_to_owned().map_err(weft_os::SystemError::of("dup"))?;
        let own = Board::join(JobFile::adopt(file)?, plan.ranks)?;
        own.set_up(rank, std::process::id());
        let places = Places::new(rank, &vec![1; plan.ranks as usize], plan.near);
        jobs.push(job::assemble(Parts {
            seat: Seat { rank, members: plan.ranks },
            met: Met { board: own, places, engines: Some(engines), launcher: None },
            client: Client::new(c"simulated".into(), 0),
            threads: Threads::One,
            attendant: Attendant::None,
            // Ranks outnumber processors, so waits soon rest.
            processors: 1,
        })?);
    }
    Ok((board, jobs))
}

/// The longest message in bytes that every link carries.
pub(crate) fn least_mailbox_bytes() -> usize {
    MAILBOX_BYTES
}

/// Simulated ranks show no counters.
pub(crate) fn page(_rank: u32, _ranks: u32) -> Result<Option<Page>, Error> {
    Ok(None)
}

/// Sleeps for a time, in virtual time.
pub(crate) fn sleep(time: Duration) {
    let end: Instant = now() + time;
    while now() < end {
        rest();
    }
}
