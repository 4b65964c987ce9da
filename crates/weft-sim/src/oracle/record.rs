//! What the oracle knows of each operation of a run, and what its bytes are.

use weft_engine::api::{Context, Fault, OpFlags};

use super::{AtomicRecord, RmaRecord, atomic, rma};
use crate::memory::Buffer;

/// What buffers hold before anything is received into them.
pub const CANARY: u8 = 0xC3;
/// Messages at least this long name themselves in their first bytes.
pub const ID_BYTES: usize = 8;

/// An operation's number, also its context pointer.
pub type Op = usize;

/// The payload of operation `op`: its number, then bytes that depend on it and on where they are; cut to `len`.
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
    /// As posted.
    pub flags: OpFlags,
    /// The source buffer, freed at completion; `None` for an inject, whose buffer was freed at once.
    pub buffer: Option<Buffer>,
    /// How it ended.
    pub end: Option<Result<(), Fault>>,
    /// Its bytes have been received, by the receive with this number.
    pub received_by: Option<Op>,
}

/// What a receive or a peek asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Criteria {
    /// From whom; `None`: anyone.
    pub src: Option<usize>,
    /// Tag and ignored bits, if tagged.
    pub tag: Option<(u64, u64)>,
}

impl Criteria {
    /// Whether a message from `src` with `tag` is wanted.
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
    /// Sender; `None` if it was not told.
    pub src: Option<usize>,
    /// Where it was reported.
    pub dest: usize,
    /// Tag.
    pub tag: Option<u64>,
    /// Immediate data.
    pub data: Option<u64>,
    /// How many bytes were stored (none for a peek).
    pub len: usize,
    /// The first of them: all of a message too short to name itself.
    pub head: [u8; ID_BYTES],
    /// Length of the message.
    pub full_len: usize,
    /// Where in the buffer it begins.
    pub offset: usize,
    /// The send, once known.
    pub send: Option<Op>,
    /// When it was reported, on the oracle's clock.
    pub at: u64,
}

/// How far a receive is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecvState {
    /// Posted.
    Posted,
    /// Complete (a multi-receive: released).
    Done,
    /// Ended without a message: canceled or failed, at this time on the oracle's clock.
    Ended(Fault, u64),
}

/// An accepted receive.
#[derive(Clone, Debug)]
pub struct RecvRecord {
    /// Receiver.
    pub rank: usize,
    /// What it wants.
    pub want: Criteria,
    /// As posted.
    pub flags: OpFlags,
    /// The buffer.
    pub buffer: Buffer,
    /// When it was posted, or the peek that claimed for it was called.
    pub order: u64,
    /// How far it is.
    pub state: RecvState,
    /// What it got.
    pub got: Vec<Got>,
    /// What the peek reported that claimed for it.
    pub claimed: Option<Got>,
    /// Where it is shared and for several messages: with what the last completion failed, and when.
    pub failed: Option<(Fault, u64)>,
    /// For several messages: the link of one of them broke, and nobody says what of it was stored where.
    pub cut: bool,
}

/// An accepted peek.
#[derive(Clone, Debug)]
pub struct PeekRecord {
    /// Who looks.
    pub rank: usize,
    /// For what.
    pub want: Criteria,
    /// As posted.
    pub flags: OpFlags,
    /// When.
    pub order: u64,
    /// What it reported: `Some(None)` for no message.
    pub found: Option<Option<Got>>,
    /// The message has been thrown away.
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
    /// It was not accepted: no trace of it may ever appear.
    Refused,
}

impl Record {
    /// Whose it is.
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

    /// Whom it goes to.
    #[must_use]
    pub fn target(&self) -> Option<usize> {
        match self {
            Self::Send(send) => Some(send.dest),
            Self::Rma(rma) => Some(rma.target),
            Self::Atomic(atomic) => Some(atomic.target),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => None,
        }
    }

    /// Whether it waits for `other`, which is an earlier one to the same peer.
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

    /// Whether it tells nobody of its success.
    pub(super) fn is_quiet(&self) -> bool {
        match self {
            Self::Send(send) => send.flags.contains(OpFlags::QUIET),
            Self::Rma(rma) => rma.flags.contains(OpFlags::QUIET),
            Self::Atomic(atomic) => atomic.flags.contains(OpFlags::QUIET),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => false,
        }
    }
}

/// One line about an operation.
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
