//! Processes whose endpoints share their receives: messages to any of them are one receiver's.
//!
//! A receive is taken by a message to any endpoint of its process, and is reported there. Order is that of each sender to each endpoint:
//! of messages that wait at several endpoints, a receive may take from any. So what explains a matching is
//! what happened at one endpoint (file `matching`).

use super::{Oracle, Record};

impl Oracle {
    /// Ranks are endpoints of processes: by rank, the first of its own.
    pub(crate) fn share_receives(&mut self, processes: Vec<usize>) {
        self.processes = processes;
    }

    /// Who receives for a rank: itself, or the first of its process.
    pub(super) fn receiver(&self, rank: usize) -> usize {
        self.processes.get(rank).copied().unwrap_or(rank)
    }

    /// Whether any rank lives for which this one receives.
    pub(super) fn receives(&self, receiver: usize, lives: &impl Fn(usize) -> bool) -> bool {
        let shared = || (0..self.processes.len()).any(|rank| self.processes[rank] == receiver && lives(rank));
        if self.processes.is_empty() { lives(receiver) } else { shared() }
    }

    /// Whether a completion of this operation of `owner` may be reported at `rank`.
    pub(super) fn may_report(&self, rank: usize, owner: usize, record: &Record) -> bool {
        let receives = matches!(record, Record::Recv(_) | Record::Peek(_));
        owner == rank || (receives && self.receiver(owner) == self.receiver(rank))
    }

    /// Whether somebody waits for the end of an operation.
    pub(super) fn is_awaited(&self, record: &Record, lives: &impl Fn(usize) -> bool) -> bool {
        match record {
            Record::Recv(recv) => self.receives(self.receiver(recv.rank), lives),
            Record::Peek(peek) => self.receives(self.receiver(peek.rank), lives),
            _ => record.rank().is_some_and(lives) && !record.is_quiet(),
        }
    }
}
