//! Teams: ordered sets of ranks with barriers and collectives.
//!
//! Place in the data flow: the job makes the team of all ranks; [`Team::split`] makes others. Every call with a rank
//! translates it here.
//!
//! A team within a neighbourhood has an area of shared memory. The members of any other exchange letters.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::area::{Area, EXCHANGE_WORDS};
use crate::barrier::TeamBarrier;
use crate::coll::{Collective, Letters, Queue, Task};
use crate::error::Error;
use crate::event::Slot;
use crate::job::Job;
use crate::memory::Piece;
use crate::post::{Mail, Tag};
use crate::spread::{self, Dissemination};
use crate::wait;

/// The means by which members reach one another.
enum Medium {
    /// Shared memory.
    Area(Area),
    /// Letters under the id of the team.
    Letters {
        /// The id, which is the same in all members.
        id: u64,
        /// The number of members.
        size: u32,
    },
}

/// A team, as one of its members sees it.
pub struct Team {
    rank: u32,
    flags: u32,
    /// The ranks in the job of the members. `None`: they are the same numbers.
    members: Option<Box<[u32]>>,
    medium: Medium,
    barrier: TeamBarrier,
    /// Exchanges so far; in a team with letters, all collectives.
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
    /// A team over an area.
    #[must_use]
    pub fn new(rank: u32, members: Option<Box<[u32]>>, area: Area, flags: u32) -> Self {
        Self::over(rank, members, Medium::Area(area), flags)
    }

    /// A team of all ranks of a job, which share no memory.
    #[must_use]
    pub fn of_all(rank: u32, size: u32) -> Self {
        Self::over(rank, None, Medium::Letters { id: 0, size }, 0)
    }

    fn over(rank: u32, members: Option<Box<[u32]>>, medium: Medium, flags: u32) -> Self {
        Self {
            rank,
            flags,
            members,
            medium,
            barrier: TeamBarrier::default(),
            exchanges: AtomicU64::new(0),
            queue: Queue::default(),
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
        match &self.medium {
            Medium::Area(area) => area.members(),
            Medium::Letters { size, .. } => *size,
        }
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

    /// The shared memory of the team; `None`: its members exchange letters.
    #[inline(always)]
    #[must_use]
    pub fn area(&self) -> Option<&Area> {
        match &self.medium {
            Medium::Area(area) => Some(area),
            Medium::Letters { .. } => None,
        }
    }

    /// The mail of this member.
    #[must_use]
    pub fn mail<'a>(&'a self, job: &'a Job) -> TeamMail<'a> {
        let id = match &self.medium {
            Medium::Area(_) => 0,
            Medium::Letters { id, .. } => *id,
        };
        TeamMail { job, team: self, id }
    }

    /// Whether collectives are under way.
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

    /// The number of the next collective by letters.
    fn next(&self) -> u64 {
        self.exchanges.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits for all members.
    #[inline(always)]
    pub fn pass_barrier(&self, job: &Job) {
        let Medium::Area(area) = &self.medium else { return self.pass_barrier_by_letters(job) };
        let (number, over) = self.arrive(job, area);
        if !over {
            let mut seen = 0;
            wait::until_woken(job, || TeamBarrier::is_over(area, number, &mut seen));
        }
    }

    #[cold]
    fn pass_barrier_by_letters(&self, job: &Job) {
        let (mut barrier, mail) = (Dissemination::barrier(self.next()), self.mail(job));
        wait::until(job, || barrier.run(&mail, |_, _| 0));
    }

    /// Starts a collective. Returns its event; `None`: it was complete at once. Elements of a reduction may be too long
    /// for an area, which is an error.
    ///
    /// # Errors
    /// The length of an element.
    pub fn start(&'static self, job: &Job, collective: Collective) -> Result<Option<&'static Slot>, usize> {
        let task = match &self.medium {
            Medium::Area(area) => self.task_in(job, area, collective)?,
            Medium::Letters { .. } => Task::Letters(self.letters(collective)),
        };
        let slot = self.queue.start(task, |task, pieces| self.step(job, task, pieces));
        if slot.is_some() {
            job.watch(self);
        }
        Ok(slot)
    }

    /// Moves the collectives on. Returns the number of those that are complete now.
    pub fn run(&self, job: &Job) -> usize {
        self.queue.run(|task, pieces| self.step(job, task, pieces))
    }

    fn step(&self, job: &Job, task: &mut Task, pieces: &mut u64) -> bool {
        match (task, &self.medium) {
            (Task::Letters(letters), _) => letters.run(&self.mail(job)),
            (task, Medium::Area(area)) => task.run(area, self.rank, pieces),
            (_, Medium::Letters { .. }) => {
                debug_assert!(false, "the team has no area");
                true
            }
        }
    }

    fn task_in(&self, job: &Job, area: &Area, collective: Collective) -> Result<Task, usize> {
        Ok(match collective {
            Collective::Barrier => Task::Barrier { number: self.arrive(job, area).0, seen: 0 },
            Collective::Broadcast { root, source, result, bytes } => {
                Task::broadcast(root, root == self.rank, source, Piece { addr: result, bytes })
            }
            Collective::Reduce { source, result, count, combine, .. } => {
                let bytes = combine.element_bytes();
                Task::reduce(source, result, count, combine).ok_or(bytes)?
            }
        })
    }

    fn letters(&self, collective: Collective) -> Letters {
        let number = self.next();
        match collective {
            Collective::Barrier => Letters::Barrier(Dissemination::barrier(number)),
            Collective::Broadcast { root, source, result, bytes } => {
                let is_root = root == self.rank;
                if is_root && result != 0 && result != source && bytes > 0 {
                    crate::memory::copy_at(result, Piece { addr: source, bytes });
                }
                let data = if is_root { source } else { result };
                Letters::Broadcast(spread::Broadcast::new(number, root, data, bytes))
            }
            Collective::Reduce { to, source, result, count, combine } => {
                let bytes = count * combine.element_bytes();
                Letters::Reduction(Box::new(spread::Reduction::new(number, to, source, result, bytes, combine)))
            }
        }
    }

    /// Gives a short message to all members. Returns theirs, in order.
    pub fn exchange(&self, job: &Job, message: [u64; EXCHANGE_WORDS - 1]) -> Vec<[u64; EXCHANGE_WORDS - 1]> {
        let number = self.next();
        let Medium::Area(area) = &self.medium else {
            let (mut exchange, mail) = (spread::Exchange::new(number, message), self.mail(job));
            wait::until(job, || exchange.run(&mail));
            return exchange.messages(&mail);
        };
        area.post(self.rank, number, message);
        let mut all = Vec::with_capacity(self.size() as usize);
        for member in 0..self.size() {
            let mut found = None;
            wait::until(job, || {
                found = area.posted(member, number);
                found.is_some()
            });
            all.extend(found);
        }
        all
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
        let medium = match shares {
            true => Medium::Area(Area::map(job.board(), number, size)?),
            false => Medium::Letters { id: number, size },
        };
        let rank = members.iter().position(|&member| member == self.rank).and_then(|at| u32::try_from(at).ok());
        Ok(rank.map(|rank| Self::over(rank, Some(ranks), medium, flags)))
    }
}

fn area_bytes(members: usize) -> u64 {
    Area::bytes(u32::try_from(members).unwrap_or(u32::MAX)) as u64
}

/// The letters of one member of a team.
pub struct TeamMail<'a> {
    job: &'a Job,
    team: &'a Team,
    id: u64,
}

impl TeamMail<'_> {
    fn rank(&self, member: u32) -> u32 {
        match self.team.job_rank(member) {
            Some(rank) => rank,
            None => crate::fatal!("a team has no member {member}; pass a rank below gex_TM_QuerySize"),
        }
    }
}

impl Mail for TeamMail<'_> {
    fn me(&self) -> u32 {
        self.team.rank
    }

    fn members(&self) -> u32 {
        self.team.size()
    }

    fn send(&self, member: u32, place: u64, bytes: &[u8]) -> bool {
        crate::am::send_letter(self.job, self.rank(member), Tag { team: self.id, place }, bytes)
    }

    fn take(&self, member: u32, place: u64) -> Option<Vec<u8>> {
        self.job.inbox().take(self.rank(member), Tag { team: self.id, place })
    }
}

/// The members of this member's new team, in its order, as ranks of the parent.
fn members_of(wishes: &[[u64; EXCHANGE_WORDS - 1]], wish: Wish) -> Vec<u32> {
    let same = |other: &[u64; EXCHANGE_WORDS - 1]| other[0] == 1 && other[1] == u64::from(wish.color);
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
