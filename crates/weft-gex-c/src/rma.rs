//! `gex_RMA_…`: remote memory access. Within a neighbourhood each access is a copy, complete when the call returns.
//! Others are accesses of the engine, whose completion ends their events.
//!
//! Flags may say that an address is an offset ([`address`]).

use std::ffi::{c_int, c_void};

use weft_gex::after::Wait;
use weft_gex::board::MAX_ENDPOINTS;
use weft_gex::event::Slot;
use weft_gex::far::Access;
use weft_gex::fatal;
use weft_gex::memory::{Piece, Way, get_value, put_value};
use weft_gex::outside;
use weft_gex::table::{Location, Place};
use weft_gex::wait;

use crate::address;
use crate::after::{self, By};
use crate::event::{Event, NO_LC, done_locally, start_event, start_implicit};
use crate::handles::{ERR_RESOURCE, OK, Tm, export, job};

/// Both sides of an access, as addresses in their processes.
#[derive(Clone, Copy)]
struct Sides {
    at: Location,
    local: usize,
    remote: Piece,
    flags: u32,
}

impl Sides {
    #[inline(always)]
    fn new(tm: Tm, rank: u32, local: *const c_void, remote: Remote) -> Self {
        let job = job();
        let at = tm.at(job, rank);
        let Remote { addr, bytes, flags } = remote;
        let local = address::here(job, tm, local, flags).expose_provenance();
        Self { at, local, remote: Piece { addr: address::at_peer(job, at, addr, flags), bytes }, flags }
    }

    /// Performs the access. Returns the code of a blocking call.
    #[inline(always)]
    fn perform(&self, way: Way) -> c_int {
        let Self { at, local, remote, flags } = *self;
        match way {
            _ if remote.bytes == 0 => {}
            _ if flags & address::ANYWHERE != 0 => return self.perform_anywhere(way),
            Way::Put => job().put(at, remote.addr, Piece { addr: local, bytes: remote.bytes }),
            Way::Get => job().get_from(at, remote, local),
        }
        OK
    }

    /// Performs an access to memory that may lie outside segments.
    #[cold]
    fn perform_anywhere(&self, way: Way) -> c_int {
        match self.find() {
            Some(found) => found.perform(way),
            None => self.finish_outside(way),
        }
    }

    /// The access at the endpoint whose segment has the memory; `None`: no known segment has it.
    #[cold]
    fn find(&self) -> Option<Self> {
        let all = 0..u16::try_from(MAX_ENDPOINTS).unwrap_or(u16::MAX);
        let endpoints = std::iter::once(self.at.endpoint()).chain(all);
        let mut places = endpoints.map(|endpoint| Location::new(self.at.rank(), endpoint));
        let at = places.find(|at| job().place(*at, self.remote) != Place::Nowhere)?;
        Some(Self { at, flags: self.flags & !address::ANYWHERE, ..*self })
    }

    /// Performs an access outside segments, and waits for it.
    fn finish_outside(&self, way: Way) -> c_int {
        let event = Slot::take();
        outside::start(job(), &self.access(way), event);
        wait::until(job(), || event.is_complete());
        let failed = event.has_failed();
        let _ = event.test();
        if failed { ERR_RESOURCE } else { OK }
    }

    /// Copies if the memory is mapped here. Otherwise returns the access that the engine performs.
    #[inline(always)]
    fn begin(&self, way: Way) -> Option<Access> {
        let Self { at, remote, .. } = *self;
        debug_assert_eq!(self.flags & address::ANYWHERE, 0, "it was looked for");
        if remote.bytes > 0 && job().place(at, remote) == Place::Remote {
            return Some(self.access(way));
        }
        let _ = self.perform(way);
        None
    }

    #[inline(always)]
    fn access(&self, way: Way) -> Access {
        let Self { at, local, remote: Piece { addr: remote, bytes }, .. } = *self;
        Access { at, way, local, remote, bytes }
    }

    /// Performs the access, or starts it.
    #[inline(always)]
    fn start(&self, way: Way, lc: *mut Event, by: By) -> Started {
        if self.flags & address::ANYWHERE != 0 && self.remote.bytes > 0 {
            return self.start_anywhere(way, lc, by);
        }
        Started { event: self.start_known(way, lc, by), code: OK }
    }

    /// Starts an access to memory that may lie outside segments.
    #[cold]
    fn start_anywhere(&self, way: Way, lc: *mut Event, by: By) -> Started {
        if let Some(found) = self.find() {
            return found.start(way, lc, by);
        }
        if !after::pass() {
            done_locally(lc);
            return Started {
                event: if by == By::Event { Event::cancelled() } else { Event::INVALID },
                code: ERR_RESOURCE,
            };
        }
        if by == By::Count {
            // The call returns the code, so it waits.
            done_locally(lc);
            return Started { event: Event::INVALID, code: self.finish_outside(way) };
        }
        let event = Slot::take();
        outside::start(job(), &self.access(way), event);
        // A message has a copy of the source.
        done_locally(lc);
        Started { event: Event::of(Some(event)), code: OK }
    }

    #[inline(always)]
    fn start_known(&self, way: Way, lc: *mut Event, by: By) -> Event {
        if let Some(wait) = after::take() {
            return self.start_after(wait, way, lc, by);
        }
        self.start_now(way, lc, by)
    }

    #[inline(always)]
    fn start_now(&self, way: Way, lc: *mut Event, by: By) -> Event {
        match (self.begin(way), by) {
            (None, _) => done_locally(lc),
            (Some(put), _) if self.flags & (LC_COPY_YES | LC_COPY_NO) != 0 && way == Way::Put => {
                return self.start_as_flagged(&put, lc, by);
            }
            (Some(access), By::Event) => return start_event(&access, lc),
            (Some(access), By::Count) => start_implicit(&access, lc),
        }
        Event::INVALID
    }

    /// Starts a put whose flags say whether the source is copied.
    #[cold]
    fn start_as_flagged(&self, put: &Access, lc: *mut Event, by: By) -> Event {
        if self.flags & LC_COPY_NO != 0 {
            after::start_in_place(put, lc, by)
        } else {
            after::start_from_copy(put, lc, by)
        }
    }

    /// Starts the access when others are complete.
    #[cold]
    fn start_after(&self, wait: Wait, way: Way, lc: *mut Event, by: By) -> Event {
        let access = self.access(way);
        let place = job().place(self.at, self.remote);
        if place == Place::Nowhere {
            // It reports the address.
            let _ = self.perform(way);
        }
        if place == Place::Remote && access.has_turn() && wait.is_in_turn(self.at.rank()) {
            let _ = wait.end();
            let event = self.start_now(way, lc, by);
            job().flush();
            return event;
        }
        if way == Way::Put && self.flags & LC_COPY_YES != 0 {
            done_locally(lc);
            return after::leave_access(wait, &access, NOW, by);
        }
        after::leave_access(wait, &access, lc, by)
    }
}

/// The results of a call that starts an access: of its form with an event, and of that which the thread counts.
struct Started {
    event: Event,
    code: c_int,
}

/// The remote side of a call.
#[derive(Clone, Copy)]
struct Remote {
    addr: *const c_void,
    bytes: usize,
    flags: u32,
}

/// The bytes before those of a value of this length in a word.
fn skipped(bytes: usize) -> usize {
    if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 }
}

/// A put of a value, as an access from the value.
#[inline(always)]
fn sides_of_value(tm: Tm, rank: u32, dest: Remote, value: &u64) -> Sides {
    let bytes = dest.bytes.min(8);
    let local = std::ptr::from_ref(value).cast::<u8>().wrapping_add(skipped(bytes)).cast();
    let flags = dest.flags & !address::SELF_SEG_OFFSET;
    Sides::new(tm, rank, local, Remote { bytes, flags, ..dest })
}

/// A put of a value: performs it, unless the engine has to. The call copies the value.
#[inline(always)]
fn begin_one(tm: Tm, rank: u32, dest: Remote, value: &u64) -> Option<Access> {
    let sides = sides_of_value(tm, rank, dest, value);
    match job().place(sides.at, sides.remote) {
        Place::Here(here) if sides.remote.bytes > 0 => {
            // SAFETY: the table has checked the place, which is mapped for that length.
            unsafe { put_value(std::ptr::with_exposed_provenance_mut(here), *value, sides.remote.bytes) };
            None
        }
        _ => sides.begin(Way::Put),
    }
}

/// Starts a put of a value.
#[inline(always)]
fn start_one(tm: Tm, rank: u32, dest: Remote, value: &u64, by: By) -> Started {
    if dest.flags & address::ANYWHERE != 0 {
        return sides_of_value(tm, rank, dest, value).start(Way::Put, NOW, by);
    }
    let mut event = Event::INVALID;
    if let Some(wait) = after::take() {
        event = sides_of_value(tm, rank, dest, value).start_after(wait, Way::Put, NOW, by);
    } else if let Some(access) = begin_one(tm, rank, dest, value) {
        match by {
            By::Event => event = start_event(&access, NO_LC),
            By::Count => start_implicit(&access, NO_LC),
        }
    }
    Started { event, code: OK }
}

/// The source of a put is copied, so that it is free when the call returns.
const LC_COPY_YES: u32 = 1 << 16;
/// The source of a put is not copied.
const LC_COPY_NO: u32 = 1 << 17;
/// The source is free when the call returns.
const NOW: *mut Event = std::ptr::without_provenance_mut(1);

export! {
    fn gex_RMA_PutBlocking(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).perform(Way::Put)
    }

    fn gex_RMA_PutNBI(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32) -> c_int {
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).start(Way::Put, lc, By::Count).code
    }

    fn gex_RMA_PutNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32) -> Event {
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).start(Way::Put, lc, By::Event).event
    }

    fn gex_RMA_GetBlocking(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).perform(Way::Get)
    }

    fn gex_RMA_GetNBI(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).start(Way::Get, NO_LC, By::Count).code
    }

    fn gex_RMA_GetNB(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> Event {
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).start(Way::Get, NO_LC, By::Event).event
    }

    fn gex_RMA_GetBlockingVal(tm: Tm, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> u64 {
        if !after::pass() {
            fatal!("a get of a value was to follow an operation that has failed; use a get that returns a code");
        }
        let mut value = 0_u64;
        let bytes = bytes.min(8);
        let local = std::ptr::from_mut(&mut value).cast::<u8>().wrapping_add(skipped(bytes)).cast();
        let flags = flags & !address::SELF_SEG_OFFSET;
        let sides = Sides::new(tm, rank, local, Remote { addr: source, bytes, flags });
        match job().place(sides.at, sides.remote) {
            // SAFETY: the table has checked the place, which is mapped for that length.
            Place::Here(here) if bytes > 0 => unsafe { get_value(std::ptr::with_exposed_provenance(here), bytes) },
            _ => {
                if sides.perform(Way::Get) != OK {
                    fatal!("a get of a value outside segments has failed, and has no code; use a get that returns one");
                }
                value
            }
        }
    }

    fn gex_RMA_PutBlockingVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        let dest = Remote { addr: dest, bytes, flags };
        if flags & address::ANYWHERE != 0 {
            return sides_of_value(tm, rank, dest, &value).perform(Way::Put);
        }
        if let Some(access) = begin_one(tm, rank, dest, &value) {
            job().access(&access);
        }
        OK
    }

    fn gex_RMA_PutNBIVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> c_int {
        start_one(tm, rank, Remote { addr: dest, bytes, flags }, &value, By::Count).code
    }

    fn gex_RMA_PutNBVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> Event {
        start_one(tm, rank, Remote { addr: dest, bytes, flags }, &value, By::Event).event
    }
}
