//! A simulated network in virtual time, which replaces the kernel's for the devices of one thread. It cuts, delays and
//! breaks the byte streams.
//!
//! Place in the data flow: the functions of [`super::super::sys`] call this module first. A device's socket is one end
//! of a socket pair, so that epoll works as usual. The network has the other end, and carries the bytes when
//! [`Net::step`] is called. Nothing depends on real time, other threads or the kernel's network: the same seed gives
//! the same run. A thread without a simulated network uses the kernel's.
//!
//! A break is placed in the stream of bytes: a write draws whether a break follows, and after which of its bytes. Later
//! bytes do not arrive.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, Shutdown, SocketFlags, SocketType};
use weft_fuzz::Random;
use weft_os::ForkClosedFd;

use super::super::sys::{Liveness, Pieces};

thread_local! {
    static NET: RefCell<Option<Net>> = const { RefCell::new(None) };
}

/// Installs this thread's network, or removes it.
pub(super) fn install(net: Option<Net>) {
    NET.set(net);
}

/// Calls a function with this thread's network, if there is one.
pub(super) fn with<T>(call: impl FnOnce(&mut Net) -> T) -> Option<T> {
    NET.with_borrow_mut(|net| net.as_mut().map(call))
}

/// Whether this thread has a network.
pub(in super::super) fn is_installed() -> bool {
    NET.with_borrow(Option::is_some)
}

/// The part of its bytes that a call transfers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cuts {
    /// The percentage of calls that transfer a part only, or nothing.
    pub(super) percent: usize,
    /// The percentage of those that transfer nothing.
    pub(super) nothing: usize,
    /// Limit of bytes in a part.
    pub(super) most: usize,
}

impl Cuts {
    /// Draws how many of `len` bytes are transferred.
    fn draw(self, len: usize, random: &mut Random) -> usize {
        if len == 0 || random.below(100) >= self.percent {
            return len;
        }
        if random.below(100) < self.nothing {
            return 0;
        }
        1 + random.below(self.most.min(len))
    }
}

/// The faults of a run's network.
#[derive(Clone, Debug)]
pub(super) struct Faults {
    pub(super) writes: Cuts,
    pub(super) reads: Cuts,
    /// The percentage of portions that are small.
    pub(super) small: usize,
    /// Limit of bytes in flight in one direction.
    pub(super) window: usize,
    /// The percentage of portions that are delayed.
    pub(super) delays: usize,
    /// Limit of a delay.
    pub(super) delay_ms: u64,
    /// The number of writes in 1000 that are followed by a break.
    pub(super) breaks: usize,
    /// The number of writes in 1000 that are followed by a break, within the first [`YOUNG_BYTES`] of a connection,
    /// where handshakes are.
    pub(super) early_breaks: usize,
    /// Limit of breaks in a run.
    pub(super) budget: usize,
}

/// The length of the part of a connection that [`Faults::early_breaks`] applies to.
const YOUNG_BYTES: u64 = 400;
/// Offsets at which breaks are frequent: headers of frames and of records, tags.
const EDGES: [usize; 10] = [0, 1, 4, 5, 7, 8, 9, 16, 23, 24];

/// Instead of a socket's number: the socket does not exist yet, or no longer.
const UNBORN: RawFd = -1;
const CLOSED: RawFd = -2;

/// One end of a connection.
#[derive(Debug)]
struct End {
    /// The device's socket.
    fd: RawFd,
    /// The network's end of the pair; `None` after the network has closed it.
    ours: Option<OwnedFd>,
    /// Bytes that have arrived and were not read are lost, too.
    reset: bool,
    /// The connection is broken, but the host does not know: the time of the break, and the time at which it learns.
    forsaken: Option<(u64, u64)>,
    /// The device has closed the socket, or shut it down.
    said_all: bool,
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Way {
    /// Bytes that the sender has written.
    written: u64,
    /// Bytes that have arrived.
    arrived: u64,
    under_way: VecDeque<u8>,
    held_until_ms: u64,
    /// The number of arrived bytes at which the connection breaks.
    break_at: Option<u64>,
    /// The receiver has seen the end.
    ended: bool,
}

#[derive(Debug)]
struct Connection {
    /// The ends of the caller and of the called device.
    ends: [End; 2],
    /// The direction from the end of the same index to the other one.
    ways: [Way; 2],
    /// The time at which the connection is made. The called end exists from then on.
    up_ms: u64,
    to: u16,
}

struct Listener {
    fd: RawFd,
    bell: OwnedFd,
    port: u16,
    waiting: VecDeque<OwnedFd>,
}

/// The network of one thread.
pub(super) struct Net {
    pub(super) now_ms: u64,
    pub(super) faults: Faults,
    random: Random,
    nonces: Random,
    listeners: Vec<Listener>,
    /// Sockets that are not connected yet.
    fresh: Vec<(RawFd, OwnedFd)>,
    connections: Vec<Connection>,
    /// The caller of this connection finds no bytes to read.
    pub(super) deaf: Option<usize>,
    /// No more connections are made.
    pub(super) vanished: bool,
    /// Connections are refused.
    pub(super) refuses: bool,
    /// Connections that were broken.
    pub(super) broken: usize,
    /// A hash of all transfers: lengths and times.
    pub(super) trace: u64,
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("sockets")
}

impl Net {
    pub(super) fn new(seed: u64, faults: Faults) -> Self {
        Self {
            now_ms: 1_000_000,
            faults,
            random: Random(seed),
            nonces: Random(!seed),
            listeners: Vec::new(),
            fresh: Vec::new(),
            connections: Vec::new(),
            deaf: None,
            vanished: false,
            refuses: false,
            broken: 0,
            trace: 0,
        }
    }

    /// Ends long delays, and limits the remaining breaks.
    pub(super) fn calm(&mut self) {
        self.faults.delays = 0;
        self.faults.window = self.faults.window.max(60_000);
        self.faults.budget = self.faults.budget.min(2);
    }

    /// Logs the state of all connections.
    pub(super) fn log_state(&self) {
        log::trace!("{} net: {:?}\n{:#?}", self.now_ms, self.faults, self.connections);
    }

    /// The number of connections that a side still has.
    pub(super) fn connections(&self) -> usize {
        self.connections.iter().filter(|one| one.ends.iter().any(|end| end.ours.is_some())).count()
    }

    fn end(&mut self, fd: RawFd) -> Option<(usize, usize)> {
        let at = |(index, one): (usize, &Connection)| Some((index, one.ends.iter().position(|end| end.fd == fd)?));
        self.connections.iter().enumerate().find_map(at)
    }

    /// Creates a socket pair for a device and the network. The device's number may be that of a socket that the device
    /// has closed without the network's notice.
    fn pair(&mut self) -> (OwnedFd, OwnedFd) {
        let (theirs, ours) = pair();
        self.fresh.retain(|fresh| fresh.0 != theirs.as_raw_fd());
        for end in self.connections.iter_mut().flat_map(|one| &mut one.ends) {
            if end.fd == theirs.as_raw_fd() {
                end.fd = CLOSED;
            }
        }
        (theirs, ours)
    }

    fn note(&mut self, what: u64) {
        self.trace = (self.trace ^ what ^ self.now_ms << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23);
    }

    // ---- the devices' calls --------------------------------------------------------------------

    fn connect(&mut self, fd: RawFd, to: SocketAddr) -> Result<(), Errno> {
        let at = self.fresh.iter().position(|fresh| fresh.0 == fd).ok_or(Errno::BADF)?;
        let (_, ours) = self.fresh.swap_remove(at);
        let late = self.random.below(100) < self.faults.delays;
        let up_ms = self.now_ms + if late { self.random.below(1500) as u64 } else { 0 };
        let up_ms = if self.vanished || self.refuses { u64::MAX } else { up_ms };
        let end = |fd, ours| End { fd, ours, reset: false, forsaken: None, said_all: false };
        // The refusal is reported when the socket is checked.
        let ends = [end(fd, (!self.refuses).then_some(ours)), end(UNBORN, None)];
        log::trace!("{} net: connection {} to port {} by socket {fd}", self.now_ms, self.connections.len(), to.port());
        self.connections.push(Connection { ends, ways: Default::default(), up_ms, to: to.port() });
        Ok(())
    }

    fn write(&mut self, fd: RawFd, pieces: &Pieces<'_>) -> Option<Result<usize, Errno>> {
        let (index, side) = self.end(fd)?;
        if self.connections[index].ends[side].reset {
            return Some(Err(Errno::CONNRESET));
        }
        let young = self.connections[index].ways[side].written < YOUNG_BYTES;
        // A fresh socket has room for the messages of a handshake.
        let most = if young { pieces.len() } else { self.faults.writes.draw(pieces.len(), &mut self.random) };
        if most == 0 && pieces.len() > 0 {
            return Some(Err(Errno::AGAIN));
        }
        let mut bytes = Vec::new();
        pieces.append_to(0, most, &mut bytes);
        // SAFETY: the caller has borrowed the descriptor.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let outcome = rustix::net::send(socket, &bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
        if let Ok(n) = outcome {
            let percentage = if young { self.faults.early_breaks } else { self.faults.breaks };
            let way = &mut self.connections[index].ways[side];
            if n > 0 && self.faults.budget > 0 && way.break_at.is_none() && self.random.below(1000) < percentage {
                self.faults.budget -= 1;
                let edge = EDGES[self.random.below(EDGES.len())].min(n);
                let behind = match self.random.below(3) {
                    0 => edge,
                    1 => n - edge,
                    _ => self.random.below(n + 1),
                };
                way.break_at = Some(way.written + behind as u64);
            }
            way.written += n as u64;
            self.note(n as u64);
            // In a fast network the break may precede the device's next call.
            if self.connections[index].ways[side].break_at.is_some() && self.random.below(2) == 0 {
                while self.take(index, side) | self.carry(index, side) {}
            }
        }
        Some(outcome)
    }

    fn read(&mut self, fd: RawFd, pieces: &mut Pieces<'_>) -> Option<Result<usize, Errno>> {
        let (index, side) = self.end(fd)?;
        if self.connections[index].ends[side].reset {
            return Some(Err(Errno::CONNRESET));
        }
        let most = self.faults.reads.draw(pieces.len(), &mut self.random);
        if (most == 0 && pieces.len() > 0) || (side == 0 && self.deaf == Some(index)) {
            return Some(Err(Errno::AGAIN));
        }
        let mut bytes = vec![0; most];
        // SAFETY: the caller has borrowed the descriptor.
        let socket = unsafe { BorrowedFd::borrow_raw(fd) };
        let outcome = rustix::io::read(socket, &mut bytes[..]);
        if let Ok(n) = outcome {
            pieces.write(0, &bytes[..n]);
            self.note(!(n as u64));
        }
        Some(outcome)
    }

    // ---- the network's steps -------------------------------------------------------------------

    /// Carries bytes. Returns whether any have moved.
    pub(super) fn step(&mut self) -> bool {
        let mut moved = false;
        for index in 0..self.connections.len() {
            moved |= self.make(index);
            for side in 0..2 {
                moved |= self.take(index, side) | self.carry(index, side);
            }
        }
        moved
    }

    /// The time of the next event that does not depend on a device.
    pub(super) fn next_ms(&self) -> u64 {
        let held = |one: &Connection| {
            let pending = if one.ends[1].fd == UNBORN { one.up_ms } else { u64::MAX };
            let ways = one.ways.iter().map(|way| if way.under_way.is_empty() { u64::MAX } else { way.held_until_ms });
            let ends = one.ends.iter().filter_map(|end| end.forsaken).map(|(_, until_ms)| until_ms);
            ways.chain(ends).fold(pending, u64::min)
        };
        self.connections.iter().map(held).min().unwrap_or(u64::MAX).max(self.now_ms + 1)
    }

    /// Delivers a connection to its listener when its time has come.
    fn make(&mut self, index: usize) -> bool {
        if self.connections[index].ends[1].fd != UNBORN || self.now_ms < self.connections[index].up_ms {
            return false;
        }
        let (theirs, ours) = self.pair();
        let one = &mut self.connections[index];
        one.ends[1].fd = theirs.as_raw_fd();
        one.ends[1].ours = Some(ours);
        let listener = self.listeners.iter_mut().find(|listener| listener.port == one.to).expect("a listener");
        assert_eq!(rustix::io::write(&listener.bell, &[1]), Ok(1), "the listener lives");
        listener.waiting.push_back(theirs);
        true
    }

    /// Reads the bytes that a device has written, as far as the window allows.
    fn take(&mut self, index: usize, side: usize) -> bool {
        let one = &mut self.connections[index];
        if one.ends[1].fd == UNBORN {
            return false;
        }
        let (end, way) = (&mut one.ends[side], &mut one.ways[side]);
        let Some(ours) = &end.ours else { return false };
        if end.said_all {
            // The socket may have been closed after it was shut down.
            if way.ended && hung_up(ours) {
                end.ours = None;
            }
            return false;
        }
        let forsaken = end.forsaken.is_some();
        let room = if forsaken { 1 << 16 } else { self.faults.window.saturating_sub(way.under_way.len()) };
        let mut bytes = vec![0; room.min(1 << 16)];
        if room == 0 {
            return false;
        }
        match rustix::io::read(ours, &mut bytes[..]) {
            Ok(0) => end.said_all = true,
            Ok(n) if forsaken => return n > 0,
            Ok(n) => way.under_way.extend(&bytes[..n]),
            Err(Errno::AGAIN) => return false,
            // The socket was closed with unread bytes. Its system answers with a reset, which may overtake earlier
            // bytes.
            Err(_) => {
                let lost = self.random.below(2) == 0;
                self.lose(index, 1 - side, lost);
                self.lose(index, side, false);
            }
        }
        true
    }

    /// Carries a portion to the other end.
    fn carry(&mut self, index: usize, side: usize) -> bool {
        let now_ms = self.now_ms;
        if let Some((_, until_ms)) = self.connections[index].ends[side].forsaken
            && now_ms >= until_ms
        {
            let lost = self.random.below(2) == 0;
            self.lose(index, side, lost);
            return true;
        }
        let to = 1 - side;
        let one = &mut self.connections[index];
        if one.ends.iter().any(|end| end.forsaken.is_some()) || one.ends[side].ours.is_none() {
            return false;
        }
        if one.ends[to].ours.is_none() {
            // Bytes for a closed socket are answered by a reset.
            if !one.ways[side].under_way.is_empty() {
                let lost = self.random.below(2) == 0;
                self.lose(index, side, lost);
            } else if one.ends[side].said_all {
                one.ends[side].ours = None;
            }
            return false;
        }
        let way = &mut one.ways[side];
        if now_ms < way.held_until_ms {
            return false;
        }
        if way.break_at.is_some_and(|at| way.arrived >= at) {
            way.break_at = None;
            let all = self.random.below(8) == 0;
            let broken = if all { 0..self.connections.len() } else { index..index + 1 };
            for index in broken {
                self.sever(index);
            }
            return true;
        }
        if way.under_way.is_empty() {
            if one.ends[side].said_all && !way.ended {
                way.ended = true;
                let _ = one.ends[to].ours.as_ref().map(|ours| rustix::net::shutdown(ours, Shutdown::Write));
                return true;
            }
            return false;
        }
        self.deliver(index, side)
    }

    /// Delivers the next bytes to the other end, unless a delay begins.
    fn deliver(&mut self, index: usize, side: usize) -> bool {
        let to = 1 - side;
        let one = &mut self.connections[index];
        let way = &mut one.ways[side];
        if self.random.below(100) < self.faults.delays {
            way.held_until_ms = self.now_ms + 1 + self.random.below(self.faults.delay_ms as usize) as u64;
            return false;
        }
        let most = match self.random.below(100) < self.faults.small {
            true => 1 + self.random.below(30),
            false => 1 << 16,
        };
        let until = way.break_at.map_or(usize::MAX, |at| (at - way.arrived) as usize);
        let (front, _) = way.under_way.as_slices();
        let portion = &front[..front.len().min(most).min(until)];
        let Some(ours) = &one.ends[to].ours else { return false };
        match rustix::net::send(ours, portion, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
            Ok(n) => {
                way.arrived += n as u64;
                way.under_way.drain(..n);
                self.note((n as u64) << 20);
                true
            }
            Err(Errno::AGAIN) => false,
            Err(_) => {
                let lost = self.random.below(2) == 0;
                self.lose(index, side, lost);
                self.lose(index, to, false);
                true
            }
        }
    }

    /// Breaks a connection, for both sides or for one of them first.
    fn sever(&mut self, index: usize) {
        if self.connections[index].ends[1].fd == UNBORN
            || self.connections[index].ends.iter().any(|end| end.ours.is_none())
        {
            return;
        }
        log::trace!(
            "{} net: connection {index} breaks; arrived: {:?}",
            self.now_ms,
            self.connections[index].ways.each_ref().map(|way| way.arrived)
        );
        self.broken += 1;
        let lost = [(); 2].map(|()| self.random.below(2) == 0);
        let late = match self.random.below(5) {
            0..=2 => None,
            3 => Some(1 + self.random.below(300) as u64),
            _ => Some(1 + self.random.below(9000) as u64),
        };
        let first = self.random.below(2);
        self.lose(index, first, lost[0]);
        match late {
            None => self.lose(index, 1 - first, lost[1]),
            Some(late_ms) => {
                let now_ms = self.now_ms;
                let one = &mut self.connections[index];
                one.ways[first].under_way.clear();
                one.ends[1 - first].forsaken = Some((now_ms, now_ms + late_ms));
            }
        }
    }

    /// Reports a break to one side. `unread`: bytes that it has not read are lost.
    pub(super) fn lose(&mut self, index: usize, side: usize, unread: bool) {
        log::trace!("{} net: connection {index} ends for side {side}, unread bytes lost: {unread}", self.now_ms);
        self.note(7 + side as u64);
        let one = &mut self.connections[index];
        // Linux delivers bytes that arrived before a reset if the other side had ended its stream.
        one.ends[side].reset |= unread && !one.ends[1 - side].said_all;
        one.ends[side].ours = None;
        one.ends[side].forsaken = None;
        one.ways[side].under_way.clear();
    }

    /// From now on the bytes of a side do not arrive, and are not acknowledged.
    pub(super) fn forsake(&mut self, index: usize, side: usize) {
        self.connections[index].ends[side].forsaken = Some((self.now_ms, u64::MAX));
    }

    /// The number of connections so far.
    pub(super) fn made(&self) -> usize {
        self.connections.len()
    }

    fn unacknowledged(&mut self, fd: RawFd) -> Option<usize> {
        let (index, side) = self.end(fd)?;
        let way = &self.connections[index].ways[side];
        // The end of the stream counts as one byte. Only a side that has ended its stream asks for this number.
        Some((way.written - way.arrived) as usize + usize::from(!way.ended))
    }

    fn liveness(&mut self, fd: RawFd) -> Option<Liveness> {
        let (index, side) = self.end(fd)?;
        let (since_ms, _) = self.connections[index].ends[side].forsaken?;
        Some(Liveness { silent_ms: (self.now_ms - since_ms) as u32, unanswered: 3 })
    }
}

fn hung_up(socket: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::empty())];
    let now = rustix::time::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut fds, Some(&now)).is_ok() && fds[0].revents().contains(PollFlags::HUP)
}

// ---- the replacements of `sys` ---------------------------------------------------------------------

pub(in super::super) fn send(fd: BorrowedFd<'_>, pieces: &Pieces<'_>) -> Option<Result<usize, Errno>> {
    with(|net| net.write(fd.as_raw_fd(), pieces))?
}

pub(in super::super) fn send_one(fd: BorrowedFd<'_>, bytes: &[u8]) -> Option<Result<usize, Errno>> {
    let mut pieces = Pieces::new();
    pieces.bytes(bytes);
    send(fd, &pieces)
}

pub(in super::super) fn receive(fd: BorrowedFd<'_>, pieces: &mut Pieces<'_>) -> Option<Result<usize, Errno>> {
    with(|net| net.read(fd.as_raw_fd(), pieces))?
}

pub(in super::super) fn receive_one(fd: BorrowedFd<'_>, buffer: &mut [u8]) -> Option<Result<usize, Errno>> {
    let mut pieces = Pieces::new();
    pieces.buffer(buffer);
    receive(fd, &mut pieces)
}

pub(in super::super) fn unacknowledged(fd: BorrowedFd<'_>) -> Option<usize> {
    with(|net| net.unacknowledged(fd.as_raw_fd()))?
}

/// The outer `Option`: whether there is a network. The inner one: whether the host is silent.
#[allow(clippy::option_option)]
pub(in super::super) fn liveness(fd: BorrowedFd<'_>) -> Option<Option<Liveness>> {
    with(|net| net.liveness(fd.as_raw_fd()))
}

pub(in super::super) fn now_ms() -> Option<u64> {
    with(|net| net.now_ms)
}

fn unshared(fd: OwnedFd) -> Result<ForkClosedFd, Errno> {
    let mut fd = Some(fd);
    ForkClosedFd::new(|| fd.take().ok_or(Errno::BADF))
}

pub(in super::super) fn socket() -> Option<Result<ForkClosedFd, Errno>> {
    with(|net| {
        let (theirs, ours) = net.pair();
        net.fresh.push((theirs.as_raw_fd(), ours));
        unshared(theirs)
    })
}

pub(in super::super) fn listen() -> Option<Result<(ForkClosedFd, SocketAddr), Errno>> {
    with(|net| {
        let (theirs, bell) = pair();
        let port = 1000 + net.listeners.len() as u16;
        net.listeners.push(Listener { fd: theirs.as_raw_fd(), bell, port, waiting: VecDeque::new() });
        Ok((unshared(theirs)?, ([127, 0, 0, 1], port).into()))
    })
}

type Accepted = Result<(ForkClosedFd, Option<SocketAddr>), Errno>;

pub(in super::super) fn accept(listener: BorrowedFd<'_>) -> Option<Accepted> {
    with(|net| {
        let one = net.listeners.iter_mut().find(|one| one.fd == listener.as_raw_fd()).ok_or(Errno::BADF)?;
        rustix::io::read(listener, &mut [0; 1])?;
        Ok((ForkClosedFd::new(|| one.waiting.pop_front().ok_or(Errno::AGAIN))?, None))
    })
}

pub(in super::super) fn connect(socket: BorrowedFd<'_>, to: &SocketAddr) -> Option<Result<(), Errno>> {
    with(|net| net.connect(socket.as_raw_fd(), *to))
}

pub(in super::super) fn connected(socket: BorrowedFd<'_>) -> Option<Result<bool, Errno>> {
    with(|net| {
        let (index, side) = net.end(socket.as_raw_fd())?;
        let one = &net.connections[index];
        let made = one.ends[1].fd != UNBORN;
        Some(match one.ends[side].ours {
            Some(_) => Ok(made),
            None => Err(if made { Errno::CONNRESET } else { Errno::CONNREFUSED }),
        })
    })?
}

/// Random bytes that follow from the seed.
pub(crate) fn random(bytes: &mut [u8]) -> bool {
    with(|net| bytes.fill_with(|| net.nonces.bits() as u8)).is_some()
}
