//! `fi_trywait` and the following sleep on a descriptor, under a model checker.
//!
//! The checker tries every interleaving (up to a bound of preemptions). A client that sleeps after a successful
//! `fi_trywait` is woken by any event, even if other threads read or raise counters meanwhile. The checker reports a
//! sleeper that is never woken as a deadlock.
//!
//! `Trywait`, the counter's values and a queue's signal are included as they ship. The rest is a model: an
//! endpoint whose device wakes a sleeper only while it is parked (`tests/loom_shm.rs` of weft-nic checks the
//! device), a queue with a lock, and a descriptor that is readable like an epoll descriptor.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::{Arc, Weak};

use loom::sync::{Condvar, Mutex};

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// The items that the files under test import from their neighbours.
mod sync {
    use std::time::Duration;

    use loom::sync::MutexGuard;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// The checker treats sequentially consistent accesses as acquires and releases. Only fences order more.
    pub(super) fn ordered() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// A clock that stands still: the patience for notified threads never ends.
    pub(super) struct Instant;

    impl Instant {
        pub(super) fn now() -> Self {
            Self
        }

        pub(super) fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
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

#[path = "../src/cq/signal.rs"]
mod signal;
#[path = "../src/sleep/trywait.rs"]
mod trywait;
#[path = "../src/cntr/values.rs"]
mod values;

use signal::Signal;
use trywait::{Park, Trywait};
use values::CounterValues;

/// The descriptor on which a client sleeps. It is readable while the bell is set, or a parked device has an arrival.
#[derive(Default)]
struct Fd {
    /// Whether the bell and each device are readable.
    ready: Mutex<(bool, [bool; 2])>,
    changed: Condvar,
}

impl Fd {
    fn notify(&self) {
        self.ready.lock().unwrap().0 = true;
        self.changed.notify_all();
    }

    fn drain(&self) {
        self.ready.lock().unwrap().0 = false;
    }

    fn device(&self, which: usize, readable: bool) {
        self.ready.lock().unwrap().1[which] = readable;
        self.changed.notify_all();
    }

    fn sleep(&self) {
        let mut ready = self.ready.lock().unwrap();
        while *ready == (false, [false; 2]) {
            ready = self.changed.wait(ready).unwrap();
        }
    }
}

/// The state that an endpoint's lock guards.
#[derive(Default)]
struct State {
    /// Messages that have arrived and were not polled.
    arrived: usize,
    /// The device wakes sleepers.
    parked: bool,
    /// Number of sleepers that rely on the parking.
    sleepers: u32,
}

/// A queue that endpoints fill, or a counter that they raise.
struct Model {
    fd: Fd,
    states: [Mutex<State>; 2],
    /// Number of endpoints that have joined.
    joined: Mutex<usize>,
    outside: Trywait<Arc<Endpoint>>,
    /// Number of entries, and whether the queue is armed.
    queue: Mutex<(usize, bool)>,
    signal: Signal,
    values: CounterValues,
}

/// One endpoint of the model, which can be parked.
struct Endpoint(Weak<Model>, usize);

impl Park for Arc<Endpoint> {
    type Waker = ();
    type Sleep = ();

    fn park(&self, (): &(), (): ()) -> bool {
        let model = self.0.upgrade().unwrap();
        let mut state = model.states[self.1].lock().unwrap();
        if state.arrived > 0 {
            return false;
        }
        state.parked = true;
        state.sleepers += 1;
        true
    }

    fn wake(&self, (): ()) {
        let model = self.0.upgrade().unwrap();
        let mut state = model.states[self.1].lock().unwrap();
        state.sleepers -= 1;
        state.parked &= state.sleepers > 0;
    }

    fn is(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Model {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            fd: Fd::default(),
            states: Default::default(),
            joined: Mutex::new(1),
            outside: Trywait::new(),
            queue: Mutex::default(),
            signal: Signal::new(),
            values: CounterValues::new(),
        })
    }

    /// A message arrives from a peer.
    fn arrive(&self, to: usize) {
        let mut state = self.states[to].lock().unwrap();
        state.arrived += 1;
        if std::mem::take(&mut state.parked) {
            self.fd.device(to, true);
        }
    }

    /// The second endpoint is bound to the queue.
    fn join(&self) {
        *self.joined.lock().unwrap() = 2;
        self.outside.invalidate();
        self.fd.notify();
    }

    /// `EndpointCell::progress`: a round, after which the device is parked again for the sleepers.
    fn progress(&self) {
        for which in 0..*self.joined.lock().unwrap() {
            self.round(which);
        }
    }

    fn round(&self, which: usize) {
        let mut state = self.states[which].lock().unwrap();
        let arrived = std::mem::take(&mut state.arrived);
        self.fd.device(which, false);
        state.parked = state.sleepers > 0;
        if arrived == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap();
        queue.0 += arrived;
        if std::mem::take(&mut queue.1) {
            self.fd.notify();
        }
        drop(queue);
        if self.values.add(arrived as u64) && self.values.due().sleepers {
            self.outside.invalidate();
            self.fd.notify();
        }
    }

    /// `Sources::trywait`.
    fn may_sleep(self: &Arc<Self>, thread: usize, arm: impl FnOnce() -> bool) -> bool {
        let park = || {
            let joined = *self.joined.lock().unwrap();
            let list = (0..joined).map(|which| Arc::new(Endpoint(Arc::downgrade(self), which))).collect::<Vec<_>>();
            trywait::park_all(list.iter(), &(), ())
        };
        self.outside.trywait(thread, park, &(), (), arm, || self.fd.notify())
    }

    fn arm_queue(&self) -> bool {
        let mut queue = self.queue.lock().unwrap();
        if queue.0 > 0 {
            return false;
        }
        self.signal.arm(|| self.fd.drain(), || queue.1 = true, || self.fd.notify())
    }

    fn arm_counter(&self, at: u64) -> bool {
        let (drain, notify) = (|| self.fd.drain(), || self.fd.notify());
        self.outside.arm_threshold(drain, || self.values.arm_sleeper(at), || self.values.value() >= at, notify)
    }

    /// `fi_cq_read`, or `fi_cntr_read` unless the entry is `taken`.
    fn read(&self, thread: usize, taken: bool) -> bool {
        self.outside.wake(|| thread, ());
        self.progress();
        let mut queue = self.queue.lock().unwrap();
        let some = queue.0 > 0;
        queue.0 -= usize::from(some && taken);
        some
    }

    /// A client that reads a queue until there is a message, and sleeps on the descriptor in between.
    fn receive(self: &Arc<Self>, thread: usize) {
        while !self.read(thread, true) {
            if self.may_sleep(thread, || self.arm_queue()) {
                self.fd.sleep();
            }
        }
    }

    /// A client that reads a queue until another thread signals it.
    fn await_signal(self: &Arc<Self>, thread: usize) {
        while !self.signal.take() {
            self.read(thread, true);
            if self.may_sleep(thread, || self.arm_queue()) {
                self.fd.sleep();
            }
        }
    }

    /// A client that reads a counter until its value reaches `at`.
    fn await_count(self: &Arc<Self>, thread: usize, at: u64) {
        while self.values.value() < at {
            self.read(thread, false);
            if self.may_sleep(thread, || self.arm_counter(at)) {
                self.fd.sleep();
            } else {
                loom::thread::yield_now();
            }
        }
    }
}

/// Runs a client, the arrival of a message, and another thread that makes one call and stops.
fn together(client: fn(&Arc<Model>), other: fn(&Arc<Model>)) {
    bounded(3, client, other);
}

fn bounded(preemptions: usize, client: fn(&Arc<Model>), other: fn(&Arc<Model>)) {
    check(preemptions, move || {
        let model = Model::new();
        let (beside, outside) = (Arc::clone(&model), Arc::clone(&model));
        let threads = [loom::thread::spawn(move || other(&beside)), loom::thread::spawn(move || outside.arrive(0))];
        client(&model);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_message_wakes_a_sleeper() {
    together(|model| model.receive(1), |_| ());
}

#[test]
fn a_reader_that_stops_does_not_lose_the_wake_up() {
    together(|model| model.receive(1), |model| _ = model.read(2, false));
}

#[test]
fn two_sleepers_receive_a_message_each() {
    together(
        |model| model.receive(1),
        |model| {
            model.arrive(0);
            model.receive(2);
        },
    );
}

#[test]
fn progress_by_another_thread_wakes_a_sleeper() {
    together(|model| model.receive(1), |model| model.progress());
}

#[test]
fn a_count_wakes_a_sleeper() {
    together(|model| model.await_count(1, 1), |model| _ = model.read(2, false));
}

#[test]
fn a_count_wakes_two_sleepers() {
    bounded(2, |model| model.await_count(1, 1), |model| model.await_count(2, 1));
}

/// The thread with the lower threshold causes the event for which the other thread waits.
#[test]
fn a_count_wakes_a_sleeper_beside_a_higher_threshold() {
    bounded(
        2,
        |model| {
            model.await_count(1, 1);
            model.arrive(0);
        },
        |model| model.await_count(2, 2),
    );
}

#[test]
fn a_signal_wakes_a_sleeper() {
    together(|model| model.await_signal(1), |model| model.signal.raise(|| model.fd.notify()));
}

/// An endpoint joins while a client sleeps or is about to. Then a message arrives at that endpoint.
fn join_beside(beside: fn(&Arc<Model>)) {
    check(3, move || {
        let model = Model::new();
        let (other, outside) = (Arc::clone(&model), Arc::clone(&model));
        let threads = [
            loom::thread::spawn(move || beside(&other)),
            loom::thread::spawn(move || {
                outside.join();
                outside.arrive(1);
            }),
        ];
        model.receive(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn an_endpoint_that_joins_wakes_a_sleeper() {
    join_beside(|_| ());
}

/// Another thread was about to sleep as well. It drains the notification, and stops.
#[test]
fn an_endpoint_that_joins_wakes_a_sleeper_after_a_drain_by_another_thread() {
    join_beside(|model| {
        model.may_sleep(2, || model.arm_queue());
        model.read(2, false);
    });
}
