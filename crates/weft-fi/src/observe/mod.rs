//! Observation of a process from outside: log lines, published counters, and statistics for the client.
//!
//! Place in the data flow: endpoints and domains → here → the host's log, memfds, the client.

pub(crate) mod log;
pub mod publish;
pub(crate) mod stats;
