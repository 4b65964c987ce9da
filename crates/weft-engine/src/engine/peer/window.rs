//! The two windows with a peer: the eager bytes that either side may send.
//!
//! Place in the data flow: sends use the window that the peer has granted, and arrivals use the window that this side
//! has granted. Matched messages return their part of it ([`crate::engine::recv`]). A part may be withheld from a
//! stranger ([`crate::engine::strangers`]). It counts as used, so the code for messages does not distinguish strangers.
//!
//! Unit: bytes.

use super::Peer;
use crate::broken::less;
use crate::engine::state::Violation;

impl Peer {
    /// Eager bytes that may still be sent to the peer.
    #[inline(always)]
    pub(crate) fn tx_credit(&self) -> u64 {
        self.tx_credit
    }

    /// Notes that an eager message leaves.
    #[inline(always)]
    pub(crate) fn use_credit(&mut self, cost: u64) {
        self.tx_credit -= cost;
    }

    /// Notes that the peer has returned a part of its window.
    pub(crate) fn add_credit(&mut self, bytes: u64) -> Result<(), Violation> {
        self.tx_credit = self.tx_credit.checked_add(bytes).ok_or(Violation)?;
        Ok(())
    }

    /// Bytes that the peer has used and that were not returned, and bytes that are withheld from it.
    #[inline(always)]
    pub(crate) fn rx_used(&self) -> u64 {
        self.rx_used
    }

    /// Notes that an eager message has arrived.
    #[inline(always)]
    pub(crate) fn use_window(&mut self, cost: u64) {
        self.rx_used += cost;
    }

    /// Notes that a part of this side's window is free again.
    pub(crate) fn free_window(&mut self, bytes: u64) {
        self.rx_used = less!(self.rx_used, bytes, "a part of the window is used before it is freed");
    }

    /// Bytes that must be returned, plus a quarter of the withheld bytes.
    #[inline(always)]
    pub(crate) fn credit_owed(&self) -> u64 {
        self.credit_owed
    }

    /// Notes that the payload of an eager message was taken, so that its part must be returned.
    #[inline(always)]
    pub(crate) fn owe_credit(&mut self, cost: u64) {
        self.credit_owed += cost;
    }

    /// Keeps a part of the bytes to return, and uses it for messages that this side requests.
    pub(crate) fn reuse_credit(&mut self, cost: u64) {
        self.credit_owed -= cost;
    }

    /// Takes the bytes that must be returned, for a peer from which none are withheld.
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
