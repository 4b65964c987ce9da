//! The flusher and the messages that TCP keeps, under a model checker.
//!
//! The checker tries every interleaving (up to a bound of preemptions) and every value that a load may return under the
//! C11 memory model. No message stays unsent while the thread sleeps. The checker reports a thread that is never woken
//! as a deadlock.
//!
//! The device's note of kept messages (weft-nic's `unsent.rs`) and the states of the thread are included as they ship.
//! The device is a number of messages behind its endpoint's lock. The thread's ticks take no time.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::Arc;

use loom::sync::{Mutex, Notify};

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// The items that the files under test import from their neighbours.
mod sync {
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
}

#[path = "../src/sleep/flusher/thread_state.rs"]
mod thread_state;
#[path = "../../weft-nic/src/tcp/unsent.rs"]
mod unsent;

use thread_state::ThreadState;
use unsent::Unsent;

/// The thread.
struct Flusher {
    state: ThreadState,
    /// Whether the thread was started, behind the lock of its handle. `Err`: the number of starts that the system still
    /// refuses.
    handle: Mutex<Result<(), u32>>,
    /// `unpark` of the thread's handle, and `park`.
    parked: Notify,
}

loom::lazy_static! {
    static ref FLUSHER: Flusher = Flusher {
        state: ThreadState::new(),
        handle: Mutex::new(Err(0)),
        parked: Notify::new(),
    };
}

/// `flusher::notify`.
fn notify() -> bool {
    FLUSHER.state.notify(wake)
}

/// `Flusher::wake`.
fn wake() -> bool {
    let mut handle = FLUSHER.handle.lock().unwrap();
    match &mut *handle {
        Err(refusals) if *refusals > 0 => {
            *refusals -= 1;
            return false;
        }
        Err(_) => {
            *handle = Ok(());
            FLUSHER.state.started();
        }
        Ok(()) => {}
    }
    FLUSHER.parked.notify();
    true
}

/// An endpoint with its device.
struct Endpoint {
    /// Messages that are kept, and that are written.
    engine: Mutex<(u32, u32)>,
    unsent: Unsent,
}

impl Endpoint {
    fn new() -> Arc<Self> {
        Arc::new(Self { engine: Mutex::new((0, 0)), unsent: Unsent::new(notify) })
    }

    /// The client sends a message. It is kept if there is a thread; otherwise it is written.
    fn send(&self) {
        let mut engine = self.engine.lock().unwrap();
        engine.0 += 1;
        if !self.unsent.note() {
            engine.1 += std::mem::take(&mut engine.0);
        }
    }

    /// The holder of the device writes all kept messages. Returns the number of messages written so far.
    fn drain(&self) -> u32 {
        let mut engine = self.engine.lock().unwrap();
        engine.1 += std::mem::take(&mut engine.0);
        self.unsent.clear();
        engine.1
    }

    /// The thread, until `messages` messages are written (`Flusher::run`).
    fn flush(&self, messages: u32) {
        // Waits until it is started.
        FLUSHER.parked.wait();
        let mut written = 0;
        while written < messages {
            // Two looks, a tick apart, find the same note: the client adds no message.
            if self.unsent.kept().is_some() {
                written = self.drain();
                continue;
            }
            // A tick. The thread may run before its start is noted, and cannot park until then.
            loom::thread::yield_now();
            FLUSHER.state.park(|| self.unsent.kept().is_some());
            FLUSHER.state.sleep(|| FLUSHER.parked.wait());
        }
    }
}

#[test]
fn messages_of_an_absent_client_are_written() {
    check(3, || {
        let endpoint = Endpoint::new();
        let client = Arc::clone(&endpoint);
        let client = loom::thread::spawn(move || (0..2).for_each(|_| client.send()));
        endpoint.flush(2);
        client.join().unwrap();
        assert_eq!(*endpoint.engine.lock().unwrap(), (0, 2));
    });
}

/// The client writes the first message itself. The thread may have been notified for nothing, but serves the next
/// message.
#[test]
fn messages_of_an_absent_client_are_written_after_its_own_writes() {
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

/// The system refuses the thread. No message is kept for it, whichever of two clients starts it first.
#[test]
fn no_message_is_kept_without_a_thread() {
    for refusals in [2, 4] {
        check(3, move || {
            *FLUSHER.handle.lock().unwrap() = Err(refusals);
            let endpoints = [Endpoint::new(), Endpoint::new()];
            let other = Arc::clone(&endpoints[1]);
            let other = loom::thread::spawn(move || (0..refusals / 2).for_each(|_| other.send()));
            (0..refusals / 2).for_each(|_| endpoints[0].send());
            other.join().unwrap();
            for endpoint in endpoints {
                assert_eq!(*endpoint.engine.lock().unwrap(), (0, refusals / 2));
                assert!(endpoint.unsent.kept().is_none());
            }
        });
    }
}

/// A start that was refused is tried again with the next message.
#[test]
fn a_refused_thread_is_tried_again() {
    check(3, || {
        *FLUSHER.handle.lock().unwrap() = Err(1);
        let endpoint = Endpoint::new();
        let client = Arc::clone(&endpoint);
        let client = loom::thread::spawn(move || (0..2).for_each(|_| client.send()));
        endpoint.flush(2);
        client.join().unwrap();
        assert_eq!(*endpoint.engine.lock().unwrap(), (0, 2));
    });
}

/// The end of the thread is heard by it, wherever it is.
#[test]
fn an_ending_thread_ends_and_writes_nothing() {
    check(3, || {
        FLUSHER.state.started();
        let thread = loom::thread::spawn(|| {
            while !FLUSHER.state.is_ending() {
                FLUSHER.state.park(|| false);
                FLUSHER.state.sleep(|| FLUSHER.parked.wait());
            }
        });
        FLUSHER.state.end();
        assert!(!FLUSHER.state.notify(|| true), "an ending thread writes nothing");
        FLUSHER.parked.notify();
        thread.join().unwrap();
        FLUSHER.state.ended();
        let mut starts = false;
        let served = FLUSHER.state.notify(|| {
            starts = true;
            false
        });
        assert!(!FLUSHER.state.is_ending() && !served && starts);
    });
}
