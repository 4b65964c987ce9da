//! The protocol engine of weft.
//!
//! One libfabric endpoint is one [`Engine`]: a single-threaded state machine that does no I/O, reads no clock
//! and spawns no thread. Below it is one device behind the trait [`nic::Nic`]. Above it is weft-fi, which
//! calls the operations and drains the [`api::Completion`]s. [`Engine`] and [`nic::Nic`] are the best places
//! to start reading.

#![deny(unsafe_code)]

pub mod am;
pub mod amo;
pub mod api;
pub mod board;
mod broken;
#[cfg(feature = "mutants")]
pub mod bugs;
#[cfg(not(feature = "mutants"))]
#[allow(dead_code, unreachable_pub)] // Without the feature, only `planted!` names the bugs.
mod bugs;
pub mod collective;
mod engine;
pub mod growth;
mod ids;
mod list;
pub mod mapped;
mod matching;
#[allow(unsafe_code)]
pub mod mem;
pub mod mrcache;
pub mod name;
pub mod nic;
pub mod program;
mod table;
mod wire;

pub use api::{Probe, Role};
pub use engine::stats;
pub use engine::waits;
pub use engine::{
    CollectiveOp, ConnEvent, Custom, CustomFn, Elements, Engine, GroupId, MAX_CONN_DATA, PEER, PeerNames, Performed,
    Pool, PooledReleases, ReleaseGuard,
};

/// The longest atomic operation, in bytes at the target.
pub const MAX_ATOMIC_BYTES: usize = engine::MAX_ATOMIC_BYTES;

/// The length in bytes up to which RMA operations take effect in the order in which they were started. The
/// device's mailboxes have at least `mailbox_bytes` bytes.
#[must_use]
pub const fn ordered_rma_bytes(mailbox_bytes: usize) -> usize {
    let room = mailbox_bytes.saturating_sub(wire::HEADER_BYTES);
    if room < wire::ORDERED_RMA_BYTES { room } else { wire::ORDERED_RMA_BYTES }
}
