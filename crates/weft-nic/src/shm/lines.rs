//! The lines of a ring in shared memory. All accesses of the rings to memory that a peer can write are here.
//!
//! Place in the data flow: below [`super::ring`], which decides what is written where; above
//! [`super::segment`].
//!
//! Invariant: every address is formed from a line number that is masked into the ring, and lengths are
//! checked against the remaining lines. No word of a peer can therefore lead outside the ring. Header words
//! and positions are accessed atomically. Payload is only copied, or handed out to be read once.
//!
//! The lines have a file of their own so that a model checker can replace them below the rings' algorithm.

use std::ptr::NonNull;

use weft_engine::mem::Iov;

use super::segment::{self, LINE_BYTES, Mapping, Role};
use super::sync::{AtomicU64, Ordering};

/// Number of lines that a ring uses at the start: one page.
pub(super) const FIRST_LINES: u64 = 64;

// The longest ring has a number of such blocks that fits `Tx::present`.
const _: () = assert!(super::ring::MAX_LINES as u64 / FIRST_LINES <= u16::MAX as u64);

/// The lines of a ring, inside a segment that the owner of this value keeps mapped.
pub(super) struct Lines {
    /// The first line.
    first: NonNull<u8>,
    /// Number of lines, less one.
    mask: u64,
    /// The segment.
    base: NonNull<u8>,
}

// SAFETY: the pointers refer to memory of the process, which is written through atomics or by the ring's only
// producer.
unsafe impl Send for Lines {}

/// Size of a number of lines in bytes. A ring has at most `MAX_LINES` lines, so it fits.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)]
const fn bytes_of(lines: u64) -> usize {
    lines as usize * LINE_BYTES
}

/// Copies less than a line: a few word copies cost less than a call of memcpy. The last word may overlap the
/// one before.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes; they do not overlap.
#[inline(always)]
unsafe fn copy_short(from: *const u8, to: *mut u8, len: usize) {
    if len >= 8 {
        let last = len - 8;
        let mut done = 0;
        while done < last {
            // SAFETY: eight of the `len` bytes that the caller promised.
            unsafe { copy_chunk::<8>(from, to, done) };
            done += 8;
        }
        // SAFETY: the last eight of the `len` bytes that the caller promised.
        unsafe { copy_chunk::<8>(from, to, last) };
        return;
    }
    for done in 0..len {
        // SAFETY: one of the `len` bytes that the caller promised.
        unsafe { copy_chunk::<1>(from, to, done) };
    }
}

/// Copies `BYTES` bytes at offset `skip`.
///
/// # Safety
/// `from` is readable and `to` is writable for `skip + BYTES` bytes; they do not overlap.
#[inline(always)]
unsafe fn copy_chunk<const BYTES: usize>(from: *const u8, to: *mut u8, skip: usize) {
    // SAFETY: the caller's promise makes the bytes readable, and byte arrays need no alignment.
    let bytes = unsafe { from.wrapping_add(skip).cast::<[u8; BYTES]>().read() };
    // SAFETY: the caller's promise makes the bytes writable, and byte arrays need no alignment.
    unsafe { to.wrapping_add(skip).cast::<[u8; BYTES]>().write(bytes) };
}

/// Minimum length of a piece that is copied past the caches. In shorter pieces, the unaligned ends would be
/// too large a part.
#[cfg(target_arch = "x86_64")]
const STREAM_BYTES: usize = 8 * LINE_BYTES;

/// Copies past the caches. The bytes become visible to other processors before any later store.
///
/// # Safety
/// `from` is readable and `to` is writable for `len` bytes; they do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline(never)]
unsafe fn copy_streaming(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};
    const WORD: usize = size_of::<__m128i>();
    // Only whole lines are streamed, since a partial line would go to memory in pieces.
    let before = to.align_offset(LINE_BYTES).min(len);
    let whole = (len - before) / LINE_BYTES * LINE_BYTES;
    // SAFETY: the first part of the bytes that the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(from, to, before) };
    let mut done = before;
    while done < before + whole {
        let load = |word: usize| {
            // SAFETY: a word of a line within the `len` bytes that the caller promised; the load needs no
            // alignment.
            unsafe { _mm_loadu_si128(from.wrapping_add(done + word * WORD).cast()) }
        };
        let words = [load(0), load(1), load(2), load(3)];
        for (word, value) in words.into_iter().enumerate() {
            // SAFETY: a word of a line within the `len` bytes that the caller promised; `to` is aligned to a
            // line after `before` bytes.
            unsafe { _mm_stream_si128(to.wrapping_add(done + word * WORD).cast(), value) };
        }
        done += LINE_BYTES;
    }
    // SAFETY: the last part of the bytes that the caller promised.
    unsafe { std::ptr::copy_nonoverlapping(from.wrapping_add(done), to.wrapping_add(done), len - done) };
    // SAFETY: every x86-64 processor has the instruction. It orders the streaming stores before the store
    // that publishes the record.
    unsafe { _mm_sfence() };
}

/// The processor's clock, read when all earlier instructions have completed.
pub(super) fn cycles() -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::_mm_lfence;
        // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
        unsafe { _mm_lfence() };
        let now = weft_os::clock::ticks();
        // SAFETY: every x86-64 processor has the instruction, which accesses no memory.
        unsafe { _mm_lfence() };
        now
    }
    #[cfg(not(target_arch = "x86_64"))]
    0
}

impl Lines {
    /// The ring that `writer` writes, in a segment with rings of `count` lines.
    ///
    /// # Safety
    /// `map` outlives the result.
    pub(super) unsafe fn new(map: &Mapping, writer: Role, count: u32) -> Self {
        let offset = Mapping::ring_offset(writer, count);
        assert!(count.is_power_of_two() && offset + bytes_of(u64::from(count)) <= map.len());
        // SAFETY: the offset lies inside the mapping, as checked above.
        let first = unsafe { map.base().add(offset) };
        Self { first, mask: u64::from(count) - 1, base: map.base() }
    }

    /// Number of lines, a power of two.
    #[inline(always)]
    pub(super) fn count(&self) -> u64 {
        self.mask + 1
    }

    /// The index in the ring of the line with the running number `at`.
    #[inline(always)]
    pub(super) fn index(&self, at: u64) -> u64 {
        at & self.mask
    }

    /// Obtains the pages of the lines with the indices `from..to`.
    pub(super) fn populate(&self, from: u64, to: u64) -> std::io::Result<()> {
        assert!(from <= to && to <= self.count());
        let offset = self.first.as_ptr() as usize - self.base.as_ptr() as usize + bytes_of(from);
        // SAFETY: the lines belong to the ring, which is mapped by the contract of `new`.
        unsafe { segment::populate(self.base, offset, bytes_of(to - from)) }
    }

    /// Gives the pages of the lines with the indices `from..to` back to the system. They are zero afterwards.
    pub(super) fn release(&self, from: u64, to: u64) {
        assert!(from <= to && to <= self.count());
        let offset = self.first.as_ptr() as usize - self.base.as_ptr() as usize + bytes_of(from);
        // SAFETY: the lines belong to the ring, which is mapped by the contract of `new`.
        unsafe { segment::release(self.base, offset, bytes_of(to - from)) }
    }

    /// The word at byte `skip` of a line.
    #[inline(always)]
    pub(super) fn word(&self, at: u64, skip: usize) -> &AtomicU64 {
        debug_assert!(skip < LINE_BYTES && skip.is_multiple_of(8));
        let word = self.byte(at, skip).cast::<AtomicU64>();
        // SAFETY: the index is masked into the ring, which lies in the mapping as `new` has checked. The word
        // is aligned, because mapping, offset and `skip` are multiples of 8. Shared words are accessed only
        // atomically.
        unsafe { &*word }
    }

    /// The position up to which `role` has consumed its incoming ring.
    #[inline(always)]
    pub(super) fn consumed(&self, role: Role) -> &AtomicU64 {
        // SAFETY: by the contract of `new`, the segment is mapped as long as `self` is used.
        &unsafe { segment::side(self.base, role) }.consumed.0
    }

    /// [`Lines::consumed`], and the duration of reading it in cycles of the processor's clock. The duration
    /// is 0 on processors without such a clock.
    pub(super) fn consumed_timed(&self, role: Role) -> (u64, u64) {
        let before = cycles();
        let consumed = self.consumed(role).load(Ordering::Acquire);
        (consumed, cycles().saturating_sub(before))
    }

    /// Copies `bytes` to byte `skip` of the record that begins at line `at`.
    #[inline(always)]
    pub(super) fn write(&self, at: u64, skip: usize, bytes: &[u8]) {
        debug_assert!(self.holds(at, skip + bytes.len()));
        let to = self.byte(at, skip);
        // SAFETY: the ring claims consecutive lines for the whole record before it writes. Ring memory and
        // `bytes` are different allocations. A peer that reads or writes these lines meanwhile only corrupts
        // its own link.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }

    /// Copies client memory to byte `skip` of the record that begins at line `at`, past the caches if
    /// `streaming`.
    #[inline(always)]
    pub(super) fn write_iov(&self, at: u64, skip: usize, piece: &Iov, streaming: bool) {
        debug_assert!(self.holds(at, skip + piece.len()));
        let to = self.byte(at, skip);
        #[cfg(target_arch = "x86_64")]
        if streaming && piece.len() >= STREAM_BYTES {
            // SAFETY: the lines are claimed as in `write`. The source is readable by the contract of
            // `Iov::new`, and does not overlap, since no client has the ring's memory.
            unsafe { copy_streaming(piece.as_ptr(), to, piece.len()) };
            return;
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = streaming;
        // SAFETY: the lines are claimed as in `write`, and the source is readable by the contract of
        // `Iov::new`.
        unsafe { piece.read_to_ptr(to, piece.len()) };
    }

    /// Copies a message that ends within its first line behind the header word: `head`, then the bytes of
    /// `piece`.
    #[inline(always)]
    pub(super) fn write_line(&self, at: u64, head: &[u8], piece: &Iov) {
        assert!(head.len() + piece.len() <= LINE_BYTES - 8);
        let to = self.byte(at, 8);
        // SAFETY: the target is within one line, which the ring has claimed. The source is a live slice of
        // that length.
        unsafe { copy_short(head.as_ptr(), to, head.len()) };
        let to = to.wrapping_add(head.len());
        // SAFETY: the target is within one line, which the ring has claimed. The source is readable by the
        // contract of `Iov::new`.
        unsafe { copy_short(piece.as_ptr(), to, piece.len()) };
    }

    /// `len` bytes from byte `skip` of the record that begins at line `at`.
    #[inline(always)]
    pub(super) fn read(&self, at: u64, skip: usize, len: usize) -> &[u8] {
        assert!(self.holds(at, skip + len));
        let from = self.byte(at, skip);
        // SAFETY: the bytes lie in the ring, as checked above, and stay mapped while `self` is borrowed. A
        // hostile peer can change them meanwhile. The user of the slice reads every byte once (contract of
        // `Sink::message`) or only copies it, so a change cannot invalidate an earlier check.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// Like [`Lines::read`], for a message that ends within its line, as [`Lines::write_line`] wrote it.
    #[inline(always)]
    pub(super) fn read_line(&self, at: u64, len: usize) -> &[u8] {
        assert!(len <= LINE_BYTES - 8);
        let from = self.byte(at, 8);
        // SAFETY: the bytes lie within a line of the ring, and stay mapped while `self` is borrowed. As in
        // `read`, the user of the slice reads every byte once.
        unsafe { std::slice::from_raw_parts(from, len) }
    }

    /// Prefetches a line for reading.
    #[inline(always)]
    pub(super) fn prefetch(&self, at: u64) {
        let line: *const u8 = self.byte(at, 0);
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint and never faults.
        unsafe {
            std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(line.cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch is a hint and never faults.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{line}]", line = in(reg) line, options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }

    /// Prefetches a line for writing.
    #[inline(always)]
    pub(super) fn prefetch_write(&self, at: u64) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch is a hint and never faults; processors without the instruction ignore it.
        unsafe {
            std::arch::asm!("prefetchw [{line}]", line = in(reg) self.byte(at, 0), options(nostack, preserves_flags, readonly));
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch is a hint and never faults.
        unsafe {
            std::arch::asm!("prfm pstl1keep, [{line}]", line = in(reg) self.byte(at, 0), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = at;
    }

    /// Whether `len` bytes from line `at` lie in the ring without wrapping around.
    #[inline(always)]
    fn holds(&self, at: u64, len: usize) -> bool {
        bytes_of(self.index(at)) + len <= bytes_of(self.count())
    }

    #[inline(always)]
    fn byte(&self, at: u64, skip: usize) -> *mut u8 {
        self.first.as_ptr().wrapping_add(bytes_of(self.index(at)) + skip)
    }
}
