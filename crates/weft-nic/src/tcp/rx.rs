//! The receiving half of a link: from the socket to the [`Sink`].
//!
//! Place in the data flow: [`super::Tcp`] calls [`Stage::read`] for a link that may have something. Small
//! frames come in many at a time through one staging buffer per device and are handed to the sink as slices
//! of it. The payload of a push segment that has only begun to arrive is received straight into the memory
//! that the sink names, and whatever follows it comes along in the same call.
//!
//! The bytes of frames are counted ([`Intake`]): that is what the peer is told with acknowledgements, and
//! where the stream goes on when the connection breaks. Acknowledgements themselves do not count, because
//! nobody repeats them.
//!
//! Invariants: between two reads a link keeps nothing but its [`Intake`]: no bytes of it are left in the
//! staging buffer, and no memory of the sink's is kept. A link that is between frames holds no buffer. Every
//! length was checked by [`super::wire`] before it is used; a frame of a peer allocates at most one mailbox.
//!
//! Errors: `Closed` after a goodbye, `Gone` for an end of stream or a socket error, `Protocol` for nonsense.

use rustix::io::Errno;
use weft_engine::mem::{self, Iov};
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::bugs::planted;
use super::stream::Wire;
use super::sys::Pieces;
use super::wire::{self, ACK_BYTES, Frame, HEAD_BYTES, MAILBOX_BYTES, PUSH_HEAD_BYTES};

/// Bytes that one link may bring in one poll while others wait.
pub(super) const READ_BUDGET_BYTES: usize = 1024 * 1024;
/// The staging buffer of a device.
const STAGE_BYTES: usize = 128 * 1024;
/// How far the first read of a poll looks when it may meet anything: an eager message of the default size fits.
const LOOK_BYTES: usize = 20 * 1024;
/// How far a read looks behind the payload of a segment, or after one: small messages may stand there, or the next
/// segment, of which as little as possible shall be copied.
const LOOK_BEHIND_BYTES: usize = 1024;
/// Mailbox buffers that are kept for the next partial message.
const SPARE_MAILBOXES: usize = 8;
/// Bytes of messages after which the peer is told that they have come.
const TELL_BYTES: i32 = 256 * 1024;

/// Where a link stands in its incoming stream.
#[derive(Debug)]
pub(super) enum Rx {
    /// Within a header, of which the first `have` bytes have come.
    Head { bytes: [u8; PUSH_HEAD_BYTES], have: u8 },
    /// Within a message of `need` bytes, of which the first `have` bytes are in `buffer`.
    Body { buffer: Box<[u8; MAILBOX_BYTES]>, have: usize, need: usize },
    /// Within a push segment's payload: `left` bytes to come, the next one for `offset`.
    Push { window: u64, offset: u64, left: usize, ack_wanted: bool },
}

impl Rx {
    /// Whether more bytes of a frame that has begun must come.
    #[inline]
    pub(super) fn within(&self) -> bool {
        !matches!(self, Self::Head { have: 0, .. })
    }

    /// Between frames.
    pub(super) const START: Self = Self::Head { bytes: [0; PUSH_HEAD_BYTES], have: 0 };
}

/// The receiving half of a link.
#[derive(Debug)]
pub(super) struct Intake {
    pub(super) rx: Rx,
    /// Bytes taken from the stream so far, with those of a header that has only begun.
    taken: u64,
    /// Bytes of messages that the peer does not know to have come. Negative after an acknowledgement that was sent
    /// while half of one from the peer had come, which counted as a message until then.
    unacked: i32,
    /// The number of those bytes at which the device acts: one, or [`TELL_BYTES`] while the agenda has the link.
    act_at: i32,
}

impl Intake {
    pub(super) const START: Self = Self { rx: Rx::START, taken: 0, unacked: 0, act_at: 1 };

    /// Accounts for bytes that have come. Returns whether something is to be done about telling the peer.
    #[inline]
    pub(super) fn took(&mut self, bytes: usize) -> bool {
        self.taken += bytes as u64;
        // A read brings less than 2 GiB.
        #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
        let bytes = bytes as i32;
        self.unacked = self.unacked.saturating_add(bytes);
        self.unacked >= self.act_at
    }

    /// Corrects the account: what came was partly acknowledgements, which are not of the stream, and pushes,
    /// whose sender asks.
    pub(super) fn discount(&mut self, heard: &Heard) {
        // Where the link ends, what came with the end has not been added.
        self.taken = self.taken.saturating_sub(heard.acks as u64);
        let others = i32::try_from(heard.acks + heard.pushed).unwrap_or(i32::MAX);
        self.unacked = self.unacked.saturating_sub(others);
    }

    /// The agenda has the link from now on, or has it no more: the acknowledgement comes with time.
    pub(super) fn on_agenda(&mut self, listed: bool) {
        self.act_at = if listed { TELL_BYTES } else { 1 };
    }

    /// Whether the peer must get an acknowledgement now.
    pub(super) fn owes_much(&self) -> bool {
        self.unacked >= TELL_BYTES
    }

    /// Whether the peer keeps messages that have come.
    pub(super) fn owes(&self) -> bool {
        self.unacked > 0
    }

    /// An acknowledgement of [`Self::position`] has been sent.
    pub(super) fn told(&mut self) {
        self.unacked = 0;
    }

    /// Memory that a message takes of which a part has come.
    pub(super) fn held_bytes(&self) -> usize {
        if let Rx::Body { .. } = self.rx { MAILBOX_BYTES } else { 0 }
    }

    /// Where the stream goes on if the connection breaks now: a header that has only begun comes again whole,
    /// because what began may be no frame of the stream.
    pub(super) fn position(&self) -> u64 {
        match self.rx {
            Rx::Head { have, .. } => self.taken - u64::from(have),
            _ => self.taken,
        }
    }

    /// The connection has broken: the stream goes on at [`Self::position`].
    pub(super) fn rewind(&mut self) {
        self.taken = self.position();
        if let Rx::Head { .. } = self.rx {
            self.rx = planted!(Bug::HeaderKept, Rx::START, return);
        }
    }
}

/// How far the stream of the peer had come when our side closed the link.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heeded {
    position: u64,
    /// Bytes to come of the frame at the position.
    left: usize,
}

impl Intake {
    /// What comes from now on is thrown away.
    pub(super) fn heeded(&self) -> Heeded {
        let left = match self.rx {
            Rx::Head { .. } => 0,
            Rx::Body { have, need, .. } => need - have,
            Rx::Push { left, .. } => left,
        };
        Heeded { position: self.position(), left }
    }

    /// The connection has broken, and what came since then was thrown away: the stream goes on there, or else
    /// it would count as taken. Returns where it stood.
    pub(super) fn rewind_to(&mut self, heeded: Heeded) -> Rx {
        self.taken = heeded.position;
        let rx = match heeded.left {
            0 => Rx::START,
            // A window that nobody has.
            left => Rx::Push { window: 0, offset: 0, left, ack_wanted: false },
        };
        std::mem::replace(&mut self.rx, rx)
    }
}

/// What was found between the frames that go to the sink.
#[derive(Debug, Default)]
pub(super) struct Heard {
    /// The peer has so many bytes of our stream.
    pub(super) ack: Option<u64>,
    /// The peer waits for an acknowledgement.
    pub(super) ack_wanted: bool,
    /// Bytes of acknowledgements.
    acks: usize,
    /// Bytes of pushes that went to their place.
    pushed: usize,
}

/// What one read brought.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// Bytes received.
    pub(super) bytes: usize,
    /// The buffers were filled: there is probably more.
    pub(super) more: bool,
}

/// The device's staging buffer.
pub(super) struct Stage {
    bytes: Box<[u8]>,
    notes: Notes,
    /// System calls made.
    pub(super) calls: u64,
}

/// What frames leave behind in the device.
#[derive(Default)]
struct Notes {
    /// How far the next first read looks: little after a long push (what comes of the next one shall be received into
    /// its place), further when that has cut a message.
    look: usize,
    /// Mailbox buffers of messages that have become whole.
    spare: Vec<Box<[u8; MAILBOX_BYTES]>>,
    heard: Option<Heard>,
}

impl Notes {
    #[cold]
    fn heard(&mut self) -> &mut Heard {
        self.heard.get_or_insert_default()
    }
}

impl Stage {
    pub(super) fn new() -> Self {
        let notes = Notes { look: LOOK_BYTES, ..Notes::default() };
        Self { bytes: vec![0; STAGE_BYTES].into_boxed_slice(), notes, calls: 0 }
    }

    /// Whether [`Self::heard`] has anything.
    #[inline]
    pub(super) fn has_heard(&self) -> bool {
        self.notes.heard.is_some()
    }

    /// What has been found beside frames for the sink since the last call.
    pub(super) fn heard(&mut self) -> Option<Heard> {
        self.notes.heard.take()
    }

    /// Reads what there is, within the budget. Gives the bytes that came, and why the link ends, if it does.
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
                    // What has come through an encrypted connection is taken all the same: the socket does
                    // not tell of it.
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

    /// One system call on a link's socket, and everything that follows from what it brought. `again`: an earlier
    /// one in this poll filled all it had. `None`: nothing was there.
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

    /// Gives back what a link that has ended held.
    pub(super) fn recycle(&mut self, rx: Rx) {
        if let Rx::Body { buffer, .. } = rx
            && self.notes.spare.len() < SPARE_MAILBOXES
        {
            self.notes.spare.push(buffer);
        }
    }

    // Every look at a socket that has nothing comes here, so it is not left to the compiler whether it is a call.
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

    /// The rest of a message, and what follows it.
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

    /// The rest of a segment's payload straight into the sink's memory, and what follows it.
    fn read_push<W: Wire, S: Sink>(
        &mut self,
        wire: W,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Push { window, offset, left, ack_wanted } = rx else { return Err(LinkError::Protocol) };
        let placed = sink.place(link, *window, *offset, *left);
        let placed = placed.as_deref().map(|iov| mem::slice(iov, 0, *left)).unwrap_or_default();
        let mut pieces = Pieces::new();
        // If the memory has more pieces than one call takes, nothing may be received behind them.
        let whole = pieces.client(&placed, 1);
        let room = pieces.len();
        if whole {
            pieces.buffer(&mut self.bytes[..LOOK_BEHIND_BYTES]);
        }
        let asked = pieces.len();
        let n = match check(wire.receive(&mut pieces)) {
            Ok(Some(n)) => n,
            nothing => {
                // Whoever was asked for memory is told that it is not used any more.
                sink.placed(link, *window, *offset, 0);
                return nothing.map(|_| None);
            }
        };
        let into = n.min(*left);
        sink.placed(link, *window, *offset, into);
        *offset += into as u64;
        *left -= into;
        let heard = self.notes.heard();
        heard.pushed += into;
        heard.ack_wanted |= *left == 0 && *ack_wanted;
        let staged = n - n.min(room);
        let thrown_away = into - into.min(room);
        if *left == 0 {
            *rx = parse(&self.bytes[thrown_away..staged], &mut self.notes, link, sink)?;
        }
        Ok(Some(Progress { bytes: n, more: n == asked }))
    }
}

/// Sorts the outcomes of a receive call: bytes, nothing, or the end of the link.
#[inline]
fn check(outcome: Result<usize, Errno>) -> Result<Option<usize>, LinkError> {
    match outcome {
        Ok(0) => Err(LinkError::Gone),
        Ok(n) => Ok(Some(n)),
        Err(Errno::AGAIN) => Ok(None),
        // A record that is not genuine.
        Err(Errno::BADMSG) => Err(LinkError::Protocol),
        // Memory that was offered to the peer is not there: no other connection would change that.
        Err(Errno::FAULT) => Err(LinkError::Access),
        // No memory for a record.
        Err(Errno::NOMEM) => Err(LinkError::Resources),
        Err(_) => Err(LinkError::Gone),
    }
}

/// Hands over the whole frames in `bytes`; returns how far the frame that is cut off has come.
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
            Frame::Push(payload, ack_wanted) => {
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
                    return Ok(Rx::Push { window, offset, left: payload - here.len(), ack_wanted });
                }
                if ack_wanted {
                    notes.heard().ack_wanted = true;
                }
                bytes = rest;
            }
            Frame::Ack => {
                let Some((whole, rest)) = bytes.split_first_chunk::<ACK_BYTES>() else { return Ok(cut_head(bytes)) };
                let heard = notes.heard();
                heard.ack = Some(wire::decode_ack(whole));
                heard.acks += ACK_BYTES;
                bytes = rest;
            }
            Frame::Goodbye => return Err(LinkError::Closed),
        }
    }
}

/// Part of a push that lies in the staging buffer already.
fn scatter<S: Sink>(bytes: &[u8], link: LinkId, window: u64, offset: u64, sink: &mut S) {
    let placed = sink.place(link, window, offset, bytes.len());
    mem::scatter(placed.as_deref().unwrap_or(&[] as &[Iov]), 0, bytes);
    sink.placed(link, window, offset, bytes.len());
}

fn cut_head(bytes: &[u8]) -> Rx {
    let mut kept = [0; PUSH_HEAD_BYTES];
    kept[..bytes.len()].copy_from_slice(bytes);
    // A whole header is never kept: it is shorter than 24 bytes.
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

/// `None`: there is no memory for it.
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

    /// What came, messages and pushed bytes each in order. Every other piece of a push finds room.
    struct Heard {
        messages: Vec<Vec<u8>>,
        pushed: Vec<(u64, u64, usize)>,
        memory: Owned,
        stored: Vec<u8>,
        short: usize,
    }

    impl Sink for Heard {
        fn up(&mut self, _: LinkId, _: LinkUp) {}
        fn down(&mut self, _: LinkId, _: LinkError) {}
        fn message(&mut self, _: LinkId, bytes: &[u8]) {
            self.messages.push(bytes.to_vec());
        }
        fn place(&mut self, _: LinkId, window: u64, _: u64, len: usize) -> Option<IovList> {
            if window == 0 {
                return None;
            }
            // In pieces, and now and then too short.
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

    fn heard(short: usize) -> Heard {
        Heard {
            messages: Vec::new(),
            pushed: Vec::new(),
            memory: Owned::new(vec![0; wire::SEGMENT_MAX_BYTES]),
            stored: Vec::new(),
            short,
        }
    }

    /// Feeds bytes in chunks; returns why the link ended, if it did.
    fn feed(bytes: &[u8], chunks: &[usize], heard: &mut Heard) -> Option<LinkError> {
        let (mut near, far) = UnixStream::pair().unwrap();
        far.set_nonblocking(true).unwrap();
        let far = std::os::fd::AsFd::as_fd(&far);
        let (mut stage, mut rx) = (Stage::new(), Rx::START);
        let mut rest = bytes;
        let mut sizes = chunks.iter().cycle();
        while !rest.is_empty() {
            let (now, later) = rest.split_at(rest.len().min(*sizes.next().unwrap()));
            near.write_all(now).unwrap();
            rest = later;
            let mut again = false;
            loop {
                match stage.read(far, &mut rx, again, LINK, heard) {
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

        /// However the stream is cut, the same frames come out of it.
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
            // Not a million system calls for a stream of megabytes.
            chunks.push(bytes.len() / 200 + 1);
            let mut heard = heard(0);
            prop_assert_eq!(feed(&bytes, &chunks, &mut heard), None);
            prop_assert_eq!(heard.messages, messages);
            // The pieces of each push follow each other without a gap.
            let mut pieces = heard.pushed.into_iter();
            let mut stored = &heard.stored[..];
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

        /// Memory that is too short swallows the rest, and the stream goes on behind it.
        #[test]
        fn short_memory_loses_nothing_else(len in 1usize..60_000, short in 1usize..50, chunk in 20usize..20_000) {
            let mut bytes = wire::push_head(len, 1, 0, false).to_vec();
            bytes.extend((0..len).map(byte));
            bytes.extend_from_slice(&wire::message_head(5));
            bytes.extend_from_slice(b"after");
            let mut heard = heard(short);
            prop_assert_eq!(feed(&bytes, &[chunk], &mut heard), None);
            prop_assert_eq!(heard.pushed.iter().map(|piece| piece.2).sum::<usize>(), len);
            prop_assert_eq!(heard.messages, vec![b"after".to_vec()]);
        }

        /// Nonsense ends the link, or is a message; nothing else happens.
        #[test]
        fn nonsense_is_refused(bytes in prop::collection::vec(any::<u8>(), 8..400), chunk in 1usize..100) {
            let mut heard = heard(0);
            let end = feed(&bytes, &[chunk], &mut heard);
            prop_assert!(matches!(end, None | Some(LinkError::Protocol | LinkError::Closed)), "{:?}", end);
        }
    }
}
