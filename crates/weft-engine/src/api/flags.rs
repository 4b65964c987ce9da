//! Flags of operations, of receives and of completions: one type for each, because few flags apply to all.
//!
//! Place in the data flow: weft-fi sets [`OpFlags`] and [`RecvFlags`] when it translates a call. The engine sets
//! [`CompletionFlags`] in the completion.
//!
//! Invariant: all types number their flags alike. A completion takes over the flags of its operation without
//! translation, and adds its own.

bitflags::bitflags! {
    /// Options of an operation that transmits: a send, a remote access, an atomic or a collective.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct OpFlags: u32 {
        // ---- the transfer ----

        /// The buffer may be reused as soon as the call returns.
        const INJECT = 1;
        /// Carries 64 bits of immediate data (FI_REMOTE_CQ_DATA).
        const DATA = 1 << 2;
        /// The operation is tagged.
        const TAGGED = 1 << 9;

        // ---- its order ----

        /// Start only after all earlier operations to this peer have completed (FI_FENCE).
        const FENCE = 1 << 4;
        /// Sends: leave only after all earlier remote accesses to this peer have completed (FI_ORDER_SAW,
        /// FI_ORDER_SAR).
        const AFTER_ACCESSES = 1 << 18;
        /// The layer above must defer the operation (FI_TRIGGER), and starts it later without this flag.
        /// `Engine::send_now` declines such an operation. No other call may get one.
        const TRIGGER = 1 << 12;

        // ---- its completion level: without one, a send is complete when its buffer is free, and a remote access when
        // the target's memory has the data ----

        /// Complete when the buffer is free (FI_INJECT_COMPLETE).
        const FREED = 1 << 19;
        /// Complete when the data has reached the peer's endpoint, even if this process ends afterwards
        /// (FI_TRANSMIT_COMPLETE).
        const TRANSMIT = 1 << 10;
        /// Complete when the data is in the target's matched buffer (FI_DELIVERY_COMPLETE).
        const DELIVERY = 1 << 1;

        // ---- the report of its success: with neither, by a queue entry ----

        /// Success is counted but makes no queue entry. There is a [`Completion`](crate::api::Completion).
        const COUNTED = 1 << 16;
        /// Emit no [`Completion`](crate::api::Completion) on success, because no queue entry and no counter
        /// needs it.
        const QUIET = 1 << 3;
    }

    /// Options of a receive.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct RecvFlags: u32 {
        /// The receive is tagged.
        const TAGGED = 1 << 9;
        /// The buffer takes several messages (FI_MULTI_RECV).
        const MULTI = 1 << 5;
        /// Report a matching message without receiving it (FI_PEEK).
        const PEEK = 1 << 6;
        /// With `PEEK`, reserve the message. Without it, receive the message that this context reserved
        /// (FI_CLAIM).
        const CLAIM = 1 << 7;
        /// Drop the message that `PEEK` finds or `CLAIM` reserved (FI_DISCARD).
        const DISCARD = 1 << 8;
        /// As [`OpFlags::TRIGGER`]. `Engine::post_now` declines such a receive.
        const TRIGGER = 1 << 12;
    }

    /// Properties of a completion. The options of its operation that have no name here are set as well.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct CompletionFlags: u32 {
        /// The message or the remote write carried immediate data.
        const DATA = 1 << 2;
        /// The message is tagged.
        const TAGGED = 1 << 9;
        /// The multi-receive buffer is released.
        const RELEASED = 1 << 5;
        /// A delivery into a multi-receive of a pool. Whether it releases the buffer is known when the completion
        /// is delivered ([`PooledReleases`](crate::PooledReleases)).
        const POOLED = 1 << 17;
        /// Remote events: the access was an atomic operation.
        const ATOMIC = 1 << 11;
        /// Remote events of kind `RemoteRead`: the operation also changed the memory that it fetched.
        const CHANGES = 1 << 15;
        /// Remote events of an operation on several regions: the event of the endpoint, and of no region.
        const ENDPOINT = 1 << 13;
        /// Remote events of an operation on several regions: the event of one region, and not of the endpoint.
        const REGION = 1 << 14;
    }
}

impl OpFlags {
    /// Whether this is an inject without a queue entry. It is accepted only if it can leave at once, because
    /// its caller may wait for the effect by other means, without progress of this endpoint.
    pub(crate) const fn must_leave(self) -> bool {
        self.contains(Self::INJECT) && self.intersects(Self::QUIET.union(Self::COUNTED))
    }

    /// Whether the client can observe neither the success of the operation nor the end of the use of its buffer.
    pub(crate) const fn is_unwatched(self) -> bool {
        self.contains(Self::INJECT.union(Self::QUIET))
    }
}

impl RecvFlags {
    /// The calls that look for a message and post no buffer, or a reserved one.
    pub const LOOKS: Self = Self::PEEK.union(Self::CLAIM).union(Self::DISCARD);
}

impl From<OpFlags> for CompletionFlags {
    #[inline(always)]
    fn from(flags: OpFlags) -> Self {
        Self::from_bits_retain(flags.bits())
    }
}

impl From<RecvFlags> for CompletionFlags {
    #[inline(always)]
    fn from(flags: RecvFlags) -> Self {
        Self::from_bits_retain(flags.bits())
    }
}
