//! Triggered operations (fi_trigger(3)): operations that start when a counter reaches a threshold, without a
//! call of the client.
//!
//! Place in the data flow: the client submits a data-transfer call with FI_TRIGGER ([`WorkQueue::trigger`]),
//! or `fi_control` with FI_QUEUE_WORK ([`work`]). Each becomes a program in the domain's [`WorkQueue`], with
//! one wait and one act. The thread that raises the counter to the threshold moves the program to the ready
//! ones, under whatever lock it holds. As soon as it holds none, it runs the queue. Operations then enter
//! their endpoint like calls of the client, and counters are raised. With automatic progress that thread is
//! often the progress thread, and the client need not make any call.
//!
//! An operation that finds its endpoint's queue full keeps its position. It is retried after the endpoint's
//! next round of progress ([`WorkQueue::retry`]).
//!
//! Lock order: an endpoint's engine comes before the queue of programs, which is a leaf. Programs are run
//! with neither lock held.
//!
//! Invariants: vectors are copied when an operation is submitted; its payload is not read before it starts.
//! An operation with FI_TRIGGER completes like any other of its endpoint. Deferred work raises its completion
//! counter. It makes an entry, and counts at its endpoint, only with FI_COMPLETION. If it fails and has no
//! completion counter, it makes an error entry, because the failure would otherwise remain unreported.
//! Cancelled work has none of these effects.

pub(crate) mod op;
mod queue;
mod work;

use std::ptr::NonNull;
use std::sync::Arc;

use weft_engine::api::{Completion, Fault};
use weft_engine::program::{Errors, FREE_LANE, Finished, Program, Task};
use weft_fi_sys as sys;
use weft_nic::Device;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::endpoint::cell::CellRef;
use crate::trigger::op::{Op, Report};
use crate::trigger::queue::{Outcome, Queue};

/// Imports of the file that the model checker also compiles.
mod sync {
    pub(super) use std::thread::yield_now;

    pub(super) use parking_lot::Mutex;
}

/// Programs that may wait in one domain. Further ones get -FI_EAGAIN.
const MAX_PROGRAMS: usize = 1 << 18;
/// Tasks per program: a wait and an act.
const TASKS: usize = 2;

/// The act of a program.
enum Act {
    /// Start an operation.
    Start(Box<Start>),
    /// FI_OP_CNTR_ADD.
    Add(Hold<Cntr>, u64),
    /// FI_OP_CNTR_SET.
    Set(Hold<Cntr>, u64),
}

/// An operation and its endpoint.
struct Start {
    cell: CellRef,
    op: Op,
    /// For deferred work, the effects of the completion. `None` for a triggered operation, which completes as
    /// usual.
    report: Option<Report>,
}

/// Identifies a program for cancellation.
struct Origin {
    /// The address of the client's `fi_deferred_work`; 0 for a triggered operation.
    work: usize,
    /// The [`id`](crate::endpoint::cell::AnyCell::id) of the endpoint; 0 for an operation on a counter.
    cell: usize,
    /// The operation's context.
    context: usize,
    /// The [`Cntr::id`] of the counter that triggers the program.
    counter: u64,
}

type Ended = Finished<Hold<Cntr>, Act, Origin>;

/// The waiting and ready programs of a domain.
pub(crate) struct WorkQueue(Queue<Hold<Cntr>, Act, Origin>);

impl WorkQueue {
    /// Creates an empty queue.
    pub(crate) fn new() -> Self {
        Self(Queue::new(MAX_PROGRAMS * TASKS))
    }

    /// Checks the programs that wait for the counter with this id. True: the caller must run the queue.
    #[must_use]
    pub(crate) fn look(&self, counter: u64) -> bool {
        self.0.look(counter)
    }

    /// Performs the acts of ready programs. The caller holds no lock of an endpoint.
    pub(crate) fn run(&self) {
        self.0.run(perform);
    }

    /// Retries the operations that found a queue with one of these lanes full, after its endpoint has made progress.
    /// The caller then runs the queue.
    pub(crate) fn retry(&self, lanes: [u64; 2]) {
        for lane in lanes {
            self.0.retry(lane);
        }
    }

    /// Discards the waiting programs of a closing endpoint without completions, as fi_endpoint(3) specifies.
    pub(crate) fn forget(&self, cell: usize) {
        drop(self.0.cancel(|origin| origin.cell == cell));
        self.run();
    }

    /// Starts an operation with FI_TRIGGER when the counter in its context reaches the threshold, which may
    /// be the case already.
    pub(crate) fn trigger(&self, cell: CellRef, op: Op) -> Result<(), Errno> {
        let op = op.triggered()?;
        let context = op.ctx.ptr;
        // All kinds of triggered contexts begin with these fields.
        let condition = NonNull::new(context as *mut sys::fi_triggered_context).ok_or(Errno::INVAL)?;
        // SAFETY: the client's structure, which FI_TRIGGER requires as the context.
        let sys::fi_triggered_context { event_type, trigger } = unsafe { condition.read() };
        match event_type {
            sys::FI_TRIGGER_THRESHOLD => {}
            sys::FI_TRIGGER_XPU => return Err(Errno::NOSYS),
            _ => return Err(Errno::INVAL),
        }
        // SAFETY: the field for this type of event.
        let sys::fi_trigger_threshold { cntr, threshold } = unsafe { trigger.threshold };
        // SAFETY: an object of the client. Objects of another class than counters are refused.
        let counter = unsafe { Hold::<Cntr>::of(cntr) }?;
        if !std::ptr::eq::<Self>(&**counter.domain().work(), self) {
            return Err(Errno::DOMAIN);
        }
        let origin = Origin { work: 0, cell: cell.id(), context, counter: counter.id() };
        let lane = op.lane(cell.lanes());
        let act = Act::Start(Box::new(Start { cell, op, report: None }));
        self.submit(origin, counter, threshold as u64, lane, act)
    }

    /// Submits a program of one wait and one act, and runs the queue.
    fn submit(&self, origin: Origin, counter: Hold<Cntr>, threshold: u64, lane: u64, act: Act) -> Result<(), Errno> {
        let wait = Task::Wait { counter, threshold, errors: Errors::Count };
        self.0.submit(Program::new(origin, [wait, Task::Act { lane, act }])).map_err(|_| Errno::AGAIN)?;
        self.run();
        Ok(())
    }

    /// Cancels the oldest waiting triggered operation of an endpoint with this context. Returns its
    /// completion, if there was one.
    pub(crate) fn cancel_operation(&self, cell: usize, context: usize) -> Option<Completion> {
        let mut found = false;
        let ended = self.0.cancel(|origin| {
            let wanted = !found && origin.work == 0 && origin.cell == cell && origin.context == context;
            found |= wanted;
            wanted
        });
        let completion = ended.iter().find_map(|ended| {
            ended.left.iter().find_map(|task| match task {
                Task::Act { act: Act::Start(start), .. } => Some(start.op.ended(Fault::Canceled)),
                _ => None,
            })
        });
        drop::<Vec<Ended>>(ended);
        self.run();
        completion
    }
}

/// Performs one act.
fn perform(act: Act) -> Outcome<Act> {
    match act {
        Act::Start(mut start) => {
            let Start { cell, op, report } = &mut *start;
            if cell.start(op, report) { Outcome::Done } else { Outcome::Again(Act::Start(start)) }
        }
        // The caller runs the queue and thereby finds programs that this raise makes ready. A client that
        // sees the change may close the counter, so the hold on it is released first.
        Act::Add(cntr, amount) => {
            let _ = release(cntr).add_by_work(amount);
            Outcome::Done
        }
        Act::Set(cntr, value) => {
            let _ = release(cntr).set_by_work(value);
            Outcome::Done
        }
    }
}

/// Releases the hold that keeps a counter open, but keeps the counter in memory.
pub(crate) fn release(cntr: Hold<Cntr>) -> Arc<Cntr> {
    Arc::clone(cntr.arc())
}

impl Domain {
    /// Implements FI_QUEUE_WORK, FI_CANCEL_WORK and FI_FLUSH_WORK.
    ///
    /// # Safety
    /// `arg` is the client's argument for `command`.
    pub(crate) unsafe fn control_work<D: Device>(&self, command: u32, arg: *mut std::ffi::c_void) -> Result<(), Errno> {
        if self.caps() & sys::FI_TRIGGER == 0 {
            return Err(Errno::NOSYS);
        }
        match command {
            sys::FI_QUEUE_WORK => {
                let work = NonNull::new(arg.cast::<sys::fi_deferred_work>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's request and the structures that it refers to.
                unsafe { self.queue_work::<D>(work) }
            }
            sys::FI_CANCEL_WORK => {
                let work = NonNull::new(arg).ok_or(Errno::INVAL)?;
                self.cancel_work(work.as_ptr().addr())
            }
            _ => {
                // SAFETY: null, or a counter of the client. Objects of another class are refused.
                unsafe { self.flush_work(arg.cast()) }
            }
        }
    }
}

const _: () = assert!(FREE_LANE & 1 == 1, "no lane of an endpoint");
