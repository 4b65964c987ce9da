//! `gexw_AfterNext`, `gexw_Event_…`: operations that start when others are complete, and how operations ended.
//!
//! Place in the data flow: a thread arms its next operation by a wait for events. The calls that start operations take
//! the wait ([`take`]), and leave their operation with it (`weft_gex::after`). Blocking and vector accesses wait
//! themselves ([`pass`]).
//!
//! Inline accesses of the headers know no waits. They call the functions while a thread of the process is armed.

use std::cell::RefCell;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use weft_gex::after::{Act, Letter, Wait};
use weft_gex::am::Message;
use weft_gex::event::{Category, Slot};
use weft_gex::far::{Access, Update};
use weft_gex::memory::Way;
use weft_gex::table::Location;
use weft_gex::wait;

use crate::client::set_inline;
use crate::event::{self, Event, LcKind, counter};
use crate::handles::{ERR_NOT_READY, ERR_RESOURCE, OK, export, job, list};

/// Armed threads.
static ARMED: Mutex<u32> = Mutex::new(0);
/// Their number, for a quick look.
static QUICK: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// The wait of the thread's next operation.
    static NEXT: RefCell<Option<Wait>> = const { RefCell::new(None) };
}

/// Counts the threads that are armed.
fn note(change: impl FnOnce(u32) -> u32) {
    let mut armed = ARMED.lock();
    *armed = change(*armed);
    QUICK.store(*armed, Ordering::Relaxed);
    set_inline(*armed == 0);
}

/// Takes the wait of the thread's next operation, if it has one that is not over.
#[inline(always)]
pub(crate) fn take() -> Option<Wait> {
    if QUICK.load(Ordering::Relaxed) == 0 { None } else { take_next() }
}

#[cold]
fn take_next() -> Option<Wait> {
    let wait = NEXT.take()?;
    note(|armed| armed - 1);
    unless_over(wait)
}

fn unless_over(wait: Wait) -> Option<Wait> {
    if wait.is_over() && !wait.is_cancelled() {
        let _ = wait.end();
        return None;
    }
    Some(wait)
}

/// Waits until the thread's next operation may start. False: it is cancelled.
#[inline(always)]
pub(crate) fn pass() -> bool {
    take().is_none_or(pass_now)
}

#[cold]
pub(crate) fn pass_now(wait: Wait) -> bool {
    wait::until(job(), || wait.is_over());
    !wait.end()
}

/// How the client learns of the end of an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum By {
    /// By an event.
    Event,
    /// The thread counts it.
    Count,
}

impl By {
    /// The slot of a new operation, and the event that the client gets.
    pub(crate) fn slot(self, category: Category) -> (&'static Slot, Event) {
        match self {
            Self::Event => {
                let slot = Slot::take();
                (slot, Event::of(Some(slot)))
            }
            Self::Count => {
                let counter = counter(category);
                counter.add();
                (counter, Event::INVALID)
            }
        }
    }
}

/// The act of an access, whose local completion is told to the client.
pub(crate) fn act(access: &Access, lc: *mut Event) -> Act {
    match LcKind::of(lc) {
        LcKind::Now if access.way == Way::Put => Act::from_copy(access, None),
        LcKind::Event if access.way == Way::Put => {
            let leaf = Slot::take();
            event::tell(lc, Event::of(Some(leaf)));
            Act::Access { access: *access, leaf: Some(leaf), copy: None }
        }
        _ => Act::Access { access: *access, leaf: None, copy: None },
    }
}

/// Starts a put from a copy of its source, which is free when the call returns.
#[cold]
pub(crate) fn start_from_copy(put: &Access, lc: *mut Event, by: By) -> Event {
    let (slot, event) = by.slot(Category::Put);
    Wait::new().leave(job(), Act::from_copy(put, None), Some(slot));
    weft_gex::after::run(job());
    event::done_locally(lc);
    event
}

/// Starts a put from where its source is.
#[cold]
pub(crate) fn start_in_place(put: &Access, lc: *mut Event, by: By) -> Event {
    let (slot, event) = by.slot(Category::Put);
    let leaf = matches!(LcKind::of(lc), LcKind::Now | LcKind::Event).then(Slot::take);
    job().start_in_place(put, slot, leaf);
    event::finish_locally(leaf, lc);
    event
}

/// Leaves an access with its wait.
pub(crate) fn leave_access(wait: Wait, access: &Access, lc: *mut Event, by: By) -> Event {
    let category = if access.way == Way::Put { Category::Put } else { Category::Get };
    let (slot, event) = by.slot(category);
    wait.leave(job(), act(access, lc), Some(slot));
    event
}

/// Leaves an atomic operation with its wait.
pub(crate) fn leave_update(wait: Wait, update: &Update, category: Category, by: By) -> Event {
    let (slot, event) = by.slot(category);
    wait.leave(job(), Act::Update(*update), Some(slot));
    event
}

/// Leaves a message with its wait. An event of its local completion tells that it was sent.
pub(crate) fn leave_message(wait: Wait, at: Location, message: &Message<'_>, lc: *mut Event) {
    let slot = match LcKind::of(lc) {
        LcKind::Event => {
            let slot = Slot::take();
            event::tell(lc, Event::of(Some(slot)));
            Some(slot)
        }
        LcKind::Group => Some(By::Count.slot(Category::Put).0),
        LcKind::Now | LcKind::Other => None,
    };
    wait.leave(job(), Act::Letter(Box::new(Letter::new(at, message))), slot);
}

/// Leaves the put of a long payload, with its wait if it has one, and the message, which follows the put.
pub(crate) fn leave_long(wait: Option<Wait>, put: &Access, message: &Message<'_>, lc: *mut Event) {
    let stored = Slot::take();
    // The wait of the message knows the slot before anything can complete it.
    let sent = Wait::for_own(stored);
    let leaf = match LcKind::of(lc) {
        LcKind::Event => {
            let leaf = Slot::take();
            event::tell(lc, Event::of(Some(leaf)));
            Some(leaf)
        }
        LcKind::Group => Some(By::Count.slot(Category::Put).0),
        LcKind::Now | LcKind::Other => None,
    };
    match (wait, LcKind::of(lc)) {
        (Some(wait), LcKind::Now) => wait.leave(job(), Act::from_copy(put, None), Some(stored)),
        (Some(wait), _) => wait.leave(job(), Act::Access { access: *put, leaf, copy: None }, Some(stored)),
        (None, _) => job().start_access(put, stored, leaf),
    }
    sent.leave(job(), Act::Letter(Box::new(Letter::placed(put.at, message))), None);
}

fn status_of(event: Event) -> c_int {
    match event.known() {
        Some(slot) if !slot.is_complete() => ERR_NOT_READY,
        Some(slot) if slot.has_failed() => ERR_RESOURCE,
        _ => OK,
    }
}

export! {
    fn gexw_AfterNext(deps: *const Event, count: usize, _flags: u32) {
        // SAFETY: the client passes a list of that length.
        let deps = unsafe { list(deps, count) };
        let armed = NEXT.take();
        let was_armed = c_uint::from(armed.is_some());
        let mut wait = armed.unwrap_or_default();
        deps.iter().filter_map(|dep| dep.known()).for_each(|slot| wait.add(slot));
        let wait = unless_over(wait);
        note(|armed| armed - was_armed + c_uint::from(wait.is_some()));
        NEXT.set(wait);
    }

    fn gexw_Event_Status(event: Event) -> c_int {
        status_of(event)
    }

    fn gexw_Event_Wait(event: Event) -> c_int {
        let Some(slot) = event.known() else { return OK };
        wait::until(job(), || slot.is_complete());
        let status = status_of(event);
        let _ = slot.test();
        status
    }
}
