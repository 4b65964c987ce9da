//! Messages that TCP keeps and the thread that sees to them, under a model checker, which tries every interleaving (up to a bound of
//! preemptions) and every value that a load may return under the C11 memory model: nothing stays unsent while the thread sleeps. (The
//! checker reports a thread that nobody wakes as a deadlock.)
//!
//! What a device tells of what it keeps (weft-nic's `unsent.rs`) and how the thread sleeps and is called are included as they ship. The device
//! is a number of messages behind its endpoint's lock; the thread's ticks take no time.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::sync::{Mutex, Notify};

#[path = "../../weft-nic/tests/model/mod.rs"]
mod model;
use model::check;

/// What the files under test import from their neighbours.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU32, Ordering, fence};
}

#[path = "../src/flusher/rest.rs"]
mod rest;
#[path = "../../weft-nic/src/tcp/unsent.rs"]
mod unsent;

use rest::Rest;
use unsent::Unsent;

/// The thread.
struct Flusher {
    rest: Rest,
    /// `unpark` of the thread's handle, and `park`.
    parked: Notify,
}

loom::lazy_static! {
    static ref FLUSHER: Flusher = Flusher {
        rest: Rest { asleep: sync::AtomicBool::new(true), stop: sync::AtomicBool::new(false) },
        parked: Notify::new(),
    };
}

/// `flusher::call`.
fn call() {
    if FLUSHER.rest.is_called() {
        FLUSHER.parked.notify();
    }
}

/// An endpoint with its device.
struct Endpoint {
    /// Messages that are kept, and that are written.
    engine: Mutex<(u32, u32)>,
    unsent: Unsent,
}

impl Endpoint {
    fn new() -> Arc<Self> {
        Arc::new(Self { engine: Mutex::new((0, 0)), unsent: Unsent::new(call) })
    }

    /// The client sends a message, which is kept.
    fn send(&self) {
        let mut engine = self.engine.lock().unwrap();
        engine.0 += 1;
        self.unsent.note();
    }

    /// Whoever holds the device writes all that is kept. Returns how much was ever written.
    fn drain(&self) -> u32 {
        let mut engine = self.engine.lock().unwrap();
        engine.1 += std::mem::take(&mut engine.0);
        self.unsent.clear();
        engine.1
    }

    /// The thread, until so many messages are written. (`Flusher::run`.)
    fn flush(&self, messages: u32) {
        FLUSHER.rest.sleep(|| FLUSHER.parked.wait());
        let mut written = 0;
        while written < messages {
            // What it says at two looks is the same, after a tick: the client adds nothing.
            if self.unsent.kept().is_some() {
                written = self.drain();
                continue;
            }
            FLUSHER.rest.lie_down(|| self.unsent.kept().is_some());
            FLUSHER.rest.sleep(|| FLUSHER.parked.wait());
        }
    }
}

#[test]
fn what_a_client_leaves_behind_is_written() {
    check(3, || {
        let endpoint = Endpoint::new();
        let client = Arc::clone(&endpoint);
        let client = loom::thread::spawn(move || (0..2).for_each(|_| client.send()));
        endpoint.flush(2);
        client.join().unwrap();
        assert_eq!(*endpoint.engine.lock().unwrap(), (0, 2));
    });
}

/// The client writes itself now and then: the thread may have been called for nothing, but is there for what comes next.
#[test]
fn what_a_client_leaves_behind_is_written_though_it_wrote_before() {
    check(3, || {
        let endpoint = Endpoint::new();
        let client = Arc::clone(&endpoint);
        let client = loom::thread::spawn(move || {
            client.send();
            client.drain();
            client.send();
        });
        endpoint.flush(2);
        client.join().unwrap();
        assert_eq!(*endpoint.engine.lock().unwrap(), (0, 2));
    });
}

/// The end of the thread is heard by it, wherever it is.
#[test]
fn a_thread_that_is_to_end_ends() {
    check(3, || {
        let thread = loom::thread::spawn(|| {
            while !FLUSHER.rest.ends() {
                FLUSHER.rest.lie_down(|| false);
                FLUSHER.rest.sleep(|| FLUSHER.parked.wait());
            }
        });
        FLUSHER.rest.end();
        FLUSHER.parked.notify();
        thread.join().unwrap();
        FLUSHER.rest.has_ended();
        assert!(!FLUSHER.rest.ends() && FLUSHER.rest.is_called());
    });
}
