//! Planted bugs: deliberate errors that prove that the simulator's oracle finds such errors.
//!
//! Place in the data flow: none. The engine's code names a bug at the expression that it changes
//! ([`planted!`]). Only the feature `mutants`, which weft-sim's test `planted` enables, compiles the bugs in. A
//! thread then activates one of them at a time. docs/testing.md lists what catches each bug.

/// Marks the place of a planted bug; the marked code is always the correct one.
///
/// - `planted!(Bug::X, right, wrong)` is the expression `right`. While the bug is active it is `wrong`.
/// - `planted!(Bug::X, wrong)` is nothing. While the bug is active it executes `wrong`.
///
/// Without the feature `mutants` the condition is false at compile time, and `wrong` is not part of the binary.
macro_rules! planted {
    (Bug::$bug:ident, $wrong:expr $(,)?) => {
        if $crate::bugs::is_active($crate::bugs::Bug::$bug) {
            $wrong;
        }
    };
    (Bug::$bug:ident, $right:expr, $wrong:expr $(,)?) => {
        if $crate::bugs::is_active($crate::bugs::Bug::$bug) { $wrong } else { $right }
    };
}
pub(crate) use planted;

/// Declares [`Bug`] and the list of all bugs.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Bug {
            $($(#[$doc])* $bug,)*
        }

        impl Bug {
            /// Every planted bug.
            pub const ALL: &[Self] = &[$(Self::$bug,)*];
        }
    };
}

bugs! {
    /// A part of the eager window is not returned.
    CreditLost,
    /// A part of the eager window is returned twice.
    CreditTwice,
    /// A message whose bytes follow is not charged to the window.
    FollowedUncharged,
    /// The credit of active messages is not returned.
    ActiveCreditLost,
    /// The credit of an active message is returned twice.
    ActiveCreditTwice,
    /// Credit of active messages leaves before replies that wait.
    ActiveCreditEarly,
    /// A reply is dropped if the device is full.
    ActiveReplyDropped,
    /// The death of a peer takes the replies to others that leave in the same poll.
    ActiveDeathTakesReplies,
    /// Matching compares the tag bits that the receive ignores, and no others.
    IgnoreSwapped,
    /// A directed receive takes messages from any source.
    SourceForgotten,
    /// Some receives do not search the unexpected messages.
    UnexpectedOverlooked,
    /// The delivery is acknowledged on arrival.
    AckBeforeMatch,
    /// Requests that the peer has not executed count as confirmed.
    ConfirmedEarly,
    /// A write whose client has named no level is complete when it has left.
    WriteLeaves,
    /// A confirmation overtakes the refusal of a request.
    RefusalOvertaken,
    /// The length of a truncated rest is one byte short.
    TruncationOffByOne,
    /// A truncated message is received without an error.
    TruncationUnreported,
    /// One operation to a dead peer never fails.
    DeathForgotten,
    /// Receives that only a dead peer could serve stay posted.
    DeathUnreported,
    /// An endpoint at the socket of a dead peer is taken for that peer.
    StaleEpoch,
    /// A send that was refused with `Again` is sent nevertheless.
    AgainWithEffect,
    /// A region is accessed after its owner has revoked it.
    StaleMap,
    /// An access in mapped memory overtakes an earlier access that is on its way.
    AccessOvertakes,
    /// A fenced operation does not wait.
    FenceIgnored,
    /// An access one byte beyond the region is granted.
    RangeOffByOne,
    /// An access without the right to it is granted.
    AccessIgnored,
    /// A quiet operation reports its success.
    QuietReported,
    /// A rendezvous message loses its immediate data.
    DataDropped,
    /// A message that was taken before is taken again.
    DuplicateTaken,
    /// Messages overlap by one byte in a multi-receive buffer.
    MultiOverlaps,
    /// A multi-receive buffer is released while a message is still arriving in it.
    MultiReleasedEarly,
    /// A cancelled receive stays posted.
    CancelLeaves,
    /// An atomic operation is executed twice.
    AtomicTwice,
    /// An operation of several parts raises one remote event for each part.
    EventPerPart,
    /// A peek removes the message.
    PeekTakes,
    /// A peek with FI_CLAIM does not reserve the message.
    ClaimForgotten,
    /// A queued inject reads the client's buffer later.
    InjectNotCopied,
    /// A send completes while the device still reads its memory.
    PushStillReads,
    /// A rendezvous message lacks its last byte.
    RendezvousShort,
    /// The second of two queued operations is sent first.
    OrderSwapped,
    /// Memory is deregistered before the device has finished with it.
    RegistrationEndsEarly,
    /// Messages of a broken link are treated as messages of the next link.
    OrphanOvertakes,
    /// A rendezvous message of a dead sender leaves its place in the queue to the next message.
    LostPassedOver,
    /// A dropped datagram is not counted.
    DropUncounted,
    /// A dropped datagram does not complete.
    DropUnreported,
    /// A datagram that was lost with its link completes with an error.
    LossReported,
    /// A counter's threshold releases a program twice.
    ThresholdTwice,
    /// A counter's threshold releases a program one step early.
    ThresholdEarly,
    /// Programs that one raise releases start in reverse order.
    ThresholdsUnordered,
    /// A cancelled program starts nevertheless.
    CancelledStarts,
    /// An act that met a full queue is not retried.
    ActLost,
    /// An act overtakes an earlier act of its lane whose queue is full.
    LaneOvertaken,
    /// Counter errors do not end the programs that ask for it.
    PoisonForgotten,
    /// Counter errors do not count towards thresholds.
    ErrorsUncounted,
    /// A counter is armed for one step above the lowest threshold.
    ArmedLate,
    /// A cancelled act blocks its lane.
    CancelBlocks,
    /// The pool does not note that a message waits for a shared receive.
    PoolOverlooked,
    /// A shared receive stays posted after it was taken.
    PoolTakenTwice,
    /// A message takes a shared receive that an older message waits for.
    PoolOvertaken,
    /// A cancelled shared receive stays posted.
    PoolCancelLeaves,
    /// A shared multi-receive is released while another endpoint has yet to report a message in it.
    PoolReleasedEarly,
    /// The context number in an address is ignored.
    ContextIgnored,
    /// Contexts of a scalable endpoint other than the first are treated as strangers.
    ContextStranger,
    /// The end of a connection is not reported.
    EndUnreported,
    /// The end of a connection is reported twice.
    EndTwice,
    /// The data of a connection's refusal is lost.
    RefusalWithoutData,
    /// Untagged receives stay posted when their connection ends.
    EndKeepsReceives,
    /// A collective ends while its transfers are under way.
    CollectiveEndsEarly,
    /// The messages of a group's collectives have one sequence number.
    SequenceLost,
    /// The operands of a reduction are exchanged.
    OperandsSwapped,
    /// A block is combined twice.
    ReducedTwice,
    /// A collective does not continue after some of its transfers.
    RunForgotten,
    /// A run that is used again does not begin at its first task.
    RunNotRestarted,
    /// A collective goes on after a failed transfer as if it had arrived.
    CollectivePoisonLost,
    /// A collective's message that waited for its receive does not give back its part of the window.
    CollectiveCreditLost,
    /// The first member to arrive releases the board.
    BoardReleasedEarly,
    /// A member enters a board's bank that others still use.
    BankOvertaken,
    /// A member whose group has failed tells no other one.
    FailureUntold,
}

#[cfg(feature = "mutants")]
mod active {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Activates a bug in the engines of this thread; `None` deactivates it.
    pub fn activate(bug: Option<Bug>) {
        ACTIVE.set(bug);
    }

    pub(crate) fn is_active(bug: Bug) -> bool {
        ACTIVE.get() == Some(bug)
    }
}

#[cfg(feature = "mutants")]
pub use active::activate;
#[cfg(feature = "mutants")]
pub(crate) use active::is_active;

/// Without the feature `mutants` no bug is active.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn is_active(_: Bug) -> bool {
    false
}
