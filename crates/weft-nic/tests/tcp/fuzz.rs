//! Fuzz targets: what strangers say before they have proven anything, and what a peer says that has.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weft_engine::name::EpName;
use weft_engine::nic::LinkError;
use weft_fuzz::{Reader, fuzz, hash};
use weft_nic::handshake::Key;
use weft_nic::{Tcp, TcpConfig};

use super::suite::Window;
use super::{Node, config, moved, open, parts, raw, world};

fn settings() -> TcpConfig {
    // Inputs that say half a hello shall not last.
    TcpConfig { half_open: 8, ..config() }
}

fn stranger() -> EpName {
    EpName::full(&parts("127.0.0.1"))
}

/// The handshake of a peer that plays both sides.
fn join(node: &mut Node<Tcp>, me: &EpName, target: &EpName) -> TcpStream {
    let mut stream = raw::dial(target.socket());
    let mut poll_until = |stream: &TcpStream, bytes: usize| {
        stream.set_nonblocking(true).unwrap();
        while stream.peek(&mut [0; raw::ANSWER]).unwrap_or(0) < bytes {
            node.poll();
        }
        stream.set_nonblocking(false).unwrap();
    };
    let hello = raw::hello(me, target);
    stream.write_all(&hello).unwrap();
    let mut answer = [0; raw::ANSWER];
    poll_until(&stream, raw::ANSWER);
    stream.read_exact(&mut answer).unwrap();
    let key = Key::new(&target.capability(), None);
    stream.write_all(&raw::finish(me, &key, &hello, &answer)).unwrap();
    let mut verdict = [9; raw::VERDICT];
    poll_until(&stream, raw::VERDICT);
    stream.read_exact(&mut verdict).unwrap();
    assert_eq!(verdict[0], 0);
    stream
}

/// Frames of a peer: the link ends with the peer, or because of a breach of the protocol; what is pushed stays in its window.
#[test]
fn frames() {
    let seeds = [
        raw::frame(1, b"a message"),
        [raw::frame(1, b""), raw::segment(5, 0, &[7; 100]), raw::frame(1, &[1; 300])].concat(),
        [raw::segment(5, 0, &[7; 100]), raw::segment(5, 100, &[8; 100]), raw::frame(3, b"")].concat(),
        raw::frame(4, &[0; 8]),
        raw::segment(1, u64::MAX, b"xx"),
    ];
    let mut world = world(&settings(), 1);
    let target = world.nodes[0].name();
    fuzz("tcp-frames", &seeds, |input| {
        let mut reader = Reader(input);
        let node = &mut world.nodes[0];
        node.inbox = super::suite::Inbox::default();
        node.inbox.windows.insert(5, Window::new(200));
        node.inbox.from_anybody = true;
        let me = stranger();
        let mut stream = join(node, &me, &target);
        let cut = usize::from(reader.byte()).max(1) * 4;
        for piece in reader.0.chunks(cut) {
            if stream.write_all(piece).is_err() {
                break;
            }
            node.poll();
        }
        drop(stream);
        let start = Instant::now();
        while node.inbox.down.is_empty() {
            node.poll();
            assert!(start.elapsed() < Duration::from_secs(4), "the link does not end");
        }
        let why = node.inbox.down[0].1;
        assert!(matches!(why, LinkError::Protocol | LinkError::Closed | LinkError::Gone), "{why}");
        let mut seen: Vec<u8> = node.inbox.messages.iter().map(|(_, bytes)| bytes.len().min(255) as u8).collect();
        seen.extend([254, why as u8, node.inbox.windows[&5].placed.min(255) as u8]);
        hash(&seen)
    });
}

/// What comes before a proof: never a link.
#[test]
fn hellos() {
    let mut world = world(&settings(), 1);
    let target = world.nodes[0].name();
    let good = raw::hello(&stranger(), &target).to_vec();
    let mut service = good.clone();
    service[9] = 0;
    let seeds = [good.clone(), [&good[..], &[9; raw::FINISH]].concat(), service, b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    let mut dialled = 0;
    fuzz("tcp-hellos", &seeds, |input| {
        let mut bytes = input.to_vec();
        // The id is this run's: whoever has seen the endpoint's public name knows it.
        if bytes.get(96..112) == Some(&good[96..112]) || bytes.len() > 112 {
            bytes[96..112].copy_from_slice(&target.ep_id());
        }
        let mut stream = raw::dial(target.socket());
        let _ = stream.write_all(&bytes);
        let node = &mut world.nodes[0];
        // While half-open connections crowd, few are accepted at a time; what nobody accepts fills the kernel's queue.
        dialled += 1;
        while node.nic.stats().refused + (node.nic.stats().half_open as u64) < dialled {
            node.poll();
        }
        for _ in 0..3 {
            node.poll();
        }
        stream.set_nonblocking(true).unwrap();
        let mut answer = [0; raw::ANSWER];
        let outcome = match stream.read(&mut answer) {
            Ok(0) => 1,
            Ok(n) => 256 * n as u64 + u64::from(answer[9]),
            Err(_) => 2,
        };
        drop(stream);
        for _ in 0..3 {
            node.poll();
        }
        assert!(node.inbox.up.is_empty() && node.inbox.down.is_empty());
        outcome
    });
}

/// What somebody answers who listens at a peer's address: the attempt fails, and says why.
#[test]
fn answers() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = moved(&stranger(), listener.local_addr().unwrap());
    let mut good = vec![0; raw::ANSWER];
    good[..8].copy_from_slice(b"weft-tcp");
    good[8] = 1;
    good[32..96].copy_from_slice(&weft_nic::handshake::public_part(&peer));
    let mut denied = good.clone();
    denied[9] = 3;
    let seeds = [[&good[..], &[0; 8]].concat(), denied, good[..100].to_vec(), b"220 mail ESMTP\r\n".to_vec()];
    let mut node = Node::new(open(&TcpConfig { connect_retry_ms: 0, ..settings() }));
    fuzz("tcp-answers", &seeds, |input| {
        let link = node.connect(&peer);
        let (mut stream, _) = listener.accept().unwrap();
        node.poll();
        let _ = stream.write_all(input);
        for _ in 0..3 {
            node.poll();
        }
        assert!(node.inbox.up.is_empty());
        let outcome = match node.inbox.down.pop() {
            Some((ended, why)) => {
                assert_eq!(ended, link);
                10 + why as u64
            }
            None => {
                // It waits for the rest, or would call again.
                weft_engine::nic::Nic::close(&mut node.nic, link);
                1
            }
        };
        node.inbox = super::suite::Inbox::default();
        outcome
    });
}
