//! Processes with open endpoints, and the counters that the endpoints publish.
//!
//! Place in the data flow: `/proc/PID/fd` → memfds of `weft_observe::Page` → here → `weft stat`, `weft top`.
//! The kernel refuses the opening of the file to users who may not inspect the process.
//!
//! Trust: none. A descriptor of that name may lead anywhere. It is opened without blocking and must be a regular
//! file, and a bounded number of bytes is read from it.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FileType, Mode, OFlags};
use rustix::time::{ClockId, clock_gettime};
use weft_observe::layout::{self, Endpoint, Group, Head, Peer, Wait};

use super::job;
use crate::foreign::shown;

/// Number of attempts to read a block that is being written.
const TRIES: usize = 5;
/// Most endpoints of one process that are shown.
const ENDPOINTS_MOST: usize = 1024;

/// A process.
#[derive(Clone, Debug, Default)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) command: String,
    /// The version of weft that it uses.
    pub(crate) version: String,
    /// The rank and the number of ranks, if the launcher told the process.
    pub(crate) rank: Option<u64>,
    pub(crate) size: Option<u64>,
    /// The name of its host, which may be a container on this machine. Empty: an older weft, which does not tell it.
    pub(crate) host: String,
    /// The job, as [`job::of`] names it.
    pub(crate) job: String,
    /// In the order in which they were opened.
    pub(crate) endpoints: Vec<Published>,
}

/// The published counters of one endpoint.
#[derive(Clone, Debug, Default)]
pub(crate) struct Published {
    pub(crate) endpoint: Endpoint,
    /// Time since the publication.
    pub(crate) age: Duration,
    pub(crate) peers: Vec<Peer>,
    /// Groups with collectives under way.
    pub(crate) groups: Vec<Group>,
    /// Receives, messages and operations that wait.
    pub(crate) waits: Vec<Wait>,
}

impl Published {
    /// Time since the first publication that showed a group's operation.
    pub(crate) fn age_of(&self, group: &Group) -> Duration {
        self.age_since(group.since_ns)
    }

    /// Time since an earlier publication.
    pub(crate) fn age_since(&self, since_ns: u64) -> Duration {
        self.age + Duration::from_nanos(self.endpoint.published_ns.saturating_sub(since_ns))
    }
}

/// The reason why a process is not shown.
#[derive(Debug)]
pub(crate) enum Missing {
    /// The process does not exist.
    Gone(u32),
    /// The kernel refuses access to the process.
    Refused(u32, io::Error),
    /// The process publishes nothing.
    Silent(u32),
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Gone(pid) => write!(f, "there is no process {pid} (any more)"),
            Self::Refused(pid, error) => write!(
                f,
                "process {pid} may not be inspected: {error}; it belongs to another user or has changed its credentials: run as root"
            ),
            Self::Silent(pid) => write!(
                f,
                "process {pid} has no open weft endpoint that can be seen: it uses another provider, FI_WEFT_STATS=no, or another version of weft"
            ),
        }
    }
}

impl From<Missing> for io::Error {
    fn from(missing: Missing) -> Self {
        Self::other(missing.to_string())
    }
}

/// Reads the published counters of a process's endpoints.
pub(crate) fn process(pid: u32) -> Result<Process, Missing> {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let status = text(&dir.join("status")).map_err(|_| Missing::Gone(pid))?;
    let own_pid = own_pid(&status).unwrap_or(pid);
    let refused = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => Missing::Gone(pid),
        _ if !dir.exists() => Missing::Gone(pid),
        _ => Missing::Refused(pid, error),
    };
    let mut known = None;
    let mut endpoints = Vec::new();
    for entry in fs::read_dir(dir.join("fd")).map_err(refused)?.flatten() {
        let link = entry.path();
        if endpoints.len() == ENDPOINTS_MOST || !fs::read_link(&link).is_ok_and(|to| to == Path::new(layout::LINK)) {
            continue;
        }
        let Some((head, published)) = open(&link).and_then(|file| read(&file)) else { continue };
        // A forked child has descriptors of its parent's endpoints, which are not its own.
        if head.pid == u64::from(own_pid) {
            known = Some(head);
            endpoints.push(published);
        }
    }
    let Some(Head { version, rank, size, host, .. }) = known else { return Err(Missing::Silent(pid)) };
    endpoints.sort_by_key(|published| published.endpoint.opened_ns);
    let (version, host) = (shown(&version), shown(&host));
    Ok(Process { pid, command: command(&dir), version, rank, size, host, job: job::of(pid), endpoints })
}

/// All processes of this user that have open endpoints. Root sees the processes of all users.
pub(crate) fn all() -> io::Result<Vec<Process>> {
    let user = rustix::process::geteuid().as_raw();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        if entry.metadata().is_ok_and(|meta| [meta.uid(), 0].contains(&user)) {
            found.extend(process(pid));
        }
    }
    found.sort_by_key(|process| process.pid);
    Ok(found)
}

/// The state of a process, as /proc names it: `R`, `S`, `T` (stopped), `Z`. `None`: it has ended.
pub(super) fn process_state(pid: u32) -> Option<char> {
    let stat = text(Path::new(&format!("/proc/{pid}/stat"))).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// The id of a process in its own namespace.
fn own_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Reads a file as text. Names of processes may be any bytes.
pub(super) fn text(path: &Path) -> io::Result<String> {
    fs::read(path).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// The command line of a process, or its name if the command line is empty.
fn command(dir: &Path) -> String {
    let line = text(&dir.join("cmdline")).unwrap_or_default().replace('\0', " ");
    let line = line.trim();
    let name = || text(&dir.join("comm")).unwrap_or_default().trim().to_owned();
    let text = if line.is_empty() { name() } else { line.to_owned() };
    shown(&text)
}

fn open(link: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = rustix::fs::open(link, flags, Mode::empty()).ok()?;
    let kind = FileType::from_raw_mode(rustix::fs::fstat(&file).ok()?.st_mode);
    (kind == FileType::RegularFile).then_some(file)
}

fn read(file: &OwnedFd) -> Option<(Head, Published)> {
    let mut head = [0; layout::HEAD_BYTES];
    rustix::io::pread(file, &mut head[..], 0).ok()?;
    let head = Head::parse(&head)?;
    let endpoint = Endpoint::from_words(&block(file, layout::ENDPOINT_AT, head.endpoint_words)?);
    let count = usize::try_from(endpoint.peers).unwrap_or(usize::MAX).min(layout::MAX_PEERS);
    let rows = (0..count).map_while(|number| {
        // The file ends before the claimed number of rows.
        let at = layout::PEERS_AT + number * layout::PEER_BYTES;
        let there = rustix::io::pread(file, &mut [0; 1][..], at as u64).is_ok_and(|bytes| bytes > 0);
        there.then(|| block(file, at, head.peer_words).map(|words| Peer::from_words(&words)))
    });
    let mut rows: Vec<Option<Peer>> = rows.collect();
    // Unreadable rows at the end are dropped. Other unreadable rows keep their places, because two looks compare
    // rows by their numbers.
    while rows.pop_if(|row| row.is_none()).is_some() {}
    let peers = rows.into_iter().map(Option::unwrap_or_default).collect();
    let groups = (0..if head.group_words == 0 { 0 } else { layout::MAX_GROUPS })
        .filter_map(|number| block(file, layout::GROUPS_AT + number * layout::GROUP_BYTES, head.group_words))
        .map(|words| Group::from_words(&words))
        .filter(|group| group.members > 0)
        .collect();
    let waits = waits(file, &endpoint);
    let age = Duration::from_nanos(now_ns().saturating_sub(endpoint.published_ns));
    Some((head, Published { endpoint, age, peers, groups, waits }))
}

/// The rows of waits that an endpoint claims.
fn waits(file: &OwnedFd, endpoint: &Endpoint) -> Vec<Wait> {
    let most = |claimed: u64, most: usize| usize::try_from(claimed).unwrap_or(usize::MAX).min(most);
    let words = most(endpoint.wait_words, layout::WAIT_BYTES / 8 - 2);
    let rows =
        (0..most(endpoint.waits, layout::MAX_WAITS)).map(|number| layout::WAITS_AT + number * layout::WAIT_BYTES);
    rows.filter_map(|at| block(file, at, words)).map(|words| Wait::from_words(&words)).collect()
}

fn block(file: &OwnedFd, at: usize, words: usize) -> Option<Vec<u64>> {
    let mut bytes = vec![0; (words + 2) * 8];
    (0..TRIES).find_map(|_| {
        rustix::io::pread(file, &mut bytes[..], at as u64).ok()?;
        layout::take(&bytes, words)
    })
}

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn file(content: &[u8]) -> OwnedFd {
        let file = rustix::fs::memfd_create(c"weft-stats", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::pwrite(&file, content, 0).unwrap();
        file
    }

    #[test]
    fn process_ids_are_read_per_namespace() {
        assert_eq!(own_pid("Name:\tx\nNSpid:\t4711\t12\nThreads:\t1\n"), Some(12));
        assert_eq!(own_pid("Name:\tx\n"), None);
    }

    #[test]
    fn an_empty_file_is_no_endpoint() {
        assert!(read(&file(b"")).is_none());
        assert!(read(&file(&Head::ours(1).bytes())).is_none());
        let wild: Vec<u8> = (0..4096_u32).map(|n| n.to_le_bytes()[0]).collect();
        assert!(read(&file(&wild)).is_none());
    }

    #[test]
    fn a_claimed_peer_count_is_bounded_by_the_file() {
        let mut content = Head::ours(1).bytes().to_vec();
        let endpoint = Endpoint { peers: u64::MAX, ..Endpoint::default() };
        let words = std::iter::once(1).chain(endpoint.words()).chain([1]);
        content.extend(words.flat_map(u64::to_le_bytes));
        content.resize(layout::PEERS_AT + 3 * layout::PEER_BYTES, 0);
        let (_, published) = read(&file(&content)).unwrap();
        assert_eq!(published.endpoint.peers, u64::MAX);
        assert!(published.peers.is_empty());
    }

    #[test]
    fn process_names_may_be_any_bytes() {
        // /proc has a directory for the thread, which looks like that of a process.
        let named = || {
            rustix::thread::set_name(c"\xff\xfe weft").unwrap();
            let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
            let found = process(thread);
            assert!(matches!(found, Err(Missing::Silent(_))), "{found:?}");
            assert_eq!(text(Path::new(&format!("/proc/{thread}/comm"))).unwrap(), "\u{fffd}\u{fffd} weft\n");
        };
        std::thread::spawn(named).join().unwrap();
    }

    #[test]
    fn a_process_without_endpoints_differs_from_a_missing_process() {
        assert!(matches!(process(std::process::id()), Err(Missing::Silent(_))));
        assert!(matches!(process(u32::MAX), Err(Missing::Gone(_))));
    }
}
