//! The jobs behind the reports: one command may start several, one after the other, beside each other, or by
//! `MPI_Comm_spawn`.
//!
//! Place in the data flow: the reports of `collect.rs` and the starts that `watch.rs` has seen → here → `verdict.rs`.
//!
//! The ranks of a job have its name in common. Hydra gives spawned ranks the name of the job that spawns them, so each
//! rank that occurs several times among them is one of several jobs.

use std::collections::{BTreeMap, BTreeSet};

use weft_fi::observe::report::line::{Counts, Line};
use weft_observe::identity::Identity;

/// The jobs of a command, and all that they have reported.
#[derive(Debug, Default)]
pub(super) struct Jobs {
    pub(super) jobs: Vec<Job>,
    /// Processes that no launcher has told a rank.
    pub(super) unranked: Tally,
    /// The counters of all processes.
    pub(super) sum: Counts,
    /// The hosts of processes that opened an endpoint.
    pub(super) hosts: usize,
    /// The collectives of the rank with most of them, by weft and left to the MPI library.
    pub(super) collectives: [u64; 2],
    /// Whether all ranks have as many.
    pub(super) are_alike: bool,
    /// Whether MPICH's launcher has started one of them.
    pub(super) has_hydra: bool,
    /// A fault that weft has found in one of them.
    pub(super) fault: Option<String>,
}

/// Ranks that were started together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Job {
    /// The number of ranks, if the launcher told it.
    pub(super) size: Option<u64>,
    pub(super) ranks: Tally,
}

/// Numbers of ranks, or of processes without rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// They loaded the provider.
    pub(super) loaded: u64,
    /// They opened an endpoint.
    pub(super) used: u64,
    /// They ended without closing an endpoint.
    pub(super) unclosed: u64,
}

impl Tally {
    /// Adds one rank, by its counters.
    fn count(&mut self, counts: &Counts) {
        self.loaded += 1;
        self.used += u64::from(counts.endpoints > 0);
        self.unclosed += u64::from(counts.open > 0);
    }

    fn add(&mut self, other: Self) {
        self.loaded += other.loaded;
        self.used += other.used;
        self.unclosed += other.unclosed;
    }
}

/// The processes of a rank.
type Processes = Vec<Counts>;

impl Jobs {
    /// Sorts the reports of processes by jobs. `seen` are ranks that may have reported nothing.
    pub(super) fn of(reports: &[Line], seen: &[Identity]) -> Self {
        let mut this = Self { are_alike: true, ..Self::default() };
        let mut ranked: BTreeMap<(&str, bool, Option<u64>), BTreeMap<u64, Processes>> = BTreeMap::new();
        let hosts = reports.iter().filter(|line| line.counts.endpoints > 0).map(|line| line.identity.host.as_str());
        this.hosts = hosts.collect::<BTreeSet<_>>().len();
        this.has_hydra = reports.iter().any(|line| line.identity.is_of_hydra());
        this.fault = reports.iter().map(|line| &line.fault).find(|fault| !fault.is_empty()).cloned();
        for Line { identity, counts, .. } in reports {
            this.sum.add(*counts);
            let Identity { rank, size, job, spawned, .. } = identity;
            match rank {
                Some(rank) => ranked.entry((job, *spawned, *size)).or_default().entry(*rank).or_default().push(*counts),
                None => this.unranked.count(counts),
            }
        }
        for processes in ranked.values().flat_map(BTreeMap::values) {
            let mut sum = Counts::default();
            processes.iter().for_each(|counts| sum.add(*counts));
            let collectives = [sum.collectives, sum.left_collectives];
            this.are_alike &= this.collectives == [0, 0] || this.collectives == collectives;
            this.collectives = [0, 1].map(|kind| this.collectives[kind].max(collectives[kind]));
        }
        for Identity { size, job, spawned, .. } in seen {
            // Ranks in a process namespace of their own do not find the name of their job.
            if !ranked.contains_key(&("", *spawned, *size)) {
                ranked.entry((job, *spawned, *size)).or_default();
            }
        }
        this.jobs = ranked.into_iter().flat_map(|((_, spawned, size), ranks)| jobs(spawned, size, &ranks)).collect();
        this
    }

    /// The ranks of all jobs.
    pub(super) fn ranks(&self) -> Tally {
        let mut sum = Tally::default();
        self.jobs.iter().for_each(|job| sum.add(job.ranks));
        sum
    }

    /// The ranks and the processes without rank.
    pub(super) fn all(&self) -> Tally {
        let mut sum = self.ranks();
        sum.add(self.unranked);
        sum
    }

    /// The number of ranks of all jobs, if every launcher told it.
    pub(super) fn size(&self) -> Option<u64> {
        (!self.jobs.is_empty()).then(|| self.jobs.iter().map(|job| job.size).sum::<Option<u64>>()).flatten()
    }
}

/// The jobs whose ranks have the same name.
fn jobs(spawned: bool, size: Option<u64>, ranks: &BTreeMap<u64, Processes>) -> Vec<Job> {
    let count = if spawned { ranks.values().map(Vec::len).max().unwrap_or(0).max(1) } else { 1 };
    let mut jobs = vec![Job { size, ranks: Tally::default() }; count];
    for processes in ranks.values() {
        if spawned {
            jobs.iter_mut().zip(processes).for_each(|(job, counts)| job.ranks.count(counts));
        } else {
            // A rank may be a script that runs several programs.
            let mut sum = Counts::default();
            processes.iter().for_each(|counts| sum.add(*counts));
            jobs[0].ranks.count(&sum);
        }
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(job: &str, rank: u64, size: u64, pid: u64) -> Line {
        let identity = Identity { rank: Some(rank), size: Some(size), job: job.to_owned(), ..Identity::default() };
        Line { identity, pid, counts: Counts { endpoints: 1, ..Counts::default() }, ..Line::default() }
    }

    fn sizes(jobs: &Jobs) -> Vec<(u64, Option<u64>)> {
        jobs.jobs.iter().map(|job| (job.ranks.used, job.size)).collect()
    }

    #[test]
    fn jobs_of_one_script_are_told_apart() {
        let reports = [line("a", 0, 2, 1), line("a", 1, 2, 2), line("b", 0, 2, 3), line("c", 2, 3, 4)];
        let jobs = Jobs::of(&reports, &[]);
        assert_eq!(sizes(&jobs), [(2, Some(2)), (1, Some(2)), (1, Some(3))]);
        assert_eq!((jobs.ranks().used, jobs.size()), (4, Some(7)));
    }

    #[test]
    fn spawned_ranks_of_hydra_are_told_apart_by_repetition() {
        let spawned = |rank, pid| {
            let line = line("a", rank, 3, pid);
            Line { identity: Identity { spawned: true, ..line.identity }, ..line }
        };
        let mut reports = vec![line("a", 0, 2, 1), line("a", 1, 2, 2)];
        reports.extend((0..3).flat_map(|rank| [spawned(rank, 10 + rank), spawned(rank, 20 + rank)]));
        let jobs = Jobs::of(&reports, &[]);
        assert_eq!(sizes(&jobs), [(2, Some(2)), (3, Some(3)), (3, Some(3))]);
    }

    #[test]
    fn programs_of_one_rank_are_one_rank() {
        let jobs = Jobs::of(&[line("a", 0, 2, 1), line("a", 0, 2, 5), line("a", 1, 2, 2)], &[]);
        assert_eq!(sizes(&jobs), [(2, Some(2))]);
        assert_eq!(jobs.sum.endpoints, 3);
    }

    #[test]
    fn a_job_that_was_only_seen_has_no_rank_on_weft() {
        let seen = [line("b", 0, 4, 9).identity, line("a", 1, 2, 8).identity];
        let jobs = Jobs::of(&[line("a", 0, 2, 1)], &seen);
        assert_eq!(sizes(&jobs), [(1, Some(2)), (0, Some(4))]);
    }

    #[test]
    fn processes_without_rank_belong_to_no_job() {
        let reports = [Line { counts: Counts { endpoints: 1, open: 1, ..Counts::default() }, ..Line::default() }];
        let jobs = Jobs::of(&reports, &[]);
        assert!(jobs.jobs.is_empty() && jobs.size().is_none());
        assert_eq!(jobs.all(), Tally { loaded: 1, used: 1, unclosed: 1 });
    }
}
