//! Descriptors of which a forked child has no copy.
//!
//! Place in the data flow: TCP's sockets are such ([`Unshared`]), and what is watched of an endpoint's devices. The system ends a connection or a
//! listener, and forgets what epoll(7) watches, when the last copy of the descriptor is closed in whatever process: with one in a child nobody
//! would hear of the end of the process that has made it, and who watches an endpoint would hear of it for ever.
//!
//! In the child a socket that leads nowhere takes the place of each, so that what the child closes of all that it has inherited is its own.
//!
//! Invariants: nobody forks between the making of a descriptor and its being on the list, nor between its leaving the list and its end, for the
//! list is locked meanwhile, and while somebody forks. Nothing is done under the lock that waits for others. What bypasses fork(3) and its
//! handlers (vfork(2), posix_spawn(3)) runs another program next, for which all are closed (FD_CLOEXEC).

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
    /// Of the thread that forks, and of its copy.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, Vec<bool>>>>> = const { Cell::new(None) };
}

fn lock() -> MutexGuard<'static, Vec<bool>> {
    LIST.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does something while nobody forks.
fn at_list<T>(work: impl FnOnce(&mut Vec<bool>) -> T) -> T {
    static HANDLED: Once = Once::new();
    HANDLED.call_once(|| {
        // SAFETY: functions without arguments, which the system forgets when the library is unloaded. It fails only where memory is
        // short, and then children have copies.
        unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    BUSY.set(true);
    compiler_fence(Ordering::SeqCst);
    let done = work(&mut lock());
    compiler_fence(Ordering::SeqCst);
    BUSY.set(false);
    done
}

/// A descriptor of this process only.
#[derive(Debug)]
pub(crate) struct Unshared(ManuallyDrop<OwnedFd>);

impl Unshared {
    /// Takes over what `make` makes, which must not wait.
    pub(crate) fn new(make: impl FnOnce() -> Result<OwnedFd, Errno>) -> Result<Self, Errno> {
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
    if !BUSY.get() {
        HELD.set(Some(ManuallyDrop::new(lock())));
    }
}

unsafe extern "C" fn in_parent() {
    drop(HELD.take().map(ManuallyDrop::into_inner));
}

unsafe extern "C" fn in_child() {
    let Some(mut list) = HELD.take().map(ManuallyDrop::into_inner) else { return };
    let mut nowhere = None;
    for (fd, listed) in (0..).zip(list.iter_mut()) {
        if std::mem::take(listed) {
            replace(fd, &mut nowhere);
        }
    }
}

/// Puts a copy of `nowhere` in a descriptor's place; makes it there if there is none yet. (Then the number stays free if the system has no
/// memory left.)
fn replace(fd: RawFd, nowhere: &mut Option<RawFd>) {
    if let Some(nowhere) = *nowhere {
        // SAFETY: the child's copy of a descriptor of ours, which nobody uses here.
        unsafe { libc::dup3(nowhere, fd, libc::O_CLOEXEC) };
        return;
    }
    // SAFETY: as above. Its number is needed where descriptors have run out.
    unsafe { libc::close(fd) };
    // SAFETY: no memory is concerned.
    let made = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    if made >= 0 && made != fd {
        // SAFETY: the number has just become free.
        unsafe { libc::dup3(made, fd, libc::O_CLOEXEC) };
        // SAFETY: made above, and known to nobody else.
        unsafe { libc::close(made) };
    }
    if made >= 0 {
        *nowhere = Some(fd);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A handler of a signal forks, whatever it has interrupted.
    #[test]
    fn who_is_at_the_list_can_fork() {
        // SAFETY: the child ends at once.
        let child = at_list(|_| unsafe { libc::fork() });
        if child == 0 {
            // SAFETY: no memory is concerned.
            unsafe { libc::_exit(0) };
        }
        let mut status = 1;
        // SAFETY: a child of this test and a place for its status.
        assert_eq!((unsafe { libc::waitpid(child, &raw mut status, 0) }, status), (child, 0));
    }
}
