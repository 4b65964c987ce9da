//! Boards: memory of one host in which the members of a group perform collectives without messages.
//!
//! Place in the data flow: a device makes the memory and shares it with peers ([`crate::nic::Nic::make_board`]). The
//! engine's groups run collectives on it (`engine/collectives/boards.rs`).
//!
//! Each member has a *slot* for its contribution. The last member that arrives combines the contributions in
//! the slot of the first member, and releases the others. No thread and no message is needed. The *result*
//! serves groups on several hosts.
//!
//! Layout, in words of 8 bytes:
//! ```text
//! | bank 0 | bank 1 | … |
//! bank: | arrived, departed, combiner, shapes | released, agreed | result | slot of member 0 | slot of member 1 | … |
//! slot: | entered, shape | contribution |
//! ```
//! Each of these parts begins 128 bytes after the one before, because processors fetch cache lines in pairs. Members
//! poll `released`, and would slow down those that arrive if it shared their line. With few members the additional line
//! costs more than that, and `released` follows the combiner.
//!
//! Each member reports the *shape* of its call: the operation, the length of a block and the root (`shape.rs`). A
//! member takes a result only if the shape of the calls behind it is its own. The sum of all shapes shows the last
//! member whether they are alike, without a look at each slot.
//!
//! Trust: the members of a group have the same user and know each other's names. A member can stop the collectives of
//! its groups, or spoil their results. It cannot do more: no offset or length is read from the board, and contributions
//! are only copied and combined.

mod bank;
mod shape;

/// The atomics of the counters, which a model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::{self, Iov};
use bank::Bank;
pub(crate) use shape::Shape;

/// Longest contribution of one member, and longest result, in bytes.
pub(crate) const SLOT_BYTES: usize = 16 * 1024;
/// The most members of a board.
pub(crate) const MAX_MEMBERS: usize = 64;
/// Operations of one group that may be on the board at a time. Later ones wait.
const BANKS: usize = 4;

/// Words of a pair of cache lines.
const COUNTER_WORDS: usize = 16;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// The counters of a bank and the result.
const BANK_WORDS: usize = 2 * COUNTER_WORDS + SLOT_WORDS;
/// The most members for which all counters share a line.
const FEW_MEMBERS: usize = 4;
const MEMBER_WORDS: usize = COUNTER_WORDS + SLOT_WORDS;

/// Memory that several processes of a host share. Initially all zero.
pub trait SharedWords: Any + Send + Sync {
    /// The memory, always the same.
    fn words(&self) -> &[AtomicU64];
}

impl fmt::Debug for dyn SharedWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a board of {} words", self.words().len())
    }
}

/// Shared memory, and the right to pass it on.
pub type Board = Arc<dyn SharedWords>;

/// The memory of a member that is alone on its host.
struct OwnWords(Box<[AtomicU64]>);

impl SharedWords for OwnWords {
    fn words(&self) -> &[AtomicU64] {
        &self.0
    }
}

/// A board of this process alone.
pub(crate) fn own(bytes: usize) -> Board {
    Arc::new(OwnWords((0..bytes.div_ceil(8)).map(|_| AtomicU64::new(0)).collect()))
}

/// Bytes of a board for this number of members.
pub(crate) const fn board_bytes(members: usize) -> usize {
    8 * BANKS * (BANK_WORDS + members * MEMBER_WORDS)
}

/// The board of a group's members on one host. A member's *place* is its position among them, in rank order.
pub(crate) struct HostBoard {
    board: Board,
    members: usize,
}

impl HostBoard {
    /// `None`: the memory is too small.
    pub(crate) fn new(board: Board, members: usize) -> Option<Self> {
        let fits = members > 0 && members <= MAX_MEMBERS && board.words().len() * 8 >= board_bytes(members);
        fits.then_some(Self { board, members })
    }

    #[allow(clippy::cast_possible_truncation)] // The remainder is small.
    fn bank_at(&self, turn: u64) -> usize {
        (turn % BANKS as u64) as usize * (BANK_WORDS + self.members * MEMBER_WORDS)
    }

    fn bank(&self, turn: u64) -> Bank<'_> {
        let words = &self.board.words()[self.bank_at(turn)..];
        Bank {
            arrived: &words[0],
            departed: &words[1],
            released: &words[self.released_at()],
            members: self.members as u64,
            turn,
            lap: turn / BANKS as u64,
        }
    }

    /// The place of `released` in a bank. The word behind it is `agreed`.
    const fn released_at(&self) -> usize {
        if self.members <= FEW_MEMBERS { 4 } else { COUNTER_WORDS }
    }

    fn agreed(&self, turn: u64) -> &AtomicU64 {
        &self.board.words()[self.bank_at(turn) + self.released_at() + 1]
    }

    fn shapes(&self, turn: u64) -> &AtomicU64 {
        &self.board.words()[self.bank_at(turn) + 3]
    }

    fn combiner(&self, turn: u64) -> &AtomicU64 {
        &self.board.words()[self.bank_at(turn) + 2]
    }

    fn entered(&self, turn: u64, place: usize) -> &AtomicU64 {
        &self.board.words()[self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS]
    }

    /// The contribution of the member at `place`, [`SLOT_BYTES`] bytes.
    pub(crate) fn slot(&self, turn: u64, place: usize) -> Iov {
        self.memory(self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS + COUNTER_WORDS)
    }

    /// The result that the leader of this host writes, [`SLOT_BYTES`] bytes.
    pub(crate) fn result(&self, turn: u64) -> Iov {
        self.memory(self.bank_at(turn) + 2 * COUNTER_WORDS)
    }

    fn memory(&self, at: usize) -> Iov {
        mem::of_words(&self.board.words()[at..at + SLOT_WORDS])
    }

    /// Whether a member may enter the turn: all have left the one that used the same bank.
    pub(crate) fn is_free(&self, turn: u64) -> bool {
        self.bank(turn).is_free()
    }

    fn shape_at(&self, turn: u64, place: usize) -> &AtomicU64 {
        &self.board.words()[self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS + 1]
    }

    /// Writes the contribution of the member at `place`, and reports its arrival. Returns whether it is the last one,
    /// and then whether all have the same shape.
    pub(crate) fn arrive(&self, turn: u64, place: usize, shape: Shape, contribution: &Iov) -> Arrival {
        self.slot(turn, place).copy_from(contribution);
        self.shape_at(turn, place).store(shape.word(), Ordering::Relaxed);
        self.entered(turn, place).store(turn + 1, Ordering::Release);
        self.shapes(turn).fetch_add(shape.digest(), Ordering::Relaxed);
        if !self.bank(turn).arrive() {
            return Arrival::Early;
        }
        // No member adds to the sum before this one has left the turn.
        let sum = self.shapes(turn).load(Ordering::Relaxed);
        self.shapes(turn).store(0, Ordering::Relaxed);
        Arrival::Last { alike: sum == shape.digest().wrapping_mul(self.members as u64) }
    }

    /// The shape of the call by which the member at `place` has entered the turn. `None`: it has not.
    pub(crate) fn shape(&self, turn: u64, place: usize) -> Option<Shape> {
        self.has_entered(turn, place).then(|| Shape::of_word(self.shape_at(turn, place).load(Ordering::Relaxed)))
    }

    /// Whether the member at `place` has arrived.
    pub(crate) fn has_entered(&self, turn: u64, place: usize) -> bool {
        self.entered(turn, place).load(Ordering::Acquire) > turn
    }

    /// Whether all members have arrived.
    pub(crate) fn is_full(&self, turn: u64) -> bool {
        self.bank(turn).is_full()
    }

    /// Claims the duty to combine the contributions and to release the turn. Returns whether the member at `place` has
    /// it.
    pub(crate) fn claim(&self, turn: u64, place: usize) -> bool {
        let mine = mark(turn, place);
        let claimed = |old: u64| (old < mark(turn, 0)).then_some(mine);
        match self.combiner(turn).fetch_update(Ordering::AcqRel, Ordering::Acquire, claimed) {
            Ok(_) => true,
            Err(old) => old == mine,
        }
    }

    /// Whether the member at `place` has claimed the turn.
    pub(crate) fn has_claimed(&self, turn: u64, place: usize) -> bool {
        self.combiner(turn).load(Ordering::Acquire) == mark(turn, place)
    }

    /// Lets the members whose calls have this shape take the result. `None`: no member takes one.
    pub(crate) fn release(&self, turn: u64, shape: Option<Shape>) {
        self.agreed(turn).store(shape.map_or(0, Shape::word), Ordering::Relaxed);
        self.bank(turn).release();
    }

    /// Whether a call of this shape has a result in a turn that is released.
    pub(crate) fn has_result(&self, turn: u64, shape: Shape) -> bool {
        self.agreed(turn).load(Ordering::Relaxed) == shape.word()
    }

    /// Whether the result may be taken.
    pub(crate) fn is_released(&self, turn: u64) -> bool {
        self.bank(turn).is_released()
    }

    /// Reports that this member needs nothing of the turn any more. Returns whether the bank is free now.
    pub(crate) fn depart(&self, turn: u64) -> bool {
        self.bank(turn).depart()
    }
}

/// A member's place in the order of arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arrival {
    /// Others have not arrived.
    Early,
    /// All have arrived. `alike`: their calls have the same shape.
    Last {
        /// Whether all have the same shape.
        alike: bool,
    },
}

/// The word by which the member at `place` claims the turn. Later turns have larger words.
const fn mark(turn: u64, place: usize) -> u64 {
    turn * MAX_MEMBERS as u64 + place as u64 + 1
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::mem::Owned;

    fn pattern(len: usize) -> Vec<u8> {
        (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect()
    }

    #[test]
    fn any_range_of_a_contribution_can_be_read() {
        let board = HostBoard::new(own(board_bytes(3)), 3).unwrap();
        let mut whole = Owned::new(pattern(SLOT_BYTES));
        board.arrive(5, 2, Shape::of_word(8), &whole.iov());
        for (offset, len) in [(0, 0), (0, 1), (0, SLOT_BYTES), (3, 700), (8, 256), (9, 257), (SLOT_BYTES - 1, 1)] {
            let mut into = Owned::new(vec![0; len]);
            into.iov().copy_from(&board.slot(5, 2).slice(offset, len));
            assert_eq!(into.into_bytes(), pattern(SLOT_BYTES)[offset..offset + len], "{len} bytes at {offset}");
        }
    }

    #[test]
    fn a_bank_is_free_when_all_have_left() {
        let board = HostBoard::new(own(board_bytes(2)), 2).unwrap();
        for turn in 0..3 * BANKS as u64 {
            assert!(board.is_free(turn));
            let shape = Shape::of_word(turn << 8);
            assert_eq!(board.arrive(turn, 0, shape, &Iov::EMPTY), Arrival::Early);
            assert!(!board.is_full(turn) && !board.is_released(turn) && !board.has_entered(turn, 1));
            assert_eq!(board.arrive(turn, 1, shape, &Iov::EMPTY), Arrival::Last { alike: true });
            assert!(board.is_full(turn) && board.has_entered(turn, 1));
            board.release(turn, Some(shape));
            assert!(board.has_result(turn, shape));
            assert!(board.is_released(turn) && !board.is_released(turn + 1));
            assert!(!board.depart(turn) && !board.is_free(turn + BANKS as u64));
            assert!(board.depart(turn) && board.is_free(turn + BANKS as u64));
        }
    }

    #[test]
    fn other_shapes_are_noticed_in_their_turn_alone() {
        let board = HostBoard::new(own(board_bytes(3)), 3).unwrap();
        let [small, large] = [40, 80].map(|bytes| Shape::new(3, 1, bytes, 0));
        for (turn, last) in [(0, small), (4, large), (8, small)] {
            assert_eq!(board.shape(turn, 0), None);
            assert_eq!(board.arrive(turn, 0, small, &Iov::EMPTY), Arrival::Early);
            assert_eq!(board.arrive(turn, 1, small, &Iov::EMPTY), Arrival::Early);
            let alike = last == small;
            assert_eq!(board.arrive(turn, 2, last, &Iov::EMPTY), Arrival::Last { alike });
            assert_eq!((board.shape(turn, 1), board.shape(turn, 2)), (Some(small), Some(last)));
            board.release(turn, alike.then_some(small));
            assert!(board.has_result(turn, small) == alike && !board.has_result(turn, large));
            (0..3).for_each(|_| _ = board.depart(turn));
        }
    }

    #[test]
    fn one_member_claims_a_turn() {
        let board = HostBoard::new(own(board_bytes(3)), 3).unwrap();
        for turn in [0, 4, 8] {
            assert!(board.claim(turn, 2) && !board.claim(turn, 1) && board.claim(turn, 2));
            assert!(board.has_claimed(turn, 2) && !board.has_claimed(turn, 0));
        }
    }

    #[test]
    fn memory_that_is_too_small_is_no_board() {
        assert!(HostBoard::new(own(board_bytes(3)), 4).is_none());
        assert!(HostBoard::new(own(board_bytes(70)), 70).is_none());
        assert!(HostBoard::new(own(64), 0).is_none());
    }
}
