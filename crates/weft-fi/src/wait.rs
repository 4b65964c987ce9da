//! `Waker`: where a thread sleeps until a device stirs or somebody calls.
//!
//! Place in the data flow: blocking reads of queues and counters, wait objects handed to clients (FI_WAIT_FD) and the
//! progress thread sleep here. A waker is an epoll descriptor that holds one eventfd (the bell) and
//! the wait descriptors of the endpoints concerned; the epoll descriptor itself can be polled by the client.
//!
//! Nothing here is on the path of a message unless somebody sleeps.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;

/// Events that one sleep reports at most; more are found by the next one.
const EVENTS: usize = 8;
/// The key of the bell in the epoll set.
const BELL: u64 = u64::MAX;

/// An epoll set with a bell.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: OwnedFd,
    bell: OwnedFd,
}

/// Why a sleep ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A descriptor became ready, or the bell rang.
    Event,
    /// The time was up.
    Timeout,
    /// A signal handler ran.
    Signal,
}

impl Waker {
    /// A waker that watches nothing but its bell.
    pub(crate) fn new() -> Result<Self, Errno> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, bell })
    }

    /// The descriptor that a client may poll: readable when there may be something to do.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Also wakes when `fd` is readable. A descriptor that is watched already is left as it is.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Errno> {
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// No longer wakes for `fd`. Unknown descriptors are ignored: closing one has removed it already.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Wakes the sleeper, or the next one.
    pub(crate) fn ring(&self) {
        // The counter cannot overflow in practice, and a full one is readable all the same.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Takes earlier rings back.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    /// Sleeps until something happens or the time is up.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Woken {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: duration.subsec_nanos().into(),
        });
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(([], _)) => Woken::Timeout,
            Ok(_) => Woken::Event,
            Err(Errno::INTR) => Woken::Signal,
            // Nothing else can come from a valid descriptor; treating it as an event makes the caller look.
            Err(_) => Woken::Event,
        }
    }
}

/// A time-out in libfabric's convention: milliseconds, negative for ever.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// Counted from now.
    pub(crate) fn after_ms(timeout_ms: i32) -> Self {
        let after = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(after.and_then(|after| Instant::now().checked_add(after)))
    }

    /// How long is left; `None` is for ever, zero is over.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether it has passed.
    pub(crate) fn over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
