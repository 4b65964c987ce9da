//! Other profiling tools in the process, such as mpiP, IPM or Darshan.
//!
//! Place in the data flow: the program's call of `MPI_X` arrives at the first library in LD_PRELOAD that defines it.
//! This library exports both names of a function. `MPI_X` calls the next tool, if there is one ([`Chain::next`]), and
//! otherwise runs the call. `PMPI_X`, which tools call, runs it. A tool therefore sees the calls of the program, and
//! weft runs them, in either order of the two libraries.
//!
//! ```text
//! this library first:  program ─► MPI_X ─► MPI_X of the tool ─► PMPI_X ─► weft, or PMPI_X of the MPI library
//! the tool first:      program ─► MPI_X of the tool ─► PMPI_X ─► weft, or PMPI_X of the MPI library
//! ```
//!
//! The MPI library calls `PMPI_X` as well: its file functions do. Those calls stay inside the library, since they are
//! made under its locks. Their return address tells them apart ([`LIBRARY`]).

use std::ffi::{CStr, OsStr, c_int, c_void};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::mpi::{self, SUCCESS};
use crate::start;

/// The first address of the MPI library's memory, and its length.
pub(crate) static LIBRARY: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];

/// [`Chain::next`] has not been looked up.
const UNKNOWN: usize = 0;
/// No tool follows.
const NONE: usize = 1;

/// The way of the calls of one function.
pub(crate) struct Chain {
    /// The name of the function. Ends in a null byte.
    name: &'static str,
    /// The function of the next tool, [`UNKNOWN`] or [`NONE`].
    next: AtomicUsize,
    /// Whether a call has arrived under the function's profiling name.
    reached: AtomicBool,
}

impl Chain {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, next: AtomicUsize::new(UNKNOWN), reached: AtomicBool::new(false) }
    }

    /// The function of the next tool, if there is one.
    #[inline]
    pub(crate) fn next(&self) -> Option<usize> {
        match self.next.load(Ordering::Relaxed) {
            NONE => None,
            UNKNOWN => self.look_up(),
            address => Some(address),
        }
    }

    #[cold]
    fn look_up(&self) -> Option<usize> {
        let mpi = mpi::loaded()?;
        let name = CStr::from_bytes_with_nul(self.name.as_bytes()).ok()?;
        let is_tool = |found: &usize| !is_in_library(*found) && !is_copy(*found);
        let next = after_this(name).map(|found| found.addr()).filter(is_tool);
        let next = next.filter(|&found| mpi.address(name).is_none_or(|own| own.addr() != found));
        self.next.store(next.unwrap_or(NONE), Ordering::Relaxed);
        next
    }

    /// Notes that a call has arrived under the profiling name.
    #[inline]
    pub(crate) fn arrived(&self) {
        if !self.reached.load(Ordering::Relaxed) {
            self.reached.store(true, Ordering::Relaxed);
        }
    }

    /// A call is about to be passed to a tool.
    pub(crate) fn passing(&self) {
        if self.name == "MPI_Finalize\0" {
            // The tool may call the MPI library directly, which must still be there for the end of the runtime.
            start::finish();
        }
    }

    /// A call was passed to a tool, and has returned `code`.
    pub(crate) fn passed(&self, code: c_int, tool: usize) {
        if self.reached.load(Ordering::Relaxed) {
            return;
        }
        match self.name {
            // Tools that look up the function themselves, such as Darshan, find that of the MPI library.
            "MPI_Init\0" | "MPI_Init_thread\0" => start::started(code),
            "MPI_Finalize\0" => code,
            _ if code == SUCCESS => self.report_passed_by(tool),
            _ => code,
        };
    }

    /// Says once that a tool passes calls to the MPI library, past this one.
    #[cold]
    fn report_passed_by(&self, tool: usize) -> c_int {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) && start::is_first_rank() {
            let name = self.name.trim_end_matches('\0');
            let tool = file_of(tool).unwrap_or_default();
            start::say(&format!(
                "{} passes {name} to the MPI library past this one. Name it before libweft-coll.so in LD_PRELOAD.",
                tool.display()
            ));
        }
        SUCCESS
    }
}

/// Whether an address lies in the MPI library.
fn is_in_library(address: usize) -> bool {
    address.wrapping_sub(LIBRARY[0].load(Ordering::Relaxed)) < LIBRARY[1].load(Ordering::Relaxed)
}

/// Whether an address lies in a second copy of this library, which takes no part.
fn is_copy(address: usize) -> bool {
    let name = |path: &Path| path.file_name().map(OsStr::to_owned);
    let (other, own) = (file_of(address), own_file());
    other.zip(own).is_some_and(|(other, own)| name(&other) == name(&own))
}

/// The file of this library.
pub(crate) fn own_file() -> Option<PathBuf> {
    file_of((own_file as fn() -> Option<PathBuf> as *const ()).addr())
}

/// The file of the library at an address.
fn file_of(address: usize) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: std::ptr::null(),
        dli_fbase: std::ptr::null_mut(),
        dli_sname: std::ptr::null(),
        dli_saddr: std::ptr::null_mut(),
    };
    // SAFETY: any address may be asked for, and the answer goes to a local.
    let found = unsafe { libc::dladdr(std::ptr::without_provenance(address), &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a library, which is copied at once.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

/// The address of a function in the libraries that the loader searches after this one.
pub(crate) fn after_this(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name ends in a null byte. The loader finds this library by the return address.
    let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// Notes where the MPI library lies, which contains this function.
pub(crate) fn set_library(function: *mut c_void) {
    let mut search = Search { address: function.addr(), range: None };
    // SAFETY: the callback has the type that the call needs, and takes the pointer as what it is.
    unsafe { libc::dl_iterate_phdr(Some(look_at), (&raw mut search).cast()) };
    if let Some(range) = search.range {
        LIBRARY[0].store(range.start, Ordering::Relaxed);
        LIBRARY[1].store(range.len(), Ordering::Relaxed);
    }
}

/// The search for the library that contains an address.
struct Search {
    address: usize,
    range: Option<Range<usize>>,
}

/// Looks at one loaded library. Returns 1 if it is the one.
unsafe extern "C" fn look_at(info: *mut libc::dl_phdr_info, _size: usize, search: *mut c_void) -> c_int {
    // SAFETY: the pointer is that of `set_library`, which waits.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: the loader passes a valid description.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader passes as many headers.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let number = |value: u64| usize::try_from(value).unwrap_or(0);
    let range = |part: &libc::Elf64_Phdr| {
        let start = number(info.dlpi_addr.wrapping_add(part.p_vaddr));
        start..start.saturating_add(number(part.p_memsz))
    };
    let parts: Vec<Range<usize>> = headers.iter().filter(|part| part.p_type == libc::PT_LOAD).map(range).collect();
    if !parts.iter().any(|part| part.contains(&search.address)) {
        return 0;
    }
    let start = parts.iter().map(|part| part.start).min().unwrap_or(0);
    search.range = Some(start..parts.iter().map(|part| part.end).max().unwrap_or(start));
    1
}
