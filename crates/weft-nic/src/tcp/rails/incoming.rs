//! The receiving half of rails: from a socket to the [`Sink`].
//!
//! Place in the data flow: [`super`] calls [`Intake::read`] for a rail whose socket may have bytes. Payload is received
//! directly into the sink's memory, together with the next header. [`Receipts`] are those of the whole link: a segment
//! that was received in part on a lost rail continues on another one.
//!
//! Invariants: no byte of a segment is passed to the sink before the link has taken the position that the segment
//! names; until then the rail is not read. No byte of a segment is passed to the sink twice. A rail keeps one header.
//!
//! Errors: `Gone` for an end of stream or a socket error, which concerns the rail alone. `Protocol` and others end the
//! link.

use std::collections::VecDeque;

use weft_engine::mem::{self, Iov};
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::super::bugs::planted;
use super::super::rx::{READ_BUDGET_BYTES, check};
use super::super::stream::Wire;
use super::super::sys::Pieces;
use super::frame::{self, Frame, HEAD_BYTES, Receipt, SPAN, SegmentHead};

/// The number of bytes that are discarded at a time.
pub(super) const DISCARD_BYTES: usize = 64 * 1024;

/// The segments of one direction of a link, as its receiver knows them.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// All segments below this number are complete.
    low: u64,
    /// The received bytes of the segments from `low` on; `usize::MAX` for a complete one.
    slots: VecDeque<usize>,
}

impl Receipts {
    /// Checks that a segment may come now.
    pub(super) fn check(&self, number: u64) -> Result<(), LinkError> {
        if number < self.low.saturating_add(SPAN) { Ok(()) } else { Err(LinkError::Protocol) }
    }

    /// The received bytes of a segment; `usize::MAX` if it is complete.
    pub(super) fn have(&self, number: u64) -> usize {
        let Some(index) = number.checked_sub(self.low) else { return usize::MAX };
        usize::try_from(index).ok().and_then(|index| self.slots.get(index)).copied().unwrap_or(0)
    }

    /// Notes that the first `have` bytes of a segment have been received.
    pub(super) fn advance(&mut self, number: u64, have: usize) {
        let index = number.checked_sub(self.low).filter(|&index| index < SPAN);
        let Some(index) = index.and_then(|index| usize::try_from(index).ok()) else { return };
        if self.slots.len() <= index {
            self.slots.resize(index + 1, 0);
        }
        if let Some(slot) = self.slots.get_mut(index) {
            *slot = have.max(*slot);
        }
    }

    /// Notes that a segment is complete.
    pub(super) fn complete(&mut self, number: u64) {
        self.advance(number, usize::MAX);
        while self.slots.front() == Some(&usize::MAX) {
            self.slots.pop_front();
            self.low += 1;
        }
    }

    pub(super) fn receipt(&self) -> Receipt {
        let complete = (0..).zip(&self.slots).filter(|(_, have)| **have == usize::MAX);
        Receipt { low: self.low, bits: complete.fold(0, |bits, (index, _): (u32, _)| bits | 1 << index) }
    }
}

/// The state of a rail's incoming bytes.
#[derive(Debug)]
enum IncomingState {
    /// The first `have` bytes of a header have been received.
    Head { bytes: [u8; HEAD_BYTES], have: usize },
    /// Within a segment, of which `at` bytes have been received on this rail.
    Payload { head: SegmentHead, at: usize },
}

/// The receiving half of a rail.
#[derive(Debug)]
pub(super) struct Intake {
    state: IncomingState,
    /// The position that the link must take before the rail is read on.
    pub(super) held_until: Option<u64>,
}

/// The results of [`Intake::read`].
#[derive(Debug, Default)]
pub(super) struct Outcome {
    pub(super) bytes: usize,
    /// A segment is complete, and must be acknowledged.
    pub(super) completed: bool,
    /// The latest receipt of the peer.
    pub(super) receipt: Option<Receipt>,
    pub(super) end: Option<LinkError>,
}

impl Intake {
    pub(super) const START: Self =
        Self { state: IncomingState::Head { bytes: [0; HEAD_BYTES], have: 0 }, held_until: None };

    /// Reads the available bytes, within the budget. `position`: the one that the link has taken.
    pub(super) fn read<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        receipts: &mut Receipts,
        discard: &mut [u8],
        position: u64,
        link: LinkId,
        sink: &mut S,
    ) -> Outcome {
        let mut outcome = Outcome::default();
        loop {
            match self.parse(receipts, position, &mut outcome) {
                Ok(true) => {}
                Ok(false) => break,
                Err(why) => {
                    outcome.end = Some(why);
                    break;
                }
            }
            if outcome.bytes >= READ_BUDGET_BYTES && !wire.has_more() {
                break;
            }
            match self.receive(wire, receipts, discard, link, sink, &mut outcome) {
                Ok(true) => {}
                Ok(false) => {
                    // A header may be complete now.
                    if let Err(why) = self.parse(receipts, position, &mut outcome) {
                        outcome.end = Some(why);
                    }
                    break;
                }
                Err(why) => {
                    outcome.end = Some(why);
                    break;
                }
            }
        }
        outcome
    }

    /// Processes the received frames. False: the rail must not be read on now.
    fn parse(&mut self, receipts: &Receipts, position: u64, outcome: &mut Outcome) -> Result<bool, LinkError> {
        self.held_until = None;
        while let IncomingState::Head { bytes, have } = &mut self.state {
            let Some((frame, len)) = frame::decode(&bytes[..*have])? else { break };
            match frame {
                Frame::Receipt(receipt) => {
                    outcome.receipt = Some(receipt);
                    bytes.copy_within(len..*have, 0);
                    *have -= len;
                }
                Frame::Segment(head) if planted!(Bug::RailNotHeld, head.after > position, false) => {
                    self.held_until = Some(head.after);
                    return Ok(false);
                }
                Frame::Segment(head) => {
                    receipts.check(head.number)?;
                    self.state = IncomingState::Payload { head, at: 0 };
                }
            }
        }
        Ok(true)
    }

    /// Makes one receive call. False: no more bytes are available.
    fn receive<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        receipts: &mut Receipts,
        discard: &mut [u8],
        link: LinkId,
        sink: &mut S,
        outcome: &mut Outcome,
    ) -> Result<bool, LinkError> {
        let (head, at) = match &mut self.state {
            IncomingState::Head { bytes, have } => {
                let asked = HEAD_BYTES - *have;
                let Some(n) = check(wire.receive_one(&mut bytes[*have..]))? else { return Ok(false) };
                *have += n;
                outcome.bytes += n;
                return Ok(n == asked);
            }
            IncomingState::Payload { head, at } => (*head, *at),
        };
        let left = head.len - at;
        let skipped = receipts.have(head.number).saturating_sub(at).min(left);
        let skipped = planted!(Bug::BytesTwice, skipped, 0);
        let offset = head.offset.wrapping_add(at as u64);
        let placed = if skipped == 0 { sink.place(link, head.window, offset, left) } else { None };
        let placed = mem::slice(placed.as_deref().unwrap_or(&[] as &[Iov]), 0, left);
        let wanted = if skipped == 0 { left } else { skipped };
        let mut next = [0; HEAD_BYTES];
        let mut pieces = Pieces::new();
        if pieces.client(&placed, 2) {
            let rest = (wanted - pieces.len()).min(discard.len());
            pieces.buffer(&mut discard[..rest]);
            if pieces.len() == left {
                pieces.buffer(&mut next);
            }
        }
        let asked = pieces.len();
        let received = check(wire.receive(&mut pieces));
        let n = *received.as_ref().ok().and_then(Option::as_ref).unwrap_or(&0);
        let into = n.min(left);
        if skipped == 0 {
            // Also without bytes: the sink must learn that its memory is no longer used.
            sink.placed(link, head.window, offset, into);
        }
        if received?.is_none() {
            return Ok(false);
        }
        outcome.bytes += n;
        let at = at + into;
        receipts.advance(head.number, at);
        if at == head.len {
            receipts.complete(head.number);
            outcome.completed = true;
            self.state = IncomingState::Head { bytes: next, have: n - into };
        } else {
            self.state = IncomingState::Payload { head, at };
        }
        Ok(n == asked)
    }
}
