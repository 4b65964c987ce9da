//! The types of the engine's interface: operation arguments, completions, errors and settings.
//!
//! Place in the data flow: weft-fi translates libfabric calls into these types, and these types into CQ
//! entries, counters and errno. No libfabric constant appears here.

mod flags;

use std::sync::Arc;

pub use self::flags::{CompletionFlags, OpFlags, RecvFlags};
use crate::amo::Amo;
use crate::mapped::Mappable;
use crate::mem::Iov;
use crate::mrcache::Limits;
use crate::name::EpName;
use crate::nic::{LinkError, Span};
use crate::wire::PROTOCOL_VERSION;

/// An index into the client's address vector (libfabric's `fi_addr_t`).
pub type Addr = u64;
/// In a receive's `src`: any source. In a completion: the source is in no address vector.
pub const ADDR_NONE: Addr = u64::MAX;

/// The cost of a message in the eager window beside its payload: about the size of its entry in the unexpected
/// queue.
pub(crate) const EAGER_COST: u64 = 64;

/// The address vector as the engine sees it. The engine asks it when a peer is used for the first time, and
/// when it has changed.
pub trait AddressBook: Send + Sync {
    /// Returns the name at an index.
    fn name(&self, addr: Addr) -> Option<EpName>;
    /// Returns the index of a name, by its endpoint id or else by its socket.
    fn addr(&self, name: &EpName) -> Option<Addr>;
    /// Returns the changes so far, if names are inserted and removed without a call of
    /// [`Engine::address_added`](crate::Engine::address_added). The engine asks on the slow path of messages
    /// and receives, so the call must be cheap.
    fn changes(&self) -> Option<Changes> {
        None
    }
}

/// Counters of the changes of an address book. Each change gives another pair of numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Number of removals of names.
    pub removals: u64,
    /// Number of rows, which insertions increase.
    pub rows: u64,
}

/// An empty book, for the time before an address vector is bound.
#[derive(Debug)]
pub struct NoBook;

impl AddressBook for NoBook {
    fn name(&self, _addr: Addr) -> Option<EpName> {
        None
    }
    fn addr(&self, _name: &EpName) -> Option<Addr> {
        None
    }
}

/// A shared address book.
pub type Book = Arc<dyn AddressBook>;

/// Values of the client that are returned unchanged with a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// The operation's context pointer, as a number.
    pub ptr: usize,
    /// Free for the layer above, which keeps the queue, the counters and flags of the operation here.
    pub user: u64,
}

/// A send: plain, tagged, with data, or injected.
#[derive(Clone, Copy, Debug)]
pub struct SendOp<'a> {
    /// The peer's address.
    pub dest: Addr,
    /// The payload's pieces, copied by the call.
    pub iov: &'a [Iov],
    /// Used with `OpFlags::TAGGED`.
    pub tag: u64,
    /// Used with `OpFlags::DATA`.
    pub data: u64,
    /// Returned with the completion.
    pub ctx: Context,
    /// Options.
    pub flags: OpFlags,
}

/// A receive: plain, tagged, multi, peek, claim, discard.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp<'a> {
    /// The source's address, or `ADDR_NONE` for any source.
    pub src: Addr,
    /// The buffer's pieces, copied by the call.
    pub iov: &'a [Iov],
    /// Used with `RecvFlags::TAGGED`.
    pub tag: u64,
    /// Tag bits that need not match.
    pub ignore: u64,
    /// Returned with the completion.
    pub ctx: Context,
    /// Options.
    pub flags: RecvFlags,
}

/// A piece of a peer's registered memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaIov {
    /// Offset into the region, or virtual address, as the target registered it.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The region's key.
    pub key: u64,
}

/// An RMA read or write.
#[derive(Clone, Copy, Debug)]
pub struct RmaOp<'a> {
    /// The target.
    pub dest: Addr,
    /// Local pieces, copied by the call.
    pub iov: &'a [Iov],
    /// Remote pieces, of the same total length, copied by the call.
    pub remote: &'a [RmaIov],
    /// Used with `OpFlags::DATA` (writes).
    pub data: u64,
    /// Returned with the completion.
    pub ctx: Context,
    /// Options.
    pub flags: OpFlags,
}

/// An atomic operation. `amo` says whether it is a base, fetching or comparing one.
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp<'a> {
    /// The target.
    pub dest: Addr,
    /// The operation and the type of its numbers.
    pub amo: Amo,
    /// The operands' pieces, copied by the call. Ignored for an operation without operands (a read).
    pub iov: &'a [Iov],
    /// The pieces of the values to compare with. Ignored unless the operation compares.
    pub compare: &'a [Iov],
    /// The pieces for the previous values of the target. Ignored unless the operation fetches.
    pub result: &'a [Iov],
    /// Remote pieces, each of whole numbers. Their total length equals that of the local pieces.
    pub remote: &'a [RmaIov],
    /// Used with `OpFlags::DATA`.
    pub data: u64,
    /// Returned with the completion.
    pub ctx: Context,
    /// Options.
    pub flags: OpFlags,
}

/// Access that a registered region grants to peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    /// FI_REMOTE_READ.
    pub read: bool,
    /// FI_REMOTE_WRITE.
    pub write: bool,
}

/// A region of memory that peers may access through any endpoint of the domain.
#[derive(Clone, Debug)]
pub struct Region {
    /// The key by which peers name the region.
    pub key: u64,
    /// The memory's pieces, in order.
    pub iov: crate::mem::IovList,
    /// The remote address of the first byte: 0, or its virtual address with FI_MR_VIRT_ADDR.
    pub base: u64,
    /// The access that peers have.
    pub access: Access,
    /// Free for the layer above, which keeps the region's counters here. Returned with remote events.
    pub user: u64,
    /// Emit a [`Completion`] for each remote access (FI_RMA_EVENT).
    pub events: bool,
    /// The memory of which the region consists, if peers may map it. No accesses by mappings are reported.
    pub mapping: Option<Arc<dyn Mappable>>,
}

/// The kind of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    Send,
    /// A receive, one message of a multi-receive, a peek, or a claim.
    Recv,
    /// An RMA read.
    Read,
    /// An RMA write.
    Write,
    /// A peer wrote into region `ctx.user` of this endpoint, with data if `CompletionFlags::DATA` is set. There is one
    /// completion for each operation, when all of it is stored. An operation on several regions makes one with
    /// `ENDPOINT`, and one with `REGION` for each region.
    RemoteWrite,
    /// A peer read from region `ctx.user` of this endpoint, and changed it if `CompletionFlags::CHANGES` is set.
    RemoteRead,
    /// An atomic operation that fetches nothing.
    Atomic,
    /// An atomic operation that fetches.
    FetchAtomic,
    /// No operation: `Engine::take_connection_events` returns at least one event.
    Connection,
    /// A collective operation.
    Collective,
    /// A join of a group (`Engine::join_group`).
    Joined,
}

/// The reason why an accepted operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The message was longer than the buffer, by this number of bytes.
    #[error("the message was {0} bytes longer than the buffer")]
    Truncated(usize),
    /// Cancelled by the client, or by the orderly end of the connection.
    #[error("cancelled")]
    Canceled,
    /// No message matched a peek.
    #[error("no message matched")]
    NoMessage,
    /// The link to the peer ended.
    #[error("{0}")]
    Link(LinkError),
    /// The target refused the access: the key is unknown, or its region does not grant the access.
    #[error("the target refused the access: the key is unknown, or its region does not grant the access")]
    BadKey,
    /// The target refused the access: it reaches beyond the region.
    #[error("the target refused the access: outside the registered region")]
    BadRange,
    /// The buffer of a receive, or the memory of a peer's region, is not mapped or is protected against the access.
    #[error("the memory is not mapped, or is protected against the access")]
    NoMemory,
    /// The region or receive was closed while data for it was on its way.
    #[error("the buffer at the peer was closed while data was on its way")]
    Revoked,
    /// Not a failure: the message was received, but its source is in no address vector, and the client asked
    /// for such reports (`Engine::set_source_errors`). The number is for [`crate::PeerNames::name`].
    #[error("the source is in no address vector")]
    Stranger(u32),
    /// The operation was deferred, and could not be started when it was due.
    #[error("the deferred operation could not be started: {0}")]
    Refused(Error),
    /// An invariant of weft is broken, which was logged.
    #[error("a fault in weft; its log names the place")]
    Internal,
}

/// A finished operation or a remote access.
///
/// Fields that are neighbours in a queue's entry are not neighbours here. Otherwise the compiler would copy
/// both by one load. That load would wait until the stores of both fields, and all stores before them, have
/// left the processor's store buffer.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The operation's context. For remote events, `user` is that of the region.
    pub ctx: Context,
    /// Number of bytes received or sent.
    pub len: usize,
    /// The tag of a tagged message.
    pub tag: u64,
    /// Address of a received message's first byte, as a number, for `fi_cq_data_entry.buf`.
    pub buf: usize,
    /// Source of a received message, or `ADDR_NONE` if it is in no address vector.
    pub src: Addr,
    /// The immediate data with DATA. Of a failed collective, the rank of a member that was lost, plus 1. Otherwise 0.
    pub data: u64,
    /// The kind of operation or event.
    pub kind: Kind,
    /// Properties, and the options of the operation.
    pub flags: CompletionFlags,
    /// The reason, if the operation failed.
    pub fault: Option<Fault>,
}

impl Completion {
    /// A successful completion without data or source.
    #[inline]
    #[must_use]
    pub const fn new(kind: Kind, ctx: Context, flags: CompletionFlags) -> Self {
        Self { ctx, len: 0, tag: 0, buf: 0, src: ADDR_NONE, data: 0, kind, flags, fault: None }
    }

    /// The completion of an operation that has failed.
    #[must_use]
    pub const fn failed(kind: Kind, ctx: Context, flags: CompletionFlags, fault: Fault) -> Self {
        Self { fault: Some(fault), ..Self::new(kind, ctx, flags) }
    }
}

/// The reason why an operation was not accepted. There is no side effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A queue is full: make progress and try again (-FI_EAGAIN).
    #[error("a queue is full")]
    Again,
    /// The address is in no address vector, or its name is not usable (-FI_EINVAL).
    #[error("no such address")]
    NoSuchAddress,
    /// The operation exceeds a limit of length (-FI_EMSGSIZE).
    #[error("longer than the limit")]
    TooLong,
    /// The arguments contradict each other (-FI_EINVAL).
    #[error("arguments contradict each other")]
    Invalid,
    /// The key is taken (-FI_ENOKEY).
    #[error("the key is in use")]
    KeyInUse,
    /// The endpoint is not connected, or no longer (-FI_ENOTCONN).
    #[error("not connected")]
    NotConnected,
    /// A claim or discard names no reserved message (-FI_EINVAL).
    #[error("no message was reserved under this context")]
    NothingClaimed,
}

/// The purpose of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Role {
    /// Any peers, by address (FI_EP_RDM).
    #[default]
    Connectionless,
    /// Any peers, by address, over an unreliable service (FI_EP_DGRAM).
    Datagrams,
    /// One peer, after a connection is made (FI_EP_MSG).
    Active,
    /// No peers. The engine reports calls, of which at most this number may be unanswered (a passive endpoint).
    Listener(usize),
}

/// Tells whether this process may read (`write`: read and write) all of a piece of its own memory. Returns an
/// accessible span that contains the piece, or None. `far` asks for a long span even if the search takes more
/// time. Only this process's own mappings count.
pub type Probe = fn(memory: Span, write: bool, far: bool) -> Option<Span>;

/// Limits and options of one engine. Sizes are in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Length limit of an inject.
    pub inject_bytes: usize,
    /// Limit of queued operations to one peer: accepted, and not yet sent. It also limits the requests to one
    /// peer that have no answer.
    pub tx_depth: usize,
    /// Limit of posted receives, tagged and untagged each.
    pub rx_depth: usize,
    /// Limit of the eager payload of one peer that waits here unmatched, plus 64 bytes for each message.
    pub window_bytes: usize,
    /// Window of active requests of one peer whose handlers have not run ([`crate::am`]). A request costs one unit, and
    /// one more for each KiB.
    pub active_window: u16,
    /// Overrides `NicCaps::eager_bytes`.
    pub eager_bytes: Option<usize>,
    /// Length limit of a message.
    pub max_msg_bytes: u64,
    /// Limit of peers in no address vector that are connected or have left messages here. Links of further ones
    /// are closed.
    pub max_strangers: usize,
    /// Limit of memory for the windows of all such peers, and for all other state that they have here.
    pub stranger_bytes: usize,
    /// The search in queues of receives and messages.
    pub matching: Matching,
    /// Limits of the registration cache, if a device demands registration.
    pub mr_cache: Limits,
    /// Checks memory before a peer's access to a region. `None`: the memory of all regions is accessible.
    pub probe: Option<Probe>,
    /// Whether groups perform collectives in memory that the members of a host share. A member that does not decides
    /// for its groups.
    pub boards: bool,
    /// Whether accesses to regions that peers let this endpoint map are performed in the mapped memory.
    pub maps: bool,
    /// Whether peers may map regions of this endpoint.
    pub offers_regions: bool,
    /// The purpose of the engine.
    pub role: Role,
    /// The version of the protocol that the engine announces and expects. Only tests set another one.
    #[doc(hidden)]
    pub protocol_version: u8,
}

impl Config {
    /// The smallest `window_bytes` in which an eager message of `longest` bytes always fits while no other waits.
    /// Almost a quarter of the window may not have been returned at that time.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    pub const fn least_window_bytes(longest: usize) -> usize {
        ((longest + EAGER_COST as usize) * 4).div_ceil(3)
    }

    /// Size in bytes of the portions in which windows are returned to peers.
    #[inline(always)]
    pub(crate) const fn window_quarter(&self) -> u64 {
        self.window_bytes as u64 / 4
    }
}

/// The method of search for the oldest match in a queue. All methods find the same match and differ in time
/// only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// Linear search while queues are short, then the method that suits the queue's entries.
    #[default]
    Auto,
    /// Linear search.
    List,
    /// Hashing of the matched fields, for few different masks.
    Hash,
    /// A radix tree, for many different masks.
    Tree,
}

impl std::str::FromStr for Matching {
    type Err = ();

    /// From `auto`, `list`, `hash` or `tree`.
    fn from_str(name: &str) -> Result<Self, ()> {
        match name {
            "auto" => Ok(Self::Auto),
            "list" => Ok(Self::List),
            "hash" => Ok(Self::Hash),
            "tree" => Ok(Self::Tree),
            _ => Err(()),
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        Self {
            inject_bytes: 4096,
            tx_depth: 4096,
            rx_depth: 1 << 20,
            window_bytes: 4 << 20,
            active_window: 1024,
            eager_bytes: None,
            max_msg_bytes: 1 << 40,
            max_strangers: 16 << 10,
            stranger_bytes: 64 << 20,
            matching: Matching::Auto,
            mr_cache: Limits::default(),
            probe: None,
            boards: true,
            maps: true,
            offers_regions: true,
            role: Role::Connectionless,
            protocol_version: PROTOCOL_VERSION,
        }
    }
}
