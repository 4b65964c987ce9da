//! Counter classes of completions, and the words by which operations choose their reports.
//!
//! Place in the data flow: [`crate::endpoint::operation`] puts a [`User`] word into each operation's context and
//! reads [`Bound`] before it enters the engine; [`super::Routes`] reads both when the operation completes.

use std::sync::atomic::{AtomicU8, Ordering};

use weft_engine::api::{Context, Kind};
use weft_fi_sys as sys;

/// The `user` word of an operation's context. The low half has the operation's completion flags, and bits that
/// libfabric does not use there; the high half has the number of deferred work ([`super::deferred::DeferredReports`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) struct User(u64);

impl User {
    /// A success makes a queue entry.
    const ENTRY: u64 = 1;
    /// Counters ignore the operation (a peek, deferred work).
    const UNCOUNTED: u64 = 1 << 7;
    /// The high half is a number. Always set together with `UNCOUNTED`.
    const DEFERRED: u64 = 1 << 31;
    /// The completion flags.
    const FLAGS: u64 = 0xffff_ffff & !(Self::ENTRY | Self::UNCOUNTED | Self::DEFERRED);

    /// The word of an operation with these completion flags.
    #[inline]
    pub(in crate::endpoint) const fn new(flags: u64, entry: bool) -> Self {
        Self(flags | if entry { Self::ENTRY } else { 0 })
    }

    /// This word for an operation that counters ignore.
    #[inline]
    pub(in crate::endpoint) const fn uncounted(self) -> Self {
        Self(self.0 | Self::UNCOUNTED)
    }

    /// The word in an operation's context. Contexts of remote events have a key instead.
    #[inline]
    pub(in crate::endpoint) const fn of(ctx: Context) -> Self {
        Self(ctx.user)
    }

    /// This word for deferred work with this number.
    pub(in crate::endpoint) fn deferred(self, number: usize) -> Self {
        // The depths of the endpoint's queues bound the number.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        Self((self.0 & (Self::FLAGS | Self::ENTRY)) | Self::UNCOUNTED | Self::DEFERRED | u64::from(number) << 32)
    }

    /// The number of deferred work.
    #[inline]
    pub(in crate::endpoint) const fn number(self) -> Option<usize> {
        if self.0 & Self::DEFERRED != 0 { Some((self.0 >> 32) as usize) } else { None }
    }

    /// The word as the engine carries it.
    #[inline]
    pub(in crate::endpoint) const fn word(self) -> u64 {
        self.0
    }

    /// The completion flags.
    pub(super) const fn flags(self) -> u64 {
        self.0 & Self::FLAGS
    }

    /// Whether a success makes a queue entry.
    pub(super) const fn wants_entry(self) -> bool {
        self.0 & Self::ENTRY != 0
    }

    /// Whether a success makes an entry and is counted, like that of an ordinary operation.
    pub(super) const fn is_plain(self) -> bool {
        self.0 & (Self::ENTRY | Self::UNCOUNTED) == Self::ENTRY
    }

    /// Whether counters count the operation.
    pub(super) const fn is_counted(self) -> bool {
        self.0 & Self::UNCOUNTED == 0
    }
}

// The flags that operations put into the word leave its own bits free.
const _: () = assert!(
    (sys::FI_SEND
        | sys::FI_RECV
        | sys::FI_MSG
        | sys::FI_TAGGED
        | sys::FI_RMA
        | sys::FI_READ
        | sys::FI_WRITE
        | sys::FI_ATOMIC
        | sys::FI_COLLECTIVE)
        & !User::FLAGS
        == 0
);

/// The class of operations that a counter counts. Fetching atomics count as reads, others as writes (fi_cntr(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Class {
    /// FI_SEND.
    Send,
    /// FI_RECV.
    Recv,
    /// FI_READ.
    Read,
    /// FI_WRITE.
    Write,
    /// FI_REMOTE_WRITE.
    RemoteWrite,
    /// FI_REMOTE_READ.
    RemoteRead,
}

impl Class {
    /// Every class with the flag that binds a counter to it.
    pub(in crate::endpoint) const FLAGS: [(Self, u64); 6] = [
        (Self::Send, sys::FI_SEND),
        (Self::Recv, sys::FI_RECV),
        (Self::Read, sys::FI_READ),
        (Self::Write, sys::FI_WRITE),
        (Self::RemoteWrite, sys::FI_REMOTE_WRITE),
        (Self::RemoteRead, sys::FI_REMOTE_READ),
    ];

    /// The class of a completion.
    #[inline]
    pub(super) const fn of(kind: Kind) -> Self {
        match kind {
            // Transmit counters count collectives.
            Kind::Send | Kind::Collective => Self::Send,
            Kind::Recv => Self::Recv,
            Kind::Read | Kind::FetchAtomic => Self::Read,
            Kind::Write | Kind::Atomic => Self::Write,
            Kind::RemoteWrite => Self::RemoteWrite,
            // Connections and joins have no class; their completions never get here.
            Kind::RemoteRead | Kind::Connection | Kind::Joined => Self::RemoteRead,
        }
    }
}

/// The bindings that the data path must know before it enters the engine: which classes have a counter, and whether
/// entries of successes are selective. One byte, so that one load reads them all.
#[derive(Debug, Default)]
pub(in crate::endpoint) struct Bound(AtomicU8);

impl Bound {
    const TX_SELECTIVE: u8 = 1 << 6;
    const RX_SELECTIVE: u8 = 1 << 7;

    /// Whether successes of the class are counted.
    #[inline]
    pub(in crate::endpoint) fn counts(&self, class: Class) -> bool {
        self.0.load(Ordering::Relaxed) & (1 << class as u8) != 0
    }

    /// Whether transmit successes make an entry only on request.
    #[inline]
    pub(in crate::endpoint) fn tx_selective(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::TX_SELECTIVE != 0
    }

    /// Whether receive successes make an entry only on request.
    #[inline]
    pub(in crate::endpoint) fn rx_selective(&self) -> bool {
        self.0.load(Ordering::Relaxed) & Self::RX_SELECTIVE != 0
    }

    /// Notes that a counter was bound to the class.
    pub(in crate::endpoint) fn set_counted(&self, class: Class) {
        self.0.fetch_or(1 << class as u8, Ordering::Relaxed);
    }

    /// Notes that the transmit queue was bound selectively.
    pub(in crate::endpoint) fn set_tx_selective(&self) {
        self.0.fetch_or(Self::TX_SELECTIVE, Ordering::Relaxed);
    }

    /// Notes that the receive queue was bound selectively.
    pub(in crate::endpoint) fn set_rx_selective(&self) {
        self.0.fetch_or(Self::RX_SELECTIVE, Ordering::Relaxed);
    }
}
