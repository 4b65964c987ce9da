//! Client memory: the one module of the engine that may use `unsafe` (with its two parts: `atomic`, and
//! `x87`, which computes).
//!
//! Place in the data flow: weft-fi turns the pointers of a libfabric call into [`Iov`]s once,
//! at the C boundary; the engine and the devices copy through them and never look inside.
//!
//! Invariant: an `Iov` describes memory that the client leaves to us until the operation that
//! brought it has completed (fi_msg(3): "the buffer … must not be touched until completion").
//! That is the safety contract of [`Iov::new`]; every other function here is safe because of it.
//! The client may still race with us on its own bytes (that is its own error), so bytes are
//! moved with `ptr::copy`, never viewed as `&[u8]` for longer than one copy.

pub(crate) mod atomic;
pub(crate) mod x87;

use smallvec::SmallVec;

/// One contiguous piece of client memory: an address and a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iov {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: an `Iov` is an address; what may be done through it is governed by the contract of
// `Iov::new`, which does not depend on the thread.
unsafe impl Send for Iov {}

/// Has the address by which [`Iov::missing`] is known.
static NO_MEMORY: u8 = 0;

/// The pieces of one operation's buffer, in order. Two are kept inline: nearly every operation has one.
pub type IovList = SmallVec<[Iov; 2]>;

impl Iov {
    /// Describes `len` bytes at `ptr`.
    ///
    /// # Safety
    /// Until the operation that carries this `Iov` completes, the bytes must be valid for reads (a
    /// source) or for reads and writes (a destination). `ptr` may be anything when `len` is 0.
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// Stands for a part of a receive buffer that is no memory: a null pointer that comes with a length. It
    /// has no room, and a message that would need some fails by it
    /// ([`Fault::NoMemory`](crate::api::Fault::NoMemory)).
    #[must_use]
    pub fn missing() -> Self {
        Self { ptr: (&raw const NO_MEMORY).cast_mut(), len: 0 }
    }

    /// Whether it is [`Iov::missing`].
    #[must_use]
    pub fn is_missing(&self) -> bool {
        self.ptr.cast_const() == &raw const NO_MEMORY
    }

    /// Length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address, for a device that hands it to the kernel and for `fi_cq_data_entry.buf`.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The address as a number, as it goes on the wire for a device that can `get`.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.ptr as usize as u64
    }

    /// The part that begins at `offset` and has `len` bytes, both cut to what is there.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self { ptr: self.ptr.wrapping_add(offset), len: len.min(self.len - offset) }
    }

    /// Copies from `src` into this memory; returns how many bytes fitted.
    #[inline]
    pub fn write(&self, src: &[u8]) -> usize {
        let n = src.len().min(self.len);
        if n == 8 {
            // The commonest short message; a call of memmove costs more than the copy.
            let word: *const [u8; 8] = src.as_ptr().cast();
            // SAFETY: `src` has eight bytes; alignment is that of bytes.
            let word = unsafe { word.read() };
            // SAFETY: by the contract of `new` the destination is writable for `len >= 8` bytes.
            unsafe { self.ptr.cast::<[u8; 8]>().write(word) };
        } else if n > 0 {
            // SAFETY: by the contract of `new` the destination is writable for `len >= n` bytes;
            // `src` is a live slice. `ptr::copy` allows overlap (a peer in the same process).
            unsafe { std::ptr::copy(src.as_ptr(), self.ptr, n) };
        }
        n
    }

    /// Copies this memory to the front of `dst`; returns how many bytes were copied.
    #[inline]
    pub fn read(&self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len);
        if n > 0 {
            // SAFETY: by the contract of `new` the source is readable for `len >= n` bytes;
            // `dst` is a live exclusive slice.
            unsafe { std::ptr::copy(self.ptr, dst.as_mut_ptr(), n) };
        }
        n
    }

    /// Copies `n` bytes of this memory to `dst`, for devices that copy into shared memory.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `n` bytes, and `n <= self.len()`.
    #[inline]
    pub unsafe fn read_to_ptr(&self, dst: *mut u8, n: usize) {
        debug_assert!(n <= self.len);
        if n > 0 {
            // SAFETY: the source by the contract of `new`, the destination by this function's.
            unsafe { std::ptr::copy(self.ptr, dst, n) };
        }
    }
}

/// Sum of the lengths, in bytes.
#[inline]
pub fn total_len(iov: &[Iov]) -> usize {
    iov.iter().map(Iov::len).sum()
}

/// The pieces that cover `len` bytes from `offset` of the bytes that `iov` describes, cut to what is there.
#[must_use]
pub fn slice(iov: &[Iov], mut offset: usize, mut len: usize) -> IovList {
    let mut out = IovList::new();
    for piece in iov {
        if len == 0 {
            break;
        }
        if offset >= piece.len {
            offset -= piece.len;
            continue;
        }
        let part = piece.slice(offset, len);
        offset = 0;
        len -= part.len;
        if !part.is_empty() {
            out.push(part);
        }
    }
    out
}

/// Scatters `src` into `iov` from byte `offset`; returns how many bytes fitted.
pub fn scatter(iov: &[Iov], offset: usize, src: &[u8]) -> usize {
    if let ([one], 0) = (iov, offset) {
        return one.write(src);
    }
    let mut done = 0;
    let mut skip = offset;
    for piece in iov {
        if done == src.len() {
            break;
        }
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let part = piece.slice(skip, usize::MAX);
        skip = 0;
        done += part.write(src.get(done..).unwrap_or_default());
    }
    done
}

/// Gathers up to `dst.len()` bytes from `iov` into `dst`; returns how many were there.
pub fn gather(iov: &[Iov], dst: &mut [u8]) -> usize {
    let mut done = 0;
    for piece in iov {
        if done == dst.len() {
            break;
        }
        done += piece.read(dst.get_mut(done..).unwrap_or_default());
    }
    done
}

/// The bytes of `iov`, copied: a private buffer for an inject that could not leave at once.
#[must_use]
pub fn to_vec(iov: &[Iov]) -> Vec<u8> {
    let mut bytes = vec![0; total_len(iov)];
    let n = gather(iov, &mut bytes);
    debug_assert_eq!(n, bytes.len());
    bytes
}

/// An owned buffer that can be handed to a device as an `Iov`: the bytes never move while it lives. (A `Vec` and not
/// a `Box`, which would claim to be the only way to its bytes whenever it is moved.)
#[derive(Debug)]
pub struct Owned(Vec<u8>);

impl Owned {
    /// Takes the bytes over.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// The bytes, when no device uses them any more.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The bytes as an `Iov`; the caller keeps `self` alive for as long as a device may use it.
    #[must_use]
    pub fn iov(&mut self) -> Iov {
        Iov { ptr: self.0.as_mut_ptr(), len: self.0.len() }
    }
}
