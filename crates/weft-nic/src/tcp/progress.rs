//! A poll of the TCP device: events, timers, the beginning and the end of links.
//!
//! Place in the data flow: [`Nic::poll`](weft_engine::nic::Nic::poll) calls [`Tcp::progress`] when [`super::pace`]
//! finds it due. Sockets with bytes are read into the [`Sink`].
//!
//! While only one or two links have traffic, and it consists of whole messages, their sockets are read directly. This
//! saves the epoll call. All sockets are polled every few rounds ([`Focus`]), and whenever the coarse clock has ticked.
//! Otherwise one epoll call returns the ready sockets, whose cost does not depend on the number of idle ones. Each step
//! is bounded: [`super::rx::READ_BUDGET_BYTES`] per link, [`super::EVENTS`] sockets and [`super::accept::ACCEPTS`] new
//! connections per poll.
//!
//! Invariants: a link ends only in [`Tcp::end`] or by `close`. `end` reports its `done`s first, then `down`. An end
//! that the device detects is reported in the next poll. If a peer sends to several endpoints and then closes one of
//! them, the messages have thus arrived at all of them, provided that they are polled in turn.

use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::io::Errno;
use weft_engine::board::Board;
use weft_engine::mapped::PeerRegion;
use weft_engine::mem::IovList;
use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Sink};
use weft_os::ForkClosedFd;

use super::connect::ProvenPeer;
use super::initiator::Failure;
use super::session::Session;
use super::{Link, LinkState, Task, Tcp, Token, sys};

/// The delay in milliseconds of an acknowledgement that the peer did not request.
const TELL_MS: u64 = 200;
/// The links whose sockets are read without an epoll call.
#[derive(Debug)]
pub(super) struct Focus {
    /// The links that delivered bytes last, the latest first.
    hot: [u32; 2],
    /// Real polls since any other link delivered bytes.
    calm: u32,
    /// Real polls since any link delivered bytes.
    fruitless: u32,
    /// Real polls.
    turn: u32,
}

impl Focus {
    const NONE: u32 = u32::MAX;
    /// Polls without bytes of a third link after which the two are read directly.
    const CALM: u32 = 32;
    /// The interval in real polls at which all sockets are polled while two are read directly.
    const ASK_ALL: u32 = 8;
    /// The interval if there are no other links: only new connections can be missed.
    const ASK_NEW: u32 = 64;
    /// Polls without bytes after which all sockets are polled again.
    const FRUITLESS: u32 = 16 * 1024;

    pub(super) fn new() -> Self {
        Self { hot: [Self::NONE; 2], calm: 0, fruitless: 0, turn: 0 }
    }

    fn delivered(&mut self, id: u32) {
        self.fruitless = 0;
        if self.hot[0] == id {
            return;
        }
        if self.hot[1] != id {
            self.calm = 0;
        }
        self.hot = [id, self.hot[0]];
    }

    /// Has all sockets polled for a while, because others than those of the hot links are in use.
    pub(super) fn disturb(&mut self) {
        self.calm = 0;
    }

    /// Whether to read the hot links directly. Counts a poll.
    fn direct(&mut self) -> bool {
        self.calm = self.calm.saturating_add(1);
        self.fruitless += 1;
        self.turn = self.turn.wrapping_add(1);
        if self.fruitless > Self::FRUITLESS {
            *self = Self::new();
        }
        self.calm > Self::CALM && self.hot[0] != Self::NONE
    }

    /// Whether all sockets must be polled although hot links are read directly. `links`: the number of links.
    fn ask_all(&self, links: usize) -> bool {
        let hot = self.hot.iter().filter(|&&id| id != Self::NONE).count();
        self.turn.is_multiple_of(if links > hot { Self::ASK_ALL } else { Self::ASK_NEW })
    }
}

/// Counts the calls to a sink.
struct CountingSink<'a, S> {
    sink: &'a mut S,
    calls: usize,
}

impl<S: Sink> Sink for CountingSink<'_, S> {
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
    fn confirmed(&mut self, link: LinkId, number: u32) {
        self.calls += 1;
        self.sink.confirmed(link, number);
    }
    fn hindered(&mut self, link: LinkId) {
        self.calls += 1;
        self.sink.hindered(link);
    }
    fn peer(&self, link: LinkId) -> Option<EpName> {
        self.sink.peer(link)
    }
    fn region(&mut self, link: LinkId, key: u64, region: Option<PeerRegion>) {
        self.calls += 1;
        self.sink.region(link, key, region);
    }
    fn board(&mut self, link: LinkId, key: u64, board: Option<Board>) {
        self.calls += 1;
        self.sink.board(link, key, board);
    }
    fn holds_more(&mut self, link: LinkId) {
        self.calls += 1;
        self.sink.holds_more(link);
    }
    fn spare_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        self.sink.spare_link(candidates)
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
    /// Makes a real poll. Returns the number of sink calls.
    pub(super) fn progress<S: Sink>(&mut self, sink: &mut S, now_ms: u64) -> usize {
        let mut tally = CountingSink { sink, calls: 0 };
        self.report_done(&mut tally);
        self.report_ends(&mut tally);
        let direct = self.focus.direct();
        let mut ask = !direct
            || !self.agenda.is_empty(Task::AwaitWritable)
            || !self.agenda.is_empty(Task::Connect)
            || now_ms != self.asked_ms;
        if !ask {
            for id in self.focus.hot {
                ask |= !self.read_direct(id, &mut tally);
            }
            ask |= !self.agenda.is_empty(Task::ReportEnd);
        }
        if ask || self.focus.ask_all(self.links.len() + self.halves.len() + self.rails.len() + self.chains.pending()) {
            self.take_events(&mut tally, now_ms);
        }
        if now_ms >= self.next_timer_ms {
            self.run_timers(&mut tally, now_ms);
        }
        // Pushes that this poll has completed are reported in it.
        self.report_done(&mut tally);
        if tally.calls > 0 {
            self.pace.wake();
        }
        tally.calls
    }

    /// Reports pushes that are done.
    #[inline]
    fn report_done<S: Sink>(&mut self, sink: &mut S) {
        for (link, ctx) in self.writer.take_done() {
            sink.done(link, ctx, Ok(()));
        }
    }

    /// Reports the links that have ended since the previous poll began.
    #[inline]
    fn report_ends<S: Sink>(&mut self, sink: &mut S) {
        if !self.agenda.is_empty(Task::ReportEnd) {
            let ended = self.agenda.take(Task::ReportEnd);
            for id in ended.links() {
                if let Some(LinkState::Failed(why)) = self.links.get(id).map(|link| &link.state) {
                    self.end(id, *why, sink);
                }
            }
        }
    }

    /// Polls epoll and serves the ready descriptors.
    fn take_events<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        self.asked_ms = now_ms;
        self.stats.wait_calls += 1;
        let mut space = self.events.take().unwrap_or_else(sys::Events::new);
        let events = match space.ready(&self.epoll) {
            Ok(events) => events,
            Err(Errno::INTR) => &[],
            Err(errno) => {
                log::error!("tcp: epoll_wait: {errno}; has the process closed a descriptor that is not its own?");
                &[]
            }
        };
        for event in events {
            let (flags, data) = (event.flags, event.data.u64());
            match Token::unpack(data) {
                Token::Link(id, generation) => self.link_event(id, generation, flags, sink, now_ms),
                Token::HalfOpen(index, generation) => self.half_event(index, generation, sink),
                Token::Rail(index, generation) => self.rail_event(index, generation, flags, sink, now_ms),
                Token::Chain(index, generation) => self.chain_event(index, generation),
                // The engine polls the chains in the same round.
                Token::Ring => {}
                Token::Listener => self.accept(now_ms, sink),
                Token::Timer => {
                    let mut count = [0; 8];
                    // The read only makes the descriptor unreadable again.
                    let _ = rustix::io::read(&self.timer, &mut count);
                }
            }
        }
        self.events = Some(space);
        if self.rails.is_held() {
            self.read_held_rails(sink);
        }
    }

    fn link_event<S: Sink>(&mut self, id: u32, generation: u32, flags: epoll::EventFlags, sink: &mut S, now_ms: u64) {
        let Some(link) = self.links.get_mut(id).filter(|link| link.generation == generation) else { return };
        match link.state {
            LinkState::Up => {
                if flags.contains(epoll::EventFlags::OUT) {
                    link.tx.socket.try_again();
                    self.pace.wake();
                    self.pump(id);
                }
                if flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::ERR | epoll::EventFlags::HUP) {
                    self.read(id, sink);
                }
            }
            LinkState::Connecting(_) => self.continue_attempt(id, sink, now_ms),
            LinkState::Broken(_) => self.continue_redial(id, now_ms),
            LinkState::Closed(_) => self.linger_event(id),
            LinkState::Failed(_) => {}
        }
    }

    /// Reads a hot link's socket without an epoll call. False: the link should be polled by epoll.
    #[inline]
    fn read_direct<S: Sink>(&mut self, id: u32, sink: &mut S) -> bool {
        // The rest of a frame is arriving. A read would take the socket's lock, and delay the kernel that delivers it.
        if self.links.get(id).is_some_and(|link| link.rx.rx.within()) {
            return false;
        }
        self.read(id, sink);
        true
    }

    /// Reads the available bytes of a link, within the budget.
    #[inline(always)]
    fn read<S: Sink>(&mut self, id: u32, sink: &mut S) {
        if self.config.endpoint.encrypt {
            return self.read_sealed(id, sink);
        }
        self.read_on::<false, S>(id, sink);
    }

    /// [`Self::read`] for encrypted links, out of line.
    #[cold]
    #[inline(never)]
    fn read_sealed<S: Sink>(&mut self, id: u32, sink: &mut S) {
        self.read_on::<true, S>(id, sink);
    }

    #[inline(always)]
    fn read_on<const SEALED: bool, S: Sink>(&mut self, id: u32, sink: &mut S) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (LinkState::Up, Some(socket)) = (&link.state, &link.socket) else { return };
        let (fd, rx) = (socket.as_fd(), &mut link.rx.rx);
        let (bytes, mut end) = if SEALED {
            let Some(wire) = self.secrets.of(id, fd) else { return };
            let outcome = self.stage.read_all(wire, rx, LinkId(id), sink);
            if self.secrets.held_bytes(id) > 0 {
                sink.holds_more(LinkId(id));
            }
            outcome
        } else {
            self.stage.read_all(fd, rx, LinkId(id), sink)
        };
        if bytes > 0 {
            self.focus.delivered(id);
        }
        // Information that arrived together with a goodbye counts, and must not be taken for another link's.
        if (bytes > 0 && link.rx.received(bytes)) || self.stage.has_ack_info() {
            end = self.handle_ack_info(id).err().or(end);
        }
        if let Some(why) = end
            && !(why == LinkError::Gone && self.connection_lost(id, 0))
        {
            self.report_end(id, why);
        }
    }

    /// Handles frames other than messages, and acknowledgements that are due.
    #[inline(never)]
    fn handle_ack_info(&mut self, id: u32) -> Result<(), LinkError> {
        let ack_info = self.stage.ack_info();
        let Some(link) = self.links.get_mut(id) else { return Ok(()) };
        let mut requested = false;
        if let Some(ack_info) = ack_info {
            link.rx.discount(&ack_info);
            requested = ack_info.ack_requested;
            if let Some(position) = ack_info.ack {
                self.writer.acknowledged(LinkId(id), &mut link.tx, position)?;
                if link.tx.has_more() && !link.tx.socket.is_full() {
                    self.agenda.add(Task::Flush, id);
                }
            }
        }
        self.acknowledge(id, requested);
        Ok(())
    }

    /// Acknowledges the peer's stream: soon if `requested` is set or many bytes are unacknowledged, otherwise by a
    /// timer.
    pub(super) fn acknowledge(&mut self, id: u32, requested: bool) {
        let Some(link) = self.links.get_mut(id) else { return };
        if requested || link.rx.owes_ack_now() {
            if !std::mem::replace(&mut link.tx.ack_due, true) {
                self.requested.push(id);
            }
        } else if link.rx.owes_ack() {
            link.rx.on_agenda(true);
            if self.agenda.is_empty(Task::AckDue) {
                self.next_ack_ms = sys::now_ms() + TELL_MS;
                self.set_timer(self.next_ack_ms);
            }
            self.agenda.add(Task::AckDue, id);
        }
    }

    // ---- the end of links ----------------------------------------------------------------------

    /// Has the next poll report the end of a link.
    #[cold]
    pub(super) fn report_end(&mut self, id: u32, why: LinkError) {
        let Some(link) = self.links.get_mut(id) else { return };
        link.state = LinkState::Failed(why);
        self.agenda.remove(Task::Connect, id);
        self.agenda.remove(Task::AwaitWritable, id);
        self.agenda.add(Task::ReportEnd, id);
    }

    /// Ends a link and reports it.
    pub(super) fn end<S: Sink>(&mut self, id: u32, why: LinkError, sink: &mut S) {
        if self.links.get(id).is_some_and(Link::is_closed) {
            return self.remove_closed(id);
        }
        let Some(mut link) = self.links.remove(id) else { return };
        self.forget(id, &link);
        self.secrets.set(id, None);
        log::debug!("tcp: link {id} ended: {why}");
        for (done, ctx) in self.writer.take_done() {
            sink.done(done, ctx, Ok(()));
        }
        for ctx in link.tx.abandon().chain(self.drop_rails(id)) {
            sink.done(LinkId(id), ctx, Err(why));
        }
        self.writer.forget(&mut link.tx);
        self.stage.recycle(link.rx.rx);
        sink.down(LinkId(id), why);
    }

    /// Removes a link that has left the table from the lists, and stops watching its socket.
    pub(super) fn forget(&mut self, id: u32, link: &Link) {
        self.drop_rails(id);
        self.forget_chain_ends(id);
        self.agenda.forget(id);
        if link.session.is_some() {
            self.sessions.retain(|&other| other != id);
        }
        if let Some(socket) = &link.socket {
            self.unwatch(socket);
        }
    }

    /// Stops watching a descriptor. This must happen before it is closed, because a child process may still hold a
    /// copy.
    pub(super) fn unwatch(&self, socket: &ForkClosedFd) {
        if let Err(errno) = epoll::delete(&self.epoll, socket) {
            log::debug!("tcp: epoll_ctl: {errno}");
        }
    }

    // ---- connecting ----------------------------------------------------------------------------

    /// Starts a connection, or plans the next try. The next poll reports a failure.
    pub(super) fn dial(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let LinkState::Connecting(attempt) = &mut link.state else { return };
        let generation = link.generation;
        let dialled = attempt.dial(&self.config, now_ms);
        let wake_ms = attempt.wake_ms();
        let watched = dialled.and_then(|socket| {
            self.watch(&socket, Token::Link(id, generation), epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                if let Some(link) = self.links.get_mut(id) {
                    link.socket = Some(socket);
                }
                self.set_timer(wake_ms);
            }
            Err(failure) => self.retry(id, failure, now_ms),
        }
    }

    /// Handles a failed try: plans another one, or ends the attempt.
    pub(super) fn retry(&mut self, id: u32, failure: Failure, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let LinkState::Connecting(attempt) = &mut link.state else { return };
        let verdict = attempt.pause(failure, &self.config, now_ms);
        let (wake_ms, peer) = (attempt.wake_ms(), *attempt.peer());
        let socket = link.socket.take();
        if let Err(why) = verdict {
            log::debug!("tcp: cannot connect to {peer}: {why}");
            self.report_end(id, why);
        } else {
            self.set_timer(wake_ms);
        }
        if let Some(socket) = socket {
            self.unwatch(&socket);
        }
    }

    /// Continues an attempt whose socket reported an event.
    pub(super) fn continue_attempt<S: Sink>(&mut self, id: u32, sink: &mut S, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (LinkState::Connecting(attempt), Some(socket)) = (&mut link.state, &link.socket) else { return };
        let outcome = attempt.advance(socket.as_fd(), &self.local, &self.config, now_ms);
        match outcome {
            Ok(found) => {
                if attempt.is_connecting() {
                    return;
                }
                // From now on the socket is watched only for reading, because the attempt waits for the peer.
                let data = epoll::EventData::new_u64(Token::Link(id, link.generation).pack());
                if let Err(errno) = epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN) {
                    sys::cannot_watch(errno);
                }
                if let Some(found) = found {
                    self.agenda.remove(Task::Connect, id);
                    self.up(id, found, true, sink);
                } else {
                    self.plan_scan();
                }
            }
            Err(failure) => self.retry(id, failure, now_ms),
        }
    }

    pub(super) fn up<S: Sink>(&mut self, id: u32, found: ProvenPeer, initiator: bool, sink: &mut S) {
        self.secrets.set(id, found.keys.as_ref());
        let peer = found.peer;
        let one_way = !initiator && self.is_hindered(&peer);
        log::debug!("tcp: link {id} to {peer} is up ({})", if initiator { "dialled" } else { "accepted" });
        self.stats.links_up += 1;
        if let Some(link) = self.links.get_mut(id) {
            link.state = LinkState::Up;
            let mut session = Session::new(found.session, &peer, &self.local, initiator);
            if one_way {
                session.set_one_way();
            }
            if let (Some(socket), Some(second)) = (&link.socket, peer.second_socket()) {
                session.prefer(second, sys::peer_ip(socket.as_fd()));
            }
            link.session = Some(Box::new(session));
            if let Some(socket) = &link.socket {
                sys::tune_within_host(socket.as_fd());
            }
        }
        self.add_session(id);
        self.plan_scan();
        sink.up(LinkId(id), LinkUp { peer, initiator, caps: self.caps() });
    }
}
