//! Shared memory: sealed memfds, their mappings, and the layout of the segment that two peers share.
//!
//! Place in the data flow: the handshake makes and checks segments, and the rings use them.
//!
//! Layout of a pair's segment (offsets in bytes, `L` lines of 64 bytes per ring):
//! ```text
//!  0            640          1280          2304        3328    4096           4096 + 64·L     4096 + 128·L
//!  | initiator's | acceptor's | initiator's | acceptor's | unused | ring         | ring         |
//!  | SideBlock   | SideBlock  | share slots | share slots|        | init. → acc. | acc. → init. |
//! ```
//! One side writes its side block, and the other reads it. Each word has 128 bytes of its own, because
//! processors fetch cache lines in pairs.
//!
//! Invariants:
//! - The memory behind a [`Mapping`] cannot vanish. The maker seals the file's size before it passes the file
//!   on, and the receiver verifies the seals and the size before it maps the file. A peer that truncates the
//!   file therefore cannot raise SIGBUS here. Only memfds on tmpfs are accepted: huge pages could run out at
//!   a page fault.
//! - Pages are obtained explicitly before they are written ([`Mapping::populate`]), so that lack of memory is
//!   an error and not a signal. A hostile peer can release pages by punching holes; they are allocated again
//!   when they are accessed.
//!
//! Sources: memfd_create(2), fcntl(2) F_ADD_SEALS, madvise(2) MADV_POPULATE_WRITE.

use std::ffi::CStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use weft_os::memfile;

use super::page::Padded;
use super::share::{self, Slot};
use crate::NicError;

/// Size of a cache line and of a line of a ring.
pub(super) const LINE_BYTES: usize = 64;
/// Offset of the rings. It is a page, so that the control words share no page with payload.
const RINGS_AT: usize = 4096;
/// Distance between the side blocks.
const SIDE_BYTES: usize = 640;
/// Offset of the slots of shared transfers, of which the initiator's come first (`share.rs`).
const SHARES_AT: usize = 2 * SIDE_BYTES;
const SHARES_BYTES: usize = share::SLOTS as usize * size_of::<Slot>();
/// The file system magic of tmpfs, which holds memfds.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The words by which one side informs the other outside the rings. Initially all zero.
#[repr(C)]
pub(super) struct SideBlock {
    /// Number of lines that this side has consumed of its incoming ring since the start of the link.
    pub(super) consumed: Padded<AtomicU64>,
    /// 1: this side checks its incoming ring in every poll. 0: the producer must ring its doorbell after
    /// publishing.
    pub(super) polled: Padded<AtomicU32>,
    /// 1: this side sleeps, and wants its doorbell rung when its outgoing ring gets space.
    pub(super) wants_space: Padded<AtomicU32>,
    /// 1: this side has closed the link in an orderly way. 2: the link has failed on this side.
    pub(super) closed: Padded<AtomicU32>,
    /// Number of messages that this side has executed, modulo 2^32, as last confirmed.
    pub(super) confirmed: Padded<AtomicU32>,
}

const _: () = {
    // The offsets of docs/protocol.md.
    assert!(size_of::<SideBlock>() == SIDE_BYTES);
    assert!(std::mem::offset_of!(SideBlock, polled) == 128);
    assert!(std::mem::offset_of!(SideBlock, wants_space) == 256);
    assert!(std::mem::offset_of!(SideBlock, closed) == 384);
    assert!(std::mem::offset_of!(SideBlock, confirmed) == 512);
};
const _: () = assert!(2 * SIDE_BYTES <= SHARES_AT && SHARES_AT + 2 * SHARES_BYTES <= RINGS_AT);
const _: () = assert!(size_of::<Slot>() == 128 && SHARES_BYTES == 1024);

/// A side of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// The side that connected and made the segment.
    Initiator,
    /// The side that accepted the connection.
    Acceptor,
}

impl Role {
    pub(super) fn other(self) -> Self {
        match self {
            Self::Initiator => Self::Acceptor,
            Self::Acceptor => Self::Initiator,
        }
    }

    fn index(self) -> usize {
        match self {
            Self::Initiator => 0,
            Self::Acceptor => 1,
        }
    }
}

/// Size in bytes of a segment with rings of `lines` lines.
pub(super) const fn segment_bytes(lines: u32) -> usize {
    RINGS_AT + 2 * lines as usize * LINE_BYTES
}

/// A shared mapping of a sealed memfd. It is unmapped on drop.
pub(super) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread. It is written through atomics, or by the only
// owner of a ring's end.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives access only to atomics and raw pointers.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Makes a memfd of `len` bytes, seals its size, and maps it.
    pub(super) fn create(name: &CStr, len: usize) -> Result<(OwnedFd, Self), NicError> {
        let (fd, map) = Self::unsealed(name, len)?;
        rustix::fs::fcntl_add_seals(&fd, size_seals()).map_err(NicError::system("fcntl of a memfd"))?;
        Ok((fd, map))
    }

    /// Makes a memfd like [`Mapping::create`] that only this process can write. Others may map it for
    /// reading.
    pub(super) fn create_for_readers(name: &CStr, len: usize) -> Result<(OwnedFd, Self), NicError> {
        let (fd, map) = Self::unsealed(name, len)?;
        // Linux before 5.1 has no such seal. Peers then merely promise to map the file for reading.
        rustix::fs::fcntl_add_seals(&fd, size_seals() | SealFlags::FUTURE_WRITE)
            .or_else(|_| rustix::fs::fcntl_add_seals(&fd, size_seals()))
            .map_err(NicError::system("fcntl of a memfd"))?;
        Ok((fd, map))
    }

    pub(super) fn unsealed(name: &CStr, len: usize) -> Result<(OwnedFd, Self), NicError> {
        let fd = memfile::create(name, MemfdFlags::ALLOW_SEALING)?;
        let resized = memfile::check_size_limit(len as u64).and_then(|()| rustix::fs::ftruncate(&fd, len as u64));
        resized.map_err(NicError::system("ftruncate of a memfd"))?;
        let map = Self::map(fd.as_fd(), len).map_err(NicError::system("mmap of a memfd"))?;
        Ok((fd, map))
    }

    /// Maps a memfd from a peer, if it has exactly `len` bytes and its size is sealed.
    pub(super) fn adopt(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        check(fd, len)?;
        Self::map(fd, len)
    }

    /// Maps such a file for reading only.
    pub(super) fn adopt_for_reading(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        check(fd, len)?;
        Self::map_for(fd, len, ProtFlags::READ)
    }

    /// Maps two such files of `len` bytes each. The second one is mapped for reading only, at [`second_at`]
    /// behind the first.
    pub(super) fn adopt_two(files: &[OwnedFd; 2], len: usize) -> io::Result<Self> {
        for file in files {
            check(file.as_fd(), len)?;
        }
        // The mapping is longer than the file until the next call.
        let map = Self::map(files[0].as_fd(), second_at(len) + len)?;
        let second = map.base.as_ptr().wrapping_add(second_at(len)).cast();
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: the call replaces the end of a mapping that was just made and has no user yet.
        unsafe { rustix::mm::mmap(second, len, ProtFlags::READ, flags, &files[1], 0) }?;
        Ok(map)
    }

    fn map(fd: BorrowedFd<'_>, len: usize) -> io::Result<Self> {
        Self::map_for(fd, len, ProtFlags::READ | ProtFlags::WRITE)
    }

    fn map_for(fd: BorrowedFd<'_>, len: usize, access: ProtFlags) -> io::Result<Self> {
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let ptr = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, fd, 0) }?;
        let base = NonNull::new(ptr.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { base, len })
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Address of the first byte.
    pub(super) fn base(&self) -> NonNull<u8> {
        self.base
    }

    /// Obtains the pages of a range, so that writing to them cannot fail with a signal.
    pub(super) fn populate(&self, offset: usize, len: usize) -> io::Result<()> {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the range lies in the mapping, which begins at a page.
        unsafe { populate(self.base, offset, len) }
    }

    /// Gives back the pages of a range, whose content is zero from then on. The range consists of whole pages.
    pub(super) fn release(&self, offset: usize, len: usize) -> io::Result<()> {
        let is_page = |at: usize| at.is_multiple_of(page_bytes());
        if offset.checked_add(len).is_none_or(|end| end > self.len) || !is_page(offset) || !is_page(len) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let start = self.base.as_ptr().wrapping_add(offset).cast();
        // SAFETY: the range lies in the mapping, whose content every process accesses by atomics alone.
        unsafe { rustix::mm::madvise(start, len, Advice::LinuxRemove) }.map_err(io::Error::from)
    }

    /// The side block of `role` in a segment.
    pub(super) fn side(&self, role: Role) -> &SideBlock {
        debug_assert!(self.len >= RINGS_AT);
        // SAFETY: the mapping has at least the length of a segment, which makers choose and adopters check.
        unsafe { side(self.base, role) }
    }

    /// Slot `index` of the transfers that `owner` shares, in a segment.
    pub(super) fn share(&self, owner: Role, index: u32) -> &Slot {
        let index = (index % share::SLOTS) as usize;
        let at = SHARES_AT + owner.index() * SHARES_BYTES + index * size_of::<Slot>();
        debug_assert!(self.len >= RINGS_AT);
        let slot = self.base.as_ptr().wrapping_add(at).cast::<Slot>();
        // SAFETY: the mapping has at least the length of a segment, which makers choose and adopters check.
        unsafe { &*slot }
    }

    /// Offset in bytes of the ring that `role` writes, in a segment with rings of `lines` lines.
    pub(super) fn ring_offset(role: Role, lines: u32) -> usize {
        RINGS_AT + role.index() * lines as usize * LINE_BYTES
    }
}

/// The side block of `role` in the segment at `base`.
///
/// # Safety
/// A segment is mapped at `base` as long as the block is used.
#[inline(always)]
pub(super) unsafe fn side<'a>(base: NonNull<u8>, role: Role) -> &'a SideBlock {
    let block = base.as_ptr().wrapping_add(role.index() * SIDE_BYTES).cast::<SideBlock>();
    // SAFETY: the block lies inside the segment by the caller's promise, is aligned, and consists of atomics,
    // for which every bit pattern is valid.
    unsafe { &*block }
}

/// Obtains the pages of a range of the memory at `base`.
///
/// # Safety
/// The range is mapped, and `base` is the beginning of a page.
pub(super) unsafe fn populate(base: NonNull<u8>, offset: usize, len: usize) -> io::Result<()> {
    let page = offset & !(page_bytes() - 1);
    let start = base.as_ptr().wrapping_add(page).cast();
    // SAFETY: the range is mapped by the caller's promise, and populating it changes no content.
    match unsafe { rustix::mm::madvise(start, len + offset - page, Advice::LinuxPopulateWrite) } {
        // Linux before 5.14 has no such advice and allocates pages when they are accessed.
        Ok(()) | Err(Errno::INVAL) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Releases the whole pages within `len` bytes from `offset`. They are zero at their next use, in all processes.
///
/// # Safety
/// The range lies in a [`Mapping`] at `base`.
pub(super) unsafe fn release(base: NonNull<u8>, offset: usize, len: usize) {
    let page = page_bytes();
    let (from, to) = (offset.next_multiple_of(page), (offset + len) / page * page);
    if from < to {
        let start = base.as_ptr().wrapping_add(from).cast();
        // SAFETY: the pages belong to the caller's range. A refusal leaves them as they are.
        let _ = unsafe { rustix::mm::madvise(start, to - from, Advice::LinuxRemove) };
    }
}

/// Size of a page in bytes, asked once: the C library computes it in each call.
pub(super) fn page_bytes() -> usize {
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);
    let known = PAGE_BYTES.load(Ordering::Relaxed);
    if known != 0 {
        return known;
    }
    let asked = rustix::param::page_size();
    PAGE_BYTES.store(asked, Ordering::Relaxed);
    asked
}

/// Offset of the second file of [`Mapping::adopt_two`].
pub(super) fn second_at(len: usize) -> usize {
    len.next_multiple_of(page_bytes())
}

/// Checks that a file is a memfd with exactly `len` bytes whose size is sealed.
fn check(fd: BorrowedFd<'_>, len: usize) -> io::Result<()> {
    let sealed = rustix::fs::fcntl_get_seals(fd)?.contains(size_seals());
    let tmpfs = rustix::fs::fstatfs(fd)?.f_type as i64 == TMPFS_MAGIC;
    let size = rustix::fs::fstat(fd)?.st_size;
    if sealed && tmpfs && u64::try_from(size) == Ok(len as u64) {
        return Ok(());
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a shared memory file is not sealed as it must be"))
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `map` made the mapping, the end of which may have been replaced. All pointers into it
        // belong to structures that hold the mapping.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_sealed_files_of_the_right_size_are_mapped() {
        let (fd, map) = Mapping::create(c"weft-test", 8192).unwrap();
        assert_eq!(map.len(), 8192);
        assert!(Mapping::adopt(fd.as_fd(), 8192).is_ok());
        assert!(Mapping::adopt(fd.as_fd(), 4096).is_err());
        assert!(rustix::fs::ftruncate(&fd, 0).is_err());

        let loose = rustix::fs::memfd_create(c"weft-test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&loose, 8192).unwrap();
        assert!(Mapping::adopt(loose.as_fd(), 8192).is_err());
        let null = std::fs::File::open("/dev/null").unwrap();
        assert!(Mapping::adopt(null.as_fd(), 8192).is_err());
    }

    #[test]
    fn ranges_outside_are_not_populated() {
        let (_fd, map) = Mapping::create(c"weft-test", 16384).unwrap();
        assert!(map.populate(4096, 8192).is_ok());
        assert!(map.populate(4096, 16384).is_err());
        assert!(map.populate(usize::MAX, 2).is_err());
    }
}
