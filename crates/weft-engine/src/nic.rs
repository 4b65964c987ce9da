//! The contract between the engine and a device: [`Nic`] below the engine, [`Sink`] above the device.
//!
//! Place in the data flow: `Engine` → `Nic` → wire → `Nic::poll` → `Sink` (the engine's state).
//!
//! The contract is modelled on network cards. Short messages go into a peer's mailbox (Aries FMA/SMSG,
//! Unimem's mailbox). A copy engine performs bulk transfers (Aries BTE, RDMA). Events report completion. A
//! device never interprets the messages that it carries; the engine knows a device only by its [`NicCaps`].
//!
//! # Links
//! A link is one connection to one peer endpoint; the device numbers its links densely ([`LinkId`]). Each side has
//! a link of its own for the pair. [`Nic::connect`] or a peer makes a link. It is usable from its [`Sink::up`] on,
//! and ends with exactly one [`Sink::down`], or without any call after [`Nic::close`]. The number is reused only
//! after that. A link that ends before `up` gets `down` alone.
//!
//! The device checks the bounds of all data from a wire or from memory shared with a peer before it passes the
//! data on. The engine checks the meaning of the bytes, and closes the link of a peer that sends nonsense
//! ([`Nic::close`]).
//!
//! # Memory
//! `send` has copied `head` and `body` when it returns `Ok`. `push` and `copy` borrow the client's memory until
//! [`Sink::done`] is called with their `ctx`. That happens exactly once for each accepted call: with an error, before
//! `down`, if the link ends first. `close(link)` abandons these calls: when it returns, the device no longer uses the
//! memory, and no `done` follows. After `close` or `down`, no transfer of the peer starts on another piece of memory
//! here, or ends successfully.
//!
//! Where `caps.registered` is set, the engine registers all memory that a get or put may touch, here or at the
//! peer. A registration lasts until `done`, or until the end of the operation that announced the memory.

use crate::board::Board;
use crate::mapped::{Guard, PeerRegion, RegionOffer};
use crate::mem::Iov;
use crate::name::EpName;
use crate::wire::PROTOCOL_VERSION;
use crate::wire::{HEADER_BYTES, ORDERED_RMA_BYTES};

/// Number of a link, dense from 0. The device chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// Capabilities of a device on a link, and the lengths at which its protocols switch. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicCaps {
    /// Short name for messages and statistics: `shm`, `tcp`, `sim`.
    pub device: &'static str,
    /// Longest message (head + body) that `send` accepts. At least 256.
    pub mailbox_bytes: usize,
    /// Longest message (head + body) on the device's fastest path (one cache line for shm).
    pub inline_bytes: usize,
    /// Longest payload that is sent eagerly by default; longer ones are sent by rendezvous. The engine's
    /// header needs another 128 bytes within `mailbox_bytes`.
    pub eager_bytes: usize,
    /// The device can read the peer's memory by address without the peer's help.
    pub get: bool,
    /// The device can write the peer's memory by address without the peer's help.
    pub put: bool,
    /// Messages of one link arrive in the order of sending. Otherwise the engine restores the order by
    /// sequence numbers.
    pub ordered: bool,
    /// No byte of a push arrives before the messages that were sent on the link before the push was started.
    /// A push may therefore follow its announcement at once. Only where `ordered`.
    pub push_follows: bool,
    /// A push of up to [`PUSH_BYTES`] is faster than a `get` or `put`, and needs no help of the peer to leave.
    pub pushes: bool,
    /// Accepted messages and finished pushes reach the peer's engine even if this process ends at once,
    /// because they are in memory that the peer shares. Otherwise only the peer's answer proves that anything
    /// has arrived.
    pub survives: bool,
    /// Each side can confirm by a number, without a message, how many messages its engine has executed
    /// ([`Nic::confirm`]). Only where `ordered`.
    pub confirms: bool,
    /// Regions of the peer can be mapped ([`Nic::share_region`]). Both sides of a link give the same answer.
    pub maps: bool,
    /// `get` and `put` reach only memory that its own side has registered ([`Registrar`]), on both sides.
    /// `push` copies through the device's own memory, and serves where memory cannot be registered.
    pub registered: bool,
}

/// The longest payload in bytes that is pushed rather than moved by `get` or `put`, where [`NicCaps::pushes`].
pub const PUSH_BYTES: u64 = 128 << 10;

/// The longest payloads in bytes that travel within a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Of a message. Longer ones are sent by rendezvous.
    pub eager_bytes: usize,
    /// Of a remote read or write. Longer ones are moved by the device, or in parts.
    pub access_bytes: usize,
}

impl NicCaps {
    /// The engine's thresholds on a link. `eager` overrides the device's own threshold. Both leave room for the longest
    /// header.
    #[must_use]
    pub fn thresholds(&self, eager: Option<usize>) -> Thresholds {
        let room = self.mailbox_bytes.saturating_sub(HEADER_BYTES);
        let eager = eager.unwrap_or(self.eager_bytes);
        Thresholds { eager_bytes: eager.min(room), access_bytes: eager.max(ORDERED_RMA_BYTES).min(room) }
    }
}

/// Number of a chain ([`Chaining::open_chain`]). The device chooses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainId(pub u32);

/// The most steps of a chain.
pub const CHAIN_STEPS: usize = 64;

/// One end of a chain: a connection of its own with the peer of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainEnd {
    /// The link, which is up.
    pub link: LinkId,
    /// The number by which this side knows the connection, and the number by which the peer does.
    pub ours: u32,
    /// See `ours`.
    pub theirs: u32,
}

/// One step of a chain. The next step begins when this one has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChainStep {
    /// The index of the end.
    pub end: u32,
    /// Whether a frame with the tag is sent. Otherwise the next frame must have this tag.
    pub sends: bool,
    /// Distinguishes the frames of a connection.
    pub tag: u64,
}

/// The state of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChainState {
    /// Connections are being made, or steps are under way.
    Busy,
    /// All connections are there, and all steps have ended as they must.
    Ready,
    /// The chain is of no more use. No step is under way.
    Broken,
}

/// The device cannot accept the call now. There is no side effect; try again after a `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The reason why a link ended or a transfer failed. The text is for logs: the cause, a semicolon, and a
/// remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the link in an orderly way.
    #[error("closed by the peer; if that is unexpected, look for the reason there")]
    Closed,
    /// The peer vanished: hang-up, reset, or death of its process.
    #[error("the peer is gone (hang-up or reset); check whether its process or host has ended, and why")]
    Gone,
    /// The peer's host could not be reached for as long as a broken connection is retried.
    #[error(
        "the peer's host could not be reached within FI_WEFT_TCP_RESUME_MS; check that the host runs, check the \
         network and the firewalls between the hosts, or raise that limit"
    )]
    Cut,
    /// No endpoint accepted connections at the address.
    #[error(
        "connection refused: no endpoint listens at that address, or a firewall rejects this host, and the peer has \
         not connected to it; check that the peer runs and that the address is not from an earlier run (`weft doctor \
         --to HOST` names a firewall)"
    )]
    Refused,
    /// No answer within the connect time-out.
    #[error(
        "no answer within the connect time-out, and the peer has not connected to this host; let a firewall accept one \
         of the two directions (`weft doctor --to HOST` names it), choose another interface (FI_WEFT_IFACE), or raise \
         the time-out (FI_WEFT_CONNECT_TIMEOUT_MS)"
    )]
    Timeout,
    /// No route to the address.
    #[error(
        "no route to the peer's address; choose an interface that all hosts reach (FI_WEFT_IFACE), and enable a \
         device that reaches the peer on both sides (FI_WEFT_SHM, FI_WEFT_TCP)"
    )]
    Unreachable,
    /// The peer failed authentication, or the peer rejected ours.
    #[error(
        "denied: the job keys or the users of the two sides differ, or the endpoint admits only peers that know its \
         full address; give all processes the same user and the same FI_WEFT_JOB_KEY, or auth_key of domain and \
         endpoint"
    )]
    Denied,
    /// Only one of the two sides encrypts.
    #[error("only one of the two sides encrypts TCP; set FI_WEFT_TCP_ENCRYPT to the same value in all processes")]
    Encryption,
    /// The peer broke the protocol.
    #[error(
        "the peer violated the protocol; use the same version of weft everywhere, and report the error if it persists"
    )]
    Protocol,
    /// The peer speaks another version of a protocol.
    #[error("{0}")]
    Version(Versions),
    /// The peer closed the link before it had answered the first message.
    #[error(
        "the peer closed the link before it answered: its endpoint was closing, or its version of weft does not speak \
         version {} of {}, as this process does; use the same version of weft on all hosts",
        PROTOCOL_VERSION,
        Layer::Engine
    )]
    Unanswered,
    /// The peer has no place for another peer that is in no address vector.
    #[error(
        "refused: the peer serves as many endpoints that are not in its address vector as it may; raise \
         FI_WEFT_MAX_UNKNOWN_PEERS and `ulimit -n` there, or insert this endpoint's address into its address vector"
    )]
    Crowded,
    /// The peer has ended the link of a peer that is in no address vector, to make room.
    #[error(
        "the peer ended the link to make room: this endpoint is not in its address vector, and was idle or held much of \
         its memory; raise FI_WEFT_MAX_UNKNOWN_PEERS or FI_WEFT_UNKNOWN_PEERS_BYTES there, or insert this endpoint's \
         address there"
    )]
    Evicted,
    /// A direct access to the peer's memory was refused by the operating system, or the address was invalid.
    #[error(
        "direct access to the peer's memory failed; check whether a buffer was unmapped while in use, or disable such \
         access (FI_WEFT_CMA=0)"
    )]
    Access,
    /// This process ran out of descriptors.
    #[error("out of file descriptors; raise `ulimit -n` (weft uses up to `ulimit -Hn`), or fs.file-max of the host")]
    Descriptors,
    /// This process ran out of memory or another resource.
    #[error(
        "out of memory, ports or epoll watches; raise the memory limit of the process, net.ipv4.ip_local_port_range or \
         fs.epoll.max_user_watches"
    )]
    Resources,
    /// The peer has no resources for another link.
    #[error("the peer has no descriptors or memory for another link; raise `ulimit -n` or the memory limit there")]
    PeerResources,
}

impl LinkError {
    /// A number for the kind of the error, for traces.
    #[must_use]
    pub const fn number(self) -> u8 {
        match self {
            Self::Closed => 0,
            Self::Gone => 1,
            Self::Cut => 2,
            Self::Refused => 3,
            Self::Timeout => 4,
            Self::Unreachable => 5,
            Self::Denied => 6,
            Self::Encryption => 7,
            Self::Protocol => 8,
            Self::Access => 9,
            Self::Descriptors => 10,
            Self::Resources => 11,
            Self::PeerResources => 12,
            Self::Version(_) => 13,
            Self::Unanswered => 14,
            Self::Crowded => 15,
            Self::Evicted => 16,
        }
    }
}

/// A protocol with a version of its own (docs/protocol.md).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Layer {
    /// The messages between two engines.
    Engine,
    /// Links in shared memory.
    Shm,
    /// Links over TCP.
    Tcp,
}

impl std::fmt::Display for Layer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Engine => "weft's message protocol",
            Self::Shm => "weft's shared-memory protocol",
            Self::Tcp => "weft's TCP protocol",
        })
    }
}

/// The versions of a protocol that the two sides of a link speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Versions {
    /// The protocol.
    pub layer: Layer,
    /// The version of this side.
    pub ours: u8,
    /// The version of the peer. Versions above 255 count as 255.
    pub theirs: u8,
}

impl std::fmt::Display for Versions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { layer, ours, theirs } = self;
        write!(
            f,
            "the peer speaks version {theirs} of {layer}, and this process version {ours} (weft {}); use the same \
             version of weft on all hosts",
            env!("CARGO_PKG_VERSION")
        )
    }
}

/// An act of an engine that the user should learn of. The device logs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notice {
    /// This side refuses the link of a peer, or ends it, for this reason.
    Refuses(LinkError),
    /// A peer has refused the link of this side, or has ended it, for this reason.
    RefusedBy(LinkError),
    /// The messages that a peer has left were dropped, because others need its place.
    Forgets,
}

/// A remote piece of memory for `copy`: an address in the peer's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteIov {
    /// Address in the peer.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Whether a device may share a transfer with the peer's device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sharing {
    /// The peer's processor may help.
    Allowed,
    /// The peer's processor is busy with a transfer of its own.
    Alone,
}

/// Names a `copy` that the peer may help with. Valid within its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub u32);

/// The part of this side in a [`DirectCopy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The transfer is this side's. The result of a transfer that is [`Sharing::Alone`] has no [`Share`].
    Owner(Sharing),
    /// The transfer is the peer's, and this side moves bytes that the peer has not moved yet. `done` follows, always
    /// with `Ok`: only the peer knows whether the transfer succeeds. A share that has ended or never existed is no
    /// error.
    Helper(Share),
}

/// A transfer between local memory and the peer's memory, of equal total lengths ([`Nic::copy`]). The two sides of a
/// shared transfer name the same bytes, each as seen from itself.
#[derive(Clone, Copy, Debug)]
pub struct DirectCopy<'a> {
    /// Whether bytes move from `local` to `remote`, as in a put. Otherwise they move the other way, as in a get.
    pub put: bool,
    /// Memory of this process.
    pub local: &'a [Iov],
    /// Memory of the peer.
    pub remote: &'a [RemoteIov],
    /// The part of this side.
    pub part: Part,
    /// The context for [`Sink::done`].
    pub ctx: u64,
}

impl<'a> DirectCopy<'a> {
    /// A read of the peer's memory, with which the peer may help.
    #[must_use]
    pub const fn get(local: &'a [Iov], remote: &'a [RemoteIov], ctx: u64) -> Self {
        Self { put: false, local, remote, part: Part::Owner(Sharing::Allowed), ctx }
    }

    /// A write to the peer's memory, with which the peer may help.
    #[must_use]
    pub const fn put(local: &'a [Iov], remote: &'a [RemoteIov], ctx: u64) -> Self {
        Self { put: true, ..Self::get(local, remote, ctx) }
    }
}

/// A range of the address space that begins at `start`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
}

impl From<&Iov> for Span {
    /// The addresses of the memory.
    fn from(memory: &Iov) -> Self {
        Self { start: memory.addr(), len: memory.len() as u64 }
    }
}

impl Span {
    /// The address after the last byte.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether all of `other` lies in this range.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Whether the two ranges have a byte in common.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// Requirements of a device for the registration of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    /// Cost of a registration in nanoseconds. At 0, no registration outlives its use.
    pub cost_ns: u64,
    /// Registrations begin and end at multiples of this power of two.
    pub align_bytes: u64,
    /// Maximum number of registrations at a time.
    pub regions: usize,
    /// Maximum number of registered bytes at a time.
    pub bytes: u64,
}

/// The reason why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The device has no room now; other registrations must end first.
    Full,
    /// This memory cannot be registered.
    Memory,
}

/// The part of a device that registers memory. The engine calls it only through its cache
/// ([`crate::mrcache`]), and only where there are [`Demands`].
pub trait Registrar {
    /// Whether a device of this type may have demands. Otherwise the registration code is compiled out.
    const REGISTERS: bool = false;

    /// The device's demands; `None`: it reaches any memory.
    fn demands(&self) -> Option<Demands> {
        None
    }

    /// The range under which registrations know the memory: by default its addresses.
    fn span(&mut self, memory: &Iov) -> Span {
        memory.into()
    }

    /// Registers memory for this device and the peers' devices. Returns the number for `deregister`.
    fn register(&mut self, _span: Span) -> Result<u64, Refused> {
        Err(Refused::Memory)
    }

    /// Ends a registration. No transfer touches the memory at this time.
    fn deregister(&mut self, _number: u64) {}

    /// Requests a report when any of the memory is unmapped. Returns false where the system cannot report it.
    /// Such memory must not stay registered after its use, because other memory may appear at the same
    /// address unnoticed.
    fn watch(&mut self, _span: Span) -> bool {
        false
    }

    /// The next range of watched memory that was unmapped. A report is available before the call that
    /// unmapped the memory returns to the client.
    fn unmapped(&mut self) -> Option<Span> {
        None
    }
}

/// Chains of a device: exchanges of small frames with several peers, step by step, which the system may perform. A
/// device without chains has the defaults.
pub trait Chaining {
    /// Whether the device has chains. `try_it`: if that is not known, finds out; otherwise the answer may be wrong.
    fn offers_chains(&mut self, _try_it: bool) -> bool {
        false
    }

    /// Opens a chain over these ends. The peers do the same. It is usable when [`Chaining::poll_chain`] finds it ready.
    /// `None`: the device has no chains over such links, or no room.
    fn open_chain(&mut self, _ends: &[ChainEnd]) -> Option<ChainId> {
        None
    }

    /// Starts the steps of a chain that is ready, of which there are at most [`CHAIN_STEPS`]. The last one awaits a
    /// frame. False: the chain is broken.
    fn start_chain(&mut self, _chain: ChainId, _steps: &[ChainStep]) -> bool {
        false
    }

    /// The state of a chain. If the system performs no steps, this call performs those that can be performed.
    fn poll_chain(&mut self, _chain: ChainId) -> ChainState {
        ChainState::Broken
    }

    /// Whether a chain that was busy is ready or broken. [`Chaining::poll_chain`] must be called to learn which.
    fn has_ended_chain(&self, _chain: ChainId) -> bool {
        false
    }

    /// A bit for each awaited frame that has arrived, by the index of its step among those that were started last.
    fn chain_arrivals(&self, _chain: ChainId) -> u64 {
        0
    }

    /// Breaks a chain. Steps that are under way end soon.
    fn break_chain(&mut self, _chain: ChainId) {}

    /// Closes a chain of which no step is under way. Returns [`Chaining::chain_arrivals`], after a last look.
    fn close_chain(&mut self, _chain: ChainId) -> u64 {
        0
    }
}

/// A communication device. Implementations: shm and tcp (weft-nic), and a simulated one (weft-sim). All calls
/// come from one thread at a time. No call blocks, and only `poll` calls back. A device names the features that it does
/// not have ([`decline!`](crate::decline)).
pub trait Nic: Registrar + Chaining {
    /// The name under which peers reach the endpoint of this device.
    fn name(&self) -> EpName;

    /// Starts to connect to `peer`, which may be the own name. Ends in `up` or `down`, within the device's
    /// time-outs. An error means that the attempt could not even start.
    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError>;

    /// Sends one message: `head` followed by the bytes of `body`, together at most `mailbox_bytes`. On `Ok`
    /// all bytes have been copied or passed on.
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full>;

    /// Streams the bytes of `src` into the peer's window `window` from byte `offset` on, in segments of the
    /// device's choice. The peer's engine chooses the memory for them ([`Sink::place`]). The order of the
    /// segments is undefined, and so is that of a push and messages, except as `caps.push_follows` says.
    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full>;

    /// Sends the message `head`, and pushes the bytes of `src` into the peer's window `window` behind it. Only where
    /// `caps.push_follows`. `Ok(false)`: the message was accepted, and the push must be repeated with [`Nic::push`].
    fn announce(&mut self, link: LinkId, head: &[u8], window: u64, src: &[Iov], ctx: u64) -> Result<bool, Full> {
        self.send(link, head, &[])?;
        Ok(self.push(link, window, 0, src, ctx).is_ok())
    }

    /// Moves bytes between local memory and the peer's memory. Only where `caps.get` or `caps.put` says so, by the
    /// direction of this side's own transfers. If the call returns a [`Share`], the engine may ask the peer to help:
    /// two processors copy faster than one.
    fn copy(&mut self, link: LinkId, copy: &DirectCopy<'_>) -> Result<Option<Share>, Full>;

    /// Passes a number to the peer's engine, which counts executed messages. A later number may replace it on its
    /// way. It arrives after all messages that were sent before it. Only where `caps.confirms`.
    fn confirm(&mut self, link: LinkId, number: u32);

    /// Starts the transmission of all messages that `send` has gathered. Called at the end of each progress
    /// round.
    fn flush(&mut self);

    /// Moves bytes: passes arrived data to `sink`, in bounded portions. Returns the number of sink calls; 0
    /// means that nothing happened.
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize;

    /// Ends a link at once; the peer sees `Closed`. Messages that `send` accepted before are still delivered
    /// if the peer lives, unless a push was interrupted. No sink call for this link follows.
    fn close(&mut self, link: LinkId);

    /// Ends a link like [`Nic::close`], and drops unsent messages: its memory and descriptors are free at
    /// once.
    fn discard(&mut self, link: LinkId) {
        self.close(link);
    }

    /// Memory that the device holds for a link beyond that of an idle link, in bytes.
    fn held_bytes(&self, link: LinkId) -> usize;

    /// Makes memory that [`Nic::share_board`] can pass to peers of this host. `None`: the device cannot, or memory ran
    /// out.
    fn make_board(&mut self, bytes: usize) -> Option<Board>;

    /// Whether boards can be passed over a link that is up. Both sides of a link give the same answer.
    fn shares_boards(&self, link: LinkId) -> bool;

    /// Passes a board to the peer of a link, or reports that there is none, under a key of the engine's choice. Ends
    /// in [`Sink::board`] there. Only where [`Nic::shares_boards`].
    fn share_board(&mut self, link: LinkId, key: u64, board: Option<&Board>) -> Result<(), Full>;

    /// Passes a region to the peer of a link, or reports that it cannot be mapped. Ends in [`Sink::region`] there.
    /// Returns the guard of the peer's access, which is kept as long as the link. `None`: the region was not passed.
    /// Only where [`NicCaps::maps`].
    fn share_region(&mut self, link: LinkId, key: u64, offer: Option<RegionOffer<'_>>) -> Result<Option<Guard>, Full>;

    /// Wakes the peer of a link if it sleeps, because a word of a board has changed.
    fn wake_peer(&mut self, link: LinkId);

    /// Logs an act of the engine towards a peer. The engine reports the first, second, fourth, eighth, … act of a kind,
    /// so that peers cannot fill the log.
    fn notice(&mut self, peer: &EpName, notice: Notice);

    /// Whether all accepted data has left this process, so that the device may be dropped.
    fn drained(&self) -> bool;
}

/// Properties of a link that is up.
#[derive(Clone, Copy, Debug)]
pub struct LinkUp {
    /// The peer's full name, authenticated as far as the device can.
    pub peer: EpName,
    /// Whether this side connected.
    pub initiator: bool,
    /// Capabilities of the device on this link.
    pub caps: NicCaps,
}

/// Receives the events of a device. Implemented by the engine's state. No method has a default, so that a sink in front
/// of another one cannot lose an event. [`ignore_events!`](crate::ignore_events) is for sinks that need few of them.
pub trait Sink {
    /// The link is usable. On a link that the peer made, this side sends nothing before the peer's engine has
    /// sent a message.
    fn up(&mut self, link: LinkId, info: LinkUp);
    /// The link has ended, or could not be made.
    fn down(&mut self, link: LinkId, why: LinkError);
    /// The device gets no connection for an attempt so far, and goes on. The peer may be able to connect in the other
    /// direction. Repeated with growing pauses.
    fn hindered(&mut self, link: LinkId);
    /// One complete message. The slice may be in memory that the peer can still write: read every byte once.
    fn message(&mut self, link: LinkId, bytes: &[u8]);
    /// The peer's engine has called [`Nic::confirm`] with this number. All messages that it sent before were delivered.
    fn confirmed(&mut self, link: LinkId, number: u32);
    /// Asks for memory for a push: up to `len` bytes at `offset` of the window are arriving. `None`: the
    /// device discards them. If the memory is shorter than `len`, the device discards the rest. The device
    /// calls `placed` before its `poll` returns, and does not use the memory afterwards; it asks again for
    /// later bytes.
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<crate::mem::IovList>;
    /// The first `len` of those bytes have been stored or discarded. `len` is at most that of the `place`
    /// call; 0 is allowed.
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize);
    /// The name of the peer of a link that is up, for a device's messages to the user.
    fn peer(&self, link: LinkId) -> Option<EpName>;
    /// The device now holds more memory for the link than for an idle one ([`Nic::held_bytes`]).
    fn holds_more(&mut self, link: LinkId);
    /// The device is short of descriptors. Returns the least needed link of those that are `candidates`, if
    /// any can be given up. The device then ends it ([`Nic::discard`]) without further calls for it.
    fn spare_link(&mut self, candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId>;
    /// The peer has passed a board under a key. `None`: the peer has none, or it cannot be used here.
    fn board(&mut self, link: LinkId, key: u64, board: Option<Board>);
    /// The peer has passed the region of a key. `None`: it has none, or the region cannot be mapped here.
    fn region(&mut self, link: LinkId, key: u64, region: Option<PeerRegion>);
    /// A push or copy has finished, and its local memory is free.
    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>);
}

/// Implements methods of [`Sink`] that ignore their events, by name. For sinks in front of no other sink.
#[macro_export]
macro_rules! ignore_events {
    ($($event:ident),+) => { $($crate::ignore_events! { @one $event })+ };
    (@one confirmed) => {
        fn confirmed(&mut self, _: $crate::nic::LinkId, _: u32) {}
    };
    (@one peer) => {
        fn peer(&self, _: $crate::nic::LinkId) -> Option<$crate::name::EpName> {
            None
        }
    };
    (@one holds_more) => {
        fn hindered(&mut self, _: $crate::nic::LinkId) {}
        fn holds_more(&mut self, _: $crate::nic::LinkId) {}
    };
    (@one spare_link) => {
        fn spare_link(&mut self, _: &dyn Fn($crate::nic::LinkId) -> bool) -> Option<$crate::nic::LinkId> {
            None
        }
    };
    (@one board) => {
        fn board(&mut self, _: $crate::nic::LinkId, _: u64, _: Option<$crate::board::Board>) {}
        fn region(&mut self, _: $crate::nic::LinkId, _: u64, _: Option<$crate::mapped::PeerRegion>) {}
    };
}

/// Implements methods of [`Nic`] for features that a device does not have, by name.
#[macro_export]
macro_rules! decline {
    ($($feature:ident),+) => { $($crate::decline! { @one $feature })+ };
    (@one confirm) => {
        fn confirm(&mut self, _: $crate::nic::LinkId, _: u32) {}
    };
    (@one held_bytes) => {
        fn held_bytes(&self, _: $crate::nic::LinkId) -> usize {
            0
        }
    };
    (@one boards) => {
        fn make_board(&mut self, _: usize) -> Option<$crate::board::Board> {
            None
        }
        fn shares_boards(&self, _: $crate::nic::LinkId) -> bool {
            false
        }
        fn share_board(
            &mut self,
            _: $crate::nic::LinkId,
            _: u64,
            _: Option<&$crate::board::Board>,
        ) -> Result<(), $crate::nic::Full> {
            Ok(())
        }
        fn share_region(
            &mut self,
            _: $crate::nic::LinkId,
            _: u64,
            _: Option<$crate::mapped::RegionOffer<'_>>,
        ) -> Result<Option<$crate::mapped::Guard>, $crate::nic::Full> {
            Ok(None)
        }
        fn wake_peer(&mut self, _: $crate::nic::LinkId) {}
    };
    (@one notice) => {
        fn notice(&mut self, _: &$crate::name::EpName, _: $crate::nic::Notice) {}
    };
}
