//! The registrations that the operations and transfers of an endpoint hold.
//!
//! Place in the data flow: this concerns links whose device demands registration
//! ([`crate::nic::NicCaps::registered`]). `send.rs` and `rma.rs` register the memory that they announce to a
//! peer. `transfer.rs` registers the memory that the device gets into or puts from. The end of the operation or
//! transfer releases it. Memory that cannot be registered travels by push.
//!
//! Invariant: to register again for the same holder has no effect, so a call that a full device refused can be
//! repeated.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::bugs::planted;
use crate::ids::{OpId, TransferId};
use crate::mem::Iov;
use crate::mrcache::{MrCache, Pin};
use crate::nic::Registrar;

/// The reason for which memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// A part of an operation of this side. A send has only part 0.
    Part { op: OpId, part: u32 },
    /// A transfer.
    Transfer(TransferId),
}

/// The cache, and its uses by the endpoint.
#[derive(Debug)]
pub(crate) struct Registrations {
    cache: MrCache,
    pins: BTreeMap<Holder, SmallVec<[Pin; 2]>>,
}

impl Registrations {
    pub(crate) fn new(cache: MrCache) -> Self {
        Self { cache, pins: BTreeMap::new() }
    }

    /// Registers all of `iov` until `holder` releases it. Returns whether it is registered.
    pub(crate) fn register<R: Registrar>(&mut self, device: &mut R, holder: Holder, iov: &[Iov]) -> bool {
        if self.is_registered(holder) {
            return true;
        }
        let mut pins = SmallVec::new();
        for piece in iov.iter().filter(|piece| !piece.is_empty()) {
            let span = device.span(piece);
            match self.cache.acquire(device, span) {
                Some(pin) => pins.push(pin),
                None => {
                    for pin in pins {
                        self.cache.release(pin);
                    }
                    return false;
                }
            }
        }
        planted!(Bug::RegistrationEndsEarly, pins.drain(..).for_each(|pin| self.cache.release(pin)));
        self.pins.insert(holder, pins);
        true
    }

    pub(crate) fn is_registered(&self, holder: Holder) -> bool {
        self.pins.contains_key(&holder)
    }

    pub(crate) fn cache(&self) -> &MrCache {
        &self.cache
    }

    pub(crate) fn cache_mut(&mut self) -> &mut MrCache {
        &mut self.cache
    }

    /// Whether no memory is registered.
    pub(crate) fn is_idle(&self) -> bool {
        self.pins.is_empty()
    }

    pub(crate) fn release(&mut self, holder: Holder) {
        for pin in self.pins.remove(&holder).unwrap_or_default() {
            self.cache.release(pin);
        }
    }

    /// Releases the memory of all parts of an operation.
    pub(crate) fn release_op(&mut self, op: OpId) {
        while let Some((&holder, _)) =
            self.pins.range(Holder::Part { op, part: 0 }..=Holder::Part { op, part: u32::MAX }).next()
        {
            self.release(holder);
        }
    }
}
