//! How two TCP devices become a link: the connecting side's [`Attempt`] and the accepting side's [`Half`].
//!
//! Place in the data flow: [`super::progress`] calls `advance` of either whenever its socket reports
//! something, or a time has come; both end in the peer's full name (the link is up) or in a failure. Nothing
//! here blocks.
//!
//! ```text
//!  initiator                                                       acceptor
//!     | ── Hello   { nonce, public name, wanted id }            ──► |
//!     | ◄─ Answer  { nonce, public name, (sealed capability), proof } |   or Answer { status } and the end
//!     | ── Finish  { sealed capability, proof }                 ──► |
//!     | ◄─ Verdict { status }                                     ── |   frames follow
//! ```
//! Where both sides encrypt, a message of the exchange of keys ([`super::noise`]) follows the finish, and
//! another the verdict, for which it vouches. The initiator's link comes up with the verdict, not before: an
//! acceptor that had to drop a half-open connection has then lost nothing, and the initiator calls again.
//!
//! Invariants: every message has a fixed size and is read exactly, so that no byte of a frame is swallowed. A
//! capability never travels in the clear; but where the initiator knows only a service name and there is no
//! job key, the key is no secret, and so neither are both capabilities. A nonce is used once.
//!
//! Errors: [`Failure::Retry`] for what may pass by itself, [`Failure::Final`] for the rest.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_os::Unshared;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::TcpConfig;
use super::noise::{self, Noise};
use super::resume::Returning;
use super::stream::Keys;
use super::sys::{self, Pieces};
use super::wire::{self, Answer, Finish, Hello, MAGIC, VERSION, Verdict};
use crate::error::shortage;
use crate::handshake::{self, Capability, Key, Role};

/// First pause before another attempt; it doubles each time.
const BACKOFF_MS: u64 = 5;
/// Longest pause.
const BACKOFF_MAX_MS: u64 = 250;
/// A connection that has said nothing for so long makes room for others.
const SILENT_GRACE_MS: u64 = 200;
/// The same for one whose hello was good, and whose initiator may be busy.
const GREETED_GRACE_MS: u64 = 2000;
/// Attempts at most that meet somebody who hangs up; those that are refused are limited by time.
const MEETINGS: u32 = 32;

/// How long to wait before the attempt after `tries`, in milliseconds. Many who failed at the same time
/// should not all come back at the same time, so a part of it comes from the hello's nonce.
pub(super) fn backoff_ms(tries: u32, hello: &Hello) -> u64 {
    let pause_ms = (BACKOFF_MS << tries.min(8)).min(BACKOFF_MAX_MS);
    pause_ms + u64::from(hello.nonce[0]) * pause_ms / 512
}

/// What our side brings into every handshake.
#[derive(Debug)]
pub(super) struct Local {
    /// Our full name.
    pub(super) name: EpName,
    /// Mixed into every key.
    pub(super) job_key: Option<[u8; 32]>,
    /// Whoever knows only the address may connect.
    pub(super) open: bool,
    /// What follows the handshake is encrypted.
    pub(super) encrypt: bool,
}

/// Why an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// It may pass; if there is no time left for another try, this is the reason.
    Retry(LinkError),
    /// It will not pass.
    Final(LinkError),
}

use Failure::{Final, Retry};

/// A peer that has proven itself.
#[derive(Debug)]
pub(super) struct Found {
    /// Its full name.
    pub(super) peer: EpName,
    /// What only the two of us know: the session's number and key.
    pub(super) session: (u64, Key),
    /// Where the connection is encrypted.
    pub(super) keys: Option<Keys>,
}

impl Found {
    /// The exchange of keys is over.
    fn encrypt(&mut self, noise: &mut Noise) {
        self.keys = Some(noise.keys());
        self.session.1 = noise.session(&self.session.1);
    }
}

/// How far an attempt has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Pauses before it dials (again).
    Waiting,
    /// The kernel connects.
    Connecting,
    /// The hello is out.
    Answer,
    /// The finish is out.
    Verdict,
}

/// Our side's attempt to reach a peer.
#[derive(Debug)]
pub(super) struct Attempt {
    peer: EpName,
    stage: Stage,
    hello: Hello,
    /// What has come of the message that is awaited.
    buffer: [u8; size_of::<Answer>()],
    have: usize,
    /// The peer, once it has proven itself.
    found: Option<Found>,
    noise: Option<Noise>,
    tries: u32,
    /// Those of them that were accepted and then dropped.
    meetings: u32,
    /// When it dials, or has dialled.
    dial_at_ms: u64,
    /// Until then refused connections are tried again.
    retry_until_ms: u64,
    deadline_ms: u64,
}

impl Attempt {
    /// An attempt that is ready to dial.
    pub(super) fn new(peer: &EpName, config: &TcpConfig, now_ms: u64) -> Self {
        Self {
            peer: *peer,
            stage: Stage::Waiting,
            hello: Hello::new_zeroed(),
            buffer: [0; size_of::<Answer>()],
            have: 0,
            found: None,
            noise: None,
            tries: 0,
            meetings: 0,
            dial_at_ms: now_ms,
            retry_until_ms: now_ms.saturating_add(config.connect_retry_ms),
            deadline_ms: now_ms.saturating_add(config.connect_timeout_ms),
        }
    }

    /// Whom it is to reach.
    pub(super) fn peer(&self) -> &EpName {
        &self.peer
    }

    /// When it wants to be looked at without its socket having reported anything.
    pub(super) fn wake_ms(&self) -> u64 {
        if self.stage == Stage::Waiting { self.dial_at_ms } else { self.deadline_ms }
    }

    /// Whether all that is missing is the verdict on this session.
    pub(super) fn awaits_verdict_on(&self, number: u64) -> bool {
        self.stage == Stage::Verdict && self.found.as_ref().is_some_and(|found| found.session.0 == number)
    }

    /// Whether the kernel still connects.
    pub(super) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// Whether it waits for what the peer says next.
    pub(super) fn has_spoken(&self) -> bool {
        matches!(self.stage, Stage::Answer | Stage::Verdict)
    }

    /// The time for the peer's next word begins: it may have been we who took so long until now. A peer that
    /// was named exactly may be busy computing.
    fn has_said(&mut self, config: &TcpConfig, now_ms: u64) {
        let patience_ms = if self.peer.is_full() { config.answer_timeout_ms } else { config.connect_timeout_ms };
        self.deadline_ms = self.deadline_ms.max(now_ms.saturating_add(patience_ms));
    }

    /// The peer's host answered, and does no more: it has as long as in the beginning to do so again.
    pub(super) fn has_lost(&mut self, config: &TcpConfig, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.min(now_ms.saturating_add(config.connect_timeout_ms));
    }

    /// Whether its time is over. Not before it has dialled as planned.
    pub(super) fn expired(&self, now_ms: u64) -> bool {
        self.stage != Stage::Waiting && now_ms >= self.deadline_ms
    }

    /// Whether it is time to dial.
    pub(super) fn wants_dial(&self, now_ms: u64) -> bool {
        self.stage == Stage::Waiting && now_ms >= self.dial_at_ms
    }

    /// Starts a connection. The socket is to be watched for both directions.
    pub(super) fn dial(&mut self, config: &TcpConfig, now_ms: u64) -> Result<Unshared, Failure> {
        self.tries += 1;
        self.dial_at_ms = now_ms;
        if now_ms >= self.deadline_ms {
            // It was planned in time, and we have been away.
            self.deadline_ms = now_ms.saturating_add(config.connect_timeout_ms);
        }
        let to = self.peer.socket();
        let socket = sys::stream_socket(&to, config).map_err(sort)?;
        sys::connect(socket.as_fd(), &to).map_err(sort)?;
        self.stage = Stage::Connecting;
        self.have = 0;
        self.found = None;
        Ok(socket)
    }

    /// Plans another try after `failure`, or says that it is over. The socket is to be closed either way.
    pub(super) fn pause(&mut self, failure: Failure, now_ms: u64) -> Result<(), LinkError> {
        let why = match failure {
            Final(why) => return Err(why),
            Retry(why) => why,
        };
        // A connection that was made and then dropped shows that somebody is there: such tries are only counted.
        let met = self.has_spoken();
        let pause_ms = backoff_ms(self.tries, &self.hello);
        self.meetings += u32::from(met);
        // It may have been we who took so long to hear of it: what counts is when it was asked for.
        let next_ms = self.dial_at_ms + pause_ms;
        let enough = if met { self.meetings >= MEETINGS } else { next_ms > self.retry_until_ms };
        if enough || next_ms >= self.deadline_ms {
            return Err(why);
        }
        self.stage = Stage::Waiting;
        self.dial_at_ms = now_ms + pause_ms;
        Ok(())
    }

    /// Goes on as far as possible without waiting. `Some`: the link is up with this peer.
    pub(super) fn advance(
        &mut self,
        socket: BorrowedFd<'_>,
        local: &Local,
        config: &TcpConfig,
        now_ms: u64,
    ) -> Result<Option<Found>, Failure> {
        if self.stage == Stage::Connecting {
            match sys::connected(socket) {
                Ok(false) => return Ok(None),
                // A connection that ends was made: somebody is there, who had to drop it.
                outcome @ (Ok(true) | Err(Errno::CONNRESET | Errno::PIPE)) => {
                    self.stage = Stage::Answer;
                    outcome.map_err(sort)?;
                }
                Err(errno) => return Err(sort(errno)),
            }
            // The peer's host answers and somebody listens.
            self.say_hello(socket, local)?;
            self.has_said(config, now_ms);
        }
        if self.stage == Stage::Answer {
            if !self.fill(socket, size_of::<Answer>())? {
                return Ok(None);
            }
            self.check_answer(socket, local)?;
            self.has_said(config, now_ms);
            self.stage = Stage::Verdict;
            self.have = 0;
        }
        if self.stage == Stage::Verdict {
            let noise_bytes = if self.noise.is_some() { noise::message_bytes(size_of::<Verdict>()) } else { 0 };
            if !self.fill(socket, size_of::<Verdict>() + noise_bytes)? {
                return Ok(None);
            }
            return match self.buffer[0] {
                wire::OK => {
                    if let (Some(noise), Some(found)) = (&mut self.noise, &mut self.found) {
                        let (verdict, rest) = self.buffer.split_at(size_of::<Verdict>());
                        noise.read(&rest[..noise_bytes], verdict).map_err(Final)?;
                        found.encrypt(noise);
                    }
                    Ok(self.found.take())
                }
                wire::DENIED => Err(Final(LinkError::Denied)),
                _ => Err(Final(LinkError::Protocol)),
            };
        }
        Ok(None)
    }

    fn say_hello(&mut self, socket: BorrowedFd<'_>, local: &Local) -> Result<(), Failure> {
        self.hello = Hello {
            magic: MAGIC,
            version: VERSION,
            flags: if self.peer.is_full() { wire::KNOWS_CAPABILITY } else { 0 }
                | if local.encrypt { wire::ENCRYPTS } else { 0 },
            reserved: [0; 6],
            nonce: handshake::random().map_err(Final)?,
            name: handshake::public_part(&local.name),
            target: self.peer.ep_id(),
        };
        say(socket, self.hello.as_bytes())
    }

    /// Checks the acceptor's proof and gives ours.
    fn check_answer(&mut self, socket: BorrowedFd<'_>, local: &Local) -> Result<(), Failure> {
        let answer = Answer::read_from_bytes(&self.buffer).map_err(|_| Final(LinkError::Protocol))?;
        if answer.version != VERSION || answer.reserved != [0; 6] {
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
        let key = Key::new(&self.peer.capability(), local.job_key.as_ref());
        let dialogue = [self.hello.as_bytes(), answer_body(&answer)];
        if !key.verify(Role::Acceptor, &dialogue, &answer.proof) {
            return Err(Final(LinkError::Denied));
        }
        let capability = if self.peer.is_full() {
            self.peer.capability()
        } else {
            key.seal(Role::Acceptor, &[self.hello.as_bytes(), &answer.nonce], &answer.sealed)
        };
        let found = handshake::with_capability(&answer.name, &capability).ok_or(Final(LinkError::Protocol))?;
        if self.peer.is_full() && !found.same_endpoint(&self.peer) {
            return Err(Final(LinkError::Protocol));
        }
        // Where it was reached is what the caller knows, even if the peer calls itself differently.
        let peer = if self.peer.is_full() { self.peer } else { found };
        let mine = local.name.capability();
        let sealed = key.seal(Role::Initiator, &dialogue, &mine);
        let proof = key.proof(Role::Initiator, &[dialogue[0], dialogue[1], &sealed]);
        let session = key.session(&[dialogue[0], dialogue[1], &sealed, &mine]);
        self.found = Some(Found { peer, session, keys: None });
        let finish = Finish { sealed, proof };
        let mut said = finish.as_bytes().to_vec();
        if local.encrypt {
            let dialogue = [dialogue[0], dialogue[1], finish.as_bytes()];
            let mut noise = Noise::new(Role::Initiator, &key, &dialogue).map_err(Final)?;
            said.extend_from_slice(&noise.write(&[]).map_err(Final)?);
            self.noise = Some(noise);
        }
        say(socket, &said)
    }

    /// Receives up to `need` bytes of the awaited message. Returns whether it is whole.
    fn fill(&mut self, socket: BorrowedFd<'_>, need: usize) -> Result<bool, Failure> {
        let whole = fill(socket, &mut self.buffer[..need], &mut self.have)
            .map_err(|why| if why == LinkError::Gone { Retry(LinkError::Refused) } else { Final(why) })?;
        // Another service may listen at that address: say so as soon as that is clear.
        if self.stage == Stage::Answer && self.have >= MAGIC.len() && self.buffer[..MAGIC.len()] != MAGIC {
            return Err(Final(LinkError::Protocol));
        }
        Ok(whole)
    }
}

/// Whose connections are counted together as long as nothing is proven: one IPv4 address, or one IPv6 network
/// of 64 bits, of which a host may have every address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source(IpAddr);

impl Source {
    pub(super) fn of(addr: Option<SocketAddr>) -> Self {
        Self(match addr.map(|addr| addr.ip().to_canonical()) {
            Some(IpAddr::V6(v6)) => IpAddr::V6((v6.to_bits() & !u128::from(u64::MAX)).into()),
            Some(v4) => v4,
            None => IpAddr::V6(0.into()),
        })
    }
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// A connection that a peer has made and that has not proven anything yet.
#[derive(Debug)]
pub(super) struct Half {
    pub(super) socket: Unshared,
    pub(super) source: Source,
    pub(super) generation: u32,
    pub(super) since_ms: u64,
    buffer: [u8; size_of::<Hello>()],
    have: usize,
    /// What was said, once the hello has been answered.
    said: Option<Box<Said>>,
    /// The same of one that wants to carry a link on.
    pub(super) returning: Option<Box<Returning>>,
}

/// Where a half-open connection stands.
#[derive(Debug)]
pub(super) enum Step {
    /// More has to come.
    Wait,
    /// The link is up with this peer, and the peer knows.
    Up(Box<Found>),
    /// The hello asks for a link that had another connection; [`Half::returning`] is to be set.
    Returns(Box<Hello>),
    /// The finish of such a dialogue.
    Returned(Finish),
}

#[derive(Debug)]
struct Said {
    hello: Hello,
    answer: Answer,
    key: Key,
}

impl Half {
    pub(super) fn new(socket: Unshared, source: Source, generation: u32, now_ms: u64) -> Self {
        Self {
            socket,
            source,
            generation,
            since_ms: now_ms,
            buffer: [0; size_of::<Hello>()],
            have: 0,
            said: None,
            returning: None,
        }
    }

    /// Whether its hello was good.
    fn is_greeted(&self) -> bool {
        self.said.is_some() || self.returning.is_some()
    }

    /// From when on it makes room for another if there are too many. Initiators call again, so little is lost.
    pub(super) fn yields_at_ms(&self) -> u64 {
        self.since_ms + if self.is_greeted() { GREETED_GRACE_MS } else { SILENT_GRACE_MS }
    }

    /// When it is dropped if nothing happens.
    pub(super) fn deadline_ms(&self, config: &TcpConfig) -> u64 {
        let patience_ms = if self.is_greeted() { config.answer_timeout_ms } else { config.connect_timeout_ms };
        self.since_ms.saturating_add(patience_ms)
    }

    /// Goes on as far as possible without waiting.
    pub(super) fn advance(&mut self, local: &Local) -> Result<Step, LinkError> {
        if !self.is_greeted() {
            if !fill(self.socket.as_fd(), &mut self.buffer, &mut self.have)? {
                return Ok(Step::Wait);
            }
            self.have = 0;
            let hello = Hello::read_from_bytes(&self.buffer).map_err(|_| LinkError::Protocol)?;
            if hello.magic != MAGIC {
                return Err(LinkError::Protocol);
            }
            if hello.flags & wire::RETURNS != 0 {
                return Ok(Step::Returns(Box::new(hello)));
            }
            self.answer(&hello, local)?;
        }
        let need = size_of::<Finish>() + if local.encrypt { noise::FIRST_BYTES } else { 0 };
        if !fill(self.socket.as_fd(), &mut self.buffer[..need], &mut self.have)? {
            return Ok(Step::Wait);
        }
        let (finish, _) = Finish::read_from_prefix(&self.buffer).map_err(|_| LinkError::Protocol)?;
        if self.returning.is_some() {
            return Ok(Step::Returned(finish));
        }
        self.judge(&finish, local).map(Step::Up)
    }

    /// Answers the finish with the verdict.
    #[inline(never)]
    fn judge(&mut self, finish: &Finish, local: &Local) -> Result<Box<Found>, LinkError> {
        let good = Verdict { status: wire::OK, reserved: [0; 7] };
        let mut said = Vec::new();
        let mut outcome = self.check_finish(finish);
        if let Ok(found) = &mut outcome {
            said.extend_from_slice(good.as_bytes());
            if local.encrypt
                && let Err(why) = self.exchange_keys(finish, found, &mut said)
            {
                outcome = Err(why);
            }
        }
        if outcome.is_err() {
            let bad = Verdict { status: wire::DENIED, ..good };
            said = bad.as_bytes().to_vec();
            if local.encrypt {
                said.resize(size_of::<Verdict>() + noise::message_bytes(size_of::<Verdict>()), 0);
            }
        }
        say(self.socket.as_fd(), &said).map_err(|_| LinkError::Gone)?;
        outcome
    }

    /// Takes what an initiator that encrypts has said behind its finish, of the exchange of keys.
    pub(super) fn agree(&self, key: &Key, dialogue: &[&[u8]]) -> Result<Noise, LinkError> {
        let mut noise = Noise::new(Role::Acceptor, key, dialogue)?;
        noise.read(&self.buffer[size_of::<Finish>()..][..noise::FIRST_BYTES], &[])?;
        Ok(noise)
    }

    /// Answers the hello with our proof or with the reason why not.
    #[inline(never)]
    fn answer(&mut self, hello: &Hello, local: &Local) -> Result<(), LinkError> {
        let status = judge_hello(hello, local);
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version, answer.status) = (MAGIC, VERSION, status);
        if status != wire::OK {
            // It may not arrive; the link is refused all the same.
            let _ = say(self.socket.as_fd(), answer.as_bytes());
            return Err(match status {
                wire::BAD_VERSION => LinkError::Protocol,
                wire::ENCRYPTION => LinkError::Encryption,
                _ => LinkError::Denied,
            });
        }
        let knows = hello.flags & wire::KNOWS_CAPABILITY != 0;
        let capability: Capability = if knows { local.name.capability() } else { [0; 16] };
        let key = Key::new(&capability, local.job_key.as_ref());
        answer.nonce = handshake::random()?;
        answer.name = handshake::public_part(&local.name);
        if !knows {
            let dialogue = [hello.as_bytes(), &answer.nonce];
            answer.sealed = key.seal(Role::Acceptor, &dialogue, &local.name.capability());
        }
        answer.proof = key.proof(Role::Acceptor, &[hello.as_bytes(), answer_body(&answer)]);
        say(self.socket.as_fd(), answer.as_bytes()).map_err(|_| LinkError::Gone)?;
        self.said = Some(Box::new(Said { hello: *hello, answer, key }));
        Ok(())
    }

    /// Exchanges keys with an initiator whose proof was right. Our message follows the verdict, for which it vouches.
    fn exchange_keys(&self, finish: &Finish, found: &mut Found, verdict: &mut Vec<u8>) -> Result<(), LinkError> {
        let said = self.said.as_deref().ok_or(LinkError::Protocol)?;
        let dialogue = [said.hello.as_bytes(), answer_body(&said.answer), finish.as_bytes()];
        let mut noise = self.agree(&said.key, &dialogue)?;
        let message = noise.write(verdict)?;
        verdict.extend_from_slice(&message);
        found.encrypt(&mut noise);
        Ok(())
    }

    /// Checks the initiator's proof.
    #[inline(never)] // The exchange of keys, which follows, takes much of the client's stack.
    fn check_finish(&self, finish: &Finish) -> Result<Box<Found>, LinkError> {
        let said = self.said.as_deref().ok_or(LinkError::Protocol)?;
        let dialogue = [said.hello.as_bytes(), answer_body(&said.answer)];
        let with_seal = [dialogue[0], dialogue[1], &finish.sealed];
        if !said.key.verify(Role::Initiator, &with_seal, &finish.proof) {
            return Err(LinkError::Denied);
        }
        let capability = said.key.seal(Role::Initiator, &dialogue, &finish.sealed);
        let peer = handshake::with_capability(&said.hello.name, &capability).ok_or(LinkError::Denied)?;
        let session = said.key.session(&[dialogue[0], dialogue[1], &finish.sealed, &capability]);
        Ok(Box::new(Found { peer, session, keys: None }))
    }
}

/// The status that a hello deserves.
fn judge_hello(hello: &Hello, local: &Local) -> u8 {
    let knows = hello.flags & wire::KNOWS_CAPABILITY != 0;
    let known = wire::KNOWS_CAPABILITY | wire::ENCRYPTS;
    let full = EpName::parse(&hello.name).is_ok_and(|name| name.is_full());
    if hello.version != VERSION || hello.flags & !known != 0 || hello.reserved != [0; 6] || !full {
        wire::BAD_VERSION
    } else if knows && hello.target != local.name.ep_id() {
        wire::NOT_HERE
    } else if !knows && !local.open {
        wire::DENIED
    } else if (hello.flags & wire::ENCRYPTS != 0) != local.encrypt {
        wire::ENCRYPTION
    } else {
        wire::OK
    }
}

/// Tells a caller that there is no room for its connection, which is then closed.
pub(super) fn turn_away(socket: BorrowedFd<'_>) {
    let mut answer = Answer::new_zeroed();
    (answer.magic, answer.version, answer.status) = (MAGIC, VERSION, wire::NO_ROOM);
    // The caller sees the hang-up otherwise.
    let _ = say(socket, answer.as_bytes());
}

/// The part of an answer that its proof covers.
pub(super) fn answer_body(answer: &Answer) -> &[u8] {
    let bytes = answer.as_bytes();
    &bytes[..bytes.len() - size_of::<handshake::Proof>()]
}

/// What an error of the socket means for the attempt.
pub(super) fn sort(errno: Errno) -> Failure {
    match errno {
        // ECONNABORTED, ECONNRESET: the acceptor's queue overflowed or its process just died.
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Retry(LinkError::Refused),
        Errno::TIMEDOUT => Final(LinkError::Timeout),
        // No port is free just now.
        Errno::ADDRNOTAVAIL | Errno::AGAIN => Retry(LinkError::Resources),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Final(shortage(errno)),
        Errno::ACCESS | Errno::PERM => Final(LinkError::Denied),
        // EHOSTUNREACH, ENETUNREACH, EAFNOSUPPORT, EINVAL (an address that cannot be connected to), …
        _ => Final(LinkError::Unreachable),
    }
}

/// Sends one message of the handshake whole. A fresh socket has room for all of them.
#[inline(never)] // The list of pieces has room for many.
pub(super) fn say(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Failure> {
    let mut pieces = Pieces::new();
    pieces.bytes(bytes);
    match sys::send(socket, &pieces) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => Err(Retry(LinkError::Resources)),
        Err(errno) => Err(sort(errno)),
    }
}

/// Receives the rest of `buffer`, of which `have` bytes are there. Returns whether it is full.
pub(super) fn fill(socket: BorrowedFd<'_>, buffer: &mut [u8], have: &mut usize) -> Result<bool, LinkError> {
    while *have < buffer.len() {
        match sys::receive_one(socket, &mut buffer[*have..]) {
            Ok(0) => return Err(LinkError::Gone),
            Ok(n) => *have += n,
            Err(Errno::AGAIN) => return Ok(false),
            Err(_) => return Err(LinkError::Gone),
        }
    }
    Ok(true)
}
