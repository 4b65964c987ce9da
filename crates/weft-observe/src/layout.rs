//! The layout of an endpoint's published counters, for the writer and for readers.
//!
//! Place in the data flow: [`super::Page`] writes the layout; `weft stat` and `weft top` read it from outside,
//! through `/proc/PID/fd`.
//!
//! The file consists of little-endian 64-bit words. It begins with a head, which contains the lengths of the
//! blocks. A block of counters and a row for each peer follow at fixed offsets. Later versions may append
//! words to blocks and rows; a reader uses the words that both versions know. A block begins and ends with
//! the number of its round. If the two differ, the block was read during a write.
//!
//! Trust: none. The file may contain any bytes. A reader interprets them as numbers and reads a bounded
//! number of bytes.

use std::net::{Ipv6Addr, SocketAddr};

use crate::identity::Identity;

/// The name of the memfd in `/proc/PID/fd`.
pub const LINK: &str = "/memfd:weft-stats (deleted)";
/// The first word of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftstat");
/// The version of this layout.
pub const LAYOUT: u64 = 1;

/// Length of the head in bytes.
pub const HEAD_BYTES: usize = 128;
/// Offset of the endpoint's block in bytes.
pub const ENDPOINT_AT: usize = HEAD_BYTES;
/// Offset of the first row of a group in bytes. The rows are written together with the endpoint's block.
pub const GROUPS_AT: usize = 512;
/// Length of a group's row in bytes.
pub const GROUP_BYTES: usize = 128;
/// Number of rows for groups with collectives under way; further groups have none.
pub const MAX_GROUPS: usize = (PEERS_AT - GROUPS_AT) / GROUP_BYTES;
/// Offset of the first peer's row in bytes.
pub const PEERS_AT: usize = 1024;
/// Length of a row in bytes.
pub const PEER_BYTES: usize = 256;
/// Maximum number of rows; further peers have none.
pub const MAX_PEERS: usize = 1 << 14;

/// Offset of the first row of a wait in bytes. The rows are written together with the endpoint's block.
pub const WAITS_AT: usize = PEERS_AT + MAX_PEERS * PEER_BYTES;
/// Length of such a row in bytes.
pub const WAIT_BYTES: usize = 128;
/// Maximum number of operations, of receives, and of messages with such rows; further ones have none.
pub const WAITS_OF_A_KIND: usize = 16;
/// Number of such rows.
pub const MAX_WAITS: usize = 3 * WAITS_OF_A_KIND;

/// Offset and length of the version text in the head, in bytes.
const VERSION_AT: usize = 64;
const VERSION_BYTES: usize = 16;
/// Offset and length of the host's name in the head, in bytes. A longer name is truncated.
const HOST_AT: usize = VERSION_AT + VERSION_BYTES;
const HOST_BYTES: usize = HEAD_BYTES - HOST_AT;

/// Declares a block: its words in order, each with its description.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $(#[doc = $help] pub $field: u64,)* }

        impl $name {
            /// The names of the words, with their descriptions.
            pub const FIELDS: &[(&str, &str)] = &[$((stringify!($field), $help)),*];

            /// The words in order.
            pub fn words(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$field),*].into_iter()
            }

            /// Makes a block from its words; missing words are 0.
            #[must_use]
            pub fn from_words(words: &[u64]) -> Self {
                let mut words = words.iter().copied();
                Self { $($field: words.next().unwrap_or(0)),* }
            }
        }
    };
}

block! {
    /// The block of an endpoint.
    Endpoint {
        ip_high: "The upper half of the endpoint's address, as IPv6.",
        ip_low: "The lower half of the address.",
        port: "The endpoint's port.",
        id: "The first bytes of the endpoint id.",
        published_ns: "Time of publication, on the system's monotonic clock.",
        opened_ns: "Time at which the endpoint was enabled, on the same clock.",
        rounds: "Rounds of progress that the client has made.",
        sleepers: "Threads of the client that sleep in weft's calls.",
        peers: "Peers that the endpoint has known so far.",
        operations: "Outstanding transmit operations.",
        posted: "Posted receives.",
        unexpected: "Unexpected messages that are queued.",
        unexpected_most: "Largest number of unexpected messages in one queue so far.",
        unexpected_total: "Unexpected messages so far: they arrived before their receive was posted.",
        failures: "Failed operations, except cancelled ones and peeks that found no message.",
        again: "Operations that were refused with -FI_EAGAIN after a round of progress.",
        datagrams_dropped: "Datagrams that were dropped before they left.",
        lock_waits: "Calls that waited at a lock of the domain for another thread.",
        cache_hits: "Requests that the registration cache served.",
        cache_misses: "Requests for which the device had to register memory.",
        cache_bytes: "Registered memory in bytes.",
        shm_fallbacks: "Peers on this host that are reached by TCP because shared memory failed.",
        tcp_sends: "System calls that sent.",
        tcp_receives: "System calls that received.",
        tcp_waits: "System calls that asked which sockets are ready.",
        tcp_half_open: "Incoming connections that have not completed the handshake.",
        tcp_refused: "Incoming connections that failed in the handshake.",
        tcp_breaks: "Broken connections of links that continued.",
        tcp_resumed: "New connections on which such links were resumed.",
        busy_groups: "Groups with collectives under way.",
        collectives: "Collectives under way, joins of groups included.",
        tcp_streams: "Connections that carry only long messages (FI_WEFT_TCP_STREAMS).",
        tcp_streams_lost: "Such connections that ended before their link, so far.",
        tcp_stream_bytes: "Bytes received and sent on such connections so far.",
        kernel_barriers: "Barriers between hosts by FI_WEFT_COLL_URING, performed by the kernel or by polls.",
        mapped_bytes: "Memory that the process has allocated for peers to map (weft_memory), in bytes.",
        waits: "Rows in use for receives, messages and operations that wait.",
        wait_words: "Number of words in such a row.",
    }
}

block! {
    /// The row of a receive, a message or an operation that waits.
    Wait {
        kind: "0: the row is not in use. 1: a posted receive, 2: a message without a receive, 3: a send, 4: a remote write, 5: a remote read, 6: a remote atomic.",
        flags: "Bit 0: it has a tag. Bit 2: a receive from any source.",
        ip_high: "The upper half of the peer's address, as IPv6.",
        ip_low: "The lower half of the address.",
        port: "The peer's port.",
        id: "The first bytes of the peer's endpoint id.",
        tag: "The tag.",
        ignore: "The bits of the tag that a receive ignores.",
        bytes: "Its length in bytes.",
        since_ns: "The first publication that showed it, on the clock of the endpoint's publications.",
    }
}

block! {
    /// The row of a group with collectives under way. It describes the oldest of them.
    Group {
        number: "The endpoint's number of the group.",
        rank: "The endpoint's rank in the group.",
        members: "The number of members; 0: the row is not in use.",
        under_way: "Collectives of the group that are under way.",
        operation: "0: the group is being joined, otherwise the operation, by its place in a list.",
        sequence: "The operation's number in its group.",
        block_bytes: "Bytes of a block of the operation.",
        awaited: "Members from which the endpoint waits for a part at present.",
        awaited_ranks: "A bit for each of these members whose rank is below 64.",
        since_ns: "The first publication that showed the operation, on the clock of the endpoint's publications.",
    }
}

block! {
    /// The row of a peer.
    Peer {
        ip_high: "The upper half of the peer's address, as IPv6.",
        ip_low: "The lower half of the address.",
        port: "The peer's port.",
        id: "The first bytes of the peer's endpoint id.",
        address: "The peer's number in the address vector; all bits are set if it has none.",
        state: "0: no link, 1: the link is being set up, 2: the link is up.",
        device: "The name of the link's device.",
        messages_sent: "Messages sent to the peer.",
        bytes_sent: "Bytes of the messages sent.",
        rendezvous_sent: "Messages sent by rendezvous.",
        messages_received: "Messages received from the peer.",
        bytes_received: "Bytes of the messages received.",
        rendezvous_received: "Messages received by rendezvous.",
        accesses_sent: "Remote reads, writes and atomics to the peer, counted by parts.",
        access_bytes_sent: "Bytes of these accesses.",
        accesses_received: "Remote reads, writes and atomics from the peer, counted by parts.",
        access_bytes_received: "Bytes of these accesses.",
        stalls: "Short messages sent by rendezvous because the peer's window was exhausted.",
        retries: "Attempts to send that found no room in the device.",
        waiting: "Operations queued for transmission.",
        outstanding: "Operations that are sent and not complete.",
        links_up: "Links that have come up.",
        links_down: "Links that have ended.",
        calls_failed: "Failed attempts to set up a link.",
        matched_on_arrival: "Messages from the peer whose receive was already posted.",
        matched_on_posting: "Messages from the peer that waited for their receive.",
        accesses_mapped: "Accesses to the peer, among the above, that were performed in mapped memory.",
        regions_mapped: "Regions of the peer that are mapped here.",
        regions_shared: "Regions of this endpoint that the peer may have mapped.",
    }
}

// The round is stored before and after the words.
const _: () = assert!(ENDPOINT_AT + (Endpoint::FIELDS.len() + 2) * 8 <= GROUPS_AT);
const _: () = assert!((Group::FIELDS.len() + 2) * 8 <= GROUP_BYTES);
const _: () = assert!((Peer::FIELDS.len() + 2) * 8 <= PEER_BYTES);
const _: () = assert!((Wait::FIELDS.len() + 2) * 8 <= WAIT_BYTES);

fn name([ip_high, ip_low, port, id]: [u64; 4]) -> String {
    let ip = Ipv6Addr::from(u128::from(ip_high) << 64 | u128::from(ip_low)).to_canonical();
    let socket = SocketAddr::new(ip, u16::try_from(port).unwrap_or(0));
    // The first four bytes, in their order.
    format!("{socket}/{:08x}", id >> 32)
}

impl Endpoint {
    /// Address, port and id in the format of log lines.
    #[must_use]
    pub fn name(&self) -> String {
        name([self.ip_high, self.ip_low, self.port, self.id])
    }
}

impl Group {
    /// The names of the operations, as in fi_collective(3).
    pub const OPERATIONS: [&str; 10] = [
        "join",
        "barrier",
        "broadcast",
        "alltoall",
        "allreduce",
        "allgather",
        "reduce_scatter",
        "reduce",
        "scatter",
        "gather",
    ];

    /// The name of the operation.
    #[must_use]
    pub fn operation_name(&self) -> &'static str {
        usize::try_from(self.operation).ok().and_then(|at| Self::OPERATIONS.get(at)).copied().unwrap_or("unknown")
    }

    /// The ranks below 64 of the members that the endpoint waits for.
    pub fn awaited_below_64(&self) -> impl Iterator<Item = u32> + use<> {
        let ranks = self.awaited_ranks;
        (0..u64::BITS).filter(move |rank| ranks & (1 << rank) != 0)
    }
}

impl Wait {
    /// The names of the kinds.
    pub const KINDS: [&str; 7] = ["none", "receive", "message", "send", "write", "read", "atomic"];
    /// It has a tag.
    pub const TAGGED: u64 = 1;
    /// The receive takes messages from any source.
    pub const ANY: u64 = 4;

    /// The name of the kind.
    #[must_use]
    pub fn kind_name(&self) -> &'static str {
        usize::try_from(self.kind).ok().and_then(|kind| Self::KINDS.get(kind)).copied().unwrap_or("unknown")
    }

    /// Whether a flag is set.
    #[must_use]
    pub const fn has(&self, flag: u64) -> bool {
        self.flags & flag != 0
    }

    /// The peer, without counts.
    #[must_use]
    pub fn peer(&self) -> Peer {
        let Self { ip_high, ip_low, port, id, .. } = *self;
        Peer { ip_high, ip_low, port, id, ..Peer::default() }
    }
}

impl Peer {
    /// The names of the states.
    pub const STATES: [&str; 3] = ["idle", "connecting", "up"];

    /// Address, port and id in the format of log lines.
    #[must_use]
    pub fn name(&self) -> String {
        name([self.ip_high, self.ip_low, self.port, self.id])
    }

    /// The name of the state.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        usize::try_from(self.state).ok().and_then(|state| Self::STATES.get(state)).copied().unwrap_or("unknown")
    }

    /// The name of the device, if the word holds a valid one.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let bytes = self.device.to_le_bytes();
        let name: String = bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(name)
    }
}

/// Packs a short name into a word.
#[must_use]
pub(crate) fn name_word(name: &str) -> u64 {
    let mut word = [0; 8];
    for (place, byte) in word.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    u64::from_le_bytes(word)
}

/// The head of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The process id, as numbered in the process's own namespace.
    pub pid: u64,
    /// The version of weft.
    pub version: String,
    /// Number of words in the endpoint's block.
    pub endpoint_words: usize,
    /// Number of words in a row.
    pub peer_words: usize,
    /// Number of words in a group's row; 0: there are no such rows.
    pub group_words: usize,
    /// The process's rank, if its launcher told it. The word in the head is the rank plus 1, or 0.
    pub rank: Option<u64>,
    /// The number of ranks, if the launcher told it; 0 in the head otherwise.
    pub size: Option<u64>,
    /// The name of the process's host; empty if an older version wrote the head.
    pub host: String,
}

impl Head {
    /// The head for this version of weft.
    #[must_use]
    pub fn ours(pid: u64) -> Self {
        let Identity { rank, size, host, .. } = Identity::without_job_of_this_process();
        Self {
            pid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            endpoint_words: Endpoint::FIELDS.len(),
            peer_words: Peer::FIELDS.len(),
            group_words: Group::FIELDS.len(),
            rank,
            size,
            host: host.chars().filter(char::is_ascii_graphic).take(HOST_BYTES).collect(),
        }
    }

    /// The bytes of the head.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let lengths = [self.endpoint_words, self.peer_words, self.group_words].map(|words| words as u64);
        let rank = self.rank.map_or(0, |rank| rank.saturating_add(1));
        let words = [MAGIC, LAYOUT, self.pid].into_iter().chain(lengths).chain([rank, self.size.unwrap_or(0)]);
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (at, len, text) in [(VERSION_AT, VERSION_BYTES, &self.version), (HOST_AT, HOST_BYTES, &self.host)] {
            for (place, byte) in bytes[at..at + len].iter_mut().zip(text.bytes()) {
                *place = byte;
            }
        }
        bytes
    }

    /// Parses a head. `None`: the file is not weft's, or has an unknown layout.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        let words = words(bytes);
        let [MAGIC, LAYOUT, pid, endpoint_words, peer_words, group_words, rank, size] = words[..VERSION_AT / 8] else {
            return None;
        };
        let text =
            |bytes: &[u8]| bytes.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect();
        let within = |words: u64, most: usize| usize::try_from(words).ok().filter(|words| *words <= most);
        Some(Self {
            pid,
            version: text(&bytes[VERSION_AT..HOST_AT]),
            endpoint_words: within(endpoint_words, (PEERS_AT - ENDPOINT_AT) / 8 - 2)?,
            peer_words: within(peer_words, PEER_BYTES / 8 - 2)?,
            group_words: within(group_words, GROUP_BYTES / 8 - 2)?,
            rank: rank.checked_sub(1),
            size: (size != 0).then_some(size),
            host: text(&bytes[HOST_AT..]),
        })
    }
}

/// Converts bytes to words.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Writes a block. The bytes behind it are not changed.
pub(crate) fn block(bytes: &mut [u8], round: u64, words: impl Iterator<Item = u64>) {
    let ends = std::iter::once(round);
    for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(ends.clone().chain(words).chain(ends)) {
        *place = word.to_le_bytes();
    }
}

/// Reads a block of `count` words. `None`: the block was never written, or was read during a write.
#[must_use]
pub fn take(bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let words = words(bytes.get(..(count + 2) * 8)?);
    let (round, rest) = words.split_first()?;
    let (end, block) = rest.split_last()?;
    (*round != 0 && round == end).then(|| block.to_vec())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_block_is_read_as_it_was_written() {
        let endpoint = Endpoint { published_ns: 5, tcp_refused: 9, unexpected: u64::MAX, ..Endpoint::default() };
        let mut bytes = [0; PEERS_AT - ENDPOINT_AT];
        block(&mut bytes, 3, endpoint.words());
        let words = take(&bytes, Endpoint::FIELDS.len()).unwrap();
        assert_eq!(Endpoint::from_words(&words), endpoint);
        // The reader of an older version knows fewer words.
        assert_eq!(Endpoint::from_words(&words[..5]), Endpoint { published_ns: 5, ..Endpoint::default() });
        // A torn block, and a block that was never written.
        bytes[0] ^= 1;
        assert_eq!(take(&bytes, Endpoint::FIELDS.len()), None);
        assert_eq!(take(&[0; 800], Endpoint::FIELDS.len()), None);
    }

    #[test]
    fn unknown_heads_are_refused() {
        let head = Head { rank: Some(0), size: Some(4), host: "node1".to_owned(), ..Head::ours(7) };
        assert_eq!(Head::parse(&head.bytes()), Some(head.clone()));
        let mut newer = head.bytes();
        newer[8] += 1;
        assert_eq!(Head::parse(&newer), None);
        assert_eq!(Head::parse(&head.bytes()[..100]), None);
        let wide = Head { endpoint_words: 1 << 20, ..head };
        assert_eq!(Head::parse(&wide.bytes()), None);
    }

    #[test]
    fn awaited_members_are_listed() {
        let group = Group { operation: 1, awaited_ranks: 1 << 63 | 0b101, awaited: 4, ..Group::default() };
        assert_eq!(group.awaited_below_64().collect::<Vec<_>>(), [0, 2, 63]);
        assert_eq!((group.operation_name(), Group::default().operation_name()), ("barrier", "join"));
        assert_eq!(Group { operation: u64::MAX, ..group }.operation_name(), "unknown");
    }

    #[test]
    fn a_peer_is_named_as_in_logs() {
        let v4 = std::net::Ipv4Addr::new(10, 0, 0, 7).to_ipv6_mapped().to_bits();
        let peer = Peer {
            ip_high: u64::try_from(v4 >> 64).unwrap(),
            ip_low: u64::try_from(v4 & u128::from(u64::MAX)).unwrap(),
            port: 4711,
            id: 0x1f2e_3d4c_0000_0000,
            state: 2,
            device: name_word("shm"),
            ..Peer::default()
        };
        assert_eq!(peer.name(), "10.0.0.7:4711/1f2e3d4c");
        assert_eq!((peer.state_name(), peer.device_name().as_deref()), ("up", Some("shm")));
        let wild = Peer { state: u64::MAX, device: u64::MAX, port: u64::MAX, ..peer };
        assert_eq!((wild.state_name(), wild.device_name()), ("unknown", None));
        assert_eq!(wild.name(), "10.0.0.7:0/1f2e3d4c");
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..2048), magic: bool) {
            let mut bytes = bytes;
            if magic && bytes.len() >= 16 {
                bytes[..8].copy_from_slice(&MAGIC.to_le_bytes());
                bytes[8..16].copy_from_slice(&LAYOUT.to_le_bytes());
            }
            if let Some(head) = Head::parse(&bytes) {
                prop_assert!(head.endpoint_words * 8 < PEERS_AT && head.peer_words * 8 < PEER_BYTES);
                prop_assert!(head.group_words * 8 < GROUP_BYTES);
                let peer = take(&bytes, head.peer_words).map(|words| Peer::from_words(&words)).unwrap_or_default();
                let _ = (peer.name(), peer.state_name(), peer.device_name());
            }
        }
    }
}
