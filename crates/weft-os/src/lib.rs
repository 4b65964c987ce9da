//! Helpers over the operating system that devices, the provider and the profiling library share: memory files, their
//! passing between processes, threads, forks, mappings.
//!
//! Place in the data flow: beside it. Nothing here carries a message. `weft-nic`, `weft-fi` and others call these
//! helpers when they set up, sleep, fork, or check memory.
//!
//! Errors: [`SystemError`] names the refused system call, its answer, and a remedy.

mod checker;
pub mod clock;
pub mod descriptors;
mod error;
mod fork;
mod launch;
mod mapped;
pub mod memfile;
pub mod memory;
pub mod rendezvous;
mod unmap;
pub mod users;
mod worker;

pub use checker::Checker;
pub use error::{SystemError, remedy};
pub use fork::{ForkClosedFd, watch_forks};
pub use launch::end_with_parent;
pub use mapped::accessible;
pub use unmap::UnmapWatch;
pub use worker::{Worker, set_short_time_slice};
