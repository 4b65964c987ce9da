//! `gex_RMA_…`: remote memory access. Within a neighbourhood each access is a copy, complete when the call returns.
//! Others are accesses of the engine, whose completion ends their events.
//!
//! Flags may say that an address is an offset ([`address`]).

use std::ffi::{c_int, c_void};

use weft_gex::after::Wait;
use weft_gex::far::Access;
use weft_gex::fatal;
use weft_gex::memory::{Piece, Way, get_value, put_value};
use weft_gex::table::{Location, Place};

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
}

impl Sides {
    #[inline(always)]
    fn new(tm: Tm, rank: u32, local: *const c_void, remote: Remote) -> Self {
        let job = job();
        let at = tm.at(job, rank);
        let Remote { addr, bytes, flags } = remote;
        let local = address::here(job, tm, local, flags).expose_provenance();
        Self { at, local, remote: Piece { addr: address::at_peer(job, at, addr, flags), bytes } }
    }

    #[inline(always)]
    fn perform(&self, way: Way) {
        let Self { at, local, remote } = *self;
        match way {
            _ if remote.bytes == 0 => {}
            Way::Put => job().put(at, remote.addr, Piece { addr: local, bytes: remote.bytes }),
            Way::Get => job().get_from(at, remote, local),
        }
    }

    /// Copies if the memory is mapped here. Otherwise returns the access that the engine performs.
    #[inline(always)]
    fn begin(&self, way: Way) -> Option<Access> {
        let Self { at, remote, .. } = *self;
        if remote.bytes > 0 && job().place(at, remote) == Place::Remote {
            return Some(self.access(way));
        }
        self.perform(way);
        None
    }

    #[inline(always)]
    fn access(&self, way: Way) -> Access {
        let Self { at, local, remote: Piece { addr: remote, bytes } } = *self;
        Access { at, way, local, remote, bytes }
    }

    /// Performs the access, or starts it.
    #[inline(always)]
    fn start(&self, way: Way, lc: *mut Event, by: By) -> Event {
        if let Some(wait) = after::take() {
            return self.start_after(wait, way, lc, by);
        }
        self.start_now(way, lc, by)
    }

    #[inline(always)]
    fn start_now(&self, way: Way, lc: *mut Event, by: By) -> Event {
        match (self.begin(way), by) {
            (None, _) => done_locally(lc),
            (Some(access), By::Event) => return start_event(&access, lc),
            (Some(access), By::Count) => start_implicit(&access, lc),
        }
        Event::INVALID
    }

    /// Starts the access when others are complete.
    #[cold]
    fn start_after(&self, wait: Wait, way: Way, lc: *mut Event, by: By) -> Event {
        let access = self.access(way);
        let place = job().place(self.at, self.remote);
        if place == Place::Nowhere {
            // It reports the address.
            self.perform(way);
        }
        if place == Place::Remote && access.has_turn() && wait.is_in_turn(self.at.rank()) {
            let _ = wait.end();
            let event = self.start_now(way, lc, by);
            job().flush();
            return event;
        }
        after::leave_access(wait, &access, lc, by)
    }
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
fn start_one(tm: Tm, rank: u32, dest: Remote, value: &u64, by: By) -> Event {
    if let Some(wait) = after::take() {
        return sides_of_value(tm, rank, dest, value).start_after(wait, Way::Put, NOW, by);
    }
    match (begin_one(tm, rank, dest, value), by) {
        (None, _) => {}
        (Some(access), By::Event) => return start_event(&access, NO_LC),
        (Some(access), By::Count) => start_implicit(&access, NO_LC),
    }
    Event::INVALID
}

/// The source is free when the call returns.
const NOW: *mut Event = std::ptr::without_provenance_mut(1);

export! {
    fn gex_RMA_PutBlocking(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).perform(Way::Put);
        OK
    }

    fn gex_RMA_PutNBI(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32) -> c_int {
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).start(Way::Put, lc, By::Count);
        OK
    }

    fn gex_RMA_PutNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32) -> Event {
        Sides::new(tm, rank, source, Remote { addr: dest, bytes, flags }).start(Way::Put, lc, By::Event)
    }

    fn gex_RMA_GetBlocking(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).perform(Way::Get);
        OK
    }

    fn gex_RMA_GetNBI(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> c_int {
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).start(Way::Get, NO_LC, By::Count);
        OK
    }

    fn gex_RMA_GetNB(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> Event {
        Sides::new(tm, rank, dest, Remote { addr: source, bytes, flags }).start(Way::Get, NO_LC, By::Event)
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
                sides.perform(Way::Get);
                value
            }
        }
    }

    fn gex_RMA_PutBlockingVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> c_int {
        if !after::pass() {
            return ERR_RESOURCE;
        }
        if let Some(access) = begin_one(tm, rank, Remote { addr: dest, bytes, flags }, &value) {
            job().access(&access);
        }
        OK
    }

    fn gex_RMA_PutNBIVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> c_int {
        start_one(tm, rank, Remote { addr: dest, bytes, flags }, &value, By::Count);
        OK
    }

    fn gex_RMA_PutNBVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, flags: u32) -> Event {
        start_one(tm, rank, Remote { addr: dest, bytes, flags }, &value, By::Event)
    }
}
