//! The data path of an endpoint: operations that the client starts, and cancels.
//!
//! Place in the data flow: [`Ep`](crate::endpoint::Ep) → [`EndpointCell::submit_send`],
//! [`EndpointCell::submit_recv`], [`EndpointCell::submit_tx`] → the engine. Completions that are ready at once
//! leave through [`Routes::deliver`] before the call returns.
//!
//! Each function returns the value that the C function returns. Operations that complete at once stay on the
//! inlined path. The others are passed by value to a cold function, so that the compiler never has to build the
//! operation in memory for the former.

use std::ops::DerefMut;
use std::sync::Arc;

use weft_engine::api::{Error, OpFlags, RecvFlags, RecvOp, SendOp};
use weft_engine::{Engine, GroupId, Performed};
use weft_nic::Device;

use super::{AnyCell, CellState, EndpointCell};
use crate::abi::errno::Errno;
use crate::endpoint::route::Routes;
use crate::sleep::lock::Guard;
use crate::trigger::op::Op;

impl<D: Device> EndpointCell<D> {
    /// Starts a remote access. One to the endpoint itself may be reported to both queues at once.
    #[inline]
    pub(crate) fn submit_tx(&self, start: impl Fn(&mut Engine<D>) -> Result<(), Error>) -> isize {
        let mut state = self.state.lock();
        let CellState { engine: Some(_), routes, .. } = &*state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() || routes.flooded() {
            return routes.tx_refusal();
        }
        let (result, mut released) = state.submit(start);
        if state.engine.as_mut().is_some_and(|engine| engine.take_round_due()) {
            state.round(None);
            released |= state.programs_due;
        }
        self.finish_call(state, released);
        result
    }

    /// Starts a collective. Its later steps may be due while the client computes. If the client did so after earlier
    /// ones, the progress thread takes over from the start.
    /// Within a host the member that arrives last does the work, and the thread would only interrupt.
    pub(crate) fn submit_collective(
        &self,
        group: GroupId,
        start: impl Fn(&mut Engine<D>) -> Result<(), Error>,
    ) -> isize {
        let mut state = self.state.lock();
        let CellState { engine: Some(engine), routes, .. } = &*state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        let thread = self.progress_thread.as_ref().filter(|_| engine.spans_hosts(group));
        let (result, released) = state.submit(start);
        let Some(thread) = thread.filter(|_| result == 0) else {
            self.finish_call(state, released);
            return result;
        };
        let absent = state.parking.collective_started();
        if state.parking.is_listener_parked() {
            // The thread need not be woken for the rest of the first step.
            state.round(None);
        }
        let released = released || state.programs_due;
        self.finish_call(state, released);
        if absent {
            // The thread may run at once on this processor, so the lock must be free.
            thread.notify_client_parked();
        }
        result
    }

    /// Performs a collective that may end inside the call. Returns 1 if it has, 0 if it has started, and `None` if it
    /// must be started by [`EndpointCell::submit_collective`].
    pub(crate) fn perform_collective(
        &self,
        perform: impl FnOnce(&mut Engine<D>) -> Result<Performed, Error>,
    ) -> Option<isize> {
        let mut state = self.state.lock();
        let CellState { engine: Some(engine), routes, .. } = &mut *state else { return Some(Errno::OPBADSTATE.size()) };
        if routes.tx_full() {
            return Some(routes.tx_refusal());
        }
        let result = match perform(engine) {
            Ok(Performed::Refused) => return None,
            Ok(Performed::Ended) => 1,
            Ok(Performed::Started) => 0,
            Err(error) => refused(routes, error),
        };
        let released = routes.deliver(engine, None);
        self.finish_call(state, released);
        Some(result)
    }

    /// Starts a send.
    #[inline(always)]
    pub(crate) fn submit_send(self: &Arc<Self>, op: SendOp<'_>) -> isize {
        let mut state = self.state.lock();
        let CellState { engine: Some(engine), routes, .. } = &mut *state else { return Errno::OPBADSTATE.size() };
        if routes.tx_full() {
            return routes.tx_refusal();
        }
        if !engine.send_now(&op) {
            return self.send_later(state, op);
        }
        let released = routes.sent(&op);
        // The device may have gathered the message with others, to be written in the next round of progress.
        self.finish_call(state, released);
        0
    }

    #[cold]
    #[inline(never)]
    fn send_later(self: &Arc<Self>, mut state: Guard<'_, CellState<D>>, op: SendOp<'_>) -> isize {
        if op.flags.contains(OpFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::send(&op));
        }
        let (result, released) = state.submit(|engine| engine.send_later(&op));
        self.finish_call(state, released);
        result
    }

    /// Posts a receive.
    #[inline(always)]
    pub(crate) fn submit_recv(self: &Arc<Self>, op: RecvOp<'_>) -> isize {
        // Read before the lock is taken, so that the compiler can keep it in registers.
        let piece = if let [one] = op.iov { Some(*one) } else { None };
        let mut state = self.state.lock();
        let CellState { engine: Some(engine), routes, .. } = &mut *state else { return self.post_shared(op) };
        if let Some(refusal) = routes.rx_refusal(&op) {
            return refusal;
        }
        match piece {
            Some(piece) if engine.post_now(&op, piece) => 0,
            _ => self.post_later(state, op),
        }
    }

    #[cold]
    #[inline(never)]
    fn post_later(self: &Arc<Self>, mut state: Guard<'_, CellState<D>>, op: RecvOp<'_>) -> isize {
        if op.flags.contains(RecvFlags::TRIGGER) {
            drop(state);
            return self.trigger(Op::recv(&op));
        }
        let (result, released) = state.submit(|engine| engine.recv(&op));
        // A peek makes a round of progress, and some clients make no other.
        let released = released || state.programs_due || state.programs_stalled;
        self.finish_call(state, released);
        result
    }

    /// Ends a call that has started an operation. `released`: programs can continue.
    #[inline(always)]
    fn finish_call(&self, state: impl DerefMut<Target = CellState<D>>, released: bool) {
        if state.parking.has_sleepers() {
            self.finish_call_beside_sleeper(state, released);
        } else if released {
            self.run_programs(state);
        }
    }

    #[cold]
    #[inline(never)]
    fn finish_call_beside_sleeper(&self, mut state: impl DerefMut<Target = CellState<D>>, released: bool) {
        if self.ensure_wake_up(&mut state) || released {
            self.run_programs(state);
        }
    }

    /// Cancels a receive, or an operation that waits for its trigger.
    pub(crate) fn cancel(&self, context: usize) -> isize {
        let mut state = self.state.lock();
        let CellState { engine: Some(engine), .. } = &mut *state else { return self.cancel_shared(context) };
        if !engine.cancel(context) {
            drop(state);
            let waiting = self.work.cancel_operation(self.id(), context);
            state = self.state.lock();
            let CellState { engine: Some(engine), .. } = &mut *state else { return Errno::NOENT.size() };
            match waiting {
                Some(waiting) => engine.completions().push(waiting),
                // A program may have posted the receive in the meantime.
                None if self.triggers && engine.cancel(context) => {}
                None => return Errno::NOENT.size(),
            }
        }
        state.deliver();
        if state.programs_due {
            self.run_programs(state);
        }
        0
    }
}

impl<D: Device> CellState<D> {
    /// Starts an operation. If its queue is full, one round of progress may make room. Returns the value that the
    /// C function returns, and whether programs can continue.
    #[inline]
    fn submit(&mut self, start: impl Fn(&mut Engine<D>) -> Result<(), Error>) -> (isize, bool) {
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        if result == Err(Error::Again) {
            return self.submit_again(start);
        }
        let released = routes.deliver(engine, None);
        (returned(routes, result), released)
    }

    #[cold]
    fn submit_again(&mut self, start: impl Fn(&mut Engine<D>) -> Result<(), Error>) -> (isize, bool) {
        let room = self.make_room();
        let Self { engine: Some(engine), routes, .. } = self else { return (Errno::OPBADSTATE.size(), false) };
        let result = start(engine);
        let released = routes.deliver(engine, None);
        (returned(routes, result), room || released)
    }
}

/// The value that the C function returns.
#[inline]
fn returned(routes: &Routes, result: Result<(), Error>) -> isize {
    match result {
        Ok(()) => 0,
        Err(error) => refused(routes, error),
    }
}

#[cold]
fn refused(routes: &Routes, error: Error) -> isize {
    if error == Error::Again {
        routes.count_refusal();
    }
    Errno::from(error).size()
}
