//! Descriptors that nobody asked for.
//!
//! Place in the data flow: listeners, and the sockets of handshakes until the kernel has shown that their
//! other end is of our own user, refuse descriptors here; sockets of other users end here.
//!
//! Whoever may connect to a Unix socket can put descriptors into it, and whoever closes that socket closes
//! those, too. That may take as long as their maker likes: a TCP socket with unsent data lingers (SO_LINGER).
//! So that no other user of the host can hold up a thread of ours, his descriptors must not come in. Since
//! Linux 6.16 a socket can refuse them, and so do those that are made of a listener that does. On older
//! systems another thread closes what foreign users have connected; who held it up would find a bounded
//! number of sockets waiting for it, and then listeners that refuse callers, who go by TCP (`accept.rs`).
//!
//! Sources: unix(7), socket(7) SO_LINGER; SO_PASSRIGHTS in Linux 6.16.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Mutex, PoisonError};

use weft_os::Worker;

/// On all architectures that use the generic numbers, among them x86-64, aarch64 and riscv64.
const SO_PASSRIGHTS: libc::c_int = 83;
/// Sockets of foreign users that wait to be closed.
const MOST: usize = 64;

/// The thread that closes, and the way to it.
static CLOSER: Mutex<Option<(Worker, SyncSender<OwnedFd>)>> = Mutex::new(None);

/// Whether descriptors may come in by a socket. False: the system has no such setting.
pub(super) fn allow(socket: BorrowedFd<'_>, yes: bool) -> bool {
    let value = libc::c_int::from(yes);
    const VALUE_BYTES: libc::socklen_t = 4;
    let from = (&raw const value).cast();
    // SAFETY: `from` points to a live integer of that size.
    unsafe { libc::setsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, SO_PASSRIGHTS, from, VALUE_BYTES) == 0 }
}

/// Closes the socket of a foreign user, and what he has put into it, without waiting for it. Gives it back
/// where that is not possible now.
pub(super) fn dismiss(socket: OwnedFd) -> Result<(), OwnedFd> {
    let mut closer = CLOSER.lock().unwrap_or_else(PoisonError::into_inner);
    if closer.as_ref().is_none_or(|(thread, _)| !thread.is_ours()) {
        let (sender, receiver) = sync_channel::<OwnedFd>(MOST);
        let Ok(thread) = Worker::spawn("weft-dismiss", || receiver.into_iter().for_each(drop)) else {
            return Err(socket);
        };
        // What a parent has left here is not ours to close.
        std::mem::forget(closer.replace((thread, sender)));
    }
    let Some((_, sender)) = &*closer else { return Err(socket) };
    sender.try_send(socket).map_err(|error| match error {
        TrySendError::Full(socket) | TrySendError::Disconnected(socket) => socket,
    })
}

/// The same at the end of a device: a descriptor too many is better than to wait.
pub(super) fn dismiss_at_last(socket: OwnedFd) {
    if let Err(socket) = dismiss(socket) {
        std::mem::forget(socket);
    }
}
