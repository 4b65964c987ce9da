//! The names of the job's endpoints that have engines, and the engines' addresses of them.
//!
//! Place in the data flow: all engines of a rank share the book. The meeting at the start writes the names of the first
//! endpoints ([`crate::job::start`]). Those of others come when a team of them is made, or when they are published
//! (`own`).
//!
//! The engines' address of an endpoint has the rank in its low half, then the number of the endpoint, then the number
//! of its life: an endpoint that is made anew under a number is another one. The address of a first endpoint is its
//! rank.

use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use weft_engine::api::{Addr, AddressBook, Changes};
use weft_engine::name::EpName;

use crate::board::MAX_ENDPOINTS;
use crate::table::Location;

/// The life of an endpoint among those that had its number.
pub(crate) type Life = u16;

/// The rank and the number of the endpoint in an address.
#[inline(always)]
pub(crate) fn place_of(addr: Addr) -> Location {
    #[expect(clippy::cast_possible_truncation, reason = "the parts of an address")]
    let (rank, endpoint) = (addr as u32, (addr >> 32) as u16);
    Location::new(rank, endpoint)
}

fn address(at: Location, life: Life) -> Addr {
    u64::from(life) << 48 | u64::from(at.endpoint()) << 32 | u64::from(at.rank())
}

/// The names of endpoints.
pub(crate) struct Book {
    /// Those of first endpoints, by rank.
    first: Vec<EpName>,
    others: RwLock<HashMap<Addr, EpName>>,
    /// The addresses of other endpoints, by endpoint and rank. 0: not known.
    known: [OnceLock<Box<[AtomicU64]>>; MAX_ENDPOINTS],
    /// Names that were added.
    added: AtomicU64,
}

impl Book {
    /// A book of first endpoints.
    pub(crate) fn new(first: Vec<EpName>) -> Self {
        Self {
            first,
            others: RwLock::default(),
            known: std::array::from_fn(|_| OnceLock::new()),
            added: AtomicU64::new(0),
        }
    }

    fn row(&self, at: Location) -> Option<&AtomicU64> {
        let made = || self.first.iter().map(|_| AtomicU64::new(0)).collect();
        self.known.get(usize::from(at.endpoint()))?.get_or_init(made).get(at.rank() as usize)
    }

    /// Adds an endpoint other than a first one.
    pub(crate) fn add(&self, at: Location, life: Life, name: EpName) {
        let Some(row) = self.row(at).filter(|_| at.endpoint() != 0) else { return };
        let addr = address(at, life);
        self.others.write().insert(addr, name);
        self.added.fetch_add(1, Ordering::Release);
        row.store(addr, Ordering::Release);
    }

    /// The engines' address of an endpoint; `None`: it is not known to have an engine.
    #[inline(always)]
    pub(crate) fn address(&self, at: Location) -> Option<Addr> {
        if at.endpoint() == 0 {
            return Some(Addr::from(at.rank()));
        }
        let row = self.known.get(usize::from(at.endpoint()))?.get()?;
        Some(row.get(at.rank() as usize)?.load(Ordering::Acquire)).filter(|addr| *addr != 0)
    }
}

impl AddressBook for Book {
    fn name(&self, addr: Addr) -> Option<EpName> {
        let at = place_of(addr);
        if at.endpoint() == 0 {
            self.first.get(at.rank() as usize).copied()
        } else {
            self.others.read().get(&addr).copied()
        }
    }

    fn addr(&self, name: &EpName) -> Option<Addr> {
        if let Some(at) = self.first.iter().position(|found| found.same_endpoint(name)) {
            return Some(at as Addr);
        }
        self.others.read().iter().find(|(_, found)| found.same_endpoint(name)).map(|(addr, _)| *addr)
    }

    fn changes(&self) -> Option<Changes> {
        Some(Changes { removals: 0, rows: self.added.load(Ordering::Acquire) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_tell_ranks_endpoints_and_lives() {
        let at = Location::new(70_000, 32);
        assert_eq!(place_of(address(at, 65_535)), at);
        assert_eq!(address(Location::new(7, 0), 0), 7);
        assert_ne!(address(at, 1), address(at, 2));
    }
}
