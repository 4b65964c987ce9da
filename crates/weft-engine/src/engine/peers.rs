//! Who peers are: names, addresses, and the virtual connections that belong to them.
//!
//! Place in the data flow: an operation to an address that is used for the first time, a peer's link, and the
//! client's address vector come here; the paths of messages only look up what was found ([`State::known_peer`]).
//!
//! Invariant: one virtual connection per endpoint, also where the endpoint was known by its service name first.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::api::{ADDR_NONE, Addr, Book, Error, Fault};
use crate::bugs::planted;
use crate::engine::connection::Role;
use crate::engine::peer::{Peer, PeerState};
use crate::engine::state::State;
use crate::growth;
use crate::matching::Matcher;
use crate::name::{EpName, Identity};
use crate::nic::LinkId;

/// So often strangers must have gone (or what they left must have) before it is worth the time to look who
/// has left nothing.
const SWEEP_AFTER: usize = 64;

/// So many endpoints at most may have left something at an address that is known by its socket, where they
/// lived one after the other.
const MOST_CLAIMANTS: usize = 4;

/// Virtual connections by the identities of their names.
#[derive(Default)]
pub(crate) struct NameIndex {
    /// Numbers of connections, by the names that they have: the names are not here once more.
    by_name: HashTable<u32>,
    /// Identities under which endpoints were known before their full names were.
    former: FxHashMap<Identity, u32>,
}

fn hash(name: &EpName) -> u64 {
    FxBuildHasher.hash_one(name.identity())
}

impl NameIndex {
    pub(crate) fn find(&self, peers: &[Peer], name: &EpName) -> Option<u32> {
        if let Some(&peer_id) = self.former.get(&name.identity()) {
            return Some(peer_id);
        }
        let same = |&peer_id: &u32| peers.get(peer_id as usize).is_some_and(|peer| peer.name.same_endpoint(name));
        self.by_name.find(hash(name), same).copied()
    }

    /// The connection that has been found behind a socket.
    pub(crate) fn behind(&self, service: &EpName) -> Option<u32> {
        self.former.get(&service.identity()).copied()
    }

    /// A connection has been found behind a socket.
    pub(crate) fn found_behind(&mut self, service: &EpName, peer_id: u32) {
        self.former.insert(service.identity(), peer_id);
    }

    /// A connection has its name.
    fn insert(&mut self, peers: &[Peer], peer_id: u32) {
        let hash = |&peer_id: &u32| peers.get(peer_id as usize).map_or(0, |peer| hash(&peer.name));
        self.by_name.insert_unique(hash(&peer_id), peer_id, hash);
    }

    /// A connection is about to lose its name, by which `now` is to be found.
    fn replace(&mut self, peers: &[Peer], peer_id: u32, now: u32) {
        self.remove(peers, peer_id);
        if let Some(peer) = peers.get(peer_id as usize) {
            self.former.insert(peer.name.identity(), now);
        }
    }

    /// A connection is about to lose its name.
    fn remove(&mut self, peers: &[Peer], peer_id: u32) {
        let Some(peer) = peers.get(peer_id as usize) else { return };
        if let Ok(entry) = self.by_name.find_entry(hash(&peer.name), |&other| other == peer_id) {
            entry.remove();
        }
    }

    /// The peer is forgotten under all its names.
    fn forget(&mut self, peers: &[Peer], peer_id: u32) {
        self.remove(peers, peer_id);
        self.former.retain(|_, known| *known != peer_id);
    }
}

/// Where a book has a peer by what the peer has proven: its id. A name that is a socket only is known by that.
fn known_at(book: &Book, name: &EpName) -> Option<Addr> {
    let known = |addr: &Addr| !name.is_full() || book.name(*addr).is_some_and(|row| row.is_full());
    book.addr(name).filter(known)
}

impl State {
    #[cold]
    pub(crate) fn resolve_peer(&mut self, addr: Addr) -> Result<u32, Error> {
        self.follow_book();
        let name = self.book.name(addr).ok_or_else(|| self.no_peer_error())?;
        let name = planted!(Bug::ContextIgnored, name, name.base());
        if self.sweepable >= SWEEP_AFTER {
            self.sweep_strangers();
        }
        let peer_id = self.peer_named(&name);
        if addr > Addr::from(u32::MAX) {
            // Of a book's numbers none is as large: it has the number of a context in its highest bits.
            self.by_context_addr.insert(addr, peer_id);
        } else {
            self.set_route(addr, peer_id);
        }
        self.set_address(peer_id, addr & Addr::from(u32::MAX));
        Ok(peer_id)
    }

    /// Operations to an address that the book knows use this connection from now on.
    pub(crate) fn set_route(&mut self, addr: Addr, peer_id: u32) {
        // The index is as dense as the book is.
        let Ok(index) = usize::try_from(addr) else { return };
        if self.by_addr.len() <= index {
            let more = index + 1 - self.by_addr.len();
            growth::reserve(&mut self.by_addr, more);
            self.by_addr.resize(index + 1, 0);
        }
        self.by_addr[index] = peer_id + 1;
    }

    /// The connection for a name, new or old.
    pub(crate) fn peer_named(&mut self, name: &EpName) -> u32 {
        let known = self.index.find(&self.peers, name);
        if let Some(peer_id) = planted!(Bug::StaleEpoch, known, known.or_else(|| self.at_socket(name))) {
            return peer_id;
        }
        self.contexts |= name.context_index().is_some();
        let mut peer = Peer::new(*name);
        peer.addr = self.addr_of(name);
        let peer_id = match self.vacant.pop() {
            Some(peer_id) => {
                self.peers[peer_id as usize] = peer;
                peer_id
            }
            None => {
                growth::reserve(&mut self.peers, 1);
                self.peers.push(peer);
                u32::try_from(self.peers.len() - 1).unwrap_or(u32::MAX - 1)
            }
        };
        self.index.insert(&self.peers, peer_id);
        peer_id
    }

    /// Only the planted bug `StaleEpoch` asks this.
    fn at_socket(&self, name: &EpName) -> Option<u32> {
        let same =
            |peer: &Peer| peer.state != PeerState::Vacant && peer.name.socket_identity() == name.socket_identity();
        self.peers.iter().position(same).and_then(|at| u32::try_from(at).ok())
    }

    /// Where the book has a peer, if it has. Where a full name's socket is in the book, and not its id, is
    /// found out elsewhere ([`crate::engine::claims`]): it is the peer's own word.
    pub(crate) fn addr_of(&self, name: &EpName) -> Addr {
        let known = known_at(&self.book, name);
        planted!(Bug::ContextStranger, known, known.filter(|_| name.context_index() <= Some(0))).unwrap_or(ADDR_NONE)
    }

    /// The connection for the name of a peer that calls; none if it is a stranger and there are as many as
    /// may be, or if as many as may be at its address are there. `at`: it has been found at that address,
    /// which the book knows by its socket.
    pub(crate) fn peer_of_caller(&mut self, name: &EpName, at: Option<Addr>) -> Option<u32> {
        self.follow_book();
        let max = self.config.max_strangers;
        let crowded = |state: &Self| state.peers.len() - state.vacant.len() >= max && state.strangers() >= max;
        if self.sweepable >= SWEEP_AFTER || (self.sweepable > 0 && crowded(self)) {
            self.sweep_strangers();
        }
        let stranger = at.is_none() && self.addr_of(name) == ADDR_NONE;
        if stranger && self.index.find(&self.peers, name).is_none() && crowded(self) {
            self.evict_strangers();
            self.sweep_strangers();
        }
        let known = self.index.find(&self.peers, name);
        // Who is known and nowhere may have left the service that it was at, and come back.
        if known.is_none_or(|peer_id| self.peers[peer_id as usize].addr == ADDR_NONE) {
            let refused = match at {
                None => known.is_none() && stranger && crowded(self),
                Some(addr) => self.is_overclaimed(addr, name),
            };
            if refused {
                return None;
            }
        }
        Some(self.peer_named(name))
    }

    /// Peers in no address vector that are connected, or have left something here.
    fn strangers(&self) -> usize {
        self.peers.iter().filter(|peer| peer.addr == ADDR_NONE && peer.state != PeerState::Vacant).count()
    }

    /// Strangers come and go, as long as an endpoint lives: of those that have left nothing here, nothing is kept.
    #[cold]
    fn sweep_strangers(&mut self) {
        self.sweepable = 0;
        debug_assert_eq!(self.strangers.total, self.all_stakes());
        let mut gone = self.peers.iter().map(Peer::is_sweepable).collect::<Vec<_>>();
        let mut keep = |peer_id: u32| {
            if let Some(gone) = gone.get_mut(peer_id as usize) {
                *gone = false;
            }
        };
        self.links.iter().for_each(|link| keep(link.peer));
        self.active.iter().copied().for_each(&mut keep);
        self.ops.iter().for_each(|(_, op)| keep(op.peer));
        self.transfers.iter().for_each(|transfer| keep(transfer.peer));
        self.by_addr.iter().filter_map(|n| n.checked_sub(1)).for_each(&mut keep);
        self.by_context_addr.values().copied().for_each(&mut keep);
        for matcher in [&self.tagged, &self.untagged] {
            matcher.unexpected.iter().for_each(|(_, message)| keep(message.peer));
        }
        for completion in &self.completions {
            if let Some(Fault::Stranger(peer_id)) = completion.fault {
                keep(peer_id);
            }
        }
        for peer_id in (0..).zip(gone).filter_map(|(peer_id, gone)| gone.then_some(peer_id)) {
            self.index.forget(&self.peers, peer_id);
            self.peers[peer_id as usize].state = PeerState::Vacant;
            self.account(peer_id);
            let peer = &mut self.peers[peer_id as usize];
            *peer = Peer { state: PeerState::Vacant, ..Peer::new(peer.name) };
            self.vacant.push(peer_id);
        }
    }

    pub(crate) fn address_added(&mut self, addr: Addr, name: &EpName) {
        if self.contexts {
            self.context_addresses_added(addr, name);
        }
        if let Some(peer_id) = self.index.find(&self.peers, name) {
            self.set_address(peer_id, addr);
        } else if !name.is_full() {
            // A stranger's name may be inserted in its service form. (A full name that is not known has no
            // connection; looking further would make start-up quadratic.)
            let there = |peer: &Peer| peer.is_in_use() && peer.name.socket_identity() == name.identity();
            if let Some(peer_id) = self.peers.iter().position(there) {
                self.query_claimed_address(u32::try_from(peer_id).unwrap_or(u32::MAX));
            }
        }
    }

    /// The same for the contexts of the scalable endpoint that the name may be of.
    fn context_addresses_added(&mut self, addr: Addr, name: &EpName) {
        let theirs = |peer: &Peer| {
            let base = peer.name.base();
            peer.name.context_index().is_some() && [base.identity(), base.socket_identity()].contains(&name.identity())
        };
        let found = |peer: &Peer| peer.addr == ADDR_NONE && peer.state != PeerState::Vacant && theirs(peer);
        let found: Vec<u32> =
            (0..).zip(&self.peers).filter_map(|(peer_id, peer)| found(peer).then_some(peer_id)).collect();
        for peer_id in found {
            if name.is_full() {
                self.set_address(peer_id, addr);
            } else {
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// A connection has turned out to lead to an address, as whatever looks it up by that finds. What came by
    /// it when it was a stranger's may be what receives from there wait for.
    pub(crate) fn set_address(&mut self, peer_id: u32, addr: Addr) {
        let peer = &mut self.peers[peer_id as usize];
        if peer.addr == ADDR_NONE && addr != ADDR_NONE {
            peer.addr = addr;
            self.end_stake(peer_id);
            self.reindex_messages();
            self.match_again(peer_id);
        }
    }

    /// A stranger may be in the book by now.
    #[cold]
    pub(crate) fn look_up_address(&mut self, peer_id: u32) {
        let peer = &self.peers[peer_id as usize];
        if peer.addr == ADDR_NONE {
            self.set_address(peer_id, self.addr_of(&peer.name));
        }
    }

    /// A peer is not at its address any more.
    pub(crate) fn clear_address(&mut self, peer_id: u32) {
        self.peers[peer_id as usize].addr = ADDR_NONE;
        self.sweepable += 1;
        self.account(peer_id);
        self.reindex_messages();
    }

    /// Does what others have done to the book, if that is one that others write.
    #[inline]
    pub(crate) fn follow_book(&mut self) {
        if self.followed_changes.is_some() {
            self.apply_book_changes();
        }
    }

    #[cold]
    fn apply_book_changes(&mut self) {
        let changes = self.book.changes();
        let followed_changes = std::mem::replace(&mut self.followed_changes, changes);
        if followed_changes == changes {
            return;
        }
        if followed_changes.map(|done| done.removals) != changes.map(|done| done.removals) {
            self.drop_removed_rows();
        }
        for peer_id in 0..u32::try_from(self.peers.len()).unwrap_or(u32::MAX) {
            if self.peers[peer_id as usize].state != PeerState::Vacant {
                self.look_up_address(peer_id);
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// Others have removed something from the book.
    fn drop_removed_rows(&mut self) {
        let known = (0..).zip(&self.by_addr).filter_map(|(addr, n)| (*n > 0).then_some(addr));
        let known = known.chain(self.by_context_addr.keys().map(|addr| addr & Addr::from(u32::MAX)));
        let known = known.chain(self.peers.iter().map(|peer| peer.addr).filter(|addr| *addr != ADDR_NONE));
        let mut removed: Vec<Addr> = known.collect();
        removed.sort_unstable();
        removed.dedup();
        removed.retain(|addr| self.book.name(*addr).is_none());
        self.addresses_removed(&removed);
    }

    /// Whether an address is in the book by a socket only, which as many endpoints as there may be claim to
    /// have already.
    fn is_overclaimed(&self, addr: Addr, name: &EpName) -> bool {
        if self.book.name(addr).is_none_or(|row| row.is_full()) {
            return false;
        }
        let claimants: FxHashSet<Identity> =
            self.peers.iter().filter(|peer| peer.addr == addr).map(|peer| peer.name.base().identity()).collect();
        claimants.len() >= MOST_CLAIMANTS && !claimants.contains(&name.base().identity())
    }

    /// The link of a peer has ended that was known by its service name first: what listens there next may be
    /// another endpoint, so the next operation asks again.
    pub(crate) fn drop_routes(&mut self, peer_id: u32) {
        if !self.has_addresses() || !self.index.former.values().any(|&known| known == peer_id) {
            return;
        }
        self.index.former.retain(|_, known| *known != peer_id);
        let book = &self.book;
        let leads_elsewhere = |addr: Addr| book.name(addr).is_none_or(|name| !name.is_full());
        for (addr, n) in (0..).zip(&mut self.by_addr) {
            if *n == peer_id + 1 && leads_elsewhere(addr) {
                *n = 0;
            }
        }
        self.by_context_addr.retain(|&addr, known| *known != peer_id || !leads_elsewhere(addr));
    }

    /// A peer has gone, or something is taken that it left. If it was at an address by its socket and nothing
    /// of it is left, the address is its own no more.
    pub(crate) fn release_service_address(&mut self, peer_id: u32) {
        let peer = &self.peers[peer_id as usize];
        let gone = peer.state == PeerState::Idle && peer.connect_failure.is_none() && peer.rx_used == 0;
        if !gone || !peer.name.is_full() || self.book.name(peer.addr).is_none_or(|row| row.is_full()) {
            return;
        }
        let in_use =
            self.by_addr.contains(&(peer_id + 1)) || self.by_context_addr.values().any(|&known| known == peer_id);
        let theirs = |matcher: &Matcher| matcher.unexpected.iter().any(|(_, message)| message.peer == peer_id);
        if !in_use && !theirs(&self.tagged) && !theirs(&self.untagged) {
            self.clear_address(peer_id);
        }
    }

    /// Whether peers are named by addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        matches!(self.config.role, Role::Connectionless | Role::Datagrams)
    }

    /// Whether this is a peer in no address vector. The peer of a connection has no address either, but was
    /// accepted by the client.
    pub(crate) fn is_stranger(&self, peer_id: u32) -> bool {
        self.has_addresses() && self.peers[peer_id as usize].addr == ADDR_NONE
    }

    fn reindex_messages(&mut self) {
        self.tagged.readdressed();
        self.untagged.readdressed();
    }

    /// The book has lost these addresses, which are sorted.
    pub(crate) fn addresses_removed(&mut self, removed: &[Addr]) {
        for &addr in removed {
            if let Some(n) = usize::try_from(addr).ok().and_then(|i| self.by_addr.get_mut(i)) {
                *n = 0;
            }
        }
        let book = &self.book;
        self.by_context_addr.retain(|&far, _| book.name(far).is_some());
        let mut elsewhere = Vec::new();
        let gone = |peer: &Peer| removed.binary_search(&peer.addr).is_ok();
        for (peer_id, peer) in (0..).zip(&mut self.peers).filter(|(_, peer)| gone(peer)) {
            // The book may have it under another name, or under a socket that it does not name, but that has led to it.
            let near = || (0..).zip(&self.by_addr).find_map(|(other, n)| (*n == peer_id + 1).then_some(other));
            let far =
                || self.by_context_addr.iter().filter_map(|(far, known)| (*known == peer_id).then_some(far)).min();
            let far = || far().map(|far| far & Addr::from(u32::MAX));
            peer.addr = known_at(book, &peer.name).or_else(near).or_else(far).unwrap_or(ADDR_NONE);
            self.sweepable += usize::from(peer.is_sweepable());
            elsewhere.push(peer_id);
        }
        elsewhere.iter().for_each(|peer_id| self.account(*peer_id));
        if !elsewhere.is_empty() {
            self.reindex_messages();
        }
        // Receives from there may wait for what is here.
        for peer_id in elsewhere {
            if self.peers[peer_id as usize].addr != ADDR_NONE {
                self.match_again(peer_id);
            } else {
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// A connection that was begun under a service name turned out to lead to a known endpoint.
    pub(crate) fn learn_name(&mut self, link: LinkId, peer_id: u32, peer: &EpName) -> u32 {
        match self.index.find(&self.peers, peer) {
            Some(known) if known != peer_id => {
                self.merge(peer_id, known);
                if matches!(self.peers[known as usize].state, PeerState::Idle) {
                    self.peers[known as usize].state = PeerState::Connecting(link);
                    self.link_mut(link).peer = known;
                    return known;
                }
                self.close_link(link);
                known
            }
            _ => {
                self.index.replace(&self.peers, peer_id, peer_id);
                self.contexts |= peer.context_index().is_some();
                self.peers[peer_id as usize].name = *peer;
                self.peers[peer_id as usize].call = 0;
                self.index.insert(&self.peers, peer_id);
                // The address that led there may have been removed meanwhile.
                self.look_up_address(peer_id);
                peer_id
            }
        }
    }

    /// Moves all that waits on `from` to `to`, which leads to the same endpoint.
    fn merge(&mut self, from: u32, to: u32) {
        let old = &mut self.peers[from as usize];
        old.state = PeerState::Idle;
        let queues = old.queues.take();
        // Nobody has to do with this one any more.
        let addr = std::mem::replace(&mut old.addr, ADDR_NONE);
        self.sweepable += 1;
        let mut tx = VecDeque::new();
        if let Some(queues) = queues {
            self.queue_pool.lost();
            tx = queues.tx;
            if let Some(standby) = queues.standby {
                self.close_link(standby);
            }
        }
        for &op in &tx {
            if let Some(op) = self.ops.get_mut(op) {
                op.peer = to;
            }
        }
        self.queues(to).tx.extend(tx);
        self.index.replace(&self.peers, from, to);
        for n in self.by_addr.iter_mut().filter(|n| **n == from + 1) {
            *n = to + 1;
        }
        for peer_id in self.by_context_addr.values_mut().filter(|peer_id| **peer_id == from) {
            *peer_id = to;
        }
        self.set_address(to, addr);
        self.activate(to);
    }
}
