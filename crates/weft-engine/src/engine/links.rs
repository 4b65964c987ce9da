//! Links from their first message to their end: which of them carries a virtual connection's messages.
//!
//! Place in the data flow: what a device says of links, and the messages of links themselves, come here from
//! [`crate::engine::state`]; what is to be said on a link waits as [`LinkWork`] until the device is not borrowed.
//!
//! Our own attempt goes Dialing → Opening (OPEN sent) → Carrying (OPEN_OK received). A peer's goes Incoming →
//! (OPEN received) → Carrying, unless both sides connected at once: then the attempt of the endpoint with the
//! smaller name wins. The other endpoint drops its own attempt when it sees the winner's OPEN; the winner
//! parks the loser's attempt until its own has succeeded (then it refuses the parked one) or failed (then it
//! takes it), so that a pair in which only one direction can connect still meets. If its own has broken after
//! OPEN, nobody knows whether the loser had seen that and dropped the parked one: that is refused, and both
//! call again.

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::Addr;
use crate::engine::peer::{PathCaps, PeerState};
use crate::engine::state::{State, Violation};
use crate::growth;
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, LinkUp, Sink};
use crate::wire::{Open, PROTOCOL_VERSION, Reader, Short, kind};

/// Most links of peers that may be up and silent. Peers speak as soon as a link is up.
pub(crate) const MAX_SILENT: usize = 1024;
/// Most such links of one peer. One that knows us by several names calls under each, before it finds that we
/// are the same.
pub(crate) const MAX_SILENT_OF_PEER: usize = 8;

/// How often to call again a peer that still believes in an earlier link.
const REDIAL_LIMIT: u16 = 1000;
/// How often to call again, when our calls break, rather than take the peer's own: it may be that only the
/// peer can call.
const INSISTENCE: u16 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    Free,
    /// Ours, not up yet.
    Dialing,
    /// Ours, OPEN sent.
    Opening,
    /// Theirs, up, silent so far.
    Incoming,
    /// Theirs, has sent OPEN while our own attempt is under way.
    Standby,
    /// Ours, asks who lives at an address ([`crate::engine::claims`]).
    Querying,
    /// Theirs, has sent OPEN, and waits until that is known of the address where the peer says that it lives.
    AwaitingQuery,
    /// Theirs, has called this listener.
    CallPending,
    /// In use.
    Carrying,
}

pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// Number of the virtual connection, once known.
    pub(crate) peer: u32,
    /// What is known of it, until it carries messages.
    pub(crate) pending: Option<Box<PendingLink>>,
}

impl Link {
    const FREE: Self = Self { state: LinkState::Free, peer: u32::MAX, pending: None };
}

// There is one for each peer.
const _: () = assert!(size_of::<Link>() <= 16);

/// A link that is up and carries no messages yet.
pub(crate) struct PendingLink {
    /// What the device said of it.
    pub(crate) up: LinkUp,
    /// The window that the peer's OPEN has granted, and the number of that.
    window: u64,
    call: u32,
    /// The window that ours has.
    granted: u64,
    /// Bytes not granted because the peer is in no address vector.
    withheld: u64,
}

impl PendingLink {
    pub(crate) fn new(up: LinkUp) -> Self {
        Self { up, window: 0, call: 0, granted: 0, withheld: 0 }
    }
}

/// Something to send on a link itself, after the poll.
pub(crate) struct LinkWork {
    pub(crate) link: LinkId,
    pub(crate) message: Option<SmallVec<[u8; 24]>>,
    pub(crate) close: bool,
}

impl LinkWork {
    /// On no link: an endpoint is to be asked ([`crate::engine::claims`]).
    pub(crate) const QUERY: Self = Self { link: LinkId(u32::MAX), message: None, close: false };
}

impl State {
    pub(crate) fn link_mut(&mut self, link: LinkId) -> &mut Link {
        let index = link.0 as usize;
        if self.links.len() <= index {
            self.enlarge_links(index + 1);
        }
        &mut self.links[index]
    }

    #[cold]
    fn enlarge_links(&mut self, len: usize) {
        let more = len - self.links.len();
        growth::reserve(&mut self.links, more);
        self.links.resize_with(len, || Link::FREE);
    }

    pub(crate) fn free_link(&mut self, link: LinkId) {
        *self.link_mut(link) = Link::FREE;
        self.early_messages.retain(|(l, _)| *l != link);
    }

    /// Sends `kind` on the link (OPEN, OPEN_OK with our window; OPEN_DUP without), then perhaps closes it.
    pub(crate) fn queue_link_message(&mut self, link: LinkId, what: u8, close: bool) {
        let mut w = Short::new(what, 0);
        if what != kind::OPEN_DUP {
            let peer_id = self.link_mut(link).peer;
            let mut open = self.grant(link, peer_id);
            if what == kind::OPEN {
                self.opens_sent = self.opens_sent.wrapping_add(1);
                open.call = self.opens_sent.into();
            }
            w.put(&open);
        }
        let message = Some(SmallVec::from_slice(w.bytes()));
        self.link_work.push(LinkWork { link, message, close });
    }

    /// What OPEN, and its like, say to the peer of that connection: of the window, messages that an earlier
    /// link has left here take their part.
    pub(crate) fn grant(&mut self, link: LinkId, peer_id: u32) -> Open {
        let used = self.peers.get(peer_id as usize).map_or(0, |peer| peer.rx_used);
        let withheld = if (peer_id as usize) < self.peers.len() { self.withheld_at_first(peer_id) } else { 0 };
        let window = (self.config.window_bytes as u64).saturating_sub(used + withheld);
        if let Some(pending) = &mut self.link_mut(link).pending {
            (pending.granted, pending.withheld) = (window, withheld);
        }
        Open { version: PROTOCOL_VERSION, reserved: [0; 3], call: U32::ZERO, window_bytes: window.into() }
    }

    /// A peer's link is up, and the peer has the word. Whoever opens links and says nothing on them shall not
    /// have many.
    pub(crate) fn limit_silent_links(&mut self, link: LinkId) {
        let links = &self.links;
        let slot = |link: LinkId| links.get(link.0 as usize);
        self.silent
            .retain(|other| *other != link && slot(*other).is_some_and(|slot| slot.state == LinkState::Incoming));
        let peer = |link| slot(link).and_then(|slot| slot.pending.as_ref()).map(|pending| pending.up.peer);
        let newest = peer(link);
        let mut of_peer = self.silent.iter().copied().filter(|other| peer(*other) == newest);
        let oldest = of_peer.next().filter(|_| of_peer.count() + 1 >= MAX_SILENT_OF_PEER);
        let oldest = oldest.or(self.silent.first().copied().filter(|_| self.silent.len() >= MAX_SILENT));
        self.silent.push(link);
        if let Some(oldest) = oldest {
            self.silent.retain(|other| *other != oldest);
            self.close_link(oldest);
        }
    }

    /// Closes a link without a word.
    pub(crate) fn close_link(&mut self, link: LinkId) {
        self.free_link(link);
        self.link_work.push(LinkWork { link, message: None, close: true });
    }

    /// Another link serves the pair, or will: the peer is told, and calls again if it knows of none.
    fn refuse_link(&mut self, link: LinkId) {
        self.free_link(link);
        self.queue_link_message(link, kind::OPEN_DUP, true);
    }

    pub(crate) fn on_open(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let open: Open = r.take().ok_or(Violation)?;
        let expected = self.connection.is_connectionless() && self.link_mut(link).state == LinkState::Incoming;
        if open.version != PROTOCOL_VERSION || !expected {
            return Err(Violation);
        }
        let Some(pending) = &mut self.link_mut(link).pending else { return Err(Violation) };
        (pending.window, pending.call) = (open.window_bytes.get(), open.call.get());
        let peer = pending.up.peer;
        self.call_arrived(link, &peer);
        Ok(())
    }

    /// The peer of a link that carries no messages yet.
    pub(crate) fn pending_peer(&self, link: LinkId) -> Option<EpName> {
        Some(self.links.get(link.0 as usize)?.pending.as_ref()?.up.peer)
    }

    /// Takes a peer's call that is in order. `at`: the peer has been found at that address, which the book
    /// knows by its socket.
    pub(crate) fn take_call(&mut self, link: LinkId, at: Option<Addr>) {
        let Some(pending) = &self.link_mut(link).pending else { return };
        let (name, window, call) = (pending.up.peer, pending.window, pending.call);
        let Some(peer_id) = self.peer_of_caller(&name, at) else { return self.close_link(link) };
        self.link_mut(link).peer = peer_id;
        let to_self = name == self.me;
        let peer = &mut self.peers[peer_id as usize];
        // A call that its caller has given up may still come, behind later ones. (One that knows us by two
        // names calls twice at once.)
        let is_late = !to_self && call.wrapping_sub(peer.call) > u32::MAX / 2;
        if is_late {
            return self.refuse_link(link);
        }
        peer.call = call;
        match self.peers[peer_id as usize].state {
            _ if to_self => {
                // The two ends of one link meet in this engine: this one only listens.
                let slot = self.link_mut(link);
                slot.state = LinkState::Carrying;
                slot.pending = None;
                self.queue_link_message(link, kind::OPEN_OK, false);
            }
            PeerState::Idle => self.adopt(link, peer_id, window),
            PeerState::Connecting(mine) if name < self.me => {
                self.close_link(mine);
                self.adopt(link, peer_id, window);
            }
            PeerState::Connecting(_) => {
                self.link_mut(link).state = LinkState::Standby;
                // The peer has given up its earlier call, or will make it again.
                if let Some(earlier) = self.queues(peer_id).standby.replace(link) {
                    self.close_link(earlier);
                }
            }
            // (Nobody is vacant who was found by name.)
            PeerState::Greeting(_) | PeerState::Up(_) | PeerState::Vacant => {
                self.refuse_link(link);
            }
        }
        // Not before it has a link: or else it would leave its service with the last of what it had left here.
        match at {
            Some(addr) => self.set_address(peer_id, addr),
            None => self.look_up_address(peer_id),
        }
    }

    /// Takes a peer's link into use.
    pub(crate) fn adopt(&mut self, link: LinkId, peer_id: u32, window: u64) {
        self.grant(link, peer_id);
        self.carry(link, peer_id, PeerState::Greeting(link), window);
        self.queue_link_message(link, kind::OPEN_OK, false);
    }

    /// A message of the link itself has left: after OPEN_OK the connection may send.
    pub(crate) fn link_message_sent(&mut self, link: LinkId) {
        let peer_id = self.link_mut(link).peer;
        if let Some(peer) = self.peers.get_mut(peer_id as usize)
            && peer.state == PeerState::Greeting(link)
        {
            peer.state = PeerState::Up(link);
            self.activate(peer_id);
        }
    }

    fn carry(&mut self, link: LinkId, peer_id: u32, state: PeerState, window: u64) {
        let eager = self.config.eager_bytes;
        let slot = self.link_mut(link);
        slot.state = LinkState::Carrying;
        slot.peer = peer_id;
        let Some(pending) = slot.pending.take() else { return };
        let used = (self.config.window_bytes as u64).saturating_sub(pending.granted);
        let peer = &mut self.peers[peer_id as usize];
        peer.open(state, PathCaps::new(&pending.up.caps, eager), window, used);
        self.begin_stake(peer_id, pending.withheld);
        let peer = &self.peers[peer_id as usize];
        if peer.owed() >= self.config.window_quarter() {
            self.send_window(peer_id);
        }
        self.activate(peer_id);
    }

    pub(crate) fn on_open_ok(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let open: Open = r.take().ok_or(Violation)?;
        // Who answers what has not been said would have a link in use whose close waits until that is: then
        // memory is not free when it should be.
        let said = self.link_work.iter().all(|work| work.link != link);
        let expected = said && self.may_be_opened() && self.link_mut(link).state == LinkState::Opening;
        if open.version != PROTOCOL_VERSION || !expected {
            return Err(Violation);
        }
        let (peer_id, window) = (self.link_mut(link).peer, open.window_bytes.get());
        if self.peers[peer_id as usize].name.same_endpoint(&self.me)
            && let Some(pending) = &mut self.link_mut(link).pending
        {
            // The other end is this engine, too: what it grants is what it has granted.
            pending.granted = window;
        }
        self.carry(link, peer_id, PeerState::Up(link), window);
        self.connection_opened(peer_id);
        if let Some(standby) = self.take_standby(peer_id) {
            self.refuse_link(standby);
        }
        let mut early = std::mem::take(&mut self.early_messages);
        for (_, bytes) in early.extract_if(.., |(l, _)| *l == link) {
            self.message(link, &bytes);
        }
        self.early_messages.append(&mut early);
        Ok(())
    }

    /// The peer holds another link with us, which we may have seen break before the peer did: call again.
    pub(crate) fn on_open_dup(&mut self, link: LinkId) -> Result<(), Violation> {
        if !self.connection.is_connectionless() || self.link_mut(link).state != LinkState::Opening {
            return Err(Violation);
        }
        let peer_id = self.link_mut(link).peer;
        self.close_link(link);
        let peer = &mut self.peers[peer_id as usize];
        if peer.state == PeerState::Connecting(link) {
            peer.state = PeerState::Idle;
            peer.redials += 1;
            if peer.redials > REDIAL_LIMIT {
                self.fail_peer(peer_id, LinkError::Refused);
            } else if let Some(standby) = self.take_standby(peer_id) {
                self.adopt_standby(standby, peer_id);
            } else {
                self.activate(peer_id);
            }
        }
        Ok(())
    }

    fn adopt_standby(&mut self, standby: LinkId, peer_id: u32) {
        if let Some(window) = self.link_mut(standby).pending.as_ref().map(|pending| pending.window) {
            self.adopt(standby, peer_id, window);
        }
    }

    /// The peer's attempt that waits for the end of ours does so no longer.
    fn take_standby(&mut self, peer_id: u32) -> Option<LinkId> {
        self.peers[peer_id as usize].queues.as_mut()?.standby.take()
    }

    /// The link is of no use any more; its connection fails unless another link can take over.
    pub(crate) fn link_lost(&mut self, link: LinkId, why: LinkError) {
        let (state, peer_id) = {
            let slot = self.link_mut(link);
            (slot.state, slot.peer)
        };
        self.free_link(link);
        match state {
            LinkState::CallPending => self.caller_gone(link),
            LinkState::AwaitingQuery => self.forget_caller(link),
            LinkState::Querying => self.query_failed(link, why),
            _ => {}
        }
        if peer_id == u32::MAX {
            return;
        }
        match state {
            LinkState::Free
            | LinkState::Incoming
            | LinkState::CallPending
            | LinkState::Querying
            | LinkState::AwaitingQuery => {}
            LinkState::Standby => {
                self.take_standby(peer_id);
            }
            LinkState::Dialing | LinkState::Opening => {
                if self.peers[peer_id as usize].state != PeerState::Connecting(link) {
                    return;
                }
                let peer = &mut self.peers[peer_id as usize];
                peer.state = PeerState::Idle;
                // The peer may have had our OPEN, and given up its own call for ours, before the link broke.
                let broke = state == LinkState::Opening && why != LinkError::Closed && peer.redials < INSISTENCE;
                match self.take_standby(peer_id) {
                    Some(standby) if broke => {
                        self.peers[peer_id as usize].redials += 1;
                        self.refuse_link(standby);
                        self.activate(peer_id);
                    }
                    Some(standby) => self.adopt_standby(standby, peer_id),
                    None => self.fail_peer(peer_id, why),
                }
            }
            LinkState::Carrying => self.fail_peer(peer_id, why),
        }
    }

    /// Closes every link of the connection (there are two when it leads to ourselves).
    pub(crate) fn close_links(&mut self, peer_id: u32) {
        for index in 0..self.links.len() {
            if self.links[index].peer == peer_id && self.links[index].state != LinkState::Free {
                self.close_link(LinkId(u32::try_from(index).unwrap_or(u32::MAX)));
            }
        }
    }
}
