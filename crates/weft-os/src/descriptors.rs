//! The limit of open file descriptors, which many peers of one host may reach.
//!
//! Place in the data flow: each descriptor that a peer costs is [`ForkClosedFd`](crate::ForkClosedFd), whose
//! constructor calls `with_room`. When the numbers come near the soft limit of the process, that limit is raised to the
//! hard one, and descriptors of weft get numbers above the first soft limit.
//!
//! A client may use select(2), which cannot name descriptors from 1024 on. That is why the usual soft limit is 1024.
//! The client keeps the numbers below its limit: the system assigns the lowest free one, and weft's own are elsewhere.
//! A process with few peers keeps its limit.
//!
//! Sources: getrlimit(2), fcntl(2) F_DUPFD_CLOEXEC, select(2).

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The limit is never raised above this number, which is the usual hard limit of the system.
const MOST: u64 = 1 << 20;
/// The limit may not be raised.
const FIXED: u64 = 0;
/// The limit may be raised, and was not.
const RAISABLE: u64 = 1;

/// The limit that the process had before it was raised, or one of the values above.
static FIRST_LIMIT: AtomicU64 = AtomicU64::new(FIXED);

/// Allows weft to raise the limit of this process. Before that, nothing here has an effect.
pub fn allow_raising() {
    let _ = FIRST_LIMIT.compare_exchange(FIXED, RAISABLE, Ordering::Relaxed, Ordering::Relaxed);
}

/// The number of descriptors that this process may have, if the limit is raised as far as weft may do so. `None`: any.
#[must_use]
pub fn most() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if FIRST_LIMIT.load(Ordering::Relaxed) == FIXED { current } else { reachable(current, maximum) }
}

/// The limit to which `current` can be raised.
fn reachable(current: Option<u64>, maximum: Option<u64>) -> Option<u64> {
    current.map(|current| current.max(maximum.unwrap_or(MOST).min(MOST)))
}

/// Raises the limit if the process has used a large part of it. Callers are about to open a few descriptors.
pub fn make_room() {
    let made = || eventfd(0, EventfdFlags::CLOEXEC);
    match made() {
        Ok(fd) => drop(place(fd)),
        Err(Errno::MFILE) => _ = raise(),
        Err(_) => {}
    }
}

/// Opens a descriptor by `make`. Raises the limit if that is necessary.
pub(crate) fn with_room(mut make: impl FnMut() -> Result<OwnedFd, Errno>) -> Result<OwnedFd, Errno> {
    match make() {
        Ok(fd) => Ok(place(fd)),
        Err(Errno::MFILE) if raise().is_some() => make().map(place),
        Err(errno) => Err(errno),
    }
}

/// Moves a descriptor above the client's numbers, if these are nearly exhausted.
fn place(fd: OwnedFd) -> OwnedFd {
    let state = FIRST_LIMIT.load(Ordering::Relaxed);
    if state == FIXED {
        return fd;
    }
    let number = u64::try_from(fd.as_raw_fd()).unwrap_or(0);
    let is_high = |limit: u64| number >= limit - limit / 4;
    let first = if state != RAISABLE {
        Some(state)
    } else if getrlimit(Resource::Nofile).current.is_some_and(is_high) {
        raise()
    } else {
        None
    };
    let Some(first) = first.filter(|&first| is_high(first) && number < first) else { return fd };
    let Ok(from) = i32::try_from(first) else { return fd };
    fcntl_dupfd_cloexec(&fd, from).unwrap_or(fd)
}

/// Raises the limit. Returns the first one, if the limit is higher now than it was.
fn raise() -> Option<u64> {
    if FIRST_LIMIT.load(Ordering::Relaxed) != RAISABLE {
        return None;
    }
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let (current, wanted) = (current?, reachable(current, maximum)?);
    if wanted <= current || setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_err() {
        return None;
    }
    log::info!("the limit of file descriptors is raised from {current} to {wanted}: this process has many peers");
    FIRST_LIMIT.store(current.max(RAISABLE + 1), Ordering::Relaxed);
    Some(current)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The test changes the limit of the process, so it is one test.
    #[test]
    fn a_limit_is_raised_when_it_is_needed() {
        let before = getrlimit(Resource::Nofile);
        let open = || with_room(|| eventfd(0, EventfdFlags::CLOEXEC));
        let next = u64::try_from(open().unwrap().as_raw_fd()).unwrap();
        // A quarter of this is 40, so the numbers from 120 and more are the last ones.
        let few = (next + 40).max(160);
        setrlimit(Resource::Nofile, Rlimit { current: Some(few), ..before }).unwrap();
        let mut held: Vec<OwnedFd> = Vec::new();
        held.extend(std::iter::from_fn(|| open().ok()).take(1000));
        assert!(held.len() < 200 && most() == Some(few), "nothing is raised without permission");
        allow_raising();
        assert_eq!(most(), reachable(before.current, before.maximum));
        held.truncate(10);
        held.extend((0..400).map(|_| open().unwrap()));
        let limit = i32::try_from(few).unwrap();
        let low = held.iter().filter(|fd| fd.as_raw_fd() < limit).count();
        assert!(low < held.len() / 2 && held.iter().any(|fd| fd.as_raw_fd() >= limit));
        assert!(getrlimit(Resource::Nofile).current > Some(few));
        // The client gets a number that select(2) can name.
        let client = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        assert!(client.as_raw_fd() < limit, "{client:?}");
        drop(held);
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
