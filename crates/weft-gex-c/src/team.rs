//! `gex_TM_…`: teams, and pairs of endpoints.

use std::ffi::{c_int, c_void};

use weft_gex::endpoint;
use weft_gex::fatal;
use weft_gex::table::Location;
use weft_gex::team::{Team, Wish};

use crate::address::base;
use crate::handles::{ClientHandle, EpHandle, Meaning, Tm, export, job, list, put};

/// Flags that ask for the size of memory and make no team.
const SIZE_QUERIES: u32 = 3;
/// The client has made sure that no member uses the team.
const FLAG_QUIESCED: u32 = 1 << 13;
/// The memory of teams is given by offsets in the segment of the first endpoint.
const FLAG_SCRATCH_OFFSET: u32 = 1 << 6;
/// The size that queries answer. Teams need no memory of the client, but clients may expect some.
const SCRATCH_BYTES: usize = 64;

/// `gex_EP_Location_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct EpLocation {
    rank: u32,
    endpoint: u16,
}

/// `gex_Memvec_t`.
#[repr(C)]
struct Memvec {
    addr: *mut c_void,
    bytes: usize,
}

/// Makes teams of the members of each color. Collective over the parent.
fn split(parent: Tm, wish: Wish, scratch: Option<[usize; 2]>, flags: u32) -> Option<&'static Team> {
    match parent.team().split(job(), wish, flags) {
        Ok(team) => team.map(|team| &*Box::leak(Box::new(team.with_scratch(scratch)))),
        Err(error) => fatal!("a team cannot be made: {error}"),
    }
}

fn scratch_of(addr: *mut c_void, bytes: usize, flags: u32) -> Option<[usize; 2]> {
    (bytes > 0).then(|| [addr.expose_provenance().wrapping_add(scratch_base(flags)), bytes])
}

/// The address at which offsets of the memory of teams begin; 0: the call has addresses.
fn scratch_base(flags: u32) -> usize {
    if flags & FLAG_SCRATCH_OFFSET == 0 { 0 } else { base(job(), Location::new(job().rank(), 0)) }
}

fn destroy(tm: Tm, flags: u32) -> Option<[usize; 2]> {
    let (job, team) = (job(), tm.team());
    if std::ptr::eq(team, job.world()) {
        fatal!("the team of all ranks was destroyed; destroy teams of gex_TM_Split only");
    }
    if flags & FLAG_QUIESCED == 0 {
        team.pass_barrier(job);
    }
    team.leave(job);
    let scratch = team.scratch();
    // SAFETY: the team was leaked by `split`, and the client uses it no more. No list of the job has it.
    drop(unsafe { Box::from_raw(tm.as_ptr().cast_mut()) });
    scratch
}

/// The color of this rank in the creation of a team from a list of members: the first member of the list, which is the
/// same number in all its members.
fn wish_of(job_rank: u32, parent: &Team, members: &[EpLocation]) -> Wish {
    let key = members.iter().position(|member| parent.job_rank(member.rank) == Some(job_rank));
    let color = members.first().map_or(0, |member| member.rank);
    let key = key.and_then(|key| u32::try_from(key).ok());
    Wish { color, key: key.unwrap_or(0), joins: key.is_some() }
}

export! {
    fn gex_TM_Split(new: *mut Tm, parent: Tm, color: c_int, key: c_int, scratch: *mut c_void, bytes: usize, flags: u32) -> usize {
        if flags & SIZE_QUERIES != 0 {
            // The answer depends on no other member, so nothing is exchanged.
            return if new.is_null() { 0 } else { SCRATCH_BYTES };
        }
        // Keys may be negative, and their order is that of signed numbers.
        let key = key.cast_unsigned() ^ (1 << 31);
        let wish = Wish { color: color.cast_unsigned(), key, joins: !new.is_null() };
        let team = split(parent, wish, scratch_of(scratch, bytes, flags), flags);
        // SAFETY: the client's pointer is null or writable.
        unsafe { put(new, team.map_or(Tm::INVALID, Tm::of)) };
        0
    }

    fn gex_TM_Create(new: *mut Tm, teams: usize, parent: Tm, members: *const EpLocation, count: usize, scratch: *const *mut c_void, bytes: usize, flags: u32) -> usize {
        if flags & SIZE_QUERIES != 0 {
            return if teams == 0 { 0 } else { SCRATCH_BYTES };
        }
        // SAFETY: the client passes a list of that length.
        let members = if teams == 0 { &[] } else { unsafe { list(members, count) } };
        if members.iter().any(|member| member.endpoint != 0) || teams > 1 {
            fatal!("a team of endpoints other than the first of each rank is not supported; pass endpoints of index 0");
        }
        // SAFETY: the client passes one pointer for each team, or null.
        let first = if scratch.is_null() || teams == 0 { std::ptr::null_mut() } else { unsafe { *scratch } };
        let wish = wish_of(job().rank(), parent.team(), members);
        let team = split(parent, wish, scratch_of(first, bytes, flags), flags);
        if let Some(team) = team {
            // SAFETY: the client's pointer is writable.
            unsafe { put(new, Tm::of(team)) };
        }
        0
    }

    fn gex_TM_Destroy(tm: Tm, scratch: *mut Memvec, flags: u32) -> c_int {
        match destroy(tm, flags) {
            Some([addr, bytes]) if !scratch.is_null() => {
                let addr = std::ptr::with_exposed_provenance_mut(addr.wrapping_sub(scratch_base(flags)));
                // SAFETY: the client's pointer is writable.
                unsafe { put(scratch, Memvec { addr, bytes }) };
                1
            }
            _ => 0,
        }
    }

    fn gex_TM_Pair(ep: EpHandle, remote: u16) -> Tm {
        Tm::pair(ep.get().index(), remote)
    }

    fn gex_TM_TranslateRankToJobrank(tm: Tm, rank: u32) -> u32 {
        tm.at(job(), rank).rank()
    }

    fn gex_TM_TranslateJobrankToRank(tm: Tm, rank: u32) -> u32 {
        match tm.meaning() {
            Meaning::Team(team) => team.member(rank).unwrap_or(u32::MAX),
            Meaning::Pair { .. } => rank,
        }
    }

    fn gex_TM_TranslateRankToEP(tm: Tm, rank: u32, _flags: u32) -> EpLocation {
        let at = tm.at(job(), rank);
        EpLocation { rank: at.rank(), endpoint: at.endpoint() }
    }

    fn gex_TM_QueryClient(_tm: Tm) -> ClientHandle {
        ClientHandle::of(job().client())
    }

    fn gex_TM_QueryEP(tm: Tm) -> EpHandle {
        match tm.meaning() {
            Meaning::Team(_) => EpHandle::of(job().endpoint()),
            Meaning::Pair { local, .. } => job().endpoint_at(local).map_or(EpHandle::INVALID, EpHandle::of),
        }
    }

    fn gex_TM_QueryFlags(tm: Tm) -> u32 {
        match tm.meaning() {
            Meaning::Team(team) => team.flags(),
            Meaning::Pair { .. } => 0,
        }
    }

    fn gex_TM_QueryRank(tm: Tm) -> u32 {
        match tm.meaning() {
            Meaning::Team(team) => team.rank(),
            Meaning::Pair { .. } => job().rank(),
        }
    }

    fn gex_TM_QuerySize(tm: Tm) -> u32 {
        match tm.meaning() {
            Meaning::Team(team) => team.size(),
            Meaning::Pair { .. } => job().ranks(),
        }
    }

    fn gex_TM_SetCData(tm: Tm, value: *mut c_void) {
        endpoint::set_cdata(tm.team().cdata(), value);
    }

    fn gex_TM_QueryCData(tm: Tm) -> *mut c_void {
        endpoint::cdata(tm.team().cdata())
    }
}
