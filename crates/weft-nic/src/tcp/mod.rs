//! The TCP device: one non-blocking socket per link, all behind one epoll descriptor.
//!
//! Place in the data flow: [`crate::Devices`] drives the device through [`Nic`]. Below it are the kernel's sockets. The
//! parts:
//!
//! - `config`: settings and counters. `link`: the state of a link. `wire`: layouts.
//! - `connect` (initiator) and `half_open` with `accept` (acceptor): the handshake of new links. `initiator`: the
//!   initiator's side of all handshakes.
//! - `tx` (with `retransmit` and `pushes`) and `rx`: the two halves of a link.
//! - `stream`, `noise` and `primitives`: encryption.
//! - `rails`: further connections of a link for long pushes. `chain`: connections on which the system performs the
//!   steps of collectives.
//! - `session`, `resume` and `redial`: connections that break. `linger`: closed links whose last bytes are being sent.
//! - `progress`: a poll. `time`: its timers. `pace`: the rate of system calls. `agenda`: the work that links need.
//! - `unsent`: the note of deferred messages. `sys`: system calls. `bugs`: planted bugs.
//!
//! Invariants:
//!
//! - No call blocks.
//! - An idle link holds no buffer and costs a poll nothing.
//! - A peer can cause no allocation larger than one mailbox per link.
//! - Client memory that `push` borrowed is released when `done` is called or the link is closed.
//! - A socket is watched under a token with a generation, so that a late event of an old socket is not attributed to
//!   its successor.
//! - A forked child drops its copies of the sockets immediately (`weft_os::fork`), so that they vanish with the
//!   process.
//!
//! Errors: set-up fails with [`NicError`], links end with `LinkError`. Events that a user needs to know are logged
//! once, at the level `debug` for one link and `warn` for the device.
//!
//! Sources: tcp(7), epoll(7), RFC 9293.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use slab::Slab;
use weft_engine::mem::Iov;
use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::{Chaining, DirectCopy, Full, LinkError, LinkId, Nic, NicCaps, Registrar, Share, Sink};
use weft_os::ForkClosedFd;

use crate::error::shortage;
use crate::{NicError, Uring};

mod accept;
mod agenda;
mod bugs;
mod chain;
mod config;
mod connect;
#[cfg(test)]
pub(crate) mod faults;
mod half_open;
mod initiator;
mod linger;
mod link;
mod noise;
mod pace;
mod primitives;
mod progress;
mod pushes;
mod rails;
mod redial;
mod resume;
mod retransmit;
mod rx;
mod session;
mod stream;
mod sys;
mod time;
mod tx;
mod unsent;
mod wire;

/// Imports of the file that the model checker tries.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
}

use accept::Accepts;
use agenda::{Agenda, Task};
use chain::Chains;
use connect::{Attempt, Local};
use half_open::HalfOpen;
use initiator::Failure;
use link::{GENERATION_BITS, Link, LinkState, Links, Token};
use pace::Pace;
use progress::Focus;
use rails::Rails;
use rx::{Intake, StagingBuffer};
use stream::Secrets;
use tx::{Pumped, SocketState, Tx, Writer};
pub(crate) use wire::MAILBOX_BYTES;

pub use config::{TcpConfig, TcpLinkInfo, TcpStats};
pub use unsent::Unsent;

/// Capabilities on a link. `eager_bytes`: the longest eager payload in bytes.
#[must_use]
pub fn caps(eager_bytes: usize) -> NicCaps {
    NicCaps {
        device: "tcp",
        mailbox_bytes: wire::MAILBOX_BYTES,
        inline_bytes: 256,
        eager_bytes: eager_bytes.min(wire::MAILBOX_BYTES - 128),
        get: false,
        put: false,
        ordered: true,
        push_follows: true,
        confirms: false,
        maps: false,
        pushes: false,
        // Accepted bytes may still be in a buffer of the device or of this system.
        survives: false,
        registered: false,
    }
}

/// Limit of bytes that one link sends at a time while others wait.
const SEND_BUDGET_BYTES: usize = 1024 * 1024;
/// Limit of gathered bytes on one link.
const QUEUE_BYTES: usize = 256 * 1024;
/// Limit of events per epoll call.
const EVENTS: usize = 64;

/// The TCP device of one endpoint.
pub struct Tcp {
    config: TcpConfig,
    local: Local,
    addr: SocketAddr,
    listener: ForkClosedFd,
    /// The time at which a paused listener is watched again.
    listener_resume_ms: Option<u64>,
    accepts: Accepts,
    /// The time of the last epoll call.
    asked_ms: u64,
    /// Descriptors or memory for connections are missing, and a warning has been logged.
    shortage_logged: bool,
    epoll: OwnedFd,
    timer: OwnedFd,
    /// Closed for a moment when descriptors have run out.
    spare: Option<OwnedFd>,
    generation: u32,
    links: Links,
    secrets: Secrets,
    /// Links with a session, in the order of their sessions' keys.
    sessions: Vec<u32>,
    halves: Slab<HalfOpen>,
    /// The work that each link needs.
    agenda: Agenda,
    /// The time at which the acknowledgements on the agenda are sent.
    next_ack_ms: u64,
    /// Links whose peers have requested an acknowledgement since the last flush ([`Tcp::flush`]).
    requested: Vec<u32>,
    stage: StagingBuffer,
    writer: Writer,
    pace: Pace,
    focus: Focus,
    rails: Rails,
    chains: Box<Chains>,
    /// `None` while the events are processed.
    events: Option<sys::Events>,
    /// The time before which no timer is due.
    next_timer_ms: u64,
    next_scan_ms: u64,
    /// An attempt has got no connection for a while ([`Sink::hindered`]).
    hindered: bool,
    /// A thread may sleep, or have slept, on `wait_fd`.
    parked: bool,
    stats: TcpStats,
    /// The process that opened the device.
    owner: rustix::process::Pid,
}

impl Tcp {
    /// Opens a device that listens on `config.bind`, or on a free port of `me.socket`'s address. The endpoint's full
    /// name is `me` with this port and, if `config.bind` has one, its address.
    #[inline(never)] // The device would be on the stack twice.
    pub fn new(config: &TcpConfig, me: &NameParts) -> Result<Self, NicError> {
        let wanted = config.bind.unwrap_or_else(|| SocketAddr::new(me.socket.ip(), 0));
        let (listener, addr) =
            sys::listen(&wanted, config).map_err(|errno| NicError::Listen { addr: wanted, source: errno.into() })?;
        let mut socket = if addr.ip().is_unspecified() { me.socket } else { addr };
        socket.set_port(addr.port());
        let name = EpName::full(&NameParts { socket, ..*me });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(NicError::system("epoll_create1"))?;
        let timer =
            rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)
                .map_err(NicError::system("timerfd_create"))?;
        let spare = Some(timer.try_clone().map_err(NicError::system("dup"))?);
        for (fd, token) in [(listener.as_fd(), Token::Listener), (timer.as_fd(), Token::Timer)] {
            let data = epoll::EventData::new_u64(token.pack());
            epoll::add(&epoll, fd, data, epoll::EventFlags::IN).map_err(NicError::system("epoll_ctl"))?;
        }
        Ok(Self {
            local: Local {
                name,
                job_key: config.job_key,
                open: config.endpoint.open,
                encrypt: config.endpoint.encrypt,
                version: config.version,
            },
            addr,
            listener,
            listener_resume_ms: None,
            accepts: Accepts::default(),
            asked_ms: 0,
            shortage_logged: false,
            epoll,
            timer,
            spare,
            generation: 0,
            links: Links::default(),
            secrets: Secrets::default(),
            sessions: Vec::new(),
            halves: Slab::new(),
            agenda: Agenda::default(),
            next_ack_ms: u64::MAX,
            requested: Vec::new(),
            stage: StagingBuffer::new(),
            writer: Writer::new(config.segment_bytes, QUEUE_BYTES),
            pace: Pace::new(),
            focus: Focus::new(),
            rails: Rails::new(),
            chains: Box::new(Chains::new(if config.endpoint.encrypt { Uring::No } else { config.uring })),
            events: None,
            next_timer_ms: u64::MAX,
            next_scan_ms: u64::MAX,
            hindered: false,
            parked: false,
            stats: TcpStats::default(),
            owner: rustix::process::getpid(),
            config: config.clone(),
        })
    }

    /// Changes the endpoint's name. Only allowed before the first link.
    pub(crate) fn rename(&mut self, name: EpName) {
        debug_assert!(self.links.is_empty() && self.halves.is_empty());
        self.local.name = name;
    }

    /// The address at which the device listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.addr
    }

    /// The descriptor to sleep on; see [`crate::Device::wait_fd`].
    #[must_use]
    pub fn wait_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    /// Writes accepted messages without a poll, as far as the kernel accepts them. Returns whether none is left.
    pub fn drain(&mut self) -> bool {
        self.write_dirty();
        let is_kept =
            |link: &Link| link.tx.is_unsent() && !link.tx.socket.has_failed() && matches!(link.state, LinkState::Up);
        let kept: Vec<u32> = self.links.iter().filter(|(_, link)| is_kept(link)).map(|(id, _)| id).collect();
        for &id in &kept {
            if let Some(link) = self.links.get_mut(id) {
                link.tx.socket.try_again();
            }
            self.pump(id);
        }
        kept.iter().all(|&id| self.links.get(id).is_none_or(|link| !link.tx.is_unsent() || link.tx.socket.has_failed()))
    }

    /// The note of deferred messages.
    #[must_use]
    pub fn unsent(&self) -> Option<&Arc<Unsent>> {
        self.config.unsent.as_ref()
    }

    /// Prepares for a sleep on [`Self::wait_fd`]. `false`: there is something to poll.
    pub fn park(&mut self) -> bool {
        self.write_dirty();
        if self.has_work() {
            return false;
        }
        if self.next_timer_ms != u64::MAX {
            self.arm_timer(self.next_timer_ms);
        }
        self.parked = true;
        true
    }

    /// Number of next polls that need no system call.
    pub(crate) fn quiet_polls(&self) -> u32 {
        if self.parked || self.has_work() { 0 } else { self.pace.quiet_calls() }
    }

    /// Counts polls that were skipped, at most [`Self::quiet_polls`].
    pub(crate) fn skip(&mut self, polls: u32) {
        self.pace.skip(polls);
    }

    /// Whether a poll has work before anything arrives.
    pub(crate) fn has_work(&self) -> bool {
        !(self.agenda.is_empty(Task::Flush)
            && self.requested.is_empty()
            && !self.writer.has_done()
            && self.agenda.is_empty(Task::ReportEnd))
    }

    /// Whether a poll has no work before anything arrives, apart from messages noted in [`Self::unsent`].
    #[must_use]
    pub fn is_idle(&self) -> bool {
        let keeps = |id: u32| self.links.get(id).is_none_or(|link| link.tx.pushes() == 0);
        !self.writer.has_done()
            && self.requested.is_empty()
            && self.agenda.is_empty(Task::ReportEnd)
            && (self.agenda.is_empty(Task::Flush)
                || self.config.unsent.is_some() && self.agenda.links(Task::Flush).all(keeps))
    }

    /// Whether this process opened the device.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        rustix::process::getpid() == self.owner
    }

    /// Ends the sleep of the caller.
    pub fn wake(&mut self) {
        self.parked = false;
        self.pace.wake();
    }

    /// Notes that another device of the endpoint delivered something in this round (`pace.rs`).
    #[inline]
    pub fn other_device_delivered(&mut self) {
        self.pace.other_device_delivered();
    }

    /// Counters of the device.
    #[must_use]
    pub fn stats(&self) -> TcpStats {
        TcpStats {
            receive_calls: self.stage.calls(),
            send_calls: self.writer.calls(),
            links: self.links.len() - self.agenda.len(Task::Close),
            half_open: self.halves.len(),
            rails: self.rails.up(),
            rail_bytes: self.rails.bytes(),
            chained: self.chains.completed(),
            ..self.stats
        }
    }

    /// A description of a link; `None` if it does not exist.
    #[must_use]
    pub fn describe(&self, id: LinkId) -> Option<TcpLinkInfo> {
        let link = self.links.get(id.0).filter(|link| !link.is_closed())?;
        let socket = link.socket.as_ref();
        Some(TcpLinkInfo {
            local: socket.and_then(|fd| rustix::net::getsockname(fd).ok()?.try_into().ok()),
            remote: socket.and_then(|fd| rustix::net::getpeername(fd).ok()??.try_into().ok()),
            queued_bytes: link.tx.queued(),
            kept_bytes: link.tx.unacked(),
            pushes: link.tx.pushes() + self.rails.pushes(id.0),
        })
    }

    fn caps(&self) -> NicCaps {
        caps(self.config.eager_bytes)
    }

    fn next_generation(&mut self) -> u32 {
        self.generation = (self.generation + 1) & ((1 << GENERATION_BITS) - 1);
        self.generation
    }

    /// Puts a link into the table.
    fn insert(&mut self, socket: Option<ForkClosedFd>, generation: u32, state: LinkState) -> Result<u32, LinkError> {
        let link = Link { socket, generation, state, rx: Intake::START, tx: Tx::default(), session: None };
        let id = self.links.insert(link).ok_or(LinkError::Resources)?;
        self.agenda.admit(id);
        Ok(id)
    }

    fn set_timer(&mut self, at_ms: u64) {
        if at_ms < self.next_timer_ms {
            self.next_timer_ms = at_ms;
            if self.parked {
                // Another thread sleeps until a socket or the timer reports an event.
                self.arm_timer(at_ms);
            }
        }
    }

    /// Makes the timer descriptor readable at `at_ms`, or a little later because the coarse clock lags.
    fn arm_timer(&self, at_ms: u64) {
        const LAG_MS: u64 = 4;
        let at_ms = at_ms.saturating_add(LAG_MS).min(i64::MAX as u64);
        #[allow(clippy::cast_possible_wrap)]
        let at = Timespec { tv_sec: (at_ms / 1000) as i64, tv_nsec: (at_ms % 1000 * 1_000_000) as i64 };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: at };
        if let Err(errno) = rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once) {
            log::warn!(
                "tcp: timerfd_settime: {errno}: while the endpoint sleeps, time-outs come late; does the process close a descriptor \
                 that is not its own?"
            );
        }
    }

    /// Watches writability exactly while it matters.
    #[inline]
    fn rearm(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id) else { return };
        let armed = self.agenda.has(Task::AwaitWritable, id);
        let want = link.tx.socket.is_full() || (armed && link.tx.has_more());
        // A failed socket is treated as closed.
        if want == armed || link.tx.socket.has_failed() {
            return;
        }
        let Some(socket) = &link.socket else { return };
        let flags = if want { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN };
        let data = epoll::EventData::new_u64(Token::Link(id, link.generation).pack());
        if let Err(errno) = epoll::modify(&self.epoll, socket, data, flags) {
            // Without events the link would hang. The receiving half finds the socket's error.
            sys::cannot_watch(errno);
            link.tx.socket = SocketState::Broken;
            return;
        }
        if want {
            self.agenda.add(Task::AwaitWritable, id);
        } else {
            self.agenda.remove(Task::AwaitWritable, id);
        }
    }

    /// Sends a link's bytes, within a budget.
    fn pump(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (LinkState::Up, Some(socket)) = (&link.state, &link.socket) else { return };
        let fd = socket.as_fd();
        let pumped = if self.config.endpoint.encrypt {
            let Some(wire) = self.secrets.of(id, fd) else { return };
            self.writer.pump(wire, &mut link.tx, &mut link.rx, SEND_BUDGET_BYTES)
        } else {
            self.writer.pump(fd, &mut link.tx, &mut link.rx, SEND_BUDGET_BYTES)
        };
        if pumped == Pumped::More {
            self.agenda.add(Task::Flush, id);
        } else if link.tx.socket == SocketState::Unreadable {
            log::warn!(
                "tcp: the memory of a transfer cannot be read (unmapped while in use?): the link to its peer ends; leave buffers alone \
                 until their operations are complete"
            );
            self.report_end(id, LinkError::Access);
        }
        self.rearm(id);
        if !self.rails.is_empty() {
            self.pump_rails(id);
        }
    }

    /// The part of a poll that reads the clock, and usually the sockets.
    #[inline(never)]
    fn poll_sockets<S: Sink>(&mut self, sink: &mut S, reports: bool) -> usize {
        let now_ms = sys::now_ms();
        let busy = !self.links.is_empty() || !self.halves.is_empty();
        if !reports && !self.pace.due(busy, now_ms) {
            return 0;
        }
        self.progress(sink, now_ms)
    }

    /// Sends the gathered bytes of all links.
    #[inline(always)]
    fn write_dirty(&mut self) {
        if !self.agenda.is_empty(Task::Flush) {
            self.write_some();
        }
    }

    #[inline(never)]
    fn write_some(&mut self) {
        let round = self.agenda.take(Task::Flush);
        for id in round.links() {
            self.pump(id);
        }
        self.agenda.give_back(round);
    }

    /// Leaves the requested acknowledgements to the next flush: the client often answers what has just arrived, and the
    /// acknowledgement then leaves with the answer, in one call. Otherwise the next poll or the flusher sends it.
    #[cold]
    #[inline(never)]
    fn delay_acknowledgements(&mut self) {
        let noted = self.config.unsent.as_ref().is_some_and(|unsent| unsent.note());
        while let Some(id) = self.requested.pop() {
            if self.links.get(id).is_none_or(|link| !link.tx.ack_due) {
                continue;
            }
            if noted {
                self.agenda.add(Task::Flush, id);
            } else {
                self.pump(id);
            }
        }
    }

    /// Writes bytes that no thread would write later.
    #[cold]
    #[inline(never)]
    fn write_unattended(&mut self, id: u32) {
        self.pump(id);
    }

    /// Starts to watch a link's socket.
    fn watch(&self, socket: &ForkClosedFd, token: Token, flags: epoll::EventFlags) -> Result<(), Failure> {
        let data = epoll::EventData::new_u64(token.pack());
        epoll::add(&self.epoll, socket, data, flags).map_err(|errno| Failure::Final(shortage(errno)))
    }

    /// Accepts a message. The links of a device are all encrypted or all plain.
    #[inline(always)]
    fn send_on<const SEALED: bool>(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        let id = link.0;
        let Some(link) = self.links.get_mut(id) else { return Err(Full) };
        let (LinkState::Up, Some(socket)) = (&link.state, &link.socket) else { return Err(Full) };
        self.pace.wake();
        let fd = socket.as_fd();
        let outcome = if SEALED {
            let Some(wire) = self.secrets.of(id, fd) else { return Err(Full) };
            self.writer.message(wire, &mut link.tx, &mut link.rx, head, body)
        } else {
            self.writer.message(fd, &mut link.tx, &mut link.rx, head, body)
        };
        let tx = &mut link.tx;
        if (tx.queued() > 0 || SEALED && tx.socket == SocketState::FullWithinRecord)
            && let Some(unsent) = &self.config.unsent
            && !unsent.note()
        {
            self.write_unattended(id);
        } else if tx.socket.is_full() {
            self.rearm(id);
        } else if tx.queued() > 0 {
            self.agenda.add(Task::Flush, id);
        }
        outcome
    }

    /// [`Nic::send`] for encrypted links, out of line.
    #[cold]
    #[inline(never)]
    fn send_sealed(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        self.send_on::<true>(link, head, body)
    }
}

/// TCP reaches any memory.
impl Registrar for Tcp {}

impl Chaining for Tcp {}

impl Nic for Tcp {
    weft_engine::decline!(confirm, boards, notice);

    fn name(&self) -> EpName {
        self.local.name
    }

    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        let now_ms = sys::now_ms();
        let attempt = Box::new(Attempt::new(peer, peer.same_host(&self.local.name), &self.config, now_ms));
        let generation = self.next_generation();
        let id = self.insert(None, generation, LinkState::Connecting(attempt))?;
        self.agenda.add(Task::Connect, id);
        self.dial(id, now_ms);
        self.pace.wake();
        Ok(LinkId(id))
    }

    #[inline]
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full> {
        if self.config.endpoint.encrypt {
            return self.send_sealed(link, head, body);
        }
        self.send_on::<false>(link, head, body)
    }

    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full> {
        let id = link.0;
        let Some(link) = self.links.get_mut(id) else { return Err(Full) };
        if !matches!(link.state, LinkState::Up) {
            return Err(Full);
        }
        self.pace.wake();
        if self.is_striped(src) && self.push_on_rails(id, window, offset, src, ctx)? {
            return Ok(());
        }
        let Some(link) = self.links.get_mut(id) else { return Err(Full) };
        self.writer.push(LinkId(id), &mut link.tx, window, offset, src, ctx)?;
        if link.tx.socket.is_full() {
            return Ok(());
        }
        // The first of several pushes is sent immediately, because the client may compute afterwards.
        if link.tx.pushes() == 1 {
            self.pump(id);
        } else {
            self.agenda.add(Task::Flush, id);
        }
        Ok(())
    }

    fn announce(&mut self, link: LinkId, head: &[u8], window: u64, src: &[Iov], ctx: u64) -> Result<bool, Full> {
        let slot = self.links.get_mut(link.0).filter(|slot| matches!(slot.state, LinkState::Up)).ok_or(Full)?;
        self.writer.gather(&mut slot.tx, head, &[])?;
        let pushed = self.push(link, window, 0, src, ctx).is_ok();
        if !pushed {
            self.agenda.add(Task::Flush, link.0);
        }
        Ok(pushed)
    }

    fn copy(&mut self, _: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full> {
        debug_assert!(false, "tcp reaches no memory of the peer: {copy:?}");
        Err(Full)
    }

    #[inline]
    fn flush(&mut self) {
        self.writer.begin_round();
        self.write_dirty();
        if !self.requested.is_empty() {
            self.delay_acknowledgements();
        }
    }

    #[inline(always)]
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.writer.begin_round();
        self.write_dirty();
        if self.parked {
            self.wake();
        }
        let reports = self.writer.has_done() || !self.agenda.is_empty(Task::ReportEnd);
        if !reports && self.pace.pass() { 0 } else { self.poll_sockets(sink, reports) }
    }

    fn close(&mut self, link: LinkId) {
        self.writer.forget_done(link);
        match self.links.get(link.0) {
            Some(gone) if gone.is_closed() => {}
            Some(Link { state: LinkState::Up | LinkState::Broken(_), .. }) => self.close_gracefully(link.0),
            _ => self.remove_closed(link.0),
        }
    }

    /// The peer learns of the end only if the socket accepts the goodbye now.
    fn discard(&mut self, link: LinkId) {
        self.close(link);
        self.remove_closed(link.0);
    }

    fn held_bytes(&self, link: LinkId) -> usize {
        let sealed = if self.config.endpoint.encrypt { self.secrets.held_bytes(link.0) } else { 0 };
        self.links.get(link.0).map_or(0, |link| link.tx.unacked() + link.rx.held_bytes()) + sealed
    }

    fn drained(&self) -> bool {
        !self.writer.has_done()
            && self.rails.is_drained()
            && self.links.iter().all(|(_, link)| match link.state {
                LinkState::Closed(_) => true,
                LinkState::Broken(_) => link.tx.unacked() == 0 && link.tx.pushes() == 0,
                _ => link.tx.is_empty() || link.tx.socket.has_failed(),
            })
            && self.agenda.links(Task::Close).all(|id| self.has_delivered_last(id))
    }
}

impl Drop for Tcp {
    /// Open links send a goodbye, as far as possible without waiting. A forked child sends nothing: the links and the
    /// epoll descriptor are its parent's.
    fn drop(&mut self) {
        if !self.is_ours() {
            return self.chains.abandon();
        }
        for id in self.links.numbers() {
            self.close(LinkId(id));
        }
        // A child that was forked just now, or has yet to execute another program, may hold a copy of these sockets.
        // Without the shutdown they would live on: callers would wait for an answer, and the address would stay in use.
        let halves = self.halves.iter().map(|(_, half)| &half.socket);
        for socket in halves.chain([&self.listener]) {
            // The call fails only if the peer has hung up first.
            let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
        }
    }
}

impl std::fmt::Debug for Tcp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tcp").field("addr", &self.addr).field("stats", &self.stats()).finish_non_exhaustive()
    }
}
