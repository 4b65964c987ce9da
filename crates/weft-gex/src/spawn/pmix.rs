//! A client of launchers that speak PMIx, such as PRRTE's prterun, Open MPI's mpirun and Slurm.
//!
//! Place in the data flow: as `pmi`. The dialogue is that of the launcher's own library, libpmix.so.2, which is loaded
//! here, so that weft-gex does not need it elsewhere. Blobs are texts under keys of their step.
//!
//! Source: the PMIx standard, version 4, for functions and layouts.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use super::pmi::{from_text, to_text};
use crate::env;
use crate::error::Error;

const LIBRARY: &CStr = c"libpmix.so.2";
const SUCCESS: c_int = 0;
const NAME_BYTES: usize = 256;
const KEY_BYTES: usize = 512;
/// All ranks of the job.
const WILDCARD: u32 = u32::MAX - 1;
const GLOBAL: u8 = 3;
const JOB_SIZE: &CStr = c"pmix.job.size";
const COLLECT: &CStr = c"pmix.collect";
const TYPE_BOOL: u16 = 1;
const TYPE_STRING: u16 = 3;
const TYPE_UINT32: u16 = 14;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
struct Proc {
    space: [c_char; NAME_BYTES],
    rank: u32,
}

/// The data of a value; the longest member has three words.
#[repr(C)]
union Data {
    flag: bool,
    uint32: u32,
    string: *mut c_char,
    words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    ty: u16,
    data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; KEY_BYTES],
    flags: u32,
    value: Value,
}

const _: () = assert!(size_of::<Proc>() == 260 && size_of::<Value>() == 32 && size_of::<Info>() == 552);

type InitFn = unsafe extern "C" fn(*mut Proc, *const Info, usize) -> c_int;
type FinalizeFn = unsafe extern "C" fn(*const Info, usize) -> c_int;
type AbortFn = unsafe extern "C" fn(c_int, *const c_char, *const Proc, usize) -> c_int;
type PutFn = unsafe extern "C" fn(u8, *const c_char, *mut Value) -> c_int;
type CommitFn = unsafe extern "C" fn() -> c_int;
type Callback = extern "C" fn(c_int, *mut c_void);
type FenceFn = unsafe extern "C" fn(*const Proc, usize, *const Info, usize, Callback, *mut c_void) -> c_int;
type GetFn = unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;

/// The connection to the launcher.
pub struct Client {
    finalize: FinalizeFn,
    abort: AbortFn,
    put: PutFn,
    commit: CommitFn,
    fence: FenceFn,
    get: GetFn,
    me: Proc,
    ranks: u32,
}

/// The number of the last fence that is over. A callback may come after its caller has given up.
static FENCES_OVER: AtomicI32 = AtomicI32::new(0);
static FENCES_BEGUN: AtomicI32 = AtomicI32::new(0);

extern "C" fn fence_is_over(status: c_int, _: *mut c_void) {
    if status == SUCCESS {
        FENCES_OVER.fetch_add(1, Ordering::Release);
    }
}

/// Whether such a launcher has started this process.
#[must_use]
pub fn is_here() -> bool {
    ["PMIX_RANK", "PMIX_NAMESPACE"].iter().all(|name| env::text(name).is_some())
}

fn failed(what: &str, status: c_int) -> Error {
    Error::Launcher(format!("perform {what} (PMIx status {status})"))
}

/// Opens the library.
fn open() -> Result<*mut c_void, Error> {
    // SAFETY: the name is a text. The library is a public one, whose initialisers may run here.
    let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if library.is_null() {
        return Err(Error::Launcher("provide libpmix.so.2 (put its directory into LD_LIBRARY_PATH)".into()));
    }
    Ok(library)
}

/// A function of the library.
fn symbol(library: *mut c_void, name: &CStr) -> Result<*mut c_void, Error> {
    // SAFETY: the library is open, and the name is a text.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() {
        return Err(Error::Launcher(format!("provide {name:?} in libpmix.so.2")));
    }
    Ok(found)
}

macro_rules! function {
    ($library:expr, $name:literal as $ty:ty) => {
        // SAFETY: the standard gives the function of this name this type.
        unsafe { std::mem::transmute::<*mut c_void, $ty>(symbol($library, $name)?) }
    };
}

impl Client {
    /// Begins the dialogue.
    ///
    /// # Errors
    /// The library or the launcher is missing, or refuses.
    pub fn start() -> Result<Self, Error> {
        let library = open()?;
        let init = function!(library, c"PMIx_Init" as InitFn);
        let mut me = Proc { space: [0; NAME_BYTES], rank: 0 };
        // SAFETY: the structure is writable.
        let status = unsafe { init(&raw mut me, std::ptr::null(), 0) };
        if status != SUCCESS {
            return Err(failed("PMIx_Init", status));
        }
        let mut client = Self {
            finalize: function!(library, c"PMIx_Finalize" as FinalizeFn),
            abort: function!(library, c"PMIx_Abort" as AbortFn),
            put: function!(library, c"PMIx_Put" as PutFn),
            commit: function!(library, c"PMIx_Commit" as CommitFn),
            fence: function!(library, c"PMIx_Fence_nb" as FenceFn),
            get: function!(library, c"PMIx_Get" as GetFn),
            me,
            ranks: 0,
        };
        let size = client.value(WILDCARD, JOB_SIZE)?;
        if size.ty != TYPE_UINT32 {
            return Err(Error::Launcher("tell the number of ranks".into()));
        }
        // SAFETY: the type says so.
        client.ranks = unsafe { size.data.uint32 };
        if client.me.rank >= client.ranks {
            return Err(Error::Launcher(format!("give a rank below {}, but {}", client.ranks, client.me.rank)));
        }
        Ok(client)
    }

    /// The rank of this process.
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.me.rank
    }

    /// The number of ranks.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.ranks
    }

    /// A value that a rank or the launcher has put. It is never freed; there are a few for each rank.
    fn value(&self, rank: u32, key: &CStr) -> Result<&'static Value, Error> {
        let of = Proc { rank, ..self.me.clone() };
        let mut value: *mut Value = std::ptr::null_mut();
        // SAFETY: all pointers lead to live structures and a text.
        let status = unsafe { (self.get)(&raw const of, key.as_ptr(), std::ptr::null(), 0, &raw mut value) };
        if status != SUCCESS || value.is_null() {
            return Err(failed(&format!("PMIx_Get of {key:?} of rank {rank}"), status));
        }
        // SAFETY: the library has made the value, and gives it to the caller.
        Ok(unsafe { &*value })
    }

    /// Publishes the blob of this rank under a step of the start.
    ///
    /// # Errors
    /// The launcher refuses.
    pub fn put(&mut self, step: &str, blob: &[u8]) -> Result<(), Error> {
        let text = CString::new(to_text(blob)).unwrap_or_default();
        let mut value = Value { ty: TYPE_STRING, data: Data { string: text.as_ptr().cast_mut() } };
        // SAFETY: the library copies the key and the value within the call.
        let status = unsafe { (self.put)(GLOBAL, key(step).as_ptr(), &raw mut value) };
        if status == SUCCESS { Ok(()) } else { Err(failed("PMIx_Put", status)) }
    }

    /// Waits for all ranks. Blobs that they have put before are visible afterwards.
    ///
    /// # Errors
    /// The launcher refuses.
    pub fn fence(&mut self) -> Result<(), Error> {
        /// The limit for all ranks to start.
        const LIMIT: Duration = Duration::from_secs(120);
        // SAFETY: the call has no precondition.
        let status = unsafe { (self.commit)() };
        if status != SUCCESS {
            return Err(failed("PMIx_Commit", status));
        }
        self.arrive();
        if self.has_passed(LIMIT) { Ok(()) } else { Err(failed("PMIx_Fence_nb", SUCCESS)) }
    }

    /// Arrives at a fence without waiting for it.
    pub fn arrive(&mut self) {
        let mut info =
            Info { key: [0; KEY_BYTES], flags: 0, value: Value { ty: TYPE_BOOL, data: Data { words: [0; 3] } } };
        info.value.data.flag = true;
        for (to, from) in info.key.iter_mut().zip(COLLECT.to_bytes()) {
            *to = std::ffi::c_char::from_ne_bytes([*from]);
        }
        FENCES_BEGUN.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the library copies the information within the call, and the callback is a function of this library.
        let _ = unsafe {
            (self.fence)(std::ptr::null(), 0, Box::leak(Box::new(info)), 1, fence_is_over, std::ptr::null_mut())
        };
    }

    /// Waits for a time until all ranks have arrived at the fence. Returns whether they have.
    pub fn has_passed(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        while FENCES_OVER.load(Ordering::Acquire) < FENCES_BEGUN.load(Ordering::Relaxed) {
            if Instant::now() >= deadline {
                return false;
            }
            std::thread::sleep(Duration::from_micros(200));
        }
        true
    }

    /// The blob of a rank.
    ///
    /// # Errors
    /// The launcher has none, or not in the form of [`Self::put`].
    pub fn get(&mut self, step: &str, rank: u32) -> Result<Vec<u8>, Error> {
        let value = self.value(rank, &key(step))?;
        // SAFETY: a pointer of this type of value leads to a text, or is null.
        let text = unsafe { value.data.string };
        if value.ty != TYPE_STRING || text.is_null() {
            return Err(Error::Launcher(format!("keep the value of rank {rank}")));
        }
        // SAFETY: as above.
        let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
        from_text(&text).ok_or_else(|| Error::Launcher(format!("keep the value of rank {rank}: it returned {text:?}")))
    }

    /// Reports that this rank ends in order.
    pub fn finalize(&mut self) {
        // SAFETY: no call follows.
        let _ = unsafe { (self.finalize)(std::ptr::null(), 0) };
    }

    /// Asks the launcher to end the job. It kills this process, too.
    pub fn abort(&mut self, code: c_int) {
        // SAFETY: null and 0 mean the whole job; the message is a text.
        let _ = unsafe { (self.abort)(code, c"the job ends".as_ptr(), std::ptr::null(), 0) };
    }
}

fn key(step: &str) -> CString {
    CString::new(format!("weft-{step}")).unwrap_or_default()
}
