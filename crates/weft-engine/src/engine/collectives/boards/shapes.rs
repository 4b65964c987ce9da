//! The shapes of calls on boards: members that pass other arguments than the rest get an error and no data.
//!
//! Place in the data flow: `boards.rs` writes the shape of each call to the board, and asks here before it combines
//! contributions or takes a result.

use super::{Advance, BoardRun, Host};
use crate::amo::Reduction;
use crate::api::{Error, Fault};
use crate::board::{HostBoard, Shape};
use crate::collective::Operation;

/// Whether members passed different arguments. Inside a host the turn has ended normally then, and the group is sound.
pub(super) const fn is_mismatch(why: &Fault) -> bool {
    matches!(why, Fault::Truncated(_) | Fault::Refused(Error::Invalid))
}

impl BoardRun {
    /// The arguments that all members must pass alike.
    pub(super) fn shape(&self) -> Shape {
        let arithmetic = self.reduction().map_or(0, Reduction::number);
        let root = if self.request.operation.is_rooted() { self.request.root } else { 0 };
        let block = if self.request.operation == Operation::Barrier { 0 } else { self.request.block() };
        Shape::new(self.request.operation as u8 + 1, arithmetic, block, root)
    }

    /// The fault of a call whose shape is not that of all others.
    #[cold]
    pub(super) fn mismatch(&self, host: &Host, board: &HostBoard) -> Fault {
        let own = self.request.block() as u64;
        let places = match self.source(host) {
            Some(source) => source..source + 1,
            None => 0..host.places.count(),
        };
        let longest = places.filter_map(|place| board.shape(self.turn, place)).map(Shape::block).max().unwrap_or(0);
        match usize::try_from(longest.saturating_sub(own)) {
            Ok(more @ 1..) => Fault::Truncated(more),
            _ => Fault::Refused(Error::Invalid),
        }
    }

    /// Whether the members here that give data to others have passed other arguments than this one.
    pub(super) fn differs(&self, host: &Host, board: &HostBoard) -> bool {
        let source = self.source(host);
        let mut places = source.map_or(0..host.places.count(), |source| source..source + 1);
        places.any(|place| board.shape(self.turn, place).is_some_and(|shape| shape != self.shape()))
    }
}

impl Advance<'_> {
    /// Releases a turn in which the members' calls differ. If a source has released it, its result counts.
    #[cold]
    pub(super) fn release_without_result(&mut self) {
        let turn = self.run.turn;
        if !self.board.is_released(turn) {
            self.board.release(turn, None);
            self.changed = true;
        }
    }
}
