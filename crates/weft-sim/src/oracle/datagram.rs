//! The verdict on datagrams: each arrives once or not at all, and its sender waits for no receiver.
//!
//! Arriving datagrams are checked as any message is, except for their order. In addition, a send succeeds
//! whatever happens to the message. A datagram that does not arrive was dropped by its sender, which counts
//! it, or lost with a link.

use weft_engine::api::Fault;

use super::{Oracle, Record};

impl Oracle {
    /// Declares that messages are datagrams.
    pub(crate) fn expect_datagrams(&mut self) {
        self.datagrams = true;
    }

    /// Whether messages are datagrams.
    pub(crate) const fn datagrams(&self) -> bool {
        self.datagrams
    }

    /// The failure of a datagram's send, which has no permitted cause.
    pub(super) fn datagram_failed(fault: Fault) -> String {
        format!("a datagram's send failed: {fault}")
    }

    /// Called when all messages to live ranks have arrived, with the number that `rank` dropped. Returns the
    /// number that did not arrive, and the failure if the two disagree.
    pub(crate) fn judge_losses(&self, rank: usize, dropped: u64) -> (u64, Option<String>) {
        let (mut lost, mut unsure) = (0, 0);
        for (op, record) in self.ops.iter().enumerate() {
            let Record::Send(send) = record else { continue };
            if send.rank != rank {
                continue;
            }
            if self.may_be_lost(op, rank, send.dest) {
                unsure += 1;
            } else if send.received_by.is_none() {
                lost += 1;
            }
        }
        let accounted = (lost..=lost + unsure).contains(&dropped);
        let wrong = format!(
            "rank {rank} dropped {dropped} messages, {lost} did not arrive, and {unsure} may have been lost with links"
        );
        (lost, (!accounted).then_some(wrong))
    }
}
