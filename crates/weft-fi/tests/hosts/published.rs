//! The page that an endpoint publishes for `weft stat`. The numbers are right. Each endpoint has one
//! descriptor, which it closes with itself and which other users cannot open. An endpoint that cannot publish
//! still works.
//!
//! Rare counters have scenes that cause their events. A unit test of `publish.rs` proves that no two words
//! are confused.

use std::io::{Read, Write};
use std::net::{Ipv6Addr, SocketAddr, TcpStream};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;

use rustix::net::{AddressFamily, Shutdown, SocketType, getpeername, shutdown, sockopt};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_fi_sys::*;
use weft_observe::layout::{self, Endpoint, Group, Head, Peer};

use crate::client::{Lib, bind, close};
use crate::registration;
use crate::side::{Args, Side, introduce, memory, off, pair, pattern, scenes, until, works};

/// All scenes.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[
            ("counts", counts),
            ("matches", matches),
            ("stalls", stalls),
            ("strangers", strangers),
            if off("FI_WEFT_SHM") { ("breaks", breaks) } else { ("fallbacks", fallbacks) },
            if off("FI_WEFT_SHM") { ("system_calls", system_calls) } else { ("retries", retries) },
            ("files_too_small", files_too_small),
            ("descriptors_used_up", descriptors_used_up),
        ],
    );
}

/// The scenes for a device that demands registration.
pub(crate) fn registered(lib: &Lib) {
    let len = 256 << 10;
    let mut pair = registration::Pair::new(lib, len);
    let source = pattern(len);
    (0..10).for_each(|_| pair.send(source));
    let ours = registration::counts(&pair.a);
    assert_eq!((ours.hits + ours.misses, ours.hits > ours.bytes), (10, false), "{ours:?}");
    let told = |at: &Endpoint, peer: &Peer| {
        peer.messages_sent == 10
            && [at.cache_hits, at.cache_misses, at.cache_bytes] == [ours.hits, ours.misses, ours.bytes]
    };
    seen(&[&pair.a, &pair.b], told);
}

/// The pages that this process publishes, up to the block of the first peer.
fn pages() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let ours = entries.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == layout::LINK));
    ours.map(|path| {
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "other users may open it: {mode:o}");
        let mut page = Vec::new();
        let length = (layout::PEERS_AT + layout::PEER_BYTES) as u64;
        std::fs::File::open(path).unwrap().take(length).read_to_end(&mut page).unwrap();
        page
    })
    .collect()
}

/// Each endpoint with one peer: its page and its peer's block.
fn published() -> Vec<(Endpoint, Peer)> {
    let read = |page: Vec<u8>| {
        let head = Head::parse(&page)?;
        assert_eq!(head, Head::ours(std::process::id().into()));
        let block = |at: usize, words| layout::take(page.get(at..)?, words);
        let endpoint = Endpoint::from_words(&block(layout::ENDPOINT_AT, head.endpoint_words)?);
        Some((endpoint, Peer::from_words(&block(layout::PEERS_AT, head.peer_words)?)))
    };
    pages().into_iter().filter_map(read).collect()
}

/// All endpoints of this process.
pub(crate) fn endpoints() -> Vec<Endpoint> {
    let read = |page: &[u8]| {
        let words = layout::take(page.get(layout::ENDPOINT_AT..)?, Head::parse(page)?.endpoint_words)?;
        Some(Endpoint::from_words(&words))
    };
    pages().iter().filter_map(|page| read(page)).collect()
}

/// The groups with collectives under way, of all endpoints of this process.
pub(crate) fn groups() -> Vec<Group> {
    let read = |page: &[u8]| -> Vec<Group> {
        let head = Head::parse(page).unwrap();
        let rows = page.get(layout::GROUPS_AT..layout::PEERS_AT).unwrap_or_default();
        let rows = rows.chunks_exact(layout::GROUP_BYTES).filter_map(|row| layout::take(row, head.group_words));
        rows.map(|words| Group::from_words(&words)).filter(|group| group.members > 0).collect()
    };
    pages().iter().flat_map(|page| read(page)).collect()
}

/// Waits until one of the pages of these sides satisfies the condition, and returns it.
#[track_caller]
fn seen(sides: &[&Side<'_>], mut wanted: impl FnMut(&Endpoint, &Peer) -> bool) -> (Endpoint, Peer) {
    until(|| {
        sides.iter().for_each(|side| side.progress());
        published().into_iter().find(|(endpoint, peer)| wanted(endpoint, peer))
    })
}

/// This process's sockets that satisfy the condition.
fn sockets(wanted: impl Fn(BorrowedFd<'_>) -> bool) -> Vec<BorrowedFd<'static>> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let ours =
        entries.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")));
    let numbers = ours.map(|path| path.file_name().unwrap().to_str().unwrap().parse().unwrap());
    // No descriptor is closed while these references exist.
    numbers.map(|number| unsafe { BorrowedFd::borrow_raw(number) }).filter(|fd| wanted(*fd)).collect()
}

fn counts(lib: &Lib) {
    assert_eq!(pages().len(), 0);
    let (mut a, mut b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
    assert_eq!(pages().len(), 2, "one page for each endpoint");
    let (source, target) = (pattern(1 << 20), memory(1 << 20));
    for len in [8, 8, 8, 8, 1 << 20] {
        b.trecv(&mut target[..len], 0xb);
        a.tsend(&mut source[..len], to_b, 0xa);
        a.next(&[&b]).done();
        b.next(&[&a]).done();
    }
    let mr = b.register(target, FI_REMOTE_READ | FI_REMOTE_WRITE, 1);
    for (name, len) in [("fi_write", 100), ("fi_read", 1 << 20), ("fi_write", 1 << 20)] {
        a.start(name, &Args { key: 1, context: 0xa, ..Args::new(&mut source[..len], to_b) }, &[&b]);
        a.next(&[&b]).done();
    }
    let sum = 100 + (2 << 20);
    let of_sender =
        |at: &Peer| [at.messages_sent, at.bytes_sent, at.rendezvous_sent, at.accesses_sent, at.access_bytes_sent];
    let of_target = |at: &Peer| {
        [
            at.messages_received,
            at.bytes_received,
            at.rendezvous_received,
            at.accesses_received,
            at.access_bytes_received,
        ]
    };
    let told = until(|| {
        [&a, &b].iter().for_each(|side| side.progress());
        let found = published();
        let sender = found.iter().find(|(_, peer)| of_sender(peer) == [5, 32 + (1 << 20), 1, 3, sum])?;
        let target = found.iter().find(|(_, peer)| of_target(peer) == [5, 32 + (1 << 20), 1, 3, sum])?;
        Some([*sender, *target])
    });
    for (endpoint, peer) in told {
        assert_eq!((endpoint.peers, endpoint.failures, endpoint.operations), (1, 0, 0), "{endpoint:?}");
        assert_eq!((peer.state_name(), peer.links_up, peer.links_down, peer.calls_failed), ("up", 1, 0, 0), "{peer:?}");
        assert!(peer.device_name().is_some() && endpoint.rounds > 0);
    }
    a.close_ep();
    assert_eq!(pages().len(), 1, "the page of the closed endpoint is gone");
    assert_eq!(close(mr), 0);
    b.close_ep();
    assert_eq!(pages().len(), 0);
}

/// A message counts as matched on its arrival, as matched by a later receive, or as unmatched. A discarded
/// message was never matched. Remote accesses are not messages.
fn matches(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let source = pattern(1 << 20);
    let target = memory(1 << 20);
    // The last message is sent by rendezvous.
    let lens = [8, 8, 8, 1 << 20];
    for len in lens {
        a.tsend(&mut source[..len], to_b, 0xa);
    }
    let of_target = |at: &Peer| [at.messages_received, at.matched_on_arrival, at.matched_on_posting];
    let (endpoint, _) = seen(&[&a, &b], |_, peer| of_target(peer) == [5, 1, 0]);
    assert_eq!((endpoint.unexpected, endpoint.unexpected_most, endpoint.unexpected_total), (4, 4, 4), "{endpoint:?}");
    for len in lens {
        b.trecv(&mut target[..len], 0xb);
        b.next(&[&a]).done();
        a.next(&[&b]).done();
    }
    let (endpoint, _) = seen(&[&a, &b], |_, peer| of_target(peer) == [5, 1, 4]);
    assert_eq!((endpoint.unexpected, endpoint.unexpected_most, endpoint.unexpected_total), (0, 4, 4), "{endpoint:?}");
    a.tsend(&mut source[..8], to_b, 0xa);
    a.next(&[&b]).done();
    let (endpoint, _) = seen(&[&a, &b], |_, peer| of_target(peer) == [6, 1, 4]);
    assert_eq!((endpoint.unexpected, endpoint.unexpected_total), (1, 5), "{endpoint:?}");
    b.start("fi_trecvmsg", &Args { flags: FI_PEEK | FI_DISCARD, ..Args::new(&mut target[..8], 0) }, &[&a]);
    b.next(&[&a]).done();
    let mr = b.register(target, FI_REMOTE_WRITE, 1);
    for name in ["fi_write", "fi_writev"] {
        a.start(name, &Args { key: 1, ..Args::new(&mut source[..8], to_b) }, &[&b]);
        a.next(&[&b]).done();
    }
    works(&a, &b, to_b);
    let (endpoint, peer) = seen(&[&a, &b], |_, peer| of_target(peer) == [7, 2, 4]);
    assert_eq!((endpoint.unexpected, endpoint.unexpected_total), (0, 5), "{endpoint:?}");
    assert_eq!(peer.accesses_received, 2);
    assert_eq!(close(mr), 0);
}

/// A message that exceeds the peer's window is sent by rendezvous, however short it is.
fn stalls(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let of_sender = |at: &Peer| [at.messages_sent, at.rendezvous_sent, at.stalls];
    seen(&[&a, &b], |_, peer| of_sender(peer) == [1, 0, 0]);
    // Each message takes 64 additional bytes, and the first message has used some.
    let (len, count) = (4000, 40);
    let fit = (128 * 1024 - 164) / (len + 64);
    let (source, target) = (pattern(len), memory(len));
    for _ in 0..count {
        a.tsend(source, to_b, 0xa);
    }
    let beyond = (count - fit) as u64;
    seen(&[&a, &b], |_, peer| of_sender(peer) == [1 + count as u64, beyond, beyond]);
    for _ in 0..count {
        b.trecv(target, 0xb);
        b.next(&[&a]).done();
        a.next(&[&b]).done();
    }
}

/// A ring fills up when the peer does not read it. Messages that find it full are tried again.
fn retries(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    seen(&[&a, &b], |_, peer| (peer.messages_sent, peer.retries) == (1, 0));
    let (source, target) = (pattern(4000), memory(4000));
    let mut sent = 0;
    seen(&[&a], |_, peer| {
        sent += usize::from(sent < 4000 && a.run("fi_tsend", &Args::new(source, to_b)) == 0);
        peer.retries > 0
    });
    for _ in 0..sent {
        b.trecv(target, 0xb);
        b.next(&[&a]).done();
        a.next(&[&b]).done();
    }
}

/// A stranger that connects and sends nothing, and a stranger that sends an invalid handshake.
fn strangers(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let (at, _) = seen(&[&a, &b], |_, peer| peer.messages_received == 1);
    assert_eq!((at.tcp_half_open, at.tcp_refused), (0, 0), "{at:?}");
    let of_target = |peer: &Peer| peer.messages_received == 1;
    let ip = Ipv6Addr::from(u128::from(at.ip_high) << 64 | u128::from(at.ip_low)).to_canonical();
    let mut stranger = TcpStream::connect(SocketAddr::new(ip, at.port.try_into().unwrap())).unwrap();
    seen(&[&a, &b], |at, peer| of_target(peer) && (at.tcp_half_open, at.tcp_refused) == (1, 0));
    stranger.write_all(&[0x5a; 1000]).unwrap();
    seen(&[&a, &b], |at, peer| of_target(peer) && (at.tcp_half_open, at.tcp_refused) == (0, 1));
    works(&a, &b, to_b);
}

/// If the shared memory of a peer on this host does not answer, the link uses TCP.
fn fallbacks(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    let listeners = sockets(|fd| {
        let local = sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX);
        local && sockopt::socket_acceptconn(fd) == Ok(true)
    });
    assert_eq!(listeners.len(), 2, "one listener for each endpoint");
    listeners.iter().for_each(|fd| shutdown(fd, Shutdown::Both).unwrap());
    works(&a, &b, to_b);
    let (endpoint, peer) = seen(&[&a, &b], |_, peer| peer.messages_sent == 1);
    assert_eq!((endpoint.shm_fallbacks, peer.device_name().as_deref()), (1, Some("tcp")), "{endpoint:?}");
    let (endpoint, _) = seen(&[&a, &b], |_, peer| peer.messages_received == 1);
    assert_eq!(endpoint.shm_fallbacks, 0, "only the connecting side falls back: {endpoint:?}");
}

/// A broken connection is replaced. Until then the device has no room for messages.
fn breaks(lib: &Lib) {
    let (a, b, to_b, _) = pair(lib);
    works(&a, &b, to_b);
    let of_sender = |peer: &Peer| peer.messages_sent > 0;
    let counts = |at: &Endpoint| [at.tcp_breaks, at.tcp_resumed];
    let (endpoint, peer) = seen(&[&a, &b], |_, peer| of_sender(peer));
    assert_eq!((counts(&endpoint), peer.retries), ([0, 0], 0), "{endpoint:?}");
    let ends = sockets(|fd| sockopt::socket_type(fd) == Ok(SocketType::STREAM) && getpeername(fd).is_ok());
    assert_eq!(ends.len(), 2);
    ends.iter().for_each(|fd| shutdown(fd, Shutdown::Both).unwrap());
    // The peer would have to answer the new connection, but makes no progress.
    seen(&[&a], |at, peer| of_sender(peer) && counts(at) == [1, 0]);
    let (source, target) = (pattern(100), memory(100));
    a.tsend(source, to_b, 0xa);
    seen(&[&a], |at, peer| of_sender(peer) && counts(at) == [1, 0] && peer.retries > 0);
    b.trecv(target, 0xb);
    b.next(&[&a]).done();
    a.next(&[&b]).done();
    let (_, peer) = seen(&[&a, &b], |at, peer| of_sender(peer) && counts(at) == [1, 1]);
    assert_eq!((peer.messages_sent, peer.links_up, peer.links_down), (2, 1, 0), "{peer:?}");
}

/// In a ping-pong, each message needs its own system calls to send and to receive it. The device also polls
/// the sockets.
fn system_calls(lib: &Lib) {
    let (a, b, to_b, to_a) = pair(lib);
    works(&a, &b, to_b);
    let calls = |at: &Endpoint| [at.tcp_sends, at.tcp_receives, at.tcp_waits];
    let (before, _) = seen(&[&a, &b], |_, peer| peer.messages_sent == 1);
    for _ in 0..100 {
        works(&a, &b, to_b);
        works(&b, &a, to_a);
    }
    let (after, _) = seen(&[&a, &b], |_, peer| peer.messages_sent == 101);
    let ([sends, receives, waits], [more_sends, more_receives, more_waits]) = (calls(&before), calls(&after));
    assert!(more_sends >= sends + 100 && more_receives >= receives + 100, "{before:?} {after:?}");
    // Sockets with expected data are read without being polled.
    assert!(more_waits > waits, "{before:?} {after:?}");
}

/// Changes a soft limit while a function runs.
pub(crate) fn limited<T>(what: Resource, limit: u64, run: impl FnOnce() -> T) -> T {
    let before = getrlimit(what);
    setrlimit(what, Rlimit { current: Some(limit), ..before }).unwrap();
    let result = run();
    setrlimit(what, before).unwrap();
    result
}

/// RLIMIT_FSIZE applies to the page, too. A write beyond the limit raises a signal.
fn files_too_small(lib: &Lib) {
    for limit in [0, 200, 1100] {
        limited(Resource::Fsize, limit, || {
            let (a, b, to_b, _) = introduce(Side::new(lib), Side::new(lib));
            works(&a, &b, to_b);
            assert!(limit > 0 || pages().is_empty());
        });
    }
}

/// If there is one descriptor too few for an endpoint and its page, the endpoint opens without a page.
fn descriptors_used_up(lib: &Lib) {
    let mut without = false;
    // Limits below the descriptors in use refuse the endpoint as well.
    for limit in 0.. {
        let side = Side::unbound(lib, 0, |_| ());
        assert_eq!(bind(side.ep, side.av, 0), 0);
        assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
        let enabled = limited(Resource::Nofile, limit, || side.enable());
        if enabled == 0 && !pages().is_empty() {
            break;
        }
        assert!(limit < 500, "no limit allowed an endpoint");
        without |= enabled == 0;
        if enabled == 0 {
            let other = Side::new(lib);
            let to_other = side.insert(&other.name());
            other.insert(&side.name());
            works(&side, &other, to_other);
        }
    }
    assert!(without, "no limit left an endpoint without a page");
}
