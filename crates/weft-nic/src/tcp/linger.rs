//! Links that this side has closed and whose last bytes are still being sent.
//!
//! Place in the data flow: [`Tcp::close_gracefully`] takes over a closed link with its last bytes: the tail of a
//! segment, the messages, the goodbye. [`super::progress`] calls [`Tcp::linger_event`] until they have arrived. Closing
//! a socket with unread bytes, or while the peer still sends, resets the connection, which may destroy bytes that the
//! peer has not read. Incoming bytes are therefore read and discarded until the peer has closed its side, or its system
//! has acknowledged everything.
//!
//! If the connection breaks earlier, the link is resumed like any other ([`super::resume`]), and the end of the stream
//! is sent again. Messages that were accepted before the close thus arrive. Pushes are dropped: a peer that lacks bytes
//! of one does not get them.
//!
//! Invariants: a closed link reports nothing to the sink and is not described. It is given up when no byte has been
//! acknowledged for [`LINGER_MS`], and after [`CLOSED_MS`] in any case. At most [`LINGERING_MAX`] closed links wait for
//! another connection.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::net::Shutdown;
use weft_engine::mem::IovList;
use weft_engine::nic::{LinkError, LinkId, LinkUp, Sink};

use super::rx::{CloseMark, Intake, StagingBuffer};
use super::stream::Wire;
use super::sys::{self, Pieces};
use super::tx::Rest;
use super::wire;
use super::{Link, LinkState, Task, Tcp, Token};

/// Time limit in milliseconds without progress.
const LINGER_MS: u64 = 5000;
/// Time limit in milliseconds for the last bytes to arrive.
const CLOSED_MS: u64 = 30_000;
/// The interval in milliseconds at which the peer's acknowledgements are checked.
const LINGER_CHECK_MS: u64 = 20;
/// Limit of closed links that are being resumed. They hold memory, and a peer may have caused the break.
const LINGERING_MAX: usize = 256;

/// The end of a stream.
#[derive(Debug)]
pub(super) struct Linger {
    /// The time at which the link is given up.
    pub(super) until_ms: u64,
    /// The time at which the link is given up unless there is progress.
    deadline_ms: u64,
    /// Bytes that had not arrived at the last check.
    left: usize,
    /// The last bytes of the connection. The first `sent` of them have been handed to the kernel.
    bytes: Vec<u8>,
    sent: usize,
    shut: bool,
    /// The bytes of the stream before the messages that are kept.
    rest: Rest,
    /// The state of the peer's stream when the link was closed.
    pub(super) close_mark: CloseMark,
}

/// The state of the end of a stream.
enum Outcome {
    Pending,
    /// The socket may be closed.
    Done,
    /// The connection has broken, and bytes may be lost.
    Broken,
}

/// Discards all frames.
struct Discard;

impl Sink for Discard {
    weft_engine::ignore_events!(confirmed, peer, holds_more, spare_link, board);
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
    /// Whether the peer's system has acknowledged everything, so that closing the socket loses nothing.
    fn delivered(&self, socket: BorrowedFd<'_>) -> bool {
        self.shut && sys::unacknowledged(socket) == 0
    }

    /// Whether all bytes have been acknowledged. The end of the stream counts as one byte. The system delivers it after
    /// the socket is closed. A peer's system whose process does not read may acknowledge it 40 ms late.
    fn arrived(&self, socket: BorrowedFd<'_>) -> bool {
        self.shut && sys::unacknowledged(socket) <= 1
    }

    /// Writes as much as the socket accepts. An error: the connection has broken.
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

    /// Continues as far as possible without waiting.
    fn advance<W: Wire>(
        &mut self,
        socket: BorrowedFd<'_>,
        wire: W,
        stage: &mut StagingBuffer,
        rx: &mut Intake,
        id: LinkId,
    ) -> Outcome {
        let written = self.write(socket);
        let (bytes, end) = stage.read_all(wire, &mut rx.rx, id, &mut Discard);
        rx.received(bytes);
        if let Some(ack_info) = stage.ack_info() {
            rx.discount(&ack_info);
        }
        match end {
            _ if self.delivered(socket) => Outcome::Done,
            Some(LinkError::Gone) => Outcome::Broken,
            // The peer has closed the link, too, and reads nothing more.
            Some(_) => Outcome::Done,
            None if written.is_err() => Outcome::Broken,
            None => Outcome::Pending,
        }
    }
}

impl Tcp {
    /// Closes a link. Its accepted messages and the goodbye must still arrive.
    pub(super) fn close_gracefully(&mut self, id: u32) {
        let now_ms = sys::now_ms();
        self.drop_rails(id);
        let Some(link) = self.links.get_mut(id) else { return };
        let rest = self.writer.abandon_pushes(&mut link.tx);
        let until_ms = now_ms + CLOSED_MS;
        let close_mark = link.rx.close_mark();
        if link.rx.held_bytes() > 0 {
            // The rest of the message is discarded, and needs no buffer.
            self.stage.recycle(link.rx.rewind_to(close_mark));
        }
        let (deadline_ms, left, bytes, sent, shut) = (0, 0, Vec::new(), 0, false);
        let linger = Linger { until_ms, deadline_ms, left, bytes, sent, shut, rest, close_mark };
        self.agenda.add(Task::Close, id);
        log::debug!("tcp: link {id} is closed");
        if let LinkState::Broken(redial) = &mut link.state {
            redial.closed = Some(Box::new(linger));
            return self.limit_lingering(id);
        }
        let bytes = self.writer.last_bytes(&mut link.tx, &link.rx, linger.rest.bytes());
        self.agenda.remove(Task::AwaitWritable, id);
        if self.agenda.remove(Task::AckDue, id) {
            link.rx.on_agenda(false);
        }
        self.send_last(id, Box::new(linger), bytes, now_ms);
    }

    /// Continues a closed link on its new connection. The peer expects this side's stream from `position` on.
    pub(super) fn linger_again(&mut self, id: u32, linger: Box<Linger>, position: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        match link.tx.end_from(position, &linger.rest) {
            Some(mut bytes) => {
                bytes.extend_from_slice(&wire::goodbye());
                self.send_last(id, linger, bytes, sys::now_ms());
            }
            // The peer lacks bytes of a push, which was dropped.
            None => self.remove_closed(id),
        }
    }

    /// Sends `bytes`, the last ones, on a closed link's connection.
    fn send_last(&mut self, id: u32, mut linger: Box<Linger>, bytes: Vec<u8>, now_ms: u64) {
        let Some(link) = self.links.get_mut(id) else { return };
        linger.bytes = self.secrets.finish(id, bytes);
        (linger.sent, linger.shut) = (0, false);
        (linger.deadline_ms, linger.left) = (now_ms + LINGER_MS, usize::MAX);
        link.tx.unproven = true;
        link.state = LinkState::Closed(linger);
        self.set_timer(now_ms + LINGER_CHECK_MS);
        self.pace.wake();
        self.linger_event(id);
    }

    /// Continues a closed link whose socket reported an event, or whose timer expired.
    pub(super) fn linger_event(&mut self, id: u32) {
        let Some(link) = self.links.get_mut(id) else { return };
        let (LinkState::Closed(linger), Some(socket)) = (&mut link.state, &link.socket) else { return };
        let fd = socket.as_fd();
        let outcome = match self.secrets.of(id, fd) {
            Some(sealed) => linger.advance(fd, sealed, &mut self.stage, &mut link.rx, LinkId(id)),
            None => linger.advance(fd, fd, &mut self.stage, &mut link.rx, LinkId(id)),
        };
        match outcome {
            Outcome::Pending => {
                let flags =
                    if linger.shut { epoll::EventFlags::IN } else { epoll::EventFlags::IN | epoll::EventFlags::OUT };
                let data = epoll::EventData::new_u64(Token::Link(id, link.generation).pack());
                if let Err(errno) = epoll::modify(&self.epoll, socket, data, flags) {
                    sys::cannot_watch(errno);
                }
            }
            Outcome::Broken if self.connection_lost(id, 0) => self.limit_lingering(id),
            Outcome::Broken | Outcome::Done => self.remove_closed(id),
        }
    }

    /// Gives up a closed link with a broken connection if there are too many of them.
    fn limit_lingering(&mut self, id: u32) {
        let is_lingering = |&id: &u32| self.links.get(id).is_some_and(Link::is_closed);
        if self.agenda.links(Task::Connect).filter(is_lingering).count() > LINGERING_MAX {
            self.remove_closed(id);
        }
    }

    /// Removes a closed link.
    pub(super) fn remove_closed(&mut self, id: u32) {
        let Some(mut link) = self.links.remove(id) else { return };
        log::debug!("tcp: closed link {id} has ended");
        self.forget(id, &link);
        self.secrets.set(id, None);
        self.writer.forget(&mut link.tx);
        self.stage.recycle(link.rx.rx);
    }

    /// Whether all last bytes of a closed link have reached the peer's system.
    pub(super) fn has_delivered_last(&self, id: u32) -> bool {
        self.links.get(id).is_none_or(|link| match (&link.state, &link.socket) {
            (LinkState::Closed(linger), Some(socket)) => linger.arrived(socket.as_fd()),
            _ => false,
        })
    }

    /// Checks all closed links.
    pub(super) fn time_closed(&mut self, now_ms: u64) {
        for id in self.agenda.links(Task::Close).collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(id) else { continue };
            let (LinkState::Closed(linger), Some(socket)) = (&mut link.state, &link.socket) else { continue };
            if linger.delivered(socket.as_fd()) {
                self.remove_closed(id);
                continue;
            }
            let left = linger.bytes.len() - linger.sent + sys::unacknowledged(socket.as_fd());
            if left < linger.left {
                (linger.left, linger.deadline_ms) = (left, now_ms + LINGER_MS);
            }
            if now_ms < linger.deadline_ms.min(linger.until_ms) {
                continue;
            }
            // The connection to a silent host may be lost. A host that answers merely does not read.
            let silent = sys::liveness(socket.as_fd()).is_some_and(|state| state.unanswered > 0);
            if !(silent && self.connection_lost(id, 0)) {
                self.remove_closed(id);
            }
        }
        if !self.agenda.is_empty(Task::Close) {
            self.set_timer(now_ms + LINGER_CHECK_MS);
        }
    }
}
