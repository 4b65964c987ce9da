//! Published counters: each endpoint writes its counters into a memfd for `weft stat` and `weft top`.
//!
//! Place in the data flow: beside it. Every [`ROUNDS_PER_CHECK`] rounds of progress, and before a thread sleeps,
//! an endpoint reads the coarse clock. When [`INTERVAL`] has passed, or [`BEFORE_SLEEP`] before a sleep, it
//! writes the counters of its engine ([`weft_engine::stats`]) and its devices. A process that makes no call
//! therefore publishes nothing, and its last activity may be missing. The published block contains its time.
//!
//! A reader opens the memfd through `/proc/PID/fd`. The kernel allows that to processes that may inspect this
//! one: those of the same user and of root. No file has a name in a file system, and no thread answers
//! requests. Readers cannot disturb the process, because it never reads the memfd. The memfd is written by
//! pwrite(2) and not mapped, so a lack of memory causes no signal. The cost is two system calls in each
//! interval.
//!
//! Errors: an endpoint that cannot publish works like any other.

use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{MemfdFlags, Mode};
use rustix::process::getpid;
use rustix::time::{ClockId, clock_gettime};
use weft_engine::Engine;
use weft_engine::collective::Operation;
use weft_engine::name::EpName;
use weft_engine::nic::LinkId;
use weft_engine::stats::{GroupReport, LinkStatus, PeerReport, Report};
use weft_engine::waits::{WaitKind, WaitReport};
use weft_nic::{Device, Stats};
use weft_os::memfile;

use crate::layout::{self, Endpoint, Group, Head, Peer, Wait};

/// Rounds of progress between two reads of the clock.
pub const ROUNDS_PER_CHECK: u64 = 256;
/// The interval of publication by threads that make progress.
pub const INTERVAL: Duration = Duration::from_millis(100);
/// The interval of publication by threads that are about to sleep, possibly for a long time.
pub const BEFORE_SLEEP: Duration = Duration::from_millis(10);
/// Peers that are published at a time. An endpoint with more peers publishes them in turns.
const PEERS_AT_A_TIME: usize = 64;
/// Rows that are written by one system call.
const ROWS: usize = 16;

/// The published counters of an endpoint.
pub struct Page {
    file: OwnedFd,
    /// The process that made the file. A forked child has the file, too, and must not write to it.
    owner: rustix::process::Pid,
    opened_ns: u64,
    published_ns: u64,
    round: u64,
    /// The first peer of the next turn.
    next_peer: usize,
    /// The published collectives, and those of the publication before.
    groups: Box<[Group]>,
    groups_before: Box<[Group]>,
    /// Buffers for the written bytes. They are not on the client's stack, which may be small. They are
    /// allocated once: a signal handler may end the program during a write, and exit handlers need the heap.
    rows: Box<[[u8; layout::PEER_BYTES]]>,
    block: Box<[u8]>,
    reports: Box<[GroupReport]>,
    waits: Waits,
}

/// The published waits, and those of the publication before, each with the key of its report.
struct Waits {
    now: Vec<(Wait, u64)>,
    before: Vec<(Wait, u64)>,
    /// The rows as bytes.
    bytes: Box<[u8]>,
}

impl Waits {
    fn new() -> Self {
        let rows = || Vec::with_capacity(layout::MAX_WAITS);
        Self { now: rows(), before: rows(), bytes: vec![0; layout::MAX_WAITS * layout::WAIT_BYTES].into() }
    }

    /// Takes the waits of an endpoint. Returns whether they differ from those before.
    fn take<D: Device>(&mut self, engine: &Engine<D>, now_ns: u64) -> bool {
        std::mem::swap(&mut self.now, &mut self.before);
        self.now.clear();
        let Self { now, before, .. } = self;
        engine.wait_reports(layout::WAITS_OF_A_KIND, |report| {
            let mut wait = wait(&report, now_ns);
            let (.., known) = report.parts();
            let is_same = |(old, key): &&(Wait, u64)| *key == known && old.kind == wait.kind;
            wait.since_ns = before.iter().find(is_same).map_or(now_ns, |(old, _)| old.since_ns);
            now.push((wait, known));
        });
        now != before
    }

    /// The rows as bytes.
    fn bytes(&mut self, round: u64) -> &[u8] {
        let places = self.bytes.chunks_exact_mut(layout::WAIT_BYTES);
        places.zip(&self.now).for_each(|(place, (wait, _))| layout::block(place, round, wait.words()));
        &self.bytes[..self.now.len() * layout::WAIT_BYTES]
    }
}

/// The counters that the engine does not have.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Rounds of progress.
    pub rounds: u64,
    /// Threads that sleep.
    pub sleepers: u64,
    /// Waits at locks.
    pub lock_waits: u64,
    /// Failed operations.
    pub failures: u64,
    /// Operations that were refused with -FI_EAGAIN.
    pub again: u64,
}

impl Page {
    /// Makes the memfd and writes its head. Rank and number of ranks are those that the launcher told the process,
    /// unless the caller knows them. `None`: the system refused it.
    #[must_use]
    pub fn new(known: Option<(u64, u64)>) -> Option<Self> {
        let file = memfile::create(c"weft-stats", MemfdFlags::empty())
            .inspect_err(|error| log::info!("the counters are not published for `weft stat`: {error}"))
            .ok()?;
        // A process of another user that inherits or receives the descriptor cannot reopen the file. A memfd
        // permits this change by its owner.
        let _ = rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR);
        let (owner, opened_ns) = (getpid(), now_ns());
        let this = Self {
            file,
            owner,
            opened_ns,
            published_ns: 0,
            round: 0,
            next_peer: 0,
            groups: vec![Group::default(); layout::MAX_GROUPS].into(),
            groups_before: vec![Group::default(); layout::MAX_GROUPS].into(),
            rows: vec![[0; layout::PEER_BYTES]; ROWS].into(),
            block: vec![0; layout::PEERS_AT - layout::ENDPOINT_AT].into(),
            reports: vec![GroupReport::default(); layout::MAX_GROUPS].into(),
            waits: Waits::new(),
        };
        let mut head = Head::ours(owner.as_raw_nonzero().get().unsigned_abs().into());
        if let Some((rank, size)) = known {
            (head.rank, head.size) = (Some(rank), Some(size));
        }
        this.write(&head.bytes(), 0).then_some(this)
    }

    /// Publishes if `interval` has passed since the last time.
    pub fn publish_if_due<D: Device>(
        &mut self,
        engine: &mut Engine<D>,
        interval: Duration,
        now_ns: u64,
        counters: impl FnOnce() -> Counters,
    ) {
        let since = Duration::from_nanos(now_ns.saturating_sub(self.published_ns));
        if since >= interval && getpid() == self.owner {
            self.published_ns = now_ns;
            self.publish(engine, &counters(), now_ns);
        }
    }

    fn publish<D: Device>(&mut self, engine: &mut Engine<D>, counters: &Counters, now_ns: u64) {
        self.round += 1;
        let report = engine.report();
        let peers = usize::try_from(report.peers).unwrap_or(usize::MAX).min(layout::MAX_PEERS);
        if self.next_peer >= peers {
            self.next_peer = 0;
        }
        let first = self.next_peer;
        self.next_peer = peers.min(first + PEERS_AT_A_TIME);
        for first in (first..self.next_peer).step_by(ROWS) {
            let numbers = first..self.next_peer.min(first + ROWS);
            let len = numbers.len();
            for (row, number) in self.rows.iter_mut().zip(numbers) {
                match engine.peer_report(number) {
                    Some(report) => {
                        layout::block(row, self.round, peer(&report, |link| engine.nic().device_of(link)).words());
                    }
                    None => row.fill(0),
                }
            }
            if !self.write(self.rows[..len].as_flattened(), layout::PEERS_AT + first * layout::PEER_BYTES) {
                return;
            }
        }
        let mut endpoint = endpoint(&engine.name(), &report, counters, &engine.nic().stats());
        self.reports.fill(GroupReport::default());
        (endpoint.busy_groups, endpoint.collectives) = engine.group_reports(&mut self.reports);
        std::mem::swap(&mut self.groups, &mut self.groups_before);
        let places = self.block[layout::GROUPS_AT - layout::ENDPOINT_AT..].chunks_exact_mut(layout::GROUP_BYTES);
        for ((place, published), report) in places.zip(&mut self.groups).zip(&self.reports) {
            let mut group = group(report, now_ns);
            let is_same = |old: &&Group| old.members > 0 && group_key(old) == group_key(&group);
            group.since_ns = self.groups_before.iter().find(is_same).map_or(now_ns, |old| old.since_ns);
            layout::block(place, self.round, group.words());
            *published = group;
        }
        if self.waits.take(engine, now_ns) {
            let written = write(&self.file, self.waits.bytes(self.round), layout::WAITS_AT);
            if !written {
                self.waits.now.clear();
            }
        }
        (endpoint.waits, endpoint.wait_words) = (self.waits.now.len() as u64, Wait::FIELDS.len() as u64);
        (endpoint.published_ns, endpoint.opened_ns) = (now_ns, self.opened_ns);
        layout::block(&mut self.block, self.round, endpoint.words());
        self.write(&self.block, layout::ENDPOINT_AT);
    }

    /// Writes bytes at an offset, and returns whether all were written.
    fn write(&self, bytes: &[u8], at: usize) -> bool {
        write(&self.file, bytes, at)
    }
}

/// Writes bytes at an offset of a file, and returns whether all were written.
fn write(file: &OwnedFd, bytes: &[u8], at: usize) -> bool {
    let end = (at + bytes.len()) as u64;
    let written = memfile::check_size_limit(end).and_then(|()| rustix::io::pwrite(file, bytes, at as u64));
    written == Ok(bytes.len())
}

fn name(name: &EpName) -> [u64; 4] {
    let socket = name.socket();
    let ip = match socket.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let [high, low] = halves(ip.to_bits());
    let id = if name.is_full() { halves(u128::from_be_bytes(name.ep_id()))[0] } else { 0 };
    [high, low, socket.port().into(), id]
}

/// The words of an endpoint's block, except for the times.
fn endpoint(of: &EpName, report: &Report, counters: &Counters, stats: &Stats) -> Endpoint {
    let [ip_high, ip_low, port, id] = name(of);
    let mut endpoint = Endpoint {
        ip_high,
        ip_low,
        port,
        id,
        rounds: counters.rounds,
        sleepers: counters.sleepers,
        peers: report.peers,
        operations: report.operations,
        posted: report.posted,
        unexpected: report.unexpected,
        unexpected_most: report.unexpected_most,
        unexpected_total: report.unexpected_total,
        failures: counters.failures,
        again: counters.again,
        datagrams_dropped: report.dropped,
        lock_waits: counters.lock_waits,
        cache_hits: report.cache.hits,
        cache_misses: report.cache.misses,
        cache_bytes: report.cache.bytes,
        ..Endpoint::default()
    };
    endpoint.shm_fallbacks = stats.fallbacks;
    endpoint.mapped_bytes = stats.mapped_bytes;
    if let Some(tcp) = &stats.tcp {
        endpoint.tcp_sends = tcp.send_calls;
        endpoint.tcp_receives = tcp.receive_calls;
        endpoint.tcp_waits = tcp.wait_calls;
        endpoint.tcp_half_open = tcp.half_open as u64;
        endpoint.tcp_refused = tcp.refused;
        endpoint.tcp_breaks = tcp.breaks;
        endpoint.tcp_resumed = tcp.resumed;
        endpoint.tcp_streams = tcp.rails as u64;
        endpoint.tcp_streams_lost = tcp.rails_lost;
        endpoint.tcp_stream_bytes = tcp.rail_bytes;
        endpoint.kernel_barriers = tcp.chained;
    }
    endpoint
}

/// The row of a group whose oldest operation is seen for the first time.
fn group(report: &GroupReport, now_ns: u64) -> Group {
    // The operations' places in the list of names.
    let place = |operation| Operation::ALL.iter().position(|other| *other == operation).unwrap_or(usize::MAX - 1) + 1;
    Group {
        number: report.number.into(),
        rank: report.rank.into(),
        members: report.members.into(),
        under_way: report.under_way,
        operation: report.operation.map_or(0, |operation| place(operation) as u64),
        sequence: report.sequence,
        block_bytes: report.block_bytes,
        awaited: report.awaited.into(),
        awaited_ranks: report.awaited_ranks,
        since_ns: now_ns,
    }
}

/// The row of a wait that is seen for the first time.
fn wait(report: &WaitReport, now_ns: u64) -> Wait {
    let (kind, peer, tag, bytes, _) = report.parts();
    let tagged = tag.is_some();
    let kind = match kind {
        WaitKind::Receive => 1,
        WaitKind::Message => 2,
        WaitKind::Send => 3,
        WaitKind::Write => 4,
        WaitKind::Read => 5,
        WaitKind::Atomic => 6,
    };
    let flag = |is_set: bool, flag: u64| if is_set { flag } else { 0 };
    let [ip_high, ip_low, port, id] = peer.as_ref().map_or([0; 4], name);
    let [tag, ignore] = tag.unwrap_or_default();
    Wait {
        kind,
        flags: flag(tagged, Wait::TAGGED) | flag(peer.is_none(), Wait::ANY),
        ip_high,
        ip_low,
        port,
        id,
        tag,
        ignore,
        bytes,
        since_ns: now_ns,
    }
}

/// The words by which an operation is recognized in the next publication.
const fn group_key(group: &Group) -> (u64, u64, u64) {
    (group.number, group.sequence, group.operation)
}

fn peer(report: &PeerReport, device: impl FnOnce(LinkId) -> Option<&'static str>) -> Peer {
    let [ip_high, ip_low, port, id] = name(&report.name);
    let (state, device) = match report.state {
        LinkStatus::Idle => (0, None),
        LinkStatus::Connecting => (1, None),
        LinkStatus::Up(link) => (2, device(link)),
    };
    Peer {
        ip_high,
        ip_low,
        port,
        id,
        address: report.addr,
        state,
        device: layout::name_word(device.unwrap_or_default()),
        messages_sent: report.sent.messages,
        bytes_sent: report.sent.bytes,
        rendezvous_sent: report.sent.rendezvous,
        messages_received: report.received.messages,
        bytes_received: report.received.bytes,
        rendezvous_received: report.received.rendezvous,
        accesses_sent: report.sent.accesses,
        access_bytes_sent: report.sent.access_bytes,
        accesses_received: report.received.accesses,
        access_bytes_received: report.received.access_bytes,
        stalls: report.stalls,
        retries: report.retries,
        waiting: report.waiting,
        outstanding: report.outstanding,
        links_up: report.links_up,
        links_down: report.links_down,
        calls_failed: report.calls_failed,
        matched_on_arrival: report.matched_on_arrival,
        matched_on_posting: report.matched_on_posting,
        accesses_mapped: report.mapped.accesses,
        regions_mapped: report.mapped.regions,
        regions_shared: report.mapped.shared,
    }
}

/// The upper and the lower half of a word.
#[allow(clippy::cast_possible_truncation)] // The truncated bits are the other half.
const fn halves(word: u128) -> [u64; 2] {
    [(word >> 64) as u64, word as u64]
}

/// The coarse monotonic clock. Its tick is some milliseconds, and it is read without a system call.
#[must_use]
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::MonotonicCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0) * 1_000_000_000 + u64::try_from(now.tv_nsec).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use weft_engine::mrcache::Counts;
    use weft_engine::stats::{Flow, MappedCounts};
    use weft_nic::tcp::TcpStats;

    use super::*;

    /// The address 10.0.0.7:4711, without an endpoint id.
    fn peer_name() -> EpName {
        EpName::service(([10, 0, 0, 7], 4711).into())
    }

    /// Each counter has a unique value.
    #[test]
    fn every_word_of_an_endpoint_comes_from_its_own_counter() {
        let report = Report {
            peers: 1,
            operations: 2,
            posted: 3,
            unexpected: 4,
            unexpected_most: 5,
            unexpected_total: 6,
            dropped: 7,
            cache: Counts { hits: 8, misses: 9, bytes: 10, ..Counts::default() },
        };
        let counters = Counters { rounds: 11, sleepers: 12, lock_waits: 13, failures: 14, again: 15 };
        let tcp = TcpStats {
            receive_calls: 16,
            send_calls: 17,
            wait_calls: 18,
            links_up: 19,
            breaks: 20,
            resumed: 21,
            refused: 22,
            denied: 23,
            links: 24,
            half_open: 25,
            rails_up: 27,
            rails_lost: 28,
            rails: 29,
            rail_bytes: 30,
            chained: 31,
        };
        let found =
            endpoint(&peer_name(), &report, &counters, &Stats { tcp: Some(tcp), fallbacks: 26, mapped_bytes: 32 });
        assert_eq!(found.name(), "10.0.0.7:4711/00000000");
        let Endpoint { ip_high, ip_low, port, id, .. } = found;
        let expected = Endpoint {
            ip_high,
            ip_low,
            port,
            id,
            rounds: 11,
            sleepers: 12,
            peers: 1,
            operations: 2,
            posted: 3,
            unexpected: 4,
            unexpected_most: 5,
            unexpected_total: 6,
            failures: 14,
            again: 15,
            datagrams_dropped: 7,
            lock_waits: 13,
            cache_hits: 8,
            cache_misses: 9,
            cache_bytes: 10,
            shm_fallbacks: 26,
            tcp_sends: 17,
            tcp_receives: 16,
            tcp_waits: 18,
            tcp_half_open: 25,
            tcp_refused: 22,
            tcp_breaks: 20,
            tcp_resumed: 21,
            busy_groups: 0,
            collectives: 0,
            tcp_streams: 29,
            tcp_streams_lost: 28,
            tcp_stream_bytes: 30,
            kernel_barriers: 31,
            mapped_bytes: 32,
            ..Endpoint::default()
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn every_word_of_a_group_comes_from_its_own_figure() {
        let report = GroupReport {
            number: 1,
            rank: 2,
            members: 3,
            under_way: 4,
            operation: Some(Operation::Gather),
            sequence: 5,
            block_bytes: 6,
            awaited: 7,
            awaited_ranks: 8,
        };
        let expected = Group {
            number: 1,
            rank: 2,
            members: 3,
            under_way: 4,
            operation: 9,
            sequence: 5,
            block_bytes: 6,
            awaited: 7,
            awaited_ranks: 8,
            since_ns: 9,
        };
        assert_eq!(group(&report, 9), expected);
        let names = Operation::ALL.map(|operation| {
            group(&GroupReport { operation: Some(operation), ..report }, 0).operation_name().replace('_', "")
        });
        assert_eq!(names, Operation::ALL.map(|operation| format!("{operation:?}").to_lowercase()));
    }

    #[test]
    fn every_word_of_a_wait_comes_from_its_own_figure() {
        let report = WaitReport::new(WaitKind::Send, Some(peer_name()), Some([1, 2]), 3, 4);
        let found = wait(&report, 5);
        let Wait { ip_high, ip_low, port, .. } = found;
        assert_eq!((found.peer().name().as_str(), found.kind_name()), ("10.0.0.7:4711/00000000", "send"));
        let flags = Wait::TAGGED;
        let expected = Wait { kind: 3, flags, ip_high, ip_low, port, id: 0, tag: 1, ignore: 2, bytes: 3, since_ns: 5 };
        assert_eq!(found, expected);
        let any = wait(&WaitReport::new(WaitKind::Receive, None, None, 3, 4), 5);
        assert_eq!((any.flags, any.kind_name(), any.port), (Wait::ANY, "receive", 0));
    }

    #[test]
    fn every_word_of_a_peer_comes_from_its_own_counter() {
        let report = PeerReport {
            name: peer_name(),
            addr: 1,
            state: LinkStatus::Up(LinkId(77)),
            in_memory: true,
            sent: Flow { messages: 3, bytes: 4, rendezvous: 5, accesses: 6, access_bytes: 7 },
            received: Flow { messages: 8, bytes: 9, rendezvous: 10, accesses: 11, access_bytes: 12 },
            matched_on_arrival: 13,
            matched_on_posting: 14,
            stalls: 15,
            retries: 16,
            waiting: 17,
            outstanding: 18,
            links_up: 19,
            links_down: 20,
            calls_failed: 21,
            mapped: MappedCounts { accesses: 22, regions: 23, shared: 24 },
        };
        let found = peer(&report, |link| (link == LinkId(77)).then_some("shm"));
        assert_eq!(found.name(), "10.0.0.7:4711/00000000");
        assert_eq!((found.state_name(), found.device_name().as_deref()), ("up", Some("shm")));
        let Peer { ip_high, ip_low, port, id, state, device, .. } = found;
        let expected = Peer {
            ip_high,
            ip_low,
            port,
            id,
            address: 1,
            state,
            device,
            messages_sent: 3,
            bytes_sent: 4,
            rendezvous_sent: 5,
            messages_received: 8,
            bytes_received: 9,
            rendezvous_received: 10,
            accesses_sent: 6,
            access_bytes_sent: 7,
            accesses_received: 11,
            access_bytes_received: 12,
            stalls: 15,
            retries: 16,
            waiting: 17,
            outstanding: 18,
            links_up: 19,
            links_down: 20,
            calls_failed: 21,
            matched_on_arrival: 13,
            matched_on_posting: 14,
            accesses_mapped: 22,
            regions_mapped: 23,
            regions_shared: 24,
        };
        assert_eq!(found, expected);
        let idle = peer(&PeerReport { state: LinkStatus::Idle, ..report }, |_| Some("shm"));
        assert_eq!((idle.state_name(), idle.device_name()), ("idle", None));
    }
}
