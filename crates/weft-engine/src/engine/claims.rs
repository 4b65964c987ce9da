//! Peers whose address is known as host and port only: an endpoint is at a socket if it answers there.
//!
//! Place in the data flow: a caller proves its name, but the socket in that name is only the caller's claim. If
//! the address book has that socket without an endpoint id, [`crate::engine::links`] defers the call, and the
//! engine calls the socket itself. The endpoint that answers proves its id by its capability. Only calls of
//! that endpoint get the address. Other callers are served as strangers. If no endpoint answers, all callers
//! are.
//!
//! Invariants: one endpoint at a time is at a socket (with its contexts, if it is scalable). When another one
//! answers there, the first has gone. The link of a query carries no messages, and is closed as soon as it is
//! up.

use smallvec::SmallVec;

use crate::api::{ADDR_NONE, Addr};
use crate::broken::cannot_happen;
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::links::{LinkState, MAX_SILENT, MAX_SILENT_OF_PEER};
use crate::ids::PeerId;
use crate::name::EpName;
use crate::nic::{LinkError, LinkId, Nic};

/// Number of failed queries after which an address is queried again only when a stranger that claims it calls.
const TRIES: u8 = 8;

/// State of a peer's claim to an address.
enum AddressClaim {
    /// The peer has answered there.
    Proven(Addr),
    Unproven(Addr),
}

/// A query for the endpoint at an address.
pub(crate) struct AddressQuery {
    addr: Addr,
    /// This side's link to the socket, once it has been started.
    probe: Option<LinkId>,
    /// Links of callers that wait for the result.
    callers: SmallVec<[LinkId; 2]>,
    tries: u8,
}

impl<N: Nic> Engine<N> {
    /// Starts the links of all new queries.
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
    /// The address that a peer claims, if the book has only the socket there.
    fn claim(&self, name: &EpName) -> Option<AddressClaim> {
        let addr = self.peers.book().addr(name)?;
        let row = self.peers.book().name(addr).filter(|row| !row.is_full())?;
        let lives = |peer_id: PeerId| self.peers[peer_id].name().base().same_endpoint(&name.base());
        let proven = name.same_endpoint(&self.me) || self.peers.at_service(&row).is_some_and(lives);
        Some(if proven { AddressClaim::Proven(addr) } else { AddressClaim::Unproven(addr) })
    }

    /// Handles a call. It waits while the peer's claim to an address is unproven.
    pub(crate) fn call_arrived(&mut self, link: LinkId, name: &EpName) {
        self.follow_book();
        match self.claim(name) {
            Some(AddressClaim::Unproven(addr)) if self.defer_call(link, name, addr) => {}
            Some(AddressClaim::Proven(addr)) => self.take_call(link, Some(addr)),
            _ => self.take_call(link, None),
        }
    }

    /// Defers a call. Returns false if the limit of deferred calls is reached; the caller is then served as a
    /// stranger. A peer that knows this endpoint by several names calls under each.
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

    /// Starts a query for the address that a stranger claims, if it claims one.
    pub(crate) fn query_claimed_address(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        if peer.addr() != ADDR_NONE || !peer.is_in_use() {
            return;
        }
        match self.claim(&peer.name()) {
            Some(AddressClaim::Proven(addr)) => self.set_address(peer_id, addr),
            Some(AddressClaim::Unproven(addr)) => {
                self.query(addr);
            }
            None => {}
        }
    }

    /// Starts a query for an address, unless one is pending. Returns its index.
    fn query(&mut self, addr: Addr) -> usize {
        if let Some(at) = self.address_queries.iter().position(|query| query.addr == addr) {
            return at;
        }
        self.address_queries.push(AddressQuery { addr, probe: None, callers: SmallVec::new(), tries: 0 });
        self.links.request_round();
        self.address_queries.len() - 1
    }

    /// The link of a waiting caller has ended.
    pub(crate) fn forget_caller(&mut self, link: LinkId) {
        for query in &mut self.address_queries {
            query.callers.retain(|other| *other != link);
        }
    }

    /// Ends all queries, because this endpoint closes.
    pub(crate) fn cancel_queries(&mut self) {
        for query in std::mem::take(&mut self.address_queries) {
            query.callers.into_iter().chain(query.probe).for_each(|link| self.links.close(link));
        }
    }

    /// The endpoint at a queried socket has answered.
    pub(crate) fn query_answered(&mut self, probe: LinkId, peer: &EpName) {
        self.links.close(probe);
        if let Some(at) = self.address_queries.iter().position(|query| query.probe == Some(probe)) {
            let query = self.address_queries.swap_remove(at);
            self.finish_query(&query, Some(peer));
        }
    }

    /// A query's link has failed. The peer may be busy or unreachable for the moment, so the query is repeated
    /// while a stranger claims the address. No operation waits for it.
    pub(crate) fn query_failed(&mut self, probe: LinkId, why: LinkError) {
        let Some(at) = self.address_queries.iter().position(|query| query.probe == Some(probe)) else {
            return cannot_happen!("a link that queries belongs to a query");
        };
        let query = self.address_queries.swap_remove(at);
        self.finish_query(&query, None);
        let claims = |state: &Self| {
            let mut strangers =
                state.peers.as_slice().iter().filter(|peer| peer.addr() == ADDR_NONE && peer.is_in_use());
            strangers.any(
                |peer| matches!(state.claim(&peer.name()), Some(AddressClaim::Unproven(addr)) if addr == query.addr),
            )
        };
        let tries = query.tries + u8::from(why != LinkError::Timeout);
        if tries < TRIES && claims(self) {
            let at = self.query(query.addr);
            self.address_queries[at].tries = tries;
        }
    }

    /// Ends a query: the endpoint `lives` is at the address, or none has answered.
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
                && self.peers[peer_id].addr() == addr
            {
                // The peer was at this address before, and now calls from another one.
                self.clear_address(peer_id);
            }
            self.take_call(link, proven.then_some(addr));
        }
        if let Some(peer) = lives {
            self.assign_address(addr, peer);
        }
    }

    /// Fails the peer that was at an address, because another endpoint answers there.
    fn evict_former_endpoint(&mut self, addr: Addr, name: &EpName) {
        for peer_id in self.peers.ids() {
            let peer = &self.peers[peer_id];
            let other = peer.name().is_full() && !peer.name().base().same_endpoint(&name.base());
            if peer.addr() == addr && other && peer.is_in_use() {
                self.fail_peer(peer_id, LinkError::Gone);
            }
        }
    }

    /// Gives an address to the endpoint that has answered there. Messages that it sent as a stranger may match
    /// receives from that address.
    fn assign_address(&mut self, addr: Addr, name: &EpName) {
        let Some(row) = self.peers.book().name(addr) else { return };
        for peer_id in self.peers.ids() {
            let peer = &self.peers[peer_id];
            if !peer.is_in_use() || !peer.name().is_full() || !peer.name().base().same_endpoint(&name.base()) {
                continue;
            }
            self.set_address(peer_id, addr);
            // Operations to the address use the existing link, unless operations wait for a link that is being
            // made.
            let peer = &self.peers[peer_id];
            if peer.addr() == addr
                && peer.name().context_index().is_none_or(|index| index == 0)
                && self.peers.known(addr).is_none()
            {
                self.peers.set_route(addr, peer_id);
                self.peers.set_service(&row, peer_id);
            }
        }
    }
}
