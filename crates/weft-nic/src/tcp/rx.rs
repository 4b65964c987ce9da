//! The receiving half of a link: from the socket to the [`Sink`].
//!
//! Place in the data flow: [`super::Tcp`] calls [`StagingBuffer::read_all`] for a link whose socket may have bytes.
//! Small frames are received many at a time through one staging buffer per device, and passed to the sink as slices of
//! it. The payload of a push segment that has arrived in part is received directly into the sink's memory. The frames
//! after it are received by the same call.
//!
//! [`Intake`] counts the bytes of frames. Acknowledgements tell the peer this count, and the stream continues there
//! when the connection breaks. Acknowledgements themselves do not count, because they are not sent again.
//!
//! Invariants: between two reads a link keeps only its [`Intake`]. None of its bytes are in the staging buffer, and no
//! memory of the sink is referenced. A link that is between frames holds no buffer. [`super::wire`] checks every length
//! before it is used. A peer's frame allocates at most one mailbox.
//!
//! Errors: `Closed` after a goodbye, `Gone` for an end of stream or a socket error, `Protocol` for a frame that breaks
//! a rule.

use rustix::io::Errno;
use weft_engine::mem::{self, Iov};
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::bugs::planted;
use super::stream::Wire;
use super::sys::Pieces;
use super::wire::{self, ACK_BYTES, Frame, HEAD_BYTES, MAILBOX_BYTES, PUSH_HEAD_BYTES};

/// Limit of bytes that one poll receives from a link while others wait.
pub(super) const READ_BUDGET_BYTES: usize = 1024 * 1024;
/// The size of a device's staging buffer.
const STAGE_BYTES: usize = 128 * 1024;
/// The length of the first read of a poll, if any frame may follow: an eager message of the default size fits.
const LOOK_BYTES: usize = 20 * 1024;
/// The length of a read after the payload of a segment. Small messages may follow, or the next segment, of which as
/// little as possible should be copied.
const LOOK_BEHIND_BYTES: usize = 1024;
/// Limit of unused mailbox buffers.
const SPARE_MAILBOXES: usize = 8;
/// Bytes of messages after which an acknowledgement is sent.
const TELL_BYTES: i32 = 256 * 1024;

/// The state of a link's incoming stream.
#[derive(Debug)]
pub(super) enum Rx {
    /// Within a header; the first `have` bytes have been received.
    Head { bytes: [u8; PUSH_HEAD_BYTES], have: u8 },
    /// Within a message of `need` bytes; the first `have` bytes are in `buffer`.
    Body { buffer: Box<[u8; MAILBOX_BYTES]>, have: usize, need: usize },
    /// Within a push segment's payload; `left` bytes are missing, and the next one belongs to `offset`.
    Push { window: u64, offset: u64, left: usize, ack_requested: bool },
}

impl Rx {
    /// Whether a frame has begun and is incomplete.
    #[inline]
    pub(super) fn within(&self) -> bool {
        !matches!(self, Self::Head { have: 0, .. })
    }

    /// The state between frames.
    pub(super) const START: Self = Self::Head { bytes: [0; PUSH_HEAD_BYTES], have: 0 };
}

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) rx: Rx,
    /// Bytes received from the stream, including those of an incomplete header.
    taken: u64,
    /// Bytes of messages that the device has not acknowledged. The number is negative after an acknowledgement that was
    /// sent while half of one from the peer had arrived: the half counted as a message until then.
    unacked: i32,
    /// The number of unacknowledged bytes at which the device acts: one, or [`TELL_BYTES`] while the agenda has the
    /// link.
    act_at: i32,
}

impl Intake {
    pub(super) const START: Self = Self { rx: Rx::START, taken: 0, unacked: 0, act_at: 1 };

    /// Accounts for received bytes. Returns whether the device must act upon the unacknowledged bytes.
    #[inline]
    pub(super) fn received(&mut self, bytes: usize) -> bool {
        self.taken += bytes as u64;
        // A read returns less than 2 GiB.
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let bytes = bytes as i32;
        self.unacked = self.unacked.saturating_add(bytes);
        self.unacked >= self.act_at
    }

    /// Corrects the account: some of the received bytes were acknowledgements, which are not part of the stream, or
    /// pushes, whose sender requests acknowledgements.
    pub(super) fn discount(&mut self, ack_info: &AckInfo) {
        // If the link ends, the bytes received together with the end have not been added.
        self.taken = self.taken.saturating_sub(ack_info.acks as u64);
        let others = i32::try_from(ack_info.acks + ack_info.pushed).unwrap_or(i32::MAX);
        self.unacked = self.unacked.saturating_sub(others);
    }

    /// Notes whether the agenda has the link, so that a timer acknowledges.
    pub(super) fn on_agenda(&mut self, listed: bool) {
        self.act_at = if listed { TELL_BYTES } else { 1 };
    }

    /// Whether the peer must get an acknowledgement now.
    pub(super) fn owes_ack_now(&self) -> bool {
        self.unacked >= TELL_BYTES
    }

    /// Whether received messages are unacknowledged.
    pub(super) fn owes_ack(&self) -> bool {
        self.unacked > 0
    }

    /// Notes that an acknowledgement of [`Self::position`] has been sent.
    pub(super) fn acknowledged(&mut self) {
        self.unacked = 0;
    }

    /// Bytes of memory for an incomplete message.
    pub(super) fn held_bytes(&self) -> usize {
        if let Rx::Body { .. } = self.rx { MAILBOX_BYTES } else { 0 }
    }

    /// The position at which the stream continues if the connection breaks now. An incomplete header is received again
    /// as a whole, because it may belong to a frame that is not part of the stream.
    pub(super) fn position(&self) -> u64 {
        match self.rx {
            Rx::Head { have, .. } => self.taken - u64::from(have),
            _ => self.taken,
        }
    }

    /// Prepares for another connection, on which the stream continues at [`Self::position`].
    pub(super) fn rewind(&mut self) {
        self.taken = self.position();
        if let Rx::Head { .. } = self.rx {
            self.rx = planted!(Bug::HeaderKept, Rx::START, return);
        }
    }
}

/// The state of the peer's stream when this side closed the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct CloseMark {
    position: u64,
    /// Missing bytes of the frame at the position.
    left: usize,
}

impl Intake {
    /// The current state, for a link whose later bytes are discarded.
    pub(super) fn close_mark(&self) -> CloseMark {
        let left = match self.rx {
            Rx::Head { .. } => 0,
            Rx::Body { have, need, .. } => need - have,
            Rx::Push { left, .. } => left,
        };
        CloseMark { position: self.position(), left }
    }

    /// Prepares for another connection, on which the stream continues where it was when the link was closed. Bytes that
    /// were discarded since then must not count as received. Returns the former state.
    pub(super) fn rewind_to(&mut self, close_mark: CloseMark) -> Rx {
        self.taken = close_mark.position;
        let rx = match close_mark.left {
            0 => Rx::START,
            // No peer has this window.
            left => Rx::Push { window: 0, offset: 0, left, ack_requested: false },
        };
        std::mem::replace(&mut self.rx, rx)
    }
}

/// Information for the device from frames that do not go to the sink.
#[derive(Debug, Default)]
pub(super) struct AckInfo {
    /// The position up to which the peer has received this side's stream.
    pub(super) ack: Option<u64>,
    /// The peer requests an acknowledgement.
    pub(super) ack_requested: bool,
    /// Bytes of acknowledgements.
    acks: usize,
    /// Bytes of pushes that were placed.
    pushed: usize,
}

/// The result of one read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Bytes received.
    pub(super) bytes: usize,
    /// The buffers are full, so more bytes are probable.
    pub(super) more: bool,
}

/// The device's staging buffer.
pub(super) struct StagingBuffer {
    bytes: Box<[u8]>,
    notes: Notes,
    /// System calls made.
    calls: u64,
}

/// The state that frames leave in the device.
#[derive(Default)]
struct Notes {
    /// The length of the next first read. It is short after a long push, so that the next push is received into its
    /// place, and longer if that has cut a message.
    look: usize,
    /// Unused mailbox buffers.
    spare: Vec<Box<[u8; MAILBOX_BYTES]>>,
    ack_info: Option<AckInfo>,
}

impl Notes {
    #[cold]
    fn ack_info(&mut self) -> &mut AckInfo {
        self.ack_info.get_or_insert_default()
    }
}

impl StagingBuffer {
    pub(super) fn new() -> Self {
        let notes = Notes { look: LOOK_BYTES, ..Notes::default() };
        Self { bytes: vec![0; STAGE_BYTES].into_boxed_slice(), notes, calls: 0 }
    }

    /// System calls made.
    pub(super) fn calls(&self) -> u64 {
        self.calls
    }

    /// Whether [`Self::ack_info`] returns anything.
    #[inline]
    pub(super) fn has_ack_info(&self) -> bool {
        self.notes.ack_info.is_some()
    }

    /// The information from frames that did not go to the sink since the last call.
    pub(super) fn ack_info(&mut self) -> Option<AckInfo> {
        self.notes.ack_info.take()
    }

    /// Reads the available bytes, within the budget. Returns their number, and the error with which the link ends, if
    /// any.
    #[inline(always)]
    pub(super) fn read_all<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> (usize, Option<LinkError>) {
        let mut bytes = 0;
        let end = loop {
            match self.read(wire, rx, bytes > 0, link, sink) {
                Ok(Some(progress)) => {
                    bytes += progress.bytes;
                    // Bytes that an encrypted connection has received are read beyond the budget: the socket does not
                    // announce them.
                    if !progress.more || (bytes >= READ_BUDGET_BYTES && !wire.has_more()) {
                        break None;
                    }
                }
                Ok(None) => break None,
                Err(why) => break Some(why),
            }
        };
        (bytes, end)
    }

    /// Makes one receive call on a link's socket, and processes the bytes. `again`: an earlier call in this poll filled
    /// its buffers. `None`: no bytes were available.
    #[inline]
    pub(super) fn read<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        again: bool,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        self.calls += 1;
        match rx {
            Rx::Head { .. } => self.read_frames(wire, rx, again, link, sink),
            Rx::Body { .. } => self.read_body(wire, rx, link, sink),
            Rx::Push { .. } => self.read_push(wire, rx, link, sink),
        }
    }

    /// Releases the memory of a link that has ended.
    pub(super) fn recycle(&mut self, rx: Rx) {
        if let Rx::Body { buffer, .. } = rx
            && self.notes.spare.len() < SPARE_MAILBOXES
        {
            self.notes.spare.push(buffer);
        }
    }

    // Every poll of an idle socket calls this function, so its inlining must not depend on the compiler.
    #[inline(always)]
    fn read_frames<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        again: bool,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Head { bytes, have } = rx else { return Err(LinkError::Protocol) };
        let have = usize::from(*have);
        self.bytes[..have].copy_from_slice(&bytes[..have]);
        let far = if again { self.bytes.len() } else { self.notes.look };
        let Some(n) = check(wire.receive_one(&mut self.bytes[have..far]))? else { return Ok(None) };
        let more = have + n == far;
        *rx = parse(&self.bytes[..have + n], &mut self.notes, link, sink)?;
        Ok(Some(Progress { bytes: n, more }))
    }

    /// Receives the rest of a message, and the frames after it.
    fn read_body<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Body { buffer, have, need } = rx else { return Err(LinkError::Protocol) };
        let mut pieces = Pieces::new();
        pieces.buffer(&mut buffer[*have..*need]);
        pieces.buffer(&mut self.bytes[..LOOK_BYTES]);
        let asked = pieces.len();
        let Some(n) = check(wire.receive(&mut pieces))? else { return Ok(None) };
        let into = n.min(*need - *have);
        *have += into;
        if *have == *need {
            sink.message(link, &buffer[..*need]);
            self.recycle(std::mem::replace(rx, Rx::START));
            *rx = parse(&self.bytes[..n - into], &mut self.notes, link, sink)?;
        }
        Ok(Some(Progress { bytes: n, more: n == asked }))
    }

    /// Receives the rest of a segment's payload directly into the sink's memory, and the frames after it.
    fn read_push<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Push { window, offset, left, ack_requested } = rx else { return Err(LinkError::Protocol) };
        let placed = sink.place(link, *window, *offset, *left);
        let placed = placed.as_deref().map(|iov| mem::slice(iov, 0, *left)).unwrap_or_default();
        let mut pieces = Pieces::new();
        // If the memory has more pieces than one call accepts, no other bytes may be received after them.
        let whole = pieces.client(&placed, 1);
        let room = pieces.len();
        if whole {
            pieces.buffer(&mut self.bytes[..LOOK_BEHIND_BYTES]);
        }
        let asked = pieces.len();
        let n = match check(wire.receive(&mut pieces)) {
            Ok(Some(n)) => n,
            nothing => {
                // The sink must learn that its memory is no longer used.
                sink.placed(link, *window, *offset, 0);
                return nothing.map(|_| None);
            }
        };
        let into = n.min(*left);
        sink.placed(link, *window, *offset, into);
        *offset += into as u64;
        *left -= into;
        let ack_info = self.notes.ack_info();
        ack_info.pushed += into;
        ack_info.ack_requested |= *left == 0 && *ack_requested;
        let staged = n - n.min(room);
        let thrown_away = into - into.min(room);
        if *left == 0 {
            *rx = parse(&self.bytes[thrown_away..staged], &mut self.notes, link, sink)?;
        }
        Ok(Some(Progress { bytes: n, more: n == asked }))
    }
}

/// Converts the outcome of a receive call: a number of bytes, none available, or the end of the link.
#[inline]
pub(super) fn check(outcome: Result<usize, Errno>) -> Result<Option<usize>, LinkError> {
    match outcome {
        Ok(0) => Err(LinkError::Gone),
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN) => Ok(None),
        // A record was not genuine.
        Err(Errno::BADMSG) => Err(LinkError::Protocol),
        // The client's memory is not accessible; another connection would not change that.
        Err(Errno::FAULT) => Err(LinkError::Access),
        // There was no memory for a record.
        Err(Errno::NOMEM) => Err(LinkError::Resources),
        Err(_) => Err(LinkError::Gone),
    }
}

/// Passes the complete frames in `bytes` to the sink. Returns the state within the incomplete frame at the end.
#[inline]
fn parse<S: Sink>(mut bytes: &[u8], notes: &mut Notes, link: LinkId, sink: &mut S) -> Result<Rx, LinkError> {
    loop {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(cut_head(bytes)) };
        match wire::decode(head).ok_or(LinkError::Protocol)? {
            Frame::Message(len) => {
                let Some((message, rest)) = rest.split_at_checked(len) else {
                    notes.look = if len >= LOOK_BYTES { STAGE_BYTES } else { LOOK_BYTES.max(notes.look) };
                    return cut_message(rest, len, &mut notes.spare, link, sink);
                };
                sink.message(link, message);
                bytes = rest;
            }
            Frame::Push(payload, ack_requested) => {
                let Some((head, rest)) = bytes.split_first_chunk::<PUSH_HEAD_BYTES>() else {
                    return Ok(cut_head(bytes));
                };
                let (window, offset) = wire::decode_push(head, payload).ok_or(LinkError::Protocol)?;
                if payload >= LOOK_BYTES {
                    notes.look = LOOK_BEHIND_BYTES;
                }
                let (here, rest) = rest.split_at(payload.min(rest.len()));
                if !here.is_empty() {
                    scatter(here, link, window, offset, sink);
                }
                if here.len() < payload {
                    let offset = offset + here.len() as u64;
                    return Ok(Rx::Push { window, offset, left: payload - here.len(), ack_requested });
                }
                if ack_requested {
                    notes.ack_info().ack_requested = true;
                }
                bytes = rest;
            }
            Frame::Ack => {
                let Some((whole, rest)) = bytes.split_first_chunk::<ACK_BYTES>() else { return Ok(cut_head(bytes)) };
                let ack_info = notes.ack_info();
                ack_info.ack = Some(wire::decode_ack(whole));
                ack_info.acks += ACK_BYTES;
                bytes = rest;
            }
            Frame::Goodbye => return Err(LinkError::Closed),
        }
    }
}

/// Copies the part of a push that is in the staging buffer.
fn scatter<S: Sink>(bytes: &[u8], link: LinkId, window: u64, offset: u64, sink: &mut S) {
    let placed = sink.place(link, window, offset, bytes.len());
    mem::scatter(placed.as_deref().unwrap_or(&[] as &[Iov]), 0, bytes);
    sink.placed(link, window, offset, bytes.len());
}

fn cut_head(bytes: &[u8]) -> Rx {
    let mut kept = [0; PUSH_HEAD_BYTES];
    kept[..bytes.len()].copy_from_slice(bytes);
    // An incomplete header is shorter than 24 bytes.
    #[allow(clippy::cast_possible_truncation)]
    let have = bytes.len() as u8;
    Rx::Head { bytes: kept, have }
}

fn cut_message<S: Sink>(
    bytes: &[u8],
    need: usize,
    spare: &mut Vec<Box<[u8; MAILBOX_BYTES]>>,
    link: LinkId,
    sink: &mut S,
) -> Result<Rx, LinkError> {
    let mut buffer = match spare.pop() {
        Some(buffer) => buffer,
        None => {
            sink.holds_more(link);
            new_mailbox().ok_or(LinkError::Resources)?
        }
    };
    buffer[..bytes.len()].copy_from_slice(bytes);
    Ok(Rx::Body { buffer, have: bytes.len(), need })
}

/// Allocates a mailbox; `None`: there is no memory.
#[cold]
fn new_mailbox() -> Option<Box<[u8; MAILBOX_BYTES]>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(MAILBOX_BYTES).ok()?;
    bytes.resize(MAILBOX_BYTES, 0);
    bytes.into_boxed_slice().try_into().ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;

    use proptest::prelude::*;
    use weft_engine::mem::{IovList, Owned};
    use weft_engine::nic::LinkUp;

    const LINK: LinkId = LinkId(7);

    /// The received messages and pushed bytes, each in order.
    struct Received {
        messages: Vec<Vec<u8>>,
        pushed: Vec<(u64, u64, usize)>,
        memory: Owned,
        stored: Vec<u8>,
        short: usize,
    }

    impl Sink for Received {
        weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
        fn up(&mut self, _: LinkId, _: LinkUp) {}
        fn down(&mut self, _: LinkId, _: LinkError) {}
        fn message(&mut self, _: LinkId, bytes: &[u8]) {
            self.messages.push(bytes.to_vec());
        }
        fn place(&mut self, _: LinkId, window: u64, _: u64, len: usize) -> Option<IovList> {
            if window == 0 {
                return None;
            }
            // The memory has two pieces, and may be too short.
            let len = if self.short > 0 { len.min(self.short) } else { len };
            Some(mem::slice(
                &[self.memory.iov().slice(0, len / 2), self.memory.iov().slice(len / 2, len - len / 2)],
                0,
                len,
            ))
        }
        fn placed(&mut self, _: LinkId, window: u64, offset: u64, len: usize) {
            if len > 0 {
                self.pushed.push((window, offset, len));
                let kept = if self.short > 0 { len.min(self.short) } else { len };
                self.stored.extend(&mem::to_vec(&[self.memory.iov().slice(0, kept)])[..kept]);
            }
        }
        fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
    }

    fn received(short: usize) -> Received {
        Received {
            messages: Vec::new(),
            pushed: Vec::new(),
            memory: Owned::new(vec![0; wire::SEGMENT_MAX_BYTES]),
            stored: Vec::new(),
            short,
        }
    }

    /// Feeds bytes in chunks. Returns the error with which the link ended, if any.
    fn feed(bytes: &[u8], chunks: &[usize], received: &mut Received) -> Option<LinkError> {
        let (mut near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let far = std::os::fd::AsFd::as_fd(&far);
        let (mut stage, mut rx) = (StagingBuffer::new(), Rx::START);
        let mut rest = bytes;
        let mut sizes = chunks.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            near.write_all(now).unwrap();
            rest = later;
            let mut again = false;
            loop {
                match stage.read(far, &mut rx, again, LINK, received) {
                    Ok(None) => break,
                    Ok(Some(_)) => again = true,
                    Err(why) => return Some(why),
                }
            }
        }
        None
    }

    #[derive(Clone, Debug)]
    enum Item {
        Message(usize),
        Push(u64, usize),
    }

    fn item() -> impl Strategy<Value = Item> {
        let size = prop_oneof![0usize..40, 0..5000usize, 60_000..=MAILBOX_BYTES];
        let push = (0u64..3, prop_oneof![1usize..40, 1..5000usize, 1..100_000usize]);
        prop_oneof![size.prop_map(Item::Message), push.prop_map(|(window, len)| Item::Push(window, len))]
    }

    fn byte(n: usize) -> u8 {
        (n * 31 % 251) as u8
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

        /// The frames do not depend on the boundaries of the reads.
        #[test]
        fn frames_survive_any_cut(
            items in prop::collection::vec(item(), 1..12),
            chunks in prop::collection::vec(prop_oneof![1usize..64, 1..30_000usize, 30_000..100_000usize], 1..8),
        ) {
            let mut bytes = Vec::new();
            let (mut messages, mut pushed) = (Vec::new(), Vec::new());
            let mut total = 0;
            for item in &items {
                match *item {
                    Item::Message(len) => {
                        let body: Vec<u8> = (0..len).map(byte).collect();
                        bytes.extend_from_slice(&wire::message_head(len));
                        bytes.extend_from_slice(&body);
                        messages.push(body);
                    }
                    Item::Push(window, len) => {
                        bytes.extend_from_slice(&wire::push_head(len, window, total, total % 2 == 0));
                        bytes.extend((0..len).map(byte));
                        pushed.push((window, total, len));
                        total += len as u64;
                    }
                }
            }
            let mut chunks = chunks;
            // A large chunk limits the system calls for a stream of megabytes.
            chunks.push(bytes.len() / 200 + 1);
            let mut received = received(0);
            prop_assert_eq!(feed(&bytes, &chunks, &mut received), None);
            prop_assert_eq!(received.messages, messages);
            // The pieces of each push follow each other without a gap.
            let mut pieces = received.pushed.into_iter();
            let mut stored = &received.stored[..];
            for (window, offset, len) in pushed {
                let mut at = offset;
                while at < offset + len as u64 {
                    let (w, o, n) = pieces.next().unwrap();
                    prop_assert_eq!((w, o), (window, at));
                    at += n as u64;
                    let (now, later) = stored.split_at(n);
                    if window != 0 {
                        let first = (o - offset) as usize;
                        prop_assert!(now.iter().enumerate().all(|(i, &b)| b == byte(first + i)));
                    }
                    stored = later;
                }
                prop_assert_eq!(at, offset + len as u64);
            }
            prop_assert_eq!(pieces.next(), None);
        }

        /// If the memory is too short, the rest of the push is discarded, and the stream continues after it.
        #[test]
        fn short_memory_loses_nothing_else(len in 1usize..60_000, short in 1usize..50, chunk in 20usize..20_000) {
            let mut bytes = wire::push_head(len, 1, 0, false).to_vec();
            bytes.extend((0..len).map(byte));
            bytes.extend_from_slice(&wire::message_head(5));
            bytes.extend_from_slice(b"after");
            let mut received = received(short);
            prop_assert_eq!(feed(&bytes, &[chunk], &mut received), None);
            prop_assert_eq!(received.pushed.iter().map(|piece| piece.2).sum::<usize>(), len);
            prop_assert_eq!(received.messages, vec![b"after".to_vec()]);
        }

        /// Random bytes are messages, or end the link.
        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 8..400), chunk in 1usize..100) {
            let mut received = received(0);
            let end = feed(&bytes, &[chunk], &mut received);
            prop_assert!(matches!(end, None | Some(LinkError::Protocol | LinkError::Closed)), "{:?}", end);
        }
    }
}
