//! The entries of a completion queue: their format, and how clients take them.
//!
//! Place in the data flow: `endpoint::route` pushes entries; `fi_cq_read` and `fi_cq_readerr` take them. An
//! [`Entry`] begins like libfabric's `fi_cq_tagged_entry`, and every smaller format is a prefix of that. A
//! read in any format is therefore a copy of a fixed number of bytes.
//!
//! Invariants: entries, failed ones included, leave in the order of their arrival. Each failed entry has
//! exactly one [`Failure`], in the same order. Entries are never dropped: the bound is kept by refusing new
//! operations ([`crate::cq::Cq::is_full`]).

use std::collections::VecDeque;
use std::mem::{offset_of, size_of};

use weft_fi_sys as sys;

/// A completion, one cache line long.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry {
    /// The operation's context, as a number.
    pub(crate) context: usize,
    /// Completion flags such as FI_SEND.
    pub(crate) flags: u64,
    /// Received length in bytes.
    pub(crate) len: usize,
    /// The address of a received message.
    pub(crate) buf: usize,
    /// Remote completion data.
    pub(crate) data: u64,
    /// The tag of a tagged message.
    pub(crate) tag: u64,
    /// The source; `FI_ADDR_NOTAVAIL` if unknown.
    pub(crate) src: u64,
    /// Whether this is an error entry.
    pub(crate) failed: bool,
}

// The layouts agree field by field, so a prefix of an `Entry` is an entry in any format.
const _: () = {
    assert!(size_of::<Entry>() == 64);
    assert!(offset_of!(Entry, context) == offset_of!(sys::fi_cq_tagged_entry, op_context));
    assert!(offset_of!(Entry, flags) == offset_of!(sys::fi_cq_tagged_entry, flags));
    assert!(offset_of!(Entry, len) == offset_of!(sys::fi_cq_tagged_entry, len));
    assert!(offset_of!(Entry, buf) == offset_of!(sys::fi_cq_tagged_entry, buf));
    assert!(offset_of!(Entry, data) == offset_of!(sys::fi_cq_tagged_entry, data));
    assert!(offset_of!(Entry, tag) == offset_of!(sys::fi_cq_tagged_entry, tag));
    assert!(offset_of!(Entry, src) == size_of::<sys::fi_cq_tagged_entry>());
    assert!(offset_of!(sys::fi_cq_data_entry, data) == offset_of!(Entry, data));
    assert!(size_of::<sys::fi_cq_entry>() == 8 && size_of::<sys::fi_cq_msg_entry>() == 24);
    assert!(size_of::<sys::fi_cq_data_entry>() == 40 && size_of::<sys::fi_cq_tagged_entry>() == 48);
    assert!(offset_of!(sys::fi_cq_msg_entry, len) == offset_of!(Entry, len));
};

/// The additional fields of an error entry.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Failure {
    /// Positive fabric errno.
    pub(crate) err: i32,
    /// The provider's error number, for `fi_cq_strerror`.
    pub(crate) prov_errno: i32,
    /// The number of bytes that did not fit.
    pub(crate) olen: usize,
    /// The contents of `err_data`: the address of a source that is in no address vector.
    pub(crate) data: Vec<u8>,
}

/// The layout in which a client reads, from the shortest to the longest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Format {
    /// `fi_cq_entry`, also for FI_CQ_FORMAT_UNSPEC.
    Context,
    /// `fi_cq_msg_entry`.
    Msg,
    /// `fi_cq_data_entry`.
    Data,
    /// `fi_cq_tagged_entry`.
    Tagged,
}

impl Format {
    /// Converts the attribute; `None` for a number that libfabric does not define.
    pub(crate) fn from_attr(format: sys::fi_cq_format) -> Option<Self> {
        match format {
            // Sandia OpenSHMEM specifies no format and reads `fi_cq_entry`.
            sys::FI_CQ_FORMAT_UNSPEC | sys::FI_CQ_FORMAT_CONTEXT => Some(Self::Context),
            sys::FI_CQ_FORMAT_MSG => Some(Self::Msg),
            sys::FI_CQ_FORMAT_DATA => Some(Self::Data),
            sys::FI_CQ_FORMAT_TAGGED => Some(Self::Tagged),
            _ => None,
        }
    }
}

/// The rest of the client's buffer in one read, which takes entries without the ring.
pub(crate) struct ReadBuffer {
    format: Format,
    room: usize,
    out: *mut u64,
    src: *mut sys::fi_addr_t,
}

impl ReadBuffer {
    /// # Safety
    /// While the buffer exists, `out` is writable for `count` entries of `format`, and `src` is null or writable for
    /// `count` addresses.
    #[inline(always)]
    pub(crate) unsafe fn new(format: Format, out: *mut u8, count: usize, src: *mut sys::fi_addr_t) -> Self {
        Self { format, room: count, out: out.cast(), src }
    }

    /// The number of entries for which there is room.
    #[inline(always)]
    pub(crate) fn room(&self) -> usize {
        self.room
    }

    /// Writes the entry of a successful operation, if there is room. Always inlined, like [`Ring::push`].
    #[inline(always)]
    pub(crate) fn put(&mut self, entry: Entry) {
        if self.room == 0 {
            return;
        }
        self.room -= 1;
        // Every format is a prefix of the next one.
        self.put_words([entry.context as u64]);
        if self.format > Format::Context {
            self.put_words([entry.flags, entry.len as u64]);
        }
        if self.format > Format::Msg {
            self.put_words([entry.buf as u64, entry.data]);
        }
        if self.format > Format::Data {
            self.put_words([entry.tag]);
        }
        if !self.src.is_null() {
            // SAFETY: there is room for this address, as for its entry.
            unsafe { self.src.write(entry.src) };
            self.src = self.src.wrapping_add(1);
        }
    }

    /// Writes words of an entry for which there is room.
    #[inline(always)]
    fn put_words<const WORDS: usize>(&mut self, words: [u64; WORDS]) {
        for word in words {
            // SAFETY: the entry has this word in the format of the buffer.
            unsafe { self.out.write_unaligned(word) };
            self.out = self.out.wrapping_add(1);
        }
    }
}

/// The reason why a read took nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakeError {
    /// The queue is empty.
    Empty,
    /// An error entry is next (-FI_EAVAIL).
    Failed,
}

/// The entries, and the length at which a sleeper is woken.
#[derive(Debug)]
pub(crate) struct Ring {
    /// The slots, a power of two of them. `len` slots from `first` on are in use.
    slots: Vec<Entry>,
    first: usize,
    len: usize,
    failures: VecDeque<Failure>,
    /// The failure that was taken last. The client may access its data until its next read.
    taken: Failure,
    /// The length at which a sleeper is woken; `usize::MAX` if none sleeps.
    pub(crate) wake_at: usize,
}

impl Ring {
    /// Creates a ring that holds `size` entries without further allocation.
    pub(crate) fn new(size: usize) -> Self {
        let slots = vec![Entry::default(); size.next_power_of_two()];
        Self { slots, first: 0, len: 0, failures: VecDeque::new(), taken: Failure::default(), wake_at: usize::MAX }
    }

    /// The number of entries.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    fn front(&self) -> Option<&Entry> {
        if self.len == 0 { None } else { self.slots.get(self.first) }
    }

    #[inline]
    fn drop_front(&mut self) {
        self.len -= 1;
        // An empty ring starts again at its first slots, which are in the cache.
        self.first = if self.len == 0 { 0 } else { (self.first + 1) & (self.slots.len() - 1) };
    }

    #[cold]
    fn grow(&mut self) {
        self.slots.rotate_left(self.first);
        self.first = 0;
        self.slots.resize(2 * self.slots.len(), Entry::default());
    }

    /// Whether the ring contains an error entry.
    pub(crate) fn has_failures(&self) -> bool {
        !self.failures.is_empty()
    }

    /// Appends an entry.
    ///
    /// The function is always inlined, so that each field is stored directly in its place. Otherwise the
    /// entry would be assembled on the stack and copied by wider loads. These loads have to wait until all
    /// earlier stores have left the processor, including those to a peer's ring.
    #[inline(always)]
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.len == self.slots.len() {
            self.grow();
        }
        let at = (self.first + self.len) & (self.slots.len() - 1);
        if let Some(slot) = self.slots.get_mut(at) {
            *slot = entry;
            self.len += 1;
        }
    }

    /// Appends an error entry.
    pub(crate) fn push_failed(&mut self, entry: Entry, failure: Failure) {
        self.push(Entry { failed: true, ..entry });
        self.failures.push_back(failure);
    }

    /// The reason why the next read takes nothing, if so.
    pub(crate) fn take_error(&self) -> Option<TakeError> {
        match self.front() {
            None => Some(TakeError::Empty),
            Some(entry) if entry.failed => Some(TakeError::Failed),
            Some(_) => None,
        }
    }

    /// Takes up to `count` successful entries in front of the first error entry, and writes them to `out`.
    ///
    /// # Safety
    /// `out` is writable for `count` entries of `format`, and `src` is null or writable for `count` addresses.
    #[inline(always)]
    pub(crate) unsafe fn take(
        &mut self,
        format: Format,
        out: *mut u8,
        count: usize,
        src: *mut sys::fi_addr_t,
    ) -> Result<usize, TakeError> {
        // One arm per format, so that each copy has a constant length.
        match format {
            Format::Context => {
                // SAFETY: the caller's promise, with this format's entry size.
                unsafe { self.take_sized::<{ size_of::<sys::fi_cq_entry>() }>(out, count, src) }
            }
            Format::Msg => {
                // SAFETY: as above.
                unsafe { self.take_sized::<{ size_of::<sys::fi_cq_msg_entry>() }>(out, count, src) }
            }
            Format::Data => {
                // SAFETY: as above.
                unsafe { self.take_sized::<{ size_of::<sys::fi_cq_data_entry>() }>(out, count, src) }
            }
            Format::Tagged => {
                // SAFETY: as above.
                unsafe { self.take_sized::<{ size_of::<sys::fi_cq_tagged_entry>() }>(out, count, src) }
            }
        }
    }

    /// Implements [`Ring::take`] for entries of `BYTES` bytes.
    ///
    /// # Safety
    /// As for `take`.
    #[inline(always)]
    unsafe fn take_sized<const BYTES: usize>(
        &mut self,
        out: *mut u8,
        count: usize,
        src: *mut sys::fi_addr_t,
    ) -> Result<usize, TakeError> {
        let mut taken = 0;
        while taken < count {
            let Some(entry) = self.front().filter(|entry| !entry.failed) else { break };
            let to = out.wrapping_add(taken * BYTES);
            let from = std::ptr::from_ref(entry).cast::<u8>();
            // The copy proceeds by words, as the entry was stored. A wider load would wait until both of its
            // words have left the store buffer. The volatile reads keep the compiler from merging words.
            for skip in (0..BYTES).step_by(8) {
                let word = from.wrapping_add(skip).cast::<u64>();
                // SAFETY: `entry` is 64 bytes long. All bytes up to and including `src` are initialised, and
                // BYTES does not exceed the offset of `src`.
                let word = unsafe { word.read_volatile() };
                let place = to.wrapping_add(skip).cast::<u64>();
                // SAFETY: `to` is entry `taken < count` of the caller's buffer, with BYTES bytes.
                unsafe { place.write_unaligned(word) };
            }
            if !src.is_null() {
                let addr = src.wrapping_add(taken);
                // SAFETY: `src` has room for `count` addresses.
                unsafe { addr.write(entry.src) };
            }
            self.drop_front();
            taken += 1;
        }
        if taken > 0 || count == 0 {
            return Ok(taken);
        }
        Err(self.take_error().unwrap_or(TakeError::Empty))
    }

    /// Takes the next entry, if it is an error entry.
    pub(crate) fn take_failed(&mut self) -> Option<(Entry, &Failure)> {
        let entry = *self.front().filter(|entry| entry.failed)?;
        self.drop_front();
        let failure = self.failures.pop_front();
        debug_assert!(failure.is_some(), "each error entry has its failure");
        self.taken = failure?;
        Some((entry, &self.taken))
    }
}

/// Fills the caller's error entry. Older API versions have only its first fields (fi_cq(3), "err_data_size").
///
/// # Safety
/// `out` is a writable, initialised error entry in the layout of API version `api`. If the caller provides no
/// buffer, the entry refers to the data of `failure`.
pub(crate) unsafe fn write_error(out: *mut sys::fi_cq_err_entry, api: u32, entry: &Entry, failure: &Failure) {
    // SAFETY: every version has at least the fields in front of `err_data_size`, and that field is read only
    // if the version has it.
    let has_buffer = api >= sys::version(1, 5) && unsafe { (*out).err_data_size } != 0;
    let data = failure.data.as_slice();
    let (err_data, err_data_size) = if has_buffer {
        // SAFETY: as above.
        let room = unsafe { (*out).err_data_size };
        // SAFETY: every version has `err_data`. The caller's buffer stays in place.
        let buffer = unsafe { (*out).err_data };
        let fits = if buffer.is_null() { 0 } else { data.len().min(room) };
        // SAFETY: the caller's buffer has `room >= fits` bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), buffer.cast(), fits) };
        (buffer, fits)
    } else if data.is_empty() {
        (std::ptr::null_mut(), 0)
    } else {
        (data.as_ptr().cast_mut().cast(), data.len())
    };
    let filled = sys::v2::fi_cq_err_entry_1_20 {
        base: sys::fi_cq_err_entry {
            op_context: entry.context as *mut _,
            flags: entry.flags,
            len: entry.len,
            buf: entry.buf as *mut _,
            data: entry.data,
            tag: entry.tag,
            olen: failure.olen,
            err: failure.err,
            prov_errno: failure.prov_errno,
            err_data,
            err_data_size,
        },
        src_addr: entry.src,
    };
    let bytes = error_entry_bytes(api);
    // SAFETY: `bytes` is the length of the caller's version of the structure, and at most that of `filled`.
    unsafe { std::ptr::copy_nonoverlapping(std::ptr::from_ref(&filled).cast::<u8>(), out.cast::<u8>(), bytes) };
}

/// The length of an error entry in an API version.
fn error_entry_bytes(api: u32) -> usize {
    if api < sys::version(1, 5) {
        offset_of!(sys::fi_cq_err_entry, err_data_size)
    } else if api < sys::version(1, 20) {
        size_of::<sys::fi_cq_err_entry>()
    } else {
        size_of::<sys::v2::fi_cq_err_entry_1_20>()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::multiple_unsafe_ops_per_block)]
    use super::*;

    fn entry(n: usize) -> Entry {
        Entry {
            context: n,
            flags: sys::FI_RECV | sys::FI_TAGGED,
            len: n + 1,
            buf: n + 2,
            data: n as u64 + 3,
            tag: n as u64 + 4,
            src: n as u64 + 5,
            failed: false,
        }
    }

    fn failure(err: i32) -> Failure {
        Failure { err, prov_errno: -err, olen: 9, data: Vec::new() }
    }

    /// Reads two entries in a format into a buffer filled with a mark, and returns the buffer's words and the
    /// sources.
    fn read_two(format: Format) -> (Vec<u64>, [u64; 2]) {
        let mut ring = Ring::new(4);
        ring.push(entry(10));
        ring.push(entry(20));
        let mut words = vec![0xeeee; 14];
        let mut src = [0; 2];
        // SAFETY: 14 words hold two entries of the largest format.
        let taken = unsafe { ring.take(format, words.as_mut_ptr().cast(), 2, src.as_mut_ptr()) };
        assert_eq!(taken, Ok(2));
        assert_eq!(ring.take_error(), Some(TakeError::Empty));
        (words, src)
    }

    /// As [`read_two`], without the ring, and with one entry more than there is room for.
    fn put_three(format: Format) -> (Vec<u64>, [u64; 2]) {
        let mut words = vec![0xeeee; 14];
        let mut src = [0; 2];
        // SAFETY: 14 words hold two entries of the largest format.
        let mut buffer = unsafe { ReadBuffer::new(format, words.as_mut_ptr().cast(), 2, src.as_mut_ptr()) };
        let rooms = [10, 20, 30].map(|n| {
            buffer.put(entry(n));
            buffer.room()
        });
        assert_eq!(rooms, [1, 0, 0]);
        (words, src)
    }

    #[test]
    fn every_format_is_written_packed_and_in_bounds() {
        let flags = sys::FI_RECV | sys::FI_TAGGED;
        let full = |n: u64| [n, flags, n + 1, n + 2, n + 3, n + 4];
        for (format, fields) in [(Format::Context, 1), (Format::Msg, 3), (Format::Data, 5), (Format::Tagged, 6)] {
            let (words, src) = read_two(format);
            assert_eq!(put_three(format), (words.clone(), src));
            let expected: Vec<u64> = full(10)[..fields].iter().chain(&full(20)[..fields]).copied().collect();
            assert_eq!(words[..2 * fields], expected);
            assert!(words[2 * fields..].iter().all(|&word| word == 0xeeee), "{format:?} wrote too much");
            assert_eq!(src, [15, 25]);
        }
    }

    #[test]
    fn the_unspecified_format_is_the_context_format() {
        assert_eq!(Format::from_attr(sys::FI_CQ_FORMAT_UNSPEC), Some(Format::Context));
        assert_eq!(Format::from_attr(99), None);
    }

    #[test]
    fn error_entries_keep_their_position() {
        let mut ring = Ring::new(4);
        ring.push(entry(1));
        ring.push_failed(entry(2), failure(265));
        ring.push(entry(3));
        let mut words = [0_u64; 4];
        let out = words.as_mut_ptr().cast();
        let none = std::ptr::null_mut();
        assert!(ring.take_failed().is_none(), "a success is next");
        // SAFETY: four words hold four context entries.
        assert_eq!(unsafe { ring.take(Format::Context, out, 4, none) }, Ok(1));
        // SAFETY: as above.
        assert_eq!(unsafe { ring.take(Format::Context, out, 4, none) }, Err(TakeError::Failed));
        let (failed, why) = ring.take_failed().unwrap();
        assert_eq!((failed.context, why), (2, &failure(265)));
        assert!(ring.take_failed().is_none());
        // SAFETY: as above.
        assert_eq!(unsafe { ring.take(Format::Context, out, 4, none) }, Ok(1));
        assert_eq!(words[0], 3);
        // SAFETY: as above.
        assert_eq!(unsafe { ring.take(Format::Context, out, 4, none) }, Err(TakeError::Empty));
    }

    #[test]
    fn a_read_of_no_entries_takes_none() {
        let mut ring = Ring::new(1);
        ring.push(entry(1));
        // SAFETY: no entry is written.
        let taken = unsafe { ring.take(Format::Data, std::ptr::null_mut(), 0, std::ptr::null_mut()) };
        assert_eq!((taken, ring.len()), (Ok(0), 1));
    }

    /// Reads an error entry in an API version's layout into a structure followed by marks. Returns it and the
    /// number of bytes written.
    fn error_under(api: u32, err_data: usize, err_data_size: usize) -> (sys::v2::fi_cq_err_entry_1_20, usize) {
        let bytes = size_of::<sys::v2::fi_cq_err_entry_1_20>();
        let mut image = [[0xee_u8; 128], [0x55_u8; 128]];
        for raw in &mut image {
            let out = raw.as_mut_ptr().cast::<sys::fi_cq_err_entry>();
            // SAFETY: the image is larger than the structure; unaligned writes are used.
            unsafe {
                std::ptr::addr_of_mut!((*out).err_data).write_unaligned(err_data as *mut _);
                if api >= sys::version(1, 5) {
                    std::ptr::addr_of_mut!((*out).err_data_size).write_unaligned(err_data_size);
                }
                let mut aligned = out.cast::<sys::v2::fi_cq_err_entry_1_20>().read_unaligned();
                write_error(std::ptr::addr_of_mut!(aligned).cast(), api, &entry(7), &failure(259));
                out.cast::<sys::v2::fi_cq_err_entry_1_20>().write_unaligned(aligned);
            }
        }
        let written = (0..bytes).rev().find(|&at| image[0][at] == image[1][at]).map_or(0, |at| at + 1);
        // SAFETY: as above.
        (unsafe { image[0].as_ptr().cast::<sys::v2::fi_cq_err_entry_1_20>().read_unaligned() }, written)
    }

    #[test]
    fn an_error_entry_has_the_length_of_the_callers_version() {
        for (major, minor, bytes) in [(1, 0, 72), (1, 4, 72), (1, 5, 80), (1, 18, 80), (1, 20, 88), (2, 5, 88)] {
            let (filled, written) = error_under(sys::version(major, minor), 0, 0);
            assert_eq!(written, bytes, "API {major}.{minor}");
            assert_eq!(filled.base.op_context as usize, 7);
            assert_eq!((filled.base.err, filled.base.prov_errno, filled.base.olen), (259, -259, 9));
            assert_eq!((filled.base.len, filled.base.tag, filled.base.data), (8, 11, 10));
        }
    }

    #[test]
    fn the_callers_error_buffer_stays_in_place() {
        let (filled, _) = error_under(sys::version(1, 5), 0x1000, 16);
        assert_eq!((filled.base.err_data as usize, filled.base.err_data_size), (0x1000, 0));
        let (filled, _) = error_under(sys::version(1, 5), 0x1000, 0);
        assert_eq!((filled.base.err_data as usize, filled.base.err_data_size), (0, 0));
        let (filled, _) = error_under(sys::version(1, 1), 0x1000, 0);
        assert_eq!(filled.base.err_data as usize, 0, "before 1.5 there is no buffer of the caller");
    }
}
