//! Descriptors that forked children do not inherit.
//!
//! Place in the data flow: the sockets of the devices are [`ForkClosedFd`]. The kernel keeps a connection, a
//! listener, a name and an epoll(7) entry until the last copy of the descriptor is closed, in any process. If
//! a child kept a copy, peers would not detect the end of the parent, and epoll entries would stay
//! indefinitely.
//!
//! In the child, an unconnected socket replaces each of these descriptors. The child can then close every
//! descriptor that it inherited without effect on the parent. The parent does not wait for the replacement
//! and continues while copies still exist. Connections that must end at once are therefore shut down before
//! they are closed.
//!
//! Invariants: the list is locked during a fork. It is also locked from the creation of a descriptor to its
//! entry in the list, and from its removal to its close. No other thread can therefore fork in between. The
//! forking thread itself may use the list in an atfork handler of the client that runs between our handlers.
//! No operation under the lock waits for another thread. Callers that bypass fork(3) and its handlers
//! (vfork(2), posix_spawn(3)) execute another program next, which closes all descriptors (FD_CLOEXEC). Copies
//! exist until then.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::io::Errno;

use crate::descriptors;

/// The descriptor numbers that belong to [`ForkClosedFd`] descriptors.
static LIST: Mutex<Vec<bool>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread uses the list. A signal handler that forks meanwhile does not take the lock.
    static IN_USE: Cell<bool> = const { Cell::new(false) };
    /// Forks that this thread has begun and not finished. The count exceeds 1 if a signal handler forks
    /// between our handlers of another fork.
    static FORKS: Cell<u32> = const { Cell::new(0) };
    /// The guard of the forking thread; the child has its copy.
    static HELD: Cell<Option<LockedList>> = const { Cell::new(None) };
}

/// The list, locked for a fork.
struct LockedList {
    list: ManuallyDrop<MutexGuard<'static, Vec<bool>>>,
    /// The process whose descriptors are in the list.
    owner: u32,
}

impl LockedList {
    /// In the child: replaces the inherited copies, unless that is already done.
    fn replace_copies(&mut self) {
        let me = std::process::id();
        if std::mem::replace(&mut self.owner, me) == me {
            return;
        }
        let mut unconnected = None;
        for (fd, listed) in (0..).zip(self.list.iter_mut()) {
            if std::mem::take(listed) {
                replace(fd, &mut unconnected);
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Vec<bool>> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers the fork handlers. Call this when the library is loaded. Otherwise the first endpoint registers
/// them, and a child forked by another thread at that moment blocks on the first use of the list.
pub fn watch_forks() {
    static REGISTER: Once = Once::new();
    REGISTER.call_once(|| {
        // SAFETY: the functions take no arguments, and the C library removes them when this library is
        // unloaded. The call fails only if memory is exhausted; children then keep copies.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    });
}

/// Calls `work` with the list while no other thread can fork.
fn with_list<T>(work: impl FnOnce(&mut Vec<bool>) -> T) -> T {
    watch_forks();
    IN_USE.set(true);
    compiler_fence(Ordering::SeqCst);
    let done = if let Some(mut held) = HELD.take() {
        held.replace_copies();
        let done = work(&mut held.list);
        HELD.set(Some(held));
        done
    } else {
        work(&mut lock())
    };
    compiler_fence(Ordering::SeqCst);
    IN_USE.set(false);
    done
}

/// A descriptor that forked children do not inherit.
#[derive(Debug)]
pub struct ForkClosedFd(ManuallyDrop<OwnedFd>);

impl ForkClosedFd {
    /// Takes ownership of the descriptor that `make` returns. `make` must not block. It is called again if the process
    /// had no descriptors left and more were allowed.
    ///
    /// # Errors
    /// The errors of `make`.
    pub fn new(make: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        with_list(|list| {
            let fd = descriptors::with_room(make)?;
            let at = index(&fd);
            if list.len() <= at {
                list.resize(at + 1, false);
            }
            list[at] = true;
            Ok(Self(ManuallyDrop::new(fd)))
        })
    }

    /// Returns a descriptor that children inherit, for an owner whose close may block.
    #[must_use]
    pub fn into_shared(self) -> OwnedFd {
        with_list(|list| list[index(&self.0)] = false);
        // SAFETY: `self` is not used again, and is not dropped.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }
    }
}

impl Drop for ForkClosedFd {
    fn drop(&mut self) {
        with_list(|list| {
            list[index(&self.0)] = false;
            // SAFETY: the descriptor is dropped only here, and is not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}

impl AsFd for ForkClosedFd {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The descriptor's position in the list. Descriptors are not negative.
#[allow(clippy::cast_sign_loss)]
fn index(fd: &OwnedFd) -> usize {
    fd.as_raw_fd() as usize
}

unsafe extern "C" fn before() {
    let forks = FORKS.get();
    // This comes first: a signal handler must not wait for the code that it interrupted.
    FORKS.set(forks + 1);
    compiler_fence(Ordering::SeqCst);
    if forks == 0 && !IN_USE.get() {
        HELD.set(Some(LockedList { list: ManuallyDrop::new(lock()), owner: std::process::id() }));
    }
}

/// The owner becomes 0, because process ids do not identify the child: parent and child may both be process
/// 1, each in its own namespace.
unsafe extern "C" fn in_child() {
    if let Some(held) = HELD.take() {
        HELD.set(Some(LockedList { owner: 0, ..held }));
    }
    // SAFETY: called by the child, in the same position as `after` in the parent.
    unsafe { after() };
}

/// Runs in the parent and in the child. A fork inside another fork leaves the list locked for the outer one.
unsafe extern "C" fn after() {
    let forks = FORKS.get();
    if let Some(mut held) = HELD.take() {
        held.replace_copies();
        if forks > 1 {
            HELD.set(Some(held));
        } else {
            drop(ManuallyDrop::into_inner(held.list));
        }
    }
    compiler_fence(Ordering::SeqCst);
    FORKS.set(forks.saturating_sub(1));
}

/// Replaces the descriptor by a copy of `unconnected`; the first call creates `unconnected`. The number stays free if
/// the kernel has no memory left, or if the limit of descriptors was lowered below it.
fn replace(fd: RawFd, unconnected: &mut Option<RawFd>) {
    if let Some(unconnected) = *unconnected {
        // SAFETY: the child's copy of our descriptor, which the child does not use.
        if unsafe { libc::dup3(unconnected, fd, libc::O_CLOEXEC) } < 0 {
            // SAFETY: as above; the number is closed once.
            unsafe { libc::close(fd) };
        }
        return;
    }
    // SAFETY: as above. It is closed first because its number may be the only free one.
    unsafe { libc::close(fd) };
    // SAFETY: the call accesses no memory.
    let mut made = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if made >= 0 && made != fd {
        let temporary = made;
        // SAFETY: `fd` was closed above, so the number is free.
        made = unsafe { libc::dup3(temporary, fd, libc::O_CLOEXEC) };
        // SAFETY: created above, with no other owner.
        unsafe { libc::close(temporary) };
    }
    *unconnected = (made >= 0).then_some(made);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Resource, Rlimit};

    use super::*;

    /// Runs `body` in a child made by `fork`, and returns its result. `body` must not wait for another
    /// thread.
    fn in_child(fork: impl FnOnce() -> libc::pid_t, body: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            // SAFETY: the call accesses no memory.
            unsafe { libc::alarm(10) };
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 1;
        // SAFETY: a child of this test, and a valid place for its status.
        (unsafe { libc::waitpid(child, &raw mut status, 0) }, status) == (child, 0)
    }

    fn fork() -> libc::pid_t {
        // Otherwise another thread's lock on the list could be inherited, if this test runs first.
        watch_forks();
        // SAFETY: the child takes no lock of the test harness.
        unsafe { libc::fork() }
    }

    /// Forks without calling the atfork handlers. The child must not allocate, because another thread may
    /// hold the allocator's lock.
    fn fork_without_handlers() -> libc::pid_t {
        let (flags, none) = (libc::c_long::from(libc::SIGCHLD), 0_usize);
        // SAFETY: copies this process with the calling thread only.
        unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) as libc::pid_t }
    }

    /// One end of a pair of sockets.
    fn socket() -> (ForkClosedFd, OwnedFd) {
        let (flags, mut other) = (SocketFlags::CLOEXEC, None);
        let make = || {
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map(|(one, two)| (one, other = Some(two)).0)
        };
        (ForkClosedFd::new(make).unwrap(), other.unwrap())
    }

    fn is_connected(fd: &ForkClosedFd) -> bool {
        rustix::io::write(fd, b"x") == Ok(1)
    }

    /// A signal handler may fork at any point.
    #[test]
    fn a_thread_that_uses_the_list_may_fork() {
        assert!(with_list(|_| in_child(fork, || true)));
    }

    /// The client's atfork handlers run between ours if they were registered earlier.
    #[test]
    fn a_forking_thread_may_use_the_list() {
        let (kept, _other) = socket();
        // The list must not grow in the child: another thread may have held the allocator's lock at the fork.
        with_list(|list| list.resize(list.len().max(4096), false));
        // SAFETY: in the position of the C library's call.
        unsafe { before() };
        let (late, _other) = socket();
        let ok = in_child(fork_without_handlers, || {
            // SAFETY: drops the child's own copy, once.
            drop(unsafe { std::ptr::read(&raw const kept) });
            let (own, _other) = socket();
            // SAFETY: in the position of the C library's call.
            unsafe { after() };
            !is_connected(&late) && is_connected(&own) && is_connected(&socket().0)
        });
        drop(late);
        // SAFETY: in the position of the C library's call.
        unsafe { after() };
        assert!(ok && is_connected(&kept));
        std::thread::spawn(socket).join().unwrap();
    }

    /// A handler of a signal forks between our handlers of another fork.
    #[test]
    fn a_fork_handler_may_fork() {
        let (kept, _other) = socket();
        // SAFETY: in the position of the C library's call.
        unsafe { before() };
        let ok = in_child(fork, || {
            let (own, _other) = socket();
            let alone = !is_connected(&kept) && in_child(fork, || !is_connected(&own));
            // SAFETY: in the position of the C library's call.
            unsafe { after() };
            alone && is_connected(&own) && is_connected(&socket().0)
        });
        // SAFETY: in the position of the C library's call.
        unsafe { after() };
        assert!(ok && is_connected(&kept));
        std::thread::spawn(socket).join().unwrap();
    }

    /// A descriptor above a lowered limit stays open, but its number cannot be assigned again.
    #[test]
    fn no_copy_stays_above_the_limit() {
        const LIMIT: u64 = 500;
        let ok = in_child(fork, || {
            let other = socket();
            let high = |fd: &ForkClosedFd| rustix::io::fcntl_dupfd_cloexec(fd, LIMIT as i32);
            let [one, two] = [0; 2].map(|_| ForkClosedFd::new(|| high(&other.0)).unwrap());
            let limit = Rlimit { current: Some(LIMIT), maximum: rustix::process::getrlimit(Resource::Nofile).maximum };
            rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
            is_connected(&two) && in_child(fork, || [&one, &two, &other.0].iter().all(|fd| !is_connected(fd)))
        });
        assert!(ok);
    }
}
