//! Reports of unmapped memory, from userfaultfd(2), so that no device registration outlives its mapping.
//!
//! Place in the data flow: the `Registrar` of a device that demands registration asks [`UnmapWatch`] to watch
//! memory, and reads the unmapped ranges. Neither shm nor tcp needs it. A process that uses only these has
//! neither the descriptor nor the thread.
//!
//! A process has one descriptor, because memory can be watched through one only. It has one thread that reads
//! the descriptor, because a call that unmaps watched memory blocks in the kernel until the report is read.
//! Memory is watched for write protection, which is never set, so no page faults have to be served. Only
//! private anonymous memory can be watched, and only if no other userfaultfd of the process watches it;
//! [`UnmapWatch::watch`] returns false otherwise. The kernel reports neither shmdt(2) nor ranges that are
//! removed from memory files by ftruncate(2) or fallocate(2).
//!
//! Forked children close the descriptor (`fork.rs`). If a copy stayed open in any process, calls that unmap
//! watched memory would wait for a reader after the thread has ended.
//!
//! Invariant: the thread does not allocate, free, or take a lock. Each of these may unmap memory, and the
//! thread would wait for itself. Reports therefore go into a ring of fixed size ([`Log`]).

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

/// Imports of the file that the model checker also compiles.
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
/// Faults inside system calls are not reported: unprivileged processes may open only such a descriptor.
const USER_MODE_ONLY: u32 = 1;
const EVENT_REMAP: u8 = 0x14;
const EVENT_REMOVE: u8 = 0x15;
const EVENT_UNMAP: u8 = 0x16;
/// The size of a `struct uffd_msg`.
const MESSAGE_BYTES: usize = 32;

/// Capacity of the ring in reports.
const CAPACITY: usize = 1024;

/// The descriptor, and the thread that reads it.
struct Monitor {
    /// `None` during the drop.
    fd: Option<Arc<OwnedFd>>,
    log: Arc<Log>,
    stop: Arc<OwnedFd>,
    thread: Option<Worker>,
}

/// The monitor of the process. Locked while a monitor starts or ends, and during a fork.
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
        let (reader, written, stopped) = (Arc::clone(&fd), Arc::clone(&log), Arc::clone(&stop));
        let thread = Worker::spawn("weft-unmap", move || run(&reader, &written, &stopped))?;
        Ok(Self { fd: Some(fd), log, stop, thread: Some(thread) })
    }

    /// Whether this process started the monitor. An inherited descriptor reports the memory of the parent.
    fn is_ours(&self) -> bool {
        self.thread.as_ref().is_some_and(Worker::is_ours)
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // The thread then holds the last reference, and closes the descriptor when it ends. Calls that unmap
        // memory wait for no report after that; until then the thread reads the reports. In the opposite
        // order, an unmap by this drop could block indefinitely.
        self.fd = None;
        let Some(thread) = self.thread.take() else { return };
        // A forked child has no such thread, and the eventfd is shared with the parent.
        if thread.is_ours() {
            let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes());
        }
        thread.join();
    }
}

/// Opens a descriptor that reports memory that is unmapped, moved, or discarded.
fn open() -> rustix::io::Result<OwnedFd> {
    let mut refused = Errno::NOSYS;
    for mode in [USER_MODE_ONLY, 0] {
        let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK | UserfaultfdFlags::from_bits_retain(mode);
        // SAFETY: the descriptor only watches memory for write protection, which does not change the memory.
        let fd = match unsafe { rustix::mm::userfaultfd(flags) } {
            Ok(fd) => fd,
            Err(error) => {
                refused = error;
                continue;
            }
        };
        // UFFD_FEATURE_WP_ASYNC is not requested: with it, memory of files and of shmget(2) could be watched,
        // whose unmapping is not reported.
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

/// Whether all mappings in the range are private and anonymous.
fn is_private(start: u64, end: u64) -> bool {
    let Ok(mappings) = mappings() else { return false };
    let here = mappings.skip_while(|mapping| mapping.is_some_and(|mapping| mapping.span.end() <= start));
    let mut here = here.take_while(|mapping| mapping.is_none_or(|mapping| mapping.span.start < end));
    here.all(|mapping| mapping.is_some_and(|mapping| mapping.private))
}

/// The body of the thread; it returns when `stop` becomes readable.
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
            messages[..len].chunks_exact(MESSAGE_BYTES).filter_map(decode).for_each(|span| log.write(span));
        });
    }
}

/// The range that a message reports as gone.
fn decode(message: &[u8]) -> Option<Span> {
    let word = |at: usize| message.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
    let (first, second, third) = (word(8)?, word(16)?, word(24)?);
    match *message.first()? {
        EVENT_REMAP => Some(Span { start: first, len: third }),
        EVENT_REMOVE | EVENT_UNMAP => Some(Span { start: first, len: second.saturating_sub(first) }),
        _ => None,
    }
}

/// A reader of the reports, with its own position.
pub struct UnmapWatch {
    /// `None` during the drop.
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
    /// Starts to observe. Returns `None`, and logs a warning, if the system refuses.
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
                        "unmapping of memory cannot be observed, so memory is deregistered as soon as it is unused (no lazy deregistration): {error}"
                    );
                    return None;
                }
            },
        };
        let read = monitor.log.count();
        Some(Self { monitor: Some(monitor), read })
    }

    /// Watches the pages of `span`. Returns false if the kernel does not report their unmapping.
    #[must_use]
    pub fn watch(&self, span: Span) -> bool {
        let page = rustix::param::page_size() as u64;
        let start = span.start & !(page - 1);
        let end = span.end().saturating_add(page - 1) & !(page - 1);
        let fd = self.monitor.as_ref().filter(|monitor| monitor.is_ours()).and_then(|monitor| monitor.fd.as_ref());
        let Some(fd) = fd.filter(|_| is_private(start, end)) else { return false };
        let mut range = Register { start, len: end - start, mode: MODE_WP, ioctls: 0 };
        // SAFETY: the request takes this structure; it does not change the memory.
        unsafe { libc::ioctl(fd.as_raw_fd(), UFFDIO_REGISTER, &raw mut range) == 0 }
    }

    /// The next report of unmapped memory. Reports may cover memory that this reader did not watch.
    pub fn unmapped(&mut self) -> Option<Span> {
        self.monitor.as_ref()?.log.next(&mut self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::log::ALL_MEMORY;
    use super::*;

    #[test]
    fn a_reader_gets_every_report_or_an_overrun_report() {
        let log = Log::new();
        let (mut quick, mut late) = (0, 0);
        for n in 0..CAPACITY as u64 - 1 {
            log.write(Span { start: n, len: 1 });
            assert_eq!(log.next(&mut quick), Some(Span { start: n, len: 1 }));
            assert_eq!(log.next(&mut quick), None);
        }
        let mut keeps_up = late;
        assert_eq!(log.next(&mut keeps_up), Some(Span { start: 0, len: 1 }), "none is lost yet");
        log.write(Span { start: 7, len: 1 });
        assert_eq!(log.next(&mut late), Some(ALL_MEMORY), "the first is about to be overwritten");
        assert_eq!((log.next(&mut late), log.next(&mut quick)), (None, Some(Span { start: 7, len: 1 })));
    }

    #[test]
    fn messages_are_decoded() {
        let message = |event: u8, words: [u64; 3]| {
            let mut bytes = [0; MESSAGE_BYTES];
            bytes[0] = event;
            for (at, word) in words.iter().enumerate() {
                bytes[8 * at + 8..8 * at + 16].copy_from_slice(&word.to_ne_bytes());
            }
            bytes
        };
        let gone = Some(Span { start: 0x1000, len: 0x2000 });
        assert_eq!(decode(&message(EVENT_UNMAP, [0x1000, 0x3000, 9])), gone);
        assert_eq!(decode(&message(EVENT_REMOVE, [0x1000, 0x3000, 9])), gone);
        assert_eq!(decode(&message(EVENT_REMAP, [0x1000, 0x9000, 0x2000])), gone);
        assert_eq!(decode(&message(0x12, [0x1000, 0x3000, 9])), None, "a page fault is not a report");
    }
}
