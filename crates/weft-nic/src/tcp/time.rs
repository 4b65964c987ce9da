//! What the TCP device does by the clock: attempts, acknowledgements, hosts that have fallen silent.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::run_timers`] when the next of them is due.
//!
//! Invariants: nobody is late before its socket has been asked. The process may have been away, and a poll is
//! told of [`super::EVENTS`] sockets only.

use std::os::fd::AsFd;

use weft_engine::nic::{LinkError, Sink};

use super::initiator::Failure;
use super::{Link, State, Task, Tcp, sys};

/// A connection is suspected after this part of the time after which a silent host is given up.
const STALLS: u64 = 6;
/// An acknowledgement may be missing for so many tries before a host is suspected.
const UNANSWERED: u32 = 2;

impl Tcp {
    /// Does what is due, and finds out when something is due next.
    pub(super) fn run_timers<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        self.next_timer_ms = u64::MAX;
        self.time_listener(now_ms);
        self.time_calls(sink, now_ms);
        self.time_halves(now_ms, sink);
        self.time_closed(now_ms);
        self.time_acks(now_ms);
        if now_ms >= self.next_scan_ms {
            self.scan(sink, now_ms);
        }
        self.set_timer(self.next_scan_ms);
    }

    fn time_calls<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        for id in self.agenda.links(Task::Connect).collect::<Vec<_>>() {
            let Some(link) = self.links.get(id as usize) else { continue };
            let State::Calling(attempt) = &link.state else {
                self.redial_when_due(id, now_ms);
                continue;
            };
            if attempt.expired(now_ms) {
                self.call(id, sink, now_ms);
            } else if attempt.wants_dial(now_ms) {
                self.dial(id, now_ms);
            }
            let Some(Link { state: State::Calling(attempt), .. }) = self.links.get(id as usize) else { continue };
            if attempt.expired(now_ms) {
                log::debug!("tcp: no answer from {}", attempt.peer());
                self.end(id, LinkError::Timeout, sink);
            } else {
                self.set_timer(attempt.wake_ms());
            }
        }
    }

    /// Peers whose messages have come for a while are told, so that they need not keep them.
    fn time_acks(&mut self, now_ms: u64) {
        if now_ms < self.next_ack_ms {
            return self.set_timer(self.next_ack_ms);
        }
        self.next_ack_ms = u64::MAX;
        let due = self.agenda.take(Task::AckDue);
        for id in due.links() {
            if let Some(link) = self.links.get_mut(id as usize) {
                link.rx.on_agenda(false);
                let owes = link.rx.owes();
                self.tell(id, owes);
            }
        }
    }

    /// Has [`Self::scan`] look at hosts from now on.
    pub(super) fn plan_scan(&mut self) {
        if self.next_scan_ms == u64::MAX && self.config.dead_peer_ms > 0 {
            self.next_scan_ms = sys::now_ms() + self.scan_ms();
            self.set_timer(self.next_scan_ms);
        }
    }

    /// Looks for hosts that have vanished with our bytes under way, those of a handshake among them:
    /// keep-alive probes are not sent then, and the kernel's own limit is a quarter of an hour. A peer that
    /// merely does not read answers the kernel's window probes and is left alone, however long it computes
    /// (TCP_USER_TIMEOUT would end its link).
    fn scan<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        let patience_ms = self.patience_ms();
        let mut silent: Vec<(u32, u64)> = Vec::new();
        for (id, link) in &mut self.links {
            let watched = match &link.state {
                State::Calling(attempt) => attempt.awaits_peer(),
                State::Broken(redial) => redial.awaits_peer(),
                State::Up | State::Closed(_) => link.tx.unproven,
                // The next poll tells of it.
                State::Failed(_) => false,
            };
            let Some(socket) = link.socket.as_ref().filter(|_| watched) else { continue };
            let fd = socket.as_fd();
            if sys::unacknowledged(fd) == 0 {
                link.tx.unproven = false;
            } else if let Some(state) = sys::liveness(fd)
                && state.unanswered >= UNANSWERED
                && u64::from(state.silent_ms) >= patience_ms
            {
                silent.extend(u32::try_from(id).map(|id| (id, state.silent_ms.into())));
            }
        }
        for (id, silent_ms) in silent {
            log::debug!("tcp: the host of link {id} has not answered for {silent_ms} ms");
            match self.links.get_mut(id as usize).map(|link| &mut link.state) {
                Some(State::Calling(attempt)) => {
                    attempt.has_lost(&self.config, now_ms);
                    self.retry(id, Failure::Retry(LinkError::Timeout), now_ms);
                }
                Some(State::Broken(_)) => self.redial_failed(id, Failure::Retry(LinkError::Timeout), now_ms),
                _ => {
                    if !self.lost(id, silent_ms) {
                        self.end(id, LinkError::Cut, sink);
                    }
                }
            }
        }
        self.next_scan_ms = if self.links.is_empty() { u64::MAX } else { now_ms + self.scan_ms() };
    }

    /// How long a host may be silent with our bytes under way. Where a new connection can be tried, in vain
    /// at worst, it is tried earlier: something between may have forgotten the old one.
    fn patience_ms(&self) -> u64 {
        self.config.dead_peer_ms / if self.config.resume_ms > 0 { STALLS } else { 1 }
    }

    /// How often hosts are looked at.
    fn scan_ms(&self) -> u64 {
        (self.patience_ms() / 2).clamp(10, (self.config.dead_peer_ms / 4).max(10))
    }
}
