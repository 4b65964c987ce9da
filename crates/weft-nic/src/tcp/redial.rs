//! A link's session, and our side's attempts to reach the peer again when its connection has broken.
//!
//! Place in the data flow: [`super::resume`] has a [`Redial`] for each broken link, and calls `advance` when
//! its socket reports something. What is said is there.
//!
//! A transmit context of a scalable endpoint cannot be called: its name leads to where the first receive
//! context listens. The other side of its link asks there whether the endpoint lives, and waits for the
//! context's call as long as it does, for `answer_timeout_ms` at most.
//!
//! Errors: [`Failure::Retry`] for what may pass by itself, [`Failure::Final`] for the rest.

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use weft_engine::name::{EpName, FIRST_TX_CONTEXT};
use weft_engine::nic::LinkError;
use weft_os::Unshared;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::connect::{Failure, Local, answer_body, backoff_ms, fill, say};
use super::linger::Linger;
use super::noise::{self, Noise};
use super::stream::Keys;
use super::wire::{self, Answer, Finish, Hello, MAGIC, ReturnVerdict, VERSION};
use super::{TcpConfig, sys};
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

/// When connections break is remembered in these.
const TICK_MS: u64 = 4096;
/// A connection that breaks before so long was of no use if there was something to carry, and nothing got through.
const USELESS_TICKS: u8 = 15;
/// The same of one that had nothing to carry.
const SHORT_LIVED_TICKS: u8 = 2;

/// What a link needs to be made anew. Every idle link has it, so it is small.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) key: Key,
    ip: Ipv6Addr,
    ep_id: [u8; 16],
    scope: u32,
    /// The highest that was given or taken.
    pub(super) epoch: u32,
    port: u16,
    pub(super) initiator: bool,
    /// The peer is on this host.
    near: bool,
    /// The peer is a transmit context, and cannot be called.
    transmits: bool,
    /// So many connections in a row were made and broke before anything got through.
    fruitless: u8,
    /// When the last one broke, in ticks, and how much had got through by then, in both directions together:
    /// a few bits of both, since only a long row of connections counts.
    broke: u8,
    through: u8,
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
        Self {
            number,
            key,
            ip,
            ep_id,
            scope,
            epoch: 0,
            port: socket.port(),
            initiator,
            near,
            transmits,
            fruitless: 0,
            broke: 0,
            through: 0,
        }
    }

    /// The connection breaks, after so many bytes of both streams have got `through`. `pending`: there is
    /// something that has not. Attempts that come up and carry nothing, because only short packets pass, or
    /// because the peer drops them, are attempts that failed.
    #[allow(clippy::cast_possible_truncation)] // Some bits suffice to tell whether something has changed.
    pub(super) fn breaks(&mut self, through: u64, pending: bool, now_ms: u64) {
        let through = through.to_le_bytes().into_iter().fold(0_u8, |sum, byte| sum.rotate_left(3) ^ byte);
        let now = (now_ms / TICK_MS) as u8;
        let useless = if pending { USELESS_TICKS } else { SHORT_LIVED_TICKS };
        let again = self.through == through && now.wrapping_sub(self.broke) < useless;
        self.fruitless = if again { self.fruitless.saturating_add(1) } else { 0 };
        (self.through, self.broke) = (through, now);
    }

    /// By what it is found. The two ends of a link of an endpoint with itself have the same number.
    pub(super) fn key(&self) -> u64 {
        Self::key_of(self.number, self.initiator)
    }

    pub(super) fn key_of(number: u64, initiator: bool) -> u64 {
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
    pub(super) fn socket(&self) -> SocketAddr {
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
    pub(super) wake_ms: u64,
    /// When the connection broke.
    pub(super) since_ms: u64,
    /// A host that is not reached until then is given up.
    until_ms: u64,
    refused_since_ms: Option<u64>,
    /// A transmit context whose endpoint lives is waited for until then.
    called_until_ms: Option<u64>,
    /// Our side has closed the link: what is still to be said.
    pub(super) closed: Option<Box<Linger>>,
}

impl Redial {
    pub(super) fn new(session: &Session, until_ms: u64, now_ms: u64) -> Self {
        let hello = Hello::new_zeroed();
        let fruitless = u32::from(session.fruitless);
        let pause_ms = match fruitless {
            0 if session.initiator || (session.near && !session.transmits) => 0,
            0 => COURTESY_MS,
            tries => backoff_ms(tries, &hello),
        };
        Self {
            stage: Stage::Waiting,
            hello,
            buffer: [0; size_of::<Answer>()],
            have: 0,
            noise: None,
            near: session.near,
            tries: fruitless,
            meetings: fruitless,
            wake_ms: now_ms + pause_ms,
            since_ms: now_ms,
            until_ms,
            refused_since_ms: None,
            called_until_ms: None,
            closed: None,
        }
    }

    /// Whether all has been tried.
    pub(super) fn is_hopeless(&self) -> bool {
        self.meetings > MEETINGS
    }

    /// Whether it pauses.
    pub(super) fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// Whether the kernel still connects.
    pub(super) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// Whether it waits for what the peer says next.
    pub(super) fn has_spoken(&self) -> bool {
        matches!(self.stage, Stage::Answer | Stage::Verdict)
    }

    pub(super) fn dial(&mut self, to: SocketAddr, config: &TcpConfig, now_ms: u64) -> Result<Unshared, Errno> {
        self.tries += 1;
        self.have = 0;
        self.stage = Stage::Connecting;
        self.wake_ms = now_ms + CONNECT_MS;
        let socket = sys::stream_socket(&to, config)?;
        sys::connect(socket.as_fd(), &to)?;
        Ok(socket)
    }

    /// An errno as the failure that it is: only a refusal says something of the peer's endpoint.
    pub(super) fn sort(errno: Errno) -> Failure {
        if errno == Errno::CONNREFUSED { Retry(LinkError::Refused) } else { Retry(LinkError::Unreachable) }
    }

    /// Plans another attempt, or says that it is over. The socket is to be closed either way.
    pub(super) fn pause(&mut self, failure: Failure, config: &TcpConfig, now_ms: u64) -> Result<(), LinkError> {
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
        match self.wake_ms >= self.until_ms {
            _ if self.is_hopeless() => Err(LinkError::Gone),
            true => Err(LinkError::Cut),
            false => Ok(()),
        }
    }

    /// Goes on as far as possible without waiting. `Some`: the peer's position, from which on our stream goes on.
    pub(super) fn advance(
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
            (VERSION, wire::NO_ROOM) => return Err(Retry(LinkError::PeerResources)),
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

#[cfg(test)]
mod tests {
    use weft_engine::name::NameParts;

    use super::*;

    /// Connections that come up and carry nothing are failures, however often they come up; what carries
    /// something, or lives long, is none.
    #[test]
    fn fruitless_connections_are_counted() {
        let name = EpName::full(&NameParts {
            socket: SocketAddr::from(([127, 0, 0, 1], 9)),
            host_id: 1,
            ep_id: [1; 16],
            capability: [2; 16],
            context: None,
            shm: false,
            tcp: true,
        });
        let local = Local { name, job_key: None, open: false, encrypt: false };
        let fresh = || Session::new((1, Key::new(&[3; 16], None)), &name, &local, true);
        let attempts = |session: &mut Session, through: &dyn Fn(u64) -> u64, pending: bool, every_ms: u64| {
            (1..1000).find(|n| {
                session.breaks(through(*n), pending, n * every_ms);
                Redial::new(session, u64::MAX, n * every_ms).is_hopeless()
            })
        };
        assert_eq!(attempts(&mut fresh(), &|_| 500, true, 10_000), Some(u64::from(MEETINGS) + 2));
        assert_eq!(attempts(&mut fresh(), &|_| 500, false, 10), Some(u64::from(MEETINGS) + 2));
        assert_eq!(attempts(&mut fresh(), &|n| n, true, 10), None);
        assert_eq!(attempts(&mut fresh(), &|_| 500, false, 10_000), None);
        assert_eq!(attempts(&mut fresh(), &|_| 500, true, 70_000), None);
        let mut session = fresh();
        session.breaks(5, false, 1);
        assert_eq!(Redial::new(&session, u64::MAX, 1).wake_ms, 1, "the first attempt is made at once");
        session.breaks(5, false, 2);
        assert!(Redial::new(&session, u64::MAX, 2).wake_ms > 2);
    }
}
