//! The registration cache: it keeps memory registered with a device beyond its use, since registering is
//! slow.
//!
//! Place in the data flow: before the engine lets a device that demands registration
//! ([`crate::nic::Registrar`]) get or put, it acquires a [`Pin`] on the memory. It releases the pin when the
//! transfer or operation has ended. Without such a device there is no cache.
//!
//! A request is served by a registration that contains it (exact and subsuming match). Otherwise the request
//! is *coalesced* with all registrations that it overlaps or borders on into one larger registration. The
//! replaced registrations are *retired*: requests no longer find them, and they end with their last use. An
//! unused registration is *stale*. It stays (lazy deregistration) until its memory is unmapped; within
//! limits, the least recently used one is evicted first. Memory whose unmapping cannot be observed is
//! deregistered when its last use ends.
//!
//! Invariants:
//! - The registrations that requests find are disjoint, and no two of them border on each other.
//! - A registration in use is never deregistered.
//! - The limits of the device and of the cache are never exceeded; stale registrations are evicted first.
//! - Nothing is iterated in hash order. Only [`MrCache::acquire`] and [`MrCache::settle`] call the device.
//!
//! Source: the cache of the GNI provider (section III.E of its paper), which coalesces overlapping and
//! adjacent registrations.

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::SmallVec;

use crate::broken::{cannot_happen, less};
use crate::nic::{Demands, Refused, Registrar, Span};

/// The limits of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether registrations are shared and kept. Otherwise each request has a registration of its own, which
    /// ends with its use.
    pub on: bool,
    /// Maximum number of registrations, in use or stale.
    pub entries: usize,
    /// Maximum number of registered bytes.
    pub bytes: u64,
    /// Maximum number of stale registrations. With 0 there is no lazy deregistration.
    pub stale_entries: usize,
    /// Maximum number of bytes in stale registrations.
    pub stale_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { on: true, entries: 4096, bytes: u64::MAX, stale_entries: 1024, stale_bytes: u64::MAX }
    }
}

/// The totals and the current state of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that an existing registration served.
    pub hits: u64,
    /// Requests that needed a call of the device.
    pub misses: u64,
    /// Requests that failed because of a limit or of memory that cannot be registered.
    pub refusals: u64,
    /// Registrations that a larger one replaced.
    pub coalesced: u64,
    /// Stale registrations that were evicted because of a limit.
    pub evictions: u64,
    /// Registrations that were retired because some of their memory was unmapped.
    pub unmapped: u64,
    /// Registrations of memory whose unmapping cannot be observed.
    pub unwatched: u64,
    /// Current number of registrations.
    pub entries: u64,
    /// Current number of registered bytes.
    pub bytes: u64,
    /// Current number of stale registrations.
    pub stale: u64,
    /// Current number of bytes in stale registrations.
    pub stale_bytes: u64,
}

/// One use of a registration. It must be passed to [`MrCache::release`].
#[derive(Debug)]
#[must_use]
pub struct Pin(usize);

#[derive(Debug)]
struct Entry {
    span: Span,
    /// The device's number of the registration.
    number: u64,
    uses: u32,
    /// Whether requests find the entry. Otherwise it is retired.
    found: bool,
    watched: bool,
    /// The key in `stale` while the entry is unused.
    stamp: u64,
}

/// The cache of one device.
#[derive(Debug)]
pub struct MrCache {
    demands: Demands,
    limits: Limits,
    entries: Slab<Entry>,
    /// The entries that requests find, by their first byte.
    by_start: BTreeMap<u64, usize>,
    /// The unused entries, least recently used first.
    stale: BTreeMap<u64, usize>,
    next_stamp: u64,
    /// Device numbers that must be deregistered.
    ended: Vec<u64>,
    counts: Counts,
}

impl MrCache {
    /// Makes an empty cache for a device with these demands.
    #[must_use]
    pub fn new(demands: Demands, limits: Limits) -> Self {
        Self {
            demands,
            limits,
            entries: Slab::new(),
            by_start: BTreeMap::new(),
            stale: BTreeMap::new(),
            next_stamp: 0,
            ended: Vec::new(),
            counts: Counts::default(),
        }
    }

    /// Registers all of `want`, which must not be empty, or finds a registration of it. `None`: registration
    /// is impossible, and the bytes must be copied through the device's memory.
    pub fn acquire<R: Registrar + ?Sized>(&mut self, device: &mut R, want: Span) -> Option<Pin> {
        self.settle(device);
        let want = aligned(want, self.demands.align_bytes);
        if self.limits.on
            && let Some(id) = self.find(&want)
        {
            self.counts.hits += 1;
            return Some(self.pin(id));
        }
        self.counts.misses += 1;
        let pin = if self.limits.on { self.coalesce(device, want) } else { self.enter(device, want, false) };
        self.counts.refusals += u64::from(pin.is_none());
        pin
    }

    /// Ends a use of the memory. [`MrCache::settle`] later makes the resulting calls of the device.
    pub fn release(&mut self, pin: Pin) {
        let Some(entry) = self.entries.get_mut(pin.0) else {
            return cannot_happen!("a use of memory is released once");
        };
        entry.uses = less!(entry.uses, 1, "a use of memory is released once");
        if entry.uses > 0 {
            return;
        }
        if !(entry.found && entry.watched && self.keeps()) {
            return self.end(pin.0);
        }
        let Some(entry) = self.entries.get_mut(pin.0) else { return };
        entry.stamp = self.next_stamp;
        self.stale.insert(self.next_stamp, pin.0);
        self.next_stamp += 1;
        self.counts.stale += 1;
        self.counts.stale_bytes += entry.span.len;
        self.shrink();
    }

    /// Retires registrations of memory that the system reports as unmapped, and deregisters ended
    /// registrations. It must be called before the client learns that its memory is free.
    pub fn settle<R: Registrar + ?Sized>(&mut self, device: &mut R) {
        while let Some(span) = device.unmapped() {
            for id in self.touching(&span, Span::overlaps) {
                self.counts.unmapped += 1;
                self.retire(id);
            }
        }
        self.deregister(device);
    }

    fn deregister<R: Registrar + ?Sized>(&mut self, device: &mut R) {
        for number in self.ended.drain(..) {
            device.deregister(number);
        }
    }

    /// Sets new limits. Stale registrations beyond them end at once, and others with their last use.
    pub fn set_limits(&mut self, limits: Limits) {
        self.limits = limits;
        self.shrink();
        while self.over(0) && self.evict() {}
    }

    /// The limits in force.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The counts of the cache.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    // ---- finding -----------------------------------------------------------------------------

    fn find(&self, want: &Span) -> Option<usize> {
        let (_, &id) = self.by_start.range(..=want.start).next_back()?;
        let serves = |entry: &&Entry| if entry.watched { entry.span.contains(want) } else { entry.span == *want };
        self.entries.get(id).filter(serves).map(|_| id)
    }

    /// The entries that requests find and that have this relation to `span`, by address. The entries are
    /// disjoint, so only the nearest entry that begins before `span` can reach it.
    fn touching(&self, span: &Span, related: impl Fn(&Span, &Span) -> bool) -> SmallVec<[usize; 4]> {
        let first = self.by_start.range(..span.start).next_back().map_or(span.start, |(start, _)| *start);
        let near = self.by_start.range(first..=span.end()).map(|(_, &id)| id);
        near.filter(|&id| self.entries.get(id).is_some_and(|entry| related(&entry.span, span))).collect()
    }

    // ---- registering -------------------------------------------------------------------------

    /// Registers `want` together with all entries that it overlaps or borders on, or alone if the union is
    /// too large.
    ///
    /// An unwatched registration covers only the memory that its users want, and serves only requests for
    /// exactly this memory. Any additional memory might be unmapped and mapped again unnoticed.
    fn coalesce<R: Registrar + ?Sized>(&mut self, device: &mut R, want: Span) -> Option<Pin> {
        if !self.keeps() {
            let found = self.touching(&want, Span::overlaps).is_empty();
            let pin = self.enter(device, want, found)?;
            if found {
                self.publish(&pin);
            }
            return Some(pin);
        }
        let mut union = want;
        let mut in_use: SmallVec<[usize; 4]> = SmallVec::new();
        for id in self.touching(&want, borders) {
            let Some(entry) = self.entries.get(id) else { continue };
            let start = union.start.min(entry.span.start);
            union = Span { start, len: union.end().max(entry.span.end()) - start };
            if entry.uses > 0 {
                in_use.push(id);
            } else {
                // A stale entry is replaced at once, which frees its share of the limits for the new
                // registration.
                self.counts.coalesced += 1;
                self.retire(id);
            }
        }
        if let Some(pin) = self.enter(device, union, true) {
            for id in in_use {
                self.counts.coalesced += 1;
                self.retire(id);
            }
            // The entry is published last, after the entries that it replaces have left their places in
            // `by_start`.
            match self.entries.get_mut(pin.0) {
                Some(entry) if !entry.watched && union != want => entry.found = false,
                _ => self.publish(&pin),
            }
            return Some(pin);
        }
        if union == want {
            return None;
        }
        let pin = self.enter(device, want, in_use.is_empty())?;
        if in_use.is_empty() {
            self.publish(&pin);
        }
        Some(pin)
    }

    /// Makes the entry visible to requests.
    fn publish(&mut self, pin: &Pin) {
        if let Some(entry) = self.entries.get(pin.0) {
            self.by_start.insert(entry.span.start, pin.0);
        }
    }

    /// Registers exactly `span`. Stale entries are evicted to make room.
    fn enter<R: Registrar + ?Sized>(&mut self, device: &mut R, span: Span, found: bool) -> Option<Pin> {
        while self.over(span.len) {
            if !self.evict() {
                return None;
            }
        }
        // The watch begins before the registration, so that any later unmapping is reported.
        let watched = found && self.keeps() && device.watch(span);
        let number = loop {
            self.deregister(device);
            match device.register(span) {
                Ok(number) => break number,
                Err(Refused::Memory) => return None,
                Err(Refused::Full) if self.evict() => {}
                Err(Refused::Full) => return None,
            }
        };
        self.counts.unwatched += u64::from(found && self.keeps() && !watched);
        self.counts.entries += 1;
        self.counts.bytes += span.len;
        Some(Pin(self.entries.insert(Entry { span, number, uses: 1, found, watched, stamp: 0 })))
    }

    /// Whether another registration of `len` bytes would exceed the limits. With 0: whether the current ones
    /// do.
    fn over(&self, len: u64) -> bool {
        let entries = self.limits.entries.min(self.demands.regions) as u64;
        let bytes = self.limits.bytes.min(self.demands.bytes);
        let more = u64::from(len > 0);
        self.counts.entries + more > entries || self.counts.bytes.saturating_add(len) > bytes
    }

    /// Whether stale registrations are kept at all.
    fn keeps(&self) -> bool {
        self.limits.on && self.limits.stale_entries > 0 && self.demands.cost_ns > 0
    }

    // ---- ending ------------------------------------------------------------------------------

    fn pin(&mut self, id: usize) -> Pin {
        if let Some(entry) = self.entries.get_mut(id) {
            if entry.uses == 0 {
                self.stale.remove(&entry.stamp);
                self.counts.stale -= 1;
                self.counts.stale_bytes -= entry.span.len;
            }
            entry.uses += 1;
        }
        Pin(id)
    }

    /// Evicts stale registrations until the limits for them are met.
    fn shrink(&mut self) {
        let (entries, bytes) =
            if self.keeps() { (self.limits.stale_entries as u64, self.limits.stale_bytes) } else { (0, 0) };
        while (self.counts.stale > entries || self.counts.stale_bytes > bytes) && self.evict() {}
    }

    /// Evicts the least recently used stale registration. Returns false if there is none.
    fn evict(&mut self) -> bool {
        let Some((_, &id)) = self.stale.first_key_value() else { return false };
        self.counts.evictions += 1;
        self.retire(id);
        true
    }

    /// Hides the entry from requests. It ends with its last use.
    fn retire(&mut self, id: usize) {
        let Some(entry) = self.entries.get_mut(id) else { return cannot_happen!("a stale entry is in the table") };
        entry.found = false;
        self.by_start.remove(&entry.span.start);
        if entry.uses == 0 {
            self.stale.remove(&entry.stamp);
            self.counts.stale -= 1;
            self.counts.stale_bytes -= entry.span.len;
            self.end(id);
        }
    }

    /// Removes an entry that is neither in use nor stale.
    fn end(&mut self, id: usize) {
        let Some(entry) = self.entries.try_remove(id) else { return cannot_happen!("an entry ends once") };
        if entry.found {
            self.by_start.remove(&entry.span.start);
        }
        self.counts.entries -= 1;
        self.counts.bytes -= entry.span.len;
        self.ended.push(entry.number);
    }
}

/// Whether the spans overlap, or one begins at the end of the other.
fn borders(a: &Span, b: &Span) -> bool {
    a.start <= b.end() && b.start <= a.end()
}

/// The smallest span that contains `span` and begins and ends at multiples of `align`.
fn aligned(span: Span, align: u64) -> Span {
    let mask = align.max(1) - 1;
    let start = span.start & !mask;
    let end = span.end().checked_add(mask).map_or(!mask, |end| end & !mask);
    Span { start, len: end - start }
}

#[cfg(test)]
mod tests;
