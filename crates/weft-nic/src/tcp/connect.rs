//! The handshake of a new link, and its initiator's side: [`Attempt`].
//!
//! Place in the data flow: [`super::progress`] calls [`Attempt::advance`] when its socket reports an event or a timer
//! expires. It ends with the peer's full name (the link is up) or with a failure. Nothing blocks. The acceptor's side
//! is in [`super::half_open`].
//!
//! ```text
//!  initiator                                                       acceptor
//!     | ── Hello   { nonce, public name, wanted id }            ──► |
//!     | ◄─ Answer  { nonce, public name, (sealed capability), proof } |   or Answer { status } and the end
//!     | ── Finish  { sealed capability, proof }                 ──► |
//!     | ◄─ Verdict { status }                                     ── |   frames follow
//! ```
//! If both sides encrypt, the finish and the verdict are each followed by a message of the exchange of keys
//! ([`super::noise`]). The second message authenticates the verdict. The initiator's link comes up with the verdict and
//! not before. An acceptor that must drop a half-open connection therefore loses nothing, and the initiator calls
//! again.
//!
//! Invariants: every message has a fixed size and is read exactly, so that no byte of a frame is consumed. A
//! capability never travels in the clear. If the initiator knows only a service name and there is no job key, however,
//! the key is not secret, and neither are the two capabilities. A nonce is used once.
//!
//! A peer's name may have two addresses. The one in a network of this host is the first ([`crate::host::Networks`]).
//! They take turns: a refusal, an error, or a time without an answer from the host leads to the other one. An address
//! that can never work is left out. While no connection is made, others are asked to have the peer connect
//! ([`weft_engine::nic::Sink::hindered`]).
//!
//! Errors: [`Failure::Retry`] if another attempt may succeed, otherwise [`Failure::Final`].

use std::net::SocketAddr;
use std::os::fd::BorrowedFd;

use rustix::io::Errno;
use weft_engine::name::EpName;
use weft_engine::nic::{Layer, LinkError, Versions};
use weft_os::ForkClosedFd;
use zerocopy::IntoBytes;

use super::TcpConfig;
use super::initiator::{Exchange, Failure, Initiator, answer_body, socket_failure};
use super::noise::Noise;
use super::stream::Keys;
use super::wire::{self, Answer, Finish, Hello, MAGIC, Verdict};
use crate::handshake::{self, Key, Nonce, Role};

use Failure::{Final, Retry};

/// Limit of attempts that the peer accepts and then drops. Refused attempts are limited by time.
const DROPPED_MAX: u32 = 32;
/// Time for the host at one of two addresses to answer, at first. It doubles with every second turn.
const TURN_MS: u64 = 1000;
/// Time without a connection after which others are asked to have the peer connect. The pauses between two requests
/// grow from this time to the longest one.
const ASK_MS: u64 = 250;
const ASK_MAX_MS: u64 = 2000;

/// The local part of every handshake.
#[derive(Debug)]
pub(super) struct Local {
    /// The endpoint's full name.
    pub(super) name: EpName,
    /// Mixed into every key.
    pub(super) job_key: Option<[u8; 32]>,
    /// Peers that know only the address may connect.
    pub(super) open: bool,
    /// The traffic after the handshake is encrypted.
    pub(super) encrypt: bool,
    /// The version of the handshake.
    pub(super) version: u8,
}

/// The error for a peer's version if it is another one than this side's.
pub(super) fn other_version(local: &Local, theirs: u8) -> Option<LinkError> {
    let ours = local.version;
    (theirs != ours).then_some(LinkError::Version(Versions { layer: Layer::Tcp, ours, theirs }))
}

/// A peer that has proven itself.
#[derive(Debug)]
pub(super) struct ProvenPeer {
    /// The peer's full name.
    pub(super) peer: EpName,
    /// The session's number and key, which only the two sides know.
    pub(super) session: (u64, Key),
    /// The keys of an encrypted connection.
    pub(super) keys: Option<Keys>,
}

impl ProvenPeer {
    /// Takes the keys after the exchange.
    pub(super) fn encrypt(&mut self, noise: &mut Noise) {
        self.keys = Some(noise.keys());
        self.session.1 = noise.session(&self.session.1);
    }
}

/// An attempt to reach a peer.
#[derive(Debug)]
pub(super) struct Attempt {
    peer: EpName,
    initiator: Initiator,
    /// The peer, once it has proven itself.
    found: Option<ProvenPeer>,
    tries: u32,
    /// The peer's second address is the one to dial.
    at_second: bool,
    /// The error of an address that can never work. The other one has no turns from then on.
    given_up: Option<LinkError>,
    /// Turns that have ended without an answer.
    silent_turns: u32,
    /// One of the hosts has refused a connection: it is up, and no process listens there.
    refused: bool,
    /// Tries that the peer accepted and then dropped.
    dropped: u32,
    /// The time of the next dial, or of the last one.
    dial_at_ms: u64,
    /// The number of times that others were asked to have the peer connect, and the time of the next one.
    asked: u32,
    ask_at_ms: u64,
    /// Refused connections are tried again until this time.
    retry_until_ms: u64,
    deadline_ms: u64,
}

impl Attempt {
    /// An attempt that is ready to dial. `near`: the peer is on this host.
    pub(super) fn new(peer: &EpName, near: bool, config: &TcpConfig, now_ms: u64) -> Self {
        let second = peer.second_socket().filter(|_| !near);
        let prefers = |second: SocketAddr| config.networks.prefer_second(peer.socket().ip(), second.ip());
        Self {
            peer: *peer,
            initiator: Initiator::new(),
            found: None,
            tries: 0,
            at_second: second.is_some_and(prefers),
            given_up: None,
            silent_turns: 0,
            refused: false,
            dropped: 0,
            dial_at_ms: now_ms,
            asked: 0,
            ask_at_ms: if peer.is_full() && !near { now_ms + ASK_MS } else { u64::MAX },
            retry_until_ms: now_ms.saturating_add(config.endpoint.connect_retry_ms),
            deadline_ms: now_ms.saturating_add(config.endpoint.connect_timeout_ms),
        }
    }

    /// The wanted peer.
    pub(super) fn peer(&self) -> &EpName {
        &self.peer
    }

    /// The address to dial.
    fn address(&self) -> SocketAddr {
        self.peer.second_socket().filter(|_| self.at_second).unwrap_or_else(|| self.peer.socket())
    }

    /// Whether the peer has another address that may work.
    fn has_other_address(&self) -> bool {
        self.given_up.is_none() && self.peer.second_socket().is_some()
    }

    /// The time at which the attempt must be continued even if its socket reports nothing.
    pub(super) fn wake_ms(&self) -> u64 {
        let wake_ms =
            if self.initiator.is_idle() { self.dial_at_ms } else { self.deadline_ms.min(self.turn_ends_ms()) };
        if self.awaits_peer() { wake_ms } else { wake_ms.min(self.ask_at_ms) }
    }

    /// Whether it is time to ask others to have the peer connect. Plans the next time.
    pub(super) fn asks(&mut self, now_ms: u64) -> bool {
        let asks = !self.awaits_peer() && now_ms >= self.ask_at_ms;
        if asks {
            self.asked += 1;
            self.ask_at_ms = now_ms + (ASK_MS << self.asked.min(8)).min(ASK_MAX_MS);
        }
        asks
    }

    /// Whether others were asked to have the peer connect.
    pub(super) fn has_asked(&self) -> bool {
        self.asked > 0
    }

    /// The time at which the other address has its turn.
    fn turn_ends_ms(&self) -> u64 {
        if !self.is_connecting() || !self.has_other_address() {
            return u64::MAX;
        }
        self.dial_at_ms.saturating_add(TURN_MS << (self.silent_turns / 2).min(16))
    }

    /// Whether the host has not answered, and the other address has its turn.
    pub(super) fn is_silent(&self, now_ms: u64) -> bool {
        now_ms >= self.turn_ends_ms()
    }

    /// Whether only the verdict on this session is missing.
    pub(super) fn awaits_verdict_on(&self, number: u64) -> bool {
        self.initiator.awaits_verdict() && self.found.as_ref().is_some_and(|found| found.session.0 == number)
    }

    /// Whether the kernel is still connecting.
    pub(super) fn is_connecting(&self) -> bool {
        self.initiator.is_connecting()
    }

    /// Whether the peer's next message is awaited.
    pub(super) fn awaits_peer(&self) -> bool {
        self.initiator.awaits_peer()
    }

    /// Limits the time for a peer whose host has fallen silent after it had answered: it has as long as at first.
    pub(super) fn has_lost(&mut self, config: &TcpConfig, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.min(now_ms.saturating_add(config.endpoint.connect_timeout_ms));
    }

    /// Whether the deadline has passed. Before a planned dial it does not count.
    pub(super) fn expired(&self, now_ms: u64) -> bool {
        !self.initiator.is_idle() && now_ms >= self.deadline_ms
    }

    /// Whether it is time to dial.
    pub(super) fn wants_dial(&self, now_ms: u64) -> bool {
        self.initiator.is_idle() && now_ms >= self.dial_at_ms
    }

    /// Starts a connection. The caller must watch the socket for both directions.
    pub(super) fn dial(&mut self, config: &TcpConfig, now_ms: u64) -> Result<ForkClosedFd, Failure> {
        self.tries += 1;
        self.dial_at_ms = now_ms;
        if now_ms >= self.deadline_ms {
            // The dial was planned in time, but this process did not poll.
            self.deadline_ms = now_ms.saturating_add(config.endpoint.connect_timeout_ms);
        }
        let socket = self.initiator.dial(&self.address(), config).map_err(socket_failure)?;
        self.found = None;
        Ok(socket)
    }

    /// Plans another try after `failure`. An error ends the attempt. The caller must close the socket in both cases.
    pub(super) fn pause(&mut self, failure: Failure, config: &TcpConfig, now_ms: u64) -> Result<(), LinkError> {
        let other = self.has_other_address() && now_ms < self.deadline_ms;
        let silent = self.is_silent(now_ms);
        let why = match failure {
            Final(why) if other && concerns_address(why) => {
                self.given_up = Some(why);
                self.turn(config, now_ms);
                return Ok(());
            }
            Retry(_) if other && silent => {
                self.silent_turns += 1;
                self.turn(config, now_ms);
                return Ok(());
            }
            // A firewall may report that a host is unreachable, which can connect itself.
            Final(LinkError::Unreachable) if self.ask_at_ms != u64::MAX => LinkError::Unreachable,
            Final(why) => return Err(why),
            Retry(why) => why,
        };
        self.refused |= why == LinkError::Refused;
        // A connection that was made and then dropped proves that the peer's host listens: such tries are only counted.
        let accepted = self.awaits_peer();
        let pause_ms = self.initiator.backoff_ms(self.tries);
        self.dropped += u32::from(accepted);
        // This process may have noticed the failure late, so the pause counts from the dial.
        let next_ms = self.dial_at_ms + pause_ms;
        let enough = if accepted { self.dropped >= DROPPED_MAX } else { next_ms > self.retry_until_ms };
        if enough || next_ms >= self.deadline_ms {
            return Err(why);
        }
        self.initiator.reset();
        self.dial_at_ms = now_ms + pause_ms;
        self.at_second ^= other;
        Ok(())
    }

    /// Dials the other address at once.
    fn turn(&mut self, config: &TcpConfig, now_ms: u64) {
        self.initiator.reset();
        self.at_second = !self.at_second;
        self.dial_at_ms = now_ms;
        if !self.refused {
            self.retry_until_ms = now_ms.saturating_add(config.endpoint.connect_retry_ms);
        }
    }

    /// Continues as far as possible without waiting. `Some`: the link is up with this peer.
    pub(super) fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        local: &Local,
        config: &TcpConfig,
        now_ms: u64,
    ) -> Result<Option<ProvenPeer>, Failure> {
        let Self { peer, initiator, found, deadline_ms, .. } = self;
        let mut exchange = NewLink { peer, local, config, now_ms, found, deadline_ms };
        initiator.advance(socket, &mut exchange, local.encrypt)
    }
}

/// Whether a failure depends on the address that was dialled.
const fn concerns_address(why: LinkError) -> bool {
    matches!(why, LinkError::Timeout | LinkError::Unreachable | LinkError::Refused | LinkError::Protocol)
}

/// The contents of the initiator's handshake for a new link.
struct NewLink<'a> {
    peer: &'a EpName,
    local: &'a Local,
    config: &'a TcpConfig,
    now_ms: u64,
    found: &'a mut Option<ProvenPeer>,
    deadline_ms: &'a mut u64,
}

impl NewLink<'_> {
    /// Begins the time for the peer's next message, because this process may have taken long before. A peer with a full
    /// name may be busy computing.
    fn extend_deadline(&mut self) {
        let full = self.peer.is_full();
        let patience_ms =
            if full { self.config.endpoint.answer_timeout_ms } else { self.config.endpoint.connect_timeout_ms };
        *self.deadline_ms = (*self.deadline_ms).max(self.now_ms.saturating_add(patience_ms));
    }
}

impl Exchange for NewLink<'_> {
    type Verdict = Verdict;
    type Outcome = ProvenPeer;
    const HANG_UP: LinkError = LinkError::Refused;
    const FOREIGN: LinkError = LinkError::Protocol;

    fn connect_failure(errno: Errno) -> Failure {
        socket_failure(errno)
    }

    /// A connection that is reset was made: the peer's host listens, but had to drop it.
    fn was_accepted(errno: Errno) -> bool {
        matches!(errno, Errno::CONNRESET | Errno::PIPE)
    }

    fn hello(&self, nonce: Nonce) -> Hello {
        let knows = if self.peer.is_full() { wire::KNOWS_CAPABILITY } else { 0 };
        let encrypts = if self.local.encrypt { wire::ENCRYPTS } else { 0 };
        Hello {
            magic: MAGIC,
            version: self.local.version,
            flags: knows | encrypts,
            reserved: [0; 6],
            nonce,
            name: handshake::public_part(&self.local.name),
            target: self.peer.ep_id(),
        }
    }

    fn hello_sent(&mut self) {
        self.extend_deadline();
    }

    fn finish(&mut self, hello: &Hello, answer: &Answer) -> Result<(Finish, Key), Failure> {
        if let Some(versions) = other_version(self.local, answer.version) {
            return Err(Final(versions));
        }
        if answer.reserved != [0; 6] {
            return Err(Final(LinkError::Protocol));
        }
        match answer.status {
            wire::OK => {}
            wire::NO_ROOM => return Err(Retry(LinkError::PeerResources)),
            wire::NOT_HERE => return Err(Final(LinkError::Refused)),
            wire::DENIED => return Err(Final(LinkError::Denied)),
            wire::ENCRYPTION => return Err(Final(LinkError::Encryption)),
            _ => return Err(Final(LinkError::Protocol)),
        }
        let key = Key::new(&self.peer.capability(), self.local.job_key.as_ref());
        let dialogue = [hello.as_bytes(), answer_body(answer)];
        if !key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(Final(LinkError::Denied));
        }
        let capability = if self.peer.is_full() {
            self.peer.capability()
        } else {
            key.seal(Role::Acceptor, &[hello.as_bytes(), &answer.nonce], &answer.sealed)
        };
        let found = handshake::with_capability(&answer.name, &capability).ok_or(Final(LinkError::Protocol))?;
        if self.peer.is_full() && !found.same_endpoint(self.peer) {
            return Err(Final(LinkError::Protocol));
        }
        // The caller's address for the peer is kept, even if the peer uses another one for itself.
        let peer = if self.peer.is_full() { *self.peer } else { found };
        let mine = self.local.name.capability();
        let sealed = key.seal(Role::Initiator, &dialogue, &mine);
        let proof = key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        let session = key.session(&[dialogue[0], dialogue[1], &sealed, &mine]);
        *self.found = Some(ProvenPeer { peer, session, keys: None });
        Ok((Finish { sealed, proof }, key))
    }

    fn finish_sent(&mut self) {
        self.extend_deadline();
    }

    fn judge(&mut self, verdict: &Verdict, noise: Option<&mut Noise>) -> Result<ProvenPeer, Failure> {
        match verdict.status {
            wire::OK => {
                let mut found = self.found.take().ok_or(Final(LinkError::Protocol))?;
                if let Some(noise) = noise {
                    found.encrypt(noise);
                }
                Ok(found)
            }
            wire::DENIED => Err(Final(LinkError::Denied)),
            _ => Err(Final(LinkError::Protocol)),
        }
    }
}
