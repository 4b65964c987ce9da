//! Collectives on boards: the members of one host meet in memory that they share, without messages.
//!
//! Place in the data flow: [`OnBoard`] is the program of each member, as `weft_engine`'s `board` describes it. A member
//! writes its slot and reports its arrival. The last one combines the slots, if the operation reduces, and lets the
//! others go on. A root that alone contributes lets them go on at once. Each then reads the slots that it needs. Each
//! access costs the passage of a cache line, writes included: another member has read the slot in the last operation.

use weft_engine::collective::{Operation, Request};

use crate::profile::Costs;
use crate::step::{Arrival, Meeting, Programs, Step};

/// The most members of a board.
const MOST_MEMBERS: u32 = 64;
/// The longest slot.
const MOST_BYTES: usize = 16 << 10;

/// One collective on the board of the only host.
#[derive(Clone, Copy, Debug)]
pub struct OnBoard(Request);

impl OnBoard {
    /// The collective, if the machine has boards on which it fits. Otherwise it is performed by messages.
    #[must_use]
    pub fn new(request: Request, costs: &Costs) -> Option<Self> {
        let block = request.count * request.element;
        let blocks = block.saturating_mul(request.members as usize);
        let longest = match request.operation {
            Operation::Barrier => 0,
            Operation::Scatter | Operation::AllToAll | Operation::ReduceScatter => blocks,
            _ => block,
        };
        let fits = request.members <= MOST_MEMBERS.min(costs.ranks_per_host) && longest <= MOST_BYTES;
        (costs.collective.board.is_some() && fits).then_some(Self(request))
    }

    /// The steps of a rank. The meeting has this number, and the arrival this ordinal.
    pub fn steps(self, rank: u32, number: u32, ordinal: u32) -> impl Iterator<Item = Step> {
        let (meet, wait) = (Step::Meet { number }, Step::Wait { from: rank, ordinal });
        let count = self.slots(rank);
        let slots = (count > 0).then_some(Step::Slots { count });
        let write = self.has_contribution(rank).then_some(Step::Slots { count: 1 });
        write.into_iter().chain([meet]).chain(self.takes_result(rank).then_some(wait)).chain(slots)
    }

    /// The meeting of the members.
    #[must_use]
    pub const fn meeting(self) -> Meeting {
        let Request { operation, members, root, .. } = self.0;
        let source = match operation {
            Operation::Broadcast | Operation::Scatter => Some(root),
            _ => None,
        };
        // It reads the slots of all others, and writes the result into the first.
        Meeting { members, combines: if operation.reduces() { members } else { 0 }, source }
    }

    const fn has_contribution(self, rank: u32) -> bool {
        match self.0.operation {
            Operation::Barrier => false,
            Operation::Broadcast | Operation::Scatter => rank == self.0.root,
            _ => true,
        }
    }

    const fn takes_result(self, rank: u32) -> bool {
        match self.0.operation {
            Operation::Broadcast => rank != self.0.root,
            Operation::Reduce | Operation::Gather => rank == self.0.root,
            _ => true,
        }
    }

    /// Slots of others that a rank reads at the end.
    const fn slots(self, rank: u32) -> u32 {
        match self.0.operation {
            _ if !self.takes_result(rank) => 0,
            Operation::Barrier => 0,
            Operation::AllGather | Operation::Gather | Operation::AllToAll => self.0.members - 1,
            _ => 1,
        }
    }
}

impl Programs for OnBoard {
    fn ranks(&self) -> u32 {
        self.0.members
    }

    fn step(&self, rank: u32, index: u32) -> Option<Step> {
        self.steps(rank, 0, 0).nth(index as usize)
    }

    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival> {
        (rank == from && number == 0).then_some(Arrival { ordinal: 0, bytes: 0 })
    }

    fn most_arrivals(&self) -> u32 {
        1
    }

    fn meeting(&self, _rank: u32, number: u32) -> Option<Meeting> {
        (number == 0).then_some((*self).meeting())
    }
}
