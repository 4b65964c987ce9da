//! What the operations and transfers of an endpoint hold registered.
//!
//! Place in the data flow: where a link's device demands registration ([`crate::nic::NicCaps::registered`]),
//! `msg` and `rma` hold the memory that they announce to a peer, `bulk` the memory that the device gets into
//! or puts from; the end of the operation or transfer lets go. What cannot be held travels by push. There is
//! none of this on other devices.
//!
//! Invariant: holding is idempotent, so that what a full device has refused may simply be tried again.

use std::collections::BTreeMap;

use smallvec::SmallVec;

use crate::bugs::planted;
use crate::mem::Iov;
use crate::mrcache::{MrCache, Pin};
use crate::nic::Registrar;

/// For whom memory is registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Holder {
    /// A part of one of our operations; a send has one, number 0.
    Part { op: u32, part: u32 },
    /// A transfer, by its token.
    Transfer(u64),
}

/// The cache, and who uses it.
#[derive(Debug)]
pub(crate) struct Registrations {
    pub(crate) cache: MrCache,
    pins: BTreeMap<Holder, SmallVec<[Pin; 2]>>,
}

impl Registrations {
    pub(crate) fn new(cache: MrCache) -> Self {
        Self { cache, pins: BTreeMap::new() }
    }

    /// Whether all of `iov` is registered now, for as long as `holder` does not let go.
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

    /// Whether nobody holds anything.
    pub(crate) fn is_idle(&self) -> bool {
        self.pins.is_empty()
    }

    pub(crate) fn release(&mut self, holder: Holder) {
        for pin in self.pins.remove(&holder).unwrap_or_default() {
            self.cache.release(pin);
        }
    }

    /// An operation has ended, with all of its parts.
    pub(crate) fn release_op(&mut self, op: u32) {
        while let Some((&holder, _)) =
            self.pins.range(Holder::Part { op, part: 0 }..=Holder::Part { op, part: u32::MAX }).next()
        {
            self.release(holder);
        }
    }
}
