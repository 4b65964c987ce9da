//! The memory of a job: one memory file that the ranks of a host map in parts, and copies in mapped memory.
//!
//! Place in the data flow: `board` and the segments are parts of this file. A part is mapped once and stays mapped
//! until the process ends, unless it is a segment that its owner destroys.
//!
//! The file is sparse and much longer than the memory of a host, so that parts never need another file: a place is
//! taken by advancing a number. Pages exist from the first access on. Lines are accessed by atomic operations only.
//! Copies of client memory are plain; clients order them by messages, barriers and events.
//!
//! Source: memfd_create(2), mmap(2), process_vm_readv(2).

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use weft_engine::mem::Iov;
use weft_os::{SystemError, memfile};

/// Words of a [`Line`].
pub const LINE_WORDS: usize = 16;
/// Bytes of a [`Line`]: two cache lines, because processors fetch pairs.
pub const LINE_BYTES: usize = LINE_WORDS * 8;
/// A piece of memory: its address in some process, and its length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The address.
    pub addr: usize,
    /// The length.
    pub bytes: usize,
}

impl Piece {
    /// A piece at an address.
    #[inline(always)]
    #[must_use]
    pub fn at<T: ?Sized>(addr: *const T, bytes: usize) -> Self {
        Self { addr: addr.cast::<u8>().expose_provenance(), bytes }
    }
}

/// The longest file that is tried, in bytes. A shorter one serves where the system has a limit.
const LONGEST: u64 = 1 << 46;
/// The shortest file that is of use, in bytes.
const SHORTEST: u64 = 1 << 28;

/// Words that ranks share, in cache lines of their own.
#[repr(C, align(128))]
#[derive(Default)]
pub struct Line([AtomicU64; LINE_WORDS]);

impl Line {
    /// A word of the line.
    #[inline(always)]
    #[must_use]
    pub fn word(&self, at: usize) -> &AtomicU64 {
        &self.0[at]
    }

    /// All words.
    #[must_use]
    pub fn words(&self) -> &[AtomicU64; LINE_WORDS] {
        &self.0
    }
}

/// The memory file of a job on one host.
pub struct JobFile {
    file: OwnedFd,
    bytes: u64,
}

impl JobFile {
    /// Creates the file, as long as the system allows.
    ///
    /// # Errors
    /// The system refuses memory files, or files of 256 MiB.
    pub fn create() -> Result<Self, SystemError> {
        let file = memfile::create(c"weft-gex", MemfdFlags::ALLOW_SEALING)?;
        let mut bytes = LONGEST;
        loop {
            let sized = memfile::check_size_limit(bytes).and_then(|()| rustix::fs::ftruncate(&file, bytes));
            match sized {
                Ok(()) => break,
                Err(_) if bytes > SHORTEST => bytes /= 2,
                Err(errno) => return Err(SystemError::of("ftruncate")(errno)),
            }
        }
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).map_err(SystemError::of("fcntl(F_ADD_SEALS)"))?;
        Ok(Self { file, bytes })
    }

    /// Takes a file that the leader of the host has passed.
    ///
    /// # Errors
    /// The file may shrink, and would then raise SIGBUS.
    pub fn adopt(file: OwnedFd) -> Result<Self, SystemError> {
        let sealed = rustix::fs::fcntl_get_seals(&file).map_err(SystemError::of("fcntl(F_GET_SEALS)"))?;
        if !sealed.contains(SealFlags::SHRINK) {
            return Err(SystemError::of("the job's memory file may shrink")(Errno::PERM));
        }
        let stat = rustix::fs::fstat(&file).map_err(SystemError::of("fstat"))?;
        Ok(Self { file, bytes: u64::try_from(stat.st_size).unwrap_or(0) })
    }

    /// The descriptor, to be passed to other ranks.
    #[must_use]
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// The length of the file in bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Maps a part of the file. It stays mapped until [`unmap`] or the end of the process.
    ///
    /// # Errors
    /// Those of mmap(2); EINVAL: the part is not within the file.
    pub fn map(&self, offset: u64, bytes: usize) -> Result<usize, SystemError> {
        if offset.checked_add(bytes as u64).is_none_or(|end| end > self.bytes) {
            return Err(SystemError::of("a part behind the end of the job's memory file")(Errno::INVAL));
        }
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                protection,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &self.file,
                offset,
            )
        };
        base.map(|base| base.expose_provenance()).map_err(SystemError::of("mmap"))
    }

    /// Maps lines of the file for the rest of the process's life.
    ///
    /// # Errors
    /// As [`Self::map`]. `offset` must be a multiple of the page size.
    pub fn lines(&self, offset: u64, count: usize) -> Result<&'static [Line], SystemError> {
        let base = self.map(offset, count * LINE_BYTES)?;
        let first = std::ptr::with_exposed_provenance::<Line>(base);
        // SAFETY: the mapping has that length, is page-aligned, and is never unmapped, because the address is known
        // only here. The file cannot shrink. Words are atomic, and any bits are a value.
        Ok(unsafe { std::slice::from_raw_parts(first, count) })
    }

    /// Gives the pages of a part back to the system.
    pub fn discard(&self, offset: u64, bytes: u64) {
        let mode = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        // Without the call the pages live until the job ends.
        let _ = rustix::fs::fallocate(&self.file, mode, offset, bytes);
    }
}

/// Unmaps a part that [`JobFile::map`] has mapped.
///
/// # Safety
/// No reference into the part exists, and no access follows.
pub unsafe fn unmap(part: Piece) {
    // SAFETY: the caller's contract.
    let unmapped = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(part.addr), part.bytes) };
    debug_assert!(unmapped.is_ok());
}

/// Unmaps a peer's segment that was mapped for this process.
pub(crate) fn unmap_part(part: Piece) {
    // SAFETY: the table of segments, the only caller, has removed the mapping from its rows. Clients make no access to
    // a segment whose owner destroys it.
    unsafe { unmap(part) };
}

/// Copies between client memory and a segment, at addresses that a call has been given or that the table has checked.
#[inline(always)]
pub(crate) fn copy_at(to: usize, from: Piece) {
    let bytes = from.bytes;
    let [to, from] = [to, from.addr].map(std::ptr::with_exposed_provenance_mut::<u8>);
    // SAFETY: the remote side lies in a mapped segment. The local side is the client's, which promises that it is valid
    // for the call.
    unsafe { copy(to, from, bytes) };
}

/// Copies client memory. The ranges may be the same or overlap.
///
/// # Safety
/// `from` is readable and `to` is writable for `bytes`, in this process's mappings.
#[inline(always)]
pub unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's contract.
    unsafe { std::ptr::copy(from, to, bytes) };
}

/// Client memory, or a chunk of a team's area, as bytes.
pub(crate) fn bytes_at<'a>(piece: Piece) -> &'a [u8] {
    let Piece { addr, bytes: len } = piece;
    let first =
        if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { std::ptr::with_exposed_provenance_mut(addr) };
    // SAFETY: collectives, the only callers, use it for the memory that the client has given to the call, and for
    // chunks of an area, which no member writes until all have consumed them. The slice is used within one step.
    unsafe { std::slice::from_raw_parts(first, len) }
}

/// Client memory, or the own chunk of a team's area, as bytes to write.
pub(crate) fn bytes_at_mut<'a>(piece: Piece) -> &'a mut [u8] {
    let Piece { addr, bytes: len } = piece;
    let first =
        if len == 0 { std::ptr::NonNull::dangling().as_ptr() } else { std::ptr::with_exposed_provenance_mut(addr) };
    // SAFETY: as for `bytes_at`; results and chunks that are not consumed belong to the collective alone.
    unsafe { std::slice::from_raw_parts_mut(first, len) }
}

/// Client memory of a collective, for the engine.
pub(crate) fn iov_at(piece: Piece) -> Iov {
    if piece.bytes == 0 {
        return Iov::EMPTY;
    }
    // SAFETY: the memory belongs to the collective until its event is complete, as the client promises.
    unsafe { Iov::new(std::ptr::with_exposed_provenance_mut(piece.addr), piece.bytes) }
}

/// An operand, for the arithmetic of the engine, which only reads it. It is used within one call.
pub(crate) fn iov_of(bytes: &[u8]) -> Iov {
    iov_at(Piece::at(bytes.as_ptr(), bytes.len()))
}

/// An operand that becomes the result, for the arithmetic of the engine. It is used within one call.
pub(crate) fn iov_of_mut(bytes: &mut [u8]) -> Iov {
    iov_at(Piece::at(bytes.as_mut_ptr(), bytes.len()))
}

/// A number in a segment.
pub(crate) fn word_32<'a>(addr: usize) -> &'a std::sync::atomic::AtomicU32 {
    debug_assert!(addr.is_multiple_of(4));
    // SAFETY: the caller has checked that the address lies in a mapped segment and is aligned. Clients access the
    // numbers of atomic domains by atomic operations only.
    unsafe { std::sync::atomic::AtomicU32::from_ptr(std::ptr::with_exposed_provenance_mut(addr)) }
}

/// A long number in a segment.
pub(crate) fn word_64<'a>(addr: usize) -> &'a AtomicU64 {
    debug_assert!(addr.is_multiple_of(8));
    // SAFETY: as for `word_32`.
    unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(addr)) }
}

/// The event of an operation of the engine, whose context has its address.
pub(crate) fn slot<'a>(addr: usize) -> &'a crate::event::Slot {
    // SAFETY: contexts of the engine's operations have addresses of slots, which are never freed.
    unsafe { &*std::ptr::with_exposed_provenance(addr) }
}

/// The address for values of other processes that are not wanted.
pub(crate) fn unwanted() -> usize {
    static WORD: AtomicU64 = AtomicU64::new(0);
    WORD.as_ptr().expose_provenance()
}

/// Writes the low `bytes` (1 to 8) of a value.
///
/// # Safety
/// `to` is writable for `bytes`.
#[inline(always)]
pub unsafe fn put_value(to: *mut u8, value: u64, bytes: usize) {
    match bytes {
        // SAFETY: the caller's contract.
        8 => unsafe { to.cast::<u64>().write_unaligned(value) },
        #[expect(clippy::cast_possible_truncation, reason = "the low bytes are asked for")]
        // SAFETY: the caller's contract.
        4 => unsafe { to.cast::<u32>().write_unaligned(value as u32) },
        _ => {
            let at = if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 };
            let source = value.to_ne_bytes();
            // SAFETY: the caller's contract for `to`; the source is a local array of 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(source[at..].as_ptr(), to, bytes.min(8)) };
        }
    }
}

/// Writes the low bytes of a result to an address that a call has been given.
pub(crate) fn store_at(to: usize, value: u64, bytes: usize) {
    // SAFETY: the client promises that the place of a result is writable until the operation is complete.
    unsafe { put_value(std::ptr::with_exposed_provenance_mut(to), value, bytes) };
}

/// Reads a value of 1 to 8 bytes, extended with zeros.
///
/// # Safety
/// `from` is readable for `bytes`.
#[inline(always)]
#[must_use]
pub unsafe fn get_value(from: *const u8, bytes: usize) -> u64 {
    match bytes {
        // SAFETY: the caller's contract.
        8 => unsafe { from.cast::<u64>().read_unaligned() },
        // SAFETY: the caller's contract.
        4 => u64::from(unsafe { from.cast::<u32>().read_unaligned() }),
        _ => {
            let at = if cfg!(target_endian = "big") { 8 - bytes.min(8) } else { 0 };
            let mut value = [0; 8];
            // SAFETY: the caller's contract for `from`; the destination is a local array of 8 bytes.
            unsafe { std::ptr::copy_nonoverlapping(from, value[at..].as_mut_ptr(), bytes.min(8)) };
            u64::from_ne_bytes(value)
        }
    }
}

/// The direction of an access to another process's memory by the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the local memory to the other process.
    Put,
    /// From the other process to the local memory.
    Get,
}

/// Copies between local memory and the memory of another process that is not mapped here.
///
/// # Safety
/// `local` is readable (put) or writable (get) for the length of `remote`.
///
/// # Errors
/// Those of process_vm_readv(2); EFAULT also for a part.
pub unsafe fn copy_far(way: Way, pid: u32, local: *mut u8, remote: Piece) -> Result<(), Errno> {
    let Piece { addr: remote, bytes } = remote;
    let mut done = 0;
    while done < bytes {
        let near = libc::iovec { iov_base: local.wrapping_add(done).cast(), iov_len: bytes - done };
        let far = libc::iovec { iov_base: std::ptr::without_provenance_mut(remote + done), iov_len: bytes - done };
        let pid = pid.cast_signed();
        let moved = match way {
            // SAFETY: the caller's contract for the local piece; the kernel checks the remote one.
            Way::Put => unsafe { libc::process_vm_writev(pid, &raw const near, 1, &raw const far, 1, 0) },
            // SAFETY: as above.
            Way::Get => unsafe { libc::process_vm_readv(pid, &raw const near, 1, &raw const far, 1, 0) },
        };
        match usize::try_from(moved) {
            Ok(0) => return Err(Errno::FAULT),
            Ok(moved) => done += moved,
            Err(_) => {
                let errno = std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
                return Err(Errno::from_raw_os_error(errno));
            }
        }
    }
    Ok(())
}

/// [`copy_far`] at addresses that a call has been given.
pub(crate) fn copy_far_at(way: Way, pid: u32, local: usize, remote: Piece) -> Result<(), Errno> {
    // SAFETY: the local side is the client's, which promises that it is valid for the call.
    unsafe { copy_far(way, pid, std::ptr::with_exposed_provenance_mut(local), remote) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn two_mappings_of_a_part_are_the_same_memory() {
        let file = JobFile::create().unwrap();
        let other = JobFile::adopt(file.fd().try_clone_to_owned().unwrap()).unwrap();
        let [one, two] = [&file, &other].map(|file| file.lines(1 << 16, 4).unwrap());
        one[3].word(15).store(7, Ordering::Relaxed);
        assert_eq!(two[3].word(15).load(Ordering::Relaxed), 7);
        file.discard(1 << 16, 1 << 16);
        assert_eq!(two[3].word(15).load(Ordering::Relaxed), 0);
        assert!(file.map(file.bytes(), 1).is_err());
    }

    #[test]
    fn values_of_all_lengths_return() {
        let mut bytes = [0xff_u8; 16];
        for len in 1..=8 {
            let value = 0x1122_3344_5566_7788_u64 & (u64::MAX >> (64 - 8 * len));
            // SAFETY: within the array.
            unsafe { put_value(bytes.as_mut_ptr().wrapping_add(3), value, len) };
            assert_eq!(bytes[3 + len], 0xff);
            // SAFETY: as above.
            assert_eq!(unsafe { get_value(bytes.as_ptr().wrapping_add(3), len) }, value);
            bytes.fill(0xff);
        }
    }
}
