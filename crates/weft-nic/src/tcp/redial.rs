//! This side's attempts to reach the peer again after the connection has broken.
//!
//! Place in the data flow: [`super::resume`] has a [`Redial`] for each broken link, and calls `advance` when its socket
//! reports an event. The module describes the handshake.
//!
//! A transmit context of a scalable endpoint cannot be called: its name contains the address of the first receive
//! context. The other side of its link asks there whether the endpoint lives. While it does, the other side waits for
//! the context's call, for `answer_timeout_ms` at most.
//!
//! Errors: [`Failure::Retry`] if another attempt may succeed, otherwise [`Failure::Final`].

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weft_engine::nic::LinkError;
use weft_os::ForkClosedFd;

use super::TcpConfig;
use super::initiator::{Exchange, Failure, Initiator};
use super::linger::Linger;
use super::noise::Noise;
use super::session::Session;
use super::stream::Keys;
use super::wire::{self, Answer, Finish, Hello, ReturnVerdict, VERSION};
use crate::handshake::{Key, Nonce};

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

/// The attempts of this side to reach the peer again.
#[derive(Debug)]
pub(super) struct Redial {
    initiator: Initiator,
    near: bool,
    /// Only the peer can connect.
    one_way: bool,
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
        let fruitless = session.fruitless();
        let pause_ms = match fruitless {
            0 if session.is_initiator() || (session.is_near() && !session.is_with_transmit_context()) => 0,
            0 => COURTESY_MS,
            tries => initiator.backoff_ms(tries),
        };
        Self {
            initiator,
            near: session.is_near(),
            one_way: session.is_one_way(),
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

    /// The number of attempts so far.
    pub(super) fn tries(&self) -> u32 {
        self.tries
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

    pub(super) fn dial(&mut self, to: SocketAddr, config: &TcpConfig, now_ms: u64) -> Result<ForkClosedFd, Errno> {
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
            let answer_ms = config.endpoint.answer_timeout_ms;
            let called_until_ms = *self.called_until_ms.get_or_insert(now_ms.saturating_add(answer_ms));
            let next_ms = now_ms + ASK_MS;
            self.wake_ms = next_ms.min(called_until_ms);
            self.until_ms = self.until_ms.max(next_ms.saturating_add(config.endpoint.resume_ms));
            self.refused_since_ms = None;
            self.initiator.reset();
            return if now_ms >= called_until_ms { Err(LinkError::Gone) } else { Ok(()) };
        }
        if self.awaits_peer() {
            // The host was reached, and the process may live.
            self.dropped += 1;
            self.until_ms = self.until_ms.max(now_ms.saturating_add(config.endpoint.resume_ms));
            self.refused_since_ms = None;
        } else if why == LinkError::Refused && !self.one_way {
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
        initiator.advance(socket, &mut exchange, config.endpoint.encrypt)
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
        self.session.hello(nonce)
    }

    fn hello_sent(&mut self) {
        // The peer's host listens, but its process may be busy computing.
        *self.wake_ms = self.now_ms.saturating_add(self.config.endpoint.answer_timeout_ms);
    }

    fn finish(&mut self, hello: &Hello, answer: &Answer) -> Result<(Finish, Key), Failure> {
        match (answer.version, answer.status) {
            (VERSION, wire::OK) => {}
            (VERSION, wire::UNKNOWN) if self.session.is_with_transmit_context() => {
                *self.lives = true;
                return Err(Retry(LinkError::Unreachable));
            }
            (VERSION, wire::NO_ROOM) => return Err(Retry(LinkError::PeerResources)),
            // Another endpoint answers, or the peer has given the link up.
            (_, wire::NOT_HERE | wire::UNKNOWN | wire::BAD_VERSION) => return Err(Final(LinkError::Gone)),
            _ => return Err(Final(LinkError::Protocol)),
        }
        let finish = self.session.finish(hello, answer, self.position).map_err(Final)?;
        Ok((finish, self.session.key().clone()))
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
    use weft_engine::name::{EpName, NameParts};

    use super::super::connect::Local;
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
        let local = Local { name, job_key: None, open: false, encrypt: false, version: VERSION };
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
