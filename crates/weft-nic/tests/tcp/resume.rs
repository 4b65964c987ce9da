//! Connections that break while both endpoints live: no message is lost or repeated, and a real end is reported soon.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use weft_engine::mem::Owned;
use weft_engine::name::{EpName, FIRST_TX_CONTEXT, NameParts, endpoint_id};
use weft_engine::nic::{LinkError, LinkId};
use weft_nic::handshake::Key;
use weft_nic::{Tcp, TcpConfig};

use super::suite::{Node, Random, Window, World, pattern};
use super::{config, moved, parts, raw, while_running, world};

/// Two endpoints of different hosts, according to their names.
pub fn far_world(config: &TcpConfig) -> World<Tcp> {
    let node = |host_id| Node::new(Tcp::new(config, &NameParts { host_id, ..parts("127.0.0.1") }).unwrap());
    World { nodes: vec![node(1), node(2)] }
}

/// The fate of a connection through the forwarder.
#[derive(Clone, Copy, Debug)]
struct Cut {
    /// Bytes that pass from the caller to the endpoint, and in the other direction. The first limit that is reached
    /// ends the connection.
    after: [usize; 2],
    /// The connection ends by a reset, otherwise by the end of the stream.
    reset: bool,
}

/// A forwarder to `back`. Its n-th connection suffers the n-th cut; later ones suffer none. The returned flag stops it.
fn forwarder(back: SocketAddr, cuts: Vec<Cut>) -> (SocketAddr, Arc<AtomicBool>, thread::JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let front = listener.local_addr().unwrap();
    listener.set_nonblocking(true).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let thread = thread::spawn(move || {
        let mut cuts = cuts.into_iter();
        let mut pairs: Vec<([TcpStream; 2], Option<Cut>, [usize; 2])> = Vec::new();
        while !told.load(Ordering::Relaxed) {
            if let Ok((near, _)) = listener.accept() {
                let far = TcpStream::connect(back).unwrap();
                for stream in [&near, &far] {
                    stream.set_nonblocking(true).unwrap();
                    stream.set_nodelay(true).unwrap();
                }
                pairs.push(([near, far], cuts.next(), [0, 0]));
            }
            pairs.retain_mut(|(ends, cut, passed)| (0..2).all(|way| carry(ends, way, *cut, passed)));
            thread::yield_now();
        }
    });
    (front, stop, thread)
}

/// Carries bytes in one direction. False: both connections must end. For a cut with a reset, their sockets are
/// prepared.
fn carry(ends: &mut [TcpStream; 2], way: usize, cut: Option<Cut>, passed: &mut [usize; 2]) -> bool {
    let most = cut.map_or(1 << 16, |cut| cut.after[way] - passed[way]);
    let over = |ends: &[TcpStream; 2]| {
        if cut.is_some_and(|cut| cut.reset) {
            for end in ends {
                rustix::net::sockopt::set_socket_linger(end, Some(Duration::ZERO)).unwrap();
            }
        }
        false
    };
    if most == 0 {
        return over(ends);
    }
    let mut bytes = vec![0; most.min(1 << 16)];
    match ends[way].read(&mut bytes) {
        Ok(0) => false,
        Ok(n) => {
            // Few bytes are in flight, so the other end accepts them.
            let mut rest = &bytes[..n];
            while !rest.is_empty() {
                match ends[1 - way].write(rest) {
                    Ok(n) => rest = &rest[n..],
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => thread::yield_now(),
                    Err(_) => return false,
                }
            }
            passed[way] += n;
            true
        }
        Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
    }
}

/// Both sides send some short messages and a push. Everything arrives once and in order, and all pushes are done.
fn dialogue(world: &mut World<Tcp>, links: [LinkId; 2]) {
    let push = pattern(7, 40);
    let mut memory = Owned::new(push.clone());
    for node in 0..2 {
        world.nodes[node].inbox.windows.insert(1, Window::announced(40, 2));
    }
    for (node, &link) in links.iter().enumerate() {
        for text in [&b"first"[..], b"second"] {
            world.until("room", |nodes| nodes[node].send(link, 2, text).is_ok());
        }
        world.until("room", |nodes| nodes[node].push(link, 1, &[memory.iov()], 1).is_ok());
        world.until("room", |nodes| nodes[node].send(link, 2, b"third").is_ok());
    }
    world.until("everything", |nodes| {
        nodes.iter().all(|node| {
            node.inbox.messages.len() >= 3 && node.inbox.windows[&1].full() && node.inbox.done.contains_key(&1)
        })
    });
    world.rounds(20);
    for (node, &link) in links.iter().enumerate() {
        assert_eq!(world.nodes[node].take_messages(link), [&b"first"[..], b"second", b"third"]);
        let inbox = &mut world.nodes[node].inbox;
        assert_eq!(inbox.windows.remove(&1).unwrap().bytes(), push);
        assert_eq!(inbox.done.remove(&1), Some(Ok(())));
        assert!(inbox.down.is_empty());
    }
}

/// Links two endpoints through a forwarder with these cuts, and makes them talk. Returns the number of resumptions.
fn talk_through(cuts: Vec<Cut>) -> u64 {
    let mut world = far_world(&config().with(|config| {
        config.connect_timeout_ms = 20_000;
        config.answer_timeout_ms = 20_000;
    }));
    let (front, stop, thread) = forwarder(world.nodes[1].nic.local_addr(), cuts);
    let peer = moved(&world.nodes[1].name(), front);
    let near = world.nodes[0].connect(&peer);
    world.until("up", |nodes| nodes[0].inbox.up.contains_key(&near) && !nodes[1].inbox.order.is_empty());
    let far = world.nodes[1].inbox.order[0];
    dialogue(&mut world, [near, far]);
    let resumed = world.nodes[0].nic.stats().resumed;
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    resumed
}

const NEVER: usize = usize::MAX;
/// The bytes that each side sends before frames.
const SHAKEN: [usize; 2] = [raw::HELLO + raw::FINISH, raw::ANSWER + 8];
/// The frames of one side in the dialogue, without acknowledgements.
const SAID: usize = 13 + 14 + 64 + 13;

/// Cuts after each byte of either side's part, by a reset or by an end of the stream.
#[test]
fn a_dialogue_survives_a_cut_at_every_byte() {
    for way in 0..2 {
        // After the initiator's first byte its link is certainly up.
        for n in usize::from(way == 0)..SAID {
            let mut after = [NEVER; 2];
            after[way] = SHAKEN[way] + n;
            let resumed = talk_through(vec![Cut { after, reset: n % 2 == 0 }]);
            assert!(resumed >= 1, "{after:?}");
        }
    }
}

/// Cuts during the resumption of a link, and in the bytes after it.
fn cut_resumptions(way: usize) {
    let first = Cut { after: [SHAKEN[0] + 50, NEVER], reset: true };
    let shaken = [SHAKEN[0], raw::ANSWER + 16];
    for n in 0..shaken[way] + 40 {
        let mut after = [NEVER; 2];
        after[way] = n;
        talk_through(vec![first, Cut { after, reset: n % 2 == 0 }]);
    }
}

#[test]
fn a_resumption_survives_a_cut_at_every_byte_of_the_caller() {
    cut_resumptions(0);
}

#[test]
fn a_resumption_survives_a_cut_at_every_byte_of_the_called() {
    cut_resumptions(1);
}

/// Ends a link's connection as if both hosts had forgotten it: bytes in their buffers are lost.
fn break_connection(node: &Node<Tcp>, link: LinkId) -> bool {
    let Some(info) = node.nic.describe(link) else { return false };
    let (Some(local), Some(remote)) = (info.local, info.remote) else { return false };
    for entry in std::fs::read_dir("/proc/self/fd").unwrap().flatten() {
        let Ok(fd) = entry.file_name().to_string_lossy().parse::<i32>() else { continue };
        // Only the listing's own descriptor is closed soon, while this thread is here.
        if !std::fs::read_link(entry.path()).is_ok_and(|to| to.to_string_lossy().starts_with("socket:")) {
            continue;
        }
        // SAFETY: the descriptor is a socket of this process and lives: the endpoint that owns it is borrowed, or it is
        // another's whose addresses differ.
        let socket = unsafe { std::os::fd::BorrowedFd::borrow_raw(fd) };
        let addr = |of: rustix::net::SocketAddrAny| SocketAddr::try_from(of).ok();
        let here = rustix::net::getsockname(socket).ok().and_then(addr);
        let there = rustix::net::getpeername(socket).ok().flatten().and_then(addr);
        if (here, there) == (Some(local), Some(remote)) {
            // The socket becomes a fresh one: the kernel drops its buffers, and resets the other end.
            return rustix::net::connect_unspec(socket).is_ok();
        }
    }
    false
}

/// Messages of all sizes and pushes, in both directions, while connections break repeatedly in the middle.
#[test]
fn a_mixed_stream_survives_many_breaks() {
    for buffer_bytes in [Some(4608), None] {
        let settings = TcpConfig {
            send_buffer_bytes: buffer_bytes,
            receive_buffer_bytes: buffer_bytes,
            segment_bytes: if buffer_bytes.is_some() { 3001 } else { 65_536 },
            ..config()
        };
        mixed_stream(far_world(&settings), 40);
        mixed_stream(world(&settings, 2), 20);
        mixed_stream(far_world(&settings.with(|config| config.encrypt = true)), 20);
    }
}

fn mixed_stream(mut world: World<Tcp>, breaks: usize) {
    const MESSAGES: u64 = 400;
    const PUSHES: u64 = 60;
    let (near, far) = world.join_and_greet(0, 1);
    let links = [near, far];
    let length = |n: u64| 8 + (n * 7919 % if n.is_multiple_of(7) { 65_000 } else { 300 }) as usize;
    let size = |n: u64| 1 + (n * 104_729 % 200_000) as usize;
    let mut memory = Owned::new(pattern(3, 200_001));
    let whole = memory.iov();
    let (mut sent, mut got, mut pushed) = ([0u64; 2], [0u64; 2], [0u64; 2]);
    for node in 0..2 {
        for n in 0..PUSHES {
            world.nodes[node].inbox.windows.insert(n, Window::new(size(n)));
        }
    }
    let mut random = Random(77);
    let mut broken = 0;
    let start = Instant::now();
    let ended = |world: &World<Tcp>, got: [u64; 2]| {
        got == [MESSAGES; 2] && world.nodes.iter().all(|node| node.inbox.done.len() as u64 == PUSHES)
    };
    while !ended(&world, got) {
        assert!(start.elapsed() < Duration::from_secs(120), "{got:?} of {MESSAGES}, {broken} breaks");
        for node in 0..2 {
            let link = links[node];
            if sent[node] < MESSAGES && random.below(3) > 0 {
                let n = sent[node];
                let mut message = pattern(n, length(n));
                message[..8].copy_from_slice(&n.to_le_bytes());
                sent[node] += u64::from(world.nodes[node].send(link, 8, &message).is_ok());
            }
            let n = pushed[node];
            if n < PUSHES && random.below(8) == 0 {
                pushed[node] += u64::from(world.nodes[node].push(link, n, &[whole.slice(0, size(n))], n).is_ok());
            }
            world.nodes[node].poll();
            for message in world.nodes[node].take_messages(link) {
                let n = got[node];
                assert_eq!(message[..8], n.to_le_bytes(), "each once, and in order");
                assert!(message[8..] == pattern(n, length(n))[8..]);
                got[node] += 1;
            }
        }
        if broken < breaks && random.below(60) == 0 {
            let node = random.below(2);
            broken += usize::from(break_connection(&world.nodes[node], links[node]));
        }
    }
    world.rounds(100);
    for node in 0..2 {
        assert!(world.nodes[node].inbox.down.is_empty() && world.nodes[node].inbox.messages.is_empty());
        for (&n, window) in &mut world.nodes[node].inbox.windows {
            assert_eq!(window.placed, size(n));
            assert!(window.bytes() == pattern(3, 200_001)[..size(n)]);
        }
        assert!(world.nodes[node].inbox.done.values().all(Result::is_ok));
    }
    let stats = world.nodes[0].nic.stats();
    assert!(stats.resumed >= 5 && stats.resumed <= stats.breaks + broken as u64, "{stats:?}");
}

/// A device in the network passes handshakes and nothing else: resumptions then slow down.
#[test]
fn connections_without_progress_come_ever_later() {
    let settings = config().with(|config| {
        config.connect_timeout_ms = 20_000;
        config.answer_timeout_ms = 20_000;
    });
    let mut world = far_world(&settings);
    // The other end cannot call: its peer's name has an unreachable address.
    let nowhere = NameParts { host_id: 1, ..parts("255.255.255.255") };
    let everywhere = TcpConfig { bind: Some("0.0.0.0:0".parse().unwrap()), ..settings };
    world.nodes[0] = Node::new(Tcp::new(&everywhere, &nowhere).unwrap());
    let shaken = Cut { after: [NEVER, raw::ANSWER + 16], reset: false };
    let first = Cut { after: [NEVER, SHAKEN[1] + 12], reset: true };
    let (front, stop, thread) =
        forwarder(world.nodes[1].nic.local_addr(), [vec![first], vec![shaken; 10_000]].concat());
    let peer = moved(&world.nodes[1].name(), front);
    let near = world.nodes[0].connect(&peer);
    world.until("up", |nodes| nodes[0].inbox.up.contains_key(&near) && !nodes[1].inbox.order.is_empty());
    let far = world.nodes[1].inbox.order[0];
    world.nodes[1].send(far, 4, &[1; 1000]).unwrap();
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1500) {
        world.rounds(1);
    }
    let breaks = world.nodes[0].nic.stats().breaks;
    stop.store(true, Ordering::Relaxed);
    thread.join().unwrap();
    assert!((3..30).contains(&breaks), "{breaks} connections in a second and a half");
}

/// Inaccessible client memory ends the link of the push, and no other link.
#[test]
fn inaccessible_memory_ends_the_link() {
    const BYTES: usize = 1 << 20;
    let mut world = far_world(&config());
    let (near, far) = world.join_and_greet(0, 1);
    let mut source = Owned::new(vec![1; BYTES]);
    let page = rustix::param::page_size();
    let address = source.iov().addr() as usize;
    let first = (address + BYTES / 2).next_multiple_of(page);
    let last = (address + BYTES) & !(page - 1);
    let protect = |how: rustix::mm::MprotectFlags| {
        // SAFETY: whole pages inside the buffer. Meanwhile only the system accesses them, and it reports an error.
        unsafe { rustix::mm::mprotect(first as *mut _, last - first, how) }.unwrap();
    };
    world.nodes[1].inbox.windows.insert(1, Window::new(BYTES));
    protect(rustix::mm::MprotectFlags::empty());
    world.nodes[0].push(near, 1, &[source.iov()], 1).unwrap();
    world.until("ends", |nodes| nodes.iter().all(|node| !node.inbox.down.is_empty()));
    protect(rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE);
    assert_eq!(world.nodes[0].inbox.down, [(near, LinkError::Access)]);
    assert_eq!(world.nodes[1].inbox.down, [(far, LinkError::Gone)]);
    assert!(world.nodes[0].inbox.done[&1].is_err());
    world.join_and_greet(0, 1);
}

/// Acknowledged bytes are released soon, even without further traffic.
#[test]
fn an_idle_link_keeps_nothing() {
    let mut world = world(&config(), 2);
    let (near, far) = world.join_and_greet(0, 1);
    for n in 0..50 {
        world.nodes[0].send(near, 4, &[n; 1000]).unwrap();
    }
    assert!(world.nodes[0].nic.describe(near).unwrap().kept_bytes >= 50_000);
    world.until("messages", |nodes| nodes[1].inbox.messages.len() == 50);
    world.until("nothing kept", |nodes| nodes[0].nic.describe(near).unwrap().kept_bytes == 0);
    assert_eq!(world.nodes[1].nic.describe(far).unwrap().kept_bytes, 0);
    // The unread bytes of a peer are bounded.
    let mut accepted = 0;
    while world.nodes[0].send(near, 4, &[0; 10_000]).is_ok() {
        accepted += 1;
        world.nodes[0].poll();
    }
    assert!((20..=105).contains(&accepted), "{accepted}");
    world.until("messages", |nodes| nodes[1].inbox.messages.len() == 50 + accepted);
    world.until("room", |nodes| nodes[0].send(near, 4, &[0; 10_000]).is_ok());
}

/// The handshake of a simulated peer whose name has the address `at`.
fn visitor(world: &World<Tcp>, at: SocketAddr, host_id: u64) -> raw::Visit {
    let me = EpName::full(&NameParts { socket: at, host_id, ..parts("127.0.0.1") });
    raw::Visit { me, target: world.nodes[0].name() }
}

/// The end of a visitor's link, and the time from the break of its connection.
fn time_to_end(settings: &TcpConfig, at: SocketAddr, host_id: u64) -> (LinkError, Duration) {
    let world = world(settings, 1);
    let visit = visitor(&world, at, host_id);
    time_to_end_of(world, visit)
}

fn time_to_end_of(mut world: World<Tcp>, visit: raw::Visit) -> (LinkError, Duration) {
    let thread = thread::spawn(move || visit.join());
    let joined = while_running(&mut world, thread);
    let mut memory = Owned::new(vec![1; 1000]);
    world.until("up", |nodes| nodes[0].inbox.order.len() == 1);
    let link = world.nodes[0].inbox.order[0];
    world.nodes[0].push(link, 1, &[memory.iov()], 5).unwrap();
    world.rounds(10);
    joined.stream.shutdown(Shutdown::Both).unwrap();
    drop(joined);
    let start = Instant::now();
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert!(world.nodes[0].inbox.done[&5].is_err(), "an unacknowledged push fails");
    (world.nodes[0].inbox.down[0].1, start.elapsed())
}

/// No process listens at a peer's address. On this host that is believed at once, on another host after a moment.
#[test]
fn a_dead_peer_is_distinguished_from_a_cut_link() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let (why, took) = time_to_end(&config(), nobody, 1);
    assert_eq!(why, LinkError::Gone);
    assert!(took < Duration::from_millis(300), "{took:?}");
    let (why, took) = time_to_end(&config(), nobody, 2);
    assert_eq!(why, LinkError::Gone);
    assert!((Duration::from_millis(300)..Duration::from_millis(1000)).contains(&took), "{took:?}");
}

/// Another endpoint or another program listens at the peer's address.
#[test]
fn a_successor_is_not_the_peer() {
    let mut other = world(&config(), 1);
    let at = other.nodes[0].nic.local_addr();
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    let thread = thread::spawn(move || {
        while !told.load(Ordering::Relaxed) {
            other.nodes[0].poll();
        }
        other.nodes[0].inbox.order.len()
    });
    let (why, took) = time_to_end(&config(), at, 1);
    assert_eq!(why, LinkError::Gone);
    assert!(took < Duration::from_secs(1), "{took:?}");
    stop.store(true, Ordering::Relaxed);
    assert_eq!(thread.join().unwrap(), 0);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let thread = thread::spawn(move || listener.accept().unwrap().0.write_all(b"220 mail.example ESMTP\r\n").unwrap());
    assert_eq!(time_to_end(&config(), at, 1).0, LinkError::Gone);
    thread.join().unwrap();
}

/// A transmit context cannot be called. The address of the first receive context decides whether its endpoint lives.
/// There may be no listener, another endpoint, or the endpoint, whose transmit context has `answer_timeout_ms` to call.
#[test]
fn the_end_of_a_transmit_context_is_noticed() {
    for host_id in [1, 2] {
        let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let me = NameParts { host_id, ..parts("127.0.0.1") };
        let mut others = World { nodes: Vec::new() };
        for capability in [me.capability, parts("127.0.0.1").capability] {
            let other = NameParts { context: Some(0), capability, ep_id: endpoint_id(&capability), ..me };
            others.nodes.push(Node::new(Tcp::new(&config(), &other).unwrap()));
        }
        let [endpoint, successor] = [0, 1].map(|at| others.nodes[at].nic.local_addr());
        let stop = Arc::new(AtomicBool::new(false));
        let told = stop.clone();
        let thread = thread::spawn(move || {
            while !told.load(Ordering::Relaxed) {
                others.rounds(1);
            }
        });
        for (at, least_ms, most_ms) in [(nobody, 0, 1000), (successor, 0, 1000), (endpoint, 950, 3000)] {
            let name = NameParts { socket: at, context: Some(FIRST_TX_CONTEXT), ..me };
            let world = world(&config(), 1);
            let visit = raw::Visit { me: EpName::full(&name), target: world.nodes[0].name() };
            let (why, took) = time_to_end_of(world, visit);
            assert_eq!(why, LinkError::Gone);
            let expected = Duration::from_millis(least_ms)..Duration::from_millis(most_ms);
            assert!(expected.contains(&took), "{took:?}, not {expected:?}");
        }
        stop.store(true, Ordering::Relaxed);
        thread.join().unwrap();
    }
}

/// A closed link is removed if it was closed in the middle of a segment, and its peer requests the end from an
/// impossible position.
#[test]
fn a_closed_link_has_no_end_at_an_impossible_position() {
    let settings = TcpConfig { send_buffer_bytes: Some(4608), segment_bytes: 1 << 20, ..config() };
    let mut world = world(&settings, 1);
    let visit = visitor(&world, "127.0.0.1:9".parse().unwrap(), 2);
    let thread = thread::spawn(move || visit.join());
    let joined = while_running(&mut world, thread);
    world.until("up", |nodes| nodes[0].inbox.order.len() == 1);
    let link = world.nodes[0].inbox.order[0];
    let mut memory = Owned::new(vec![1; 1 << 24]);
    world.nodes[0].push(link, 1, &[memory.iov()], 5).unwrap();
    world.rounds(10);
    world.nodes[0].close(link);
    let thread = thread::spawn(move || {
        let mut carried = joined.come_back(&joined.key.clone(), 5, u64::MAX, None).unwrap().0;
        raw::has_ended(&mut carried)
    });
    assert!(while_running(&mut world, thread));
    // The endpoint still works.
    world.nodes.push(Node::new(Tcp::new(&settings, &parts("127.0.0.1")).unwrap()));
    world.join_and_greet(0, 1);
}

/// A silent host is dialled until the time is over, and no longer. The link then ends as cut, not as hung up.
#[test]
fn resumption_ends_after_its_time_limit() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    rustix::net::listen(&listener, 0).unwrap();
    let at = listener.local_addr().unwrap();
    let _fill: Vec<_> = (0..3).map(|_| TcpStream::connect_timeout(&at, Duration::from_millis(100))).collect();
    for resume_ms in [1500, 400] {
        let (why, took) = time_to_end(&config().with(|config| config.resume_ms = resume_ms), at, 2);
        assert_eq!(why, LinkError::Cut);
        let least = Duration::from_millis(resume_ms.min(1000));
        assert!((least..Duration::from_millis(resume_ms + 2500)).contains(&took), "{resume_ms}: {took:?}");
    }
    let (why, took) = time_to_end(&config().with(|config| config.resume_ms = 0), at, 2);
    assert_eq!(why, LinkError::Gone);
    assert!(took < Duration::from_millis(300), "{took:?}");
}

/// An endpoint that is opened anew at the same address with the same name knows no earlier links.
#[test]
fn a_reopened_endpoint_does_not_know_the_session() {
    let mut world = world(&config(), 1);
    let mine = NameParts { host_id: 2, ..parts("127.0.0.1") };
    let first = Tcp::new(&config(), &mine).unwrap();
    let at = first.local_addr();
    world.nodes.push(Node::new(first));
    let (near, _) = world.join_and_greet(0, 1);
    let before = world.nodes[0].nic.stats();
    // There is no goodbye, as if its process had died.
    let gone = world.nodes.pop().unwrap();
    break_connection(&gone, gone.inbox.order[0]);
    drop(gone);
    world.nodes.push(Node::new(Tcp::new(&TcpConfig { bind: Some(at), ..config() }, &mine).unwrap()));
    let start = Instant::now();
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down, [(near, LinkError::Gone)]);
    assert!(start.elapsed() < Duration::from_secs(2));
    assert!(world.nodes[1].inbox.order.is_empty());
    assert_eq!(world.nodes[0].nic.stats().resumed, before.resumed);
}

/// A stranger that has seen a session's number, or a whole dialogue, cannot take a link over. The link continues on its
/// own connection.
#[test]
fn a_stranger_cannot_resume_a_link() {
    let mut world = world(&config(), 1);
    let visit = visitor(&world, "127.0.0.1:9".parse().unwrap(), 2);
    let target = world.nodes[0].name();
    let thread = thread::spawn(move || {
        let mut joined = visit.join();
        let stolen = Key::new(&[7; 16], None);
        assert_eq!(joined.come_back(&stolen, 5, 0, None).err(), Some(3), "a wrong key");
        let mut record = Vec::new();
        let unknown = raw::Joined { number: joined.number ^ 1, ..joined.again() };
        assert_eq!(unknown.come_back(&joined.key.clone(), 5, 0, None).err(), Some(4), "no such session");
        let frame = raw::frame(1, b"still here");
        joined.stream.write_all(&frame).unwrap();
        let (stream, position) = joined.come_back(&joined.key.clone(), 5, 0, Some(&mut record)).unwrap();
        // The message may have been read, or lost with the old connection.
        assert!([0, 18].contains(&position));
        assert!(raw::has_ended(&mut joined.stream), "the old connection is over");
        assert_eq!(joined.come_back(&joined.key.clone(), 4, 0, None).err(), Some(5), "an epoch of the past");
        // A recorded dialogue fails because the acceptor's nonce is a new one.
        let mut replay = raw::dial(target.socket());
        replay.write_all(&record[..raw::HELLO]).unwrap();
        let mut answer = [0; raw::ANSWER];
        replay.read_exact(&mut answer).unwrap();
        replay.write_all(&record[raw::HELLO..]).unwrap();
        let mut verdict = [9; 16];
        replay.read_exact(&mut verdict).unwrap();
        assert_eq!(verdict[0], 3);
        let mut stream = stream;
        stream.write_all(&frame[position as usize..]).unwrap();
        stream.write_all(&raw::frame(1, b"and here")).unwrap();
        stream
    });
    let mut stream = while_running(&mut world, thread);
    world.until("messages", |nodes| nodes[0].inbox.messages.len() == 2);
    let link = world.nodes[0].inbox.order[0];
    assert_eq!(world.nodes[0].take_messages(link), [&b"still here"[..], b"and here"]);
    assert!(world.nodes[0].inbox.down.is_empty());
    // An acknowledged position that was never sent ends the link.
    stream.write_all(&raw::frame(4, &1000u64.to_le_bytes())).unwrap();
    world.until("end", |nodes| !nodes[0].inbox.down.is_empty());
    assert_eq!(world.nodes[0].inbox.down[0].1, LinkError::Protocol);
}
