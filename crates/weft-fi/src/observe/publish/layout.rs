//! What an endpoint publishes: the layout of its memfd, for who writes it and for who reads it.
//!
//! Place in the data flow: [`super`] writes it; `weft stat` and `weft top` read it from outside, through
//! `/proc/PID/fd`.
//!
//! Everything is 64-bit words, lowest byte first. The file begins with a head, which says how long the blocks
//! are; a block of counters and a row for each peer follow at fixed places. Later versions may add words at
//! the ends of blocks and rows: a reader takes what both know. A block begins and ends with the number of its
//! round: where they differ it was read while it was written.
//!
//! Trust: none. Who writes may write anything; a reader takes numbers for numbers and looks at a bounded
//! number of bytes.

use std::net::{Ipv6Addr, SocketAddr};

/// The name of the memfd, as `/proc/PID/fd` shows it.
pub const LINK: &str = "/memfd:weft-stats (deleted)";
/// The first word of the file.
pub const MAGIC: u64 = u64::from_le_bytes(*b"weftstat");
/// The layout that this file describes.
pub const LAYOUT: u64 = 1;

/// Length of the head in bytes.
pub const HEAD_BYTES: usize = 128;
/// Where the endpoint's block begins.
pub const ENDPOINT_AT: usize = HEAD_BYTES;
/// Where the rows of peers begin.
pub const PEERS_AT: usize = 1024;
/// Length of a row in bytes.
pub const PEER_BYTES: usize = 256;
/// Rows that there may be; further peers have none.
pub const PEERS_MOST: usize = 1 << 14;

/// Where the name of the version stands in the head, and how long it may be.
const VERSION_AT: usize = 64;
const VERSION_BYTES: usize = 16;

/// Declares a block: its words, in their order, with what they mean.
macro_rules! block {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $help:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $(#[doc = $help] pub $field: u64,)* }

        impl $name {
            /// The names of the words, and what they mean.
            pub const FIELDS: &[(&str, &str)] = &[$((stringify!($field), $help)),*];

            /// The words.
            pub fn words(&self) -> impl Iterator<Item = u64> + use<> {
                [$(self.$field),*].into_iter()
            }

            /// From the words that there are; the rest is 0.
            #[must_use]
            pub fn from_words(words: &[u64]) -> Self {
                let mut words = words.iter().copied();
                Self { $($field: words.next().unwrap_or(0)),* }
            }
        }
    };
}

block! {
    /// An endpoint.
    Endpoint {
        ip_high: "Its address, as IPv6.",
        ip_low: "The lower half.",
        port: "Its port.",
        id: "The first bytes of its endpoint id.",
        published_ns: "When this was published, on the system's monotonic clock.",
        opened_ns: "When the endpoint was enabled, on the same clock.",
        rounds: "Rounds of progress that the client has made.",
        sleepers: "Threads of the client that sleep in our calls.",
        peers: "Peers that were ever met.",
        operations: "Transmit operations under way.",
        posted: "Receives that are posted.",
        unexpected: "Messages that wait for a receive.",
        unexpected_most: "The most that ever did, in one queue.",
        unexpected_total: "Messages that came before their receive, so far.",
        failures: "Operations that have failed.",
        again: "Operations that were refused with -FI_EAGAIN after a round of progress.",
        datagrams_dropped: "Datagrams that were dropped before they left.",
        lock_waits: "Calls that had to wait at a lock of the domain for another thread.",
        cache_hits: "Requests that the registration cache served.",
        cache_misses: "Requests for which the device had to register memory.",
        cache_bytes: "Memory that is registered now.",
        shm_fallbacks: "Peers on this host that shared memory did not reach, so that TCP was used.",
        tcp_sends: "System calls that sent.",
        tcp_receives: "System calls that received.",
        tcp_waits: "System calls that asked which sockets are ready.",
        tcp_half_open: "Connections of peers that have proven nothing yet.",
        tcp_refused: "Connections of peers that did not get past the handshake.",
        tcp_breaks: "Connections of links that broke while the link was to go on.",
        tcp_resumed: "Connections made in the place of broken ones, over which the link went on.",
    }
}

block! {
    /// A peer of an endpoint.
    Peer {
        ip_high: "Its address, as IPv6.",
        ip_low: "The lower half.",
        port: "Its port.",
        id: "The first bytes of its endpoint id.",
        address: "Its number in the address vector; all bits set: it has none.",
        state: "0: no link, 1: one is being made, 2: up.",
        device: "The name of the device.",
        messages_sent: "Messages sent to it.",
        bytes_sent: "Their bytes.",
        rendezvous_sent: "How many of them went by rendezvous.",
        messages_received: "Messages received from it.",
        bytes_received: "Their bytes.",
        rendezvous_received: "How many of them came by rendezvous.",
        accesses_sent: "Remote reads, writes and atomics of ours, by their parts.",
        access_bytes_sent: "The bytes that they were about.",
        accesses_received: "Those of the peer.",
        access_bytes_received: "The bytes that they were about.",
        stalls: "Short messages that went by rendezvous because the peer's window was used up.",
        retries: "How often what was to be sent found no room in the device.",
        waiting: "Operations that wait to be sent.",
        outstanding: "Operations that were sent and are not complete.",
        links_up: "Links that have come up.",
        links_down: "Links that have ended.",
        calls_failed: "Attempts to make one that failed.",
        matched_on_arrival: "Messages received from it whose receive was posted already.",
        matched_on_posting: "Messages received from it that waited until a receive took them.",
    }
}

// The round stands before and behind.
const _: () = assert!(ENDPOINT_AT + (Endpoint::FIELDS.len() + 2) * 8 <= PEERS_AT);
const _: () = assert!((Peer::FIELDS.len() + 2) * 8 <= PEER_BYTES);

fn name([ip_high, ip_low, port, id]: [u64; 4]) -> String {
    let ip = Ipv6Addr::from(u128::from(ip_high) << 64 | u128::from(ip_low)).to_canonical();
    let socket = SocketAddr::new(ip, u16::try_from(port).unwrap_or(0));
    // The first four bytes, in their order.
    format!("{socket}/{:08x}", id >> 32)
}

impl Endpoint {
    /// Address, port and id as logs write them.
    #[must_use]
    pub fn name(&self) -> String {
        name([self.ip_high, self.ip_low, self.port, self.id])
    }
}

impl Peer {
    /// How the states are called.
    pub const STATES: [&str; 3] = ["idle", "connecting", "up"];

    /// Address, port and id as logs write them.
    #[must_use]
    pub fn name(&self) -> String {
        name([self.ip_high, self.ip_low, self.port, self.id])
    }

    /// The state in words.
    #[must_use]
    pub fn state_name(&self) -> &'static str {
        usize::try_from(self.state).ok().and_then(|state| Self::STATES.get(state)).copied().unwrap_or("unknown")
    }

    /// The name of the device, if it is one.
    #[must_use]
    pub fn device_name(&self) -> Option<String> {
        let bytes = self.device.to_le_bytes();
        let name: String = bytes.iter().take_while(|byte| **byte != 0).map(|byte| char::from(*byte)).collect();
        (!name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric())).then_some(name)
    }
}

/// A short name in a word.
#[must_use]
pub(super) fn name_word(name: &str) -> u64 {
    let mut word = [0; 8];
    for (place, byte) in word.iter_mut().zip(name.bytes()) {
        *place = byte;
    }
    u64::from_le_bytes(word)
}

/// Whose file it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The process, as it is numbered in its own namespace.
    pub pid: u64,
    /// The version of weft.
    pub version: String,
    /// Words of the endpoint's block.
    pub endpoint_words: usize,
    /// Words of a row.
    pub peer_words: usize,
}

impl Head {
    /// That of this version in this process.
    #[must_use]
    pub fn ours(pid: u64) -> Self {
        Self {
            pid,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            endpoint_words: Endpoint::FIELDS.len(),
            peer_words: Peer::FIELDS.len(),
        }
    }

    /// As it stands in the file.
    #[must_use]
    pub fn bytes(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        let words = [MAGIC, LAYOUT, self.pid, self.endpoint_words as u64, self.peer_words as u64];
        for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        for (place, byte) in bytes[VERSION_AT..VERSION_AT + VERSION_BYTES].iter_mut().zip(self.version.bytes()) {
            *place = byte;
        }
        bytes
    }

    /// Reads it. `None`: the file is none of ours, or of a layout that we do not know.
    #[must_use]
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEAD_BYTES)?;
        let words = words(bytes);
        let [MAGIC, LAYOUT, pid, endpoint_words, peer_words, ..] = words[..] else { return None };
        let version = &bytes[VERSION_AT..VERSION_AT + VERSION_BYTES];
        let within = |words: u64, most: usize| usize::try_from(words).ok().filter(|words| *words <= most);
        Some(Self {
            pid,
            version: version.iter().filter(|byte| byte.is_ascii_graphic()).map(|byte| char::from(*byte)).collect(),
            endpoint_words: within(endpoint_words, (PEERS_AT - ENDPOINT_AT) / 8 - 2)?,
            peer_words: within(peer_words, PEER_BYTES / 8 - 2)?,
        })
    }
}

/// The words of some bytes.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Writes a block. The bytes behind it stay as they are.
pub(super) fn block(bytes: &mut [u8], round: u64, words: impl Iterator<Item = u64>) {
    let ends = std::iter::once(round);
    for (place, word) in bytes.as_chunks_mut().0.iter_mut().zip(ends.clone().chain(words).chain(ends)) {
        *place = word.to_le_bytes();
    }
}

/// Takes a block of so many words. `None`: nothing was written there yet, or it was read while it was written.
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
    fn blocks_come_back_as_they_were() {
        let endpoint = Endpoint { published_ns: 5, tcp_refused: 9, unexpected: u64::MAX, ..Endpoint::default() };
        let mut bytes = [0; PEERS_AT - ENDPOINT_AT];
        block(&mut bytes, 3, endpoint.words());
        let words = take(&bytes, Endpoint::FIELDS.len()).unwrap();
        assert_eq!(Endpoint::from_words(&words), endpoint);
        // A reader of a later version, and one of an earlier.
        assert_eq!(Endpoint::from_words(&words[..5]), Endpoint { published_ns: 5, ..Endpoint::default() });
        // Torn, and never written.
        bytes[0] ^= 1;
        assert_eq!(take(&bytes, Endpoint::FIELDS.len()), None);
        assert_eq!(take(&[0; 800], Endpoint::FIELDS.len()), None);
    }

    #[test]
    fn heads_of_others_are_not_taken() {
        let head = Head::ours(7);
        assert_eq!(Head::parse(&head.bytes()), Some(head.clone()));
        let mut newer = head.bytes();
        newer[8] += 1;
        assert_eq!(Head::parse(&newer), None);
        assert_eq!(Head::parse(&head.bytes()[..100]), None);
        let wide = Head { endpoint_words: 1 << 20, ..head };
        assert_eq!(Head::parse(&wide.bytes()), None);
    }

    #[test]
    fn peers_have_names() {
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
                let peer = take(&bytes, head.peer_words).map(|words| Peer::from_words(&words)).unwrap_or_default();
                let _ = (peer.name(), peer.state_name(), peer.device_name());
            }
        }
    }
}
