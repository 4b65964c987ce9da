//! Links from their first message to their end, and the choice of the link that carries a peer's messages.
//!
//! Place in the data flow: the device's reports about links and the messages of links themselves come here from
//! [`crate::engine::state`]. Messages of links wait as [`LinkWork`] until the device is not borrowed.
//!
//! This side's attempt goes Dialing → Opening (OPEN sent) → Carrying (OPEN_OK received). A peer's attempt goes
//! Incoming → (OPEN received) → Carrying. If both sides connect at once, the attempt of the endpoint with the
//! smaller name wins:
//!
//! 1. The other endpoint drops its own attempt when the winner's OPEN arrives.
//! 2. If the winner has sent no OPEN, it adopts the loser's link. A pair in which only one direction can connect
//!    therefore meets at once. Otherwise it keeps the loser's attempt on standby until its own has succeeded or
//!    failed. Then it refuses the standby link or adopts it.
//! 3. If the winner's attempt breaks after OPEN, the loser may have dropped the standby link already. The
//!    winner refuses that link, and both sides connect again.

use smallvec::SmallVec;
use zerocopy::little_endian::U32;

use crate::api::Addr;
use crate::broken::cannot_happen;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::peer::PeerState;
use crate::engine::state::Violation;
use crate::growth;
use crate::ids::{PeerId, number};
use crate::name::EpName;
use crate::nic::{Layer, LinkError, LinkId, LinkUp, Nic, Notice, Sink, Versions};
use crate::wire::{Open, Reader, Refusal, Refused, Short, kind, refused};

/// Most links of peers that may be up and silent. Peers send as soon as a link is up.
pub(crate) const MAX_SILENT: usize = 1024;
/// Most silent links of one peer. A peer that knows us by several names connects under each, before it learns that the
/// names mean one endpoint.
pub(crate) const MAX_SILENT_OF_PEER: usize = 8;

/// Most messages that may arrive before the OPEN_OK of their link.
const EARLY_LIMIT: usize = 4096;

/// Most attempts to connect to a peer that still holds an earlier link.
const REDIAL_LIMIT: u16 = 1000;
/// Most attempts after our links have broken, before the peer's own attempt is used. Perhaps only the peer can connect.
const INSISTENCE: u16 = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// The number is not in use.
    Free,
    /// Ours, not up yet.
    Dialing,
    /// Ours, OPEN sent.
    Opening,
    /// The peer's, up and silent so far.
    Incoming,
    /// The peer's, OPEN received while our own attempt is under way.
    Standby,
    /// Ours, for a query of the endpoint at an address ([`crate::engine::claims`]).
    Querying,
    /// The peer's, OPEN received. The link waits for the query of the address that the peer claims.
    AwaitingQuery,
    /// The peer's, waiting for the answer of this listener.
    CallPending,
    /// Carries messages.
    Carrying,
}

struct Link {
    state: LinkState,
    /// The peer, once known.
    peer: Option<PeerId>,
    /// State that is needed until the link carries messages.
    pending: Option<Box<PendingLink>>,
}

impl Link {
    const FREE: Self = Self { state: LinkState::Free, peer: None, pending: None };
}

// There is one for each peer.
const _: () = assert!(size_of::<Link>() <= 16);

/// A link that is up and carries no messages yet.
struct PendingLink {
    /// The device's report.
    up: LinkUp,
    /// The window that the peer's OPEN has granted, and the number of that OPEN.
    window: u64,
    call: u32,
    /// The window for active requests that the peer's message has granted.
    active: u16,
    /// The window that our OPEN or OPEN_OK has granted.
    granted: u64,
    /// Bytes not granted because the peer is in no address vector.
    withheld: u64,
}

/// Work that waits until the device is not borrowed.
enum LinkWork {
    /// Sends a message on a link, and may close the link after it.
    Send { link: LinkId, message: SmallVec<[u8; 24]>, close: bool },
    /// Closes a link.
    Close(LinkId),
    /// Closes a link, after its peer was told the reason. Without room for the message it is closed at once.
    Refuse { link: LinkId, reason: Refusal },
    /// Reports an act of the engine to the user.
    Notice(Box<(EpName, Notice)>),
}

bitflags::bitflags! {
    /// Work of a round of progress that is not the work of peers.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    struct Due: u8 {
        /// Messages or closes of links wait.
        const LINKS = 1;
        /// Queries of addresses, or collectives, can continue.
        const ROUND = 2;
        /// Each round polls boards.
        const BOARDS = 4;
    }
}

impl LinkWork {
    fn link(&self) -> Option<LinkId> {
        match self {
            Self::Send { link, .. } | Self::Close(link) | Self::Refuse { link, .. } => Some(*link),
            Self::Notice(_) => None,
        }
    }
}

/// The links of an engine, by the numbers that the device gives them.
#[derive(Default)]
pub(crate) struct Links {
    table: Vec<Link>,
    /// Links of peers in the order in which they came up. All silent links are among them.
    silent: Vec<LinkId>,
    work: Vec<LinkWork>,
    /// Messages that arrived before the OPEN_OK of their unordered link.
    early: Vec<(LinkId, Vec<u8>)>,
    /// OPEN messages sent, modulo 2³².
    opens_sent: u32,
    /// Number of acts that may be reported to the user, by their kind.
    notices: [u64; 3],
    due: Due,
    /// Whether links of peers are refused, because the endpoint has closed.
    refusing: bool,
}

impl Links {
    fn get(&self, link: LinkId) -> Option<&Link> {
        self.table.get(link.0 as usize)
    }

    fn slot(&mut self, link: LinkId) -> &mut Link {
        let place = link.0 as usize;
        if self.table.len() <= place {
            self.enlarge(place + 1);
        }
        &mut self.table[place]
    }

    #[cold]
    fn enlarge(&mut self, len: usize) {
        let more = len - self.table.len();
        growth::reserve(&mut self.table, more);
        self.table.resize_with(len, || Link::FREE);
    }

    /// The peer whose messages the link carries.
    #[inline(always)]
    pub(crate) fn carried_by(&self, link: LinkId) -> Option<PeerId> {
        match self.table.get(link.0 as usize) {
            Some(Link { state: LinkState::Carrying, peer, .. }) => *peer,
            _ => None,
        }
    }

    /// The link's state and peer; `None` for numbers that were never in use.
    #[inline]
    pub(crate) fn lookup(&self, link: LinkId) -> Option<(LinkState, Option<PeerId>)> {
        self.table.get(link.0 as usize).map(|link| (link.state, link.peer))
    }

    pub(crate) fn state(&self, link: LinkId) -> LinkState {
        self.get(link).map_or(LinkState::Free, |link| link.state)
    }

    pub(crate) fn set_state(&mut self, link: LinkId, state: LinkState) {
        self.slot(link).state = state;
    }

    pub(crate) fn set_peer(&mut self, link: LinkId, peer: PeerId) {
        self.slot(link).peer = Some(peer);
    }

    /// The device connects to a peer.
    pub(crate) fn dialing(&mut self, link: LinkId, peer: PeerId) {
        *self.slot(link) = Link { state: LinkState::Dialing, peer: Some(peer), pending: None };
    }

    /// The name of the peer of a link that carries no messages yet.
    pub(crate) fn pending_peer(&self, link: LinkId) -> Option<EpName> {
        Some(self.get(link)?.pending.as_ref()?.up.peer)
    }

    /// Drops the state of a link that carries no messages yet. Returns its peer's name.
    pub(crate) fn take_pending_peer(&mut self, link: LinkId) -> Option<EpName> {
        self.slot(link).pending.take().map(|pending| pending.up.peer)
    }

    /// The peers of all links.
    pub(crate) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.table.iter().filter_map(|link| link.peer)
    }

    /// Forgets a link that the device has ended, or that is about to be closed.
    pub(crate) fn free(&mut self, link: LinkId) {
        *self.slot(link) = Link::FREE;
        self.early.retain(|(other, _)| *other != link);
    }

    /// Closes a link without a message.
    pub(crate) fn close(&mut self, link: LinkId) {
        self.free(link);
        self.queue_close(link);
    }

    /// Has the device close a link that the engine has forgotten.
    pub(crate) fn queue_close(&mut self, link: LinkId) {
        self.push(LinkWork::Close(link));
    }

    pub(crate) fn queue_message(&mut self, link: LinkId, message: SmallVec<[u8; 24]>, close: bool) {
        self.push(LinkWork::Send { link, message, close });
    }

    /// Has the device close a link that the engine has forgotten, after its peer was told the reason.
    pub(crate) fn queue_refusal(&mut self, link: LinkId, reason: Refusal) {
        self.push(LinkWork::Refuse { link, reason });
    }

    /// Reports an act of the engine to the user, unless many of its kind were reported.
    #[cold]
    pub(crate) fn notice(&mut self, peer: &EpName, notice: Notice) {
        let count = match notice {
            Notice::Refuses(_) => &mut self.notices[0],
            Notice::RefusedBy(_) => &mut self.notices[1],
            Notice::Forgets => &mut self.notices[2],
        };
        *count += 1;
        if count.is_power_of_two() {
            self.push(LinkWork::Notice(Box::new((*peer, notice))));
        }
    }

    fn push(&mut self, work: LinkWork) {
        self.work.push(work);
        self.due |= Due::LINKS;
    }

    /// Has the next round of progress continue queries and collectives.
    pub(crate) fn request_round(&mut self) {
        self.due |= Due::ROUND;
    }

    /// The number after that of the last link.
    #[allow(clippy::cast_possible_truncation)] // Numbers of links have 32 bits.
    pub(crate) fn end(&self) -> u32 {
        self.table.len() as u32
    }

    /// The number of messages and closes of links that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.work.len()
    }

    /// Whether messages or closes of links wait, or queries or collectives can continue.
    pub(crate) fn has_work(&self) -> bool {
        self.due.intersects(Due::LINKS | Due::ROUND)
    }

    /// Whether there is any such work, or boards must be polled.
    #[inline(always)]
    pub(crate) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Sets whether each round of progress polls boards.
    pub(crate) fn set_polls_boards(&mut self, yes: bool) {
        self.due.set(Due::BOARDS, yes);
    }

    /// Drops the work of a link that the device has ended itself. The device may reuse the number.
    pub(crate) fn drop_work(&mut self, link: LinkId) {
        self.work.retain(|work| work.link() != Some(link));
        self.due.set(Due::LINKS, !self.work.is_empty());
    }

    /// Keeps a message that may have arrived before the OPEN_OK of its link. False: it cannot have, or too many have.
    pub(crate) fn keep_early(&mut self, link: LinkId, bytes: &[u8]) -> bool {
        let unordered = self.get(link).and_then(|link| link.pending.as_ref()).is_some_and(|link| !link.up.caps.ordered);
        let kept = unordered && self.early.len() < EARLY_LIMIT;
        if kept {
            self.early.push((link, bytes.to_vec()));
        }
        kept
    }

    fn take_early(&mut self, link: LinkId) -> Vec<Vec<u8>> {
        self.early.extract_if(.., |(other, _)| *other == link).map(|(_, bytes)| bytes).collect()
    }

    /// Adds a peer's link that is up and silent. Returns a link to be closed if there are too many.
    fn add_silent(&mut self, link: LinkId) -> Option<LinkId> {
        let Self { table, silent, .. } = self;
        let slot = |link: LinkId| table.get(link.0 as usize);
        silent.retain(|other| *other != link && slot(*other).is_some_and(|slot| slot.state == LinkState::Incoming));
        let name = |link| slot(link).and_then(|slot| slot.pending.as_ref()).map(|pending| pending.up.peer);
        let newest = name(link);
        let mut of_peer = silent.iter().copied().filter(|other| name(*other) == newest);
        let oldest = of_peer.next().filter(|_| of_peer.count() + 1 >= MAX_SILENT_OF_PEER);
        let oldest = oldest.or(silent.first().copied().filter(|_| silent.len() >= MAX_SILENT));
        silent.push(link);
        if let Some(oldest) = oldest {
            silent.retain(|other| *other != oldest);
        }
        oldest
    }

    /// Closes the silent links, and refuses later links of peers. A peer may dial again once it has learned that the
    /// endpoint has closed. Its messages would be acknowledged while the last bytes leave, and then be lost.
    pub(crate) fn refuse_more(&mut self) {
        self.refusing = true;
        for link in std::mem::take(&mut self.silent) {
            if self.state(link) == LinkState::Incoming {
                self.close(link);
            }
        }
    }

    /// Takes the oldest silent link among the candidates, of a peer that `unknown` accepts, from the list.
    pub(crate) fn take_silent(
        &mut self,
        candidates: &dyn Fn(LinkId) -> bool,
        unknown: &dyn Fn(&EpName) -> bool,
    ) -> Option<LinkId> {
        let silent = |link: &LinkId| {
            candidates(*link)
                && self.state(*link) == LinkState::Incoming
                && self.pending_peer(*link).is_some_and(|name| unknown(&name))
        };
        let place = self.silent.iter().position(silent)?;
        Some(self.silent.remove(place))
    }
}

impl<N: Nic> Engine<N> {
    /// Does the work of links, and polls boards. Returns the number of events.
    #[inline(never)]
    pub(crate) fn run_due(&mut self) -> usize {
        let mut events = 0;
        if self.state.links.has_work() {
            events += usize::from(self.run_links());
        }
        if self.state.links.due.contains(Due::BOARDS) {
            events += self.run_boards();
        }
        events
    }

    /// Sends messages of links, closes links, and advances collectives. Returns whether any work was done.
    ///
    /// Links that end are closed first. A transfer of a collective may need the room of a registration that is no
    /// longer used here, while a peer still uses its memory over such a link.
    pub(crate) fn run_links(&mut self) -> bool {
        let closed = self.run_link_work();
        self.run_queries();
        self.call_back();
        self.run_collectives();
        self.run_link_work() || closed
    }

    fn run_link_work(&mut self) -> bool {
        let mut work = std::mem::take(&mut self.state.links.work);
        let before = work.len();
        let round = self.state.links.due.contains(Due::ROUND);
        self.state.links.due.remove(Due::ROUND);
        let (nic, version) = (&mut self.nic, self.state.config.protocol_version);
        let mut stuck: SmallVec<[LinkId; 4]> = SmallVec::new();
        let mut sent: SmallVec<[LinkId; 4]> = SmallVec::new();
        work.retain(|work| {
            match work {
                LinkWork::Send { link, .. } | LinkWork::Close(link) if stuck.contains(link) => return true,
                LinkWork::Notice(what) => nic.notice(&what.0, what.1),
                LinkWork::Refuse { link, reason } => {
                    // The peer of a link without room sees its end alone. The link must not outlast the refusal.
                    let _ = nic.send(*link, refused(version, *reason).bytes(), &[]);
                    nic.close(*link);
                }
                LinkWork::Send { link, message, close } => {
                    if nic.send(*link, message, &[]).is_err() {
                        stuck.push(*link);
                        return true;
                    }
                    if *close {
                        nic.close(*link);
                    } else {
                        sent.push(*link);
                    }
                }
                LinkWork::Close(link) => nic.close(*link),
            }
            false
        });
        let moved = round || work.len() < before;
        for link in sent {
            self.state.link_message_sent(link);
        }
        // A close makes no work. If that changes, nothing is lost here.
        work.append(&mut self.state.links.work);
        self.state.outgoing.free_lingering(|link| work.iter().all(|work| work.link() != Some(link)));
        self.state.links.due.set(Due::LINKS, !work.is_empty());
        self.state.links.work = work;
        moved
    }
}

impl State {
    /// A link is up.
    pub(crate) fn link_up(&mut self, link: LinkId, up: LinkUp) {
        if self.links.refusing && !up.initiator {
            return self.links.queue_close(link);
        }
        let slot = self.links.slot(link);
        slot.pending = Some(Box::new(PendingLink { up, window: 0, call: 0, active: 0, granted: 0, withheld: 0 }));
        if !up.initiator {
            slot.state = LinkState::Incoming;
            slot.peer = None;
            if let Some(oldest) = self.links.add_silent(link) {
                self.drop_silent(oldest);
            }
            return;
        }
        if slot.state == LinkState::Querying {
            return self.query_answered(link, &up.peer);
        }
        let (LinkState::Dialing, Some(peer_id)) = (slot.state, slot.peer) else { return };
        slot.state = LinkState::Opening;
        let full = self.peers[peer_id].name().is_full();
        let peer_id = if full { peer_id } else { self.learn_name(link, peer_id, &up.peer) };
        if self.peers[peer_id].state() == PeerState::Connecting(link) {
            self.send_first_message(link);
        }
    }

    /// Queues `kind` (OPEN, OPEN_OK with our window; OPEN_DUP without) on a link, which may be closed after it.
    pub(crate) fn queue_link_message(&mut self, link: LinkId, kind: u8, close: bool) {
        let mut w = Short::new(kind, 0);
        if kind != kind::OPEN_DUP {
            let mut open = self.grant(link);
            if kind == kind::OPEN {
                self.links.opens_sent = self.links.opens_sent.wrapping_add(1);
                open.call = self.links.opens_sent.into();
            }
            w.put(&open);
        }
        self.links.queue_message(link, SmallVec::from_slice(w.bytes()), close);
    }

    /// The contents of OPEN and OPEN_OK for the link's peer. Messages that came over an earlier link and still
    /// wait here use a part of the window.
    pub(crate) fn grant(&mut self, link: LinkId) -> Open {
        let (mut used, mut withheld) = (0, 0);
        if let Some(peer_id) = self.links.slot(link).peer {
            (used, withheld) = (self.peers[peer_id].rx_used(), self.withheld_at_first(peer_id));
        }
        let window = (self.config.window_bytes as u64).saturating_sub(used + withheld);
        if let Some(pending) = &mut self.links.slot(link).pending {
            (pending.granted, pending.withheld) = (window, withheld);
        }
        Open {
            version: self.config.protocol_version,
            reserved: 0,
            active_units: self.active_window().into(),
            call: U32::ZERO,
            window_bytes: window.into(),
        }
    }

    /// Refuses a peer's link because another link serves the pair, or will. The peer connects again if it knows
    /// of no other link.
    fn refuse_link(&mut self, link: LinkId) {
        self.links.free(link);
        self.queue_link_message(link, kind::OPEN_DUP, true);
    }

    /// Ends a link that this side does not serve, or serves no longer. The peer and the user are told why.
    #[cold]
    pub(crate) fn turn_away(&mut self, link: LinkId, why: LinkError) {
        let reason = match why {
            LinkError::Version(_) => Refusal::Version,
            LinkError::Crowded => Refusal::Crowded,
            _ => Refusal::Evicted,
        };
        if let Some(peer) = Sink::peer(self, link) {
            self.links.notice(&peer, Notice::Refuses(why));
        }
        self.link_lost(link, why);
        self.links.queue_refusal(link, reason);
    }

    /// Ends the link of a peer that has sent no message. Nothing may be sent on it, so that the user alone is told why.
    #[cold]
    fn drop_silent(&mut self, link: LinkId) {
        if let Some(peer) = Sink::peer(self, link) {
            self.links.notice(&peer, Notice::Refuses(LinkError::Evicted));
        }
        self.link_lost(link, LinkError::Evicted);
        self.links.queue_close(link);
    }

    /// Compares the version in a first message. Returns false if the peer was turned away, because it speaks another
    /// one. Its message may then differ in all that follows.
    pub(crate) fn agrees_on_version(&mut self, link: LinkId, r: &Reader<'_>) -> Result<bool, Violation> {
        let (ours, theirs) = (self.config.protocol_version, *r.rest().first().ok_or(Violation)?);
        if ours != theirs {
            self.turn_away(link, LinkError::Version(Versions { layer: Layer::Engine, ours, theirs }));
        }
        Ok(ours == theirs)
    }

    /// Handles REFUSED: the peer does not serve the link, or serves it no longer.
    pub(crate) fn on_refused(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let Refused { version: theirs, reason, .. } = r.take().ok_or(Violation)?;
        let ours = self.config.protocol_version;
        let why = match Refusal::from_wire(reason) {
            Some(Refusal::Version) if ours == theirs => return Err(Violation),
            Some(Refusal::Version) => LinkError::Version(Versions { layer: Layer::Engine, ours, theirs }),
            Some(Refusal::Crowded) => LinkError::Crowded,
            Some(Refusal::Evicted) => LinkError::Evicted,
            None => LinkError::Closed,
        };
        if let Some(peer) = Sink::peer(self, link) {
            self.links.notice(&peer, Notice::RefusedBy(why));
        }
        self.link_lost(link, why);
        self.links.queue_close(link);
        Ok(())
    }

    pub(crate) fn on_open(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        if !self.connection.is_connectionless() || self.links.state(link) != LinkState::Incoming {
            return Err(Violation);
        }
        if !self.agrees_on_version(link, &r)? {
            return Ok(());
        }
        let open: Open = r.take().ok_or(Violation)?;
        let Some(pending) = &mut self.links.slot(link).pending else { return Err(Violation) };
        (pending.window, pending.call) = (open.window_bytes.get(), open.call.get());
        pending.active = open.active_units.get();
        let name = pending.up.peer;
        self.call_arrived(link, &name);
        Ok(())
    }

    /// Answers a peer's OPEN. `addr`: the peer has been found at this address, which the book knows by its socket.
    pub(crate) fn take_call(&mut self, link: LinkId, addr: Option<Addr>) {
        let Some(pending) = &self.links.slot(link).pending else {
            return cannot_happen!("a call that is answered is pending");
        };
        let (name, window, call) = (pending.up.peer, pending.window, pending.call);
        let Some(peer_id) = self.peer_of_caller(&name, addr) else {
            return self.turn_away(link, LinkError::Crowded);
        };
        self.links.set_peer(link, peer_id);
        let to_self = name == self.me;
        let peer = &mut self.peers[peer_id];
        // An OPEN that its sender has given up may still arrive, after later ones. (A peer that knows us by two names
        // sends two at once.)
        let is_late = !to_self && call.wrapping_sub(peer.call()) > u32::MAX / 2;
        if is_late {
            return self.refuse_link(link);
        }
        peer.set_call(call);
        match peer.state() {
            _ if to_self => {
                // Both ends of the link meet in this engine. This end only receives.
                peer.set_own(true);
                peer.set_own_end(link);
                let slot = self.links.slot(link);
                slot.state = LinkState::Carrying;
                slot.pending = None;
                self.queue_link_message(link, kind::OPEN_OK, false);
            }
            PeerState::Idle => self.adopt(link, peer_id, window),
            // The peer cannot know of an attempt on which no OPEN has left.
            PeerState::Connecting(mine) if name < self.me || self.links.state(mine) == LinkState::Dialing => {
                self.links.close(mine);
                self.adopt(link, peer_id, window);
            }
            PeerState::Connecting(_) => {
                self.links.set_state(link, LinkState::Standby);
                // The peer has given up its earlier attempt, or will repeat it.
                if let Some(earlier) = self.peers.queues(peer_id).set_standby(Some(link)) {
                    self.links.close(earlier);
                }
            }
            // (A peer that was found by its name is not vacant.)
            PeerState::Greeting(_) | PeerState::Up(_) | PeerState::Vacant => {
                self.refuse_link(link);
            }
        }
        // Do this only after the link is attached. Otherwise removing the peer's last state would drop its
        // service entry.
        match addr {
            Some(addr) => self.set_address(peer_id, addr),
            None => self.look_up_address(peer_id),
        }
    }

    /// Takes a peer's link into use.
    pub(crate) fn adopt(&mut self, link: LinkId, peer_id: PeerId, window: u64) {
        self.links.set_peer(link, peer_id);
        self.grant(link);
        self.carry(link, peer_id, PeerState::Greeting(link), window);
        self.queue_link_message(link, kind::OPEN_OK, false);
    }

    /// A message of the link itself was sent. After OPEN_OK the peer's operations may leave.
    fn link_message_sent(&mut self, link: LinkId) {
        let Some(peer_id) = self.links.slot(link).peer else { return };
        let peer = &mut self.peers[peer_id];
        if peer.state() == PeerState::Greeting(link) {
            peer.set_state(PeerState::Up(link));
            self.peers.activate(peer_id);
        }
    }

    fn carry(&mut self, link: LinkId, peer_id: PeerId, state: PeerState, window: u64) {
        let eager = self.config.eager_bytes;
        let slot = self.links.slot(link);
        slot.state = LinkState::Carrying;
        slot.peer = Some(peer_id);
        let Some(pending) = slot.pending.take() else {
            return cannot_happen!("a link is pending until it carries operations");
        };
        let used = (self.config.window_bytes as u64).saturating_sub(pending.granted);
        let peer = &mut self.peers[peer_id];
        peer.open(state, &pending.up.caps, eager, window, used);
        self.active_opened(peer_id, pending.active);
        self.begin_stake(peer_id, pending.withheld);
        let peer = &self.peers[peer_id];
        if peer.owed() >= self.config.window_quarter() {
            self.send_window(peer_id);
        }
        self.peers.activate(peer_id);
        self.tell_failures(peer_id);
        self.offer_regions_to(peer_id);
    }

    pub(crate) fn on_open_ok(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        // An answer to a message that has not left would adopt a link whose close waits for that message. The
        // memory of the link would then be freed too late.
        let sent = self.links.work.iter().all(|work| work.link() != Some(link));
        let expected = sent && self.may_be_opened() && self.links.state(link) == LinkState::Opening;
        let Some(peer_id) = self.links.slot(link).peer else { return Err(Violation) };
        if !expected {
            return Err(Violation);
        }
        if !self.agrees_on_version(link, &r)? {
            return Ok(());
        }
        let open: Open = r.take().ok_or(Violation)?;
        let window = open.window_bytes.get();
        if let Some(pending) = &mut self.links.slot(link).pending {
            pending.active = open.active_units.get();
        }
        if self.peers[peer_id].name().same_endpoint(&self.me)
            && let Some(pending) = &mut self.links.slot(link).pending
        {
            // The other end is this engine, too. The window that it grants is the one that was granted.
            pending.granted = window;
        }
        self.carry(link, peer_id, PeerState::Up(link), window);
        self.connection_opened(peer_id);
        if let Some(standby) = self.take_standby(peer_id) {
            self.refuse_link(standby);
        }
        for bytes in self.links.take_early(link) {
            self.message(link, &bytes);
        }
        Ok(())
    }

    /// The peer holds another link with us, which may have broken for us only. Connects again.
    pub(crate) fn on_open_dup(&mut self, link: LinkId) -> Result<(), Violation> {
        if !self.connection.is_connectionless() || self.links.state(link) != LinkState::Opening {
            return Err(Violation);
        }
        let Some(peer_id) = self.links.slot(link).peer else { return Err(Violation) };
        self.links.close(link);
        let peer = &mut self.peers[peer_id];
        if peer.state() == PeerState::Connecting(link) {
            peer.set_state(PeerState::Idle);
            peer.count_redial();
            if peer.redials() > REDIAL_LIMIT {
                self.fail_peer(peer_id, LinkError::Refused);
            } else if let Some(standby) = self.take_standby(peer_id) {
                self.adopt_standby(standby, peer_id);
            } else {
                self.peers.activate(peer_id);
            }
        }
        Ok(())
    }

    fn adopt_standby(&mut self, standby: LinkId, peer_id: PeerId) {
        if let Some(window) = self.links.slot(standby).pending.as_ref().map(|pending| pending.window) {
            self.adopt(standby, peer_id, window);
        }
    }

    /// Removes the peer's attempt that waits for the end of ours.
    fn take_standby(&mut self, peer_id: PeerId) -> Option<LinkId> {
        self.peers[peer_id].queues_mut()?.set_standby(None)
    }

    /// A link is of no further use. Its peer fails unless another link can take over.
    pub(crate) fn link_lost(&mut self, link: LinkId, why: LinkError) {
        let slot = self.links.slot(link);
        let (state, peer_id) = (slot.state, slot.peer);
        self.links.free(link);
        match state {
            LinkState::CallPending => self.caller_gone(link),
            LinkState::AwaitingQuery => self.forget_caller(link),
            LinkState::Querying => self.query_failed(link, why),
            _ => {}
        }
        let Some(peer_id) = peer_id else { return };
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
                let peer = &mut self.peers[peer_id];
                if peer.state() != PeerState::Connecting(link) {
                    return;
                }
                peer.set_state(PeerState::Idle);
                // The peer may have received our OPEN, and dropped its own attempt, before the link broke.
                let broke = state == LinkState::Opening && why != LinkError::Closed && peer.redials() < INSISTENCE;
                match self.take_standby(peer_id) {
                    Some(standby) if broke => {
                        self.peers[peer_id].count_redial();
                        self.refuse_link(standby);
                        self.peers.activate(peer_id);
                    }
                    Some(standby) => self.adopt_standby(standby, peer_id),
                    None if state == LinkState::Opening && why == LinkError::Closed => {
                        self.fail_peer(peer_id, LinkError::Unanswered);
                    }
                    None => self.fail_peer(peer_id, why),
                }
            }
            LinkState::Carrying => self.fail_peer(peer_id, why),
        }
    }

    /// Closes all links of a peer: the one in use, the peer's attempt on standby, and the second end of a link
    /// to this engine itself.
    pub(crate) fn close_links(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        let mut theirs: SmallVec<[LinkId; 3]> = SmallVec::new();
        if let PeerState::Connecting(link) | PeerState::Greeting(link) | PeerState::Up(link) = peer.state() {
            theirs.push(link);
        }
        theirs.extend(peer.queues().and_then(|queues| queues.standby()));
        theirs.extend(peer.own_end());
        theirs.retain(|link| {
            self.links.lookup(*link).is_some_and(|(state, of)| state != LinkState::Free && of == Some(peer_id))
        });
        theirs.sort_unstable();
        theirs.dedup();
        for link in theirs {
            self.links.close(link);
        }
        let left = |(place, link): (usize, &Link)| (link.peer == Some(peer_id)).then(|| number(place));
        debug_assert_eq!(self.links.table.iter().enumerate().find_map(left), None, "a link of {peer_id:?} is left");
    }
}
