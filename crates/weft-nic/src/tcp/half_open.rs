//! The acceptor's side of handshakes: a connection whose peer has not proven itself yet ([`HalfOpen`]).
//!
//! Place in the data flow: [`super::accept`] calls [`HalfOpen::advance`] when its socket reports an event or a timer
//! expires. It ends with the peer's full name (the link is up), with the finish of a link that is resumed
//! ([`super::resume`]), or with an error. [`super::connect`] describes the messages. Nothing blocks.
//!
//! Invariants: every message has a fixed size and is read exactly, so that no byte of a frame is consumed. The acceptor
//! computes no keys of a connection before the initiator's proof was right.
//!
//! Errors: the [`LinkError`] with which the connection is refused.

use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd};

use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_os::ForkClosedFd;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::TcpConfig;
use super::connect::{Local, ProvenPeer, other_version};
use super::initiator::{answer_body, fill, send_handshake};
use super::noise::{self, Noise};
use super::resume::ResumeDialogue;
use super::wire::{self, Answer, Finish, Hello, MAGIC, VERSION, Verdict};
use crate::handshake::{self, Capability, Key, Role};

/// Time after which a connection without a hello makes room for others.
const SILENT_GRACE_MS: u64 = 200;
/// Time after which a connection with a good hello makes room for others. Its initiator may be busy.
const GREETED_GRACE_MS: u64 = 2000;

/// The source of unproven connections, which are counted together: one IPv4 address, or one IPv6 network of 64 bits,
/// because a host may have every address of it.
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

/// An incoming connection whose peer has not proven itself yet.
#[derive(Debug)]
pub(super) struct HalfOpen {
    pub(super) socket: ForkClosedFd,
    pub(super) source: Source,
    pub(super) generation: u32,
    pub(super) since_ms: u64,
    buffer: [u8; size_of::<Hello>()],
    have: usize,
    stage: Stage,
}

/// The state of a handshake.
#[derive(Debug)]
enum Stage {
    /// The hello is awaited.
    Hello,
    /// The finish of a new link is awaited.
    New(Box<Dialogue>),
    /// The finish of a link that is resumed is awaited.
    Resumed(Box<ResumeDialogue>),
}

/// The result of [`HalfOpen::advance`].
#[derive(Debug)]
pub(super) enum Step {
    /// More bytes must arrive.
    Wait,
    /// The link is up with this peer, which has been informed.
    Up(Box<ProvenPeer>),
    /// The hello asks to resume a link; the caller must answer it and call [`HalfOpen::resume`].
    Returns(Box<Hello>),
    /// The finish of a dialogue that resumes a link.
    Returned(Finish),
}

/// The dialogue of a new link so far.
#[derive(Debug)]
struct Dialogue {
    hello: Hello,
    answer: Answer,
    key: Key,
}

impl HalfOpen {
    pub(super) fn new(socket: ForkClosedFd, source: Source, generation: u32, now_ms: u64) -> Self {
        Self {
            socket,
            source,
            generation,
            since_ms: now_ms,
            buffer: [0; size_of::<Hello>()],
            have: 0,
            stage: Stage::Hello,
        }
    }

    /// Whether the hello was good.
    fn is_greeted(&self) -> bool {
        !matches!(self.stage, Stage::Hello)
    }

    /// Awaits the finish of a link that is resumed, after the hello has been answered.
    pub(super) fn resume(&mut self, dialogue: Box<ResumeDialogue>) {
        self.stage = Stage::Resumed(dialogue);
    }

    /// Takes the dialogue of a link that is resumed.
    pub(super) fn take_resumption(&mut self) -> Option<Box<ResumeDialogue>> {
        match std::mem::replace(&mut self.stage, Stage::Hello) {
            Stage::Resumed(dialogue) => Some(dialogue),
            _ => None,
        }
    }

    /// The dialogue of a new link.
    fn dialogue(&self) -> Result<&Dialogue, LinkError> {
        match &self.stage {
            Stage::New(dialogue) => Ok(dialogue),
            _ => Err(LinkError::Protocol),
        }
    }

    /// The time from which the connection makes room for others if there are too many. Its initiator calls again, so
    /// little is lost.
    pub(super) fn yields_at_ms(&self) -> u64 {
        self.since_ms + if self.is_greeted() { GREETED_GRACE_MS } else { SILENT_GRACE_MS }
    }

    /// The time at which the connection is dropped.
    pub(super) fn deadline_ms(&self, config: &TcpConfig) -> u64 {
        let patience_ms =
            if self.is_greeted() { config.endpoint.answer_timeout_ms } else { config.endpoint.connect_timeout_ms };
        self.since_ms.saturating_add(patience_ms)
    }

    /// Continues as far as possible without waiting.
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
            if hello.flags & wire::RETURNS != 0 && hello.version == local.version {
                return Ok(Step::Returns(Box::new(hello)));
            }
            self.answer(&hello, local)?;
        }
        let need = size_of::<Finish>() + if local.encrypt { noise::FIRST_BYTES } else { 0 };
        if !fill(self.socket.as_fd(), &mut self.buffer[..need], &mut self.have)? {
            return Ok(Step::Wait);
        }
        let (finish, _) = Finish::read_from_prefix(&self.buffer).map_err(|_| LinkError::Protocol)?;
        if let Stage::Resumed(_) = self.stage {
            return Ok(Step::Returned(finish));
        }
        self.judge(&finish, local).map(Step::Up)
    }

    /// Answers the finish with the verdict.
    #[inline(never)]
    fn judge(&mut self, finish: &Finish, local: &Local) -> Result<Box<ProvenPeer>, LinkError> {
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
        send_handshake(self.socket.as_fd(), &said).map_err(|_| LinkError::Gone)?;
        outcome
    }

    /// Reads the message of the key exchange that follows an encrypting initiator's finish.
    pub(super) fn agree(&self, key: &Key, dialogue: &[&[u8]]) -> Result<Noise, LinkError> {
        let mut noise = Noise::new(Role::Acceptor, key, dialogue)?;
        noise.read(&self.buffer[size_of::<Finish>()..][..noise::FIRST_BYTES], &[])?;
        Ok(noise)
    }

    /// Answers the hello with the acceptor's proof, or with the reason for refusal.
    #[inline(never)]
    fn answer(&mut self, hello: &Hello, local: &Local) -> Result<(), LinkError> {
        let status = judge_hello(hello, local);
        let mut answer = Answer::new_zeroed();
        (answer.magic, answer.version, answer.status) = (MAGIC, local.version, status);
        if status != wire::OK {
            // The answer may not arrive; the link is refused nevertheless.
            let _ = send_handshake(self.socket.as_fd(), answer.as_bytes());
            return Err(match status {
                wire::BAD_VERSION => other_version(local, hello.version).unwrap_or(LinkError::Protocol),
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
        send_handshake(self.socket.as_fd(), answer.as_bytes()).map_err(|_| LinkError::Gone)?;
        self.stage = Stage::New(Box::new(Dialogue { hello: *hello, answer, key }));
        Ok(())
    }

    /// Exchanges keys with an initiator whose proof was right. The acceptor's message follows the verdict and
    /// authenticates it.
    fn exchange_keys(&self, finish: &Finish, found: &mut ProvenPeer, verdict: &mut Vec<u8>) -> Result<(), LinkError> {
        let said = self.dialogue()?;
        let dialogue = [said.hello.as_bytes(), answer_body(&said.answer), finish.as_bytes()];
        let mut noise = self.agree(&said.key, &dialogue)?;
        let message = noise.write(verdict)?;
        verdict.extend_from_slice(&message);
        found.encrypt(&mut noise);
        Ok(())
    }

    /// Checks the initiator's proof.
    #[inline(never)] // The exchange of keys that follows takes much of the client's stack.
    fn check_finish(&self, finish: &Finish) -> Result<Box<ProvenPeer>, LinkError> {
        let said = self.dialogue()?;
        let dialogue = [said.hello.as_bytes(), answer_body(&said.answer)];
        let with_seal = [dialogue[0], dialogue[1], &finish.sealed];
        if !said.key.verify(Role::Initiator, &with_seal, &finish.proof) {
            return Err(LinkError::Denied);
        }
        let capability = said.key.seal(Role::Initiator, &dialogue, &finish.sealed);
        let peer = handshake::with_capability(&said.hello.name, &capability).ok_or(LinkError::Denied)?;
        let session = said.key.session(&[dialogue[0], dialogue[1], &finish.sealed, &capability]);
        Ok(Box::new(ProvenPeer { peer, session, keys: None }))
    }
}

/// The status of the answer to a hello.
fn judge_hello(hello: &Hello, local: &Local) -> u8 {
    let knows = hello.flags & wire::KNOWS_CAPABILITY != 0;
    let known = wire::KNOWS_CAPABILITY | wire::ENCRYPTS;
    let full = EpName::parse(&hello.name).is_ok_and(|name| name.is_full());
    if hello.version != local.version || hello.flags & !known != 0 || hello.reserved != [0; 6] || !full {
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

/// Tells a caller that there is no room for its connection, which the device closes afterwards.
pub(super) fn answer_no_room(socket: BorrowedFd<'_>) {
    let mut answer = Answer::new_zeroed();
    (answer.magic, answer.version, answer.status) = (MAGIC, VERSION, wire::NO_ROOM);
    // If the answer does not arrive, the caller sees the hang-up.
    let _ = send_handshake(socket, answer.as_bytes());
}
