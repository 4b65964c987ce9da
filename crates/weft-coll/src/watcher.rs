//! The watcher: a thread that makes progress where ranks share processors, while its rank makes none.
//!
//! Place in the data flow: beside [`crate::run`]. Without automatic progress, operations advance in the rank's polls
//! alone. A rank that computes, or that is blocked in a call that this library does not see, does not poll, and other
//! ranks may wait for its part of an operation (MPI 4.1, 2.9 and 6.12). The watcher then takes its place.
//!
//! - It sleeps until a non-blocking operation starts. Blocking ones poll until they end, and do not wake it.
//! - While operations are under way it looks every few milliseconds whether the rank has polled. That costs the rank
//!   one assignment per poll.
//! - If the rank has not polled, the watcher polls, and sleeps on the endpoint's descriptor between its polls. It steps
//!   back when it finds that the rank polls again.
//!
//! The watcher calls no function of MPI, which may allow one thread only. Operations that it finds complete end in the
//! next poll of the rank.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use weft_os::{SystemError, Worker};

use crate::{lull, run};

/// The interval between two looks at a rank that polls, and the longest sleep in its place.
const LOOK: Duration = Duration::from_millis(4);
/// The pause before the next poll while there is work to do. It leaves the processor to other ranks.
const SOON: Duration = Duration::from_micros(50);

/// The thread. A drop ends it.
pub(crate) struct Watcher {
    ended: Arc<AtomicBool>,
    worker: Option<Worker>,
}

/// The time of the watcher's next look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// When the rank starts an operation.
    WhenStarted,
    /// The rank polls.
    Later,
    /// There is more to do.
    Soon,
    /// When the endpoint's descriptor is readable, or later.
    WhenReadable(c_int),
}

impl Watcher {
    /// Starts the thread, which sleeps.
    pub(crate) fn start() -> Result<Self, SystemError> {
        let ended = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ended);
        let worker = Worker::spawn("weft-coll", move || run(&seen))?;
        Ok(Self { ended, worker: Some(worker) })
    }

    /// Wakes the thread: an operation is under way.
    pub(crate) fn wake(&self) {
        self.worker.as_ref().inspect(|worker| worker.unpark());
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Release);
        self.wake();
        self.worker.take().into_iter().for_each(Worker::join);
    }
}

fn run(ended: &AtomicBool) {
    let mut parked = false;
    while !ended.load(Ordering::Acquire) {
        match run::runtime().map_or(Next::WhenStarted, |runtime| runtime.stand_in(&mut parked)) {
            Next::WhenStarted => thread::park(),
            Next::Later => thread::park_timeout(LOOK),
            Next::Soon => thread::sleep(SOON),
            Next::WhenReadable(descriptor) => lull::wait_for(descriptor, LOOK),
        }
    }
}
