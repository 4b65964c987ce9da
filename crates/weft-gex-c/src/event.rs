//! `gex_Event_…` and `gex_NBI_…`: completion of operations.
//!
//! Accesses within the neighbourhood are complete when their call returns, so their events are invalid. Events of
//! others, and of collectives, are slots of weft-gex. Accesses without an event are counted in slots of their thread,
//! or in that of its access region.

use std::cell::Cell;
use std::ffi::c_int;

use weft_gex::event::{Category, Implicit, Slot};
use weft_gex::far::Access;
use weft_gex::fatal;
use weft_gex::memory::Way;
use weft_gex::wait;

use crate::handles::{ERR_NOT_READY, OK, export, job, list_mut};

/// `gex_Event_t`.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Event(*const Slot);

/// The bit that tells a leaf from its root.
const LEAF: usize = 2;
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
        if self.0.addr() & LEAF != 0 {
            return self.is_leaf_complete();
        }
        self == Self::INVALID || self.slot().test()
    }

    /// The event of an operation that was cancelled.
    pub(crate) fn cancelled() -> Self {
        let slot = Slot::take();
        slot.fail();
        Self::of(Some(slot))
    }

    /// The slot of the event; `None`: the operation was complete when its call returned.
    pub(crate) fn known(self) -> Option<&'static Slot> {
        (self != Self::INVALID).then(|| self.slot())
    }

    /// The leaf of a collective: its source is free again.
    fn leaf(self) -> Self {
        Self(self.0.map_addr(|addr| addr | LEAF))
    }

    /// Whether the source of a collective is free. Leaves have no state of their own.
    #[cold]
    fn is_leaf_complete(self) -> bool {
        self.slot().is_over() || job().reads_source(self.slot()) != Some(true)
    }

    fn slot(self) -> &'static Slot {
        if self == Self::NO_OP {
            fatal!("a test or wait got GEX_EVENT_NO_OP; repeat the refused call instead");
        }
        let slot = self.0.map_addr(|addr| addr & !LEAF);
        // SAFETY: the client passes events that the library has returned; slots are never freed.
        unsafe { &*slot }
    }
}

/// Notes the local completion of an operation whose source is free already.
#[inline(always)]
pub(crate) fn done_locally(lc: *mut Event) {
    if lc.addr() > LC_KINDS {
        tell(lc, Event::INVALID);
    }
}

/// Gives the client the event of a local completion.
#[inline(always)]
pub(crate) fn tell(lc: *mut Event, event: Event) {
    debug_assert!(lc.addr() > LC_KINDS);
    // SAFETY: the pointer is none of the special values, so it is the client's, and writable.
    unsafe { lc.write(event) };
}

/// The wish of a call for local completion.
pub(crate) enum LcKind {
    /// The source is free when the call returns.
    Now,
    /// The thread counts it.
    Group,
    /// The client gets an event.
    Event,
    /// None of its own.
    Other,
}

impl LcKind {
    pub(crate) fn of(lc: *mut Event) -> Self {
        match lc.addr() {
            LC_NOW => Self::Now,
            LC_GROUP => Self::Group,
            0 | LC_DEFER => Self::Other,
            _ => Self::Event,
        }
    }
}

const LC_NOW: usize = 1;
const LC_DEFER: usize = 2;
const LC_GROUP: usize = 3;
/// A call without local completion.
pub(crate) const NO_LC: *mut Event = std::ptr::null_mut();

/// Starts an access. Returns its event.
#[cold]
pub(crate) fn start_event(access: &Access, lc: *mut Event) -> Event {
    let event = Slot::take();
    start_access(access, event, lc);
    if access.way == Way::Put && access.has_turn() {
        event.set_turn(access.at.rank());
    }
    // The client must be able to ask how a failed access ended.
    let is_over = event.is_complete() && !event.has_failed();
    if is_over && event.test() { Event::INVALID } else { Event::of(Some(event)) }
}

/// Starts an access that the thread counts.
#[cold]
pub(crate) fn start_implicit(access: &Access, lc: *mut Event) {
    let category = if access.way == Way::Put { Category::Put } else { Category::Get };
    let counter = counter(category);
    counter.add();
    start_access(access, counter, lc);
}

pub(crate) fn start_access(access: &Access, event: &'static Slot, lc: *mut Event) {
    let waits = access.way == Way::Put && !access.is_copied() && (lc.addr() == LC_NOW || lc.addr() > LC_KINDS);
    let leaf = waits.then(Slot::take);
    job().start_access(access, event, leaf);
    finish_locally(leaf, lc);
}

/// Waits for the local completion of a put, or gives the client its event.
pub(crate) fn finish_locally(leaf: Option<&'static Slot>, lc: *mut Event) {
    match leaf {
        Some(leaf) if lc.addr() == LC_NOW => wait::until(job(), || leaf.test()),
        Some(leaf) => tell(lc, Event::of(Some(leaf))),
        None => done_locally(lc),
    }
}

/// The slot in which the thread counts operations of a category.
pub(crate) fn counter(category: Category) -> &'static Slot {
    REGION.get().unwrap_or_else(|| implicit().of(category))
}

fn implicit() -> &'static Implicit {
    IMPLICIT.get().unwrap_or_else(|| {
        let made = Implicit::leak();
        IMPLICIT.set(Some(made));
        made
    })
}

/// Whether the operations of the thread in the categories of a mask are complete.
fn are_complete(mask: u32) -> bool {
    let Some(counters) = IMPLICIT.get() else { return true };
    // Local completion of puts is counted with the puts.
    let categories = [(1, Category::Get), (2 | 4, Category::Put), (8, Category::Update)];
    categories.into_iter().all(|(bits, category)| mask & bits == 0 || counters.of(category).is_complete())
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
    /// The slot of the thread's access region, if one is open.
    static REGION: Cell<Option<&'static Slot>> = const { Cell::new(None) };
    /// The operations of the thread without events, if there were any.
    static IMPLICIT: Cell<Option<&'static Implicit>> = const { Cell::new(None) };
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
        // One after the other: a test of all at each step would read the whole list again and again.
        for event in events.iter_mut().filter(|event| **event != Event::INVALID) {
            wait::until(job(), || event.test());
            *event = Event::INVALID;
        }
    }

    fn gex_Event_QueryLeaf(root: Event, _category: u32) -> Event {
        if root == Event::INVALID || root.slot().is_complete() {
            return Event::INVALID;
        }
        match job().reads_source(root.slot()) {
            Some(true) => return root.leaf(),
            Some(false) => {}
            // An operation with a pending leaf has given its event to the client already.
            None => wait::until(job(), || root.slot().is_complete()),
        }
        Event::INVALID
    }

    fn gex_NBI_Test(mask: u32, _flags: u32) -> c_int {
        code(are_complete(mask))
    }

    fn gex_NBI_Wait(mask: u32, _flags: u32) {
        // A wait polls, also if there is nothing to wait for.
        job().poll();
        wait::until(job(), || are_complete(mask));
    }

    fn gex_NBI_BeginAccessRegion(_flags: u32) {
        if REGION.replace(Some(Slot::take())).is_some() {
            fatal!("an access region was begun within another one; end the first with gex_NBI_EndAccessRegion");
        }
    }

    fn gex_NBI_EndAccessRegion(_flags: u32) -> Event {
        let Some(region) = REGION.take() else {
            fatal!("an access region was ended that was not begun; call gex_NBI_BeginAccessRegion first");
        };
        region.complete();
        if region.is_complete() && region.test() { Event::INVALID } else { Event::of(Some(region)) }
    }
}
