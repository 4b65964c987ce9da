//! Links that our side has closed and whose last bytes are still on their way.
//!
//! Place in the data flow: `close` hands over the socket with what must still leave (the tail of a segment, gathered
//! messages, the goodbye); [`super::progress`] calls [`Linger::advance`] until it says that the socket may be
//! closed. A socket that is closed while unread bytes lie in it, or while the peer still sends, resets the connection and may
//! take with it what the peer has not read yet; so what comes in is read and thrown away until the peer has
//! closed its end too, or has acknowledged everything.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::Shutdown;

use super::sys::{self, Pieces};
use super::{Tcp, Token};

/// Longest time for the last bytes to leave.
const LINGER_MS: u64 = 5000;
/// How often it is checked whether the peer has acknowledged everything.
pub(super) const LINGER_CHECK_MS: u64 = 20;
/// Reads at most in one go while a chatty peer is being ignored.
const DISCARDS: usize = 16;

/// See the module.
#[derive(Debug)]
pub(super) struct Linger {
    pub(super) socket: OwnedFd,
    pub(super) generation: u32,
    pub(super) deadline_ms: u64,
    bytes: Vec<u8>,
    sent: usize,
    shut: bool,
}

impl Linger {
    /// Whether everything has been handed over and acknowledged, so that closing the socket loses nothing.
    pub(super) fn delivered(&self) -> bool {
        self.shut && sys::unacknowledged(self.socket.as_fd()) == 0
    }

    /// Goes on as far as possible without waiting. Returns whether the socket may be closed.
    pub(super) fn advance(&mut self, trash: &mut [u8]) -> bool {
        if !self.shut {
            let mut pieces = Pieces::new();
            pieces.bytes(&self.bytes[self.sent..]);
            match sys::send(self.socket.as_fd(), &pieces) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => {}
                Err(_) => return true,
            }
            if self.sent == self.bytes.len() {
                self.bytes = Vec::new();
                self.sent = 0;
                self.shut = true;
                if rustix::net::shutdown(&self.socket, Shutdown::Write).is_err() {
                    return true;
                }
            }
        }
        for _ in 0..DISCARDS {
            match sys::receive_one(self.socket.as_fd(), trash) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => return true,
            }
        }
        self.delivered()
    }
}

impl Tcp {
    /// Lets a closed link's socket live until `bytes` have been delivered. It is watched as a link's socket so far.
    pub(super) fn linger(&mut self, socket: OwnedFd, bytes: Vec<u8>) {
        let now_ms = sys::now_ms();
        let mut linger = Linger {
            socket,
            generation: self.next_generation(),
            deadline_ms: now_ms + LINGER_MS,
            bytes,
            sent: 0,
            shut: false,
        };
        let mut trash = [0; 4096];
        if linger.advance(&mut trash) {
            return;
        }
        let flags = if linger.shut { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
        let entry = self.lingers.vacant_entry();
        let Ok(index) = u32::try_from(entry.key()) else { return };
        let data = epoll::EventData::new_u64(Token::Linger(index, linger.generation).pack());
        if epoll::add(&self.epoll, &linger.socket, data, flags).is_err() {
            return;
        }
        entry.insert(linger);
        self.set_timer(now_ms + LINGER_CHECK_MS);
        self.pace.wake();
    }

    /// Something happened to, or it is time to look at, a lingering socket.
    pub(super) fn linger_event(&mut self, index: u32) {
        let mut trash = [0; 16 * 1024];
        let Some(linger) = self.lingers.get_mut(index as usize) else { return };
        let was_shut = linger.shut;
        if linger.advance(&mut trash) {
            self.end_linger(index);
        } else if linger.shut && !was_shut {
            let data = epoll::EventData::new_u64(Token::Linger(index, linger.generation).pack());
            if epoll::modify(&self.epoll, &linger.socket, data, epoll::EventFlags::IN).is_err() {
                self.end_linger(index);
            }
        }
    }

    /// Closes a lingering socket.
    pub(super) fn end_linger(&mut self, index: u32) {
        if let Some(linger) = self.lingers.try_remove(index as usize) {
            self.unwatch(&linger.socket);
        }
    }
}
