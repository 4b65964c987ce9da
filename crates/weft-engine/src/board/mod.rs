//! Boards: memory of one host in which the members of a group perform collectives without messages.
//!
//! Place in the data flow: a device makes the memory and shares it with peers ([`crate::nic::Nic::make_board`]). The
//! engine's groups run collectives on it (`engine/collectives/boards.rs`).
//!
//! An *arena* is memory that the same members of a host share, and has the boards of several groups. Members of one
//! group therefore cannot reach the boards of groups with other members, and a further group of the same members needs
//! neither a descriptor nor a mapping.
//!
//! Each member has a *slot* for its contribution. The last member that arrives combines the contributions in
//! the slot of the first member, and releases the others. No thread and no message is needed. The *result*
//! serves groups on several hosts.
//!
//! A *direct* board serves two members on one host. Each member writes its own slot alone, and combines both
//! contributions by itself. A short contribution lies in the line of its counters, so that one line moves from each
//! member to the other one, where the counters of a bank move several times (`direct.rs`).
//!
//! Layout, in words of 8 bytes:
//! ```text
//! arena: | short part of board 0 | short part of board 1 | … | long part of board 0 | … |
//! short: | leavers, vacant | bank 0 | bank 1 | … |
//! bank:  | arrived, departed, combiner, shapes | released, agreed | result | slot of member 0 | slot of member 1 | … |
//! slot:  | entered, shape, left, finished, tiny contribution | contribution |
//! long:  | results and contributions of bank 0 | … |
//! ```
//! The parts of a bank begin 128 bytes after one another, because processors fetch cache lines in pairs. Members
//! poll `released`, and would slow down those that arrive if it shared their line. With few members the additional line
//! costs more than that, and `released` follows the combiner.
//!
//! Each member reports the *shape* of its call: the operation, the length of a block and the root (`shape.rs`). A
//! member takes a result only if the shape of the calls behind it is its own. The sum of all shapes shows the last
//! member whether they are alike, without a look at each slot.
//!
//! Short contributions lie beside the counters. Long ones have a part of their own, which begins at a page and has no
//! memory before its first use. A group that exchanges short blocks thus costs some kilobytes.
//!
//! Places. The first member of the host gives out the boards of an arena. A member that leaves a group counts itself
//! among the leavers. The last one clears the board and marks it vacant.
//!
//! Trust: the members of a group have the same user and know each other's names. A member can stop the collectives of
//! its groups, or spoil their results. It cannot do more: no offset or length is read from the board, and contributions
//! are only copied and combined.

mod bank;
mod direct;
mod shape;

/// The atomics of the counters, which a model checker replaces.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
}

use std::any::Any;
use std::cell::Cell;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::mem::{self, Iov};
use bank::Bank;
pub(crate) use shape::Shape;

/// Longest contribution of one member, and longest result, in bytes.
pub(crate) const SLOT_BYTES: usize = 16 * 1024;
/// Longest contribution that lies in the line of a slot's counters, in bytes.
pub(crate) const TINY_BYTES: usize = 32;
/// Longest contribution that lies beside the counters, in bytes.
pub(crate) const SHORT_BYTES: usize = 256;
/// The most members of a board.
pub(crate) const MAX_MEMBERS: usize = 64;
/// Operations of one group that may be on the board at a time. Later ones wait.
const BANKS: usize = 4;
/// The most boards of an arena.
const MAX_BOARDS: usize = 64;
/// The longest arena with more than one board, in bytes. Most of it has no memory.
const MAX_ARENA_BYTES: usize = 32 << 20;

/// Counters in a slot.
const HEADER_WORDS: usize = 4;
/// Words of a pair of cache lines.
const COUNTER_WORDS: usize = 16;
const SHORT_WORDS: usize = SHORT_BYTES / 8;
const SLOT_WORDS: usize = SLOT_BYTES / 8;
/// Words of a page, at least.
const PAGE_WORDS: usize = 512;
/// The counters of a bank and the short result.
const BANK_WORDS: usize = 2 * COUNTER_WORDS + SHORT_WORDS;
/// The members of a direct board.
const DIRECT_MEMBERS: usize = 2;
/// The most members for which all counters share a line.
const FEW_MEMBERS: usize = 4;
const MEMBER_WORDS: usize = COUNTER_WORDS + SHORT_WORDS;

/// Memory that several processes of a host share. Initially all zero.
pub trait SharedWords: Any + Send + Sync {
    /// The memory, always the same.
    fn words(&self) -> &[AtomicU64];

    /// Obtains the memory of a range, so that it can be written. False: there is none.
    fn obtain(&self, range: Range<usize>) -> bool {
        let _ = range;
        true
    }

    /// Gives back the memory of a range, which no process uses.
    fn give_back(&self, range: Range<usize>) {
        let _ = range;
    }
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

/// An arena of this process alone.
pub(crate) fn own(members: usize) -> Board {
    let words = short_words(members) + long_words(members) + PAGE_WORDS;
    Arc::new(OwnWords((0..words).map(|_| AtomicU64::new(0)).collect()))
}

/// Words of the short part of a board.
const fn short_words(members: usize) -> usize {
    COUNTER_WORDS + BANKS * (BANK_WORDS + members * MEMBER_WORDS)
}

/// Words of the long part of a board.
const fn long_words(members: usize) -> usize {
    BANKS * (1 + members) * SLOT_WORDS
}

/// The number of boards in an arena for this number of members.
pub(crate) const fn boards(members: usize) -> usize {
    let most = MAX_ARENA_BYTES / (8 * (short_words(members) + long_words(members)));
    if most > MAX_BOARDS {
        MAX_BOARDS
    } else if most == 0 {
        1
    } else {
        most
    }
}

/// Bytes of an arena for this number of members.
pub(crate) const fn arena_bytes(members: usize) -> usize {
    8 * (long_at(boards(members), members) + boards(members) * long_words(members))
}

/// The first word of the long parts, behind the short parts of `boards` boards.
const fn long_at(boards: usize, members: usize) -> usize {
    (boards * short_words(members)).next_multiple_of(PAGE_WORDS)
}

/// A part of a board for contributions and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// Up to [`TINY_BYTES`].
    Tiny,
    /// Up to [`SHORT_BYTES`].
    Short,
    /// Up to [`SLOT_BYTES`].
    Long,
}

impl Room {
    /// The part for the blocks of an operation.
    pub(crate) const fn of(bytes: usize) -> Self {
        if bytes <= TINY_BYTES {
            Self::Tiny
        } else if bytes <= SHORT_BYTES {
            Self::Short
        } else {
            Self::Long
        }
    }
}

/// The board of a group's members on one host. A member's *place* is its position among them, in rank order.
pub(crate) struct HostBoard {
    arena: Board,
    members: usize,
    /// The first words of the two parts.
    short_at: usize,
    long_at: usize,
    /// Whether the long part has memory.
    has_long: bool,
    /// Each member combines the contributions by itself.
    direct: bool,
    /// By place: the number of turns that the member is known to have left, of a direct board.
    finished: [Cell<u64>; DIRECT_MEMBERS],
}

impl HostBoard {
    /// The board at an index of an arena. `None`: the memory is too small.
    pub(crate) fn new(arena: Board, index: usize, members: usize) -> Option<Self> {
        let fits = (1..=MAX_MEMBERS).contains(&members) && index < boards(members);
        if !fits || arena.words().len() * 8 < arena_bytes(members) {
            return None;
        }
        let short_at = index * short_words(members);
        let long_at = long_at(boards(members), members) + index * long_words(members);
        Some(Self { arena, members, short_at, long_at, has_long: false, direct: false, finished: Default::default() })
    }

    /// The board of a member that is alone on its host.
    pub(crate) fn alone() -> Self {
        let (arena, long_at) = (own(1), long_at(1, 1));
        Self { arena, members: 1, short_at: 0, long_at, has_long: true, direct: false, finished: Default::default() }
    }

    /// Takes the board for a new group, if no group has it. Returns whether it can be used.
    pub(crate) fn take(&self, is_new: bool) -> bool {
        let vacant = &self.arena.words()[self.short_at + 1];
        (is_new || vacant.swap(0, Ordering::Acquire) == 1)
            && self.arena.obtain(self.short_at..self.short_at + short_words(self.members))
    }

    /// A member leaves the group. The last one clears the board.
    pub(crate) fn quit(&self) {
        let words = self.arena.words();
        let [leavers, vacant] = [&words[self.short_at], &words[self.short_at + 1]];
        if leavers.fetch_add(1, Ordering::AcqRel).wrapping_add(1) != self.members as u64 {
            return;
        }
        let counters = &words[self.short_at + 2..self.short_at + short_words(self.members)];
        counters.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.arena.give_back(self.long_at..self.long_at + long_words(self.members));
        leavers.store(0, Ordering::Relaxed);
        vacant.store(1, Ordering::Release);
    }

    /// Obtains the memory for an operation. False: there is none.
    pub(crate) fn prepare(&mut self, room: Room) -> bool {
        if room == Room::Long && !self.has_long {
            self.has_long = self.arena.obtain(self.long_at..self.long_at + long_words(self.members));
            return self.has_long;
        }
        true
    }

    /// The memory of which this board is a part.
    pub(crate) const fn arena(&self) -> &Board {
        &self.arena
    }

    #[allow(clippy::cast_possible_truncation)] // The remainder is small.
    fn bank_at(&self, turn: u64) -> usize {
        self.short_at + COUNTER_WORDS + (turn % BANKS as u64) as usize * (BANK_WORDS + self.members * MEMBER_WORDS)
    }

    fn bank(&self, turn: u64) -> Bank<'_> {
        let words = &self.arena.words()[self.bank_at(turn)..];
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
        &self.arena.words()[self.bank_at(turn) + self.released_at() + 1]
    }

    fn shapes(&self, turn: u64) -> &AtomicU64 {
        &self.arena.words()[self.bank_at(turn) + 3]
    }

    fn combiner(&self, turn: u64) -> &AtomicU64 {
        &self.arena.words()[self.bank_at(turn) + 2]
    }

    fn entered(&self, turn: u64, place: usize) -> &AtomicU64 {
        &self.arena.words()[self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS]
    }

    /// The contribution of the member at `place`.
    pub(crate) fn slot(&self, room: Room, turn: u64, place: usize) -> Iov {
        match room {
            Room::Tiny => {
                self.memory(self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS + HEADER_WORDS, TINY_BYTES / 8)
            }
            Room::Short => {
                self.memory(self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS + COUNTER_WORDS, SHORT_WORDS)
            }
            Room::Long => self.long(turn, 1 + place),
        }
    }

    /// The result that the leader of this host writes.
    pub(crate) fn result(&self, room: Room, turn: u64) -> Iov {
        match room {
            Room::Tiny | Room::Short => self.memory(self.bank_at(turn) + 2 * COUNTER_WORDS, SHORT_WORDS),
            Room::Long => self.long(turn, 0),
        }
    }

    #[allow(clippy::cast_possible_truncation)] // The remainder is small.
    fn long(&self, turn: u64, slot: usize) -> Iov {
        let slots = (turn % BANKS as u64) as usize * (1 + self.members) + slot;
        self.memory(self.long_at + slots * SLOT_WORDS, SLOT_WORDS)
    }

    fn memory(&self, at: usize, words: usize) -> Iov {
        mem::of_words(&self.arena.words()[at..at + words])
    }

    /// Whether a member may enter the turn: all have left the one that used the same bank.
    pub(crate) fn is_free(&self, turn: u64) -> bool {
        if self.direct { self.is_left(turn) } else { self.bank(turn).is_free() }
    }

    fn shape_at(&self, turn: u64, place: usize) -> &AtomicU64 {
        &self.arena.words()[self.bank_at(turn) + BANK_WORDS + place * MEMBER_WORDS + 1]
    }

    /// Writes the contribution of the member at `place`, and reports its arrival. Returns whether it is the last one,
    /// and then whether all have the same shape.
    pub(crate) fn arrive(&self, room: Room, turn: u64, place: usize, shape: Shape, contribution: &Iov) -> Arrival {
        self.slot(room, turn, place).copy_from(contribution);
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

    fn board(members: usize) -> HostBoard {
        HostBoard::new(own_arena(members), 0, members).unwrap()
    }

    pub(super) fn own_arena(members: usize) -> Board {
        Arc::new(OwnWords((0..arena_bytes(members) / 8).map(|_| AtomicU64::new(0)).collect()))
    }

    #[test]
    fn any_range_of_a_contribution_can_be_read() {
        let board = board(3);
        for (room, most) in [(Room::Short, SHORT_BYTES), (Room::Long, SLOT_BYTES)] {
            let mut whole = Owned::new(pattern(most));
            board.arrive(room, 5, 2, Shape::of_word(8), &whole.iov());
            for (offset, len) in [(0, 0), (0, 1), (0, most), (3, 200), (8, 156), (9, 157), (most - 1, 1)] {
                let mut into = Owned::new(vec![0; len]);
                into.iov().copy_from(&board.slot(room, 5, 2).slice(offset, len));
                assert_eq!(into.into_bytes(), pattern(most)[offset..offset + len], "{len} bytes at {offset}");
            }
        }
    }

    /// The words of all parts of all boards of an arena, none of which overlap.
    #[test]
    fn boards_of_an_arena_are_apart() {
        for members in [1, 2, 4, 5, 64] {
            let arena = own_arena(members);
            let all: Vec<HostBoard> =
                (0..boards(members)).map(|at| HostBoard::new(Arc::clone(&arena), at, members).unwrap()).collect();
            let mut ends = Vec::new();
            for board in &all {
                for turn in 0..BANKS as u64 {
                    ends.extend((0..members).map(|place| board.slot(Room::Tiny, turn, place)));
                    for room in [Room::Short, Room::Long] {
                        ends.push(board.result(room, turn));
                        ends.extend((0..members).map(|place| board.slot(room, turn, place)));
                    }
                }
            }
            ends.sort_by_key(Iov::addr);
            assert!(ends.windows(2).all(|two| two[0].addr() + two[0].len() as u64 <= two[1].addr()));
            let words = arena.words();
            let end = words.as_ptr() as u64 + 8 * words.len() as u64;
            assert!(ends.last().is_some_and(|last| last.addr() + last.len() as u64 <= end), "{members} members");
            assert!(HostBoard::new(arena, boards(members), members).is_none());
        }
    }

    /// A board that all members have left is that of a new group, with all counters at zero.
    #[test]
    fn a_board_is_used_again_when_all_have_left() {
        let board = board(2);
        assert!(board.take(true) && !board.take(false));
        board.arrive(Room::Short, 0, 0, Shape::of_word(8), &Iov::EMPTY);
        board.arrive(Room::Short, 0, 1, Shape::of_word(8), &Iov::EMPTY);
        board.release(0, None);
        board.quit();
        assert!(!board.take(false), "a member uses it");
        board.quit();
        assert!(board.take(false) && !board.take(false));
        assert!(!board.has_entered(0, 0) && !board.is_full(0) && !board.is_released(0) && board.is_free(0));
    }

    /// A group of four costs few pages until it has a long operation.
    #[test]
    fn short_operations_need_little_memory() {
        assert!(8 * short_words(4) <= 9 * 1024 && boards(4) == MAX_BOARDS && boards(MAX_MEMBERS) >= 2);
    }

    #[test]
    fn a_bank_is_free_when_all_have_left() {
        let board = board(2);
        for turn in 0..3 * BANKS as u64 {
            assert!(board.is_free(turn));
            let shape = Shape::of_word(turn << 8);
            assert_eq!(board.arrive(Room::Short, turn, 0, shape, &Iov::EMPTY), Arrival::Early);
            assert!(!board.is_full(turn) && !board.is_released(turn) && !board.has_entered(turn, 1));
            assert_eq!(board.arrive(Room::Short, turn, 1, shape, &Iov::EMPTY), Arrival::Last { alike: true });
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
        let board = board(3);
        let [small, large] = [40, 80].map(|bytes| Shape::new(3, 1, bytes, 0));
        for (turn, last) in [(0, small), (4, large), (8, small)] {
            assert_eq!(board.shape(turn, 0), None);
            assert_eq!(board.arrive(Room::Short, turn, 0, small, &Iov::EMPTY), Arrival::Early);
            assert_eq!(board.arrive(Room::Short, turn, 1, small, &Iov::EMPTY), Arrival::Early);
            let alike = last == small;
            assert_eq!(board.arrive(Room::Short, turn, 2, last, &Iov::EMPTY), Arrival::Last { alike });
            assert_eq!((board.shape(turn, 1), board.shape(turn, 2)), (Some(small), Some(last)));
            board.release(turn, alike.then_some(small));
            assert!(board.has_result(turn, small) == alike && !board.has_result(turn, large));
            (0..3).for_each(|_| _ = board.depart(turn));
        }
    }

    #[test]
    fn one_member_claims_a_turn() {
        let board = board(3);
        for turn in [0, 4, 8] {
            assert!(board.claim(turn, 2) && !board.claim(turn, 1) && board.claim(turn, 2));
            assert!(board.has_claimed(turn, 2) && !board.has_claimed(turn, 0));
        }
    }

    #[test]
    fn memory_that_is_too_small_is_no_board() {
        assert!(HostBoard::new(own(3), 0, 3).is_none());
        assert!(HostBoard::new(own_arena(70), 0, 70).is_none());
        assert!(HostBoard::new(own_arena(1), 0, 0).is_none());
    }
}
