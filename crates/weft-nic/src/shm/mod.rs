//! The shared-memory device: endpoints of one host (more exactly: one network namespace and one user).
//!
//! Place in the data flow: `Engine` → [`Shm`] (a `Nic`) → cache lines of a memfd → the peer's `Shm` → its `Sink`.
//!
//! Where to read what:
//! - `segment.rs`: sealed memfds and what lies where in them; `lines.rs`, `ring.rs`: one direction of a pair;
//! - `page.rs`, `doorbell.rs`: how a consumer learns of rings that it does not look at in every poll, and how it is
//!   woken; `sleep.rs`: which links are looked at in every poll, and sleeping, `sleep_protocol.rs`: its steps in their order;
//! - `accept.rs`, `handshake.rs`: how a pair comes about, `rights.rs`: without a foreign user's descriptors;
//!   `control.rs`: sockets, time-outs, links that end;
//! - `link.rs`: one end of a pair; `transfer.rs`, `share.rs`, `cma.rs`: transfers by address, which both
//!   sides copy together; `probe.rs`: what the system allows.
//!
//! Cost model: a message of up to 56 bytes moves one cache line and makes no system call and no
//! allocation. A poll costs one load for each of at most [`HOT_LINKS`] recently active links plus one load for
//! all other links together, however many there are. The sockets are looked at when the coarse clock has
//! advanced or nothing has arrived for a while (`control.rs`).
//!
//! Memory: a pair's segment is 4 KiB plus two rings of `ShmConfig::ring_bytes`, of which a quiet pair touches
//! 4 KiB each: 12 KiB for both ends together. A link holds one descriptor (its life line) and, while
//! descriptors are plentiful, a pidfd.
//!
//! Trust: peers run under our own user id (SO_PEERCRED) and have proven to know our name's capability. Even so
//! whatever they write is checked before use; they can harm their own link, and can delay, not
//! falsify, what others send us.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("the shared-memory device needs 64-bit addresses and atomics");

mod accept;
mod cma;
mod control;
mod doorbell;
mod handshake;
mod lines;
mod link;
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

/// What the lock-free parts are made of; a model checker puts its own here.
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
use weft_engine::growth;
use weft_engine::mem::Iov;
use weft_engine::name::EpName;
use weft_engine::nic::{Full, LinkError, LinkId, Nic, NicCaps, Registrar, RemoteIov, Share, Sink};

use cma::Span;
use doorbell::{Barriers, Door};
use handshake::Handshake;
use link::{Link, Started};
pub(crate) use ring::MAILBOX_BYTES;
use ring::{INLINE_BYTES, MAX_LINES, MIN_LINES};
use segment::LINE_BYTES;
use sleep_protocol::SleepLevel;

use crate::NicError;

pub use probe::{Finding, probe};

/// Links that are looked at in every poll.
pub const HOT_LINKS: usize = 8;
/// What the engine's header may need of a mailbox beside the payload.
const ENGINE_HEADER_BYTES: usize = 128;
const _: () = assert!(EAGER_BYTES + ENGINE_HEADER_BYTES <= MAILBOX_BYTES);
/// Longest payload that goes eagerly, whether the receiver could copy it by address or not. Two copies that
/// go past the producer's caches are faster than one by the kernel and two messages (half round trips of 16
/// KiB: 2.3 against 3.7 µs, of 31 KiB: 3.2 against 4.8 µs), the more so where both sides copy at once (a
/// stream of 16 KiB: 10.8 against 4.1 GB/s). Beyond, both sides copy by address at once.
pub const EAGER_BYTES: usize = 32 * 1024;
/// What one poll pushes, and copies by address, at most, in bytes over all links: some 25 µs each.
const BULK_BYTES_PER_POLL: usize = 256 * 1024;

/// Settings of one endpoint's shared-memory device.
#[derive(Clone, Debug)]
pub struct ShmConfig {
    /// Accept connections to a service name with this port, too.
    pub service: Option<u16>,
    /// Use cross-memory attach where the system allows it, and let peers use it.
    pub cma: bool,
    /// After so many milliseconds without an answer a call to a service name has failed.
    pub connect_timeout_ms: u64,
    /// The same of a call to an endpoint that was named exactly, whose process may be computing, and of a
    /// caller that says no more.
    pub answer_timeout_ms: u64,
    /// Longest payload in bytes that goes eagerly. `None`: [`EAGER_BYTES`].
    pub eager_bytes: Option<usize>,
    /// Size in bytes of each ring of segments that we make; rounded to a power of two within the limits.
    pub ring_bytes: usize,
    /// Joined to every proof of a handshake: endpoints with different keys never connect. Zeros: none.
    pub job_key: [u8; 32],
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
        }
    }
}

/// What is at a link's number.
enum Slot {
    /// Nothing; the number is in the free list.
    Free,
    /// A handshake that we began, by its key.
    Connecting(usize),
    /// A link that is up.
    Up(Box<Link>),
    /// Its `down` is queued.
    Ending,
}

/// What is to be told to the sink at the next poll.
enum Event {
    Done(LinkId, u64, Result<(), LinkError>),
    Down(LinkId, LinkError),
}

/// The shared-memory device of one endpoint.
pub struct Shm {
    /// Links that are looked at in every poll, in no order.
    hot: Vec<u32>,
    links: Vec<Slot>,
    door: Door,
    /// Polls so far.
    polls: u64,
    /// Polls in a row that found nothing.
    empty_polls: u32,
    /// Links with pushes or transfers under way; the front's turn is next.
    busy: VecDeque<u32>,
    /// Links that have hung up and are being drained.
    dying: Vec<u32>,
    events: VecDeque<Event>,
    /// Whether the peers were told that nobody polls.
    sleep_level: SleepLevel,
    /// Look at the sockets in the next poll.
    control_due: bool,
    /// So many more looks at the sockets are made early, because a handshake is getting on.
    early_checks: u32,
    /// Links that found their ring full and may have to be woken for it.
    waiting: Vec<u32>,
    free: Vec<u32>,
    handshakes: Slab<Handshake>,
    /// Those of them that peers began, oldest first.
    accepted: VecDeque<usize>,
    control: control::Control,
    /// Where the slow scan of cold links goes on.
    scan_at: u32,
    barriers: Barriers,
    /// Poll number before which no link is moved out of the hot list again.
    next_demotion: u64,
    me: EpName,
    config: ShmConfig,
    lines: u32,
    /// What peers read to find out whether they reach our memory.
    probe_value: Box<[u8; 16]>,
    /// The process that made the device: a forked child must not say goodbye for it.
    owner: rustix::process::Pid,
    /// What `wait_fd` shows.
    epoll: OwnedFd,
}

impl Shm {
    /// The device of the endpoint `me`, whose id names the listener.
    ///
    /// # Errors
    /// Of the system: descriptors or memory ran out, or a sandbox forbids a call; EADDRINUSE if the endpoint
    /// id or the service port is taken.
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

    /// What the device can do on a link where the peer's memory can (`direct`) be reached by address.
    fn caps(&self, direct: bool) -> NicCaps {
        NicCaps {
            device: "shm",
            mailbox_bytes: MAILBOX_BYTES,
            inline_bytes: INLINE_BYTES,
            eager_bytes: self.config.eager_bytes.unwrap_or(EAGER_BYTES).min(MAILBOX_BYTES - ENGINE_HEADER_BYTES),
            get: direct,
            put: direct,
            ordered: true,
            push_follows: true,
            // It is in the ring, which the peer drains before it takes our end for an end.
            survives: true,
            registered: false,
        }
    }

    #[inline(always)]
    fn link(&mut self, link: LinkId) -> Option<&mut Link> {
        match self.links.get_mut(link.0 as usize) {
            Some(Slot::Up(up)) => Some(up),
            _ => None,
        }
    }

    /// A number for a new link.
    fn number(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            growth::reserve(&mut self.links, 1);
            self.links.push(Slot::Free);
            u32::try_from(self.links.len() - 1).expect("fewer than 2^32 links")
        })
    }

    /// Looks at one link, and makes what it finds known to the rest of the device. Returns the sink calls made.
    #[inline]
    fn poll_link<S: Sink>(&mut self, id: u32, sink: &mut S) -> usize {
        let polls = self.polls;
        let Some(link) = self.link(LinkId(id)) else { return 0 };
        let polled = link.poll(LinkId(id), sink);
        if polled.calls > 0 {
            link.last_active = polls;
        }
        if let Some(why) = polled.error {
            self.fail(id, why);
        } else if !polled.drained && !self.is_hot(id) {
            // The rest is taken in a later poll: ring our own doorbell, unless the link is looked at anyhow.
            self.door.wake();
            self.door.page().ring(id % page::SLOTS);
        }
        polled.calls
    }

    /// Delivers what has been waiting for a poll.
    #[cold]
    fn deliver_events<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        while let Some(event) = self.events.pop_front() {
            calls += 1;
            match event {
                Event::Done(link, ctx, result) => sink.done(link, ctx, result),
                Event::Down(link, why) => {
                    self.release_number(link.0);
                    sink.down(link, why);
                }
            }
        }
        calls
    }

    /// Moves pushes and transfers on, by a bounded amount, each link in its turn.
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

    /// Begins a transfer by address.
    fn transfer(&mut self, link: LinkId, span: Span, ctx: u64) -> Result<Option<Share>, Full> {
        self.check_process(link);
        let up = self.link(link).ok_or(Full)?;
        debug_assert!(up.is_direct());
        match up.transfer(span, ctx)? {
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

    /// A send found no room, or the peer's words made no sense.
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

/// It reaches any memory.
impl Registrar for Shm {}

impl Nic for Shm {
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

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        self.link(link).ok_or(Full)?.push(window, offset, src, ctx)?;
        self.make_busy(link);
        Ok(())
    }

    fn get(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<Option<Share>, Full> {
        self.transfer(link, Span::new(false, local, remote), ctx)
    }

    fn put(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<Option<Share>, Full> {
        self.transfer(link, Span::new(true, local, remote), ctx)
    }

    fn assist(
        &mut self,
        link: LinkId,
        share: Share,
        put: bool,
        local: &[Iov],
        remote: &[RemoteIov],
        ctx: u64,
    ) -> Result<(), Full> {
        self.link(link).ok_or(Full)?.assist(Span::new(put, local, remote), share, ctx)?;
        self.make_busy(link);
        Ok(())
    }

    /// Nothing is gathered: every message leaves at once.
    #[inline]
    fn flush(&mut self) {}

    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.polls += 1;
        let mut calls = 0;
        if self.sleep_level == SleepLevel::Parked {
            self.wake();
        }
        // By index: a link may leave the list while it is looked at.
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

    fn drained(&self) -> bool {
        self.busy.is_empty()
    }
}

impl Drop for Shm {
    fn drop(&mut self) {
        // A forked child shares our memory: what it says there would be taken for our word.
        if self.is_ours() {
            self.hang_up_on_all();
            self.control.foreign_sockets.drain(..).for_each(rights::close_or_leak);
        }
    }
}
