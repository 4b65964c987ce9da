//! Links that our side has closed and whose last bytes are still on their way.
//!
//! Place in the data flow: [`Tcp::part`] takes over a link that is closed, with what must still leave (the
//! tail of a segment, the messages, the goodbye); [`super::progress`] calls [`Tcp::linger_event`] until it is
//! over. A socket that is closed while unread bytes lie in it, or while the peer still sends, resets the
//! connection and may take with it what the peer has not read yet; so what comes in is read and thrown away
//! until the peer has closed its end too, or its system has acknowledged everything.
//!
//! If the connection breaks before, it is made anew as that of any link ([`super::resume`]), and the end of
//! the stream is said once more: what was accepted before the close still arrives. Only pushes are let go of;
//! whoever lacks bytes of one gets no more.
//!
//! Invariants: nothing of such a link goes to the sink, and it is described to nobody. It is given up when
//! nothing has gone on for [`LINGER_MS`], and after [`CLOSED_MS`]; no more than [`PARTINGS`] wait for another
//! connection.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::Shutdown;
use weft_engine::mem::IovList;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Sink};

use super::rx::{Heeded, Intake, Stage};
use super::stream::Wire;
use super::sys::{self, Pieces};
use super::tx::Rest;
use super::wire;
use super::{Link, State, Task, Tcp, Token};

/// For so long nothing may go on.
const LINGER_MS: u64 = 5000;
/// Longest time for the last bytes to arrive.
const CLOSED_MS: u64 = 30_000;
/// How often it is checked whether the peer has acknowledged everything.
const LINGER_CHECK_MS: u64 = 20;
/// Closed links whose connections are being made anew: they hold memory, and a peer may be the reason.
const PARTINGS: usize = 256;

/// The end of a stream.
#[derive(Debug)]
pub(super) struct Linger {
    /// When it is given up.
    pub(super) until_ms: u64,
    /// The same, if nothing goes on.
    deadline_ms: u64,
    /// Bytes that had not arrived when it was last looked at.
    left: usize,
    /// What the socket has to be given, as far as it has not been.
    bytes: Vec<u8>,
    sent: usize,
    shut: bool,
    /// What stands before the messages that are kept.
    rest: Rest,
    /// Where the peer's stream stood when the link was closed.
    pub(super) heeded: Heeded,
}

/// Where it stands.
enum Outcome {
    Goes,
    /// The socket may be closed.
    Over,
    /// The connection has broken, and something may be lost.
    Broken,
}

/// Hears nothing.
struct Deaf;

impl Sink for Deaf {
    fn up(&mut self, _: LinkId, _: LinkUp) {}
    fn down(&mut self, _: LinkId, _: LinkError) {}
    fn message(&mut self, _: LinkId, _: &[u8]) {}
    fn place(&mut self, _: LinkId, _: u64, _: u64, _: usize) -> Option<IovList> {
        None
    }
    fn placed(&mut self, _: LinkId, _: u64, _: u64, _: usize) {}
    fn done(&mut self, _: LinkId, _: u64, _: Result<(), LinkError>) {}
}

impl Linger {
    /// Whether everything has been handed over and acknowledged, so that closing the socket loses nothing.
    fn delivered(&self, socket: BorrowedFd<'_>) -> bool {
        self.shut && sys::unacknowledged(socket) == 0
    }

    /// Whether all bytes have been acknowledged. Of the end, which counts as one byte, the system takes care
    /// when the socket is closed. A system whose process does not read may acknowledge it 40 ms late.
    fn arrived(&self, socket: BorrowedFd<'_>) -> bool {
        self.shut && sys::unacknowledged(socket) <= 1
    }

    /// Hands over what the socket takes. An error: the connection has broken.
    fn write(&mut self, socket: BorrowedFd<'_>) -> Result<(), Errno> {
        if self.shut {
            return Ok(());
        }
        let mut pieces = Pieces::new();
        pieces.bytes(&self.bytes[self.sent..]);
        match sys::send(socket, &pieces) {
            Ok(n) => self.sent += n,
            Err(Errno::AGAIN) => {}
            Err(errno) => return Err(errno),
        }
        if self.sent == self.bytes.len() {
            (self.bytes, self.sent) = (Vec::new(), 0);
            self.shut = true;
            rustix::net::shutdown(socket, Shutdown::Write)?;
        }
        Ok(())
    }

    /// Goes on as far as possible without waiting.
    fn advance<W: Wire>(
        &mut self,
        socket: BorrowedFd<'_>,
        wire: W,
        stage: &mut Stage,
        rx: &mut Intake,
        id: LinkId,
    ) -> Outcome {
        let written = self.write(socket);
        let (bytes, end) = stage.read_all(wire, &mut rx.rx, id, &mut Deaf);
        rx.took(bytes);
        if let Some(heard) = stage.heard() {
            rx.discount(&heard);
        }
        match end {
            _ if self.delivered(socket) => Outcome::Over,
            Some(LinkError::Gone) => Outcome::Broken,
            // The peer has said that it hears nothing more.
            Some(_) => Outcome::Over,
            None if written.is_err() => Outcome::Broken,
            None => Outcome::Goes,
        }
    }
}

impl Tcp {
    /// A link is closed: what was accepted is still to arrive, and the goodbye.
    pub(super) fn part(&mut self, id: u32) {
        let now_ms = sys::now_ms();
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let rest = self.writer.part(&mut link.tx);
        let until_ms = now_ms + CLOSED_MS;
        let heeded = link.rx.heeded();
        if link.rx.held_bytes() > 0 {
            // The rest of the message is thrown away, and needs no buffer.
            self.stage.recycle(link.rx.rewind_to(heeded));
        }
        let (deadline_ms, left, bytes, sent, shut) = (0, 0, Vec::new(), 0, false);
        let linger = Linger { until_ms, deadline_ms, left, bytes, sent, shut, rest, heeded };
        self.agenda.add(Task::Close, id);
        log::debug!("tcp: link {id} is closed");
        if let State::Broken(redial) = &mut link.state {
            redial.closed = Some(Box::new(linger));
            return self.limit_partings(id);
        }
        let bytes = self.writer.farewell(&mut link.tx, &link.rx, linger.rest.bytes());
        self.agenda.remove(Task::AwaitWritable, id);
        if self.agenda.remove(Task::AckDue, id) {
            link.rx.on_agenda(false);
        }
        self.depart(id, Box::new(linger), bytes, now_ms);
    }

    /// A closed link has a connection again, on which the peer expects its stream from `position` on.
    pub(super) fn part_again(&mut self, id: u32, linger: Box<Linger>, position: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        match link.tx.end_from(position, &linger.rest) {
            Some(mut bytes) => {
                bytes.extend_from_slice(&wire::goodbye());
                self.depart(id, linger, bytes, sys::now_ms());
            }
            // It lacks bytes of a push.
            None => self.retire(id),
        }
    }

    /// Has a closed link's connection carry `bytes`, the last ones.
    fn depart(&mut self, id: u32, mut linger: Box<Linger>, bytes: Vec<u8>, now_ms: u64) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        linger.bytes = self.secrets.finish(id, bytes);
        (linger.sent, linger.shut) = (0, false);
        (linger.deadline_ms, linger.left) = (now_ms + LINGER_MS, usize::MAX);
        link.tx.unproven = true;
        link.state = State::Closed(linger);
        self.set_timer(now_ms + LINGER_CHECK_MS);
        self.pace.wake();
        self.linger_event(id);
    }

    /// Something happened to a closed link's socket, or it is time to look at it.
    pub(super) fn linger_event(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id as usize) else { return };
        let (State::Closed(linger), Some(socket)) = (&mut link.state, &link.socket) else { return };
        let fd = socket.as_fd();
        let outcome = match self.secrets.of(id, fd) {
            Some(sealed) => linger.advance(fd, sealed, &mut self.stage, &mut link.rx, LinkId(id)),
            None => linger.advance(fd, fd, &mut self.stage, &mut link.rx, LinkId(id)),
        };
        match outcome {
            Outcome::Goes => {
                let flags =
                    if linger.shut { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
                let data = epoll::EventData::new_u64(Token::Link(id, link.generation).pack());
                if let Err(errno) = epoll::modify(&self.epoll, socket, data, flags) {
                    sys::cannot_watch(errno);
                }
            }
            Outcome::Broken if self.lost(id, 0) => self.limit_partings(id),
            Outcome::Broken | Outcome::Over => self.retire(id),
        }
    }

    /// Gives a closed link up whose connection broke, where there are too many of them.
    fn limit_partings(&mut self, id: u32) {
        let is_parting = |&id: &u32| self.links.get(id as usize).is_some_and(Link::is_closed);
        if self.agenda.links(Task::Connect).filter(is_parting).count() > PARTINGS {
            self.retire(id);
        }
    }

    /// A closed link is over.
    pub(super) fn retire(&mut self, id: u32) {
        let Some(mut link) = self.links.try_remove(id as usize) else { return };
        log::debug!("tcp: closed link {id} is over");
        self.forget(id, &link);
        self.secrets.set(id, None);
        self.writer.forget(&mut link.tx);
        self.stage.recycle(link.rx.rx);
    }

    /// Whether everything that a closed link had to say has reached the peer's system.
    pub(super) fn has_parted(&self, id: u32) -> bool {
        self.links.get(id as usize).is_none_or(|link| match (&link.state, &link.socket) {
            (State::Closed(linger), Some(socket)) => linger.arrived(socket.as_fd()),
            _ => false,
        })
    }

    /// Looks after closed links.
    pub(super) fn time_closed(&mut self, now_ms: u64) {
        for id in self.agenda.links(Task::Close).collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(id as usize) else { continue };
            let (State::Closed(linger), Some(socket)) = (&mut link.state, &link.socket) else { continue };
            if linger.delivered(socket.as_fd()) {
                self.retire(id);
                continue;
            }
            let left = linger.bytes.len() - linger.sent + sys::unacknowledged(socket.as_fd());
            if left < linger.left {
                (linger.left, linger.deadline_ms) = (left, now_ms + LINGER_MS);
            }
            if now_ms < linger.deadline_ms.min(linger.until_ms) {
                continue;
            }
            // A host that is silent may have lost the connection; one that answers does not read.
            let silent = sys::liveness(socket.as_fd()).is_some_and(|state| state.unanswered > 0);
            if !(silent && self.lost(id, 0)) {
                self.retire(id);
            }
        }
        if !self.agenda.is_empty(Task::Close) {
            self.set_timer(now_ms + LINGER_CHECK_MS);
        }
    }
}
