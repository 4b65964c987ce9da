//! The counts of work that is under way with one peer, each of which has a limit.
//!
//! Place in the data flow: the code that starts work takes its share, and the code that ends it gives the share back.
//!
//! Invariant: no more is given back than was taken. A peer's reset drops its work and the counts together.

use super::Peer;
use crate::broken::less;
use crate::engine::state::Violation;

/// A kind of work that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Quota {
    /// Operations that have left the TX queue and are not complete, counted by parts.
    Ops,
    /// Remote accesses among these operations, counted by parts.
    Accesses,
    /// Sends among these operations that wait for the peer's client (`UNMATCHED_LIMIT`).
    Unmatched,
    /// Bytes of pending results of this side's atomics, with their names.
    Fetching,
    /// Bytes of pending answers to this side's reads that may have to be copied.
    Reading,
    /// The peer's long writes whose bytes have not all arrived.
    Writing,
    /// The peer's messages that wait for a receive and whose payload is at the peer.
    Announced,
}

/// The counts that idle peers, and peers with few messages, do not need.
#[derive(Default)]
pub(super) struct Counts([u32; Quota::Announced as usize + 1]);

impl Peer {
    /// The amount of this kind that is under way.
    #[inline(always)]
    pub(crate) fn taken(&self, quota: Quota) -> u32 {
        match quota {
            Quota::Ops => self.outstanding,
            other => self.extra.as_ref().map_or(0, |extra| extra.counts.0[other as usize]),
        }
    }

    /// Notes that work begins. Returns the whole amount of its kind.
    #[inline(always)]
    pub(crate) fn take(&mut self, quota: Quota, amount: u32) -> u32 {
        let count = self.count(quota);
        *count = count.saturating_add(amount);
        *count
    }

    /// Notes that work has ended.
    #[inline(always)]
    pub(crate) fn give_back(&mut self, quota: Quota, amount: u32) {
        let count = self.count(quota);
        *count = less!(*count, amount, "no more is given back to a quota than was taken");
    }

    /// Notes that the peer has answered. The answers to an operation name its parts: a peer that names one twice may
    /// answer for more than was asked.
    #[inline]
    pub(crate) fn answered(&mut self, quota: Quota, amount: u32) -> Result<(), Violation> {
        let count = self.count(quota);
        *count = count.checked_sub(amount).ok_or(Violation)?;
        Ok(())
    }

    #[inline(always)]
    fn count(&mut self, quota: Quota) -> &mut u32 {
        match quota {
            Quota::Ops => &mut self.outstanding,
            other => &mut self.extra().counts.0[other as usize],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::EpName;

    #[test]
    fn a_peer_cannot_answer_for_more_than_was_asked() {
        let mut peer = Peer::new(EpName::service(([127, 0, 0, 1], 1).into()));
        assert_eq!(peer.take(Quota::Reading, 8), 8);
        assert!(peer.answered(Quota::Reading, 6).is_ok());
        assert!(peer.answered(Quota::Reading, 6).is_err());
        peer.give_back(Quota::Reading, 2);
        assert_eq!(peer.taken(Quota::Reading), 0);
    }
}
