//! One end of a link that is up: the two rings, the peer's doorbell, the life line, and the bulk transfers.
//!
//! Place in the data flow: `Shm` owns the links and decides which one to poll. All code that concerns a
//! single link is here.
//!
//! Invariants:
//! - After each publication, the link reads the peer's `polled` word; after each release of space, it reads
//!   the peer's `wants_space` word. `doorbell.rs` explains why this suffices.
//! - Pushes of a link are sent in order, and its transfers by address run in order. Both queues are bounded.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags};
use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkError, LinkId, Share, Sharing, Sink};
use weft_os::ForkClosedFd;

use super::cma::Span;
use super::doorbell::Bell;
use super::lag::{Lag, low_bits};
use super::lines::{Lines, cycles};
use super::ring::{Next, PIECE_BYTES, Record, Rx, Tx};
use super::segment::{Mapping, Role};
use super::share::SHARE_BYTES;
use super::sleep_protocol;
use super::sync::{AtomicU32, Ordering};
use super::transfer::{CopyJob, Help, Slots, Step};

/// Maximum number of pushes, and of transfers by address, that one link queues.
const QUEUE_DEPTH: usize = 64;
/// A poll of a link ends after this number of bytes. A shorter record counts as `RECORD_BYTES`, so a poll
/// takes at most 32 records.
const BATCH_BYTES: usize = 64 * 1024;
const RECORD_BYTES: usize = BATCH_BYTES / 32;
/// Maximum number of bytes that one link pushes, and copies by address, in its turn. A system call that copies less
/// takes longer for each byte.
pub(super) const TURN_BYTES: usize = 512 * 1024;
/// The unit of the time without records after which a ring is trimmed, and the number of units: one second.
pub(super) const TRIM_UNIT_NS: u64 = 125_000_000;
const TRIM_AFTER: u16 = 8;
/// Values of a side's `closed` word: closed in an orderly way, and failed.
const CLOSED: u32 = 1;
const FAILED: u32 = 2;

/// A push in progress.
struct Push {
    window: u64,
    offset: u64,
    src: IovList,
    sent_bytes: usize,
    total_bytes: usize,
    ctx: u64,
}

impl Push {
    /// Sends up to about `budget` bytes as far as the ring has room. Returns their number.
    fn advance(&mut self, tx: &mut Tx, budget: usize) -> usize {
        let mut moved = 0;
        while moved < budget && !self.is_over() {
            let len = (self.total_bytes - self.sent_bytes).min(PIECE_BYTES);
            let from = mem::slice(&self.src, self.sent_bytes, len);
            let at = self.offset.wrapping_add(self.sent_bytes as u64);
            if tx.push(self.window, at, &from, len).is_err() {
                break;
            }
            self.sent_bytes += len;
            moved += len;
        }
        moved
    }

    fn is_over(&self) -> bool {
        self.sent_bytes == self.total_bytes
    }
}

/// The state of a transfer by address after its start.
pub(super) enum Started {
    /// The transfer is queued. The peer may help with it.
    Queued(Option<Share>),
    /// The transfer has ended.
    Ended(Result<(), LinkError>),
}

/// The result of a poll of a link.
pub(super) struct Polled {
    /// Number of sink calls.
    pub(super) calls: usize,
    /// The ring is empty.
    pub(super) drained: bool,
    /// The peer broke the protocol.
    pub(super) error: Option<LinkError>,
}

/// The parts from which a link is made.
pub(super) struct Parts {
    pub(super) map: Mapping,
    /// The rings in the segment, from [`rings`].
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) role: Role,
    pub(super) bell: Bell,
    /// The slot of this link in the bell.
    pub(super) slot: u32,
    pub(super) pid: i32,
    /// This side's publications need a fence of their own.
    pub(super) must_fence: bool,
    /// The peer's memory can be accessed by address.
    pub(super) direct: bool,
}

/// Bulk transfers in progress.
struct Bulk {
    pushes: VecDeque<Push>,
    transfers: VecDeque<CopyJob>,
    helps: VecDeque<Help>,
    slots: Slots,
}

impl Bulk {
    /// No transfers. `lap` is the lap of the last shared transfer.
    fn new(lap: u16) -> Self {
        let slots = Slots::new(lap);
        Self { pushes: VecDeque::new(), transfers: VecDeque::new(), helps: VecDeque::new(), slots }
    }

    fn is_empty(&self) -> bool {
        self.pushes.is_empty() && self.transfers.is_empty() && self.helps.is_empty()
    }
}

/// One end of a link.
pub(super) struct Link {
    tx: Tx,
    rx: Rx,
    /// The segment with the rings. It is unmapped together with them.
    map: Mapping,
    role: Role,
    must_fence: bool,
    bell: Bell,
    slot: u32,
    socket: ForkClosedFd,
    pid: i32,
    direct: bool,
    /// Allocated when needed, and freed by [`Link::release_bulk`].
    bulk: Option<Box<Bulk>>,
    /// The lap of the last shared transfer while `bulk` is `None`.
    lap: u16,
    /// The number of executed messages that the peer has confirmed last.
    confirmed: u32,
    /// The peer broke the rules of shared transfers.
    violated: bool,
    /// Size of a send in bytes that found no room.
    refused_bytes: Option<NonZeroU32>,
    /// Whether the link is in the device's list of hot links.
    pub(super) hot: bool,
    /// Whether the link is in the device's list of links with bulk transfers.
    pub(super) busy: bool,
    /// Whether the link is in the device's list of links that wait for space.
    pub(super) waiting: bool,
    /// The low bits of the number of the last poll that found a record.
    last_active: u32,
    /// The low bits of the position of the outgoing ring, and of the time since which it is there ([`Link::trim`]).
    unmoved: (u16, u16),
    lag: Lag,
    /// The peer has hung up. The ring is drained before `down`.
    pub(super) hung_up: bool,
}

// Each peer has a link, and the allocator adds eight bytes and rounds up to a multiple of sixteen.
const _: () = assert!(size_of::<Link>() <= 200);

/// This side's ends of the rings of a segment. The link must keep them together with the segment.
pub(super) fn rings(map: &Mapping, role: Role, lines: u32) -> std::io::Result<(Tx, Rx)> {
    map.populate(0, 1)?;
    // SAFETY: the link keeps the mapping, and uses the rings only while the mapping exists.
    let outgoing = unsafe { Lines::new(map, role, lines) };
    // SAFETY: the link keeps the mapping, and uses the rings only while the mapping exists.
    let incoming = unsafe { Lines::new(map, role.other(), lines) };
    Ok((Tx::new(outgoing, role)?, Rx::new(incoming, role)?))
}

impl Link {
    /// Makes a link whose life line is `socket`.
    pub(super) fn new(parts: Parts, socket: ForkClosedFd) -> Self {
        Self {
            tx: parts.tx,
            rx: parts.rx,
            map: parts.map,
            role: parts.role,
            must_fence: parts.must_fence,
            bell: parts.bell,
            slot: parts.slot,
            socket,
            pid: parts.pid,
            direct: parts.direct,
            bulk: None,
            lap: 0,
            confirmed: 0,
            violated: false,
            refused_bytes: None,
            hot: false,
            busy: false,
            waiting: false,
            last_active: 0,
            unmoved: (0, 0),
            lag: Lag::default(),
            hung_up: false,
        }
    }

    #[cfg(test)]
    pub(super) fn bell(&self) -> &Bell {
        &self.bell
    }

    #[cfg(test)]
    pub(super) fn segment(&self) -> &Mapping {
        &self.map
    }

    #[cfg(test)]
    pub(super) fn set_pid(&mut self, pid: i32) {
        self.pid = pid;
    }

    /// Whether transfers by address are possible.
    pub(super) fn is_direct(&self) -> bool {
        self.direct
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Size in bytes of the memory that both ends have mapped.
    pub(super) fn segment_bytes(&self) -> usize {
        self.map.len()
    }

    /// Releases memory of the outgoing ring if nothing was sent for a while. `now` is in units of [`TRIM_UNIT_NS`].
    #[allow(clippy::cast_possible_truncation)]
    pub(super) fn trim(&mut self, now: u64) {
        let (at, now) = (self.tx.position() as u16, now as u16);
        if self.unmoved.0 != at || self.has_bulk() {
            self.unmoved = (at, now);
        } else if now.wrapping_sub(self.unmoved.1) >= TRIM_AFTER {
            self.tx.trim();
        }
    }

    /// Whether the peer belongs to this process.
    pub(super) fn is_of(&self, process: Pid) -> bool {
        self.pid == process.as_raw_pid()
    }

    /// Whether the peer's process is alive, by system calls. A child that the peer made without fork(3) may keep the
    /// life line open, so the process itself is looked at, too.
    pub(super) fn is_alive(&self) -> bool {
        // A signal may interrupt the call, which then has no result.
        let has = |fd, event| {
            matches!(
                rustix::event::poll(&mut [PollFd::from_borrowed_fd(fd, event)], Some(&Timespec::default())),
                Ok(1..)
            )
        };
        if has(self.socket.as_fd(), PollFlags::RDHUP) {
            return false;
        }
        // A process that is not visible from this pid namespace has no number.
        let Some(pid) = Pid::from_raw(self.pid) else { return true };
        match rustix::process::pidfd_open(pid, PidfdFlags::empty()) {
            Ok(process) => !has(process.as_fd(), PollFlags::IN),
            Err(errno) => errno != Errno::SRCH,
        }
    }

    /// Whether bytes must be copied by address.
    pub(super) fn copies(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| !(bulk.transfers.is_empty() && bulk.helps.is_empty()))
    }

    /// The reason why the link is broken.
    pub(super) fn broken(&self) -> Option<LinkError> {
        if self.violated { Some(LinkError::Protocol) } else { self.tx.broken() }
    }

    /// Sends a message, or records that there was no room.
    #[inline(always)]
    pub(super) fn send(&mut self, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        match self.tx.send(head, body) {
            Ok(()) => {
                self.lag.reset();
                self.notify_peer();
                Ok(())
            }
            Err(Full) => {
                let bytes = u32::try_from(head.len() + mem::total_len(body));
                self.refused_bytes = bytes.ok().and_then(NonZeroU32::new);
                Err(Full)
            }
        }
    }

    /// Starts a push: sends what has room in the ring, unless others wait, and queues the rest. Returns whether all
    /// has left.
    pub(super) fn push(&mut self, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<bool, Full> {
        let waiting = self.bulk.as_ref().map_or(0, |bulk| bulk.pushes.len());
        if waiting >= QUEUE_DEPTH {
            return Err(Full);
        }
        let total_bytes = mem::total_len(src);
        let mut push = Push { window, offset, src: src.into(), sent_bytes: 0, total_bytes, ctx };
        if waiting == 0 && push.advance(&mut self.tx, total_bytes) > 0 {
            self.notify_peer();
        }
        let is_over = push.is_over();
        if !is_over {
            self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap))).pushes.push_back(push);
        }
        Ok(is_over)
    }

    /// Starts a transfer by address. A short one is made at once, unless others are queued. A long one is
    /// queued, and may be shared with a peer that is awake: waking a peer would take longer than its help
    /// saves.
    pub(super) fn transfer(&mut self, span: Span, sharing: Sharing, ctx: u64) -> Result<Started, Full> {
        if self.bulk.as_ref().is_some_and(|bulk| bulk.transfers.len() >= QUEUE_DEPTH) {
            return Err(Full);
        }
        if span.total_bytes() < SHARE_BYTES && !self.has_bulk() {
            let copied = if self.is_over() { Ok(()) } else { span.copy(self.pid, 0, span.total_bytes()) };
            // Bytes that were copied from a peer that has closed are undefined.
            return Ok(Started::Ended(if self.is_over() { copied.and(Err(self.end_reason())) } else { copied }));
        }
        let awake = self.peer_side().polled.0.load(Ordering::Relaxed) != 0;
        let bulk = self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap)));
        let mut transfer = CopyJob::new(span, ctx);
        let mut share = None;
        if awake && sharing == Sharing::Allowed && transfer.total_bytes() >= SHARE_BYTES {
            share = transfer.offer(&self.map, self.role, &mut bulk.slots);
            if share.is_none() {
                // A slot will be free soon, and then the peer can help with this transfer, too.
                return Err(Full);
            }
        }
        bulk.transfers.push_back(transfer);
        Ok(Started::Queued(share))
    }

    /// Queues help with a transfer of the peer.
    pub(super) fn assist(&mut self, span: Span, share: Share, ctx: u64) -> Result<(), Full> {
        let helps = &mut self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap))).helps;
        if helps.len() >= QUEUE_DEPTH {
            return Err(Full);
        }
        helps.push_back(Help::new(span, self.role.other(), share, ctx));
        Ok(())
    }

    /// Whether pushes or transfers are in progress.
    pub(super) fn has_bulk(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| !bulk.is_empty())
    }

    /// Frees the memory of ended bulk transfers.
    pub(super) fn release_bulk(&mut self) {
        if let Some(bulk) = self.bulk.take_if(|bulk| bulk.is_empty()) {
            self.lap = bulk.slots.lap();
        }
    }

    /// Whether a copy by address, or its completion, can proceed without the peer.
    pub(super) fn can_copy(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| {
            !bulk.helps.is_empty() || bulk.transfers.iter().any(|transfer| transfer.can_step(&self.map))
        })
    }

    /// Whether the peer has published a record that was not taken, or a confirmation.
    #[inline(always)]
    pub(super) fn ready(&self) -> bool {
        self.rx.ready() || self.peer_side().confirmed.0.load(Ordering::Relaxed) != self.confirmed
    }

    /// Number of polls until poll number `poll`, modulo 2^32, since the last one that found a record.
    #[inline]
    pub(super) fn quiet_polls(&self, poll: u64) -> u32 {
        low_bits(poll).wrapping_sub(self.last_active)
    }

    /// Makes poll number `poll` the last that found a record.
    pub(super) fn touch(&mut self, poll: u64) {
        self.last_active = low_bits(poll);
    }

    /// Publishes the number of messages that this side has executed.
    #[inline(always)]
    pub(super) fn confirm(&mut self, number: u32) {
        self.map.side(self.role).confirmed.0.store(number, Ordering::Release);
        self.notify_peer();
    }

    /// Takes records that have arrived, in a bounded portion.
    #[inline(never)]
    pub(super) fn poll<S: Sink>(&mut self, id: LinkId, sink: &mut S) -> Polled {
        let mut polled = Polled { calls: 0, drained: false, error: None };
        if self.lag.pauses(cycles) {
            return polled;
        }
        let mut taken_bytes = 0;
        // Read before the ring, so that all messages from before the confirmation are taken before it.
        let confirmed = self.peer_side().confirmed.0.load(Ordering::Acquire);
        while taken_bytes < BATCH_BYTES {
            match self.rx.peek_line() {
                Next::Line(message) => {
                    taken_bytes += RECORD_BYTES;
                    polled.calls += 1;
                    sink.message(id, message);
                    self.rx.advance(1);
                    continue;
                }
                Next::Nothing => {
                    polled.drained = true;
                    break;
                }
                Next::Other => {}
            }
            let need = match self.rx.peek() {
                Ok(Some((Record::Message(message), need))) => {
                    taken_bytes += message.len().max(RECORD_BYTES);
                    if message.len() > RECORD_BYTES {
                        self.lag.reset();
                    }
                    polled.calls += 1;
                    sink.message(id, message);
                    need
                }
                Ok(Some((Record::Push { window, offset, data }, need))) => {
                    taken_bytes += data.len().max(RECORD_BYTES);
                    self.lag.reset();
                    polled.calls += 2;
                    if let Some(to) = sink.place(id, window, offset, data.len()) {
                        mem::scatter(&to, 0, data);
                    }
                    sink.placed(id, window, offset, data.len());
                    need
                }
                Ok(None) => {
                    polled.drained = true;
                    break;
                }
                Err(why) => {
                    polled.error = Some(why);
                    break;
                }
            };
            self.rx.advance(need);
        }
        if !polled.drained {
            self.lag.lags();
        } else if polled.calls > 0 {
            self.lag.caught_up(polled.calls, cycles);
        }
        if polled.drained && confirmed != self.confirmed {
            self.confirmed = confirmed;
            polled.calls += 1;
            sink.confirmed(id, confirmed);
        }
        self.rx.release();
        if self.rx.take_released() && sleep_protocol::is_set(&self.peer_side().wants_space.0, self.must_fence) {
            self.bell.ring(self.slot, self.socket.as_fd());
        }
        polled
    }

    /// Advances pushes and transfers by up to `budget` bytes each. Returns the number of sink calls and of
    /// bytes.
    pub(super) fn bulk<S: Sink>(&mut self, id: LinkId, sink: &mut S, budget: usize) -> (usize, usize) {
        let budget = budget.min(TURN_BYTES);
        let (mut calls, mut moved) = (0, 0);
        // The bulk state is taken out of the link while it is advanced.
        let Some(mut bulk) = self.bulk.take() else { return (calls, moved) };
        while moved < budget
            && let Some(push) = bulk.pushes.front_mut()
        {
            let sent = push.advance(&mut self.tx, budget - moved);
            moved += sent;
            if push.is_over() {
                let ctx = push.ctx;
                bulk.pushes.pop_front();
                sink.done(id, ctx, Ok(()));
                calls += 1;
            } else if sent == 0 {
                break;
            }
            self.notify_peer();
        }
        let pushed = moved;
        let (copies, copied) = self.copy(&mut bulk, id, sink, budget);
        self.bulk = Some(bulk);
        (calls + copies, pushed + copied)
    }

    /// Advances transfers by address until the link has ended: the own ones first, then those that this side
    /// helps with.
    fn copy<S: Sink>(&mut self, bulk: &mut Bulk, id: LinkId, sink: &mut S, budget: usize) -> (usize, usize) {
        let (mut calls, mut moved, mut at) = (0, 0, 0);
        while moved < budget
            && let Some(transfer) = bulk.transfers.get_mut(at)
            && !self.is_over()
        {
            match transfer.step(self.pid, &self.map, &mut bulk.slots) {
                // A system call counts as at least 1 KiB.
                Step::Moved(bytes) => moved += bytes.max(1024),
                Step::Waits => at += 1,
                Step::Ended(bytes, result) => {
                    moved += bytes.max(1024);
                    let ctx = transfer.ctx;
                    bulk.transfers.remove(at);
                    // Bytes that were copied from a peer that has closed are undefined.
                    sink.done(id, ctx, if self.is_over() { result.and(Err(self.end_reason())) } else { result });
                    calls += 1;
                }
                Step::Broken => return self.violate(calls, moved),
            }
        }
        while moved < budget
            && let Some(help) = bulk.helps.front_mut()
            && !self.is_over()
        {
            match help.step(self.pid, &self.map) {
                Step::Moved(bytes) => {
                    moved += bytes.max(1024);
                    // The owner may have gone to sleep until the help is done.
                    self.notify_peer();
                }
                Step::Ended(_, copied) => {
                    let ctx = help.ctx;
                    bulk.helps.pop_front();
                    if copied.is_err() {
                        self.notify_peer();
                    }
                    sink.done(id, ctx, Ok(()));
                    calls += 1;
                }
                Step::Waits | Step::Broken => return self.violate(calls, moved),
            }
        }
        (calls, moved)
    }

    /// The peer's statement about the end of the link; 0: none.
    fn peer_closed(&self) -> u32 {
        self.peer_side().closed.0.load(Ordering::Acquire)
    }

    /// Whether the peer's memory must not be accessed, because the peer has ended the link or has hung up.
    fn is_over(&self) -> bool {
        self.hung_up || self.peer_closed() != 0
    }

    #[cold]
    fn violate(&mut self, calls: usize, moved: usize) -> (usize, usize) {
        self.violated = true;
        (calls, moved)
    }

    /// Ends all bulk transfers, and returns their contexts.
    pub(super) fn take_bulk(&mut self) -> Vec<u64> {
        let Some(bulk) = self.bulk.take() else { return Vec::new() };
        let pushes = bulk.pushes.iter().map(|push| push.ctx);
        let transfers = bulk.transfers.iter().map(|transfer| transfer.ctx);
        pushes.chain(transfers).chain(bulk.helps.iter().map(|help| help.ctx)).collect()
    }

    /// Rings the peer's doorbell after a publication, unless the peer checks this ring in every poll.
    #[inline(always)]
    fn notify_peer(&self) {
        if !sleep_protocol::is_set(&self.peer_side().polled.0, self.must_fence) {
            self.bell.ring(self.slot, self.socket.as_fd());
        }
    }

    /// Wakes the peer if it sleeps. The caller has changed a word that the peer checks after it announces its sleep.
    pub(super) fn wake_sleeper(&self) {
        self.bell.ring_sleeper(self.slot, self.socket.as_fd());
    }

    /// Publishes whether this side checks the ring in every poll. Before the side relies on its doorbell, it
    /// must fence and check the ring once more.
    pub(super) fn set_polled(&self, polled: bool) {
        sleep_protocol::set(self.polled(), polled);
    }

    /// The word that publishes it.
    pub(super) fn polled(&self) -> &AtomicU32 {
        &self.map.side(self.role).polled.0
    }

    /// Publishes whether the peer must ring when it releases space.
    pub(super) fn set_wants_space(&self, wants: bool) {
        sleep_protocol::set(&self.map.side(self.role).wants_space.0, wants);
    }

    /// Whether a send or push waits for space in the outgoing ring.
    pub(super) fn wants_space(&self) -> bool {
        self.refused_bytes.is_some() || self.has_pushes()
    }

    /// Whether a waiting send or push could proceed now, or will never proceed. A waiting send is forgotten,
    /// because its caller is about to retry it.
    pub(super) fn has_wanted_space(&mut self) -> bool {
        if let Some(bytes) = self.refused_bytes
            && (self.tx.has_space(bytes.get() as usize) || self.broken().is_some())
        {
            self.refused_bytes = None;
            return true;
        }
        self.has_pushes() && (self.tx.has_push_space() || self.broken().is_some())
    }

    fn has_pushes(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| !bulk.pushes.is_empty())
    }

    /// Publishes an orderly end. The peer can still take the records in the ring.
    pub(super) fn publish_closed(&self) {
        self.map.side(self.role).closed.0.store(CLOSED, Ordering::Release);
    }

    /// Publishes a failure of the link. Bytes that the peer copies from now on are undefined.
    pub(super) fn publish_failed(&self) {
        self.map.side(self.role).closed.0.store(FAILED, Ordering::Release);
    }

    /// The reason of the link's end, after the peer has hung up.
    pub(super) fn end_reason(&self) -> LinkError {
        if self.peer_closed() == CLOSED { LinkError::Closed } else { LinkError::Gone }
    }

    #[inline(always)]
    fn peer_side(&self) -> &super::segment::SideBlock {
        self.map.side(self.role.other())
    }
}
