//! Events in the order of time, and of insertion at equal times.
//!
//! Place in the data flow: [`crate::machine`] pushes and pops. [`Buckets`] is what it uses. [`Heap`] is the plain form,
//! against which tests compare: both give the same order.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};

/// An event at a rank. Its meaning is the machine's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// The time, in picoseconds.
    pub time_ps: u64,
    /// The rank that it concerns.
    pub rank: u32,
    /// The other rank.
    pub from: u32,
    /// The number of the message between the two.
    pub number: u32,
    /// The kind and the iteration.
    pub label: u32,
}

/// A queue of events that pops in the order of (time, insertion).
pub trait Queue {
    /// Adds an event, which must not lie before the one that was popped last.
    fn push(&mut self, event: Event);
    /// Removes the first event.
    fn pop(&mut self) -> Option<Event>;
}

/// An event with its number, in the order of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbered {
    event: Event,
    number: u64,
}

impl Ord for Numbered {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.event.time_ps, self.number).cmp(&(other.event.time_ps, other.number))
    }
}

impl PartialOrd for Numbered {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A binary heap of numbered events.
#[derive(Debug, Default)]
pub struct Heap {
    heap: BinaryHeap<Reverse<Numbered>>,
    pushed: u64,
}

impl Heap {
    fn first_ps(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(first)| first.event.time_ps)
    }
}

impl Queue for Heap {
    fn push(&mut self, event: Event) {
        self.heap.push(Reverse(Numbered { event, number: self.pushed }));
        self.pushed += 1;
    }

    fn pop(&mut self) -> Option<Event> {
        self.heap.pop().map(|Reverse(first)| first.event)
    }
}

/// Buckets of an epoch, which all have the same width.
const BUCKETS: u64 = 4096;

/// Buckets by time. A bucket is sorted when its time comes, by a stable sort, so insertion decides at equal times. Each
/// event is therefore written and read in order of memory, which a heap of millions is not.
#[derive(Debug)]
pub struct Buckets {
    /// The binary logarithm of a bucket's width in picoseconds.
    shift: u32,
    /// The number of the current bucket since time 0.
    number: u64,
    /// The current bucket, sorted, and how many of it have been popped. `None`: its events are still in `near`.
    current: Option<(Vec<Event>, usize)>,
    /// Events that were added to the current bucket while it was current.
    late: Heap,
    /// The buckets of the current epoch.
    near: Vec<Vec<Event>>,
    /// The events of later epochs, in the order of insertion.
    far: BTreeMap<u64, Vec<Event>>,
}

impl Buckets {
    /// An empty queue with buckets of at most `width_ps` picoseconds.
    #[must_use]
    pub fn new(width_ps: u64) -> Self {
        let near = (0..BUCKETS).map(|_| Vec::new()).collect();
        let (late, far) = (Heap::default(), BTreeMap::new());
        Self { shift: width_ps.max(1).ilog2(), number: 0, current: None, late, near, far }
    }

    #[allow(clippy::cast_possible_truncation)] // Below BUCKETS.
    const fn place(number: u64) -> usize {
        (number % BUCKETS) as usize
    }

    /// Makes the next bucket with events the current one.
    fn turn(&mut self) -> bool {
        if self.current.take().is_some() {
            self.number += 1;
        }
        loop {
            let in_epoch = BUCKETS - self.number % BUCKETS;
            // The first bucket of an epoch is reached only by the turn below, which has moved its events here.
            let from = Self::place(self.number);
            if let Some(ahead) = self.near[from..].iter().position(|bucket| !bucket.is_empty())
                && (ahead as u64) < in_epoch
            {
                let mut events = std::mem::take(&mut self.near[from + ahead]);
                events.sort_by_key(|event| event.time_ps);
                self.number += ahead as u64;
                self.current = Some((events, 0));
                return true;
            }
            let Some((epoch, events)) = self.far.pop_first() else { return false };
            self.number = epoch * BUCKETS;
            for event in events {
                self.near[Self::place(event.time_ps >> self.shift)].push(event);
            }
        }
    }
}

impl Queue for Buckets {
    fn push(&mut self, event: Event) {
        let number = event.time_ps >> self.shift;
        debug_assert!(number >= self.number, "an event does not lie in the past");
        if number == self.number && self.current.is_some() {
            self.late.push(event);
        } else if number / BUCKETS == self.number / BUCKETS {
            self.near[Self::place(number)].push(event);
        } else {
            self.far.entry(number / BUCKETS).or_default().push(event);
        }
    }

    fn pop(&mut self) -> Option<Event> {
        loop {
            if let Some((events, popped)) = &mut self.current {
                let first = events.get(*popped);
                let late = self.late.first_ps();
                // At equal times, late events were added later.
                if let Some(&event) = first.filter(|event| late.is_none_or(|late| event.time_ps <= late)) {
                    *popped += 1;
                    return Some(event);
                }
                if late.is_some() {
                    return self.late.pop();
                }
            }
            if !self.turn() {
                return None;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::{Stream, below};

    /// Pushes as a simulation does: each popped event makes up to two later ones, some at the same time.
    fn order(queue: &mut impl Queue, reach_ps: u64) -> Vec<Event> {
        let event = |time_ps, number| Event { time_ps, rank: 0, from: 0, number, label: 0 };
        for n in 0..50 {
            queue.push(event(below(1000, Stream::Skew, 1, 0, n), u32::try_from(n).unwrap_or(0)));
        }
        let (mut popped, mut next) = (Vec::new(), 50);
        while let Some(first) = queue.pop() {
            popped.push(first);
            for _ in 0..2 {
                if next < 5000 {
                    let reach = if next % 3 == 0 { 0 } else { reach_ps };
                    let after = below(reach, Stream::Skew, 2, 0, u64::from(next)) / 7 * 7;
                    queue.push(event(first.time_ps + after, next));
                    next += 1;
                }
            }
        }
        popped
    }

    #[test]
    fn buckets_and_heap_agree() {
        // Within a bucket, over several, and beyond an epoch.
        for reach_ps in [0, 50, 5_000, 100_000_000, 1 << 40] {
            let expected = order(&mut Heap::default(), reach_ps);
            assert_eq!(expected.len(), 5000);
            assert!(expected.is_sorted_by_key(|event| event.time_ps));
            for width_ps in [1, 64, 1 << 16] {
                assert_eq!(order(&mut Buckets::new(width_ps), reach_ps), expected, "{reach_ps} ps, {width_ps} ps");
            }
        }
    }
}
