//! The initiator's side of a handshake, for new links and for links that are resumed.
//!
//! Place in the data flow: [`super::connect`] (new links) and [`super::redial`] (resumed links) have one [`Initiator`]
//! for each attempt, and call [`Initiator::advance`] when its socket reports an event. An [`Exchange`] provides the
//! contents of the messages.
//!
//! Invariants: nothing blocks. Each message has a fixed size and is read exactly, so that no byte of a frame is
//! consumed. Each nonce is used once.
//!
//! Errors: [`Failure::Retry`] if another attempt may succeed, otherwise [`Failure::Final`].

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use rustix::io::Errno;
use weft_engine::nic::LinkError;
use weft_os::ForkClosedFd;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes};

use super::TcpConfig;
use super::noise::{self, Noise};
use super::sys::{self, Pieces};
use super::wire::{self, Answer, Finish, Hello, MAGIC};
use crate::error::shortage;
use crate::handshake::{self, Key, Nonce, Role};

/// The first pause before another attempt; it doubles each time.
const BACKOFF_MS: u64 = 5;
/// The longest pause.
const BACKOFF_MAX_MS: u64 = 250;

/// The reason for which an attempt has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// Another attempt may succeed. If no time is left for it, the link ends with this error.
    Retry(LinkError),
    /// No attempt will succeed.
    Final(LinkError),
}

use Failure::{Final, Retry};

/// The contents of one kind of handshake.
pub(super) trait Exchange {
    /// The acceptor's last message. Its first byte is the status.
    type Verdict: FromBytes + IntoBytes + Immutable;
    /// The result of a successful handshake.
    type Outcome;
    /// The error when the acceptor hangs up; another attempt follows.
    const HANG_UP: LinkError;
    /// The error when the answer is not that of a weft endpoint.
    const FOREIGN: LinkError;

    /// Converts an error of connect(2).
    fn connect_failure(errno: Errno) -> Failure;

    /// Whether an error of connect(2) proves that the peer's host had accepted the connection.
    fn was_accepted(_: Errno) -> bool {
        false
    }

    /// The first message.
    fn hello(&self, nonce: Nonce) -> Hello;

    /// Notes that the hello has been sent.
    fn hello_sent(&mut self);

    /// Checks the acceptor's proof. Returns the finish, and the key for an exchange of session keys.
    fn finish(&mut self, hello: &Hello, answer: &Answer) -> Result<(Finish, Key), Failure>;

    /// Notes that the finish has been sent.
    fn finish_sent(&mut self) {}

    /// Converts the verdict. `noise` has agreed upon session keys if the connection is encrypted.
    fn judge(&mut self, verdict: &Self::Verdict, noise: Option<&mut Noise>) -> Result<Self::Outcome, Failure>;
}

/// The state of a handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no connection.
    Idle,
    /// The kernel is connecting.
    Connecting,
    /// The hello has been sent.
    Answer,
    /// The finish has been sent.
    Verdict,
}

/// The initiator's side of one handshake at a time.
#[derive(Debug)]
pub(super) struct Initiator {
    stage: Stage,
    hello: Hello,
    /// The received part of the awaited message.
    buffer: [u8; size_of::<Answer>()],
    have: usize,
    noise: Option<Noise>,
}

impl Initiator {
    pub(super) fn new() -> Self {
        Self { stage: Stage::Idle, hello: Hello::new_zeroed(), buffer: [0; size_of::<Answer>()], have: 0, noise: None }
    }

    /// Whether there is no connection.
    pub(super) fn is_idle(&self) -> bool {
        self.stage == Stage::Idle
    }

    /// Whether the kernel is still connecting.
    pub(super) fn is_connecting(&self) -> bool {
        self.stage == Stage::Connecting
    }

    /// Whether the peer's next message is awaited.
    pub(super) fn awaits_peer(&self) -> bool {
        matches!(self.stage, Stage::Answer | Stage::Verdict)
    }

    /// Whether only the verdict is missing.
    pub(super) fn awaits_verdict(&self) -> bool {
        self.stage == Stage::Verdict
    }

    /// The pause in milliseconds after `tries` attempts. The nonce of the hello determines a part of it, so that many
    /// initiators that failed at the same time do not all return at the same time.
    pub(super) fn backoff_ms(&self, tries: u32) -> u64 {
        let pause_ms = (BACKOFF_MS << tries.min(8)).min(BACKOFF_MAX_MS);
        pause_ms + u64::from(self.hello.nonce[0]) * pause_ms / 512
    }

    /// Starts a connection. The caller must watch the socket for both directions.
    pub(super) fn dial(&mut self, to: &SocketAddr, config: &TcpConfig) -> Result<ForkClosedFd, Errno> {
        self.dial_from(None, to, config)
    }

    /// [`Self::dial`] from a local address, so that the route to the peer begins at its interface.
    pub(super) fn dial_from(
        &mut self,
        from: Option<SocketAddr>,
        to: &SocketAddr,
        config: &TcpConfig,
    ) -> Result<ForkClosedFd, Errno> {
        let socket = sys::stream_socket(to, config)?;
        if let Some(from) = from {
            sys::bind(socket.as_fd(), &SocketAddr::new(from.ip(), 0))?;
        }
        sys::connect(socket.as_fd(), to)?;
        (self.stage, self.have, self.noise) = (Stage::Connecting, 0, None);
        Ok(socket)
    }

    /// Abandons the connection.
    pub(super) fn reset(&mut self) {
        self.stage = Stage::Idle;
    }

    /// Continues as far as possible without waiting. `Some`: the handshake has succeeded.
    pub(super) fn advance<E: Exchange>(
        &mut self,
        socket: BorrowedFd<'_>,
        exchange: &mut E,
        encrypt: bool,
    ) -> Result<Option<E::Outcome>, Failure> {
        if self.stage == Stage::Connecting {
            match sys::connected(socket) {
                Ok(true) => self.stage = Stage::Answer,
                Ok(false) => return Ok(None),
                Err(errno) => {
                    if E::was_accepted(errno) {
                        self.stage = Stage::Answer;
                    }
                    return Err(E::connect_failure(errno));
                }
            }
            self.hello = exchange.hello(handshake::random().map_err(Final)?);
            send_handshake(socket, self.hello.as_bytes())?;
            exchange.hello_sent();
        }
        if self.stage == Stage::Answer {
            if !self.fill::<E>(socket, size_of::<Answer>())? {
                return Ok(None);
            }
            self.check_answer(socket, exchange, encrypt)?;
            exchange.finish_sent();
            (self.stage, self.have) = (Stage::Verdict, 0);
        }
        if self.stage == Stage::Verdict {
            let verdict_bytes = size_of::<E::Verdict>();
            let noise_bytes = if self.noise.is_some() { noise::message_bytes(verdict_bytes) } else { 0 };
            if !self.fill::<E>(socket, verdict_bytes + noise_bytes)? {
                return Ok(None);
            }
            let (verdict, message) =
                E::Verdict::read_from_prefix(&self.buffer).map_err(|_| Final(LinkError::Protocol))?;
            if let (Some(noise), wire::OK) = (&mut self.noise, self.buffer[0]) {
                noise.read(&message[..noise_bytes], verdict.as_bytes()).map_err(Final)?;
            }
            return exchange.judge(&verdict, self.noise.as_mut()).map(Some);
        }
        Ok(None)
    }

    /// Checks the acceptor's proof and sends the finish.
    fn check_answer<E: Exchange>(
        &mut self,
        socket: BorrowedFd<'_>,
        exchange: &mut E,
        encrypt: bool,
    ) -> Result<(), Failure> {
        let answer = Answer::read_from_bytes(&self.buffer).map_err(|_| Final(LinkError::Protocol))?;
        let (finish, key) = exchange.finish(&self.hello, &answer)?;
        let mut bytes = finish.as_bytes().to_vec();
        if encrypt {
            let dialogue = [self.hello.as_bytes(), answer_body(&answer), finish.as_bytes()];
            let mut noise = Noise::new(Role::Initiator, &key, &dialogue).map_err(Final)?;
            bytes.extend_from_slice(&noise.write(&[]).map_err(Final)?);
            self.noise = Some(noise);
        }
        send_handshake(socket, &bytes)
    }

    /// Receives the first `need` bytes of the awaited message. Returns whether they are complete.
    fn fill<E: Exchange>(&mut self, socket: BorrowedFd<'_>, need: usize) -> Result<bool, Failure> {
        let whole = fill(socket, &mut self.buffer[..need], &mut self.have)
            .map_err(|why| if why == LinkError::Gone { Retry(E::HANG_UP) } else { Final(why) })?;
        // Another service may listen at that address; report that as soon as it is certain.
        if self.stage == Stage::Answer && self.have >= MAGIC.len() && self.buffer[..MAGIC.len()] != MAGIC {
            return Err(Final(E::FOREIGN));
        }
        Ok(whole)
    }
}

/// The part of an answer that its proof covers.
pub(super) fn answer_body(answer: &Answer) -> &[u8] {
    let bytes = answer.as_bytes();
    &bytes[..bytes.len() - size_of::<handshake::Proof>()]
}

/// The failure of an attempt for a new link, by the socket's error.
pub(super) fn socket_failure(errno: Errno) -> Failure {
    match errno {
        // ECONNABORTED, ECONNRESET: the acceptor's queue overflowed, or its process has just died.
        Errno::CONNREFUSED | Errno::CONNRESET | Errno::CONNABORTED | Errno::PIPE => Retry(LinkError::Refused),
        Errno::TIMEDOUT => Final(LinkError::Timeout),
        // No local port is free at the moment.
        Errno::ADDRNOTAVAIL | Errno::AGAIN => Retry(LinkError::Resources),
        Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS => Final(shortage(errno)),
        Errno::ACCESS | Errno::PERM => Final(LinkError::Denied),
        // EHOSTUNREACH, ENETUNREACH, EAFNOSUPPORT, EINVAL (an address that cannot be connected to), …
        _ => Final(LinkError::Unreachable),
    }
}

/// Sends a whole message of a handshake. A fresh socket has room for all of them.
#[inline(never)] // The list of pieces has room for many.
pub(super) fn send_handshake(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<(), Failure> {
    let mut pieces = Pieces::new();
    pieces.bytes(bytes);
    match sys::send(socket, &pieces) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(_) | Err(Errno::AGAIN) => Err(Retry(LinkError::Resources)),
        Err(errno) => Err(socket_failure(errno)),
    }
}

/// Receives the rest of `buffer`, which has `have` bytes already. Returns whether it is full.
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
