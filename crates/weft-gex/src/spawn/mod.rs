//! The start of a job: rank, size, and an exchange of blobs.
//!
//! Place in the data flow: [`crate::job`] starts here. There are three ways. A process that no launcher has started
//! forks the ranks ([`fork`]), or is the only rank. A launcher that speaks PMI-1 starts the ranks itself ([`pmi`]).
//! `GASNET_SPAWNER` chooses; otherwise the environment does.

pub mod fork;
pub mod pmi;

use crate::board::{Board, MAX_RANKS};
use crate::env;
use crate::error::Error;

/// A started rank.
pub struct Spawned {
    /// Its number.
    pub rank: u32,
    /// The number of ranks.
    pub ranks: u32,
    /// The way of the start.
    pub way: Way,
}

/// The way in which a rank was started.
pub enum Way {
    /// The job has one rank and no launcher.
    Alone,
    /// The supervisor has forked the rank. The board exists.
    Forked(Box<Board>),
    /// A launcher.
    Launcher(pmi::Client),
}

/// Starts the ranks, or finds out which one this is. A process that forks ranks does not return.
///
/// # Errors
/// The environment has unusable values, or the launcher or the system refuses.
pub fn start() -> Result<Spawned, Error> {
    let spawner = ["GASNET_SMP_SPAWNER", "GASNET_SPAWNER"].into_iter().find_map(|name| Some((name, env::text(name)?)));
    let ranks = env::number("GASNET_PSHM_NODES")?;
    match spawner.as_ref().map(|(name, value)| (*name, value.as_str())) {
        Some((_, "fork" | "none")) => start_forked(ranks),
        Some((_, "pmi")) => start_launched(),
        None if pmi::is_here() && ranks.is_none() => start_launched(),
        None => start_forked(ranks),
        Some((name, value)) => {
            Err(Error::Variable { name: name.to_owned(), value: value.to_owned(), expected: "fork or pmi" })
        }
    }
}

fn start_forked(ranks: Option<u64>) -> Result<Spawned, Error> {
    let count = check(ranks.unwrap_or(1))?;
    if count == 1 {
        return Ok(Spawned { rank: 0, ranks: 1, way: Way::Alone });
    }
    let (rank, board) = fork::start(count)?;
    Ok(Spawned { rank, ranks: count, way: Way::Forked(Box::new(board)) })
}

fn start_launched() -> Result<Spawned, Error> {
    let client = pmi::Client::start()?;
    let ranks = check(u64::from(client.ranks()))?;
    Ok(Spawned { rank: client.rank(), ranks, way: Way::Launcher(client) })
}

fn check(ranks: u64) -> Result<u32, Error> {
    u32::try_from(ranks).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or(Error::Ranks(ranks))
}
