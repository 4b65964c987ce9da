//! Teams: ordered sets of ranks with barriers and collectives.
//!
//! Place in the data flow: the job makes the team of all ranks; [`Team::split`] makes others. Every call with a rank
//! translates it here.
//!
//! A team within a neighbourhood has an area of shared memory, which performs what is faster there. The engine performs
//! the other collectives.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use weft_engine::api::Addr;

use crate::area::{Area, CHUNK_BYTES, EXCHANGE_WORDS};
use crate::barrier::TeamBarrier;
use crate::coll::{Collective, Move, Queue, Task, To};
use crate::error::Error;
use crate::event::Slot;
use crate::gate::Threads;
use crate::group::{Group, Seat};
use crate::job::Job;
use crate::memory::Piece;
use crate::table::Location;
use crate::wait;

/// A message of an exchange.
pub type Message = [u64; EXCHANGE_WORDS - 1];

/// The endpoints of a team of endpoints.
struct Endpoints {
    /// That of this member.
    own: u16,
    /// Those of all members.
    all: Box<[u16]>,
    /// Whether a rank has several. Groups of the engine have one member of each rank.
    has_twins: bool,
}

/// A team, as one of its members sees it.
pub struct Team {
    rank: u32,
    size: u32,
    flags: u32,
    /// The ranks in the job of the members. `None`: they are the same numbers.
    members: Option<Box<[u32]>>,
    /// The endpoints of the members. `None`: they are the first ones.
    endpoints: Option<Endpoints>,
    /// The memory that the members share. `None`: they are in several neighbourhoods.
    area: Option<Area>,
    group: Group,
    barrier: TeamBarrier,
    /// Exchanges in the area so far.
    exchanges: AtomicU64,
    queue: Queue,
    /// The client's memory that was given to the creation: its address and length. It is not used.
    scratch: Option<[usize; 2]>,
    cdata: AtomicPtr<c_void>,
}

/// A member's wish in a split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Members of the same color form a team.
    pub color: u32,
    /// The order in the new team, then by rank in the parent.
    pub key: u32,
    /// Whether the member takes part in a team at all.
    pub joins: bool,
}

impl Team {
    /// A team without flags. Its id is the same in all members, and other teams of them have other ids. `threads`:
    /// those that use it. `area`: the memory that the members share.
    #[must_use]
    pub(crate) fn new(id: u64, seat: Seat, threads: Threads, members: Option<Box<[u32]>>, area: Option<Area>) -> Self {
        Self {
            rank: seat.rank,
            size: seat.members,
            flags: 0,
            members,
            endpoints: None,
            area,
            group: Group::new(id),
            barrier: TeamBarrier::default(),
            exchanges: AtomicU64::new(0),
            queue: Queue::new(threads),
            scratch: None,
            cdata: AtomicPtr::default(),
        }
    }

    /// Keeps memory of the client that the end of the team reports.
    #[must_use]
    pub fn with_scratch(self, scratch: Option<[usize; 2]>) -> Self {
        Self { scratch, ..self }
    }

    /// The memory of the client that was given to the creation.
    #[must_use]
    pub fn scratch(&self) -> Option<[usize; 2]> {
        self.scratch
    }

    /// The number of this rank in the team.
    #[inline(always)]
    #[must_use]
    pub fn rank(&self) -> u32 {
        self.rank
    }

    /// The number of members.
    #[inline(always)]
    #[must_use]
    pub fn size(&self) -> u32 {
        self.size
    }

    /// The flags of its creation.
    #[must_use]
    pub fn flags(&self) -> u32 {
        self.flags
    }

    /// The client's pointer.
    #[must_use]
    pub fn cdata(&self) -> &AtomicPtr<c_void> {
        &self.cdata
    }

    /// The memory that all members share; `None`: they are in several neighbourhoods.
    #[inline(always)]
    #[must_use]
    pub fn area(&self) -> Option<&Area> {
        self.area.as_ref()
    }

    /// The address of each member for the engine.
    fn addresses(&self) -> impl Iterator<Item = Addr> + Clone {
        if self.endpoints.as_ref().is_some_and(|endpoints| endpoints.has_twins) {
            crate::fatal!(
                "a collective of a team that has several endpoints of a rank, and spans neighbourhoods; use a team with one endpoint of each rank"
            );
        }
        (0..self.size).filter_map(|member| self.job_rank(member)).map(Addr::from)
    }

    /// Whether tasks in the area are under way.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.queue.is_empty()
    }

    /// The rank in the job of a member.
    #[inline(always)]
    #[must_use]
    pub fn job_rank(&self, member: u32) -> Option<u32> {
        match &self.members {
            None => (member < self.size()).then_some(member),
            Some(members) => members.get(member as usize).copied(),
        }
    }

    /// The endpoint of a member.
    #[inline(always)]
    #[must_use]
    pub fn location(&self, member: u32) -> Option<Location> {
        let at = Location::new(self.job_rank(member)?, 0);
        match &self.endpoints {
            None => Some(at),
            Some(Endpoints { own, all, .. }) => {
                Some(Location::new(at.rank(), *all.get(member as usize)?).used_by(*own))
            }
        }
    }

    /// The number of the own endpoint.
    #[must_use]
    pub fn endpoint(&self) -> u16 {
        self.endpoints.as_ref().map_or(0, |endpoints| endpoints.own)
    }

    /// The member with a rank in the job.
    #[must_use]
    pub fn member(&self, job_rank: u32) -> Option<u32> {
        match &self.members {
            None => (job_rank < self.size()).then_some(job_rank),
            Some(members) => members.iter().position(|&rank| rank == job_rank).and_then(|at| u32::try_from(at).ok()),
        }
    }

    /// Arrives at a barrier in an area. Returns its number, and whether it is over. The last member wakes the others.
    #[inline(always)]
    fn arrive(&self, job: &Job, area: &Area) -> (u64, bool) {
        let number = self.barrier.arrive(area, self.rank);
        let over = TeamBarrier::is_over(area, number, &mut 0);
        if over {
            self.wake_members(job);
        }
        (number, over)
    }

    /// Wakes the members that sleep.
    #[inline(always)]
    pub fn wake_members(&self, job: &Job) {
        wait::wake(job, (0..self.size()).filter_map(|member| self.job_rank(member)));
    }

    /// Waits for all members.
    #[inline(always)]
    pub fn pass_barrier(&self, job: &Job) {
        let Some(area) = &self.area else { return self.perform(job, &Collective::Barrier) };
        let (number, over) = self.arrive(job, area);
        if !over {
            let mut seen = 0;
            wait::until_woken(job, || TeamBarrier::is_over(area, number, &mut seen) || self.is_broken(job));
        }
    }

    /// Starts a collective. Returns its event; `None`: it was complete at once.
    pub fn start(&'static self, job: &Job, collective: &Collective) -> Option<&'static Slot> {
        let task = self.area.as_ref().and_then(|area| self.task_in(job, area, collective));
        let Some(task) = task else { return self.start_by_engine(job, collective) };
        let slot = self.queue.start(task, |task, pieces| self.step(task, pieces));
        if slot.is_some() {
            job.watch(self);
        }
        slot
    }

    /// Starts a collective of the engine.
    pub(crate) fn start_by_engine(&self, job: &Job, collective: &Collective) -> Option<&'static Slot> {
        let seat = Seat { rank: self.rank, members: self.size };
        self.group.start(job, seat, self.addresses(), collective)
    }

    /// Performs a collective of the engine.
    #[cold]
    fn perform(&self, job: &Job, collective: &Collective) {
        if let Some(slot) = self.start_by_engine(job, collective) {
            wait::until(job, || slot.test());
        }
    }

    /// Moves the tasks on. Returns the number of those that are complete now.
    pub fn run(&self, job: &Job) -> usize {
        let complete = self.queue.run(|task, pieces| self.step(task, pieces));
        if self.is_broken(job) { complete + self.queue.fail() } else { complete }
    }

    /// Whether the collective in the area with this event reads its source yet. `None`: there is none.
    #[must_use]
    pub fn reads_source(&self, event: &Slot) -> Option<bool> {
        self.queue.reads_source(event)
    }

    /// Whether a member has failed.
    #[inline(always)]
    #[must_use]
    pub fn is_broken(&self, job: &Job) -> bool {
        job.failures().any() && self.has_lost_member(job)
    }

    #[cold]
    fn has_lost_member(&self, job: &Job) -> bool {
        (0..self.size).filter_map(|member| self.job_rank(member)).any(|rank| job.failures().has_lost(rank))
    }

    fn step(&self, task: &mut Task, pieces: &mut u64) -> bool {
        self.area.as_ref().is_none_or(|area| task.run(area, self.rank, pieces))
    }

    /// The task of a collective. `None`: the engine performs it.
    fn task_in(&self, job: &Job, area: &Area, collective: &Collective) -> Option<Task> {
        match *collective {
            Collective::Barrier => Some(Task::Barrier { number: self.arrive(job, area).0, seen: 0 }),
            Collective::Move { what: Move::Broadcast(root), source, result, bytes } => {
                Some(Task::broadcast(root, root == self.rank, source, Piece { addr: result, bytes }))
            }
            Collective::Reduce { to: To::One(_) | To::All, source, result, count, combine } => {
                (combine.element_bytes() <= CHUNK_BYTES).then(|| Task::reduce([source, result], count, combine))
            }
            _ => None,
        }
    }

    /// Gives a short message to all members. Returns theirs, in order.
    pub fn exchange(&self, job: &Job, message: Message) -> Vec<Message> {
        let Some(area) = &self.area else {
            let mut all = vec![Message::default(); self.size as usize];
            let what = Move::GatherAll;
            let addr = |words: *const Message| words.expose_provenance();
            let (source, result) = (addr(&raw const message), addr(all.as_mut_ptr()));
            self.perform(job, &Collective::Move { what, source, result, bytes: size_of::<Message>() });
            return all;
        };
        let number = self.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
        area.post(self.rank, number, message);
        let mut all = Vec::with_capacity(self.size() as usize);
        for member in 0..self.size() {
            let mut found = None;
            // A contribution that was posted before its member failed counts. Other failed members take no part.
            wait::until(job, || {
                let is_lost = self.job_rank(member).is_some_and(|rank| job.failures().has_lost(rank));
                found = area.posted(member, number).or(is_lost.then(Message::default));
                found.is_some()
            });
            all.extend(found);
        }
        all
    }

    /// Leaves the team, after a barrier of its members.
    pub fn leave(&self, job: &Job) {
        job.unwatch(self);
        self.group.leave(job);
    }

    /// Makes new teams of the members of each color. Collective. `None`: this member does not join one.
    ///
    /// # Errors
    /// The memory of the new team cannot be had.
    pub fn split(&self, job: &Job, wish: Wish, flags: u32) -> Result<Option<Self>, Error> {
        let mine = [u64::from(wish.joins), u64::from(wish.color), u64::from(wish.key), 0, 0, 0, 0];
        let wishes = self.exchange(job, mine);
        let members = members_of(&wishes, wish);
        let ranks: Box<[u32]> = members.iter().filter_map(|&member| self.job_rank(member)).collect();
        let nbrhd = |rank: &u32| job.places().nbrhd_of(*rank);
        let shares = ranks.iter().all(|rank| nbrhd(rank) == ranks.first().and_then(nbrhd));
        let leads = wish.joins && members.first() == Some(&self.rank);
        // The leader of each team allocates its memory, or numbers it. Offset 0 is the board, and id 0 the team of all.
        let mine = match (leads, shares) {
            (false, _) => 0,
            (true, true) => job.board().allocate(area_bytes(ranks.len())).unwrap_or(0),
            (true, false) => job.new_team_id(),
        };
        let numbers = self.exchange(job, [mine, 0, 0, 0, 0, 0, 0]);
        let Some(leader) = members.first().filter(|_| wish.joins) else { return Ok(None) };
        let number = numbers[*leader as usize][0];
        let size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
        if number == 0 {
            return Err(Error::NoRoom(area_bytes(ranks.len())));
        }
        let area = shares.then(|| Area::map(job.board(), number, size)).transpose()?;
        let rank = members.iter().position(|&member| member == self.rank).and_then(|at| u32::try_from(at).ok());
        let seat = rank.map(|rank| Seat { rank, members: size });
        Ok(seat.map(|seat| Self { flags, ..Self::new(number, seat, job.engine_threads(), Some(ranks), area) }))
    }
}

/// Makes a team of endpoints. Collective over the parent. Returns the team of each own endpoint, in the order of the
/// members. Ranks without members pass none.
///
/// # Errors
/// The memory of the team cannot be had.
pub fn of_endpoints(job: &Job, parent: &Team, members: &[Location], flags: u32) -> Result<Vec<Team>, Error> {
    let own: Vec<_> =
        members.iter().filter(|at| at.rank() == job.rank()).filter_map(|at| job.endpoint_at(at.endpoint())).collect();
    job.introduce(parent, &own);
    let ranks: Box<[u32]> = members.iter().map(|at| at.rank()).collect();
    let nbrhd = |rank: &u32| job.places().nbrhd_of(*rank);
    let shares = ranks.iter().all(|rank| nbrhd(rank) == ranks.first().and_then(nbrhd));
    // The first member allocates the team's memory, or numbers it.
    let mine = match (ranks.first() == Some(&job.rank()), shares) {
        (false, _) => 0,
        (true, true) => job.board().allocate(area_bytes(ranks.len())).unwrap_or(0),
        (true, false) => job.new_team_id(),
    };
    let numbers = parent.exchange(job, [mine, 0, 0, 0, 0, 0, 0]);
    let Some(leader) = ranks.first().and_then(|&rank| parent.member(rank)) else { return Ok(Vec::new()) };
    let number = numbers[leader as usize][0];
    if number == 0 {
        return Err(Error::NoRoom(area_bytes(ranks.len())));
    }
    let size = u32::try_from(ranks.len()).unwrap_or(u32::MAX);
    let all: Box<[u16]> = members.iter().map(|at| at.endpoint()).collect();
    let mut sorted = ranks.to_vec();
    sorted.sort_unstable();
    let has_twins = sorted.windows(2).any(|pair| pair[0] == pair[1]);
    let one = |(number_in, at): (u32, &Location)| {
        let area = shares.then(|| Area::map(job.board(), number, size)).transpose()?;
        let seat = Seat { rank: number_in, members: size };
        let team = Team { flags, ..Team::new(number, seat, job.engine_threads(), Some(ranks.clone()), area) };
        let endpoints = Endpoints { own: at.endpoint(), all: all.clone(), has_twins };
        Ok(Team { endpoints: Some(endpoints), ..team })
    };
    (0..).zip(members).filter(|(_, at)| at.rank() == job.rank()).map(one).collect()
}

fn area_bytes(members: usize) -> u64 {
    Area::bytes(u32::try_from(members).unwrap_or(u32::MAX)) as u64
}

/// The members of this member's new team, in its order, as ranks of the parent.
fn members_of(wishes: &[Message], wish: Wish) -> Vec<u32> {
    let same = |other: &Message| other[0] == 1 && other[1] == u64::from(wish.color);
    let mut members: Vec<(u64, u32)> =
        (0..).zip(wishes).filter(|(_, other)| same(other)).map(|(rank, other)| (other[2], rank)).collect();
    members.sort_unstable();
    members.into_iter().map(|(_, rank)| rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_ordered_by_key_and_rank() {
        let wishes: Vec<_> = [(1, 7, 3), (1, 7, 1), (0, 7, 0), (1, 8, 0), (1, 7, 1)]
            .map(|(joins, color, key)| [joins, color, key, 0, 0, 0, 0])
            .into();
        assert_eq!(members_of(&wishes, Wish { color: 7, key: 0, joins: true }), [1, 4, 0]);
        assert_eq!(members_of(&wishes, Wish { color: 8, key: 0, joins: true }), [3]);
    }
}
