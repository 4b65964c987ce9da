//! Connections that peers make, until they are links: bounded in number and in time, whoever makes them.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::accept`] and [`Tcp::half_event`] for what epoll
//! reports, [`super::time`] the rest; what is said in a half-open connection is in [`super::connect`].

use std::os::fd::AsFd;

use rustix::event::epoll;
use rustix::io::Errno;
use weft_engine::nic::{LinkError, Nic as _, Sink};
use weft_os::Unshared;

use super::connect::{Found, Half, Source, Step, turn_away};
use super::{State, Tcp, Token, sys};

/// Connections accepted in one poll, and in one tick of the clock while half-open ones crowd: who floods the
/// port gets a small part of the time.
pub(super) const ACCEPTS: usize = 32;
/// For so long the listener is set aside when there are too many connections, or no descriptors.
const LISTENER_PAUSE_MS: u64 = 50;

/// How many connections may still be accepted in this tick of the clock.
#[derive(Debug, Default)]
pub(super) struct Accepts {
    tick_ms: u64,
    taken: usize,
}

impl Accepts {
    /// Takes one, if any is left.
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
                Ok((socket, from)) => {
                    self.greet(socket, Source::of(from), now_ms, sink);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                    // Who has proven nothing is the first to go.
                    if !self.make_room(now_ms) || self.halves.is_empty() {
                        self.tell_of_shortage();
                        if let Some(link) = sink.spare_link(&|_| true) {
                            // The caller that waits may be an expected peer, and has to prove it.
                            self.discard(link);
                            continue;
                        }
                        self.hang_up();
                        return self.pause_listener(now_ms, LISTENER_PAUSE_MS);
                    }
                }
                // A connection that died in the queue; errors of the network below it, see accept(2).
                Err(_) => {}
            }
        }
    }

    /// Nobody can be let in: whoever has waited for longest learns it, and calls again some times, before it
    /// takes us for a host that is silent.
    fn hang_up(&mut self) {
        self.spare = None;
        if let Ok((socket, _)) = sys::accept(self.listener.as_fd()) {
            turn_away(socket.as_fd());
        }
        self.spare = self.timer.try_clone().ok();
    }

    /// Once, and not again while it goes on.
    fn tell_of_shortage(&mut self) {
        if !std::mem::replace(&mut self.short, true) {
            log::warn!("tcp: out of descriptors or memory: new connections wait; raise `ulimit -n`");
        }
    }

    /// Drops a half-open connection. If one source has most of them, the one of its that has waited for
    /// longest; else the one that has outstayed its grace for longest, if any has. Returns whether there is
    /// room.
    fn make_room(&mut self, now_ms: u64) -> bool {
        let count = |source| self.halves.iter().filter(|(_, half)| half.source == source).count();
        let newest = self.halves.iter().max_by_key(|(_, half)| half.since_ms).map(|(_, half)| half.source);
        // Whoever has most of them is likely to have the newest one; if not, it will in one of the next calls.
        let flooding = newest.filter(|&source| count(source) * 2 > self.halves.len());
        let candidates = self.halves.iter().filter(|(_, half)| flooding.is_none_or(|source| half.source == source));
        let Some((index, half)) = candidates.min_by_key(|(_, half)| half.yields_at_ms()) else { return true };
        if flooding.is_none() && now_ms < half.yields_at_ms() {
            return false;
        }
        self.refuse(index, LinkError::Timeout);
        true
    }

    /// The listener would be reported again and again: it is set aside for a while.
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

    /// A connection has been made by somebody.
    fn greet<S: Sink>(&mut self, socket: Unshared, source: Source, now_ms: u64, sink: &mut S) {
        self.short = false;
        let generation = self.next_generation();
        let half = Half::new(socket, source, generation, now_ms);
        let deadline_ms = half.deadline_ms(&self.config);
        let index = self.halves.insert(half);
        let Ok(id) = u32::try_from(index) else { return };
        let data = epoll::EventData::new_u64(Token::Half(id, generation).pack());
        if let Err(errno) = epoll::add(&self.epoll, &self.halves[index].socket, data, epoll::EventFlags::IN) {
            sys::cannot_watch(errno);
            self.halves.remove(index);
            return;
        }
        self.set_timer(deadline_ms);
        // The hello is often there already.
        self.half_event(id, generation, sink);
    }

    /// Goes on with a handshake that a peer began.
    pub(super) fn half_event<S: Sink>(&mut self, index: u32, generation: u32, sink: &mut S) {
        let at = index as usize;
        let Some(half) = self.halves.get_mut(at).filter(|half| half.generation == generation) else { return };
        match half.advance(&self.local) {
            Ok(Step::Wait) => {}
            Ok(Step::Up(found)) => {
                let half = self.halves.remove(at);
                self.adopt(half, *found, sink);
            }
            Ok(Step::Returns(hello)) => match self.answer_return(&hello, self.halves[at].socket.as_fd()) {
                Ok(returning) => {
                    self.halves[at].returning = Some(returning);
                    // The finish is not there yet, or would be missed if it were.
                    self.half_event(index, generation, sink);
                }
                Err(why) => self.refuse(at, why),
            },
            Ok(Step::Returned(finish)) => self.take_back(at, &finish),
            Err(why) => self.refuse(at, why),
        }
    }

    /// A half-open connection has become a link.
    #[inline(never)]
    fn adopt<S: Sink>(&mut self, half: Half, found: Found, sink: &mut S) {
        let generation = self.next_generation();
        let Ok(id) = self.insert(Some(half.socket), generation, State::Up) else { return };
        let data = epoll::EventData::new_u64(Token::Link(id, generation).pack());
        let socket = self.links.get(id as usize).and_then(|link| link.socket.as_ref());
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
            let denied = matches!(why, LinkError::Denied | LinkError::Encryption);
            self.stats.denied += u64::from(denied);
            // Nobody fills the log: the first, second, fourth, eighth, … denial is told.
            let loud = denied && self.stats.denied.is_power_of_two();
            let level = if loud { log::Level::Warn } else { log::Level::Debug };
            log::log!(level, "tcp: a connection from {} was refused: {why}", half.source);
            self.unwatch(&half.socket);
        }
    }

    /// Watches the listener again when it is time to.
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

    /// Drops half-open connections that have taken too long.
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
