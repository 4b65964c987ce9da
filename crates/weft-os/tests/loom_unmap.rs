//! The ring of unmap reports under a model checker. It tries every interleaving (up to a bound of
//! preemptions) and every value that a load may return under the C11 memory model. A thread that unmaps
//! memory must find it reported, once and whole, or get the report that covers everything.
//!
//! The shipped ring is included, with a smaller size. The kernel is modelled by a queue with a lock: an
//! unmapping thread waits until the reading thread has read its event.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::sync::{Condvar, Mutex};
use weft_engine::nic::Span;

mod model;
use model::check;

/// Imports of the file under test.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicU64, Ordering};
    pub(super) use loom::thread::yield_now;
}

const CAPACITY: usize = 2;

#[path = "../src/unmap/log.rs"]
mod log;

use log::{ALL_MEMORY, Log};

/// Report number `n`: start and length belong together.
fn span(n: u64) -> Span {
    Span { start: n + 1, len: 10 * (n + 1) }
}

/// The events in order, and the number of events that were read.
#[derive(Default)]
struct System {
    events: Mutex<(Vec<Span>, usize)>,
    changed: Condvar,
}

impl System {
    /// munmap(2) of watched memory.
    fn unmap(&self, span: Span) {
        let mut events = self.events.lock().unwrap();
        events.0.push(span);
        let number = events.0.len();
        self.changed.notify_all();
        while events.1 < number {
            events = self.changed.wait(events).unwrap();
        }
    }

    /// The body of the reading thread until it has reported `all` events.
    fn report(&self, log: &Log, all: usize) {
        let mut reported = 0;
        while reported < all {
            let mut events = self.events.lock().unwrap();
            while events.0.len() == reported {
                events = self.changed.wait(events).unwrap();
            }
            drop(events);
            log.round(|| {
                let mut events = self.events.lock().unwrap();
                let spans = events.0[reported..].to_vec();
                reported = events.0.len();
                events.1 = reported;
                self.changed.notify_all();
                drop(events);
                spans.into_iter().for_each(|span| log.write(span));
            });
        }
    }
}

/// A thread unmaps memory and looks for the report while another thread unmaps, too. Only one looks: the
/// checker cannot distinguish two threads that yield to each other indefinitely from progress.
#[test]
fn a_thread_finds_its_own_unmap_reported() {
    check(3, || {
        let (system, log) = (Arc::new(System::default()), Arc::new(Log::new()));
        let (kernel, ring) = (Arc::clone(&system), Arc::clone(&log));
        let other = Arc::clone(&system);
        let threads =
            [loom::thread::spawn(move || kernel.report(&ring, 2)), loom::thread::spawn(move || other.unmap(span(1)))];
        let mut read = log.count();
        system.unmap(span(0));
        let reports: Vec<_> = std::iter::from_fn(|| log.next(&mut read)).collect();
        assert!(reports.contains(&span(0)) || reports.contains(&ALL_MEMORY), "{reports:?}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// A reader runs beside a faster writer. It gets each report once, in order and whole, until an overrun.
#[test]
fn reports_are_read_once_and_whole_or_overrun() {
    check(3, || {
        const REPORTS: u64 = 4;
        let log = Arc::new(Log::new());
        let writer = {
            let log = Arc::clone(&log);
            loom::thread::spawn(move || (0..REPORTS).for_each(|n| log.round(|| log.write(span(n)))))
        };
        let (mut read, mut reports) = (0, 0);
        let mut read_next = || {
            let before = read;
            match log.next(&mut read) {
                Some(ALL_MEMORY) => assert!(read >= before + CAPACITY as u64, "an overrun without need"),
                Some(report) => {
                    assert_eq!((report, read), (span(before), before + 1));
                    reports += 1;
                }
                None => return false,
            }
            true
        };
        for _ in 0..2 {
            read_next();
        }
        writer.join().unwrap();
        while read_next() {}
        assert_eq!(read, REPORTS);
        assert!(reports <= REPORTS);
    });
}
