//! Operations that start when others are complete.
//!
//! Place in the data flow: `gexw_AfterNext` makes a [`Wait`] for events, and the next operation of the thread is left
//! with it ([`Wait::leave`]). A slot that becomes complete tells the waits that know it (`release`). Operations that
//! wait for nothing more are started by the next poll of any thread ([`run`]).
//!
//! ```text
//! arm: slots get a flag ─► leave: act ─► last slot complete: release ─► ready ─► poll: run ─► engine, copy, message
//! ```
//!
//! Operations that a rank performs in the order of their link need no wait for one another: they are started at once
//! ([`Wait::is_in_turn`]).
//!
//! Invariants:
//! - A slot with the flag stays pending for the client until its waits know of its end. A slot is therefore not used
//!   again before that.
//! - A failed event cancels what waits for it: those operations fail without a start.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;

use crate::am::{self, Kind, Message, Patience};
use crate::event::{Slot, State};
use crate::far::{Access, Update};
use crate::invoke::MAX_ARGS;
use crate::job::Job;
use crate::memory::{self, Piece, Way};
use crate::own::Own;
use crate::table::{Location, Place};

/// A message with what it refers to.
pub struct Letter {
    at: Location,
    handler: u8,
    kind: Kind,
    /// `None`: the payload is at its destination.
    payload: Option<Vec<u8>>,
    bytes: usize,
    args: [i32; MAX_ARGS],
    count: usize,
}

impl Letter {
    /// A copy of a message to an endpoint.
    #[must_use]
    pub fn new(at: Location, message: &Message<'_>) -> Self {
        let payload = match message.kind {
            Kind::Short => Vec::new(),
            _ => memory::bytes_at(Piece { addr: message.source, bytes: message.bytes }).to_vec(),
        };
        Self { payload: Some(payload), ..Self::placed(at, message) }
    }

    /// A long message to an endpoint, whose payload will be at its destination.
    #[must_use]
    pub fn placed(at: Location, message: &Message<'_>) -> Self {
        let mut args = [0; MAX_ARGS];
        let count = message.args.len();
        args[..count].copy_from_slice(message.args);
        let Message { handler, kind, bytes, .. } = *message;
        Self { at, handler, kind, payload: None, bytes, args, count }
    }

    /// Sends the message if it can leave now.
    fn send(&self, job: &Job) -> bool {
        let Self { at, handler, kind, bytes, .. } = *self;
        let source = self.payload.as_ref().map_or(0, |payload| payload.as_ptr().expose_provenance());
        let message = Message { handler, kind, source, bytes, args: &self.args[..self.count] };
        match self.payload {
            Some(_) => am::request(job, at, &message, Patience::Immediate),
            None => am::request_placed(job, at, &message),
        }
    }
}

/// An operation that starts later.
pub enum Act {
    /// An access.
    Access {
        /// The access.
        access: Access,
        /// The event of its local completion.
        leaf: Option<&'static Slot>,
        /// A copy of its source, which it has in place of the client's memory.
        copy: Option<Vec<u8>>,
    },
    /// An atomic operation.
    Update(Update),
    /// A message.
    Letter(Box<Letter>),
    /// The end of memory that an access no longer needs.
    Release(Vec<u8>),
}

impl Act {
    /// A put from a copy of its source.
    #[must_use]
    pub fn from_copy(access: &Access, leaf: Option<&'static Slot>) -> Self {
        let copy = memory::bytes_at(Piece { addr: access.local, bytes: access.bytes }).to_vec();
        let local = copy.as_ptr().expose_provenance();
        Self::Access { access: Access { local, ..*access }, leaf, copy: Some(copy) }
    }

    /// Starts the operation if that is possible now. `event` has been told of it.
    fn start(&mut self, job: &Job, event: Option<&'static Slot>) -> bool {
        match (self, event) {
            (Self::Access { access, leaf, copy }, Some(event)) => start_access(job, access, copy, [Some(event), *leaf]),
            (Self::Update(update), Some(event)) => start_update(job, update, event),
            (Self::Letter(letter), event) => {
                let sent = letter.send(job);
                if sent && let Some(event) = event {
                    event.complete();
                }
                sent
            }
            (Self::Release(memory), _) => {
                memory.clear();
                true
            }
            (Self::Access { .. } | Self::Update(_), None) => true,
        }
    }

    /// The number of the own endpoint.
    fn by(&self) -> u16 {
        match self {
            Self::Access { access, .. } => access.at.by(),
            Self::Update(update) => update.at.by(),
            Self::Letter(letter) => letter.at.by(),
            Self::Release(_) => 0,
        }
    }

    fn leaf(&self) -> Option<&'static Slot> {
        if let Self::Access { leaf, .. } = self { *leaf } else { None }
    }
}

fn start_access(job: &Job, access: &Access, copy: &mut Option<Vec<u8>>, ends: [Option<&'static Slot>; 2]) -> bool {
    let [event, leaf] = ends;
    let Access { at, way, local, remote, bytes } = *access;
    if bytes == 0 || job.place(at, Piece { addr: remote, bytes }) != Place::Remote {
        match way {
            _ if bytes == 0 => {}
            Way::Put => job.put(at, remote, Piece { addr: local, bytes }),
            Way::Get => job.get_from(at, Piece { addr: remote, bytes }, local),
        }
        ends.into_iter().flatten().for_each(|slot| slot.complete());
        return true;
    }
    let Some(event) = event else { return true };
    if copy.is_none() || access.is_copied() {
        return job.try_access(access, event, leaf);
    }
    // The copy lives until the engine needs it no more.
    debug_assert!(leaf.is_none(), "the client's memory is free");
    let leaf = Slot::take();
    if !job.try_access(access, event, Some(leaf)) {
        leaf.complete();
        let _ = leaf.test();
        return false;
    }
    Wait::for_own(leaf).leave(job, Act::Release(copy.take().unwrap_or_default()), None);
    true
}

fn start_update(job: &Job, update: &Update, event: &'static Slot) -> bool {
    if job.place(update.at, Piece { addr: update.remote, bytes: update.ty.bytes() }) == Place::Remote {
        return job.try_update(update, event);
    }
    job.update_here(update);
    event.complete();
    true
}

/// An operation and what it still waits for.
struct Waiting {
    /// Events that are not complete.
    left: usize,
    /// One of the events has failed.
    cancelled: bool,
    /// `None`: the client has not made the call yet.
    act: Option<Act>,
    event: Option<&'static Slot>,
    /// An event that the client does not know.
    own: Option<&'static Slot>,
}

impl Waiting {
    /// Starts the operation, or cancels it. False: it cannot start now.
    fn start(&mut self, job: &Job) -> bool {
        let Some(act) = &mut self.act else { return true };
        if self.cancelled {
            [self.event, act.leaf()].into_iter().flatten().for_each(Slot::fail);
        } else if !act.start(job, self.event) {
            return false;
        }
        if let Some(own) = self.own {
            let _ = own.test();
        }
        true
    }
}

#[derive(Default)]
struct Table {
    waiting: HashMap<u64, Waiting>,
    /// The waits that know a slot, by its address.
    by_slot: HashMap<usize, Vec<u64>>,
    ready: VecDeque<Waiting>,
    made: u64,
}

impl Table {
    /// Moves an operation on if it waits for nothing more.
    fn settle(&mut self, number: u64) {
        let is_ready = |waiting: &Waiting| waiting.left == 0 && waiting.act.is_some();
        if self.waiting.get(&number).is_some_and(is_ready)
            && let Some(waiting) = self.waiting.remove(&number)
        {
            self.ready.push_back(waiting);
        }
    }

    fn note(&self) {
        OUTSTANDING.store(self.waiting.len() + self.ready.len(), Ordering::Relaxed);
    }
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);
/// Waits and ready operations.
static OUTSTANDING: AtomicUsize = AtomicUsize::new(0);

fn with_table<R>(work: impl FnOnce(&mut Table) -> R) -> R {
    let mut table = TABLE.lock();
    let table = table.get_or_insert_default();
    let result = work(table);
    table.note();
    result
}

fn addr(slot: &Slot) -> usize {
    std::ptr::from_ref(slot).addr()
}

/// A wait for events.
pub struct Wait {
    number: u64,
    /// The rank that performs all operations waited for in the order of its link.
    turn: Turn,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// No event is waited for yet.
    Any,
    At(u32),
    None,
}

impl Wait {
    /// A wait for nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::with_own(None)
    }

    fn with_own(own: Option<&'static Slot>) -> Self {
        let waiting = Waiting { left: 0, cancelled: false, act: None, event: None, own };
        let number = with_table(|table| {
            table.made += 1;
            table.waiting.insert(table.made, waiting);
            table.made
        });
        Self { number, turn: Turn::Any }
    }

    /// A wait for an event that the client does not know. It is given back when the operation starts.
    #[must_use]
    pub fn for_own(slot: &'static Slot) -> Self {
        let mut wait = Self::with_own(Some(slot));
        wait.add(slot);
        wait
    }

    /// Waits for one more event.
    pub fn add(&mut self, slot: &'static Slot) {
        if slot.state() == State::Free {
            crate::fatal!(
                "an operation was to wait for an event that was found complete before; overwrite such events with GEX_EVENT_INVALID"
            );
        }
        self.turn = match (self.turn, slot.turn()) {
            (Turn::Any, Some(rank)) => Turn::At(rank),
            (Turn::At(known), Some(rank)) if known == rank => Turn::At(rank),
            _ => Turn::None,
        };
        with_table(|table| {
            let Some(waiting) = table.waiting.get_mut(&self.number) else { return };
            if slot.set_awaited() {
                waiting.left += 1;
                table.by_slot.entry(addr(slot)).or_default().push(self.number);
            } else {
                waiting.cancelled |= slot.has_failed();
            }
        });
    }

    /// Whether all events are complete.
    #[must_use]
    pub fn is_over(&self) -> bool {
        with_table(|table| table.waiting.get(&self.number).is_none_or(|waiting| waiting.left == 0))
    }

    /// Whether an event has failed so far.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        with_table(|table| table.waiting.get(&self.number).is_some_and(|waiting| waiting.cancelled))
    }

    /// Whether an operation that a rank performs in the order of its link would follow all that is waited for.
    #[must_use]
    pub fn is_in_turn(&self, rank: u32) -> bool {
        self.turn == Turn::At(rank) && !self.is_cancelled()
    }

    /// Leaves an operation, which starts when all events are complete. `event` has been told of it.
    pub fn leave(self, job: &Job, act: Act, event: Option<&'static Slot>) {
        if job.endpoint_at(act.by()).and_then(|endpoint| endpoint.own()).is_some_and(Own::is_serial) {
            crate::fatal!("an operation of a serial endpoint waits for others; use another endpoint for it");
        }
        with_table(|table| {
            if let Some(waiting) = table.waiting.get_mut(&self.number) {
                waiting.act = Some(act);
                waiting.event = event;
            }
            table.settle(self.number);
        });
        job.note_dependents();
    }

    /// Ends the wait without an operation. Returns whether an event has failed so far.
    #[must_use]
    pub fn end(self) -> bool {
        with_table(|table| table.waiting.remove(&self.number)).is_some_and(|waiting| waiting.cancelled)
    }
}

impl Default for Wait {
    fn default() -> Self {
        Self::new()
    }
}

/// Tells the waits for a slot that it is complete.
#[cold]
pub(crate) fn release(slot: &Slot) {
    with_table(|table| {
        let failed = slot.has_failed();
        for number in table.by_slot.remove(&addr(slot)).unwrap_or_default() {
            if let Some(waiting) = table.waiting.get_mut(&number) {
                waiting.left -= 1;
                waiting.cancelled |= failed;
            }
            table.settle(number);
        }
        slot.clear_awaited();
    });
}

/// Whether there are operations that wait.
pub(crate) fn any() -> bool {
    OUTSTANDING.load(Ordering::Relaxed) > 0
}

/// Starts what waits for nothing more. Returns the number of operations.
pub fn run(job: &Job) -> usize {
    let mut count = 0;
    while let Some(mut waiting) = with_table(|table| table.ready.pop_front()) {
        if !waiting.start(job) {
            with_table(|table| table.ready.push_front(waiting));
            break;
        }
        count += 1;
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pending() -> &'static Slot {
        Slot::take()
    }

    #[test]
    fn a_wait_is_over_when_all_its_events_are_complete() {
        let (one, two) = (pending(), pending());
        let mut wait = Wait::new();
        assert!(wait.is_over());
        wait.add(one);
        wait.add(two);
        one.complete();
        assert!(!wait.is_over() && one.is_complete() && one.test());
        two.complete();
        assert!(wait.is_over() && !wait.is_cancelled() && !wait.end());
        assert!(two.test());
    }

    #[test]
    fn a_failed_event_cancels_before_and_after_the_wait() {
        let (early, late) = (pending(), pending());
        early.fail();
        let mut wait = Wait::new();
        wait.add(early);
        assert!(wait.is_over() && wait.is_cancelled() && wait.end());
        let mut wait = Wait::new();
        wait.add(late);
        assert!(!wait.is_cancelled());
        late.fail();
        assert!(wait.is_over() && wait.end());
    }

    #[test]
    fn only_operations_of_one_rank_keep_their_order() {
        let (one, same, other, none) = (pending(), pending(), pending(), pending());
        one.set_turn(3);
        same.set_turn(3);
        other.set_turn(4);
        let mut wait = Wait::new();
        assert!(!wait.is_in_turn(3), "nothing is waited for");
        wait.add(one);
        wait.add(same);
        assert!(wait.is_in_turn(3) && !wait.is_in_turn(4));
        wait.add(other);
        assert!(!wait.is_in_turn(3) && !wait.is_in_turn(4));
        assert!(!wait.end());
        let mut wait = Wait::new();
        wait.add(none);
        assert!(!wait.is_in_turn(3) && !wait.end());
        // A slot that has forgotten waits still ends.
        [one, same, other, none].iter().for_each(|slot| slot.complete());
        assert!([one, same, other, none].into_iter().all(Slot::test));
        assert!(!pending().has_failed());
    }
}
