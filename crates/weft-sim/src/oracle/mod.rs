//! The oracle: an independent model of the results that the operations of a run must have.
//!
//! Place in the data flow: [`Harness`](crate::Harness) reports every accepted operation and every completion
//! to it, and asks for a verdict at the end. The oracle knows libfabric's rules but no protocol.
//!
//! Checked with each completion: exactly one per accepted operation, at the right rank, with the right
//! context, flags, length, tag, data and source; bytes exact; nothing written beyond the received bytes;
//! delivery-complete sends not before their receive. Checked at the end (file `matching`): the order per
//! peer, and that a simple reference matcher makes the same matching for some order of arrival.

mod atomic;
pub(crate) mod connection;
mod datagram;
mod lost;
mod matching;
mod messages;
pub(crate) mod program;
mod record;
mod rma;
mod scalable;
mod shared;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use weft_engine::api::{Completion, Context, Fault, Kind, RecvFlags};
use weft_engine::nic::LinkError;

use crate::memory::Buffer;
pub use atomic::AtomicRecord;
pub use program::{Change, Origin};
pub use record::{
    CANARY, Criteria, Got, ID_BYTES, Op, PeekRecord, Record, RecvRecord, RecvState, SendRecord, context, describe,
    extend_payload, payload,
};
pub use rma::RmaRecord;

/// Longest virtual time between the news of a rank's death and the end of the operations that wait for it: a
/// second, plus the longest pause of a rank.
pub const DEATH_BOUND_NS: u64 = 1_500_000_000;

/// The time at which both ends knew that their link had broken, and the first operation posted since then.
/// Several operations may share one time.
#[derive(Debug)]
struct Mended {
    ns: u64,
    op: Op,
}

/// The model of one run.
#[derive(Debug, Default)]
pub struct Oracle {
    ops: Vec<Record>,
    clock: u64,
    complaints: Vec<String>,
    /// Pairs of ranks between which links broke. Operations posted before the pair mended may be lost or fail
    /// with a link's error.
    broken: BTreeMap<(usize, usize), Option<Mended>>,
    /// By pair: when links broke (`true`), and when both ends knew (`false`).
    breaks: BTreeMap<(usize, usize), Vec<(u64, bool)>>,
    /// Receives that failed for messages of ended links, and by message, the receive that it excuses.
    losses: Vec<lost::Loss>,
    lost: BTreeMap<Op, usize>,
    /// Set if calls may be refused: operations posted before this time may fail for that reason.
    refused_ns: Option<u64>,
    /// Pairs of ranks between which a message arrived as garbage: links there may also end for a violated
    /// protocol.
    garbled: BTreeSet<(usize, usize)>,
    /// Messages may be lost, and arrive in any order.
    datagrams: bool,
    /// By rank: the rank whose address it is known under. A rank without an entry is known under its own.
    sources: Vec<usize>,
    /// By rank: the rank that receives for it. Empty: each rank receives for itself.
    processes: Vec<usize>,
    /// By rank: reported completions of shared multi-receives that its client has not read.
    unread: BTreeMap<usize, VecDeque<shared::Unread>>,
    /// By rank: the sends to it, and its receives and peeks.
    sent_to: Vec<Vec<Op>>,
    wanted_by: Vec<Vec<Op>>,
    /// The virtual time, set by the harness; and the time at which each operation got its number.
    pub(crate) now_ns: u64,
    posted_ns: Vec<u64>,
    /// The times of death, and the ranks that had a link to the dead rank then.
    died_ns: BTreeMap<usize, u64>,
    linked_to_dead: BTreeSet<(usize, usize)>,
    /// The time at which a rank learns of another's death, where the wire delays it.
    death_seen_ns: BTreeMap<(usize, usize), u64>,
    /// Completed sends that promised delivery: receives of the same batch may still follow.
    to_confirm: Vec<Op>,
    /// Remote events seen, by rank, region, and whether they are writes.
    events: BTreeMap<(usize, u64, bool), usize>,
    /// The modelled content of the slots, by region.
    models: BTreeMap<u64, Vec<u8>>,
    connections: connection::Connections,
    /// The deferred work.
    pub(crate) deferred: program::Deferred,
}

impl Oracle {
    /// A model without operations.
    #[must_use]
    pub fn new() -> Self {
        // No operation has number 0, so that a zeroed context is noticed.
        Self { ops: vec![Record::Refused], posted_ns: vec![0], ..Self::default() }
    }

    /// The number for the next operation.
    pub fn number(&mut self) -> Op {
        self.ops.push(Record::Refused);
        self.posted_ns.push(self.now_ns);
        self.ops.len() - 1
    }

    /// The number that [`Oracle::number`] will return next.
    #[must_use]
    pub(crate) fn next(&self) -> Op {
        self.ops.len()
    }

    /// Records an accepted operation under its number.
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

    /// The sends to a rank, in the order in which they were started.
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

    /// The record of an operation.
    #[must_use]
    pub fn record(&self, op: Op) -> &Record {
        self.ops.get(op).unwrap_or(&Record::Refused)
    }

    /// Advances the oracle's clock by one.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Records that links between two ranks broke: operations may fail and messages be lost from now on.
    pub fn broke(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        self.broken.insert(pair, None);
        self.breaks.entry(pair).or_default().push((self.now_ns, true));
    }

    /// Records that both ends know of the end of a broken link: operations posted later cannot fail with it.
    pub(crate) fn mended(&mut self, a: usize, b: usize) {
        let pair = (a.min(b), a.max(b));
        self.broken.insert(pair, Some(Mended { ns: self.now_ns, op: self.ops.len() }));
        self.breaks.entry(pair).or_default().push((self.now_ns, false));
    }

    /// Until [`Oracle::refusals_end`], calls may be refused: operations may fail for that reason, but none
    /// may disappear.
    pub(crate) fn expect_refusals(&mut self) {
        self.refused_ns = Some(u64::MAX);
    }

    /// Ends the time in which calls may be refused.
    pub(crate) fn refusals_end(&mut self) {
        self.refused_ns = self.refused_ns.map(|_| self.now_ns);
    }

    /// Whether links between two ranks broke since then, or calls may have been refused.
    #[must_use]
    pub(crate) fn disturbed_since(&self, a: usize, b: usize, since_ns: u64) -> bool {
        let until_ns = |mended: &Option<Mended>| mended.as_ref().map_or(u64::MAX, |mended| mended.ns);
        let broke = self.broken.get(&(a.min(b), a.max(b))).map(until_ns);
        broke.max(self.refused_ns).is_some_and(|until_ns| until_ns >= since_ns)
    }

    /// Whether an operation between two ranks may have been lost with their link, for any error.
    #[must_use]
    pub(crate) fn may_be_lost(&self, op: Op, a: usize, b: usize) -> bool {
        let goes = |mended: &Option<Mended>| mended.as_ref().is_none_or(|mended| op < mended.op);
        self.broken.get(&(a.min(b), a.max(b))).is_some_and(goes)
    }

    /// Records that a message between two ranks arrived as garbage: their link ends.
    pub fn garbled(&mut self, a: usize, b: usize) {
        self.broke(a, b);
        self.garbled.insert((a.min(b), a.max(b)));
    }

    /// Records the death of a rank.
    pub fn died(&mut self, rank: usize) {
        self.died_ns.entry(rank).or_insert(self.now_ns);
    }

    /// Sets the time by which `other` learns of a rank's death.
    pub(crate) fn sees_death_by(&mut self, rank: usize, other: usize, by_ns: u64) {
        self.death_seen_ns.insert((rank, other), by_ns);
    }

    /// The time from which `other` may know of a rank's death.
    fn known_ns(&self, rank: usize, other: usize) -> Option<u64> {
        let death_seen_ns = self.death_seen_ns.get(&(rank, other)).copied().unwrap_or(0);
        self.died_ns.get(&rank).map(|died_ns| death_seen_ns.max(*died_ns))
    }

    /// Records that a rank dies to which `other` has a link: receives of `other` from that rank alone will
    /// fail.
    pub(crate) fn linked_at_death(&mut self, rank: usize, other: usize) {
        self.linked_to_dead.insert((rank, other));
    }

    /// Records that a successor takes the place of a dead rank. A rank may meet the successor before it
    /// notices the end of its predecessor. It goes on waiting then, since the successor may send what it
    /// waits for.
    pub(crate) fn succeeded(&mut self, rank: usize) {
        self.linked_to_dead.retain(|&(dead, _)| dead != rank);
    }

    /// Whether an operation between two ranks may fail for this reason. Only garbage excuses a violated
    /// protocol.
    #[must_use]
    pub(crate) fn excuses(&self, op: Op, why: LinkError, a: usize, b: usize) -> bool {
        let posted_ns = self.posted_ns.get(op).copied().unwrap_or(0);
        let violated = why == LinkError::Protocol && !self.garbled.contains(&(a.min(b), a.max(b)));
        !violated && (self.may_be_lost(op, a, b) || self.may_be_refused(why, posted_ns))
    }

    /// Whether an operation posted at this time may fail because a call was refused.
    fn may_be_refused(&self, why: LinkError, posted_ns: u64) -> bool {
        let refused = matches!(why, LinkError::Refused | LinkError::Timeout | LinkError::Unreachable);
        refused && self.refused_ns.is_some_and(|until_ns| posted_ns < until_ns)
    }

    /// Whether the connection of two ranks may end for this reason, or fail to be made.
    pub(super) fn may_disconnect(&self, why: LinkError, a: usize, b: usize) -> bool {
        let pair = (a.min(b), a.max(b));
        let violated = why == LinkError::Protocol && !self.garbled.contains(&pair);
        !violated && (self.broken.contains_key(&pair) || self.refused_ns.is_some())
    }

    /// Operations of live ranks to `rank` that still wait although it died too long ago. Includes receives
    /// from it alone that were posted while there was a link to it.
    #[must_use]
    pub fn overdue(&self, rank: usize, is_alive: impl Fn(usize) -> bool) -> Vec<String> {
        let Some(died_ns) = self.died_ns.get(&rank) else { return Vec::new() };
        let late = |(op, record): &(Op, &Record)| {
            let posted_ns = self.posted_ns.get(*op).copied().unwrap_or(0);
            let waits = match record {
                Record::Recv(recv) => {
                    let reported = self.linked_to_dead.contains(&(rank, recv.rank)) && posted_ns < *died_ns;
                    reported && recv.want.src == Some(rank)
                }
                _ => record.target() == Some(rank) && !record.is_quiet(),
            };
            let known_ns = record.rank().and_then(|other| self.known_ns(rank, other));
            let long = known_ns.is_some_and(|known_ns| posted_ns.max(known_ns) + DEATH_BOUND_NS <= self.now_ns);
            waits && long && !self.ended(*op)
        };
        let live_ranks = |(_, record): &(Op, &Record)| record.rank().is_some_and(&is_alive);
        let all = self.ops.iter().enumerate().filter(live_ranks).filter(late);
        all.map(|(op, record)| format!("operation {op} still waits for dead rank {rank}: {}", describe(record)))
            .collect()
    }

    /// Checks an operation that succeeded: its target cannot have been dead for long when it was posted.
    fn check_target_alive(&self, op: Op, target: usize) -> Result<(), String> {
        let posted_ns = self.posted_ns.get(op).copied().unwrap_or(0);
        let rank = self.ops.get(op).and_then(Record::rank);
        let known_ns = rank.and_then(|rank| self.known_ns(target, rank));
        let dead = known_ns.is_some_and(|known_ns| known_ns + DEATH_BOUND_NS < posted_ns);
        if dead { Err(format!("succeeded although rank {target} was dead when it was posted")) } else { Ok(()) }
    }

    /// The longest message sent to a rank that is not known to be received, in bytes.
    #[must_use]
    pub fn longest_undelivered(&self, rank: usize) -> usize {
        let left = self.sent_to(rank).filter(|(_, send)| send.received_by.is_none());
        left.map(|(_, send)| send.len).max().unwrap_or(0)
    }

    /// Records a failure.
    pub fn complain(&mut self, text: String) {
        self.complaints.push(text);
    }

    /// All failures so far.
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

    /// The fault of an operation that failed.
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

    /// Records a claim of the message that a peek reserved: a receive replaces the peek's record.
    pub fn claim(&mut self, op: Op, buffer: Buffer, flags: RecvFlags) {
        let Record::Peek(peek) = &self.ops[op] else { return };
        let claimed = peek.found.clone().flatten();
        let (rank, want, order) = (peek.rank, peek.want, peek.order);
        let state = RecvState::Posted;
        self.ops[op] = Record::Recv(RecvRecord {
            rank,
            want,
            flags,
            buffer,
            order,
            state,
            got: Vec::new(),
            claimed,
            failed: None,
            cut: false,
        });
    }

    /// Records a discard of the message that a peek reserved.
    pub fn discard(&mut self, op: Op) {
        if let Record::Peek(peek) = &mut self.ops[op] {
            peek.discarding = true;
        }
    }

    /// Receives posted at a rank.
    #[must_use]
    pub fn posted(&self, rank: usize) -> Vec<Op> {
        let posted = |record: &Record| matches!(record, Record::Recv(recv) if recv.state == RecvState::Posted);
        self.wanted_by(rank).filter(|(_, record)| posted(record)).map(|(op, _)| op).collect()
    }

    /// Peeks of a rank that hold a message which has been neither claimed nor discarded.
    #[must_use]
    pub fn reserved(&self, rank: usize) -> Vec<Op> {
        let holds = |record: &Record| {
            matches!(record, Record::Peek(peek) if peek.flags.contains(RecvFlags::CLAIM)
                && matches!(peek.found, Some(Some(_)))
                && !peek.discarded
                && !peek.discarding)
        };
        self.wanted_by(rank).filter(|(_, record)| holds(record)).map(|(op, _)| op).collect()
    }

    /// Messages to a rank that were neither received nor discarded: untagged ones, or those with this tag
    /// apart from ignored bits.
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
    pub fn pending(&self, is_alive: impl Fn(usize) -> bool) -> Vec<String> {
        let mut out = Vec::new();
        for (op, record) in self.ops.iter().enumerate() {
            if self.is_awaited(record, &is_alive) && !self.ended(op) {
                out.push(format!("operation {op} never completed: {}", describe(record)));
            }
        }
        out
    }

    // ---- completions -------------------------------------------------------------------------

    /// Checks a completion of a rank. `src` is the rank behind its source address. Returns the buffer that it
    /// releases.
    pub fn completed(&mut self, rank: usize, c: &Completion, src: Option<usize>) -> Option<Buffer> {
        let at = self.tick();
        if matches!(c.kind, Kind::RemoteWrite | Kind::RemoteRead) {
            self.remote_event(rank, c, src);
            self.count(rank, c);
            return None;
        }
        if c.kind == Kind::Write && c.ctx == Context::default() && c.fault.is_some() {
            self.refusal(rank, c);
            self.count(rank, c);
            return None;
        }
        let op = c.ctx.ptr;
        let Some(owner) = self.ops.get(op).and_then(Record::rank) else {
            self.complain(format!("rank {rank}: completion of an operation that was not accepted: {c:?}"));
            return None;
        };
        if !self.may_report(rank, owner, &self.ops[op]) || c.ctx != context(op) {
            self.complain(format!("rank {rank}: completion with the context of an operation of rank {owner}: {c:?}"));
            return None;
        }
        let mut record = std::mem::replace(&mut self.ops[op], Record::Refused);
        let problem = match &mut record {
            Record::Send(send) => self.send_completed(op, send, c),
            Record::Recv(recv) => self.recv_completed(op, recv, c, (src, rank), at),
            Record::Peek(peek) => messages::peek_completed(peek, c, (src, rank), at),
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

    /// A fenced operation starts when all earlier ones to the same peer have ended, so it cannot succeed
    /// before them. A send may be fenced from accesses only.
    fn fenced(&self, op: Op, record: &Record, c: &Completion) -> Result<(), String> {
        if c.fault.is_some() || !record.may_wait() {
            return Ok(());
        }
        let passed = (0..op).find(|earlier| {
            let other = &self.ops[*earlier];
            let same = (other.rank(), other.target()) == (record.rank(), record.target());
            same && record.waits_for(other) && !other.is_quiet() && !self.ended(*earlier)
        });
        passed.map_or(Ok(()), |earlier| Err(format!("it is fenced, and operation {earlier} has not ended")))
    }
}

fn expect(holds: bool, what: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(format!("wrong: {what}")) }
}
