//! Observing that memory is unmapped, by userfaultfd(2): so that what a device has registered does not
//! outlive its mapping.
//!
//! Place in the data flow: a device that demands registration asks [`UnmapWatch`] where its `Registrar` is
//! asked to watch memory, and what has been unmapped. shm and tcp need none of it, and then there is neither
//! descriptor nor thread.
//!
//! A process has one descriptor, because memory can be watched through one only, and one thread that reads
//! it, because whoever unmaps watched memory sleeps in the system until the report has been read. The memory
//! is watched for write protection, which nobody ever sets: so there are no page faults to answer. Only
//! private memory of no file is watched, unless somebody else does, and [`UnmapWatch::watch`] says so: of
//! what shmdt(2) detaches, and of what is cut or punched out of files in memory (ftruncate(2), fallocate(2)),
//! the system makes no reports.
//!
//! The descriptor is closed in children that are forked (`fork.rs`): with a copy of it in any process,
//! whoever unmaps watched memory would go on to wait for a report that nobody reads any more once the thread
//! has ended.
//!
//! Invariant: the thread neither allocates nor frees nor takes a lock: each may unmap memory, and it would
//! wait for itself. So reports go into a ring of fixed size ([`Log`]).

mod fork;
mod log;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::mm::UserfaultfdFlags;
use weft_engine::nic::Span;

use crate::mapped::mappings;
use crate::unmap::log::Log;
use crate::{SystemError, Worker};

/// What the file that the model checker tries imports from here.
mod sync {
    pub(super) use std::sync::atomic::{AtomicU64, Ordering};
    pub(super) use std::thread::yield_now;
}

/// `struct uffdio_api`.
#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

/// `struct uffdio_register`.
#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

/// `_IOWR(0xAA, number, size)` of ioctl(2).
const fn request(number: u64, size: usize) -> u64 {
    3 << 30 | (size as u64) << 16 | 0xAA << 8 | number
}

const UFFDIO_API: u64 = request(0x3F, size_of::<Api>());
const UFFDIO_REGISTER: u64 = request(0, size_of::<Register>());
const UFFD_API: u64 = 0xAA;
const MODE_WP: u64 = 1 << 1;
const EVENTS: u64 = 1 << 2 | 1 << 3 | 1 << 6;
/// Faults inside system calls are not for us: what an unprivileged process may ask for.
const USER_MODE_ONLY: u32 = 1;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// Of a `struct uffd_msg`.
const MESSAGE_BYTES: usize = 32;

/// Reports that are kept for those who have not read them.
const KEPT: usize = 1024;

/// The descriptor and the thread that reads it.
struct Monitor {
    /// `None` while it ends.
    fd: Option<Arc<OwnedFd>>,
    log: Arc<Log>,
    stop: Arc<OwnedFd>,
    thread: Option<Worker>,
}

/// Locked while a monitor begins or ends, and while the process forks.
static MONITOR: Mutex<Weak<Monitor>> = Mutex::new(Weak::new());

fn lock() -> MutexGuard<'static, Weak<Monitor>> {
    MONITOR.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Monitor {
    fn start() -> Result<Self, SystemError> {
        if !fork::is_handled() {
            return Err(SystemError::of("pthread_atfork")(Errno::NOMEM));
        }
        let fd = Arc::new(open().map_err(SystemError::of("userfaultfd (vm.unprivileged_userfaultfd=1 allows it)"))?);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(SystemError::of("eventfd"))?);
        let log = Arc::new(Log::new());
        let (reader, told, stopped) = (Arc::clone(&fd), Arc::clone(&log), Arc::clone(&stop));
        let thread = Worker::spawn("weft-unmap", move || run(&reader, &told, &stopped))?;
        Ok(Self { fd: Some(fd), log, stop, thread: Some(thread) })
    }

    /// Whether this process has started it, and not one that has forked this one: the descriptor and the
    /// reports are of that one's memory.
    fn is_ours(&self) -> bool {
        self.thread.as_ref().is_some_and(Worker::is_ours)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The thread has the last of the descriptor, and closes it. From then on nobody who unmaps something
        // is waited for; till then it reads. Were it the other way round, what is freed here could wait for
        // ever.
        self.fd = None;
        let Some(thread) = self.thread.take() else { return };
        // In a forked child there is no thread to stop but the parent's.
        if thread.is_ours() {
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        }
        thread.join();
    }
}

/// A descriptor that reports what is unmapped, moved and discarded.
fn open() -> rustix::io::Result<OwnedFd> {
    let mut refused = Errno::NOSYS;
    for mode in [USER_MODE_ONLY, 0] {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(mode);
        // SAFETY: the descriptor is only used to watch memory for write protection, which changes nothing in it.
        let fd = match unsafe { rustix::mm::userfaultfd(flags) } {
            Ok(fd) => fd,
            Err(error) => {
                refused = error;
                continue;
            }
        };
        // Not UFFD_FEATURE_WP_ASYNC, by which memory of any file could be watched, and segments of shmget(2).
        let mut api = Api { api: UFFD_API, features: EVENTS, ioctls: 0 };
        // SAFETY: the request takes this structure.
        let result = unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_API, &raw mut api) };
        if result == 0 {
            return Ok(fd);
        }
        refused = Errno::INVAL;
    }
    Err(refused)
}

/// Whether all that is mapped there is private memory of no file.
fn is_private(start: u64, end: u64) -> bool {
    let Ok(mappings) = mappings() else { return false };
    let here = mappings.skip_while(|mapping| mapping.is_some_and(|mapping| mapping.span.end() <= start));
    let mut here = here.take_while(|mapping| mapping.is_none_or(|mapping| mapping.span.start < end));
    here.all(|mapping| mapping.is_some_and(|mapping| mapping.private))
}

/// What the thread does until it is told to stop.
fn run(fd: &OwnedFd, log: &Log, stop: &OwnedFd) {
    let mut messages = [0_u8; MESSAGE_BYTES * 16];
    loop {
        let mut polled = [PollFd::new(fd, PollFlags::IN), PollFd::new(stop, PollFlags::IN)];
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(_) => continue,
        }
        if !polled[1].revents().is_empty() {
            return;
        }
        log.round(|| {
            let len = rustix::io::read(fd, &mut messages[..]).unwrap_or(0);
            messages[..len].chunks_exact(MESSAGE_BYTES).filter_map(reported).for_each(|span| log.write(span));
        });
    }
}

/// The memory that a message says is gone.
fn reported(message: &[u8]) -> Option<Span> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (first, second, third) = (word(8)?, word(16)?, word(24)?);
    match *message.first()? {
        EVENT_REMAP => Some(Span { start: first, len: third }),
        EVENT_REMOVE | EVENT_UNMAP => Some(Span { start: first, len: second.saturating_sub(first) }),
        _ => None,
    }
}

/// One reader of the reports.
pub struct UnmapWatch {
    /// `None` while it ends.
    monitor: Option<Arc<Monitor>>,
    read: u64,
}

impl Drop for UnmapWatch {
    fn drop(&mut self) {
        let _slot = lock();
        self.monitor = None;
    }
}

impl UnmapWatch {
    /// Starts to observe; `None`, and a warning in the log, where the system does not let us.
    #[must_use]
    pub fn new() -> Option<Self> {
        let mut slot = lock();
        let monitor = match slot.upgrade().filter(|monitor| monitor.is_ours()) {
            Some(monitor) => monitor,
            None => match Monitor::start() {
                Ok(monitor) => {
                    let monitor = Arc::new(monitor);
                    *slot = Arc::downgrade(&monitor);
                    monitor
                }
                Err(error) => {
                    ::log::warn!(
                        "what is unmapped cannot be observed, so memory is deregistered as soon as it is not used (no lazy deregistration): {error}"
                    );
                    return None;
                }
            },
        };
        let read = monitor.log.count();
        Some(Self { monitor: Some(monitor), read })
    }

    /// Has the pages of `span` watched; false: the system makes no reports of them.
    #[must_use]
    pub fn watch(&self, span: Span) -> bool {
        let page = rustix::param::page_size() as u64;
        let start = span.start & !(page - 1);
        let end = span.end().saturating_add(page - 1) & !(page - 1);
        let fd = self.monitor.as_ref().filter(|monitor| monitor.is_ours()).and_then(|monitor| monitor.fd.as_ref());
        let Some(fd) = fd.filter(|_| is_private(start, end)) else { return false };
        let mut range = Register { start, len: end - start, mode: MODE_WP, ioctls: 0 };
        // SAFETY: the request takes this structure; it changes nothing in the memory.
        unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut range) == 0 }
    }

    /// What has been unmapped, one report at a time; perhaps more than was watched.
    pub fn unmapped(&mut self) -> Option<Span> {
        self.monitor.as_ref()?.log.next(&mut self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::log::EVERYTHING;
    use super::*;

    #[test]
    fn a_reader_gets_every_report_or_hears_that_it_did_not() {
        let log = Log::new();
        let (mut quick, mut late) = (0, 0);
        for n in 0..KEPT as u64 - 1 {
            log.write(Span { start: n, len: 1 });
            assert_eq!(log.next(&mut quick), Some(Span { start: n, len: 1 }));
            assert_eq!(log.next(&mut quick), None);
        }
        let mut keeps_up = late;
        assert_eq!(log.next(&mut keeps_up), Some(Span { start: 0, len: 1 }), "none is lost yet");
        log.write(Span { start: 7, len: 1 });
        assert_eq!(log.next(&mut late), Some(EVERYTHING), "the first is about to be overwritten");
        assert_eq!((log.next(&mut late), log.next(&mut quick)), (None, Some(Span { start: 7, len: 1 })));
    }

    #[test]
    fn messages_say_what_is_gone() {
        let message = |event: u8, words: [u64; 3]| {
            let mut bytes = [0; MESSAGE_BYTES];
            bytes[0] = event;
            for (at, word) in words.iter().enumerate() {
                bytes[8 * at + 8..8 * at + 16].copy_from_slice(&word.to_ne_bytes());
            }
            bytes
        };
        let gone = Some(Span { start: 0x1000, len: 0x2000 });
        assert_eq!(reported(&message(EVENT_UNMAP, [0x1000, 0x3000, 9])), gone);
        assert_eq!(reported(&message(EVENT_REMOVE, [0x1000, 0x3000, 9])), gone);
        assert_eq!(reported(&message(EVENT_REMAP, [0x1000, 0x9000, 0x2000])), gone);
        assert_eq!(reported(&message(0x12, [0x1000, 0x3000, 9])), None, "a page fault is none");
    }
}
