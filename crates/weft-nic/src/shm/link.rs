//! One end of a link that is up: the two rings, the peer's doorbell, the life line, and the bulk transfers.
//!
//! Place in the data flow: `Shm` owns the links and decides which one to look at; everything that concerns one
//! link only is here.
//!
//! Invariants: after every publication the peer's `polled` word is looked at, after every release of space its
//! `wants_space` word (see doorbell.rs for why that suffices). Pushes of a link are sent in order, and
//! its transfers by address run in order; both queues are bounded.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;
use weft_engine::mem::{self, Iov, IovList};
use weft_engine::nic::{Full, LinkError, LinkId, Share, Sink};
use weft_os::Unshared;

use super::cma::Span;
use super::doorbell::Bell;
use super::lines::Lines;
use super::ring::{PIECE_BYTES, Record, Rx, Tx};
use super::segment::{Mapping, Role};
use super::share::SHARE_BYTES;
use super::sleep_protocol;
use super::sync::{AtomicU32, Ordering};
use super::transfer::{Help, Slots, Step, Transfer};

/// Pushes, and transfers by address, that one link queues each.
const QUEUE_DEPTH: usize = 64;
/// Bytes after which a look at a link ends, and what a shorter record counts as: so it takes at most 32 of them.
const BATCH_BYTES: usize = 64 * 1024;
const RECORD_BYTES: usize = BATCH_BYTES / 32;
/// What one link pushes, and copies by address, before it is another link's turn.
pub(super) const TURN_BYTES: usize = 128 * 1024;
/// What a side says in its `closed` word: goodbye, or that the link has failed.
const CLOSED: u32 = 1;
const FAILED: u32 = 2;

/// A push under way.
struct Push {
    window: u64,
    offset: u64,
    src: IovList,
    sent_bytes: usize,
    total_bytes: usize,
    ctx: u64,
}

/// What became of a transfer by address.
pub(super) enum Started {
    /// It goes on, maybe with the peer's help.
    Queued(Option<Share>),
    /// It is over.
    Ended(Result<(), LinkError>),
}

/// What a look at a link brought.
pub(super) struct Polled {
    /// Sink calls made.
    pub(super) calls: usize,
    /// Nothing was left in the ring.
    pub(super) drained: bool,
    /// The peer broke the protocol.
    pub(super) error: Option<LinkError>,
}

/// What a link is made of.
pub(super) struct Parts {
    pub(super) map: Mapping,
    /// The rings in it, from [`rings`].
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    pub(super) role: Role,
    pub(super) bell: Bell,
    /// The link's slot there.
    pub(super) slot: u32,
    pub(super) pidfd: Option<OwnedFd>,
    pub(super) pid: i32,
    /// Our publications need a fence of their own.
    pub(super) must_fence: bool,
    /// The peer's memory can be reached by address.
    pub(super) direct: bool,
}

/// Bulk data under way.
struct Bulk {
    pushes: VecDeque<Push>,
    transfers: VecDeque<Transfer>,
    helps: VecDeque<Help>,
    slots: Slots,
}

impl Bulk {
    /// None. `lap`: that of the transfer that was shared last.
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
    /// What the rings lie in: it goes when they go.
    map: Mapping,
    role: Role,
    must_fence: bool,
    bell: Bell,
    slot: u32,
    socket: Unshared,
    pidfd: Option<OwnedFd>,
    pid: i32,
    direct: bool,
    /// Made when needed ([`Link::release_bulk`]).
    bulk: Option<Box<Bulk>>,
    /// That of the transfer that was shared last, while there is no `bulk`.
    lap: u16,
    /// The peer broke the rules of shared transfers.
    violated: bool,
    /// A send found no room for so many bytes.
    refused_bytes: Option<NonZeroU32>,
    /// In the device's list of links that are looked at in every poll.
    pub(super) hot: bool,
    /// In the device's list of links with bulk work.
    pub(super) busy: bool,
    /// In the device's list of links that wait for space.
    pub(super) waiting: bool,
    /// Number of the poll that last found something.
    pub(super) last_active: u64,
    /// The peer has hung up; the ring is drained before `down`.
    pub(super) hung_up: bool,
}

// There is one for each peer; the allocator adds eight bytes and rounds up to sixteen.
const _: () = assert!(size_of::<Link>() <= 200);

/// Our ends of the rings of a segment, which the link keeps together with it.
pub(super) fn rings(map: &Mapping, role: Role, lines: u32) -> std::io::Result<(Tx, Rx)> {
    map.populate(0, 1)?;
    // SAFETY: the link keeps the mapping, and uses the rings only while it lives.
    let outgoing = unsafe { Lines::new(map, role, lines) };
    // SAFETY: as above.
    let incoming = unsafe { Lines::new(map, role.other(), lines) };
    Ok((Tx::new(outgoing, role)?, Rx::new(incoming, role)?))
}

impl Link {
    /// A link whose life line is `socket`.
    pub(super) fn new(parts: Parts, socket: Unshared) -> Self {
        Self {
            tx: parts.tx,
            rx: parts.rx,
            map: parts.map,
            role: parts.role,
            must_fence: parts.must_fence,
            bell: parts.bell,
            slot: parts.slot,
            socket,
            pidfd: parts.pidfd,
            pid: parts.pid,
            direct: parts.direct,
            bulk: None,
            lap: 0,
            violated: false,
            refused_bytes: None,
            hot: false,
            busy: false,
            waiting: false,
            last_active: 0,
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

    /// The size of the memory that both ends have mapped.
    pub(super) fn segment_bytes(&self) -> usize {
        self.map.len()
    }

    pub(super) fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Whether the peer's process is there, as the system sees it. A child that it has made without fork(3)
    /// may keep its life line open, so that a process for which there is no pidfd may be missed.
    pub(super) fn is_alive(&self) -> bool {
        let line = PollFd::new(&self.socket, PollFlags::RDHUP);
        let process = self.pidfd.as_ref().map(|pidfd| PollFd::new(pidfd, PollFlags::IN));
        let mut looked: SmallVec<[PollFd<'_>; 2]> = std::iter::once(line).chain(process).collect();
        // A signal may come in between, which says nothing.
        !matches!(rustix::event::poll(&mut looked, Some(&Timespec::default())), Ok(gone) if gone > 0)
    }

    /// Whether something is to be copied by address.
    pub(super) fn copies(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| !(bulk.transfers.is_empty() && bulk.helps.is_empty()))
    }

    /// Why the link works no more.
    pub(super) fn broken(&self) -> Option<LinkError> {
        if self.violated { Some(LinkError::Protocol) } else { self.tx.broken() }
    }

    /// Sends a message, or remembers that there was no room.
    #[inline(always)]
    pub(super) fn send(&mut self, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        match self.tx.send(head, body) {
            Ok(()) => {
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

    /// Queues a push.
    pub(super) fn push(&mut self, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        let pushes = &mut self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap))).pushes;
        if pushes.len() >= QUEUE_DEPTH {
            return Err(Full);
        }
        let total_bytes = mem::total_len(src);
        pushes.push_back(Push { window, offset, src: src.into(), sent_bytes: 0, total_bytes, ctx });
        Ok(())
    }

    /// Begins a transfer by address. A short one is made at once, unless others wait. A long one is queued,
    /// and may be shared with a peer that is awake: waking it would take longer than its help saves.
    pub(super) fn transfer(&mut self, span: Span, ctx: u64) -> Result<Started, Full> {
        if self.bulk.as_ref().is_some_and(|bulk| bulk.transfers.len() >= QUEUE_DEPTH) {
            return Err(Full);
        }
        if span.total_bytes() < SHARE_BYTES && !self.has_bulk() {
            let copied = if self.is_over() { Ok(()) } else { span.copy(self.pid, 0, span.total_bytes()) };
            // What was copied from a peer that has closed may be anything.
            return Ok(Started::Ended(if self.is_over() { copied.and(Err(self.end_reason())) } else { copied }));
        }
        let awake = self.peer_side().polled.0.load(Ordering::Relaxed) != 0;
        let bulk = self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap)));
        let mut transfer = Transfer::new(span, ctx);
        let mut share = None;
        if awake && transfer.total_bytes() >= SHARE_BYTES {
            share = transfer.offer(&self.map, self.role, &mut bulk.slots);
            if share.is_none() {
                // Soon a slot is free, and then the peer can help with this one, too.
                return Err(Full);
            }
        }
        bulk.transfers.push_back(transfer);
        Ok(Started::Queued(share))
    }

    /// Queues our help with a transfer of the peer's.
    pub(super) fn assist(&mut self, span: Span, share: Share, ctx: u64) -> Result<(), Full> {
        let helps = &mut self.bulk.get_or_insert_with(|| Box::new(Bulk::new(self.lap))).helps;
        if helps.len() >= QUEUE_DEPTH {
            return Err(Full);
        }
        helps.push_back(Help::new(span, self.role.other(), share, ctx));
        Ok(())
    }

    /// Whether pushes or transfers are under way.
    pub(super) fn has_bulk(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| !bulk.is_empty())
    }

    /// Gives back the memory of bulk data that is over.
    pub(super) fn release_bulk(&mut self) {
        if let Some(bulk) = self.bulk.take_if(|bulk| bulk.is_empty()) {
            self.lap = bulk.slots.lap();
        }
    }

    /// Whether there is something to copy by address, or to report of it, without the peer's doing anything.
    pub(super) fn can_copy(&self) -> bool {
        self.bulk.as_ref().is_some_and(|bulk| {
            !bulk.helps.is_empty() || bulk.transfers.iter().any(|transfer| transfer.can_step(&self.map))
        })
    }

    /// Whether the peer has published something that was not taken.
    #[inline(always)]
    pub(super) fn ready(&self) -> bool {
        self.rx.ready()
    }

    /// Takes what has arrived, in a bounded portion.
    #[inline(never)]
    pub(super) fn poll<S: Sink>(&mut self, id: LinkId, sink: &mut S) -> Polled {
        let mut polled = Polled { calls: 0, drained: false, error: None };
        let mut taken_bytes = 0;
        while taken_bytes < BATCH_BYTES {
            if let Some(message) = self.rx.peek_line() {
                taken_bytes += RECORD_BYTES;
                polled.calls += 1;
                sink.message(id, message);
                self.rx.advance(1);
                continue;
            }
            if !self.rx.ready() {
                polled.drained = true;
                break;
            }
            let need = match self.rx.peek() {
                Ok(Some((Record::Message(message), need))) => {
                    taken_bytes += message.len().max(RECORD_BYTES);
                    polled.calls += 1;
                    sink.message(id, message);
                    need
                }
                Ok(Some((Record::Push { window, offset, data }, need))) => {
                    taken_bytes += data.len().max(RECORD_BYTES);
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
        self.rx.release();
        if self.rx.take_released() && sleep_protocol::is_set(&self.peer_side().wants_space.0, self.must_fence) {
            self.bell.ring(self.slot, self.socket.as_fd());
        }
        polled
    }

    /// Moves pushes and transfers on, by up to `budget` bytes each. Returns the sink calls and the bytes.
    pub(super) fn bulk<S: Sink>(&mut self, id: LinkId, sink: &mut S, budget: usize) -> (usize, usize) {
        let budget = budget.min(TURN_BYTES);
        let (mut calls, mut moved) = (0, 0);
        // Out of the link while it is worked on.
        let Some(mut bulk) = self.bulk.take() else { return (calls, moved) };
        while moved < budget
            && let Some(push) = bulk.pushes.front_mut()
        {
            let len = (push.total_bytes - push.sent_bytes).min(PIECE_BYTES);
            let from = mem::slice(&push.src, push.sent_bytes, len);
            let at = push.offset.wrapping_add(push.sent_bytes as u64);
            if len > 0 && self.tx.push(push.window, at, &from, len).is_err() {
                break;
            }
            push.sent_bytes += len;
            moved += len;
            if push.sent_bytes == push.total_bytes {
                let ctx = push.ctx;
                bulk.pushes.pop_front();
                sink.done(id, ctx, Ok(()));
                calls += 1;
            }
            self.notify_peer();
        }
        let pushed = moved;
        let (copies, copied) = self.copy(&mut bulk, id, sink, budget);
        self.bulk = Some(bulk);
        (calls + copies, pushed + copied)
    }

    /// Moves transfers by address on, until the link is over: our own first, then those that we help with.
    fn copy<S: Sink>(&mut self, bulk: &mut Bulk, id: LinkId, sink: &mut S, budget: usize) -> (usize, usize) {
        let (mut calls, mut moved, mut at) = (0, 0, 0);
        while moved < budget
            && let Some(transfer) = bulk.transfers.get_mut(at)
            && !self.is_over()
        {
            match transfer.step(self.pid, &self.map, &mut bulk.slots) {
                // A system call counts, even if it moves little.
                Step::Moved(bytes) => moved += bytes.max(1024),
                Step::Waits => at += 1,
                Step::Ended(bytes, result) => {
                    moved += bytes.max(1024);
                    let ctx = transfer.ctx;
                    bulk.transfers.remove(at);
                    // What was copied since may be anything.
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
                    // The owner may have gone to sleep until this.
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

    /// What the peer says of the link's end; 0: nothing.
    fn peer_closed(&self) -> u32 {
        self.peer_side().closed.0.load(Ordering::Acquire)
    }

    /// Whether the peer's memory is out of reach: its client has it back, as the peer says, or it has hung up.
    fn is_over(&self) -> bool {
        self.hung_up || self.peer_closed() != 0
    }

    #[cold]
    fn violate(&mut self, calls: usize, moved: usize) -> (usize, usize) {
        self.violated = true;
        (calls, moved)
    }

    /// The contexts of everything that is under way, which will not happen any more.
    pub(super) fn take_bulk(&mut self) -> Vec<u64> {
        let Some(bulk) = self.bulk.take() else { return Vec::new() };
        let pushes = bulk.pushes.iter().map(|push| push.ctx);
        let transfers = bulk.transfers.iter().map(|transfer| transfer.ctx);
        pushes.chain(transfers).chain(bulk.helps.iter().map(|help| help.ctx)).collect()
    }

    /// After a publication: rings the peer's doorbell unless the peer looks at this ring in every poll.
    #[inline(always)]
    fn notify_peer(&self) {
        if !sleep_protocol::is_set(&self.peer_side().polled.0, self.must_fence) {
            self.bell.ring(self.slot, self.socket.as_fd());
        }
    }

    /// Tells the peer whether we look at its ring in every poll. Before relying on its doorbell: fence, then
    /// look once more.
    pub(super) fn set_polled(&self, polled: bool) {
        sleep_protocol::set(self.polled(), polled);
    }

    /// The word that tells it.
    pub(super) fn polled(&self) -> &AtomicU32 {
        &self.map.side(self.role).polled.0
    }

    /// Tells the peer whether we want to be rung when it releases space.
    pub(super) fn set_wants_space(&self, wants: bool) {
        sleep_protocol::set(&self.map.side(self.role).wants_space.0, wants);
    }

    /// Whether something of ours waits for space in the outgoing ring.
    pub(super) fn wants_space(&self) -> bool {
        self.refused_bytes.is_some() || self.has_pushes()
    }

    /// Whether what waits for space could go now, or will never go. Forgets a refused send: whoever made it
    /// is about to try again.
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

    /// Says goodbye: what the peer has not taken yet it can still take.
    pub(super) fn publish_closed(&self) {
        self.map.side(self.role).closed.0.store(CLOSED, Ordering::Release);
    }

    /// Says that the link has failed: what the peer copies from now on may be anything.
    pub(super) fn publish_failed(&self) {
        self.map.side(self.role).closed.0.store(FAILED, Ordering::Release);
    }

    /// How the link ended, now that the peer has hung up.
    pub(super) fn end_reason(&self) -> LinkError {
        if self.peer_closed() == CLOSED { LinkError::Closed } else { LinkError::Gone }
    }

    #[inline(always)]
    fn peer_side(&self) -> &super::segment::SideBlock {
        self.map.side(self.role.other())
    }
}
