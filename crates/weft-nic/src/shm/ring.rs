//! One direction of a link: a ring of 64-byte lines in shared memory, with one producer and one consumer.
//!
//! Place in the data flow: `Shm::send` → [`Tx`] → cache lines → [`Rx`] → `Sink::message`.
//!
//! A record consists of one or more consecutive lines and begins with a header word:
//! ```text
//!  63    56 55        32 31              0
//!  | kind  | length     | stamp           |    then the bytes, contiguous (offset 8; for a push offset 64)
//! ```
//! The stamp is the running number of the record's first line, so a header is valid exactly once, and the
//! consumer polls the line itself. A message of up to 56 bytes costs one cache-line transfer. One of up to
//! 248 bytes costs four adjacent transfers, which the processor's prefetcher combines. A separate ring for
//! payload would cost a dependent second miss. Records do not wrap around: a WRAP record directs the consumer
//! to the first line. The last line in use only ever contains a WRAP.
//!
//! Stale bytes are never mistaken for a header. The consumer reads only the line after the lines that it has
//! consumed. Before the producer publishes a record, it reads the header word of the line behind the record.
//! It clears that word if payload of an earlier lap happens to equal the stamp expected there. That line is
//! always free, because a record is accepted only if one line more than it needs is free.
//!
//! The ring begins small (`FIRST_LINES`) and grows up to the agreed size, when the consumer lags or long records are
//! sent at the end of a lap. After a quiet time it begins again, and its other pages are released ([`Tx::trim`]). A
//! quiet pair thus occupies few pages and few cache sets, and a busy one gets its depth.
//!
//! Trust: the peer may write anything at any time. Every word is read once, atomically, and checked.
//! Positions are always masked into the ring, and a violation ends the link. The memory safety of one side
//! does not depend on the words of the other.

use weft_engine::mem::{self, Iov};
use weft_engine::nic::{Full, LinkError};

use super::lines::{FIRST_LINES, Lines};
use super::segment::{LINE_BYTES, Role};
use super::sync::Ordering;

/// Maximum length of a message on one line, in bytes.
pub(super) const INLINE_BYTES: usize = LINE_BYTES - HEADER_BYTES;
/// Maximum length of a message in bytes: a round payload and the engine's header.
pub(crate) const MAILBOX_BYTES: usize = 32 * 1024 + 256;
/// Maximum length of a piece of a push, in bytes. Two pieces fit a first-level cache.
pub(super) const PIECE_BYTES: usize = 16 * 1024;
/// Minimum number of lines of a ring: three of the longest records.
pub(super) const MIN_LINES: u32 = 2048;
/// Maximum number of lines of a ring (64 MiB).
pub(super) const MAX_LINES: u32 = 1 << 20;
/// Maximum number of lines that the consumer prefetches.
const EXPECT_LINES: u64 = 5;
/// Maximum number of lines of a record that are prefetched when its first one has arrived.
const EARLY_LINES: u64 = 33;
/// Distance ahead of a record at which both sides prefetch a line, the producer for writing. A line takes as
/// long from one core to the other as a message takes through libfabric.
///
/// Message rates with 8 bytes and a window, in millions per second: 8.6 without prefetching, 10.1 if only the
/// producer prefetches, 11.4 if both do. Half round trips do not change.
const AHEAD_LINES: u64 = 3;
/// Minimum number of lines from which a record is written past the producer's caches, if the consumer's core is far.
/// Lines that the consumer has read stay in its cache. They are fetched from there one by one when they are written
/// again, and fetched back when they are read. Lines written to memory are fetched from there by the prefetcher. If
/// the cores share a cache, records of all lengths go through it.
///
/// Half round trips in µs, through the caches and past them. A line takes 0.03 µs from a near core, and 0.25 µs from a
/// far one:
///
/// | record | near | near, past | far | far, past |
/// |---|---|---|---|---|
/// | 2 KiB | 0.17 | – | 1.5 | 0.9 |
/// | 4 KiB | 0.29 | – | 2.9 | 1.1 |
/// | 8 KiB | 0.35 | 0.93 | 5.0 | 1.4 |
/// | 16 KiB | 0.54 | 1.40 | 9.3 | 2.2 |
/// | 31 KiB | 0.90 | 2.15 | 18 | 3.9 |
const STREAM_LINES_FAR: u64 = 24;
/// Maximum number of lines of a record behind which the producer prefetches as many lines for writing, since the next
/// record is probably as long. Message rates with 1 KiB, in millions per second: 2.7 without this, 5.8 with it.
///
/// The processor fetches the lines of longer records ahead by itself. Prefetching them again takes lines from the
/// consumer, which is reading the record. Streams of 4 KiB, in GB/s: 19 with it, 27 without; half round trips 0.36 and
/// 0.29 µs.
const SUCCESSOR_LINES: u64 = 33;
/// Records with more lines are long.
const LONG_LINES: u64 = 3;
const HEADER_BYTES: usize = 8;
/// Maximum number of consumed lines before the consumer publishes its position.
const RELEASE_LINES: u64 = 128;

/// Mask of a header's length, which begins at bit 32.
const LENGTH_MASK: u64 = 0x00ff_ffff;
const KIND_MESSAGE: u64 = 1;
const KIND_PUSH: u64 = 2;
const KIND_WRAP: u64 = 3;

const _: () = assert!(3 * lines_for(HEADER_BYTES + MAILBOX_BYTES) < MIN_LINES as u64);
const _: () = assert!(lines_for(LINE_BYTES + PIECE_BYTES) <= lines_for(HEADER_BYTES + MAILBOX_BYTES));
const _: () = assert!(FIRST_LINES <= MIN_LINES as u64);

const fn lines_for(bytes: usize) -> u64 {
    bytes.div_ceil(LINE_BYTES) as u64
}

/// The exponent of a number of lines, a power of two.
#[allow(clippy::cast_possible_truncation)]
const fn exponent(lines: u64) -> u8 {
    debug_assert!(lines.is_power_of_two());
    lines.trailing_zeros() as u8
}

/// A number of blocks of `FIRST_LINES` lines. A ring has at most `MAX_LINES`.
fn blocks(count: u64) -> u16 {
    u16::try_from(count).unwrap_or(u16::MAX)
}

fn header(kind: u64, len: usize, at: u64) -> u64 {
    kind << 56 | (len as u64) << 32 | stamp(at)
}

fn stamp(at: u64) -> u64 {
    at & 0xffff_ffff
}

/// Whether the first word of a line is the header of a record that begins at `at`.
#[inline(always)]
fn is_header(word: u64, at: u64) -> bool {
    stamp(word) == stamp(at) && word >> 56 != 0
}

/// A record that the consumer takes from a ring.
#[derive(Debug)]
pub(super) enum Record<'a> {
    /// A message.
    Message(&'a [u8]),
    /// A piece of a push.
    Push { window: u64, offset: u64, data: &'a [u8] },
}

/// The record at the consumer's position.
pub(super) enum Next<'a> {
    /// A message on one line.
    Line(&'a [u8]),
    /// A record that [`Rx::peek`] takes.
    Other,
    /// No record has arrived.
    Nothing,
}

/// The producer's end.
pub(super) struct Tx {
    lines: Lines,
    role: Role,
    /// Running number of the next line to write.
    head: u64,
    /// Number of lines in use, from the first on, as the exponent of a power of two. Their pages are present.
    in_use: u8,
    /// Number of lines, from the first on, beyond which no page is present, in units of `FIRST_LINES`.
    present: u16,
    /// The consumer's position as last read.
    consumed: u64,
    /// A record may be written at `head` if it ends before this line. One more line is free then, and the lap
    /// continues.
    limit: u64,
    /// The distance of the consumer's core.
    pub(super) distance: Distance,
    /// The reason why the link is broken. It sends nothing any longer.
    broken: Option<Break>,
}

/// The reason why a ring is of no more use.
#[derive(Clone, Copy, Debug)]
enum Break {
    /// There is no memory for more lines.
    Memory,
    /// The consumer's position is impossible.
    Position,
}

/// The distance of the consumer's core, estimated by the cycles of reading a line that the core has written.
/// The host moves guests between cores and the kernel moves processes, so the estimate is updated regularly.
#[derive(Debug, Default)]
pub(super) struct Distance {
    /// Above 0: most of the latest measurements were "far".
    balance: i8,
    asked: u8,
}

impl Distance {
    /// Every `EVERY`th read is measured, to limit the cost of the clock's fences.
    const EVERY: u8 = 4;
    /// Limits in cycles, including the reading of the clock. A line in the own cache takes 50 to 80 cycles.
    /// From a core that shares a cache it takes 130, and from other cores 390 and more.
    const CACHED: u64 = 100;
    const FAR: u64 = 240;
    const MOST: i8 = 4;

    #[inline]
    fn is_asked(&mut self) -> bool {
        self.asked = self.asked.wrapping_add(1);
        self.asked.is_multiple_of(Self::EVERY)
    }

    pub(super) fn note(&mut self, cycles: u64) {
        if cycles >= Self::CACHED {
            self.balance = (self.balance + if cycles >= Self::FAR { 1 } else { -1 }).clamp(-Self::MOST, Self::MOST);
        }
    }

    /// The minimum number of lines from which a record is written past the caches.
    #[inline]
    pub(super) fn stream_lines(&self) -> u64 {
        if self.is_far() { STREAM_LINES_FAR } else { u64::MAX }
    }

    /// Whether the consumer's core shares no cache with this one.
    #[inline]
    pub(super) fn is_far(&self) -> bool {
        self.balance > 0
    }
}

impl Tx {
    /// The end that `role` writes. Fails if memory has run out.
    pub(super) fn new(lines: Lines, role: Role) -> std::io::Result<Self> {
        let distance = Distance::default();
        lines.populate(0, FIRST_LINES)?;
        let (in_use, present) = (exponent(FIRST_LINES), 1);
        Ok(Self { lines, role, head: 0, in_use, present, consumed: 0, limit: 0, distance, broken: None })
    }

    /// The reason why the link must end: the peer's words were invalid, or memory has run out.
    pub(super) fn broken(&self) -> Option<LinkError> {
        self.broken.map(|why| match why {
            Break::Memory => LinkError::Resources,
            Break::Position => LinkError::Protocol,
        })
    }

    /// Publishes a message. The caller then checks whether the peer wants its doorbell rung.
    #[inline(always)]
    pub(super) fn send(&mut self, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let piece = match body {
            [] => Iov::EMPTY,
            [one] => *one,
            _ => return self.send_long(head, body),
        };
        let len = head.len() + piece.len();
        if len > INLINE_BYTES {
            return if head.len() < INLINE_BYTES { self.send_piece(head, &piece) } else { self.send_long(head, body) };
        }
        let at = self.claim(1)?;
        self.lines.write_line(at, head, &piece);
        self.publish(at, 1, header(KIND_MESSAGE, len, at));
        Ok(())
    }

    /// [`Tx::send`] for one piece that begins in the first line: one copy into the lines behind it, then the first
    /// line.
    #[inline(never)]
    fn send_piece(&mut self, head: &[u8], piece: &Iov) -> Result<(), Full> {
        let len = head.len() + piece.len();
        assert!(len <= MAILBOX_BYTES, "a message of {len} bytes exceeds the mailbox");
        let need = lines_for(HEADER_BYTES + len);
        let at = self.claim(need)?;
        let first = (INLINE_BYTES - head.len()).min(piece.len());
        let streaming = need >= self.distance.stream_lines();
        // The consumer polls the first line, which is written last, as in `send_long`.
        self.lines.write_iov(at, LINE_BYTES, &piece.slice(first, piece.len() - first), streaming);
        self.lines.write_line(at, head, &piece.slice(0, first));
        self.publish(at, need, header(KIND_MESSAGE, len, at));
        Ok(())
    }

    /// [`Tx::send`] for messages of several pieces, or with a head that fills the first line.
    #[inline(never)]
    fn send_long(&mut self, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let len = head.len() + mem::total_len(body);
        assert!(len <= MAILBOX_BYTES, "a message of {len} bytes exceeds the mailbox");
        let need = lines_for(HEADER_BYTES + len);
        let at = self.claim(need)?;
        let streaming = need >= self.distance.stream_lines();
        // The consumer polls the first line. It is written last and as a whole, so that the consumer does not
        // fetch it back in between.
        if need > 1 {
            self.fill_part(at, head, body, LINE_BYTES, usize::MAX, streaming);
        }
        self.fill_part(at, head, body, 0, LINE_BYTES, false);
        self.publish(at, need, header(KIND_MESSAGE, len, at));
        Ok(())
    }

    /// Publishes a piece of a push: the first `len` bytes of `src`.
    pub(super) fn push(&mut self, window: u64, offset: u64, src: &[Iov], len: usize) -> Result<(), Full> {
        assert!(len <= PIECE_BYTES && mem::total_len(src) >= len);
        // Half of the ring is reserved for messages, so that a long push does not block them.
        if self.used() > self.lines.count() / 2 {
            return Err(Full);
        }
        let need = lines_for(LINE_BYTES + len);
        let at = self.claim(need)?;
        let streaming = need >= self.distance.stream_lines();
        self.lines.word(at, 8).store(window, Ordering::Relaxed);
        self.lines.word(at, 16).store(offset, Ordering::Relaxed);
        let mut skip = LINE_BYTES;
        for piece in &mem::slice(src, 0, len) {
            self.lines.write_iov(at, skip, piece, streaming);
            skip += piece.len();
        }
        self.publish(at, need, header(KIND_PUSH, len, at));
        Ok(())
    }

    /// Running number of the next line to write.
    pub(super) fn position(&self) -> u64 {
        self.head
    }

    /// Whether a record with `bytes` bytes would be accepted now.
    pub(super) fn has_space(&mut self, bytes: usize) -> bool {
        self.claim(lines_for(LINE_BYTES + bytes)).is_ok()
    }

    /// Whether a piece of a push would be accepted now.
    pub(super) fn has_push_space(&mut self) -> bool {
        self.used() <= self.lines.count() / 2 && self.has_space(PIECE_BYTES)
    }

    /// Number of lines that the consumer has not freed. Reads the consumer's position if the number is not
    /// small.
    fn used(&mut self) -> u64 {
        if self.head - self.consumed > self.lines.count() / 8 {
            self.refresh();
        }
        self.head - self.consumed
    }

    /// Finds `need` consecutive free lines, and one more free line behind them. The consumer sees no change.
    /// Returns the line to write to; if it is not `head`, the caller writes a WRAP to `head`.
    #[inline(always)]
    fn claim(&mut self, need: u64) -> Result<u64, Full> {
        if self.head + need < self.limit { Ok(self.head) } else { self.claim_slowly(need) }
    }

    #[cold]
    fn claim_slowly(&mut self, need: u64) -> Result<u64, Full> {
        self.refresh();
        loop {
            if self.broken.is_some() {
                return Err(Full);
            }
            let index = self.lines.index(self.head);
            let in_use = self.in_use();
            let lap_end = self.head - index + in_use;
            self.limit = lap_end.min(self.consumed + self.lines.count());
            let first = if index + need < in_use {
                self.head
            } else {
                // The lap ends here. More of the ring is used, if there is more, in three cases:
                // - The consumer lags by more than half of the lines in use.
                // - Long records are sent. Lines that the consumer has just read are the most expensive to write, and a
                //   consumer that stops would leave room for few of them. Half round trips of 2 KiB take 0.91 µs in the
                //   whole ring, and 1.21 µs in 4 KiB of it.
                // - The record does not fit before this line.
                // Behind a trimmed ring's lines only the last case counts, and a new lap is begun first.
                let is_trimmed = index >= in_use;
                let lags = need > LONG_LINES || 2 * (self.head - self.consumed) > in_use;
                let fits_before = need < index.min(in_use);
                if (!fits_before || (lags && !is_trimmed)) && in_use < self.lines.count() {
                    self.grow(if is_trimmed { 0 } else { index } + need + 1);
                    continue;
                }
                (self.head | (self.lines.count() - 1)) + 1
            };
            let fits = first + need + 1 - self.consumed <= self.lines.count();
            return if fits { Ok(first) } else { Err(Full) };
        }
    }

    /// Number of lines in use.
    fn in_use(&self) -> u64 {
        1 << self.in_use
    }

    /// Returns to the first lines, and releases the pages of the others. Nothing is done unless the consumer has taken
    /// all records. The page of the next line stays, because the end of the lap is written there.
    pub(super) fn trim(&mut self) {
        let index = self.lines.index(self.head);
        let present = u64::from(self.present) * FIRST_LINES;
        let is_back = index < FIRST_LINES && self.present > 1;
        if self.in_use() == FIRST_LINES && !is_back {
            return;
        }
        self.refresh();
        if self.broken.is_some() || self.consumed != self.head {
            return;
        }
        let kept = index / FIRST_LINES;
        for (from, to) in [(FIRST_LINES, kept * FIRST_LINES), ((kept + 1) * FIRST_LINES, present)] {
            if from < to {
                self.lines.release(from, to);
            }
        }
        self.in_use = exponent(FIRST_LINES);
        self.present = blocks(kept + 1);
        self.limit = 0;
    }

    /// Uses more of the ring: twice the current lines, or at least `at_least` lines.
    fn grow(&mut self, at_least: u64) {
        let wanted = (2 * self.in_use()).max((at_least + 1).next_power_of_two()).min(self.lines.count());
        if self.lines.populate(self.in_use(), wanted).is_err() {
            self.broken = Some(Break::Memory);
            return;
        }
        self.in_use = exponent(wanted);
        self.present = self.present.max(blocks(wanted / FIRST_LINES));
    }

    /// Reads the consumer's position once, and checks it.
    fn refresh(&mut self) {
        let consumed = if self.distance.is_asked() {
            let (consumed, cycles) = self.lines.consumed_timed(self.role.other());
            self.distance.note(cycles);
            consumed
        } else {
            self.lines.consumed(self.role.other()).load(Ordering::Acquire)
        };
        if consumed > self.head || consumed < self.consumed {
            self.broken = Some(Break::Position);
        } else {
            self.consumed = consumed;
        }
    }

    /// Publishes the record in the `need` lines from `at`.
    #[inline(always)]
    fn publish(&mut self, at: u64, need: u64, word: u64) {
        let next = at + need;
        let behind = self.lines.word(next, 0);
        if stamp(behind.load(Ordering::Relaxed)) == stamp(next) {
            behind.store(0, Ordering::Relaxed);
        }
        self.lines.word(at, 0).store(word, Ordering::Release);
        self.lines.prefetch_write(next + AHEAD_LINES);
        if need <= SUCCESSOR_LINES && need < self.distance.stream_lines() {
            for line in 1..need {
                self.lines.prefetch_write(next + AHEAD_LINES + line);
            }
        }
        if at != self.head {
            self.lines.word(self.head, 0).store(header(KIND_WRAP, 0, self.head), Ordering::Release);
        }
        self.head = next;
    }

    /// Writes the bytes of a message that lie in the bytes `from..to` of the record.
    #[inline(always)]
    fn fill_part(&self, at: u64, head: &[u8], body: &[Iov], from: usize, to: usize, streaming: bool) {
        let mut skip = HEADER_BYTES;
        let part = |skip: usize, len: usize| {
            let start = from.saturating_sub(skip).min(len);
            (start, to.saturating_sub(skip).min(len).max(start))
        };
        let (start, end) = part(skip, head.len());
        self.lines.write(at, skip + start, &head[start..end]);
        skip += head.len();
        for piece in body {
            let (start, end) = part(skip, piece.len());
            self.lines.write_iov(at, skip + start, &piece.slice(start, end - start), streaming);
            skip += piece.len();
        }
    }
}

/// The consumer's end.
pub(super) struct Rx {
    lines: Lines,
    role: Role,
    /// Running number of the next line to read.
    tail: u64,
    /// The position that was last published to the producer.
    published: u64,
    /// Whether space was released since the last `take_released`.
    released: bool,
    /// Number of lines of the last record if they are few, since the next record is probably as long. While
    /// nothing has arrived, these lines are prefetched along with the first, so that a message of two to five
    /// lines costs no second miss. Measured: 180 instead of 290 ns half round trip for two lines. Beyond five
    /// lines the processor's own prefetching is faster.
    expect: u8,
}

impl Rx {
    /// The end that `role` reads. Fails if memory has run out.
    pub(super) fn new(lines: Lines, role: Role) -> std::io::Result<Self> {
        lines.populate(0, FIRST_LINES.min(lines.count()))?;
        Ok(Self { lines, role, tail: 0, published: 0, released: false, expect: 0 })
    }

    /// Running number of the next line to read.
    #[cfg(test)]
    pub(super) fn position(&self) -> u64 {
        self.tail
    }

    /// Whether a record has arrived.
    #[inline(always)]
    pub(super) fn ready(&self) -> bool {
        let word = self.lines.word(self.tail, 0).load(Ordering::Relaxed);
        for line in 1..u64::from(self.expect) {
            self.lines.prefetch(self.tail + line);
        }
        is_header(word, self.tail)
    }

    /// The next record. After a message on one line, as most are, the caller calls [`Rx::advance`] with 1.
    #[inline(always)]
    pub(super) fn peek_line(&self) -> Next<'_> {
        let word = self.lines.word(self.tail, 0).load(Ordering::Acquire);
        if !is_header(word, self.tail) {
            return Next::Nothing;
        }
        let len = (word >> 32 & LENGTH_MASK) as usize;
        if word >> 56 != KIND_MESSAGE || len > INLINE_BYTES {
            return Next::Other;
        }
        self.lines.prefetch(self.tail + AHEAD_LINES);
        Next::Line(self.lines.read_line(self.tail, len))
    }

    /// The next record, if there is one, and its number of lines, which the caller passes to [`Rx::advance`].
    #[inline(never)]
    pub(super) fn peek(&mut self) -> Result<Option<(Record<'_>, u64)>, LinkError> {
        let mut word = self.lines.word(self.tail, 0).load(Ordering::Acquire);
        if !is_header(word, self.tail) {
            return Ok(None);
        }
        if word >> 56 == KIND_WRAP {
            if self.lines.index(self.tail) == 0 {
                return Err(LinkError::Protocol);
            }
            self.tail = (self.tail | (self.lines.count() - 1)) + 1;
            word = self.lines.word(self.tail, 0).load(Ordering::Acquire);
            if !is_header(word, self.tail) {
                return Ok(None);
            }
        }
        let len = (word >> 32 & LENGTH_MASK) as usize;
        let (skip, longest) = match word >> 56 {
            KIND_MESSAGE => (HEADER_BYTES, MAILBOX_BYTES),
            KIND_PUSH => (LINE_BYTES, PIECE_BYTES),
            _ => return Err(LinkError::Protocol),
        };
        let need = lines_for(skip + len);
        self.lines.prefetch(self.tail + need + AHEAD_LINES - 1);
        // Their misses overlap with the search for the receive. The lines that `expect` has prefetched cost nothing.
        for line in u64::from(self.expect).max(1)..need.min(EARLY_LINES) {
            self.lines.prefetch(self.tail + line);
        }
        if len > longest || self.lines.index(self.tail) + need >= self.lines.count() {
            return Err(LinkError::Protocol);
        }
        let bytes = self.lines.read(self.tail, skip, len);
        if word >> 56 == KIND_MESSAGE {
            return Ok(Some((Record::Message(bytes), need)));
        }
        let window = self.lines.word(self.tail, 8).load(Ordering::Relaxed);
        let offset = self.lines.word(self.tail, 16).load(Ordering::Relaxed);
        Ok(Some((Record::Push { window, offset, data: bytes }, need)))
    }

    /// Consumes the record that [`Rx::peek`] returned.
    #[inline(always)]
    pub(super) fn advance(&mut self, need: u64) {
        self.tail += need;
        #[allow(clippy::cast_possible_truncation)] // Compared in the next line.
        let few = if need <= EXPECT_LINES { need as u8 } else { 0 };
        self.expect = few;
        if self.tail - self.published >= RELEASE_LINES {
            self.release();
        }
    }

    /// Publishes the freed lines to the producer.
    #[inline(always)]
    pub(super) fn release(&mut self) {
        if self.tail != self.published {
            self.lines.consumed(self.role).store(self.tail, Ordering::Release);
            self.published = self.tail;
            self.released = true;
        }
    }

    /// Whether space was released since the last call.
    #[inline(always)]
    pub(super) fn take_released(&mut self) -> bool {
        std::mem::take(&mut self.released)
    }
}
