//! The heap of future events, ordered by (time, sequence number).
//!
//! Invariant: no two events are equal in order. Their order of execution depends only on their times and on
//! the order in which they were scheduled.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use weft_engine::board::Board;
use weft_engine::mapped::PeerRegion;
use weft_engine::nic::LinkError;

use crate::card::Question;
use crate::wire::EndId;

/// A scheduled event. `to` is the end at which it happens.
#[derive(Debug)]
pub(crate) enum Event {
    /// A connection request reaches the acceptor.
    ConnectRequest { wire: usize },
    /// An end comes up.
    Up { to: EndId },
    /// A message arrives.
    Message { to: EndId, bytes: Vec<u8> },
    /// A message is in the mailbox of a card.
    Mailbox { to: EndId, bytes: Vec<u8> },
    /// A card asks for the place of a piece of a push.
    Question { to: EndId, question: Question },
    /// A piece of a push takes its next step over cards.
    Piece { piece: u64 },
    /// A piece of a push arrives.
    Segment { to: EndId, window: u64, offset: u64, bytes: Vec<u8> },
    /// A confirmation of executed messages arrives.
    Confirm { to: EndId, number: u32 },
    /// A board arrives, or a report that there is none.
    Board { to: EndId, key: u64, board: Option<Board> },
    /// A region arrives, or a report that it cannot be mapped.
    Region { to: EndId, key: u64, region: Option<PeerRegion> },
    /// A word of a board has changed.
    WakeUp { to: EndId },
    /// A frame of a chain arrives, or a connection of a chain changes.
    Chain { ep: usize },
    /// A link ends.
    Down { to: EndId, why: LinkError },
    /// A transfer moves its next segment.
    Step { transfer: u64 },
    /// A segment of a get or put reaches its destination memory.
    Land { transfer: u64, offset: usize, bytes: Vec<u8> },
    /// The initiator learns that a transfer has ended.
    Finish { transfer: u64, result: Result<(), LinkError> },
    /// No effect: time passes (a deadline that a test set).
    Tick,
}

/// The bits of an event's index in an entry of the heap: 16 Mi future events. 40 bits remain for the sequence number.
const INDEX_BITS: u32 = 24;

/// The time, and the sequence number with the index of the event below it. The heap moves entries, so they are small.
type Entry = (u64, u64);

/// The future events.
#[derive(Debug, Default)]
pub(crate) struct Agenda {
    heap: BinaryHeap<Reverse<Entry>>,
    events: Vec<Event>,
    free: Vec<usize>,
    sequence: u64,
}

impl Agenda {
    pub(crate) fn schedule(&mut self, time_ns: u64, event: Event) {
        self.sequence += 1;
        let index = match self.free.pop() {
            Some(index) => {
                self.events[index] = event;
                index
            }
            None => {
                self.events.push(event);
                self.events.len() - 1
            }
        };
        // With more events than that, the order would be wrong, so the run ends.
        assert!(index < 1 << INDEX_BITS && self.sequence < 1 << (u64::BITS - INDEX_BITS), "too many events");
        self.heap.push(Reverse((time_ns, self.sequence << INDEX_BITS | index as u64)));
    }

    /// When the next event happens.
    pub(crate) fn next_ns(&self) -> Option<u64> {
        self.heap.peek().map(|Reverse((time_ns, _))| *time_ns)
    }

    /// Takes the next event if it is due.
    pub(crate) fn due(&mut self, now_ns: u64) -> Option<Event> {
        if self.next_ns()? > now_ns {
            return None;
        }
        let Reverse((_, key)) = self.heap.pop()?;
        let index = (key & ((1 << INDEX_BITS) - 1)) as usize;
        self.free.push(index);
        Some(std::mem::replace(&mut self.events[index], Event::Tick))
    }
}
