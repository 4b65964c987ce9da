//! Files in memory: what processes share with peers, neighbours or onlookers.
//!
//! Place in the data flow: below shared segments, here, and shared address vectors and published counters, in weft-fi.
//!
//! Source: memfd_create(2), getrlimit(2).

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::MemfdFlags;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Makes an empty one, which is closed on exec and is not executable.
///
/// # Errors
/// Those of memfd_create(2).
pub fn create(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, Errno> {
    let flags = flags | MemfdFlags::CLOEXEC;
    // Kernels from 6.3 on want to be told that the file is not executable; older ones refuse the flag.
    match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    }
}

/// Whether it may have so many bytes: to ask for more than RLIMIT_FSIZE would bring a signal (SIGXFSZ), which ends the client.
///
/// # Errors
/// EFBIG: it may not.
pub fn may_have(bytes: u64) -> Result<(), Errno> {
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes) { Err(Errno::FBIG) } else { Ok(()) }
}
