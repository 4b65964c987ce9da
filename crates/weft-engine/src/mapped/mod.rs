//! Memory that peers of the host map: the contract between the engine, which grants and uses access, and a device,
//! which passes the memory on.
//!
//! Place in the data flow: a client allocates memory from the device's allocator and registers it, so that its
//! [`Region`](crate::api::Region) has a [`Mappable`]. The engine of a peer asks for the region at its first access. The
//! device passes the memory with a [`Guard`] ([`Nic::share_region`](crate::nic::Nic::share_region)), and the peer's
//! engine accesses it from then on by loads, stores and atomic instructions (`engine/direct.rs`).
//!
//! Revocation. A guard is one word that the owner and one peer share. The peer counts its access before it begins, and
//! begins none once the owner has revoked the guard. The owner revokes, waits for the access under way, and then
//! replaces the pages. A peer that ignores the guard therefore writes into memory that the owner has left.

mod guard;

/// The atomics of the guard, which a model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicU64;

use crate::api::Access;
use crate::board::Board;
use crate::bugs::planted;
use crate::mem::{self, Iov};

/// Whole pages of this process that its peers may map.
pub trait Mappable: Any + fmt::Debug + Send + Sync {
    /// Ends the access of all peers. When this returns, nothing that they write appears in the memory.
    fn revoke(&self);
}

/// A region that its owner's device passes to a peer.
#[derive(Clone, Copy, Debug)]
pub struct RegionOffer<'a> {
    memory: &'a dyn Mappable,
    span: Span,
    access: Access,
}

/// The bytes of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    base: u64,
    address: u64,
    bytes: u64,
}

impl Span {
    /// `bytes` of memory whose first byte has the remote address `base`, and the address `address` in the owner.
    #[must_use]
    pub const fn new(base: u64, address: u64, bytes: u64) -> Self {
        Self { base, address, bytes }
    }

    /// Remote address of the first byte, its address in the owner, and the length in bytes.
    #[must_use]
    pub const fn words(self) -> [u64; 3] {
        [self.base, self.address, self.bytes]
    }
}

impl<'a> RegionOffer<'a> {
    /// A region that is all of `memory`.
    pub(crate) fn new(memory: &'a dyn Mappable, span: Span, access: Access) -> Self {
        Self { memory, span, access }
    }

    /// The memory of which the region consists.
    #[must_use]
    pub fn memory(&self) -> &'a dyn Mappable {
        self.memory
    }

    /// The region's bytes.
    #[must_use]
    pub fn span(&self) -> Span {
        self.span
    }

    /// The access that the peer has.
    #[must_use]
    pub fn access(&self) -> Access {
        self.access
    }
}

/// A peer's region that is mapped here.
#[derive(Debug)]
pub struct PeerRegion {
    memory: Iov,
    /// Keeps the memory mapped.
    _kept: Option<Board>,
    guard: Guard,
    span: Span,
    access: Access,
}

/// The longest access under one entry of a guard, in bytes. The owner waits for it when it revokes.
const ENTRY_BYTES: usize = 1 << 20;

impl PeerRegion {
    /// A region at the beginning of `memory`. `None`: the memory is shorter, or the addresses overflow.
    #[must_use]
    pub fn new(memory: Board, guard: Guard, span: Span, access: Access) -> Option<Self> {
        let region = Self::of_memory(mem::of_words(memory.words()), guard, span, access)?;
        Some(Self { _kept: Some(memory), ..region })
    }

    /// The same for memory that the caller keeps as long as the region exists.
    #[must_use]
    pub fn of_memory(memory: Iov, guard: Guard, span: Span, access: Access) -> Option<Self> {
        let Span { base, address, bytes } = span;
        let fits = bytes <= memory.len() as u64 && base.max(address).checked_add(bytes).is_some();
        fits.then_some(Self { memory, _kept: None, guard, span, access })
    }

    /// The memory of an access, if the region allows it.
    #[inline]
    pub(crate) fn memory(&self, addr: u64, len: u64, need: Access) -> Option<Iov> {
        let allowed = (self.access.write || !need.write) && (self.access.read || !need.read);
        let offset = addr.checked_sub(self.span.base)?;
        let fits = offset.checked_add(len)? <= self.span.bytes;
        let (offset, len) = (usize::try_from(offset).ok()?, usize::try_from(len).ok()?);
        (allowed && fits).then(|| self.memory.slice(offset, len))
    }

    /// The memory that the owner has at an address of its own, if the region may be accessed so.
    pub(crate) fn owned(&self, address: u64, len: u64, need: Access) -> Option<Iov> {
        let Span { base, address: first, .. } = self.span;
        let remote = base.checked_add(address.checked_sub(first)?)?;
        self.memory(remote, len, need)
    }

    /// Copies client memory to or from the region. False: the owner has revoked the region. A part of the bytes may
    /// have been copied.
    pub(crate) fn copy(&self, there: Iov, here: &[Iov], write: bool) -> bool {
        if let [one] = here
            && there.len() <= ENTRY_BYTES
        {
            let (to, from) = if write { (there, one) } else { (*one, &there) };
            return self.guard.access(|| to.copy_from(from)).is_some();
        }
        let mut done = 0;
        while done < there.len() {
            let part = there.slice(done, ENTRY_BYTES);
            let local = mem::slice(here, done, part.len());
            let copied = self.guard.access(|| match write {
                true => mem::copy(&[part], &local),
                false => mem::copy(&local, &[part]),
            });
            if copied.is_none() {
                return false;
            }
            done += part.len();
        }
        true
    }

    /// Performs an access under the guard. `None`: the owner has revoked the region.
    #[inline]
    pub(crate) fn access<T>(&self, access: impl FnOnce() -> T) -> Option<T> {
        self.guard.access(access)
    }

    /// Whether the owner has revoked the region.
    pub(crate) fn is_revoked(&self) -> bool {
        self.guard.is_revoked()
    }
}

/// The access of a peer to a region, which the owner can revoke: a word in memory that both share.
#[derive(Clone, Debug)]
pub struct Guard(Board);

impl Guard {
    /// The guard in the first word of the memory. `None`: there is none.
    #[must_use]
    pub fn new(memory: Board) -> Option<Self> {
        (!memory.words().is_empty()).then_some(Self(memory))
    }

    /// The shared memory.
    #[must_use]
    pub const fn memory(&self) -> &Board {
        &self.0
    }

    fn word(&self) -> &AtomicU64 {
        &self.0.words()[0]
    }

    /// Performs an access of the peer. `None`: the owner has revoked the guard.
    #[inline]
    fn access<T>(&self, access: impl FnOnce() -> T) -> Option<T> {
        let word = self.word();
        let entered = guard::enter(word);
        planted!(Bug::StaleMap, entered, true).then(|| {
            let result = access();
            if planted!(Bug::StaleMap, true, entered) {
                guard::leave(word);
            }
            result
        })
    }

    /// Revokes the guard. The peer's access under way has ended when [`Guard::is_idle`] holds.
    pub fn revoke(&self) {
        guard::revoke(self.word());
    }

    /// Whether the owner has revoked the guard.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        guard::is_revoked(self.word())
    }

    /// Whether no access is under way.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        guard::is_idle(self.word())
    }
}
