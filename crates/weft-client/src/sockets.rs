//! The TCP connections of this process to others, and whether bytes have arrived in any of them.
//!
//! Place in the data flow: beside it. `weft-lab bench overlap-coll` learns here that a message has arrived, before a
//! provider reads it.

use std::collections::HashSet;
use std::io;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

/// Sockets with new bytes that are reported together.
const EVENTS: u8 = 64;

/// TCP sockets of this process that are connected to other processes, in an epoll set. A closed socket leaves it.
#[derive(Debug)]
pub struct Sockets {
    set: OwnedFd,
    numbers: Vec<RawFd>,
}

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
        let numbers =
            std::fs::read_dir("/proc/self/fd")?.flatten().map(|entry| entry.file_name().to_str()?.parse().ok());
        let sockets: Vec<_> = numbers.flatten().filter_map(|fd: RawFd| Some((fd, ends(fd)?))).collect();
        let ours: HashSet<End> = sockets.iter().map(|(_, [ours, _])| *ours).collect();
        let others = sockets.iter().filter(|(_, [_, theirs])| !ours.contains(theirs));
        let numbers: Vec<RawFd> = others.map(|(fd, _)| *fd).collect();
        for &fd in &numbers {
            let mut event = libc::epoll_event { events: (libc::EPOLLIN | libc::EPOLLET).cast_unsigned(), u64: 0 };
            // SAFETY: the event is valid. The call accepts any number as a descriptor. A socket that was closed
            // meanwhile is left out.
            unsafe { libc::epoll_ctl(set.as_raw_fd(), libc::EPOLL_CTL_ADD, fd, &mut event) };
        }
        Ok(Self { set, numbers })
    }

    /// Whether bytes have arrived, or a socket has ended, since the last call. Bytes that were read before this call do
    /// not count.
    #[must_use]
    pub fn arrived(&self) -> bool {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS as usize];
        // SAFETY: there is room for the events.
        unsafe { libc::epoll_wait(self.set.as_raw_fd(), events.as_mut_ptr(), EVENTS.into(), 0) > 0 }
    }

    /// The bytes that have arrived in all of them, read or not. A socket that was closed meanwhile counts 0.
    #[must_use]
    pub fn received_bytes(&self) -> u64 {
        self.numbers.iter().map(|&fd| received_bytes(fd)).sum()
    }
}

/// See `tcpi_bytes_received` in tcp(7).
fn received_bytes(fd: RawFd) -> u64 {
    // SAFETY: numbers, for which zero is valid.
    let mut info: libc::tcp_info = unsafe { std::mem::zeroed() };
    let mut len = libc::socklen_t::try_from(size_of_val(&info)).unwrap_or(0);
    // SAFETY: the structure has the given length. The call accepts any number as a descriptor.
    unsafe { libc::getsockopt(fd, libc::IPPROTO_TCP, libc::TCP_INFO, (&raw mut info).cast(), &mut len) };
    info.tcpi_bytes_received
}

type End = (IpAddr, u16);

/// This side and the other side, if a descriptor is a connected IP socket.
fn ends(fd: RawFd) -> Option<[End; 2]> {
    // SAFETY: the wrapper is never dropped, so that it closes nothing. It only asks for addresses, which the kernel
    // refuses for anything but a connected socket.
    let socket = ManuallyDrop::new(unsafe { TcpStream::from_raw_fd(fd) });
    let end = |addr: SocketAddr| (addr.ip().to_canonical(), addr.port());
    Some([end(socket.local_addr().ok()?), end(socket.peer_addr().ok()?)])
}
