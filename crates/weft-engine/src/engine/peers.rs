//! The peers of an engine: their table, their names, and their addresses.
//!
//! Place in the data flow: this module is called for the first operation to an address, for a peer's link, and for
//! changes of the client's address vector. The code for messages only looks up the result ([`Peers::known`]).
//!
//! Invariant: an endpoint is one peer, even if it was known by its service name first.

use std::collections::VecDeque;
use std::hash::BuildHasher;
use std::ops::{Index, IndexMut};
use std::sync::Arc;

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};
use smallvec::SmallVec;

use crate::api::Role;
use crate::api::{ADDR_NONE, Addr, Book, Changes, Error, Fault, NoBook};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::peer::{BulkOp, Deferred, PathFlags, Peer, PeerQueues, PeerState, QueuePool};
use crate::growth;
use crate::ids::{OpId, PeerId};
use crate::matching::{Body, Space};
use crate::name::{EpName, Identity};
use crate::nic::LinkId;
use crate::wire::Writer;

/// If there are too many strangers, departed ones lose their messages, at most this fraction of the limit at a time.
const FORGOTTEN_PART: usize = 1024;

/// Strangers are swept after this many of them may have become sweepable.
const SWEEP_AFTER: usize = 64;

/// Most endpoints, one after the other, that may have left messages at an address that the book knows by its socket.
const MOST_CLAIMANTS: usize = 4;

/// Peers by the identities of their names.
#[derive(Default)]
struct NameIndex {
    /// Peers by their current names, which the table holds.
    by_name: HashTable<PeerId>,
    /// Peers by identities under which they were known before their full names were.
    former: FxHashMap<Identity, PeerId>,
}

fn hash(name: &EpName) -> u64 {
    FxBuildHasher.hash_one(name.identity())
}

impl NameIndex {
    fn find(&self, table: &[Peer], name: &EpName) -> Option<PeerId> {
        if let Some(&id) = self.former.get(&name.identity()) {
            return Some(id);
        }
        let same = |id: &PeerId| table.get(id.place()).is_some_and(|peer| peer.name().same_endpoint(name));
        self.by_name.find(hash(name), same).copied()
    }

    /// Enters a peer under its name.
    fn insert(&mut self, table: &[Peer], id: PeerId) {
        let hash = |id: &PeerId| table.get(id.place()).map_or(0, |peer| hash(&peer.name()));
        self.by_name.insert_unique(hash(&id), id, hash);
    }

    /// Removes a peer that is about to lose its name. The name leads to `now` from then on.
    fn replace(&mut self, table: &[Peer], id: PeerId, now: PeerId) {
        self.remove(table, id);
        if let Some(peer) = table.get(id.place()) {
            self.former.insert(peer.name().identity(), now);
        }
    }

    fn remove(&mut self, table: &[Peer], id: PeerId) {
        let Some(peer) = table.get(id.place()) else { return cannot_happen!("a name leads to a peer") };
        if let Ok(entry) = self.by_name.find_entry(hash(&peer.name()), |&other| other == id) {
            entry.remove();
        }
    }

    /// Removes a peer under all its names.
    fn forget(&mut self, table: &[Peer], id: PeerId) {
        self.remove(table, id);
        self.former.retain(|_, known| *known != id);
    }
}

/// The peers of an engine, indexed by [`PeerId`].
pub(crate) struct Peers {
    table: Vec<Peer>,
    /// Free places of the table.
    vacant: Vec<PeerId>,
    /// The peer that operations to an address reach. The table is as dense as the address book.
    by_addr: Vec<Option<PeerId>>,
    /// The peers of addresses that also name a context of a scalable endpoint (fi_rx_addr), which are too large
    /// for a table.
    by_context_addr: FxHashMap<Addr, PeerId>,
    /// Whether any peer is a context of a scalable endpoint.
    has_contexts: bool,
    index: NameIndex,
    book: Book,
    /// The changes that have been applied, of a book that other processes change.
    applied: Option<Changes>,
    /// Peers with work for the next round of progress, each once.
    active: Vec<PeerId>,
    queue_pool: QueuePool,
    /// Events since the last sweep after which a stranger may have left nothing here.
    sweepable: usize,
}

impl Index<PeerId> for Peers {
    type Output = Peer;

    #[inline(always)]
    fn index(&self, id: PeerId) -> &Peer {
        &self.table[id.place()]
    }
}

impl IndexMut<PeerId> for Peers {
    #[inline(always)]
    fn index_mut(&mut self, id: PeerId) -> &mut Peer {
        &mut self.table[id.place()]
    }
}

impl Peers {
    pub(crate) fn new() -> Self {
        Self {
            table: Vec::new(),
            vacant: Vec::new(),
            by_addr: Vec::new(),
            by_context_addr: FxHashMap::default(),
            has_contexts: false,
            index: NameIndex::default(),
            book: Arc::new(NoBook),
            applied: None,
            active: Vec::new(),
            queue_pool: QueuePool::default(),
            sweepable: 0,
        }
    }

    // ---- the table ---------------------------------------------------------------------------

    #[inline(always)]
    pub(crate) fn get(&self, id: PeerId) -> Option<&Peer> {
        self.table.get(id.place())
    }

    #[inline(always)]
    pub(crate) fn get_mut(&mut self, id: PeerId) -> Option<&mut Peer> {
        self.table.get_mut(id.place())
    }

    /// All places of the table, vacant ones included.
    pub(crate) fn as_slice(&self) -> &[Peer] {
        &self.table
    }

    /// The numbers of all places of the table, vacant ones included.
    pub(crate) fn ids(&self) -> impl Iterator<Item = PeerId> + Clone + use<> {
        (0..self.table.len()).map(PeerId::new)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (PeerId, &Peer)> {
        self.ids().zip(&self.table)
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (PeerId, &mut Peer)> {
        self.ids().zip(&mut self.table)
    }

    /// Places of the table, vacant ones included.
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    /// The first peer that `wanted` accepts.
    pub(crate) fn find_where(&self, wanted: impl Fn(&Peer) -> bool) -> Option<PeerId> {
        self.table.iter().position(wanted).map(PeerId::new)
    }

    /// The peer with a name.
    pub(crate) fn find(&self, name: &EpName) -> Option<PeerId> {
        self.index.find(&self.table, name)
    }

    /// The peer with a name, which is entered if it is new.
    pub(crate) fn named(&mut self, name: &EpName) -> PeerId {
        let known = self.find(name);
        if let Some(id) = planted!(Bug::StaleEpoch, known, known.or_else(|| self.at_socket(name))) {
            return id;
        }
        self.has_contexts |= name.context_index().is_some();
        let mut peer = Peer::new(*name);
        peer.set_addr(self.addr_of(name));
        let id = match self.vacant.pop() {
            Some(id) => {
                self[id] = peer;
                id
            }
            None => {
                growth::reserve(&mut self.table, 1);
                self.table.push(peer);
                PeerId::new(self.table.len() - 1)
            }
        };
        self.index.insert(&self.table, id);
        id
    }

    /// Only the planted bug `StaleEpoch` uses this.
    fn at_socket(&self, name: &EpName) -> Option<PeerId> {
        self.find_where(|peer| {
            peer.state() != PeerState::Vacant && peer.name().socket_identity() == name.socket_identity()
        })
    }

    /// Frees the place of a peer that is gone.
    fn vacate(&mut self, id: PeerId) {
        let name = self[id].name();
        self[id] = Peer::new(name);
        self[id].set_state(PeerState::Vacant);
        self.vacant.push(id);
    }

    // ---- work --------------------------------------------------------------------------------

    /// Puts a peer on the list of the next progress round.
    #[inline(always)]
    pub(crate) fn activate(&mut self, id: PeerId) {
        let peer = &mut self.table[id.place()];
        if !peer.set_active(true) {
            self.active.push(id);
        }
    }

    #[inline(always)]
    pub(crate) fn has_active(&self) -> bool {
        !self.active.is_empty()
    }

    /// Takes the list of the next progress round. `empty` is used for the list of the round after that.
    #[inline]
    pub(crate) fn take_active(&mut self, empty: Vec<PeerId>) -> Vec<PeerId> {
        std::mem::replace(&mut self.active, empty)
    }

    /// A peer's queues, for an entry to be added.
    #[inline(always)]
    pub(crate) fn queues(&mut self, id: PeerId) -> &mut PeerQueues {
        self.table[id.place()].lend_queues(&mut self.queue_pool)
    }

    /// The transfer into a window that the peer has announced is complete.
    pub(crate) fn close_announced(&mut self, id: PeerId, seq: u32) {
        if let Some(queues) = self.table[id.place()].queues_mut() {
            queues.close_announced(seq);
        }
        self.return_queues(id);
    }

    /// Returns a peer's queues to the pool if many are lent and these are empty.
    #[inline]
    pub(crate) fn return_queues(&mut self, id: PeerId) {
        self.queue_pool.take_back(&mut self.table[id.place()]);
    }

    /// Notes that message `number` to a peer is a request of an operation, if the peer confirms requests by position.
    #[inline]
    pub(crate) fn await_confirmation(&mut self, id: PeerId, number: u32, op: OpId) {
        if self[id].has(PathFlags::CONFIRMS) {
            self.queues(id).await_confirmation(number, op);
        }
    }

    /// Removes a peer's queues with their entries.
    pub(crate) fn drop_queues(&mut self, id: PeerId) -> Option<Box<PeerQueues>> {
        self.table[id.place()].drop_queues(&mut self.queue_pool)
    }

    /// Queues bulk data that a receive of the client has caused: [`BulkOp::RequestPush`] or [`BulkOp::Fetch`].
    pub(crate) fn defer_matched(&mut self, id: PeerId, work: BulkOp) {
        self.defer_bulk(id, work);
    }

    /// Queues bulk data for the device.
    pub(crate) fn defer_bulk(&mut self, id: PeerId, work: BulkOp) {
        self.queues(id).push_bulk(work);
        self.activate(id);
    }

    /// Queues a header without payload behind the peer's other deferred work.
    pub(crate) fn defer(&mut self, id: PeerId, work: Deferred) {
        self.queues(id).push_deferred(work);
        self.activate(id);
    }

    pub(crate) fn defer_message<const N: usize>(&mut self, id: PeerId, message: &Writer<N>) {
        self.defer(id, Deferred::Message(SmallVec::from_slice(message.bytes())));
    }

    // ---- addresses ---------------------------------------------------------------------------

    /// The peer at an address that has been used before.
    #[inline(always)]
    pub(crate) fn known(&self, addr: Addr) -> Option<PeerId> {
        match self.by_addr.get(usize::try_from(addr).ok()?) {
            Some(id) => *id,
            None => self.context_peer(addr),
        }
    }

    #[cold]
    fn context_peer(&self, addr: Addr) -> Option<PeerId> {
        self.by_context_addr.get(&addr).copied()
    }

    pub(crate) fn book(&self) -> &Book {
        &self.book
    }

    /// Replaces the address book. True: other processes change it.
    pub(crate) fn bind_book(&mut self, book: Book) -> bool {
        self.applied = book.changes();
        self.book = book;
        self.applied.is_some()
    }

    /// Whether other processes change the address book.
    #[inline]
    pub(crate) fn shares_book(&self) -> bool {
        self.applied.is_some()
    }

    /// Operations to an address of the book reach this peer from now on.
    pub(crate) fn set_route(&mut self, addr: Addr, id: PeerId) {
        let Ok(place) = usize::try_from(addr) else { return };
        if self.by_addr.len() <= place {
            let more = place + 1 - self.by_addr.len();
            growth::reserve(&mut self.by_addr, more);
            self.by_addr.resize(place + 1, None);
        }
        self.by_addr[place] = Some(id);
    }

    /// Operations to any address reach no peer from now on, and those to address 0 reach `only`.
    pub(crate) fn set_only_route(&mut self, only: Option<PeerId>) {
        self.by_addr = only.map(|id| vec![Some(id)]).unwrap_or_default();
    }

    /// Operations to `service` are known to reach this peer.
    pub(crate) fn set_service(&mut self, service: &EpName, id: PeerId) {
        self.index.former.insert(service.identity(), id);
    }

    /// The peer that was found behind a service name.
    pub(crate) fn at_service(&self, service: &EpName) -> Option<PeerId> {
        self.index.former.get(&service.identity()).copied()
    }

    /// Whether operations to some address reach this peer.
    fn has_routes(&self, id: PeerId) -> bool {
        self.by_addr.contains(&Some(id)) || self.by_context_addr.values().any(|&known| known == id)
    }

    /// The peer's address in the book, or `ADDR_NONE`. A book may have the socket of a full name without the
    /// id. [`crate::engine::claims`] decides that case, since only the peer itself claims the socket.
    pub(crate) fn addr_of(&self, name: &EpName) -> Addr {
        let known = known_at(&self.book, name);
        planted!(Bug::ContextStranger, known, known.filter(|_| name.context_index() <= Some(0))).unwrap_or(ADDR_NONE)
    }

    /// Whether the book has a service name at this address.
    pub(crate) fn is_service(&self, addr: Addr) -> bool {
        self.book.name(addr).is_some_and(|row| !row.is_full())
    }

    /// Drops routes that were found by a service name. Another endpoint may listen there next.
    fn drop_service_routes(&mut self, id: PeerId) {
        if !self.index.former.values().any(|&known| known == id) {
            return;
        }
        self.index.former.retain(|_, known| *known != id);
        let book = &self.book;
        let leads_elsewhere = |addr: Addr| book.name(addr).is_none_or(|name| !name.is_full());
        for (addr, route) in (0..).zip(&mut self.by_addr) {
            if *route == Some(id) && leads_elsewhere(addr) {
                *route = None;
            }
        }
        self.by_context_addr.retain(|&addr, known| *known != id || !leads_elsewhere(addr));
    }

    /// Drops the routes of addresses that the book has lost.
    fn drop_removed_routes(&mut self, removed: &[Addr]) {
        for &addr in removed {
            if let Some(route) = usize::try_from(addr).ok().and_then(|place| self.by_addr.get_mut(place)) {
                *route = None;
            }
        }
        let book = &self.book;
        self.by_context_addr.retain(|&addr, _| book.name(addr).is_some());
    }

    /// Leads all routes of one peer to another.
    fn move_routes(&mut self, from: PeerId, to: PeerId) {
        self.index.replace(&self.table, from, to);
        for route in self.by_addr.iter_mut().filter(|route| **route == Some(from)) {
            *route = Some(to);
        }
        for id in self.by_context_addr.values_mut().filter(|id| **id == from) {
            *id = to;
        }
    }

    /// The address of a peer whose own address was removed. The book may have the peer under another name, or
    /// under a service name that has led to it.
    fn other_addr(&self, id: PeerId) -> Addr {
        let near = || (0..).zip(&self.by_addr).find_map(|(addr, route)| (*route == Some(id)).then_some(addr));
        let far = || self.by_context_addr.iter().filter_map(|(far, known)| (*known == id).then_some(far)).min();
        let far = || far().map(|far| far & Addr::from(u32::MAX));
        known_at(&self.book, &self[id].name()).or_else(near).or_else(far).unwrap_or(ADDR_NONE)
    }

    /// All addresses in use that the book does not have, sorted.
    fn removed_addrs(&self) -> Vec<Addr> {
        let known = (0..).zip(&self.by_addr).filter_map(|(addr, route)| route.map(|_| addr));
        let known = known.chain(self.by_context_addr.keys().map(|addr| addr & Addr::from(u32::MAX)));
        let known = known.chain(self.table.iter().map(|peer| peer.addr()).filter(|addr| *addr != ADDR_NONE));
        let mut removed: Vec<Addr> = known.collect();
        removed.sort_unstable();
        removed.dedup();
        removed.retain(|addr| self.book.name(*addr).is_none());
        removed
    }

    /// Whether the book has an address by its socket only, and too many endpoints have claimed it.
    fn is_overclaimed(&self, addr: Addr, name: &EpName) -> bool {
        if !self.is_service(addr) {
            return false;
        }
        let claimants: FxHashSet<Identity> =
            self.table.iter().filter(|peer| peer.addr() == addr).map(|peer| peer.name().base().identity()).collect();
        claimants.len() >= MOST_CLAIMANTS && !claimants.contains(&name.base().identity())
    }

    /// Contexts of a scalable endpoint that this name may belong to, and that have no address.
    fn contexts_of(&self, name: &EpName) -> Vec<PeerId> {
        let theirs = |peer: &Peer| {
            let base = peer.name().base();
            peer.name().context_index().is_some()
                && [base.identity(), base.socket_identity()].contains(&name.identity())
        };
        let wanted = |peer: &Peer| peer.addr() == ADDR_NONE && peer.state() != PeerState::Vacant && theirs(peer);
        self.iter().filter_map(|(id, peer)| wanted(peer).then_some(id)).collect()
    }

    // ---- strangers ---------------------------------------------------------------------------

    /// Peers in no address vector that are connected, or have left messages here.
    fn strangers(&self) -> usize {
        self.table.iter().filter(|peer| peer.addr() == ADDR_NONE && peer.state() != PeerState::Vacant).count()
    }

    /// Whether there are as many strangers as allowed.
    fn is_crowded(&self, max: usize) -> bool {
        self.table.len() - self.vacant.len() >= max && self.strangers() >= max
    }

    /// Counts `events` after which a stranger may have left nothing here.
    #[inline]
    pub(crate) fn note_sweepable(&mut self, events: bool) {
        self.sweepable += usize::from(events);
    }
}

/// The address of a peer in a book, by the id that the peer has proven. A service name is known by its socket.
fn known_at(book: &Book, name: &EpName) -> Option<Addr> {
    let known = |addr: &Addr| !name.is_full() || book.name(*addr).is_some_and(|row| row.is_full());
    book.addr(name).filter(known)
}

impl State {
    /// The peer at an address. It is entered when the address is used for the first time.
    #[inline]
    pub(crate) fn peer_for(&mut self, addr: Addr) -> Result<PeerId, Error> {
        match self.peers.known(addr) {
            Some(peer_id) => Ok(peer_id),
            None => self.resolve_peer(addr),
        }
    }

    #[cold]
    fn resolve_peer(&mut self, addr: Addr) -> Result<PeerId, Error> {
        self.follow_book();
        let name = self.peers.book.name(addr).ok_or_else(|| self.no_peer_error())?;
        let name = planted!(Bug::ContextIgnored, name, name.base());
        if self.peers.sweepable >= SWEEP_AFTER {
            self.sweep_strangers();
        }
        let peer_id = self.peers.named(&name);
        if addr > Addr::from(u32::MAX) {
            // No row of a book has so large a number. The highest bits name a context.
            self.peers.by_context_addr.insert(addr, peer_id);
        } else {
            self.peers.set_route(addr, peer_id);
        }
        self.set_address(peer_id, addr & Addr::from(u32::MAX));
        let own = self.is_own_name(&name);
        self.peers[peer_id].set_own(own);
        Ok(peer_id)
    }

    /// The peer for a caller's name. `addr`: the caller was found at this address, of which the book has the
    /// socket only. `None`: the caller is a stranger and there are too many, or too many have claimed the
    /// address.
    pub(crate) fn peer_of_caller(&mut self, name: &EpName, addr: Option<Addr>) -> Option<PeerId> {
        self.follow_book();
        let max = self.config.max_strangers;
        if self.peers.sweepable >= SWEEP_AFTER || (self.peers.sweepable > 0 && self.peers.is_crowded(max)) {
            self.sweep_strangers();
        }
        let stranger = addr.is_none() && self.peers.addr_of(name) == ADDR_NONE;
        if stranger && self.peers.find(name).is_none() && self.peers.is_crowded(max) {
            // Messages of departed strangers go before the links of idle ones.
            let departed = |peer: &Peer| peer.addr() == ADDR_NONE;
            let forgotten = (0..=max / FORGOTTEN_PART).take_while(|_| self.forget_first_departed(departed)).count();
            if forgotten > 0 {
                self.sweep_strangers();
            }
            if self.peers.is_crowded(max) {
                self.evict_strangers();
                self.sweep_strangers();
            }
        }
        let known = self.peers.find(name);
        // A known peer without an address may have reconnected after its service entry was removed.
        if known.is_none_or(|peer_id| self.peers[peer_id].addr() == ADDR_NONE) {
            if let Some(addr) = addr.filter(|addr| self.peers.is_overclaimed(*addr, name)) {
                self.forget_first_departed(|peer| peer.addr() == addr);
            }
            let refused = match addr {
                None => known.is_none() && stranger && self.peers.is_crowded(max),
                Some(addr) => self.peers.is_overclaimed(addr, name),
            };
            if refused {
                return None;
            }
        }
        Some(self.peers.named(name))
    }

    /// Frees the places of strangers that have left nothing here. Strangers come and go as long as an endpoint is open.
    #[cold]
    fn sweep_strangers(&mut self) {
        self.peers.sweepable = 0;
        debug_assert_eq!(self.strangers.total(), self.all_stakes());
        self.drop_early_of_departed();
        let nothing = |peer: &Peer| peer.rx_used() == 0 && peer.ops().is_empty() && peer.transfers().is_empty();
        let gone = |peer: &Peer| peer.is_sweepable() && nothing(peer);
        let mut gone = self.peers.table.iter().map(gone).collect::<Vec<_>>();
        let mut keep = |id: PeerId| {
            if let Some(gone) = gone.get_mut(id.place()) {
                *gone = false;
            }
        };
        self.links.peers().for_each(&mut keep);
        self.peers.active.iter().copied().for_each(&mut keep);
        self.peers.by_addr.iter().filter_map(|route| *route).for_each(&mut keep);
        self.peers.by_context_addr.values().copied().for_each(&mut keep);
        // Other messages use a part of their peer's window, so only these need a search.
        if self.leftovers.may_have_lost() {
            let mut any = false;
            for space in Space::ALL {
                for (_, message) in self.incoming.matcher(space).unexpected().iter() {
                    any |= matches!(message.body(), Body::Lost { .. });
                    keep(message.peer());
                }
            }
            self.leftovers.set_lost(any);
        }
        let group = self.incoming.matcher(Space::Group);
        group.posted().iter().for_each(|(_, posted)| keep(PeerId::of_source(posted.src)));
        group.unexpected().iter().for_each(|(_, message)| keep(message.peer()));
        if let Some(collectives) = &self.collectives {
            collectives.peers().for_each(&mut keep);
        }
        for completion in &self.completions {
            if let Some(Fault::Stranger(number)) = completion.fault {
                keep(PeerId::new(number as usize));
            }
        }
        for id in self.peers.ids().zip(gone).filter_map(|(id, gone)| gone.then_some(id)) {
            self.peers.index.forget(&self.peers.table, id);
            self.peers[id].set_state(PeerState::Vacant);
            self.account(id);
            self.peers.vacate(id);
        }
    }

    pub(crate) fn address_added(&mut self, addr: Addr, name: &EpName) {
        if self.peers.has_contexts {
            self.context_addresses_added(addr, name);
        }
        if let Some(peer_id) = self.peers.find(name) {
            self.set_address(peer_id, addr);
        } else if !name.is_full() {
            // The client may insert a stranger's service name. An unknown full name has no peer. A search for one would
            // make start-up quadratic.
            let there = |peer: &Peer| peer.is_in_use() && peer.name().socket_identity() == name.identity();
            if let Some(peer_id) = self.peers.find_where(there) {
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// Gives the address to the contexts of a scalable endpoint that the name may belong to.
    fn context_addresses_added(&mut self, addr: Addr, name: &EpName) {
        for peer_id in self.peers.contexts_of(name) {
            if name.is_full() {
                self.set_address(peer_id, addr);
            } else {
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// Gives an address to a peer that has none. Receives from there may match messages that it sent as a stranger.
    pub(crate) fn set_address(&mut self, peer_id: PeerId, addr: Addr) {
        let peer = &mut self.peers[peer_id];
        if peer.addr() == ADDR_NONE && addr != ADDR_NONE {
            peer.set_addr(addr);
            self.end_stake(peer_id);
            self.reindex_messages();
            self.match_again(peer_id);
        }
    }

    /// Looks a stranger up in the book.
    #[cold]
    pub(crate) fn look_up_address(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        if peer.addr() == ADDR_NONE {
            self.set_address(peer_id, self.peers.addr_of(&peer.name()));
        }
    }

    /// Takes a peer's address away.
    pub(crate) fn clear_address(&mut self, peer_id: PeerId) {
        self.peers[peer_id].set_addr(ADDR_NONE);
        self.peers.sweepable += 1;
        self.note_removed(peer_id);
        self.account(peer_id);
        self.reindex_messages();
    }

    /// Applies the changes of a book that other processes change.
    #[inline]
    pub(crate) fn follow_book(&mut self) {
        if self.peers.shares_book() {
            self.apply_book_changes();
        }
    }

    #[cold]
    fn apply_book_changes(&mut self) {
        let changes = self.peers.book.changes();
        let applied = std::mem::replace(&mut self.peers.applied, changes);
        if applied == changes {
            return;
        }
        if applied.map(|done| done.removals) != changes.map(|done| done.removals) {
            let removed = self.peers.removed_addrs();
            self.addresses_removed(&removed);
        }
        for peer_id in self.peers.ids() {
            if self.peers[peer_id].state() != PeerState::Vacant {
                self.look_up_address(peer_id);
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// Makes the next operation to a service name connect anew, after the link of a peer has ended that was found by
    /// that name. Another endpoint may listen there next.
    pub(crate) fn drop_routes(&mut self, peer_id: PeerId) {
        if self.has_addresses() {
            self.peers.drop_service_routes(peer_id);
        }
    }

    /// Takes the address from a peer that was found there by its service name, once nothing of the peer is left.
    pub(crate) fn release_service_address(&mut self, peer_id: PeerId) {
        let peer = &self.peers[peer_id];
        let gone = peer.state() == PeerState::Idle && peer.connect_failure().is_none() && peer.rx_used() == 0;
        if !gone || !peer.name().is_full() || !self.peers.is_service(peer.addr()) {
            return;
        }
        if !self.peers.has_routes(peer_id) && !self.incoming.has_message_of(peer_id) {
            self.clear_address(peer_id);
        }
    }

    /// Whether peers are named by addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        matches!(self.config.role, Role::Connectionless | Role::Datagrams)
    }

    /// Whether a peer is in no address vector. The peer of a connection has no address either, but the client has
    /// accepted it.
    pub(crate) fn is_stranger(&self, peer_id: PeerId) -> bool {
        self.has_addresses() && self.peers[peer_id].addr() == ADDR_NONE
    }

    fn reindex_messages(&mut self) {
        Space::OF_CLIENT.into_iter().for_each(|space| self.incoming.matcher_mut(space).readdressed());
    }

    /// The book has lost these addresses, which are sorted.
    pub(crate) fn addresses_removed(&mut self, removed: &[Addr]) {
        self.peers.drop_removed_routes(removed);
        let mut elsewhere = Vec::new();
        for peer_id in self.peers.ids() {
            if removed.binary_search(&self.peers[peer_id].addr()).is_ok() {
                let addr = self.peers.other_addr(peer_id);
                self.peers[peer_id].set_addr(addr);
                self.peers.sweepable += usize::from(self.peers[peer_id].is_sweepable());
                elsewhere.push(peer_id);
            }
        }
        for &peer_id in &elsewhere {
            self.note_removed(peer_id);
            self.account(peer_id);
        }
        if !elsewhere.is_empty() {
            self.reindex_messages();
        }
        // Receives from the new addresses may match messages that wait here.
        for peer_id in elsewhere {
            if self.peers[peer_id].addr() != ADDR_NONE {
                self.match_again(peer_id);
            } else {
                self.query_claimed_address(peer_id);
            }
        }
    }

    /// Gives a peer that was known by its service name the full name that the device has learnt. Returns the
    /// peer that has this name.
    pub(crate) fn learn_name(&mut self, link: LinkId, peer_id: PeerId, name: &EpName) -> PeerId {
        match self.peers.find(name) {
            Some(known) if known != peer_id => {
                self.merge(peer_id, known);
                if matches!(self.peers[known].state(), PeerState::Idle) {
                    self.peers[known].set_state(PeerState::Connecting(link));
                    self.links.set_peer(link, known);
                    return known;
                }
                self.links.close(link);
                known
            }
            _ => {
                self.peers.index.replace(&self.peers.table, peer_id, peer_id);
                self.peers.has_contexts |= name.context_index().is_some();
                self.peers[peer_id].rename(*name);
                self.peers.index.insert(&self.peers.table, peer_id);
                // The client may have removed the address that was dialed.
                self.look_up_address(peer_id);
                peer_id
            }
        }
    }

    /// Moves the queued operations of `from` to `to`, which is the same endpoint.
    fn merge(&mut self, from: PeerId, to: PeerId) {
        let old = &mut self.peers[from];
        old.set_state(PeerState::Idle);
        let addr = std::mem::replace(&mut old.addr(), ADDR_NONE);
        let queues = self.peers.drop_queues(from);
        self.peers.sweepable += 1;
        let mut tx = VecDeque::new();
        if let Some(queues) = queues {
            if let Some(standby) = queues.standby() {
                self.links.close(standby);
            }
            tx = queues.into_ops();
        }
        for op in tx {
            self.outgoing.move_op(op, &mut self.peers, to);
            self.peers.queues(to).push_op(op);
        }
        self.peers.move_routes(from, to);
        self.set_address(to, addr);
        self.peers.activate(to);
    }
}
