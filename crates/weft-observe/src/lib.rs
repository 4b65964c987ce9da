//! The data that a process with weft shows to other processes: its identity in its job, and the counters of its
//! endpoints.
//!
//! Place in the data flow: beside it. weft-fi and weft-gex publish here ([`Page`]); `weft stat` and `weft top` read the
//! pages from outside ([`layout`]).

#![forbid(unsafe_code)]

pub mod identity;
pub mod layout;
mod page;

pub use page::{BEFORE_SLEEP, Counters, INTERVAL, Page, ROUNDS_PER_CHECK, now_ns};
