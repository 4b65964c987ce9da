//! What goes into the engine and what comes out: operation arguments, completions, errors.
//!
//! Place in the data flow: weft-fi translates libfabric calls into these types and these types
//! back into CQ entries, counters and errno. No libfabric constant appears here.

use std::sync::Arc;

use crate::amo::Amo;
use crate::engine::{EAGER_COST, Probe, Role};
use crate::mem::Iov;
use crate::mrcache::Limits;
use crate::name::EpName;
use crate::nic::LinkError;

/// An index into the client's address vector (libfabric's `fi_addr_t`).
pub type Addr = u64;
/// Any source (as a receive's `src`), or a source that is in no address vector (in a completion).
pub const ADDR_NONE: Addr = u64::MAX;

/// The address vector as the engine sees it: asked when a peer is met for the first time, and when it has changed.
pub trait AddressBook: Send + Sync {
    /// The name at an index.
    fn name(&self, addr: Addr) -> Option<EpName>;
    /// The index of a name: by its identity, else by its socket identity.
    fn addr(&self, name: &EpName) -> Option<Addr>;
    /// If names come into it, and leave it, of which the engine is not told
    /// ([`Engine::address_added`](crate::Engine::address_added)): what has been done so far. Asked where a
    /// message or a receive goes the long way, so it must be cheap.
    fn changes(&self) -> Option<Changes> {
        None
    }
}

/// What has been done to an address book: other numbers after each change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// How often a name has left it.
    pub removals: u64,
    /// How many names have come into it.
    pub rows: u64,
}

/// A book that is empty: before an address vector is bound.
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

/// What the client gets back with a completion, verbatim.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Context {
    /// The operation's context pointer, as a number.
    pub ptr: usize,
    /// Free for the layer above: which queue, which counters, which flags.
    pub user: u64,
}

bitflags::bitflags! {
    /// How an operation behaves.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpFlags: u32 {
        /// The buffer may be reused as soon as the call returns.
        const INJECT = 1;
        /// Complete when the data is in the target's buffer, matched (FI_DELIVERY_COMPLETE).
        const DELIVERY = 1 << 1;
        /// Carries 64 bits of immediate data (FI_REMOTE_CQ_DATA).
        const DATA = 1 << 2;
        /// Emit no [`Completion`] on success: neither a queue entry nor a counter wants it.
        const QUIET = 1 << 3;
        /// Start only after all earlier operations to this peer have completed (FI_FENCE).
        const FENCE = 1 << 4;
        /// Receives: the buffer takes several messages (FI_MULTI_RECV).
        const MULTI = 1 << 5;
        /// Receives: look, do not take (FI_PEEK).
        const PEEK = 1 << 6;
        /// Receives: with `PEEK` reserve what is found, without it take what the same context reserved (FI_CLAIM).
        const CLAIM = 1 << 7;
        /// Receives: throw away what `PEEK` finds or `CLAIM` reserved (FI_DISCARD).
        const DISCARD = 1 << 8;
        /// The operation is tagged.
        const TAGGED = 1 << 9;
        /// Complete when the data has reached the peer's endpoint, whatever becomes of us (FI_TRANSMIT_COMPLETE).
        const TRANSMIT = 1 << 10;
        /// Remote events: the access was an atomic operation.
        const ATOMIC = 1 << 11;
        /// Not to be started by this call (FI_TRIGGER): for the layer above, which starts it, without this,
        /// when its time has come. `Engine::send_now` and `post_now` decline; no other call may get it.
        const TRIGGER = 1 << 12;
        /// Remote events of an operation that has reached several regions: this one is for the endpoint, and
        /// for no region.
        const ENDPOINT = 1 << 13;
        /// The same: this one is for the region, and not for the endpoint.
        const REGION = 1 << 14;
        /// Remote events of kind `RemoteRead`: a fetching operation that also changes what it fetches.
        const CHANGES = 1 << 15;
        /// No queue entry tells of success, only a counter: as `QUIET`, but with a [`Completion`].
        const COUNTED = 1 << 16;
        /// Completions: of a multi-receive of a pool. Whether it is released is asked when it is handed on
        /// ([`crate::Leaving`]).
        const POOLED = 1 << 17;
        /// Sends: leave only after all earlier remote accesses of this peer have completed (FI_ORDER_SAW,
        /// FI_ORDER_SAR).
        const AFTER_ACCESSES = 1 << 18;
    }
}

impl OpFlags {
    /// An inject of which no queue entry tells. It is accepted only when it can leave: its caller may go on
    /// to wait for its effect by other means, without progress of this endpoint.
    pub(crate) const fn must_leave(self) -> bool {
        self.contains(Self::INJECT) && self.intersects(Self::QUIET.union(Self::COUNTED))
    }
}

/// A send: plain, tagged, with data, injected — one shape.
#[derive(Clone, Copy, Debug)]
pub struct SendOp<'a> {
    /// To whom.
    pub dest: Addr,
    /// The payload's pieces, copied by the call.
    pub iov: &'a [Iov],
    /// Used with `OpFlags::TAGGED`.
    pub tag: u64,
    /// Used with `OpFlags::DATA`.
    pub data: u64,
    /// Comes back with the completion.
    pub ctx: Context,
    /// Behaviour.
    pub flags: OpFlags,
}

/// A receive: plain, tagged, multi, peek, claim, discard.
#[derive(Clone, Copy, Debug)]
pub struct RecvOp<'a> {
    /// From whom; `ADDR_NONE` for anyone.
    pub src: Addr,
    /// The buffer's pieces, copied by the call.
    pub iov: &'a [Iov],
    /// Used with `OpFlags::TAGGED`.
    pub tag: u64,
    /// Tag bits that need not match.
    pub ignore: u64,
    /// Comes back with the completion.
    pub ctx: Context,
    /// Behaviour.
    pub flags: OpFlags,
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
    /// Comes back with the completion.
    pub ctx: Context,
    /// Behaviour.
    pub flags: OpFlags,
}

/// An atomic operation: base, fetching or comparing, as `amo` says.
#[derive(Clone, Copy, Debug)]
pub struct AtomicOp<'a> {
    /// The target.
    pub dest: Addr,
    /// What is done.
    pub amo: Amo,
    /// The operands' pieces, copied by the call; not looked at where there are none (a read).
    pub iov: &'a [Iov],
    /// The pieces of the values to compare with; not looked at where nothing is compared.
    pub compare: &'a [Iov],
    /// Where to put what was at the target before; not looked at where nothing is fetched.
    pub result: &'a [Iov],
    /// Remote pieces, each of a whole number of numbers; local lengths are the same in total.
    pub remote: &'a [RmaIov],
    /// Used with `OpFlags::DATA`.
    pub data: u64,
    /// Comes back with the completion.
    pub ctx: Context,
    /// Behaviour.
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

/// A region that peers may reach, as every endpoint of the domain knows it.
#[derive(Clone, Debug)]
pub struct Region {
    /// What peers name it by.
    pub key: u64,
    /// The memory, pieces in order.
    pub iov: crate::mem::IovList,
    /// The remote address of the first byte: 0, or its virtual address where FI_MR_VIRT_ADDR is in force.
    pub base: u64,
    /// What peers may do.
    pub access: Access,
    /// Free for the layer above (which counters to raise); comes back with remote events.
    pub user: u64,
    /// Emit a [`Completion`] for each remote access (FI_RMA_EVENT).
    pub events: bool,
}

/// What has completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A send.
    Send,
    /// A receive, one message of it for a multi-receive, a peek, or a claim.
    Recv,
    /// An RMA read.
    Read,
    /// An RMA write.
    Write,
    /// A peer wrote into our region `ctx.user` (with `OpFlags::DATA`: and sent data along). One for each
    /// operation, when all of it is stored; if it reached several regions, one with `ENDPOINT` and one with
    /// `REGION` for each.
    RemoteWrite,
    /// A peer read from our region `ctx.user` (with `OpFlags::CHANGES`: and may have changed it).
    RemoteRead,
    /// An atomic operation that fetches nothing.
    Atomic,
    /// An atomic operation that fetches.
    FetchAtomic,
    /// No operation: `Engine::take_connection_events` has something to tell.
    Connection,
}

/// Why an accepted operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The message was longer than the buffer by so many bytes.
    #[error("the message was {0} bytes longer than the buffer")]
    Truncated(usize),
    /// Cancelled by the client, or by the orderly end of the connection.
    #[error("cancelled")]
    Canceled,
    /// A peek found nothing.
    #[error("no message matched")]
    NoMessage,
    /// The link to the peer ended.
    #[error("{0}")]
    Link(LinkError),
    /// The target refused the access: unknown key, or it does not grant this access.
    #[error("the target refused the access: no such key, or not with this access")]
    BadKey,
    /// The target refused the access: outside the region.
    #[error("the target refused the access: outside the registered region")]
    BadRange,
    /// The buffer of a receive, or the memory of a peer's region, is not mapped or is protected against the access.
    #[error("the memory is not there, or is protected against the access")]
    NoMemory,
    /// A message arrived for a region or receive that went away meanwhile.
    #[error("the buffer at the peer went away while data was under way")]
    Revoked,
    /// None: a message was received well. But its source is in no address vector, which the client wants to be told
    /// (`Engine::set_source_errors`). The number is for [`crate::PeerNames::name`].
    #[error("the source is in no address vector")]
    Stranger(u32),
    /// The operation was accepted before its time, and could not be started when it had come.
    #[error("it could not be started when its time had come: {0}")]
    Refused(Error),
}

/// One finished operation (or remote event).
///
/// No two fields stand here side by side that do so in a queue's entry, too: or else they would be copied
/// there by one load, which has to wait until the two stores that it reads have left the processor's store
/// buffer, and all stores before them.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Completion {
    /// The operation's context; for remote events `user` is the region's.
    pub ctx: Context,
    /// Bytes stored (received), or sent.
    pub len: usize,
    /// The tag that came with a tagged message.
    pub tag: u64,
    /// Where a received message begins (its address as a number, for `fi_cq_data_entry.buf`).
    pub buf: usize,
    /// Source of a received message, `ADDR_NONE` if it is in no address vector.
    pub src: Addr,
    /// The data that came with DATA, else 0.
    pub data: u64,
    /// What it was.
    pub kind: Kind,
    /// DATA, MULTI (the multi-receive buffer is released), TAGGED; TRANSMIT, DELIVERY as the operation had them.
    pub flags: OpFlags,
    /// The error, if it failed.
    pub fault: Option<Fault>,
}

/// Why an operation was not accepted. There is no side effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A queue is full: make progress and try again (-FI_EAGAIN).
    #[error("a queue is full")]
    Again,
    /// The address is in no address vector, or its name is not usable (-FI_EINVAL).
    #[error("no such address")]
    NoSuchAddress,
    /// Longer than the limit (-FI_EMSGSIZE).
    #[error("longer than the limit")]
    TooLong,
    /// Arguments that contradict each other (-FI_EINVAL).
    #[error("arguments contradict each other")]
    Invalid,
    /// The key is taken (-FI_ENOKEY).
    #[error("the key is in use")]
    KeyInUse,
    /// There is no connection any more, or not yet (-FI_ENOTCONN).
    #[error("not connected")]
    NotConnected,
    /// A claim or discard names no reserved message (-FI_EINVAL).
    #[error("no message was reserved under this context")]
    NothingClaimed,
}

/// Bounds and switches of one engine. Sizes in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// Longest inject.
    pub inject_bytes: usize,
    /// Operations to all peers that may be accepted and not yet complete.
    pub tx_depth: usize,
    /// Receives that may be posted (tagged and untagged each).
    pub rx_depth: usize,
    /// Eager payload (plus 64 per message) that one peer may have waiting here unmatched.
    pub window_bytes: usize,
    /// Overrides `NicCaps::eager_bytes` where set.
    pub eager_bytes: Option<usize>,
    /// Longest message.
    pub max_msg_bytes: u64,
    /// Peers in no address vector that may be connected, or have left messages here: others' links are closed.
    pub max_strangers: usize,
    /// Memory for the windows of such peers altogether, and as much for everything else that they have kept here.
    pub stranger_bytes: usize,
    /// How queues of receives and messages are searched.
    pub matching: Matching,
    /// What the registration cache may keep, where a device demands registration.
    pub mr_cache: Limits,
    /// Asked before a peer's access to a region is carried out. `None`: all memory of regions is there.
    pub probe: Option<Probe>,
    /// What the engine is for.
    pub role: Role,
}

impl Config {
    /// The smallest `window_bytes` in which an eager message of so many bytes fits whenever none waits,
    /// though almost a quarter of the window is to be given back.
    #[must_use]
    #[expect(clippy::cast_possible_truncation, reason = "a small number")]
    pub const fn least_window_bytes(longest: usize) -> usize {
        ((longest + EAGER_COST as usize) * 4).div_ceil(3)
    }

    /// Windows are given back in portions of so many bytes.
    #[inline(always)]
    pub(crate) const fn window_quarter(&self) -> u64 {
        self.window_bytes as u64 / 4
    }
}

/// How the oldest match is found in a queue. It is the same whatever is chosen; what differs is the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Matching {
    /// By walking, as long as walks are short; then as seems best.
    #[default]
    Auto,
    /// By walking, whatever the length.
    List,
    /// By hashing what entries and searches care for: for few different masks.
    Hash,
    /// By a radix tree: for many different masks.
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
            eager_bytes: None,
            max_msg_bytes: 1 << 40,
            max_strangers: 16 << 10,
            stranger_bytes: 64 << 20,
            matching: Matching::Auto,
            mr_cache: Limits::default(),
            probe: None,
            role: Role::Connectionless,
        }
    }
}
