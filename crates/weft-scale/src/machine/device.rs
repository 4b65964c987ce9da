//! The network cards of all hosts: when a message has passed them.
//!
//! Place in the data flow: [`super::Machine`] calls at the time at which a message reaches a card. A card that ranks
//! share, or that has work of its own for each message, is called in the order of time.

use super::Options;
use crate::profile::{Costs, Path};
use crate::random::{Stream, below};

/// The cards of all hosts. Each list has one entry for each card, the time from which on that part is free.
#[derive(Debug)]
pub(super) struct Devices {
    ranks_per_host: u32,
    seed: u64,
    service: u64,
    fetch: u64,
    /// Contexts that the card holds, and those in use.
    contexts: (u64, u64),
    fetches_entries: bool,
    /// The part that handles one message after the other.
    engine: Vec<u64>,
    /// The wire outwards.
    sent: Vec<u64>,
    /// The wire inwards.
    received: Vec<u64>,
    /// The channels of the bulk engine, `channels` for each card.
    bulk: Vec<u64>,
    channels: usize,
    atomics: Vec<u64>,
}

impl Devices {
    pub(super) fn new(costs: &Costs, options: &Options, ranks: u32) -> Self {
        let hosts = ranks.div_ceil(costs.ranks_per_host) as usize;
        let channels = if costs.far.bulk_from.is_some() { costs.far.bulk_channels.max(1) as usize } else { 0 };
        let used = if costs.card.service > 0 { hosts } else { 0 };
        Self {
            ranks_per_host: costs.ranks_per_host,
            seed: options.seed,
            service: costs.card.service,
            fetch: costs.card.fetch,
            contexts: (costs.card.contexts.unwrap_or(u64::MAX), options.contexts),
            fetches_entries: options.fetches_entries,
            engine: vec![0; used],
            sent: vec![0; hosts],
            received: vec![0; hosts],
            bulk: vec![0; hosts * channels],
            channels,
            atomics: vec![0; hosts],
        }
    }

    /// Whether cards must be called in the order of time.
    pub(super) const fn are_shared(&self) -> bool {
        self.ranks_per_host > 1 || self.service > 0
    }

    /// Whether a message passes the cards without using them.
    pub(super) const fn are_passed(&self, path: &Path, bytes: u64) -> bool {
        self.service == 0 && path.gap == 0 && bytes == 0
    }

    const fn card(&self, rank: u32) -> usize {
        (rank / self.ranks_per_host) as usize
    }

    /// The time from which on a message travels that reaches the card at `ready`.
    pub(super) fn send(&mut self, rank: u32, ready: u64, path: &Path, bytes: u64, draw: u32) -> u64 {
        if self.are_passed(path, bytes) {
            return ready;
        }
        let card = self.card(rank);
        let mut at = ready;
        if path.is_bulk(bytes) {
            let channels = &mut self.bulk[card * self.channels..][..self.channels];
            if let Some(channel) = channels.iter_mut().min() {
                at = at.max(*channel) + path.bulk_setup;
                *channel = at + path.byte * bytes;
            }
        }
        at = self.handle(at, rank, u64::from(draw) * 2, false);
        let start = at.max(self.sent[card]);
        self.sent[card] = start + path.gap.max(path.byte * bytes);
        start
    }

    /// The time at which a message, whose last byte is at the card now, has passed it.
    pub(super) fn receive(&mut self, rank: u32, now: u64, path: &Path, bytes: u64, draw: u32) -> u64 {
        let card = self.card(rank);
        let duration = path.byte * bytes;
        let start = now.saturating_sub(duration).max(self.received[card]);
        self.received[card] = start + path.gap.max(duration);
        self.handle(start + duration, rank, u64::from(draw) * 2 + 1, self.fetches_entries)
    }

    /// The end of an atomic operation.
    pub(super) fn atomic(&mut self, now: u64, rank: u32, lasts: u64) -> u64 {
        let card = self.card(rank);
        let unit = &mut self.atomics[card];
        *unit = now.max(*unit) + lasts;
        *unit
    }

    /// The time at which the data sent so far have left.
    pub(super) fn drained(&self, rank: u32) -> u64 {
        self.sent[self.card(rank)]
    }

    /// The card handles a message: its own work, and what it must fetch from the memory of the host.
    fn handle(&mut self, ready: u64, rank: u32, draw: u64, entry: bool) -> u64 {
        if self.service == 0 {
            return ready;
        }
        let (held, used) = self.contexts;
        let misses = used > held && below(used, Stream::Miss, self.seed, rank, draw) >= held;
        let fetches = u64::from(misses) + u64::from(entry);
        let card = self.card(rank);
        let engine = &mut self.engine[card];
        *engine = ready.max(*engine) + self.service + fetches * self.fetch;
        *engine
    }
}
