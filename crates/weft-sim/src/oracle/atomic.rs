//! The verdict on atomic operations.
//!
//! All ranks add to the counters. For these the oracle demands linearizability: one order of all additions
//! must explain the fetched values. That order must agree with the order in which each rank started its
//! additions, and with the completions that preceded other starts. Each addition covers the interval from its
//! fetched value to that value plus its operand. The intervals must not overlap, and together with the
//! additions that fetch nothing they must add up to the final value.
//!
//! A slot belongs to one rank. Its operations take effect in the order in which they were started, so the value
//! that each must fetch is known in advance. The model executes them by [`Amo::execute`], which has tests of
//! its own.

use std::collections::BTreeMap;

use weft_engine::amo::Amo;
use weft_engine::api::{Completion, CompletionFlags, Fault, Kind, OpFlags};
use weft_engine::mem::Owned;

use super::{Op, Oracle, Record, expect};
use crate::memory::Buffer;

/// An accepted atomic operation.
#[derive(Clone, Debug)]
pub struct AtomicRecord {
    /// Initiator.
    pub rank: usize,
    /// Target.
    pub target: usize,
    /// The target region's user value, which its remote events carry.
    pub region: u64,
    /// Whether the region reports every access.
    pub reported: bool,
    /// The operation.
    pub amo: Amo,
    /// Flags as posted.
    pub flags: OpFlags,
    /// Immediate data.
    pub data: Option<u64>,
    /// Length at the target in bytes.
    pub len: usize,
    /// Remote pieces.
    pub pieces: usize,
    /// Offset in the region.
    pub offset: usize,
    /// Operands, then comparison values.
    pub sources: Vec<u8>,
    /// Whether the operation adds to counters.
    pub counts: bool,
    /// Bytes that must be fetched, unless the operation adds to counters.
    pub expected: Vec<u8>,
    /// The fetched bytes.
    pub fetched: Vec<u8>,
    /// Local memory: sources, then results. Freed at completion.
    pub buffer: Buffer,
    /// The target's memory.
    pub there: Buffer,
    /// The fault with which it must end, if any.
    pub must_fail: Option<Fault>,
    /// Start time on the oracle's clock.
    pub started: u64,
    /// Result and end time.
    pub end: Option<(Result<(), Fault>, u64)>,
    /// Remote events seen that carry its data.
    pub events: usize,
}

impl AtomicRecord {
    const fn kind(&self) -> Kind {
        if self.amo.fetches() { Kind::FetchAtomic } else { Kind::Atomic }
    }

    const fn remote_kind(&self) -> Kind {
        if self.amo.fetches() { Kind::RemoteRead } else { Kind::RemoteWrite }
    }

    /// Whether it has taken effect, provided that no link broke.
    fn succeeded(&self) -> bool {
        self.must_fail.is_none() && self.end.is_none_or(|(end, _)| end.is_ok())
    }
}

/// One addition to one counter.
struct Addition {
    op: Op,
    rank: usize,
    operand: u64,
    /// `None` if it did not fetch or has not completed.
    fetched: Option<u64>,
    started: u64,
    ended: Option<u64>,
}

impl Oracle {
    /// Executes an operation on a slot in the model, and records the bytes that it must fetch.
    pub(crate) fn model(&mut self, atomic: &mut AtomicRecord) {
        if atomic.counts || atomic.must_fail.is_some() {
            return;
        }
        let end = atomic.offset + atomic.len;
        let model = self.models.entry(atomic.region).or_default();
        if model.len() < end {
            model.resize(end, 0);
        }
        let mut memory = Owned::new(model[atomic.offset..end].to_vec());
        let iov = memory.iov();
        atomic.amo.execute(&[iov], &atomic.sources, atomic.amo.fetches().then_some(&mut atomic.expected));
        iov.read(&mut model[atomic.offset..end]);
    }

    pub(super) fn atomic_completed(
        &mut self,
        op: Op,
        atomic: &mut AtomicRecord,
        c: &Completion,
        at: u64,
    ) -> Result<Option<Buffer>, String> {
        if atomic.end.is_some() {
            return Err("completed twice".into());
        }
        atomic.end = Some((c.fault.map_or(Ok(()), Err), at));
        expect(c.kind == atomic.kind(), "kind")?;
        match (c.fault, atomic.must_fail) {
            (Some(fault), Some(must)) if fault == must => return Ok(Some(atomic.buffer)),
            (Some(Fault::Link(why)), _) if self.excuses(op, why, atomic.rank, atomic.target) => {
                return Ok(Some(atomic.buffer));
            }
            (Some(fault), _) => return Err(format!("failed: {fault}")),
            (None, Some(fault)) => return Err(format!("succeeded, and should have failed: {fault}")),
            (None, None) => {}
        }
        expect(!atomic.flags.contains(OpFlags::QUIET), "a quiet operation must report no success")?;
        expect(c.len == atomic.len, "length")?;
        self.check_target_alive(op, atomic.target)?;
        let sources = atomic.buffer.part(0, atomic.sources.len());
        let results = atomic.buffer.part(atomic.sources.len(), usize::MAX).bytes();
        let untouched = if atomic.flags.contains(OpFlags::INJECT) {
            sources.is_filled(0x1F)
        } else {
            sources.bytes() == atomic.sources
        };
        expect(untouched, "sources were written")?;
        if atomic.amo.fetches() {
            atomic.fetched.clone_from(&results);
            let sure = !atomic.counts && self.model_holds(atomic);
            expect(!sure || results == atomic.expected, "the fetched bytes differ")?;
        }
        Ok(Some(atomic.buffer))
    }

    /// Whether the content of a rank's slot is known: no operation there has failed with a link, or may be
    /// lost.
    fn model_holds(&self, atomic: &AtomicRecord) -> bool {
        let (rank, target) = (atomic.rank, atomic.target);
        let same = |other: &AtomicRecord| (other.rank, other.region, other.counts) == (rank, atomic.region, false);
        let broken = |op: Op, other: &AtomicRecord| {
            let failed = other.must_fail.is_none() && matches!(other.end, Some((Err(_), _)));
            failed || self.may_be_lost(op, rank, target)
        };
        !self.disturbed_since(rank, target, 0)
            || !self
                .ops
                .iter()
                .enumerate()
                .any(|(op, record)| matches!(record, Record::Atomic(other) if same(other) && broken(op, other)))
    }

    /// Checks a remote event of an atomic operation with data.
    pub(super) fn atomic_event(&mut self, rank: usize, c: &Completion, src: Option<usize>) {
        let found = self.ops.iter().enumerate().find_map(|(op, record)| match record {
            Record::Atomic(atomic) if atomic.data == Some(c.data) && atomic.target == rank => Some((op, atomic)),
            _ => None,
        });
        let Some((op, atomic)) = found else {
            self.complain(format!("rank {rank}: unknown data of an atomic operation: {c:?}"));
            return;
        };
        let problem = if c.kind != atomic.remote_kind() {
            "the wrong kind of a remote event"
        } else if c.flags.contains(CompletionFlags::CHANGES) != (atomic.amo.fetches() && atomic.amo.changes()) {
            "a remote event that hides or feigns a change"
        } else if atomic.must_fail.is_some() {
            "a refused operation left data"
        } else if atomic.events > 0 {
            "the same operation was reported twice"
        } else if c.ctx.user != atomic.region {
            "the wrong region of a remote event"
        } else if src != Some(self.known_as(atomic.rank)) {
            "the wrong source of a remote event"
        } else if c.len != atomic.len {
            "the wrong length of a remote event"
        } else {
            ""
        };
        if !problem.is_empty() {
            let text = describe(atomic);
            self.complain(format!("operation {op}: {problem}: {c:?}\n    {text}"));
        }
        if let Some(Record::Atomic(atomic)) = self.ops.get_mut(op) {
            atomic.events += 1;
        }
    }

    /// The key of an operation's remote events, and their number.
    pub(super) fn atomic_events(atomic: &AtomicRecord) -> ((usize, u64, bool), usize) {
        let key = (atomic.target, atomic.region, atomic.remote_kind() == Kind::RemoteWrite);
        (key, usize::from(atomic.succeeded() && (atomic.reported || atomic.data.is_some())))
    }

    /// Checks the final content of the regions and the fetched values.
    pub(super) fn judge_atomics(&self, is_alive: &impl Fn(usize) -> bool, out: &mut Vec<String>) {
        let mut counters: BTreeMap<(u64, usize), (Buffer, Vec<Addition>)> = BTreeMap::new();
        let mut unsure = Vec::new();
        for (op, record) in self.ops.iter().enumerate() {
            let Record::Atomic(atomic) = record else { continue };
            let lost = self.may_be_lost(op, atomic.rank, atomic.target);
            let sure = is_alive(atomic.rank) && is_alive(atomic.target) && !lost;
            if !sure {
                unsure.push(atomic.region);
                continue;
            }
            if !atomic.succeeded() {
                continue;
            }
            if atomic.data.is_some() && atomic.events != 1 {
                out.push(format!("operation {op}: {} remote events: {}", atomic.events, describe(atomic)));
            }
            if atomic.counts {
                for n in 0..atomic.len / 8 {
                    let place = (atomic.region, atomic.offset + n * 8);
                    let counter = counters.entry(place).or_insert_with(|| (atomic.there.part(n * 8, 8), Vec::new()));
                    counter.1.push(Addition {
                        op,
                        rank: atomic.rank,
                        operand: word(&atomic.sources, n),
                        fetched: (!atomic.fetched.is_empty()).then(|| word(&atomic.fetched, n)),
                        started: atomic.started,
                        ended: atomic.end.map(|(_, at)| at),
                    });
                }
            } else if self.model_holds(atomic) {
                let model = self.models.get(&atomic.region).map_or(&[][..], |model| &model[atomic.offset..]);
                if !model.starts_with(&atomic.there.bytes()) {
                    out.push(format!("operation {op}: the target holds other bytes at the end: {}", describe(atomic)));
                }
            }
        }
        for ((region, offset), (there, additions)) in counters {
            // An addition that failed with its link may have taken effect.
            if !unsure.contains(&region)
                && let Err(wrong) = linear(&additions, word(&there.bytes(), 0))
            {
                out.push(format!("counter at {offset} of region {region}: {wrong}"));
            }
        }
    }
}

fn word(bytes: &[u8], n: usize) -> u64 {
    bytes.chunks_exact(8).nth(n).and_then(|word| word.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// Checks that the additions can have happened one after the other and led to `end`.
fn linear(additions: &[Addition], end: u64) -> Result<(), String> {
    let sum: u64 = additions.iter().map(|a| a.operand).sum();
    if sum != end {
        return Err(format!("holds {end}, not the sum {sum}"));
    }
    // Each fetched value must be a sum of operands.
    let unit = additions.iter().map(|a| a.operand).fold(0, divisor);
    let mut order = additions.iter().filter_map(|a| a.fetched.map(|fetched| (fetched, a))).collect::<Vec<_>>();
    order.sort_by_key(|(fetched, _)| *fetched);
    let mut latest: BTreeMap<usize, Op> = BTreeMap::new();
    let mut started = 0;
    let mut free = 0;
    for (fetched, a) in order {
        if unit > 0 && !fetched.is_multiple_of(unit) {
            return Err(format!("operation {} fetched {fetched}, which is no sum of operands", a.op));
        }
        if fetched < free || fetched.saturating_add(a.operand) > end {
            return Err(format!("operation {} fetched {fetched}, inside another's addition", a.op));
        }
        free = fetched + a.operand;
        if let Some(before) = latest.insert(a.rank, a.op)
            && before > a.op
        {
            return Err(format!("operations {} and {before} of rank {} are in the wrong order", a.op, a.rank));
        }
        // An operation later in the order must not have completed before an earlier one was started.
        if a.ended.is_some_and(|ended| ended < started) {
            return Err(format!("operation {} completed before an earlier one in the order was started", a.op));
        }
        started = started.max(a.started);
    }
    Ok(())
}

/// The greatest common divisor.
fn divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { divisor(b, a % b) }
}

pub(super) fn describe(a: &AtomicRecord) -> String {
    format!(
        "{:?} {} → {}, {} bytes at {} of region {} in {} pieces, data {:x?}, {:?}, ended {:?}",
        a.amo, a.rank, a.target, a.len, a.offset, a.region, a.pieces, a.data, a.flags, a.end
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(op: Op, rank: usize, operand: u64, fetched: Option<u64>, started: u64, ended: u64) -> Addition {
        Addition { op, rank, operand, fetched, started, ended: Some(ended) }
    }

    #[test]
    fn impossible_histories_are_rejected() {
        let good = || vec![add(1, 0, 2, Some(0), 1, 5), add(2, 1, 3, Some(3), 2, 6), add(3, 0, 1, None, 3, 7)];
        assert_eq!(linear(&good(), 6), Ok(()));
        assert!(linear(&good(), 7).is_err(), "the sum");
        let mut bad = good();
        bad[1].fetched = Some(1);
        assert!(linear(&bad, 6).is_err(), "overlap");
        bad[1].fetched = Some(4);
        assert!(linear(&bad, 6).is_err(), "beyond the end");
        let swapped = [add(1, 0, 2, Some(1), 1, 5), add(2, 0, 1, Some(0), 2, 6)];
        assert!(linear(&swapped, 3).is_err(), "order of one rank");
        let late = [add(1, 0, 2, Some(1), 1, 5), add(2, 1, 1, Some(0), 6, 7)];
        assert!(linear(&late, 3).is_err(), "completed before the earlier one began");
    }
}
