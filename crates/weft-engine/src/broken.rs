//! States that cannot happen. In tests and simulations they end the run; in the shipped library they are logged.
//!
//! Place in the data flow: beside it. [`cannot_happen!`] stands where a table lacks what an invariant puts there, and
//! [`less!`] where counts must pair. A lost state would otherwise show as an operation that never ends, far from the
//! cause. The shipped library continues in the way that the caller writes after the macro: it ends the operation with
//! [`Fault::Internal`](crate::api::Fault::Internal), or leaves out the step. It does not panic.
//!
//! States that a peer or the client can cause are none of these. A peer's message that fits no state is a
//! `Violation`, and a wrong call gets an [`Error`](crate::api::Error).

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Marks a place that is not reached, with the invariant that excludes it.
macro_rules! cannot_happen {
    ($invariant:literal) => {
        $crate::broken::report(concat!(file!(), ":", line!(), ": ", $invariant))
    };
}
pub(crate) use cannot_happen;

/// Takes `part` from `count`, which is at least as large. Returns the difference, and 0 if the count is wrong.
macro_rules! less {
    ($count:expr, $part:expr, $invariant:literal) => {
        $count.checked_sub($part).unwrap_or_else(|| {
            $crate::broken::cannot_happen!($invariant);
            0
        })
    };
}
pub(crate) use less;

/// Reports a broken invariant. The first one of a process is logged: others may follow from it.
#[cold]
#[inline(never)]
pub(crate) fn report(invariant: &'static str) {
    if cfg!(debug_assertions) {
        panic!("a broken invariant: {invariant}");
    }
    static REPORTED: AtomicBool = AtomicBool::new(false);
    if !REPORTED.swap(true, Relaxed) {
        log::error!("a fault in weft ({invariant}), operations may fail; report this line with the version of weft");
    }
}

#[cfg(test)]
mod tests {

    #[test]
    fn a_difference_passes_through() {
        assert_eq!(less!(3_u32, 1, "three are more than one"), 2);
    }

    #[test]
    #[cfg_attr(debug_assertions, should_panic(expected = "one is less than three"))]
    fn a_broken_invariant_panics_with_assertions_only() {
        assert_eq!(less!(1_u32, 3, "one is less than three"), 0);
    }
}
