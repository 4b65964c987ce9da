//! The shared-memory device, for endpoints in the same network namespace of a host, with the same user.
//!
//! Place in the data flow: `Engine` → [`Shm`] (a `Nic`) → cache lines of a memfd → the peer's `Shm` → its
//! `Sink`.
//!
//! Files:
//! - `segment.rs`: sealed memfds and their layout; `lines.rs`, `ring.rs`: one direction of a link.
//! - `page.rs`, `doorbell.rs`: how a consumer learns of rings that it does not check in every poll, and how
//!   it is woken; `sleep.rs`: the links that are checked in every poll, and sleeping; `sleep_protocol.rs`:
//!   the steps of sleeping, in their order.
//! - `accept.rs`, `handshake.rs`: how a link is made; `rights.rs`: protection against descriptors of foreign
//!   users; `control.rs`: sockets, time-outs, and the ends of links.
//! - `board.rs`: memory that the members of a group share, passed over life lines.
//! - `memory.rs`: the allocator of memory that peers may map, and its way over life lines.
//! - `lag.rs`: pauses of a consumer that keeps up with a streaming producer.
//! - `link.rs`: one end of a link; `transfer.rs`, `share.rs`, `cma.rs`: transfers by address, which both
//!   sides copy together; `probe.rs`: the facilities of the system.
//!
//! Cost model: a message of up to 56 bytes moves one cache line and makes no system call and no allocation. A
//! poll costs one load for each of at most [`HOT_LINKS`] recently active links, and one load for all other
//! links together. The sockets are checked when the coarse clock has advanced or nothing has arrived for a
//! while (`control.rs`).
//!
//! Memory: a pair's segment is 4 KiB plus two rings of `ShmConfig::ring_bytes`. A quiet pair touches 4 KiB of
//! each ring, which makes 12 KiB for both ends together. A link holds one descriptor, its life line.
//!
//! Trust: peers run under the same user id (SO_PEERCRED) and have proven to know the capability of the
//! endpoint's name. Nevertheless, all data from them is checked before use. A peer can harm its own link. It
//! can delay the messages of other peers, but not falsify them.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the shared-memory device needs 64-bit addresses and atomics");

mod accept;
mod board;
mod cma;
mod control;
mod doorbell;
mod handshake;
mod lag;
mod lines;
mod link;
pub mod memory;
mod page;
mod probe;
mod rights;
mod ring;
mod segment;
mod share;
mod sleep;
mod sleep_protocol;
#[cfg(test)]
mod tests;
mod transfer;

/// The atomics of the lock-free parts, which a model checker replaces.
mod sync {
    use std::sync::atomic::compiler_fence;
    pub(super) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

    /// The frequent side's half of the asymmetric fence.
    #[inline(always)]
    pub(super) fn light_fence() {
        compiler_fence(Ordering::SeqCst);
    }
}

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use slab::Slab;
use weft_engine::board::Board;
use weft_engine::growth;
use weft_engine::mapped::{Guard, PeerRegion, RegionOffer};
use weft_engine::mem::Iov;
use weft_engine::name::EpName;
use weft_engine::nic::{
    Chaining, DirectCopy, Full, LinkError, LinkId, Nic, NicCaps, Part, Registrar, Share, Sharing, Sink,
};

use cma::Span;
use doorbell::{Barriers, Door};
use handshake::Handshake;
use link::{Link, Started};
pub(crate) use ring::MAILBOX_BYTES;
use ring::{INLINE_BYTES, MAX_LINES, MIN_LINES};
use segment::LINE_BYTES;
use sleep_protocol::SleepLevel;

// A ring counts its pages in 16 bits.
const _: () = assert!(MAX_LINES as u64 / lines::FIRST_LINES <= u16::MAX as u64);

use crate::NicError;

pub use probe::{Finding, probe};

/// Maximum number of links that are checked in every poll.
pub const HOT_LINKS: usize = 8;
/// Room for the engine's header in a mailbox, in bytes.
const ENGINE_HEADER_BYTES: usize = 128;
const _: () = assert!(EAGER_BYTES + ENGINE_HEADER_BYTES <= MAILBOX_BYTES);
/// Longest payload in bytes that is sent eagerly by default. Longer payloads are pushed through the ring, and from
/// [`weft_engine::nic::PUSH_BYTES`] on they are copied by address by both sides at once.
///
/// Two copies are faster than one copy by the kernel and two messages, although both sides make that one together.
/// Half round trips in µs between cores that share a cache, and between others:
///
/// | | near, ring | near, by address | far, ring | far, by address |
/// |---|---|---|---|---|
/// | 33 KiB | 1.05 | 4.3 | 2.5 | 4.5 |
/// | 64 KiB | 1.6 | 4.0 | 3.7 | 4.8 |
/// | 128 KiB | 2.8 | 6.1 | 6.4 | 6.5 |
/// | 256 KiB | 5.6 | 11 | 12.3 | 11.3 |
///
/// A payload of more than half of the ring waits for the sender's next poll. The receiver alone moves one by address,
/// so longer payloads are not pushed.
pub const EAGER_BYTES: usize = 32 * 1024;
/// Capabilities on a link. `eager_bytes`: the longest eager payload in bytes, if not the default. `direct`: the peer's
/// memory can be accessed by address.
#[must_use]
pub fn caps(eager_bytes: Option<usize>, direct: bool) -> NicCaps {
    NicCaps {
        device: "shm",
        mailbox_bytes: MAILBOX_BYTES,
        inline_bytes: INLINE_BYTES,
        eager_bytes: eager_bytes.unwrap_or(EAGER_BYTES).min(MAILBOX_BYTES - ENGINE_HEADER_BYTES),
        get: direct,
        put: direct,
        ordered: true,
        push_follows: true,
        // Messages are in the ring, which the peer drains before it reports the end of the link.
        survives: true,
        confirms: true,
        maps: true,
        pushes: true,
        registered: false,
    }
}

/// Maximum number of bytes that one poll pushes, and that it copies by address, over all links. Each takes
/// about 40 µs.
const BULK_BYTES_PER_POLL: usize = 512 * 1024;

/// Settings of one endpoint's shared-memory device.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Accept connections to a service name with this port, too.
    pub service: Option<u16>,
    /// Use cross-memory attach where the system allows it, and let peers use it.
    pub cma: bool,
    /// Time-out of a call to a service name, in milliseconds without an answer.
    pub connect_timeout_ms: u64,
    /// Time-out in milliseconds of a call to a full name, whose process may be computing, and of a caller
    /// that has become silent.
    pub answer_timeout_ms: u64,
    /// Longest payload in bytes that is sent eagerly. `None`: [`EAGER_BYTES`].
    pub eager_bytes: Option<usize>,
    /// Size in bytes of each ring of segments that this side makes. It is rounded to a power of two within
    /// the limits.
    pub ring_bytes: usize,
    /// Joined to every proof of a handshake: endpoints with different keys never connect. Zeros: no key.
    pub job_key: [u8; 32],
    /// The version of the handshake. Only tests set another one.
    #[doc(hidden)]
    pub version: u32,
}

impl Default for ShmConfig {
    fn default() -> Self {
        Self {
            service: None,
            cma: true,
            connect_timeout_ms: 10_000,
            answer_timeout_ms: 10_000,
            eager_bytes: None,
            ring_bytes: 256 * 1024,
            job_key: [0; 32],
            version: handshake::VERSION,
        }
    }
}

/// The state of a link number.
enum Slot {
    /// Unused; the number is in the free list.
    Free,
    /// A handshake that this side began, by its key.
    Connecting(usize),
    /// A link that is up.
    Up(Box<Link>),
    /// The link has ended, and its `down` is queued.
    Ending,
}

/// A sink call that the next poll makes.
enum Event {
    Done(LinkId, u64, Result<(), LinkError>),
    Down(LinkId, LinkError),
    /// The peer has passed a board under a key.
    Board(LinkId, u64, Option<Board>),
    /// The peer has passed the region of a key.
    Region(LinkId, u64, Option<PeerRegion>),
}

/// The shared-memory device of one endpoint.
pub struct Shm {
    /// Links that are checked in every poll, in no order.
    hot: Vec<u32>,
    links: Vec<Slot>,
    door: Door,
    /// Number of polls so far.
    polls: u64,
    /// Number of consecutive polls that found nothing.
    empty_polls: u32,
    /// The next reading of the clock, in units of successful polls.
    clock_in: u32,
    /// Links with pushes or transfers in progress. The first one is next.
    busy: VecDeque<u32>,
    /// Links that have hung up and are being drained.
    dying: Vec<u32>,
    events: VecDeque<Event>,
    /// Whether peers expect polls or must notify the device.
    sleep_level: SleepLevel,
    /// Whether the next poll checks the sockets.
    control_due: bool,
    /// Number of early checks of the sockets that remain, because a handshake makes progress.
    early_checks: u32,
    /// Links that found their ring full, and whose peer must then ring for space during a sleep.
    waiting: Vec<u32>,
    free: Vec<u32>,
    handshakes: Slab<Handshake>,
    /// The handshakes that peers began, oldest first.
    accepted: VecDeque<usize>,
    control: control::Control,
    /// The next link of the slow scan.
    scan_at: u32,
    barriers: Barriers,
    /// Number of the poll before which no further link is moved out of the hot list.
    next_demotion: u64,
    me: EpName,
    config: ShmConfig,
    lines: u32,
    /// Random bytes that peers read to find out whether they can access this memory.
    probe_value: Box<[u8; 16]>,
    /// The process that made the device. A forked child must not close the links.
    owner: rustix::process::Pid,
    /// The descriptor that `wait_fd` returns.
    epoll: OwnedFd,
}

impl Shm {
    /// Opens the device of the endpoint `me`, whose id names the listener.
    ///
    /// # Errors
    /// Errors of the system: descriptors or memory ran out, or a sandbox forbids a call; EADDRINUSE if the
    /// endpoint id or the service port is taken.
    pub fn new(config: &ShmConfig, me: EpName) -> Result<Self, NicError> {
        let epoll = rustix::event::epoll::create(rustix::event::epoll::CreateFlags::CLOEXEC)
            .map_err(NicError::system("epoll_create1"))?;
        let control = control::Control::new(&epoll, &me, config.service)?;
        let mut probe_value = Box::new([0; 16]);
        getrandom::fill(&mut *probe_value).map_err(|_| NicError::Entropy)?;
        let lines = (config.ring_bytes / LINE_BYTES).clamp(MIN_LINES as usize, MAX_LINES as usize);
        Ok(Self {
            hot: Vec::with_capacity(HOT_LINKS),
            links: Vec::new(),
            door: Door::new()?,
            polls: 0,
            empty_polls: 0,
            clock_in: control::POLLS_PER_CLOCK_READ,
            busy: VecDeque::new(),
            dying: Vec::new(),
            events: VecDeque::new(),
            sleep_level: SleepLevel::Awake,
            control_due: true,
            early_checks: 0,
            waiting: Vec::new(),
            free: Vec::new(),
            handshakes: Slab::new(),
            accepted: VecDeque::new(),
            control,
            scan_at: 0,
            barriers: Barriers::probe(),
            next_demotion: 0,
            me,
            config: config.clone(),
            lines: u32::try_from(lines.next_power_of_two()).unwrap_or(MAX_LINES),
            probe_value,
            owner: rustix::process::getpid(),
            epoll,
        })
    }

    /// Capabilities on a link. `direct`: the peer's memory can be accessed by address.
    fn caps(&self, direct: bool) -> NicCaps {
        caps(self.config.eager_bytes, direct)
    }

    #[inline(always)]
    fn link(&mut self, link: LinkId) -> Option<&mut Link> {
        match self.links.get_mut(link.0 as usize) {
            Some(Slot::Up(up)) => Some(up),
            _ => None,
        }
    }

    /// Returns an unused link number.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            growth::reserve(&mut self.links, 1);
            self.links.push(Slot::Free);
            u32::try_from(self.links.len() - 1).expect("fewer than 2^32 links")
        })
    }

    /// Number of next polls that will find nothing but records that peers publish.
    pub(crate) fn quiet_polls(&self) -> u32 {
        let due = self.sleep_level != SleepLevel::Awake || self.control_due || self.early_checks > 0;
        if due || !self.busy.is_empty() || !self.dying.is_empty() || !self.events.is_empty() {
            return 0;
        }
        self.polls_before_clock()
    }

    /// The part of a poll that takes what peers have published. Returns the number of sink calls.
    #[inline(always)]
    pub(crate) fn poll_published<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.polls += 1;
        let mut calls = 0;
        // The loop uses an index, because a link may leave the list while it is polled.
        let mut at = 0;
        while let Some(&id) = self.hot.get(at) {
            if let Some(Slot::Up(link)) = self.links.get(id as usize)
                && link.ready()
            {
                calls += self.poll_link(id, sink);
            }
            at += 1;
        }
        if self.door.page().is_rung() {
            calls += self.poll_rung_slots(sink);
        }
        calls
    }

    /// Polls one link, and updates the state of the device accordingly. Returns the number of sink calls.
    #[inline]
    fn poll_link<S: Sink>(&mut self, id: u32, sink: &mut S) -> usize {
        let polls = self.polls;
        let Some(link) = self.link(LinkId(id)) else { return 0 };
        let polled = link.poll(LinkId(id), sink);
        if polled.calls > 0 {
            link.touch(polls);
        }
        if let Some(why) = polled.error {
            self.fail(id, why);
            return polled.calls + 1; // The next poll reports the end.
        }
        if !polled.drained && !self.is_hot(id) {
            // A later poll takes the remaining records. Unless the link is hot, this side rings its own
            // doorbell.
            self.door.wake();
            self.door.page().ring(id % page::SLOTS);
        }
        polled.calls
    }

    /// Makes the queued sink calls.
    #[cold]
    fn deliver_events<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        while let Some(event) = self.events.pop_front() {
            calls += 1;
            match event {
                Event::Done(link, ctx, result) => sink.done(link, ctx, result),
                Event::Board(link, key, board) => sink.board(link, key, board),
                Event::Region(link, key, region) => sink.region(link, key, region),
                Event::Down(link, why) => {
                    self.release_number(link.0);
                    sink.down(link, why);
                }
            }
        }
        calls
    }

    /// Advances pushes and transfers by a bounded amount, each link in turn.
    #[cold]
    fn bulk<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        let mut budget = BULK_BYTES_PER_POLL;
        for _ in 0..self.busy.len() {
            let Some(id) = self.busy.pop_front() else { break };
            if self.link(LinkId(id)).is_some_and(|link| link.copies()) {
                self.check_process(LinkId(id));
            }
            let Some(link) = self.link(LinkId(id)) else { continue };
            let (made, moved) = link.bulk(LinkId(id), sink, budget);
            calls += made;
            if let Some(why) = link.broken() {
                link.busy = false;
                self.fail(id, why);
            } else if link.has_bulk() {
                self.busy.push_back(id);
            } else {
                link.busy = false;
                if !link.hot {
                    link.release_bulk();
                }
            }
            budget = budget.saturating_sub(moved);
            if budget == 0 {
                break;
            }
        }
        calls
    }

    fn make_busy(&mut self, id: LinkId) {
        if let Some(link) = self.link(id)
            && !link.busy
        {
            link.busy = true;
            self.busy.push_back(id.0);
        }
    }

    /// Whether this process has made the device.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// Starts a transfer by address.
    fn transfer(&mut self, link: LinkId, span: Span, sharing: Sharing, ctx: u64) -> Result<Option<Share>, Full> {
        self.check_process(link);
        let up = self.link(link).ok_or(Full)?;
        debug_assert!(up.is_direct());
        match up.transfer(span, sharing, ctx)? {
            Started::Queued(share) => {
                self.make_busy(link);
                Ok(share)
            }
            Started::Ended(result) => {
                self.events.push_back(Event::Done(link, ctx, result));
                Ok(None)
            }
        }
    }

    /// Handles a send that found no room, or that found the peer's words invalid.
    #[cold]
    fn refused(&mut self, id: LinkId) {
        let Some(link) = self.link(id) else { return };
        if let Some(why) = link.broken() {
            self.fail(id.0, why);
        } else if !link.waiting {
            link.waiting = true;
            self.waiting.push(id.0);
        }
    }
}

/// The device reaches any memory.
impl Registrar for Shm {}

impl Chaining for Shm {}

impl Nic for Shm {
    weft_engine::decline!(notice);

    fn name(&self) -> EpName {
        self.me
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        self.start_connect(peer)
    }

    #[inline]
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let Some(up) = self.link(link) else { return Err(Full) };
        let result = up.send(head, body);
        if result.is_err() {
            self.refused(link);
        }
        result
    }

    #[inline]
    fn confirm(&mut self, link: LinkId, number: u32) {
        if let Some(up) = self.link(link) {
            up.confirm(number);
        }
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        if self.link(link).ok_or(Full)?.push(window, offset, src, ctx)? {
            self.events.push_back(Event::Done(link, ctx, Ok(())));
        } else {
            self.make_busy(link);
        }
        Ok(())
    }

    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        let span = Span::new(copy.put, copy.local, copy.remote);
        let share = match copy.part {
            Part::Owner(sharing) => return self.transfer(link, span, sharing, copy.ctx),
            Part::Helper(share) => share,
        };
        self.link(link).ok_or(Full)?.assist(span, share, copy.ctx)?;
        self.make_busy(link);
        Ok(None)
    }

    /// Every message is sent at once, so there is nothing to flush.
    #[inline]
    fn flush(&mut self) {}

    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        if self.sleep_level == SleepLevel::Parked {
            self.wake();
        }
        let mut calls = self.poll_published(sink);
        if !self.busy.is_empty() {
            calls += self.bulk(sink);
        }
        if self.control_is_due(calls) {
            calls += self.check_control(sink);
        }
        if !self.dying.is_empty() {
            calls += self.drain_dying(sink);
        }
        if !self.events.is_empty() {
            calls += self.deliver_events(sink);
        }
        calls
    }

    fn close(&mut self, link: LinkId) {
        self.close_link(link);
    }

    fn held_bytes(&self, link: LinkId) -> usize {
        match self.links.get(link.0 as usize) {
            Some(Slot::Up(up)) => up.segment_bytes().saturating_sub(segment::segment_bytes(self.lines)),
            _ => 0,
        }
    }

    fn make_board(&mut self, bytes: usize) -> Option<Board> {
        board::make(bytes)
    }

    fn shares_boards(&self, link: LinkId) -> bool {
        matches!(self.links.get(link.0 as usize), Some(Slot::Up(_)))
    }

    fn share_board(&mut self, link: LinkId, key: u64, board: Option<&Board>) -> Result<(), Full> {
        let Some(up) = self.link(link) else { return Ok(()) };
        board::pass(up.socket(), key, board)
    }

    fn share_region(&mut self, link: LinkId, key: u64, offer: Option<RegionOffer<'_>>) -> Result<Option<Guard>, Full> {
        let Some(up) = self.link(link) else { return Ok(None) };
        memory::pass(up.socket(), key, offer)
    }

    fn wake_peer(&mut self, link: LinkId) {
        if let Some(up) = self.link(link) {
            up.wake_sleeper();
        }
    }

    fn drained(&self) -> bool {
        self.busy.is_empty()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // A forked child shares the memory with its parent, and the peers would take its words for the
        // parent's.
        if self.is_ours() {
            self.hang_up_on_all();
            self.control.foreign_sockets.drain(..).for_each(rights::close_or_leak);
        }
    }
}
