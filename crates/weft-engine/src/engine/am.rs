//! Active messages: their credits, their dispatch to the client's handler, and the replies of handlers.
//!
//! Place in the data flow: [`Engine::send_active`] passes a message to the device at once or refuses it.
//! [`State::on_active`] calls the handler while the device polls. A reply joins the answers of the poll
//! ([`crate::engine::immediate`]), which leave right after it. A reply that the device does not accept waits in the
//! peer's queue.
//!
//! Credits: each side may have a window of requests under way that it has granted to the other. A request costs one
//! unit, and one more for each [`UNIT_BYTES`] of it. Its cost is returned when its handler has run, in the next active
//! message to the peer, or alone when half of the window is due. Replies cost nothing, so a reply never waits for a
//! request.
//!
//! Invariants: the cost of a request leaves with its reply or behind it. Replies that wait here for one peer are
//! therefore no more than its window. No message with credits leaves before replies that wait.

use smallvec::SmallVec;
use zerocopy::IntoBytes;

use crate::am::{ActiveHandler, ActiveMessage, Answer, HEAD_BYTES, MAX_HEAD, body_limit};
use crate::api::{ADDR_NONE, Addr, EAGER_COST, Error, Role};
use crate::bugs::planted;
use crate::engine::immediate::ImmediateReplies;
use crate::engine::peer::{Deferred, Direction, PeerState};
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids::PeerId;
use crate::mem;
use crate::nic::{LinkError, LinkId, Nic};
use crate::wire::{self, F_REPLY, Head, Reader, kind};

/// Bytes of a request for which it costs a further unit.
const UNIT_BYTES: usize = 1024;

/// Replies beyond this number of bytes in one poll are queued.
const REPLIES_BYTES: usize = 128 << 10;

/// The active messages of an engine that takes them.
pub(crate) struct Active {
    handler: Box<dyn ActiveHandler>,
    /// By number of peer.
    windows: Vec<Window>,
}

/// The two windows with a peer, in units.
#[derive(Clone, Copy, Default)]
struct Window {
    /// Units that the peer grants. 0: it takes no active messages.
    granted: u16,
    /// The part of them that is not in use.
    free: u16,
    /// Units of the own window that the peer has used and that were not returned.
    used: u16,
    /// The part of them whose handlers have run.
    owed: u16,
}

impl Window {
    /// Notes that the peer has returned units.
    #[inline]
    fn credit(&mut self, units: [u8; 2]) -> Result<(), Violation> {
        let units = u16::from_le_bytes(units);
        let units = planted!(Bug::ActiveCreditTwice, units, units.saturating_mul(2));
        let free = self.free.checked_add(units).filter(|free| *free <= self.granted);
        self.free = free.ok_or(Violation)?;
        Ok(())
    }

    /// Charges a request of the peer.
    #[inline]
    fn charge(&mut self, cost: u16, window: u16) -> Result<(), Violation> {
        self.used = self.used.checked_add(cost).filter(|used| *used <= window).ok_or(Violation)?;
        Ok(())
    }

    /// Takes the units to return.
    #[inline]
    fn take_owed(&mut self) -> [u8; 2] {
        let owed = std::mem::take(&mut self.owed);
        self.used -= owed;
        owed.to_le_bytes()
    }
}

/// The cost of a request with `len` bytes of header and body of the client.
#[inline]
fn cost_of(len: usize) -> u16 {
    u16::try_from(len / UNIT_BYTES).unwrap_or(u16::MAX).saturating_add(1)
}

/// Whether a request of this cost always fits a window that is idle. Not quite half of the window may be due.
#[inline]
fn fits(cost: u16, window: u16) -> bool {
    u32::from(cost) * 2 <= u32::from(window) + 1
}

impl<N: Nic> Engine<N> {
    /// Sets the handler of active messages. Before it is set, and before the first link is made, the engine takes and
    /// sends none.
    pub fn set_active_handler(&mut self, handler: Box<dyn ActiveHandler>) {
        self.state.active = Some(Box::new(Active { handler, windows: Vec::new() }));
    }

    /// Sends an active message at once, or has no effect.
    ///
    /// Errors: `Again` if the peer is not connected, if a request has no credit, or if the device is full. Progress
    /// mends all of them. `TooLong`. `Invalid` if this engine or the peer takes no active messages. `NoSuchAddress`.
    #[inline]
    pub fn send_active(&mut self, message: &mut ActiveMessage<'_>) -> Result<(), Error> {
        let State { peers, active, .. } = &mut self.state;
        let Some(peer_id) = peers.known(message.dest) else { return self.connect_active(message.dest) };
        let (Some(peer), Some(active)) = (peers.get_mut(peer_id), active) else { return Err(Error::Invalid) };
        let Some(link) = peer.link() else { return self.connect_active(message.dest) };
        let Some(window) = active.windows.get_mut(peer_id.place()) else { return Err(Error::Invalid) };
        let body_len = if let [one] = message.body { one.len() } else { mem::total_len(message.body) };
        let len = message.head.client_len() + body_len;
        let cost = if message.reply { 0 } else { cost_of(len) };
        if cost > window.free || HEAD_BYTES + len > peer.mailbox_bytes() as usize {
            return Err(window.refusal(cost, len, peer.mailbox_bytes() as usize));
        }
        if peer.queues().is_some_and(|queues| queues.has_deferred()) {
            return Err(Error::Again);
        }
        let head = message.head.complete(message.reply, window.owed.to_le_bytes(), peer.tx_seq());
        if self.nic.send(link, head, message.body).is_err() {
            return Err(Error::Again);
        }
        window.take_owed();
        window.free -= cost;
        peer.message_sent();
        peer.count_message(Direction::Sent, len as u64 + EAGER_COST);
        Ok(())
    }

    /// The length of the longest body to this peer in bytes, with any header: that of the device, as far as the peer's
    /// window has room. 0 before the peer is connected.
    #[must_use]
    pub fn active_limit(&self, dest: Addr) -> usize {
        let State { peers, active, .. } = &self.state;
        let Some(peer_id) = peers.known(dest) else { return 0 };
        let (Some(peer), Some(active)) = (peers.get(peer_id), active) else { return 0 };
        let Some(window) = active.windows.get(peer_id.place()).filter(|_| peer.link().is_some()) else { return 0 };
        let most = usize::from(window.granted).div_ceil(2) * UNIT_BYTES;
        body_limit(peer.mailbox_bytes() as usize).min(most.saturating_sub(MAX_HEAD + 1))
    }

    /// Makes a link for an active message, unless one is being made.
    #[cold]
    fn connect_active(&mut self, dest: Addr) -> Result<(), Error> {
        if self.state.active.is_none() || self.state.config.role != Role::Connectionless {
            return Err(Error::Invalid);
        }
        let peer_id = self.state.peer_for(dest)?;
        if self.state.peers[peer_id].take_connect_failure().is_some() {
            // The handler was told.
            self.state.drop_routes(peer_id);
            self.state.release_service_address(peer_id);
            return self.connect_active(dest);
        }
        if self.state.peers[peer_id].state() == PeerState::Idle {
            self.dial(peer_id);
        }
        Err(Error::Again)
    }
}

impl Window {
    /// The reason why a message does not leave.
    #[cold]
    fn refusal(&self, cost: u16, len: usize, mailbox_bytes: usize) -> Error {
        if self.granted == 0 {
            Error::Invalid
        } else if HEAD_BYTES + len > mailbox_bytes || !fits(cost, self.granted) {
            Error::TooLong
        } else {
            Error::Again
        }
    }
}

impl ImmediateReplies {
    /// The behaviour of the planted bug `ActiveCreditEarly`: credit leaves before the reply.
    fn return_early(&mut self, peer_id: PeerId, cost: u16) {
        let start = self.buffer().len();
        let head = Head { detail: cost.to_le_bytes(), ..Head::new(kind::ACTIVE_CREDIT, 0) };
        self.buffer().extend_from_slice(head.as_bytes());
        self.enter(peer_id, start);
    }
}

impl State {
    /// The window for requests that an OPEN announces.
    pub(crate) fn active_window(&self) -> u16 {
        if self.active.is_some() { self.config.active_window } else { 0 }
    }

    /// A link to a peer has opened, over which the peer grants `units` to requests.
    pub(crate) fn active_opened(&mut self, peer_id: PeerId, units: u16) {
        let Some(active) = &mut self.active else { return };
        let place = peer_id.place();
        if active.windows.len() <= place {
            active.windows.resize(place + 1, Window::default());
        }
        active.windows[place] = Window { granted: units, free: units, used: 0, owed: 0 };
    }

    /// Tells the handler that a peer is lost.
    pub(crate) fn active_lost(&mut self, peer_id: PeerId, addr: Addr, why: LinkError) {
        let Some(active) = &mut self.active else { return };
        if let Some(window) = active.windows.get_mut(peer_id.place()) {
            *window = Window::default();
        }
        if addr != ADDR_NONE {
            active.handler.lost(addr, why);
        }
    }

    /// Handles ACTIVE as the device passes it: the next message of its peer at once, and any other by the way of all
    /// messages.
    #[inline(never)]
    pub(crate) fn receive_active(&mut self, link: LinkId, bytes: &[u8]) -> Result<(), Violation> {
        let mut r = Reader(bytes);
        let head: Head = r.take().ok_or(Violation)?;
        if let Some(peer_id) = self.links.carried_by(link)
            && let Some(peer) = self.peers.get_mut(peer_id)
            && peer.is_next(head.seq.get())
        {
            peer.message_taken();
            return self.on_active(peer_id, head, &r);
        }
        self.dispatch(link, bytes)
    }

    /// Handles ACTIVE.
    #[inline(always)] // The fast way is one function.
    fn on_active(&mut self, peer_id: PeerId, head: Head, r: &Reader<'_>) -> Result<(), Violation> {
        let source = match self.peers[peer_id].addr() {
            ADDR_NONE => self.address_of_sender(peer_id)?,
            addr => addr,
        };
        let Self { active, peers, prompts, config, .. } = self;
        let (peer, active) = (&mut peers[peer_id], active.as_mut().ok_or(Violation)?);
        let window = active.windows.get_mut(peer_id.place()).ok_or(Violation)?;
        let (reply, head_len) = (head.flags & F_REPLY != 0, usize::from(head.flags & !F_REPLY));
        let len = r.rest().len();
        let (head_bytes, body) =
            r.rest().split_at_checked(head_len).filter(|_| head_len <= MAX_HEAD).ok_or(Violation)?;
        window.credit(head.detail)?;
        peer.count_message(Direction::Received, len as u64 + EAGER_COST);
        planted!(
            Bug::ActiveCreditEarly,
            if !reply {
                prompts.return_early(peer_id, cost_of(len))
            }
        );
        let start = prompts.buffer().len();
        let mut answer = Answer::over(prompts.buffer(), body_limit(peer.mailbox_bytes() as usize));
        if reply {
            active.handler.arrived(source, true, head_bytes, body, &mut answer);
            debug_assert!(!answer.is_set(), "the handler of a reply sends no reply");
            answer.clear();
            return Ok(());
        }
        let cost = cost_of(len);
        window.charge(cost, config.active_window)?;
        active.handler.arrived(source, false, head_bytes, body, &mut answer);
        let answered = answer.is_set();
        if planted!(Bug::ActiveCreditEarly, false, true) {
            window.used -= cost;
        } else {
            window.owed += planted!(Bug::ActiveCreditLost, cost, cost & !1);
        }
        if answered || u32::from(window.owed) * 2 >= u32::from(config.active_window) {
            let credit = window.take_owed();
            self.send_answer(peer_id, start, credit);
        }
        Ok(())
    }

    /// Handles ACTIVE of a peer whose messages have come in another order, or with other work.
    #[inline(never)]
    pub(crate) fn on_other_active(&mut self, peer_id: PeerId, head: Head, r: &Reader<'_>) -> Result<(), Violation> {
        self.on_active(peer_id, head, r)
    }

    /// Handles ACTIVE_CREDIT.
    pub(crate) fn on_active_credit(&mut self, peer_id: PeerId, head: Head) -> Result<(), Violation> {
        let active = self.active.as_mut().ok_or(Violation)?;
        active.windows.get_mut(peer_id.place()).ok_or(Violation)?.credit(head.detail)
    }

    /// Sends the reply that begins at `start` of the answers, with credit. Without a reply, the credit leaves alone.
    #[inline(always)]
    fn send_answer(&mut self, peer_id: PeerId, start: usize, credit: [u8; 2]) {
        let Self { peers, prompts, .. } = self;
        let (peer, answers) = (&mut peers[peer_id], prompts.buffer());
        if answers.len() == start {
            answers.extend_from_slice(Head::new(kind::ACTIVE_CREDIT, 0).as_bytes());
        } else {
            let len = (answers.len() - start).saturating_sub(HEAD_BYTES);
            peer.count_message(Direction::Sent, len as u64 + EAGER_COST);
        }
        if let Some(message) = answers.get_mut(start..) {
            wire::give_credit(message, credit);
        }
        if peer.queues().is_some_and(|queues| queues.has_deferred()) || answers.len() > REPLIES_BYTES {
            self.defer_answer(peer_id, start);
        } else {
            prompts.enter(peer_id, start);
        }
    }

    /// Queues the reply that begins at `start` of the answers.
    #[cold]
    fn defer_answer(&mut self, peer_id: PeerId, start: usize) {
        let answers = self.prompts.buffer();
        let message = SmallVec::from_slice(answers.get(start..).unwrap_or_default());
        answers.truncate(start);
        self.peers.defer(peer_id, Deferred::Message(message));
    }

    /// The address of a sender whose address was not known. Active messages of strangers are violations: handlers would
    /// not know their source.
    #[cold]
    fn address_of_sender(&mut self, peer_id: PeerId) -> Result<Addr, Violation> {
        self.follow_book();
        Some(self.peers[peer_id].addr()).filter(|addr| *addr != ADDR_NONE).ok_or(Violation)
    }
}
