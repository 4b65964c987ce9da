//! Counters and the programs that wait for them, under a model checker.
//!
//! The checker tries every interleaving (up to a bound of preemptions). No trigger is lost, none fires twice or too
//! early, and order is kept.
//!
//! The files under test are included as they ship, with the checker's atomics and locks.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use weft_engine::program::{Counter, Errors, Level, Program, Task};

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// The items that the files under test import from their neighbours.
mod sync {
    use loom::sync::MutexGuard;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    pub(super) use loom::thread::yield_now;

    /// The checker treats sequentially consistent accesses as acquires and releases. Only fences order more.
    pub(super) fn ordered() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// The checker's mutex, with the interface of the one that ships.
    pub(super) struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(super) fn new(value: T) -> Self {
            Self(loom::sync::Mutex::new(value))
        }

        pub(super) fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap()
        }
    }
}

#[path = "../src/trigger/queue.rs"]
mod queue;
#[path = "../src/cntr/values.rs"]
mod values;

use queue::{Outcome, Queue};
use values::CounterValues;

/// A counter, in the place of `Cntr`.
#[derive(Clone)]
struct Handle(Arc<CounterValues>);

impl Counter for Handle {
    fn id(&self) -> u64 {
        1
    }

    fn arm(&self, at: u64) -> Level {
        let (successes, errors) = self.0.arm_programs(at);
        Level { successes, errors }
    }

    fn disarm(&self) {
        self.0.disarm_programs();
    }
}

/// One counter, the programs, and the acts that were performed.
#[derive(Clone)]
struct Domain {
    counter: Handle,
    queue: Arc<Queue<Handle, u64, u64>>,
    performed: Arc<sync::Mutex<Vec<u64>>>,
    /// Whether the counter only rises.
    rises: bool,
}

impl Domain {
    fn new() -> Self {
        Self {
            counter: Handle(Arc::new(CounterValues::new())),
            queue: Arc::new(Queue::new(100)),
            performed: Arc::new(sync::Mutex::new(Vec::new())),
            rises: true,
        }
    }

    /// Raises the counter, like `Cntr::add` and its caller.
    fn raise(&self) {
        let reached = self.counter.0.add(1);
        self.follow(reached);
    }

    fn fail(&self) {
        let reached = self.counter.0.add_errors(1);
        self.follow(reached);
    }

    fn reset(&self) {
        self.change(|values, look| values.set(0, look));
    }

    fn reset_errors(&self) {
        self.change(|values, look| values.set_errors(0, look));
    }

    /// Changes the counter, like `Cntr::change` and its caller.
    fn change(&self, set: impl FnOnce(&CounterValues, &mut dyn FnMut()) -> bool) {
        let mut freed = false;
        let reached = set(&self.counter.0, &mut || freed |= self.queue.look(1));
        self.follow(reached);
        if freed {
            self.run();
        }
    }

    fn follow(&self, reached: bool) {
        if reached && self.counter.0.due().programs && self.queue.look(1) {
            self.run();
        }
    }

    /// Runs the queue. An act takes a lock, as one that enters an endpoint does, and checks that its threshold was
    /// reached.
    fn run(&self) {
        self.queue.run(|threshold| {
            assert!(!self.rises || self.counter.0.value() + self.counter.0.errors() >= threshold, "too early");
            self.performed.lock().push(threshold);
            Outcome::Done
        });
    }

    fn submit(&self, threshold: u64) {
        let wait = Task::Wait { counter: self.counter.clone(), threshold, errors: Errors::Count };
        self.queue.submit(Program::new(threshold, [wait, Task::Act { lane: 0, act: threshold }])).unwrap();
        self.run();
    }

    fn performed(&self) -> Vec<u64> {
        self.performed.lock().clone()
    }
}

/// Runs the last part in this thread and each other part in a new one.
fn together(domain: &Domain, parts: &[fn(&Domain)]) {
    let (last, others) = parts.split_last().unwrap();
    let threads: Vec<_> = others
        .iter()
        .map(|part| {
            let (domain, part) = (domain.clone(), *part);
            loom::thread::spawn(move || part(&domain))
        })
        .collect();
    last(domain);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_raise_meets_a_submission() {
    check(3, || {
        let domain = Domain::new();
        together(&domain, &[Domain::raise, |domain| domain.submit(1)]);
        assert_eq!(domain.performed(), [1]);
    });
}

#[test]
fn two_raises_keep_the_order() {
    check(3, || {
        let domain = Domain::new();
        domain.submit(2);
        domain.submit(1);
        together(&domain, &[Domain::raise, Domain::raise]);
        assert_eq!(domain.performed(), [1, 2]);
    });
}

#[test]
fn an_error_and_a_success_meet_a_submission() {
    check(3, || {
        let domain = Domain::new();
        together(&domain, &[Domain::raise, Domain::fail, |domain| domain.submit(2)]);
        assert_eq!(domain.performed(), [2]);
    });
}

/// A client that has seen a counter at a threshold may reset it. The program at that threshold runs, although
/// the thread that raised the counter checks it after the reset.
#[test]
fn a_threshold_that_was_seen_was_reached() {
    check(3, || {
        let domain = Domain { rises: false, ..Domain::new() };
        domain.submit(1);
        together(
            &domain,
            &[Domain::raise, |domain| {
                while domain.counter.0.value() < 1 {
                    loom::thread::yield_now();
                }
                domain.reset();
            }],
        );
        assert_eq!(domain.performed(), [1]);
    });
}

/// A raise and a reset to the present value come in either order. The raise counts in both.
#[test]
fn a_raise_meets_a_setting() {
    let both: [[fn(&Domain); 2]; 2] = [[Domain::raise, Domain::reset], [Domain::fail, Domain::reset_errors]];
    for parts in both {
        check(3, move || {
            let domain = Domain { rises: false, ..Domain::new() };
            domain.submit(1);
            together(&domain, &parts);
            assert_eq!(domain.performed(), [1]);
        });
    }
}

#[test]
fn a_cancelled_program_is_not_performed_afterwards() {
    check(3, || {
        let domain = Domain::new();
        domain.submit(1);
        together(
            &domain,
            &[Domain::raise, |domain| {
                drop(domain.queue.cancel(|_| true));
                let before = domain.performed();
                domain.submit(0);
                let mut after = domain.performed();
                after.retain(|&threshold| threshold == 1);
                assert_eq!(after, before, "its act was performed before the cancel returned");
            }],
        );
    });
}

/// A program whose act finds its queue full during the cancel is either performed later or returned by the cancel, and
/// only once.
#[test]
fn a_program_that_is_cancelled_while_its_queue_is_full_is_not_lost() {
    check(3, || {
        let domain = Domain::new();
        domain.submit(1);
        together(
            &domain,
            &[
                |domain| {
                    let mut full = true;
                    let mut perform = |threshold| {
                        if std::mem::take(&mut full) {
                            return Outcome::Again(threshold);
                        }
                        domain.performed.lock().push(threshold);
                        Outcome::Done
                    };
                    if domain.counter.0.add(1) && domain.counter.0.due().programs && domain.queue.look(1) {
                        domain.queue.run(&mut perform);
                        domain.queue.retry(0);
                        domain.queue.run(&mut perform);
                    }
                },
                |domain| {
                    let returned = domain.queue.cancel(|_| true);
                    let left = returned.iter().filter(|ended| !ended.left.is_empty());
                    domain.performed.lock().extend(left.map(|ended| ended.origin));
                },
            ],
        );
        assert_eq!(domain.performed(), [1]);
    });
}

/// A sleeper whose threshold is higher than a program's stays armed when the program is due.
#[test]
fn a_sleeper_and_a_program_share_a_counter() {
    check(3, || {
        let domain = Domain::new();
        domain.submit(1);
        let bell = Arc::new(loom::sync::Notify::new());
        let raiser = {
            let (domain, bell) = (domain.clone(), Arc::clone(&bell));
            loom::thread::spawn(move || {
                for _ in 0..2 {
                    if domain.counter.0.add(1) {
                        let due = domain.counter.0.due();
                        if due.sleepers {
                            bell.notify();
                        }
                        if due.programs && domain.queue.look(1) {
                            domain.run();
                        }
                    }
                }
            })
        };
        // The steps of a waiter: arm, look again, sleep. After a wake-up for another threshold it repeats them.
        loop {
            domain.counter.0.arm_sleeper(2);
            if domain.counter.0.value() >= 2 {
                break;
            }
            bell.wait();
        }
        raiser.join().unwrap();
        assert_eq!(domain.performed(), [1]);
    });
}
