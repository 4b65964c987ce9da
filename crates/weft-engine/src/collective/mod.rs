//! Collectives as schedules: the transfers, copies and reductions that one member performs, in order.
//!
//! Place in the data flow: weft-fi calls [`compile`] when a group first uses an operation at a size, and keeps
//! the [`Schedule`] as a template. An executor walks through the tasks with a [`Run`]. The simulator walks
//! through the same schedules with costs in place of bytes.
//!
//! A schedule is one in-order list per member. A task never depends on a count of arrivals: `Wait` names the
//! transfer that it waits for. An early message of a later step therefore cannot release an earlier one, which
//! is the trap of counter encodings.
//!
//! Matching. The k-th `Send` of member a to member b belongs to the k-th `Receive` of b from a, in the same
//! schedule. Both tasks carry that number, so that an executor can match out of order.
//!
//! Arithmetic. Every reduction follows one tree, declared in [`tree`], for every algorithm and member count:
//! results are equal bit for bit whichever algorithm the size selects.
//!
//! Sources: Graham et al., "Overlapping Computation and Communication: Barrier Algorithms and ConnectX-2
//! CORE-Direct Capabilities" (recursive doubling, extra ranks); Thakur, Rabenseifner and Gropp, "Optimization of
//! Collective Communication Operations in MPICH", 2005 (the other algorithms).
//!
//! Invariants:
//! - [`compile`] is a pure function of its request.
//! - The schedules of all members agree about the size of each transfer.
//! - No task accesses memory outside the three buffers that [`Request`] describes.

mod alltoall;
mod barrier;
mod broadcast;
mod builder;
mod chain;
mod gather;
mod ordered;
mod reduce;
mod run;
#[cfg(test)]
mod tests;
pub mod tree;
mod uneven;

use crate::mem::Iov;
pub use chain::{Link, chain};
pub use ordered::{Prefix, compile_ordered, compile_scan};
pub use run::{Next, Run};
pub use uneven::{Extent, compile_uneven};

/// The most tasks of one schedule, about what the paper's hardware holds (16 Ki entries).
pub const MAX_TASKS: usize = 16 * 1024;

/// The operation of a collective (fi_collective(3)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    /// No member leaves before all have entered. No buffers.
    Barrier,
    /// The root's block reaches all members. The result buffer holds one block at every member; no input.
    Broadcast,
    /// Block j of member i's input becomes block i of member j's result. Both hold one block per member.
    AllToAll,
    /// Every member receives the reduction of all inputs. Both buffers hold one block.
    AllReduce,
    /// Every member receives all inputs in rank order. The input holds one block, the result one per member.
    AllGather,
    /// Member i receives block i of the reduction of all inputs. The input holds one block per member, the
    /// result one block.
    ReduceScatter,
    /// The root receives the reduction of all inputs. Both buffers hold one block; the result is the root's.
    Reduce,
    /// Member i receives block i of the root's input. The input, one block per member, is the root's; the
    /// result holds one block.
    Scatter,
    /// The root receives all inputs in rank order. The input holds one block; the result, one block per member,
    /// is the root's.
    Gather,
}

impl Operation {
    /// Every operation.
    pub const ALL: [Self; 9] = [
        Self::Barrier,
        Self::Broadcast,
        Self::AllToAll,
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Reduce,
        Self::Scatter,
        Self::Gather,
    ];

    /// Whether one member has a part that the others do not have.
    #[must_use]
    pub const fn is_rooted(self) -> bool {
        matches!(self, Self::Broadcast | Self::Reduce | Self::Scatter | Self::Gather)
    }

    /// Whether elements are combined by an arithmetic or logical operation.
    #[must_use]
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::ReduceScatter | Self::Reduce)
    }
}

/// How the caller's input and result lie in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// They have no byte in common.
    #[default]
    None,
    /// They begin at the same address.
    Same,
    /// They overlap in another way.
    Partial,
}

impl Overlap {
    /// The relation of two buffers.
    #[must_use]
    pub fn of(input: &Iov, result: &Iov) -> Self {
        let (first, second) = (input.addr(), result.addr());
        let (first_end, second_end) = (first + input.len() as u64, second + result.len() as u64);
        if input.is_empty() || result.is_empty() || first_end <= second || second_end <= first {
            Self::None
        } else if first == second {
            Self::Same
        } else {
            Self::Partial
        }
    }
}

/// One member's part in a collective: all that its schedule depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Request {
    /// The operation.
    pub operation: Operation,
    /// This member, below `members`.
    pub rank: u32,
    /// Members of the group, at least 1.
    pub members: u32,
    /// The root's rank; 0 for operations without a root.
    pub root: u32,
    /// Elements in one block.
    pub count: usize,
    /// Bytes of one element, at least 1.
    pub element: usize,
    /// How input and result lie in memory.
    pub overlap: Overlap,
}

impl Request {
    /// Bytes of one block.
    pub(crate) const fn block(&self) -> usize {
        self.count.saturating_mul(self.element)
    }

    /// Bytes of one block for each member.
    pub(crate) const fn blocks(&self) -> usize {
        self.block().saturating_mul(self.members as usize)
    }

    /// This rank relative to the root, which is 0.
    const fn relative(&self) -> u32 {
        (self.rank + self.members - self.root) % self.members
    }

    /// The rank at a place relative to the root.
    const fn absolute(&self, relative: u32) -> u32 {
        (relative + self.root) % self.members
    }

    fn check(&self) -> Result<(), Refusal> {
        let blocks = self.count.checked_mul(self.element).and_then(|block| block.checked_mul(self.members as usize));
        match blocks {
            Some(bytes) if bytes <= isize::MAX as usize / 4 => {}
            _ => return Err(Refusal::TooLong),
        }
        let known = self.rank < self.members && self.root < self.members && self.element > 0;
        if known { Ok(()) } else { Err(Refusal::NoSuchRank) }
    }
}

/// The reason for which there is no schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The schedule would have more than [`MAX_TASKS`] tasks.
    #[error("the collective needs more than {MAX_TASKS} tasks")]
    TooManyTasks,
    /// The buffers would be longer than an address space.
    #[error("the buffers of the collective are too long")]
    TooLong,
    /// The rank or the root is not below the member count.
    #[error("the rank or the root is not a member")]
    NoSuchRank,
}

/// A buffer that tasks refer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The caller's input; only read.
    Input,
    /// The caller's result.
    Result,
    /// The schedule's own memory, [`Schedule::scratch`] bytes.
    Scratch,
}

/// A range of a buffer, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buffer: Buffer,
    /// Where the range begins.
    pub offset: usize,
    /// How long it is.
    pub len: usize,
}

impl Span {
    /// A part of this range.
    pub(crate) const fn part(self, offset: usize, len: usize) -> Self {
        debug_assert!(offset + len <= self.len, "a part lies in its range");
        Self { buffer: self.buffer, offset: self.offset + offset, len }
    }
}

/// The order of the operands of a reduction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Order {
    /// `into = op(into, from)`.
    IntoFirst,
    /// `into = op(from, into)`.
    FromFirst,
}

impl Order {
    /// The other order, for a planted bug.
    pub(crate) const fn swapped(self) -> Self {
        match self {
            Self::IntoFirst => Self::FromFirst,
            Self::FromFirst => Self::IntoFirst,
        }
    }
}

/// One step of a schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Task {
    /// Starts to send `at` to a member. The range must not change until the transfer is complete.
    Send {
        /// The receiver's rank.
        to: u32,
        /// How many sends to that member precede this one in the schedule.
        number: u32,
        /// The bytes.
        at: Span,
    },
    /// Starts to receive into `at`. The range is undefined until the transfer is complete.
    Receive {
        /// The sender's rank.
        from: u32,
        /// How many receives from that member precede this one in the schedule.
        number: u32,
        /// The room, exactly as long as the message.
        at: Span,
    },
    /// Goes on when the transfer that the task at this index started is complete.
    Wait {
        /// The index of a `Send` or `Receive` in front of this task.
        task: u32,
    },
    /// Combines two ranges of the same length, element by element.
    Reduce {
        /// The operand that is only read.
        from: Span,
        /// The operand that receives the result.
        into: Span,
        /// Which of both is the first operand.
        order: Order,
    },
    /// Copies a range to another of the same length. Both may lie in one buffer, apart.
    Copy {
        /// The source.
        from: Span,
        /// The destination.
        into: Span,
    },
}

/// One member's program for one collective. It is complete when all tasks are performed and all transfers
/// that they started are complete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schedule {
    tasks: Vec<Task>,
    scratch: usize,
}

impl Schedule {
    /// The tasks, in order.
    #[must_use]
    pub fn tasks(&self) -> &[Task] {
        &self.tasks
    }

    /// Bytes of scratch memory that the tasks use; its start must be aligned to 64 bytes.
    #[must_use]
    pub const fn scratch(&self) -> usize {
        self.scratch
    }
}

/// An algorithm, named where the size does not select it: by tests and by the simulator's profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Algorithm {
    /// Barrier: ⌈log2 P⌉ rounds, for any number of members.
    Dissemination,
    /// Barrier, allreduce and small reduce-scatter: pairs by rank bits, as in the paper.
    RecursiveDoubling,
    /// Allreduce and reduce: reduce-scatter by halving, then the blocks are gathered (Rabenseifner).
    Halving,
    /// Broadcast, reduce, scatter and gather: a binomial tree.
    Binomial,
    /// Broadcast: a binary tree that forwards segments.
    Pipeline,
    /// Broadcast: the blocks are scattered, then gathered around a ring.
    ScatterRing,
    /// Allgather and alltoall: ⌈log2 P⌉ rounds of growing messages (Bruck et al., 1997).
    Bruck,
    /// Allgather: every block goes around a ring.
    Ring,
    /// Alltoall and reduce-scatter: one message for each pair. Scatter and gather: one for each member.
    Direct,
}

/// The algorithm for a request: a table by operation, bytes and members.
///
/// The thresholds begin with those of MPICH; docs/benchmarking.md has what was measured.
#[must_use]
pub const fn select(request: &Request) -> Algorithm {
    let (block, blocks) = (request.block(), request.blocks());
    let splits = request.count >= request.members as usize;
    match request.operation {
        Operation::Barrier => Algorithm::Dissemination,
        Operation::Broadcast if block < 12 << 10 || request.members <= 2 => Algorithm::Binomial,
        Operation::Broadcast if block < 512 << 10 || !splits => Algorithm::Pipeline,
        Operation::Broadcast => Algorithm::ScatterRing,
        Operation::AllReduce if block > 2 << 10 && splits => Algorithm::Halving,
        Operation::AllReduce => Algorithm::RecursiveDoubling,
        Operation::Reduce if block > 2 << 10 && splits => Algorithm::Halving,
        Operation::Reduce => Algorithm::Binomial,
        Operation::ReduceScatter if blocks > 2 << 10 => Algorithm::Direct,
        Operation::ReduceScatter => Algorithm::RecursiveDoubling,
        Operation::AllGather if blocks < 80 << 10 => Algorithm::Bruck,
        Operation::AllGather => Algorithm::Ring,
        Operation::AllToAll if block <= 256 && request.members >= 8 => Algorithm::Bruck,
        Operation::AllToAll => Algorithm::Direct,
        Operation::Scatter | Operation::Gather if blocks <= 64 << 10 => Algorithm::Binomial,
        Operation::Scatter | Operation::Gather => Algorithm::Direct,
    }
}

/// One member's schedule, by the algorithm that [`select`] names.
///
/// # Errors
/// The request names a rank that is no member, or the schedule would be too long.
pub fn compile(request: &Request) -> Result<Schedule, Refusal> {
    compile_as(request, select(request))
}

/// One member's schedule by a given algorithm. An algorithm that the operation does not have is replaced by the
/// one that [`select`] names.
///
/// # Errors
/// As [`compile`].
pub fn compile_as(request: &Request, algorithm: Algorithm) -> Result<Schedule, Refusal> {
    request.check()?;
    let mut builder = builder::Builder::new(*request);
    match request.operation {
        Operation::Barrier => barrier::emit(&mut builder, algorithm),
        _ if request.count == 0 => {}
        Operation::Broadcast => broadcast::emit(&mut builder, algorithm),
        Operation::AllReduce => reduce::all_reduce(&mut builder, algorithm),
        Operation::Reduce => reduce::reduce(&mut builder, algorithm),
        Operation::ReduceScatter => reduce::reduce_scatter(&mut builder, algorithm),
        Operation::AllGather => gather::all_gather(&mut builder, algorithm),
        Operation::Gather => gather::gather(&mut builder, algorithm),
        Operation::Scatter => gather::scatter(&mut builder, algorithm),
        Operation::AllToAll => alltoall::emit(&mut builder, algorithm),
    }
    builder.finish()
}
