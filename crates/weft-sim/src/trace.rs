//! The trace: what happened, as a running hash and as the last few lines.
//!
//! Place in the data flow: the fabric and the cluster record into it; tests compare hashes.
//! Invariant: nothing that depends on the address space or the machine is recorded, so that the same seed
//! gives the same hash everywhere. Messages are recorded by length, as an engine may put addresses into them;
//! the bytes of pushes, gets and puts, which are the client's own, are recorded whole.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// How many of the last records are kept for a failure's report.
const TAIL_RECORDS: usize = 40;

/// What is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum What {
    /// `connect` was called.
    Connect = 1,
    /// A link came up.
    Up,
    /// A link ended.
    Down,
    /// `send` accepted a message.
    Send,
    /// A message was handed over.
    Message,
    /// `push` was accepted.
    Push,
    /// `get` was accepted.
    Get,
    /// `put` was accepted.
    Put,
    /// `assist` was accepted.
    Assist,
    /// A piece of a push was handed over.
    Segment,
    /// A transfer was reported finished.
    Done,
    /// `close` was called.
    Close,
    /// An endpoint died or left.
    Exit,
    /// A client's operation was accepted.
    Post,
    /// A client's operation completed.
    Complete,
    /// Memory was registered.
    Register,
    /// A registration ended.
    Deregister,
    /// Free for tests.
    Note,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    time_ns: u64,
    what: What,
    who: usize,
    a: u64,
    b: u64,
}

/// The trace of one run.
#[derive(Debug)]
pub(crate) struct Trace {
    hasher: blake3::Hasher,
    tail: VecDeque<Record>,
}

impl Default for Trace {
    fn default() -> Self {
        Self { hasher: blake3::Hasher::new(), tail: VecDeque::with_capacity(TAIL_RECORDS) }
    }
}

impl Trace {
    /// Records that `what` happened to `who` (an endpoint), with two numbers and bytes that describe it.
    pub(crate) fn record(&mut self, time_ns: u64, what: What, who: usize, a: u64, b: u64, bytes: &[u8]) {
        let mut line = [0_u8; 33];
        line[0..8].copy_from_slice(&time_ns.to_le_bytes());
        line[8] = what as u8;
        line[9..17].copy_from_slice(&(who as u64).to_le_bytes());
        line[17..25].copy_from_slice(&a.to_le_bytes());
        line[25..33].copy_from_slice(&b.to_le_bytes());
        self.hasher.update(&line);
        self.hasher.update(bytes);
        if self.tail.len() == TAIL_RECORDS {
            self.tail.pop_front();
        }
        self.tail.push_back(Record { time_ns, what, who, a, b });
    }

    /// The hash of everything recorded so far.
    pub(crate) fn hash(&self) -> [u8; 32] {
        *self.hasher.finalize().as_bytes()
    }

    /// The last records, one a line.
    pub(crate) fn tail(&self) -> String {
        let mut text = String::new();
        for Record { time_ns, what, who, a, b } in &self.tail {
            let _ = writeln!(text, "{time_ns:>12} ns  endpoint {who}  {what:?} {a:#x} {b:#x}");
        }
        text
    }
}
