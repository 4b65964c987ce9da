//! The pushes of a link: cut into segments, written from the client's memory, and done when the peer has acknowledged
//! them.
//!
//! Place in the data flow: a part of [`super::tx`] that exists only while there are pushes. No payload is copied: until
//! the peer's endpoint acknowledges a push, its owner must not change the memory, so that it can be written again. A
//! [`Mark`] for each written segment records its place in the stream.
//!
//! Invariants: `segment`, if set, belongs to `list[current]`, and the last mark is its mark. The marks are those of the
//! unacknowledged segments, in order, and begin in `list[0]` at its `acked`. A segment requests an acknowledgement in
//! three cases, so that the marks, at most [`MARKS`], never stay full:
//!
//! - It ends the last push.
//! - It completes [`ASK_BYTES`] since the last request, together with the end of a push.
//! - It is the [`ASK_EVERY`]th since the last request.

use std::collections::VecDeque;

use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkError};

use super::bugs::planted;
use super::wire::{self, PUSH_HEAD_BYTES};

/// Limit of unfinished pushes of one link.
const BULKS: usize = 1024;
/// Limit of unacknowledged segments of one link.
const MARKS: usize = 256;
/// The number of segments after which an acknowledgement is requested.
const ASK_EVERY: u32 = 16;
/// The number of bytes for which the request of a push may be delayed, if other pushes follow. An acknowledgement costs
/// a system call, and a packet against the stream's direction.
const ASK_BYTES: usize = 1024 * 1024;

/// Segments that were written after the last request for an acknowledgement.
#[derive(Clone, Copy, Debug, Default)]
struct Unasked {
    segments: u32,
    /// Bytes of payload.
    bytes: usize,
    /// One of them ends a push.
    ended: bool,
}

/// An unfinished push.
#[derive(Debug)]
struct Bulk {
    iov: IovList,
    window: u64,
    /// The offset of the first byte in the window.
    offset: u64,
    total: usize,
    /// Bytes in segments that have been acknowledged.
    acked: usize,
    ctx: u64,
}

/// A segment that is being written, or is about to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) head: [u8; PUSH_HEAD_BYTES],
    /// The index of its push, for a segment that is about to begin.
    bulk: usize,
    /// The offset of its payload in the push.
    at: usize,
    /// Payload bytes.
    len: usize,
    /// Bytes of header and payload that have been written.
    sent: usize,
    ack_requested: bool,
}

/// A segment that is being written or was, and is not acknowledged.
#[derive(Debug)]
struct Mark {
    /// Bytes of messages before the segment in the stream.
    after: u64,
    /// Bytes of payload.
    len: usize,
    ack_requested: bool,
}

impl Mark {
    fn bytes(&self) -> u64 {
        (PUSH_HEAD_BYTES + self.len) as u64
    }
}

/// The unfinished pushes of a link.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    list: VecDeque<Bulk>,
    /// The index of the push that is being cut into segments. Those before it have been written.
    current: usize,
    /// Bytes of the current push in segments that have been written.
    at: usize,
    pub(super) segment: Option<Segment>,
    marks: VecDeque<Mark>,
    unasked: Unasked,
}

impl Pushes {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Adds a push.
    pub(super) fn add(&mut self, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        if self.list.len() >= BULKS {
            return Err(Full);
        }
        let total = mem::total_len(src);
        self.list.push_back(Bulk { iov: src.into(), window, offset, total, acked: 0, ctx });
        Ok(())
    }

    /// Whether every byte has been handed to the kernel.
    pub(super) fn written(&self) -> bool {
        self.segment.is_none() && self.current == self.list.len()
    }

    /// Whether there is anything to write now.
    pub(super) fn has_more(&self) -> bool {
        self.segment.is_some() || (self.current < self.list.len() && self.marks.len() < MARKS)
    }

    /// The next segment, after the current one if there is one.
    pub(super) fn next_segment(&self, segment_bytes: usize) -> Option<Segment> {
        if self.marks.len() >= MARKS {
            return None;
        }
        let at = self.segment.map_or(self.at, |segment| segment.at + segment.len);
        let over = at == self.list.get(self.current)?.total;
        let (bulk, at) = if over { (self.current + 1, 0) } else { (self.current, at) };
        let push = self.list.get(bulk)?;
        let len = (push.total - at).min(segment_bytes);
        let ends = at + len == push.total;
        let ack_requested = ends && bulk + 1 == self.list.len()
            || (ends || self.unasked.ended) && self.unasked.bytes + len >= ASK_BYTES
            || self.unasked.segments + 1 >= ASK_EVERY;
        let head = wire::push_head(len, push.window, push.offset.wrapping_add(at as u64), ack_requested);
        Some(Segment { head, bulk, at, len, sent: 0, ack_requested })
    }

    /// The whole payload of a segment.
    pub(super) fn payload(&self, segment: &Segment) -> IovList {
        self.list.get(segment.bulk).map(|push| mem::slice(&push.iov, segment.at, segment.len)).unwrap_or_default()
    }

    /// The unwritten rest of the current segment: header and payload.
    pub(super) fn rest(&self) -> Option<(&[u8], IovList)> {
        let (segment, push) = (self.segment.as_ref()?, self.list.get(self.current)?);
        let sent = segment.sent.saturating_sub(PUSH_HEAD_BYTES);
        let payload = mem::slice(&push.iov, segment.at + sent, segment.len - sent);
        Some((segment.head.get(segment.sent..).unwrap_or_default(), payload))
    }

    /// Begins a segment, after `after` bytes of messages.
    pub(super) fn begin(&mut self, segment: Segment, after: u64) {
        debug_assert!(self.segment.is_none() && segment.bulk == self.current);
        self.marks.push_back(Mark { after, len: segment.len, ack_requested: segment.ack_requested });
        let ends = self.list.get(segment.bulk).is_some_and(|push| segment.at + segment.len == push.total);
        let Unasked { segments, bytes, ended } = self.unasked;
        self.unasked = if segment.ack_requested {
            Unasked::default()
        } else {
            Unasked { segments: segments + 1, bytes: bytes + segment.len, ended: ended || ends }
        };
        self.segment = Some(segment);
    }

    /// Notes that `n` more bytes of the current segment have been written.
    pub(super) fn advance(&mut self, n: usize) {
        let Some(segment) = self.segment.as_mut() else { return };
        segment.sent += n;
        if segment.left() > 0 {
            return;
        }
        self.at = segment.at + segment.len;
        self.segment = None;
        if self.list.get(self.current).is_some_and(|push| push.total == self.at) {
            self.current += 1;
            self.at = 0;
        }
    }

    /// Releases the segments before `position`, which the peer has acknowledged. `position` does not count segments
    /// that were released earlier. Returns the number of bytes in the released segments.
    pub(super) fn acknowledged(&mut self, position: u64, mut done: impl FnMut(u64)) -> u64 {
        let mut bytes = 0;
        while self.marks.len() > usize::from(self.segment.is_some())
            && let Some(mark) = self.marks.front()
            && position - bytes >= mark.after + mark.bytes()
        {
            bytes += mark.bytes();
            if let Some(push) = self.list.front_mut() {
                push.acked += mark.len;
                if push.acked == push.total {
                    done(push.ctx);
                    self.list.pop_front();
                    self.current -= 1;
                }
            }
            self.marks.pop_front();
        }
        bytes
    }

    /// The bytes of messages before `position`, which does not count released segments.
    pub(super) fn messages_before(&self, position: u64) -> Result<u64, LinkError> {
        let Some(mark) = self.marks.front().filter(|mark| position > mark.after) else { return Ok(position) };
        let written = match &self.segment {
            Some(segment) if self.marks.len() == 1 => segment.sent as u64,
            _ => mark.bytes(),
        };
        if position - mark.after > written { Err(LinkError::Protocol) } else { Ok(mark.after) }
    }

    /// Continues the stream at `position`, which does not count released segments.
    pub(super) fn rewind(&mut self, position: u64) {
        (self.segment, self.current, self.unasked) = (None, 0, Unasked::default());
        let Some(push) = self.list.front() else { return };
        self.at = push.acked;
        let within = self.marks.front().filter(|mark| planted!(Bug::SegmentAnew, position > mark.after, false));
        self.segment = within.map(|mark| Segment {
            head: wire::push_head(mark.len, push.window, push.offset.wrapping_add(self.at as u64), mark.ack_requested),
            bulk: 0,
            at: self.at,
            len: mark.len,
            // The position is within the segment, whose length is one of memory.
            #[allow(clippy::cast_possible_truncation)]
            sent: (position - mark.after) as usize,
            ack_requested: mark.ack_requested,
        });
        self.marks.truncate(usize::from(self.segment.is_some()));
    }

    /// The bytes of the unreleased segments that have been written.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.written_bytes().0 - self.segment.map_or(0, |segment| segment.left() as u64)
    }

    /// The bytes of the unreleased segments, and the bytes of messages before the last of them.
    pub(super) fn written_bytes(&self) -> (u64, u64) {
        (self.marks.iter().map(Mark::bytes).sum(), self.marks.back().map_or(0, |mark| mark.after))
    }

    /// Drops all pushes; returns their contexts in order.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(self).list.into_iter().map(|push| push.ctx)
    }
}

impl Segment {
    /// Bytes of header and payload that have not been written.
    pub(super) fn left(&self) -> usize {
        PUSH_HEAD_BYTES + self.len - self.sent
    }
}
