//! The flags by which a call gives an offset in a segment in place of an address.
//!
//! Place in the data flow: every call with an address at a peer, or with a local one, passes it here first. Without a
//! flag it stays as it is. The sum wraps, so that the check of the segment also finds negative offsets.

use std::ffi::c_void;

use weft_gex::fatal;
use weft_gex::job::Job;
use weft_gex::table::Location;

use crate::handles::{Meaning, Tm};

/// Local addresses are offsets in the segment of the own endpoint.
pub(crate) const SELF_SEG_OFFSET: u32 = 1 << 6;
/// Addresses at the peer are offsets in the segment of its endpoint.
pub(crate) const PEER_SEG_OFFSET: u32 = 1 << 10;

/// Addresses at the peer may be anywhere in its process (`GEX_FLAG_PEER_SEG_UNKNOWN`, `…_SOME`).
pub(crate) const ANYWHERE: u32 = 1 << 7 | 1 << 8;
/// Addresses at the peer are in its segment, as without a flag.
const PEER_SEG_BOUND: u32 = 1 << 9;

/// An address in the process of a peer.
#[inline(always)]
pub(crate) fn at_peer(job: &Job, at: Location, addr: *const c_void, flags: u32) -> usize {
    let addr = addr.expose_provenance();
    if flags & PEER_SEG_OFFSET == 0 { addr } else { addr.wrapping_add(base_of_peer(job, at, flags)) }
}

/// An address in this process, for a call with a team.
#[inline(always)]
pub(crate) fn here<T>(job: &Job, tm: Tm, addr: *const T, flags: u32) -> *const T {
    if flags & SELF_SEG_OFFSET == 0 { addr } else { addr.wrapping_byte_add(base(job, own(job, tm))) }
}

/// As [`here`], for memory that the call writes.
#[inline(always)]
pub(crate) fn here_mut<T>(job: &Job, tm: Tm, addr: *mut T, flags: u32) -> *mut T {
    here(job, tm, addr, flags).cast_mut()
}

fn base_of_peer(job: &Job, at: Location, flags: u32) -> usize {
    if flags & (ANYWHERE | PEER_SEG_BOUND) != 0 {
        fatal!("a call has GEX_FLAG_PEER_SEG_OFFSET and another flag for the peer's address; pass one of them");
    }
    base(job, at)
}

/// The own endpoint of a team or pair.
fn own(job: &Job, tm: Tm) -> Location {
    match tm.meaning() {
        Meaning::Team(team) => Location::new(job.rank(), team.endpoint()),
        Meaning::Pair { local, .. } => Location::new(job.rank(), local),
    }
}

/// The address of an endpoint's segment in its process.
pub(crate) fn base(job: &Job, at: Location) -> usize {
    match job.segment_base(at) {
        Some(base) => base,
        None => no_segment(at),
    }
}

#[cold]
fn no_segment(at: Location) -> ! {
    fatal!(
        "a call has an offset in the segment of endpoint {} of rank {}, which has none; attach or publish one first, or pass an address",
        at.endpoint(),
        at.rank()
    )
}
