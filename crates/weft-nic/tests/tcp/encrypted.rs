//! Encrypted links: what somebody on the path sees and can do. (That they carry everything as others do is checked in
//! conformance.rs.)

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use weft_engine::name::EpName;
use weft_engine::nic::{LinkError, LinkId};
use weft_nic::TcpConfig;

use super::{Node, World, config, moved, open};

/// Bytes of the handshake that the initiator says: hello, finish, message of the exchange of keys.
const SAID: usize = 112 + 48 + 48;

fn settings(encrypt: bool) -> TcpConfig {
    // The end of a connection shall be seen as such.
    TcpConfig { encrypt, resume_ms: 0, ..config() }
}

fn pair(encrypt: [bool; 2]) -> World<super::Tcp> {
    World { nodes: encrypt.map(|encrypt| Node::new(open(&settings(encrypt)))).into_iter().collect() }
}

/// Somebody on the path: changes what the initiator says, and writes down what both say.
struct Between {
    heard: Arc<Mutex<Vec<u8>>>,
    /// Its connections with the two.
    ends: Arc<Mutex<Vec<TcpStream>>>,
    /// The acceptor's name, as if it listened here.
    name: EpName,
}

fn between(target: EpName, change: impl Fn(usize, &mut u8) + Send + 'static) -> Between {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = moved(&target, listener.local_addr().unwrap());
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ends = Arc::new(Mutex::new(Vec::new()));
    let (notes, held) = (Arc::clone(&heard), Arc::clone(&ends));
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target.socket()).unwrap();
        *held.lock().unwrap() = vec![near.try_clone().unwrap(), far.try_clone().unwrap()];
        let (back_from, back_to, back_notes) =
            (far.try_clone().unwrap(), near.try_clone().unwrap(), Arc::clone(&notes));
        let back = thread::spawn(move || pass(back_from, back_to, &back_notes, |_, _| ()));
        pass(near, far, &notes, change);
        back.join().unwrap();
    });
    Between { heard, ends, name }
}

fn pass(mut from: TcpStream, mut to: TcpStream, notes: &Mutex<Vec<u8>>, change: impl Fn(usize, &mut u8)) {
    let (mut buffer, mut at) = ([0; 4096], 0);
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        for byte in &mut buffer[..n] {
            change(at, byte);
            at += 1;
        }
        notes.lock().unwrap().extend_from_slice(&buffer[..n]);
        if to.write_all(&buffer[..n]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
}

/// Nothing of what is said can be read between, in either direction, short or long; unencrypted it can.
#[test]
fn a_listener_reads_nothing() {
    for encrypt in [true, false] {
        let mut world = pair([encrypt; 2]);
        let listener = between(world.nodes[1].name(), |_, _| ());
        let near = world.nodes[0].connect(&listener.name);
        world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
        let far = world.nodes[1].inbox.order[0];
        let long: Vec<u8> = b"a long secret ".iter().copied().cycle().take(50_000).collect();
        for (node, link) in [(0, near), (1, far)] {
            world.nodes[node].send(link, 3, b"a short secret").unwrap();
            world.nodes[node].send(link, 3, &long).unwrap();
        }
        let both = |nodes: &mut [Node<super::Tcp>]| nodes.iter().all(|node| node.inbox.messages.len() == 2);
        world.until("messages", both);
        for (node, link) in [(0, near), (1, far)] {
            assert_eq!(world.nodes[node].take_messages(link), [b"a short secret".to_vec(), long.clone()]);
        }
        let heard = listener.heard.lock().unwrap();
        assert!(heard.len() > 100_000);
        for secret in [&b"a short secret"[..], b"long secret", b"hort secret"] {
            assert_eq!(heard.windows(secret.len()).any(|part| part == secret), !encrypt);
        }
    }
}

/// One changed bit, in the exchange of keys or in anything after it, ends the link; nothing false is handed on.
#[test]
fn changed_bytes_end_the_link() {
    for at in [112 + 48, SAID - 1, SAID, SAID + 3, SAID + 4, SAID + 20, SAID + 60, SAID + 200] {
        let mut world = pair([true; 2]);
        let liar = between(world.nodes[1].name(), move |place, byte| *byte ^= u8::from(place == at) << 2);
        let near = world.nodes[0].connect(&liar.name);
        let sent: Vec<Vec<u8>> = (0..8_u8).map(|n| vec![n; 40]).collect();
        let mut rest = sent.iter();
        world.until("the end", |nodes| {
            if nodes[0].inbox.up.contains_key(&near)
                && let Some(bytes) = rest.next()
            {
                let _ = nodes[0].send(near, 3, bytes);
            }
            !nodes[0].inbox.down.is_empty()
        });
        let up = !world.nodes[1].inbox.order.is_empty();
        if up {
            world.until("the other end", |nodes| !nodes[1].inbox.down.is_empty());
            let why = world.nodes[1].inbox.down[0].1;
            assert!(matches!(why, LinkError::Protocol | LinkError::Gone), "{at}: {why}");
        }
        assert_eq!(up, at >= SAID, "who does not agree on keys gets no link");
        let heard: Vec<Vec<u8>> = world.nodes[1].inbox.messages.drain(..).map(|(_, bytes)| bytes).collect();
        assert!(heard.len() < sent.len() && sent.starts_with(&heard), "{at}");
    }
}

/// Whoever encrypts and whoever does not get no link, and hear why.
#[test]
fn both_sides_must_want_it() {
    for encrypt in [[true, false], [false, true]] {
        let mut world = pair(encrypt);
        let peer = world.nodes[1].name();
        let link = world.nodes[0].connect(&peer);
        world.until("refusal", |nodes| !nodes[0].inbox.down.is_empty());
        assert_eq!(world.nodes[0].inbox.down, [(link, LinkError::Encryption)]);
        assert!(LinkError::Encryption.to_string().contains("FI_WEFT_TCP_ENCRYPT"));
        assert!(world.nodes[1].inbox.up.is_empty());
        assert_eq!(world.nodes[1].nic.stats().denied, 1);
    }
}

/// Somebody on the path takes the wish to encrypt out of the hello, or puts one in: no link, plain or
/// encrypted, comes of it.
#[test]
fn nobody_on_the_path_changes_that() {
    for encrypt in [[true, false], [true, true], [false, true], [false, false]] {
        let mut world = pair(encrypt);
        let liar = between(world.nodes[1].name(), |place, byte| *byte ^= u8::from(place == 9) << 3);
        let link: LinkId = world.nodes[0].connect(&liar.name);
        world.until("refusal", |nodes| !nodes[0].inbox.down.is_empty());
        let (ended, why) = world.nodes[0].inbox.down[0];
        assert_eq!(ended, link);
        assert!(matches!(why, LinkError::Denied | LinkError::Encryption), "{encrypt:?}: {why}");
        assert!(world.nodes[1].inbox.up.is_empty());
    }
}

/// A connection that ends without a goodbye is told from one that was closed: nobody on the path can say
/// goodbye for a peer.
#[test]
fn a_cut_end_is_no_goodbye() {
    for cut in [true, false] {
        let mut world = pair([true; 2]);
        let listener = between(world.nodes[1].name(), |_, _| ());
        let near = world.nodes[0].connect(&listener.name);
        world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
        if cut {
            listener.ends.lock().unwrap().iter().for_each(|end| end.shutdown(Shutdown::Both).unwrap());
        } else {
            world.nodes[0].close(near);
        }
        world.until("the end", |nodes| !nodes[1].inbox.down.is_empty());
        assert_eq!(world.nodes[1].inbox.down[0].1, if cut { LinkError::Gone } else { LinkError::Closed });
    }
}

/// What somebody on the path does to the connection that carries a link on.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    None,
    /// Another position than the acceptor's.
    Position(u8),
    /// The records of the first connection once more, in the place of those of the second.
    Replay,
}

/// The first connection is cut in the middle of a record: the link goes on over another one, with keys of its
/// own, and nothing is lost. Whoever changes the position from which on it goes on, or repeats what the first
/// connection carried, ends it.
#[test]
fn an_encrypted_link_outlives_its_connection() {
    for lie in [Lie::None, Lie::Position(0), Lie::Position(1), Lie::Replay] {
        carried_on(lie);
    }
}

fn carried_on(lie: Lie) {
    /// Where the acceptor's position is in what it says: behind its answer and the verdict's status.
    const POSITION: usize = 144 + 8;
    // As if on different hosts, so that the initiator calls first.
    let mut world = super::resume::far_world(&TcpConfig { encrypt: true, ..config() });
    let target = world.nodes[1].name();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let name = moved(&target, listener.local_addr().unwrap());
    let lied = Arc::new(AtomicBool::new(false));
    let tells = Arc::clone(&lied);
    thread::spawn(move || {
        let (near, _) = listener.accept().unwrap();
        let far = TcpStream::connect(target.socket()).unwrap();
        let (back_from, back_to) = (far.try_clone().unwrap(), near.try_clone().unwrap());
        let back = thread::spawn(move || pass(back_from, back_to, &Mutex::new(Vec::new()), |_, _| ()));
        let mut record = Vec::new();
        while record.len() < SAID + 510 {
            let mut some = vec![0; SAID + 510 - record.len()];
            let n = (&near).read(&mut some).unwrap();
            (&far).write_all(&some[..n]).unwrap();
            record.extend_from_slice(&some[..n]);
        }
        // Both sides see an end without a goodbye.
        for stream in [&near, &far] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        back.join().unwrap();
        for stream in listener.incoming().flatten() {
            let far = TcpStream::connect(target.socket()).unwrap();
            let (from, to) = (far.try_clone().unwrap(), stream.try_clone().unwrap());
            let (record, forth, back) = (record.clone(), Arc::clone(&tells), Arc::clone(&tells));
            thread::spawn(move || {
                pass(from, to, &Mutex::new(Vec::new()), |at, byte| {
                    if matches!(lie, Lie::Position(place) if at == POSITION + usize::from(place)) {
                        *byte ^= 4;
                        back.store(true, Ordering::Relaxed);
                    }
                });
            });
            thread::spawn(move || {
                pass(stream, far, &Mutex::new(Vec::new()), |at, byte| {
                    if lie == Lie::Replay && (SAID..record.len()).contains(&at) {
                        *byte = record[at];
                        forth.store(true, Ordering::Relaxed);
                    }
                });
            });
        }
    });
    let near = world.nodes[0].connect(&name);
    world.until("up", |nodes| nodes.iter().all(|node| !node.inbox.up.is_empty()));
    let far = world.nodes[1].inbox.order[0];
    let sent: Vec<Vec<u8>> = (0..100_u8).map(|n| vec![n; 40]).collect();
    let mut rest = sent.iter().peekable();
    world.until("all messages, or the end", |nodes| {
        if let Some(bytes) = rest.peek()
            && nodes[0].send(near, 3, bytes).is_ok()
        {
            rest.next();
        }
        nodes[1].inbox.messages.len() == sent.len() || nodes.iter().any(|node| !node.inbox.down.is_empty())
    });
    let heard = world.nodes[1].take_messages(far);
    assert!(sent.starts_with(&heard), "{lie:?}: each once, and in order");
    let down: Vec<LinkError> = world.nodes.iter().flat_map(|node| node.inbox.down.iter().map(|down| down.1)).collect();
    if lied.load(Ordering::Relaxed) {
        let why = if lie == Lie::Replay { LinkError::Protocol } else { LinkError::Denied };
        assert!(down.contains(&why), "{lie:?}: {down:?}");
    } else {
        // The acceptor may have been faster, past the liar.
        assert!(down.is_empty() && heard.len() == sent.len(), "{lie:?}: {down:?}");
        assert!(world.nodes[1].nic.stats().resumed > 0);
    }
}
