//! A link outlives its connection: how one that breaks while both endpoints live is made anew, and the stream goes on.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::lost`] where a connection has ended without a goodbye. The link keeps all its
//! state but the socket; both sides dial, because either may be the one who has noticed, or who can reach the other. Whoever is called
//! answers in a half-open connection, as for new links ([`Tcp::answer_return`], [`Tcp::take_back`]).
//!
//! ```text
//!  dialler                                                        the other
//!     | ── Hello   { nonce, session }                         ──► |
//!     | ◄─ Answer  { nonce, epoch, proof }                     ── |   or Answer { status } and the end
//!     | ── Finish  { epoch, position, proof }                 ──► |   here the other lets go of its own connection
//!     | ◄─ Verdict { status, position }                        ── |   frames follow, each side's from the other's position
//! ```
//! The proofs are keyed by a secret that both sides made of the first handshake, so they show the same capability, job key and dialogue.
//!
//! Invariants: a position is told only when no connection is left from which more could come. Each finish has an epoch above all that its side
//! has given or taken, and is taken only if it is above all that the other has (or equal, from the side that made the link):
//! so what an abandoned attempt has said counts for nothing once a later one has succeeded, and of two that meet one succeeds.
//!
//! A transmit context of a scalable endpoint cannot be called: its name leads to where the first receive context listens. The other side of its
//! link asks there whether the endpoint lives, and waits for the context's call as long as it does, for `answer_timeout_ms` at most.
//!
//! Errors: the link ends with `Gone` when the peer's host says that nobody listens, when another endpoint does, when the peer does not
//! know the session, or when `resume_ms` is over; with `Protocol` if a peer that has proven itself breaks the rules.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use weft_engine::name::{EpName, FIRST_TX_CONTEXT};
use weft_engine::nic::{LinkError, LinkId};
use weft_engine::room;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::connect::{Failure, Half, Local, answer_body, backoff_ms, fill, say};
use super::linger::Linger;
use super::mutant::{Mutant, strikes};
use super::noise::{self, Noise};
use super::stream::Keys;
use super::wire::{self, Answer, Finish, Hello, MAGIC, ReturnVerdict, VERSION};
use super::{Link, State, Tcp, TcpConfig, Token, sys};
use crate::handshake::{self, Key, Role};

use Failure::{Final, Retry};

/// The side that did not make the link leaves the other the first attempt.
const COURTESY_MS: u64 = 50;
/// A host that has not answered for so long is dialled afresh: the kernel would wait ever longer.
const CONNECT_MS: u64 = 1000;
/// A peer on another host may be refused by what lies between for so long; on the same host nobody listens for certain.
const REFUSED_MS: u64 = 400;
/// So often it is asked whether the endpoint of a transmit context lives.
const ASK_MS: u64 = 2000;
/// Attempts at most that were accepted and then dropped.
const MEETINGS: u32 = 64;

/// What a link needs to be made anew. Every idle link has it, so it is small.
#[derive(Debug)]
pub(super) struct Session {
    number: u64,
    key: Key,
    ip: Ipv6Addr,
    ep_id: [u8; 16],
    scope: u32,
    /// The highest that was given or taken.
    epoch: u32,
    port: u16,
    initiator: bool,
    /// The peer is on this host.
    near: bool,
    /// The peer is a transmit context, and cannot be called.
    transmits: bool,
}

impl Session {
    pub(super) fn new((number, key): (u64, Key), peer: &EpName, local: &Local, initiator: bool) -> Self {
        let (socket, ep_id, host_id) = (peer.socket(), peer.ep_id(), peer.host_id());
        let (ip, scope) = match socket {
            SocketAddr::V4(v4) => (v4.ip().to_ipv6_mapped(), 0),
            SocketAddr::V6(v6) => (*v6.ip(), v6.scope_id()),
        };
        let near = host_id != 0 && host_id == local.name.host_id();
        let transmits = peer.context_index().is_some_and(|index| index >= FIRST_TX_CONTEXT);
        Self { number, key, ip, ep_id, scope, epoch: 0, port: socket.port(), initiator, near, transmits }
    }

    /// By what it is found. The two ends of a link of an endpoint with itself have the same number.
    fn key(&self) -> u64 {
        Self::key_of(self.number, self.initiator)
    }

    fn key_of(number: u64, initiator: bool) -> u64 {
        number ^ u64::from(initiator)
    }

    /// Who is asked for: in the place of a transmit context the first receive context of its endpoint.
    fn target(&self) -> [u8; 16] {
        let mut id = self.ep_id;
        if self.transmits {
            id[15] = 0;
        }
        id
    }

    /// Where the peer listens, or its endpoint.
    fn socket(&self) -> SocketAddr {
        match self.ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, self.port)),
            None => SocketAddrV6::new(self.ip, self.port, 0, self.scope).into(),
        }
    }
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Waiting,
    Connecting,
    Answer,
    Verdict,
    /// The endpoint lives whose transmit context is to call.
    Alive,
}

/// Our side's attempts to reach the peer again.
#[derive(Debug)]
pub(super) struct Redial {
    stage: Stage,
    hello: Hello,
    buffer: [u8; size_of::<Answer>()],
    have: usize,
    near: bool,
    tries: u32,
    meetings: u32,
    noise: Option<Noise>,
    /// When it wants to be looked at without its socket having reported anything.
    wake_ms: u64,
    /// A host that is not reached until then is given up.
    until_ms: u64,
    refused_since_ms: Option<u64>,
    /// A transmit context whose endpoint lives is waited for until then.
    called_until_ms: Option<u64>,
    /// Our side has closed the link: what is still to be said.
    pub(super) closed: Option<Box<Linger>>,
}

impl Redial {
    fn new(session: &Session, until_ms: u64, now_ms: u64) -> Self {
        let pause_ms = if session.initiator || (session.near && !session.transmits) { 0 } else { COURTESY_MS };
        Self {
            stage: Stage::Waiting,
            hello: Hello::new_zeroed(),
            buffer: [0; size_of::<Answer>()],
            have: 0,
            noise: None,
            near: session.near,
            tries: 0,
            meetings: 0,
            wake_ms: now_ms + pause_ms,
            until_ms,
            refused_since_ms: None,
            called_until_ms: None,
            closed: None,
        }
    }

    /// Whether it waits for what the peer says next.
    pub(super) fn has_spoken(&self) -> bool {
        matches!(self.stage, Stage::Answer | Stage::Verdict)
    }

    fn dial(&mut self, to: SocketAddr, config: &TcpConfig, now_ms: u64) -> Result<OwnedFd, Errno> {
        self.tries += 1;
        self.have = 0;
        self.stage = Stage::Connecting;
        self.wake_ms = now_ms + CONNECT_MS;
        let socket = sys::stream_socket(&to, config)?;
        sys::set_link_options(socket.as_fd(), config)?;
        sys::connect(socket.as_fd(), &to)?;
        Ok(socket)
    }

    /// An errno as the failure that it is: only a refusal says something of the peer's endpoint.
    fn sort(errno: Errno) -> Failure {
        if errno == Errno::CONNREFUSED { Retry(LinkError::Refused) } else { Retry(LinkError::Unreachable) }
    }

    /// Plans another attempt, or says that it is over. The socket is to be closed either way.
    fn pause(&mut self, failure: Failure, config: &TcpConfig, now_ms: u64) -> Result<(), LinkError> {
        let why = match failure {
            Final(why) => return Err(why),
            Retry(why) => why,
        };
        if self.stage == Stage::Alive {
            let answer_ms = config.answer_timeout_ms;
            let called_until_ms = *self.called_until_ms.get_or_insert(now_ms.saturating_add(answer_ms));
            let next_ms = now_ms + ASK_MS;
            self.wake_ms = next_ms.min(called_until_ms);
            self.until_ms = self.until_ms.max(next_ms.saturating_add(config.resume_ms));
            self.refused_since_ms = None;
            self.stage = Stage::Waiting;
            return if now_ms >= called_until_ms { Err(LinkError::Gone) } else { Ok(()) };
        }
        if self.has_spoken() {
            // The host was reached, and the process may be there.
            self.meetings += 1;
            self.until_ms = self.until_ms.max(now_ms.saturating_add(config.resume_ms));
            self.refused_since_ms = None;
        } else if why == LinkError::Refused {
            let since_ms = *self.refused_since_ms.get_or_insert(now_ms);
            if self.near || now_ms >= since_ms + REFUSED_MS {
                return Err(LinkError::Gone);
            }
        } else {
            self.refused_since_ms = None;
        }
        let pause_ms = backoff_ms(self.tries, &self.hello);
        // The attempt that decides is not put off: who has died is to be known within a second.
        let decided_ms = self.refused_since_ms.map_or(u64::MAX, |since_ms| since_ms + REFUSED_MS);
        self.wake_ms = (now_ms + pause_ms).min(decided_ms);
        self.stage = Stage::Waiting;
        if self.meetings > MEETINGS || self.wake_ms >= self.until_ms { Err(LinkError::Gone) } else { Ok(()) }
    }

    /// Goes on as far as possible without waiting. `Some`: the peer's position, from which on our stream goes on.
    fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        session: &mut Session,
        position: u64,
        config: &TcpConfig,
        now_ms: u64,
    ) -> Result<Option<(u64, Option<Keys>)>, Failure> {
        if self.stage == Stage::Connecting {
            if !sys::connected(socket).map_err(Self::sort)? {
                return Ok(None);
            }
            // The peer's host answers and somebody listens, who may be busy computing.
            self.stage = Stage::Answer;
            self.wake_ms = now_ms.saturating_add(config.answer_timeout_ms);
            let from = if session.initiator { wire::INITIATOR } else { 0 };
            let mut name = [0; size_of::<EpName>()];
            name[..8].copy_from_slice(&session.number.to_le_bytes());
            self.hello = Hello {
                magic: MAGIC,
                version: VERSION,
                flags: wire::RETURNS | from,
                reserved: [0; 6],
                nonce: handshake::random().map_err(Final)?,
                name,
                target: session.target(),
            };
            say(socket, self.hello.as_bytes())?;
        }
        if self.stage == Stage::Answer {
            if !self.fill(socket, size_of::<Answer>())? {
                return Ok(None);
            }
            self.check_answer(socket, session, position, config.encrypt)?;
            self.stage = Stage::Verdict;
            self.have = 0;
        }
        if self.stage == Stage::Verdict {
            let noise_bytes = if self.noise.is_some() { noise::message_bytes(size_of::<ReturnVerdict>()) } else { 0 };
            if !self.fill(socket, size_of::<ReturnVerdict>() + noise_bytes)? {
                return Ok(None);
            }
            let (verdict, _) = ReturnVerdict::read_from_prefix(&self.buffer).map_err(|_| Final(LinkError::Protocol))?;
            return match verdict.status {
                wire::OK => {
                    let mut keys = None;
                    if let Some(noise) = &mut self.noise {
                        let message = &self.buffer[size_of::<ReturnVerdict>()..][..noise_bytes];
                        noise.read(message, verdict.as_bytes()).map_err(Final)?;
                        keys = Some(noise.keys());
                    }
                    Ok(Some((verdict.position.get(), keys)))
                }
                wire::BUSY => Err(Retry(LinkError::Refused)),
                wire::UNKNOWN => Err(Final(LinkError::Gone)),
                _ => Err(Final(LinkError::Protocol)),
            };
        }
        Ok(None)
    }

    /// Checks the peer's proof and gives ours.
    fn check_answer(
        &mut self,
        socket: BorrowedFd<'_>,
        session: &mut Session,
        position: u64,
        encrypt: bool,
    ) -> Result<(), Failure> {
        let answer = Answer::read_from_bytes(&self.buffer).map_err(|_| Final(LinkError::Protocol))?;
        match (answer.version, answer.status) {
            (VERSION, wire::OK) => {}
            (VERSION, wire::UNKNOWN) if session.transmits => {
                self.stage = Stage::Alive;
                return Err(Retry(LinkError::Unreachable));
            }
            // Another endpoint, or one that has given the link up.
            (_, wire::NOT_HERE | wire::UNKNOWN | wire::BAD_VERSION) => return Err(Final(LinkError::Gone)),
            _ => return Err(Final(LinkError::Protocol)),
        }
        let dialogue = [self.hello.as_bytes(), answer_body(&answer)];
        if !session.key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(Final(LinkError::Gone));
        }
        let (theirs, _) = U64::read_from_prefix(&answer.name).map_err(|_| Final(LinkError::Protocol))?;
        let theirs = u32::try_from(theirs.get()).map_err(|_| Final(LinkError::Protocol))?;
        session.epoch = session.epoch.max(theirs).checked_add(1).ok_or(Final(LinkError::Protocol))?;
        let mut sealed = [0; 16];
        sealed[..8].copy_from_slice(&u64::from(session.epoch).to_le_bytes());
        sealed[8..].copy_from_slice(&position.to_le_bytes());
        let proof = session.key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        let finish = Finish { sealed, proof };
        let mut said = finish.as_bytes().to_vec();
        if encrypt {
            let dialogue = [dialogue[0], dialogue[1], finish.as_bytes()];
            let mut noise = Noise::new(Role::Initiator, &session.key, &dialogue).map_err(Final)?;
            said.extend_from_slice(&noise.write(&[]).map_err(Final)?);
            self.noise = Some(noise);
        }
        say(socket, &said)
    }

    /// Receives up to `need` bytes of the awaited message. Returns whether it is whole.
    fn fill(&mut self, socket: BorrowedFd<'_>, need: usize) -> Result<bool, Failure> {
        let whole = fill(socket, &mut self.buffer[..need], &mut self.have)
            .map_err(|why| if why == LinkError::Gone { Retry(LinkError::Unreachable) } else { Final(why) })?;
        // Another program may listen at that address by now.
        if self.stage == Stage::Answer && self.have >= MAGIC.len() && self.buffer[..MAGIC.len()] != MAGIC {
            return Err(Final(LinkError::Gone));
        }
        Ok(whole)
    }
}

/// What was said in a half-open connection that is to carry a link on.
#[derive(Debug)]
pub(super) struct Returning {
    link: u32,
    hello: Hello,
    answer: Answer,
}

impl Tcp {
    /// A link's connection has ended without a goodbye. True: it is being made anew. `silent_ms`: for so long nothing had
    /// been heard of the peer's host.
    pub(super) fn lost(&mut self, id: u32, silent_ms: u64) -> bool {
        if self.config.resume_ms == 0 {
            return false;
        }
        let now_ms = sys::now_ms();
        let Some(link) = self.links.get_mut(id as usize) else { return false };
        let Some(session) = &link.session else { return false };
        let patience_ms =
            self.config.resume_ms.max(self.config.dead_peer_ms.saturating_sub(silent_ms) * u64::from(silent_ms > 0));
        let mut redial = Redial::new(session, now_ms.saturating_add(patience_ms), now_ms);
        match std::mem::replace(&mut link.state, State::Failed) {
            State::Up => {}
            State::Closed(linger) if now_ms < linger.until_ms => redial.closed = Some(linger),
            other => {
                link.state = other;
                return false;
            }
        }
        log::info!("tcp: the connection with {} broke; calling again", session.socket());
        link.state = State::Broken(Box::new(redial));
        self.calling.push(id);
        self.drop_socket(id);
        self.stats.breaks += 1;
        self.redial_when_due(id, now_ms);
        true
    }

    /// Lets go of a link's connection; no position is told before.
    fn drop_socket(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        if std::mem::take(&mut link.tx.armed) {
            self.armed -= 1;
        }
        (link.tx.blocked, link.tx.broken, link.tx.unproven, link.tx.holds) = (false, false, false, false);
        match link.linger() {
            None => link.rx.rewind(),
            Some(linger) => {
                let heeded = linger.heeded;
                self.stage.recycle(link.rx.rewind_to(heeded));
            }
        }
        if let Some(socket) = link.socket.take() {
            self.unwatch(&socket);
        }
    }

    /// Dials if it is time to, and gives up an attempt that has taken too long.
    pub(super) fn redial_when_due(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let (State::Broken(redial), Some(session)) = (&mut link.state, &link.session) else { return };
        if redial.closed.as_ref().is_some_and(|linger| now_ms >= linger.until_ms) {
            return self.retire(id);
        }
        if now_ms < redial.wake_ms {
            let wake_ms = redial.wake_ms.min(redial.closed.as_ref().map_or(u64::MAX, |linger| linger.until_ms));
            return self.set_timer(wake_ms);
        }
        if redial.stage != Stage::Waiting {
            return self.redial_failed(id, Retry(LinkError::Timeout), now_ms);
        }
        let dialled = redial.dial(session.socket(), &self.config, now_ms);
        let wake_ms = redial.wake_ms;
        let generation = self.next_generation();
        let watched = dialled.map_err(Redial::sort).and_then(|socket| {
            self.watch(&socket, Token::Link(id, generation), epoll::EventFlags::IN | epoll::EventFlags::OUT)?;
            Ok(socket)
        });
        match watched {
            Ok(socket) => {
                if let Some(link) = self.links.get_mut(id as usize) {
                    (link.socket, link.generation) = (Some(socket), generation);
                }
                self.set_timer(wake_ms);
                self.pace.wake();
            }
            Err(failure) => self.redial_failed(id, failure, now_ms),
        }
    }

    pub(super) fn redial_failed(&mut self, id: u32, failure: Failure, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let State::Broken(redial) = &mut link.state else { return };
        let verdict = redial.pause(failure, &self.config, now_ms);
        let wake_ms = redial.wake_ms;
        if let Some(socket) = link.socket.take() {
            self.unwatch(&socket);
        }
        match verdict {
            Ok(()) => self.set_timer(wake_ms),
            Err(why) => {
                log::debug!("tcp: link {id} is not made anew: {failure:?}");
                self.fail(id, why);
            }
        }
    }

    /// The link's end is reported in the next poll.
    fn fail(&mut self, id: u32, why: LinkError) {
        if self.links.get(id as usize).is_some_and(Link::is_closed) {
            return self.retire(id);
        }
        if let Some(link) = self.links.get_mut(id as usize) {
            link.state = State::Failed;
            self.calling.retain(|&other| other != id);
            self.failed.push((id, why));
        }
    }

    /// Goes on with an attempt whose socket reported something.
    pub(super) fn call_again(&mut self, id: u32, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let (State::Broken(redial), Some(socket), Some(session)) = (&mut link.state, &link.socket, &mut link.session)
        else {
            return;
        };
        match redial.advance(socket.as_fd(), session, link.rx.position(), &self.config, now_ms) {
            Err(failure) => self.redial_failed(id, failure, now_ms),
            Ok(_) if redial.stage == Stage::Connecting => {}
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

    /// The link has a connection again, on which the peer expects our stream from `position` on.
    fn resumed(&mut self, id: u32, position: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let before = std::mem::replace(&mut link.state, State::Up);
        self.calling.retain(|&other| other != id);
        self.stats.resumed += 1;
        let closed = match before {
            State::Broken(redial) => redial.closed,
            State::Closed(linger) => Some(linger),
            _ => None,
        };
        if let Some(linger) = closed {
            return self.part_again(id, linger, position);
        }
        if let Err(why) = self.writer.rewind(LinkId(id), &mut link.tx, position) {
            return self.fail(id, why);
        }
        link.tx.ack_due |= link.rx.owes();
        // While there was no connection, nothing was found that could be sent.
        if link.tx.queued() > 0
            && let Some(unsent) = &self.config.unsent
        {
            unsent.note();
        }
        if let Some(socket) = &link.socket {
            sys::keep_little_unsent(socket.as_fd());
        }
        if let Some(session) = &link.session {
            log::info!("tcp: there is a connection with {} again", session.socket());
        }
        self.mark_dirty(id);
        self.pace.wake();
    }

    // ---- the side that is called ---------------------------------------------------------------

    /// Answers a hello that wants to carry a link on; nothing has been proven yet.
    pub(super) fn answer_return(&self, hello: &Hello, socket: BorrowedFd<'_>) -> Result<Box<Returning>, LinkError> {
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version) = (MAGIC, VERSION);
        let from_initiator = hello.flags == wire::RETURNS | wire::INITIATOR;
        let well_formed = (from_initiator || hello.flags == wire::RETURNS)
            && hello.version == VERSION
            && hello.reserved == [0; 6]
            && hello.name[8..].iter().all(|&byte| byte == 0);
        let here = hello.target == self.local.name.ep_id();
        if let Some((id, session)) = if well_formed && here { self.session_of(hello, from_initiator) } else { None } {
            answer.nonce = handshake::random()?;
            answer.name[..8].copy_from_slice(&u64::from(session.epoch).to_le_bytes());
            answer.proof = session.key.proof(Role::Acceptor, &[hello.as_bytes(), answer_body(&answer)]);
            say(socket, answer.as_bytes()).map_err(|_| LinkError::Gone)?;
            return Ok(Box::new(Returning { link: id, hello: *hello, answer }));
        }
        if well_formed && here && self.will_know(hello, from_initiator) {
            // The verdict may have come and not been read: whoever calls does so again.
            return Err(LinkError::Gone);
        }
        let refusal = match (well_formed, here) {
            (false, _) => wire::BAD_VERSION,
            (true, false) => wire::NOT_HERE,
            (true, true) => wire::UNKNOWN,
        };
        answer.status = refusal;
        // It may not arrive; the connection is refused all the same.
        let _ = say(socket, answer.as_bytes());
        // It is no intruder: of two attempts that meet, one side drops its own, of which the other may believe that it broke.
        Err(if refusal == wire::BAD_VERSION { LinkError::Protocol } else { LinkError::Gone })
    }

    /// Notes that a link has a session.
    pub(super) fn enlist(&mut self, id: u32) {
        let Some(key) = self.session_key(id) else { return };
        if self.sessions.len() == self.sessions.capacity() {
            self.sessions.reserve_exact(room::growth(self.sessions.len()));
        }
        self.sessions.insert(self.place_of(key), id);
    }

    fn session_key(&self, id: u32) -> Option<u64> {
        self.links.get(id as usize)?.session.as_ref().map(|session| session.key())
    }

    /// Where in [`Tcp::sessions`] a key stands, or would.
    fn place_of(&self, key: u64) -> usize {
        self.sessions.partition_point(|&id| self.session_key(id).is_some_and(|other| other < key))
    }

    /// The link that a hello names, which the other side of it made, or we.
    fn session_of(&self, hello: &Hello, from_initiator: bool) -> Option<(u32, &Session)> {
        let (number, _) = U64::read_from_prefix(&hello.name).ok()?;
        let id = *self.sessions.get(self.place_of(Session::key_of(number.get(), !from_initiator)))?;
        let session = self.links.get(id as usize)?.session.as_deref()?;
        (session.number == number.get() && session.initiator != from_initiator).then_some((id, session))
    }

    /// Whether a hello names a link that is coming up, and whose connection broke on the peer's side already.
    fn will_know(&self, hello: &Hello, from_initiator: bool) -> bool {
        let Ok((number, _)) = U64::read_from_prefix(&hello.name) else { return false };
        !from_initiator
            && self.calling.iter().any(|&id| {
                let state = self.links.get(id as usize).map(|link| &link.state);
                matches!(state, Some(State::Calling(attempt)) if attempt.awaits_verdict_on(number.get()))
            })
    }

    /// Checks the proof of who wants to carry a link on. Gives the link and the position from which on our stream is wanted, or what
    /// to say instead.
    fn judge_return(&mut self, returning: &Returning, finish: &Finish) -> Result<u64, u8> {
        let link = self.links.get_mut(returning.link as usize).ok_or(wire::UNKNOWN)?;
        let session = link.session.as_mut().ok_or(wire::UNKNOWN)?;
        if returning.hello.name[..8] != session.number.to_le_bytes() || matches!(link.state, State::Failed) {
            return Err(wire::UNKNOWN);
        }
        let dialogue = [returning.hello.as_bytes(), answer_body(&returning.answer), &finish.sealed[..]];
        if !session.key.verify(Role::Initiator, &dialogue, &finish.proof) {
            return Err(wire::DENIED);
        }
        let [epoch, position] = <[U64; 2]>::read_from_bytes(&finish.sealed).map_err(|_| wire::DENIED)?;
        // Of two attempts that meet, that of the side that made the link goes first.
        let epoch = u32::try_from(epoch.get()).map_err(|_| wire::DENIED)?;
        let later =
            strikes(Mutant::EpochIgnored) || epoch > session.epoch || (epoch == session.epoch && !session.initiator);
        if !later {
            return Err(wire::BUSY);
        }
        session.epoch = epoch;
        Ok(position.get())
    }

    /// The exchange of new keys for a link that goes on, if it is encrypted.
    fn agree_again(&self, index: usize, returning: &Returning, finish: &Finish) -> Result<Option<Noise>, LinkError> {
        let session = self.links.get(returning.link as usize).and_then(|link| link.session.as_ref());
        let (Some(half), Some(session)) = (self.halves.get(index), session) else { return Err(LinkError::Gone) };
        let dialogue = [returning.hello.as_bytes(), answer_body(&returning.answer), finish.as_bytes()];
        self.config.encrypt.then(|| half.agree(&session.key, &dialogue)).transpose()
    }

    /// A half-open connection has said all; it carries a link on if its proof is right.
    pub(super) fn take_back(&mut self, index: usize, finish: &Finish) {
        let Some(returning) = self.halves.get_mut(index).and_then(|half| half.returning.take()) else { return };
        let mut agreed = None;
        let judged = self.judge_return(&returning, finish).and_then(|position| {
            agreed = self.agree_again(index, &returning, finish).map_err(|_| wire::DENIED)?;
            Ok(position)
        });
        let id = returning.link;
        let mut verdict = ReturnVerdict::new_zeroed();
        if let Err(status) = judged {
            verdict.status = status;
            if let Some(half) = self.halves.get(index) {
                let mut said = verdict.as_bytes().to_vec();
                if self.config.encrypt {
                    said.resize(said.len() + noise::message_bytes(said.len()), 0);
                }
                let _ = say(half.socket.as_fd(), &said);
            }
            let why = if status == wire::DENIED { LinkError::Denied } else { LinkError::Gone };
            return self.refuse(index, why);
        }
        // Nothing may come by the old connection after the position has been told.
        self.drop_socket(id);
        let Half { socket, .. } = self.halves.remove(index);
        let generation = self.next_generation();
        let Some(link) = self.links.get_mut(id as usize) else { return };
        verdict.position = link.rx.position().saturating_sub(u64::from(strikes(Mutant::PositionShort))).into();
        if let Err(errno) = sys::set_link_options(socket.as_fd(), &self.config) {
            log::debug!("tcp: {errno}");
        }
        let mut bytes = verdict.as_bytes().to_vec();
        let keys = agreed.map(|mut noise| noise.write(verdict.as_bytes()).map(|message| (message, noise.keys())));
        // If it does not arrive, the peer dials again.
        let said = match keys.transpose() {
            Ok(keys) => {
                bytes.extend(keys.iter().flat_map(|(message, _)| message));
                self.secrets.set(id, keys.as_ref().map(|(_, keys)| keys));
                say(socket.as_fd(), &bytes).map_err(drop)
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
            self.lost(id, 0);
        }
    }
}
