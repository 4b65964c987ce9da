//! Datagrams, judged: they arrive once or not at all, and who sends them waits for nobody.
//!
//! What arrives is checked as any message is, but for the order. Beside that, a send ends well whatever
//! becomes of the message, and what does not arrive was either dropped by its sender, who counts that, or
//! lost with a link.

use weft_engine::api::Fault;

use super::{Oracle, Record};

impl Oracle {
    /// Messages are datagrams.
    pub(crate) fn expect_datagrams(&mut self) {
        self.datagrams = true;
    }

    /// Whether messages are datagrams.
    pub(crate) const fn datagrams(&self) -> bool {
        self.datagrams
    }

    /// A datagram's send has failed: there is nothing that it could fail of.
    pub(super) fn datagram_failed(fault: Fault) -> String {
        format!("a datagram's send failed: {fault}")
    }

    /// Everything that will ever come has come to living ranks; this one says how many messages it has
    /// dropped. Returns how many did not arrive, and what is wrong with that.
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
            "rank {rank} dropped {dropped} messages, and {lost} have not arrived; {unsure} more may have gone with links"
        );
        (lost, (!accounted).then_some(wrong))
    }
}
