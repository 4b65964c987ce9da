//! The receiving half of a link: from the socket to the [`Sink`].
//!
//! Place in the data flow: [`super::Tcp`] calls [`Stage::read`] for a link that may have something. Small frames come in
//! many at a time through one staging buffer per device and are handed to the sink as slices of it. The
//! payload of a push segment that has only begun to arrive is received straight into the memory that the sink names,
//! and whatever follows it comes along in the same call.
//!
//! Invariants: between two reads a link keeps nothing but [`Rx`]: no bytes of it are left in the staging buffer, and no memory
//! of the sink's is kept. A link that is between frames holds no buffer. Every length was checked by
//! [`super::wire`] before it is used; a frame of a peer allocates at most one mailbox.
//!
//! Errors: `Closed` after a goodbye, `Gone` for an end of stream or a socket error, `Protocol` for nonsense.

use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weft_engine::mem::{self, Iov};
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::sys::{self, Pieces};
use super::wire::{self, Frame, HEAD_BYTES, MAILBOX_BYTES, PUSH_HEAD_BYTES};

/// Mailbox buffers that are kept for the next partial message.
const SPARE_MAILBOXES: usize = 8;

/// What a read asks for behind the rest of a push: a few small frames. Were it more, the beginning of the next segment would
/// be copied twice.
const BEHIND_PUSH_BYTES: usize = 1024;

/// Where a link stands in its incoming stream.
#[derive(Debug)]
pub(super) enum Rx {
    /// Within a header, of which the first `have` bytes have come.
    Head { bytes: [u8; PUSH_HEAD_BYTES], have: u8 },
    /// Within a message of `need` bytes, of which the first `have` bytes are in `buffer`.
    Body { buffer: Box<[u8]>, have: usize, need: usize },
    /// Within a push segment's payload: `left` bytes to come, the next one for `offset`.
    Push { window: u64, offset: u64, left: usize },
}

impl Rx {
    /// Between frames.
    pub(super) const START: Self = Self::Head { bytes: [0; PUSH_HEAD_BYTES], have: 0 };
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
    /// Mailbox buffers of messages that have become whole.
    spare: Vec<Box<[u8]>>,
    /// System calls made.
    pub(super) calls: u64,
}

impl Stage {
    /// A staging buffer of `bytes` bytes (at least one mailbox would be sensible; anything above a header works).
    pub(super) fn new(bytes: usize) -> Self {
        Self { bytes: vec![0; bytes.max(BEHIND_PUSH_BYTES)].into_boxed_slice(), spare: Vec::new(), calls: 0 }
    }

    /// One system call on a link's socket, and everything that follows from what it brought.
    /// `None`: nothing was there.
    #[inline]
    pub(super) fn read<S: Sink>(
        &mut self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        self.calls += 1;
        match rx {
            Rx::Head { .. } => self.read_frames(fd, rx, link, sink),
            Rx::Body { .. } => self.read_body(fd, rx, link, sink),
            Rx::Push { .. } => self.read_push(fd, rx, link, sink),
        }
    }

    /// Gives back what a link that has ended held.
    pub(super) fn recycle(&mut self, rx: Rx) {
        if let Rx::Body { buffer, .. } = rx
            && self.spare.len() < SPARE_MAILBOXES
        {
            self.spare.push(buffer);
        }
    }

    fn read_frames<S: Sink>(
        &mut self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Head { bytes, have } = rx else { return Err(LinkError::Protocol) };
        let have = usize::from(*have);
        self.bytes[..have].copy_from_slice(&bytes[..have]);
        let Some(n) = check(sys::receive_one(fd, &mut self.bytes[have..]))? else { return Ok(None) };
        let more = have + n == self.bytes.len();
        *rx = parse(&self.bytes[..have + n], &mut self.spare, link, sink)?;
        Ok(Some(Progress { bytes: n, more }))
    }

    /// The rest of a message, and what follows it.
    fn read_body<S: Sink>(
        &mut self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Body { buffer, have, need } = rx else { return Err(LinkError::Protocol) };
        let mut pieces = Pieces::new();
        pieces.buffer(&mut buffer[*have..*need]);
        pieces.buffer(&mut self.bytes);
        let asked = pieces.len();
        let Some(n) = check(sys::receive(fd, &mut pieces))? else { return Ok(None) };
        let into = n.min(*need - *have);
        *have += into;
        if *have == *need {
            sink.message(link, &buffer[..*need]);
            self.recycle(std::mem::replace(rx, Rx::START));
            *rx = parse(&self.bytes[..n - into], &mut self.spare, link, sink)?;
        }
        Ok(Some(Progress { bytes: n, more: n == asked }))
    }

    /// The rest of a segment's payload straight into the sink's memory, and what follows it.
    fn read_push<S: Sink>(
        &mut self,
        fd: BorrowedFd<'_>,
        rx: &mut Rx,
        link: LinkId,
        sink: &mut S,
    ) -> Result<Option<Progress>, LinkError> {
        let Rx::Push { window, offset, left } = rx else { return Err(LinkError::Protocol) };
        let placed = sink.place(link, *window, *offset, *left);
        let placed = placed.as_deref().map(|iov| mem::slice(iov, 0, *left)).unwrap_or_default();
        let mut pieces = Pieces::new();
        // If the memory has more pieces than one call takes, nothing may be received behind them.
        let whole = pieces.client(&placed, 1);
        let room = pieces.len();
        if whole {
            pieces.buffer(&mut self.bytes[..BEHIND_PUSH_BYTES]);
        }
        let asked = pieces.len();
        let n = match check(sys::receive(fd, &mut pieces)) {
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
        let staged = n - n.min(room);
        let thrown_away = into - into.min(room);
        if *left == 0 {
            *rx = parse(&self.bytes[thrown_away..staged], &mut self.spare, link, sink)?;
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
        Err(_) => Err(LinkError::Gone),
    }
}

/// Hands over the whole frames in `bytes`; returns how far the frame that is cut off has come.
#[inline]
fn parse<S: Sink>(mut bytes: &[u8], spare: &mut Vec<Box<[u8]>>, link: LinkId, sink: &mut S) -> Result<Rx, LinkError> {
    loop {
        let Some((head, rest)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return Ok(cut_head(bytes)) };
        match wire::decode(head).ok_or(LinkError::Protocol)? {
            Frame::Message(len) => {
                let Some((message, rest)) = rest.split_at_checked(len) else {
                    return Ok(cut_message(rest, len, spare));
                };
                sink.message(link, message);
                bytes = rest;
            }
            Frame::Push(payload) => {
                let Some((head, rest)) = bytes.split_first_chunk::<PUSH_HEAD_BYTES>() else {
                    return Ok(cut_head(bytes));
                };
                let (window, offset) = wire::decode_push(head, payload).ok_or(LinkError::Protocol)?;
                let (here, rest) = rest.split_at(payload.min(rest.len()));
                if !here.is_empty() {
                    scatter(here, link, window, offset, sink);
                }
                if here.len() < payload {
                    let offset = offset + here.len() as u64;
                    return Ok(Rx::Push { window, offset, left: payload - here.len() });
                }
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

fn cut_message(bytes: &[u8], need: usize, spare: &mut Vec<Box<[u8]>>) -> Rx {
    let mut buffer = spare.pop().unwrap_or_else(|| vec![0; MAILBOX_BYTES].into_boxed_slice());
    buffer[..bytes.len()].copy_from_slice(bytes);
    Rx::Body { buffer, have: bytes.len(), need }
}
