//! `gex_RMA_…`: remote memory access. Within a host each access is a copy, complete when the call returns.

use std::ffi::{c_int, c_void};

use weft_gex::memory::{Piece, get_value, put_value};
use weft_gex::table::Place;

use crate::event::{Event, done_locally};
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
        put(tm, rank, dest, source, bytes);
        done_locally(lc);
        OK
    }

    fn gex_RMA_PutNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, _flags: u32) -> Event {
        put(tm, rank, dest, source, bytes);
        done_locally(lc);
        Event::INVALID
    }

    fn gex_RMA_GetBlocking(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> c_int {
        get(tm, dest, rank, source, bytes);
        OK
    }

    fn gex_RMA_GetNBI(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> c_int {
        get(tm, dest, rank, source, bytes);
        OK
    }

    fn gex_RMA_GetNB(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        get(tm, dest, rank, source, bytes);
        Event::INVALID
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
        put_one(tm, rank, dest, value, bytes);
        OK
    }

    fn gex_RMA_PutNBVal(tm: Tm, rank: u32, dest: *mut c_void, value: u64, bytes: usize, _flags: u32) -> Event {
        put_one(tm, rank, dest, value, bytes);
        Event::INVALID
    }
}
