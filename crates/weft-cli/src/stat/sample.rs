//! Rates and states of processes: the differences between two looks.
//!
//! Place in the data flow: two results of `find.rs` → here → the tables and JSON of `weft top`. Rates are differences
//! between two publications, divided by the time between them. A computing process publishes nothing, so its rates are
//! 0 and its age grows.

use std::collections::BTreeMap;
use std::io;
use std::ops::AddAssign;
use std::time::Duration;

use serde::Serialize;
use serde_json::Value;
use weft_observe::layout::{Endpoint, Group, Peer};

use super::find::{self, Process, Published};
use super::names::Names;

/// The state word of a link that is up.
pub(super) const UP: u64 = 2;
/// Age from which a process is said to compute. A process that polls publishes ten times a second.
const QUIET: Duration = Duration::from_secs(1);

/// All processes at one time.
#[derive(Clone, Debug, Default)]
pub(super) struct Look(pub(super) BTreeMap<u32, Process>);

impl Look {
    /// Reads the published counters.
    pub(super) fn now() -> io::Result<Self> {
        Ok(Self(find::all()?.into_iter().map(|process| (process.pid, process)).collect()))
    }

    /// The names of peers.
    pub(super) fn names(&self) -> Names {
        Names::of(self.0.values())
    }
}

/// The identity of an endpoint. Many may be opened within one tick of the clock, so the time alone does not identify
/// them.
pub(super) type EndpointId = [u64; 5];

pub(super) fn id_of(published: &Published) -> EndpointId {
    let Endpoint { opened_ns, ip_high, ip_low, port, id, .. } = published.endpoint;
    [opened_ns, ip_high, ip_low, port, id]
}

/// Traffic per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Rates {
    pub(super) messages_sent: f64,
    pub(super) messages_received: f64,
    /// Remote reads, writes and atomics, in both directions.
    pub(super) accesses: f64,
    /// Bytes of messages and accesses, in both directions.
    pub(super) bytes: f64,
    /// Short messages that had to take the rendezvous, and attempts that found no room.
    pub(super) stalls: f64,
}

impl Rates {
    /// The rates of a peer between two publications.
    fn between(before: &Peer, after: &Peer, seconds: f64) -> Self {
        // Counts stay far below 2⁵³.
        #[allow(clippy::cast_precision_loss)]
        let rate = |count: fn(&Peer) -> u64| count(after).saturating_sub(count(before)) as f64 / seconds;
        Self {
            messages_sent: rate(|peer| peer.messages_sent),
            messages_received: rate(|peer| peer.messages_received),
            accesses: rate(|peer| peer.accesses_sent) + rate(|peer| peer.accesses_received),
            bytes: rate(|peer| peer.bytes_sent)
                + rate(|peer| peer.bytes_received)
                + rate(|peer| peer.access_bytes_sent)
                + rate(|peer| peer.access_bytes_received),
            stalls: rate(|peer| peer.stalls) + rate(|peer| peer.retries),
        }
    }

    /// Messages and accesses in both directions.
    pub(super) fn operations(&self) -> f64 {
        self.messages_sent + self.messages_received + self.accesses
    }
}

impl AddAssign for Rates {
    fn add_assign(&mut self, other: Self) {
        self.messages_sent += other.messages_sent;
        self.messages_received += other.messages_received;
        self.accesses += other.accesses;
        self.bytes += other.bytes;
        self.stalls += other.stalls;
    }
}

/// Traffic and links of one path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Path {
    pub(super) links: u64,
    #[serde(flatten)]
    pub(super) rates: Rates,
}

impl AddAssign for Path {
    fn add_assign(&mut self, other: Self) {
        self.links += other.links;
        self.rates += other.rates;
    }
}

/// The activity of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Activity {
    /// Something was sent or received.
    Active,
    /// It calls weft, and nothing was sent or received.
    Polls,
    /// A thread sleeps in a call.
    Sleeps,
    /// It makes no call.
    #[default]
    Computes,
}

impl Activity {
    /// The word for tables.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Active => "active",
            Self::Polls => "polls",
            Self::Sleeps => "sleeps",
            Self::Computes => "computes",
        }
    }
}

/// A peer for which operations of a process have waited throughout the interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Wait {
    /// The rank, the process id, or the address.
    pub(super) peer: String,
    pub(super) pid: Option<u32>,
    /// Operations that are queued, or sent and not complete.
    pub(super) operations: u64,
}

/// One process.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Row {
    pub(super) pid: u32,
    pub(super) rank: Option<u64>,
    pub(super) size: Option<u64>,
    pub(super) host: String,
    pub(super) job: String,
    pub(super) command: String,
    pub(super) activity: Activity,
    pub(super) endpoints: usize,
    pub(super) shm: Path,
    pub(super) tcp: Path,
    /// Posted receives, and unexpected messages in queues.
    pub(super) posted: u64,
    pub(super) unexpected: u64,
    /// Operations that are queued, or sent and not complete.
    pub(super) waiting: u64,
    pub(super) waits_for: Vec<Wait>,
    /// Collectives under way, one for each group.
    pub(super) collectives: Vec<Value>,
    /// The first of them for which other ranks are awaited, and those ranks: `barrier: 0, 3`.
    #[serde(skip)]
    pub(super) collective: String,
    /// Failed operations so far.
    pub(super) failures: u64,
    /// Peers on this host that are reached by TCP because shared memory failed.
    pub(super) shm_fallbacks: u64,
    /// Age of the oldest publication, in seconds.
    pub(super) age_s: f64,
}

impl Row {
    /// Bytes per second on both paths.
    pub(super) fn bytes(&self) -> f64 {
        self.shm.rates.bytes + self.tcp.rates.bytes
    }

    /// Messages and accesses per second on both paths.
    pub(super) fn operations(&self) -> f64 {
        self.shm.rates.operations() + self.tcp.rates.operations()
    }

    /// Adds the numbers of another process.
    pub(super) fn add(&mut self, other: &Self) {
        self.endpoints += other.endpoints;
        self.shm += other.shm;
        self.tcp += other.tcp;
        self.posted = self.posted.saturating_add(other.posted);
        self.unexpected = self.unexpected.saturating_add(other.unexpected);
        self.waiting = self.waiting.saturating_add(other.waiting);
        self.failures = self.failures.saturating_add(other.failures);
        self.shm_fallbacks = self.shm_fallbacks.saturating_add(other.shm_fallbacks);
        self.age_s = self.age_s.max(other.age_s);
    }
}

/// One peer of an endpoint.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) endpoint: EndpointId,
    /// The number of the peer's row.
    pub(super) number: usize,
    pub(super) peer: Peer,
    pub(super) before: Peer,
    /// Time between the two publications, in seconds; 0 without an earlier one.
    pub(super) seconds: f64,
    pub(super) rates: Rates,
}

impl Link {
    /// Operations that are queued, or sent and not complete.
    pub(super) fn waiting(&self) -> u64 {
        waiting(&self.peer)
    }
}

fn waiting(peer: &Peer) -> u64 {
    peer.waiting.saturating_add(peer.outstanding)
}

/// Whether a peer has a link or any counts. A peer first called under a service name may have continued under its
/// full name, which leaves an empty entry.
pub(super) fn has_counts(peer: &Peer) -> bool {
    peer.state != 0 || peer.words().skip(7).any(|word| word != 0)
}

/// The peers of a process with their rates.
pub(super) fn links(before: Option<&Process>, after: &Process) -> Vec<Link> {
    let mut links = Vec::new();
    for published in &after.endpoints {
        let endpoint = id_of(published);
        let earlier = before.and_then(|before| before.endpoints.iter().find(|other| id_of(other) == endpoint));
        let ns =
            earlier.map_or(0, |earlier| published.endpoint.published_ns.saturating_sub(earlier.endpoint.published_ns));
        let seconds = Duration::from_nanos(ns).as_secs_f64();
        for (number, peer) in published.peers.iter().enumerate().filter(|(_, peer)| has_counts(peer)) {
            let before = earlier.and_then(|earlier| earlier.peers.get(number)).copied().unwrap_or_default();
            let rates = if ns > 0 { Rates::between(&before, peer, seconds) } else { Rates::default() };
            links.push(Link { endpoint, number, peer: *peer, before, seconds, rates });
        }
    }
    links
}

/// The groups of a process with collectives under way.
pub(super) fn groups(process: &Process) -> impl Iterator<Item = (&Published, &Group)> {
    process.endpoints.iter().flat_map(|published| published.groups.iter().map(move |group| (published, group)))
}

/// The figures of one process.
pub(super) fn row(before: Option<&Process>, after: &Process, names: &Names) -> Row {
    let endpoints = || after.endpoints.iter().map(|published| &published.endpoint);
    let sum = |count: fn(&Endpoint) -> u64| endpoints().map(count).fold(0, u64::saturating_add);
    let age = after.endpoints.iter().map(|published| published.age).max().unwrap_or_default();
    let mut row = Row {
        pid: after.pid,
        rank: after.rank,
        size: after.size,
        host: after.host.clone(),
        job: after.job.clone(),
        command: after.command.clone(),
        endpoints: after.endpoints.len(),
        posted: sum(|endpoint| endpoint.posted),
        unexpected: sum(|endpoint| endpoint.unexpected),
        failures: sum(|endpoint| endpoint.failures),
        shm_fallbacks: sum(|endpoint| endpoint.shm_fallbacks),
        age_s: age.as_secs_f64(),
        ..Row::default()
    };
    for link in links(before, after) {
        let up = u64::from(link.peer.state == UP);
        let path = Path { links: up, rates: link.rates };
        let device = link.peer.device_name().or_else(|| link.before.device_name());
        if device.as_deref() == Some("tcp") {
            row.tcp += path
        } else {
            row.shm += path
        }
        row.waiting = row.waiting.saturating_add(link.waiting());
        if link.waiting() > 0 && (before.is_none() || waiting(&link.before) > 0) {
            let pid = names.process(&link.peer).map(|known| known.pid);
            row.waits_for.push(Wait { peer: names.label(&link.peer), pid, operations: link.waiting() });
        }
    }
    for (published, group) in groups(after) {
        row.collectives.push(super::group_json(published, group));
        if row.collective.is_empty() && group.awaited > 0 {
            row.collective = format!("{}: {}", group.operation_name(), super::awaited(group));
        }
    }
    row.waits_for.sort_by_key(|wait| std::cmp::Reverse(wait.operations));
    row.activity = match () {
        () if row.operations() > 0.0 => Activity::Active,
        () if sum(|endpoint| endpoint.sleepers) > 0 => Activity::Sleeps,
        () if age > QUIET => Activity::Computes,
        () => Activity::Polls,
    };
    row
}

/// The figures of all processes.
pub(super) fn rows(before: &Look, after: &Look) -> Vec<Row> {
    let names = after.names();
    after.0.values().map(|process| row(before.0.get(&process.pid), process, &names)).collect()
}
