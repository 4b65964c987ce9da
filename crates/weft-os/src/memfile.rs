//! Memory files, by which a process shares data with peers, other processes of the host, and monitoring
//! tools.
//!
//! Place in the data flow: below the shared segments of weft-nic, and below the shared address vectors, published
//! counters and records of weft-fi.
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

/// Creates an empty memory file that is closed on exec and is not executable.
///
/// # Errors
/// [`SystemError`] of memfd_create(2).
pub fn create(name: &CStr, flags: MemfdFlags) -> Result<OwnedFd, SystemError> {
    let flags = flags | MemfdFlags::CLOEXEC;
    // Kernels from 6.3 on expect this flag for files that are not executable; older kernels refuse it.
    let made = match rustix::fs::memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL) {
        Err(Errno::INVAL) => rustix::fs::memfd_create(name, flags),
        other => other,
    };
    made.map_err(SystemError::of("memfd_create"))
}

/// Checks that a file may grow to `bytes`. Growth beyond RLIMIT_FSIZE would raise SIGXFSZ, which ends the
/// client.
///
/// # Errors
/// EFBIG: the limit is lower.
pub fn check_size_limit(bytes: u64) -> Result<(), Errno> {
    if getrlimit(Resource::Fsize).current.is_some_and(|most| most < bytes) { Err(Errno::FBIG) } else { Ok(()) }
}

/// The first words of a file that other processes write, mapped to be read without a system call.
pub struct Words {
    base: NonNull<u64>,
    count: usize,
}

// SAFETY: the words are only read, by atomic loads.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    /// Maps the first `count` words, of 8 bytes each.
    ///
    /// # Errors
    /// EPERM: the file is shorter, or is not sealed against shrinking. Reads behind the end of a file would
    /// raise SIGBUS. Otherwise the errors of fcntl(2), fstat(2) and mmap(2).
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

    /// The current value of word `at`. While the kernel copies a word in parts, the value may be half old and
    /// half new. Data that was written to the file before the word is visible to a read of the file after
    /// this call.
    pub fn get(&self, at: usize) -> u64 {
        assert!(at < self.count, "word {at} of {}", self.count);
        // SAFETY: within the mapping, which is page-aligned, exists as long as `self`, and cannot shrink.
        let word = unsafe { AtomicU64::from_ptr(self.base.as_ptr().wrapping_add(at)) };
        // A relaxed load: stronger atomic operations may need write access to the memory.
        let value = word.load(Ordering::Relaxed);
        fence(Ordering::Acquire);
        value
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the range that `map` mapped; no reference into it exists.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.count * size_of::<u64>()) };
        debug_assert!(unmapped.is_ok());
    }
}

/// Counters in a file that another process reads, mapped to be changed without a system call. They survive this
/// process.
pub struct Counters {
    page: NonNull<u64>,
    page_bytes: usize,
    /// The place of the first counter in the page, in words.
    first: usize,
    count: usize,
}

// SAFETY: the counters are only changed by atomic operations.
unsafe impl Send for Counters {}
// SAFETY: as above.
unsafe impl Sync for Counters {}

impl Counters {
    /// Maps `count` words of 8 bytes at offset `at` of a file that is open for reading and writing.
    ///
    /// # Errors
    /// EPERM: the file is shorter, or is not sealed against shrinking. EINVAL: the words are not aligned, or not in one
    /// page. Otherwise the errors of fcntl(2), fstat(2) and mmap(2).
    pub fn map(file: impl AsFd, at: u64, count: usize) -> Result<Self, Errno> {
        let page_bytes = rustix::param::page_size();
        let within = usize::try_from(at).map_err(|_| Errno::INVAL)? % page_bytes;
        let bytes = count.checked_mul(size_of::<u64>()).ok_or(Errno::INVAL)?;
        if !within.is_multiple_of(size_of::<u64>()) || within.checked_add(bytes).is_none_or(|end| end > page_bytes) {
            return Err(Errno::INVAL);
        }
        let sealed = rustix::fs::fcntl_get_seals(&file)?.contains(SealFlags::SHRINK);
        let len = u64::try_from(rustix::fs::fstat(&file)?.st_size).unwrap_or(0);
        if !sealed || len < at + bytes as u64 {
            return Err(Errno::PERM);
        }
        let (protection, start) = (ProtFlags::READ | ProtFlags::WRITE, at - within as u64);
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let page =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), page_bytes, protection, MapFlags::SHARED, file, start) }?;
        let page = NonNull::new(page.cast()).ok_or(Errno::NOMEM)?;
        Ok(Self { page, page_bytes, first: within / size_of::<u64>(), count })
    }

    /// The counters.
    pub fn get(&self) -> &[AtomicU64] {
        let first = self.page.as_ptr().wrapping_add(self.first).cast::<AtomicU64>();
        // SAFETY: within the mapping, which is page-aligned, exists as long as `self`, and cannot shrink.
        unsafe { std::slice::from_raw_parts(first, self.count) }
    }
}

impl Drop for Counters {
    fn drop(&mut self) {
        // SAFETY: the range that `map` mapped; no reference into it exists.
        let unmapped = unsafe { rustix::mm::munmap(self.page.as_ptr().cast(), self.page_bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// A memory file of a fixed length that several processes map whole, for reading and writing. It is unmapped on drop.
pub struct Whole {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process. This type gives access to its address alone.
unsafe impl Send for Whole {}
// SAFETY: as above.
unsafe impl Sync for Whole {}

impl Whole {
    /// Makes a file of `bytes`, whose length is sealed, and maps it. Its pages exist from the first access on.
    ///
    /// # Errors
    /// Those of memfd_create(2), ftruncate(2), fcntl(2) and mmap(2).
    pub fn create(name: &CStr, bytes: usize) -> Result<(OwnedFd, Self), SystemError> {
        let file = create(name, MemfdFlags::ALLOW_SEALING)?;
        check_size_limit(bytes as u64)
            .and_then(|()| rustix::fs::ftruncate(&file, bytes as u64))
            .map_err(SystemError::of("ftruncate of a memfd"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(SystemError::of("fcntl of a memfd"))?;
        let whole = Self::adopt(&file, bytes)?;
        Ok((file, whole))
    }

    /// Maps such a file of another process.
    ///
    /// # Errors
    /// EPERM: the file has another length, or is not sealed. Accesses behind its end would raise SIGBUS. Otherwise the
    /// errors of fcntl(2), fstat(2) and mmap(2).
    pub fn adopt(file: impl AsFd, bytes: usize) -> Result<Self, SystemError> {
        let sealed = rustix::fs::fcntl_get_seals(&file).map_err(SystemError::of("fcntl of a memfd"))?;
        let len = rustix::fs::fstat(&file).map_err(SystemError::of("fstat of a memfd"))?.st_size;
        if !sealed.contains(SealFlags::SHRINK) || u64::try_from(len) != Ok(bytes as u64) {
            return Err(SystemError::of("a memory file that may shrink")(Errno::PERM));
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), bytes, access, MapFlags::SHARED, file, 0) };
        let base = base.map_err(SystemError::of("mmap of a memfd"))?;
        let base = NonNull::new(base.cast()).ok_or_else(|| SystemError::of("mmap of a memfd")(Errno::NOMEM))?;
        Ok(Self { base, bytes })
    }

    /// The address of the first byte.
    #[must_use]
    pub fn base(&self) -> NonNull<u8> {
        self.base
    }
}

impl Drop for Whole {
    fn drop(&mut self) {
        // SAFETY: the range that `adopt` mapped. Its owner has ended all uses of the address.
        let unmapped = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn a_file_that_may_shrink_is_not_mapped() {
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

    #[test]
    fn counters_are_written_through_to_the_file() {
        let file = std::fs::File::from(create(c"weft-counters", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(3 << 12).unwrap();
        assert_eq!(Counters::map(&file, 4096, 2).err(), Some(Errno::PERM), "not sealed");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).unwrap();
        assert_eq!(Counters::map(&file, 4096 + 4, 2).err(), Some(Errno::INVAL));
        assert_eq!(Counters::map(&file, 1 << 20, 2).err(), Some(Errno::PERM), "behind the end");
        let counters = Counters::map(&file, 4096 + 512, 2).unwrap();
        counters.get()[1].fetch_add(7, Ordering::Relaxed);
        drop(counters);
        let mut bytes = [0; 8];
        file.read_exact_at(&mut bytes, 4096 + 512 + 8).unwrap();
        assert_eq!(u64::from_le_bytes(bytes), 7);
    }

    #[test]
    fn a_whole_file_is_mapped_at_its_length_alone() {
        let (file, first) = Whole::create(c"weft-whole", 8192).unwrap();
        assert!(Whole::adopt(&file, 4096).is_err() && rustix::fs::ftruncate(&file, 4096).is_err());
        let second = Whole::adopt(&file, 8192).unwrap();
        assert_ne!(first.base(), second.base());
        // SAFETY: the first byte of a mapping that exists.
        unsafe { first.base().write(7) };
        // SAFETY: as above.
        assert_eq!(unsafe { second.base().read() }, 7);
        let loose = create(c"weft-whole", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(Whole::adopt(&loose, 8192).is_err());
    }
}
