//! The oracle's record of each operation of a run, and the content of messages.

use weft_engine::api::{Context, Fault, OpFlags, RecvFlags};

use super::{AtomicRecord, RmaRecord, atomic, rma};
use crate::memory::Buffer;

/// The content of buffers before anything is received into them.
pub const CANARY: u8 = 0xC3;
/// Messages of at least this length contain their operation's number in their first bytes.
pub const ID_BYTES: usize = 8;

/// An operation's number, also its context pointer.
pub type Op = usize;

/// The payload of operation `op`: its number, then bytes that depend on it and on their position; cut to
/// `len`.
#[must_use]
pub fn payload(op: Op, len: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(len);
    extend_payload(&mut bytes, op, len);
    bytes
}

/// Appends the payload of operation `op`.
pub fn extend_payload(bytes: &mut Vec<u8>, op: Op, len: usize) {
    let start = (op as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let word = |n: u64| {
        let x = start.wrapping_add(n.wrapping_mul(0xD6E8_FEB8_6659_FD93));
        let word = if n == 0 { op as u64 } else { (x ^ x >> 32).wrapping_mul(0xFF51_AFD7_ED55_8CCD) };
        word.to_le_bytes()
    };
    let words = (len / ID_BYTES) as u64;
    bytes.extend((0..words).flat_map(word));
    bytes.extend(&word(words)[..len % ID_BYTES]);
}

/// The context of an operation.
#[must_use]
pub fn context(op: Op) -> Context {
    Context { ptr: op, user: (op as u64).wrapping_mul(0xD6E8_FEB8_6659_FD93) }
}

/// An accepted send.
#[derive(Clone, Debug)]
pub struct SendRecord {
    /// Sender.
    pub rank: usize,
    /// Receiver.
    pub dest: usize,
    /// The tag, if tagged.
    pub tag: Option<u64>,
    /// Immediate data.
    pub data: Option<u64>,
    /// Length in bytes.
    pub len: usize,
    /// Flags as posted.
    pub flags: OpFlags,
    /// The source buffer, freed at completion; `None` for an inject, whose buffer was freed at once.
    pub buffer: Option<Buffer>,
    /// The result.
    pub end: Option<Result<(), Fault>>,
    /// The receive that got its bytes.
    pub received_by: Option<Op>,
}

/// The criteria of a receive or a peek.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// The source; `None` means any.
    pub src: Option<usize>,
    /// Tag and ignored bits, if tagged.
    pub tag: Option<(u64, u64)>,
}

impl Criteria {
    /// Whether a message from `src` with `tag` matches.
    #[must_use]
    pub fn accept(&self, src: usize, tag: Option<u64>) -> bool {
        let tags = match (self.tag, tag) {
            (None, None) => true,
            (Some((want, ignore)), Some(tag)) => want & !ignore == tag & !ignore,
            _ => false,
        };
        tags && self.src.is_none_or(|want| want == src)
    }
}

/// A message as a receive or peek reported it.
#[derive(Clone, Debug)]
pub struct Got {
    /// Sender; `None` if it was not reported.
    pub src: Option<usize>,
    /// The rank that reported it.
    pub dest: usize,
    /// Tag.
    pub tag: Option<u64>,
    /// Immediate data.
    pub data: Option<u64>,
    /// Number of stored bytes (none for a peek).
    pub len: usize,
    /// The first bytes: the whole message where it is too short to hold its operation's number.
    pub head: [u8; ID_BYTES],
    /// Length of the message.
    pub full_len: usize,
    /// Offset in the buffer.
    pub offset: usize,
    /// The send, once identified.
    pub send: Option<Op>,
    /// The time of the report, on the oracle's clock.
    pub at: u64,
}

/// The state of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvState {
    /// Posted.
    Posted,
    /// Complete; a multi-receive is released.
    Done,
    /// Ended without a message: canceled or failed, at this time on the oracle's clock.
    Ended(Fault, u64),
}

/// An accepted receive.
#[derive(Clone, Debug)]
pub struct RecvRecord {
    /// Receiver.
    pub rank: usize,
    /// Its criteria.
    pub want: Criteria,
    /// Flags as posted.
    pub flags: RecvFlags,
    /// The buffer.
    pub buffer: Buffer,
    /// When it was posted; for a claim, when its peek was posted.
    pub order: u64,
    /// The state.
    pub state: RecvState,
    /// The received messages.
    pub got: Vec<Got>,
    /// The message that the claiming peek reported.
    pub claimed: Option<Got>,
    /// For a shared multi-receive: the fault of its last completion, and the time.
    pub failed: Option<(Fault, u64)>,
    /// For a multi-receive: the link of one of its messages broke, so the place of stored bytes is unknown.
    pub cut: bool,
}

/// An accepted peek.
#[derive(Clone, Debug)]
pub struct PeekRecord {
    /// The rank that peeks.
    pub rank: usize,
    /// The criteria.
    pub want: Criteria,
    /// Flags as posted.
    pub flags: RecvFlags,
    /// When it was posted.
    pub order: u64,
    /// The report: `Some(None)` for no message.
    pub found: Option<Option<Got>>,
    /// The message has been discarded.
    pub discarded: bool,
    /// A discard of the claimed message was called and has not completed.
    pub discarding: bool,
}

/// An operation of a run.
#[derive(Clone, Debug)]
pub enum Record {
    /// A send.
    Send(SendRecord),
    /// A receive.
    Recv(RecvRecord),
    /// A peek.
    Peek(PeekRecord),
    /// An RMA read or write.
    Rma(RmaRecord),
    /// An atomic operation.
    Atomic(Box<AtomicRecord>),
    /// It was not accepted, and must leave no trace.
    Refused,
}

impl Record {
    /// The rank that posted it.
    #[must_use]
    pub fn rank(&self) -> Option<usize> {
        match self {
            Self::Send(send) => Some(send.rank),
            Self::Recv(recv) => Some(recv.rank),
            Self::Peek(peek) => Some(peek.rank),
            Self::Rma(rma) => Some(rma.rank),
            Self::Atomic(atomic) => Some(atomic.rank),
            Self::Refused => None,
        }
    }

    /// The rank that it is directed to.
    #[must_use]
    pub fn target(&self) -> Option<usize> {
        match self {
            Self::Send(send) => Some(send.dest),
            Self::Rma(rma) => Some(rma.target),
            Self::Atomic(atomic) => Some(atomic.target),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => None,
        }
    }

    /// Whether it waits for `other`, an earlier operation to the same peer.
    pub(super) fn waits_for(&self, other: &Self) -> bool {
        match self {
            Self::Send(send) => {
                let access = matches!(other, Self::Rma(_) | Self::Atomic(_));
                send.flags.contains(OpFlags::FENCE) || access && send.flags.contains(OpFlags::AFTER_ACCESSES)
            }
            Self::Rma(rma) => rma.flags.contains(OpFlags::FENCE),
            Self::Atomic(atomic) => atomic.flags.contains(OpFlags::FENCE),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => false,
        }
    }

    /// Whether it may wait for others.
    pub(super) fn may_wait(&self) -> bool {
        match self {
            Self::Send(send) => send.flags.intersects(OpFlags::FENCE | OpFlags::AFTER_ACCESSES),
            _ => self.waits_for(self),
        }
    }

    /// Whether it reports no success.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Self::Send(send) => send.flags.contains(OpFlags::QUIET),
            Self::Rma(rma) => rma.flags.contains(OpFlags::QUIET),
            Self::Atomic(atomic) => atomic.flags.contains(OpFlags::QUIET),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => false,
        }
    }
}

/// Describes an operation in one line.
#[must_use]
pub fn describe(record: &Record) -> String {
    match record {
        Record::Send(s) => format!(
            "send {} → {}, tag {:x?}, data {:x?}, {} bytes, {:?}, ended {:?}, received by {:?}",
            s.rank, s.dest, s.tag, s.data, s.len, s.flags, s.end, s.received_by
        ),
        Record::Recv(r) => format!(
            "receive at {}, {:x?}, {} bytes, {:?}, order {}, {:?}, {} messages",
            r.rank,
            r.want,
            r.buffer.len(),
            r.flags,
            r.order,
            r.state,
            r.got.len()
        ),
        Record::Peek(p) => {
            format!("peek at {}, {:x?}, {:?}, order {}, {:?}", p.rank, p.want, p.flags, p.order, p.found)
        }
        Record::Rma(r) => rma::describe(r),
        Record::Atomic(a) => atomic::describe(a),
        Record::Refused => "refused".into(),
    }
}
