//! Checks the buffers and vectors of a call and translates them into the engine's.
//!
//! Place in the data flow: the entry points of data transfers ([`crate::abi::transfer`]) call these functions first.
//! The result borrows the client's memory by the rule of fi_msg(3): the buffers belong to weft until the operation
//! completes.
//!
//! Errors: -FI_EINVAL for more pieces than the limit, and for a null pointer with a length. A receive accepts such a
//! pointer, and fails only when a message would have to be stored there. -FI_EMSGSIZE for more bytes than memory can
//! have, so that sums of lengths do not overflow. The engine checks smaller limits.

use std::ffi::c_void;

use smallvec::SmallVec;
use weft_engine::api::RmaIov;
use weft_engine::mem::Iov;
use weft_fi_sys as sys;

use crate::abi::errno::Errno;

/// The longest buffer in bytes, which is the size limit of any object in C (PTRDIFF_MAX).
const MAX_BYTES: usize = isize::MAX as usize;

/// The local pieces of one call. Up to four need no allocation.
pub(crate) type Pieces = SmallVec<[Iov; 4]>;
/// The remote pieces of one call.
pub(crate) type RemotePieces = SmallVec<[RmaIov; 4]>;

/// Translates one buffer.
///
/// # Safety
/// Until the operation completes, `buf` is valid for `len` bytes, as [`Iov::new`] demands.
#[inline]
pub(crate) unsafe fn piece(buf: *const c_void, len: usize) -> Result<Iov, Errno> {
    if buf.is_null() && len > 0 {
        return Err(Errno::INVAL);
    }
    if len > MAX_BYTES {
        return Err(Errno::MSGSIZE);
    }
    // SAFETY: the caller's promise. Sources are only read, whatever the pointer's type says.
    Ok(unsafe { Iov::new(buf.cast_mut().cast(), len) })
}

/// Translates the buffer of a receive, which may be a null pointer with any length.
///
/// # Safety
/// As for [`piece`], if `buf` is not null.
#[inline]
pub(crate) unsafe fn recv_piece(buf: *mut c_void, len: usize) -> Result<Iov, Errno> {
    if buf.is_null() && len > 0 {
        return Ok(Iov::missing());
    }
    // SAFETY: the caller's promise.
    unsafe { piece(buf, len) }
}

/// Translates a vector of buffers.
///
/// # Safety
/// `iov` has `count` entries, each of which is valid as for [`piece`].
#[inline]
pub(crate) unsafe fn iovs(iov: *const libc::iovec, count: usize, limit: usize) -> Result<Pieces, Errno> {
    // SAFETY: the caller's promise.
    let one = |entry: &libc::iovec| unsafe { piece(entry.iov_base, entry.iov_len) };
    // SAFETY: the caller's promise.
    unsafe { translated(iov, count, limit, one) }
}

/// Translates the vector of a receive. The result ends with the first null pointer that has a length: later pieces
/// could only be filled after it.
///
/// # Safety
/// `iov` has `count` entries, each of which is valid as for [`recv_piece`].
#[inline]
pub(crate) unsafe fn recv_iovs(iov: *const libc::iovec, count: usize, limit: usize) -> Result<Pieces, Errno> {
    // SAFETY: the caller's promise.
    let one = |entry: &libc::iovec| unsafe { recv_piece(entry.iov_base, entry.iov_len) };
    // SAFETY: the caller's promise.
    let mut pieces = unsafe { translated(iov, count, limit, one) }?;
    if let Some(at) = pieces.iter().position(Iov::is_missing) {
        pieces.truncate(at + 1);
    }
    Ok(pieces)
}

/// Translates a vector, whose entries `piece` translates.
///
/// # Safety
/// `iov` has `count` entries, for each of which `piece` may be called.
#[inline(always)]
unsafe fn translated(
    iov: *const libc::iovec,
    count: usize,
    limit: usize,
    piece: impl Fn(&libc::iovec) -> Result<Iov, Errno>,
) -> Result<Pieces, Errno> {
    if count == 0 {
        return Ok(Pieces::new());
    }
    if count > limit || iov.is_null() {
        return Err(Errno::INVAL);
    }
    let mut pieces = Pieces::new();
    let mut left = MAX_BYTES;
    // SAFETY: the caller's promise.
    for entry in unsafe { std::slice::from_raw_parts(iov, count) } {
        pieces.push(piece(entry)?);
        left = left.checked_sub(entry.iov_len).ok_or(Errno::MSGSIZE)?;
    }
    Ok(pieces)
}

/// Translates a vector of remote pieces.
///
/// # Safety
/// `iov` has `count` entries.
#[inline]
pub(crate) unsafe fn remote_iovs(
    iov: *const sys::fi_rma_iov,
    count: usize,
    limit: usize,
) -> Result<RemotePieces, Errno> {
    if count == 0 {
        return Ok(RemotePieces::new());
    }
    if count > limit || iov.is_null() {
        return Err(Errno::INVAL);
    }
    // SAFETY: the caller's promise.
    let entries = unsafe { std::slice::from_raw_parts(iov, count) };
    Ok(entries.iter().map(|entry| RmaIov { addr: entry.addr, len: entry.len as u64, key: entry.key }).collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vector(lens: &[usize]) -> Vec<libc::iovec> {
        lens.iter().map(|&iov_len| libc::iovec { iov_base: std::ptr::dangling_mut::<u8>().cast(), iov_len }).collect()
    }

    #[test]
    fn an_empty_buffer_may_have_any_address() {
        // SAFETY: the buffer has no bytes.
        assert_eq!(unsafe { piece(std::ptr::null(), 0) }.unwrap().len(), 0);
        // SAFETY: the call fails before it accesses memory.
        assert_eq!(unsafe { piece(std::ptr::null(), 1) }, Err(Errno::INVAL));
        // SAFETY: the memory is never accessed.
        assert_eq!(unsafe { recv_piece(std::ptr::null_mut(), 1) }.unwrap().len(), 0);
        // SAFETY: the call fails before it accesses memory.
        assert_eq!(unsafe { recv_iovs(std::ptr::null(), 1, 4) }, Err(Errno::INVAL));
        // SAFETY: the vector has no entries.
        assert!(unsafe { iovs(std::ptr::null(), 0, 4) }.unwrap().is_empty());
        // SAFETY: the call fails before it accesses memory.
        assert_eq!(unsafe { iovs(std::ptr::null(), 1, 4) }, Err(Errno::INVAL));
        // SAFETY: the call fails before it accesses memory.
        assert_eq!(unsafe { remote_iovs(std::ptr::null(), 1, 4) }.err(), Some(Errno::INVAL));
    }

    /// A message is received if it fits into the pieces before the null pointer. Pieces behind it stay untouched.
    #[test]
    fn the_vector_of_a_receive_ends_at_a_null_pointer() {
        let mut iov = vector(&[4, 8, 16]);
        iov[1].iov_base = std::ptr::null_mut();
        // SAFETY: the vector has three entries, whose memory is never accessed.
        let pieces = unsafe { recv_iovs(iov.as_ptr(), 3, 3) }.unwrap();
        assert!(matches!(pieces.as_slice(), [first, last] if first.len() == 4 && last.is_missing()), "{pieces:?}");
        iov[1].iov_len = 0;
        // SAFETY: the vector has three entries, whose memory is never accessed.
        assert_eq!(unsafe { recv_iovs(iov.as_ptr(), 3, 3) }.unwrap().len(), 3);
    }

    #[test]
    fn lengths_do_not_overflow() {
        let somewhere = std::ptr::dangling::<u8>().cast();
        for (len, fits) in [(MAX_BYTES, true), (MAX_BYTES + 1, false), (usize::MAX, false)] {
            // SAFETY: the memory is never accessed.
            assert_eq!(unsafe { piece(somewhere, len) }.map(|piece| piece.len()).ok(), fits.then_some(len));
        }
        for (lens, fits) in [([MAX_BYTES, 0], true), ([MAX_BYTES, 1], false), ([usize::MAX, 2], false)] {
            let iov = vector(&lens);
            // SAFETY: the vector has two entries, whose memory is never accessed.
            let result = unsafe { iovs(iov.as_ptr(), 2, 2) };
            assert_eq!(result.err(), (!fits).then_some(Errno::MSGSIZE), "{lens:?}");
        }
    }

    #[test]
    fn vectors_are_kept_in_order_and_limited() {
        let iov = vector(&[1, 0, 3, 4, 5]);
        // SAFETY: the vector has five entries, whose memory is never accessed.
        let pieces = unsafe { iovs(iov.as_ptr(), 5, 5) }.unwrap();
        assert_eq!(pieces.iter().map(Iov::len).collect::<Vec<_>>(), [1, 0, 3, 4, 5]);
        // SAFETY: the call fails before it accesses memory.
        assert_eq!(unsafe { iovs(iov.as_ptr(), 5, 4) }, Err(Errno::INVAL));
        let remote = [sys::fi_rma_iov { addr: 1, len: 2, key: 3 }];
        // SAFETY: the vector has one entry.
        let remote = unsafe { remote_iovs(remote.as_ptr(), 1, 1) }.unwrap();
        assert_eq!(remote.as_slice(), [RmaIov { addr: 1, len: 2, key: 3 }]);
    }
}
