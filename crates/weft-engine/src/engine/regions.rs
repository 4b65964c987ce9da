//! The regions of this endpoint that peers may access.
//!
//! Place in the data flow, at the target: each request of `rma.rs` and `atomic.rs` is checked here (key, access, range,
//! and whether the memory is there) before a byte moves.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::api::Probe;
use crate::api::{Access, Region};
use crate::broken::{cannot_happen, less};
use crate::bugs::planted;
use crate::engine::probe::AccessibleSpans;
use crate::mapped::Mappable;
use crate::mem::{self, Iov, IovList};
use crate::wire::Status;

struct RegionEntry {
    region: Region,
    /// Number of transfers that use the memory.
    busy: u32,
    /// Spans of the memory that were found to be accessible.
    accessible: AccessibleSpans,
}

/// The regions that peers may access through this endpoint.
#[derive(Default)]
pub(crate) struct Regions {
    by_key: FxHashMap<u64, RegionEntry>,
    /// Number of transfers of regions that were removed while in use, by key.
    removed_busy: FxHashMap<u64, u32>,
    probe: Option<Probe>,
}

impl Regions {
    /// Makes an empty table. `probe` checks memory that is not known to be accessible.
    pub(crate) fn new(probe: Option<Probe>) -> Self {
        Self { probe, ..Self::default() }
    }

    /// Checks an access that needs these rights. Returns its memory.
    pub(crate) fn check(&mut self, key: u64, addr: u64, len: u64, need: Access) -> Result<IovList, Status> {
        let RegionEntry { region, accessible, .. } = self.by_key.get_mut(&key).ok_or(Status::BadKey)?;
        let allowed = (region.access.write || !need.write) && (region.access.read || !need.read);
        if planted!(Bug::AccessIgnored, !allowed, false) {
            return Err(Status::BadKey);
        }
        let size = match region.iov.as_slice() {
            [one] => one.len() as u64,
            several => several.iter().map(|piece| piece.len() as u64).fold(0, u64::saturating_add),
        };
        let offset = addr.checked_sub(region.base).ok_or(Status::BadRange)?;
        let end = offset.checked_add(len).ok_or(Status::BadRange)?;
        if end > planted!(Bug::RangeOffByOne, size, size + 1) {
            return Err(Status::BadRange);
        }
        let (Ok(offset), Ok(len)) = (usize::try_from(offset), usize::try_from(len)) else {
            return Err(Status::BadRange);
        };
        let memory = match region.iov.as_slice() {
            [one] if len > 0 => IovList::from_slice(&[one.slice(offset, len)]),
            several => mem::slice(several, offset, len),
        };
        match self.probe {
            Some(probe) if !memory.iter().all(|piece| accessible.covers(probe, piece.into(), need.write)) => {
                Err(Status::NoMemory)
            }
            _ => Ok(memory),
        }
    }

    /// Adds a region. Returns false if its key is in use.
    pub(super) fn insert(&mut self, region: Region) -> bool {
        let key = region.key;
        let free = !self.by_key.contains_key(&key) && !self.removed_busy.contains_key(&key);
        if free {
            self.by_key.insert(key, RegionEntry { region, busy: 0, accessible: AccessibleSpans::default() });
        }
        free
    }

    /// Removes a region. Its transfers may go on ([`Regions::is_busy`]).
    pub(super) fn remove(&mut self, key: u64) -> Option<Region> {
        let entry = self.by_key.remove(&key)?;
        if entry.busy > 0 {
            self.removed_busy.insert(key, entry.busy);
        }
        Some(entry.region)
    }

    /// Whether transfers use a region that was removed.
    pub(super) fn is_busy(&self, key: u64) -> bool {
        self.removed_busy.get(&key).is_some_and(|busy| *busy > 0)
    }

    /// Frees the key of a region that was removed.
    pub(super) fn forget(&mut self, key: u64) {
        self.removed_busy.remove(&key);
    }

    /// Takes a region from those that can be mapped.
    pub(super) fn take_mapping(&mut self, key: u64) -> Option<Arc<dyn Mappable>> {
        self.by_key.get_mut(&key).and_then(|entry| entry.region.mapping.take())
    }

    /// Whether memory of a receive is inaccessible, after a device could not write to it.
    pub(crate) fn is_no_memory(&self, memory: &[Iov]) -> bool {
        self.probe.is_some_and(|probe| memory.iter().any(|piece| probe(piece.into(), true, false).is_none()))
    }

    /// The region with this key.
    #[inline]
    pub(crate) fn get(&self, key: u64) -> Option<&Region> {
        self.by_key.get(&key).map(|entry| &entry.region)
    }

    /// The key of a region that can be mapped with these rights, and that contains a piece of memory.
    pub(crate) fn key_of(&self, memory: &Iov, need: Access) -> Option<u64> {
        let contains = |region: &Region| {
            let offset = region.iov.first().and_then(|piece| memory.addr().checked_sub(piece.addr()).zip(Some(piece)));
            region.mapping.is_some()
                && (region.access.write || !need.write)
                && (region.access.read || !need.read)
                && offset.is_some_and(|(offset, piece)| offset + memory.len() as u64 <= piece.len() as u64)
        };
        self.by_key.iter().find(|(_, entry)| contains(&entry.region)).map(|(key, _)| *key)
    }

    /// Ends the access of peers by mappings, and leaves the regions accessible by messages.
    pub(crate) fn end_mappings(&mut self) {
        self.by_key.values().filter_map(|entry| entry.region.mapping.as_ref()).for_each(|mapping| mapping.revoke());
    }

    pub(super) fn acquire(&mut self, key: u64) {
        if let Some(entry) = self.by_key.get_mut(&key) {
            entry.busy += 1;
        }
    }

    pub(crate) fn release(&mut self, key: u64) {
        if let Some(busy) = self.removed_busy.get_mut(&key) {
            *busy = less!(*busy, 1, "a transfer acquires its region before it releases it");
        } else if let Some(entry) = self.by_key.get_mut(&key) {
            entry.busy = less!(entry.busy, 1, "a transfer acquires its region before it releases it");
        } else {
            cannot_happen!("a region in use is known");
        }
    }
}
