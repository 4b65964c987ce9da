//! Collectives that move blocks of different lengths: each pair of members exchanges what both have agreed on.
//!
//! Place in the data flow: clients of the engine compile these schedules, and pass them to `Engine::start_schedule`.

use super::alltoall::exchange;
use super::builder::Builder;
use super::{Operation, Overlap, Refusal, Request, Schedule, Span};

/// The place of a member's block in a buffer, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Where it begins.
    offset: usize,
    len: usize,
}

impl Extent {
    /// The block of `len` bytes that begins at `offset`.
    #[must_use]
    pub const fn new(offset: usize, len: usize) -> Self {
        Self { offset, len }
    }

    /// Where it begins, in bytes.
    #[must_use]
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// Its length in bytes.
    #[must_use]
    pub const fn bytes(self) -> usize {
        self.len
    }

    /// The end of the last of some blocks. `None`: it is behind the end of memory.
    #[must_use]
    pub fn end(all: &[Self]) -> Option<usize> {
        let mut ends = all.iter().map(|at| at.offset.checked_add(at.len).filter(|&end| end <= isize::MAX as usize));
        ends.try_fold(0, |most, end| end.map(|end| most.max(end)))
    }
}

/// The schedule of a member that gives a block of its input to each member, and takes one of each into its result.
/// Blocks of length 0 are not sent.
///
/// # Errors
/// The rank is no member's, the lists are not as long as the group, or the schedule would be too long.
pub fn compile_uneven(rank: u32, given: &[Extent], taken: &[Extent], overlap: Overlap) -> Result<Schedule, Refusal> {
    let members = u32::try_from(given.len()).map_err(|_| Refusal::TooLong)?;
    let len = Extent::end(given).zip(Extent::end(taken)).ok_or(Refusal::TooLong)?.0;
    let me = rank as usize;
    let agrees = rank < members && taken.len() == given.len() && given[me].len == taken[me].len;
    let operation = Operation::AllToAll;
    let request = Request { operation, rank, members, root: 0, count: 1, element: 1, overlap };
    if !agrees {
        return Err(Refusal::NoSuchRank);
    }
    let mut builder = Builder::new(request);
    let input = builder.input(len);
    let from = |at: Extent| input.part(at.offset, at.len);
    let into = |at: Extent| Span { buffer: super::Buffer::Result, offset: at.offset, len: at.len };
    exchange(&mut builder, |to| from(given[to as usize]), |source| into(taken[source as usize]));
    builder.finish()
}
