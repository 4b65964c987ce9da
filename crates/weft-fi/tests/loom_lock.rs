//! The lock that is elided for serialized callers, under a model checker.
//!
//! The checker tries every interleaving (up to a bound of preemptions) and every value that a load may return under the
//! C11 memory model. At most one thread is inside, and every waiting thread gets in.
//!
//! The file under test is included as it ships. A full fence on both sides models the asymmetric fence.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::cell::UnsafeCell;

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// The items that the file under test imports from its neighbours.
mod sync {
    use loom::sync::atomic::fence;
    pub(super) use loom::sync::atomic::{AtomicBool, Ordering};

    /// A mutex without a value. The checker sees the threads that wait for it.
    pub(super) struct Mutex {
        taken: loom::sync::Mutex<bool>,
        free: loom::sync::Condvar,
    }

    impl Mutex {
        pub(super) fn new() -> Self {
            Self { taken: loom::sync::Mutex::new(false), free: loom::sync::Condvar::new() }
        }

        pub(super) fn try_lock(&self) -> bool {
            !std::mem::replace(&mut *self.taken.lock().unwrap(), true)
        }

        pub(super) fn lock(&self) {
            let mut taken = self.taken.lock().unwrap();
            while *taken {
                taken = self.free.wait(taken).unwrap();
            }
            *taken = true;
        }

        pub(super) unsafe fn unlock(&self) {
            *self.taken.lock().unwrap() = false;
            self.free.notify_one();
        }
    }

    pub(super) fn light_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn heavy_fence() {
        fence(Ordering::SeqCst);
    }

    pub(super) fn can_intrude() -> bool {
        true
    }

    pub(super) fn pause(_rounds: u32) {
        loom::thread::yield_now();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Callers {
    Any,
    One,
}

#[derive(Default)]
struct Meter;

impl Meter {
    fn count(&self) {}

    fn waits(&self) -> u64 {
        0
    }
}

fn is_ours() -> bool {
    false
}

#[path = "../src/sleep/lock/cell.rs"]
mod cell;

use cell::{Guard, Guarded};

/// A plain number. The checker reports every access that is not ordered after the previous one.
type Number = UnsafeCell<u64>;
type Cell = Arc<Guarded<Number>>;

fn owned() -> Cell {
    // SAFETY: in each model at most one thread calls `lock`.
    Arc::new(unsafe { Guarded::new(Callers::One, &Arc::default(), Number::new(0)) })
}

fn raise(guard: Guard<'_, Number>) {
    // SAFETY: the guard gives exclusive access, which the checker verifies.
    guard.with_mut(|number| unsafe { *number += 1 });
}

/// Runs the first part in this thread and each other part in a new one. Returns the number at the end.
fn together(cell: &Cell, parts: &[fn(&Guarded<Number>)]) -> u64 {
    let threads: Vec<_> = parts[1..]
        .iter()
        .map(|part| {
            let (cell, part) = (Arc::clone(cell), *part);
            loom::thread::spawn(move || part(&cell))
        })
        .collect();
    parts[0](cell);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    // SAFETY: all other threads have ended.
    cell.intrude().with(|number| unsafe { *number })
}

fn own_twice(cell: &Guarded<Number>) {
    raise(cell.lock());
    raise(cell.lock());
}

fn intrude(cell: &Guarded<Number>) {
    raise(cell.intrude());
}

#[test]
fn an_owner_and_an_intruder_exclude_each_other() {
    check(3, || assert_eq!(together(&owned(), &[own_twice, intrude]), 3));
}

#[test]
fn an_owner_and_two_intruders_exclude_each_other() {
    check(3, || assert_eq!(together(&owned(), &[|cell| raise(cell.lock()), intrude, intrude]), 3));
}

#[test]
fn an_owner_and_a_visitor_that_comes_and_goes_exclude_each_other() {
    check(3, || {
        let visits: fn(&Guarded<Number>) = |cell| {
            raise(cell.visit());
            raise(cell.visit());
            cell.end_visits();
        };
        assert_eq!(together(&owned(), &[own_twice, visits]), 4);
    });
}

#[test]
fn an_owner_and_a_visitor_that_tries_exclude_each_other() {
    check(3, || {
        let cell = owned();
        let tries: fn(&Guarded<Number>) = |cell| {
            for _ in 0..2 {
                if let Some(guard) = cell.try_visit() {
                    raise(guard);
                }
            }
            cell.end_visits();
        };
        let count = together(&cell, &[own_twice, tries]);
        assert!((2..=4).contains(&count), "{count}");
    });
}

#[test]
fn an_owner_a_visitor_and_an_intruder_exclude_each_other() {
    check(3, || {
        let visits: fn(&Guarded<Number>) = |cell| {
            raise(cell.visit());
            cell.end_visits();
        };
        assert_eq!(together(&owned(), &[|cell| raise(cell.lock()), visits, intrude]), 3);
    });
}
