//! A forked child gets no copy of the descriptor.
//!
//! Place in the data flow: `unmap.rs` has the handlers put in before it opens a descriptor; fork(3) calls them.
//!
//! Invariants: nobody forks between the opening of a descriptor and its being in [`super::MONITOR`], nor
//! while it is closed, for the lock is held from before the fork until after it. The thread that reads takes
//! no lock, so whoever forks may unmap memory meanwhile. What bypasses fork(3) and its handlers (vfork(2),
//! posix_spawn(3)) runs another program next, for which the descriptor is closed as well.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::{LazyLock, MutexGuard, Weak};

use super::{Monitor, lock};

static HANDLED: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: functions without arguments, which the system forgets when the library is unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 }
});

thread_local! {
    /// Of the thread that forks, and of its copy.
    static HELD: Cell<Option<MutexGuard<'static, Weak<Monitor>>>> = const { Cell::new(None) };
}

/// Whether forks are seen.
pub(super) fn is_handled() -> bool {
    *HANDLED
}

unsafe extern "C" fn before() {
    let slot = lock();
    let _ = HELD.try_with(|held| held.set(Some(slot)));
}

unsafe extern "C" fn in_parent() {
    drop(HELD.try_with(Cell::take));
}

unsafe extern "C" fn in_child() {
    let Ok(Some(mut slot)) = HELD.try_with(Cell::take) else { return };
    let monitor = std::mem::take(&mut *slot).upgrade();
    if let Some(fd) = monitor.as_ref().and_then(|monitor| monitor.fd.as_ref()) {
        // SAFETY: the thread would close it, which the child does not have; nobody uses it here.
        unsafe { libc::close(fd.as_raw_fd()) };
    }
}
