//! The oracle: an independent model of what the operations of a run must lead to.
//!
//! Place in the data flow: [`Harness`](crate::Harness) tells it of every accepted operation and of every completion, and asks it
//! at the end. It knows libfabric's rules and nothing of protocols.
//!
//! Checked as completions come: exactly one per accepted operation, at the right rank, with the right context,
//! flags, length, tag, data and source; bytes exact; nothing written beyond what was received; delivery-complete sends
//! not before their receive. Checked at the end (file `matching`): order per peer, and that the matching is the one a simple
//! reference matcher makes for some order of arrival.

mod atomic;
pub(crate) mod connection;
mod datagram;
mod matching;
pub(crate) mod program;
mod rma;
mod scalable;
mod shared;

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::api::{Completion, Context, Fault, Kind, OpFlags};
use weft_engine::nic::LinkError;

use crate::memory::Buffer;
pub use atomic::AtomicRecord;
pub use program::{Change, Origin};
pub use rma::RmaRecord;

/// What buffers hold before anything is received into them.
pub const CANARY: u8 = 0xC3;
/// Messages at least this long name themselves in their first bytes.
pub const ID_BYTES: usize = 8;

/// How long after a rank's death everybody must know of it, in virtual time: a second, and as long as a rank may stand still.
pub const DEATH_BOUND_NS: u64 = 1_500_000_000;

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

    /// Whether it waits for all before it.
    fn is_fenced(&self) -> bool {
        match self {
            Self::Send(send) => send.flags.contains(OpFlags::FENCE),
            Self::Rma(rma) => rma.flags.contains(OpFlags::FENCE),
            Self::Atomic(atomic) => atomic.flags.contains(OpFlags::FENCE),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => false,
        }
    }

    /// Whether it tells nobody of its success.
    fn is_quiet(&self) -> bool {
        match self {
            Self::Send(send) => send.flags.contains(OpFlags::QUIET),
            Self::Rma(rma) => rma.flags.contains(OpFlags::QUIET),
            Self::Atomic(atomic) => atomic.flags.contains(OpFlags::QUIET),
            Self::Recv(_) | Self::Peek(_) | Self::Refused => false,
        }
    }
}

/// The model of one run.
#[derive(Debug, Default)]
pub struct Oracle {
    ops: Vec<Record>,
    clock: u64,
    complaints: Vec<String>,
    /// Pairs of ranks between which links broke: there, operations may fail with a link's error.
    broken: BTreeSet<(usize, usize)>,
    /// Pairs of ranks between which a message was nonsense: there, links may also end for a violated protocol.
    garbled: BTreeSet<(usize, usize)>,
    /// Messages may be lost, and come in any order.
    datagrams: bool,
    /// By rank: by whose address it is known. Without an entry, by its own.
    sources: Vec<usize>,
    /// By rank: who receives for it. Empty: each for itself.
    processes: Vec<usize>,
    /// By rank: the sends that go to it, and what it receives and peeks at.
    sent_to: Vec<Vec<Op>>,
    wanted_by: Vec<Vec<Op>>,
    /// Virtual time, as the harness tells it; and when each operation was numbered.
    pub(crate) now_ns: u64,
    posted_ns: Vec<u64>,
    /// When ranks died.
    died_ns: BTreeMap<usize, u64>,
    /// Sends that promised delivery and completed: receives of the same batch may follow.
    to_confirm: Vec<Op>,
    /// Remote events seen, by rank, region, and whether writes.
    events: BTreeMap<(usize, u64, bool), usize>,
    /// What atomic operations make of the slots, by region.
    models: BTreeMap<u64, Vec<u8>>,
    connections: connection::Connections,
    /// What waits for counters.
    pub(crate) deferred: program::Deferred,
}

impl Oracle {
    /// A model in which nothing has happened.
    #[must_use]
    pub fn new() -> Self {
        // Number 0 is nobody's, so that a zeroed context is noticed.
        Self { ops: vec![Record::Refused], posted_ns: vec![0], ..Self::default() }
    }

    /// The number for the next operation.
    pub fn number(&mut self) -> Op {
        self.ops.push(Record::Refused);
        self.posted_ns.push(self.now_ns);
        self.ops.len() - 1
    }

    /// The number that [`Oracle::number`] will give next.
    #[must_use]
    pub(crate) fn next(&self) -> Op {
        self.ops.len()
    }

    /// Enters what was accepted under a number.
    pub fn accepted(&mut self, op: Op, record: Record) {
        let (lists, rank) = match &record {
            Record::Send(send) => (&mut self.sent_to, send.dest),
            Record::Recv(recv) => (&mut self.wanted_by, recv.rank),
            Record::Peek(peek) => (&mut self.wanted_by, peek.rank),
            Record::Rma(_) | Record::Atomic(_) | Record::Refused => return self.ops[op] = record,
        };
        let rank = self.processes.get(rank).copied().unwrap_or(rank);
        if lists.len() <= rank {
            lists.resize_with(rank + 1, Vec::new);
        }
        lists[rank].push(op);
        self.ops[op] = record;
    }

    /// The sends that go to a rank, in the order in which they were started.
    fn sent_to(&self, rank: usize) -> impl Iterator<Item = (Op, &SendRecord)> {
        self.sent_to.get(self.receiver(rank)).into_iter().flatten().filter_map(|op| match &self.ops[*op] {
            Record::Send(send) => Some((*op, send)),
            _ => None,
        })
    }

    /// The receives and peeks of a rank, in the order in which they were started.
    fn wanted_by(&self, rank: usize) -> impl Iterator<Item = (Op, &Record)> {
        self.wanted_by.get(self.receiver(rank)).into_iter().flatten().map(|op| (*op, &self.ops[*op]))
    }

    /// What is known of an operation.
    #[must_use]
    pub fn record(&self, op: Op) -> &Record {
        self.ops.get(op).unwrap_or(&Record::Refused)
    }

    /// The next moment.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// From now on operations between the two ranks may fail.
    pub fn broke(&mut self, a: usize, b: usize) {
        self.broken.insert((a.min(b), a.max(b)));
    }

    /// Whether operations between the two ranks may fail.
    #[must_use]
    pub fn may_fail(&self, a: usize, b: usize) -> bool {
        self.broken.contains(&(a.min(b), a.max(b)))
    }

    /// A message between the two ranks was made nonsense: their link ends.
    pub fn garbled(&mut self, a: usize, b: usize) {
        self.broke(a, b);
        self.garbled.insert((a.min(b), a.max(b)));
    }

    /// A rank has died.
    pub fn died(&mut self, rank: usize) {
        self.died_ns.entry(rank).or_insert(self.now_ns);
    }

    /// Whether an operation between the two ranks may fail for this reason. No breakage excuses a violated protocol.
    #[must_use]
    pub fn excuses(&self, why: LinkError, a: usize, b: usize) -> bool {
        let violated = why == LinkError::Protocol && !self.garbled.contains(&(a.min(b), a.max(b)));
        !violated && self.may_fail(a, b)
    }

    /// Operations of living ranks to `rank`, which died too long ago for them to be still under way.
    #[must_use]
    pub fn overdue(&self, rank: usize, lives: impl Fn(usize) -> bool) -> Vec<String> {
        let Some(died_ns) = self.died_ns.get(&rank) else { return Vec::new() };
        let late = |(op, record): &(Op, &Record)| {
            let posted = self.posted_ns.get(*op).is_some_and(|posted_ns| posted_ns <= died_ns);
            posted && record.target() == Some(rank) && !record.is_quiet() && !self.ended(*op)
        };
        let living = |(_, record): &(Op, &Record)| record.rank().is_some_and(&lives);
        let all = self.ops.iter().enumerate().filter(living).filter(late);
        all.map(|(op, record)| format!("operation {op} still waits for rank {rank}, long dead: {}", describe(record)))
            .collect()
    }

    /// An operation has ended well: its target cannot have been dead for long when it was posted.
    fn outlived(&self, op: Op, target: usize) -> Result<(), String> {
        let posted_ns = self.posted_ns.get(op).copied().unwrap_or(0);
        let dead = self.died_ns.get(&target).is_some_and(|died_ns| died_ns + DEATH_BOUND_NS < posted_ns);
        if dead { Err(format!("succeeded, and rank {target} had long been dead")) } else { Ok(()) }
    }

    /// The longest message sent to a rank that is not known to be received, in bytes.
    #[must_use]
    pub fn longest_undelivered(&self, rank: usize) -> usize {
        let left = self.sent_to(rank).filter(|(_, send)| send.received_by.is_none());
        left.map(|(_, send)| send.len).max().unwrap_or(0)
    }

    /// Something is wrong.
    pub fn complain(&mut self, text: String) {
        self.complaints.push(text);
    }

    /// What was wrong so far.
    #[must_use]
    pub fn complaints(&self) -> &[String] {
        &self.complaints
    }

    /// Whether an operation has ended.
    #[must_use]
    pub fn ended(&self, op: Op) -> bool {
        match self.record(op) {
            Record::Send(send) => send.end.is_some(),
            Record::Recv(recv) => recv.state != RecvState::Posted,
            Record::Peek(peek) => peek.found.is_some() && !peek.discarding,
            Record::Rma(rma) => rma.end.is_some(),
            Record::Atomic(atomic) => atomic.end.is_some(),
            Record::Refused => true,
        }
    }

    /// How an operation ended: its fault, if it failed.
    #[must_use]
    pub fn fault(&self, op: Op) -> Option<Fault> {
        match self.record(op) {
            Record::Send(send) => send.end.and_then(Result::err),
            Record::Rma(rma) => rma.end.and_then(Result::err),
            Record::Atomic(atomic) => atomic.end.and_then(|(end, _)| end.err()),
            Record::Recv(RecvRecord { state: RecvState::Ended(fault, _), .. }) => Some(*fault),
            _ => None,
        }
    }

    /// A claim was called for the message that a peek reserved: its record becomes a receive in the peek's place.
    pub fn claim(&mut self, op: Op, buffer: Buffer, flags: OpFlags) {
        let Record::Peek(peek) = &self.ops[op] else { return };
        let claimed = peek.found.clone().flatten();
        let (rank, want, order) = (peek.rank, peek.want, peek.order);
        let state = RecvState::Posted;
        self.ops[op] = Record::Recv(RecvRecord { rank, want, flags, buffer, order, state, got: Vec::new(), claimed });
    }

    /// A discard was called for the message that a peek reserved.
    pub fn discard(&mut self, op: Op) {
        if let Record::Peek(peek) = &mut self.ops[op] {
            peek.discarding = true;
        }
    }

    /// Receives that are posted at a rank.
    #[must_use]
    pub fn posted(&self, rank: usize) -> Vec<Op> {
        let posted = |record: &Record| matches!(record, Record::Recv(recv) if recv.state == RecvState::Posted);
        self.wanted_by(rank).filter(|(_, record)| posted(record)).map(|(op, _)| op).collect()
    }

    /// Peeks of a rank that hold a message which nobody has claimed or thrown away.
    #[must_use]
    pub fn reserved(&self, rank: usize) -> Vec<Op> {
        let holds = |record: &Record| {
            matches!(record, Record::Peek(peek) if peek.flags.contains(OpFlags::CLAIM)
                && matches!(peek.found, Some(Some(_)))
                && !peek.discarded
                && !peek.discarding)
        };
        self.wanted_by(rank).filter(|(_, record)| holds(record)).map(|(op, _)| op).collect()
    }

    /// Messages sent to a rank that are neither received nor thrown away: untagged ones, or those with this tag but for bits to ignore.
    #[must_use]
    pub fn undelivered(&self, rank: usize, tag: Option<(u64, u64)>) -> usize {
        let wanted = |got: Option<u64>| Criteria { src: None, tag }.accept(rank, got);
        let sent = self.sent_to(rank).filter(|(_, send)| wanted(send.tag)).count();
        let taken = self.wanted_by(rank).map(|(_, record)| match record {
            Record::Recv(recv) if wanted(recv.want.tag.map(|(tag, _)| tag)) => recv.got.len(),
            Record::Peek(peek) if wanted(peek.want.tag.map(|(tag, _)| tag)) => usize::from(peek.discarded),
            _ => 0,
        });
        sent.saturating_sub(taken.sum())
    }

    /// Operations of living ranks that have not ended, described.
    #[must_use]
    pub fn pending(&self, lives: impl Fn(usize) -> bool) -> Vec<String> {
        let mut out = Vec::new();
        for (op, record) in self.ops.iter().enumerate() {
            if self.is_awaited(record, &lives) && !self.ended(op) {
                out.push(format!("operation {op} never completed: {}", describe(record)));
            }
        }
        out
    }

    // ---- completions -------------------------------------------------------------------------

    /// A rank reports a completion. `src` is the rank behind its source address. Returns the buffer that is free now.
    pub fn completed(&mut self, rank: usize, c: &Completion, src: Option<usize>) -> Option<Buffer> {
        let at = self.tick();
        if matches!(c.kind, Kind::RemoteWrite | Kind::RemoteRead) {
            self.remote_event(rank, c, src);
            self.count(rank, c);
            return None;
        }
        let op = c.ctx.ptr;
        let Some(owner) = self.ops.get(op).and_then(Record::rank) else {
            self.complain(format!("rank {rank}: completion of an operation that was never accepted: {c:?}"));
            return None;
        };
        if !self.may_report(rank, owner, &self.ops[op]) || c.ctx != context(op) {
            self.complain(format!("rank {rank}: completion with a foreign context (operation of rank {owner}): {c:?}"));
            return None;
        }
        let mut record = std::mem::replace(&mut self.ops[op], Record::Refused);
        let problem = match &mut record {
            Record::Send(send) => self.send_completed(op, send, c),
            Record::Recv(recv) => self.recv_completed(op, recv, c, (src, rank), at),
            Record::Peek(peek) => peek_completed(peek, c, (src, rank), at),
            Record::Rma(rma) => self.rma_completed(op, rma, c),
            Record::Atomic(atomic) => self.atomic_completed(op, atomic, c, at),
            Record::Refused => Ok(None),
        };
        let problem = problem.and_then(|buffer| self.fenced(op, &record, c).map(|()| buffer));
        let outcome = problem
            .map_err(|problem| format!("rank {rank}, operation {op}: {problem}\n    {c:?}\n    {}", describe(&record)));
        self.ops[op] = record;
        self.count(rank, c);
        outcome.unwrap_or_else(|wrong| {
            self.complain(wrong);
            None
        })
    }

    /// A fenced operation begins when all earlier ones to the same peer have ended, so it cannot end well before them.
    fn fenced(&self, op: Op, record: &Record, c: &Completion) -> Result<(), String> {
        if c.fault.is_some() || !record.is_fenced() {
            return Ok(());
        }
        let passed = (0..op).find(|earlier| {
            let other = &self.ops[*earlier];
            let same = (other.rank(), other.target()) == (record.rank(), record.target());
            same && !other.is_quiet() && !self.ended(*earlier)
        });
        passed.map_or(Ok(()), |earlier| Err(format!("it is fenced, and operation {earlier} has not ended")))
    }

    fn send_completed(&mut self, op: Op, send: &mut SendRecord, c: &Completion) -> Result<Option<Buffer>, String> {
        if send.end.is_some() {
            return Err("completed twice".into());
        }
        send.end = Some(c.fault.map_or(Ok(()), Err));
        match c.fault {
            None if send.flags.contains(OpFlags::QUIET) => return Err("a quiet send reported success".into()),
            Some(fault) if self.datagrams => return Err(Self::datagram_failed(fault)),
            Some(Fault::Link(why)) if self.excuses(why, send.rank, send.dest) => return Ok(send.buffer),
            Some(fault) => return Err(format!("failed: {fault}")),
            None => {}
        }
        expect(c.kind == Kind::Send, "kind")?;
        expect(c.len == send.len, "length")?;
        expect(c.flags.contains(OpFlags::TAGGED) == send.tag.is_some(), "tagged flag")?;
        expect(send.tag.is_none_or(|tag| c.tag == tag), "tag")?;
        if !self.datagrams {
            self.outlived(op, send.dest)?;
        }
        if send.flags.contains(OpFlags::DELIVERY) {
            self.to_confirm.push(op);
        }
        Ok(send.buffer)
    }

    /// The end of a batch of completions of one rank: what they promise together must hold now.
    pub fn batch_ended(&mut self) {
        for op in std::mem::take(&mut self.to_confirm) {
            let Record::Send(send) = &self.ops[op] else { continue };
            if send.len >= ID_BYTES && send.received_by.is_none() && self.can_confirm(send) {
                let text = describe(&self.ops[op]);
                self.complain(format!("operation {op}: delivery complete before its receive: {text}"));
            }
        }
    }

    /// Whether a delivered message would have been recognised: neither discarded nor cut too short.
    fn can_confirm(&self, send: &SendRecord) -> bool {
        !self.ops.iter().any(|record| match record {
            Record::Peek(peek) => {
                self.receiver(peek.rank) == self.receiver(send.dest)
                    && (peek.discarded || peek.discarding)
                    && peek.want.accept(self.known_as(send.rank), send.tag)
            }
            Record::Recv(recv) => {
                let short = recv.got.iter().any(|got| got.len < ID_BYTES && got.full_len == send.len);
                self.receiver(recv.rank) == self.receiver(send.dest)
                    && short
                    && recv.want.accept(self.known_as(send.rank), send.tag)
            }
            _ => false,
        })
    }

    fn recv_completed(
        &mut self,
        op: Op,
        recv: &mut RecvRecord,
        c: &Completion,
        (src, dest): (Option<usize>, usize),
        at: u64,
    ) -> Result<Option<Buffer>, String> {
        if recv.state != RecvState::Posted {
            return Err("completed twice".into());
        }
        let multi = recv.flags.contains(OpFlags::MULTI);
        let released = !multi || c.flags.contains(OpFlags::MULTI);
        expect(c.kind == Kind::Recv, "kind")?;
        expect(c.flags.contains(OpFlags::TAGGED) == recv.want.tag.is_some(), "tagged flag")?;
        expect(multi || !c.flags.contains(OpFlags::MULTI), "released flag on a plain receive")?;
        let excess = match c.fault {
            None => 0,
            Some(Fault::Truncated(excess)) => excess,
            Some(fault) => return self.recv_ended(recv, dest, fault, released, at),
        };
        recv.state = if released { RecvState::Done } else { RecvState::Posted };
        let offset = if c.len == 0 && !multi { 0 } else { c.buf.wrapping_sub(recv.buffer.iov().as_ptr() as usize) };
        let end = offset.checked_add(c.len).filter(|end| *end <= recv.buffer.len());
        let end = end.ok_or("stored outside the buffer")?;
        expect(multi || offset == 0, "buffer address")?;
        let overlaps = |g: &Got| g.offset < end && offset < g.offset + g.len;
        expect(!recv.got.iter().any(overlaps), "two messages overlap in a multi-receive")?;
        if !multi {
            let beyond = recv.buffer.part(end, usize::MAX);
            expect(beyond.is_filled(CANARY), "written beyond what was received")?;
            expect(excess == 0 || beyond.is_empty(), "cut although there was room")?;
        }
        let data = c.flags.contains(OpFlags::DATA).then_some(c.data);
        let tag = recv.want.tag.map(|_| c.tag);
        let stored = recv.buffer.part(offset, c.len);
        let mut head = [0; ID_BYTES];
        stored.iov().read(&mut head);
        let mut got = Got { src, dest, tag, data, len: c.len, head, full_len: c.len + excess, offset, send: None, at };
        let outcome = self.check_got(op, recv, &mut got, stored);
        recv.got.push(got);
        outcome.map(|()| released.then_some(recv.buffer))
    }

    /// A receive ended without a message.
    fn recv_ended(
        &self,
        recv: &mut RecvRecord,
        rank: usize,
        fault: Fault,
        released: bool,
        at: u64,
    ) -> Result<Option<Buffer>, String> {
        let excusable = match fault {
            // Whether it was canceled is the harness's to know; it says so by the state.
            Fault::Canceled => true,
            // Nothing waits for a datagram that has begun to arrive, nor for anybody in particular.
            Fault::Link(_) if self.datagrams => false,
            Fault::Link(why) => match recv.want.src {
                Some(src) => self.excuses_any(why, rank, src),
                None => {
                    let mine = |(a, b): &&(usize, usize)| *a == rank || *b == rank;
                    self.broken.iter().filter(mine).any(|(a, b)| self.excuses(why, *a, *b))
                }
            },
            _ => false,
        };
        if released {
            recv.state = RecvState::Ended(fault, at);
        }
        if excusable { Ok(released.then_some(recv.buffer)) } else { Err(format!("failed: {fault}")) }
    }

    /// A received message against the send that it names.
    fn check_got(&mut self, op: Op, recv: &RecvRecord, got: &mut Got, stored: Buffer) -> Result<(), String> {
        let src = got.src.ok_or("source unknown")?;
        if !recv.want.accept(src, got.tag) {
            return Err(format!("got a message that it does not want: from {src}, tag {:x?}", got.tag));
        }
        if let Some(claimed) = &recv.claimed {
            let same = (claimed.src, claimed.tag, claimed.data, claimed.full_len);
            expect(same == (got.src, got.tag, got.data, got.full_len), "not the message that was claimed")?;
        }
        if got.len < ID_BYTES {
            return Ok(());
        }
        let id = got.head.iter().rev().fold(0_usize, |id, byte| id << 8 | usize::from(*byte));
        let source = self.ops.get(id).and_then(Record::rank).map_or(0, |rank| self.known_as(rank));
        let Some(Record::Send(send)) = self.ops.get_mut(id) else {
            return Err(format!("received bytes that nobody sent (they name operation {id:#x})"));
        };
        let same = (Some(source), send.dest, send.tag, send.data, send.len);
        if same != (got.src, got.dest, got.tag, got.data, got.full_len) {
            return Err(format!("differs from what was sent as operation {id}: {send:?}"));
        }
        if !stored.holds(&payload(id, send.len)[..got.len]) {
            return Err(format!("bytes differ from what was sent as operation {id}: {send:?}"));
        }
        if let Some(other) = send.received_by.replace(op) {
            return Err(format!("the message of operation {id} was received before, by operation {other}"));
        }
        got.send = Some(id);
        Ok(())
    }
}

fn peek_completed(
    peek: &mut PeekRecord,
    c: &Completion,
    (src, dest): (Option<usize>, usize),
    at: u64,
) -> Result<Option<Buffer>, String> {
    expect(c.kind == Kind::Recv, "kind")?;
    expect(c.flags.contains(OpFlags::TAGGED) == peek.want.tag.is_some(), "tagged flag")?;
    if peek.discarding {
        peek.discarding = false;
        peek.discarded = true;
        return c.fault.map_or(Ok(None), |fault| Err(format!("a discard failed: {fault}")));
    }
    if peek.found.is_some() {
        return Err("completed twice".into());
    }
    peek.found = Some(None);
    match c.fault {
        Some(Fault::NoMessage) => return Ok(None),
        Some(fault) => return Err(format!("a peek failed: {fault}")),
        None => {}
    }
    let (tag, data) = (peek.want.tag.map(|_| c.tag), c.flags.contains(OpFlags::DATA).then_some(c.data));
    let got = Got { src, dest, tag, data, len: 0, head: [0; ID_BYTES], full_len: c.len, offset: 0, send: None, at };
    peek.found = Some(Some(got));
    peek.discarded = peek.flags.contains(OpFlags::DISCARD);
    let wanted = src.is_some_and(|src| peek.want.accept(src, tag));
    expect(wanted, "a peek reported a message that it does not want")?;
    Ok(None)
}

fn expect(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("wrong: {what}")) }
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
