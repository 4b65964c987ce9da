//! Sleep and progress: who drives endpoints, how a thread sleeps until they have something, what wakes it.
//!
//! Place in the data flow: `fi_cq_read` and its kin → here → the engines of endpoints.

pub(crate) mod flusher;
pub(crate) mod lock;
pub(crate) mod poll;
pub(crate) mod pollset;
pub(crate) mod progress;
pub(crate) mod trywait;
pub(crate) mod wait;
pub(crate) mod waitset;

/// What the file that the model checker tries imports from here.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::time::Instant;

    pub(super) use parking_lot::Mutex;
}
