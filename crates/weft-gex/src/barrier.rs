//! Barriers of teams, and named barriers.
//!
//! Place in the data flow: weft-gex-c calls [`TeamBarrier`] for `gex_Coll_Barrier…`, and [`Named`] for
//! `gasnet_barrier_…`. Each member counts its arrivals in a line of its own, and looks at the lines of the others.
//!
//! A barrier is the number of the arrival that ends it, so several may be under way. A named barrier also publishes its
//! id and flags, in one of two places in turn: a member that arrives at number n + 2 knows that all have left number n.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use weft_engine::Custom;
use weft_engine::collective::Order;
use weft_engine::mem::Iov;

use crate::area::{Area, Part};
use crate::coll::{Collective, To};
use crate::combine::Combine;
use crate::event::Slot;
use crate::job::Job;

/// The barriers of one member of a team.
#[derive(Default)]
pub struct TeamBarrier {
    started: AtomicU64,
}

impl TeamBarrier {
    /// Arrives. Returns the number of the barrier.
    #[inline(always)]
    pub fn arrive(&self, area: &Area, me: u32) -> u64 {
        let number = self.started.load(Ordering::Relaxed) + 1;
        self.started.store(number, Ordering::Relaxed);
        area.arrivals(me, Part::Barrier).store(number, Ordering::Release);
        number
    }

    /// Whether the barrier of a number is over.
    #[inline(always)]
    pub fn is_over(area: &Area, number: u64, seen: &mut u32) -> bool {
        area.have_arrived(Part::Barrier, number, seen)
    }
}

/// The flags of named barriers.
pub mod flags {
    /// The barrier has no id and matches any.
    pub const ANONYMOUS: u32 = 1;
    /// The caller knows of a mismatch.
    pub const MISMATCH: u32 = 2;
}

/// The outcome of a named barrier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All ids agree, or there are none.
    Matched,
    /// Two ids differ, or a rank has reported a mismatch.
    Mismatch,
    /// It is not over.
    NotReady,
    /// No barrier has been begun.
    NotBegun,
    /// A barrier has been begun and not ended.
    Begun,
    /// A rank has failed.
    Lost,
}

/// The id of a barrier: a number, none, or a known mismatch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Id {
    Anonymous,
    Number(i32),
    Mismatch,
}

impl Id {
    fn new(number: i32, flag_bits: u32) -> Self {
        if flag_bits & flags::MISMATCH != 0 {
            Self::Mismatch
        } else if flag_bits & flags::ANONYMOUS != 0 {
            Self::Anonymous
        } else {
            Self::Number(number)
        }
    }

    /// The id of two ranks together.
    fn join(self, other: Self) -> Self {
        match (self, other) {
            (Self::Anonymous, id) | (id, Self::Anonymous) => id,
            (Self::Number(one), Self::Number(two)) if one == two => self,
            _ => Self::Mismatch,
        }
    }

    fn to_word(self) -> u64 {
        match self {
            Self::Anonymous => 1 << 32,
            Self::Mismatch => 2 << 32,
            Self::Number(number) => u64::from(number.cast_unsigned()),
        }
    }

    fn from_word(word: u64) -> Self {
        #[expect(clippy::cast_possible_truncation, reason = "the number is in the low half")]
        match word >> 32 {
            0 => Self::Number((word as u32).cast_signed()),
            1 => Self::Anonymous,
            _ => Self::Mismatch,
        }
    }
}

#[derive(Default)]
struct State {
    /// The number of the last barrier that was begun.
    number: u64,
    /// The id with which it was begun, until it is ended.
    begun: Option<Id>,
    seen: u32,
    /// The id of the last barrier that has ended.
    last: Option<Id>,
    /// The barrier under way, in a team whose members share no memory.
    wave: Option<Wave>,
}

/// A named barrier by the engine: a reduction of the ids.
struct Wave {
    /// The event; `None`: it is complete.
    event: Option<&'static Slot>,
    /// The own id, and that of all ranks. Their place does not change.
    ids: Box<[u64; 2]>,
}

impl Wave {
    /// Whether it is over, and then, whether it has failed.
    fn end(&self) -> Option<bool> {
        let Some(event) = self.event else { return Some(false) };
        let failed = event.has_failed();
        event.test().then_some(failed)
    }
}

/// Combines the ids of ranks, in the reduction of a named barrier.
pub(crate) fn join_ids(_: &Custom, from: &Iov, into: &Iov, _: Order) {
    let id = |memory: &Iov| {
        let mut word = [0; 8];
        memory.read(&mut word);
        Id::from_word(u64::from_ne_bytes(word))
    };
    into.write(&id(from).join(id(into)).to_word().to_ne_bytes());
}

impl State {
    /// Ends a barrier with the id of all ranks. The end may have an id, which must then be that of the barrier.
    fn end(&mut self, joined: Id, at_end: Id) -> Outcome {
        self.begun = None;
        self.last = Some(joined);
        if joined.join(at_end) == Id::Mismatch { Outcome::Mismatch } else { Outcome::Matched }
    }
}

/// The named barriers of a rank.
#[derive(Default)]
pub struct Named(Mutex<State>);

impl Named {
    /// Begins a barrier.
    pub fn notify(&self, area: &Area, me: u32, number: i32, flag_bits: u32) -> Outcome {
        let mut state = self.0.lock();
        if state.begun.is_some() {
            return Outcome::Begun;
        }
        let id = Id::new(number, flag_bits);
        state.number += 1;
        state.seen = 0;
        state.begun = Some(id);
        let line = area.line(me, Part::Named);
        line.word(place(state.number)).store(id.to_word(), Ordering::Relaxed);
        line.word(0).store(state.number, Ordering::Release);
        Outcome::Matched
    }

    /// Begins a barrier of ranks that share no memory.
    pub fn notify_by_engine(&self, job: &Job, number: i32, flag_bits: u32) -> Outcome {
        let mut state = self.0.lock();
        if state.begun.is_some() {
            return Outcome::Begun;
        }
        let id = Id::new(number, flag_bits);
        state.begun = Some(id);
        let mut ids = Box::new([id.to_word(), 0]);
        let [source, result] = [0, 1].map(|at| (&raw mut ids[at]).expose_provenance());
        let reduction = Collective::Reduce { to: To::All, source, result, count: 1, combine: Combine::Ids };
        let event = job.world().start_by_engine(job, &reduction);
        state.wave = Some(Wave { event, ids });
        Outcome::Matched
    }

    /// Ends a barrier by the engine if it is over.
    pub fn try_end_by_engine(&self, number: i32, flag_bits: u32) -> Outcome {
        let mut state = self.0.lock();
        let Some(wave) = &state.wave else { return Outcome::NotBegun };
        match wave.end() {
            None => return Outcome::NotReady,
            Some(true) => {
                (state.wave, state.begun) = (None, None);
                return Outcome::Lost;
            }
            Some(false) => {}
        }
        let joined = Id::from_word(wave.ids[1]);
        state.wave = None;
        state.end(joined, Id::new(number, flag_bits))
    }

    /// Ends a barrier to which a rank that has failed does not come.
    pub fn abandon(&self) -> Outcome {
        self.0.lock().begun = None;
        Outcome::Lost
    }

    /// Whether all ranks have begun the barrier that this rank has begun last.
    #[must_use]
    pub fn is_over(&self, area: &Area) -> bool {
        area.have_arrived(Part::Named, self.0.lock().number, &mut 0)
    }

    /// Ends the barrier if all ranks have begun it.
    pub fn try_end(&self, area: &Area, number: i32, flag_bits: u32) -> Outcome {
        let mut state = self.0.lock();
        if state.begun.is_none() {
            return Outcome::NotBegun;
        }
        let (at, mut seen) = (state.number, state.seen);
        let over = area.have_arrived(Part::Named, at, &mut seen);
        state.seen = seen;
        if !over {
            return Outcome::NotReady;
        }
        let id = |member| Id::from_word(area.line(member, Part::Named).word(place(at)).load(Ordering::Relaxed));
        let joined = (0..area.members()).map(id).fold(Id::Anonymous, Id::join);
        state.end(joined, Id::new(number, flag_bits))
    }

    /// The id of the last barrier; `None` if it had none, or the ids differed.
    #[must_use]
    pub fn result(&self) -> Option<i32> {
        match self.0.lock().last {
            Some(Id::Number(number)) => Some(number),
            _ => None,
        }
    }
}

/// The word with the id of a barrier.
fn place(number: u64) -> usize {
    if number.is_multiple_of(2) { 1 } else { 2 }
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

    #[test]
    fn a_barrier_ends_when_the_last_member_arrives() {
        let area = area(3);
        let members: [TeamBarrier; 3] = Default::default();
        for round in 1..4 {
            let mut seen = 0;
            for (me, member) in (0..).zip(&members) {
                assert!(!TeamBarrier::is_over(&area, round, &mut seen));
                assert_eq!(member.arrive(&area, me), round);
            }
            assert!(TeamBarrier::is_over(&area, round, &mut seen));
        }
        // A member may begin several at once.
        assert_eq!((members[0].arrive(&area, 0), members[0].arrive(&area, 0)), (4, 5));
        assert!(!TeamBarrier::is_over(&area, 4, &mut 0));
    }

    fn round(ids: [(i32, u32); 3]) -> ([Outcome; 3], Option<i32>) {
        let area = area(3);
        let ranks: [Named; 3] = Default::default();
        for round in 0..3 {
            for (me, (rank, (id, flags))) in (0..).zip(ranks.iter().zip(ids)) {
                assert_ne!(rank.try_end(&area, id, flags), Outcome::Matched, "round {round}");
                assert_eq!(rank.notify(&area, me, id, flags), Outcome::Matched);
                assert_eq!(rank.notify(&area, me, id, flags), Outcome::Begun);
            }
            let ends = std::array::from_fn::<_, 3, _>(|me| ranks[me].try_end(&area, ids[me].0, ids[me].1));
            if round == 2 {
                return (ends, ranks[1].result());
            }
        }
        unreachable!()
    }

    #[test]
    fn ids_must_agree_unless_anonymous() {
        use Outcome::{Matched, Mismatch};
        let anonymous = (7, flags::ANONYMOUS);
        assert_eq!(round([(5, 0); 3]), ([Matched; 3], Some(5)));
        assert_eq!(round([(5, 0), anonymous, (5, 0)]), ([Matched; 3], Some(5)));
        assert_eq!(round([anonymous; 3]), ([Matched; 3], None));
        assert_eq!(round([(5, 0), anonymous, (6, 0)]), ([Mismatch; 3], None));
        assert_eq!(round([(5, 0), (5, 0), (0, flags::MISMATCH)]), ([Mismatch; 3], None));
    }

    #[test]
    fn an_id_at_the_end_is_that_of_the_beginning() {
        let area = area(1);
        let rank = Named::default();
        for (begin, end, outcome) in [
            ((3, 0), (4, 0), Outcome::Mismatch),
            ((3, 0), (4, flags::ANONYMOUS), Outcome::Matched),
            ((3, flags::ANONYMOUS), (4, 0), Outcome::Matched),
            ((3, 0), (3, flags::MISMATCH), Outcome::Mismatch),
        ] {
            rank.notify(&area, 0, begin.0, begin.1);
            assert_eq!(rank.try_end(&area, end.0, end.1), outcome, "{begin:?} {end:?}");
        }
    }
}
