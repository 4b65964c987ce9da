//! The handshake of two endpoints of one host: a dialogue of four frames over an abstract Unix socket.
//!
//! Place in the data flow: `Shm::connect` and the listeners create a [`Handshake`], and the control check
//! drives it. It ends with an [`Offer`], from which a link is made, or with an error. No function here
//! blocks.
//!
//! ```text
//!  initiator                                             acceptor
//!     | ── Hello      { nonce }                           ──► |  (both: SO_PEERCRED must show our own uid)
//!     | ◄─ Challenge  { nonce, proof }                    ──  |
//!     | ── Offer      { proof, name, segment, doorbells } ──► |
//!     | ◄─ Accept     { name, slot, doorbells }           ──  |   or Refuse { reason } instead of any answer
//! ```
//! A proof ([`crate::handshake`]) covers both nonces and the prover's role. Its key consists of the
//! acceptor's capability, which is part of the acceptor's full name, and of the job key, if one is set.
//! Connections to a service name use an empty capability: the user has opened the endpoint to all callers.
//! The initiator sends its name and its descriptors only after the acceptor's proof.
//!
//! The sockets are SOCK_SEQPACKET: frames keep their boundaries, and a hang-up of the peer is seen at once.
//! The socket stays open as the link's life line. Abstract names belong to the network namespace and vanish
//! with their socket. Reaching one is therefore the test for "same host", and no name is left behind.
//!
//! Errors:
//! - [`LinkError::Denied`]: a foreign user, or a wrong proof.
//! - `Protocol`: a malformed frame.
//! - `Descriptors`, `Resources`, `PeerResources`: descriptors or memory have run out, on either side.
//! - `Refused`: no endpoint listens, or the other end hangs up.
//!
//! Sources: unix(7), SCM_RIGHTS.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use weft_engine::name::EpName;
use weft_engine::nic::{Layer, LinkError, Versions};
use weft_os::{ForkClosedFd, users};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::error::shortage;
use crate::handshake::{self, Key};

use super::page::SLOTS;
use super::rights;
use super::ring::{MAX_LINES, MIN_LINES};
use super::segment::{Mapping, Role, segment_bytes};

pub(super) const MAGIC: [u8; 8] = *b"weft-shm";
/// Incremented with every change of the frames, the segment, the rings or the doorbell page. The first five fields of a
/// frame are the same in every version.
pub(super) const VERSION: u32 = 3;
/// Bytes of these fields.
const SAME_BYTES: usize = 24;
/// Maximum number of connections that wait to be accepted; the system limits it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Maximum number of descriptors in a frame.
const MAX_FDS: usize = 3;

pub(super) const HELLO: u32 = 1;
pub(super) const CHALLENGE: u32 = 2;
pub(super) const OFFER: u32 = 3;
pub(super) const ACCEPT: u32 = 4;
pub(super) const REFUSE: u32 = 5;

/// Flag: membarrier calls of other processes include the sender's process.
pub(super) const FLAG_REGISTERED: u32 = 1;
/// Flag: the sender can call membarrier.
pub(super) const FLAG_CALLABLE: u32 = 2;
/// Flag: the initiator knows only a service name.
const FLAG_SERVICE: u32 = 4;

pub(super) const REASON_PROTOCOL: u32 = 1;
pub(super) const REASON_DENIED: u32 = 2;
const REASON_RESOURCES: u32 = 3;

/// The layout of all frames. Fields that a kind does not use are zero. The byte order is the host's.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(super) struct Frame {
    magic: [u8; 8],
    version: u32,
    pub(super) kind: u32,
    flags: u32,
    pub(super) reason: u32,
    pub(super) nonce: [u8; 32],
    pub(super) proof: [u8; 32],
    pub(super) name: [u8; 64],
    /// Number of lines per ring of the attached segment.
    pub(super) lines: u32,
    /// The sender's doorbell slot for this link.
    slot: u32,
    /// Address of `probe_value` in the sender's memory.
    probe_addr: u64,
    probe_value: [u8; 16],
}

const _: () = assert!(size_of::<Frame>() == 184);

impl Frame {
    pub(super) fn new(kind: u32, version: u32) -> Self {
        let mut frame = Self::new_zeroed();
        frame.magic = MAGIC;
        frame.version = version;
        frame.kind = kind;
        frame
    }
}

/// The data that a side sends about itself.
#[derive(Clone, Copy)]
pub(super) struct Local<'a> {
    pub(super) me: EpName,
    /// Joined to the capability in every proof.
    pub(super) job_key: &'a [u8; 32],
    pub(super) door: [BorrowedFd<'a>; 2],
    /// FLAG_REGISTERED and FLAG_CALLABLE.
    pub(super) flags: u32,
    pub(super) probe_addr: u64,
    pub(super) probe_value: [u8; 16],
    /// Number of lines per ring of segments that this side makes.
    pub(super) lines: u32,
    /// The version of all frames.
    pub(super) version: u32,
}

/// The result of a finished handshake.
pub(super) struct Offer {
    pub(super) role: Role,
    pub(super) map: Mapping,
    pub(super) lines: u32,
    pub(super) peer: EpName,
    /// The process that made the other end, from the kernel; 0 if it is not visible from this pid namespace.
    pub(super) pid: i32,
    pub(super) door: [OwnedFd; 2],
    /// This side's bit in the peer's doorbell. The acceptor gets it with the offer, the initiator with the
    /// answer.
    pub(super) slot: u32,
    pub(super) flags: u32,
    pub(super) probe_addr: u64,
    pub(super) probe_value: [u8; 16],
}

/// The result of a step.
pub(super) enum Step {
    /// The peer's next frame has not arrived.
    Wait,
    /// This side has sent a frame; the peer's next frame is due.
    Sent,
    /// The handshake is complete. The acceptor still has to send the answer ([`accept`]).
    Ready(Box<Offer>),
}

/// The state of a handshake.
enum HandshakeState {
    /// Initiator: the listener's backlog was full.
    Connecting,
    /// Initiator: connected, but the peer's user is not checked yet.
    Connected,
    /// Initiator: waits for the challenge.
    HelloSent,
    /// Initiator: waits for the answer to the offer.
    OfferSent(Mapping),
    /// Acceptor: waits for the hello.
    Accepted,
    /// Acceptor: waits for the offer.
    ChallengeSent,
    /// Expects no further frame.
    Done,
}

/// A handshake in progress.
pub(super) struct Handshake {
    socket: ForkClosedFd,
    role: Role,
    state: HandshakeState,
    /// Initiator: the name of the wanted endpoint. Acceptor: the own name.
    target: EpName,
    /// Initiator: the link for which the handshake is made.
    pub(super) link: Option<u32>,
    /// Whether the initiator has no capability.
    service: bool,
    /// The nonces of initiator and acceptor.
    nonces: [[u8; 32]; 2],
    pid: i32,
    /// Time at which the handshake is abandoned, on the coarse monotonic clock, in ns.
    pub(super) deadline_ns: u64,
}

/// Refuses a connection for lack of resources.
pub(super) fn refuse_connection(socket: &ForkClosedFd, version: u32) {
    let mut frame = Frame::new(REFUSE, version);
    frame.reason = REASON_RESOURCES;
    let _ = send(socket.as_fd(), &frame, &[]);
}

/// Acceptor: sends the answer to an offer. `link` is this side's number of the link.
pub(super) fn accept(socket: BorrowedFd<'_>, link: u32, local: &Local<'_>) -> Result<(), LinkError> {
    let mut frame = local_frame(ACCEPT, local);
    frame.slot = link % SLOTS;
    send(socket, &frame, &local.door)
}

/// A listening socket on the abstract name of an endpoint (full name) or service. Accepted sockets refuse
/// descriptors until [`accepted`](Handshake::accepted).
pub(super) fn listen(name: &[u8]) -> io::Result<ForkClosedFd> {
    let socket = unix_socket()?;
    rustix::net::bind(&socket, &SocketAddrUnix::new_abstract_name(name)?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// The abstract name of the listener of an endpoint id.
pub(super) fn id_address(ep_id: &[u8; 16]) -> Vec<u8> {
    let mut name = b"weft-".to_vec();
    for byte in ep_id {
        name.extend_from_slice(format!("{byte:02x}").as_bytes());
    }
    name
}

/// The abstract name of the listener of a service.
pub(super) fn port_address(port: u16) -> Vec<u8> {
    format!("weft-port-{port}").into_bytes()
}

fn unix_socket() -> io::Result<ForkClosedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket =
        ForkClosedFd::new(|| rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None))?;
    rights::allow(socket.as_fd(), false);
    Ok(socket)
}

impl Handshake {
    /// Starts to connect to `target` for the link `link`.
    pub(super) fn connect(target: &EpName, link: u32, deadline_ns: u64) -> Result<Self, LinkError> {
        Ok(Self {
            socket: unix_socket().map_err(shortage)?,
            role: Role::Initiator,
            state: HandshakeState::Connecting,
            target: *target,
            link: Some(link),
            service: !target.is_full(),
            nonces: [handshake::random()?, [0; 32]],
            pid: 0,
            deadline_ns,
        })
    }

    /// Starts a handshake on a connection that a peer has made to the listener of the own name (`service`: of
    /// the own port). Returns the socket of a foreign user as an error.
    pub(super) fn accepted(
        socket: ForkClosedFd,
        me: &EpName,
        service: bool,
        deadline_ns: u64,
    ) -> Result<Self, ForkClosedFd> {
        let Ok(nonce) = handshake::random() else { return Err(socket) };
        let Ok(pid) = peer_pid(socket.as_fd()) else { return Err(socket) };
        rights::allow(socket.as_fd(), true);
        Ok(Self {
            socket,
            role: Role::Acceptor,
            state: HandshakeState::Accepted,
            target: *me,
            link: None,
            service,
            nonces: [[0; 32], nonce],
            pid,
            deadline_ns,
        })
    }

    /// The name of the acceptor that the initiator has, or the acceptor's own name.
    pub(super) fn target(&self) -> &EpName {
        &self.target
    }

    /// The socket, for epoll.
    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The socket, which becomes the link's life line.
    pub(super) fn into_socket(self) -> ForkClosedFd {
        self.socket
    }

    /// Whether the socket is not connected yet. Connecting must be retried from time to time.
    pub(super) fn is_connecting(&self) -> bool {
        matches!(self.state, HandshakeState::Connecting)
    }

    /// Whether the peer may belong to a foreign user.
    pub(super) fn may_be_foreign(&self) -> bool {
        matches!(self.state, HandshakeState::Connected)
    }

    /// Advances the handshake as far as possible without waiting.
    pub(super) fn step(&mut self, local: &Local<'_>) -> Result<Step, LinkError> {
        // There was no link yet, so a hang-up means that the connection was refused.
        self.advance(local).map_err(|why| if why == LinkError::Gone { LinkError::Refused } else { why })
    }

    // The functions below are not inlined, so that the stack holds only one function's buffers at a time.
    fn advance(&mut self, local: &Local<'_>) -> Result<Step, LinkError> {
        if self.is_connecting() {
            return self.dial(local);
        }
        let Some((frame, fds)) = receive(self.socket.as_fd())? else {
            return Ok(Step::Wait);
        };
        if frame.magic != MAGIC {
            return Err(LinkError::Protocol);
        }
        if frame.version != local.version {
            let [ours, theirs] = [local.version, frame.version].map(|version| u8::try_from(version).unwrap_or(u8::MAX));
            return Err(LinkError::Version(Versions { layer: Layer::Shm, ours, theirs }));
        }
        if frame.kind == REFUSE && self.role == Role::Initiator {
            return Err(reason(frame.reason));
        }
        match (std::mem::replace(&mut self.state, HandshakeState::Done), frame.kind) {
            (HandshakeState::HelloSent, CHALLENGE) => self.make_offer(&frame, local),
            (HandshakeState::OfferSent(map), ACCEPT) => self.take_answer(&frame, fds, map, local),
            (HandshakeState::Accepted, HELLO) => self.challenge(&frame, local),
            (HandshakeState::ChallengeSent, OFFER) => self.take_offer(&frame, fds, local),
            _ => Err(LinkError::Protocol),
        }
    }

    /// Acceptor: sends the reason of a refusal, if possible. Otherwise the peer sees the hang-up.
    pub(super) fn refuse(&self, why: LinkError, version: u32) {
        if self.role == Role::Acceptor {
            let mut frame = Frame::new(REFUSE, version);
            frame.reason = match why {
                LinkError::Denied => REASON_DENIED,
                LinkError::Resources | LinkError::Descriptors => REASON_RESOURCES,
                _ => REASON_PROTOCOL,
            };
            let _ = send(self.socket.as_fd(), &frame, &[]);
        }
    }

    #[inline(never)]
    fn dial(&mut self, local: &Local<'_>) -> Result<Step, LinkError> {
        let name =
            if self.service { port_address(self.target.socket().port()) } else { id_address(&self.target.ep_id()) };
        let address = SocketAddrUnix::new_abstract_name(&name).map_err(|_| LinkError::Unreachable)?;
        match rustix::net::connect(&self.socket, &address) {
            Ok(()) => {}
            // The backlog is full; unix(7) defines no notification for room in it.
            Err(Errno::AGAIN | Errno::INTR) => return Ok(Step::Wait),
            Err(Errno::CONNREFUSED | Errno::NOENT) => return Err(LinkError::Refused),
            Err(Errno::ACCESS | Errno::PERM) => return Err(LinkError::Denied),
            Err(errno) => return Err(shortage(errno)),
        }
        self.state = HandshakeState::Connected;
        self.pid = peer_pid(self.socket.as_fd())?;
        rights::allow(self.socket.as_fd(), true);
        let mut frame = Frame::new(HELLO, local.version);
        frame.flags = if self.service { FLAG_SERVICE } else { 0 };
        frame.nonce = self.nonces[0];
        send(self.socket.as_fd(), &frame, &[])?;
        self.state = HandshakeState::HelloSent;
        Ok(Step::Sent)
    }

    #[inline(never)]
    fn challenge(&mut self, hello: &Frame, local: &Local<'_>) -> Result<Step, LinkError> {
        // A call without a capability is valid only at the port that the user has opened.
        if (hello.flags & FLAG_SERVICE != 0) != self.service {
            return Err(LinkError::Denied);
        }
        self.nonces[0] = hello.nonce;
        let mut frame = Frame::new(CHALLENGE, local.version);
        frame.nonce = self.nonces[1];
        frame.proof = self.key(local).proof(handshake::Role::Acceptor, &self.dialogue());
        send(self.socket.as_fd(), &frame, &[])?;
        self.state = HandshakeState::ChallengeSent;
        Ok(Step::Sent)
    }

    #[inline(never)]
    fn make_offer(&mut self, challenge: &Frame, local: &Local<'_>) -> Result<Step, LinkError> {
        self.nonces[1] = challenge.nonce;
        if !self.key(local).verify(handshake::Role::Acceptor, &self.dialogue(), &challenge.proof) {
            return Err(LinkError::Denied);
        }
        let (file, map) = Mapping::create(c"weft-pair", segment_bytes(local.lines))
            .map_err(|error| shortage(io::Error::from_raw_os_error(error.raw_os_error())))?;
        let mut frame = local_frame(OFFER, local);
        frame.proof = self.key(local).proof(handshake::Role::Initiator, &self.dialogue());
        frame.slot = self.link.unwrap_or(0) % SLOTS;
        frame.lines = local.lines;
        send(self.socket.as_fd(), &frame, &[file.as_fd(), local.door[0], local.door[1]])?;
        self.state = HandshakeState::OfferSent(map);
        Ok(Step::Sent)
    }

    #[inline(never)]
    fn take_offer(&self, frame: &Frame, fds: Vec<OwnedFd>, local: &Local<'_>) -> Result<Step, LinkError> {
        if !self.key(local).verify(handshake::Role::Initiator, &self.dialogue(), &frame.proof) {
            return Err(LinkError::Denied);
        }
        let [file, page, sleep_page] = <[OwnedFd; 3]>::try_from(fds).map_err(|_| LinkError::Protocol)?;
        if !frame.lines.is_power_of_two() || !(MIN_LINES..=MAX_LINES).contains(&frame.lines) {
            return Err(LinkError::Protocol);
        }
        let map = Mapping::adopt(file.as_fd(), segment_bytes(frame.lines)).map_err(adoption_error)?;
        self.ready(frame, map, frame.lines, [page, sleep_page])
    }

    #[inline(never)]
    fn take_answer(
        &self,
        frame: &Frame,
        fds: Vec<OwnedFd>,
        map: Mapping,
        local: &Local<'_>,
    ) -> Result<Step, LinkError> {
        let door = <[OwnedFd; 2]>::try_from(fds).map_err(|_| LinkError::Protocol)?;
        self.ready(frame, map, local.lines, door)
    }

    fn ready(&self, frame: &Frame, map: Mapping, lines: u32, door: [OwnedFd; 2]) -> Result<Step, LinkError> {
        let peer = EpName::parse(&frame.name).map_err(|_| LinkError::Protocol)?;
        let expected = self.role == Role::Acceptor || self.service || peer.ep_id() == self.target.ep_id();
        if !peer.is_genuine() || !expected {
            return Err(LinkError::Protocol);
        }
        Ok(Step::Ready(Box::new(Offer {
            role: self.role,
            map,
            lines,
            peer,
            pid: self.pid,
            door,
            slot: frame.slot,
            flags: frame.flags,
            probe_addr: frame.probe_addr,
            probe_value: frame.probe_value,
        })))
    }

    /// The key that both sides know.
    fn key(&self, local: &Local<'_>) -> Key {
        let capability = if self.service { [0; 16] } else { self.target.capability() };
        Key::new(&capability, (*local.job_key != [0; 32]).then_some(local.job_key))
    }

    /// The proven data: this dialogue, distinguished from a dialogue over another device.
    fn dialogue(&self) -> [&[u8]; 3] {
        [&MAGIC, &self.nonces[0], &self.nonces[1]]
    }
}

/// A frame with this side's data.
fn local_frame(kind: u32, local: &Local<'_>) -> Frame {
    let mut frame = Frame::new(kind, local.version);
    frame.flags = local.flags;
    frame.name = *local.me.as_bytes();
    frame.probe_addr = local.probe_addr;
    frame.probe_value = local.probe_value;
    frame
}

fn reason(code: u32) -> LinkError {
    match code {
        REASON_DENIED => LinkError::Denied,
        REASON_RESOURCES => LinkError::PeerResources,
        _ => LinkError::Protocol,
    }
}

/// The reason why a peer's file could not be mapped.
pub(super) fn adoption_error(error: io::Error) -> LinkError {
    if error.kind() == io::ErrorKind::InvalidData { LinkError::Protocol } else { shortage(error) }
}

/// Whether the peer may belong to another user.
pub(super) fn is_foreign(socket: BorrowedFd<'_>) -> bool {
    peer_pid(socket).is_err()
}

/// The process id of the peer, which must belong to the own user.
fn peer_pid(socket: BorrowedFd<'_>) -> Result<i32, LinkError> {
    users::own_peer(socket).ok_or(LinkError::Denied)
}

#[inline(never)]
fn send(socket: BorrowedFd<'_>, frame: &Frame, fds: &[BorrowedFd<'_>]) -> Result<(), LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(LinkError::Resources);
    }
    let iov = [io::IoSlice::new(frame.as_bytes())];
    match rustix::net::sendmsg(socket, &iov, &mut control, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
        Ok(n) if n == size_of::<Frame>() => Ok(()),
        // Four frames fit any socket buffer, so a full buffer means that memory has run out. ETOOMANYREFS
        // means that too many descriptors of this user are in flight.
        Err(Errno::AGAIN | Errno::NOBUFS | Errno::NOMEM | Errno::TOOMANYREFS) => Err(LinkError::Resources),
        _ => Err(LinkError::Gone),
    }
}

/// Receives a frame and its descriptors. `None`: no frame has arrived.
#[inline(never)]
pub(super) fn receive(socket: BorrowedFd<'_>) -> Result<Option<(Frame, Vec<OwnedFd>)>, LinkError> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut frame = Frame::new_zeroed();
    let mut iov = [io::IoSliceMut::new(frame.as_mut_bytes())];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let got = match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
        Ok(got) => got,
        Err(Errno::AGAIN | Errno::INTR) => return Ok(None),
        Err(_) => return Err(LinkError::Gone),
    };
    let mut fds = Vec::with_capacity(MAX_FDS);
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            fds.extend(rights);
        }
    }
    match got.bytes {
        0 => Err(LinkError::Gone),
        // The kernel drops descriptors for which the descriptor table has no room, and reports it.
        _ if got.flags.contains(ReturnFlags::CTRUNC) => Err(LinkError::Descriptors),
        // Frames of another version may have another length. The caller compares the version.
        n if n >= SAME_BYTES && frame.magic == MAGIC && frame.version != VERSION => Ok(Some((frame, fds))),
        n if n != size_of::<Frame>() || got.flags.contains(ReturnFlags::TRUNC) => Err(LinkError::Protocol),
        _ => Ok(Some((frame, fds))),
    }
}
