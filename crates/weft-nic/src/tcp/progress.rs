//! What a poll of the TCP device does: events, timers, the beginning and the end of links.
//!
//! Place in the data flow: [`Nic::poll`](weft_engine::nic::Nic::poll) calls [`Tcp::progress`] when [`super::pace`] finds it due; sockets that have
//! something are read into the [`Sink`].
//!
//! While the traffic is that of one or two links only, and of whole messages, their sockets are read directly, which saves the
//! question which sockets are ready; the others are asked for every few polls ([`Focus`]). Otherwise one call tells all ready
//! sockets, whatever the number of idle ones. Every portion is bounded: [`super::rx::READ_BUDGET_BYTES`] per link, [`super::EVENTS`] sockets and
//! [`ACCEPTS`] new connections per poll.
//!
//! Invariants: a link ends in [`Tcp::end`] and nowhere else (or by `close`): first its `done`s, then `down`. What ends by itself is reported
//! in the next poll: what a peer sends to several endpoints before it closes one of them has come to all by then, if they are polled in turn.

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use weft_engine::mem::IovList;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Sink};

use super::connect::{Failure, Found, Half, Source, Step};
use super::resume::Session;
use super::{EVENTS, Link, State, Tcp, Token, sys};

/// Connections accepted in one poll, and in one tick of the clock while half-open ones crowd: who floods the port gets a small part
/// of the time.
const ACCEPTS: usize = 32;
/// For so long the listener is set aside when there are too many connections, or no descriptors.
const LISTENER_PAUSE_MS: u64 = 50;
/// For so long all sockets are asked for in every poll after a connection has come: its handshake shall not wait.
const GREETING_MS: u64 = 20;
/// For so long a peer may be left without being told that its messages have come.
const TELL_MS: u64 = 200;
/// A connection is suspected after this part of the time after which a silent host is given up.
const STALLS: u64 = 6;
/// An acknowledgement may be missing for so many tries before a host is suspected.
const UNANSWERED: u32 = 2;

/// The links whose sockets are read without asking which are ready.
#[derive(Debug)]
pub(super) struct Focus {
    /// The links that brought something last, the latest first.
    hot: [u32; 2],
    /// Real polls since another link than these did.
    calm: u32,
    /// Real polls since any did.
    fruitless: u32,
    /// Real polls.
    turn: u32,
}

impl Focus {
    const NONE: u32 = u32::MAX;
    /// Polls without a third link after which the two are read directly.
    const CALM: u32 = 32;
    /// While two are read directly, all are asked for once in so many polls.
    const ASK_ALL: u32 = 8;
    /// The same when there are no other links: only new connections can be missed.
    const ASK_NEW: u32 = 64;
    /// Polls without anything after which all are asked for again.
    const FRUITLESS: u32 = 16 * 1024;

    pub(super) fn new() -> Self {
        Self { hot: [Self::NONE; 2], calm: 0, fruitless: 0, turn: 0 }
    }

    fn brought(&mut self, id: u32) {
        self.fruitless = 0;
        if self.hot[0] == id {
            return;
        }
        if self.hot[1] != id {
            self.calm = 0;
        }
        self.hot = [id, self.hot[0]];
    }

    /// Whether to read the hot links directly; counts a poll.
    fn direct(&mut self) -> bool {
        self.calm = self.calm.saturating_add(1);
        self.fruitless += 1;
        self.turn = self.turn.wrapping_add(1);
        if self.fruitless > Self::FRUITLESS {
            *self = Self::new();
        }
        self.calm > Self::CALM && self.hot[0] != Self::NONE
    }

    /// Whether, though hot links are read directly, all are to be asked for. `links`: how many there are.
    fn ask_all(&self, links: usize) -> bool {
        let hot = self.hot.iter().filter(|&&id| id != Self::NONE).count();
        self.turn.is_multiple_of(if links > hot { Self::ASK_ALL } else { Self::ASK_NEW })
    }
}

/// How many connections may still be accepted in this tick of the clock.
#[derive(Debug, Default)]
pub(super) struct Accepts {
    tick_ms: u64,
    taken: usize,
}

impl Accepts {
    /// Takes one, if any is left.
    fn take(&mut self, now_ms: u64) -> bool {
        if self.tick_ms != now_ms {
            *self = Self { tick_ms: now_ms, taken: 0 };
        }
        self.taken += 1;
        self.taken <= ACCEPTS
    }
}

/// Counts the calls that go to a sink.
struct Tally<'a, S> {
    sink: &'a mut S,
    calls: usize,
}

impl<S: Sink> Sink for Tally<'_, S> {
    fn up(&mut self, link: LinkId, info: LinkUp) {
        self.calls += 1;
        self.sink.up(link, info);
    }
    fn down(&mut self, link: LinkId, why: LinkError) {
        self.calls += 1;
        self.sink.down(link, why);
    }
    #[inline]
    fn message(&mut self, link: LinkId, bytes: &[u8]) {
        self.calls += 1;
        self.sink.message(link, bytes);
    }
    #[inline]
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<IovList> {
        self.sink.place(link, window, offset, len)
    }
    #[inline]
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize) {
        // An empty answer to `place` is no event.
        self.calls += usize::from(len > 0);
        self.sink.placed(link, window, offset, len);
    }
    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>) {
        self.calls += 1;
        self.sink.done(link, ctx, result);
    }
}

// An endpoint's devices move between the threads that make progress for it.
const _: fn() = || {
    fn is_send<T: Send>() {}
    is_send::<Tcp>();
};

impl Tcp {
    /// One real poll. Returns how many sink calls were made.
    pub(super) fn progress<S: Sink>(&mut self, sink: &mut S, now_ms: u64) -> usize {
        let mut tally = Tally { sink, calls: 0 };
        self.report_done(&mut tally);
        self.report_ends(&mut tally);
        let direct = self.focus.direct();
        let mut ask = !direct || self.armed > 0 || !self.calling.is_empty() || now_ms < self.greeting_until_ms;
        if !ask {
            for id in self.focus.hot {
                ask |= !self.read_direct(id, &mut tally);
            }
            ask |= !self.failed.is_empty();
        }
        if ask || self.focus.ask_all(self.links.len() + self.halves.len()) {
            self.take_events(&mut tally, now_ms);
        }
        if now_ms >= self.next_timer_ms {
            self.run_timers(&mut tally, now_ms);
        }
        // What this poll has completed is reported in it.
        self.report_done(&mut tally);
        if tally.calls > 0 {
            self.pace.wake();
        }
        tally.calls
    }

    /// Reports pushes that are done.
    #[inline]
    fn report_done<S: Sink>(&mut self, sink: &mut S) {
        for (link, ctx) in self.writer.done.drain(..) {
            sink.done(link, ctx, Ok(()));
        }
    }

    /// Reports the links that have ended since the last poll began.
    #[inline]
    fn report_ends<S: Sink>(&mut self, sink: &mut S) {
        if !self.failed.is_empty() {
            for (id, why) in std::mem::take(&mut self.failed) {
                self.end(id, why, sink);
            }
        }
    }

    /// Asks which descriptors are ready, and serves them.
    fn take_events<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        const NOW: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        self.stats.wait_calls += 1;
        let mut space = [MaybeUninit::<epoll::Event>::uninit(); EVENTS];
        let events = match epoll::wait(&self.epoll, &mut space, Some(&NOW)) {
            Ok((events, _)) => events,
            Err(Errno::INTR) => return,
            Err(errno) => {
                return log::error!(
                    "tcp: epoll_wait: {errno}; has the process closed a descriptor that is not its own?"
                );
            }
        };
        for event in events {
            let (flags, data) = (event.flags, event.data.u64());
            match Token::unpack(data) {
                Token::Link(id, generation) => self.link_event(id, generation, flags, sink, now_ms),
                Token::Half(index, generation) => self.half_event(index, generation, sink),
                Token::Listener => self.accept(now_ms, sink),
                Token::Timer => {
                    let mut count = [0; 8];
                    // It only has to become unreadable.
                    let _ = rustix::io::read(&self.timer, &mut count);
                }
            }
        }
    }

    fn link_event<S: Sink>(&mut self, id: u32, generation: u32, flags: epoll::EventFlags, sink: &mut S, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize).filter(|link| link.generation == generation) else { return };
        match link.state {
            State::Up => {
                if flags.contains(epoll::EventFlags::OUT) {
                    link.tx.blocked = false;
                    self.pace.wake();
                    self.pump(id);
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
                    self.read(id, sink);
                }
            }
            State::Calling(_) => self.call(id, sink, now_ms),
            State::Broken(_) => self.call_again(id, now_ms),
            State::Closed(_) => self.linger_event(id),
            State::Failed => {}
        }
    }

    /// Reads a hot link's socket without asking whether it is ready; false: it is better asked for.
    #[inline]
    fn read_direct<S: Sink>(&mut self, id: u32, sink: &mut S) -> bool {
        // The rest of a frame is on its way: whoever tries to read takes the socket's lock, and holds up those who bring it.
        if self.links.get(id as usize).is_some_and(|link| link.rx.rx.within()) {
            return false;
        }
        self.read(id, sink);
        true
    }

    /// Reads what a link has, within the budget.
    #[inline]
    fn read<S: Sink>(&mut self, id: u32, sink: &mut S) {
        if self.config.encrypt {
            return self.read_sealed(id, sink);
        }
        self.read_on::<false, S>(id, sink);
    }

    /// The same of encrypted links, out of the others' way.
    #[cold]
    #[inline(never)]
    fn read_sealed<S: Sink>(&mut self, id: u32, sink: &mut S) {
        self.read_on::<true, S>(id, sink);
    }

    #[inline(always)]
    fn read_on<const SEALED: bool, S: Sink>(&mut self, id: u32, sink: &mut S) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let (State::Up, Some(socket)) = (&link.state, &link.socket) else { return };
        let (fd, rx) = (socket.as_fd(), &mut link.rx.rx);
        let (bytes, mut end) = if SEALED {
            let Some(wire) = self.secrets.of(id, fd) else { return };
            self.stage.read_all(wire, rx, LinkId(id), sink)
        } else {
            self.stage.read_all(fd, rx, LinkId(id), sink)
        };
        if bytes > 0 {
            self.focus.brought(id);
        }
        // What was heard together with a goodbye counts, too, and is not to be taken for another link's.
        if (bytes > 0 && link.rx.took(bytes)) || self.stage.has_heard() {
            end = self.account(id).err().or(end);
        }
        if let Some(why) = end
            && !(why == LinkError::Gone && self.lost(id, 0))
            && let Some(link) = self.links.get_mut(id as usize)
        {
            link.state = State::Failed;
            self.failed.push((id, why));
        }
    }

    /// What has come is more than messages, or the peer is to be told that it came.
    #[inline(never)]
    fn account(&mut self, id: u32) -> Result<(), LinkError> {
        let heard = self.stage.heard();
        let Some(link) = self.links.get_mut(id as usize) else { return Ok(()) };
        let mut tell = false;
        if let Some(heard) = heard {
            link.rx.discount(&heard);
            tell = heard.ack_wanted;
            if let Some(position) = heard.ack {
                self.writer.acknowledged(LinkId(id), &mut link.tx, position)?;
                if link.tx.has_more() && !link.tx.blocked {
                    self.mark_dirty(id);
                }
            }
        }
        self.tell(id, tell);
        Ok(())
    }

    /// Has the peer told what has come of its stream: now, if there is reason to, or else soon.
    fn tell(&mut self, id: u32, now: bool) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        if now || link.rx.owes_much() {
            link.tx.ack_due = true;
            self.mark_dirty(id);
        } else if link.rx.owes() && !link.rx.is_listed() {
            link.rx.list(true);
            if self.owing.is_empty() {
                self.next_ack_ms = sys::now_ms() + TELL_MS;
                self.set_timer(self.next_ack_ms);
            }
            self.owing.push(id);
        }
    }

    // ---- the end of links ----------------------------------------------------------------------

    /// A link ends by itself.
    fn end<S: Sink>(&mut self, id: u32, why: LinkError, sink: &mut S) {
        if self.links.get(id as usize).is_some_and(Link::is_closed) {
            return self.retire(id);
        }
        let Some(mut link) = self.links.try_remove(id as usize) else { return };
        self.forget(id, &link);
        self.secrets.set(id, None);
        log::debug!("tcp: link {id} ended: {why}");
        for (done, ctx) in self.writer.done.drain(..) {
            sink.done(done, ctx, Ok(()));
        }
        for ctx in link.tx.abandon() {
            sink.done(LinkId(id), ctx, Err(why));
        }
        self.writer.forget(&mut link.tx);
        self.stage.recycle(link.rx.rx);
        sink.down(LinkId(id), why);
    }

    /// Takes a link that has left the table off the lists, and stops watching its socket.
    pub(super) fn forget(&mut self, id: u32, link: &Link) {
        if link.tx.armed {
            self.armed -= 1;
        }
        if link.rx.is_listed() {
            self.owing.retain(|&other| other != id);
        }
        if let State::Calling(_) | State::Broken(_) = link.state {
            self.calling.retain(|&other| other != id);
        }
        if link.session.is_some() {
            self.sessions.retain(|&other| other != id);
        }
        if let Some(socket) = &link.socket {
            self.unwatch(socket);
        }
    }

    /// A descriptor must be taken out before it is closed: a child process may still hold a copy of it.
    pub(super) fn unwatch(&self, socket: &OwnedFd) {
        if let Err(errno) = epoll::delete(&self.epoll, socket) {
            log::debug!("tcp: epoll_ctl: {errno}");
        }
    }

    // ---- connecting ----------------------------------------------------------------------------

    /// Starts a connection, or plans when to try again. A failure is reported in the next poll.
    pub(super) fn dial(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let State::Calling(attempt) = &mut link.state else { return };
        let generation = link.generation;
        let dialled = attempt.dial(&self.config);
        let wake_ms = attempt.wake_ms();
        let watched = dialled.and_then(|socket| {
            self.watch(&socket, Token::Link(id, generation), epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                if let Some(link) = self.links.get_mut(id as usize) {
                    link.socket = Some(socket);
                }
                self.set_timer(wake_ms);
            }
            Err(failure) => self.retry(id, failure, now_ms),
        }
    }

    /// An attempt failed: another one later, or the end.
    fn retry(&mut self, id: u32, failure: Failure, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let State::Calling(attempt) = &mut link.state else { return };
        let verdict = attempt.pause(failure, now_ms);
        let (wake_ms, peer) = (attempt.wake_ms(), *attempt.peer());
        let socket = link.socket.take();
        if let Err(why) = verdict {
            log::debug!("tcp: cannot connect to {peer}: {why}");
            link.state = State::Failed;
            self.calling.retain(|&other| other != id);
            self.failed.push((id, why));
        } else {
            self.set_timer(wake_ms);
        }
        if let Some(socket) = socket {
            self.unwatch(&socket);
        }
    }

    /// Goes on with an attempt whose socket reported something.
    fn call<S: Sink>(&mut self, id: u32, sink: &mut S, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let (State::Calling(attempt), Some(socket)) = (&mut link.state, &link.socket) else { return };
        let outcome = attempt.advance(socket.as_fd(), &self.local, &self.config, now_ms);
        match outcome {
            Ok(found) => {
                if attempt.is_connecting() {
                    return;
                }
                // From now on the socket is watched for reading: an attempt waits for the peer.
                let data = epoll::EventData::new_u64(Token::Link(id, link.generation).pack());
                if let Err(errno) = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN) {
                    sys::cannot_watch(errno);
                }
                if let Some(found) = found {
                    self.calling.retain(|&other| other != id);
                    self.up(id, found, true, sink);
                }
            }
            Err(failure) => self.retry(id, failure, now_ms),
        }
    }

    fn up<S: Sink>(&mut self, id: u32, found: Found, initiator: bool, sink: &mut S) {
        self.secrets.set(id, found.keys.as_ref());
        let peer = found.peer;
        log::debug!("tcp: link {id} to {peer} is up ({})", if initiator { "ours" } else { "theirs" });
        self.stats.links_up += 1;
        if let Some(link) = self.links.get_mut(id as usize) {
            link.state = State::Up;
            let session = Session::new(found.session, &peer, &self.local, initiator);
            link.session = Some(Box::new(session));
            if let Some(socket) = &link.socket {
                sys::keep_little_unsent(socket.as_fd());
            }
        }
        self.enlist(id);
        if self.next_scan_ms == u64::MAX && self.config.dead_peer_ms > 0 {
            self.next_scan_ms = sys::now_ms() + self.scan_ms();
            self.set_timer(self.next_scan_ms);
        }
        sink.up(LinkId(id), LinkUp { peer, initiator, caps: self.caps() });
    }

    // ---- accepting -----------------------------------------------------------------------------

    fn accept<S: Sink>(&mut self, now_ms: u64, sink: &mut S) {
        for _ in 0..ACCEPTS {
            let crowded = self.halves.len() * 2 >= self.config.half_open;
            if crowded && !self.accepts.take(now_ms) {
                return self.pause_listener(now_ms, 1);
            }
            if self.halves.len() >= self.config.half_open && !self.make_room(now_ms) {
                return self.pause_listener(now_ms, LISTENER_PAUSE_MS);
            }
            match sys::accept(self.listener.as_fd()) {
                Ok((socket, from)) => {
                    if !crowded {
                        self.greeting_until_ms = now_ms + GREETING_MS;
                    }
                    self.greet(socket, Source::of(from), now_ms, sink);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // Who has proven nothing is the first to go.
                    if !self.make_room(now_ms) || self.halves.is_empty() {
                        self.tell_of_shortage();
                        self.hang_up();
                        return self.pause_listener(now_ms, LISTENER_PAUSE_MS);
                    }
                }
                // A connection that died in the queue; errors of the network below it, see accept(2).
                Err(_) => {}
            }
        }
    }

    /// Nobody can be let in: whoever has waited for longest learns it, and calls again some times, before it takes us for a host that
    /// is silent.
    fn hang_up(&mut self) {
        self.spare = None;
        let _ = sys::accept(self.listener.as_fd());
        self.spare = self.timer.try_clone().ok();
    }

    /// Once, and not again while it goes on.
    fn tell_of_shortage(&mut self) {
        if !std::mem::replace(&mut self.short, true) {
            log::warn!("tcp: out of descriptors or memory: new connections wait (raise `ulimit -n`)");
        }
    }

    /// Drops a half-open connection. If one source has most of them, the one of its that has waited for longest; else the one that has
    /// outstayed its grace for longest, if any has. Returns whether there is room.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let count = |source| self.halves.iter().filter(|(_, half)| half.source == source).count();
        let newest = self.halves.iter().max_by_key(|(_, half)| half.since_ms).map(|(_, half)| half.source);
        // Whoever has most of them is likely to have the newest one; if not, it will in one of the next calls.
        let flooding = newest.filter(|&source| count(source) * 2 > self.halves.len());
        let candidates = self.halves.iter().filter(|(_, half)| flooding.is_none_or(|source| half.source == source));
        let Some((index, half)) = candidates.min_by_key(|(_, half)| half.yields_at_ms()) else { return true };
        if flooding.is_none() && now_ms < half.yields_at_ms() {
            return false;
        }
        self.refuse(index, LinkError::Timeout);
        true
    }

    /// The listener would be reported again and again: it is set aside for a while.
    fn pause_listener(&mut self, now_ms: u64, pause_ms: u64) {
        let data = epoll::EventData::new_u64(Token::Listener.pack());
        match epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::empty()) {
            Ok(()) => {
                let resume_ms = now_ms + pause_ms;
                self.listener_resume_ms = Some(resume_ms);
                self.set_timer(resume_ms);
            }
            Err(errno) => sys::cannot_watch(errno),
        }
    }

    /// A connection has been made by somebody.
    fn greet<S: Sink>(&mut self, socket: OwnedFd, source: Source, now_ms: u64, sink: &mut S) {
        self.short = false;
        let generation = self.next_generation();
        let half = Half::new(socket, source, generation, now_ms);
        let deadline_ms = half.deadline_ms(&self.config);
        let index = self.halves.insert(half);
        let Ok(id) = u32::try_from(index) else { return };
        let data = epoll::EventData::new_u64(Token::Half(id, generation).pack());
        if let Err(errno) = epoll::add(&self.epoll, &self.halves[index].socket, data, epoll::EventFlags::IN) {
            sys::cannot_watch(errno);
            self.halves.remove(index);
            return;
        }
        self.set_timer(deadline_ms);
        // The hello is often there already.
        self.half_event(id, generation, sink);
    }

    /// Goes on with a handshake that a peer began.
    fn half_event<S: Sink>(&mut self, index: u32, generation: u32, sink: &mut S) {
        let at = index as usize;
        let Some(half) = self.halves.get_mut(at).filter(|half| half.generation == generation) else { return };
        match half.advance(&self.local) {
            Ok(Step::Wait) => {}
            Ok(Step::Up(found)) => {
                let half = self.halves.remove(at);
                self.adopt(half, found, sink);
            }
            Ok(Step::Returns(hello)) => match self.answer_return(&hello, self.halves[at].socket.as_fd()) {
                Ok(returning) => {
                    self.halves[at].returning = Some(returning);
                    // The finish is not there yet, or would be missed if it were.
                    self.half_event(index, generation, sink);
                }
                Err(why) => self.refuse(at, why),
            },
            Ok(Step::Returned(finish)) => self.take_back(at, &finish),
            Err(why) => self.refuse(at, why),
        }
    }

    /// A half-open connection has become a link.
    fn adopt<S: Sink>(&mut self, half: Half, found: Found, sink: &mut S) {
        let generation = self.next_generation();
        if let Err(errno) = sys::set_link_options(half.socket.as_fd(), &self.config) {
            log::debug!("tcp: a connection died while it was accepted: {errno}");
            return self.unwatch(&half.socket);
        }
        let Ok(id) = self.insert(Some(half.socket), generation, State::Up) else { return };
        let data = epoll::EventData::new_u64(Token::Link(id, generation).pack());
        let socket = self.links.get(id as usize).and_then(|link| link.socket.as_ref());
        let watched = socket.map(|socket| epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN));
        if let Some(Err(errno)) = watched {
            sys::cannot_watch(errno);
        }
        self.up(id, found, false, sink);
    }

    pub(super) fn refuse(&mut self, index: usize, why: LinkError) {
        if let Some(half) = self.halves.try_remove(index) {
            self.stats.refused += 1;
            let denied = matches!(why, LinkError::Denied | LinkError::Encryption);
            self.stats.denied += u64::from(denied);
            // Nobody fills the log: the first, second, fourth, eighth, … denial is told.
            let loud = denied && self.stats.denied.is_power_of_two();
            let level = if loud { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "tcp: a connection from {} was refused: {why}", half.source);
            self.unwatch(&half.socket);
        }
    }

    // ---- time ----------------------------------------------------------------------------------

    /// Does what is due, and finds out when something is due next.
    fn run_timers<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        self.next_timer_ms = u64::MAX;
        self.time_listener(now_ms);
        self.time_calls(sink, now_ms);
        self.time_halves(now_ms);
        self.time_closed(now_ms);
        self.time_acks(now_ms);
        if now_ms >= self.next_scan_ms {
            self.scan(sink, now_ms);
        }
        self.set_timer(self.next_scan_ms);
    }

    fn time_listener(&mut self, now_ms: u64) {
        let Some(resume_ms) = self.listener_resume_ms else { return };
        if now_ms < resume_ms {
            return self.set_timer(resume_ms);
        }
        let data = epoll::EventData::new_u64(Token::Listener.pack());
        match epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::IN) {
            Ok(()) => self.listener_resume_ms = None,
            Err(errno) => {
                sys::cannot_watch(errno);
                self.set_timer(now_ms + LISTENER_PAUSE_MS);
            }
        }
    }

    fn time_calls<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        for id in self.calling.clone() {
            let Some(link) = self.links.get(id as usize) else { continue };
            let State::Calling(attempt) = &link.state else {
                self.redial_when_due(id, now_ms);
                continue;
            };
            if attempt.expired(now_ms) {
                log::debug!("tcp: no answer from {}", attempt.peer());
                self.end(id, LinkError::Timeout, sink);
                continue;
            }
            if attempt.wants_dial(now_ms) {
                self.dial(id, now_ms);
            }
            if let Some(Link { state: State::Calling(attempt), .. }) = self.links.get(id as usize) {
                self.set_timer(attempt.wake_ms());
            }
        }
    }

    fn time_halves(&mut self, now_ms: u64) {
        let mut late: Vec<usize> = Vec::new();
        let mut next_ms = u64::MAX;
        for (index, half) in &self.halves {
            let deadline_ms = half.deadline_ms(&self.config);
            if now_ms >= deadline_ms {
                late.push(index);
            } else {
                next_ms = next_ms.min(deadline_ms);
            }
        }
        for index in late {
            self.refuse(index, LinkError::Timeout);
        }
        self.set_timer(next_ms);
    }

    /// Peers whose messages have come for a while are told, so that they need not keep them.
    fn time_acks(&mut self, now_ms: u64) {
        if now_ms < self.next_ack_ms {
            return self.set_timer(self.next_ack_ms);
        }
        self.next_ack_ms = u64::MAX;
        for id in std::mem::take(&mut self.owing) {
            if let Some(link) = self.links.get_mut(id as usize) {
                link.rx.list(false);
                let owes = link.rx.owes();
                self.tell(id, owes);
            }
        }
    }

    /// Looks for hosts that have vanished with our bytes under way: keep-alive probes are not sent then, and the kernel's
    /// own limit is a quarter of an hour. A peer that merely does not read answers the kernel's window probes and is
    /// left alone, however long it computes (TCP_USER_TIMEOUT would end its link).
    fn scan<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        let patience_ms = self.patience_ms();
        let mut silent: Vec<(u32, u64)> = Vec::new();
        for (id, link) in &mut self.links {
            let Some(socket) = link.socket.as_ref().filter(|_| link.tx.unproven) else { continue };
            let fd = socket.as_fd();
            if sys::unacknowledged(fd) == 0 {
                link.tx.unproven = false;
            } else if let Some(state) = sys::liveness(fd)
                && state.unanswered >= UNANSWERED
                && u64::from(state.silent_ms) >= patience_ms
            {
                silent.extend(u32::try_from(id).map(|id| (id, state.silent_ms.into())));
            }
        }
        for (id, silent_ms) in silent {
            log::debug!("tcp: the host of link {id} has not answered for {silent_ms} ms");
            if !self.lost(id, silent_ms) {
                self.end(id, LinkError::Gone, sink);
            }
        }
        self.next_scan_ms = if self.links.is_empty() { u64::MAX } else { now_ms + self.scan_ms() };
    }

    /// How long a host may be silent with our bytes under way. Where a new connection can be tried, in vain at worst, it is tried earlier:
    /// something between may have forgotten the old one.
    fn patience_ms(&self) -> u64 {
        self.config.dead_peer_ms / if self.config.resume_ms > 0 { STALLS } else { 1 }
    }

    /// How often hosts are looked at.
    fn scan_ms(&self) -> u64 {
        (self.patience_ms() / 2).clamp(10, (self.config.dead_peer_ms / 4).max(10))
    }
}
