//! `Waker`: a thread sleeps on it until a device has an event or another thread notifies it.
//!
//! Place in the data flow: blocking reads of queues and counters, clients with a wait object (FI_WAIT_FD) and the
//! progress thread sleep on wakers. A waker is an epoll descriptor that watches one eventfd, the *bell*, and the wait
//! descriptors of endpoints. The client can poll the epoll descriptor itself.
//!
//! Messages cost nothing here while no thread sleeps.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd};
use rustix::io::Errno as Sys;
use weft_fi_sys as sys;
use weft_nic::NicError;
use weft_os::Worker;

use crate::abi::errno::Errno;

/// Most events that one sleep takes. The next sleep finds the others.
const EVENTS: usize = 8;
/// The shortest and longest pause of a helper between two attempts to lock a client's mutex. Each pause is twice as
/// long as the last.
const PAUSES: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));
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

/// The cause of the end of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Woken {
    /// A descriptor became ready, or the waker was notified.
    Event,
    /// The time was up.
    Timeout,
    /// A signal handler ran.
    Signal,
}

impl Waker {
    /// A waker that watches its bell only.
    pub(crate) fn new() -> Result<Self, NicError> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(NicError::system("epoll_create1"))?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(NicError::system("eventfd"))?;
        let key = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, &bell, key, epoll::EventFlags::IN).map_err(NicError::system("epoll_ctl"))?;
        Ok(Self { epoll, bell, condition: None })
    }

    /// A waker for a client's wait object.
    pub(crate) fn for_kind(kind: WaitKind) -> Result<Self, NicError> {
        let mut waker = Self::new()?;
        if kind == WaitKind::MutexCond {
            waker.condition = Some(Arc::new(Condition::new()?));
        }
        Ok(waker)
    }

    /// A waker for a member of the wait set that has this waker. Events of the member's waker wake this one as well.
    pub(crate) fn new_member(&self) -> Result<Self, NicError> {
        let mut waker = Self::for_kind(WaitKind::Set)?;
        waker.condition.clone_from(&self.condition);
        self.watch(waker.epoll.as_fd()).map_err(NicError::system("epoll_ctl"))?;
        Ok(waker)
    }

    /// The descriptor that a client may poll. It is readable when there may be something to do.
    pub(crate) fn as_raw_fd(&self) -> RawFd {
        self.epoll.as_raw_fd()
    }

    /// Also wakes when `fd` is readable. Does nothing if `fd` is watched already.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>) -> Result<(), Sys> {
        match epoll::add(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN) {
            Ok(()) | Err(Sys::EXIST) => Ok(()),
            Err(errno) => Err(errno),
        }
    }

    /// Does not wake for `fd`, which stays watched, until [`Waker::unmute`].
    pub(crate) fn mute(&self, fd: BorrowedFd<'_>) {
        // A descriptor that is not watched does not wake.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::empty());
    }

    /// Wakes again when `fd` is readable, also if it is now.
    pub(crate) fn unmute(&self, fd: BorrowedFd<'_>) {
        // The sleeper looks after a tick if the system refuses.
        let _ = epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(0), epoll::EventFlags::IN);
    }

    /// No longer wakes for `fd`. Does nothing if `fd` is not watched: its close has removed it already.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) {
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Notifies the bell: wakes the sleeper, or ends the next sleep at once.
    pub(crate) fn notify(&self) {
        // The counter does not overflow in practice, and a full counter is readable as well.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        if let Some(condition) = &self.condition {
            condition.signal();
        }
    }

    /// Discards earlier notifications.
    pub(crate) fn drain(&self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&self.bell, &mut count);
    }

    /// Sleeps until an event or the time-out.
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
            // A valid descriptor has no other error. As after an event, the caller looks for itself.
            Err(_) => Woken::Event,
        }
    }
}

impl Waker {
    /// Sleeps for less than a second, with a finer clock than [`Waker::sleep`]. Returns whether an event ended the
    /// sleep.
    pub(crate) fn nap(&self, time: Duration) -> bool {
        let time = Timespec { tv_sec: 0, tv_nsec: time.subsec_nanos().into() };
        rustix::event::poll(&mut [PollFd::new(&self.epoll, PollFlags::IN)], Some(&time)).is_ok_and(|ready| ready > 0)
    }
}

/// The waker of a queue or a counter, made on first use. If the system refuses it, the next use tries again.
#[derive(Default)]
pub(crate) struct LazyWaker {
    made: OnceLock<Waker>,
    refused: AtomicBool,
}

impl LazyWaker {
    /// The waker, if it was made.
    pub(crate) fn made(&self) -> Option<&Waker> {
        self.made.get()
    }

    /// The waker, which is made if necessary. `None` if the system refuses it.
    pub(crate) fn get(&self, make: impl FnOnce() -> Result<Waker, NicError>) -> Option<&Waker> {
        self.made.get().or_else(|| self.make(make).ok())
    }

    /// Makes the waker. Logs the first refusal.
    #[cold]
    pub(crate) fn make(&self, make: impl FnOnce() -> Result<Waker, NicError>) -> Result<&Waker, Errno> {
        match make() {
            // Another thread may have been faster.
            Ok(waker) => Ok(self.made.get_or_init(|| waker)),
            Err(error) => {
                if !self.refused.swap(true, Ordering::Relaxed) {
                    log::warn!("no wait object: blocking calls yield instead of sleeping: {error}");
                }
                Err((&error).into())
            }
        }
    }
}

/// A client's choice of wait object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaitKind {
    /// FI_WAIT_NONE: the client never blocks.
    None,
    /// FI_WAIT_UNSPEC: the client blocks in calls of weft.
    Unspec,
    /// FI_WAIT_FD: the client may poll a descriptor.
    Fd,
    /// FI_WAIT_MUTEX_COND: the client may wait on a condition variable.
    MutexCond,
    /// FI_WAIT_YIELD: the client blocks in calls of weft, which never sleep.
    Yield,
    /// FI_WAIT_SET: the client waits on the set.
    Set,
}

impl WaitKind {
    /// The kind in an attribute. Descriptor lists (FI_WAIT_POLLFD) are not supported.
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

    /// Answers FI_GETWAIT and FI_GETWAITOBJ for an object of this kind.
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
                    // An unspecified object is a descriptor, which FI_GETWAIT returns.
                    Self::Unspec | Self::Fd => sys::FI_WAIT_FD,
                    Self::MutexCond => sys::FI_WAIT_MUTEX_COND,
                    Self::Yield => sys::FI_WAIT_YIELD,
                    // The set has the object to wait on.
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

/// A mutex and a condition variable for clients with FI_WAIT_MUTEX_COND. Each notification of the waker
/// signals it. With manual progress no thread notifies while all threads of the client wait here. That limit
/// belongs to the progress model.
///
/// The client holds the mutex from `fi_trywait` until it waits, also in calls that take locks of weft and notify. A
/// thread that notifies may hold such locks. Therefore only the helper, which holds no other lock, waits for the mutex.
struct Condition {
    shared: Arc<Shared>,
    /// The thread that signals the condition variable. Present until drop.
    helper: Option<Worker>,
}

impl Condition {
    fn new() -> Result<Self, NicError> {
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let helper = Worker::spawn("weft-condition", move || theirs.run_helper())?;
        Ok(Self { shared, helper: Some(helper) })
    }

    fn objects(&self) -> sys::fi_mutex_cond {
        let Objects { mutex, cond } = &**self.shared.objects;
        sys::fi_mutex_cond { mutex: mutex.get(), cond: cond.get() }
    }

    fn signal(&self) {
        self.shared.request(|requests| requests.signal = true);
    }
}

impl Drop for Condition {
    fn drop(&mut self) {
        self.shared.request(|requests| requests.stop = true);
        if let Some(helper) = self.helper.take() {
            helper.join();
        }
    }
}

/// The objects on which the client waits.
struct Objects {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
    cond: UnsafeCell<libc::pthread_cond_t>,
}

// SAFETY: both objects are made for use by several threads, and never move.
unsafe impl Sync for Objects {}

/// The state that a condition and its helper share.
struct Shared {
    objects: ManuallyDrop<Box<Objects>>,
    requests: Mutex<Requests>,
    requested: Condvar,
}

/// Requests to the helper.
#[derive(Default)]
struct Requests {
    signal: bool,
    stop: bool,
}

impl Default for Shared {
    fn default() -> Self {
        let objects = Objects {
            mutex: UnsafeCell::new(libc::PTHREAD_MUTEX_INITIALIZER),
            cond: UnsafeCell::new(libc::PTHREAD_COND_INITIALIZER),
        };
        Self { objects: ManuallyDrop::new(Box::new(objects)), requests: Mutex::default(), requested: Condvar::new() }
    }
}

impl Shared {
    fn request(&self, set: impl FnOnce(&mut Requests)) {
        set(&mut self.requests.lock());
        self.requested.notify_one();
    }

    /// The helper's loop. While the client holds the mutex, the helper waits for requests in between, so that it also
    /// finds the request to stop. pthread_mutex_timedlock(3) would use the system's clock, which may be set back.
    fn run_helper(&self) {
        let (shortest, longest) = PAUSES;
        let mut pause = shortest;
        let mut requests = self.requests.lock();
        while !requests.stop {
            if !std::mem::take(&mut requests.signal) {
                self.requested.wait(&mut requests);
                continue;
            }
            drop(requests);
            let done = self.broadcast();
            requests = self.requests.lock();
            if done {
                pause = shortest;
            } else if !requests.stop {
                if self.requested.wait_for(&mut requests, pause).timed_out() {
                    pause = longest.min(pause * 2);
                }
                requests.signal = true;
            }
        }
    }

    /// Wakes all threads that wait on the condition variable. Returns `false` if the mutex is not free: its
    /// holder may be about to wait.
    fn broadcast(&self) -> bool {
        let Objects { mutex, cond } = &**self.objects;
        // SAFETY: the mutex is initialised.
        if unsafe { libc::pthread_mutex_trylock(mutex.get()) } != 0 {
            return false;
        }
        // SAFETY: the condition variable is initialised.
        unsafe { libc::pthread_cond_broadcast(cond.get()) };
        // SAFETY: this thread has locked the mutex above.
        unsafe { libc::pthread_mutex_unlock(mutex.get()) };
        true
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // A client that closes while it holds the mutex will still unlock it. The objects are leaked then.
        let mutex = self.objects.mutex.get();
        // SAFETY: the mutex is initialised.
        if unsafe { libc::pthread_mutex_trylock(mutex) } == 0 {
            // SAFETY: this thread has locked the mutex above.
            unsafe { libc::pthread_mutex_unlock(mutex) };
            // SAFETY: this is the destructor, and the objects are not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.objects) };
        }
    }
}

impl std::fmt::Debug for Condition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Condition")
    }
}

/// A time-out in libfabric's convention: milliseconds; a negative number means no time-out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline(Option<Instant>);

impl Deadline {
    /// The deadline this many milliseconds from now.
    pub(crate) fn after_ms(timeout_ms: i32) -> Self {
        let after = u64::try_from(timeout_ms).ok().map(Duration::from_millis);
        Self(after.and_then(|after| Instant::now().checked_add(after)))
    }

    /// The remaining time. `None` without a time-out; zero when the deadline has passed.
    pub(crate) fn left(&self) -> Option<Duration> {
        self.0.map(|at| at.saturating_duration_since(Instant::now()))
    }

    /// Whether the deadline has passed.
    pub(crate) fn over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The helper never blocks on the mutex, not even with a time-out: the system's clock may be set back.
    #[test]
    fn a_helper_does_not_block_on_a_clients_mutex() {
        let shared = Shared::default();
        let mutex = shared.objects.mutex.get();
        // SAFETY: the mutex is initialised.
        assert_eq!(unsafe { libc::pthread_mutex_trylock(mutex) }, 0);
        let start = Instant::now();
        assert!((0..100).all(|_| !shared.broadcast()));
        let taken = start.elapsed();
        // SAFETY: this thread has locked the mutex above.
        assert_eq!(unsafe { libc::pthread_mutex_unlock(mutex) }, 0);
        assert!(shared.broadcast());
        assert!(taken < Duration::from_millis(500), "{taken:?}");
    }
}
