//! Teams: ordered sets of ranks with barriers and collectives.
//!
//! Place in the data flow: the job makes the team of all ranks; [`Team::split`] makes others. Every call with a rank
//! translates it here.

use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::area::{Area, EXCHANGE_WORDS};
use crate::barrier::TeamBarrier;
use crate::coll::Queue;
use crate::error::Error;
use crate::job::Job;
use crate::wait;

/// A team, as one of its members sees it.
pub struct Team {
    rank: u32,
    flags: u32,
    /// The ranks in the job of the members. `None`: they are the same numbers.
    members: Option<Box<[u32]>>,
    area: Area,
    barrier: TeamBarrier,
    /// Exchanges so far.
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
        Self {
            rank,
            flags,
            members,
            area,
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
        self.area.members()
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

    /// The shared memory of the team.
    #[inline(always)]
    #[must_use]
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Its barriers.
    #[inline(always)]
    #[must_use]
    pub fn barrier(&self) -> &TeamBarrier {
        &self.barrier
    }

    /// Its collectives.
    #[must_use]
    pub fn queue(&self) -> &Queue {
        &self.queue
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

    /// Arrives at a barrier. Returns its number, and whether it is over. The last member wakes the others.
    #[inline(always)]
    pub fn arrive(&self, job: &Job) -> (u64, bool) {
        let number = self.barrier.arrive(&self.area, self.rank);
        let over = TeamBarrier::is_over(&self.area, number, &mut 0);
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
        let (number, over) = self.arrive(job);
        if !over {
            let mut seen = 0;
            wait::until_woken(job, || TeamBarrier::is_over(&self.area, number, &mut seen));
        }
    }

    /// Gives a short message to all members. Returns theirs, in order.
    pub fn exchange(&self, job: &Job, message: [u64; EXCHANGE_WORDS - 1]) -> Vec<[u64; EXCHANGE_WORDS - 1]> {
        let number = self.exchanges.fetch_add(1, Ordering::Relaxed) + 1;
        self.area.post(self.rank, number, message);
        let mut all = Vec::with_capacity(self.size() as usize);
        for member in 0..self.size() {
            let mut found = None;
            wait::until(job, || {
                found = self.area.posted(member, number);
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
        let leads = wish.joins && members.first() == Some(&self.rank);
        // The leader of each team allocates its memory. Offset 0 is the board.
        let offset = if leads {
            let bytes = Area::bytes(u32::try_from(members.len()).unwrap_or(u32::MAX)) as u64;
            job.board().allocate(bytes).unwrap_or(0)
        } else {
            0
        };
        let offsets = self.exchange(job, [offset, 0, 0, 0, 0, 0, 0]);
        let Some(leader) = members.first().filter(|_| wish.joins) else { return Ok(None) };
        let offset = offsets[*leader as usize][0];
        let count = u32::try_from(members.len()).unwrap_or(u32::MAX);
        if offset == 0 {
            return Err(Error::NoRoom(Area::bytes(count) as u64));
        }
        let area = Area::map(job.board(), offset, count)?;
        let rank = members.iter().position(|&member| member == self.rank).and_then(|at| u32::try_from(at).ok());
        let ranks = members.iter().filter_map(|&member| self.job_rank(member)).collect();
        Ok(rank.map(|rank| Self::new(rank, Some(ranks), area, flags)))
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
