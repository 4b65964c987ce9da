//! The contract between the provider and a device: [`Device`].
//!
//! Place in the data flow: weft-fi opens one `Device` per endpoint and gives it to the engine, which drives it through
//! [`Nic`]. The methods here are the ones that weft-fi itself calls: to open a device, to sleep on it, and to report on
//! it. Implementations: [`crate::Devices`] (shared memory and TCP), and the simulated fabric in weft-sim-device.
//!
//! # Sleep
//! All calls come from the thread that holds the endpoint's lock; none blocks. Several threads may use one device in
//! turn: clients that poll, clients that sleep, and the progress thread (the *listener*). A device is in one of three
//! states.
//!
//! ```text
//!            park                        arm
//!  ┌───────┐ ─────────────► ┌────────┐ ─────────► ┌───────┐ ◄─┐ park, poll, arm,
//!  │ awake │ ◄───────────── │ parked │            │ armed │ ──┘ wake_listener
//!  └───────┘   poll, wake   └────────┘            └───────┘
//!    │   ▲                        arm                ▲ │
//!    │   └──────────────────────── wake ─────────────┼─┘
//!    └───────────────────────────────────────────────┘
//! ```
//!
//! - *Awake*: peers expect polls. An arrival over shared memory does not make [`Device::wait_fd`] readable.
//! - *Parked*: peers notify the descriptor of the next arrival. The next [`Nic::poll`], by any thread, ends the state.
//! - *Armed*: the same for the listener, except that polls of other threads do not end it. One notification is spent
//!   when a poll takes it, or by [`Device::wake_listener`]. Then [`Device::is_armed`] is false, and peers notify the
//!   descriptor only after the next [`Device::arm`].
//!
//! Rules for the caller:
//! 1. `park` and `arm` may be called in every state. They return false when there is something to poll; the state is
//!    then what it was, or awake. Poll, then try again.
//! 2. After true, the descriptor becomes readable on an event of a peer: a message, a transfer's completion, a new
//!    connection, a hang-up, or free space in a ring that was full. A time-out of the device has the same effect. It
//!    stays readable until a poll takes the cause.
//! 3. The device never parks or arms itself again. A thread that polls beside a sleeper has three choices: it
//!    checks `is_armed` (for the listener), calls `park` again (for a client), or notifies the sleeper by
//!    other means.
//! 4. `wake` ends both states. Call it when no other thread relies on the device being parked or armed.
//! 5. An operation that is started while a thread sleeps may leave work that no arrival announces. If
//!    [`Device::is_idle`] is false after it, poll, then park again, or notify the sleeper.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use weft_engine::nic::{LinkId, Nic};

use crate::{Config, NicError, Stats, Unsent};

/// The device of one endpoint, as the provider uses it.
pub trait Device: Nic + Send + Sized + 'static {
    /// Opens the device of a new endpoint, under a fresh name. It is boxed because clients may have little stack.
    ///
    /// # Errors
    /// See [`NicError`]: the interface does not exist, the service is taken, or no device is left.
    fn open(config: &Config) -> Result<Box<Self>, NicError>;

    /// The longest message in bytes that every link of such a device carries.
    fn least_mailbox_bytes() -> usize;

    /// The descriptor to sleep on. It may be watched for as long as the device exists.
    fn wait_fd(&self) -> BorrowedFd<'_>;

    /// Prepares for one sleep on [`Device::wait_fd`]. False: there is something to poll.
    #[must_use]
    fn park(&mut self) -> bool;

    /// Prepares for a sleep of the listener, which polls by other threads do not end. False: there is something to
    /// poll.
    #[must_use]
    fn arm(&mut self) -> bool;

    /// The listener is awake, and about to poll. Only the notification is spent; all else stays armed, so that the next
    /// [`Device::arm`] is cheap.
    fn wake_listener(&mut self);

    /// Ends parked and armed: from now on the caller polls.
    fn wake(&mut self);

    /// Whether the next arrival makes [`Device::wait_fd`] readable, and no work is left to poll before it.
    #[must_use]
    fn is_armed(&self) -> bool;

    /// Whether a poll could move nothing on before the next arrival. Messages noted in [`Device::unsent`] do not count:
    /// the flusher writes them.
    #[must_use]
    fn is_idle(&self) -> bool;

    /// The note of accepted messages that the device has not written yet. `None`: the device defers no message.
    fn unsent(&self) -> Option<&Arc<Unsent>>;

    /// Writes accepted messages without a poll, as far as the system takes them. Returns whether none is left.
    fn drain(&mut self) -> bool;

    /// Whether this process has opened the device. A forked child has a copy, which it must not use: the links behind
    /// it are its parent's.
    #[must_use]
    fn is_ours(&self) -> bool;

    /// The short name of the device that serves a link, for reports. `None`: the link is free, or changes its device.
    fn device_of(&self, link: LinkId) -> Option<&'static str>;

    /// The device's counters.
    fn stats(&self) -> Stats;
}
