//! The TCP connections of this process, and whether bytes have arrived in any of them.
//!
//! Place in the data flow: beside it. `weft bench overlap-coll` learns here that a message has arrived, before a
//! provider reads it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Sockets with new bytes that are reported together.
const EVENTS: u8 = 64;

/// Connected TCP sockets of this process, in an epoll set. A socket that is closed leaves it.
#[derive(Debug)]
pub struct Sockets(OwnedFd);

impl Sockets {
    /// The sockets that are connected now.
    pub fn find() -> io::Result<Self> {
        // SAFETY: the call takes no pointer.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and belongs to nothing else.
        let set = unsafe { OwnedFd::from_raw_fd(set) };
        for entry in std::fs::read_dir("/proc/self/fd")?.flatten() {
            let number = entry.file_name().to_str().and_then(|name| name.parse().ok());
            let Some(fd) = number.filter(|fd| is_connected(*fd)) else { continue };
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
            // SAFETY: the event is valid. The call accepts any number as a descriptor. A socket that was closed
            // meanwhile is left out.
            unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        }
        Ok(Self(set))
    }

    /// Whether bytes have arrived, or a socket has ended, since the last call. Bytes that were read before this call do
    /// not count.
    #[must_use]
    pub fn arrived(&self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS as usize];
        // SAFETY: there is room for the events.
        unsafe { libc::epoll_wait(self.0.as_raw_fd(), events.as_mut_ptr(), EVENTS.into(), 0) > 0 }
    }
}

/// Whether a descriptor is a connected IP socket.
fn is_connected(fd: libc::c_int) -> bool {
    // SAFETY: numbers, for which zero is valid.
    let mut address: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or(0);
    // SAFETY: the address has the given length. The call accepts any number as a descriptor.
    let result = unsafe { libc::getpeername(fd, (&raw mut address).cast(), &mut len) };
    result == 0 && [libc::AF_INET, libc::AF_INET6].contains(&libc::c_int::from(address.ss_family))
}
