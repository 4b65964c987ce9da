//! Completions at the target of remote accesses: one per operation, when all of it has taken effect.
//!
//! Place in the data flow: `rma` and `atomic` execute a peer's operation part by part, and report here how each
//! part ended. The results are [`Completion`]s of the kinds `RemoteWrite` and `RemoteRead`.
//!
//! The parts of one operation are consecutive in the stream of messages, and each says whether more follow
//! (`F_MORE`). The first part has number 0. Parts whose bytes travel separately may end in any order, and after
//! later operations have begun. An operation of several parts is therefore a [`MultipartOp`] until its last
//! part has ended. If a part was refused, the operation makes no completion.

use slab::Slab;
use smallvec::SmallVec;

use crate::api::Probe;
use crate::api::{Access, Completion, CompletionFlags, Context, Kind, Region};
use crate::broken::less;
use crate::bugs::planted;
use crate::engine::State;
use crate::engine::regions::Regions;
use crate::ids::PeerId;
use crate::mapped::{RegionOffer, Span};
use crate::mem::Iov;
use crate::wire::Op;

/// Limit of regions that one operation may reach, far above the number that a client can name in one call.
const PLACES_LIMIT: usize = 64;

/// A part of a peer's operation that has taken effect.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RemoteAccess {
    /// `RemoteWrite` or `RemoteRead`.
    kind: Kind,
    /// ATOMIC for atomics, together with CHANGES for one that fetches and writes; otherwise empty.
    family: CompletionFlags,
    key: u64,
    data: Option<u64>,
    len: usize,
}

impl RemoteAccess {
    /// A part of a write of `len` bytes, with immediate data if it is the last part.
    #[inline(always)]
    pub(crate) fn write(key: u64, data: Option<u64>, len: usize) -> Self {
        Self { kind: Kind::RemoteWrite, family: CompletionFlags::empty(), key, data, len }
    }

    /// A part of a read of `len` bytes.
    pub(crate) fn read(key: u64, len: usize) -> Self {
        Self { kind: Kind::RemoteRead, family: CompletionFlags::empty(), key, data: None, len }
    }

    /// A part of an atomic. `family` has ATOMIC, and CHANGES if a fetching atomic also writes.
    pub(crate) fn atomic(kind: Kind, family: CompletionFlags, key: u64, data: Option<u64>, len: usize) -> Self {
        Self { kind, family, key, data, len }
    }
}

/// A peer's operation of several parts.
#[derive(Default)]
pub(crate) struct MultipartOp {
    /// More parts follow.
    open: bool,
    /// Parts that have begun and not ended.
    under_way: u32,
    /// A part was refused, or its link has ended.
    failed: bool,
    /// The immediate data, which comes with the last part.
    data: Option<u64>,
    /// The regions that were reached: their keys, and the bytes in each.
    places: SmallVec<[(u64, usize); 2]>,
}

impl MultipartOp {
    /// Whether no part is pending.
    fn is_idle(&self) -> bool {
        self.under_way == 0
    }

    fn part_ended(&mut self) {
        self.under_way = less!(self.under_way, 1, "a part begins before it ends");
    }
}

/// State for the accesses of peers to this engine's memory.
pub(crate) struct Target {
    regions: Regions,
    /// Whether peers were told that there are regions to map.
    offers_regions: bool,
    /// Peers' unfinished operations of several parts.
    parts: Slab<MultipartOp>,
    /// Every access is reported, not only those to regions with events.
    all_events: bool,
}

impl Target {
    pub(crate) fn new(probe: Option<Probe>) -> Self {
        Self { regions: Regions::new(probe), offers_regions: false, parts: Slab::new(), all_events: false }
    }

    #[inline(always)]
    pub(crate) fn regions(&mut self) -> &mut Regions {
        &mut self.regions
    }

    /// The region of a key.
    #[inline(always)]
    pub(crate) fn region(&self, key: u64) -> Option<&Region> {
        self.regions.get(key)
    }

    /// Whether peers may ask for regions.
    pub(crate) fn offers_regions(&self) -> bool {
        self.offers_regions
    }

    /// Lets peers ask for regions. Returns false if they may already.
    pub(crate) fn begin_offers(&mut self) -> bool {
        !std::mem::replace(&mut self.offers_regions, true)
    }

    /// The region of a key, if a peer may map it.
    pub(crate) fn offer(&self, key: u64) -> Option<RegionOffer<'_>> {
        let region = self.regions.get(key).filter(|_| !self.all_events)?;
        let [piece] = region.iov.as_slice() else { return None };
        let span = Span::new(region.base, piece.addr(), piece.len() as u64);
        Some(RegionOffer::new(region.mapping.as_deref()?, span, region.access))
    }

    /// The key of a region that peers may map with these rights, and that contains the memory of a message.
    pub(crate) fn key_of(&self, memory: &[Iov], need: Access) -> Option<u64> {
        let [memory] = memory else { return None };
        if !self.offers_regions || self.all_events {
            return None;
        }
        self.regions.key_of(memory, need)
    }

    /// Whether a device could not write to the memory of a receive because of that memory.
    #[inline(always)]
    pub(crate) fn is_no_memory(&self, memory: &[Iov]) -> bool {
        self.regions.is_no_memory(memory)
    }

    pub(crate) fn report_all(&mut self, on: bool) {
        self.all_events = on;
        if on {
            self.regions.end_mappings();
        }
    }

    /// Whether no part of a peer's operation is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.parts.iter().all(|(_, parts)| parts.is_idle())
    }
}

impl State {
    /// Notes the start of a part of a peer's operation. Returns the operation's number here, or None if it has
    /// only one part. Each started part ends by [`State::part_done`] or [`State::part_failed`].
    #[inline]
    pub(crate) fn part_begins(&mut self, peer_id: PeerId, id: Op, more: bool) -> Option<u32> {
        if !more && self.peers[peer_id].queues().is_none_or(|queues| queues.parts().is_none()) {
            return None;
        }
        self.one_of_several(peer_id, id.part.get() == 0, more)
    }

    #[cold]
    fn one_of_several(&mut self, peer_id: PeerId, first: bool, more: bool) -> Option<u32> {
        // A peer whose part was refused may omit the rest.
        if first && let Some(cut) = self.peers.queues(peer_id).set_parts(None) {
            self.abort_multipart(cut);
        }
        let open = self.peers.queues(peer_id).set_parts(None);
        if open.is_none() && !more {
            return None;
        }
        let number = open.or_else(|| u32::try_from(self.target.parts.insert(MultipartOp::default())).ok())?;
        let parts = self.target.parts.get_mut(number as usize)?;
        parts.under_way += 1;
        parts.open = more;
        self.peers.queues(peer_id).set_parts(more.then_some(number));
        Some(number)
    }

    /// Notes that the operation's remaining parts will not arrive.
    pub(crate) fn abort_multipart(&mut self, number: u32) {
        let parts = &mut self.target.parts[number as usize];
        parts.open = false;
        parts.failed = true;
        if parts.under_way == 0 {
            self.target.parts.remove(number as usize);
        }
    }

    /// Notes that a part was refused, or will not end.
    #[cold]
    pub(crate) fn part_failed(&mut self, number: Option<u32>) {
        // An operation of one part has no record.
        let Some(number) = number else { return };
        let parts = &mut self.target.parts[number as usize];
        parts.failed = true;
        parts.part_ended();
        if parts.under_way == 0 && !parts.open {
            self.target.parts.remove(number as usize);
        }
    }

    /// Notes that a part has taken effect.
    #[inline]
    pub(crate) fn part_done(&mut self, peer_id: PeerId, number: Option<u32>, access: &RemoteAccess) {
        match planted!(Bug::EventPerPart, number, None) {
            None => self.report(peer_id, access),
            Some(number) => self.several_done(peer_id, number, access),
        }
    }

    #[cold]
    fn several_done(&mut self, peer_id: PeerId, number: u32, access: &RemoteAccess) {
        let parts = &mut self.target.parts[number as usize];
        parts.part_ended();
        parts.data = parts.data.or(access.data);
        match parts.places.iter().position(|(key, _)| *key == access.key) {
            Some(at) => parts.places[at].1 = parts.places[at].1.saturating_add(access.len),
            None if parts.places.len() < PLACES_LIMIT => parts.places.push((access.key, access.len)),
            None => parts.failed = true,
        }
        if parts.under_way > 0 || parts.open {
            return;
        }
        let MultipartOp { failed, data, places, .. } = self.target.parts.remove(number as usize);
        if failed {
            return;
        }
        let whole =
            RemoteAccess { data, len: places.iter().fold(0, |sum, (_, bytes)| bytes.saturating_add(sum)), ..*access };
        match places.as_slice() {
            &[(key, _)] => self.report(peer_id, &RemoteAccess { key, ..whole }),
            several => self.report_regions(peer_id, &whole, several),
        }
    }

    /// Reports an operation on several regions: once to the endpoint, and once to each region.
    fn report_regions(&mut self, peer_id: PeerId, whole: &RemoteAccess, places: &[(u64, usize)]) {
        let watched = |key| self.target.region(key).is_some_and(|region| region.events);
        let all = whole.data.is_some() || self.target.all_events || places.iter().any(|&(key, _)| watched(key));
        if all {
            self.complete_remote_access(peer_id, whole, CompletionFlags::ENDPOINT);
        }
        for &(key, len) in places {
            if self.target.region(key).is_some_and(|region| region.events) {
                self.complete_remote_access(
                    peer_id,
                    &RemoteAccess { key, len, data: None, ..*whole },
                    CompletionFlags::REGION,
                );
            }
        }
    }

    /// Reports an access to a region, if the client asked for such reports.
    #[inline]
    fn report(&mut self, peer_id: PeerId, access: &RemoteAccess) {
        let Some(region) = self.target.region(access.key) else { return };
        if access.data.is_some() || region.events || self.target.all_events {
            self.complete_remote_access(peer_id, access, CompletionFlags::empty());
        }
    }

    fn complete_remote_access(&mut self, peer_id: PeerId, access: &RemoteAccess, whom: CompletionFlags) {
        let Some(region) = self.target.region(access.key) else { return };
        let mut flags = access.family | whom;
        flags.set(CompletionFlags::DATA, access.data.is_some());
        self.completions.push(Completion {
            len: access.len,
            data: access.data.unwrap_or(0),
            src: self.peers[peer_id].addr(),
            ..Completion::new(access.kind, Context { ptr: 0, user: region.user }, flags)
        });
    }
}
