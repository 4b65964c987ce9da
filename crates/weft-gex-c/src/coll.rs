//! `gex_Coll_…`: broadcasts and reductions.

use std::ffi::c_void;

use weft_gex::coll::{Collective, Combine};
use weft_gex::combine::{Op, Type};
use weft_gex::fatal;
use weft_gex::invoke::ReduceFn;
use weft_gex::spread::To;

use crate::event::Event;
use crate::handles::{Tm, export, job};

const DT_USER: u32 = 1 << 6;
const OP_USER: u32 = 1 << 30;
const OP_USER_NC: u32 = 1 << 31;

/// Starts a collective.
pub(crate) fn start(tm: Tm, collective: Collective) -> Event {
    match tm.team().start(job(), collective) {
        Ok(slot) => Event::of(slot),
        Err(bytes) => fatal!("elements of {bytes} bytes are too long for a reduction; pass at most 8192"),
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
            return Combine::User { function, cdata: self.cdata.expose_provenance(), bytes: self.bytes };
        }
        let ty = Type::from_bit(self.dt.trailing_zeros()).filter(|_| self.dt & DT_USER == 0);
        let op = Op::from_bit(self.op.trailing_zeros()).filter(|_| self.op.is_power_of_two());
        match (ty, op) {
            (Some(ty), Some(op)) if op.fits(ty) && ty.bytes() == self.bytes => Combine::Known(ty, op),
            _ => fatal!(
                "a reduction of type {:#x}, {} bytes an element, by operation {:#x} is not defined; pass a type, its size and an operation for it",
                self.dt,
                self.bytes,
                self.op
            ),
        }
    }

    fn collective(&self, to: To, source: *const c_void, result: *mut c_void) -> Collective {
        let (source, result) = (source.expose_provenance(), result.expose_provenance());
        Collective::Reduce { to, source, result, count: self.count, combine: self.combine() }
    }
}

export! {
    fn gex_Coll_BroadcastNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, bytes: usize, _flags: u32) -> Event {
        let (source, result) = (source.expose_provenance(), dest.expose_provenance());
        start(tm, Collective::Broadcast { root, source, result, bytes })
    }

    fn gex_Coll_ReduceToOneNB(tm: Tm, root: u32, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        let dest = if tm.team().rank() == root { dest } else { std::ptr::null_mut() };
        start(tm, Reduction { dt, bytes, count, op, function, cdata }.collective(To::One(root), source, dest))
    }

    fn gex_Coll_ReduceToAllNB(tm: Tm, dest: *mut c_void, source: *const c_void, dt: u32, bytes: usize, count: usize, op: u32, function: Option<ReduceFn>, cdata: *const c_void, _flags: u32) -> Event {
        start(tm, Reduction { dt, bytes, count, op, function, cdata }.collective(To::All, source, dest))
    }
}
