//! Remote accesses in mapped memory: regions of peers that this endpoint reaches by loads, stores and atomic
//! instructions, and the questions of peers for regions of this endpoint.
//!
//! Place in the data flow, at the initiator: `Engine::write`, `read` and `atomic` → here → the peer's memory →
//! completion. No message is sent, and the peer's engine does nothing. An endpoint with such regions tells its peers
//! (MAP_OFFER). A peer asks for the region of a key at its first access (MAP_ASK), and the device passes it
//! ([`crate::mapped`]). The sender of a long message names the region that has its bytes (MAP_NAME). The receiver
//! takes the bytes of later ones from there, without a system call or the sender. Where a message would be pushed, the
//! receiver names the region of its receive, and the sender copies later ones there (PLACED). Other regions are reached
//! by messages (`rma.rs`), as are all before the answer.
//!
//! Invariants:
//! - Order. An access is performed here only if all earlier accesses to the peer are complete. It is complete when the
//!   call returns, so that later messages and accesses follow it. Only clients that ask for accesses after sends
//!   (FI_ORDER_WAS, FI_ORDER_RAS) need more, and map nothing ([`crate::api::Config::maps`]).
//! - Atomics of the target's engine, of other peers and of this engine meet on one number: all of them use the
//!   instructions of the processor. Numbers for which it has none are left to the target.
//! - An access that its target would report is left to the target: immediate data, and regions that are watched
//!   ([`Engine::watch_region`]).
//! - A revoked region is not used again under its key without a new question.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use zerocopy::little_endian::U64;

use crate::api::{Access, AtomicOp, Completion, Kind, OpFlags, RmaIov, RmaOp};
use crate::broken::cannot_happen;
use crate::bugs::planted;
use crate::engine::ops::TransferKind;
use crate::engine::peer::{Deferred, Direction, PathFlags};
use crate::engine::rma::{READ, WRITE};
use crate::engine::state::Violation;
use crate::engine::{Engine, State};
use crate::ids::{OpId, PeerId, TransferId};
use crate::mapped::{Guard, PeerRegion};
use crate::mem::{self, Iov};
use crate::nic::{Full, LinkId, Nic, RemoteIov};
use crate::wire::{Reader, Short, kind};

/// The most regions of one peer that are asked for or mapped at a time.
const MOST_REGIONS: usize = 1024;
/// Accesses after which a region that could not be mapped is asked for again: its key may name another region.
const ACCESSES_PER_QUESTION: u32 = 4096;
/// Accesses in mapped memory after which a round of progress is due.
const ACCESSES_PER_ROUND: u32 = 256;
/// The largest number that every processor replaces in one step, in bytes.
const LARGEST_CELL: usize = 8;

/// The regions of a peer by their keys, and the guards of the regions that were passed to the peer.
#[derive(Default)]
pub(crate) struct PeerRegions {
    /// Places in the list by key.
    places: FxHashMap<u64, usize>,
    regions: Vec<(u64, Mapped)>,
    /// The place of the last access.
    recent: usize,
    granted: Vec<Guard>,
    /// Regions of this endpoint that were named to the peer for messages.
    named: Vec<u64>,
    counts: MappedCounts,
}

/// Counts of mapped memory between this endpoint and a peer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedCounts {
    /// Accesses to the peer that were performed in mapped memory, so far.
    pub accesses: u64,
    /// Regions of the peer that are mapped here.
    pub regions: u64,
    /// Regions of this endpoint that the peer may have mapped.
    pub shared: u64,
}

/// The state of a peer's region.
enum Mapped {
    /// The peer was asked.
    Asked,
    /// It cannot be mapped. The number of accesses since the answer.
    Not(u32),
    Here(Box<PeerRegion>),
}

impl PeerRegions {
    /// The counts, for statistics.
    pub(crate) fn counts(&self) -> MappedCounts {
        let mapped = self.regions.iter().filter(|(_, region)| matches!(region, Mapped::Here(_))).count();
        let shared = self.granted.iter().filter(|guard| !guard.is_revoked()).count();
        MappedCounts { regions: mapped as u64, shared: shared as u64, ..self.counts }
    }

    /// The region of a key, or whether the peer must be asked for it.
    #[inline]
    fn find(&mut self, key: u64) -> Result<&PeerRegion, bool> {
        let recent = self.regions.get(self.recent).is_some_and(|(known, _)| *known == key);
        if !recent {
            let place = self.places.get(&key).copied();
            self.recent = place.ok_or(self.regions.len() < MOST_REGIONS)?;
        }
        match &mut self.regions[self.recent].1 {
            // The memory is unmapped when the answer replaces the region.
            Mapped::Here(region) if planted!(Bug::StaleMap, region.is_revoked(), false) => Err(true),
            Mapped::Here(region) => {
                self.counts.accesses += 1;
                Ok(region)
            }
            Mapped::Asked => Err(false),
            Mapped::Not(accesses) => {
                *accesses += 1;
                Err(*accesses >= ACCESSES_PER_QUESTION)
            }
        }
    }

    /// Whether a region was not named to the peer for messages. It counts as named from then on.
    pub(crate) fn is_unnamed(&mut self, key: u64) -> bool {
        let new = self.named.len() < MOST_REGIONS && !self.named.contains(&key);
        if new {
            self.named.push(key);
        }
        new
    }

    /// The region in which the owner has `len` bytes at an address of its own, with these bytes.
    fn owned(&self, address: u64, len: u64, need: Access) -> Option<(&PeerRegion, Iov)> {
        self.regions.iter().find_map(|(_, region)| match region {
            Mapped::Here(region) if !region.is_revoked() => Some((&**region, region.owned(address, len, need)?)),
            _ => None,
        })
    }

    /// Changes the state of a region.
    fn set(&mut self, key: u64, state: Mapped) {
        let next = self.regions.len();
        match *self.places.entry(key).or_insert(next) {
            place if place < next => self.regions[place].1 = state,
            _ => self.regions.push((key, state)),
        }
    }

    /// Whether the peer was asked for a region, and has not answered.
    fn is_asked(&self, key: u64) -> bool {
        self.places.get(&key).is_some_and(|place| matches!(self.regions[*place].1, Mapped::Asked))
    }
}

impl<N: Nic> Engine<N> {
    /// Performs a write in mapped memory. Returns false if it must take the way of messages.
    #[inline(never)]
    pub(crate) fn write_mapped(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let [remote] = op.remote else { return false };
        if op.flags.contains(OpFlags::DATA) || !self.state.is_settled_with(peer_id, op.flags) {
            return false;
        }
        let need = WRITE;
        let store = |region: &PeerRegion, memory: Iov| region.copy(memory, op.iov, true);
        if self.state.access_mapped(peer_id, remote, need, store) != Some(true) {
            return false;
        }
        self.state.complete_write(op, len, None);
        true
    }

    /// Performs a read in mapped memory. Returns false if it must take the way of messages.
    #[inline(never)]
    pub(crate) fn read_mapped(&mut self, op: &RmaOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let [remote] = op.remote else { return false };
        if !self.state.is_settled_with(peer_id, op.flags) {
            return false;
        }
        let need = READ;
        let load = |region: &PeerRegion, memory: Iov| region.copy(memory, op.iov, false);
        if self.state.access_mapped(peer_id, remote, need, load) != Some(true) {
            return false;
        }
        if !op.flags.contains(OpFlags::QUIET) {
            let len = usize::try_from(len).unwrap_or(usize::MAX);
            let done = Completion::new(Kind::Read, op.ctx, op.flags.into());
            self.state.completions.push(Completion { len, data: op.data, ..done });
        }
        true
    }

    /// Performs an atomic in mapped memory. Returns false if it must take the way of messages.
    #[inline(never)]
    pub(crate) fn atomic_mapped(&mut self, op: &AtomicOp<'_>, peer_id: PeerId, len: u64) -> bool {
        let [remote] = op.remote else { return false };
        let size = op.amo.ty().size();
        if op.flags.contains(OpFlags::DATA) || size > LARGEST_CELL || !self.state.is_settled_with(peer_id, op.flags) {
            return false;
        }
        let mut sources: SmallVec<[u8; 64]> = SmallVec::new();
        for source in [op.iov, op.compare].into_iter().take(op.amo.sources()) {
            let at = sources.len();
            sources.resize(at + mem::total_len(source), 0);
            mem::gather(source, &mut sources[at..]);
        }
        let mut results = std::mem::take(&mut self.state.results);
        results.clear();
        let need = Access { read: op.amo.fetches(), write: op.amo.changes() };
        let execute = |region: &PeerRegion, memory: Iov| {
            let aligned = memory.addr().is_multiple_of(size as u64);
            aligned
                && region
                    .access(|| op.amo.execute(&[memory], &sources, op.amo.fetches().then_some(&mut results)))
                    .is_some()
        };
        let executed = self.state.access_mapped(peer_id, remote, need, execute) == Some(true);
        if executed {
            mem::scatter(op.result, 0, &results);
            if !op.flags.contains(OpFlags::QUIET) {
                let kind = if op.amo.fetches() { Kind::FetchAtomic } else { Kind::Atomic };
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let done = Completion::new(kind, op.ctx, op.flags.into());
                self.state.completions.push(Completion { len, data: op.data, ..done });
            }
        }
        self.state.results = results;
        executed
    }

    /// Takes the bytes of a message from mapped memory. Returns false if they must come in another way.
    pub(crate) fn receive_mapped(&mut self, peer_id: PeerId, token: TransferId) -> bool {
        let Some(x) = self.state.outgoing.transfer(token) else {
            cannot_happen!("a transfer that waits for the device is in the table");
            return false;
        };
        let (TransferKind::Recv { .. }, [from]) = (x.kind(), x.remote()) else { return false };
        let peer = &mut self.state.peers[peer_id];
        let source = peer.regions().owned(from.addr, from.len, READ);
        if source.is_some_and(|(region, memory)| region.copy(memory, x.iov(), false)) {
            self.state.transfer_done(token, Ok(()));
            return true;
        }
        // The region has ended since the message was announced, and the device cannot reach its memory.
        !self.state.peers[peer_id].has(PathFlags::GET) && self.state.by_push(token)
    }

    /// Copies a message to its receive's memory, which has this address at the peer. Returns false if the bytes must be
    /// pushed.
    pub(crate) fn send_mapped(
        &mut self,
        peer_id: PeerId,
        index: OpId,
        window: u64,
        address: u64,
        iov: &[Iov],
    ) -> Result<bool, Full> {
        let peer = &mut self.state.peers[peer_id];
        if !peer.has_mapped_regions() {
            return Ok(false);
        }
        let place = peer.regions().owned(address, mem::total_len(iov) as u64, WRITE);
        if !place.is_some_and(|(region, memory)| region.copy(memory, iov, true)) {
            return Ok(false);
        }
        let mut w = Short::new(kind::PLACED, 0);
        w.put(&U64::new(window));
        self.send_sequenced(peer_id, w.bytes(), &[])?;
        self.state.push_done(index, Ok(()));
        Ok(true)
    }

    /// Whether a round of progress is due after accesses in mapped memory. Their completions are there at once, so a
    /// client that waits for each of them makes no other round, and finds no end of a peer.
    #[inline]
    pub fn take_round_due(&mut self) -> bool {
        let due = self.state.direct_accesses >= ACCESSES_PER_ROUND;
        if due {
            self.state.direct_accesses = 0;
        }
        due
    }

    /// Passes a region to a peer that has asked for it, or reports that it cannot be mapped.
    #[cold]
    #[inline(never)] // Its frames would be on the client's stack below those of all deferred work.
    pub(crate) fn answer_question(&mut self, peer_id: PeerId, key: u64) -> Result<(), Full> {
        let Some(link) = self.state.peers[peer_id].link() else { return Ok(()) };
        let offer = self.state.target.offer(key);
        let guard = self.nic.share_region(link, key, offer)?;
        if let Some(guard) = guard {
            let granted = &mut self.state.peers[peer_id].regions().granted;
            granted.retain(|guard| !guard.is_revoked());
            granted.push(guard);
        }
        Ok(())
    }
}

impl State {
    /// Whether all accesses to a peer are complete, and nothing waits to be sent. Before a fenced access, all
    /// operations must be complete.
    fn is_settled_with(&self, peer_id: PeerId, flags: OpFlags) -> bool {
        let peer = &self.peers[peer_id];
        peer.tx_is_empty() && planted!(Bug::AccessOvertakes, !peer.has_accesses(), true) && !peer.holds_back(flags)
    }

    /// Performs an access in a peer's region, and counts it. `None`: the region is not mapped, or does not allow it.
    #[inline]
    fn access_mapped(
        &mut self,
        peer_id: PeerId,
        remote: &RmaIov,
        need: Access,
        access: impl FnOnce(&PeerRegion, Iov) -> bool,
    ) -> Option<bool> {
        let peer = &mut self.peers[peer_id];
        let done = match peer.regions().find(remote.key) {
            Ok(region) => Some(access(region, region.memory(remote.addr, remote.len, need)?)),
            Err(asks) => {
                if asks {
                    self.ask_for(peer_id, remote.key);
                }
                return None;
            }
        };
        peer.count_access(Direction::Sent, remote.len);
        self.direct_accesses += 1;
        done
    }

    /// Asks a peer for a region.
    #[cold]
    fn ask_for(&mut self, peer_id: PeerId, key: u64) {
        self.peers[peer_id].regions().set(key, Mapped::Asked);
        let mut w = Short::new(kind::MAP_ASK, 0);
        w.put(&U64::new(key));
        self.peers.defer_message(peer_id, &w);
    }

    /// Whether the bytes of a message are in memory that is mapped here.
    pub(crate) fn maps_source(&mut self, peer_id: PeerId, source: &[RemoteIov]) -> bool {
        let peer = &mut self.peers[peer_id];
        let [piece] = source else { return false };
        peer.has_mapped_regions() && peer.regions().owned(piece.addr, piece.len, READ).is_some()
    }

    /// The address of a receive's memory, if the sender may copy the message there.
    pub(crate) fn mapped_place(&mut self, peer_id: PeerId, token: TransferId) -> Option<u64> {
        let [memory] = *self.outgoing.transfer(token)?.iov().as_slice() else { return None };
        if !self.peers[peer_id].can_map() {
            return None;
        }
        let key = self.target.key_of(&[memory], WRITE)?;
        if self.peers[peer_id].regions().is_unnamed(key) {
            self.name_region(peer_id, key);
        }
        Some(memory.addr())
    }

    /// Names a region of this endpoint to a peer with which it exchanges long messages there.
    #[cold]
    pub(crate) fn name_region(&mut self, peer_id: PeerId, key: u64) {
        let mut w = Short::new(kind::MAP_NAME, 0);
        w.put(&U64::new(key));
        self.peers.defer_message(peer_id, &w);
    }

    /// The peer has long messages in a region, which this endpoint therefore asks for.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_map_name(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let key: U64 = r.take().ok_or(Violation)?;
        let peer = &mut self.peers[peer_id];
        if !peer.can_map() {
            return Err(Violation);
        }
        if self.config.maps && peer.has_mapped_regions() && matches!(peer.regions().find(key.get()), Err(true)) {
            self.ask_for(peer_id, key.get());
        }
        Ok(())
    }

    /// Tells the peers on this host that there are regions to map.
    #[cold]
    pub(crate) fn offer_regions(&mut self) {
        if self.target.begin_offers() {
            let near: Vec<PeerId> = self.peers.iter().filter(|(_, peer)| peer.can_map()).map(|(id, _)| id).collect();
            for peer_id in near {
                self.offer_regions_to(peer_id);
            }
        }
    }

    /// Tells a peer, whose link is new, that there are regions to map.
    pub(crate) fn offer_regions_to(&mut self, peer_id: PeerId) {
        if self.target.offers_regions() && self.peers[peer_id].can_map() {
            self.peers.defer_message(peer_id, &Short::new(kind::MAP_OFFER, 0));
        }
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn on_map_offer(&mut self, peer_id: PeerId) -> Result<(), Violation> {
        let peer = &mut self.peers[peer_id];
        if !peer.can_map() {
            return Err(Violation);
        }
        if self.config.maps {
            peer.maps_regions();
        }
        Ok(())
    }

    #[cold]
    #[inline(never)]
    pub(crate) fn on_map_ask(&mut self, peer_id: PeerId, mut r: Reader<'_>) -> Result<(), Violation> {
        let key: U64 = r.take().ok_or(Violation)?;
        if !self.target.offers_regions() || !self.peers[peer_id].can_map() {
            return Err(Violation);
        }
        self.peers.defer(peer_id, Deferred::Region(key.get()));
        Ok(())
    }

    /// The device has brought the answer to a question.
    #[cold]
    #[inline(never)]
    pub(crate) fn region_passed(
        &mut self,
        link: LinkId,
        key: u64,
        region: Option<PeerRegion>,
    ) -> Result<(), Violation> {
        let Some(peer_id) = self.links.carried_by(link) else { return Ok(()) };
        let regions = self.peers[peer_id].regions();
        if !regions.is_asked(key) {
            return Err(Violation);
        }
        regions.set(key, region.map_or(Mapped::Not(0), |region| Mapped::Here(Box::new(region))));
        Ok(())
    }
}
