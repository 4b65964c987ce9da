//! `gex_TM_…`: teams, and pairs of endpoints.

use std::ffi::{c_int, c_void};

use weft_gex::endpoint;
use weft_gex::fatal;
use weft_gex::table::Location;
use weft_gex::team::{self, Team, Wish};

use crate::address::base;
use crate::handles::{ClientHandle, EpHandle, Meaning, Tm, export, job, list, list_mut, put};

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

/// Makes the team of a list of endpoints, for each of them that this rank has.
fn create(parent: Tm, members: &[EpLocation], flags: u32) -> Vec<Team> {
    let (job, parent) = (job(), parent.team());
    let locate = |member: &EpLocation| match parent.job_rank(member.rank) {
        Some(rank) => Location::new(rank, member.endpoint),
        None => fatal!("rank {} is not in the parent team; pass ranks below gex_TM_QuerySize", member.rank),
    };
    let members: Vec<Location> = members.iter().map(locate).collect();
    for at in members.iter().filter(|at| at.rank() == job.rank()) {
        if job.endpoint_at(at.endpoint()).is_none() {
            fatal!("this rank has no endpoint {}; create it before a team of it", at.endpoint());
        }
    }
    team::of_endpoints(job, parent, &members, flags).unwrap_or_else(|error| fatal!("a team cannot be made: {error}"))
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
        let made = create(parent, members, flags);
        // A rank without an endpoint in the list may name room for a team. Its handle stays as it is.
        if made.len() > teams {
            fatal!("gex_TM_Create got {} endpoints of this rank for {teams} teams; pass room for one team each", made.len());
        }
        let rooms = if scratch.is_null() { 0 } else { teams };
        // SAFETY: the client passes one pointer for each team, or null.
        let scratch = unsafe { list(scratch, rooms) };
        // SAFETY: the client passes room for the teams, and does not use it meanwhile.
        for (at, (new, team)) in unsafe { list_mut(new, teams) }.iter_mut().zip(made).enumerate() {
            let memory = scratch.get(at).and_then(|&addr| scratch_of(addr, bytes, flags));
            *new = Tm::of(Box::leak(Box::new(team.with_scratch(memory))));
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
            Meaning::Team(team) => job().endpoint_at(team.endpoint()).map_or(EpHandle::INVALID, EpHandle::of),
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
