//! Operations that start without a call of the client, as the endpoint sees them.
//!
//! Place in the data flow: [`crate::trigger`] → [`EndpointCell::start`], when the time of an operation has
//! come; its completion comes back through [`Routes::finish_work`] if it was deferred work, else as any
//! other.

use std::sync::Arc;

use weft_engine::api::{Completion, Error, Fault};

use super::{EndpointCell, State};
use crate::abi::errno::Errno;
use crate::endpoint::route::is_failure;
use crate::endpoint::route::{Routes, User};
use crate::trigger::op::{Op, Report};
use crate::trigger::release;

impl EndpointCell {
    /// Starts an operation when its context's condition is met (FI_TRIGGER); returns what the C function returns.
    #[cold]
    pub(crate) fn trigger(self: &Arc<Self>, op: Op) -> isize {
        if !self.triggers() {
            return Errno::OPNOTSUPP.size();
        }
        let state = self.state();
        // It will complete like any other, so there must be room for its entry.
        let refusal = if op.receives() {
            state.routes.rx_full().then_some(Errno::AGAIN.size())
        } else {
            state.routes.tx_full().then(|| state.routes.tx_refusal())
        };
        drop(state);
        if let Some(refusal) = refusal {
            return refusal;
        }
        let result = self.admit(&op).and_then(|()| self.work().trigger(self, op));
        result.map_or_else(Errno::size, |()| 0)
    }

    /// Tells endpoints apart, while they exist. Never 0.
    pub(crate) fn id(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    /// The lanes of its transmit and its receive queue among programs.
    pub(crate) fn lanes(&self) -> [u64; 2] {
        // Addresses of cells are even, and not the last one.
        [self.id() as u64, self.id() as u64 | 1]
    }

    /// Whether the operation would be taken, as far as that can be told now.
    pub(crate) fn admit(&self, op: &Op) -> Result<(), Errno> {
        let mut state = self.state();
        let State { engine, routes, .. } = &mut *state;
        let engine = engine.as_mut().ok_or(Errno::OPBADSTATE)?;
        let queue = if op.receives() { &routes.rx } else { &routes.tx };
        if queue.is_none() {
            return Err(Errno::NOCQ);
        }
        op.admit(engine).map_err(Errno::from)
    }

    /// Starts an operation whose time has come. `report` is what deferred work wants done at its end. False: a queue is
    /// full, try again after progress.
    ///
    /// The queues' bounds are not asked: the operation was admitted when it was submitted.
    pub(crate) fn start(&self, op: &mut Op, report: &mut Option<Report>) -> bool {
        let mut state = self.state();
        let State { engine: Some(engine), routes, .. } = &mut *state else {
            // Closed meanwhile: as everything else that was under way, it is discarded.
            return true;
        };
        let number = report.take().map(|report| {
            let number = routes.works.get_mut().insert(report);
            op.ctx.user = User::of(op.ctx).deferred(number).word();
            number
        });
        let mut result = op.start(engine);
        let mut room = false;
        if result == Err(Error::Again) {
            // What this sets free, here and below, is found by the caller, who runs the queue.
            room = state.make_room();
            result = state.engine.as_mut().map_or(result, |engine| op.start(engine));
        }
        let State { engine: Some(engine), routes, programs_due, stalled, .. } = &mut *state else { return true };
        let started = result != Err(Error::Again);
        match result {
            Err(Error::Again) => *report = number.map(|number| routes.works.get_mut().remove(number)),
            Err(error) => engine.completions().push(op.ended(Fault::Refused(error))),
            Ok(()) => {}
        }
        let _ = routes.deliver(engine);
        // What is stalled in the other lane may have room now. That is left to the next round, or two lanes
        // that are full would send the caller to and fro for as long as anything comes.
        *programs_due |= room || (started && *stalled);
        *stalled |= !started;
        if state.programs_due {
            self.notify_sleepers(&mut state);
        }
        if self.ensure_wake_up(&mut state) {
            // More than the caller runs may go on.
            state.routes.notify();
        }
        started
    }

    /// Cancels deferred work that was started, where it is a receive that nothing has matched.
    pub(crate) fn cancel_work(&self, work: usize) -> Standing {
        let mut state = self.state();
        let State { engine: Some(engine), routes, programs_due, stalled, .. } = &mut *state else {
            return Standing::Unknown;
        };
        let works = &routes.works;
        let wanted = |report: &Report| report.work == work;
        if !works.borrow().iter().any(|(_, report)| wanted(report)) {
            return Standing::Unknown;
        }
        engine.cancel_where(|ctx| {
            let mut works = works.borrow_mut();
            let report = User::of(ctx).number().and_then(|number| works.get_mut(number));
            let Some(report) = report.filter(|report| wanted(report)) else { return false };
            report.cancelled = true;
            true
        });
        *programs_due |= routes.deliver(engine) || *stalled;
        let under_way = works.borrow().iter().any(|(_, report)| wanted(report));
        if state.programs_due {
            self.run_programs(state);
        }
        if under_way { Standing::UnderWay } else { Standing::Over }
    }
}

/// What an attempt to cancel started work found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// No such work.
    Unknown,
    /// It was there and has ended.
    Over,
    /// It cannot be taken back.
    UnderWay,
}

impl Routes {
    /// Does what deferred work wants at its end. Returns whether programs can go on, and whether it also
    /// completes as an operation of the endpoint, and how.
    #[cold]
    pub(in crate::endpoint) fn finish_work(&self, number: usize, completion: &Completion) -> (bool, Verdict) {
        let report = self.works.borrow_mut().try_remove(number);
        let Some(report) = report.filter(|report| !report.cancelled) else { return (false, Verdict::Silent) };
        let failed = completion.fault.is_some_and(is_failure);
        let silent = report.completion.is_some() || !failed;
        let fired = match report.completion {
            // The client may close the counter as soon as it sees it raised.
            Some(cntr) => release(cntr).record(completion.len, failed),
            None => false,
        };
        let verdict = match (report.entry, silent) {
            (true, _) => Verdict::AsAny,
            (false, true) => Verdict::Silent,
            (false, false) => Verdict::EntryOnly,
        };
        (fired, verdict)
    }
}

/// What becomes of the completion of deferred work at its endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::endpoint) enum Verdict {
    /// It makes an entry and counts, like any other.
    AsAny,
    /// It makes an entry.
    EntryOnly,
    /// Nothing.
    Silent,
}
