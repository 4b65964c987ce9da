//! The sending half of a link: from `send` and `push` to the socket.
//!
//! Place in the data flow: [`super::Tcp`] calls [`Writer::message`] and [`Writer::push`] for the engine, and
//! [`Writer::pump`] when it flushes or when a socket can take more. The first message after a flush or poll goes
//! to the kernel at once, in one vectored call from the client's memory. What follows before the next flush is gathered
//! in the link's queue and leaves in one call; a message too long to be worth a copy takes the queue
//! with it. A push is cut into segments, each sent from the client's memory behind its header; between two
//! segments the queue has its turn, so that a message never waits for more than one segment.
//!
//! Invariants: a frame that has begun is finished before another begins. While `segment` is set it is one of the front
//! bulk's. `blocked` is set exactly while the socket has refused bytes and no writability has been seen since. The queue is bounded
//! by `queue_bytes` plus one frame, the bulks by [`BULKS`]. A link with nothing to send holds no buffer.
//!
//! Errors: a socket error sets `broken`; the receiving half then finds the cause and ends the link.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkId};

use super::sys::{self, PIECES, Pieces};
use super::wire::{self, HEAD_BYTES, MAILBOX_BYTES, PUSH_HEAD_BYTES};

/// Pushes that may wait on one link.
const BULKS: usize = 1024;
/// A message at least so long is written from where it lies, together with what was gathered before it.
const DIRECT_BYTES: usize = 8 * 1024;
/// Gathered bytes from which on a queue is written without waiting for the flush.
const FLUSH_BYTES: usize = 64 * 1024;
/// Queues kept for the next link that gathers.
const SPARE_QUEUES: usize = 8;

/// A push that waits for its bytes to leave.
#[derive(Debug)]
struct Bulk {
    iov: IovList,
    window: u64,
    /// Window offset of the first byte.
    offset: u64,
    total: usize,
    /// Bytes in segments that have left.
    at: usize,
    ctx: u64,
}

/// The segment that has begun to leave.
#[derive(Clone, Copy, Debug)]
struct Segment {
    head: [u8; PUSH_HEAD_BYTES],
    /// Where its payload begins in the push.
    at: usize,
    /// Payload bytes.
    len: usize,
    /// Bytes of header and payload that have left.
    sent: usize,
}

/// What a link still has to send.
#[derive(Debug, Default)]
pub(super) struct Tx {
    queue: Vec<u8>,
    /// Bytes at the front of the queue that have left.
    sent: usize,
    bulks: VecDeque<Bulk>,
    segment: Option<Segment>,
    /// The round in which a message last went out at once.
    round: u32,
    /// The socket takes no more for now.
    pub(super) blocked: bool,
    /// Writability is being watched.
    pub(super) armed: bool,
    /// The link is on the device's list of those to be flushed.
    pub(super) dirty: bool,
    /// The socket has failed.
    pub(super) broken: bool,
    /// Bytes have been handed to the kernel since somebody looked whether the peer acknowledges them.
    pub(super) unproven: bool,
}

impl Tx {
    /// Whether everything accepted has been handed to the kernel.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.queued() == 0 && self.bulks.is_empty()
    }

    /// Bytes gathered and not yet handed to the kernel.
    #[inline]
    pub(super) fn queued(&self) -> usize {
        self.queue.len() - self.sent
    }

    /// Pushes that wait.
    pub(super) fn pushes(&self) -> usize {
        self.bulks.len()
    }

    /// Lets go of all pushes; returns their contexts in order.
    pub(super) fn abandon(&mut self) -> impl Iterator<Item = u64> {
        self.segment = None;
        std::mem::take(&mut self.bulks).into_iter().map(|bulk| bulk.ctx)
    }
}

/// What became of a pump.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pumped {
    /// Nothing is left, or nothing can be done before the socket reports something.
    Rest,
    /// The budget is used up; the socket would take more.
    More,
}

/// What all links of a device share for sending.
pub(super) struct Writer {
    /// Counts flushes and polls.
    pub(super) round: u32,
    /// Pushes whose last byte has been handed to the kernel.
    pub(super) done: Vec<(LinkId, u64)>,
    /// System calls made.
    pub(super) calls: u64,
    spare: Vec<Vec<u8>>,
    segment_bytes: usize,
    queue_bytes: usize,
}

impl Writer {
    pub(super) fn new(segment_bytes: usize, queue_bytes: usize) -> Self {
        Self {
            round: 1,
            done: Vec::new(),
            calls: 0,
            spare: Vec::new(),
            segment_bytes: segment_bytes.clamp(1, wire::SEGMENT_MAX_BYTES),
            queue_bytes: queue_bytes.max(MAILBOX_BYTES + HEAD_BYTES),
        }
    }

    /// Takes one message. Without an error it has been handed to the kernel, or copied.
    #[inline]
    pub(super) fn message(&mut self, fd: BorrowedFd<'_>, tx: &mut Tx, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let len = head.len() + mem::total_len(body);
        assert!(len <= MAILBOX_BYTES, "a message of {len} bytes was given to a device whose mailbox is smaller");
        if tx.broken {
            return Err(Full);
        }
        let free = !tx.blocked && tx.segment.is_none() && body.len() + 3 <= PIECES;
        let at_once = len >= DIRECT_BYTES || (tx.round != self.round && tx.queued() == 0);
        if free && at_once {
            return self.message_now(fd, tx, head, body, len);
        }
        if tx.queued() + HEAD_BYTES + len > self.queue_bytes {
            return Err(Full);
        }
        self.gather(tx, head, body, len, 0);
        if tx.queued() >= FLUSH_BYTES && !tx.blocked {
            self.pump(fd, LinkId(u32::MAX), tx, 1);
        }
        Ok(())
    }

    /// Writes what was gathered, and the message behind it, in one call.
    #[inline]
    fn message_now(
        &mut self,
        fd: BorrowedFd<'_>,
        tx: &mut Tx,
        head: &[u8],
        body: &[Iov],
        len: usize,
    ) -> Result<(), Full> {
        let frame_head = wire::message_head(len);
        let frame_bytes = HEAD_BYTES + len;
        let (outcome, asked) = if tx.queued() == 0 && frame_bytes <= 256 {
            send_short::<256>(fd, &frame_head, head, body)
        } else if tx.queued() == 0 && frame_bytes <= 2048 {
            send_short::<2048>(fd, &frame_head, head, body)
        } else {
            let mut pieces = Pieces::new();
            pieces.bytes(&tx.queue[tx.sent..]);
            pieces.bytes(&frame_head);
            pieces.bytes(head);
            pieces.client(body, 0);
            (sys::send(fd, &pieces), pieces.len())
        };
        let n = self.judge(tx, outcome, asked).ok_or(Full)?;
        let before = tx.queued().min(n);
        self.advance_queue(tx, before);
        let sent = n - before;
        if sent == HEAD_BYTES + len {
            tx.round = self.round;
            return Ok(());
        }
        if sent == 0 && tx.queued() + HEAD_BYTES + len > self.queue_bytes {
            return Err(Full);
        }
        self.gather(tx, head, body, len, sent);
        Ok(())
    }

    /// Takes one push, which begins to leave at the next pump.
    pub(super) fn push(
        &mut self,
        link: LinkId,
        tx: &mut Tx,
        window: u64,
        offset: u64,
        src: &[Iov],
        ctx: u64,
    ) -> Result<(), Full> {
        if tx.broken || tx.bulks.len() >= BULKS {
            return Err(Full);
        }
        let total = mem::total_len(src);
        if total == 0 {
            self.done.push((link, ctx));
        } else {
            tx.bulks.push_back(Bulk { iov: src.into(), window, offset, total, at: 0, ctx });
        }
        Ok(())
    }

    /// Hands to the kernel what it takes, up to about `budget` bytes and one segment.
    pub(super) fn pump(&mut self, fd: BorrowedFd<'_>, link: LinkId, tx: &mut Tx, mut budget: usize) -> Pumped {
        while !tx.blocked && !tx.broken {
            if tx.is_empty() {
                self.release(tx);
                break;
            }
            if budget == 0 {
                return Pumped::More;
            }
            let fresh = self.next_segment(tx);
            let (outcome, asked) = write_once(fd, tx, fresh.as_ref());
            let Some(n) = self.judge(tx, outcome, asked) else { break };
            self.advance(link, tx, n, fresh);
            budget = budget.saturating_sub(n);
        }
        Pumped::Rest
    }

    /// The segment that begins next, behind the one under way if there is one.
    fn next_segment(&self, tx: &Tx) -> Option<Segment> {
        let front = tx.bulks.front()?;
        let at = tx.segment.map_or(front.at, |segment| segment.at + segment.len);
        let (bulk, at) = if at < front.total { (front, at) } else { (tx.bulks.get(1)?, 0) };
        let len = (bulk.total - at).min(self.segment_bytes);
        let head = wire::push_head(len, bulk.window, bulk.offset.wrapping_add(at as u64));
        Some(Segment { head, at, len, sent: 0 })
    }

    /// Accounts for `n` bytes that have left: of the segment under way, then of the queue, then of a segment that
    /// begins (in the order in which [`write_once`] wrote them).
    fn advance(&mut self, link: LinkId, tx: &mut Tx, n: usize, fresh: Option<Segment>) {
        let old = tx.segment.map_or(0, |segment| segment.left().min(n));
        self.advance_segment(link, tx, old);
        let queued = tx.queued().min(n - old);
        self.advance_queue(tx, queued);
        let new = n - old - queued;
        if new > 0 {
            tx.segment = fresh;
            self.advance_segment(link, tx, new);
        }
    }

    fn advance_segment(&mut self, link: LinkId, tx: &mut Tx, n: usize) {
        let Some(segment) = tx.segment.as_mut() else { return };
        segment.sent += n;
        if segment.left() > 0 {
            return;
        }
        let end = segment.at + segment.len;
        tx.segment = None;
        let Some(bulk) = tx.bulks.front_mut() else { return };
        bulk.at = end;
        if bulk.at == bulk.total {
            self.done.push((link, bulk.ctx));
            tx.bulks.pop_front();
        }
    }

    #[inline]
    fn advance_queue(&mut self, tx: &mut Tx, n: usize) {
        tx.sent += n;
        if tx.sent == tx.queue.len() {
            self.release(tx);
        } else if tx.sent >= FLUSH_BYTES {
            tx.queue.drain(..tx.sent);
            tx.sent = 0;
        }
    }

    /// Takes the buffer of an empty queue back.
    #[inline]
    fn release(&mut self, tx: &mut Tx) {
        if tx.queue.capacity() > 0 && tx.queued() == 0 {
            let mut queue = std::mem::take(&mut tx.queue);
            tx.sent = 0;
            if self.spare.len() < SPARE_QUEUES {
                queue.clear();
                self.spare.push(queue);
            }
        }
    }

    /// Copies a frame, but for its first `skip` bytes, to the queue.
    fn gather(&mut self, tx: &mut Tx, head: &[u8], body: &[Iov], len: usize, skip: usize) {
        if tx.queue.capacity() == 0 {
            tx.queue = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(4096));
        }
        let frame_head = wire::message_head(len);
        tx.queue.extend_from_slice(frame_head.get(skip..).unwrap_or_default());
        let skip = skip.saturating_sub(HEAD_BYTES);
        tx.queue.extend_from_slice(head.get(skip..).unwrap_or_default());
        let skip = skip.saturating_sub(head.len());
        if skip == 0 {
            sys::append(&mut tx.queue, body);
        } else {
            sys::append(&mut tx.queue, &mem::slice(body, skip, usize::MAX));
        }
    }

    /// Bytes that a write of `asked` bytes brought on their way; `None` if the socket has failed.
    #[inline]
    fn judge(&mut self, tx: &mut Tx, outcome: Result<usize, Errno>, asked: usize) -> Option<usize> {
        self.calls += 1;
        match outcome {
            Ok(n) => {
                tx.unproven = true;
                tx.blocked = n < asked;
                Some(n)
            }
            Err(Errno::AGAIN) => {
                tx.blocked = true;
                Some(0)
            }
            Err(_) => {
                tx.broken = true;
                None
            }
        }
    }

    /// Everything that must still leave before a link may be closed, copied: the rest of the segment under way, the
    /// queue, and the goodbye. The link lets go of all pushes.
    pub(super) fn farewell(&mut self, tx: &mut Tx) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(tx.queued() + HEAD_BYTES);
        if let (Some(segment), Some(bulk)) = (tx.segment, tx.bulks.front()) {
            let (head, payload) = segment.rest(bulk);
            bytes.extend_from_slice(head);
            sys::append(&mut bytes, &payload);
        }
        bytes.extend_from_slice(&tx.queue[tx.sent..]);
        bytes.extend_from_slice(&wire::goodbye());
        tx.abandon().for_each(drop);
        tx.sent = tx.queue.len();
        self.release(tx);
        bytes
    }
}

impl Segment {
    /// Bytes of header and payload that have not left.
    fn left(&self) -> usize {
        PUSH_HEAD_BYTES + self.len - self.sent
    }

    /// What has not left.
    fn rest(&self, bulk: &Bulk) -> (&[u8], IovList) {
        let payload_sent = self.sent.saturating_sub(PUSH_HEAD_BYTES);
        let payload = mem::slice(&bulk.iov, self.at + payload_sent, self.len - payload_sent);
        (self.head.get(self.sent..).unwrap_or_default(), payload)
    }
}

/// Sends a frame of at most `MAX` bytes from one buffer: for the kernel to take pieces together costs more than the copy.
#[inline]
fn send_short<const MAX: usize>(
    fd: BorrowedFd<'_>,
    frame_head: &[u8; HEAD_BYTES],
    head: &[u8],
    body: &[Iov],
) -> (Result<usize, Errno>, usize) {
    let mut frame = [0; MAX];
    let (front, rest) = frame.split_at_mut(HEAD_BYTES);
    front.copy_from_slice(frame_head);
    let (middle, rest) = rest.split_at_mut(head.len());
    middle.copy_from_slice(head);
    let n = HEAD_BYTES + head.len() + mem::gather(body, rest);
    (sys::send_one(fd, &frame[..n]), n)
}

/// One vectored write: the segment under way, the queue, and the segment `fresh`, which begins. Returns how many bytes it
/// tried to write.
fn write_once(fd: BorrowedFd<'_>, tx: &Tx, fresh: Option<&Segment>) -> (Result<usize, Errno>, usize) {
    let mut pieces = Pieces::new();
    // Nothing may follow a segment whose pieces did not all find a place.
    let mut whole = true;
    if let (Some(segment), Some(bulk)) = (&tx.segment, tx.bulks.front()) {
        let (head, payload) = segment.rest(bulk);
        pieces.bytes(head);
        whole = pieces.client(&payload, 1);
    }
    if whole {
        pieces.bytes(&tx.queue[tx.sent..]);
    }
    // The front bulk is over where the segment under way was its last.
    let over = |bulk: &Bulk| tx.segment.is_some_and(|segment| segment.at + segment.len == bulk.total);
    let bulk = tx.bulks.front().filter(|bulk| !over(bulk)).or_else(|| tx.bulks.get(1));
    if whole
        && pieces.free() > 1
        && let (Some(segment), Some(bulk)) = (fresh, bulk)
    {
        let (head, payload) = segment.rest(bulk);
        pieces.bytes(head);
        pieces.client(&payload, 0);
    }
    (sys::send(fd, &pieces), pieces.len())
}
