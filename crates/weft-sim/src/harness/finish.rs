//! The end of a run: with all faults off everything must converge; then the run is judged.

use weft_engine::api::{Error, OpFlags};

use super::{ALL_TAGS, Harness, Recv, Send};
use crate::oracle::{Record, describe};

impl Harness {
    /// Ends the run: switches faults off, receives everything, cancels remaining receives, and judges the
    /// result. Returns all failures.
    pub fn finish(&mut self) -> Vec<String> {
        self.cluster.fabric().heal();
        let mut wrong = Vec::new();
        wrong.extend(self.drive().err());
        self.oracle.refusals_end();
        if self.queues.iter().any(Option::is_some) {
            wrong.extend(self.finish_programs().err());
        }
        wrong.extend(self.receive_everything(&ALL_TAGS).err());
        wrong.extend(self.connection_failures());
        let datagrams = self.oracle.datagrams();
        wrong.extend(if datagrams { self.converse_by_datagrams() } else { self.converse() }.err());
        for rank in self.cluster.live_ranks() {
            for op in self.oracle.posted(rank) {
                self.cancel(op);
            }
        }
        wrong.extend(self.drive().err());
        wrong.extend(self.leaks());
        if datagrams {
            wrong.extend(self.losses());
        }
        wrong.extend(self.judge());
        wrong
    }

    /// Judges the run in its present state, without a search for leaks.
    pub fn judge(&mut self) -> Vec<String> {
        let cluster = &self.cluster;
        let mut wrong = self.oracle.verdict(|rank| cluster.is_alive(rank));
        wrong.extend(cluster.fabric().violations());
        wrong
    }

    /// With all faults off, each rank must be able to reach others: in a large cluster its neighbours.
    fn converse(&mut self) -> Result<(), String> {
        let mut sent = Vec::new();
        for (rank, other) in self.reachable_pairs() {
            let send = Send { tag: Some(0xFEED), len: 16, flags: OpFlags::DELIVERY, ..Send::default() };
            let mut posted = self.send(rank, other, &send);
            if posted == Err(Error::Again) {
                // The queue may have room for one operation only.
                self.drive()?;
                self.receive_everything(&ALL_TAGS)?;
                posted = self.send(rank, other, &send);
            }
            sent.push(posted.map_err(|error| format!("rank {rank} cannot send to {other} after all: {error}"))?);
        }
        self.drive()?;
        self.receive_everything(&ALL_TAGS)?;
        match sent.iter().find(|op| !matches!(self.oracle.record(**op), Record::Send(send) if send.end == Some(Ok(()))))
        {
            Some(op) => Err(format!("failed without a fault: {}", describe(self.oracle.record(*op)))),
            None => Ok(()),
        }
    }

    /// Posts receives for untagged messages (`None`) and for tags with ignored bits, until all matching
    /// messages that can arrive have arrived.
    pub(super) fn receive_everything(&mut self, tags: &[Option<(u64, u64)>]) -> Result<(), String> {
        let mut before = usize::MAX;
        for rank in self.cluster.live_ranks() {
            for op in self.oracle.reserved(rank) {
                let len = self.oracle.longest_undelivered(rank);
                self.claim(op, Some(len)).map_err(|error| format!("operation {op}: a claim was refused: {error}"))?;
            }
        }
        loop {
            let mut missing = 0;
            for rank in self.cluster.live_ranks() {
                missing += tags.iter().map(|tag| self.receive_all(rank, *tag)).sum::<usize>();
            }
            // Where links broke, some messages never arrive.
            if missing == 0 || missing == before {
                return Ok(());
            }
            before = missing;
            self.drive()?;
        }
    }

    /// Posts a receive for each missing message; returns their number.
    fn receive_all(&mut self, rank: usize, tag: Option<(u64, u64)>) -> usize {
        let missing = self.oracle.undelivered(rank, tag);
        if missing == 0 {
            return 0;
        }
        let len = self.oracle.longest_undelivered(rank).max(1);
        let mut old = self.own_receives(rank);
        let all = Recv { tag, len, ..Recv::default() };
        for _ in 0..missing {
            while self.recv(rank, &all) == Err(Error::Again) {
                // The queue may be full of receives that match nothing.
                let Some(op) = old.pop() else { return missing };
                self.cancel(op);
            }
        }
        missing
    }

    /// With nothing pending, the sender's remaining credit and the bytes that the receiver has not returned
    /// add up to the whole window.
    fn credits(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        let live_ranks = self.cluster.live_ranks();
        for (a, b) in live_ranks.iter().flat_map(|a| live_ranks.iter().map(move |b| (*a, *b))) {
            if self.cluster.has_connections() && self.cluster.partner(a) != Some(b) {
                continue;
            }
            let (there, back) = (self.cluster.addr(a, b), self.cluster.addr(b, a));
            let sender = self.cluster.engine(a).and_then(|engine| engine.window(there));
            let receiver = self.cluster.engine(b).and_then(|engine| engine.window(back));
            let (Some((credit, _)), Some((_, used))) = (sender, receiver) else { continue };
            let window = self.cluster.engine_config().window_bytes as u64;
            if credit + used != window {
                out.push(format!("window of {window} bytes from {a} to {b}: {credit} left, {used} not given back"));
            }
        }
        out
    }

    /// Reports resources that are still held although nothing is pending.
    pub(crate) fn leaks(&mut self) -> Vec<String> {
        let mut out = Vec::new();
        for rank in self.cluster.live_ranks() {
            let Some(engine) = self.cluster.engine(rank) else { continue };
            let (posted, unexpected, rest) = (engine.posted_receives(), engine.unexpected_messages(), engine.at_rest());
            if posted > 0 || unexpected > 0 || !rest {
                out.push(format!(
                    "rank {rank} at the end: {posted} receives, {unexpected} unexpected messages, at rest: {rest}"
                ));
            }
        }
        out.extend(self.credits());
        out.extend(self.pool_leaks());
        for (index, window) in self.windows.iter().enumerate().filter(|(_, window)| !window.atomic) {
            if let Some(at) = self.oracle.stray_write(index, window.memory) {
                out.push(format!("region {index} of rank {}: byte {at} was written by no operation", window.rank));
            }
        }
        let transfers = self.cluster.fabric().transfers();
        if transfers > 0 {
            out.push(format!("{transfers} device transfers never ended"));
        }
        out
    }
}
