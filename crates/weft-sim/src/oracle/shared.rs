//! Processes whose endpoints share their receives: one receiver gets the messages to all of them.
//!
//! A message to any endpoint of the process may take a receive, and that endpoint reports it. Order holds for
//! each sender to each endpoint: a receive may take from any endpoint at which messages wait. Only events at
//! one endpoint therefore explain a matching (file `matching`).

use weft_engine::api::CompletionFlags;

use super::{Op, Oracle, Record, RecvState, messages};
use crate::memory::Buffer;

/// A completion of a shared multi-receive that an endpoint has reported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unread {
    op: Op,
    flags: CompletionFlags,
}

impl Oracle {
    /// Groups ranks into processes (by rank, the process's first rank).
    pub(crate) fn share_receives(&mut self, processes: Vec<usize>) {
        self.processes = processes;
    }

    /// Whether endpoints share receives.
    pub(super) fn shares(&self) -> bool {
        !self.processes.is_empty()
    }

    pub(super) fn report_shared(&mut self, rank: usize, op: Op, flags: CompletionFlags) {
        self.unread.entry(rank).or_default().push_back(Unread { op, flags });
    }

    /// Ranks with reported completions that their clients have not read.
    pub(crate) fn unread(&self) -> Vec<usize> {
        self.unread.iter().filter(|(_, unread)| !unread.is_empty()).map(|(rank, _)| *rank).collect()
    }

    /// The flags of the completion that a rank's client will read next.
    pub(crate) fn next_unread(&self, rank: usize) -> Option<CompletionFlags> {
        Some(self.unread.get(&rank)?.front()?.flags)
    }

    /// Drops the unread completions of a rank.
    pub(crate) fn forget_unread(&mut self, rank: usize) {
        self.unread.remove(&rank);
    }

    /// A rank's client reads the next completion. With RELEASED it gets the buffer back, so all completions of
    /// that buffer must have been read.
    pub(crate) fn seen(&mut self, rank: usize, flags: CompletionFlags) -> Option<Buffer> {
        let op = self.unread.get_mut(&rank)?.pop_front()?.op;
        if !flags.contains(CompletionFlags::RELEASED) {
            return None;
        }
        if let Some((other, _)) = self.unread.iter().find(|(_, unread)| unread.iter().any(|unread| unread.op == op)) {
            self.complain(format!("operation {op}: released while rank {other} has unread completions of it"));
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

    /// The rank that receives for `rank`: itself, or the first of its process.
    pub(super) fn receiver(&self, rank: usize) -> usize {
        self.processes.get(rank).copied().unwrap_or(rank)
    }

    /// Whether any rank is alive that `receiver` receives for.
    pub(super) fn receives(&self, receiver: usize, is_alive: &impl Fn(usize) -> bool) -> bool {
        let shared = || (0..self.processes.len()).any(|rank| self.processes[rank] == receiver && is_alive(rank));
        if self.processes.is_empty() { is_alive(receiver) } else { shared() }
    }

    /// Whether `rank` may report a completion of this operation of `owner`.
    pub(super) fn may_report(&self, rank: usize, owner: usize, record: &Record) -> bool {
        let receives = matches!(record, Record::Recv(_) | Record::Peek(_));
        owner == rank || (receives && self.receiver(owner) == self.receiver(rank))
    }

    /// Whether a live rank waits for the end of an operation.
    pub(super) fn is_awaited(&self, record: &Record, is_alive: &impl Fn(usize) -> bool) -> bool {
        match record {
            Record::Recv(recv) => self.receives(self.receiver(recv.rank), is_alive),
            Record::Peek(peek) => self.receives(self.receiver(peek.rank), is_alive),
            _ => record.rank().is_some_and(is_alive) && !record.is_quiet(),
        }
    }
}
