//! The client's handles, and the shape of exported functions.
//!
//! A handle is the address of an object that lives until the process ends, or until the client destroys it. The handle
//! of a pair of endpoints is a number with bit 0 set, which no address has.

use std::ffi::c_int;

use weft_gex::endpoint::{Client, Endpoint, Segment};
use weft_gex::fatal;
use weft_gex::job::Job;
use weft_gex::table::Location;
use weft_gex::team::Team;

/// Defines exported functions.
macro_rules! export {
    ($($(#[$meta:meta])* fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $result:ty)? $body:block)*) => {
        $(
            $(#[$meta])*
            // SAFETY: the name is one of the API, which no other library of the program defines.
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $name($($argument: $ty),*) $(-> $result)? $body
        )*
    };
}
pub(crate) use export;

/// Success.
pub(crate) const OK: c_int = 0;
/// The job has not started, or has started already.
pub(crate) const ERR_NOT_INIT: c_int = 10001;
/// A resource is short.
pub(crate) const ERR_RESOURCE: c_int = 10002;
/// An argument is wrong.
pub(crate) const ERR_BAD_ARG: c_int = 10003;
/// The operation is not complete.
pub(crate) const ERR_NOT_READY: c_int = 10004;
/// The ids of a barrier differ.
pub(crate) const ERR_BARRIER_MISMATCH: c_int = 10005;

/// Any call may refuse instead of polling.
pub(crate) const FLAG_IMMEDIATE: u32 = 1;

/// The job, which every call but the first needs.
#[inline(always)]
pub(crate) fn job() -> &'static Job {
    match Job::get() {
        Some(job) => job,
        None => no_job(),
    }
}

#[cold]
fn no_job() -> ! {
    fatal!("a call came before gex_Client_Init; call that first")
}

macro_rules! handle {
    ($(#[$meta:meta])* $name:ident of $ty:ty, $what:literal) => {
        $(#[$meta])*
        #[repr(transparent)]
        #[derive(Clone, Copy)]
        pub(crate) struct $name(*const $ty);

        impl $name {
            /// No object.
            #[allow(dead_code)] // Not every kind of object may be missing.
            pub(crate) const INVALID: Self = Self(std::ptr::null());

            /// Whether there is no object.
            #[allow(dead_code)] // As above.
            pub(crate) fn is_invalid(self) -> bool {
                self.0.is_null()
            }

            /// The address of the object, to destroy it.
            #[allow(dead_code)] // As above.
            pub(crate) fn as_ptr(self) -> *const $ty {
                self.0
            }

            /// The handle of an object.
            pub(crate) fn of(object: &'static $ty) -> Self {
                Self(object)
            }

            /// The object.
            #[inline(always)]
            pub(crate) fn get(self) -> &'static $ty {
                if self.0.is_null() {
                    fatal!(concat!("a call got no ", $what, "; pass one that was returned by the library"));
                }
                // SAFETY: the client passes handles that the library has returned, and none that it has destroyed.
                unsafe { &*self.0 }
            }
        }
    };
}

handle!(
    /// `gex_Client_t`.
    ClientHandle of Client, "client"
);
handle!(
    /// `gex_EP_t`.
    EpHandle of Endpoint, "endpoint"
);
handle!(
    /// `gex_Segment_t`.
    SegmentHandle of Segment, "segment"
);

/// `gex_TM_t`: a team, or a pair of endpoints.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Tm(*const Team);

/// The meaning of a [`Tm`].
pub(crate) enum Meaning {
    /// A team.
    Team(&'static Team),
    /// The own endpoint and those of a number in all ranks.
    Pair {
        /// The number of the own endpoint.
        local: u16,
        /// The number of the endpoints of others.
        remote: u16,
    },
}

impl Tm {
    /// No team.
    pub(crate) const INVALID: Self = Self(std::ptr::null());

    /// The handle of a team.
    pub(crate) fn of(team: &'static Team) -> Self {
        Self(team)
    }

    /// A pair of endpoints.
    pub(crate) fn pair(local: u16, remote: u16) -> Self {
        Self(std::ptr::without_provenance((usize::from(remote) << 17) | (usize::from(local) << 1) | 1))
    }

    /// The meaning of the handle.
    #[inline(always)]
    pub(crate) fn meaning(self) -> Meaning {
        let bits = self.0.addr();
        if bits & 1 == 0 {
            return Meaning::Team(self.team());
        }
        #[expect(clippy::cast_possible_truncation, reason = "16 bits each")]
        let (local, remote) = ((bits >> 1) as u16, (bits >> 17) as u16);
        Meaning::Pair { local, remote }
    }

    /// The team of a call that needs one.
    #[inline(always)]
    pub(crate) fn team(self) -> &'static Team {
        if self.0.is_null() || self.0.addr() & 1 != 0 {
            no_team(self.0.is_null());
        }
        // SAFETY: the client passes handles that the library has returned, and none that it has destroyed. Bit 0 is
        // clear, so this is not a pair.
        unsafe { &*self.0 }
    }

    /// The endpoint of a rank.
    #[inline(always)]
    pub(crate) fn at(self, job: &Job, rank: u32) -> Location {
        let place = match self.meaning() {
            Meaning::Team(team) => team.location(rank),
            Meaning::Pair { local, remote } => (rank < job.ranks()).then(|| Location::new(rank, remote).used_by(local)),
        };
        match place {
            Some(place) => place,
            None => no_rank(rank),
        }
    }

    /// The address of the handle, to destroy its team.
    pub(crate) fn as_ptr(self) -> *const Team {
        self.0
    }
}

#[cold]
fn no_team(is_null: bool) -> ! {
    let got = if is_null { "GEX_TM_INVALID" } else { "a pair of endpoints" };
    fatal!("a call that needs a team got {got}; pass a team that gex_Client_Init or gex_TM_Split has returned")
}

#[cold]
fn no_rank(rank: u32) -> ! {
    fatal!("rank {rank} is not in the team; pass a rank below gex_TM_QuerySize")
}

/// Writes a result through a pointer of the client, unless it is null.
///
/// # Safety
/// `to` is null or writable.
#[inline(always)]
pub(crate) unsafe fn put<T>(to: *mut T, value: T) {
    if !to.is_null() {
        // SAFETY: the caller's contract.
        unsafe { to.write(value) };
    }
}

/// A list of the client.
///
/// # Safety
/// `list` points to `count` values, or `count` is 0.
#[inline(always)]
pub(crate) unsafe fn list<'a, T>(list: *const T, count: usize) -> &'a [T] {
    if count == 0 {
        return &[];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts(list, count) }
}

/// A list of the client that the call changes.
///
/// # Safety
/// `list` points to `count` values, or `count` is 0; the client does not use it during the call.
#[inline(always)]
pub(crate) unsafe fn list_mut<'a, T>(list: *mut T, count: usize) -> &'a mut [T] {
    if count == 0 {
        return &mut [];
    }
    // SAFETY: the caller's contract.
    unsafe { std::slice::from_raw_parts_mut(list, count) }
}

/// Reports an error of a call, if the client wants such reports, and returns its code.
#[cold]
pub(crate) fn failed(code: c_int, call: &str, why: &dyn std::fmt::Display) -> c_int {
    if crate::system::is_verbose() {
        let rank = Job::get().map_or(0, Job::rank);
        weft_gex::os::say(format!("weft-gex: rank {rank}: {call}: {why}\n").as_bytes());
    }
    code
}
