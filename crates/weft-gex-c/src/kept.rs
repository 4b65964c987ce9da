//! `gasnet_…`: calls that the API keeps from its first version.

use std::ffi::{c_char, c_int};

use weft_gex::exit;
use weft_gex::invoke::{ANY_ARGS, Entry};
use weft_gex::job::Job;
use weft_gex::table::Location;
use weft_gex::wait::{Mode, Pause};

use crate::handles::{ERR_BAD_ARG, OK, export, failed, job, list, list_mut};
use crate::segment::attach;

/// The errors of the API, with their names and descriptions.
const ERRORS: [(c_int, &std::ffi::CStr, &std::ffi::CStr); 6] = [
    (0, c"GASNET_OK", c"No error"),
    (10001, c"GASNET_ERR_NOT_INIT", c"The job has not started"),
    (10002, c"GASNET_ERR_RESOURCE", c"A resource is short"),
    (10003, c"GASNET_ERR_BAD_ARG", c"An argument is not valid"),
    (10004, c"GASNET_ERR_NOT_READY", c"The operation is not complete"),
    (10005, c"GASNET_ERR_BARRIER_MISMATCH", c"The ids of a barrier differ"),
];

/// `gasnet_seginfo_t`.
#[repr(C)]
struct SegmentInfo {
    addr: usize,
    bytes: usize,
}

/// `gasnet_nodeinfo_t`.
#[repr(C)]
struct NodeInfo {
    host: u32,
    supernode: u32,
    /// The difference between addresses here and there.
    offset: isize,
}

/// `gasnet_handlerentry_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Handler {
    index: u8,
    function: Option<unsafe extern "C" fn()>,
}

fn register(table: &mut [Handler]) -> c_int {
    let entry = |handler: &Handler| Entry {
        index: handler.index,
        function: handler.function,
        flags: 0,
        nargs: ANY_ARGS,
        cdata: std::ptr::null(),
        name: std::ptr::null(),
    };
    let mut entries: Vec<Entry> = table.iter().map(entry).collect();
    if let Err(why) = job().endpoint().register(&mut entries) {
        return failed(ERR_BAD_ARG, "gasnet_attach", &why);
    }
    table.iter_mut().zip(entries).for_each(|(handler, entry)| handler.index = entry.index);
    OK
}

fn error(code: c_int) -> Option<&'static (c_int, &'static std::ffi::CStr, &'static std::ffi::CStr)> {
    ERRORS.iter().find(|(number, _, _)| *number == code)
}

export! {
    fn gasnet_exit(code: c_int) -> ! {
        exit::exit(code)
    }

    fn gasnet_AMPoll() -> c_int {
        job().poll();
        OK
    }

    fn gasnet_set_waitmode(mode: c_int) -> c_int {
        let mode = match mode {
            0 => Mode::Spin,
            1 => Mode::Block,
            2 => Mode::SpinBlock,
            _ => return failed(ERR_BAD_ARG, "gasnet_set_waitmode", &"an unknown mode; pass GASNET_WAIT_…"),
        };
        job().set_wait_mode(mode);
        OK
    }

    fn gex_weft_WaitStep(idle: u32) -> u32 {
        let mut pause = Pause::after(idle);
        pause.step(job());
        pause.idle()
    }

    fn gasnet_getenv(name: *const c_char) -> *mut c_char {
        if name.is_null() {
            return std::ptr::null_mut();
        }
        // SAFETY: the client's name is a text.
        unsafe { libc::getenv(name) }
    }

    fn gasnet_ErrorName(code: c_int) -> *const c_char {
        error(code).map_or(c"unknown error", |(_, name, _)| name).as_ptr()
    }

    fn gasnet_ErrorDesc(code: c_int) -> *const c_char {
        error(code).map_or(c"no description", |(_, _, text)| text).as_ptr()
    }

    fn gasnet_getSegmentInfo(table: *mut SegmentInfo, count: c_int) -> c_int {
        let job = job();
        let count = usize::try_from(count).unwrap_or(0).min(job.ranks() as usize);
        // SAFETY: the client passes a table of that length.
        for (rank, row) in (0..).zip(unsafe { list_mut(table, count) }) {
            let [addr, _, bytes] = job.published(Location::new(rank, 0)).unwrap_or_default();
            *row = SegmentInfo { addr, bytes };
        }
        OK
    }

    fn gasnet_getNodeInfo(table: *mut NodeInfo, count: c_int) -> c_int {
        let job = job();
        let count = usize::try_from(count).unwrap_or(0).min(job.ranks() as usize);
        // SAFETY: the client passes a table of that length.
        for (rank, row) in (0..).zip(unsafe { list_mut(table, count) }) {
            let [there, here, _] = job.published(Location::new(rank, 0)).unwrap_or_default();
            let [host, supernode] = [job.places().host_of(rank), job.places().nbrhd_of(rank)].map(Option::unwrap_or_default);
            let offset = if here == 0 { 0 } else { here.wrapping_sub(there).cast_signed() };
            *row = NodeInfo { host, supernode, offset };
        }
        OK
    }

    fn gasnet_attach(table: *mut Handler, count: c_int, bytes: usize, _offset: usize) -> c_int {
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the client passes a table of that length, and does not use it meanwhile.
        let code = register(unsafe { list_mut(table, count) });
        if code != OK {
            return code;
        }
        match bytes {
            0 => {
                job().world().pass_barrier(job());
                OK
            }
            bytes => attach(job(), bytes).map_or_else(|code| code, |_| OK),
        }
    }
}

const _: fn() = || {
    // The layouts that the headers declare.
    const { assert!(size_of::<NodeInfo>() == 16 && size_of::<Handler>() == 16 && size_of::<SegmentInfo>() == 16) };
    let _ = (Job::get, list::<u8>);
};
