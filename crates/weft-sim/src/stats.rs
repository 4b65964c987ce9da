//! Counters of a fabric: messages, transfers, links and the faults that struck.
//!
//! Place in the data flow: the fabric and its devices count; runs and tests read them through
//! [`Fabric::stats`](crate::Fabric::stats).

/// The counters of a fabric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Messages delivered.
    pub messages: u64,
    /// Messages that overtook an earlier one on their way to the inbox.
    pub overtakes: u64,
    /// Messages delivered twice.
    pub doubles: u64,
    /// Messages that arrived as garbage.
    pub garbled: u64,
    /// Garbled messages that were only cut.
    pub cut: u64,
    /// Frames of chains that were sent, and connections of chains that were cut.
    pub frames: u64,
    /// See `frames`.
    pub frame_cuts: u64,
    /// Packets beneath the devices that were sent again.
    pub resends: u64,
    /// Messages and connection attempts that were delayed.
    pub stalls: u64,
    /// Messages that waited for `flush`, pieces of pushes stored in several steps, and polls that delivered
    /// nothing although something had arrived.
    pub partial: u64,
    /// Connection attempts that failed although the peer was there.
    pub refusals: u64,
    /// Links that broke, including half-open ones.
    pub resets: u64,
    /// Broken links whose two sides learned of the end at different times.
    pub half_open: u64,
    /// Endpoints that died.
    pub deaths: u64,
    /// Endpoints that exited in order.
    pub departures: u64,
    /// Endpoints that took the place of another.
    pub restarts: u64,
    /// Turns that a slow or paused rank skipped.
    pub pauses: u64,
    /// Pieces of pushes delivered.
    pub segments: u64,
    /// Pushes that ended without error.
    pub pushes: u64,
    /// Gets that ended without error.
    pub gets: u64,
    /// Puts that ended without error.
    pub puts: u64,
    /// Assists that ended.
    pub assists: u64,
    /// `Full` answers of devices.
    pub full: u64,
    /// Registrations.
    pub registrations: u64,
    /// Registrations that were refused.
    pub unregistrable: u64,
    /// Copies by processors beside a card.
    pub copies: u64,
    /// DMAs by cards.
    pub dmas: u64,
    /// Registrations of a peer's memory with a card.
    pub reached: u64,
    /// Links that came up; each end counts.
    pub ups: u64,
    /// Links that ended with `down`.
    pub downs: u64,
    /// Time that passed without events, in steps of more than a millisecond.
    pub idle_ns: u64,
}
