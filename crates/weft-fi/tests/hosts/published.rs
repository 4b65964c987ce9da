//! What endpoints publish for `weft stat`: right numbers, one descriptor for each endpoint, which goes with it, for nobody else's eyes;
//! and an endpoint that cannot publish works all the same.

use std::os::unix::fs::MetadataExt;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use weft_fi::publish::layout::{self, Endpoint, Head, Peer};
use weft_fi_sys::*;

use crate::client::{Lib, bind, close};
use crate::side::{Args, Side, acquaint, memory, pattern, scenes, until, works};

/// All of them.
pub(crate) fn all(lib: &Lib) {
    scenes(
        lib,
        &[("counts", counts), ("files_too_small", files_too_small), ("descriptors_used_up", descriptors_used_up)],
    );
}

/// What this process publishes, page by page.
fn pages() -> Vec<Vec<u8>> {
    let entries = std::fs::read_dir("/proc/self/fd").unwrap().map(|entry| entry.unwrap().path());
    let ours = entries.filter(|path| std::fs::read_link(path).is_ok_and(|to| to.as_os_str() == layout::LINK));
    ours.map(|path| {
        let mode = std::fs::metadata(&path).unwrap().mode();
        assert_eq!(mode & 0o077, 0, "others may open it: {mode:o}");
        std::fs::read(path).unwrap()
    })
    .collect()
}

/// What each endpoint that has one peer has published, of itself and of the peer.
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

fn counts(lib: &Lib) {
    assert_eq!(pages().len(), 0);
    let (mut a, mut b, to_b, _) = acquaint(Side::new(lib), Side::new(lib));
    assert_eq!(pages().len(), 2, "one for each endpoint");
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
    assert_eq!(pages().len(), 1, "it goes with its endpoint");
    assert_eq!(close(mr), 0);
    b.close_ep();
    assert_eq!(pages().len(), 0);
}

/// Changes the soft limit while something runs.
fn limited<T>(what: Resource, limit: u64, run: impl FnOnce() -> T) -> T {
    let before = getrlimit(what);
    setrlimit(what, Rlimit { current: Some(limit), ..before }).unwrap();
    let result = run();
    setrlimit(what, before).unwrap();
    result
}

/// RLIMIT_FSIZE counts for what is published, too, and what is beyond it is a signal.
fn files_too_small(lib: &Lib) {
    for limit in [0, 200, 1100] {
        limited(Resource::Fsize, limit, || {
            let (a, b, to_b, _) = acquaint(Side::new(lib), Side::new(lib));
            works(&a, &b, to_b);
            assert!(limit > 0 || pages().is_empty());
        });
    }
}

/// With one descriptor less than an endpoint and its page need, there is the endpoint.
fn descriptors_used_up(lib: &Lib) {
    let mut without = false;
    // Numbers that are in use already do not matter.
    for limit in 0.. {
        let side = Side::unbound(lib, 0, |_| ());
        assert_eq!(bind(side.ep, side.av, 0), 0);
        assert_eq!(bind(side.ep, side.cq, FI_TRANSMIT | FI_RECV), 0);
        let enabled = limited(Resource::Nofile, limit, || side.enable());
        if enabled == 0 && !pages().is_empty() {
            break;
        }
        assert!(limit < 500, "it never could");
        without |= enabled == 0;
        if enabled == 0 {
            let other = Side::new(lib);
            let to_other = side.insert(&other.name());
            other.insert(&side.name());
            works(&side, &other, to_other);
        }
    }
    assert!(without, "no endpoint without a page was seen");
}
