//! Connections that peers make, until they are handshakes: bounded in number, and none from another user.
//!
//! Place in the data flow: part of [`Shm`]; [`super::control`] calls it for what epoll reports of the
//! listeners, and when the clock ticks.

use std::os::fd::{AsFd, AsRawFd};

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;
use rustix::net::SocketFlags;
use weft_engine::nic::{LinkError, Sink};
use weft_os::Unshared;

use super::control::{ATTENTION, hang_up_on};
use super::handshake::{self, Handshake};
use super::{Shm, rights};

/// A handshake needs up to so many descriptors. Where they are not left, as many links of peers that are not
/// expected end.
const HANDSHAKE_DESCRIPTORS: u64 = 4;
/// Connections accepted in one check.
const ACCEPTS: usize = 16;
/// Handshakes that peers began and that may be under way; for one more the oldest is given up, so that connections that
/// say nothing cannot shut others out. Where the process may have few descriptors, they get an eighth of them.
const MAX_ACCEPTED: usize = 1024;

/// [`MAX_ACCEPTED`], or that eighth. As many sockets of strangers are kept that cannot be closed.
pub(super) fn most_accepted() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let share = limit.and_then(|limit| usize::try_from(limit / 8).ok()).unwrap_or(MAX_ACCEPTED);
    MAX_ACCEPTED.min(share)
}

/// Whether there may be no descriptors for the rest of the handshake: numbers are given from the lowest on.
fn is_last(socket: &Unshared) -> bool {
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
                // A foreign user is hung up on without an answer.
                Err(socket) => {
                    self.tell_of_denial();
                    self.dismiss(socket);
                    continue;
                }
            };
            self.make_room_for_handshake();
            let key = self.handshakes.insert(handshake);
            self.accepted.push_back(key);
            if self.watch_handshake(key).is_err() {
                self.handshakes[key].refuse(LinkError::Resources);
                self.drop_handshake(key);
                continue;
            }
            calls += self.step_handshake(key, sink);
        }
        // There may be more, which nobody reports again before the next look.
        self.attention = ATTENTION;
        self.report_again();
        calls
    }

    /// That somebody waits at a listener that is shut is reported once: has it reported again, unless nobody
    /// can be accepted.
    pub(super) fn report_again(&self) {
        if self.control.shut && !self.is_crowded() {
            self.listen(true);
        }
    }

    /// Nobody fills the log: the first, second, fourth, eighth, … denial is told.
    #[cold]
    pub(super) fn tell_of_denial(&mut self) {
        self.control.denied += 1;
        if self.control.denied.is_power_of_two() {
            log::warn!("shm: a connection from this host was refused: {}", LinkError::Denied);
        }
    }

    /// Parts with the socket of a foreign user. Where it cannot be closed now it is kept. If too many are,
    /// nobody is accepted; callers that have another way are sent there, for good.
    pub(super) fn dismiss(&mut self, socket: Unshared) {
        if self.control.refuses_rights {
            return;
        }
        // Whoever it is need not wait for the end.
        hang_up_on(socket.as_fd());
        let Err(socket) = rights::dismiss(socket.into_shared()) else { return };
        self.control.strangers.push(socket);
        if self.is_crowded() {
            if self.me.tcp() && !self.control.shut {
                log::warn!("shm: another user of this host holds up whoever connects; new peers use TCP from now on");
                self.control.shut = true;
                self.control.listeners().for_each(|(listener, _)| hang_up_on(listener.as_fd()));
            }
            self.listen(false);
        }
    }

    /// Whether so many sockets of strangers are kept that nobody can be accepted.
    fn is_crowded(&self) -> bool {
        let kept = self.control.strangers.len();
        kept > 0 && (self.control.spare.is_none() || kept >= most_accepted())
    }

    /// Whether those are reported who connect.
    fn listen(&self, yes: bool) {
        let mut flags = if yes { EventFlags::IN } else { EventFlags::empty() };
        if self.control.shut {
            // Its end would be reported for ever.
            flags |= EventFlags::ET;
        }
        for (socket, token) in self.control.listeners() {
            // Fails for no reason that the manual knows for a descriptor that is there; the next clock tick
            // tries again.
            let _ = epoll::modify(&self.epoll, socket, EventData::new_u64(token), flags);
        }
    }

    /// Tries again to part with strangers, and goes on accepting, if that was held up and need not be any more.
    pub(super) fn accept_again(&mut self) {
        let was_crowded = self.is_crowded();
        while let Some(socket) = self.control.strangers.pop() {
            if let Err(socket) = rights::dismiss(socket) {
                self.control.strangers.push(socket);
                break;
            }
        }
        if self.control.spare.is_none() {
            self.control.spare = self.control.timer.try_clone().ok();
        }
        if was_crowded && !self.is_crowded() {
            self.listen(true);
        } else if std::mem::take(&mut self.control.unheard) {
            self.report_again();
        }
    }

    /// The next connection that waits at a listener.
    fn accept_one<S: Sink>(&mut self, by_port: bool, sink: &mut S) -> Option<Unshared> {
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
                // Descriptors have run out. The connection must not stay, or the listener would wake us for ever:
                // the spare descriptor serves to tell the peer, which then goes another way.
                self.control.spare = None;
                let turned_away = self.accept_from(by_port)?.map(|socket| {
                    handshake::turn_away(&socket);
                    self.dismiss(socket);
                });
                self.control.spare = self.control.timer.try_clone().ok();
                match turned_away {
                    _ if self.is_crowded() => self.listen(false),
                    // There may be more.
                    Ok(()) => self.listen(true),
                    // Another thread may have been given what was spared.
                    Err(errno) => self.leave_unheard(errno),
                }
                None
            }
            Err(errno) => {
                self.leave_unheard(errno);
                None
            }
        }
    }

    /// The same at this listener, if there is one.
    fn accept_from(&self, by_port: bool) -> Option<Result<Unshared, Errno>> {
        let listener = if by_port { self.control.by_port.as_ref()? } else { &self.control.by_id };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        Some(Unshared::new(|| rustix::net::accept_with(listener, flags)))
    }

    /// The look at a listener ended so. Unless nobody waits there, the next tick has it reported again: one
    /// that is shut would not be.
    fn leave_unheard(&mut self, errno: Errno) {
        self.control.unheard |= self.control.shut && !matches!(errno, Errno::AGAIN | Errno::INVAL);
    }

    /// Gives up the oldest handshake that a peer began, if there are too many.
    fn make_room_for_handshake(&mut self) {
        if self.accepted.len() >= most_accepted()
            && let Some(&oldest) = self.accepted.front()
        {
            self.handshakes[oldest].refuse(LinkError::Resources);
            self.drop_handshake(oldest);
        }
    }
}
