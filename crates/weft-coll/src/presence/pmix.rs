//! The key-value space of PMIx, which Open MPI uses: through the library `libpmix.so.2` of the process.
//!
//! Place in the data flow: Open MPI is the client of PMIx. In its start it puts its own keys, commits them
//! (`PMIx_Commit`), and makes a fence of all ranks, after which all may get them. It must be the first that starts
//! PMIx, so this module takes part in its commit: the function of that name is exported here, as those of MPI are. A
//! question for a key that does not exist is answered at once, since the local server must not ask other hosts for it
//! (`pmix.immediate`).
//!
//! The structures and numbers are those of the PMIx standard, versions 2 to 5.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU8, Ordering};

use libloading::os::unix::Library;

use super::key;

/// The key under which the launcher names the host of a rank.
pub(super) const HOST: &str = "pmix.hname";

const SUCCESS: c_int = 0;
const ERROR: c_int = -1;
const GLOBAL: u8 = 3;
const BOOL: u16 = 1;
const STRING: u16 = 3;

/// Variables that make Open MPI start without a fence, or without the data of all ranks.
const CHOICES: [&str; 2] = ["OMPI_MCA_pmix_base_async_modex", "OMPI_MCA_pmix_base_collect_data"];

/// Bytes of the name of a job, with the last zero.
const NAME_BYTES: usize = 256;

/// `pmix_proc_t`.
#[repr(C)]
struct Process {
    space: [u8; NAME_BYTES],
    rank: u32,
}

/// `pmix_value_t`, whose data have at most this many words.
#[repr(C)]
struct Value {
    kind: u16,
    data: [usize; 8],
}

/// `pmix_info_t`.
#[repr(C)]
struct Directive {
    key: [u8; 512],
    flags: u32,
    value: Value,
}

type Put = unsafe extern "C" fn(u8, *const c_char, *const Value) -> c_int;
type Commit = unsafe extern "C" fn() -> c_int;
type Get = unsafe extern "C" fn(*const Process, *const c_char, *const Directive, usize, *mut *mut Value) -> c_int;

/// The mark of this rank in the next commit.
static MARK: AtomicU8 = AtomicU8::new(UNWANTED);
const UNWANTED: u8 = 0;
const WANTED: u8 = 1;
const COMMITTED: u8 = 2;

/// The space of the job.
pub(crate) struct Space {
    name: String,
    get: Get,
}

/// The function `name` of type `F` in the PMIx library of the process.
///
/// # Safety
/// The library's function has the type `F`.
unsafe fn symbol<F: Copy>(name: &CStr) -> Option<F> {
    let flags = libc::RTLD_LAZY | libc::RTLD_LOCAL | libc::RTLD_NOLOAD;
    // SAFETY: with RTLD_NOLOAD no constructor runs.
    let library = unsafe { Library::open(Some("libpmix.so.2"), flags) }.ok()?;
    // SAFETY: the caller's promise. The library stays loaded as long as Open MPI.
    unsafe { library.get::<F>(name.to_bytes_with_nul()) }.ok().map(|found| *found)
}

/// Puts the mark of this rank, if it is wanted, and commits.
///
/// # Safety
/// As for the function of PMIx.
#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn PMIx_Commit() -> c_int {
    // SAFETY: the type is that of the PMIx standard.
    let Some(commit) = (unsafe { symbol::<Commit>(c"PMIx_Commit") }) else { return ERROR };
    if MARK.compare_exchange(WANTED, COMMITTED, Ordering::AcqRel, Ordering::Acquire).is_ok() {
        // A rank whose mark is missing counts as one without this library, here and at the others.
        put_mark();
    }
    // SAFETY: the caller's own call.
    unsafe { commit() }
}

fn own_rank() -> Option<usize> {
    std::env::var("PMIX_RANK").ok()?.parse().ok()
}

fn put_mark() -> Option<c_int> {
    // SAFETY: the type is that of the PMIx standard.
    let put: Put = unsafe { symbol(c"PMIx_Put")? };
    let key = CString::new(key(own_rank()?)).ok()?;
    let mut value = Value { kind: STRING, data: [0; 8] };
    value.data[0] = c"1".as_ptr().addr();
    // SAFETY: key and value are strings that the function copies.
    Some(unsafe { put(GLOBAL, key.as_ptr(), &raw const value) })
}

impl Space {
    /// Has Open MPI's commit put the mark of this rank.
    pub(super) fn want_mark() {
        MARK.store(WANTED, Ordering::Release);
    }

    /// The space, if Open MPI has made a commit.
    pub(super) fn open() -> Option<Self> {
        let chosen = CHOICES.iter().any(|name| std::env::var_os(name).is_some());
        if MARK.swap(UNWANTED, Ordering::AcqRel) != COMMITTED || chosen {
            return None;
        }
        let name = std::env::var("PMIX_NAMESPACE").ok().filter(|name| name.len() < NAME_BYTES)?;
        // SAFETY: the type is that of the PMIx standard.
        Some(Self { name, get: unsafe { symbol(c"PMIx_Get")? } })
    }

    /// The value of a rank's key, which is a string.
    pub(super) fn get(&self, rank: usize, key: &str) -> Option<String> {
        let mut process = Process { space: [0; NAME_BYTES], rank: u32::try_from(rank).ok()? };
        process.space[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let key = CString::new(key).ok()?;
        let mut immediate = Directive { key: [0; 512], flags: 0, value: Value { kind: BOOL, data: [0; 8] } };
        let name = b"pmix.immediate";
        immediate.key[..name.len()].copy_from_slice(name);
        immediate.value.data[0] = usize::from(u8::from(true)).to_le();
        let mut found: *mut Value = null_mut();
        // SAFETY: all arguments are locals, with the layout of the standard.
        let code = unsafe { (self.get)(&raw const process, key.as_ptr(), &raw const immediate, 1, &raw mut found) };
        if code != SUCCESS || found.is_null() {
            return None;
        }
        // SAFETY: the function returned a value of at least this kind.
        let kind = unsafe { (*found).kind };
        if kind != STRING {
            return None;
        }
        // SAFETY: the first word of a string's data is its address.
        let text = unsafe { (*found).data[0] } as *mut c_char;
        // SAFETY: a string of C.
        let owned = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
        // SAFETY: the caller owns the string (PMIX_VALUE_RELEASE).
        unsafe { libc::free(text.cast()) };
        // SAFETY: the caller owns the value.
        unsafe { libc::free(found.cast::<c_void>()) };
        Some(owned)
    }
}
