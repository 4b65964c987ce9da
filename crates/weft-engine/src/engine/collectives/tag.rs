//! The tags of messages of collectives, and the steps that wait for their ends.
//!
//! Place in the data flow: a message's tag leads its receiver to the step of a run (`messages.rs`). A [`StepId`] leads
//! the end of a send or receive back to its run, by way of the operation's context.
//!
//! A tag consists of the receiver's number of the group, the operation's sequence number and the message's number in
//! the schedule, so that every tag is unique at its receiver. The tags of a join, before any number is known, have a
//! hash of the members' names in place of the first two. Sequence numbers wrap around.

use crate::api::Context;
use crate::collective;
use crate::ids::RunId;
use crate::table::Id as _;

/// Bits for the message's number in its schedule.
const NUMBER_BITS: u32 = 14;
/// Bits for the operation's sequence number. A member cannot be as many operations ahead of another.
const SEQUENCE_BITS: u32 = 26;
/// Bits for the receiver's number of the group.
const GROUP_BITS: u32 = 23;
/// The tag belongs to a join.
const JOIN: u64 = 1 << 63;
const NUMBERS: u64 = (1 << NUMBER_BITS) - 1;
const SEQUENCES: u64 = (1 << SEQUENCE_BITS) - 1;

const _: () = assert!(NUMBER_BITS + SEQUENCE_BITS + GROUP_BITS == 63);
const _: () = assert!(collective::MAX_TASKS <= 1 << NUMBER_BITS);

/// The tag of a message of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Tag(u64);

impl Tag {
    pub(crate) const fn from_wire(tag: u64) -> Self {
        Self(tag)
    }

    pub(crate) const fn to_wire(self) -> u64 {
        self.0
    }

    /// The tag of a join, which is also that of its message with the number 0.
    pub(super) const fn join(hash: u64) -> Self {
        Self(JOIN | hash << NUMBER_BITS)
    }

    /// The tag of a message of an operation, for a receiver that knows the group by `group`.
    pub(super) fn operation(group: u32, sequence: u64, number: u32) -> Self {
        let sequence = sequence & SEQUENCES;
        Self(u64::from(group) << (SEQUENCE_BITS + NUMBER_BITS) | sequence << NUMBER_BITS | u64::from(number))
    }

    /// The tag of another message of the same operation or join.
    pub(super) const fn with_number(self, number: u64) -> Self {
        Self(self.0 & !NUMBERS | number)
    }

    pub(super) const fn is_join(self) -> bool {
        self.0 & JOIN != 0
    }

    /// The message's number in its schedule.
    pub(super) const fn number(self) -> u64 {
        self.0 & NUMBERS
    }

    /// The receiver's number of the group; of no meaning in the tag of a join.
    pub(super) const fn group(self) -> u64 {
        self.0 >> (SEQUENCE_BITS + NUMBER_BITS)
    }

    /// Whether the message is one of an operation in the group that has this number here.
    pub(super) fn is_of(self, group: u32) -> bool {
        !self.is_join() && self.group() == u64::from(group)
    }

    /// Whether the message is one of the operation with this sequence number.
    pub(super) const fn has_sequence(self, sequence: u64) -> bool {
        self.behind(sequence) == 0
    }

    /// Whether the message is one of an operation that precedes the one with this sequence number.
    pub(super) fn precedes(self, sequence: u64) -> bool {
        (1..1 << (SEQUENCE_BITS - 1)).contains(&self.behind(sequence))
    }

    const fn behind(self, sequence: u64) -> u64 {
        sequence.wrapping_sub(self.0 >> NUMBER_BITS) & SEQUENCES
    }
}

/// The number of a group that no other one of the endpoint has, if `next` counts them.
pub(super) const fn group_number(next: u32) -> u32 {
    next & ((1 << GROUP_BITS) - 1)
}

/// A message of a schedule that is no message of a run: its number is higher than any schedule has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// The group has failed.
    Failed,
    /// A member tells its partners that it leaves the group's chain (`chains.rs`).
    ChainLeft,
}

impl Signal {
    /// The tag of the signal in the group whose join has a tag.
    pub(super) const fn tag(self, join: Tag) -> Tag {
        join.with_number(match self {
            Self::Failed => NUMBERS,
            Self::ChainLeft => NUMBERS - 1,
        })
    }

    /// The signal that a message is, and the tag of the join of its group.
    pub(super) fn of(tag: Tag) -> Option<(Self, Tag)> {
        let join = tag.with_number(0);
        let signals = [Self::Failed, Self::ChainLeft];
        signals.into_iter().find(|signal| tag.is_join() && signal.tag(join) == tag).map(|signal| (signal, join))
    }
}

/// A step of a run that waits for the end of its send or receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StepId {
    run: RunId,
    task: u32,
}

/// The context of a signal, which is no step of a run.
pub(super) const NO_STEP: Context = Context { ptr: usize::MAX, user: 0 };

impl StepId {
    pub(super) const fn new(run: RunId, task: u32) -> Self {
        Self { run, task }
    }

    pub(super) const fn run(self) -> RunId {
        self.run
    }

    pub(super) const fn task(self) -> u32 {
        self.task
    }

    pub(super) fn to_context(self) -> Context {
        Context { ptr: self.run.place(), user: u64::from(self.task) }
    }

    /// The step of a context. `None`: that of a signal.
    pub(super) fn from_context(ctx: Context) -> Option<Self> {
        let task = u32::try_from(ctx.user).ok()?;
        (ctx != NO_STEP).then(|| Self { run: RunId::at(ctx.ptr), task })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_keep_their_parts() {
        let tag = Tag::operation(5, SEQUENCES + 3, 7);
        assert!(tag.is_of(5) && !tag.is_of(4) && !tag.is_join());
        assert_eq!((tag.group(), tag.number()), (5, 7));
        assert!(tag.has_sequence(2) && tag.precedes(3) && !tag.precedes(2) && !tag.precedes(1));
        assert_eq!(Tag::from_wire(tag.to_wire()), tag);
    }

    #[test]
    fn signals_are_found_among_the_messages_of_joins() {
        let join = Tag::join(99);
        for signal in [Signal::Failed, Signal::ChainLeft] {
            assert_eq!(Signal::of(signal.tag(join)), Some((signal, join)));
        }
        assert_eq!(Signal::of(join.with_number(3)), None);
        assert_eq!(Signal::of(Tag::operation(5, 2, 0).with_number(NUMBERS)), None);
        assert!(join.is_join() && !join.is_of(0));
    }

    #[test]
    fn a_context_leads_to_its_step() {
        let step = StepId { run: RunId::at(3), task: 9 };
        assert_eq!(StepId::from_context(step.to_context()), Some(step));
        assert_eq!(StepId::from_context(NO_STEP), None);
    }
}
