//! Peers that can be connected in one direction only, because of a firewall or address translation: they are asked to
//! connect themselves.
//!
//! Place in the data flow: the device reports an attempt that gets no connection ([`crate::nic::Sink::hindered`]). The
//! request goes to some peers with links ([`State::ask_for_call`]). A peer with a link to the target passes it on
//! ([`State::on_call_back`]), another one passes it to some of its own peers, once. The target dials
//! ([`Engine::call_back`]), and its link is adopted as any link of a peer.
//!
//! Invariants: a request is never kept. It causes a bounded number of messages, and at most one attempt to connect, to
//! a peer in the address vector. Requests of peers in no address vector are ignored.

use smallvec::SmallVec;

use crate::api::ADDR_NONE;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::links::LinkState;
use crate::engine::peer::PeerState;
use crate::engine::state::Violation;
use crate::ids::PeerId;
use crate::name::EpName;
use crate::nic::{LinkId, Nic};
use crate::wire::{CallBack, Reader, Short, kind};

/// Most peers that are asked at a time.
const ASKED: usize = 8;
/// Most links that are looked at to find them.
const LOOKED_AT: u32 = 1024;
/// A request is dropped while this many messages of links wait.
const CROWDED: usize = 256;

/// Requests for connections in the other direction.
#[derive(Default)]
pub(crate) struct CallBacks {
    /// Peers that wait for a connection from here.
    callers: Vec<PeerId>,
    /// The link at which the search for peers to ask continues. Each request asks others.
    hand: u32,
}

impl<N: Nic> Engine<N> {
    /// Dials the peers that have asked for it and have no link yet.
    pub(crate) fn call_back(&mut self) {
        for peer_id in std::mem::take(&mut self.state.call_backs.callers) {
            if self.state.peers[peer_id].state() == PeerState::Idle {
                self.dial(peer_id);
            }
        }
    }
}

impl State {
    /// The device gets no connection for an attempt: asks others to have the peer connect.
    #[cold]
    pub(crate) fn ask_for_call(&mut self, link: LinkId) {
        let Some((LinkState::Dialing, Some(peer_id))) = self.links.lookup(link) else { return };
        let name = self.peers[peer_id].name();
        if !name.is_full() || !self.has_addresses() {
            // Only a full name says which endpoint is meant. A connection is made by its active side.
            return;
        }
        self.spread(&CallBack { caller: self.me.ep_id(), target: name.ep_id(), hops: 0, reserved: [0; 7] }, None);
    }

    /// Sends a request to some peers with links, other than the one that it came from.
    fn spread(&mut self, request: &CallBack, from: Option<LinkId>) {
        let links = self.links.end();
        let mut asked: SmallVec<[LinkId; ASKED]> = SmallVec::new();
        for _ in 0..links.min(LOOKED_AT) {
            let link = LinkId(self.call_backs.hand % links);
            self.call_backs.hand = link.0 + 1;
            let Some(peer_id) = self.links.carried_by(link) else { continue };
            let takes = self.peers[peer_id].state() == PeerState::Up(link) && !self.is_stranger(peer_id);
            if takes && from != Some(link) {
                asked.push(link);
            }
            if asked.len() == ASKED {
                break;
            }
        }
        for link in asked {
            self.send_request(link, request);
        }
    }

    fn send_request(&mut self, link: LinkId, request: &CallBack) {
        if self.links.waiting() < CROWDED {
            let mut w = Short::new(kind::CALL_BACK, 0);
            w.put(request);
            self.links.queue_message(link, SmallVec::from_slice(w.bytes()), false);
        }
    }

    /// Handles CALL_BACK: the request is for this endpoint, or it is passed on.
    #[cold]
    pub(crate) fn on_call_back(&mut self, link: LinkId, mut r: Reader<'_>) -> Result<(), Violation> {
        let from = self.links.carried_by(link).ok_or(Violation)?;
        let request: CallBack = r.take().ok_or(Violation)?;
        if self.is_stranger(from) || !self.has_addresses() {
            return Ok(());
        }
        if request.target == self.me.ep_id() {
            self.take_caller(&request);
            return Ok(());
        }
        let target = self.peers.find(&EpName::of_id(request.target)).map(|peer_id| self.peers[peer_id].state());
        match target {
            Some(PeerState::Up(there)) if there != link => {
                self.send_request(there, &CallBack { hops: request.hops.saturating_add(1), ..request });
            }
            _ if request.hops == 0 => self.spread(&CallBack { hops: 1, ..request }, Some(link)),
            // Another peer may be nearer to the target.
            _ => {}
        }
        Ok(())
    }

    /// Notes a peer in the address vector that waits for a connection from here.
    fn take_caller(&mut self, request: &CallBack) {
        let addr = self.peers.addr_of(&EpName::of_id(request.caller));
        if addr == ADDR_NONE {
            return;
        }
        let Ok(peer_id) = self.peer_for(addr) else { return };
        let peer = &self.peers[peer_id];
        if peer.name().ep_id() == request.caller && peer.state() == PeerState::Idle {
            self.call_backs.callers.push(peer_id);
            self.links.request_round();
        }
    }
}
