//! Fork handlers that close the descriptor in forked children.
//!
//! Place in the data flow: `unmap.rs` registers the handlers before it opens a descriptor; fork(3) calls
//! them.
//!
//! Invariants: the lock of [`super::MONITOR`] is held across a fork. A monitor opens and closes its
//! descriptor under the same lock. No fork can therefore happen between the opening of a descriptor and its
//! entry in `MONITOR`, nor during the close. The reading thread takes no lock, so the forking thread may
//! unmap memory meanwhile. Callers that bypass fork(3) and its handlers (vfork(2), posix_spawn(3)) execute
//! another program next, which closes the descriptor as well.

use std::cell::Cell;
use std::os::fd::AsRawFd;
use std::sync::{LazyLock, MutexGuard, Weak};

use super::{Monitor, lock};

static HANDLED: LazyLock<bool> = LazyLock::new(|| {
    // SAFETY: the functions take no arguments, and the C library removes them when this library is unloaded.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) == 0 }
});

thread_local! {
    /// The guard of the forking thread; the child has its copy.
    static HELD: Cell<Option<MutexGuard<'static, Weak<Monitor>>>> = const { Cell::new(None) };
}

/// Whether the fork handlers are registered.
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
        // SAFETY: only the thread closes it otherwise, which the child does not have; the child does not use
        // it.
        unsafe { libc::close(fd.as_raw_fd()) };
    }
}
