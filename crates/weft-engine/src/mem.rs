//! Client memory. This module and its parts `atomic` and `x87` are the only code of the engine that may use
//! `unsafe`.
//!
//! Place in the data flow: weft-fi turns the pointers of a libfabric call into [`Iov`]s once, at the C
//! boundary. The engine and the devices copy through [`Iov`]s and never inspect the bytes.
//!
//! Invariant: an `Iov` describes memory that the client leaves to weft until the operation has completed
//! (fi_msg(3): "the buffer … must not be touched until completion"). This is the safety contract of
//! [`Iov::new`], on which all other functions of the module rely. A client that breaks it may still race with
//! weft on its own bytes. Bytes are therefore moved with `ptr::copy`, and never viewed as `&[u8]` for longer
//! than one copy.

pub(crate) mod atomic;
pub(crate) mod x87;

use std::sync::atomic::AtomicU64;

use smallvec::SmallVec;

/// One contiguous piece of client memory: an address and a length in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Iov {
    ptr: *mut u8,
    len: usize,
}

// SAFETY: an `Iov` is an address. The contract of `Iov::new` governs accesses through it, and does not depend
// on the thread.
unsafe impl Send for Iov {}

/// The address of this byte identifies [`Iov::missing`].
static NO_MEMORY: u8 = 0;

/// The pieces of one operation's buffer, in order. Two are stored inline, since nearly every operation has
/// one.
pub type IovList = SmallVec<[Iov; 2]>;

impl Iov {
    /// Describes `len` bytes at `ptr`.
    ///
    /// # Safety
    /// Until the operation that carries this `Iov` completes, the bytes must be valid for reads (a source) or
    /// for reads and writes (a destination). `ptr` may have any value when `len` is 0.
    #[inline]
    pub const unsafe fn new(ptr: *mut u8, len: usize) -> Self {
        Self { ptr, len }
    }

    /// No bytes.
    pub const EMPTY: Self = Self { ptr: std::ptr::null_mut(), len: 0 };

    /// A piece of a receive buffer for which the client passed a null pointer with a length. It has no room.
    /// A message that needs some of that room fails with [`Fault::NoMemory`](crate::api::Fault::NoMemory).
    #[must_use]
    pub fn missing() -> Self {
        Self { ptr: (&raw const NO_MEMORY).cast_mut(), len: 0 }
    }

    /// Whether this is [`Iov::missing`].
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

    /// The address, for system calls of a device and for `fi_cq_data_entry.buf`.
    #[inline]
    pub const fn as_ptr(&self) -> *mut u8 {
        self.ptr
    }

    /// The address as a number, in the form that is sent to a peer whose device can `get`.
    #[inline]
    pub fn addr(&self) -> u64 {
        self.ptr as usize as u64
    }

    /// The `len` bytes from `offset`, cut to the bytes that exist.
    #[inline]
    #[must_use]
    pub fn slice(&self, offset: usize, len: usize) -> Self {
        let offset = offset.min(self.len);
        Self { ptr: self.ptr.wrapping_add(offset), len: len.min(self.len - offset) }
    }

    /// Copies `src` into this memory. Returns the number of bytes that fitted.
    #[inline]
    pub fn write(&self, src: &[u8]) -> usize {
        let n = src.len().min(self.len);
        if n == 8 {
            // The most frequent short message; a call of memmove costs more than the copy.
            let word: *const [u8; 8] = src.as_ptr().cast();
            // SAFETY: `src` has eight bytes, and `[u8; 8]` needs no alignment.
            let word = unsafe { word.read() };
            // SAFETY: by the contract of `new` the destination is writable for `len >= 8` bytes.
            unsafe { self.ptr.cast::<[u8; 8]>().write(word) };
        } else if n > 0 {
            // SAFETY: by the contract of `new` the destination is writable for `len >= n` bytes, and `src` is
            // a live slice. `ptr::copy` allows overlap (a peer in the same process).
            unsafe { std::ptr::copy(src.as_ptr(), self.ptr, n) };
        }
        n
    }

    /// Copies this memory to the front of `dst`. Returns the number of copied bytes.
    #[inline]
    pub fn read(&self, dst: &mut [u8]) -> usize {
        let n = dst.len().min(self.len);
        if n == 8 {
            // As in `write`.
            // SAFETY: by the contract of `new` there are 8 readable bytes, and `[u8; 8]` needs no alignment.
            let word = unsafe { self.ptr.cast::<[u8; 8]>().read() };
            dst[..8].copy_from_slice(&word);
        } else if n > 0 {
            // SAFETY: by the contract of `new` the source is readable for `len >= n` bytes, and `dst` is a
            // live exclusive slice.
            unsafe { std::ptr::copy(self.ptr, dst.as_mut_ptr(), n) };
        }
        n
    }

    /// Copies memory to this memory, as far as it fits. Both may overlap. A number of 4 or 8 bytes is stored once. An
    /// atomic of another process may change it meanwhile, and memmove(3) may store it twice.
    #[inline]
    pub fn copy_from(&self, from: &Self) {
        let n = self.len.min(from.len);
        if n == 8 {
            // SAFETY: by the contract of `new` there are 8 readable bytes, and an array of bytes needs no alignment.
            let word = unsafe { from.ptr.cast::<[u8; 8]>().read() };
            // SAFETY: by the contract of `new` there are 8 writable bytes.
            unsafe { self.ptr.cast::<[u8; 8]>().write(word) };
        } else if n == 4 {
            // SAFETY: as above, for 4 bytes.
            let word = unsafe { from.ptr.cast::<[u8; 4]>().read() };
            // SAFETY: as above.
            unsafe { self.ptr.cast::<[u8; 4]>().write(word) };
        } else if n > 0 {
            // SAFETY: by the contract of `new` both have at least `n` bytes, which are readable and writable.
            unsafe { std::ptr::copy(from.ptr, self.ptr, n) };
        }
    }

    /// Copies `n` bytes of this memory to `dst`, for devices that copy into shared memory.
    ///
    /// # Safety
    /// `dst` must be valid for writes of `n` bytes, and `n <= self.len()`.
    #[inline]
    pub unsafe fn read_to_ptr(&self, dst: *mut u8, n: usize) {
        debug_assert!(n <= self.len);
        if n > 0 {
            // SAFETY: the contract of `new` makes the source readable, the contract of this function makes
            // `dst` writable.
            unsafe { std::ptr::copy(self.ptr, dst, n) };
        }
    }
}

/// Sum of the lengths, in bytes.
#[inline]
pub fn total_len(iov: &[Iov]) -> usize {
    iov.iter().map(Iov::len).sum()
}

/// The pieces that cover `len` bytes from byte `offset` of `iov`, cut to the bytes that exist.
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

/// Scatters `src` into `iov` from byte `offset`. Returns the number of bytes that fitted.
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

/// Gathers up to `dst.len()` bytes from `iov` into `dst`. Returns the number of gathered bytes.
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

/// Copies `from` to `to`, which is as long. A piece may overlap its copy.
pub(crate) fn copy(to: &[Iov], from: &[Iov]) {
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let (mut target, mut source) = (Iov::EMPTY, Iov::EMPTY);
    loop {
        while target.is_empty() {
            let Some(next) = to.next() else { return };
            target = next;
        }
        while source.is_empty() {
            let Some(next) = from.next() else { return };
            source = next;
        }
        let len = target.len.min(source.len);
        target.slice(0, len).copy_from(&source);
        (target, source) = (target.slice(len, usize::MAX), source.slice(len, usize::MAX));
    }
}

/// Copies the bytes of `iov`, for example for an inject that must be queued.
#[must_use]
pub fn to_vec(iov: &[Iov]) -> Vec<u8> {
    let mut bytes = vec![0; total_len(iov)];
    let n = gather(iov, &mut bytes);
    debug_assert_eq!(n, bytes.len());
    bytes
}

/// The memory of atomic words that processes share, for copies that other accesses are ordered against. The
/// caller keeps the words alive while it uses the `Iov`. As for [`Iov::new`], a peer that breaks the order
/// races on these bytes alone.
pub(crate) fn of_words(words: &[AtomicU64]) -> Iov {
    Iov { ptr: words.as_ptr().cast_mut().cast(), len: size_of_val(words) }
}

/// An owned buffer that can be handed to a device as an `Iov`. Its bytes have a fixed address until it is
/// dropped. It holds a `Vec`, since moving a `Box` would assert exclusive access to the bytes.
#[derive(Debug)]
pub struct Owned(Vec<u8>);

impl Owned {
    /// Takes ownership of the bytes.
    #[must_use]
    pub fn new(bytes: Vec<u8>) -> Self {
        Self(bytes)
    }

    /// Returns the bytes. No device uses them any longer.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// The bytes as an `Iov`. The caller keeps `self` alive while a device may use it.
    #[must_use]
    pub fn iov(&mut self) -> Iov {
        Iov { ptr: self.0.as_mut_ptr(), len: self.0.len() }
    }
}
