//! Processes whose endpoints share their receives: messages to any of them are one receiver's.
//!
//! A receive is taken by a message to any endpoint of its process, and is reported there. Order is that of
//! each sender to each endpoint: of messages that wait at several endpoints, a receive may take from any. So
//! what explains a matching is what happened at one endpoint (file `matching`).

use weft_engine::api::OpFlags;

use super::{Op, Oracle, Record, RecvState, messages};
use crate::memory::Buffer;

/// An endpoint has reported something of a shared multi-receive.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    op: Op,
    flags: OpFlags,
}

impl Oracle {
    /// Ranks are endpoints of processes: by rank, the first of its own.
    pub(crate) fn share_receives(&mut self, processes: Vec<usize>) {
        self.processes = processes;
    }

    /// Whether endpoints share receives.
    pub(super) fn shares(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(super) fn report_shared(&mut self, rank: usize, op: Op, flags: OpFlags) {
        self.unread.entry(rank).or_default().push_back(Unread { op, flags });
    }

    /// Ranks that have reported what their clients have not seen.
    pub(crate) fn unread(&self) -> Vec<usize> {
        self.unread.iter().filter(|(_, unread)| !unread.is_empty()).map(|(rank, _)| *rank).collect()
    }

    /// The flags of what a rank's client will see next.
    pub(crate) fn next_unread(&self, rank: usize) -> Option<OpFlags> {
        Some(self.unread.get(&rank)?.front()?.flags)
    }

    /// Nobody will see what a rank has reported.
    pub(crate) fn forget_unread(&mut self, rank: usize) {
        self.unread.remove(&rank);
    }

    /// A rank's client sees that. With MULTI the buffer is its own again: all that was reported of it must
    /// have been seen.
    pub(crate) fn seen(&mut self, rank: usize, flags: OpFlags) -> Option<Buffer> {
        let op = self.unread.get_mut(&rank)?.pop_front()?.op;
        if !flags.contains(OpFlags::MULTI) {
            return None;
        }
        if let Some((other, _)) = self.unread.iter().find(|(_, unread)| unread.iter().any(|unread| unread.op == op)) {
            self.complain(format!(
                "operation {op}: released, and rank {other} has yet to say what was received into it"
            ));
        }
        let Record::Recv(recv) = &mut self.ops[op] else { return None };
        if recv.state != RecvState::Posted {
            self.complain(format!("operation {op}: released twice"));
            return None;
        }
        recv.state = recv.failed.map_or(RecvState::Done, |(fault, at)| RecvState::Ended(fault, at));
        let buffer = recv.buffer;
        if let Err(wrong) = messages::intact(recv) {
            self.complain(format!("operation {op}: {wrong}"));
        }
        Some(buffer)
    }

    /// Who receives for a rank: itself, or the first of its process.
    pub(super) fn receiver(&self, rank: usize) -> usize {
        self.processes.get(rank).copied().unwrap_or(rank)
    }

    /// Whether any rank lives for which this one receives.
    pub(super) fn receives(&self, receiver: usize, is_alive: &impl Fn(usize) -> bool) -> bool {
        let shared = || (0..self.processes.len()).any(|rank| self.processes[rank] == receiver && is_alive(rank));
        if self.processes.is_empty() { is_alive(receiver) } else { shared() }
    }

    /// Whether a completion of this operation of `owner` may be reported at `rank`.
    pub(super) fn may_report(&self, rank: usize, owner: usize, record: &Record) -> bool {
        let receives = matches!(record, Record::Recv(_) | Record::Peek(_));
        owner == rank || (receives && self.receiver(owner) == self.receiver(rank))
    }

    /// Whether somebody waits for the end of an operation.
    pub(super) fn is_awaited(&self, record: &Record, is_alive: &impl Fn(usize) -> bool) -> bool {
        match record {
            Record::Recv(recv) => self.receives(self.receiver(recv.rank), is_alive),
            Record::Peek(peek) => self.receives(self.receiver(peek.rank), is_alive),
            _ => record.rank().is_some_and(is_alive) && !record.is_quiet(),
        }
    }
}
