//! The model of remote memory access.
//!
//! Each write gets a slot of the target's region of its own, so the final content is known for every order of
//! the writes. Reads go to parts that no write touches. Immediate data is unique, so a remote event
//! identifies its write.

use std::collections::{BTreeMap, BTreeSet};

use weft_engine::api::{Completion, CompletionFlags, Fault, Kind, OpFlags};

use super::{Op, Oracle, Record, expect, payload};
use crate::memory::Buffer;

/// An accepted read or write.
#[derive(Clone, Debug)]
pub struct RmaRecord {
    /// Initiator.
    pub rank: usize,
    /// The target region's user value, which its remote events carry.
    pub region: u64,
    /// Whether the region reports every access.
    pub reported: bool,
    /// Target.
    pub target: usize,
    /// `Kind::Read` or `Kind::Write`.
    pub kind: Kind,
    /// Flags as posted.
    pub flags: OpFlags,
    /// Immediate data of a write.
    pub data: Option<u64>,
    /// Length in bytes.
    pub len: usize,
    /// Local memory, freed at completion; `None` for an inject.
    pub buffer: Option<Buffer>,
    /// Read: the bytes that must arrive.
    pub expected: Vec<u8>,
    /// Write: the target memory.
    pub remote: Vec<Buffer>,
    /// The fault with which it must end, if any.
    pub must_fail: Option<Fault>,
    /// The result.
    pub end: Option<Result<(), Fault>>,
    /// The target has reported by a completion without a context that it refused the write.
    pub refused: bool,
    /// Remote events seen that carry its data.
    pub events: usize,
}

impl RmaRecord {
    /// Whether the operation may be complete when it has left: a write whose client names a level that promises no
    /// more, or can observe none.
    fn may_leave(&self) -> bool {
        let named = self.flags.intersects(OpFlags::FREED | OpFlags::TRANSMIT);
        let early = named || self.flags.contains(OpFlags::INJECT | OpFlags::QUIET);
        self.kind == Kind::Write && early && !self.flags.contains(OpFlags::DELIVERY)
    }

    /// Whether a refusal may be reported without a context.
    fn may_be_refused(&self) -> bool {
        let left = self.end == Some(Ok(())) || self.end.is_none() && self.flags.contains(OpFlags::QUIET);
        self.may_leave() && !self.refused && left
    }
}

impl Oracle {
    pub(super) fn rma_completed(
        &mut self,
        op: Op,
        rma: &mut RmaRecord,
        c: &Completion,
    ) -> Result<Option<Buffer>, String> {
        if rma.end.is_some() {
            return Err("completed twice".into());
        }
        rma.end = Some(c.fault.map_or(Ok(()), Err));
        expect(c.kind == rma.kind, "kind")?;
        match (c.fault, rma.must_fail) {
            (Some(fault), Some(must)) if fault == must => return Ok(rma.buffer),
            (Some(Fault::Link(why)), _) if self.excuses(op, why, rma.rank, rma.target) => return Ok(rma.buffer),
            (Some(fault), _) => return Err(format!("failed: {fault}")),
            (None, Some(_)) if rma.may_leave() => {}
            (None, Some(fault)) => return Err(format!("succeeded, and should have failed: {fault}")),
            (None, None) => {}
        }
        expect(!rma.flags.contains(OpFlags::QUIET), "a quiet operation must report no success")?;
        expect(c.len == rma.len, "length")?;
        self.check_target_alive(op, rma.target)?;
        if let (Kind::Read, Some(buffer)) = (rma.kind, rma.buffer) {
            expect(buffer.holds(&rma.expected), "the read bytes differ")?;
        }
        if rma.kind == Kind::Write && !rma.may_leave() {
            expect(stored(op, rma), "complete before the target's memory was written")?;
        }
        Ok(rma.buffer)
    }

    /// Takes the report that a write was refused which had completed when it left. The report has no context.
    pub(super) fn refusal(&mut self, rank: usize, c: &Completion) {
        let due = |record: &&mut Record| match record {
            Record::Rma(rma) => rma.rank == rank && rma.must_fail == c.fault && rma.may_be_refused(),
            _ => false,
        };
        match self.ops.iter_mut().find(due) {
            Some(Record::Rma(rma)) => rma.refused = true,
            _ => self.complain(format!("rank {rank}: no write had to be refused: {c:?}")),
        }
    }

    /// Checks that each refusal of a write that had left was reported.
    fn judge_refusals(&self, is_alive: &impl Fn(usize) -> bool, out: &mut Vec<String>) {
        for (op, record) in self.ops.iter().enumerate() {
            let Record::Rma(rma) = record else { continue };
            let sure = is_alive(rma.rank) && is_alive(rma.target) && !self.may_be_lost(op, rma.rank, rma.target);
            if sure && rma.must_fail.is_some() && rma.end == Some(Ok(())) && !rma.refused {
                out.push(format!("operation {op}: its refusal was not reported: {}", describe(rma)));
            }
        }
    }

    pub(super) fn remote_event(&mut self, rank: usize, c: &Completion, src: Option<usize>) {
        *self.events.entry((rank, c.ctx.user, c.kind == Kind::RemoteWrite)).or_insert(0) += 1;
        if !c.flags.contains(CompletionFlags::DATA) {
            return;
        }
        if c.flags.contains(CompletionFlags::ATOMIC) {
            return self.atomic_event(rank, c, src);
        }
        let found = self.ops.iter().enumerate().find_map(|(op, record)| match record {
            Record::Rma(rma) if rma.data == Some(c.data) && rma.target == rank => Some((op, rma)),
            _ => None,
        });
        let Some((op, rma)) = found else {
            self.complain(format!("rank {rank}: unknown data of a remote write: {c:?}"));
            return;
        };
        let problem = if c.kind != Kind::RemoteWrite || rma.kind != Kind::Write {
            "a remote read with data"
        } else if rma.must_fail.is_some() {
            "a refused write left data"
        } else if rma.events > 0 {
            "the same remote write was reported twice"
        } else if c.ctx.user != rma.region {
            "the wrong region of a remote write"
        } else if src != Some(self.known_as(rma.rank)) {
            "the wrong source of a remote write"
        } else if c.len != rma.len {
            "the wrong length of a remote write"
        } else if !stored(op, rma) {
            "data of a remote write arrived before its bytes"
        } else {
            ""
        };
        if !problem.is_empty() {
            let text = describe(rma);
            self.complain(format!("operation {op}: {problem}: {c:?}\n    {text}"));
        }
        if let Some(Record::Rma(rma)) = self.ops.get_mut(op) {
            rma.events += 1;
        }
    }

    /// Checks that regions with events have reported each operation once, however many pieces it had.
    fn judge_events(&self, is_alive: &impl Fn(usize) -> bool, out: &mut Vec<String>) {
        let mut expected = BTreeMap::new();
        let mut unsure = BTreeSet::new();
        for (op, record) in self.ops.iter().enumerate() {
            if let Record::Atomic(atomic) = record {
                let (key, count) = Self::atomic_events(atomic);
                *expected.entry(key).or_insert(0) += count;
                if !is_alive(atomic.rank) || self.may_be_lost(op, atomic.rank, atomic.target) {
                    unsure.insert(key);
                }
            }
            let Record::Rma(rma) = record else { continue };
            let key = (rma.target, rma.region, rma.kind == Kind::Write);
            let reported = rma.reported || rma.data.is_some();
            if rma.end.is_none_or(|end| end.is_ok()) && rma.must_fail.is_none() && reported {
                *expected.entry(key).or_insert(0) += 1;
            }
            if !is_alive(rma.rank) || self.may_be_lost(op, rma.rank, rma.target) {
                unsure.insert(key);
            }
        }
        for key in self.events.keys() {
            expected.entry(*key).or_insert(0);
        }
        for (key, count) in expected {
            let seen = self.events.get(&key).copied().unwrap_or(0);
            if is_alive(key.0) && !unsure.contains(&key) && seen != count {
                out.push(format!("region {} of rank {}: {seen} remote events instead of {count}", key.1, key.0));
            }
        }
    }

    /// The offset at which a region differs from its pattern outside of the writes to it.
    pub(crate) fn stray_write(&self, index: usize, region: Buffer) -> Option<usize> {
        let mut untouched = payload(index, region.len());
        let bytes = region.bytes();
        let base = region.iov().addr();
        for record in &self.ops {
            let Record::Rma(rma) = record else { continue };
            if rma.region == index as u64 && rma.kind == Kind::Write && rma.must_fail.is_none() {
                for part in &rma.remote {
                    let at = usize::try_from(part.iov().addr() - base).unwrap_or(0);
                    untouched[at..at + part.len()].copy_from_slice(&bytes[at..at + part.len()]);
                }
            }
        }
        if untouched == bytes {
            return None;
        }
        untouched.iter().zip(&bytes).position(|(was, is)| was != is)
    }

    /// Checks the final content of the regions.
    pub(super) fn judge_memory(&self, is_alive: &impl Fn(usize) -> bool, out: &mut Vec<String>) {
        self.judge_events(is_alive, out);
        self.judge_atomics(is_alive, out);
        self.judge_refusals(is_alive, out);
        for (op, record) in self.ops.iter().enumerate() {
            let Record::Rma(rma) = record else { continue };
            let sure = is_alive(rma.rank) && is_alive(rma.target) && !self.may_be_lost(op, rma.rank, rma.target);
            let succeeded = rma.end.is_none_or(|end| end.is_ok()) && rma.must_fail.is_none();
            if rma.kind != Kind::Write || !sure {
                continue;
            }
            if succeeded && !stored(op, rma) {
                out.push(format!("operation {op} did not arrive: {}", describe(rma)));
            }
            if succeeded && rma.data.is_some() && rma.events != 1 {
                out.push(format!("operation {op}: {} remote events: {}", rma.events, describe(rma)));
            }
        }
    }
}

/// Whether the target's memory holds the bytes of a write.
fn stored(op: Op, rma: &RmaRecord) -> bool {
    let there = rma.remote.iter().map(Buffer::bytes).collect::<Vec<_>>().concat();
    there == payload(op, rma.len)
}

pub(super) fn describe(r: &RmaRecord) -> String {
    format!(
        "{:?} {} → {}, {} bytes in {} pieces, data {:x?}, {:?}, ended {:?}",
        r.kind,
        r.rank,
        r.target,
        r.len,
        r.remote.len(),
        r.data,
        r.flags,
        r.end
    )
}
