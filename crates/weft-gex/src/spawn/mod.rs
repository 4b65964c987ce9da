//! The start of a job: rank, size, and an exchange of blobs.
//!
//! Place in the data flow: [`crate::job`] starts here. A process that no launcher has started forks the ranks
//! ([`fork`]), is the master of a start by ssh ([`ssh`]), or is the only rank. A launcher that speaks PMI-1 ([`pmi`])
//! or PMIx ([`pmix`]) starts the ranks. `GASNET_SPAWNER` chooses; otherwise the environment does.

pub mod fork;
pub mod pmi;
#[allow(unsafe_code)]
pub mod pmix;
pub mod ssh;

use std::time::Duration;

use crate::board::{Board, MAX_RANKS};
use crate::env;
use crate::error::Error;

/// The name under which a program was linked. It limits where ranks may run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Conduit {
    /// One host.
    Smp,
    /// Any hosts.
    Ofi,
}

impl Conduit {
    /// The conduit of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "SMP" => Some(Self::Smp),
            "OFI" => Some(Self::Ofi),
            _ => None,
        }
    }

    fn variable(self) -> &'static str {
        match self {
            Self::Smp => "GASNET_SMP_SPAWNER",
            Self::Ofi => "GASNET_OFI_SPAWNER",
        }
    }
}

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
    Launcher(Launcher),
}

/// The connection to a launcher.
pub enum Launcher {
    /// It speaks PMI-1.
    Pmi(pmi::Client),
    /// It speaks PMIx.
    Pmix(Box<pmix::Client>),
}

impl Launcher {
    /// The rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        match self {
            Self::Pmi(client) => client.rank(),
            Self::Pmix(client) => client.rank(),
        }
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        match self {
            Self::Pmi(client) => client.ranks(),
            Self::Pmix(client) => client.ranks(),
        }
    }

    /// Publishes the blob of this rank under a step of the start.
    ///
    /// # Errors
    /// The launcher refuses.
    pub fn put(&mut self, step: &str, blob: &[u8]) -> Result<(), Error> {
        match self {
            Self::Pmi(client) => client.put(step, blob),
            Self::Pmix(client) => client.put(step, blob),
        }
    }

    /// Waits for all ranks. Blobs that they have put before are visible afterwards.
    ///
    /// # Errors
    /// The launcher refuses, or has ended.
    pub fn fence(&mut self) -> Result<(), Error> {
        match self {
            Self::Pmi(client) => client.fence(),
            Self::Pmix(client) => client.fence(),
        }
    }

    /// The blob of a rank.
    ///
    /// # Errors
    /// The launcher has none.
    pub fn get(&mut self, step: &str, rank: u32) -> Result<Vec<u8>, Error> {
        match self {
            Self::Pmi(client) => client.get(step, rank),
            Self::Pmix(client) => client.get(step, rank),
        }
    }

    /// Arrives at a fence that [`Self::has_passed`] awaits.
    pub fn arrive(&mut self) {
        match self {
            Self::Pmi(client) => client.arrive(),
            Self::Pmix(client) => client.arrive(),
        }
    }

    /// Waits for a time until all ranks have arrived. Returns whether they have.
    pub fn has_passed(&mut self, limit: Duration) -> bool {
        match self {
            Self::Pmi(client) => client.has_passed(limit),
            Self::Pmix(client) => client.has_passed(limit),
        }
    }

    /// Reports that this rank ends in order. A launcher that has ended is no error.
    pub fn finalize(&mut self) {
        match self {
            Self::Pmi(client) => client.finalize(),
            Self::Pmix(client) => client.finalize(),
        }
    }

    /// Asks the launcher to end the job. It kills this process, too.
    pub fn abort(&mut self, code: i32) {
        match self {
            Self::Pmi(client) => client.abort(code),
            Self::Pmix(client) => client.abort(code),
        }
    }
}

/// Starts the ranks, or finds out which one this is. A process that forks ranks does not return.
///
/// # Errors
/// The environment has unusable values, or the launcher or the system refuses.
pub fn start(conduit: Conduit) -> Result<Spawned, Error> {
    let spawner = [conduit.variable(), "GASNET_SPAWNER"].into_iter().find_map(|name| Some((name, env::text(name)?)));
    let ranks = env::number("GASNET_PSHM_NODES")?;
    if ssh::is_here() {
        return started(Launcher::Pmi(ssh::join()?));
    }
    match spawner.as_ref().map(|(name, value)| (*name, value.as_str())) {
        Some((_, "ssh")) if conduit == Conduit::Ofi => {
            let count = check(env::number(ssh::RANKS)?.unwrap_or(1))?;
            match ssh::master(count)? {}
        }
        Some((_, "fork" | "none")) => start_forked(ranks),
        Some((_, "pmix")) => started(Launcher::Pmix(Box::new(pmix::Client::start()?))),
        Some((_, "pmi")) if !pmi::is_here() && pmix::is_here() => {
            started(Launcher::Pmix(Box::new(pmix::Client::start()?)))
        }
        Some((_, "pmi")) => started(Launcher::Pmi(pmi::Client::start()?)),
        None if ranks.is_some() => start_forked(ranks),
        None if pmi::is_here() => started(Launcher::Pmi(pmi::Client::start()?)),
        None if pmix::is_here() => started(Launcher::Pmix(Box::new(pmix::Client::start()?))),
        None => start_forked(ranks),
        Some((name, value)) => Err(Error::Variable {
            name: name.to_owned(),
            value: value.to_owned(),
            expected: "fork, pmi, pmix or (for conduit ofi) ssh",
        }),
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

fn started(launcher: Launcher) -> Result<Spawned, Error> {
    let ranks = check(u64::from(launcher.ranks()))?;
    Ok(Spawned { rank: launcher.rank(), ranks, way: Way::Launcher(launcher) })
}

fn check(ranks: u64) -> Result<u32, Error> {
    u32::try_from(ranks).ok().filter(|ranks| (1..=MAX_RANKS).contains(ranks)).ok_or(Error::Ranks(ranks))
}
