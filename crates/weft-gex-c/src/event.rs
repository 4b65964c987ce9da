//! `gex_Event_…` and `gex_NBI_…`: completion of operations.
//!
//! Accesses within the host are complete when their call returns. Their events are therefore invalid, and the implicit
//! ones of a thread are always complete. Events of collectives are slots of weft-gex.

use std::cell::Cell;
use std::ffi::c_int;

use weft_gex::event::Slot;
use weft_gex::fatal;
use weft_gex::wait;

use crate::handles::{ERR_NOT_READY, OK, export, job, list_mut};

/// `gex_Event_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event(*const Slot);

/// The largest number that stands for a kind of local completion rather than for an address.
const LC_KINDS: usize = 3;

impl Event {
    /// The event of a complete operation.
    pub(crate) const INVALID: Self = Self(std::ptr::null());
    /// The answer to an immediate call that was refused.
    pub(crate) const NO_OP: Self = Self(std::ptr::without_provenance(1));

    /// The event of an operation; `None`: it is complete.
    pub(crate) fn of(slot: Option<&'static Slot>) -> Self {
        slot.map_or(Self::INVALID, |slot| Self(slot))
    }

    /// Whether the operation is complete. The event is then spent.
    #[inline(always)]
    fn test(self) -> bool {
        self == Self::INVALID || self.slot().test()
    }

    fn slot(self) -> &'static Slot {
        if self == Self::NO_OP {
            fatal!("a test or wait got GEX_EVENT_NO_OP; repeat the refused call instead");
        }
        // SAFETY: the client passes events that the library has returned; slots are never freed.
        unsafe { &*self.0 }
    }
}

/// Notes the local completion of an operation whose source is free already.
#[inline(always)]
pub(crate) fn done_locally(lc: *mut Event) {
    if lc.addr() > LC_KINDS {
        // SAFETY: the pointer is none of the special values, so it is the client's, and writable.
        unsafe { lc.write(Event::INVALID) };
    }
}

/// Tests all events of a list. Complete ones become invalid. Returns the numbers of complete and of all valid ones.
fn test_list(events: &mut [Event]) -> (usize, usize) {
    let (mut complete, mut valid) = (0, 0);
    for event in events.iter_mut().filter(|event| **event != Event::INVALID) {
        valid += 1;
        if event.test() {
            *event = Event::INVALID;
            complete += 1;
        }
    }
    (complete, valid)
}

fn is_some((complete, valid): (usize, usize)) -> bool {
    complete > 0 || valid == 0
}

fn is_all((complete, valid): (usize, usize)) -> bool {
    complete == valid
}

fn code(done: bool) -> c_int {
    if done { OK } else { ERR_NOT_READY }
}

thread_local! {
    /// Whether an access region of the thread is open.
    static REGION: Cell<bool> = const { Cell::new(false) };
}

export! {
    fn gex_Event_Test(event: Event) -> c_int {
        code(event.test())
    }

    fn gex_Event_Wait(event: Event) {
        if event != Event::INVALID {
            wait::until(job(), || event.test());
        }
    }

    fn gex_Event_TestSome(events: *mut Event, count: usize, _flags: u32) -> c_int {
        // SAFETY: the client passes a list of that length, and does not use it meanwhile.
        code(is_some(test_list(unsafe { list_mut(events, count) })))
    }

    fn gex_Event_WaitSome(events: *mut Event, count: usize, _flags: u32) {
        // SAFETY: as above.
        let events = unsafe { list_mut(events, count) };
        wait::until(job(), || is_some(test_list(events)));
    }

    fn gex_Event_TestAll(events: *mut Event, count: usize, _flags: u32) -> c_int {
        // SAFETY: as above.
        code(is_all(test_list(unsafe { list_mut(events, count) })))
    }

    fn gex_Event_WaitAll(events: *mut Event, count: usize, _flags: u32) {
        // SAFETY: as above.
        let events = unsafe { list_mut(events, count) };
        wait::until(job(), || is_all(test_list(events)));
    }

    fn gex_Event_QueryLeaf(_root: Event, _category: u32) -> Event {
        Event::INVALID
    }

    fn gex_NBI_Test(_mask: u32, _flags: u32) -> c_int {
        OK
    }

    fn gex_NBI_Wait(_mask: u32, _flags: u32) {
        // A wait polls, also if there is nothing to wait for.
        job().poll();
    }

    fn gex_NBI_BeginAccessRegion(_flags: u32) {
        if REGION.replace(true) {
            fatal!("an access region was begun within another one; end the first with gex_NBI_EndAccessRegion");
        }
    }

    fn gex_NBI_EndAccessRegion(_flags: u32) -> Event {
        if !REGION.replace(false) {
            fatal!("an access region was ended that was not begun; call gex_NBI_BeginAccessRegion first");
        }
        Event::INVALID
    }
}
