//! Planted bugs, which prove that the simulation's oracle finds such.
//!
//! Place in the data flow: none. With the feature `mutants`, which only weft-sim's trial of its oracle has, a
//! thread may switch one on; without it [`strikes`] is false at compile time, and nothing of this is left.
//! docs/testing.md says what catches each.

/// A bug, named after what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Mutant {
    CreditLost,
    CreditTwice,
    IgnoreSwapped,
    SourceForgotten,
    UnexpectedOverlooked,
    AckBeforeMatch,
    TruncationOffByOne,
    TruncationUntold,
    DeathForgotten,
    DeathUntold,
    StaleEpoch,
    AgainWithEffect,
    FenceIgnored,
    RangeOffByOne,
    AccessIgnored,
    QuietTold,
    DataDropped,
    DuplicateTaken,
    MultiOverlaps,
    MultiReleasedEarly,
    CancelLeaves,
    AtomicTwice,
    EventPerPart,
    PeekTakes,
    ClaimForgotten,
    InjectNotCopied,
    PushStillReads,
    RendezvousShort,
    OrderSwapped,
    RegistrationEndsEarly,
    OrphanOvertakes,
    LostPassedOver,
    DropUncounted,
    DropUntold,
    LossTold,
    ThresholdTwice,
    ThresholdEarly,
    ThresholdsUnordered,
    CancelledStarts,
    ActLost,
    LaneOvertaken,
    PoisonForgotten,
    ErrorsUncounted,
    ArmedLate,
    CancelBlocks,
    PoolOverlooked,
    PoolTakenTwice,
    PoolOvertaken,
    PoolCancelLeaves,
    PoolReleasedEarly,
    ContextIgnored,
    ContextStranger,
    EndUntold,
    EndTwice,
    RefusalMute,
    EndKeepsReceives,
}

impl Mutant {
    /// All.
    pub const ALL: [Self; 56] = [
        Self::CreditLost,
        Self::CreditTwice,
        Self::IgnoreSwapped,
        Self::SourceForgotten,
        Self::UnexpectedOverlooked,
        Self::AckBeforeMatch,
        Self::TruncationOffByOne,
        Self::TruncationUntold,
        Self::DeathForgotten,
        Self::DeathUntold,
        Self::StaleEpoch,
        Self::AgainWithEffect,
        Self::FenceIgnored,
        Self::RangeOffByOne,
        Self::AccessIgnored,
        Self::QuietTold,
        Self::DataDropped,
        Self::DuplicateTaken,
        Self::MultiOverlaps,
        Self::MultiReleasedEarly,
        Self::CancelLeaves,
        Self::AtomicTwice,
        Self::EventPerPart,
        Self::PeekTakes,
        Self::ClaimForgotten,
        Self::InjectNotCopied,
        Self::PushStillReads,
        Self::RendezvousShort,
        Self::OrderSwapped,
        Self::RegistrationEndsEarly,
        Self::OrphanOvertakes,
        Self::LostPassedOver,
        Self::DropUncounted,
        Self::DropUntold,
        Self::LossTold,
        Self::ThresholdTwice,
        Self::ThresholdEarly,
        Self::ThresholdsUnordered,
        Self::CancelledStarts,
        Self::ActLost,
        Self::LaneOvertaken,
        Self::PoisonForgotten,
        Self::ErrorsUncounted,
        Self::ArmedLate,
        Self::CancelBlocks,
        Self::PoolOverlooked,
        Self::PoolTakenTwice,
        Self::PoolOvertaken,
        Self::PoolCancelLeaves,
        Self::PoolReleasedEarly,
        Self::ContextIgnored,
        Self::ContextStranger,
        Self::EndUntold,
        Self::EndTwice,
        Self::RefusalMute,
        Self::EndKeepsReceives,
    ];
}

#[cfg(feature = "mutants")]
mod armed {
    use std::cell::Cell;

    use super::Mutant;

    thread_local! {
        static ACTIVE: Cell<Option<Mutant>> = const { Cell::new(None) };
    }

    /// Has this thread's engines behave like that from now on.
    pub fn switch(to: Option<Mutant>) {
        ACTIVE.set(to);
    }

    pub(crate) fn strikes(mutant: Mutant) -> bool {
        ACTIVE.get() == Some(mutant)
    }
}

#[cfg(feature = "mutants")]
pub(crate) use armed::strikes;
#[cfg(feature = "mutants")]
pub use armed::switch;

/// Never: this engine has no planted bugs.
#[cfg(not(feature = "mutants"))]
#[inline(always)]
pub(crate) const fn strikes(_: Mutant) -> bool {
    false
}
