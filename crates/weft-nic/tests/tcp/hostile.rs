//! Peers that break the rules affect only their own connection.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use weft_engine::name::{EpName, NameParts};
use weft_engine::nic::LinkError;
use weft_nic::TcpConfig;
use weft_nic::handshake::Key;

use super::flood::dial_from;
use super::suite::{Random, Window};
use super::{config, open, parts, raw, while_running, world};

fn stranger() -> EpName {
    EpName::full(&parts("127.0.0.1"))
}

/// The endpoint refuses random bytes, right beginnings with wrong continuations, and hang-ups at every position.
#[test]
fn garbage_in_the_handshake_is_refused() {
    let mut world = world(&config(), 2);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let good = raw::hello(&stranger(), &target);
        let mut random = Random(3);
        for round in 0..200 {
            let mut bytes = good;
            for _ in 0..1 + round % 5 {
                bytes[random.below(112)] ^= 1 << random.below(8);
            }
            let cut = if round % 3 == 0 { random.below(112) } else { 112 };
            let mut stream = raw::dial(target.socket());
            // The endpoint may hang up at any moment.
            let _ = stream.write_all(&bytes[..cut]);
            let _ = stream.write_all(&[0x55; 48][..random.below(48)]);
        }
        for magic in [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 300], b"weft-tcp", b"SSH-2.0-x\r\n"] {
            let _ = raw::dial(target.socket()).write_all(magic);
        }
    });
    while_running(&mut world, thread);
    let deadline = Instant::now() + Duration::from_secs(10);
    while world.nodes[0].nic.stats().refused < 204 && Instant::now() < deadline {
        world.rounds(100);
    }
    assert_eq!(world.nodes[0].nic.stats().refused, 204);
    assert!(world.nodes[0].inbox.up.is_empty() && world.nodes[0].inbox.down.is_empty());
    world.join_and_greet(1, 0);
}

#[test]
fn a_wrong_proof_is_denied() {
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let me = stranger();
        let mut stream = raw::dial(target.socket());
        let hello = raw::hello(&me, &target);
        stream.write_all(&hello).unwrap();
        let mut answer = [0; raw::ANSWER];
        stream.read_exact(&mut answer).unwrap();
        let wrong = Key::new(&[7; 16], None);
        stream.write_all(&raw::finish(&me, &wrong, &hello, &answer)).unwrap();
        let mut verdict = [0; 8];
        stream.read_exact(&mut verdict).unwrap();
        assert_eq!(verdict[0], 3);
        assert!(raw::has_ended(&mut stream));
    });
    while_running(&mut world, thread);
    assert!(world.nodes[0].inbox.up.is_empty());
}

/// The warnings of the endpoints of all tests in this process.
struct Warnings(Mutex<Vec<String>>);

static WARNINGS: Warnings = Warnings(Mutex::new(Vec::new()));

/// Collects warnings from now on.
pub(super) fn collect_warnings() {
    // Another test may have done so.
    let _ = log::set_logger(&WARNINGS);
    log::set_max_level(log::LevelFilter::Warn);
}

/// The number of warnings with this text.
pub(super) fn warnings(text: &str) -> usize {
    WARNINGS.0.lock().unwrap().iter().filter(|warning| warning.contains(text)).count()
}

impl log::Log for Warnings {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() <= log::Level::Warn
    }
    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            self.0.lock().unwrap().push(record.args().to_string());
        }
    }
    fn flush(&self) {}
}

/// Only the first, second, fourth, … denial is logged, so that repeated attempts do not fill the log.
#[test]
fn denials_do_not_fill_the_log() {
    collect_warnings();
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let (me, wrong) = (stranger(), Key::new(&[7; 16], None));
        for _ in 0..20 {
            let mut stream = dial_from(77, target.socket());
            let hello = raw::hello(&me, &target);
            stream.write_all(&hello).unwrap();
            let mut answer = [0; raw::ANSWER];
            stream.read_exact(&mut answer).unwrap();
            stream.write_all(&raw::finish(&me, &wrong, &hello, &answer)).unwrap();
            assert!(raw::has_ended(&mut stream));
        }
    });
    while_running(&mut world, thread);
    assert_eq!(world.nodes[0].nic.stats().denied, 20);
    assert_eq!(warnings("127.0.9.77 "), 5);
}

/// The bytes of an honest initiator are sent again. The acceptor's nonce is a new one.
#[test]
fn a_replayed_handshake_is_denied() {
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let me = stranger();
        let hello = raw::hello(&me, &target);
        let key = Key::new(&target.capability(), None);
        let mut recorded = None;
        for expected in [0, 3] {
            let mut stream = raw::dial(target.socket());
            stream.write_all(&hello).unwrap();
            let mut answer = [0; raw::ANSWER];
            stream.read_exact(&mut answer).unwrap();
            let finish = *recorded.get_or_insert_with(|| raw::finish(&me, &key, &hello, &answer));
            stream.write_all(&finish).unwrap();
            let mut verdict = [9; 8];
            stream.read_exact(&mut verdict).unwrap();
            assert_eq!(verdict[0], expected);
        }
    });
    while_running(&mut world, thread);
    assert_eq!(world.nodes[0].inbox.order.len(), 1);
}

/// A peer that may connect claims to be another endpoint, of which it has only the public name.
#[test]
fn a_peer_cannot_impersonate_an_endpoint_without_its_capability() {
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let (me, other) = (stranger(), stranger());
        let claimed = EpName::full(&NameParts {
            socket: me.socket(),
            host_id: me.host_id(),
            ep_id: other.ep_id(),
            capability: me.capability(),
            context: None,
            shm: true,
            tcp: true,
        });
        raw::try_join(&claimed, &target)
    });
    assert_eq!(while_running(&mut world, thread), Some(3));
    assert!(world.nodes[0].inbox.up.is_empty());
}

/// An impostor listens at a peer's address. It does not know the capability, and learns none.
#[test]
fn an_impostor_is_detected() {
    let mut world = world(&config(), 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = super::moved(&stranger(), listener.local_addr().unwrap());
    let mine = world.nodes[0].name();
    world.nodes[0].connect(&peer);
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut said = [0; raw::HELLO];
        stream.read_exact(&mut said).unwrap();
        stream.write_all(&raw::answer(&peer)).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.is_empty());
        assert!(!said.windows(16).any(|window| window == mine.capability()));
    });
    world.until("denial", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Denied);
    while_running(&mut world, thread);
}

/// Another service listens at the address.
#[test]
fn a_foreign_service_is_a_breach_of_the_protocol() {
    let mut world = world(&config(), 1);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let peer = EpName::service(listener.local_addr().unwrap());
    let link = world.nodes[0].connect(&peer);
    let thread = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"220 mail.example ESMTP\r\n").unwrap();
        raw::has_ended(&mut stream)
    });
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Protocol)]);
    assert!(while_running(&mut world, thread));
}

/// Each invalid frame ends its link with `Protocol` after the earlier frames were delivered, and no other link.
#[test]
fn invalid_frames_end_only_their_link() {
    let mut world = world(&config(), 2);
    let (good, _) = world.join_and_greet(1, 0);
    let long = |len: u32, kind: u8| [&len.to_le_bytes()[..], &[kind, 0, 0, 0]].concat();
    let wild: Vec<Vec<u8>> = vec![
        long(65_793, 1),
        long(u32::MAX, 1),
        long(0, 2),
        long(16, 2),
        long(1_048_593, 2),
        long(u32::MAX, 2),
        long(1, 3),
        long(0, 0),
        long(10, 77),
        vec![0, 0, 0, 0, 1, 0, 0, 1],
        raw::segment(1, u64::MAX, b"xx"),
    ];
    for bytes in wild {
        let target = world.nodes[0].name();
        let ended = world.nodes[0].inbox.down.len();
        let thread = thread::spawn(move || {
            let mut stream = raw::join(&stranger(), &target);
            stream.write_all(&raw::frame(1, b"before")).unwrap();
            stream.write_all(&bytes).unwrap();
            raw::has_ended(&mut stream)
        });
        world.until("end", |nodes| nodes[0].inbox.down.len() > ended);
        let (link, why) = *world.nodes[0].inbox.down.last().unwrap();
        assert_eq!(why, LinkError::Protocol);
        assert_eq!(world.nodes[0].take_messages(link), [b"before"]);
        assert!(while_running(&mut world, thread));
    }
    world.nodes[1].send(good, 2, b"still here").unwrap();
    world.until("the good link", |nodes| nodes[0].inbox.messages.pop_front().is_some());
}

/// Frames that arrive byte by byte are decoded as if they had arrived whole.
#[test]
fn frames_may_arrive_byte_by_byte() {
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    world.nodes[0].inbox.windows.insert(5, Window::new(300));
    let payload: Vec<u8> = (0..=255).collect();
    let mut bytes = raw::frame(1, b"first");
    bytes.extend(raw::segment(5, 0, &payload[..200]));
    bytes.extend(raw::frame(1, &payload));
    bytes.extend(raw::segment(5, 200, &payload[..100]));
    bytes.extend(raw::frame(1, b""));
    bytes.extend(raw::frame(3, b""));
    let thread = thread::spawn(move || {
        let mut stream = raw::join(&stranger(), &target);
        for byte in bytes {
            stream.write_all(&[byte]).unwrap();
            thread::sleep(Duration::from_micros(300));
        }
        raw::has_ended(&mut stream)
    });
    assert!(while_running(&mut world, thread));
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    let (link, why) = world.nodes[0].inbox.down[0];
    assert_eq!(why, LinkError::Closed);
    assert_eq!(world.nodes[0].take_messages(link), [b"first".to_vec(), payload.clone(), Vec::new()]);
    let window = world.nodes[0].inbox.windows.get_mut(&5).unwrap();
    assert_eq!(window.placed, 300);
    assert_eq!(window.bytes(), [&payload[..200], &payload[..100]].concat());
}

/// A peer dies in the middle of a header, a message, or a segment. The earlier frames are delivered.
#[test]
fn a_peer_may_die_in_the_middle_of_a_frame() {
    for reset in [false, true] {
        for cut in [3, 8 + 5, 13 + 7, 13 + 23, 13 + 24 + 50] {
            let mut world = world(&config(), 1);
            let target = world.nodes[0].name();
            let bytes = [raw::frame(1, b"whole"), raw::segment(5, 0, &[7; 100])].concat();
            let thread = thread::spawn(move || {
                let mut stream = raw::join(&stranger(), &target);
                stream.write_all(&bytes[..cut]).unwrap();
                thread::sleep(Duration::from_millis(20));
                if reset {
                    let linger = Some(Duration::ZERO);
                    rustix::net::sockopt::set_socket_linger(&stream, linger).unwrap();
                }
            });
            world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
            let (link, why) = world.nodes[0].inbox.down[0];
            assert_eq!(why, LinkError::Gone);
            let whole = usize::from(cut >= 13);
            assert_eq!(world.nodes[0].take_messages(link).len(), whole);
            thread.join().unwrap();
        }
    }
}

/// A peer receives everything and acknowledges nothing. At most 1 MiB of its messages is kept; then its link is full.
#[test]
fn unacknowledged_bytes_are_bounded() {
    let mut world = world(&config(), 1);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let mut stream = raw::join(&stranger(), &target);
        stream.write_all(&raw::frame(1, b"hello")).unwrap();
        let (mut bytes, mut taken) = (vec![0; 1 << 16], 0);
        while let Ok(n @ 1..) = stream.read(&mut bytes) {
            taken += n;
        }
        taken
    });
    world.until("hello", |nodes| !nodes[0].inbox.messages.is_empty());
    let (link, _) = world.nodes[0].inbox.messages[0];
    let (mut kept, end) = (0, Instant::now() + Duration::from_millis(500));
    while Instant::now() < end {
        kept += if world.nodes[0].send(link, 8, &[7; 10_000]).is_ok() { 10_000 } else { 0 };
        world.rounds(1);
    }
    assert!((900_000..=1 << 20).contains(&kept), "{kept} bytes");
    drop(world);
    assert!(thread.join().unwrap() >= kept, "all bytes were sent; only the acknowledgement was missing");
}

/// A connection with a hello but without a finish is dropped after the time limit.
#[test]
fn half_a_handshake_times_out() {
    let mut world = world(
        &config().with(|config| {
            config.connect_timeout_ms = 200;
            config.answer_timeout_ms = 300;
        }),
        1,
    );
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let mut silent = raw::dial(target.socket());
        let mut half = raw::dial(target.socket());
        half.write_all(&raw::hello(&stranger(), &target)).unwrap();
        let mut answer = [0; raw::ANSWER];
        half.read_exact(&mut answer).unwrap();
        raw::has_ended(&mut silent) && raw::has_ended(&mut half)
    });
    assert!(while_running(&mut world, thread));
    assert_eq!(world.nodes[0].nic.stats().refused, 2);
}

/// An endpoint that is not open requires the capability.
#[test]
fn a_service_name_is_not_enough_for_a_closed_endpoint() {
    let mut world = world(&config(), 2);
    let service = EpName::service(world.nodes[0].nic.local_addr());
    let link = world.nodes[1].connect(&service);
    world.until("denial", |nodes| !nodes[1].inbox.down.is_empty());
    assert_eq!(world.nodes[1].inbox.down, [(link, LinkError::Denied)]);
}

/// Endpoints of different jobs do not connect, by full name or by service.
#[test]
fn job_keys_must_agree() {
    let with_key = |byte: Option<u8>| {
        open(&TcpConfig { job_key: byte.map(|byte| [byte; 32]), ..config() }.with(|config| config.open = true))
    };
    for (mine, theirs, agree) in [(Some(1), Some(1), true), (Some(1), Some(2), false), (None, Some(1), false)] {
        let mut world =
            super::World { nodes: [mine, theirs].into_iter().map(|key| super::Node::new(with_key(key))).collect() };
        let full = world.nodes[1].name();
        for name in [full, EpName::service(full.socket())] {
            let link = world.nodes[0].connect(&name);
            world.until("an end", |nodes| {
                nodes[0].inbox.up.contains_key(&link) || nodes[0].inbox.down.iter().any(|&(of, _)| of == link)
            });
            assert_eq!(world.nodes[0].inbox.up.contains_key(&link), agree);
            if !agree {
                assert_eq!(world.nodes[0].inbox.down.last().unwrap().1, LinkError::Denied);
            }
        }
    }
}
