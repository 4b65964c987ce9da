//! Memory of the cases: buffers cut into pieces, with guard bytes around each.

use std::ptr::null_mut;

use weft_fi_sys::fi_rma_iov;

/// The value of bytes that no case may write. The data never contain it.
const GUARD: u8 = 0xfe;
/// The number of guard bytes that are checked before and behind a buffer.
const MARGIN: usize = 64;
/// The period of the data, which is coprime to all powers of two.
const PERIOD: usize = 251;

/// The division of a buffer into pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    Whole,
    Two,
    /// The largest number of pieces that a vector may have.
    Most,
    /// Two pieces, with empty pieces before, between and behind them. The last empty piece has a null
    /// address.
    Empty,
}

impl Cut {
    pub(super) const ALL: [Self; 4] = [Self::Whole, Self::Two, Self::Most, Self::Empty];

    fn lengths(self, len: usize, limit: usize) -> Vec<usize> {
        match self {
            Self::Whole => vec![len],
            Self::Two => vec![len / 3, len - len / 3],
            Self::Most => {
                // Pieces of growing length. The last piece takes the remaining bytes.
                let shares = limit * (limit + 1) / 2;
                let mut lengths: Vec<usize> = (1..limit).map(|at| len * at / shares).collect();
                lengths.push(len - lengths.iter().sum::<usize>());
                lengths
            }
            Self::Empty => vec![0, len / 2, 0, len - len / 2, 0],
        }
    }
}

/// A buffer in an [`Arena`].
#[derive(Clone, Debug)]
pub(super) struct Buffer {
    arena: Arena,
    /// The offset and the length of each piece.
    spans: Vec<(usize, usize)>,
}

/// Memory that has the guard value outside the buffers of cases.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arena {
    start: *mut u8,
    len: usize,
}

impl Arena {
    fn new(len: usize) -> Self {
        let memory = vec![GUARD; len].leak();
        Self { start: memory.as_mut_ptr(), len }
    }

    pub(super) fn bytes(self) -> &'static mut [u8] {
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }

    /// Makes a buffer of `len` bytes. Its offset is `align` above a multiple of 8 (and of 64).
    pub(super) fn buffer(self, len: usize, align: usize, cut: Cut, limit: usize) -> Buffer {
        let mut at = MARGIN + (self.start as usize).wrapping_neg() % 64 + align;
        let mut spans = Vec::new();
        for (piece, len) in cut.lengths(len, limit).into_iter().enumerate() {
            spans.push((at, len));
            // Each piece has another alignment.
            at += len + 1 + 3 * piece;
        }
        assert!(at + MARGIN <= self.len);
        Buffer { arena: self, spans }
    }

    /// Asserts that all bytes have the guard value.
    pub(super) fn assert_clean(self, what: &str) {
        assert!(
            crate::side::is_all(self.bytes(), GUARD),
            "{what}: a byte outside the buffers of the cases was written"
        );
    }
}

impl Buffer {
    pub(super) fn len(&self) -> usize {
        self.spans.iter().map(|(_, len)| len).sum()
    }

    /// The first byte.
    pub(super) fn start(&self) -> *mut u8 {
        self.arena.start.wrapping_add(self.spans[0].0)
    }

    /// The first byte's offset in the arena.
    pub(super) fn offset(&self) -> usize {
        self.spans[0].0
    }

    pub(super) fn iov(&self) -> Vec<libc::iovec> {
        let last = self.spans.len() - 1;
        let piece = |(at, &(offset, len)): (usize, &(usize, usize))| {
            let nowhere = len == 0 && at == last && at > 0;
            let start = if nowhere { null_mut() } else { self.arena.start.wrapping_add(offset) };
            libc::iovec { iov_base: start.cast(), iov_len: len }
        };
        self.spans.iter().enumerate().map(piece).collect()
    }

    pub(super) fn remote(&self, key: u64) -> Vec<fi_rma_iov> {
        self.spans.iter().map(|&(offset, len)| fi_rma_iov { addr: offset as u64, len, key }).collect()
    }

    pub(super) fn put(&self, bytes: &[u8]) {
        let mut rest = bytes;
        for &(offset, len) in &self.spans {
            let (first, behind) = rest.split_at(len.min(rest.len()));
            self.arena.bytes()[offset..offset + first.len()].copy_from_slice(first);
            rest = behind;
        }
        assert!(rest.is_empty(), "more bytes than the buffer has");
    }

    /// Returns whether the buffer starts with these bytes, and the rest has the guard value.
    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        let mut rest = bytes;
        self.spans.iter().all(|&(offset, len)| {
            let (first, behind) = rest.split_at(len.min(rest.len()));
            rest = behind;
            let there = &self.arena.bytes()[offset..offset + len];
            there[..first.len()] == *first && there[first.len()..].iter().all(|&byte| byte == GUARD)
        })
    }

    /// Describes the first difference between the buffer and these bytes.
    pub(super) fn difference(&self, bytes: &[u8]) -> String {
        let there = self.spans.iter().flat_map(|&(offset, len)| &self.arena.bytes()[offset..offset + len]);
        let padded = bytes.iter().chain(std::iter::repeat(&GUARD));
        let found = there.zip(padded).enumerate().find(|(_, (there, byte))| there != byte);
        match found {
            Some((at, (there, byte))) => format!("byte {at} of {} is {there:#x} instead of {byte:#x}", self.len()),
            None => "no difference".to_owned(),
        }
    }

    /// Asserts that the guard bytes before, between and behind the pieces are intact, and clears the buffer.
    pub(super) fn clear(&self, what: &str) {
        let (first, last) = (self.spans[0], self.spans[self.spans.len() - 1]);
        let (start, end) = (first.0 - MARGIN, last.0 + last.1 + MARGIN);
        for &(offset, len) in &self.spans {
            self.arena.bytes()[offset..offset + len].fill(GUARD);
        }
        let window = &self.arena.bytes()[start..end];
        let broken = window.iter().position(|&byte| byte != GUARD);
        assert!(broken.is_none(), "{what}: written at {} of the buffer", broken.unwrap() as isize - MARGIN as isize);
    }
}

/// The arenas of one side.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arenas {
    /// The sources of operations.
    pub(super) source: Arena,
    /// The targets of receives and reads.
    pub(super) target: Arena,
    /// The memory that peers may access.
    pub(super) region: Arena,
    /// The compare operands of atomic operations.
    pub(super) compare: Arena,
}

/// The memory of a group, which is never freed.
pub(super) struct Memory {
    pub(super) sides: [Arenas; 2],
    data: &'static [u8],
}

impl Memory {
    /// Memory for transfers of at most `longest` bytes.
    pub(super) fn new(longest: usize) -> Self {
        let arena = || Arena::new(longest + 4096);
        let arenas = || Arenas { source: arena(), target: arena(), region: arena(), compare: arena() };
        let data: Vec<u8> = (1..=PERIOD as u8).cycle().take(longest + PERIOD).collect();
        Self { sides: [arenas(), arenas()], data: data.leak() }
    }

    /// `len` bytes that differ from case to case.
    pub(super) fn data(&self, len: usize, number: usize) -> &'static [u8] {
        &self.data[number % PERIOD..][..len]
    }
}
