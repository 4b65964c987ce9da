//! Incoming connections before they are links: bounded in number and in time, whatever the peers do.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::accept`] and [`Tcp::half_event`] for the reports of epoll,
//! and [`super::time`] calls the timers. The handshake of a half-open connection is in [`super::half_open`].

use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::io::Errno;
use weft_engine::nic::{LinkError, Nic as _, Sink};
use weft_os::ForkClosedFd;

use super::connect::ProvenPeer;
use super::half_open::{HalfOpen, Source, Step, answer_no_room};
use super::{LinkState, Tcp, Token, sys};

/// Limit of accepted connections in one poll. It also applies to one tick of the clock while half-open connections
/// crowd, so that a flood of the port takes a small part of the time.
pub(super) const ACCEPTS: usize = 32;
/// Time in milliseconds for which the listener is paused when there are too many connections, or no descriptors.
const LISTENER_PAUSE_MS: u64 = 50;

/// The connections accepted in the current tick of the clock.
#[derive(Debug, Default)]
pub(super) struct Accepts {
    tick_ms: u64,
    taken: usize,
}

impl Accepts {
    /// Counts a connection. Returns whether it is within the limit.
    fn take(&mut self, now_ms: u64) -> bool {
        if self.tick_ms != now_ms {
            *self = Self { tick_ms: now_ms, taken: 0 };
        }
        self.taken += 1;
        self.taken <= ACCEPTS
    }
}

impl Tcp {
    pub(super) fn accept<S: Sink>(&mut self, now_ms: u64, sink: &mut S) {
        for _ in 0..ACCEPTS {
            let crowded = self.halves.len() * 2 >= self.config.half_open;
            if crowded && !self.accepts.take(now_ms) {
                return self.pause_listener(now_ms, 1);
            }
            if self.halves.len() >= self.config.half_open && !self.make_room(now_ms) {
                return self.pause_listener(now_ms, LISTENER_PAUSE_MS);
            }
            match sys::accept(self.listener.as_fd()) {
                // An endpoint with several addresses listens at all of the host.
                Ok((socket, _)) if !sys::is_admitted(socket.as_fd(), &self.config.admitted) => {}
                Ok((socket, from)) => {
                    self.begin_handshake(socket, Source::of(from), now_ms, sink);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // A half-open connection, which has proven nothing, is dropped first.
                    if !self.make_room(now_ms) || self.halves.is_empty() {
                        self.warn_of_shortage();
                        if let Some(link) = sink.spare_link(&|_| true) {
                            // The waiting caller may be an expected peer, and must prove it.
                            self.discard(link);
                            continue;
                        }
                        self.refuse_next();
                        return self.pause_listener(now_ms, LISTENER_PAUSE_MS);
                    }
                }
                // The connection died in the queue, or the network below failed; see accept(2).
                Err(_) => {}
            }
        }
    }

    /// Rejects the longest-waiting caller, because no connection can be accepted. The caller tries again several times.
    /// Without an answer it would take this host for unreachable.
    fn refuse_next(&mut self) {
        self.spare = None;
        if let Ok((socket, _)) = sys::accept(self.listener.as_fd()) {
            answer_no_room(socket.as_fd());
        }
        self.spare = self.timer.try_clone().ok();
    }

    /// Logs the shortage once while it lasts.
    fn warn_of_shortage(&mut self) {
        if !std::mem::replace(&mut self.shortage_logged, true) {
            let limit = weft_os::descriptors::most().map_or("any number".to_owned(), |limit| limit.to_string());
            log::warn!(
                "tcp: out of descriptors or memory: new connections wait; this process may have {limit} descriptors: raise `ulimit -n`"
            );
        }
    }

    /// Drops a half-open connection. If one source has most of them, its oldest one is dropped; otherwise the one whose
    /// grace period ended first, if any has ended. Returns whether there is room.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let count = |source| self.halves.iter().filter(|(_, half)| half.source == source).count();
        let newest = self.halves.iter().max_by_key(|(_, half)| half.since_ms).map(|(_, half)| half.source);
        // The source of most connections probably also has the newest one; otherwise it will in one of the next calls.
        let flooding = newest.filter(|&source| count(source) * 2 > self.halves.len());
        let candidates = self.halves.iter().filter(|(_, half)| flooding.is_none_or(|source| half.source == source));
        let Some((index, half)) = candidates.min_by_key(|(_, half)| half.yields_at_ms()) else { return true };
        if flooding.is_none() && now_ms < half.yields_at_ms() {
            return false;
        }
        self.refuse(index, LinkError::Timeout);
        true
    }

    /// Pauses the listener, which epoll would otherwise report again and again.
    fn pause_listener(&mut self, now_ms: u64, pause_ms: u64) {
        let data = epoll::EventData::new_u64(Token::Listener.pack());
        match epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::empty()) {
            Ok(()) => {
                let resume_ms = now_ms + pause_ms;
                self.listener_resume_ms = Some(resume_ms);
                self.set_timer(resume_ms);
            }
            Err(errno) => sys::cannot_watch(errno),
        }
    }

    /// Begins the handshake of an accepted connection.
    fn begin_handshake<S: Sink>(&mut self, socket: ForkClosedFd, source: Source, now_ms: u64, sink: &mut S) {
        self.shortage_logged = false;
        let generation = self.next_generation();
        let half = HalfOpen::new(socket, source, generation, now_ms);
        let deadline_ms = half.deadline_ms(&self.config);
        let index = self.halves.insert(half);
        let Ok(id) = u32::try_from(index) else { return };
        let data = epoll::EventData::new_u64(Token::HalfOpen(id, generation).pack());
        if let Err(errno) = epoll::add(&self.epoll, &self.halves[index].socket, data, epoll::EventFlags::IN) {
            sys::cannot_watch(errno);
            self.halves.remove(index);
            return;
        }
        self.set_timer(deadline_ms);
        // The hello has often arrived already.
        self.half_event(id, generation, sink);
    }

    /// Continues a handshake that a peer began.
    pub(super) fn half_event<S: Sink>(&mut self, index: u32, generation: u32, sink: &mut S) {
        let at = index as usize;
        let Some(half) = self.halves.get_mut(at).filter(|half| half.generation == generation) else { return };
        match half.advance(&self.local) {
            Ok(Step::Wait) => {}
            Ok(Step::Up(found)) => {
                let half = self.halves.remove(at);
                self.adopt(half, *found, sink);
            }
            Ok(Step::Returns(hello)) => match self.answer_resumption(&hello, self.halves[at].socket.as_fd()) {
                Ok(resumption) => {
                    self.halves[at].resume(resumption);
                    // The finish may have arrived already.
                    self.half_event(index, generation, sink);
                }
                Err(why) => self.refuse(at, why),
            },
            Ok(Step::Returned(finish)) => self.judge_resumption(at, &finish),
            Err(why) => self.refuse(at, why),
        }
    }

    /// Turns a half-open connection into a link.
    #[inline(never)]
    fn adopt<S: Sink>(&mut self, half: HalfOpen, found: ProvenPeer, sink: &mut S) {
        let generation = self.next_generation();
        let Ok(id) = self.insert(Some(half.socket), generation, LinkState::Up) else { return };
        let data = epoll::EventData::new_u64(Token::Link(id, generation).pack());
        let socket = self.links.get(id).and_then(|link| link.socket.as_ref());
        let watched = socket.map(|socket| epoll::modify(&self.epoll, socket, data, epoll::EventFlags::IN));
        if let Some(Err(errno)) = watched {
            sys::cannot_watch(errno);
        }
        self.up(id, found, false, sink);
    }

    #[cold]
    pub(super) fn refuse(&mut self, index: usize, why: LinkError) {
        if let Some(half) = self.halves.try_remove(index) {
            self.stats.refused += 1;
            let denied = matches!(why, LinkError::Denied | LinkError::Encryption | LinkError::Version(_));
            self.stats.denied += u64::from(denied);
            // A flood of denials must not fill the log: only the first, second, fourth, eighth, … denial is a warning.
            let loud = denied && self.stats.denied.is_power_of_two();
            let level = match why {
                // Nothing but another version helps, on one of the two sides.
                LinkError::Version(_) if loud => log::Level::Error,
                _ if loud => log::Level::Warn,
                _ => log::Level::Debug,
            };
            log::log!(target: crate::PEER_ERRORS, level, "tcp: a connection from {} was refused: {why}", half.source);
            self.unwatch(&half.socket);
        }
    }

    /// Watches the listener again after its pause.
    pub(super) fn time_listener(&mut self, now_ms: u64) {
        let Some(resume_ms) = self.listener_resume_ms else { return };
        if now_ms < resume_ms {
            return self.set_timer(resume_ms);
        }
        if self.spare.is_none() {
            self.spare = self.timer.try_clone().ok();
        }
        let data = epoll::EventData::new_u64(Token::Listener.pack());
        match epoll::modify(&self.epoll, &self.listener, data, epoll::EventFlags::IN) {
            Ok(()) => self.listener_resume_ms = None,
            Err(errno) => {
                sys::cannot_watch(errno);
                self.set_timer(now_ms + LISTENER_PAUSE_MS);
            }
        }
    }

    /// Drops half-open connections whose time limit has passed.
    pub(super) fn time_halves<S: Sink>(&mut self, now_ms: u64, sink: &mut S) {
        let mut late: Vec<(u32, u32)> = Vec::new();
        let mut next_ms = u64::MAX;
        for (index, half) in &self.halves {
            let deadline_ms = half.deadline_ms(&self.config);
            if now_ms >= deadline_ms {
                late.extend(u32::try_from(index).map(|index| (index, half.generation)));
            } else {
                next_ms = next_ms.min(deadline_ms);
            }
        }
        for (index, generation) in late {
            self.half_event(index, generation, sink);
            let Some(half) = self.halves.get(index as usize) else { continue };
            let deadline_ms = half.deadline_ms(&self.config);
            if now_ms >= deadline_ms {
                self.refuse(index as usize, LinkError::Timeout);
            } else {
                next_ms = next_ms.min(deadline_ms);
            }
        }
        self.set_timer(next_ms);
    }
}
