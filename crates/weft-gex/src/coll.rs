//! Collectives of a team, in the shared memory of a neighbourhood or by letters ([`crate::spread`]).
//!
//! Place in the data flow: weft-gex-c starts a [`Task`], and polls of the rank move it on ([`Queue::run`]) until its
//! event is complete. The collectives of a team run one after the other, in the order of their starts, which is the
//! same for all members.
//!
//! Data passes through the members' chunks (`area`), one piece after the other. Pieces are numbered through the life of
//! the team. A member writes piece n only when all members have consumed piece n − 2, which used the same chunk.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use crate::area::{Area, CHUNK_BYTES, Part};
use crate::barrier::TeamBarrier;
use crate::combine::{Op, Type, combine};
use crate::event::Slot;
use crate::invoke;
use crate::memory::{Piece, bytes_at, bytes_at_mut};
use crate::post::Mail;
use crate::spread::{self, Dissemination};

/// The word of a member's data line that counts consumed pieces. Word 0 counts written ones.
const CONSUMED: usize = 1;

/// The operation of a reduction.
#[derive(Clone, Copy)]
pub enum Combine {
    /// One of the API, on elements of a type.
    Known(Type, Op),
    /// The client's function, on elements of a size.
    User {
        /// The function.
        function: invoke::ReduceFn,
        /// The address of the client's data, which is only passed back.
        cdata: usize,
        /// Bytes of an element.
        bytes: usize,
    },
}

impl Combine {
    pub(crate) fn element_bytes(&self) -> usize {
        match self {
            Self::Known(ty, _) => ty.bytes(),
            Self::User { bytes, .. } => *bytes,
        }
    }

    pub(crate) fn apply(&self, left: &[u8], right: &mut [u8]) {
        match self {
            Self::Known(ty, op) => combine(*ty, *op, left, right),
            Self::User { function, cdata, bytes } => {
                invoke::reduce(*function, left, right, right.len() / bytes, *cdata);
            }
        }
    }
}

/// A collective.
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
    /// Is performed by letters.
    Letters(Letters),
}

/// A collective of a team whose members share no memory.
pub enum Letters {
    /// A barrier.
    Barrier(Dissemination),
    /// A broadcast.
    Broadcast(spread::Broadcast),
    /// A reduction.
    Reduction(Box<spread::Reduction>),
}

impl Letters {
    /// Moves on. Returns whether the collective is complete here.
    pub fn run(&mut self, mail: &impl Mail) -> bool {
        match self {
            Self::Barrier(barrier) => barrier.run(mail, |_, _| 0),
            Self::Broadcast(broadcast) => broadcast.run(mail),
            Self::Reduction(reduction) => reduction.run(mail),
        }
    }
}

/// A collective as a client asks for it.
pub enum Collective {
    /// A barrier.
    Barrier,
    /// A broadcast.
    Broadcast {
        /// The member with the data.
        root: u32,
        /// The address of the data, at the root.
        source: usize,
        /// The address for the data.
        result: usize,
        /// Its length.
        bytes: usize,
    },
    /// A reduction.
    Reduce {
        /// Where the result goes.
        to: spread::To,
        /// The address of this member's operand.
        source: usize,
        /// The address for the result; 0: none.
        result: usize,
        /// The number of elements.
        count: usize,
        /// The operation.
        combine: Combine,
    },
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

    /// A reduction of `count` elements. A member without a result has the address 0. `None`: an element is too long.
    #[must_use]
    pub fn reduce(source: usize, result: usize, count: usize, combine: Combine) -> Option<Self> {
        let element = combine.element_bytes();
        let piece = (CHUNK_BYTES / element.max(1)).saturating_mul(element);
        let bytes = count.checked_mul(element)?;
        (piece > 0 || bytes == 0).then(|| {
            let combine = Some(combine);
            Self::Data(Transfer { source, result, bytes, piece, root: None, combine, given: 0, taken: 0 })
        })
    }

    /// Moves on. Returns whether the collective is complete here. `pieces`: the number of pieces of the team's
    /// collectives that are complete here.
    pub fn run(&mut self, area: &Area, me: u32, pieces: &mut u64) -> bool {
        match self {
            Self::Barrier { number, seen } => TeamBarrier::is_over(area, *number, seen),
            Self::Data(transfer) => transfer.run(area, me, pieces),
            Self::Letters(_) => {
                debug_assert!(false, "letters need no area");
                true
            }
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
#[derive(Default)]
pub struct Queue {
    tasks: Mutex<Tasks>,
    len: AtomicU64,
}

impl Queue {
    /// Adds a collective. Returns its event; `None`: it was complete at once.
    /// `step` moves a task on.
    pub fn start(&self, mut task: Task, step: impl FnOnce(&mut Task, &mut u64) -> bool) -> Option<&'static Slot> {
        let mut tasks = self.tasks.lock();
        let Tasks { waiting, pieces } = &mut *tasks;
        if waiting.is_empty() && step(&mut task, pieces) {
            return None;
        }
        let slot = Slot::take();
        waiting.push_back((task, slot));
        self.len.fetch_add(1, Ordering::Release);
        Some(slot)
    }

    /// Moves the collectives on. Returns the number of those that are complete now.
    pub fn run(&self, mut step: impl FnMut(&mut Task, &mut u64) -> bool) -> usize {
        let Some(mut tasks) = self.tasks.try_lock() else { return 0 };
        let Tasks { waiting, pieces } = &mut *tasks;
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

    fn area(members: u32) -> Area {
        let board = Board::create(1).unwrap();
        let offset = board.allocate(Area::bytes(members) as u64).unwrap();
        Area::map(&board, offset, members).unwrap()
    }

    /// Runs two collectives on all members, in turns.
    fn run_all(members: u32, make: impl Fn(u32, u32) -> Task) {
        let area = area(members);
        let queues: Vec<Queue> = (0..members).map(|_| Queue::default()).collect();
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
                Task::reduce(source, result, usize::try_from(count).unwrap(), Combine::Known(Type::U64, Op::Add))
                    .unwrap()
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
