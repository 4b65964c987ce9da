//! Sleep and progress: which thread drives an endpoint, and how a thread sleeps until there is work for it.
//!
//! Place in the data flow: `fi_cq_read`, `fi_cq_sread` and the other calls that read or wait → here → the engines of
//! endpoints.
//!
//! # Sleepers of an endpoint
//!
//! Three kinds of threads sleep on the devices of an endpoint ([`parking`]). Threads of the client sleep in blocking
//! calls ([`poll`]), or in system calls of their own after `fi_trywait` ([`trywait`]). With automatic progress the
//! domain's progress thread sleeps as well: it is the endpoint's *listener* ([`progress`]). The rules by which it
//! listens and steps back are pure functions ([`policy`]).
//!
//! ```text
//!              park_listener              wake_listener
//!   ┌────────┐ ────────────► ┌────────┐ ──────────────► ┌───────┐
//!   │ Absent │               │ Parked │                 │ Awake │
//!   └────────┘ ◄──────────── └────────┘ ◄────────────── └───────┘
//!       ▲     remove_listener             park_listener     │
//!       └───────────────────────────────────────────────────┘
//!                          remove_listener
//! ```
//!
//! - *Absent*: the client progresses the endpoint and pays nothing for the progress thread, which only looks after
//!   each tick whether the client is still there.
//! - *Parked*: the devices are armed and wake the progress thread. The client's rounds leave them armed, and notify the
//!   thread when something has arrived for which the devices do not wake it. While the client polls for the end of a
//!   collective between hosts, the thread may be *muted*: the devices do not wake it until the client starts another
//!   operation, or until a tick.
//! - *Awake*: the progress thread makes rounds, or a notification is on its way to it. It parks when the endpoint is
//!   idle.
//!
//! The client's threads are counted beside these states. While the count is not zero the devices are parked, that is,
//! any arrival wakes the sleepers. A poll by another thread ends the parking; that thread parks the devices again, or
//! notifies the sleepers.
//!
//! The flusher is a thread of its own, with states of its own ([`flusher`]).
//!
//! # Verbs
//!
//! To *park* is to prepare a thread's sleep, and to *wake* is to end it. To *arm* is to have an event source wake a
//! sleeper. To *notify* is to send a wake-up to another thread.

pub(crate) mod flusher;
pub(crate) mod lock;
pub(crate) mod parking;
pub(crate) mod policy;
pub(crate) mod poll;
pub(crate) mod pollset;
pub(crate) mod progress;
pub(crate) mod trywait;
pub(crate) mod wait;
pub(crate) mod waitset;

/// The primitives of `trywait`, which the model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use std::time::Instant;

    pub(super) use parking_lot::Mutex;
}
