//! The sending half of a link: from `send` and `push` to the socket.
//!
//! Place in the data flow: [`super::Tcp`] calls [`Writer::message`] and [`Writer::push`] for the engine. It calls
//! [`Writer::pump`] when it flushes, or when a socket becomes writable. A message is copied once, into the link's
//! [`super::retransmit`] buffer, and written from there. The first message after a flush or poll goes to the kernel
//! immediately. Later ones leave with the next flush, or when enough are gathered, in one call. A push is cut into
//! segments, each of which is sent from the client's memory after its header ([`super::pushes`]). Messages are sent
//! between segments, so that a message waits for one segment at most.
//!
//! Messages and pushes are kept until the peer's endpoint has acknowledged them ([`Writer::acknowledged`]), so that
//! they can be written again ([`Writer::rewind`]) after the connection has broken. A push is done when it is
//! acknowledged.
//!
//! Invariants:
//!
//! - A frame that has begun is finished before another begins.
//! - [`SocketState`] is full exactly while the socket has refused bytes and has not been reported as writable since.
//! - The unacknowledged messages of a link are bounded by `KEPT_BYTES`, its unsent ones by `queue_bytes`, and its
//!   pushes by their number.
//! - A link without unacknowledged bytes holds no buffer.
//!
//! Errors: a socket error sets [`SocketState::Broken`]; the receiving half then finds the cause. In the state
//! [`SocketState::Unreadable`] the socket has no error, so the caller ends the link. A peer that acknowledges unsent
//! bytes breaks the protocol.

use rustix::io::Errno;
use weft_engine::mem::{self, Iov};
use weft_engine::nic::{Full, LinkError, LinkId};

use super::bugs::planted;
use super::pushes::{Pushes, Segment};
use super::retransmit::{RetransmitBuffer, SpareRings};
use super::rx::Intake;
use super::stream::Wire;
use super::sys::{self, Pieces};
use super::wire::{self, ACK_BYTES, HEAD_BYTES, MAILBOX_BYTES};

/// Messages of at least this length do not wait for a flush, unless the peer has not acknowledged as many bytes. In
/// such a stream they are gathered as well: the kernel's cost per call exceeds that of copying them.
const DIRECT_BYTES: usize = 8 * 1024;
/// Gathered bytes of this number are written without waiting for a flush.
const FLUSH_BYTES: usize = 64 * 1024;
/// Limit of unacknowledged bytes of messages.
const KEPT_BYTES: usize = 1024 * 1024;

/// Limit of unused lists of pushes.
const SPARE_PUSHES: usize = 4;

/// The state of a socket, as far as the device knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum SocketState {
    #[default]
    Writable,
    /// The socket has refused bytes and has not been reported as writable since.
    Full,
    /// As `Writable`, but the rest of an encrypted record is written first.
    WritableWithinRecord,
    /// As `Full`, and the rest of an encrypted record waits for the socket.
    FullWithinRecord,
    /// The socket has failed; the receiving half finds the cause.
    Broken,
    /// The socket works, but client memory cannot be read: the link must end.
    Unreadable,
}

impl SocketState {
    /// Whether the socket may be given bytes.
    #[inline]
    pub(super) fn takes(self) -> bool {
        matches!(self, Self::Writable | Self::WritableWithinRecord)
    }

    /// Whether the socket must become writable first.
    #[inline]
    pub(super) fn is_full(self) -> bool {
        matches!(self, Self::Full | Self::FullWithinRecord)
    }

    /// Whether the rest of an encrypted record waits for the socket.
    #[inline]
    pub(super) fn is_within_record(self) -> bool {
        matches!(self, Self::WritableWithinRecord | Self::FullWithinRecord)
    }

    /// Whether nothing can be sent until the link has another connection.
    #[inline]
    pub(super) fn has_failed(self) -> bool {
        matches!(self, Self::Broken | Self::Unreadable)
    }

    /// Notes the outcome of a write of `asked` bytes. Returns the number of bytes that the kernel accepted; `None` if
    /// the socket has failed.
    #[inline]
    pub(super) fn judge<W: Wire>(&mut self, wire: W, outcome: Result<usize, Errno>, asked: usize) -> Option<usize> {
        match outcome {
            Ok(n) => {
                *self = match n < asked {
                    _ if W::HOLDS && wire.holds() => Self::FullWithinRecord,
                    true => Self::Full,
                    false => Self::Writable,
                };
                Some(n)
            }
            Err(Errno::AGAIN) => {
                *self = if self.is_within_record() { Self::FullWithinRecord } else { Self::Full };
                Some(0)
            }
            Err(errno) => {
                *self = if errno == Errno::FAULT { Self::Unreadable } else { Self::Broken };
                None
            }
        }
    }

    /// Lets a full socket be tried again.
    pub(super) fn try_again(&mut self) {
        *self = match *self {
            Self::Full => Self::Writable,
            Self::FullWithinRecord => Self::WritableWithinRecord,
            other => other,
        };
    }
}

/// The unsent and unacknowledged bytes of a link.
#[derive(Debug, Default)]
pub(super) struct Tx {
    messages: RetransmitBuffer,
    pushes: Option<Box<Pushes>>,
    /// Acknowledged bytes of the stream that are not messages.
    others: u64,
    /// An acknowledgement that the socket has accepted in part, and the number of bytes accepted.
    cut_ack: Option<Box<(usize, [u8; ACK_BYTES])>>,
    /// The last round in which a message was sent immediately.
    round: u32,
    pub(super) socket: SocketState,
    /// Bytes have been sent since the last check whether the peer acknowledges them.
    pub(super) unproven: bool,
    /// An acknowledgement must be sent.
    pub(super) ack_due: bool,
    /// The written bytes may end within a message.
    within: bool,
}

impl Tx {
    /// Whether all accepted bytes have been handed to the kernel.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        !self.is_unsent() && self.pushes.as_ref().is_none_or(|pushes| pushes.written())
    }

    /// Whether any byte of a message has not been handed to the kernel.
    pub(super) fn is_unsent(&self) -> bool {
        self.queued() > 0 || self.socket.is_within_record()
    }

    /// Whether there is anything to write.
    #[inline]
    pub(super) fn has_more(&self) -> bool {
        self.queued() > 0
            || self.ack_due
            || self.cut_ack.is_some()
            || self.pushes.as_ref().is_some_and(|pushes| pushes.has_more())
            || self.socket.is_within_record()
    }

    /// Bytes of messages that have not been handed to the kernel.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.messages.unsent_len()
    }

    /// The number of pushes that are not done.
    pub(super) fn pushes(&self) -> usize {
        self.pushes.as_ref().map_or(0, |pushes| pushes.len())
    }

    /// The position up to which the peer's endpoint has acknowledged the stream.
    pub(super) fn acknowledged(&self) -> u64 {
        self.others + self.messages.acked()
    }

    /// Bytes of messages that the peer has not acknowledged.
    pub(super) fn unacked(&self) -> usize {
        self.messages.len()
    }

    /// The number of bytes of messages that have been accepted.
    pub(super) fn accepted_messages(&self) -> u64 {
        self.messages.acked() + self.messages.len() as u64
    }

    /// The number of bytes of messages that have been handed to the kernel, and the position that the stream has
    /// reached.
    pub(super) fn sent(&self) -> (u64, u64) {
        let messages = self.messages.sent();
        let segments = self.pushes.as_ref().map_or(0, |pushes| pushes.sent_bytes());
        (messages, self.others + segments + messages)
    }

    /// Drops all pushes; returns their contexts in order.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> {
        self.pushes.take().into_iter().flat_map(|mut pushes| pushes.abandon())
    }

    /// A closed link's stream from `position` on. `None`: the bytes are no longer kept, or were never sent.
    pub(super) fn end_from(&mut self, position: u64, rest: &Rest) -> Option<Vec<u8>> {
        let at = position.checked_add(rest.bytes.len() as u64)?.checked_sub(self.others + rest.before)?;
        let into_rest = usize::try_from(at).ok()?.min(rest.bytes.len());
        let sent = rest.before + (at - into_rest as u64);
        if !self.messages.rewind(sent) {
            return None;
        }
        let (front, back) = self.messages.unsent();
        Some([&rest.bytes[into_rest..], front, back].concat())
    }

    /// Whether a frame other than a message has begun and is not finished.
    #[inline]
    fn is_cut(&self) -> bool {
        self.cut_ack.is_some() || self.pushes.as_ref().is_some_and(|pushes| pushes.segment.is_some())
    }
}

/// The rest of a closed link's pushes.
#[derive(Debug)]
pub(super) struct Rest {
    /// The rest of the segment that was being written.
    bytes: Vec<u8>,
    /// Bytes of messages before the segment. The stream before that position cannot be sent again.
    before: u64,
}

impl Rest {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The result of a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// No byte is left, or the socket must report an event first.
    Rest,
    /// The budget is used up, but the socket accepts more.
    More,
}

/// The part of sending that all links of a device share.
pub(super) struct Writer {
    /// Counts flushes and polls.
    round: u32,
    /// Pushes that the peer has acknowledged.
    done: Vec<(LinkId, u64)>,
    /// System calls made.
    calls: u64,
    spare: SpareRings,
    // The boxes move between links.
    #[allow(clippy::vec_box)]
    spare_pushes: Vec<Box<Pushes>>,
    segment_bytes: usize,
    queue_bytes: usize,
}

impl Writer {
    pub(super) fn new(segment_bytes: usize, queue_bytes: usize) -> Self {
        Self {
            round: 1,
            done: Vec::new(),
            calls: 0,
            spare: SpareRings::default(),
            spare_pushes: Vec::new(),
            segment_bytes: segment_bytes.clamp(1, wire::SEGMENT_MAX_BYTES),
            queue_bytes: queue_bytes.max(MAILBOX_BYTES + HEAD_BYTES),
        }
    }

    /// Begins a round: the next message of each link may be sent immediately.
    #[inline]
    pub(super) fn begin_round(&mut self) {
        self.round = self.round.wrapping_add(1);
    }

    /// Whether pushes are done and not reported.
    #[inline]
    pub(super) fn has_done(&self) -> bool {
        !self.done.is_empty()
    }

    /// Notes that a push is done.
    pub(super) fn report_done(&mut self, link: LinkId, ctx: u64) {
        self.done.push((link, ctx));
    }

    /// Takes the pushes that are done: link and context.
    #[inline]
    pub(super) fn take_done(&mut self) -> std::vec::Drain<'_, (LinkId, u64)> {
        self.done.drain(..)
    }

    /// Drops the done pushes of a link that the client has closed.
    pub(super) fn forget_done(&mut self, link: LinkId) {
        self.done.retain(|&(id, _)| id != link);
    }

    /// System calls made.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Accepts a message and copies it. It is sent immediately if it is the first one after a flush or poll.
    #[inline]
    pub(super) fn message<W: Wire>(
        &mut self,
        wire: W,
        tx: &mut Tx,
        rx: &mut Intake,
        head: &[u8],
        body: &[Iov],
    ) -> Result<(), Full> {
        let len = head.len() + mem::total_len(body);
        assert!(len <= MAILBOX_BYTES, "a message of {len} bytes was given to a device whose mailbox is smaller");
        let frame_bytes = HEAD_BYTES + len;
        let (queued, unacked) = (tx.queued(), tx.messages.len());
        if !self.has_room(tx, frame_bytes) {
            return Err(Full);
        }
        let first = queued == 0 && tx.socket.takes() && !tx.ack_due && !tx.is_cut();
        let begins = first && tx.round != self.round;
        let frame = tx.messages.append(head, body, len);
        // Checked last: the first message of a round needs no length.
        let is_long = || len >= DIRECT_BYTES && unacked < DIRECT_BYTES;
        if (begins || first && is_long())
            && let Some(frame) = frame
        {
            let (outcome, asked) = (wire.send_one(frame), frame_bytes);
            if let Some(n) = self.judge(wire, tx, outcome, asked) {
                tx.messages.mark_sent(n);
                tx.within = n < asked;
                tx.round = self.round;
            }
        } else if tx.socket.takes() && (begins || is_long() || queued + frame_bytes >= FLUSH_BYTES) {
            self.pump(wire, tx, rx, 1);
        }
        Ok(())
    }

    /// Accepts a message and copies it, like [`Self::message`]. It leaves with the next pump.
    pub(super) fn gather(&mut self, tx: &mut Tx, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let len = head.len() + mem::total_len(body);
        let frame_bytes = HEAD_BYTES + len;
        if !self.has_room(tx, frame_bytes) {
            return Err(Full);
        }
        tx.messages.append(head, body, len);
        Ok(())
    }

    /// Whether the link accepts a frame of this length.
    #[inline(always)]
    fn has_room(&mut self, tx: &mut Tx, frame_bytes: usize) -> bool {
        !tx.socket.has_failed()
            && tx.messages.len() + frame_bytes <= KEPT_BYTES
            && tx.queued() + frame_bytes <= self.queue_bytes
            && tx.messages.make_room(frame_bytes, &mut self.spare)
    }

    /// Accepts a push. The next pump begins to send it.
    pub(super) fn push(
        &mut self,
        link: LinkId,
        tx: &mut Tx,
        window: u64,
        offset: u64,
        src: &[Iov],
        ctx: u64,
    ) -> Result<(), Full> {
        if tx.socket.has_failed() {
            return Err(Full);
        }
        if mem::total_len(src) == 0 {
            self.done.push((link, ctx));
            return Ok(());
        }
        let spare = &mut self.spare_pushes;
        tx.pushes.get_or_insert_with(|| spare.pop().unwrap_or_default()).add(window, offset, src, ctx)
    }

    /// Keeps the lists of a link without pushes for the next link that pushes.
    fn recycle(&mut self, tx: &mut Tx) {
        if let Some(pushes) = tx.pushes.take()
            && self.spare_pushes.len() < SPARE_PUSHES
        {
            self.spare_pushes.push(pushes);
        }
    }

    /// Sends as much as the kernel accepts, up to about `budget` bytes and one segment.
    pub(super) fn pump<W: Wire>(&mut self, wire: W, tx: &mut Tx, rx: &mut Intake, mut budget: usize) -> Pumped {
        while tx.socket.takes() && tx.has_more() {
            if budget == 0 {
                return Pumped::More;
            }
            let ack = (tx.ack_due && tx.cut_ack.is_none()).then(|| {
                let position = rx.position();
                wire::ack(planted!(Bug::AckTooFar, position, position + 1))
            });
            let fresh = tx.pushes.as_ref().and_then(|pushes| pushes.next_segment(self.segment_bytes));
            let (outcome, asked) = write_once(wire, tx, ack.as_ref(), fresh.as_ref());
            let Some(n) = self.judge(wire, tx, outcome, asked) else { break };
            advance(tx, rx, n, ack, fresh);
            budget = budget.saturating_sub(n);
        }
        Pumped::Rest
    }

    /// The number of bytes that the kernel accepted of a write of `asked` bytes; `None` if the socket has failed.
    #[inline]
    fn judge<W: Wire>(&mut self, wire: W, tx: &mut Tx, outcome: Result<usize, Errno>, asked: usize) -> Option<usize> {
        self.calls += 1;
        tx.unproven = true;
        tx.socket.judge(wire, outcome, asked)
    }

    /// Releases the stream before `position`, which the peer's endpoint has acknowledged.
    pub(super) fn acknowledged(&mut self, link: LinkId, tx: &mut Tx, position: u64) -> Result<(), LinkError> {
        let mut head = position.checked_sub(tx.others).ok_or(LinkError::Protocol)?;
        if let Some(pushes) = &mut tx.pushes {
            let done = &mut self.done;
            let segments = pushes.acknowledged(head, |ctx| done.push((link, ctx)));
            tx.others += segments;
            head = pushes.messages_before(head - segments)?;
            if pushes.len() == 0 {
                self.recycle(tx);
            }
        }
        if !tx.messages.acknowledge(head) {
            return Err(LinkError::Protocol);
        }
        tx.messages.release(&mut self.spare);
        Ok(())
    }

    /// Continues the stream at `position` on another connection. The bytes that the peer's endpoint lacks are sent
    /// again.
    pub(super) fn rewind(&mut self, link: LinkId, tx: &mut Tx, position: u64) -> Result<(), LinkError> {
        let before = tx.messages.acked();
        self.acknowledged(link, tx, position)?;
        planted!(Bug::FrameTwice, tx.messages.take_back_acknowledgement(before));
        tx.messages.rewind(tx.messages.acked());
        if let Some(pushes) = &mut tx.pushes {
            pushes.rewind(position - tx.others);
        }
        // The previous connection may have ended at any byte.
        tx.within = true;
        tx.ack_due |= planted!(Bug::AckGoesOn, tx.cut_ack.take().is_some(), false);
        tx.socket = SocketState::Writable;
        Ok(())
    }

    /// Drops all pushes of a closed link. Returns a copy of the rest of the current segment.
    pub(super) fn abandon_pushes(&mut self, tx: &mut Tx) -> Rest {
        let Some(pushes) = tx.pushes.take() else { return Rest { bytes: Vec::new(), before: tx.messages.acked() } };
        let mut bytes = Vec::new();
        if let Some((head, payload)) = pushes.rest() {
            bytes.extend_from_slice(head);
            sys::append(&mut bytes, &payload);
        }
        let (written, before) = pushes.written_bytes();
        tx.others += written;
        Rest { bytes, before: before.max(tx.messages.acked()) }
    }

    /// A copy of the last bytes of a closed link's connection: the rest of the current frame, the messages, an
    /// acknowledgement, and the goodbye.
    pub(super) fn last_bytes(&mut self, tx: &mut Tx, rx: &Intake, rest: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(rest.len() + tx.queued() + 2 * ACK_BYTES + HEAD_BYTES);
        if let Some(cut) = tx.cut_ack.take() {
            bytes.extend_from_slice(&cut.1[cut.0..]);
        }
        bytes.extend_from_slice(rest);
        let (front, back) = tx.messages.unsent();
        bytes.extend_from_slice(front);
        bytes.extend_from_slice(back);
        if tx.ack_due || rx.owes_ack() {
            bytes.extend_from_slice(&wire::ack(rx.position()));
        }
        bytes.extend_from_slice(&wire::goodbye());
        bytes
    }

    /// Releases the memory of a link that has ended.
    pub(super) fn forget(&mut self, tx: &mut Tx) {
        tx.pushes = None;
        tx.messages.clear(&mut self.spare);
    }
}

/// Accounts for `n` sent bytes, in the order in which [`write_once`] wrote them.
fn advance(tx: &mut Tx, rx: &mut Intake, n: usize, ack: Option<[u8; ACK_BYTES]>, fresh: Option<Segment>) {
    let mut left = n;
    let mut take = |most: usize| {
        let taken = most.min(left);
        left -= taken;
        taken
    };
    if let Some(cut) = &mut tx.cut_ack {
        cut.0 += take(ACK_BYTES - cut.0);
        if cut.0 == ACK_BYTES {
            tx.cut_ack = None;
        }
    }
    let queued = tx.messages.unsent_len();
    let early = acknowledges_first(tx);
    if let Some(pushes) = &mut tx.pushes {
        let rest = pushes.segment.map_or(0, |segment| segment.left());
        pushes.advance(take(rest));
    }
    let mut take_ack = |tx: &mut Tx, left: &mut dyn FnMut(usize) -> usize| {
        let Some(ack) = ack else { return };
        let taken = left(ACK_BYTES);
        if taken == 0 {
            return;
        }
        tx.ack_due = false;
        rx.acknowledged();
        if taken < ACK_BYTES {
            tx.cut_ack = Some(Box::new((taken, ack)));
        }
    };
    if early {
        take_ack(tx, &mut take);
    }
    let messages = take(queued);
    tx.messages.mark_sent(messages);
    tx.within = if messages == queued { queued == 0 && tx.within } else { tx.within || messages > 0 };
    if !early {
        take_ack(tx, &mut take);
    }
    if let (Some(pushes), Some(fresh), true) = (&mut tx.pushes, fresh, left > 0) {
        pushes.begin(fresh, tx.messages.sent());
        pushes.advance(left);
    }
}

/// Whether an acknowledgement may be written before the unsent messages: no frame is unfinished.
fn acknowledges_first(tx: &Tx) -> bool {
    !tx.within && tx.pushes.as_ref().is_none_or(|pushes| pushes.segment.is_none())
}

/// One vectored write: the current frame, the messages, an acknowledgement before or after them, and the new segment
/// `fresh`. Returns the result, and the number of bytes that it tried to write.
fn write_once<W: Wire>(
    wire: W,
    tx: &Tx,
    ack: Option<&[u8; ACK_BYTES]>,
    fresh: Option<&Segment>,
) -> (Result<usize, Errno>, usize) {
    let mut pieces = Pieces::new();
    if let Some(cut) = &tx.cut_ack {
        pieces.bytes(&cut.1[cut.0..]);
    }
    // No piece may follow a segment whose pieces did not all fit.
    let mut whole = true;
    let rest = tx.pushes.as_ref().and_then(|pushes| pushes.rest());
    if let Some((head, payload)) = &rest {
        pieces.bytes(head);
        whole = pieces.client(payload, 4);
    }
    if whole {
        let early = acknowledges_first(tx);
        let ack = ack.map_or(&[][..], |ack| &ack[..]);
        let (front, back) = tx.messages.unsent();
        for bytes in if early { [ack, front, back] } else { [front, back, ack] } {
            pieces.bytes(bytes);
        }
    }
    if whole
        && pieces.free() > 1
        && let (Some(segment), Some(pushes)) = (fresh, &tx.pushes)
    {
        pieces.bytes(&segment.head);
        pieces.client(&pushes.payload(segment), 0);
    }
    (wire.send(&pieces), pieces.len())
}
