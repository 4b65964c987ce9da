//! Accepting connections, until they are handshakes. Their number is bounded, and connections of other users
//! are closed.
//!
//! Place in the data flow: part of [`Shm`]. [`super::control`] calls it for epoll's events of the listeners,
//! and on each tick of the clock.

use std::os::fd::{AsFd, AsRawFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use weft_engine::nic::{LinkError, Sink};
use weft_os::ForkClosedFd;

use super::control::{EARLY_CHECKS, hang_up_on};
use super::handshake::{self, Handshake};
use super::{Shm, rights};

/// Maximum number of descriptors that a handshake needs. If they are not available, the same number of links
/// of unexpected peers is closed.
const HANDSHAKE_DESCRIPTORS: u64 = 4;
/// Maximum number of connections accepted in one check.
const ACCEPTS: usize = 16;
/// Maximum number of handshakes in progress that peers started. At the limit a new one replaces the oldest,
/// so that silent connections cannot exclude others. In processes with few descriptors, the limit is an
/// eighth of the descriptors.
const MAX_ACCEPTED: usize = 1024;

/// [`MAX_ACCEPTED`], or an eighth of the descriptors if that is less. Also the maximum number of kept sockets
/// of foreign users.
pub(super) fn most_accepted() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.and_then(|limit| usize::try_from(limit / 8).ok()).unwrap_or(MAX_ACCEPTED);
    MAX_ACCEPTED.min(share)
}

/// Whether the remaining descriptors may not suffice for the handshake. The system assigns the lowest free
/// number.
fn is_last(socket: &ForkClosedFd) -> bool {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let number = u64::try_from(socket.as_fd().as_raw_fd()).unwrap_or(0);
    limit.is_some_and(|limit| number + HANDSHAKE_DESCRIPTORS >= limit)
}

impl Shm {
    pub(super) fn accept_connections<S: Sink>(&mut self, by_port: bool, sink: &mut S) -> usize {
        let mut calls = 0;
        for _ in 0..ACCEPTS {
            let Some(socket) = self.accept_one(by_port, sink) else { return calls };
            let handshake = match Handshake::accepted(socket, &self.me, by_port, self.deadline_ns(&self.me)) {
                Ok(handshake) => handshake,
                // The connection of a foreign user is closed without an answer.
                Err(socket) => {
                    self.log_denial(LinkError::Denied);
                    self.close_foreign(socket);
                    continue;
                }
            };
            self.make_room_for_handshake();
            let key = self.handshakes.insert(handshake);
            self.accepted.push_back(key);
            if self.watch_handshake(key).is_err() {
                self.handshakes[key].refuse(LinkError::Resources, self.config.version);
                self.drop_handshake(key);
                continue;
            }
            calls += self.step_handshake(key, sink);
        }
        // More connections may wait: the next check is made early, and a shut listener reports them again.
        self.early_checks = EARLY_CHECKS;
        self.report_again();
        calls
    }

    /// A shut listener reports waiting connections only once. Requests another report, unless the device is
    /// crowded.
    pub(super) fn report_again(&self) {
        if self.control.shut && !self.is_crowded() {
            self.listen(true);
        }
    }

    /// Logs the first, second, fourth, eighth, … denial, so that peers cannot fill the log.
    #[cold]
    pub(super) fn log_denial(&mut self, why: LinkError) {
        self.control.denied += 1;
        if self.control.denied.is_power_of_two() {
            // Nothing but another version helps, on one of the two sides.
            let level = if matches!(why, LinkError::Version(_)) { log::Level::Error } else { log::Level::Warn };
            log::log!(target: crate::PEER_ERRORS, level, "shm: a connection from this host was refused: {why}");
        }
    }

    /// Closes the socket of a foreign user, or keeps it if it cannot be closed now. While too many are kept,
    /// the device accepts no connection. Then, if callers can use TCP, they are permanently directed there.
    pub(super) fn close_foreign(&mut self, socket: ForkClosedFd) {
        if self.control.refuses_rights {
            return;
        }
        // The peer sees the end of the connection at once.
        hang_up_on(socket.as_fd());
        let Err(socket) = rights::close_elsewhere(socket.into_shared()) else { return };
        self.control.foreign_sockets.push(socket);
        if self.is_crowded() {
            if self.me.tcp() && !self.control.shut {
                log::warn!(
                    "shm: connections of another user of this host cannot be closed; new peers use TCP from now on"
                );
                self.control.shut = true;
                self.control.listeners().for_each(|(listener, _)| hang_up_on(listener.as_fd()));
            }
            self.listen(false);
        }
    }

    /// Whether too many sockets of foreign users are kept to accept another connection.
    fn is_crowded(&self) -> bool {
        let kept = self.control.foreign_sockets.len();
        kept > 0 && (self.control.spare.is_none() || kept >= most_accepted())
    }

    /// Enables or disables the events of the listeners.
    fn listen(&self, yes: bool) {
        let mut flags = if yes { EventFlags::IN } else { EventFlags::empty() };
        if self.control.shut {
            // A level-triggered event would report the hang-up of a shut listener indefinitely.
            flags |= EventFlags::ET;
        }
        for (socket, token) in self.control.listeners() {
            // No documented error applies to a registered descriptor. The next clock tick tries again.
            let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags);
        }
    }

    /// Tries again to close kept sockets, and resumes accepting if there is room again.
    pub(super) fn accept_again(&mut self) {
        let was_crowded = self.is_crowded();
        while let Some(socket) = self.control.foreign_sockets.pop() {
            if let Err(socket) = rights::close_elsewhere(socket) {
                self.control.foreign_sockets.push(socket);
                break;
            }
        }
        if self.control.spare.is_none() {
            self.control.spare = self.control.timer.try_clone().ok();
        }
        if was_crowded && !self.is_crowded() {
            self.listen(true);
        } else if std::mem::take(&mut self.control.recheck_listeners) {
            self.report_again();
        }
    }

    /// Accepts the next connection that waits at a listener.
    fn accept_one<S: Sink>(&mut self, by_port: bool, sink: &mut S) -> Option<ForkClosedFd> {
        if self.is_crowded() {
            return None;
        }
        let mut outcome = self.accept_from(by_port)?;
        if outcome.as_ref().map_or_else(|errno| *errno == Errno::MFILE, is_last) {
            (0..HANDSHAKE_DESCRIPTORS).map_while(|_| sink.spare_link(&|_| true)).for_each(|link| self.close_link(link));
            if outcome.is_err() {
                outcome = self.accept_from(by_port)?;
            }
        }
        match outcome {
            Ok(socket) => Some(socket),
            Err(Errno::MFILE | Errno::NFILE) => {
                // The process has no descriptors left. A connection that stays in the backlog would wake this
                // process indefinitely. The spare descriptor serves to accept and refuse it; the peer then
                // uses another device.
                self.control.spare = None;
                let refused = self.accept_from(by_port)?.map(|socket| {
                    handshake::refuse_connection(&socket, self.config.version);
                    self.close_foreign(socket);
                });
                self.control.spare = self.control.timer.try_clone().ok();
                match refused {
                    _ if self.is_crowded() => self.listen(false),
                    // More connections may wait.
                    Ok(()) => self.listen(true),
                    // Another thread may have taken the spare descriptor.
                    Err(errno) => self.note_failed_accept(errno),
                }
                None
            }
            Err(errno) => {
                self.note_failed_accept(errno);
                None
            }
        }
    }

    /// Accepts a connection at one listener. `None`: the device has no such listener.
    fn accept_from(&self, by_port: bool) -> Option<Result<ForkClosedFd, Errno>> {
        let listener = if by_port { self.control.by_port.as_ref()? } else { &self.control.by_id };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Some(ForkClosedFd::new(|| rustix::net::accept_with(listener, flags)))
    }

    /// Records that an attempt to accept failed. Unless the backlog is empty, the next tick requests another
    /// report, because a shut listener does not report the connection again.
    fn note_failed_accept(&mut self, errno: Errno) {
        self.control.recheck_listeners |= self.control.shut && !matches!(errno, Errno::AGAIN | Errno::INVAL);
    }

    /// Removes the oldest handshake that a peer started, if there are too many.
    fn make_room_for_handshake(&mut self) {
        if self.accepted.len() >= most_accepted()
            && let Some(&oldest) = self.accepted.front()
        {
            self.handshakes[oldest].refuse(LinkError::Resources, self.config.version);
            self.drop_handshake(oldest);
        }
    }
}
