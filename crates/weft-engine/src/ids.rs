//! Numbers of the engine's peers, operations, transfers and windows: one type for each table.
//!
//! Place in the data flow: messages and links carry these numbers in place of references. A type indexes its own
//! table only.

use std::num::NonZeroU32;

use crate::api::Addr;
use crate::table::Id;

/// The number of the table entry at `place`.
///
/// # Panics
///
/// If the table has 2³² - 1 entries or more, which memory does not allow.
#[inline]
#[expect(clippy::cast_possible_truncation, reason = "asserted")]
pub(crate) const fn number(place: usize) -> u32 {
    assert!(place < u32::MAX as usize, "a table has fewer than 2^32 - 1 entries");
    place as u32
}

/// Number of a peer. The number of a forgotten peer is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct PeerId(NonZeroU32);

impl PeerId {
    /// The peer at a place of the table, from 0 on.
    #[inline]
    pub(crate) const fn new(place: usize) -> Self {
        // The number is stored plus one, so that an `Option` takes four bytes. The sum never is 0.
        Self(NonZeroU32::MIN.saturating_add(number(place)))
    }

    /// The peer's place in the table.
    #[inline(always)]
    pub(crate) const fn place(self) -> usize {
        self.0.get() as usize - 1
    }

    /// The peer as the source of a message of a collective ([`crate::matching::Space::Group`]).
    pub(crate) const fn as_source(self) -> Addr {
        self.number() as Addr
    }

    /// The peer that is the source of a message of a collective.
    pub(crate) fn of_source(src: Addr) -> Self {
        Self::new(usize::try_from(src).expect("a peer's number fits"))
    }

    /// The number by which clients name the peer: [`crate::PeerNames::name`].
    pub(crate) const fn number(self) -> u32 {
        self.0.get() - 1
    }
}

/// Number of an operation of this engine. Peers name it in their answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OpId(u32);

impl OpId {
    #[inline(always)]
    pub(crate) const fn new(key: u32) -> Self {
        Self(key)
    }

    /// The operation's key in its table, and its number in messages.
    #[inline(always)]
    pub(crate) const fn get(self) -> u32 {
        self.0
    }
}

/// Number of a collective under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunId(u32);

impl Id for RunId {
    fn at(place: usize) -> Self {
        Self(number(place))
    }

    fn place(self) -> usize {
        self.0 as usize
    }
}

/// Number of a transfer of bulk data. The generation distinguishes it from earlier transfers with the same slot, so
/// that a late or forged number finds no transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TransferId {
    slot: u32,
    /// From 1 to 2³¹ - 1.
    generation: NonZeroU32,
}

impl TransferId {
    #[inline]
    pub(crate) const fn new(slot: u32, generation: NonZeroU32) -> Self {
        Self { slot, generation }
    }

    #[inline]
    pub(crate) const fn slot(self) -> u32 {
        self.slot
    }

    #[inline]
    pub(crate) const fn generation(self) -> NonZeroU32 {
        self.generation
    }

    /// The number as devices and peers see it. It exceeds 32 bits, and bit 63 is never set.
    #[inline]
    pub(crate) fn to_wire(self) -> u64 {
        u64::from(self.generation.get()) << 32 | u64::from(self.slot)
    }

    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "both halves")]
    pub(crate) const fn from_wire(number: u64) -> Option<Self> {
        match NonZeroU32::new((number >> 32) as u32) {
            Some(generation) => Some(Self { slot: number as u32, generation }),
            None => None,
        }
    }
}

/// A window into which bulk data is pushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowId {
    /// The receiver's window, which has the number of its transfer.
    Transfer(TransferId),
    /// A window that the pusher has announced, by the number of the announcement in the link's stream of messages.
    Announced(u32),
}

impl WindowId {
    /// Bit that marks announced windows in messages.
    const ANNOUNCED: u64 = 1 << 63;

    #[inline]
    pub(crate) fn to_wire(self) -> u64 {
        match self {
            Self::Transfer(id) => id.to_wire(),
            Self::Announced(seq) => Self::ANNOUNCED | u64::from(seq),
        }
    }

    #[inline]
    pub(crate) fn from_wire(number: u64) -> Option<Self> {
        if number & Self::ANNOUNCED != 0 {
            u32::try_from(number & !Self::ANNOUNCED).ok().map(Self::Announced)
        } else {
            TransferId::from_wire(number).map(Self::Transfer)
        }
    }
}

/// The meaning of the number that a device returns with the end of bulk work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DeviceContext {
    /// A get or put of a transfer, or the push that serves it.
    Transfer(TransferId),
    /// A push for an operation of this engine.
    Push(OpId),
    /// Help with the peer's transfer for an operation of this engine.
    Assist(OpId),
}

impl DeviceContext {
    /// Bit that marks pushes and help. Transfers have smaller numbers.
    const OWN: u64 = 1 << 63;
    /// Bit that marks help, together with [`Self::OWN`].
    const ASSIST: u64 = 1 << 62;

    #[inline]
    pub(crate) fn to_number(self) -> u64 {
        match self {
            Self::Transfer(id) => id.to_wire(),
            Self::Push(op) => Self::OWN | u64::from(op.get()),
            Self::Assist(op) => Self::OWN | Self::ASSIST | u64::from(op.get()),
        }
    }

    /// `None`: no number of [`Self::to_number`].
    #[inline]
    #[expect(clippy::cast_possible_truncation, reason = "the lower half")]
    pub(crate) const fn from_number(number: u64) -> Option<Self> {
        if number & Self::OWN == 0 {
            return match TransferId::from_wire(number) {
                Some(id) => Some(Self::Transfer(id)),
                None => None,
            };
        }
        let op = OpId::new(number as u32);
        Some(if number & Self::ASSIST == 0 { Self::Push(op) } else { Self::Assist(op) })
    }
}

/// Whether message `a` precedes message `b` of a stream, whose numbers wrap around.
#[inline(always)]
pub(crate) fn is_before(a: u32, b: u32) -> bool {
    a.wrapping_sub(b).cast_signed() < 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_meaning() {
        let id = TransferId { slot: 7, generation: NonZeroU32::MIN };
        let contexts =
            [DeviceContext::Transfer(id), DeviceContext::Push(OpId::new(7)), DeviceContext::Assist(OpId::new(7))];
        for context in contexts {
            assert_eq!(DeviceContext::from_number(context.to_number()), Some(context));
        }
        for window in [WindowId::Transfer(id), WindowId::Announced(7)] {
            assert_eq!(WindowId::from_wire(window.to_wire()), Some(window));
        }
        assert_eq!(WindowId::from_wire(7), None, "no transfer has so small a number");
        assert_eq!(WindowId::from_wire(1 << 63 | 1 << 32), None, "no message has so large a number");
    }
}
