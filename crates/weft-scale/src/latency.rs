//! The time of a collective as `weft bench collective` measures it, and the fit of a cost to a measured time.
//!
//! Place in the data flow: [`latency_ps`] runs [`Machine`] on a collective that ranks perform again and again.
//! `weft sim profile` compares the times with measured ones.
//!
//! The measurement performs operations that synchronize one after the other. After others a rank may run ahead of the
//! rest. These are followed by a barrier, whose time does not count. The slowest rank counts.

use weft_engine::collective::{Operation, Refusal, Request};

use crate::board::OnBoard;
use crate::machine::{Machine, Options, Stuck};
use crate::profile::Costs;
use crate::schedule::{self, Collective};
use crate::step::{Arrival, Meeting, Programs, Step};

/// How often the collective is performed.
const ITERATIONS: u32 = 200;
/// Numbers of messages of the barrier behind an operation.
const BEHIND: u32 = 1 << 15;

/// The reason for which there is no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unpredictable {
    /// The compiler refuses the collective.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The programs do not fit together.
    #[error(transparent)]
    Stuck(#[from] Stuck),
}

/// A collective by messages or on a board.
#[derive(Debug)]
enum Way {
    Messages(Collective),
    Board(OnBoard),
}

impl Way {
    fn of(request: Request, costs: &Costs) -> Result<Self, Refusal> {
        match OnBoard::new(request, costs) {
            Some(board) => Ok(Self::Board(board)),
            None => Collective::compile(request, None).map(Self::Messages),
        }
    }

    fn programs(&self) -> &dyn Programs {
        match self {
            Self::Messages(programs) => programs,
            Self::Board(programs) => programs,
        }
    }
}

/// An operation between two marks, and a barrier behind it unless the operation synchronizes.
#[derive(Debug)]
struct Timed {
    first: Way,
    behind: Option<Way>,
    /// The steps of the operation, by rank.
    lengths: Vec<u32>,
}

impl Timed {
    fn new(first: Way, behind: Option<Way>) -> Self {
        let programs = first.programs();
        let length = |rank| (0..).take_while(|index| programs.step(rank, *index).is_some()).count();
        let lengths = (0..programs.ranks()).map(|rank| u32::try_from(length(rank)).unwrap_or(u32::MAX)).collect();
        Self { first, behind, lengths }
    }

    fn behind(&self, number: u32) -> Option<(&dyn Programs, u32)> {
        Some((self.behind.as_ref()?.programs(), number.checked_sub(BEHIND)?))
    }
}

impl Programs for Timed {
    fn ranks(&self) -> u32 {
        self.first.programs().ranks()
    }

    fn step(&self, rank: u32, index: u32) -> Option<Step> {
        let length = *self.lengths.get(rank as usize)?;
        if index == 0 || index == length + 1 {
            return Some(Step::Mark);
        }
        if index <= length {
            return self.first.programs().step(rank, index - 1);
        }
        let first_arrivals = self.first.programs().most_arrivals();
        Some(match self.behind.as_ref()?.programs().step(rank, index - length - 2)? {
            Step::Send { to, number, bytes } => Step::Send { to, number: number + BEHIND, bytes },
            Step::Meet { number } => Step::Meet { number: number + BEHIND },
            Step::Wait { from, ordinal } => Step::Wait { from, ordinal: ordinal + first_arrivals },
            other => other,
        })
    }

    fn arrival(&self, rank: u32, from: u32, number: u32) -> Option<Arrival> {
        let Some((behind, number)) = self.behind(number) else {
            return self.first.programs().arrival(rank, from, number);
        };
        let arrival = behind.arrival(rank, from, number)?;
        Some(Arrival { ordinal: arrival.ordinal + self.first.programs().most_arrivals(), ..arrival })
    }

    fn most_arrivals(&self) -> u32 {
        self.first.programs().most_arrivals() + self.behind.as_ref().map_or(0, |way| way.programs().most_arrivals())
    }

    fn meeting(&self, rank: u32, number: u32) -> Option<Meeting> {
        match self.behind(number) {
            Some((behind, number)) => behind.meeting(rank, number),
            None => self.first.programs().meeting(rank, number),
        }
    }
}

/// Whether a rank leaves the operation only after all have entered it.
const fn synchronizes(operation: Operation) -> bool {
    !matches!(operation, Operation::Broadcast | Operation::Reduce | Operation::Scatter | Operation::Gather)
}

/// The time of a collective, as the bench measures it.
///
/// # Errors
/// The compiler refuses the collective.
pub fn latency_ps(costs: &Costs, operation: Operation, members: u32, bytes: usize) -> Result<u64, Unpredictable> {
    let way = |operation, bytes| Way::of(schedule::request(operation, members, bytes), costs);
    let alone = synchronizes(operation);
    let behind = if alone { None } else { Some(way(Operation::Barrier, 0)?) };
    let timed = Timed::new(way(operation, bytes)?, behind);
    let options = Options { iterations: ITERATIONS, ..Options::default() };
    let outcome = Machine::new(&timed, costs, options).run(|_, _| ())?;
    Ok(if alone { outcome.end_ps } else { outcome.marked_ps } / u64::from(ITERATIONS))
}

/// The cost with which the time of a collective is the measured one, or the nearest. `with` sets the cost.
///
/// # Errors
/// The compiler refuses the collective.
pub fn fit(
    costs: &Costs,
    with: impl Fn(&mut Costs, u64),
    (operation, members, bytes): (Operation, u32, usize),
    measured_ps: u64,
) -> Result<u64, Unpredictable> {
    let (mut low, mut high) = (0, measured_ps);
    while high - low > 1000 {
        let middle = low.midpoint(high);
        let mut tried = costs.clone();
        with(&mut tried, middle);
        if latency_ps(&tried, operation, members, bytes)? < measured_ps {
            low = middle;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::profile::Path;

    fn costs(processors: u32) -> Costs {
        let path = Path { send: 1_000_000, receive: 1_000_000, latency: 3_000_000, ..Path::default() };
        let mut costs = Costs { ranks_per_host: 64, near: Some(path.clone()), far: path, ..Costs::default() };
        costs.processors = Some(processors);
        costs.collective.call = 500_000;
        costs.collective.turn = 1_000_000;
        costs
    }

    fn time_us(costs: &Costs, operation: Operation, members: u32) -> f64 {
        f64::from(u32::try_from(latency_ps(costs, operation, members, 8).unwrap()).unwrap()) / 1e6
    }

    #[test]
    fn a_call_and_a_step_are_paid() {
        let mut costs = costs(64);
        assert!((time_us(&costs, Operation::Barrier, 2) - 5.5).abs() < 0.01);
        costs.collective.step = 250_000;
        assert!((time_us(&costs, Operation::Barrier, 2) - 5.75).abs() < 0.01);
        // The other one waits for the message. It leaves the barrier behind an operation earlier than the root, by the
        // latency, and waits longer for the next one.
        assert!((time_us(&costs, Operation::Broadcast, 2) - 8.75).abs() < 0.1);
    }

    #[test]
    fn ranks_share_processors() {
        let alone = time_us(&costs(16), Operation::Barrier, 16);
        let shared = time_us(&costs(2), Operation::Barrier, 16);
        // Each processor performs the work of eight ranks: four messages out, four in, and the call.
        assert!(shared > 8.0 * 8.5 && shared > 2.0 * alone, "{shared} {alone}");
    }

    #[test]
    fn members_meet_on_the_board() {
        let mut costs = costs(64);
        costs.collective.board = Some(200_000);
        costs.collective.line = 50_000;
        // Two arrivals pass the counter, and the line that lets the other one go on.
        let barrier = time_us(&costs, Operation::Barrier, 2);
        assert!((0.299..0.36).contains(&barrier), "{barrier}");
        // All write a slot. The last one reads a slot and writes the result, which all read.
        let allreduce = time_us(&costs, Operation::AllReduce, 2);
        assert!((allreduce - barrier - 0.2).abs() < 0.02, "{allreduce} {barrier}");
        assert!(time_us(&costs, Operation::AllToAll, 8) > time_us(&costs, Operation::Barrier, 8) + 0.3);
        // Long blocks are messages.
        assert!(latency_ps(&costs, Operation::Broadcast, 2, 1 << 20).unwrap() > 3_000_000);
    }

    #[test]
    fn a_cost_is_fitted() {
        let costs = costs(2);
        let measured = latency_ps(&costs, Operation::Barrier, 4, 0).unwrap();
        let set = |costs: &mut Costs, turn| costs.collective.turn = turn;
        let fitted = fit(&costs, set, (Operation::Barrier, 4, 0), measured).unwrap();
        let mut again = costs.clone();
        set(&mut again, fitted);
        let close = latency_ps(&again, Operation::Barrier, 4, 0).unwrap().abs_diff(measured);
        assert!(close < measured / 50, "{close} of {measured}");
    }
}
