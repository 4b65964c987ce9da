//! Deferred work (FI_QUEUE_WORK) whose operation an endpoint has started.
//!
//! Place in the data flow: [`crate::endpoint::cell::deferred`] enters a [`Report`] when the operation starts. Its
//! number travels in the operation's [`User`](super::User) word, and [`DeferredReports::finish`] takes it out at the
//! end.

use std::cell::RefCell;

use slab::Slab;
use weft_engine::api::Completion;

use super::deliver::is_failure;
use crate::trigger::op::Report;
use crate::trigger::release;

/// The reports of operations that are under way, by number.
#[derive(Default)]
pub(in crate::endpoint) struct DeferredReports(RefCell<Slab<Report>>);

/// How deferred work completes at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It makes an entry and is counted, like any other operation.
    Ordinary,
    /// It makes an entry and is not counted.
    EntryOnly,
    /// It makes no entry and is not counted.
    Silent,
}

impl DeferredReports {
    /// Enters a report. Returns its number.
    pub(in crate::endpoint) fn insert(&mut self, report: Report) -> usize {
        self.0.get_mut().insert(report)
    }

    /// Takes back the report of an operation that was not started.
    pub(in crate::endpoint) fn take_back(&mut self, number: usize) -> Report {
        self.0.get_mut().remove(number)
    }

    /// Whether operations of this work, named by its address, are under way.
    pub(in crate::endpoint) fn has(&self, work: usize) -> bool {
        self.0.borrow().iter().any(|(_, report)| report.work == work)
    }

    /// Marks the report as cancelled if it is of this work. Returns whether it is.
    pub(in crate::endpoint) fn cancel(&self, number: usize, work: usize) -> bool {
        let mut works = self.0.borrow_mut();
        let Some(report) = works.get_mut(number).filter(|report| report.work == work) else { return false };
        report.cancelled = true;
        true
    }

    /// Does the completion work of deferred work. Returns whether programs can continue, and how the operation
    /// completes at its endpoint.
    #[cold]
    pub(super) fn finish(&self, number: usize, completion: &Completion) -> (bool, Verdict) {
        let report = self.0.borrow_mut().try_remove(number);
        let Some(report) = report.filter(|report| !report.cancelled) else { return (false, Verdict::Silent) };
        let failed = completion.fault.is_some_and(is_failure);
        let silent = report.completion.is_some() || !failed;
        let released = match report.completion {
            // The client may close the counter as soon as it sees the new value.
            Some(cntr) => release(cntr).record(completion.len, failed),
            None => false,
        };
        let verdict = match (report.entry, silent) {
            (true, _) => Verdict::Ordinary,
            (false, true) => Verdict::Silent,
            (false, false) => Verdict::EntryOnly,
        };
        (released, verdict)
    }
}
