//! The allocator of memory that peers of this host may map, and the way of such regions over the life lines of links.
//!
//! Place in the data flow: weft-fi's extension `weft_memory` allocates here. A region that is a whole allocation can be
//! mapped ([`weft_engine::mapped`]). The owner's device passes the file of the memory to a peer, which maps it.
//!
//! Trust. A peer of the same user gets a descriptor of the whole allocation, and of nothing else. The size of the file
//! is sealed. If the peer may only read, the file is sealed against further writing before it is passed. When the owner
//! revokes a region, it puts other pages in the place of the allocation, so that no peer has a descriptor of them.
//!
//! The frame of a region, with two descriptors (memory and guard) or none, all integers in native order:
//! ```text
//!  0                   8     16     24                32                  40              48
//!  | length of the file | key | base | region's length | 1: read, 2: write | owner's address |
//! ```
//!
//! Source: memfd_create(2), fcntl(2) F_ADD_SEALS, unix(7) SCM_RIGHTS.

use std::any::Any;
use std::fmt;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::fs::{SealFlags, SeekFrom};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use weft_engine::api::Access;
use weft_engine::board::{Board, SharedWords};
use weft_engine::mapped::{Guard, Mappable, PeerRegion, RegionOffer, Span};
use weft_engine::nic::Full;

use super::board::SharedFile;
use super::segment::{self, Mapping};
use crate::NicError;

/// Length of a frame in bytes.
pub(super) const FRAME_BYTES: usize = 48;
/// Time that a peer's access under way gets before its pages are replaced nevertheless. An access copies at most 1 MiB.
const PATIENCE: Duration = Duration::from_secs(1);
/// Bytes that are copied at a time when pages are replaced.
const COPY_BYTES: usize = 1 << 20;
/// The most shares of one allocation.
const MOST_SHARES: usize = 65_536;

/// The allocations of this process.
static ALLOCATIONS: Mutex<Vec<Arc<MappedMemory>>> = Mutex::new(Vec::new());

/// Bytes of these allocations.
static ALLOCATED: AtomicU64 = AtomicU64::new(0);

/// Bytes of memory that peers may map, in this process.
pub(crate) fn allocated_bytes() -> u64 {
    ALLOCATED.load(Ordering::Relaxed)
}

fn allocations() -> MutexGuard<'static, Vec<Arc<MappedMemory>>> {
    ALLOCATIONS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// An allocation: whole pages in a file without a name.
pub struct MappedMemory {
    map: Mapping,
    state: Mutex<MemoryState>,
}

struct MemoryState {
    /// The file. `None`: peers cannot map the memory any more, because descriptors ran out.
    file: Option<OwnedFd>,
    /// The access of the peers that have the file. `None`: none has it.
    shared: Option<Access>,
    /// The guards of the peers, as long as their links are up.
    guards: Vec<Weak<dyn SharedWords>>,
}

impl fmt::Debug for MappedMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes at {:p}", self.map.len(), self.map.base())
    }
}

/// The reason why memory was not freed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotFreed {
    /// No allocation begins at the address.
    Unknown,
    /// A region is still registered on it.
    Registered,
}

/// Allocates at least `len` bytes that are zero, and obtains their pages. `huge`: the system should use large pages.
///
/// # Errors
/// EINVAL for no bytes, and the errors of memfd_create(2), ftruncate(2), mmap(2) and madvise(2): memory, descriptors or
/// RLIMIT_FSIZE do not suffice.
pub fn allocate(len: usize, huge: bool) -> Result<NonNull<u8>, NicError> {
    let len = len.checked_next_multiple_of(segment::page_bytes()).filter(|len| *len > 0);
    let len = len.ok_or_else(|| NicError::system("an allocation")(Errno::INVAL))?;
    let (file, map) = Mapping::unsealed(c"weft-memory", len)?;
    rustix::fs::fcntl_add_seals(&file, size_seals()).map_err(NicError::system("fcntl of a memfd"))?;
    if huge {
        // SAFETY: the range is the new mapping. The advice changes no content, and may be refused.
        let _ = unsafe { rustix::mm::madvise(map.base().as_ptr().cast(), len, Advice::LinuxHugepage) };
    }
    map.populate(0, len).map_err(NicError::system("madvise of a memfd"))?;
    let base = map.base();
    let state = Mutex::new(MemoryState { file: Some(file), shared: None, guards: Vec::new() });
    allocations().push(Arc::new(MappedMemory { map, state }));
    ALLOCATED.fetch_add(len as u64, Ordering::Relaxed);
    Ok(base)
}

/// Frees an allocation, which no region uses any more.
///
/// # Errors
/// [`NotFreed`].
pub fn free(address: usize) -> Result<(), NotFreed> {
    let mut allocations = allocations();
    let at = allocations.iter().position(|memory| memory.address() == address).ok_or(NotFreed::Unknown)?;
    if Arc::strong_count(&allocations[at]) > 1 {
        return Err(NotFreed::Registered);
    }
    let memory = allocations.swap_remove(at);
    ALLOCATED.fetch_sub(memory.map.len() as u64, Ordering::Relaxed);
    Ok(())
}

/// The allocation that contains an address: its first address and its length in bytes.
#[must_use]
pub fn query(address: usize) -> Option<(usize, usize)> {
    let allocations = allocations();
    let mut spans = allocations.iter().map(|memory| (memory.address(), memory.map.len()));
    spans.find(|(base, len)| (*base..base + len).contains(&address))
}

/// The allocation of which `len` bytes at `address` are all but the rest of the last page.
#[must_use]
pub fn whole(address: usize, len: usize) -> Option<Arc<dyn Mappable>> {
    let allocations = allocations();
    let memory = allocations.iter().find(|memory| memory.address() == address)?;
    let is_whole = len.checked_next_multiple_of(segment::page_bytes()) == Some(memory.map.len());
    is_whole.then(|| Arc::clone(memory) as Arc<dyn Mappable>)
}

impl Mappable for MappedMemory {
    fn revoke(&self) {
        let mut state = self.lock();
        let guards: Vec<Guard> =
            state.guards.drain(..).filter_map(|guard| Guard::new(guard.upgrade()? as Board)).collect();
        guards.iter().for_each(Guard::revoke);
        let end = Instant::now() + PATIENCE;
        while !guards.iter().all(Guard::is_idle) && Instant::now() < end {
            std::thread::yield_now();
        }
        if state.shared.take().is_some() {
            state.file = self.replace(state.file.as_ref());
        }
    }
}

impl MappedMemory {
    fn address(&self) -> usize {
        self.map.base().as_ptr() as usize
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other pages with the same content in the place of the memory. Returns their file. `None`: they have none.
    fn replace(&self, old: Option<&OwnedFd>) -> Option<OwnedFd> {
        let len = self.map.len();
        let copied = old.ok_or(Errno::BADF).and_then(|old| copy_of(old, len));
        let (file, flags) = match &copied {
            Ok(file) => (Some(file), MapFlags::SHARED | MapFlags::FIXED),
            Err(why) => {
                log::warn!("memory that peers have mapped cannot be mapped again: {why}; raise `ulimit -n`");
                (None, MapFlags::PRIVATE | MapFlags::FIXED)
            }
        };
        let replaced = match file {
            // SAFETY: the range is this allocation, which nothing else maps. Its content stays the same.
            Some(file) => unsafe { rustix::mm::mmap(self.base(), len, protection(), flags, file, 0) }.map(|_| ()),
            None => self.make_private(flags),
        };
        if let Err(why) = replaced {
            log::error!("pages of revoked memory cannot be replaced: {why}; peers that ignore the end may write there");
        }
        copied.ok()
    }

    fn base(&self) -> *mut std::ffi::c_void {
        self.map.base().as_ptr().cast()
    }

    /// Replaces the pages by memory without a file.
    fn make_private(&self, flags: MapFlags) -> Result<(), Errno> {
        let len = self.map.len();
        let mut bytes = vec![0_u8; len];
        // SAFETY: the mapping has `len` bytes, and the vector is this function's own.
        unsafe { std::ptr::copy(self.map.base().as_ptr(), bytes.as_mut_ptr(), len) };
        // SAFETY: the range is this allocation. Its content follows.
        unsafe { rustix::mm::mmap_anonymous(self.base(), len, protection(), flags) }?;
        // SAFETY: as above, in the other direction.
        unsafe { std::ptr::copy(bytes.as_ptr(), self.map.base().as_ptr(), len) };
        Ok(())
    }

    /// Passes the memory over a life line, under the lock that revocation takes. `Ok(None)`: it cannot be passed.
    fn pass(&self, socket: BorrowedFd<'_>, key: u64, offer: &RegionOffer<'_>) -> Result<Option<Guard>, Full> {
        let mut state = self.lock();
        state.guards.retain(|guard| guard.strong_count() > 0);
        let same = state.shared.is_none_or(|access| access.write == offer.access().write);
        let Some(file) = state.file.as_ref().filter(|_| same && state.guards.len() < MOST_SHARES) else {
            return Ok(None);
        };
        let only_read = if offer.access().write { SealFlags::empty() } else { SealFlags::FUTURE_WRITE };
        if state.shared.is_none()
            && rustix::fs::fcntl_add_seals(file, size_seals() | SealFlags::SEAL | only_read).is_err()
        {
            return Ok(None);
        }
        let made = Mapping::create(c"weft-guard", segment::page_bytes());
        let Ok((guard_file, guard)) = made.inspect_err(|why| log::info!("a region is not mapped: {why}")) else {
            return Ok(None);
        };
        let frame = frame_of(self.map.len() as u64, key, Some(offer));
        send(socket, &frame, &[file.as_fd(), guard_file.as_fd()])?;
        let guard: Board = Arc::new(SharedFile::of_peer(guard));
        state.shared = Some(offer.access());
        state.guards.push(Arc::downgrade(&guard));
        Ok(Guard::new(guard))
    }
}

fn protection() -> ProtFlags {
    ProtFlags::READ | ProtFlags::WRITE
}

fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW
}

/// A file with the content of another one. Holes stay holes.
fn copy_of(old: &OwnedFd, len: usize) -> Result<OwnedFd, Errno> {
    let create = || -> Result<OwnedFd, NicError> {
        let (file, _) = Mapping::unsealed(c"weft-memory", len)?;
        rustix::fs::fcntl_add_seals(&file, size_seals()).map_err(NicError::system("fcntl of a memfd"))?;
        Ok(file)
    };
    let file = create().map_err(|_| Errno::MFILE)?;
    let mut buffer = vec![0; COPY_BYTES.min(len)];
    let mut at = 0;
    while at < len as u64 {
        match rustix::fs::seek(old, SeekFrom::Data(at)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => break,
            Err(why) => return Err(why),
        }
        let got = rustix::io::pread(old, &mut buffer[..], at)?;
        if got == 0 {
            break;
        }
        let mut done = 0;
        while done < got {
            done += rustix::io::pwrite(&file, &buffer[done..got], at + done as u64)?;
        }
        at += got as u64;
    }
    Ok(file)
}

fn frame_of(len: u64, key: u64, offer: Option<&RegionOffer<'_>>) -> [u8; FRAME_BYTES] {
    let access = |access: Access| u64::from(access.read) | u64::from(access.write) << 1;
    let [base, address, bytes] = offer.map_or([0; 3], |offer| offer.span().words());
    let access = offer.map_or(0, |offer| access(offer.access()));
    let mut frame = [0; FRAME_BYTES];
    for (place, word) in frame.chunks_exact_mut(8).zip([len, key, base, bytes, access, address]) {
        place.copy_from_slice(&word.to_ne_bytes());
    }
    frame
}

fn send(socket: BorrowedFd<'_>, frame: &[u8], files: &[BorrowedFd<'_>]) -> Result<(), Full> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !files.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(files));
    }
    let iov = [io::IoSlice::new(frame)];
    match rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Err(Full),
        // A hang-up is noticed elsewhere.
        _ => Ok(()),
    }
}

/// Passes a region over a life line, or reports that there is none.
pub(super) fn pass(socket: BorrowedFd<'_>, key: u64, offer: Option<RegionOffer<'_>>) -> Result<Option<Guard>, Full> {
    if let Some(offer) = &offer
        && let Some(memory) = (offer.memory() as &dyn Any).downcast_ref::<MappedMemory>()
        && let Some(guard) = memory.pass(socket, key, offer)?
    {
        return Ok(Some(guard));
    }
    send(socket, &frame_of(0, key, None), &[])?;
    Ok(None)
}

/// The key and the region of a frame. No region: the peer has none, or it cannot be mapped here.
pub(super) fn receive(frame: &[u8], mut files: Vec<OwnedFd>) -> (u64, Option<PeerRegion>) {
    let word = |at: usize| frame[8 * at..8 * at + 8].try_into().map_or(0, u64::from_ne_bytes);
    let (Some(guard), Some(memory)) = (files.pop(), files.pop()) else { return (word(1), None) };
    let access = Access { read: word(4) & 1 != 0, write: word(4) & 2 != 0 };
    let span = Span::new(word(2), word(5), word(3));
    let adopt = || -> io::Result<Option<PeerRegion>> {
        let len = usize::try_from(word(0)).map_err(|_| io::ErrorKind::InvalidData)?;
        let memory = if access.write {
            Mapping::adopt(memory.as_fd(), len)
        } else {
            Mapping::adopt_for_reading(memory.as_fd(), len)
        }?;
        let guard = Mapping::adopt(guard.as_fd(), segment::page_bytes())?;
        let guard = Guard::new(Arc::new(SharedFile::of_peer(guard)));
        let memory: Board = Arc::new(SharedFile::of_peer(memory));
        Ok(guard.and_then(|guard| PeerRegion::new(memory, guard, span, access)))
    };
    (word(1), adopt().inspect_err(|why| log::info!("a peer's region is not mapped: {why}")).ok().flatten())
}
