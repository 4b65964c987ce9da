//! The processors of the ranks, and whether ranks share them.
//!
//! Place in the data flow: `MPI_Init` exchanges the places of all ranks before each rank opens its endpoint. Ranks that
//! share processors make progress in other ways than ranks that have their own.

use std::hash::{Hash, Hasher};
use std::ops::Range;

use rustc_hash::FxHasher;
use weft_client::Progress;

/// The size of a place.
pub(crate) const PLACE_BYTES: usize = 120;
/// The random name of the running system.
const HOST: Range<usize> = 0..36;
/// The number of processors on which the rank may run.
const COUNT: Range<usize> = 36..40;
/// A hash of the set of these processors.
const SET: Range<usize> = 40..48;
/// The name of the host, for messages.
const NAME: Range<usize> = 48..112;
/// The number of the node.
const NODE: Range<usize> = 112..PLACE_BYTES;

/// Bytes from which an operation inside a host takes longer than the wake-up of the provider's thread.
const LONG_BYTES: usize = 128 << 10;

/// The place of this process.
pub(crate) fn own() -> [u8; PLACE_BYTES] {
    let mut place = [0; PLACE_BYTES];
    let host = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let len = host.len().min(HOST.len());
    place[HOST][..len].copy_from_slice(&host[..len]);
    let count = std::thread::available_parallelism().map_or(1, usize::from);
    place[COUNT].copy_from_slice(&u32::try_from(count).unwrap_or(u32::MAX).to_le_bytes());
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mut hasher = FxHasher::default();
    status.lines().find(|line| line.starts_with("Cpus_allowed_list:")).hash(&mut hasher);
    place[SET].copy_from_slice(&hasher.finish().to_le_bytes());
    let name = std::fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
    let name = name.trim_ascii();
    let len = name.len().min(NAME.len());
    place[NAME][..len].copy_from_slice(&name[..len]);
    place[NODE].copy_from_slice(&own_node(&host).unwrap_or(0).to_le_bytes());
    place
}

/// The number of this process's node. weft counts each network namespace as a host of its own.
fn own_node(host: &[u8]) -> Option<u64> {
    let namespace = std::fs::read_link("/proc/self/ns/net").ok()?;
    let mut hasher = FxHasher::default();
    (host, namespace).hash(&mut hasher);
    (!host.is_empty()).then(|| hasher.finish())
}

/// The number of the node of a place, whose processes can share memory; 0 if it is unknown.
pub(crate) fn node(place: &[u8]) -> u64 {
    place[NODE].try_into().map_or(0, u64::from_le_bytes)
}

/// The name of the host of a place.
pub(crate) fn host_name(place: &[u8]) -> String {
    let name = place[NAME].split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).into_owned()
}

/// The ranks around one rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Surroundings {
    ranks: usize,
    /// Ranks on the host of this one, with this one.
    beside: usize,
    /// Those of them that may run on the same processors.
    sharing: usize,
    /// Number of these processors.
    processors: usize,
    /// Whether the user names processors for the provider's thread.
    placed: bool,
}

impl Surroundings {
    /// The surroundings of a rank, from the places of all ranks.
    pub(crate) fn of(rank: usize, places: &[&[u8]]) -> Self {
        let own = places[rank];
        let count =
            |range: Range<usize>| places.iter().filter(|place| place[range.clone()] == own[range.clone()]).count();
        let mut bytes = [0; 4];
        bytes.copy_from_slice(&own[COUNT]);
        Self {
            ranks: places.len(),
            beside: count(HOST),
            sharing: count(HOST.start..SET.end),
            processors: u32::from_le_bytes(bytes) as usize,
            placed: std::env::var_os("FI_WEFT_PROGRESS_AFFINITY").is_some_and(|value| !value.is_empty()),
        }
    }

    /// Whether there are more ranks than processors for them.
    pub(crate) fn is_crowded(self) -> bool {
        self.sharing > self.processors
    }

    /// Whether this rank does without the provider's thread. A thread that competes with several ranks for a processor
    /// delays them, unless the user gives it a place.
    pub(crate) fn lacks_thread(self) -> bool {
        self.is_crowded() && !self.placed
    }

    /// The progress to request.
    pub(crate) fn progress(self) -> Progress {
        if self.lacks_thread() { Progress::Manual } else { Progress::Auto }
    }

    /// Bytes from which the provider's thread is worth its wake-up for a non-blocking operation.
    ///
    /// Inside a host the processor moves the data. A thread that shares it with the program only adds its switches.
    pub(crate) fn hand_over_bytes(self) -> usize {
        if self.lacks_thread() {
            return usize::MAX;
        }
        if self.beside < self.ranks {
            return 0;
        }
        // SAFETY: the call has no preconditions.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let has_spare = self.processors > 1 && usize::try_from(online).is_ok_and(|online| online > self.beside);
        if has_spare || self.placed { LONG_BYTES } else { usize::MAX }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(host: u8, count: u8, set: u8) -> [u8; PLACE_BYTES] {
        let mut place = [host; PLACE_BYTES];
        place[COUNT].copy_from_slice(&[count, 0, 0, 0]);
        place[SET].fill(set);
        place
    }

    #[test]
    fn ranks_with_processors_of_their_own_are_not_crowded() {
        // Two ranks share two processors, three share two, and two of another host have one each.
        let places = [(1, 2, 1), (1, 2, 1), (1, 2, 2), (1, 2, 2), (1, 2, 2), (2, 1, 1), (2, 1, 2)];
        let places = places.map(|(host, count, set)| place(host, count, set));
        let places: Vec<&[u8]> = places.iter().map(|place| &place[..]).collect();
        let crowded: Vec<bool> = (0..7).map(|rank| Surroundings::of(rank, &places).is_crowded()).collect();
        assert_eq!(crowded, [false, false, true, true, true, false, false]);
        assert_eq!(
            Surroundings::of(0, &places),
            Surroundings { ranks: 7, beside: 5, sharing: 2, processors: 2, placed: false }
        );
        assert_eq!(Surroundings::of(0, &places).hand_over_bytes(), 0, "other hosts");
        assert_eq!(Surroundings::of(3, &places).hand_over_bytes(), usize::MAX);
    }

    #[test]
    fn a_thread_with_a_place_of_its_own_makes_progress_for_crowded_ranks() {
        let crowded = Surroundings { ranks: 4, beside: 4, sharing: 4, processors: 2, placed: false };
        assert_eq!((crowded.progress(), crowded.hand_over_bytes()), (Progress::Manual, usize::MAX));
        let placed = Surroundings { placed: true, ..crowded };
        assert_eq!((placed.progress(), placed.hand_over_bytes()), (Progress::Auto, LONG_BYTES));
    }

    #[test]
    fn this_process_is_in_its_own_place() {
        let own = own();
        assert!(!Surroundings::of(1, &[&place(9, 9, 9), &own]).is_crowded());
        assert_eq!(Surroundings::of(0, &[&own, &super::own()]).sharing, 2);
        assert!(!host_name(&own).is_empty());
        assert!(node(&own) != 0 && node(&own) == node(&super::own()));
    }
}
