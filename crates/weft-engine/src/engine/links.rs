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
use crate::engine::peer::{PathCaps, VcState};
use crate::engine::state::{Core, Violation};
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
    Parked,
    /// Ours, asks who lives at an address ([`crate::engine::claims`]).
    Asking,
    /// Theirs, has sent OPEN, and waits until that is known of the address where the peer says that it lives.
    Held,
    /// Theirs, has called this listener.
    Heard,
    /// In use.
    Carrying,
}

pub(crate) struct Link {
    pub(crate) state: LinkState,
    /// Number of the virtual connection, once known.
    pub(crate) vc: u32,
    /// What is known of it, until it carries messages.
    pub(crate) rising: Option<Box<Rising>>,
}

impl Link {
    const FREE: Self = Self { state: LinkState::Free, vc: u32::MAX, rising: None };
}

// There is one for each peer.
const _: () = assert!(size_of::<Link>() <= 16);

/// A link that is up and carries no messages yet.
pub(crate) struct Rising {
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

impl Rising {
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
    pub(crate) const ASK: Self = Self { link: LinkId(u32::MAX), message: None, close: false };
}

impl Core {
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
        self.too_early.retain(|(l, _)| *l != link);
    }

    /// Sends `kind` on the link (OPEN, OPEN_OK with our window; OPEN_DUP without), then perhaps closes it.
    pub(crate) fn link_say(&mut self, link: LinkId, what: u8, close: bool) {
        let mut w = Short::new(what, 0);
        if what != kind::OPEN_DUP {
            let vci = self.link_mut(link).vc;
            let mut open = self.grant(link, vci);
            if what == kind::OPEN {
                self.calls = self.calls.wrapping_add(1);
                open.call = self.calls.into();
            }
            w.put(&open);
        }
        let message = Some(SmallVec::from_slice(w.bytes()));
        self.link_work.push(LinkWork { link, message, close });
    }

    /// What OPEN, and its like, say to the peer of that connection: of the window, messages that an earlier
    /// link has left here take their part.
    pub(crate) fn grant(&mut self, link: LinkId, vci: u32) -> Open {
        let used = self.vcs.get(vci as usize).map_or(0, |vc| vc.rx_used);
        let withheld = if (vci as usize) < self.vcs.len() { self.withheld_at_first(vci) } else { 0 };
        let window = (self.config.window_bytes as u64).saturating_sub(used + withheld);
        if let Some(rising) = &mut self.link_mut(link).rising {
            (rising.granted, rising.withheld) = (window, withheld);
        }
        Open { version: PROTOCOL_VERSION, reserved: [0; 3], call: U32::ZERO, window_bytes: window.into() }
    }

    /// A peer's link is up, and the peer has the word. Whoever opens links and says nothing on them shall not
    /// have many.
    pub(crate) fn expect_words(&mut self, link: LinkId) {
        let links = &self.links;
        let slot = |link: LinkId| links.get(link.0 as usize);
        self.silent
            .retain(|other| *other != link && slot(*other).is_some_and(|slot| slot.state == LinkState::Incoming));
        let peer = |link| slot(link).and_then(|slot| slot.rising.as_ref()).map(|rising| rising.up.peer);
        let newest = peer(link);
        let mut of_peer = self.silent.iter().copied().filter(|other| peer(*other) == newest);
        let oldest = of_peer.next().filter(|_| of_peer.count() + 1 >= MAX_SILENT_OF_PEER);
        let oldest = oldest.or(self.silent.first().copied().filter(|_| self.silent.len() >= MAX_SILENT));
        self.silent.push(link);
        if let Some(oldest) = oldest {
            self.silent.retain(|other| *other != oldest);
            self.link_drop(oldest);
        }
    }

    /// Closes a link without a word.
    pub(crate) fn link_drop(&mut self, link: LinkId) {
        self.free_link(link);
        self.link_work.push(LinkWork { link, message: None, close: true });
    }

    /// Another link serves the pair, or will: the peer is told, and calls again if it knows of none.
    fn refuse_call(&mut self, link: LinkId) {
        self.free_link(link);
        self.link_say(link, kind::OPEN_DUP, true);
    }

    pub(crate) fn on_open(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let open: Open = r.take().ok_or(Violation)?;
        let expected = self.connection.is_connectionless() && self.link_mut(link).state == LinkState::Incoming;
        if open.version != PROTOCOL_VERSION || !expected {
            return Err(Violation);
        }
        let Some(rising) = &mut self.link_mut(link).rising else { return Err(Violation) };
        (rising.window, rising.call) = (open.window_bytes.get(), open.call.get());
        let peer = rising.up.peer;
        self.called(link, &peer);
        Ok(())
    }

    /// The peer of a link that carries no messages yet.
    pub(crate) fn rising_peer(&self, link: LinkId) -> Option<EpName> {
        Some(self.links.get(link.0 as usize)?.rising.as_ref()?.up.peer)
    }

    /// Takes a peer's call that is in order. `at`: the peer has been found at that address, which the book
    /// knows by its socket.
    pub(crate) fn take_call(&mut self, link: LinkId, at: Option<Addr>) {
        let Some(rising) = &self.link_mut(link).rising else { return };
        let (peer, window, call) = (rising.up.peer, rising.window, rising.call);
        let Some(vci) = self.vc_of_caller(&peer, at) else { return self.link_drop(link) };
        self.link_mut(link).vc = vci;
        let to_self = peer == self.me;
        let vc = &mut self.vcs[vci as usize];
        // A call that its caller has given up may still come, behind later ones. (One that knows us by two
        // names calls twice at once.)
        let is_late = !to_self && call.wrapping_sub(vc.call) > u32::MAX / 2;
        if is_late {
            return self.refuse_call(link);
        }
        vc.call = call;
        match self.vcs[vci as usize].state {
            _ if to_self => {
                // The two ends of one link meet in this engine: this one only listens.
                let slot = self.link_mut(link);
                slot.state = LinkState::Carrying;
                slot.rising = None;
                self.link_say(link, kind::OPEN_OK, false);
            }
            VcState::Idle => self.adopt(link, vci, window),
            VcState::Connecting(mine) if peer < self.me => {
                self.link_drop(mine);
                self.adopt(link, vci, window);
            }
            VcState::Connecting(_) => {
                self.link_mut(link).state = LinkState::Parked;
                // The peer has given up its earlier call, or will make it again.
                if let Some(earlier) = self.waiting(vci).parked.replace(link) {
                    self.link_drop(earlier);
                }
            }
            // (Nobody is vacant who was found by name.)
            VcState::Greeting(_) | VcState::Up(_) | VcState::Vacant => {
                self.refuse_call(link);
            }
        }
        // Not before it has a link: or else it would leave its service with the last of what it had left here.
        match at {
            Some(addr) => self.is_at(vci, addr),
            None => self.look_up(vci),
        }
    }

    /// Takes a peer's link into use.
    pub(crate) fn adopt(&mut self, link: LinkId, vci: u32, window: u64) {
        self.grant(link, vci);
        self.carry(link, vci, VcState::Greeting(link), window);
        self.link_say(link, kind::OPEN_OK, false);
    }

    /// A message of the link itself has left: after OPEN_OK the connection may send.
    pub(crate) fn link_said(&mut self, link: LinkId) {
        let vci = self.link_mut(link).vc;
        if let Some(vc) = self.vcs.get_mut(vci as usize)
            && vc.state == VcState::Greeting(link)
        {
            vc.state = VcState::Up(link);
            self.activate(vci);
        }
    }

    fn carry(&mut self, link: LinkId, vci: u32, state: VcState, window: u64) {
        let eager = self.config.eager_bytes;
        let slot = self.link_mut(link);
        slot.state = LinkState::Carrying;
        slot.vc = vci;
        let Some(rising) = slot.rising.take() else { return };
        let used = (self.config.window_bytes as u64).saturating_sub(rising.granted);
        let vc = &mut self.vcs[vci as usize];
        vc.open(state, PathCaps::new(&rising.up.caps, eager), window, used);
        self.begin_stake(vci, rising.withheld);
        let vc = &self.vcs[vci as usize];
        if vc.owed() >= self.config.window_quarter() {
            self.send_window(vci);
        }
        self.activate(vci);
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
        let (vci, window) = (self.link_mut(link).vc, open.window_bytes.get());
        if self.vcs[vci as usize].name.same_endpoint(&self.me)
            && let Some(rising) = &mut self.link_mut(link).rising
        {
            // The other end is this engine, too: what it grants is what it has granted.
            rising.granted = window;
        }
        self.carry(link, vci, VcState::Up(link), window);
        self.called_back(vci);
        if let Some(parked) = self.unpark(vci) {
            self.refuse_call(parked);
        }
        let mut waiting = std::mem::take(&mut self.too_early);
        for (_, bytes) in waiting.extract_if(.., |(l, _)| *l == link) {
            self.message(link, &bytes);
        }
        self.too_early.append(&mut waiting);
        Ok(())
    }

    /// The peer holds another link with us, which we may have seen break before the peer did: call again.
    pub(crate) fn on_open_dup(&mut self, link: LinkId) -> Result<(), Violation> {
        if !self.connection.is_connectionless() || self.link_mut(link).state != LinkState::Opening {
            return Err(Violation);
        }
        let vci = self.link_mut(link).vc;
        self.link_drop(link);
        let vc = &mut self.vcs[vci as usize];
        if vc.state == VcState::Connecting(link) {
            vc.state = VcState::Idle;
            vc.redials += 1;
            if vc.redials > REDIAL_LIMIT {
                self.vc_fail(vci, LinkError::Refused);
            } else if let Some(parked) = self.unpark(vci) {
                self.take_parked(parked, vci);
            } else {
                self.activate(vci);
            }
        }
        Ok(())
    }

    fn take_parked(&mut self, parked: LinkId, vci: u32) {
        if let Some(window) = self.link_mut(parked).rising.as_ref().map(|rising| rising.window) {
            self.adopt(parked, vci, window);
        }
    }

    /// The peer's attempt that waits for the end of ours does so no longer.
    fn unpark(&mut self, vci: u32) -> Option<LinkId> {
        self.vcs[vci as usize].waiting.as_mut()?.parked.take()
    }

    /// The link is of no use any more; its connection fails unless another link can take over.
    pub(crate) fn link_lost(&mut self, link: LinkId, why: LinkError) {
        let (state, vci) = {
            let slot = self.link_mut(link);
            (slot.state, slot.vc)
        };
        self.free_link(link);
        match state {
            LinkState::Heard => self.caller_gone(link),
            LinkState::Held => self.forget_caller(link),
            LinkState::Asking => self.unanswered(link, why),
            _ => {}
        }
        if vci == u32::MAX {
            return;
        }
        match state {
            LinkState::Free | LinkState::Incoming | LinkState::Heard | LinkState::Asking | LinkState::Held => {}
            LinkState::Parked => {
                self.unpark(vci);
            }
            LinkState::Dialing | LinkState::Opening => {
                if self.vcs[vci as usize].state != VcState::Connecting(link) {
                    return;
                }
                let vc = &mut self.vcs[vci as usize];
                vc.state = VcState::Idle;
                // The peer may have had our OPEN, and given up its own call for ours, before the link broke.
                let broke = state == LinkState::Opening && why != LinkError::Closed && vc.redials < INSISTENCE;
                match self.unpark(vci) {
                    Some(parked) if broke => {
                        self.vcs[vci as usize].redials += 1;
                        self.refuse_call(parked);
                        self.activate(vci);
                    }
                    Some(parked) => self.take_parked(parked, vci),
                    None => self.vc_fail(vci, why),
                }
            }
            LinkState::Carrying => self.vc_fail(vci, why),
        }
    }

    /// Closes every link of the connection (there are two when it leads to ourselves).
    pub(crate) fn retire_links(&mut self, vci: u32) {
        for index in 0..self.links.len() {
            if self.links[index].vc == vci && self.links[index].state != LinkState::Free {
                self.link_drop(LinkId(u32::try_from(index).unwrap_or(u32::MAX)));
            }
        }
    }
}
