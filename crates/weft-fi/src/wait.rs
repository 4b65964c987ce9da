//! `Waker`: where a thread sleeps until a device stirs or somebody calls.
//!
//! Place in the data flow: blocking reads of queues and counters, wait objects handed to clients (FI_WAIT_FD) and the
//! progress thread sleep here. A waker is an epoll descriptor that holds one eventfd (the bell) and
//! the wait descriptors of the endpoints concerned; the epoll descriptor itself can be polled by the client.
//!
//! Nothing here is on the path of a message unless somebody sleeps.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno as Sys;
use weft_fi_sys as sys;

use crate::errno::Errno;

/// Events that one sleep reports at most; more are found by the next one.
const EVENTS: usize = 8;
/// The key of the bell in the epoll set.
const BELL: u64 = u64::MAX;

/// An epoll set with a bell.
#[derive(Debug)]
pub(crate) struct Waker {
    epoll: OwnedFd,
    bell: OwnedFd,
    /// Shared by the members of a wait set.
    condition: Option<Arc<Condition>>,
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
    pub(crate) fn new() -> Result<Self, Sys> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(BELL), epoll::EventFlags::IN)?;
        Ok(Self { epoll, bell, condition: None })
    }

    /// A waker for a client's wait object; `None` where descriptors have run out.
    pub(crate) fn for_kind(kind: WaitKind) -> Option<Self> {
        let mut waker = match Self::new() {
            Ok(waker) => waker,
            Err(errno) => {
                log::warn!(
                    "no descriptor for a wait object: {errno}; blocking calls will yield instead of sleeping (raise `ulimit -n`)"
                );
                return None;
            }
        };
        waker.condition = (kind == WaitKind::MutexCond).then(|| Arc::new(Condition::new()));
        Some(waker)
    }

    /// A waker for a member of the wait set whose waker this is: what wakes there wakes here.
    pub(crate) fn new_member(&self) -> Option<Self> {
        let mut waker = Self::for_kind(WaitKind::Set)?;
        waker.condition.clone_from(&self.condition);
        self.watch(waker.epoll.as_fd()).ok().map(|()| waker)
    }

    /// The descriptor that a client may poll: readable when there may be something to do.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Also wakes when `fd` is readable. A descriptor that is watched already is left as it is.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Sys> {
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(Sys::EXIST) => Ok(()),
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
        if let Some(condition) = &self.condition {
            condition.signal();
        }
    }

    /// Takes earlier rings back.
    pub(crate) fn hush(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    /// Sleeps until something happens or the time is up.
    pub(crate) fn sleep(&self, timeout: Option<Duration>) -> Woken {
        // Whole milliseconds, rounded up, so that a short sleep does not become a spin.
        let timeout = timeout.map(|duration| {
            let millis = duration.as_micros().div_ceil(1000);
            let millis = i64::try_from(millis).unwrap_or(i64::MAX);
            Timespec { tv_sec: millis / 1000, tv_nsec: (millis % 1000) * 1_000_000 }
        });
        let mut events = [std::mem::MaybeUninit::uninit(); EVENTS];
        match epoll::wait(&self.epoll, &mut events, timeout.as_ref()) {
            Ok(([], _)) => Woken::Timeout,
            Ok(_) => Woken::Event,
            Err(Sys::INTR) => Woken::Signal,
            // Nothing else can come from a valid descriptor; treating it as an event makes the caller look.
            Err(_) => Woken::Event,
        }
    }
}

impl Waker {
    /// Sleeps for less than a second, with a finer clock than [`Waker::sleep`].
    pub(crate) fn nap(&self, time: Duration) {
        let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        // Whatever ends it, an interruption included: the caller goes on to look.
        let _ = rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&time));
    }
}

/// A client's choice of wait object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// FI_WAIT_NONE: the client never blocks.
    None,
    /// FI_WAIT_UNSPEC: the client blocks in our calls.
    Unspec,
    /// FI_WAIT_FD: the client may poll a descriptor.
    Fd,
    /// FI_WAIT_MUTEX_COND: the client may wait on a condition variable.
    MutexCond,
    /// FI_WAIT_YIELD: the client blocks in our calls, which never sleep.
    Yield,
    /// FI_WAIT_SET: the client waits on the set.
    Set,
}

impl WaitKind {
    /// From an attribute. Descriptor lists (FI_WAIT_POLLFD) are not supported.
    pub(crate) fn from_attr(object: sys::fi_wait_obj) -> Result<Self, Errno> {
        match object {
            sys::FI_WAIT_NONE => Ok(Self::None),
            sys::FI_WAIT_UNSPEC => Ok(Self::Unspec),
            sys::FI_WAIT_FD => Ok(Self::Fd),
            sys::FI_WAIT_MUTEX_COND => Ok(Self::MutexCond),
            sys::FI_WAIT_YIELD => Ok(Self::Yield),
            sys::FI_WAIT_SET => Ok(Self::Set),
            sys::FI_WAIT_POLLFD => Err(Errno::NOSYS),
            _ => Err(Errno::INVAL),
        }
    }

    /// Whether the client relies on the waker's objects.
    pub(crate) fn needs_waker(self) -> bool {
        matches!(self, Self::Fd | Self::MutexCond | Self::Set)
    }

    /// FI_GETWAIT and FI_GETWAITOBJ for an object of this kind.
    ///
    /// # Safety
    /// `arg` is the client's argument for `command`.
    pub(crate) unsafe fn control(self, waker: Option<&Waker>, command: i32, arg: *mut c_void) -> Result<(), Errno> {
        let arg = NonNull::new(arg).ok_or(Errno::INVAL)?;
        match command.cast_unsigned() {
            sys::FI_GETWAIT => {
                let waker =
                    waker.filter(|_| !matches!(self, Self::None | Self::Yield | Self::Set)).ok_or(Errno::NODATA)?;
                if let Some(condition) = &waker.condition {
                    // SAFETY: the client's `fi_mutex_cond`.
                    unsafe { arg.cast::<sys::fi_mutex_cond>().write(condition.objects()) };
                } else {
                    // SAFETY: the client's `int`.
                    unsafe { arg.cast::<RawFd>().write(waker.as_raw_fd()) };
                }
                Ok(())
            }
            sys::FI_GETWAITOBJ => {
                let object = match self {
                    Self::None => sys::FI_WAIT_NONE,
                    // An unspecified object is a descriptor, which FI_GETWAIT gives.
                    Self::Unspec | Self::Fd => sys::FI_WAIT_FD,
                    Self::MutexCond => sys::FI_WAIT_MUTEX_COND,
                    Self::Yield => sys::FI_WAIT_YIELD,
                    // Which has the object to wait on.
                    Self::Set => sys::FI_WAIT_SET,
                };
                // SAFETY: the client's `enum fi_wait_obj`.
                unsafe { arg.cast::<sys::fi_wait_obj>().write(object) };
                Ok(())
            }
            _ => Err(Errno::NOSYS),
        }
    }
}

/// A mutex and a condition variable for clients that asked for FI_WAIT_MUTEX_COND: signalled whenever the bell
/// rings. With manual progress nobody rings while every thread of the client waits here; that is the model's own
/// limit.
struct Condition {
    mutex: Box<UnsafeCell<libc::pthread_mutex_t>>,
    cond: Box<UnsafeCell<libc::pthread_cond_t>>,
}

// SAFETY: both objects exist for being used by several threads, and never move.
unsafe impl Send for Condition {}
// SAFETY: as above.
unsafe impl Sync for Condition {}

impl Condition {
    fn new() -> Self {
        Self {
            mutex: Box::new(UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER)),
            cond: Box::new(UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER)),
        }
    }

    fn objects(&self) -> sys::fi_mutex_cond {
        sys::fi_mutex_cond { mutex: self.mutex.get(), cond: self.cond.get() }
    }

    fn signal(&self) {
        // SAFETY: an initialised mutex, not held by this thread: clients hold it only around their wait.
        unsafe { libc::pthread_mutex_lock(self.mutex.get()) };
        // SAFETY: an initialised condition variable.
        unsafe { libc::pthread_cond_broadcast(self.cond.get()) };
        // SAFETY: locked above.
        unsafe { libc::pthread_mutex_unlock(self.mutex.get()) };
    }
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condition")
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
