//! `gex_AD_…`: atomic domains. Within a neighbourhood each operation is an instruction of the processor, performed by
//! the call. Others are operations of the engine, whose target executes the same instructions.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicPtr;

use weft_gex::after::Wait;
use weft_gex::atomic::{Op, Operands, perform};
use weft_gex::combine::Type;
use weft_gex::endpoint;
use weft_gex::event::Category;
use weft_gex::far::Update;
use weft_gex::fatal;
use weft_gex::memory::Piece;
use weft_gex::table::{Location, Place};

use crate::address;
use crate::after::{self, By};
use crate::event::Event;
use crate::handles::{OK, Tm, export, job, put};

/// The rank of an operation is one of the job.
const FLAG_JOBRANK: u32 = 1 << 13;

/// A domain. Inline functions of the headers read its beginning (`gex_weft_domain_t`).
#[repr(C)]
pub(crate) struct Domain {
    tm: Tm,
    ty_bits: u32,
    ty: Type,
    ops: u32,
    flags: u32,
    cdata: AtomicPtr<c_void>,
}

fn get<'a>(ad: *const Domain) -> &'a Domain {
    if ad.is_null() {
        fatal!("a call got no atomic domain; pass one of gex_AD_Create");
    }
    // SAFETY: the client passes domains that it has created and not destroyed.
    unsafe { &*ad }
}

/// An operation of the client.
struct Call {
    rank: u32,
    target: *mut c_void,
    op: u32,
    flags: u32,
    operands: Operands,
}

/// The outcome of a call.
enum Outcome {
    /// The operation is performed. If it fetches, this is the earlier value.
    Done(Option<u64>),
    /// The engine is to perform it.
    Remote(Update),
    /// It is to be performed later.
    Later(Wait, Update),
}

/// The category in which the thread counts an operation.
fn category(update: &Update) -> Category {
    match update.op {
        Op::Get => Category::Get,
        Op::Set if update.result == 0 => Category::Put,
        _ => Category::Update,
    }
}

/// Starts an operation of the engine.
#[cold]
fn start(update: &Update, by: By) -> Event {
    let (slot, event) = by.slot(category(update));
    job().start_update(update, slot);
    if by == By::Event && update.result == 0 {
        slot.set_turn(update.at.rank());
    }
    event
}

/// Starts an operation when others are complete.
#[cold]
fn start_after(wait: Wait, update: &Update, by: By) -> Event {
    let place = job().place(update.at, Piece { addr: update.remote, bytes: update.ty.bytes() });
    if place == Place::Remote && wait.is_in_turn(update.at.rank()) {
        let _ = wait.end();
        let event = start(update, by);
        job().flush();
        return event;
    }
    after::leave_update(wait, update, category(update), by)
}

/// Performs an operation, unless the engine has to. `result`: the address for the earlier value.
#[inline(always)]
fn operate(ad: *const Domain, ty: Type, call: &Call, result: usize) -> Outcome {
    let (job, domain) = (job(), get(ad));
    let at = if call.flags & FLAG_JOBRANK != 0 { Location::new(call.rank, 0) } else { domain.tm.at(job, call.rank) };
    let Some((op, fetches)) = Op::from_code(call.op).filter(|(op, _)| op.fits(ty) && ty == domain.ty) else {
        fatal!("operation {:#x} is not one of the domain's type; create the domain for it", call.op);
    };
    let remote = address::at_peer(job, at, call.target, call.flags);
    let update = || {
        let result = if fetches { result } else { 0 };
        Update { at, remote, ty, op, operands: call.operands, result }
    };
    let here = match job.place(at, Piece { addr: remote, bytes: ty.bytes() }) {
        Place::Here(here) => here,
        Place::Remote if remote.is_multiple_of(ty.bytes()) => {
            return after::take().map_or_else(|| Outcome::Remote(update()), |wait| Outcome::Later(wait, update()));
        }
        Place::Remote => not_aligned(call.target),
        Place::Far(_) | Place::Nowhere => fatal!(
            "the target {:?} of an atomic operation is not in a segment of rank {} that the library has allocated; pass an address of such a segment",
            call.target,
            at.rank()
        ),
    };
    if let Some(wait) = after::take() {
        if !here.is_multiple_of(ty.bytes()) {
            not_aligned(call.target);
        }
        return Outcome::Later(wait, update());
    }
    match perform(here, ty, op, call.operands) {
        Some(old) => Outcome::Done(fetches.then_some(old)),
        None => not_aligned(call.target),
    }
}

#[cold]
fn not_aligned(target: *mut c_void) -> ! {
    fatal!("the target {target:?} of an atomic operation is not aligned; align it to its size")
}

macro_rules! operations {
    ($($nb:ident $nbi:ident $ty:ty, $kind:ident, $to:expr, $from:expr;)*) => {
        export! {
            $(
                fn $nb(ad: *const Domain, result: *mut $ty, rank: u32, target: *mut c_void, op: u32, first: $ty, second: $ty, flags: u32) -> Event {
                    let result = address::here_mut(job(), get(ad).tm, result, flags);
                    let operands = Operands { first: $to(first), second: $to(second) };
                    let call = Call { rank, target, op, flags, operands };
                    match operate(ad, Type::$kind, &call, result.expose_provenance()) {
                        // SAFETY: the client's pointer is writable if the operation fetches.
                        Outcome::Done(Some(old)) => unsafe { put(result, $from(old)) },
                        Outcome::Done(None) => {}
                        Outcome::Remote(update) => return start(&update, By::Event),
                        Outcome::Later(wait, update) => return start_after(wait, &update, By::Event),
                    }
                    Event::INVALID
                }

                fn $nbi(ad: *const Domain, result: *mut $ty, rank: u32, target: *mut c_void, op: u32, first: $ty, second: $ty, flags: u32) -> c_int {
                    let result = address::here_mut(job(), get(ad).tm, result, flags);
                    let operands = Operands { first: $to(first), second: $to(second) };
                    let call = Call { rank, target, op, flags, operands };
                    match operate(ad, Type::$kind, &call, result.expose_provenance()) {
                        // SAFETY: as above.
                        Outcome::Done(Some(old)) => unsafe { put(result, $from(old)) },
                        Outcome::Done(None) => {}
                        Outcome::Remote(update) => _ = start(&update, By::Count),
                        Outcome::Later(wait, update) => _ = start_after(wait, &update, By::Count),
                    }
                    OK
                }
            )*
        }
    };
}

/// The low half of a word, which holds a number of 32 bits.
#[expect(clippy::cast_possible_truncation, reason = "the low half is asked for")]
fn low(word: u64) -> u32 {
    word as u32
}

operations! {
    gex_AD_OpNB_I32 gex_AD_OpNBI_I32 i32, I32, |value: i32| u64::from(value.cast_unsigned()), |word| low(word).cast_signed();
    gex_AD_OpNB_U32 gex_AD_OpNBI_U32 u32, U32, u64::from, low;
    gex_AD_OpNB_I64 gex_AD_OpNBI_I64 i64, I64, i64::cast_unsigned, u64::cast_signed;
    gex_AD_OpNB_U64 gex_AD_OpNBI_U64 u64, U64, |value| value, |word| word;
    gex_AD_OpNB_FLT gex_AD_OpNBI_FLT f32, Float, |value: f32| u64::from(value.to_bits()), |word| f32::from_bits(low(word));
    gex_AD_OpNB_DBL gex_AD_OpNBI_DBL f64, Double, f64::to_bits, f64::from_bits;
}

export! {
    fn gex_AD_Create(ad: *mut *mut Domain, tm: Tm, dt: u32, ops: u32, flags: u32) {
        let Some(ty) = Type::from_bit(dt.trailing_zeros()).filter(|_| dt.is_power_of_two()) else {
            fatal!("data type {dt:#x} has no atomic operations; pass one of GEX_DT_I32 to GEX_DT_DBL");
        };
        let domain = Domain { tm, ty, ty_bits: dt, ops, flags, cdata: AtomicPtr::default() };
        // SAFETY: the client's pointer is writable.
        unsafe { put(ad, Box::into_raw(Box::new(domain))) };
        tm.team().pass_barrier(job());
    }

    fn gex_AD_Destroy(ad: *mut Domain) {
        get(ad).tm.team().pass_barrier(job());
        // SAFETY: `gex_AD_Create` has made it, and the client uses it no more.
        drop(unsafe { Box::from_raw(ad) });
    }

    fn gex_AD_QueryFlags(ad: *const Domain) -> u32 {
        get(ad).flags
    }

    fn gex_AD_QueryTM(ad: *const Domain) -> Tm {
        get(ad).tm
    }

    fn gex_AD_QueryDT(ad: *const Domain) -> u32 {
        get(ad).ty_bits
    }

    fn gex_AD_QueryOps(ad: *const Domain) -> u32 {
        get(ad).ops
    }

    fn gex_AD_SetCData(ad: *const Domain, value: *mut c_void) {
        endpoint::set_cdata(&get(ad).cdata, value);
    }

    fn gex_AD_QueryCData(ad: *const Domain) -> *mut c_void {
        endpoint::cdata(&get(ad).cdata)
    }
}
