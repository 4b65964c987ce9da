//! The windows between us and a peer: the eager bytes that either side may send.
//!
//! Place in the data flow: sends use the peer's window, arrivals use ours, and matched messages return it
//! ([`crate::engine::recv`]). A part of the window may be withheld from a stranger ([`crate::engine::strangers`]): it
//! counts as used, so that the paths of messages need not know of it. Unit: bytes.

use super::Peer;
use crate::engine::state::Violation;

impl Peer {
    /// Eager bytes that may still be sent to the peer.
    #[inline(always)]
    pub(crate) fn tx_credit(&self) -> u64 {
        self.tx_credit
    }

    /// An eager message leaves.
    #[inline(always)]
    pub(crate) fn use_credit(&mut self, cost: u64) {
        self.tx_credit -= cost;
    }

    /// The peer has returned a part of the window.
    pub(crate) fn add_credit(&mut self, bytes: u64) -> Result<(), Violation> {
        self.tx_credit = self.tx_credit.checked_add(bytes).ok_or(Violation)?;
        Ok(())
    }

    /// Bytes that the peer has used and that were not returned, and bytes that are withheld from it.
    #[inline(always)]
    pub(crate) fn rx_used(&self) -> u64 {
        self.rx_used
    }

    /// An eager message has arrived.
    #[inline(always)]
    pub(crate) fn use_window(&mut self, cost: u64) {
        self.rx_used += cost;
    }

    /// A part of the window is free again.
    pub(crate) fn free_window(&mut self, bytes: u64) {
        self.rx_used = self.rx_used.saturating_sub(bytes);
    }

    /// Bytes to return, plus a quarter of the withheld bytes.
    #[inline(always)]
    pub(crate) fn credit_owed(&self) -> u64 {
        self.credit_owed
    }

    /// The payload of an eager message was taken.
    #[inline(always)]
    pub(crate) fn owe_credit(&mut self, cost: u64) {
        self.credit_owed += cost;
    }

    /// A part of the window that was about to be returned is used by this side.
    pub(crate) fn reuse_credit(&mut self, cost: u64) {
        self.credit_owed -= cost;
    }

    /// Takes all bytes to return, from a peer from which none are withheld.
    pub(crate) fn take_credit(&mut self) -> u64 {
        let owed = std::mem::take(&mut self.credit_owed);
        self.free_window(owed);
        owed
    }

    /// Bytes of the usual window that the peer is not granted.
    pub(crate) fn withheld(&self) -> u64 {
        self.extra.as_ref().map_or(0, |extra| extra.withheld)
    }

    /// Bytes of the peer's window that must be returned.
    pub(crate) fn owed(&self) -> u64 {
        self.credit_owed.saturating_sub(self.withheld() / 4)
    }

    /// The cost of the peer's messages that wait for receives.
    pub(crate) fn unreceived(&self) -> u64 {
        self.rx_used.saturating_sub(self.withheld() + self.owed())
    }

    /// Sets the bytes that are not granted, and those that must be returned.
    pub(crate) fn withhold(&mut self, withheld: u64, owed: u64) {
        if withheld != self.withheld() {
            self.extra().withheld = withheld;
        }
        self.credit_owed = owed + withheld / 4;
    }
}
