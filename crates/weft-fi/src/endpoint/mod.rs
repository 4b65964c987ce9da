//! Endpoints (fi_endpoint(3)): the handle that a client holds, and the operations on it.
//!
//! Place in the data flow: `fi_endpoint` makes an [`Ep`]; `fi_ep_bind` and `fi_enable` ([`setup`]) give its
//! `cell::EndpointCell` an engine and routes. The entry points of data transfers ([`crate::abi::transfer`]) translate
//! calls for [`Ep::start_send`], [`Ep::post_recv`], [`Ep::start_write`], [`Ep::start_read`] and [`Ep::start_atomic`],
//! which enter the cell.
//!
//! An alias (`fi_ep_alias`) is a second handle on the same cell and the same [`Setup`], with default flags of its own.
//!
//! Invariants: the fields of the data path come first, next to the `fid`. Fields that change after creation
//! and are read on the data path are atomic. The client serializes such changes with its operations
//! (fi_endpoint.h).

mod bind;
pub(crate) mod cell;
pub(crate) mod close;
mod collective;
pub(crate) mod connection;
pub(crate) mod enable;
mod entry;
pub(crate) mod flags;
mod kind;
mod matching;
pub(crate) mod opening;
mod operation;
pub(crate) mod options;
mod registration;
pub(crate) mod route;
pub(crate) mod scalable;
mod setup;
pub(crate) mod shared;
mod tables;
#[cfg(test)]
mod tests;

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use weft_engine::api::{OpFlags, RecvFlags};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::{Head, Hold, Object, Uses};
use crate::domain::Domain;
use crate::endpoint::cell::EndpointCell;
pub(crate) use crate::endpoint::collective::{Call, Exchange};
pub(crate) use crate::endpoint::entry::open;
use crate::endpoint::flags::{Defaults, Mode};
use crate::endpoint::kind::{Kind, Sources};
pub(crate) use crate::endpoint::operation::{Atomic, Recv, Rma, Send};
use crate::endpoint::scalable::Place;
use crate::endpoint::setup::Setup;
use crate::info::EpType;

/// The limits of one endpoint, from the attributes with which it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Most pieces of a local vector.
    pub(crate) iov: usize,
    /// Most pieces of a remote vector.
    pub(crate) rma_iov: usize,
    /// Longest inject in bytes.
    pub(crate) inject_bytes: usize,
    /// Longest message in bytes.
    pub(crate) max_msg_bytes: usize,
    /// Most transmit operations that may wait for each peer.
    pub(crate) tx_depth: usize,
    /// Posted receives, as the attributes ask for.
    pub(crate) rx_depth: usize,
}

impl Limits {
    /// Most posted receives of one kind, tagged or untagged. Only messages free their places. A client that did not ask
    /// for a short queue therefore gets more room than programs use.
    pub(crate) fn receives(&self) -> usize {
        const LONG_QUEUE: usize = 1 << 16;
        const MANY: usize = 1 << 20;
        if self.rx_depth < LONG_QUEUE { self.rx_depth } else { self.rx_depth.max(MANY) }
    }
}

/// A client's handle on an endpoint, or on a context that is used like one.
#[repr(C)]
pub(crate) struct Ep<D: Device> {
    head: Head<sys::fid_ep>,
    cell: Arc<EndpointCell<D>>,
    tx: Defaults<OpFlags>,
    rx: Defaults<RecvFlags>,
    /// The flags of sends that keep the promised order ([`order::AFTER_ACCESSES`](crate::info::order::AFTER_ACCESSES)).
    send_order: OpFlags,
    limits: Limits,
    /// Whether receives honour the source that they name.
    sources: Sources,
    /// The client's context of the endpoint, for errors of operations without a context.
    context: usize,
    kind: Kind,
    /// The place of a context in its scalable endpoint. An alias uses its origin's.
    place: Option<Place<D>>,
    /// The bits of an address that select the endpoint, once the address vector is known. An alias uses its origin's.
    endpoint_mask: AtomicU64,
    /// The type with which the endpoint was opened.
    ty: EpType,
    /// The capabilities with which it was opened.
    caps: u64,
    /// The state of control calls, which aliases share.
    setup: Arc<Mutex<Setup<D>>>,
    uses: Uses,
    /// The original endpoint of an alias.
    parent: Option<Hold<Ep<D>>>,
    /// The last field, so that the domain is released after all others.
    domain: Hold<Domain>,
}

// SAFETY: `repr(C)`, the first field is a `Head` (an `UnsafeCell`) of the fid, whose class is set in `head_of`.
unsafe impl<D: Device> Object for Ep<D> {
    type Fid = sys::fid_ep;
    const CLASSES: &'static [u32] =
        &[sys::FI_CLASS_EP, sys::FI_CLASS_SRX_CTX, sys::FI_CLASS_TX_CTX, sys::FI_CLASS_RX_CTX];

    fn uses(&self) -> &Uses {
        &self.uses
    }

    fn closing(&self) -> Result<(), Errno> {
        if self.parent.is_none() && self.kind != Kind::Shared {
            self.shut();
        }
        Ok(())
    }

    /// Drops the devices if no thread was at work in them at the fork. Shared memory and sockets remain the parent's.
    fn abandon(&self) {
        if let Some(mut state) = self.cell.try_visit().filter(|_| self.parent.is_none()) {
            state.engine = None;
        }
    }
}

/// The endpoint behind the client's pointer, on the data path: no check, as in every provider.
///
/// # Safety
/// `fid` is an open endpoint on a device of type `D`.
#[inline]
pub(crate) unsafe fn ep<'a, D: Device>(fid: *mut sys::fid_ep) -> &'a Ep<D> {
    // SAFETY: only objects of this type carry the operations that call this.
    unsafe { &*fid.cast::<Ep<D>>() }
}

impl<D: Device> Ep<D> {
    /// The part that outlives the handle.
    pub(crate) const fn cell(&self) -> &Arc<EndpointCell<D>> {
        &self.cell
    }

    /// The original endpoint of an alias, or the endpoint itself.
    pub(crate) fn origin(&self) -> &Self {
        self.parent.as_deref().unwrap_or(self)
    }

    /// The place of a context in its scalable endpoint.
    fn place(&self) -> Option<&Place<D>> {
        self.origin().place.as_ref()
    }

    /// The domain.
    pub(crate) const fn domain(&self) -> &Hold<Domain> {
        &self.domain
    }

    /// The default mode of transmit operations.
    #[inline]
    pub(crate) fn tx_mode(&self) -> Mode<OpFlags> {
        self.tx.mode()
    }

    /// The default mode of untagged receives.
    #[inline]
    pub(crate) fn rx_mode(&self) -> Mode<RecvFlags> {
        self.rx.mode()
    }

    /// The default mode of tagged receives.
    #[inline]
    pub(crate) fn tagged_rx_mode(&self) -> Mode<RecvFlags> {
        self.rx.tagged()
    }

    /// Whether a transmit operation of this mode makes a queue entry when it succeeds.
    #[inline]
    pub(crate) fn tx_entry(&self, mode: Mode<OpFlags>) -> bool {
        mode.completion || !self.cell.bound.tx_selective()
    }

    /// Whether a receive of this mode makes a queue entry when it succeeds.
    #[inline]
    pub(crate) fn rx_entry(&self, mode: Mode<RecvFlags>) -> bool {
        mode.completion || !self.cell.bound.rx_selective()
    }

    /// The endpoint's limits.
    #[inline]
    pub(crate) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The context for operations without a context.
    #[inline]
    pub(crate) fn context(&self) -> *mut c_void {
        self.context as *mut c_void
    }
}
