//! Files in memory: what processes share with peers, neighbours or onlookers.
//!
//! Place in the data flow: below shared segments, here, and shared address vectors and published counters, in weft-fi.
//!
//! Source: memfd_create(2), fcntl(2) F_ADD_SEALS, getrlimit(2).

use std::ffi::CStr;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering, fence};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::process::{Resource, getrlimit};

use crate::SystemError;

/// Makes an empty one, which is closed on exec and is not executable.
///
/// # Errors
/// [`SystemError`] of memfd_create(2).
pub fn create(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, SystemError> {
    let flags = flags | MemfdFlags::CLOEXEC;
    // Kernels from 6.3 on want to be told that the file is not executable; older ones refuse the flag.
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    };
    made.map_err(SystemError::of("memfd_create"))
}

/// Whether it may have so many bytes: to ask for more than RLIMIT_FSIZE would bring a signal (SIGXFSZ), which
/// ends the client.
///
/// # Errors
/// EFBIG: it may not.
pub fn may_have(bytes: u64) -> Result<(), Errno> {
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes) { Err(Errno::FBIG) } else { Ok(()) }
}

/// The head of a file that other processes write, to be looked at without a system call.
pub struct Words {
    base: NonNull<u64>,
    count: usize,
}

// SAFETY: the words are only read, and atomically.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `count` words, of 8 bytes each.
    ///
    /// # Errors
    /// EPERM: the file has fewer, or may have fewer one day (it is not sealed against shrinking), and to look
    /// at them would then bring a signal (SIGBUS). Those of fcntl(2), fstat(2) and mmap(2).
    pub fn map(file: impl AsFd, count: usize) -> Result<Self, Errno> {
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let bytes = count * size_of::<u64>();
        if !sealed || rustix::fs::fstat(&file)?.st_size < bytes as i64 {
            return Err(Errno::PERM);
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        Ok(Self { base: NonNull::new(base.cast()).ok_or(Errno::NOMEM)?, count })
    }

    /// One of them, as it is now: half of it may be new, where the system copies less than a word at once,
    /// until the other half is. What was written to the file before it is seen by whoever reads the file
    /// afterwards.
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: within the mapping, which begins with a page, lives as long as this, and cannot vanish.
        let word = unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at)) };
        // A relaxed load is one that works on memory that cannot be written.
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: what `map` mapped; nobody has a reference into it.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn words_of_a_file_that_may_shrink_are_not_looked_at() {
        let file = std::fs::File::from(create(c"weft-words", MemfdFlags::ALLOW_SEALING).unwrap());
        file.write_all_at(&[1_u64, 2].map(u64::to_le_bytes).concat(), 0).unwrap();
        assert_eq!(Words::map(&file, 2).err(), Some(Errno::PERM));
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(Words::map(&file, 3).err(), Some(Errno::PERM));
        let words = Words::map(&file, 2).unwrap();
        assert_eq!((words.get(0), words.get(1)), (1, 2));
        file.write_all_at(&7_u64.to_le_bytes(), 8).unwrap();
        assert_eq!(words.get(1), 7);
    }
}
