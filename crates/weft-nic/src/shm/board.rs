//! Boards: memory that the members of a group on this host share, and their way over the life lines of links.
//!
//! Place in the data flow: the engine of a group's first member has a board made and passes it to the other members
//! ([`weft_engine::board`]). A life line otherwise carries wake-ups of one byte (`doorbell.rs`).
//!
//! The frame of a board, with one descriptor or none (docs/protocol.md), all integers in native order:
//! ```text
//!  0          8      16
//!  | length   | key  |
//! ```

use std::any::Any;
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use weft_engine::board::{Board, SharedWords};
use weft_engine::mapped::PeerRegion;
use weft_engine::nic::{Full, LinkError};

use super::memory;
use super::segment::Mapping;

/// Length of a frame in bytes.
const FRAME_BYTES: usize = 16;
/// The longest board that is mapped, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// Boards in a sealed memfd.
pub(super) struct SharedFile {
    /// The file, at the process that has made it. The others do not pass it on.
    file: Option<OwnedFd>,
    map: Mapping,
}

impl SharedFile {
    /// Memory of a peer, which this process does not pass on.
    pub(super) const fn of_peer(map: Mapping) -> Self {
        Self { file: None, map }
    }
}

impl SharedWords for SharedFile {
    fn words(&self) -> &[AtomicU64] {
        let first = self.map.base().cast::<AtomicU64>();
        // SAFETY: the mapping begins at a page and has at least that many words. It exists as long as `self`. All
        // processes access it by atomics, for which every bit pattern is valid.
        unsafe { std::slice::from_raw_parts(first.as_ptr(), self.map.len() / size_of::<AtomicU64>()) }
    }

    fn obtain(&self, range: Range<usize>) -> bool {
        let bytes = bytes_of(range);
        let obtained = self.map.populate(bytes.start, bytes.len());
        obtained.inspect_err(|error| log::warn!("no shared memory for a group: {error}")).is_ok()
    }

    fn give_back(&self, range: Range<usize>) {
        let bytes = bytes_of(range);
        // Without this the memory stays until the next group uses it.
        let _ = self.map.release(bytes.start, bytes.len());
    }
}

fn bytes_of(words: Range<usize>) -> Range<usize> {
    words.start * size_of::<AtomicU64>()..words.end * size_of::<AtomicU64>()
}

/// Makes a file of `bytes` bytes for boards. It has no memory yet. `None`: descriptors ran out.
pub(super) fn make(bytes: usize) -> Option<Board> {
    let made = Mapping::create(c"weft-board", bytes);
    let (file, map) = made.inspect_err(|error| log::warn!("no shared memory for a group: {error}")).ok()?;
    Some(Arc::new(SharedFile { file: Some(file), map }))
}

/// Sends a board, or reports that there is none, over a life line. A hang-up is noticed elsewhere.
pub(super) fn pass(socket: BorrowedFd<'_>, key: u64, board: Option<&Board>) -> Result<(), Full> {
    let shared = board.and_then(|board| (&**board as &dyn Any).downcast_ref::<SharedFile>());
    let mut frame = [0; FRAME_BYTES];
    frame[..8].copy_from_slice(&shared.map_or(0, |shared| shared.map.len() as u64).to_ne_bytes());
    frame[8..].copy_from_slice(&key.to_ne_bytes());
    let fds: Vec<BorrowedFd<'_>> = shared.iter().filter_map(|shared| Some(shared.file.as_ref()?.as_fd())).collect();
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() {
        control.push(SendAncillaryMessage::ScmRights(&fds));
    }
    let iov = [io::IoSlice::new(&frame)];
    match rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Err(Full),
        _ => Ok(()),
    }
}

/// A packet of a life line, or the end of the line.
pub(super) enum Received {
    Nothing,
    WakeUp,
    HangUp,
    /// The key, and the board if there is one that this process can map.
    Board(u64, Option<Board>),
    /// The key, and the region if there is one that this process can map.
    Region(u64, Option<PeerRegion>),
}

/// Takes the next packet from a life line.
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Received, LinkError> {
    let mut frame = [0u8; memory::FRAME_BYTES + 1];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [io::IoSliceMut::new(&mut frame)];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(Received::Nothing),
        Err(_) => return Ok(Received::HangUp),
    };
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    match got.bytes {
        0 => Ok(Received::HangUp),
        1 if files.is_empty() => Ok(Received::WakeUp),
        FRAME_BYTES => {
            let number = |at: usize| frame[at..at + 8].try_into().map_or(0, u64::from_ne_bytes);
            let len = usize::try_from(number(0)).unwrap_or(usize::MAX);
            // The kernel drops descriptors for which the descriptor table has no room.
            let file = files.pop().filter(|_| len <= MAX_BYTES && !got.flags.contains(ReturnFlags::CTRUNC));
            Ok(Received::Board(number(8), file.and_then(|file| adopt(file, len))))
        }
        memory::FRAME_BYTES => {
            if got.flags.contains(ReturnFlags::CTRUNC) {
                files.clear();
            }
            let (key, region) = memory::receive(&frame[..memory::FRAME_BYTES], files);
            Ok(Received::Region(key, region))
        }
        _ => Err(LinkError::Protocol),
    }
}

/// Maps a peer's board.
fn adopt(file: OwnedFd, len: usize) -> Option<Board> {
    let mapped = Mapping::adopt(file.as_fd(), len);
    let map = mapped.inspect_err(|error| log::warn!("a peer's board cannot be mapped: {error}")).ok()?;
    Some(Arc::new(SharedFile::of_peer(map)))
}
