//! An endpoint whose operations are awaited by their slots.

use std::time::{Duration, Instant};

use weft_client::{
    Address, Caps, Domain, Endpoint, Error, Library, Posted, Progress, Region, Requirements, Threading, Waiting,
};

use super::child::{RankError, from_hex, to_hex};
use super::job::{Hello, Job};
use super::options::{Op, Wait};
use super::plan::Variant;

/// Time after which an operation that finds no room counts as stuck.
const PATIENCE: Duration = Duration::from_secs(3);
/// Number of reads by an idle rank between two checks of its standard input.
const READS: u32 = 64;
/// Sleep of a rank between two reads while it waits for its first batch.
#[cfg(feature = "lab")]
const IDLE_SLEEP: Duration = Duration::from_micros(500);
/// Longest sleep in one call, which bounds the effect of a lost wake-up.
const SLEEP_MS: i32 = 10;

/// A peer's endpoint.
#[derive(Clone, Copy)]
pub(crate) struct Peer {
    pub(crate) address: Address,
    pub(crate) region: Region,
}

/// An endpoint with its completions.
pub(crate) struct Port {
    pub(crate) ep: Endpoint,
    arrived: Vec<bool>,
    /// Number of the peer's writes with data that have arrived.
    pub(crate) remote: u64,
    wait: Wait,
}

/// Opens a domain of the job's provider.
pub(crate) fn open_domain(job: &Job) -> Result<Domain, RankError> {
    open_domain_for(job, 0)
}

/// Opens a domain of the job's provider, with room for `receives` posted receives if the provider offers it.
pub(crate) fn open_domain_for(job: &Job, receives: usize) -> Result<Domain, RankError> {
    let library = Library::load(&job.library)?;
    let (op, case) = (job.case.op, &job.case);
    let mut wanted = Requirements {
        provider: job.provider.clone(),
        caps: Caps {
            msg: op == Op::Msg,
            rma: matches!(op, Op::Write | Op::Read),
            atomic: op == Op::FetchAdd,
            collective: matches!(case.variant, Variant::Collective(_)),
        },
        progress: job.progress.map(|progress| match progress {
            super::options::Progress::Auto => Progress::Auto,
            super::options::Progress::Manual | super::options::Progress::Chain => Progress::Manual,
        }),
        threading: if case.threads > 1 { Threading::Completion } else { Threading::Domain },
        delivery: job.delivery,
        mapped: job.mapped,
        waiting: if job.wait == Wait::Sread { Waiting::InCalls } else { Waiting::Never },
        receives,
    };
    match Domain::open(library, &wanted) {
        // The provider may have room for fewer, which posting them will show.
        Err(error) if error.is_not_offered() && receives > 0 => open_domain(job),
        // Some providers offer only the strongest threading level.
        Err(error) if error.is_not_offered() && case.threads > 1 => {
            wanted.threading = Threading::Safe;
            Ok(Domain::open(library, &wanted)?)
        }
        other => Ok(other?),
    }
}

impl Port {
    /// Opens an endpoint.
    pub(crate) fn open(domain: &Domain, bytes: usize, slots: u32, peers: usize, wait: Wait) -> Result<Self, RankError> {
        let ep = Endpoint::open(domain, bytes, slots, peers)?;
        Ok(Self { ep, arrived: vec![false; slots as usize], remote: 0, wait })
    }

    /// Number of operations that may be pending.
    #[cfg(feature = "lab")]
    pub(crate) fn slots(&self) -> u32 {
        u32::try_from(self.arrived.len()).unwrap_or(u32::MAX)
    }

    /// Adds the endpoint's address and region to `hello`.
    pub(crate) fn add_to(&self, hello: &mut Hello) {
        let region = self.ep.region();
        hello.names.push(to_hex(self.ep.name()));
        hello.regions.push((region.base, region.key));
    }

    /// Inserts the address of a peer's endpoint.
    pub(crate) fn insert_peer(&mut self, hello: &Hello, endpoint: usize) -> Result<Peer, RankError> {
        let missing = || RankError::Failed("a rank has fewer endpoints than it should".to_owned());
        let name = from_hex(hello.names.get(endpoint).ok_or_else(missing)?)?;
        let &(base, key) = hello.regions.get(endpoint).ok_or_else(missing)?;
        let addresses = self.ep.insert(&name, 1)?;
        let &address = addresses.first().ok_or_else(missing)?;
        Ok(Peer { address, region: Region { base, key } })
    }

    /// Posts an operation, and makes progress while there is no room for it.
    #[inline]
    pub(crate) fn post(
        &mut self,
        mut operation: impl FnMut(&mut Endpoint) -> Result<Posted, Error>,
    ) -> Result<(), RankError> {
        if operation(&mut self.ep)? == Posted::Done {
            return Ok(());
        }
        let mut end = Instant::now() + PATIENCE;
        loop {
            if self.poll()? > 0 {
                end = Instant::now() + PATIENCE;
            } else if self.wait != Wait::Spin {
                // The peer that would make room may need this core.
                std::thread::yield_now();
            }
            if operation(&mut self.ep)? == Posted::Done {
                return Ok(());
            }
            if Instant::now() > end {
                return Err(RankError::Stuck);
            }
        }
    }

    /// Reads completions.
    #[inline]
    pub(crate) fn poll(&mut self) -> Result<usize, RankError> {
        let (arrived, remote) = (&mut self.arrived, &mut self.remote);
        let count = self.ep.poll(|completion| match completion.slot {
            Some(slot) => arrived[slot as usize] = true,
            None => *remote += 1,
        })?;
        Ok(count)
    }

    /// Reads completions or waits for them, as configured.
    #[inline]
    fn idle(&mut self) -> Result<(), RankError> {
        match self.wait {
            Wait::Spin => {
                self.poll()?;
            }
            Wait::Yield => {
                if self.poll()? == 0 {
                    std::thread::yield_now();
                }
            }
            Wait::Sread => {
                let (arrived, remote) = (&mut self.arrived, &mut self.remote);
                self.ep.wait(SLEEP_MS, |completion| match completion.slot {
                    Some(slot) => arrived[slot as usize] = true,
                    None => *remote += 1,
                })?;
            }
        }
        Ok(())
    }

    /// Waits for the operation with this slot, and clears its completion.
    #[inline]
    pub(crate) fn finish(&mut self, slot: u32) -> Result<(), RankError> {
        while !self.take(slot) {
            self.idle()?;
        }
        Ok(())
    }

    /// Whether the operation with this slot is complete; clears its completion.
    #[inline]
    pub(crate) fn take(&mut self, slot: u32) -> bool {
        std::mem::take(&mut self.arrived[slot as usize])
    }

    /// Waits for the operation with this slot, with sleeps that free the core. Does not clear its completion.
    #[cfg(feature = "lab")]
    pub(crate) fn sleep_until(&mut self, slot: u32) -> Result<(), RankError> {
        while !self.arrived[slot as usize] {
            self.poll()?;
            std::thread::sleep(IDLE_SLEEP);
        }
        Ok(())
    }

    /// Waits until `count` of the peer's writes with data have arrived.
    #[inline]
    pub(crate) fn await_remote(&mut self, count: u64) -> Result<(), RankError> {
        while self.remote < count {
            self.idle()?;
        }
        Ok(())
    }

    /// Makes progress for a while.
    pub(crate) fn linger(&mut self) -> Result<(), RankError> {
        for _ in 0..READS {
            self.poll()?;
        }
        Ok(())
    }
}
