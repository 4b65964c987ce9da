//! `gex_Coll_…` and `gexw_Coll_…`: collectives that move and combine data.

use std::ffi::c_void;

use weft_gex::coll::{Collective, Extent, Move, Prefix, To};
use weft_gex::combine::{Combine, Type, User};
use weft_gex::fatal;
use weft_gex::invoke::ReduceFn;

use crate::event::Event;
use crate::handles::{Tm, export, job, list};

const DT_USER: u32 = 1 << 6;
const OP_USER: u32 = 1 << 30;
const OP_USER_NC: u32 = 1 << 31;

/// Starts a collective.
pub(crate) fn start(tm: Tm, collective: &Collective) -> Event {
    Event::of(tm.team().start(job(), collective))
}

/// Starts a collective that moves blocks of one length.
fn start_move(tm: Tm, what: Move, result: *mut c_void, source: *const c_void, bytes: usize) -> Event {
    if let Move::Broadcast(root) | Move::Scatter(root) | Move::Gather(root) = what {
        check_root(tm, root);
    }
    let (source, result) = (source.expose_provenance(), result.expose_provenance());
    start(tm, &Collective::Move { what, source, result, bytes })
}

fn check_root(tm: Tm, root: u32) {
    let members = tm.team().size();
    if root >= members {
        fatal!("a collective of {members} members has root {root}; pass a rank below gex_TM_QuerySize");
    }
}

/// The elements and the operation of a reduction.
struct Reduction {
    dt: u32,
    bytes: usize,
    count: usize,
    op: u32,
    function: Option<ReduceFn>,
    cdata: *const c_void,
}

impl Reduction {
    fn combine(&self) -> Combine {
        if self.op & (OP_USER | OP_USER_NC) != 0 {
            let Some(function) = self.function else {
                fatal!("a reduction by a function of the client got none; pass the function");
            };
            if self.bytes == 0 {
                fatal!("a reduction got elements of 0 bytes; pass their size");
            }
            let (cdata, commutes) = (self.cdata.expose_provenance(), self.op & OP_USER_NC == 0);
            return Combine::User(User { function, cdata, bytes: self.bytes, commutes });
        }
        let ty = Type::from_bit(self.dt.trailing_zeros()).filter(|_| self.dt & DT_USER == 0);
        let ty = ty.filter(|ty| ty.bytes() == self.bytes && self.op.is_power_of_two());
        match ty.and_then(|ty| Combine::known(ty, self.op.trailing_zeros())) {
            Some(combine) => combine,
            None => fatal!(
                "a reduction of type {:#x}, {} bytes an element, by operation {:#x} is not defined; pass a type, its size and an operation for it",
                self.dt,
                self.bytes,
                self.op
            ),
        }
    }

    fn start(&self, tm: Tm, to: To, result: *mut c_void, source: *const c_void) -> Event {
        let (source, result) = (source.expose_provenance(), result.expose_provenance());
        let (combine, count) = (self.combine(), self.count);
        if combine.element_bytes().checked_mul(count).is_none() {
            fatal!("a reduction got {count} elements of {} bytes, more than memory has; pass fewer", self.bytes);
        }
        start(tm, &Collective::Reduce { to, source, result, count, combine })
    }
}

/// The blocks of all members, by lengths and offsets.
///
/// # Safety
/// Both lists have one entry for each member.
unsafe fn extents(tm: Tm, lens: *const usize, offsets: *const usize) -> Vec<Extent> {
    let members = tm.team().size() as usize;
    if lens.is_null() || offsets.is_null() {
        fatal!("a collective of blocks of different lengths got no list of lengths or offsets; pass both lists");
    }
    // SAFETY: the caller's contract.
    let lens = unsafe { list(lens, members) };
    // SAFETY: as above.
    let offsets = unsafe { list(offsets, members) };
    let all: Vec<Extent> = lens.iter().zip(offsets).map(|(&len, &offset)| Extent::new(offset, len)).collect();
    if Extent::end(&all).is_none() {
        fatal!("a collective got blocks behind the end of memory; pass offsets and lengths in bytes");
    }
    all
}

/// One block for or of a member, and none for the others.
fn only(tm: Tm, member: u32, bytes: usize) -> Vec<Extent> {
    let one = |other| Extent::new(0, if other == member { bytes } else { 0 });
    (0..tm.team().size()).map(one).collect()
}

fn start_uneven(tm: Tm, result: *mut c_void, taken: Vec<Extent>, source: *const c_void, given: Vec<Extent>) -> Event {
    let me = tm.team().rank() as usize;
    let (gives, takes) = (given[me].bytes(), taken[me].bytes());
    if gives != takes {
        fatal!(
            "rank {me} of a team gives itself {gives} bytes and takes {takes}; pass the same length on both sides of a collective"
        );
    }
    let (source, result) = (source.expose_provenance(), result.expose_provenance());
    start(tm, &Collective::Uneven { source, result, given, taken })
}

export! {
    fn gex_Coll_BroadcastNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        start_move(tm, Move::Broadcast(root), dest, source, bytes)
    }

    fn gexw_Coll_ScatterNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        start_move(tm, Move::Scatter(root), dest, source, bytes)
    }

    fn gexw_Coll_GatherNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        start_move(tm, Move::Gather(root), dest, source, bytes)
    }

    fn gexw_Coll_GatherAllNB(tm: Tm, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        start_move(tm, Move::GatherAll, dest, source, bytes)
    }

    fn gexw_Coll_ExchangeNB(tm: Tm, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        start_move(tm, Move::Exchange, dest, source, bytes)
    }

    fn gexw_Coll_ScattervNB(tm: Tm, root: u32, dest: *mut c_void, bytes: usize, source: *const c_void, lens: *const usize, offsets: *const usize, _flags: u32) -> Event {
        check_root(tm, root);
        let is_root = tm.team().rank() == root;
        // SAFETY: the root passes lists of one entry for each member.
        let given = if is_root { unsafe { extents(tm, lens, offsets) } } else { only(tm, root, 0) };
        start_uneven(tm, dest, only(tm, root, bytes), source, given)
    }

    fn gexw_Coll_GathervNB(tm: Tm, root: u32, dest: *mut c_void, lens: *const usize, offsets: *const usize, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        check_root(tm, root);
        let is_root = tm.team().rank() == root;
        // SAFETY: as above.
        let taken = if is_root { unsafe { extents(tm, lens, offsets) } } else { only(tm, root, 0) };
        start_uneven(tm, dest, taken, source, only(tm, root, bytes))
    }

    fn gexw_Coll_GatherAllvNB(tm: Tm, dest: *mut c_void, lens: *const usize, offsets: *const usize, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        let given = vec![Extent::new(0, bytes); tm.team().size() as usize];
        // SAFETY: each member passes lists of one entry for each member.
        start_uneven(tm, dest, unsafe { extents(tm, lens, offsets) }, source, given)
    }

    fn gexw_Coll_ExchangevNB(tm: Tm, dest: *mut c_void, dest_lens: *const usize, dest_offsets: *const usize, source: *const c_void, source_lens: *const usize, source_offsets: *const usize, _flags: u32) -> Event {
        // SAFETY: as above.
        let taken = unsafe { extents(tm, dest_lens, dest_offsets) };
        // SAFETY: as above.
        let given = unsafe { extents(tm, source_lens, source_offsets) };
        start_uneven(tm, dest, taken, source, given)
    }

    fn gex_Coll_ReduceToOneNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        check_root(tm, root);
        let dest = if tm.team().rank() == root { dest } else { std::ptr::null_mut() };
        Reduction { dt, bytes, count, op, function, cdata }.start(tm, To::One(root), dest, source)
    }

    fn gex_Coll_ReduceToAllNB(tm: Tm, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        Reduction { dt, bytes, count, op, function, cdata }.start(tm, To::All, dest, source)
    }

    fn gexw_Coll_ReduceScatterNB(tm: Tm, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        Reduction { dt, bytes, count, op, function, cdata }.start(tm, To::Each, dest, source)
    }

    fn gexw_Coll_ScanNB(tm: Tm, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        Reduction { dt, bytes, count, op, function, cdata }.start(tm, To::Prefix(Prefix::Inclusive), dest, source)
    }

    fn gexw_Coll_ExScanNB(tm: Tm, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        Reduction { dt, bytes, count, op, function, cdata }.start(tm, To::Prefix(Prefix::Exclusive), dest, source)
    }
}
