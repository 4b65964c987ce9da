//! The places of ranks: their hosts, and their neighbourhoods, whose members access each other's memory directly.
//!
//! Place in the data flow: `meet` makes the table at the start. `table` asks whether a rank is near, and weft-gex-c
//! tells clients who shares a host or a neighbourhood.
//!
//! A neighbourhood is a host, or a part of it if `GASNET_SUPERNODE_MAXSIZE` limits its size.

use std::collections::HashMap;

/// A division of the ranks into groups.
#[derive(Debug)]
struct Groups {
    /// The group of each rank. Groups are numbered in the order of their lowest ranks.
    of: Box<[u32]>,
    count: u32,
    /// The members of the own group, in order.
    mine: Box<[u32]>,
}

impl Groups {
    /// Groups of ranks with the same key.
    fn new<K: Eq + std::hash::Hash>(rank: u32, keys: impl Iterator<Item = K>) -> Self {
        let mut numbers = HashMap::new();
        let of: Box<[u32]> = keys
            .map(|key| {
                let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
                *numbers.entry(key).or_insert(next)
            })
            .collect();
        let own = of[rank as usize];
        let mine = (0..).zip(&of).filter(|(_, group)| **group == own).map(|(rank, _)| rank).collect();
        Self { of, count: u32::try_from(numbers.len()).unwrap_or(u32::MAX), mine }
    }
}

/// The places of all ranks, as one of them sees them.
#[derive(Debug)]
pub struct Places {
    rank: u32,
    hosts: Groups,
    nbrhds: Groups,
}

/// A group of ranks that share memory or a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group<'a> {
    /// The number of such groups.
    pub count: u32,
    /// The number of the own one.
    pub number: u32,
    /// Its members, in order.
    pub members: &'a [u32],
    /// The place of this rank among them.
    pub index: u32,
}

impl Places {
    /// The places of ranks on hosts, in neighbourhoods of at most `most` members.
    ///
    /// # Panics
    /// `rank` is not one of the ranks.
    #[must_use]
    pub fn new(rank: u32, hosts: &[u64], most: u32) -> Self {
        let mut sizes: HashMap<u64, u32> = HashMap::new();
        let nbrhd = |host: &u64| {
            let before = sizes.entry(*host).or_default();
            *before += 1;
            (*host, (*before - 1) / most.max(1))
        };
        let nbrhds = Groups::new(rank, hosts.iter().map(nbrhd));
        Self { rank, hosts: Groups::new(rank, hosts.iter()), nbrhds }
    }

    fn group<'a>(&self, groups: &'a Groups) -> Group<'a> {
        let index = groups.mine.binary_search(&self.rank).unwrap_or(0);
        Group {
            count: groups.count,
            number: groups.of[self.rank as usize],
            members: &groups.mine,
            index: u32::try_from(index).unwrap_or(0),
        }
    }

    /// The own host.
    #[must_use]
    pub fn host(&self) -> Group<'_> {
        self.group(&self.hosts)
    }

    /// The own neighbourhood.
    #[must_use]
    pub fn nbrhd(&self) -> Group<'_> {
        self.group(&self.nbrhds)
    }

    /// The host of a rank, by its number.
    #[must_use]
    pub fn host_of(&self, rank: u32) -> Option<u32> {
        self.hosts.of.get(rank as usize).copied()
    }

    /// The neighbourhood of a rank, by its number.
    #[must_use]
    pub fn nbrhd_of(&self, rank: u32) -> Option<u32> {
        self.nbrhds.of.get(rank as usize).copied()
    }

    /// Whether a rank is in the own neighbourhood.
    #[must_use]
    pub fn is_near(&self, rank: u32) -> bool {
        self.nbrhd_of(rank) == self.nbrhd_of(self.rank)
    }

    /// Whether all ranks are in the own neighbourhood.
    #[inline(always)]
    #[must_use]
    pub fn all_near(&self) -> bool {
        self.nbrhds.count == 1
    }

    /// The lowest rank of each host, in order.
    pub fn leaders(&self) -> impl Iterator<Item = u32> {
        (0..self.hosts.count)
            .filter_map(|host| self.hosts.of.iter().position(|of| *of == host))
            .filter_map(|rank| u32::try_from(rank).ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_cut_into_neighbourhoods() {
        let places = Places::new(4, &[7, 9, 7, 7, 9, 9], 2);
        let host = places.host();
        assert_eq!((host.count, host.number, host.members, host.index), (2, 1, &[1, 4, 5][..], 1));
        let nbrhd = places.nbrhd();
        assert_eq!((nbrhd.count, nbrhd.number, nbrhd.members, nbrhd.index), (4, 1, &[1, 4][..], 1));
        assert!(places.is_near(1) && !places.is_near(5) && !places.is_near(0) && !places.is_near(6));
        assert!(!places.all_near() && Places::new(0, &[1, 1], 2).all_near());
        assert_eq!(places.leaders().collect::<Vec<_>>(), [0, 1]);
    }
}
