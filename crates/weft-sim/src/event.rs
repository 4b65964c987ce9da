//! The heap of future events, ordered by (time, sequence number).
//!
//! Invariant: two events are never equal in order, so the order in which they happen depends on nothing
//! but their times and the order in which they were scheduled.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use weft_engine::nic::LinkError;

use crate::wire::EndId;

/// What will happen. `to` is the end at which it happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection request reaches the acceptor.
    Knock { wire: usize },
    /// An end comes up.
    Up { to: EndId },
    /// A message arrives.
    Message { to: EndId, bytes: Vec<u8> },
    /// A piece of a push arrives.
    Segment { to: EndId, window: u64, offset: u64, bytes: Vec<u8> },
    /// A link ends.
    Down { to: EndId, why: LinkError },
    /// A transfer moves its next segment.
    Step { transfer: u64 },
    /// A segment of a get or put reaches the memory it is for.
    Land { transfer: u64, offset: usize, bytes: Vec<u8> },
    /// A transfer's end becomes known to its initiator.
    Finish { transfer: u64, result: Result<(), LinkError> },
    /// Nothing: time passes (a deadline that a test set).
    Tick,
}

#[derive(Debug)]
struct Entry {
    time_ns: u64,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time_ns, self.sequence).cmp(&(other.time_ns, other.sequence))
    }
}

/// The future.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
}

impl Agenda {
    pub(crate) fn schedule(&mut self, time_ns: u64, event: Event) {
        self.sequence += 1;
        self.heap.push(Reverse(Entry { time_ns, sequence: self.sequence, event }));
    }

    /// When the next event happens.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse(entry)| entry.time_ns)
    }

    /// Takes the next event if it is due.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<Event> {
        if self.next_ns()? > now_ns {
            return None;
        }
        self.heap.pop().map(|Reverse(entry)| entry.event)
    }
}
