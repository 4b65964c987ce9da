//! The machine and the process: processors, memory, names, limits, signals, and the version of the interface.

use std::ffi::{CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStringExt;
use std::sync::OnceLock;

use super::fatal;

/// A text that is found out once and stays.
fn kept(cell: &'static OnceLock<CString>, find: impl FnOnce() -> Vec<u8>) -> *const c_char {
    cell.get_or_init(|| CString::new(find()).unwrap_or_default()).as_ptr()
}

/// Processors that are online.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_cpu_count() -> c_int {
    // SAFETY: the call reads a number of the system.
    let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    c_int::try_from(online).unwrap_or(1).max(1)
}

/// The name of the host.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_gethostname() -> *const c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    kept(&NAME, || {
        let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_else(|_| b"localhost".to_vec());
        name.trim_ascii().to_vec()
    })
}

/// Bytes of memory, or 0.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_getPhysMemSz(failure_is_fatal: c_int) -> u64 {
    // SAFETY: the call reads a number of the system.
    let pages = unsafe { libc::sysconf(libc::_SC_PHYS_PAGES) };
    // SAFETY: as above.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    let bytes = u64::try_from(pages).unwrap_or(0) * u64::try_from(page_bytes).unwrap_or(0);
    if bytes == 0 && failure_is_fatal != 0 {
        fatal::fatal("the system does not tell its memory: mount /proc");
    }
    bytes
}

/// Binds the calling thread to processor `rank`, counted modulo all. Returns 0, or 1 if the system refuses.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_set_affinity(rank: c_int) -> c_int {
    let processor = rank.rem_euclid(gasnett_cpu_count()).unsigned_abs() as usize;
    // SAFETY: a set of processors is valid with all bytes zero: it is empty.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= 8 * size_of_val(&set) {
        return 1;
    }
    // SAFETY: the processor is one that the set has room for.
    unsafe { libc::CPU_SET(processor, &mut set) };
    // SAFETY: the set is initialised and has the size that is passed.
    c_int::from(unsafe { libc::sched_setaffinity(0, size_of_val(&set), &raw const set) } != 0)
}

/// The path of the executable.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_exe_name() -> *const c_char {
    static NAME: OnceLock<CString> = OnceLock::new();
    kept(&NAME, || std::env::current_exe().map(|path| path.into_os_string().into_vec()).unwrap_or_default())
}

/// Writes what C's streams hold.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_flush_streams() {
    // SAFETY: flushing all streams has no conditions.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Raises a limit of the process to what the system allows. Returns 1 if it has its highest value.
///
/// # Safety
/// `_name` is not read.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_maximize_rlimit(resource: c_int, _name: *const c_char) -> c_int {
    let Ok(resource) = libc::__rlimit_resource_t::try_from(resource) else { return 0 };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes the structure.
    if unsafe { libc::getrlimit(resource, &raw mut limit) } != 0 {
        return 0;
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: the call reads the structure.
    c_int::from(unsafe { libc::setrlimit(resource, &raw const limit) } == 0)
}

/// Raises the limits of memory and descriptors to what the system allows.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_maximize_rlimits() {
    for resource in [libc::RLIMIT_AS, libc::RLIMIT_DATA, libc::RLIMIT_STACK, libc::RLIMIT_NOFILE, libc::RLIMIT_MEMLOCK]
    {
        // SAFETY: no name is passed, and none is read.
        unsafe { gasnett_maximize_rlimit(c_int::try_from(resource).unwrap_or(-1), std::ptr::null()) };
    }
}

/// Zeroed memory of its own, or `MAP_FAILED`.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_mmap(bytes: usize) -> *mut c_void {
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the system chooses an address that is free.
    unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0) }
}

/// Sets the handler of a signal, and returns the former one.
///
/// # Safety
/// `handler` is a function that may run in signal handlers, `SIG_IGN` or `SIG_DFL`.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_reghandler(signal: c_int, handler: libc::sighandler_t) -> libc::sighandler_t {
    // SAFETY: the caller passes such a function.
    let former = unsafe { libc::signal(signal, handler) };
    if former == libc::SIG_ERR {
        fatal::fatal(&format!("signal {signal} takes no handler: SIGKILL, SIGSTOP and unknown signals have none"));
    }
    former
}

/// The release of the interface as one number: 2025.8.0 is 2025080000.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_release_version() -> u64 {
    2025 * 1_000_000 + 8 * 10_000
}

/// The release of the interface as text.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_release_version_str() -> *const c_char {
    c"2025.8.0".as_ptr()
}

/// Features that make this library slow: none.
#[unsafe(no_mangle)]
pub(super) extern "C" fn gasnett_performance_warning_str() -> *const c_char {
    c"".as_ptr()
}

/// A checksum of memory (FNV-1a, 64 bits).
///
/// # Safety
/// `data` has `bytes` bytes.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn gasnett_checksum(data: *const c_void, bytes: usize) -> u64 {
    if bytes == 0 {
        return 0xcbf2_9ce4_8422_2325;
    }
    // SAFETY: the caller has the bytes.
    let data = unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) };
    data.iter().fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
