//! Direct boards: two members on one host, each of which combines both contributions by itself.
//!
//! Place in the data flow: the rest of [`HostBoard`] has boards with counters that all members change.
//!
//! Each word has one writer, the member of the slot. All words only grow.
//! ```text
//! enter   left of all others > turn − BANKS   all members have left the bank's previous turn
//! arrive  shape, finished; entered = turn + 1 the contribution is in place
//! read    entered of all others > turn        their contributions may be combined
//! leave   left = turn + 1                     this member needs nothing of the turn any more
//! ```
//! `finished` is the number of turns that the member has left, without a gap. It comes in the line of `entered`. A
//! member that enters therefore seldom reads `left` of others: their last arrivals have told it.

use std::sync::atomic::{AtomicU64, Ordering};

use super::{BANK_WORDS, BANKS, DIRECT_MEMBERS, HostBoard, MEMBER_WORDS, Room, Shape};
use crate::mem::Iov;

impl HostBoard {
    /// Makes the board a direct one, if it has two members. All members of the group must do so. With more members
    /// the combinations would cost more than the counters, where members share processors.
    pub(crate) const fn make_direct(&mut self) {
        self.direct = self.members == DIRECT_MEMBERS;
    }

    /// Whether each member combines the contributions by itself.
    pub(crate) const fn is_direct(&self) -> bool {
        self.direct
    }

    /// The slots of all members in the bank of a turn.
    #[inline]
    fn slots(&self, turn: u64) -> impl Iterator<Item = Slot<'_>> {
        let at = self.bank_at(turn) + BANK_WORDS;
        let words = &self.arena.words()[at..at + self.members * MEMBER_WORDS];
        words.chunks_exact(MEMBER_WORDS).map(Slot)
    }

    #[inline]
    fn slot_at(&self, turn: u64, place: usize) -> Slot<'_> {
        let at = self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS;
        Slot(&self.arena.words()[at..at + MEMBER_WORDS])
    }

    /// Writes the contribution of the member at `place`, and reports its arrival.
    pub(crate) fn enter(&self, room: Room, turn: u64, place: usize, shape: Shape, contribution: &Iov) {
        if !contribution.is_empty() {
            self.slot(room, turn, place).copy_from(contribution);
        }
        let slot = self.slot_at(turn, place);
        slot.shape().store(shape.word(), Ordering::Relaxed);
        slot.finished().store(self.finished[place].get(), Ordering::Relaxed);
        slot.entered().store(turn + 1, Ordering::Release);
    }

    /// Whether all members have arrived.
    pub(crate) fn has_all(&self, turn: u64) -> bool {
        self.slots(turn).zip(&self.finished).all(|(slot, known)| {
            let has_entered = slot.entered().load(Ordering::Acquire) > turn;
            if has_entered {
                known.set(known.get().max(slot.finished().load(Ordering::Relaxed)));
            }
            has_entered
        })
    }

    /// Whether all members have left the bank's previous turn.
    pub(super) fn is_left(&self, turn: u64) -> bool {
        let Some(previous) = turn.checked_sub(BANKS as u64) else { return true };
        let mut all = self.finished[..self.members].iter().enumerate();
        all.all(|(place, finished)| {
            finished.get() > previous || self.slot_at(turn, place).left().load(Ordering::Acquire) > previous
        })
    }

    /// Reports that the member at `place` needs nothing of the turn any more.
    pub(crate) fn finish(&self, turn: u64, place: usize) {
        self.slot_at(turn, place).left().store(turn + 1, Ordering::Release);
        let mut finished = self.finished[place].get();
        // Operations may end in another order than that of the turns.
        let has_left = |turn: u64| self.slot_at(turn, place).left().load(Ordering::Relaxed) == turn.wrapping_add(1);
        for _ in 0..BANKS {
            if !has_left(finished) {
                break;
            }
            finished = finished.wrapping_add(1);
        }
        self.finished[place].set(finished);
    }

    /// Whether all members have made calls of this shape.
    pub(crate) fn all_have(&self, turn: u64, shape: Shape) -> bool {
        self.slots(turn).all(|slot| slot.shape().load(Ordering::Relaxed) == shape.word())
    }
}

/// The words of a member in a bank.
#[derive(Clone, Copy)]
struct Slot<'a>(&'a [AtomicU64]);

impl<'a> Slot<'a> {
    const fn entered(self) -> &'a AtomicU64 {
        &self.0[0]
    }

    const fn shape(self) -> &'a AtomicU64 {
        &self.0[1]
    }

    const fn left(self) -> &'a AtomicU64 {
        &self.0[2]
    }

    const fn finished(self) -> &'a AtomicU64 {
        &self.0[3]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::sync::Arc;
    use std::thread;

    use super::*;
    use crate::board::tests::own_arena;
    use crate::mem::Owned;

    /// The boards of all members, over one arena.
    fn boards(members: usize) -> Vec<HostBoard> {
        let arena = own_arena(members);
        let board = || {
            let mut board = HostBoard::new(Arc::clone(&arena), 0, members).unwrap();
            board.make_direct();
            board
        };
        (0..members).map(|_| board()).collect()
    }

    #[test]
    fn two_members_share_a_direct_board() {
        assert!(boards(2)[0].is_direct() && !boards(3)[0].is_direct());
    }

    #[test]
    fn a_direct_turn_passes_from_arrival_to_departure() {
        let [first, second]: [HostBoard; 2] = boards(2).try_into().ok().unwrap();
        let (shape, other) = (Shape::of_word(9), Shape::of_word(10));
        for turn in 0..3 * BANKS as u64 {
            let mut bytes = Owned::new(vec![u8::try_from(turn).unwrap(); 8]);
            assert!(first.is_free(turn) && second.is_free(turn));
            first.enter(Room::Tiny, turn, 0, shape, &bytes.iov());
            assert!(!first.has_all(turn) && !second.has_all(turn));
            second.enter(Room::Tiny, turn, 1, if turn == 5 { other } else { shape }, &bytes.iov());
            assert!(first.has_all(turn) && second.has_all(turn));
            assert!(first.all_have(turn, shape) == (turn != 5));
            let mut read = Owned::new(vec![0; 8]);
            read.iov().copy_from(&second.slot(Room::Tiny, turn, 0));
            assert_eq!(read.into_bytes(), bytes.into_bytes());
            first.finish(turn, 0);
            assert!(!first.is_free(turn + BANKS as u64) && !second.is_free(turn + BANKS as u64));
            second.finish(turn, 1);
            assert!(first.is_free(turn + BANKS as u64));
        }
    }

    /// Members that run ahead of one another never read a contribution of another turn.
    #[test]
    fn threads_read_the_contributions_of_their_turn() {
        const TURNS: u64 = 20_000;
        let boards = boards(2);
        thread::scope(|scope| {
            for (place, board) in boards.into_iter().enumerate() {
                scope.spawn(move || {
                    for turn in 0..TURNS {
                        while !board.is_free(turn) {
                            thread::yield_now();
                        }
                        let mut own = Owned::new((turn * 2 + place as u64).to_ne_bytes().to_vec());
                        board.enter(Room::Tiny, turn, place, Shape::of_word(turn), &own.iov());
                        while !board.has_all(turn) {
                            thread::yield_now();
                        }
                        assert!(board.all_have(turn, Shape::of_word(turn)));
                        for other in 0..2 {
                            own.iov().copy_from(&board.slot(Room::Tiny, turn, other));
                            let mut seen = Owned::new(vec![0; 8]);
                            seen.iov().copy_from(&own.iov());
                            assert_eq!(seen.into_bytes(), (turn * 2 + other as u64).to_ne_bytes());
                        }
                        board.finish(turn, place);
                    }
                });
            }
        });
    }
}
