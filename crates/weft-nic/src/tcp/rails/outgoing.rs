//! The long pushes of a link that travel on its rails: cut into numbered segments, each of which is written on one rail
//! until the peer's endpoint has placed it.
//!
//! Place in the data flow: [`super`] adds pushes, takes the next segment for a rail with room, and passes receipts on.
//! Pure bookkeeping: no I/O. No payload is copied.
//!
//! Invariants:
//!
//! - A segment belongs to one rail at most. It is given to another one only after the first one is lost.
//! - A push is done when all its segments are acknowledged, and no rail is writing any of them.
//! - At most [`SPAN`] segments are unacknowledged. The number of pushes is bounded by [`PUSHES`].

use std::collections::VecDeque;

use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkError};

use super::super::bugs::planted;
use super::frame::{Receipt, SPAN, SegmentHead};

/// Limit of unfinished pushes.
const PUSHES: usize = 1024;

/// A push whose bytes are not all placed.
#[derive(Debug)]
struct Push {
    iov: IovList,
    window: u64,
    /// The offset of the first byte in the window.
    offset: u64,
    total: usize,
    /// Bytes in segments that exist or existed.
    cut: usize,
    /// Bytes in segments that are released.
    released: usize,
    ctx: u64,
    /// The number of bytes of messages that were accepted before the push.
    messages: u64,
    /// The position in the stream of the first connection that covers these messages, once they are written.
    after: Option<u64>,
}

/// A segment whose payload may still be read.
#[derive(Debug)]
struct Segment {
    /// The number of its push.
    push: u64,
    /// The offset of its payload in the push.
    at: usize,
    len: usize,
    /// The rail that writes or has written it.
    rail: Option<u32>,
    writing: bool,
    acknowledged: bool,
    released: bool,
}

/// The progress of sending on the link's first connection.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent {
    /// Bytes of messages.
    pub(super) messages: u64,
    /// The position in the stream.
    pub(super) position: u64,
}

/// The pushes of one direction of a link.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    pushes: VecDeque<Push>,
    /// The number of the first push in the list.
    first: u64,
    segments: VecDeque<Segment>,
    /// The number of the first segment in the list.
    low: u64,
}

impl Outgoing {
    /// Whether all pushes are done.
    pub(super) fn is_empty(&self) -> bool {
        self.pushes.is_empty()
    }

    /// The number of pushes that are not done.
    pub(super) fn pushes(&self) -> usize {
        self.pushes.len()
    }

    /// Adds a push behind the first `messages` bytes of messages.
    pub(super) fn add(&mut self, window: u64, offset: u64, src: &[Iov], ctx: u64, messages: u64) -> Result<(), Full> {
        if self.pushes.len() >= PUSHES {
            return Err(Full);
        }
        let total = mem::total_len(src);
        let iov = src.into();
        self.pushes.push_back(Push { iov, window, offset, total, cut: 0, released: 0, ctx, messages, after: None });
        Ok(())
    }

    /// The number of the segment that waits for a rail, if any.
    fn waiting(&self) -> Option<u64> {
        (self.low..).zip(&self.segments).find(|(_, one)| one.rail.is_none() && !one.acknowledged).map(|(n, _)| n)
    }

    /// The index of the push from which the next segment is cut.
    fn next_push(&self, sent: Sent) -> Option<usize> {
        if self.segments.len() as u64 >= SPAN {
            return None;
        }
        let next = self.pushes.iter().position(|push| push.cut < push.total)?;
        let push = self.pushes.get(next)?;
        (push.after.is_some() || sent.messages >= push.messages).then_some(next)
    }

    /// Whether [`Self::take`] returns a segment.
    pub(super) fn has_next(&self, sent: Sent) -> bool {
        self.waiting().is_some() || self.next_push(sent).is_some()
    }

    /// Gives the next segment to a rail, which must write it.
    pub(super) fn take(&mut self, rail: u32, sent: Sent, segment_bytes: usize) -> Option<SegmentHead> {
        let number = match self.waiting() {
            Some(number) => number,
            None => self.cut(sent, segment_bytes)?,
        };
        let segment = self.segments.get_mut(usize::try_from(number - self.low).ok()?)?;
        (segment.rail, segment.writing) = (Some(rail), true);
        let push = self.pushes.get(usize::try_from(segment.push - self.first).ok()?)?;
        let offset = push.offset.wrapping_add(segment.at as u64);
        Some(SegmentHead { number, after: push.after?, window: push.window, offset, len: segment.len })
    }

    fn cut(&mut self, sent: Sent, segment_bytes: usize) -> Option<u64> {
        let index = self.next_push(sent)?;
        let push = self.pushes.get_mut(index)?;
        push.after.get_or_insert(sent.position);
        let (at, len) = (push.cut, (push.total - push.cut).min(segment_bytes));
        push.cut += len;
        let push = self.first + index as u64;
        let number = self.low + self.segments.len() as u64;
        let (rail, writing, acknowledged, released) = (None, false, false, false);
        self.segments.push_back(Segment { push, at, len, rail, writing, acknowledged, released });
        Some(number)
    }

    fn index(&self, number: u64) -> Option<usize> {
        usize::try_from(number.checked_sub(self.low)?).ok().filter(|&index| index < self.segments.len())
    }

    /// The payload of a segment that a rail is writing, from byte `from` on.
    pub(super) fn payload(&self, number: u64, from: usize) -> IovList {
        let segment = self.index(number).and_then(|index| self.segments.get(index));
        let Some(segment) = segment else { return IovList::new() };
        let push = usize::try_from(segment.push - self.first).ok().and_then(|index| self.pushes.get(index));
        push.map(|push| mem::slice(&push.iov, segment.at + from, segment.len - from)).unwrap_or_default()
    }

    /// Bytes of segments that a rail writes or has written, and that are not acknowledged.
    pub(super) fn outstanding(&self, rail: u32) -> usize {
        self.segments.iter().filter(|one| one.rail == Some(rail) && !one.acknowledged).map(|one| one.len).sum()
    }

    /// Notes that a rail has written a segment. `done` is called for each push that this ends.
    pub(super) fn written(&mut self, number: u64, done: impl FnMut(u64)) {
        if let Some(segment) = self.index(number).and_then(|index| self.segments.get_mut(index)) {
            segment.writing = false;
        }
        self.release(done);
    }

    /// Notes the segments that the peer has placed. `done` is called for each push that this ends.
    ///
    /// # Errors
    /// `Protocol`: a segment does not exist.
    pub(super) fn acknowledged(&mut self, receipt: Receipt, done: impl FnMut(u64)) -> Result<(), LinkError> {
        let end = self.low + self.segments.len() as u64;
        let beyond = receipt.low.checked_add(u64::from(u64::BITS - receipt.bits.leading_zeros()));
        if beyond.is_none_or(|beyond| beyond > end) {
            return Err(LinkError::Protocol);
        }
        for (number, segment) in (self.low..).zip(&mut self.segments) {
            let bit = number.wrapping_sub(receipt.low);
            segment.acknowledged |= number < receipt.low || (bit < SPAN && receipt.bits >> bit & 1 != 0);
        }
        self.release(done);
        Ok(())
    }

    /// Gives the unacknowledged segments of a rail that is lost to other rails.
    pub(super) fn lost(&mut self, rail: u32, done: impl FnMut(u64)) {
        for segment in self.segments.iter_mut().filter(|one| one.rail == Some(rail)) {
            segment.rail = planted!(Bug::SegmentsLost, None, segment.rail);
            segment.writing = false;
        }
        self.release(done);
    }

    /// Releases the acknowledged segments that no rail is writing.
    fn release(&mut self, mut done: impl FnMut(u64)) {
        for segment in self.segments.iter_mut().filter(|one| one.acknowledged && !one.writing && !one.released) {
            segment.released = true;
            let index = usize::try_from(segment.push - self.first).ok();
            if let Some(push) = index.and_then(|index| self.pushes.get_mut(index)) {
                push.released += segment.len;
                if push.released == push.total {
                    done(push.ctx);
                }
            }
        }
        while self.segments.front().is_some_and(|one| one.released) {
            self.segments.pop_front();
            self.low += 1;
        }
        while self.pushes.front().is_some_and(|push| push.released == push.total) {
            self.pushes.pop_front();
            self.first += 1;
        }
    }

    /// Drops all pushes; returns the contexts of those that are not done.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> + use<> {
        std::mem::take(self).pushes.into_iter().filter(|push| push.released < push.total).map(|push| push.ctx)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::collections::HashMap;

    use proptest::prelude::*;
    use weft_engine::mem::Owned;

    use super::super::incoming::Receipts;
    use super::*;

    const RAILS: u32 = 3;
    const SEGMENT_BYTES: usize = 100;

    /// A rail: the segment that is being written, and those under way to the receiver.
    #[derive(Default)]
    struct Rail {
        writing: Option<SegmentHead>,
        under_way: VecDeque<SegmentHead>,
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

        /// Rails carry segments, fail and report in any order. Each byte counts once. A push is done after all its
        /// bytes are placed, and when no rail reads its memory any more.
        #[test]
        fn every_byte_counts_once(steps in prop::collection::vec((0u32..7, 0u32..RAILS, 1usize..900), 1..400)) {
            let (mut out, mut receipts) = (Outgoing::default(), Receipts::default());
            let mut rails: [Rail; RAILS as usize] = Default::default();
            let mut memory = Owned::new(vec![0; 1000]);
            let whole = memory.iov();
            let (mut lengths, mut done, mut next) = (HashMap::<u64, usize>::new(), Vec::new(), 0_u64);
            let mut placed = HashMap::<u64, usize>::new();
            let sent = Sent { messages: u64::MAX, position: 5 };
            let settle = (0..10_000).map(|n| (2 + n % 4, n / 4 % RAILS, 1));
            let settle = settle.filter(|&(step, ..)| step != 4);
            for (step, at, size) in steps.into_iter().chain(settle) {
                let rail = &mut rails[at as usize];
                match step {
                    0 => {
                        out.add(next, 0, &[whole.slice(0, size)], next, 0).unwrap();
                        lengths.insert(next, size);
                        next += 1;
                    }
                    1 | 2 if rail.writing.is_none() => rail.writing = out.take(at, sent, SEGMENT_BYTES),
                    3 => if let Some(head) = rail.writing.take() {
                        prop_assert_eq!(mem::total_len(&out.payload(head.number, 0)), head.len);
                        prop_assert!(!done.contains(&head.window), "its memory may have been changed");
                        rail.under_way.push_back(head);
                        out.written(head.number, |ctx| done.push(ctx));
                    },
                    4 => {
                        // The receiver gets some of the first segment before the rail is lost.
                        if let Some(head) = rail.under_way.front().or(rail.writing.as_ref()) {
                            receipts.check(head.number).unwrap();
                            let part = size.min(head.len - 1);
                            let have = receipts.have(head.number).min(head.len);
                            *placed.entry(head.window).or_default() += part.saturating_sub(have);
                            receipts.advance(head.number, part);
                        }
                        *rail = Rail::default();
                        out.lost(at, |ctx| done.push(ctx));
                    }
                    5 => if let Some(head) = rail.under_way.pop_front() {
                        receipts.check(head.number).unwrap();
                        let have = receipts.have(head.number).min(head.len);
                        *placed.entry(head.window).or_default() += head.len - have;
                        receipts.advance(head.number, head.len);
                        receipts.complete(head.number);
                        prop_assert_eq!(receipts.have(head.number), usize::MAX);
                        out.acknowledged(receipts.receipt(), |ctx| done.push(ctx)).unwrap();
                    },
                    _ => {}
                }
                for ctx in &done {
                    prop_assert_eq!(placed.get(ctx), lengths.get(ctx));
                }
                prop_assert!(placed.iter().all(|(window, bytes)| bytes <= &lengths[window]));
            }
            done.sort_unstable();
            prop_assert_eq!(done, (0..next).collect::<Vec<_>>());
            prop_assert!(out.is_empty() && out.segments.is_empty());
        }
    }

    #[test]
    fn a_push_waits_for_the_messages_before_it() {
        let mut memory = Owned::new(vec![0; 10]);
        let mut out = Outgoing::default();
        out.add(1, 0, &[memory.iov()], 1, 50).unwrap();
        assert!(!out.has_next(Sent { messages: 49, position: 60 }));
        assert_eq!(out.take(0, Sent { messages: 49, position: 60 }, 4), None);
        assert_eq!(out.take(0, Sent { messages: 50, position: 61 }, 4).unwrap().after, 61);
        // Later segments need no more messages, even if these are written again after a break.
        assert_eq!(out.take(0, Sent { messages: 0, position: 99 }, 4).unwrap().after, 61);
    }

    #[test]
    fn receipts_of_segments_that_do_not_exist_are_refused() {
        let mut memory = Owned::new(vec![0; 10]);
        let mut out = Outgoing::default();
        out.add(1, 0, &[memory.iov()], 1, 0).unwrap();
        let sent = Sent { messages: 0, position: 0 };
        out.take(0, sent, 5).unwrap();
        for (low, bits) in [(2, 0), (0, 2), (1, 1), (u64::MAX, 1), (u64::MAX, 0)] {
            assert_eq!(out.acknowledged(Receipt { low, bits }, |_| ()), Err(LinkError::Protocol), "{low} {bits}");
        }
        assert_eq!(out.acknowledged(Receipt { low: 1, bits: 0 }, |_| ()), Ok(()));
        assert_eq!(out.abandon().collect::<Vec<_>>(), [1]);
    }
}
