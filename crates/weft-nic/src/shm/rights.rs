//! Protection against descriptors that other users send.
//!
//! Place in the data flow: listeners refuse descriptors, and so do the sockets of handshakes until the kernel
//! has shown that the peer has the same user. Sockets of other users are closed here.
//!
//! A process that may connect to a Unix socket can put descriptors into it. Closing the socket closes these
//! descriptors, too, which may block for as long as the sender likes: a TCP socket with unsent data lingers
//! (SO_LINGER). Another user of the host could thus block a thread of this process. Since Linux 6.16 a socket
//! can refuse descriptors, and sockets accepted from such a listener inherit the setting. On older systems
//! another thread closes the connections of foreign users. A user who blocks that thread finds a bounded
//! number of sockets waiting for it. Then the listeners refuse callers, which connect by TCP instead
//! (`accept.rs`).
//!
//! Sources: unix(7), socket(7) SO_LINGER; SO_PASSRIGHTS in Linux 6.16.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};

use weft_os::Worker;

/// The value on all architectures with the generic numbers, among them x86-64, aarch64 and riscv64.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Maximum number of foreign users' sockets that wait to be closed.
const MOST: usize = 64;

/// The closing thread, and its queue.
static CLOSER: Mutex<Option<(Worker, SyncSender<OwnedFd>)>> = Mutex::new(None);

/// Sets whether a socket accepts descriptors. Returns false if the system has no such setting.
pub(super) fn allow(socket: BorrowedFd<'_>, yes: bool) -> bool {
    let value = libc::c_int::from(yes);
    const VALUE_BYTES: libc::socklen_t = 4;
    let from = (&raw const value).cast();
    // SAFETY: `from` points to a live integer of that size.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, from, VALUE_BYTES) == 0 }
}

/// Closes the socket of a foreign user and the descriptors in it, in another thread. Returns the socket if
/// that is not possible now.
pub(super) fn close_elsewhere(socket: OwnedFd) -> Result<(), OwnedFd> {
    let mut closer = CLOSER.lock().unwrap_or_else(PoisonError::into_inner);
    if closer.as_ref().is_none_or(|(thread, _)| !thread.is_ours()) {
        let (sender, receiver) = sync_channel::<OwnedFd>(MOST);
        let Ok(thread) = Worker::spawn("weft-dismiss", || receiver.into_iter().for_each(drop)) else {
            return Err(socket);
        };
        // A worker inherited from a parent process does not belong to this process.
        std::mem::forget(closer.replace((thread, sender)));
    }
    let Some((_, sender)) = &*closer else { return Err(socket) };
    sender.try_send(socket).map_err(|error| match error {
        TrySendError::Full(socket) | TrySendError::Disconnected(socket) => socket,
    })
}

/// Closes a socket like [`close_elsewhere`], when a device ends. If that is impossible, the descriptor is leaked
/// rather than waited for.
pub(super) fn close_or_leak(socket: OwnedFd) {
    if let Err(socket) = close_elsewhere(socket) {
        std::mem::forget(socket);
    }
}
