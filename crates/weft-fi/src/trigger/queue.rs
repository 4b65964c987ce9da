//! `Queue`: the programs of a domain, which several threads submit, make ready and run.
//!
//! Place in the data flow: the queue is the machine ([`weft_engine::program`]) behind a lock, which is held
//! for its bookkeeping only. A thread that raises a counter calls [`Queue::look`] under whatever lock it
//! holds. [`Queue::run`] performs the acts; its caller holds no lock. The queue is a file of its own so that
//! a model checker can try every interleaving (`tests/loom_trigger.rs`).
//!
//! Invariants: the lock is a leaf: no other lock is taken, and no counter raised, inside it. One thread
//! performs acts at a time, so they are performed in order. A second thread leaves its acts to the first,
//! which checks for more after each act and therefore misses none.

use weft_engine::program::{Counter, Finished, Full, Program, Programs};

use super::sync::{Mutex, yield_now};

/// The outcome of an act.
pub(crate) enum Outcome<A> {
    /// The act is performed.
    Done,
    /// It must wait for a retry of its lane.
    Again(A),
}

/// The programs behind their lock.
pub(crate) struct Queue<C, A, M> {
    programs: Mutex<Programs<C, A, M>>,
}

impl<C: Counter, A, M> Queue<C, A, M> {
    /// Creates an empty queue for at most `limit` tasks.
    pub(crate) fn new(limit: usize) -> Self {
        Self { programs: Mutex::new(Programs::new(limit)) }
    }

    /// Adds a program. The caller then runs the queue, because the program may be ready at once.
    pub(crate) fn submit(&self, program: Program<C, A, M>) -> Result<(), Full> {
        self.programs.lock().submit(program)
    }

    /// Checks the programs that wait for `counter`, which has changed. True: the caller must run the queue.
    #[must_use]
    pub(crate) fn look(&self, counter: u64) -> bool {
        let mut programs = self.programs.lock();
        programs.look(counter);
        programs.is_due()
    }

    /// Retries the acts of a lane that may have room now. The caller then runs the queue.
    pub(crate) fn retry(&self, lane: u64) {
        self.programs.lock().retry(lane);
    }

    /// Performs the acts of all ready programs. The caller holds no lock that `perform` takes.
    pub(crate) fn run(&self, mut perform: impl FnMut(A) -> Outcome<A>) {
        let mut programs = self.programs.lock();
        while let Some(act) = programs.next_act() {
            drop(programs);
            let outcome = perform(act);
            programs = self.programs.lock();
            match outcome {
                Outcome::Done => programs.done(),
                Outcome::Again(act) => programs.again(act),
            }
            let finished = programs.take_finished();
            if finished.iter().any(|finished| !finished.left.is_empty()) {
                // The tasks are dropped without the lock, because they hold other objects.
                drop(programs);
                drop(finished);
                programs = self.programs.lock();
            }
        }
    }

    /// Cancels the programs for which `wanted` returns true. On return none of their acts is being or will be
    /// performed. The result contains all tasks that were not performed. The caller must drop it without
    /// holding a lock. Other programs may have been queued behind the cancelled ones, so the caller must then
    /// run the queue.
    pub(crate) fn cancel(&self, wanted: impl FnMut(&M) -> bool) -> Vec<Finished<C, A, M>> {
        let mut programs = self.programs.lock();
        let cancelled = programs.cancel(wanted);
        let mut finished = programs.take_finished();
        if let Some(number) = cancelled.running {
            while programs.is_running(number) {
                drop(programs);
                yield_now();
                programs = self.programs.lock();
            }
            finished.extend(programs.take_withdrawn(number));
        }
        finished
    }
}
