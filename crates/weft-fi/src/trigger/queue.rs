//! `Queue`: programs that several threads submit, set free and run.
//!
//! Place in the data flow: the machine ([`weft_engine::program`]) behind a lock that is held for its
//! bookkeeping only. A counter that is raised calls [`Queue::look`], under whatever lock the raiser holds;
//! acts are performed by [`Queue::run`], which its caller calls when it holds none. It is a file of its own
//! so that a model checker can try every interleaving (`tests/loom_trigger.rs`).
//!
//! Invariants: the lock is a leaf: nothing else is locked, and no counter raised, inside it. One thread
//! performs acts at a time, so that they are performed in order; a second one that would leaves them to the
//! first, which looks again after each act and so misses none.

use weft_engine::program::{Counter, Finished, Full, Program, Programs};

use super::sync::{Mutex, yield_now};

/// How an act went.
pub(crate) enum Outcome<A> {
    /// It is performed.
    Done,
    /// It must wait for a retry of its lane.
    Again(A),
}

/// Programs behind a lock.
pub(crate) struct Queue<C, A, M> {
    programs: Mutex<Programs<C, A, M>>,
}

impl<C: Counter, A, M> Queue<C, A, M> {
    /// Empty, for so many tasks at a time.
    pub(crate) fn new(limit: usize) -> Self {
        Self { programs: Mutex::new(Programs::new(limit)) }
    }

    /// Takes a program; the caller runs the queue then, since it may be able to go on at once.
    pub(crate) fn submit(&self, program: Program<C, A, M>) -> Result<(), Full> {
        self.programs.lock().submit(program)
    }

    /// A counter may have reached what programs wait for. True: the queue is to be run.
    #[must_use]
    pub(crate) fn look(&self, counter: u64) -> bool {
        let mut programs = self.programs.lock();
        programs.look(counter);
        programs.is_due()
    }

    /// Acts of this lane may find room now; the caller runs the queue then.
    pub(crate) fn retry(&self, lane: u64) {
        self.programs.lock().retry(lane);
    }

    /// Performs what can be performed. The caller holds no lock that `perform` takes.
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
                // What tasks hold is not let go of under the lock.
                drop(programs);
                drop(finished);
                programs = self.programs.lock();
            }
        }
    }

    /// Ends the programs that are `wanted`; on return none of their acts is out or will be. What is returned,
    /// with all that was not performed, must be dropped by a caller that holds no lock, who then runs the
    /// queue: others may have stood behind.
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
