//! The cache compared with a plain model, and cases that the model cannot distinguish.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

/// A device with little room, over an address space whose pages have generations. A page that is mapped again
/// has a new generation.
struct Device {
    demands: Demands,
    /// Registered spans, with the generations of their pages at that time.
    registered: BTreeMap<u64, (Span, Vec<u32>)>,
    next: u64,
    generations: Vec<u32>,
    reports: Vec<Span>,
    calls: u64,
}

const SPACE: u64 = 256;
/// Memory that cannot be registered.
const FORBIDDEN: Span = Span { start: 200, len: 8 };
/// Memory that can be registered, but whose unmapping is not reported.
const UNSEEN: Span = Span { start: 100, len: 8 };

/// The spans that are reported when `span` is unmapped.
fn seen(span: &Span) -> Vec<Span> {
    let part = |start: u64, end: u64| Span { start, len: end.saturating_sub(start) };
    let parts = [part(span.start, span.end().min(UNSEEN.start)), part(span.start.max(UNSEEN.end()), span.end())];
    parts.into_iter().filter(|part| part.len > 0).collect()
}

impl Device {
    fn new(demands: Demands) -> Self {
        let generations = vec![0; usize::try_from(SPACE).unwrap()];
        Self { demands, registered: BTreeMap::new(), next: 0, generations, reports: Vec::new(), calls: 0 }
    }

    fn generations(&self, span: &Span) -> Vec<u32> {
        (span.start..span.end())
            .map(|at| self.generations.get(usize::try_from(at).unwrap()).copied().unwrap_or(0))
            .collect()
    }

    fn remap(&mut self, span: Span) {
        for at in span.start..span.end() {
            self.generations[usize::try_from(at).unwrap()] += 1;
        }
        self.reports.extend(seen(&span));
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans = self.registered.values().map(|(span, _)| *span).collect::<Vec<_>>();
        spans.sort_unstable();
        spans
    }
}

impl Registrar for Device {
    fn demands(&self) -> Option<Demands> {
        Some(self.demands)
    }

    fn register(&mut self, span: Span) -> Result<u64, Refused> {
        self.calls += 1;
        assert!((span.start | span.len).is_multiple_of(self.demands.align_bytes) && span.len > 0);
        if span.overlaps(&FORBIDDEN) {
            return Err(Refused::Memory);
        }
        let bytes = self.registered.values().map(|(span, _)| span.len).sum::<u64>();
        // The device has less room than it declares, as if other clients used it, too.
        if self.registered.len() + 1 >= self.demands.regions || bytes + span.len > self.demands.bytes {
            return Err(Refused::Full);
        }
        self.next += 1;
        self.registered.insert(self.next, (span, self.generations(&span)));
        Ok(self.next)
    }

    fn deregister(&mut self, number: u64) {
        assert!(self.registered.remove(&number).is_some(), "deregistered twice");
    }

    fn watch(&mut self, span: Span) -> bool {
        !span.overlaps(&UNSEEN)
    }

    fn unmapped(&mut self) -> Option<Span> {
        self.reports.pop()
    }
}

/// A registration of the model.
#[derive(Clone, Debug)]
struct Plain {
    first: u64,
    last: u64,
    users: u32,
    found: bool,
    watched: bool,
    /// The time of the last use.
    when: u64,
}

impl Plain {
    fn bytes(&self) -> u64 {
        self.last - self.first + 1
    }
}

/// The cache written without regard to speed: a list, inclusive bounds, and all counts computed on demand.
struct Model {
    demands: Demands,
    limits: Limits,
    list: Vec<Option<Plain>>,
    clock: u64,
}

impl Model {
    fn living(&self) -> impl Iterator<Item = (usize, &Plain)> {
        self.list.iter().enumerate().filter_map(|(n, plain)| plain.as_ref().map(|plain| (n, plain)))
    }

    fn keeps(&self) -> bool {
        self.limits.on && self.limits.stale_entries != 0 && self.demands.cost_ns != 0
    }

    fn oldest_stale(&self) -> Option<usize> {
        self.living().filter(|(_, plain)| plain.users == 0).min_by_key(|(_, plain)| plain.when).map(|(n, _)| n)
    }

    fn drop_oldest(&mut self) -> bool {
        self.oldest_stale().is_some_and(|n| {
            self.list[n] = None;
            true
        })
    }

    fn room(&self, len: u64, entries: usize, bytes: u64) -> bool {
        self.living().count() < entries && self.living().map(|(_, plain)| plain.bytes()).sum::<u64>() + len <= bytes
    }

    fn make(&mut self, first: u64, last: u64, found: bool) -> Option<usize> {
        let len = last - first + 1;
        let (entries, bytes) =
            (self.limits.entries.min(self.demands.regions), self.limits.bytes.min(self.demands.bytes));
        while !self.room(len, entries, bytes) {
            if !self.drop_oldest() {
                return None;
            }
        }
        let hits = |span: &Span| first < span.end() && last >= span.start;
        if hits(&FORBIDDEN) {
            return None;
        }
        while !self.room(len, self.demands.regions - 1, self.demands.bytes) {
            if !self.drop_oldest() {
                return None;
            }
        }
        let watched = found && self.keeps() && !hits(&UNSEEN);
        self.list.push(Some(Plain { first, last, users: 1, found, watched, when: 0 }));
        Some(self.list.len() - 1)
    }

    fn acquire(&mut self, want: Span) -> Option<usize> {
        let align = self.demands.align_bytes;
        let first = want.start / align * align;
        let last = (want.start + want.len).div_ceil(align) * align - 1;
        if !self.limits.on {
            return self.make(first, last, false);
        }
        let exact = |plain: &Plain| (plain.first, plain.last) == (first, last);
        let covers = |plain: &Plain| plain.watched && plain.first <= first && last <= plain.last;
        let serves = self.living().find(|(_, plain)| plain.found && (exact(plain) || covers(plain)));
        if let Some(n) = serves.map(|(n, _)| n) {
            self.list[n].as_mut().unwrap().users += 1;
            return Some(n);
        }
        if !self.keeps() {
            let alone = !self.living().any(|(_, plain)| plain.found && plain.first <= last && first <= plain.last);
            return self.make(first, last, alone);
        }
        let near = self
            .living()
            .filter(|(_, plain)| plain.found && plain.first <= last + 1 && first <= plain.last + 1)
            .map(|(n, plain)| (n, plain.clone()))
            .collect::<Vec<_>>();
        let low = near.iter().map(|(_, plain)| plain.first).min().unwrap_or(first).min(first);
        let high = near.iter().map(|(_, plain)| plain.last).max().unwrap_or(last).max(last);
        let (used, unused): (Vec<_>, Vec<_>) = near.into_iter().partition(|(_, plain)| plain.users > 0);
        for (n, _) in unused {
            self.list[n] = None;
        }
        if let Some(n) = self.make(low, high, true) {
            for (old, _) in used {
                self.list[old].as_mut().unwrap().found = false;
            }
            let new = self.list[n].as_mut().unwrap();
            new.found = new.watched || (low, high) == (first, last);
            return Some(n);
        }
        if (low, high) == (first, last) { None } else { self.make(first, last, used.is_empty()) }
    }

    fn release(&mut self, n: usize) {
        self.clock += 1;
        let (clock, keeps) = (self.clock, self.keeps());
        let plain = self.list[n].as_mut().unwrap();
        plain.users -= 1;
        if plain.users > 0 {
            return;
        }
        plain.when = clock;
        if !(plain.found && plain.watched && keeps) {
            self.list[n] = None;
        }
        self.trim();
    }

    fn trim(&mut self) {
        loop {
            let stale = self.living().filter(|(_, plain)| plain.users == 0);
            let (count, bytes) = stale.fold((0, 0), |(count, bytes), (_, plain)| (count + 1, bytes + plain.bytes()));
            let fine = count <= self.limits.stale_entries && bytes <= self.limits.stale_bytes;
            if count == 0 || (fine && self.keeps()) {
                return;
            }
            self.drop_oldest();
        }
    }

    fn limit(&mut self, limits: Limits) {
        self.limits = limits;
        self.trim();
        let (entries, bytes) = (limits.entries.min(self.demands.regions), limits.bytes.min(self.demands.bytes));
        while (self.living().count() > entries || self.living().map(|(_, plain)| plain.bytes()).sum::<u64>() > bytes)
            && self.drop_oldest()
        {}
    }

    fn unmap(&mut self, span: Span) {
        for span in seen(&span) {
            for plain in &mut self.list {
                if let Some(entry) = plain
                    && entry.found
                    && entry.first < span.end()
                    && entry.last >= span.start
                {
                    entry.found = false;
                    if entry.users == 0 {
                        *plain = None;
                    }
                }
            }
        }
    }

    fn spans(&self) -> Vec<Span> {
        let mut spans =
            self.living().map(|(_, plain)| Span { start: plain.first, len: plain.bytes() }).collect::<Vec<_>>();
        spans.sort_unstable();
        spans
    }
}

#[derive(Clone, Debug)]
enum Step {
    Acquire(Span),
    Release(usize),
    Unmap(Span),
    Limit(Limits),
}

fn span(longest: u64) -> impl Strategy<Value = Span> {
    (0..SPACE - longest, 1..=longest).prop_map(|(start, len)| Span { start, len })
}

fn limits() -> impl Strategy<Value = Limits> {
    (prop::bool::weighted(0.9), 1..10usize, 8..120u64, 0..6usize, 0..80u64).prop_map(
        |(on, entries, bytes, stale_entries, stale_bytes)| Limits { on, entries, bytes, stale_entries, stale_bytes },
    )
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => span(24).prop_map(Step::Acquire),
        7 => any::<usize>().prop_map(Step::Release),
        2 => span(12).prop_map(Step::Unmap),
        1 => limits().prop_map(Step::Limit),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 2000, ..ProptestConfig::default() })]

    /// After any sequence of requests, releases, unmappings and limits, the device has the same registrations
    /// as the model. The cache serves the same requests as the model, and always with the memory that is
    /// mapped now.
    #[test]
    fn the_cache_agrees_with_the_plain_model(
        steps in prop::collection::vec(step(), 1..80),
        first in limits(),
        align in prop::sample::select(vec![1u64, 4, 16]),
        cost_ns in prop::sample::select(vec![0u64, 10_000, 10_000, 10_000]),
        regions in 2..12usize,
        bytes in 30..200u64,
    ) {
        let demands = Demands { cost_ns, align_bytes: align, regions, bytes };
        let mut device = Device::new(demands);
        let mut cache = MrCache::new(demands, first);
        let mut model = Model { demands, limits: first, list: Vec::new(), clock: 0 };
        let mut pins: Vec<(Pin, usize, Span)> = Vec::new();
        for step in steps {
            match step {
                Step::Acquire(want) => {
                    let (pin, plain) = (cache.acquire(&mut device, want), model.acquire(want));
                    prop_assert_eq!(pin.is_some(), plain.is_some(), "{:?}", want);
                    if let (Some(pin), Some(plain)) = (pin, plain) {
                        pins.push((pin, plain, want));
                    }
                }
                Step::Release(which) if !pins.is_empty() => {
                    let (pin, plain, _) = pins.swap_remove(which % pins.len());
                    cache.release(pin);
                    model.release(plain);
                }
                Step::Release(_) => {}
                // A client unmaps neither memory in use nor any other memory in the same page.
                Step::Unmap(gone) => {
                    let page = aligned(gone, 16);
                    if !pins.iter().any(|(_, _, used)| aligned(*used, 16).overlaps(&page)) {
                        device.remap(gone);
                        model.unmap(gone);
                    }
                }
                Step::Limit(limits) => {
                    cache.set_limits(limits);
                    model.limit(limits);
                }
            }
            if let Some((pin, _, want)) = pins.last() {
                let entry = &cache.entries[pin.0];
                let (span, generations) = &device.registered[&entry.number];
                prop_assert!(span.contains(want) && *span == entry.span);
                let now = device.generations(want);
                let at = usize::try_from(want.start - span.start).unwrap();
                prop_assert_eq!(&generations[at..at + now.len()], &now[..], "other memory is mapped there now");
            }
            cache.settle(&mut device);
            prop_assert_eq!(device.spans(), model.spans());
            let counts = cache.counts();
            prop_assert_eq!(counts.entries, device.registered.len() as u64);
            prop_assert_eq!(counts.bytes, device.spans().iter().map(|span| span.len).sum::<u64>());
            let stale = model.living().filter(|(_, plain)| plain.users == 0).map(|(_, plain)| plain.bytes());
            prop_assert_eq!((counts.stale, counts.stale_bytes), stale.fold((0, 0), |(n, sum), len| (n + 1, sum + len)));
        }
        for (pin, plain, _) in pins {
            cache.release(pin);
            model.release(plain);
        }
        cache.set_limits(Limits { on: false, ..first });
        cache.settle(&mut device);
        prop_assert!(device.registered.is_empty(), "all memory is deregistered");
    }
}

const ROOMY: Demands = Demands { cost_ns: 10_000, align_bytes: 1, regions: 1000, bytes: u64::MAX };

fn pair() -> (Device, MrCache) {
    (Device::new(ROOMY), MrCache::new(ROOMY, Limits::default()))
}

#[test]
fn a_working_set_is_registered_once() {
    let (mut device, mut cache) = pair();
    for _ in 0..1000 {
        for start in (0..80).step_by(8) {
            let pin = cache.acquire(&mut device, Span { start, len: 4 }).unwrap();
            cache.release(pin);
        }
        cache.settle(&mut device);
    }
    assert_eq!((device.calls, cache.counts().hits), (10, 9990));
}

#[test]
fn bordering_registrations_merge_and_stay_while_used() {
    let (mut device, mut cache) = pair();
    let low = cache.acquire(&mut device, Span { start: 0, len: 8 }).unwrap();
    let high = cache.acquire(&mut device, Span { start: 8, len: 8 }).unwrap();
    assert_eq!(device.spans(), [Span { start: 0, len: 8 }, Span { start: 0, len: 16 }]);
    cache.release(low);
    cache.settle(&mut device);
    assert_eq!(device.spans(), [Span { start: 0, len: 16 }]);
    cache.release(high);
    let again = cache.acquire(&mut device, Span { start: 4, len: 8 }).unwrap();
    assert_eq!((device.calls, cache.counts().hits, cache.counts().coalesced), (2, 1, 1));
    cache.release(again);
}

#[test]
fn refused_memory_does_not_affect_its_neighbours() {
    let (mut device, mut cache) = pair();
    let fine = cache.acquire(&mut device, Span { start: FORBIDDEN.end(), len: 8 }).unwrap();
    assert!(cache.acquire(&mut device, Span { start: FORBIDDEN.start, len: 4 }).is_none());
    assert_eq!((device.spans().len(), cache.counts().refusals), (1, 1));
    cache.release(fine);
}

#[test]
fn the_least_recently_used_goes_first() {
    let (mut device, mut cache) = pair();
    cache.set_limits(Limits { stale_entries: 2, ..Limits::default() });
    for start in [0, 20, 0, 40] {
        let pin = cache.acquire(&mut device, Span { start, len: 4 }).unwrap();
        cache.release(pin);
    }
    cache.settle(&mut device);
    assert_eq!(device.spans(), [Span { start: 0, len: 4 }, Span { start: 40, len: 4 }]);
}
