//! The registration cache: keeps memory registered with a device beyond its use, because registering is slow.
//!
//! Place in the data flow: the engine, before it lets a device that demands registration get or put
//! ([`crate::nic::Registrar`]), acquires a [`Pin`] on the memory and releases it when the transfer or
//! operation has ended. Without such a device there is no cache.
//!
//! A request is served by a registration that contains it (exact and subsuming match). Otherwise what it
//! overlaps or borders on is *coalesced* with it into one larger registration; those that this replaces are
//! *retired*: nobody finds them any more, and they end when the last who uses them lets go. A registration
//! that nobody uses is *stale*: it stays (lazy deregistration), within limits, the least recently used being
//! given up first, until its memory is unmapped. Memory whose unmapping cannot be observed is deregistered as
//! soon as nobody uses it.
//!
//! Invariants: the registrations that requests find are disjoint and do not even border on each other; none
//! that is in use is deregistered; neither the device's limits nor ours are passed, stale registrations
//! giving way first. Nothing is iterated in hash order, and the device is called by [`MrCache::acquire`] and
//! [`MrCache::settle`] only.
//!
//! Source: the GNI provider's cache (III.E of its paper), which coalesced in the paper what overlaps or borders.

use std::collections::BTreeMap;

use slab::Slab;
use smallvec::SmallVec;

use crate::nic::{Demands, Refused, Registrar, Span};

/// What the cache may keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Whether registrations are shared and kept at all. Off: every request has its own, while it is used.
    pub on: bool,
    /// Most registrations, used or not.
    pub entries: usize,
    /// Most registered bytes.
    pub bytes: u64,
    /// Most registrations that nobody uses; 0: no lazy deregistration.
    pub stale_entries: usize,
    /// Most bytes in registrations that nobody uses.
    pub stale_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { on: true, entries: 4096, bytes: u64::MAX, stale_entries: 1024, stale_bytes: u64::MAX }
    }
}

/// What has happened, and what there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that a registration served.
    pub hits: u64,
    /// Requests for which the device had to be asked.
    pub misses: u64,
    /// Requests that could not be served: limits, or memory that cannot be registered.
    pub refusals: u64,
    /// Registrations that a larger one replaced.
    pub coalesced: u64,
    /// Stale registrations given up for a limit.
    pub evictions: u64,
    /// Registrations given up because some of their memory was unmapped.
    pub unmapped: u64,
    /// Registrations of memory whose unmapping cannot be observed.
    pub unwatched: u64,
    /// Registrations now.
    pub entries: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that nobody uses.
    pub stale: u64,
    /// Their bytes.
    pub stale_bytes: u64,
}

/// The use of a registration, to be given to [`MrCache::release`].
#[derive(Debug)]
#[must_use]
pub struct Pin(usize);

#[derive(Debug)]
struct Entry {
    span: Span,
    /// The device's.
    number: u64,
    uses: u32,
    /// Requests find it. Otherwise it is retired.
    found: bool,
    watched: bool,
    /// Its key in `stale` while nobody uses it.
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
    /// Those that nobody uses, least recently used first.
    stale: BTreeMap<u64, usize>,
    next_stamp: u64,
    /// Numbers to deregister.
    ended: Vec<u64>,
    counts: Counts,
}

impl MrCache {
    /// An empty cache for a device with these demands.
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

    /// Has all of `want`, which is not empty, registered. `None`: it cannot be, and the bytes must go through
    /// memory of the device.
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

    /// The memory is not used any more. The device hears of what follows in [`MrCache::settle`].
    pub fn release(&mut self, pin: Pin) {
        let Some(entry) = self.entries.get_mut(pin.0) else { return };
        entry.uses = entry.uses.saturating_sub(1);
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

    /// Takes what the system reports, and has the device deregister what has ended. To be called before the
    /// client hears that its memory is free.
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

    /// New limits; what is beyond them ends as soon as nobody uses it.
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

    /// What has happened.
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

    /// The entries that requests find and that stand in this relation to `span`, by address. No entry further
    /// down than the first one before `span` can reach it, because they are disjoint.
    fn touching(&self, span: &Span, related: impl Fn(&Span, &Span) -> bool) -> SmallVec<[usize; 4]> {
        let first = self.by_start.range(..span.start).next_back().map_or(span.start, |(start, _)| *start);
        let near = self.by_start.range(first..=span.end()).map(|(_, &id)| id);
        near.filter(|&id| self.entries.get(id).is_some_and(|entry| related(&entry.span, span))).collect()
    }

    // ---- registering -------------------------------------------------------------------------

    /// Registers `want` together with all that it overlaps or borders on; if that is too much, alone.
    ///
    /// What is not watched is never more than its users want, and serves requests for just that: whatever
    /// else it covered might be unmapped meanwhile, and other memory be there, unnoticed.
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
                // It is replaced, and gives its place to what replaces it.
                self.counts.coalesced += 1;
                self.retire(id);
            }
        }
        if let Some(pin) = self.enter(device, union, true) {
            for id in in_use {
                self.counts.coalesced += 1;
                self.retire(id);
            }
            // Only now, so that the place of the new one was not yet taken.
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

    /// Lets requests find the entry.
    fn publish(&mut self, pin: &Pin) {
        if let Some(entry) = self.entries.get(pin.0) {
            self.by_start.insert(entry.span.start, pin.0);
        }
    }

    /// Registers exactly `span`, for which stale entries give way.
    fn enter<R: Registrar + ?Sized>(&mut self, device: &mut R, span: Span, found: bool) -> Option<Pin> {
        while self.over(span.len) {
            if !self.evict() {
                return None;
            }
        }
        // Watched first: what is unmapped from now on is reported.
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

    /// Whether one more registration of `len` bytes is too much; with 0 whether there are too many as it is.
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

    /// Gives stale registrations up until they are within their limits.
    fn shrink(&mut self) {
        let (entries, bytes) =
            if self.keeps() { (self.limits.stale_entries as u64, self.limits.stale_bytes) } else { (0, 0) };
        while (self.counts.stale > entries || self.counts.stale_bytes > bytes) && self.evict() {}
    }

    /// Gives the stale registration up that was used least recently; false if there is none.
    fn evict(&mut self) -> bool {
        let Some((_, &id)) = self.stale.first_key_value() else { return false };
        self.counts.evictions += 1;
        self.retire(id);
        true
    }

    /// Requests do not find the entry any more; it ends when nobody uses it.
    fn retire(&mut self, id: usize) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        entry.found = false;
        self.by_start.remove(&entry.span.start);
        if entry.uses == 0 {
            self.stale.remove(&entry.stamp);
            self.counts.stale -= 1;
            self.counts.stale_bytes -= entry.span.len;
            self.end(id);
        }
    }

    /// Nobody uses the entry, and it is not stale.
    fn end(&mut self, id: usize) {
        let Some(entry) = self.entries.try_remove(id) else { return };
        if entry.found {
            self.by_start.remove(&entry.span.start);
        }
        self.counts.entries -= 1;
        self.counts.bytes -= entry.span.len;
        self.ended.push(entry.number);
    }
}

/// Whether the two overlap or one begins where the other ends.
fn borders(a: &Span, b: &Span) -> bool {
    a.start <= b.end() && b.start <= a.end()
}

/// The smallest span of multiples of `align` that contains `span`.
fn aligned(span: Span, align: u64) -> Span {
    let mask = align.max(1) - 1;
    let start = span.start & !mask;
    let end = span.end().checked_add(mask).map_or(!mask, |end| end & !mask);
    Span { start, len: end - start }
}

#[cfg(test)]
mod tests;
