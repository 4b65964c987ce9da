//! The data path of an endpoint: operations that the client starts, and cancels.
//!
//! Place in the data flow: [`Ep`](crate::endpoint::Ep) → [`EndpointCell::submit_send`],
//! [`EndpointCell::submit_recv`], [`EndpointCell::submit_tx`] → the engine; completions that are ready at once
//! leave through [`Routes::deliver`] before the call returns.

use std::ops::DerefMut;
use std::sync::Arc;

use weft_engine::api::{Error, OpFlags, RecvOp, SendOp};

use super::{EndpointCell, Eng, State};
use crate::abi::errno::Errno;
use crate::endpoint::route::Routes;
use crate::sleep::lock::Guard;
use crate::trigger::op::Op;

impl EndpointCell {
    /// Starts a transmit operation; returns what the C function returns.
    #[inline]
    pub(crate) fn submit_tx(&self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(_), routes, .. } = &*state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        let (result, fired) = state.submit(start);
        self.leave(state, fired);
        result
    }

    /// Starts a send; returns what the C function returns.
    ///
    /// This and [`EndpointCell::submit_recv`] are in line, and what does not go at once is handed on by value: so an
    /// operation that does is never put together in memory.
    #[inline(always)]
    pub(crate) fn submit_send(self: &Arc<Self>, op: SendOp<'_>) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, .. } = &mut *state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        if !engine.send_now(&op) {
            return self.send_later(state, op);
        }
        let fired = routes.sent(&op);
        // It may have been gathered with others, for the next round of progress.
        self.leave(state, fired);
        0
    }

    #[cold]
    #[inline(never)]
    fn send_later(self: &Arc<Self>, mut state: Guard<'_, State>, op: SendOp<'_>) -> isize {
        if op.flags.contains(OpFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::send(&op));
        }
        let (result, fired) = state.submit(|engine| engine.send_later(&op));
        self.leave(state, fired);
        result
    }

    /// Posts a receive; returns what the C function returns.
    #[inline(always)]
    pub(crate) fn submit_recv(self: &Arc<Self>, op: RecvOp<'_>) -> isize {
        // Looked up before the lock, so that it need not come from memory.
        let piece = if let [one] = op.iov { Some(*one) } else { None };
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, .. } = &mut *state else { return self.post_shared(op) };
        match &routes.rx {
            Some(cq) if !cq.is_full() => {}
            // It takes what waits for a buffer anyhow, and clients that post the next one while they read may
            // take no refusal (GASNet).
            Some(cq) if op.flags.contains(OpFlags::MULTI) && !cq.is_flooded() => {}
            Some(_) => return Errno::AGAIN.size(),
            // It could not complete anywhere (fi_endpoint(3): -FI_ENOCQ).
            None => return Errno::NOCQ.size(),
        }
        match piece {
            Some(piece) if engine.post_now(&op, piece) => 0,
            _ => self.post_later(state, op),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_later(self: &Arc<Self>, mut state: Guard<'_, State>, op: RecvOp<'_>) -> isize {
        if op.flags.contains(OpFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::recv(&op));
        }
        let (result, fired) = state.submit(|engine| engine.recv(&op));
        // A peek is a round of progress, and there are clients that make no other.
        let fired = fired || state.programs_due || state.stalled;
        self.leave(state, fired);
        result
    }

    /// Ends a call that has started something. `fired`: programs can go on.
    #[inline(always)]
    pub(super) fn leave(&self, state: impl DerefMut<Target = State>, fired: bool) {
        if state.relied_on {
            self.leave_sleeper(state, fired);
        } else if fired {
            self.run_programs(state);
        }
    }

    /// The same where another thread sleeps on the endpoint.
    #[cold]
    #[inline(never)]
    fn leave_sleeper(&self, mut state: impl DerefMut<Target = State>, fired: bool) {
        if self.ensure_wake_up(&mut state) || fired {
            self.run_programs(state);
        }
    }

    /// Cancels a receive, or an operation that waits for its trigger.
    pub(crate) fn cancel(&self, context: usize) -> isize {
        let mut state = self.state.lock();
        let State { engine: Some(engine), routes, programs_due, stalled, .. } = &mut *state else {
            return self.cancel_shared(context);
        };
        if engine.cancel(context) {
            *programs_due |= routes.deliver(engine) || *stalled;
        } else {
            drop(state);
            let waiting = self.work.cancel_operation(self, context);
            state = self.state.lock();
            let State { engine: Some(engine), routes, programs_due, stalled, .. } = &mut *state else {
                return Errno::NOENT.size();
            };
            match waiting {
                Some(waiting) => engine.completions().push(waiting),
                // It may be a receive that was being started.
                None if self.triggers && engine.cancel(context) => {}
                None => return Errno::NOENT.size(),
            }
            *programs_due |= routes.deliver(engine) || *stalled;
        }
        if state.programs_due {
            self.run_programs(state);
        }
        0
    }
}

impl State {
    /// Starts an operation; a full queue is given one round of progress to drain. Returns what the C function
    /// returns, and whether programs can go on.
    #[inline]
    fn submit(&mut self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> (isize, bool) {
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        if result == Err(Error::Again) {
            return self.submit_again(start);
        }
        let fired = routes.deliver(engine);
        (returned(routes, result), fired)
    }

    #[cold]
    fn submit_again(&mut self, start: impl Fn(&mut Eng) -> Result<(), Error>) -> (isize, bool) {
        let room = self.make_room();
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        let fired = routes.deliver(engine);
        (returned(routes, result), room || fired)
    }
}

/// What the C function returns.
#[inline]
fn returned(routes: &Routes, result: Result<(), Error>) -> isize {
    match result {
        Ok(()) => 0,
        Err(error) => refused(routes, error),
    }
}

/// The same of an operation that was not started.
#[cold]
fn refused(routes: &Routes, error: Error) -> isize {
    if error == Error::Again {
        routes.again.update(|again| again + 1);
    }
    Errno::from(error).size()
}
