//! Counters of a fabric: messages, transfers, links and the faults that struck.
//!
//! Place in the data flow: the fabric and its devices count; runs and tests read them through
//! [`Fabric::stats`](crate::Fabric::stats).

/// What has gone through a fabric so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages handed over.
    pub messages: u64,
    /// Messages that overtook an earlier one on the way to the inbox.
    pub overtakes: u64,
    /// Messages that came a second time.
    pub doubles: u64,
    /// Messages that were nonsense when they arrived.
    pub garbled: u64,
    /// Those of them that were only cut.
    pub cut: u64,
    /// Packets beneath the devices that were sent again.
    pub resends: u64,
    /// Messages and connection attempts that took long.
    pub stalls: u64,
    /// Messages that waited for `flush`, pieces of pushes that were stored in several steps, and polls that
    /// brought nothing though something had come.
    pub partial: u64,
    /// Connection attempts that failed though there was somebody.
    pub refusals: u64,
    /// Links that broke; see `half_open`.
    pub resets: u64,
    /// Of these, links of whose end one side learned later.
    pub half_open: u64,
    /// Endpoints that died, that left in order, and that took the place of another.
    pub deaths: u64,
    /// See `deaths`.
    pub departures: u64,
    /// See `deaths`.
    pub restarts: u64,
    /// Turns in which a rank that is slow or stands still took no part.
    pub pauses: u64,
    /// Pieces of pushes handed over.
    pub segments: u64,
    /// Transfers finished without error.
    pub pushes: u64,
    /// Transfers finished without error.
    pub gets: u64,
    /// Transfers finished without error.
    pub puts: u64,
    /// Helps that have ended.
    pub assists: u64,
    /// Times that a device answered `Full`.
    pub full: u64,
    /// Times that memory was registered.
    pub registrations: u64,
    /// Times that it could not be.
    pub unregistrable: u64,
    /// Links that came up (each end counts).
    pub ups: u64,
    /// Links that ended with `down`.
    pub downs: u64,
    /// Time that passed in steps of more than a millisecond in which nothing happened.
    pub idle_ns: u64,
}
