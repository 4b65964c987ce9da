//! The session of a link, and this side's attempts to reach the peer again after the connection has broken.
//!
//! Place in the data flow: [`super::resume`] has a [`Redial`] for each broken link, and calls `advance` when its socket
//! reports an event. The module describes the handshake.
//!
//! A transmit context of a scalable endpoint cannot be called: its name contains the address of the first receive
//! context. The other side of its link asks there whether the endpoint lives. While it does, the other side waits for
//! the context's call, for `answer_timeout_ms` at most.
//!
//! Errors: [`Failure::Retry`] if another attempt may succeed, otherwise [`Failure::Final`].

use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6};
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weft_engine::name::{EpName, FIRST_TX_CONTEXT};
use weft_engine::nic::LinkError;
use weft_os::Unshared;
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

use super::TcpConfig;
use super::connect::Local;
use super::initiator::{Exchange, Failure, Initiator, answer_body};
use super::linger::Linger;
use super::noise::Noise;
use super::stream::Keys;
use super::wire::{self, Answer, Finish, Hello, MAGIC, ReturnVerdict, VERSION};
use crate::handshake::{Key, Nonce, Role};

use Failure::{Final, Retry};

/// The head start of the side that made the link.
const COURTESY_MS: u64 = 50;
/// A host that has not answered for this time is dialled afresh: the kernel would wait ever longer.
const CONNECT_MS: u64 = 1000;
/// Time during which a network between the hosts may refuse connections. On the same host a refusal proves that no
/// process listens.
const REFUSED_MS: u64 = 400;
/// The interval at which the endpoint of a transmit context is asked whether it lives.
const ASK_MS: u64 = 2000;
/// Limit of attempts that are accepted and then dropped.
const DROPPED_MAX: u32 = 64;

/// The unit in which the time of a break is stored.
const TICK_MS: u64 = 4096;
/// A connection with pending bytes that breaks earlier, without progress, was useless.
const USELESS_TICKS: u8 = 15;
/// A connection without pending bytes that breaks earlier, without progress, was useless.
const SHORT_LIVED_TICKS: u8 = 2;

/// The data for resuming a link. Every idle link has it, so it is small.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) number: u64,
    pub(super) key: Key,
    ip: Ipv6Addr,
    ep_id: [u8; 16],
    scope: u32,
    /// The highest epoch that was sent or accepted.
    pub(super) epoch: u32,
    port: u16,
    pub(super) initiator: bool,
    /// The peer is on this host.
    near: bool,
    /// The peer is a transmit context and cannot be called.
    transmits: bool,
    /// The number of consecutive connections that broke without progress.
    fruitless: u8,
    /// The time of the last break in ticks, and a digest of the progress in both directions by then. A few bits of each
    /// suffice, because only long series of connections count.
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

    /// Notes the break of the connection.
    ///
    /// `through` is the number of bytes that were transmitted in both directions. `pending`: some bytes were not. An
    /// attempt that connects but transmits nothing has failed: only short packets may pass, or the peer may drop them.
    #[allow(clippy::cast_possible_truncation)] // Some bits suffice to tell whether something has changed.
    pub(super) fn breaks(&mut self, through: u64, pending: bool, now_ms: u64) {
        let through = through.to_le_bytes().into_iter().fold(0_u8, |sum, byte| sum.rotate_left(3) ^ byte);
        let now = (now_ms / TICK_MS) as u8;
        let useless = if pending { USELESS_TICKS } else { SHORT_LIVED_TICKS };
        let again = self.through == through && now.wrapping_sub(self.broke) < useless;
        self.fruitless = if again { self.fruitless.saturating_add(1) } else { 0 };
        (self.through, self.broke) = (through, now);
    }

    /// The key of the session in the sorted list. The two ends of an endpoint's link with itself have the same number.
    pub(super) fn key(&self) -> u64 {
        Self::key_of(self.number, self.initiator)
    }

    pub(super) fn key_of(number: u64, initiator: bool) -> u64 {
        number ^ u64::from(initiator)
    }

    /// The id of the endpoint to call. For a transmit context it is that of the first receive context of its endpoint.
    fn target(&self) -> [u8; 16] {
        let mut id = self.ep_id;
        if self.transmits {
            id[15] = 0;
        }
        id
    }

    /// The socket at which the peer or its endpoint listens.
    pub(super) fn socket(&self) -> SocketAddr {
        match self.ip.to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, self.port)),
            None => SocketAddrV6::new(self.ip, self.port, 0, self.scope).into(),
        }
    }
}

/// The attempts of this side to reach the peer again.
#[derive(Debug)]
pub(super) struct Redial {
    initiator: Initiator,
    near: bool,
    tries: u32,
    /// Tries that the peer accepted and then dropped.
    dropped: u32,
    /// The time at which the attempt must be continued even if its socket reports nothing.
    pub(super) wake_ms: u64,
    /// The time of the break.
    pub(super) since_ms: u64,
    /// A host that is not reached until this time is given up.
    until_ms: u64,
    refused_since_ms: Option<u64>,
    /// The transmit context's endpoint has just answered that it lives.
    lives: bool,
    /// The call of a transmit context whose endpoint lives is awaited until this time.
    called_until_ms: Option<u64>,
    /// The end of the stream, if this side has closed the link.
    pub(super) closed: Option<Box<Linger>>,
}

impl Redial {
    pub(super) fn new(session: &Session, until_ms: u64, now_ms: u64) -> Self {
        let initiator = Initiator::new();
        let fruitless = u32::from(session.fruitless);
        let pause_ms = match fruitless {
            0 if session.initiator || (session.near && !session.transmits) => 0,
            0 => COURTESY_MS,
            tries => initiator.backoff_ms(tries),
        };
        Self {
            initiator,
            near: session.near,
            tries: fruitless,
            dropped: fruitless,
            wake_ms: now_ms + pause_ms,
            since_ms: now_ms,
            until_ms,
            refused_since_ms: None,
            lives: false,
            called_until_ms: None,
            closed: None,
        }
    }

    /// Whether too many attempts were dropped.
    pub(super) fn is_hopeless(&self) -> bool {
        self.dropped > DROPPED_MAX
    }

    /// Whether the next attempt has yet to begin.
    pub(super) fn is_waiting(&self) -> bool {
        self.initiator.is_idle()
    }

    /// Whether the kernel is still connecting.
    pub(super) fn is_connecting(&self) -> bool {
        self.initiator.is_connecting()
    }

    /// Whether the peer's next message is awaited.
    pub(super) fn awaits_peer(&self) -> bool {
        self.initiator.awaits_peer()
    }

    pub(super) fn dial(&mut self, to: SocketAddr, config: &TcpConfig, now_ms: u64) -> Result<Unshared, Errno> {
        self.tries += 1;
        self.wake_ms = now_ms + CONNECT_MS;
        self.initiator.dial(&to, config)
    }

    /// The failure of an attempt, by the socket's error. Only a refusal concerns the peer's endpoint.
    pub(super) fn socket_failure(errno: Errno) -> Failure {
        if errno == Errno::CONNREFUSED { Retry(LinkError::Refused) } else { Retry(LinkError::Unreachable) }
    }

    /// Plans another attempt. An error ends the link. The caller must close the socket in both cases.
    pub(super) fn pause(&mut self, failure: Failure, config: &TcpConfig, now_ms: u64) -> Result<(), LinkError> {
        let why = match failure {
            Final(why) => return Err(why),
            Retry(why) => why,
        };
        if std::mem::take(&mut self.lives) {
            let answer_ms = config.answer_timeout_ms;
            let called_until_ms = *self.called_until_ms.get_or_insert(now_ms.saturating_add(answer_ms));
            let next_ms = now_ms + ASK_MS;
            self.wake_ms = next_ms.min(called_until_ms);
            self.until_ms = self.until_ms.max(next_ms.saturating_add(config.resume_ms));
            self.refused_since_ms = None;
            self.initiator.reset();
            return if now_ms >= called_until_ms { Err(LinkError::Gone) } else { Ok(()) };
        }
        if self.awaits_peer() {
            // The host was reached, and the process may live.
            self.dropped += 1;
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
        let pause_ms = self.initiator.backoff_ms(self.tries);
        // The decisive attempt is not delayed: the death of a peer must be known within a second.
        let decided_ms = self.refused_since_ms.map_or(u64::MAX, |since_ms| since_ms + REFUSED_MS);
        self.wake_ms = (now_ms + pause_ms).min(decided_ms);
        self.initiator.reset();
        match self.wake_ms >= self.until_ms {
            _ if self.is_hopeless() => Err(LinkError::Gone),
            true => Err(LinkError::Cut),
            false => Ok(()),
        }
    }

    /// Continues as far as possible without waiting. `Some`: the position from which the peer expects this side's
    /// stream, and the keys of an encrypted connection.
    pub(super) fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        session: &mut Session,
        position: u64,
        config: &TcpConfig,
        now_ms: u64,
    ) -> Result<Option<(u64, Option<Keys>)>, Failure> {
        let Self { initiator, wake_ms, lives, .. } = self;
        let mut exchange = Resumption { session, position, config, now_ms, wake_ms, lives };
        initiator.advance(socket, &mut exchange, config.encrypt)
    }
}

/// The contents of the initiator's handshake for a link that is resumed.
struct Resumption<'a> {
    session: &'a mut Session,
    /// The position up to which this side has received.
    position: u64,
    config: &'a TcpConfig,
    now_ms: u64,
    wake_ms: &'a mut u64,
    lives: &'a mut bool,
}

impl Exchange for Resumption<'_> {
    type Verdict = ReturnVerdict;
    type Outcome = (u64, Option<Keys>);
    const HANG_UP: LinkError = LinkError::Unreachable;
    /// Another program may listen at the address by now.
    const FOREIGN: LinkError = LinkError::Gone;

    fn connect_failure(errno: Errno) -> Failure {
        Redial::socket_failure(errno)
    }

    fn hello(&self, nonce: Nonce) -> Hello {
        let from = if self.session.initiator { wire::INITIATOR } else { 0 };
        let mut name = [0; size_of::<EpName>()];
        name[..8].copy_from_slice(&self.session.number.to_le_bytes());
        Hello {
            magic: MAGIC,
            version: VERSION,
            flags: wire::RETURNS | from,
            reserved: [0; 6],
            nonce,
            name,
            target: self.session.target(),
        }
    }

    fn hello_sent(&mut self) {
        // The peer's host listens, but its process may be busy computing.
        *self.wake_ms = self.now_ms.saturating_add(self.config.answer_timeout_ms);
    }

    fn finish(&mut self, hello: &Hello, answer: &Answer) -> Result<(Finish, Key), Failure> {
        match (answer.version, answer.status) {
            (VERSION, wire::OK) => {}
            (VERSION, wire::UNKNOWN) if self.session.transmits => {
                *self.lives = true;
                return Err(Retry(LinkError::Unreachable));
            }
            (VERSION, wire::NO_ROOM) => return Err(Retry(LinkError::PeerResources)),
            // Another endpoint answers, or the peer has given the link up.
            (_, wire::NOT_HERE | wire::UNKNOWN | wire::BAD_VERSION) => return Err(Final(LinkError::Gone)),
            _ => return Err(Final(LinkError::Protocol)),
        }
        let session = &mut *self.session;
        let dialogue = [hello.as_bytes(), answer_body(answer)];
        if !session.key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(Final(LinkError::Gone));
        }
        let (theirs, _) = U64::read_from_prefix(&answer.name).map_err(|_| Final(LinkError::Protocol))?;
        let theirs = u32::try_from(theirs.get()).map_err(|_| Final(LinkError::Protocol))?;
        session.epoch = session.epoch.max(theirs).checked_add(1).ok_or(Final(LinkError::Protocol))?;
        let mut sealed = [0; 16];
        sealed[..8].copy_from_slice(&u64::from(session.epoch).to_le_bytes());
        sealed[8..].copy_from_slice(&self.position.to_le_bytes());
        let proof = session.key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        Ok((Finish { sealed, proof }, session.key.clone()))
    }

    fn judge(&mut self, verdict: &ReturnVerdict, noise: Option<&mut Noise>) -> Result<Self::Outcome, Failure> {
        match verdict.status {
            wire::OK => Ok((verdict.position.get(), noise.map(Noise::keys))),
            wire::BUSY => Err(Retry(LinkError::Refused)),
            wire::UNKNOWN => Err(Final(LinkError::Gone)),
            _ => Err(Final(LinkError::Protocol)),
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_engine::name::NameParts;

    use super::*;

    /// Connections that come up and transmit nothing count as failures, without limit. A connection that transmits
    /// something or lives long does not.
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
        assert_eq!(attempts(&mut fresh(), &|_| 500, true, 10_000), Some(u64::from(DROPPED_MAX) + 2));
        assert_eq!(attempts(&mut fresh(), &|_| 500, false, 10), Some(u64::from(DROPPED_MAX) + 2));
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
