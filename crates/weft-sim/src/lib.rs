//! A simulated fabric in virtual time, under the very engine that ships.
//!
//! [`Fabric`] makes [`SimNic`]s, which implement the engine's device trait; many endpoints share one process
//! and one thread. All randomness comes from one seed, through one stream per entity ([`rng`]). A run can
//! therefore be repeated exactly, and the hash of its trace ([`Fabric::trace_hash`]) proves it. The fabric
//! delays, reorders, refuses, splits and cuts within the limits of the device contract. It records each
//! breach of that contract by its user, and each write to memory that must not be written
//! ([`Fabric::violations`]).

#![forbid(unsafe_code)]

mod card;
mod chain;
mod cluster;
mod collectives;
mod config;
mod endpoint;
mod endpoints;
mod event;
mod fabric;
mod harness;
mod hazard;
mod memory;
mod nic;
pub mod oracle;
mod plan;
mod registration;
pub mod rng;
pub mod run;
pub mod shrink;
mod stats;
mod trace;
mod transfer;
pub mod unimem;
mod wire;
pub mod workload;

pub use card::{Card, Moved, Movement, Place};
pub use cluster::{Cluster, Turn};
pub use config::{FabricConfig, Faults, Registration};
pub use endpoints::Endpoints;
pub use fabric::{Fabric, Fate, Intercept};
pub use harness::{ANY_TAG, Atomic, COUNTERS, Harness, Recv, Rma, SLOT_BYTES, Send, Tamper, Window, random_pieces};
pub use harness::{FREE_COUNTER, Job, ProgramStats, RANK_COUNTERS, Signals, Task};
pub use hazard::{Hazard, Hazards};
pub use memory::Buffer;
pub use nic::{SimMemory, SimNic};
pub use plan::{Act, Acts, Plan, RANKS};
pub use stats::Stats;
pub use trace::TraceEvent;
