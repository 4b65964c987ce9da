//! The properties of the link to a peer, as operations need them.
//!
//! Place in the data flow: the capabilities of the device ([`NicCaps`]) become these when a link opens. Each operation
//! reads them to choose its protocol.

use crate::api::OpFlags;
use crate::bugs::planted;
use crate::nic::{NicCaps, PUSH_BYTES};

/// Sends with one of these flags need more than one step.
const SLOW_SENDS: OpFlags =
    OpFlags::DELIVERY.union(OpFlags::FENCE).union(OpFlags::AFTER_ACCESSES).union(OpFlags::TRIGGER);

/// The answer that completes a send, after the message has left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// None (FI_INJECT_COMPLETE).
    Nothing,
    /// The peer's engine has the message (FI_TRANSMIT_COMPLETE).
    Arrived,
    /// The message is in the receiver's buffer, or was dropped (FI_DELIVERY_COMPLETE).
    Received,
}

bitflags::bitflags! {
    /// The properties of the same names in [`NicCaps`].
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct PathFlags: u8 {
        const GET = 1;
        const PUT = 1 << 1;
        const ORDERED = 1 << 2;
        /// Set only if messages are ordered.
        const PUSH_FOLLOWS = 1 << 3;
        /// A message that has left counts as arrived (FI_TRANSMIT_COMPLETE needs no answer).
        const SURVIVES = 1 << 4;
        /// Gets and puts reach only registered memory.
        const REGISTERED = 1 << 5;
        /// Set only if messages are ordered.
        const CONFIRMS = 1 << 6;
        const PUSHES = 1 << 7;
    }
}

/// The properties of a peer's device that every message needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct PathCaps {
    /// Length limit of an eager message's payload.
    eager_bytes: u32,
    /// Length limit of a read's or write's part that travels within a message.
    rma_bytes: u32,
    mailbox_bytes: u32,
    /// Sends with any of these do not take the fast path.
    slow_sends: OpFlags,
}

impl PathFlags {
    /// The answer that completes a send of this level.
    #[inline]
    pub(crate) fn answer_to(self, flags: OpFlags) -> Answer {
        if flags.contains(OpFlags::DELIVERY) {
            Answer::Received
        } else if flags.contains(OpFlags::TRANSMIT) && !self.contains(Self::SURVIVES) {
            Answer::Arrived
        } else {
            Answer::Nothing
        }
    }

    /// Whether a short write of this level is complete when it has left. Its client has named a level that promises no
    /// more, or can observe none.
    #[inline]
    pub(crate) fn leaves(self, flags: OpFlags) -> bool {
        let early = flags.intersects(OpFlags::FREED | OpFlags::TRANSMIT) || flags.is_unwatched();
        planted!(Bug::WriteLeaves, early, true) && self.answer_to(flags) == Answer::Nothing
    }

    /// Whether `len` bytes are pushed although the device could get or put them.
    pub(super) fn pushes(self, len: u64) -> bool {
        self.contains(Self::PUSHES) && len <= PUSH_BYTES
    }

    /// The properties of a link with these capabilities.
    pub(super) fn new(caps: &NicCaps) -> Self {
        let mut flags = Self::empty();
        flags.set(Self::GET, caps.get);
        flags.set(Self::PUT, caps.put);
        flags.set(Self::ORDERED, caps.ordered);
        flags.set(Self::PUSH_FOLLOWS, caps.push_follows && caps.ordered);
        flags.set(Self::SURVIVES, caps.survives);
        flags.set(Self::REGISTERED, caps.registered);
        flags.set(Self::CONFIRMS, caps.confirms && caps.ordered);
        flags.set(Self::PUSHES, caps.pushes && caps.push_follows && caps.ordered);
        flags
    }
}

impl PathCaps {
    /// Those of a peer without a link.
    pub(super) const NONE: Self = Self { eager_bytes: 0, rma_bytes: 0, mailbox_bytes: 0, slow_sends: SLOW_SENDS };

    #[inline(always)]
    pub(super) fn eager_bytes(&self) -> u32 {
        self.eager_bytes
    }

    #[inline(always)]
    pub(super) fn rma_bytes(&self) -> u32 {
        self.rma_bytes
    }

    #[inline(always)]
    pub(super) fn mailbox_bytes(&self) -> u32 {
        self.mailbox_bytes
    }

    #[inline(always)]
    pub(super) fn slow_sends(&self) -> OpFlags {
        self.slow_sends
    }

    /// `eager` overrides the device's own threshold.
    pub(super) fn new(caps: &NicCaps, eager: Option<usize>) -> Self {
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        let thresholds = caps.thresholds(eager);
        Self {
            eager_bytes: clamp(thresholds.eager_bytes),
            rma_bytes: clamp(thresholds.access_bytes),
            mailbox_bytes: clamp(caps.mailbox_bytes),
            slow_sends: if caps.survives { SLOW_SENDS } else { SLOW_SENDS.union(OpFlags::TRANSMIT) },
        }
    }
}
