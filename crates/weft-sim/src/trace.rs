//! The trace: the events of a run, as a running hash and as the last few records.
//!
//! Place in the data flow: the fabric and the cluster record into it; tests compare hashes. Invariant: no
//! record depends on the address space or the machine, so the same seed gives the same hash everywhere.
//! Messages are recorded by length, as an engine may put addresses into them. The bytes of pushes, gets and
//! puts belong to the client and are recorded whole.

use std::collections::VecDeque;
use std::fmt::Write as _;

/// Number of last records kept for a failure report.
const TAIL_RECORDS: usize = 40;

/// The kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum TraceEvent {
    /// `connect` was called.
    Connect = 1,
    /// A link came up.
    Up,
    /// A link ended.
    Down,
    /// `send` accepted a message.
    Send,
    /// A message was delivered.
    Message,
    /// `push` was accepted.
    Push,
    /// `get` was accepted.
    Get,
    /// `put` was accepted.
    Put,
    /// Help with a peer's transfer was accepted.
    Assist,
    /// A piece of a push was delivered.
    Segment,
    /// A transfer was reported finished.
    Done,
    /// `close` was called.
    Close,
    /// An endpoint died or exited.
    Exit,
    /// A client's operation was accepted.
    Post,
    /// A client's operation completed.
    Complete,
    /// Memory was registered.
    Register,
    /// A registration ended.
    Deregister,
    /// An act of a program was performed or tried.
    Act,
    /// Reserved for tests.
    Note,
    /// A copy, DMA or registration by a card or its processor.
    Move,
}

#[derive(Clone, Copy, Debug)]
struct Record {
    time_ns: u64,
    event: TraceEvent,
    ep: usize,
    a: u64,
    b: u64,
}

/// A fast, non-cryptographic hash of words: two lanes, each of which folds the product of its state with the
/// word.
#[derive(Debug)]
struct Hasher([u64; 2]);

impl Default for Hasher {
    fn default() -> Self {
        Self([0x243F_6A88_85A3_08D3, 0x1319_8A2E_0370_7344])
    }
}

impl Hasher {
    fn word(&mut self, word: u64) {
        let fold = |lane: u64, odd: u64| {
            // Both halves of the product are folded; the lane changes even where the product is 0.
            let low = (lane ^ word).wrapping_mul(odd);
            let high = ((u128::from(lane ^ word) * u128::from(odd)) >> 64) as u64;
            (low ^ high).wrapping_add(odd)
        };
        self.0 = [fold(self.0[0], 0x9E37_79B9_7F4A_7C15), fold(self.0[1].rotate_left(32), 0xD6E8_FEB8_6659_FD93)];
    }

    fn bytes(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        self.word(u64::from_le_bytes(last));
    }
}

/// The trace of one run.
#[derive(Debug, Default)]
pub(crate) struct Trace {
    hasher: Hasher,
    tail: VecDeque<Record>,
}

impl Trace {
    /// Records that `event` happened to endpoint `ep`, with two numbers and bytes that describe it.
    pub(crate) fn record(&mut self, time_ns: u64, event: TraceEvent, ep: usize, a: u64, b: u64, bytes: &[u8]) {
        let length = (bytes.len() as u64) << 8 | event as u64;
        [time_ns, length, ep as u64, a, b].into_iter().for_each(|word| self.hasher.word(word));
        if !bytes.is_empty() {
            self.hasher.bytes(bytes);
        }
        if self.tail.len() == TAIL_RECORDS {
            self.tail.pop_front();
        }
        self.tail.push_back(Record { time_ns, event, ep, a, b });
    }

    /// The hash of everything recorded so far.
    pub(crate) fn hash(&self) -> u128 {
        let [a, b] = self.hasher.0;
        u128::from(a) << 64 | u128::from(b)
    }

    /// The last records, one per line.
    pub(crate) fn tail(&self) -> String {
        let mut text = String::new();
        for Record { time_ns, event, ep, a, b } in &self.tail {
            let _ = writeln!(text, "{time_ns:>12} ns  endpoint {ep}  {event:?} {a:#x} {b:#x}");
        }
        text
    }
}
