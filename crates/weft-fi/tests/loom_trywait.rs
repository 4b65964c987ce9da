//! `fi_trywait` and the sleep on a descriptor that follows, under a model checker, which tries every
//! interleaving (up to a bound of preemptions): whatever comes, and whoever else reads or counts meanwhile, a
//! client that was told that it may sleep is woken. (The checker reports a sleeper whom nobody wakes as a
//! deadlock.)
//!
//! What is parked until the next read, the counter's values and a queue's signal are included as they ship.
//! Around them is a model: an endpoint whose device wakes a sleeper only while it is parked (how it does that
//! is checked in weft-nic, `tests/loom_shm.rs`), a queue with a lock, and a descriptor that is readable as an
//! epoll descriptor is.
#![allow(clippy::unwrap_used)]
#![allow(missing_docs, unreachable_pub, dead_code)]

use std::sync::{Arc, Weak};

use loom::sync::{Condvar, Mutex};

#[path = "../../weft-os/tests/model/mod.rs"]
mod model;
use model::check;

/// What the files under test import from their neighbours.
mod sync {
    use std::time::Duration;

    use loom::sync::MutexGuard;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// To the checker sequentially consistent accesses are acquires and releases; only fences are more.
    pub(super) fn ordered() {
        loom::sync::atomic::fence(Ordering::SeqCst);
    }

    /// A clock that stands: nobody is given up.
    pub(super) struct Instant;

    impl Instant {
        pub(super) fn now() -> Self {
            Self
        }

        pub(super) fn elapsed(&self) -> Duration {
            Duration::ZERO
        }
    }

    /// The checker's mutex, called as the one that ships.
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

/// What a client sleeps on: readable while the bell has been rung or a parked device has seen something come.
#[derive(Default)]
struct Fd {
    /// The bell, the devices.
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

/// What an endpoint's lock guards.
#[derive(Default)]
struct State {
    /// Messages that have come and were not polled.
    come: usize,
    /// The device wakes who sleeps.
    parked: bool,
    /// Sleepers who rely on that.
    external: u32,
}

/// A queue that endpoints fill, or a counter that they raise.
struct Model {
    fd: Fd,
    states: [Mutex<State>; 2],
    /// How many of the endpoints there are by now.
    joined: Mutex<usize>,
    outside: Trywait<Arc<Endpoint>>,
    /// Entries, and whether somebody wants to be rung when there are any.
    queue: Mutex<(usize, bool)>,
    signal: Signal,
    values: CounterValues,
}

/// The model once more, as the thing that is parked.
struct Endpoint(Weak<Model>, usize);

impl Park for Arc<Endpoint> {
    type Waker = ();
    type Sleep = ();

    fn park(&self, (): &(), (): ()) -> bool {
        let model = self.0.upgrade().unwrap();
        let mut state = model.states[self.1].lock().unwrap();
        if state.come > 0 {
            return false;
        }
        state.parked = true;
        state.external += 1;
        true
    }

    fn wake(&self, (): ()) {
        let model = self.0.upgrade().unwrap();
        let mut state = model.states[self.1].lock().unwrap();
        state.external -= 1;
        state.parked &= state.external > 0;
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

    /// A message comes from outside.
    fn comes(&self, to: usize) {
        let mut state = self.states[to].lock().unwrap();
        state.come += 1;
        if std::mem::take(&mut state.parked) {
            self.fd.device(to, true);
        }
    }

    /// The other endpoint is bound to the queue.
    fn joins(&self) {
        *self.joined.lock().unwrap() = 2;
        self.outside.invalidate();
        self.fd.notify();
    }

    /// `EndpointCell::progress`: a round, after which the device is parked again for those who sleep.
    fn progress(&self) {
        for which in 0..*self.joined.lock().unwrap() {
            self.round(which);
        }
    }

    fn round(&self, which: usize) {
        let mut state = self.states[which].lock().unwrap();
        let come = std::mem::take(&mut state.come);
        self.fd.device(which, false);
        state.parked = state.external > 0;
        if come == 0 {
            return;
        }
        let mut queue = self.queue.lock().unwrap();
        queue.0 += come;
        if std::mem::take(&mut queue.1) {
            self.fd.notify();
        }
        drop(queue);
        if self.values.add(come as u64) && self.values.due().sleepers {
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

    /// `fi_cq_read`, or fi_cntr_read if nothing is `taken`.
    fn read(&self, thread: usize, taken: bool) -> bool {
        self.outside.wake(|| thread, ());
        self.progress();
        let mut queue = self.queue.lock().unwrap();
        let some = queue.0 > 0;
        queue.0 -= usize::from(some && taken);
        some
    }

    /// A client that reads a queue until a message is there, and sleeps on the descriptor meanwhile.
    fn receive(self: &Arc<Self>, thread: usize) {
        while !self.read(thread, true) {
            if self.may_sleep(thread, || self.arm_queue()) {
                self.fd.sleep();
            }
        }
    }

    /// The same until somebody signals.
    fn heed(self: &Arc<Self>, thread: usize) {
        while !self.signal.take() {
            self.read(thread, true);
            if self.may_sleep(thread, || self.arm_queue()) {
                self.fd.sleep();
            }
        }
    }

    /// The same until a counter is so high.
    fn count(self: &Arc<Self>, thread: usize, at: u64) {
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

/// A client, messages from outside, and another thread, which does something and goes away.
fn together(client: fn(&Arc<Model>), other: fn(&Arc<Model>)) {
    bounded(3, client, other);
}

fn bounded(preemptions: usize, client: fn(&Arc<Model>), other: fn(&Arc<Model>)) {
    check(preemptions, move || {
        let model = Model::new();
        let (beside, outside) = (Arc::clone(&model), Arc::clone(&model));
        let threads = [loom::thread::spawn(move || other(&beside)), loom::thread::spawn(move || outside.comes(0))];
        client(&model);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_message_wakes_a_sleeper() {
    together(|model| model.receive(1), |_| ());
}

#[test]
fn a_reader_that_goes_away_leaves_the_sleeper_its_wake_up() {
    together(|model| model.receive(1), |model| _ = model.read(2, false));
}

#[test]
fn two_sleepers_have_a_message_each() {
    together(
        |model| model.receive(1),
        |model| {
            model.comes(0);
            model.receive(2);
        },
    );
}

#[test]
fn progress_by_others_wakes_a_sleeper() {
    together(|model| model.receive(1), |model| model.progress());
}

#[test]
fn a_count_wakes_a_sleeper() {
    together(|model| model.count(1, 1), |model| _ = model.read(2, false));
}

#[test]
fn a_count_wakes_two_sleepers() {
    bounded(2, |model| model.count(1, 1), |model| model.count(2, 1));
}

/// Who waits for less brings about what the other waits for.
#[test]
fn a_count_wakes_a_sleeper_beside_one_who_waits_for_more() {
    bounded(
        2,
        |model| {
            model.count(1, 1);
            model.comes(0);
        },
        |model| model.count(2, 2),
    );
}

#[test]
fn a_signal_wakes_a_sleeper() {
    together(|model| model.heed(1), |model| model.signal.raise(|| model.fd.notify()));
}

/// An endpoint joins while a client sleeps, or is about to, and then its message comes.
fn joins(beside: fn(&Arc<Model>)) {
    check(3, move || {
        let model = Model::new();
        let (other, outside) = (Arc::clone(&model), Arc::clone(&model));
        let threads = [
            loom::thread::spawn(move || beside(&other)),
            loom::thread::spawn(move || {
                outside.joins();
                outside.comes(1);
            }),
        ];
        model.receive(1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn a_sleeper_hears_of_an_endpoint_that_joins() {
    joins(|_| ());
}

/// Another thread was about to sleep, too, took back the ring, and goes away.
#[test]
fn a_sleeper_hears_of_an_endpoint_that_joins_whoever_takes_back_the_ring() {
    joins(|model| {
        model.may_sleep(2, || model.arm_queue());
        model.read(2, false);
    });
}
