//! The system calls of the TCP device: vectored I/O on client memory, socket options, the coarse clock.
//!
//! Place in the data flow: between [`super::tx`]/[`super::rx`] and the kernel. The kernel gets client memory as
//! addresses ([`Iov`]), never as slices, because the client may access it at the same time.
//!
//! Errors are [`Errno`]; "would block" and "interrupted" are both [`Errno::AGAIN`]. Times are milliseconds of
//! CLOCK_MONOTONIC_COARSE, which needs no system call and advances every 1 to 10 ms.
//!
//! Calls that move data enter the kernel directly. libc's functions are cancellation points (pthreads(7)), at which a
//! client's thread must not end while it holds weft's locks. They also cost 60 more instructions once a process has two
//! threads.
//!
//! All access to other hosts and to the clock is in this file, so that tests can replace the kernel with a simulated
//! network (`tcp/faults`).

use std::marker::PhantomData;
use std::mem::MaybeUninit;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustix::time::{ClockId, clock_gettime};
use weft_engine::mem::Iov;
use weft_os::ForkClosedFd;

#[cfg(test)]
use super::faults::net;
use super::{EVENTS, TcpConfig};

/// Limit of connections that wait to be accepted; the kernel reduces it to net.core.somaxconn.
const BACKLOG: i32 = 4096;
/// Limit of pieces in one vectored call.
pub(super) const PIECES: usize = 24;

/// Space for the events of one epoll call. It is on the heap because the client's stack may be small.
pub(super) struct Events(Box<[MaybeUninit<epoll::Event>; EVENTS]>);

// SAFETY: an event holds a link's number, which is a pointer only by type. The kernel writes it only for the reader.
unsafe impl Send for Events {}

impl Events {
    /// Space without events.
    #[cold]
    pub(super) fn new() -> Self {
        Self(Box::new([MaybeUninit::uninit(); EVENTS]))
    }

    /// The descriptors that are ready now.
    #[inline]
    pub(super) fn ready(&mut self, epoll: impl AsFd) -> Result<&[epoll::Event], Errno> {
        const NOW: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
        epoll::wait(epoll, &mut self.0[..], Some(&NOW)).map(|(events, _)| &*events)
    }
}

/// The pieces of one vectored call, in order. Each stays valid for `'a`, or by the contract of [`Iov::new`].
pub(super) struct Pieces<'a> {
    list: [MaybeUninit<libc::iovec>; PIECES],
    count: usize,
    bytes: usize,
    life: PhantomData<&'a mut [u8]>,
}

impl<'a> Pieces<'a> {
    #[inline]
    pub(super) fn new() -> Self {
        Self { list: [const { MaybeUninit::uninit() }; PIECES], count: 0, bytes: 0, life: PhantomData }
    }

    /// Adds bytes to send. They must fit: callers bound their number of pieces below [`PIECES`].
    #[inline]
    pub(super) fn bytes(&mut self, bytes: &'a [u8]) {
        self.add(bytes.as_ptr().cast_mut(), bytes.len());
    }

    /// Adds a buffer to receive into.
    #[inline]
    pub(super) fn buffer(&mut self, buffer: &'a mut [u8]) {
        self.add(buffer.as_mut_ptr(), buffer.len());
    }

    /// Adds pieces of client memory while more than `reserve` places are free. Returns whether all were added.
    #[inline]
    pub(super) fn client(&mut self, iov: &[Iov], reserve: usize) -> bool {
        for piece in iov {
            if self.count + reserve >= PIECES {
                return false;
            }
            self.add(piece.as_ptr(), piece.len());
        }
        true
    }

    /// Appends a copy of at most `len` bytes of the pieces, starting at byte `skip`, to a queue.
    pub(super) fn append_to(&self, mut skip: usize, mut len: usize, queue: &mut Vec<u8>) {
        for piece in self.iter() {
            let part = piece.slice(skip, len);
            append(queue, &[part]);
            len -= part.len();
            skip = skip.saturating_sub(piece.len());
        }
    }

    /// Copies bytes to the pieces, starting at byte `skip`. Returns the number of bytes copied.
    pub(super) fn write(&mut self, mut skip: usize, bytes: &[u8]) -> usize {
        let mut n = 0;
        for piece in self.iter() {
            n += piece.slice(skip, usize::MAX).write(&bytes[n..]);
            skip = skip.saturating_sub(piece.len());
        }
        n
    }

    fn iter(&self) -> impl Iterator<Item = Iov> {
        self.list[..self.count].iter().map(|piece| {
            // SAFETY: the first `count` entries are initialised.
            let piece = unsafe { piece.assume_init() };
            // SAFETY: each piece is readable, and writable if it was added to be filled, for as long as `self` lives.
            unsafe { Iov::new(piece.iov_base.cast(), piece.iov_len) }
        })
    }

    /// The number of pieces that can still be added.
    #[inline]
    pub(super) fn free(&self) -> usize {
        PIECES - self.count
    }

    /// The sum of the lengths in bytes.
    #[inline]
    pub(super) fn len(&self) -> usize {
        self.bytes
    }

    #[inline]
    fn add(&mut self, base: *mut u8, len: usize) {
        if len > 0 {
            self.list[self.count].write(libc::iovec { iov_base: base.cast(), iov_len: len });
            self.count += 1;
            self.bytes += len;
        }
    }
}

/// Sends the pieces. Returns the number of bytes that the kernel accepted.
#[inline]
pub(super) fn send(fd: BorrowedFd<'_>, pieces: &Pieces<'_>) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::send(fd, pieces) {
        return outcome;
    }
    // SAFETY: an all-zero msghdr is a valid one: no name, no pieces, no control data.
    let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
    header.msg_iov = pieces.list.as_ptr().cast_mut().cast();
    header.msg_iovlen = pieces.count;
    // SAFETY: the first `count` entries are initialised; each describes memory that is readable now, by the
    // lifetime of `pieces` or by the contract of `Iov::new`. The kernel writes to none of it.
    let n = unsafe {
        libc::syscall(libc::SYS_sendmsg, fd.as_raw_fd(), &raw const header, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
    };
    outcome(n)
}

/// Sends one buffer. It is cheaper than [`send`].
#[inline]
pub(super) fn send_one(fd: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::send_one(fd, bytes) {
        return outcome;
    }
    retried(rustix::net::send(fd, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT))
}

/// Receives into the pieces. Returns the number of bytes; 0 is the end of the stream.
#[inline]
pub(super) fn receive(fd: BorrowedFd<'_>, pieces: &mut Pieces<'_>) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::receive(fd, pieces) {
        return outcome;
    }
    // `count` is at most `PIECES`.
    #[allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap)]
    let count = pieces.count as libc::c_int;
    // SAFETY: the first `count` entries are initialised; each describes memory that is writable now, exclusively for
    // buffers by their lifetime, and by the contract of `Iov::new` for client memory. The socket does not block.
    let n = unsafe { libc::syscall(libc::SYS_readv, fd.as_raw_fd(), pieces.list.as_ptr(), count) };
    outcome(n)
}

/// Receives into a buffer from its start. Returns the number of bytes; 0 is the end of the stream.
#[inline]
pub(super) fn receive_one(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Result<usize, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::receive_one(fd, buffer) {
        return outcome;
    }
    retried(rustix::net::recv(fd, buffer, RecvFlags::DONTWAIT).map(|(n, _)| n))
}

/// An interrupted call is repeated by the caller's next attempt.
#[inline]
fn retried(result: Result<usize, Errno>) -> Result<usize, Errno> {
    result.map_err(|errno| if errno == Errno::INTR { Errno::AGAIN } else { errno })
}

#[inline]
fn outcome(n: libc::c_long) -> Result<usize, Errno> {
    retried(usize::try_from(n).map_err(|_| last_errno()))
}

fn last_errno() -> Errno {
    Errno::from_raw_os_error(std::io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Sent bytes that the peer's kernel has not acknowledged.
pub(super) fn unacknowledged(fd: BorrowedFd<'_>) -> usize {
    #[cfg(test)]
    if let Some(outcome) = net::unacknowledged(fd) {
        return outcome;
    }
    let mut bytes: libc::c_int = 0;
    // SAFETY: SIOCOUTQ (the same number as TIOCOUTQ) stores one int.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// The kernel's knowledge of the peer's host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Liveness {
    /// Milliseconds since the last acknowledgement.
    pub(super) silent_ms: u32,
    /// Retransmissions and window probes since then that were not answered.
    pub(super) unanswered: u32,
}

/// The bytes that the peer's host has acknowledged on a connection, and the time in microseconds for which some were
/// not. `None` if the kernel does not provide it.
pub(super) fn carried(fd: BorrowedFd<'_>) -> Option<(u64, u64)> {
    let info = tcp_info(fd)?;
    Some((info.tcpi_bytes_acked, info.tcpi_busy_time))
}

/// The kernel's knowledge of the peer's host; `None` if the kernel does not provide it.
pub(super) fn liveness(fd: BorrowedFd<'_>) -> Option<Liveness> {
    #[cfg(test)]
    if let Some(outcome) = net::liveness(fd) {
        return outcome;
    }
    let info = tcp_info(fd)?;
    Some(Liveness {
        silent_ms: info.tcpi_last_ack_recv,
        unanswered: u32::from(info.tcpi_retransmits) + u32::from(info.tcpi_probes),
    })
}

fn tcp_info(fd: BorrowedFd<'_>) -> Option<libc::tcp_info> {
    let mut info = MaybeUninit::<libc::tcp_info>::zeroed();
    // The structure has some hundred bytes.
    #[allow(clippy::cast_possible_truncation)]
    let mut len = size_of::<libc::tcp_info>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `len` bytes to `info` and stores how many.
    let result = unsafe {
        libc::getsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_INFO, info.as_mut_ptr().cast(), &raw mut len)
    };
    if result != 0 {
        return None;
    }
    // SAFETY: `info` was zeroed, so bytes that the kernel did not write are valid, too: all fields are integers.
    Some(unsafe { info.assume_init() })
}

/// Milliseconds of the coarse monotonic clock.
#[inline]
pub(super) fn now_ms() -> u64 {
    #[cfg(test)]
    if let Some(outcome) = net::now_ms() {
        return outcome;
    }
    let now = clock_gettime(ClockId::MonotonicCoarse);
    // The monotonic clock is never negative.
    #[allow(clippy::cast_sign_loss)]
    let ms = (now.tv_sec * 1000 + now.tv_nsec / 1_000_000) as u64;
    ms
}

/// Creates a non-blocking stream socket of the address's family, with the options of all links.
///
/// There is no Nagle delay, and keep-alive probes detect a vanished host on an idle link. Buffer sizes and the traffic
/// class must be set before the socket connects or listens: the window scale depends on the buffers, and the handshake
/// must have the class.
pub(super) fn stream_socket(addr: &SocketAddr, config: &TcpConfig) -> Result<ForkClosedFd, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::socket() {
        return outcome;
    }
    const PROBES: u32 = 4;
    let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = ForkClosedFd::new(|| rustix::net::socket_with(family, SocketType::STREAM, flags, None))?;
    if let Some(bytes) = config.send_buffer_bytes {
        sockopt::set_socket_send_buffer_size(&socket, bytes)?;
    }
    if let Some(bytes) = config.receive_buffer_bytes {
        sockopt::set_socket_recv_buffer_size(&socket, bytes)?;
    }
    match (config.endpoint.traffic_class, addr) {
        (0, _) => {}
        (class, SocketAddr::V4(_)) => sockopt::set_ip_tos(&socket, class)?,
        (class, SocketAddr::V6(_)) => sockopt::set_ipv6_tclass(&socket, class.into())?,
    }
    sockopt::set_tcp_nodelay(&socket, true)?;
    if config.endpoint.dead_peer_ms > 0 {
        let total_s = config.endpoint.dead_peer_ms.div_ceil(1000).max(u64::from(PROBES) + 1);
        let interval_s = (total_s / 2).div_ceil(u64::from(PROBES)).max(1);
        let idle_s = total_s.saturating_sub(interval_s * u64::from(PROBES)).max(1);
        sockopt::set_socket_keepalive(&socket, true)?;
        sockopt::set_tcp_keepidle(&socket, Duration::from_secs(idle_s))?;
        sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(interval_s))?;
        sockopt::set_tcp_keepcnt(&socket, PROBES)?;
    }
    Ok(socket)
}

/// A listening socket and its address.
pub(super) fn listen(wanted: &SocketAddr, config: &TcpConfig) -> Result<(ForkClosedFd, SocketAddr), Errno> {
    #[cfg(test)]
    if let Some(listener) = net::listen() {
        return listener;
    }
    // Accepted sockets inherit the listener's options.
    let listener = stream_socket(wanted, config)?;
    sockopt::set_socket_reuseaddr(&listener, true)?;
    rustix::net::bind(&listener, wanted)?;
    rustix::net::listen(&listener, BACKLOG)?;
    let addr = rustix::net::getsockname(&listener)?.try_into()?;
    Ok((listener, addr))
}

/// Accepts a connection. Returns its socket and the peer's address.
pub(super) fn accept(listener: BorrowedFd<'_>) -> Result<(ForkClosedFd, Option<SocketAddr>), Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::accept(listener) {
        return outcome;
    }
    let mut from = None;
    let socket = ForkClosedFd::new(|| {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        rustix::net::acceptfrom_with(listener, flags).map(|(socket, addr)| {
            from = addr;
            socket
        })
    })?;
    Ok((socket, from.and_then(|addr| addr.try_into().ok())))
}

/// Binds a socket that will connect to a local address.
pub(super) fn bind(socket: BorrowedFd<'_>, from: &SocketAddr) -> Result<(), Errno> {
    #[cfg(test)]
    if net::is_installed() {
        return Ok(());
    }
    // Without this option the kernel reserves the port, although only the pair of addresses must be unique.
    let value: libc::c_int = 1;
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the kernel reads one integer. A kernel without the option changes nothing.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const value).cast(),
            len,
        )
    };
    rustix::net::bind(socket, from)
}

/// Whether an accepted socket's local address is one of `admitted`, which may be empty.
pub(super) fn is_admitted(socket: BorrowedFd<'_>, admitted: &[IpAddr]) -> bool {
    let here = || rustix::net::getsockname(socket).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
    let is_at = |here: SocketAddr| admitted.iter().any(|ip| ip.to_canonical() == here.ip().to_canonical());
    admitted.is_empty() || here().is_some_and(is_at)
}

/// The address of the peer's end of a connection.
pub(super) fn peer_ip(socket: BorrowedFd<'_>) -> Option<IpAddr> {
    let there = rustix::net::getpeername(socket).ok().flatten();
    there.and_then(|addr| SocketAddr::try_from(addr).ok()).map(|there| there.ip().to_canonical())
}

/// Starts to connect a socket.
pub(super) fn connect(socket: BorrowedFd<'_>, to: &SocketAddr) -> Result<(), Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::connect(socket, to) {
        return outcome;
    }
    match rustix::net::connect(socket, to) {
        Ok(()) | Err(Errno::INPROGRESS | Errno::INTR) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Whether the kernel has connected the socket; its error if that failed.
///
/// A connection to a local port without a listener may originate from that very port, and connect to itself (TCP's
/// simultaneous open). It is refused like any other connection to the port.
pub(super) fn connected(socket: BorrowedFd<'_>) -> Result<bool, Errno> {
    #[cfg(test)]
    if let Some(outcome) = net::connected(socket) {
        return outcome;
    }
    sockopt::socket_error(socket)??;
    let there = match rustix::net::getpeername(socket) {
        Ok(there) => there,
        Err(Errno::NOTCONN) => return Ok(false),
        Err(errno) => return Err(errno),
    };
    if there != Some(rustix::net::getsockname(socket)?) {
        return Ok(true);
    }
    // Close with a reset. Otherwise the socket would occupy the port for another minute (TIME_WAIT), and a later
    // listener could not bind it.
    sockopt::set_socket_linger(socket, Some(Duration::ZERO))?;
    Err(Errno::CONNREFUSED)
}

/// Limits the unsent bytes in the kernel, and avoids pacing, if both ends of a connected socket are on one host.
///
/// Without the limit, messages and acknowledgements wait behind megabytes of bulk data, and the kernel's buffer exceeds
/// the processor's cache. Between hosts there is no limit, so that the kernel continues to send while the client
/// computes.
pub(super) fn tune_within_host(fd: BorrowedFd<'_>) {
    /// The size of one segment that is offloaded to the network card.
    static UNSENT_BYTES: libc::c_int = 64 * 1024;
    let here = rustix::net::getsockname(fd).ok().and_then(|addr| SocketAddr::try_from(addr).ok());
    let there = rustix::net::getpeername(fd).ok().flatten().and_then(|addr| SocketAddr::try_from(addr).ok());
    let (Some(here), Some(there)) = (here, there) else { return };
    if here.ip() != there.ip() {
        return;
    }
    // Other algorithms may pace: BBR arms a timer for every few segments, although nothing can be congested here. Where
    // the system does not offer this algorithm, the socket keeps its own.
    let _ = sockopt::set_tcp_congestion(fd, "reno");
    let value = &raw const UNSENT_BYTES;
    let len = libc::socklen_t::try_from(size_of::<libc::c_int>()).unwrap_or(4);
    // SAFETY: the kernel reads one integer. A kernel without the option changes nothing.
    unsafe { libc::setsockopt(fd.as_raw_fd(), libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, value.cast(), len) };
}

/// Appends a copy of client memory to a queue.
pub(super) fn append(queue: &mut Vec<u8>, iov: &[Iov]) {
    for piece in iov {
        let (at, len) = (queue.len(), piece.len());
        queue.reserve(len);
        let Some(target) = queue.spare_capacity_mut().get_mut(..len) else { return };
        // SAFETY: `target` is `len` bytes of the queue's spare capacity, and `len` is the piece's length.
        unsafe { piece.read_to_ptr(target.as_mut_ptr().cast(), len) };
        // SAFETY: the capacity is there (`reserve`), and the bytes up to `at + len` have just been initialised.
        unsafe { queue.set_len(at + len) };
    }
}

/// Warns that epoll does not watch a socket as it must.
#[cold]
pub(super) fn cannot_watch(errno: Errno) {
    log::warn!(
        "tcp: a socket cannot be watched (epoll_ctl: {errno}): memory is short, or fs.epoll.max_user_watches is too low; raise it"
    );
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::os::fd::AsFd;

    use super::*;

    /// Both ends of a connection have the traffic class of their side and the options of links. An accepted socket gets
    /// them from its listener.
    #[test]
    fn accepted_sockets_inherit_the_listeners_options() {
        let class = |traffic_class| TcpConfig::default().with(|config| config.traffic_class = traffic_class);
        for addr in ["127.0.0.1:0", "[::1]:0"].map(|text| text.parse::<SocketAddr>().unwrap()) {
            let Ok(listener) = stream_socket(&addr, &class(0xb8)) else {
                assert!(addr.is_ipv6(), "only IPv6 may be missing");
                continue;
            };
            if rustix::net::bind(&listener, &addr).is_err() {
                assert!(addr.is_ipv6(), "only IPv6 may be missing");
                continue;
            }
            rustix::net::listen(&listener, 1).unwrap();
            let there = SocketAddr::try_from(rustix::net::getsockname(&listener).unwrap()).unwrap();
            let caller = stream_socket(&addr, &class(0x48)).unwrap();
            assert!(matches!(rustix::net::connect(&caller, &there), Ok(()) | Err(Errno::INPROGRESS)));
            let (accepted, _) = accept(listener.as_fd()).unwrap();
            let plain = stream_socket(&addr, &class(0)).unwrap();
            for (socket, class) in [(listener, 0xb8), (caller, 0x48), (accepted, 0xb8), (plain, 0)] {
                assert!(sockopt::tcp_nodelay(&socket).unwrap() && sockopt::socket_keepalive(&socket).unwrap());
                let [idle, between] =
                    [sockopt::tcp_keepidle(&socket), sockopt::tcp_keepintvl(&socket)].map(Result::unwrap);
                let last = between * sockopt::tcp_keepcnt(&socket).unwrap();
                assert_eq!(idle + last, Duration::from_millis(TcpConfig::default().endpoint.dead_peer_ms), "{addr}");
                let found = if addr.is_ipv4() {
                    sockopt::ip_tos(&socket).unwrap().into()
                } else {
                    sockopt::ipv6_tclass(&socket).unwrap()
                };
                assert_eq!(found, class, "{addr}");
            }
        }
    }

    /// A socket that connects to itself is refused, and leaves the port to a later listener.
    #[test]
    fn a_socket_that_connects_to_itself_is_refused() {
        let config = TcpConfig::default();
        let addr = "127.0.0.1:0".parse().unwrap();
        let caller = stream_socket(&addr, &config).unwrap();
        rustix::net::bind(&caller, &addr).unwrap();
        let here = rustix::net::getsockname(&caller).unwrap().try_into().unwrap();
        connect(caller.as_fd(), &here).unwrap();
        assert_eq!(connected(caller.as_fd()), Err(Errno::CONNREFUSED));
        drop(caller);
        assert_eq!(listen(&here, &config).unwrap().1, here);
    }
}
