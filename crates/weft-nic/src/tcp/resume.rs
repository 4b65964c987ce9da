//! Resumption: a link whose connection breaks while both endpoints live gets another connection, and its stream
//! continues.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::connection_lost`] when a connection has ended without a
//! goodbye. The link keeps all its state except the socket. Both sides dial ([`super::redial`]), because only one of
//! them may have noticed the break, or may be able to reach the other. The called side answers in a half-open
//! connection, as for new links ([`Tcp::answer_resumption`], [`Tcp::judge_resumption`]).
//!
//! ```text
//!  dialler                                                        the other
//!     | ── Hello   { nonce, session }                         ──► |
//!     | ◄─ Answer  { nonce, epoch, proof }                     ── |   or Answer { status } and the end
//!     | ── Finish  { epoch, position, proof }                 ──► |   here the other drops its own connection
//!     | ◄─ Verdict { status, position }                        ── |   frames follow, from the stated positions
//! ```
//! The key of the proofs is a secret that both sides derived from the first handshake. The proofs therefore confirm the
//! same capability, job key and dialogue.
//!
//! Invariants: a side states its position only when no connection is left on which more bytes could arrive. Each finish
//! has an epoch above all that its side has sent or accepted. It is accepted only if the epoch is also above all that
//! the other side has, or equal and from the side that made the link. The messages of an abandoned attempt are
//! therefore void once a later one has succeeded, and one of two simultaneous attempts succeeds.
//!
//! Errors: the link ends with `Gone` when no process listens at the peer's address, when another endpoint does, or when
//! the peer does not know the session. It ends with `Cut` when `resume_ms` is over, and with `Protocol` if a proven
//! peer breaks the rules.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use weft_engine::growth;
use weft_engine::nic::{LinkError, LinkId};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::bugs::planted;
use super::half_open::HalfOpen;
use super::initiator::{Failure, answer_body, send_handshake};
use super::noise::{self, Noise};
use super::redial::Redial;
use super::session::Session;
use super::tx::SocketState;
use super::wire::{self, Answer, Finish, Hello, MAGIC, ReturnVerdict, VERSION};
use super::{Link, LinkState, Task, Tcp, Token, sys};

/// The dialogue of a half-open connection that resumes a link.
#[derive(Debug)]
pub(super) struct ResumeDialogue {
    pub(super) link: u32,
    pub(super) hello: Hello,
    pub(super) answer: Answer,
}

/// The end of log messages about a broken connection: the action, and the remedy.
const CALLING: &str =
    "it is dialled again, and no message is lost; if this happens often, check the network and its firewalls";

impl Tcp {
    /// Handles the end of a link's connection without a goodbye. True: the link is being resumed. `silent_ms`: the time
    /// in milliseconds for which the peer's host has been silent.
    pub(super) fn connection_lost(&mut self, id: u32, silent_ms: u64) -> bool {
        if self.config.endpoint.resume_ms == 0 {
            return false;
        }
        let now_ms = sys::now_ms();
        let Some(link) = self.links.get_mut(id) else { return false };
        let Some(session) = &mut link.session else { return false };
        let pending = link.tx.unacked() > 0 || link.tx.pushes() > 0 || link.rx.owes_ack();
        session.breaks(link.rx.position().wrapping_add(link.tx.acknowledged()), pending, now_ms);
        let patience_ms = self
            .config
            .endpoint
            .resume_ms
            .max(self.config.endpoint.dead_peer_ms.saturating_sub(silent_ms) * u64::from(silent_ms > 0));
        let mut redial = Redial::new(session, now_ms.saturating_add(patience_ms), now_ms);
        if redial.is_hopeless() {
            return false;
        }
        match std::mem::replace(&mut link.state, LinkState::Up) {
            LinkState::Up => {}
            LinkState::Closed(linger) if now_ms < linger.until_ms => redial.closed = Some(linger),
            other => {
                link.state = other;
                return false;
            }
        }
        let peer = session.socket();
        if silent_ms > 0 {
            log::info!("tcp: the connection with {peer} broke: its host was silent for {silent_ms} ms; {CALLING}");
        } else {
            log::info!("tcp: the connection with {peer} broke: hang-up or reset without a goodbye; {CALLING}");
        }
        link.state = LinkState::Broken(Box::new(redial));
        self.drop_socket(id);
        self.agenda.add(Task::Connect, id);
        self.stats.breaks += 1;
        self.redial_when_due(id, now_ms);
        true
    }

    /// Drops a link's connection. The position must not be stated before.
    fn drop_socket(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id) else { return };
        self.agenda.remove(Task::AwaitWritable, id);
        (link.tx.socket, link.tx.unproven) = (SocketState::Writable, false);
        match link.linger() {
            None => link.rx.rewind(),
            Some(linger) => {
                let close_mark = linger.close_mark;
                self.stage.recycle(link.rx.rewind_to(close_mark));
            }
        }
        if let Some(socket) = link.socket.take() {
            self.unwatch(&socket);
        }
    }

    /// Dials when it is time, and gives up an attempt whose time is over without a message from the peer.
    pub(super) fn redial_when_due(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let LinkState::Broken(redial) = &mut link.state else { return };
        if redial.closed.as_ref().is_some_and(|linger| now_ms >= linger.until_ms) {
            return self.remove_closed(id);
        }
        if now_ms < redial.wake_ms {
            let wake_ms = redial.wake_ms.min(redial.closed.as_ref().map_or(u64::MAX, |linger| linger.until_ms));
            return self.set_timer(wake_ms);
        }
        if !redial.is_waiting() {
            self.continue_redial(id, now_ms);
            let state = self.links.get(id).map(|link| &link.state);
            if matches!(state, Some(LinkState::Broken(redial)) if !redial.is_waiting() && now_ms >= redial.wake_ms) {
                self.redial_failed(id, Failure::Retry(LinkError::Timeout), now_ms);
            }
            return;
        }
        let tries = redial.tries();
        let Some(address) = self.address_of(id, tries) else { return };
        let Some(Link { state: LinkState::Broken(redial), .. }) = self.links.get_mut(id) else { return };
        let dialled = redial.dial(address, &self.config, now_ms);
        let wake_ms = redial.wake_ms;
        let generation = self.next_generation();
        let watched = dialled.map_err(Redial::socket_failure).and_then(|socket| {
            self.watch(&socket, Token::Link(id, generation), epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                if let Some(link) = self.links.get_mut(id) {
                    (link.socket, link.generation) = (Some(socket), generation);
                }
                self.set_timer(wake_ms);
                self.pace.wake();
            }
            Err(failure) => self.redial_failed(id, failure, now_ms),
        }
    }

    pub(super) fn redial_failed(&mut self, id: u32, failure: Failure, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let LinkState::Broken(redial) = &mut link.state else { return };
        let verdict = redial.pause(failure, &self.config, now_ms);
        let (wake_ms, tried_ms) = (redial.wake_ms, now_ms - redial.since_ms);
        if let Some(socket) = link.socket.take() {
            self.unwatch(&socket);
        }
        match verdict {
            Ok(()) => self.set_timer(wake_ms),
            Err(why) => {
                log::info!("tcp: link {id} is given up {tried_ms} ms after its connection broke: {failure:?}");
                self.fail(id, why);
            }
        }
    }

    /// Has the next poll report the link's end.
    fn fail(&mut self, id: u32, why: LinkError) {
        if self.links.get(id).is_some_and(Link::is_closed) {
            return self.remove_closed(id);
        }
        self.report_end(id, why);
    }

    /// Continues an attempt whose socket reported an event.
    pub(super) fn continue_redial(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (LinkState::Broken(redial), Some(socket), Some(session)) =
            (&mut link.state, &link.socket, &mut link.session)
        else {
            return;
        };
        match redial.advance(socket.as_fd(), session, link.rx.position(), &self.config, now_ms) {
            Err(failure) => self.redial_failed(id, failure, now_ms),
            Ok(_) if redial.is_connecting() => {}
            Ok(found) => {
                let (wake_ms, token) = (redial.wake_ms, Token::Link(id, link.generation));
                if let Err(errno) =
                    epoll::modify(&self.epoll, socket, epoll::EventData::new_u64(token.pack()), epoll::EventFlags::IN)
                {
                    sys::cannot_watch(errno);
                }
                match found {
                    Some((position, keys)) => {
                        self.secrets.set(id, keys.as_ref());
                        self.resumed(id, position);
                    }
                    None => self.set_timer(wake_ms),
                }
            }
        }
    }

    /// Continues a link on its new connection. The peer expects this side's stream from `position` on.
    fn resumed(&mut self, id: u32, position: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        let before = std::mem::replace(&mut link.state, LinkState::Up);
        self.agenda.remove(Task::Connect, id);
        self.stats.resumed += 1;
        let closed = match before {
            LinkState::Broken(redial) => redial.closed,
            LinkState::Closed(linger) => Some(linger),
            _ => None,
        };
        if let Some(linger) = closed {
            return self.linger_again(id, linger, position);
        }
        if let Err(why) = self.writer.rewind(LinkId(id), &mut link.tx, position) {
            return self.fail(id, why);
        }
        link.tx.ack_due |= link.rx.owes_ack();
        // While there was no connection, no queued message was written, and no thread was notified.
        let unattended = link.tx.queued() > 0 && self.config.unsent.as_ref().is_some_and(|unsent| !unsent.note());
        if let Some(socket) = &link.socket {
            sys::tune_within_host(socket.as_fd());
        }
        if let Some(session) = &link.session {
            log::info!("tcp: the connection with {} is restored", session.socket());
        }
        if unattended {
            self.pump(id);
        }
        self.agenda.add(Task::Flush, id);
        self.pace.wake();
    }

    // ---- the called side ------------------------------------------------------------------------

    /// Answers a hello that resumes a link. The peer has not proven anything yet.
    #[inline(never)]
    pub(super) fn answer_resumption(
        &self,
        hello: &Hello,
        socket: BorrowedFd<'_>,
    ) -> Result<Box<ResumeDialogue>, LinkError> {
        let joins = hello.flags & (wire::RAIL | wire::CHAIN);
        let flags = hello.flags ^ joins;
        let from_initiator = flags == wire::RETURNS | wire::INITIATOR;
        let well_formed = (from_initiator || flags == wire::RETURNS)
            && hello.version == VERSION
            && joins != wire::RAIL | wire::CHAIN
            && hello.reserved == [0; 6]
            && hello.name[8..].iter().all(|&byte| byte == 0);
        let here = hello.target == self.local.name.ep_id();
        if well_formed && here && joins != 0 {
            return self.answer_rail(hello, self.session_of(hello, from_initiator), socket);
        }
        if let Some((id, session)) = if well_formed && here { self.session_of(hello, from_initiator) } else { None } {
            let answer = session.answer(hello)?;
            send_handshake(socket, answer.as_bytes()).map_err(|_| LinkError::Gone)?;
            return Ok(Box::new(ResumeDialogue { link: id, hello: *hello, answer }));
        }
        if well_formed && here && self.expects_session(hello, from_initiator) {
            // The verdict may have arrived and not been read; the caller tries again.
            return Err(LinkError::Gone);
        }
        let refusal = match (well_formed, here) {
            (false, _) => wire::BAD_VERSION,
            (true, false) => wire::NOT_HERE,
            (true, true) => wire::UNKNOWN,
        };
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version, answer.status) = (MAGIC, VERSION, refusal);
        // The answer may not arrive; the connection is refused nevertheless.
        let _ = send_handshake(socket, answer.as_bytes());
        // The peer is no intruder. If two attempts meet, one side drops its own, and the other may take that for a
        // break.
        Err(if refusal == wire::BAD_VERSION { LinkError::Protocol } else { LinkError::Gone })
    }

    /// Notes that a link has a session.
    pub(super) fn add_session(&mut self, id: u32) {
        let Some(key) = self.session_key(id) else { return };
        if self.sessions.len() == self.sessions.capacity() {
            self.sessions.reserve_exact(growth::growth(self.sessions.len()));
        }
        self.sessions.insert(self.place_of(key), id);
    }

    fn session_key(&self, id: u32) -> Option<u64> {
        self.links.get(id)?.session.as_ref().map(|session| session.index_key())
    }

    /// The index of a key in [`Tcp::sessions`], or the one where it would be inserted.
    fn place_of(&self, key: u64) -> usize {
        self.sessions.partition_point(|&id| self.session_key(id).is_some_and(|other| other < key))
    }

    /// The link that a hello names. `from_initiator`: the peer made it, otherwise this side did.
    fn session_of(&self, hello: &Hello, from_initiator: bool) -> Option<(u32, &Session)> {
        let (number, _) = U64::read_from_prefix(&hello.name).ok()?;
        let id = *self.sessions.get(self.place_of(Session::index_key_of(number.get(), !from_initiator)))?;
        let session = self.links.get(id)?.session.as_deref()?;
        (session.has_number_of(hello) && session.is_initiator() != from_initiator).then_some((id, session))
    }

    /// Whether a hello names a link that is coming up here, and whose connection has already broken on the peer's side.
    fn expects_session(&self, hello: &Hello, from_initiator: bool) -> bool {
        let Ok((number, _)) = U64::read_from_prefix(&hello.name) else { return false };
        !from_initiator
            && self.agenda.links(Task::Connect).any(|id| {
                let state = self.links.get(id).map(|link| &link.state);
                matches!(state, Some(LinkState::Connecting(attempt)) if attempt.awaits_verdict_on(number.get()))
            })
    }

    /// Checks the proof of a peer that resumes a link. Returns the position from which it expects this side's stream,
    /// or the status of the refusal.
    fn check_resumption(&mut self, resumption: &ResumeDialogue, finish: &Finish) -> Result<u64, u8> {
        let link = self.links.get_mut(resumption.link).ok_or(wire::UNKNOWN)?;
        let session = link.session.as_mut().ok_or(wire::UNKNOWN)?;
        if !session.has_number_of(&resumption.hello) || matches!(link.state, LinkState::Failed(_)) {
            return Err(wire::UNKNOWN);
        }
        session.accept(&resumption.hello, &resumption.answer, finish)
    }

    /// The exchange of new keys for a resumed link; `None` if it is not encrypted.
    pub(super) fn agree_for_resumption(
        &self,
        index: usize,
        resumption: &ResumeDialogue,
        finish: &Finish,
    ) -> Result<Option<Noise>, LinkError> {
        let session = self.links.get(resumption.link).and_then(|link| link.session.as_ref());
        let (Some(half), Some(session)) = (self.halves.get(index), session) else { return Err(LinkError::Gone) };
        let dialogue = [resumption.hello.as_bytes(), answer_body(&resumption.answer), finish.as_bytes()];
        self.config.endpoint.encrypt.then(|| half.agree(session.key(), &dialogue)).transpose()
    }

    /// Answers a finish with the status of a refusal, and drops the half-open connection.
    pub(super) fn refuse_finish(&mut self, index: usize, status: u8) {
        let verdict = ReturnVerdict { status, ..ReturnVerdict::new_zeroed() };
        if let Some(half) = self.halves.get(index) {
            let mut said = verdict.as_bytes().to_vec();
            if self.config.endpoint.encrypt {
                said.resize(said.len() + noise::message_bytes(said.len()), 0);
            }
            let _ = send_handshake(half.socket.as_fd(), &said);
        }
        let why = if status == wire::DENIED { LinkError::Denied } else { LinkError::Gone };
        self.refuse(index, why);
    }

    /// Handles the finish of a half-open connection that resumes a link: the link takes it over if the proof is right.
    #[inline(never)]
    pub(super) fn judge_resumption(&mut self, index: usize, finish: &Finish) {
        let Some(resumption) = self.halves.get_mut(index).and_then(HalfOpen::take_resumption) else { return };
        if resumption.hello.flags & wire::RAIL != 0 {
            return self.judge_rail(index, &resumption, finish);
        }
        if resumption.hello.flags & wire::CHAIN != 0 {
            return self.judge_chain_end(index, &resumption, finish);
        }
        let mut agreed = None;
        let judged = self.check_resumption(&resumption, finish).and_then(|position| {
            agreed = self.agree_for_resumption(index, &resumption, finish).map_err(|_| wire::DENIED)?;
            Ok(position)
        });
        let id = resumption.link;
        let mut verdict = ReturnVerdict::new_zeroed();
        if let Err(status) = judged {
            return self.refuse_finish(index, status);
        }
        // No byte may arrive on the old connection after the position has been stated.
        self.drop_socket(id);
        let HalfOpen { socket, .. } = self.halves.remove(index);
        let generation = self.next_generation();
        let Some(link) = self.links.get_mut(id) else { return };
        let position = link.rx.position();
        verdict.position = planted!(Bug::PositionShort, position, position.saturating_sub(1)).into();
        let mut bytes = verdict.as_bytes().to_vec();
        let keys = agreed.map(|mut noise| noise.write(verdict.as_bytes()).map(|message| (message, noise.keys())));
        // If the verdict does not arrive, the peer dials again.
        let said = match keys.transpose() {
            Ok(keys) => {
                bytes.extend(keys.iter().flat_map(|(message, _)| message));
                self.secrets.set(id, keys.as_ref().map(|(_, keys)| keys));
                send_handshake(socket.as_fd(), &bytes).map_err(drop)
            }
            Err(_) => Err(()),
        };
        let token = epoll::EventData::new_u64(Token::Link(id, generation).pack());
        if let Err(errno) = epoll::modify(&self.epoll, &socket, token, epoll::EventFlags::IN) {
            sys::cannot_watch(errno);
        }
        (link.socket, link.generation) = (Some(socket), generation);
        if let Ok(position) = judged {
            self.resumed(id, position);
        }
        if said.is_err() {
            self.connection_lost(id, 0);
        }
    }
}
