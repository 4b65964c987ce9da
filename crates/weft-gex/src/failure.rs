//! The failure of ranks, for clients that go on without them.
//!
//! Place in the data flow: without a handler the death of a rank ends the job (`exit`, `spawn/fork.rs`). A client that
//! has set one ([`Failures::set_handler`]) learns the number of the rank from it, in a call that polls. Operations with
//! that rank fail, and so do collectives of teams that it belongs to.
//!
//! A death is noticed by the supervisor of forked ranks, by the end of a link, or by a look at the processes of the
//! host while a rank waits. It is noted on the board, so that all ranks of the host know it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;
use weft_engine::nic::LinkError;
use weft_observe::now_ns;

use crate::board::{News, Stage};
use crate::exit;
use crate::invoke::{self, FailureFn};
use crate::job::Job;
use crate::os;

/// The time between two looks at the processes of the host.
const LOOK_NS: u64 = 20_000_000;

/// The failures of other ranks, as one rank knows them.
pub struct Failures {
    /// The client's function; 0: none.
    handler: AtomicUsize,
    /// The news of the board that the rank has taken into account.
    heard: AtomicU64,
    /// Ranks that are lost, and their number.
    lost: Box<[AtomicBool]>,
    count: AtomicU32,
    /// Held while the client's function runs.
    calling: Mutex<()>,
    last_look: AtomicU64,
}

impl Failures {
    /// A job of a number of ranks, in which none has failed.
    pub(crate) fn new(ranks: u32) -> Self {
        Self {
            handler: AtomicUsize::new(0),
            heard: AtomicU64::new(0),
            lost: (0..ranks).map(|_| AtomicBool::new(false)).collect(),
            count: AtomicU32::new(0),
            calling: Mutex::new(()),
            last_look: AtomicU64::new(0),
        }
    }

    /// Sets the client's function. `None`: the death of a rank ends the job.
    pub fn set_handler(&self, job: &Job, handler: Option<FailureFn>) {
        self.handler.store(handler.map_or(0, invoke::failure_addr), Ordering::Release);
        job.board().set_tolerant(job.rank(), handler.is_some());
        if handler.is_some() && job.is_launched() {
            os::catch(libc::SIGUSR1, on_notice);
        }
    }

    /// Whether the client goes on without ranks that fail.
    #[must_use]
    pub fn are_tolerated(&self) -> bool {
        self.handler.load(Ordering::Relaxed) != 0
    }

    /// Whether ranks have failed.
    #[inline(always)]
    #[must_use]
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Acquire) != 0
    }

    /// Whether a rank has failed.
    #[inline(always)]
    #[must_use]
    pub fn has_lost(&self, rank: u32) -> bool {
        self.any() && self.lost.get(rank as usize).is_some_and(|lost| lost.load(Ordering::Acquire))
    }

    /// Whether the board has news that the rank has not taken into account.
    #[inline(always)]
    pub(crate) fn has_heard(&self, news: News) -> bool {
        news.word() == self.heard.load(Ordering::Relaxed)
    }
}

/// Hydra sends SIGUSR1 to the ranks that are left if it is told not to end them (-disable-auto-cleanup).
extern "C" fn on_notice(_: i32) {
    if let Some(job) = Job::get() {
        job.failures().last_look.store(0, Ordering::Relaxed);
    }
}

/// Takes the news of the board into account.
#[cold]
#[inline(never)]
pub(crate) fn hear(job: &Job, news: News) {
    if news.is_ending() {
        exit::follow(job);
    }
    let failures = job.failures();
    let Some(_calling) = failures.calling.try_lock() else { return };
    failures.heard.store(news.word(), Ordering::Relaxed);
    for rank in (0..job.ranks()).filter(|&rank| job.board().is_lost(rank)) {
        if failures.lost[rank as usize].swap(true, Ordering::AcqRel) {
            continue;
        }
        failures.count.fetch_add(1, Ordering::AcqRel);
        match failures.handler.load(Ordering::Acquire) {
            0 => crate::fatal!(
                "rank {rank} has failed, and this rank has no handler for failures; look for the reason there"
            ),
            handler => invoke::failure(handler, rank),
        }
    }
}

/// The link to a rank has ended, or cannot be made. Returns whether the client is told.
pub(crate) fn link_ended(job: &Job, rank: u32, why: LinkError) -> bool {
    if !job.failures().are_tolerated() || job.board().exit_code().is_some() {
        return false;
    }
    // A rank that closes its link has ended the job, or is about to.
    if !matches!(why, LinkError::Closed | LinkError::Unanswered) && rank < job.ranks() {
        job.board().set_lost(rank);
    }
    true
}

/// Looks whether the processes of the host's ranks exist.
#[cold]
pub(crate) fn look_around(job: &Job) {
    let (failures, now) = (job.failures(), now_ns());
    if !failures.are_tolerated() || now.saturating_sub(failures.last_look.load(Ordering::Relaxed)) < LOOK_NS {
        return;
    }
    failures.last_look.store(now, Ordering::Relaxed);
    let board = job.board();
    for &rank in job.places().host().members {
        let gone = || board.process(rank).is_some_and(|pid| !os::exists(pid));
        if board.stage(rank) == Stage::Up && !board.is_lost(rank) && gone() {
            board.set_lost(rank);
        }
    }
}
