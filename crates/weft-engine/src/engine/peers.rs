//! Who peers are: names, addresses, and the virtual connections that belong to them.
//!
//! Place in the data flow: an operation to an address that is used for the first time, a peer's link, and the
//! client's address vector come here; the paths of messages only look up what was found ([`Core::known_vc`]).
//!
//! Invariant: one virtual connection per endpoint, also where the endpoint was known by its service name first.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use hashbrown::HashTable;
use rustc_hash::{FxBuildHasher, FxHashMap, FxHashSet};

use crate::api::{ADDR_NONE, Addr, Book, Error, Fault};
use crate::bugs::planted;
use crate::engine::connection::Role;
use crate::engine::peer::{Vc, VcState};
use crate::engine::state::Core;
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
pub(crate) struct Index {
    /// Numbers of connections, by the names that they have: the names are not here once more.
    by_name: HashTable<u32>,
    /// Identities under which endpoints were known before their full names were.
    former: FxHashMap<Identity, u32>,
}

fn hash(name: &EpName) -> u64 {
    FxBuildHasher.hash_one(name.identity())
}

impl Index {
    pub(crate) fn find(&self, vcs: &[Vc], name: &EpName) -> Option<u32> {
        if let Some(&vci) = self.former.get(&name.identity()) {
            return Some(vci);
        }
        let same = |&vci: &u32| vcs.get(vci as usize).is_some_and(|vc| vc.name.same_endpoint(name));
        self.by_name.find(hash(name), same).copied()
    }

    /// The connection that has been found behind a socket.
    pub(crate) fn behind(&self, service: &EpName) -> Option<u32> {
        self.former.get(&service.identity()).copied()
    }

    /// A connection has been found behind a socket.
    pub(crate) fn found_behind(&mut self, service: &EpName, vci: u32) {
        self.former.insert(service.identity(), vci);
    }

    /// A connection has its name.
    fn insert(&mut self, vcs: &[Vc], vci: u32) {
        let hash = |&vci: &u32| vcs.get(vci as usize).map_or(0, |vc| hash(&vc.name));
        self.by_name.insert_unique(hash(&vci), vci, hash);
    }

    /// A connection is about to lose its name, by which `now` is to be found.
    fn replace(&mut self, vcs: &[Vc], vci: u32, now: u32) {
        self.remove(vcs, vci);
        if let Some(vc) = vcs.get(vci as usize) {
            self.former.insert(vc.name.identity(), now);
        }
    }

    /// A connection is about to lose its name.
    fn remove(&mut self, vcs: &[Vc], vci: u32) {
        let Some(vc) = vcs.get(vci as usize) else { return };
        if let Ok(entry) = self.by_name.find_entry(hash(&vc.name), |&other| other == vci) {
            entry.remove();
        }
    }

    /// The peer is forgotten under all its names.
    fn forget(&mut self, vcs: &[Vc], vci: u32) {
        self.remove(vcs, vci);
        self.former.retain(|_, known| *known != vci);
    }
}

/// Where a book has a peer by what the peer has proven: its id. A name that is a socket only is known by that.
fn known_at(book: &Book, name: &EpName) -> Option<Addr> {
    let known = |addr: &Addr| !name.is_full() || book.name(*addr).is_some_and(|row| row.is_full());
    book.addr(name).filter(known)
}

impl Core {
    #[cold]
    pub(crate) fn meet(&mut self, addr: Addr) -> Result<u32, Error> {
        self.follow_book();
        let name = self.book.name(addr).ok_or_else(|| self.no_peer())?;
        let name = planted!(Bug::ContextIgnored, name, name.base());
        if self.departed >= SWEEP_AFTER {
            self.forget_the_gone();
        }
        let vci = self.vc_named(&name);
        if addr > Addr::from(u32::MAX) {
            // Of a book's numbers none is as large: it has the number of a context in its highest bits.
            self.by_far_addr.insert(addr, vci);
        } else {
            self.leads_to(addr, vci);
        }
        self.is_at(vci, addr & Addr::from(u32::MAX));
        Ok(vci)
    }

    /// Operations to an address that the book knows use this connection from now on.
    pub(crate) fn leads_to(&mut self, addr: Addr, vci: u32) {
        // The index is as dense as the book is.
        let Ok(index) = usize::try_from(addr) else { return };
        if self.by_addr.len() <= index {
            let more = index + 1 - self.by_addr.len();
            growth::reserve(&mut self.by_addr, more);
            self.by_addr.resize(index + 1, 0);
        }
        self.by_addr[index] = vci + 1;
    }

    /// The connection for a name, new or old.
    pub(crate) fn vc_named(&mut self, name: &EpName) -> u32 {
        let known = self.index.find(&self.vcs, name);
        if let Some(vci) = planted!(Bug::StaleEpoch, known, known.or_else(|| self.at_socket(name))) {
            return vci;
        }
        self.contexts |= name.context_index().is_some();
        let mut vc = Vc::new(*name);
        vc.addr = self.addr_of(name);
        let vci = match self.vacant.pop() {
            Some(vci) => {
                self.vcs[vci as usize] = vc;
                vci
            }
            None => {
                growth::reserve(&mut self.vcs, 1);
                self.vcs.push(vc);
                u32::try_from(self.vcs.len() - 1).unwrap_or(u32::MAX - 1)
            }
        };
        self.index.insert(&self.vcs, vci);
        vci
    }

    /// Only the planted bug `StaleEpoch` asks this.
    fn at_socket(&self, name: &EpName) -> Option<u32> {
        let same = |vc: &Vc| vc.state != VcState::Vacant && vc.name.socket_identity() == name.socket_identity();
        self.vcs.iter().position(same).and_then(|at| u32::try_from(at).ok())
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
    pub(crate) fn vc_of_caller(&mut self, name: &EpName, at: Option<Addr>) -> Option<u32> {
        self.follow_book();
        let max = self.config.max_strangers;
        let crowded = |core: &Self| core.vcs.len() - core.vacant.len() >= max && core.strangers() >= max;
        if self.departed >= SWEEP_AFTER || (self.departed > 0 && crowded(self)) {
            self.forget_the_gone();
        }
        let stranger = at.is_none() && self.addr_of(name) == ADDR_NONE;
        if stranger && self.index.find(&self.vcs, name).is_none() && crowded(self) {
            self.evict_strangers();
            self.forget_the_gone();
        }
        let known = self.index.find(&self.vcs, name);
        // Who is known and nowhere may have left the service that it was at, and come back.
        if known.is_none_or(|vci| self.vcs[vci as usize].addr == ADDR_NONE) {
            let refused = match at {
                None => known.is_none() && stranger && crowded(self),
                Some(addr) => self.is_overclaimed(addr, name),
            };
            if refused {
                return None;
            }
        }
        Some(self.vc_named(name))
    }

    /// Peers in no address vector that are connected, or have left something here.
    fn strangers(&self) -> usize {
        self.vcs.iter().filter(|vc| vc.addr == ADDR_NONE && vc.state != VcState::Vacant).count()
    }

    /// Strangers come and go, as long as an endpoint lives: of those that have left nothing here, nothing is kept.
    #[cold]
    fn forget_the_gone(&mut self) {
        self.departed = 0;
        debug_assert_eq!(self.strangers.total, self.all_stakes());
        let mut gone = self.vcs.iter().map(Vc::is_gone).collect::<Vec<_>>();
        let mut keep = |vci: u32| {
            if let Some(gone) = gone.get_mut(vci as usize) {
                *gone = false;
            }
        };
        self.links.iter().for_each(|link| keep(link.vc));
        self.active.iter().copied().for_each(&mut keep);
        self.ops.iter().for_each(|(_, op)| keep(op.vc));
        self.xfers.iter().for_each(|xfer| keep(xfer.vc));
        self.by_addr.iter().filter_map(|n| n.checked_sub(1)).for_each(&mut keep);
        self.by_far_addr.values().copied().for_each(&mut keep);
        for matcher in [&self.tagged, &self.untagged] {
            matcher.unexpected.iter().for_each(|(_, message)| keep(message.vc));
        }
        for completion in &self.completions {
            if let Some(Fault::Stranger(vci)) = completion.fault {
                keep(vci);
            }
        }
        for vci in (0..).zip(gone).filter_map(|(vci, gone)| gone.then_some(vci)) {
            self.index.forget(&self.vcs, vci);
            self.vcs[vci as usize].state = VcState::Vacant;
            self.account(vci);
            let vc = &mut self.vcs[vci as usize];
            *vc = Vc { state: VcState::Vacant, ..Vc::new(vc.name) };
            self.vacant.push(vci);
        }
    }

    pub(crate) fn address_added(&mut self, addr: Addr, name: &EpName) {
        if self.contexts {
            self.contexts_added(addr, name);
        }
        if let Some(vci) = self.index.find(&self.vcs, name) {
            self.is_at(vci, addr);
        } else if !name.is_full() {
            // A stranger's name may be inserted in its service form. (A full name that is not known has no
            // connection; looking further would make start-up quadratic.)
            let there = |vc: &Vc| vc.is_in_use() && vc.name.socket_identity() == name.identity();
            if let Some(vci) = self.vcs.iter().position(there) {
                self.seek(u32::try_from(vci).unwrap_or(u32::MAX));
            }
        }
    }

    /// The same for the contexts of the scalable endpoint that the name may be of.
    fn contexts_added(&mut self, addr: Addr, name: &EpName) {
        let theirs = |vc: &Vc| {
            let base = vc.name.base();
            vc.name.context_index().is_some() && [base.identity(), base.socket_identity()].contains(&name.identity())
        };
        let found = |vc: &Vc| vc.addr == ADDR_NONE && vc.state != VcState::Vacant && theirs(vc);
        let found: Vec<u32> = (0..).zip(&self.vcs).filter_map(|(vci, vc)| found(vc).then_some(vci)).collect();
        for vci in found {
            if name.is_full() {
                self.is_at(vci, addr);
            } else {
                self.seek(vci);
            }
        }
    }

    /// A connection has turned out to lead to an address, as whatever looks it up by that finds. What came by
    /// it when it was a stranger's may be what receives from there wait for.
    pub(crate) fn is_at(&mut self, vci: u32, addr: Addr) {
        let vc = &mut self.vcs[vci as usize];
        if vc.addr == ADDR_NONE && addr != ADDR_NONE {
            vc.addr = addr;
            self.end_stake(vci);
            self.readdressed();
            self.match_again(vci);
        }
    }

    /// A stranger may be in the book by now.
    #[cold]
    pub(crate) fn look_up(&mut self, vci: u32) {
        let vc = &self.vcs[vci as usize];
        if vc.addr == ADDR_NONE {
            self.is_at(vci, self.addr_of(&vc.name));
        }
    }

    /// A peer is not at its address any more.
    pub(crate) fn lose_address(&mut self, vci: u32) {
        self.vcs[vci as usize].addr = ADDR_NONE;
        self.departed += 1;
        self.account(vci);
        self.readdressed();
    }

    /// Does what others have done to the book, if that is one that others write.
    #[inline]
    pub(crate) fn follow_book(&mut self) {
        if self.followed.is_some() {
            self.follow_others();
        }
    }

    #[cold]
    fn follow_others(&mut self) {
        let changes = self.book.changes();
        let followed = std::mem::replace(&mut self.followed, changes);
        if followed == changes {
            return;
        }
        if followed.map(|done| done.removals) != changes.map(|done| done.removals) {
            self.rows_removed();
        }
        for vci in 0..u32::try_from(self.vcs.len()).unwrap_or(u32::MAX) {
            if self.vcs[vci as usize].state != VcState::Vacant {
                self.look_up(vci);
                self.seek(vci);
            }
        }
    }

    /// Others have removed something from the book.
    fn rows_removed(&mut self) {
        let known = (0..).zip(&self.by_addr).filter_map(|(addr, n)| (*n > 0).then_some(addr));
        let known = known.chain(self.by_far_addr.keys().map(|addr| addr & Addr::from(u32::MAX)));
        let known = known.chain(self.vcs.iter().map(|vc| vc.addr).filter(|addr| *addr != ADDR_NONE));
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
            self.vcs.iter().filter(|vc| vc.addr == addr).map(|vc| vc.name.base().identity()).collect();
        claimants.len() >= MOST_CLAIMANTS && !claimants.contains(&name.base().identity())
    }

    /// The link of a peer has ended that was known by its service name first: what listens there next may be
    /// another endpoint, so the next operation asks again.
    pub(crate) fn forget_way(&mut self, vci: u32) {
        if !self.has_addresses() || !self.index.former.values().any(|&known| known == vci) {
            return;
        }
        self.index.former.retain(|_, known| *known != vci);
        let book = &self.book;
        let leads_elsewhere = |addr: Addr| book.name(addr).is_none_or(|name| !name.is_full());
        for (addr, n) in (0..).zip(&mut self.by_addr) {
            if *n == vci + 1 && leads_elsewhere(addr) {
                *n = 0;
            }
        }
        self.by_far_addr.retain(|&addr, known| *known != vci || !leads_elsewhere(addr));
    }

    /// A peer has gone, or something is taken that it left. If it was at an address by its socket and nothing
    /// of it is left, the address is its own no more.
    pub(crate) fn leave_service(&mut self, vci: u32) {
        let vc = &self.vcs[vci as usize];
        let gone = vc.state == VcState::Idle && vc.refused.is_none() && vc.rx_used == 0;
        if !gone || !vc.name.is_full() || self.book.name(vc.addr).is_none_or(|row| row.is_full()) {
            return;
        }
        let in_use = self.by_addr.contains(&(vci + 1)) || self.by_far_addr.values().any(|&known| known == vci);
        let theirs = |matcher: &Matcher| matcher.unexpected.iter().any(|(_, message)| message.vc == vci);
        if !in_use && !theirs(&self.tagged) && !theirs(&self.untagged) {
            self.lose_address(vci);
        }
    }

    /// Whether peers are named by addresses.
    pub(crate) fn has_addresses(&self) -> bool {
        matches!(self.config.role, Role::Connectionless | Role::Datagrams)
    }

    /// Whether this is a peer in no address vector. The peer of a connection has no address either, but was
    /// accepted by the client.
    pub(crate) fn is_stranger(&self, vci: u32) -> bool {
        self.has_addresses() && self.vcs[vci as usize].addr == ADDR_NONE
    }

    fn readdressed(&mut self) {
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
        self.by_far_addr.retain(|&far, _| book.name(far).is_some());
        let mut elsewhere = Vec::new();
        let gone = |vc: &Vc| removed.binary_search(&vc.addr).is_ok();
        for (vci, vc) in (0..).zip(&mut self.vcs).filter(|(_, vc)| gone(vc)) {
            // The book may have it under another name, or under a socket that it does not name, but that has led to it.
            let near = || (0..).zip(&self.by_addr).find_map(|(other, n)| (*n == vci + 1).then_some(other));
            let far = || self.by_far_addr.iter().filter_map(|(far, known)| (*known == vci).then_some(far)).min();
            let far = || far().map(|far| far & Addr::from(u32::MAX));
            vc.addr = known_at(book, &vc.name).or_else(near).or_else(far).unwrap_or(ADDR_NONE);
            self.departed += usize::from(vc.is_gone());
            elsewhere.push(vci);
        }
        elsewhere.iter().for_each(|vci| self.account(*vci));
        if !elsewhere.is_empty() {
            self.readdressed();
        }
        // Receives from there may wait for what is here.
        for vci in elsewhere {
            if self.vcs[vci as usize].addr != ADDR_NONE {
                self.match_again(vci);
            } else {
                self.seek(vci);
            }
        }
    }

    /// A connection that was begun under a service name turned out to lead to a known endpoint.
    pub(crate) fn learn_name(&mut self, link: LinkId, vci: u32, peer: &EpName) -> u32 {
        match self.index.find(&self.vcs, peer) {
            Some(known) if known != vci => {
                self.merge(vci, known);
                if matches!(self.vcs[known as usize].state, VcState::Idle) {
                    self.vcs[known as usize].state = VcState::Connecting(link);
                    self.link_mut(link).vc = known;
                    return known;
                }
                self.link_drop(link);
                known
            }
            _ => {
                self.index.replace(&self.vcs, vci, vci);
                self.contexts |= peer.context_index().is_some();
                self.vcs[vci as usize].name = *peer;
                self.vcs[vci as usize].call = 0;
                self.index.insert(&self.vcs, vci);
                // The address that led there may have been removed meanwhile.
                self.look_up(vci);
                vci
            }
        }
    }

    /// Moves all that waits on `from` to `to`, which leads to the same endpoint.
    fn merge(&mut self, from: u32, to: u32) {
        let old = &mut self.vcs[from as usize];
        old.state = VcState::Idle;
        let waiting = old.waiting.take();
        // Nobody has to do with this one any more.
        let addr = std::mem::replace(&mut old.addr, ADDR_NONE);
        self.departed += 1;
        let mut tx = VecDeque::new();
        if let Some(waiting) = waiting {
            self.queues.lost();
            tx = waiting.tx;
            if let Some(parked) = waiting.parked {
                self.link_drop(parked);
            }
        }
        for &op in &tx {
            if let Some(op) = self.ops.get_mut(op) {
                op.vc = to;
            }
        }
        self.waiting(to).tx.extend(tx);
        self.index.replace(&self.vcs, from, to);
        for n in self.by_addr.iter_mut().filter(|n| **n == from + 1) {
            *n = to + 1;
        }
        for vci in self.by_far_addr.values_mut().filter(|vci| **vci == from) {
            *vci = to;
        }
        self.is_at(to, addr);
        self.activate(to);
    }
}
