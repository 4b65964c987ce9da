//! Observation of a process from outside: log lines, published counters, the report at the end, and statistics for the
//! client.
//!
//! Place in the data flow: endpoints and domains → here → the host's log, memfds, the client.

pub(crate) mod log;
pub(crate) mod publish;
pub mod report;
pub(crate) mod stats;
