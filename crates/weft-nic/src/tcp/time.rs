//! The timers of the TCP device: attempts, acknowledgements, silent hosts.
//!
//! Place in the data flow: [`super::progress`] calls [`Tcp::run_timers`] when the next timer is due.
//!
//! Invariants: no peer is considered late before its socket has been read. This process may not have polled for a
//! while, and a poll reports at most [`super::EVENTS`] sockets.

use std::os::fd::AsFd;

use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId, Sink};

use super::initiator::Failure;
use super::{Link, LinkState, Task, Tcp, sys};

/// The part of the time limit for a silent host after which its connection is suspected.
const STALLS: u64 = 6;
/// The number of unanswered retransmissions before a host is suspected.
const UNANSWERED: u32 = 2;

impl Tcp {
    /// Runs the timers that are due, and computes the time of the next one.
    pub(super) fn run_timers<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        self.next_timer_ms = u64::MAX;
        self.time_listener(now_ms);
        self.time_calls(sink, now_ms);
        self.time_halves(now_ms, sink);
        self.time_closed(now_ms);
        self.time_acks(now_ms);
        self.time_rails(now_ms);
        self.time_sizing(now_ms);
        self.time_chains(now_ms);
        if now_ms >= self.next_scan_ms {
            self.scan(sink, now_ms);
        }
        self.set_timer(self.next_scan_ms);
    }

    fn time_calls<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        for id in self.agenda.links(Task::Connect).collect::<Vec<_>>() {
            let Some(link) = self.links.get(id) else { continue };
            let LinkState::Connecting(attempt) = &link.state else {
                self.redial_when_due(id, now_ms);
                continue;
            };
            if attempt.expired(now_ms) || attempt.is_silent(now_ms) {
                // This process may have been away, and the answer may be here.
                self.continue_attempt(id, sink, now_ms);
            } else if attempt.wants_dial(now_ms) {
                self.dial(id, now_ms);
            }
            self.ask_for_call(id, sink, now_ms);
            let Some(Link { state: LinkState::Connecting(attempt), .. }) = self.links.get(id) else { continue };
            if attempt.expired(now_ms) {
                log::debug!("tcp: no answer from {}", attempt.peer());
                self.end(id, LinkError::Timeout, sink);
            } else if attempt.is_silent(now_ms) {
                log::debug!("tcp: no answer from one address of {}", attempt.peer());
                self.retry(id, Failure::Retry(LinkError::Timeout), now_ms);
                self.dial(id, now_ms);
            } else {
                self.set_timer(attempt.wake_ms());
            }
        }
    }

    /// Reports an attempt that gets no connection.
    fn ask_for_call<S: Sink>(&mut self, id: u32, sink: &mut S, now_ms: u64) {
        let Some(Link { state: LinkState::Connecting(attempt), .. }) = self.links.get_mut(id) else { return };
        if attempt.asks(now_ms) {
            log::info!("tcp: no connection to {} so far, others are asked to have it connect", attempt.peer());
            self.hindered = true;
            sink.hindered(LinkId(id));
        }
    }

    /// Whether this side has tried in vain to connect to a peer.
    pub(super) fn is_hindered(&self, peer: &EpName) -> bool {
        self.hindered
            && self.agenda.links(Task::Connect).any(|id| match self.links.get(id).map(|link| &link.state) {
                Some(LinkState::Connecting(attempt)) => attempt.has_asked() && attempt.peer().same_endpoint(peer),
                _ => false,
            })
    }

    /// Acknowledges messages that were received a while ago, so that the peers can release them.
    fn time_acks(&mut self, now_ms: u64) {
        if now_ms < self.next_ack_ms {
            return self.set_timer(self.next_ack_ms);
        }
        self.next_ack_ms = u64::MAX;
        let due = self.agenda.take(Task::AckDue);
        for id in due.links() {
            if let Some(link) = self.links.get_mut(id) {
                link.rx.on_agenda(false);
                let owes_ack = link.rx.owes_ack();
                self.acknowledge(id, owes_ack);
            }
        }
    }

    /// Starts the periodic [`Self::scan`].
    pub(super) fn plan_scan(&mut self) {
        if self.next_scan_ms == u64::MAX && self.config.endpoint.dead_peer_ms > 0 {
            self.next_scan_ms = sys::now_ms() + self.scan_ms();
            self.set_timer(self.next_scan_ms);
        }
    }

    /// Finds hosts that have vanished while bytes, also those of a handshake, were unacknowledged.
    ///
    /// Keep-alive probes are not sent in this case, and the kernel's own limit is a quarter of an hour. A peer that
    /// merely does not read answers the kernel's window probes and is left alone, however long it computes.
    /// (TCP_USER_TIMEOUT would end its link.)
    fn scan<S: Sink>(&mut self, sink: &mut S, now_ms: u64) {
        let patience_ms = self.patience_ms();
        let mut silent: Vec<(u32, u64)> = Vec::new();
        for (id, link) in self.links.iter_mut() {
            let watched = match &link.state {
                LinkState::Connecting(attempt) => attempt.awaits_peer(),
                LinkState::Broken(redial) => redial.awaits_peer(),
                LinkState::Up | LinkState::Closed(_) => link.tx.unproven,
                // The next poll reports the end.
                LinkState::Failed(_) => false,
            };
            let Some(socket) = link.socket.as_ref().filter(|_| watched) else { continue };
            let fd = socket.as_fd();
            if sys::unacknowledged(fd) == 0 {
                link.tx.unproven = false;
            } else if let Some(state) = sys::liveness(fd)
                && state.unanswered >= UNANSWERED
                && u64::from(state.silent_ms) >= patience_ms
            {
                silent.push((id, state.silent_ms.into()));
            }
        }
        for (id, silent_ms) in silent {
            log::debug!("tcp: the host of link {id} has not answered for {silent_ms} ms");
            match self.links.get_mut(id).map(|link| &mut link.state) {
                Some(LinkState::Connecting(attempt)) => {
                    attempt.has_lost(&self.config, now_ms);
                    self.retry(id, Failure::Retry(LinkError::Timeout), now_ms);
                }
                Some(LinkState::Broken(_)) => self.redial_failed(id, Failure::Retry(LinkError::Timeout), now_ms),
                _ => {
                    if !self.connection_lost(id, silent_ms) {
                        self.end(id, LinkError::Cut, sink);
                    }
                }
            }
        }
        self.next_scan_ms = if self.links.is_empty() { u64::MAX } else { now_ms + self.scan_ms() };
    }

    /// The time in milliseconds for which a host may leave bytes unacknowledged. If the link can be resumed, the limit
    /// is shorter: a device in the network may have forgotten the old connection, and a new one does no harm.
    fn patience_ms(&self) -> u64 {
        self.config.endpoint.dead_peer_ms / if self.config.endpoint.resume_ms > 0 { STALLS } else { 1 }
    }

    /// The interval in milliseconds between two scans.
    fn scan_ms(&self) -> u64 {
        (self.patience_ms() / 2).clamp(10, (self.config.endpoint.dead_peer_ms / 4).max(10))
    }
}
