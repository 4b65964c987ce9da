//! The arenas of an endpoint: memory of this host that groups with the same members here share ([`crate::board`]).
//!
//! Place in the data flow: the first member of a host takes a board for each join ([`Arenas::take`]), and makes an
//! arena if no board is vacant. The others keep the arenas that it has passed to them. A member that has the arena of a
//! join needs no frame with it (`join.rs`).
//!
//! Invariant: an arena stays mapped as long as a group here has a board in it.

use std::sync::{Arc, Weak};

use crate::board::{self, Board, HostBoard, SharedWords};

/// The number of an arena at the member that has made it. 0: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct ArenaId(u32);

impl ArenaId {
    pub(super) const fn from_number(number: u32) -> Self {
        Self(number)
    }

    pub(super) const fn number(self) -> u32 {
        self.0
    }
}

/// The members of a host in rank order, as a hash of their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Circle(pub(super) u64);

struct Arena {
    circle: Circle,
    id: ArenaId,
    memory: Weak<dyn SharedWords>,
    /// Boards that were given out at least once; the member that has made the arena counts them.
    used: usize,
}

/// A place in an arena.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Site {
    arena: ArenaId,
    index: u16,
}

impl Site {
    pub(super) const fn new(arena: ArenaId, index: u16) -> Self {
        Self { arena, index }
    }

    pub(super) const fn arena(&self) -> ArenaId {
        self.arena
    }

    /// The board's number in the arena.
    pub(super) const fn index(&self) -> u16 {
        self.index
    }
}

#[derive(Default)]
pub(super) struct Arenas {
    /// The oldest come first.
    known: Vec<Arena>,
    made: u32,
}

impl Arenas {
    /// The latest arena of these members.
    pub(super) fn latest(&mut self, circle: Circle) -> Option<(ArenaId, Board)> {
        self.known.retain(|arena| arena.memory.strong_count() > 0);
        let mut known = self.known.iter().rev().filter(|arena| arena.circle == circle);
        known.find_map(|arena| Some((arena.id, arena.memory.upgrade()?)))
    }

    /// Notes an arena that the first member of the host has passed.
    pub(super) fn note(&mut self, circle: Circle, id: ArenaId, memory: &Board) {
        self.known.push(Arena { circle, id, memory: Arc::downgrade(memory), used: 0 });
    }

    /// Takes a board for a group of these members, `members` of them. `make` makes memory of a number of bytes.
    pub(super) fn take(
        &mut self,
        circle: Circle,
        members: usize,
        make: impl FnOnce(usize) -> Option<Board>,
    ) -> Option<(Site, HostBoard)> {
        self.known.retain(|arena| arena.memory.strong_count() > 0);
        let vacant = self.known.iter_mut().rev().filter(|arena| arena.circle == circle);
        if let Some(taken) = vacant.into_iter().find_map(|arena| arena.take(members)) {
            return Some(taken);
        }
        let memory = make(board::arena_bytes(members))?;
        self.made = self.made.wrapping_add(1).max(1);
        self.note(circle, ArenaId(self.made), &memory);
        self.known.last_mut()?.take(members)
    }
}

impl Arena {
    fn take(&mut self, members: usize) -> Option<(Site, HostBoard)> {
        let memory = self.memory.upgrade()?;
        let at = |index: usize| HostBoard::new(Arc::clone(&memory), index, members);
        let again = (0..self.used).find_map(|index| Some((index, at(index).filter(|board| board.take(false))?)));
        let (index, board) = match again {
            Some(taken) => taken,
            None => {
                let index = self.used;
                let board = at(index).filter(|board| board.take(true))?;
                self.used += 1;
                (index, board)
            }
        };
        Some((Site::new(self.id, u16::try_from(index).ok()?), board))
    }
}
