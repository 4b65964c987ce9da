//! Accessible memory of regions: a cache that keeps a peer's access from ending the process with a signal.
//!
//! Place in the data flow: [`crate::engine::rma`] asks at each remote access, after it has checked key, right
//! and range. The layer below is asked ([`Probe`]) only for memory that is not in the cache. A frequent access
//! compares two addresses.
//!
//! A region may name memory that is not mapped, or is mapped without the right, or becomes so later. Examples
//! are windows over the whole address space, reserved ranges that become accessible piece by piece, and
//! constants. Memory is therefore not probed when a region is registered, and a refused access is probed again
//! the next time. Memory that was once accessible counts as accessible until the region is closed.

use crate::api::Probe;
use crate::nic::Span;

/// Number of spans that are remembered.
const SPANS: usize = 4;
/// Number of probes after which a long span is requested, and again after each doubling.
const PATIENCE: u32 = 8;

/// An accessible span.
#[derive(Clone, Copy, Default)]
struct Found {
    span: Span,
    writable: bool,
}

impl Found {
    #[inline(always)]
    fn covers(&self, memory: Span, write: bool) -> bool {
        // For memory that begins before the span, the offset wraps around and exceeds the length.
        let offset = memory.start.wrapping_sub(self.span.start);
        memory.len <= self.span.len && offset <= self.span.len - memory.len && self.writable >= write
    }
}

/// Accessible spans of one region's memory. The last one used is the first.
#[derive(Default)]
pub(crate) struct AccessibleSpans {
    found: [Found; SPANS],
    questions: u32,
}

impl AccessibleSpans {
    /// Whether a peer's access to this memory can be executed.
    #[inline(always)]
    pub(crate) fn covers(&mut self, probe: Probe, memory: Span, write: bool) -> bool {
        self.found[0].covers(memory, write) || self.look(probe, memory, write)
    }

    #[cold]
    fn look(&mut self, probe: Probe, memory: Span, write: bool) -> bool {
        if let Some(at) = self.found.iter().position(|found| found.covers(memory, write)) {
            self.found.swap(0, at);
            return true;
        }
        self.questions = self.questions.saturating_add(1);
        let far = self.questions >= PATIENCE && self.questions.is_power_of_two();
        let Some(span) = probe(memory, write, far) else { return false };
        self.remember(Found { span, writable: write });
        true
    }

    /// Joins a span to one that it borders on; otherwise replaces the shortest one.
    fn remember(&mut self, new: Found) {
        let joins = |old: &Found| {
            old.writable == new.writable && old.span.start <= new.span.end() && new.span.start <= old.span.end()
        };
        let shortest = (0..SPANS).min_by_key(|&at| self.found[at].span.len).unwrap_or(0);
        let at = self.found.iter().position(|old| old.span.len > 0 && joins(old));
        let place = &mut self.found[at.unwrap_or(shortest)];
        if at.is_some() {
            let start = place.span.start.min(new.span.start);
            place.span = Span { start, len: place.span.end().max(new.span.end()) - start };
        } else {
            *place = new;
        }
        self.found.swap(0, at.unwrap_or(shortest));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    const fn memory(start: u64, len: u64) -> Span {
        Span { start, len }
    }

    thread_local! {
        static ASKED: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }

    /// Pages 16 to 1039 are readable; those from 512 on are writable, too.
    fn probe(memory: Span, write: bool, far: bool) -> Option<Span> {
        ASKED.set(ASKED.get() + 1);
        let all = Span { start: if write { 512 } else { 16 } * PAGE, len: if write { 528 } else { 1024 } * PAGE };
        let first = memory.start / PAGE * PAGE;
        let pages = Span { start: first, len: memory.end().next_multiple_of(PAGE) - first };
        all.contains(&pages).then_some(if far { all } else { pages })
    }

    #[test]
    fn memory_is_probed_once() {
        let mut accessible = AccessibleSpans::default();
        ASKED.set(0);
        for page in 512..515 {
            for _ in 0..3 {
                assert!(accessible.covers(probe, memory(page * PAGE + 8, 64), true));
            }
        }
        assert_eq!(ASKED.get(), 3);
        assert!(accessible.covers(probe, memory(512 * PAGE, 3 * PAGE), false), "writable memory is readable");
        assert_eq!(ASKED.get(), 3);
    }

    /// Scattered accesses to a large window soon need no more probes.
    #[test]
    fn scattered_accesses_soon_need_no_probe() {
        let mut accessible = AccessibleSpans::default();
        ASKED.set(0);
        for n in 0..500 {
            assert!(accessible.covers(probe, memory((16 + n * 37 % 1024) * PAGE, 8), false));
        }
        assert_eq!(ASKED.get(), PATIENCE);
    }

    #[test]
    fn a_refused_access_is_probed_again() {
        let mut accessible = AccessibleSpans::default();
        ASKED.set(0);
        for _ in 0..2 {
            assert!(!accessible.covers(probe, memory(100 * PAGE, 8), true), "read-only");
            assert!(accessible.covers(probe, memory(100 * PAGE, 8), false));
            assert!(!accessible.covers(probe, memory(1039 * PAGE, 8192), false), "the second page is not there");
        }
        assert_eq!(ASKED.get(), 5);
    }
}
