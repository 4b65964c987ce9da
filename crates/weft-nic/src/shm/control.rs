//! Sockets and time: handshakes, hang-ups, time-outs, and the ends of links.
//!
//! Place in the data flow: part of [`Shm`]. `poll` calls [`Shm::check_control`] from time to time.
//!
//! The check costs a system call. It is made when the coarse clock has advanced, after 512 consecutive polls
//! that found nothing, and after sleeping. The clock itself is read only in some polls, less often while
//! polls are successful. While a handshake makes progress, the check is made at these polls in any case.
//!
//! A hang-up is therefore noticed within a clock tick (1 to 10 ms), and usually within microseconds of
//! idleness. A caller that polls more rarely than the clock ticks notices it within a few unsuccessful polls.
//!
//! A link that hangs up is drained first. The sink gets the records that the peer published before it closed,
//! then `done` for the transfers in progress, then `down`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::{Shutdown, SocketFlags};
use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Sink};
use weft_os::ForkClosedFd;

use super::board::{self, Received};
use super::doorbell::{Barriers, Bell};
use super::handshake::{self, FLAG_CALLABLE, FLAG_REGISTERED, Handshake, Local, Offer, Step};
use super::link::{self, Link, Parts};
use super::segment::Role;
use super::sleep_protocol::SleepLevel;
use super::{Event, Shm, ShmConfig, Slot, cma, page, rights};
use crate::NicError;
use crate::error::shortage;

/// Maximum number of events that are taken from epoll at once.
pub(super) const EVENTS: usize = 64;
/// Number of cold links that the slow scan polls in one clock tick.
const SCAN_LINKS: usize = 8;
/// Number of early checks of the sockets after a step of a handshake, whose next frame is due within
/// microseconds. The limit bounds the delay by a peer that computes and does not answer.
pub(super) const EARLY_CHECKS: u32 = 512;
/// Number of successful polls between two readings of the clock.
pub(super) const POLLS_PER_CLOCK_READ: u32 = 64;
/// Successful polls for which an unsuccessful one counts.
const EMPTY_POLL: u32 = 8;
/// Time after which a sleeping device retries a connection that waits for room in a backlog, in ns.
const RETRY_NS: u64 = 2_000_000;
/// Time after which a sleeping device accepts again, if foreign users or lack of descriptors have prevented
/// it, in ns.
const ACCEPT_AGAIN_NS: u64 = 50_000_000;

/// The events of the socket of a handshake or of a link.
const WATCH: EventFlags = EventFlags::IN.union(EventFlags::RDHUP);

const TOKEN_ID: u64 = 0;
const TOKEN_PORT: u64 = 1;
const TOKEN_TIMER: u64 = 2;
const TOKEN_HANDSHAKE: u64 = 1 << 32;
const TOKEN_LINK: u64 = 2 << 32;

/// The listeners, the timer and the clock.
pub(super) struct Control {
    pub(super) by_id: ForkClosedFd,
    pub(super) by_port: Option<ForkClosedFd>,
    /// Whether sockets can refuse descriptors, so that foreign users cannot send any.
    pub(super) refuses_rights: bool,
    /// Sockets of foreign users that cannot be closed yet. While there are too many, no connection is
    /// accepted.
    pub(super) foreign_sockets: Vec<OwnedFd>,
    /// The listeners are shut down because of too many foreign sockets; callers are refused.
    pub(super) shut: bool,
    /// An attempt to accept has failed, and a caller may be waiting. The next clock tick requests another
    /// report.
    pub(super) recheck_listeners: bool,
    /// Number of callers that were denied a link.
    pub(super) denied: u64,
    pub(super) timer: OwnedFd,
    timer_armed: bool,
    /// A descriptor that is released for a moment when descriptors have run out.
    pub(super) spare: Option<OwnedFd>,
    /// The coarse clock as last read, in ns.
    now_ns: u64,
    /// The link whose process was checked last.
    check_at: u32,
}

fn listen(name: &[u8]) -> Result<ForkClosedFd, NicError> {
    handshake::listen(name).map_err(NicError::system("an abstract Unix socket"))
}

impl Control {
    pub(super) fn new(epoll: &OwnedFd, me: &EpName, service: Option<u16>) -> Result<Self, NicError> {
        let watch = |fd: BorrowedFd<'_>, token| {
            epoll::add(epoll, fd, EventData::new_u64(token), EventFlags::IN).map_err(NicError::system("epoll_ctl"))
        };
        let by_id = listen(&handshake::id_address(&me.ep_id()))?;
        watch(by_id.as_fd(), TOKEN_ID)?;
        let by_port = match service {
            Some(port) => {
                let socket = listen(&handshake::port_address(port))?;
                watch(socket.as_fd(), TOKEN_PORT)?;
                Some(socket)
            }
            None => None,
        };
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(NicError::system("timerfd_create"))?;
        watch(timer.as_fd(), TOKEN_TIMER)?;
        let spare = Some(timer.try_clone().map_err(NicError::system("dup"))?);
        let refuses_rights = rights::allow(by_id.as_fd(), false);
        let now_ns = coarse_ns();
        Ok(Self {
            by_id,
            by_port,
            refuses_rights,
            foreign_sockets: Vec::new(),
            shut: false,
            recheck_listeners: false,
            denied: 0,
            timer,
            timer_armed: false,
            spare,
            now_ns,
            check_at: 0,
        })
    }

    /// Simulates a system where sockets cannot refuse descriptors.
    #[cfg(test)]
    pub(super) fn accept_rights(&mut self) {
        self.refuses_rights = false;
        assert!(rights::allow(self.by_id.as_fd(), true));
    }

    pub(super) fn listeners(&self) -> impl Iterator<Item = (&ForkClosedFd, u64)> {
        let by_port = self.by_port.iter().map(|socket| (socket, TOKEN_PORT));
        [(&self.by_id, TOKEN_ID)].into_iter().chain(by_port)
    }
}

fn coarse_ns() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::MonotonicCoarse);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// Kind and index of a token.
fn parts_of(token: u64) -> (u64, u32) {
    (token & !0xffff_ffff, (token & 0xffff_ffff) as u32)
}

fn token_of(kind: u64, index: usize) -> EventData {
    EventData::new_u64(kind | index as u64)
}

impl Shm {
    /// Whether to check the sockets after a poll that made `calls` sink calls.
    #[inline(always)]
    pub(super) fn control_is_due(&mut self, calls: usize) -> bool {
        if calls == 0 {
            self.skip(1);
        } else {
            self.empty_polls = 0;
            self.clock_in = self.clock_in.saturating_sub(1);
        }
        let clock_is_due = self.clock_in == 0;
        if clock_is_due {
            self.clock_in = POLLS_PER_CLOCK_READ;
        }
        self.control_due
            || (clock_is_due
                && (self.early_checks > 0 || self.empty_polls >= 512 || coarse_ns() != self.control.now_ns))
    }

    /// Number of unsuccessful polls before the one that reads the clock.
    pub(super) fn polls_before_clock(&self) -> u32 {
        self.clock_in / EMPTY_POLL
    }

    /// Counts unsuccessful polls, or polls that only take what peers publish.
    #[inline(always)]
    pub(crate) fn skip(&mut self, polls: u32) {
        self.empty_polls += polls;
        self.clock_in = self.clock_in.saturating_sub(polls * EMPTY_POLL);
    }

    /// Checks the sockets, the clock and some of the cold links. Returns the number of sink calls.
    #[cold]
    pub(super) fn check_control<S: Sink>(&mut self, sink: &mut S) -> usize {
        self.control_due = false;
        self.empty_polls = 0;
        self.early_checks = if self.handshakes.is_empty() { 0 } else { self.early_checks.saturating_sub(1) };
        let now_ns = coarse_ns();
        let ticked = now_ns != self.control.now_ns;
        self.control.now_ns = now_ns;
        let mut calls = 0;
        let mut is_quiet = true;
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        if let Ok((ready, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default())) {
            // A full buffer means that there may be more events.
            self.control_due = ready.len() == EVENTS;
            is_quiet = ready.is_empty();
            for event in ready {
                calls += self.socket_event(event.data.u64(), event.flags, sink);
            }
        }
        if ticked {
            self.accept_again();
            if !self.handshakes.is_empty() {
                calls += self.check_deadlines(sink);
            }
            calls += self.scan(sink);
            // The check takes some microseconds. A sleeper that was woken for a message does not make it.
            if is_quiet {
                self.check_next_process();
            }
        }
        calls
    }

    /// Whether the sockets have events that need a poll. Wake-up bytes are consumed; they end an announced
    /// sleep.
    pub(super) fn sockets_ready(&mut self) -> bool {
        let mut buffer = [MaybeUninit::uninit(); EVENTS];
        let Ok((ready, _)) = epoll::wait(&self.epoll, &mut buffer, Some(&Timespec::default())) else {
            return true;
        };
        let mut serious = ready.len() == EVENTS;
        for event in ready {
            let (kind, id) = parts_of(event.data.u64());
            let flags = event.flags;
            if matches!(event.data.u64(), TOKEN_ID | TOKEN_PORT) {
                self.report_again();
            }
            serious |= kind != TOKEN_LINK || flags != EventFlags::IN;
            if !serious {
                let heard = self.read_life_line(id);
                if let Err(why) = heard {
                    self.fail(id, why);
                }
                serious = heard != Ok(true);
            }
        }
        serious
    }

    fn socket_event<S: Sink>(&mut self, token: u64, flags: EventFlags, sink: &mut S) -> usize {
        let (kind, id) = parts_of(token);
        match kind {
            TOKEN_HANDSHAKE => self.step_handshake(id as usize, sink),
            TOKEN_LINK => {
                // A hang-up counts even if wake-up bytes are unread.
                if flags.intersects(EventFlags::HUP | EventFlags::RDHUP | EventFlags::ERR) {
                    self.hang_up(id);
                } else if let Err(why) = self.read_life_line(id) {
                    self.fail(id, why);
                }
                0
            }
            _ if token == TOKEN_TIMER => {
                self.disarm_timer();
                self.accept_again();
                self.check_deadlines(sink)
            }
            _ => self.accept_connections(token == TOKEN_PORT, sink),
        }
    }

    /// Reads wake-up bytes and boards from a life line. A wake-up ends an announced sleep. Returns whether all was
    /// read.
    fn read_life_line(&mut self, id: u32) -> Result<bool, LinkError> {
        let Some(Slot::Up(link)) = self.links.get(id as usize) else { return Ok(true) };
        for _ in 0..8 {
            match board::receive(link.socket())? {
                Received::WakeUp => {
                    self.door.wake();
                    // The link's bit is set, unless another peer has cleared it.
                    if link.ready() {
                        self.door.page().ring(id % page::SLOTS);
                    }
                }
                Received::Board(key, board) => {
                    self.door.wake();
                    self.events.push_back(Event::Board(LinkId(id), key, board));
                }
                Received::Region(key, region) => {
                    self.door.wake();
                    self.events.push_back(Event::Region(LinkId(id), key, region));
                }
                Received::Nothing => return Ok(true),
                Received::HangUp => {
                    self.hang_up(id);
                    return Ok(false);
                }
            }
        }
        Ok(false)
    }

    /// The slow scan: each link is polled eventually, even if its doorbell bit was lost (`page.rs`). Rings that are not
    /// used release memory.
    fn scan<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        for _ in 0..SCAN_LINKS.min(self.links.len()) {
            self.scan_at = if self.scan_at as usize + 1 < self.links.len() { self.scan_at + 1 } else { 0 };
            if matches!(&self.links[self.scan_at as usize], Slot::Up(link) if link.ready()) {
                calls += self.poll_link(self.scan_at, sink);
            }
            let now = self.control.now_ns / link::TRIM_UNIT_NS;
            if let Some(link) = self.link(LinkId(self.scan_at)) {
                link.trim(now);
            }
        }
        calls
    }

    /// Checks the process of one link, each time of the next. A child that the process made without fork(3) may keep
    /// its life line open.
    fn check_next_process(&mut self) {
        self.control.check_at =
            if self.control.check_at as usize + 1 < self.links.len() { self.control.check_at + 1 } else { 0 };
        if let Some(Slot::Up(link)) = self.links.get(self.control.check_at as usize)
            && !link.is_of(self.owner)
            && !link.is_alive()
        {
            self.hang_up(self.control.check_at);
        }
    }

    pub(super) fn start_connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError> {
        if !peer.shm() {
            return Err(LinkError::Unreachable);
        }
        let id = self.number();
        match Handshake::connect(peer, id, self.deadline_ns(peer)) {
            Ok(handshake) => {
                let key = self.handshakes.insert(handshake);
                self.links[id as usize] = Slot::Connecting(key);
                // The connection is attempted here, so that a refusal is known at the next poll.
                if let Err(why) = self.try_step(key) {
                    self.drop_handshake(key);
                    self.end(id, why);
                }
                self.early_checks = EARLY_CHECKS;
                if self.sleep_level != SleepLevel::Awake {
                    // Another thread sleeps until an event of its sockets or the timer.
                    self.arm_timer();
                }
                Ok(LinkId(id))
            }
            Err(why) => {
                self.free.push(id);
                Err(why)
            }
        }
    }

    /// The time in ns at which the next frame of a handshake with `acceptor` is late. `acceptor` is the name
    /// that the initiator has, which may be the own name.
    pub(super) fn deadline_ns(&self, acceptor: &EpName) -> u64 {
        let patience_ms =
            if acceptor.is_full() { self.config.answer_timeout_ms } else { self.config.connect_timeout_ms };
        coarse_ns().saturating_add(patience_ms.saturating_mul(1_000_000))
    }

    pub(super) fn watch_handshake(&self, key: usize) -> io::Result<()> {
        let socket = self.handshakes[key].socket();
        Ok(epoll::add(&self.epoll, socket, token_of(TOKEN_HANDSHAKE, key), WATCH)?)
    }

    /// Advances a handshake as far as possible.
    pub(super) fn step_handshake<S: Sink>(&mut self, key: usize, sink: &mut S) -> usize {
        if !self.handshakes.contains(key) {
            return 0;
        }
        let initiator = self.handshakes[key].link;
        match self.try_step(key) {
            // A silent caller causes no early checks. A connection attempt of this side does, while it waits
            // for room.
            Ok(Step::Wait) if !self.handshakes[key].is_connecting() => 0,
            Ok(Step::Wait | Step::Sent) => {
                self.early_checks = EARLY_CHECKS;
                0
            }
            Ok(Step::Ready(offer)) => self.finish_handshake(key, initiator, *offer, sink),
            Err(why) => {
                self.handshakes[key].refuse(why, self.config.version);
                if initiator.is_none() && matches!(why, LinkError::Denied | LinkError::Version(_)) {
                    self.log_denial(why);
                }
                self.drop_handshake(key);
                if let Some(id) = initiator {
                    self.end(id, why);
                }
                0
            }
        }
    }

    pub(super) fn try_step(&mut self, key: usize) -> Result<Step, LinkError> {
        let was_connecting = self.handshakes[key].is_connecting();
        let local = local(&self.me, &self.config, &self.door, self.barriers, &self.probe_value, self.lines);
        let step = self.handshakes[key].step(&local)?;
        if was_connecting && !self.handshakes[key].is_connecting() {
            self.watch_handshake(key).map_err(shortage)?;
        }
        if matches!(step, Step::Sent) {
            // The deadline starts anew, since this side may have caused the delay until now.
            self.handshakes[key].deadline_ns = self.deadline_ns(self.handshakes[key].target());
        }
        Ok(step)
    }

    fn take_handshake(&mut self, key: usize) -> Handshake {
        self.accepted.retain(|&accepted| accepted != key);
        self.handshakes.remove(key)
    }

    pub(super) fn drop_handshake(&mut self, key: usize) {
        let handshake = self.take_handshake(key);
        self.disconnect(&handshake);
        if handshake.may_be_foreign() {
            self.close_foreign(handshake.into_socket());
        }
    }

    /// Ends a connection that does not become a link.
    fn disconnect(&self, handshake: &Handshake) {
        // The socket is removed explicitly: if a child still holds it open, events would continue.
        let _ = epoll::delete(&self.epoll, handshake.socket());
        hang_up_on(handshake.socket());
    }

    /// Makes the link, on which both ends have agreed.
    #[inline(never)]
    fn finish_handshake<S: Sink>(&mut self, key: usize, initiator: Option<u32>, offer: Offer, sink: &mut S) -> usize {
        let id = initiator.unwrap_or_else(|| self.number());
        let direct = self.config.cma && cma::reaches(offer.pid, offer.probe_addr, &offer.probe_value);
        let info = LinkUp { peer: offer.peer, initiator: offer.role == Role::Initiator, caps: self.caps(direct) };
        match self.make_link(id, key, offer, direct) {
            Ok(link) => {
                self.links[id as usize] = Slot::Up(Box::new(link));
                sink.up(LinkId(id), info);
                1
            }
            Err(why) => {
                match initiator {
                    Some(id) => self.end(id, why),
                    None => self.release_number(id),
                }
                0
            }
        }
    }

    /// Makes the link of a handshake, which ends in any case.
    fn make_link(&mut self, id: u32, key: usize, offer: Offer, direct: bool) -> Result<Link, LinkError> {
        let handshake = self.take_handshake(key);
        match self.prepare_link(id, &handshake, offer, direct) {
            Ok(parts) => Ok(Link::new(parts, handshake.into_socket())),
            Err(why) => {
                handshake.refuse(why, self.config.version);
                self.disconnect(&handshake);
                Err(why)
            }
        }
    }

    /// Prepares all parts of a link that may fail. The acceptance is sent last: a peer that is told of a
    /// failure instead connects by another device.
    fn prepare_link(&self, id: u32, handshake: &Handshake, offer: Offer, direct: bool) -> Result<Parts, LinkError> {
        let bell = Bell::adopt(&offer.door).map_err(handshake::adoption_error)?;
        let (tx, rx) = link::rings(&offer.map, offer.role, offer.lines).map_err(shortage)?;
        let token = token_of(TOKEN_LINK, id as usize);
        epoll::modify(&self.epoll, handshake.socket(), token, WATCH).map_err(shortage)?;
        if offer.role == Role::Acceptor {
            let local = local(&self.me, &self.config, &self.door, self.barriers, &self.probe_value, self.lines);
            handshake::accept(handshake.socket(), id, &local)?;
        }
        Ok(Parts {
            map: offer.map,
            tx,
            rx,
            role: offer.role,
            bell,
            slot: offer.slot,
            pid: offer.pid,
            // The peer's membarrier calls order this side's publications, if this process is registered and
            // the peer can call.
            must_fence: !(self.barriers.registered && offer.flags & FLAG_CALLABLE != 0),
            direct,
        })
    }

    /// Ends late handshakes. Each socket is read before its handshake counts as late: this process may have
    /// been away, and one check reports at most [`EVENTS`] sockets.
    fn check_deadlines<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        let keys: Vec<usize> = self.handshakes.iter().map(|(key, _)| key).collect();
        for key in keys {
            let now_ns = self.control.now_ns;
            let is_late = |handshake: &&Handshake| handshake.deadline_ns <= now_ns;
            if self.handshakes.get(key).is_some_and(|handshake| is_late(&handshake) || handshake.is_connecting()) {
                calls += self.step_handshake(key, sink);
            }
            if let Some(late) = self.handshakes.get(key).filter(is_late) {
                let initiator = late.link;
                self.drop_handshake(key);
                if let Some(id) = initiator {
                    self.end(id, LinkError::Timeout);
                }
            }
        }
        calls
    }

    /// Sets the timer before a sleep, for the earliest deadline of a handshake or retry of a listener.
    pub(super) fn arm_timer(&mut self) {
        let soonest = self.handshakes.iter().map(|(_, handshake)| {
            let retry = self.control.now_ns.saturating_add(RETRY_NS);
            if handshake.is_connecting() { retry } else { handshake.deadline_ns }
        });
        let held_up = self.control.recheck_listeners || !self.control.foreign_sockets.is_empty();
        let retry = held_up.then(|| self.control.now_ns.saturating_add(ACCEPT_AGAIN_NS));
        if let Some(at_ns) = soonest.chain(retry).min() {
            self.control.timer_armed = true;
            // The coarse clock must have reached the deadline, too, so one coarse tick is added.
            self.set_timer(at_ns.saturating_add(10_000_000));
        }
    }

    fn disarm_timer(&mut self) {
        if self.control.timer_armed {
            self.control.timer_armed = false;
            self.set_timer(0);
        }
    }

    /// Sets the timer to an absolute time in ns; 0 clears the timer and its pending event.
    fn set_timer(&self, at_ns: u64) {
        let at_ns = i64::try_from(at_ns).unwrap_or(i64::MAX);
        let it_value = Timespec { tv_sec: at_ns / 1_000_000_000, tv_nsec: at_ns % 1_000_000_000 };
        let spec = Itimerspec { it_interval: Timespec::default(), it_value };
        // A valid time cannot fail. If it did, the next clock tick would have the same effect.
        let _ = timerfd_settime(&self.control.timer, TimerfdTimerFlags::ABSTIME, &spec);
    }

    /// Checks that a process id still denotes the peer, before the peer's memory is accessed by it. The
    /// system is asked at most once in a tick of the clock. While the client was computing, the id may have
    /// been reused, or the peer may have executed another program (execve(2)).
    pub(super) fn check_process(&mut self, id: LinkId) {
        if coarse_ns() != self.control.now_ns
            && let Some(Slot::Up(link)) = self.links.get(id.0 as usize)
            && !link.is_alive()
        {
            self.hang_up(id.0);
        }
    }

    /// The peer is gone: its remaining records are delivered, and then the end is reported.
    fn hang_up(&mut self, id: u32) {
        let Some(Slot::Up(link)) = self.links.get_mut(id as usize) else { return };
        if link.hung_up {
            return;
        }
        link.hung_up = true;
        self.dying.push(id);
        self.make_cold(id);
        self.unwatch(id);
    }

    fn unwatch(&self, id: u32) {
        if let Some(Slot::Up(link)) = self.links.get(id as usize) {
            let _ = epoll::delete(&self.epoll, link.socket());
        }
    }

    /// Delivers the remaining records of peers that have hung up, in bounded portions.
    #[cold]
    pub(super) fn drain_dying<S: Sink>(&mut self, sink: &mut S) -> usize {
        let mut calls = 0;
        for id in std::mem::take(&mut self.dying) {
            let Some(link) = self.link(LinkId(id)) else { continue };
            let polled = link.poll(LinkId(id), sink);
            calls += polled.calls;
            match polled.error {
                Some(why) => self.fail(id, why),
                None if polled.drained => {
                    let why = link.end_reason();
                    self.fail(id, why);
                }
                None => self.dying.push(id),
            }
        }
        calls
    }

    /// Ends a link that is up: `done` for its transfers, then `down`.
    #[cold]
    pub(super) fn fail(&mut self, id: u32, why: LinkError) {
        let Some(link) = self.link(LinkId(id)) else { return };
        // A living peer may be copying, and sees the hang-up only later.
        link.publish_failed();
        hang_up_on(link.socket());
        for ctx in link.take_bulk() {
            self.events.push_back(Event::Done(LinkId(id), ctx, Err(why)));
        }
        self.remove_link(id);
        self.end(id, why);
    }

    /// Ends all connections of the device, so that peers see it at once even where a child has copies of the
    /// descriptors.
    pub(super) fn hang_up_on_all(&self) {
        for slot in &self.links {
            if let Slot::Up(link) = slot {
                link.publish_closed();
                hang_up_on(link.socket());
            }
        }
        for (_, handshake) in &self.handshakes {
            hang_up_on(handshake.socket());
        }
        for (listener, _) in self.control.listeners() {
            hang_up_on(listener.as_fd());
            // The kernel would close the connections in the backlog together with the listener, in this
            // thread.
            while !self.control.refuses_rights
                && let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC)
            {
                hang_up_on(socket.as_fd());
                if handshake::is_foreign(socket.as_fd()) {
                    rights::close_or_leak(socket);
                }
            }
        }
    }

    /// Removes a link from all lists and from epoll.
    fn remove_link(&mut self, id: u32) {
        self.make_cold(id);
        self.unwatch(id);
        self.busy.retain(|&busy| busy != id);
        self.dying.retain(|&dying| dying != id);
        self.waiting.retain(|&waiting| waiting != id);
    }

    /// Queues `down`, and frees the link's memory and descriptors.
    fn end(&mut self, id: u32, why: LinkError) {
        self.links[id as usize] = Slot::Ending;
        self.events.push_back(Event::Down(LinkId(id), why));
    }

    /// Makes the number of a link free for another link.
    pub(super) fn release_number(&mut self, id: u32) {
        self.links[id as usize] = Slot::Free;
        self.free.push(id);
    }

    pub(super) fn close_link(&mut self, link: LinkId) {
        let Some(slot) = self.links.get_mut(link.0 as usize) else { return };
        match slot {
            Slot::Free => return,
            Slot::Connecting(key) => {
                let key = *key;
                self.drop_handshake(key);
            }
            // Sent messages are in memory that the peer has mapped. Pushes and transfers end here: their
            // memory is free when this returns, and `done` is not called for them.
            Slot::Up(up) => {
                up.publish_closed();
                hang_up_on(up.socket());
                self.remove_link(link.0);
            }
            Slot::Ending => {}
        }
        let of_link = |event: &Event| matches!(event, Event::Done(id, ..) | Event::Down(id, _) | Event::Board(id, ..) if *id == link);
        self.events.retain(|event| !of_link(event));
        self.release_number(link.0);
    }
}

/// Ends the connection itself, and not only this process's descriptor of it.
pub(super) fn hang_up_on(socket: BorrowedFd<'_>) {
    // The call fails only if the peer has hung up first.
    let _ = rustix::net::shutdown(socket, Shutdown::Both);
}

/// This side's data for handshakes.
fn local<'a>(
    me: &EpName,
    config: &'a ShmConfig,
    door: &'a super::Door,
    barriers: Barriers,
    probe_value: &[u8; 16],
    lines: u32,
) -> Local<'a> {
    let registered = if barriers.registered { FLAG_REGISTERED } else { 0 };
    let callable = if barriers.callable { FLAG_CALLABLE } else { 0 };
    Local {
        me: *me,
        job_key: &config.job_key,
        door: door.files(),
        flags: registered | callable,
        // No value can be read at address 0, so the peer finds that it cannot access this memory.
        probe_addr: if config.cma { std::ptr::from_ref(probe_value) as usize as u64 } else { 0 },
        probe_value: *probe_value,
        lines,
        version: config.version,
    }
}
