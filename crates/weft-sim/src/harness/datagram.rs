//! The end of a run with datagrams: the messages that must arrive, and those that may be missing.

use crate::harness::{ALL_TAGS, Harness, Send};
use crate::oracle::{ID_BYTES, Record, describe};

/// Bytes of a datagram that must arrive, and its share of the receiver's window.
const LEN: usize = ID_BYTES;
const COST: u64 = LEN as u64 + 64;

impl Harness {
    /// Declares that messages are datagrams.
    pub(crate) fn expect_datagrams(&mut self) {
        self.oracle.expect_datagrams();
    }

    /// With all faults off and enough room, each rank's datagram must reach its neighbours.
    pub(super) fn converse_by_datagrams(&mut self) -> Result<(), String> {
        let live_ranks = self.cluster.live_ranks();
        let window = self.cluster.engine_config().window_bytes as u64;
        let mut sent = Vec::new();
        for (n, rank) in live_ranks.iter().enumerate() {
            for distance in 1..live_ranks.len().min(4) {
                let other = live_ranks[(n + distance) % live_ranks.len()];
                let addr = self.cluster.addr(*rank, other);
                let left = self.cluster.engine(*rank).and_then(|engine| engine.window(addr));
                let sure = left.map_or(window, |(left, _)| left) >= COST;
                let send = Send { len: LEN, ..Send::default() };
                let posted = self.send(*rank, other, &send);
                let op = posted.map_err(|error| format!("rank {rank} cannot send to {other} after all: {error}"))?;
                sent.extend(sure.then_some(op));
                // A second datagram might find the queue full.
                self.drive()?;
            }
        }
        self.receive_everything(&ALL_TAGS)?;
        let missing =
            |op: &&usize| matches!(self.oracle.record(**op), Record::Send(send) if send.received_by.is_none());
        let wrong = |op| format!("lost without a fault: {}", describe(self.oracle.record(op)));
        sent.iter().find(missing).map_or(Ok(()), |op| Err(wrong(*op)))
    }

    /// Counts the datagrams between live ranks that did not arrive, and reports those that no sender dropped.
    pub(super) fn losses(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        for rank in self.cluster.live_ranks() {
            let dropped = self.cluster.engine(rank).map_or(0, |engine| engine.dropped());
            let (lost, wrong) = self.oracle.judge_losses(rank, dropped);
            self.lost += lost;
            out.extend(wrong);
        }
        out
    }

    /// Datagrams between live ranks with unbroken links that have not arrived.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
