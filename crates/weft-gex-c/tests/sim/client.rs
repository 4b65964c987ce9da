//! The calls of the C interface that the simulated ranks make, as a client's compiler sees them.

#![expect(non_snake_case, reason = "the names of the API")]
#![expect(clippy::too_many_arguments, reason = "the calls of the API")]

use std::ffi::{c_int, c_uint, c_void};

use weft_gex_c as _;

/// A team.
pub(crate) type Tm = *const c_void;
/// An event.
pub(crate) type Event = *const c_void;
/// A message under preparation.
pub(crate) type Prepared = *mut c_void;

/// `GEX_EVENT_NOW`.
pub(crate) const NOW: *mut Event = std::ptr::without_provenance_mut(1);
/// `GEX_FLAG_IMMEDIATE`.
pub(crate) const IMMEDIATE: u32 = 1;

macro_rules! calls {
    ($(fn $name:ident($($argument:ident: $ty:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        mod raw {
            use super::*;
            unsafe extern "C" { $(pub(super) fn $name($($argument: $ty),*) $(-> $result)?;)* }
        }
        $(
            pub(crate) fn $name($($argument: $ty),*) $(-> $result)? {
                // SAFETY: the callers pass objects of the library, and memory that lives until the call or its
                // operation is over.
                unsafe { raw::$name($($argument),*) }
            }
        )*
    };
}

calls! {
    fn gex_weft_tm0() -> Tm;
    fn gasnet_AMPoll() -> c_int;
    fn gasnet_exit(code: c_int) -> !;
    fn gexw_System_SetFailureHandler(handler: Option<unsafe extern "C" fn(u32)>);
    fn gexw_System_HasFailed(rank: u32) -> c_int;
    fn gex_Segment_Attach(segment: *mut *const c_void, tm: Tm, bytes: usize) -> c_int;
    fn gex_weft_AM_RequestShort(tm: Tm, rank: u32, handler: u8, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_weft_AM_RequestMedium(tm: Tm, rank: u32, handler: u8, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_weft_AM_RequestLong(tm: Tm, rank: u32, handler: u8, source: *const c_void, bytes: usize, dest: *mut c_void, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_weft_AM_ReplyShort(token: *const c_void, handler: u8, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_weft_AM_ReplyMedium(token: *const c_void, handler: u8, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_AM_PrepareRequestMedium(tm: Tm, rank: u32, client: *const c_void, least: usize, most: usize, lc: *mut Event, flags: u32, nargs: c_uint) -> Prepared;
    fn gex_AM_PrepareReplyMedium(token: *const c_void, client: *const c_void, least: usize, most: usize, lc: *mut Event, flags: u32, nargs: c_uint) -> Prepared;
    fn gex_AM_SrcDescAddr(sd: Prepared) -> *mut c_void;
    fn gex_weft_AM_CommitRequestMedium(sd: Prepared, handler: u8, bytes: usize, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_weft_AM_CommitReplyMedium(sd: Prepared, handler: u8, bytes: usize, flags: u32, nargs: c_uint, args: *const i32) -> c_int;
    fn gex_AM_CancelRequestMedium(sd: Prepared, flags: u32) -> c_int;
    fn gex_RMA_PutNB(tm: Tm, rank: u32, dest: *mut c_void, source: *const c_void, bytes: usize, lc: *mut Event, flags: u32) -> Event;
    fn gex_RMA_GetNB(tm: Tm, dest: *mut c_void, rank: u32, source: *const c_void, bytes: usize, flags: u32) -> Event;
    fn gex_VIS_StridedPutBlocking(tm: Tm, rank: u32, dest: *mut c_void, dest_strides: *const isize, source: *const c_void, source_strides: *const isize, bytes: usize, counts: *const usize, levels: usize, flags: u32) -> c_int;
    fn gex_VIS_StridedGetBlocking(tm: Tm, dest: *mut c_void, dest_strides: *const isize, rank: u32, source: *const c_void, source_strides: *const isize, bytes: usize, counts: *const usize, levels: usize, flags: u32) -> c_int;
    fn gex_Event_Wait(event: Event);
    fn gex_Event_Test(event: Event) -> c_int;
}

/// The bytes of a message.
pub(crate) fn bytes_of<'a>(address: *mut c_void, len: usize) -> &'a mut [u8] {
    if len == 0 {
        return &mut [];
    }
    // SAFETY: the library or a test lends this memory for the time of a handler or of a preparation.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), len) }
}

/// Registers functions as handlers that take any number of arguments.
macro_rules! register {
    ($job:expr, $($index:expr => $function:expr, $ty:ty, $nargs:expr;)*) => {{
        let mut table = [$(weft_gex::invoke::Entry {
            index: $index,
            // SAFETY: the library calls the function with the arguments of its type again.
            function: Some(unsafe { std::mem::transmute::<$ty, unsafe extern "C" fn()>($function) }),
            flags: 0,
            nargs: $nargs,
            cdata: std::ptr::null(),
            name: std::ptr::null(),
        }),*];
        assert!($job.endpoint().register(&mut table).is_ok());
    }};
}
pub(crate) use register;
