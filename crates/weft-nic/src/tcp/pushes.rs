//! The pushes of a link: cut into segments, written from the client's memory, and done when the peer has
//! acknowledged them.
//!
//! Place in the data flow: a part of [`super::tx`], which exists only while there are pushes. Nothing is
//! copied: until the peer's endpoint has said that it has a push, its owner must leave the memory alone, and
//! it can be written once more. What was written is remembered as [`Mark`]s: where in the stream which bytes
//! stood.
//!
//! Invariants: `segment`, if set, is one of `list[current]`, and the last mark is its. The marks are those of
//! the segments not acknowledged, in order, and begin in `list[0]` at its `acked`. The peer is asked for an
//! acknowledgement with the end of the last push that waits, with the segment that makes [`ASK_BYTES`]
//! together with an end that has not asked, and with every [`ASK_EVERY`]th, so that the marks, of which there
//! are at most [`MARKS`], never fill up for good.

use std::collections::VecDeque;

use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkError};

use super::mutant::{Mutant, strikes};
use super::wire::{self, PUSH_HEAD_BYTES};

/// Pushes that may wait on one link.
const BULKS: usize = 1024;
/// Segments that may be without acknowledgement.
const MARKS: usize = 256;
/// Segments after which an acknowledgement is asked for.
const ASK_EVERY: u32 = 16;
/// Bytes for which the end of a push waits at most, if others follow it: an acknowledgement is a system call
/// and a packet against the stream.
const ASK_BYTES: usize = 256 * 1024;

/// What has been written since an acknowledgement was asked for.
#[derive(Clone, Copy, Debug, Default)]
struct Unasked {
    segments: u32,
    /// Of payload.
    bytes: usize,
    /// The end of a push is among it.
    ended: bool,
}

/// A push that is not done.
#[derive(Debug)]
struct Bulk {
    iov: IovList,
    window: u64,
    /// Window offset of the first byte.
    offset: u64,
    total: usize,
    /// Bytes in segments that have been acknowledged.
    acked: usize,
    ctx: u64,
}

/// The segment that has begun to leave, or is about to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    pub(super) head: [u8; PUSH_HEAD_BYTES],
    /// Of which push it is, for one that is about to begin.
    bulk: usize,
    /// Where its payload begins in the push.
    at: usize,
    /// Payload bytes.
    len: usize,
    /// Bytes of header and payload that have left.
    sent: usize,
    ack_wanted: bool,
}

/// A segment that has begun to leave and is not acknowledged.
#[derive(Debug)]
struct Mark {
    /// Bytes of messages before it in the stream.
    after: u64,
    /// Its payload.
    len: usize,
    ack_wanted: bool,
}

impl Mark {
    fn bytes(&self) -> u64 {
        (PUSH_HEAD_BYTES + self.len) as u64
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Pushes {
    list: VecDeque<Bulk>,
    /// Which of them is being cut into segments: those before have been written.
    current: usize,
    /// Bytes of that one in segments that have been written.
    at: usize,
    pub(super) segment: Option<Segment>,
    marks: VecDeque<Mark>,
    unasked: Unasked,
}

impl Pushes {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    /// Takes one more.
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

    /// Whether the socket could be given anything.
    pub(super) fn has_more(&self) -> bool {
        self.segment.is_some() || (self.current < self.list.len() && self.marks.len() < MARKS)
    }

    /// The segment that begins next, behind the one under way if there is one.
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
        let ack_wanted = ends && bulk + 1 == self.list.len()
            || (ends || self.unasked.ended) && self.unasked.bytes + len >= ASK_BYTES
            || self.unasked.segments + 1 >= ASK_EVERY;
        let head = wire::push_head(len, push.window, push.offset.wrapping_add(at as u64), ack_wanted);
        Some(Segment { head, bulk, at, len, sent: 0, ack_wanted })
    }

    /// A segment's whole payload.
    pub(super) fn payload(&self, segment: &Segment) -> IovList {
        self.list.get(segment.bulk).map(|push| mem::slice(&push.iov, segment.at, segment.len)).unwrap_or_default()
    }

    /// What has not left of the segment under way.
    pub(super) fn rest(&self) -> Option<(&[u8], IovList)> {
        let (segment, push) = (self.segment.as_ref()?, self.list.get(self.current)?);
        let sent = segment.sent.saturating_sub(PUSH_HEAD_BYTES);
        let payload = mem::slice(&push.iov, segment.at + sent, segment.len - sent);
        Some((segment.head.get(segment.sent..).unwrap_or_default(), payload))
    }

    /// A segment begins to leave, behind `after` bytes of messages.
    pub(super) fn begin(&mut self, segment: Segment, after: u64) {
        debug_assert!(self.segment.is_none() && segment.bulk == self.current);
        self.marks.push_back(Mark { after, len: segment.len, ack_wanted: segment.ack_wanted });
        let ends = self.list.get(segment.bulk).is_some_and(|push| segment.at + segment.len == push.total);
        let Unasked { segments, bytes, ended } = self.unasked;
        self.unasked = if segment.ack_wanted {
            Unasked::default()
        } else {
            Unasked { segments: segments + 1, bytes: bytes + segment.len, ended: ended || ends }
        };
        self.segment = Some(segment);
    }

    /// So many more bytes of the segment under way have left.
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

    /// The peer has what stands before `position`, which does not count the segments acknowledged earlier.
    /// Returns how many bytes of segments that adds to those.
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

    /// How many bytes of messages stand before `position`, which does not count the segments acknowledged.
    pub(super) fn messages_before(&self, position: u64) -> Result<u64, LinkError> {
        let Some(mark) = self.marks.front().filter(|mark| position > mark.after) else { return Ok(position) };
        let written = match &self.segment {
            Some(segment) if self.marks.len() == 1 => segment.sent as u64,
            _ => mark.bytes(),
        };
        if position - mark.after > written { Err(LinkError::Protocol) } else { Ok(mark.after) }
    }

    /// The stream goes on at `position`, which does not count the segments acknowledged.
    pub(super) fn rewind(&mut self, position: u64) {
        (self.segment, self.current, self.unasked) = (None, 0, Unasked::default());
        let Some(push) = self.list.front() else { return };
        self.at = push.acked;
        let within = self.marks.front().filter(|mark| position > mark.after && !strikes(Mutant::SegmentAnew));
        self.segment = within.map(|mark| Segment {
            head: wire::push_head(mark.len, push.window, push.offset.wrapping_add(self.at as u64), mark.ack_wanted),
            bulk: 0,
            at: self.at,
            len: mark.len,
            // It lies within the segment, whose length is that of memory.
            #[allow(clippy::cast_possible_truncation)]
            sent: (position - mark.after) as usize,
            ack_wanted: mark.ack_wanted,
        });
        self.marks.truncate(usize::from(self.segment.is_some()));
    }

    /// The bytes of the segments that have begun and are not acknowledged, and how many bytes of messages
    /// stand before the end of the last.
    pub(super) fn written_bytes(&self) -> (u64, u64) {
        (self.marks.iter().map(Mark::bytes).sum(), self.marks.back().map_or(0, |mark| mark.after))
    }

    /// Lets go of all; their contexts in order.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(self).list.into_iter().map(|push| push.ctx)
    }
}

impl Segment {
    /// Bytes of header and payload that have not left.
    pub(super) fn left(&self) -> usize {
        PUSH_HEAD_BYTES + self.len - self.sent
    }
}
