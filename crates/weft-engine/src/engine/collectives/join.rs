//! Joining a group: the members announce their numbers, share a board on each host, and vote.
//!
//! Place in the data flow: [`Engine::join_group`] starts an allgather of *announcements*. If a host has
//! several members, the first of them, its *leader*, then passes a board to the others
//! ([`Engine::link_boards`]). An allgather of *votes* ends the join: the group uses its boards if every
//! member has its host's board. Otherwise all its transfers are messages.
//!
//! All members derive the hosts from the members' names, so they agree about these steps.

use std::sync::Arc;

use rustc_hash::FxHashMap;

use super::arenas::{ArenaId, Circle, Site};
use super::hosts::{Host, Places, Seat};
use super::{ActiveRun, Collectives, Group, Purpose, RUN_LIMIT, Tag, VOTE_SEQUENCE};
use crate::api::{Addr, Completion, Context, Error, Fault, Kind, OpFlags};
use crate::broken::cannot_happen;
use crate::collective::{self, Operation, Overlap, Request, Run};
use crate::engine::Engine;
use crate::engine::State;
use crate::engine::collective_op::{Elements, GroupId};
use crate::engine::peer::PeerState;
use crate::ids;
use crate::mem::Owned;
use crate::name::EpName;
use crate::nic::{Full, Nic};

/// Bytes of one member's announcement: its number of the group, whether it uses boards, whether its device has chains,
/// the board's index in its arena, the arena, four unused bytes, then a digest of the members.
const ANNOUNCEMENT_BYTES: usize = 24;
/// Offset of the byte that says whether the member uses boards.
const BOARD_AT: usize = 4;
/// Offset of the byte that says whether the member can take part in chains.
const CHAINS_AT: usize = 5;
/// Offset of the board's index, of the first member of a host.
const INDEX_AT: usize = 6;
/// Offset of the arena that the first member of a host offers, or that the member has.
const ARENA_AT: usize = 8;
/// In a vote: the member has its host's board.
const HAS_BOARD: u8 = 1;
/// In a vote: the member has its ends of the chain, or needs none.
const HAS_CHAIN: u8 = 2;
/// The value of that byte if the member uses no boards.
const NO_BOARDS: u8 = 2;

/// The next part of a join, once all announcements are here.
pub(super) enum Joined {
    /// The join is complete.
    Complete,
    /// The hosts share their boards.
    Linking,
}

impl<N: Nic> Engine<N> {
    /// Whether members of the group are on different hosts.
    pub fn spans_hosts(&self, group: GroupId) -> bool {
        let collectives = self.state.collectives.as_deref();
        collectives.and_then(|collectives| collectives.groups.get(group)).is_some_and(|group| group.spans_hosts)
    }

    /// Joins the group of these members, which all of them must do. Its completion has kind `Joined`.
    ///
    /// Errors: `NoSuchAddress` if a member is in no address vector, or this endpoint is no member; `Again` if too
    /// many collectives are under way.
    pub fn join_group(&mut self, members: &[Addr], ctx: Context) -> Result<GroupId, Error> {
        self.join_keyed_group(members, &[], ctx)
    }

    /// Joins the group that all members know by this key. The same members may join several such groups in any order,
    /// if each has a key of its own. An operation may be started at once: it waits for the join.
    ///
    /// Errors: as [`Engine::join_group`], and `Invalid` if a group of these members has the key.
    pub fn join_keyed_group(&mut self, members: &[Addr], key: &[u8], ctx: Context) -> Result<GroupId, Error> {
        if self.state.collectives().under_way() >= RUN_LIMIT {
            return Err(Error::Again);
        }
        let names: Vec<EpName> = members.iter().map(|&addr| self.state.member_name(addr)).collect::<Result<_, _>>()?;
        let me = self.state.me.identity();
        let rank = names.iter().position(|name| name.identity() == me).ok_or(Error::NoSuchAddress)?;
        let request = all_gather(rank, names.len(), ANNOUNCEMENT_BYTES);
        let schedule = Arc::new(collective::compile(&request).map_err(|_| Error::TooLong)?);
        let boards = self.state.config.boards;
        let places = Places::new(&names, rank);
        let spans = places.as_ref().is_some_and(Places::spans_hosts);
        // Leaders spare the other members of their hosts the exchange, so that these need no ring.
        let spared = boards && places.as_ref().is_some_and(|places| !places.is_leader());
        let collectives = self.state.collectives();
        let joins = if key.is_empty() { collectives.count_join(&names) } else { 0 };
        let (hash, digest) = hashes(&names, key, joins);
        let tag = Tag::join(hash);
        if collectives.joined_by(tag).is_some() {
            return Err(Error::Invalid);
        }
        let chains = spans && self.nic.offers_chains(!spared);
        let places = places.filter(|places| boards && places.shares_memory());
        let seat = places.as_ref().map(|places| self.seat_for(&names, places));
        let collectives = self.state.collectives();
        let number = collectives.free_number();
        let own = names.len() * ANNOUNCEMENT_BYTES;
        let site = seat.as_ref().map(Seat::site).unwrap_or_default();
        let mut bytes = vec![0; own];
        bytes.extend(announcement(number, boards, chains, site, digest));
        let mut announcements = Owned::new(bytes);
        let all = announcements.iov();
        let group = collectives.groups.insert(Group {
            number,
            tag,
            rank: request.rank,
            members: members.into(),
            numbers: Vec::new(),
            joined: false,
            is_keyed: !key.is_empty(),
            next_sequence: VOTE_SEQUENCE + 1,
            templates: FxHashMap::default(),
            lost: Vec::new(),
            failed: None,
            runs: 1,
            spans_hosts: spans,
            host: places.zip(seat).map(|(places, seat)| Box::new(Host::new(places, seat))),
            chain: None,
            join: ctx,
        });
        collectives.start(ActiveRun {
            group,
            purpose: Purpose::Join { announcements, digest },
            request: Some(request),
            elements: Elements::Bytes(ANNOUNCEMENT_BYTES),
            scratch: Owned::new(vec![0; schedule.scratch()]),
            run: Run::new(schedule),
            input: all.slice(own, ANNOUNCEMENT_BYTES),
            result: all.slice(0, own),
            ctx,
            flags: OpFlags::empty(),
            fault: None,
            ready: false,
        });
        self.state.take_early_notices(group, tag);
        self.run_collectives();
        Ok(group)
    }

    /// This member's part in the board of its host: as the first of several members it takes one.
    fn seat_for(&mut self, names: &[EpName], places: &Places) -> Seat {
        let circle = Circle(hashes(&places.here(names), &[], 0).1);
        let Self { state, nic, .. } = self;
        let arenas = &mut state.collectives().arenas;
        match places.count() {
            1 => Seat::Alone,
            count if places.is_leader() => {
                let taken = arenas.take(circle, count, |bytes| nic.make_board(bytes));
                taken.map_or(Seat::Alone, |(site, board)| Seat::Taken(site, board))
            }
            _ => Seat::Guest(circle, arenas.latest(circle)),
        }
    }

    /// Opens chains and shares boards in the groups that are about to do so, and starts the vote where this member is
    /// done.
    pub(super) fn link_boards(&mut self) {
        for group in std::mem::take(&mut self.state.collectives().linking) {
            if self.state.has_failed(group) {
                self.state.collectives().vote(group, false, false);
                continue;
            }
            if self.state.host_of(group).is_some_and(|host| host.is_settled()) {
                match self.link_board(group) {
                    None => self.state.collectives().linking.push(group),
                    Some(adopted) => self.state.settle_join(group, adopted),
                }
                continue;
            }
            let chained = self.open_chain(group);
            match chained.and_then(|chained| Some((self.link_board(group)?, chained))) {
                None => self.state.collectives().linking.push(group),
                Some((shared, chained)) => self.state.collectives().vote(group, shared, chained),
            }
        }
    }

    /// Shares the board of one group. `Some`: whether this member has the board.
    fn link_board(&mut self, id: GroupId) -> Option<bool> {
        // A group may have a chain without boards.
        let Some(host) = self.state.host_of(id) else { return Some(false) };
        let places = host.others();
        // Members that have a link still get the board, because they wait for it.
        let (mut pending, mut refused) = (false, false);
        for (place, rank) in places {
            let group = &self.state.collectives().groups[id];
            let (addr, number) = (group.members[rank as usize], group.numbers[rank as usize]);
            // The members on a host watch each other's links, so that a death is noticed.
            let Ok(peer_id) = self.state.peer_for(addr) else { return Some(false) };
            let host = self.state.host_of(id)?;
            host.meet(place, peer_id);
            // An earlier attempt may have been given up in favour of the peer's, which has come to nothing.
            if !host.has_lost(place) && self.state.peers[peer_id].state() == PeerState::Idle {
                self.dial(peer_id);
            }
            let link = self.state.peers[peer_id].link();
            let host = self.state.host_of(id)?;
            if host.has_lost(place) {
                refused = true;
                continue;
            }
            let Some(link) = link else {
                pending = true;
                continue;
            };
            if host.needs_link_to(place) && !self.nic.shares_boards(link) {
                refused = true;
                continue;
            }
            if let Some(board) = host.to_pass(place) {
                match self.nic.share_board(link, u64::from(number), board.as_ref()) {
                    Ok(()) => host.set_passed(place),
                    Err(Full) => {
                        // The next round tries again, before the caller sleeps.
                        self.state.links.request_round();
                        pending = true;
                    }
                }
            }
        }
        match (pending, refused) {
            (true, _) => None,
            (false, true) => Some(false),
            (false, false) => self.state.adopt_board(id),
        }
    }
}

impl State {
    /// Uses the board of this host; see [`Host::adopt`].
    fn adopt_board(&mut self, id: GroupId) -> Option<bool> {
        let Collectives { groups, arenas, .. } = self.collectives();
        let host = groups[id].host.as_deref_mut();
        host.map_or(Some(false), |host| host.adopt(arenas))
    }

    /// Completes a join without a vote: the members have the arenas of their boards. `adopted`: this one has its board.
    fn settle_join(&mut self, id: GroupId, adopted: bool) {
        let first_lost = self.group(id).lost.first();
        let fault = first_lost.map_or(Fault::NoMemory, |(_, why)| Fault::Link(*why));
        self.complete_join(id, (!adopted).then_some(fault));
    }

    /// Ends the join, and reports it.
    pub(super) fn complete_join(&mut self, id: GroupId, fault: Option<Fault>) {
        let ctx = self.group(id).join;
        self.end_join(id, fault);
        self.completions.push(Completion { fault, ..Completion::new(Kind::Joined, ctx, OpFlags::empty().into()) });
    }

    /// The join has ended.
    fn end_join(&mut self, id: GroupId, fault: Option<Fault>) {
        let group = &mut self.collectives().groups[id];
        group.runs -= 1;
        group.joined = fault.is_none();
        let tag = group.tag;
        match fault {
            // The others may have succeeded, so they are told.
            Some(why) => self.fail_group(id, why),
            None => self.discard_join(tag),
        }
    }

    fn has_failed(&self, id: GroupId) -> bool {
        self.group(id).failed.is_some()
    }

    /// The hosts of a group, if it has boards.
    pub(super) fn host_of(&mut self, id: GroupId) -> Option<&mut Host> {
        self.collectives().groups[id].host.as_deref_mut()
    }

    /// The name of a member. Service names do not say which endpoint is meant, so they cannot be members'.
    fn member_name(&self, addr: Addr) -> Result<EpName, Error> {
        self.peers.book().name(addr).filter(EpName::is_full).ok_or(Error::NoSuchAddress)
    }
}

impl Collectives {
    /// Counts a join without a key. The same members may join several such groups, always in the same order.
    fn count_join(&mut self, names: &[EpName]) -> u64 {
        let joins = self.joins.entry(hashes(names, &[], 0).0).or_insert(0);
        *joins += 1;
        *joins
    }

    /// The announcements of all members have arrived. The error is the reason for which the join fails.
    pub(super) fn numbers_known(&mut self, id: GroupId, announcements: &[u8], digest: u64) -> Result<Joined, Fault> {
        let group = &mut self.groups[id];
        let members = group.members.len();
        group.numbers = numbers_in(announcements, members, digest).ok_or(Fault::Refused(Error::Invalid))?;
        let all = || announcements.chunks_exact(ANNOUNCEMENT_BYTES).take(members);
        if all().any(|one| one[BOARD_AT] == NO_BOARDS) {
            group.host = None;
        }
        let chained = all().all(|one| one[CHAINS_AT] == 1);
        if chained {
            group.prepare_chain();
        }
        match group.host.as_deref_mut() {
            Some(host) => {
                let site = |rank: u32| Site::announced(all().nth(rank as usize)?);
                let all_have = host.announced(site);
                host.set_settled(all_have && !chained);
            }
            None if !chained => return Ok(Joined::Complete),
            None => {}
        }
        self.linking.push(id);
        Ok(Joined::Linking)
    }

    /// Starts the vote of the members about their boards and chains.
    fn vote(&mut self, id: GroupId, shared: bool, chained: bool) {
        let group = &self.groups[id];
        let members = group.members.len();
        let request = all_gather(group.rank as usize, members, 1);
        let Ok(schedule) = collective::compile(&request) else {
            return cannot_happen!("the announcements had a schedule of more bytes");
        };
        let schedule = Arc::new(schedule);
        let mut bytes = vec![0; members + 1];
        bytes[members] = (u8::from(shared) * HAS_BOARD) | (u8::from(chained) * HAS_CHAIN);
        let mut votes = Owned::new(bytes);
        let all = votes.iov();
        let ctx = group.join;
        self.start(ActiveRun {
            group: id,
            purpose: Purpose::Vote { votes },
            request: Some(request),
            elements: Elements::Bytes(1),
            scratch: Owned::new(vec![0; schedule.scratch()]),
            run: Run::new(schedule),
            input: all.slice(members, 1),
            result: all.slice(0, members),
            ctx,
            flags: OpFlags::empty(),
            fault: None,
            ready: false,
        });
    }

    /// All members have voted.
    pub(super) fn votes_known(&mut self, id: GroupId, votes: &[u8]) {
        let group = &mut self.groups[id];
        let all = |what: u8| votes.iter().take(group.members.len()).all(|&vote| vote & what != 0);
        let (shared, mut chained) = (all(HAS_BOARD), all(HAS_CHAIN));
        if group.host.is_some() && !shared {
            // The chain was that of the hosts.
            (group.host, chained) = (None, false);
        }
        if chained {
            group.use_chain();
        } else {
            self.leave_chain(id, false);
        }
    }
}

/// A member's announcement, before its join.
fn announcement(number: u32, boards: bool, chains: bool, site: Site, digest: u64) -> [u8; ANNOUNCEMENT_BYTES] {
    let mut own = [0; ANNOUNCEMENT_BYTES];
    own[..BOARD_AT].copy_from_slice(&number.to_le_bytes());
    own[BOARD_AT] = if boards { 0 } else { NO_BOARDS };
    own[CHAINS_AT] = u8::from(chains);
    own[INDEX_AT..INDEX_AT + 2].copy_from_slice(&site.index().to_le_bytes());
    own[ARENA_AT..ARENA_AT + 4].copy_from_slice(&site.arena().number().to_le_bytes());
    own[ANNOUNCEMENT_BYTES - 8..].copy_from_slice(&digest.to_le_bytes());
    own
}

impl Site {
    fn announced(one: &[u8]) -> Option<Self> {
        let index = u16::from_le_bytes(*one.get(INDEX_AT..)?.first_chunk()?);
        let arena = u32::from_le_bytes(*one.get(ARENA_AT..)?.first_chunk()?);
        (arena != 0).then_some(Self::new(ArenaId::from_number(arena), index))
    }
}

/// The request for an allgather of `bytes` bytes from each member.
fn all_gather(rank: usize, members: usize, bytes: usize) -> Request {
    Request {
        operation: Operation::AllGather,
        rank: ids::number(rank),
        members: ids::number(members),
        root: 0,
        count: 1,
        element: bytes,
        overlap: Overlap::None,
    }
}

/// The members' numbers of the group, if all announcements agree about its members.
fn numbers_in(announcements: &[u8], members: usize, digest: u64) -> Option<Vec<u32>> {
    let all = announcements.chunks_exact(ANNOUNCEMENT_BYTES).take(members);
    all.map(|one| {
        let (number, theirs) = (one.first_chunk::<4>()?, one.last_chunk::<8>()?);
        (u64::from_le_bytes(*theirs) == digest).then_some(u32::from_le_bytes(*number))
    })
    .collect()
}

/// Two independent hashes of the members' names in their order, of the key and of `joins`.
fn hashes(names: &[EpName], key: &[u8], joins: u64) -> (u64, u64) {
    let mut hasher = blake3::Hasher::new_derive_key("weft: members of a group.");
    hasher.update(&joins.to_le_bytes());
    for name in names {
        hasher.update(&name.ep_id());
    }
    hasher.update(key);
    hasher.update(&(key.len() as u64).to_le_bytes());
    let mut bytes = [0; 16];
    hasher.finalize_xof().fill(&mut bytes);
    let (first, second) = bytes.split_at(8);
    let number = |half: &[u8]| half.try_into().map_or(0, u64::from_le_bytes);
    (number(first), number(second))
}
