//! Descriptors of which a forked child has no copy.
//!
//! Place in the data flow: the devices' sockets are such ([`Unshared`]), and what is watched of an endpoint's
//! devices. The system ends a connection or a listener, gives a name back, and forgets what epoll(7) watches,
//! when the last copy of the descriptor is closed in whatever process: with one in a child nobody would hear
//! of the end of the process that has made it, and who watches an endpoint would hear of it for ever.
//!
//! In the child a socket that leads nowhere takes the place of each, so that what the child closes of all
//! that it has inherited is its own. The parent does not wait for that, and goes on while there still are
//! copies: what has to end at once is shut down before it is closed.
//!
//! Invariants: nobody forks between the making of a descriptor and its being on the list, nor between its
//! leaving the list and its end, for the list is locked meanwhile, and while somebody forks; the thread that
//! does may come to it nevertheless, in a handler of its client's that runs between ours. Nothing is done
//! under the lock that waits for others. What bypasses fork(3) and its handlers (vfork(2), posix_spawn(3))
//! runs another program next, for which all are closed (FD_CLOEXEC); till then it has copies, too.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};

use rustix::io::Errno;

/// Which numbers are those of [`Unshared`] descriptors.
static LIST: Mutex<Vec<bool>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread is at the list: a handler of a signal that forks meanwhile does so without it.
    static BUSY: Cell<bool> = const { Cell::new(false) };
    /// Forks that this thread has begun and not ended. There are several where a handler of a signal has come
    /// between our handlers of one.
    static FORKS: Cell<u32> = const { Cell::new(0) };
    /// Of the thread that forks, and of its copy.
    static HELD: Cell<Option<Held>> = const { Cell::new(None) };
}

/// The list, locked for a fork.
struct Held {
    list: ManuallyDrop<MutexGuard<'static, Vec<bool>>>,
    /// Whose descriptors are on it.
    owner: u32,
}

impl Held {
    /// In the child: puts something else in the place of its copies, if that was not done yet.
    fn let_go_of_copies(&mut self) {
        let me = std::process::id();
        if std::mem::replace(&mut self.owner, me) == me {
            return;
        }
        let mut nowhere = None;
        for (fd, listed) in (0..).zip(self.list.iter_mut()) {
            if std::mem::take(listed) {
                replace(fd, &mut nowhere);
            }
        }
    }
}

fn lock() -> MutexGuard<'static, Vec<bool>> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the system tell us of forks from now on. To be called as soon as the library is there: otherwise the
/// first endpoint does, and a child that another thread forks at that moment never gets further than there.
pub fn watch_forks() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        // SAFETY: functions without arguments, which the system forgets when the library is unloaded. It
        // fails only where memory is short, and then children have copies.
        unsafe { libc::pthread_atfork(Some(before), Some(after), Some(in_child)) };
    });
}

/// Does something while nobody else forks.
fn at_list<T>(work: impl FnOnce(&mut Vec<bool>) -> T) -> T {
    watch_forks();
    BUSY.set(true);
    compiler_fence(Ordering::SeqCst);
    let done = if let Some(mut held) = HELD.take() {
        held.let_go_of_copies();
        let done = work(&mut held.list);
        HELD.set(Some(held));
        done
    } else {
        work(&mut lock())
    };
    compiler_fence(Ordering::SeqCst);
    BUSY.set(false);
    done
}

/// A descriptor of this process only.
#[derive(Debug)]
pub struct Unshared(ManuallyDrop<OwnedFd>);

impl Unshared {
    /// Takes over what `make` makes, which must not wait.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn new(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
        at_list(|list| {
            let fd = make()?;
            let at = index(&fd);
            if list.len() <= at {
                list.resize(at + 1, false);
            }
            list[at] = true;
            Ok(Self(ManuallyDrop::new(fd)))
        })
    }

    /// Makes it one of which children have copies, for somebody whom its end may keep waiting.
    #[must_use]
    pub fn into_shared(self) -> OwnedFd {
        at_list(|list| list[index(&self.0)] = false);
        // SAFETY: never used again, nor dropped.
        unsafe { ManuallyDrop::take(&mut ManuallyDrop::new(self).0) }
    }
}

impl Drop for Unshared {
    fn drop(&mut self) {
        at_list(|list| {
            list[index(&self.0)] = false;
            // SAFETY: dropped here and nowhere else, and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.0) };
        });
    }
}

impl AsFd for Unshared {
    #[inline]
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Its place in the list. Descriptors are not negative.
#[allow(clippy::cast_sign_loss)]
fn index(fd: &OwnedFd) -> usize {
    fd.as_raw_fd() as usize
}

unsafe extern "C" fn before() {
    let forks = FORKS.get();
    // First, for a handler of a signal must not wait for what it has interrupted.
    FORKS.set(forks + 1);
    compiler_fence(Ordering::SeqCst);
    if forks == 0 && !BUSY.get() {
        HELD.set(Some(Held { list: ManuallyDrop::new(lock()), owner: std::process::id() }));
    }
}

/// A child is none of its parent, though both are called 1, each in a namespace of its own.
unsafe extern "C" fn in_child() {
    if let Some(held) = HELD.take() {
        HELD.set(Some(Held { owner: 0, ..held }));
    }
    // SAFETY: as the system calls it.
    unsafe { after() };
}

/// In the parent and in the child. One that was forked within another fork goes on with that.
unsafe extern "C" fn after() {
    let forks = FORKS.get();
    if let Some(mut held) = HELD.take() {
        held.let_go_of_copies();
        if forks > 1 {
            HELD.set(Some(held));
        } else {
            drop(ManuallyDrop::into_inner(held.list));
        }
    }
    compiler_fence(Ordering::SeqCst);
    FORKS.set(forks.saturating_sub(1));
}

/// Puts a copy of `nowhere` in a descriptor's place; makes it there if there is none yet. The number stays
/// free if the system has no memory left, or gives it no more since the limit has been lowered.
fn replace(fd: RawFd, nowhere: &mut Option<RawFd>) {
    if let Some(nowhere) = *nowhere {
        // SAFETY: the child's copy of a descriptor of ours, which nobody uses here.
        if unsafe { libc::dup3(nowhere, fd, libc::O_CLOEXEC) } < 0 {
            // SAFETY: as above.
            unsafe { libc::close(fd) };
        }
        return;
    }
    // SAFETY: as above. Its number is needed where descriptors have run out.
    unsafe { libc::close(fd) };
    // SAFETY: no memory is concerned.
    let mut made = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if made >= 0 && made != fd {
        let elsewhere = made;
        // SAFETY: the number has just become free.
        made = unsafe { libc::dup3(elsewhere, fd, libc::O_CLOEXEC) };
        // SAFETY: made above, and known to nobody else.
        unsafe { libc::close(elsewhere) };
    }
    *nowhere = (made >= 0).then_some(made);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
    use rustix::process::{Resource, Rlimit};

    use super::*;

    /// Gives the child's answer. `fork` makes it; it must not wait for anybody.
    fn in_child(fork: impl FnOnce() -> libc::pid_t, body: impl FnOnce() -> bool) -> bool {
        let child = fork();
        if child == 0 {
            // SAFETY: no memory is concerned.
            unsafe { libc::alarm(10) };
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!ok)) };
        }
        let mut status = 1;
        // SAFETY: a child of this test and a place for its status.
        (unsafe { libc::waitpid(child, &raw mut status, 0) }, status) == (child, 0)
    }

    fn fork() -> libc::pid_t {
        // Or the list may be somebody else's in the child, if this test is the first.
        watch_forks();
        // SAFETY: what the child does takes no lock of the harness.
        unsafe { libc::fork() }
    }

    /// As fork(3), but without its handlers: the child, where others may have been at work, must not need memory.
    fn fork_unheard() -> libc::pid_t {
        let (flags, none) = (libc::c_long::from(libc::SIGCHLD), 0_usize);
        // SAFETY: a copy of this process, which has this thread only.
        unsafe { libc::syscall(libc::SYS_clone, flags, none, none, none, none) as libc::pid_t }
    }

    /// One end of a pair of sockets.
    fn socket() -> (Unshared, OwnedFd) {
        let (flags, mut other) = (SocketFlags::CLOEXEC, None);
        let make = || {
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map(|(one, two)| (one, other = Some(two)).0)
        };
        (Unshared::new(make).unwrap(), other.unwrap())
    }

    fn leads_somewhere(fd: &Unshared) -> bool {
        rustix::io::write(fd, b"x") == Ok(1)
    }

    /// A handler of a signal forks, whatever it has interrupted.
    #[test]
    fn who_is_at_the_list_can_fork() {
        assert!(at_list(|_| in_child(fork, || true)));
    }

    /// A client's handlers run between ours if they were registered before.
    #[test]
    fn who_forks_can_be_at_the_list() {
        let (kept, _other) = socket();
        // The list must not grow in the child: another thread may have held the allocator's lock at the fork.
        at_list(|list| list.resize(list.len().max(4096), false));
        // SAFETY: as the system calls it.
        unsafe { before() };
        let (late, _other) = socket();
        let ok = in_child(fork_unheard, || {
            // SAFETY: of the child's own copy, which nobody else drops.
            drop(unsafe { std::ptr::read(&raw const kept) });
            let (own, _other) = socket();
            // SAFETY: as the system calls it.
            unsafe { after() };
            !leads_somewhere(&late) && leads_somewhere(&own) && leads_somewhere(&socket().0)
        });
        drop(late);
        // SAFETY: as the system calls it.
        unsafe { after() };
        assert!(ok && leads_somewhere(&kept));
        std::thread::spawn(socket).join().unwrap();
    }

    /// A handler of a signal forks between our handlers of another fork.
    #[test]
    fn who_forks_can_fork() {
        let (kept, _other) = socket();
        // SAFETY: as the system calls it.
        unsafe { before() };
        let ok = in_child(fork, || {
            let (own, _other) = socket();
            let alone = !leads_somewhere(&kept) && in_child(fork, || !leads_somewhere(&own));
            // SAFETY: as the system calls it.
            unsafe { after() };
            alone && leads_somewhere(&own) && leads_somewhere(&socket().0)
        });
        // SAFETY: as the system calls it.
        unsafe { after() };
        assert!(ok && leads_somewhere(&kept));
        std::thread::spawn(socket).join().unwrap();
    }

    /// A number that the system gives no more is a descriptor's still.
    #[test]
    fn no_copy_stays_above_the_limit() {
        const LIMIT: u64 = 500;
        let ok = in_child(fork, || {
            let other = socket();
            let high = |fd: &Unshared| rustix::io::fcntl_dupfd_cloexec(fd, LIMIT as i32);
            let [one, two] = [0; 2].map(|_| Unshared::new(|| high(&other.0)).unwrap());
            let limit = Rlimit { current: Some(LIMIT), maximum: rustix::process::getrlimit(Resource::Nofile).maximum };
            rustix::process::setrlimit(Resource::Nofile, limit).unwrap();
            leads_somewhere(&two) && in_child(fork, || [&one, &two, &other.0].iter().all(|fd| !leads_somewhere(fd)))
        });
        assert!(ok);
    }
}
