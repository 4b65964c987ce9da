//! Level two of the simulation: the schedules of collectives over costs in place of bytes, for up to a million ranks.
//!
//! Place in the data flow: beside it. The schedules are those that `weft_engine::collective::compile` makes for the
//! provider. [`Machine`] walks through them with the costs of a [`Profile`]. No engine, device or payload takes part.
//! The simulation of whole engines (level one) is weft-sim.
//!
//! The parts, in the order in which to read them:
//! - [`step`]: what a rank does, and where the machine gets it from.
//! - [`schedule`]: the schedules of collectives as steps, shared among ranks.
//! - [`board`]: collectives in the memory of a host, without messages.
//! - [`script`]: steps that are written out, for protocols between a few ranks.
//! - [`profile`]: costs, read from data files with units and sources.
//! - [`machine`]: the simulation. [`queue`] keeps the order of its events.
//! - [`latency`]: collectives timed as `weft bench collective` does, and the fit of a cost to such a time.
//! - [`figure`]: the figures of the source papers, from these models.
//!
//! Times are whole picoseconds. The order of events is (time, sequence), so the same arguments give the same trace on
//! every system.

#![forbid(unsafe_code)]

pub mod board;
pub mod figure;
pub mod latency;
pub mod machine;
pub mod profile;
pub mod queue;
mod random;
pub mod schedule;
pub mod script;
pub mod step;

pub use machine::{Executor, Machine, Options, Outcome, Overlap, Stuck};
pub use profile::Profile;
pub use schedule::Collective;
pub use script::Script;
pub use step::{Arrival, Programs, Step};
