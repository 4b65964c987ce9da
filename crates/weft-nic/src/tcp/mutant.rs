//! Planted bugs, which prove that the runs of `tcp/faults` find such.
//!
//! Place in the data flow: none. In the crate's own tests a thread may switch one on; otherwise [`strikes`]
//! is false at compile time, and nothing of this is left. docs/testing.md says what catches each.

/// A bug, named after what it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(not(test), allow(dead_code))]
pub(super) enum Mutant {
    /// An acknowledgement names one byte that has not come.
    AckTooFar,
    /// Whoever is called asks for its last byte once more.
    PositionShort,
    /// What the peer acknowledges with the resumption is sent once more.
    FrameTwice,
    /// The beginning of a header outlives its connection.
    HeaderKept,
    /// An attempt of the past is taken for the latest.
    EpochIgnored,
    /// What was sealed when the connection broke counts as not sent.
    SealedForgotten,
    /// A segment that a break has cut begins anew.
    SegmentAnew,
    /// The rest of an acknowledgement that a break has cut follows on the next connection.
    AckGoesOn,
}

#[cfg(test)]
impl Mutant {
    /// All.
    pub(super) const ALL: [Self; 8] = [
        Self::AckTooFar,
        Self::PositionShort,
        Self::FrameTwice,
        Self::HeaderKept,
        Self::EpochIgnored,
        Self::SealedForgotten,
        Self::SegmentAnew,
        Self::AckGoesOn,
    ];
}

#[cfg(test)]
thread_local! {
    static ACTIVE: std::cell::Cell<Option<Mutant>> = const { std::cell::Cell::new(None) };
}

/// Has this thread's devices behave like that from now on.
#[cfg(test)]
pub(super) fn switch(to: Option<Mutant>) {
    ACTIVE.set(to);
}

#[cfg(test)]
pub(super) fn strikes(mutant: Mutant) -> bool {
    ACTIVE.get() == Some(mutant)
}

/// Never: this device has no planted bugs.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn strikes(_: Mutant) -> bool {
    false
}
