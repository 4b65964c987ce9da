//! Where peers live whose address is known as host and port only: an endpoint is there if it answers there.
//!
//! Place in the data flow: the name that a caller has proven says where it listens, which is the caller's own
//! word. Where the address book has that socket and no more, [`crate::engine::links`] holds the call, and the engine
//! calls the socket itself. The endpoint that answers proves its id by its capability; only the calls of that
//! endpoint get the address. Other calls are served as those of strangers, and so are all calls if no
//! endpoint answers.
//!
//! Invariants: one endpoint at a time lives at a socket (with its contexts, if it is scalable). When another
//! one answers there, the first has gone. A link that asks carries nothing, and is closed as soon as it is
//! up.

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr};
use crate::engine::Engine;
use crate::engine::ids::PeerId;
use crate::engine::links::{LinkState, MAX_SILENT, MAX_SILENT_OF_PEER};
use crate::engine::state::State;
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, Nic};

/// How often an address is asked at most for strangers that claim it, before another call of theirs, if it
/// does not answer.
const TRIES: u8 = 8;

/// State of a peer's claim that it lives at an address.
enum AddressClaim {
    /// It has answered there.
    Proven(Addr),
    Unproven(Addr),
}

/// A search for the endpoint that lives at an address.
pub(crate) struct AddressQuery {
    addr: Addr,
    /// Our link there, once it has been begun.
    probe: Option<LinkId>,
    /// Peers' links that wait for the answer.
    callers: SmallVec<[LinkId; 2]>,
    tries: u8,
}

impl<N: Nic> Engine<N> {
    /// Calls the addresses that have not been called yet.
    pub(crate) fn run_queries(&mut self) {
        while let Some(at) = self.state.address_queries.iter().position(|query| query.probe.is_none()) {
            let service = self.state.peers.book().name(self.state.address_queries[at].addr);
            let Some(service) = service.filter(|row| !row.is_full()) else {
                let query = self.state.address_queries.swap_remove(at);
                self.state.finish_query(&query, None);
                continue;
            };
            match self.nic.connect(&service) {
                Ok(probe) => {
                    self.state.address_queries[at].probe = Some(probe);
                    self.state.links.set_state(probe, LinkState::Querying);
                }
                Err(_) => {
                    let query = self.state.address_queries.swap_remove(at);
                    self.state.finish_query(&query, None);
                }
            }
        }
    }
}

impl State {
    /// Where a peer is by its own word, if the book has no more than the socket there.
    fn claim(&self, name: &EpName) -> Option<AddressClaim> {
        let addr = self.peers.book().addr(name)?;
        let row = self.peers.book().name(addr).filter(|row| !row.is_full())?;
        let lives = |peer_id: PeerId| self.peers[peer_id].name.base().same_endpoint(&name.base());
        let proven = name.same_endpoint(&self.me) || self.peers.at_service(&row).is_some_and(lives);
        Some(if proven { AddressClaim::Proven(addr) } else { AddressClaim::Unproven(addr) })
    }

    /// A peer calls. The call waits if it is not known who lives where the peer says that it does.
    pub(crate) fn call_arrived(&mut self, link: LinkId, name: &EpName) {
        self.follow_book();
        match self.claim(name) {
            Some(AddressClaim::Unproven(addr)) if self.defer_call(link, name, addr) => {}
            Some(AddressClaim::Proven(addr)) => self.take_call(link, Some(addr)),
            _ => self.take_call(link, None),
        }
    }

    /// Has a call wait. False: as many wait as may, and it is served as that of a stranger. (One that knows
    /// us by several names calls under each.)
    fn defer_call(&mut self, link: LinkId, name: &EpName, addr: Addr) -> bool {
        let waiting: SmallVec<[LinkId; 8]> =
            self.address_queries.iter().flat_map(|query| &query.callers).copied().collect();
        let of_peer = |link: &LinkId| self.links.pending_peer(*link).is_some_and(|peer| peer.same_endpoint(name));
        let mut of_peer = waiting.iter().copied().filter(of_peer);
        let oldest = of_peer.next().filter(|_| of_peer.count() + 1 >= MAX_SILENT_OF_PEER);
        if let Some(oldest) = oldest {
            self.forget_caller(oldest);
            self.links.close(oldest);
        } else if waiting.len() >= MAX_SILENT {
            return false;
        }
        self.links.set_state(link, LinkState::AwaitingQuery);
        let at = self.query(addr);
        self.address_queries[at].callers.push(link);
        true
    }

    /// Has a stranger's address found out, if it may have one.
    pub(crate) fn query_claimed_address(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        if peer.addr != ADDR_NONE || !peer.is_in_use() {
            return;
        }
        match self.claim(&peer.name) {
            Some(AddressClaim::Proven(addr)) => self.set_address(peer_id, addr),
            Some(AddressClaim::Unproven(addr)) => {
                self.query(addr);
            }
            None => {}
        }
    }

    /// Has it found out who lives at an address. Returns where that is noted.
    fn query(&mut self, addr: Addr) -> usize {
        if let Some(at) = self.address_queries.iter().position(|query| query.addr == addr) {
            return at;
        }
        self.address_queries.push(AddressQuery { addr, probe: None, callers: SmallVec::new(), tries: 0 });
        self.links.queue_query();
        self.address_queries.len() - 1
    }

    /// The link of a caller that waits has ended.
    pub(crate) fn forget_caller(&mut self, link: LinkId) {
        for query in &mut self.address_queries {
            query.callers.retain(|other| *other != link);
        }
    }

    /// This endpoint closes.
    pub(crate) fn cancel_queries(&mut self) {
        for query in std::mem::take(&mut self.address_queries) {
            query.callers.into_iter().chain(query.probe).for_each(|link| self.links.close(link));
        }
    }

    /// A call of ours has been answered.
    pub(crate) fn query_answered(&mut self, probe: LinkId, peer: &EpName) {
        self.links.close(probe);
        if let Some(at) = self.address_queries.iter().position(|query| query.probe == Some(probe)) {
            let query = self.address_queries.swap_remove(at);
            self.finish_query(&query, Some(peer));
        }
    }

    /// A call of ours has failed. Of a peer that may be busy, or out of reach for the moment, it is tried
    /// again while a stranger claims the address; no operation waits for that.
    pub(crate) fn query_failed(&mut self, probe: LinkId, why: LinkError) {
        let Some(at) = self.address_queries.iter().position(|query| query.probe == Some(probe)) else { return };
        let query = self.address_queries.swap_remove(at);
        self.finish_query(&query, None);
        let claims = |state: &Self| {
            let mut strangers = state.peers.as_slice().iter().filter(|peer| peer.addr == ADDR_NONE && peer.is_in_use());
            strangers
                .any(|peer| matches!(state.claim(&peer.name), Some(AddressClaim::Unproven(addr)) if addr == query.addr))
        };
        let tries = query.tries + u8::from(why != LinkError::Timeout);
        if tries < TRIES && claims(self) {
            let at = self.query(query.addr);
            self.address_queries[at].tries = tries;
        }
    }

    /// The endpoint that lives at an address is known, or no endpoint claims it.
    fn finish_query(&mut self, query: &AddressQuery, lives: Option<&EpName>) {
        let addr = query.addr;
        let lives = lives.filter(|_| self.peers.book().name(addr).is_some_and(|row| !row.is_full()));
        if let Some(peer) = lives {
            self.evict_former_endpoint(addr, peer);
        }
        for &link in &query.callers {
            let Some(name) =
                self.links.pending_peer(link).filter(|_| self.links.state(link) == LinkState::AwaitingQuery)
            else {
                continue;
            };
            self.links.set_state(link, LinkState::Incoming);
            let proven = lives.is_some_and(|peer| peer.base().same_endpoint(&name.base()));
            if let Some(peer_id) = self.peers.find(&name)
                && lives.is_some()
                && !proven
                && self.peers[peer_id].addr == addr
            {
                // It was there once, and comes back from somewhere else.
                self.clear_address(peer_id);
            }
            self.take_call(link, proven.then_some(addr));
        }
        if let Some(peer) = lives {
            self.assign_address(addr, peer);
        }
    }

    /// Another endpoint answers at an address: what was there has gone.
    fn evict_former_endpoint(&mut self, addr: Addr, name: &EpName) {
        for peer_id in self.peers.ids() {
            let peer = &self.peers[peer_id];
            let other = peer.name.is_full() && !peer.name.base().same_endpoint(&name.base());
            if peer.addr == addr && other && peer.is_in_use() {
                self.fail_peer(peer_id, LinkError::Gone);
            }
        }
    }

    /// An endpoint has answered at an address. What it has said as a stranger may be what receives from there wait for.
    fn assign_address(&mut self, addr: Addr, name: &EpName) {
        let Some(row) = self.peers.book().name(addr) else { return };
        for peer_id in self.peers.ids() {
            let peer = &self.peers[peer_id];
            if !peer.is_in_use() || !peer.name.is_full() || !peer.name.base().same_endpoint(&name.base()) {
                continue;
            }
            self.set_address(peer_id, addr);
            // Operations to the address use the link that there is, unless others wait for one that is being made.
            let peer = &self.peers[peer_id];
            if peer.addr == addr
                && peer.name.context_index().is_none_or(|index| index == 0)
                && self.peers.known(addr).is_none()
            {
                self.peers.set_route(addr, peer_id);
                self.peers.set_service(&row, peer_id);
            }
        }
    }
}
