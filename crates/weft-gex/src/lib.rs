//! Jobs with a partitioned global address space over weft.
//!
//! Place in the data flow: weft-gex-c exports C functions that are compatible with the GASNet-EX API. They call this
//! crate, which keeps the state of a process in its job. Between the ranks of a host, memory is accessed directly in
//! mappings that they share. Active messages are messages of [`weft_engine`] over [`weft_nic::Devices`].
//!
//! ```text
//! gex_RMA_Put… ─► weft-gex-c ─► rma: segment table ─► copy into the target's mapped segment
//!                 └─► far: a segment of another neighbourhood ─► Engine::write, read, atomic
//! gex_AM_Request… ─► weft-gex-c ─► am ─► Engine::send_active ─► Devices ═══► peer: Engine::progress ─► handler
//! gexw_AfterNext ─► after: an operation that starts when others are complete
//! barrier, collectives ─► barrier, coll ─► counters in the job's memory file (board)
//!                     └─► group: collectives of the engine
//! ```
//!
//! Read [`job`] first: it starts a job and holds its parts. `spawn` gives rank, size and an exchange of blobs.
//! `meet` passes the job's memory file between processes. `board` has the layout of its first part.
//!
//! Invariants:
//! - Raw memory is touched only in `memory`, `os`, `gate` and `invoke`.
//! - No lock is held that a client's function could need while that function runs, except that of the engine: handlers
//!   run under it, in place, and their replies are written into the arrival's answer.
//! - A wait polls the engine, so handlers run, and backs off ([`wait`]). A thread may poll for a client that computes
//!   ([`attend`]).

#![deny(unsafe_code)]

#[cfg(feature = "sim")]
use sim as platform;

pub mod after;
pub mod am;
pub mod area;
pub mod atomic;
pub mod attend;
pub mod barrier;
pub mod board;
mod book;
pub mod coll;
pub mod combine;
pub mod endpoint;
pub mod env;
pub mod error;
pub mod event;
pub mod exit;
pub mod failure;
pub mod far;
#[allow(unsafe_code)]
pub mod gate;
mod group;
#[allow(unsafe_code)]
pub mod invoke;
pub mod job;
mod links;
mod meet;
#[allow(unsafe_code)]
pub mod memory;
#[allow(unsafe_code)]
pub mod os;
pub mod outside;
pub mod own;
mod pack;
pub mod places;
#[cfg(not(feature = "sim"))]
mod platform;
#[cfg(feature = "sim")]
pub mod sim;
pub mod spawn;
pub mod table;
pub mod team;
pub mod vis;
pub mod wait;
