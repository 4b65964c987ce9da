//! `ThreadState`: the state of the flusher's thread, and its notification.
//!
//! Place in the data flow: a device that keeps a message → `note` of a [`weft_nic::Unsent`] → [`super::notify`] → here;
//! the thread's loop. It is a file of its own so that a model checker can try every interleaving with that note
//! (`tests/loom_flusher.rs`).
//!
//! No notification is lost. The thread announces that it parks, executes a fence, and checks whether a message is kept.
//! The holder of a device notes that it keeps a message, executes a fence, and checks whether the thread is parked. A
//! caller relies on the thread only once it exists, because a start by another caller may fail.
//!
//! ```text
//!           started                     park
//! Absent ─────────────▶ Running ─────────────────▶ Parked
//!    ▲                   │   ▲     notify, or        │
//!    │                   │   │     park finds work   │
//!    │                   │   └───────────────────────┤
//!    │  ended            │ end                       │ end
//!    └────── Ending ◀────┴───────────────────────────┘
//! ```

use super::sync::{AtomicU8, Ordering, fence};

/// The states of the thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// There is no thread.
    Absent,
    /// The thread looks at the endpoints after each tick.
    Running,
    /// The thread waits for a notification.
    Parked,
    /// The thread must end.
    Ending,
}

impl Stage {
    fn of(number: u8) -> Self {
        match number {
            0 => Self::Absent,
            1 => Self::Running,
            2 => Self::Parked,
            _ => Self::Ending,
        }
    }
}

/// The state of the flusher's thread.
pub(super) struct ThreadState(AtomicU8);

impl ThreadState {
    /// There is no thread yet.
    pub(super) fn new() -> Self {
        Self(AtomicU8::new(Stage::Absent as u8))
    }

    /// A device keeps a message. Returns whether the thread will write it.
    ///
    /// `wake` wakes the thread, or starts it if there is none, one caller at a time. It returns whether the
    /// thread exists afterwards.
    pub(super) fn notify(&self, wake: impl FnOnce() -> bool) -> bool {
        match self.load() {
            Stage::Absent => wake(),
            Stage::Running => true,
            Stage::Parked => match self.change(Stage::Parked, Stage::Running) {
                Ok(()) => wake(),
                // Another caller, or the thread itself, was faster.
                Err(now) => now == Stage::Running,
            },
            // The thread writes no more messages.
            Stage::Ending => false,
        }
    }

    /// The thread was started.
    pub(super) fn started(&self) {
        self.0.swap(Stage::Running as u8, Ordering::AcqRel);
    }

    /// The thread must end. The caller wakes it.
    pub(super) fn end(&self) {
        self.0.swap(Stage::Ending as u8, Ordering::AcqRel);
    }

    /// The thread has ended.
    pub(super) fn ended(&self) {
        self.0.swap(Stage::Absent as u8, Ordering::AcqRel);
    }

    /// Thread: whether it must end.
    pub(super) fn is_ending(&self) -> bool {
        self.load() == Stage::Ending
    }

    /// Thread: parks, unless a message is `kept`. [`ThreadState::sleep`] follows.
    pub(super) fn park(&self, kept: impl FnOnce() -> bool) {
        // The change fails if the thread must end, or if its start was not noted yet.
        if self.change(Stage::Running, Stage::Parked).is_err() {
            return;
        }
        // Either the device's holder sees that the thread is parked, or the thread sees what the device keeps.
        fence(Ordering::SeqCst);
        if kept() {
            // The change fails if a notification came first, or if the thread must end.
            let _ = self.change(Stage::Parked, Stage::Running);
        }
    }

    /// Thread: sleeps by `sleep` while it is parked.
    pub(super) fn sleep(&self, sleep: impl Fn()) {
        while self.load() == Stage::Parked {
            sleep();
        }
    }

    fn load(&self) -> Stage {
        Stage::of(self.0.load(Ordering::Acquire))
    }

    /// Changes the state from `from`; otherwise returns the state that it found.
    fn change(&self, from: Stage, to: Stage) -> Result<(), Stage> {
        let changed = self.0.compare_exchange(from as u8, to as u8, Ordering::AcqRel, Ordering::Acquire);
        changed.map(|_| ()).map_err(Stage::of)
    }
}
