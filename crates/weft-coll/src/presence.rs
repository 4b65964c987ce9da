//! The ranks that were started with this library, found without a collective.
//!
//! Place in the data flow: around `PMPI_Init`. A rank without this library, on a host where it is missing, takes part
//! in nothing but the MPI library's own start. A collective of this library would wait for it for ever. Before
//! `PMPI_Init` each rank therefore puts a mark into the key-value space of the job, in which the MPI library exchanges
//! its addresses ([`hydra`], [`pmix`]). The MPI library's start makes all marks visible. After it each rank asks for
//! the marks of its neighbours in a tree, and the ranks with marks agree by messages over its branches. No message goes
//! to a rank without a mark.
//!
//! With another launcher there is no space, and the ranks must trust that all have the library. A line tells the user
//! if that lasts too long ([`Patience`]).

mod hydra;
mod pmix;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weft_os::Worker;

use crate::mpi::{self, Abi, Mpi};
use crate::pmpi::Pmpi;

/// The time in `MPI_Init` after which the user gets a line.
const PATIENCE: Duration = Duration::from_secs(20);

/// The key of a rank's mark.
fn key(rank: usize) -> String {
    format!("weft-coll-{rank}")
}

/// The job's key-value space, with the mark of this rank.
pub(crate) enum Space {
    Hydra(hydra::Space),
    Pmix(pmix::Space),
}

impl Space {
    /// Starts the MPI library by `library`, with the mark of this rank in the space of the job. Returns the library's
    /// result as well. `None`: this launcher has no known space.
    pub(crate) fn around<R>(library: impl FnOnce() -> R) -> (R, Option<Self>) {
        match mpi::loaded().map(Mpi::abi) {
            Some(Abi::Mpich) => {
                let space = hydra::Space::enter();
                (library(), space.map(Self::Hydra))
            }
            Some(Abi::OpenMpi) => {
                pmix::Space::want_mark();
                (library(), pmix::Space::open().map(Self::Pmix))
            }
            // The launcher says which library is behind the standard interface.
            Some(Abi::Standard) => match hydra::Space::enter() {
                Some(space) => (library(), Some(Self::Hydra(space))),
                None => {
                    pmix::Space::want_mark();
                    (library(), pmix::Space::open().map(Self::Pmix))
                }
            },
            Some(Abi::Other) | None => (library(), None),
        }
    }

    /// The host that a rank has put into its mark. `None`: it has put no mark.
    fn mark(&self, rank: usize) -> Option<String> {
        match self {
            Self::Hydra(space) => space.get(&key(rank)),
            Self::Pmix(space) => space.get(rank, &key(rank)),
        }
    }

    /// The place of a rank without a mark, for users.
    fn place(&self, rank: usize, ranks: usize) -> String {
        let place = match self {
            Self::Hydra(space) => {
                let nodes = space.nodes();
                let beside = |&other: &usize| nodes.of(other) == nodes.of(rank);
                let host = (0..ranks).filter(beside).find_map(|other| self.mark(other));
                let number = || Some(format!("host {} of the launcher's list (from 0)", nodes.of(rank)?));
                host.map(|host| format!("host {host}")).or_else(number)
            }
            Self::Pmix(space) => space.get(rank, pmix::HOST).map(|host| format!("host {host}")),
        };
        place.map(|place| format!(" on {place}")).unwrap_or_default()
    }

    /// A rank of the world without this library, the same at all ranks that can reach each other over the tree. `None`:
    /// all have it.
    fn missing(&self, pmpi: &Pmpi, rank: usize, ranks: usize) -> Option<usize> {
        let is_marked = |rank: &usize| self.mark(*rank).is_some();
        if !is_marked(&rank) {
            return Some(rank);
        }
        let (children, missing): (Vec<usize>, Vec<usize>) = children(rank, ranks).partition(is_marked);
        let mut missing = missing.first().copied();
        for &child in &children {
            missing = missing.or(pmpi.receive_number(child));
        }
        match parent(rank) {
            Some(parent) if is_marked(&parent) => {
                pmpi.send_number(missing, parent);
                missing = pmpi.receive_number(parent);
            }
            absent => missing = absent.or(missing),
        }
        children.iter().for_each(|&child| pmpi.send_number(missing, child));
        missing
    }

    /// The reason for which the MPI library must run the collectives, if ranks lack this library. An empty reason is
    /// printed by another rank.
    pub(crate) fn reason(&self, pmpi: &Pmpi, rank: usize, ranks: usize) -> Option<String> {
        let missing = self.missing(pmpi, rank, ranks)?;
        if (0..rank).any(|lower| self.mark(lower).is_some()) {
            return Some(String::new());
        }
        let place = self.place(missing, ranks);
        Some(format!(
            "rank {missing}{place} was started without libweft-coll.so. Install the library on all hosts, and name it \
             in LD_PRELOAD of all ranks."
        ))
    }
}

fn parent(rank: usize) -> Option<usize> {
    rank.checked_sub(1).map(|below| below / 2)
}

fn children(rank: usize, ranks: usize) -> impl Iterator<Item = usize> {
    [2 * rank + 1, 2 * rank + 2].into_iter().filter(move |&child| child < ranks)
}

/// A line for the user if the ranks do not come together in time. A drop ends the wait.
pub(crate) struct Patience {
    met: Arc<AtomicBool>,
    worker: Option<Worker>,
}

impl Patience {
    pub(crate) fn start() -> Self {
        let met = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&met);
        let wait = move || {
            std::thread::park_timeout(PATIENCE);
            if !seen.load(Ordering::Acquire) {
                eprintln!(
                    "weft-coll: MPI_Init waits for all ranks to take part. A rank may be without libweft-coll.so: \
                     install it on all hosts, and name it in LD_PRELOAD of all ranks."
                );
            }
        };
        Self { met, worker: Worker::spawn("weft-coll", wait).ok() }
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.met.store(true, Ordering::Release);
        if let Some(worker) = self.worker.take() {
            worker.unpark();
            worker.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_and_children_agree() {
        for ranks in 1..20 {
            assert_eq!((0..ranks).map(|rank| children(rank, ranks).count()).sum::<usize>(), ranks - 1);
            assert!((0..ranks).all(|rank| children(rank, ranks).all(|child| parent(child) == Some(rank))));
        }
        assert_eq!(parent(0), None);
    }
}
