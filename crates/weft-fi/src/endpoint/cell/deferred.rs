//! Operations that programs start, without a call of the client.
//!
//! Place in the data flow: a call with FI_TRIGGER → [`EndpointCell::trigger`] → [`crate::trigger`]. When the
//! operation's condition is met, the program → [`EndpointCell::start`]. The completion of deferred work leaves
//! through [`DeferredReports`](crate::endpoint::route::DeferredReports), any other as that of a call.

use std::sync::Arc;

use weft_engine::api::{Error, Fault};
use weft_nic::Device;

use super::{CellRef, CellState, EndpointCell};
use crate::abi::errno::Errno;
use crate::endpoint::route::User;
use crate::trigger::op::{Op, Report};

impl<D: Device> EndpointCell<D> {
    /// Submits an operation that starts when its context's condition is met (FI_TRIGGER). Returns the value that
    /// the C function returns.
    #[cold]
    pub(in crate::endpoint) fn trigger(self: &Arc<Self>, op: Op) -> isize {
        if !self.triggers {
            return Errno::OPNOTSUPP.size();
        }
        let state = self.state();
        // The operation completes like any other, so its queue must have room for an entry.
        let refusal = if op.receives() {
            state.routes.rx_full().then_some(Errno::AGAIN.size())
        } else {
            state.routes.tx_full().then(|| state.routes.tx_refusal())
        };
        drop(state);
        if let Some(refusal) = refusal {
            return refusal;
        }
        let result = self.admit(&op).and_then(|()| self.work.trigger(Arc::clone(self) as CellRef, op));
        result.map_or_else(Errno::size, |()| 0)
    }

    /// Checks whether the engine would accept the operation, as far as that can be known at submission.
    pub(crate) fn admit(&self, op: &Op) -> Result<(), Errno> {
        let mut state = self.state();
        let CellState { engine, routes, .. } = &mut *state;
        let engine = engine.as_mut().ok_or(Errno::OPBADSTATE)?;
        if !routes.has_queue_for(op) {
            return Err(Errno::NOCQ);
        }
        op.admit(engine).map_err(Errno::from)
    }

    /// Starts an operation whose condition is met. `report` is the completion work of deferred work. Returns `false`
    /// if a queue of the engine is full: the caller retries after progress.
    ///
    /// The bounds of the completion queues are not checked: the operation was admitted when it was submitted.
    pub(super) fn start(&self, op: &mut Op, report: &mut Option<Report>) -> bool {
        let mut state = self.state();
        let CellState { engine: Some(engine), routes, .. } = &mut *state else {
            // The endpoint was closed in the meantime, and its operations are discarded.
            return true;
        };
        let number = report.take().map(|report| {
            let number = routes.works.insert(report);
            op.ctx.user = User::of(op.ctx).deferred(number).word();
            number
        });
        let mut result = op.start(engine);
        let mut room = false;
        if result == Err(Error::Again) {
            // The caller runs the queue, and thus finds the programs that are released here and below.
            room = state.make_room();
            result = state.engine.as_mut().map_or(result, |engine| op.start(engine));
        }
        let CellState { engine: Some(engine), routes, programs_due, programs_stalled, .. } = &mut *state else {
            return true;
        };
        let started = result != Err(Error::Again);
        match result {
            Err(Error::Again) => *report = number.map(|number| routes.works.take_back(number)),
            Err(error) => engine.completions().push(op.ended(Fault::Refused(error))),
            Ok(()) => {}
        }
        let _ = routes.deliver(engine, None);
        // Programs that are stalled in the other lane may have room now. They are left to the next round:
        // otherwise two full lanes could keep the caller here as long as messages arrive.
        *programs_due |= room || (started && *programs_stalled);
        *programs_stalled |= !started;
        self.notify_after_start(&mut state);
        started
    }

    fn notify_after_start(&self, state: &mut CellState<D>) {
        if state.programs_due {
            self.notify_sleepers(state);
        }
        if self.ensure_wake_up(state) {
            // More programs can continue than the caller runs.
            state.routes.notify();
        }
    }

    /// Cancels deferred work whose operation was started, if that is a receive without a message.
    pub(super) fn cancel_work(&self, work: usize) -> Standing {
        let mut state = self.state();
        let CellState { engine: Some(engine), routes, .. } = &mut *state else { return Standing::Unknown };
        let works = &routes.works;
        if !works.has(work) {
            return Standing::Unknown;
        }
        engine.cancel_where(|ctx| User::of(ctx).number().is_some_and(|number| works.cancel(number, work)));
        state.deliver();
        let under_way = state.routes.works.has(work);
        if state.programs_due {
            self.run_programs(state);
        }
        if under_way { Standing::UnderWay } else { Standing::Over }
    }

    /// Delivers the outcome of a control call that has started something, and wakes the threads that it concerns.
    pub(in crate::endpoint) fn finish_control(&self, state: &mut CellState<D>) {
        state.deliver();
        self.notify_after_start(state);
    }
}

/// The outcome of an attempt to cancel started work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// The endpoint has no such work.
    Unknown,
    /// The work has ended.
    Over,
    /// The work can no longer be cancelled.
    UnderWay,
}
