//! Planted bugs: deliberate errors that prove that the runs of `tcp/faults` find such errors.
//!
//! Place in the data flow: none. The device's code names a bug at the expression that it changes ([`planted!`]). Only
//! the crate's own unit tests compile the bugs in; a thread then activates one of them at a time. docs/testing.md lists
//! what catches each bug.

/// Marks the place of a planted bug; the marked code is always the correct one.
///
/// - `planted!(Bug::X, right, wrong)` is the expression `right`. While the bug is active it is `wrong`.
/// - `planted!(Bug::X, wrong)` is nothing. While the bug is active it executes `wrong`.
///
/// Outside of unit tests the condition is false at compile time, and `wrong` is not part of the binary.
macro_rules! planted {
    (Bug::$bug:ident, $wrong:expr $(,)?) => {
        if $crate::tcp::bugs::is_active($crate::tcp::bugs::Bug::$bug) {
            $wrong;
        }
    };
    (Bug::$bug:ident, $right:expr, $wrong:expr $(,)?) => {
        if $crate::tcp::bugs::is_active($crate::tcp::bugs::Bug::$bug) { $wrong } else { $right }
    };
}
pub(super) use planted;

/// Declares [`Bug`] and the list of all bugs.
macro_rules! bugs {
    ($($(#[$doc:meta])* $bug:ident,)*) => {
        /// A planted bug.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Bug {
            $($(#[$doc])* $bug,)*
        }

        #[cfg(test)]
        impl Bug {
            /// Every planted bug.
            pub(super) const ALL: &[Self] = &[$(Self::$bug,)*];
        }
    };
}

bugs! {
    /// An acknowledgement includes one byte that has not been received.
    AckTooFar,
    /// The acceptor of a resumption requests its last received byte once more.
    PositionShort,
    /// A message that the peer acknowledges with the resumption is sent once more.
    FrameTwice,
    /// The beginning of a header outlives its connection.
    HeaderKept,
    /// An outdated attempt is accepted as the latest.
    EpochIgnored,
    /// Sealed bytes count as unsent when the connection breaks.
    SealedForgotten,
    /// A segment that a break has cut begins anew.
    SegmentAnew,
    /// The rest of an acknowledgement that a break has cut follows on the next connection.
    AckGoesOn,
    /// A rail is read before the messages that go before its segment.
    RailNotHeld,
    /// Bytes of a segment that a lost rail has carried are placed once more.
    BytesTwice,
    /// The segments of a lost rail are not repeated.
    SegmentsLost,
}

#[cfg(test)]
pub(super) use active::{activate, is_active};

/// Outside of unit tests no bug is active.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn is_active(_: Bug) -> bool {
    false
}

#[cfg(test)]
mod active {
    use std::cell::Cell;

    use super::Bug;

    thread_local! {
        static ACTIVE: Cell<Option<Bug>> = const { Cell::new(None) };
    }

    /// Activates a bug in the devices of this thread; `None` deactivates it.
    pub(in super::super) fn activate(bug: Option<Bug>) {
        ACTIVE.set(bug);
    }

    pub(in super::super) fn is_active(bug: Bug) -> bool {
        ACTIVE.get() == Some(bug)
    }
}
