//! The members of a group by host, and this member's view of its own host: the others there, and their board.
//!
//! Place in the data flow: the join makes a [`Host`] where members share memory (`join.rs`). Operations on boards use
//! it (`boards.rs`).

use std::sync::Arc;

use super::arenas::{ArenaId, Arenas, Circle, Site};
use crate::api::Fault;
use crate::board::{Board, HostBoard, MAX_MEMBERS};
use crate::engine::state::Violation;
use crate::ids::{self, PeerId};
use crate::name::EpName;
use crate::nic::LinkError;

/// The members of a group by host. Hosts, and the members of a host, are in rank order.
pub(super) struct Places {
    pub(super) hosts: Vec<Vec<u32>>,
    /// This member's host.
    host: usize,
    /// This member's position among the members of its host.
    pub(super) place: usize,
}

impl Places {
    /// The hosts of these members, of which this one has the rank `rank`.
    pub(super) fn new(names: &[EpName], rank: usize) -> Option<Self> {
        let key = |name: &EpName| (name.shm() && name.host_id() != 0).then(|| name.host_id());
        let mut hosts: Vec<(Option<u64>, Vec<u32>)> = Vec::new();
        for (rank, name) in names.iter().enumerate() {
            let key = key(name);
            match hosts.iter_mut().find(|(other, _)| key.is_some() && *other == key) {
                Some((_, ranks)) => ranks.push(ids::number(rank)),
                None => hosts.push((key, vec![ids::number(rank)])),
            }
        }
        let hosts: Vec<Vec<u32>> = hosts.into_iter().map(|(_, ranks)| ranks).collect();
        let me = ids::number(rank);
        let host = hosts.iter().position(|ranks| ranks.contains(&me))?;
        let place = hosts[host].iter().position(|&other| other == me)?;
        Some(Self { hosts, host, place })
    }

    /// Whether the members are on several hosts.
    pub(super) const fn spans_hosts(&self) -> bool {
        self.hosts.len() > 1
    }

    /// Whether boards serve: some members share a host, and no host has too many.
    pub(super) fn shares_memory(&self) -> bool {
        self.hosts.iter().any(|ranks| ranks.len() > 1) && self.most() <= MAX_MEMBERS
    }

    /// Whether this member is the first one of its host.
    pub(super) const fn is_leader(&self) -> bool {
        self.place == 0
    }

    /// The ranks of the members on this host.
    pub(super) fn ranks_here(&self) -> &[u32] {
        &self.hosts[self.host]
    }

    /// This host's number.
    pub(super) const fn host(&self) -> usize {
        self.host
    }

    /// The names of the members on this host.
    pub(super) fn here(&self, names: &[EpName]) -> Vec<EpName> {
        self.ranks_here().iter().filter_map(|&rank| names.get(rank as usize).copied()).collect()
    }

    /// Members on this host.
    pub(super) fn count(&self) -> usize {
        self.ranks_here().len()
    }

    /// Members of the host that has the most.
    pub(super) fn most(&self) -> usize {
        self.hosts.iter().map(Vec::len).max().unwrap_or(0)
    }

    /// The host of a rank, and the place there.
    pub(super) fn place_of(&self, rank: u32) -> Option<(usize, usize)> {
        let place = |ranks: &Vec<u32>| ranks.iter().position(|&other| other == rank);
        self.hosts.iter().enumerate().find_map(|(host, ranks)| place(ranks).map(|place| (host, place)))
    }
}

/// A member's part in the board of its host.
pub(super) enum Seat {
    /// There is no other member, or no memory for a board.
    Alone,
    /// The first member has taken a board.
    Taken(Site, HostBoard),
    /// The others use the board that the first one offers. The latest arena of these members that is mapped here may
    /// have it.
    Guest(Circle, Option<(ArenaId, Board)>),
}

impl Seat {
    /// The board that this member offers, or the arena that it has.
    pub(super) fn site(&self) -> Site {
        match self {
            Self::Taken(site, _) => *site,
            Self::Guest(_, Some((arena, _))) => Site::new(*arena, 0),
            Self::Alone | Self::Guest(_, None) => Site::default(),
        }
    }
}

/// This member's view of its host.
pub(super) struct Host {
    pub(super) places: Places,
    /// The members on this host by place; `None`: this member, or not known yet.
    peers: Vec<Option<PeerId>>,
    /// Members that have been lost, and whether there are any.
    lost: Vec<Option<LinkError>>,
    any_lost: bool,
    /// The failure of the group.
    pub(super) failed: Option<Fault>,
    /// By place: whether the member needs no frame with the board, since it has the arena or the frame.
    has_arena: Vec<bool>,
    seat: Seat,
    /// The arena that the leader has passed; the inner `None`: it has none.
    passed: Option<Option<Board>>,
    /// The board that the leader offers.
    offered: Option<Site>,
    /// All members have the arenas of their boards, so that there is nothing to pass and no vote.
    settled: bool,
    /// The board in use.
    pub(super) shared: Option<Box<HostBoard>>,
    /// The turns of the next operation, and of the next one to enter the board.
    pub(super) next_turn: u64,
    pub(super) next_entry: u64,
}

impl Host {
    pub(super) fn new(places: Places, seat: Seat) -> Self {
        let members = places.count();
        Self {
            peers: vec![None; members],
            lost: vec![None; members],
            any_lost: false,
            failed: None,
            has_arena: vec![false; members],
            seat,
            passed: None,
            offered: None,
            settled: false,
            shared: None,
            next_turn: 0,
            next_entry: 0,
            places,
        }
    }

    /// Whether this member is the first one of its host.
    pub(super) const fn is_leader(&self) -> bool {
        self.places.is_leader()
    }

    /// This host's number, and the number of hosts.
    pub(super) fn among_hosts(&self) -> (u32, u32) {
        (ids::number(self.places.host), ids::number(self.places.hosts.len()))
    }

    /// The rank of this host's leader.
    pub(super) fn leader(&self) -> u32 {
        self.places.ranks_here()[0]
    }

    /// Places and ranks of the other members on this host.
    pub(super) fn others(&self) -> Vec<(usize, u32)> {
        let all = self.places.ranks_here().iter().copied().enumerate();
        all.filter(|(place, _)| *place != self.places.place).collect()
    }

    /// The members announce their arenas, and the leaders their boards. Returns whether each member of each host has
    /// the arena of its board.
    pub(super) fn announced(&mut self, announced: impl Fn(u32) -> Option<Site>) -> bool {
        self.offered = announced(self.leader());
        let offered = self.offered.map(|site| site.arena());
        let has = |rank: u32, arena| announced(rank).is_some_and(|site| Some(site.arena()) == arena);
        let here = self.places.ranks_here();
        self.has_arena = here.iter().map(|&rank| has(rank, offered)).collect();
        self.places.hosts.iter().all(|ranks| {
            let arena = announced(ranks[0]).map(|site| site.arena());
            ranks.len() == 1 || (arena.is_some() && ranks.iter().all(|&rank| has(rank, arena)))
        })
    }

    /// Notes the peer at a place.
    pub(super) fn meet(&mut self, place: usize, peer_id: PeerId) {
        self.peers[place] = Some(peer_id);
    }

    pub(super) fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.peers.iter().flatten().copied()
    }

    /// Whether a member of this host is lost.
    pub(super) fn any_lost(&self) -> bool {
        self.any_lost
    }

    /// The lost members by place, and why.
    pub(super) fn lost(&self) -> impl Iterator<Item = Option<LinkError>> {
        self.lost.iter().copied()
    }

    pub(super) fn has_lost(&self, place: usize) -> bool {
        self.lost[place].is_some()
    }

    /// Notes that a member is lost, if it is one of this host.
    pub(super) fn lose(&mut self, rank: u32, why: LinkError) {
        if let Some(place) = self.place_here(rank) {
            self.lost[place] = self.lost[place].or(Some(why));
            self.any_lost = true;
        }
    }

    pub(super) fn fail(&mut self, why: Fault) {
        self.failed = Some(why);
    }

    pub(super) const fn set_settled(&mut self, settled: bool) {
        self.settled = settled;
    }

    pub(super) const fn is_settled(&self) -> bool {
        self.settled
    }

    /// Whether an arena must be passed between this member and the one at `place`.
    pub(super) fn needs_link_to(&self, place: usize) -> bool {
        let lacks = |place: usize| !self.has_arena[place];
        self.offered.is_some()
            && ((self.places.is_leader() && lacks(place)) || (place == 0 && lacks(self.places.place)))
    }

    /// The arena to pass to the member at `place`; the inner `None` reports that there is none.
    pub(super) fn to_pass(&self, place: usize) -> Option<Option<Board>> {
        let passes = self.places.is_leader() && self.offered.is_some() && !self.has_arena[place];
        passes.then(|| match &self.seat {
            Seat::Taken(_, board) => Some(Arc::clone(board.arena())),
            Seat::Alone | Seat::Guest(..) => None,
        })
    }

    pub(super) fn set_passed(&mut self, place: usize) {
        self.has_arena[place] = true;
    }

    /// Takes the board that a member has passed. The leader alone passes one, and once.
    pub(super) fn receive(&mut self, rank: u32, board: Option<Board>) -> Result<(), Violation> {
        if self.places.is_leader() || self.passed.is_some() || rank != self.leader() {
            return Err(Violation);
        }
        self.passed = Some(board);
        Ok(())
    }

    /// Uses the board, if its arena is here. `None`: the leader has not passed it. False: there is none.
    pub(super) fn adopt(&mut self, arenas: &mut Arenas) -> Option<bool> {
        let members = self.places.count();
        let at = |arena: Board, site: Site| HostBoard::new(arena, usize::from(site.index()), members);
        let mut shared = match (std::mem::replace(&mut self.seat, Seat::Alone), self.offered) {
            _ if members == 1 => Some(HostBoard::alone()),
            (Seat::Taken(_, board), _) => Some(board),
            (Seat::Guest(_, Some((id, arena))), Some(site)) if id == site.arena() => at(arena, site),
            (Seat::Guest(circle, latest), Some(site)) => {
                let Some(passed) = self.passed.take() else {
                    self.seat = Seat::Guest(circle, latest);
                    return None;
                };
                passed.and_then(|arena| {
                    arenas.note(circle, site.arena(), &arena);
                    at(arena, site)
                })
            }
            (Seat::Guest(..), None) | (Seat::Alone, _) => None,
        };
        if !self.spans_hosts() {
            shared.iter_mut().for_each(HostBoard::make_direct);
        }
        self.shared = shared.map(Box::new);
        Some(self.shared.is_some())
    }

    /// The member leaves the group.
    pub(super) fn quit(&self) {
        if self.places.count() > 1 {
            self.shared.iter().for_each(|board| board.quit());
        }
    }

    /// Whether the group has members on other hosts.
    pub(super) fn spans_hosts(&self) -> bool {
        self.places.spans_hosts()
    }

    /// The place of a rank on this host.
    pub(super) fn place_here(&self, rank: u32) -> Option<usize> {
        self.places.place_of(rank).filter(|(host, _)| *host == self.places.host).map(|(_, place)| place)
    }
}
