//! Collectives of a team, and those that shared memory performs.
//!
//! Place in the data flow: weft-gex-c makes a [`Collective`] of a call, and `team` starts it. Teams within a
//! neighbourhood perform barriers, broadcasts and short reductions as a [`Task`]: polls of the rank move it on
//! ([`Queue::run`]) until its event is complete. All others are collectives of the engine (`group`). The tasks of a
//! team run one after the other, in the order of their starts, which is the same for all members.
//!
//! Data passes through the members' chunks (`area`), one piece after the other. Pieces are numbered through the life of
//! the team. A member writes piece n only when all members have consumed piece n − 2, which used the same chunk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

pub use weft_engine::collective::{Extent, Prefix};

use crate::area::{Area, CHUNK_BYTES, Part};
use crate::barrier::TeamBarrier;
use crate::combine::Combine;
use crate::event::Slot;
use crate::gate::{Gate, Threads};
use crate::memory::{Piece, bytes_at, bytes_at_mut};

/// The word of a member's data line that counts consumed pieces. Word 0 counts written ones.
const CONSUMED: usize = 1;

/// A collective that moves blocks of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// The root's block reaches all members.
    Broadcast(u32),
    /// Block m of the root reaches member m.
    Scatter(u32),
    /// The root receives the blocks of all members, in their order.
    Gather(u32),
    /// All members receive the blocks of all members, in their order.
    GatherAll,
    /// Block m of each member reaches member m.
    Exchange,
}

/// The results of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum To {
    /// One member has the result.
    One(u32),
    /// All members have the result.
    All,
    /// Member m has block m of the result.
    Each,
    /// Member m has the reduction of the members up to it, or before it.
    Prefix(Prefix),
}

/// A collective as a client asks for it. Memory is named by addresses; 0: none.
pub enum Collective {
    /// A barrier.
    Barrier,
    /// Moves blocks of one length.
    Move {
        /// The operation.
        what: Move,
        /// The address of the block or the blocks that this member gives.
        source: usize,
        /// The address for the result.
        result: usize,
        /// The length of a block.
        bytes: usize,
    },
    /// A reduction.
    Reduce {
        /// The destinations of the result.
        to: To,
        /// The address of this member's operand.
        source: usize,
        /// The address for the result.
        result: usize,
        /// The number of elements in a block.
        count: usize,
        /// The operation.
        combine: Combine,
    },
    /// Moves blocks of different lengths.
    Uneven {
        /// The address of the blocks that this member gives.
        source: usize,
        /// The address for those that it takes.
        result: usize,
        /// The blocks for each member.
        given: Vec<Extent>,
        /// The blocks of each member.
        taken: Vec<Extent>,
    },
}

/// A collective in shared memory.
pub enum Task {
    /// A barrier of a number. The member has arrived.
    Barrier {
        /// Its number.
        number: u64,
        /// Members that have arrived.
        seen: u32,
    },
    /// Moves data through the chunks.
    Data(Transfer),
}

/// A broadcast or reduction.
pub struct Transfer {
    /// The address of the data that this member gives; 0: none.
    source: usize,
    /// The address for the result; 0: none.
    result: usize,
    bytes: usize,
    /// Bytes of a piece.
    piece: usize,
    /// The member that gives data to all. `None`: all members give.
    root: Option<u32>,
    combine: Option<Combine>,
    /// Bytes that this member has given and taken.
    given: usize,
    taken: usize,
}

impl Task {
    /// A broadcast of `bytes` bytes. The source is that of the root.
    #[must_use]
    pub fn broadcast(root: u32, is_root: bool, source: usize, result: Piece) -> Self {
        let Piece { addr: result, bytes } = result;
        let (source, result) = if is_root { (source, if result == source { 0 } else { result }) } else { (0, result) };
        Self::Data(Transfer {
            source,
            result,
            bytes,
            piece: CHUNK_BYTES,
            root: Some(root),
            combine: None,
            given: 0,
            taken: 0,
        })
    }

    /// A reduction of `count` elements, which fit a chunk, from one address to another. A member without a result has
    /// the address 0.
    #[must_use]
    pub fn reduce([source, result]: [usize; 2], count: usize, combine: Combine) -> Self {
        let element = combine.element_bytes().max(1);
        let (piece, bytes) = (CHUNK_BYTES / element * element, count * element);
        let combine = Some(combine);
        Self::Data(Transfer { source, result, bytes, piece, root: None, combine, given: 0, taken: 0 })
    }

    /// Moves on. Returns whether the collective is complete here. `pieces`: the number of pieces of the team's
    /// collectives that are complete here.
    #[inline]
    pub fn run(&mut self, area: &Area, me: u32, pieces: &mut u64) -> bool {
        match self {
            Self::Barrier { number, seen } => TeamBarrier::is_over(area, *number, seen),
            Self::Data(transfer) => transfer.run(area, me, pieces),
        }
    }
}

impl Transfer {
    /// `pieces`: the number of pieces of the team's collectives that are complete here.
    fn run(&mut self, area: &Area, me: u32, pieces: &mut u64) -> bool {
        loop {
            let before = (self.given, self.taken);
            self.give(area, me, *pieces);
            self.take(area, me, *pieces);
            if self.taken >= self.bytes && self.given >= self.bytes {
                *pieces += self.bytes.div_ceil(self.piece.max(1)) as u64;
                return true;
            }
            if before == (self.given, self.taken) {
                return false;
            }
        }
    }

    fn number(&self, pieces: u64, at: usize) -> u64 {
        pieces + (at / self.piece) as u64 + 1
    }

    fn give(&mut self, area: &Area, me: u32, pieces: u64) {
        if self.root.is_some_and(|root| root != me) {
            self.given = self.bytes;
            return;
        }
        while self.given < self.bytes {
            let number = self.number(pieces, self.given);
            let consumed = |member| area.line(member, Part::Data).word(CONSUMED).load(Ordering::Acquire);
            if (0..area.members()).any(|member| consumed(member) + 2 < number) {
                return;
            }
            let len = self.piece.min(self.bytes - self.given);
            let from = bytes_at(Piece { addr: self.source + self.given, bytes: len });
            bytes_at_mut(Piece::at(area.chunk(me, number), len)).copy_from_slice(from);
            area.arrivals(me, Part::Data).store(number, Ordering::Release);
            self.given += len;
            // Its own data is combined with that of others piece by piece.
            if self.combine.is_some() {
                return;
            }
        }
    }

    fn take(&mut self, area: &Area, me: u32, pieces: u64) {
        while self.taken < self.bytes {
            let number = self.number(pieces, self.taken);
            let len = self.piece.min(self.bytes - self.taken);
            let is_ready = |member| area.arrivals(member, Part::Data).load(Ordering::Acquire) >= number;
            let ready = match self.root {
                Some(root) => is_ready(root),
                None if self.result == 0 => is_ready(me),
                None => (0..area.members()).all(is_ready),
            };
            if !ready {
                return;
            }
            if self.result != 0 {
                self.fetch(area, number, len);
            }
            self.taken += len;
            area.line(me, Part::Data).word(CONSUMED).store(number, Ordering::Release);
        }
    }

    /// Writes a piece of the result.
    fn fetch(&self, area: &Area, number: u64, len: usize) {
        let chunk = |member| bytes_at(Piece::at(area.chunk(member, number), len));
        let result = bytes_at_mut(Piece { addr: self.result + self.taken, bytes: len });
        let last = self.root.unwrap_or(area.members() - 1);
        result.copy_from_slice(chunk(last));
        if let Some(combine) = &self.combine {
            // From the right, so that the left operand comes first in operations that do not commute.
            (0..last).rev().for_each(|member| combine.apply(chunk(member), result));
        }
    }
}

#[derive(Default)]
struct Tasks {
    waiting: VecDeque<(Task, &'static Slot)>,
    /// Pieces of complete collectives.
    pieces: u64,
}

/// The collectives of a team that are under way.
pub struct Queue {
    tasks: Gate<Tasks>,
    len: AtomicU64,
}

impl Queue {
    /// An empty queue, for these threads.
    #[must_use]
    pub fn new(threads: Threads) -> Self {
        Self { tasks: Gate::new(threads, Tasks::default()), len: AtomicU64::new(0) }
    }

    fn with_tasks<R>(&self, work: impl FnOnce(&mut Tasks) -> R) -> R {
        match self.tasks.with(work) {
            Ok(result) => result,
            Err(_) => crate::fatal!("the function of a reduction has called the library; it may not"),
        }
    }

    /// Adds a collective. Returns its event; `None`: it was complete at once.
    /// `step` moves a task on.
    pub fn start(&self, mut task: Task, step: impl FnOnce(&mut Task, &mut u64) -> bool) -> Option<&'static Slot> {
        self.with_tasks(|Tasks { waiting, pieces }| {
            if waiting.is_empty() && step(&mut task, pieces) {
                return None;
            }
            let slot = Slot::take();
            waiting.push_back((task, slot));
            self.len.fetch_add(1, Ordering::Release);
            Some(slot)
        })
    }

    /// Moves the collectives on. Returns the number of those that are complete now.
    #[inline]
    pub fn run(&self, mut step: impl FnMut(&mut Task, &mut u64) -> bool) -> usize {
        let run = |Tasks { waiting, pieces }: &mut Tasks| {
            let mut complete = 0;
            while let Some((task, slot)) = waiting.front_mut() {
                if !step(task, pieces) {
                    break;
                }
                slot.complete();
                waiting.pop_front();
                self.len.fetch_sub(1, Ordering::Release);
                complete += 1;
            }
            complete
        };
        self.tasks.try_with(run).unwrap_or(0)
    }

    /// Whether the collective with this event reads its source yet. `None`: there is none.
    pub fn reads_source(&self, event: &Slot) -> Option<bool> {
        self.with_tasks(|tasks| {
            let (task, _) = tasks.waiting.iter().find(|(_, slot)| std::ptr::eq(*slot, event))?;
            Some(match task {
                Task::Barrier { .. } => false,
                Task::Data(transfer) => transfer.given < transfer.bytes,
            })
        })
    }

    /// Ends all collectives, because a member has failed. Returns their number.
    pub fn fail(&self) -> usize {
        self.with_tasks(|tasks| {
            let count = tasks.waiting.len();
            for (_, slot) in tasks.waiting.drain(..) {
                slot.fail();
                self.len.fetch_sub(1, Ordering::Release);
            }
            count
        })
    }

    /// Whether collectives are under way.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len.load(Ordering::Acquire) == 0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::board::Board;
    use crate::combine::Type;

    fn area(members: u32) -> Area {
        let board = Board::create(1).unwrap();
        let offset = board.allocate(Area::bytes(members) as u64).unwrap();
        Area::map(&board, offset, members).unwrap()
    }

    /// Runs two collectives on all members, in turns.
    fn run_all(members: u32, make: impl Fn(u32, u32) -> Task) {
        let area = area(members);
        let queues: Vec<Queue> = (0..members).map(|_| Queue::new(Threads::Many)).collect();
        let mut slots = Vec::new();
        for round in 0..2 {
            for me in 0..members {
                let step = |task: &mut Task, pieces: &mut u64| task.run(&area, me, pieces);
                slots.extend(queues[me as usize].start(make(round, me), step));
            }
        }
        for _ in 0..10_000 {
            if queues.iter().all(Queue::is_empty) {
                break;
            }
            for me in 0..members {
                assert!(queues[me as usize].run(|task, pieces| task.run(&area, me, pieces)) <= 2);
            }
        }
        assert!(queues.iter().all(Queue::is_empty));
        assert!(slots.into_iter().all(Slot::test));
    }

    #[test]
    fn a_broadcast_reaches_all_members() {
        for (members, bytes) in [(1, 10), (2, 0), (3, 3 * CHUNK_BYTES + 5), (5, CHUNK_BYTES)] {
            let data: Vec<u8> = (0..=250).cycle().take(bytes).collect();
            let results: Vec<Vec<u8>> = (0..members * 2).map(|_| vec![0_u8; bytes]).collect();
            run_all(members, |round, me| {
                let result = results[(round * members + me) as usize].as_ptr().expose_provenance();
                let result = Piece { addr: result, bytes };
                Task::broadcast(members - 1, me == members - 1, data.as_ptr().expose_provenance(), result)
            });
            assert!(results.iter().all(|result| *result == data), "{members} {bytes}");
        }
    }

    #[test]
    fn a_reduction_combines_all_members() {
        for (members, count) in [(1, 3), (2, 1), (4, 2500)] {
            let sources: Vec<Vec<u64>> =
                (0..members).map(|me| (0..count).map(|at| u64::from(me) * 1000 + at).collect()).collect();
            let results: Vec<Vec<u64>> = (0..members * 2).map(|_| vec![0; usize::try_from(count).unwrap()]).collect();
            run_all(members, |round, me| {
                let source = sources[me as usize].as_ptr().expose_provenance();
                let result = results[(round * members + me) as usize].as_ptr().expose_provenance();
                let result = if round == 1 && me != 0 { 0 } else { result };
                Task::reduce([source, result], usize::try_from(count).unwrap(), Combine::known(Type::U64, 3).unwrap())
            });
            let base: u64 = (0..members).map(|me| u64::from(me) * 1000).sum();
            let expected: Vec<u64> = (0..count).map(|at| base + at * u64::from(members)).collect();
            for (at, result) in results.iter().enumerate() {
                let takes = at <= members as usize;
                assert_eq!(result == &expected, takes, "{members} {count} {at}");
            }
        }
    }
}
