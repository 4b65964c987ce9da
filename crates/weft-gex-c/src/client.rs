//! `gex_Client_…`: the start of the job.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};
use std::time::Duration;

use weft_gex::attend::Hidden;
use weft_gex::gate::Threads;
use weft_gex::job::{self, Job, Manner};
use weft_gex::spawn::Conduit;
use weft_gex::table::Mapped;
use weft_gex::{endpoint, env, os};

use crate::handles::{ClientHandle, ERR_BAD_ARG, ERR_NOT_INIT, ERR_RESOURCE, EpHandle, OK, Tm, export, job, put};

/// The version of the document that the headers follow.
const SPEC: [c_uint; 2] = [0, 19];
/// The time in which a launcher passes the message of a failed start on.
const PASS_ON: Duration = Duration::from_millis(200);
/// The number of the mode with one thread.
const SEQ: c_uint = 1;
/// The number of the mode with one thread of the client whose handlers may run in another one.
const SEQ_ATTENDED: c_uint = 3;

/// The settings with which an object of the client was compiled. The layout is that of `gex_weft_build_t`.
#[repr(C)]
pub(crate) struct Build {
    size: usize,
    spec_major: c_uint,
    spec_minor: c_uint,
    threads: c_uint,
    debug: c_uint,
    conduit: *const c_char,
    world: *mut World,
}

/// The data that inline functions of the client's object read. The layout is that of `gex_weft_world_t`.
#[repr(C)]
pub(crate) struct World {
    tm: Tm,
    segments: *const Mapped,
    ranks: c_uint,
    rank: c_uint,
}

/// The variable that inline functions read.
static WORLD: AtomicPtr<World> = AtomicPtr::new(std::ptr::null_mut());

/// Lets inline functions access memory, or makes them call the library.
pub(crate) fn set_inline(allowed: bool) {
    let world = WORLD.load(Ordering::Relaxed);
    if world.is_null() {
        return;
    }
    // SAFETY: the header's variable lives as long as the program.
    let ranks = unsafe { &raw mut (*world).ranks };
    // SAFETY: as above. After the start, only this function writes to it.
    let ranks = unsafe { AtomicU32::from_ptr(ranks) };
    ranks.store(if allowed { job().ranks() } else { 0 }, Ordering::Relaxed);
}

impl Build {
    /// The reason why the library cannot serve the object.
    fn refusal(&self) -> Option<String> {
        let spec = [self.spec_major, self.spec_minor];
        (self.size != size_of::<Self>() || spec != SPEC).then(|| {
            format!(
                "the program was compiled with headers of version {}.{} and the library has {}.{}; compile it with the headers of this library",
                spec[0], spec[1], SPEC[0], SPEC[1]
            )
        })
    }
}

/// Starts the job. Prints the reason if that fails.
fn start(name: &CStr, flags: u32, build: &Build) -> Result<&'static Job, c_int> {
    let print = |text: &dyn std::fmt::Display| os::say(format!("weft-gex: {text}\n").as_bytes());
    if Job::get().is_some() {
        print(&"the job was started twice; call gex_Client_Init once");
        return Err(ERR_NOT_INIT);
    }
    if let Some(why) = build.refusal() {
        print(&why);
        return Err(ERR_BAD_ARG);
    }
    // SAFETY: the header's structure points to a text.
    let conduit = unsafe { CStr::from_ptr(build.conduit) }.to_str().ok().and_then(Conduit::from_name);
    let Some(conduit) = conduit else {
        print(&"the program was linked for an unknown conduit; use the fragments smp or ofi of this library");
        return Err(ERR_BAD_ARG);
    };
    let manner = Manner {
        threads: if matches!(build.threads, SEQ | SEQ_ATTENDED) { Threads::One } else { Threads::Many },
        hidden: if build.threads == SEQ { Hidden::Forbidden } else { Hidden::Allowed },
    };
    let job = job::start(CString::from(name), flags, manner, conduit).map_err(|error| {
        print(&error);
        // The client ends now, upon which a launcher kills the other ranks and may drop what it has not read.
        std::thread::sleep(PASS_ON);
        ERR_RESOURCE
    })?;
    crate::tools::speak(job.rank() == 0);
    if matches!(env::yes("GASNET_VERBOSEENV"), Ok(Some(true))) && job.rank() == 0 {
        let hosts = job.places().host().count;
        print(&format_args!("a job of {} ranks on {hosts} hosts", job.ranks()));
    }
    let (segments, ranks, rank) = (job.segments().primary(), job.ranks(), job.rank());
    let world = World { tm: Tm::of(job.world()), segments, ranks, rank };
    // SAFETY: the header passes the address of a variable, or null.
    unsafe { put(build.world, world) };
    WORLD.store(build.world, Ordering::Relaxed);
    // All ranks leave together, so that none calls one that has not started.
    job.world().pass_barrier(job);
    Ok(job)
}

export! {
    fn gex_weft_Client_Init(client: *mut ClientHandle, ep: *mut EpHandle, tm: *mut Tm, name: *const c_char, _argc: *mut c_int, _argv: *mut *mut *mut c_char, flags: u32, build: *const Build) -> c_int {
        // SAFETY: the header passes the address of a structure.
        let build = unsafe { &*build };
        // SAFETY: the client's name is a text, or null.
        let name = if name.is_null() { c"client" } else { unsafe { CStr::from_ptr(name) } };
        let job = match start(name, flags, build) {
            Ok(job) => job,
            Err(code) => return code,
        };
        // SAFETY: the client's pointers are null or writable.
        unsafe { put(client, ClientHandle::of(job.client())) };
        // SAFETY: as above.
        unsafe { put(ep, EpHandle::of(job.endpoint())) };
        // SAFETY: as above.
        unsafe { put(tm, Tm::of(job.world())) };
        OK
    }

    fn gex_weft_init1(_argc: *mut c_int, _argv: *mut *mut *mut c_char, build: *const Build) -> c_int {
        // SAFETY: the header passes the address of a structure.
        match start(c"GASNET1", 1, unsafe { &*build }) {
            Ok(_) => OK,
            Err(code) => code,
        }
    }

    fn gex_weft_tm0() -> Tm {
        Tm::of(job().world())
    }

    fn gasnet_QueryGexObjects(client: *mut ClientHandle, ep: *mut EpHandle, tm: *mut Tm, segment: *mut crate::handles::SegmentHandle) {
        let job = job();
        // SAFETY: the client's pointers are null or writable.
        unsafe { put(client, ClientHandle::of(job.client())) };
        // SAFETY: as above.
        unsafe { put(ep, EpHandle::of(job.endpoint())) };
        // SAFETY: as above.
        unsafe { put(tm, Tm::of(job.world())) };
        let bound = job.endpoint().segment().map_or(crate::handles::SegmentHandle::INVALID, crate::handles::SegmentHandle::of);
        // SAFETY: as above.
        unsafe { put(segment, bound) };
    }

    fn gex_Client_QueryName(client: ClientHandle) -> *const c_char {
        client.get().name().as_ptr()
    }

    fn gex_Client_QueryFlags(client: ClientHandle) -> u32 {
        client.get().flags()
    }

    fn gex_Client_SetCData(client: ClientHandle, value: *mut c_void) {
        endpoint::set_cdata(client.get().cdata(), value);
    }

    fn gex_Client_QueryCData(client: ClientHandle) -> *mut c_void {
        endpoint::cdata(client.get().cdata())
    }
}
