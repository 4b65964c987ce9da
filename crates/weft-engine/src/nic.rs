//! The contract between the engine and a device: [`Nic`] below the engine, [`Sink`] above the device.
//!
//! Place in the data flow: `Engine` → `Nic` → wire → `Nic::poll` → `Sink` (the engine's core).
//! The contract is modelled on what network cards give: short messages into a peer's mailbox
//! (Aries FMA/SMSG, Unimem's mailbox), bulk transfers by an engine (Aries BTE, RDMA), completion
//! events. A device never interprets what it carries; the engine knows of a device only its [`NicCaps`].
//!
//! # Links
//! A link is one connection to one peer endpoint, numbered densely by the device ([`LinkId`]).
//! Both sides own a link each. A link that [`Nic::connect`] made, or that a peer made, becomes
//! usable when [`Sink::up`] is called for it and ends with exactly one [`Sink::down`], or silently with
//! [`Nic::close`]. A number is reused only after that. A link that ends without having come up
//! gets `down` alone. Everything that is read from a wire or from
//! memory shared with a peer is checked in the device for bounds before the engine sees it; what the
//! bytes mean is checked by the engine, which answers nonsense with [`Nic::close`].
//!
//! # Memory
//! `send` has copied `head` and `body` when it returns `Ok`. `push`, `put`, `get` and `assist` borrow the
//! client's memory until [`Sink::done`] is called with their `ctx`, exactly once per accepted call: with an
//! error, before `down`, if the link ends first. `close(link)` abandons them: when it returns the device has
//! let go of the memory, and no `done` follows. After `close` or `down` no transfer of the peer begins with
//! another piece of memory here, or ends well.
//!
//! Where `caps.registered`, the engine has registered what it lets a get or put touch, here or at the peer,
//! until `done` or until the operation that announced the memory ends.

use crate::mem::Iov;
use crate::name::EpName;

/// Number of a link, dense from 0, chosen by the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LinkId(pub u32);

/// What a device can do on a link, and where its protocols switch. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicCaps {
    /// Short name for messages and statistics: `shm`, `tcp`, `sim`.
    pub device: &'static str,
    /// Longest message (head + body) that `send` takes. At least 256.
    pub mailbox_bytes: usize,
    /// Longest message (head + body) on the device's fastest path (one cache line for shm).
    pub inline_bytes: usize,
    /// Longest payload that goes eagerly by default; longer ones go by rendezvous. Must leave 128
    /// bytes for the engine's header within `mailbox_bytes`.
    pub eager_bytes: usize,
    /// The device can read the peer's memory by address without the peer's help.
    pub get: bool,
    /// The device can write the peer's memory by address without the peer's help.
    pub put: bool,
    /// Messages of one link arrive in the order in which they were sent. Where false the engine
    /// restores the order by sequence numbers.
    pub ordered: bool,
    /// No byte of a push arrives before the messages that were sent on the link before the push was started,
    /// so that a push may follow its announcement at once. Only where `ordered`.
    pub push_follows: bool,
    /// What `send` has taken, and a push that is done, reach the peer's engine even if this process ends at
    /// once: they lie in memory that the peer has, too. Where false, only the peer's answer proves that
    /// anything has arrived.
    pub survives: bool,
    /// `get` and `put` reach only memory that its own side has registered ([`Registrar`]), on both sides;
    /// `push` copies through the device's own memory, and serves where memory cannot be registered.
    pub registered: bool,
}

/// Why a device could not take something now. There is no side effect; try again after a `poll`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// Why a link ended or a transfer failed. The text is for logs: the cause, a semicolon, and what to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The peer closed the link in an orderly way.
    #[error("closed by the peer; where that is too early, look for the reason there")]
    Closed,
    /// The peer vanished: hang-up, reset, or death of its process.
    #[error("the peer is gone (hang-up or reset); look whether its process or its host has ended, and why")]
    Gone,
    /// The peer's host could not be reached any more, for as long as a broken connection is tried again.
    #[error(
        "the peer's host could not be reached until the time for that was over (FI_WEFT_TCP_RESUME_MS); look whether the host runs, at the \
         network between the hosts and at its firewalls, or allow more time"
    )]
    Cut,
    /// Nobody accepted connections at the address.
    #[error(
        "connection refused: no endpoint listens at that address; look whether the peer runs, and whether the address is of an earlier run"
    )]
    Refused,
    /// No answer within the connect time-out.
    #[error(
        "no answer within the connect time-out; look for a firewall, choose another interface (FI_WEFT_IFACE), or allow more time \
         (FI_WEFT_CONNECT_TIMEOUT_MS)"
    )]
    Timeout,
    /// No route to the address.
    #[error(
        "no route to the peer's address; choose an interface that all hosts reach (FI_WEFT_IFACE), and allow a device that reaches the \
         peer, here and there (FI_WEFT_SHM, FI_WEFT_TCP)"
    )]
    Unreachable,
    /// The peer failed authentication, or we failed it.
    #[error(
        "denied: one of the two has another job key than the other, or none, is another user's, or is closed to whoever does not know \
         its full address; give all processes the same FI_WEFT_JOB_KEY, or auth_key of domain and endpoint, and the same user"
    )]
    Denied,
    /// Only one of the two sides encrypts.
    #[error("only one of the two encrypts TCP; set FI_WEFT_TCP_ENCRYPT to the same in all processes")]
    Encryption,
    /// The peer broke the protocol.
    #[error(
        "the peer sent something that the protocol does not allow; use the same version of weft everywhere, and report it if it is"
    )]
    Protocol,
    /// A direct access to the peer's memory was refused by the operating system, or the address was bad.
    #[error(
        "direct access to the peer's memory failed; look whether a buffer was unmapped while it was in use, or do without such access \
         (FI_WEFT_CMA=0)"
    )]
    Access,
    /// Descriptors ran out here.
    #[error("out of file descriptors; raise `ulimit -n`, or fs.file-max of the host")]
    Descriptors,
    /// Memory or another resource ran out here.
    #[error(
        "out of memory, of ports or of what epoll may watch; raise the memory that the process may have, \
         net.ipv4.ip_local_port_range or fs.epoll.max_user_watches"
    )]
    Resources,
    /// The peer has no room for another link.
    #[error("the peer is out of descriptors or memory for another link; raise `ulimit -n` or the memory there")]
    PeerResources,
}

/// A remote piece of memory for `put` and `get`: an address in the peer's address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RemoteIov {
    /// Address in the peer.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

/// Names a `get` or `put` that the peer may help with, within its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share(pub u32);

/// A stretch of the address space, from `start` on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Span {
    /// The first byte.
    pub start: u64,
    /// How many bytes.
    pub len: u64,
}

impl From<&Iov> for Span {
    /// The addresses.
    fn from(memory: &Iov) -> Self {
        Self { start: memory.addr(), len: memory.len() as u64 }
    }
}

impl Span {
    /// The byte behind the last.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start.saturating_add(self.len)
    }

    /// Whether all of `other` lies in here.
    #[must_use]
    pub fn contains(&self, other: &Self) -> bool {
        self.start <= other.start && other.end() <= self.end()
    }

    /// Whether some byte lies in both.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        self.start < other.end() && other.start < self.end()
    }
}

/// What a device demands of those who register memory with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demands {
    /// What registering takes, in nanoseconds. At 0 nothing is kept registered beyond its use.
    pub cost_ns: u64,
    /// Registrations begin and end at multiples of this power of two.
    pub align_bytes: u64,
    /// Most registrations at a time.
    pub regions: usize,
    /// Most bytes registered at a time.
    pub bytes: u64,
}

/// Why memory was not registered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The device has no room now: less must be registered first.
    Full,
    /// This memory cannot be registered.
    Memory,
}

/// The part of a device that makes memory reachable for it. The engine calls it through its cache ([`crate::mrcache`])
/// only, and only where there are [`Demands`].
pub trait Registrar {
    /// Whether there may be demands at all. Where not, none of this costs anything.
    const REGISTERS: bool = false;

    /// What the device demands; `None`: it reaches any memory.
    fn demands(&self) -> Option<Demands> {
        None
    }

    /// Where registrations have the memory: at its address, unless the device says otherwise.
    fn span(&mut self, memory: &Iov) -> Span {
        memory.into()
    }

    /// Makes memory reachable for the device, and for the peers' devices; gives the number to `deregister` it by.
    fn register(&mut self, _span: Span) -> Result<u64, Refused> {
        Err(Refused::Memory)
    }

    /// Ends a registration. No transfer touches the memory.
    fn deregister(&mut self, _number: u64) {}

    /// Has the system report when any of the memory is unmapped. False: it cannot, and the memory must not stay
    /// registered when nobody uses it, because other memory may come to the same address unseen.
    fn watch(&mut self, _span: Span) -> bool {
        false
    }

    /// What has been unmapped of the watched memory, one report after the other. A report is here before the call that
    /// unmapped the memory returns to the client.
    fn unmapped(&mut self) -> Option<Span> {
        None
    }
}

/// A communication device. Implementations: shm and tcp (weft-nic), the simulated one (weft-sim).
/// All calls come from one thread at a time; none blocks; none calls back except `poll`.
pub trait Nic: Registrar {
    /// The name under which peers reach the endpoint of this device.
    fn name(&self) -> EpName;

    /// Starts to connect to `peer`, which may be the own name. Ends in `up` or `down`, within the
    /// device's time-outs. An error here means that not even an attempt could be made.
    fn connect(&mut self, peer: &EpName) -> Result<LinkId, LinkError>;

    /// Sends one message: `head` followed by the bytes of `body`, together at most
    /// `mailbox_bytes`. On `Ok` all bytes have been copied or handed on.
    fn send(&mut self, link: LinkId, head: &[u8], body: &[Iov]) -> Result<(), Full>;

    /// Streams the bytes of `src` into the peer's window `window` from byte `offset` on, in segments
    /// of the device's choice. The peer's engine says where they go ([`Sink::place`]). Segments of one
    /// push arrive in order. Between a push and messages nothing is promised, but for what `caps.push_follows` says.
    fn push(&mut self, link: LinkId, window: u64, offset: u64, src: &[Iov], ctx: u64) -> Result<(), Full>;

    /// Reads the peer's memory `remote` into `local` (equal total lengths). Only where `caps.get`. If a [`Share`] comes
    /// back, the peer may be asked to `assist`: two processors copy faster than one. It need not.
    fn get(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<Option<Share>, Full>;

    /// Writes `local` to the peer's memory `remote` (equal total lengths). Only where `caps.put`. The rest as
    /// for `get`.
    fn put(&mut self, link: LinkId, local: &[Iov], remote: &[RemoteIov], ctx: u64) -> Result<Option<Share>, Full>;

    /// Helps with the peer's transfer `share`, moving what the peer has not moved yet. `local` and `remote`
    /// name the same bytes as the peer's call, seen from here; `put`: they go from `local` to `remote` (the
    /// peer's call is a `get`). `done` follows, always `Ok`: whether the transfer succeeds is the peer's to
    /// know. A share that has ended or never was is no error.
    fn assist(
        &mut self,
        link: LinkId,
        share: Share,
        put: bool,
        local: &[Iov],
        remote: &[RemoteIov],
        ctx: u64,
    ) -> Result<(), Full>;

    /// Sends on its way whatever `send` has gathered. Called at the end of each progress round.
    fn flush(&mut self);

    /// Moves bytes: takes what has arrived to `sink`, in bounded portions. Returns how many sink calls were made:
    /// 0 means that nothing happened.
    fn poll<S: Sink>(&mut self, sink: &mut S) -> usize;

    /// Ends a link at once; the peer sees `Closed`. What `send` accepted before is still delivered if the peer lives,
    /// unless a push was cut in the middle. No sink call for this link is made afterwards.
    fn close(&mut self, link: LinkId);

    /// The same without what has not left: the link's memory and descriptors are free at once.
    fn discard(&mut self, link: LinkId) {
        self.close(link);
    }

    /// Memory that the device holds for a link now and not for an idle one, in bytes.
    fn held_bytes(&self, _link: LinkId) -> usize {
        0
    }

    /// Whether everything that was accepted has left this process, so that the device may be dropped.
    fn drained(&self) -> bool;
}

/// What a link is once it is up.
#[derive(Clone, Copy, Debug)]
pub struct LinkUp {
    /// The peer's full name, authenticated as far as the device can.
    pub peer: EpName,
    /// Whether our side connected.
    pub initiator: bool,
    /// What the device can do on this link.
    pub caps: NicCaps,
}

/// Receives what a device brings. Implemented by the engine's core.
pub trait Sink {
    /// The link is usable. Nothing is sent on a link that a peer made before the peer's engine has spoken.
    fn up(&mut self, link: LinkId, info: LinkUp);
    /// The link has ended, or could not be made.
    fn down(&mut self, link: LinkId, why: LinkError);
    /// One message, whole. The slice may lie in memory that the peer can still write: read every byte once.
    fn message(&mut self, link: LinkId, bytes: &[u8]);
    /// Bytes of a push are arriving, up to `len` of them for the window's bytes from `offset`: where shall
    /// they go? `None`: they are thrown away. Memory shorter than `len`: the rest is thrown away. The device
    /// calls `placed` before its `poll` returns and keeps the memory no longer; it asks again for what
    /// comes later.
    fn place(&mut self, link: LinkId, window: u64, offset: u64, len: usize) -> Option<crate::mem::IovList>;
    /// The first `len` (≤ what `place` was asked for, 0 allowed) of those bytes have been stored or thrown away.
    fn placed(&mut self, link: LinkId, window: u64, offset: u64, len: usize);
    /// Who is at the other end of a link that is up, for what a device tells the user.
    fn peer(&self, _link: LinkId) -> Option<EpName> {
        None
    }
    /// The device has begun to hold memory for the link that it does not hold for each ([`Nic::held_bytes`]).
    fn holds_more(&mut self, _link: LinkId) {}
    /// The device is short of descriptors. Gives the link that is needed least of those that are
    /// `candidates`, if it can be done without: the device ends it ([`Nic::discard`]), and tells of it no
    /// more.
    fn spare_link(&mut self, _candidates: &dyn Fn(LinkId) -> bool) -> Option<LinkId> {
        None
    }
    /// A push, put, get or assist has finished and its local memory is free.
    fn done(&mut self, link: LinkId, ctx: u64, result: Result<(), LinkError>);
}
