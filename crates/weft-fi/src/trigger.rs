//! Triggered operations (fi_trigger(3)): what is started when a counter reaches a threshold, without its client.
//!
//! Place in the data flow: a data-transfer call with FI_TRIGGER ([`WorkQueue::trigger`]), or `fi_control`
//! with FI_QUEUE_WORK ([`work`]), becomes a program of one wait and one act in the domain's [`WorkQueue`].
//! The thread that raises the counter far enough moves the program to the ready ones, under whatever lock it
//! holds; as soon as it holds none, it runs the queue: operations enter their endpoint as calls of the client
//! do, counters are raised. With automatic progress that thread is often the progress thread, and the client
//! need not call anything.
//!
//! An operation that finds its endpoint's queue full keeps its place, and is retried after the endpoint's next round
//! of progress ([`WorkQueue::retry`]).
//!
//! Lock order: an endpoint's engine before the queue of programs, which is a leaf. Programs are run with neither held.
//!
//! Invariants: vectors are copied when an operation is submitted, payload is not looked at before it starts.
//! An operation with FI_TRIGGER completes as any other of its endpoint. Deferred work raises the completion
//! counter that it names, and makes an entry, and counts at its endpoint, only with FI_COMPLETION; when it
//! fails and names no counter, it makes an error entry, since otherwise nobody would learn of it. Cancelled
//! work does nothing of this.

pub(crate) mod op;
mod queue;
mod work;

use std::ptr::NonNull;
use std::sync::Arc;

use weft_engine::api::{Completion, Fault, OpFlags};
use weft_engine::program::{Errors, FREE_LANE, Finished, Program, Task};
use weft_fi_sys as sys;

use crate::abi::errno::Errno;
use crate::abi::object::Hold;
use crate::cntr::Cntr;
use crate::domain::Domain;
use crate::endpoint::cell::{CellRef, EndpointCell};
use crate::trigger::op::{Op, Report};
use crate::trigger::queue::{Outcome, Queue};

/// What `queue` is made of.
mod sync {
    pub(super) use std::thread::yield_now;

    pub(super) use parking_lot::Mutex;
}

/// Programs of one domain that may wait at a time: beyond that, -FI_EAGAIN.
const MAX_PROGRAMS: usize = 1 << 18;
/// Tasks of each: a wait and an act.
const TASKS: usize = 2;

/// Something to do when its time has come.
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
    /// Deferred work: what to do when it has completed. A triggered operation is like any other.
    report: Option<Report>,
}

/// By what a program is known to those who cancel it.
struct Origin {
    /// Address of the client's `fi_deferred_work`; 0 for a triggered operation.
    work: usize,
    /// [`EndpointCell::id`] of the endpoint; 0 for an operation on a counter.
    cell: usize,
    /// The operation's context.
    context: usize,
    /// [`Cntr::id`] of the counter that it waits for.
    counter: u64,
}

type Ended = Finished<Hold<Cntr>, Act, Origin>;

/// What waits in one domain.
pub(crate) struct WorkQueue(Queue<Hold<Cntr>, Act, Origin>);

impl WorkQueue {
    /// Nothing waits.
    pub(crate) fn new() -> Self {
        Self(Queue::new(MAX_PROGRAMS * TASKS))
    }

    /// A counter, by its id, has reached what somebody waits for. True: the queue is to be run.
    #[must_use]
    pub(crate) fn look(&self, counter: u64) -> bool {
        self.0.look(counter)
    }

    /// Does what can be done. The caller holds no lock of an endpoint.
    pub(crate) fn run(&self) {
        self.0.run(perform);
    }

    /// An endpoint has made progress: what found its queues full is due again. The caller runs the queue then.
    pub(crate) fn retry(&self, cell: &EndpointCell) {
        for lane in cell.lanes() {
            self.0.retry(lane);
        }
    }

    /// An endpoint closes: what waits for it is discarded, silently, as fi_endpoint(3) says of close.
    pub(crate) fn forget(&self, cell: &EndpointCell) {
        let id = cell.id();
        drop(self.0.cancel(|origin| origin.cell == id));
        self.run();
    }

    /// Starts an operation with FI_TRIGGER when the counter that its context names reaches its threshold,
    /// which may be now.
    pub(crate) fn trigger(&self, cell: &CellRef, op: Op) -> Result<(), Errno> {
        if op.flags.contains(OpFlags::INJECT) {
            // Its buffer would be the client's again before anybody has looked at it.
            return Err(Errno::INVAL);
        }
        if op.flags.intersects(OpFlags::PEEK | OpFlags::CLAIM | OpFlags::DISCARD) {
            return Err(Errno::NOSYS);
        }
        let context = op.ctx.ptr;
        // Both structures begin alike.
        let condition = NonNull::new(context as *mut sys::fi_triggered_context).ok_or(Errno::INVAL)?;
        // SAFETY: the client's structure, as FI_TRIGGER demands of a context.
        let sys::fi_triggered_context { event_type, trigger } = unsafe { condition.read() };
        match event_type {
            sys::FI_TRIGGER_THRESHOLD => {}
            sys::FI_TRIGGER_XPU => return Err(Errno::NOSYS),
            _ => return Err(Errno::INVAL),
        }
        // SAFETY: the field of this type of event.
        let sys::fi_trigger_threshold { cntr, threshold } = unsafe { trigger.threshold };
        // SAFETY: an object of the client's; another class than that of counters is refused.
        let counter = unsafe { Hold::<Cntr>::of(cntr) }?;
        if !std::ptr::eq::<Self>(&**counter.domain().work(), self) {
            return Err(Errno::DOMAIN);
        }
        let origin = Origin { work: 0, cell: cell.id(), context, counter: counter.id() };
        let lane = op.lane(cell);
        let op = op.without(OpFlags::TRIGGER);
        let act = Act::Start(Box::new(Start { cell: Arc::clone(cell), op, report: None }));
        self.submit(origin, counter, threshold as u64, lane, act)
    }

    /// Submits a program of a wait and an act, and runs the queue.
    fn submit(&self, origin: Origin, counter: Hold<Cntr>, threshold: u64, lane: u64, act: Act) -> Result<(), Errno> {
        let wait = Task::Wait { counter, threshold, errors: Errors::Count };
        self.0.submit(Program::new(origin, [wait, Task::Act { lane, act }])).map_err(|_| Errno::AGAIN)?;
        self.run();
        Ok(())
    }

    /// Ends the oldest triggered operation of an endpoint with this context, if one waits; returns its completion.
    pub(crate) fn cancel_operation(&self, cell: &EndpointCell, context: usize) -> Option<Completion> {
        let id = cell.id();
        let mut found = false;
        let ended = self.0.cancel(|origin| {
            let wanted = !found && origin.work == 0 && origin.cell == id && origin.context == context;
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

/// Does one thing.
fn perform(act: Act) -> Outcome<Act> {
    match act {
        Act::Start(mut start) => {
            let Start { cell, op, report } = &mut *start;
            if cell.start(op, report) { Outcome::Done } else { Outcome::Again(Act::Start(start)) }
        }
        // What this sets free is found by whoever runs the queue: its caller. The counter may be closed by a
        // client that sees the change, so it is not held any more by then.
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

/// No longer keeps a counter open, but still in memory.
pub(crate) fn release(cntr: Hold<Cntr>) -> Arc<Cntr> {
    Arc::clone(cntr.arc())
}

impl Domain {
    /// FI_QUEUE_WORK, FI_CANCEL_WORK, FI_FLUSH_WORK.
    ///
    /// # Safety
    /// `arg` is the client's argument for `command`.
    pub(crate) unsafe fn control_work(&self, command: u32, arg: *mut std::ffi::c_void) -> Result<(), Errno> {
        if self.caps() & sys::FI_TRIGGER == 0 {
            return Err(Errno::NOSYS);
        }
        match command {
            sys::FI_QUEUE_WORK => {
                let work = NonNull::new(arg.cast::<sys::fi_deferred_work>()).ok_or(Errno::INVAL)?;
                // SAFETY: the client's request, with everything that it points to.
                unsafe { self.queue_work(work) }
            }
            sys::FI_CANCEL_WORK => {
                let work = NonNull::new(arg).ok_or(Errno::INVAL)?;
                self.cancel_work(work.as_ptr().addr())
            }
            _ => {
                // SAFETY: null, or a counter of the client's; another class is refused.
                unsafe { self.flush_work(arg.cast()) }
            }
        }
    }
}

const _: () = assert!(FREE_LANE & 1 == 1, "no lane of an endpoint");
