//! `gex_RMA_…`: remote memory access. Within a neighbourhood each access is a copy, complete when the call returns.
//! Others are accesses of the engine, whose completion ends their events.

use std::ffi::{c_int, c_void};

use weft_gex::far::Access;
use weft_gex::memory::{Piece, Way, get_value, put_value};
use weft_gex::table::Place;

use crate::event::{Event, NO_LC, done_locally, start_event, start_implicit};
use crate::handles::{OK, Tm, export, job};

#[inline(always)]
fn put(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize) {
    let job = job();
    if bytes > 0 {
        job.put(tm.at(job, rank), dest.expose_provenance(), Piece::at(source, bytes));
    }
}

#[inline(always)]
fn get(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize) {
    let job = job();
    if bytes > 0 {
        job.get_from(tm.at(job, rank), Piece::at(source, bytes), dest.expose_provenance());
    }
}

/// Copies if the memory is mapped here. Otherwise returns the access that the engine performs.
#[inline(always)]
fn begin(way: Way, tm: Tm, rank: u32, local: *const c_void, remote: *const c_void, bytes: usize) -> Option<Access> {
    let job = job();
    if bytes == 0 {
        return None;
    }
    let (at, local, remote) = (tm.at(job, rank), local.expose_provenance(), remote.expose_provenance());
    match (job.place(at, Piece { addr: remote, bytes }), way) {
        (Place::Remote, _) => return Some(Access { at, way, local, remote, bytes }),
        (_, Way::Put) => job.put(at, remote, Piece { addr: local, bytes }),
        (_, Way::Get) => job.get_from(at, Piece { addr: remote, bytes }, local),
    }
    None
}

/// A put of a value, which the call copies.
#[inline(always)]
fn begin_one(tm: Tm, rank: u32, dest: *mut c_void, value: &u64, bytes: usize) -> Option<Access> {
    let (job, addr) = (job(), dest.expose_provenance());
    let at = tm.at(job, rank);
    if job.place(at, Piece { addr, bytes }) != Place::Remote {
        put_one(tm, rank, dest, *value, bytes);
        return None;
    }
    let skipped = if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 };
    let local = std::ptr::from_ref(value).expose_provenance() + skipped;
    Some(Access { at, way: Way::Put, local, remote: addr, bytes: bytes.min(8) })
}

#[inline(always)]
fn put_one(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize) {
    let job = job();
    match job.place(tm.at(job, rank), Piece::at(dest, bytes)) {
        Place::Here(here) if (1..=8).contains(&bytes) => {
            // SAFETY: the table has checked the place, which is mapped for that length.
            unsafe { put_value(std::ptr::with_exposed_provenance_mut(here), value, bytes) };
        }
        _ => {
            let source = if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 };
            let value = value.to_ne_bytes();
            put(tm, rank, dest, value[source..].as_ptr().cast(), bytes.min(8));
        }
    }
}

export! {
    fn gex_RMA_PutBlocking(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> c_int {
        put(tm, rank, dest, source, bytes);
        OK
    }

    fn gex_RMA_PutNBI(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, _flags: u32) -> c_int {
        match begin(Way::Put, tm, rank, source, dest, bytes) {
            None => done_locally(lc),
            Some(access) => start_implicit(&access, lc),
        }
        OK
    }

    fn gex_RMA_PutNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, _flags: u32) -> Event {
        match begin(Way::Put, tm, rank, source, dest, bytes) {
            None => {
                done_locally(lc);
                Event::INVALID
            }
            Some(access) => start_event(&access, lc),
        }
    }

    fn gex_RMA_GetBlocking(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> c_int {
        get(tm, dest, rank, source, bytes);
        OK
    }

    fn gex_RMA_GetNBI(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> c_int {
        if let Some(access) = begin(Way::Get, tm, rank, dest, source, bytes) {
            start_implicit(&access, NO_LC);
        }
        OK
    }

    fn gex_RMA_GetNB(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        begin(Way::Get, tm, rank, dest, source, bytes).map_or(Event::INVALID, |access| start_event(&access, NO_LC))
    }

    fn gex_RMA_GetBlockingVal(tm: Tm, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> u64 {
        let job = job();
        match job.place(tm.at(job, rank), Piece::at(source, bytes)) {
            // SAFETY: the table has checked the place, which is mapped for that length.
            Place::Here(here) => unsafe { get_value(std::ptr::with_exposed_provenance(here), bytes) },
            _ => {
                let mut value = [0_u8; 8];
                let at = if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 };
                get(tm, value[at..].as_mut_ptr().cast(), rank, source, bytes.min(8));
                u64::from_ne_bytes(value)
            }
        }
    }

    fn gex_RMA_PutBlockingVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, _flags: u32) -> c_int {
        put_one(tm, rank, dest, value, bytes);
        OK
    }

    fn gex_RMA_PutNBIVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, _flags: u32) -> c_int {
        if let Some(access) = begin_one(tm, rank, dest, &value, bytes) {
            start_implicit(&access, NO_LC);
        }
        OK
    }

    fn gex_RMA_PutNBVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, _flags: u32) -> Event {
        begin_one(tm, rank, dest, &value, bytes).map_or(Event::INVALID, |access| start_event(&access, NO_LC))
    }
}
