//! Cross-memory attach: reads and writes a peer's memory by process id and address, in one copy.
//!
//! Place in the data flow: below the transfers of `transfer.rs`, which decide what is copied, and when.
//!
//! The kernel's permission depends on user, capabilities, dumpability, Yama's ptrace_scope, seccomp and
//! namespaces. It is therefore never assumed: [`reaches`] reads random bytes that the peer has announced.
//!
//! Units: bytes. Errors: every refusal of the kernel is [`LinkError::Access`] (EPERM: not allowed; ESRCH: the
//! process is gone; EFAULT: bad address). A process id denotes the peer only while the peer lives, and the
//! peer's addresses are valid only until it executes another program. `Shm::check_process` therefore
//! checks both before a copy, at most once per tick of the coarse clock (some milliseconds). Within one tick
//! the system cannot cycle through all other process ids.
//!
//! Sources: process_vm_readv(2).

use smallvec::SmallVec;
use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{LinkError, RemoteIov};

/// Maximum number of pieces per system call; the system's own limit (IOV_MAX) is 1024.
const MAX_PIECES: usize = 64;

/// Local memory and the peer's memory that correspond byte by byte.
pub(super) struct Span {
    local: IovList,
    remote: SmallVec<[RemoteIov; 2]>,
    /// The bytes move to the peer.
    put: bool,
    total_bytes: usize,
}

impl Span {
    pub(super) fn new(put: bool, local: &[Iov], remote: &[RemoteIov]) -> Self {
        let far = remote.iter().fold(0, |sum: u64, piece| sum.saturating_add(piece.len));
        let total_bytes = mem::total_len(local).min(usize::try_from(far).unwrap_or(usize::MAX));
        Self { local: local.into(), remote: SmallVec::from_slice(remote), put, total_bytes }
    }

    pub(super) fn total_bytes(&self) -> usize {
        self.total_bytes
    }

    /// Copies `len` bytes from `offset`, completely or with an error.
    pub(super) fn copy(&self, pid: i32, mut offset: usize, len: usize) -> Result<(), LinkError> {
        let end = offset.saturating_add(len).min(self.total_bytes);
        while offset < end {
            let local = mem::slice(&self.local, offset, end - offset);
            let near: SmallVec<[libc::iovec; 2]> = local.iter().take(MAX_PIECES).map(near_piece).collect();
            let far = self.far_pieces(offset, end - offset);
            match copy(self.put, pid, &near, &far) {
                // The kernel cannot have moved more bytes than requested.
                Some(n) if n > 0 => offset += n.min(end - offset),
                _ => return Err(LinkError::Access),
            }
        }
        Ok(())
    }

    /// The remote pieces for `want` bytes from `offset`.
    fn far_pieces(&self, offset: usize, mut want: usize) -> SmallVec<[libc::iovec; 2]> {
        let mut skip = offset as u64;
        let mut out = SmallVec::new();
        for piece in &self.remote {
            if skip >= piece.len {
                skip -= piece.len;
                continue;
            }
            // At most `want`, so it fits a usize.
            let len = usize::try_from(piece.len - skip).unwrap_or(usize::MAX).min(want);
            if len == 0 || out.len() == MAX_PIECES {
                break;
            }
            out.push(far_piece(piece.addr.wrapping_add(skip), len));
            skip = 0;
            want -= len;
        }
        out
    }
}

/// Whether the process `pid` has `value` at `addr`. If so, the memory is readable, and the process is the one
/// that sent the value.
pub(super) fn reaches(pid: i32, addr: u64, value: &[u8; 16]) -> bool {
    read_16(pid, addr).is_ok_and(|found| found == *value)
}

/// Reads 16 bytes at `addr` of the process `pid`.
pub(super) fn read_16(pid: i32, addr: u64) -> std::io::Result<[u8; 16]> {
    let mut found = [0u8; 16];
    let near = [libc::iovec { iov_base: found.as_mut_ptr().cast(), iov_len: found.len() }];
    if pid <= 0 {
        return Err(std::io::ErrorKind::NotFound.into());
    }
    match copy(false, pid, &near, &[far_piece(addr, found.len())]) {
        Some(16) => Ok(found),
        Some(_) => Err(std::io::ErrorKind::UnexpectedEof.into()),
        None => Err(std::io::Error::last_os_error()),
    }
}

fn near_piece(piece: &Iov) -> libc::iovec {
    libc::iovec { iov_base: piece.as_ptr().cast(), iov_len: piece.len() }
}

fn far_piece(addr: u64, len: usize) -> libc::iovec {
    // The address belongs to another process and is never dereferenced here. Addresses have 64 bits (mod.rs
    // rejects other targets).
    let addr = usize::try_from(addr).unwrap_or(usize::MAX);
    libc::iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: len }
}

/// Makes one system call. `None`: errno has the reason.
fn copy(put: bool, pid: i32, near: &[libc::iovec], far: &[libc::iovec]) -> Option<usize> {
    let (nears, fars) = (near.len() as libc::c_ulong, far.len() as libc::c_ulong);
    let moved = if put {
        // SAFETY: the kernel reads the near pieces, which describe memory that the caller of `Span::new`
        // lends until `done`. It checks the far pieces against the other process.
        unsafe { libc::process_vm_writev(pid, near.as_ptr(), nears, far.as_ptr(), fars, 0) }
    } else {
        // SAFETY: the kernel writes the near pieces, which the caller of `Span::new` lends for writing until
        // `done`. It checks the far pieces against the other process.
        unsafe { libc::process_vm_readv(pid, near.as_ptr(), nears, far.as_ptr(), fars, 0) }
    };
    usize::try_from(moved).ok()
}
