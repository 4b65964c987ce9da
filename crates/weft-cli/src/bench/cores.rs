//! The cores that measured processes run on: those that this process may use, one of each physical core first.

use std::collections::BTreeSet;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The cores to use, in the order in which ranks take them.
pub(crate) fn choose(wanted: &[usize]) -> Result<Vec<usize>, String> {
    let set = sched_getaffinity(None).map_err(|error| format!("cannot tell which cores may be used: {error}"))?;
    let allowed: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| set.is_set(core)).collect();
    if wanted.is_empty() {
        return Ok(spread(&allowed, siblings));
    }
    match wanted.iter().find(|core| !allowed.contains(core)) {
        Some(core) => Err(format!("core {core} may not be used here; these may: {}", list(&allowed))),
        None => Ok(wanted.to_vec()),
    }
}

/// Orders cores: the first thread of each physical core, then the others. Two threads of a core disturb each other.
fn spread(allowed: &[usize], siblings: impl Fn(usize) -> String) -> Vec<usize> {
    let mut seen = BTreeSet::new();
    let (mut first, second): (Vec<_>, Vec<_>) = allowed.iter().partition(|&&core| seen.insert(siblings(core)));
    first.extend(second);
    first
}

/// The threads of a core's physical core, in the kernel's notation; the core itself if that is unknown.
fn siblings(core: usize) -> String {
    let file = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    std::fs::read_to_string(file).unwrap_or_else(|_| core.to_string())
}

/// The cores of one rank: `threads` cores, taken in turn. Ranks share cores when there are too few.
pub(crate) fn of_rank(cores: &[usize], rank: usize, threads: usize) -> Vec<usize> {
    (0..threads).map(|thread| cores[(rank * threads + thread) % cores.len()]).collect()
}

/// The members of `cores` that are not among `taken`; all of them if that leaves none.
pub(crate) fn except(cores: &[usize], taken: &[usize]) -> Vec<usize> {
    let left: Vec<usize> = cores.iter().copied().filter(|core| !taken.contains(core)).collect();
    if left.is_empty() { cores.to_vec() } else { left }
}

/// Confines this thread, and the threads that it starts, to some cores.
pub(crate) fn pin(cores: &[usize]) -> Result<(), String> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|&core| set.set(core));
    sched_setaffinity(None, &set).map_err(|error| format!("cannot run on core {}: {error}", list(cores)))
}

/// Lists cores, for messages.
pub(crate) fn list(cores: &[usize]) -> String {
    cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn physical_cores_come_first() {
        assert_eq!(spread(&[0, 1, 2, 3], |core| (core / 2).to_string()), [0, 2, 1, 3]);
        assert_eq!(spread(&[0, 1, 2, 3], |core| (core % 2).to_string()), [0, 1, 2, 3]);
    }

    #[test]
    fn ranks_share_when_there_are_too_few() {
        assert_eq!(of_rank(&[4, 5], 0, 1), [4]);
        assert_eq!(of_rank(&[4, 5], 1, 1), [5]);
        assert_eq!(of_rank(&[4, 5], 2, 1), [4]);
        assert_eq!(of_rank(&[0, 1, 2, 3], 1, 2), [2, 3]);
        assert_eq!(except(&[0, 1, 2], &[1]), [0, 2]);
        assert_eq!(except(&[0], &[0]), [0]);
    }

    #[test]
    fn cores_that_may_not_be_used_are_refused() {
        assert!(choose(&[100_000]).is_err_and(|error| error.contains("may not be used")));
        assert!(!choose(&[]).expect("some cores").is_empty());
    }
}
